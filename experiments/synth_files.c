/* A made model as a Hugging Face folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/synth.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

static bk_json *str(const char *s)
{
    return bk_json_of_text(s);
}

static bk_status save_json(bk_json *root, const char *dir, const char *name, bk_error *err)
{
    char *path = bk_path_join(dir, name);
    bk_status st = path ? bk_json_save(root, path, err) : bk_fail(err, BK_ENOMEM, "no memory for a path");
    free(path);
    bk_json_free(root);
    return st;
}

/* --- tokenizer: every byte is a token, written as byte-level BPE writes it --- */

static bk_json *vocabulary(void)
{
    bk_json *vocab = bk_json_object();
    for (int b = 0, moved = 256; b < 256; b++) {
        bool shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        int code = shown ? b : moved++; /* bytes that do not show get the letters from U+0100 on, in order */
        char utf8[3] = {(char)code};
        if (code > 127) utf8[0] = (char)(0xc0 | code >> 6), utf8[1] = (char)(0x80 | (code & 63));
        bk_json_set(vocab, utf8, bk_json_of_int(b));
    }
    return vocab;
}

static bk_json *special(int64_t id, const char *text)
{
    static const char *const no[] = {"single_word", "lstrip", "rstrip", "normalized"};
    bk_json *t = bk_json_object();
    bk_json_set(t, "id", bk_json_of_int(id));
    bk_json_set(t, "content", str(text));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) bk_json_set(t, no[i], bk_json_of_bool(false));
    bk_json_set(t, "special", bk_json_of_bool(true));
    return t;
}

static bk_json *byte_level(void)
{
    bk_json *p = bk_json_object();
    bk_json_set(p, "type", str("ByteLevel"));
    bk_json_set(p, "add_prefix_space", bk_json_of_bool(false));
    bk_json_set(p, "trim_offsets", bk_json_of_bool(true));
    bk_json_set(p, "use_regex", bk_json_of_bool(true));
    return p;
}

static bk_json *tokenizer(void)
{
    bk_json *root = bk_json_object(), *added = bk_json_array(), *model = bk_json_object();
    bk_json_push(added, special(BK_SYNTH_BOS, "<s>"));
    bk_json_push(added, special(BK_SYNTH_EOS, "</s>"));
    bk_json_set(model, "type", str("BPE"));
    bk_json_set(model, "dropout", bk_json_null());
    bk_json_set(model, "unk_token", bk_json_null());
    bk_json_set(model, "continuing_subword_prefix", bk_json_null());
    bk_json_set(model, "end_of_word_suffix", bk_json_null());
    bk_json_set(model, "fuse_unk", bk_json_of_bool(false));
    bk_json_set(model, "byte_fallback", bk_json_of_bool(false));
    bk_json_set(model, "vocab", vocabulary());
    bk_json_set(model, "merges", bk_json_array());
    bk_json_set(root, "version", str("1.0"));
    bk_json_set(root, "truncation", bk_json_null());
    bk_json_set(root, "padding", bk_json_null());
    bk_json_set(root, "added_tokens", added);
    bk_json_set(root, "normalizer", bk_json_null());
    bk_json_set(root, "pre_tokenizer", byte_level());
    bk_json_set(root, "post_processor", bk_json_null());
    bk_json_set(root, "decoder", byte_level());
    bk_json_set(root, "model", model);
    return root;
}

static bk_json *tokenizer_config(const bk_config *c)
{
    bk_json *root = bk_json_object();
    bk_json_set(root, "tokenizer_class", str("PreTrainedTokenizerFast"));
    bk_json_set(root, "bos_token", str("<s>"));
    bk_json_set(root, "eos_token", str("</s>"));
    bk_json_set(root, "add_bos_token", bk_json_of_bool(true));
    bk_json_set(root, "model_max_length", bk_json_of_int(c->max_positions));
    return root;
}

/* --- weights --- */

/* Walks over the tensors: declares them in a first pass, writes them in a second. */
typedef struct walk {
    bk_st_writer *writer;
    bool write;
    bk_error *err;
} walk;

static bk_status tensor(walk *w, const char *name, const float *x, int64_t rows, int64_t cols)
{
    int64_t dim[2] = {rows, cols}, count = rows * (cols ? cols : 1);
    if (!w->write) return bk_st_writer_declare(w->writer, name, BK_ST_F32, cols ? 2 : 1, dim, w->err);
    return bk_st_writer_put(w->writer, name, x, (size_t)count * sizeof *x, w->err);
}

static bk_status layer_tensors(walk *w, const bk_synth *s, int64_t layer)
{
    static const char *const linear[BK_W_COUNT] = {
#define BK_LINEAR(E, name, hf, gguf) hf,
        BK_LINEARS(BK_LINEAR)
#undef BK_LINEAR
    };
    static const char *const norm[BK_NORM_COUNT] = {
#define BK_NORM(E, name, hf, gguf) hf,
        BK_NORMS(BK_NORM)
#undef BK_NORM
    };
    const bk_block_weights *b = &s->block[layer];
    char name[128];
    for (bk_linear_id id = 0; id < BK_W_COUNT; id++) {
        int64_t out, in;
        bk_linear_shape(&s->cfg, id, &out, &in);
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, linear[id]);
        BK_TRY(tensor(w, name, b->w[id], out, in));
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", (int)layer, linear[id]);
        if (b->b[id]) BK_TRY(tensor(w, name, b->b[id], out, 0));
    }
    for (bk_norm_id id = 0; id < BK_NORM_COUNT; id++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, norm[id]);
        if (b->norm[id]) BK_TRY(tensor(w, name, b->norm[id], id < BK_NORM_Q ? s->cfg.hidden : s->cfg.head_dim, 0));
    }
    return BK_OK;
}

static bk_status all_tensors(walk *w, const bk_synth *s)
{
    const bk_config *c = &s->cfg;
    BK_TRY(tensor(w, "model.embed_tokens.weight", s->embed, c->vocab, c->hidden));
    for (int64_t l = 0; l < c->layers; l++) BK_TRY(layer_tensors(w, s, l));
    BK_TRY(tensor(w, "model.norm.weight", s->final_norm, c->hidden, 0));
    return c->tied ? BK_OK : tensor(w, "lm_head.weight", s->head, c->vocab, c->hidden);
}

static bk_status write_weights(const bk_synth *s, const char *dir, bk_error *err)
{
    char *path = bk_path_join(dir, "model.safetensors");
    walk w = {.err = err};
    bk_status st = path ? bk_st_writer_new(path, &w.writer, err) : bk_fail(err, BK_ENOMEM, "no memory for a path");
    if (!st) bk_st_writer_metadata(w.writer, "format", "pt");
    if (!st) st = all_tensors(&w, s);
    w.write = true;
    if (!st) st = all_tensors(&w, s);
    if (!st) st = bk_st_writer_commit(w.writer, err);
    else bk_st_writer_abort(w.writer);
    free(path);
    return st;
}

/* --- texts --- */

static bk_status write_text(const bk_synth *s, const char *dir, const char *name, int64_t first, int64_t documents, bk_error *err)
{
    size_t n = (size_t)(documents * BK_SYNTH_DOCUMENT);
    char *path = bk_path_join(dir, name), *text = malloc(n);
    bk_status st = path && text ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory for a text of %zu bytes", n);
    if (!st) st = bk_synth_sample(s, first, documents, text, err);
    if (!st) st = bk_write_file(path, text, n, err);
    free(path);
    free(text);
    return st;
}

bk_status bk_synth_write(const bk_synth *s, const char *dir, int64_t documents, bk_error *err)
{
    const int64_t fewer = (documents + 3) / 4;
    bk_json *config = bk_config_to_json(&s->cfg);
    BK_TRY(bk_mkdir_p(dir, err));
    bk_json_set(config, "bos_token_id", bk_json_of_int(BK_SYNTH_BOS));
    bk_json_set(config, "eos_token_id", bk_json_of_int(BK_SYNTH_EOS));
    BK_TRY(save_json(config, dir, "config.json", err));
    BK_TRY(save_json(tokenizer(), dir, "tokenizer.json", err));
    BK_TRY(save_json(tokenizer_config(&s->cfg), dir, "tokenizer_config.json", err));
    BK_TRY(write_weights(s, dir, err));
    if (!documents) return BK_OK;
    BK_TRY(write_text(s, dir, "train.txt", 0, documents, err));
    BK_TRY(write_text(s, dir, "calib.txt", documents, fewer, err));
    return write_text(s, dir, "eval.txt", documents + fewer, fewer, err);
}
