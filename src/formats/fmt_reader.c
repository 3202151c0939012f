/* The buffered forward reader: see fmt_reader.h. The window [base, base + have) of the file lies in buf. */
#include "fmt_reader.h"

#include <inttypes.h>
#include <string.h>

weir_status fmt_reader_init(fmt_reader *r, base_env *env, base_file *file, uint64_t offset, uint64_t end,
                            size_t buffer_bytes, weir_error *err)
{
    *r = (fmt_reader){.env = env,
                      .file = file,
                      .base = offset,
                      .end = end,
                      .range = "the file",
                      .past_status = WEIR_ERR_TRUNCATED};
    if (offset > end || end > base_file_size(file))
        return base_fail(err, WEIR_ERR_INTERNAL, "%s: range %" PRIu64 "..%" PRIu64 " lies outside the file",
                         base_file_path(file), offset, end);
    /* A short range needs no more buffer than its own length. */
    r->cap = (size_t)base_max(16, base_min(buffer_bytes, end - offset));
    r->buf = base_alloc(env, BASE_TAG_METADATA, r->cap, err);
    if (r->buf == NULL) return base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", base_file_path(file));
    return WEIR_OK;
}

void fmt_reader_init_memory(fmt_reader *r, const void *data, size_t bytes)
{
    /* buf is only written when a file is set. */
    *r = (fmt_reader){.buf = (char *)(uintptr_t)data,
                      .cap = bytes,
                      .have = bytes,
                      .end = bytes,
                      .range = "the array",
                      .past_status = WEIR_ERR_INTERNAL};
}

void fmt_reader_finish(fmt_reader *r)
{
    if (r->file != NULL && r->buf != NULL) base_free(r->env, r->buf);
    r->buf = NULL;
}

const char *fmt_reader_path(const fmt_reader *r)
{
    return r->file != NULL ? base_file_path(r->file) : "(memory)";
}

uint64_t fmt_reader_pos(const fmt_reader *r)
{
    return r->base + r->at;
}

uint64_t fmt_reader_left(const fmt_reader *r)
{
    return r->end - fmt_reader_pos(r);
}

weir_status fmt_reader_need(const fmt_reader *r, uint64_t bytes, const char *what, weir_error *err)
{
    if (bytes <= fmt_reader_left(r)) return WEIR_OK;
    return base_fail(err, r->past_status,
                     "%s: %s at offset %" PRIu64 " needs %" PRIu64 " bytes, but %s ends at %" PRIu64
                     " (%" PRIu64 " bytes left): the download is incomplete or the file is damaged",
                     fmt_reader_path(r), what, fmt_reader_pos(r), bytes, r->range, r->end,
                     fmt_reader_left(r));
}

/* Grows the buffer to at least n bytes. */
static weir_status grow(fmt_reader *r, size_t n, weir_error *err)
{
    if (n <= r->cap) return WEIR_OK;
    size_t cap = (size_t)base_align_up(n, 4096);
    char *buf = base_realloc(r->env, BASE_TAG_METADATA, r->buf, cap, err);
    if (buf == NULL) return base_fail_context(err, WEIR_ERR_OUT_OF_MEMORY, "%s", fmt_reader_path(r));
    r->buf = buf;
    r->cap = cap;
    return WEIR_OK;
}

weir_status fmt_reader_peek(fmt_reader *r, size_t n, const char **p, const char *what, weir_error *err)
{
    if (r->have - r->at >= n) {
        *p = r->buf + r->at;
        return WEIR_OK;
    }
    weir_status s = fmt_reader_need(r, n, what, err);
    if (s != WEIR_OK) return s;
    if (n > FMT_STRING_MAX)
        return base_fail(err, WEIR_ERR_INTERNAL, "%s: peek of %zu bytes", fmt_reader_path(r), n);
    s = grow(r, n, err);
    if (s != WEIR_OK) return s;
    memmove(r->buf, r->buf + r->at, r->have - r->at);
    r->base += r->at;
    r->have -= r->at;
    r->at = 0;
    size_t fill = (size_t)base_min(r->cap - r->have, r->end - (r->base + r->have));
    s = base_file_read(r->file, r->base + r->have, r->buf + r->have, fill, err);
    if (s != WEIR_OK) return s;
    r->have += fill;
    *p = r->buf;
    return WEIR_OK;
}

weir_status fmt_reader_take(fmt_reader *r, size_t n, const char **p, const char *what, weir_error *err)
{
    weir_status s = fmt_reader_peek(r, n, p, what, err);
    if (s == WEIR_OK) r->at += n;
    return s;
}

weir_status fmt_reader_skip(fmt_reader *r, uint64_t n, const char *what, weir_error *err)
{
    weir_status s = fmt_reader_need(r, n, what, err);
    if (s != WEIR_OK) return s;
    if (n <= r->have - r->at) {
        r->at += (size_t)n;
    } else {
        r->base = fmt_reader_pos(r) + n;
        r->have = r->at = 0;
    }
    return WEIR_OK;
}

uint64_t fmt_le(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    uint64_t v = 0;
    for (size_t i = bytes; i-- > 0;) v = v << 8 | b[i];
    return v;
}

weir_status fmt_reader_u32(fmt_reader *r, uint32_t *out, const char *what, weir_error *err)
{
    const char *p;
    weir_status s = fmt_reader_take(r, 4, &p, what, err);
    if (s == WEIR_OK) *out = (uint32_t)fmt_le(p, 4);
    return s;
}

weir_status fmt_reader_u64(fmt_reader *r, uint64_t *out, const char *what, weir_error *err)
{
    const char *p;
    weir_status s = fmt_reader_take(r, 8, &p, what, err);
    if (s == WEIR_OK) *out = fmt_le(p, 8);
    return s;
}
