/* Every kernel set against the reference, bit for bit (NaN equals NaN), over random and edge inputs, all row
 * offsets and token counts. The reference runs too, against itself cut differently, so that something is
 * always compared.
 *
 * What a set may not do either: write outside its range, or read behind the end of an input (all inputs end
 * at a forbidden page). Sets this machine lacks are skipped, and counted. */
#include "kern_test.h"

#define SEED 20240611u

static const char *const set_names[] = {"ref", "avx2", "avx512", "neon"};

typedef struct job {
    const char *set;
    uint64_t compared; /* numbers */
    bool skipped;
} job;

typedef struct pair_of_tables {
    const kern_table *ref, *set;
    job *job;
    test_rng rng;
} pair_of_tables;

static pair_of_tables begin(void **state)
{
    pair_of_tables t = {.job = *state, .rng = {SEED}};
    weir_error err;
    assert_int_equal(kern_select("ref", &t.ref, NULL), WEIR_OK);
    weir_status status = kern_select(t.job->set, &t.set, &err);
    if (status != WEIR_OK) {
        assert_int_equal(status, WEIR_ERR_UNSUPPORTED);
        t.job->skipped = true;
        skip();
    }
    assert_string_equal(t.set->name, t.job->set);
    return t;
}

static void compare(pair_of_tables *t, const float *want, const float *got, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++) {
        if (same_float(want[i], got[i])) continue;
        print_error("%s: %s: element %zu of %zu: ref %a (%08x), got %a (%08x); seed %u\n", t->job->set, where,
                    i, n, (double)want[i], bits_of_float(want[i]), (double)got[i], bits_of_float(got[i]),
                    SEED);
        fail();
    }
    t->job->compared += n;
}

static void compare_bytes(pair_of_tables *t, const void *want, const void *got, size_t n, const char *where)
{
    const uint8_t *a = want, *b = got;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            print_error("%s: %s: byte %zu of %zu: ref %02x, got %02x; seed %u\n", t->job->set, where, i, n,
                        a[i], b[i], SEED);
            fail();
        }
    t->job->compared += n;
}

/* ---- dequantize, quantize ---- */
static void test_dequantize(void **state)
{
    pair_of_tables t = begin(state);
    for (size_t d = 0; d < COUNT(test_dtypes); d++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (size_t n_blocks = 1; n_blocks < 40; n_blocks++) {
                const base_dtype_info *info = base_dtype_get(test_dtypes[d]);
                size_t n = n_blocks * info->block_elements, bytes = n_blocks * info->block_bytes;
                guarded gs, ga, gb;
                uint8_t *src = guarded_alloc(&gs, bytes, 0);
                float *want = guarded_alloc(&ga, n * 4, 0xee), *got = guarded_alloc(&gb, n * 4, 0xdd);
                fill_weights(&t.rng, mode, test_dtypes[d], src, n);
                t.ref->dequantize(test_dtypes[d], src, n, want);
                t.set->dequantize(test_dtypes[d], src, n, got);
                compare(&t, want, got, n, info->name);
                guarded_free(&gs), guarded_free(&ga), guarded_free(&gb);
            }
}

/* NaN in a scale may differ in its bits; everything else is compared as bytes. */
static void compare_act(pair_of_tables *t, kern_act act, size_t k, const uint8_t *want, const uint8_t *got)
{
    size_t n_d = k / (act == KERN_ACT_Q32 ? 32 : 256), n_sum = k / (act == KERN_ACT_Q32 ? 32 : 16);
    compare_bytes(t, want, got, k, "quantize: q");
    compare(t, (const float *)(want + k), (const float *)(got + k), n_d, "quantize: d");
    compare_bytes(t, want + k + 4 * n_d, got + k + 4 * n_d, 4 * n_sum, "quantize: sums");
}

/* Numbers within an ulp or two of the middle between two steps, for a scale that is no power of two: another
 * order of the division and the product would round some of them the other way. */
static void fill_near_ties(test_rng *r, float *x, size_t k)
{
    float amax = ldexpf(1.0f + (float)rng_below(r, 1 << 20) * 0x1p-20f, (int)rng_below(r, 40) - 20);
    for (size_t i = 0; i < k; i++) {
        float v = (float)((rng_below(r, 127) + 0.5) * amax / 127.0);
        x[i] = float_from_bits(bits_of_float(v) + rng_below(r, 3) - 1);
    }
    for (size_t i = 0; i < k; i += 32) x[i] = amax;
}

static void test_quantize(void **state)
{
    pair_of_tables t = begin(state);
    static const kern_act acts[] = {KERN_ACT_Q32, KERN_ACT_Q256};
    for (int a = 0; a < 2; a++)
        for (int mode = 0; mode < N_MODES + 3; mode++)
            for (size_t blocks = 1; blocks < 30; blocks++) {
                size_t k = blocks * (a ? 256 : 32), bytes = kern_act_row_bytes(acts[a], k);
                guarded gx, ga, gb;
                float *x = guarded_alloc(&gx, k * 4, 0);
                uint8_t *want = guarded_alloc(&ga, bytes, 0), *got = guarded_alloc(&gb, bytes, 0);
                for (size_t i = 0; i < k; i++) {
                    float v = rng_float(&t.rng, mode < N_MODES ? mode : PLAIN);
                    if (mode == N_MODES) v = (float)((int)rng_below(&t.rng, 509) - 254) * 0.5f; /* ties */
                    if (mode == N_MODES + 1) v = ldexpf(v, -118 - (int)(i / 32) % 32); /* near the smallest */
                    x[i] = v;
                }
                if (mode == N_MODES)
                    for (size_t i = 0; i < k; i += 32) x[i + rng_below(&t.rng, 32)] = 127.0f;
                if (mode == N_MODES + 2) fill_near_ties(&t.rng, x, k);
                t.ref->quantize(acts[a], x, k, want);
                t.set->quantize(acts[a], x, k, got);
                compare_act(&t, acts[a], k, want, got);
                guarded_free(&gx), guarded_free(&ga), guarded_free(&gb);
            }
}

/* ---- matmul ---- */
#define MAX_TOKENS 20
#define UNTOUCHED  0x7fc0dead /* a NaN that no kernel makes */

typedef struct product {
    kern_matmul m;
    guarded w, packed, act, out, bias, scratch;
    uint8_t *packed_w; /* as w, with packed_rows packed; NULL without */
    size_t packed_rows;
    size_t n_rows, n_tokens;
    void *scratch_mem;
    float *want; /* [n_tokens][n_rows] */
} product;

/* The same weights with as many groups packed as there are, or with fewer now and then. */
static void pack_product(pair_of_tables *t, product *p)
{
    const kern_matmul *m = &p->m;
    size_t n_groups = p->n_rows / KERN_PACK_ROWS;
    if (rng_below(&t->rng, 4) == 0) n_groups = rng_below(&t->rng, (uint32_t)n_groups + 1);
    if (n_groups == 0 || !kern_can_pack(m->dtype) || m->row_bytes % base_dtype_get(m->dtype)->block_bytes)
        return;
    p->packed_rows = n_groups * KERN_PACK_ROWS;
    p->packed_w = guarded_alloc(&p->packed, p->n_rows * m->row_bytes, 0);
    memcpy(p->packed_w, m->w, p->n_rows * m->row_bytes);
    for (size_t g = 0; g < n_groups; g++) {
        size_t at = g * KERN_PACK_ROWS * m->row_bytes;
        kern_pack(m->dtype, (const uint8_t *)m->w + at, m->row_bytes, p->packed_w + at);
    }
}

/* p->n_rows and p->n_tokens are set by the caller. */
static void make_product(pair_of_tables *t, product *p, uint32_t dtype, size_t k, int mode, size_t pad)
{
    size_t n_rows = p->n_rows, n_tokens = p->n_tokens;
    kern_matmul *m = &p->m;
    kern_act act = kern_act_for(dtype);
    uint64_t bytes;
    assert_true(base_dtype_row_bytes(dtype, k, &bytes));
    m->dtype = dtype;
    m->k = k;
    m->row_bytes = bytes + pad;
    m->act_stride = kern_act_row_bytes(act, k) + 64 * (k % 3);
    m->n_tokens = n_tokens;
    m->out_stride = n_rows + 3;
    /* The last row ends at the forbidden page: no padding behind it. */
    uint8_t *w = guarded_alloc(&p->w, m->row_bytes * n_rows - pad, 0);
    for (size_t r = 0; r < n_rows; r++) fill_weights(&t->rng, mode, dtype, w + r * m->row_bytes, k);
    uint8_t *x = guarded_alloc(&p->act, m->act_stride * n_tokens, 0);
    float *row = malloc(k * sizeof(float));
    for (size_t i = 0; i < n_tokens; i++) {
        fill_floats(&t->rng, mode == SPECIAL && i % 3 ? EDGES : mode, row, k);
        if (act == KERN_ACT_F32)
            memcpy(x + i * m->act_stride, row, k * sizeof(float));
        else
            t->ref->quantize(act, row, k, x + i * m->act_stride);
    }
    free(row);
    float *bias = guarded_alloc(&p->bias, n_rows * sizeof(float), 0);
    fill_floats(&t->rng, mode, bias, n_rows);
    m->w = w;
    m->act = x;
    m->bias = k % 2 || rng_below(&t->rng, 2) ? bias : NULL;
    m->out = guarded_alloc(&p->out, (m->out_stride * (n_tokens - 1) + n_rows) * sizeof(float), 0);
    p->scratch_mem = guarded_alloc(&p->scratch, kern_scratch_bytes(k), 0x5a);
    p->want = malloc(n_tokens * n_rows * sizeof(float));
    t->ref->matmul(m, 0, n_rows, p->scratch_mem);
    for (size_t i = 0; i < n_tokens; i++)
        memcpy(p->want + i * n_rows, m->out + i * m->out_stride, n_rows * sizeof(float));
    if (pad == 0) pack_product(t, p);
}

static void free_product(product *p)
{
    free(p->want);
    guarded_free(&p->w), guarded_free(&p->act), guarded_free(&p->out), guarded_free(&p->bias);
    guarded_free(&p->scratch);
    if (p->packed_w) guarded_free(&p->packed);
}

static void check_layout(pair_of_tables *t, product *p, size_t n_tokens, size_t row_begin, size_t row_end,
                         bool packed)
{
    kern_matmul m = p->m;
    size_t n_out = m.out_stride * (p->n_tokens - 1) + p->n_rows;
    char where[160];
    for (size_t i = 0; i < n_out; i++) m.out[i] = float_from_bits(UNTOUCHED);
    m.n_tokens = n_tokens;
    m.w = packed ? p->packed_w : m.w;
    m.packed_rows = packed ? p->packed_rows : 0;
    t->set->matmul(&m, row_begin, row_end, p->scratch_mem);
    for (size_t i = 0; i < n_out; i++) {
        size_t token = i / m.out_stride, row = i % m.out_stride;
        bool inside = token < n_tokens && row >= row_begin && row < row_end;
        if (inside && same_float(m.out[i], p->want[token * p->n_rows + row])) continue;
        if (!inside && bits_of_float(m.out[i]) == UNTOUCHED) continue;
        snprintf(where, sizeof where,
                 "matmul %s k=%zu rows [%zu, %zu) of %zu (%zu packed), token %zu of %zu, row %zu%s",
                 base_dtype_get(m.dtype)->name, m.k, row_begin, row_end, p->n_rows, m.packed_rows, token,
                 n_tokens, row, inside ? "" : " (written outside the range)");
        compare(t, inside ? &p->want[token * p->n_rows + row] : &(float){0.0f}, &m.out[i], 1, where);
    }
    t->job->compared += n_tokens * (row_end - row_begin);
}
static void check_product(pair_of_tables *t, product *p, size_t n_tokens, size_t row_begin, size_t row_end)
{
    check_layout(t, p, n_tokens, row_begin, row_end, false);
    if (p->packed_w) check_layout(t, p, n_tokens, row_begin, row_end, true);
}

static void test_matmul_splits(void **state)
{
    pair_of_tables t = begin(state);
    bool ref = strcmp(t.job->set, "ref") == 0; /* slow, and only compared with itself */
    for (size_t d = 0; d < COUNT(test_dtypes); d++) {
        product p = {.n_rows = 37, .n_tokens = MAX_TOKENS};
        size_t block = base_dtype_get(test_dtypes[d])->block_elements, n_rows = p.n_rows;
        make_product(&t, &p, test_dtypes[d], block == 1 ? 37 : 2 * block, PLAIN, 0);
        for (size_t tokens = 1; tokens <= MAX_TOKENS; tokens++)
            for (size_t a = 0; a < n_rows; a += ref ? 11 : 1) {
                check_product(&t, &p, tokens, a, n_rows);
                check_product(&t, &p, tokens, a, a + 1 + rng_below(&t.rng, (uint32_t)(n_rows - a)));
            }
        check_product(&t, &p, 3, 5, 5); /* empty */
        free_product(&p);
    }
}

static void test_matmul_sizes(void **state)
{
    pair_of_tables t = begin(state);
    for (size_t d = 0; d < COUNT(test_dtypes); d++) {
        size_t block = base_dtype_get(test_dtypes[d])->block_elements;
        size_t n_k = block == 1 ? 70 : block == 32 ? 20 : 9;
        for (size_t i = 1; i <= n_k; i++)
            for (int mode = 0; mode < N_MODES; mode++) {
                size_t n_rows = 1 + rng_below(&t.rng, 35);
                product p = {.n_rows = n_rows, .n_tokens = MAX_TOKENS};
                make_product(&t, &p, test_dtypes[d], i * block, mode,
                             i % 4 == 3 ? 1 + rng_below(&t.rng, 9) : 0);
                for (int j = 0; j < 3; j++) {
                    size_t a = rng_below(&t.rng, (uint32_t)n_rows);
                    check_product(&t, &p, 1 + rng_below(&t.rng, MAX_TOKENS), a, n_rows);
                }
                check_product(&t, &p, MAX_TOKENS, 0, n_rows);
                check_product(&t, &p, 1, 0, n_rows);
                free_product(&p);
            }
    }
}

/* Rows long and many enough that a set which cuts them into tiles has several, the last ones not full. */
static void test_matmul_large(void **state)
{
    static const size_t lengths[] = {2048, 4096, 5888}; /* and one block more */
    pair_of_tables t = begin(state);
    for (size_t d = 0; d < COUNT(test_dtypes); d++)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            product p = {.n_rows = 133, .n_tokens = i == 0 ? 70 : 19};
            size_t block = base_dtype_get(test_dtypes[d])->block_elements;
            make_product(&t, &p, test_dtypes[d], lengths[i] + (i ? block : 0), i == 1 ? EDGES : PLAIN, 0);
            check_product(&t, &p, p.n_tokens, 0, p.n_rows);
            check_product(&t, &p, 1, 3, p.n_rows);
            check_product(&t, &p, 5, 1, p.n_rows - 2);
            free_product(&p);
        }
}

/* Products that vanish below zero: a lane may end at -0, and the zeros behind a row's end turn it into +0. */
static void test_matmul_zero_signs(void **state)
{
    static const uint32_t dtypes[] = {BASE_F32, BASE_F16, BASE_BF16};
    pair_of_tables t = begin(state);
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t k = 1; k < 50; k++) {
            product p = {.n_rows = 3, .n_tokens = 2};
            make_product(&t, &p, dtypes[d], k, PLAIN, 0);
            float *x = (float *)(uintptr_t)p.m.act;
            for (size_t i = 0; i < k; i++) x[i] = float_from_bits(1);
            uint8_t *w = (uint8_t *)(uintptr_t)p.m.w;
            for (size_t i = 0; i < p.m.row_bytes * 3; i++)
                w[i] = dtypes[d] == BASE_F16 ? 0x90 : 0xa0; /* negative */
            p.m.bias = NULL;
            t.ref->matmul(&p.m, 0, 3, p.scratch_mem);
            for (size_t i = 0; i < 2; i++)
                memcpy(p.want + 3 * i, p.m.out + i * p.m.out_stride, 3 * sizeof(float));
            assert_int_equal(bits_of_float(p.want[0]), k % 16 ? 0 : 0x80000000u);
            check_product(&t, &p, 2, 0, 3);
            free_product(&p);
        }
}

/* ---- norm, rope, elementwise ---- */
static void test_rms_norm(void **state)
{
    pair_of_tables t = begin(state);
    for (size_t n = 1; n < 150; n++)
        for (int mode = 0; mode < N_MODES; mode++) {
            guarded gx, gw, ga, gb;
            float *x = guarded_alloc(&gx, n * 4, 0), *w = guarded_alloc(&gw, n * 4, 0);
            float *want = guarded_alloc(&ga, n * 4, 1), *got = guarded_alloc(&gb, n * 4, 2);
            fill_floats(&t.rng, mode, x, n);
            fill_floats(&t.rng, mode == SPECIAL ? EDGES : mode, w, n);
            float offset = (float)(n % 2), eps = n % 5 == 0 ? 0.0f : 1e-5f;
            t.ref->rms_norm(x, w, offset, eps, n, want);
            t.set->rms_norm(x, w, offset, eps, n, got);
            compare(&t, want, got, n, "rms_norm");
            t.set->rms_norm(x, w, offset, eps, n, x);
            compare(&t, want, x, n, "rms_norm in place");
            guarded_free(&gx), guarded_free(&gw), guarded_free(&ga), guarded_free(&gb);
        }
}

static void test_rope(void **state)
{
    pair_of_tables t = begin(state);
    for (size_t head_dim = 2; head_dim <= 132; head_dim += 2)
        for (size_t n_heads = 1; n_heads <= 5; n_heads += 2)
            for (int mode = 0; mode < N_MODES; mode++)
                for (int neox = 0; neox < 2; neox++) {
                    size_t n = head_dim * n_heads,
                           n_rot = 2 + 2 * rng_below(&t.rng, (uint32_t)(head_dim / 2));
                    guarded gt, ga, gb;
                    float *table = guarded_alloc(&gt, n_rot * 4, 0);
                    float *want = guarded_alloc(&ga, n * 4, 0), *got = guarded_alloc(&gb, n * 4, 0);
                    fill_floats(&t.rng, PLAIN, table, n_rot);
                    fill_floats(&t.rng, mode, want, n);
                    memcpy(got, want, n * 4);
                    t.ref->rope(want, n_heads, head_dim, n_rot, table, neox);
                    t.set->rope(got, n_heads, head_dim, n_rot, table, neox);
                    compare(&t, want, got, n, neox ? "rope neox" : "rope pairs");
                    guarded_free(&gt), guarded_free(&ga), guarded_free(&gb);
                }
}

typedef struct vectors {
    guarded ga, gb, gw, gg;
    float *a, *b, *want, *got;
} vectors;

static void make_vectors(pair_of_tables *t, vectors *v, size_t n, int mode)
{
    v->a = guarded_alloc(&v->ga, n * 4, 0);
    v->b = guarded_alloc(&v->gb, n * 4, 0);
    v->want = guarded_alloc(&v->gw, n * 4, 1);
    v->got = guarded_alloc(&v->gg, n * 4, 2);
    fill_floats(&t->rng, mode, v->a, n);
    fill_floats(&t->rng, mode, v->b, n);
}
static void free_vectors(vectors *v)
{
    guarded_free(&v->ga), guarded_free(&v->gb), guarded_free(&v->gw), guarded_free(&v->gg);
}

static void check_glu(pair_of_tables *t, vectors *v, size_t n)
{
    for (int kind = 0; kind < 2; kind++) {
        t->ref->glu(kind, v->a, v->b, n, v->want);
        t->set->glu(kind, v->a, v->b, n, v->got);
        compare(t, v->want, v->got, n, kind == KERN_GLU_SILU ? "glu silu" : "glu gelu");
        memcpy(v->got, v->a, n * 4);
        t->set->glu(kind, v->got, v->b, n, v->got);
        compare(t, v->want, v->got, n, "glu in place");
    }
}

static void check_simple(pair_of_tables *t, vectors *v, size_t n)
{
    float s = v->b[0];
    t->ref->add(v->a, v->b, n, v->want);
    t->set->add(v->a, v->b, n, v->got);
    compare(t, v->want, v->got, n, "add");
    memcpy(v->got, v->b, n * 4);
    t->set->add(v->a, v->got, n, v->got);
    compare(t, v->want, v->got, n, "add in place");
    memcpy(v->want, v->a, n * 4), memcpy(v->got, v->a, n * 4);
    t->ref->scale(v->want, n, s), t->set->scale(v->got, n, s);
    compare(t, v->want, v->got, n, "scale");
    memcpy(v->want, v->a, n * 4), memcpy(v->got, v->a, n * 4);
    s = n % 2 ? 30.0f : 1.0f;
    t->ref->softcap(v->want, n, s), t->set->softcap(v->got, n, s);
    compare(t, v->want, v->got, n, "softcap");
}

static void check_softmax(pair_of_tables *t, vectors *v, size_t n, float inv_temperature)
{
    float a = t->ref->softmax(v->a, n, inv_temperature, v->want);
    float b = t->set->softmax(v->a, n, inv_temperature, v->got);
    compare(t, v->want, v->got, n, "softmax");
    compare(t, &a, &b, 1, "softmax sum");
    memcpy(v->got, v->a, n * 4);
    t->set->softmax(v->got, n, inv_temperature, v->got);
    compare(t, v->want, v->got, n, "softmax in place");
}

static void test_elementwise(void **state)
{
    pair_of_tables t = begin(state);
    for (size_t n = 1; n < 100; n++)
        for (int mode = 0; mode < N_MODES; mode++) {
            vectors v;
            make_vectors(&t, &v, n, mode);
            check_glu(&t, &v, n);
            check_simple(&t, &v, n);
            check_softmax(&t, &v, n, n % 2 ? 1.0f : 1.25f);
            free_vectors(&v);
        }
}

/* exp and tanh over many bit patterns, through the functions that use them. */
static void test_elementwise_sweep(void **state)
{
    pair_of_tables t = begin(state);
    size_t n = 1 << 14;
    for (uint32_t step = 0; step < 16; step++) {
        vectors v;
        make_vectors(&t, &v, n, PLAIN);
        for (size_t i = 0; i < n; i++) {
            uint32_t low = (uint32_t)rng_next(&t.rng);
            /* All patterns; then those of the interesting sizes 2^-14 .. 2^8; then around the thresholds. */
            v.a[i] = float_from_bits(low);
            if (step % 3 == 1) v.a[i] = float_from_bits((low & 0x807fffff) | (113 + low % 23) << 23);
            if (step % 3 == 2) {
                static const float near[] = {88.72283f, 104.0f, 103.97f,  87.33f,
                                             9.02f,     0.625f, 0.34657f, 0.0f};
                v.a[i] = (low & 8 ? -1.0f : 1.0f) *
                         float_from_bits(bits_of_float(near[low % 8]) + (low >> 16) % 41 - 20);
            }
        }
        check_glu(&t, &v, n);
        check_simple(&t, &v, n);
        v.a[7] = 0.0f; /* so that most others are below the largest by themselves */
        for (size_t i = 0; i < n; i++) v.a[i] = v.a[i] > 0 ? -v.a[i] : v.a[i];
        check_softmax(&t, &v, n, 1.0f);
        free_vectors(&v);
    }
}

/* ---- cache and attention ---- */
typedef struct cache {
    guarded gk, gv;
    kern_kv kv;
    size_t bytes;
} cache;

static void make_cache(cache *c, uint32_t dtype, uint32_t capacity, uint32_t n_kv_heads, uint32_t head_dim)
{
    c->bytes = (size_t)capacity * n_kv_heads * head_dim * (dtype == BASE_F16 ? 2 : 4);
    c->kv.k = guarded_alloc(&c->gk, c->bytes, 0);
    c->kv.v = guarded_alloc(&c->gv, c->bytes, 0);
    c->kv.dtype = dtype;
    c->kv.capacity = capacity;
}
static void free_cache(cache *c)
{
    guarded_free(&c->gk), guarded_free(&c->gv);
}

/* Halves: NaN equals NaN. */
static void compare_cache(pair_of_tables *t, const void *want, const void *got, size_t bytes, uint32_t dtype)
{
    if (dtype == BASE_F32) {
        compare(t, want, got, bytes / 4, "kv_store");
        return;
    }
    const uint16_t *a = want, *b = got;
    for (size_t i = 0; i < bytes / 2; i++) {
        float fa = kern_f32_from_f16(a[i]), fb = kern_f32_from_f16(b[i]);
        compare(t, &fa, &fb, 1, "kv_store half");
    }
}

static void test_kv_store(void **state)
{
    pair_of_tables t = begin(state);
    for (uint32_t head_dim = 2; head_dim <= 68; head_dim += 2)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int half = 0; half < 2; half++) {
                uint32_t heads = 1 + rng_below(&t.rng, 3), dtype = half ? BASE_F16 : BASE_F32;
                cache a, b;
                guarded gk, gv;
                make_cache(&a, dtype, 48, heads, head_dim);
                make_cache(&b, dtype, 48, heads, head_dim);
                float *k = guarded_alloc(&gk, heads * head_dim * 4, 0),
                      *v = guarded_alloc(&gv, heads * head_dim * 4, 0);
                for (int i = 0; i < 6; i++) {
                    uint32_t position = rng_below(&t.rng, 200);
                    fill_floats(&t.rng, mode, k, heads * head_dim);
                    fill_floats(&t.rng, mode, v, heads * head_dim);
                    for (uint32_t j = 0; half && mode != PLAIN && j < heads * head_dim; j += 2)
                        k[j] = ldexpf(rng_normal(&t.rng),
                                      (int)rng_below(&t.rng, 44) - 27); /* halves' own edges */
                    t.ref->kv_store(&a.kv, heads, head_dim, position, k, v);
                    t.set->kv_store(&b.kv, heads, head_dim, position, k, v);
                }
                compare_cache(&t, a.kv.k, b.kv.k, a.bytes, dtype);
                compare_cache(&t, a.kv.v, b.kv.v, a.bytes, dtype);
                free_cache(&a), free_cache(&b), guarded_free(&gk), guarded_free(&gv);
            }
}

typedef struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, first, last, capacity;
} shape;

/* The same row in steps, heads and segments in any order. */
static void run_cut(pair_of_tables *t, const kern_table *table, const kern_attention *a)
{
    kern_attention_cut c;
    guarded gm, gs;
    float *begin = NULL, *end;
    void *scratch = guarded_alloc(&gs, kern_attention_cut_scratch_bytes(a->n_heads, a->head_dim), 0x5a);
    uint32_t turn, heads = a->n_heads;
    assert_true(kern_attention_cut_init(&c, a, begin = guarded_alloc(&gm, 64, 0), SIZE_MAX));
    size_t bytes = (size_t)((char *)(c.top + (size_t)heads * c.n_segments) - (char *)begin);
    assert_int_equal(c.n_segments, a->last / 512 - a->first / 512 + 1);
    guarded_free(&gm);
    begin = guarded_alloc(&gm, (bytes + 63) / 64 * 64, 0x77);
    assert_true(!kern_attention_cut_init(&c, a, begin, bytes - 1));
    assert_true(kern_attention_cut_init(&c, a, begin, bytes));
    end = c.top + (size_t)heads * c.n_segments;
    assert_ptr_equal((char *)begin + bytes, end);
    for (int step = 0; step < 2; step++) {
        turn = rng_below(&t->rng, c.n_segments);
        for (uint32_t s = 0; s < c.n_segments; s++) {
            uint32_t segment = (s + turn) % c.n_segments, cut = rng_below(&t->rng, heads + 1);
            void (*run)(const kern_attention_cut *, uint32_t, uint32_t, uint32_t, void *) =
                step ? table->attention_values : table->attention_scores;
            run(&c, cut, heads, segment, scratch);
            run(&c, 0, cut, segment, scratch);
        }
    }
    turn = rng_below(&t->rng, heads + 1);
    table->attention_finish(&c, turn, heads);
    table->attention_finish(&c, 0, turn);
    guarded_free(&gm), guarded_free(&gs);
}

static void check_attention(pair_of_tables *t, shape s, uint32_t dtype, int mode, float softcap)
{
    cache c;
    guarded gq, ga, gb, gs;
    char where[160];
    size_t n = (size_t)s.n_heads * s.head_dim, n_kv = (size_t)s.n_kv_heads * s.head_dim;
    uint32_t n_positions = s.last - s.first + 1;
    make_cache(&c, dtype, s.capacity, s.n_kv_heads, s.head_dim);
    float *q = guarded_alloc(&gq, n * 4, 0), *want = guarded_alloc(&ga, n * 4, 0),
          *got = guarded_alloc(&gb, n * 4, 0);
    void *scratch = guarded_alloc(&gs, kern_attention_scratch_bytes(n_positions, s.head_dim), 0x5a);
    float *row = malloc(2 * n_kv * sizeof(float));
    for (uint32_t p = s.first; p <= s.last; p++) {
        fill_floats(&t->rng, mode == SPECIAL && p % 7 ? EDGES : mode, row, 2 * n_kv);
        t->ref->kv_store(&c.kv, s.n_kv_heads, s.head_dim, p, row, row + n_kv);
    }
    fill_floats(&t->rng, mode == SPECIAL ? EDGES : mode, q, n);
    kern_attention a = {q,       want,   &c.kv,     s.n_heads, s.n_kv_heads, s.head_dim,
                        s.first, s.last, 0.088388f, softcap,   .n_rows = 1};
    t->ref->attention(&a, 0, s.n_heads, scratch);
    a.out = got;
    for (uint32_t cut = 0; cut <= s.n_heads; cut++) {
        for (size_t i = 0; i < n; i++) got[i] = float_from_bits(UNTOUCHED);
        snprintf(where, sizeof where,
                 "attention %u/%u heads of %u, [%u, %u], capacity %u, %s, softcap %g, cut %u", s.n_heads,
                 s.n_kv_heads, s.head_dim, s.first, s.last, s.capacity, base_dtype_get(dtype)->name,
                 (double)softcap, cut);
        t->set->attention(&a, 0, cut, scratch);
        compare(t, want, got, (size_t)cut * s.head_dim, where);
        for (size_t i = (size_t)cut * s.head_dim; i < n; i++)
            assert_int_equal(bits_of_float(got[i]), UNTOUCHED);
        t->set->attention(&a, cut, s.n_heads, scratch);
        compare(t, want, got, n, where);
    }
    for (size_t i = 0; i < n; i++) got[i] = float_from_bits(UNTOUCHED);
    run_cut(t, t->set, &a);
    compare(t, want, got, n, "attention in steps");
    free(row);
    free_cache(&c), guarded_free(&gq), guarded_free(&ga), guarded_free(&gb), guarded_free(&gs);
}

static void test_attention(void **state)
{
    pair_of_tables t = begin(state);
    static const uint32_t heads[][2] = {{1, 1}, {4, 1}, {4, 4}, {6, 2}, {9, 3}, {5, 1}};
    static const uint32_t dims[] = {2, 6, 14, 16, 18, 20, 32, 48, 64, 72, 80, 96, 128, 256};
    for (size_t d = 0; d < COUNT(dims); d++)
        for (size_t i = 0; i < 24; i++) {
            const uint32_t *h = heads[(i + d) % COUNT(heads)];
            uint32_t first = i % 3 == 0 ? 0 : rng_below(&t.rng, 100), n = 1 + rng_below(&t.rng, 60);
            shape s = {h[0], h[1], dims[d], first, first + n - 1, 64};
            check_attention(&t, s, i % 2 ? BASE_F16 : BASE_F32,
                            (int)(i % 4 == 3 ? rng_below(&t.rng, 3) : PLAIN), i % 5 == 4 ? 50.0f : 0.0f);
        }
}

/* Across segment limits of the value sum, and a ring that has gone round many times. */
static void test_attention_long(void **state)
{
    pair_of_tables t = begin(state);
    static const uint32_t ranges[][3] = {{0, 510, 512},    {0, 511, 512},       {0, 512, 1024},
                                         {0, 1100, 1104},  {500, 523, 32},      {511, 1024, 528},
                                         {512, 1023, 512}, {1000, 2049, 1056},  {300, 1400, 1200},
                                         {513, 513, 16},   {99990, 100100, 112}};
    for (size_t i = 0; i < COUNT(ranges); i++)
        for (int half = 0; half < 2; half++) {
            shape s = {4, 2, i % 2 ? 16 : 20, ranges[i][0], ranges[i][1], ranges[i][2]};
            check_attention(&t, s, half ? BASE_F16 : BASE_F32, PLAIN, i == 3 ? 30.0f : 0.0f);
        }
}

/* ---- */
typedef struct entry {
    const char *name;
    CMUnitTestFunction run;
} entry;

static const entry entries[] = {
    {"dequantize", test_dequantize},
    {"quantize", test_quantize},
    {"matmul_splits", test_matmul_splits},
    {"matmul_sizes", test_matmul_sizes},
    {"matmul_large", test_matmul_large},
    {"matmul_zero_signs", test_matmul_zero_signs},
    {"rms_norm", test_rms_norm},
    {"rope", test_rope},
    {"elementwise", test_elementwise},
    {"sweep", test_elementwise_sweep},
    {"kv_store", test_kv_store},
    {"attention", test_attention},
    {"attention_long", test_attention_long},
};
#define N_JOBS (COUNT(set_names) * COUNT(entries))

/* Passes only when each set that ran compared something in every test. */
static void test_compared(void **state)
{
    const job *jobs = *state;
    uint64_t total = 0;
    for (size_t s = 0; s < COUNT(set_names); s++) {
        uint64_t compared = 0;
        size_t skipped = 0;
        for (size_t e = 0; e < COUNT(entries); e++) {
            const job *j = &jobs[s * COUNT(entries) + e];
            compared += j->compared;
            skipped += j->skipped;
            if (!j->skipped) assert_true(j->compared > 0);
        }
        print_message("%s: %llu numbers compared with ref, %zu tests skipped (set not on this machine)\n",
                      set_names[s], (unsigned long long)compared, skipped);
        total += compared;
    }
    print_message("seed %u, %llu comparisons in all\n", SEED, (unsigned long long)total);
    assert_true(total > 0);
}

int main(void)
{
    static job jobs[N_JOBS];
    static char names[N_JOBS][48];
    struct CMUnitTest tests[N_JOBS + 1];
    for (size_t i = 0; i < N_JOBS; i++) {
        const entry *e = &entries[i % COUNT(entries)];
        jobs[i].set = set_names[i / COUNT(entries)];
        snprintf(names[i], sizeof names[i], "%s: %s", jobs[i].set, e->name);
        tests[i] = (struct CMUnitTest){names[i], e->run, NULL, NULL, &jobs[i]};
    }
    tests[N_JOBS] = (struct CMUnitTest){"each set was compared", test_compared, NULL, NULL, jobs};
    return cmocka_run_group_tests_name("kernel sets against ref", tests, NULL, NULL);
}
