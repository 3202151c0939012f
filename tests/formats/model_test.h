/* Helpers of the tests of model files: a temporary folder, files of given bytes, a builder of GGUF bytes that
 * can also lie. */
#ifndef WEIR_MODEL_TEST_H
#define WEIR_MODEL_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/fmt_model.h"
#include "formats/fmt_writer.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- bytes of a file in the making */
typedef struct image {
    unsigned char *p;
    size_t n, cap;
} image;

static inline void put_bytes(image *m, const void *data, size_t n)
{
    if (m->n + n > m->cap) {
        m->cap = 2 * (m->n + n) + 256;
        m->p = realloc(m->p, m->cap);
        assert_non_null(m->p);
    }
    if (n > 0) memcpy(m->p + m->n, data, n);
    m->n += n;
}

static inline void put_le(image *m, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char b = (unsigned char)(v >> 8 * i);
        put_bytes(m, &b, 1);
    }
}

static inline void put_u32(image *m, uint32_t v)
{
    put_le(m, v, 4);
}

static inline void put_u64(image *m, uint64_t v)
{
    put_le(m, v, 8);
}

static inline void put_text(image *m, const char *s)
{
    put_u64(m, strlen(s));
    put_bytes(m, s, strlen(s));
}

static inline void put_head(image *m, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    put_bytes(m, "GGUF", 4);
    put_u32(m, version);
    put_u64(m, n_tensors);
    put_u64(m, n_values);
}

/* Key and type of a metadata pair; the value follows. */
static inline void put_key(image *m, const char *key, uint32_t type)
{
    put_text(m, key);
    put_u32(m, type);
}

static inline void put_kv_u32(image *m, const char *key, uint32_t v)
{
    put_key(m, key, FMT_U32);
    put_u32(m, v);
}

static inline void put_kv_text(image *m, const char *key, const char *v)
{
    put_key(m, key, FMT_STRING);
    put_text(m, v);
}

static inline void put_entry(image *m, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                             uint64_t offset)
{
    put_text(m, name);
    put_u32(m, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(m, dims[i]);
    put_u32(m, type);
    put_u64(m, offset);
}

/* Zeros up to a multiple of align, then `bytes` of data. */
static inline void put_data(image *m, size_t align, size_t bytes)
{
    while (m->n % align != 0) put_le(m, 0, 1);
    for (size_t i = 0; i < bytes; i++) put_le(m, i & 0xff, 1);
}

static inline void image_free(image *m)
{
    free(m->p);
    *m = (image){0};
}

/* ---- a folder */
static char test_folder[128];

static inline int folder_setup(void **state)
{
    (void)state;
    /* Thousands of tiny files: in memory where that is possible. */
    const char *base = getenv("TMPDIR");
    if (base == NULL) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(test_folder, sizeof test_folder, "%s/weir-test-XXXXXX", base);
    return mkdtemp(test_folder) != NULL ? 0 : -1;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline int folder_teardown(void **state)
{
    (void)state;
    return nftw(test_folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A path in the folder; four may be in use at a time. */
static inline const char *path_of(const char *name)
{
    static char paths[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", test_folder, name);
    return paths[turn];
}

static inline const char *write_file(const char *name, const void *data, size_t n)
{
    const char *path = path_of(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *write_text(const char *name, const char *text)
{
    return write_file(name, text, strlen(text));
}

static inline const char *write_image(const char *name, image *m)
{
    const char *path = write_file(name, m->p, m->n);
    image_free(m);
    return path;
}

/* length(u64), header, bytes of data */
static inline const char *write_safetensors(const char *name, const char *header, size_t data_bytes)
{
    image m = {0};
    put_text(&m, header);
    for (size_t i = 0; i < data_bytes; i++) put_le(&m, i & 0xff, 1);
    return write_image(name, &m);
}

/* ---- opening */
static inline base_env *new_env(void)
{
    weir_error err = {0};
    base_env *env = NULL;
    assert_int_equal(base_env_create(&env, &err), WEIR_OK);
    return env;
}

/* Ends the environment after asserting that nothing is left in its ledger; returns the peak. */
static inline uint64_t end_env(base_env *env)
{
    base_ledger_view v;
    base_ledger_read(env, &v);
    assert_int_equal(v.bytes, 0);
    base_env_destroy(env);
    return v.peak_bytes;
}

static inline fmt_model *open_ok(base_env *env, const char *path)
{
    weir_error err = {0};
    fmt_model *m = NULL;
    if (fmt_model_open(env, path, &m, &err) != WEIR_OK)
        fail_msg("%s: %s", weir_status_name(err.code), err.message);
    assert_non_null(m);
    return m;
}

/* Opening must fail with this status and a message that contains the phrase; nothing may be left behind. */
static inline void open_fails(const char *path, weir_status status, const char *phrase)
{
    weir_error err = {0};
    base_env *env = new_env();
    fmt_model *m = NULL;
    weir_status s = fmt_model_open(env, path, &m, &err);
    if (s != status || err.code != status || strstr(err.message, phrase) == NULL || m != NULL)
        fail_msg("%s: wanted %s with \"%s\", got %s: %s", path, weir_status_name(status), phrase,
                 weir_status_name(s), s == WEIR_OK ? "" : err.message);
    uint64_t peak = end_env(env);
    assert_true(peak < 2u << 20);
}

/* Reads everything that an open model offers; its promises about tensors must hold. */
static inline void walk_model(base_env *env, const fmt_model *m)
{
    weir_error err = {0};
    for (uint64_t i = 0; i < fmt_model_n_values(m); i++) {
        const fmt_value *v = fmt_model_value(m, i);
        assert_ptr_equal(fmt_model_find_value(m, v->key), v);
        if (v->type == FMT_STRING) assert_int_equal(strlen(v->v.str.data), v->v.str.len);
        if (v->type != FMT_ARRAY) continue;
        fmt_array *a = NULL;
        assert_int_equal(fmt_array_open(env, m, v, &a, &err), WEIR_OK);
        for (uint64_t k = 0; k < v->v.array.count && v->v.array.type != FMT_ARRAY; k++) {
            const char *data;
            uint64_t len;
            double d;
            if (v->v.array.type == FMT_STRING)
                assert_int_equal(fmt_array_next_str(a, &data, &len, &err), WEIR_OK);
            else
                assert_int_equal(fmt_array_next_f64(a, &d, &err), WEIR_OK);
        }
        fmt_array_close(a);
    }
    for (uint64_t i = 0; i < fmt_model_n_tensors(m); i++) {
        const fmt_tensor *t = fmt_model_tensor(m, i);
        assert_ptr_equal(fmt_model_find_tensor(m, t->name), t);
        assert_true(t->n_dims >= 1 && t->n_dims <= FMT_MAX_DIMS);
        uint64_t rows = 1, row;
        for (uint32_t k = 1; k < FMT_MAX_DIMS; k++) rows *= t->dims[k];
        assert_true(base_dtype_row_bytes(t->dtype, t->dims[0], &row));
        assert_int_equal(t->bytes, row * rows);
        assert_true(t->bytes > 0);
        assert_true(t->offset + t->bytes <= base_file_size(fmt_model_file(m, t->file)));
    }
}

static inline const char *real_model(const char *name)
{
    static char path[1024];
    const char *dir = getenv("WEIR_MODELS"), *home = getenv("HOME");
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, name);
    else
        snprintf(path, sizeof path, "%s/.cache/weir/models/%s", home != NULL ? home : "", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

/* A small valid file: every metadata type, nested arrays, three tensors. */
static inline void put_small_model(image *m, uint32_t version)
{
    put_head(m, version, 3, 19);
    put_kv_text(m, "general.architecture", "llama");
    put_key(m, "t.u8", FMT_U8), put_le(m, 200, 1);
    put_key(m, "t.i8", FMT_I8), put_le(m, (uint8_t)-100, 1);
    put_key(m, "t.u16", FMT_U16), put_le(m, 60000, 2);
    put_key(m, "t.i16", FMT_I16), put_le(m, (uint16_t)-30000, 2);
    put_kv_u32(m, "t.u32", 4000000000u);
    put_key(m, "t.i32", FMT_I32), put_le(m, (uint32_t)-2000000000, 4);
    put_key(m, "t.f32", FMT_F32), put_le(m, 0x3fc00000, 4); /* 1.5 */
    put_key(m, "t.bool", FMT_BOOL), put_le(m, 1, 1);
    put_kv_text(m, "t.string", "gr\xc3\xbc\xc3\x9f\n");
    put_key(m, "t.u64", FMT_U64), put_u64(m, UINT64_C(18000000000000000000));
    put_key(m, "t.i64", FMT_I64), put_u64(m, (uint64_t)-INT64_C(9000000000000000000));
    put_key(m, "t.f64", FMT_F64), put_u64(m, UINT64_C(0xc004000000000000)); /* -2.5 */
    put_key(m, "a.i16", FMT_ARRAY), put_u32(m, FMT_I16), put_u64(m, 3);
    put_le(m, 1, 2), put_le(m, (uint16_t)-2, 2), put_le(m, 3, 2);
    put_key(m, "a.string", FMT_ARRAY), put_u32(m, FMT_STRING), put_u64(m, 3);
    put_text(m, "alpha"), put_text(m, ""), put_text(m, "gamma");
    put_key(m, "a.bool", FMT_ARRAY), put_u32(m, FMT_BOOL), put_u64(m, 2), put_le(m, 1, 1), put_le(m, 0, 1);
    put_key(m, "a.nested", FMT_ARRAY), put_u32(m, FMT_ARRAY), put_u64(m, 2);
    put_u32(m, FMT_U8), put_u64(m, 2), put_le(m, 7, 1), put_le(m, 8, 1);
    put_u32(m, FMT_STRING), put_u64(m, 1), put_text(m, "in");
    put_key(m, "a.empty", FMT_ARRAY), put_u32(m, FMT_F32), put_u64(m, 0);
    put_kv_u32(m, "general.alignment", 64);
    put_entry(m, "a.weight", 2, (uint64_t[]){32, 2}, BASE_Q8_0, 0);    /* 68 bytes */
    put_entry(m, "b.weight", 1, (uint64_t[]){5}, BASE_F32, 128);       /* 20 */
    put_entry(m, "c.weight", 3, (uint64_t[]){2, 3, 1}, BASE_F16, 192); /* 12 */
    put_data(m, 64, 192 + 12);
}

#endif
