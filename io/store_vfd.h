/* A file driver for HDF5 over file descriptors that are already open.
 *
 * Three reasons for not using HDF5's own: a write that failed (full disk, size limit) is remembered with its errno and everything after it is
 * swallowed, so that the library can always close and free its file; nothing but the file that was given can be opened, whatever links in it
 * say; and the file stays ours to sync and rename. */
#ifndef BK_STORE_VFD_H
#define BK_STORE_VFD_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct bk_channel {
    int read_fd, write_fd; /* write_fd -1: read only */
    uint64_t size;         /* of a file to be read, fixed at open */
    bool in_use;           /* opened by HDF5; a second open is refused */
    int error;             /* errno of the first failure, 0 = none */
} bk_channel;

/* Registers the driver (H5FDunregister frees it) and sets it, with `ch`, on a file access list; negative on failure. */
hid_t bk_channel_driver(hid_t fapl, bk_channel *ch);

#endif
