/* safetensors: single files, shards, Hugging Face folders of every class, headers that lie. */
#include "model_test.h"

#define ENTRY_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define ENTRY_B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

typedef struct st_lie {
    const char *header;
    size_t data;
    weir_status status;
    const char *phrase;
} st_lie;

#define ONE(dtype, shape, offsets)                                                                           \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const st_lie LIES[] = {
    {"[]", 0, WEIR_ERR_FORMAT, "wanted '{' (the header)"},
    {"{}{}", 0, WEIR_ERR_FORMAT, "text behind the end"},
    {"{\"a\"", 0, WEIR_ERR_FORMAT, "wanted ':' (behind a tensor's name)"},
    {"{\"a", 0, WEIR_ERR_FORMAT, "but the header ends at 11"},
    {"{" ENTRY_A, 24, WEIR_ERR_FORMAT, "wanted ','"},
    {"{" ENTRY_A ",}", 24, WEIR_ERR_FORMAT, "wanted '\"' (a string)"},
    {"{" ENTRY_A "," ENTRY_A "}", 24, WEIR_ERR_FORMAT, "\"a\" appears twice"},
    {"{" ENTRY_A "}", 23, WEIR_ERR_TRUNCATED, "but the file has"},
    {"{" ENTRY_A "}", 25, WEIR_ERR_FORMAT, "the last tensor ends at offset"},
    {"{" ENTRY_A "," ENTRY_B "}", 24, WEIR_ERR_TRUNCATED, "tensor \"b\" needs bytes"},
    {"{}", 1, WEIR_ERR_FORMAT, "the last tensor ends at offset 10, but the file has 11"},
    {ONE("F32", "[2]", "[4,12]"), 12, WEIR_ERR_FORMAT, "4 bytes before tensor \"a\""},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[28,32]}}", 32, WEIR_ERR_FORMAT,
     "4 bytes before tensor \"b\""},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}}", 24, WEIR_ERR_FORMAT,
     "tensor \"b\" at offset"},
    {ONE("F32", "[3]", "[0,8]"), 8, WEIR_ERR_FORMAT, "its shape needs 12 bytes, but data_offsets are 0 to 8"},
    {ONE("F32", "[2]", "[8,0]"), 8, WEIR_ERR_FORMAT, "data_offsets are 8 to 0"},
    {ONE("F32", "[2]", "[18446744073709551612,18446744073709551620]"), 8, WEIR_ERR_FORMAT, "beyond 64 bits"},
    {ONE("F32", "[1]", "[18446744073709551611,18446744073709551615]"), 8, WEIR_ERR_FORMAT,
     "data_offsets overflow"},
    {ONE("F32", "[0]", "[0,0]"), 0, WEIR_ERR_FORMAT, "dimension 0 is zero"},
    {ONE("F32", "[4294967296,4294967296,2]", "[0,0]"), 0, WEIR_ERR_FORMAT,
     "product of its dimensions overflows"},
    {ONE("F32", "[1,1,1,1,1]", "[0,4]"), 4, WEIR_ERR_UNSUPPORTED, "more than 4 dimensions"},
    {ONE("F64", "[1]", "[0,8]"), 8, WEIR_ERR_UNSUPPORTED,
     "tensor \"a\" (entry at offset 9) has type \"F64\""},
    {ONE("F8_E4M3", "[8]", "[0,8]"), 8, WEIR_ERR_UNSUPPORTED, "\"F8_E4M3\""},
    {ONE("F32", "[-2]", "[0,8]"), 8, WEIR_ERR_FORMAT, "wanted a whole number"},
    {ONE("F32", "[2.0]", "[0,8]"), 8, WEIR_ERR_FORMAT, "wanted a whole number"},
    {ONE("F32", "[02]", "[0,8]"), 8, WEIR_ERR_FORMAT, "leading zero"},
    {ONE("F32", "[2]", "[0,8,9]"), 8, WEIR_ERR_FORMAT, "behind data_offsets"},
    {ONE("F32", "2", "[0,8]"), 8, WEIR_ERR_FORMAT, "a shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, WEIR_ERR_FORMAT, "wanted dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2]}}", 8, WEIR_ERR_FORMAT, "a repeated member"},
    {"{\"a\":{\"kind\":\"F32\"}}", 8, WEIR_ERR_FORMAT, "an unknown member"},
    {"{\"\":{}}", 0, WEIR_ERR_FORMAT, "empty or has control characters"},
    {"{\"a\\u0000b\":{}}", 0, WEIR_ERR_FORMAT, "control characters"},
    {"{\"a\\u001bb\":{}}", 0, WEIR_ERR_FORMAT, "control characters"},
    {"{\"a\nb\":{}}", 0, WEIR_ERR_FORMAT, "a control character in a string"},
    {"{\"\\ud800x\":{}}", 0, WEIR_ERR_FORMAT, "half a surrogate pair"},
    {"{\"\\udc00\":{}}", 0, WEIR_ERR_FORMAT, "half a surrogate pair"},
    {"{\"\\q\":{}}", 0, WEIR_ERR_FORMAT, "an unknown escape"},
    {"{\"\\u12g4\":{}}", 0, WEIR_ERR_FORMAT, "four hexadecimal digits"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, WEIR_ERR_FORMAT, "appears twice"},
    {"{\"__metadata__\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, WEIR_ERR_FORMAT,
     "nested too deeply"},
};

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LIES / sizeof *LIES; i++)
        open_fails(write_safetensors("lie.safetensors", LIES[i].header, LIES[i].data), LIES[i].status,
                   LIES[i].phrase);
    image m = {0};
    put_u64(&m, 100000001);
    put_data(&m, 1, 100);
    open_fails(write_image("long.safetensors", &m), WEIR_ERR_FORMAT,
               "is 100000001 bytes, wanted 2 to 100000000");
    put_u64(&m, UINT64_MAX);
    put_data(&m, 1, 100);
    open_fails(write_image("long.safetensors", &m), WEIR_ERR_FORMAT, "is 18446744073709551615 bytes");
    put_u64(&m, 1000);
    put_data(&m, 1, 100);
    open_fails(write_image("long.safetensors", &m), WEIR_ERR_TRUNCATED,
               "the header ends at offset 1008, but the file has 108");
    open_fails(write_file("long.safetensors", "abc", 3), WEIR_ERR_TRUNCATED,
               "3 bytes are no safetensors file");
    char name[700];
    memset(name, 'n', sizeof name);
    memcpy(name, "{\"", 2);
    memcpy(name + sizeof name - 6, "\":{}}", 6);
    open_fails(write_safetensors("lie.safetensors", name, 0), WEIR_ERR_FORMAT,
               "a name of more than 512 bytes");
}

static void test_plain_file(void **state)
{
    (void)state;
    const char *header =
        " { \"__metadata__\" : {\"format\":\"pt\", \"x\\u00e9\":\"\\\"}\"} ,\n" ENTRY_B
        ",\"e\\u00e9\\ud83d\\ude00\\/\":{\"data_offsets\":[32,33],\"shape\":[1,1,1,1],\"dtype\":\"I8\"},"
        "\"s\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[33,37]}," ENTRY_A "}  \t\n ";
    base_env *env = new_env();
    fmt_model *m = open_ok(env, write_safetensors("plain.safetensors", header, 37));
    assert_string_equal(fmt_model_format(m), "safetensors");
    assert_string_equal(fmt_model_dir(m), test_folder);
    assert_int_equal(fmt_model_n_values(m), 0);
    assert_int_equal(fmt_model_n_tensors(m), 4);
    const fmt_tensor *t = fmt_model_find_tensor(m, "a");
    assert_int_equal(t->offset, 8 + strlen(header));
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dtype, BASE_F32);
    assert_ptr_equal(t->name, t->file_name);
    assert_int_equal(fmt_model_find_tensor(m, "b")->dtype, BASE_BF16);
    assert_int_equal(fmt_model_find_tensor(m, "s")->bytes, 4);
    assert_non_null(fmt_model_find_tensor(m, "e\xc3\xa9\xf0\x9f\x98\x80/"));
    walk_model(env, m);
    fmt_model_close(m);
    end_env(env);
}

static weir_status try_open(const char *path)
{
    weir_error err = {0};
    base_env *env = new_env();
    fmt_model *m = NULL;
    weir_status s = fmt_model_open(env, path, &m, &err);
    if (s == WEIR_OK) walk_model(env, m);
    fmt_model_close(m);
    assert_true(end_env(env) < 1u << 20);
    return s;
}

static void test_cut_and_changed(void **state)
{
    (void)state;
    static const unsigned char flips[] = {0xff, 0x01, 0x20};
    image m = {0};
    put_text(&m, "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY_A "," ENTRY_B "}");
    size_t head = m.n;
    put_data(&m, 1, 32);
    for (size_t n = 0; n < m.n; n++) {
        weir_status s = try_open(write_file("cut.safetensors", m.p, n));
        weir_status want = n == 0 ? WEIR_ERR_FORMAT : WEIR_ERR_TRUNCATED;
        if (s != want)
            fail_msg("cut at %zu: wanted %s, got %s", n, weir_status_name(want), weir_status_name(s));
    }
    for (size_t at = 0; at < head; at++) {
        for (size_t k = 0; k < sizeof flips; k++) {
            m.p[at] ^= flips[k];
            weir_status s = try_open(write_file("flip.safetensors", m.p, m.n));
            m.p[at] ^= flips[k];
            assert_true(s == WEIR_OK || s == WEIR_ERR_TRUNCATED || s == WEIR_ERR_FORMAT ||
                        s == WEIR_ERR_UNSUPPORTED);
        }
    }
    assert_int_equal(try_open(write_file("whole.safetensors", m.p, m.n)), WEIR_OK);
    image_free(&m);
}

static void test_large_header(void **state)
{
    (void)state;
    const uint32_t n = 100000;
    image h = {0}, m = {0};
    put_bytes(&h, "{", 1);
    for (uint32_t i = 0; i < n; i++) {
        char text[128];
        uint32_t at = 4 * (n - 1 - i);
        snprintf(text, sizeof text, "%s\"t%u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
                 i > 0 ? "," : "", i, at, at + 4);
        put_bytes(&h, text, strlen(text));
    }
    put_bytes(&h, "}", 1);
    put_u64(&m, h.n);
    put_bytes(&m, h.p, h.n);
    put_data(&m, 1, 4u * n);
    image_free(&h);
    base_env *env = new_env();
    fmt_model *x = open_ok(env, write_image("large.safetensors", &m));
    assert_int_equal(fmt_model_n_tensors(x), n);
    assert_non_null(fmt_model_find_tensor(x, "t77777"));
    fmt_model_close(x);
    assert_true(end_env(env) < 48u << 20);
}

/* ---- shards */
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"
#define INDEX   "model.safetensors.index.json"

static void write_shards(void)
{
    write_safetensors(SHARD_1, "{" ENTRY_A "}", 24);
    write_safetensors(SHARD_2, ONE("F16", "[4]", "[0,8]"), 8);
    /* The second shard's tensor is called b. */
    write_safetensors(SHARD_2, "{\"b\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8);
    write_text(INDEX,
               "{\"metadata\":{\"total_size\":32,\"x\":[1.5e3,true,null,{}]},\"weight_map\":{\"a\":\"" SHARD_1
               "\",\"b\":\"" SHARD_2 "\"}}\n");
}

static void test_shards(void **state)
{
    (void)state;
    static const char *const paths[] = {INDEX, SHARD_1, SHARD_2, ""};
    write_shards();
    for (int i = 0; i < 4; i++) {
        base_env *env = new_env();
        fmt_model *m = open_ok(env, path_of(paths[i]));
        assert_int_equal(fmt_model_n_files(m), 2);
        assert_int_equal(fmt_model_n_tensors(m), 2);
        const fmt_tensor *t = fmt_model_find_tensor(m, "b");
        assert_int_equal(t->file, 1);
        assert_non_null(strstr(base_file_path(fmt_model_file(m, 1)), SHARD_2));
        walk_model(env, m);
        fmt_model_close(m);
        end_env(env);
    }
    unlink(path_of(SHARD_2));
    open_fails(path_of(INDEX), WEIR_ERR_NOT_FOUND, "shard 2 of 2");
    unlink(path_of(INDEX));
    open_fails(path_of(SHARD_1), WEIR_ERR_NOT_FOUND, "its index");
}

static void test_hostile_index(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *phrase;
    } lies[] = {
        {"", "empty"},
        {"[]", "wanted '{' (the index)"},
        {"{\"metadata\":{}}", "no \"weight_map\""},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":{\"a\":\"../" SHARD_1 "\"}}", "no plain file name: refused"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"x\\u0000\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\\u001b\":\"x\"}}", "control characters"},
        {"{\"weight_map\":{\"a\":\"" SHARD_1 "\",\"b\":\"" SHARD_1 "\"}}", "tensor \"b\" is not in"},
        {"{\"weight_map\":{\"a\":\"" SHARD_2 "\",\"b\":\"" SHARD_1 "\"}}", "tensor \"a\" is not in"},
        {"{\"weight_map\":{\"a\":3}}", "a string"},
        {"{\"weight_map\":{\"a\":\"" SHARD_1 "\"}} x", "text behind the end"},
    };
    write_shards();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        open_fails(write_text(INDEX, lies[i].text), WEIR_ERR_FORMAT, lies[i].phrase);
    /* The same tensor in two shards. */
    write_safetensors(SHARD_2, "{" ENTRY_A "}", 24);
    open_fails(write_text(INDEX, "{\"weight_map\":{\"a\":\"" SHARD_1 "\",\"b\":\"" SHARD_2 "\"}}"),
               WEIR_ERR_FORMAT, "appears twice");
    unlink(path_of(INDEX));
    unlink(path_of(SHARD_1));
    unlink(path_of(SHARD_2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_plain_file),
        cmocka_unit_test(test_cut_and_changed),
        cmocka_unit_test(test_large_header),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_hostile_index),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
