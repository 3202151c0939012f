/* Planning: what a budget gives, computed from sizes alone.
 *
 *   budget  |  fixed part  |  resident ...............  |  ring  |
 *
 * What stays and what streams is decided by the cut (mem_cut.c).
 * A part lies in memory as it lies in the files, block by block of `align` bytes, so that every stretch is
 * read straight into place. The bytes of a cut are therefore those of the blocks it touches, and grow with
 * the cut. */
#include "mem_internal.h"

/* The ring costs what it holds, since that many bytes more must stream; but with little in flight, storage is
 * slow: at about r / (r + h) of its rate with a ring of r bytes, h being its latency times its rate. With m
 * bytes missing, (m + r)(r + h) / r is least at r = sqrt(m h). h was measured on virtual disks at 1 GB/s. */
#define RING_HALF_RATE_BYTES     (UINT64_C(1) << 20)
#define RING_HALF_RATE_MAX_BYTES (UINT64_C(8) << 20)
/* Tiles that a ring holds: half of them in flight, the others in use one after the other. */
#define RING_TILES 16
/* Where every read costs a seek, fewer and larger ones. */
#define RING_TILES_SLOW 4
/* Three, so that one of any size finds a free stretch while another is held wherever it may lie. */
#define RING_MIN_TILES 3
/* The smallest ring in thousandths of what may stream, and its bound. */
#define RING_MIN_PERMILLE  15
#define RING_MIN_CAP_BYTES (UINT64_C(8) << 20)
/* A ring that holds all that the reader wants in flight is worth this part of what is missing. */
#define RING_READER_SHARE 8
/* And no ring holds more than so many times that: the rest brings nothing, and memory that is filled in turns
 * is the slower the more it is, beyond what a cache holds (16 MiB against 8: a tenth, on a virtual disk). */
#define RING_FLIGHTS 4
/* A device takes so many pieces of memory at once: of huge pages each read is one, of small ones each page
 * is, and a queue may then hold no more than two or three reads (half of the rate was measured on a virtual
 * disk). So a ring is of whole huge pages, as far as there is room. */
#define RING_PAGE_BYTES (UINT64_C(2) << 20)
/* Groups stream this part of the ring, so that the next one's is there while this one's is used. */
#define RING_GROUPS 4

/* Ends the run that was being built: gives it its place, and widens a large one of the fixed part to whole
 * blocks, so that it can be read directly. Returns where the next one may begin. */
static uint64_t close_run(const mem_component *c, mem_part part, mem_run *run, uint64_t pos)
{
    uint64_t align = part == MEM_PART_FIXED ? MEM_BUFFERED_ALIGN : c->align;
    if (run->end - run->begin >= MEM_SMALL_BYTES) align = c->align;
    run->begin = base_align_down(run->begin, align);
    run->end = base_align_up(run->end, align);
    run->pos = base_align_up(pos, align);
    return run->pos + (run->end - run->begin);
}

uint64_t mem_layout(const mem_component *c, mem_part part, const mem_cut *cut, mem_run *runs,
                    uint32_t *n_runs)
{
    uint64_t align = part == MEM_PART_FIXED ? MEM_BUFFERED_ALIGN : c->align;
    uint64_t pos = 0;
    uint32_t n = 0;
    mem_run run = {0};
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[c->by_offset[i].weight];
        uint32_t rows = mem_part_rows(c, w, part, cut);
        if (rows == 0) continue;
        uint64_t need_end = w->offset + rows * w->row_bytes;
        uint64_t begin = base_align_down(w->offset, align), end = base_align_up(need_end, align);
        if (run.file == w->file && begin <= run.end) {
            run.end = base_max(run.end, end);
            run.need_end = base_max(run.need_end, need_end);
            run.last = i;
            continue;
        }
        if (run.file != NULL) {
            pos = close_run(c, part, &run, pos);
            if (runs != NULL) runs[n] = run;
            n++;
        }
        run = (mem_run){
            .file = w->file, .begin = begin, .end = end, .need_end = need_end, .first = i, .last = i};
    }
    if (run.file != NULL) {
        pos = close_run(c, part, &run, pos);
        if (runs != NULL) runs[n] = run;
        n++;
    }
    if (n_runs != NULL) *n_runs = n;
    return base_align_up(pos, MEM_PAGE_BYTES);
}

/* The largest place in the ring that any tile can need, wherever the cut lies. */
static uint64_t entry_bound(const mem_component *c, uint64_t tile_target)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        const mem_weight *w = &c->weights[c->by_rank[i]];
        uint64_t rows = base_max(base_align_down(tile_target / w->row_bytes, MEM_ROW_GROUP), MEM_ROW_GROUP);
        most = base_max(most, base_min(rows, w->n_rows) * w->row_bytes);
    }
    /* A tile that begins inside a block touches one block more. */
    return base_align_up(most, c->align) + c->align;
}

static uint64_t smallest_ring(const mem_component *c)
{
    if (c->n_ranks == 0) return 0;
    uint64_t share = base_min(c->streamable_bytes / 1000 * RING_MIN_PERMILLE, RING_MIN_CAP_BYTES);
    uint64_t tiles = entry_bound(c, MEM_SMALL_BYTES) * RING_MIN_TILES;
    return base_align_up(base_max(share, tiles), MEM_PAGE_BYTES);
}

uint64_t mem_reader_bytes(const mem_component *c)
{
    return base_min(c->reader.depth, MEM_MAX_ENTRIES) * base_min(c->reader.read_bytes, MEM_RING_MAX_BYTES);
}

/* Half of the ring, if storage does not want more. Some storage (virtual disks) tells of ended reads only
 * when it has nothing left to do: a read that is queued behind others delays the news of them, so with all of
 * the ring in flight the computation starves beside full tiles, and then storage waits for room. With half of
 * it, one half is read while the other one is used. */
uint64_t mem_flight_bytes(const mem_component *c, uint64_t ring_bytes)
{
    return base_max(ring_bytes / 2, base_min(mem_reader_bytes(c), ring_bytes));
}

uint64_t mem_ahead_bytes(const mem_component *c)
{
    uint64_t wanted = mem_reader_bytes(c);
    return wanted == 0 ? MEM_AHEAD_BYTES : base_min(base_max(wanted, MEM_AHEAD_MIN_BYTES), MEM_AHEAD_BYTES);
}

static uint64_t choose_ring(const mem_component *c, uint64_t smallest, uint64_t room, uint64_t missing)
{
    uint64_t best = MEM_SMALL_BYTES, half = c->reader.half_rate_bytes;
    half = half != 0 ? base_min(half, RING_HALF_RATE_MAX_BYTES) : RING_HALF_RATE_BYTES;
    missing = base_min(missing, MEM_TOTAL_MAX_BYTES / RING_HALF_RATE_MAX_BYTES);
    while (best < MEM_RING_MAX_BYTES && best * best < missing * half) best += MEM_SMALL_BYTES;
    /* The tile in use is not in flight, nor is the one whose place is being freed. */
    uint64_t flight = mem_reader_bytes(c);
    if (flight != 0) {
        best = base_min(best, RING_FLIGHTS * flight);
        flight = base_min(flight + 2 * base_min(c->reader.read_bytes, flight), missing / RING_READER_SHARE);
    }
    best = base_max(best, base_min(base_align_down(flight, MEM_SMALL_BYTES), MEM_RING_MAX_BYTES));
    uint64_t wanted = base_max(smallest, base_align_down(base_min(best, room / 4), MEM_PAGE_BYTES));
    uint64_t whole = base_align_down(wanted, RING_PAGE_BYTES);
    if (whole != 0 && whole >= smallest) return whole;
    whole += RING_PAGE_BYTES;
    return whole <= room / 4 ? whole : wanted;
}

static uint64_t choose_tile(const mem_component *c, uint64_t ring)
{
    uint64_t tiles = c->reader.slow ? RING_TILES_SLOW : RING_TILES;
    /* No smaller than what a read is worth, as far as a few of them fit. */
    uint64_t target = base_max(ring / tiles, base_min(c->reader.read_bytes, ring / RING_TILES_SLOW));
    target = base_min(base_max(target, MEM_SMALL_BYTES), MEM_TILE_MAX_BYTES);
    while (target > MEM_SMALL_BYTES && entry_bound(c, target) * RING_MIN_TILES > ring) target /= 2;
    return base_max(target, MEM_SMALL_BYTES);
}

/* What a pass reads, and the largest tile of it. */
static void count_streamed(const mem_component *c, const mem_cut *cut, uint64_t tile_target, mem_plan *plan)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const mem_weight *w = &c->weights[c->by_rank[r]];
        uint32_t row = mem_part_rows(c, w, MEM_PART_RESIDENT, cut);
        uint32_t step = mem_tile_rows(w, w->n_rows - row, tile_target);
        while (row < w->n_rows) {
            uint32_t rows = (uint32_t)base_min(step, w->n_rows - row);
            uint64_t begin = w->offset + row * w->row_bytes, bytes = rows * w->row_bytes;
            plan->streamed_bytes += base_align_up(begin + bytes, c->align) - base_align_down(begin, c->align);
            plan->tile_bytes = base_max(plan->tile_bytes, bytes);
            row += rows;
        }
    }
}

/* Whether rows of some table are left in storage; gives the longest one that goes through staging. */
static bool has_stored_rows(const mem_component *c, const mem_cut *cut, uint64_t *slot_bytes)
{
    bool any = false;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        if (!w->by_row || w->fixed || mem_part_rows(c, w, MEM_PART_RESIDENT, cut) == w->n_rows) continue;
        any = true;
        uint64_t bytes = base_align_up(base_min(w->row_bytes, MEM_TOTAL_MAX_BYTES), c->align) + c->align;
        if (bytes <= MEM_ROW_SLOT_MAX_BYTES) *slot_bytes = base_max(*slot_bytes, bytes);
    }
    return any;
}

static void lay_control(const mem_component *c, const mem_cut *cut, bool streams, mem_control *out)
{
    *out = (mem_control){0};
    if (streams) out->entries_bytes = MEM_MAX_ENTRIES * sizeof(mem_entry);
    if (has_stored_rows(c, cut, &out->slot_bytes) && out->slot_bytes != 0) {
        out->n_slots = (uint32_t)base_min(MEM_ROW_STAGING_BYTES / out->slot_bytes, MEM_ROW_SLOTS);
        out->slots_bytes = out->n_slots * sizeof(mem_row_slot);
        out->staging_bytes = out->n_slots * out->slot_bytes;
    }
    uint64_t tables = base_align_up(out->entries_bytes + out->slots_bytes, MEM_PAGE_BYTES);
    out->total_bytes = tables + base_align_up(out->staging_bytes, MEM_PAGE_BYTES);
}

static weir_status fail_budget(const mem_component *c, const mem_plan *p, weir_error *err)
{
    char smallest[32], fixed[32], ring[32], budget[32], missing[32];
    return base_fail(
        err, WEIR_ERR_BUDGET,
        "component %s: its smallest working set is %s (fixed part %s, ring %s), %s are there, %s "
        "are missing; raise the memory budget",
        c->name, base_size_text(p->smallest_bytes, smallest), base_size_text(p->fixed_bytes, fixed),
        base_size_text(p->smallest_bytes - p->fixed_bytes, ring), base_size_text(p->budget_bytes, budget),
        base_size_text(p->smallest_bytes - p->budget_bytes, missing));
}

weir_status mem_decide(const mem_component *c, uint64_t budget_bytes, mem_decision *out, weir_error *err)
{
    *out = (mem_decision){.cut = {.bytes = UINT64_MAX}};
    mem_plan *p = &out->plan;
    p->budget_bytes = budget_bytes;
    if (!c->sealed)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: planned before it was sealed",
                         c->name);
    p->fixed_bytes = mem_layout(c, MEM_PART_FIXED, &out->cut, NULL, NULL);
    uint64_t all = mem_layout(c, MEM_PART_RESIDENT, &out->cut, NULL, NULL);
    uint64_t ring = base_min(smallest_ring(c), all);
    p->whole_bytes = p->fixed_bytes + all;
    p->smallest_bytes = p->fixed_bytes + ring;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        if (w->by_row && !w->streamable) p->by_row_bytes += w->bytes;
    }
    if (budget_bytes >= p->whole_bytes || ring == all) {
        p->resident_bytes = all;
    } else {
        /* Below the smallest working set the plan of that set is shown. */
        uint64_t room = base_max(budget_bytes, p->smallest_bytes) - p->fixed_bytes;
        p->ring_bytes = choose_ring(c, ring, room, all - base_min(room, all));
        out->tile_target = choose_tile(c, p->ring_bytes);
        mem_choose_cut(c, room - p->ring_bytes, p->ring_bytes / RING_GROUPS, &out->cut);
        p->resident_bytes = mem_layout(c, MEM_PART_RESIDENT, &out->cut, NULL, NULL);
        count_streamed(c, &out->cut, out->tile_target, p);
    }
    lay_control(c, &out->cut, p->ring_bytes != 0, &out->control);
    p->io_bytes = out->control.total_bytes;
    return budget_bytes < p->smallest_bytes ? fail_budget(c, p, err) : WEIR_OK;
}

weir_status mem_plan_make(const mem_component *c, uint64_t budget_bytes, mem_plan *out, weir_error *err)
{
    mem_decision decision;
    weir_status status = mem_decide(c, budget_bytes, &decision, err);
    *out = decision.plan;
    return status;
}
