/* Operations on the CPU: each is cut by output element into tasks for the pool (attention of one long row
 * also where its definition ends a sum), so that the number of workers never changes a bit. Small ones run on
 * the caller alone, since waking a worker costs more. */
#include "dev_cpu_internal.h"

#include <string.h>

/* Work below this many simple element operations is not worth a second worker. */
#define INLINE_COST 20000
/* Kernels take the rows of a weight in groups of this many, packed or not. */
#define ROW_GROUP KERN_PACK_ROWS
/* Products with more rows of activations than FEW_ROWS run in tiles two groups wide (a lone group takes
 * nearly as long) and in bands of BAND_GROUPS; others read STREAMED_GROUPS side by side. */
#define FEW_ROWS        6
#define BAND_GROUPS     4
#define STREAMED_GROUPS 4
/* What two more meetings of all workers cost, as positions times heads (and two more). */
#define CUT_COST 4096
/* Elementwise work is cut into pieces of this many elements of a row. */
#define PIECE 8192

typedef struct cpu_task {
    const dev_cpu *d;
    const dev_op *op;
    kern_matmul matmul;
    size_t pieces; /* per row, where rows are cut; per segment of a row of attention */
    uint32_t heads_per_item, rows_per_item;
    kern_attention_cut cut;
    size_t cut_scratch; /* bytes of a worker, at the beginning of the work space */
    uint8_t *rows;      /* to be packed */
    uint32_t dtype;
    size_t group_bytes;
} cpu_task;

static void *view_row(dev_view v, size_t r)
{
    return (uint8_t *)v.data + r * v.stride;
}

static void *worker_scratch(const dev_cpu *d, uint32_t worker)
{
    return d->scratch + (size_t)worker * d->scratch_stride;
}

/* Runs fn over [0, n). cost: the whole work in simple element operations. */
static void cpu_split(const dev_cpu *d, base_task_fn fn, cpu_task *task, size_t n, size_t grain, size_t cost)
{
    if (n == 0) return;
    if (d->n_threads == 1 || cost < INLINE_COST || n <= grain)
        fn(task, 0, 0, n);
    else
        base_pool_run_on(d->pool, d->n_threads, fn, task, n, grain);
}

/* Items per task such that each worker gets at least so many tasks and, at equal speed, all end together: of
 * the grains in question the one whose busiest worker has the least to do, a multiple of `even` if it can be.
 */
static size_t grain_of(const dev_cpu *d, size_t n, size_t tasks_each, size_t even)
{
    size_t largest = base_max(1, n / (d->n_threads * tasks_each));
    size_t smallest = largest > 8 ? largest - 8 : 1, best = largest, best_load = SIZE_MAX;

    for (size_t grain = largest; grain >= smallest; grain--) {
        size_t tasks = (n + grain - 1) / grain;
        size_t load = (tasks + d->n_threads - 1) / d->n_threads * grain;

        if (load < best_load || (load == best_load && best % even != 0 && grain % even == 0)) {
            best = grain;
            best_load = load;
        }
    }
    return best;
}

static size_t row_grain(const dev_cpu *d, size_t n)
{
    return grain_of(d, n, 8, 1);
}

/* Groups of rows per task of a product. Few rows of activations: long tasks, since each begins with weights
 * that nobody has asked for yet. Many: the kernel works in bands of rows anyway, so tasks are no longer than
 * one; processors that others share are seldom equally fast, and who is slower then takes fewer. */
static size_t matmul_grain(const dev_cpu *d, size_t groups, size_t n_rows)
{
    if (n_rows <= FEW_ROWS) return grain_of(d, groups, 4, STREAMED_GROUPS);
    if (groups < 2 * (size_t)d->n_threads) return 1;
    return 2 * base_min(grain_of(d, (groups + 1) / 2, 4, 1), BAND_GROUPS / 2);
}

static void matmul_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    size_t rows = t->op->row_end - t->op->row_begin;

    t->d->kern->matmul(&t->matmul, begin * ROW_GROUP, base_min(end * ROW_GROUP, rows),
                       worker_scratch(t->d, worker));
}

static void run_matmul(cpu_task *t)
{
    const dev_op *op = t->op;
    size_t rows = op->row_end - op->row_begin;
    size_t groups = (rows + ROW_GROUP - 1) / ROW_GROUP;
    size_t cost = rows * (op->cols / 8 + 1) * op->n_rows;

    /* w.data is row row_begin: outputs and bias move there, and the kernel counts from 0. */
    t->matmul = (kern_matmul){
        .dtype = op->dtype,
        .w = op->w.data,
        .row_bytes = op->w.stride,
        .packed_rows = op->packed_rows,
        .k = op->cols,
        .act = op->a.data,
        .act_stride = op->a.stride,
        .n_tokens = op->n_rows,
        .out = (float *)op->out.data + op->row_begin,
        .out_stride = op->out.stride / sizeof(float),
        .bias = op->bias != NULL ? op->bias + op->row_begin : NULL,
    };
    cpu_split(t->d, matmul_rows, t, groups, matmul_grain(t->d, groups, op->n_rows), cost);
}

static void dequantize_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++) {
        float *y = view_row(op->out, r);

        t->d->kern->dequantize(op->dtype, view_row(op->a, r), op->cols, y);
        if (op->f[0] != 1.0f) t->d->kern->scale(y, op->cols, op->f[0]);
    }
}

static void quantize_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++)
        t->d->kern->quantize(kern_act_for(op->dtype), view_row(op->a, r), op->cols, view_row(op->out, r));
}

static void rms_norm_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *x = view_row(op->a, r);
        float *y = view_row(op->out, r);

        for (size_t i = 0; i < op->cols; i += op->group)
            t->d->kern->rms_norm(x + i, op->w.data, op->f[1], op->f[0], op->group, y + i);
    }
}

static void rope_table_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++)
        kern_rope_table(op->position[r], op->inv_freq, op->n_rot / 2, op->mscale, view_row(op->out, r));
}

static void rope_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++)
        t->d->kern->rope(view_row(op->out, r), op->n_heads, op->head_dim, op->n_rot, view_row(op->b, r),
                         op->neox);
}

static kern_kv kv_of(const dev_op *op, size_t r)
{
    const dev_kv *kv = &op->kv[op->sequence[r]];

    return (kern_kv){.k = kv->k, .v = kv->v, .dtype = kv->dtype, .capacity = kv->capacity};
}

static void kv_store_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++) {
        kern_kv kv = kv_of(op, r);

        t->d->kern->kv_store(&kv, op->n_kv_heads, op->head_dim, (uint32_t)op->position[r], view_row(op->a, r),
                             view_row(op->b, r));
    }
}

static uint32_t first_position(const dev_op *op, uint32_t last)
{
    return op->window != 0 && last >= op->window ? last - op->window + 1 : 0;
}

/* Rows from r on, up to n, that follow each other in one sequence. */
static uint32_t rows_together(const dev_op *op, size_t r, size_t n)
{
    uint32_t rows = 1;

    while (rows < n && op->sequence[r + rows] == op->sequence[r] &&
           op->position[r + rows] == op->position[r] + (int32_t)rows)
        rows++;
    return rows;
}

/* Of row r alone. */
static kern_attention attention_of(const dev_op *op, size_t r, const kern_kv *kv)
{
    return (kern_attention){
        .q = view_row(op->a, r),
        .out = view_row(op->out, r),
        .kv = kv,
        .n_heads = op->n_heads,
        .n_kv_heads = op->n_kv_heads,
        .head_dim = op->head_dim,
        .last = (uint32_t)op->position[r],
        .scale = op->f[0],
        .softcap = op->f[1],
        .n_rows = 1,
        .window = op->window,
        .q_stride = op->a.stride / sizeof(float),
        .out_stride = op->out.stride / sizeof(float),
    };
}

/* An item is a piece of the heads of one cache head, for rows_per_item rows. Late rows see more and come
 * first, so that what is left for the end is small. */
static void attention_items(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;
    uint32_t shared = op->n_heads / op->n_kv_heads;
    uint32_t pieces = (shared + t->heads_per_item - 1) / t->heads_per_item;
    size_t per_group = (size_t)op->n_kv_heads * pieces;
    size_t n_groups = (op->n_rows + t->rows_per_item - 1) / t->rows_per_item;

    for (size_t i = begin; i < end; i++) {
        size_t r = (n_groups - 1 - i / per_group) * t->rows_per_item;
        size_t r_end = base_min(r + t->rows_per_item, op->n_rows);
        uint32_t part = (uint32_t)(i % per_group), first_head = part / pieces * shared;
        uint32_t head = first_head + part % pieces * t->heads_per_item;
        uint32_t head_end = (uint32_t)base_min(head + t->heads_per_item, first_head + shared);

        for (uint32_t n; r < r_end; r += n) {
            kern_kv kv = kv_of(op, r);
            kern_attention a = attention_of(op, r, &kv);

            a.n_rows = n = rows_together(op, r, r_end - r);
            t->d->kern->attention(&a, head, head_end, worker_scratch(t->d, worker));
        }
    }
}

/* A row cut by positions: an item is a segment, of all heads or of those of one cache head. Segments come
 * first, so that who takes items in order reads the cache as it lies. */
static void cut_items(const cpu_task *t, uint32_t worker, size_t begin, size_t end,
                      void (*step)(const kern_attention_cut *, uint32_t, uint32_t, uint32_t, void *))
{
    uint32_t heads = (uint32_t)(t->op->n_heads / t->pieces);

    for (size_t i = begin; i < end; i++) {
        uint32_t head = (uint32_t)(i % t->pieces) * heads;

        step(&t->cut, head, head + heads, (uint32_t)(i / t->pieces), t->d->scratch + worker * t->cut_scratch);
    }
}

static void scores_items(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;

    cut_items(t, worker, begin, end, t->d->kern->attention_scores);
}

static void values_items(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;

    cut_items(t, worker, begin, end, t->d->kern->attention_values);
}

static void finish_items(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;

    (void)worker;
    t->d->kern->attention_finish(&t->cut, (uint32_t)begin, (uint32_t)end);
}

/* Heads of one cache head in an item: all, so that K and V are read once, unless that leaves workers idle.
 * Reading costs about as much as two heads. load receives what the busiest worker has to do. */
static uint32_t heads_per_item(const dev_cpu *d, size_t n_groups, uint32_t shared, size_t *load)
{
    uint32_t best = shared;

    *load = SIZE_MAX;
    for (uint32_t heads = shared; heads >= 1; heads--) {
        size_t items = n_groups * ((shared + heads - 1) / heads);
        size_t least = (items + d->n_threads - 1) / d->n_threads * (heads + 2);

        if (least < *load) {
            *load = least;
            best = heads;
        }
    }
    return best;
}

/* One row of n positions whose cache heads do not go evenly into the workers: cut by positions too, where the
 * busiest worker then has less to do (`load` a position, uncut) by more than two meetings cost. What workers
 * share lies in the work space behind what each needs for itself; without room for it nothing is cut. */
static bool run_cut(cpu_task *t, size_t n, size_t load, size_t cost)
{
    const dev_cpu *d = t->d;
    const dev_op *op = t->op;
    kern_kv kv = kv_of(op, 0);
    kern_attention a = attention_of(op, 0, &kv);
    size_t items, cut_load;
    uint64_t own;

    t->cut_scratch = kern_attention_cut_scratch_bytes(op->n_heads, op->head_dim);
    if (!base_mul(t->cut_scratch, d->n_threads, &own) || own > d->scratch_bytes ||
        !kern_attention_cut_init(&t->cut, &a, d->scratch + own, d->scratch_bytes - own))
        return false;
    t->pieces = t->cut.n_segments < 4 * (size_t)d->n_threads ? op->n_kv_heads : 1;
    items = t->pieces * t->cut.n_segments;
    cut_load = (items + d->n_threads - 1) / d->n_threads * (op->n_heads + 2 * op->n_kv_heads) / t->pieces;
    if (cut_load * n / t->cut.n_segments + CUT_COST >= load * n) return false;
    cpu_split(d, scores_items, t, items, 1, cost);
    cpu_split(d, values_items, t, items, 1, cost);
    cpu_split(d, finish_items, t, op->n_heads, 1, cost);
    return true;
}

static weir_status run_attention(cpu_task *t, weir_error *err)
{
    const dev_op *op = t->op;
    uint32_t shared = op->n_heads / op->n_kv_heads;
    size_t cost = 0, n_groups, load, wanted = (size_t)t->d->n_threads * 8;
    uint32_t n = 0;

    /* Rows that follow each other share what they read, as far as that leaves enough items for all workers.
     */
    t->rows_per_item = (uint32_t)base_max(1, KERN_ATTENTION_TOGETHER / shared);
    while (t->rows_per_item > 1 && op->n_rows * op->n_kv_heads / t->rows_per_item < wanted)
        t->rows_per_item--;
    for (size_t r = 0, start = 0; r < op->n_rows; r++) {
        uint32_t last = (uint32_t)op->position[r];

        if (r % t->rows_per_item == 0 || rows_together(op, r - 1, 2) < 2) start = r;
        n = last - first_position(op, (uint32_t)op->position[start]) + 1; /* seen by the rows together */
        if (n > t->d->max_positions)
            return base_fail(err, WEIR_ERR_INTERNAL, "attention over %u positions, work space for %u", n,
                             t->d->max_positions);
        cost += (size_t)n * op->n_heads * op->head_dim / 2;
    }
    n_groups = (op->n_rows + t->rows_per_item - 1) / t->rows_per_item * op->n_kv_heads;
    t->heads_per_item = heads_per_item(t->d, n_groups, shared, &load);
    if (op->n_rows == 1 && t->d->n_threads > 1 && run_cut(t, n, load, cost)) return WEIR_OK;
    cpu_split(t->d, attention_items, t, n_groups * ((shared + t->heads_per_item - 1) / t->heads_per_item), 1,
              cost);
    return WEIR_OK;
}

/* Elementwise operations: an item is one piece of one row. */
static void elementwise_pieces(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;
    const kern_table *kern = t->d->kern;

    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t r = i / t->pieces, from = i % t->pieces * PIECE;
        size_t n = base_min(PIECE, op->cols - from);
        const float *a = op->a.data != NULL ? (const float *)view_row(op->a, r) + from : NULL;
        const float *b = op->b.data != NULL ? (const float *)view_row(op->b, r) + from : NULL;
        float *y = (float *)view_row(op->out, r) + from;

        switch (op->code) {
        case DEV_GLU: kern->glu(op->gelu ? KERN_GLU_GELU : KERN_GLU_SILU, a, b, n, y); break;
        case DEV_ADD: kern->add(a, b, n, y); break;
        case DEV_SOFTCAP: kern->softcap(y, n, op->f[0]); break;
        default: kern->scale(y, n, op->f[0]); break;
        }
    }
}

static void run_elementwise(cpu_task *t, size_t cost_each)
{
    size_t n;

    t->pieces = (t->op->cols + PIECE - 1) / PIECE;
    n = t->pieces * t->op->n_rows;
    cpu_split(t->d, elementwise_pieces, t, n, row_grain(t->d, n), t->op->n_rows * t->op->cols * cost_each);
}

static void copy_rows(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    const dev_op *op = t->op;

    (void)worker;
    for (size_t r = begin; r < end; r++)
        memcpy(view_row(op->out, r), view_row(op->a, op->index[r]), op->cols * sizeof(float));
}

static void run_rows(cpu_task *t, base_task_fn fn, size_t cost_each)
{
    const dev_op *op = t->op;

    cpu_split(t->d, fn, t, op->n_rows, row_grain(t->d, op->n_rows), op->n_rows * op->cols * cost_each);
}

static void pack_groups(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const cpu_task *t = arg;
    uint8_t *scratch = worker_scratch(t->d, worker);

    for (size_t g = begin; g < end; g++) {
        uint8_t *group = t->rows + g * t->group_bytes;

        kern_pack(t->dtype, group, t->group_bytes / ROW_GROUP, scratch);
        memcpy(group, scratch, t->group_bytes);
    }
}

weir_status dev_cpu_pack(dev_device *device, uint32_t dtype, void *rows, size_t row_bytes, size_t n_groups,
                         weir_error *err)
{
    cpu_task t = {.d = (const dev_cpu *)(const void *)device, .rows = rows, .dtype = dtype};

    t.group_bytes = row_bytes * ROW_GROUP;
    if (!kern_can_pack(dtype) || row_bytes > t.d->scratch_stride / ROW_GROUP)
        return base_fail(err, WEIR_ERR_INTERNAL, "packing rows of %zu bytes, work space of %zu", row_bytes,
                         t.d->scratch_stride);
    cpu_split(t.d, pack_groups, &t, n_groups, 1, n_groups * t.group_bytes);
    return WEIR_OK;
}

weir_status dev_cpu_run(dev_device *device, const dev_op *op, weir_error *err)
{
    cpu_task t = {.d = (const dev_cpu *)(const void *)device, .op = op};

    switch (op->code) {
    case DEV_DEQUANT: run_rows(&t, dequantize_rows, 1); break;
    case DEV_QUANT: run_rows(&t, quantize_rows, 1); break;
    case DEV_MATMUL:
        if (op->cols > t.d->max_k)
            return base_fail(err, WEIR_ERR_INTERNAL, "product with rows of %zu, work space for %zu", op->cols,
                             t.d->max_k);
        run_matmul(&t);
        break;
    case DEV_RMS_NORM: run_rows(&t, rms_norm_rows, 1); break;
    case DEV_ROPE_TABLE: run_rows(&t, rope_table_rows, 16); break;
    case DEV_ROPE: run_rows(&t, rope_rows, 1); break;
    case DEV_KV_STORE: run_rows(&t, kv_store_rows, 2); break;
    case DEV_ATTENTION: return run_attention(&t, err);
    case DEV_GLU: run_elementwise(&t, 3); break;
    case DEV_ADD: run_elementwise(&t, 1); break;
    case DEV_COPY_ROWS: run_rows(&t, copy_rows, 1); break;
    case DEV_SOFTCAP: run_elementwise(&t, 3); break;
    case DEV_SCALE: run_elementwise(&t, 1); break;
    default: return base_fail(err, WEIR_ERR_INTERNAL, "the CPU knows no operation %d", (int)op->code);
    }
    return WEIR_OK;
}
