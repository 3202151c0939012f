/* The device kernels (src/kernels/gpu) compiled as C, so that compilers and sanitizers see them, against the
 * reference, bit for bit; their division and root made of integers against the processor's; and the same text
 * given to CUDA's compiler (NVRTC) where there is one. All inputs end at a forbidden page. */
#include "kern_test.h"
#include "kernels/gpu/gpu_kernels.h"

#include <dlfcn.h>

#define SEED 20261130u

static test_rng rng;
static const kern_table *ref;
static uint64_t n_compared;

/* Runs a kernel for x by y items and some beyond, as devices do. */
#define RUN(x, y, call)                                                                                      \
    for (gpu_c_y = 0; gpu_c_y < (y); gpu_c_y++)                                                              \
        for (gpu_c_x = 0; gpu_c_x < ((x) + 15) / 16 * 16; gpu_c_x++) call
#define BUF(p) (gpu_u8 *)(uintptr_t)(p), 0

static int begin(void **state)
{
    (void)state;
    rng.state = SEED;
    return kern_select("ref", &ref, NULL) == WEIR_OK ? 0 : 1;
}

static void compare(const float *want, const float *got, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (!same_float(want[i], got[i]))
            fail_msg("%s: element %zu of %zu: ref %a, got %a; seed %u", where, i, n, (double)want[i],
                     (double)got[i], SEED);
    n_compared += n;
}

/* ---- numbers ---- */
static void division(void **state)
{
    static const float specials[] = {0.0f,      -0.0f,           1.0f, 0x1p-149f, 0x1.fffffcp-127f,
                                     0x1p-126f, 0x1.fffffep127f, 3.0f};
    uint64_t subnormal = 0;

    (void)state;
    for (uint32_t i = 0; i < 3000000; i++) {
        float x = float_from_bits((uint32_t)rng_next(&rng)), y = float_from_bits((uint32_t)rng_next(&rng));
        if (i % 4 == 1) x = specials[i / 4 % COUNT(specials)];
        if (i % 8 == 3) y = specials[i / 8 % COUNT(specials)];
        if (i % 4 == 2) /* quotients about the smallest normal number */
            y = float_from_bits((uint32_t)rng_next(&rng) % 0x00ffffffu + 0x7e000000u), x = x * 0x1p-3f;
        float want = x / y, got = gpu_soft_div(x, y);
        if (!same_float(want, got))
            fail_msg("%a / %a: %a, got %a", (double)x, (double)y, (double)want, (double)got);
        subnormal += want != 0.0f && fabsf(want) < 0x1p-126f;
        want = sqrtf(x), got = gpu_soft_sqrt(x);
        if (!same_float(want, got)) fail_msg("root of %a: %a, got %a", (double)x, (double)want, (double)got);
    }
    assert_true(subnormal > 10000);
    assert_int_equal(bits_of_float(gpu_soft_div(1.0f, 3.0f)), 0x3eaaaaab);
    assert_int_equal(bits_of_float(gpu_soft_sqrt(2.0f)), 0x3fb504f3);
}

static void halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float want = kern_f32_from_f16((uint16_t)h), got = gpu_half(h);
        compare(&want, &got, 1, "half");
    }
    for (uint32_t i = 0; i < 2000000; i++) {
        float x = float_from_bits((uint32_t)rng_next(&rng));
        if (i % 2) x = ldexpf(rng_normal(&rng), (int)rng_below(&rng, 44) - 27);
        assert_int_equal(kern_f16_from_f32(x), gpu_to_half(x));
    }
}

static void functions(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2000000; i++) {
        float x = float_from_bits((uint32_t)rng_next(&rng));
        if (i % 2) x = rng_normal(&rng) * (float)(1 + i % 100);
        float want[2] = {kern_expf(x), kern_tanhf(x)}, got[2] = {gpu_exp(x), gpu_tanh(x)};
        compare(want, got, 2, "exp, tanh");
    }
    assert_int_equal(bits_of_float(gpu_exp(1.0f)), 0x402df854);
}

/* ---- by weight type ---- */
typedef void product_fn(GPU_MATMUL_PARAMETERS);
typedef void dequant_fn(GPU_DEQUANT_PARAMETERS);
static const struct {
    uint32_t dtype;
    product_fn *one, *several;
    dequant_fn *dequant;
} types[] = {
#define ENTRY(TYPE) {GPU_##TYPE, weir_matmul_##TYPE, weir_matmuls_##TYPE, weir_dequant_##TYPE},
    GPU_EACH_BLOCK(ENTRY) GPU_EACH_FLOAT(ENTRY)
#undef ENTRY
};

static void type_numbers(void **state)
{
    (void)state;
    assert_int_equal(COUNT(types), COUNT(test_dtypes));
#define SAME(TYPE) assert_int_equal(GPU_##TYPE, BASE_##TYPE);
    GPU_EACH_BLOCK(SAME)
    GPU_EACH_FLOAT(SAME)
#undef SAME
#define SIZES(TYPE)                                                                                          \
    assert_int_equal(gpu_block_bytes(GPU_##TYPE), base_dtype_get(BASE_##TYPE)->block_bytes);                 \
    assert_int_equal(gpu_block_elements(GPU_##TYPE), base_dtype_get(BASE_##TYPE)->block_elements);
    GPU_EACH_BLOCK(SIZES)
#undef SIZES
}

static void dequantizing(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (size_t n = 1; n < 5; n++) {
                const base_dtype_info *info = base_dtype_get(types[t].dtype);
                size_t cols = n * info->block_elements, row = n * info->block_bytes;
                guarded gs, ga;
                uint8_t *src = guarded_alloc(&gs, row * 2, 0);
                float *got = guarded_alloc(&ga, cols * 8, 0), want[4 * 256];
                fill_weights(&rng, mode, types[t].dtype, src, 2 * cols);
                float factor = n == 1 ? 1.0f : 3.7f;
                RUN(n, 2, types[t].dequant(BUF(src), row, BUF(got), cols, (gpu_u32)cols, factor));
                for (size_t r = 0; r < 2; r++) {
                    ref->dequantize(types[t].dtype, src + r * row, cols, want);
                    if (n > 1) ref->scale(want, cols, factor);
                    compare(want, got + r * cols, cols, info->name);
                }
                guarded_free(&gs), guarded_free(&ga);
            }
}

static void check_product(size_t t, size_t k, size_t n_rows, size_t n_tokens, int mode)
{
    uint32_t dtype = types[t].dtype;
    const base_dtype_info *info = base_dtype_get(dtype);
    kern_act act = kern_act_for(dtype);
    size_t row = k / info->block_elements * info->block_bytes, act_row = kern_act_row_bytes(act, k);
    guarded gw, gx, gb, go;
    uint8_t *w = guarded_alloc(&gw, row * n_rows, 0), *x = guarded_alloc(&gx, act_row * n_tokens, 0);
    float *bias = guarded_alloc(&gb, n_rows * 4, 0), *got = guarded_alloc(&go, n_rows * n_tokens * 4, 0);
    float *want = malloc(n_rows * n_tokens * 4), *floats = malloc(k * 4);
    fill_weights(&rng, mode, dtype, w, n_rows * k);
    fill_floats(&rng, mode, bias, n_rows);
    for (size_t i = 0; i < n_tokens; i++) {
        fill_floats(&rng, mode, floats, k);
        ref->quantize(act, floats, k, x + i * act_row);
    }
    kern_matmul m = {.dtype = dtype,
                     .w = w,
                     .row_bytes = row,
                     .k = k,
                     .act = x,
                     .act_stride = act_row,
                     .n_tokens = n_tokens,
                     .out = want,
                     .out_stride = n_rows,
                     .bias = k % 64 ? bias : NULL};
    ref->matmul(&m, 0, n_rows, NULL);
    for (int several = 0; several < 2; several++) {
        product_fn *fn = several ? types[t].several : types[t].one;
        memset(got, 0x5a, n_rows * n_tokens * 4);
        RUN(n_rows, several ? (n_tokens + GPU_TOKENS - 1) / GPU_TOKENS : n_tokens,
            fn(BUF(w), row, (gpu_u32)k, BUF(x), act_row, (gpu_u32)n_tokens, BUF(got), n_rows, BUF(m.bias),
               m.bias != NULL, (gpu_u32)n_rows));
        compare(want, got, n_rows * n_tokens, info->name);
    }
    free(want), free(floats);
    guarded_free(&gw), guarded_free(&gx), guarded_free(&gb), guarded_free(&go);
}

static void products(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < 12; i++) {
            size_t block = base_dtype_get(types[t].dtype)->block_elements;
            size_t k = block == 1 ? 1 + rng_below(&rng, 70) : block * (1 + rng_below(&rng, 3));
            check_product(t, k, 1 + rng_below(&rng, 20), 1 + rng_below(&rng, 18), (int)(i % N_MODES));
        }
}

static void quantizing(void **state)
{
    (void)state;
    for (int a = 0; a < 2; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (size_t n = 1; n < 8; n++) {
                size_t per_d = a ? 256 : 32, k = n * per_d;
                kern_act act = a ? KERN_ACT_Q256 : KERN_ACT_Q32;
                size_t bytes = kern_act_row_bytes(act, k);
                guarded gx, gg;
                float *x = guarded_alloc(&gx, k * 4, 0);
                uint8_t *want = calloc(1, bytes), *got = guarded_alloc(&gg, bytes, 0);
                fill_floats(&rng, mode, x, k);
                ref->quantize(act, x, k, want);
                RUN(n, 1, weir_quantize(BUF(x), k, BUF(got), bytes, (gpu_u32)k, (gpu_u32)per_d));
                assert_memory_equal(want, got, k);
                compare((const float *)(want + k), (const float *)(got + k), n, "quantize: d");
                assert_memory_equal(want + k + 4 * n, got + k + 4 * n, k / (a ? 16 : 32) * 4);
                free(want), guarded_free(&gx), guarded_free(&gg);
            }
}

/* ---- rows ---- */
static void rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < 200; i++) {
        int mode = (int)(i % N_MODES);
        gpu_u32 n = 1 + rng_below(&rng, 150);
        guarded ga, gb, gw, go;
        float *a = guarded_alloc(&ga, n * 4, 0), *b = guarded_alloc(&gb, n * 4, 0);
        float *w = guarded_alloc(&gw, n * 4, 0), *got = guarded_alloc(&go, n * 4, 0), want[160], lanes[16];
        fill_floats(&rng, mode, a, n), fill_floats(&rng, mode, b, n), fill_floats(&rng, EDGES, w, n);
        ref->rms_norm(a, w, (float)(i % 2), 1e-5f, n, want);
        RUN(16, 1, weir_norm_lanes(BUF(a), n, n, 1, 0, BUF(lanes)));
        RUN(n, 1, weir_norm(BUF(a), n, n, 1, 0, BUF(lanes), BUF(w), (float)(i % 2), 1e-5f, BUF(got), n));
        compare(want, got, n, "norm");
        for (int gelu = 0; gelu < 2; gelu++) {
            ref->glu(gelu ? KERN_GLU_GELU : KERN_GLU_SILU, a, b, n, want);
            RUN(n, 1, weir_glu(BUF(a), n, BUF(b), n, BUF(got), n, n, (gpu_u32)gelu));
            compare(want, got, n, "glu");
        }
        ref->add(a, b, n, want);
        RUN(n, 1, weir_add(BUF(a), n, BUF(b), n, BUF(got), n, n));
        compare(want, got, n, "add");
        memcpy(want, a, n * 4), memcpy(got, a, n * 4);
        ref->softcap(want, n, 30.0f), ref->scale(want, n, 0.3f);
        RUN(n, 1, weir_softcap(BUF(got), n, n, 30.0f));
        RUN(n, 1, weir_scale(BUF(got), n, n, 0.3f));
        compare(want, got, n, "softcap, scale");
        RUN(n, 1, weir_copy_rows(BUF(b), n, BUF(got), n, n));
        assert_memory_equal(b, got, n * 4);
        guarded_free(&ga), guarded_free(&gb), guarded_free(&gw), guarded_free(&go);
    }
}

static void rotations(void **state)
{
    (void)state;
    for (gpu_u32 i = 0; i < 100; i++) {
        gpu_u32 head_dim = 2 * (1 + rng_below(&rng, 40)), n_rot = 2 * (1 + rng_below(&rng, head_dim / 2)),
                heads = 1 + i % 4;
        size_t n = (size_t)head_dim * heads;
        guarded gt, gx;
        float *table = guarded_alloc(&gt, n_rot * 4, 0), *got = guarded_alloc(&gx, n * 4, 0),
              *want = malloc(n * 4);
        fill_floats(&rng, PLAIN, table, n_rot), fill_floats(&rng, (test_mode)(i % N_MODES), got, n);
        memcpy(want, got, n * 4);
        ref->rope(want, heads, head_dim, n_rot, table, i % 2);
        RUN(heads * n_rot / 2, 1, weir_rope(BUF(got), n, BUF(table), n_rot, heads, head_dim, n_rot, i % 2));
        compare(want, got, n, "rope");
        free(want), guarded_free(&gt), guarded_free(&gx);
    }
}

/* ---- attention ---- */
typedef struct caches {
    guarded g[4];
    kern_kv want, got;
} caches;

static void check_attention(gpu_u32 heads, gpu_u32 kv_heads, gpu_u32 head_dim, gpu_u32 capacity, gpu_u32 last,
                            gpu_u32 window, gpu_u32 is_half, float softcap)
{
    gpu_u32 n_kv = kv_heads * head_dim, n = heads * head_dim, n_rows = 3, most = last + n_rows;
    size_t bytes = (size_t)capacity * n_kv * (is_half ? 2 : 4);
    gpu_u32 stride = (most + 15) / 16 * 16 + 32, pairs = n_rows * heads;
    caches c;
    guarded gq, go;
    float *q = guarded_alloc(&gq, n_rows * n * 4, 0), *got = guarded_alloc(&go, n_rows * n * 4, 0);
    float *want = malloc(n_rows * n * 4), *row = malloc(2 * n_kv * 4),
          *e = malloc((size_t)pairs * stride * 4);
    void *scratch = aligned_alloc(64, (kern_attention_scratch_bytes(most, head_dim) + 63) / 64 * 64);
    c.want = (kern_kv){guarded_alloc(&c.g[0], bytes, 0), guarded_alloc(&c.g[1], bytes, 0),
                       is_half ? BASE_F16 : BASE_F32, capacity};
    c.got = (kern_kv){guarded_alloc(&c.g[2], bytes, 0), guarded_alloc(&c.g[3], bytes, 0),
                      is_half ? BASE_F16 : BASE_F32, capacity};
    for (gpu_u32 p = 0; p < last + n_rows; p++) {
        fill_floats(&rng, PLAIN, row, 2 * n_kv);
        ref->kv_store(&c.want, kv_heads, head_dim, p, row, row + n_kv);
        RUN(n_kv, 1,
            weir_kv_store(BUF(row), n_kv, BUF(row + n_kv), n_kv, BUF(c.got.k), BUF(c.got.v), is_half,
                          capacity, kv_heads, head_dim, p));
    }
    assert_memory_equal(c.want.k, c.got.k, bytes);
    assert_memory_equal(c.want.v, c.got.v, bytes);
    fill_floats(&rng, PLAIN, q, n_rows * n);
    kern_attention a = {.q = q,
                        .out = want,
                        .kv = &c.want,
                        .n_heads = heads,
                        .n_kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .last = last,
                        .scale = 0.125f,
                        .softcap = softcap,
                        .n_rows = n_rows,
                        .window = window,
                        .q_stride = n,
                        .out_stride = n};
    ref->attention(&a, 0, heads, scratch);
    for (gpu_u32 first = 0; first < pairs; first += 4) { /* in turns of four */
        gpu_u32 count = pairs - first < 4 ? pairs - first : 4;
        RUN(most, count,
            weir_attention_scores(BUF(q), n, BUF(c.got.k), is_half, capacity, heads, kv_heads, head_dim, last,
                                  window, 0.125f, softcap, first, BUF(e), stride));
        RUN(16, count, weir_attention_max(heads, last, window, first, BUF(e), stride));
        RUN(16, count, weir_attention_weights(heads, last, window, first, BUF(e), stride));
        RUN(head_dim, count,
            weir_attention_values(BUF(c.got.v), is_half, capacity, heads, kv_heads, head_dim, last, window,
                                  first, BUF(e), stride, BUF(got), n));
    }
    compare(want, got, n_rows * n, "attention");
    free(want), free(row), free(e), free(scratch), guarded_free(&gq), guarded_free(&go);
    for (int i = 0; i < 4; i++) guarded_free(&c.g[i]);
}

static void attention(void **state)
{
    (void)state;
    for (gpu_u32 i = 0; i < 20; i++)
        check_attention(4, i % 2 ? 2 : 4, 6 + 2 * i, 64, rng_below(&rng, 60), 0, i % 2,
                        i % 4 == 3 ? 20.0f : 0.0f);
    check_attention(4, 2, 16, 48, 300, 31, 1, 0.0f);
    check_attention(2, 1, 10, 1104, 1100, 0, 0, 0.0f);
}

/* The text with CUDA's compiler: R12's aim that CUDA follows from the same source. */
static void cuda_compiles(void **state)
{
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                        "libnvrtc.so.11.2"};
    typedef int create_fn(void **, const char *, const char *, int, const char *const *, const char *const *);
    typedef int compile_fn(void *, int, const char *const *);
    typedef int log_size_fn(void *, size_t *);
    typedef int log_fn(void *, char *);
    typedef int destroy_fn(void **);
    const char *options[] = {"--fmad=false"};
    void *lib = NULL, *program = NULL;

    (void)state;
    for (size_t i = 0; i < COUNT(names) && lib == NULL; i++) lib = dlopen(names[i], RTLD_NOW);
    if (lib == NULL) skip();
    char *text = malloc(strlen(kern_gpu_begin) + strlen(kern_gpu_source) + 1), *log;
    size_t n = 0;
    strcpy(text, kern_gpu_begin), strcat(text, kern_gpu_source);
    assert_int_equal(((create_fn *)dlsym(lib, "nvrtcCreateProgram"))(&program, text, "weir", 0, NULL, NULL),
                     0);
    int rc = ((compile_fn *)dlsym(lib, "nvrtcCompileProgram"))(program, 1, options);
    assert_int_equal(((log_size_fn *)dlsym(lib, "nvrtcGetProgramLogSize"))(program, &n), 0);
    log = malloc(n + 1);
    ((log_fn *)dlsym(lib, "nvrtcGetProgramLog"))(program, log);
    if (rc != 0) fail_msg("NVRTC: %.*s", 2000, log);
    ((destroy_fn *)dlsym(lib, "nvrtcDestroyProgram"))(&program);
    free(log), free(text);
}

static void compared(void **state)
{
    (void)state;
    print_message("%llu numbers compared, seed %u\n", (unsigned long long)n_compared, SEED);
    assert_true(n_compared > 4000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(division),     cmocka_unit_test(halves),        cmocka_unit_test(functions),
        cmocka_unit_test(type_numbers), cmocka_unit_test(dequantizing),  cmocka_unit_test(products),
        cmocka_unit_test(quantizing),   cmocka_unit_test(rows),          cmocka_unit_test(rotations),
        cmocka_unit_test(attention),    cmocka_unit_test(cuda_compiles), cmocka_unit_test(compared),
    };
    return cmocka_run_group_tests_name("device kernels as C", tests, begin, NULL);
}
