/* Writing models: what is written reads back the same, byte positions are as the formats say, and misuse is
 * refused without leaving a file. */
#include "model_test.h"

static const uint64_t DIMS_A[] = {32, 3}, DIMS_B[] = {5}, DIMS_C[] = {2, 2, 2};

static fmt_writer *create(base_env *env, fmt_writer_kind kind, const char *path)
{
    weir_error err = {0};
    fmt_writer *w = NULL;
    if (fmt_writer_create(env, kind, path, &w, &err) != WEIR_OK) fail_msg("%s", err.message);
    return w;
}

/* Tensors a (96 elements), b (5), c (8); `a_type` as given, the others F32 and F16. */
static void declare(fmt_writer *w, uint32_t a_type)
{
    weir_error err = {0};
    assert_int_equal(fmt_writer_tensor(w, "a.weight", a_type, 2, DIMS_A, &err), WEIR_OK);
    assert_int_equal(fmt_writer_tensor(w, "b.weight", BASE_F32, 1, DIMS_B, &err), WEIR_OK);
    assert_int_equal(fmt_writer_tensor(w, "c.weight", BASE_F16, 3, DIMS_C, &err), WEIR_OK);
}

static void declare_values(fmt_writer *w)
{
    weir_error err = {0};
    static const char *const words[] = {"one", "", "th\0ree"};
    static const uint32_t lens[] = {3, 0, 6};
    static const int32_t ids[] = {-1, 2, 3};
    static const float scores[] = {0.5f, -2};
    assert_int_equal(fmt_writer_str(w, "general.architecture", "llama", &err), WEIR_OK);
    assert_int_equal(fmt_writer_u32(w, "llama.block_count", 7, &err), WEIR_OK);
    assert_int_equal(fmt_writer_f32(w, "llama.rope.freq_base", 10000, &err), WEIR_OK);
    assert_int_equal(fmt_writer_bool(w, "flag", true, &err), WEIR_OK);
    assert_int_equal(fmt_writer_str_array(w, "words", 3, words, lens, &err), WEIR_OK);
    assert_int_equal(fmt_writer_str_array(w, "plain", 2, words, NULL, &err), WEIR_OK);
    assert_int_equal(fmt_writer_array(w, "ids", FMT_I32, 3, ids, &err), WEIR_OK);
    assert_int_equal(fmt_writer_array(w, "scores", FMT_F32, 2, scores, &err), WEIR_OK);
    assert_int_equal(fmt_writer_array(w, "none", FMT_F32, 0, NULL, &err), WEIR_OK);
}

/* n bytes counting up from `from`, in pieces of `piece`. */
static void write_counting(fmt_writer *w, uint64_t n, unsigned from, size_t piece)
{
    weir_error err = {0};
    unsigned char bytes[64];
    for (uint64_t at = 0; at < n;) {
        size_t k = (size_t)base_min(piece, n - at);
        for (size_t i = 0; i < k; i++) bytes[i] = (unsigned char)(from + at + i);
        if (fmt_writer_data(w, bytes, k, &err) != WEIR_OK) fail_msg("%s", err.message);
        at += k;
    }
}

static void has_counting(const fmt_model *m, const char *name, unsigned from)
{
    weir_error err = {0};
    unsigned char bytes[512];
    const fmt_tensor *t = fmt_model_find_tensor(m, name);
    assert_non_null(t);
    assert_true(t->bytes <= sizeof bytes);
    assert_int_equal(base_file_read(fmt_model_file(m, t->file), t->offset, bytes, t->bytes, &err), WEIR_OK);
    for (uint64_t i = 0; i < t->bytes; i++) assert_int_equal(bytes[i], (unsigned char)(from + i));
}

static void check_values(base_env *env, const fmt_model *m)
{
    weir_error err = {0};
    const char *data;
    uint64_t len;
    int64_t id;
    fmt_array *a;
    assert_int_equal(fmt_model_find_value(m, "llama.block_count")->v.u, 7);
    assert_true(fmt_model_find_value(m, "llama.rope.freq_base")->v.f == 10000);
    assert_int_equal(fmt_model_find_value(m, "flag")->v.u, 1);
    assert_int_equal(fmt_array_open(env, m, fmt_model_find_value(m, "words"), &a, &err), WEIR_OK);
    assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
    assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
    assert_int_equal(len, 0);
    assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
    assert_int_equal(len, 6);
    assert_memory_equal(data, "th\0ree", 6);
    fmt_array_close(a);
    assert_int_equal(fmt_array_open(env, m, fmt_model_find_value(m, "ids"), &a, &err), WEIR_OK);
    assert_int_equal(fmt_array_next_i64(a, &id, &err), WEIR_OK);
    assert_int_equal(id, -1);
    fmt_array_close(a);
    assert_int_equal(fmt_model_find_value(m, "plain")->v.array.count, 2);
    assert_int_equal(fmt_model_find_value(m, "none")->v.array.count, 0);
}

static void round_trip_gguf(uint32_t alignment)
{
    weir_error err = {0};
    base_env *env = new_env();
    const char *path = path_of("w.gguf");
    fmt_writer *w = create(env, FMT_WRITE_GGUF, path);
    declare_values(w);
    if (alignment != 0) assert_int_equal(fmt_writer_u32(w, "general.alignment", alignment, &err), WEIR_OK);
    declare(w, BASE_Q8_0);
    write_counting(w, 102 + 20 + 16, 0, 7); /* pieces that cross from tensor to tensor */
    assert_false(base_file_exists(path));
    assert_int_equal(fmt_writer_finish(w, &err), WEIR_OK);
    fmt_writer_destroy(w);
    fmt_model *m = open_ok(env, path);
    assert_string_equal(fmt_model_format(m), "GGUF v3");
    assert_int_equal(fmt_model_n_tensors(m), 3);
    check_values(env, m);
    walk_model(env, m);
    has_counting(m, "a.weight", 0);
    has_counting(m, "b.weight", 102);
    has_counting(m, "c.weight", 122);
    if (alignment == 0) alignment = 32;
    for (int i = 0; i < 3; i++) assert_int_equal(fmt_model_tensor(m, (uint64_t)i)->offset % alignment, 0);
    assert_int_equal(base_file_size(fmt_model_file(m, 0)) % alignment, 0);
    assert_int_equal(fmt_model_find_tensor(m, "c.weight")->dims[2], 2);
    fmt_model_close(m);
    end_env(env);
    unlink(path);
}

static void test_gguf(void **state)
{
    (void)state;
    round_trip_gguf(0);
    round_trip_gguf(8);
    round_trip_gguf(4096);
}

static void test_safetensors(void **state)
{
    (void)state;
    weir_error err = {0};
    base_env *env = new_env();
    const char *path = path_of("w.safetensors");
    fmt_writer *w = create(env, FMT_WRITE_SAFETENSORS, path);
    declare_values(w); /* accepted and left out */
    declare(w, BASE_BF16);
    assert_int_equal(fmt_writer_tensor(w, "q\"\\", BASE_I32, 1, DIMS_B, &err), WEIR_OK);
    write_counting(w, 192 + 20 + 16 + 20, 0, 13);
    assert_int_equal(fmt_writer_finish(w, &err), WEIR_OK);
    fmt_writer_destroy(w);
    fmt_model *m = open_ok(env, path);
    assert_int_equal(fmt_model_n_tensors(m), 4);
    assert_int_equal(fmt_model_n_values(m), 0);
    assert_int_equal(fmt_model_tensor(m, 0)->offset % 8, 0);
    has_counting(m, "a.weight", 0);
    has_counting(m, "b.weight", 192);
    has_counting(m, "c.weight", 212);
    has_counting(m, "q\"\\", 228);
    const fmt_tensor *t = fmt_model_find_tensor(m, "a.weight");
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 3);
    fmt_model_close(m);
    end_env(env);
}

static void test_empty(void **state)
{
    (void)state;
    for (int kind = FMT_WRITE_GGUF; kind <= FMT_WRITE_SAFETENSORS; kind++) {
        weir_error err = {0};
        base_env *env = new_env();
        const char *path = path_of(kind == FMT_WRITE_GGUF ? "empty.gguf" : "empty.safetensors");
        fmt_writer *w = create(env, (fmt_writer_kind)kind, path);
        assert_int_equal(fmt_writer_finish(w, &err), WEIR_OK);
        fmt_writer_destroy(w);
        fmt_model *m = open_ok(env, path);
        assert_int_equal(fmt_model_n_tensors(m), 0);
        fmt_model_close(m);
        end_env(env);
    }
}

static void refused(weir_status s, const weir_error *err, const char *phrase)
{
    if (s != WEIR_ERR_INVALID_ARGUMENT || strstr(err->message, phrase) == NULL)
        fail_msg("wanted \"%s\", got %s: %s", phrase, weir_status_name(s), err->message);
}

static void test_refused(void **state)
{
    (void)state;
    weir_error e = {0};
    base_env *env = new_env();
    fmt_writer *w = create(env, FMT_WRITE_GGUF, path_of("no.gguf"));
    char bytes[200] = {0};
    static const uint64_t zero[] = {32, 0}, odd[] = {33}, huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    assert_int_equal(fmt_writer_u32(w, "k", 1, &e), WEIR_OK);
    refused(fmt_writer_f32(w, "k", 1, &e), &e, "\"k\" appears twice");
    refused(fmt_writer_u32(w, "", 1, &e), &e, "1 to 65535 bytes");
    refused(fmt_writer_u32(w, "a\n", 1, &e), &e, "control characters");
    refused(fmt_writer_u32(w, "general.alignment", 48, &e), &e, "power of two");
    refused(fmt_writer_array(w, "x", FMT_STRING, 1, bytes, &e), &e, "an array of 1 string");
    refused(fmt_writer_array(w, "x", FMT_F64, UINT64_MAX / 4, bytes, &e), &e, "an array of");
    refused(fmt_writer_tensor(w, "", BASE_F32, 1, DIMS_B, &e), &e, "1 to 512 bytes");
    refused(fmt_writer_tensor(w, "t", BASE_F32, 0, DIMS_B, &e), &e, "0 dimensions");
    refused(fmt_writer_tensor(w, "t", BASE_F32, 5, DIMS_B, &e), &e, "5 dimensions");
    refused(fmt_writer_tensor(w, "t", 5, 1, DIMS_B, &e), &e, "type id 5");
    refused(fmt_writer_tensor(w, "t", BASE_F32, 2, zero, &e), &e, "dimension 1 is zero");
    refused(fmt_writer_tensor(w, "t", BASE_Q4_0, 1, odd, &e), &e, "blocks of 32");
    refused(fmt_writer_tensor(w, "t", BASE_F32, 2, huge, &e), &e, "overflows");
    declare(w, BASE_Q8_0);
    refused(fmt_writer_tensor(w, "a.weight", BASE_F32, 1, DIMS_B, &e), &e, "\"a.weight\" appears twice");
    refused(fmt_writer_u32(w, "general.alignment", 64, &e), &e, "before the tensors");
    assert_int_equal(fmt_writer_data(w, bytes, 100, &e), WEIR_OK);
    refused(fmt_writer_u32(w, "late", 1, &e), &e, "\"late\" was declared after the first data");
    refused(fmt_writer_tensor(w, "late", BASE_F32, 1, DIMS_B, &e), &e, "after the first data");
    refused(fmt_writer_finish(w, &e), &e, "\"a.weight\" (1 of 3) got 100 of its 102 bytes");
    assert_int_equal(fmt_writer_data(w, bytes, 30, &e), WEIR_OK);
    refused(fmt_writer_finish(w, &e), &e, "\"c.weight\" (3 of 3) got 8 of its 16 bytes");
    refused(fmt_writer_data(w, bytes, 9, &e), &e, "1 bytes of data behind the last of 3 tensors");
    fmt_writer_destroy(w);
    assert_false(base_file_exists(path_of("no.gguf")));
    w = create(env, FMT_WRITE_SAFETENSORS, path_of("no.safetensors"));
    refused(fmt_writer_tensor(w, "t", BASE_Q8_0, 1, DIMS_A, &e), &e,
            "safetensors holds F32, F16, BF16 and I32");
    fmt_writer_destroy(w);
    fmt_writer_destroy(NULL);
    assert_int_equal(fmt_writer_create(env, FMT_WRITE_GGUF, path_of("no/such/folder.gguf"), &w, &e),
                     WEIR_ERR_NOT_FOUND);
    assert_null(w);
    end_env(env);
}

/* Every allocation fails once: the documented error, nothing left, no file. */
static void test_faults(void **state)
{
    (void)state;
    const char *path = path_of("fault.gguf");
    for (uint64_t after = 0;; after++) {
        weir_error e = {0};
        base_env *env = new_env();
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        assert_int_equal(base_fault_arm(env, &rule, &e), WEIR_OK);
        fmt_writer *w = NULL;
        float x[5] = {1, 2, 3, 4, 5};
        weir_status s = fmt_writer_create(env, FMT_WRITE_GGUF, path, &w, &e);
        if (s == WEIR_OK) s = fmt_writer_str(w, "k", "v", &e);
        if (s == WEIR_OK) s = fmt_writer_tensor(w, "b.weight", BASE_F32, 1, DIMS_B, &e);
        if (s == WEIR_OK) s = fmt_writer_data(w, x, sizeof x, &e);
        if (s == WEIR_OK) s = fmt_writer_finish(w, &e);
        fmt_writer_destroy(w);
        end_env(env);
        assert_true(base_file_exists(path) == (s == WEIR_OK));
        if (s == WEIR_OK) {
            assert_true(after > 5);
            break;
        }
        assert_int_equal(s, WEIR_ERR_OUT_OF_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),    cmocka_unit_test(test_safetensors), cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
