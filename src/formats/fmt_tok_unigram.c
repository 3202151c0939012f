/* Unigram (T. Kudo 2018, "Subword Regularization"): of all ways to cut the text the one with the largest sum
 * of scores, found by Viterbi over byte positions. */
#include "fmt_tok_internal.h"

#include <float.h>
#include <string.h>

#define SPACE_MARK "\xe2\x96\x81"

typedef struct best_cut {
    double score;
    uint32_t from;
    int32_t id;
} best_cut;

/* Applies the character map; invalid bytes become U+FFFD. */
static weir_status fold(const fmt_tokenizer *t, const char *text, size_t len, base_buf *out, weir_error *err)
{
    weir_status status = base_buf_append(out, "", 0, err);
    for (size_t i = 0; i < len && status == WEIR_OK;) {
        const char *with = NULL;
        size_t with_len = 0, step = 0;
        uint32_t cp;
        if (t->charsmap.n_nodes > 0)
            step = fmt_tok_charsmap_match(&t->charsmap, text + i, len - i, &with, &with_len);
        if (step == 0) {
            with = text + i;
            with_len = step = fmt_utf8_decode(text + i, len - i, &cp);
        }
        if (step == 0) {
            with = "\xef\xbf\xbd";
            with_len = 3;
            step = 1;
        }
        status = base_buf_append(out, with, with_len, err);
        i += step;
    }
    return status;
}

/* Cuts white space off the ends, as far as the tokenizer strips them. */
static void strip(const fmt_tokenizer *t, const char **text, size_t *len)
{
    uint32_t cp;
    while (t->strip_text_left && *len > 0) {
        size_t step = fmt_utf8_decode(*text, *len, &cp);
        if (step == 0 || !fmt_cp_is_white(cp)) break;
        *text += step;
        *len -= step;
    }
    while (t->strip_text_right && *len > 0) {
        size_t begin = *len - 1;
        while (begin > 0 && ((*text)[begin] & 0xc0) == 0x80) begin--;
        if (fmt_utf8_decode(*text + begin, *len - begin, &cp) == 0 || !fmt_cp_is_white(cp)) break;
        *len = begin;
    }
}

/* Writes the text with spaces as marks and the dummy one in front. Where spaces are squeezed, every word gets
 * one mark and outer spaces go; where they are collapsed, a run becomes one. */
static weir_status mark_spaces(const fmt_tokenizer *t, const char *p, size_t n, bool prefix, base_buf *out,
                               weir_error *err)
{
    const char *mark = t->escape_spaces ? SPACE_MARK : " ";
    size_t mark_len = t->escape_spaces ? 3 : 1;
    bool in_word = false;
    weir_status status = base_buf_append(out, "", 0, err);
    if (prefix && t->prefix_once && !t->squeeze_spaces) {
        bool marked = n > 0 && (p[0] == ' ' || (n >= 3 && memcmp(p, SPACE_MARK, 3) == 0));
        if (n > 0 && !marked && status == WEIR_OK) status = base_buf_append(out, mark, mark_len, err);
        prefix = false;
    }
    for (size_t i = 0; i < n && status == WEIR_OK; i++) {
        if (p[i] == ' ' || (t->squeeze_spaces && p[i] >= '\t' && p[i] <= '\r')) {
            in_word = false;
            if (t->squeeze_spaces || (t->collapse_spaces && i > 0 && p[i - 1] == ' ')) continue;
            status = base_buf_append(out, mark, mark_len, err);
            continue;
        }
        if (!in_word && (prefix || t->squeeze_spaces)) status = base_buf_append(out, mark, mark_len, err);
        if (status == WEIR_OK) status = base_buf_append(out, p + i, 1, err);
        in_word = true;
        prefix = false;
    }
    return status;
}

static weir_status normalize(const fmt_tokenizer *t, const char *text, size_t len, bool prefix, base_buf *out,
                             weir_error *err)
{
    base_buf folded;
    base_buf_init(&folded, t->env, BASE_TAG_RUNTIME);
    weir_status status = fold(t, text, len, &folded, err);
    if (status == WEIR_OK) {
        text = folded.data;
        len = folded.len;
        strip(t, &text, &len);
        status = mark_spaces(t, text, len, prefix, out, err);
    }
    base_buf_finish(&folded);
    return status;
}

/* Offers every token that begins at `at`. */
static void extend(const fmt_tokenizer *t, const char *text, size_t len, size_t at, best_cut *best)
{
    const fmt_tok_vocab *v = &t->vocab;
    size_t one = fmt_utf8_lead_len((unsigned char)text[at]);
    if (one > len - at) one = len - at;
    bool one_found = false;
    uint64_t hash = BASE_HASH_SEED;
    for (size_t n = 0; n < t->max_normal_len && at + n < len;) {
        size_t step = fmt_utf8_lead_len((unsigned char)text[at + n]);
        if (step > len - at - n) step = len - at - n;
        hash = base_hash(hash, text + at + n, step);
        n += step;
        int32_t id = fmt_tok_find_hashed(v, hash, text + at, n);
        if (id < 0) continue;
        fmt_tok_type type = fmt_tok_type_of(v, (uint32_t)id);
        if (type == FMT_TOK_CONTROL || type == FMT_TOK_UNKNOWN || type == FMT_TOK_BYTE) continue;
        /* tokenizer.json's added tokens are no part of the model. */
        if (type == FMT_TOK_USER && t->leftmost_specials) continue;
        if (n == one) one_found = true;
        double score = best[at].score + (type == FMT_TOK_USER ? 0.0 : (double)v->scores[id]);
        if (score > best[at + n].score) best[at + n] = (best_cut){score, (uint32_t)at, id};
    }
    double score = best[at].score + (double)t->unknown_score;
    if (!one_found && score > best[at + one].score) best[at + one] = (best_cut){score, (uint32_t)at, -1};
}

/* Follows the cuts from the end and pushes them in order; neighbouring unknowns count as one. */
static weir_status push_path(const fmt_tokenizer *t, const char *text, size_t len, best_cut *best,
                             fmt_tok_ids *out, weir_error *err)
{
    /* Turn the links round, so that `from` of a position names where its cut ends. */
    for (size_t end = len, next = 0; end > 0;) {
        size_t begin = best[end].from;
        best[end].from = (uint32_t)next;
        next = end;
        end = begin;
        if (end == 0) best[0].from = (uint32_t)next;
    }
    weir_status status = WEIR_OK;
    bool was_unknown = false;
    for (size_t at = 0; at < len && status == WEIR_OK; at = best[at].from) {
        size_t end = best[at].from;
        int32_t id = best[end].id;
        if (id >= 0) {
            status = fmt_tok_push(out, id, err);
        } else if (t->byte_fallback || !was_unknown) {
            status = fmt_tok_push_unknown(t, text + at, end - at, out, err);
        }
        was_unknown = id < 0;
    }
    return status;
}

weir_status fmt_tok_unigram(const fmt_tokenizer *t, const char *text, size_t len, bool prefix,
                            fmt_tok_ids *out, weir_error *err)
{
    best_cut *best = NULL;
    base_buf norm;
    base_buf_init(&norm, t->env, BASE_TAG_RUNTIME);
    weir_status status = normalize(t, text, len, prefix, &norm, err);
    if (status != WEIR_OK || norm.len == 0) goto done;
    best = base_alloc_array(t->env, BASE_TAG_RUNTIME, norm.len + 1, sizeof *best, err);
    if (best == NULL) {
        status = fmt_tok_no_memory(err);
        goto done;
    }
    for (size_t i = 1; i <= norm.len; i++) best[i] = (best_cut){-DBL_MAX, 0, -1};
    for (size_t at = 0; at < norm.len;) {
        size_t step = fmt_utf8_lead_len((unsigned char)norm.data[at]);
        extend(t, norm.data, norm.len, at, best);
        at += step < norm.len - at ? step : norm.len - at;
    }
    status = push_path(t, norm.data, norm.len, best, out, err);
done:
    base_free(t->env, best);
    base_buf_finish(&norm);
    return status;
}
