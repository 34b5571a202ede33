/* brick plan: estimates from shapes alone, room, refusals. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "experiments/backends.h"
#include "experiments/plan.h"
#include "experiments/synth.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "tests/suite.h"

#define MIB 1048576.0

static char dir[64];

static void enter(void)
{
    strcpy(dir, "/tmp/brick-plan-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void leave(void)
{
    bk_error err = {0};
    ck_assert_int_eq(bk_remove_tree(dir, &err), BK_OK);
}

static const char llama3[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,"
                             "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,"
                             "\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

static const bk_config small = {.arch = "llama", .hidden = 576, .inter = 1536, .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64, .vocab = 49152,
                                .max_positions = 8192, .eps = 1e-5, .rope_theta = 1e5, .tied = true};

static void put(const char *name, const char *text, char path[128])
{
    bk_error err = {0};
    snprintf(path, 128, "%s/%s", dir, name);
    ck_assert_int_eq(bk_write_file(path, text, strlen(text), &err), BK_OK);
}

/* A config of the small shape, with changes. */
static bk_run_config config(const char *const *sets, int n)
{
    static const char text[] = "model: m\nmethod: prefixquant\nscheme: W4A4KV4-static\nseed: 2\n"
                               "data:\n  detection: {text: t, samples: 64, seqlen: 512}\n  calibration: {text: t, samples: 4, seqlen: 512}\n"
                               "  training: {text: t, samples: 64, seqlen: 512, validation: 8}\n  evaluation: {text: t, seqlen: 2048, windows: 16}\n"
                               "rotation: {r1: true, r2: true, r3: true, r4: true}\ntrain: {epochs: 20, batch: 4}\n";
    bk_run_config c;
    bk_error err = {0};
    bk_status st = bk_run_config_parse(text, sizeof text - 1, "test", sets, n, &c, &err);
    ck_assert_msg(!st, "%s", err.msg);
    return c;
}

static bk_status estimate_with(const char *const *sets, int n, bk_estimate *out, bk_error *err)
{
    bk_run_config *c = malloc(sizeof *c);
    ck_assert_ptr_nonnull(c);
    *c = config(sets, n);
    float gain[576] = {0};
    bk_rotation *r;
    bk_rotation_spec spec = {.r1 = true, .r2 = true, .r3 = true, .r4 = true};
    ck_assert_int_eq(bk_rotation_create(&small, &spec, gain, &r, err), BK_OK);
    const bk_data_config *d = &c->data.detection;
    bk_sample_counts samples = {.detection = d->samples, .calibration = c->data.calibration.samples, .statistics = c->data.statistics.samples,
                                .training = c->data.training.samples, .validation = c->data.validation, .evaluation = 16};
    bk_status st = bk_estimate_run(c, &samples, r, bk_backend_named("cpu"), &(bk_rates){200, 0.05}, out, err);
    bk_rotation_free(r);
    free(c);
    return st;
}

static bk_estimate estimate(const char *set)
{
    bk_estimate e;
    bk_error err = {0};
    bk_status st = estimate_with(&set, set ? 1 : 0, &e, &err);
    ck_assert_msg(!st, "%s", err.msg);
    return e;
}

START_TEST(targets_follow_the_layout)
{
    bk_estimate e = estimate(NULL);
    ck_assert_double_eq(e.targets_disk, 2.0 * 3 * 72 * 512 * 576 * 2); /* two files of three datasets in f16 */
    ck_assert_double_eq(estimate("store.keep=all").targets_disk, e.targets_disk / 2 * 30);
    ck_assert_double_eq(estimate("store.dtype=f32").targets_disk, e.targets_disk * 2);
    ck_assert_double_eq(estimate("train.epochs=0").targets_disk, 0);
}
END_TEST

/* One dataset of every block in the stage, and two files of one in the run folder; the teacher runs in the stage. */
START_TEST(shared_targets_move_from_the_run_to_a_stage)
{
    const double one = 72.0 * 512 * 576 * 2;
    bk_estimate e = estimate("store.keep=shared"), rolling = estimate(NULL);
    ck_assert_double_eq(e.targets_disk, 2 * one);
    ck_assert_double_eq(e.stage_disk[BK_STAGE_TARGETS], 30 * one);
    ck_assert_double_eq(e.cache_disk, rolling.cache_disk + 30 * one);
    ck_assert_double_eq(rolling.stage_disk[BK_STAGE_TARGETS], 0);
    ck_assert_double_gt(e.seconds[BK_PART_TARGETS], 0);
    ck_assert_double_eq(rolling.seconds[BK_PART_TARGETS], 0);
    ck_assert_double_eq_tol(e.seconds[BK_PART_TARGETS] + e.seconds[BK_PART_TRAIN], rolling.seconds[BK_PART_TRAIN], 1e-9);
    ck_assert_double_eq(estimate("train.epochs=0").stage_disk[BK_STAGE_TARGETS], 0);
}
END_TEST

START_TEST(training_memory_holds_all_copies_of_the_parameters)
{
    bk_estimate e = estimate(NULL);
    double weights = 4.0 * (double)bk_config_block_weights(&small);
    ck_assert_double_gt(e.memory[BK_PART_TRAIN], 6 * weights);
    ck_assert_double_lt(e.memory[BK_PART_TRAIN], 1024 * MIB);
    ck_assert_double_ge(e.peak, e.memory[BK_PART_TRAIN]);
}
END_TEST

START_TEST(memory_grows_with_the_batch)
{
    ck_assert_double_gt(estimate("train.batch=16").memory[BK_PART_TRAIN], estimate(NULL).memory[BK_PART_TRAIN] * 1.5);
}
END_TEST

/* Blocks that a search of c candidates for n tokens takes windows through: (1 + c n) times all. */
START_TEST(a_search_counts_among_the_outliers)
{
    const char *sets[] = {"prefix.mode=search", "prefix.search.candidates=10", "prefix.search.max_tokens=3", "prefix.search.objective=ratio"};
    bk_estimate e, counted = estimate(NULL);
    bk_error err = {0};
    ck_assert_int_eq(estimate_with(sets, 4, &e, &err), BK_OK);
    double block = 0.05 + 2 * bk_forward_flops(&small, 512, 1) / (1e9 * 200 * 0.8);
    ck_assert_double_eq_tol(e.stage_seconds[BK_STAGE_PREFIX], 31 * 30 * block, 1e-9);
    ck_assert_double_eq_tol(e.seconds[BK_PART_OUTLIERS], counted.seconds[BK_PART_OUTLIERS] + e.stage_seconds[BK_STAGE_PREFIX], 1e-9);
    ck_assert_double_eq(counted.stage_seconds[BK_STAGE_PREFIX], 0);
    ck_assert_double_eq(e.stage_seconds[BK_STAGE_OUTLIERS], counted.stage_seconds[BK_STAGE_OUTLIERS]);
}
END_TEST

/* --- what is fitted, and GPTQ --- */

#define STATISTICS (128.0 * 2048 * 576 * 4) /* hidden states of all samples */

static bk_estimate of_method(const char *method, const char *scheme, const char *set)
{
    char put_method[64], put_scheme[64];
    const char *sets[] = {put_method, put_scheme, set};
    bk_estimate e;
    bk_error err = {0};
    snprintf(put_method, sizeof put_method, "method=%s", method);
    snprintf(put_scheme, sizeof put_scheme, "scheme=%s", scheme);
    bk_status st = estimate_with(sets, set ? 3 : 2, &e, &err);
    ck_assert_msg(!st, "%s", err.msg);
    return e;
}

START_TEST(what_fits_nothing_takes_nothing_for_it)
{
    bk_estimate e = estimate(NULL);
    ck_assert_double_eq(e.memory[BK_PART_FIT] + e.seconds[BK_PART_FIT] + e.stage_seconds[BK_STAGE_FIT] + e.stage_disk[BK_STAGE_FIT], 0);
    ck_assert_double_eq(e.temporary_disk, 0); /* samples of statistics are not read */
}
END_TEST

START_TEST(offq_keeps_covariances_and_a_file)
{
    bk_estimate e = of_method("offq", "W4A4KV4-dynamic-asym-gauto", "init.from=minmax"), rtn = of_method("quarot", "W4A4KV4-dynamic-asym-gauto", NULL);
    const double file = 8.0 * 576 * 576 + 30 * (8.0 * 3 * 64 * 64 + 5.0 * 1536); /* R1; R3 of each head; order and signs of down's input */
    ck_assert_double_eq(e.stage_disk[BK_STAGE_FIT], file);
    ck_assert_double_eq(e.model_disk, rtn.model_disk + file);
    ck_assert_double_eq(e.temporary_disk, STATISTICS);
    ck_assert_double_gt(e.memory[BK_PART_FIT], 10 * 8.0 * 576 * 576);
    ck_assert_double_gt(e.seconds[BK_PART_FIT], 30 * 128 * bk_forward_flops(&small, 2048, 0) / 200e9);
    ck_assert_double_eq(e.seconds[BK_PART_FIT], e.stage_seconds[BK_STAGE_FIT]);
    ck_assert_double_gt(e.seconds[BK_PART_EVALUATE], rtn.seconds[BK_PART_EVALUATE]); /* weights turn by products */
}
END_TEST

/* A value for each weight in the stage; in training its value, gradient, best copy and, but under signs, two moments. */
START_TEST(learned_rounding_is_counted)
{
    double weights = 30.0 * (double)bk_config_block_weights(&small), one = weights / 30 * 4;
    bk_estimate affine = estimate(NULL), ada = estimate("quant.weight.quantizer=adaround"), sign = estimate("quant.weight.quantizer=signround");
    ck_assert_double_eq_tol(ada.stage_disk[BK_STAGE_INIT], affine.stage_disk[BK_STAGE_INIT] + 4 * weights, 0.01 * weights);
    ck_assert_double_eq_tol(sign.stage_disk[BK_STAGE_INIT], affine.stage_disk[BK_STAGE_INIT] + 4 * weights, 0.01 * weights);
    ck_assert_double_gt(sign.memory[BK_PART_TRAIN], affine.memory[BK_PART_TRAIN] + 2.9 * one);
    ck_assert_double_gt(ada.memory[BK_PART_TRAIN], sign.memory[BK_PART_TRAIN] + 1.9 * one);
    ck_assert_double_eq(ada.model_disk, affine.model_disk);
}
END_TEST

START_TEST(gptq_keeps_a_hessian_and_weights)
{
    bk_estimate e = of_method("gptq", "W4A16-g64", "data.statistics.samples=16"), rtn = of_method("rtn", "W4A16-g64", NULL);
    double weights = 30.0 * (double)bk_config_block_weights(&small);
    ck_assert_double_eq(e.stage_disk[BK_STAGE_INIT], rtn.stage_disk[BK_STAGE_INIT] + 4 * weights);
    ck_assert_double_gt(e.memory[BK_PART_INIT], rtn.memory[BK_PART_INIT] + 8.0 * 1536 * 1536 + STATISTICS / 8);
    ck_assert_double_eq(e.memory[BK_PART_FIT], 0);
    ck_assert_double_gt(e.seconds[BK_PART_INIT], 2 * 30 * 16 * bk_forward_flops(&small, 2048, 0) / 200e9);
    ck_assert_double_eq(e.seconds[BK_PART_INIT], e.stage_seconds[BK_STAGE_INIT]);
}
END_TEST

START_TEST(gptq_takes_longer_with_more_samples_and_clipping)
{
    double some = of_method("gptq", "W4A16-g64", "data.statistics.samples=64").seconds[BK_PART_INIT];
    double all = of_method("gptq", "W4A16-g64", NULL).seconds[BK_PART_INIT];
    double unclipped = of_method("gptq", "W4A16-g64", "gptq.mse_clip=false").seconds[BK_PART_INIT];
    ck_assert_double_gt(all, 1.5 * some);
    ck_assert_double_lt(all, 2 * some);
    ck_assert_double_lt(unclipped, all);
}
END_TEST

/* 30 blocks x 8 windows of 2048 tokens; the first row of the table that is initialised with nothing does not need them. */
START_TEST(spinquant_keeps_the_inputs_of_all_blocks)
{
    bk_estimate e = of_method("spinquant", "W4A4KV4-dynamic", "init.from=minmax");
    ck_assert_double_eq(e.temporary_disk, 30.0 * 8 * 2048 * 576 * 4);
    ck_assert_double_eq(e.stage_disk[BK_STAGE_FIT], 8.0 * 576 * 576);
    bk_estimate half = of_method("spinquant", "W4A4KV4-dynamic", "spin.steps=50");
    ck_assert_double_gt(e.seconds[BK_PART_FIT], 1.9 * half.seconds[BK_PART_FIT]);
    ck_assert_double_lt(e.seconds[BK_PART_FIT], 2.0 * half.seconds[BK_PART_FIT]);
    ck_assert_double_gt(e.memory[BK_PART_FIT], of_method("spinquant", "W4A4KV4-dynamic", "data.statistics.seqlen=512").memory[BK_PART_FIT]);
}
END_TEST

static const struct {
    const char *method, *less; /* and a setting that takes less time */
} fitters[] = {{"dfrot", "norm_rotation.rounds=10"}, {"dartquant", "norm_rotation.epochs=1"}, {"kurtail", "norm_rotation.rows=32"},
               {"smoothquant", "data.statistics.samples=64"}};

START_TEST(every_fit_takes_time_memory_and_disk)
{
    bk_estimate e = of_method(fitters[_i].method, "W4A4KV4-dynamic", NULL), less = of_method(fitters[_i].method, "W4A4KV4-dynamic", fitters[_i].less);
    ck_assert_double_gt(e.seconds[BK_PART_FIT], 1.03 * less.seconds[BK_PART_FIT]);
    ck_assert_double_gt(e.memory[BK_PART_FIT], 4.0 * (double)bk_config_block_weights(&small));
    ck_assert_double_gt(e.stage_disk[BK_STAGE_FIT], 0);
}
END_TEST

/* Twenty ratios at each of three sites, the last ones from the middle of the block on. */
START_TEST(awq_takes_the_time_of_its_ratios)
{
    double awq = of_method("awq", "W4A16-g64", NULL).seconds[BK_PART_FIT], one = of_method("smoothquant", "W4A16-g64", NULL).seconds[BK_PART_FIT];
    ck_assert_double_gt(awq, 20 * one);
    ck_assert_double_lt(awq, 60 * one);
}
END_TEST

START_TEST(large_streams_go_to_disk)
{
    bk_estimate e = estimate("data.detection.samples=1000");
    ck_assert_double_eq(e.temporary_disk, 1000.0 * 512 * 576 * 4);
    ck_assert_double_lt(e.memory[BK_PART_OUTLIERS], 1000.0 * 512 * 576 * 4);
    ck_assert_double_eq(estimate(NULL).temporary_disk, 0);
}
END_TEST

START_TEST(time_is_that_of_the_work)
{
    bk_estimate a = estimate(NULL), b = estimate("train.epochs=40");
    ck_assert_double_gt(b.seconds[BK_PART_TRAIN], 1.8 * a.seconds[BK_PART_TRAIN]);
    ck_assert_double_lt(b.seconds[BK_PART_TRAIN], 2.0 * a.seconds[BK_PART_TRAIN]);
    ck_assert_double_eq(a.seconds[BK_PART_INIT], b.seconds[BK_PART_INIT]);
}
END_TEST

START_TEST(estimates_beyond_any_integer_stay_finite)
{
    bk_estimate e = estimate("data.training.samples=1000000");
    ck_assert_double_gt(e.targets_disk, 3.5e12);
    ck_assert_double_lt(e.peak, 1024 * MIB); /* samples cost disk, not memory */
}
END_TEST

START_TEST(sequence_beyond_the_positions_is_refused)
{
    bk_estimate e;
    bk_error err = {0};
    const char *set = "data.training.seqlen=9000";
    ck_assert_int_eq(estimate_with(&set, 1, &e, &err), BK_EINVAL);
}
END_TEST

START_TEST(forward_work_counts_weights_and_visible_keys)
{
    bk_config c = small;
    double w = 2.0 * (double)bk_config_block_weights(&c);
    ck_assert_double_eq_tol(bk_forward_flops(&c, 3, 2), 3 * w + 4.0 * 576 * (3 + 4 + 5), 1e-3);
    c.sliding_window = 2;
    ck_assert_double_eq_tol(bk_forward_flops(&c, 3, 2), 3 * w + 4.0 * 576 * (3 + 4 + 4), 1e-3);
}
END_TEST

/* --- room --- */

static const bk_room plenty = {.memory = 1e12, .memory_from = "free memory", .run_disk = 1e12, .cache_disk = 1e12, .temporary_disk = 1e12};

START_TEST(what_fits_is_accepted)
{
    bk_error err = {0};
    bk_estimate e = estimate(NULL);
    ck_assert_int_eq(bk_room_check(&plenty, &e, dir, &err), BK_OK);
}
END_TEST

START_TEST(too_little_memory_names_stage_and_limit)
{
    bk_error err = {0};
    bk_room r = plenty;
    bk_estimate e = estimate(NULL);
    r.memory = 100 * MIB;
    r.memory_from = "cgroup limit";
    ck_assert_int_eq(bk_room_check(&r, &e, dir, &err), BK_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.msg, "cgroup limit"));
    ck_assert_ptr_nonnull(strstr(err.msg, "the stage "));
}
END_TEST

START_TEST(too_little_disk_is_no_space)
{
    bk_error err = {0};
    bk_room r = plenty;
    bk_estimate e = estimate(NULL);
    r.run_disk = 200 * MIB;
    ck_assert_int_eq(bk_room_check(&r, &e, dir, &err), BK_ENOSPC);
    ck_assert_ptr_nonnull(strstr(err.msg, "data.training.samples"));
}
END_TEST

START_TEST(targets_that_are_there_are_not_counted_again)
{
    char path[128];
    bk_error err = {0};
    bk_room r = plenty;
    bk_estimate e = estimate(NULL);
    put("targets", "", path);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/targets", dir);
    ck_assert_int_eq(bk_mkdir_p(path, &err), BK_OK);
    strcat(path, "/000.h5");
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(ftruncate(fileno(f), (off_t)(e.targets_disk + e.model_disk)), 0);
    fclose(f);
    r.run_disk = 10 * MIB;
    bk_status st = bk_room_check(&r, &e, dir, &err);
    ck_assert_msg(!st, "%s", err.msg);
}
END_TEST

START_TEST(disks_that_are_one_are_added_up)
{
    bk_error err = {0};
    bk_room r = plenty;
    bk_estimate e = {.targets_disk = 6, .temporary_disk = 6};
    r.run_disk = r.temporary_disk = 10;
    ck_assert_int_eq(bk_room_check(&r, &e, dir, &err), BK_OK);
    r.temporary_with_run = true;
    ck_assert_int_eq(bk_room_check(&r, &e, dir, &err), BK_ENOSPC);
}
END_TEST

START_TEST(limited_address_space_is_seen)
{
    bk_room room;
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    struct rlimit was, as;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &was), 0);
    as = was;
    as.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)(512 * MIB);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &as), 0);
    bk_room_measure(dir, &room);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &was), 0);
    ck_assert_double_le(room.memory, 512 * MIB);
    ck_assert_double_gt(room.memory, 0);
}
END_TEST

START_TEST(a_run_folder_that_is_not_there_yet_has_the_disk_above_it)
{
    char path[128];
    bk_room a, b;
    snprintf(path, sizeof path, "%s/not/there/yet", dir);
    bk_room_measure(path, &a);
    bk_room_measure(dir, &b);
    ck_assert_double_gt(a.run_disk, 0.5 * b.run_disk);
}
END_TEST

/* --- shapes --- */

START_TEST(config_json_alone_gives_the_shapes)
{
    char path[128];
    bk_config c;
    bool known, weights;
    bk_error err = {0};
    put("config.json", llama3, path);
    const char *where[] = {path, dir};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(bk_plan_shapes(where[i], &c, &known, &weights, &err), BK_OK);
        ck_assert(known && !weights);
        ck_assert_int_eq(c.hidden, 4096);
    }
    ck_assert_int_eq(bk_plan_shapes("/nowhere/at/all", &c, &known, &weights, &err), BK_OK);
    ck_assert(!known);
}
END_TEST

START_TEST(group_that_does_not_divide_lists_the_layers)
{
    const char *sets[] = {"scheme=W4A16-g128"};
    bk_error err = {0};
    bk_run_config *c = malloc(sizeof *c);
    ck_assert_ptr_nonnull(c);
    *c = config(sets, 1);
    ck_assert_int_eq(bk_plan_quantizers(c, &small, &err), BK_EINVAL); /* 576 = 4.5 x 128, but 1536 = 12 x 128 */
    ck_assert_ptr_nonnull(strstr(err.msg, "q, k, v, o, gate, up:"));
    free(c);
}
END_TEST

/* --- samples --- */

#define TEXT_TOKENS 1000 /* bytes are tokens; with the BOS in front 1001 where there is no prefix */

/* A config of a made model, and of a text that lies there if there is a tokenizer to count with. */
static bk_run_config *made_config(const char *const *sets, int n, bool tokenizer)
{
    static const char *const key[] = {"model", "data.detection.text", "data.calibration.text", "data.training.text", "data.evaluation.text"};
    char text[TEXT_TOKENS + 1], model[128], path[128], put_in[5][256];
    const char *all[16];
    bk_config shape;
    bk_synth *s;
    bk_error err = {0};
    memset(text, 'a', TEXT_TOKENS);
    text[TEXT_TOKENS] = 0;
    put("text.txt", text, path);
    snprintf(model, sizeof model, "%s/m", dir);
    ck_assert_int_eq(bk_synth_shape("tiny", &shape, &err), BK_OK);
    ck_assert_int_eq(bk_synth_create(&shape, 1, &s, &err), BK_OK);
    if (tokenizer) ck_assert_int_eq(bk_synth_write(s, model, 0, &err), BK_OK);
    bk_synth_free(s);
    for (int i = 0; i < 5; i++) {
        snprintf(put_in[i], sizeof put_in[i], "%s=%s", key[i], i ? path : model);
        all[i] = put_in[i];
    }
    for (int i = 0; i < n; i++) all[5 + i] = sets[i];
    bk_run_config *c = malloc(sizeof *c);
    ck_assert_ptr_nonnull(c);
    *c = config(all, 5 + n);
    return c;
}

static bk_status samples_with(const char *const *sets, int n, bk_sample_counts *out, bk_plan_set set[BK_PLAN_SETS], bk_error *err)
{
    bk_run_config *c = made_config(sets, n, true);
    bk_status st = bk_plan_samples(c, c->model, set, err);
    if (!st) *out = bk_plan_counts(c, set);
    free(c);
    return st;
}

static const char *const hundred[] = {"data.detection.seqlen=100",  "data.detection.samples=9999",  "data.calibration.seqlen=100",
                                      "data.training.seqlen=100",   "data.training.samples=9",      "data.evaluation.seqlen=300",
                                      "data.evaluation.windows=1000000"};

START_TEST(samples_are_counted_as_the_text_has_them)
{
    bk_plan_set set[BK_PLAN_SETS];
    bk_sample_counts n;
    bk_error err = {0};
    bk_status st = samples_with(hundred, 7, &n, set, &err);
    ck_assert_msg(!st, "%s", err.msg);
    ck_assert_int_eq(n.detection, 10);
    ck_assert_int_eq(n.calibration, 4);
    ck_assert_int_eq(n.training, 9);
    ck_assert_int_eq(n.validation, 1); /* of 8 */
    ck_assert_int_eq(n.evaluation, 3);
    for (int i = 0; i < BK_PLAN_SETS; i++) ck_assert(i == BK_PLAN_STATISTICS ? !set[i].used : set[i].used && set[i].source == BK_COUNTED);
}
END_TEST

START_TEST(samples_without_a_tokenizer_go_by_size)
{
    bk_run_config *c = made_config(hundred, 7, false);
    bk_plan_set set[BK_PLAN_SETS];
    bk_error err = {0};
    bk_status st = bk_plan_samples(c, c->model, set, &err);
    ck_assert_msg(!st, "%s", err.msg);
    ck_assert_int_eq(set[BK_PLAN_DETECTION].given, TEXT_TOKENS / 4 / 100);
    ck_assert_int_eq(set[BK_PLAN_DETECTION].source, BK_BY_SIZE);
    ck_assert_int_eq(set[BK_PLAN_EVALUATION].given, 1);
    free(c);
}
END_TEST

/* What `run` refuses, `plan` refuses too. */
static const char *const too_short[] = {"data.evaluation.seqlen=1001", "data.detection.seqlen=1002", "data.training.seqlen=1001", "strict=true"};

START_TEST(text_that_is_too_short_is_refused)
{
    bk_plan_set set[BK_PLAN_SETS];
    bk_sample_counts n;
    bk_error err = {0};
    const char *sets[8];
    memcpy(sets, hundred, sizeof hundred);
    sets[7] = too_short[_i];
    ck_assert_int_eq(samples_with(sets, 8, &n, set, &err), BK_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "samples"));
}
END_TEST

START_TEST(batch_counts_no_samples_that_are_not_there)
{
    ck_assert_double_eq(estimate("train.batch=100000").memory[BK_PART_TRAIN], estimate("train.batch=64").memory[BK_PART_TRAIN]);
}
END_TEST

/* --- the verb --- */

#define CONFIG "model: nowhere\nscheme: W4A4KV4-static\ndata:\n  detection: {text: t}\n  training: {text: t}\n  evaluation: {text: t}\n"

static int plan_verb(const char *model, const char *config_path, const char *set)
{
    char *argv[] = {(char *)"plan", (char *)"--json", (char *)"--model-config", (char *)model, (char *)config_path, (char *)"--set", (char *)set};
    int out = dup(1), errors = dup(2), nowhere = open("/dev/null", O_WRONLY);
    fflush(stdout);
    dup2(nowhere, 1);
    dup2(nowhere, 2);
    int code = bk_verb_plan(set ? 7 : 5, argv);
    fflush(stdout);
    dup2(out, 1); /* Check reports there when it does not fork */
    dup2(errors, 2);
    close(out);
    close(errors);
    close(nowhere);
    return code;
}

static const char *const paper[] = {"w4a4kv4-static", "w4a8kv4-static"};

START_TEST(published_configs_are_accepted_without_weights)
{
    char json[128], path[128];
    put("config.json", llama3, json);
    snprintf(path, sizeof path, "configs/paper/llama-3-8b-%s.yaml", paper[_i]);
    if (!bk_exists(path)) return; /* run from another folder */
    ck_assert_int_eq(plan_verb(json, path, NULL), BK_EXIT_OK);
}
END_TEST

static const struct {
    const char *set;
    int code;
} verb_cases[] = {
    {NULL, BK_EXIT_OK},
    {"data.training.samples=1000000", BK_EXIT_OK}, /* does not fit, says so, and has planned */
    {"scheme=W4A16-g128", BK_EXIT_OK},
    {"scheme=W4A16-g96", BK_EXIT_USAGE}, /* 4096 = 42.7 x 96 */
    {"data.training.seqlen=100000", BK_EXIT_USAGE},
    {"no.such.key=1", BK_EXIT_USAGE},
};

START_TEST(exit_codes_of_the_verb)
{
    char json[128], path[128];
    put("config.json", llama3, json);
    put("c.yaml", CONFIG, path);
    ck_assert_int_eq(plan_verb(json, path, verb_cases[_i].set), verb_cases[_i].code);
}
END_TEST

START_TEST(model_of_another_kind_is_a_bad_input_file)
{
    char json[128], path[128];
    put("config.json", "{\"model_type\": \"gpt2\"}", json);
    put("c.yaml", CONFIG, path);
    ck_assert_int_eq(plan_verb(json, path, NULL), BK_EXIT_INPUT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("plan");
    TCase *t = tcase_create("plan");
    tcase_add_checked_fixture(t, enter, leave);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, targets_follow_the_layout);
    tcase_add_test(t, shared_targets_move_from_the_run_to_a_stage);
    tcase_add_test(t, training_memory_holds_all_copies_of_the_parameters);
    tcase_add_test(t, memory_grows_with_the_batch);
    tcase_add_test(t, a_search_counts_among_the_outliers);
    tcase_add_test(t, what_fits_nothing_takes_nothing_for_it);
    tcase_add_test(t, offq_keeps_covariances_and_a_file);
    tcase_add_test(t, learned_rounding_is_counted);
    tcase_add_test(t, gptq_keeps_a_hessian_and_weights);
    tcase_add_test(t, gptq_takes_longer_with_more_samples_and_clipping);
    tcase_add_test(t, spinquant_keeps_the_inputs_of_all_blocks);
    tcase_add_loop_test(t, every_fit_takes_time_memory_and_disk, 0, sizeof fitters / sizeof fitters[0]);
    tcase_add_test(t, awq_takes_the_time_of_its_ratios);
    tcase_add_test(t, large_streams_go_to_disk);
    tcase_add_test(t, time_is_that_of_the_work);
    tcase_add_test(t, estimates_beyond_any_integer_stay_finite);
    tcase_add_test(t, sequence_beyond_the_positions_is_refused);
    tcase_add_test(t, forward_work_counts_weights_and_visible_keys);
    tcase_add_test(t, what_fits_is_accepted);
    tcase_add_test(t, too_little_memory_names_stage_and_limit);
    tcase_add_test(t, too_little_disk_is_no_space);
    tcase_add_test(t, targets_that_are_there_are_not_counted_again);
    tcase_add_test(t, disks_that_are_one_are_added_up);
    tcase_add_test(t, limited_address_space_is_seen);
    tcase_add_test(t, a_run_folder_that_is_not_there_yet_has_the_disk_above_it);
    tcase_add_test(t, config_json_alone_gives_the_shapes);
    tcase_add_test(t, group_that_does_not_divide_lists_the_layers);
    tcase_add_test(t, samples_are_counted_as_the_text_has_them);
    tcase_add_test(t, samples_without_a_tokenizer_go_by_size);
    tcase_add_loop_test(t, text_that_is_too_short_is_refused, 0, sizeof too_short / sizeof too_short[0]);
    tcase_add_test(t, batch_counts_no_samples_that_are_not_there);
    tcase_add_loop_test(t, published_configs_are_accepted_without_weights, 0, 2);
    tcase_add_test(t, model_of_another_kind_is_a_bad_input_file);
    tcase_add_loop_test(t, exit_codes_of_the_verb, 0, (int)(sizeof verb_cases / sizeof verb_cases[0]));
    suite_add_tcase(s, t);
    return run_suite(s);
}
