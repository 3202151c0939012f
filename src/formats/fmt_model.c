/* The model descriptor: opening by what the path shows, look-ups, typed reads. The parsers are in
 * fmt_gguf*.c, fmt_safetensors.c, fmt_shards.c and fmt_hf_*.c. */
#include "fmt_gguf.h"
#include "fmt_safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

weir_status fmt_model_add_file(fmt_model *m, const char *path, weir_error *err)
{
    if (m->n_files == FMT_MAX_FILES)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: more than %u files in one model", path,
                         FMT_MAX_FILES);
    if (m->n_files == m->cap_files) {
        uint32_t cap = m->cap_files == 0 ? 1 : m->cap_files * 2;
        void *p = base_realloc(m->env, BASE_TAG_METADATA, m->files, cap * sizeof *m->files, err);
        if (p == NULL) return err->code;
        m->files = p;
        m->cap_files = cap;
    }
    base_file *f;
    weir_status s = base_file_open(m->env, path, &f, err);
    if (s != WEIR_OK) return s;
    m->files[m->n_files++] = f;
    return WEIR_OK;
}

/* What a file's first bytes say it is. */
static weir_status open_by_content(fmt_model *m, const char *path, weir_error *err)
{
    weir_status s = fmt_model_add_file(m, path, err);
    if (s != WEIR_OK) return s;
    base_file *f = m->files[0];
    char head[9] = {0};
    size_t n = (size_t)base_min(sizeof head, base_file_size(f));
    s = base_file_read(f, 0, head, n, err);
    if (s != WEIR_OK) return s;
    if (n >= 4 && (memcmp(head, "GGUF", 4) == 0 || memcmp(head, "FUGG", 4) == 0))
        return fmt_gguf_open(m, err);
    if (fmt_path_ends(path, ".gguf") && n < 4 && memcmp(head, "GGUF", n) == 0)
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: %zu bytes are no GGUF file: the download is incomplete", path, n);
    if (n >= 4 && (memcmp(head, "ggml", 4) == 0 || memcmp(head, "lmgg", 4) == 0 ||
                   memcmp(head, "tjgg", 4) == 0 || memcmp(head, "fmgg", 4) == 0))
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: a model in the old format before GGUF; get or convert it as GGUF", path);
    if (fmt_path_ends(path, ".safetensors") || head[8] == '{') return fmt_safetensors_open(m, path, err);
    return base_fail(
        err, WEIR_ERR_FORMAT,
        "%s: at offset 0 neither \"GGUF\" nor the header of a safetensors file: not a model, or damaged",
        path);
}

static weir_status open_any(fmt_model *m, const char *path, weir_error *err)
{
    if (fmt_path_ends(path, ".index.json")) return fmt_shards_open(m, path, err);
    bool is_folder,
        is_file = base_path_is_url(path) && (strstr(path, ".gguf") || strstr(path, ".safetensors"));
    if (is_file) return open_by_content(m, path, err); /* a server need not be asked for what is not there */
    weir_status s = fmt_folder_open(m, path, &is_folder, err);
    if (s != WEIR_OK || is_folder) return s;
    return open_by_content(m, path, err);
}

weir_status fmt_model_open(base_env *env, const char *path, fmt_model **out, weir_error *err)
{
    weir_error local = {0};
    if (err == NULL) err = &local;
    *out = NULL;
    fmt_model *m = base_alloc(env, BASE_TAG_METADATA, sizeof *m, err);
    if (m == NULL) return err->code;
    m->env = env;
    base_buf_init(&m->blob, env, BASE_TAG_METADATA);
    weir_status s;
    m->path = base_strdup(env, BASE_TAG_METADATA, path, err);
    s = m->path == NULL ? err->code : open_any(m, path, err);
    if (s != WEIR_OK) {
        fmt_model_close(m);
        return s;
    }
    for (uint32_t i = 0; i < m->n_files; i++) base_file_seal(m->files[i]);
    *out = m;
    return WEIR_OK;
}

void fmt_model_close(fmt_model *m)
{
    if (m == NULL) return;
    base_env *env = m->env;
    for (uint32_t i = 0; i < m->n_files; i++) base_file_close(m->files[i]);
    base_free(env, m->files);
    fmt_values_finish(env, &m->values);
    fmt_tensors_finish(env, &m->tensors);
    fmt_arena_finish(env, &m->arena);
    base_buf_finish(&m->blob);
    base_free(env, m->dir);
    base_free(env, m->path);
    base_free(env, m);
}

const char *fmt_model_format(const fmt_model *m)
{
    return m->format;
}

bool fmt_model_is_packed(const fmt_model *m)
{
    return m->packed;
}

uint32_t fmt_model_n_files(const fmt_model *m)
{
    return m->n_files;
}

base_file *fmt_model_file(const fmt_model *m, uint32_t i)
{
    return i < m->n_files ? m->files[i] : NULL;
}

uint64_t fmt_model_n_values(const fmt_model *m)
{
    return m->values.n;
}

const fmt_value *fmt_model_value(const fmt_model *m, uint64_t i)
{
    return i < m->values.n ? &m->values.items[i] : NULL;
}

const fmt_value *fmt_model_find_value(const fmt_model *m, const char *key)
{
    return fmt_values_find(&m->values, key);
}

uint64_t fmt_model_n_tensors(const fmt_model *m)
{
    return m->tensors.n;
}

const fmt_tensor *fmt_model_tensor(const fmt_model *m, uint64_t i)
{
    return i < m->tensors.n ? &m->tensors.items[i] : NULL;
}

uint64_t fmt_model_tensor_index(const fmt_model *m, const fmt_tensor *t)
{
    return (uint64_t)(t - m->tensors.items);
}

const fmt_tensor *fmt_model_find_tensor(const fmt_model *m, const char *name)
{
    return fmt_tensors_find(&m->tensors, name);
}

const char *fmt_model_dir(const fmt_model *m)
{
    return m->dir;
}

static weir_status wrong_type(const fmt_model *m, const fmt_value *v, const char *wanted, weir_error *err)
{
    return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%s\" is of type %s, wanted %s", m->path,
                     v->key, fmt_type_name(v->type), wanted);
}

weir_status fmt_get_u64(const fmt_model *m, const char *key, uint64_t fallback, uint64_t min, uint64_t max,
                        uint64_t *out, weir_error *err)
{
    const fmt_value *v = fmt_model_find_value(m, key);
    if (v == NULL) {
        *out = fallback;
        return WEIR_OK;
    }
    bool negative = false;
    switch (v->type) {
    case FMT_U8:
    case FMT_U16:
    case FMT_U32:
    case FMT_U64: break;
    case FMT_I8:
    case FMT_I16:
    case FMT_I32:
    case FMT_I64: negative = v->v.i < 0; break;
    default: return wrong_type(m, v, "an integer", err);
    }
    if (negative)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%s\" is %" PRId64 ", wanted %" PRIu64 " to %" PRIu64, m->path,
                         key, v->v.i, min, max);
    uint64_t u = v->v.u; /* same bits as v.i, which is not negative here */
    if (u < min || u > max)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%s\" is %" PRIu64 ", wanted %" PRIu64 " to %" PRIu64, m->path,
                         key, u, min, max);
    *out = u;
    return WEIR_OK;
}

weir_status fmt_get_f64(const fmt_model *m, const char *key, double fallback, double *out, weir_error *err)
{
    const fmt_value *v = fmt_model_find_value(m, key);
    double x = fallback;
    if (v != NULL) switch (v->type) {
        case FMT_F32:
        case FMT_F64: x = v->v.f; break;
        case FMT_U8:
        case FMT_U16:
        case FMT_U32:
        case FMT_U64: x = (double)v->v.u; break;
        case FMT_I8:
        case FMT_I16:
        case FMT_I32:
        case FMT_I64: x = (double)v->v.i; break;
        default: return wrong_type(m, v, "a number", err);
        }
    if (v != NULL && !isfinite(x))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%s\" is not a finite number", m->path,
                         key);
    *out = x;
    return WEIR_OK;
}

weir_status fmt_get_bool(const fmt_model *m, const char *key, bool fallback, bool *out, weir_error *err)
{
    const fmt_value *v = fmt_model_find_value(m, key);
    if (v != NULL && v->type != FMT_BOOL) return wrong_type(m, v, "bool", err);
    *out = v == NULL ? fallback : v->v.u != 0;
    return WEIR_OK;
}

weir_status fmt_get_text(const fmt_model *m, const char *key, const char **out, weir_error *err)
{
    const fmt_value *v = fmt_model_find_value(m, key);
    if (v != NULL && v->type != FMT_STRING) return wrong_type(m, v, "string", err);
    *out = v == NULL ? NULL : v->v.str.data;
    return WEIR_OK;
}

const char *fmt_get_str(const fmt_model *m, const char *key)
{
    const fmt_value *v = fmt_model_find_value(m, key);
    return v != NULL && v->type == FMT_STRING ? v->v.str.data : NULL;
}
