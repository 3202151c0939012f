/* Reading valid GGUF: all value types, versions, look-ups and typed reads, arrays, the real models. */
#include "model_test.h"

static void check_small(base_env *env, const fmt_model *m)
{
    weir_error err = {0};
    uint64_t u;
    double d;
    bool b;
    assert_int_equal(fmt_model_n_values(m), 19);
    assert_string_equal(fmt_get_str(m, "general.architecture"), "llama");
    assert_string_equal(fmt_get_str(m, "t.string"), "gr\xc3\xbc\xc3\x9f\n");
    assert_int_equal(fmt_model_find_value(m, "t.u8")->v.u, 200);
    assert_int_equal(fmt_model_find_value(m, "t.i8")->v.i, -100);
    assert_int_equal(fmt_model_find_value(m, "t.u16")->v.u, 60000);
    assert_int_equal(fmt_model_find_value(m, "t.i16")->v.i, -30000);
    assert_int_equal(fmt_get_u64(m, "t.u32", 0, 0, UINT32_MAX, &u, &err), WEIR_OK);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(fmt_model_find_value(m, "t.i32")->v.i, -2000000000);
    assert_int_equal(fmt_get_f64(m, "t.f32", 0, &d, &err), WEIR_OK);
    assert_true(d == 1.5);
    assert_int_equal(fmt_get_f64(m, "t.f64", 0, &d, &err), WEIR_OK);
    assert_true(d == -2.5);
    assert_int_equal(fmt_get_bool(m, "t.bool", false, &b, &err), WEIR_OK);
    assert_true(b);
    assert_true(fmt_model_find_value(m, "t.u64")->v.u == UINT64_C(18000000000000000000));
    assert_true(fmt_model_find_value(m, "t.i64")->v.i == -INT64_C(9000000000000000000));
    const fmt_value *v = fmt_model_find_value(m, "a.i16");
    assert_int_equal(v->type, FMT_ARRAY);
    assert_int_equal(v->v.array.bytes, 6);
    fmt_array *a;
    assert_int_equal(fmt_array_open(env, m, v, &a, &err), WEIR_OK);
    static const int64_t want[] = {1, -2, 3};
    for (int i = 0; i < 3; i++) {
        int64_t x;
        assert_int_equal(fmt_array_next_i64(a, &x, &err), WEIR_OK);
        assert_int_equal(x, want[i]);
    }
    assert_int_equal(fmt_array_next_i64(a, &(int64_t){0}, &err), WEIR_ERR_INTERNAL);
    fmt_array_close(a);
    v = fmt_model_find_value(m, "a.string");
    assert_int_equal(fmt_array_open(env, m, v, &a, &err), WEIR_OK);
    static const char *const words[] = {"alpha", "", "gamma"};
    for (int i = 0; i < 3; i++) {
        const char *data;
        uint64_t len;
        assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
        assert_int_equal(len, strlen(words[i]));
        assert_memory_equal(data, words[i], len);
    }
    assert_int_equal(fmt_array_next_f64(a, &d, &err), WEIR_ERR_INTERNAL);
    fmt_array_close(a);
    assert_int_equal(fmt_model_find_value(m, "a.nested")->v.array.type, FMT_ARRAY);
    assert_int_equal(fmt_model_find_value(m, "a.nested")->v.array.bytes, 12 + 2 + 12 + 10);
    assert_int_equal(fmt_model_find_value(m, "a.empty")->v.array.bytes, 0);
    walk_model(env, m);
}

static void test_every_type(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        image img = {0};
        put_small_model(&img, version);
        size_t size = img.n;
        const char *path = write_image("small.gguf", &img);
        base_env *env = new_env();
        fmt_model *m = open_ok(env, path);
        assert_string_equal(fmt_model_format(m), version == 2 ? "GGUF v2" : "GGUF v3");
        assert_int_equal(fmt_model_n_files(m), 1);
        assert_null(fmt_model_file(m, 1));
        assert_null(fmt_model_dir(m));
        check_small(env, m);
        assert_int_equal(fmt_model_n_tensors(m), 3);
        const fmt_tensor *t = fmt_model_find_tensor(m, "a.weight");
        assert_ptr_equal(t, fmt_model_tensor(m, 0));
        assert_int_equal(t->offset, size - 204);
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(t->bytes, 68);
        assert_int_equal(t->dims[0], 32);
        assert_int_equal(t->dims[1], 2);
        assert_int_equal(t->dims[2], 1);
        t = fmt_model_find_tensor(m, "c.weight");
        assert_int_equal(t->n_dims, 3);
        assert_int_equal(t->offset, size - 12);
        assert_null(fmt_model_find_tensor(m, "d.weight"));
        assert_null(fmt_model_tensor(m, 3));
        fmt_model_close(m);
        assert_true(end_env(env) < 200000);
    }
}

static void test_typed_reads(void **state)
{
    (void)state;
    image img = {0};
    put_head(&img, 3, 0, 6);
    put_kv_u32(&img, "n", 7);
    put_key(&img, "neg", FMT_I32), put_le(&img, (uint32_t)-1, 4);
    put_key(&img, "pos", FMT_I64), put_u64(&img, 12);
    put_key(&img, "inf", FMT_F32), put_le(&img, 0x7f800000, 4);
    put_kv_text(&img, "text", "x");
    put_key(&img, "flag", FMT_BOOL), put_le(&img, 0, 1);
    base_env *env = new_env();
    fmt_model *m = open_ok(env, write_image("typed.gguf", &img));
    weir_error err = {0};
    uint64_t u = 0;
    double d = 0;
    bool b = true;
    assert_int_equal(fmt_get_u64(m, "absent", 42, 100, 200, &u, &err), WEIR_OK);
    assert_int_equal(u, 42);
    assert_int_equal(fmt_get_u64(m, "pos", 0, 1, 12, &u, &err), WEIR_OK);
    assert_int_equal(u, 12);
    assert_int_equal(fmt_get_u64(m, "n", 0, 8, 9, &u, &err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "\"n\" is 7, wanted 8 to 9"));
    assert_int_equal(fmt_get_u64(m, "neg", 0, 0, 9, &u, &err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "is -1"));
    assert_int_equal(fmt_get_u64(m, "text", 0, 0, 9, &u, &err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "of type string, wanted an integer"));
    assert_int_equal(fmt_get_u64(m, "flag", 0, 0, 9, &u, &err), WEIR_ERR_FORMAT);
    assert_int_equal(fmt_get_f64(m, "inf", 0, &d, &err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "finite"));
    assert_int_equal(fmt_get_f64(m, "absent", 0.25, &d, &err), WEIR_OK);
    assert_true(d == 0.25);
    assert_int_equal(fmt_get_f64(m, "neg", 0, &d, &err), WEIR_OK);
    assert_true(d == -1);
    assert_int_equal(fmt_get_bool(m, "flag", true, &b, &err), WEIR_OK);
    assert_false(b);
    assert_int_equal(fmt_get_bool(m, "n", true, &b, &err), WEIR_ERR_FORMAT);
    assert_null(fmt_get_str(m, "n"));
    assert_null(fmt_get_str(m, "absent"));
    fmt_array *a;
    assert_int_equal(fmt_array_open(env, m, fmt_model_find_value(m, "n"), &a, &err), WEIR_ERR_FORMAT);
    assert_null(a);
    fmt_model_close(m);
    end_env(env);
}

/* A hundred thousand entries and a vocabulary pass in time that does not square, and in bounded memory. */
static void test_large_header(void **state)
{
    (void)state;
    image img = {0};
    const uint32_t n = 100000, n_vocab = 262144;
    put_head(&img, 3, n, 1);
    put_key(&img, "tokenizer.ggml.tokens", FMT_ARRAY), put_u32(&img, FMT_STRING), put_u64(&img, n_vocab);
    char name[64];
    for (uint32_t i = 0; i < n_vocab; i++) {
        snprintf(name, sizeof name, "token%u", i);
        put_text(&img, name);
    }
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%u.w", i);
        put_entry(&img, name, 1, (uint64_t[]){1}, BASE_F32, UINT64_C(32) * (n - 1 - i));
    }
    put_data(&img, 32, 32u * n);
    base_env *env = new_env();
    fmt_model *m = open_ok(env, write_image("large.gguf", &img));
    assert_int_equal(fmt_model_n_tensors(m), n);
    assert_non_null(fmt_model_find_tensor(m, "blk.99999.w"));
    weir_error err = {0};
    fmt_array *a;
    assert_int_equal(fmt_array_open(env, m, fmt_model_value(m, 0), &a, &err), WEIR_OK);
    for (uint32_t i = 0; i < n_vocab; i++) {
        const char *data;
        uint64_t len;
        assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
        snprintf(name, sizeof name, "token%u", i);
        if (len != strlen(name) || memcmp(data, name, len) != 0) fail_msg("token %u", i);
    }
    fmt_array_close(a);
    fmt_model_close(m);
    assert_true(end_env(env) < 48u << 20);
}

static void test_smollm2(void **state)
{
    (void)state;
    const char *path = real_model("SmolLM2-135M-Instruct.Q4_1.gguf");
    if (path == NULL) skip();
    base_env *env = new_env();
    fmt_model *m = open_ok(env, path);
    weir_error err = {0};
    uint64_t u;
    assert_string_equal(fmt_model_format(m), "GGUF v3");
    assert_int_equal(fmt_model_n_tensors(m), 272);
    assert_int_equal(fmt_model_n_values(m), 33);
    assert_string_equal(fmt_get_str(m, "general.architecture"), "llama");
    assert_int_equal(fmt_get_u64(m, "llama.block_count", 0, 1, 1000, &u, &err), WEIR_OK);
    assert_int_equal(u, 30);
    const fmt_tensor *t = fmt_model_find_tensor(m, "blk.0.ffn_down.weight");
    assert_int_equal(t->dtype, BASE_Q4_1);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 1536);
    assert_int_equal(t->dims[1], 576);
    assert_int_equal(t->offset, 31868992);
    assert_int_equal(t->bytes, 552960);
    t = fmt_model_find_tensor(m, "output_norm.weight");
    assert_int_equal(t->offset, 98360128);
    assert_int_equal(t->offset + t->bytes, base_file_size(fmt_model_file(m, 0)));
    const fmt_value *v = fmt_model_find_value(m, "tokenizer.ggml.tokens");
    assert_int_equal(v->v.array.count, 49152);
    fmt_array *a;
    const char *data;
    uint64_t len;
    assert_int_equal(fmt_array_open(env, m, v, &a, &err), WEIR_OK);
    assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
    assert_int_equal(len, 13);
    assert_memory_equal(data, "<|endoftext|>", 13);
    fmt_array_close(a);
    walk_model(env, m);
    fmt_model_close(m);
    assert_true(end_env(env) < 1u << 20);
}

static void test_gemma3(void **state)
{
    (void)state;
    const char *path = real_model("gemma3-270m-q4_k_m.gguf");
    if (path == NULL) skip();
    base_env *env = new_env();
    fmt_model *m = open_ok(env, path);
    assert_int_equal(fmt_model_n_tensors(m), 236);
    assert_int_equal(fmt_model_find_value(m, "tokenizer.ggml.scores")->v.array.count, 262144);
    const fmt_tensor *t = fmt_model_find_tensor(m, "token_embd.weight");
    assert_int_equal(t->dtype, BASE_Q8_0);
    assert_int_equal(t->dims[0], 640);
    assert_int_equal(t->dims[1], 262144);
    assert_int_equal(t->offset, 6527680);
    assert_int_equal(t->bytes, 178257920);
    t = fmt_model_find_tensor(m, "blk.0.ffn_down.weight");
    assert_int_equal(t->dtype, BASE_Q6_K);
    assert_int_equal(t->offset, 185896128);
    assert_int_equal(t->bytes, 1075200);
    base_ledger_view v;
    base_ledger_read(env, &v);
    assert_true(v.bytes < 128u << 10);
    walk_model(env, m);
    fmt_model_close(m);
    assert_true(end_env(env) < 1u << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),   cmocka_unit_test(test_typed_reads),
        cmocka_unit_test(test_large_header), cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
