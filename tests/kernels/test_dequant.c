/* Dequantization of every weight type against the `gguf` package, bit for bit, through every kernel set this
 * machine has. tests/oracles/make_dequant_golden.py writes the files; run from the root. */
#include "kern_test.h"

typedef struct golden {
    uint8_t *bytes;
    uint32_t dtype, n_blocks, n_elements;
    const uint8_t *blocks;
    const float *values;
} golden;

static golden load(const char *name)
{
    golden g;
    char path[128];
    snprintf(path, sizeof path, "tests/golden/dequant_%s.bin", name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is missing; run the tests from the root", path);
    g.bytes = malloc(1 << 20);
    size_t n = fread(g.bytes, 1, 1 << 20, file);
    fclose(file);
    assert_true(n > 16);
    assert_memory_equal(g.bytes, "WDQ1", 4);
    memcpy(&g.dtype, g.bytes + 4, 4);
    memcpy(&g.n_blocks, g.bytes + 8, 4);
    memcpy(&g.n_elements, g.bytes + 12, 4);
    size_t block_bytes = (size_t)g.n_blocks * base_dtype_get(g.dtype)->block_bytes;
    assert_int_equal(n, 16 + block_bytes + 4 * (size_t)g.n_elements);
    g.blocks = g.bytes + 16;
    float *values = malloc(4 * (size_t)g.n_elements);
    memcpy(values, g.blocks + block_bytes, 4 * (size_t)g.n_elements);
    g.values = values;
    return g;
}

static void test_type(void **state)
{
    uint32_t dtype = *(const uint32_t *)*state;
    const base_dtype_info *info = base_dtype_get(dtype);
    golden g = load(info->name);
    float *got = malloc(4 * (size_t)g.n_elements);
    size_t numbers = 0, sets = 0;
    assert_int_equal(g.dtype, dtype);
    assert_int_equal(g.n_elements, g.n_blocks * info->block_elements);
    for (const char *const *name = kern_available(); *name; name++, sets++) {
        const kern_table *t;
        assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
        memset(got, 0xa5, 4 * (size_t)g.n_elements);
        t->dequantize(dtype, g.blocks, g.n_elements, got);
        for (size_t i = 0; i < g.n_elements; i++) {
            numbers += g.values[i] == g.values[i] && g.values[i] != 0.0f;
            if (!same_float(g.values[i], got[i]))
                fail_msg("%s %s: element %zu: gguf %a, got %a", *name, info->name, i, (double)g.values[i],
                         (double)got[i]);
        }
    }
    assert_true(sets > 0 &&
                numbers > sets * g.n_elements / 2); /* the file holds values, not only zeros and NaN */
    free(got);
    free((void *)(uintptr_t)g.values);
    free(g.bytes);
}

int main(void)
{
    struct CMUnitTest tests[COUNT(test_dtypes)];
    for (size_t i = 0; i < COUNT(test_dtypes); i++)
        tests[i] = (struct CMUnitTest){base_dtype_get(test_dtypes[i])->name, test_type, NULL, NULL,
                                       (void *)(uintptr_t)&test_dtypes[i]};
    return cmocka_run_group_tests_name("dequantization against gguf", tests, NULL, NULL);
}
