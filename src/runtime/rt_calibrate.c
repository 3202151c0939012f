/* Rates that a prediction rests on, measured for a moment each:
 *
 *   products of what stays   |####|    |####|    |####|         in the layout in which it lies in memory
 *   products of tiles           |####|    |####|    |####|      in the file's layout, tile by tile
 *   reading alone                  |####|    |####|    |####|         as the ring does; as storage likes best
 *   both at once                      |####|    |####|    |####|
 *
 * Reading costs the processors something and computing slows reads down; the last line tells how much. The
 * memory for it is no more than the plan has for weights, of which none is loaded yet. */
#include "rt_internal.h"

#include <string.h>

/* Beyond what the caches of large processors hold. */
#define BLOCK_BYTES     (UINT64_C(512) << 20)
#define BLOCK_MIN_BYTES (UINT64_C(1) << 20)
#define CHOICE_BYTES    (UINT64_C(64) << 20) /* enough to compare two layouts with */
#define WINDOW_SECONDS  0.05
#define WINDOWS         3
#define SMALL_OPS       256
#define READS_MAX       32
/* What is measured of the one slowing the other is not believed beyond this. */
#define SLOWED_MAX 0.5
/* A layout that needs a copy of all weights must be quicker by this. */
#define PAYS_SHARE 1.03

/* Products as decoding runs them: one row of activations with matrices of a usual size, one after the other.
 */
typedef struct products {
    base_env *env;
    dev_device *device;
    uint8_t *block;
    uint64_t block_bytes;
    void *act;
    float *out;
    dev_op op;
    uint64_t matrix_bytes;
    uint32_t n_matrices;
    size_t rows, tile_rows;
    bool packs;
} products;

/* Reads of the model's largest file in its order, as many at once as the ring has. */
typedef struct reading {
    base_env *env;
    base_aio *aio;
    base_file *file;
    uint8_t *block;
    uint64_t tile_bytes, at, done;
    uint32_t depth;
    base_aio_read reads[READS_MAX];
} reading;

static void products_finish(products *b)
{
    base_free(b->env, b->out);
    base_free(b->env, b->act);
    base_pages_free(b->env, BASE_TAG_RUNTIME, b->block, b->block_bytes);
}

/* The largest block up to `most` that budget and machine have room for. */
static weir_status allocate_block(products *b, const weir_model *m, uint64_t most, weir_error *err)
{
    /* In a small control group the block itself must not be what ends the process. */
    base_memory_limits limits;
    uint64_t there, reserve;
    weir_status status = rt_limits_read(m->context, &limits, err);
    if (status == WEIR_OK) status = rt_default_budget(m->context, &limits, &there, &reserve, err);
    if (status != WEIR_OK) return status;
    uint64_t wanted = base_max(base_min(base_min(most, BLOCK_BYTES), there / 2), BLOCK_MIN_BYTES);
    for (;; wanted /= 2) {
        b->block_bytes = base_align_up(wanted, 4096);
        b->block = base_pages_alloc(b->env, BASE_TAG_RUNTIME, b->block_bytes, true, err);
        if (b->block != NULL) return WEIR_OK;
        if (wanted / 2 < BLOCK_MIN_BYTES) return err->code;
    }
}

/* Any bytes that are no odd numbers do: 0x11 in each gives small normal scales in all types. */
static weir_status products_init(products *b, const weir_model *m, uint64_t pass_bytes, uint64_t most,
                                 weir_error *err)
{
    const lm_hparams *h = lm_model_hparams(m->lm);
    const base_dtype_info *type = base_dtype_get(m->main_dtype);
    size_t k = base_max(h->hidden / type->block_elements, 1) * type->block_elements;
    size_t row_bytes = k / type->block_elements * type->block_bytes;
    weir_status status = allocate_block(b, m, base_min(base_max(pass_bytes, 1), most), err);
    if (status != WEIR_OK) return status;
    uint64_t rows = pass_bytes / ((uint64_t)RT_PRODUCTS_PER_LAYER * h->n_layers + 1) / row_bytes;
    rows = base_min(base_max(base_min(rows, UINT64_C(1) << 20), 1), b->block_bytes / row_bytes);
    rows = base_align_down(rows + DEV_PACK_ROWS - 1, DEV_PACK_ROWS);
    if (rows * row_bytes > b->block_bytes) rows = b->block_bytes / row_bytes;
    if (rows == 0)
        return base_fail(err, WEIR_ERR_BUDGET, "no room to time a product of rows of %zu bytes", row_bytes);
    b->rows = b->tile_rows = rows;
    b->matrix_bytes = rows * row_bytes;
    b->n_matrices = (uint32_t)(b->block_bytes / b->matrix_bytes);
    size_t act_bytes = b->device->table->act_row_bytes(b->device, m->main_dtype, k);
    act_bytes = base_max(act_bytes, k * sizeof(float));
    b->act = base_alloc(b->env, BASE_TAG_RUNTIME, act_bytes, err);
    if (b->act == NULL) return err->code;
    b->out = base_alloc_array(b->env, BASE_TAG_RUNTIME, base_max(rows, k), sizeof(float), err);
    if (b->out == NULL) return err->code;
    memset(b->act, 0x11, act_bytes);
    memset(b->block, 0x11, b->block_bytes);
    b->packs = b->device->table->can_pack(b->device, m->main_dtype);
    b->op = (dev_op){.code = DEV_MATMUL,
                     .dtype = m->main_dtype,
                     .n_rows = 1,
                     .cols = k,
                     .a = {b->act, act_bytes},
                     .out = {b->out, rows * sizeof(float)},
                     .w = {b->block, row_bytes}};
    return b->device->table->reserve_workspace(b->device, k, 16, h->head_dim, err);
}

static void reading_finish(reading *r)
{
    base_aio_destroy(r->aio); /* the queue first: reads under way write into the block */
    base_pages_free(r->env, BASE_TAG_IO, r->block, r->depth * r->tile_bytes);
    r->aio = NULL;
    r->block = NULL;
}

/* depth reads of read_bytes each. */
static weir_status reading_init(reading *r, weir_model *m, const rt_options *o, uint64_t read_bytes,
                                uint64_t depth, weir_error *err)
{
    base_aio_options aio = o->aio;
    r->file = rt_storage_file(m);
    r->tile_bytes = base_align_up(base_max(read_bytes, 65536), 4096);
    r->depth = (uint32_t)base_min(base_max(depth, 1), READS_MAX);
    r->block = base_pages_alloc(r->env, BASE_TAG_IO, r->depth * r->tile_bytes, true, err);
    if (r->block == NULL) return err->code;
    aio.depth = READS_MAX;
    return base_aio_create(r->env, &aio, &r->aio, err);
}

/* The same queue and memory in reads of the size and number that storage likes best, by turns with r. */
static reading liked_by_storage(const reading *r, const base_storage *s)
{
    reading best = *r;
    uint64_t room = r->depth * r->tile_bytes;
    best.tile_bytes = base_min(base_align_up(base_max(s->read_bytes, 65536), 4096), room);
    best.depth = (uint32_t)base_min(base_min(s->depth, READS_MAX), room / best.tile_bytes);
    return best;
}

static weir_status queue_read(reading *r, uint32_t i, weir_error *err)
{
    uint64_t size = base_file_size(r->file);
    if (r->at + r->tile_bytes > size) r->at = 0;
    uint64_t need = base_min(r->tile_bytes, size);
    r->reads[i] = (base_aio_read){.file = r->file,
                                  .offset = r->at,
                                  .buf = r->block + i * r->tile_bytes,
                                  .len = r->tile_bytes,
                                  .need = need};
    r->at += need;
    return base_aio_submit(r->aio, &r->reads[i], err);
}

static weir_status reading_start(reading *r, weir_error *err)
{
    weir_status status = WEIR_OK;
    r->done = 0;
    for (uint32_t i = 0; i < r->depth && status == WEIR_OK; i++) status = queue_read(r, i, err);
    return status;
}

/* Takes in what has ended, waiting for one read where `wait` is set, and queues as much again. */
static weir_status reading_go_on(reading *r, bool wait, weir_error *err)
{
    for (;; wait = false) {
        base_aio_read *read;
        weir_status status = base_aio_wait(r->aio, wait, &read, err);
        if (status != WEIR_OK || read == NULL) return status;
        r->done += read->need;
        status = queue_read(r, (uint32_t)(read - r->reads), err);
        if (status != WEIR_OK) return status;
    }
}

static weir_status reading_stop(reading *r, weir_error *err)
{
    weir_status status = WEIR_OK;
    while (base_aio_in_flight(r->aio) != 0 && status == WEIR_OK) {
        base_aio_read *read;
        status = base_aio_wait(r->aio, true, &read, err);
    }
    base_file_drop_cache(r->file, 0, base_file_size(r->file));
    return status;
}

/* A pass over the block, with reads under way where r is not NULL. */
static weir_status pass_over(products *b, reading *r, bool packed, weir_error *err)
{
    size_t step = packed ? b->rows : b->tile_rows;
    for (uint32_t i = 0; i < b->n_matrices; i++) {
        uint8_t *matrix = b->block + i * b->matrix_bytes;
        for (size_t row = 0; row < b->rows; row += step) {
            size_t end = base_min(row + step, b->rows);
            b->op.w.data = matrix + row * (b->matrix_bytes / b->rows);
            b->op.row_begin = row;
            b->op.row_end = end;
            b->op.packed_rows = packed ? base_align_down(end - row, DEV_PACK_ROWS) : 0;
            weir_status status = b->device->table->run(b->device, &b->op, err);
            if (status == WEIR_OK && r != NULL) status = reading_go_on(r, false, err);
            if (status != WEIR_OK) return status;
        }
    }
    return WEIR_OK;
}

/* Bytes per second computed and read in one window; b or r may be NULL, not both. */
static weir_status window(base_env *env, products *b, reading *r, bool packed, double *computed, double *read,
                          weir_error *err)
{
    weir_status status = r != NULL ? reading_start(r, err) : WEIR_OK;
    double start = base_now(env), seconds = 0;
    uint64_t bytes = 0;
    while (status == WEIR_OK && seconds < WINDOW_SECONDS) {
        if (b != NULL) {
            status = pass_over(b, r, packed, err);
            bytes += b->n_matrices * b->matrix_bytes;
        } else if (r != NULL) {
            status = reading_go_on(r, true, err);
        }
        seconds = base_now(env) - start;
    }
    if (seconds < 1e-9) seconds = 1e-9;
    if (computed != NULL) *computed = (double)bytes / seconds;
    if (read != NULL) *read = (double)r->done / seconds;
    if (status == WEIR_OK && r != NULL) status = reading_stop(r, err);
    return status;
}

static double median(double *x)
{
    for (int i = 1; i < WINDOWS; i++)
        for (int k = i; k > 0 && x[k - 1] > x[k]; k--) {
            double t = x[k];
            x[k] = x[k - 1];
            x[k - 1] = t;
        }
    return x[WINDOWS / 2] > 1 ? x[WINDOWS / 2] : 1;
}

weir_status rt_time_small(base_env *env, dev_device *device, const dev_op *product, void *weight,
                          double *seconds, weir_error *err)
{
    dev_op op = {.code = DEV_RMS_NORM,
                 .n_rows = product->n_rows,
                 .cols = product->cols,
                 .group = product->cols,
                 .a = {product->a.data, product->cols * sizeof(float)},
                 .out = {product->out.data, product->cols * sizeof(float)},
                 .w = {weight, 0},
                 .f = {1e-5f, 0}};
    double start = base_now(env);
    for (int i = 0; i < SMALL_OPS; i++) {
        weir_status status = device->table->run(device, &op, err);
        if (status != WEIR_OK) return status;
    }
    *seconds = (base_now(env) - start) / SMALL_OPS;
    return WEIR_OK;
}

/* How much of `rate` is left in company. */
static double slowed(double rate, double alone)
{
    double share = 1 - rate / alone;
    return share < 0 ? 0 : share > SLOWED_MAX ? SLOWED_MAX : share;
}

/* In turns, so that what slows the machine for a while slows all of them. */
static weir_status windows(products *b, reading *r, reading *best, bool packed, rt_rates *out,
                           weir_error *err)
{
    double stay[WINDOWS], tile[WINDOWS], alone[WINDOWS], with_reads[WINDOWS], with_products[WINDOWS];
    double liked[WINDOWS];
    weir_status status = pass_over(b, NULL, packed, err); /* does not count */
    for (int i = 0; i < WINDOWS && status == WEIR_OK; i++) {
        status = window(b->env, b, NULL, packed, &stay[i], NULL, err);
        if (r == NULL || status != WEIR_OK) continue;
        status = window(b->env, b, NULL, out->tiles_packed, &tile[i], NULL, err);
        if (status == WEIR_OK) status = window(b->env, NULL, r, false, NULL, &alone[i], err);
        if (status == WEIR_OK && best != NULL)
            status = window(b->env, NULL, best, false, NULL, &liked[i], err);
        if (status == WEIR_OK) status = window(b->env, b, r, packed, &with_reads[i], &with_products[i], err);
    }
    if (status != WEIR_OK) return status;
    out->stay_s_per_byte = 1 / median(stay);
    if (r == NULL) return WEIR_OK;
    double computing = median(with_reads), reads = median(with_products);
    out->tile_s_per_byte = 1 / median(tile) + slowed(computing, 1 / out->stay_s_per_byte) / reads;
    out->read_s_per_computed_byte = slowed(reads, median(alone)) / computing;
    if (best != NULL) out->ring_share = 1 - slowed(median(alone), median(liked));
    return WEIR_OK;
}

weir_status rt_calibrate(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                         rt_rates *out, weir_error *err)
{
    products b = {.env = m->env, .device = device};
    reading r = {.env = m->env}, best = {0};
    const mem_plan *mem = &plan->memory;
    const base_storage *s = &m->storage;
    uint64_t pass = base_max(plan->view.weight_bytes_per_pass, 1);
    bool streams = mem->ring_bytes != 0, probed = streams && s->bytes_per_s > 0 && s->depth != 0;
    double small = 0;
    *out = (rt_rates){.ring_share = 1, .tiles_packed = fmt_model_is_packed(m->file)};
    weir_status status = products_init(&b, m, pass, mem->fixed_bytes + mem->resident_bytes, err);
    uint64_t tiles = mem->ring_bytes / base_align_up(base_max(mem->tile_bytes, 65536), 4096);
    if (status == WEIR_OK && streams)
        status = reading_init(&r, m, o, mem->tile_bytes, base_max(tiles, 3) - 2, err);
    if (status == WEIR_OK && probed) best = liked_by_storage(&r, s);
    if (status == WEIR_OK && streams) {
        size_t rows = mem->tile_bytes / b.op.w.stride;
        b.tile_rows = base_min(base_max(base_align_down(rows, DEV_PACK_ROWS), DEV_PACK_ROWS), b.rows);
    }
    bool packed = ((o->pack && !plan->map) || out->tiles_packed) && b.packs;
    out->tiles_packed = out->tiles_packed && b.packs;
    if (status == WEIR_OK) status = windows(&b, streams ? &r : NULL, probed ? &best : NULL, packed, out, err);
    if (status == WEIR_OK) status = rt_time_small(b.env, b.device, &b.op, b.block, &small, err);
    reading_finish(&r);
    products_finish(&b);
    if (status != WEIR_OK) return status;
    uint32_t n_products = RT_PRODUCTS_PER_LAYER * lm_model_hparams(m->lm)->n_layers + 1;
    double others = plan->n_ops > n_products ? small * (plan->n_ops - n_products) / (double)pass : 0;
    out->stay_s_per_byte += others;
    out->tile_s_per_byte += others;
    return WEIR_OK;
}

weir_status rt_packing_pays(weir_model *m, dev_device *device, const rt_options *o, uint64_t weight_bytes,
                            bool *pays, weir_error *err)
{
    products b = {.env = m->env, .device = device};
    double packed[WINDOWS], plain[WINDOWS];
    *pays = false;
    if (!o->pack || fmt_model_is_packed(m->file) || !device->table->can_pack(device, m->main_dtype))
        return WEIR_OK;
    weir_status status = products_init(&b, m, weight_bytes, base_min(weight_bytes, CHOICE_BYTES), err);
    for (int i = 0; i < WINDOWS && status == WEIR_OK; i++) {
        status = window(b.env, &b, NULL, true, &packed[i], NULL, err);
        if (status == WEIR_OK) status = window(b.env, &b, NULL, false, &plain[i], NULL, err);
    }
    products_finish(&b);
    if (status == WEIR_OK) *pays = median(packed) > PAYS_SHARE * median(plain);
    return status;
}
