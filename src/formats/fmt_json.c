/* The JSON reader: see fmt_json.h. */
#include "fmt_json.h"

#include <inttypes.h>
#include <string.h>

static weir_status bad(const fmt_reader *r, const char *what, weir_error *err)
{
    return base_fail(err, WEIR_ERR_FORMAT, "%s: JSON at offset %" PRIu64 ": %s", fmt_reader_path(r),
                     fmt_reader_pos(r), what);
}

static weir_status next_char(fmt_reader *r, char *c, weir_error *err)
{
    const char *p;
    weir_status s = fmt_reader_take(r, 1, &p, "the JSON text", err);
    if (s == WEIR_OK) *c = *p;
    return s;
}

weir_status fmt_json_peek(fmt_reader *r, char *c, weir_error *err)
{
    for (;;) {
        if (fmt_reader_left(r) == 0) {
            *c = '\0';
            return WEIR_OK;
        }
        const char *p;
        weir_status s = fmt_reader_peek(r, 1, &p, "the JSON text", err);
        if (s != WEIR_OK) return s;
        if (*p != ' ' && *p != '\t' && *p != '\n' && *p != '\r') {
            *c = *p;
            return *p == '\0' ? bad(r, "a NUL byte", err) : WEIR_OK;
        }
        r->at++;
    }
}

weir_status fmt_json_expect(fmt_reader *r, char c, const char *what, weir_error *err)
{
    char have;
    weir_status s = fmt_json_peek(r, &have, err);
    if (s != WEIR_OK) return s;
    if (have != c)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: JSON at offset %" PRIu64 ": wanted '%c' (%s)",
                         fmt_reader_path(r), fmt_reader_pos(r), c, what);
    r->at++;
    return WEIR_OK;
}

weir_status fmt_json_more(fmt_reader *r, char close, bool *first, bool *more, weir_error *err)
{
    char c;
    weir_status s = fmt_json_peek(r, &c, err);
    if (s != WEIR_OK) return s;
    *more = c != close;
    if (!*more) {
        r->at++;
        return WEIR_OK;
    }
    if (!*first) s = fmt_json_expect(r, ',', "or the closing bracket", err);
    *first = false;
    return s;
}

static weir_status hex4(fmt_reader *r, uint32_t *out, weir_error *err)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c;
        weir_status s = next_char(r, &c, err);
        if (s != WEIR_OK) return s;
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return bad(r, "\\u wants four hexadecimal digits", err);
        *out = *out << 4 | (uint32_t)d;
    }
    return WEIR_OK;
}

/* What stands behind "\u", surrogate pairs joined, as UTF-8. */
static weir_status unicode_escape(fmt_reader *r, char out[4], size_t *n, weir_error *err)
{
    uint32_t u, low;
    weir_status s = hex4(r, &u, err);
    if (s != WEIR_OK) return s;
    if (u >= 0xd800 && u < 0xdc00) {
        char a, b;
        if ((s = next_char(r, &a, err)) != WEIR_OK || (s = next_char(r, &b, err)) != WEIR_OK) return s;
        if (a != '\\' || b != 'u') return bad(r, "half a surrogate pair", err);
        if ((s = hex4(r, &low, err)) != WEIR_OK) return s;
        if (low < 0xdc00 || low > 0xdfff) return bad(r, "half a surrogate pair", err);
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    } else if (u >= 0xdc00 && u <= 0xdfff) {
        return bad(r, "half a surrogate pair", err);
    }
    *n = u < 0x80 ? 1 : u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = *n; i-- > 1; u >>= 6) out[i] = (char)(0x80 | (u & 0x3f));
    out[0] = (char)(lead[*n] | u);
    return WEIR_OK;
}

static weir_status escape(fmt_reader *r, char out[4], size_t *n, weir_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c;
    weir_status s = next_char(r, &c, err);
    if (s != WEIR_OK) return s;
    if (c == 'u') return unicode_escape(r, out, n, err);
    const char *at = c == '\0' ? NULL : strchr(from, c);
    if (at == NULL) return bad(r, "an unknown escape", err);
    out[0] = to[at - from];
    *n = 1;
    return WEIR_OK;
}

weir_status fmt_json_string(fmt_reader *r, char *buf, size_t cap, size_t *len, weir_error *err)
{
    size_t at = 0;
    weir_status s = fmt_json_expect(r, '"', "a string", err);
    for (;;) {
        char piece[4];
        size_t n = 1;
        if (s != WEIR_OK || (s = next_char(r, piece, err)) != WEIR_OK) return s;
        if (piece[0] == '"') break;
        if ((unsigned char)piece[0] < 0x20) return bad(r, "a control character in a string", err);
        if (piece[0] == '\\' && (s = escape(r, piece, &n, err)) != WEIR_OK) return s;
        if (buf == NULL) continue;
        if (at + n >= cap)
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: JSON at offset %" PRIu64 ": a name of more than %zu bytes",
                             fmt_reader_path(r), fmt_reader_pos(r), cap - 1);
        memcpy(buf + at, piece, n);
        at += n;
    }
    if (buf != NULL) {
        buf[at] = '\0';
        *len = at;
    }
    return WEIR_OK;
}

weir_status fmt_json_u64(fmt_reader *r, uint64_t *out, weir_error *err)
{
    char c;
    unsigned digits = 0;
    uint64_t v = 0;
    weir_status s = fmt_json_peek(r, &c, err);
    while (s == WEIR_OK && c >= '0' && c <= '9') {
        if (!base_mul(v, 10, &v) || !base_add(v, (uint64_t)(c - '0'), &v))
            return bad(r, "a number beyond 64 bits", err);
        if (++digits > 1 && v < 10) return bad(r, "a number with a leading zero", err);
        r->at++;
        if (fmt_reader_left(r) == 0) break;
        const char *p;
        s = fmt_reader_peek(r, 1, &p, "the JSON text", err);
        c = s == WEIR_OK ? *p : '\0';
    }
    if (s != WEIR_OK) return s;
    if (digits == 0 || c == '.' || c == 'e' || c == 'E') return bad(r, "wanted a whole number from 0", err);
    *out = v;
    return WEIR_OK;
}

/* A number, true, false or null, roughly: these are passed over, never used. */
static weir_status skip_word(fmt_reader *r, weir_error *err)
{
    size_t n = 0;
    while (fmt_reader_left(r) > 0) {
        const char *p;
        weir_status s = fmt_reader_peek(r, 1, &p, "the JSON text", err);
        if (s != WEIR_OK) return s;
        bool word = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || *p == 'E' || *p == '.' ||
                    *p == '-' || *p == '+';
        if (!word) break;
        r->at++;
        n++;
    }
    return n == 0 ? bad(r, "wanted a value", err) : WEIR_OK;
}

weir_status fmt_json_skip(fmt_reader *r, unsigned depth, weir_error *err)
{
    char c;
    weir_status s = fmt_json_peek(r, &c, err);
    if (s != WEIR_OK) return s;
    if (c == '"') return fmt_json_string(r, NULL, 0, NULL, err);
    if (c != '{' && c != '[') return skip_word(r, err);
    if (depth >= FMT_JSON_MAX_DEPTH) return bad(r, "nested too deeply", err);
    char close = c == '{' ? '}' : ']';
    bool first = true, more = true;
    r->at++;
    for (;;) {
        s = fmt_json_more(r, close, &first, &more, err);
        if (s != WEIR_OK || !more) return s;
        if (c == '{') {
            if ((s = fmt_json_string(r, NULL, 0, NULL, err)) != WEIR_OK) return s;
            if ((s = fmt_json_expect(r, ':', "behind a member's name", err)) != WEIR_OK) return s;
        }
        if ((s = fmt_json_skip(r, depth + 1, err)) != WEIR_OK) return s;
    }
}

weir_status fmt_json_end(fmt_reader *r, weir_error *err)
{
    char c;
    weir_status s = fmt_json_peek(r, &c, err);
    if (s != WEIR_OK) return s;
    return c == '\0' ? WEIR_OK : bad(r, "text behind the end", err);
}
