/* Packed weights: the layout itself, there and back for every type, one row, and digests that pin the bytes
 * (whoever changes them raises KERN_PACK_VERSION). That products do not depend on the layout is part of
 * test_variants.c. */
#include "kern_test.h"

#define ROWS KERN_PACK_ROWS

static uint64_t hash_bytes(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static void test_which_types(void **state)
{
    (void)state;
    size_t n = 0;
    for (size_t d = 0; d < COUNT(test_dtypes); d++) n += kern_can_pack(test_dtypes[d]);
    assert_int_equal(n, 13);
    assert_true(!kern_can_pack(BASE_F32));
    assert_true(!kern_can_pack(BASE_F16));
    assert_true(!kern_can_pack(BASE_BF16));
    assert_true(!kern_can_pack(0xffffu));
    assert_int_equal(ROWS, 16);
    assert_int_equal(KERN_PACK_VERSION, 1);
}

/* Elements of known places: an element at byte o, z bytes long, of row r stands at 16 o + z r. */
static void test_places(void **state)
{
    static const struct {
        uint32_t dtype;
        size_t at, size;
    } elements[] = {{BASE_Q8_0, 0, 2},   {BASE_Q8_0, 2, 4},   {BASE_Q8_0, 30, 4},  {BASE_Q4_0, 0, 2},
                    {BASE_Q4_0, 14, 4},  {BASE_Q4_1, 2, 2},   {BASE_Q4_1, 16, 4},  {BASE_Q5_0, 2, 4},
                    {BASE_Q5_1, 4, 4},   {BASE_IQ4_NL, 6, 4}, {BASE_MXFP4, 0, 1},  {BASE_MXFP4, 13, 4},
                    {BASE_Q2_K, 12, 4},  {BASE_Q2_K, 80, 2},  {BASE_Q2_K, 82, 2},  {BASE_Q3_K, 96, 4},
                    {BASE_Q3_K, 108, 2}, {BASE_Q4_K, 0, 2},   {BASE_Q4_K, 2, 2},   {BASE_Q4_K, 140, 4},
                    {BASE_Q5_K, 12, 4},  {BASE_Q5_K, 44, 4},  {BASE_Q6_K, 0, 4},   {BASE_Q6_K, 204, 4},
                    {BASE_Q6_K, 208, 2}, {BASE_IQ4_XS, 2, 2}, {BASE_IQ4_XS, 4, 4}, {BASE_IQ4_XS, 132, 4}};
    test_rng rng = {5};
    (void)state;
    for (size_t i = 0; i < COUNT(elements); i++) {
        const base_dtype_info *info = base_dtype_get(elements[i].dtype);
        size_t bytes = info->block_bytes, row_bytes = 3 * bytes;
        uint8_t rows[16 * 3 * 210], group[16 * 3 * 210];
        fill_weights(&rng, PLAIN, elements[i].dtype, rows, 16 * 3 * info->block_elements);
        kern_pack(elements[i].dtype, rows, row_bytes, group);
        for (size_t block = 0; block < 3; block++)
            for (size_t r = 0; r < 16; r++)
                assert_memory_equal(group + 16 * (block * bytes + elements[i].at) + r * elements[i].size,
                                    rows + r * row_bytes + block * bytes + elements[i].at, elements[i].size);
    }
}

static void test_round_trip(void **state)
{
    static const struct {
        uint32_t dtype;
        uint64_t rows, packed;
    } known[] = {
        {BASE_Q8_0, 0xa741d51b9a215b41u, 0xe95aaabe772a1a79u},
        {BASE_Q4_0, 0x26bc8c9c804e8508u, 0xdbaad98a45a436e0u},
        {BASE_Q4_1, 0x850b2d598a03c121u, 0x176ceb5c7d1a2d21u},
        {BASE_Q5_0, 0xf0feea6fcbb155fau, 0xbed641bdec1bef42u},
        {BASE_Q5_1, 0xa39e73621cc70e1fu, 0x5286a9fa56db9b7fu},
        {BASE_IQ4_NL, 0x26bc8c9c804e8508u, 0xdbaad98a45a436e0u},
        {BASE_MXFP4, 0xb7a72221290111bbu, 0xc7b8432822d156cdu},
        {BASE_Q2_K, 0xd70c146007214b8fu, 0x8cafaf551597ae93u},
        {BASE_Q3_K, 0x633fb5df2fccc6d0u, 0x42acebaaf110d558u},
        {BASE_Q4_K, 0x52abe9f7db6f1d3cu, 0xe27dcc131407d348u},
        {BASE_Q5_K, 0xa6c59939fa62bbc4u, 0xa7de05ff6a34e930u},
        {BASE_Q6_K, 0x7bda513c98db9433u, 0x96c70d762b404183u},
        {BASE_IQ4_XS, 0x3113d7fa507597bcu, 0x52681af37abf96d0u},
    };
    bool wrong = false;
    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        uint32_t dtype = known[i].dtype;
        const base_dtype_info *info = base_dtype_get(dtype);
        for (size_t blocks = 1; blocks <= 7; blocks++) {
            test_rng rng = {blocks};
            size_t row_bytes = blocks * info->block_bytes, bytes = ROWS * row_bytes;
            guarded gr, gp, gb, go;
            uint8_t *rows = guarded_alloc(&gr, bytes, 0), *packed = guarded_alloc(&gp, bytes, 0xee);
            uint8_t *back = guarded_alloc(&gb, bytes, 0xdd), *one = guarded_alloc(&go, row_bytes, 0xcc);
            fill_weights(&rng, SPECIAL, dtype, rows, ROWS * blocks * info->block_elements);
            kern_pack(dtype, rows, row_bytes, packed);
            kern_unpack(dtype, packed, row_bytes, back);
            assert_memory_equal(back, rows, bytes);
            assert_true(memcmp(packed, rows, bytes) != 0);
            for (unsigned r = 0; r < ROWS; r++) {
                memset(one, 0, row_bytes);
                kern_unpack_row(dtype, packed, row_bytes, r, one);
                assert_memory_equal(one, rows + r * row_bytes, row_bytes);
            }
            if (blocks == 7 &&
                (hash_bytes(rows, bytes) != known[i].rows || hash_bytes(packed, bytes) != known[i].packed)) {
                print_error("{BASE_%s, 0x%016llxu, 0x%016llxu},\n", info->name,
                            (unsigned long long)hash_bytes(rows, bytes),
                            (unsigned long long)hash_bytes(packed, bytes));
                wrong = true;
            }
            guarded_free(&gr), guarded_free(&gp), guarded_free(&gb), guarded_free(&go);
        }
    }
    assert_true(!wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_types),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests_name("packed weights", tests, NULL, NULL);
}
