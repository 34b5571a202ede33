/* Stages as a run takes them: all that each depends on, as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/run.h"
#include "experiments/version.h"

/* The result of a stage before: the prefix itself, which two detections may find alike, or the hash of the stage. */
static void add_parent(const bk_run *r, bk_stage_kind kind, bk_text_buffer *b)
{
    bk_stage_kind before = bk_stage_before(kind, &r->cfg);
    bk_buffer_add(b, "parent:");
    if (bk_stage_prefixed(kind)) {
        bk_buffer_add(b, " prefix");
        for (int64_t i = 0; i < r->choice.n; i++) bk_buffer_add(b, " %d", r->choice.ids[i]);
    } else if (before < BK_STAGE_KINDS) {
        bk_buffer_add(b, " %s %s", bk_stage_name(before), before == BK_STAGE_INIT ? r->init.hash : r->outliers.hash);
    }
    bk_buffer_add(b, "\n");
    if (bk_stage_transformed(kind) && r->fitted) bk_buffer_add(b, "fit: %s\n", r->fit.hash);
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
