#include "tests/letters.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "autograd/rng.h"
#include "blocks/names.h"
#include "blocks/weights.h"
#include "experiments/verbs.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "tests/ok.h"

#define VOCAB 257

struct letters letters;

const char *letters_path(const char *name)
{
    static char path[BK_TINY_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", letters.folder, name);
    return path;
}

static float random_value(uint64_t stream, int64_t i)
{
    return (float)bk_rng_normal(stream, BK_RNG_TEST, (uint64_t)i);
}

float letters_embedding(int64_t id, int64_t channel, int64_t hidden)
{
    if (channel == hidden - 1) return id == '.' ? LETTERS_FLAG : 0;
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
    if (!strcmp(kind, "embed")) return letters_embedding(row, col, f->c->hidden);
    if (!strcmp(kind, "head")) {
        int64_t before = row == LETTERS_EOS ? 'z' : row == 'z' + 1 ? -1 : row - 1;
        return before < 0 ? 0 : letters_embedding(before, col, f->c->hidden);
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
        ok(bk_st_writer_declare(f->w, name, BK_ST_F32, cols ? 2 : 1, dim, &letters.err), &letters.err);
        return;
    }
    float *x = malloc((size_t)n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (int64_t i = 0; i < n; i++) x[i] = value(f, kind, cols ? i / cols : i, cols ? i % cols : 0, cols);
    ok(bk_st_writer_put(f->w, name, x, (size_t)n * sizeof *x, &letters.err), &letters.err);
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
    FILE *to = fopen(letters_path("tokenizer.json"), "w");
    ck_assert_ptr_nonnull(to);
    fputs("{\"added_tokens\": [{\"id\": 256, \"content\": \"</s>\", \"special\": true}], \"decoder\": {\"type\": "
          "\"ByteFallback\"},\n"
          "\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"merges\": [], \"vocab\": {",
          to);
    for (int i = 0; i < 256; i++) fprintf(to, "%s\"<0x%02X>\": %d", i ? ", " : "", i, i);
    fputs("}}}\n", to);
    ck_assert_int_eq(fclose(to), 0);
    ck_assert_ptr_nonnull(to = fopen(letters_path("tokenizer_config.json"), "w"));
    fputs("{\"eos_token\": \"</s>\"}\n", to);
    ck_assert_int_eq(fclose(to), 0);
}

static void write_text(void)
{
    FILE *to = fopen(letters_path("text.txt"), "w");
    ck_assert_ptr_nonnull(to);
    for (int i = 0; i < 40; i++) fputs("the quick brown fox. jumps over\n", to);
    ck_assert_int_eq(fclose(to), 0);
}

void letters_begin(void)
{
    bk_config c = bk_tiny_config();
    c.vocab = VOCAB;
    c.max_positions = 128;
    strcpy(letters.folder, "/tmp/bk_verbs_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(letters.folder));
    bk_json *config = bk_config_to_json(&c);
    ok(bk_json_save(config, letters_path("config.json"), &letters.err), &letters.err);
    bk_json_free(config);
    filler f = {.c = &c};
    ok(bk_st_writer_new(letters_path("model.safetensors"), &f.w, &letters.err), &letters.err);
    tensors(&f);
    f.put = true;
    tensors(&f);
    ok(bk_st_writer_commit(f.w, &letters.err), &letters.err);
    write_tokenizer();
    write_text();
    strcpy(letters.text, letters_path("text.txt"));
    strcpy(letters.out, letters_path("dump.h5"));
}

void letters_end(void)
{
    ok(bk_remove_tree(letters.folder, &letters.err), &letters.err);
}

int letters_call(int (*verb)(int, char **), const char *name, ...)
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
    ssize_t n = pread(to, letters.printed, sizeof letters.printed - 1, 0);
    close(to);
    ck_assert_int_ge(n, 0);
    letters.printed[n] = 0;
    return code;
}

bk_json *letters_json(void)
{
    bk_json *o;
    ok(bk_json_parse(letters.printed, strlen(letters.printed), "output", &o, &letters.err), &letters.err);
    return o;
}

void letters_begin_run(void)
{
    char config[BK_TINY_PATH + 64], run[BK_TINY_PATH + 64];
    letters_begin();
    strcpy(run, letters_path("run"));
    strcpy(config, letters_path("run.yaml"));
    setenv("BRICK_CACHE", letters_path("cache"), 1);
    FILE *to = fopen(config, "w");
    ck_assert_ptr_nonnull(to);
    fprintf(to, "model: %s\nscheme: W8A8KV8-dynamic\ndata:\n", letters.folder);
    static const char *const part[] = {"detection", "calibration", "training", "evaluation"};
    for (int i = 0; i < 4; i++)
        fprintf(to, "  %s: {text: %s, %s: 2, seqlen: 32%s}\n", part[i], letters.text, i == 3 ? "windows" : "samples",
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
