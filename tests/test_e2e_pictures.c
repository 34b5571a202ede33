/* The numbers in the pictures of brick report are those of the run: each curve, read from its script as gnuplot reads it,
 * against the files of the run and, for token maxima, against a dump of the activations themselves. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/store.h"
#include "tests/drawn.h"
#include "tests/e2e.h"
#include "tests/suite.h"

static bk_error err;
static drawn *script;
static bk_json *data, *summary, *lines;

#define DONE(call) ck_assert_msg((call) == BK_OK, "%s", err.msg)

static void enter(void)
{
    e2e_enter();
    drawn_by_nobody();
    e2e_copy_tree("../run", "r");
    script = NULL;
    data = summary = lines = NULL;
}

static void leave(void)
{
    if (script) drawn_free(script);
    bk_json_free(data);
    bk_json_free(summary);
    bk_json_free(lines);
    e2e_leave();
}

/* The objects of a .jsonl file. */
static bk_json *lines_of(const char *path)
{
    char *text = e2e_text(path);
    bk_json *all = bk_json_array(), *o;
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        DONE(bk_json_parse(at, (size_t)(end - at), path, &o, &err));
        bk_json_push(all, o);
    }
    free(text);
    return all;
}

static void report(const char *dir, const char *picture)
{
    char path[128];
    e2e_brick(0, "report %s", dir);
    snprintf(path, sizeof path, "%s/report/%s.gp", dir, picture);
    script = drawn_read(path);
}

/* Scripts have six digits. */
static void near(double got, double want)
{
    if (isnan(want)) ck_assert_msg(isnan(got), "%g, want none", got);
    else ck_assert_msg(fabs(got - want) <= 1e-5 * fabs(want), "%.9g, want %.9g", got, want);
}

static double number(const bk_json *o, const char *key)
{
    return bk_json_num(bk_json_get(o, key), NAN);
}

static const char *const stage_name[] = {"original", "rotated", "with prefix"};

static const bk_json *stage(int k)
{
    const bk_json *s = bk_json_at(bk_json_get(data, "stages"), (size_t)k);
    ck_assert_str_eq(bk_json_str(bk_json_get(s, "stage"), ""), stage_name[k]);
    return s;
}

/* --- token maxima --- */

enum { ROWS = 5, LEVELS = 5 };
static const struct {
    const char *label, *site;
} row[ROWS] = {{"down_proj inputs", "down_raw"},
               {"block outputs", "block_out"},
               {"queries", "query"},
               {"keys", "key"},
               {"values", "value"}};
static const char *const level_title[LEVELS] = {"top-1", "top-2", "top-3", "median", "min-1"},
                         *const level_key[LEVELS] = {"top1", "top2", "top3", "median", "min1"};

/* Panel of a row and a stage: its labels stand at the left and at the top. */
static const drawn_plot *panel_of_maxima(int r, int s)
{
    ck_assert_int_eq(script->n, ROWS * 3 + 1); /* the last one is the key */
    ck_assert_str_eq(script->plot[s].title, stage_name[s]);
    const char *label = script->plot[3 * r].ylabel;
    ck_assert_msg(!strncmp(label, row[r].label, strlen(row[r].label)), "row %d is labelled %s", r, label);
    return &script->plot[3 * r + s];
}

/* The curve that the key calls by this name. */
static const drawn_curve *curve_of_level(const drawn_plot *p, const char *title)
{
    int style = drawn_titled(&script->plot[3 * ROWS], title)->style;
    for (int i = 0; i < p->n; i++)
        if (p->curve[i].style == style) return &p->curve[i];
    ck_abort_msg("no curve is drawn as %s", title);
}

START_TEST(maxima_are_those_that_were_measured)
{
    report("r", "maxima");
    DONE(bk_json_load("r/report/data.json", &data, &err));
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < 3; s++) {
            const bk_json *blocks = bk_json_get(stage(s), "blocks");
            ck_assert_int_eq(panel_of_maxima(r, s)->n, LEVELS);
            for (int k = 0; k < LEVELS; k++) {
                const drawn_curve *c = curve_of_level(panel_of_maxima(r, s), level_title[k]);
                ck_assert_uint_eq(c->rows->n, bk_json_size(blocks));
                for (size_t b = 0; b < c->rows->n; b++) {
                    const bk_json *sites = bk_json_get(bk_json_at(blocks, b), "sites");
                    near(drawn_at(c, b, 0), (double)b);
                    near(drawn_at(c, b, 1), number(bk_json_get(sites, row[r].site), level_key[k]));
                }
            }
        }
}
END_TEST

/* Texts of one sample each, as ids: in whatever order samples are drawn, the run and a dump take the same ones. */
enum { SAMPLES = 2, TOKENS = 48, PREFIX = 256 };

static void write_ids(const char *path)
{
    char text[4096] = "";
    size_t len = 0;
    for (int i = 0; i < SAMPLES; i++)
        for (int t = 0; t < TOKENS; t++)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%d%s", t ? ", " : "{\"ids\": [", (t * t + 31 * i + 7 * t) % 250,
                                    t == TOKENS - 1 ? "]}\n" : "");
    e2e_write(path, text);
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The levels of a dataset [samples, tokens, ...] of a dump, mean over samples. */
static void levels_of(bk_store *store, int block, const char *site, double level[LEVELS])
{
    char path[64];
    bk_dset *d;
    snprintf(path, sizeof path, "/blocks/%03d/sites/%s", block, site);
    DONE(bk_dset_open(&d, store, path, &err));
    const bk_dset_info *info = bk_dset_info_of(d);
    int64_t width = info->dim[2] * (info->rank == 4 ? info->dim[3] : 1);
    ck_assert(info->dim[0] == SAMPLES && info->dim[1] == TOKENS);
    float *x = malloc((size_t)(TOKENS * width) * sizeof *x);
    memset(level, 0, LEVELS * sizeof *level);
    for (int64_t i = 0; i < SAMPLES; i++) {
        double most[TOKENS] = {0};
        DONE(bk_dset_read(d, i, 1, x, &err));
        for (int64_t k = 0; k < TOKENS * width; k++) most[k / width] = fmax(most[k / width], fabs(x[k]));
        qsort(most, TOKENS, sizeof *most, descending);
        const int at[LEVELS] = {0, 1, 2, TOKENS / 2, TOKENS - 1}; /* of an even number the lower median */
        for (int k = 0; k < LEVELS; k++) level[k] += most[at[k]] / SAMPLES;
    }
    free(x);
    bk_dset_close(d);
}

START_TEST(maxima_are_those_of_the_activations)
{
    static const char *const options[] = {"", "--rotate all --seed 2", "--rotate all --seed 2 --prefix 256"};
    write_ids("ids.jsonl");
    e2e_brick(0, "run run.yaml --set train.epochs=0 --set data.detection.text=ids.jsonl --set data.detection.seqlen=%d "
                 "--set prefix.mode=[%d] --out n", TOKENS, PREFIX);
    report("n", "maxima");
    for (int s = 0; s < 3; s++) {
        bk_store *store;
        e2e_brick(0, "dump --model ../m --text ids.jsonl --seqlen %d --bos none --dtype f32 --threads 1 %s "
                     "--sites down_raw,block_out,query,key,value --out x.h5", TOKENS, options[s]);
        DONE(bk_store_open(&store, "x.h5", NULL, &err));
        for (int r = 0; r < ROWS; r++)
            for (int b = 0; b < 2; b++) {
                double level[LEVELS];
                levels_of(store, b, row[r].site, level);
                for (int k = 0; k < LEVELS; k++)
                    near(drawn_at(curve_of_level(panel_of_maxima(r, s), level_title[k]), (size_t)b, 1), level[k]);
            }
        bk_store_close(store);
    }
}
END_TEST

/* --- outlier tokens --- */

typedef struct token {
    int sequence, position, id;
    const char *text;
} token;

static void set_tokens(int k, const char *side, const token *t, size_t n)
{
    bk_json *list = bk_json_array();
    for (size_t i = 0; i < n; i++) {
        bk_json *o = bk_json_object();
        bk_json_set(o, "sequence", bk_json_of_int(t[i].sequence));
        bk_json_set(o, "position", bk_json_of_int(t[i].position));
        bk_json_set(o, "id", bk_json_of_int(t[i].id));
        bk_json_set(o, "text", bk_json_of_text(t[i].text));
        bk_json_push(list, o);
    }
    bk_json_set((bk_json *)bk_json_get(stage(k), side), "tokens", list);
}

/* A measurement whose numbers are known: five sequences of 129 tokens. */
static void make_outliers(void)
{
    static const token upper[] = {{0, 0, 7, "<s>"}, {0, 17, 9, "x"},   {1, 0, 7, "<s>"}, {2, 0, 7, "<s>"},
                                  {2, 40, 9, "x"},  {2, 128, 11, "y"}, {4, 0, 7, "<s>"}},
                       rotated[] = {{0, 0, 7, "<s>"}, {1, 0, 7, "<s>"}, {2, 0, 7, "<s>"}, {3, 0, 7, "<s>"}},
                       prefixed[] = {{1, 5, 9, "x"}, {1, 6, 9, "x"}}, lower[] = {{3, 33, 12, "z"}};
    DONE(bk_json_load("r/report/data.json", &data, &err));
    bk_json_set(data, "samples", bk_json_of_int(5));
    bk_json_set(data, "seqlen", bk_json_of_int(129));
    set_tokens(0, "upper", upper, 7);
    set_tokens(1, "upper", rotated, 4);
    set_tokens(2, "upper", prefixed, 2);
    set_tokens(0, "lower", lower, 1);
    set_tokens(1, "lower", NULL, 0);
    set_tokens(2, "lower", lower, 1);
    DONE(bk_json_save(data, "r/report/data.json", &err));
}

/* Entry `of` of `using`, from the k-th row on, is one of these whole numbers each. */
static void counts(const drawn_curve *c, int of, size_t n, const int *want)
{
    ck_assert_uint_eq(c->rows->n, n);
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(drawn_at(c, k, of) == want[k], "%s, row %zu: %g, want %d", c->title, k, drawn_at(c, k, of), want[k]);
}

START_TEST(outliers_are_counted_by_number_position_and_content)
{
    e2e_brick(0, "report r");
    make_outliers();
    report("r", "outliers");
    e2e_silent("original: done");
    ck_assert_int_eq(script->n, 6);
    const drawn_plot *p = script->plot;
    ck_assert_str_eq(p[0].title, "Upper outliers: number");
    ck_assert_str_eq(p[1].title, "Upper outliers: position (original)");
    ck_assert_str_eq(p[2].title, "Upper outliers: content (original)");
    ck_assert_str_eq(p[3].title, "Lower outliers: number");
    /* sequences with none, one, two, three tokens */
    counts(drawn_titled(&p[0], "original"), 1, 4, (const int[]){1, 2, 1, 1});
    counts(drawn_titled(&p[0], "rotated"), 1, 4, (const int[]){1, 4, 0, 0});
    counts(drawn_titled(&p[0], "with prefix"), 1, 4, (const int[]){4, 0, 1, 0});
    counts(drawn_titled(&p[3], "original"), 1, 2, (const int[]){4, 1});
    counts(drawn_titled(&p[3], "rotated"), 1, 2, (const int[]){5, 0});
    ck_assert_ptr_nonnull(strstr(p[0].xtics, "('0' 0, '1' 1, '2' 2, '3' 3)"));
    /* position 0, then eighths of the rest */
    counts(&p[1].curve[0], 0, 9, (const int[]){0, 1, 2, 3, 4, 5, 6, 7, 8});
    counts(&p[1].curve[0], 1, 9, (const int[]){4, 0, 1, 1, 0, 0, 0, 0, 1});
    ck_assert_ptr_nonnull(strstr(p[1].xtics, "('0' 0, '1-16' 1, '17-32' 2, '33-48' 3,"));
    counts(&p[4].curve[0], 1, 9, (const int[]){0, 0, 0, 1, 0, 0, 0, 0, 0});
    /* bars: of row ($1) from $2 to $3 */
    ck_assert_ptr_nonnull(strstr(p[2].ytics, "('\"<s>\"' 0, '\"x\"' 1, '\"y\"' 2)"));
    const drawn_curve *start = drawn_titled(&p[2], "at position 0"), *rest = drawn_titled(&p[2], "elsewhere");
    counts(start, 1, 1, (const int[]){0});
    counts(start, 2, 1, (const int[]){0});
    counts(start, 3, 1, (const int[]){4});
    counts(rest, 1, 2, (const int[]){1, 2});
    counts(rest, 2, 2, (const int[]){0, 0});
    counts(rest, 3, 2, (const int[]){2, 1});
}
END_TEST

/* --- error --- */

START_TEST(errors_are_those_that_were_measured)
{
    report("r", "error");
    DONE(bk_json_load("r/report/data.json", &data, &err));
    ck_assert_int_eq(script->n, 4);
    for (int s = 0; s < 3; s++) {
        const bk_json *error = bk_json_get(stage(s), "error"), *tokens = bk_json_get(error, "tokens"),
                      *share = bk_json_get(error, "share_of_worst");
        const drawn_curve *c = &script->plot[s].curve[0], *bars = &script->plot[3].curve[s];
        ck_assert_str_eq(script->plot[s].title, stage_name[s]);
        ck_assert_uint_eq(c->rows->n, 2 * 128);
        ck_assert_uint_eq(c->rows->n, bk_json_size(tokens));
        for (size_t t = 0; t < c->rows->n; t++) {
            near(drawn_at(c, t, 0), (double)t);
            near(drawn_at(c, t, 1), bk_json_num(bk_json_at(tokens, t), NAN));
        }
        char title[128];
        snprintf(title, sizeof title, "%s (mean squared error %.3g)", stage_name[s], number(error, "mse"));
        ck_assert_str_eq(bars->title, title);
        ck_assert_uint_eq(bars->rows->n, 3);
        for (size_t k = 0; k < 3; k++) near(drawn_at(bars, k, 1), 100 * bk_json_num(bk_json_at(share, k), NAN));
    }
}
END_TEST

/* --- training --- */

START_TEST(losses_are_those_of_the_run)
{
    report("r", "losses");
    DONE(bk_json_load("r/summary.json", &summary, &err));
    lines = lines_of("r/metrics.jsonl");
    const bk_json *blocks = bk_json_get(summary, "blocks");
    ck_assert_int_eq(script->n, 2);
    const drawn_curve *before = drawn_titled(&script->plot[0], "before"), *during = drawn_titled(&script->plot[0], "each epoch"),
                      *after = drawn_titled(&script->plot[0], "after (kept)"), *change = &script->plot[1].curve[0];
    ck_assert_uint_eq(before->rows->n, 2);
    ck_assert_uint_eq(after->rows->n, 2);
    for (size_t b = 0; b < 2; b++) {
        near(drawn_at(before, b, 0), (double)b);
        near(drawn_at(after, b, 0), (double)b);
        near(drawn_at(before, b, 1), number(bk_json_at(blocks, b), "loss_init"));
        near(drawn_at(after, b, 1), number(bk_json_at(blocks, b), "loss_final"));
    }
    ck_assert_uint_eq(during->rows->n, 4); /* blocks x epochs */
    ck_assert_uint_eq(change->rows->n, 6); /* with the beginning of each */
    for (size_t i = 0; i < 4; i++) {
        const bk_json *line = bk_json_at(lines, i);
        double block = number(line, "block"), loss = number(line, "val_loss"), init = number(bk_json_at(blocks, (size_t)block), "loss_init");
        size_t at = i + 1 + (size_t)block;
        near(drawn_at(during, i, 0), block);
        near(drawn_at(during, i, 1), loss);
        near(drawn_at(change, at, 0), number(line, "epoch"));
        ck_assert_double_eq_tol(drawn_at(change, at, 1), 100 * (loss / init - 1), 1e-3);
        near(drawn_at(change, at, 2), block); /* the colour */
    }
    near(drawn_at(change, 0, 1), 0);
    near(drawn_at(change, 3, 1), 0);
}
END_TEST

START_TEST(gradient_norms_are_those_of_the_run)
{
    enum { STEPS = 6 }; /* of a block: epochs x batches */
    report("r", "gradients");
    lines = lines_of("r/metrics.jsonl");
    ck_assert_int_eq(script->plot[0].n, 1); /* no band */
    const drawn_curve *c = &script->plot[0].curve[0];
    ck_assert_uint_eq(c->rows->n, 2 * STEPS);
    for (size_t i = 0; i < 4; i++) {
        const bk_json *line = bk_json_at(lines, i), *norms = bk_json_get(line, "grad_norms");
        ck_assert_uint_eq(bk_json_size(norms), 3);
        for (size_t k = 0; k < 3; k++) {
            size_t at = 3 * i + k;
            near(drawn_at(c, at, 0), number(line, "block") + ((double)(at % STEPS) + 0.5) / STEPS);
            near(drawn_at(c, at, 1), bk_json_num(bk_json_at(norms, k), NAN));
        }
    }
}
END_TEST

/* More steps than marks: the line is a mean, the band what it is the mean of. */
START_TEST(gradient_norms_of_many_steps_are_a_line_in_a_band)
{
    enum { STEPS = 8000 };
    char *text = malloc(STEPS * 8 + 200), *end = text;
    end += sprintf(end, "{\"block\": 0, \"epoch\": 1, \"step\": %d, \"val_loss\": 1, \"grad_norms\": [", STEPS);
    for (int i = 0; i < STEPS; i++) end += sprintf(end, "%s%d", i ? "," : "", 1 + i % 7);
    strcpy(end, "]}\n");
    e2e_write("r/metrics.jsonl", text);
    free(text);
    report("r", "gradients");
    ck_assert_int_eq(script->plot[0].n, 2);
    const drawn_curve *band = &script->plot[0].curve[0], *mean = &script->plot[0].curve[1];
    ck_assert_uint_eq(mean->rows->n, STEPS / 2);
    for (size_t k = 0; k < STEPS / 2; k++) {
        double a = 1 + (double)(2 * k % 7), b = 1 + (double)((2 * k + 1) % 7);
        near(drawn_at(mean, k, 1), (a + b) / 2);
        near(drawn_at(band, k, 1), fmin(a, b));
        near(drawn_at(band, k, 2), fmax(a, b));
    }
}
END_TEST

/* --- sweeps --- */

/* The point with these two values. */
static const bk_json *point(double lr, double epochs)
{
    for (size_t i = 0; i < bk_json_size(lines); i++) {
        const bk_json *o = bk_json_at(lines, i);
        if (number(o, "train.lr_quant") == lr && number(o, "train.epochs") == epochs) return o;
    }
    ck_abort_msg("no point has %g and %g", lr, epochs);
}

static const double rates[] = {1e-3, 1e-2, 1e-1}, epochs[] = {1, 2};

static void sweep(void)
{
    e2e_write("s.yaml", "base: run.yaml\ngrid:\n  train.epochs: [1, 2]\n  train.lr_quant: [1e-3, 1e-2, 1e-1]\n");
    e2e_brick(0, "sweep s.yaml --out s");
    lines = lines_of("s/results.jsonl");
    ck_assert_uint_eq(bk_json_size(lines), 6);
}

START_TEST(lines_are_the_results_of_a_sweep)
{
    sweep();
    report("s", "lines");
    for (int e = 0; e < 2; e++) {
        const drawn_curve *c = drawn_titled(&script->plot[0], e ? "2" : "1");
        ck_assert_uint_eq(c->rows->n, 3);
        for (size_t k = 0; k < 3; k++) {
            near(drawn_at(c, k, 0), rates[k]);
            near(drawn_at(c, k, 1), number(point(rates[k], epochs[e]), "gap"));
        }
    }
    ck_assert_str_eq(script->plot[0].xlabel, "train.lr_quant");
    const bk_json *any = point(1e-3, 1);
    near(strtod(drawn_titled(&script->plot[0], "before training")->source, NULL), log(number(any, "ppl_init") / number(any, "ppl_fp")));

    drawn_free(script);
    script = drawn_read("s/report/map.gp");
    const drawn_plot *map = &script->plot[0];
    ck_assert_str_eq(map->xlabel, "train.lr_quant");
    ck_assert_str_eq(map->ylabel, "train.epochs");
    ck_assert_ptr_nonnull(strstr(map->xtics, "('0.001' 0, '0.01' 1, '0.1' 2)"));
    ck_assert_ptr_nonnull(strstr(map->ytics, "('1' 0, '2' 1)"));
    const drawn_curve *cell = &map->curve[0], *label = &map->curve[1];
    ck_assert_uint_eq(cell->rows->n, 6);
    for (size_t i = 0; i < 6; i++) {
        const bk_json *o = point(rates[(int)drawn_at(cell, i, 0)], epochs[(int)drawn_at(cell, i, 1)]);
        near(drawn_at(cell, i, 6), number(o, "gap")); /* the colour */
        ck_assert_str_eq(label->use[2], "(stringcolumn(4))");
        ck_assert_double_eq_tol(label->rows->x[i][3], number(o, "ppl_final"), 0.00501);
    }
}
END_TEST

START_TEST(bars_reach_from_the_best_seed_to_the_worst)
{
    char rows[4000] = "";
    ck_assert_int_eq(mkdir("s", 0777), 0);
    for (int k = 0; k < 2; k++)
        for (int seed = 1; seed < 4; seed++)
            snprintf(rows + strlen(rows), sizeof rows - strlen(rows),
                     "{\"point\": \"p\", \"train.epochs\": %d, \"seed\": %d, \"status\": \"done\", \"ppl_fp\": 10, "
                     "\"ppl_init\": 20, \"ppl_final\": 11, \"gap\": %g}\n",
                     k + 1, seed, k + seed * seed * 0.1);
    e2e_write("s/results.jsonl", rows);
    report("s", "lines");
    const drawn_curve *c = &script->plot[0].curve[0];
    for (size_t k = 0; k < 2; k++) {
        near(drawn_at(c, k, 0), (double)k + 1);
        near(drawn_at(c, k, 1), (double)k + 1.4 / 3);
        near(drawn_at(c, k, 2), (double)k + 0.1);
        near(drawn_at(c, k, 3), (double)k + 0.9);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("e2e_pictures");
    TCase *t = tcase_create("numbers");
    tcase_set_timeout(t, 60);
    tcase_add_unchecked_fixture(t, e2e_begin_run, e2e_end);
    tcase_add_checked_fixture(t, enter, leave);
    tcase_add_test(t, maxima_are_those_that_were_measured);
    tcase_add_test(t, maxima_are_those_of_the_activations);
    tcase_add_test(t, outliers_are_counted_by_number_position_and_content);
    tcase_add_test(t, errors_are_those_that_were_measured);
    tcase_add_test(t, losses_are_those_of_the_run);
    tcase_add_test(t, gradient_norms_are_those_of_the_run);
    tcase_add_test(t, gradient_norms_of_many_steps_are_a_line_in_a_band);
    tcase_add_test(t, lines_are_the_results_of_a_sweep);
    tcase_add_test(t, bars_reach_from_the_best_seed_to_the_worst);
    suite_add_tcase(s, t);
    return run_suite(s);
}
