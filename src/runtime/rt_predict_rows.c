/* Prompts, shared passes, and ranges: what weir_model_predict tells beside the rate of one session. Passes of
 * more rows are as many times slower or quicker than those of one row as the kernels are, timed here; the
 * plan's ring is played through with that. The range comes from the spread of what was measured and from what
 * the model of a pass leaves out. */
#include "rt_internal.h"

#include <string.h>

/* Beyond what the caches of large processors hold. */
#define BLOCK_BYTES (UINT64_C(128) << 20)
#define SECONDS     0.25
#define ROUNDS_MAX  64
/* What is not played: other programs, the first passes, texts that grow. On either side of the spread. */
#define MODEL_ERROR 0.30
/* Text that sessions are taken to have. */
#define TEXT_TOKENS 256

/* Products as a pass runs them: rows of activations with matrices of a usual size, one after the other. */
typedef struct row_products {
    base_env *env;
    dev_device *device;
    uint8_t *block;
    uint64_t block_bytes;
    void *act;
    float *out;
    dev_op op;
    uint64_t matrix_bytes;
    uint32_t n_matrices;
    uint32_t n_rows;
} row_products;

/* Seconds, or what follows from them: the middle, and the best and worst that are usual. */
typedef struct row_spread {
    double best, middle, worst;
} row_spread;

static void products_finish(row_products *b)
{
    base_free(b->env, b->out);
    base_free(b->env, b->act);
    base_pages_free(b->env, BASE_TAG_RUNTIME, b->block, b->block_bytes);
}

/* Any bytes that are no odd numbers do: 0x11 in each gives small normal scales in all types. */
static weir_status row_products_init(row_products *b, const weir_model *m, const rt_options *o,
                                     const rt_plan *plan, weir_error *err)
{
    const lm_hparams *h = lm_model_hparams(m->lm);
    const base_dtype_info *type = base_dtype_get(m->main_dtype);
    uint64_t pass = base_max(plan->view.weight_bytes_per_pass, 1);
    size_t k = base_max(h->hidden / type->block_elements, 1) * type->block_elements;
    size_t row_bytes = k / type->block_elements * type->block_bytes;
    uint64_t rows = pass / ((uint64_t)RT_PRODUCTS_PER_LAYER * h->n_layers + 1) / row_bytes;
    rows = base_align_up(base_min(base_max(rows, DEV_PACK_ROWS), UINT64_C(1) << 20), DEV_PACK_ROWS);
    b->matrix_bytes = rows * row_bytes;
    /* In a small control group the block itself must not be what ends the process. */
    base_memory_limits limits;
    uint64_t there, reserve;
    weir_status status = rt_limits_read(m->context, &limits, err);
    if (status == WEIR_OK) status = rt_default_budget(m->context, &limits, &there, &reserve, err);
    if (status != WEIR_OK) return status;
    const mem_plan *mem = &plan->memory;
    uint64_t most = base_min(there / 2, mem->fixed_bytes + mem->resident_bytes + mem->ring_bytes);
    uint64_t wanted = base_min(base_min(pass, BLOCK_BYTES), base_max(most, b->matrix_bytes));
    for (b->block_bytes = base_align_up(base_max(wanted, b->matrix_bytes), 4096); b->block == NULL;) {
        b->block = base_pages_alloc(b->env, BASE_TAG_RUNTIME, b->block_bytes, true, err);
        if (b->block != NULL) break;
        if (b->block_bytes / 2 < b->matrix_bytes) return err->code;
        b->block_bytes = base_align_up(b->block_bytes / 2, 4096);
    }
    b->n_matrices = (uint32_t)base_max(b->block_bytes / b->matrix_bytes, 1);
    size_t act_bytes = b->device->table->act_row_bytes(b->device, m->main_dtype, k);
    act_bytes = base_max(act_bytes, k * sizeof(float));
    /* Fewer rows than asked for where memory is short: beyond a few, a row takes the same. */
    uint64_t row_cost = act_bytes + base_max(rows, k) * sizeof(float);
    b->n_rows = (uint32_t)base_max(base_min(b->n_rows, there / 8 / row_cost), 1);
    b->act = base_alloc_array(b->env, BASE_TAG_RUNTIME, b->n_rows, act_bytes, err);
    if (b->act == NULL) return err->code;
    b->out = base_alloc_array(b->env, BASE_TAG_RUNTIME, b->n_rows * base_max(rows, k), sizeof(float), err);
    if (b->out == NULL) return err->code;
    memset(b->act, 0x11, b->n_rows * act_bytes);
    memset(b->block, 0x11, b->block_bytes);
    bool packed =
        (o->pack || fmt_model_is_packed(m->file)) && b->device->table->can_pack(b->device, m->main_dtype);
    b->op = (dev_op){.code = DEV_MATMUL,
                     .dtype = m->main_dtype,
                     .n_rows = b->n_rows,
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

/* Seconds of a pass over the block: median and quartiles of some rounds, the first of which does not count.
 */
static weir_status products_time(row_products *b, row_spread *seconds, weir_error *err)
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
    *seconds = (row_spread){.best = t[n / 4], .middle = t[n / 2], .worst = t[n - 1 - n / 4]};
    return WEIR_OK;
}

/* Seconds of a layer's attention: rows of one prompt, or one row of each of several sequences. */
static weir_status attention_time(row_products *b, const weir_model *m, const rt_options *o, bool prompt,
                                  double *seconds, weir_error *err)
{
    enum { ROUNDS = 8 };
    const lm_hparams *h = lm_model_hparams(m->lm);
    uint32_t n = b->n_rows, capacity = (uint32_t)base_align_up(TEXT_TOKENS + n, 16);
    size_t row = (size_t)h->n_heads * h->head_dim;
    uint64_t k_bytes, v_bytes, q_bytes = rt_mul(n, row * sizeof(float));
    b->device->table->kv_bytes(b->device, o->kv_dtype, capacity, h->n_kv_heads, h->head_dim, &k_bytes,
                               &v_bytes);
    uint64_t bytes = k_bytes + v_bytes + 2 * q_bytes;
    uint8_t *block = base_pages_alloc(b->env, BASE_TAG_RUNTIME, bytes, false, err);
    dev_kv *kv = base_alloc_array(b->env, BASE_TAG_RUNTIME, n, sizeof *kv, err);
    int32_t *position = base_alloc_array(b->env, BASE_TAG_RUNTIME, n, sizeof *position, err);
    uint32_t *sequence = base_alloc_array(b->env, BASE_TAG_RUNTIME, n, sizeof *sequence, err);
    weir_status status = WEIR_ERR_OUT_OF_MEMORY;
    if (block == NULL || kv == NULL || position == NULL || sequence == NULL) goto done;
    for (uint32_t i = 0; i < n; i++) {
        kv[i] = (dev_kv){block, block + k_bytes, o->kv_dtype, capacity};
        position[i] = (int32_t)(prompt ? TEXT_TOKENS / 2 + i : TEXT_TOKENS);
        sequence[i] = prompt ? 0 : i;
    }
    dev_op op = {.code = DEV_ATTENTION,
                 .n_rows = n,
                 .cols = row,
                 .a = {block + k_bytes + v_bytes, row * sizeof(float)},
                 .out = {block + k_bytes + v_bytes + q_bytes, row * sizeof(float)},
                 .n_heads = h->n_heads,
                 .n_kv_heads = h->n_kv_heads,
                 .head_dim = h->head_dim,
                 .f = {0.125f, 0},
                 .position = position,
                 .sequence = sequence,
                 .kv = kv};
    status = b->device->table->reserve_workspace(b->device, b->op.cols, capacity, h->head_dim, err);
    double best = 1e9;
    for (int i = 0; i < ROUNDS && status == WEIR_OK; i++) {
        double start = base_now(b->env);
        status = b->device->table->run(b->device, &op, err);
        double took = base_now(b->env) - start;
        if (took < best) best = took;
    }
    *seconds = best;
done:
    base_free(b->env, sequence);
    base_free(b->env, position);
    base_free(b->env, kv);
    base_pages_free(b->env, BASE_TAG_RUNTIME, block, bytes);
    return status;
}

/* Bytes of weights that a pass of so many rows works off per second when all are in memory. */
static weir_status compute_rate(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                                uint32_t n_rows, rt_timed *out, weir_error *err)
{
    for (uint32_t i = 0; i < m->n_timed; i++) {
        if (m->timed[i].n_rows != n_rows || m->timed[i].n_threads != o->n_threads) continue;
        *out = m->timed[i];
        return WEIR_OK;
    }
    row_products b = {.env = m->env, .device = device, .n_rows = n_rows};
    row_spread pass = {.middle = 0};
    double small = 0, attention = 0;
    weir_status status = row_products_init(&b, m, o, plan, err);
    if (status == WEIR_OK) status = products_time(&b, &pass, err);
    if (status == WEIR_OK) status = rt_time_small(b.env, b.device, &b.op, b.block, &small, err);
    if (status == WEIR_OK) status = attention_time(&b, m, o, n_rows > plan->max_batch, &attention, err);
    products_finish(&b);
    if (status != WEIR_OK) return status;
    uint32_t n_layers = lm_model_hparams(m->lm)->n_layers, products = RT_PRODUCTS_PER_LAYER * n_layers + 1;
    double bytes = (double)base_max(plan->view.weight_bytes_per_pass, 1);
    double scale = bytes / ((double)b.n_matrices * (double)b.matrix_bytes);
    /* Rows that were left out take as long as those that were timed. */
    double rows = (double)n_rows / b.n_rows;
    double others = plan->n_ops > products ? small * (plan->n_ops - products) : 0;
    double all = others + attention * n_layers;
    *out = (rt_timed){.n_rows = n_rows,
                      .n_threads = o->n_threads,
                      .bare = bytes / (rows * (scale * pass.middle + others) + 1e-9),
                      .best = bytes / (rows * (scale * pass.best + all) + 1e-9),
                      .middle = bytes / (rows * (scale * pass.middle + all) + 1e-9),
                      .worst = bytes / (rows * (scale * pass.worst + all) + 1e-9)};
    if (m->n_timed < RT_MAX_TIMED) m->timed[m->n_timed++] = *out;
    return WEIR_OK;
}

/* The head is computed for a prompt's last row alone: its share of a pass's weights. */
static double head_share(const weir_model *m, const rt_plan *plan)
{
    const fmt_tensor *head = fmt_model_find_tensor(m->file, "output.weight");
    if (head == NULL) head = fmt_model_find_tensor(m->file, "token_embd.weight");
    double share =
        head != NULL ? (double)head->bytes / (double)base_max(plan->view.weight_bytes_per_pass, 1) : 0;
    return share < 0.95 ? share : 0.95;
}

/* Seconds of a pass whose rates are those of one row times factors. What a tile costs beside its products,
 * the reading above all, is the same for any number of rows. */
static weir_status played(const weir_model *m, const rt_plan *plan, const mem_speed *one, double compute,
                          double storage, double *seconds, weir_error *err)
{
    mem_speed s = *one;
    s.compute_bytes_per_s *= compute;
    s.storage_bytes_per_s *= storage;
    if (one->tile_bytes_per_s > 0) {
        double beside = 1 / one->tile_bytes_per_s - 1 / one->compute_bytes_per_s;
        s.tile_bytes_per_s = 1 / (1 / s.compute_bytes_per_s + (beside > 0 ? beside : 0));
    }
    weir_status status = mem_plan_predict(m->component, &plan->memory, &s, seconds, err);
    if (!(*seconds > 0)) *seconds = 1e-9;
    return status;
}

/* Rows a pass: the likely rate and its range. */
static weir_status rate_of(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                           const mem_speed *speed, uint32_t n_rows, weir_rate *out, weir_error *err)
{
    rt_timed one, rows;
    double best = 0, middle = 0, worst = 0;
    const base_storage *s = &m->storage;
    double slow = s->random_bytes_per_s > 0 && s->random_bytes_per_s < s->bytes_per_s
                      ? s->random_bytes_per_s / s->bytes_per_s
                      : 1;
    weir_status status = compute_rate(m, device, o, plan, 1, &one, err);
    if (status == WEIR_OK) status = compute_rate(m, device, o, plan, n_rows, &rows, err);
    if (status != WEIR_OK) return status;
    double head = n_rows > plan->max_batch ? head_share(m, plan) : 0;
    double factor[] = {1 / (head + (1 - head) * one.bare / rows.best),
                       1 / (head + (1 - head) * one.bare / rows.middle),
                       1 / (head + (1 - head) * one.bare / rows.worst)};
    status = played(m, plan, speed, factor[0], 1, &best, err);
    if (status == WEIR_OK) status = played(m, plan, speed, factor[1], 1, &middle, err);
    if (status == WEIR_OK) status = played(m, plan, speed, factor[2], slow, &worst, err);
    if (status != WEIR_OK) return status;
    *out = (weir_rate){.low = n_rows / (worst * (1 + MODEL_ERROR)),
                       .likely = n_rows / middle,
                       .high = n_rows / (best * (1 - MODEL_ERROR))};
    return WEIR_OK;
}

weir_status rt_predict_rows(weir_model *m, const rt_options *o, const rt_plan *plan, const mem_speed *speed,
                            weir_prediction *out, weir_error *err)
{
    base_ledger_view none;
    dev_device *device;
    const weir_plan *v = &plan->view;
    rt_ledger_read(m->context, &none);
    weir_status status = rt_device_create(m, o, &none, &device, err);
    if (status != WEIR_OK) return status;
    out->prefill_rows = v->prefill_chunk;
    status = rate_of(m, device, o, plan, speed, 1, &out->decode, err);
    out->all_sessions = out->prefill = out->decode;
    if (status == WEIR_OK && plan->max_batch > 1)
        status = rate_of(m, device, o, plan, speed, plan->max_batch, &out->all_sessions, err);
    if (status == WEIR_OK && v->prefill_chunk > 1)
        status = rate_of(m, device, o, plan, speed, v->prefill_chunk, &out->prefill, err);
    dev_destroy(device);
    return status;
}
