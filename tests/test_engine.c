/* Errors, tensors, arenas, contexts and the tape. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/arena.h"
#include "ops/ops.h"
#include "tests/count_alloc.h"
#include "tests/ok.h"
#include "tests/suite.h"

static const bk_backend *backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}
enum { BACKENDS = 4 };

/* --- errors --- */

START_TEST(the_first_error_wins)
{
    bk_error err = {0};
    ck_assert_int_eq(bk_fail(&err, BK_EINVAL, "one %d", 1), BK_EINVAL);
    ck_assert_int_eq(bk_fail(&err, BK_EIO, "two"), BK_EIO);
    ck_assert_int_eq(err.code, BK_EINVAL);
    ck_assert_str_eq(err.msg, "one 1");
    ck_assert_int_eq(bk_error_prefix(&err, "block %d", 3), BK_EINVAL);
    ck_assert_str_eq(err.msg, "block 3: one 1");
    bk_error_clear(&err);
    ck_assert(err.code == BK_OK && !*err.msg);
    ck_assert_int_eq(bk_fail(NULL, BK_EIO, "nobody listens"), BK_EIO);
}
END_TEST

START_TEST(system_errors_have_their_codes)
{
    static const struct {
        int number;
        bk_status want;
    } table[] = {{ENOSPC, BK_ENOSPC}, {EDQUOT, BK_ENOSPC}, {EFBIG, BK_ENOSPC}, {ENOMEM, BK_ENOMEM}, {ENOENT, BK_EIO}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        bk_error err = {0};
        errno = table[i].number;
        ck_assert_int_eq(bk_fail_errno(&err, "writing x"), table[i].want);
        ck_assert_ptr_nonnull(strstr(err.msg, strerror(table[i].number)));
        ck_assert(!strncmp(err.msg, "writing x: ", 11));
    }
}
END_TEST

START_TEST(messages_are_one_line_of_utf8)
{
    bk_error err = {0};
    bk_fail(&err, BK_EFORMAT, "%s", "a\nb\x1b[0m \xff\xc3 \xc3\xa9 \xed\xa0\x80 \xf5\x80\x80\x80");
    ck_assert_str_eq(err.msg, "a?b?[0m ?? \xc3\xa9 ??? ????");
    char longer[3000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    memcpy(longer + sizeof err.msg - 2, "\xc3\xa9", 2); /* cut in the middle */
    bk_error_clear(&err);
    bk_fail(&err, BK_EFORMAT, "%s", longer);
    ck_assert_uint_eq(strlen(err.msg), sizeof err.msg - 1);
    ck_assert_int_eq(err.msg[sizeof err.msg - 2], '?');
    bk_error_prefix(&err, "%s", longer);
    ck_assert_uint_lt(strlen(err.msg), sizeof err.msg);
}
END_TEST

START_TEST(every_status_has_a_name)
{
    for (int i = 0; i < BK_STATUS_COUNT; i++) ck_assert(!strncmp(bk_status_name((bk_status)i), i ? "BK_E" : "BK_OK", i ? 4 : 5));
    ck_assert_str_eq(bk_status_name((bk_status)999), "BK_?");
}
END_TEST

/* --- tensors --- */

START_TEST(values_go_in_and_out)
{
    const bk_backend *be = backend(_i);
    bk_error err = {0};
    bk_tensor *t, *ids;
    enum { N = 2500 }; /* more than one piece of a conversion */
    float f[N], g[N];
    double d[N];
    int32_t a[3] = {1, -2, 3}, b[3];
    ok(bk_tensor_create(be, be->dtype, 2, (int64_t[]){2, N / 2}, "t", &t, &err), &err);
    ck_assert_int_eq(bk_numel(t), N);
    ck_assert_int_eq(bk_rows(t), 2);
    ok(bk_read(be, t, 0, g, N, &err), &err);
    for (int i = 0; i < N; i++) ck_assert(g[i] == 0);
    for (int i = 0; i < N; i++) f[i] = (float)i / 3;
    ok(bk_write(be, t, 0, f, N, &err), &err);
    ok(bk_read_f64(be, t, 0, d, N, &err), &err);
    for (int i = 0; i < N; i++) ck_assert(d[i] == (double)f[i]);
    ok(bk_write_f64(be, t, 1200, d, 3, &err), &err);
    ok(bk_read(be, t, 1199, g, 5, &err), &err);
    ck_assert(g[0] == f[1199] && g[1] == f[0] && g[3] == f[2] && g[4] == f[1203]);
    ck_assert_int_eq(bk_read(be, t, 1, g, N, &err), BK_EINVAL);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_write(be, t, -1, f, 2, &err), BK_EINVAL);
    bk_error_clear(&err);
    ok(bk_write(be, t, N, f, 0, &err), &err);
    ok(bk_tensor_create(be, BK_I32, 1, (int64_t[]){3}, "ids", &ids, &err), &err);
    ok(bk_write_i32(be, ids, 0, a, 3, &err), &err);
    ok(bk_read_i32(be, ids, 0, b, 3, &err), &err);
    ck_assert(!memcmp(a, b, sizeof a));
    bk_tensor_destroy(be, t);
    bk_tensor_destroy(be, ids);
    bk_tensor_destroy(be, NULL);
}
END_TEST

START_TEST(shapes_are_printed)
{
    char buf[80];
    bk_tensor t = {.ndim = 3, .dim = {2, 8, 64}}, scalar = {0};
    ck_assert_str_eq(bk_shape_str(&t, buf), "[2,8,64]");
    ck_assert_str_eq(bk_shape_str(&scalar, buf), "[]");
    ck_assert(bk_numel(&scalar) == 1 && bk_last_dim(&t) == 64 && bk_rows(&t) == 16);
}
END_TEST

/* --- arenas --- */

START_TEST(an_arena_gives_what_was_measured)
{
    bk_arena a = {.be = bk_backend_ref(BK_F32)};
    void *p, *q;
    bk_arena_measure(&a);
    ck_assert_int_eq(bk_arena_alloc(&a, 100, &p), BK_OK);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(bk_arena_alloc(&a, 1, &p), BK_OK);
    ck_assert_int_eq(bk_arena_commit(&a), BK_OK);
    ck_assert_int_eq(bk_arena_alloc(&a, 1, &p), BK_OK);
    ck_assert_int_eq(bk_arena_alloc(&a, 100, &q), BK_OK);
    ck_assert(p && (uintptr_t)p % 64 == 0 && (char *)q == (char *)p + 64);
    ck_assert_int_eq(bk_arena_alloc(&a, 1, &p), BK_ENOMEM);
    ck_assert_ptr_null(p);
    void *base = a.base;
    bk_arena_measure(&a);
    ck_assert_int_eq(bk_arena_alloc(&a, 10, &p), BK_OK);
    ck_assert_int_eq(bk_arena_commit(&a), BK_OK);
    ck_assert_ptr_eq(a.base, base); /* less than there is: the memory stays */
    bk_arena_measure(&a);
    ck_assert_int_eq(bk_arena_alloc(&a, 1000, &p), BK_OK);
    ck_assert_int_eq(bk_arena_commit(&a), BK_OK);
    ck_assert_int_eq(bk_arena_alloc(&a, 1000, &p), BK_OK);
    ck_assert_ptr_nonnull(p);
    memset(p, 1, 1000);
    bk_arena_free(&a);
}
END_TEST

START_TEST(an_arena_of_nothing)
{
    bk_arena a = {.be = bk_backend_ref(BK_F32)};
    void *p;
    bk_arena_measure(&a);
    ck_assert_int_eq(bk_arena_commit(&a), BK_OK);
    ck_assert_int_eq(bk_arena_alloc(&a, 0, &p), BK_OK);
    ck_assert_int_eq(bk_arena_alloc(&a, 1, &p), BK_ENOMEM);
    bk_arena_free(&a);
}
END_TEST

/* Else the tests that count would see nothing. */
START_TEST(allocations_are_counted)
{
    bk_pool p = {0};
    bk_alloc_count_from_here();
    void *x = bk_pool_alloc(&p, 10);
    long count = bk_alloc_count();
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(count, bk_alloc_counted() ? 1 : 0);
    bk_pool_free(&p);
}
END_TEST

START_TEST(a_pool_keeps_its_chunks)
{
    bk_pool p = {0};
    char *first = bk_pool_alloc(&p, 10), *big = bk_pool_alloc(&p, 200000);
    ck_assert(first && big && (uintptr_t)first % 16 == 0);
    memset(big, 1, 200000);
    bk_pool_reset(&p);
    bk_alloc_count_from_here();
    char *small = bk_pool_alloc(&p, 10), *again = bk_pool_alloc(&p, 200000);
    long count = bk_alloc_count();
    ck_assert_int_eq(count, 0);
    ck_assert_ptr_eq(small, first);
    for (int i = 0; i < 200000; i++) ck_assert(again[i] == 0);
    bk_pool_free(&p);
    bk_pool_free(&p);
}
END_TEST

/* --- contexts --- */

static bk_tensor *leaf(const bk_backend *be, int64_t n, double value, bool trained, bk_error *err)
{
    bk_tensor *t;
    ok(bk_tensor_create(be, be->dtype, 1, &n, "leaf", &t, err), err);
    for (int64_t i = 0; i < n; i++) ok(bk_write_f64(be, t, i, &value, 1, err), err);
    if (!trained) return t;
    ok(bk_tensor_create(be, be->dtype, 1, &n, "grad", &t->grad, err), err);
    t->requires_grad = true;
    return t;
}

static void drop(const bk_backend *be, bk_tensor *t)
{
    bk_tensor_destroy(be, t->grad);
    bk_tensor_destroy(be, t);
}

static double value(const bk_backend *be, const bk_tensor *t, int64_t i)
{
    double v;
    bk_error err = {0};
    ok(bk_read_f64(be, t, i, &v, 1, &err), &err);
    return v;
}

/* ((a + b) + a) + ((a + b) + b): 3 a + 3 b through shared parts */
static bk_tensor *diamond(bk_ctx *ctx, bk_tensor *a, bk_tensor *b)
{
    bk_tensor *s = bk_add(ctx, a, b);
    return bk_add(ctx, bk_add(ctx, s, a), bk_add(ctx, s, b));
}

START_TEST(shared_values_add_their_gradients)
{
    const bk_backend *be = backend(_i);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 5, 2, true, &err), *b = leaf(be, 5, 10, true, &err), *dy = leaf(be, 5, 4, false, &err), *y = NULL;
    bk_ctx_record(ctx, true);
    for (int step = 0; step < 3; step++) { /* a dry run, then two steps whose gradients add up in the leaves */
        bk_step_begin(ctx);
        y = diamond(ctx, a, b);
        ok(bk_backward(ctx, y, dy), &err);
        if (step == 0) ck_assert(bk_ctx_measuring(ctx) && y->data == NULL);
        if (step == 0) ok(bk_ctx_commit(ctx), &err);
    }
    ck_assert(value(be, y, 4) == 36);
    ck_assert(value(be, a->grad, 0) == 24);
    ck_assert(value(be, b->grad, 4) == 24);
    ck_assert(value(be, y->grad, 4) == 4);
    drop(be, a), drop(be, b), drop(be, dy);
    bk_ctx_free(ctx);
}
END_TEST

/* A gradient from the step's memory would dangle in a leaf that outlives the step. */
START_TEST(leaf_without_a_tensor_for_its_gradient_is_refused)
{
    const bk_backend *be = backend(_i);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 5, 2, true, &err), *b = leaf(be, 5, 10, false, &err), *dy = leaf(be, 5, 4, false, &err);
    b->requires_grad = true;
    bk_ctx_record(ctx, true);
    ck_assert_int_eq(bk_backward(ctx, diamond(ctx, a, b), dy), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, "leaf") != NULL, "%s", err.msg);
    bk_step_begin(ctx);
    ck_assert_ptr_null(b->grad); /* nothing of the step before is left in it */
    drop(be, a), drop(be, b), drop(be, dy);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(only_what_wants_a_gradient_gets_one)
{
    const bk_backend *be = backend(_i);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 1, 2, true, &err), *b = leaf(be, 1, 10, false, &err);
    bk_ctx_record(ctx, true);
    for (int step = 0; step < 2; step++) {
        bk_step_begin(ctx);
        ok(bk_backward(ctx, diamond(ctx, a, b), NULL), &err);
        if (step == 0) ok(bk_ctx_commit(ctx), &err);
    }
    ck_assert_ptr_null(b->grad);
    ck_assert(value(be, a->grad, 0) == 3);
    bk_ctx_record(ctx, false);
    bk_step_begin(ctx);
    bk_tensor *y = diamond(ctx, a, b);
    ck_assert(!y->requires_grad && !y->from);
    ck_assert_int_eq(bk_backward(ctx, y, NULL), BK_EINVAL);
    drop(be, a), drop(be, b);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(builders_are_sticky)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 4, 1, false, &err), *b = leaf(be, 5, 1, false, &err);
    ck_assert_ptr_null(bk_add(ctx, a, b));
    ck_assert_int_eq(bk_ctx_status(ctx), BK_ESHAPE);
    ck_assert_msg(strstr(err.msg, "add") && strstr(err.msg, "[4]") && strstr(err.msg, "[5]"), "%s", err.msg);
    char first[sizeof err.msg];
    strcpy(first, err.msg);
    ck_assert_ptr_null(bk_add(ctx, a, a));
    ck_assert_ptr_null(bk_swiglu(ctx, NULL, NULL));
    ck_assert_ptr_null(bk_real_new(ctx, 1, (int64_t[]){1}, "x"));
    ck_assert_int_eq(bk_ctx_commit(ctx), BK_ESHAPE);
    ck_assert_str_eq(err.msg, first);
    drop(be, a), drop(be, b);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(inputs_are_checked)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 4, 1, false, &err), *ids;
    ok(bk_tensor_create(be, BK_I32, 1, (int64_t[]){4}, "ids", &ids, &err), &err);
    ck_assert_ptr_null(bk_add(ctx, a, NULL));
    ck_assert_msg(err.code == BK_EINVAL && strstr(err.msg, "input 1"), "%s", err.msg);
    bk_error_clear(&err);
    ck_assert_ptr_null(bk_add(ctx, a, ids));
    ck_assert_msg(err.code == BK_EINVAL && strstr(err.msg, "ids"), "%s", err.msg);
    drop(be, a), drop(be, ids);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(a_step_larger_than_measured_is_refused)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 100, 1, false, &err);
    bk_add(ctx, a, a);
    size_t measured = bk_ctx_bytes(ctx);
    ck_assert_uint_ge(measured, 400);
    ok(bk_ctx_commit(ctx), &err);
    ck_assert_uint_eq(bk_ctx_bytes(ctx), measured);
    ck_assert_ptr_nonnull(bk_add(ctx, a, a));
    ck_assert_ptr_null(bk_add(ctx, a, a));
    ck_assert_int_eq(err.code, BK_ENOMEM);
    ck_assert_msg(strstr(err.msg, "dry run"), "%s", err.msg);
    bk_error_clear(&err);
    bk_step_begin(ctx);
    ck_assert_ptr_nonnull(bk_add(ctx, a, a)); /* a new step has it all again */
    drop(be, a);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(released_memory_is_used_again)
{
    const bk_backend *be = bk_backend_cpu();
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 100, 1, false, &err);
    for (int real = 0; real < 2; real++) {
        bk_step_begin(ctx);
        for (int i = 0; i < 50; i++) {
            size_t mark = bk_step_mark(ctx);
            bk_add(ctx, a, a);
            bk_step_release(ctx, mark);
        }
        if (!real) ok(bk_ctx_commit(ctx), &err);
    }
    ok(bk_ctx_status(ctx), &err);
    ck_assert_uint_lt(bk_ctx_bytes(ctx), 1000);
    drop(be, a);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(steps_allocate_nothing)
{
    const bk_backend *be = bk_backend_cpu();
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 100, 1, true, &err), *dy = leaf(be, 100, 1, false, &err);
    bk_ctx_record(ctx, true);
    bk_status st = BK_OK;
    for (int step = 0; !st && step < 50; step++) {
        if (step == 2) bk_alloc_count_from_here();
        bk_step_begin(ctx);
        bk_tensor *y = a;
        for (int i = 0; i < 300; i++) y = bk_add(ctx, y, a); /* more headers than one chunk holds */
        st = bk_backward(ctx, y, dy);
        if (!st && step == 0) st = bk_ctx_commit(ctx);
    }
    long count = bk_alloc_count(); /* before Check allocates */
    ok(st, &err);
    ck_assert_int_eq(count, 0);
    drop(be, a), drop(be, dy);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(cotangents_must_fit)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 4, 1, true, &err), *dy = leaf(be, 5, 1, false, &err);
    bk_ctx_record(ctx, true);
    bk_tensor *y = bk_add(ctx, a, a);
    ck_assert_int_eq(bk_backward(ctx, y, NULL), BK_ESHAPE);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_backward(ctx, y, dy), BK_ESHAPE);
    drop(be, a), drop(be, dy);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(a_missing_kernel_is_named)
{
    bk_backend be = *bk_backend_ref(BK_F32);
    bk_error err = {0};
    be.k.add = NULL;
    be.name = "bare";
    bk_ctx *ctx = bk_ctx_new(&be, &err);
    bk_tensor *a = leaf(&be, 4, 1, false, &err);
    ck_assert_ptr_null(bk_add(ctx, a, a));
    ck_assert_int_eq(err.code, BK_EUNSUP);
    ck_assert_msg(strstr(err.msg, "bare") && strstr(err.msg, "add"), "%s", err.msg);
    drop(&be, a);
    bk_ctx_free(ctx);
}
END_TEST

static bk_status broken_add(const bk_add_args *a, const bk_work *w)
{
    (void)a, (void)w;
    return BK_EDEVICE;
}

START_TEST(a_kernel_that_fails_is_named)
{
    bk_backend be = *bk_backend_ref(BK_F32);
    bk_error err = {0};
    be.k.add = broken_add;
    bk_ctx *ctx = bk_ctx_new(&be, &err);
    bk_tensor *a = leaf(&be, 4, 1, false, &err);
    ck_assert_ptr_nonnull(bk_add(ctx, a, a)); /* the dry run calls no kernel */
    ok(bk_ctx_commit(ctx), &err);
    ck_assert_ptr_null(bk_add(ctx, a, a));
    ck_assert_int_eq(err.code, BK_EDEVICE);
    ck_assert_msg(strstr(err.msg, "`add`"), "%s", err.msg);
    drop(&be, a);
    bk_ctx_free(ctx);
}
END_TEST

START_TEST(a_profile_counts_calls)
{
    const bk_backend *be = bk_backend_ref(BK_F32);
    bk_error err = {0};
    bk_profile p = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *a = leaf(be, 4, 1, false, &err);
    bk_ctx_profile(ctx, &p);
    diamond(ctx, a, a);
    ck_assert_int_eq(p.calls[BK_SLOT_add], 0); /* dry */
    ok(bk_ctx_commit(ctx), &err);
    diamond(ctx, a, a);
    ck_assert_int_eq(p.calls[BK_SLOT_add], 4);
    ck_assert(p.seconds[BK_SLOT_add] >= 0);
    bk_ctx_profile(ctx, NULL);
    bk_step_begin(ctx);
    diamond(ctx, a, a);
    ck_assert_int_eq(p.calls[BK_SLOT_add], 4);
    for (int i = 0; i < BK_SLOT_COUNT; i++) ck_assert(bk_slot_name((bk_slot)i) && *bk_slot_name((bk_slot)i));
    drop(be, a);
    bk_ctx_free(ctx);
}
END_TEST

/* A replayed graph must be the recorded one. */
START_TEST(frozen_rounding_belongs_to_its_graph)
{
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_error err = {0};
    bk_ctx *ctx = bk_ctx_new(be, &err);
    bk_tensor *x = leaf(be, 4, 0.7, false, &err), *longer = leaf(be, 5, 0.7, false, &err), *s = leaf(be, 1, 0.5, false, &err);
    bk_fakequant_attr attr = {.group = 4, .qmin = -8, .qmax = 7}, attr5 = {.group = 5, .qmin = -8, .qmax = 7};
    bk_fakequant(ctx, x, s, NULL, &attr);
    bk_fakequant(ctx, longer, s, NULL, &attr5);
    ok(bk_ctx_commit(ctx), &err);
    bk_ctx_freeze(ctx, BK_FREEZE_RECORD);
    bk_fakequant(ctx, x, s, NULL, &attr);
    bk_ctx_freeze(ctx, BK_FREEZE_REPLAY);
    for (int64_t i = 0; i < 4; i++) ok(bk_write_f64(be, x, i, &(double){0.71}, 1, &err), &err);
    bk_step_begin(ctx);
    bk_tensor *y = bk_fakequant(ctx, x, s, NULL, &attr);
    ok(bk_ctx_status(ctx), &err);
    ck_assert(fabs(value(be, y, 0) - (0.5 + 0.01)) < 1e-12); /* the residual stays, the rest moves with x */
    bk_step_begin(ctx);
    ck_assert_ptr_null(bk_fakequant(ctx, longer, s, NULL, &attr5));
    ck_assert_int_eq(err.code, BK_EINVAL);
    drop(be, x), drop(be, longer), drop(be, s);
    bk_ctx_free(ctx);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("errors");
    tcase_add_test(t, the_first_error_wins);
    tcase_add_test(t, system_errors_have_their_codes);
    tcase_add_test(t, messages_are_one_line_of_utf8);
    tcase_add_test(t, every_status_has_a_name);
    suite_add_tcase(s, t);
    t = tcase_create("memory");
    tcase_add_loop_test(t, values_go_in_and_out, 0, BACKENDS);
    tcase_add_test(t, shapes_are_printed);
    tcase_add_test(t, an_arena_gives_what_was_measured);
    tcase_add_test(t, an_arena_of_nothing);
    tcase_add_test(t, allocations_are_counted);
    tcase_add_test(t, a_pool_keeps_its_chunks);
    suite_add_tcase(s, t);
    t = tcase_create("contexts");
    tcase_add_loop_test(t, shared_values_add_their_gradients, 0, BACKENDS);
    tcase_add_loop_test(t, leaf_without_a_tensor_for_its_gradient_is_refused, 0, BACKENDS);
    tcase_add_loop_test(t, only_what_wants_a_gradient_gets_one, 0, BACKENDS);
    tcase_add_test(t, builders_are_sticky);
    tcase_add_test(t, inputs_are_checked);
    tcase_add_test(t, a_step_larger_than_measured_is_refused);
    tcase_add_test(t, released_memory_is_used_again);
    tcase_add_test(t, steps_allocate_nothing);
    tcase_add_test(t, cotangents_must_fit);
    tcase_add_test(t, a_missing_kernel_is_named);
    tcase_add_test(t, a_kernel_that_fails_is_named);
    tcase_add_test(t, a_profile_counts_calls);
    tcase_add_test(t, frozen_rounding_belongs_to_its_graph);
    suite_add_tcase(s, t);
    return run_suite(s);
}
