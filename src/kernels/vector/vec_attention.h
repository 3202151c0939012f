/* The cache's writer, and attention: the query heads that share a cache head go together, and so do several
 * rows of a prompt, so that a tile of K or V that was read (and widened) serves up to KERN_ATTENTION_QUERIES
 * queries.
 *
 * Scores have sixteen positions side by side, as the cache keeps K: one fma per element of the head and block
 * of positions. The value sum has elements of the head side by side, and the positions one after the other.
 * Both run in register tiles of up to ATT_TILE queries:
 *
 *   scores:  queries x ATT_BLOCKS blocks of sixteen positions, over all elements of the head
 *   values:  queries x ATT_CHUNK vectors of the output, over ATT_POSITIONS positions; the sums wait in
 * scratch
 *
 * Rows end (and in a window begin) at different positions: queries of a tile do together what they have in
 * common, and each row does its own edges alone. */
#ifndef WEIR_VEC_ATTENTION_H
#define WEIR_VEC_ATTENTION_H

#include "vec_internal.h"
#include "vec_math.h"

#define ATT_PARTS     (16 / V_LANES)
#define ATT_TILE      6
#define ATT_BLOCKS    V_ATTENTION_BLOCKS
#define ATT_CHUNK     V_ATTENTION_VECTORS
#define ATT_WIDTH     (ATT_CHUNK * V_LANES)
#define ATT_POSITIONS 64 /* of a tile of the value sum */
/* Positions between the one whose values are used and the one that is asked for: the heads of a cache lie
 * apart from position to position, which the hardware does not foresee far enough. */
#define ATT_AHEAD 16

static_assert(ATT_BLOCKS * 16 <= KERN_ATTENTION_WIDE && ATT_POSITIONS <= KERN_ATTENTION_WIDE,
              "room for a tile");
static_assert(ATT_WIDTH <= 64, "room for a tile of values");

static void store_k(const kern_kv *kv, size_t at, const float *x, size_t n)
{
    uint16_t half[V_LANES];
    if (kv->dtype == BASE_F32) {
        for (size_t i = 0; i < n; i++) ((float *)kv->k)[(at + i) * 16] = x[i];
        return;
    }
    v_store_f16(half, v_load_n(x, n));
    for (size_t i = 0; i < n; i++) ((uint16_t *)kv->k)[at * 16 + i * 16] = half[i];
}
void V_NAME(kern_kv_store)(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,
                           const float *k, const float *v)
{
    size_t slot = position % kv->capacity, n = (size_t)n_kv_heads * head_dim, i = 0;
    size_t k_block = slot / 16 * n * 16 + slot % 16;
    kern_kv at = *kv;
    at.k = (char *)kv->k + k_block * (kv->dtype == BASE_F16 ? 2 : 4);
    for (i = 0; i < n; i += V_LANES) store_k(&at, i, k + i, n - i < V_LANES ? n - i : V_LANES);
    if (kv->dtype == BASE_F32) {
        memcpy((float *)kv->v + slot * n, v, n * sizeof(float));
        return;
    }
    uint16_t *out = (uint16_t *)kv->v + slot * n;
    for (i = 0; i + V_LANES <= n; i += V_LANES) v_store_f16(out + i, v_load(v + i));
    if (i < n) {
        uint16_t half[V_LANES];
        v_store_f16(half, v_load_n(v + i, n - i));
        memcpy(out + i, half, (n - i) * sizeof half[0]);
    }
}

/* The queries of some heads of one cache head and of some rows: query i is head i % n_heads of row i /
 * n_heads, both counted from the group's first. Index 0 of e is position base, a multiple of 16. */
typedef struct att_group {
    const kern_attention *a;
    uint32_t head, n_heads, kv_head;
    uint32_t row, n_rows;
    uint32_t n;
    uint32_t base, end; /* positions that some query sees */
    bool widens;        /* the cache holds halves, which more than one tile reads */
    float *q;           /* scaled; of each tile of T queries: [head_dim][T] */
    float *e;           /* [n][e_stride]: scores, then weights */
    size_t e_stride;
    float *acc, *total; /* [n][head_dim]: the segment's sum, and all before it */
    float *wide;        /* a tile of K or V as floats */
    float sum[KERN_ATTENTION_QUERIES];
} att_group;

static uint32_t query_last(const att_group *g, uint32_t i)
{
    return g->a->last + g->row + i / g->n_heads;
}
static uint32_t query_first(const att_group *g, uint32_t i)
{
    return kern_attention_first(g->a, g->row + i / g->n_heads);
}
/* Queries of each tile, so that tiles are about equal. */
static uint32_t tile_queries(const att_group *g)
{
    uint32_t n_tiles = (g->n + ATT_TILE - 1) / ATT_TILE;
    return (g->n + n_tiles - 1) / n_tiles;
}

V_INLINE vf att_load(const bool half, const void *cache, size_t i)
{
    if (half) return v_load_f16((const uint8_t *)cache + 2 * i);
    return v_load((const float *)cache + i);
}
V_INLINE vf att_load_n(const bool half, const void *cache, size_t i, size_t n)
{
    if (half) return v_load_f16_n((const uint8_t *)cache + 2 * i, n);
    return v_load_n((const float *)cache + i, n);
}
static const void *cache_at(const kern_kv *kv, const void *cache, size_t i)
{
    return (const char *)cache + i * (kv->dtype == BASE_F16 ? 2 : 4);
}

/* Asks for n halves that will be needed soon. */
V_INLINE void att_ask(const void *halves, size_t n)
{
    for (size_t i = 0; i < n; i += 32) __builtin_prefetch((const char *)halves + 2 * i, 0, 3);
}

/* ---- scores ---- */

typedef struct score_args {
    const float *q; /* [head_dim][Q] */
    const void *k[ATT_BLOCKS];
    const char *next[ATT_BLOCKS]; /* of halves: what follows */
    float *e;
    size_t e_stride;
    uint32_t head_dim;
} score_args;
typedef void score_fn(const score_args *a);

V_INLINE void score_tile(const score_args *a, const bool half, const int Q, const int B)
{
    vf s[ATT_TILE][ATT_BLOCKS][ATT_PARTS];
    V_UNROLL for (int q = 0; q < Q; q++)
    {
        V_UNROLL for (int b = 0; b < B; b++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++) s[q][b][p] = v_zero();
        }
    }
    const float *query = a->q;
    for (size_t i = 0; i < (size_t)a->head_dim * 16; i += 16, query += Q) {
        vf k[ATT_BLOCKS][ATT_PARTS];
        if (half && i % 32 == 0) {
            V_UNROLL for (int b = 0; b < B; b++) __builtin_prefetch(a->next[b] + 2 * i, 0, 3);
        }
        V_UNROLL for (int b = 0; b < B; b++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++) k[b][p] = att_load(half, a->k[b], i + p * V_LANES);
        }
        V_UNROLL for (int q = 0; q < Q; q++)
        {
            vf x = v_set(query[q]);
            V_UNROLL for (int b = 0; b < B; b++)
            {
                V_UNROLL for (int p = 0; p < ATT_PARTS; p++) s[q][b][p] = v_fma(x, k[b][p], s[q][b][p]);
            }
        }
    }
    V_UNROLL for (int q = 0; q < Q; q++)
    {
        V_UNROLL for (int b = 0; b < B; b++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++)
                v_store(a->e + q * a->e_stride + 16 * b + p * V_LANES, s[q][b][p]);
        }
    }
}

/* ---- values ---- */

typedef struct value_args {
    const float *e; /* of the first query, at the first position */
    size_t e_stride;
    const void *v; /* of the first position, at the first element */
    size_t v_stride;
    size_t n; /* positions */
    float *acc;
    size_t acc_stride;
    size_t tail; /* elements, where they are less than a chunk of vectors: at most one vector */
} value_args;
typedef void value_fn(const value_args *a);

V_INLINE void value_tile(const value_args *a, const bool half, const int Q, const int C, const bool tail)
{
    vf acc[ATT_TILE][ATT_CHUNK];
    V_UNROLL for (int q = 0; q < Q; q++)
    {
        V_UNROLL for (int c = 0; c < C; c++)
        {
            const float *from = a->acc + q * a->acc_stride + c * V_LANES;
            acc[q][c] = tail ? v_load_n(from, a->tail) : v_load(from);
        }
    }
    size_t v = 0;
    for (const float *e = a->e, *end = a->e + a->n; e < end; e++, v += a->v_stride) {
        vf x[ATT_CHUNK];
        if (half) att_ask((const uint16_t *)a->v + v + ATT_AHEAD * a->v_stride, (size_t)C * V_LANES);
        V_UNROLL for (int c = 0; c < C; c++)
        {
            x[c] = tail ? att_load_n(half, a->v, v, a->tail) : att_load(half, a->v, v + c * V_LANES);
        }
        V_UNROLL for (int q = 0; q < Q; q++)
        {
            vf w = v_set(e[q * a->e_stride]);
            V_UNROLL for (int c = 0; c < C; c++) acc[q][c] = v_fma(w, x[c], acc[q][c]);
        }
    }
    V_UNROLL for (int q = 0; q < Q; q++)
    {
        V_UNROLL for (int c = 0; c < C; c++)
        {
            float *to = a->acc + q * a->acc_stride + c * V_LANES;
            if (tail)
                v_store_n(to, acc[q][c], a->tail);
            else
                v_store(to, acc[q][c]);
        }
    }
}

#define ATT_FUNCTIONS(Q, half, name)                                                                         \
    static void scores_##name##_##Q(const score_args *a)                                                     \
    {                                                                                                        \
        score_tile(a, half, Q, ATT_BLOCKS);                                                                  \
    }                                                                                                        \
    static void score_##name##_##Q(const score_args *a)                                                      \
    {                                                                                                        \
        score_tile(a, half, Q, 1);                                                                           \
    }                                                                                                        \
    static void values_##name##_##Q(const value_args *a)                                                     \
    {                                                                                                        \
        value_tile(a, half, Q, ATT_CHUNK, false);                                                            \
    }                                                                                                        \
    static void value_##name##_##Q(const value_args *a)                                                      \
    {                                                                                                        \
        value_tile(a, half, Q, 1, true);                                                                     \
    }
#define ATT_EACH(half, name)                                                                                 \
    ATT_FUNCTIONS(1, half, name)                                                                             \
    ATT_FUNCTIONS(2, half, name)                                                                             \
    ATT_FUNCTIONS(3, half, name)                                                                             \
    ATT_FUNCTIONS(4, half, name)                                                                             \
    ATT_FUNCTIONS(5, half, name)                                                                             \
    ATT_FUNCTIONS(6, half, name)
#define ATT_NAMES(what)                                                                                      \
    {                                                                                                        \
        what##_1, what##_2, what##_3, what##_4, what##_5, what##_6                                           \
    }
ATT_EACH(false, f32)
ATT_EACH(true, f16)
/* By [halves][whole tile or the least][queries - 1]. */
static score_fn *const score_fns[2][2][ATT_TILE] = {{ATT_NAMES(scores_f32), ATT_NAMES(score_f32)},
                                                    {ATT_NAMES(scores_f16), ATT_NAMES(score_f16)}};
static value_fn *const value_fns[2][2][ATT_TILE] = {{ATT_NAMES(values_f32), ATT_NAMES(value_f32)},
                                                    {ATT_NAMES(values_f16), ATT_NAMES(value_f16)}};

/* ---- a group ---- */

/* Scores of all queries for n_blocks blocks (ATT_BLOCKS or 1) from position on. */
static void score_blocks(const att_group *g, uint32_t position, uint32_t n_blocks)
{
    const kern_attention *a = g->a;
    const size_t block_size = (size_t)a->head_dim * 16;
    score_args s = {.e_stride = g->e_stride, .head_dim = a->head_dim};
    for (uint32_t b = 0; b < n_blocks; b++) {
        size_t block = (position + 16 * b) % a->kv->capacity / 16;
        size_t next = (position + 16 * (b + n_blocks)) % a->kv->capacity / 16;
        s.k[b] = cache_at(a->kv, a->kv->k, (block * a->n_kv_heads + g->kv_head) * block_size);
        s.next[b] = cache_at(a->kv, a->kv->k, (next * a->n_kv_heads + g->kv_head) * block_size);
        if (!g->widens) continue;
        float *wide = g->wide + b * block_size;
        for (size_t i = 0; i < block_size; i += 32) {
            att_ask(s.next[b] + 2 * i, 32);
            for (size_t j = i; j < i + 32; j += V_LANES) v_store(wide + j, att_load(true, s.k[b], j));
        }
        s.k[b] = wide;
    }
    const bool half = a->kv->dtype == BASE_F16 && !g->widens;
    for (uint32_t i = 0, tile = tile_queries(g); i < g->n; i += tile) {
        uint32_t n = g->n - i < tile ? g->n - i : tile;
        s.q = g->q + (size_t)i * a->head_dim;
        s.e = g->e + i * g->e_stride + (position - g->base);
        score_fns[half][n_blocks == 1][n - 1](&s);
    }
}

static void score_range(const att_group *g, uint32_t position, uint32_t end)
{
    for (; position + 16 * (ATT_BLOCKS - 1) < end; position += 16 * ATT_BLOCKS)
        score_blocks(g, position, ATT_BLOCKS);
    for (; position < end; position += 16) score_blocks(g, position, 1);
}

/* The vector at i of which only the elements within [begin, end) count; the others become `other`. */
V_INLINE vf att_edges(vf x, size_t i, size_t begin, size_t end, vf other)
{
    if (i >= begin && end - i >= V_LANES) return x;
    return v_between(i < begin ? begin - i : 0, end - i < V_LANES ? end - i : V_LANES, x, other);
}

/* The scores e[begin] ... e[end - 1], capped; gives the largest. What lies before and behind is left as
 * anything. */
static float top_score(const kern_attention *a, float *e, size_t begin, size_t end)
{
    const vf lowest = v_castf(v_set32((int32_t)0xff800000)), cap = v_set(a->softcap);
    vf top = lowest;
    for (size_t i = begin / V_LANES * V_LANES; i < end; i += V_LANES) {
        vf s = v_load(e + i);
        if (a->softcap != 0.0f) v_store(e + i, s = v_mul(cap, v_tanh(v_div(s, cap))));
        top = v_max(att_edges(s, i, begin, end, lowest), top);
    }
    return v_max_lane(top);
}

/* Scores e[begin] ... e[end - 1] to weights, zeros beside them in their vectors; adds them to the lanes. */
static void weigh(float *e, size_t begin, size_t end, float largest, vf *lanes)
{
    const vf max = v_set(largest), low = v_set(KERN_ATTENTION_LOW);
    for (size_t i = begin / V_LANES * V_LANES; i < end; i += V_LANES) {
        vf below = v_sub(v_load(e + i), max); /* v_max keeps what is no number */
        vf x = v_less(below, low, v_zero(), v_exp(v_max(low, below)));
        v_store(e + i, x = att_edges(x, i, begin, end, v_zero()));
        lanes[i / V_LANES % ATT_PARTS] = v_add(lanes[i / V_LANES % ATT_PARTS], x);
    }
}

/* Queries i ... of one tile: the positions [from, to) of a tile that begins at p0. */
static void value_run(const att_group *g, value_args *v, const char *v0, size_t v_bytes, bool half,
                      uint32_t p0, uint32_t i, uint32_t n, size_t d, uint32_t from, uint32_t to)
{
    if (from >= to) return;
    v->e = g->e + i * g->e_stride + (from - g->base);
    v->v = v0 + (from - p0) * v_bytes;
    v->n = to - from;
    v->acc = g->acc + (size_t)i * g->a->head_dim + d;
    value_fns[half][v->tail != 0][n - 1](v);
}

/* Elements d ... of all queries, over the positions [from, to), which do not wrap around the cache. */
static void value_chunk(const att_group *g, uint32_t from, uint32_t to, uint32_t d)
{
    const kern_attention *a = g->a;
    const size_t stride = (size_t)a->n_kv_heads * a->head_dim, left = a->head_dim - d;
    size_t tail = left >= ATT_WIDTH ? 0 : left < V_LANES ? left : V_LANES;
    const bool half = a->kv->dtype == BASE_F16 && !g->widens;
    const char *v0 =
        cache_at(a->kv, a->kv->v, from % a->kv->capacity * stride + (size_t)g->kv_head * a->head_dim + d);
    value_args v = {.e_stride = g->e_stride, .v_stride = stride, .acc_stride = a->head_dim, .tail = tail};
    size_t v_bytes = stride * (half ? 2 : 4);
    if (g->widens) {
        for (uint32_t p = 0; p < to - from; p++) {
            const char *row = v0 + p * stride * 2;
            att_ask(row + ATT_AHEAD * stride * 2, tail ? tail : ATT_WIDTH);
            if (tail)
                v_store_n(g->wide + p * ATT_WIDTH, att_load_n(true, row, 0, tail), tail);
            else
                for (size_t c = 0; c < ATT_WIDTH; c += V_LANES)
                    v_store(g->wide + p * ATT_WIDTH + c, att_load(true, row, c));
        }
        v0 = (const char *)g->wide;
        v.v_stride = ATT_WIDTH;
        v_bytes = ATT_WIDTH * 4;
    }
    for (uint32_t i = 0, tile = tile_queries(g); i < g->n; i += tile) {
        uint32_t n = g->n - i < tile ? g->n - i : tile;
        /* What all see: rows begin and end one after the other. */
        uint32_t low = query_first(g, i + n - 1), high = query_last(g, i) + 1;
        low = low < from ? from : low > to ? to : low;
        high = high > to ? to : high < low ? low : high;
        for (uint32_t j = i, same; j < i + n; j += same) {
            for (same = 1; j + same < i + n && query_last(g, j + same) == query_last(g, j);) same++;
            uint32_t first = query_first(g, j), end = query_last(g, j) + 1;
            value_run(g, &v, v0, v_bytes, half, from, j, same, d, first < from ? from : first,
                      end < low ? end : low);
        }
        value_run(g, &v, v0, v_bytes, half, from, i, n, d, low, high);
        for (uint32_t j = i, same; j < i + n; j += same) {
            for (same = 1; j + same < i + n && query_last(g, j + same) == query_last(g, j);) same++;
            uint32_t first = query_first(g, j), end = query_last(g, j) + 1;
            value_run(g, &v, v0, v_bytes, half, from, j, same, d, first < high ? high : first,
                      end < to ? end : to);
        }
    }
}

/* total += acc for the queries that see something of the segment from `begin` to before `end`. */
static void fold_segment(const att_group *g, uint32_t begin, uint32_t end)
{
    const size_t n = g->a->head_dim;
    for (uint32_t i = 0; i < g->n; i++) {
        float *acc = g->acc + i * n, *total = g->total + i * n;
        if (query_first(g, i) >= end || query_last(g, i) < begin) continue;
        for (size_t d = 0; d < n; d += V_LANES) {
            size_t left = n - d < V_LANES ? n - d : V_LANES;
            v_store_n(total + d, v_add(v_load_n(total + d, left), v_load_n(acc + d, left)), left);
        }
    }
    memset(g->acc, 0, g->n * n * sizeof(float));
}

/* Adds the positions [from, to) of one segment to acc. */
static void value_segment(const att_group *g, uint32_t from, uint32_t to)
{
    const uint32_t head_dim = g->a->head_dim, capacity = g->a->kv->capacity;
    for (uint32_t n; from < to; from += n) {
        uint32_t wrap = capacity - from % capacity;
        n = to - from < ATT_POSITIONS ? to - from : ATT_POSITIONS;
        if (n > wrap) n = wrap;
        for (uint32_t d = 0; d < head_dim;) {
            value_chunk(g, from, from + n, d);
            d += head_dim - d >= ATT_WIDTH ? ATT_WIDTH : V_LANES;
        }
    }
}

static void value_all(const att_group *g)
{
    const size_t n = (size_t)g->n * g->a->head_dim;
    memset(g->acc, 0, n * sizeof(float));
    memset(g->total, 0, n * sizeof(float));
    for (uint32_t from = query_first(g, 0), to; from < g->end; from = to) {
        to = from - from % KERN_ATTENTION_SEGMENT + KERN_ATTENTION_SEGMENT;
        if (to > g->end) to = g->end;
        value_segment(g, from, to);
        fold_segment(g, from, to);
    }
}

static void finish_group(const att_group *g)
{
    const kern_attention *a = g->a;
    for (uint32_t i = 0; i < g->n; i++) {
        size_t head = g->head + i % g->n_heads, n = a->head_dim;
        float *out = a->out + (g->row + i / g->n_heads) * a->out_stride + head * n;
        const float *total = g->total + i * n;
        for (size_t d = 0; d < n; d += V_LANES) {
            size_t left = n - d < V_LANES ? n - d : V_LANES;
            v_store_n(out + d, v_div(v_load_n(total + d, left), v_set(g->sum[i])), left);
        }
    }
}

/* The beginning of a group's scratch; heads, rows and their number are set. */
static void open_group(att_group *g, float *scratch)
{
    const uint32_t head_dim = g->a->head_dim;
    g->widens = g->a->kv->dtype == BASE_F16 && g->n > tile_queries(g);
    g->wide = scratch;
    g->q = g->wide + KERN_ATTENTION_WIDE * (size_t)(head_dim > 64 ? head_dim : 64);
}

static void scale_queries(const att_group *g)
{
    const kern_attention *a = g->a;
    const uint32_t head_dim = a->head_dim, tile = tile_queries(g);
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t at = i / tile * tile, n = g->n - at < tile ? g->n - at : tile;
        const float *q =
            a->q + (g->row + i / g->n_heads) * a->q_stride + (size_t)(g->head + i % g->n_heads) * head_dim;
        for (size_t d = 0; d < head_dim; d++)
            g->q[(size_t)at * head_dim + d * n + (i - at)] = q[d] * a->scale;
    }
}

static void attend_group(att_group *g, float *scratch)
{
    const kern_attention *a = g->a;
    g->base = query_first(g, 0) / 16 * 16;
    g->end = query_last(g, g->n - 1) + 1;
    /* At most sixteen more than the positions, rounded up: first and last may both cut a block. */
    g->e_stride = (size_t)(g->end - 1 - g->base) / 16 * 16 + 16;
    g->e_stride |= 16; /* an odd number of lines: rows of queries do not share their place in the caches */
    open_group(g, scratch);
    scale_queries(g);
    g->acc = g->q + (size_t)KERN_ATTENTION_QUERIES * a->head_dim;
    g->total = g->acc + (size_t)KERN_ATTENTION_QUERIES * a->head_dim;
    g->e = g->total + (size_t)KERN_ATTENTION_QUERIES * a->head_dim;
    score_range(g, g->base, g->end);
    for (uint32_t i = 0; i < g->n; i++) {
        float *e = g->e + i * g->e_stride;
        size_t begin = query_first(g, i) - g->base, end = (size_t)query_last(g, i) - g->base + 1;
        vf lanes[ATT_PARTS];
        for (int p = 0; p < ATT_PARTS; p++) lanes[p] = v_zero();
        weigh(e, begin, end, top_score(a, e, begin, end), lanes);
        g->sum[i] = v_tree(lanes);
    }
    value_all(g);
    finish_group(g);
}

/* The heads from `head` on that go together. */
static void next_heads(att_group *g, uint32_t head, uint32_t head_end)
{
    const uint32_t shared = g->a->n_heads / g->a->n_kv_heads;
    g->head = head;
    g->kv_head = head / shared;
    g->n_heads = (g->kv_head + 1) * shared - head;
    if (g->n_heads > head_end - head) g->n_heads = head_end - head;
    if (g->n_heads > KERN_ATTENTION_QUERIES) g->n_heads = KERN_ATTENTION_QUERIES;
}

void V_NAME(kern_attention)(const kern_attention *a, uint32_t head_begin, uint32_t head_end, void *scratch)
{
    att_group g = {.a = a};
    for (uint32_t head = head_begin; head < head_end; head += g.n_heads) {
        next_heads(&g, head, head_end);
        for (g.row = 0; g.row < a->n_rows; g.row += g.n_rows) {
            g.n_rows = KERN_ATTENTION_QUERIES / g.n_heads;
            if (g.n_rows > a->n_rows - g.row) g.n_rows = a->n_rows - g.row;
            g.n = g.n_rows * g.n_heads;
            attend_group(&g, scratch);
        }
    }
}

/* ---- the same in steps ----
 *
 * All heads go along a segment together, a stretch of positions after the other: the cache is read as it
 * lies.
 */
#define CUT_STRETCH (2 * ATT_POSITIONS)

/* The heads of a cut from `head` on that go together, of those from head_begin on. */
static void open_cut(att_group *g, const kern_attention_cut *c, uint32_t head_begin, uint32_t head,
                     uint32_t head_end, void *scratch)
{
    next_heads(g, head, head_end);
    g->n = g->n_heads;
    g->base = kern_cut_base(c);
    g->e_stride = c->e_stride;
    g->e = c->e + head * c->e_stride;
    open_group(g, scratch);
    g->q += (size_t)(head - head_begin) * c->a.head_dim;
}

/* Where the stretch that holds position p ends. */
static uint32_t stretch_end(uint32_t p, uint32_t to)
{
    return to - p < CUT_STRETCH - p % CUT_STRETCH ? to : p - p % CUT_STRETCH + CUT_STRETCH;
}

void V_NAME(kern_attention_scores)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                                   uint32_t segment, void *scratch)
{
    att_group g = {.a = &c->a, .n_rows = 1};
    uint32_t from, to;
    kern_cut_range(c, segment, &from, &to);
    for (uint32_t head = head_begin; head < head_end; head += g.n_heads) {
        open_cut(&g, c, head_begin, head, head_end, scratch);
        scale_queries(&g);
    }
    for (uint32_t p = from / 16 * 16, end; p < to; p = end) {
        end = stretch_end(p, to);
        for (uint32_t head = head_begin; head < head_end; head += g.n_heads) {
            open_cut(&g, c, head_begin, head, head_end, scratch);
            score_range(&g, p, end);
        }
    }
    for (uint32_t head = head_begin; head < head_end; head++)
        c->top[(size_t)head * c->n_segments + segment] =
            top_score(&c->a, c->e + head * c->e_stride, from - kern_cut_base(c), to - kern_cut_base(c));
}

void V_NAME(kern_attention_values)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                                   uint32_t segment, void *scratch)
{
    att_group g = {.a = &c->a, .n_rows = 1};
    uint32_t from, to, base = kern_cut_base(c);
    kern_cut_range(c, segment, &from, &to);
    for (uint32_t head = head_begin; head < head_end; head++) {
        vf lanes[ATT_PARTS]; /* of this segment alone: of no use */
        for (int p = 0; p < ATT_PARTS; p++) lanes[p] = v_zero();
        weigh(c->e + head * c->e_stride, from - base, to - base, kern_cut_top(c, head), lanes);
        memset(kern_cut_sums(c, segment, head), 0, c->a.head_dim * sizeof(float));
    }
    for (uint32_t p = from, end; p < to; p = end) {
        end = stretch_end(p, to);
        for (uint32_t head = head_begin; head < head_end; head += g.n_heads) {
            open_cut(&g, c, head_begin, head, head_end, scratch);
            g.acc = kern_cut_sums(c, segment, head);
            value_segment(&g, p, end);
        }
    }
}

void V_NAME(kern_attention_finish)(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end)
{
    const kern_attention *a = &c->a;
    const size_t n = a->head_dim, begin = (a->first - kern_cut_base(c)) / V_LANES * V_LANES;
    for (uint32_t head = head_begin; head < head_end; head++) {
        const float *e = c->e + head * c->e_stride;
        vf lanes[ATT_PARTS];
        for (int p = 0; p < ATT_PARTS; p++) lanes[p] = v_zero();
        for (size_t i = begin; i <= a->last - kern_cut_base(c); i += V_LANES)
            lanes[i / V_LANES % ATT_PARTS] = v_add(lanes[i / V_LANES % ATT_PARTS], v_load(e + i));
        const vf sum = v_set(v_tree(lanes));
        for (size_t d = 0; d < n; d += V_LANES) {
            size_t left = n - d < V_LANES ? n - d : V_LANES;
            vf total = v_zero();
            for (uint32_t s = 0; s < c->n_segments; s++)
                total = v_add(total, v_load_n(kern_cut_sums(c, s, head) + d, left));
            v_store_n(a->out + head * n + d, v_div(total, sum), left);
        }
    }
}

#endif
