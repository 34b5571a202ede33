/* Stages as a run takes them: all that each depends on, as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/run.h"
#include "experiments/version.h"

/* Of a stage that others read; nothing comes after a row. */
static const char *hash_of(const bk_run *r, bk_stage_kind kind)
{
    const bk_stage *const read[BK_STAGE_ROW_FP] = {[BK_STAGE_OUTLIERS] = &r->outliers, [BK_STAGE_PREFIX] = &r->searched, [BK_STAGE_FIT] = &r->fit,
                                                   [BK_STAGE_INIT] = &r->init, [BK_STAGE_TARGETS] = &r->target};
    return read[kind]->hash;
}

/* The result of stages before: the prefix itself, which two detections may find alike, and the hash of others. */
static void add_parent(const bk_run *r, bk_stage_kind kind, bk_text_buffer *b)
{
    bk_stage_kind before = bk_stage_before(kind, &r->cfg);
    bool prefixed = bk_stage_prefixed(kind);
    bk_buffer_add(b, "parent:");
    if (prefixed) bk_buffer_add(b, " prefix");
    for (int64_t i = 0; prefixed && i < r->choice.n; i++) bk_buffer_add(b, " %d", r->choice.ids[i]);
    if (before == BK_STAGE_FIT || (!prefixed && before < BK_STAGE_KINDS)) bk_buffer_add(b, " %s %s", bk_stage_name(before), hash_of(r, before));
    bk_buffer_add(b, "\n");
}

/* Token ids stand for texts, tokenizer, BOS policy and the drawing of samples. */
static bk_status add_samples(const bk_run *r, bk_stage_kind kind, bk_text_buffer *b, bk_error *err)
{
    const struct {
        unsigned set;
        const bk_samples *samples;
    } all[] = {{BK_STAGE_DETECTION, &r->detection}, {BK_STAGE_CALIBRATION, &r->calibration}, {BK_STAGE_STATISTICS, &r->statistics},
               {BK_STAGE_TRAINING, &r->training}, {BK_STAGE_EVALUATION, &r->evaluation}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char ids[65];
        if (!(bk_stage_samples(kind) & all[i].set)) continue;
        BK_TRY(bk_samples_sha256(all[i].samples, ids, err));
        bk_buffer_add(b, "samples: %lld of %lld tokens, %s\n", (long long)all[i].samples->n,
                      (long long)all[i].samples->seqlen, ids);
    }
    return BK_OK;
}

static bk_status depends_on(const bk_run *r, bk_stage_kind kind, bk_text_buffer *b, const char **text, bk_error *err)
{
    char *digest = NULL, program[65];
    BK_TRY(bk_program_sha256(program, err));
    bk_buffer_add(b, "brick: %s\nprogram: %s\nkernels: %s\nmodel: %s\n", BK_VERSION, program,
                  r->lab.be->flavour ? r->lab.be->flavour() : "", r->model_sha);
    BK_TRY(add_samples(r, kind, b, err));
    bk_buffer_add(b, "bos: %lld\n", (long long)r->lab.bos);
    add_parent(r, kind, b);
    BK_TRY(bk_config_digest_keys(&r->cfg, bk_stage_keys(kind), &digest, err));
    bk_buffer_add(b, "%s", digest);
    free(digest);
    return bk_buffer_text(b, text, err);
}

bk_status bk_run_stage_open(const bk_run *r, bk_stage_kind kind, bk_stage *s, bk_error *err)
{
    bk_text_buffer b = {0};
    const char *text;
    bk_status st = depends_on(r, kind, &b, &text, err);
    if (!st) st = bk_stage_open(s, bk_stage_name(kind), text, err);
    bk_buffer_free(&b);
    BK_TRY(st);
    s->run = r->dir;
    return bk_stage_quick(kind, &r->cfg, s->quick, err);
}
