/* The seam between base_aio.c and its two backends; inside base only.
 *
 * A backend moves single reads: it knows nothing of short reads, retries, faults or files. base_aio.c does
 * all of that once for both. */
#ifndef WEIR_BASE_AIO_BACKEND_H
#define WEIR_BASE_AIO_BACKEND_H

#include "base_aio.h"

/* One read on its way. Free ones are chained by next. */
typedef struct aio_op {
    base_aio_read *request;
    int fd;
    uint64_t offset;
    void *buf;
    uint32_t len;
    int32_t result; /* bytes, or -errno; set by the backend */
    bool direct;
    int tries;
    struct aio_op *next;
} aio_op;

typedef struct aio_backend {
    const char *name;
    weir_status (*create)(base_env *env, uint32_t depth, void **state, weir_error *err);
    /* Called with nothing in flight. */
    void (*destroy)(void *state);
    /* Starts op; 0, or -errno when it was not started. */
    int (*start)(void *state, aio_op *op);
    /* Gives an op that ended; NULL when block is false and none has, or with -errno in *error. */
    aio_op *(*reap)(void *state, bool block, int *error);
} aio_backend;

extern const aio_backend base_aio_uring;
extern const aio_backend base_aio_threads;

#endif
