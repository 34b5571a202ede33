#include "experiments/beacon.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "experiments/printable.h"
#include "io/json.h"

#define EVERY_S 0.5
#define TRIES 5 /* at reading: a record that is being overwritten is whole a moment later */

static int open_in(const char *dir, int flags)
{
    char path[4400];
    int n = snprintf(path, sizeof path, "%s/" BK_BEACON_FILE, dir);
    return n < (int)sizeof path ? open(path, flags | O_CLOEXEC, 0666) : -1;
}

void bk_beacon_open(bk_beacon *b, const char *dir, int64_t blocks, int64_t epochs, double now)
{
    *b = (bk_beacon){
        .fd = open_in(dir, O_CREAT | O_WRONLY | O_TRUNC), .blocks = blocks, .epochs = epochs, .opened = now};
    b->open = b->fd >= 0;
    bk_beacon_show(b, &(bk_beacon_record){.stage = "load", .left = NAN}, now, true);
}

void bk_beacon_show(bk_beacon *b, const bk_beacon_record *r, double now, bool always)
{
    char text[BK_BEACON_SIZE + 1], left[32] = "null";
    if (!b->open || (!always && now - b->written < EVERY_S)) return;
    unsigned long long n = ++b->count;
    b->written = now;
    if (isfinite(r->left)) snprintf(left, sizeof left, "%.1f", r->left);
    int64_t block = r->total > 0 ? r->done * b->blocks / r->total : 0;
    int len = snprintf(text, sizeof text,
                       "{\"record\": %llu, \"stage\": \"%.40s\", \"number\": %lld, \"of\": %lld, \"done\": %lld, "
                       "\"total\": %lld, \"block\": %lld, "
                       "\"blocks\": %lld, \"epochs\": %lld, \"seconds\": %.1f, \"left\": %s, \"updated\": %lld, "
                       "\"pid\": %ld, \"end\": %llu}",
                       n, r->stage, (long long)r->number, (long long)r->of, (long long)r->done, (long long)r->total,
                       (long long)block, (long long)b->blocks, (long long)b->epochs, now - b->opened, left,
                       (long long)time(NULL), (long)getpid(), n);
    if (len < 0 || len >= BK_BEACON_SIZE) return;
    memset(text + len, ' ', (size_t)(BK_BEACON_SIZE - len));
    text[BK_BEACON_SIZE - 1] = '\n';
    (void)!pwrite(b->fd, text, BK_BEACON_SIZE, 0);
}

void bk_beacon_close(bk_beacon *b)
{
    if (b->open) close(b->fd);
    b->open = false;
}

static bool parse(const char *text, size_t len, bk_beacon_record *out)
{
    bk_json *o;
    if (bk_json_parse(text, len, BK_BEACON_FILE, &o, NULL)) return false;
    const struct {
        const char *key;
        int64_t *to;
    } whole[] = {{"number", &out->number}, {"of", &out->of},          {"done", &out->done},
                 {"total", &out->total},   {"block", &out->block},    {"blocks", &out->blocks},
                 {"epochs", &out->epochs}, {"updated", &out->updated}};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        *whole[i].to = bk_json_int(bk_json_get(o, whole[i].key), 0);
    out->seconds = bk_json_num(bk_json_get(o, "seconds"), 0);
    out->left = bk_json_num(bk_json_get(o, "left"), NAN);
    const char *stage = bk_json_str(bk_json_get(o, "stage"), "");
    bk_visible(stage, strlen(stage), out->stage, sizeof out->stage);
    int64_t first = bk_json_int(bk_json_get(o, "record"), 0), last = bk_json_int(bk_json_get(o, "end"), -1);
    bk_json_free(o);
    return first == last;
}

bool bk_beacon_read(const char *dir, bk_beacon_record *out)
{
    char text[BK_BEACON_SIZE];
    int fd = open_in(dir, O_RDONLY);
    bool whole = false;
    for (int i = 0; fd >= 0 && !whole && i < TRIES; i++) {
        ssize_t n = pread(fd, text, sizeof text, 0);
        whole = n == BK_BEACON_SIZE && parse(text, (size_t)n, out);
        if (!whole) nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    if (fd >= 0) close(fd);
    return whole;
}
