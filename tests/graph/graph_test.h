/* What the tests of graph share: a component of random weights in a small file, programs drawn at random over
 * them, and passes over two sequences. */
#ifndef WEIR_GRAPH_TEST_H
#define WEIR_GRAPH_TEST_H

#include "graph/graph.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define VOCAB       200
#define CONTEXT     64
#define MAX_ROWS    9
#define N_SEQUENCES 2
#define MAX_LAYERS  6
#define N_HEADS     8
#define N_KV_HEADS  2
#define HEAD_DIM    32 /* q: 256 columns, k and v: 64 */
#define N_SIZES     3
#define N_TYPES     4
#define HASH_START  0xCBF29CE484222325u

static const uint32_t sizes[N_SIZES] = {64, 256, 512};
static const uint32_t types[N_TYPES] = {BASE_F32, BASE_F16, BASE_Q8_0, BASE_Q4_0};

#define assert_status(f, call, wanted)                                                                       \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != (wanted))                                                                          \
            fail_msg("%s: %s instead of %s: %s", #call, weir_status_name(got_status),                        \
                     weir_status_name(wanted), (f)->err.message);                                            \
    } while (0)

typedef struct fixture {
    base_env *env;
    weir_error err;
    char path[256];
    base_file *file;
    uint8_t *data;
    uint64_t n_data;
    mem_component *c;
    dev_device *dev;
    graph_weight table;
    graph_weight matrix[N_TYPES][N_SIZES][N_SIZES]; /* [type][rows][cols] */
    graph_weight norm[3][N_SIZES + 1];              /* [F32, F16, BF16][size]; the last one: HEAD_DIM */
    graph_weight bias[3][N_SIZES];
    double inv_freq[HEAD_DIM / 2];
    dev_kv kv[MAX_LAYERS][N_SEQUENCES];
    const dev_kv *by_layer[MAX_LAYERS];
} fixture;

static inline float draw(base_rng *rng)
{
    return (float)base_rng_u32(rng) / 4294967296.0f * 2 - 1;
}

/* n values in the file's form behind `at`; blocks have a scale near 1/1000. Returns the bytes written. */
static inline uint64_t put_values(base_rng *rng, uint8_t *at, uint32_t dtype, uint64_t n, float scale)
{
    const base_dtype_info *info = base_dtype_get(dtype);
    uint64_t bytes = n / info->block_elements * info->block_bytes;

    for (uint64_t i = 0; i < bytes; i++) at[i] = (uint8_t)(base_rng_u32(rng) >> 24);
    for (uint64_t i = 0; i < n && info->block_elements == 1; i++) {
        float x = draw(rng) * scale;
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, &x, 4);
        half =
            (uint16_t)(dtype == BASE_BF16 ? bits >> 16 : 0x2000 | (bits >> 16 & 0x8FFF)); /* any small f16 */
        if (dtype == BASE_F32)
            memcpy(at + i * 4, &x, 4);
        else
            memcpy(at + i * 2, &half, 2);
    }
    for (uint64_t i = 0; i < n / 32 && info->block_elements == 32; i++) {
        uint16_t d = (uint16_t)(0x1000 + (base_rng_u32(rng) & 0x3FF));

        memcpy(at + i * info->block_bytes, &d, 2);
    }
    return bytes;
}

static inline graph_weight add_weight(fixture *f, base_rng *rng, uint32_t unit, uint32_t dtype, uint32_t rows,
                                      uint32_t cols, int kind /* 0 matrix, 1 fixed, 2 table */)
{
    graph_weight w = {.dtype = dtype, .n_rows = rows, .cols = cols};
    mem_weight_desc desc = {.name = "w", .n_rows = rows, .streamable = kind == 0, .by_row = kind == 2};
    static const float scales[] = {0.06f, 1.0f, 1.0f};

    f->n_data = base_align_up(f->n_data, 32);
    desc.file = f->file;
    desc.offset = f->n_data;
    assert_true(base_dtype_row_bytes(dtype, cols, &desc.row_bytes));
    if (f->data != NULL)
        f->n_data += put_values(rng, f->data + f->n_data, dtype, (uint64_t)rows * cols, scales[kind]);
    else
        f->n_data += desc.row_bytes * rows;
    if (f->c != NULL) assert_status(f, mem_component_add_weight(f->c, unit, &desc, &w.id, &f->err), WEIR_OK);
    return w;
}

/* All weights, in one unit per type. Called to measure, to fill the file, and to register. */
static inline void add_weights(fixture *f)
{
    static const uint32_t float_types[] = {BASE_F32, BASE_F16, BASE_BF16};
    base_rng rng;
    uint32_t unit = 0;

    base_rng_seed(&rng, 5, 6);
    f->n_data = 0;
    for (int t = 0; t < N_TYPES; t++) {
        if (f->c != NULL)
            assert_status(f, mem_component_add_unit(f->c, "matrices", MEM_MARK_NONE, &unit, &f->err),
                          WEIR_OK);
        for (int r = 0; r < N_SIZES; r++)
            for (int k = 0; k < N_SIZES; k++)
                f->matrix[t][r][k] = add_weight(f, &rng, unit, types[t], sizes[r], sizes[k], 0);
    }
    for (int t = 0; t < 3; t++)
        for (int i = 0; i <= N_SIZES; i++) {
            f->norm[t][i] =
                add_weight(f, &rng, unit, float_types[t], 1, i < N_SIZES ? sizes[i] : HEAD_DIM, 1);
            if (i < N_SIZES) f->bias[t][i] = add_weight(f, &rng, unit, float_types[t], 1, sizes[i], 1);
        }
    f->table = add_weight(f, &rng, unit, BASE_Q8_0, VOCAB, 256, 2);
}

static inline void write_file(const fixture *f)
{
    int fd = open(f->path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    assert_true(fd >= 0);
    for (uint64_t done = 0; done < f->n_data;) {
        ssize_t n = write(fd, f->data + done, f->n_data - done);

        assert_true(n > 0);
        done += (uint64_t)n;
    }
    close(fd);
}

static inline void place(fixture *f, bool smallest)
{
    mem_place_options options = {.aio = {.backend = BASE_AIO_AUTO, .depth = 8}};
    mem_plan plan, whole;

    assert_status(f, mem_plan_make(f->c, UINT64_MAX / 2, &whole, &f->err), WEIR_OK);
    assert_status(f, mem_plan_make(f->c, smallest ? whole.smallest_bytes : whole.whole_bytes, &plan, &f->err),
                  WEIR_OK);
    assert_status(f, mem_place(f->c, &plan, &options, &f->err), WEIR_OK);
}

static inline void open_caches(fixture *f)
{
    for (int l = 0; l < MAX_LAYERS; l++) {
        for (int s = 0; s < N_SEQUENCES; s++) {
            uint64_t k, v;

            f->dev->table->kv_bytes(f->dev, BASE_F16, CONTEXT, N_KV_HEADS, HEAD_DIM, &k, &v);
            f->kv[l][s] = (dev_kv){.dtype = BASE_F16, .capacity = CONTEXT};
            f->kv[l][s].k = aligned_alloc(64, k);
            f->kv[l][s].v = aligned_alloc(64, v);
            memset(f->kv[l][s].k, 0, k);
            memset(f->kv[l][s].v, 0, v);
        }
        f->by_layer[l] = f->kv[l];
    }
}

static inline void fixture_open(fixture *f, uint32_t n_threads, bool smallest)
{
    const char *folder = getenv("TMPDIR");

    memset(f, 0, sizeof(*f));
    snprintf(f->path, sizeof(f->path), "%s/weir_graph_%ld", folder != NULL ? folder : "/tmp", (long)getpid());
    add_weights(f);
    f->data = malloc(f->n_data);
    add_weights(f);
    write_file(f);
    free(f->data);
    f->data = NULL;
    assert_status(f, base_env_create(&f->env, &f->err), WEIR_OK);
    assert_status(f, base_file_open(f->env, f->path, &f->file, &f->err), WEIR_OK);
    assert_status(f, mem_component_create(f->env, "test", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    add_weights(f);
    assert_status(f, mem_component_seal(f->c, &f->err), WEIR_OK);
    assert_status(f, dev_cpu_create(f->env, "auto", n_threads, &f->dev, &f->err), WEIR_OK);
    place(f, smallest);
    open_caches(f);
    for (int i = 0; i < HEAD_DIM / 2; i++) f->inv_freq[i] = pow(10000, -2.0 * i / HEAD_DIM);
}

static inline void fixture_close(fixture *f)
{
    base_ledger_view view;

    for (int l = 0; l < MAX_LAYERS; l++)
        for (int s = 0; s < N_SEQUENCES; s++) {
            free(f->kv[l][s].k);
            free(f->kv[l][s].v);
        }
    dev_destroy(f->dev);
    mem_component_destroy(f->c);
    base_file_close(f->file);
    unlink(f->path);
    base_ledger_read(f->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(f->env);
}

/* ---- random programs ---- */

/* A product of x (of size index `from`) to size index `to`, of any type, with or without bias. */
static inline graph_id draw_matmul(const fixture *f, graph_program *p, base_rng *rng, graph_id x, int from,
                                   int to)
{
    graph_weight none = {.id = MEM_NO_WEIGHT};
    uint32_t bias = base_rng_u32(rng) % 6;

    return graph_matmul(p, x, f->matrix[base_rng_u32(rng) % N_TYPES][to][from],
                        bias < 3 ? f->bias[bias][to] : none);
}

static inline graph_id draw_attention(const fixture *f, graph_program *p, base_rng *rng, graph_id h,
                                      graph_id rope, uint32_t layer)
{
    graph_attention_params a = {.layer = layer,
                                .n_heads = N_HEADS,
                                .n_kv_heads = N_KV_HEADS,
                                .head_dim = HEAD_DIM,
                                .window = base_rng_u32(rng) % 2 != 0 ? 5 : 0,
                                .scale = 0.17f,
                                .softcap = base_rng_u32(rng) % 3 == 0 ? 8.0f : 0.0f};
    bool neox = base_rng_u32(rng) % 2 != 0;
    graph_id q = draw_matmul(f, p, rng, h, 1, 1), k = draw_matmul(f, p, rng, h, 1, 0);
    graph_id v = draw_matmul(f, p, rng, h, 1, 0);

    if (base_rng_u32(rng) % 2 != 0)
        q = graph_rms_norm(p, q, f->norm[base_rng_u32(rng) % 3][N_SIZES], HEAD_DIM, 1e-5f, 1);
    q = graph_rope(p, q, rope, HEAD_DIM, HEAD_DIM, neox);
    k = graph_rope(p, k, rope, HEAD_DIM, HEAD_DIM, neox);
    return graph_attention(p, q, k, v, &a);
}

static inline graph_id draw_feed_forward(const fixture *f, graph_program *p, base_rng *rng, graph_id h)
{
    int wide = 1 + (int)(base_rng_u32(rng) % 2);
    graph_id gate = draw_matmul(f, p, rng, h, 1, wide), up = draw_matmul(f, p, rng, h, 1, wide);

    h = graph_glu(p, gate, up, base_rng_u32(rng) % 2 != 0);
    if (base_rng_u32(rng) % 3 == 0) h = graph_scale(p, h, 0.5f);
    return draw_matmul(f, p, rng, h, wide, 1);
}

/* Layers drawn from the seed: attention or feed-forward, with extra branches that live long or die at once.
 */
static inline graph_id draw_program(const fixture *f, graph_program *p, uint64_t seed)
{
    base_rng rng;
    graph_id x, rope, side = -1;
    uint32_t n_layers;

    base_rng_seed(&rng, seed, 77);
    n_layers = 1 + base_rng_u32(&rng) % MAX_LAYERS;
    graph_mark_phase(p, "first");
    x = graph_embed(p, f->table, 0.5f);
    rope = graph_rope_table(p, f->inv_freq, HEAD_DIM, 1.1);
    graph_mark_phase(p, "second");
    for (uint32_t l = 0; l < n_layers; l++) {
        graph_id h = graph_rms_norm(p, x, f->norm[base_rng_u32(&rng) % 3][1], 0, 1e-5f, 0.5f);

        h = base_rng_u32(&rng) % 2 != 0 ? draw_attention(f, p, &rng, h, rope, l)
                                        : draw_feed_forward(f, p, &rng, h);
        if (base_rng_u32(&rng) % 3 == 0) h = graph_softcap(p, h, 4.0f);
        if (side >= 0 && base_rng_u32(&rng) % 2 != 0) h = graph_add(p, h, side);
        x = graph_add(p, h, x);
        if (base_rng_u32(&rng) % 2 != 0) side = draw_matmul(f, p, &rng, x, 1, 1);
    }
    graph_mark_phase(p, "third");
    x = graph_select_outputs(p, x);
    x = graph_rms_norm(p, x, f->norm[base_rng_u32(&rng) % 3][1], 0, 1e-5f, 0);
    return draw_matmul(f, p, &rng, x, 1, 2);
}

static inline graph_program *make_program(fixture *f, uint64_t seed, bool alias)
{
    graph_options o = {.max_rows = MAX_ROWS, .max_outputs = MAX_ROWS, .alias = alias};
    graph_program *p;

    assert_status(f, graph_program_create(f->env, f->dev, f->c, &o, &p, &f->err), WEIR_OK);
    assert_status(f, graph_finish(p, draw_program(f, p, seed), &f->err), WEIR_OK);
    assert_status(f, graph_reserve(p, CONTEXT, HEAD_DIM, &f->err), WEIR_OK);
    return p;
}

/* ---- passes ---- */

static inline uint64_t hash_row(uint64_t h, const float *x)
{
    const unsigned char *bytes = (const unsigned char *)x;

    for (size_t i = 0; i < sizes[2] * sizeof(float); i++) h = (h ^ bytes[i]) * 0x100000001B3u;
    return h;
}

static inline int32_t token_at(uint32_t sequence, int32_t position)
{
    return (int32_t)((uint32_t)position * 37 + sequence * 11 + 3) % VOCAB;
}

/* One row of each of the sequences [from, to) x n positions from `position` on; outputs for all of them. */
static inline weir_status pass(fixture *f, graph_program *p, uint32_t from, uint32_t to, int32_t position,
                               uint32_t n, bool outputs)
{
    int32_t tokens[MAX_ROWS], positions[MAX_ROWS];
    uint32_t sequences[MAX_ROWS], rows[MAX_ROWS], r = 0;
    graph_batch b = {.token = tokens,
                     .position = positions,
                     .sequence = sequences,
                     .kv = f->by_layer,
                     .output_rows = rows};

    for (uint32_t s = from; s < to; s++)
        for (uint32_t i = 0; i < n; i++, r++) {
            tokens[r] = token_at(s, position + (int32_t)i);
            positions[r] = position + (int32_t)i;
            sequences[r] = s;
            rows[r] = r;
        }
    b.n_rows = r;
    b.n_outputs = outputs ? r : 0;
    return graph_run(p, &b, &f->err);
}

/* The rows' hash of sequence 0 over `total` positions in pieces of `chunk`, with sequence 1 beside it or not.
 */
static inline uint64_t run_all(fixture *f, graph_program *p, uint32_t total, uint32_t chunk, bool both)
{
    uint64_t h = HASH_START;

    for (uint32_t at = 0; at < total; at += chunk) {
        uint32_t n = total - at < chunk ? total - at : chunk;

        assert_status(f, pass(f, p, 0, both ? 2 : 1, (int32_t)at, n, true), WEIR_OK);
        for (uint32_t i = 0; i < n; i++) h = hash_row(h, graph_result(p, i));
    }
    return h;
}

/* What the programs of n seeds must give however they run: on one thread of the CPU, all resident, nothing
 * shared, one position at a time. */
static inline void expect_all(uint64_t *expected, uint64_t n_seeds, uint32_t n_positions)
{
    fixture f;
    fixture_open(&f, 1, false);
    for (uint64_t s = 0; s < n_seeds; s++) {
        graph_program *p = make_program(&f, s, false);
        expected[s] = run_all(&f, p, n_positions, 1, false);
        assert_true(expected[s] != HASH_START);
        for (uint64_t t = 0; t < s; t++) assert_true(expected[s] != expected[t]);
        for (uint32_t i = 0; i < sizes[2]; i++) assert_true(isfinite(graph_result(p, 0)[i]));
        graph_program_destroy(p);
    }
    fixture_close(&f);
}

#endif
