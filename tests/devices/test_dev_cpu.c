/* The CPU device by itself: what it says of sizes and forms holds, and every way to cut an operation gives
 * the bits that one worker gives. */
#include "devices/device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != WEIR_OK) fail_msg("%s: %s", #call, err.message);                                   \
    } while (0)

static weir_error err;

static base_env *open_env(void)
{
    base_env *env;

    assert_ok(base_env_create(&env, &err));
    return env;
}

static void close_env(base_env *env)
{
    base_ledger_view view;

    base_ledger_read(env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(env);
}

static void creating(void **state)
{
    base_env *env = open_env();
    dev_device *d = NULL;
    char text[64];

    (void)state;
    assert_int_equal(dev_cpu_create(env, "no such set", 1, &d, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(dev_cpu_create(env, "ref", 0, &d, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_null(d);
    for (uint64_t after = 0; after < 2; after++) {
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};

        assert_ok(base_fault_arm(env, &rule, &err));
        assert_int_equal(dev_cpu_create(env, "ref", 3, &d, &err), WEIR_ERR_OUT_OF_MEMORY);
        base_fault_clear(env);
    }
    assert_ok(dev_cpu_create(env, "ref", 3, &d, &err));
    assert_string_equal(d->table->name, "cpu");
    d->table->describe(d, text, sizeof(text));
    assert_string_equal(text, "ref, 3 threads");
    dev_destroy(d);
    dev_destroy(NULL);
    close_env(env);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(dev_op_name(DEV_MATMUL), "matmul");
    assert_string_equal(dev_op_name(DEV_DEQUANT), "embed");
    assert_string_equal(dev_op_name(DEV_SCALE), "scale");
    assert_string_equal(dev_op_name(DEV_OP_COUNT), "unknown operation");
}

static void forms(void **state)
{
    base_env *env = open_env();
    dev_device *d;
    uint64_t k, v;

    (void)state;
    assert_ok(dev_cpu_create(env, "ref", 1, &d, &err));
    assert_int_equal(d->table->act_form(d, BASE_F32), DEV_FORM_FLOATS);
    assert_int_equal(d->table->act_form(d, BASE_BF16), DEV_FORM_FLOATS);
    assert_int_equal(d->table->act_form(d, BASE_Q8_0), d->table->act_form(d, BASE_Q4_1));
    assert_int_equal(d->table->act_form(d, BASE_Q4_K), d->table->act_form(d, BASE_Q6_K));
    assert_true(d->table->act_form(d, BASE_Q4_K) != d->table->act_form(d, BASE_Q8_0));
    assert_int_equal(d->table->act_form(d, BASE_I8), DEV_FORM_NONE);
    assert_int_equal(d->table->act_form(d, 9999), DEV_FORM_NONE);
    assert_int_equal(d->table->act_row_bytes(d, BASE_F16, 100), 0);
    assert_int_equal(d->table->act_row_bytes(d, BASE_Q8_0, 64), 128);  /* 64 + 2 x 4 + 2 x 4, to 64 */
    assert_int_equal(d->table->act_row_bytes(d, BASE_Q4_K, 256), 384); /* 256 + 4 + 16 x 4, to 64 */
    d->table->kv_bytes(d, BASE_F16, 48, 3, 64, &k, &v);
    assert_int_equal(k, 48 * 3 * 64 * 2);
    assert_int_equal(v, k);
    d->table->kv_bytes(d, BASE_F32, UINT32_MAX, UINT32_MAX, UINT32_MAX, &k, &v);
    assert_true(k == UINT64_MAX);
    dev_destroy(d);
    close_env(env);
}

static void workspace(void **state)
{
    base_env *env = open_env();
    base_ledger_view view;
    dev_device *d;
    uint64_t small, large;
    float x[16] = {0};
    dev_op op = {.code = DEV_MATMUL, .dtype = BASE_F32, .n_rows = 1, .cols = 16, .row_end = 1};

    (void)state;
    op.a = op.out = op.w = (dev_view){x, 64};
    assert_ok(dev_cpu_create(env, "ref", 2, &d, &err));
    assert_int_equal(d->table->run(d, &op, &err), WEIR_ERR_INTERNAL); /* nothing reserved */
    op.code = DEV_OP_COUNT;
    assert_int_equal(d->table->run(d, &op, &err), WEIR_ERR_INTERNAL);
    small = d->table->workspace_bytes(d, 1024, 100, 64);
    large = d->table->workspace_bytes(d, 65536, 100000, 64);
    assert_true(small > 0 && large > small);
    assert_ok(d->table->reserve_workspace(d, 1024, 100, 64, &err));
    base_ledger_read(env, &view);
    assert_int_equal(view.tag_bytes[BASE_TAG_WORKSPACE], small);
    assert_ok(d->table->reserve_workspace(d, 65536, 100000, 64, &err));
    assert_ok(d->table->reserve_workspace(d, 1024, 100, 64, &err)); /* never shrinks */
    base_ledger_read(env, &view);
    assert_int_equal(view.tag_bytes[BASE_TAG_WORKSPACE], large);
    assert_true(d->table->workspace_bytes(d, SIZE_MAX, UINT32_MAX, UINT32_MAX) == UINT64_MAX);
    assert_int_equal(d->table->reserve_workspace(d, SIZE_MAX, 1, 2, &err), WEIR_ERR_INVALID_ARGUMENT);
    base_ledger_read(env, &view);
    assert_int_equal(view.tag_bytes[BASE_TAG_WORKSPACE], large);
    dev_destroy(d);
    close_env(env);
}

/* ---- one operation of every kind, large enough to be cut, on one worker and on several ---- */

enum { ROWS = 37, COLS = 1088, OUTS = 200 }; /* COLS: 17 heads of 64 */

typedef struct bench {
    float *a, *b, *w, *out, *table;
    uint16_t *k, *v;
    int32_t position[ROWS];
    uint32_t sequence[ROWS], index[ROWS];
    double inv_freq[32];
    dev_kv kv[2];
} bench;

static float *floats(base_rng *rng, size_t n)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++) x[i] = base_rng_f32(rng) * 2 - 1;
    return x;
}

static void bench_open(bench *t)
{
    size_t cache = (size_t)2 * 48 * COLS;
    base_rng rng;

    base_rng_seed(&rng, 1, 2);
    t->a = floats(&rng, (size_t)ROWS * COLS);
    t->b = floats(&rng, (size_t)ROWS * COLS);
    t->w = floats(&rng, (size_t)OUTS * COLS);
    t->out = floats(&rng, (size_t)ROWS * COLS);
    t->table = floats(&rng, (size_t)ROWS * 64);
    t->k = aligned_alloc(64, cache * 2);
    t->v = aligned_alloc(64, cache * 2);
    memset(t->k, 0, cache * 2);
    memset(t->v, 0, cache * 2);
    for (uint32_t i = 0; i < ROWS; i++) {
        t->position[i] = (int32_t)(i / 2);
        t->sequence[i] = i % 2;
        t->index[i] = (i * 5) % ROWS;
    }
    for (int i = 0; i < 32; i++) t->inv_freq[i] = 1.0 / (i + 1);
    for (int s = 0; s < 2; s++)
        t->kv[s] = (dev_kv){t->k + (size_t)s * cache / 2, t->v + (size_t)s * cache / 2, BASE_F16, 48};
}

static void bench_close(bench *t)
{
    free(t->a);
    free(t->b);
    free(t->w);
    free(t->out);
    free(t->table);
    free(t->k);
    free(t->v);
}

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return h;
}

static dev_op op_for(bench *t, dev_opcode code)
{
    dev_op op = {.code = code,
                 .dtype = code == DEV_QUANT ? BASE_Q8_0 : BASE_F32,
                 .n_rows = ROWS,
                 .cols = COLS,
                 .a = {t->a, COLS * sizeof(float)},
                 .b = {t->b, COLS * sizeof(float)},
                 .out = {t->out, COLS * sizeof(float)},
                 .w = {t->w, COLS * sizeof(float)},
                 .row_begin = 7,
                 .row_end = 7 + OUTS - 9,
                 .bias = code == DEV_MATMUL ? t->b : NULL,
                 .group = 64,
                 .n_heads = 17,
                 .n_kv_heads = 17,
                 .head_dim = 64,
                 .n_rot = 64,
                 .window = 9,
                 .gelu = true,
                 .f = {0.5f, 0.25f},
                 .mscale = 1.25,
                 .inv_freq = t->inv_freq,
                 .position = t->position,
                 .sequence = t->sequence,
                 .kv = t->kv,
                 .index = t->index};

    if (code == DEV_ROPE_TABLE) op.out = (dev_view){t->table, 64 * sizeof(float)};
    if (code == DEV_ROPE) op.b = (dev_view){t->table, 64 * sizeof(float)};
    if (code == DEV_ROPE_TABLE) op.cols = 64;
    if (code == DEV_ATTENTION) op.f[1] = 3.0f;
    return op;
}

/* All operations in turn, each on what the ones before left; the hash of all they wrote after each. */
static weir_status run_ops(dev_device *d, uint64_t *hashes, weir_error *why)
{
    bench t;
    weir_status status = d->table->reserve_workspace(d, COLS, 48, 64, why);

    bench_open(&t);
    for (int code = 0; code < DEV_OP_COUNT && status == WEIR_OK; code++) {
        dev_op op = op_for(&t, (dev_opcode)code);
        uint64_t h = 0xCBF29CE484222325u;

        status = d->table->run(d, &op, why);
        h = hash(h, t.out, (size_t)ROWS * COLS * sizeof(float));
        h = hash(h, t.table, (size_t)ROWS * 64 * sizeof(float));
        h = hash(h, t.k, (size_t)2 * 48 * COLS * 2);
        hashes[code] = hash(h, t.v, (size_t)2 * 48 * COLS * 2);
    }
    bench_close(&t);
    return status;
}

static void run_all(const char *cpu, uint32_t n_threads, uint64_t *hashes)
{
    base_env *env = open_env();
    dev_device *d;

    assert_ok(dev_cpu_create(env, cpu, n_threads, &d, &err));
    assert_ok(run_ops(d, hashes, &err));
    dev_destroy(d);
    close_env(env);
}

static void cutting_changes_no_bit(void **state)
{
    uint64_t one[DEV_OP_COUNT], many[DEV_OP_COUNT];

    (void)state;
    run_all("ref", 1, one);
    for (int code = 1; code < DEV_OP_COUNT; code++) assert_true(one[code] != one[code - 1]);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        run_all("auto", threads, many);
        for (int code = 0; code < DEV_OP_COUNT; code++)
            if (one[code] != many[code])
                fail_msg("%s on %u workers: other bits", dev_op_name((dev_opcode)code), threads);
    }
}

/* Devices on one pool, each used by a thread of its own, with another number of its workers. */
typedef struct sharer {
    base_env *env;
    base_pool *pool;
    uint32_t n_threads;
    uint64_t hashes[DEV_OP_COUNT];
    const uint64_t *wanted;
    uint32_t runs, wrong;
    weir_error why;
} sharer;

static void *share(void *arg)
{
    sharer *s = arg;
    dev_device *d;

    for (; s->runs < 20; s->runs++) {
        if (dev_cpu_create_on(s->env, "auto", s->n_threads, s->pool, &d, &s->why) != WEIR_OK) break;
        if (run_ops(d, s->hashes, &s->why) != WEIR_OK) s->wrong++;
        s->wrong += memcmp(s->hashes, s->wanted, sizeof(s->hashes)) != 0;
        dev_destroy(d);
    }
    return NULL;
}

static void devices_share_workers(void **state)
{
    base_env *env = open_env();
    base_pool *pool;
    pthread_t threads[3];
    sharer all[3];
    uint64_t one[DEV_OP_COUNT];

    (void)state;
    run_all("ref", 1, one);
    assert_ok(base_pool_create(env, 4, &pool, &err));
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (sharer){.env = env, .pool = pool, .n_threads = 2 + i, .wanted = one};
        assert_int_equal(pthread_create(&threads[i], NULL, share, &all[i]), 0);
    }
    for (int i = 0; i < 20; i++) { /* workers come and go meanwhile */
        struct timespec nap = {.tv_nsec = 1000000};

        assert_ok(base_pool_resize(pool, 1 + (uint32_t)i % 5, &err));
        nanosleep(&nap, NULL);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        if (all[i].runs != 20 || all[i].wrong != 0)
            fail_msg("device %d: %u runs, %u of them wrong; %s", i, all[i].runs, all[i].wrong,
                     all[i].why.message);
    }
    base_pool_destroy(pool);
    close_env(env);
}

/* ---- one row over many positions: workers share its cache heads ---- */

enum { LONG = 2100, LONG_HEADS = 3, SHARED = 3, LONG_DIM = 48 };

/* The row at `last`, with a cache whose positions came in order. */
static void attend_long(const char *cpu, uint32_t n_threads, uint32_t dtype, uint32_t last, uint32_t window,
                        float *out)
{
    enum { N_KV = LONG_HEADS * LONG_DIM, N_Q = N_KV * SHARED };
    uint32_t capacity = window != 0 ? (window + 15) / 16 * 16 : (LONG + 15) / 16 * 16;
    size_t bytes = (size_t)capacity * N_KV * 4;
    base_env *env = open_env();
    base_rng rng;
    dev_device *d;
    dev_kv kv = {aligned_alloc(64, bytes), aligned_alloc(64, bytes), dtype, capacity};
    float *x = aligned_alloc(64, N_Q * sizeof(float)), k[N_KV], v[N_KV];
    int32_t position;
    uint32_t sequence = 0;
    dev_op op = {.n_rows = 1,
                 .cols = N_Q,
                 .a = {k, sizeof(k)},
                 .b = {v, sizeof(v)},
                 .out = {out, N_Q * sizeof(float)},
                 .n_heads = LONG_HEADS * SHARED,
                 .n_kv_heads = LONG_HEADS,
                 .head_dim = LONG_DIM,
                 .window = window,
                 .f = {0.2f, 0},
                 .position = &position,
                 .sequence = &sequence,
                 .kv = &kv};

    base_rng_seed(&rng, 5, 6);
    memset(kv.k, 0xff, bytes); /* NaN */
    memset(kv.v, 0xff, bytes);
    assert_ok(dev_cpu_create(env, cpu, n_threads, &d, &err));
    assert_ok(d->table->reserve_workspace(d, 64, window != 0 ? window : LONG, LONG_DIM, &err));
    op.code = DEV_KV_STORE;
    for (position = 0; position <= (int32_t)last; position++) {
        for (int i = 0; i < N_KV; i++) k[i] = base_rng_f32(&rng) * 2 - 1;
        for (int i = 0; i < N_KV; i++) v[i] = base_rng_f32(&rng) * 2 - 1;
        assert_ok(d->table->run(d, &op, &err));
    }
    position = (int32_t)last;
    for (int i = 0; i < N_Q; i++) x[i] = base_rng_f32(&rng) * 2 - 1;
    op.code = DEV_ATTENTION;
    op.a = (dev_view){x, N_Q * sizeof(float)};
    assert_ok(d->table->run(d, &op, &err));
    dev_destroy(d);
    close_env(env);
    free(x);
    free(kv.k);
    free(kv.v);
}

static void sharing_a_cache_head_changes_no_bit(void **state)
{
    static const uint32_t cases[][2] = {{LONG - 1, 0}, {1023, 0}, {LONG - 1, 1500}, {600, 0}};
    enum { N = LONG_HEADS * SHARED * LONG_DIM };
    float one[N], many[N];

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (int half = 0; half < 2; half++) {
            attend_long("ref", 1, half ? BASE_F16 : BASE_F32, cases[c][0], cases[c][1], one);
            for (int i = 0; i < N; i++) assert_true(one[i] != 0 && one[i] > -1 && one[i] < 1);
            for (uint32_t threads = 1; threads <= 7; threads++) {
                attend_long(threads == 4 ? "ref" : "auto", threads, half ? BASE_F16 : BASE_F32, cases[c][0],
                            cases[c][1], many);
                assert_memory_equal(one, many, sizeof(one));
            }
        }
}

/* Rows of Q8_0 with small scales. */
static uint8_t *quantized_rows(size_t n_rows, size_t row_bytes)
{
    uint8_t *w = malloc(n_rows * row_bytes);
    base_rng rng;

    base_rng_seed(&rng, 3, 4);
    for (size_t i = 0; i < n_rows * row_bytes; i++) w[i] = (uint8_t)base_rng_u32(&rng);
    for (size_t i = 0; i < n_rows * row_bytes; i += 34) w[i + 1] = (uint8_t)(0x20 + w[i + 1] % 8);
    return w;
}

/* Weights packed where they lie, on any number of workers, give the bits of the file's layout. */
static void packed_rows_give_the_same_bits(void **state)
{
    enum { K = 256, ROW = K / 32 * 34, N = 200, GROUPS = N / DEV_PACK_ROWS, TOKENS = 5 };
    uint8_t *file = quantized_rows(N, ROW), *packed = malloc((size_t)N * ROW), row[ROW];
    float plain[TOKENS * N], out[TOKENS * N], x[TOKENS * K];
    uint8_t *act = aligned_alloc(64, TOKENS * 512);

    (void)state;
    for (int i = 0; i < TOKENS * K; i++) x[i] = (float)(i % 37 - 18) / 7;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        base_env *env = open_env();
        dev_device *d;
        dev_op quant = {.code = DEV_QUANT, .dtype = BASE_Q8_0, .n_rows = TOKENS, .cols = K};
        dev_op op = {.code = DEV_MATMUL, .dtype = BASE_Q8_0, .n_rows = TOKENS, .cols = K, .row_end = N};

        assert_ok(dev_cpu_create(env, threads == 1 ? "ref" : "auto", threads, &d, &err));
        assert_ok(d->table->reserve_workspace(d, K, 16, 64, &err));
        assert_true(d->table->can_pack(d, BASE_Q8_0) && d->table->can_pack(d, BASE_Q4_K));
        assert_false(d->table->can_pack(d, BASE_F16) || d->table->can_pack(d, 9999));
        quant.a = (dev_view){x, K * sizeof(float)};
        quant.out = (dev_view){act, d->table->act_row_bytes(d, BASE_Q8_0, K)};
        assert_ok(d->table->run(d, &quant, &err));
        op.a = quant.out;
        op.w = (dev_view){file, ROW};
        op.out = (dev_view){plain, N * sizeof(float)};
        assert_ok(d->table->run(d, &op, &err));

        memcpy(packed, file, (size_t)N * ROW);
        assert_ok(d->table->pack(d, BASE_Q8_0, packed, ROW, GROUPS, &err));
        assert_memory_not_equal(packed, file, (size_t)GROUPS * DEV_PACK_ROWS * ROW);
        assert_memory_equal(packed + (size_t)GROUPS * DEV_PACK_ROWS * ROW,
                            file + (size_t)GROUPS * DEV_PACK_ROWS * ROW, (N % DEV_PACK_ROWS) * ROW);
        for (uint32_t r = 0; r < GROUPS * DEV_PACK_ROWS; r++) {
            const uint8_t *group = packed + (size_t)(r / DEV_PACK_ROWS) * DEV_PACK_ROWS * ROW;

            d->table->unpack_row(d, BASE_Q8_0, group, ROW, r % DEV_PACK_ROWS, row);
            assert_memory_equal(row, file + (size_t)r * ROW, ROW);
        }
        op.w.data = packed;
        op.packed_rows = GROUPS * DEV_PACK_ROWS;
        op.out.data = out;
        assert_ok(d->table->run(d, &op, &err));
        assert_memory_equal(out, plain, sizeof(out));
        assert_true(plain[0] != 0 && plain[TOKENS * N - 1] != 0);

        assert_int_equal(d->table->pack(d, BASE_Q8_0, packed, (size_t)1 << 20, 1, &err), WEIR_ERR_INTERNAL);
        assert_int_equal(d->table->pack(d, BASE_F16, packed, ROW, 1, &err), WEIR_ERR_INTERNAL);
        dev_destroy(d);
        close_env(env);
    }
    free(act);
    free(packed);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creating),
        cmocka_unit_test(names),
        cmocka_unit_test(forms),
        cmocka_unit_test(workspace),
        cmocka_unit_test(cutting_changes_no_bit),
        cmocka_unit_test(devices_share_workers),
        cmocka_unit_test(sharing_a_cache_head_changes_no_bit),
        cmocka_unit_test(packed_rows_give_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
