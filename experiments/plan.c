/* brick plan: checks what can be checked without computing, lists what is missing, estimates memory, disk and time. */
#include "experiments/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/options.h"
#include "experiments/plugin.h"
#include "experiments/printable.h"
#include "experiments/runner.h"
#include "experiments/scheme.h"
#include "experiments/sweep.h"
#include "experiments/verbs.h"
#include "io/file.h"

#define MISSING_MAX 16

typedef struct plan {
    bk_run_config cfg;
    const char *model, *out; /* where the shapes come from; run folder */
    bk_config shapes;
    bool known, weights;
    bk_plan_set set[BK_PLAN_SETS];
    bk_rotation *rotation;
    bk_rates rates;
    bk_estimate estimate;
    bk_room room;
    bk_error refusal; /* why it does not fit; code 0: it does */
    struct {
        const char *key, *path;
    } missing[MISSING_MAX];
    int n_missing;
} plan;

static void find_missing(plan *p)
{
    const char *key, *path;
    for (int i = 0; bk_run_config_file(&p->cfg, i, &key, &path) && p->n_missing < MISSING_MAX; i++) {
        bool model = !strcmp(key, "model");
        if (model ? bk_exists(path) && p->weights && p->model == p->cfg.model : access(path, R_OK) == 0) continue;
        p->missing[p->n_missing].key = key;
        p->missing[p->n_missing++].path = path;
    }
}

bk_status bk_plan_rotation(const bk_run_config *c, const bk_config *shapes, bk_rotation **out, bk_error *err)
{
    bk_rotation_spec spec = bk_run_rotation(c, shapes, NULL, NULL);
    float *gain = calloc((size_t)shapes->hidden, sizeof *gain);
    if (!gain) return bk_fail(err, BK_ENOMEM, "no memory");
    bk_status st = bk_rotation_create(shapes, &spec, gain, out, err);
    free(gain);
    return st;
}

bk_status bk_plan_check_shapes(const bk_run_config *c, const bk_config *shapes, bk_error *err)
{
    bk_rotation *r;
    BK_TRY(bk_run_config_check_model(c, shapes, bk_estimate_prefix(c), err));
    BK_TRY(bk_plan_quantizers(c, shapes, err));
    BK_TRY(bk_plan_rotation(c, shapes, &r, err));
    bk_rotation_free(r);
    return BK_OK;
}

static bk_status estimate(plan *p, bk_error *err)
{
    const bk_backend *be = bk_runner_backend(p->cfg.backend, p->cfg.threads, err);
    if (!be) return err->code;
    BK_TRY(bk_plan_check_shapes(&p->cfg, &p->shapes, err));
    BK_TRY(bk_plan_rotation(&p->cfg, &p->shapes, &p->rotation, err));
    BK_TRY(bk_rates_measure(p->rotation, be, &p->rates, err));
    BK_TRY(bk_plan_samples(&p->cfg, bk_exists(p->cfg.model) ? p->cfg.model : p->model, p->set, err));
    bk_sample_counts samples = bk_plan_counts(&p->cfg, p->set);
    BK_TRY(bk_estimate_run(&p->cfg, &samples, p->rotation, be, &p->rates, &p->estimate, err));
    BK_TRY(bk_plan_found(&p->cfg, &p->estimate, err));
    bk_room_measure(p->out, &p->room);
    bk_status fits = bk_room_check(&p->room, &p->estimate, p->out, &p->refusal); /* told, and no failure of the plan */
    (void)fits;
    return BK_OK;
}

static bk_status make_plan(plan *p, const char *config, const bk_opt_list *sets, bk_error *err)
{
    BK_TRY(bk_run_config_load(config, sets->item, sets->n, &p->cfg, err));
    if (!p->model) p->model = p->cfg.model;
    BK_TRY(bk_plan_shapes(p->model, &p->shapes, &p->known, &p->weights, err));
    if (!p->known && p->model != p->cfg.model) return bk_fail(err, BK_EIO, "%s: no config.json there", p->model);
    find_missing(p);
    return p->known ? estimate(p, err) : BK_OK;
}

/* --- text --- */

/* What R1 will be. */
static const char *r1_note(const plan *p)
{
    return p->cfg.rotation.basis == BK_BASIS_HADAMARD ? p->rotation->hidden->note : "fitted to data.statistics";
}

static void print_transform(const char *name, const char *what, const char *note)
{
    printf("  %-11s %s: %s\n", name, what, note);
}

static void print_shapes(const plan *p)
{
    const bk_config *c = &p->shapes;
    const bk_rotation *r = p->rotation;
    printf("shapes      %s, %lld blocks, hidden %lld, intermediate %lld, %lld query and %lld key/value heads of %lld, "
           "vocabulary %lld%s\n",
           c->arch, (long long)c->layers, (long long)c->hidden, (long long)c->inter, (long long)c->heads,
           (long long)c->kv_heads, (long long)c->head_dim, (long long)c->vocab, c->tied ? ", tied" : "");
    puts("transforms");
    if (r->on[BK_TRANSFORM_R1]) print_transform("r1", "hidden", r1_note(p));
    if (r->on[BK_TRANSFORM_R2]) print_transform("r2", "head", r->head->note);
    if (r->on[BK_TRANSFORM_R3]) print_transform("r3", "head", r->head->note);
    if (r->on[BK_TRANSFORM_R4]) print_transform("r4", "intermediate", r->inter->note);
    if (!r->on[BK_TRANSFORM_R1] && !r->on[BK_TRANSFORM_R2] && !r->on[BK_TRANSFORM_R3] && !r->on[BK_TRANSFORM_R4])
        puts("  none");
}

static void print_data(const plan *p)
{
    static const char *const how[] = {
        [BK_AS_ASKED] = "  (not there)", [BK_BY_SIZE] = "  (by its size)", [BK_COUNTED] = ""};
    static const char all[] = "  (not there: as many as WikiText-2 has)";
    puts("data");
    for (int i = 0; i < BK_PLAN_SETS; i++) {
        const bk_plan_set *s = &p->set[i];
        int64_t validation = i == BK_PLAN_TRAINING ? bk_plan_counts(&p->cfg, p->set).validation : 0;
        if (!s->used) continue;
        printf("  %-11s %7lld x %-5lld  %s%s\n", s->name, (long long)(s->given - validation), (long long)s->seqlen,
               s->path, s->asked < 0 && s->source == BK_AS_ASKED ? all : how[s->source]);
        if (validation)
            printf("  %-11s %7lld x %-5lld  behind them\n", "validation", (long long)validation, (long long)s->seqlen);
    }
}

/* What the texts do not give. */
static void print_short(const plan *p)
{
    for (int i = 0; i < BK_PLAN_SETS; i++) {
        const bk_plan_set *s = &p->set[i];
        if (!s->used || s->given >= s->asked) continue;
        printf("short       %s: %s gives %s%lld of %lld samples\n",
               i == BK_PLAN_TRAINING ? "training and validation" : s->name, s->path,
               s->source == BK_COUNTED ? "" : "about ", (long long)s->given, (long long)s->asked);
    }
}

static void print_seconds(double s, int width)
{
    if (s < 90) printf("%*.0f s", width, s);
    else if (s < 5400) printf("%*.1f min", width, s / 60);
    else if (s < 172800) printf("%*.1f h", width, s / 3600);
    else printf("%*.0f days", width, s / 86400);
}

static void print_estimate(const plan *p)
{
    const bk_estimate *e = &p->estimate;
    char a[BK_BYTES_TEXT], b[BK_BYTES_TEXT], c[BK_BYTES_TEXT], d[BK_BYTES_TEXT], f[BK_BYTES_TEXT];
    printf("stages %17s %7s     (to a factor of 2; matrix products here: %.0f GFLOP/s)\n", "memory", "time",
           p->rates.gflops);
    for (int i = 0; i < BK_PART_COUNT; i++) {
        if (e->memory[i] <= 0) continue;
        printf("  %-11s %10s ", bk_part_name[i], bk_bytes_text(e->memory[i], a));
        print_seconds(e->seconds[i], 7);
        putchar('\n');
    }
    printf("memory      %s of %s left (%s)\n", bk_bytes_text(e->peak, a), bk_bytes_text(p->room.memory, b), p->room.memory_from);
    printf("disk        targets %s, model %s, stages %s, temporary %s; free %s\ntime        ",
           bk_bytes_text(e->targets_disk, a), bk_bytes_text(e->model_disk, b), bk_bytes_text(e->cache_disk, c), bk_bytes_text(e->temporary_disk, d),
           bk_bytes_text(p->room.run_disk, f));
    print_seconds(e->total_seconds, 0);
    putchar('\n');
}

static void print_text(const plan *p)
{
    const bk_run_config *c = &p->cfg;
    bk_scheme s = {c->quant.weight, c->quant.activation, c->quant.key, c->quant.value, false};
    char text[512];
    bk_scheme_describe(&s, text, sizeof text);
    printf("model       %s%s\n", c->model,
           !p->known    ? " (not there: --model-config takes a config.json for its shapes)"
           : p->weights ? ""
                        : " (weights are missing)");
    if (p->known) print_shapes(p);
    printf("method      %s\nscheme      %s: %s\n", c->method, c->scheme, text);
    if (p->known) print_data(p);
    if (p->known) print_estimate(p);
    for (int i = 0; i < p->n_missing; i++) printf("missing     %s: %s\n", p->missing[i].key, p->missing[i].path);
    if (p->known) print_short(p);
    if (p->refusal.code) printf("does not fit: %s\n", p->refusal.msg);
    else if (!p->known) puts("no estimate: the shapes of the model are not known");
    else puts(p->n_missing ? "fits; `brick run` needs what is missing" : "fits");
}

/* --- JSON --- */

static void set_note(bk_json *o, const char *name, bool on, const char *note)
{
    bk_json_set(o, name, on ? bk_json_of_text(note) : bk_json_null());
}

static bk_json *json_transforms(const plan *p)
{
    const bk_rotation *r = p->rotation;
    const char *head = r->head ? r->head->note : "", *inter = r->inter ? r->inter->note : "";
    bk_json *o = bk_json_object();
    set_note(o, "r1", r->on[BK_TRANSFORM_R1], r->on[BK_TRANSFORM_R1] ? r1_note(p) : "");
    set_note(o, "r2", r->on[BK_TRANSFORM_R2], head);
    set_note(o, "r3", r->on[BK_TRANSFORM_R3], head);
    set_note(o, "r4", r->on[BK_TRANSFORM_R4], inter);
    return o;
}

static bk_json *json_stages(const plan *p)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < BK_PART_COUNT; i++) {
        if (p->estimate.memory[i] <= 0) continue;
        bk_json *o = bk_json_object();
        bk_json_set(o, "stage", bk_json_of_text(bk_part_name[i]));
        bk_json_set(o, "memory_bytes", bk_json_of_num(p->estimate.memory[i]));
        bk_json_set(o, "seconds", bk_json_of_num(p->estimate.seconds[i]));
        bk_json_push(a, o);
    }
    return a;
}

static bk_json *json_samples(const plan *p)
{
    static const char *const source[] = {[BK_AS_ASKED] = "asked", [BK_BY_SIZE] = "size", [BK_COUNTED] = "counted"};
    bk_json *a = bk_json_array();
    for (int i = 0; i < BK_PLAN_SETS; i++) {
        const bk_plan_set *s = &p->set[i];
        if (!s->used) continue;
        bk_json *o = bk_json_object();
        bk_json_set(o, "set", bk_json_of_text(s->name));
        bk_json_set(o, "text", bk_json_of_text(s->path));
        bk_json_set(o, "seqlen", bk_json_of_int(s->seqlen));
        bk_json_set(o, "asked", s->asked < 0 ? bk_json_null() : bk_json_of_int(s->asked));
        bk_json_set(o, "given", bk_json_of_int(s->given));
        bk_json_set(o, "source", bk_json_of_text(source[s->source]));
        bk_json_push(a, o);
    }
    return a;
}

static bk_json *json_missing(const plan *p)
{
    bk_json *a = bk_json_array();
    for (int i = 0; i < p->n_missing; i++) {
        bk_json *o = bk_json_object();
        bk_json_set(o, "key", bk_json_of_text(p->missing[i].key));
        bk_json_set(o, "path", bk_json_of_text(p->missing[i].path));
        bk_json_push(a, o);
    }
    return a;
}

static bk_status print_json(const plan *p, bk_error *err)
{
    const bk_estimate *e = &p->estimate;
    bk_json *o = bk_json_object();
    const struct {
        const char *key;
        double value;
    } number[] = {{"memory_bytes", e->peak},
                  {"memory_left_bytes", p->room.memory},
                  {"disk_bytes", e->targets_disk + e->model_disk + e->cache_disk + e->temporary_disk},
                  {"targets_bytes", e->targets_disk},
                  {"model_bytes", e->model_disk},
                  {"cache_bytes", e->cache_disk},
                  {"temporary_bytes", e->temporary_disk},
                  {"disk_free_bytes", p->room.run_disk},
                  {"seconds", e->total_seconds},
                  {"sgemm_gflops", p->rates.gflops}};
    bk_json_set(o, "model", bk_json_of_text(p->cfg.model));
    bk_json_set(o, "method", bk_json_of_text(p->cfg.method));
    bk_json_set(o, "scheme", bk_json_of_text(p->cfg.scheme));
    bk_json_set(o, "shapes", p->known ? bk_config_to_json(&p->shapes) : bk_json_null());
    bk_json_set(o, "transforms", p->known ? json_transforms(p) : bk_json_null());
    bk_json_set(o, "missing", json_missing(p));
    bk_json_set(o, "samples", p->known ? json_samples(p) : bk_json_null());
    bk_json_set(o, "stages", p->known ? json_stages(p) : bk_json_null());
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        bk_json_set(o, number[i].key, p->known ? bk_json_of_num(number[i].value) : bk_json_null());
    bk_json_set(o, "fits", p->known ? bk_json_of_bool(!p->refusal.code) : bk_json_null());
    bk_json_set(o, "why", p->refusal.code ? bk_json_of_text(p->refusal.msg) : bk_json_null());
    return bk_print_json(o, err);
}

int bk_verb_plan(int argc, char **argv)
{
    const char *config = NULL, *model = NULL, *out = NULL;
    bool json = false;
    bk_opt_list sets = {.n = 0};
    const bk_opt opts[] = {
        {"--set", BK_OPT_LIST, &sets, "key=value", NULL, 0, 0, "overrides a key of the config"},
        BK_OPT_PLUGIN,
        {"--model-config", BK_OPT_TEXT, &model, "FILE", "the model's own", 0, 0, "config.json (or a folder with one) to take the shapes from"},
        {"--out", BK_OPT_TEXT, &out, "DIR", "runs; of a sweep runs/<name of the file>", 0, 0,
         "run folder, for its free disk; of a sweep: where its points are"},
        {"--json", BK_OPT_FLAG, &json, NULL, NULL, 0, 0, "one JSON object on stdout"},
        {"CONFIG", BK_OPT_TEXT, &config, "CONFIG", "", 0, 0, "YAML file (brick run --help-config), or a sweep"},
        {NULL, 0, NULL, NULL, NULL, 0, 0, NULL}};
    const bk_cli cli = {
        "plan", "what a run will take: memory, disk and time; and what is missing", opts,
        "brick plan configs/smollm2/w4a4kv4-static.yaml\n"
        "brick plan configs/paper/llama-3-8b-w4a4kv4-static.yaml --model-config Llama-3-8B/config.json --json\n"};
    int code;
    if (!bk_cli_begin(&cli, argc, argv, &code)) return code;
    bk_error err = {0};
    if (bk_sweep_is(config)) {
        if (sets.n || model) return bk_exit_report(bk_fail(&err, BK_EINVAL, "plan: no --set and --model-config with a sweep: it has a key `set`"), &err);
        return bk_sweep_plan(config, out, json);
    }
    plan *p = calloc(1, sizeof *p);
    if (!p) return bk_exit_report(bk_fail(&err, BK_ENOMEM, "no memory"), &err);
    p->model = model;
    p->out = out ? out : "runs";
    bk_status st = make_plan(p, config, &sets, &err);
    if (!st && json) st = print_json(p, &err);
    else if (!st) print_text(p);
    bk_rotation_free(p->rotation);
    free(p);
    return bk_exit_report(st, &err);
}
