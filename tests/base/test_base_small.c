/* The small parts: byte strings, types, random numbers, hash, log and clock. */
#include "base_test.h"

static void buffers_grow_and_stay_terminated(void **state)
{
    fixture *fix = *state;
    base_buf b;
    base_buf_init(&b, fix->env, BASE_TAG_RUNTIME);
    assert_null(b.data);
    assert_status(base_buf_append(&b, "", 0, &fix->err), WEIR_OK);
    assert_string_equal(b.data, "");
    unsigned char *data = pattern(50000);
    base_rng rng;
    base_rng_seed(&rng, 4, 4);
    for (size_t at = 0; at < 50000;) {
        size_t n = base_rng_u32(&rng) % 700;
        if (n > 50000 - at) n = 50000 - at;
        assert_status(base_buf_append(&b, data + at, n, &fix->err), WEIR_OK);
        at += n;
        assert_int_equal(b.len, at);
        assert_int_equal(b.data[at], 0);
    }
    assert_memory_equal(b.data, data, 50000);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_RUNTIME], b.cap + 16);
    base_buf_finish(&b);
    base_buf_finish(&b);
    base_buf zeroed = {0};
    base_buf_finish(&zeroed);
    free(data);
}

/* Appending what was reserved needs nothing more. */
static void buffers_reserve(void **state)
{
    fixture *fix = *state;
    base_buf b;
    base_buf_init(&b, fix->env, BASE_TAG_RUNTIME);
    assert_status(base_buf_reserve(&b, 1000, &fix->err), WEIR_OK);
    base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, 0, true);
    assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
    for (int i = 0; i < 1000; i++) assert_status(base_buf_append(&b, "x", 1, &fix->err), WEIR_OK);
    assert_int_equal(strlen(b.data), 1000);
    assert_int_equal(b.cap, 1001);
    assert_int_equal(base_buf_append(&b, "x", 1, &fix->err), WEIR_ERR_OUT_OF_MEMORY);
    assert_int_equal(base_buf_reserve(&b, SIZE_MAX, &fix->err), WEIR_ERR_OUT_OF_MEMORY);
    base_fault_clear(fix->env);
    base_buf_finish(&b);
}

static void buffers_print(void **state)
{
    fixture *fix = *state;
    base_buf b;
    base_buf_init(&b, fix->env, BASE_TAG_RUNTIME);
    assert_status(base_buf_printf(&b, &fix->err, "%d-%s", 7, "x"), WEIR_OK);
    assert_status(base_buf_printf(&b, &fix->err, "%0200d", 1), WEIR_OK);
    assert_int_equal(b.len, 203);
    assert_memory_equal(b.data, "7-x000", 6);
    assert_int_equal(b.data[202], '1');
    assert_int_equal(b.data[203], 0);
    base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, 0, true);
    assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
    assert_int_equal(base_buf_printf(&b, &fix->err, "%0900d", 1), WEIR_ERR_OUT_OF_MEMORY);
    assert_int_equal(base_buf_append(&b, b.data, 200, &fix->err), WEIR_ERR_OUT_OF_MEMORY);
    assert_int_equal(base_buf_append(&b, "", SIZE_MAX, &fix->err), WEIR_ERR_OUT_OF_MEMORY);
    assert_int_equal(b.len, 203); /* as it was */
    assert_int_equal(b.data[202], '1');
    base_fault_clear(fix->env);
    base_buf_finish(&b);
}

static void types_have_their_blocks(void **state)
{
    (void)state;
    assert_string_equal(base_dtype_get(BASE_Q4_K)->name, "Q4_K");
    assert_int_equal(base_dtype_get(12)->block_elements, 256);
    assert_int_equal(base_dtype_get(12)->block_bytes, 144);
    assert_int_equal(base_dtype_get(BASE_BF16)->block_bytes, 2);
    static const uint32_t unknown[] = {4, 5, 9, 15, 25, 38, 40, 41, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_non_null(base_dtype_get(unknown[i]));
        assert_null(base_dtype_get(unknown[i])->name);
    }
    assert_int_equal(base_dtype_find("q6_k"), BASE_Q6_K);
    assert_int_equal(base_dtype_find("F32"), 0);
    assert_int_equal(base_dtype_find("Q6"), -1);
    assert_int_equal(base_dtype_find(""), -1);

    uint64_t bytes = 9;
    assert_true(base_dtype_row_bytes(BASE_Q8_0, 64, &bytes));
    assert_int_equal(bytes, 68);
    assert_true(base_dtype_row_bytes(BASE_F32, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(base_dtype_row_bytes(BASE_Q8_0, 63, &bytes));
    assert_false(base_dtype_row_bytes(4, 64, &bytes));
    assert_false(base_dtype_row_bytes(BASE_F32, UINT64_C(1) << 62, &bytes));
    assert_true(base_dtype_row_bytes(BASE_Q4_0, UINT64_C(1) << 62, &bytes));
    assert_true(bytes == (UINT64_C(1) << 57) * 18);
}

/* The first values that the reference program (pcg32-demo, seed 42, stream 54) prints. */
static void random_numbers_are_pcg32(void **state)
{
    (void)state;
    static const uint32_t known[] = {0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b, 0xcbed606e};
    base_rng r;
    base_rng_seed(&r, 42, 54);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_int_equal(base_rng_u32(&r), known[i]);
    base_rng_seed(&r, 42, 54);
    assert_true(base_rng_f32(&r) == (float)(0xa15c02b7 >> 8) / 16777216.0f);
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        float f = base_rng_f32(&r);
        assert_true(f >= 0.0f && f < 1.0f);
        sum += f;
    }
    assert_true(sum > 49500 && sum < 50500);
}

/* Published test values of FNV-1a, 64 bit. */
static void hash_is_fnv_1a(void **state)
{
    (void)state;
    assert_true(base_hash(BASE_HASH_SEED, "", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(base_hash(BASE_HASH_SEED, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(base_hash(BASE_HASH_SEED, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    assert_true(base_hash(base_hash(BASE_HASH_SEED, "foo", 3), "bar", 3) == UINT64_C(0x85944171f73967e8));
}

static void keep(void *arg, base_log_level level, const char *line)
{
    snprintf(arg, 64, "%d %s", (int)level, line);
}

static double stopped_clock(void *arg)
{
    return *(double *)arg;
}

static void log_and_clock_can_be_replaced(void **state)
{
    fixture *fix = *state;
    char kept[64] = "nothing";
    base_log(fix->env, BASE_LOG_ERROR, "silent");
    fix->env->log_fn = keep;
    fix->env->log_arg = kept;
    base_log(fix->env, BASE_LOG_WARN, "%s %d", "line", 5);
    assert_string_equal(kept, "2 line 5");
    double a = base_now(fix->env), b = base_now(fix->env);
    assert_true(b >= a && b < a + 60);
    double time = 123.5;
    fix->env->clock_fn = stopped_clock;
    fix->env->clock_arg = &time;
    assert_true(base_now(fix->env) == 123.5);
    base_env_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(buffers_grow_and_stay_terminated),    TEST(buffers_reserve),
        TEST(buffers_grow_and_stay_terminated),    TEST(buffers_print),
        cmocka_unit_test(types_have_their_blocks), cmocka_unit_test(random_numbers_are_pcg32),
        cmocka_unit_test(hash_is_fnv_1a),          TEST(log_and_clock_can_be_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
