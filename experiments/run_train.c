/* Training of a run, block after block. Between blocks stand three things: the block's shard in model/, checkpoint.h5 with what became of the
 * blocks so far (run_resume.c), and targets/NNN.h5 with the next block's inputs on both streams and its target. Each is complete or absent, and
 * is written in this order, so a run that was killed anywhere goes on where the checkpoint says, with the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/run.h"
#include "experiments/run_outcome.h"

/* --- one line of metrics.jsonl per epoch --- */

typedef struct metrics {
    bk_run *r;
    int64_t layer;
} metrics;

static bk_status write_epoch(void *user, const bk_epoch *e, bk_error *err)
{
    const metrics *m = user;
    char path[BK_RUN_PATH];
    bk_json *o = bk_json_object();
    bk_json_set(o, "block", bk_json_of_int(m->layer));
    bk_json_set(o, "epoch", bk_json_of_int(e->epoch));
    bk_json_set(o, "step", bk_json_of_int(e->step));
    bk_json_set(o, "loss", bk_json_of_num(e->loss));
    bk_json_set(o, "val_loss", bk_json_of_num(e->val_loss));
    bk_json_set(o, "lr", bk_json_of_num(e->lr_quant));
    bk_json_set(o, "lr_weight", bk_json_of_num(e->lr_weight));
    bk_json_set(o, "lr_round", bk_json_of_num(e->lr_round));
    bk_json_set(o, "grad_norm", bk_json_of_num(e->grad_norm));
    bk_json_set(o, "losses", bk_json_of_nums(e->losses, e->n_steps));
    bk_json_set(o, "grad_norms", bk_json_of_nums(e->grad_norms, e->n_steps));
    bk_json_set(o, "seconds", bk_json_of_num(e->seconds));
    char *text = bk_json_dump(o, 0);
    bk_json_free(o);
    bk_run_path(m->r, "metrics.jsonl", path, sizeof path);
    FILE *f = text ? fopen(path, "a") : NULL;
    bk_status st = !text ? bk_fail(err, BK_ENOMEM, "no memory") : !f ? bk_fail_errno(err, "%s", path) : BK_OK;
    if (!st && (fprintf(f, "%s\n", text) < 0 || fflush(f) != 0)) st = bk_fail_errno(err, "%s", path);
    if (f && fclose(f) != 0 && !st) st = bk_fail_errno(err, "%s", path);
    free(text);
    return st;
}

/* --- one block --- */

static bk_train_options train_options(const bk_run *r)
{
    const bk_run_config *c = &r->cfg;
    return (bk_train_options){.epochs = c->train.epochs, .batch = c->train.batch, .n_train = r->n_train, .n_val = r->n_val,
                              .lr_quant = c->train.lr_quant, .lr_weight = c->train.lr_weight, .lr_min_factor = c->train.lr_min_factor,
                              .lr_round = c->train.lr_round,
                              .adamw = {c->train.beta1, c->train.beta2, c->train.eps, c->train.weight_decay}, .clip_grad = c->train.clip_grad,
                              .shuffle = c->train.shuffle, .keep_last = c->train.keep == BK_KEEP_LAST, .strict = c->strict,
                              .loss = (bk_loss_kind)c->train.loss, .seed = (uint64_t)c->seed};
}

typedef struct block_run {
    bk_run *r;
    int64_t layer;
    bk_block *b;
    bk_block_weights weights;
    bk_ctx *ctx;
    bk_run_data data;
    bk_stream *refresh;
} block_run;

/* init.refresh: the search again, on the stream of the trained blocks before this one. */
static bk_status refresh(block_run *t, bk_error *err)
{
    const bk_run_config *c = &t->r->cfg;
    int64_t n = c->data.calibration.samples < t->r->n_train ? c->data.calibration.samples : t->r->n_train, tokens = t->r->training.seqlen;
    int64_t width = t->b->cfg.hidden;
    BK_TRY(bk_stream_create(&t->refresh, n, tokens, width, err));
    float *one = malloc((size_t)(tokens * width) * sizeof *one);
    bk_status st = one ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    for (int64_t i = 0; !st && i < n; i++) {
        st = bk_dset_read(t->data.input, i, 1, one, err);
        if (!st) st = bk_stream_write(t->refresh, i, 1, one, err);
    }
    free(one);
    bk_init_options opt = {.search = c->init.search, .ema = c->init.range == BK_RANGE_EMA};
    if (!st) st = bk_block_init(t->ctx, t->b, t->refresh, &opt, err);
    if (!st) bk_warn_silent(t->b, t->layer);
    return st;
}

static void log_block(const bk_run *r, int64_t layer, const bk_train_report *rep)
{
    char floored[64] = "";
    if (rep->floored) snprintf(floored, sizeof floored, "  (%lld times a step was held above its floor)", (long long)rep->floored);
    bk_log(rep->fell_back ? BK_LOG_WARN : BK_LOG_INFO, "block %lld (%lld of %lld)  loss %.4e -> %.4e  epoch %lld  %.1f s%s%s%s", (long long)layer, (long long)layer + 1,
           (long long)bk_source_config(r->src)->layers, rep->loss_init, rep->loss_final, (long long)rep->epoch_kept, rep->seconds,
           rep->fell_back ? "  kept as initialised: " : rep->halvings ? "  learning rates halved: " : "", rep->halvings || rep->fell_back ? rep->why : "",
           floored);
}

static bk_status train_block(block_run *t, const bk_watch *watch, bk_error *err)
{
    bk_run *r = t->r;
    bk_train_options opt = train_options(r);
    bk_train_report rep = {0};
    metrics m = {r, t->layer};
    bk_train_hooks hooks = {.epoch = write_epoch, .user = &m, .watch = watch};
    BK_TRY(bk_weights_alloc(bk_source_config(r->src), &t->weights, err));
    BK_TRY(bk_run_block(r, true, false, opt.epochs > 0, opt.epochs > 0 ? r->training.seqlen : 1, &t->b, err));
    if (!(t->ctx = bk_ctx_new(r->lab.be, err))) return BK_ENOMEM;
    BK_TRY(bk_run_load_init(r, t->layer, &t->weights, t->b, err));
    if (opt.epochs > 0) {
        BK_TRY(bk_run_own_file(bk_run_open_data(r, t->layer, &t->data, err), err));
        if (r->cfg.init.refresh) BK_TRY(refresh(t, err));
        bk_status st = bk_block_train(t->b, t->data.input, t->data.target, t->data.target_q, &opt, &hooks, &rep, err);
        BK_TRY(bk_run_own_file(st, err));
        if (rep.fell_back) BK_TRY(bk_run_load_init(r, t->layer, &t->weights, t->b, err));
        log_block(r, t->layer, &rep);
    }
    r->block[t->layer] = (bk_block_result){.loss_init = rep.loss_init, .loss_final = rep.loss_final, .seconds = rep.seconds, .epoch_kept = rep.epoch_kept,
                                             .halvings = rep.halvings, .floored = rep.floored, .fell_back = rep.fell_back};
    char model[BK_RUN_PATH];
    bk_run_path(r, "model", model, sizeof model);
    return bk_quantized_write_block(t->ctx, t->b, t->layer, model, err);
}

/* Progress of the whole stage in steps of all blocks. */
typedef struct all_steps {
    const bk_watch *outer;
    int64_t layer, layers;
} all_steps;

static bk_status step_in_block(void *user, int64_t done, int64_t total, bk_error *err)
{
    const all_steps *a = user;
    return a->outer->step(a->outer->user, (a->layer * total + done) * 100 / total, a->layers * 100, err);
}

static bk_status one_block(bk_run *r, int64_t layer, const bk_watch *watch, bk_error *err)
{
    all_steps steps = {watch, layer, bk_source_config(r->src)->layers};
    block_run t = {.r = r, .layer = layer};
    bk_status st = watch->step(watch->user, layer * 100, steps.layers * 100, err);
    if (!st && r->cfg.train.epochs > 0) st = bk_run_make_targets(r, layer, err);
    if (!st) st = train_block(&t, &(bk_watch){step_in_block, &steps}, err);
    bk_run_close_data(&t.data);
    bk_stream_free(t.refresh);
    bk_block_free(t.b);
    bk_ctx_free(t.ctx);
    bk_weights_free(&t.weights);
    if (st) bk_error_prefix(err, "block %lld", (long long)layer);
    return st ? st : bk_run_checkpoint(r, layer + 1, err);
}

static bk_status check_fallbacks(bk_run *r, bk_error *err)
{
    bk_run_outcome o = {.blocks = bk_source_config(r->src)->layers, .linears = r->gptq.linears, .not_rounded = r->gptq.fell_back};
    for (int64_t l = 0; l < o.blocks; l++) o.fell_back += r->block[l].fell_back;
    if (o.fell_back)
        bk_log(BK_LOG_WARN, "%lld of %lld blocks could not be trained and stay as initialised", (long long)o.fell_back, (long long)o.blocks);
    bk_status st = bk_run_outcome_check(&o, err);
    r->came_to_nothing = st != BK_OK;
    return st;
}

int64_t bk_run_last_block(const bk_run *r)
{
    int64_t layers = bk_source_config(r->src)->layers;
    return r->stop_after && r->stop_after < layers ? r->stop_after : layers;
}

bk_status bk_run_train(bk_run *r, bk_error *err)
{
    char dir[BK_RUN_PATH];
    int64_t next = r->next, layers = bk_source_config(r->src)->layers, end = bk_run_last_block(r);
    bk_run_path(r, "model", dir, sizeof dir);
    BK_TRY(bk_mkdir_p(dir, err));
    bk_run_path(r, "targets", dir, sizeof dir);
    BK_TRY(bk_mkdir_p(dir, err));
    bk_watch watch = bk_run_begin_stage(r, "train", 4, layers * 100);
    bk_progress_resume(&r->progress, next * 100);
    for (int64_t l = next; l < end; l++) BK_TRY(one_block(r, l, &watch, err));
    bk_run_end_stage(r);
    r->stopped = next < layers && end < layers;
    if (r->stopped) return BK_OK;
    if (r->cfg.store.keep != BK_TARGETS_ALL) BK_TRY(bk_remove_tree(dir, err));
    return check_fallbacks(r, err);
}
