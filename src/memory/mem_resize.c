/* Another plan for what is placed. Weights keep their order in the block of what stays, whatever the plan, so
 * going over to another one is: keep the first rows that both have, move them to where the new layout wants
 * them, and read the rest.
 *
 *   before   | a a a a | b b b b | c c |  ring  |
 *   after    | a a | b b | c c c |  ring  |
 *
 * What moves down goes first to last, what moves up last to first; as the order is the same on both sides,
 * neither can run over what has not moved yet. Blocks that are given back go before any that are added. */
#include "mem_internal.h"

#include <string.h>

#define PIECES      16
#define PIECE_BYTES (UINT64_C(4) << 20)

typedef struct piece {
    mem_queued request; /* first, so that a request gives its piece */
    bool busy, ended;
} piece;

typedef struct resize {
    mem_component *c;
    const mem_decision *to;
    atomic_bool *cancel;
    mem_run *runs; /* of what stays, in the new layout */
    uint32_t n_runs;
    piece pieces[PIECES];
} resize;

static uint32_t rows_wanted(const resize *z, const mem_weight *w)
{
    return mem_part_rows(z->c, w, MEM_PART_RESIDENT, &z->to->cut);
}

/* ---- giving back and moving ---- */

/* Ends what is read ahead: its tiles are cut otherwise in the new plan. */
static void stop_stream(mem_component *c)
{
    bool got = true;
    while (got && c->aio != NULL && base_aio_in_flight(c->aio) != 0) mem_reap(c, true, &got, NULL);
    if (!got) {
        base_aio_destroy(c->aio);
        c->aio = NULL;
    }
    base_pages_free(c->env, BASE_TAG_IO, c->control, c->plan.io_bytes);
    base_pages_free(c->env, BASE_TAG_WEIGHTS_SLOTS, c->stream.ring, c->plan.ring_bytes);
    c->control = NULL;
    c->stream = (mem_stream){0};
    c->rows = (mem_rows){0};
    c->plan.io_bytes = c->plan.ring_bytes = 0;
}

/* Rows that the new plan does not keep are forgotten. */
static void keep_common_rows(const resize *z)
{
    for (uint32_t r = 0; r < z->c->n_ranks; r++) {
        mem_weight *w = &z->c->weights[z->c->by_rank[r]];
        w->resident_rows = (uint32_t)base_min(w->resident_rows, rows_wanted(z, w));
        w->packed_rows = (uint32_t)base_min(w->packed_rows, w->resident_rows);
        if (w->resident_rows == 0) w->data = NULL;
    }
}

static weir_status set_block_bytes(mem_component *c, uint64_t bytes, weir_error *err)
{
    uint64_t old = c->plan.resident_bytes;
    uint8_t *block = NULL;
    if (bytes == 0)
        base_pages_free(c->env, BASE_TAG_WEIGHTS_RESIDENT, c->resident, old);
    else if (c->resident == NULL)
        block = base_pages_alloc(c->env, BASE_TAG_WEIGHTS_RESIDENT, bytes, true, err);
    else
        block = base_pages_resize(c->env, BASE_TAG_WEIGHTS_RESIDENT, c->resident, old, bytes, err);
    if (bytes != 0 && block == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (uint32_t r = 0; r < c->n_ranks && block != NULL; r++) {
        mem_weight *w = &c->weights[c->by_rank[r]];
        if (w->data != NULL) w->data = block + (w->data - c->resident);
    }
    c->resident = block;
    c->plan.resident_bytes = bytes;
    return WEIR_OK;
}

/* Moves a weight's rows if they move in this direction. */
static void move_weight(resize *z, uint32_t run, uint32_t index, bool down)
{
    mem_component *c = z->c;
    mem_weight *w = &c->weights[c->by_offset[index].weight];
    if (w->resident_rows == 0 || w->rank == MEM_NO_RANK) return;
    uint8_t *to = c->resident + z->runs[run].pos + (w->offset - z->runs[run].begin);
    if (to == w->data || (to < w->data) != down) return;
    memmove(to, w->data, w->resident_rows * w->row_bytes);
    w->data = to;
}

static void move_rows(resize *z)
{
    for (uint32_t r = 0; r < z->n_runs; r++)
        for (uint32_t i = z->runs[r].first; i <= z->runs[r].last; i++) move_weight(z, r, i, true);
    for (uint32_t r = z->n_runs; r-- > 0;)
        for (uint32_t i = z->runs[r].last + 1; i-- > z->runs[r].first;) move_weight(z, r, i, false);
}

/* ---- reading what is added ---- */

static void piece_ended(mem_component *c, mem_queued *r)
{
    (void)c;
    ((piece *)r)->ended = true;
}

/* Takes in what has ended; a read that failed is done once more, past the queue. */
static weir_status take_pieces(resize *z, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < PIECES && status == WEIR_OK; i++) {
        piece *p = &z->pieces[i];
        if (!p->busy || !p->ended) continue;
        p->busy = p->ended = false;
        base_aio_read *r = &p->request.read;
        z->c->stats.load_bytes += r->need;
        if (r->status != WEIR_OK) status = mem_read_now(z->c, r->file, r->offset, r->buf, r->need, err);
    }
    return status;
}

/* A piece that is not under way; waits for one where all are. */
static weir_status free_piece(resize *z, piece **out, weir_error *err)
{
    for (;;) {
        if (mem_is_cancelled(z->cancel)) return mem_fail_cancelled(z->c, err);
        weir_status status = take_pieces(z, err);
        if (status != WEIR_OK) return status;
        for (uint32_t i = 0; i < PIECES && base_aio_in_flight(z->c->aio) < z->c->depth; i++) {
            *out = &z->pieces[i];
            if (!(*out)->busy) return WEIR_OK;
        }
        bool got;
        status = mem_reap(z->c, true, &got, err);
        if (status != WEIR_OK) return status;
    }
}

static weir_status queue_piece(resize *z, const base_aio_read *read, weir_error *err)
{
    piece *p = NULL;
    weir_status status = free_piece(z, &p, err);
    if (status != WEIR_OK) return status;
    *p = (piece){.request = {.read = *read, .done = piece_ended}, .busy = true};
    p->request.read.user = &p->request;
    z->c->stats.n_reads++;
    status = base_aio_submit(z->c->aio, &p->request.read, NULL);
    if (status == WEIR_OK) return WEIR_OK;
    p->request.read.status = status; /* take_pieces reads it without the queue */
    p->ended = true;
    return WEIR_OK;
}

/* Reads [begin, end) of a file to `to`; of it, whole blocks directly. Behind need_end nothing is missed. */
static weir_status read_range(resize *z, base_file *file, uint64_t begin, uint64_t end, uint64_t need_end,
                              uint8_t *to, weir_error *err)
{
    /* Blocks at the edges have rows that are there already, maybe packed: those are not written over. */
    uint64_t align = z->c->align > MEM_BUFFERED_ALIGN ? z->c->align : 1;
    uint64_t from = base_align_up(begin, align), until = base_align_down(end, align);
    weir_status status = WEIR_OK;
    if (from >= until) from = until = end;
    if (begin < from) {
        uint64_t stop = base_min(from, need_end);
        status = mem_read_now(z->c, file, begin, to, stop - begin, err);
        z->c->stats.load_bytes += stop - begin;
    }
    for (uint64_t at = from; at < until && at < need_end && status == WEIR_OK; at += PIECE_BYTES) {
        uint64_t stop = base_min(at + PIECE_BYTES, until);
        base_aio_read read = {.file = file,
                              .offset = at,
                              .buf = to + (at - begin),
                              .len = stop - at,
                              .need = base_min(stop, need_end) - at};
        status = queue_piece(z, &read, err);
    }
    if (status == WEIR_OK && until < end) {
        status = mem_read_now(z->c, file, until, to + (until - begin), end - until, err);
        z->c->stats.load_bytes += end - until;
    }
    return status;
}

static weir_status read_weight(resize *z, const mem_run *run, uint32_t index, weir_error *err)
{
    mem_component *c = z->c;
    const mem_weight *w = &c->weights[c->by_offset[index].weight];
    uint32_t have = w->resident_rows, wanted = rows_wanted(z, w);
    if (w->rank == MEM_NO_RANK || wanted <= have) return WEIR_OK;
    uint64_t begin = w->offset + have * w->row_bytes, need_end = w->offset + wanted * w->row_bytes;
    uint64_t end = need_end;
    /* What lies around in a run of its own is nobody's. */
    if (have == 0 && index == run->first) begin = run->begin;
    if (index == run->last) end = run->end;
    return read_range(z, w->file, begin, end, need_end, c->resident + run->pos + (begin - run->begin), err);
}

static weir_status read_rows(resize *z, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint32_t r = 0; r < z->n_runs; r++)
        for (uint32_t i = z->runs[r].first; i <= z->runs[r].last && status == WEIR_OK; i++)
            status = read_weight(z, &z->runs[r], i, err);
    while (status == WEIR_OK && base_aio_in_flight(z->c->aio) != 0) {
        bool got;
        if (mem_is_cancelled(z->cancel)) status = mem_fail_cancelled(z->c, err);
        if (status == WEIR_OK) status = mem_reap(z->c, true, &got, err);
    }
    return status == WEIR_OK ? take_pieces(z, err) : status;
}

/* Packs what was added, and lets the weights have it. */
static weir_status pack_rows(resize *z, const mem_run *run, uint32_t index, weir_error *err)
{
    mem_component *c = z->c;
    mem_weight *w = &c->weights[c->by_offset[index].weight];
    uint32_t wanted = rows_wanted(z, w), packs = mem_rows_to_pack(c, w, wanted);
    if (w->rank == MEM_NO_RANK || wanted == 0) return WEIR_OK;
    w->data = c->resident + run->pos + (w->offset - run->begin);
    if (packs > w->packed_rows) {
        uint8_t *rows = c->resident + (w->data - c->resident) + w->packed_rows * w->row_bytes;
        weir_status status = c->packer.pack(c->packer.arg, w->type, rows, w->row_bytes,
                                            (packs - w->packed_rows) / MEM_ROW_GROUP, err);
        if (status != WEIR_OK) return base_fail_context(err, status, "packing weight %s", w->name);
    }
    w->packed_rows = w->packed ? (uint32_t)base_min(wanted, mem_group_rows(w)) : packs;
    w->resident_rows = wanted;
    return WEIR_OK;
}

static weir_status add_rows(resize *z, weir_error *err)
{
    weir_status status = read_rows(z, err);
    for (uint32_t r = 0; r < z->n_runs; r++)
        for (uint32_t i = z->runs[r].first; i <= z->runs[r].last && status == WEIR_OK; i++)
            status = pack_rows(z, &z->runs[r], i, err);
    return status;
}

/* ---- the whole ---- */

/* From what is in memory to a decision. On failure the weights have what they have, and nothing is read. */
static weir_status go_over(resize *z, const base_aio_options *aio, weir_error *err)
{
    mem_component *c = z->c;
    const mem_plan *to = &z->to->plan;
    weir_status status = WEIR_OK;
    mem_layout(c, MEM_PART_RESIDENT, &z->to->cut, z->runs, &z->n_runs);
    memset(z->pieces, 0, sizeof z->pieces);
    stop_stream(c);
    keep_common_rows(z);
    bool grows = to->resident_bytes > c->plan.resident_bytes;
    if (grows) status = set_block_bytes(c, to->resident_bytes, err);
    if (status == WEIR_OK) move_rows(z);
    if (status == WEIR_OK && !grows) status = set_block_bytes(c, to->resident_bytes, err);
    if (status == WEIR_OK) {
        status = mem_allocate_stream(c, z->to, err);
        if (c->stream.ring != NULL) c->plan.ring_bytes = to->ring_bytes;
        if (c->control != NULL) c->plan.io_bytes = to->io_bytes;
    }
    if (status == WEIR_OK && c->aio == NULL) status = base_aio_create(c->env, aio, &c->aio, err);
    if (status == WEIR_OK) status = add_rows(z, err);
    if (status == WEIR_OK) return WEIR_OK;
    base_aio_destroy(c->aio); /* knows the pieces, and writes into the block */
    c->aio = NULL;
    return status;
}

/* Without anything kept; for what cannot move, and where moving failed. What fails goes back to `old`. */
static weir_status place_anew(mem_component *c, const mem_plan *plan, const mem_plan *old,
                              const mem_place_options *options, weir_error *err)
{
    mem_packer packer = c->packer;
    mem_place_options o = *options;
    if (packer.pack != NULL) o.packer = &packer;
    bool mapped = c->maps != NULL;
    mem_unplace(c);
    weir_status status = mem_place(c, plan, &o, err);
    if (status == WEIR_OK) return WEIR_OK;
    o.cancel = NULL;
    o.map = mapped;
    mem_place(c, old, &o, NULL);
    return status;
}

static void count_again(mem_component *c, const mem_stats *before, double start)
{
    mem_stats *s = &c->stats;
    s->load_seconds = base_now(c->env) - start;
    s->packed_bytes = 0;
    for (uint32_t i = 0; i < c->n_weights; i++)
        s->packed_bytes += c->weights[i].packed_rows * c->weights[i].row_bytes;
    s->streamed_bytes = before->streamed_bytes;
    s->row_bytes = before->row_bytes;
    s->n_misses = before->n_misses;
    s->wait_seconds = before->wait_seconds;
}

/* Weights over each other move together or not at all; pages of the files cannot move. */
static bool can_move(const mem_component *c)
{
    bool can = c->maps == NULL;
    for (uint32_t r = 0; r < c->n_ranks; r++) can = can && !c->weights[c->by_rank[r]].shared;
    return can;
}

static weir_status check_resize(const mem_component *c, weir_error *err)
{
    weir_status status = WEIR_OK;
    if (!c->placed || c->stream.in_pass)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: another plan %s", c->name,
                         c->placed ? "within a pass" : "before it was placed");
    for (uint32_t i = 0; i < c->n_files && status == WEIR_OK; i++) status = base_file_check(c->files[i], err);
    return status;
}

static weir_status resize_in_place(mem_component *c, const mem_decision *to, const mem_place_options *options,
                                   weir_error *err)
{
    mem_decision back;
    weir_error local = {0};
    const mem_plan old = c->plan;
    base_aio_options aio = options->aio;
    aio.depth = c->depth;
    resize z = {.c = c, .to = to, .cancel = options->cancel};
    weir_status status = mem_decide(c, old.budget_bytes, &back, err);
    if (status != WEIR_OK) return status;
    z.runs = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_weights, sizeof *z.runs, err);
    if (z.runs == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    c->placed = false;
    c->stats.load_bytes = 0;
    status = go_over(&z, &aio, &local);
    if (status == WEIR_OK) {
        mem_finish_placing(c, to);
    } else {
        z.to = &back;
        z.cancel = NULL;
        if (go_over(&z, &aio, NULL) == WEIR_OK) mem_finish_placing(c, &back);
    }
    mem_drop_caches(c);
    base_free(c->env, z.runs);
    if (status == WEIR_OK) return WEIR_OK;
    if (!c->placed) {
        mem_place_options o = *options;
        o.cancel = NULL;
        place_anew(c, &old, &old, &o, NULL);
    }
    if (err != NULL) *err = local;
    return local.code;
}

weir_status mem_resize(mem_component *c, const mem_plan *plan, const mem_place_options *options,
                       weir_error *err)
{
    mem_decision to;
    weir_status status = check_resize(c, err);
    if (status == WEIR_OK) status = mem_decide(c, plan->budget_bytes, &to, err);
    if (status != WEIR_OK) return status;
    const mem_stats before = c->stats;
    const mem_plan before_plan = c->plan, *was = &before_plan;
    double start = base_now(c->env);
    if (to.plan.ring_bytes == 0 && was->ring_bytes == 0 && to.plan.resident_bytes == was->resident_bytes)
        c->plan = to.plan; /* all stays before and after */
    else if (can_move(c) && !(options->map && to.plan.ring_bytes == 0))
        status = resize_in_place(c, &to, options, err);
    else
        status = place_anew(c, plan, &before_plan, options, err);
    if (c->placed) count_again(c, &before, start);
    return status;
}
