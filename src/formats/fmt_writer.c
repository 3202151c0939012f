/* Writing model files. Metadata and the tensor table are collected in memory, since both formats put them in
 * front and count them first; data passes straight through to the file.
 *
 *   declaring --first data, or finish--> writing (head is in the file) --finish--> done */
#include "fmt_gguf.h"
#include "fmt_writer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define ST_ALIGNMENT 8u /* the safetensors header is padded to it */

struct fmt_writer {
    base_env *env;
    fmt_writer_kind kind;
    char *path;
    base_writer *file;
    fmt_arena arena;
    fmt_values values; /* keys only: to refuse a second one */
    fmt_tensors tensors;
    base_buf pairs;   /* GGUF's metadata as it will stand in the file, less what is spliced in */
    base_buf splices; /* of writer_splice */
    uint64_t splice_bytes;
    uint64_t alignment;
    bool packed;
    size_t digest_at; /* in pairs: where the digest of the tensor table goes */
    bool writing;
    uint32_t tensor; /* whose data comes next */
    uint64_t done;   /* bytes of it that were given */
};

/* Bytes of another file that come in between the pairs. */
typedef struct writer_splice {
    size_t at; /* in pairs */
    base_file *file;
    uint64_t offset, bytes;
} writer_splice;

weir_status fmt_writer_create(base_env *env, fmt_writer_kind kind, const char *path, fmt_writer **out,
                              weir_error *err)
{
    weir_error local = {0};
    if (err == NULL) err = &local;
    *out = NULL;
    fmt_writer *w = base_alloc(env, BASE_TAG_METADATA, sizeof *w, err);
    if (w == NULL) return err->code;
    w->env = env;
    w->kind = kind;
    w->alignment = kind == FMT_WRITE_GGUF ? FMT_GGUF_ALIGNMENT : 1;
    base_buf_init(&w->pairs, env, BASE_TAG_METADATA);
    base_buf_init(&w->splices, env, BASE_TAG_METADATA);
    w->path = base_strdup(env, BASE_TAG_METADATA, path, err);
    weir_status s = w->path == NULL ? err->code : base_writer_create(env, path, &w->file, err);
    if (s != WEIR_OK) {
        fmt_writer_destroy(w);
        return s;
    }
    *out = w;
    return WEIR_OK;
}

void fmt_writer_destroy(fmt_writer *w)
{
    if (w == NULL) return;
    base_env *env = w->env;
    base_writer_destroy(w->file);
    base_buf_finish(&w->splices);
    base_buf_finish(&w->pairs);
    fmt_values_finish(env, &w->values);
    fmt_tensors_finish(env, &w->tensors);
    fmt_arena_finish(env, &w->arena);
    base_free(env, w->path);
    base_free(env, w);
}

static void store_le(unsigned char *p, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static weir_status append_le(base_buf *b, uint64_t v, size_t bytes, weir_error *err)
{
    unsigned char p[8];
    store_le(p, v, bytes);
    return base_buf_append(b, p, bytes, err);
}

static weir_status append_string(base_buf *b, const char *text, size_t len, weir_error *err)
{
    weir_status s = append_le(b, len, 8, err);
    return s == WEIR_OK ? base_buf_append(b, text, len, err) : s;
}

static weir_status check_declaring(const fmt_writer *w, const char *name, weir_error *err)
{
    if (!w->writing) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: \"%.200s\" was declared after the first data",
                     w->path, name);
}

/* Key and type of a pair; the value is appended behind it. *skip: this format has no place for it. */
static weir_status begin_pair(fmt_writer *w, const char *key, fmt_type type, bool *skip, weir_error *err)
{
    weir_status s = check_declaring(w, key, err);
    if (s != WEIR_OK) return s;
    *skip = w->kind != FMT_WRITE_GGUF;
    size_t len = strlen(key);
    if (len == 0 || len > 65535 || !fmt_name_is_clean(key, len))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: a metadata key must have 1 to 65535 bytes and no control characters", w->path);
    fmt_value v = {.type = type};
    weir_error local = {0};
    v.key = fmt_arena_copy(w->env, &w->arena, key, len, &local);
    s = v.key == NULL ? local.code : fmt_values_add(w->env, &w->values, &v, w->path, &local);
    if (s != WEIR_OK)
        return base_fail(err, s == WEIR_ERR_FORMAT ? WEIR_ERR_INVALID_ARGUMENT : s, "%s", local.message);
    if (*skip) return WEIR_OK;
    s = append_string(&w->pairs, key, len, err);
    return s == WEIR_OK ? append_le(&w->pairs, type, 4, err) : s;
}

weir_status fmt_writer_u32(fmt_writer *w, const char *key, uint32_t value, weir_error *err)
{
    bool skip;
    if (w->kind == FMT_WRITE_GGUF && strcmp(key, "general.alignment") == 0) {
        if (value < 8 || value > 65536 || (value & (value - 1)) != 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s: general.alignment %u, wanted a power of two, 8 to 65536", w->path, value);
        if (w->tensors.n > 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s: general.alignment must come before the tensors", w->path);
    }
    weir_status s = begin_pair(w, key, FMT_U32, &skip, err);
    if (s == WEIR_OK && !skip) s = append_le(&w->pairs, value, 4, err);
    if (s == WEIR_OK && !skip && strcmp(key, "general.alignment") == 0) w->alignment = value;
    return s;
}

weir_status fmt_writer_f32(fmt_writer *w, const char *key, float value, weir_error *err)
{
    bool skip;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    weir_status s = begin_pair(w, key, FMT_F32, &skip, err);
    return s == WEIR_OK && !skip ? append_le(&w->pairs, bits, 4, err) : s;
}

weir_status fmt_writer_bool(fmt_writer *w, const char *key, bool value, weir_error *err)
{
    bool skip;
    weir_status s = begin_pair(w, key, FMT_BOOL, &skip, err);
    return s == WEIR_OK && !skip ? append_le(&w->pairs, value, 1, err) : s;
}

weir_status fmt_writer_str(fmt_writer *w, const char *key, const char *value, weir_error *err)
{
    bool skip;
    if (strlen(value) > FMT_STRING_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: the string of \"%.200s\" is longer than 1 MiB",
                         w->path, key);
    weir_status s = begin_pair(w, key, FMT_STRING, &skip, err);
    return s == WEIR_OK && !skip ? append_string(&w->pairs, value, strlen(value), err) : s;
}

static weir_status begin_array(fmt_writer *w, const char *key, fmt_type type, uint64_t count, bool *skip,
                               weir_error *err)
{
    weir_status s = begin_pair(w, key, FMT_ARRAY, skip, err);
    if (s == WEIR_OK && !*skip) s = append_le(&w->pairs, type, 4, err);
    if (s == WEIR_OK && !*skip) s = append_le(&w->pairs, count, 8, err);
    return s;
}

weir_status fmt_writer_array(fmt_writer *w, const char *key, fmt_type type, uint64_t count, const void *data,
                             weir_error *err)
{
    bool skip;
    uint64_t bytes;
    if (fmt_type_bytes(type) == 0 || !base_mul(count, fmt_type_bytes(type), &bytes) || bytes > SIZE_MAX / 4)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: \"%.200s\": an array of %" PRIu64 " %s",
                         w->path, key, count, fmt_type_name(type));
    weir_status s = begin_array(w, key, type, count, &skip, err);
    return s == WEIR_OK && !skip && bytes > 0 ? base_buf_append(&w->pairs, data, (size_t)bytes, err) : s;
}

weir_status fmt_writer_str_array(fmt_writer *w, const char *key, uint64_t count, const char *const *items,
                                 const uint32_t *lens, weir_error *err)
{
    bool skip;
    weir_status s = begin_array(w, key, FMT_STRING, count, &skip, err);
    for (uint64_t i = 0; s == WEIR_OK && !skip && i < count; i++) {
        size_t len = lens != NULL ? lens[i] : strlen(items[i]);
        if (len > FMT_STRING_MAX)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s: \"%.200s\": string %" PRIu64 " is longer than 1 MiB", w->path, key, i);
        s = append_string(&w->pairs, items[i], len, err);
    }
    return s;
}

/* A scalar as it stands in a file: integers have the same bits in v.u and v.i. */
static weir_status append_scalar(base_buf *b, const fmt_value *v, weir_error *err)
{
    uint32_t bits, n = fmt_type_bytes(v->type);
    uint64_t u = v->v.u;
    float f = (float)v->v.f;
    if (v->type == FMT_F32) {
        memcpy(&bits, &f, sizeof bits);
        u = bits;
    }
    return append_le(b, u, n, err);
}

weir_status fmt_writer_copy(fmt_writer *w, const fmt_model *m, const fmt_value *v, weir_error *err)
{
    bool skip;
    if (v->type == FMT_STRING) return fmt_writer_str(w, v->key, v->v.str.data, err);
    if (v->type != FMT_ARRAY) {
        weir_status s = begin_pair(w, v->key, v->type, &skip, err);
        return s == WEIR_OK && !skip ? append_scalar(&w->pairs, v, err) : s;
    }
    writer_splice splice = {.file = fmt_model_file(m, v->v.array.file)};
    splice.offset = v->v.array.offset;
    splice.bytes = v->v.array.bytes;
    if (splice.file == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: the array \"%.200s\" is in no file", w->path,
                         v->key);
    weir_status s = begin_array(w, v->key, v->v.array.type, v->v.array.count, &skip, err);
    if (s != WEIR_OK || skip) return s;
    splice.at = w->pairs.len;
    w->splice_bytes += splice.bytes;
    return base_buf_append(&w->splices, &splice, sizeof splice, err);
}

weir_status fmt_writer_pack(fmt_writer *w, weir_error *err)
{
    bool skip;
    if (w->kind != FMT_WRITE_GGUF)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: only GGUF files can be packed", w->path);
    weir_status s = fmt_writer_u32(w, "general.alignment", FMT_PACK_ALIGNMENT, err);
    if (s == WEIR_OK) s = fmt_writer_u32(w, FMT_PACK_KEY_VERSION, FMT_PACK_VERSION, err);
    if (s == WEIR_OK) s = fmt_writer_u32(w, FMT_PACK_KEY_ROWS, FMT_PACK_ROWS, err);
    if (s == WEIR_OK) s = begin_pair(w, FMT_PACK_KEY_DIGEST, FMT_U64, &skip, err);
    w->digest_at = w->pairs.len;
    if (s == WEIR_OK) s = append_le(&w->pairs, 0, 8, err);
    w->packed = s == WEIR_OK;
    return s;
}

void fmt_writer_keep_existing(fmt_writer *w)
{
    base_writer_keep_existing(w->file);
}

static const char *safetensors_type(uint32_t dtype)
{
    switch (dtype) {
    case BASE_F32: return "F32";
    case BASE_F16: return "F16";
    case BASE_BF16: return "BF16";
    case BASE_I32: return "I32";
    default: return NULL;
    }
}

/* Where the next tensor's data goes, counted from the data's start. */
static bool next_offset(const fmt_writer *w, uint64_t *offset)
{
    uint64_t end;
    *offset = 0;
    if (w->tensors.n == 0) return true;
    const fmt_tensor *last = &w->tensors.items[w->tensors.n - 1];
    if (!base_add(last->offset, last->bytes, &end) || end > INT64_MAX - w->alignment) return false;
    *offset = base_align_up(end, w->alignment);
    return true;
}

static weir_status add_tensor(fmt_writer *w, const char *name, uint32_t dtype, bool packed, uint32_t n_dims,
                              const uint64_t *dims, weir_error *err)
{
    weir_status s = check_declaring(w, name, err);
    if (s != WEIR_OK) return s;
    size_t len = strlen(name);
    if (len == 0 || len > FMT_MAX_NAME || !fmt_name_is_clean(name, len))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: a tensor's name must have 1 to %u bytes and no control characters", w->path,
                         FMT_MAX_NAME);
    if (n_dims == 0 || n_dims > FMT_MAX_DIMS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: tensor \"%.200s\": %u dimensions, wanted 1 to %d", w->path, name, n_dims,
                         FMT_MAX_DIMS);
    if (w->kind == FMT_WRITE_SAFETENSORS && safetensors_type(dtype) == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: tensor \"%.200s\": safetensors holds F32, F16, BF16 and I32, not type id %u",
                         w->path, name, dtype);
    weir_error local = {0};
    fmt_tensor t = {.dtype = dtype, .packed = packed, .n_dims = n_dims, .dims = {1, 1, 1, 1}};
    for (uint32_t i = 0; i < n_dims; i++) t.dims[i] = dims[i];
    t.name = t.file_name = fmt_arena_copy(w->env, &w->arena, name, len, &local);
    s = t.name == NULL ? local.code : fmt_tensor_size(&t, w->path, 0, &local);
    if (s == WEIR_OK) s = fmt_pack_check_tensor(&t, w->path, 0, &local);
    if (s == WEIR_OK && !next_offset(w, &t.offset))
        s = base_fail(&local, WEIR_ERR_FORMAT, "%s: too large", w->path);
    if (s == WEIR_OK) s = fmt_tensors_add(w->env, &w->tensors, &t, w->path, &local);
    /* What is a broken file to a reader is a wrong argument here. */
    if (s == WEIR_ERR_FORMAT || s == WEIR_ERR_UNSUPPORTED) s = WEIR_ERR_INVALID_ARGUMENT;
    return s == WEIR_OK ? s : base_fail(err, s, "%s", local.message);
}

weir_status fmt_writer_tensor(fmt_writer *w, const char *name, uint32_t dtype, uint32_t n_dims,
                              const uint64_t *dims, weir_error *err)
{
    return add_tensor(w, name, dtype, false, n_dims, dims, err);
}

weir_status fmt_writer_packed_tensor(fmt_writer *w, const char *name, uint32_t dtype, const uint64_t *dims,
                                     weir_error *err)
{
    if (!w->packed || base_dtype_get(dtype)->block_elements < 2)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: tensor \"%.200s\" of type id %u cannot be packed in this file", w->path, name,
                         dtype);
    return add_tensor(w, name, dtype, true, 2, dims, err);
}

static uint32_t type_id(const fmt_tensor *t)
{
    return t->packed ? FMT_PACK_TYPE + t->dtype : t->dtype;
}

/* The bytes between magic and data; entries have name, n_dims, dims, type and offset. */
static uint64_t gguf_head_bytes(const fmt_writer *w)
{
    uint64_t bytes = 4 + 4 + 8 + 8 + w->pairs.len + w->splice_bytes;
    for (uint32_t i = 0; i < w->tensors.n; i++)
        bytes += 8 + strlen(w->tensors.items[i].name) + 4 + 8 * w->tensors.items[i].n_dims + 4 + 8;
    return bytes;
}

uint64_t fmt_writer_file_bytes(const fmt_writer *w)
{
    uint64_t head = gguf_head_bytes(w);
    if (w->tensors.n == 0) return head;
    const fmt_tensor *last = &w->tensors.items[w->tensors.n - 1];
    return base_align_up(head, w->alignment) + last->offset + base_align_up(last->bytes, w->alignment);
}

static weir_status copy_splice(const fmt_writer *w, const writer_splice *splice, weir_error *err)
{
    enum { PIECE = 16 << 10 };
    weir_error local = {0};
    char *piece = base_alloc(w->env, BASE_TAG_IO, PIECE, &local);
    weir_status s = local.code;
    for (uint64_t done = 0; s == WEIR_OK && done < splice->bytes;) {
        size_t n = (size_t)base_min(PIECE, splice->bytes - done);
        s = base_file_read(splice->file, splice->offset + done, piece, n, &local);
        if (s == WEIR_OK) s = base_writer_write(w->file, piece, n, &local);
        done += n;
    }
    base_free(w->env, piece);
    if (s != WEIR_OK && err != NULL) *err = local;
    return s;
}

/* The pairs, with the arrays of other files between them. */
static weir_status write_pairs(const fmt_writer *w, weir_error *err)
{
    const char *pairs = w->pairs.data;
    const writer_splice *splices = (const void *)w->splices.data;
    size_t at = 0, n = w->splices.len / sizeof *splices;
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < n && s == WEIR_OK; i++) {
        if (splices[i].at > at) s = base_writer_write(w->file, pairs + at, splices[i].at - at, err);
        if (s == WEIR_OK) s = copy_splice(w, &splices[i], err);
        at = splices[i].at;
    }
    if (s == WEIR_OK && at < w->pairs.len) s = base_writer_write(w->file, pairs + at, w->pairs.len - at, err);
    return s;
}

static void set_digest(const fmt_writer *w)
{
    uint64_t digest = fmt_pack_digest_begin();
    for (uint32_t i = 0; i < w->tensors.n; i++)
        digest = fmt_pack_digest_add(digest, &w->tensors.items[i], type_id(&w->tensors.items[i]));
    store_le((unsigned char *)w->pairs.data + w->digest_at, digest, 8);
}

static weir_status gguf_head(const fmt_writer *w, base_buf *b, weir_error *err)
{
    if (w->packed) set_digest(w);
    weir_status s = base_buf_append(b, "GGUF", 4, err);
    if (s == WEIR_OK) s = append_le(b, 3, 4, err);
    if (s == WEIR_OK) s = append_le(b, w->tensors.n, 8, err);
    if (s == WEIR_OK) s = append_le(b, w->values.n, 8, err);
    if (s == WEIR_OK) s = base_writer_write(w->file, b->data, b->len, err);
    if (s == WEIR_OK) s = write_pairs(w, err);
    b->len = 0;
    for (uint32_t i = 0; i < w->tensors.n && s == WEIR_OK; i++) {
        const fmt_tensor *t = &w->tensors.items[i];
        s = append_string(b, t->name, strlen(t->name), err);
        if (s == WEIR_OK) s = append_le(b, t->n_dims, 4, err);
        for (uint32_t k = 0; k < t->n_dims && s == WEIR_OK; k++) s = append_le(b, t->dims[k], 8, err);
        if (s == WEIR_OK) s = append_le(b, type_id(t), 4, err);
        if (s == WEIR_OK) s = append_le(b, t->offset, 8, err);
    }
    return s;
}

static weir_status append_json_string(base_buf *b, const char *text, weir_error *err)
{
    weir_status s = base_buf_append(b, "\"", 1, err);
    for (; *text != '\0' && s == WEIR_OK; text++) {
        if (*text == '"' || *text == '\\') s = base_buf_append(b, "\\", 1, err);
        if (s == WEIR_OK) s = base_buf_append(b, text, 1, err);
    }
    return s == WEIR_OK ? base_buf_append(b, "\"", 1, err) : s;
}

static weir_status safetensors_head(const fmt_writer *w, base_buf *b, weir_error *err)
{
    /* Eight bytes for the length come first; transformers refuses files without this format note. */
    weir_status s = append_le(b, 0, 8, err);
    if (s == WEIR_OK) s = base_buf_printf(b, err, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < w->tensors.n && s == WEIR_OK; i++) {
        const fmt_tensor *t = &w->tensors.items[i];
        s = base_buf_append(b, ",", 1, err);
        if (s == WEIR_OK) s = append_json_string(b, t->name, err);
        if (s == WEIR_OK)
            s = base_buf_printf(b, err, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type(t->dtype));
        for (uint32_t k = t->n_dims; k-- > 0 && s == WEIR_OK;)
            s = base_buf_printf(b, err, "%" PRIu64 "%s", t->dims[k], k > 0 ? "," : "");
        if (s == WEIR_OK)
            s = base_buf_printf(b, err, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset,
                                t->offset + t->bytes);
    }
    if (s == WEIR_OK) s = base_buf_append(b, "}", 1, err);
    while (s == WEIR_OK && b->len % ST_ALIGNMENT != 0) s = base_buf_append(b, " ", 1, err);
    if (s == WEIR_OK && b->len - 8 > 100000000u)
        s = base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: too many tensors for a safetensors header",
                      w->path);
    if (s == WEIR_OK) store_le((unsigned char *)b->data, b->len - 8, 8);
    return s;
}

static weir_status pad(const fmt_writer *w, weir_error *err)
{
    static const char zeros[64];
    uint64_t at = base_writer_offset(w->file), n = base_align_up(at, w->alignment) - at;
    weir_status s = WEIR_OK;
    for (; n > 0 && s == WEIR_OK; n -= base_min(n, sizeof zeros))
        s = base_writer_write(w->file, zeros, (size_t)base_min(n, sizeof zeros), err);
    return s;
}

static weir_status write_head(fmt_writer *w, weir_error *err)
{
    base_buf b;
    base_buf_init(&b, w->env, BASE_TAG_METADATA);
    weir_status s = w->kind == FMT_WRITE_GGUF ? gguf_head(w, &b, err) : safetensors_head(w, &b, err);
    if (s == WEIR_OK && b.len > 0) s = base_writer_write(w->file, b.data, b.len, err);
    base_buf_finish(&b);
    if (s == WEIR_OK && w->tensors.n > 0) s = pad(w, err);
    /* The metadata of a large vocabulary is not needed any more. */
    base_buf_finish(&w->splices);
    base_buf_finish(&w->pairs);
    w->writing = true;
    return s;
}

weir_status fmt_writer_data(fmt_writer *w, const void *data, size_t bytes, weir_error *err)
{
    const char *p = data;
    weir_status s = w->writing ? WEIR_OK : write_head(w, err);
    while (s == WEIR_OK && bytes > 0) {
        if (w->tensor == w->tensors.n)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s: %zu bytes of data behind the last of %u tensors", w->path, bytes,
                             w->tensors.n);
        uint64_t whole = w->tensors.items[w->tensor].bytes;
        size_t n = (size_t)base_min(bytes, whole - w->done);
        if ((s = base_writer_write(w->file, p, n, err)) != WEIR_OK) return s;
        p += n;
        bytes -= n;
        w->done += n;
        if (w->done < whole) break;
        w->tensor++;
        w->done = 0;
        s = pad(w, err);
    }
    return s;
}

weir_status fmt_writer_finish(fmt_writer *w, weir_error *err)
{
    weir_status s = w->writing ? WEIR_OK : write_head(w, err);
    if (s != WEIR_OK) return s;
    if (w->tensor < w->tensors.n) {
        const fmt_tensor *t = &w->tensors.items[w->tensor];
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: tensor \"%.200s\" (%u of %u) got %" PRIu64 " of its %" PRIu64 " bytes", w->path,
                         t->name, w->tensor + 1, w->tensors.n, w->done, t->bytes);
    }
    return base_writer_commit(w->file, err);
}
