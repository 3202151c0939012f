/* Operations of language models on an OpenCL device: arguments of kernels (src/kernels/gpu), and how many
 * items each call has. */
#include "dev_opencl_internal.h"

#include <string.h>

#define LANES           16u
#define TOKENS          8u /* GPU_TOKENS: of one item of the kernels for several tokens */
#define WORKSPACE_LEAST ((uint64_t)1 << 20)
#define PAIRS_LEAST     64u /* (row, head) pairs whose scores the work space holds */
#define PAIR_HEAD       32u /* floats in front of a pair's scores */

/* ---- arguments ---- */
static void arg_put(opencl_call *c, size_t bytes, const void *value)
{
    cl_int rc;

    if (c->status != WEIR_OK) return;
    rc = c->d->api->SetKernelArg(c->kernel, c->n++, bytes, value);
    if (rc != CL_SUCCESS) c->status = opencl_fail(c->d, rc, "SetKernelArg", c->err);
}
void opencl_arg_address(opencl_call *c, const void *address)
{
    cl_mem mem = NULL;
    uint64_t offset = 0;

    if (address != NULL && c->status == WEIR_OK)
        c->status = opencl_lookup(c->d, address, 0, &mem, &offset, c->err);
    arg_put(c, sizeof(mem), &mem);
    opencl_arg_u64(c, offset);
}
void opencl_arg_u32(opencl_call *c, uint32_t x)
{
    cl_uint value = x;

    arg_put(c, sizeof(value), &value);
}
void opencl_arg_u64(opencl_call *c, uint64_t x)
{
    cl_ulong value = x;

    arg_put(c, sizeof(value), &value);
}
void opencl_arg_f32(opencl_call *c, float x)
{
    cl_float value = x;

    arg_put(c, sizeof(value), &value);
}

weir_status opencl_enqueue(opencl_call *c, size_t x, size_t y, size_t local)
{
    size_t wanted[2] = {(x + local - 1) / local * local, y}, group[2] = {local, 1};
    cl_int rc;

    if (c->status != WEIR_OK || x == 0 || y == 0) return c->status;
    opencl_turn_begin(c->d, DEV_STREAM_COMPUTE);
    rc = c->d->api->EnqueueNDRangeKernel(c->d->stream[DEV_STREAM_COMPUTE].queue, c->kernel, 2, NULL, wanted,
                                         group, 0, NULL, NULL);
    opencl_turn_end(c->d, DEV_STREAM_COMPUTE);
    if (rc == CL_SUCCESS) return WEIR_OK;
    return opencl_fail(c->d, rc, "EnqueueNDRangeKernel", c->err);
}

static opencl_call call_begin(opencl_device *d, cl_kernel kernel, weir_error *err)
{
    return (opencl_call){.d = d, .kernel = kernel, .status = WEIR_OK, .err = err};
}
/* A matrix of floats: address, then floats between rows. */
static void arg_floats(opencl_call *c, dev_view v)
{
    opencl_arg_address(c, v.data);
    opencl_arg_u64(c, v.stride / sizeof(float));
}
static void arg_bytes(opencl_call *c, dev_view v)
{
    opencl_arg_address(c, v.data);
    opencl_arg_u64(c, v.stride);
}
static void *row_of(dev_view v, size_t r)
{
    return (void *)((uintptr_t)v.data + r * v.stride);
}

/* ---- work space ---- */
static uint64_t pair_floats(uint32_t n_positions)
{
    return base_align_up((uint64_t)n_positions, LANES) + PAIR_HEAD;
}

uint64_t opencl_workspace_bytes(const dev_device *device, size_t k, uint32_t n_positions, uint32_t head_dim)
{
    (void)device;
    (void)k;
    (void)head_dim;
    return base_max(WORKSPACE_LEAST, pair_floats(n_positions) * sizeof(float) * PAIRS_LEAST);
}

weir_status opencl_reserve_workspace(dev_device *device, size_t k, uint32_t n_positions, uint32_t head_dim,
                                     weir_error *err)
{
    opencl_device *d = opencl_of(device);
    uint64_t bytes = opencl_workspace_bytes(device, k, n_positions, head_dim);
    weir_status status;

    if (bytes <= d->workspace_bytes) return WEIR_OK;
    status = opencl_drain(d, DEV_STREAM_COMPUTE, err);
    if (status != WEIR_OK) return status;
    /* The old one goes first, so that both are never there together. */
    opencl_free(device, d->workspace);
    d->workspace = NULL;
    status = opencl_alloc(device, bytes, "work space", &d->workspace, err);
    if (status == WEIR_OK) d->workspace_bytes = bytes;
    return status; /* after a refusal, use takes it again as large as it was */
}

static weir_status take_workspace(opencl_device *d, weir_error *err)
{
    if (d->workspace_bytes == 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "device opencl:%u: work space was not reserved", d->index);
    if (d->workspace != NULL) return WEIR_OK;
    return opencl_alloc(&d->device, d->workspace_bytes, "work space", &d->workspace, err);
}

/* ---- one operation each ---- */
static weir_status run_matmul(opencl_device *d, const dev_op *op, weir_error *err)
{
    bool several = op->n_rows > TOKENS / 2;
    size_t rows = op->row_end - op->row_begin,
           groups = several ? (op->n_rows + TOKENS - 1) / TOKENS : op->n_rows;
    opencl_call c = call_begin(d, (several ? d->kernel.matmuls : d->kernel.matmul)[op->dtype], err);

    if (op->packed_rows != 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "device opencl:%u was given packed rows", d->index);
    arg_bytes(&c, op->w);
    opencl_arg_u32(&c, (uint32_t)op->cols);
    arg_bytes(&c, op->a);
    opencl_arg_u32(&c, (uint32_t)op->n_rows);
    opencl_arg_address(&c, (float *)op->out.data + op->row_begin);
    opencl_arg_u64(&c, op->out.stride / sizeof(float));
    opencl_arg_address(&c, op->bias != NULL ? op->bias + op->row_begin : NULL);
    opencl_arg_u32(&c, op->bias != NULL);
    opencl_arg_u32(&c, (uint32_t)rows);
    return opencl_enqueue(&c, rows, groups, d->local_size);
}

static weir_status run_dequant(opencl_device *d, const dev_op *op, weir_error *err)
{
    opencl_call c = call_begin(d, d->kernel.dequant[op->dtype], err);

    arg_bytes(&c, op->a);
    arg_floats(&c, op->out);
    opencl_arg_u32(&c, (uint32_t)op->cols);
    opencl_arg_f32(&c, op->f[0]);
    return opencl_enqueue(&c, op->cols / base_dtype_get(op->dtype)->block_elements, op->n_rows,
                          d->local_size);
}

static weir_status run_quant(opencl_device *d, const dev_op *op, weir_error *err)
{
    uint32_t per_d = kern_act_for(op->dtype) == KERN_ACT_Q32 ? 32 : 256;
    opencl_call c = call_begin(d, d->kernel.quantize, err);

    arg_floats(&c, op->a);
    arg_bytes(&c, op->out);
    opencl_arg_u32(&c, (uint32_t)op->cols);
    opencl_arg_u32(&c, per_d);
    return opencl_enqueue(&c, op->cols / per_d, op->n_rows, d->local_size);
}

/* As many norms at a time as the work space has lanes for. */
static weir_status run_rms_norm(opencl_device *d, const dev_op *op, weir_error *err)
{
    size_t per_row = op->cols / op->group, n = op->n_rows * per_row;
    size_t together = (size_t)(d->workspace_bytes / (LANES * sizeof(float)));
    weir_status status = take_workspace(d, err);

    for (size_t first = 0; first < n && status == WEIR_OK; first += together) {
        size_t count = base_min(together, n - first);
        opencl_call c = call_begin(d, d->kernel.norm_lanes, err);

        arg_floats(&c, op->a);
        opencl_arg_u32(&c, (uint32_t)op->group);
        opencl_arg_u32(&c, (uint32_t)per_row);
        opencl_arg_u32(&c, (uint32_t)first);
        opencl_arg_address(&c, d->workspace);
        status = opencl_enqueue(&c, LANES, count, LANES);
        if (status != WEIR_OK) return status;
        c = call_begin(d, d->kernel.norm, err);
        arg_floats(&c, op->a);
        opencl_arg_u32(&c, (uint32_t)op->group);
        opencl_arg_u32(&c, (uint32_t)per_row);
        opencl_arg_u32(&c, (uint32_t)first);
        opencl_arg_address(&c, d->workspace);
        opencl_arg_address(&c, op->w.data);
        opencl_arg_f32(&c, op->f[1]);
        opencl_arg_f32(&c, op->f[0]);
        arg_floats(&c, op->out);
        status = opencl_enqueue(&c, op->group, count, d->local_size);
    }
    return status;
}

/* Room for bytes that stay until the device has read them; waits for the device when all of it is in use. */
static weir_status staging_take(opencl_device *d, size_t bytes, uint8_t **out, weir_error *err)
{
    if (bytes > OPENCL_STAGING_BYTES) return base_fail(err, WEIR_ERR_INTERNAL, "staging of %zu bytes", bytes);
    if (d->staging_used + bytes > OPENCL_STAGING_BYTES) {
        weir_status status = opencl_drain(d, DEV_STREAM_COMPUTE, err);

        if (status != WEIR_OK) return status;
        d->staging_used = 0;
    }
    *out = d->staging + d->staging_used;
    d->staging_used += base_align_up(bytes, 16);
    return WEIR_OK;
}

/* The tables are made of double arithmetic, which devices need not have: made here, and copied. */
static weir_status run_rope_table(opencl_device *d, const dev_op *op, weir_error *err)
{
    size_t bytes = op->n_rot * sizeof(float);

    for (size_t r = 0; r < op->n_rows; r++) {
        uint8_t *staging = NULL;
        uint64_t offset;
        cl_mem mem;
        cl_int rc;
        weir_status status = opencl_lookup(d, row_of(op->out, r), bytes, &mem, &offset, err);

        if (status == WEIR_OK) status = staging_take(d, bytes, &staging, err);
        if (status != WEIR_OK) return status;
        kern_rope_table(op->position[r], op->inv_freq, op->n_rot / 2, op->mscale, (float *)(void *)staging);
        opencl_turn_begin(d, DEV_STREAM_COMPUTE);
        rc = d->api->EnqueueWriteBuffer(d->stream[DEV_STREAM_COMPUTE].queue, mem, CL_FALSE, (size_t)offset,
                                        bytes, staging, 0, NULL, NULL);
        opencl_turn_end(d, DEV_STREAM_COMPUTE);
        if (rc != CL_SUCCESS) return opencl_fail(d, rc, "EnqueueWriteBuffer", err);
    }
    return WEIR_OK;
}

static weir_status run_rope(opencl_device *d, const dev_op *op, weir_error *err)
{
    opencl_call c = call_begin(d, d->kernel.rope, err);

    arg_floats(&c, op->out);
    arg_floats(&c, op->b);
    opencl_arg_u32(&c, op->n_heads);
    opencl_arg_u32(&c, op->head_dim);
    opencl_arg_u32(&c, op->n_rot);
    opencl_arg_u32(&c, op->neox);
    return opencl_enqueue(&c, (size_t)op->n_heads * (op->n_rot / 2), op->n_rows, d->local_size);
}

/* Rows from r on that follow each other in one sequence: one call. */
static size_t rows_together(const dev_op *op, size_t r)
{
    size_t n = 1;

    while (r + n < op->n_rows && op->sequence[r + n] == op->sequence[r] &&
           op->position[r + n] == op->position[r] + (int32_t)n)
        n++;
    return n;
}

static weir_status run_kv_store(opencl_device *d, const dev_op *op, weir_error *err)
{
    weir_status status = WEIR_OK;

    for (size_t r = 0, n; r < op->n_rows && status == WEIR_OK; r += n) {
        const dev_kv *kv = &op->kv[op->sequence[r]];
        opencl_call c = call_begin(d, d->kernel.kv_store, err);

        n = base_min(rows_together(op, r), kv->capacity);
        opencl_arg_address(&c, row_of(op->a, r));
        opencl_arg_u64(&c, op->a.stride / sizeof(float));
        opencl_arg_address(&c, row_of(op->b, r));
        opencl_arg_u64(&c, op->b.stride / sizeof(float));
        opencl_arg_address(&c, kv->k);
        opencl_arg_address(&c, kv->v);
        opencl_arg_u32(&c, kv->dtype == BASE_F16);
        opencl_arg_u32(&c, kv->capacity);
        opencl_arg_u32(&c, op->n_kv_heads);
        opencl_arg_u32(&c, op->head_dim);
        opencl_arg_u32(&c, (uint32_t)op->position[r]);
        status = opencl_enqueue(&c, (size_t)op->n_kv_heads * op->head_dim, n, d->local_size);
    }
    return status;
}

/* Rows of one sequence that follow each other; pairs of row and head in turns that fit the work space. */
typedef struct attention_turn {
    const dev_op *op;
    const dev_kv *kv;
    size_t row;
    uint32_t last, pair, n_pairs, most; /* most: positions that the last row sees */
    uint32_t stride;
} attention_turn;

static void arg_lanes(opencl_call *c, const attention_turn *t)
{
    opencl_arg_u32(c, t->op->n_heads);
    opencl_arg_u32(c, t->last);
    opencl_arg_u32(c, t->op->window);
    opencl_arg_u32(c, t->pair);
    opencl_arg_address(c, c->d->workspace);
    opencl_arg_u32(c, t->stride);
}

static void arg_cache(opencl_call *c, const attention_turn *t, const void *cache)
{
    opencl_arg_address(c, cache);
    opencl_arg_u32(c, t->kv->dtype == BASE_F16);
    opencl_arg_u32(c, t->kv->capacity);
    opencl_arg_u32(c, t->op->n_heads);
    opencl_arg_u32(c, t->op->n_kv_heads);
    opencl_arg_u32(c, t->op->head_dim);
    opencl_arg_u32(c, t->last);
    opencl_arg_u32(c, t->op->window);
}

static weir_status attention_turn_run(opencl_device *d, const attention_turn *t, weir_error *err)
{
    opencl_call c = call_begin(d, d->kernel.attention_scores, err);
    weir_status status;

    opencl_arg_address(&c, row_of(t->op->a, t->row));
    opencl_arg_u64(&c, t->op->a.stride / sizeof(float));
    arg_cache(&c, t, t->kv->k);
    opencl_arg_f32(&c, t->op->f[0]);
    opencl_arg_f32(&c, t->op->f[1]);
    opencl_arg_u32(&c, t->pair);
    opencl_arg_address(&c, d->workspace);
    opencl_arg_u32(&c, t->stride);
    status = opencl_enqueue(&c, t->most, t->n_pairs, d->local_size);
    if (status != WEIR_OK) return status;
    c = call_begin(d, d->kernel.attention_max, err);
    arg_lanes(&c, t);
    status = opencl_enqueue(&c, LANES, t->n_pairs, LANES);
    if (status != WEIR_OK) return status;
    c = call_begin(d, d->kernel.attention_weights, err);
    arg_lanes(&c, t);
    status = opencl_enqueue(&c, LANES, t->n_pairs, LANES);
    if (status != WEIR_OK) return status;
    c = call_begin(d, d->kernel.attention_values, err);
    arg_cache(&c, t, t->kv->v);
    opencl_arg_u32(&c, t->pair);
    opencl_arg_address(&c, d->workspace);
    opencl_arg_u32(&c, t->stride);
    opencl_arg_address(&c, row_of(t->op->out, t->row));
    opencl_arg_u64(&c, t->op->out.stride / sizeof(float));
    return opencl_enqueue(&c, t->op->head_dim, t->n_pairs, d->local_size);
}

static weir_status run_attention(opencl_device *d, const dev_op *op, weir_error *err)
{
    weir_status status = take_workspace(d, err);

    for (size_t r = 0, n; r < op->n_rows && status == WEIR_OK; r += n) {
        attention_turn t = {
            .op = op, .kv = &op->kv[op->sequence[r]], .row = r, .last = (uint32_t)op->position[r]};
        uint64_t pairs, fit;

        n = rows_together(op, r);
        t.most = t.last + (uint32_t)n;
        if (op->window != 0) t.most = (uint32_t)base_min(t.most, op->window);
        t.stride = (uint32_t)pair_floats(t.most);
        pairs = (uint64_t)n * op->n_heads;
        fit = d->workspace_bytes / sizeof(float) / t.stride;
        if (fit == 0)
            return base_fail(err, WEIR_ERR_INTERNAL, "attention over %u positions, work space of %llu bytes",
                             t.most, (unsigned long long)d->workspace_bytes);
        for (uint64_t p = 0; p < pairs && status == WEIR_OK; p += fit) {
            t.pair = (uint32_t)p;
            t.n_pairs = (uint32_t)base_min(fit, pairs - p);
            status = attention_turn_run(d, &t, err);
        }
    }
    return status;
}

static weir_status run_elementwise(opencl_device *d, const dev_op *op, weir_error *err)
{
    opencl_call c;

    switch (op->code) {
    case DEV_GLU:
        c = call_begin(d, d->kernel.glu, err);
        arg_floats(&c, op->a);
        arg_floats(&c, op->b);
        arg_floats(&c, op->out);
        opencl_arg_u32(&c, (uint32_t)op->cols);
        opencl_arg_u32(&c, op->gelu);
        break;
    case DEV_ADD:
        c = call_begin(d, d->kernel.add, err);
        arg_floats(&c, op->a);
        arg_floats(&c, op->b);
        arg_floats(&c, op->out);
        opencl_arg_u32(&c, (uint32_t)op->cols);
        break;
    default:
        c = call_begin(d, op->code == DEV_SOFTCAP ? d->kernel.softcap : d->kernel.scale, err);
        arg_floats(&c, op->out);
        opencl_arg_u32(&c, (uint32_t)op->cols);
        opencl_arg_f32(&c, op->f[0]);
        break;
    }
    return opencl_enqueue(&c, op->cols, op->n_rows, d->local_size);
}

/* Rows whose numbers ascend by one go together. */
static weir_status run_copy_rows(opencl_device *d, const dev_op *op, weir_error *err)
{
    weir_status status = WEIR_OK;

    for (size_t r = 0, n; r < op->n_rows && status == WEIR_OK; r += n) {
        opencl_call c = call_begin(d, d->kernel.copy_rows, err);

        for (n = 1; r + n < op->n_rows && op->index[r + n] == op->index[r] + n;) n++;
        opencl_arg_address(&c, row_of(op->a, op->index[r]));
        opencl_arg_u64(&c, op->a.stride / sizeof(float));
        opencl_arg_address(&c, row_of(op->out, r));
        opencl_arg_u64(&c, op->out.stride / sizeof(float));
        opencl_arg_u32(&c, (uint32_t)op->cols);
        status = opencl_enqueue(&c, op->cols, n, d->local_size);
    }
    return status;
}

weir_status opencl_run(dev_device *device, const dev_op *op, weir_error *err)
{
    opencl_device *d = opencl_of(device);

    if (op->n_rows == 0) return WEIR_OK;
    if ((op->code == DEV_DEQUANT || op->code == DEV_MATMUL) && kern_act_for(op->dtype) == KERN_ACT_NONE)
        return base_fail(err, WEIR_ERR_INTERNAL, "device opencl:%u: no %s with weights of type %u", d->index,
                         dev_op_name(op->code), op->dtype);
    switch (op->code) {
    case DEV_DEQUANT: return run_dequant(d, op, err);
    case DEV_QUANT: return run_quant(d, op, err);
    case DEV_MATMUL: return run_matmul(d, op, err);
    case DEV_RMS_NORM: return run_rms_norm(d, op, err);
    case DEV_ROPE_TABLE: return run_rope_table(d, op, err);
    case DEV_ROPE: return run_rope(d, op, err);
    case DEV_KV_STORE: return run_kv_store(d, op, err);
    case DEV_ATTENTION: return run_attention(d, op, err);
    case DEV_COPY_ROWS: return run_copy_rows(d, op, err);
    case DEV_GLU:
    case DEV_ADD:
    case DEV_SOFTCAP:
    case DEV_SCALE: return run_elementwise(d, op, err);
    default:
        return base_fail(err, WEIR_ERR_INTERNAL, "device opencl:%u knows no operation %d", d->index,
                         (int)op->code);
    }
}
