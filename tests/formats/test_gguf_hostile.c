/* GGUF files that lie: each claim that a loader could trip over, with the exact status and a phrase of the
 * message; a valid file cut at every offset and with every byte changed; every allocation and read failing
 * once. */
#include "model_test.h"

#define HUGE UINT64_MAX

typedef struct lie {
    const char *name;
    void (*make)(image *m);
    weir_status status;
    const char *phrase;
} lie;

static void one_entry(image *m, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                      uint64_t offset)
{
    put_head(m, 3, 1, 0);
    put_entry(m, name, n_dims, dims, type, offset);
    put_data(m, 32, 64);
}

static void two_entries(image *m, const char *a, uint64_t a_at, const char *b, uint64_t b_at)
{
    put_head(m, 3, 2, 0);
    put_entry(m, a, 1, (uint64_t[]){16}, BASE_F32, a_at);
    put_entry(m, b, 1, (uint64_t[]){16}, BASE_F32, b_at);
    put_data(m, 32, 256);
}

static void one_value(image *m, uint32_t type, uint64_t v, size_t bytes)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", type);
    put_le(m, v, bytes);
    put_data(m, 1, 64);
}

static void one_array(image *m, uint32_t type, uint64_t count)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", FMT_ARRAY);
    put_u32(m, type);
    put_u64(m, count);
    put_data(m, 1, 64);
}

static void alignment(image *m, uint32_t type, uint64_t v, size_t bytes)
{
    put_head(m, 3, 1, 1);
    put_key(m, "general.alignment", type);
    put_le(m, v, bytes);
    put_entry(m, "a", 1, (uint64_t[]){8}, BASE_F32, 0);
    put_data(m, 32, 64);
}

/* ---- the head */
static void no_magic(image *m)
{
    put_bytes(m, "GGUFF", 3);
    put_data(m, 1, 64);
}
static void version_1(image *m)
{
    put_head(m, 1, 0, 0);
}
static void version_4(image *m)
{
    put_head(m, 4, 0, 0);
}
static void version_0(image *m)
{
    put_head(m, 0, 0, 0);
}
static void big_endian(image *m)
{
    put_head(m, 0x03000000, 0, 0);
}
static void swapped_magic(image *m)
{
    put_bytes(m, "FUGG", 4);
    put_u32(m, 0x03000000);
    put_data(m, 1, 64);
}
static void old_ggml(image *m)
{
    put_bytes(m, "tjgg", 4);
    put_data(m, 1, 64);
}
static void tensor_count_overflow(image *m)
{
    put_head(m, 3, HUGE / 2, 0);
}
static void value_count_overflow(image *m)
{
    put_head(m, 3, 0, HUGE);
}
static void tensor_count_beyond(image *m)
{
    put_head(m, 3, 1000000, 0);
    put_data(m, 1, 100);
}
static void value_count_beyond(image *m)
{
    put_head(m, 3, 0, 1u << 30);
    put_data(m, 1, 100);
}
static void counts_sum_beyond(image *m)
{
    put_head(m, 3, 2, 4);
    put_data(m, 1, 100);
}

/* ---- metadata */
static void key_length_huge(image *m)
{
    put_head(m, 3, 0, 1);
    put_u64(m, HUGE);
    put_data(m, 1, 64);
}
static void key_length_wraps(image *m)
{
    put_head(m, 3, 0, 1);
    put_u64(m, HUGE - 31); /* position + length is small again */
    put_data(m, 1, 64);
}
static void key_long(image *m)
{
    put_head(m, 3, 0, 1);
    put_u64(m, 70000);
    put_data(m, 1, 70100);
}
static void key_empty(image *m)
{
    put_head(m, 3, 0, 1);
    put_u64(m, 0);
    put_data(m, 1, 64);
}
static void key_control(image *m)
{
    put_head(m, 3, 0, 1);
    put_kv_u32(m, "a\x1b[31m", 1);
}
static void key_nul(image *m)
{
    put_head(m, 3, 0, 1);
    put_u64(m, 3);
    put_bytes(m, "a\0b", 3);
    put_data(m, 1, 64);
}
static void key_twice(image *m)
{
    put_head(m, 3, 0, 2);
    put_kv_u32(m, "general.name", 1);
    put_kv_u32(m, "general.name", 1);
}
static void type_unknown(image *m)
{
    one_value(m, 13, 0, 4);
}
static void string_huge(image *m)
{
    one_value(m, FMT_STRING, HUGE, 8);
}
static void string_beyond(image *m)
{
    one_value(m, FMT_STRING, 65, 8);
}
static void string_nul(image *m)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", FMT_STRING);
    put_u64(m, 3);
    put_bytes(m, "a\0b", 3);
}
static void string_too_long(image *m)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", FMT_STRING);
    put_u64(m, (1u << 20) + 1);
    put_data(m, 1, (1u << 20) + 1);
}
static void bool_2(image *m)
{
    one_value(m, FMT_BOOL, 2, 1);
}
static void array_type_unknown(image *m)
{
    one_array(m, 99, 1);
}
static void array_overflow(image *m)
{
    one_array(m, FMT_F64, HUGE / 4);
}
static void array_overflow_strings(image *m)
{
    one_array(m, FMT_STRING, HUGE / 8 + 2);
}
static void array_beyond(image *m)
{
    one_array(m, FMT_F64, 9);
}
static void array_strings_beyond(image *m)
{
    one_array(m, FMT_STRING, 1u << 30);
}
static void array_bool_2(image *m)
{
    one_array(m, FMT_BOOL, 3); /* bytes 0, 1, 2 follow */
}
static void array_inner_string(image *m)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", FMT_ARRAY), put_u32(m, FMT_STRING), put_u64(m, 2);
    put_text(m, "ok");
    put_u64(m, HUGE);
    put_data(m, 1, 64);
}
static void array_too_deep(image *m)
{
    put_head(m, 3, 0, 1);
    put_key(m, "k", FMT_ARRAY);
    for (int i = 0; i < 1000; i++) put_u32(m, FMT_ARRAY), put_u64(m, 1);
    put_u32(m, FMT_U8), put_u64(m, 0);
}
static void array_nested_beyond(image *m)
{
    one_array(m, FMT_ARRAY, 1u << 20);
}
static void alignment_0(image *m)
{
    alignment(m, FMT_U32, 0, 4);
}
static void alignment_4(image *m)
{
    alignment(m, FMT_U32, 4, 4);
}
static void alignment_48(image *m)
{
    alignment(m, FMT_U32, 48, 4);
}
static void alignment_huge(image *m)
{
    alignment(m, FMT_U32, 1u << 31, 4);
}
static void alignment_text(image *m)
{
    put_head(m, 3, 0, 1);
    put_kv_text(m, "general.alignment", "32");
}
static void alignment_u64(image *m)
{
    alignment(m, FMT_U64, 32, 8);
}

/* ---- tensors */
static void name_long(image *m)
{
    char name[600];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    one_entry(m, name, 1, (uint64_t[]){16}, BASE_F32, 0);
}
static void name_empty(image *m)
{
    one_entry(m, "", 1, (uint64_t[]){16, 1}, BASE_F32, 0);
}
static void name_control(image *m)
{
    one_entry(m, "a\nb", 1, (uint64_t[]){16}, BASE_F32, 0);
}
static void name_twice(image *m)
{
    two_entries(m, "same", 0, "same", 64);
}
static void dims_0(image *m)
{
    one_entry(m, "a", 0, NULL, BASE_F32, 0);
    put_data(m, 1, 64);
}
static void dims_5(image *m)
{
    one_entry(m, "a", 5, (uint64_t[]){1, 1, 1, 1, 1}, BASE_F32, 0);
}
static void dims_many(image *m)
{
    put_head(m, 3, 1, 0);
    put_text(m, "a");
    put_u32(m, UINT32_MAX);
    put_data(m, 1, 64);
}
static void dim_zero(image *m)
{
    one_entry(m, "a", 2, (uint64_t[]){16, 0}, BASE_F32, 0);
}
static void dim_first_zero(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){0}, BASE_F32, 0);
}
static void dims_overflow(image *m)
{
    one_entry(m, "a", 4, (uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32, 2, 1}, BASE_F32, 0);
}
static void dims_overflow_bytes(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){(UINT64_C(1) << 62) + 1}, BASE_F32, 0);
}
static void dims_wrap_to_small(image *m)
{
    one_entry(m, "a", 3, (uint64_t[]){16, UINT64_C(1) << 60, 16}, BASE_F32, 0);
}
static void block_broken(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){33}, BASE_Q8_0, 0);
}
static void type_id_5(image *m)
{
    one_entry(m, "blk.0.w", 1, (uint64_t[]){32}, 5, 0);
}
static void type_id_huge(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){32}, UINT32_MAX, 0);
}
static void offset_unaligned(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){4}, BASE_F32, 8);
}
static void offset_overflow(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){16}, BASE_F32, HUGE - 31);
}
static void extent_beyond(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){17}, BASE_F32, 0);
}
static void offset_beyond(image *m)
{
    one_entry(m, "a", 1, (uint64_t[]){1}, BASE_F32, 64);
}
static void logical_huge(image *m)
{
    one_entry(m, "a", 2, (uint64_t[]){1u << 20, 1u << 20}, BASE_F32, 0);
}
static void overlap(image *m)
{
    two_entries(m, "a", 0, "b", 32);
}
static void overlap_same(image *m)
{
    two_entries(m, "a", 64, "b", 64);
}
static void overlap_unsorted(image *m)
{
    two_entries(m, "b", 96, "a", 64);
}
static void no_data(image *m)
{
    put_head(m, 3, 1, 0);
    put_entry(m, "a", 1, (uint64_t[]){16}, BASE_F32, 0);
}

static const lie LIES[] = {
    {"no magic", no_magic, WEIR_ERR_FORMAT, "at offset 0 neither"},
    {"version 0", version_0, WEIR_ERR_UNSUPPORTED, "GGUF version 0"},
    {"version 1", version_1, WEIR_ERR_UNSUPPORTED, "GGUF version 1 (at offset 4), wanted 2 or 3"},
    {"version 4", version_4, WEIR_ERR_UNSUPPORTED, "GGUF version 4"},
    {"big-endian", big_endian, WEIR_ERR_UNSUPPORTED, "big-endian"},
    {"swapped magic", swapped_magic, WEIR_ERR_UNSUPPORTED, "big-endian"},
    {"before GGUF", old_ggml, WEIR_ERR_UNSUPPORTED, "old format before GGUF"},
    {"tensor count overflows", tensor_count_overflow, WEIR_ERR_FORMAT, "the sizes overflow"},
    {"value count overflows", value_count_overflow, WEIR_ERR_FORMAT, "the sizes overflow"},
    {"tensor count beyond", tensor_count_beyond, WEIR_ERR_TRUNCATED,
     "need at least 33000000 bytes, but 100 follow"},
    {"value count beyond", value_count_beyond, WEIR_ERR_TRUNCATED, "but 100 follow"},
    {"counts beyond", counts_sum_beyond, WEIR_ERR_TRUNCATED, "need at least 122 bytes, but 100 follow"},
    {"key length huge", key_length_huge, WEIR_ERR_TRUNCATED,
     "a metadata key at offset 32 needs 18446744073709551615"},
    {"key length wraps", key_length_wraps, WEIR_ERR_TRUNCATED, "a metadata key at offset 32"},
    {"key long", key_long, WEIR_ERR_UNSUPPORTED, "has 70000 bytes, at most 65535"},
    {"key empty", key_empty, WEIR_ERR_FORMAT, "a metadata key at offset 24 is empty"},
    {"key with control", key_control, WEIR_ERR_FORMAT, "a metadata key at offset 24 has control characters"},
    {"key with NUL", key_nul, WEIR_ERR_FORMAT, "control characters"},
    {"key twice", key_twice, WEIR_ERR_FORMAT, "metadata key: \"general.name\" appears twice"},
    {"type unknown", type_unknown, WEIR_ERR_UNSUPPORTED, "\"k\": unknown type 13 at offset 33"},
    {"string huge", string_huge, WEIR_ERR_TRUNCATED, "metadata key \"k\""},
    {"string beyond", string_beyond, WEIR_ERR_TRUNCATED, "a metadata string at offset 45 needs 65 bytes"},
    {"string with NUL", string_nul, WEIR_ERR_FORMAT, "NUL byte in the string at offset 37"},
    {"string too long", string_too_long, WEIR_ERR_UNSUPPORTED, "has 1048577 bytes, at most 1048576"},
    {"bool of 2", bool_2, WEIR_ERR_FORMAT, "byte 2 at offset 37 is no bool"},
    {"array type unknown", array_type_unknown, WEIR_ERR_UNSUPPORTED, "unknown element type 99 at offset 37"},
    {"array overflows", array_overflow, WEIR_ERR_FORMAT, "its size overflows"},
    {"string array overflows", array_overflow_strings, WEIR_ERR_FORMAT, "its size overflows"},
    {"array beyond", array_beyond, WEIR_ERR_TRUNCATED, "an array at offset 49 needs 72 bytes"},
    {"string array beyond", array_strings_beyond, WEIR_ERR_TRUNCATED, "an array at offset 49"},
    {"bool array with 2", array_bool_2, WEIR_ERR_FORMAT, "byte 2 at offset 51 is no bool"},
    {"string in array huge", array_inner_string, WEIR_ERR_TRUNCATED, "a string in an array at offset 67"},
    {"arrays too deep", array_too_deep, WEIR_ERR_UNSUPPORTED, "nested more than 4 deep"},
    {"nested array beyond", array_nested_beyond, WEIR_ERR_TRUNCATED, "an array at offset 49"},
    {"alignment 0", alignment_0, WEIR_ERR_FORMAT, "general.alignment is 0, wanted a power of two"},
    {"alignment 4", alignment_4, WEIR_ERR_FORMAT, "general.alignment is 4"},
    {"alignment 48", alignment_48, WEIR_ERR_FORMAT, "general.alignment is 48"},
    {"alignment huge", alignment_huge, WEIR_ERR_FORMAT, "general.alignment is 2147483648"},
    {"alignment a string", alignment_text, WEIR_ERR_FORMAT, "of type string, wanted u32"},
    {"alignment u64", alignment_u64, WEIR_ERR_FORMAT, "of type u64, wanted u32"},
    {"name long", name_long, WEIR_ERR_UNSUPPORTED, "a tensor's name at offset 24 has 599 bytes, at most 512"},
    {"name empty", name_empty, WEIR_ERR_FORMAT, "a tensor's name at offset 24 is empty"},
    {"name with control", name_control, WEIR_ERR_FORMAT,
     "a tensor's name at offset 24 has control characters"},
    {"name twice", name_twice, WEIR_ERR_FORMAT, "tensor: \"same\" appears twice"},
    {"no dimension", dims_0, WEIR_ERR_FORMAT, "has 0 dimensions, wanted 1 to 4"},
    {"five dimensions", dims_5, WEIR_ERR_FORMAT, "has 5 dimensions"},
    {"dimensions 2^32 - 1", dims_many, WEIR_ERR_FORMAT, "has 4294967295 dimensions"},
    {"dimension zero", dim_zero, WEIR_ERR_FORMAT, "dimension 1 is zero"},
    {"first dimension zero", dim_first_zero, WEIR_ERR_FORMAT, "dimension 0 is zero"},
    {"product overflows", dims_overflow, WEIR_ERR_FORMAT, "the product of its dimensions overflows"},
    {"bytes overflow", dims_overflow_bytes, WEIR_ERR_FORMAT, "the product of its dimensions overflows"},
    {"product wraps", dims_wrap_to_small, WEIR_ERR_FORMAT, "the product of its dimensions overflows"},
    {"half a block", block_broken, WEIR_ERR_FORMAT, "rows of 33 elements, but Q8_0 comes in blocks of 32"},
    {"type id 5", type_id_5, WEIR_ERR_UNSUPPORTED, "tensor \"blk.0.w\" (entry at offset 24) has type id 5"},
    {"type id huge", type_id_huge, WEIR_ERR_UNSUPPORTED, "type id 4294967295"},
    {"offset unaligned", offset_unaligned, WEIR_ERR_FORMAT,
     "data offset 8 is no multiple of the alignment 32"},
    {"offset overflows", offset_overflow, WEIR_ERR_FORMAT, "overflows"},
    {"extent beyond", extent_beyond, WEIR_ERR_TRUNCATED, "needs bytes 64 to 132, but the file has 128 bytes"},
    {"offset beyond", offset_beyond, WEIR_ERR_TRUNCATED,
     "needs bytes 128 to 132, but the file has 128 bytes"},
    {"huge over a small file", logical_huge, WEIR_ERR_TRUNCATED, "needs bytes 96 to 4398046511200"},
    {"overlap", overlap, WEIR_ERR_FORMAT, "overlaps \"a\""},
    {"same bytes", overlap_same, WEIR_ERR_FORMAT, "overlaps"},
    {"overlap, unsorted", overlap_unsorted, WEIR_ERR_FORMAT, "tensor \"b\" at offset 192 overlaps \"a\""},
    {"no data", no_data, WEIR_ERR_TRUNCATED, "needs bytes 64 to 128"},
};

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LIES / sizeof *LIES; i++) {
        image m = {0};
        LIES[i].make(&m);
        print_message("# %s\n", LIES[i].name);
        open_fails(write_image("lie.gguf", &m), LIES[i].status, LIES[i].phrase);
    }
}

static void test_no_file(void **state)
{
    (void)state;
    open_fails(path_of("absent.gguf"), WEIR_ERR_NOT_FOUND, "absent.gguf");
    open_fails(test_folder, WEIR_ERR_FORMAT, "a directory");
    open_fails(write_file("empty.gguf", "", 0), WEIR_ERR_FORMAT, "empty");
    open_fails("/dev/zero", WEIR_ERR_FORMAT, "/dev/zero");
    open_fails(write_text("text.txt", "This is no model at all.\n"), WEIR_ERR_FORMAT, "not a model");
}

/* Opens what may be anything; whatever comes out must hold what it promises, cost little and leave nothing.
 */
static weir_status try_open(const char *path)
{
    weir_error err = {0};
    base_env *env = new_env();
    fmt_model *m = NULL;
    weir_status s = fmt_model_open(env, path, &m, &err);
    if (s == WEIR_OK)
        walk_model(env, m);
    else
        assert_true(s == err.code && strlen(err.message) > 10 && m == NULL);
    fmt_model_close(m);
    assert_true(end_env(env) < 1u << 20);
    return s;
}

static void test_truncated_anywhere(void **state)
{
    (void)state;
    image m = {0};
    put_small_model(&m, 3);
    for (size_t n = 0; n < m.n; n++) {
        weir_status s = try_open(write_file("cut.gguf", m.p, n));
        weir_status want = n == 0 ? WEIR_ERR_FORMAT : WEIR_ERR_TRUNCATED;
        if (s != want)
            fail_msg("cut at %zu: wanted %s, got %s", n, weir_status_name(want), weir_status_name(s));
    }
    assert_int_equal(try_open(write_file("cut.gguf", m.p, m.n)), WEIR_OK);
    image_free(&m);
}

static void test_any_byte_changed(void **state)
{
    (void)state;
    static const unsigned char flips[] = {0xff, 0x01, 0x80};
    image m = {0};
    unsigned refused = 0, tries = 0;
    put_small_model(&m, 3);
    for (size_t at = 0; at < m.n - 204; at++) {
        for (size_t k = 0; k < sizeof flips; k++) {
            m.p[at] ^= flips[k];
            weir_status s = try_open(write_file("flip.gguf", m.p, m.n));
            m.p[at] ^= flips[k];
            assert_true(s == WEIR_OK || s == WEIR_ERR_TRUNCATED || s == WEIR_ERR_FORMAT ||
                        s == WEIR_ERR_UNSUPPORTED);
            refused += s != WEIR_OK;
            tries++;
        }
    }
    /* Changes inside values and names cannot be seen; lengths, types, counts and offsets must be. */
    assert_true(refused > tries / 4);
    image_free(&m);
}

/* Fails each passage of a site once, then for good, until one run passes without reaching it. */
static void fail_everywhere(const char *path, base_fault_site site, weir_status status)
{
    unsigned failures = 0;
    for (uint64_t after = 0;; after++) {
        weir_error err = {0};
        base_env *env = new_env();
        fmt_model *m = NULL;
        base_fault_rule rule = {.site = site, .after = after, .for_good = true, .length = -1};
        assert_int_equal(base_fault_arm(env, &rule, &err), WEIR_OK);
        weir_status s = fmt_model_open(env, path, &m, &err);
        if (s != WEIR_OK && (s != status || err.code != status || m != NULL))
            fail_msg("%s, passage %" PRIu64 ": %s: %s", base_fault_text(site), after, weir_status_name(s),
                     err.message);
        base_fault_clear(env);
        fmt_model_close(m);
        /* The same environment works again. */
        if (s != WEIR_OK) {
            m = open_ok(env, path);
            fmt_model_close(m);
            failures++;
        }
        end_env(env);
        if (s == WEIR_OK) break;
    }
    assert_true(failures > 0);
}

static void test_faults(void **state)
{
    (void)state;
    image m = {0};
    put_small_model(&m, 3);
    const char *path = write_image("fault.gguf", &m);
    fail_everywhere(path, BASE_FAULT_HOST_ALLOC, WEIR_ERR_OUT_OF_MEMORY);
    fail_everywhere(path, BASE_FAULT_READ, WEIR_ERR_IO);
    fail_everywhere(path, BASE_FAULT_OPEN, WEIR_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test(test_any_byte_changed),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
