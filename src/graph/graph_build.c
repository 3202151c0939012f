/* Building a program: values, tensors and operations are appended; errors stick and come out at the end.
 *
 * Products read activations in a form the device chooses, so a QUANT operation is put in once per value and
 * form. Norm weights and biases in half precision are widened into a one-row tensor right before use: the
 * half-precision model never exists in float32 as a whole (R6.3). */
#include "graph_internal.h"

#include <string.h>

static bool failed(const graph_program *p)
{
    return p->error.code != WEIR_OK || p->finished;
}

static graph_id give_up(graph_program *p)
{
    if (p->error.code == WEIR_OK) p->error.code = WEIR_ERR_INTERNAL;
    return -1;
}

weir_status graph_program_create(base_env *env, dev_device *dev, mem_component *c,
                                 const graph_options *options, graph_program **out, weir_error *err)
{
    graph_program *p;

    if (options->max_rows == 0 || options->max_outputs == 0 || options->max_outputs > options->max_rows)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a program of %u rows and %u outputs: both must be at least 1, outputs at most rows",
                         options->max_rows, options->max_outputs);
    p = base_alloc(env, BASE_TAG_METADATA, sizeof(*p), err);
    if (p == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    p->env = env;
    p->dev = dev;
    p->component = c;
    p->options = *options;
    p->first_output_op = GRAPH_NONE;
    *out = p;
    return WEIR_OK;
}

void graph_program_destroy(graph_program *p)
{
    if (p == NULL) return;
    if (p->source != NULL)
        mem_source_free(p->source, p->arena);
    else if (p->arena != NULL)
        base_pages_free(p->env, BASE_TAG_ACTIVATIONS, p->arena, base_max(p->info.arena_bytes, 1));
    if (p->gathered != NULL)
        base_pages_free(p->env, BASE_TAG_ACTIVATIONS, p->gathered, base_max(p->info.staging_bytes, 1));
    if (p->results != NULL)
        base_pages_free(p->env, BASE_TAG_ACTIVATIONS, p->results, p->tensors[p->result].bytes);
    base_free(p->env, p->roots);
    base_free(p->env, p->order);
    base_free(p->env, p->ops);
    base_free(p->env, p->values);
    base_free(p->env, p->tensors);
    base_free(p->env, p);
}

/* Makes room for one more item; the new size is in *cap. */
static bool grow(graph_program *p, void **items, uint32_t n, uint32_t *cap, size_t size)
{
    uint32_t wanted = *cap < 32 ? 64 : *cap * 2;
    uint64_t bytes;
    void *bigger;

    if (n < *cap) return true;
    if (*cap > UINT32_MAX / 4 || !base_mul(wanted, size, &bytes)) {
        base_fail(&p->error, WEIR_ERR_INVALID_ARGUMENT, "a program of more than %u items", *cap);
        return false;
    }
    bigger = base_realloc(p->env, BASE_TAG_METADATA, *items, (size_t)bytes, &p->error);
    if (bigger == NULL) return false;
    *items = bigger;
    *cap = wanted;
    return true;
}

static uint32_t rows_of(const graph_program *p, graph_rows rows)
{
    if (rows == GRAPH_ROWS_ONE) return 1;
    return rows == GRAPH_ROWS_ALL ? p->options.max_rows : p->options.max_outputs;
}

/* A tensor that the next operation writes. GRAPH_NONE on failure. */
static uint32_t new_tensor(graph_program *p, graph_rows rows, uint64_t row_bytes)
{
    graph_tensor t = {.rows = rows, .first = p->n_ops, .last = p->n_ops, .root = p->n_tensors};

    if (row_bytes == 0 || row_bytes > UINT32_MAX ||
        !base_mul(base_align_up(row_bytes, GRAPH_ALIGN), rows_of(p, rows), &t.bytes)) {
        base_fail(&p->error, WEIR_ERR_INVALID_ARGUMENT, "activations of %llu bytes a row do not fit",
                  (unsigned long long)row_bytes);
        return GRAPH_NONE;
    }
    t.stride = base_align_up(row_bytes, GRAPH_ALIGN);
    if (!grow(p, (void **)&p->tensors, p->n_tensors, &p->tensor_cap, sizeof(t))) return GRAPH_NONE;
    p->tensors[p->n_tensors] = t;
    return p->n_tensors++;
}

static graph_id new_value(graph_program *p, uint32_t tensor, uint32_t cols)
{
    if (tensor == GRAPH_NONE || p->n_values == INT32_MAX ||
        !grow(p, (void **)&p->values, p->n_values, &p->value_cap, sizeof(graph_value)))
        return give_up(p);
    p->values[p->n_values] = (graph_value){.tensor = tensor, .cols = cols};
    return (graph_id)p->n_values++;
}

/* A value that an operation is about to read; NULL (and the error set) when it cannot be. */
static graph_value *value_of(graph_program *p, graph_id id, const char *operation)
{
    if (id < 0 || (uint32_t)id >= p->n_values) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "%s reads the unknown activation %d", operation, id);
        return NULL;
    }
    if (p->values[id].gone) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "%s reads activation %d, which was rewritten in place",
                  operation, id);
        return NULL;
    }
    return &p->values[id];
}

static graph_op op_of(const graph_program *p, dev_opcode code)
{
    graph_op op = {.dev = {.code = code}, .a = GRAPH_NONE, .b = GRAPH_NONE, .out = GRAPH_NONE};

    op.w.id = op.bias.id = MEM_NO_WEIGHT;
    op.w_tensor = op.bias_tensor = GRAPH_NONE;
    op.phase = p->n_phases > 0 ? p->n_phases - 1 : 0;
    return op;
}

static void touch(graph_program *p, uint32_t tensor)
{
    if (tensor != GRAPH_NONE) p->tensors[tensor].last = p->n_ops;
}

/* Appends an operation; it works on the rows of what it writes (KV_STORE: of what it reads). */
static bool push(graph_program *p, graph_op op)
{
    uint32_t rows_from = op.dev.code == DEV_KV_STORE ? op.a : op.out;

    if (failed(p) || rows_from == GRAPH_NONE) return false;
    if (!grow(p, (void **)&p->ops, p->n_ops, &p->op_cap, sizeof(op))) return false;
    op.rows = p->tensors[rows_from].rows;
    touch(p, op.a);
    touch(p, op.b);
    touch(p, op.out);
    touch(p, op.w_tensor);
    touch(p, op.bias_tensor);
    p->ops[p->n_ops++] = op;
    return true;
}

/* Appends an operation that writes a new tensor of `cols` floats a row; the id of its value. */
static graph_id push_new(graph_program *p, graph_op op, graph_rows rows, uint32_t cols)
{
    op.out = new_tensor(p, rows, (uint64_t)cols * sizeof(float));
    op.dev.cols = op.dev.cols != 0 ? op.dev.cols : cols;
    return push(p, op) ? new_value(p, op.out, cols) : give_up(p);
}

/* Appends an operation that rewrites x's tensor; x is gone afterwards. */
static graph_id push_in_place(graph_program *p, graph_op op, graph_id x)
{
    graph_value v = p->values[x];

    op.a = op.out = v.tensor;
    op.dev.cols = v.cols;
    if (!push(p, op)) return give_up(p);
    p->values[x].gone = true;
    return new_value(p, v.tensor, v.cols);
}

/* A weight as one row of floats: GRAPH_NONE where it lies in memory so, else a tensor filled from it. */
static bool widen(graph_program *p, graph_weight w, const char *what, uint32_t *tensor)
{
    graph_op op = op_of(p, DEV_DEQUANT);

    *tensor = GRAPH_NONE;
    if (w.dtype == BASE_F32) return true;
    if (w.dtype != BASE_F16 && w.dtype != BASE_BF16) {
        const char *name = base_dtype_get(w.dtype)->name;

        base_fail(&p->error, WEIR_ERR_UNSUPPORTED, "a %s of type %s; F32, F16 and BF16 are supported", what,
                  name != NULL ? name : "unknown");
        return false;
    }
    op.dev.dtype = w.dtype;
    op.dev.cols = w.cols;
    op.dev.f[0] = 1.0f;
    op.w = w;
    op.widen = true;
    op.out = new_tensor(p, GRAPH_ROWS_ONE, (uint64_t)w.cols * sizeof(float));
    *tensor = op.out;
    return push(p, op);
}

graph_id graph_embed(graph_program *p, graph_weight table, float scale)
{
    graph_op op = op_of(p, DEV_DEQUANT);
    uint64_t row_bytes;

    if (failed(p)) return give_up(p);
    if (!base_dtype_row_bytes(table.dtype, table.cols, &row_bytes)) {
        base_fail(&p->error, WEIR_ERR_FORMAT, "embedding rows of %u elements are no whole blocks of %s",
                  table.cols, base_dtype_get(table.dtype)->name);
        return -1;
    }
    op.a = new_tensor(p, GRAPH_ROWS_ALL, row_bytes);
    if (op.a == GRAPH_NONE) return give_up(p);
    p->info.staging_bytes += p->tensors[op.a].bytes;
    op.dev.dtype = table.dtype;
    op.dev.f[0] = scale;
    op.w = table;
    op.gather = true;
    return push_new(p, op, GRAPH_ROWS_ALL, table.cols);
}

graph_id graph_rms_norm(graph_program *p, graph_id x, graph_weight w, uint32_t group, float eps, float offset)
{
    graph_op op = op_of(p, DEV_RMS_NORM);
    graph_value *v;

    if (failed(p) || (v = value_of(p, x, "rms_norm")) == NULL) return give_up(p);
    if (group == 0) group = v->cols;
    if (v->cols % group != 0 || w.cols != group) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "rms_norm of %u columns in groups of %u with %u weights",
                  v->cols, group, w.cols);
        return -1;
    }
    if (!widen(p, w, "norm weight", &op.w_tensor)) return give_up(p);
    v = &p->values[x];
    op.a = v->tensor;
    op.w = w;
    op.dev.group = group;
    op.dev.f[0] = eps;
    op.dev.f[1] = offset;
    return push_new(p, op, p->tensors[v->tensor].rows, v->cols);
}

/* The tensor that a product with weights of dtype reads x from: quantized once per form. */
static uint32_t product_input(graph_program *p, graph_id x, uint32_t dtype)
{
    graph_value *v = &p->values[x];
    uint32_t form = p->dev->table->act_form(p->dev, dtype);
    graph_op op = op_of(p, DEV_QUANT);

    if (form == DEV_FORM_FLOATS) return v->tensor;
    if (form == DEV_FORM_NONE) {
        const char *name = base_dtype_get(dtype)->name;

        base_fail(&p->error, WEIR_ERR_UNSUPPORTED, "the device multiplies no weights of type %s",
                  name != NULL ? name : "unknown");
        return GRAPH_NONE;
    }
    for (uint32_t i = 0; i < v->n_quantized; i++)
        if (v->quantized[i].form == form) return v->quantized[i].tensor;
    op.a = v->tensor;
    op.dev.dtype = dtype;
    op.dev.cols = v->cols;
    op.out = new_tensor(p, p->tensors[v->tensor].rows, p->dev->table->act_row_bytes(p->dev, dtype, v->cols));
    if (!push(p, op)) return GRAPH_NONE;
    if (v->n_quantized < GRAPH_MAX_FORMS) {
        v->quantized[v->n_quantized].form = form;
        v->quantized[v->n_quantized++].tensor = op.out;
    }
    return op.out;
}

graph_id graph_matmul(graph_program *p, graph_id x, graph_weight w, graph_weight bias)
{
    graph_op op = op_of(p, DEV_MATMUL);
    const graph_value *v;
    uint64_t row_bytes, bytes;

    if (failed(p) || (v = value_of(p, x, "matmul")) == NULL) return give_up(p);
    if (w.cols != v->cols || w.n_rows == 0 || (bias.id != MEM_NO_WEIGHT && bias.cols != w.n_rows)) {
        base_fail(&p->error, WEIR_ERR_INTERNAL,
                  "product of %u columns with a weight of %u x %u and %u biases", v->cols, w.n_rows, w.cols,
                  bias.id != MEM_NO_WEIGHT ? bias.cols : 0);
        return -1;
    }
    if (!base_dtype_row_bytes(w.dtype, w.cols, &row_bytes) || !base_mul(row_bytes, w.n_rows, &bytes) ||
        !base_add(p->info.weight_bytes, bytes, &p->info.weight_bytes)) {
        base_fail(&p->error, WEIR_ERR_FORMAT, "weight rows of %u elements are no whole blocks of %s", w.cols,
                  base_dtype_get(w.dtype)->name);
        return -1;
    }
    if (p->first_output_op == GRAPH_NONE) p->info.inner_bytes = p->info.weight_bytes;
    p->info.macs_per_row += (uint64_t)w.n_rows * w.cols;
    if (w.cols > p->info.max_k) p->info.max_k = w.cols;
    op.a = product_input(p, x, w.dtype);
    if (op.a == GRAPH_NONE) return give_up(p);
    if (bias.id != MEM_NO_WEIGHT && !widen(p, bias, "bias", &op.bias_tensor)) return give_up(p);
    op.w = w;
    op.bias = bias;
    op.dev.dtype = w.dtype;
    op.dev.cols = w.cols;
    op.dev.w.stride = (size_t)row_bytes;
    return push_new(p, op, p->tensors[op.a].rows, w.n_rows);
}

graph_id graph_rope_table(graph_program *p, const double *inv_freq, uint32_t n_rot, double mscale)
{
    graph_op op = op_of(p, DEV_ROPE_TABLE);

    if (failed(p)) return give_up(p);
    op.dev.inv_freq = inv_freq;
    op.dev.n_rot = n_rot;
    op.dev.mscale = mscale;
    op.dev.f[0] = (float)mscale;
    return push_new(p, op, GRAPH_ROWS_ALL, n_rot);
}

graph_id graph_rope(graph_program *p, graph_id x, graph_id table, uint32_t head_dim, uint32_t n_rot,
                    bool neox)
{
    graph_op op = op_of(p, DEV_ROPE);
    const graph_value *v, *t;

    if (failed(p) || (v = value_of(p, x, "rope")) == NULL || (t = value_of(p, table, "rope")) == NULL)
        return give_up(p);
    if (head_dim == 0 || v->cols % head_dim != 0 || n_rot > head_dim || n_rot % 2 != 0 || t->cols != n_rot) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "rope of %u columns, heads of %u, %u of them rotated",
                  v->cols, head_dim, n_rot);
        return -1;
    }
    op.b = t->tensor;
    op.dev.n_heads = v->cols / head_dim;
    op.dev.head_dim = head_dim;
    op.dev.n_rot = n_rot;
    op.dev.neox = neox;
    return push_in_place(p, op, x);
}

graph_id graph_attention(graph_program *p, graph_id q, graph_id k, graph_id v,
                         const graph_attention_params *a)
{
    graph_op store = op_of(p, DEV_KV_STORE), attend = op_of(p, DEV_ATTENTION);
    const graph_value *vq, *vk, *vv;

    if (failed(p) || (vq = value_of(p, q, "attention")) == NULL ||
        (vk = value_of(p, k, "attention")) == NULL || (vv = value_of(p, v, "attention")) == NULL)
        return give_up(p);
    if (a->n_kv_heads == 0 || a->n_heads % a->n_kv_heads != 0 || a->layer == GRAPH_NONE ||
        vq->cols != (uint64_t)a->n_heads * a->head_dim || vk->cols != (uint64_t)a->n_kv_heads * a->head_dim ||
        vv->cols != vk->cols || p->first_output_op != GRAPH_NONE) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "attention of %u and %u heads of %u on %u, %u, %u columns",
                  a->n_heads, a->n_kv_heads, a->head_dim, vq->cols, vk->cols, vv->cols);
        return -1;
    }
    store.a = vk->tensor;
    store.b = vv->tensor;
    store.dev.cols = vk->cols;
    store.layer = attend.layer = a->layer;
    store.dev.n_kv_heads = attend.dev.n_kv_heads = a->n_kv_heads;
    store.dev.head_dim = attend.dev.head_dim = a->head_dim;
    store.dev.window = attend.dev.window = a->window;
    attend.a = vq->tensor;
    attend.dev.n_heads = a->n_heads;
    attend.dev.f[0] = a->scale;
    attend.dev.f[1] = a->softcap;
    if (a->layer >= p->max_layer) p->max_layer = a->layer + 1;
    if (!push(p, store)) return give_up(p);
    return push_new(p, attend, GRAPH_ROWS_ALL, vq->cols);
}

/* Elementwise on two values of one shape. */
static graph_id push_pair(graph_program *p, graph_op op, graph_id a, graph_id b)
{
    const graph_value *va, *vb;
    const char *name = dev_op_name(op.dev.code);

    if (failed(p) || (va = value_of(p, a, name)) == NULL || (vb = value_of(p, b, name)) == NULL)
        return give_up(p);
    if (va->cols != vb->cols || p->tensors[va->tensor].rows != p->tensors[vb->tensor].rows) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "%s of %u and %u columns, or of different rows", name,
                  va->cols, vb->cols);
        return -1;
    }
    op.a = va->tensor;
    op.b = vb->tensor;
    return push_new(p, op, p->tensors[va->tensor].rows, va->cols);
}

graph_id graph_glu(graph_program *p, graph_id gate, graph_id up, bool gelu)
{
    graph_op op = op_of(p, DEV_GLU);

    op.dev.gelu = gelu;
    return push_pair(p, op, gate, up);
}

graph_id graph_add(graph_program *p, graph_id a, graph_id b)
{
    return push_pair(p, op_of(p, DEV_ADD), a, b);
}

graph_id graph_scale(graph_program *p, graph_id x, float s)
{
    graph_op op = op_of(p, DEV_SCALE);

    if (failed(p) || value_of(p, x, "scale") == NULL) return give_up(p);
    op.dev.f[0] = s;
    return push_in_place(p, op, x);
}

graph_id graph_softcap(graph_program *p, graph_id x, float cap)
{
    graph_op op = op_of(p, DEV_SOFTCAP);

    if (failed(p) || value_of(p, x, "softcap") == NULL) return give_up(p);
    op.dev.f[0] = cap;
    return push_in_place(p, op, x);
}

graph_id graph_select_outputs(graph_program *p, graph_id x)
{
    graph_op op = op_of(p, DEV_COPY_ROWS);
    const graph_value *v;

    if (failed(p) || (v = value_of(p, x, "select_rows")) == NULL) return give_up(p);
    if (p->first_output_op == GRAPH_NONE) p->first_output_op = p->n_ops;
    op.a = v->tensor;
    return push_new(p, op, GRAPH_ROWS_OUTPUTS, v->cols);
}

void graph_mark_phase(graph_program *p, const char *name)
{
    if (failed(p)) return;
    if (p->n_phases == GRAPH_MAX_PHASES) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "more than %d phases", GRAPH_MAX_PHASES);
        return;
    }
    p->phases[p->n_phases++].name = name;
}

/* The weights of the products in the order of use, for the streamer. */
static bool collect_order(graph_program *p)
{
    size_t n = 0;

    for (uint32_t i = 0; i < p->n_ops; i++) n += p->ops[i].dev.code == DEV_MATMUL;
    p->order = base_alloc_array(p->env, BASE_TAG_METADATA, n, sizeof(*p->order), &p->error);
    if (p->order == NULL) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (i == p->first_output_op) p->n_order_inner = p->n_order;
        if (p->ops[i].dev.code == DEV_MATMUL) p->order[p->n_order++] = p->ops[i].w.id;
    }
    return true;
}

weir_status graph_finish(graph_program *p, graph_id result, weir_error *err)
{
    const graph_value *v;

    if (p->finished) return base_fail(err, WEIR_ERR_INTERNAL, "the program was finished before");
    if (failed(p) || (v = value_of(p, result, "the result")) == NULL) goto fail;
    if (p->n_phases == 0) p->phases[p->n_phases++].name = "program";
    p->result = v->tensor;
    p->tensors[v->tensor].last = p->n_ops; /* stays until the next run */
    if (p->first_output_op == GRAPH_NONE || p->tensors[v->tensor].rows != GRAPH_ROWS_OUTPUTS) {
        base_fail(&p->error, WEIR_ERR_INTERNAL, "the result does not come from graph_select_outputs");
        goto fail;
    }
    if (!collect_order(p) || graph_plan(p, &p->error) != WEIR_OK) goto fail;
    p->info.host_bytes = base_align_up(base_max(p->info.staging_bytes, 1), 4096) +
                         base_align_up(p->tensors[p->result].bytes, 4096);
    p->finished = true;
    if (!graph_is_valid(p))
        return base_fail(err, WEIR_ERR_INTERNAL, "the plan of the program contradicts itself");
    return WEIR_OK;

fail:
    return base_fail(err, p->error.code, "%s", p->error.message);
}

void graph_program_info(const graph_program *p, graph_info *out)
{
    *out = p->info;
}
