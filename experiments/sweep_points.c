/* Points of a sweep as configs: every one is loaded and checked before the first one runs. */
#include <stdlib.h>
#include <string.h>

#include "experiments/plan.h"
#include "experiments/schema_priv.h"
#include "experiments/stage_kinds.h"
#include "experiments/sweep.h"
#include "io/file.h"

/* Points are compared by halving when these are the same: their losses are about the same targets. */
static const char *const rival_keys[] = {"model", "seed", "data.", "train.loss", "train.target", NULL};

int bk_sweep_sets(const bk_sweep *s, int point, const char *sets[BK_SWEEP_SETS])
{
    const bk_sweep_point *p = &s->point[point];
    int n = 0;
    for (int i = 0; i < s->n_fixed; i++) sets[n++] = s->value[s->fixed[i]].set;
    for (int i = 0; i < p->n; i++) sets[n++] = s->value[p->value[i]].set;
    if (p->shares_targets) sets[n++] = "store.keep=shared";
    return n;
}

/* The place in a file stays at the front of the message. */
bk_status bk_sweep_blame(const bk_sweep *s, int point, bk_error *err)
{
    bk_error why = *err;
    bk_error_clear(err);
    return bk_fail(err, why.code, "%.800s (point %s of %.100s)", why.msg, s->point[point].name, s->file);
}

bk_status bk_sweep_config(const bk_sweep *s, int point, bk_run_config *out, bk_error *err)
{
    const char *sets[BK_SWEEP_SETS];
    int n = bk_sweep_sets(s, point, sets);
    return bk_run_config_load(s->base, sets, n, out, err) ? bk_sweep_blame(s, point, err) : BK_OK;
}

bk_status bk_sweep_hash(const bk_run_config *c, const char *const *keys, char hex[65], bk_error *err)
{
    char *text;
    BK_TRY(bk_config_digest_keys(c, keys, &text, err));
    bk_status st = bk_sha256_bytes(text, strlen(text), hex, err);
    free(text);
    return st;
}

static bk_status show_axes(const bk_sweep *s, bk_sweep_point *p, const bk_run_config *c, bk_error *err)
{
    for (int a = 0; a < s->n_axes; a++) {
        size_t len;
        FILE *f = open_memstream(&p->shown[a], &len);
        if (!f) return bk_fail(err, BK_ENOMEM, "no memory for the sweep");
        if (bk_key_counts(c, &bk_keys[s->axis[a]])) bk_key_print(f, c, &bk_keys[s->axis[a]]);
        else fputc('-', f); /* no value of any key looks like that */
        if (fclose(f) != 0) return bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    }
    return BK_OK;
}

static int by_config(const void *a, const void *b)
{
    const bk_sweep_point *const *x = a, *const *y = b;
    int order = strcmp((*x)->config, (*y)->config);
    return order ? order : *x < *y ? -1 : 1;
}

/* Different words for one config: a value that is the base's own, or that another key overrides. */
static bk_status refuse_twins(const bk_sweep *s, bk_error *err)
{
    const bk_sweep_point **sorted = malloc((size_t)s->n * sizeof *sorted);
    if (!sorted) return bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; i < s->n; i++) sorted[i] = &s->point[i];
    qsort(sorted, (size_t)s->n, sizeof *sorted, by_config);
    bk_status st = BK_OK;
    for (int i = 1; !st && i < s->n; i++)
        if (strcmp(sorted[i - 1]->config, sorted[i]->config) == 0)
            st = bk_fail(err, BK_EINVAL, "%s: the points %s and %s are the same run: exclude one", s->file,
                         sorted[i - 1]->name, sorted[i]->name);
    free(sorted);
    return st;
}

bk_status bk_sweep_check(bk_sweep *s, bk_error *err)
{
    bk_run_config *c = malloc(sizeof *c);
    bk_status st = c ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < s->n; i++) {
        bk_sweep_point *p = &s->point[i];
        st = bk_sweep_config(s, i, c, err);
        if (!st) st = show_axes(s, p, c, err);
        if (!st) st = bk_sweep_hash(c, bk_run_result_keys, p->config, err);
        if (!st) st = bk_sweep_hash(c, rival_keys, p->rivals, err);
    }
    free(c);
    return st ? st : refuse_twins(s, err);
}

bk_status bk_sweep_check_shapes(const bk_sweep *s, const bk_run_config *c, const bk_config *shapes, bk_error *err)
{
    BK_TRY(bk_plan_check_shapes(c, shapes, err));
    int64_t last = s->n_rungs ? s->rung[s->n_rungs - 1] : 0; /* they rise */
    if (last < shapes->layers) return BK_OK;
    return bk_fail(err, BK_EINVAL, "halving.blocks: %lld, but the model has %lld blocks: behind the last one there is nothing to drop",
                   (long long)last, (long long)shapes->layers);
}

/* --- targets of several points --- */

typedef struct sharer {
    char quick[65]; /* of the stage */
    int point;
    bool done;
} sharer;

static int by_stage(const void *a, const void *b)
{
    return strcmp(((const sharer *)a)->quick, ((const sharer *)b)->quick);
}

static bool says_what_is_kept(const bk_sweep *s)
{
    int key = bk_key_find("store.keep");
    bool says = false;
    for (int i = 0; i < s->n_fixed; i++) says |= s->value[s->fixed[i]].key == key;
    for (int a = 0; a < s->n_axes; a++) says |= s->axis[a] == key;
    return says;
}

/* Points that would take the stage. */
static bk_status find_sharers(bk_sweep *s, const bool *done, sharer *all, int *n, bk_error *err)
{
    bk_run_config *c = malloc(sizeof *c);
    bk_status st = c ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < s->n; i++) {
        s->point[i].shares_targets = false;
        st = bk_sweep_config(s, i, c, err);
        if (st || c->store.keep != BK_TARGETS_ROLLING || c->train.epochs == 0) continue;
        all[*n] = (sharer){.point = i, .done = done[i]};
        st = bk_stage_quick(BK_STAGE_TARGETS, c, all[(*n)++].quick, err);
    }
    free(c);
    return st;
}

bk_status bk_sweep_share(bk_sweep *s, const bool *done, bk_error *err)
{
    int n = 0;
    if (says_what_is_kept(s)) return BK_OK;
    sharer *all = malloc((size_t)s->n * sizeof *all);
    bk_status st = all ? find_sharers(s, done, all, &n, err) : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    if (!st) qsort(all, (size_t)n, sizeof *all, by_stage);
    for (int i = 0, end; !st && i < n; i = end) {
        int open = 0;
        for (end = i; end < n && !strcmp(all[i].quick, all[end].quick); end++) open += !all[end].done;
        bool shared = open > 1 || bk_ledger_has(BK_STAGE_TARGETS, all[i].quick);
        for (int k = i; k < end; k++) s->point[all[k].point].shares_targets = shared;
    }
    free(all);
    return st;
}

void bk_sweep_folder(const bk_sweep *s, char *to, size_t size)
{
    const char *slash = strrchr(s->file, '/'), *name = slash ? slash + 1 : s->file, *dot = strrchr(name, '.');
    snprintf(to, size, "runs/%.*s", dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
}
