/* generate, dump and outliers, through their handlers, on a model that was made for them: what it does is known beforehand.
 */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "blocks/names.h"
#include "blocks/weights.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/store.h"
#include "tests/tiny_model.h"

/* --- the model ---
 * Tokens are the 256 bytes and </s>. Attention does nothing; the letter after x is x + 1, after z comes </s>. A '.' has a
 * large last channel that only gate and up read: it is an upper outlier at down_raw and block_out, and, since the norm
 * makes its other channels small, a lower one at query and key. */
#define EOS 256
#define VOCAB 257
#define FLAG 300.0f

static char folder[BK_TINY_PATH], path[BK_TINY_PATH + 64];
static bk_error err;

static void must(bk_status st)
{
    if (st) ck_abort_msg("%s: %s", bk_status_name(st), err.msg);
}

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static float random_value(uint64_t stream, int64_t i)
{
    return (float)bk_rng_normal(stream, BK_RNG_TEST, (uint64_t)i);
}

static float embedding(int64_t id, int64_t channel, int64_t hidden)
{
    if (channel == hidden - 1) return id == '.' ? FLAG : 0;
    return random_value(1, id * hidden + channel);
}

typedef struct filler {
    bk_st_writer *w;
    bool put;
    const bk_config *c;
    int linear; /* of the tensor that is being made */
} filler;

static float value(const filler *f, const char *kind, int64_t row, int64_t col, int64_t cols)
{
    int64_t last = f->c->hidden - 1;
    if (!strcmp(kind, "norm")) return 1;
    if (!strcmp(kind, "embed")) return embedding(row, col, f->c->hidden);
    if (!strcmp(kind, "head")) {
        int64_t before = row == EOS ? 'z' : row == 'z' + 1 ? -1 : row - 1;
        return before < 0 ? 0 : embedding(before, col, f->c->hidden);
    }
    if (f->linear == BK_W_O) return 0;
    if (f->linear == BK_W_DOWN) return 1e-4f * random_value(20, row * cols + col);
    bool mlp = f->linear == BK_W_GATE || f->linear == BK_W_UP;
    if (col == last) return mlp && row == 0 ? 40 : 0;
    return random_value(10 + (uint64_t)f->linear, row * cols + col) / sqrtf((float)cols);
}

static void tensor(filler *f, const char *name, const char *kind, int64_t rows, int64_t cols)
{
    int64_t dim[2] = {rows, cols}, n = rows * (cols ? cols : 1);
    if (!f->put) {
        must(bk_st_writer_declare(f->w, name, BK_ST_F32, cols ? 2 : 1, dim, &err));
        return;
    }
    float *x = malloc((size_t)n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (int64_t i = 0; i < n; i++) x[i] = value(f, kind, cols ? i / cols : i, cols ? i % cols : 0, cols);
    must(bk_st_writer_put(f->w, name, x, (size_t)n * sizeof *x, &err));
    free(x);
}

static void tensors(filler *f)
{
    char name[128];
    tensor(f, "model.embed_tokens.weight", "embed", VOCAB, f->c->hidden);
    for (int l = 0; l < f->c->layers; l++) {
        for (f->linear = 0; f->linear < BK_W_COUNT; f->linear++) {
            int64_t out, in;
            bk_linear_shape(f->c, f->linear, &out, &in);
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, bk_linear_hf[f->linear]);
            tensor(f, name, "linear", out, in);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        tensor(f, name, "norm", f->c->hidden, 0);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        tensor(f, name, "norm", f->c->hidden, 0);
    }
    tensor(f, "model.norm.weight", "norm", f->c->hidden, 0);
    tensor(f, "lm_head.weight", "head", VOCAB, f->c->hidden);
}

static void write_tokenizer(void)
{
    FILE *to = fopen(in_folder("tokenizer.json"), "w");
    ck_assert_ptr_nonnull(to);
    fputs("{\"added_tokens\": [{\"id\": 256, \"content\": \"</s>\", \"special\": true}], \"decoder\": {\"type\": "
          "\"ByteFallback\"},\n"
          "\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"merges\": [], \"vocab\": {",
          to);
    for (int i = 0; i < 256; i++) fprintf(to, "%s\"<0x%02X>\": %d", i ? ", " : "", i, i);
    fputs("}}}\n", to);
    ck_assert_int_eq(fclose(to), 0);
    ck_assert_ptr_nonnull(to = fopen(in_folder("tokenizer_config.json"), "w"));
    fputs("{\"eos_token\": \"</s>\"}\n", to);
    ck_assert_int_eq(fclose(to), 0);
}

/* Lines of 32 bytes with one '.' each, so that every window of 32 has one. */
static void write_text(void)
{
    FILE *to = fopen(in_folder("text.txt"), "w");
    ck_assert_ptr_nonnull(to);
    for (int i = 0; i < 40; i++) fputs("the quick brown fox. jumps over\n", to);
    ck_assert_int_eq(fclose(to), 0);
}

static void setup(void)
{
    bk_config c = bk_tiny_config();
    c.vocab = VOCAB;
    c.max_positions = 128;
    strcpy(folder, "/tmp/bk_verbs_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    bk_json *config = bk_config_to_json(&c);
    must(bk_json_save(config, in_folder("config.json"), &err));
    bk_json_free(config);
    filler f = {.c = &c};
    must(bk_st_writer_new(in_folder("model.safetensors"), &f.w, &err));
    tensors(&f);
    f.put = true;
    tensors(&f);
    must(bk_st_writer_commit(f.w, &err));
    write_tokenizer();
    write_text();
}

static void teardown(void)
{
    must(bk_remove_tree(folder, &err));
}

/* --- calling a verb --- */

static char printed[1 << 20];

/* Arguments up to NULL; what the verb prints ends in `printed`. */
static int call(int (*verb)(int, char **), const char *name, ...)
{
    char *argv[34] = {(char *)name, "--threads", "1"}, file[] = "/tmp/bk_verbs_out_XXXXXX";
    int argc = 3;
    va_list ap;
    va_start(ap, name);
    while (argc < 33 && (argv[argc] = va_arg(ap, char *))) argc++;
    va_end(ap);
    fflush(stdout);
    int to = mkstemp(file), kept = dup(1);
    ck_assert_int_ge(to, 0);
    unlink(file);
    dup2(to, 1);
    int code = verb(argc, argv);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    ssize_t n = pread(to, printed, sizeof printed - 1, 0);
    close(to);
    ck_assert_int_ge(n, 0);
    printed[n] = 0;
    return code;
}

static bk_json *printed_json(void)
{
    bk_json *o;
    must(bk_json_parse(printed, strlen(printed), "output", &o, &err));
    return o;
}

/* --- generate --- */

START_TEST(generate_follows_the_largest_logit)
{
    ck_assert_int_eq(
        call(bk_verb_generate, "generate", "--model", folder, "--prompt", "say abc", "--tokens", "5", "--json", NULL), 0);
    bk_json *o = printed_json();
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "text"), ""), "defgh");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ids")), 5);
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 0), -1), 'd');
    bk_json_free(o);
}
END_TEST

START_TEST(generate_prints_text_alone)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", folder, "--prompt", "k", "--tokens", "3", NULL), 0);
    ck_assert_str_eq(printed, "lmn\n");
}
END_TEST

START_TEST(generate_stops_at_the_end_of_the_text)
{
    ck_assert_int_eq(
        call(bk_verb_generate, "generate", "--model", folder, "--prompt", "x", "--tokens", "20", "--json", NULL), 0);
    bk_json *o = printed_json();
    ck_assert_str_eq(bk_json_str(bk_json_get(o, "text"), ""), "yz");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "ids")), 3);
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 2), -1), EOS);
    bk_json_free(o);
}
END_TEST

START_TEST(generate_rotated_and_behind_a_prefix_says_the_same)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", folder, "--prompt", "k", "--tokens", "3", "--rotate",
                          "all", "--prefix", "46,10", NULL),
                     0);
    ck_assert_str_eq(printed, "lmn\n");
}
END_TEST

START_TEST(generate_text_that_is_no_utf8_is_still_json)
{
    ck_assert_int_eq(
        call(bk_verb_generate, "generate", "--model", folder, "--prompt", "\x7f", "--tokens", "2", "--json", NULL), 0);
    bk_json *o = printed_json();
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(o, "ids"), 0), -1), 0x80);
    bk_json_free(o);
}
END_TEST

START_TEST(generate_refuses_an_empty_prompt)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", folder, "--prompt", "", NULL), BK_EXIT_USAGE);
}
END_TEST

START_TEST(generate_refuses_more_tokens_than_positions)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", folder, "--prompt", "abc", "--tokens", "127", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

/* --- dump --- */

#define DUMP(...) call(bk_verb_dump, "dump", "--model", folder, "--text", text, "--out", out, __VA_ARGS__, NULL)

static char text[BK_TINY_PATH + 64], out[BK_TINY_PATH + 64];

static void setup_dump(void)
{
    setup();
    strcpy(text, in_folder("text.txt"));
    strcpy(out, in_folder("dump.h5"));
}

/* One dataset of the dump as f32. */
static float *read_dataset(const char *dataset, int64_t *width, bk_store_type *type)
{
    bk_store *s;
    bk_dset *d;
    must(bk_store_open(&s, out, "brick.dump", &err));
    must(bk_dset_open(&d, s, dataset, &err));
    const bk_dset_info *info = bk_dset_info_of(d);
    ck_assert_int_eq(info->rank, 3);
    *width = info->dim[2];
    *type = info->type;
    float *x = malloc((size_t)(info->dim[0] * info->sample_len) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    must(bk_dset_read(d, 0, info->dim[0], x, &err));
    bk_dset_close(d);
    bk_store_close(s);
    return x;
}

START_TEST(dump_stores_what_passed_the_site)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "attn_in", "--blocks", "0", "--seqlen", "32", "--windows", "3", "--dtype", "f32"), 0);
    float *x = read_dataset("/blocks/000/sites/attn_in", &width, &type);
    ck_assert_int_eq(width, 64);
    ck_assert_int_eq(type, BK_STORE_F32);
    const char *line = "the quick brown fox. jumps over\n";
    for (int t = 0; t < 3 * 32; t++) {
        double square = 0;
        for (int c = 0; c < 64; c++) square += pow((double)embedding(line[t % 32], c, 64), 2);
        for (int c = 0; c < 64; c++)
            ck_assert_double_eq_tol((double)x[t * 64 + c],
                                    (double)embedding(line[t % 32], c, 64) / sqrt(square / 64 + 1e-5), 1e-4);
    }
    free(x);
}
END_TEST

START_TEST(dump_has_the_chosen_blocks_and_sites_and_no_others)
{
    bk_store *s;
    ck_assert_int_eq(DUMP("--sites", "down_raw,key", "--blocks", "1", "--seqlen", "32", "--windows", "2"), 0);
    must(bk_store_open(&s, out, "brick.dump", &err));
    ck_assert(bk_store_has(s, "/blocks/001/sites/key") && bk_store_has(s, "/blocks/001/sites/down_raw"));
    ck_assert(!bk_store_has(s, "/blocks/000") && !bk_store_has(s, "/blocks/001/sites/value"));
    int32_t ids[2 * 32];
    must(bk_store_get(s, "/tokens/input_ids", BK_STORE_I32, 2, (int64_t[]){2, 32}, ids, &err));
    ck_assert_int_eq(ids[0], 't');
    bk_store_close(s);
}
END_TEST

/* The '.' makes one value of 1e5 in a sample. */
START_TEST(dump_saturates_and_goes_on)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--blocks", "0", "--seqlen", "32", "--windows", "2", "--json"), 0);
    bk_json *o = printed_json();
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "saturated"), -1), 2);
    bk_json_free(o);
    float *x = read_dataset("/blocks/000/sites/down_raw", &width, &type);
    ck_assert_int_eq(type, BK_STORE_F16);
    ck_assert_float_eq(x[19 * width], 65504);
    free(x);
}
END_TEST

START_TEST(dump_widens_when_asked)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--blocks", "0", "--seqlen", "32", "--windows", "2", "--overflow", "f32"),
                     0);
    float *x = read_dataset("/blocks/000/sites/down_raw", &width, &type);
    ck_assert_int_eq(type, BK_STORE_F32);
    ck_assert_float_gt(x[19 * width], 65504);
    free(x);
}
END_TEST

START_TEST(dump_stops_when_asked)
{
    ck_assert_int_eq(DUMP("--sites", "down_raw", "--seqlen", "32", "--windows", "2", "--overflow", "error"),
                     BK_EXIT_NUMERIC);
    ck_assert(!bk_exists(out));
}
END_TEST

/* HDF5 forgets a chunk that is alone in its dataset, if it may. */
START_TEST(dump_of_one_sample_is_read_back)
{
    int64_t width;
    bk_store_type type;
    ck_assert_int_eq(DUMP("--sites", "block_out", "--seqlen", "32", "--windows", "1"), 0);
    float *x = read_dataset("/blocks/001/sites/block_out", &width, &type);
    ck_assert_float_eq_tol(x[19 * width + 63], FLAG, FLAG / 4);
    free(x);
}
END_TEST

START_TEST(dump_names_the_site_that_was_meant)
{
    ck_assert_int_eq(DUMP("--sites", "donw_in"), BK_EXIT_USAGE);
    ck_assert(!bk_exists(out));
}
END_TEST

START_TEST(dump_refuses_bad_blocks)
{
    static const char *const bad[] = {"2", "1-0", "0,", "-1", "0-", "", "0-99999999999999999999", "x"};
    ck_assert_int_eq(DUMP("--sites", "key", "--blocks", bad[_i]), BK_EXIT_USAGE);
}
END_TEST

START_TEST(dump_refuses_a_device_as_output)
{
    strcpy(out, "/dev/full");
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(dump_does_not_replace_a_file_that_is_no_dump)
{
    FILE *f = fopen(out, "w");
    ck_assert_ptr_nonnull(f);
    fputs("not yours", f);
    fclose(f);
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
    char kept[16] = "";
    f = fopen(out, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(kept, sizeof kept, f));
    fclose(f);
    ck_assert_str_eq(kept, "not yours");
}
END_TEST

START_TEST(dump_does_not_replace_another_file_of_a_run)
{
    bk_store *s;
    bk_store_meta meta = {.schema = "brick.checkpoint", .model = "m"};
    ck_assert_int_eq(bk_store_create(&s, out, &meta, 0, &err), BK_OK);
    ck_assert_int_eq(bk_store_commit(s, &err), BK_OK);
    ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), BK_EXIT_USAGE);
    ck_assert_int_eq(bk_store_open(&s, out, "brick.checkpoint", &err), BK_OK);
    bk_store_close(s);
}
END_TEST

START_TEST(dump_replaces_a_dump)
{
    for (int i = 0; i < 2; i++) ck_assert_int_eq(DUMP("--sites", "key", "--seqlen", "32", "--windows", "1"), 0);
}
END_TEST

START_TEST(dump_that_does_not_fit_leaves_nothing)
{
    struct rlimit before;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){16384, before.rlim_max}), 0);
    int code = DUMP("--sites", "down_in", "--seqlen", "32", "--windows", "8");
    setrlimit(RLIMIT_FSIZE, &before);
    ck_assert_int_eq(code, BK_EXIT_SPACE);
    ck_assert(!bk_exists(out));
    strcat(out, ".partial");
    ck_assert(!bk_exists(out));
}
END_TEST

/* --- outliers --- */

#define OUTLIERS(...)                                                                                                      \
    call(bk_verb_outliers, "outliers", "--model", folder, "--text", text, "--seqlen", "32", "--samples", "4", __VA_ARGS__, \
         NULL)

static const bk_json *stage_of(const bk_json *o, size_t i)
{
    return bk_json_at(bk_json_get(o, "stages"), i);
}

static double ratio_of(const bk_json *stage, size_t block, const char *site, const char *which)
{
    const bk_json *sites = bk_json_get(bk_json_at(bk_json_get(stage, "blocks"), block), "sites");
    return bk_json_num(bk_json_get(bk_json_get(sites, site), which), -1);
}

START_TEST(outliers_finds_the_planted_tokens)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--rotate", "none"), 0);
    bk_json *o = printed_json();
    const bk_json *s = stage_of(o, 0);
    static const char *const sides[] = {"upper", "lower"};
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "stages")), 1);
    for (int k = 0; k < 2; k++) {
        const bk_json *side = bk_json_get(s, sides[k]), *tokens = bk_json_get(side, "tokens");
        ck_assert_int_eq(bk_json_int(bk_json_get(side, "count"), -1), 4);
        for (size_t i = 0; i < bk_json_size(tokens); i++)
            ck_assert_str_eq(bk_json_str(bk_json_get(bk_json_at(tokens, i), "text"), "?"), ".");
    }
    ck_assert_int_eq(bk_json_int(bk_json_get(s, "shared"), -1), 4);
    ck_assert_double_gt(ratio_of(s, 0, "down_raw", "top1_over_median"), 64);
    ck_assert_double_gt(ratio_of(s, 0, "block_out", "top1_over_median"), 64);
    ck_assert_double_gt(ratio_of(s, 0, "query", "median_over_min1"), 8);
    ck_assert_double_lt(ratio_of(s, 0, "query", "top1_over_median"), 8);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_chooses_the_prefix_from_what_it_found)
{
    ck_assert_int_eq(OUTLIERS("--json"), 0);
    bk_json *o = printed_json();
    const bk_json *prefix = bk_json_get(o, "prefix");
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "stages")), 3);
    ck_assert_uint_eq(bk_json_size(bk_json_get(prefix, "ids")), 2); /* a model without BOS ends the prefix with its EOS */
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(prefix, "ids"), 0), -1), '.');
    ck_assert_int_eq(bk_json_int(bk_json_at(bk_json_get(prefix, "ids"), 1), -1), EOS);
    ck_assert_str_eq(bk_json_str(bk_json_at(bk_json_get(prefix, "text"), 0), "?"), ".");
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_rotation_lowers_channels_but_not_down_raw)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none"), 0);
    bk_json *o = printed_json();
    double before = ratio_of(stage_of(o, 0), 0, "down_raw", "top1_over_median"),
           after = ratio_of(stage_of(o, 1), 0, "down_raw", "top1_over_median");
    ck_assert_double_eq_tol(after / before, 1, 1e-3);
    before = ratio_of(stage_of(o, 0), 0, "block_out", "top1_over_median");
    ck_assert_double_lt(ratio_of(stage_of(o, 1), 0, "block_out", "top1_over_median"), before / 2);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_error_sits_on_the_outlier)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--rotate", "none", "--block", "1"), 0);
    bk_json *o = printed_json();
    const bk_json *e = bk_json_get(stage_of(o, 0), "error"), *share = bk_json_get(e, "share_of_worst");
    ck_assert_int_eq(bk_json_int(bk_json_get(o, "error_block"), -1), 1);
    ck_assert_double_gt(bk_json_num(bk_json_get(e, "mse"), -1), 0);
    double one = bk_json_num(bk_json_at(share, 0), -1), two = bk_json_num(bk_json_at(share, 1), -1),
           three = bk_json_num(bk_json_at(share, 2), -1);
    ck_assert_double_gt(one, 0.5);
    ck_assert(one <= two && two <= three && three <= 1 + 1e-12);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_columns_of_a_table_align)
{
    ck_assert_int_eq(OUTLIERS("--rotate", "all"), 0);
    const char *head = strstr(printed, "block site"), *row = head ? strchr(head, '\n') : NULL;
    ck_assert_ptr_nonnull(row);
    int64_t width = row - head;
    for (int i = 0; i < 2 * BK_SITE_COUNT; i++, row = strchr(row + 1, '\n'))
        ck_assert_int_eq(strchr(row + 1, '\n') - row - 1, width);
}
END_TEST

START_TEST(outliers_refuses_a_block_that_is_not_there)
{
    ck_assert_int_eq(OUTLIERS("--block", "2"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_sequences_that_leave_no_room_for_a_prefix)
{
    ck_assert_int_eq(call(bk_verb_outliers, "outliers", "--model", folder, "--text", text, "--seqlen", "128", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_an_unknown_scheme)
{
    ck_assert_int_eq(OUTLIERS("--scheme", "W9Z4"), BK_EXIT_USAGE);
}
END_TEST

/* --- a run's quantized model --- */

static void setup_run(void)
{
    char config[BK_TINY_PATH + 64], run[BK_TINY_PATH + 64];
    setup_dump();
    strcpy(run, in_folder("run"));
    strcpy(config, in_folder("run.yaml"));
    setenv("BRICK_CACHE", in_folder("cache"), 1);
    FILE *to = fopen(config, "w");
    ck_assert_ptr_nonnull(to);
    fprintf(to, "model: %s\nscheme: W8A8KV8-dynamic\ndata:\n", folder);
    static const char *const part[] = {"detection", "calibration", "training", "evaluation"};
    for (int i = 0; i < 4; i++)
        fprintf(to, "  %s: {text: %s, %s: 2, seqlen: 32%s}\n", part[i], text, i == 3 ? "windows" : "samples",
                i == 2 ? ", validation: 1" : "");
    fputs("init: {search: false}\ntrain: {epochs: 0, batch: 2}\n", to);
    ck_assert_int_eq(fclose(to), 0);
    char *argv[] = {"run", config, "--out", run, NULL};
    int kept = dup(1), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
    int code = bk_verb_run(4, argv);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    close(nowhere);
    ck_assert_int_eq(code, 0);
}

/* What the model does does not hang on its linears, so 8 bits leave it as it was. */
START_TEST(quantized_model_generates)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", in_folder("run"), "--prompt", "k", "--tokens", "3", NULL),
                     0);
    ck_assert_str_eq(printed, "lmn\n");
}
END_TEST

START_TEST(quantized_model_is_dumped_behind_its_own_prefix)
{
    bk_store *s;
    ck_assert_int_eq(call(bk_verb_dump, "dump", "--model", in_folder("run"), "--text", text, "--out", out, "--sites", "key",
                          "--seqlen", "32", "--windows", "2", NULL),
                     0);
    must(bk_store_open(&s, out, "brick.dump", &err));
    ck_assert_int_eq(bk_store_meta_of(s)->prefix_len, 2);
    bk_store_close(s);
}
END_TEST

START_TEST(quantized_model_refuses_another_prefix)
{
    ck_assert_int_eq(call(bk_verb_generate, "generate", "--model", in_folder("run"), "--prompt", "k", "--prefix", "1", NULL),
                     BK_EXIT_USAGE);
}
END_TEST

START_TEST(quantized_model_has_no_outliers_to_look_for)
{
    ck_assert_int_eq(call(bk_verb_outliers, "outliers", "--model", in_folder("run"), "--text", text, NULL), BK_EXIT_USAGE);
}
END_TEST

/* --- outliers --offq --- */

static const bk_json *offq_of(const bk_json *o, size_t i)
{
    return bk_json_at(bk_json_get(o, "offq"), i);
}

static double share_of(const bk_json *offq, const char *basis, const char *rows)
{
    return bk_json_num(bk_json_get(bk_json_get(offq, basis), rows), NAN);
}

/* What a '.' sticks out by is one channel: one direction holds nearly all of the top tokens. No other basis holds more of a set of tokens than
 * its own. */
START_TEST(outliers_offq_finds_the_planted_direction)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = printed_json();
    const bk_json *q = offq_of(o, 0);
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "offq")), 1);
    ck_assert_str_eq(bk_json_str(bk_json_get(q, "stage"), "?"), "original");
    double top = share_of(q, "top_basis", "top"), all = share_of(q, "all_basis", "all");
    ck_assert_double_gt(top, 0.95);
    ck_assert_double_lt(share_of(q, "top_basis", "all"), 0.2);
    ck_assert_double_le(share_of(q, "all_basis", "top"), top);
    ck_assert_double_lt(share_of(q, "top_basis", "all"), all);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_is_measured_behind_the_prefix_too)
{
    ck_assert_int_eq(OUTLIERS("--json", "--offq"), 0);
    bk_json *o = printed_json();
    ck_assert_uint_eq(bk_json_size(bk_json_get(o, "offq")), 2);
    ck_assert_str_eq(bk_json_str(bk_json_get(offq_of(o, 1), "stage"), "?"), "with prefix");
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_takes_the_size_of_groups)
{
    double share[2];
    static const char *const group[] = {"4", "2"};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq", "--offq-group", group[i]), 0);
        bk_json *o = printed_json();
        const bk_json *q = offq_of(o, 0);
        ck_assert_int_eq(bk_json_int(bk_json_get(q, "group"), -1), atoi(group[i]));
        share[i] = share_of(q, "all_basis", "all");
        bk_json_free(o);
    }
    ck_assert_double_gt(share[1], share[0]); /* twice as many directions */
}
END_TEST

START_TEST(outliers_offq_tells_the_spikiness_of_every_head)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = printed_json();
    const bk_json *blocks = bk_json_get(offq_of(o, 0), "key_spikiness");
    double least = INFINITY, most = 0, median = bk_json_num(bk_json_get(offq_of(o, 0), "spikiness"), NAN);
    ck_assert_uint_eq(bk_json_size(blocks), 2);
    for (size_t l = 0; l < 2; l++)
        for (size_t h = 0; h < bk_json_size(bk_json_at(blocks, l)); h++) {
            double x = bk_json_num(bk_json_at(bk_json_at(blocks, l), h), NAN);
            least = fmin(least, x);
            most = fmax(most, x);
        }
    ck_assert_double_ge(least, 1); /* the largest entry is not below the root mean square */
    ck_assert(least <= median && median <= most);
    bk_json_free(o);
}
END_TEST

START_TEST(outliers_offq_prints_what_json_has)
{
    char want[64];
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none", "--offq"), 0);
    bk_json *o = printed_json();
    snprintf(want, sizeof want, "basis of the top tokens: top tokens  %11.2f%%\n", 100 * share_of(offq_of(o, 0), "top_basis", "top"));
    bk_json_free(o);
    ck_assert_int_eq(OUTLIERS("--prefix", "none", "--offq"), 0);
    ck_assert_msg(strstr(printed, want), "'%s' is not printed", want);
}
END_TEST

START_TEST(outliers_without_offq_says_nothing_of_it)
{
    ck_assert_int_eq(OUTLIERS("--json", "--prefix", "none"), 0);
    ck_assert_ptr_null(strstr(printed, "offq"));
    ck_assert_int_eq(OUTLIERS("--prefix", "none"), 0);
    ck_assert_ptr_null(strstr(printed, "OffQ"));
}
END_TEST

START_TEST(outliers_offq_refuses_groups_that_do_not_divide)
{
    ck_assert_int_eq(OUTLIERS("--offq", "--offq-group", "7"), BK_EXIT_USAGE);
}
END_TEST

START_TEST(outliers_refuses_groups_without_offq)
{
    ck_assert_int_eq(OUTLIERS("--offq-group", "4"), BK_EXIT_USAGE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verbs");
    TCase *g = tcase_create("generate"), *d = tcase_create("dump"), *o = tcase_create("outliers"),
          *q = tcase_create("a run's model"), *all[] = {g, d, o, q};
    tcase_add_checked_fixture(g, setup, teardown);
    tcase_add_checked_fixture(d, setup_dump, teardown);
    tcase_add_checked_fixture(o, setup_dump, teardown);
    tcase_add_checked_fixture(q, setup_run, teardown);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tcase_set_timeout(all[i], 60); /* shared machines */
    tcase_add_test(g, generate_follows_the_largest_logit);
    tcase_add_test(g, generate_prints_text_alone);
    tcase_add_test(g, generate_stops_at_the_end_of_the_text);
    tcase_add_test(g, generate_rotated_and_behind_a_prefix_says_the_same);
    tcase_add_test(g, generate_text_that_is_no_utf8_is_still_json);
    tcase_add_test(g, generate_refuses_an_empty_prompt);
    tcase_add_test(g, generate_refuses_more_tokens_than_positions);
    tcase_add_test(d, dump_stores_what_passed_the_site);
    tcase_add_test(d, dump_has_the_chosen_blocks_and_sites_and_no_others);
    tcase_add_test(d, dump_saturates_and_goes_on);
    tcase_add_test(d, dump_widens_when_asked);
    tcase_add_test(d, dump_stops_when_asked);
    tcase_add_test(d, dump_of_one_sample_is_read_back);
    tcase_add_test(d, dump_names_the_site_that_was_meant);
    tcase_add_loop_test(d, dump_refuses_bad_blocks, 0, 8);
    tcase_add_test(d, dump_refuses_a_device_as_output);
    tcase_add_test(d, dump_does_not_replace_a_file_that_is_no_dump);
    tcase_add_test(d, dump_does_not_replace_another_file_of_a_run);
    tcase_add_test(d, dump_replaces_a_dump);
    tcase_add_test(d, dump_that_does_not_fit_leaves_nothing);
    tcase_add_test(o, outliers_finds_the_planted_tokens);
    tcase_add_test(o, outliers_chooses_the_prefix_from_what_it_found);
    tcase_add_test(o, outliers_rotation_lowers_channels_but_not_down_raw);
    tcase_add_test(o, outliers_error_sits_on_the_outlier);
    tcase_add_test(o, outliers_columns_of_a_table_align);
    tcase_add_test(o, outliers_refuses_a_block_that_is_not_there);
    tcase_add_test(o, outliers_refuses_sequences_that_leave_no_room_for_a_prefix);
    tcase_add_test(o, outliers_refuses_an_unknown_scheme);
    tcase_add_test(o, outliers_offq_finds_the_planted_direction);
    tcase_add_test(o, outliers_offq_is_measured_behind_the_prefix_too);
    tcase_add_test(o, outliers_offq_takes_the_size_of_groups);
    tcase_add_test(o, outliers_offq_tells_the_spikiness_of_every_head);
    tcase_add_test(o, outliers_offq_prints_what_json_has);
    tcase_add_test(o, outliers_without_offq_says_nothing_of_it);
    tcase_add_test(o, outliers_offq_refuses_groups_that_do_not_divide);
    tcase_add_test(o, outliers_refuses_groups_without_offq);
    tcase_add_test(q, quantized_model_generates);
    tcase_add_test(q, quantized_model_is_dumped_behind_its_own_prefix);
    tcase_add_test(q, quantized_model_refuses_another_prefix);
    tcase_add_test(q, quantized_model_has_no_outliers_to_look_for);
    suite_add_tcase(s, g);
    suite_add_tcase(s, d);
    suite_add_tcase(s, o);
    suite_add_tcase(s, q);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
