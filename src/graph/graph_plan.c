/* The arena's layout: which tensors may share memory, found from their lifetimes before anything runs.
 *
 *   offset ^   +--gate---+
 *          |   +---up--+ +--next--+      a tensor occupies its bytes from the operation that writes it
 *          | +----residual-----+         to the last one that touches it
 *          +-----------------------> operations
 *
 * Largest first, each tensor goes into the tightest gap that is free during its whole life. Beforehand,
 * operations whose input dies with them work in place. With alias off every tensor has memory of its own;
 * the results are the same bits. */
#include "graph_internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t root_of(const graph_program *p, uint32_t t)
{
    while (p->tensors[t].root != t) t = p->tensors[t].root;
    return t;
}

/* Lets op's output use the memory of `input` when that ends here and has the same shape. */
static bool merge(graph_program *p, uint32_t i, uint32_t input)
{
    graph_tensor *out = &p->tensors[p->ops[i].out];
    uint32_t root = root_of(p, input);
    graph_tensor *in = &p->tensors[root];

    if (in->last != i || in->rows != out->rows || in->stride != out->stride) return false;
    out->root = root;
    in->last = (uint32_t)base_max(in->last, out->last);
    return true;
}

/* Runs in order of operations, so that an input's root already lives as long as its last user so far. */
static void merge_in_place(graph_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const graph_op *op = &p->ops[i];

        switch (op->dev.code) {
        case DEV_RMS_NORM:
        case DEV_GLU: merge(p, i, op->a); break;
        case DEV_ADD:
            if (!merge(p, i, op->b)) merge(p, i, op->a);
            break;
        default: break;
        }
    }
}

/* Roots in the order of their making. */
static weir_status collect_roots(graph_program *p, weir_error *err)
{
    p->roots = base_alloc_array(p->env, BASE_TAG_METADATA, p->n_tensors, sizeof(*p->roots), err);
    if (p->roots == NULL) return err->code;
    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].root == i) p->roots[p->n_roots++] = i;
    return WEIR_OK;
}

/* What sorting by size needs; qsort has no context argument. */
typedef struct placing {
    uint64_t bytes;
    uint32_t tensor;
} placing;

static int larger_first(const void *a, const void *b)
{
    const placing *x = a, *y = b;

    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* The tightest free place for t among the n placed tensors, which are sorted by offset. */
static uint64_t best_fit(const graph_program *p, const graph_tensor *t, const uint32_t *placed, uint32_t n)
{
    uint64_t cursor = 0, best = UINT64_MAX, best_gap = UINT64_MAX;

    for (uint32_t i = 0; i < n; i++) {
        const graph_tensor *o = &p->tensors[placed[i]];

        if (o->first > t->last || t->first > o->last) continue;
        if (o->offset >= cursor) {
            uint64_t gap = o->offset - cursor;

            if (gap >= t->bytes && gap < best_gap) {
                best = cursor;
                best_gap = gap;
            }
        }
        cursor = base_max(cursor, o->offset + o->bytes);
    }
    return best != UINT64_MAX ? best : cursor;
}

static void insert_by_offset(const graph_program *p, uint32_t *placed, uint32_t n, uint32_t tensor)
{
    uint32_t i = n;

    while (i > 0 && p->tensors[placed[i - 1]].offset > p->tensors[tensor].offset) {
        placed[i] = placed[i - 1];
        i--;
    }
    placed[i] = tensor;
}

static weir_status place_by_lifetime(graph_program *p, weir_error *err)
{
    placing *order = base_alloc_array(p->env, BASE_TAG_METADATA, p->n_roots, sizeof(*order), err);
    uint32_t *placed = NULL;
    weir_status status = WEIR_OK;

    if (order == NULL) return err->code;
    placed = base_alloc_array(p->env, BASE_TAG_METADATA, p->n_roots, sizeof(*placed), err);
    if (placed == NULL) {
        status = err->code;
        goto free_order;
    }
    for (uint32_t i = 0; i < p->n_roots; i++)
        order[i] = (placing){.bytes = p->tensors[p->roots[i]].bytes, .tensor = p->roots[i]};
    qsort(order, p->n_roots, sizeof(*order), larger_first);
    for (uint32_t i = 0; i < p->n_roots; i++) {
        graph_tensor *t = &p->tensors[order[i].tensor];

        t->offset = best_fit(p, t, placed, i);
        insert_by_offset(p, placed, i, order[i].tensor);
        p->info.arena_bytes = base_max(p->info.arena_bytes, t->offset + t->bytes);
    }
    base_free(p->env, placed);
free_order:
    base_free(p->env, order);
    return status;
}

static void place_apart(graph_program *p)
{
    for (uint32_t i = 0; i < p->n_roots; i++) {
        p->tensors[p->roots[i]].offset = p->info.arena_bytes;
        p->info.arena_bytes += p->tensors[p->roots[i]].bytes;
    }
}

/* Live bytes per operation by differences: what begins adds, what ended before takes off. */
static weir_status compute_phase_peaks(graph_program *p, weir_error *err)
{
    uint64_t live = 0;
    uint64_t *change =
        base_alloc_array(p->env, BASE_TAG_METADATA, (size_t)p->n_ops + 2, sizeof(*change), err);

    if (change == NULL) return err->code;
    for (uint32_t i = 0; i < p->n_roots; i++) {
        const graph_tensor *t = &p->tensors[p->roots[i]];

        change[t->first] += t->bytes; /* unsigned wrap-around cancels out */
        change[t->last + 1] -= t->bytes;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        graph_phase *phase = &p->phases[p->ops[i].phase];

        live += change[i];
        phase->peak_live_bytes = base_max(phase->peak_live_bytes, live);
    }
    base_free(p->env, change);
    return WEIR_OK;
}

weir_status graph_plan(graph_program *p, weir_error *err)
{
    weir_status status;

    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (!base_add(p->info.unaliased_bytes, p->tensors[i].bytes, &p->info.unaliased_bytes))
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "activations of %u rows do not fit any memory",
                             p->options.max_rows);
    if (p->options.alias) merge_in_place(p);
    status = collect_roots(p, err);
    if (status != WEIR_OK) return status;
    if (p->options.alias) {
        status = place_by_lifetime(p, err);
        if (status != WEIR_OK) return status;
    } else {
        place_apart(p);
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) p->tensors[i].offset = p->tensors[root_of(p, i)].offset;
    p->info.n_ops = p->n_ops;
    p->info.n_tensors = p->n_roots;
    return compute_phase_peaks(p, err);
}

bool graph_tensor_span(const graph_program *p, uint32_t i, uint64_t *offset, uint64_t *bytes, uint32_t *first,
                       uint32_t *last)
{
    const graph_tensor *t;

    if (i >= p->n_roots) return false;
    t = &p->tensors[p->roots[i]];
    *offset = t->offset;
    *bytes = t->bytes;
    *first = t->first;
    *last = t->last;
    return true;
}

/* A tensor that op i reads was written before, and both ends lie in its root's life. */
static bool holds(const graph_program *p, uint32_t i, uint32_t tensor)
{
    const graph_tensor *root;

    if (tensor == GRAPH_NONE) return true;
    if (tensor >= p->n_tensors) return false;
    root = &p->tensors[root_of(p, tensor)];
    return root->first <= i && i <= root->last;
}

bool graph_is_valid(const graph_program *p)
{
    if (!p->finished || p->n_ops == 0 || p->first_output_op >= p->n_ops || p->n_order_inner > p->n_order)
        return false;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const graph_tensor *t = &p->tensors[i], *root = &p->tensors[root_of(p, i)];

        if (t->first > t->last || t->offset % GRAPH_ALIGN != 0 || t->offset != root->offset ||
            t->bytes > root->bytes || t->offset + t->bytes > p->info.arena_bytes)
            return false;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const graph_op *op = &p->ops[i];

        if (!holds(p, i, op->a) || !holds(p, i, op->b) || !holds(p, i, op->out) ||
            !holds(p, i, op->w_tensor) || !holds(p, i, op->bias_tensor) || op->phase >= p->n_phases)
            return false;
    }
    return p->result < p->n_tensors && p->tensors[root_of(p, p->result)].last == p->n_ops;
}
