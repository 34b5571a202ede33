#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/text.h"
#include "io/tokenizer_impl.h"
#include "tests/suite.h"

static char dir[64];
static bk_tokenizer *tok;
static bk_text text;

/* One id per byte, id = byte; BOS is 256. */
static bk_tokenizer *byte_tokenizer(bool with_bos)
{
    bk_error err = {0};
    bk_json *doc = bk_json_object(), *model = bk_json_object(), *vocab = bk_json_object(), *level = bk_json_object(),
            *added = bk_json_array();
    bk_json *bos = bk_json_object(), *config = bk_json_object();
    for (int b = 0; b < 256; b++) {
        char c[5] = "";
        uint32_t cp = bk_byte_to_char((unsigned char)b);
        if (cp < 0x80)
            c[0] = (char)cp;
        else
            snprintf(c, sizeof c, "%c%c", (char)(0xc0 | cp >> 6), (char)(0x80 | (cp & 0x3f)));
        bk_json_set(vocab, c, bk_json_of_int(b));
    }
    bk_json_set(model, "vocab", vocab);
    bk_json_set(model, "merges", bk_json_array());
    bk_json_set(doc, "model", model);
    bk_json_set(level, "type", bk_json_of_text("ByteLevel"));
    bk_json_set(level, "add_prefix_space", bk_json_of_bool(false));
    bk_json_set(doc, "pre_tokenizer", level);
    bk_json_set(bos, "id", bk_json_of_int(256));
    bk_json_set(bos, "content", bk_json_of_text("<s>"));
    bk_json_set(bos, "special", bk_json_of_bool(true));
    bk_json_push(added, bos);
    bk_json_set(doc, "added_tokens", added);
    if (with_bos) bk_json_set(config, "bos_token", bk_json_of_text("<s>"));
    bk_tokenizer *t;
    ck_assert_msg(bk_tokenizer_from_json(doc, config, &t, &err) == BK_OK, "%s", err.msg);
    bk_json_free(doc);
    bk_json_free(config);
    return t;
}

static void set_up(void)
{
    strcpy(dir, "/tmp/brick-text-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    tok = byte_tokenizer(true);
    text = (bk_text){0};
}

static void tear_down(void)
{
    bk_text_free(&text);
    bk_tokenizer_free(tok);
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

static const char *file(const char *name, const void *data, size_t n)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_assert_int_eq(bk_write_file(path, data, n, NULL), BK_OK);
    return path;
}

static void load_n(const char *name, const char *data, size_t n, bk_text_options opt)
{
    bk_error err = {0};
    ck_assert_msg(bk_text_load(file(name, data, n), tok, &opt, &text, &err) == BK_OK, "%s", err.msg);
}

static void load(const char *name, const char *data, bk_text_options opt)
{
    load_n(name, data, strlen(data), opt);
}

static void load_fails(const char *name, const char *data, size_t n, bk_text_options opt, bk_status code,
                       const char *says)
{
    bk_error err = {0};
    ck_assert_int_eq(bk_text_load(file(name, data, n), tok, &opt, &text, &err), code);
    ck_assert_msg(strstr(err.msg, says) != NULL, "%s", err.msg);
    ck_assert_ptr_null(text.ids);
}

static void check_ids(const char *want, size_t n)
{
    ck_assert_int_eq(text.n, n);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(text.ids[i], (unsigned char)want[i]);
}

static const bk_text_options plain = {0};

START_TEST(bytes_of_a_text_stay_as_they_are)
{
    const char odd[] = "a\r\nb\0c\xff\xc3\r";
    load_n("t.txt", odd, sizeof odd - 1, plain);
    check_ids(odd, sizeof odd - 1);
    ck_assert_int_eq(text.n_docs, 1);
    ck_assert_int_eq(text.ledger.bytes, sizeof odd - 1);
    ck_assert_int_eq(text.ledger.tokens, sizeof odd - 1);
    ck_assert_int_eq(text.ledger.documents, 1);
}
END_TEST

START_TEST(a_byte_order_mark_at_the_start_is_dropped)
{
    load("t.txt", "\xef\xbb\xbfx\xef\xbb\xbf", plain);
    check_ids("x\xef\xbb\xbf", 4);
    bk_text_free(&text);
    load("t.jsonl", "\xef\xbb\xbf{\"text\":\"x\"}\r\n", plain);
    check_ids("x", 1);
}
END_TEST

START_TEST(the_hash_is_that_of_the_file)
{
    load("t.txt", "abc", plain);
    ck_assert_str_eq(text.ledger.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
END_TEST

START_TEST(lines_are_joined_as_rows_of_wikitext)
{
    load("t.txt", " \n = A = \n \n b \n", (bk_text_options){.join = "\n\n"});
    check_ids("\n\n = A = \n\n\n\n\n b \n", 18);
}
END_TEST

START_TEST(a_bos_stands_once_before_a_text_and_before_each_document)
{
    load("t.txt", "ab", (bk_text_options){.bos = true});
    ck_assert_int_eq(text.n, 3);
    ck_assert_int_eq(text.ids[0], 256);
    ck_assert_int_eq(text.ledger.bos_inside, 0);
    bk_text_free(&text);
    load("t.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"b\"}", (bk_text_options){.bos = true});
    ck_assert_int_eq(text.n, 4);
    ck_assert_int_eq(text.ids[2], 256);
    ck_assert_int_eq(text.doc_start[1], 2);
    ck_assert_int_eq(text.doc_start[2], 4);
}
END_TEST

START_TEST(a_bos_that_does_not_exist_is_refused)
{
    bk_tokenizer_free(tok);
    tok = byte_tokenizer(false);
    load_fails("t.txt", "ab", 2, (bk_text_options){.bos = true}, BK_EINVAL, "the tokenizer has none");
    load("t.txt", "ab", plain);
    check_ids("ab", 2);
}
END_TEST

START_TEST(a_bos_inside_is_counted_and_kept_or_stripped)
{
    load("t.txt", "<s>a<s>", plain);
    ck_assert_int_eq(text.n, 7);
    ck_assert_int_eq(text.ledger.bos_inside, 0);
    bk_text_free(&text);
    load("t.txt", "<s>a<s>", (bk_text_options){.parse_special = true});
    ck_assert_int_eq(text.n, 3);
    ck_assert_int_eq(text.ledger.bos_inside, 2);
    bk_text_free(&text);
    load("t.txt", "<s>a<s>", (bk_text_options){.parse_special = true, .strip_bos = true});
    check_ids("a", 1);
    ck_assert_int_eq(text.ledger.bos_inside, 2);
    bk_text_free(&text);
    load("t.jsonl", "{\"ids\":[256,97]}", (bk_text_options){.bos = true});
    ck_assert_int_eq(text.n, 3);
    ck_assert_int_eq(text.ledger.bos_inside, 1);
}
END_TEST

START_TEST(documents_of_a_jsonl_file)
{
    load("t.jsonl",
         "{\"text\":\"ab\", \"other\":1}\n{\"ids\":[3,255]}\n{\"text\":\"\"}\n{\"text\":\"\\u0000\\u00e9\"}\n", plain);
    check_ids("ab\3\xff\0\xc3\xa9", 7);
    ck_assert_int_eq(text.n_docs, 4);
    ck_assert_int_eq(text.doc_start[2], 4);
    ck_assert_int_eq(text.doc_start[3], 4);
}
END_TEST

START_TEST(a_bad_line_is_named)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"text\":\"a\"}\n{\"text\":\"b\n", "t.jsonl:2:"},
        {"\n\n{\"text\":7}", "t.jsonl:3:1: no string"},
        {"[1]", "t.jsonl:1:1: no string"},
        {"{\"text\":\"a\",\"ids\":[1]}", "t.jsonl:1:1: both"},
        {"{\"ids\":[1,257]}", "t.jsonl:1:1: ids[1]"},
        {"{\"ids\":[1.5]}", "ids[0]"},
        {"{\"text\":\"\xff\"}", "t.jsonl:1:"},
    };
    load_fails("t.jsonl", cases[_i].text, strlen(cases[_i].text), plain, BK_EFORMAT, cases[_i].says);
}
END_TEST

START_TEST(lines_of_jsonl_are_not_joined)
{
    load_fails("t.jsonl", "{\"text\":\"a\"}", 12, (bk_text_options){.join = "\n\n"}, BK_EINVAL, "joined");
}
END_TEST

START_TEST(an_absent_file_is_an_io_error)
{
    bk_error err = {0};
    ck_assert_int_eq(bk_text_load("/nonexistent/t.txt", tok, &plain, &text, &err), BK_EIO);
}
END_TEST

/* ---- samples ---- */

START_TEST(windows_stand_side_by_side_and_the_tail_is_dropped)
{
    bk_samples s;
    load("t.txt", "abcdefgh", plain);
    ck_assert_int_eq(bk_samples_windows(&text, 3, -1, &s, NULL), BK_OK);
    ck_assert_int_eq(s.n, 2);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(s.ids[i], 'a' + i);
    ck_assert_int_eq(s.ledger.asked, 2);
    bk_samples_free(&s);
    ck_assert_int_eq(bk_samples_windows(&text, 3, 1, &s, NULL), BK_OK);
    ck_assert_int_eq(s.n, 1);
    bk_samples_free(&s);
    ck_assert_int_eq(bk_samples_windows(&text, 3, 5, &s, NULL), BK_OK);
    ck_assert_int_eq(s.ledger.asked, 5);
    ck_assert_int_eq(s.ledger.kept, 2);
    ck_assert_int_eq(s.ledger.dropped, 3);
    bk_samples_free(&s);
}
END_TEST

START_TEST(windows_run_across_documents)
{
    bk_samples s;
    load("t.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cd\"}", plain);
    ck_assert_int_eq(bk_samples_windows(&text, 4, -1, &s, NULL), BK_OK);
    ck_assert_int_eq(s.ids[3], 'd');
    bk_samples_free(&s);
}
END_TEST

START_TEST(no_sample_at_all_is_an_error)
{
    static const struct {
        const char *name, *text;
    } cases[] = {
        {"t.txt", ""}, {"t.txt", "abc"}, {"t.jsonl", "\n\n \n"}, {"t.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}"}};
    bk_error err = {0}, err2 = {0};
    bk_samples s;
    load(cases[_i].name, cases[_i].text, plain);
    ck_assert_int_eq(bk_samples_windows(&text, 4, -1, &s, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, "not one window of 4") != NULL, "%s", err.msg);
    ck_assert_int_eq(bk_samples_draw(&text, 4, 8, 0, 1, &s, &err2), BK_EINVAL);
    ck_assert_msg(strstr(err2.msg, "no sample of 4") != NULL, "%s", err2.msg);
    ck_assert_ptr_null(s.ids);
}
END_TEST

START_TEST(arguments_that_make_no_sense_are_refused)
{
    bk_samples s;
    load("t.txt", "abc", plain);
    ck_assert_int_eq(bk_samples_windows(&text, 0, -1, &s, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_samples_windows(&text, 1, 0, &s, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_samples_draw(&text, 0, 1, 0, 1, &s, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_samples_draw(&text, 1, 0, 0, 1, &s, NULL), BK_EINVAL);
    ck_assert_int_eq(bk_samples_draw(&text, 1, 1, -1, 1, &s, NULL), BK_EINVAL);
}
END_TEST

/* 256 different ids, so that a sample tells where it was. */
static void load_all_bytes(void)
{
    char all[256];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    load_n("t.txt", all, 256, plain);
}

START_TEST(drawn_samples_are_disjoint_pieces_of_the_text)
{
    bk_samples s;
    bool used[256] = {0};
    load_all_bytes();
    ck_assert_int_eq(bk_samples_draw(&text, 10, 25, 0, 7, &s, NULL), BK_OK);
    ck_assert_int_eq(s.n, 25);
    for (int i = 0; i < 250; i++) {
        if (i % 10) ck_assert_int_eq(s.ids[i], s.ids[i - 1] + 1);
        ck_assert(!used[s.ids[i]]);
        used[s.ids[i]] = true;
    }
    bk_samples_free(&s);
}
END_TEST

START_TEST(skip_goes_on_in_the_same_order)
{
    bk_samples all, head, tail;
    load_all_bytes();
    ck_assert_int_eq(bk_samples_draw(&text, 10, 12, 0, 7, &all, NULL), BK_OK);
    ck_assert_int_eq(bk_samples_draw(&text, 10, 8, 0, 7, &head, NULL), BK_OK);
    ck_assert_int_eq(bk_samples_draw(&text, 10, 4, 8, 7, &tail, NULL), BK_OK);
    ck_assert_mem_eq(all.ids, head.ids, 80 * sizeof *all.ids);
    ck_assert_mem_eq(all.ids + 80, tail.ids, 40 * sizeof *all.ids);
    bk_samples_free(&all);
    bk_samples_free(&head);
    bk_samples_free(&tail);
}
END_TEST

START_TEST(the_seed_decides_order_and_offset)
{
    bk_samples a, b, c;
    load_all_bytes();
    ck_assert_int_eq(bk_samples_draw(&text, 10, 25, 0, 7, &a, NULL), BK_OK);
    ck_assert_int_eq(bk_samples_draw(&text, 10, 25, 0, 7, &b, NULL), BK_OK);
    ck_assert_int_eq(bk_samples_draw(&text, 10, 25, 0, 8, &c, NULL), BK_OK);
    ck_assert_mem_eq(a.ids, b.ids, 250 * sizeof *a.ids);
    ck_assert_int_ne(memcmp(a.ids, c.ids, 250 * sizeof *a.ids), 0);
    bk_samples_free(&a);
    bk_samples_free(&b);
    bk_samples_free(&c);
}
END_TEST

START_TEST(samples_stay_inside_documents_and_the_ledger_counts)
{
    bk_samples s;
    load("t.jsonl", "{\"text\":\"aaaa\"}\n{\"text\":\"bbb\"}\n{\"text\":\"ccccc\"}\n{\"text\":\"ddddddddd\"}", plain);
    ck_assert_int_eq(bk_samples_draw(&text, 4, 8, 0, 3, &s, NULL), BK_OK);
    ck_assert_int_eq(s.ledger.asked, 8);
    ck_assert_int_eq(s.ledger.kept, 4); /* a, c, d, d */
    ck_assert_int_eq(s.ledger.dropped, 4);
    ck_assert_int_eq(s.ledger.shorter, 1); /* b */
    ck_assert_int_eq(s.ledger.documents, 4);
    for (int i = 0; i < 16; i++) ck_assert_int_eq(s.ids[i], s.ids[i / 4 * 4]);
    bk_samples_free(&s);
    bk_error err = {0};
    ck_assert_int_eq(bk_samples_draw(&text, 4, 1, 4, 3, &s, &err), BK_EINVAL);
    ck_assert_msg(strstr(err.msg, "4 are in use") != NULL, "%s", err.msg);
}
END_TEST

START_TEST(one_sample_of_the_texts_own_length)
{
    bk_samples s;
    load("t.txt", "abcd", plain);
    ck_assert_int_eq(bk_samples_draw(&text, 4, 1, 0, 9, &s, NULL), BK_OK);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(s.ids[i], 'a' + i);
    bk_samples_free(&s);
    ck_assert_int_eq(bk_samples_draw(&text, 5, 1, 0, 9, &s, NULL), BK_EINVAL);
}
END_TEST

/* One token less than a sample, a sample, one more; a sample and a half, of which eight were asked for. */
START_TEST(texts_about_as_long_as_a_sample)
{
    static const struct {
        int64_t tokens, samples;
    } texts[] = {{1, 0}, {7, 0}, {8, 1}, {9, 1}, {12, 1}};
    const char letters[] = "abcdefghijkl";
    int64_t want = texts[_i].samples;
    bk_samples s;
    load_n("t.txt", letters, (size_t)texts[_i].tokens, plain);
    ck_assert_int_eq(bk_samples_windows(&text, 8, -1, &s, NULL), want ? BK_OK : BK_EINVAL);
    ck_assert_int_eq(s.n, want);
    bk_samples_free(&s);
    ck_assert_int_eq(bk_samples_draw(&text, 8, 8, 0, 3, &s, NULL), want ? BK_OK : BK_EINVAL);
    ck_assert_int_eq(s.n, want);
    if (want) {
        ck_assert_int_eq(s.ledger.asked, 8);
        ck_assert_int_eq(s.ledger.kept, 1);
        ck_assert_int_eq(s.ledger.dropped, 7);
    }
    bk_samples_free(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("text");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, bytes_of_a_text_stay_as_they_are);
    tcase_add_test(c, a_byte_order_mark_at_the_start_is_dropped);
    tcase_add_test(c, the_hash_is_that_of_the_file);
    tcase_add_test(c, lines_are_joined_as_rows_of_wikitext);
    tcase_add_test(c, a_bos_stands_once_before_a_text_and_before_each_document);
    tcase_add_test(c, a_bos_that_does_not_exist_is_refused);
    tcase_add_test(c, a_bos_inside_is_counted_and_kept_or_stripped);
    tcase_add_test(c, documents_of_a_jsonl_file);
    tcase_add_loop_test(c, a_bad_line_is_named, 0, 7);
    tcase_add_test(c, lines_of_jsonl_are_not_joined);
    tcase_add_test(c, an_absent_file_is_an_io_error);
    tcase_add_test(c, windows_stand_side_by_side_and_the_tail_is_dropped);
    tcase_add_test(c, windows_run_across_documents);
    tcase_add_loop_test(c, no_sample_at_all_is_an_error, 0, 4);
    tcase_add_test(c, arguments_that_make_no_sense_are_refused);
    tcase_add_test(c, drawn_samples_are_disjoint_pieces_of_the_text);
    tcase_add_test(c, skip_goes_on_in_the_same_order);
    tcase_add_test(c, the_seed_decides_order_and_offset);
    tcase_add_test(c, samples_stay_inside_documents_and_the_ledger_counts);
    tcase_add_test(c, one_sample_of_the_texts_own_length);
    tcase_add_loop_test(c, texts_about_as_long_as_a_sample, 0, 5);
    suite_add_tcase(s, c);
    return run_suite(s);
}
