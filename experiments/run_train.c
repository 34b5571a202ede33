/* Training of a run, block after block. Between blocks stand three things: the block's shard in model/, checkpoint.h5 with what became of the
 * blocks so far (run_resume.c), and targets/NNN.h5 with the next block's inputs on both streams and its target. Each is complete or absent, and
 * is written in this order, so a run that was killed anywhere goes on where the checkpoint says, with the same bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/params_file.h"
#include "experiments/log.h"
#include "experiments/run.h"

static void targets_path(const bk_run *r, int64_t layer, char *to, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, "targets/%03lld.h5", (long long)layer);
    bk_run_path(r, name, to, size);
}

static void dataset(char *to, size_t size, int64_t layer, const char *what)
{
    snprintf(to, size, "/blocks/%03lld/%s", (long long)layer, what);
}

/* Adds what to do about a file that the run made itself. */
static bk_status own_file(bk_status st, bk_error *err)
{
    bk_error was = *err;
    if (st != BK_EFORMAT) return st;
    bk_error_clear(err);
    return bk_fail(err, st, "%.900s; --resume makes it again", was.msg);
}

/* --- targets of one block --- */

typedef struct maker {
    bk_run *r;
    int64_t layer, n, tokens, width, batch;
    bk_store *from, *to;
    bk_dset *from_target, *from_q;              /* of the block before; NULL for block 0 */
    bk_dset *input_fp, *input_q, *target, *target_q;
    bk_block *teacher, *student;                /* this block in full precision; the block before as trained */
    bk_ctx *teach_ctx, *student_ctx;
    bk_block_weights weights;
    float *fp, *q, *out;                        /* one batch */
} maker;

static bool wants_target_q(const bk_run *r)
{
    return r->cfg.train.target == BK_TARGET_BOTH;
}

static bk_status run_batch(bk_ctx *ctx, bk_block *b, int64_t n, int64_t tokens, const float *in, float *out, bk_error *err)
{
    int64_t count = n * tokens * b->cfg.hidden;
    bk_step_begin(ctx);
    bk_tensor *x = bk_real_new(ctx, 3, (int64_t[]){n, tokens, b->cfg.hidden}, "x");
    if (in && !bk_ctx_status(ctx)) BK_TRY(bk_write(b->be, x, 0, in, count, err));
    bk_tensor *y = bk_block_forward(ctx, b, x);
    BK_TRY(bk_ctx_status(ctx));
    return in ? bk_read(b->be, y, 0, out, count, err) : BK_OK;
}

/* Inputs of block 0 on both streams: the embeddings. Later: the target of the block before, and what the trained block before makes of its input. */
static bk_status make_inputs(maker *m, int64_t first, int64_t n, bk_error *err)
{
    int64_t count = n * m->tokens * m->width;
    if (m->layer == 0) {
        BK_TRY(bk_source_embed(m->r->src, m->r->training.ids + first * m->tokens, n * m->tokens, m->fp, err));
        memcpy(m->q, m->fp, (size_t)count * sizeof *m->q);
        return BK_OK;
    }
    BK_TRY(own_file(bk_dset_read(m->from_target, first, n, m->fp, err), err));
    BK_TRY(own_file(bk_dset_read(m->from_q, first, n, m->out, err), err));
    return run_batch(m->student_ctx, m->student, n, m->tokens, m->out, m->q, err);
}

static bk_status make_batch(maker *m, int64_t first, int64_t n, bk_error *err)
{
    BK_TRY(make_inputs(m, first, n, err));
    BK_TRY(bk_dset_write(m->input_fp, first, n, m->fp, err));
    BK_TRY(bk_dset_write(m->input_q, first, n, m->q, err));
    BK_TRY(run_batch(m->teach_ctx, m->teacher, n, m->tokens, m->fp, m->out, err));
    BK_TRY(bk_dset_write(m->target, first, n, m->out, err));
    if (!m->target_q) return BK_OK;
    BK_TRY(run_batch(m->teach_ctx, m->teacher, n, m->tokens, m->q, m->out, err));
    return bk_dset_write(m->target_q, first, n, m->out, err);
}

static bk_status add_dataset(maker *m, const char *what, bk_dset **out, bk_error *err)
{
    char path[64];
    int64_t dim[3] = {m->n, m->tokens, m->width};
    dataset(path, sizeof path, m->layer, what);
    return bk_dset_create(out, m->to, path, m->r->cfg.store.dtype, 3, dim, m->r->cfg.store.overflow, err);
}

static bk_status create_file(maker *m, const char *path, bk_error *err)
{
    bk_store_meta meta = {.schema = "brick.targets", .model = bk_model_name(m->r->lab.model), .model_sha256 = m->r->model_sha, .has_seed = true,
                          .seed = m->r->cfg.seed, .prefix_len = m->r->prefix.n};
    BK_TRY(bk_store_create(&m->to, path, &meta, m->r->cfg.store.compression ? 1 : 0, err));
    BK_TRY(bk_store_put(m->to, "/tokens/input_ids", BK_STORE_I32, 2, (int64_t[]){m->n, m->tokens}, m->r->training.ids, err));
    BK_TRY(add_dataset(m, "input_fp", &m->input_fp, err));
    BK_TRY(add_dataset(m, "input_q", &m->input_q, err));
    BK_TRY(add_dataset(m, "target", &m->target, err));
    return wants_target_q(m->r) ? add_dataset(m, "target_q", &m->target_q, err) : BK_OK;
}

static bk_status open_before(maker *m, bk_error *err)
{
    char path[BK_RUN_PATH], model[BK_RUN_PATH], name[64];
    int64_t before = m->layer - 1;
    if (m->layer == 0) return BK_OK;
    targets_path(m->r, before, path, sizeof path);
    BK_TRY(bk_store_open(&m->from, path, "brick.targets", err));
    dataset(name, sizeof name, before, "target");
    BK_TRY(bk_dset_open(&m->from_target, m->from, name, err));
    dataset(name, sizeof name, before, "input_q");
    BK_TRY(bk_dset_open(&m->from_q, m->from, name, err));
    bk_run_path(m->r, "model", model, sizeof model);
    BK_TRY(bk_run_block(m->r, true, true, false, m->tokens, &m->student, err));
    unsigned weights;
    bk_skip_masks(&m->r->cfg, before, &m->student->skip_sites, &weights);
    bk_block_quantize(m->student, true, true);
    BK_TRY(bk_quantized_read_block(m->student, before, model, &m->r->quant.weight, err));
    return m->r->prefix.n ? bk_block_set_prefix(m->student, bk_prefix_k(&m->r->prefix, before), bk_prefix_v(&m->r->prefix, before), err) : BK_OK;
}

static bk_status prepare(maker *m, bk_error *err)
{
    size_t batch = (size_t)(m->batch * m->tokens * m->width);
    BK_TRY(bk_run_block(m->r, false, false, false, m->tokens, &m->teacher, err));
    BK_TRY(bk_weights_alloc(bk_source_config(m->r->src), &m->weights, err));
    BK_TRY(bk_run_load_fp(m->r, m->layer, &m->weights, m->teacher, err));
    BK_TRY(open_before(m, err));
    m->fp = malloc(batch * sizeof *m->fp);
    m->q = malloc(batch * sizeof *m->q);
    m->out = malloc(batch * sizeof *m->out);
    if (!m->fp || !m->q || !m->out) return bk_fail(err, BK_ENOMEM, "no memory for a batch of targets");
    m->teach_ctx = bk_ctx_new(m->r->lab.be, err);
    m->student_ctx = bk_ctx_new(m->r->lab.be, err);
    if (!m->teach_ctx || !m->student_ctx) return BK_ENOMEM;
    BK_TRY(run_batch(m->teach_ctx, m->teacher, m->batch, m->tokens, NULL, NULL, err));
    BK_TRY(bk_ctx_commit(m->teach_ctx));
    if (m->student) BK_TRY(run_batch(m->student_ctx, m->student, m->batch, m->tokens, NULL, NULL, err));
    return bk_ctx_commit(m->student_ctx);
}

static void warn_saturated(const maker *m)
{
    const struct {
        const char *name;
        bk_dset *d;
    } all[] = {{"input_fp", m->input_fp}, {"input_q", m->input_q}, {"target", m->target}, {"target_q", m->target_q}};
    for (size_t i = 0; i < 4; i++)
        if (all[i].d && bk_dset_info_of(all[i].d)->saturated)
            bk_log(BK_LOG_WARN, "block %lld, %s: %lld values beyond +-65504 were stored as that; store.overflow: f32 keeps them", (long long)m->layer,
                   all[i].name, (long long)bk_dset_info_of(all[i].d)->saturated);
}

static bk_status fill(maker *m, const char *path, bk_error *err)
{
    BK_TRY(prepare(m, err));
    BK_TRY(create_file(m, path, err));
    for (int64_t i = 0; i < m->n; i += m->batch)
        BK_TRY(make_batch(m, i, m->n - i < m->batch ? m->n - i : m->batch, err));
    warn_saturated(m);
    bk_store *to = m->to;
    m->to = NULL;
    return bk_store_commit(to, err);
}

/* The next block's targets are there; a kill may have come between them and this. */
static bk_status forget_targets(const bk_run *r, int64_t layer, bk_error *err)
{
    char path[BK_RUN_PATH];
    if (layer < 0 || r->cfg.store.keep != BK_TARGETS_ROLLING) return BK_OK;
    targets_path(r, layer, path, sizeof path);
    return unlink(path) == 0 || errno == ENOENT ? BK_OK : bk_fail_errno(err, "%s", path);
}

/* A file that was found is read through before it is believed. */
static bk_status look_for_targets(bk_run *r, int64_t layer, const char *path, bool *there, bk_error *err)
{
    bk_error why = {0};
    *there = bk_exists(path);
    if (!*there || layer < r->targets || !bk_store_verify(path, "brick.targets", &why)) return BK_OK;
    if (why.code != BK_EFORMAT) return bk_fail(err, why.code, "%s", why.msg);
    bk_log(BK_LOG_WARN, "%s; it is made again", why.msg);
    *there = false;
    return unlink(path) == 0 ? BK_OK : bk_fail_errno(err, "%s", path);
}

/* The targets of the block before are needed, and made too if they are gone: from block 0 on, through the blocks as they were trained. */
static bk_status make_targets(bk_run *r, int64_t layer, bk_error *err)
{
    char path[BK_RUN_PATH];
    bool there;
    targets_path(r, layer, path, sizeof path);
    BK_TRY(look_for_targets(r, layer, path, &there, err));
    if (!there && layer > 0) BK_TRY(make_targets(r, layer - 1, err));
    if (there) r->targets = layer + 1;
    if (there) return forget_targets(r, layer - 1, err);
    maker m = {.r = r, .layer = layer, .n = r->training.n, .tokens = r->training.seqlen, .width = bk_source_config(r->src)->hidden};
    m.batch = bk_pass_batch(m.n, m.tokens);
    bk_status st = fill(&m, path, err);
    bk_store_close(m.to);
    bk_store_close(m.from);
    bk_block_free(m.teacher);
    bk_block_free(m.student);
    bk_ctx_free(m.teach_ctx);
    bk_ctx_free(m.student_ctx);
    bk_weights_free(&m.weights);
    free(m.fp);
    free(m.q);
    free(m.out);
    if (st) return bk_error_prefix(err, "targets of block %lld", (long long)layer);
    r->targets = layer + 1;
    return forget_targets(r, layer - 1, err);
}

/* --- one line of metrics.jsonl per epoch --- */

typedef struct metrics {
    bk_run *r;
    int64_t layer;
} metrics;

static bk_json *numbers(const double *v, int64_t n)
{
    bk_json *a = bk_json_array();
    for (int64_t i = 0; i < n; i++) bk_json_push(a, bk_json_of_num(v[i]));
    return a;
}

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
    bk_json_set(o, "grad_norm", bk_json_of_num(e->grad_norm));
    bk_json_set(o, "losses", numbers(e->losses, e->n_steps));
    bk_json_set(o, "grad_norms", numbers(e->grad_norms, e->n_steps));
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
    bk_store *data;
    bk_dset *input, *target, *target2;
    bk_stream *refresh;
} block_run;

/* The initialised block: full-precision weights, parameters of the stage `init`. */
static bk_status load_initialised(block_run *t, bk_error *err)
{
    char path[BK_STAGE_FILE];
    bk_skip_masks(&t->r->cfg, t->layer, &t->b->skip_sites, &t->b->skip_weights);
    BK_TRY(bk_run_load_fp(t->r, t->layer, &t->weights, t->b, err));
    bk_run_init_path(t->r, t->layer, path, sizeof path);
    BK_TRY(own_file(bk_params_load(t->b, t->layer, path, err), err));
    bk_block_quantize(t->b, true, true);
    return BK_OK;
}

static bk_status open_data(block_run *t, bk_error *err)
{
    char path[BK_RUN_PATH], name[64];
    targets_path(t->r, t->layer, path, sizeof path);
    BK_TRY(bk_store_open(&t->data, path, "brick.targets", err));
    dataset(name, sizeof name, t->layer, "input_q");
    BK_TRY(bk_dset_open(&t->input, t->data, name, err));
    dataset(name, sizeof name, t->layer, "target");
    BK_TRY(bk_dset_open(&t->target, t->data, name, err));
    if (!wants_target_q(t->r)) return BK_OK;
    dataset(name, sizeof name, t->layer, "target_q");
    return bk_dset_open(&t->target2, t->data, name, err);
}

/* init.refresh: the search again, on the stream of the trained blocks before this one (decision 23). */
static bk_status refresh(block_run *t, bk_error *err)
{
    const bk_run_config *c = &t->r->cfg;
    int64_t n = c->data.calibration.samples < t->r->n_train ? c->data.calibration.samples : t->r->n_train, tokens = t->r->training.seqlen;
    int64_t width = t->b->cfg.hidden;
    BK_TRY(bk_stream_create(&t->refresh, n, tokens, width, err));
    float *one = malloc((size_t)(tokens * width) * sizeof *one);
    bk_status st = one ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
    for (int64_t i = 0; !st && i < n; i++) {
        st = bk_dset_read(t->input, i, 1, one, err);
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
    bk_log(rep->fell_back ? BK_LOG_WARN : BK_LOG_INFO, "block %3lld/%lld  loss %.4e -> %.4e  epoch %lld  %.1f s%s%s%s", (long long)layer + 1,
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
    BK_TRY(load_initialised(t, err));
    if (opt.epochs > 0) {
        BK_TRY(own_file(open_data(t, err), err));
        if (r->cfg.init.refresh) BK_TRY(refresh(t, err));
        BK_TRY(own_file(bk_block_train(t->b, t->input, t->target, t->target2, &opt, &hooks, &rep, err), err));
        if (rep.fell_back) BK_TRY(load_initialised(t, err));
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
    if (!st && r->cfg.train.epochs > 0) st = make_targets(r, layer, err);
    if (!st) st = train_block(&t, &(bk_watch){step_in_block, &steps}, err);
    bk_store_close(t.data);
    bk_stream_free(t.refresh);
    bk_block_free(t.b);
    bk_ctx_free(t.ctx);
    bk_weights_free(&t.weights);
    if (st) bk_error_prefix(err, "block %lld", (long long)layer);
    return st ? st : bk_run_checkpoint(r, layer + 1, err);
}

static bk_status check_fallbacks(bk_run *r, bk_error *err)
{
    int64_t layers = bk_source_config(r->src)->layers, n = 0;
    for (int64_t l = 0; l < layers; l++) n += r->block[l].fell_back;
    if (n == 0) return BK_OK;
    bk_log(BK_LOG_WARN, "%lld of %lld blocks could not be trained and stay as initialised", (long long)n, (long long)layers);
    r->all_fell_back = n == layers;
    return n < layers ? BK_OK : bk_fail(err, BK_ENUMERIC, "no block could be trained: every one fell back to its initialisation");
}

bk_status bk_run_train(bk_run *r, bk_error *err)
{
    char dir[BK_RUN_PATH];
    int64_t next, layers = bk_source_config(r->src)->layers;
    bk_run_path(r, "model", dir, sizeof dir);
    BK_TRY(bk_mkdir_p(dir, err));
    bk_run_path(r, "targets", dir, sizeof dir);
    BK_TRY(bk_run_resume(r, &next, err));
    BK_TRY(bk_mkdir_p(dir, err));
    if (next) bk_log(BK_LOG_INFO, "resuming: %lld of %lld blocks are trained", (long long)next, (long long)layers);
    bk_watch watch = bk_run_begin_stage(r, "train", 4, layers * 100);
    bk_progress_resume(&r->progress, next * 100);
    int64_t end = r->stop_after && r->stop_after < layers ? r->stop_after : layers;
    for (int64_t l = next; l < end; l++) BK_TRY(one_block(r, l, &watch, err));
    bk_run_end_stage(r);
    r->stopped = next < layers && end < layers;
    if (r->stopped) return BK_OK;
    if (r->cfg.store.keep == BK_TARGETS_ROLLING) BK_TRY(bk_remove_tree(dir, err));
    return check_fallbacks(r, err);
}
