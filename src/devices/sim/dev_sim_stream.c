/* A GPU played by the CPU: its streams.
 *
 * A stream is a lane; a ticket is the number of a task. What a call checks, it checks when it is called, in
 * the order of the host; what only shows while a task runs (an access to a closed page, a device error) is
 * kept with the stream, which passes over everything behind it until `recover`.
 *
 * With a chaos seed tasks begin late by random times, and a copy first poisons what it is going to write: who
 * reads before its ticket, or lets go of the source too early, gets other bytes. */
#include "dev_sim_internal.h"

#include <string.h>

#define LANE_DEPTH 64

/* ---- what lanes do ---- */

static void fail_stream(sim_stream *s, const weir_error *error)
{
    pthread_mutex_lock(&s->d->inner);
    if (!atomic_load(&s->failed)) s->error = *error;
    atomic_store(&s->failed, true);
    pthread_mutex_unlock(&s->d->inner);
}

static void delay(sim_stream *s)
{
    if (s->d->options.chaos_seed == 0) return;
    uint32_t r = base_rng_u32(&s->rng);
    if (r % 64 == 0)
        base_sleep(2e-3);
    else if (r % 4 == 0)
        base_sleep((double)(r >> 8) * 0x1p-24 * 300e-6);
}

/* Waits until the link would have carried the bytes. Copies queued behind each other keep it busy without a
 * gap, however late the sleeper wakes. */
static void wait_for_link(dev_sim *d, const sim_task *t)
{
    double rate = d->options.link_bytes_per_s;
    if (rate == 0 || t->as.copy.direction == SIM_WITHIN) return;
    pthread_mutex_lock(&d->inner);
    double *due = &d->link_due[t->as.copy.direction == SIM_DOWN];
    if (*due < t->as.copy.pushed_at) *due = t->as.copy.pushed_at;
    *due += (double)t->as.copy.bytes / rate;
    double until = *due;
    pthread_mutex_unlock(&d->inner);
    base_sleep(until - base_now(d->env));
}

static void do_copy(sim_stream *s, const sim_task *t)
{
    void *dst = t->as.copy.dst;
    if (s->d->options.chaos_seed != 0) {
        memset(dst, SIM_POISON, t->as.copy.bytes);
        delay(s);
    }
    wait_for_link(s->d, t);
    memmove(dst, t->as.copy.src, t->as.copy.bytes);
}

/* A failure of the stream that this one waited for is a failure of this one. */
static void do_wait(sim_stream *s, dev_ticket t)
{
    sim_stream *other = &s->d->streams[t.stream];
    if (other != s) base_lane_wait(other->lane, t.value);
    if (other == s || !atomic_load(&other->failed)) return;
    pthread_mutex_lock(&s->d->inner);
    weir_error error = other->error;
    pthread_mutex_unlock(&s->d->inner);
    fail_stream(s, &error);
}

static void do_task(void *arg, void *task)
{
    sim_stream *s = arg;
    dev_sim *d = s->d;
    sim_task *t = task;
    weir_error err = {0};
    uint64_t where;
    if (t->kind == SIM_PROTECT) { /* also behind a failure: protection follows the host's calls */
        if (base_protect_set(d->memory, t->as.protect.begin, t->as.protect.bytes, t->as.protect.open, &err) !=
            WEIR_OK)
            fail_stream(s, &err);
        return;
    }
    if (t->kind == SIM_WAIT) do_wait(s, t->as.wait);
    delay(s);
    if (atomic_load(&s->failed)) return;
    switch (t->kind) {
    case SIM_COPY: do_copy(s, t); break;
    case SIM_RUN:
        if (base_protect_touched(d->memory, &where)) break; /* told by sync */
        if (d->cpu->table->run(d->cpu, &t->as.op, &err) != WEIR_OK) fail_stream(s, &err);
        break;
    case SIM_LAUNCH:
        if (base_protect_touched(d->memory, &where)) break;
        t->as.launch.kernel.c(t->as.launch.args, 0, t->as.launch.n_items);
        break;
    default: break;
    }
}

/* ---- life ---- */

weir_status sim_streams_create(dev_sim *d, weir_error *err)
{
    for (uint32_t i = 0; i < d->n_streams; i++) {
        sim_stream *s = &d->streams[i];
        s->d = d;
        s->index = i;
        base_rng_seed(&s->rng, d->options.chaos_seed, i);
        weir_status status =
            base_lane_create(d->env, i == DEV_STREAM_COMPUTE ? "weir-sim-run" : "weir-sim-copy",
                             sizeof(sim_task), LANE_DEPTH, do_task, s, &s->lane, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

void sim_streams_destroy(dev_sim *d)
{
    sim_streams_drain(d); /* all before the first goes: lanes wait for each other */
    for (uint32_t i = 0; i < d->n_streams; i++) base_lane_destroy(d->streams[i].lane);
}

void sim_streams_drain(dev_sim *d)
{
    for (uint32_t i = 0; i < d->n_streams; i++) {
        base_lane *lane = d->streams[i].lane;
        if (lane != NULL) base_lane_wait(lane, base_lane_pushed(lane));
    }
}

/* ---- operations ---- */

void sim_push_protect(dev_sim *d, uint64_t begin, uint64_t bytes, bool open)
{
    if (!d->options.strict) return;
    sim_task t = {.kind = SIM_PROTECT, .as.protect = {.begin = begin, .bytes = bytes, .open = open}};
    base_lane_push(d->streams[DEV_STREAM_COMPUTE].lane, &t);
}

/* Room in the payload; what is there belongs to tasks under way until the stream is empty. */
static void *payload_take(dev_sim *d, size_t bytes)
{
    base_lane *lane = d->streams[DEV_STREAM_COMPUTE].lane;
    uint64_t pushed = base_lane_pushed(lane);
    bytes = (size_t)base_align_up(bytes, 16);
    if (base_lane_reached(lane, pushed)) d->payload_used = 0;
    if (bytes > SIM_PAYLOAD_BYTES) return NULL;
    if (bytes > SIM_PAYLOAD_BYTES - d->payload_used) {
        base_lane_wait(lane, pushed);
        d->payload_used = 0;
    }
    void *p = d->payload + d->payload_used;
    d->payload_used += bytes;
    return p;
}

/* The arrays of an operation, copied one behind the other. */
typedef struct payload {
    uint8_t *at;
    size_t bytes; /* so far, while they are counted */
} payload;

static const void *payload_put(payload *p, const void *from, size_t count, size_t size)
{
    size_t bytes = (size_t)base_align_up((uint64_t)count * size, 16);
    if (from == NULL) return NULL;
    void *to = p->at != NULL ? p->at + p->bytes : NULL;
    if (to != NULL) memcpy(to, from, count * size);
    p->bytes += bytes;
    return to;
}

static void copy_arrays(payload *p, dev_op *op)
{
    size_t n = op->n_rows, n_sequences = 0;
    if (op->sequence != NULL && op->kv != NULL)
        for (size_t r = 0; r < n; r++) n_sequences = base_max(n_sequences, (uint64_t)op->sequence[r] + 1);
    const void *inv_freq = payload_put(p, op->inv_freq, op->n_rot / 2, sizeof *op->inv_freq);
    const void *kv = payload_put(p, op->kv, n_sequences, sizeof *op->kv);
    const void *position = payload_put(p, op->position, n, sizeof *op->position);
    const void *sequence = payload_put(p, op->sequence, n, sizeof *op->sequence);
    const void *index = payload_put(p, op->index, n, sizeof *op->index);
    if (p->at == NULL) return;
    op->inv_freq = inv_freq;
    op->kv = kv;
    op->position = position;
    op->sequence = sequence;
    op->index = index;
}

static uint64_t view_bytes(dev_view v, size_t n_rows)
{
    return n_rows != 0 ? (uint64_t)(n_rows - 1) * v.stride + 1 : 0;
}

static weir_status check_caches(const dev_sim *d, const dev_op *op, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (size_t r = 0; r < op->n_rows && status == WEIR_OK; r++) {
        if (r > 0 && op->sequence[r] == op->sequence[r - 1]) continue;
        const dev_kv *kv = &op->kv[op->sequence[r]];
        uint64_t k, v;
        d->cpu->table->kv_bytes(d->cpu, kv->dtype, kv->capacity, op->n_kv_heads, op->head_dim, &k, &v);
        status = sim_check(d, kv->k, k, true, dev_op_name(op->code), err);
        if (status == WEIR_OK) status = sim_check(d, kv->v, v, true, dev_op_name(op->code), err);
    }
    return status;
}

static weir_status check_op(const dev_sim *d, const dev_op *op, weir_error *err)
{
    const char *name = dev_op_name(op->code);
    uint64_t w = op->code == DEV_MATMUL ? (uint64_t)(op->row_end - op->row_begin) * op->w.stride
                                        : op->group * sizeof(float);
    weir_status status = sim_check(
        d, op->a.data, op->code == DEV_COPY_ROWS ? 1 : view_bytes(op->a, op->n_rows), true, name, err);
    if (status == WEIR_OK) status = sim_check(d, op->b.data, view_bytes(op->b, op->n_rows), true, name, err);
    if (status == WEIR_OK)
        status = sim_check(d, op->out.data, view_bytes(op->out, op->n_rows), true, name, err);
    if (status == WEIR_OK) status = sim_check(d, op->w.data, w, true, name, err);
    if (status == WEIR_OK) status = sim_check(d, op->bias, op->row_end * sizeof(float), true, name, err);
    if (status == WEIR_OK && op->kv != NULL && op->sequence != NULL) status = check_caches(d, op, err);
    return status;
}

weir_status sim_run(dev_device *device, const dev_op *op, weir_error *err)
{
    dev_sim *d = sim_of(device);
    sim_task t = {.kind = SIM_RUN, .as.op = *op};
    payload size = {0}, p = {0};
    pthread_mutex_lock(&d->lock);
    weir_status status = check_op(d, op, err);
    if (status != WEIR_OK) goto done;
    copy_arrays(&size, &t.as.op);
    p.at = payload_take(d, size.bytes);
    if (p.at == NULL) {
        status = base_fail(err, WEIR_ERR_INTERNAL, "an operation on %zu rows brings %zu bytes of arrays",
                           op->n_rows, size.bytes);
        goto done;
    }
    copy_arrays(&p, &t.as.op);
    base_lane_push(d->streams[DEV_STREAM_COMPUTE].lane, &t);
done:
    pthread_mutex_unlock(&d->lock);
    return status;
}

weir_status sim_launch(dev_device *device, const dev_kernel *kernel, const dev_arg *args, uint32_t n_args,
                       size_t n_items, weir_error *err)
{
    dev_sim *d = sim_of(device);
    sim_task t = {.kind = SIM_LAUNCH};
    weir_status status = WEIR_OK;
    if (kernel->c == NULL)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "simulated device: kernel %s has no form in C; give dev_kernel.c", kernel->name);
    if (n_args > SIM_MAX_ARGS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "kernel %s has %u arguments; at most %d are possible", kernel->name, n_args,
                         SIM_MAX_ARGS);
    if (base_fault(d->env, BASE_FAULT_KERNEL_BUILD, NULL))
        return base_fail(err, WEIR_ERR_DEVICE, "simulated device: kernel %s could not be built",
                         kernel->name);
    t.as.launch.kernel = *kernel;
    t.as.launch.n_items = n_items;
    memcpy(t.as.launch.args, args, n_args * sizeof *args);
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < n_args && status == WEIR_OK; i++)
        if (args[i].kind == DEV_ARG_ADDRESS)
            status = sim_check(d, args[i].as.address, 1, true, kernel->name, err);
    if (status == WEIR_OK) base_lane_push(d->streams[DEV_STREAM_COMPUTE].lane, &t);
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* ---- copies ---- */

static weir_status check_stream(const dev_sim *d, uint32_t stream, weir_error *err)
{
    if (stream < d->n_streams) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "simulated device: stream %u of %u", stream,
                     d->n_streams);
}

/* Pushes a copy whose device side was given by address. */
static weir_status push_copy(dev_sim *d, uint32_t stream, sim_direction direction, void *dst, const void *src,
                             uint64_t bytes, dev_ticket *done, weir_error *err)
{
    weir_status status = check_stream(d, stream, err);
    if (status != WEIR_OK) return status;
    if (base_fault(d->env, BASE_FAULT_COPY, NULL))
        return base_fail(err, WEIR_ERR_DEVICE, "simulated device: a copy of %llu bytes was refused",
                         (unsigned long long)bytes);
    sim_task t = {.kind = SIM_COPY,
                  .as.copy = {.dst = dst, .src = src, .bytes = bytes, .direction = direction}};
    base_lane *lane = d->streams[stream].lane;
    bool pinned = true;
    pthread_mutex_lock(&d->lock);
    if (direction != SIM_DOWN) {
        status = sim_check(d, dst, bytes, false, direction == SIM_UP ? "an upload" : "a copy", err);
        t.as.copy.dst = sim_back(d, dst);
    }
    if (status == WEIR_OK && direction != SIM_UP) {
        status = sim_check(d, src, bytes, false, direction == SIM_DOWN ? "a download" : "a copy", err);
        t.as.copy.src = sim_back(d, src);
    }
    dev_ticket ticket = {.stream = stream};
    if (status == WEIR_OK) {
        if (direction != SIM_WITHIN) pinned = sim_is_pinned(d, direction == SIM_UP ? src : dst, bytes);
        t.as.copy.pushed_at = d->options.link_bytes_per_s != 0 ? base_now(d->env) : 0;
        ticket.value = base_lane_push(lane, &t);
    }
    pthread_mutex_unlock(&d->lock);
    if (status != WEIR_OK) return status;
    if (!pinned) base_lane_wait(lane, ticket.value); /* as drivers do: through a buffer of their own */
    if (done != NULL) *done = ticket;
    return WEIR_OK;
}

weir_status sim_upload(dev_device *device, uint32_t stream, void *dst, const void *host, uint64_t bytes,
                       dev_ticket *done, weir_error *err)
{
    return push_copy(sim_of(device), stream, SIM_UP, dst, host, bytes, done, err);
}

weir_status sim_download(dev_device *device, uint32_t stream, void *host, const void *src, uint64_t bytes,
                         dev_ticket *done, weir_error *err)
{
    return push_copy(sim_of(device), stream, SIM_DOWN, host, src, bytes, done, err);
}

weir_status sim_copy(dev_device *device, uint32_t stream, void *dst, const void *src, uint64_t bytes,
                     dev_ticket *done, weir_error *err)
{
    return push_copy(sim_of(device), stream, SIM_WITHIN, dst, src, bytes, done, err);
}

/* ---- tickets ---- */

weir_status sim_mark(dev_device *device, uint32_t stream, dev_ticket *out, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_status status = check_stream(d, stream, err);
    if (status != WEIR_OK) return status;
    *out = (dev_ticket){.stream = stream, .value = base_lane_pushed(d->streams[stream].lane)};
    return WEIR_OK;
}

weir_status sim_wait_on(dev_device *device, uint32_t stream, dev_ticket ticket, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_status status = check_stream(d, stream, err);
    if (status == WEIR_OK) status = check_stream(d, ticket.stream, err);
    if (status != WEIR_OK || ticket.value == 0 || ticket.stream == stream) return status;
    sim_task t = {.kind = SIM_WAIT, .as.wait = ticket};
    pthread_mutex_lock(&d->lock);
    base_lane_push(d->streams[stream].lane, &t);
    pthread_mutex_unlock(&d->lock);
    return WEIR_OK;
}

bool sim_reached(dev_device *device, dev_ticket t)
{
    dev_sim *d = sim_of(device);
    return t.stream < d->n_streams && base_lane_reached(d->streams[t.stream].lane, t.value);
}

static weir_status stream_error(dev_sim *d, uint32_t stream, weir_error *err)
{
    sim_stream *s = &d->streams[stream];
    uint64_t where;
    weir_status status = WEIR_OK;
    if (stream == DEV_STREAM_COMPUTE && base_protect_touched(d->memory, &where)) {
        pthread_mutex_lock(&d->lock);
        status = sim_fail_touched(d, where, err);
        pthread_mutex_unlock(&d->lock);
        return status;
    }
    if (!atomic_load(&s->failed)) return WEIR_OK;
    pthread_mutex_lock(&d->inner);
    status = base_fail(err, s->error.code, "%s", s->error.message);
    pthread_mutex_unlock(&d->inner);
    return status;
}

weir_status sim_sync(dev_device *device, dev_ticket t, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_status status = check_stream(d, t.stream, err);
    if (status != WEIR_OK) return status;
    base_lane_wait(d->streams[t.stream].lane, t.value);
    return stream_error(d, t.stream, err);
}

weir_status sim_recover(dev_device *device, weir_error *err)
{
    dev_sim *d = sim_of(device);
    uint64_t where;
    weir_status status = WEIR_OK;
    sim_streams_drain(d);
    pthread_mutex_lock(&d->lock);
    if (base_protect_touched(d->memory, &where)) {
        status = base_protect_heal(d->memory, err);
        if (status == WEIR_OK) status = sim_reopen(d, err);
    }
    for (uint32_t i = 0; i < d->n_streams; i++) {
        pthread_mutex_lock(&d->inner);
        d->streams[i].error = (weir_error){0};
        atomic_store(&d->streams[i].failed, false);
        pthread_mutex_unlock(&d->inner);
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}
