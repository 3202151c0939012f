/* One GGUF file: header, metadata, tensor table. Everything that the file claims is compared with the file
 * before it is believed; arrays are walked once and stay in the file. */
#include "fmt_gguf.h"

#include <inttypes.h>
#include <string.h>

#define MAX_KEY_BYTES   65535u
#define MAX_ARRAY_DEPTH 4u
/* The shortest possible metadata pair (length, one character, type, one byte) and tensor entry (length, one
 * character, dimension count, one dimension, type, offset). */
#define MIN_VALUE_BYTES  (8u + 1u + 4u + 1u)
#define MIN_TENSOR_BYTES (8u + 1u + 4u + 8u + 4u + 8u)

typedef struct part {
    fmt_model *m;
    uint32_t file;
    const char *path;
    fmt_reader r;
    fmt_values *values;
    fmt_arena *arena;
    uint32_t version;
    uint64_t n_tensors;
    uint64_t n_values;
    fmt_pack pack;
} part;

static weir_status read_header(part *p, weir_error *err)
{
    const char *magic;
    uint32_t version;
    weir_status s = fmt_reader_take(&p->r, 4, &magic, "the magic", err);
    if (s != WEIR_OK) return s;
    bool swapped = memcmp(magic, "FUGG", 4) == 0;
    if (!swapped && memcmp(magic, "GGUF", 4) != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: at offset 0 there is no \"GGUF\": not a GGUF file, or damaged", p->path);
    s = fmt_reader_u32(&p->r, &version, "the version", err);
    if (s != WEIR_OK) return s;
    if (swapped || (version != 0 && (version & 0xffff) == 0))
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: a big-endian GGUF file (version field at offset 4); get the little-endian one",
                         p->path);
    if (version != 2 && version != 3)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: GGUF version %u (at offset 4), wanted 2 or 3; get or convert the model anew",
                         p->path, version);
    p->version = version;
    if ((s = fmt_reader_u64(&p->r, &p->n_tensors, "the tensor count", err)) != WEIR_OK) return s;
    if ((s = fmt_reader_u64(&p->r, &p->n_values, "the metadata count", err)) != WEIR_OK) return s;
    uint64_t a, b, need;
    if (!base_mul(p->n_tensors, MIN_TENSOR_BYTES, &a) || !base_mul(p->n_values, MIN_VALUE_BYTES, &b) ||
        !base_add(a, b, &need))
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: %" PRIu64 " tensors and %" PRIu64
                         " metadata pairs (counts at offset 8): the sizes overflow",
                         p->path, p->n_tensors, p->n_values);
    if (need > fmt_reader_left(&p->r))
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: %" PRIu64 " tensors and %" PRIu64
                         " metadata pairs (counts at offset 8) need at least %" PRIu64 " bytes, but %" PRIu64
                         " follow: the download is incomplete or the file is damaged",
                         p->path, p->n_tensors, p->n_values, need, fmt_reader_left(&p->r));
    return WEIR_OK;
}

/* A length and that many bytes, which are in *data until the next read. */
static weir_status read_string(part *p, uint64_t max, const char *what, const char **data, size_t *len,
                               weir_error *err)
{
    uint64_t n, at = fmt_reader_pos(&p->r);
    weir_status s = fmt_reader_u64(&p->r, &n, what, err);
    if (s != WEIR_OK) return s;
    if ((s = fmt_reader_need(&p->r, n, what, err)) != WEIR_OK) return s;
    if (n > max)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: %s at offset %" PRIu64 " has %" PRIu64 " bytes, at most %" PRIu64
                         " are supported",
                         p->path, what, at, n, max);
    s = fmt_reader_take(&p->r, (size_t)n, data, what, err);
    *len = (size_t)n;
    return s;
}

/* As read_string, for what becomes a C string and part of messages; copied into the arena. */
static weir_status read_name(part *p, uint64_t max, const char *what, const char **out, weir_error *err)
{
    const char *data = NULL;
    size_t len = 0;
    uint64_t at = fmt_reader_pos(&p->r);
    weir_status s = read_string(p, max, what, &data, &len, err);
    if (s != WEIR_OK) return s;
    if (len == 0)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: %s at offset %" PRIu64 " is empty", p->path, what, at);
    if (!fmt_name_is_clean(data, len))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: %s at offset %" PRIu64 " has control characters", p->path,
                         what, at);
    *out = fmt_arena_copy(p->m->env, p->arena, data, len, err);
    return *out == NULL ? base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", p->path) : WEIR_OK;
}

static weir_status check_bools(part *p, const char *key, uint64_t count, weir_error *err)
{
    while (count > 0) {
        size_t n = (size_t)base_min(count, 4096);
        const char *b;
        uint64_t at = fmt_reader_pos(&p->r);
        weir_status s = fmt_reader_take(&p->r, n, &b, "an array of bools", err);
        if (s != WEIR_OK) return s;
        for (size_t i = 0; i < n; i++)
            if (b[i] != 0 && b[i] != 1)
                return base_fail(err, WEIR_ERR_FORMAT,
                                 "%s: metadata key \"%.200s\": byte %u at offset %" PRIu64
                                 " is no bool (0 or 1)",
                                 p->path, key, (unsigned char)b[i], at + i);
        count -= n;
    }
    return WEIR_OK;
}

/* Passes an array's elements, nested ones included. */
static weir_status walk_array(part *p, const char *key, unsigned depth, uint32_t *type, uint64_t *count,
                              uint64_t *begin, weir_error *err)
{
    uint64_t at = fmt_reader_pos(&p->r), bytes;
    weir_status s = fmt_reader_u32(&p->r, type, "an array's element type", err);
    if (s != WEIR_OK) return s;
    if ((s = fmt_reader_u64(&p->r, count, "an array's length", err)) != WEIR_OK) return s;
    *begin = fmt_reader_pos(&p->r);
    if (*type > FMT_F64)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: metadata key \"%.200s\": unknown element type %u at offset %" PRIu64, p->path,
                         key, *type, at);
    if (depth > MAX_ARRAY_DEPTH)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: metadata key \"%.200s\": arrays nested more than %u deep at offset %" PRIu64,
                         p->path, key, MAX_ARRAY_DEPTH, at);
    uint32_t each = *type == FMT_STRING ? 8 : *type == FMT_ARRAY ? 12 : fmt_type_bytes(*type);
    if (!base_mul(*count, each, &bytes))
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%.200s\": an array of %" PRIu64 " elements at offset %" PRIu64
                         ": its size overflows",
                         p->path, key, *count, at);
    if ((s = fmt_reader_need(&p->r, bytes, "an array", err)) != WEIR_OK) return s;
    if (*type == FMT_BOOL) return check_bools(p, key, *count, err);
    if (*type != FMT_STRING && *type != FMT_ARRAY) return fmt_reader_skip(&p->r, bytes, "an array", err);
    for (uint64_t i = 0; i < *count && s == WEIR_OK; i++) {
        const char *data;
        size_t len;
        uint32_t inner_type;
        uint64_t inner_count, inner_begin;
        if (*type == FMT_STRING)
            s = read_string(p, FMT_STRING_MAX, "a string in an array", &data, &len, err);
        else
            s = walk_array(p, key, depth + 1, &inner_type, &inner_count, &inner_begin, err);
    }
    return s;
}

static weir_status read_array(part *p, fmt_value *v, weir_error *err)
{
    uint32_t type;
    uint64_t count, begin;
    weir_status s = walk_array(p, v->key, 1, &type, &count, &begin, err);
    if (s != WEIR_OK) return s;
    v->v.array.type = (fmt_type)type;
    v->v.array.count = count;
    v->v.array.file = p->file;
    v->v.array.offset = begin;
    v->v.array.bytes = fmt_reader_pos(&p->r) - begin;
    return WEIR_OK;
}

static weir_status read_text(part *p, fmt_value *v, weir_error *err)
{
    const char *data = NULL;
    size_t len = 0;
    uint64_t at = fmt_reader_pos(&p->r);
    weir_status s = read_string(p, FMT_STRING_MAX, "a metadata string", &data, &len, err);
    if (s != WEIR_OK) return base_fail_context(err, s, "metadata key \"%.200s\"", v->key);
    /* It will be used as a C string; one that ends early would be seen differently by different readers. */
    if (memchr(data, 0, len) != NULL)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: metadata key \"%.200s\": a NUL byte in the string at offset %" PRIu64, p->path,
                         v->key, at);
    v->v.str.len = len;
    v->v.str.data = fmt_arena_copy(p->m->env, p->arena, data, len, err);
    return v->v.str.data == NULL ? base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", p->path) : WEIR_OK;
}

static weir_status read_scalar(part *p, fmt_value *v, weir_error *err)
{
    const char *b;
    uint32_t n = fmt_type_bytes(v->type);
    uint64_t at = fmt_reader_pos(&p->r);
    weir_status s = fmt_reader_take(&p->r, n, &b, "a metadata value", err);
    if (s != WEIR_OK) return base_fail_context(err, s, "metadata key \"%.200s\"", v->key);
    uint64_t u = fmt_le(b, n);
    switch (v->type) {
    case FMT_I8: v->v.i = (int8_t)u; break;
    case FMT_I16: v->v.i = (int16_t)u; break;
    case FMT_I32: v->v.i = (int32_t)u; break;
    case FMT_F32: {
        float f;
        uint32_t bits = (uint32_t)u;
        memcpy(&f, &bits, sizeof f);
        v->v.f = f;
        break;
    }
    case FMT_F64: memcpy(&v->v.f, &u, sizeof u); break;
    case FMT_BOOL:
        if (u > 1)
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: metadata key \"%.200s\": byte %u at offset %" PRIu64 " is no bool (0 or 1)",
                             p->path, v->key, (unsigned)u, at);
        v->v.u = u;
        break;
    default: v->v.u = u; break; /* unsigned, and i64 with the same bits */
    }
    return WEIR_OK;
}

static weir_status read_value(part *p, weir_error *err)
{
    fmt_value v = {0};
    uint32_t type;
    weir_status s = read_name(p, MAX_KEY_BYTES, "a metadata key", &v.key, err);
    if (s != WEIR_OK) return s;
    uint64_t at = fmt_reader_pos(&p->r);
    if ((s = fmt_reader_u32(&p->r, &type, "a metadata type", err)) != WEIR_OK) return s;
    if (type > FMT_F64)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: metadata key \"%.200s\": unknown type %u at offset %" PRIu64, p->path, v.key,
                         type, at);
    v.type = (fmt_type)type;
    if (v.type == FMT_ARRAY)
        s = read_array(p, &v, err);
    else if (v.type == FMT_STRING)
        s = read_text(p, &v, err);
    else
        s = read_scalar(p, &v, err);
    return s == WEIR_OK ? fmt_values_add(p->m->env, p->values, &v, p->path, err) : s;
}

static weir_status find_alignment(const part *p, uint64_t *out, weir_error *err)
{
    *out = FMT_GGUF_ALIGNMENT;
    const fmt_value *v = fmt_values_find(p->values, "general.alignment");
    if (v == NULL) return WEIR_OK;
    if (v->type != FMT_U32)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: general.alignment is of type %s, wanted u32", p->path,
                         fmt_type_name(v->type));
    uint64_t a = v->v.u;
    if (a < 8 || a > 65536 || (a & (a - 1)) != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: general.alignment is %" PRIu64 ", wanted a power of two, 8 to 65536", p->path,
                         a);
    *out = a;
    return WEIR_OK;
}

/* One entry of the tensor table. Its offset stays relative until the table's end, and with it the data's
 * start, is known. */
static weir_status read_tensor(part *p, uint64_t alignment, weir_error *err)
{
    fmt_tensor t = {.dims = {1, 1, 1, 1}, .file = p->file};
    uint64_t at = fmt_reader_pos(&p->r);
    weir_status s = read_name(p, FMT_MAX_NAME, "a tensor's name", &t.name, err);
    if (s != WEIR_OK) return s;
    t.file_name = t.name;
    if ((s = fmt_reader_u32(&p->r, &t.n_dims, "a dimension count", err)) != WEIR_OK) return s;
    if (t.n_dims == 0 || t.n_dims > FMT_MAX_DIMS)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                         ") has %u dimensions, wanted 1 to %d",
                         p->path, t.name, at, t.n_dims, FMT_MAX_DIMS);
    for (uint32_t i = 0; i < t.n_dims; i++)
        if ((s = fmt_reader_u64(&p->r, &t.dims[i], "a dimension", err)) != WEIR_OK) return s;
    if ((s = fmt_reader_u32(&p->r, &t.dtype, "a tensor's type", err)) != WEIR_OK) return s;
    if ((s = fmt_reader_u64(&p->r, &t.offset, "a tensor's offset", err)) != WEIR_OK) return s;
    if ((s = fmt_pack_entry(&p->pack, &t, p->path, at, err)) != WEIR_OK) return s;
    if ((s = fmt_tensor_size(&t, p->path, at, err)) != WEIR_OK) return s;
    if ((s = fmt_pack_check_tensor(&t, p->path, at, err)) != WEIR_OK) return s;
    if (t.offset % alignment != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): its data offset %" PRIu64
                         " is no multiple of the alignment %" PRIu64,
                         p->path, t.name, at, t.offset, alignment);
    return fmt_tensors_add(p->m->env, &p->m->tensors, &t, p->path, err);
}

/* Makes offsets absolute; every extent must lie in the file and overlap no other. */
static weir_status place_tensors(part *p, uint32_t first, uint64_t alignment, weir_error *err)
{
    uint64_t size = p->r.end;
    uint64_t start = base_align_up(fmt_reader_pos(&p->r), alignment);
    fmt_tensors *l = &p->m->tensors;
    for (uint32_t i = first; i < l->n; i++) {
        fmt_tensor *t = &l->items[i];
        uint64_t begin, end;
        if (!base_add(start, t->offset, &begin) || !base_add(begin, t->bytes, &end))
            return base_fail(err, WEIR_ERR_FORMAT, "%s: tensor \"%.200s\": data offset %" PRIu64 " overflows",
                             p->path, t->name, t->offset);
        if (end > size)
            return base_fail(err, WEIR_ERR_TRUNCATED,
                             "%s: tensor \"%.200s\" needs bytes %" PRIu64 " to %" PRIu64
                             ", but the file has %" PRIu64
                             " bytes: the download is incomplete or the file is damaged",
                             p->path, t->name, begin, end, size);
        t->offset = begin;
    }
    return fmt_tensors_check_extents(p->m->env, l, first, false, 0, size, p->path, err);
}

weir_status fmt_gguf_part(fmt_model *m, uint32_t file, fmt_values *values, fmt_arena *arena,
                          uint32_t *version, bool *packed, weir_error *err)
{
    base_file *f = m->files[file];
    part p = {.m = m, .file = file, .path = base_file_path(f), .values = values, .arena = arena};
    uint32_t first = m->tensors.n;
    uint64_t alignment = 0;
    weir_status s = fmt_reader_init(&p.r, m->env, f, 0, base_file_size(f), FMT_READER_BYTES, err);
    if (s != WEIR_OK) return s;
    s = read_header(&p, err);
    for (uint64_t i = 0; s == WEIR_OK && i < p.n_values; i++) s = read_value(&p, err);
    if (s == WEIR_OK) s = find_alignment(&p, &alignment, err);
    if (s == WEIR_OK) s = fmt_pack_read(&p.pack, values, alignment, p.path, err);
    /* Tensor names live as long as the model, whatever becomes of this part's metadata. */
    p.arena = &m->arena;
    for (uint64_t i = 0; s == WEIR_OK && i < p.n_tensors; i++) s = read_tensor(&p, alignment, err);
    if (s == WEIR_OK) s = fmt_pack_check_digest(&p.pack, p.path, err);
    if (s == WEIR_OK) s = place_tensors(&p, first, alignment, err);
    *version = p.version;
    *packed = p.pack.packed;
    fmt_reader_finish(&p.r);
    return s;
}
