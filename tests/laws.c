#include "tests/laws.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "quant/plugin.h"
#include "tests/suite.h"
#include "tests/tiny_block.h"

void law_ok(bk_status st, const bk_error *err)
{
    ck_assert_msg(st == BK_OK && err->code == BK_OK, "%s: %s", bk_status_name(st ? st : err->code), err->msg);
}

/* All combinations of quantizer, place, bits, symmetry and granularity that a setup accepts. */
static int all_uses(law_use *out, int room)
{
    static const int bits[] = {2, 3, 4, 8};
    int n = 0;
    for (int i = 0; i < bk_quantizer_count * 2 * 4 * 2 * 2 * BK_GRANULARITY_COUNT; i++) {
        int k = i;
        law_use u = {.q = bk_quantizers[k % bk_quantizer_count]};
        k /= bk_quantizer_count;
        u.weights = k % 2;
        u.spec = bk_tiny_spec(u.q->name, bits[k / 2 % 4], k / 8 % 2, (bk_granularity)(k / 32 % BK_GRANULARITY_COUNT), 16);
        u.spec.clip = true;
        u.spec.restricted = k / 16 % 2;
        bk_qspec_defaults(&u.spec);
        bk_qinst q;
        bk_error err = {0};
        bk_qshape shape = {.rows = u.weights ? LAW_ROWS : 0, .cols = LAW_COLS, .head_dim = u.weights ? 0 : LAW_HEAD, .name = "x"};
        bk_status st = bk_qinst_setup(&q, &u.spec, &shape, &err);
        if (st == BK_EINVAL || st == BK_ESHAPE) continue;
        law_ok(st, &err);
        ck_assert_int_lt(n, room);
        snprintf(u.what, sizeof u.what, "%s %s %d bits %s per %s%s", u.q->name, u.weights ? "weights" : "activations", u.spec.bits,
                 u.spec.symmetric ? "symmetric" : "asymmetric", bk_granularity_name[u.spec.granularity], u.spec.restricted ? " restricted" : "");
        out[n++] = u;
    }
    return n;
}

int64_t law_group_of(const law_use *u)
{
    switch (u->spec.granularity) {
    case BK_PER_HEAD: return LAW_HEAD;
    case BK_PER_GROUP: return u->spec.group;
    default: return LAW_COLS;
    }
}

void law_ranges(const law_run *r, const float *x, float *lo, float *hi)
{
    int64_t group = law_group_of(&r->u), per_row = LAW_COLS / group;
    for (int64_t i = 0; i < LAW_N; i++) {
        int64_t unit = (r->u.weights ? i / LAW_COLS * per_row : 0) + i % LAW_COLS / group;
        bool first = (r->u.weights || i < LAW_COLS) && i % group == 0;
        lo[unit] = first ? x[i] : fminf(lo[unit], x[i]);
        hi[unit] = first ? x[i] : fmaxf(hi[unit], x[i]);
    }
}

void law_pass(law_run *r)
{
    bk_step_begin(r->ctx);
    bk_ctx_record(r->ctx, r->train);
    law_ok(bk_params_zero_grad(r->ctx, r->p), &r->err);
    r->y = bk_qinst_apply(r->ctx, &r->q, r->x);
    law_ok(bk_ctx_status(r->ctx), &r->err);
    if (!r->train) return;
    bk_tensor *dy = bk_real_new(r->ctx, 2, r->y->dim, "cotangent");
    law_ok(bk_ctx_status(r->ctx), &r->err);
    float c[LAW_N];
    for (int i = 0; i < LAW_N; i++) c[i] = (float)bk_rng_normal(11, BK_RNG_TEST, (uint64_t)i);
    if (!bk_ctx_measuring(r->ctx)) law_ok(bk_write(r->be, dy, 0, c, LAW_N, &r->err), &r->err);
    law_ok(bk_backward(r->ctx, r->y, dy), &r->err);
}

static bool is_soft(const law_run *r)
{
    return r->q.q->harden != NULL;
}

void law_begin(law_run *r)
{
    if (r->q.q->begin && r->u.weights) law_ok(r->q.q->begin(r->ctx, r->q.state.bytes, r->x), &r->err);
}

void law_harden(law_run *r)
{
    if (is_soft(r)) law_ok(r->q.q->harden(r->ctx, r->q.state.bytes), &r->err);
}

void law_settle(law_run *r)
{
    if (is_soft(r)) law_begin(r);
    if (!r->train) law_harden(r);
}

void law_open(law_run *r, const bk_backend *be, const law_use *u, const float x[LAW_N], bool train)
{
    int64_t dim[2] = {LAW_ROWS, LAW_COLS};
    *r = (law_run){.be = be, .u = *u, .train = train};
    bk_qshape shape = {.rows = u->weights ? LAW_ROWS : 0, .cols = LAW_COLS, .head_dim = u->weights ? 0 : LAW_HEAD, .name = "x"};
    law_ok(bk_qinst_setup(&r->q, &u->spec, &shape, &r->err), &r->err);
    ck_assert_ptr_nonnull(r->p = bk_params_new(be, &r->err));
    bk_params_set_rule(r->p, BK_GROUP_ROUND, r->q.q->rule);
    bk_params_set_rule(r->p, BK_GROUP_CONSTANT, BK_RULE_CONSTANT);
    law_ok(r->q.q->params(r->q.state.bytes, r->p, "x"), &r->err);
    law_ok(bk_params_commit(r->p, true), &r->err);
    ck_assert_ptr_nonnull(r->ctx = bk_ctx_new(be, &r->err));
    law_ok(bk_tensor_create(be, be->dtype, 2, dim, "x", &r->x, &r->err), &r->err);
    law_ok(bk_write(be, r->x, 0, x, LAW_N, &r->err), &r->err);
    if (train) {
        law_ok(bk_tensor_create(be, be->dtype, 2, dim, "x", &r->x->grad, &r->err), &r->err);
        r->x->requires_grad = true;
    }
    float lo[LAW_N], hi[LAW_N];
    law_ranges(r, x, lo, hi);
    bool range = r->q.q->needs_range(r->q.state.bytes);
    law_ok(r->q.q->init(r->ctx, r->q.state.bytes, range ? lo : NULL, range ? hi : NULL), &r->err);
    law_settle(r);
    law_pass(r);
    law_ok(bk_ctx_commit(r->ctx), &r->err);
    law_pass(r);
}

void law_close(law_run *r)
{
    bk_tensor_destroy(r->be, r->x->grad);
    bk_tensor_destroy(r->be, r->x);
    bk_ctx_free(r->ctx);
    bk_params_free(r->p);
}

void law_values(law_run *r, const bk_tensor *t, double *out)
{
    law_ok(bk_read_f64(r->be, t, 0, out, bk_numel(t), &r->err), &r->err);
}

bk_codes law_export(law_run *r)
{
    bk_codes out = {.codes = NULL};
    int64_t units = r->q.q->units(r->q.state.bytes);
    law_ok(bk_tensor_create(r->be, BK_I32, 2, r->x->dim, "codes", &out.codes, &r->err), &r->err);
    law_ok(bk_tensor_create(r->be, r->be->dtype, 1, &units, "step", &out.step, &r->err), &r->err);
    if (!r->u.spec.symmetric) law_ok(bk_tensor_create(r->be, r->be->dtype, 1, &units, "zero", &out.zero, &r->err), &r->err);
    bk_ctx_record(r->ctx, false);
    bk_ctx_measure(r->ctx);
    law_ok(r->q.q->codes(r->ctx, r->q.state.bytes, r->x, &out), &r->err);
    law_ok(bk_ctx_commit(r->ctx), &r->err);
    law_ok(r->q.q->codes(r->ctx, r->q.state.bytes, r->x, &out), &r->err);
    return out;
}

void law_free_codes(const law_run *r, bk_codes *c)
{
    bk_tensor_destroy(r->be, c->codes);
    bk_tensor_destroy(r->be, c->step);
    bk_tensor_destroy(r->be, c->zero);
}

bool law_learns(const law_run *r)
{
    int group = BK_GROUP_CONSTANT;
    for (int i = 0; i < bk_params_count(r->p) && group == BK_GROUP_CONSTANT; i++) bk_params_at(r->p, i, &group);
    return group != BK_GROUP_CONSTANT;
}

void law_random(float x[LAW_N], double scale)
{
    for (int i = 0; i < LAW_N; i++) x[i] = (float)(scale * bk_rng_normal(3, BK_RNG_TEST, (uint64_t)i));
}

void law_for_all(law check, const bk_backend *be)
{
    static law_use u[512];
    int n = all_uses(u, 512), seen = 0;
    for (int i = 0; i < n; i++) check(be, &u[i]);
    for (int k = 0; k < bk_quantizer_count; k++)
        for (int i = 0; i < n; i++)
            if (u[i].q == bk_quantizers[k]) {
                seen++;
                break;
            }
    ck_assert_msg(seen == bk_quantizer_count, "only %d of %d quantizers could be set up", seen, bk_quantizer_count);
}

const bk_backend *law_backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F64) : i == 1 ? bk_backend_ref(BK_F32) : i == 2 ? bk_backend_cpu() : bk_backend_guard(BK_F32);
}

static const char *given_plugin(void)
{
    const char *given = getenv("BK_PLUGIN");
    return given && *given ? given : NULL;
}

static bk_status load_plugins(bk_error *err)
{
    static const char *const own[] = {"plugin_odd.so", "plugin_pow2.so", "plugin_widen.so"};
    char self[2048] = "", path[4096];
    if (given_plugin()) return bk_plugin_load(given_plugin(), err);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return bk_fail_errno(err, "/proc/self/exe");
    const char *dir = dirname(self);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, own[i]);
        BK_TRY(bk_plugin_load(path, err));
    }
    return BK_OK;
}

/* What a given plugin is not held to, in the words that scripts/test.sh shows. */
static void say_left_out(const char *of_ranges)
{
    int n = of_ranges ? 1 : 0;
    for (const char *p = of_ranges; p && *p; p++) n += *p == ' ';
    for (int i = 0; i < bk_quantizer_count && n && given_plugin(); i++)
        if (bk_quantizers[i]->free_steps)
            printf("SKIPPED %d: not asked of `%s`, which has free_steps: %s\n", n * LAW_BACKENDS, bk_quantizers[i]->name, of_ranges);
    fflush(stdout);
}

int law_main(Suite *s, const char *of_ranges)
{
    bk_error err = {0};
    if (load_plugins(&err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    say_left_out(of_ranges);
    return run_suite(s);
}
