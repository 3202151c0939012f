/* Inside kernels only: the tables of every instruction set, and the reference functions, which another table
 * may take over one by one where nothing is to be gained.
 *
 * A table exists where its macro says so: kern_select.c refers to a table by a plain (strong) name, since a
 * weak one would not be pulled out of an archive. */
#ifndef WEIR_KERN_TABLES_H
#define WEIR_KERN_TABLES_H

#include "kernels/kernels.h"

/* The source files stand in x86/ and arm/; what both are made of, in vector/. */
#if defined(__x86_64__)
#define KERN_HAVE_AVX2   1
#define KERN_HAVE_AVX512 1
#else
#define KERN_HAVE_AVX2   0
#define KERN_HAVE_AVX512 0
#endif
#if defined(__aarch64__)
#define KERN_HAVE_NEON 1
#else
#define KERN_HAVE_NEON 0
#endif

extern const kern_table kern_ref_table;
#if defined(__x86_64__)
extern const kern_table kern_avx2_table;   /* AVX2, FMA, F16C */
extern const kern_table kern_avx512_table; /* those, and AVX-512 F, BW, VL, DQ, VNNI, VBMI */
#elif defined(__aarch64__)
extern const kern_table kern_neon_table; /* NEON with dot products (sdot) */
#endif

/* One block of one row of a packed group, in the file's layout (at most KERN_BLOCK_MAX bytes). */
#define KERN_BLOCK_MAX 256u
void kern_unpack_block(uint32_t dtype, const uint8_t *group, size_t block, unsigned row, uint8_t *dst);

void kern_ref_dequantize(uint32_t dtype, const void *src, size_t n, float *dst);
void kern_ref_quantize(kern_act act, const float *x, size_t k, void *dst);
void kern_ref_matmul(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch);
void kern_ref_rms_norm(const float *x, const float *w, float w_offset, float eps, size_t n, float *y);
void kern_ref_rope(float *x, size_t n_heads, size_t head_dim, size_t n_rot, const float *table, bool neox);
void kern_ref_kv_store(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,
                       const float *k, const float *v);
void kern_ref_attention(const kern_attention *a, uint32_t head_begin, uint32_t head_end, void *scratch);
void kern_ref_attention_scores(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                               uint32_t segment, void *scratch);
void kern_ref_attention_values(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                               uint32_t segment, void *scratch);
void kern_ref_attention_finish(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end);
void kern_ref_glu(kern_glu kind, const float *gate, const float *up, size_t n, float *y);
void kern_ref_add(const float *a, const float *b, size_t n, float *y);
void kern_ref_scale(float *x, size_t n, float s);
void kern_ref_softcap(float *x, size_t n, float cap);
float kern_ref_softmax(const float *x, size_t n, float inv_temperature, float *p);

/* What kern_attention_scratch_bytes leaves room for: so many queries (heads that share a cache head, of
 * several rows) at once, each with (n_positions rounded up to 16) + 32 floats and 3 x head_dim floats; and a
 * tile of K or V of so many positions, as floats. */
#define KERN_ATTENTION_QUERIES KERN_ATTENTION_TOGETHER
#define KERN_ATTENTION_WIDE    64u
/* Scratch of a matrix product is at least this: tables pack bands of weight rows over stretches of k there.
 */
#define KERN_SCRATCH_MIN ((size_t)192 << 10)
/* Scores that lie further below the largest weigh nothing: what they would add, 2^-92 of the largest weight,
 * is lost in any sum, but subnormal weights and products are slow on most processors. */
#define KERN_ATTENTION_LOW (-64.0f)
/* Positions of one segment of the value sum (docs/numerics.md, Attention). */
#define KERN_ATTENTION_SEGMENT 512u

/* Index 0 of a cut's e. */
static inline uint32_t kern_cut_base(const kern_attention_cut *c)
{
    return c->a.first / 16 * 16;
}
/* Positions [*from, *to) of a segment. */
static inline void kern_cut_range(const kern_attention_cut *c, uint32_t segment, uint32_t *from, uint32_t *to)
{
    uint32_t begin = (c->a.first / KERN_ATTENTION_SEGMENT + segment) * KERN_ATTENTION_SEGMENT;
    *from = begin > c->a.first ? begin : c->a.first;
    *to = c->a.last - begin < KERN_ATTENTION_SEGMENT ? c->a.last + 1 : begin + KERN_ATTENTION_SEGMENT;
}
/* The largest score of a head. */
static inline float kern_cut_top(const kern_attention_cut *c, uint32_t head)
{
    const float *top = c->top + (size_t)head * c->n_segments;
    float max = top[0];
    for (uint32_t s = 1; s < c->n_segments; s++) max = top[s] > max ? top[s] : max;
    return max;
}
static inline float *kern_cut_sums(const kern_attention_cut *c, uint32_t segment, uint32_t head)
{
    return c->sums + ((size_t)segment * c->a.n_heads + head) * c->a.head_dim;
}

#endif
