/* Placing for a rehearsal: the ring, its queue and the reads are real, but of what stays nothing is read.
 *
 *   block  | pattern ................................ |
 *   weights   a a a a   b b b   c c c c c     d d d       each somewhere in it, one behind the other, around
 *
 * Predictions run a program's passes so, before anything is loaded. What is computed means nothing; how long
 * it takes does, as long as the block is as large as what stays or does not fit the processor's caches. */
#include "mem_internal.h"

#include <string.h>

/* Weights lie as in their file against the lines of a cache, which decides how many a load touches. */
#define LINE_BYTES 64

/* Norms and other small tables: twice this is 1.002 as F32, it is 1.0 as BF16 and 1.875 as F16. */
#define FIXED_PATTERN UINT16_C(0x3f80)

uint64_t mem_stand_in_bytes(const mem_component *c, const mem_decision *d, const mem_place_options *o)
{
    uint64_t bytes = o->stand_in_bytes;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        bytes = base_max(bytes, mem_part_rows(c, w, MEM_PART_RESIDENT, &d->cut) * w->row_bytes);
    }
    return base_min(base_align_up(bytes, MEM_PAGE_BYTES), d->plan.resident_bytes);
}

static void fill(uint8_t *block, uint64_t bytes, uint16_t pattern)
{
    if (block == NULL) return;
    for (uint64_t at = 0; at + sizeof pattern <= base_min(bytes, MEM_PAGE_BYTES); at += sizeof pattern)
        memcpy(block + at, &pattern, sizeof pattern);
    for (uint64_t at = MEM_PAGE_BYTES; at < bytes; at += MEM_PAGE_BYTES)
        memcpy(block + at, block, base_min(MEM_PAGE_BYTES, bytes - at));
}

static void point_part(mem_component *c, mem_part part, const mem_cut *cut, const uint8_t *block,
                       uint64_t block_bytes)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[i];
        uint32_t rows = mem_part_rows(c, w, part, cut);
        if (rows == 0) continue;
        uint64_t bytes = rows * w->row_bytes;
        at = base_align_up(at, LINE_BYTES) + w->offset % LINE_BYTES;
        if (at + bytes > block_bytes) at = base_min(w->offset % LINE_BYTES, block_bytes - bytes);
        w->resident_rows = rows;
        w->packed_rows =
            w->packed ? (uint32_t)base_min(rows, mem_group_rows(w)) : mem_rows_to_pack(c, w, rows);
        w->data = block + at;
        at += bytes;
    }
}

/* Some rows of the tables that are read by row, where those cannot be read. */
static void point_tables(mem_component *c, uint32_t n_rows)
{
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[i];
        if (!w->by_row || w->fixed || w->rank != MEM_NO_RANK || c->resident == NULL) continue;
        w->resident_rows =
            (uint32_t)base_min(base_min(n_rows, w->n_rows), c->plan.resident_bytes / w->row_bytes);
        w->data = c->resident;
    }
}

void mem_stand_in(mem_component *c, const mem_decision *d, const mem_place_options *o)
{
    fill(c->fixed, d->plan.fixed_bytes, FIXED_PATTERN);
    fill(c->resident, d->plan.resident_bytes, o->stand_in_pattern);
    point_part(c, MEM_PART_FIXED, &d->cut, c->fixed, d->plan.fixed_bytes);
    point_part(c, MEM_PART_RESIDENT, &d->cut, c->resident, d->plan.resident_bytes);
    c->plan = d->plan;
    if (o->stand_in_rows != 0) point_tables(c, o->stand_in_rows);
}
