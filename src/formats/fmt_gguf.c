/* Opening a GGUF model of one or more files. Parts of a split model are named PREFIX-00001-of-0000N.gguf and
 * say so in split.no (from 0) and split.count; the first holds all metadata. */
#include "fmt_gguf.h"

#include <inttypes.h>
#include <string.h>

#define SUFFIX_BYTES (sizeof "-00001-of-00001.gguf" - 1)

static bool read_digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

/* Takes "-00002-of-00007.gguf" apart; false when the name does not end like that. */
static bool split_name(const char *path, size_t *prefix, uint32_t *no, uint32_t *count)
{
    size_t n = strlen(path);
    if (n <= SUFFIX_BYTES) return false;
    const char *p = path + n - SUFFIX_BYTES;
    *prefix = n - SUFFIX_BYTES;
    return p[0] == '-' && read_digits(p + 1, no) && memcmp(p + 6, "-of-", 4) == 0 &&
           read_digits(p + 10, count) && memcmp(p + 15, ".gguf", 5) == 0 && *no >= 1 && *no <= *count;
}

/* An integer key that describes the split; `absent` when it is not there. */
static weir_status split_value(const fmt_values *l, const char *path, const char *key, uint64_t absent,
                               uint64_t *out, weir_error *err)
{
    const fmt_value *v = fmt_values_find(l, key);
    *out = absent;
    if (v == NULL) return WEIR_OK;
    bool is_signed = v->type == FMT_I8 || v->type == FMT_I16 || v->type == FMT_I32 || v->type == FMT_I64;
    bool is_unsigned = v->type == FMT_U8 || v->type == FMT_U16 || v->type == FMT_U32 || v->type == FMT_U64;
    if ((!is_signed && !is_unsigned) || (is_signed && v->v.i < 0))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%s\" is no count", path, key);
    *out = v->v.u;
    return WEIR_OK;
}

static weir_status check_part(const fmt_values *l, const char *path, uint64_t no, uint64_t count,
                              weir_error *err)
{
    uint64_t has_no, has_count;
    weir_status s = split_value(l, path, "split.no", UINT64_MAX, &has_no, err);
    if (s == WEIR_OK) s = split_value(l, path, "split.count", 0, &has_count, err);
    if (s != WEIR_OK) return s;
    if (has_count != count)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: split.count is %" PRIu64 ", wanted %" PRIu64
                         " as in the other parts: the parts do not belong "
                         "together",
                         path, has_count, count);
    if (has_no != no)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: split.no says that this is part %" PRIu64
                         " (from 0), but its name says %" PRIu64 ": the parts are misnamed",
                         path, has_no, no);
    return WEIR_OK;
}

static weir_status fail_packed_part(const char *path, weir_error *err)
{
    return base_fail(
        err, WEIR_ERR_FORMAT,
        "%s: a packed file that is part of a split model: packing writes one file; pack it again "
        "from the original",
        path);
}

/* Parts 2..count: their metadata is checked and dropped, their tensors stay. */
static weir_status add_parts(fmt_model *m, const char *path, size_t prefix, uint32_t count, weir_error *err)
{
    for (uint32_t no = 1; no < count; no++) {
        fmt_values values = {0};
        fmt_arena arena = {0};
        uint32_t version;
        bool packed;
        base_buf name;
        base_buf_init(&name, m->env, BASE_TAG_METADATA);
        weir_status s =
            base_buf_printf(&name, err, "%.*s-%05u-of-%05u.gguf", (int)prefix, path, no + 1, count);
        if (s == WEIR_OK) {
            s = fmt_model_add_file(m, name.data, err);
            if (s != WEIR_OK) s = base_fail_context(err, s, "part %u of %u of a split model", no + 1, count);
        }
        if (s == WEIR_OK) s = fmt_gguf_part(m, no, &values, &arena, &version, &packed, err);
        if (s == WEIR_OK && packed) s = fail_packed_part(name.data, err);
        if (s == WEIR_OK) s = check_part(&values, name.data, no, count, err);
        base_buf_finish(&name);
        fmt_values_finish(m->env, &values);
        fmt_arena_finish(m->env, &arena);
        if (s != WEIR_OK) return s;
    }
    return WEIR_OK;
}

static weir_status open_split(fmt_model *m, uint64_t count, weir_error *err)
{
    size_t prefix;
    uint32_t no, name_count;
    const char *path = m->path;
    if (count > FMT_MAX_FILES)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: split.count is %" PRIu64 ", at most %u parts are supported", path, count,
                         FMT_MAX_FILES);
    if (!split_name(path, &prefix, &no, &name_count) || name_count != count)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: one of %" PRIu64
                         " parts of a split model, but its name does not end in -00001-of-%05" PRIu64
                         ".gguf, so that the others cannot be found; give it back its name",
                         path, count, count);
    weir_status s = check_part(&m->values, base_file_path(m->files[0]), 0, count, err);
    if (s == WEIR_OK) s = add_parts(m, path, prefix, name_count, err);
    uint64_t total = 0;
    if (s == WEIR_OK) s = split_value(&m->values, path, "split.tensors.count", m->tensors.n, &total, err);
    if (s == WEIR_OK && total != m->tensors.n)
        s = base_fail(err, WEIR_ERR_FORMAT,
                      "%s: split.tensors.count is %" PRIu64 ", but the %" PRIu64 " parts hold %u tensors",
                      path, total, count, m->tensors.n);
    return s;
}

/* When a later part was named, file 0 becomes the first part instead. *moved tells. */
static weir_status start_at_first_part(fmt_model *m, bool *moved, weir_error *err)
{
    size_t prefix;
    uint32_t no, count;
    *moved = false;
    if (!split_name(m->path, &prefix, &no, &count) || no == 1) return WEIR_OK;
    base_buf name;
    base_buf_init(&name, m->env, BASE_TAG_METADATA);
    weir_status s = base_buf_printf(&name, err, "%.*s-%05u-of-%05u.gguf", (int)prefix, m->path, 1u, count);
    if (s == WEIR_OK) {
        base_file_close(m->files[0]);
        m->n_files = 0;
        s = fmt_model_add_file(m, name.data, err);
        if (s != WEIR_OK) s = base_fail_context(err, s, "part 1 of %u of a split model", count);
    }
    base_buf_finish(&name);
    *moved = s == WEIR_OK;
    return s;
}

weir_status fmt_gguf_open(fmt_model *m, weir_error *err)
{
    bool moved;
    uint32_t version;
    uint64_t count;
    weir_status s = start_at_first_part(m, &moved, err);
    if (s == WEIR_OK) s = fmt_gguf_part(m, 0, &m->values, &m->arena, &version, &m->packed, err);
    if (s != WEIR_OK) return s;
    m->format = version == 2 ? "GGUF v2" : "GGUF v3";
    if (m->packed) m->format = version == 2 ? "GGUF v2 packed" : "GGUF v3 packed";
    s = split_value(&m->values, m->path, "split.count", 0, &count, err);
    if (s != WEIR_OK) return s;
    if (count > 1 && m->packed) return fail_packed_part(m->path, err);
    if (count > 1) return open_split(m, count, err);
    if (moved)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: the name is that of a later part of a split model, but the first part, %s, has "
                         "no split.count",
                         m->path, base_file_path(m->files[0]));
    return WEIR_OK;
}
