/* Running a program: rows and pointers of each operation are resolved, weights fetched, the device called.
 *
 * When all weights of the pass are in memory, no streaming call is made at all (R5.8). Otherwise the pass
 * tells the memory manager its order of weights, and every product walks over its weight's tiles. */
#include "graph_internal.h"

/* One pass under way. */
typedef struct pass {
    graph_program *p;
    const graph_batch *batch;
    uint32_t n_ops;
    uint32_t unit;       /* with a source: the one that is entered */
    double wait_seconds; /* of the present operation */
    uint32_t rows_done;  /* of its weight */
} pass;

void graph_use_source(graph_program *p, mem_source *source)
{
    p->source = source;
}

/* What passes between host and device, and the arena there. */
static weir_status reserve_on_device(graph_program *p, weir_error *err)
{
    uint64_t bytes = base_max(p->info.arena_bytes, 1);
    void *arena;
    weir_status status;

    p->gathered =
        base_pages_alloc(p->env, BASE_TAG_ACTIVATIONS, base_max(p->info.staging_bytes, 1), false, err);
    if (p->gathered == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    p->results = base_pages_alloc(p->env, BASE_TAG_ACTIVATIONS, p->tensors[p->result].bytes, false, err);
    if (p->results == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    status = mem_source_alloc(p->source, bytes, "activations", &arena, err);
    if (status == WEIR_OK) p->arena = arena;
    return status;
}

weir_status graph_reserve(graph_program *p, uint32_t max_positions, uint32_t head_dim, weir_error *err)
{
    weir_status status;

    if (!p->finished) return base_fail(err, WEIR_ERR_INTERNAL, "reserving for an unfinished program");
    if (p->arena == NULL && p->source != NULL) {
        weir_error local = {WEIR_OK, ""};

        if (reserve_on_device(p, &local) != WEIR_OK)
            return base_fail(err, local.code, "activations of %u rows: %s", p->options.max_rows,
                             local.message);
    } else if (p->arena == NULL) {
        weir_error local = {WEIR_OK, ""};

        p->arena =
            base_pages_alloc(p->env, BASE_TAG_ACTIVATIONS, base_max(p->info.arena_bytes, 1), false, &local);
        if (p->arena == NULL)
            return base_fail(err, local.code, "activations of %u rows: %s", p->options.max_rows,
                             local.message);
    }
    if (p->source != NULL)
        return mem_source_workspace(p->source, p->info.max_k, max_positions, head_dim, err);
    status = p->dev->table->reserve_workspace(p->dev, p->info.max_k, max_positions, head_dim, err);
    return status;
}

/* The row before r that belongs to the same sequence, or r itself when there is none. */
static uint32_t row_before(const graph_batch *b, uint32_t r)
{
    for (uint32_t i = r; i > 0; i--)
        if (b->sequence[i - 1] == b->sequence[r]) return i - 1;
    return r;
}

static weir_status check_rows(const graph_program *p, const graph_batch *b, weir_error *err)
{
    if (b->n_rows == 0 || b->n_rows > p->options.max_rows || b->n_outputs > p->options.max_outputs)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a pass of %u rows and %u outputs; up to %u and %u",
                         b->n_rows, b->n_outputs, p->options.max_rows, p->options.max_outputs);
    for (uint32_t r = 0; r < b->n_rows; r++) {
        uint32_t before = row_before(b, r);

        if (b->position[r] < 0 || (before != r && b->position[r] - 1 != b->position[before]))
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "row %u has position %d; positions of a sequence ascend by one from 0 on", r,
                             b->position[r]);
    }
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->output_rows[i] >= b->n_rows || (i > 0 && b->output_rows[i] <= b->output_rows[i - 1]))
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "output %u is row %u of %u; rows must ascend", i,
                             b->output_rows[i], b->n_rows);
    return WEIR_OK;
}

/* Every row's cache is there, and what the row attends to is not overwritten by this pass. */
static weir_status check_caches(const graph_program *p, const graph_batch *b, weir_error *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const graph_op *op = &p->ops[i];

        if (op->dev.code != DEV_KV_STORE) continue;
        for (uint32_t r = 0; r < b->n_rows; r++) {
            const dev_kv *kv = &b->kv[op->layer][b->sequence[r]];
            uint32_t n = (uint32_t)b->position[r] + 1;

            if (kv->k == NULL || kv->v == NULL || kv->capacity == 0)
                return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "row %u has no cache at layer %u", r,
                                 op->layer);
            if (n <= kv->capacity) continue;
            if (op->dev.window == 0 || (uint64_t)op->dev.window + b->n_rows - 1 > kv->capacity)
                return base_fail(err, WEIR_ERR_CONTEXT_FULL,
                                 "position %d does not fit the cache of %u positions at layer %u; use a "
                                 "larger context",
                                 b->position[r], kv->capacity, op->layer);
        }
    }
    return WEIR_OK;
}

static weir_status check_tokens(const graph_program *p, const graph_batch *b, weir_error *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!p->ops[i].gather) continue;
        for (uint32_t r = 0; r < b->n_rows; r++)
            if (b->token[r] < 0 || (uint32_t)b->token[r] >= p->ops[i].w.n_rows)
                return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                                 "token %d of row %u is outside the vocabulary of %u", b->token[r], r,
                                 p->ops[i].w.n_rows);
    }
    return WEIR_OK;
}

static weir_status check_batch(const graph_program *p, const graph_batch *b, weir_error *err)
{
    weir_status status;

    if (p->arena == NULL) return base_fail(err, WEIR_ERR_INTERNAL, "running before graph_reserve");
    status = check_rows(p, b, err);
    if (status == WEIR_OK) status = check_tokens(p, b, err);
    if (status == WEIR_OK) status = check_caches(p, b, err);
    return status;
}

static dev_view view_of(const graph_program *p, uint32_t tensor)
{
    const graph_tensor *t;

    if (tensor == GRAPH_NONE) return (dev_view){NULL, 0};
    t = &p->tensors[tensor];
    return (dev_view){p->arena + t->offset, (size_t)t->stride};
}

/* Where a whole weight lies; NULL with OK: it streams, tile by tile. */
static weir_status weight_address(const graph_program *p, mem_weight_id id, const void **out, weir_error *err)
{
    void *address = NULL;
    weir_status status;

    if (p->source == NULL) {
        *out = mem_weight_resident(p->component, id);
        return WEIR_OK;
    }
    status = mem_source_address(p->source, id, &address, err);
    *out = address;
    return status;
}

static weir_status run_device(const graph_program *p, const dev_op *op, weir_error *err)
{
    return p->source != NULL ? mem_source_op(p->source, op, err) : p->dev->table->run(p->dev, op, err);
}

/* A weight of the fixed part as floats: widened into the arena, or where it lies. */
static weir_status fixed_floats(const graph_program *p, graph_weight w, uint32_t tensor, const float **out,
                                weir_error *err)
{
    const void *data = tensor != GRAPH_NONE ? p->arena + p->tensors[tensor].offset : NULL;
    weir_status status = WEIR_OK;

    if (data == NULL) status = weight_address(p, w.id, &data, err);
    if (status != WEIR_OK) return status;
    if (data == NULL)
        return base_fail(err, WEIR_ERR_INTERNAL, "weight %u of the fixed part is not in memory", w.id);
    if ((uintptr_t)data % sizeof(float) != 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "weight %u of the fixed part is not aligned to floats",
                         w.id);
    *out = data;
    return WEIR_OK;
}

static weir_status run_streamed(pass *s, dev_op *dev, mem_weight_id id, weir_error *err)
{
    graph_program *p = s->p;
    uint32_t n_tiles = mem_weight_n_tiles(p->component, id);
    weir_status status = WEIR_OK;

    for (uint32_t i = 0; i < n_tiles && status == WEIR_OK; i++) {
        double start = p->profile ? base_now(p->env) : 0;
        mem_tile tile;

        status = mem_tile_acquire(p->component, id, i, &tile, err);
        if (status != WEIR_OK) return status;
        if (p->profile) s->wait_seconds += base_now(p->env) - start;
        dev->w.data = (void *)(uintptr_t)tile.data;
        dev->row_begin = tile.row_begin;
        dev->row_end = tile.row_end;
        dev->packed_rows = tile.packed_rows;
        status = p->dev->table->run(p->dev, dev, err);
        if (status == WEIR_OK) s->rows_done += tile.row_end - tile.row_begin;
        mem_tile_release(p->component, &tile);
    }
    return status;
}

static weir_status run_matmul(pass *s, const graph_op *op, dev_op *dev, weir_error *err)
{
    graph_program *p = s->p;
    const void *data;
    weir_status status = weight_address(p, op->w.id, &data, err);

    if (status != WEIR_OK) return status;
    if (op->bias.id != MEM_NO_WEIGHT) {
        status = fixed_floats(p, op->bias, op->bias_tensor, &dev->bias, err);
        if (status != WEIR_OK) return status;
    }
    if (data == NULL) return run_streamed(s, dev, op->w.id, err);
    dev->w.data = (void *)(uintptr_t)data;
    dev->row_begin = 0;
    dev->row_end = op->w.n_rows;
    dev->packed_rows = p->source != NULL ? mem_weight_file_packed_rows(p->component, op->w.id)
                                         : mem_weight_packed_rows(p->component, op->w.id);
    status = run_device(p, dev, err);
    if (status == WEIR_OK) s->rows_done = op->w.n_rows;
    return status;
}

static weir_status run_dequant(pass *s, const graph_op *op, dev_op *dev, weir_error *err)
{
    graph_program *p = s->p;
    double start = p->profile ? base_now(p->env) : 0;
    weir_status status;

    if (op->widen) {
        const void *data;

        status = weight_address(p, op->w.id, &data, err);
        if (status != WEIR_OK) return status;
        dev->a.data = (void *)(uintptr_t)data;
        if (dev->a.data == NULL)
            return base_fail(err, WEIR_ERR_INTERNAL, "weight %u of the fixed part is not in memory",
                             op->w.id);
    } else {
        void *rows = p->source != NULL ? p->gathered : dev->a.data;

        status =
            mem_rows_read(p->component, op->w.id, s->batch->token, dev->n_rows, rows, dev->a.stride, err);
        if (status == WEIR_OK && p->source != NULL)
            status = mem_source_upload(p->source, dev->a.data, rows, dev->n_rows * dev->a.stride, err);
        if (status != WEIR_OK) return status;
        if (p->profile) s->wait_seconds += base_now(p->env) - start;
    }
    return run_device(p, dev, err);
}

/* Units are entered when their first weight is used, and left when another's is: a unit's operations follow
 * each other. */
static weir_status enter_unit(pass *s, const graph_op *op, weir_error *err)
{
    mem_source *source = s->p->source;
    uint32_t unit =
        op->w.id != MEM_NO_WEIGHT && !op->gather ? mem_weight_unit(s->p->component, op->w.id) : MEM_NO_UNIT;
    weir_status status;

    if (unit == MEM_NO_UNIT || unit == s->unit) return WEIR_OK;
    if (s->unit != MEM_NO_UNIT) mem_source_leave(source, s->unit);
    s->unit = MEM_NO_UNIT;
    status = mem_source_enter(source, unit, err);
    if (status == WEIR_OK) s->unit = unit;
    return status;
}

static weir_status run_op(pass *s, const graph_op *op, weir_error *err)
{
    graph_program *p = s->p;
    const graph_batch *b = s->batch;
    dev_op dev = op->dev;
    const float *w;
    weir_status status = p->source != NULL ? enter_unit(s, op, err) : WEIR_OK;

    if (status != WEIR_OK) return status;
    dev.n_rows = op->rows == GRAPH_ROWS_ONE ? 1 : op->rows == GRAPH_ROWS_ALL ? b->n_rows : b->n_outputs;
    dev.a = view_of(p, op->a);
    dev.b = view_of(p, op->b);
    dev.out = view_of(p, op->out);
    switch (dev.code) {
    case DEV_DEQUANT: return run_dequant(s, op, &dev, err);
    case DEV_MATMUL: return run_matmul(s, op, &dev, err);
    case DEV_RMS_NORM:
        status = fixed_floats(p, op->w, op->w_tensor, &w, err);
        if (status != WEIR_OK) return status;
        dev.w.data = (void *)(uintptr_t)w;
        break;
    case DEV_ROPE_TABLE: dev.position = b->position; break;
    case DEV_KV_STORE:
    case DEV_ATTENTION:
        dev.position = b->position;
        dev.sequence = b->sequence;
        dev.kv = b->kv[op->layer];
        break;
    case DEV_COPY_ROWS: dev.index = b->output_rows; break;
    default: break;
    }
    return run_device(p, &dev, err);
}

/* As run_op, and books time and bytes under the operation's phase. */
static weir_status run_op_profiled(pass *s, const graph_op *op, weir_error *err)
{
    graph_program *p = s->p;
    graph_phase *phase = &p->phases[op->phase];
    mem_stats before, after;
    double start, seconds;
    weir_status status;

    s->wait_seconds = 0;
    s->rows_done = 0;
    mem_component_stats(p->component, &before);
    start = base_now(p->env);
    status = run_op(s, op, err);
    seconds = base_now(p->env) - start;
    mem_component_stats(p->component, &after);
    phase->seconds += seconds;
    phase->wait_seconds += s->wait_seconds;
    phase->n_ops++;
    phase->streamed_bytes += after.streamed_bytes - before.streamed_bytes;
    phase->streamed_bytes += after.row_bytes - before.row_bytes;
    if (op->dev.code == DEV_MATMUL) phase->weight_bytes += (uint64_t)s->rows_done * op->dev.w.stride;
    p->op_seconds[op->dev.code] += seconds;
    p->op_count[op->dev.code]++;
    return status;
}

static bool any_streams(const graph_program *p, size_t n_order)
{
    for (size_t i = 0; i < n_order; i++)
        if (mem_weight_resident(p->component, p->order[i]) == NULL) return true;
    return false;
}

static weir_status run_ops(pass *s, weir_error *err)
{
    graph_program *p = s->p;
    atomic_bool *cancel = s->batch->cancel;

    for (uint32_t i = 0; i < s->n_ops; i++) {
        weir_status status;

        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed))
            return base_fail(err, WEIR_ERR_CANCELLED, "cancelled at operation %u of %u", i, s->n_ops);
        status = p->profile ? run_op_profiled(s, &p->ops[i], err) : run_op(s, &p->ops[i], err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

/* With a source: operations are handed to the device's stream and the results fetched. Positions are written
 * anew by each attempt, so the pass may be tried again. */
static weir_status run_on_device(void *arg, weir_error *err)
{
    pass *s = arg;
    graph_program *p = s->p;
    const graph_tensor *t = &p->tensors[p->result];
    weir_status status;

    s->unit = MEM_NO_UNIT;
    status = run_ops(s, err);
    if (status == WEIR_OK && s->unit != MEM_NO_UNIT) mem_source_leave(p->source, s->unit);
    if (status == WEIR_OK && s->batch->n_outputs > 0)
        status = mem_source_download(p->source, p->results, p->arena + t->offset,
                                     s->batch->n_outputs * t->stride, err);
    return status;
}

weir_status graph_run(graph_program *p, const graph_batch *batch, weir_error *err)
{
    pass s = {.p = p, .batch = batch, .unit = MEM_NO_UNIT};
    size_t n_order;
    weir_status status = check_batch(p, batch, err);

    if (status != WEIR_OK) return status;
    s.n_ops = batch->n_outputs > 0 ? p->n_ops : p->first_output_op;
    if (p->source != NULL) return mem_source_run(p->source, batch->cancel, run_on_device, &s, err);
    n_order = batch->n_outputs > 0 ? p->n_order : p->n_order_inner;
    if (!any_streams(p, n_order)) {
        status = mem_check_mapped(p->component, err);
        if (status == WEIR_OK) status = run_ops(&s, err);
        if (status == WEIR_OK) status = mem_check_mapped(p->component, err);
        return status;
    }
    status = mem_pass_begin(p->component, p->order, n_order, batch->cancel, err);
    if (status != WEIR_OK) return status;
    status = run_ops(&s, err);
    mem_pass_end(p->component);
    return status;
}

const float *graph_result(const graph_program *p, uint32_t i)
{
    const graph_tensor *t = &p->tensors[p->result];

    if (p->arena == NULL || i >= p->options.max_outputs) return NULL;
    if (p->source != NULL) return p->results + i * (t->stride / sizeof(float));
    return (const float *)(const void *)(p->arena + t->offset + i * t->stride);
}

void graph_profile_on(graph_program *p, bool on)
{
    p->profile = on;
}

bool graph_profile_phase(const graph_program *p, uint32_t i, graph_phase_profile *out)
{
    const graph_phase *phase;

    if (i >= p->n_phases) return false;
    phase = &p->phases[i];
    *out = (graph_phase_profile){
        .name = phase->name,
        .seconds = phase->seconds,
        .wait_seconds = phase->wait_seconds,
        .n_ops = phase->n_ops,
        .weight_bytes = phase->weight_bytes,
        .streamed_bytes = phase->streamed_bytes,
        .peak_live_bytes = phase->peak_live_bytes,
    };
    return true;
}

void graph_profile_op(const graph_program *p, dev_opcode code, double *seconds, uint64_t *count)
{
    *seconds = p->op_seconds[code];
    *count = p->op_count[code];
}
