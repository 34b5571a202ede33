/* Status codes of the library. Every fallible function returns one; 0 is success. */
#ifndef BK_STATUS_H
#define BK_STATUS_H

typedef enum bk_status {
    BK_OK = 0,
    BK_EINVAL,    /* an argument or a config value that cannot be used */
    BK_ESHAPE,    /* shapes that do not fit each other */
    BK_ENOMEM,    /* memory or an arena is exhausted */
    BK_EUNSUP,    /* valid, but this build or backend cannot do it */
    BK_EIO,       /* the system refused to read or write */
    BK_EFORMAT,   /* a file that is cut off, damaged or of another kind */
    BK_ENUMERIC,  /* NaN, Inf or a matrix that cannot be factored */
    BK_EDEVICE,   /* the accelerator's runtime failed */
    BK_ENOSPC,    /* disk full or file-size limit */
    BK_ECANCEL,   /* the caller asked to stop */
    BK_STATUS_COUNT
} bk_status;

#define BK_MUST_USE __attribute__((warn_unused_result))

#endif
