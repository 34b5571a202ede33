/* Inputs that do not fit: every op refuses them before anything is computed, with the right code and a message that names what is wrong. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"
#include "tests/suite.h"

/* Real and integer tensors of a dry run. */
#define DIMS(...) (int64_t[]){__VA_ARGS__}
#define R(...) bk_real_new(ctx, (int)(sizeof(DIMS(__VA_ARGS__)) / sizeof(int64_t)), DIMS(__VA_ARGS__), "t")
#define I(...) bk_tensor_new(ctx, BK_I32, (int)(sizeof(DIMS(__VA_ARGS__)) / sizeof(int64_t)), DIMS(__VA_ARGS__), "t")
#define H(b, p, n) &(bk_hadamard_attr){b, p, n, 0}
#define FQ(group, per_row, lo, hi) &(bk_fakequant_attr){group, per_row, lo, hi, BK_ROUND_OFFSET}
#define DQ(group, symmetric, lo, hi) &(bk_dynquant_attr){group, symmetric, lo, hi, 0}

/* label, code, part of the message, builder */
#define CASES(CASE)                                                                                                                       \
    CASE(linear_width, BK_ESHAPE, "[2,3,5]", bk_linear(ctx, R(2, 3, 5), R(4, 6), NULL))                                                   \
    CASE(linear_transposed, BK_ESHAPE, "transposed?", bk_linear(ctx, R(3, 5), R(5, 4), NULL))                                             \
    CASE(linear_weight_rank, BK_ESHAPE, "[out,in]", bk_linear(ctx, R(3, 5), R(5), NULL))                                                  \
    CASE(linear_bias_length, BK_ESHAPE, "bias is [3]", bk_linear(ctx, R(3, 5), R(4, 5), R(3)))                                            \
    CASE(linear_bias_rank, BK_ESHAPE, "bias is [1,4]", bk_linear(ctx, R(3, 5), R(4, 5), R(1, 4)))                                         \
    CASE(linear_no_weight, BK_EINVAL, "input 1 is missing", bk_linear(ctx, R(3, 5), NULL, NULL))                                          \
    CASE(linear_integers, BK_EINVAL, "real type", bk_linear(ctx, I(3, 5), R(4, 5), NULL))                                                 \
    CASE(rmsnorm_width, BK_ESHAPE, "multiple", bk_rmsnorm(ctx, R(2, 5), R(4), 1e-5))                                                      \
    CASE(rmsnorm_gain_rank, BK_ESHAPE, "[2,4]", bk_rmsnorm(ctx, R(2, 4), R(2, 4), 1e-5))                                                  \
    CASE(rmsnorm_eps, BK_EINVAL, "eps", bk_rmsnorm(ctx, R(2, 4), R(4), -1e-5))                                                            \
    CASE(rmsnorm_eps_nan, BK_EINVAL, "eps", bk_rmsnorm(ctx, R(2, 4), R(4), NAN))                                                          \
    CASE(rope_rank, BK_ESHAPE, "[B,T,heads*d]", bk_rope(ctx, R(6, 8), R(9, 4), 2, 0))                                                     \
    CASE(rope_odd, BK_ESHAPE, "even d", bk_rope(ctx, R(1, 2, 6), R(9, 3), 2, 0))                                                          \
    CASE(rope_heads, BK_ESHAPE, "3 heads", bk_rope(ctx, R(1, 2, 8), R(9, 4), 3, 0))                                                       \
    CASE(rope_no_heads, BK_ESHAPE, "0 heads", bk_rope(ctx, R(1, 2, 8), R(9, 4), 0, 0))                                                    \
    CASE(rope_table_width, BK_ESHAPE, "[9,8]", bk_rope(ctx, R(1, 2, 8), R(9, 8), 2, 0))                                                   \
    CASE(rope_positions, BK_EINVAL, "the table has 9", bk_rope(ctx, R(1, 5, 8), R(9, 4), 2, 5))                                           \
    CASE(rope_negative_position, BK_EINVAL, "-1", bk_rope(ctx, R(1, 5, 8), R(9, 4), 2, -1))                                               \
    CASE(attention_heads, BK_EINVAL, "3 query heads", bk_attention(ctx, R(1, 2, 6), R(1, 2, 4), R(1, 2, 4), NULL, NULL, 3, 2, 0))         \
    CASE(attention_no_heads, BK_EINVAL, "0 query heads", bk_attention(ctx, R(1, 2, 6), R(1, 2, 4), R(1, 2, 4), NULL, NULL, 0, 1, 0))      \
    CASE(attention_window, BK_EINVAL, "window -1", bk_attention(ctx, R(1, 2, 8), R(1, 2, 4), R(1, 2, 4), NULL, NULL, 2, 1, -1))           \
    CASE(attention_q_width, BK_ESHAPE, "[1,2,7]", bk_attention(ctx, R(1, 2, 7), R(1, 2, 4), R(1, 2, 4), NULL, NULL, 2, 1, 0))             \
    CASE(attention_k_width, BK_ESHAPE, "[1,2,5]", bk_attention(ctx, R(1, 2, 8), R(1, 2, 5), R(1, 2, 5), NULL, NULL, 2, 1, 0))             \
    CASE(attention_k_tokens, BK_ESHAPE, "[1,3,4]", bk_attention(ctx, R(1, 2, 8), R(1, 3, 4), R(1, 3, 4), NULL, NULL, 2, 1, 0))            \
    CASE(attention_k_and_v, BK_ESHAPE, "want k and v", bk_attention(ctx, R(1, 2, 8), R(1, 2, 4), R(1, 3, 4), NULL, NULL, 2, 1, 0))        \
    CASE(attention_half_prefix, BK_EINVAL, "come together", bk_attention(ctx, R(1, 2, 8), R(1, 2, 4), R(1, 2, 4), R(1, 3, 4), NULL, 2, 1, 0))\
    CASE(attention_prefix, BK_ESHAPE, "[2,3,4]", bk_attention(ctx, R(1, 2, 8), R(1, 2, 4), R(1, 2, 4), R(2, 3, 4), R(2, 3, 4), 2, 1, 0))  \
    CASE(swiglu_shapes, BK_ESHAPE, "up is [3,4]", bk_swiglu(ctx, R(3, 5), R(3, 4)))                                                       \
    CASE(add_shapes, BK_ESHAPE, "b is [5,3]", bk_add(ctx, R(3, 5), R(5, 3)))                                                              \
    CASE(add_ranks, BK_ESHAPE, "a is [15]", bk_add(ctx, R(15), R(5, 3)))                                                                  \
    CASE(add_integers, BK_EINVAL, "real type", bk_add(ctx, I(3, 5), I(3, 5)))                                                             \
    CASE(embedding_table, BK_ESHAPE, "[vocabulary,channels]", bk_embedding(ctx, R(15), I(2, 3)))                                          \
    CASE(embedding_real_ids, BK_EINVAL, "i32", bk_embedding(ctx, R(15, 2), R(2, 3)))                                                      \
    CASE(embedding_rank, BK_ESHAPE, "ids are [1,1,2,3]", bk_embedding(ctx, R(15, 2), I(1, 1, 2, 3)))                                      \
    CASE(hadamard_power, BK_EINVAL, "power 6", bk_hadamard(ctx, R(2, 6), NULL, H(1, 6, 1)))                                               \
    CASE(hadamard_width, BK_ESHAPE, "order 8", bk_hadamard(ctx, R(2, 12), NULL, H(1, 8, 1)))                                              \
    CASE(hadamard_no_base, BK_ESHAPE, "[12,12]", bk_hadamard(ctx, R(2, 12), NULL, H(12, 1, 1)))                                           \
    CASE(hadamard_base, BK_ESHAPE, "[12,12]", bk_hadamard(ctx, R(2, 12), R(4, 4), H(12, 1, 1)))                                           \
    CASE(hadamard_nothing, BK_EINVAL, "base 0", bk_hadamard(ctx, R(2, 12), NULL, H(0, 1, 1)))                                             \
    CASE(rotate_heads_width, BK_ESHAPE, "3 heads", bk_rotate_heads(ctx, R(2, 8), R(1, 4, 4), 3))                                          \
    CASE(rotate_heads_none, BK_ESHAPE, "0 heads", bk_rotate_heads(ctx, R(2, 8), R(1, 4, 4), 0))                                           \
    CASE(rotate_heads_order, BK_ESHAPE, "[1,4,3]", bk_rotate_heads(ctx, R(2, 8), R(1, 4, 3), 2))                                          \
    CASE(rotate_heads_groups, BK_ESHAPE, "[2,4,4]", bk_rotate_heads(ctx, R(2, 12), R(2, 4, 4), 3))                                        \
    CASE(rotate_heads_rank, BK_ESHAPE, "[4,4]", bk_rotate_heads(ctx, R(2, 8), R(4, 4), 2))                                                \
    CASE(loss_shapes, BK_ESHAPE, "target is [2,3,5]", bk_recon_loss(ctx, BK_LOSS_MSE, R(2, 3, 4), R(2, 3, 5)))                            \
    CASE(loss_rank, BK_ESHAPE, "[N,T,C]", bk_recon_loss(ctx, BK_LOSS_MSE, R(6, 4), R(6, 4)))                                              \
    CASE(loss_kind, BK_EINVAL, "no such loss", bk_recon_loss(ctx, BK_LOSS_COUNT, R(2, 3, 4), R(2, 3, 4)))                                 \
    CASE(cross_entropy_rows, BK_ESHAPE, "targets [5]", bk_cross_entropy(ctx, R(4, 7), I(5)))                                              \
    CASE(cross_entropy_rank, BK_ESHAPE, "[N,V]", bk_cross_entropy(ctx, R(4, 7, 1), I(4)))                                                 \
    CASE(cross_entropy_real_target, BK_EINVAL, "i32", bk_cross_entropy(ctx, R(4, 7), R(4)))                                               \
    CASE(fakequant_group, BK_ESHAPE, "group size 3", bk_fakequant(ctx, R(4, 8), R(4, 3), NULL, FQ(3, 1, 0, 15)))                          \
    CASE(fakequant_no_group, BK_ESHAPE, "group size 0", bk_fakequant(ctx, R(4, 8), R(4), NULL, FQ(0, 1, 0, 15)))                          \
    CASE(fakequant_v, BK_ESHAPE, "v is [8,4]", bk_fakequant_rounded(ctx, R(4, 8), R(4), NULL, R(8, 4), FQ(8, 1, 0, 15)))                  \
    CASE(fakequant_soft, BK_EINVAL, "soft rounding needs v",                                                                              \
         bk_fakequant(ctx, R(4, 8), R(4), NULL, (&(bk_fakequant_attr){8, 1, 0, 15, BK_ROUND_SOFT})))                                      \
    CASE(mul_shapes, BK_ESHAPE, "b is [3,2]", bk_mul(ctx, R(2, 3), R(3, 2)))                                                              \
    CASE(quotient_shapes, BK_ESHAPE, "b is [3,2]", bk_quotient(ctx, 1, R(2, 3), R(3, 2)))                                                 \
    CASE(penalty_beta, BK_EINVAL, "beta is 0.5", bk_round_penalty(ctx, R(2, 3), (&(bk_round_penalty_attr){1, 0.5})))                      \
    CASE(fakequant_codes, BK_EINVAL, "codes 7..7", bk_fakequant(ctx, R(4, 8), R(4), NULL, FQ(8, 1, 7, 7)))                                \
    CASE(fakequant_steps, BK_ESHAPE, "want 8 steps", bk_fakequant(ctx, R(4, 8), R(4), NULL, FQ(4, 1, 0, 15)))                             \
    CASE(fakequant_shared_steps, BK_ESHAPE, "want 2 steps", bk_fakequant(ctx, R(4, 8), R(4), NULL, FQ(4, 0, 0, 15)))                      \
    CASE(fakequant_zeros, BK_ESHAPE, "want 4 steps", bk_fakequant(ctx, R(4, 8), R(4), R(1), FQ(8, 1, 0, 15)))                             \
    CASE(dynquant_group, BK_ESHAPE, "group size 5", bk_dynquant(ctx, R(4, 8), NULL, NULL, DQ(5, 1, -8, 7)))                               \
    CASE(dynquant_codes, BK_EINVAL, "codes -8..7", bk_dynquant(ctx, R(4, 8), NULL, NULL, DQ(8, 0, -8, 7)))                                \
    CASE(dynquant_empty_codes, BK_EINVAL, "codes 7..-8", bk_dynquant(ctx, R(4, 8), NULL, NULL, DQ(8, 1, 7, -8)))                          \
    CASE(dynquant_gamma, BK_ESHAPE, "want [1]", bk_dynquant(ctx, R(4, 8), R(4), NULL, DQ(8, 1, -8, 7)))                                   \
    CASE(dynquant_beta, BK_ESHAPE, "want [1]", bk_dynquant(ctx, R(4, 8), R(1), R(4), DQ(8, 0, 0, 15)))

#define CASE(label, code, part, builder)                                                                                                  \
    static bk_tensor *label(bk_ctx *ctx) { return builder; }
CASES(CASE)
#undef CASE

static const struct {
    const char *name;
    bk_tensor *(*build)(bk_ctx *ctx);
    bk_status code;
    const char *part;
} cases[] = {
#define CASE(label, code, part, builder) {#label, label, code, part},
    CASES(CASE)
#undef CASE
};

START_TEST(bad_input_is_refused)
{
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(bk_backend_ref(BK_F64), &err);
    bk_tensor *y = cases[_i].build(ctx);
    ck_assert_msg(!y, "%s was accepted", cases[_i].name);
    ck_assert_msg(err.code == cases[_i].code, "%s: %s, not %s: %s", cases[_i].name, bk_status_name(err.code), bk_status_name(cases[_i].code), err.msg);
    ck_assert_msg(strstr(err.msg, cases[_i].part) != NULL, "%s: \"%s\" does not say \"%s\"", cases[_i].name, err.msg, cases[_i].part);
    bk_ctx_free(ctx);
}
END_TEST

/* The first error stays, and what follows it neither works nor crashes. */
START_TEST(builders_are_sticky)
{
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(bk_backend_ref(BK_F64), &err);
    bk_tensor *bad = bk_add(ctx, R(3), R(4));
    ck_assert_ptr_null(bk_linear(ctx, bk_swiglu(ctx, bad, bad), NULL, NULL));
    ck_assert_ptr_null(bk_add(ctx, R(3), R(3)));
    ck_assert_int_eq(err.code, BK_ESHAPE);
    ck_assert_ptr_nonnull(strstr(err.msg, "add"));
    bk_ctx_free(ctx);
}
END_TEST

/* Ids beyond the table and targets beyond the vocabulary are values, not shapes: the kernels see them. */
START_TEST(ids_out_of_range_are_refused)
{
    const bk_backend *const be[] = {bk_backend_ref(BK_F32), bk_backend_guard(BK_F64), bk_backend_cpu()};
    const int32_t bad[] = {-1, 5};
    for (int i = 0; i < 3 * 2 * 2; i++) {
        bk_error err = {0};
        const bk_backend *b = be[i / 4];
        bk_ctx *ctx = bk_ctx_new(b, &err);
        bk_tensor *ids, *table;
        ck_assert_int_eq(bk_tensor_create(b, BK_I32, 1, DIMS(3), "ids", &ids, &err), BK_OK);
        ck_assert_int_eq(bk_tensor_create(b, b->dtype, 2, DIMS(i % 2 ? 3 : 5, i % 2 ? 5 : 2), "table", &table, &err), BK_OK);
        ck_assert_int_eq(bk_write_i32(b, ids, 1, &bad[i / 2 % 2], 1, &err), BK_OK);
        for (int dry = 1; dry >= 0; dry--) {
            bk_step_begin(ctx);
            bk_tensor *y = i % 2 ? bk_cross_entropy(ctx, table, ids) : bk_embedding(ctx, table, ids);
            ck_assert_int_eq(!y, !dry);
            if (dry) ck_assert_int_eq(bk_ctx_commit(ctx), BK_OK);
        }
        ck_assert_int_eq(err.code, BK_EINVAL);
        bk_tensor_destroy(b, ids);
        bk_tensor_destroy(b, table);
        bk_ctx_free(ctx);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops_infer");
    TCase *t = tcase_create("refusals");
    tcase_add_loop_test(t, bad_input_is_refused, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(t, builders_are_sticky);
    tcase_add_test(t, ids_out_of_range_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
