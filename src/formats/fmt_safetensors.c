/* One safetensors file. The header is walked as a stream, so that one of a hundred thousand entries costs
 * what the tensor table costs and no tree. */
#include "fmt_safetensors.h"

#include "fmt_json.h"

#include <inttypes.h>
#include <string.h>

typedef struct entry {
    fmt_tensor t;
    char name[FMT_MAX_NAME + 1];
    uint64_t at;         /* offset of the entry's name */
    uint64_t begin, end; /* data_offsets */
} entry;

typedef struct st_part {
    fmt_model *m;
    fmt_hf_arch arch;
    const char *path;
    uint32_t file;
    uint64_t data;
    fmt_reader r;
} st_part;

static weir_status read_dtype(st_part *p, entry *e, weir_error *err)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } types[] = {
        {"F32", BASE_F32}, {"F16", BASE_F16}, {"BF16", BASE_BF16}, {"I32", BASE_I32}, {"I8", BASE_I8}};
    char text[32];
    size_t len;
    weir_status s = fmt_json_string(&p->r, text, sizeof text, &len, err);
    if (s != WEIR_OK) return s;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, text) != 0) continue;
        e->t.dtype = types[i].dtype;
        return WEIR_OK;
    }
    return base_fail(err, WEIR_ERR_UNSUPPORTED,
                     "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                     ") has type \"%.31s\", which Weir does not run (F32, F16, BF16, I32, I8)",
                     p->path, e->name, e->at, fmt_name_is_clean(text, len) ? text : "?");
}

/* [rows, ..., row length]: the slowest dimension first, ours runs the other way. */
static weir_status read_shape(st_part *p, entry *e, weir_error *err)
{
    uint64_t shape[FMT_MAX_DIMS];
    uint32_t n = 0;
    bool first = true, more;
    weir_status s = fmt_json_expect(&p->r, '[', "a shape", err);
    for (;;) {
        if (s != WEIR_OK || (s = fmt_json_more(&p->r, ']', &first, &more, err)) != WEIR_OK) return s;
        if (!more) break;
        if (n == FMT_MAX_DIMS)
            return base_fail(err, WEIR_ERR_UNSUPPORTED,
                             "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                             ") has more than %d dimensions",
                             p->path, e->name, e->at, FMT_MAX_DIMS);
        s = fmt_json_u64(&p->r, &shape[n++], err);
    }
    for (uint32_t i = 0; i < FMT_MAX_DIMS; i++) e->t.dims[i] = i < n ? shape[n - 1 - i] : 1;
    e->t.n_dims = n == 0 ? 1 : n; /* a single number */
    return WEIR_OK;
}

static weir_status read_offsets(st_part *p, entry *e, weir_error *err)
{
    weir_status s = fmt_json_expect(&p->r, '[', "data_offsets", err);
    if (s == WEIR_OK) s = fmt_json_u64(&p->r, &e->begin, err);
    if (s == WEIR_OK) s = fmt_json_expect(&p->r, ',', "between data_offsets", err);
    if (s == WEIR_OK) s = fmt_json_u64(&p->r, &e->end, err);
    if (s == WEIR_OK) s = fmt_json_expect(&p->r, ']', "behind data_offsets", err);
    return s;
}

/* The members of an entry; each of the three must be there once. */
static weir_status read_members(st_part *p, entry *e, weir_error *err)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    static weir_status (*const read[])(st_part *, entry *, weir_error *) = {read_dtype, read_shape,
                                                                            read_offsets};
    unsigned seen = 0;
    bool first = true, more;
    weir_status s = fmt_json_expect(&p->r, '{', "a tensor's entry", err);
    for (;;) {
        if (s != WEIR_OK || (s = fmt_json_more(&p->r, '}', &first, &more, err)) != WEIR_OK) return s;
        if (!more) break;
        char key[32];
        size_t len;
        if ((s = fmt_json_string(&p->r, key, sizeof key, &len, err)) != WEIR_OK) return s;
        if ((s = fmt_json_expect(&p->r, ':', "behind a member's name", err)) != WEIR_OK) return s;
        unsigned i = 0;
        while (i < 3 && strcmp(names[i], key) != 0) i++;
        if (i == 3 || (seen >> i & 1) != 0)
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): %s member in its entry",
                             p->path, e->name, e->at, i == 3 ? "an unknown" : "a repeated");
        seen |= 1u << i;
        s = read[i](p, e, err);
    }
    if (seen == 7) return WEIR_OK;
    return base_fail(err, WEIR_ERR_FORMAT,
                     "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                     "): wanted dtype, shape and data_offsets",
                     p->path, e->name, e->at);
}

static weir_status check_entry(st_part *p, entry *e, weir_error *err)
{
    weir_status s = fmt_tensor_size(&e->t, p->path, e->at, err);
    if (s != WEIR_OK) return s;
    if (e->begin > e->end || e->end - e->begin != e->t.bytes)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): its shape needs %" PRIu64
                         " bytes, but data_offsets are %" PRIu64 " to %" PRIu64,
                         p->path, e->name, e->at, e->t.bytes, e->begin, e->end);
    uint64_t end;
    if (!base_add(p->data, e->end, &end))
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): data_offsets overflow",
                         p->path, e->name, e->at);
    if (end > base_file_size(p->m->files[p->file]))
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: tensor \"%.200s\" needs bytes %" PRIu64 " to %" PRIu64
                         ", but the file has %" PRIu64
                         " bytes: the download is incomplete or the file is damaged",
                         p->path, e->name, p->data + e->begin, end, base_file_size(p->m->files[p->file]));
    e->t.offset = p->data + e->begin;
    return WEIR_OK;
}

static weir_status add_entry(st_part *p, entry *e, weir_error *err)
{
    fmt_model *m = p->m;
    char name[FMT_MAX_NAME + 1];
    e->t.file_name = fmt_arena_copy(m->env, &m->arena, e->name, strlen(e->name), err);
    if (e->t.file_name == NULL) return base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", p->path);
    e->t.name = e->t.file_name;
    if (fmt_hf_tensor_name(p->arch, e->name, name, sizeof name)) {
        e->t.name = fmt_arena_copy(m->env, &m->arena, name, strlen(name), err);
        if (e->t.name == NULL) return base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", p->path);
    }
    return fmt_tensors_add(m->env, &m->tensors, &e->t, p->path, err);
}

static weir_status read_entry(st_part *p, bool *had_metadata, weir_error *err)
{
    entry e = {.t = {.file = p->file}};
    size_t len;
    char c;
    weir_status s = fmt_json_peek(&p->r, &c, err);
    e.at = fmt_reader_pos(&p->r);
    if (s == WEIR_OK) s = fmt_json_string(&p->r, e.name, sizeof e.name, &len, err);
    if (s == WEIR_OK) s = fmt_json_expect(&p->r, ':', "behind a tensor's name", err);
    if (s != WEIR_OK) return s;
    if (strcmp(e.name, "__metadata__") == 0) {
        if (*had_metadata)
            return base_fail(err, WEIR_ERR_FORMAT, "%s: \"__metadata__\" appears twice", p->path);
        *had_metadata = true;
        return fmt_json_skip(&p->r, 0, err);
    }
    if (len == 0 || !fmt_name_is_clean(e.name, len) || strlen(e.name) != len)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: the tensor's name at offset %" PRIu64 " is empty or has control characters",
                         p->path, e.at);
    s = read_members(p, &e, err);
    if (s == WEIR_OK) s = check_entry(p, &e, err);
    return s == WEIR_OK ? add_entry(p, &e, err) : s;
}

static weir_status read_header(st_part *p, weir_error *err)
{
    bool first = true, more = true, had_metadata = false;
    weir_status s = fmt_json_expect(&p->r, '{', "the header", err);
    while (s == WEIR_OK) {
        s = fmt_json_more(&p->r, '}', &first, &more, err);
        if (s != WEIR_OK || !more) break;
        s = read_entry(p, &had_metadata, err);
    }
    return s == WEIR_OK ? fmt_json_end(&p->r, err) : s;
}

/* The length field; *data is the offset behind the header. */
static weir_status header_end(base_file *f, const char *path, uint64_t *data, weir_error *err)
{
    unsigned char length[8];
    if (base_file_size(f) < sizeof length)
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: %" PRIu64
                         " bytes are no safetensors file: the download is incomplete or the file is damaged",
                         path, base_file_size(f));
    weir_status s = base_file_read(f, 0, length, sizeof length, err);
    if (s != WEIR_OK) return s;
    uint64_t n = fmt_le(length, sizeof length);
    if (n < 2 || n > FMT_SAFETENSORS_MAX_HEADER)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: the header's length at offset 0 is %" PRIu64
                         " bytes, wanted 2 to %u: not a safetensors file, or "
                         "damaged",
                         path, n, FMT_SAFETENSORS_MAX_HEADER);
    *data = sizeof length + n;
    if (*data > base_file_size(f))
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: the header ends at offset %" PRIu64 ", but the file has %" PRIu64
                         " bytes: the download is incomplete or the file is damaged",
                         path, *data, base_file_size(f));
    return WEIR_OK;
}

weir_status fmt_safetensors_file(fmt_model *m, uint32_t file, fmt_hf_arch arch, weir_error *err)
{
    base_file *f = m->files[file];
    st_part p = {.m = m, .arch = arch, .file = file, .path = base_file_path(f)};
    uint32_t before = m->tensors.n;
    weir_status s = header_end(f, p.path, &p.data, err);
    if (s == WEIR_OK) s = fmt_reader_init(&p.r, m->env, f, 8, p.data, FMT_READER_BYTES, err);
    if (s != WEIR_OK) return s;
    /* What runs over the header's end is damaged, wherever the file ends. */
    p.r.range = "the header";
    p.r.past_status = WEIR_ERR_FORMAT;
    s = read_header(&p, err);
    fmt_reader_finish(&p.r);
    if (s == WEIR_OK)
        s = fmt_tensors_check_extents(m->env, &m->tensors, before, true, p.data, base_file_size(f), p.path,
                                      err);
    return s;
}
