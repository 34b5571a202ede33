/* libFuzzer target: brick inspect of any bytes as an HDF5 file, in every form. The formats without checksums are left out,
 * as in fuzz_store.c. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "experiments/inspect.h"
#include "io/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* HDF5 itself loses memory when a file turns out to be damaged half way. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* The first dataset with rows that is not too long, or the first of any kind; false without one. */
static bool choose(const char *file, char path[256])
{
    bk_store *s;
    bool rows = false, any = false;
    if (bk_store_open(&s, file, NULL, NULL) != BK_OK) return false;
    int64_t n;
    const bk_store_object *o = bk_store_objects(s, &n);
    for (int64_t i = 0; i < n && !rows; i++) {
        if (o[i].group || o[i].elements > 1 << 18 || (any && o[i].rank < 2)) continue;
        rows = o[i].rank >= 2 && o[i].type_text[0] == 'f';
        if (rows || !any) snprintf(path, 256, "%s", o[i].path);
        any = true;
    }
    bk_store_close(s);
    return any;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static FILE *null;
    if (size > 8 && data[8] < 2) return 0; /* the superblock's version */
    if (fd < 0) fd = memfd_create("fuzz", 0);
    if (!null) null = fopen("/dev/null", "w");
    char file[32], path[256];
    snprintf(file, sizeof file, "/proc/self/fd/%d", fd);
    if (fd < 0 || !null || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) return 0;
    if (!choose(file, path)) return 0;
    const bk_inspect_options tree = {.file = file},
                             text = {.file = file, .path = path, .bins = 9, .log = true, .utf8 = true, .top = 3},
                             rows = {.file = file, .path = path, .csv = "tokens"},
                             channels = {.file = file, .path = path, .csv = "channels"};
    bk_inspect_options pair = text, json = text, json_pair = text, trees = tree;
    pair.against = json_pair.against = trees.against = file;
    json.json = json_pair.json = true;
    const bk_inspect_options all[] = {tree, text, json, rows, channels, pair, json_pair, trees};
    bk_error err = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) (void)!bk_inspect(&all[i], null, &err);
    return 0;
}
