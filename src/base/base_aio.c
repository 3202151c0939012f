/* Queued reads above either backend: choice of descriptor, continuation of short reads, retries, faults,
 * and the check that the file is still the same. */
#define _GNU_SOURCE
#include "base_aio_backend.h"
#include "base_internal.h"

#include <errno.h>
#include <string.h>

#define MAX_DEPTH 256

/* One read of a backend; Linux cuts at a little below 2 GiB, this is a round multiple of any alignment. */
#define MAX_OP_BYTES (UINT64_C(1) << 30)

struct base_aio {
    base_env *env;
    const aio_backend *backend;
    void *state;
    uint32_t depth;
    uint32_t in_flight; /* requests, not counting ops that ended and are continued */
    bool buffered;
    aio_op *ops;  /* depth of them */
    aio_op *idle; /* chain of those not in use */
};

static weir_status open_backend(base_aio *aio, const aio_backend *backend, weir_error *err)
{
    weir_status status = backend->create(aio->env, aio->depth, &aio->state, err);
    if (status == WEIR_OK) aio->backend = backend;
    return status;
}

static weir_status choose_backend(base_aio *aio, base_aio_backend wanted, weir_error *err)
{
    if (wanted == BASE_AIO_THREADS) return open_backend(aio, &base_aio_threads, err);
    weir_error local = {0};
    weir_status status = open_backend(aio, &base_aio_uring, &local);
    if (status == WEIR_ERR_UNSUPPORTED && wanted == BASE_AIO_AUTO) {
        base_log(aio->env, BASE_LOG_INFO, "%s; threads read instead", local.message);
        return open_backend(aio, &base_aio_threads, err);
    }
    if (status != WEIR_OK && err != NULL) *err = local;
    return status;
}

weir_status base_aio_create(base_env *env, const base_aio_options *options, base_aio **out, weir_error *err)
{
    if (options->depth < 1 || options->depth > MAX_DEPTH)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a read queue of depth %u: between 1 and %d are possible", options->depth,
                         MAX_DEPTH);
    weir_error local = {0};
    base_aio *aio = base_alloc(env, BASE_TAG_IO, sizeof *aio, &local);
    if (aio == NULL) goto fail;
    aio->env = env;
    aio->depth = options->depth;
    aio->buffered = options->buffered;
    aio->ops = base_alloc_array(env, BASE_TAG_IO, aio->depth, sizeof *aio->ops, &local);
    if (aio->ops == NULL) goto fail;
    for (uint32_t i = 0; i < aio->depth; i++) {
        aio->ops[i].next = aio->idle;
        aio->idle = &aio->ops[i];
    }
    if (choose_backend(aio, options->backend, &local) != WEIR_OK) goto fail;
    *out = aio;
    return WEIR_OK;

fail:
    base_aio_destroy(aio);
    if (err != NULL) *err = local;
    return local.code;
}

void base_aio_destroy(base_aio *aio)
{
    if (aio == NULL) return;
    /* Whoever owns the buffers may free them after this, so nothing may still be on its way into them. */
    int error = 0;
    while (aio->in_flight != 0 && error == 0) {
        if (aio->backend->reap(aio->state, true, &error) != NULL) aio->in_flight--;
    }
    if (aio->backend != NULL) aio->backend->destroy(aio->state);
    base_free(aio->env, aio->ops);
    base_free(aio->env, aio);
}

const char *base_aio_name(const base_aio *aio)
{
    return aio->backend->name;
}

bool base_aio_by_threads(const base_aio *aio)
{
    return aio->backend == &base_aio_threads;
}

const char *base_aio_text(bool by_threads, bool buffered)
{
    if (by_threads) return buffered ? "threads buffered" : "threads direct";
    return buffered ? "io_uring buffered" : "io_uring direct";
}

weir_status base_aio_ask_threads(base_env *env, const base_aio_options *options, bool *by_threads,
                                 weir_error *err)
{
    *by_threads = options->backend == BASE_AIO_THREADS;
    if (options->backend != BASE_AIO_AUTO) return WEIR_OK;
    void *state;
    weir_error local = {0};
    weir_status status = base_aio_uring.create(env, options->depth, &state, &local);
    if (status == WEIR_OK) base_aio_uring.destroy(state);
    *by_threads = status == WEIR_ERR_UNSUPPORTED;
    if (status == WEIR_OK || *by_threads) return WEIR_OK;
    if (err != NULL) *err = local;
    return status;
}

uint32_t base_aio_in_flight(const base_aio *aio)
{
    return aio->in_flight;
}

static bool is_multiple(uint64_t offset, const void *buf, uint64_t len, uint64_t align)
{
    return align != 0 && ((offset | (uintptr_t)buf | len) & (align - 1)) == 0;
}

/* Starts what is left of the op's request: direct where that is possible, at most MAX_OP_BYTES. 0 or -errno.
 */
static int start_rest(base_aio *aio, aio_op *op)
{
    base_aio_read *r = op->request;
    op->offset = r->offset + r->done;
    op->buf = (char *)r->buf + r->done;
    op->len = (uint32_t)base_min(r->len - r->done, MAX_OP_BYTES);
    op->direct = op->direct && is_multiple(op->offset, op->buf, op->len, base_file_direct_align(r->file));
    op->fd = op->direct ? base_file_direct_fd(r->file) : base_file_fd(r->file);
    return aio->backend->start(aio->state, op);
}

weir_status base_aio_submit(base_aio *aio, base_aio_read *r, weir_error *err)
{
    uint64_t end;
    if (r->len == 0 || r->need > r->len || !base_add(r->offset, r->len, &end) || end > INT64_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: a read of %zu bytes (%zu needed) at offset %llu is not possible",
                         base_file_path(r->file), r->len, r->need, (unsigned long long)r->offset);
    aio_op *op = aio->idle;
    if (op == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "the read queue of depth %u is full; wait for a read first", aio->depth);
    aio->idle = op->next; /* before it starts: then the backend owns next */
    r->status = WEIR_OK;
    r->done = 0;
    op->request = r;
    op->tries = 0;
    op->direct = !aio->buffered && base_file_direct_fd(r->file) >= 0;
    base_fault_rule rule;
    int error;
    if (base_fault(aio->env, BASE_FAULT_SUBMIT, &rule))
        error = -(rule.error != 0 ? rule.error : EIO);
    else
        error = start_rest(aio, op);
    if (error != 0) {
        char text[128];
        op->next = aio->idle;
        aio->idle = op;
        return base_fail(err, WEIR_ERR_IO,
                         "%s: a read of %zu bytes at offset %llu could not be queued (%s): %s",
                         base_file_path(r->file), r->len, (unsigned long long)r->offset, aio->backend->name,
                         base_errno_text(-error, text));
    }
    aio->in_flight++;
    return WEIR_OK;
}

/* Lets a fault point turn a result into an error or a shorter one. */
static void apply_fault(base_env *env, base_fault_site site, aio_op *op)
{
    base_fault_rule rule;
    if (!base_fault(env, site, &rule)) return;
    if (rule.missing > 0 && op->result > 0)
        op->result = op->result > rule.missing ? op->result - (int32_t)rule.missing : 0;
    else if (rule.missing > 0)
        return;
    else if (rule.length < 0)
        op->result = -(rule.error != 0 ? rule.error : EIO);
    else if (op->result > 0 && op->result > rule.length)
        op->result = (int32_t)rule.length;
}

static weir_status fail_read(const base_aio *aio, const aio_op *op, int error, weir_error *err)
{
    const base_aio_read *r = op->request;
    char text[128];
    return base_fail(err, WEIR_ERR_IO,
                     "%s: reading %zu bytes at offset %llu failed after %zu (%s, %s): %s; check the disk",
                     base_file_path(r->file), r->need, (unsigned long long)r->offset, r->done,
                     aio->backend->name, op->direct ? "direct" : "buffered", base_errno_text(error, text));
}

/* Takes the result of an op. True when its request has ended, with r->status and *err set. */
static bool take_result(base_aio *aio, aio_op *op, weir_error *err)
{
    base_aio_read *r = op->request;
    apply_fault(aio->env, BASE_FAULT_READ, op);
    apply_fault(aio->env, BASE_FAULT_COMPLETION, op);
    if (op->result > 0) {
        r->done += (size_t)op->result;
        op->tries = 0;
        if (!op->direct) base_file_drop_cache(r->file, op->offset, (uint64_t)op->result);
    }
    if (op->result >= 0 && r->done >= r->need) {
        r->status = base_file_check_open(r->file, err);
        return true;
    }
    if (op->result == 0) {
        r->status = base_file_fail_end(r->file, r->offset, r->need, r->done, err);
        return true;
    }
    if (op->result < 0) {
        int error = -op->result;
        if (error == EINVAL && op->direct) {
            op->direct = false; /* the file system promised more than it holds; through the cache then */
        } else if (!base_errno_retry(error, &op->tries)) {
            r->status = fail_read(aio, op, error, err);
            return true;
        }
    }
    int error = start_rest(aio, op);
    if (error != 0) {
        r->status = fail_read(aio, op, -error, err);
        return true;
    }
    return false;
}

weir_status base_aio_wait(base_aio *aio, bool block, base_aio_read **out, weir_error *err)
{
    *out = NULL;
    if (aio->in_flight == 0) {
        if (!block) return WEIR_OK;
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "waiting for a read, but none was queued");
    }
    for (;;) {
        int error = 0;
        aio_op *op = aio->backend->reap(aio->state, block, &error);
        if (op == NULL && error != 0) {
            char text[128];
            return base_fail(err, WEIR_ERR_IO, "waiting for queued reads failed (%s): %s", aio->backend->name,
                             base_errno_text(-error, text));
        }
        if (op == NULL) return WEIR_OK;
        base_aio_read *r = op->request;
        if (!take_result(aio, op, err)) continue;
        op->next = aio->idle;
        aio->idle = op;
        aio->in_flight--;
        *out = r;
        return r->status;
    }
}
