/* Packed files: what the writer declares reads back, other programs cannot mistake them, and a file that is
 * of another version, damaged or put together from two is refused with what to do. */
#include "model_test.h"

#include "formats/fmt_pack.h"

static const uint64_t MATRIX[] = {64, 37}, NORM[] = {64};
#define MATRIX_BYTES (37 * 68) /* Q8_0 */

/* A source with an array of strings, then the packed file with that array. */
static const char *write_packed(base_env *env, const char *name)
{
    weir_error err = {0};
    image source_image = {0};
    put_small_model(&source_image, 3);
    fmt_model *source = open_ok(env, write_image("source.gguf", &source_image));
    const char *path = path_of(name);
    fmt_writer *w;
    assert_int_equal(fmt_writer_create(env, FMT_WRITE_GGUF, path, &w, &err), WEIR_OK);
    assert_int_equal(fmt_writer_packed_tensor(w, "x", BASE_Q8_0, MATRIX, &err), WEIR_ERR_INVALID_ARGUMENT);
    for (uint64_t i = 0; i < fmt_model_n_values(source); i++) {
        const fmt_value *v = fmt_model_value(source, i);
        if (strcmp(v->key, "general.alignment") == 0) continue;
        if (fmt_writer_copy(w, source, v, &err) != WEIR_OK) fail_msg("%s: %s", v->key, err.message);
    }
    assert_int_equal(fmt_writer_pack(w, &err), WEIR_OK);
    assert_int_equal(fmt_writer_packed_tensor(w, "f", BASE_F16, MATRIX, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(fmt_writer_packed_tensor(w, "few", BASE_Q8_0, (uint64_t[]){64, 15}, &err),
                     WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(fmt_writer_packed_tensor(w, "m.weight", BASE_Q8_0, MATRIX, &err), WEIR_OK);
    assert_int_equal(fmt_writer_tensor(w, "n.weight", BASE_F32, 1, NORM, &err), WEIR_OK);
    unsigned char bytes[MATRIX_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
    uint64_t wanted = fmt_writer_file_bytes(w);
    assert_int_equal(fmt_writer_data(w, bytes, sizeof bytes, &err), WEIR_OK);
    assert_int_equal(fmt_writer_data(w, bytes, 256, &err), WEIR_OK);
    assert_int_equal(fmt_writer_finish(w, &err), WEIR_OK);
    fmt_writer_destroy(w);
    fmt_model_close(source);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, wanted);
    return path;
}

static void test_round_trip(void **state)
{
    (void)state;
    weir_error err = {0};
    base_env *env = new_env();
    fmt_model *m = open_ok(env, write_packed(env, "packed.gguf"));
    assert_true(fmt_model_is_packed(m));
    assert_string_equal(fmt_model_format(m), "GGUF v3 packed");
    walk_model(env, m);
    const fmt_tensor *t = fmt_model_find_tensor(m, "m.weight"), *n = fmt_model_find_tensor(m, "n.weight");
    assert_true(t->packed && t->dtype == BASE_Q8_0 && t->bytes == MATRIX_BYTES && t->offset % 4096 == 0);
    assert_true(!n->packed && n->dtype == BASE_F32 && n->offset % 4096 == 0);
    assert_int_equal(fmt_model_tensor_index(m, n), 1);
    unsigned char got[MATRIX_BYTES];
    assert_int_equal(base_file_read(fmt_model_file(m, 0), t->offset, got, sizeof got, &err), WEIR_OK);
    for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], (unsigned char)(i * 7));
    /* All values of the source, arrays too. */
    assert_int_equal(fmt_model_n_values(m), 19 + 3);
    assert_int_equal(fmt_model_find_value(m, "t.u64")->v.u, UINT64_C(18000000000000000000));
    assert_true(fmt_model_find_value(m, "t.i64")->v.i == -INT64_C(9000000000000000000));
    assert_int_equal(fmt_model_find_value(m, "t.i8")->v.i, -100);
    assert_true(fmt_model_find_value(m, "t.f32")->v.f == 1.5 &&
                fmt_model_find_value(m, "t.f64")->v.f == -2.5);
    assert_string_equal(fmt_model_find_value(m, "t.string")->v.str.data, "gr\xc3\xbc\xc3\x9f\n");
    assert_int_equal(fmt_model_find_value(m, "general.alignment")->v.u, 4096);
    fmt_array *a;
    const char *text;
    uint64_t len;
    assert_int_equal(fmt_array_open(env, m, fmt_model_find_value(m, "a.string"), &a, &err), WEIR_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(fmt_array_next_str(a, &text, &len, &err), WEIR_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "gamma", 5);
    fmt_array_close(a);
    assert_int_equal(fmt_model_find_value(m, "a.nested")->v.array.count, 2);
    /* FNV-1a over version, rows and both entries, computed apart from this program. */
    assert_true(fmt_model_find_value(m, FMT_PACK_KEY_DIGEST)->v.u == UINT64_C(0xf4689732595b85dc));
    fmt_model_close(m);
    end_env(env);
}

/* ---- files that lie */

typedef struct spec {
    uint32_t version, rows, alignment, type, n_dims;
    uint64_t n_rows, offset;
    uint64_t digest_error; /* added to the digest that would be right */
    bool no_version, no_rows, no_digest, version_is_text, digest_is_u32;
    bool split;
} spec;

static const spec honest = {.version = FMT_PACK_VERSION,
                            .rows = FMT_PACK_ROWS,
                            .alignment = 4096,
                            .type = FMT_PACK_TYPE + BASE_Q8_0,
                            .n_dims = 2,
                            .n_rows = 32};

static void put_spec(image *m, const spec *s)
{
    uint64_t dims[] = {64, s->n_rows, 1};
    fmt_tensor t = {.name = "w", .n_dims = s->n_dims, .dims = {64, s->n_rows, 1, 1}, .offset = s->offset};
    uint64_t digest = fmt_pack_digest_add(fmt_pack_digest_begin(), &t, s->type) + s->digest_error;
    put_head(m, 3, 1, 4 + (s->split ? 2 : 0) - s->no_version - s->no_rows - s->no_digest);
    put_kv_u32(m, "general.alignment", s->alignment);
    if (!s->no_version && s->version_is_text) put_kv_text(m, FMT_PACK_KEY_VERSION, "1");
    if (!s->no_version && !s->version_is_text) put_kv_u32(m, FMT_PACK_KEY_VERSION, s->version);
    if (!s->no_rows) put_kv_u32(m, FMT_PACK_KEY_ROWS, s->rows);
    if (!s->no_digest && s->digest_is_u32) put_kv_u32(m, FMT_PACK_KEY_DIGEST, (uint32_t)digest);
    if (!s->no_digest && !s->digest_is_u32) put_key(m, FMT_PACK_KEY_DIGEST, FMT_U64), put_u64(m, digest);
    if (s->split) put_kv_u32(m, "split.no", 0), put_kv_u32(m, "split.count", 2);
    put_entry(m, "w", s->n_dims, dims, s->type, s->offset);
    put_data(m, s->alignment >= 32 ? s->alignment : 32, 68 * 64);
}

static void refused(const char *name, spec s, weir_status status, const char *phrase)
{
    image m = {0};
    put_spec(&m, &s);
    print_message("# %s\n", name);
    const char *path = write_image("lie-00001-of-00002.gguf", &m);
    open_fails(path, status, phrase);
    open_fails(path, status, "ack it again from the original");
}

#define LIE(change, status, phrase)                                                                          \
    do {                                                                                                     \
        spec s = honest;                                                                                     \
        change;                                                                                              \
        refused(#change, s, status, phrase);                                                                 \
    } while (0)

static void test_lies(void **state)
{
    (void)state;
    base_env *env = new_env();
    image m = {0};
    put_spec(&m, &honest);
    fmt_model *model = open_ok(env, write_image("honest.gguf", &m));
    assert_true(fmt_model_find_tensor(model, "w")->packed);
    fmt_model_close(model);
    end_env(env);

    LIE(s.version = 2, WEIR_ERR_UNSUPPORTED, "packed in version 2 of the layout");
    LIE(s.version = 0, WEIR_ERR_UNSUPPORTED, "packed in version 0 of the layout");
    LIE(s.version = UINT32_MAX, WEIR_ERR_UNSUPPORTED, "version 4294967295");
    LIE(s.rows = 8, WEIR_ERR_UNSUPPORTED, "groups of 8 rows");
    LIE(s.rows = 0, WEIR_ERR_UNSUPPORTED, "groups of 0 rows");
    LIE(s.alignment = 64, WEIR_ERR_FORMAT, "general.alignment 64, wanted 4096");
    LIE(s.digest_error = 1, WEIR_ERR_FORMAT, "not the one that was packed");
    LIE(s.version_is_text = true, WEIR_ERR_FORMAT, "\"weir.pack.version\" is of type string, wanted u32");
    LIE(s.digest_is_u32 = true, WEIR_ERR_FORMAT, "\"weir.pack.digest\" is of type u32, wanted u64");
    LIE(s.no_version = true, WEIR_ERR_FORMAT, "without the metadata key weir.pack.version");
    LIE(s.no_rows = true, WEIR_ERR_FORMAT, "without the metadata key weir.pack.rows");
    LIE(s.no_digest = true, WEIR_ERR_FORMAT, "without the metadata key weir.pack.digest");
    LIE(s.no_version = s.no_rows = s.no_digest = true, WEIR_ERR_FORMAT, "the file does not say how");
    LIE(s.type = FMT_PACK_TYPE + BASE_F32, WEIR_ERR_UNSUPPORTED, "packed type id");
    LIE(s.type = FMT_PACK_TYPE + BASE_BF16, WEIR_ERR_UNSUPPORTED, "packed type id");
    LIE(s.type = FMT_PACK_TYPE + 5, WEIR_ERR_UNSUPPORTED, "packed type id");
    LIE(s.type = FMT_PACK_TYPE + 255, WEIR_ERR_UNSUPPORTED, "packed type id");
    LIE(s.n_rows = 15, WEIR_ERR_FORMAT, "no matrix of at least 16 rows");
    LIE(s.n_dims = 1, WEIR_ERR_FORMAT, "no matrix of at least 16 rows");
    LIE(s.n_dims = 3, WEIR_ERR_FORMAT, "no matrix of at least 16 rows");
    LIE(s.split = true, WEIR_ERR_FORMAT, "part of a split model");
    /* What a plain file may not do is no better in a packed one. */
    spec s = honest;
    s.offset = 64;
    put_spec(&m, &s);
    open_fails(write_image("lie.gguf", &m), WEIR_ERR_FORMAT, "no multiple of the alignment 4096");
    s = honest;
    s.n_rows = 1 << 20;
    put_spec(&m, &s);
    open_fails(write_image("lie.gguf", &m), WEIR_ERR_TRUNCATED, "needs bytes");
    s = honest;
    s.type = FMT_PACK_TYPE + 256 + BASE_Q8_0;
    put_spec(&m, &s);
    open_fails(write_image("lie.gguf", &m), WEIR_ERR_UNSUPPORTED, "has type id");
}

/* No change of the tensor table goes unseen, and none of the header does harm. */
static void test_any_byte_changed(void **state)
{
    (void)state;
    image m = {0};
    put_spec(&m, &honest);
    size_t table = 0;
    for (size_t at = 0; at < 4096 && table == 0; at++)
        if (memcmp(m.p + at, "\1\0\0\0\0\0\0\0w", 9) == 0) table = at;
    assert_true(table > 100);
    for (size_t at = 0; at < table + 9 + 4 + 16 + 4 + 8; at++) {
        for (int bit = 0; bit < 8; bit += 3) {
            weir_error err = {0};
            base_env *env = new_env();
            fmt_model *model = NULL;
            m.p[at] ^= (unsigned char)(1 << bit);
            weir_status status = fmt_model_open(env, write_file("flip.gguf", m.p, m.n), &model, &err);
            m.p[at] ^= (unsigned char)(1 << bit);
            if (at >= table && status == WEIR_OK)
                fail_msg("byte %zu of the table changed unseen", at - table);
            if (status == WEIR_OK) walk_model(env, model);
            fmt_model_close(model);
            end_env(env);
        }
    }
    image_free(&m);
}

static void test_keep_existing(void **state)
{
    (void)state;
    weir_error err = {0};
    base_env *env = new_env();
    const char *path = path_of("kept.gguf");
    fmt_writer *w;
    assert_int_equal(fmt_writer_create(env, FMT_WRITE_GGUF, path, &w, &err), WEIR_OK);
    fmt_writer_keep_existing(w);
    write_text("kept.gguf", "somebody was faster");
    assert_int_equal(fmt_writer_finish(w, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "left alone"));
    fmt_writer_destroy(w);
    char *text;
    size_t len;
    assert_int_equal(base_file_slurp(env, path, 100, &text, &len, &err), WEIR_OK);
    assert_string_equal(text, "somebody was faster");
    base_free(env, text);
    end_env(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_any_byte_changed),
        cmocka_unit_test(test_keep_existing),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
