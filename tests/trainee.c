#include "tests/trainee.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/init.h"
#include "tests/ok.h"
#include "tests/tiny_model.h"

const bk_backend *bk_trainee_backend(int i)
{
    return i == 0 ? bk_backend_ref(BK_F32) : i == 1 ? bk_backend_cpu() : i == 2 ? bk_backend_guard(BK_F32) : bk_backend_ref(BK_F64);
}

static float *full_precision(bk_trainee *e, const bk_stream *x, int64_t width)
{
    int64_t n = SAMPLES * TOKENS * width;
    bk_stream *y;
    float *out = malloc((size_t)n * sizeof *out);
    ck_assert_ptr_nonnull(out);
    bk_block_quantize(e->t.b, false, false);
    bk_ctx_measure(e->t.ctx);
    ok(bk_stream_create(&y, SAMPLES, TOKENS, width, &e->t.err), &e->t.err);
    ok(bk_block_pass_measure(e->t.ctx, e->t.b, SAMPLES, TOKENS), &e->t.err);
    ok(bk_ctx_commit(e->t.ctx), &e->t.err);
    ok(bk_block_pass(e->t.ctx, e->t.b, x, y, &e->t.err), &e->t.err);
    ok(bk_stream_read(y, 0, SAMPLES, out, &e->t.err), &e->t.err);
    bk_stream_free(y);
    return out;
}

static void put(bk_trainee *e, const char *path, const float *v, int64_t width)
{
    bk_dset *d;
    ok(bk_dset_create(&d, e->store, path, BK_STORE_F32, 3, (int64_t[]){SAMPLES, TOKENS, width}, BK_OVERFLOW_ERROR, &e->err), &e->err);
    ok(bk_dset_write(d, 0, SAMPLES, v, &e->err), &e->err);
    bk_dset_close(d);
}

static void open_data(bk_trainee *e, bk_stream *x, float scale)
{
    int64_t width = e->t.b->cfg.hidden, n = SAMPLES * TOKENS * width;
    float *target = full_precision(e, x, width), *in = malloc((size_t)n * sizeof *in);
    ck_assert_ptr_nonnull(in);
    ok(bk_stream_read(x, 0, SAMPLES, in, &e->err), &e->err);
    strcpy(e->path, "/tmp/bk_recon_XXXXXX");
    int fd = mkstemp(e->path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ok(bk_store_create(&e->store, e->path, &(bk_store_meta){.schema = "brick.targets"}, 0, &e->err), &e->err);
    put(e, "/x", in, width);
    for (int64_t i = 0; i < n; i++) target[i] *= scale;
    put(e, "/target", target, width);
    for (int64_t i = 0; i < n; i++) target[i] *= 2;
    put(e, "/twice", target, width);
    ok(bk_store_commit(e->store, &e->err), &e->err);
    ok(bk_store_open(&e->store, e->path, "brick.targets", &e->err), &e->err);
    ok(bk_dset_open(&e->x, e->store, "/x", &e->err), &e->err);
    ok(bk_dset_open(&e->target, e->store, "/target", &e->err), &e->err);
    ok(bk_dset_open(&e->twice, e->store, "/twice", &e->err), &e->err);
    free(target);
    free(in);
}

static void open_block(bk_trainee *e, const bk_backend *be, const bk_block_quant *quant, bool norms, float target_scale)
{
    bk_config c = bk_tiny_config();
    *e = (bk_trainee){0};
    ok(bk_hadamard_create(c.head_dim, &e->r3, &e->err), &e->err);
    ok(bk_hadamard_create(c.inter, &e->r4, &e->err), &e->err);
    bk_tiny_block_open(&e->t, be, &c,
                       &(bk_block_options){.quant = quant, .r3 = e->r3, .r4 = e->r4, .prefix_len = PREFIX, .tokens = TOKENS, .trained = true,
                                           .train_norms = norms}, 8);
    bk_stream *x = bk_tiny_stream(SAMPLES, TOKENS, c.hidden, 9);
    open_data(e, x, target_scale);
    ok(bk_block_init(e->t.ctx, e->t.b, x, &(bk_init_options){0}, &e->t.err), &e->t.err);
    bk_stream_free(x);
}

void bk_trainee_open_scaled(bk_trainee *e, const bk_backend *be, const bk_block_quant *quant, float target_scale)
{
    open_block(e, be, quant, false, target_scale);
}

void bk_trainee_open_weights(bk_trainee *e, const bk_backend *be, bool norms)
{
    bk_block_quant quant = bk_tiny_quant("static", 2, 16, false);
    quant.weight = bk_tiny_spec("affine", 2, false, BK_PER_GROUP, 16);
    open_block(e, be, &quant, norms, 1);
}

void bk_trainee_open(bk_trainee *e, const bk_backend *be, const char *quantizer)
{
    bk_block_quant quant = bk_tiny_quant(quantizer, 4, 4, true);
    bk_trainee_open_scaled(e, be, &quant, 1);
}

void bk_trainee_close(bk_trainee *e)
{
    bk_dset_close(e->x);
    bk_dset_close(e->target);
    bk_dset_close(e->twice);
    bk_store_close(e->store);
    unlink(e->path);
    bk_tiny_block_close(&e->t);
    bk_hadamard_free(e->r3);
    bk_hadamard_free(e->r4);
}

/* No assertion in here: Check's allocate. */
static bool steps_agree(const bk_epoch *e)
{
    double loss = 0, norm = 0;
    for (int64_t i = 0; i < e->n_steps; i++) {
        loss += e->losses[i];
        norm += e->grad_norms[i];
    }
    return e->step == e->epoch * e->n_steps && e->loss == loss / (double)e->n_steps && e->grad_norm == norm / (double)e->n_steps;
}

bk_status bk_trainee_keep_epoch(void *user, const bk_epoch *epoch, bk_error *err)
{
    bk_trainee *e = user;
    (void)err;
    e->steps_disagree |= !steps_agree(epoch);
    if (e->epochs < MAX_EPOCHS) e->epoch[e->epochs++] = *epoch;
    return BK_OK;
}

bk_train_options bk_trainee_options(void)
{
    return (bk_train_options){.epochs = 4, .batch = 3, .n_train = 7, .n_val = 2, .lr_quant = 1e-3, .lr_weight = 1e-3, .lr_min_factor = 10,
                              .adamw = {0.9, 0.999, 1e-8, 0}, .loss = BK_LOSS_MSE, .seed = 2};
}

bk_status bk_trainee_train_on(bk_trainee *e, bk_dset *target2, const bk_train_options *opt)
{
    e->epochs = 0;
    return bk_block_train(e->t.b, e->x, e->target, target2, opt, &(bk_train_hooks){bk_trainee_keep_epoch, e, NULL}, &e->report, &e->err);
}

void bk_trainee_train(bk_trainee *e, const bk_train_options *opt)
{
    ok(bk_trainee_train_on(e, NULL, opt), &e->err);
}

/* All parameters of the block, one after the other. */
float *bk_trainee_state(const bk_trainee *e, int64_t *n)
{
    const bk_params *p = e->t.b->params;
    bk_error err = {0};
    float *all;
    *n = 0;
    for (int i = 0; i < bk_params_count(p); i++) *n += bk_numel(bk_params_at(p, i, NULL));
    ck_assert_ptr_nonnull(all = malloc((size_t)*n * sizeof *all));
    *n = 0;
    for (int i = 0; i < bk_params_count(p); i++) {
        const bk_tensor *t = bk_params_at(p, i, NULL);
        ok(bk_read(e->t.be, t, 0, all + *n, bk_numel(t), &err), &err);
        *n += bk_numel(t);
    }
    return all;
}

void bk_trainee_set_state(bk_trainee *e, const float *all)
{
    for (int i = 0; i < bk_params_count(e->t.b->params); i++) {
        bk_tensor *t = bk_params_at(e->t.b->params, i, NULL);
        ok(bk_write(e->t.be, t, 0, all, bk_numel(t), &e->err), &e->err);
        all += bk_numel(t);
    }
}

/* Trains from the same start again; the state after it, malloc'd. */
float *bk_trainee_after(bk_trainee *e, const float *start, const bk_train_options *opt, int64_t *n)
{
    bk_trainee_set_state(e, start);
    bk_trainee_train(e, opt);
    return bk_trainee_state(e, n);
}
