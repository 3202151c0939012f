/* Rows by number: what an embedding table is asked for. The table stays in storage; the rows of a prompt are
 * fetched by many reads at once, each a few blocks, through a small staging buffer. */
#include "mem_internal.h"

#include <string.h>

/* One call's list and how far it is. */
typedef struct row_job {
    const mem_weight *w;
    const int32_t *rows;
    size_t n;
    size_t next; /* not looked at yet */
    uint8_t *dst;
    size_t stride;
} row_job;

static void row_ended(mem_component *c, mem_queued *r)
{
    mem_row_slot *slot = (mem_row_slot *)r;
    slot->reading = false;
    slot->ended = true;
    c->rows.n_reading--;
}

static weir_status read_row_now(mem_component *c, const row_job *job, size_t index, weir_error *err)
{
    const mem_weight *w = job->w;
    uint64_t offset = w->offset + (uint64_t)job->rows[index] * w->row_bytes;
    c->stats.row_bytes += w->row_bytes;
    return mem_read_now(c, w->file, offset, job->dst + index * job->stride, w->row_bytes, err);
}

/* Queues the read of one row into a free slot; false when it could not be queued. */
static bool submit_row(mem_component *c, const row_job *job, size_t index, uint32_t number)
{
    const mem_weight *w = job->w;
    mem_row_slot *slot = &c->rows.slots[number];
    uint64_t begin = w->offset + (uint64_t)job->rows[index] * w->row_bytes;
    uint64_t from = base_align_down(begin, c->align), end = begin + w->row_bytes;
    *slot = (mem_row_slot){.index = index, .skip = (uint32_t)(begin - from)};
    slot->request.read = (base_aio_read){.file = w->file,
                                         .offset = from,
                                         .buf = c->rows.staging + number * c->rows.slot_bytes,
                                         .len = base_align_up(end, c->align) - from,
                                         .need = end - from,
                                         .user = &slot->request};
    slot->request.done = row_ended;
    if (base_aio_in_flight(c->aio) >= c->depth) return false;
    if (base_aio_submit(c->aio, &slot->request.read, NULL) != WEIR_OK) return false;
    slot->reading = true;
    c->rows.n_reading++;
    c->stats.row_bytes += slot->request.read.len;
    c->stats.n_reads++;
    return true;
}

/* Copies what has arrived; a row that failed is read once more. */
static weir_status collect_rows(mem_component *c, const row_job *job, bool *any, weir_error *err)
{
    weir_status status = WEIR_OK;
    *any = false;
    for (uint32_t i = 0; i < c->rows.n_slots; i++) {
        mem_row_slot *slot = &c->rows.slots[i];
        if (!slot->ended) continue;
        slot->ended = false;
        *any = true;
        if (status != WEIR_OK) continue;
        if (slot->request.read.status != WEIR_OK) {
            status = read_row_now(c, job, slot->index, err);
            continue;
        }
        memcpy(job->dst + slot->index * job->stride, (uint8_t *)slot->request.read.buf + slot->skip,
               job->w->row_bytes);
    }
    return status;
}

static uint32_t free_slot(const mem_component *c)
{
    uint32_t i = 0;
    while (i < c->rows.n_slots && (c->rows.slots[i].reading || c->rows.slots[i].ended)) i++;
    return i;
}

/* Copies resident rows and queues the others until the list ends or no slot is free. */
static weir_status queue_rows(mem_component *c, row_job *job, weir_error *err)
{
    const mem_weight *w = job->w;
    bool staged = c->aio != NULL && base_align_up(w->row_bytes, c->align) + c->align <= c->rows.slot_bytes;
    while (job->next < job->n) {
        size_t i = job->next;
        uint32_t row = (uint32_t)job->rows[i];
        weir_status status = WEIR_OK;
        if (row < w->packed_rows) {
            uint32_t in_group = row % MEM_ROW_GROUP;
            c->packer.unpack_row(c->packer.arg, w->type, w->data + (row - in_group) * w->row_bytes,
                                 w->row_bytes, in_group, job->dst + i * job->stride);
        } else if (row < w->resident_rows) {
            memcpy(job->dst + i * job->stride, w->data + row * w->row_bytes, w->row_bytes);
        } else if (!staged) {
            status = read_row_now(c, job, i, err); /* long rows: one read is worth it */
        } else {
            uint32_t slot = free_slot(c);
            if (slot == c->rows.n_slots) return WEIR_OK;
            /* A full queue empties by itself; a queue that refuses is passed by. */
            if (!submit_row(c, job, i, slot)) {
                if (base_aio_in_flight(c->aio) >= c->depth) return WEIR_OK;
                status = read_row_now(c, job, i, err);
            }
        }
        if (status != WEIR_OK) return status;
        job->next++;
    }
    return WEIR_OK;
}

static weir_status wait_for_row(mem_component *c, weir_error *err)
{
    bool got;
    double start = base_now(c->env);
    weir_status status = mem_reap(c, true, &got, err);
    c->stats.wait_seconds += base_now(c->env) - start;
    return status;
}

/* Tiles are queued when the rows have arrived: somebody waits for these, and where storage tells of ended
 * reads only when it has nothing left to do (mem_flight_bytes), he would wait for the tiles too. */
static void go_on_ahead(mem_component *c)
{
    if (!c->stream.in_pass || c->stream.ring == NULL) return;
    c->stream.started = true;
    mem_pump(c);
}

static weir_status run_job(mem_component *c, row_job *job, weir_error *err)
{
    weir_status status = WEIR_OK;
    while (status == WEIR_OK) {
        bool any = false;
        status = queue_rows(c, job, err);
        if (status == WEIR_OK) status = collect_rows(c, job, &any, err);
        if (status == WEIR_OK && job->next == job->n && c->rows.n_reading == 0) {
            go_on_ahead(c);
            return WEIR_OK;
        }
        if (status == WEIR_OK && mem_is_cancelled(c->stream.cancel)) status = mem_fail_cancelled(c, err);
        if (status == WEIR_OK && !any && base_aio_in_flight(c->aio) != 0) status = wait_for_row(c, err);
    }
    return status;
}

/* Leaves no slot behind that a read of an ended call still writes into. */
static void settle_slots(mem_component *c)
{
    bool got = true;
    while (got && c->rows.n_reading != 0) mem_reap(c, true, &got, NULL);
    for (uint32_t i = 0; i < c->rows.n_slots; i++) c->rows.slots[i].ended = false;
}

static weir_status check_rows(const mem_component *c, mem_weight_id id, const int32_t *rows, size_t n,
                              size_t stride, weir_error *err)
{
    if (!c->placed)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: rows wanted before it was placed",
                         c->name);
    if (id >= c->n_weights)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: weight %u does not exist", c->name,
                         id);
    const mem_weight *w = &c->weights[id];
    if (n > 1 && stride < w->row_bytes)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "weight %s: rows of %llu bytes do not fit a stride of %zu", w->name,
                         (unsigned long long)w->row_bytes, stride);
    for (size_t i = 0; i < n; i++) {
        if (rows[i] < 0 || (uint32_t)rows[i] >= w->n_rows)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "weight %s: row %d does not exist, there are %u",
                             w->name, rows[i], w->n_rows);
    }
    return WEIR_OK;
}

weir_status mem_rows_read(mem_component *c, mem_weight_id id, const int32_t *rows, size_t n, void *dst,
                          size_t dst_stride, weir_error *err)
{
    weir_status status = check_rows(c, id, rows, n, dst_stride, err);
    if (status != WEIR_OK) return status;
    row_job job = {.w = &c->weights[id], .rows = rows, .n = n, .dst = dst, .stride = dst_stride};
    settle_slots(c);
    status = run_job(c, &job, err);
    if (status == WEIR_OK) return WEIR_OK;
    settle_slots(c);
    return base_fail_context(err, status, "component %s, rows of weight %s", c->name, job.w->name);
}
