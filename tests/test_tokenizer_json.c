#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_impl.h"
#include "tests/expect_ids.h"
#include "tests/suite.h"

#define SP "\xe2\x96\x81"

/* Ids that Hugging Face's tokenizers 0.23 gave for small tokenizers that it had trained. */
START_TEST(ids_agree_with_hugging_face)
{
    static const char *const folders[] = {"tok_gpt2", "tok_smollm", "tok_llama3", "tok_qwen2", "tok_llama2"};
    bk_error err = {0};
    bk_tokenizer *t;
    char file[128], line[4096];
    snprintf(file, sizeof file, "tests/data/%s", folders[_i]);
    ck_assert_msg(bk_tokenizer_from_folder(file, &t, &err) == BK_OK, "%s", err.msg);
    snprintf(file, sizeof file, "tests/data/%s/cases.jsonl", folders[_i]);
    FILE *f = fopen(file, "r");
    ck_assert_ptr_nonnull(f);
    int n = 0;
    for (; fgets(line, sizeof line, f); n++) {
        bk_json *c;
        ck_assert_msg(bk_json_parse(line, strlen(line), file, &c, &err) == BK_OK, "%s", err.msg);
        const bk_json *ids = bk_json_get(c, "ids");
        int32_t want[256];
        size_t len, k = bk_json_size(ids);
        const char *text = bk_json_bytes(bk_json_get(c, "text"), &len);
        for (size_t i = 0; i < k; i++) want[i] = (int32_t)bk_json_int(bk_json_at(ids, i), -1);
        expect_n(t, text, len, false, want, (int64_t)k);
        bk_json_free(c);
    }
    ck_assert_int_eq(n, 24);
    fclose(f);
    bk_tokenizer_free(t);
}
END_TEST

#define VOCAB                                                                                                          \
    "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"\\u2581\":4,\"\\u2581a\":5,\"<unk>\":6,\"x\\\"\\n\":7,\"\\u00e9\":" \
    "8}"
#define MODEL(merges) "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," VOCAB ",\"merges\":[" merges "]}"

static bk_status read_json(const char *tokenizer, const char *config, bk_tokenizer **out, bk_error *err)
{
    bk_json *t, *c = NULL;
    ck_assert_msg(bk_json_parse(tokenizer, strlen(tokenizer), "tokenizer", &t, err) == BK_OK, "%s", err->msg);
    if (config) ck_assert_msg(bk_json_parse(config, strlen(config), "config", &c, err) == BK_OK, "%s", err->msg);
    bk_status s = bk_tokenizer_from_json(t, c, out, err);
    bk_json_free(t);
    bk_json_free(c);
    return s;
}

static bk_tokenizer *from_json(const char *tokenizer, const char *config)
{
    bk_error err = {0};
    bk_tokenizer *t;
    ck_assert_msg(read_json(tokenizer, config, &t, &err) == BK_OK, "%s", err.msg);
    return t;
}

START_TEST(merges_are_strings_or_pairs)
{
    static const char *const json[] = {"{" MODEL("\"a b\",\"\\u2581 a\"") "}",
                                       "{" MODEL("[\"a\",\"b\"],[\"\\u2581\",\"a\"]") "}"};
    bk_tokenizer *t = from_json(json[_i], NULL);
    expect(t, "ab", false, 3);
    expect(t, SP "a" SP "ab", false, 5, 4, 3);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(unknown_characters_are_fused_only_if_asked)
{
    bk_tokenizer *t = from_json("{" MODEL("") "}", NULL);
    expect(t, "axyb", false, 0, 6, 6, 1);
    bk_tokenizer_free(t);
    t = from_json("{\"model\":{\"fuse_unk\":true,\"unk_token\":\"<unk>\"," VOCAB ",\"merges\":[]}}", NULL);
    expect(t, "axyb", false, 0, 6, 1);
    bk_tokenizer_free(t);
    t = from_json("{\"model\":{" VOCAB ",\"merges\":[]}}", NULL);
    encode_fails(t, "ax\xc3\xaa", 4, "0x78 at byte 1");
    encode_fails(t, "a\xc3\xaa", 3, "U+00EA at byte 1");
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(steps_of_a_tokenizer_json)
{
    static const struct {
        const char *steps, *text;
        int32_t ids[8];
        int n;
    } cases[] = {
        {"\"normalizer\":{\"type\":\"NFC\"}", "e\xcc\x81", {8}, 1},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},{"
         "\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
         "\"content\":\"\\u2581\"}]}",
         "a ab",
         {5, 4, 3},
         3},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"c+\"},\"content\":\"b\"}", "accc", {3}, 1},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\","
         "\"split\":true}",
         "a ab",
         {5, 4, 3},
         3},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"never\"}",
         "a a",
         {0, 5},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Isolated\",\"invert\":"
         "false}",
         "ab",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"c\"},\"behavior\":\"Removed\",\"invert\":"
         "false}",
         "accb",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},\"behavior\":\"Removed\",\"invert\":"
         "true}",
         "acb",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},\"behavior\":\"Contiguous\","
         "\"invert\":false}",
         "cabc",
         {2, 3, 2},
         3},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b\"},\"behavior\":\"MergedWithPrevious\","
         "\"invert\":false}",
         "abb",
         {3, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"MergedWithNext\","
         "\"invert\":false}",
         "aab",
         {0, 3},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"behavior\":\"Removed\"}",
         "a \xc2\x85"
         "b",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\s]\"},\"behavior\":\"Removed\"}",
         "a\xe1\xa0\x8e"
         "b",
         {0, 6, 1},
         3},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\S\"},\"behavior\":\"Isolated\"}",
         "ab",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Removed\"}",
         "abxc",
         {6},
         1},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w\"},\"behavior\":\"Removed\"}",
         "a\xe2\x92\xb6\xe2\x85\xa7\xcc\x81-",
         {6},
         1},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^[:alpha:]]\"},\"behavior\":\"Removed\"}",
         "a-b",
         {0, 1},
         2},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x*\"},\"behavior\":\"Isolated\"}",
         "abxb",
         {0, 1, 6, 1},
         4},
        {"\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":false}", "a12b", {0, 6, 6, 1}, 4},
    };
    char json[1024];
    snprintf(json, sizeof json, "{%s," MODEL("\"a b\",\"\\u2581 a\"") "}", cases[_i].steps);
    bk_tokenizer *t = from_json(json, NULL);
    expect_n(t, cases[_i].text, strlen(cases[_i].text), false, cases[_i].ids, cases[_i].n);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(token_texts_with_escapes_are_read_right)
{
    size_t len;
    bk_tokenizer *t = from_json("{" MODEL("") "}", NULL);
    ck_assert_str_eq(bk_tokenizer_piece(t, 7, &len), "x\"\n");
    ck_assert_uint_eq(len, 3);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(broken_token_texts_are_refused)
{
    static const char *const texts[] = {"\"a\\u0000b\"", "\"a\xff\"", "\"\xed\xa0\x80\"", "\"\\ud800\""};
    char json[256];
    for (int added = 0; added < 2; added++) {
        bk_error err = {0};
        bk_tokenizer *t;
        bk_json *o;
        if (added)
            snprintf(json, sizeof json, "{\"added_tokens\":[{\"id\":1,\"content\":%s,\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
                     texts[_i]);
        else snprintf(json, sizeof json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,%s:1},\"merges\":[]}}", texts[_i]);
        bk_status st = bk_json_parse(json, strlen(json), "tokenizer.json", &o, &err);
        if (!st) st = bk_tokenizer_from_json(o, NULL, &t, &err);
        ck_assert_msg(st == BK_EFORMAT && *err.msg, "%s: %s", json, err.msg);
        bk_json_free(o);
    }
}
END_TEST

START_TEST(added_tokens_take_white_space_along)
{
    bk_tokenizer *t = from_json(
        "{\"added_tokens\":[{\"id\":9,\"content\":\"<m>\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false,"
        "\"special\":false},"
        "{\"id\":10,\"content\":\"e\\u0301\",\"normalized\":true,\"special\":false},"
        "{\"id\":11,\"content\":\"<s>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"}," MODEL("\"a b\"") "}",
        NULL);
    expect(t, "ab \xc2\xa0<m>\n ab", false, 3, 9, 3);
    expect(t,
           "a\xc3\xa9"
           "a",
           false, 0, 10, 0);
    expect(t, "<s>a", true, 11, 0);
    ck_assert_int_eq(bk_tokenizer_size(t), 12);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(what_is_not_supported_is_refused_by_name)
{
    static const struct {
        const char *json, *says;
        bk_status code;
    } cases[] = {
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL("") "}", "'Lowercase'", BK_EUNSUP},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Precompiled\"}]}," MODEL("") "}",
         "'Precompiled'", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL("") "}", "'Whitespace'", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}"
         "," MODEL("") "}",
         "'Digits' after ByteLevel", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Odd\"}," MODEL("") "}",
         "'Odd'", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Isolated\"}," MODEL(
             "") "}",
         "nests", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,3}+\"},\"behavior\":\"Isolated\"}," MODEL(
             "") "}",
         "{n,m}+", BK_EUNSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}," MODEL(
             "") "}",
         "'(a'", BK_EFORMAT},
        {"{\"post_processor\":{\"type\":\"RobertaProcessing\"}," MODEL("") "}", "'RobertaProcessing'", BK_EUNSUP},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "'Unigram'", BK_EUNSUP},
        {"{\"model\":{\"dropout\":0.1," VOCAB ",\"merges\":[]}}", "dropout", BK_EUNSUP},
        {"{\"model\":{\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]}}", "end_of_word_suffix", BK_EUNSUP},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"<m>\",\"single_word\":true}]," MODEL("") "}", "single_word",
         BK_EUNSUP},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]," MODEL("") "}", "'a' has the id 9, but 0", BK_EFORMAT},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"<m>\"}]," MODEL("") "}", "id 3 is given to two tokens",
         BK_EFORMAT},
        {"{\"added_tokens\":[{\"id\":-3,\"content\":\"<m>\"}]," MODEL("") "}", "added_tokens[0] has no id", BK_EFORMAT},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"m\\u0000\"}]," MODEL("") "}", "token 9 holds a NUL", BK_EFORMAT},
        {"{\"model\":{\"vocab\":{\"a\":4000000000},\"merges\":[]}}", "a has no id", BK_EFORMAT},
        {"{\"model\":{\"unk_token\":\"?\"," VOCAB ",\"merges\":[]}}", "unk_token '?'", BK_EFORMAT},
        {"{" MODEL("\"a b c\"") "}", "merges[0]", BK_EFORMAT},
        {"{" MODEL("[\"a\",\"b\",\"c\"]") "}", "merges[0]", BK_EFORMAT},
        {"{" MODEL("17") "}", "merges[0]", BK_EFORMAT},
        {"{" MODEL("\"a b\",\"b c\"") "}", "merges[1]: its result 'bc'", BK_EFORMAT},
        {"{}", "no model", BK_EFORMAT},
        {"[]", "no model", BK_EFORMAT},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "0 tokens", BK_EFORMAT},
    };
    bk_error err = {0};
    bk_tokenizer *t;
    bk_status s = read_json(cases[_i].json, NULL, &t, &err);
    ck_assert_msg(s == cases[_i].code && strstr(err.msg, cases[_i].says), "%s: %s", bk_status_name(s), err.msg);
    ck_assert_ptr_null(t);
}
END_TEST

#define TEMPLATE                                                                                    \
    "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":" \
    "\"TemplateProcessing\",\"single\":"                                                            \
    "[{\"SpecialToken\":{\"id\":\"c\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}]},"

START_TEST(policy_of_bos)
{
    static const struct {
        const char *template, *config;
        int64_t bos;
        bool add;
    } cases[] = {
        {"", NULL, -1, false},
        {"", "{}", -1, false},
        {"", "{\"bos_token\":null,\"add_bos_token\":true}", -1, false},
        {"", "{\"bos_token\":\"b\"}", 1, false},
        {"", "{\"bos_token\":\"b\",\"add_bos_token\":true}", 1, true},
        {"", "{\"bos_token\":{\"content\":\"b\"},\"add_bos_token\":false}", 1, false},
        {TEMPLATE, NULL, 2, true},
        {TEMPLATE, "{\"bos_token\":\"c\"}", 2, true},
        {TEMPLATE, "{\"bos_token\":\"c\",\"add_bos_token\":true}", 2, true},
        {TEMPLATE, "{\"bos_token\":\"c\",\"add_bos_token\":false}", 2, false},
        {TEMPLATE, "{\"bos_token\":null}", 2, true},
    };
    char json[1024];
    snprintf(json, sizeof json, "{%s" MODEL("") "}", cases[_i].template);
    bk_tokenizer *t = from_json(json, cases[_i].config);
    ck_assert_int_eq(bk_tokenizer_bos(t), cases[_i].bos);
    ck_assert_int_eq(bk_tokenizer_add_bos(t), cases[_i].add);
    bk_tokenizer_free(t);
}
END_TEST

START_TEST(a_bos_token_that_is_none_is_refused)
{
    bk_error err = {0};
    bk_tokenizer *t;
    ck_assert_int_eq(read_json("{" MODEL("") "}", "{\"bos_token\":\"<zz>\"}", &t, &err), BK_EFORMAT);
    ck_assert_msg(strstr(err.msg, "'<zz>'") != NULL, "%s", err.msg);
}
END_TEST

START_TEST(an_expression_that_never_ends_is_stopped_and_placed)
{
    bk_tokenizer *t = from_json("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"c|(a+)+[bc]\"},"
                                "\"behavior\":\"Isolated\"}," MODEL("") "}",
                                NULL);
    encode_fails(t, "caaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 46, "at byte 1");
    bk_tokenizer_free(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer.json");
    TCase *j = tcase_create("all");
    tcase_set_timeout(j, 60);
    tcase_add_loop_test(j, ids_agree_with_hugging_face, 0, 5);
    tcase_add_loop_test(j, merges_are_strings_or_pairs, 0, 2);
    tcase_add_test(j, unknown_characters_are_fused_only_if_asked);
    tcase_add_loop_test(j, steps_of_a_tokenizer_json, 0, 19);
    tcase_add_test(j, token_texts_with_escapes_are_read_right);
    tcase_add_loop_test(j, broken_token_texts_are_refused, 0, 4);
    tcase_add_test(j, added_tokens_take_white_space_along);
    tcase_add_loop_test(j, what_is_not_supported_is_refused_by_name, 0, 26);
    tcase_add_loop_test(j, policy_of_bos, 0, 11);
    tcase_add_test(j, a_bos_token_that_is_none_is_refused);
    tcase_add_test(j, an_expression_that_never_ends_is_stopped_and_placed);
    suite_add_tcase(s, j);
    return run_suite(s);
}
