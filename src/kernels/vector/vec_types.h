/* The weight types: for each, the function that packs blocks of V_LANES rows into a panel, those that
 * multiply them with a few tokens without a panel, its tiles, and what these need to know. */
#ifndef WEIR_VEC_TYPES_H
#define WEIR_VEC_TYPES_H

#include "vec_tile.h"

/* Vectors of rows in a packed group, and in all groups that are read side by side: memory gives more to
 * several streams than to one. */
#define PARTS          (KERN_PACK_ROWS / V_LANES)
#define DIRECT_GROUPS  4
#define DIRECT_VECTORS (DIRECT_GROUPS * PARTS)

/* Rows that meet tokens without a panel, over all of k. */
typedef struct direct_args {
    direct_tokens tokens; /* of the first block */
    size_t n_blocks;
    row_set *rows;                       /* in the file's layout: V_LANES rows; */
    const uint8_t *group[DIRECT_GROUPS]; /* packed: so many groups */
    size_t n_groups;
    float *out; /* first row and token */
    size_t out_stride;
    size_t n_rows;     /* written at most */
    const float *bias; /* of the first row, or NULL */
} direct_args;

typedef void pack_fn(row_set *s, size_t block, size_t n, char *panel);
typedef void direct_fn(const direct_args *a);

typedef struct quant_type {
    uint16_t block, block_bytes, panel_bytes;
    uint8_t sub;  /* elements per sub-block: 32, 16 */
    uint8_t bias; /* added to the weights */
    bool min;
    tile_fn *const *tiles;
    pack_fn *pack[2];                 /* from the file's layout, from a packed group */
    direct_fn *one;                   /* V_LANES rows in the file's layout, one token */
    direct_fn *direct[DIRECT_TOKENS]; /* packed groups, 1 ... tokens */
} quant_type;

/* While a block of V_LANES rows is worked on, as many bytes of the next band come in: sixteen rows side by
 * side are too many streams for the hardware to foresee. */
V_INLINE void prefetch_ahead(row_set *s, const int bytes)
{
    if (s->near) {
        V_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(s->ahead + i, 0, 3);
    } else {
        V_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(s->ahead + i, 0, 2);
    }
    s->ahead += bytes;
}
/* Row pointers are to be read from memory for each block: there are more than registers, and compilers that
 * carry them through the loop park them in vector registers, which costs more. */
V_INLINE row_set *in_memory(row_set *s)
{
    __asm__ volatile("" : "+r"(s));
    return s;
}

/* Block i of V_LANES rows; of a packed group, those from `lane` on. */
V_INLINE block_at file_block(row_set *s, size_t i, const size_t bytes)
{
    prefetch_ahead(s, V_LANES * (int)bytes);
    return (block_at){.rows = in_memory(s), .at = i * bytes};
}
/* Blocks from the one that is worked on to the one that is asked for meanwhile. */
#define BLOCKS_AHEAD(bytes)                                                                                  \
    ((bytes)*KERN_PACK_ROWS < V_PACKED_AHEAD ? V_PACKED_AHEAD / ((bytes)*KERN_PACK_ROWS) : 1)
V_INLINE block_at packed_block(const uint8_t *group, size_t lane, size_t i, const size_t bytes, size_t ahead)
{
    const size_t column_bytes = bytes * KERN_PACK_ROWS;
    block_at b = {.column = group + i * column_bytes, .lane = PARTS == 1 ? 0 : lane, .packed = true};
    b.next = b.column + ahead;
    /* One register and constant offsets: compilers would keep the sum for each vector, on the stack. */
    __asm__ volatile("" : "+r"(b.next));
    if (PARTS > 1 && lane == 0) {
        V_UNROLL for (size_t at = 0; at < column_bytes; at += 64) __builtin_prefetch(b.next + at, 0, 3);
    }
    return b;
}
/* Bytes from block i of a group to what is asked for: further on in the group, or, near its end, the first
 * blocks of the group that will take its place, as many groups further on as are read side by side. */
V_INLINE size_t direct_ahead(const direct_args *a, size_t i, const size_t bytes)
{
    size_t ahead = BLOCKS_AHEAD(bytes), skip = (a->n_groups - 1) * a->n_blocks;
    return (i + ahead < a->n_blocks ? ahead : ahead + skip) * bytes * KERN_PACK_ROWS;
}
V_INLINE block_at direct_block(const direct_args *a, size_t v, size_t i, const size_t bytes, size_t ahead,
                               const bool packed)
{
    return packed ? packed_block(a->group[v / PARTS], v % PARTS * V_LANES, i, bytes, ahead)
                  : file_block(a->rows, i, bytes);
}

/* acc[v][t] is for vector v of rows and token t. */
V_INLINE size_t direct_begin(const direct_args *a, vf acc[DIRECT_VECTORS][DIRECT_TOKENS], const bool packed)
{
    size_t n = packed ? a->n_groups * PARTS : 1;
    for (size_t v = 0; v < n; v++) {
        V_UNROLL for (int t = 0; t < DIRECT_TOKENS; t++) acc[v][t] = v_zero();
    }
    return n;
}
V_INLINE void direct_end(const direct_args *a, vf acc[DIRECT_VECTORS][DIRECT_TOKENS], size_t n_vectors,
                         const int T)
{
    for (size_t v = 0; v < n_vectors && v * V_LANES < a->n_rows; v++) {
        size_t first = v * V_LANES, n = a->n_rows - first < V_LANES ? a->n_rows - first : V_LANES;
        for (int t = 0; t < T; t++) {
            vf x = acc[v][t];
            if (a->bias) x = v_add(x, v_load_n(a->bias + first, n));
            v_store_n(a->out + (size_t)t * a->out_stride + first, x, n);
        }
    }
}
/* Activations are to be read for each vector of rows: compilers would collect all of a block's on the stack.
 */
V_INLINE const char *read_again(const char *q)
{
    __asm__ volatile("" : "+r"(q));
    return q;
}
/* To the next block, of so many elements and sub-blocks. */
V_INLINE void direct_next(direct_tokens *k, const size_t elements, const size_t n_sub)
{
    k->q += elements;
    k->d += sizeof(float);
    k->start += n_sub;
    k->shift += n_sub;
    k->pairs += n_sub;
}

/* Blocks of 32 and of 256: pack and direct functions, with what is constant as constants. */
#define TYPE_32(type, bytes, min, run)                                                                       \
    V_INLINE void make_panel_##type(row_set *s, size_t block, size_t n, char *panel, const bool packed)      \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            block_at at = packed ? packed_block(s->group, s->lane, block + i, bytes,                         \
                                                BLOCKS_AHEAD(bytes) * (bytes)*KERN_PACK_ROWS)                \
                                 : file_block(s, block + i, bytes);                                          \
            block_32 b;                                                                                      \
            block_##type(&at, &b);                                                                           \
            store_32(&b, min, panel);                                                                        \
            panel += (min) ? PANEL_32_MIN : PANEL_32;                                                        \
        }                                                                                                    \
    }                                                                                                        \
    V_INLINE void multiply_##type(const direct_args *a, const bool packed, const int T)                      \
    {                                                                                                        \
        vf acc[DIRECT_VECTORS][DIRECT_TOKENS];                                                               \
        direct_tokens to = a->tokens;                                                                        \
        size_t n_vectors = direct_begin(a, acc, packed);                                                     \
        for (size_t i = 0; i < a->n_blocks; i++) {                                                           \
            size_t ahead = packed ? direct_ahead(a, i, bytes) : 0;                                           \
            for (size_t v = 0; v < n_vectors; v++) {                                                         \
                to.q = read_again(to.q);                                                                     \
                block_at at = direct_block(a, v, i, bytes, ahead, packed);                                   \
                block_32 b;                                                                                  \
                block_##type(&at, &b);                                                                       \
                meet_32(&b, &to, acc[v], T, min, run);                                                       \
            }                                                                                                \
            direct_next(&to, 32, 1);                                                                         \
        }                                                                                                    \
        direct_end(a, acc, n_vectors, T);                                                                    \
    }                                                                                                        \
    TYPE_FUNCTIONS(type)

#define TYPE_256(type, bytes, panel_bytes, sub, min)                                                         \
    V_INLINE void make_panel_##type(row_set *s, size_t block, size_t n, char *panel, const bool packed)      \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            block_at at = packed ? packed_block(s->group, s->lane, block + i, bytes,                         \
                                                BLOCKS_AHEAD(bytes) * (bytes)*KERN_PACK_ROWS)                \
                                 : file_block(s, block + i, bytes);                                          \
            sink_256 out = {.panel = panel + i * (panel_bytes)};                                             \
            block_##type(&at, &out, 0);                                                                      \
        }                                                                                                    \
    }                                                                                                        \
    V_INLINE void multiply_##type(const direct_args *a, const bool packed, const int T)                      \
    {                                                                                                        \
        vf acc[DIRECT_VECTORS][DIRECT_TOKENS];                                                               \
        sink_256 out;                                                                                        \
        out.to = a->tokens;                                                                                  \
        size_t n_vectors = direct_begin(a, acc, packed);                                                     \
        for (size_t i = 0; i < a->n_blocks; i++) {                                                           \
            size_t ahead = packed ? direct_ahead(a, i, bytes) : 0;                                           \
            for (size_t v = 0; v < n_vectors; v++) {                                                         \
                out.to.q = read_again(out.to.q);                                                             \
                block_at at = direct_block(a, v, i, bytes, ahead, packed);                                   \
                block_##type(&at, &out, T);                                                                  \
                meet_256(&out, acc[v], T, min);                                                              \
            }                                                                                                \
            direct_next(&out.to, 256, 256 / (sub));                                                          \
        }                                                                                                    \
        direct_end(a, acc, n_vectors, T);                                                                    \
    }                                                                                                        \
    TYPE_FUNCTIONS(type)

#define TYPE_FUNCTIONS(type)                                                                                 \
    static void pack_##type(row_set *s, size_t block, size_t n, char *panel)                                 \
    {                                                                                                        \
        make_panel_##type(s, block, n, panel, false);                                                        \
    }                                                                                                        \
    static void repack_##type(row_set *s, size_t block, size_t n, char *panel)                               \
    {                                                                                                        \
        make_panel_##type(s, block, n, panel, true);                                                         \
    }                                                                                                        \
    static void one_##type(const direct_args *a)                                                             \
    {                                                                                                        \
        multiply_##type(a, false, 1);                                                                        \
    }                                                                                                        \
    static void direct1_##type(const direct_args *a)                                                         \
    {                                                                                                        \
        multiply_##type(a, true, 1);                                                                         \
    }                                                                                                        \
    static void direct2_##type(const direct_args *a)                                                         \
    {                                                                                                        \
        multiply_##type(a, true, 2);                                                                         \
    }                                                                                                        \
    static void direct3_##type(const direct_args *a)                                                         \
    {                                                                                                        \
        multiply_##type(a, true, 3);                                                                         \
    }                                                                                                        \
    static void direct4_##type(const direct_args *a)                                                         \
    {                                                                                                        \
        multiply_##type(a, true, 4);                                                                         \
    }
#define TYPE_NAMES(type)                                                                                     \
    {pack_##type, repack_##type}, one_##type,                                                                \
    {                                                                                                        \
        direct1_##type, direct2_##type, direct3_##type, direct4_##type                                       \
    }

TYPE_32(q8_0, 34, false, 0)
TYPE_32(q4_0, 18, false, V_RUN_31)
TYPE_32(q4_1, 20, true, V_RUN_31)
TYPE_32(q5_0, 22, false, V_RUN_31)
TYPE_32(q5_1, 24, true, V_RUN_31)
TYPE_32(iq4_nl, 18, false, 0)
TYPE_32(mxfp4, 17, false, 0)
TYPE_256(q2_k, 84, PANEL_256_MIN, 16, true)
TYPE_256(q3_k, 110, PANEL_256, 16, false)
TYPE_256(q4_k, 144, PANEL_K32_MIN, 32, true)
TYPE_256(q5_k, 176, PANEL_K32_MIN, 32, true)
TYPE_256(q6_k, 210, PANEL_256, 16, false)
TYPE_256(iq4_xs, 136, PANEL_K32, 32, false)

#define TYPE(type, block, bytes, panel, sub, bias, min, tiles)                                               \
    static const quant_type type_##type = {block, bytes, panel, sub, bias, min, tiles, TYPE_NAMES(type)}
TYPE(q8_0, 32, 34, PANEL_32, 32, V_WIDE_BIAS, false, tile_wide);
TYPE(q4_0, 32, 18, PANEL_32, 32, 8, false, tile_plain);
TYPE(q4_1, 32, 20, PANEL_32_MIN, 32, 0, true, tile_min);
TYPE(q5_0, 32, 22, PANEL_32, 32, 16, false, tile_plain);
TYPE(q5_1, 32, 24, PANEL_32_MIN, 32, 0, true, tile_min);
TYPE(iq4_nl, 32, 18, PANEL_32, 32, V_WIDE_BIAS, false, tile_wide);
TYPE(mxfp4, 32, 17, PANEL_32, 32, V_WIDE_BIAS, false, tile_wide);
TYPE(q2_k, 256, 84, PANEL_256_MIN, 16, 0, true, tile_k16_min);
TYPE(q3_k, 256, 110, PANEL_256, 16, 4, false, tile_k16);
TYPE(q4_k, 256, 144, PANEL_K32_MIN, 32, 0, true, tile_k32_low);
TYPE(q5_k, 256, 176, PANEL_K32_MIN, 32, 0, true, tile_k32_min);
TYPE(q6_k, 256, 210, PANEL_256, 16, 32, false, tile_k16);
TYPE(iq4_xs, 256, 136, PANEL_K32, 32, V_WIDE_BIAS, false, tile_k32_wide);

static const quant_type *quant_type_of(uint32_t dtype)
{
    switch (dtype) {
    case BASE_Q8_0: return &type_q8_0;
    case BASE_Q4_0: return &type_q4_0;
    case BASE_Q4_1: return &type_q4_1;
    case BASE_Q5_0: return &type_q5_0;
    case BASE_Q5_1: return &type_q5_1;
    case BASE_IQ4_NL: return &type_iq4_nl;
    case BASE_MXFP4: return &type_mxfp4;
    case BASE_Q2_K: return &type_q2_k;
    case BASE_Q3_K: return &type_q3_k;
    case BASE_Q4_K: return &type_q4_k;
    case BASE_Q5_K: return &type_q5_k;
    case BASE_Q6_K: return &type_q6_k;
    case BASE_IQ4_XS: return &type_iq4_xs;
    default: return NULL;
    }
}

#endif
