/* Ids to text as a stream. Each token gives bytes; what they complete of UTF-8 goes out, the rest waits. */
#include "fmt_tok_internal.h"

#include <string.h>

#define SPACE_MARK        "\xe2\x96\x81"
#define REPLACEMENT       "\xef\xbf\xbd"
#define REPLACEMENT_BYTES 3

/* Bytes that the sequence beginning at p still lacks; 0: it is complete or cannot become valid. */
static bool is_unfinished(const unsigned char *p, size_t n)
{
    if (p[0] < 0xc2 || p[0] > 0xf4 || n >= fmt_utf8_lead_len(p[0])) return false;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return false;
    }
    if (n < 2) return true;
    /* Second bytes that would be overlong, surrogates or above U+10FFFF. */
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return !bad;
}

static weir_status emit(fmt_detok *d, const char *bytes, size_t n, base_buf *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < n && status == WEIR_OK; i++) {
        d->pending[d->n_pending++] = (unsigned char)bytes[i];
        while (d->n_pending > 0 && status == WEIR_OK) {
            uint32_t cp;
            size_t len = fmt_utf8_decode((const char *)d->pending, d->n_pending, &cp);
            if (len == 0 && is_unfinished(d->pending, d->n_pending)) break;
            if (len > 0) {
                status = base_buf_append(out, d->pending, len, err);
            } else {
                status = base_buf_append(out, REPLACEMENT, REPLACEMENT_BYTES, err);
                len = 1;
            }
            memmove(d->pending, d->pending + len, d->n_pending - len);
            d->n_pending = (uint8_t)(d->n_pending - len);
        }
    }
    return status;
}

/* Token text with U+2581 as spaces; the first of the whole text falls where the model put a dummy one. */
static weir_status emit_marked(const fmt_tokenizer *t, fmt_detok *d, const char *text, size_t len,
                               base_buf *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    bool drop = t->strip_left && !d->started;
    for (size_t i = 0; i < len && status == WEIR_OK;) {
        if (len - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0) {
            if (!(drop && i == 0)) status = emit(d, " ", 1, out, err);
            i += 3;
        } else {
            status = emit(d, text + i, 1, out, err);
            i++;
        }
    }
    return status;
}

static weir_status emit_byte_level(fmt_detok *d, const char *text, size_t len, base_buf *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    uint32_t cp;
    bool spelled = true;
    for (size_t i = 0; i < len && spelled;) {
        size_t step = fmt_utf8_decode(text + i, len - i, &cp);
        spelled = step > 0 && fmt_cp_to_byte(cp) >= 0;
        i += step;
    }
    if (!spelled) return emit(d, text, len, out, err);
    for (size_t i = 0; i < len && status == WEIR_OK;) {
        i += fmt_utf8_decode(text + i, len - i, &cp);
        char byte = (char)fmt_cp_to_byte(cp);
        status = emit(d, &byte, 1, out, err);
    }
    return status;
}

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

weir_status fmt_detok_push(const fmt_tokenizer *t, fmt_detok *d, int32_t id, base_buf *out, weir_error *err)
{
    const char *text;
    size_t len;
    if (!fmt_tokenizer_token(t, id, &text, &len)) {
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "token %d; the vocabulary has %u", id, t->vocab.n);
    }
    fmt_tok_type type = fmt_tok_type_of(&t->vocab, (uint32_t)id);
    weir_status status = WEIR_OK;
    if (type == FMT_TOK_CONTROL || type == FMT_TOK_UNKNOWN) {
        if (!d->special) return WEIR_OK;
        return emit(d, text, len, out, err);
    }
    if (type == FMT_TOK_BYTE) {
        char byte = (char)(hex_value(text[3]) * 16 + hex_value(text[4]));
        status = emit(d, &byte, 1, out, err);
    } else if (type == FMT_TOK_USER) {
        status = emit(d, text, len, out, err);
    } else if (t->byte_level) {
        status = emit_byte_level(d, text, len, out, err);
    } else {
        status = emit_marked(t, d, text, len, out, err);
    }
    d->started = true;
    return status;
}

weir_status fmt_detok_flush(const fmt_tokenizer *t, fmt_detok *d, base_buf *out, weir_error *err)
{
    (void)t;
    weir_status status = WEIR_OK;
    if (d->n_pending > 0) status = base_buf_append(out, REPLACEMENT, REPLACEMENT_BYTES, err);
    d->n_pending = 0;
    return status;
}

/* A byte gives itself or a replacement character: as part of a whole character the one, else the other. Bytes
 * that wait may turn out either way, and those that other tokens' would have completed stand alone here, so
 * no text makes more of a token than this. */
weir_status fmt_detok_measure(fmt_tokenizer *t, weir_error *err)
{
    weir_status status = WEIR_OK;
    base_buf text;
    base_buf_init(&text, t->env, BASE_TAG_TOKENIZER);
    t->most_text = 0;
    for (uint32_t id = 0; id < t->vocab.n && status == WEIR_OK; id++) {
        uint32_t stored;
        fmt_tok_text(&t->vocab, id, &stored);
        if (REPLACEMENT_BYTES * (uint64_t)stored <= t->most_text) continue;
        fmt_detok d = {.started = true};
        text.len = 0;
        status = fmt_detok_push(t, &d, (int32_t)id, &text, err);
        uint64_t most = text.len + REPLACEMENT_BYTES * (uint64_t)d.n_pending;
        t->most_text = (uint32_t)base_max(t->most_text, base_min(most, UINT32_MAX));
    }
    base_buf_finish(&text);
    return status;
}
