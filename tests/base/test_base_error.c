/* Status names, filled errors, sizes as text. */
#include "base_test.h"

static void names_and_texts_exist(void **state)
{
    (void)state;
    assert_string_equal(weir_status_name(WEIR_OK), "OK");
    assert_string_equal(weir_status_name(WEIR_ERR_OUT_OF_MEMORY), "OUT_OF_MEMORY");
    assert_string_equal(weir_status_name(WEIR_ERR_INTERNAL), "INTERNAL");
    assert_string_equal(weir_status_text(WEIR_ERR_BUDGET), "the memory budget does not suffice");
    for (int i = 0; i < WEIR_STATUS_COUNT; i++) {
        assert_true(strlen(weir_status_name((weir_status)i)) > 1);
        assert_true(strlen(weir_status_text((weir_status)i)) > 5);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(weir_status_name((weir_status)i), weir_status_name((weir_status)j));
    }
    assert_string_equal(weir_status_name((weir_status)999), "UNKNOWN");
    assert_non_null(weir_status_text((weir_status)-1));
}

static void fail_fills_code_and_message(void **state)
{
    (void)state;
    weir_error err = {0};
    assert_int_equal(base_fail(&err, WEIR_ERR_IO, "%s at %d", "model.gguf", 42), WEIR_ERR_IO);
    assert_int_equal(err.code, WEIR_ERR_IO);
    assert_string_equal(err.message, "model.gguf at 42");
    assert_int_equal(base_fail(NULL, WEIR_ERR_FORMAT, "nobody listens"), WEIR_ERR_FORMAT);
    assert_int_equal(base_fail_context(NULL, WEIR_ERR_FORMAT, "nobody listens"), WEIR_ERR_FORMAT);
}

static void fail_may_use_its_own_message(void **state)
{
    (void)state;
    weir_error err = {0};
    base_fail(&err, WEIR_ERR_IO, "inner");
    base_fail(&err, WEIR_ERR_DEVICE, "outer (%s)", err.message);
    assert_string_equal(err.message, "outer (inner)");
    assert_int_equal(err.code, WEIR_ERR_DEVICE);
}

static void context_goes_before_and_keeps_the_code(void **state)
{
    (void)state;
    weir_error err = {0};
    base_fail(&err, WEIR_ERR_TRUNCATED, "too short");
    assert_int_equal(base_fail_context(&err, WEIR_ERR_INTERNAL, "tensor %d", 3), WEIR_ERR_TRUNCATED);
    assert_int_equal(err.code, WEIR_ERR_TRUNCATED);
    assert_string_equal(err.message, "tensor 3: too short");

    weir_error empty = {0};
    assert_int_equal(base_fail_context(&empty, WEIR_ERR_IO, "head"), WEIR_ERR_IO);
    assert_int_equal(empty.code, WEIR_ERR_IO);
    assert_string_equal(empty.message, "head: reading or writing failed");
}

static void long_messages_are_cut_visibly(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    weir_error err = {0};
    base_fail(&err, WEIR_ERR_IO, "%s", text);
    assert_int_equal(strlen(err.message), WEIR_ERROR_MESSAGE_BYTES - 1);
    assert_string_equal(err.message + WEIR_ERROR_MESSAGE_BYTES - 4, "...");
    base_fail_context(&err, WEIR_ERR_IO, "file");
    assert_int_equal(strlen(err.message), WEIR_ERROR_MESSAGE_BYTES - 1);
    assert_memory_equal(err.message, "file: xxx", 9);
    assert_string_equal(err.message + WEIR_ERROR_MESSAGE_BYTES - 4, "...");
}

static void checked_arithmetic(void **state)
{
    (void)state;
    uint64_t v = 1;
    assert_true(base_mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &v));
    assert_true(v == UINT64_MAX - UINT32_MAX);
    assert_false(base_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    assert_true(base_add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    assert_false(base_add(UINT64_MAX, 1, &v));
    assert_int_equal(base_align_up(0, 4096), 0);
    assert_int_equal(base_align_up(4097, 4096), 8192);
    assert_int_equal(base_align_down(8191, 4096), 4096);
}

static void size_texts(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {1, "1 byte"},
        {12, "12 bytes"},
        {1023, "1023 bytes"},
        {1024, "1 KiB"},
        {700 << 10, "700 KiB"},
        {1536, "1.5 KiB"},
        {(1 << 20) - 1, "1 MiB"},
        {UINT64_C(3) << 29, "1.5 GiB"},
        {UINT64_C(5) << 40, "5 TiB"},
        {UINT64_MAX, "16 EiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buf[32];
        assert_ptr_equal(base_size_text(cases[i].bytes, buf), buf);
        assert_string_equal(buf, cases[i].text);
    }
}

static void sizes_with_units_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"123B", 123},
        {"0B", 0},
        {"512KiB", 512 << 10},
        {"64MiB", 64 << 20},
        {"1.5GiB", UINT64_C(3) << 29},
        {"2GB", UINT64_C(2000000000)},
        {"2GiB", UINT64_C(2147483648)},
        {"1000 MB", UINT64_C(1000000000)},
        {"1KB", 1000},
        {"0.5 TB", UINT64_C(500000000000)},
        {"1TiB", UINT64_C(1) << 40},
        {"0.25KiB", 256},
        {"0.3KB", 300},
        {"1.9999999999999999999999GiB", (UINT64_C(1) << 31) - 1},
        {"800mb", 800000000},
        {"18446744073709551615B", UINT64_MAX},
        {"16777215.5TiB", (UINT64_C(16777215) << 40) + (UINT64_C(1) << 39)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_error err = {0};
        uint64_t bytes = 77;
        assert_int_equal(base_size_parse(cases[i].text, &bytes, &err), WEIR_OK);
        if (bytes != cases[i].bytes) print_error("%s\n", cases[i].text);
        assert_true(bytes == cases[i].bytes);
    }
}

static void other_sizes_are_refused_with_the_units(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        "1000",
        "12 ",
        "-1GiB",
        "+1GiB",
        "GiB",
        ".5GiB",
        "5.GiB",
        "1.5B",
        "1 G",
        "1GiBs",
        "1Gib b",
        "1,5GiB",
        "0x10MB",
        " 1GiB",
        "1e3MB",
        "1..5MB",
        "1PB",
        "nan",
        "inf GiB",
        "1GiB ",
        "1\tGiB",
        "16777216TiB",
        "18446744073709551616B",
        "99999999999999999999999999999GB",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_error err = {0};
        uint64_t bytes = 77;
        if (base_size_parse(cases[i], &bytes, &err) == WEIR_OK) print_error("accepted: \"%s\"\n", cases[i]);
        assert_int_equal(err.code, WEIR_ERR_INVALID_ARGUMENT);
        assert_int_equal(bytes, 77);
        assert_non_null(strstr(err.message, "KB, MB, GB, TB"));
        assert_non_null(strstr(err.message, "KiB, MiB, GiB, TiB"));
        assert_non_null(strstr(err.message, cases[i]));
    }
    assert_int_equal(base_size_parse(NULL, &(uint64_t){0}, NULL), WEIR_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_texts_exist),
        cmocka_unit_test(fail_fills_code_and_message),
        cmocka_unit_test(fail_may_use_its_own_message),
        cmocka_unit_test(context_goes_before_and_keeps_the_code),
        cmocka_unit_test(long_messages_are_cut_visibly),
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(size_texts),
        cmocka_unit_test(sizes_with_units_are_read),
        cmocka_unit_test(other_sizes_are_refused_with_the_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
