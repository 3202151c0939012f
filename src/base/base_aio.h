/* Queued reads: io_uring where the system allows it, else threads with pread; direct where the file allows
 * it, else buffered with the cache dropped behind.
 *
 * One owner thread submits and waits (not thread-safe); completion order is free. */
#ifndef WEIR_BASE_AIO_H
#define WEIR_BASE_AIO_H

#include "base_file.h"

typedef struct base_aio base_aio;

typedef enum base_aio_backend { BASE_AIO_AUTO, BASE_AIO_URING, BASE_AIO_THREADS } base_aio_backend;

typedef struct base_aio_options {
    base_aio_backend backend; /* AUTO falls back from io_uring to threads by itself */
    uint32_t depth;           /* most reads in flight, 1..256 */
    bool buffered;            /* true: never use direct I/O */
} base_aio_options;

/* A request; owned by the caller, must stay in place until it was returned by base_aio_wait. Direct reads
 * happen when offset, len and buf are multiples of base_file_direct_align; `need` is how many bytes from
 * the start must arrive (a read may pass the end of the file). */
typedef struct base_aio_read {
    base_file *file;
    uint64_t offset;
    void *buf;
    size_t len;
    size_t need;
    void *user;
    weir_status status; /* set at completion; error text via base_aio_wait's err */
    size_t done;        /* bytes that arrived */
} base_aio_read;

weir_status base_aio_create(base_env *env, const base_aio_options *options, base_aio **out, weir_error *err);
void base_aio_destroy(base_aio *aio);           /* takes NULL; waits for what is in flight */
const char *base_aio_name(const base_aio *aio); /* "io_uring" or "threads" */
bool base_aio_by_threads(const base_aio *aio);
/* How reports name a way of reading: "io_uring direct", "threads buffered", ... */
const char *base_aio_text(bool by_threads, bool buffered);
/* Whether a queue with these options would read by threads, found out as base_aio_create does: by setting
 * io_uring up. Errors: OUT_OF_MEMORY, BUDGET; *by_threads is then false. */
weir_status base_aio_ask_threads(base_env *env, const base_aio_options *options, bool *by_threads,
                                 weir_error *err);
uint32_t base_aio_in_flight(const base_aio *aio);

/* Queues a read; the caller keeps in_flight below depth. Short reads are continued and EINTR/EAGAIN retried
 * inside. */
weir_status base_aio_submit(base_aio *aio, base_aio_read *r, weir_error *err);
/* Blocks until at least one read in flight has ended and gives it in *out; a failed read is also given
 * in *out with its status returned and *err filled (file, offset, wanted, got). With block=false, *out is
 * NULL when none is ready. */
weir_status base_aio_wait(base_aio *aio, bool block, base_aio_read **out, weir_error *err);

#endif
