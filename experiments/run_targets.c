/* What blocks learn from: targets/NNN.h5 in the run folder with a block's inputs on both streams and its targets. With
 * store.keep: shared, what depends on no training, the targets in full precision, is the stage `targets` with a file
 * for every block; the run folder then has what its own training made. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/log.h"
#include "experiments/run.h"

enum { INPUT_FP = 1, INPUT_Q = 2, TARGET = 4, TARGET_Q = 8 };
#define PARTS 4
static const char *const part_name[PARTS] = {"input_fp", "input_q", "target", "target_q"};

static void run_path(const bk_run *r, int64_t layer, char *to, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, "targets/%03lld.h5", (long long)layer);
    bk_run_path(r, name, to, size);
}

static void stage_path(const bk_run *r, int64_t layer, char *to, size_t size)
{
    snprintf(to, size, "%s/%03lld.h5", r->target.done ? r->target.dir : r->target.work, (long long)layer);
}

static void dataset(char *to, size_t size, int64_t layer, unsigned part)
{
    int k = 0;
    while (part >> (k + 1)) k++;
    snprintf(to, size, "/blocks/%03lld/%s", (long long)layer, part_name[k]);
}

bk_status bk_run_own_file(bk_status st, bk_error *err)
{
    bk_error was = *err;
    if (st != BK_EFORMAT) return st;
    bk_error_clear(err);
    return bk_fail(err, st, "%.900s; --resume makes it again", was.msg);
}

static bool is_shared(const bk_run *r)
{
    return bk_stage_used(BK_STAGE_TARGETS, &r->cfg);
}

/* What a file in the run folder holds. */
static unsigned run_parts(const bk_run *r)
{
    unsigned parts = r->cfg.train.target == BK_TARGET_BOTH ? INPUT_Q | TARGET_Q : INPUT_Q;
    return is_shared(r) ? parts : parts | INPUT_FP | TARGET;
}

/* --- one file --- */

typedef struct maker {
    bk_run *r;
    unsigned parts; /* that it writes */
    int64_t layer, n, tokens, width, batch;
    bk_store *from, *to;         /* the file of the block before, NULL for block 0; this one's */
    bk_dset *from_target, *from_q, *dset[PARTS];
    bk_block *teacher, *student; /* this block in full precision; the block before as trained */
    bk_ctx *teach_ctx, *student_ctx;
    bk_block_weights weights;
    float *fp, *q, *out;         /* one batch */
} maker;

static bk_status run_batch(bk_ctx *ctx, bk_block *b, int64_t n, int64_t tokens, const float *in, float *out,
                           bk_error *err)
{
    int64_t count = n * tokens * b->cfg.hidden;
    bk_step_begin(ctx);
    bk_tensor *x = bk_real_new(ctx, 3, (int64_t[]){n, tokens, b->cfg.hidden}, "x");
    if (in && !bk_ctx_status(ctx)) BK_TRY(bk_write(b->be, x, 0, in, count, err));
    bk_tensor *y = bk_block_forward(ctx, b, x);
    BK_TRY(bk_ctx_status(ctx));
    return in ? bk_read(b->be, y, 0, out, count, err) : BK_OK;
}

static bk_status embed(maker *m, int64_t first, int64_t n, float *to, bk_error *err)
{
    return bk_source_embed(m->r->src, m->r->training.ids + first * m->tokens, n * m->tokens, to, err);
}

/* The embeddings, then the target of the block before as it was stored. */
static bk_status make_fp(maker *m, int64_t first, int64_t n, bk_error *err)
{
    if (m->layer == 0) return embed(m, first, n, m->fp, err);
    return bk_run_own_file(bk_dset_read(m->from_target, first, n, m->fp, err), err);
}

/* The embeddings, then what the trained block before makes of its input. */
static bk_status make_q(maker *m, int64_t first, int64_t n, bk_error *err)
{
    if (m->layer == 0) return embed(m, first, n, m->q, err);
    BK_TRY(bk_run_own_file(bk_dset_read(m->from_q, first, n, m->out, err), err));
    return run_batch(m->student_ctx, m->student, n, m->tokens, m->out, m->q, err);
}

static bk_status make_batch(maker *m, int64_t first, int64_t n, bk_error *err)
{
    const float *from[PARTS] = {m->fp, m->q, m->out, m->out}, *teach[PARTS] = {NULL, NULL, m->fp, m->q};
    if (m->parts & TARGET) BK_TRY(make_fp(m, first, n, err));
    if (m->parts & INPUT_Q) BK_TRY(make_q(m, first, n, err));
    for (int k = 0; k < PARTS; k++) {
        if (!m->dset[k]) continue;
        if (teach[k]) BK_TRY(run_batch(m->teach_ctx, m->teacher, n, m->tokens, teach[k], m->out, err));
        BK_TRY(bk_dset_write(m->dset[k], first, n, from[k], err));
    }
    return BK_OK;
}

static bk_status create_file(maker *m, const char *path, bk_error *err)
{
    char name[64];
    const bk_run_config *c = &m->r->cfg;
    bk_store_meta meta = {.schema = "brick.targets", .model = bk_model_name(m->r->lab.model),
                          .model_sha256 = m->r->model_sha, .has_seed = true, .seed = c->seed,
                          .prefix_len = m->r->prefix.n};
    BK_TRY(bk_store_create(&m->to, path, &meta, c->store.compression ? 1 : 0, err));
    BK_TRY(bk_store_put(m->to, "/tokens/input_ids", BK_STORE_I32, 2, (int64_t[]){m->n, m->tokens}, m->r->training.ids,
                        err));
    for (int k = 0; k < PARTS; k++) {
        if (!(m->parts >> k & 1)) continue;
        dataset(name, sizeof name, m->layer, 1u << k);
        BK_TRY(bk_dset_create(&m->dset[k], m->to, name, c->store.dtype, 3, (int64_t[]){m->n, m->tokens, m->width},
                              c->store.overflow, err));
    }
    return BK_OK;
}

static bk_status open_part(bk_store *s, int64_t layer, unsigned part, bk_dset **out, bk_error *err)
{
    char name[64];
    dataset(name, sizeof name, layer, part);
    return bk_dset_open(out, s, name, err);
}

static bk_status open_before(maker *m, const char *path, bk_error *err)
{
    BK_TRY(bk_store_open(&m->from, path, "brick.targets", err));
    if (m->parts & TARGET) BK_TRY(open_part(m->from, m->layer - 1, TARGET, &m->from_target, err));
    return m->parts & INPUT_Q ? open_part(m->from, m->layer - 1, INPUT_Q, &m->from_q, err) : BK_OK;
}

/* The block before as it was trained. */
static bk_status load_student(maker *m, bk_error *err)
{
    char model[BK_RUN_PATH];
    unsigned weights;
    int64_t before = m->layer - 1;
    const bk_prefix *p = &m->r->prefix;
    bk_run_path(m->r, "model", model, sizeof model);
    BK_TRY(bk_run_block(m->r, true, true, false, m->tokens, &m->student, err));
    bk_skip_masks(&m->r->cfg, before, &m->student->skip_sites, &weights);
    bk_block_quantize(m->student, true, true);
    BK_TRY(bk_quantized_read_block(m->student, before, model, &m->r->quant.weight, err));
    return p->n ? bk_block_set_prefix(m->student, bk_prefix_k(p, before), bk_prefix_v(p, before), err) : BK_OK;
}

static bk_status load_teacher(maker *m, bk_error *err)
{
    BK_TRY(bk_run_block(m->r, false, false, false, m->tokens, &m->teacher, err));
    BK_TRY(bk_weights_alloc(bk_source_config(m->r->src), &m->weights, err));
    return bk_run_load_fp(m->r, m->layer, &m->weights, m->teacher, err);
}

static bk_status measure(maker *m, bk_block *b, bk_ctx **ctx, bk_error *err)
{
    if (!b) return BK_OK;
    if (!(*ctx = bk_ctx_new(m->r->lab.be, err))) return BK_ENOMEM;
    BK_TRY(run_batch(*ctx, b, m->batch, m->tokens, NULL, NULL, err));
    return bk_ctx_commit(*ctx);
}

static bk_status prepare(maker *m, const char *before, bk_error *err)
{
    size_t batch = (size_t)(m->batch * m->tokens * m->width);
    if (m->parts & (TARGET | TARGET_Q)) BK_TRY(load_teacher(m, err));
    if (m->layer > 0) BK_TRY(open_before(m, before, err));
    if (m->layer > 0 && (m->parts & INPUT_Q)) BK_TRY(load_student(m, err));
    m->fp = malloc(batch * sizeof *m->fp);
    m->q = malloc(batch * sizeof *m->q);
    m->out = malloc(batch * sizeof *m->out);
    if (!m->fp || !m->q || !m->out) return bk_fail(err, BK_ENOMEM, "no memory for a batch of targets");
    BK_TRY(measure(m, m->teacher, &m->teach_ctx, err));
    return measure(m, m->student, &m->student_ctx, err);
}

static void warn_saturated(const maker *m)
{
    for (int k = 0; k < PARTS; k++)
        if (m->dset[k] && bk_dset_info_of(m->dset[k])->saturated)
            bk_log(BK_LOG_WARN, "block %lld, %s: %lld values beyond +-65504 were stored as that; store.overflow: f32 "
                   "keeps them", (long long)m->layer, part_name[k],
                   (long long)bk_dset_info_of(m->dset[k])->saturated);
}

static bk_status fill(maker *m, const char *path, const char *before, bk_error *err)
{
    BK_TRY(prepare(m, before, err));
    BK_TRY(create_file(m, path, err));
    for (int64_t i = 0; i < m->n; i += m->batch)
        BK_TRY(make_batch(m, i, m->n - i < m->batch ? m->n - i : m->batch, err));
    warn_saturated(m);
    bk_store *to = m->to;
    m->to = NULL;
    return bk_store_commit(to, err);
}

/* Writes parts of a block into the file `path`; `before` is that of the block before. */
static bk_status make_file(bk_run *r, int64_t layer, unsigned parts, const char *path, const char *before,
                           bk_error *err)
{
    maker m = {.r = r, .parts = parts, .layer = layer, .n = r->training.n, .tokens = r->training.seqlen,
               .width = bk_source_config(r->src)->hidden};
    m.batch = bk_pass_batch(m.n, m.tokens);
    bk_status st = fill(&m, path, before, err);
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
    return st ? bk_error_prefix(err, "targets of block %lld", (long long)layer) : BK_OK;
}

/* --- the stage --- */

static bk_status make_stage(bk_run *r, bk_error *err)
{
    char path[BK_STAGE_FILE], before[BK_STAGE_FILE];
    int64_t layers = bk_source_config(r->src)->layers;
    bk_watch watch = bk_run_begin_stage(r, "targets", 4, layers);
    for (int64_t l = 0; l < layers; l++) {
        stage_path(r, l, path, sizeof path);
        stage_path(r, l - 1, before, sizeof before);
        BK_TRY(make_file(r, l, TARGET, path, before, err));
        BK_TRY(watch.step(watch.user, l + 1, layers, err));
    }
    BK_TRY(bk_stage_commit(&r->target, err));
    bk_run_end_stage(r);
    return BK_OK;
}

bk_status bk_run_targets(bk_run *r, bk_error *err)
{
    if (!is_shared(r) || r->next >= bk_run_last_block(r)) return BK_OK;
    bk_status st = bk_run_stage_open(r, BK_STAGE_TARGETS, &r->target, err);
    if (!st && r->target.done) bk_log(BK_LOG_INFO, "[4/5] targets: taken from %s", r->target.dir);
    if (!st && !r->target.done) st = make_stage(r, err);
    bk_stage_close(&r->target);
    return st;
}

/* --- the run folder --- */

/* The next block's targets are there; a kill may have come between them and this. */
static bk_status forget_targets(const bk_run *r, int64_t layer, bk_error *err)
{
    char path[BK_RUN_PATH];
    if (layer < 0 || r->cfg.store.keep == BK_TARGETS_ALL) return BK_OK;
    run_path(r, layer, path, sizeof path);
    return unlink(path) == 0 || errno == ENOENT ? BK_OK : bk_fail_errno(err, "%s", path);
}

/* Every value can be read, and what this run needs is among them: store.keep may have been another before. */
static bk_status check_file(const bk_run *r, int64_t layer, const char *path, bk_error *err)
{
    char name[64];
    bk_store *s;
    bk_status st = BK_OK;
    BK_TRY(bk_store_verify(path, "brick.targets", err));
    BK_TRY(bk_store_open(&s, path, "brick.targets", err));
    for (int k = 0; !st && k < PARTS; k++) {
        dataset(name, sizeof name, layer, 1u << k);
        if ((run_parts(r) >> k & 1) && !bk_store_has(s, name)) st = bk_fail(err, BK_EFORMAT, "%s: no %s", path, name);
    }
    bk_store_close(s);
    return st;
}

/* A file that was found is read through before it is believed. */
static bk_status look_for_targets(bk_run *r, int64_t layer, const char *path, bool *there, bk_error *err)
{
    bk_error why = {0};
    *there = bk_exists(path);
    if (!*there || layer < r->targets || !check_file(r, layer, path, &why)) return BK_OK;
    if (why.code != BK_EFORMAT) return bk_fail(err, why.code, "%s", why.msg);
    bk_log(BK_LOG_WARN, "%s; it is made again", why.msg);
    *there = false;
    return unlink(path) == 0 ? BK_OK : bk_fail_errno(err, "%s", path);
}

bk_status bk_run_make_targets(bk_run *r, int64_t layer, bk_error *err)
{
    char path[BK_RUN_PATH], before[BK_RUN_PATH];
    bool there;
    run_path(r, layer, path, sizeof path);
    run_path(r, layer - 1, before, sizeof before);
    BK_TRY(look_for_targets(r, layer, path, &there, err));
    if (!there && layer > 0) BK_TRY(bk_run_make_targets(r, layer - 1, err));
    if (!there) BK_TRY(make_file(r, layer, run_parts(r), path, before, err));
    r->targets = layer + 1;
    return forget_targets(r, layer - 1, err);
}

bk_status bk_run_open_data(const bk_run *r, int64_t layer, bk_run_data *d, bk_error *err)
{
    char path[BK_STAGE_FILE];
    run_path(r, layer, path, sizeof path);
    BK_TRY(bk_store_open(&d->run, path, "brick.targets", err));
    BK_TRY(open_part(d->run, layer, INPUT_Q, &d->input, err));
    if (run_parts(r) & TARGET_Q) BK_TRY(open_part(d->run, layer, TARGET_Q, &d->target_q, err));
    if (!is_shared(r)) return open_part(d->run, layer, TARGET, &d->target, err);
    stage_path(r, layer, path, sizeof path);
    BK_TRY(bk_store_open(&d->shared, path, "brick.targets", err));
    return open_part(d->shared, layer, TARGET, &d->target, err);
}

void bk_run_close_data(bk_run_data *d)
{
    bk_store_close(d->run);
    bk_store_close(d->shared);
    *d = (bk_run_data){0};
}
