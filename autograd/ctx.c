/* Contexts: arenas, the tape, kernel calls. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autograd/arena.h"
#include "autograd/op.h"

/* Residuals that a frozen graph replays, in the order in which its ops recorded them. */
typedef struct frozen_buffer {
    struct frozen_buffer *next;
    void *data;
    size_t bytes;
} frozen_buffer;

struct bk_ctx {
    const bk_backend *be;
    bk_error *err;
    bk_arena step, scratch;
    bk_pool pool; /* headers, nodes, attributes: host memory */
    bk_node *tape;
    bool recording;
    bk_profile *profile;
    bk_freeze freeze;
    frozen_buffer *frozen, *replay;
};

bk_ctx *bk_ctx_new(const bk_backend *be, bk_error *err)
{
    bk_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx) {
        bk_fail(err, BK_ENOMEM, "no memory for a context");
        return NULL;
    }
    ctx->be = be;
    ctx->err = err;
    ctx->step.be = ctx->scratch.be = be;
    bk_ctx_measure(ctx);
    return ctx;
}

static void drop_frozen(bk_ctx *ctx)
{
    for (frozen_buffer *f = ctx->frozen, *next; f; f = next) {
        next = f->next;
        ctx->be->release(f->data, f->bytes);
        free(f);
    }
    ctx->frozen = ctx->replay = NULL;
}

void bk_ctx_free(bk_ctx *ctx)
{
    if (!ctx) return;
    drop_frozen(ctx);
    bk_arena_free(&ctx->step);
    bk_arena_free(&ctx->scratch);
    bk_pool_free(&ctx->pool);
    free(ctx);
}

const bk_backend *bk_ctx_backend(const bk_ctx *ctx)
{
    return ctx->be;
}

bk_error *bk_ctx_error(bk_ctx *ctx)
{
    return ctx->err;
}

bk_status bk_ctx_status(const bk_ctx *ctx)
{
    return ctx->err->code;
}

void bk_ctx_measure(bk_ctx *ctx)
{
    bk_arena_measure(&ctx->step);
    bk_arena_measure(&ctx->scratch);
    bk_step_begin(ctx);
}

static bk_status out_of_memory(bk_ctx *ctx, const char *arena, size_t bytes)
{
    return bk_fail(ctx->err, BK_ENOMEM, "%s memory: %zu bytes do not fit; use fewer samples per batch or shorter ones", arena, bytes);
}

bk_status bk_ctx_commit(bk_ctx *ctx)
{
    BK_TRY(bk_ctx_status(ctx));
    if (bk_arena_commit(&ctx->step)) return out_of_memory(ctx, "step", ctx->step.peak);
    if (bk_arena_commit(&ctx->scratch)) return out_of_memory(ctx, "scratch", ctx->scratch.peak);
    bk_step_begin(ctx);
    return BK_OK;
}

bool bk_ctx_measuring(const bk_ctx *ctx)
{
    return ctx->step.measuring;
}

size_t bk_ctx_bytes(const bk_ctx *ctx)
{
    return ctx->step.peak + ctx->scratch.peak;
}

void bk_step_begin(bk_ctx *ctx)
{
    ctx->step.used = 0;
    ctx->tape = NULL;
    ctx->replay = ctx->frozen;
    bk_pool_reset(&ctx->pool);
}

void bk_ctx_record(bk_ctx *ctx, bool on)
{
    ctx->recording = on;
}

size_t bk_step_mark(const bk_ctx *ctx)
{
    return ctx->step.used;
}

void bk_step_release(bk_ctx *ctx, size_t mark)
{
    ctx->step.used = mark;
}

void bk_ctx_profile(bk_ctx *ctx, bk_profile *into)
{
    ctx->profile = into;
}

static bk_tensor *header(bk_ctx *ctx, bk_dtype dtype, int ndim, const int64_t *dim, const char *name)
{
    bk_tensor *t = bk_pool_alloc(&ctx->pool, sizeof *t);
    if (!t) {
        bk_fail(ctx->err, BK_ENOMEM, "no memory for a tensor header");
        return NULL;
    }
    bk_tensor_init(t, dtype, ndim, dim, name);
    return t;
}

bk_tensor *bk_tensor_new(bk_ctx *ctx, bk_dtype dtype, int ndim, const int64_t *dim, const char *name)
{
    if (bk_ctx_status(ctx)) return NULL;
    bk_tensor *t = header(ctx, dtype, ndim, dim, name);
    if (!t) return NULL;
    size_t bytes = (size_t)bk_numel(t) * bk_dtype_size(dtype);
    if (!bk_arena_alloc(&ctx->step, bytes, &t->data)) return t;
    bk_fail(ctx->err, BK_ENOMEM, "%s: %zu bytes are more than the dry run of this step had measured (%zu in all)",
            name ? name : "tensor", bytes, ctx->step.size);
    return NULL;
}

bk_tensor *bk_real_new(bk_ctx *ctx, int ndim, const int64_t *dim, const char *name)
{
    return bk_tensor_new(ctx, ctx->be->dtype, ndim, dim, name);
}

/* --- ops --- */

bk_tensor *bk_op_out(bk_node *n, int i, int ndim, const int64_t *dim)
{
    return n->out[i] = bk_real_new(n->ctx, ndim, dim, n->op->name);
}

bk_tensor *bk_op_out_like(bk_node *n, int i, const bk_tensor *t)
{
    return bk_op_out(n, i, t->ndim, t->dim);
}

bk_tensor *bk_op_save(bk_node *n, int i, int ndim, const int64_t *dim)
{
    return n->saved[i] = bk_real_new(n->ctx, ndim, dim, n->op->name);
}

bk_status bk_op_fail(bk_node *n, bk_status code, const char *fmt, ...)
{
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return bk_fail(n->ctx->err, code, "%s: %s", n->op->name, msg);
}

bool bk_wants(const bk_node *n, int i)
{
    return i < n->n_in && n->in[i] && n->in[i]->requires_grad && (n->op->diff_in >> i & 1);
}

void *bk_grad_data(const bk_node *n, int i)
{
    return bk_wants(n, i) ? n->in[i]->grad->data : NULL;
}

void *bk_dout(const bk_node *n, int i)
{
    return n->out[i]->grad->data;
}

static bool wants_any(const bk_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (bk_wants(n, i)) return true;
    return false;
}

static bk_node *node_new(bk_ctx *ctx, const bk_op *op, bk_tensor *const *in, int n_in, const void *attr)
{
    bk_node *n = bk_pool_alloc(&ctx->pool, sizeof *n);
    void *a = op->attr_size ? bk_pool_alloc(&ctx->pool, op->attr_size) : NULL;
    if (!n || (op->attr_size && !a)) {
        bk_fail(ctx->err, BK_ENOMEM, "%s: no memory for a node", op->name);
        return NULL;
    }
    if (a) memcpy(a, attr, op->attr_size);
    n->ctx = ctx;
    n->op = op;
    n->n_in = n_in;
    n->n_out = op->n_out;
    n->attr = a;
    for (int i = 0; i < n_in; i++) n->in[i] = in[i];
    return n;
}

/* Are all inputs there that must be, and of their type? */
static bk_status check_inputs(bk_ctx *ctx, const bk_op *op, bk_tensor *const *in, int n_in)
{
    for (int i = 0; i < op->n_in_min; i++)
        if (i >= n_in || !in[i]) return bk_fail(ctx->err, BK_EINVAL, "%s: input %d is missing", op->name, i);
    for (int i = 0; i < n_in; i++) {
        bool ids = op->ids_in >> i & 1;
        if (in[i] && in[i]->dtype != (ids ? BK_I32 : ctx->be->dtype))
            return bk_fail(ctx->err, BK_EINVAL, "%s: input %d (%s) must be %s", op->name, i, in[i]->name ? in[i]->name : "unnamed",
                           ids ? "i32" : "of the backend's real type");
    }
    return BK_OK;
}

bk_tensor *bk_apply(bk_ctx *ctx, const bk_op *op, bk_tensor *const *in, int n_in, const void *attr)
{
    if (bk_ctx_status(ctx) || check_inputs(ctx, op, in, n_in)) return NULL;
    bk_node *n = node_new(ctx, op, in, n_in, attr);
    if (!n || op->infer(n) || bk_ctx_status(ctx) || op->forward(n)) {
        bk_fail(ctx->err, BK_EUNSUP, "%s failed without a message", op->name);
        return NULL;
    }
    if (ctx->recording && op->backward && wants_any(n)) {
        for (int i = 0; i < n->n_out; i++) {
            n->out[i]->requires_grad = true;
            n->out[i]->from = n;
        }
        n->prev = ctx->tape;
        ctx->tape = n;
    }
    return n->out[0];
}

/* --- backward --- */

/* A gradient made here lives as long as the step, and so does the result of a node. A leaf may outlive both. */
static bk_status ensure_grad(bk_ctx *ctx, bk_tensor *t)
{
    if (t->grad) return BK_OK;
    if (!t->from)
        return bk_fail(ctx->err, BK_EINVAL, "backward: %s is a leaf that wants a gradient and has no tensor for it: give it one (bk_tensor_create)",
                       t->name ? t->name : "unnamed");
    t->grad = bk_real_new(ctx, t->ndim, t->dim, t->name);
    if (!t->grad) return bk_ctx_status(ctx);
    return bk_k_fill(ctx, &(bk_fill_args){.n = bk_numel(t), .x = t->grad->data});
}

static bk_status seed(bk_ctx *ctx, bk_tensor *y, const bk_tensor *dy)
{
    if (!dy && bk_numel(y) != 1)
        return bk_fail(ctx->err, BK_ESHAPE, "backward: the result has %lld elements; give a cotangent", (long long)bk_numel(y));
    if (dy && !bk_same_shape(y, dy)) return bk_fail(ctx->err, BK_ESHAPE, "backward: the cotangent has another shape than the result");
    BK_TRY(ensure_grad(ctx, y));
    if (!dy) return bk_k_fill(ctx, &(bk_fill_args){.n = 1, .value = 1, .x = y->grad->data});
    return bk_k_axpy(ctx, &(bk_axpy_args){.n = bk_numel(y), .alpha = 1, .x = dy->data, .y = y->grad->data});
}

static bk_status backward_node(bk_ctx *ctx, bk_node *n)
{
    bool reached = false;
    for (int i = 0; i < n->n_out; i++) reached |= n->out[i]->grad != NULL;
    if (!reached) return BK_OK;
    for (int i = 0; i < n->n_out; i++) BK_TRY(ensure_grad(ctx, n->out[i]));
    for (int i = 0; i < n->n_in; i++)
        if (bk_wants(n, i)) BK_TRY(ensure_grad(ctx, n->in[i]));
    bk_status st = n->op->backward(n);
    return st ? bk_fail(ctx->err, st, "%s: backward failed", n->op->name) : BK_OK;
}

bk_status bk_backward(bk_ctx *ctx, bk_tensor *y, const bk_tensor *dy)
{
    BK_TRY(bk_ctx_status(ctx));
    if (!y->requires_grad) return bk_fail(ctx->err, BK_EINVAL, "backward: nothing that led to this result was recorded and wants a gradient");
    BK_TRY(seed(ctx, y, dy));
    for (bk_node *n = ctx->tape; n; n = n->prev) BK_TRY(backward_node(ctx, n));
    return BK_OK;
}

/* --- frozen rounding, for gradient checks --- */

void bk_ctx_freeze(bk_ctx *ctx, bk_freeze mode)
{
    if (mode != BK_FREEZE_REPLAY) drop_frozen(ctx);
    ctx->freeze = mode;
    ctx->replay = ctx->frozen;
}

static bk_status record_frozen(bk_ctx *ctx, size_t bytes, void **out)
{
    frozen_buffer *f = calloc(1, sizeof *f);
    if (!f || ctx->be->alloc(bytes, &f->data)) {
        free(f);
        return bk_fail(ctx->err, BK_ENOMEM, "no memory for frozen residuals");
    }
    f->bytes = bytes;
    frozen_buffer **end = &ctx->frozen;
    while (*end) end = &(*end)->next;
    *end = f;
    *out = f->data;
    return BK_OK;
}

bk_status bk_op_freeze(bk_node *n, int64_t reals, bk_freeze *mode, void **buffer)
{
    bk_ctx *ctx = n->ctx;
    *mode = bk_ctx_measuring(ctx) ? BK_FREEZE_OFF : ctx->freeze;
    *buffer = NULL;
    if (*mode == BK_FREEZE_OFF) return BK_OK;
    size_t bytes = (size_t)reals * bk_dtype_size(ctx->be->dtype);
    if (*mode == BK_FREEZE_RECORD) return record_frozen(ctx, bytes, buffer);
    if (!ctx->replay || ctx->replay->bytes != bytes) return bk_op_fail(n, BK_EINVAL, "the replayed graph differs from the recorded one");
    *buffer = ctx->replay->data;
    ctx->replay = ctx->replay->next;
    return BK_OK;
}

/* --- kernel calls --- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Finds the scratch of a call; *run is false during a dry run. */
static bk_status begin_kernel(bk_ctx *ctx, bk_slot slot, const char *name, bool present, const void *args, bk_work *w, bool *run)
{
    BK_TRY(bk_ctx_status(ctx));
    if (!present) return bk_fail(ctx->err, BK_EUNSUP, "backend %s has no kernel `%s`", ctx->be->name, name);
    size_t bytes = ctx->be->work ? ctx->be->work(slot, args) : 0;
    ctx->scratch.used = 0;
    w->size = bytes;
    if (bk_arena_alloc(&ctx->scratch, bytes, &w->base))
        return bk_fail(ctx->err, BK_ENOMEM, "kernel `%s` needs %zu bytes of scratch, the dry run measured %zu", name, bytes, ctx->scratch.size);
    *run = !ctx->scratch.measuring;
    return BK_OK;
}

static bk_status end_kernel(bk_ctx *ctx, bk_slot slot, const char *name, bk_status st, double start)
{
    if (ctx->profile) {
        ctx->profile->seconds[slot] += now() - start;
        ctx->profile->calls[slot]++;
    }
    return st ? bk_fail(ctx->err, st, "kernel `%s` on backend %s failed: %s", name, ctx->be->name, bk_status_name(st)) : BK_OK;
}

#define BK_SLOT(name, args_type)                                                                               \
    bk_status bk_k_##name(bk_ctx *ctx, const args_type *args)                                                  \
    {                                                                                                          \
        bk_work w;                                                                                             \
        bool run = false;                                                                                      \
        BK_TRY(begin_kernel(ctx, BK_SLOT_##name, #name, ctx->be->k.name != NULL, args, &w, &run));             \
        if (!run) return BK_OK;                                                                                \
        double start = ctx->profile ? now() : 0;                                                               \
        return end_kernel(ctx, BK_SLOT_##name, #name, ctx->be->k.name(args, &w), start);                       \
    }
BK_SLOTS(BK_SLOT)
#undef BK_SLOT

const char *bk_slot_name(bk_slot slot)
{
#define BK_SLOT(name, args_type) #name,
    static const char *const names[BK_SLOT_COUNT] = {BK_SLOTS(BK_SLOT)};
#undef BK_SLOT
    return names[slot];
}
