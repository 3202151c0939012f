/* Placing: allocates what a plan says and reads the fixed part and the resident tiles straight into place.
 *
 * Each run of the layout lies at the same offset within a block as in the file, so large queued direct reads
 * need no second copy, and nothing stays in the page cache.
 *
 * Where the device has a layout of its own, weights are packed where they lie while what follows them is
 * still being read: all that lies before the first chunk on its way is there, and its whole groups are
 * packed. */
#include "mem_internal.h"

#include <string.h>

#define LOAD_REQUESTS        32
#define LOAD_CHUNK_BYTES     (UINT64_C(4) << 20)
#define LOAD_IN_FLIGHT_BYTES (UINT64_C(32) << 20)

typedef struct loader loader;

typedef struct load_request {
    mem_queued request; /* first, so that a request gives its load_request */
    loader *owner;
    uint32_t run; /* whose bytes it reads */
    bool busy;
    bool ended;
} load_request;

struct loader {
    mem_component *c;
    const mem_place_options *options;
    uint8_t *block;
    const mem_run *runs;
    uint32_t n_runs;
    mem_part part;
    const mem_cut *cut;
    uint32_t run;                             /* read next */
    uint64_t from;                            /* offset in it */
    uint32_t pack_run, pack_weight, pack_row; /* packed next: a run, of by_offset, a row */
    uint64_t in_flight_bytes;
    uint64_t done_bytes, total_bytes;
    load_request requests[LOAD_REQUESTS];
};

static void load_ended(mem_component *c, mem_queued *r)
{
    (void)c;
    ((load_request *)r)->ended = true;
}

/* The next stretch to read; false behind the last. */
static bool next_chunk(loader *l, base_aio_read *out)
{
    while (l->run < l->n_runs) {
        const mem_run *run = &l->runs[l->run];
        uint64_t begin = run->begin + l->from;
        if (begin >= run->need_end) {
            l->run++;
            l->from = 0;
            continue;
        }
        uint64_t end = base_min(begin + LOAD_CHUNK_BYTES, run->end);
        l->from = end - run->begin;
        *out = (base_aio_read){.file = run->file,
                               .offset = begin,
                               .buf = l->block + run->pos + (begin - run->begin),
                               .len = end - begin,
                               .need = base_min(end, run->need_end) - begin};
        return true;
    }
    return false;
}

/* Takes what a request has read, reading it once more where that failed. */
static weir_status finish_chunk(loader *l, load_request *q, weir_error *err)
{
    base_aio_read *r = &q->request.read;
    weir_status status = WEIR_OK;
    q->busy = q->ended = false;
    l->in_flight_bytes -= r->len;
    if (r->status != WEIR_OK) status = mem_read_now(l->c, r->file, r->offset, r->buf, r->need, err);
    if (status != WEIR_OK) return status;
    l->done_bytes += r->need;
    if (l->options->progress != NULL)
        l->options->progress(l->options->progress_arg, l->done_bytes, l->total_bytes);
    return WEIR_OK;
}

/* Queues chunks while there is a free request; *more is false when all were queued. */
static void queue_chunks(loader *l, bool *more)
{
    for (uint32_t i = 0; i < LOAD_REQUESTS && *more; i++) {
        load_request *q = &l->requests[i];
        if (q->busy || base_aio_in_flight(l->c->aio) >= l->c->depth) continue;
        if (l->in_flight_bytes >= LOAD_IN_FLIGHT_BYTES) return;
        if (!next_chunk(l, &q->request.read)) {
            *more = false;
            return;
        }
        q->request.read.user = &q->request;
        q->request.done = load_ended;
        q->run = l->run;
        q->busy = true;
        l->in_flight_bytes += q->request.read.len;
        l->c->stats.n_reads++;
        weir_status status = base_aio_submit(l->c->aio, &q->request.read, NULL);
        if (status == WEIR_OK) continue;
        /* finish_chunk reads it without the queue. */
        q->request.read.status = status;
        q->ended = true;
    }
}

/* Up to where everything has been read: a run and an offset in its file. */
static void read_front(const loader *l, uint32_t *run, uint64_t *offset)
{
    *run = l->run;
    *offset = l->run < l->n_runs ? l->runs[l->run].begin + l->from : 0;
    for (uint32_t i = 0; i < LOAD_REQUESTS; i++) {
        const load_request *q = &l->requests[i];
        if (!q->busy || q->run > *run || (q->run == *run && q->request.read.offset >= *offset)) continue;
        *run = q->run;
        *offset = q->request.read.offset;
    }
}

uint32_t mem_rows_to_pack(const mem_component *c, const mem_weight *w, uint32_t rows)
{
    const mem_packer *p = &c->packer;
    if (p->pack == NULL || w->packed || w->shared || !w->streamable || !p->can_pack(p->arg, w->type))
        return 0;
    return (uint32_t)base_align_down(rows, MEM_ROW_GROUP);
}

/* Rows of a weight that are to be packed in the present part. */
static uint32_t rows_to_pack(const loader *l, const mem_weight *w)
{
    return mem_rows_to_pack(l->c, w, mem_part_rows(l->c, w, l->part, l->cut));
}

/* Packs the groups that have been read as a whole. */
static weir_status pack_read(loader *l, weir_error *err)
{
    mem_component *c = l->c;
    uint32_t front_run;
    uint64_t front;
    read_front(l, &front_run, &front);
    while (l->pack_run < l->n_runs && l->pack_run <= front_run) {
        const mem_run *run = &l->runs[l->pack_run];
        if (l->pack_weight < run->first) l->pack_weight = run->first;
        if (l->pack_weight > run->last) {
            l->pack_run++;
            continue;
        }
        const mem_weight *w = &c->weights[c->by_offset[l->pack_weight].weight];
        uint32_t rows = rows_to_pack(l, w), end = rows;
        if (l->pack_run == front_run) {
            uint64_t read = front > w->offset ? (front - w->offset) / w->row_bytes : 0;
            end = (uint32_t)base_min(base_align_down(read, MEM_ROW_GROUP), rows);
        }
        if (end > l->pack_row) {
            uint8_t *data = l->block + run->pos + (w->offset - run->begin) + l->pack_row * w->row_bytes;
            uint32_t n_groups = (end - l->pack_row) / MEM_ROW_GROUP;
            weir_status status = c->packer.pack(c->packer.arg, w->type, data, w->row_bytes, n_groups, err);
            if (status != WEIR_OK) return base_fail_context(err, status, "packing weight %s", w->name);
            l->pack_row = end;
        }
        if (end < rows) return WEIR_OK;
        l->pack_weight++;
        l->pack_row = 0;
    }
    return WEIR_OK;
}

/* On failure reads may still be on their way: destroy the queue before the block. */
static weir_status load_block(loader *l, weir_error *err)
{
    bool more = true;
    for (;;) {
        if (mem_is_cancelled(l->options->cancel)) return mem_fail_cancelled(l->c, err);
        queue_chunks(l, &more);
        bool any = false;
        for (uint32_t i = 0; i < LOAD_REQUESTS; i++) {
            load_request *q = &l->requests[i];
            if (!q->busy || !q->ended) continue;
            any = true;
            weir_status status = finish_chunk(l, q, err);
            if (status != WEIR_OK) return status;
        }
        /* With new reads on their way, so that storage does not wait for it. */
        if (any) queue_chunks(l, &more);
        weir_status status = pack_read(l, err);
        if (status != WEIR_OK) return status;
        if (any) continue;
        if (l->in_flight_bytes == 0 && !more) return WEIR_OK;
        bool got;
        status = mem_reap(l->c, true, &got, err);
        if (status != WEIR_OK) return status;
    }
}

/* Lets the weights of a part point at their rows. */
static void point_weights(loader *l)
{
    mem_component *c = l->c;
    for (uint32_t r = 0; r < l->n_runs; r++) {
        for (uint32_t i = l->runs[r].first; i <= l->runs[r].last; i++) {
            mem_weight *w = &c->weights[c->by_offset[i].weight];
            uint32_t rows = mem_part_rows(c, w, l->part, l->cut);
            if (rows == 0) continue;
            w->resident_rows = rows;
            w->packed_rows = w->packed ? (uint32_t)base_min(rows, mem_group_rows(w)) : rows_to_pack(l, w);
            c->stats.packed_bytes += w->packed_rows * w->row_bytes;
            w->data = l->block + l->runs[r].pos + (w->offset - l->runs[r].begin);
        }
    }
}

static uint64_t needed_bytes(const mem_run *runs, uint32_t n_runs)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_runs; i++) bytes += runs[i].need_end - runs[i].begin;
    return bytes;
}

static weir_status load_part(loader *l, mem_part part, uint8_t *block, const mem_run *runs, uint32_t n_runs,
                             weir_error *err)
{
    l->part = part;
    l->block = block;
    l->runs = runs;
    l->n_runs = n_runs;
    l->run = l->pack_run = l->pack_weight = l->pack_row = 0;
    l->from = 0;
    weir_status status = load_block(l, err);
    if (status == WEIR_OK) point_weights(l);
    return status;
}

/* Lays out and reads both parts. runs has room for all weights. */
static weir_status load_parts(mem_component *c, const mem_decision *d, const mem_place_options *options,
                              loader *l, mem_run *runs, weir_error *err)
{
    uint32_t n_fixed, n_resident;
    mem_layout(c, MEM_PART_FIXED, &d->cut, runs, &n_fixed);
    mem_run *resident_runs = runs + n_fixed;
    mem_layout(c, MEM_PART_RESIDENT, &d->cut, resident_runs, &n_resident);
    l->c = c;
    l->options = options;
    l->cut = &d->cut;
    l->total_bytes = needed_bytes(runs, n_fixed + n_resident);
    weir_status status = load_part(l, MEM_PART_FIXED, c->fixed, runs, n_fixed, err);
    if (status == WEIR_OK)
        status = load_part(l, MEM_PART_RESIDENT, c->resident, resident_runs, n_resident, err);
    c->stats.load_bytes = l->done_bytes;
    return status;
}

static weir_status load_all(mem_component *c, const mem_decision *d, const mem_place_options *options,
                            weir_error *err)
{
    double start = base_now(c->env);
    weir_error local = {0};
    mem_run *runs = NULL;
    loader *l = base_alloc(c->env, BASE_TAG_IO, sizeof *l, &local);
    if (l == NULL) goto done;
    runs = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_weights, sizeof *runs, &local);
    if (runs == NULL) goto done;
    load_parts(c, d, options, l, runs, &local);
    /* The queue knows the loader's requests and buffers: it ends before they do. */
    if (local.code != WEIR_OK) {
        base_aio_destroy(c->aio);
        c->aio = NULL;
    }
    c->stats.load_seconds = base_now(c->env) - start;
    mem_drop_caches(c);

done:
    base_free(c->env, runs);
    base_free(c->env, l);
    if (local.code != WEIR_OK && err != NULL) *err = local;
    return local.code;
}

/* One allocation each, of exactly the bytes that the plan names; none of zero bytes. */
static weir_status allocate(mem_component *c, const mem_decision *d, weir_error *err)
{
    const mem_plan *p = &d->plan;
    base_env *env = c->env;
    if (p->fixed_bytes != 0 && c->maps == NULL) {
        c->fixed = base_pages_alloc(env, BASE_TAG_WEIGHTS_FIXED, p->fixed_bytes, true, err);
        if (c->fixed == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    }
    if (p->resident_bytes != 0 && c->maps == NULL) {
        c->resident = base_pages_alloc(env, BASE_TAG_WEIGHTS_RESIDENT, p->resident_bytes, true, err);
        if (c->resident == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    }
    return mem_allocate_stream(c, d, err);
}

weir_status mem_allocate_stream(mem_component *c, const mem_decision *d, weir_error *err)
{
    const mem_plan *p = &d->plan;
    base_env *env = c->env;
    if (p->ring_bytes != 0) {
        c->stream.ring = base_pages_alloc(env, BASE_TAG_WEIGHTS_SLOTS, p->ring_bytes, true, err);
        if (c->stream.ring == NULL) return WEIR_ERR_OUT_OF_MEMORY;
        c->stream.ring_bytes = p->ring_bytes;
        /* Now, since beside all that will be loaded a control group may have room for small pages only. */
        memset(c->stream.ring, 0, p->ring_bytes);
    }
    const mem_control *k = &d->control;
    if (k->total_bytes == 0) return WEIR_OK;
    c->control = base_pages_alloc(env, BASE_TAG_IO, k->total_bytes, false, err);
    if (c->control == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    if (k->entries_bytes != 0) c->stream.entries = (mem_entry *)c->control;
    if (k->n_slots != 0) {
        uint64_t staging = base_align_up(k->entries_bytes + k->slots_bytes, MEM_PAGE_BYTES);
        c->rows.slots = (mem_row_slot *)(c->control + k->entries_bytes);
        c->rows.staging = c->control + staging;
        c->rows.n_slots = k->n_slots;
        c->rows.slot_bytes = k->slot_bytes;
    }
    return WEIR_OK;
}

/* The decision behind a plan, when the plan is this component's. */
static weir_status decide_again(mem_component *c, const mem_plan *plan, mem_decision *out, weir_error *err)
{
    if (c->placed)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s is placed already; unplace it first",
                         c->name);
    weir_status status = mem_decide(c, plan->budget_bytes, out, err);
    if (status != WEIR_OK) return status;
    const mem_plan *p = &out->plan;
    if (p->fixed_bytes != plan->fixed_bytes || p->resident_bytes != plan->resident_bytes ||
        p->ring_bytes != plan->ring_bytes || p->streamed_bytes != plan->streamed_bytes)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "component %s: the plan is not one of this component", c->name);
    return WEIR_OK;
}

void mem_finish_placing(mem_component *c, const mem_decision *d)
{
    c->stats.reader = c->maps != NULL ? "mapped" : base_aio_text(base_aio_by_threads(c->aio), c->buffered);
    for (uint32_t i = 0; i < c->n_weights; i++) mem_set_tiles(&c->weights[i], d->tile_target);
    /* Wholly resident: no reader, no thread, no queue stays (R5.8). */
    if (c->control == NULL) {
        base_aio_destroy(c->aio);
        c->aio = NULL;
    }
    c->plan = d->plan;
    c->placed = true;
}

/* A mapping that fails is no error, except where reading would fail in the same way. */
static void map_or_not(mem_component *c, const mem_plan *plan, const mem_place_options *options,
                       weir_error *err)
{
    weir_error why = {0};
    if (mem_map_all(c, plan, options, &why) == WEIR_OK) return;
    if (why.code == WEIR_ERR_CANCELLED || why.code == WEIR_ERR_FILE_CHANGED || why.code == WEIR_ERR_TRUNCATED)
        *err = why;
    else
        base_log(c->env, BASE_LOG_WARN, "weights are read, not mapped: %s", why.message);
}

weir_status mem_place(mem_component *c, const mem_plan *plan, const mem_place_options *options,
                      weir_error *err)
{
    mem_decision d;
    weir_status status = decide_again(c, plan, &d, err);
    if (status != WEIR_OK) return status;
    weir_error local = {0};
    for (uint32_t i = 0; i < c->n_files && local.code == WEIR_OK; i++) base_file_check(c->files[i], &local);
    if (local.code != WEIR_OK) goto fail;
    base_aio_options o = options->aio;
    if (o.depth == 0) o.depth = MEM_DEFAULT_DEPTH;
    if (base_aio_create(c->env, &o, &c->aio, &local) != WEIR_OK) goto fail;
    c->depth = o.depth;
    c->buffered = o.buffered;
    if (options->packer != NULL) c->packer = *options->packer;
    for (uint32_t i = 0; i < c->n_files; i++)
        c->buffered = c->buffered || base_file_direct_align(c->files[i]) == 0;
    bool stand_in = options->stand_in_bytes != 0;
    if (stand_in) d.plan.resident_bytes = mem_stand_in_bytes(c, &d, options);
    if (options->map && d.plan.ring_bytes == 0 && !stand_in) map_or_not(c, &d.plan, options, &local);
    if (local.code != WEIR_OK || allocate(c, &d, &local) != WEIR_OK) goto fail;
    if (stand_in)
        mem_stand_in(c, &d, options);
    else if (c->maps == NULL && load_all(c, &d, options, &local) != WEIR_OK)
        goto fail;
    mem_finish_placing(c, &d);
    return WEIR_OK;

fail:
    c->plan = d.plan;
    mem_unplace(c);
    if (err != NULL) *err = local;
    return local.code;
}

weir_status mem_place_rows(mem_component *c, const base_aio_options *aio, weir_error *err)
{
    mem_decision d;
    mem_plan smallest;
    weir_error local = {0};
    mem_plan_make(c, 0, &smallest, NULL);
    mem_plan wanted;
    weir_status status = mem_plan_make(c, smallest.smallest_bytes, &wanted, err);
    if (status == WEIR_OK) status = decide_again(c, &wanted, &d, err);
    if (status != WEIR_OK) return status;
    d.plan.fixed_bytes = d.plan.resident_bytes = d.plan.ring_bytes = 0;
    for (uint32_t i = 0; i < c->n_files && local.code == WEIR_OK; i++) base_file_check(c->files[i], &local);
    base_aio_options o = *aio;
    if (o.depth == 0) o.depth = MEM_DEFAULT_DEPTH;
    if (local.code == WEIR_OK) base_aio_create(c->env, &o, &c->aio, &local);
    if (local.code == WEIR_OK) allocate(c, &d, &local);
    c->plan = d.plan;
    if (local.code != WEIR_OK) {
        mem_unplace(c);
        if (err != NULL) *err = local;
        return local.code;
    }
    c->depth = o.depth;
    c->buffered = o.buffered;
    for (uint32_t i = 0; i < c->n_files; i++)
        c->buffered = c->buffered || base_file_direct_align(c->files[i]) == 0;
    c->stats.reader = base_aio_text(base_aio_by_threads(c->aio), c->buffered);
    c->placed = true;
    return WEIR_OK;
}

bool mem_component_placed(const mem_component *c)
{
    return c->placed;
}

void mem_unplace(mem_component *c)
{
    const mem_plan *p = &c->plan;
    base_aio_destroy(c->aio); /* waits for the reads that still write into the blocks below */
    if (c->aio != NULL && c->buffered) mem_drop_caches(c);
    mem_unmap_all(c);
    base_pages_free(c->env, BASE_TAG_IO, c->control, p->io_bytes);
    base_pages_free(c->env, BASE_TAG_WEIGHTS_SLOTS, c->stream.ring, p->ring_bytes);
    base_pages_free(c->env, BASE_TAG_WEIGHTS_RESIDENT, c->resident, p->resident_bytes);
    base_pages_free(c->env, BASE_TAG_WEIGHTS_FIXED, c->fixed, p->fixed_bytes);
    c->aio = NULL;
    c->control = c->fixed = c->resident = NULL;
    c->stream = (mem_stream){0};
    c->rows = (mem_rows){0};
    c->plan = (mem_plan){0};
    c->packer = (mem_packer){0};
    c->stats = (mem_stats){.reader = "none"};
    c->placed = false;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[i];
        w->data = NULL;
        w->resident_rows = w->packed_rows = w->tile_rows = w->n_streamed = w->piece_rows = w->n_pieces = 0;
    }
}

const void *mem_weight_resident(const mem_component *c, mem_weight_id id)
{
    if (id >= c->n_weights) return NULL;
    const mem_weight *w = &c->weights[id];
    return w->resident_rows == w->n_rows ? w->data : NULL;
}

uint32_t mem_weight_packed_rows(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights ? c->weights[id].packed_rows : 0;
}
