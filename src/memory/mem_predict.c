/* How long a pass takes by a plan: the ring played through with the rates of storage and computation, tile by
 * tile, without reading or computing anything.
 *
 * It tells more than the larger of the two times: where storage waits for room, or the computation for a
 * tile, both of them lose. */
#include "mem_internal.h"

/* A tile that was read ahead. */
typedef struct play_entry {
    uint64_t len;
    double end; /* when it has arrived */
} play_entry;

/* The weight that one of the two, storage or computation, is at. */
typedef struct play_place {
    mem_weight weight;
    uint32_t index; /* of the component's weights */
    uint32_t tile;
} play_place;

typedef struct play {
    const mem_component *c;
    const mem_decision *d;
    const mem_speed *speed;
    double now;          /* of the computation */
    double storage_free; /* when all that was queued has arrived */
    bool streams;
    uint64_t used; /* of the ring */
    uint32_t first, n;
    play_place ahead; /* read next */
    uint32_t passes_ahead;
    play_entry entries[MEM_MAX_ENTRIES];
} play;

static void enter_weight(const play *p, play_place *at, uint32_t index)
{
    const mem_weight *w = &p->c->weights[index];
    at->index = index;
    at->tile = 0;
    at->weight = *w;
    at->weight.resident_rows = w->fixed ? w->n_rows : mem_part_rows(p->c, w, MEM_PART_RESIDENT, &p->d->cut);
    mem_set_tiles(&at->weight, p->d->tile_target);
}

/* Moves on to the next tile that streams, around the end of the pass. Some tile does. */
static void find_ahead(play *p)
{
    play_place *at = &p->ahead;
    for (;;) {
        while (at->tile < mem_n_tiles(&at->weight) && !mem_tile_streams(&at->weight, at->tile)) at->tile++;
        if (at->tile < mem_n_tiles(&at->weight)) return;
        uint32_t next = at->index + 1;
        if (next == p->c->n_weights) {
            next = 0;
            p->passes_ahead++;
        }
        enter_weight(p, at, next);
    }
}

static uint64_t tile_bytes(const mem_weight *w, uint32_t tile, uint64_t align)
{
    uint32_t row, row_end;
    mem_tile_span(w, tile, &row, &row_end);
    uint64_t begin = w->offset + row * w->row_bytes, end = w->offset + row_end * w->row_bytes;
    return base_align_up(end, align) - base_align_down(begin, align);
}

/* Queues reads while the ring has room, as mem_pump does. */
static void read_ahead(play *p)
{
    double rate = p->speed->storage_bytes_per_s;
    while (p->streams && p->n < MEM_MAX_ENTRIES) {
        uint64_t len = tile_bytes(&p->ahead.weight, p->ahead.tile, p->c->align);
        if (p->used + len > p->d->plan.ring_bytes) return;
        double start = p->storage_free > p->now ? p->storage_free : p->now;
        if ((start - p->now) * rate >= (double)mem_flight_bytes(p->c, p->d->plan.ring_bytes)) return;
        if (p->passes_ahead != 0 && (start - p->now) * rate >= (double)mem_ahead_bytes(p->c)) return;
        p->storage_free = start + (double)len / rate;
        p->entries[(p->first + p->n++) % MEM_MAX_ENTRIES] = (play_entry){.len = len, .end = p->storage_free};
        p->used += len;
        p->ahead.tile++;
        find_ahead(p);
    }
}

static void use_weight(play *p, uint32_t index)
{
    play_place at;
    enter_weight(p, &at, index);
    for (; at.tile < mem_n_tiles(&at.weight); at.tile++) {
        double bytes = (double)tile_bytes(&at.weight, at.tile, 1);
        read_ahead(p);
        if (!mem_tile_streams(&at.weight, at.tile)) {
            p->now += bytes / p->speed->compute_bytes_per_s;
            continue;
        }
        const play_entry e = p->entries[p->first];
        if (e.end > p->now) p->now = e.end;
        p->first = (p->first + 1) % MEM_MAX_ENTRIES;
        p->n--;
        read_ahead(p);
        p->now += bytes / p->speed->compute_bytes_per_s;
        p->used -= e.len;
    }
    read_ahead(p);
}

/* A row of a table is waited for behind what is in flight. */
static double play_pass(play *p)
{
    double start = p->now;
    if (p->d->control.n_slots != 0) {
        if (p->storage_free > p->now) p->now = p->storage_free;
        p->now += p->speed->latency_s;
    }
    p->passes_ahead = 0;
    for (uint32_t i = 0; i < p->c->n_weights; i++) use_weight(p, i);
    return p->now - start;
}

weir_status mem_plan_predict(const mem_component *c, const mem_plan *plan, const mem_speed *speed,
                             double *seconds, weir_error *err)
{
    mem_decision d;
    *seconds = 0;
    if (!(speed->storage_bytes_per_s > 0) || !(speed->compute_bytes_per_s > 0) || !(speed->latency_s >= 0))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: a rate that is not above zero",
                         c->name);
    weir_status status = mem_decide(c, plan->budget_bytes, &d, err);
    if (status != WEIR_OK) return status;
    play p = {.c = c, .d = &d, .speed = speed};
    if (c->n_weights == 0) return WEIR_OK;
    p.streams = d.plan.ring_bytes != 0;
    enter_weight(&p, &p.ahead, 0);
    if (p.streams) find_ahead(&p);
    /* The first pass fills the ring; the second is as all that follow. */
    play_pass(&p);
    *seconds = play_pass(&p);
    return WEIR_OK;
}
