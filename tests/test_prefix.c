/* Prefixed tokens: running [prefix; x] as ordinary tokens is the same as running x over the stored keys and values; and their file. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/pass.h"
#include "blocks/prefix.h"
#include "io/store.h"
#include "tests/ok.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"
#include "tests/tiny_fitted.h"
#include "tests/tiny_model.h"

enum { P = 3, T = 9, B = 2 };

/* --- one block in f64 --- */

typedef struct variant {
    const char *name;
    bool r3, r4, qk_norm, bias;
    int64_t kv_heads, head_dim;
} variant;

static const variant variants[] = {
    {"plain", false, false, false, false, 2, 16}, {"r3", true, false, false, false, 2, 16},   {"r3 r4", true, true, false, false, 2, 16},
    {"qk norm", false, false, true, false, 2, 16}, {"qk norm r3 r4", true, true, true, true, 4, 16}, {"one kv head", true, true, false, true, 1, 32},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static bk_config config_of(const variant *v)
{
    bk_config c = bk_tiny_config();
    c.qk_norm = v->qk_norm;
    c.qkv_bias = v->bias;
    c.kv_heads = v->kv_heads;
    c.head_dim = v->head_dim;
    return c;
}

/* Output and caches of x [batch, tokens, hidden] as doubles. */
typedef struct output {
    double *y, *k, *v;
} output;

static double *copy(const bk_backend *be, const bk_tensor *t)
{
    bk_error err = {0};
    double *x = malloc((size_t)bk_numel(t) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    ok(bk_read_f64(be, t, 0, x, bk_numel(t), &err), &err);
    return x;
}

static output run_block(bk_tiny_block *t, const double *x, int64_t batch, int64_t tokens)
{
    int64_t dim[3] = {batch, tokens, t->b->cfg.hidden};
    bk_block_values v;
    bk_ctx_measure(t->ctx);
    for (int real = 0; real < 2; real++) {
        bk_step_begin(t->ctx);
        bk_tensor *in = bk_real_new(t->ctx, 3, dim, "x");
        ok(bk_ctx_status(t->ctx), &t->err);
        if (real) ok(bk_write_f64(t->be, in, 0, x, bk_numel(in), &t->err), &t->err);
        bk_block_forward_values(t->ctx, t->b, in, &v);
        if (!real) ok(bk_ctx_commit(t->ctx), &t->err);
    }
    ok(bk_ctx_status(t->ctx), &t->err);
    return (output){copy(t->be, v.y), copy(t->be, v.k), copy(t->be, v.v)};
}

static void free_output(output *o)
{
    free(o->y);
    free(o->k);
    free(o->v);
}

/* Caches [tokens, Hkv, d] of one sample become a prefix [Hkv, P, d]. */
static void set_prefix(bk_tiny_block *t, const output *o)
{
    int64_t h = t->b->cfg.kv_heads, d = t->b->cfg.head_dim;
    for (int64_t i = 0; i < h; i++)
        for (int64_t p = 0; p < P; p++) {
            ok(bk_write_f64(t->be, t->b->prefix_k, (i * P + p) * d, o->k + (p * h + i) * d, d, &t->err), &t->err);
            ok(bk_write_f64(t->be, t->b->prefix_v, (i * P + p) * d, o->v + (p * h + i) * d, d, &t->err), &t->err);
        }
}

START_TEST(ordinary_tokens_and_prefix_agree)
{
    const variant *v = &variants[_i];
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_config c = config_of(v);
    bk_error err = {0};
    bk_hadamard_plan *r3 = NULL, *r4 = NULL;
    if (v->r3) ok(bk_hadamard_create(c.head_dim, &r3, &err), &err);
    if (v->r4) ok(bk_hadamard_create(c.inter, &r4, &err), &err);
    bk_tiny_block whole, with;
    bk_tiny_block_open(&whole, be, &c, &(bk_block_options){.r3 = r3, .r4 = r4, .tokens = P + T}, 4);
    bk_tiny_block_open(&with, be, &c, &(bk_block_options){.r3 = r3, .r4 = r4, .prefix_len = P, .tokens = T}, 4);
    int64_t n = c.hidden;
    float f[(P + T) * 64];
    double x[B * (P + T) * 64], tail[B * T * 64];
    ck_assert_int_eq(n, 64);
    for (int64_t s = 0; s < B; s++) { /* all samples begin with the same P tokens */
        bk_tiny_fill(f, (P + T) * n, n, 40 + (uint64_t)s);
        for (int64_t i = 0; i < (P + T) * n; i++) x[s * (P + T) * n + i] = s && i < P * n ? x[i] : (double)f[i];
        memcpy(tail + s * T * n, x + (s * (P + T) + P) * n, (size_t)(T * n) * sizeof *x);
    }
    output all = run_block(&whole, x, B, P + T), prefix = run_block(&whole, x, 1, P);
    set_prefix(&with, &prefix);
    output rest = run_block(&with, tail, B, T);
    double worst = 0, size = 0;
    for (int64_t s = 0; s < B; s++)
        for (int64_t i = 0; i < T * n; i++) {
            double want = all.y[(s * (P + T) + P) * n + i];
            worst = fmax(worst, fabs(rest.y[s * T * n + i] - want));
            size = fmax(size, fabs(want));
        }
    ck_assert_msg(worst <= 1e-10 * size, "%s: off by %g of %g", v->name, worst, size);
    free_output(&all);
    free_output(&prefix);
    free_output(&rest);
    bk_tiny_block_close(&whole);
    bk_tiny_block_close(&with);
    bk_hadamard_free(r3);
    bk_hadamard_free(r4);
}
END_TEST

/* RoPE by `positions` more, of keys [Hkv, P, d]: only the distance between query and key counts. */
static void turn_keys(double *k, const bk_config *c, int64_t positions)
{
    int64_t half = c->head_dim / 2;
    double freq[64];
    bk_config_inv_freq(c, freq);
    for (int64_t r = 0; r < c->kv_heads * P; r++)
        for (int64_t j = 0; j < half; j++) {
            double *a = k + r * c->head_dim + j, *b = a + half, x = *a, y = *b, angle = (double)positions * freq[j];
            *a = x * cos(angle) - y * sin(angle);
            *b = y * cos(angle) + x * sin(angle);
        }
}

START_TEST(overlapping_text_is_P_positions_nearer_to_the_prefix)
{
    const bk_backend *be = bk_backend_ref(BK_F64);
    bk_config plain = bk_tiny_config(), overlapping = plain;
    overlapping.overlap_prefix = true;
    bk_tiny_block behind, over;
    bk_block_options opt = {.prefix_len = P, .tokens = T};
    bk_tiny_block_open(&behind, be, &plain, &opt, 4);
    bk_tiny_block_open(&over, be, &overlapping, &opt, 4);
    double *k = copy(be, over.b->prefix_k), x[B * T * 64];
    float f[B * T * 64];
    bk_tiny_fill(f, B * T * plain.hidden, plain.hidden, 40);
    for (int64_t i = 0; i < B * T * plain.hidden; i++) x[i] = (double)f[i];
    output near = run_block(&over, x, B, T), far = run_block(&behind, x, B, T);
    turn_keys(k, &plain, P);
    ok(bk_write_f64(be, behind.b->prefix_k, 0, k, bk_numel(behind.b->prefix_k), &behind.err), &behind.err);
    output same = run_block(&behind, x, B, T);
    double worst = 0, moved = 0;
    for (int64_t i = 0; i < B * T * plain.hidden; i++) {
        worst = fmax(worst, fabs(near.y[i] - same.y[i]));
        moved = fmax(moved, fabs(near.y[i] - far.y[i]));
    }
    ck_assert_msg(worst <= 1e-10, "off by %g", worst);
    ck_assert_msg(moved > 1e-4, "positions make no difference: %g", moved);
    free(k);
    free_output(&near);
    free_output(&far);
    free_output(&same);
    bk_tiny_block_close(&behind);
    bk_tiny_block_close(&over);
}
END_TEST

/* --- a whole model, through bk_prefix_compute --- */

typedef struct model {
    char dir[BK_TINY_PATH];
    bk_model *m;
    bk_source *src;
    bk_block_weights w;
    const bk_prefix *prefix;
} model;

static void open_model(model *m, const bk_config *c, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    *m = (model){0};
    bk_tiny_model_write(c, 5, m->dir);
    ok(bk_model_open(m->dir, &m->m, &err), &err);
    ok(bk_source_open(m->m, spec, &m->src, &err), &err);
    ok(bk_weights_alloc(bk_source_config(m->src), &m->w, &err), &err);
}

static void close_model(model *m)
{
    bk_weights_free(&m->w);
    bk_source_close(m->src);
    bk_model_close(m->m);
    bk_tiny_model_remove(m->dir);
}

static bk_status load(void *user, int64_t layer, bk_block *b, bk_error *err)
{
    model *m = user;
    BK_TRY(bk_source_block(m->src, layer, &m->w, err));
    BK_TRY(bk_block_load(b, &m->w, err));
    return m->prefix ? bk_block_set_prefix(b, bk_prefix_k(m->prefix, layer), bk_prefix_v(m->prefix, layer), err) : BK_OK;
}

/* Hidden states behind the last block; malloc'd [samples, tokens, hidden] */
static float *hidden(const bk_backend *be, model *m, const bk_prefix *prefix, const int32_t *ids, int64_t samples, int64_t tokens)
{
    bk_error err = {0};
    const bk_config *c = bk_source_config(m->src);
    bk_block_options opt = {.r3 = bk_source_r3(m->src), .r4 = bk_source_r4(m->src), .prefix_len = prefix ? prefix->n : 0, .tokens = tokens};
    bk_block *b;
    bk_stream *h;
    bk_ctx *ctx = bk_ctx_new(be, &err);
    m->prefix = prefix;
    ok(bk_block_create(&b, be, c, &opt, &err), &err);
    ok(bk_stream_create(&h, samples, tokens, c->hidden, &err), &err);
    ok(bk_embed_stream(m->src, ids, h, &err), &err);
    ok(bk_block_pass_measure(ctx, b, samples, tokens), &err);
    ok(bk_ctx_commit(ctx), &err);
    ok(bk_model_pass(ctx, b, &(bk_loader){load, m}, h, NULL, &err), &err);
    float *out = malloc((size_t)(samples * tokens * c->hidden) * sizeof *out);
    ck_assert_ptr_nonnull(out);
    ok(bk_stream_read(h, 0, samples, out, &err), &err);
    bk_stream_free(h);
    bk_block_free(b);
    bk_ctx_free(ctx);
    return out;
}

static void check_model(const bk_backend *be, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    bk_config c = bk_tiny_config();
    model m;
    bk_prefix p;
    static const int32_t ids[P] = {200, 3, 1};
    int32_t all[B * (P + T)], rest[B * T];
    for (int s = 0; s < B; s++)
        for (int t = 0; t < P + T; t++) {
            int32_t id = t < P ? ids[t] : (int32_t)((31 * s + 7 * t) % c.vocab);
            all[s * (P + T) + t] = id;
            if (t >= P) rest[s * T + t - P] = id;
        }
    open_model(&m, &c, spec);
    ok(bk_prefix_compute(be, m.src, ids, P, &p, &err), &err);
    ck_assert(p.n == P && p.layers == c.layers && p.kv_heads == c.kv_heads && p.head_dim == c.head_dim && !memcmp(p.ids, ids, sizeof ids));
    float *want = hidden(be, &m, NULL, all, B, P + T), *got = hidden(be, &m, &p, rest, B, T);
    double worst = 0, size = 0;
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; i < T * c.hidden; i++) {
            double w = (double)want[(s * (P + T) + P) * c.hidden + i];
            worst = fmax(worst, fabs((double)got[s * T * c.hidden + i] - w));
            size = fmax(size, fabs(w));
        }
    ck_assert_msg(worst <= 2e-5 * size, "off by %g of %g", worst, size);
    free(want);
    free(got);
    bk_prefix_free(&p);
    close_model(&m);
}

static const bk_rotation_spec rotated = {.r1 = true, .r2 = true, .r3 = true, .r4 = true, .seed = 3};

START_TEST(a_model_with_prefix_is_the_same_model)
{
    check_model(_i == 2 ? bk_backend_guard(BK_F32) : _i ? bk_backend_cpu() : bk_backend_ref(BK_F64), NULL);
}
END_TEST

START_TEST(a_rotated_model_with_prefix_is_the_same_model)
{
    check_model(_i == 2 ? bk_backend_guard(BK_F32) : _i ? bk_backend_cpu() : bk_backend_ref(BK_F64), &rotated);
}
END_TEST

/* Keys of the prefix turn by the matrices of their heads as those of the text do. */
START_TEST(a_model_of_fitted_rotations_with_prefix_is_the_same_model)
{
    bk_config c = bk_tiny_config();
    bk_fitted *f = bk_tiny_fitted(&c, BK_TINY_ALL_PARTS, 3);
    check_model(_i == 2 ? bk_backend_guard(BK_F32) : _i ? bk_backend_cpu() : bk_backend_ref(BK_F64),
                &(bk_rotation_spec){.r1 = true, .r2 = true, .r3 = true, .r4 = true, .r4_group = 32, .fitted = f, .be = bk_backend_cpu()});
    bk_fitted_free(f);
}
END_TEST

/* --- edges and files --- */

START_TEST(ids_outside_of_the_vocabulary_are_refused)
{
    bk_config c = bk_tiny_config();
    model m;
    bk_prefix p;
    open_model(&m, &c, NULL);
    for (int i = 0; i < 2; i++) {
        bk_error err = {0};
        int32_t ids[2] = {1, i ? -1 : (int32_t)c.vocab};
        ck_assert_int_eq(bk_prefix_compute(bk_backend_cpu(), m.src, ids, 2, &p, &err), BK_EINVAL);
    }
    close_model(&m);
}
END_TEST

typedef struct file {
    char dir[64], path[96];
} file;

static void open_file(file *f)
{
    strcpy(f->dir, "/tmp/bk_prefix_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/prefix.h5", f->dir);
}

static void close_file(file *f)
{
    unlink(f->path);
    rmdir(f->dir);
}

static bk_prefix some_prefix(int64_t n)
{
    static int32_t ids[P] = {5, 6, 7};
    static float k[2 * 3 * P * 4], v[2 * 3 * P * 4];
    bk_tiny_fill(k, sizeof k / sizeof k[0], 4, 1);
    bk_tiny_fill(v, sizeof v / sizeof v[0], 4, 2);
    return (bk_prefix){.n = n, .layers = 2, .kv_heads = 3, .head_dim = 4, .ids = ids, .k = n ? k : NULL, .v = n ? v : NULL};
}

START_TEST(a_file_gives_back_the_bits)
{
    bk_error err = {0};
    file f;
    for (int64_t n = 0; n <= P; n += P) {
        bk_prefix p = some_prefix(n), q;
        size_t bytes = (size_t)(2 * 3 * n * 4) * sizeof(float);
        open_file(&f);
        ok(bk_prefix_save(&p, f.path, "tiny", "abc", "r1 r2", &err), &err);
        ok(bk_prefix_load(&q, f.path, "r1 r2", &err), &err);
        ck_assert(q.n == n && q.layers == 2 && q.kv_heads == 3 && q.head_dim == 4);
        ck_assert(!memcmp(p.ids, q.ids, (size_t)n * sizeof *p.ids));
        ck_assert(n == 0 || (!memcmp(p.k, q.k, bytes) && !memcmp(p.v, q.v, bytes)));
        ck_assert((bk_prefix_k(&q, 1) == NULL) == (n == 0));
        bk_prefix_free(&q);
        close_file(&f);
    }
}
END_TEST

START_TEST(keys_of_another_rotation_are_refused)
{
    bk_error err = {0};
    file f;
    bk_prefix p = some_prefix(P), q;
    open_file(&f);
    ok(bk_prefix_save(&p, f.path, "tiny", "abc", "r1 r2", &err), &err);
    ck_assert_int_eq(bk_prefix_load(&q, f.path, "r1", &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "rotation"));
    ck_assert_ptr_null(q.k);
    bk_error_clear(&err);
    ok(bk_prefix_load(&q, f.path, NULL, &err), &err); /* nobody asked */
    bk_prefix_free(&q);
    close_file(&f);
}
END_TEST

/* A file of the right schema whose parts contradict each other. */
static void write_parts(const char *path, int64_t ids, int rank, int64_t keys, int64_t values)
{
    bk_error err = {0};
    bk_store *s;
    float kv[64] = {0};
    int32_t id[8] = {0};
    ok(bk_store_create(&s, path, &(bk_store_meta){.schema = "brick.prefix"}, 0, &err), &err);
    if (ids) ok(bk_store_put(s, "/prefix/ids", BK_STORE_I32, 1, &ids, id, &err), &err);
    ok(bk_store_put(s, "/prefix/key", BK_STORE_F32, rank, (int64_t[4]){1, 1, keys, 4}, kv, &err), &err);
    if (values) ok(bk_store_put(s, "/prefix/value", BK_STORE_F32, 4, (int64_t[4]){1, 1, values, 4}, kv, &err), &err);
    ok(bk_store_commit(s, &err), &err);
}

START_TEST(contradictory_files_are_refused)
{
    static const struct {
        int64_t ids;
        int rank;
        int64_t keys, values;
    } bad[] = {{2, 4, 3, 3}, {3, 3, 3, 3}, {3, 4, 3, 2}, {3, 4, 3, 0}, {0, 4, 3, 3}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bk_error err = {0};
        file f;
        bk_prefix p;
        open_file(&f);
        write_parts(f.path, bad[i].ids, bad[i].rank, bad[i].keys, bad[i].values);
        ck_assert_msg(bk_prefix_load(&p, f.path, NULL, &err) == BK_EFORMAT, "file %d: %s", (int)i, err.msg);
        ck_assert(p.k == NULL && p.ids == NULL);
        close_file(&f);
    }
}
END_TEST

START_TEST(a_file_of_another_kind_is_refused)
{
    bk_error err = {0};
    bk_prefix p;
    ck_assert_int_eq(bk_prefix_load(&p, "tests/golden/adamw.h5", NULL, &err), BK_EFORMAT);
    bk_error_clear(&err);
    ck_assert_int_eq(bk_prefix_load(&p, "/nowhere/prefix.h5", NULL, &err), BK_EIO);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prefix");
    TCase *t = tcase_create("equivalence");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, ordinary_tokens_and_prefix_agree, 0, VARIANTS);
    tcase_add_test(t, overlapping_text_is_P_positions_nearer_to_the_prefix);
    tcase_add_loop_test(t, a_model_with_prefix_is_the_same_model, 0, 3);
    tcase_add_loop_test(t, a_rotated_model_with_prefix_is_the_same_model, 0, 3);
    tcase_add_loop_test(t, a_model_of_fitted_rotations_with_prefix_is_the_same_model, 0, 3);
    suite_add_tcase(s, t);
    t = tcase_create("files");
    tcase_add_test(t, ids_outside_of_the_vocabulary_are_refused);
    tcase_add_test(t, a_file_gives_back_the_bits);
    tcase_add_test(t, keys_of_another_rotation_are_refused);
    tcase_add_test(t, contradictory_files_are_refused);
    tcase_add_test(t, a_file_of_another_kind_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
