/* How fast decoding will be: the plan's ring played through (mem_plan_predict) with the rate of the storage
 * and the rate at which this machine's kernels work off weights of this model's type and size. Both are
 * measured; nothing of the model is read for the second one. */
#include "rt_internal.h"

#include <string.h>

/* Beyond what the caches of large processors hold. */
#define BLOCK_BYTES     (UINT64_C(512) << 20)
#define BLOCK_MIN_BYTES (UINT64_C(1) << 20)
#define SECONDS         0.25
#define ROUNDS_MAX      64
#define SMALL_OPS       256
/* Products of a decoder layer: q, k, v, o, gate, up, down. */
#define PRODUCTS_PER_LAYER 7

/* Products as decoding runs them: one row of activations with matrices of a usual size, one after the other.
 */
typedef struct bench_products {
    base_env *env;
    dev_device *device;
    uint8_t *block;
    uint64_t block_bytes;
    void *act;
    float *out;
    dev_op op;
    uint64_t matrix_bytes;
    uint32_t n_matrices;
} bench_products;

static void products_finish(bench_products *b)
{
    base_free(b->env, b->out);
    base_free(b->env, b->act);
    base_pages_free(b->env, BASE_TAG_RUNTIME, b->block, b->block_bytes);
}

/* Any bytes that are no odd numbers do: 0x11 in each gives small normal scales in all types. */
static weir_status products_init(bench_products *b, const weir_model *m, const rt_options *o,
                                 const rt_plan *plan, weir_error *err)
{
    const lm_hparams *h = lm_model_hparams(m->lm);
    const base_dtype_info *type = base_dtype_get(m->main_dtype);
    uint64_t pass = base_max(plan->view.weight_bytes_per_pass, 1);
    size_t k = base_max(h->hidden / type->block_elements, 1) * type->block_elements;
    size_t row_bytes = k / type->block_elements * type->block_bytes;
    uint64_t rows = pass / ((uint64_t)PRODUCTS_PER_LAYER * h->n_layers + 1) / row_bytes;
    rows = base_align_up(base_min(base_max(rows, DEV_PACK_ROWS), UINT64_C(1) << 20), DEV_PACK_ROWS);
    b->matrix_bytes = rows * row_bytes;
    /* In a small control group the block itself must not be what ends the process. */
    base_memory_limits limits;
    uint64_t there, reserve;
    weir_status status = rt_limits_read(m->context, &limits, err);
    if (status == WEIR_OK) status = rt_default_budget(m->context, &limits, &there, &reserve, err);
    if (status != WEIR_OK) return status;
    uint64_t wanted = base_max(base_min(base_min(pass, BLOCK_BYTES), there / 2), BLOCK_MIN_BYTES);
    for (b->block_bytes = base_align_up(base_max(wanted, b->matrix_bytes), 4096); b->block == NULL;) {
        b->block = base_pages_alloc(b->env, BASE_TAG_RUNTIME, b->block_bytes, true, err);
        if (b->block != NULL) break;
        if (b->block_bytes / 2 < b->matrix_bytes) return err->code;
        b->block_bytes = base_align_up(b->block_bytes / 2, 4096);
    }
    b->n_matrices = (uint32_t)base_max(b->block_bytes / b->matrix_bytes, 1);
    size_t act_bytes = b->device->table->act_row_bytes(b->device, m->main_dtype, k);
    act_bytes = base_max(act_bytes, k * sizeof(float));
    b->act = base_alloc(b->env, BASE_TAG_RUNTIME, act_bytes, err);
    if (b->act == NULL) return err->code;
    b->out = base_alloc_array(b->env, BASE_TAG_RUNTIME, base_max(rows, k), sizeof(float), err);
    if (b->out == NULL) return err->code;
    memset(b->act, 0x11, act_bytes);
    memset(b->block, 0x11, b->block_bytes);
    bool packed =
        (o->pack || fmt_model_is_packed(m->file)) && b->device->table->can_pack(b->device, m->main_dtype);
    b->op = (dev_op){.code = DEV_MATMUL,
                     .dtype = m->main_dtype,
                     .n_rows = 1,
                     .cols = k,
                     .a = {b->act, act_bytes},
                     .out = {b->out, rows * sizeof(float)},
                     .w = {b->block, row_bytes},
                     .row_end = rows,
                     .packed_rows = packed ? base_align_down(rows, DEV_PACK_ROWS) : 0};
    return b->device->table->reserve_workspace(b->device, k, 16, h->head_dim, err);
}

static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

/* Seconds of a pass over the block: the median of some rounds, the first of which does not count. */
static weir_status products_time(bench_products *b, double *seconds, weir_error *err)
{
    double t[ROUNDS_MAX], begin = base_now(b->env);
    uint32_t n = 0;
    for (uint32_t round = 0; n < ROUNDS_MAX; round++) {
        double start = base_now(b->env);
        for (uint32_t i = 0; i < b->n_matrices; i++) {
            b->op.w.data = b->block + i * b->matrix_bytes;
            weir_status status = b->device->table->run(b->device, &b->op, err);
            if (status != WEIR_OK) return status;
        }
        double end = base_now(b->env);
        if (round == 0) continue;
        uint32_t at = n++;
        for (; at > 0 && compare(t[at - 1], end - start) > 0; at--) t[at] = t[at - 1];
        t[at] = end - start;
        if (n >= 3 && end - begin > SECONDS) break;
    }
    *seconds = t[n / 2];
    return WEIR_OK;
}

/* Seconds of what stands between two products, such as a norm. */
static weir_status small_time(bench_products *b, double *seconds, weir_error *err)
{
    dev_op op = {.code = DEV_RMS_NORM,
                 .n_rows = 1,
                 .cols = b->op.cols,
                 .group = b->op.cols,
                 .a = {b->act, b->op.cols * sizeof(float)},
                 .out = {b->out, b->op.cols * sizeof(float)},
                 .w = {b->block, 0},
                 .f = {1e-5f, 0}};
    double start = base_now(b->env);
    for (int i = 0; i < SMALL_OPS; i++) {
        weir_status status = b->device->table->run(b->device, &op, err);
        if (status != WEIR_OK) return status;
    }
    *seconds = (base_now(b->env) - start) / SMALL_OPS;
    return WEIR_OK;
}

/* Bytes of weights that a pass of one row works off per second when all are in memory. */
static weir_status compute_rate(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                                double *rate, weir_error *err)
{
    bench_products b = {.env = m->env, .device = device};
    double pass = 0, small = 0;
    weir_status status = products_init(&b, m, o, plan, err);
    if (status == WEIR_OK) status = products_time(&b, &pass, err);
    if (status == WEIR_OK) status = small_time(&b, &small, err);
    products_finish(&b);
    if (status != WEIR_OK) return status;
    uint32_t products = PRODUCTS_PER_LAYER * lm_model_hparams(m->lm)->n_layers + 1;
    double bytes = (double)base_max(plan->view.weight_bytes_per_pass, 1);
    double seconds = bytes * pass / ((double)b.n_matrices * (double)b.matrix_bytes);
    if (plan->n_ops > products) seconds += small * (plan->n_ops - products);
    *rate = bytes / (seconds > 1e-9 ? seconds : 1e-9);
    return WEIR_OK;
}

/* What is known of the storage; measured where nothing is. */
static weir_status storage_rate(weir_model *m, double given, mem_speed *speed, weir_error *err)
{
    enum { SHORT_BYTES = 128 << 20 };
    weir_storage s = {.struct_size = sizeof s};
    speed->storage_bytes_per_s = given;
    speed->latency_s = 5e-5;
    weir_status status = weir_model_storage(m, given <= 0, &s, err);
    if (status != WEIR_OK) return status;
    if (s.bytes_per_s > 0) speed->latency_s = s.latency_seconds;
    if (given > 0) return WEIR_OK;
    speed->storage_bytes_per_s = s.bytes_per_s;
    if (s.bytes_per_s > 0) return WEIR_OK;
    return weir_measure_storage(m, SHORT_BYTES, &speed->storage_bytes_per_s, err);
}

static void fill(const rt_plan *plan, const mem_speed *speed, double seconds, weir_prediction *out)
{
    double streams = (double)plan->memory.streamed_bytes;
    double slowest = (double)plan->view.weight_bytes_per_pass / speed->compute_bytes_per_s;
    if (streams > 0 && streams / speed->storage_bytes_per_s > slowest)
        slowest = streams / speed->storage_bytes_per_s;
    *out = (weir_prediction){
        .struct_size = sizeof *out,
        .storage_bytes_per_s = streams > 0 ? speed->storage_bytes_per_s : 0,
        .compute_bytes_per_s = speed->compute_bytes_per_s,
        .latency_seconds = speed->latency_s,
        .seconds_per_token = seconds,
        .tokens_per_s = 1 / seconds,
        .limit_tokens_per_s = 1 / slowest,
    };
}

weir_status weir_model_predict(weir_model *m, const weir_load_options *o, double storage_bytes_per_s,
                               weir_prediction *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    rt_options options;
    mem_speed speed = {.storage_bytes_per_s = 1e9};
    weir_status status = rt_model_runs(m, err);
    if (status == WEIR_OK) status = rt_options_resolve(m, o, &options, err);
    if (status != WEIR_OK) return status;
    base_ledger_view before;
    rt_ledger_read(m->context, &before);
    if (m->run != NULL) before = m->run->before;
    dev_device *device;
    status = rt_device_create(m, &options, &before, &device, err);
    if (status != WEIR_OK) return status;
    rt_plan plan;
    double seconds = 0;
    status = rt_plan_make(m, &options, device, &before, &plan, err);
    if (status == WEIR_OK && !plan.view.fits) status = WEIR_ERR_BUDGET; /* err has the advice */
    if (status == WEIR_OK && plan.memory.ring_bytes != 0) {
        status = storage_rate(m, storage_bytes_per_s, &speed, err);
        /* What was measured only now may have changed the ring. */
        if (status == WEIR_OK) status = rt_plan_make(m, &options, device, &before, &plan, err);
    }
    if (status == WEIR_OK) status = compute_rate(m, device, &options, &plan, &speed.compute_bytes_per_s, err);
    dev_destroy(device);
    if (status == WEIR_OK) status = mem_plan_predict(m->component, &plan.memory, &speed, &seconds, err);
    if (status == WEIR_OK) fill(&plan, &speed, seconds > 0 ? seconds : 1e-9, out);
    return status;
}
