/* The scalar functions: exp and tanh against the C library in double, halves over all 65,536, the double
 * functions against long double. The measured worst errors are printed; the bounds are those of
 * docs/numerics.md. */
#include "kern_test.h"

/* One unit in the last place of a float at v (of the smallest normal below it). */
static double ulp_float(double v)
{
    int e;
    (void)frexp(v, &e);
    return ldexp(1.0, (e < -125 ? -125 : e) - 24);
}
static long double ulp_double(long double v)
{
    int e;
    (void)frexpl(v, &e);
    return ldexpl(1.0L, (e < -1021 ? -1021 : e) - 53);
}

static void test_expf(void **state)
{
    double worst = 0;
    size_t n = 0;
    (void)state;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0x2f000000; bits < 0x42d00000; bits += 149, n++) {
            float x = float_from_bits(bits | sign << 31);
            if (x > 88.72283f || x < -104.0f) break;
            double want = exp((double)x), error = fabs(kern_expf(x) - want) / ulp_float(want);
            if (error > worst) worst = error;
        }
    print_message("kern_expf: worst error %.4f ulp over %zu arguments\n", worst, n);
    assert_true(n > 2000000);
    assert_true(worst < 0.90);
}

static void test_expf_edges(void **state)
{
    const float inf = float_from_bits(0x7f800000);
    (void)state;
    assert_true(kern_expf(0.0f) == 1.0f && kern_expf(-0.0f) == 1.0f);
    assert_true(kern_expf(88.72283f) < inf && kern_expf(88.72283f) > 3.4e38f);
    assert_true(kern_expf(nextafterf(88.72283f, 100.0f)) == inf && kern_expf(inf) == inf);
    assert_int_equal(bits_of_float(kern_expf(-inf)), 0);
    assert_int_equal(bits_of_float(kern_expf(-104.0f)), 0);
    assert_int_equal(bits_of_float(kern_expf(-103.9f)), 1); /* the smallest subnormal */
    assert_true(isnan(kern_expf(NAN)));
    assert_true(kern_expf(float_from_bits(1)) == 1.0f);
}

static void test_tanhf(void **state)
{
    double worst = 0;
    size_t n = 0;
    (void)state;
    for (uint32_t bits = 1; bits < 0x41200000; bits += 211, n++) {
        float x = float_from_bits(bits);
        double want = tanh((double)x), error = fabs(kern_tanhf(x) - want) / ulp_float(want);
        if (error > worst) worst = error;
        assert_int_equal(bits_of_float(kern_tanhf(-x)), bits_of_float(kern_tanhf(x)) | 0x80000000u);
        assert_true(kern_tanhf(x) <= 1.0f);
    }
    print_message("kern_tanhf: worst error %.4f ulp over %zu arguments\n", worst, n);
    assert_true(n > 2000000);
    assert_true(worst < 1.37);
    assert_true(kern_tanhf(INFINITY) == 1.0f && kern_tanhf(-INFINITY) == -1.0f && isnan(kern_tanhf(NAN)));
    assert_int_equal(bits_of_float(kern_tanhf(-0.0f)), 0); /* by its definition */
    assert_int_equal(bits_of_float(kern_tanhf(0.0f)), 0);
}

static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static void test_f16_all(void **state)
{
    size_t finite = 0;
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = kern_f32_from_f16(h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(f));
            assert_int_equal(kern_f16_from_f32(f), h | 0x200);
            continue;
        }
        if ((h & 0x7fff) == 0x7c00)
            assert_true(isinf(f) && (f < 0) == (h >> 15));
        else
            assert_true((double)f == half_value(h)), finite++;
        assert_int_equal(bits_of_float(f) >> 31, h >> 15);
        assert_int_equal(kern_f16_from_f32(f), h);
    }
    assert_int_equal(finite, 2 * 0x7c00);
}

/* Between two neighbours: below the middle down, above it up, in the middle to the even one. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7c00; i++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint16_t low = (uint16_t)(i | sign << 15), high = (uint16_t)(low + 1);
            double next = i + 1 == 0x7c00 ? 65536.0 : fabs(half_value((uint16_t)(i + 1)));
            float middle = (float)((fabs(half_value((uint16_t)i)) + next) / 2);
            float s = sign ? -1.0f : 1.0f;
            assert_int_equal(kern_f16_from_f32(s * middle), low & 1 ? high : low);
            assert_int_equal(kern_f16_from_f32(s * nextafterf(middle, 0.0f)), low);
            assert_int_equal(kern_f16_from_f32(s * nextafterf(middle, 1e9f)), high);
        }
    assert_int_equal(kern_f16_from_f32(1e30f), 0x7c00);
    assert_int_equal(kern_f16_from_f32(-65520.0f), 0xfc00);
    assert_int_equal(kern_f16_from_f32(float_from_bits(1)), 0);
}

static double uniform(test_rng *r, double low, double high)
{
    return low + (high - low) * ((double)(rng_next(r) >> 11) * 0x1p-53);
}

static void note(long double *worst, double got, long double want)
{
    long double error = fabsl((long double)got - want) / ulp_double(want);
    if (!(error <= *worst)) *worst = error;
}

static void test_double_exp_log(void **state)
{
    test_rng r = {7};
    long double worst_exp = 0, worst_log = 0;
    (void)state;
    for (int i = 0; i < 400000; i++) {
        double x = i % 2 ? uniform(&r, -745, 709.7) : uniform(&r, -1, 1);
        note(&worst_exp, kern_exp(x), expl(x));
        double y = i % 2 ? uniform(&r, 0.5, 2.0) : ldexp(uniform(&r, 1, 2), (int)rng_below(&r, 2097) - 1074);
        note(&worst_log, kern_log(y), logl(y));
    }
    print_message("kern_exp: %.4Lf ulp, kern_log: %.4Lf ulp\n", worst_exp, worst_log);
    assert_true(worst_exp < 1.0L);
    assert_true(worst_log < 0.51L);
    assert_true(kern_log(1.0) == 0.0 && kern_exp(0.0) == 1.0 && kern_log(0.0) == -INFINITY);
    assert_true(isnan(kern_log(-1.0)) && kern_log(INFINITY) == INFINITY && isnan(kern_log(NAN)));
    assert_true(kern_exp(710.0) == INFINITY && kern_exp(-746.0) == 0.0 && isnan(kern_exp(NAN)));
    assert_true(kern_exp(INFINITY) == INFINITY && kern_exp(-INFINITY) == 0.0);
}

static void test_double_pow(void **state)
{
    test_rng r = {8};
    long double worst = 0;
    size_t n = 0;
    (void)state;
    for (int i = 0; i < 400000; i++) {
        double x = i % 2 ? uniform(&r, 1e-3, 1e6) : ldexp(uniform(&r, 1, 2), (int)rng_below(&r, 2000) - 1000);
        double y = i % 3 ? uniform(&r, -2, 2) : uniform(&r, -100, 100);
        long double want = powl(x, y);
        if (want > 1.7e308L) continue;
        note(&worst, kern_pow(x, y), want);
        n++;
    }
    print_message("kern_pow: %.4Lf ulp over %zu pairs\n", worst, n);
    assert_true(n > 200000);
    assert_true(worst < 1.1L);
    assert_true(kern_pow(3.0, 0.0) == 1.0 && kern_pow(1.0, 1e300) == 1.0 && kern_pow(2.0, 10.0) == 1024.0);
    assert_true(kern_pow(2.0, 2000.0) == INFINITY && kern_pow(2.0, -2000.0) == 0.0);
    assert_true(kern_pow(10000.0, 0.5) == 100.0 && kern_pow(0.0, 2.0) == 0.0 &&
                kern_pow(0.0, -1.0) == INFINITY);
    assert_true(kern_pow(INFINITY, 2.0) == INFINITY && isnan(kern_pow(-1.0, 2.0)) &&
                isnan(kern_pow(NAN, 2.0)));
    assert_true(kern_pow(2.0, INFINITY) == INFINITY && kern_pow(0.5, INFINITY) == 0.0);
}

static void test_rope_table(void **state)
{
    static const int32_t positions[] = {0, 1, 2, 7, 100, 4095, 131071, 10000000, INT32_MAX, -3};
    static const double bases[] = {10000.0, 500000.0, 1000000.0};
    static const double scales[] = {1.0, 1.1};
    double freq[64], worst = 0;
    float table[128];
    (void)state;
    for (size_t b = 0; b < COUNT(bases); b++)
        for (size_t p = 0; p < COUNT(positions); p++) {
            double mscale = scales[p % 2];
            for (int i = 0; i < 64; i++) freq[i] = kern_pow(bases[b], -(2.0 * i) / 128);
            kern_rope_table(positions[p], freq, 64, mscale, table);
            for (int i = 0; i < 64; i++) {
                double angle = positions[p] * freq[i];
                long double c = cosl(angle) * mscale, s = sinl(angle) * mscale;
                worst = fmax(worst, (double)fabsl(table[i] - c) / ulp_float((double)c));
                worst =
                    fmax(worst, (double)fabsl(table[64 + i] - s) / (s == 0 ? 1e-30 : ulp_float((double)s)));
            }
        }
    print_message("kern_rope_table: worst error %.6f ulp of float\n", worst);
    assert_true(worst > 0.4 && worst < 0.5001);
    kern_rope_table(0, freq, 1, 1.0, table);
    assert_true(table[0] == 1.0f && table[1] == 0.0f);
    freq[0] = 1e300;
    kern_rope_table(5, freq, 1, 1.0, table);
    assert_true(isnan(table[0]) && isnan(table[1]));
}

static void test_select(void **state)
{
    const kern_table *t = NULL, *first = NULL;
    weir_error err;
    size_t n = 0;
    (void)state;
    for (const char *const *name = kern_available(); *name; name++, n++) {
        assert_int_equal(kern_select(*name, &t, &err), WEIR_OK);
        assert_string_equal(t->name, *name);
        if (n == 0) first = t;
    }
    assert_true(n >= 1);
    assert_string_equal(kern_available()[n - 1], "ref");
    assert_int_equal(kern_select("auto", &t, &err), WEIR_OK);
    assert_ptr_equal(t, first);
    t = NULL;
    assert_int_equal(kern_select("sse9", &t, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(kern_select("", &t, NULL), WEIR_ERR_INVALID_ARGUMENT);
    assert_null(t);
#if defined(__x86_64__)
    assert_int_equal(kern_select("neon", &t, &err), WEIR_ERR_UNSUPPORTED);
#else
    assert_int_equal(kern_select("avx2", &t, &err), WEIR_ERR_UNSUPPORTED);
#endif
    assert_non_null(strstr(err.message, "ref"));
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(kern_act_for(BASE_BF16), KERN_ACT_F32);
    assert_int_equal(kern_act_for(BASE_MXFP4), KERN_ACT_Q32);
    assert_int_equal(kern_act_for(BASE_IQ4_XS), KERN_ACT_Q256);
    assert_int_equal(kern_act_for(BASE_I32), KERN_ACT_NONE);
    assert_int_equal(kern_act_for(12345), KERN_ACT_NONE);
    assert_int_equal(kern_act_row_bytes(KERN_ACT_F32, 5), 64);
    assert_int_equal(kern_act_row_bytes(KERN_ACT_Q32, 64), 128);   /* 64 + 8 + 8 = 80 */
    assert_int_equal(kern_act_row_bytes(KERN_ACT_Q256, 512), 704); /* 512 + 8 + 128 = 648 */
    assert_true(kern_act_row_bytes(KERN_ACT_Q256, SIZE_MAX / 2) <= SIZE_MAX - 63);
    assert_true(kern_act_row_bytes(KERN_ACT_F32, SIZE_MAX) > SIZE_MAX / 2);
    assert_true(kern_scratch_bytes(4096) >= 16 * 4096 + 16 * (4096 / 16) * 8 + 4096);
    assert_true(kern_scratch_bytes(SIZE_MAX) > SIZE_MAX / 2);
    assert_true(kern_attention_scratch_bytes(100, 64) >= 4 * (112 + 32 + 256) * 4);
    assert_true(kern_attention_scratch_bytes(UINT32_MAX, UINT32_MAX) > (size_t)UINT32_MAX * 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expf),         cmocka_unit_test(test_expf_edges),
        cmocka_unit_test(test_tanhf),        cmocka_unit_test(test_f16_all),
        cmocka_unit_test(test_f16_rounding), cmocka_unit_test(test_double_exp_log),
        cmocka_unit_test(test_double_pow),   cmocka_unit_test(test_rope_table),
        cmocka_unit_test(test_select),       cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests_name("scalar arithmetic of kernels", tests, NULL, NULL);
}
