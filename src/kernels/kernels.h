/* The one public header of kernels: pure arithmetic on the CPU. No allocation, no I/O, no state.
 *
 * A kern_table holds one instruction set's functions. `ref` is the definition (docs/numerics.md); every other
 * table gives the same bits for every input. Ranges (row_begin, row_end, ...) are how callers split work over
 * threads: by output element only (kern_attention_cut: where a sum ends), so that a split never changes a
 * bit. */
#ifndef WEIR_KERNELS_H
#define WEIR_KERNELS_H

#include "base/base.h"

/* ---- activations as matrix products read them ----
 * F32: the floats themselves.
 * Q32: per row of k (a multiple of 32): int8 q[k]; then float d[k/32]; then int32 sum[k/32] (sums of q over
 * each block of 32). Q256: per row of k (a multiple of 256): int8 q[k]; then float d[k/256]; then int32
 * sum[k/16] (sums of q over each 16). Rows start at multiples of 64 bytes. */
typedef enum kern_act { KERN_ACT_F32, KERN_ACT_Q32, KERN_ACT_Q256, KERN_ACT_NONE } kern_act;

/* How activations meet a weight type: F32, F16, BF16 -> F32; blocks of 32 -> Q32; blocks of 256 -> Q256. */
kern_act kern_act_for(uint32_t dtype);
/* Bytes of one row, a multiple of 64. k is a multiple of the block. */
size_t kern_act_row_bytes(kern_act act, size_t k);

/* ---- packed weights ----
 * Sixteen rows of a block type side by side, so that a vector load holds the same bytes of many rows. Group g
 * of a weight holds its rows 16 g ... 16 g + 15 and takes the bytes [g x 16 x row_bytes, (g + 1) x 16 x
 * row_bytes): as many as in the file's layout, in another order (kern_blocks.h). row_bytes is a multiple of
 * the block's bytes here: rows have no padding. No result depends on the layout of weights. */
#define KERN_PACK_ROWS 16u
/* Part of the name of everything that keeps packed weights outside of this process. Raise it whenever
 * kern_pack gives other bytes for any type, or kern_can_pack another answer. */
#define KERN_PACK_VERSION 1
/* Types with a packed layout: all block types, no floats. */
bool kern_can_pack(uint32_t dtype);
/* Sixteen rows, row_bytes apart, to one group; and back. Any alignment; src and dst do not overlap. */
void kern_pack(uint32_t dtype, const void *src, size_t row_bytes, void *dst);
void kern_unpack(uint32_t dtype, const void *src, size_t row_bytes, void *dst);
/* One row (below 16) of a group, in the file's layout. */
void kern_unpack_row(uint32_t dtype, const void *group, size_t row_bytes, unsigned row, void *dst);

/* out[t * out_stride + r] = bias[r] + sum over k of W[r][k] x act[t][k], for rows [row_begin, row_end) and
 * all tokens. */
typedef struct kern_matmul {
    uint32_t dtype;    /* of the weight */
    const void *w;     /* row 0; 1-byte alignment */
    size_t row_bytes;  /* stride of weight rows */
    size_t k;          /* row length in elements, a multiple of the block */
    const void *act;   /* token 0, of kind kern_act_for(dtype), 64-byte aligned */
    size_t act_stride; /* bytes between tokens */
    size_t n_tokens;
    float *out;
    size_t out_stride; /* floats between tokens */
    const float *bias; /* indexed as rows, or NULL; added last, one rounding */
    /* Rows below it are packed, the others in the file's layout; a multiple of 16, 0 if none are. row_begin
     * and row_end may be any. */
    size_t packed_rows;
} kern_matmul;

/* One layer's cache of one sequence. Positions are kept at slot = position mod capacity; capacity is a
 * multiple of 16. K: [capacity/16][n_kv_heads][head_dim][16] (sixteen positions side by side); V:
 * [capacity][n_kv_heads][head_dim]. */
typedef struct kern_kv {
    void *k, *v;
    uint32_t dtype;    /* F16 or F32 */
    uint32_t capacity; /* positions */
} kern_kv;

/* Attention of a range of query heads over positions of one sequence: row 0 is at position last, row r at
 * last + r, and all of them are stored. Row r attends over [f, last + r], f being first or, with a window,
 * the larger of that and last + r + 1 - window. */
typedef struct kern_attention {
    const float *q; /* [n_heads][head_dim] of this row, RoPE applied */
    float *out;     /* [n_heads][head_dim] */
    const kern_kv *kv;
    uint32_t n_heads, n_kv_heads, head_dim; /* head_dim a multiple of 16? any multiple of 2 */
    uint32_t first, last;
    float scale;   /* q is multiplied by it first */
    float softcap; /* 0: none; else s = softcap x tanh(s / softcap) */
    uint32_t n_rows;
    uint32_t window;             /* 0: none */
    size_t q_stride, out_stride; /* floats between rows */
} kern_attention;

/* So many queries (heads of one cache head x rows) share what is read of the cache; more rows or heads than
 * that in one call are taken in turns. */
#define KERN_ATTENTION_TOGETHER 24u

/* The first position that row r attends to. */
static inline uint32_t kern_attention_first(const kern_attention *a, uint32_t r)
{
    uint32_t n = a->last + r + 1;
    return a->window != 0 && n > a->window && n - a->window > a->first ? n - a->window : a->first;
}

/* Attention of one row cut by positions too, so that workers can share a cache head: three steps over memory
 * that they share, each of which begins when the one before is done everywhere. Positions are cut where the
 * definition cuts its sums (docs/numerics.md), so the bits are those of one call. Between the steps, `e`
 * holds scores, then weights; `top` the largest score and `sums` the weighted values of each segment. */
typedef struct kern_attention_cut {
    kern_attention a; /* n_rows 1; first says where the row begins, window is 0 */
    uint32_t n_segments;
    size_t e_stride;
    float *e;    /* [n_heads][e_stride], from position first / 16 * 16 on */
    float *sums; /* [n_segments][n_heads][head_dim] */
    float *top;  /* [n_heads][n_segments] */
} kern_attention_cut;

/* Lays a cut of row 0 of `a` out in shared memory (64-byte aligned); false where it does not fit. */
bool kern_attention_cut_init(kern_attention_cut *c, const kern_attention *a, void *shared, size_t bytes);

typedef enum kern_glu { KERN_GLU_SILU, KERN_GLU_GELU } kern_glu; /* GELU in its tanh form */

typedef struct kern_table {
    const char *name; /* "ref", "avx2", "avx512", "neon" */

    /* n elements (whole blocks) of a weight type to floats, exact as the gguf package's dequantization. */
    void (*dequantize)(uint32_t dtype, const void *src, size_t n, float *dst);
    /* One row of activations to Q32 or Q256 (docs/numerics.md). */
    void (*quantize)(kern_act act, const float *x, size_t k, void *dst);
    /* scratch: kern_scratch_bytes, 64-byte aligned, one per worker. */
    void (*matmul)(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch);

    /* y[i] = (x[i] x inv) x (w[i] + w_offset), inv = 1 / sqrt(mean of squares + eps). */
    void (*rms_norm)(const float *x, const float *w, float w_offset, float eps, size_t n, float *y);
    /* Rotates n_heads heads of head_dim in place; table holds n_rot/2 cosines, then n_rot/2 sines. neox:
     * pairs (i, i + n_rot/2), else (2i, 2i + 1). Elements from n_rot on stay. */
    void (*rope)(float *x, size_t n_heads, size_t head_dim, size_t n_rot, const float *table, bool neox);
    /* Writes one row's K and V ([n_kv_heads][head_dim] floats each) at a position. */
    void (*kv_store)(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,
                     const float *k, const float *v);
    /* scratch: kern_attention_scratch_bytes. */
    void (*attention)(const kern_attention *a, uint32_t head_begin, uint32_t head_end, void *scratch);
    /* The steps of a cut, for heads and (below n_segments) one segment of positions; scratch:
     * kern_attention_cut_scratch_bytes. */
    void (*attention_scores)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                             uint32_t segment, void *scratch);
    void (*attention_values)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                             uint32_t segment, void *scratch);
    void (*attention_finish)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end);
    void (*glu)(kern_glu kind, const float *gate, const float *up, size_t n, float *y); /* y may be gate */
    void (*add)(const float *a, const float *b, size_t n, float *y);                    /* y may be a or b */
    void (*scale)(float *x, size_t n, float s);
    void (*softcap)(float *x, size_t n, float cap);
    /* p = exp((x - max) x inv_temperature) over n; returns the canonical sum. Used by sampling. */
    float (*softmax)(const float *x, size_t n, float inv_temperature, float *p);
} kern_table;

/* "auto", "ref", "avx2", "avx512", "neon". UNSUPPORTED when this machine lacks it (the message lists what it
 * has), INVALID_ARGUMENT for another word. */
weir_status kern_select(const char *name, const kern_table **out, weir_error *err);
/* Names of the sets this machine runs, best first, NULL-terminated. */
const char *const *kern_available(void);

/* Workspace of one worker for a product with row length k; for attention whose rows, taken together, see up
 * to n_positions. */
size_t kern_scratch_bytes(size_t k);
size_t kern_attention_scratch_bytes(uint32_t n_positions, uint32_t head_dim);
size_t kern_attention_cut_scratch_bytes(uint32_t n_heads, uint32_t head_dim);

/* cos and sin of position x inv_freq[i], times mscale: n_half cosines, then n_half sines. Scalar double
 * arithmetic of our own, the same on every machine. */
void kern_rope_table(int32_t position, const double *inv_freq, size_t n_half, double mscale, float *table);
/* x^y for x > 0, exp, log, in double: our own, the same on every machine (error below 2 ulp). */
double kern_pow(double x, double y);
double kern_exp(double x);
double kern_log(double x);
/* The scalar single-precision definitions of docs/numerics.md. */
float kern_expf(float x);
float kern_tanhf(float x);
uint16_t kern_f16_from_f32(float x); /* round to nearest even */
float kern_f32_from_f16(uint16_t h);

/* Device kernels (gpu/) as source text: what every program begins with (gpu_begin.h, gpu_math.h), and behind
 * it the operations of language models. Made by the build. */
extern const char kern_gpu_begin[];
extern const char kern_gpu_source[];

#endif
