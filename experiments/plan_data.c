/* How many samples the texts of a run give: counted as `run` draws them, or by the size of a text that is too large to
 * be read in a moment, or whose tokenizer is not there. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/lab.h"
#include "experiments/plan.h"

#define GUESSED_TOKENS 300000     /* of an evaluation text that is not there: about WikiText-2 */
#define TOKEN_BYTES 4             /* of a text, on average */
#define COUNTED_BYTES (8LL << 20) /* larger texts are not tokenized */

typedef struct counter {
    const bk_run_config *c;
    bk_lab lab;    /* of which only the tokenizer is there; NULL: none */
    bk_text text;  /* the last one read, */
    char *path;    /* NULL: none, */
    bool prefixed; /* and how */
} counter;

/* The text in c->text, read already if the set before took the same. */
static bk_status read_text(counter *c, const char *path, bool prefixed, bk_error *err)
{
    bool same = prefixed == c->prefixed || !bk_tokenizer_add_bos(c->lab.tok);
    bk_text_policy policy = {.bos_auto = c->c->data.bos == BK_BOS_AUTO, .parse_special = c->c->data.parse_special,
                             .strip_bos = c->c->data.strip_bos, .join = c->c->data.join};
    if (c->path && same && !strcmp(c->path, path)) return BK_OK;
    bk_text_free(&c->text);
    free(c->path);
    c->prefixed = prefixed;
    if (!(c->path = strdup(path))) return bk_fail(err, BK_ENOMEM, "no memory");
    return bk_lab_text(&c->lab, path, &policy, prefixed, &c->text, err);
}

/* Samples that the text gives, at most those asked for: as `run` draws them. */
static bk_status count(counter *c, bk_plan_set *s, bool prefixed, bool windows, bk_error *err)
{
    bk_samples drawn = {0};
    bk_status st = read_text(c, s->path, prefixed, err);
    if (!st && windows) st = bk_samples_windows(&c->text, s->seqlen, s->asked, &drawn, err);
    if (!st && !windows) st = bk_samples_draw(&c->text, s->seqlen, s->asked, 0, 0, &drawn, err);
    s->given = drawn.n;
    s->source = BK_COUNTED;
    bk_samples_free(&drawn);
    return st ? bk_error_prefix(err, "%s samples of %s", s->name, s->path) : BK_OK;
}

static void guess(bk_plan_set *s, bool there, int64_t bytes)
{
    int64_t tokens = there ? bytes / TOKEN_BYTES : GUESSED_TOKENS,
            most = tokens / s->seqlen > 0 ? tokens / s->seqlen : 1;
    bool all = s->asked < 0;
    s->source = there ? BK_BY_SIZE : BK_AS_ASKED;
    s->given = all || (there && most < s->asked) ? most : s->asked;
}

static bk_status fill(counter *c, bk_plan_set *s, bool prefixed, bool windows, bk_error *err)
{
    struct stat file;
    bool there = access(s->path, R_OK) == 0 && stat(s->path, &file) == 0 && S_ISREG(file.st_mode);
    if (there && c->lab.tok && file.st_size <= COUNTED_BYTES) return count(c, s, prefixed, windows, err);
    guess(s, there, there ? (int64_t)file.st_size : 0);
    return BK_OK;
}

/* Fewer than asked is an error when strict. */
static bk_status check_strict(const bk_run_config *c, const bk_plan_set *s, bk_error *err)
{
    if (!c->strict || s->source != BK_COUNTED || s->given >= s->asked) return BK_OK;
    return bk_fail(err, BK_EINVAL, "%s: %lld of %lld samples (strict)", s->name, (long long)s->given,
                   (long long)s->asked);
}

static bk_status fill_all(counter *c, bk_plan_set set[BK_PLAN_SETS], bk_error *err)
{
    const bk_run_config *cfg = c->c;
    const bk_data_config *cal = &cfg->data.calibration, *stat = &cfg->data.statistics, *train = &cfg->data.training;
    bool own = *cal->text, prefixed = cfg->prefix.mode != BK_PREFIX_NONE;
    const bk_plan_set all[BK_PLAN_SETS] = {
        {"detection", bk_run_config_text(cfg, &cfg->data.detection), cfg->data.detection.samples,
         cfg->data.detection.seqlen, .used = bk_run_config_detects(cfg)},
        {"training", train->text, train->samples + cfg->data.validation, train->seqlen, .used = cfg->train.epochs > 0},
        {"calibration", own ? cal->text : train->text, cal->samples, own ? cal->seqlen : train->seqlen,
         .used = bk_run_needs_calibration(cfg)},
        {"statistics", bk_run_config_text(cfg, stat), stat->samples, stat->seqlen, .used = bk_run_needs_statistics(cfg)},
        {"evaluation", cfg->data.evaluation.text, cfg->data.evaluation.samples, cfg->data.evaluation.seqlen,
         .used = true}};
    for (int i = 0; i < BK_PLAN_SETS; i++) {
        set[i] = all[i];
        set[i].given = set[i].asked;
        if (!set[i].used) continue;
        BK_TRY(fill(c, &set[i], prefixed && i != BK_PLAN_DETECTION, i == BK_PLAN_EVALUATION, err));
        BK_TRY(check_strict(cfg, &set[i], err));
    }
    return BK_OK;
}

bk_status bk_plan_samples(const bk_run_config *c, const char *model, bk_plan_set set[BK_PLAN_SETS], bk_error *err)
{
    counter n = {.c = c};
    bk_status st = model ? bk_lab_tokenizer(model, &n.lab.tok, err) : BK_OK;
    if (!st) st = fill_all(&n, set, err);
    bk_text_free(&n.text);
    free(n.path);
    bk_tokenizer_free(n.lab.tok);
    return st;
}

bk_sample_counts bk_plan_counts(const bk_run_config *c, const bk_plan_set set[BK_PLAN_SETS])
{
    int64_t drawn = set[BK_PLAN_TRAINING].given, asked = c->data.training.samples, n = drawn < asked ? drawn : asked;
    return (bk_sample_counts){.detection = set[BK_PLAN_DETECTION].given, .calibration = set[BK_PLAN_CALIBRATION].given,
                              .statistics = set[BK_PLAN_STATISTICS].given,
                              .training = n, .validation = drawn - n, .evaluation = set[BK_PLAN_EVALUATION].given};
}
