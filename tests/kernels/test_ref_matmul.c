/* The reference products against double precision, from the dequantized weights and the dequantized
 * activations.
 *
 * The bound. u = 2^-24. A chain of N fused steps adds terms t_1 .. t_N; t_j has its own relative error of at
 * most 3 u (product of the scales, conversion of the integer sum, and for Q4_1's minimum the product with dx)
 * and goes through the N - j + 1 roundings from its own step on. So |error| <= u x sum |t_j| (N - j + 4), to
 * first order; the second order (N u < 2^-12 here) is covered by a factor 1.001. Values of types with a
 * minimum are rounded once when they are dequantized, u |v x| more. Float weights: sixteen chains and four
 * additions, u x sum |w x| (k / 16 + 5). The bias rounds once more. The test fails too when nothing comes
 * near the bound, since then the bound would be worthless. */
#include "kern_test.h"
#include "kernels/ref/kern_ref.h"

#define U 0x1p-24

typedef struct problem {
    kern_matmul m;
    size_t n_rows;
    uint8_t *w;
    char *act;
    float *out, *bias, *values; /* values: one row, dequantized */
} problem;

static const kern_table *ref_table(void)
{
    const kern_table *t;
    assert_int_equal(kern_select("ref", &t, NULL), WEIR_OK);
    return t;
}

static void make_problem(problem *p, test_rng *r, uint32_t dtype, size_t k, size_t n_rows, size_t n_tokens)
{
    const kern_table *t = ref_table();
    uint64_t row_bytes;
    kern_act act = kern_act_for(dtype);
    assert_true(base_dtype_row_bytes(dtype, k, &row_bytes));
    p->n_rows = n_rows;
    p->m = (kern_matmul){.dtype = dtype, .k = k, .n_tokens = n_tokens, .out_stride = n_rows + 5};
    p->m.row_bytes = row_bytes + 7; /* so that rows lie at odd addresses */
    p->m.act_stride = kern_act_row_bytes(act, k) + 64;
    p->w = malloc(p->m.row_bytes * n_rows);
    p->act = aligned_alloc(64, p->m.act_stride * n_tokens);
    p->out = malloc(p->m.out_stride * n_tokens * sizeof(float));
    p->bias = malloc(n_rows * sizeof(float));
    p->values = malloc(k * sizeof(float));
    for (size_t i = 0; i < n_rows; i++) fill_weights(r, PLAIN, dtype, p->w + i * p->m.row_bytes, k);
    for (size_t i = 0; i < n_tokens; i++) {
        fill_floats(r, PLAIN, p->values, k);
        if (act == KERN_ACT_F32)
            memcpy(p->act + i * p->m.act_stride, p->values, k * sizeof(float));
        else
            t->quantize(act, p->values, k, p->act + i * p->m.act_stride);
    }
    fill_floats(r, PLAIN, p->bias, n_rows);
    p->m.w = p->w;
    p->m.act = p->act;
    p->m.out = p->out;
}
static void free_problem(problem *p)
{
    free(p->w), free(p->act), free(p->out), free(p->bias), free(p->values);
}

/* Element i of an activation row, exactly. */
static double activation(const problem *p, const char *row, size_t i)
{
    size_t per_d = kern_act_for(p->m.dtype) == KERN_ACT_Q32 ? 32 : 256;
    const float *d = (const float *)(row + p->m.k);
    if (kern_act_for(p->m.dtype) == KERN_ACT_F32) return ((const float *)row)[i];
    return (double)((const int8_t *)row)[i] * d[i / per_d];
}

/* The bound of one output, without bias; *exact is what it should be. p->values holds the row. */
static double bound(const problem *p, const uint8_t *w, const char *act, double *exact)
{
    const base_dtype_info *info = base_dtype_get(p->m.dtype);
    size_t elements = info->block_elements, n_blocks = p->m.k / elements;
    double limit = 0, sum = 0, magnitude = 0;
    for (size_t i = 0; i < p->m.k; i++) {
        double x = activation(p, act, i);
        sum += p->values[i] * x;
        magnitude += fabs(p->values[i] * x);
    }
    *exact = sum;
    if (elements == 1) return U * magnitude * (double)((p->m.k + 15) / 16 + 5) * 1.001;
    for (size_t b = 0; b < n_blocks; b++) {
        kern_ref_block block;
        double main_term = 0, min_term = 0;
        assert_true(kern_ref_unpack(p->m.dtype, w + b * info->block_bytes, &block));
        for (size_t i = 0; i < elements; i++) {
            double x = activation(p, act, b * elements + i);
            main_term += (double)block.d * (elements == 256 ? block.scale[i / 16] : 1) * block.w[i] * x;
            min_term += (double)block.m * (elements == 256 ? block.min[i / 16] : 1) * x;
        }
        size_t steps = block.has_min ? 2 : 1,
               left = (n_blocks - b) * steps; /* N - j + 1 of the block's first */
        limit += U * (fabs(main_term) * (double)(left + 3) + fabs(min_term) * (double)(left - steps + 4));
        if (block.has_min && b + 1 == n_blocks) limit += U * magnitude;
    }
    return limit * 1.001;
}

static double check_outputs(problem *p, size_t row_begin, size_t row_end)
{
    const kern_table *t = ref_table();
    double worst = 0;
    for (size_t r = row_begin; r < row_end; r++) {
        const uint8_t *w = p->w + r * p->m.row_bytes;
        t->dequantize(p->m.dtype, w, p->m.k, p->values);
        for (size_t i = 0; i < p->m.n_tokens; i++) {
            double exact, limit = bound(p, w, p->act + i * p->m.act_stride, &exact);
            double got = p->out[i * p->m.out_stride + r];
            if (p->m.bias) {
                exact += p->bias[r];
                limit += U * fabs(exact) * 1.001;
            }
            if (!(fabs(got - exact) <= limit))
                fail_msg("%s k=%zu row %zu token %zu: wanted %.9g +- %.3g, got %.9g",
                         base_dtype_get(p->m.dtype)->name, p->m.k, r, i, exact, limit, got);
            if (limit > 0 && fabs(got - exact) / limit > worst) worst = fabs(got - exact) / limit;
        }
    }
    return worst;
}

static void test_type(void **state)
{
    uint32_t dtype = *(const uint32_t *)*state;
    size_t block = base_dtype_get(dtype)->block_elements;
    static const size_t tokens[] = {1, 2, 7, 16, 17, 33};
    test_rng r = {99};
    double worst = 0;
    for (size_t i = 0; i < COUNT(tokens); i++) {
        problem p;
        size_t k = block == 1 ? 16 * i + 5 * i * i + 3 : block * (2 * i + 1);
        make_problem(&p, &r, dtype, k, 11, tokens[i]);
        p.m.bias = i % 2 ? p.bias : NULL;
        memset(p.out, 0xff, p.m.out_stride * tokens[i] * sizeof(float));
        ref_table()->matmul(&p.m, 2, 9, NULL);
        worst = fmax(worst, check_outputs(&p, 2, 9));
        for (size_t t = 0; t < tokens[i]; t++)
            for (size_t row = 0;
                 row < p.m.out_stride && t * p.m.out_stride + row < p.m.out_stride * tokens[i]; row++)
                if (row < 2 || row >= 9)
                    assert_int_equal(bits_of_float(p.out[t * p.m.out_stride + row]), 0xffffffffu);
        free_problem(&p);
    }
    print_message("%s: worst error is %.3f of the bound\n", base_dtype_get(dtype)->name, worst);
    assert_true(worst > 0.05);
}

/* Largest integer sums: every weight, scale and activation at its extreme. */
static void test_largest_sums(void **state)
{
    static const struct {
        uint32_t dtype;
        uint8_t fill, scales;
        size_t at, n;
        double sum; /* of d = 1, m or dmin = 0, dx = 1, q = 127 */
    } cases[] = {
        {BASE_Q8_0, 0x80, 0, 0, 0, -520192},        {BASE_Q2_K, 0xff, 0xff, 0, 16, 1463040},
        {BASE_Q3_K, 0x00, 0x00, 96, 12, 4161536},   {BASE_Q4_K, 0xff, 0xff, 4, 12, 30723840},
        {BASE_Q5_K, 0xff, 0xff, 4, 12, 63495936},   {BASE_Q6_K, 0x00, 0x80, 192, 16, 133169152},
        {BASE_IQ4_XS, 0x00, 0x00, 2, 6, 132128768},
    };
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        const base_dtype_info *info = base_dtype_get(cases[c].dtype);
        size_t n = info->block_elements;
        uint8_t w[256];
        float x[256], out = 0;
        _Alignas(64) uint8_t act[512] = {0};
        for (size_t i = 0; i < n; i++) x[i] = 127.0f;
        ref_table()->quantize(kern_act_for(cases[c].dtype), x, n, act);
        memset(w, cases[c].fill, sizeof w);
        memset(w + cases[c].at, cases[c].scales, cases[c].n);
        bool last = cases[c].dtype == BASE_Q3_K || cases[c].dtype == BASE_Q6_K;
        size_t at = cases[c].dtype == BASE_Q2_K ? 80 : last ? info->block_bytes - 2 : 0;
        put_half(w + at, 0x3c00);
        if (cases[c].dtype == BASE_Q2_K || cases[c].dtype == BASE_Q4_K || cases[c].dtype == BASE_Q5_K)
            put_half(w + at + 2, 0);
        kern_matmul m = {cases[c].dtype, w, info->block_bytes, n, act, 512, 1, &out, 1, NULL, 0};
        for (const char *const *name = kern_available(); *name; name++) {
            const kern_table *t;
            assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
            void *scratch = aligned_alloc(64, kern_scratch_bytes(n));
            t->matmul(&m, 0, 1, scratch);
            free(scratch);
            assert_true(out == (float)cases[c].sum);
        }
    }
}

static void test_quantize(void **state)
{
    static const kern_act acts[] = {KERN_ACT_Q32, KERN_ACT_Q256};
    test_rng r = {5};
    (void)state;
    for (int a = 0; a < 2; a++)
        for (int round = 0; round < 200; round++) {
            size_t n = a ? 256 : 32, per_sum = a ? 16 : 32;
            float x[256], amax = 0, scale = ldexpf(1, (int)rng_below(&r, 200) - 100);
            _Alignas(64) uint8_t act[512];
            for (size_t i = 0; i < n; i++) x[i] = rng_normal(&r) * scale, amax = fmaxf(amax, fabsf(x[i]));
            ref_table()->quantize(acts[a], x, n, act);
            const int8_t *q = (const int8_t *)act;
            float d = *(const float *)(act + n);
            const int32_t *sum = (const int32_t *)(act + n + 4);
            assert_true(d == amax / 127.0f);
            int largest = 0;
            for (size_t s = 0; s < n / per_sum; s++) {
                int32_t total = 0;
                for (size_t i = s * per_sum; i < (s + 1) * per_sum; i++) {
                    /* Half a step, and the two roundings of x * inv. */
                    assert_true(fabs((double)x[i] - (double)q[i] * d) <= (double)d * (0.5 + 127 * 4 * U));
                    total += q[i];
                    largest = abs(q[i]) > largest ? abs(q[i]) : largest;
                }
                assert_int_equal(total, sum[s]);
            }
            assert_int_equal(largest, 127);
        }
}

static void test_quantize_edges(void **state)
{
    float x[32] = {0};
    _Alignas(64) uint8_t act[64];
    const int8_t *q = (const int8_t *)act;
    const float *d = (const float *)(act + 32);
    const int32_t *sum = (const int32_t *)(act + 36);
    (void)state;
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(bits_of_float(*d) == 0 && q[0] == 0 && *sum == 0);
    x[3] = -1e-37f; /* 127 / amax overflows: counts as zero */
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(bits_of_float(*d) == 0 && q[3] == 0 && *sum == 0);
    x[3] = -4e-37f;
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(*d > 0 && q[3] == -127 && *sum == -127);
    x[3] = 127.0f, x[4] = 0.5f, x[5] = 1.5f, x[6] = -2.5f, x[7] = -3.5f; /* ties to even */
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(*d == 1.0f && q[4] == 0 && q[5] == 2 && q[6] == -2 && q[7] == -4 && *sum == 127 - 4);
    x[9] = INFINITY;
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(isnan(*d) && q[3] == 0 && *sum == 0);
    x[9] = NAN;
    ref_table()->quantize(KERN_ACT_Q32, x, 32, act);
    assert_true(isnan(*d) && q[3] == 0 && *sum == 0);
}

int main(void)
{
    struct CMUnitTest tests[COUNT(test_dtypes) + 3];
    size_t n = 0;
    for (; n < COUNT(test_dtypes); n++)
        tests[n] = (struct CMUnitTest){base_dtype_get(test_dtypes[n])->name, test_type, NULL, NULL,
                                       (void *)(uintptr_t)&test_dtypes[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_largest_sums);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_quantize);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_quantize_edges);
    return cmocka_run_group_tests_name("reference products", tests, NULL, NULL);
}
