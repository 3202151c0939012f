/* WordPiece, as BERT uses it: the text is cleaned, lower-cased, stripped of accents and cut at spaces,
 * punctuation and Chinese characters; each word is then covered from the left by the longest tokens, or is
 * unknown as a whole. Steps and character ranges after google-research/bert, tokenization.py; GGUF files mark
 * the beginning of a word by U+2581 instead of marking its continuations. */
#include "fmt_tok_internal.h"

#include <string.h>
#include <utf8proc.h>

#define SPACE_MARK "\xe2\x96\x81"

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) ||
           (c >= 0x2b820 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static bool is_control(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO ||
           k == UTF8PROC_CATEGORY_CS;
}

static bool is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static weir_status push_word(const fmt_tokenizer *t, const char *word, size_t len, fmt_tok_ids *out,
                             weir_error *err)
{
    size_t start = out->n;
    for (size_t at = 0; at < len;) {
        size_t n = len - at < t->max_normal_len ? len - at : t->max_normal_len;
        int32_t id = -1;
        while (n > 0 && (id = fmt_tok_find_plain(&t->vocab, word + at, n)) < 0) n--;
        if (id < 0) {
            out->n = start;
            return t->unk_written >= 0 ? fmt_tok_push(out, t->unk_written, err) : WEIR_OK;
        }
        weir_status status = fmt_tok_push(out, id, err);
        if (status != WEIR_OK) return status;
        at += n;
    }
    return WEIR_OK;
}

typedef struct words {
    const fmt_tokenizer *t;
    base_buf word; /* mark and letters of the word at hand; empty: none */
    fmt_tok_ids *out;
} words;

static weir_status end_word(words *w, weir_error *err)
{
    if (w->word.len == 0) return WEIR_OK;
    weir_status status = push_word(w->t, w->word.data, w->word.len, w->out, err);
    w->word.len = 0;
    return status;
}

static weir_status add_letter(words *w, uint32_t cp, weir_error *err)
{
    char utf8[4];
    if (w->t->lowercase) cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    weir_status status = WEIR_OK;
    if (w->word.len == 0) status = base_buf_append(&w->word, SPACE_MARK, 3, err);
    if (status == WEIR_OK) status = base_buf_append(&w->word, utf8, fmt_utf8_encode(cp, utf8), err);
    return status;
}

static weir_status add_char(words *w, uint32_t cp, weir_error *err)
{
    if (fmt_cp_is_white(cp)) return end_word(w, err);
    if (cp == 0 || cp == 0xfffd || is_control(cp)) return WEIR_OK;
    bool alone = is_punctuation(cp) || is_chinese(cp);
    weir_status status = alone ? end_word(w, err) : WEIR_OK;
    utf8proc_int32_t parts[32] = {(utf8proc_int32_t)cp};
    utf8proc_ssize_t n = 1;
    if (w->t->strip_accents) {
        int last_class = 0;
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, 32, UTF8PROC_DECOMPOSE, &last_class);
        if (n < 0 || n > 32) n = 0;
    }
    for (utf8proc_ssize_t i = 0; i < n && status == WEIR_OK; i++) {
        if (w->t->strip_accents && utf8proc_category(parts[i]) == UTF8PROC_CATEGORY_MN) continue;
        status = add_letter(w, (uint32_t)parts[i], err);
    }
    if (status == WEIR_OK && alone) status = end_word(w, err);
    return status;
}

weir_status fmt_tok_wordpiece(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                              weir_error *err)
{
    words w = {.t = t, .out = out};
    base_buf_init(&w.word, t->env, BASE_TAG_RUNTIME);
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < len && status == WEIR_OK;) {
        uint32_t cp;
        size_t step = fmt_utf8_decode(text + i, len - i, &cp);
        if (step == 0) {
            i++;
            continue;
        }
        status = add_char(&w, cp, err);
        i += step;
    }
    if (status == WEIR_OK) status = end_word(&w, err);
    base_buf_finish(&w.word);
    return status;
}
