#include "tests/offq_model.h"

#include <stdlib.h>
#include <string.h>

#include "tests/ok.h"
#include "tests/tiny_logits.h"

void *offq_zeros(int64_t n, size_t size)
{
    void *p = calloc((size_t)n, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

static const struct {
    const char *name, *arch;
    bk_config c;
} shapes[] = {
    {"grouped heads, biases, tied",
     "llama",
     {.hidden = 64,
      .inter = 96,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .tied = true}},
    {"q/k norm, head_dim that is not hidden / heads",
     "qwen3",
     {.hidden = 48, .inter = 72, .layers = 3, .heads = 3, .kv_heads = 1, .head_dim = 32, .qk_norm = true}},
    {"no matrix for the groups",
     "qwen2",
     {.hidden = 90, .inter = 172, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 30, .qkv_bias = true}},
};
_Static_assert(sizeof shapes / sizeof *shapes == OFFQ_SHAPES, "the header says how many there are");

const char *offq_shape(int i)
{
    return shapes[i].name;
}

bk_config offq_config(int i)
{
    bk_config c = shapes[i].c;
    strcpy(c.arch, shapes[i].arch);
    c.vocab = 40;
    c.max_positions = 64;
    c.eps = 1e-5;
    c.rope_theta = 1e4;
    return c;
}

void offq_model_open(offq_model *t, const bk_config *c, const bk_rotation_spec *spec)
{
    bk_error err = {0};
    *t = (offq_model){.c = *c};
    for (int i = 0; i < OFFQ_SEQUENCES * OFFQ_TOKENS; i++) t->ids[i] = (int32_t)((i * i + 3 * i + 1) % c->vocab);
    bk_tiny_model_write(c, 6, t->dir);
    ok(bk_model_open(t->dir, &t->m, &err), &err);
    ok(bk_source_open(t->m, spec, &t->src, &err), &err);
}

void offq_model_close(offq_model *t)
{
    bk_source_close(t->src);
    bk_model_close(t->m);
    bk_tiny_model_remove(t->dir);
}

bk_offq_stats offq_measure(const bk_backend *be, const offq_model *t, const bk_prefix *prefix, const bk_offq_options *o)
{
    bk_error err = {0};
    bk_offq_stats s;
    ok(bk_offq_measure(be, t->src, t->ids, OFFQ_SEQUENCES, OFFQ_TOKENS, prefix, o, NULL, &s, &err), &err);
    return s;
}

bk_fitted *offq_fit(const bk_backend *be, const bk_config *c, const bk_offq_stats *s, const bk_offq_options *o, bk_offq_report *report)
{
    bk_error err = {0};
    bk_fitted *f;
    ok(bk_fitted_create(c, &f, &err), &err);
    ok(bk_offq_fit(be, c, s, o, f, report, &err), &err);
    ok(bk_fitted_check(f, &err), &err);
    return f;
}

void offq_same(const double *got, const double *want, int64_t n, double tol, const char *what)
{
    double off = bk_tiny_distance(got, want, n);
    ck_assert_msg(off <= tol, "%s: off by %g of the largest", what, off);
}

void offq_add_outer(double *c, const double *x, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) c[i * n + j] += factor * x[i] * x[j];
}
