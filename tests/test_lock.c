/* Locks that name their owner: one holder at a time, and none after its end. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "io/lock.h"
#include "tests/suite.h"

static char dir[64], path[128];
static bk_error err;
static bk_lock lock;
static bk_lock_owner owner;

static void setup(void)
{
    strcpy(dir, "/tmp/bk_lock_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/x.lock", dir);
    bk_error_clear(&err);
}

static void teardown(void)
{
    ck_assert_int_eq(bk_remove_tree(dir, NULL), BK_OK);
}

static bool take(void)
{
    ck_assert_msg(bk_lock_try(&lock, path, &owner, &err) == BK_OK, "%s", err.msg);
    return lock.path != NULL;
}

static bool there(void)
{
    char text[256];
    return readlink(path, text, sizeof text) > 0;
}

/* A process that takes the lock and stays; ends when killed. */
static pid_t holder(void)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)!bk_lock_try(&lock, path, &owner, &err);
        for (;;) pause();
    }
    for (int i = 0; i < 2000 && !there(); i++) usleep(1000);
    ck_assert(there());
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* What an id of an owner is made of; 0 and NULL: as ours. */
typedef struct parts {
    long pid;
    unsigned long long start, space;
    unsigned boot, machine;
    const char *host;
} parts;

static void own(parts *p)
{
    static char host[65];
    ck_assert(take());
    ck_assert_int_eq(sscanf(lock.id, "%ld.%llu.%llu.%8x.%8x@%64s", &p->pid, &p->start, &p->space, &p->boot, &p->machine, host), 6);
    ck_assert_int_eq(p->pid, getpid());
    p->host = host;
    bk_lock_release(&lock);
}

/* Makes the link of an owner that is made up of ours. */
static void forge(parts p)
{
    char text[256];
    parts o;
    own(&o);
    snprintf(text, sizeof text, "%ld.%llu.%llu.%08x.%08x@%s", p.pid ? p.pid : o.pid, p.start ? p.start : o.start,
             p.space ? p.space : o.space, p.boot ? p.boot : o.boot, p.machine ? p.machine : o.machine, p.host ? p.host : o.host);
    ck_assert_int_eq(symlink(text, path), 0);
}

/* What messages say of the owner. */
static const char *who(void)
{
    static char text[512];
    bk_lock_who(&owner, path, text, sizeof text);
    return text;
}

START_TEST(one_process_has_it)
{
    pid_t pid = holder();
    ck_assert(!take());
    ck_assert_int_eq(owner.pid, pid);
    ck_assert(owner.here);
    ck_assert_str_eq(owner.dead, "");
    bk_lock_release(&lock); /* not ours: nothing happens */
    ck_assert(there());
    end(pid);
}
END_TEST

START_TEST(release_frees_it)
{
    ck_assert(take());
    ck_assert(there());
    bk_lock_release(&lock);
    ck_assert(!there());
    ck_assert(take());
    bk_lock_release(&lock);
}
END_TEST

START_TEST(a_killed_owner_is_succeeded)
{
    pid_t pid = holder();
    if (_i) end(pid);
    else { /* dead, but its parent has not heard of it */
        kill(pid, SIGKILL);
        siginfo_t info;
        ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    }
    ck_assert(take());
    ck_assert_int_eq(atol(owner.dead), pid);
    bk_lock_release(&lock);
    ck_assert(!there());
}
END_TEST

START_TEST(another_process_of_the_same_number_is_not_the_owner)
{
    pid_t pid = holder();
    unlink(path);
    forge((parts){.pid = pid, .start = 12345});
    ck_assert(take());
    ck_assert_int_eq(atol(owner.dead), pid);
    bk_lock_release(&lock);
    end(pid);
}
END_TEST

START_TEST(looking_at_it_changes_nothing)
{
    bk_lock_owner seen;
    ck_assert_int_eq(bk_lock_look(path, &seen), BK_LOCK_NONE);
    pid_t pid = holder();
    ck_assert_int_eq(bk_lock_look(path, &seen), BK_LOCK_HELD);
    ck_assert_int_eq(seen.pid, pid);
    ck_assert(seen.here);
    end(pid);
    ck_assert_int_eq(bk_lock_look(path, &seen), BK_LOCK_DEAD);
    ck_assert(there()); /* left to who takes it next */
}
END_TEST

START_TEST(after_a_restart_of_the_host_it_is_free)
{
    forge((parts){.boot = 0x12345678});
    ck_assert(take());
    bk_lock_release(&lock);
}
END_TEST

/* Of two machines of one name on a shared disk, none was started again. */
START_TEST(another_machine_of_the_same_name_keeps_it)
{
    parts o;
    own(&o);
    if (!o.machine) return; /* this one has no id to tell it by */
    forge((parts){.boot = 0x12345678, .machine = o.machine ^ 1});
    ck_assert(!take());
    ck_assert(!owner.here);
    ck_assert_ptr_nonnull(strstr(who(), "x.lock"));
    ck_assert(there());
}
END_TEST

/* Ids had no machine in them. */
START_TEST(a_lock_of_an_older_brick_is_understood)
{
    char text[256];
    parts o;
    own(&o);
    snprintf(text, sizeof text, "%ld.%llu.%llu.%08x@%s", _i ? o.pid : 99L, o.start, o.space, _i ? o.boot : 0x12345678, o.host);
    ck_assert_int_eq(symlink(text, path), 0);
    ck_assert_int_eq(take(), !_i);
    bk_lock_release(&lock);
}
END_TEST

/* --- PATH.break, which guards the taking over --- */

static const char *guard(void)
{
    static char text[160];
    snprintf(text, sizeof text, "%s.break", path);
    return text;
}

START_TEST(a_taking_over_that_another_host_left_is_named)
{
    forge((parts){.boot = 0x12345678});
    ck_assert_int_eq(symlink("99.1.1.00000001.00000001@elsewhere", guard()), 0);
    ck_assert_int_eq(bk_lock_look(path, &owner), BK_LOCK_HELD);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(strstr(who(), "process 99 on host elsewhere"));
        ck_assert_ptr_nonnull(strstr(who(), "x.lock.break"));
        ck_assert(!take());
    }
    ck_assert_int_eq(unlink(guard()), 0); /* as it is told to */
    ck_assert(take());
    bk_lock_release(&lock);
}
END_TEST

START_TEST(a_taking_over_that_was_killed_here_is_cleared_away)
{
    char text[256];
    parts o;
    own(&o);
    forge((parts){.boot = 0x12345678});
    snprintf(text, sizeof text, "%ld.1.%llu.%08x.%08x@%s", o.pid, o.space, o.boot, o.machine, o.host);
    ck_assert_int_eq(symlink(text, guard()), 0);
    ck_assert_int_eq(bk_lock_look(path, &owner), BK_LOCK_DEAD);
    ck_assert(take());
    bk_lock_release(&lock);
    ck_assert_int_eq(readlink(guard(), text, sizeof text), -1);
}
END_TEST

START_TEST(what_is_no_lock_in_the_way_of_taking_over_is_named)
{
    forge((parts){.boot = 0x12345678});
    ck_assert_int_eq(bk_write_file(guard(), "mine", 4, &err), BK_OK);
    ck_assert_int_eq(bk_lock_try(&lock, path, &owner, &err), BK_EFORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "x.lock.break"));
}
END_TEST

START_TEST(an_owner_that_cannot_be_seen_keeps_it)
{
    if (_i) forge((parts){.pid = 99, .start = 12345, .host = "elsewhere"});
    else forge((parts){.pid = 99, .start = 12345, .space = 77}); /* a container of this host */
    ck_assert(!take());
    ck_assert_int_eq(owner.pid, 99);
    ck_assert(!owner.here);
    if (_i) ck_assert_str_eq(owner.host, "elsewhere");
    ck_assert(there());
}
END_TEST

START_TEST(what_is_no_lock_is_left_alone)
{
    if (_i) ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    else ck_assert_int_eq(bk_write_file(path, "mine", 4, &err), BK_OK);
    ck_assert_int_eq(bk_lock_try(&lock, path, &owner, &err), BK_EFORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "x.lock"));
    ck_assert_ptr_nonnull(strstr(err.msg, "remove it"));
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(release_leaves_the_link_of_another)
{
    ck_assert(take());
    unlink(path);
    ck_assert_int_eq(symlink("99.1.1.00000001@elsewhere", path), 0);
    bk_lock_release(&lock);
    ck_assert(there());
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
    snprintf(path, sizeof path, "%s/absent/x.lock", dir);
    ck_assert_int_eq(bk_lock_try(&lock, path, &owner, &err), BK_EIO);
}
END_TEST

/* Holds the lock `times` times; a file that only one process can make stands for what the lock guards. */
static int contend(const char *mark, int times)
{
    for (int i = 0; i < times;) {
        if (bk_lock_try(&lock, path, &owner, &err)) return 1;
        if (!lock.path) {
            usleep(200);
            continue;
        }
        int fd = open(mark, O_CREAT | O_EXCL | O_WRONLY, 0666);
        if (fd < 0) return 2;
        close(fd);
        usleep(300);
        unlink(mark);
        if (++i == times) _exit(0); /* dies with the lock in its hands */
        bk_lock_release(&lock);
    }
    return 0;
}

START_TEST(many_that_want_it_have_it_in_turn)
{
    enum { MANY = 8 };
    char mark[128];
    pid_t pid[MANY];
    snprintf(mark, sizeof mark, "%s/mark", dir);
    forge((parts){.pid = 99, .start = 12345, .boot = 0x12345678}); /* all find it with a dead owner */
    for (int i = 0; i < MANY; i++) {
        pid[i] = fork();
        if (pid[i] == 0) _exit(contend(mark, 25));
    }
    for (int i = 0; i < MANY; i++) {
        int status;
        ck_assert_int_eq(waitpid(pid[i], &status, 0), pid[i]);
        ck_assert_int_eq(status, 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lock");
    TCase *t = tcase_create("lock");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, one_process_has_it);
    tcase_add_test(t, release_frees_it);
    tcase_add_loop_test(t, a_killed_owner_is_succeeded, 0, 2);
    tcase_add_test(t, another_process_of_the_same_number_is_not_the_owner);
    tcase_add_test(t, looking_at_it_changes_nothing);
    tcase_add_test(t, after_a_restart_of_the_host_it_is_free);
    tcase_add_test(t, another_machine_of_the_same_name_keeps_it);
    tcase_add_loop_test(t, a_lock_of_an_older_brick_is_understood, 0, 2);
    tcase_add_test(t, a_taking_over_that_another_host_left_is_named);
    tcase_add_test(t, a_taking_over_that_was_killed_here_is_cleared_away);
    tcase_add_test(t, what_is_no_lock_in_the_way_of_taking_over_is_named);
    tcase_add_loop_test(t, an_owner_that_cannot_be_seen_keeps_it, 0, 2);
    tcase_add_loop_test(t, what_is_no_lock_is_left_alone, 0, 2);
    tcase_add_test(t, release_leaves_the_link_of_another);
    tcase_add_test(t, a_folder_that_is_not_there_is_an_error);
    tcase_add_test(t, many_that_want_it_have_it_in_turn);
    suite_add_tcase(s, t);
    return run_suite(s);
}
