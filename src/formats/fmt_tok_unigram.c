/* Unigram (T. Kudo 2018, "Subword Regularization"): of all ways to cut the text the one with the largest sum
 * of scores, found by Viterbi over byte positions. */
#include "fmt_tok_internal.h"

#include <float.h>
#include <utf8proc.h>

#define SPACE_MARK "\xe2\x96\x81"

typedef struct best_cut {
    double score;
    uint32_t from;
    int32_t id;
} best_cut;

typedef struct normalizer {
    const fmt_tokenizer *t;
    base_buf *out;
    bool prefix, in_word;
} normalizer;

/* Writes replaced text; spaces become marks, runs of them one where the model squeezes. */
static weir_status emit(normalizer *z, const char *p, size_t n, weir_error *err)
{
    weir_status status = WEIR_OK;
    const char *mark = z->t->escape_spaces ? SPACE_MARK : " ";
    size_t mark_len = z->t->escape_spaces ? 3 : 1;
    for (size_t i = 0; i < n && status == WEIR_OK; i++) {
        if (p[i] == ' ') {
            z->in_word = false;
            if (!z->t->squeeze_spaces) status = base_buf_append(z->out, mark, mark_len, err);
            continue;
        }
        if (!z->in_word) {
            z->in_word = true;
            if (z->prefix || z->t->squeeze_spaces) status = base_buf_append(z->out, mark, mark_len, err);
            z->prefix = false;
        }
        if (status == WEIR_OK) status = base_buf_append(z->out, p + i, 1, err);
    }
    return status;
}

static weir_status normalize(const fmt_tokenizer *t, const char *text, size_t len, bool prefix, base_buf *out,
                             weir_error *err)
{
    normalizer z = {t, out, prefix, false};
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
        status = emit(&z, with, with_len, err);
        i += step;
    }
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
