/* The cut: how many rows of each weight stay.
 *
 *   oneshot    | stays ................................................ | streams |
 *   sequence   | stays ... | streams | stays ... | streams | stays ... | streams |
 *                  group                 group                 group
 *
 * A sequence is run over and over, and computing what stays takes time in which storage could read. With one
 * long resident part the ring is soon full and storage idles; so the pass is divided into groups of weights
 * in running order, and of each the same share stays, at its beginning. The groups are as long as it takes
 * for one to stream about a quarter of the ring. Every token still streams the same rest.
 *
 * Within a weight the first rows stay, in one piece. Their computation is spread between the weight's
 * streamed tiles (mem_set_tiles), so that a weight larger than a group leaves storage no longer pause. */
#include "mem_internal.h"

/* Resident rows of a weight that streams are computed in pieces no smaller than this: each costs a start of
 * all threads. */
#define PIECE_BYTES (UINT64_C(2) << 20)

static uint64_t share_of(uint64_t part, uint64_t bytes, uint64_t whole)
{
    return (uint64_t)((unsigned __int128)part * bytes / whole);
}

static uint64_t group_of(const mem_weight *w, const mem_cut *cut)
{
    return (w->before + w->bytes / 2) / cut->group_bytes;
}

/* The first weight of a class that lies in the group or behind it. */
static uint32_t group_begin(const mem_component *c, const mem_class *k, uint64_t group, const mem_cut *cut)
{
    uint32_t low = k->begin, high = k->end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (group_of(&c->weights[c->by_rank[middle]], cut) < group)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The most rows that `bytes` hold, in whole groups, so that what streams is worth a read. */
static uint32_t rows_within(const mem_weight *w, uint64_t bytes, uint64_t rest_min)
{
    uint64_t rows = base_min(bytes / w->row_bytes, w->n_rows);
    if (rows == w->n_rows) return w->n_rows;
    uint64_t rest = base_min((rest_min + w->row_bytes - 1) / w->row_bytes, w->n_rows);
    return (uint32_t)base_align_down(base_min(rows, w->n_rows - rest), MEM_ROW_GROUP);
}

uint32_t mem_part_rows(const mem_component *c, const mem_weight *w, mem_part part, const mem_cut *cut)
{
    if (part == MEM_PART_FIXED) return w->fixed ? w->n_rows : 0;
    if (w->rank == MEM_NO_RANK) return 0;
    const mem_class *k = c->classes;
    uint64_t wanted = cut->bytes;
    for (; w->rank >= k->end; k++) wanted -= base_min(wanted, k->bytes);
    if (wanted >= k->bytes) return w->n_rows;
    uint32_t begin = k->begin, end = k->end;
    if (cut->group_bytes != 0) {
        begin = group_begin(c, k, group_of(w, cut), cut);
        end = group_begin(c, k, group_of(w, cut) + 1, cut);
    }
    uint64_t from = c->weights[c->by_rank[begin]].before;
    uint64_t to = end == k->end ? k->bytes : c->weights[c->by_rank[end]].before;
    uint64_t stays = share_of(wanted + (begin < cut->more), to - from, k->bytes);
    return rows_within(w, stays - base_min(stays, w->before - from), cut->rest_min);
}

/* As many groups of rows as fit the target, evenly spread so that no short tile is left behind. */
uint32_t mem_tile_rows(const mem_weight *w, uint32_t rest, uint64_t tile_target)
{
    uint64_t most = base_align_down(tile_target / w->row_bytes, MEM_ROW_GROUP);
    most = base_max(most, MEM_ROW_GROUP);
    if (rest <= most) return rest;
    uint64_t tiles = (rest + most - 1) / most;
    return (uint32_t)base_align_up((rest + tiles - 1) / tiles, MEM_ROW_GROUP);
}

/* The largest cut whose blocks take at most `room` bytes. It grows with the room, since the groups are given
 * and each of them grows with its share. */
static void grow_cut(const mem_component *c, uint64_t room, mem_cut *cut)
{
    uint64_t low = 0, high = c->streamable_bytes;
    while (low < high) {
        cut->bytes = low + (high - low + 1) / 2;
        if (mem_layout(c, MEM_PART_RESIDENT, cut, NULL, NULL) <= room)
            low = cut->bytes;
        else
            high = cut->bytes - 1;
    }
    cut->bytes = low;
    /* Where weights are alike, one byte more adds rows to all groups at once; to some it may still. */
    uint32_t few = 0, many = c->n_ranks;
    while (few < many) {
        cut->more = few + (many - few + 1) / 2;
        if (mem_layout(c, MEM_PART_RESIDENT, cut, NULL, NULL) <= room)
            few = cut->more;
        else
            many = cut->more - 1;
    }
    cut->more = few;
}

void mem_choose_cut(const mem_component *c, uint64_t room, uint64_t chunk, mem_cut *cut)
{
    uint64_t streams = c->streamable_bytes - base_min(room, c->streamable_bytes);
    *cut = (mem_cut){.rest_min = base_min(MEM_SMALL_BYTES, chunk / 8)};
    if (c->kind == MEM_SEQUENCE && streams > chunk)
        cut->group_bytes = base_max(share_of(chunk, c->streamable_bytes, streams), 1);
    grow_cut(c, room, cut);
}

/* ---- tiles of a weight: pieces of its resident rows, if any, between those that stream ---- */

void mem_set_tiles(mem_weight *w, uint64_t tile_target)
{
    uint64_t resident = w->resident_rows, pieces = resident != 0;
    w->n_streamed = w->tile_rows = 0;
    if (w->rank != MEM_NO_RANK && resident < w->n_rows) {
        w->tile_rows = mem_tile_rows(w, w->n_rows - w->resident_rows, tile_target);
        w->n_streamed = (w->n_rows - w->resident_rows - 1) / w->tile_rows + 1;
        pieces = base_min(base_max(resident * w->row_bytes / PIECE_BYTES, pieces), w->n_streamed);
    }
    if (resident == 0) pieces = 0;
    w->n_pieces = (uint32_t)pieces;
    w->piece_rows = w->resident_rows;
    if (pieces < 2) return;
    w->piece_rows = (uint32_t)base_align_up((resident + pieces - 1) / pieces, MEM_ROW_GROUP);
    w->n_pieces = (w->resident_rows - 1) / w->piece_rows + 1;
}

uint32_t mem_n_tiles(const mem_weight *w)
{
    return w->n_pieces + w->n_streamed;
}

/* Pieces among the first `tile` tiles: piece k is tile ceil(k x tiles / pieces), which begins with a piece
 * and never has two of them in a row, as there are not more pieces than streamed tiles. */
static uint32_t pieces_before(const mem_weight *w, uint32_t tile)
{
    if (tile == 0 || w->n_pieces == 0) return 0;
    uint64_t n = ((uint64_t)tile - 1) * w->n_pieces / mem_n_tiles(w) + 1;
    return (uint32_t)base_min(n, w->n_pieces);
}

uint32_t mem_group_rows(const mem_weight *w)
{
    return (uint32_t)base_align_down(w->n_rows, MEM_ROW_GROUP);
}

bool mem_tile_streams(const mem_weight *w, uint32_t tile)
{
    return pieces_before(w, tile + 1) == pieces_before(w, tile);
}

void mem_tile_span(const mem_weight *w, uint32_t tile, uint32_t *row_begin, uint32_t *row_end)
{
    uint32_t piece = pieces_before(w, tile);
    if (!mem_tile_streams(w, tile)) {
        *row_begin = piece * w->piece_rows;
        *row_end = (uint32_t)base_min((uint64_t)*row_begin + w->piece_rows, w->resident_rows);
        return;
    }
    *row_begin = w->resident_rows + (tile - piece) * w->tile_rows;
    *row_end = (uint32_t)base_min((uint64_t)*row_begin + w->tile_rows, w->n_rows);
}
