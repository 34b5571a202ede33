/* What became of the points of a sweep: read from their run folders, written as results.csv and results.jsonl. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/log.h"
#include "experiments/printable.h"
#include "experiments/run_outcome.h"
#include "experiments/sweep_run.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/store.h"

static const char *const state_name[] = {"pending", "running", "done", "failed", "stopped"};

/* --- a run folder --- */

static double number(const bk_json *o, const char *key)
{
    return bk_json_num(bk_json_get(o, key), NAN);
}

static void clear_result(bk_sweep_row *row)
{
    row->finished = false;
    double *all[] = {&row->fp,        &row->fp_prefix,  &row->init,      &row->final, &row->gap,
                     &row->loss_init, &row->loss_final, &row->loss_last, &row->peak};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) *all[i] = NAN;
    for (int i = 0; i < BK_RUN_STAGES; i++) row->seconds[i] = NAN;
}

static void take_blocks(const bk_json *blocks, bk_sweep_row *row)
{
    size_t n = bk_json_size(blocks);
    row->loss_init = row->loss_final = 0;
    for (size_t i = 0; i < n; i++) {
        const bk_json *b = bk_json_at(blocks, i);
        row->loss_init += number(b, "loss_init") / (double)n;
        row->loss_final += number(b, "loss_final") / (double)n;
        row->loss_last = number(b, "loss_final");
    }
}

/* One that came to nothing has failed, though it has numbers: `run` says so whenever it is asked. */
static void take_outcome(const bk_json *summary, bk_sweep_row *row)
{
    bk_error why = {0};
    bk_run_outcome o = bk_run_outcome_of(summary);
    bk_status st = bk_run_outcome_check(&o, &why);
    row->state = st ? BK_POINT_FAILED : BK_POINT_DONE;
    row->code = bk_exit_code(st);
    snprintf(row->message, sizeof row->message, "%.*s", (int)sizeof row->message - 1, why.msg);
}

static void take_summary(const bk_json *summary, bk_sweep_row *row)
{
    const bk_json *ppl = bk_json_get(summary, "ppl"), *seconds = bk_json_get(summary, "seconds");
    row->fp = number(ppl, "fp");
    row->fp_prefix = number(ppl, "fp_prefix");
    row->init = number(ppl, "init");
    row->final = number(ppl, "final");
    row->gap = log(row->final / row->fp);
    for (int i = 0; i < BK_RUN_STAGES; i++) row->seconds[i] = number(seconds, bk_run_stage_name[i]);
    row->peak = number(summary, "peak_rss_bytes");
    take_blocks(bk_json_get(summary, "blocks"), row);
    take_outcome(summary, row);
    row->finished = true;
}

/* *summary NULL: nothing was computed there, or not all of it. */
static bk_status read_result(const char *dir, const bk_run_config *c, bk_json **summary, bk_error *err)
{
    char path[BK_STAGE_PATH];
    *summary = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if (!bk_exists(path)) return BK_OK;
    BK_TRY(bk_run_compare_config(dir, c, err));
    snprintf(path, sizeof path, "%s/summary.json", dir);
    if (!bk_exists(path)) return BK_OK;
    BK_TRY(bk_run_check_quickly(dir, err));
    BK_TRY(bk_run_check_plugins(dir, c, err));
    return bk_json_load(path, summary, err);
}

bk_status bk_sweep_look(const char *dir, const bk_run_config *c, bk_sweep_row *row, bk_error *err)
{
    bk_json *summary;
    bk_error why = {0};
    clear_result(row);
    bk_status st = read_result(dir, c, &summary, &why);
    if (st && st != BK_EFORMAT && st != BK_EIO) return bk_fail(err, st, "%s", why.msg);
    if (summary) take_summary(summary, row);
    bk_json_free(summary);
    if (st) snprintf(row->message, sizeof row->message, "%.*s", (int)sizeof row->message - 1, why.msg);
    return BK_OK;
}

bk_status bk_sweep_look_at_all(bk_sweep_run *r, bk_error *err)
{
    char dir[2 * BK_PATH_SIZE];
    bk_run_config *c = malloc(sizeof *c);
    bk_status st = c ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for the sweep");
    for (int i = 0; !st && i < r->s->n; i++) {
        bk_sweep_point_dir(r, i, dir, sizeof dir);
        st = bk_sweep_config(r->s, i, c, err);
        if (!st) st = bk_sweep_look(dir, c, &r->row[i], err);
        r->done[i] = r->row[i].finished;
        if (!st && !r->done[i] && *r->row[i].message) bk_log(BK_LOG_WARN, "%s; that is no result", r->row[i].message);
    }
    free(c);
    return st ? st : bk_sweep_share(r->s, r->done, err);
}

/* NULL: there is none, or none that can be read. */
static bk_store *open_checkpoint(const char *dir)
{
    char path[BK_STAGE_PATH];
    bk_store *s = NULL;
    snprintf(path, sizeof path, "%s/checkpoint.h5", dir);
    return bk_exists(path) && !bk_store_open(&s, path, "brick.checkpoint", NULL) ? s : NULL;
}

static int64_t trained(bk_store *s)
{
    int64_t blocks;
    return s && !bk_store_get_int(s, "/", "next_block", &blocks, NULL) ? blocks : 0;
}

int64_t bk_sweep_trained(const char *dir)
{
    bk_store *s = open_checkpoint(dir);
    int64_t blocks = trained(s);
    bk_store_close(s);
    return blocks;
}

double bk_sweep_loss(const char *dir, int64_t block)
{
    static const char path[] = "/results/loss_final";
    bk_store *s = open_checkpoint(dir);
    bk_dset_info info = {0};
    double loss = NAN, *all = NULL;
    bool known = block < trained(s) && !bk_store_info(s, path, &info, NULL) && info.rank == 1 && block < info.dim[0];
    if (known) all = malloc((size_t)info.dim[0] * sizeof *all);
    if (all && !bk_store_get(s, path, BK_STORE_F64, 1, info.dim, all, NULL)) loss = all[block];
    free(all);
    bk_store_close(s);
    return loss;
}

/* --- rows --- */

double bk_sweep_number(const bk_sweep *s, int axis, int point)
{
    bk_key_type t = bk_keys[s->axis[axis]].type;
    const char *text = s->point[point].shown[axis];
    char *end;
    bool is_number = t == BK_KEY_INT || t == BK_KEY_REAL || t == BK_KEY_BITS || t == BK_KEY_INT_OR || t == BK_KEY_OPTION_INT;
    double x = strtod(text, &end);
    return is_number && end != text && !*end ? x : NAN;
}

static bk_json *axis_json(const bk_sweep *s, int axis, int point)
{
    bk_key_type t = bk_keys[s->axis[axis]].type;
    const char *text = s->point[point].shown[axis];
    double x = bk_sweep_number(s, axis, point);
    if (!strcmp(text, "-")) return bk_json_null();
    if (t == BK_KEY_BOOL || t == BK_KEY_OPTION_BOOL) return bk_json_of_bool(!strcmp(text, "true"));
    if (isnan(x)) return bk_json_of_text(text);
    return t == BK_KEY_REAL ? bk_json_of_num(x) : bk_json_of_int(strtoll(text, NULL, 10));
}

static bk_json *row_json(const bk_sweep *s, int point, const bk_sweep_row *row, const char *dir)
{
    char path[2 * BK_PATH_SIZE], column[64];
    bk_json *o = bk_json_object();
    const bk_sweep_point *p = &s->point[point];
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"ppl_fp", row->fp},
                   {"ppl_fp_prefix", row->fp_prefix},
                   {"ppl_init", row->init},
                   {"ppl_final", row->final},
                   {"gap", row->gap},
                   {"loss_init", row->loss_init},
                   {"loss_final", row->loss_final},
                   {"loss_last", row->loss_last}};
    bk_json_set(o, "point", bk_json_of_text(p->name));
    if (s->titled) bk_json_set(o, "name", bk_json_of_text(p->title));
    for (int a = 0; a < s->n_axes; a++) bk_json_set(o, bk_keys[s->axis[a]].path, axis_json(s, a, point));
    bk_json_set(o, "status", bk_json_of_text(state_name[row->state]));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        bk_json_set(o, numbers[i].key, bk_json_of_num(numbers[i].value));
    for (int i = 0; i < BK_RUN_STAGES; i++) {
        snprintf(column, sizeof column, "seconds_%s", bk_run_stage_name[i]);
        bk_json_set(o, column, bk_json_of_num(row->seconds[i]));
    }
    bk_json_set(o, "peak_rss_bytes", isnan(row->peak) ? bk_json_null() : bk_json_of_int((int64_t)row->peak));
    snprintf(path, sizeof path, "%s/%s", dir, p->name);
    bk_json_set(o, "folder", bk_json_of_text(path));
    bk_json_set(o, "exit_code",
                row->state == BK_POINT_FAILED ? bk_json_of_int(row->code)
                : row->state == BK_POINT_DONE ? bk_json_of_int(0)
                                              : bk_json_null());
    bk_json_set(o, "message", *row->message ? bk_json_of_text(row->message) : bk_json_null());
    return o;
}

bk_json *bk_sweep_rows_json(const bk_sweep *s, const bk_sweep_row *rows, const char *dir)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < s->n; i++) bk_json_push(a, row_json(s, i, &rows[i], dir));
    return a;
}

static void csv_value(FILE *f, const bk_json *v)
{
    const char *text = bk_json_str(v, NULL);
    char *dumped = text || bk_json_kind_of(v) == BK_JSON_NULL ? NULL : bk_json_dump(v, 0);
    if (text) bk_print_field(f, text);
    else if (dumped) fputs(dumped, f);
    free(dumped);
}

static bk_status write_lines(const char *dir, const char *name, const bk_json *rows,
                             void (*put)(FILE *f, const bk_json *rows), bk_error *err)
{
    char path[BK_STAGE_PATH], *text = NULL;
    size_t len;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = open_memstream(&text, &len);
    if (!f) return bk_fail(err, BK_ENOMEM, "no memory for %s", path);
    put(f, rows);
    bk_status st =
        fclose(f) == 0 ? bk_write_file(path, text, len, err) : bk_fail(err, BK_ENOMEM, "no memory for %s", path);
    free(text);
    return st;
}

static void put_csv(FILE *f, const bk_json *rows)
{
    const bk_json *first = bk_json_at(rows, 0);
    const char *comma = "";
    for (void *it = bk_json_first(first); it; it = bk_json_next(first, it), comma = ",") {
        fputs(comma, f);
        bk_print_field(f, bk_json_key(it));
    }
    fputc('\n', f);
    for (size_t i = 0; i < bk_json_size(rows); i++) {
        const bk_json *row = bk_json_at(rows, i);
        comma = "";
        for (void *it = bk_json_first(row); it; it = bk_json_next(row, it), comma = ",") {
            fputs(comma, f);
            csv_value(f, bk_json_value(it));
        }
        fputc('\n', f);
    }
}

static void put_jsonl(FILE *f, const bk_json *rows)
{
    for (size_t i = 0; i < bk_json_size(rows); i++) {
        char *line = bk_json_dump(bk_json_at(rows, i), 0);
        fprintf(f, "%s\n", line ? line : "{}");
        free(line);
    }
}

bk_status bk_sweep_write(const bk_sweep *s, const bk_sweep_row *rows, const char *dir, bk_error *err)
{
    bk_json *all = bk_sweep_rows_json(s, rows, dir);
    bk_status st =
        all ? write_lines(dir, "results.csv", all, put_csv, err) : bk_fail(err, BK_ENOMEM, "no memory for the results");
    if (!st) st = write_lines(dir, "results.jsonl", all, put_jsonl, err);
    bk_json_free(all);
    return st;
}

bk_status bk_sweep_write_question(const bk_sweep *s, const char *dir, bk_error *err)
{
    char path[BK_STAGE_PATH];
    bk_json *o = bk_json_object(), *set = bk_json_array();
    snprintf(path, sizeof path, "%s/sweep.json", dir);
    for (int i = 0; i < s->n_fixed; i++) bk_json_push(set, bk_json_of_text(s->value[s->fixed[i]].set));
    bk_json_set(o, "sweep", bk_json_of_text(s->file));
    bk_json_set(o, "base", bk_json_of_text(s->base));
    bk_json_set(o, "set", set);
    bk_status st = o ? bk_json_save(o, path, err) : bk_fail(err, BK_ENOMEM, "no memory for %s", path);
    bk_json_free(o);
    return st;
}
