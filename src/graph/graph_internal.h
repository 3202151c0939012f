/* What the files of graph share: tensors, values and operations of a program.
 *
 * An id that a builder gives names a value. Values live in tensors (memory); an operation that works in place
 * gives a new value in the same tensor, and the old value is gone. */
#ifndef WEIR_GRAPH_INTERNAL_H
#define WEIR_GRAPH_INTERNAL_H

#include "graph.h"

#define GRAPH_NONE       UINT32_MAX
#define GRAPH_ALIGN      64
#define GRAPH_MAX_PHASES 16
#define GRAPH_MAX_FORMS  4

/* How many rows a tensor has. */
typedef enum graph_rows { GRAPH_ROWS_ALL, GRAPH_ROWS_OUTPUTS, GRAPH_ROWS_ONE } graph_rows;

typedef struct graph_tensor {
    graph_rows rows;
    uint64_t stride; /* bytes between rows, a multiple of GRAPH_ALIGN */
    uint64_t bytes;
    uint64_t offset;      /* in the arena, after planning */
    uint32_t first, last; /* operations that write it first and touch it last */
    uint32_t root;        /* the tensor whose memory this one uses; itself when its own */
} graph_tensor;

typedef struct graph_value {
    uint32_t tensor;
    uint32_t cols;
    bool gone; /* its tensor was rewritten in place */
    struct {
        uint32_t form, tensor;
    } quantized[GRAPH_MAX_FORMS];
    uint32_t n_quantized;
} graph_value;

typedef struct graph_op {
    dev_op dev; /* all that is known before running: shapes and constants */
    graph_rows rows;
    uint32_t a, b, out; /* tensors */
    graph_weight w, bias;
    uint32_t w_tensor, bias_tensor; /* widened copies, or GRAPH_NONE: the weight as it lies in memory */
    uint32_t layer;                 /* of the cache, for KV_STORE and ATTENTION */
    uint32_t phase;
    bool gather; /* DEQUANT: a is filled with the tokens' rows of w first */
    bool widen;  /* DEQUANT: the whole of w, as one row */
} graph_op;

typedef struct graph_phase {
    const char *name;
    double seconds, wait_seconds;
    uint64_t n_ops, weight_bytes, streamed_bytes, peak_live_bytes;
} graph_phase;

struct graph_program {
    base_env *env;
    dev_device *dev;
    mem_component *component;
    graph_options options;

    weir_error error; /* the first error of building; code OK: none */
    bool finished;

    graph_tensor *tensors;
    graph_value *values;
    graph_op *ops;
    uint32_t n_tensors, tensor_cap;
    uint32_t n_values, value_cap;
    uint32_t n_ops, op_cap;
    uint32_t
        first_output_op; /* from here on nothing runs without outputs; n_ops when there is no selection */
    uint32_t max_layer;  /* one more than the largest layer of any attention */

    mem_weight_id *order;          /* weights of the products in the order of use */
    size_t n_order, n_order_inner; /* all; those before first_output_op */

    uint32_t *roots; /* tensors with memory of their own, for graph_tensor_span */
    uint32_t n_roots;
    uint32_t result;
    graph_info info;

    uint8_t *arena;     /* an address on the device where there is a source */
    mem_source *source; /* NULL: weights and activations are in host memory */
    uint8_t *gathered;  /* with a source: rows of the embedding table on their way */
    float *results;     /* with a source: the results of the last pass */

    graph_phase phases[GRAPH_MAX_PHASES];
    uint32_t n_phases;
    bool profile;
    double op_seconds[DEV_OP_COUNT];
    uint64_t op_count[DEV_OP_COUNT];
};

/* Merges what may work in place, lays out the arena and computes the peaks. tensors' first and last hold. */
weir_status graph_plan(graph_program *p, weir_error *err);
/* Every invariant of a finished program; false names a defect of ours. */
bool graph_is_valid(const graph_program *p);

#endif
