/* The one public header of graph: a model as a linear program over tensors of fixed shape.
 *
 * An engine builds a program once per shape class; from it come, before anything runs, the lifetime of every
 * activation and so the arena's exact size (R15.2), the order in which weights are used (what the streamer
 * prefetches), and the bytes and operations of a pass. Running it resolves pointers and hands operations to
 * the device. */
#ifndef WEIR_GRAPH_H
#define WEIR_GRAPH_H

#include "base/base.h"
#include "devices/device.h"
#include "memory/memory.h"

typedef struct graph_program graph_program;
typedef int32_t
    graph_id; /* an activation; -1 after an error (errors are kept and reported by graph_finish) */

/* A weight as an operation sees it. */
typedef struct graph_weight {
    mem_weight_id id; /* MEM_NO_WEIGHT: none */
    uint32_t dtype;
    uint32_t n_rows; /* outputs */
    uint32_t cols;   /* row length */
} graph_weight;

typedef struct graph_options {
    uint32_t max_rows;    /* rows of a pass (tokens, over all sequences) */
    uint32_t max_outputs; /* rows for which logits are wanted */
    bool alias;           /* share arena space between activations whose lifetimes do not overlap */
} graph_options;

weir_status graph_program_create(base_env *env, dev_device *dev, mem_component *c,
                                 const graph_options *options, graph_program **out, weir_error *err);
void graph_program_destroy(graph_program *p); /* takes NULL */
/* On a device with memory of its own: weights come from there, and so does the memory of activations. Before
 * graph_reserve; outlives the program. NULL (as created): the component, in host memory. */
void graph_use_source(graph_program *p, mem_source *source);

/* ---- building: each gives the id of a new activation of max_rows rows (float32) ----
 * rope, scale and softcap rewrite their input's memory: x must not be used after them (INTERNAL at the end).
 */
graph_id graph_embed(graph_program *p, graph_weight table, float scale);
graph_id graph_rms_norm(graph_program *p, graph_id x, graph_weight w, uint32_t group /* 0: the row */,
                        float eps, float offset);
/* bias.id may be MEM_NO_WEIGHT (else F32, F16 or BF16, fixed part, one row; as norm weights). Activations are
 * quantized once per input and form. */
graph_id graph_matmul(graph_program *p, graph_id x, graph_weight w, graph_weight bias);
/* cos and sin per row; inv_freq (n_rot / 2) must outlive the program. */
graph_id graph_rope_table(graph_program *p, const double *inv_freq, uint32_t n_rot, double mscale);
graph_id graph_rope(graph_program *p, graph_id x, graph_id table, uint32_t head_dim, uint32_t n_rot,
                    bool neox);
typedef struct graph_attention_params {
    uint32_t layer; /* index into each sequence's caches */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window; /* 0: all positions; else the last `window` positions, the row's own included */
    float scale, softcap;
} graph_attention_params;
/* Stores K and V at the rows' positions, then attends. */
graph_id graph_attention(graph_program *p, graph_id q, graph_id k, graph_id v,
                         const graph_attention_params *a);
graph_id graph_glu(graph_program *p, graph_id gate, graph_id up, bool gelu);
graph_id graph_add(graph_program *p, graph_id a, graph_id b);
graph_id graph_scale(graph_program *p, graph_id x, float s);
graph_id graph_softcap(graph_program *p, graph_id x, float cap);
/* The rows of x that are outputs: everything after works on max_outputs rows, and is left out of passes
 * without outputs. May be called for several x; no attention may follow. */
graph_id graph_select_outputs(graph_program *p, graph_id x);
/* A point between phases, for --profile ("layers", "head"). The name must outlive the program. */
void graph_mark_phase(graph_program *p, const char *name);

/* Computes lifetimes and the arena; `result` is what graph_result gives. */
weir_status graph_finish(graph_program *p, graph_id result, weir_error *err);

typedef struct graph_info {
    uint64_t arena_bytes;     /* with the chosen alias option */
    uint64_t unaliased_bytes; /* sum of all activations */
    uint64_t staging_bytes;   /* gathered embedding rows: a part of unaliased_bytes */
    uint64_t host_bytes;      /* with a source: what is left in host memory, rows on their way and results */
    uint64_t weight_bytes;    /* read by one pass with outputs */
    uint64_t inner_bytes;     /* of them, by one without */
    uint64_t macs_per_row;    /* multiply-adds of the products */
    uint32_t n_ops, n_tensors;
    size_t max_k; /* longest row of a product */
} graph_info;
void graph_program_info(const graph_program *p, graph_info *out);
/* For the overlap oracle: offset, bytes, first and last op of activation i; false behind the last. */
bool graph_tensor_span(const graph_program *p, uint32_t i, uint64_t *offset, uint64_t *bytes, uint32_t *first,
                       uint32_t *last);

/* ---- running ---- */
typedef struct graph_batch {
    uint32_t n_rows;             /* 1 .. max_rows */
    const int32_t *token;        /* per row */
    const int32_t *position;     /* per row; rows of one sequence ascend by one within a pass */
    const uint32_t *sequence;    /* per row: index into kv */
    const dev_kv *const *kv;     /* kv[layer][sequence] */
    uint32_t n_outputs;          /* 0 .. max_outputs; 0 leaves out everything behind graph_select_outputs */
    const uint32_t *output_rows; /* ascending row indices */
    atomic_bool *cancel;         /* may be NULL */
} graph_batch;

/* Allocates the arena (tag ACTIVATIONS; with a source on the device, and what passes between it and the host
 * under the tag) and the device's workspace; must come before the first run. */
weir_status graph_reserve(graph_program *p, uint32_t max_positions, uint32_t head_dim, weir_error *err);
weir_status graph_run(graph_program *p, const graph_batch *batch, weir_error *err);
/* Row i of the result (n_outputs x cols floats), valid until the next run. */
const float *graph_result(const graph_program *p, uint32_t i);

typedef struct graph_phase_profile {
    const char *name;
    double seconds, wait_seconds;
    uint64_t n_ops, weight_bytes, streamed_bytes, peak_live_bytes;
} graph_phase_profile;
/* Turned on by graph_profile_on; i-th phase, false behind the last. Times per opcode by graph_profile_op. */
void graph_profile_on(graph_program *p, bool on);
bool graph_profile_phase(const graph_program *p, uint32_t i, graph_phase_profile *out);
void graph_profile_op(const graph_program *p, dev_opcode code, double *seconds, uint64_t *count);

#endif
