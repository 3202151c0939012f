/* UTF-8, strict, and the alphabet in which byte-level vocabularies write bytes. */
#include "fmt_tok_internal.h"

size_t fmt_utf8_decode(const char *text, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < len) return 0;
    uint32_t c = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    bool overlong = (len == 3 && c < 0x800) || (len == 4 && c < 0x10000);
    if (overlong || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
    *cp = c;
    return len;
}

size_t fmt_utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t fmt_utf8_lead_len(unsigned char lead)
{
    return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

bool fmt_utf8_is_valid(const char *p, size_t n)
{
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        size_t len = fmt_utf8_decode(p + i, n - i, &cp);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

weir_status fmt_utf8_append_clean(base_buf *out, const char *p, size_t n, weir_error *err)
{
    size_t begin = 0;
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        size_t len = fmt_utf8_decode(p + i, n - i, &cp);
        if (len != 0) {
            i += len;
            continue;
        }
        weir_status status = base_buf_append(out, p + begin, i - begin, err);
        if (status == WEIR_OK) status = base_buf_append(out, "\xef\xbf\xbd", 3, err);
        if (status != WEIR_OK) return status;
        begin = ++i;
    }
    return base_buf_append(out, p + begin, n - begin, err);
}

/* Bytes that Latin-1 prints stand for themselves; the other 68 follow from U+0100 on, in order. */
static bool byte_is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

uint32_t fmt_byte_to_cp(uint8_t byte)
{
    if (byte_is_printable(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xa0) return 0x100u + 33 + (byte - 0x7fu);
    return 0x100u + 67; /* 0xad */
}

int fmt_cp_to_byte(uint32_t cp)
{
    if (cp < 0x100) return byte_is_printable(cp) ? (int)cp : -1;
    uint32_t i = cp - 0x100;
    if (i < 33) return (int)i;
    if (i < 67) return (int)(0x7f + i - 33);
    return i == 67 ? 0xad : -1;
}

bool fmt_cp_is_white(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}
