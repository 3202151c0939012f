/* The ring: streamed tiles pass through it in the order in which the program uses them.
 *
 *        first                                    head
 *          v                                       v
 *   | .... [held][ready][reading][reading][waiting] ...... |
 *                                                   ^ prefetched next, when there is room: the cursor
 *
 * Entries have the size of their tile, rounded to whole blocks. They are taken from the front in the order of
 * the pass; what is wanted is searched from the front on, and what lies before it is dropped as stale. What
 * is not found is read on the spot and prefetching starts anew behind it: the bytes are right for any order,
 * and the speed is right for the announced one.
 *
 * A drop is not an end: the kernel may still write into a dropped entry, so its bytes are free only when its
 * read has ended. There is no thread of ours here; the queue is fed whenever a tile is taken or given back,
 * which is when room appears. */
#include "mem_internal.h"

#include <string.h>

bool mem_is_cancelled(const atomic_bool *cancel)
{
    return cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed);
}

weir_status mem_fail_cancelled(const mem_component *c, weir_error *err)
{
    return base_fail(err, WEIR_ERR_CANCELLED, "component %s: cancelled by the caller", c->name);
}

weir_status mem_reap(mem_component *c, bool block, bool *got, weir_error *err)
{
    base_aio_read *read = NULL;
    weir_error local = {0};
    *got = false;
    weir_status status = base_aio_wait(c->aio, block, &read, &local);
    if (read != NULL) {
        mem_queued *r = read->user;
        *got = true;
        r->done(c, r);
        return WEIR_OK;
    }
    if (status != WEIR_OK && err != NULL) *err = local;
    return status;
}

weir_status mem_read_now(mem_component *c, base_file *file, uint64_t offset, void *buf, size_t len,
                         weir_error *err)
{
    weir_status status = base_file_read(file, offset, buf, len, err);
    base_file_drop_cache(file, offset, len);
    c->stats.n_reads++;
    return status;
}

void mem_drop_caches(mem_component *c)
{
    for (uint32_t i = 0; i < c->n_files; i++)
        base_file_drop_cache(c->files[i], 0, base_file_size(c->files[i]));
}

uint32_t mem_weight_n_tiles(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights ? mem_n_tiles(&c->weights[id]) : 0;
}

/* ---- the ring ---- */

static mem_entry *entry_at(mem_stream *s, uint32_t i)
{
    return &s->entries[(s->first + i) % MEM_MAX_ENTRIES];
}

/* What holds between any two calls; every pass begins with this question. */
static bool stream_is_valid(mem_stream *s)
{
    uint32_t held = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const mem_entry *e = entry_at(s, i);
        held += e->state == MEM_ENTRY_HELD;
        bytes += e->len;
        if (e->pos + e->len > s->ring_bytes) return false;
    }
    if (s->n != 0 && entry_at(s, 0)->state == MEM_ENTRY_EMPTY) return false;
    return held == s->n_held && held <= MEM_MAX_HELD && bytes <= s->ring_bytes && s->n <= MEM_MAX_ENTRIES;
}

/* Takes empty entries back at both ends. */
static void trim(mem_stream *s)
{
    while (s->n != 0 && entry_at(s, 0)->state == MEM_ENTRY_EMPTY) {
        s->first = (s->first + 1) % MEM_MAX_ENTRIES;
        s->n--;
    }
    while (s->n != 0 && entry_at(s, s->n - 1)->state == MEM_ENTRY_EMPTY) s->n--;
    const mem_entry *newest = s->n != 0 ? entry_at(s, s->n - 1) : NULL;
    s->head = newest != NULL ? newest->pos + newest->len : 0;
}

static void drop(mem_stream *s, mem_entry *e)
{
    if (e->state == MEM_ENTRY_READING && !e->dropped) s->reading_bytes -= e->len;
    e->dropped = true;
    if (e->state != MEM_ENTRY_READING) e->state = MEM_ENTRY_EMPTY;
}

static bool is_prefetched(const mem_entry *e)
{
    return !e->dropped && e->state != MEM_ENTRY_EMPTY && e->state != MEM_ENTRY_HELD;
}

static void entry_ended(mem_component *c, mem_queued *r)
{
    mem_entry *e = (mem_entry *)r;
    if (!e->dropped) c->stream.reading_bytes -= e->len;
    e->state = r->read.status == WEIR_OK ? MEM_ENTRY_READY : MEM_ENTRY_FAILED;
    if (e->dropped) {
        e->state = MEM_ENTRY_EMPTY;
        trim(&c->stream);
    }
}

/* Finds len bytes in one piece behind the newest entry, at the ring's end or else its beginning. */
static bool find_room(mem_stream *s, uint64_t len, uint64_t *pos)
{
    if (s->n == MEM_MAX_ENTRIES || len > s->ring_bytes) return false;
    *pos = s->head;
    if (s->n == 0) return true; /* trim has set head to 0 */
    uint64_t tail = entry_at(s, 0)->pos;
    if (s->head <= tail) return tail - s->head >= len;
    if (s->ring_bytes - s->head >= len) return true;
    *pos = 0;
    return tail >= len;
}

/* Gives a tile its place at the end of the ring; NULL when there is none now. */
static mem_entry *push_entry(mem_component *c, mem_weight_id id, uint32_t tile, size_t order_index)
{
    mem_stream *s = &c->stream;
    const mem_weight *w = &c->weights[id];
    uint32_t row, row_end;
    mem_tile_span(w, tile, &row, &row_end);
    uint64_t begin = w->offset + row * w->row_bytes, bytes = (row_end - row) * w->row_bytes;
    uint64_t from = base_align_down(begin, c->align);
    uint64_t len = base_align_up(begin + bytes, c->align) - from, pos;
    if (!find_room(s, len, &pos)) return NULL;
    mem_entry *e = entry_at(s, s->n++);
    *e = (mem_entry){.weight = id,
                     .tile = tile,
                     .order_index = order_index,
                     .pos = pos,
                     .len = len,
                     .skip = (uint32_t)(begin - from),
                     .state = MEM_ENTRY_WAITING};
    e->request.read = (base_aio_read){.file = w->file,
                                      .offset = from,
                                      .buf = s->ring + pos,
                                      .len = len,
                                      .need = begin + bytes - from,
                                      .user = &e->request};
    e->request.done = entry_ended;
    s->head = pos + len;
    return e;
}

/* Queues an entry's read. An entry that could not be queued stays waiting. */
static bool submit_entry(mem_component *c, mem_entry *e)
{
    if (base_aio_in_flight(c->aio) >= c->depth) return false;
    if (base_aio_submit(c->aio, &e->request.read, NULL) != WEIR_OK) return false;
    e->state = MEM_ENTRY_READING;
    c->stream.reading_bytes += e->len;
    c->stats.streamed_bytes += e->len;
    c->stats.n_reads++;
    return true;
}

/* ---- the cursor ---- */

/* Moves the cursor from (index, tile) on to the next tile that streams, around the end of the order. */
static void set_cursor(mem_component *c, size_t index, uint32_t tile)
{
    mem_stream *s = &c->stream;
    bool wrapped = s->cursor.wrapped;
    s->cursor.valid = false;
    for (size_t steps = 0; steps <= s->n_order && s->n_order != 0; steps++) {
        wrapped = wrapped || index >= s->n_order;
        index %= s->n_order;
        const mem_weight *w = &c->weights[s->order[index]];
        while (tile < mem_n_tiles(w) && !mem_tile_streams(w, tile)) tile++;
        if (tile < mem_n_tiles(w)) {
            s->cursor = (mem_cursor){.index = index, .tile = tile, .valid = true, .wrapped = wrapped};
            return;
        }
        index++;
        tile = 0;
    }
}

static void advance_cursor(mem_component *c)
{
    set_cursor(c, c->stream.cursor.index, c->stream.cursor.tile + 1);
}

/* A part of the ring is in flight and the rest is being used (mem_flight_bytes). And a pass begins with rows
 * of a table, which wait for all that was queued before them. So what the next pass wants is read with no
 * more in flight than keeps storage at its rate, until that pass has got under way. */
static bool is_held_back(const mem_component *c)
{
    const mem_stream *s = &c->stream;
    if (s->reading_bytes >= mem_flight_bytes(c, s->ring_bytes)) return true;
    return (s->cursor.wrapped || !s->started) && s->reading_bytes >= mem_ahead_bytes(c);
}

/* Takes in what has ended, then fills the ring as far as it goes. Nothing here is an error yet: whoever wants
 * a tile that did not come reads it again and tells. */
void mem_pump(mem_component *c)
{
    mem_stream *s = &c->stream;
    bool got = true;
    while (got && base_aio_in_flight(c->aio) != 0) mem_reap(c, false, &got, NULL);
    for (uint32_t i = 0; i < s->n; i++) {
        mem_entry *e = entry_at(s, i);
        if (e->state == MEM_ENTRY_WAITING && !submit_entry(c, e)) return;
    }
    while (s->in_pass && s->cursor.valid && !is_held_back(c) && base_aio_in_flight(c->aio) < c->depth) {
        mem_entry *e = push_entry(c, s->order[s->cursor.index], s->cursor.tile, s->cursor.index);
        if (e == NULL) return;
        advance_cursor(c);
        if (!submit_entry(c, e)) return;
    }
}

/* ---- passes ---- */

/* Keeps what was prefetched as long as it is what this order begins with; drops the rest. */
static void match_order(mem_component *c)
{
    mem_stream *s = &c->stream;
    bool keep = true;
    s->cursor.wrapped = false;
    set_cursor(c, 0, 0);
    for (uint32_t i = 0; i < s->n; i++) {
        mem_entry *e = entry_at(s, i);
        if (!is_prefetched(e)) continue;
        keep = keep && s->cursor.valid && e->weight == s->order[s->cursor.index] && e->tile == s->cursor.tile;
        if (keep) {
            e->order_index = s->cursor.index;
            advance_cursor(c);
        } else {
            drop(s, e);
        }
    }
    trim(s);
}

static weir_status check_order(const mem_component *c, const mem_weight_id *order, size_t n, weir_error *err)
{
    if (!c->placed)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: a pass before it was placed",
                         c->name);
    if (c->stream.in_pass)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: a pass inside another", c->name);
    for (size_t i = 0; i < n; i++) {
        if (order[i] >= c->n_weights || mem_n_tiles(&c->weights[order[i]]) == 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "component %s: weight %u of a pass does not exist or is only read by row",
                             c->name, order[i]);
    }
    return WEIR_OK;
}

weir_status mem_pass_begin(mem_component *c, const mem_weight_id *order, size_t n, atomic_bool *cancel,
                           weir_error *err)
{
    weir_status status = check_order(c, order, n, err);
    if (status != WEIR_OK) return status;
    mem_stream *s = &c->stream;
    if (s->ring != NULL) {
        for (uint32_t i = 0; i < c->n_files && status == WEIR_OK; i++)
            status = base_file_check(c->files[i], err);
        if (status != WEIR_OK) return status;
        if (!stream_is_valid(s))
            return base_fail(err, WEIR_ERR_INTERNAL, "component %s: the ring is not valid", c->name);
    }
    s->order = order;
    s->n_order = n;
    s->cancel = cancel;
    s->in_pass = true;
    s->started = false;
    s->at = 0;
    if (s->ring != NULL) {
        match_order(c);
        mem_pump(c);
    }
    return WEIR_OK;
}

void mem_pass_end(mem_component *c)
{
    mem_stream *s = &c->stream;
    for (uint32_t i = 0; i < s->n; i++) {
        mem_entry *e = entry_at(s, i);
        if (e->state == MEM_ENTRY_HELD) drop(s, e);
    }
    if (s->in_pass && s->ring != NULL && c->buffered) mem_drop_caches(c);
    s->n_held = 0;
    trim(s);
    s->order = NULL;
    s->n_order = 0;
    s->cancel = NULL;
    s->cursor.valid = false;
    s->in_pass = false;
}

/* ---- taking a tile ---- */

/* The oldest prefetched entry of this tile; all before it are dropped. */
static mem_entry *take_prefetched(mem_component *c, mem_weight_id id, uint32_t tile)
{
    mem_stream *s = &c->stream;
    uint32_t at = 0;
    for (; at < s->n; at++) {
        const mem_entry *e = entry_at(s, at);
        if (is_prefetched(e) && e->weight == id && e->tile == tile) break;
    }
    if (at == s->n) return NULL;
    mem_entry *found = entry_at(s, at);
    for (uint32_t i = 0; i < at; i++) {
        mem_entry *e = entry_at(s, i);
        if (is_prefetched(e)) drop(s, e);
    }
    trim(s); /* moves first, not the entries */
    return found;
}

/* Drops all that was prefetched and lets prefetching go on behind the tile, where the order has it; else
 * where it was. */
static void restart_behind(mem_component *c, mem_weight_id id, uint32_t tile)
{
    mem_stream *s = &c->stream;
    const mem_entry *oldest = NULL;
    for (uint32_t i = 0; i < s->n; i++) {
        mem_entry *e = entry_at(s, i);
        if (!is_prefetched(e)) continue;
        if (oldest == NULL) {
            oldest = e;
            s->cursor.wrapped = false;
            set_cursor(c, e->order_index, e->tile);
        }
        drop(s, e);
    }
    trim(s);
    for (size_t i = 0; i < s->n_order; i++) {
        size_t index = (s->at + i) % s->n_order;
        if (s->order[index] != id) continue;
        s->cursor.wrapped = false;
        set_cursor(c, index, tile + 1);
        s->at = index;
        return;
    }
}

/* Waits until one more read has ended. */
static weir_status wait_for_read(mem_component *c, weir_error *err)
{
    if (mem_is_cancelled(c->stream.cancel)) return mem_fail_cancelled(c, err);
    if (base_aio_in_flight(c->aio) == 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "component %s: waiting for a read, but none is queued",
                         c->name);
    bool got;
    double start = base_now(c->env);
    weir_status status = mem_reap(c, true, &got, err);
    c->stats.wait_seconds += base_now(c->env) - start;
    return status;
}

/* Finds a place for a tile that was not prefetched, and queues its read. */
static weir_status read_on_the_spot(mem_component *c, mem_weight_id id, uint32_t tile, mem_entry **out,
                                    weir_error *err)
{
    const mem_stream *s = &c->stream;
    bool next = s->cursor.valid && s->order[s->cursor.index] == id && s->cursor.tile == tile;
    if (!next) c->stats.n_misses++; /* else the ring had no room for it yet */
    restart_behind(c, id, tile);
    while ((*out = push_entry(c, id, tile, c->stream.at)) == NULL) {
        weir_status status = wait_for_read(c, err);
        if (status != WEIR_OK) return status;
    }
    submit_entry(c, *out);
    return WEIR_OK;
}

/* Reads an entry without the queue: its read failed or could not be queued. Another try costs little, and a
 * passing fault then stays without consequence; a lasting one tells its cause here. */
static weir_status read_again(mem_component *c, mem_entry *e, weir_error *err)
{
    const base_aio_read *r = &e->request.read;
    double start = base_now(c->env);
    weir_status status = mem_read_now(c, r->file, r->offset, r->buf, r->need, err);
    c->stats.wait_seconds += base_now(c->env) - start;
    if (status != WEIR_OK) {
        e->state = MEM_ENTRY_FAILED;
        return status;
    }
    if (e->state == MEM_ENTRY_WAITING) c->stats.streamed_bytes += e->len;
    e->state = MEM_ENTRY_READY;
    return WEIR_OK;
}

/* Gets a tile of the ring into the state READY. */
static weir_status complete_entry(mem_component *c, mem_entry *e, weir_error *err)
{
    weir_status status = WEIR_OK;
    while (e->state == MEM_ENTRY_WAITING && base_aio_in_flight(c->aio) >= c->depth && status == WEIR_OK)
        status = wait_for_read(c, err);
    if (status == WEIR_OK && e->state == MEM_ENTRY_WAITING && !submit_entry(c, e))
        return read_again(c, e, err);
    while (status == WEIR_OK && e->state == MEM_ENTRY_READING) status = wait_for_read(c, err);
    if (status == WEIR_OK && e->state == MEM_ENTRY_FAILED) status = read_again(c, e, err);
    return status;
}

static weir_status check_tile(const mem_component *c, mem_weight_id id, uint32_t tile, weir_error *err)
{
    if (!c->stream.in_pass)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: a tile outside a pass", c->name);
    if (id >= c->n_weights || tile >= mem_n_tiles(&c->weights[id]))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: tile %u of weight %u does not exist",
                         c->name, tile, id);
    if (mem_is_cancelled(c->stream.cancel)) return mem_fail_cancelled(c, err);
    return WEIR_OK;
}

static weir_status acquire_streamed(mem_component *c, mem_weight_id id, uint32_t tile, mem_entry **out,
                                    weir_error *err)
{
    mem_stream *s = &c->stream;
    if (s->n_held == MEM_MAX_HELD)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: more than %d tiles held at once",
                         c->name, MEM_MAX_HELD);
    mem_pump(c);
    mem_entry *e = take_prefetched(c, id, tile);
    weir_status status = WEIR_OK;
    if (e == NULL)
        status = read_on_the_spot(c, id, tile, &e, err);
    else
        s->at = e->order_index;
    if (status == WEIR_OK) status = complete_entry(c, e, err);
    *out = e;
    return status;
}

weir_status mem_tile_acquire(mem_component *c, mem_weight_id id, uint32_t i, mem_tile *out, weir_error *err)
{
    weir_status status = check_tile(c, id, i, err);
    if (status != WEIR_OK) return status;
    const mem_weight *w = &c->weights[id];
    mem_stream *s = &c->stream;
    mem_tile t = {.slot = MEM_RESIDENT_SLOT};
    mem_tile_span(w, i, &t.row_begin, &t.row_end);
    s->started = true;
    uint32_t packed = !mem_tile_streams(w, i) ? w->packed_rows : w->packed ? mem_group_rows(w) : 0;
    packed = (uint32_t)base_min(packed, t.row_end);
    t.packed_rows = packed > t.row_begin ? packed - t.row_begin : 0;
    if (!mem_tile_streams(w, i)) {
        t.data = w->data + t.row_begin * w->row_bytes;
        if (s->ring != NULL) mem_pump(c);
        *out = t;
        return WEIR_OK;
    }
    mem_entry *e = NULL;
    status = acquire_streamed(c, id, i, &e, err);
    if (status != WEIR_OK)
        return base_fail_context(err, status, "weight %s, rows %u to %u", w->name, t.row_begin, t.row_end);
    e->state = MEM_ENTRY_HELD;
    s->n_held++;
    t.data = s->ring + e->pos + e->skip;
    t.slot = (uint32_t)(e - s->entries);
    *out = t;
    mem_pump(c);
    return WEIR_OK;
}

void mem_tile_release(mem_component *c, const mem_tile *tile)
{
    mem_stream *s = &c->stream;
    if (tile->slot >= MEM_MAX_ENTRIES || s->entries == NULL) return;
    mem_entry *e = &s->entries[tile->slot];
    if (e->state != MEM_ENTRY_HELD) return;
    e->state = MEM_ENTRY_EMPTY;
    s->n_held--;
    trim(s);
    mem_pump(c);
}
