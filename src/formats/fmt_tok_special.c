/* Special tokens in text. No list of them is kept: their lengths and first bytes are, and the vocabulary's
 * own hash says whether a stretch of text is one. So 6,400 added tokens cost nothing but their texts.
 *
 * Two orders exist. llama.cpp takes the longest tokens first, over the whole text, then shorter ones in what
 * is left; tokenizer.json's library goes from left to right and takes the longest at each place. They differ
 * only where tokens overlap. */
#include "fmt_tok_internal.h"

#include <string.h>

static bool is_special_type(fmt_tok_type type)
{
    return type == FMT_TOK_CONTROL || type == FMT_TOK_USER || type == FMT_TOK_UNKNOWN;
}

weir_status fmt_tok_special_index(fmt_tokenizer *t, weir_error *err)
{
    const fmt_tok_vocab *v = &t->vocab;
    t->n_special_lens = 0;
    memset(t->special_first, 0, sizeof t->special_first);
    memset(t->special_any, 0, sizeof t->special_any);
    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t len;
        const char *text = fmt_tok_text(v, id, &len);
        if (!is_special_type(fmt_tok_type_of(v, id)) || len == 0) continue;
        uint32_t i = 0;
        while (i < t->n_special_lens && t->special_lens[i] > len) i++;
        if (i == t->n_special_lens || t->special_lens[i] != len) {
            if (t->n_special_lens == FMT_TOK_MAX_LENS) {
                return base_fail(err, WEIR_ERR_UNSUPPORTED,
                                 "special tokens of more than %d different lengths", FMT_TOK_MAX_LENS);
            }
            uint32_t behind = t->n_special_lens++ - i;
            memmove(t->special_lens + i + 1, t->special_lens + i, behind * sizeof t->special_lens[0]);
            memmove(t->special_first[i + 1], t->special_first[i], behind * sizeof t->special_first[0]);
            t->special_lens[i] = (uint16_t)len;
            memset(t->special_first[i], 0, sizeof t->special_first[i]);
        }
        uint8_t first = (uint8_t)text[0];
        t->special_first[i][first / 8] |= (uint8_t)(1u << first % 8);
        t->special_any[first / 8] |= (uint8_t)(1u << first % 8);
    }
    return WEIR_OK;
}

static bool touches_plain(const fmt_tok_input *in, size_t begin, size_t end)
{
    for (size_t i = 0; i < in->n_plain; i++) {
        if (in->plain[i].begin < end && begin < in->plain[i].end) return true;
    }
    return false;
}

static bool is_word_byte(char c)
{
    unsigned char u = (unsigned char)c;
    return u >= 0x80 || (u >= '0' && u <= '9') || (u >= 'A' && u <= 'Z') || (u >= 'a' && u <= 'z') ||
           u == '_';
}

/* The special token that text[at, at + lens[k]) is and may be here, or -1. */
static int32_t match_at(const fmt_tokenizer *t, const fmt_tok_input *in, size_t at, uint32_t k)
{
    uint32_t len = t->special_lens[k];
    uint8_t first = (uint8_t)in->text[at];
    if (!(t->special_first[k][first / 8] >> first % 8 & 1) || len > in->len - at) return -1;
    int32_t id = fmt_tok_find(&t->vocab, in->text + at, len);
    if (id < 0) return -1;
    fmt_tok_type type = fmt_tok_type_of(&t->vocab, (uint32_t)id);
    if (!is_special_type(type)) return -1;
    bool guarded = type != FMT_TOK_USER || fmt_tokenizer_is_end(t, id);
    if (type != FMT_TOK_USER && !(in->flags & FMT_ENCODE_SPECIAL)) return -1;
    for (size_t i = 0; i < in->n_marks && !guarded; i++) guarded = in->marks[i] == id;
    if (guarded && touches_plain(in, at, at + len)) return -1;
    if (t->vocab.types[id] & FMT_TOK_SINGLE_WORD) {
        if (at > 0 && is_word_byte(in->text[at - 1])) return -1;
        if (at + len < in->len && is_word_byte(in->text[at + len])) return -1;
    }
    return id;
}

static weir_status push_part(fmt_tok_parts *out, size_t begin, size_t end, int32_t id, weir_error *err)
{
    if (out->n == out->cap) {
        size_t cap = out->cap < 16 ? 16 : out->cap * 2;
        fmt_tok_part *data = base_realloc(out->env, BASE_TAG_RUNTIME, out->data, cap * sizeof *data, err);
        if (data == NULL) return fmt_tok_no_memory(err);
        out->data = data;
        out->cap = cap;
    }
    out->data[out->n++] = (fmt_tok_part){begin, end, id};
    return WEIR_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Appends the text since *done, then the token at [at, end). */
static weir_status push_token(const fmt_tokenizer *t, const fmt_tok_input *in, size_t *done, size_t at,
                              size_t end, int32_t id, fmt_tok_parts *out, weir_error *err)
{
    uint8_t flags = t->vocab.types[id];
    size_t text_end = at;
    if (flags & FMT_TOK_LSTRIP) {
        while (text_end > *done && is_space(in->text[text_end - 1])) text_end--;
    }
    if (text_end > *done) {
        weir_status status = push_part(out, *done, text_end, -1, err);
        if (status != WEIR_OK) return status;
    }
    if (flags & FMT_TOK_RSTRIP) {
        while (end < in->len && is_space(in->text[end])) end++;
    }
    *done = end;
    return push_part(out, at, end, id, err);
}

static weir_status cut_leftmost(const fmt_tokenizer *t, const fmt_tok_input *in, fmt_tok_parts *out,
                                size_t *done, weir_error *err)
{
    for (size_t at = 0; at < in->len;) {
        uint8_t first = (uint8_t)in->text[at];
        int32_t id = -1;
        uint32_t k = 0;
        if (t->special_any[first / 8] >> first % 8 & 1) {
            while (k < t->n_special_lens && (id = match_at(t, in, at, k)) < 0) k++;
        }
        if (id < 0) {
            at++;
            continue;
        }
        weir_status status = push_token(t, in, done, at, at + t->special_lens[k], id, out, err);
        if (status != WEIR_OK) return status;
        at = *done;
    }
    return WEIR_OK;
}

typedef struct candidate {
    uint32_t at;
    int32_t id;
} candidate;

static bool any_taken(const uint8_t *taken, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        if (taken[i / 8] >> i % 8 & 1) return true;
    }
    return false;
}

static weir_status cut_longest(const fmt_tokenizer *t, const fmt_tok_input *in, size_t n_candidates,
                               fmt_tok_parts *out, size_t *done, weir_error *err)
{
    base_env *env = out->env;
    weir_status status = WEIR_OK;
    uint8_t *taken = NULL;
    candidate *found = base_alloc_array(env, BASE_TAG_RUNTIME, n_candidates, sizeof *found, err);
    if (found == NULL) return fmt_tok_no_memory(err);
    taken = base_alloc(env, BASE_TAG_RUNTIME, in->len / 8 + 1, err);
    if (taken == NULL) {
        status = fmt_tok_no_memory(err);
        goto done;
    }
    size_t n = 0;
    for (size_t at = 0; at < in->len; at++) {
        uint8_t first = (uint8_t)in->text[at];
        if (t->special_any[first / 8] >> first % 8 & 1) found[n++] = (candidate){(uint32_t)at, -1};
    }
    for (uint32_t k = 0; k < t->n_special_lens; k++) {
        for (size_t i = 0; i < n; i++) {
            size_t at = found[i].at, end = at + t->special_lens[k];
            if (taken[at / 8] >> at % 8 & 1) continue;
            int32_t id = match_at(t, in, at, k);
            if (id < 0 || any_taken(taken, at, end)) continue;
            for (size_t b = at; b < end; b++) taken[b / 8] |= (uint8_t)(1u << b % 8);
            found[i].id = id;
        }
    }
    for (size_t i = 0; i < n && status == WEIR_OK; i++) {
        if (found[i].id < 0) continue;
        uint32_t len;
        fmt_tok_text(&t->vocab, (uint32_t)found[i].id, &len);
        status = push_token(t, in, done, found[i].at, found[i].at + len, found[i].id, out, err);
    }
done:
    base_free(env, taken);
    base_free(env, found);
    return status;
}

weir_status fmt_tok_special_cut(const fmt_tokenizer *t, const fmt_tok_input *in, fmt_tok_parts *out,
                                weir_error *err)
{
    size_t n_candidates = 0, done = 0;
    weir_status status = WEIR_OK;
    out->n = 0;
    for (size_t i = 0; i < in->len; i++) {
        uint8_t first = (uint8_t)in->text[i];
        n_candidates += t->special_any[first / 8] >> first % 8 & 1;
    }
    if (n_candidates > 0) {
        status = t->leftmost_specials ? cut_leftmost(t, in, out, &done, err)
                                      : cut_longest(t, in, n_candidates, out, &done, err);
    }
    if (status == WEIR_OK && done < in->len) status = push_part(out, done, in->len, -1, err);
    return status;
}
