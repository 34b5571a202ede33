#include "experiments/stage_kinds.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/backends.h"
#include "experiments/lab.h"
#include "experiments/version.h"
#include "io/json.h"

#define MAX_LEDGER ((size_t)1 << 28)

static const char *const detection_keys[] = {"prefix.threshold", "prefix.bos", "backend", NULL}; /* of the model as it is in the file */
static const char *const choice_keys[] = {"rotation.", "prefix.overlap", "prefix.search.", "quant.", "!quant.weight.", "init.range", "seed",
                                          "backend", NULL};
static const char *const fit_keys[] = {"rotation.", "scales.", "offq.", "spin.", "norm_rotation.", "quant.", "prefix.overlap", "seed", "backend", NULL};
static const char *const init_keys[] = {"rotation.", "prefix.overlap", "quant.", "init.", "gptq.", "seed", "backend", NULL};
static const char *const targets_keys[] = {"rotation.", "prefix.overlap", "store.dtype", "store.overflow",
                                           "store.compression", "seed", "backend", NULL};
static const char *const fp_keys[] = {"backend", NULL}; /* the initialised model: all else is in the hash of `init` */
static const char *const prefix_keys[] = {"rotation.", "prefix.overlap", "seed", "backend", NULL};
static const char *const rtn_keys[] = {"quant.", "backend", NULL};
static const char *const rotation_keys[] = {"rotation.", "quant.", "seed", "backend", NULL};
static const char *const search_keys[] = {"rotation.", "quant.", "init.range", "seed", "backend", NULL};
static const char *const no_prefix_keys[] = {"rotation.", "quant.", "init.from", "init.search", "init.range", "gptq.", "seed", "backend", NULL};
static const char *const text_keys[] = {"data.bos", "data.strip_bos", "data.parse_special", "data.join", NULL};

/* --- what samples come from --- */

static void add_stat(bk_text_buffer *b, const char *path)
{
    struct stat s;
    if (stat(path, &s) == 0)
        bk_buffer_add(b, "%s: %lld bytes, %lld.%09ld\n", path, (long long)s.st_size, (long long)s.st_mtim.tv_sec,
                      s.st_mtim.tv_nsec);
    else bk_buffer_add(b, "%s: not there\n", path);
}

/* A file, or the files of a folder. */
static void add_model(bk_text_buffer *b, const char *model)
{
    struct dirent **names;
    int n = scandir(model, &names, NULL, alphasort);
    if (n < 0) add_stat(b, model);
    for (int i = 0; i < n; i++) {
        char path[2 * BK_PATH_SIZE];
        snprintf(path, sizeof path, "%s/%s", model, names[i]->d_name);
        if (names[i]->d_name[0] != '.') add_stat(b, path);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

static void add_set(bk_text_buffer *b, const char *text, int64_t samples, int64_t seqlen)
{
    bk_buffer_add(b, "samples: %lld of %lld tokens\n", (long long)samples, (long long)seqlen);
    add_stat(b, text);
}

static void add_samples(bk_text_buffer *b, const bk_run_config *c, unsigned sets)
{
    const bk_data_config *d = &c->data.detection, *l = &c->data.calibration, *s = &c->data.statistics, *t = &c->data.training,
                         *e = &c->data.evaluation;
    if (sets & BK_STAGE_DETECTION) add_set(b, bk_run_config_text(c, d), d->samples, d->seqlen);
    if ((sets & BK_STAGE_CALIBRATION) && bk_run_needs_calibration(c))
        add_set(b, bk_run_config_text(c, l), l->samples, *l->text ? l->seqlen : t->seqlen);
    if ((sets & BK_STAGE_STATISTICS) && bk_run_needs_statistics(c)) add_set(b, bk_run_config_text(c, s), s->samples, s->seqlen);
    if (sets & BK_STAGE_TRAINING) add_set(b, t->text, t->samples + c->data.validation, t->seqlen);
    if (sets & BK_STAGE_EVALUATION) add_set(b, e->text, e->samples, e->seqlen);
    if (sets & ~(unsigned)BK_STAGE_EVALUATION) bk_buffer_add(b, "drawn by the seed %lld\n", (long long)c->seed);
    if ((sets & ~(unsigned)BK_STAGE_DETECTION) && c->data.bos == BK_BOS_AUTO)
        bk_buffer_add(b, "%s\n", c->prefix.mode == BK_PREFIX_NONE ? "BOS before a text" : "prefix before a text");
}

static bk_status add_stage(bk_text_buffer *b, bk_stage_kind kind, const bk_run_config *c, bk_error *err)
{
    char hex[65];
    BK_TRY(bk_stage_quick(kind, c, hex, err));
    bk_buffer_add(b, "%s %s\n", bk_stage_name(kind), hex);
    return BK_OK;
}

/* A prefix that no stage finds. */
static void add_prefix(bk_text_buffer *b, const bk_run_config *c)
{
    bk_buffer_add(b, "prefix:");
    for (int64_t i = 0; i < c->prefix.n_ids; i++) bk_buffer_add(b, " %d", c->prefix.ids[i]);
    bk_buffer_add(b, c->prefix.mode == BK_PREFIX_NONE ? " none\n" : "\n");
}

/* --- the table --- */

static bool with_search(const bk_run_config *c)
{
    return c->prefix.mode == BK_PREFIX_SEARCH;
}

static bool always(const bk_run_config *c)
{
    (void)c;
    return true;
}

static bool with_targets(const bk_run_config *c)
{
    return c->train.epochs > 0 && c->store.keep == BK_TARGETS_SHARED;
}

/* Of `evaluate: []` nothing is left but the first and the last row. */
static bool with_rows(const bk_run_config *c)
{
    return c->evaluate != 0;
}

static bool with_prefix(const bk_run_config *c)
{
    return c->prefix.mode != BK_PREFIX_NONE;
}

static bool with_ablation(const bk_run_config *c)
{
    return c->evaluate & BK_EVALUATE_ABLATION;
}

static bool with_prefix_row(const bk_run_config *c)
{
    return with_rows(c) && with_prefix(c);
}

static bool with_no_prefix(const bk_run_config *c)
{
    return with_ablation(c) && with_prefix(c) && bk_qspec_needs_range(&c->quant.activation);
}

#define NONE BK_STAGE_KINDS

static const struct {
    const char *name;
    const char *const *keys;
    bool (*used)(const bk_run_config *c);
    unsigned samples;
    bk_stage_kind before; /* whose result it reads; if the run does not have it, that of the one before that */
    bool prefix;          /* reads it */
    bool transformed;     /* reads the model through its transforms: in place of `before` comes the stage `fit`, if the run has one */
} kinds[BK_STAGE_KINDS] = {
    [BK_STAGE_OUTLIERS] = {"outliers", detection_keys, bk_run_config_detects, BK_STAGE_DETECTION, NONE, false, false},
    [BK_STAGE_PREFIX] = {"prefix", choice_keys, with_search, BK_STAGE_DETECTION, BK_STAGE_OUTLIERS, false, false},
    [BK_STAGE_FIT] = {"fit", fit_keys, bk_run_fits, BK_STAGE_STATISTICS, BK_STAGE_PREFIX, true, false},
    [BK_STAGE_INIT] = {"init", init_keys, always, BK_STAGE_CALIBRATION | BK_STAGE_STATISTICS, BK_STAGE_PREFIX, true, true},
    [BK_STAGE_TARGETS] = {"targets", targets_keys, with_targets, BK_STAGE_TRAINING, BK_STAGE_PREFIX, true, true},
    [BK_STAGE_ROW_FP] = {"row-fp", fp_keys, always, BK_STAGE_EVALUATION, NONE, false, false},
    [BK_STAGE_ROW_PREFIX] =
        {"row-fp-prefix", prefix_keys, with_prefix_row, BK_STAGE_EVALUATION, BK_STAGE_PREFIX, true, true},
    [BK_STAGE_ROW_RTN] = {"row-rtn", rtn_keys, with_ablation, BK_STAGE_EVALUATION, NONE, false, false},
    [BK_STAGE_ROW_ROTATION] = {"row-rotation", rotation_keys, with_ablation, BK_STAGE_EVALUATION, NONE, false, true},
    [BK_STAGE_ROW_SEARCH] =
        {"row-search", search_keys, with_ablation, BK_STAGE_EVALUATION | BK_STAGE_CALIBRATION, NONE, false, true},
    [BK_STAGE_ROW_NO_PREFIX] =
        {"row-no-prefix", no_prefix_keys, with_no_prefix, BK_STAGE_EVALUATION | BK_STAGE_CALIBRATION | BK_STAGE_STATISTICS,
         NONE, false, true},
    [BK_STAGE_ROW_INIT] = {"row-init", fp_keys, with_rows, BK_STAGE_EVALUATION, BK_STAGE_INIT, false, false},
};

const char *bk_stage_name(bk_stage_kind kind)
{
    return kinds[kind].name;
}

const char *const *bk_stage_keys(bk_stage_kind kind)
{
    return kinds[kind].keys;
}

unsigned bk_stage_samples(bk_stage_kind kind)
{
    return kinds[kind].samples;
}

bool bk_stage_prefixed(bk_stage_kind kind)
{
    return kinds[kind].prefix;
}

bool bk_stage_is_row(bk_stage_kind kind)
{
    return kind >= BK_STAGE_ROW_FP;
}

bk_stage_kind bk_stage_before(bk_stage_kind kind, const bk_run_config *c)
{
    bk_stage_kind before = kinds[kind].before;
    if (kinds[kind].transformed && bk_run_fits(c)) return BK_STAGE_FIT;
    while (before != NONE && !kinds[before].used(c)) before = kinds[before].before;
    return before;
}

bool bk_stage_used(bk_stage_kind kind, const bk_run_config *c)
{
    return kinds[kind].used(c);
}

static bk_status add_keys(bk_text_buffer *b, const bk_run_config *c, const char *const *keys, bk_error *err)
{
    char *text;
    BK_TRY(bk_config_digest_keys(c, keys, &text, err));
    bk_buffer_add(b, "%s", text);
    free(text);
    return BK_OK;
}

static bk_status quick_text(bk_stage_kind kind, const bk_run_config *c, bk_text_buffer *b, bk_error *err)
{
    const bk_backend *be = bk_backend_named(c->backend);
    bk_buffer_add(b, "%s\n%s\n%s\n", kinds[kind].name, BK_VERSION, be && be->flavour ? be->flavour() : "");
    add_stat(b, BK_PROGRAM_FILE);
    add_model(b, c->model);
    BK_TRY(add_keys(b, c, kinds[kind].keys, err));
    BK_TRY(add_keys(b, c, text_keys, err));
    add_samples(b, c, kinds[kind].samples);
    bk_stage_kind before = bk_stage_before(kind, c);
    if (before != NONE) return add_stage(b, before, c, err);
    if (kinds[kind].prefix) add_prefix(b, c);
    return BK_OK;
}

bk_status bk_stage_quick(bk_stage_kind kind, const bk_run_config *c, char hex[65], bk_error *err)
{
    bk_text_buffer b = {0};
    const char *text;
    bk_status st = quick_text(kind, c, &b, err);
    if (!st) st = bk_buffer_text(&b, &text, err);
    if (!st) st = bk_sha256_bytes(text, strlen(text), hex, err);
    bk_buffer_free(&b);
    return st;
}

/* --- the ledger --- */

static void ledger_path(char to[BK_STAGE_PATH])
{
    snprintf(to, BK_STAGE_PATH, "%.4096s/ledger.jsonl", bk_cache_root());
}

/* Whether a file ends within a line, as one whose writer was killed does. */
static bool ends_in_a_line(int fd)
{
    char last;
    off_t size = lseek(fd, 0, SEEK_END);
    return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

/* Lines are written at once, which keeps those of several processes apart on a local disk. On a network file system they may mix: readers skip what
 * is no line, and so the worst is a stage that a plan does not know of. */
static bk_status append_line(int fd, const char *path, const char *text, bk_error *err)
{
    char *line;
    int n = asprintf(&line, "%s%s\n", ends_in_a_line(fd) ? "\n" : "", text);
    if (n < 0) return bk_fail(err, BK_ENOMEM, "no memory for a line of %s", path);
    ssize_t put = write(fd, line, (size_t)n);
    free(line);
    return put == n ? BK_OK : put < 0 ? bk_fail_errno(err, "%s", path) : bk_fail(err, BK_ENOSPC, "%s: the disk is full", path);
}

bk_status bk_ledger_add(const bk_stage *s, bk_error *err)
{
    char path[BK_STAGE_PATH];
    bk_json *o = bk_json_object();
    bk_json_set(o, "stage", bk_json_of_text(s->name));
    bk_json_set(o, "hash", bk_json_of_text(s->hash));
    bk_json_set(o, "quick", bk_json_of_text(s->quick));
    bk_json_set(o, "run", bk_json_of_text(s->run));
    bk_json_set(o, "seconds", bk_json_of_num(bk_seconds() - s->began));
    char *text = bk_json_dump(o, 0);
    bk_json_free(o);
    if (!text) return bk_fail(err, BK_ENOMEM, "no memory for a line of the ledger");
    ledger_path(path);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    bk_status st = fd < 0 ? bk_fail_errno(err, "%s", path) : append_line(fd, path, text, err);
    if (fd >= 0) close(fd);
    free(text);
    return st;
}

static bool is_there(const char *stage, const char *hash)
{
    char dir[BK_STAGE_PATH];
    snprintf(dir, sizeof dir, "%.4096s/%s-%.16s", bk_cache_root(), stage, hash);
    return bk_is_dir(dir);
}

static bool says(const char *line, size_t len, const char *stage, const char *quick)
{
    bk_json *o;
    if (!memmem(line, len, quick, strlen(quick)) || bk_json_parse(line, len, "ledger.jsonl", &o, NULL)) return false;
    bool found = !strcmp(bk_json_str(bk_json_get(o, "stage"), ""), stage) && !strcmp(bk_json_str(bk_json_get(o, "quick"), ""), quick) &&
                 is_there(stage, bk_json_str(bk_json_get(o, "hash"), ""));
    bk_json_free(o);
    return found;
}

bool bk_ledger_has(bk_stage_kind kind, const char *quick)
{
    char path[BK_STAGE_PATH], *text;
    size_t len;
    bool found = false;
    ledger_path(path);
    if (bk_file_slurp(path, MAX_LEDGER, &text, &len, NULL)) return false;
    for (size_t at = 0, n; at < len && !found; at += n + 1) {
        const char *end = memchr(text + at, '\n', len - at);
        n = end ? (size_t)(end - text) - at : len - at;
        found = says(text + at, n, kinds[kind].name, quick);
    }
    free(text);
    return found;
}
