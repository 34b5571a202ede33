/* How an unfinished run goes on. checkpoint.h5 is written after a block's shard and its lines of metrics.jsonl are on the disk, and carries the
 * SHA-256 of both: what does not match is trained again, from the first such block on, with the same bytes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/run.h"

/* --- checkpoint --- */

static const char *const result_name[] = {"loss_init", "loss_final", "seconds", "epoch_kept", "halvings", "floored", "fell_back", "metrics_bytes"};
#define N_RESULTS ((int)(sizeof result_name / sizeof result_name[0]))
#define N_REAL 3             /* the first ones; the others are whole numbers */
#define LARGEST_WHOLE 0x1p53 /* that a double tells apart */

static double get_result(const bk_block_result *b, int k)
{
    const double v[] = {b->loss_init, b->loss_final, b->seconds, (double)b->epoch_kept, (double)b->halvings, (double)b->floored, (double)b->fell_back,
                        (double)b->metrics_bytes};
    return v[k];
}

static void set_result(bk_block_result *b, int k, double v)
{
    double *real[] = {&b->loss_init, &b->loss_final, &b->seconds};
    int64_t *whole[] = {&b->epoch_kept, &b->halvings, &b->floored, &b->fell_back, &b->metrics_bytes};
    if (k < N_REAL) *real[k] = v;
    else *whole[k - N_REAL] = (int64_t)v;
}

#define DIGITS 64

static const char *const hash_name[] = {"shard_sha256", "metrics_sha256"}; /* u8 [layers, 64]: hexadecimal digits */
#define N_HASHES ((int)(sizeof hash_name / sizeof hash_name[0]))

static char *get_hash(bk_block_result *b, int k)
{
    return k ? b->metrics_sha : b->shard_sha;
}

/* Room for one result of all blocks. */
static bk_status result_room(const bk_run *r, int64_t *layers, double **v, bk_error *err)
{
    *layers = bk_source_config(r->src)->layers;
    *v = malloc((size_t)*layers * DIGITS);
    return *v ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory");
}

static bk_status put_results(const bk_run *r, bk_store *s, int64_t next, bk_error *err)
{
    char name[64];
    double *v;
    int64_t layers;
    BK_TRY(result_room(r, &layers, &v, err));
    bk_status st = bk_store_set_int(s, "/", "next_block", next, err);
    for (int k = 0; !st && k < N_RESULTS; k++) {
        for (int64_t l = 0; l < layers; l++) v[l] = l < next ? get_result(&r->block[l], k) : 0;
        snprintf(name, sizeof name, "/results/%s", result_name[k]);
        st = bk_store_put(s, name, BK_STORE_F64, 1, &layers, v, err);
    }
    for (int k = 0; !st && k < N_HASHES; k++) {
        memset(v, 0, (size_t)layers * DIGITS);
        for (int64_t l = 0; l < next; l++) memcpy((char *)v + l * DIGITS, get_hash(&r->block[l], k), DIGITS);
        snprintf(name, sizeof name, "/results/%s", hash_name[k]);
        st = bk_store_put(s, name, BK_STORE_U8, 2, (int64_t[]){layers, DIGITS}, v, err);
    }
    free(v);
    return st;
}

static bk_status get_results(bk_run *r, bk_store *s, int64_t *next, bk_error *err)
{
    char name[64];
    double *v;
    int64_t layers;
    BK_TRY(result_room(r, &layers, &v, err));
    bk_status st = bk_store_get_int(s, "/", "next_block", next, err);
    if (!st && (*next < 0 || *next > layers)) st = bk_fail(err, BK_EFORMAT, "next block %lld of %lld", (long long)*next, (long long)layers);
    for (int k = 0; !st && k < N_RESULTS; k++) {
        snprintf(name, sizeof name, "/results/%s", result_name[k]);
        st = bk_store_get(s, name, BK_STORE_F64, 1, &layers, v, err);
        for (int64_t l = 0; !st && l < layers; l++) {
            if (k >= N_REAL && !(fabs(v[l]) < LARGEST_WHOLE)) st = bk_fail(err, BK_EFORMAT, "%s of block %lld is %g", result_name[k], (long long)l, v[l]);
            else set_result(&r->block[l], k, v[l]);
        }
    }
    for (int k = 0; !st && k < N_HASHES; k++) {
        snprintf(name, sizeof name, "/results/%s", hash_name[k]);
        st = bk_store_get(s, name, BK_STORE_U8, 2, (int64_t[]){layers, DIGITS}, v, err);
        for (int64_t l = 0; !st && l < *next; l++) memcpy(get_hash(&r->block[l], k), (char *)v + l * DIGITS, DIGITS);
    }
    free(v);
    return st;
}

static bk_status write_checkpoint(const bk_run *r, int64_t next, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_store *s = NULL;
    bk_run_path(r, "checkpoint.h5", path, sizeof path);
    bk_store_meta meta = {.schema = "brick.checkpoint", .model = bk_model_name(r->lab.model), .model_sha256 = r->model_sha, .config = r->manifest_sha,
                          .has_seed = true, .seed = r->cfg.seed, .prefix_len = r->prefix.n};
    BK_TRY(bk_store_create(&s, path, &meta, 0, err));
    bk_status st = put_results(r, s, next, err);
    if (!st) return bk_store_commit(s, err);
    bk_store_close(s);
    return st;
}

static bool same_text(const char *a, const char *b)
{
    return a && !strcmp(a, b);
}

static bk_status read_checkpoint(bk_run *r, int64_t *next, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_store *s;
    bk_run_path(r, "checkpoint.h5", path, sizeof path);
    if (!bk_exists(path)) return BK_OK;
    BK_TRY(bk_store_open(&s, path, "brick.checkpoint", err));
    const bk_store_meta *m = bk_store_meta_of(s);
    bk_status st = BK_OK;
    if (!same_text(m->model_sha256, r->model_sha) || !same_text(m->config, r->manifest_sha) || m->seed != r->cfg.seed || m->prefix_len != r->prefix.n)
        st = bk_fail(err, BK_EINVAL, "%s belongs to another model, text, seed or prefix than this run; give another --out", path);
    if (!st) st = get_results(r, s, next, err);
    bk_store_close(s);
    return st;
}

/* --- what is on the disk --- */

static void shard_path(const bk_run *r, int64_t layer, char *to, size_t size)
{
    char model[BK_RUN_PATH];
    bk_run_path(r, "model", model, sizeof model);
    bk_quantized_path(to, size, model, layer, bk_source_config(r->src)->layers);
}

static bk_status read_metrics(const bk_run *r, char **text, size_t *len, bk_error *err)
{
    char path[BK_RUN_PATH];
    bk_run_path(r, "metrics.jsonl", path, sizeof path);
    return bk_file_slurp(path, (size_t)1 << 30, text, len, err);
}

bk_status bk_run_checkpoint(bk_run *r, int64_t next, bk_error *err)
{
    char path[BK_RUN_PATH + 64], *text;
    size_t len;
    bk_block_result *b = &r->block[next - 1];
    bk_run_path(r, "metrics.jsonl", path, sizeof path);
    BK_TRY(bk_sync(path, err));
    BK_TRY(read_metrics(r, &text, &len, err));
    b->metrics_bytes = (int64_t)len;
    bk_status st = bk_sha256_bytes(text, len, b->metrics_sha, err);
    free(text);
    BK_TRY(st);
    shard_path(r, next - 1, path, sizeof path);
    BK_TRY(bk_sha256_file(path, b->shard_sha, err));
    return write_checkpoint(r, next, err);
}

/* BK_EFORMAT if a finished block's shard or metrics are no more what they were. */
static bk_status check_block(bk_run *r, int64_t layer, const char *metrics, size_t len, bk_error *err)
{
    char path[BK_RUN_PATH + 64], hex[65];
    const bk_block_result *b = &r->block[layer];
    shard_path(r, layer, path, sizeof path);
    if (!bk_exists(path)) return bk_fail(err, BK_EFORMAT, "%s is missing", path);
    BK_TRY(bk_sha256_file(path, hex, err));
    if (strcmp(hex, b->shard_sha)) return bk_fail(err, BK_EFORMAT, "%s was changed or damaged", path);
    bk_run_path(r, "metrics.jsonl", path, sizeof path);
    bool enough = b->metrics_bytes >= 0 && (uint64_t)b->metrics_bytes <= len;
    if (enough) BK_TRY(bk_sha256_bytes(metrics, (size_t)b->metrics_bytes, hex, err));
    return enough && !strcmp(hex, b->metrics_sha) ? BK_OK : bk_fail(err, BK_EFORMAT, "%s was changed or damaged", path);
}

/* Lines of blocks that are not finished go. */
static bk_status cut_metrics(const bk_run *r, int64_t next, const char *metrics, size_t len, bk_error *err)
{
    char path[BK_RUN_PATH];
    size_t keep = next ? (size_t)r->block[next - 1].metrics_bytes : 0;
    bk_run_path(r, "metrics.jsonl", path, sizeof path);
    return keep == len && bk_exists(path) ? BK_OK : bk_write_file(path, metrics, keep, err);
}

/* Blocks from the first lost one on. Targets on the disk belong to later ones; those that are needed are made again from the shards before. */
static bk_status start_over(const bk_run *r, const char *why, int64_t block, bk_error *err)
{
    char targets[BK_RUN_PATH];
    bk_run_path(r, "targets", targets, sizeof targets);
    bk_log(BK_LOG_WARN, "%s; training starts over at block %lld", why, (long long)block);
    return bk_remove_tree(targets, err);
}

static bk_status check_blocks(bk_run *r, int64_t *next, bk_error *err)
{
    char path[BK_RUN_PATH], *metrics = NULL;
    size_t len = 0;
    int64_t l = 0;
    bk_error why = {0};
    bk_run_path(r, "metrics.jsonl", path, sizeof path);
    if (bk_exists(path)) BK_TRY(read_metrics(r, &metrics, &len, err));
    while (l < *next && !check_block(r, l, metrics, len, &why)) l++;
    bk_status st = !why.code ? BK_OK : why.code == BK_EFORMAT ? start_over(r, why.msg, l, err) : bk_fail(err, why.code, "%s", why.msg);
    *next = l;
    if (!st) st = cut_metrics(r, *next, metrics, len, err);
    free(metrics);
    return st;
}

bk_status bk_run_resume(bk_run *r, bk_error *err)
{
    bk_error why = {0};
    int64_t layers = bk_source_config(r->src)->layers;
    r->next = 0;
    if (read_checkpoint(r, &r->next, &why)) {
        r->next = 0;
        if (why.code != BK_EFORMAT) return bk_fail(err, why.code, "%s", why.msg);
        BK_TRY(start_over(r, why.msg, 0, err));
    }
    BK_TRY(check_blocks(r, &r->next, err));
    if (r->next)
        bk_log(BK_LOG_INFO, "resuming: %lld of %lld blocks are trained", (long long)r->next, (long long)layers);
    return BK_OK;
}
