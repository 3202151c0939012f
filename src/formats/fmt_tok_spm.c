/* SentencePiece's BPE: spaces become U+2581 and the text is joined, best score first. Also the BPE of
 * tokenizer.json files that were converted from SentencePiece (merges instead of scores). */
#include "fmt_tok_internal.h"

#include <string.h>

#define SPACE_MARK "\xe2\x96\x81"

static weir_status escape(const fmt_tokenizer *t, base_buf *out, const char *p, size_t n, weir_error *err)
{
    if (!t->escape_spaces) return base_buf_append(out, p, n, err);
    weir_status status = WEIR_OK;
    size_t begin = 0;
    for (size_t i = 0; i < n && status == WEIR_OK; i++) {
        if (p[i] != ' ') continue;
        status = base_buf_append(out, p + begin, i - begin, err);
        if (status == WEIR_OK) status = base_buf_append(out, SPACE_MARK, 3, err);
        begin = i + 1;
    }
    if (status == WEIR_OK) status = base_buf_append(out, p + begin, n - begin, err);
    return status;
}

weir_status fmt_tok_spm(const fmt_tokenizer *t, const char *text, size_t len, bool prefix, fmt_tok_ids *out,
                        weir_error *err)
{
    fmt_tok_joiner joiner = {.env = t->env};
    base_buf escaped;
    base_buf_init(&escaped, t->env, BASE_TAG_RUNTIME);
    weir_status status = WEIR_OK;
    bool marked = len >= 3 && t->escape_spaces && memcmp(text, SPACE_MARK, 3) == 0;
    bool spaced = len > 0 && (text[0] == ' ' || marked);
    if (prefix && len > 0 && !(t->prefix_once && spaced)) status = escape(t, &escaped, " ", 1, err);
    if (status == WEIR_OK) status = escape(t, &escaped, text, len, err);
    if (status == WEIR_OK && t->kind == FMT_TOK_BPE)
        status = fmt_tok_bpe(t, escaped.data, escaped.len, out, err);
    if (status == WEIR_OK && t->kind == FMT_TOK_SPM)
        status = fmt_tok_join_words(t, &joiner, escaped.data, escaped.len, out, err);
    base_buf_finish(&escaped);
    fmt_tok_joiner_finish(&joiner);
    return status;
}
