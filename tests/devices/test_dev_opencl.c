/* The first OpenCL device against the reference on the CPU, bit for bit (R5.8, X1): every operation, every
 * weight type, odd sizes, edge inputs. And what device.h says of memory, streams, tickets and failures.
 *
 * PoCL (Debian's pocl-opencl-icd) is the device in tests. Where there is no OpenCL the tests are skipped. */
#include "../kernels/kern_test.h"
#include "devices/device.h"

#include <sys/stat.h>
#include <unistd.h>

#define SEED 20261130u

static weir_error err;
static test_rng rng;
static uint64_t n_compared;
static base_env *env;
static dev_device *gpu, *cpu;

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        if ((call) != WEIR_OK) fail_msg("%s: %s", #call, err.message);                                       \
    } while (0)

/* ---- a device and the CPU with the same memory ---- */
typedef struct twin {
    uint8_t *host; /* what the CPU computes with */
    uint8_t *device;
    size_t bytes;
} twin;

#define MAX_TWINS 16
static twin twins[MAX_TWINS];
static size_t n_twins;

static void *twin_alloc(size_t bytes)
{
    twin *t = &twins[n_twins++];
    void *address;

    assert_true(n_twins <= MAX_TWINS);
    t->bytes = bytes;
    t->host = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(t->host);
    memset(t->host, 0x5a, bytes);
    assert_ok(gpu->table->memory->alloc(gpu, bytes, "a twin", &address, &err));
    t->device = address;
    return t->host;
}

static void *to_device(const void *host)
{
    if (host == NULL) return NULL;
    for (size_t i = 0; i < n_twins; i++)
        if ((const uint8_t *)host >= twins[i].host && (const uint8_t *)host < twins[i].host + twins[i].bytes)
            return twins[i].device + ((const uint8_t *)host - twins[i].host);
    fail_msg("%p is no twin's", host);
    return NULL;
}

/* Runs op on both, beginning with the same memory, and compares all memory afterwards: float by float, NaN
 * being NaN. exact: byte by byte. */
static void check_op(const dev_op *op, bool exact, const char *where)
{
    dev_kv kv[4];
    dev_op there = *op;

    for (size_t i = 0; i < n_twins; i++)
        assert_ok(gpu->table->memory->upload(gpu, DEV_STREAM_COMPUTE, twins[i].device, twins[i].host,
                                             twins[i].bytes, NULL, &err));
    there.a.data = to_device(op->a.data), there.b.data = to_device(op->b.data);
    there.out.data = to_device(op->out.data), there.w.data = to_device(op->w.data);
    there.bias = to_device(op->bias);
    for (size_t i = 0; op->kv != NULL && i < 4; i++) {
        kv[i] = op->kv[i];
        kv[i].k = to_device(kv[i].k), kv[i].v = to_device(kv[i].v);
    }
    if (op->kv != NULL) there.kv = kv;
    if (gpu->table->run(gpu, &there, &err) != WEIR_OK) fail_msg("%s: %s", where, err.message);
    assert_ok(cpu->table->run(cpu, op, &err));
    for (size_t i = 0; i < n_twins; i++) {
        uint8_t *got = malloc(twins[i].bytes);

        assert_ok(gpu->table->memory->download(gpu, DEV_STREAM_COMPUTE, got, twins[i].device, twins[i].bytes,
                                               NULL, &err));
        for (size_t at = 0; !exact && at + 4 <= twins[i].bytes; at += 4) {
            float x, y;
            memcpy(&x, twins[i].host + at, 4), memcpy(&y, got + at, 4);
            if (!same_float(x, y))
                fail_msg("%s: memory %zu, float %zu of %zu: %a, on the device %a; seed %u", where, i, at / 4,
                         twins[i].bytes / 4, (double)x, (double)y, SEED);
        }
        if (exact && memcmp(got, twins[i].host, twins[i].bytes) != 0) {
            size_t at = 0;
            while (got[at] == twins[i].host[at]) at++;
            fail_msg("%s: memory %zu, byte %zu of %zu: %02x, on the device %02x; seed %u", where, i, at,
                     twins[i].bytes, twins[i].host[at], got[at], SEED);
        }
        n_compared += twins[i].bytes;
        free(got);
    }
}

static void forget_twins(void)
{
    for (size_t i = 0; i < n_twins; i++) {
        free(twins[i].host);
        gpu->table->memory->free(gpu, twins[i].device);
    }
    n_twins = 0;
}

static void need_device(void)
{
    if (gpu == NULL) skip();
    rng.state = SEED;
}

/* ---- products, and what goes with weights ---- */
static void quantized_rows(uint32_t dtype, test_mode mode, size_t k, size_t n_rows, uint8_t *out,
                           size_t stride)
{
    float *row = malloc(k * sizeof(float));

    for (size_t r = 0; r < n_rows; r++) {
        fill_floats(&rng, mode, row, k);
        if (cpu->table->act_row_bytes(cpu, dtype, k) == 0) {
            memcpy(out + r * stride, row, k * sizeof(float));
        } else {
            dev_op op = {.code = DEV_QUANT, .dtype = dtype, .n_rows = 1, .cols = k};
            op.a.data = row, op.out.data = out + r * stride;
            assert_ok(cpu->table->run(cpu, &op, &err));
        }
    }
    free(row);
}

static void check_product(uint32_t dtype, test_mode mode, size_t k, size_t n_out, size_t n_tokens)
{
    const base_dtype_info *info = base_dtype_get(dtype);
    uint64_t row_bytes;
    char where[128];
    dev_op op = {.code = DEV_MATMUL, .dtype = dtype, .n_rows = n_tokens, .cols = k};
    size_t act = cpu->table->act_row_bytes(cpu, dtype, k), first = rng_below(&rng, 3);

    assert_true(base_dtype_row_bytes(dtype, k, &row_bytes));
    assert_int_equal(act, gpu->table->act_row_bytes(gpu, dtype, k));
    op.row_begin = first, op.row_end = first + n_out;
    op.w.stride = row_bytes, op.w.data = twin_alloc(n_out * row_bytes);
    fill_weights(&rng, mode, dtype, op.w.data, n_out * k);
    op.a.stride = act != 0 ? act : (k * 4 + 63) / 64 * 64;
    op.a.data = twin_alloc(op.a.stride * n_tokens);
    memset(op.a.data, 0, op.a.stride * n_tokens);
    quantized_rows(dtype, mode, k, n_tokens, op.a.data, op.a.stride);
    op.out.stride = (op.row_end + 3) * 4;
    op.out.data = twin_alloc(op.out.stride * n_tokens);
    if (rng_below(&rng, 2) == 0) {
        float *bias = twin_alloc(op.row_end * 4);
        fill_floats(&rng, mode, bias, op.row_end);
        op.bias = bias;
    }
    snprintf(where, sizeof(where), "%s, k %zu, %zu rows, %zu tokens, mode %d", info->name, k, n_out, n_tokens,
             mode);
    check_op(&op, false, where);
    forget_twins();
}

static void products(void **state)
{
    static const size_t tokens[] = {1, 2, 5, 8, 19};
    (void)state;
    need_device();
    for (size_t d = 0; d < COUNT(test_dtypes); d++) {
        size_t block = base_dtype_get(test_dtypes[d])->block_elements;
        for (size_t i = 0; i < 10; i++) {
            size_t k = block == 1 ? 1 + rng_below(&rng, 70) : block * (1 + rng_below(&rng, 4));
            check_product(test_dtypes[d], (test_mode)(i % N_MODES), k, 1 + rng_below(&rng, 90),
                          tokens[i % COUNT(tokens)]);
        }
        check_product(test_dtypes[d], PLAIN, 2048, 133, 1);
        check_product(test_dtypes[d], PLAIN, 768, 70, 9);
    }
    assert_true(n_compared > 100000);
}

static void dequantizing(void **state)
{
    (void)state;
    need_device();
    for (size_t d = 0; d < COUNT(test_dtypes); d++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (size_t n = 1; n < 4; n++) {
                size_t cols = n * base_dtype_get(test_dtypes[d])->block_elements;
                dev_op op = {.code = DEV_DEQUANT, .dtype = test_dtypes[d], .n_rows = 3, .cols = cols};
                uint64_t row_bytes;

                assert_true(base_dtype_row_bytes(test_dtypes[d], cols, &row_bytes));
                op.a.stride = row_bytes + n, op.a.data = twin_alloc(op.a.stride * 3);
                for (size_t r = 0; r < 3; r++)
                    fill_weights(&rng, mode, test_dtypes[d], (uint8_t *)op.a.data + r * op.a.stride, cols);
                op.out.stride = cols * 4 + 64, op.out.data = twin_alloc(op.out.stride * 3);
                op.f[0] = n == 2 ? 1.0f : 25.3f;
                check_op(&op, false, base_dtype_get(test_dtypes[d])->name);
                forget_twins();
            }
}

static void quantizing(void **state)
{
    static const uint32_t dtypes[] = {BASE_Q8_0, BASE_Q6_K};
    (void)state;
    need_device();
    for (size_t d = 0; d < 2; d++)
        for (int mode = 0; mode < N_MODES + 1; mode++)
            for (size_t n = 1; n < 9; n++) {
                size_t cols = n * (d ? 256 : 32);
                dev_op op = {.code = DEV_QUANT, .dtype = dtypes[d], .n_rows = 5, .cols = cols};

                op.a.stride = cols * 4 + 64, op.a.data = twin_alloc(op.a.stride * 5);
                for (size_t r = 0; r < 5; r++) {
                    float *row = (float *)((uint8_t *)op.a.data + r * op.a.stride);
                    fill_floats(&rng, mode < N_MODES ? (test_mode)mode : PLAIN, row, cols);
                    for (size_t i = 0; mode == N_MODES && i < cols; i++) /* near the smallest, and zeros */
                        row[i] = r == 0 ? 0.0f : ldexpf(row[i], -118 - (int)(i / 32) % 32);
                }
                op.out.stride = gpu->table->act_row_bytes(gpu, dtypes[d], cols);
                op.out.data = twin_alloc(op.out.stride * 5);
                check_op(&op, mode != SPECIAL, "quantize");
                forget_twins();
            }
}

/* ---- rows ---- */
static void *float_rows(size_t n_rows, size_t cols, test_mode mode, dev_view *v)
{
    v->stride = cols * 4 + 64;
    v->data = twin_alloc(v->stride * n_rows);
    for (size_t r = 0; r < n_rows; r++)
        fill_floats(&rng, mode, (float *)((uint8_t *)v->data + r * v->stride), cols);
    return v->data;
}

static void norms(void **state)
{
    (void)state;
    need_device();
    for (size_t i = 0; i < 60; i++) {
        size_t group = 1 + rng_below(&rng, 150), per_row = 1 + rng_below(&rng, 4);
        test_mode mode = (test_mode)(i % N_MODES);
        dev_op op = {
            .code = DEV_RMS_NORM, .n_rows = 1 + rng_below(&rng, 5), .cols = group * per_row, .group = group};
        dev_view w;

        float_rows(op.n_rows, op.cols, mode, &op.a);
        if (i % 3 == 0)
            op.out = op.a;
        else
            float_rows(op.n_rows, op.cols, PLAIN, &op.out);
        op.w.data = float_rows(1, group, mode == SPECIAL ? EDGES : mode, &w);
        op.f[0] = i % 5 == 0 ? 0.0f : 1e-5f, op.f[1] = (float)(i % 2);
        check_op(&op, false, "rms_norm");
        forget_twins();
    }
}

static void many_norms(void **state) /* more than the work space has lanes for at a time */
{
    dev_op op = {.code = DEV_RMS_NORM, .n_rows = 70, .cols = 1000, .group = 2};
    dev_view w;

    (void)state;
    need_device();
    float_rows(op.n_rows, op.cols, PLAIN, &op.a);
    float_rows(op.n_rows, op.cols, PLAIN, &op.out);
    op.w.data = float_rows(1, 2, PLAIN, &w);
    op.f[0] = 1e-6f;
    check_op(&op, false, "35,000 norms");
    forget_twins();
}

static void rotations(void **state)
{
    double inv_freq[64];

    (void)state;
    need_device();
    for (int i = 0; i < 64; i++) inv_freq[i] = pow(10000.0, -i / 32.0);
    for (size_t i = 0; i < 24; i++) {
        uint32_t head_dim = 2 * (1 + rng_below(&rng, 64)), n_rot = 2 * (1 + rng_below(&rng, head_dim / 2));
        size_t n_rows = i == 7 ? 700 : 1 + rng_below(&rng, 6); /* 700: more than fits the staging memory */
        int32_t position[700];
        dev_op table = {
            .code = DEV_ROPE_TABLE, .n_rows = n_rows, .cols = n_rot, .n_rot = n_rot, .mscale = 1.25};
        dev_op op = {.code = DEV_ROPE, .n_rows = n_rows, .head_dim = head_dim, .n_rot = n_rot, .neox = i % 2};

        for (size_t r = 0; r < n_rows; r++) position[r] = (int32_t)rng_below(&rng, 100000);
        table.position = position, table.inv_freq = inv_freq;
        float_rows(n_rows, n_rot, PLAIN, &table.out);
        check_op(&table, true, "rope table");
        op.n_heads = 1 + rng_below(&rng, 5), op.b = table.out, op.cols = (size_t)op.n_heads * head_dim;
        float_rows(n_rows, op.cols, (test_mode)(i % N_MODES), &op.out);
        check_op(&op, false, "rope");
        forget_twins();
    }
}

static void elementwise(void **state)
{
    static const dev_opcode codes[] = {DEV_GLU, DEV_GLU, DEV_ADD, DEV_SOFTCAP, DEV_SCALE, DEV_COPY_ROWS};
    (void)state;
    need_device();
    for (size_t c = 0; c < COUNT(codes); c++)
        for (size_t i = 0; i < 12; i++) {
            size_t cols = i == 0 ? 20000 : 1 + rng_below(&rng, 200);
            test_mode mode = (test_mode)(i % N_MODES);
            uint32_t index[] = {1, 2, 4, 5, 6};
            dev_op op = {.code = codes[c], .n_rows = 5, .cols = cols, .gelu = c == 1, .index = index};
            float_rows(7, cols, mode, &op.a);
            float_rows(7, cols, mode, &op.b);
            if (i % 4 == 1 && codes[c] != DEV_COPY_ROWS)
                op.out = op.a;
            else
                float_rows(7, cols, mode, &op.out);
            op.f[0] = codes[c] == DEV_SOFTCAP ? 30.0f : 0.37f;
            check_op(&op, codes[c] == DEV_COPY_ROWS, dev_op_name(codes[c]));
            forget_twins();
        }
}

/* exp, tanh, division over many bit patterns, through the operations that use them. */
static void sweep(void **state)
{
    static const float near[] = {88.72283f, 104.0f, 103.97f, 87.33f, 9.02f, 0.625f, 0.34657f, 0.0f};
    (void)state;
    need_device();
    for (uint32_t step = 0; step < 9; step++) {
        dev_op op = {.code = step % 3 == 2 ? DEV_SOFTCAP : DEV_GLU, .n_rows = 1, .cols = 1 << 15};
        float *x;

        float_rows(1, op.cols, PLAIN, &op.a);
        float_rows(1, op.cols, PLAIN, &op.b);
        float_rows(1, op.cols, PLAIN, &op.out);
        x = op.code == DEV_SOFTCAP ? op.out.data : op.a.data;
        for (size_t i = 0; i < op.cols; i++) {
            uint32_t bits = (uint32_t)rng_next(&rng);
            x[i] = float_from_bits(step < 3 ? bits : (bits & 0x807fffff) | (113 + bits % 23) << 23);
            if (step >= 6)
                x[i] = (bits & 8 ? -1.0f : 1.0f) *
                       float_from_bits(bits_of_float(near[bits % 8]) + (bits >> 16) % 41 - 20);
        }
        op.gelu = step % 3 == 1, op.f[0] = step < 3 ? 30.0f : 1.0f;
        check_op(&op, false, "sweep");
        forget_twins();
    }
}

/* ---- the cache and attention ---- */
static void check_attention(uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                            uint32_t capacity, uint32_t n_positions, uint32_t n_rows, uint32_t window,
                            float softcap, test_mode mode)
{
    size_t kv_cols = (size_t)kv_heads * head_dim;
    int32_t position[64];
    uint32_t sequence[64];
    dev_kv kv[4] = {{0}};
    uint64_t k_bytes, v_bytes;
    char where[160];
    dev_op store = {
        .code = DEV_KV_STORE, .n_rows = 1, .cols = kv_cols, .n_kv_heads = kv_heads, .head_dim = head_dim};
    dev_op op = {.code = DEV_ATTENTION,
                 .n_rows = n_rows,
                 .cols = (size_t)heads * head_dim,
                 .n_heads = heads,
                 .n_kv_heads = kv_heads,
                 .head_dim = head_dim,
                 .window = window,
                 .f = {0.125f, softcap}};

    gpu->table->kv_bytes(gpu, dtype, capacity, kv_heads, head_dim, &k_bytes, &v_bytes);
    for (int s = 0; s < 2; s++) {
        kv[s] = (dev_kv){twin_alloc(k_bytes), twin_alloc(v_bytes), dtype, capacity};
        memset(kv[s].k, 0, k_bytes), memset(kv[s].v, 0, v_bytes);
    }
    kv[2] = kv[3] = kv[0];
    float_rows(n_rows, kv_cols, mode, &store.a);
    float_rows(n_rows, kv_cols, mode, &store.b);
    float_rows(n_rows, op.cols, mode == SPECIAL ? EDGES : mode, &op.a);
    float_rows(n_rows, op.cols, PLAIN, &op.out);
    snprintf(where, sizeof(where),
             "attention %u/%u heads of %u, capacity %u, %u positions, %u rows, window %u, %s", heads,
             kv_heads, head_dim, capacity, n_positions, n_rows, window, base_dtype_get(dtype)->name);
    store.kv = op.kv = kv, store.position = op.position = position, store.sequence = op.sequence = sequence;
    for (uint32_t p = 0; p < n_positions; p++) { /* what was there before this pass, on the CPU alone */
        position[0] = (int32_t)p, sequence[0] = 1;
        fill_floats(&rng, mode, store.a.data, kv_cols), fill_floats(&rng, mode, store.b.data, kv_cols);
        assert_ok(cpu->table->run(cpu, &store, &err));
        sequence[0] = 0;
        assert_ok(cpu->table->run(cpu, &store, &err));
    }
    for (uint32_t r = 0; r < n_rows;
         r++) { /* two sequences, the first of them with one row where there are two */
        sequence[r] = n_rows > 1 && r > 0;
        position[r] = (int32_t)(n_positions + (r > 0 ? r - 1 : 0));
    }
    store.n_rows = n_rows;
    check_op(&store, mode != SPECIAL, where);
    check_op(&op, false, where);
    forget_twins();
}

static void attention(void **state)
{
    static const uint32_t heads[][2] = {{1, 1}, {4, 1}, {4, 4}, {6, 2}, {9, 3}};
    static const uint32_t dims[] = {2, 6, 16, 20, 64, 80};
    (void)state;
    need_device();
    for (size_t i = 0; i < 30; i++) {
        const uint32_t *h = heads[i % COUNT(heads)];
        check_attention(i % 2 ? BASE_F16 : BASE_F32, h[0], h[1], dims[i % COUNT(dims)], 64,
                        rng_below(&rng, 50), 1 + rng_below(&rng, 9), 0, i % 4 == 3 ? 50.0f : 0.0f,
                        (test_mode)(i % 7 == 6 ? 1 + i % 2 : 0));
    }
    for (size_t i = 0; i < 8; i++) /* windows in a ring that has gone round */
        check_attention(i % 2 ? BASE_F16 : BASE_F32, 4, 2, 16, 48, 40 + rng_below(&rng, 300),
                        1 + rng_below(&rng, 9), 16 + rng_below(&rng, 16), 0, PLAIN);
    check_attention(BASE_F16, 4, 2, 20, 1552, 1500, 40, 0, 0,
                    PLAIN); /* segments; more pairs than fit at a time */
    check_attention(BASE_F32, 4, 2, 16, 560, 1300, 20, 530, 30.0f, PLAIN);
}

/* ---- memory, streams, failures ---- */
static void memory(void **state)
{
    const dev_memory_table *m = gpu != NULL ? gpu->table->memory : NULL;
    dev_memory_info before, during, after;
    void *small[40], *large, *out = NULL;
    uint8_t text[5000], back[5000];

    (void)state;
    need_device();
    m->trim(gpu);
    assert_ok(m->info(gpu, &before, &err));
    assert_true(before.total_bytes > 0 && before.alignment >= 64);
    for (size_t i = 0; i < 40; i++) {
        assert_ok(m->alloc(gpu, 100 + 977 * i, "small", &small[i], &err));
        assert_int_equal((uintptr_t)small[i] % before.alignment, 0);
    }
    assert_ok(m->alloc(gpu, 3 << 20, "large", &large, &err));
    assert_ok(m->info(gpu, &during, &err));
    assert_true(during.taken_bytes >= before.taken_bytes + (4 << 20));
    for (size_t i = 0; i < sizeof(text); i++) text[i] = (uint8_t)rng_next(&rng);
    assert_ok(m->upload(gpu, DEV_STREAM_COPY, (uint8_t *)large + 777, text, sizeof(text), NULL, &err));
    assert_ok(m->copy(gpu, DEV_STREAM_COPY, small[30], (uint8_t *)large + 777, 5000, NULL, &err));
    assert_ok(m->download(gpu, DEV_STREAM_COPY, back, small[30], 5000, NULL, &err));
    assert_memory_equal(text, back, 5000);
    assert_int_equal(m->upload(gpu, DEV_STREAM_COPY, (uint8_t *)large + (3 << 20) - 10, text, 11, NULL, &err),
                     WEIR_ERR_INTERNAL);
    for (size_t i = 0; i < 40; i += 2) m->free(gpu, small[i]);
    assert_int_equal(m->upload(gpu, DEV_STREAM_COPY, small[2], text, 1, NULL, &err), WEIR_ERR_INTERNAL);
    for (size_t i = 0; i < 40; i += 2) assert_ok(m->alloc(gpu, 100 + 977 * i, "again", &small[i], &err));
    for (size_t i = 0; i < 40; i++) m->free(gpu, small[i]);
    m->free(gpu, large);
    m->free(gpu, NULL);
    m->trim(gpu);
    assert_ok(m->info(gpu, &after, &err));
    assert_int_equal(after.taken_bytes, before.taken_bytes);
    assert_int_equal(m->alloc(gpu, before.total_bytes * 4, "too much", &out, &err), WEIR_ERR_DEVICE_MEMORY);
    assert_non_null(strstr(err.message, "opencl:0"));
    assert_non_null(strstr(err.message, "too much"));
}

static void streams(void **state)
{
    const dev_memory_table *m = gpu != NULL ? gpu->table->memory : NULL;
    uint8_t *pinned[2];
    void *there[2];
    dev_ticket t, last = {0, 0};

    (void)state;
    need_device();
    for (int i = 0; i < 2; i++) {
        void *host;
        assert_ok(m->pin_alloc(gpu, 1 << 20, &host, &err));
        pinned[i] = host;
        assert_ok(m->alloc(gpu, 1 << 20, "stream", &there[i], &err));
    }
    assert_true(m->reached(gpu, (dev_ticket){0, 0}));
    for (uint32_t i = 0; i < 600; i++) { /* more tickets than are kept */
        uint32_t from = 1 + i % 3, to = (i * 7) % DEV_MAX_STREAMS;
        memset(pinned[0], (int)i, 1 << 12);
        assert_ok(m->upload(gpu, from, there[0], pinned[0], 1 << 12, &t, &err));
        assert_ok(m->wait_on(gpu, to, t, &err));
        assert_ok(m->copy(gpu, to, there[1], there[0], 1 << 12, &last, &err));
        assert_ok(m->wait_on(gpu, from, last, &err));
        assert_ok(m->download(gpu, from, pinned[1], there[1], 1 << 12, &t, &err));
        if (i % 5 == 0 || i > 590) {
            assert_ok(m->sync(gpu, t, &err));
            assert_true(m->reached(gpu, t));
            assert_true(m->reached(gpu, last));
            assert_int_equal(pinned[1][4095], (uint8_t)i);
        } else {
            assert_ok(m->sync(gpu, last, &err)); /* pinned[0] is written again */
        }
    }
    assert_ok(m->mark(gpu, DEV_STREAM_COMPUTE, &t, &err));
    assert_ok(m->sync(gpu, t, &err));
    assert_ok(m->upload(gpu, 1, there[0], pinned[0], 0, &t, &err));
    assert_ok(m->sync(gpu, t, &err));
    assert_ok(m->recover(gpu, &err));
    for (int i = 0; i < 2; i++) {
        m->pin_free(gpu, pinned[i], 1 << 20);
        m->free(gpu, there[i]);
    }
}

static const char *const kernel_text =
    "GPU_KERNEL scale_add(GPU_PTR(x), GPU_PTR(y), gpu_u32 gap, float s, gpu_u32 n)\n"
    "{\n"
    "    if (GPU_X >= n) return;\n"
    "    GPU_AT(float, y)[GPU_X] = GPU_FMA(s, GPU_AT(const float, x)[GPU_X * gap], GPU_AT(float, "
    "y)[GPU_X]);\n"
    "}\n";

static void launching(void **state)
{
    const dev_memory_table *m = gpu != NULL ? gpu->table->memory : NULL;
    dev_kernel kernel = {.name = "scale_add", .source = kernel_text}, none = {.name = "none"};
    dev_kernel broken = {.name = "broken", .source = "GPU_KERNEL broken(GPU_PTR(x), gpu_u32 n) { nonsense }"};
    float x[200], y[100], got[100];
    dev_arg args[4];
    void *a, *b;

    (void)state;
    need_device();
    fill_floats(&rng, PLAIN, x, 200), fill_floats(&rng, PLAIN, y, 100);
    assert_ok(m->alloc(gpu, sizeof(x), "x", &a, &err));
    assert_ok(m->alloc(gpu, sizeof(y), "y", &b, &err));
    assert_ok(m->upload(gpu, 0, a, x, sizeof(x), NULL, &err));
    assert_ok(m->upload(gpu, 0, b, y, sizeof(y), NULL, &err));
    args[0] = (dev_arg){DEV_ARG_ADDRESS, {.address = a}},
    args[1] = (dev_arg){DEV_ARG_ADDRESS, {.address = b}};
    args[2] = (dev_arg){DEV_ARG_U32, {.u32 = 2}}, args[3] = (dev_arg){DEV_ARG_F32, {.f32 = 0.3f}};
    assert_int_equal(m->launch(gpu, &none, args, 4, 10, &err), WEIR_ERR_UNSUPPORTED);
    assert_int_equal(m->launch(gpu, &broken, args, 1, 10, &err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(err.message, "kernel broken does not build"));
    assert_non_null(strstr(err.message, "nonsense")); /* the compiler's own words */
    for (int i = 0; i < 2; i++) assert_ok(m->launch(gpu, &kernel, args, 4, 99, &err));
    assert_int_equal(m->launch(gpu, &kernel, args, 3, 99, &err),
                     WEIR_ERR_INVALID_ARGUMENT); /* an argument too few */
    assert_ok(m->download(gpu, 0, got, b, sizeof(got), NULL, &err));
    for (int i = 0; i < 100; i++) {
        float want = i < 99 ? fmaf(0.3f, x[2 * i], fmaf(0.3f, x[2 * i], y[i])) : y[i];
        assert_int_equal(bits_of_float(want), bits_of_float(got[i]));
    }
    m->free(gpu, a), m->free(gpu, b);
}

/* Failures that are asked for: the documented error, and everything works afterwards (X5). */
static void faults(void **state)
{
    const dev_memory_table *m = gpu != NULL ? gpu->table->memory : NULL;
    base_fault_rule rule = {.length = -1};
    void *p = NULL;
    char byte = 1;
    dev_device *d = NULL;

    (void)state;
    need_device();
    rule.site = BASE_FAULT_DEVICE_ALLOC;
    assert_ok(base_fault_arm(env, &rule, &err));
    assert_int_equal(m->alloc(gpu, 100, "weights", &p, &err), WEIR_ERR_DEVICE_MEMORY);
    assert_non_null(strstr(err.message, "weights"));
    assert_ok(m->alloc(gpu, 100, "weights", &p, &err));
    base_fault_clear(env);
    rule.site = BASE_FAULT_COPY;
    assert_ok(base_fault_arm(env, &rule, &err));
    assert_int_equal(m->upload(gpu, 1, p, &byte, 1, NULL, &err), WEIR_ERR_DEVICE);
    assert_ok(m->upload(gpu, 1, p, &byte, 1, NULL, &err));
    base_fault_clear(env);
    m->free(gpu, p);
    rule.site = BASE_FAULT_PINNED_ALLOC;
    assert_ok(base_fault_arm(env, &rule, &err));
    assert_int_equal(m->pin_alloc(gpu, 100, &p, &err), WEIR_ERR_OUT_OF_MEMORY);
    base_fault_clear(env);
    rule.site = BASE_FAULT_KERNEL_BUILD;
    assert_ok(base_fault_arm(env, &rule, &err));
    assert_int_equal(dev_opencl_create(env, 0, "", &d, &err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(err.message, "does not build"));
    base_fault_clear(env);
    for (uint64_t after = 0; after < 4; after++) {
        rule.site = BASE_FAULT_HOST_ALLOC, rule.after = after;
        assert_ok(base_fault_arm(env, &rule, &err));
        assert_int_equal(dev_opencl_create(env, 0, "", &d, &err), WEIR_ERR_OUT_OF_MEMORY);
        base_fault_clear(env);
    }
    assert_null(d);
    assert_int_equal(dev_opencl_create(env, 1000, "", &d, &err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(err.message, "opencl:1000"));
    assert_int_equal(m->pin_register(gpu, &byte, 1, &err), WEIR_ERR_UNSUPPORTED);
}

static void listing(void **state)
{
    dev_opencl_info info[8];
    char note[256], text[256];
    uint32_t n = 0;

    (void)state;
    assert_ok(dev_opencl_list(env, info, 8, &n, note, sizeof(note), &err));
    if (n == 0) {
        assert_true(note[0] != '\0'); /* why there is none */
        skip();
    }
    assert_true(info[0].name[0] != '\0' && info[0].memory_bytes > 0 && info[0].compute_units > 0);
    gpu->table->describe(gpu, text, sizeof(text));
    assert_non_null(strstr(text, info[0].name));
    assert_string_equal(gpu->table->name, "opencl");
}

/* Kernels are kept, taken from the cache, and built anew where the file is damaged. */
static void cache(void **state)
{
    char folder[] = "/tmp/weir-opencl-XXXXXX", command[256], path[256] = "";
    struct stat st[3];
    dev_device *d;
    FILE *f;

    (void)state;
    need_device();
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 3; i++) {
        assert_ok(dev_opencl_create(env, 0, folder, &d, &err));
        dev_destroy(d);
        if (i == 0) {
            snprintf(command, sizeof(command), "ls %s/opencl-*.bin", folder);
            f = popen(command, "r");
            assert_non_null(f);
            assert_non_null(fgets(path, sizeof(path), f));
            pclose(f);
            path[strcspn(path, "\n")] = '\0';
            assert_int_equal(strlen(path), strlen(folder) + strlen("/opencl-.bin") + 64);
        }
        assert_int_equal(stat(path, &st[i]), 0);
        if (i == 1) {
            f = fopen(path, "r+b");
            assert_non_null(f);
            assert_int_equal(fseek(f, 200, SEEK_SET), 0);
            assert_int_equal(fwrite("damaged", 7, 1, f), 1);
            fclose(f);
        }
    }
    /* Taken from the cache, the file stays; built anew, it is another one. */
    assert_true(st[1].st_ino == st[0].st_ino && st[2].st_ino != st[1].st_ino);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* Work space that grows is never there twice; where more is refused, what was there goes on. Where the
 * device's memory is the machine's, all of it is in the ledger (X2). */
static void work_space(void **state)
{
    enum { COLS = 256 };
    base_fault_rule refused = {.site = BASE_FAULT_DEVICE_ALLOC, .length = -1, .for_good = true};
    dev_memory_info info;
    base_ledger_view before, after;
    dev_device *d;

    (void)state;
    if (gpu == NULL) skip();
    assert_ok(dev_opencl_create(env, 0, "", &d, &err));
    assert_ok(d->table->memory->info(d, &info, &err));
    assert_ok(d->table->reserve_workspace(d, 64, 16384, 64, &err));
    uint64_t small = d->table->workspace_bytes(d, 64, 16384, 64);
    uint64_t large = d->table->workspace_bytes(d, 64, 65536, 64);
    assert_true(small > 4000000 && large > 3 * small);
    base_ledger_read(env, &before);
    base_ledger_peak_reset(env);
    assert_ok(base_fault_arm(env, &refused, &err));
    assert_int_equal(d->table->reserve_workspace(d, 64, 65536, 64, &err), WEIR_ERR_DEVICE_MEMORY);
    base_fault_clear(env);
    void *x, *w, *out;
    float ones[COLS], got[COLS];
    for (int i = 0; i < COLS; i++) ones[i] = 1;
    assert_ok(d->table->memory->alloc(d, sizeof ones, "x", &x, &err));
    assert_ok(d->table->memory->alloc(d, sizeof ones, "w", &w, &err));
    assert_ok(d->table->memory->alloc(d, sizeof ones, "out", &out, &err));
    assert_ok(d->table->memory->upload(d, DEV_STREAM_COMPUTE, x, ones, sizeof ones, NULL, &err));
    assert_ok(d->table->memory->upload(d, DEV_STREAM_COMPUTE, w, ones, sizeof ones, NULL, &err));
    dev_op op = {.code = DEV_RMS_NORM,
                 .n_rows = 1,
                 .cols = COLS,
                 .group = COLS,
                 .a = {x, sizeof ones},
                 .w = {w, sizeof ones},
                 .out = {out, sizeof ones}};
    dev_ticket t;
    assert_ok(d->table->run(d, &op, &err));
    assert_ok(d->table->memory->download(d, DEV_STREAM_COMPUTE, got, out, sizeof got, &t, &err));
    assert_ok(d->table->memory->sync(d, t, &err));
    for (int i = 0; i < COLS; i++) assert_true(got[i] == 1);
    assert_ok(d->table->reserve_workspace(d, 64, 65536, 64, &err));
    base_ledger_read(env, &after);
    uint64_t pool = UINT64_C(1) << 20;
    if (info.unified) {
        assert_true(before.tag_bytes[BASE_TAG_DEVICE] >= small);
        assert_true(after.tag_bytes[BASE_TAG_DEVICE] >= large);
        assert_true(after.tag_peak_bytes[BASE_TAG_DEVICE] <=
                    before.tag_bytes[BASE_TAG_DEVICE] - small + large + pool);
    }
    dev_destroy(d);
    base_ledger_read(env, &after);
    assert_true(after.tag_bytes[BASE_TAG_DEVICE] <= before.tag_bytes[BASE_TAG_DEVICE] - info.unified * small);
}

static int open_devices(void **state)
{
    dev_opencl_info info;
    char note[256];
    uint32_t n;

    (void)state;
    if (base_env_create(&env, &err) != WEIR_OK || dev_cpu_create(env, "ref", 1, &cpu, &err) != WEIR_OK)
        return 1;
    if (cpu->table->reserve_workspace(cpu, 4096, 2048, 128, &err) != WEIR_OK) return 1;
    if (dev_opencl_list(env, &info, 1, &n, note, sizeof(note), &err) != WEIR_OK) return 1;
    if (n == 0) {
        print_message("%s\n", note);
        return access("/etc/OpenCL/vendors/pocl.icd", F_OK) == 0 ? 1 : 0; /* PoCL is here: it must be found */
    }
    if (dev_opencl_create(env, 0, "", &gpu, &err) != WEIR_OK ||
        gpu->table->reserve_workspace(gpu, 4096, 2048, 128, &err) != WEIR_OK) {
        print_error("%s\n", err.message);
        return 1;
    }
    return 0;
}

static int close_devices(void **state)
{
    base_ledger_view view;

    (void)state;
    dev_destroy(gpu);
    dev_destroy(cpu);
    base_ledger_read(env, &view);
    base_env_destroy(env);
    print_message("%llu bytes compared, seed %u\n", (unsigned long long)n_compared, SEED);
    return view.bytes == 0 ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listing),     cmocka_unit_test(memory),       cmocka_unit_test(streams),
        cmocka_unit_test(launching),   cmocka_unit_test(faults),       cmocka_unit_test(cache),
        cmocka_unit_test(products),    cmocka_unit_test(dequantizing), cmocka_unit_test(quantizing),
        cmocka_unit_test(norms),       cmocka_unit_test(many_norms),   cmocka_unit_test(rotations),
        cmocka_unit_test(elementwise), cmocka_unit_test(sweep),        cmocka_unit_test(attention),
        cmocka_unit_test(work_space),
    };
    return cmocka_run_group_tests_name("OpenCL against ref", tests, open_devices, close_devices);
}
