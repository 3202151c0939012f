/* Whether weights are worth a copy in the device's own layout: products of both, timed for a moment. */
#include "rt_internal.h"

#include <string.h>

#define BLOCK_MIN_BYTES (UINT64_C(1) << 20)
#define CHOICE_BYTES    (UINT64_C(64) << 20) /* enough to compare two layouts with */
#define WINDOW_SECONDS  0.05
#define WINDOWS         3
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
    size_t rows;
} products;

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
    uint64_t wanted = base_max(base_min(most, there / 2), BLOCK_MIN_BYTES);
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
    b->rows = rows;
    b->matrix_bytes = rows * row_bytes;
    b->n_matrices = (uint32_t)(b->block_bytes / b->matrix_bytes);
    size_t act_bytes = b->device->table->act_row_bytes(b->device, m->main_dtype, k);
    act_bytes = base_max(act_bytes, k * sizeof(float));
    b->act = base_alloc(b->env, BASE_TAG_RUNTIME, act_bytes, err);
    if (b->act == NULL) return err->code;
    b->out = base_alloc_array(b->env, BASE_TAG_RUNTIME, base_max(rows, k), sizeof(float), err);
    if (b->out == NULL) return err->code;
    memset(b->act, 0, act_bytes); /* rows carry sums of their values, which must be theirs */
    memset(b->block, 0x11, b->block_bytes);
    b->op = (dev_op){.code = DEV_MATMUL,
                     .dtype = m->main_dtype,
                     .n_rows = 1,
                     .cols = k,
                     .a = {b->act, act_bytes},
                     .out = {b->out, rows * sizeof(float)},
                     .w = {b->block, row_bytes},
                     .row_end = rows};
    return b->device->table->reserve_workspace(b->device, k, 16, h->head_dim, err);
}

/* A pass over the block. */
static weir_status pass_over(products *b, bool packed, weir_error *err)
{
    for (uint32_t i = 0; i < b->n_matrices; i++) {
        b->op.w.data = b->block + i * b->matrix_bytes;
        b->op.packed_rows = packed ? base_align_down(b->rows, DEV_PACK_ROWS) : 0;
        weir_status status = b->device->table->run(b->device, &b->op, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

/* Bytes per second computed in one window. */
static weir_status window(products *b, bool packed, double *computed, weir_error *err)
{
    weir_status status = WEIR_OK;
    double start = base_now(b->env), seconds = 0;
    uint64_t bytes = 0;
    while (status == WEIR_OK && seconds < WINDOW_SECONDS) {
        status = pass_over(b, packed, err);
        bytes += b->n_matrices * b->matrix_bytes;
        seconds = base_now(b->env) - start;
    }
    *computed = (double)bytes / (seconds > 1e-9 ? seconds : 1e-9);
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
        status = window(&b, true, &packed[i], err);
        if (status == WEIR_OK) status = window(&b, false, &plain[i], err);
    }
    products_finish(&b);
    if (status == WEIR_OK) *pays = median(packed) > PAYS_SHARE * median(plain);
    return status;
}
