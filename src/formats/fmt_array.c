/* Reading an array value in order, from the file or, for translated metadata, from memory. The range was
 * walked when the model was opened; base reports a file that changed since, and lengths are compared with
 * the range again. */
#include "fmt_reader.h"
#include "fmt_store.h"

#include <math.h>
#include <string.h>

#define ARRAY_BUFFER_BYTES (32u * 1024)

struct fmt_array {
    base_env *env;
    fmt_reader r;
    const char *key;
    fmt_type type;
    uint64_t left;
};

weir_status fmt_array_open(base_env *env, const fmt_model *m, const fmt_value *value, fmt_array **out,
                           weir_error *err)
{
    *out = NULL;
    if (value->type != FMT_ARRAY)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%.200s\" is of type %s, wanted an array",
                         m->path, value->key, fmt_type_name(value->type));
    weir_error local = {0};
    if (err == NULL) err = &local;
    fmt_array *a = base_alloc(env, BASE_TAG_METADATA, sizeof *a, err);
    if (a == NULL) return err->code;
    a->env = env;
    a->key = value->key;
    a->type = value->v.array.type;
    a->left = value->v.array.count;
    uint64_t offset = value->v.array.offset, bytes = value->v.array.bytes;
    weir_status s = WEIR_OK;
    if (value->v.array.file == FMT_FILE_MEMORY)
        fmt_reader_init_memory(&a->r, bytes == 0 ? "" : m->blob.data + offset, (size_t)bytes);
    else
        s = fmt_reader_init(&a->r, env, m->files[value->v.array.file], offset, offset + bytes,
                            ARRAY_BUFFER_BYTES, err);
    if (s != WEIR_OK) {
        base_free(env, a);
        return s;
    }
    a->r.range = "the array";
    *out = a;
    return WEIR_OK;
}

void fmt_array_close(fmt_array *a)
{
    if (a == NULL) return;
    fmt_reader_finish(&a->r);
    base_free(a->env, a);
}

/* The next number's type and raw bytes. */
static weir_status next_number(fmt_array *a, uint64_t *raw, weir_error *err)
{
    uint32_t n = fmt_type_bytes(a->type);
    const char *p;
    if (a->left == 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "array \"%.200s\" was read past its end", a->key);
    if (n == 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%.200s\" is an array of %s, wanted numbers",
                         fmt_reader_path(&a->r), a->key, fmt_type_name(a->type));
    weir_status s = fmt_reader_take(&a->r, n, &p, "an array's element", err);
    if (s != WEIR_OK) return s;
    *raw = fmt_le(p, n);
    a->left--;
    return WEIR_OK;
}

static int64_t as_signed(fmt_type type, uint64_t raw)
{
    switch (type) {
    case FMT_I8: return (int8_t)raw;
    case FMT_I16: return (int16_t)raw;
    case FMT_I32: return (int32_t)raw;
    default: return (int64_t)raw;
    }
}

static double as_double(fmt_type type, uint64_t raw)
{
    float f;
    double d;
    uint32_t bits = (uint32_t)raw;
    switch (type) {
    case FMT_F32: memcpy(&f, &bits, sizeof f); return f;
    case FMT_F64: memcpy(&d, &raw, sizeof d); return d;
    case FMT_U64: return (double)raw;
    default: return (double)as_signed(type, raw);
    }
}

weir_status fmt_array_next_f64(fmt_array *a, double *out, weir_error *err)
{
    uint64_t raw;
    weir_status s = next_number(a, &raw, err);
    if (s == WEIR_OK) *out = as_double(a->type, raw);
    return s;
}

weir_status fmt_array_next_i64(fmt_array *a, int64_t *out, weir_error *err)
{
    uint64_t raw;
    weir_status s = next_number(a, &raw, err);
    if (s != WEIR_OK) return s;
    if (a->type == FMT_F32 || a->type == FMT_F64) {
        double d = as_double(a->type, raw);
        if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || d != floor(d))
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: metadata key \"%.200s\": element %g is no whole number",
                             fmt_reader_path(&a->r), a->key, d);
        *out = (int64_t)d;
        return WEIR_OK;
    }
    if (a->type == FMT_U64 && raw > INT64_MAX)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%.200s\": an element exceeds 2^63 - 1",
                         fmt_reader_path(&a->r), a->key);
    *out = as_signed(a->type, raw);
    return WEIR_OK;
}

weir_status fmt_array_next_str(fmt_array *a, const char **data, uint64_t *len, weir_error *err)
{
    if (a->left == 0)
        return base_fail(err, WEIR_ERR_INTERNAL, "array \"%.200s\" was read past its end", a->key);
    if (a->type != FMT_STRING)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%.200s\" is an array of %s, wanted strings",
                         fmt_reader_path(&a->r), a->key, fmt_type_name(a->type));
    weir_status s = fmt_reader_u64(&a->r, len, "a string's length", err);
    if (s != WEIR_OK) return s;
    if ((s = fmt_reader_need(&a->r, *len, "a string in an array", err)) != WEIR_OK) return s;
    if (*len > FMT_STRING_MAX)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%.200s\": a string longer than 1 MiB",
                         fmt_reader_path(&a->r), a->key);
    s = fmt_reader_take(&a->r, (size_t)*len, data, "a string in an array", err);
    if (s == WEIR_OK) a->left--;
    return s;
}
