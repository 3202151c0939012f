/* Split GGUF models: opened by any part, and every way in which parts can fail to belong together. */
#include "model_test.h"

typedef struct part_keys {
    int64_t no, count, tensors; /* -1: absent */
} part_keys;

/* Part `no` of a model: two tensors named by the part; the first part has the metadata. */
static void write_part(const char *name, const char *tensor, part_keys k, uint32_t align)
{
    image m = {0};
    char text[64];
    put_head(&m, 3, 2, (k.no >= 0) + (k.count >= 0) + (k.tensors >= 0) + 1 + (align != 0));
    put_kv_text(&m, k.no == 0 ? "general.architecture" : "general.part", "llama");
    if (k.no >= 0) put_key(&m, "split.no", FMT_U16), put_le(&m, (uint64_t)k.no, 2);
    if (k.count >= 0) put_key(&m, "split.count", FMT_U16), put_le(&m, (uint64_t)k.count, 2);
    if (k.tensors >= 0) put_key(&m, "split.tensors.count", FMT_I32), put_le(&m, (uint64_t)k.tensors, 4);
    if (align != 0) put_kv_u32(&m, "general.alignment", align);
    if (align == 0) align = 32;
    snprintf(text, sizeof text, "%s.a", tensor);
    put_entry(&m, text, 1, (uint64_t[]){8}, BASE_F32, 0);
    snprintf(text, sizeof text, "%s.b", tensor);
    put_entry(&m, text, 1, (uint64_t[]){3}, BASE_F32, align);
    put_data(&m, align, align + 12);
    write_image(name, &m);
}

static void write_three(void)
{
    write_part("m-00001-of-00003.gguf", "one", (part_keys){0, 3, 6}, 0);
    write_part("m-00002-of-00003.gguf", "two", (part_keys){1, 3, 6}, 64);
    write_part("m-00003-of-00003.gguf", "three", (part_keys){2, 3, 6}, 0);
}

static void test_any_part(void **state)
{
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf"};
    write_three();
    for (int i = 0; i < 3; i++) {
        base_env *env = new_env();
        fmt_model *m = open_ok(env, path_of(names[i]));
        assert_int_equal(fmt_model_n_files(m), 3);
        assert_int_equal(fmt_model_n_tensors(m), 6);
        /* Metadata is the first part's alone. */
        assert_int_equal(fmt_model_n_values(m), 4);
        assert_string_equal(fmt_get_str(m, "general.architecture"), "llama");
        assert_null(fmt_model_find_value(m, "general.part"));
        const fmt_tensor *t = fmt_model_find_tensor(m, "two.b");
        assert_int_equal(t->file, 1);
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(t->offset + 12, base_file_size(fmt_model_file(m, 1)));
        assert_string_equal(base_file_path(fmt_model_file(m, 1)), path_of(names[1]));
        assert_int_equal(fmt_model_find_tensor(m, "three.a")->file, 2);
        walk_model(env, m);
        fmt_model_close(m);
        end_env(env);
    }
}

static void test_not_belonging(void **state)
{
    (void)state;
    const char *first = "m-00001-of-00003.gguf";
    write_three();
    unlink(path_of("m-00003-of-00003.gguf"));
    open_fails(path_of(first), WEIR_ERR_NOT_FOUND, "part 3 of 3 of a split model");
    write_three();
    unlink(path_of(first));
    open_fails(path_of("m-00002-of-00003.gguf"), WEIR_ERR_NOT_FOUND, "part 1 of 3");
    write_three();
    write_part("m-00002-of-00003.gguf", "two", (part_keys){2, 3, 6}, 0);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "split.no says that this is part 2");
    write_part("m-00002-of-00003.gguf", "two", (part_keys){-1, 3, 6}, 0);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "split.no");
    write_part("m-00002-of-00003.gguf", "two", (part_keys){1, 4, 6}, 0);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "split.count is 4, wanted 3");
    write_part("m-00002-of-00003.gguf", "one", (part_keys){1, 3, 6}, 0);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "\"one.a\" appears twice");
    write_part("m-00002-of-00003.gguf", "two", (part_keys){1, 3, 6}, 48);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "general.alignment is 48");
    write_three();
    write_part(first, "one", (part_keys){0, 3, 7}, 0);
    open_fails(path_of(first), WEIR_ERR_FORMAT, "split.tensors.count is 7, but the 3 parts hold 6");
    write_part(first, "one", (part_keys){0, 3, -5}, 0);
    base_env *env = new_env(); /* without the key the sum is not checked */
    fmt_model_close(open_ok(env, path_of(first)));
    end_env(env);
    write_part(first, "one", (part_keys){0, -1, -1}, 0);
    open_fails(path_of("m-00002-of-00003.gguf"), WEIR_ERR_FORMAT, "has no split.count");
    write_part("renamed.gguf", "one", (part_keys){0, 3, 6}, 0);
    open_fails(path_of("renamed.gguf"), WEIR_ERR_FORMAT, "give it back its name");
    write_part("m-00001-of-00002.gguf", "one", (part_keys){0, 3, 6}, 0);
    open_fails(path_of("m-00001-of-00002.gguf"), WEIR_ERR_FORMAT, "give it back its name");
    write_part("many.gguf", "one", (part_keys){0, 60000, 6}, 0);
    open_fails(path_of("many.gguf"), WEIR_ERR_UNSUPPORTED, "split.count is 60000, at most 512");
}

/* A file of one part needs no special name, and a name that looks split is no harm when the file is whole. */
static void test_single(void **state)
{
    (void)state;
    write_part("single.gguf", "one", (part_keys){0, 1, 2}, 0);
    write_part("odd-00001-of-00009.gguf", "one", (part_keys){-1, -1, -1}, 0);
    base_env *env = new_env();
    fmt_model *m = open_ok(env, path_of("single.gguf"));
    assert_int_equal(fmt_model_n_tensors(m), 2);
    fmt_model_close(m);
    m = open_ok(env, path_of("odd-00001-of-00009.gguf"));
    assert_int_equal(fmt_model_n_files(m), 1);
    fmt_model_close(m);
    end_env(env);
}

static void test_truncated_part(void **state)
{
    (void)state;
    write_three();
    assert_int_equal(truncate(path_of("m-00003-of-00003.gguf"), 40), 0);
    open_fails(path_of("m-00001-of-00003.gguf"), WEIR_ERR_TRUNCATED, "m-00003-of-00003.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_part),
        cmocka_unit_test(test_not_belonging),
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_truncated_part),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
