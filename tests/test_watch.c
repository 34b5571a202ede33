/* What a run tells others, and how it is read: records that are torn, lines that are half written, runs that go on,
 * have ended or died. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "experiments/progress.h"
#include "experiments/run_view.h"
#include "experiments/watch_text.h"
#include "io/file.h"
#include "io/lock.h"
#include "tests/count_alloc.h"
#include "tests/suite.h"

static char dir[64], line[BK_WATCH_LINE];
static bk_error err;
static bk_run_view view;

static void must(bk_status st)
{
    if (st) ck_abort_msg("%s: %s", bk_status_name(st), err.msg);
}

static const char *at(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(at(name), "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void setup(void)
{
    strcpy(dir, "/tmp/bk_watch_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    put("config.yaml", "");
    put("manifest.json", "{}");
}

static void teardown(void)
{
    must(bk_remove_tree(dir, &err));
}

static void look(void)
{
    must(bk_run_view_read(dir, &view, &err));
    bk_watch_line(&view, line);
}

/* A run of 30 blocks and 20 epochs that is in block 13 of its training. */
static void publish(bk_beacon *b)
{
    bk_progress p;
    bk_beacon_open(b, dir, 30, 20, bk_seconds());
    bk_progress_begin(&p, "train", 4, 5, 3000);
    bk_progress_publish(&p, b);
    p.began -= 100;
    b->written -= 1;
    bk_progress_step(&p, 1250);
}

static bk_lock held;

static void hold_lock(void)
{
    bk_lock_owner owner;
    must(bk_lock_try(&held, at("run.lock"), &owner, &err));
    ck_assert_ptr_nonnull(held.path);
}

/* --- records --- */

START_TEST(record_is_read_as_it_was_written)
{
    bk_beacon b;
    bk_beacon_record r;
    publish(&b);
    bk_beacon_close(&b);
    ck_assert(bk_beacon_read(dir, &r));
    ck_assert_str_eq(r.stage, "train");
    ck_assert(r.number == 4 && r.of == 5 && r.done == 1250 && r.total == 3000 && r.block == 12 && r.blocks == 30 &&
              r.epochs == 20);
    ck_assert_double_eq_tol(r.left, 140, 1);
    ck_assert_int_le(llabs((long long)time(NULL) - (long long)r.updated), 2);
}
END_TEST

START_TEST(record_has_a_fixed_size_and_is_one_line_of_json)
{
    bk_beacon b;
    char *text;
    size_t len;
    bk_json *o;
    publish(&b);
    bk_beacon_close(&b);
    must(bk_file_slurp(at(BK_BEACON_FILE), 4096, &text, &len, &err));
    ck_assert_uint_eq(len, BK_BEACON_SIZE);
    ck_assert_ptr_eq(strchr(text, '\n'), text + len - 1);
    must(bk_json_parse(text, len, "record", &o, &err));
    bk_json_free(o);
    free(text);
}
END_TEST

START_TEST(record_that_is_half_overwritten_is_not_taken)
{
    bk_beacon b;
    bk_beacon_record r;
    char *text;
    size_t len;
    publish(&b);
    bk_beacon_close(&b);
    must(bk_file_slurp(at(BK_BEACON_FILE), 4096, &text, &len, &err));
    memcpy(strstr(text, "\"record\": "), "\"record\": 7", 11);
    put(BK_BEACON_FILE, text);
    ck_assert(!bk_beacon_read(dir, &r));
    text[300] = 0;
    put(BK_BEACON_FILE, text);
    ck_assert(!bk_beacon_read(dir, &r));
    free(text);
}
END_TEST

START_TEST(record_is_not_written_more_than_twice_a_second)
{
    bk_beacon b;
    bk_beacon_open(&b, dir, 1, 1, bk_seconds());
    uint64_t before = b.count;
    for (int i = 0; i < 1000; i++)
        bk_beacon_show(&b, &(bk_beacon_record){.stage = "train"}, b.opened + i * 0.001, false);
    ck_assert_uint_eq(b.count - before, 1);
    bk_beacon_close(&b);
}
END_TEST

START_TEST(telling_allocates_nothing)
{
    bk_beacon b;
    if (!bk_alloc_counted()) return;
    bk_beacon_open(&b, dir, 30, 20, bk_seconds());
    bk_alloc_count_from_here();
    for (int i = 0; i < 100; i++)
        bk_beacon_show(&b, &(bk_beacon_record){.stage = "train", .done = i, .total = 100, .left = 1e5 / (i + 1)}, i,
                       true);
    ck_assert_int_eq(bk_alloc_count(), 0);
    bk_beacon_close(&b);
}
END_TEST

START_TEST(folder_that_cannot_be_told_to_harms_nothing)
{
    bk_beacon b;
    ck_assert_int_eq(mkdir(at(BK_BEACON_FILE), 0777), 0);
    publish(&b);
    ck_assert(!b.open);
    bk_beacon_close(&b);
    look();
    ck_assert(!view.told);
}
END_TEST

START_TEST(resumed_progress_counts_its_own_steps_only)
{
    bk_beacon b;
    bk_beacon_record r;
    bk_progress p;
    bk_beacon_open(&b, dir, 30, 20, bk_seconds());
    bk_progress_begin(&p, "train", 4, 5, 3000);
    bk_progress_resume(&p, 2900);
    p.began -= 10;
    b.written -= 1;
    bk_progress_publish(&p, &b);
    ck_assert(bk_beacon_read(dir, &r) && isnan(r.left));
    b.written -= 1;
    bk_progress_step(&p, 50);
    ck_assert(bk_beacon_read(dir, &r));
    ck_assert_double_eq_tol(r.left, 10, 0.5);
    bk_beacon_close(&b);
}
END_TEST

/* --- a run --- */

#define EPOCH3 "{\"block\": 12, \"epoch\": 3, \"loss\": 0.00012, \"val_loss\": 0.00034}\n"

START_TEST(running_run_shows_block_epoch_and_losses)
{
    bk_beacon b;
    publish(&b);
    put("metrics.jsonl", "{\"block\": 12, \"epoch\": 2, \"loss\": 1}\n" EPOCH3);
    hold_lock();
    look();
    ck_assert_int_eq(view.state, BK_VIEW_RUNNING);
    ck_assert_str_eq(line,
                     "[4/5] train 42%, 2m20s left, block 12 (13 of 30), epoch 3/20, loss 1.200e-04, validation 3.400e-04");
    bk_lock_release(&held);
    bk_beacon_close(&b);
}
END_TEST

/* What a killed writer, or one that is just writing, leaves behind whole lines. */
static const char *const half[] = {
    "{", "{\"block\": 13, \"epo", "{\"block\": 13, \"epoch\": 1, \"loss\": 5}", "{\"block\": 13\n", "\n", "\xff\n"};

START_TEST(half_a_line_of_metrics_is_passed_over)
{
    char text[512];
    bk_beacon b;
    publish(&b);
    bk_beacon_close(&b);
    snprintf(text, sizeof text, EPOCH3 "%s", half[_i]);
    put("metrics.jsonl", text);
    look();
    ck_assert_int_eq(view.block, 12);
    ck_assert_int_eq(view.epoch, 3);
}
END_TEST

START_TEST(long_metrics_are_read_from_their_end)
{
    FILE *f = fopen(at("metrics.jsonl"), "w");
    for (int i = 0; i < 2000; i++) fprintf(f, "{\"block\": %d, \"epoch\": 1, \"loss\": %d}\n", i, i);
    fclose(f);
    look();
    ck_assert_int_eq(view.block, 1999);
    ck_assert_double_eq(view.loss, 1999);
}
END_TEST

START_TEST(an_epoch_of_many_steps_is_read)
{
    FILE *f = fopen(at("metrics.jsonl"), "w");
    fputs("{\"block\": 2, \"epoch\": 1}\n{\"block\": 2, \"epoch\": 2, \"losses\": [0", f);
    for (int i = 0; i < 20000; i++) fprintf(f, ", %.17g", 1.0 / (i + 3));
    fputs("], \"loss\": 0.5}\n", f);
    fclose(f);
    look();
    ck_assert_int_eq(view.epoch, 2);
    ck_assert_double_eq(view.loss, 0.5);
}
END_TEST

START_TEST(run_that_has_just_begun_is_no_error)
{
    hold_lock();
    look();
    ck_assert_str_eq(line, "begins");
    bk_lock_release(&held);
}
END_TEST

START_TEST(free_lock_without_summary_is_a_stopped_run)
{
    bk_beacon b;
    publish(&b);
    bk_beacon_close(&b);
    put("log.txt", "info  prefix: none\nerror block 12: no space left\n");
    look();
    ck_assert_int_eq(view.state, BK_VIEW_STOPPED);
    ck_assert_str_eq(line, "stopped at [4/5] train, block 12 (13 of 30): block 12: no space left");
}
END_TEST

START_TEST(files_of_others_do_not_steer_the_terminal)
{
    put("log.txt", "error \033[31mred\r\n");
    look();
    ck_assert_str_eq(line, "stopped before its first stage: \\x1b[31mred\\r");
}
END_TEST

START_TEST(killed_run_has_no_last_words)
{
    put("log.txt", "error of an earlier start\ninfo  the same command goes on\ninfo  prefix: none\n");
    look();
    ck_assert_str_eq(line, "stopped before its first stage");
}
END_TEST

START_TEST(summary_is_the_end_also_while_the_lock_is_held)
{
    put("summary.json",
        "{\"ppl\": {\"fp\": 11.5, \"final\": 12.25}, \"blocks\": [{\"fell_back\": true}, {\"fell_back\": false}]}");
    hold_lock();
    look();
    ck_assert_int_eq(view.state, BK_VIEW_FINISHED);
    ck_assert_str_eq(line, "finished: perplexity 12.2500, full precision 11.5000; 1 blocks could not be trained");
    bk_lock_release(&held);
}
END_TEST

START_TEST(run_that_came_to_nothing_says_why)
{
    static const char *const nothing[][2] = {
        {"\"gptq\": {\"linears\": 7, \"fell_back\": 7}, \"blocks\": [{\"fell_back\": false}]", "; GPTQ rounded no linear"},
        {"\"gptq\": {\"linears\": 7, \"fell_back\": 6}, \"blocks\": [{\"fell_back\": true}]", "; no block could be trained"},
        {"\"gptq\": {\"linears\": 7, \"fell_back\": 6}, \"blocks\": [{\"fell_back\": false}]", NULL}};
    for (int i = 0; i < 3; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"ppl\": {\"final\": 12.25}, %s}", nothing[i][0]);
        put("summary.json", text);
        look();
        const char *words = strchr(line, ';');
        ck_assert(nothing[i][1] ? words && !strncmp(words, nothing[i][1], strlen(nothing[i][1])) : !words);
    }
}
END_TEST

START_TEST(run_without_a_word_for_long_is_called_silent)
{
    bk_beacon b;
    publish(&b);
    bk_beacon_close(&b);
    hold_lock();
    look();
    ck_assert_ptr_null(strstr(line, "silent"));
    view.at.updated -= 300;
    bk_watch_line(&view, line);
    ck_assert_ptr_nonnull(strstr(line, "silent for 5m"));
    bk_lock_release(&held);
}
END_TEST

/* The owner of the lock is a process that has ended. */
START_TEST(lock_of_a_dead_process_is_none)
{
    pid_t pid = fork();
    if (pid == 0) {
        hold_lock();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    look();
    ck_assert_int_eq(view.state, BK_VIEW_STOPPED);
    bk_lock_owner owner;
    ck_assert_int_eq(bk_lock_look(at("run.lock"), &owner), BK_LOCK_DEAD);
    ck_assert_int_eq(owner.pid, pid);
}
END_TEST

START_TEST(other_folders_are_refused)
{
    ck_assert_int_eq(unlink(at("manifest.json")), 0);
    ck_assert_int_eq(bk_run_view_read(dir, &view, &err), BK_EIO);
    ck_assert_int_eq(bk_run_view_read("/nowhere", &view, &err), BK_EIO);
}
END_TEST

START_TEST(rows_align_with_their_head)
{
    bk_beacon b;
    char head[BK_WATCH_LINE];
    publish(&b);
    put("metrics.jsonl", EPOCH3);
    hold_lock();
    look();
    bk_watch_head(10, head);
    bk_watch_row("a", 10, &view, line);
    const char *pairs[][2] = {
        {"block", "12 (13/30)"}, {"epoch", "3/20"}, {"loss", "1.200e-04"}, {"validation", "3.400e-04"}, {"left", "2m20s"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *h = strstr(head, pairs[i][0]), *r = strstr(line, pairs[i][1]);
        ck_assert_msg(h && r, "%s", pairs[i][0]);
        ck_assert_int_eq(h - head + (long)strlen(pairs[i][0]), r - line + (long)strlen(pairs[i][1]));
    }
    bk_lock_release(&held);
    bk_beacon_close(&b);
}
END_TEST

START_TEST(advice_is_quoted_for_a_shell)
{
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    bk_watch_resume("it's here", f);
    fclose(f);
    ck_assert_str_eq(text, "brick run 'it'\\''s here/config.yaml' --out 'it'\\''s here' --resume");
    free(text);
}
END_TEST

/* Where its file is the run does not know: that is no part of what it computes. */
START_TEST(advice_names_the_plugins_that_it_takes)
{
    static const char *const plugins[][2] = {{"{}", " --resume"},
                                             {"{\"odd\": \"00ff\"}", " --resume --plugin FILE.so (which has the quantizer odd)"},
                                             {"{\"odd\": \"00ff\", \"widen\": \"0f\"}",
                                              " --resume --plugin FILE.so (which has the quantizer odd)"
                                              " --plugin FILE.so (which has the quantizer widen)"}};
    for (int i = 0; i < 3; i++) {
        char manifest[200], *text;
        size_t len;
        snprintf(manifest, sizeof manifest, "{\"plugins\": %s}", plugins[i][0]);
        put("manifest.json", manifest);
        FILE *f = open_memstream(&text, &len);
        bk_watch_resume(dir, f);
        fclose(f);
        ck_assert_str_eq(strstr(text, " --resume"), plugins[i][1]);
        free(text);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("watch");
    TCase *t = tcase_create("watch");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, record_is_read_as_it_was_written);
    tcase_add_test(t, record_has_a_fixed_size_and_is_one_line_of_json);
    tcase_add_test(t, record_that_is_half_overwritten_is_not_taken);
    tcase_add_test(t, record_is_not_written_more_than_twice_a_second);
    tcase_add_test(t, telling_allocates_nothing);
    tcase_add_test(t, folder_that_cannot_be_told_to_harms_nothing);
    tcase_add_test(t, resumed_progress_counts_its_own_steps_only);
    tcase_add_test(t, running_run_shows_block_epoch_and_losses);
    tcase_add_loop_test(t, half_a_line_of_metrics_is_passed_over, 0, sizeof half / sizeof half[0]);
    tcase_add_test(t, long_metrics_are_read_from_their_end);
    tcase_add_test(t, an_epoch_of_many_steps_is_read);
    tcase_add_test(t, run_that_has_just_begun_is_no_error);
    tcase_add_test(t, free_lock_without_summary_is_a_stopped_run);
    tcase_add_test(t, files_of_others_do_not_steer_the_terminal);
    tcase_add_test(t, killed_run_has_no_last_words);
    tcase_add_test(t, summary_is_the_end_also_while_the_lock_is_held);
    tcase_add_test(t, run_that_came_to_nothing_says_why);
    tcase_add_test(t, run_without_a_word_for_long_is_called_silent);
    tcase_add_test(t, lock_of_a_dead_process_is_none);
    tcase_add_test(t, other_folders_are_refused);
    tcase_add_test(t, rows_align_with_their_head);
    tcase_add_test(t, advice_is_quoted_for_a_shell);
    tcase_add_test(t, advice_names_the_plugins_that_it_takes);
    suite_add_tcase(s, t);
    return run_suite(s);
}
