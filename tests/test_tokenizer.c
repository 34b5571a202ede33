#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "io/tokenizer_impl.h"
#include "io/utf8.h"
#include "tests/expect_ids.h"
#include "tests/make_gguf.h"
#include "tests/suite.h"

static char dir[64], path[128];

static void make_dir(void)
{
    strcpy(dir, "/tmp/brick-tokenizer-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.gguf", dir);
}

static void remove_dir(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

/* ---- tables for GGUF files ---- */

typedef struct table {
    const char *text[600];
    int32_t kind[600];
    float score[600];
    uint64_t n;
    char own[600][8];
} table;

static void token(table *t, const char *text, int kind, float score)
{
    t->text[t->n] = text;
    t->kind[t->n] = kind;
    t->score[t->n++] = score;
}

/* The 256 bytes in GPT-2's alphabet, all but one (-1: all of them). */
static void alphabet(table *t, int without)
{
    for (int b = 0; b < 256; b++) {
        char *c = t->own[t->n];
        c[bk_utf8_put(bk_byte_to_char((unsigned char)b), c)] = 0;
        if (b != without) token(t, c, BK_TOKEN_NORMAL, 0);
    }
}

static void byte_tokens(table *t)
{
    for (int b = 0; b < 256; b++) {
        snprintf(t->own[t->n], sizeof t->own[0], "<0x%02X>", b);
        token(t, t->own[t->n], BK_TOKEN_BYTE, 0);
    }
}

static void put_table(make_gguf *m, const table *t, const char *model)
{
    gguf_str(m, "tokenizer.ggml.model", model);
    gguf_strs(m, "tokenizer.ggml.tokens", t->n, t->text);
    gguf_array(m, "tokenizer.ggml.token_type", GGUF_I32, t->n, t->kind, t->n * sizeof *t->kind);
}

static bk_status open_gguf(make_gguf *m, bk_tokenizer **out, bk_error *err)
{
    bk_gguf *g;
    gguf_save(m, path);
    ck_assert_int_eq(bk_gguf_open(path, &g, err), BK_OK);
    bk_status s = bk_tokenizer_from_gguf(g, out, err);
    bk_gguf_close(g);
    return s;
}

static bk_tokenizer *opened(make_gguf *m)
{
    bk_error err = {0};
    bk_tokenizer *t;
    ck_assert_msg(open_gguf(m, &t, &err) == BK_OK, "%s", err.msg);
    return t;
}

static void refused(make_gguf *m, bk_status code, const char *says)
{
    bk_error err = {0};
    bk_tokenizer *t;
    bk_status s = open_gguf(m, &t, &err);
    ck_assert_msg(s == code && strstr(err.msg, says), "%s: %s", bk_status_name(s), err.msg);
    ck_assert_ptr_null(t);
}

/* <|end|> 0, bytes 1 .. 256, then what the merges make, and <user> and <user>s. */
static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "1 2", "12 3", "\xc4\xa0 hello", "a a", "aa a"};
enum { END = 0, A = 1 + 'a', HE = 257, LL, HELL, HELLO, N12, N123, SP_HELLO, AA, AAA, USER, USERS };

static void byte_level(make_gguf *m, table *t, int without, const char *pre)
{
    static const char *const made[] = {"he", "ll", "hell", "hello", "12", "123", "\xc4\xa0hello", "aa", "aaa"};
    token(t, "<|end|>", BK_TOKEN_CONTROL, 0);
    alphabet(t, without);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) token(t, made[i], BK_TOKEN_NORMAL, 0);
    token(t, "<user>", BK_TOKEN_USER, 0);
    token(t, "<user>s", BK_TOKEN_USER, 0);
    put_table(m, t, "gpt2");
    if (pre) gguf_str(m, "tokenizer.ggml.pre", pre);
    gguf_strs(m, "tokenizer.ggml.merges", sizeof merges / sizeof *merges, merges);
    gguf_u32(m, "tokenizer.ggml.eos_token_id", 0);
}

static bk_tokenizer *byte_level_of(const char *pre)
{
    make_gguf m = {0};
    table t = {0};
    byte_level(&m, &t, -1, pre);
    return opened(&m);
}

/* ---- byte-level BPE ---- */

START_TEST(merges_go_by_rank_inside_words)
{
    bk_tokenizer *t = byte_level_of("gpt-2");
    expect(t, "hello hello", false, HELLO, SP_HELLO);
    expect(t, "hel", false, HE, 1 + 'l');
    expect(t, "123", false, N123);
    expect(t, "hello\nhello", false, HELLO, 1 + '\n', HELLO);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(equal_ranks_merge_leftmost)
{
    bk_tokenizer *t = byte_level_of("gpt-2");
    expect(t, "aaa", false, AAA);
    expect(t, "aaaa", false, AA, AA);
    expect(t, "aaaaa", false, AA, AAA);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(no_text_gives_no_ids)
{
    bk_tokenizer *t = byte_level_of("gpt-2");
    expect_n(t, "", 0, false, NULL, 0);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(pre_tokenizer_decides_about_digits)
{
    static const struct {
        const char *pre;
        int32_t ids[4];
        int n;
    } cases[] = {
        {"gpt-2", {N123, 1 + '4'}, 2},
        {"smollm", {1 + '1', 1 + '2', 1 + '3', 1 + '4'}, 4},
        {"qwen2", {1 + '1', 1 + '2', 1 + '3', 1 + '4'}, 4},
        {"llama-bpe", {N123, 1 + '4'}, 2},
        {"default", {N123, 1 + '4'}, 2},
    };
    bk_tokenizer *t = byte_level_of(cases[_i].pre);
    expect_n(t, "1234", 4, false, cases[_i].ids, cases[_i].n);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(special_tokens_are_text_unless_asked_for)
{
    bk_tokenizer *t = byte_level_of("gpt-2");
    expect(t, "<|end|>", true, END);
    expect(t, "<|e", true, 1 + '<', 1 + '|', 1 + 'e');
    expect(t, "<|end|>", false, 1 + '<', 1 + '|', 1 + 'e', 1 + 'n', 1 + 'd', 1 + '|', 1 + '>');
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(user_defined_tokens_are_always_found_longest_first)
{
    bk_tokenizer *t = byte_level_of("gpt-2");
    expect(t, "hello<user>hello", false, HELLO, USER, HELLO);
    expect(t, "<user>s<user><use", false, USERS, USER, 1 + '<', 1 + 'u', 1 + 's', 1 + 'e');
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(every_byte_comes_back)
{
    char text[512];
    bk_tokenizer *t = byte_level_of(_i ? "llama-bpe" : "smollm");
    for (int i = 0; i < 512; i++) text[i] = (char)(i < 256 ? i : 255 - i); /* broken UTF-8, NUL, CR, LF among them */
    round_trip(t, text, sizeof text);
    round_trip(t, "\xef\xbb\xbfhello\r\n\0\r\n\xf0\x9f\x99\x82 hello\xf0\x9f", 25);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(byte_without_a_token_is_named_with_its_place)
{
    make_gguf m = {0};
    table tab = {0};
    byte_level(&m, &tab, 0x04, "gpt-2");
    bk_tokenizer *t = opened(&m);
    encode_fails(t, "hello \x04", 7, "0x04 at byte 6");
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(megabytes_without_a_space_are_encoded_in_time)
{
    const size_t n = 1 << 20;
    bk_tokenizer *t = byte_level_of("gpt-2");
    char *text = malloc(n);
    memset(text, 'a', n);
    round_trip(t, text, n);
    memset(text, ' ', n);
    round_trip(t, text, n);
    free(text);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(ids_outside_the_table_are_refused)
{
    bk_error err = {0};
    char *text;
    size_t len;
    bk_tokenizer *t = byte_level_of("gpt-2");
    ck_assert_int_eq(bk_tokenizer_decode(t, &(int32_t){(int32_t)bk_tokenizer_size(t)}, 1, false, &text, &len, &err),
                     BK_EINVAL);
    ck_assert_int_eq(bk_tokenizer_decode(t, &(int32_t){-1}, 1, false, &text, &len, NULL), BK_EINVAL);
    ck_assert_str_eq(bk_tokenizer_piece(t, -1, &len), "");
    ck_assert_str_eq(bk_tokenizer_piece(t, HE, &len), "he");
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(special_tokens_can_be_left_out_of_decoded_text)
{
    const int32_t ids[] = {END, HELLO, USER, END, SP_HELLO};
    static const char *const want[] = {"<|end|>hello<user><|end|> hello", "hello<user> hello"};
    char *text;
    size_t len;
    bk_tokenizer *t = byte_level_of("gpt-2");
    ck_assert_int_eq(bk_tokenizer_decode(t, ids, 5, _i, &text, &len, NULL), BK_OK);
    ck_assert_str_eq(text, want[_i]);
    free(text);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(unknown_kinds_are_refused_by_name)
{
    make_gguf m = {0};
    table t = {0};
    byte_level(&m, &t, -1, "viking");
    refused(&m, BK_EUNSUP, "'viking'");
    m = (make_gguf){0};
    t = (table){0};
    byte_level(&m, &t, -1, NULL);
    refused(&m, BK_EUNSUP, "tokenizer.ggml.pre");
    m = (make_gguf){0};
    put_table(&m, &t, "t5");
    refused(&m, BK_EUNSUP, "'t5'");
    m = (make_gguf){0};
    refused(&m, BK_EFORMAT, "tokenizer.ggml.model");
}
END_TEST

START_TEST(broken_merges_are_named)
{
    static const struct {
        const char *merge, *says;
    } cases[] = {
        {"he", "merge 0 ('he')"},   {"h x", "its result"}, {"zz e", "its left side"},
        {"h zz", "its right side"}, {"", "merge 0"},       {" ", "merge 0"},
    };
    make_gguf m = {0};
    table t = {0};
    alphabet(&t, -1);
    token(&t, "he", BK_TOKEN_NORMAL, 0);
    put_table(&m, &t, "gpt2");
    gguf_str(&m, "tokenizer.ggml.pre", "gpt-2");
    gguf_strs(&m, "tokenizer.ggml.merges", 1, &cases[_i].merge);
    refused(&m, BK_EFORMAT, cases[_i].says);
}
END_TEST

START_TEST(a_repeated_merge_is_refused)
{
    static const char *const twice[] = {"h e", "h e"};
    make_gguf m = {0};
    table t = {0};
    alphabet(&t, -1);
    token(&t, "he", BK_TOKEN_NORMAL, 0);
    put_table(&m, &t, "gpt2");
    gguf_str(&m, "tokenizer.ggml.pre", "gpt-2");
    gguf_strs(&m, "tokenizer.ggml.merges", 2, twice);
    refused(&m, BK_EFORMAT, "merge 1 ('h' + 'e') repeats merge 0");
}
END_TEST

START_TEST(broken_token_texts_are_named)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "token 1 is empty"},
        {"\xff\xfe", "not valid UTF-8"},
        {"\xed\xa0\x80", "not valid UTF-8"},
        {"<unk>", "tokens 0 and 1 are both"},
    };
    make_gguf m = {0};
    table t = {0};
    token(&t, "<unk>", BK_TOKEN_UNKNOWN, 0);
    token(&t, cases[_i].text, BK_TOKEN_NORMAL, 0);
    put_table(&m, &t, "llama");
    gguf_array(&m, "tokenizer.ggml.scores", GGUF_F32, t.n, t.score, t.n * sizeof *t.score);
    refused(&m, BK_EFORMAT, cases[_i].says);
}
END_TEST

START_TEST(a_nul_in_a_token_is_refused)
{
    static const unsigned char strings[] = {3, 0, 0, 0, 0, 0, 0, 0, 'a', 0, 'b'};
    make_gguf m = {0};
    gguf_str(&m, "tokenizer.ggml.model", "llama");
    gguf_array(&m, "tokenizer.ggml.tokens", GGUF_STRING, 1, strings, sizeof strings);
    refused(&m, BK_EFORMAT, "token 0 holds a NUL");
}
END_TEST

START_TEST(tables_of_another_length_or_kind_are_refused)
{
    make_gguf m = {0};
    table t = {0};
    token(&t, "a", BK_TOKEN_NORMAL, 0);
    token(&t, "b", 9, 0);
    put_table(&m, &t, "llama");
    refused(&m, BK_EFORMAT, "token 1 has type 9");
    t.kind[1] = BK_TOKEN_NORMAL;
    m = (make_gguf){0};
    put_table(&m, &t, "llama");
    gguf_array(&m, "tokenizer.ggml.scores", GGUF_F32, 1, t.score, sizeof *t.score);
    refused(&m, BK_EFORMAT, "tokenizer.ggml.scores");
    m = (make_gguf){0};
    gguf_str(&m, "tokenizer.ggml.model", "llama");
    gguf_strs(&m, "tokenizer.ggml.tokens", 2, t.text);
    gguf_array(&m, "tokenizer.ggml.token_type", GGUF_I32, 1, t.kind, sizeof *t.kind);
    refused(&m, BK_EFORMAT, "tokenizer.ggml.token_type");
    t.score[1] = NAN;
    m = (make_gguf){0};
    put_table(&m, &t, "llama");
    gguf_array(&m, "tokenizer.ggml.scores", GGUF_F32, t.n, t.score, t.n * sizeof *t.score);
    refused(&m, BK_EFORMAT, "score of token 1");
}
END_TEST

START_TEST(a_bos_outside_the_table_is_refused)
{
    make_gguf m = {0};
    table t = {0};
    byte_level(&m, &t, -1, "gpt-2");
    gguf_u32(&m, "tokenizer.ggml.bos_token_id", 5000);
    refused(&m, BK_EFORMAT, "bos_token_id is 5000");
}
END_TEST

/* ---- SentencePiece ---- */

#define SP "\xe2\x96\x81"
enum { S_UNK, S_BOS, S_EOS, S_BYTES = 3 };

/* Unknown, BOS, EOS, bytes or not, then letters and joined pieces; base = id of the space. */
static bk_tokenizer *sentencepiece(bool fallback, bool prefix, int32_t *base)
{
    make_gguf m = {0};
    table t = {0};
    token(&t, "<unk>", BK_TOKEN_UNKNOWN, 0);
    token(&t, "<s>", BK_TOKEN_CONTROL, 0);
    token(&t, "</s>", BK_TOKEN_CONTROL, 0);
    if (fallback) byte_tokens(&t);
    *base = (int32_t)t.n;
    static const struct {
        const char *text;
        float score;
    } pieces[] = {{SP, -20},  {"a", -21},  {"b", -22},   {"c", -23}, {"ab", -3},
                  {"bc", -1}, {"abc", -9}, {SP "a", -2}, {"cc", -4}, {"aa", -4}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        token(&t, pieces[i].text, BK_TOKEN_NORMAL, pieces[i].score);
    put_table(&m, &t, "llama");
    gguf_array(&m, "tokenizer.ggml.scores", GGUF_F32, t.n, t.score, t.n * sizeof *t.score);
    gguf_u32(&m, "tokenizer.ggml.bos_token_id", S_BOS);
    gguf_u32(&m, "tokenizer.ggml.eos_token_id", S_EOS);
    gguf_u32(&m, "tokenizer.ggml.unknown_token_id", S_UNK);
    if (!prefix) gguf_key(&m, "tokenizer.ggml.add_space_prefix", GGUF_BOOL, &(uint8_t){0}, 1);
    return opened(&m);
}

enum { P_SP, P_A, P_B, P_C, P_AB, P_BC, P_ABC, P_SPA, P_CC, P_AA };

START_TEST(scores_decide_the_merges)
{
    int32_t k;
    bk_tokenizer *t = sentencepiece(true, true, &k);
    expect(t, "abc", false, k + P_SPA, k + P_BC); /* bc (-1), then _a (-2): "ab" and "abc" come too late */
    expect(t, "cabc", false, k + P_SP, k + P_C, k + P_ABC);
    expect(t, "ccaa", false, k + P_SP, k + P_CC, k + P_AA);
    expect(t, "a a", false, k + P_SPA, k + P_SPA);
    expect_n(t, "", 0, false, NULL, 0);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(the_space_in_front_can_be_off)
{
    int32_t k;
    bk_tokenizer *t = sentencepiece(true, false, &k);
    expect(t, "abc", false, k + P_ABC);
    expect(t, " a", false, k + P_SPA);
    round_trip(t, " a", 2);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(characters_without_a_token_become_bytes)
{
    int32_t k;
    bk_tokenizer *t = sentencepiece(true, true, &k);
    expect(t, "a\xc3\xa9", false, k + P_SPA, S_BYTES + 0xc3, S_BYTES + 0xa9);
    expect_n(t, "\xff\0", 2, false, (int32_t[]){k + P_SP, S_BYTES + 0xff, S_BYTES}, 3);
    round_trip(t, "  a\r\n\xff b\0 \xe2\x96", 13);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(without_byte_tokens_the_unknown_token_stands_once_for_a_run)
{
    int32_t k;
    bk_tokenizer *t = sentencepiece(false, true, &k);
    expect(t, "axyza", false, k + P_SPA, S_UNK, k + P_A);
    encode_fails(t, "abc\xff", 4, "at byte 3 (0xFF)");
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(control_tokens_of_sentencepiece_need_parse_special)
{
    int32_t k;
    bk_tokenizer *t = sentencepiece(true, true, &k);
    expect(t, "<s>a", true, S_BOS, k + P_SPA);
    expect(t, "<s>", false, k + P_SP, S_BYTES + '<', S_BYTES + 's', S_BYTES + '>');
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(gguf_policy_of_bos)
{
    int32_t k;
    bk_tokenizer *s = sentencepiece(true, true, &k), *b = byte_level_of("smollm"), *l = byte_level_of("llama-bpe");
    ck_assert(bk_tokenizer_add_bos(s));
    ck_assert_int_eq(bk_tokenizer_bos(s), S_BOS);
    ck_assert_int_eq(bk_tokenizer_eos(s), S_EOS);
    ck_assert(!bk_tokenizer_add_bos(b));
    ck_assert(!bk_tokenizer_add_bos(l)); /* would add one, but has none */
    ck_assert_int_eq(bk_tokenizer_bos(l), -1);
    bk_tokenizer_free(s);
    bk_tokenizer_free(b);
    bk_tokenizer_free(l);
}
END_TEST

/* ---- writing and reading ---- */

static void same_ids(const bk_tokenizer *a, const bk_tokenizer *b, const char *text, size_t len)
{
    int32_t *want;
    int64_t n;
    for (int special = 0; special < 2; special++) {
        ck_assert_int_eq(bk_tokenizer_encode(a, text, len, special, &want, &n, NULL), BK_OK);
        expect_n(b, text, len, special, want, n);
        free(want);
    }
}

static void saved_is_the_same(bk_tokenizer *t)
{
    static const char text[] = "hello 1234 <user>s<|end|><s>abcabc aacc\n\xff\0\xc3\xa9 aaaaa";
    bk_error err = {0};
    bk_tokenizer *from_gguf = t, *back;
    for (int i = 0; i < 2; i++) { /* the second time it is copied */
        char to[160];
        snprintf(to, sizeof to, "%s/%d", dir, i);
        ck_assert_int_eq(bk_mkdir_p(to, &err), BK_OK);
        ck_assert_msg(bk_tokenizer_save(t, to, &err) == BK_OK, "%s", err.msg);
        ck_assert_msg(bk_tokenizer_from_folder(to, &back, &err) == BK_OK, "%s", err.msg);
        same_ids(from_gguf, back, text, sizeof text - 1);
        ck_assert_int_eq(bk_tokenizer_size(back), bk_tokenizer_size(from_gguf));
        ck_assert_int_eq(bk_tokenizer_bos(back), bk_tokenizer_bos(from_gguf));
        ck_assert_int_eq(bk_tokenizer_eos(back), bk_tokenizer_eos(from_gguf));
        ck_assert_int_eq(bk_tokenizer_add_bos(back), bk_tokenizer_add_bos(from_gguf));
        if (i) bk_tokenizer_free(t);
        t = back;
    }
    bk_tokenizer_free(t);
    bk_tokenizer_free(from_gguf);
}

START_TEST(saved_byte_level_reads_back_the_same)
{
    static const char *const pres[] = {"gpt-2", "default", "smollm", "llama-bpe", "qwen2"};
    saved_is_the_same(byte_level_of(pres[_i]));
}
END_TEST

START_TEST(saved_sentencepiece_reads_back_the_same)
{
    int32_t k;
    saved_is_the_same(sentencepiece(true, _i == 0, &k));
}
END_TEST

START_TEST(a_chat_template_is_kept)
{
    bk_error err = {0};
    bk_json *j;
    make_gguf m = {0};
    table tab = {0};
    byte_level(&m, &tab, -1, "gpt-2");
    gguf_str(&m, "tokenizer.chat_template", "{{ \"x\\n\" }}");
    bk_tokenizer *t = opened(&m);
    ck_assert_int_eq(bk_tokenizer_save(t, dir, &err), BK_OK);
    bk_tokenizer_free(t);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    ck_assert_int_eq(bk_json_load(path, &j, &err), BK_OK);
    ck_assert_str_eq(bk_json_str(bk_json_get(j, "chat_template"), "?"), "{{ \"x\\n\" }}");
    bk_json_free(j);
}
END_TEST

START_TEST(a_folder_without_tokenizer_is_an_io_error)
{
    bk_error err = {0};
    bk_tokenizer *t;
    ck_assert_int_eq(bk_tokenizer_from_folder(dir, &t, &err), BK_EIO);
    ck_assert_msg(strstr(err.msg, "tokenizer.json") != NULL, "%s", err.msg);
}
END_TEST

START_TEST(a_broken_folder_names_its_file)
{
    bk_error err = {0};
    bk_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    ck_assert_int_eq(bk_write_file(path, "{}", 2, &err), BK_OK);
    ck_assert_int_eq(bk_tokenizer_from_folder(dir, &t, &err), BK_EFORMAT);
    ck_assert_msg(strncmp(err.msg, path, strlen(path)) == 0, "%s", err.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("gguf");
    tcase_add_checked_fixture(c, make_dir, remove_dir);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, merges_go_by_rank_inside_words);
    tcase_add_test(c, equal_ranks_merge_leftmost);
    tcase_add_test(c, no_text_gives_no_ids);
    tcase_add_loop_test(c, pre_tokenizer_decides_about_digits, 0, 5);
    tcase_add_test(c, special_tokens_are_text_unless_asked_for);
    tcase_add_test(c, user_defined_tokens_are_always_found_longest_first);
    tcase_add_loop_test(c, every_byte_comes_back, 0, 2);
    tcase_add_test(c, byte_without_a_token_is_named_with_its_place);
    tcase_add_test(c, megabytes_without_a_space_are_encoded_in_time);
    tcase_add_test(c, ids_outside_the_table_are_refused);
    tcase_add_loop_test(c, special_tokens_can_be_left_out_of_decoded_text, 0, 2);
    tcase_add_test(c, unknown_kinds_are_refused_by_name);
    tcase_add_loop_test(c, broken_merges_are_named, 0, 6);
    tcase_add_test(c, a_repeated_merge_is_refused);
    tcase_add_loop_test(c, broken_token_texts_are_named, 0, 4);
    tcase_add_test(c, a_nul_in_a_token_is_refused);
    tcase_add_test(c, tables_of_another_length_or_kind_are_refused);
    tcase_add_test(c, a_bos_outside_the_table_is_refused);
    tcase_add_test(c, scores_decide_the_merges);
    tcase_add_test(c, the_space_in_front_can_be_off);
    tcase_add_test(c, characters_without_a_token_become_bytes);
    tcase_add_test(c, without_byte_tokens_the_unknown_token_stands_once_for_a_run);
    tcase_add_test(c, control_tokens_of_sentencepiece_need_parse_special);
    tcase_add_test(c, gguf_policy_of_bos);
    tcase_add_loop_test(c, saved_byte_level_reads_back_the_same, 0, 5);
    tcase_add_loop_test(c, saved_sentencepiece_reads_back_the_same, 0, 2);
    tcase_add_test(c, a_chat_template_is_kept);
    tcase_add_test(c, a_folder_without_tokenizer_is_an_io_error);
    tcase_add_test(c, a_broken_folder_names_its_file);
    suite_add_tcase(s, c);
    return run_suite(s);
}
