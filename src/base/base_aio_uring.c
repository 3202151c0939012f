/* Queued reads by io_uring (liburing). */
#define _GNU_SOURCE
#include "base_aio_backend.h"
#include "base_internal.h"

#include <errno.h>
#include <liburing.h>

typedef struct uring_state {
    base_env *env;
    uint64_t booked_bytes;
    struct io_uring ring;
} uring_state;

/* Upper bound of the memory that the kernel shares with us for a ring: 64 bytes a submission, two completions
 * of 16 bytes for each, indices, and the rounding to pages. */
static uint64_t ring_bytes(uint32_t depth)
{
    uint64_t entries = 1;
    while (entries < depth) entries *= 2;
    return base_align_up(entries * 64, 4096) + base_align_up(entries * (2 * 16 + 4) + 512, 4096);
}

/* The kernel may know io_uring but not its plain read (before 5.6). */
static bool can_read(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ);
    if (probe != NULL) io_uring_free_probe(probe);
    return can;
}

static weir_status uring_create(base_env *env, uint32_t depth, void **state, weir_error *err)
{
    weir_error local = {0};
    uint64_t booked = ring_bytes(depth);
    uring_state *u = base_alloc(env, BASE_TAG_IO, sizeof *u, &local);
    if (u == NULL) goto fail;
    if (base_ledger_reserve(env, BASE_TAG_IO, booked, &local) != WEIR_OK) goto fail_state;
    u->env = env;
    u->booked_bytes = booked;
    base_fault_rule rule;
    int error;
    if (base_fault(env, BASE_FAULT_IO_URING, &rule))
        error = -(rule.error != 0 ? rule.error : ENOSYS);
    else
        error = io_uring_queue_init(depth, &u->ring, 0);
    if (error == 0 && !can_read(&u->ring)) {
        io_uring_queue_exit(&u->ring);
        error = -EOPNOTSUPP;
    }
    if (error != 0) {
        char text[128];
        base_fail(&local, WEIR_ERR_UNSUPPORTED,
                  "io_uring is not available here: %s (see /proc/sys/kernel/io_uring_disabled and seccomp; "
                  "io.backend=threads does without)",
                  base_errno_text(-error, text));
        goto fail_booked;
    }
    *state = u;
    return WEIR_OK;

fail_booked:
    base_ledger_release(env, BASE_TAG_IO, booked);
fail_state:
    base_free(env, u);
fail:
    if (err != NULL) *err = local;
    return local.code;
}

static void uring_destroy(void *state)
{
    uring_state *u = state;
    base_env *env = u->env;
    io_uring_queue_exit(&u->ring);
    base_ledger_release(env, BASE_TAG_IO, u->booked_bytes);
    base_free(env, u);
}

/* Hands over what is in our half of the queue, to the last entry: the kernel may take fewer than there are.
 * 0, or -errno; then the last ones are still there. */
static int hand_over(struct io_uring *ring)
{
    for (int tries = 0; io_uring_sq_ready(ring) != 0;) {
        int n = io_uring_submit(ring);
        if (n > 0) continue;
        if (n == 0) n = -EAGAIN;
        if (!base_errno_retry(-n, &tries)) return n;
    }
    return 0;
}

static int uring_start(void *state, aio_op *op)
{
    uring_state *u = state;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe == NULL) { /* full of what failed below */
        int error = hand_over(&u->ring);
        if (error != 0) return error;
        sqe = io_uring_get_sqe(&u->ring);
        if (sqe == NULL) return -EBUSY;
    }
    io_uring_prep_read(sqe, op->fd, op->buf, op->len, op->offset);
    io_uring_sqe_set_data(sqe, op);
    int error = hand_over(&u->ring);
    if (error == 0) return 0;
    /* The entry is still in our half of the queue and would go out with the next one, into a buffer that its
     * owner may have freed by then. So it becomes one that does nothing; reap drops it. */
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data(sqe, NULL);
    return error;
}

static aio_op *uring_reap(void *state, bool block, int *error)
{
    uring_state *u = state;
    for (int tries = 0;;) {
        struct io_uring_cqe *cqe = NULL;
        int n = block ? io_uring_wait_cqe(&u->ring, &cqe) : io_uring_peek_cqe(&u->ring, &cqe);
        if (n == -EINTR) continue; /* a signal: the caller's handler has run, the reads go on */
        if (n == -EAGAIN && !block) return NULL;
        if (n < 0) {
            if (base_errno_retry(-n, &tries)) continue;
            *error = n;
            return NULL;
        }
        aio_op *op = io_uring_cqe_get_data(cqe);
        if (op != NULL) op->result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (op != NULL) return op;
    }
}

const aio_backend base_aio_uring = {"io_uring", uring_create, uring_destroy, uring_start, uring_reap};
