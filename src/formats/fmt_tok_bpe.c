/* Merging, for byte-level BPE and for SentencePiece-style BPE alike: a text falls into characters; again and
 * again the best pair of neighbours is joined. A heap holds the pairs, so that a long word costs n log n.
 *
 *   symbols   [H][e][l][l][o]      linked list over the text; a joined symbol swallows its right neighbour
 * (len 0) heap      (rank, left, right)  stale entries are known by their size: a symbol only ever grows to
 * the right */
#include "fmt_tok_internal.h"

#include <string.h>
#include <utf8proc.h>

#define NONE UINT32_MAX

typedef struct fmt_tok_symbol {
    uint32_t begin, len;
    uint32_t prev, next;
} fmt_tok_symbol;

typedef struct fmt_tok_pair {
    uint64_t key; /* rank, then left: smallest first */
    uint32_t right;
    uint32_t len; /* of both together */
} fmt_tok_pair;

void fmt_tok_joiner_finish(fmt_tok_joiner *j)
{
    base_free(j->env, j->symbols);
    base_free(j->env, j->heap);
    j->symbols = NULL;
    j->heap = NULL;
    j->cap_symbols = j->cap_heap = 0;
}

/* Each symbol gives one pair at the start and each join removes a symbol and adds at most two pairs. */
static weir_status reserve(fmt_tok_joiner *j, size_t n, weir_error *err)
{
    if (n <= j->cap_symbols) return WEIR_OK;
    size_t cap = n < 64 ? 64 : n + n / 2;
    fmt_tok_symbol *symbols = base_realloc(j->env, BASE_TAG_RUNTIME, j->symbols, cap * sizeof *symbols, err);
    if (symbols == NULL) return fmt_tok_no_memory(err);
    j->symbols = symbols;
    fmt_tok_pair *heap = base_realloc(j->env, BASE_TAG_RUNTIME, j->heap, 2 * cap * sizeof *heap, err);
    if (heap == NULL) return fmt_tok_no_memory(err);
    j->heap = heap;
    j->cap_heap = 2 * cap;
    j->cap_symbols = cap;
    return WEIR_OK;
}

static void heap_push(fmt_tok_pair *heap, size_t n, fmt_tok_pair pair)
{
    size_t i = n;
    while (i > 0 && heap[(i - 1) / 2].key > pair.key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = pair;
}

static fmt_tok_pair heap_pop(fmt_tok_pair *heap, size_t n)
{
    fmt_tok_pair top = heap[0], last = heap[n - 1];
    size_t i = 0;
    n--;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= last.key) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* Scores order like unsigned numbers, best first. */
static uint32_t score_rank(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~bits;
}

/* True when the symbols join; fills *pair. */
static bool try_pair(const fmt_tokenizer *t, const char *text, const fmt_tok_symbol *s, uint32_t left,
                     uint32_t right, fmt_tok_pair *pair)
{
    if (left == NONE || right == NONE) return false;
    uint32_t len = s[left].len + s[right].len, rank;
    int32_t id = fmt_tok_find_plain(&t->vocab, text + s[left].begin, len);
    if (id < 0) return false;
    if (t->kind == FMT_TOK_BPE) {
        rank = fmt_tok_merge_rank(&t->merges, (uint32_t)id, s[left].len);
        if (rank == UINT32_MAX) return false;
    } else {
        rank = score_rank(t->vocab.scores[id]);
    }
    *pair = (fmt_tok_pair){(uint64_t)rank << 32 | left, right, len};
    return true;
}

static size_t make_symbols(const fmt_tok_joiner *j, const char *text, size_t len)
{
    fmt_tok_symbol *s = j->symbols;
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        size_t step = fmt_utf8_lead_len((unsigned char)text[at]);
        if (step > len - at) step = len - at;
        s[n] =
            (fmt_tok_symbol){(uint32_t)at, (uint32_t)step, n == 0 ? NONE : (uint32_t)n - 1, (uint32_t)n + 1};
        at += step;
    }
    s[n - 1].next = NONE;
    return n;
}

weir_status fmt_tok_join(const fmt_tokenizer *t, fmt_tok_joiner *j, const char *text, size_t len,
                         fmt_tok_ids *out, weir_error *err)
{
    if (len == 0) return WEIR_OK;
    weir_status status = reserve(j, len, err);
    if (status != WEIR_OK) return status;
    fmt_tok_symbol *s = j->symbols;
    size_t n = make_symbols(j, text, len), n_heap = 0;
    fmt_tok_pair pair;
    for (uint32_t i = 1; i < n; i++) {
        if (try_pair(t, text, s, i - 1, i, &pair)) heap_push(j->heap, n_heap++, pair);
    }
    while (n_heap > 0) {
        fmt_tok_pair best = heap_pop(j->heap, n_heap--);
        uint32_t left = (uint32_t)best.key, right = best.right;
        if (s[left].len == 0 || s[right].len == 0 || s[left].len + s[right].len != best.len) continue;
        s[left].len = best.len;
        s[right].len = 0;
        s[left].next = s[right].next;
        if (s[left].next != NONE) s[s[left].next].prev = left;
        if (try_pair(t, text, s, s[left].prev, left, &pair)) heap_push(j->heap, n_heap++, pair);
        if (try_pair(t, text, s, left, s[left].next, &pair)) heap_push(j->heap, n_heap++, pair);
    }
    for (uint32_t i = 0; i != NONE && status == WEIR_OK; i = s[i].next) {
        int32_t id = fmt_tok_find_plain(&t->vocab, text + s[i].begin, s[i].len);
        status = id >= 0 ? fmt_tok_push(out, id, err)
                         : fmt_tok_push_unknown(t, text + s[i].begin, s[i].len, out, err);
    }
    return status;
}

weir_status fmt_tok_join_words(const fmt_tokenizer *t, fmt_tok_joiner *j, const char *text, size_t len,
                               fmt_tok_ids *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    size_t begin = 0;
    /* In the steps of make_symbols, so that invalid UTF-8 is cut where its symbols are. */
    for (size_t i = 0; i + 3 <= len && status == WEIR_OK; i += fmt_utf8_lead_len((unsigned char)text[i])) {
        if (i == begin || memcmp(text + i, "\xe2\x96\x81", 3) != 0) continue;
        uint8_t before = (uint8_t)text[i - 1];
        if (t->no_cut[before / 8] >> before % 8 & 1) continue;
        status = fmt_tok_join(t, j, text + begin, i - begin, out, err);
        begin = i;
    }
    if (status == WEIR_OK) status = fmt_tok_join(t, j, text + begin, len - begin, out, err);
    return status;
}

/* Writes the stand-ins of the bytes. */
static weir_status spell_bytes(base_buf *out, const char *p, size_t n, weir_error *err)
{
    char chunk[512];
    out->len = 0;
    for (size_t i = 0; i < n;) {
        size_t used = 0;
        for (; i < n && used + 2 <= sizeof chunk; i++)
            used += fmt_utf8_encode(fmt_byte_to_cp((uint8_t)p[i]), chunk + used);
        weir_status status = base_buf_append(out, chunk, used, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

/* Canonical (or compatibility) composition, in a buffer of our own: utf8proc's convenient calls use malloc.
 */
static weir_status compose(base_env *env, bool compat, base_buf *text, weir_error *err)
{
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose((const utf8proc_uint8_t *)text->data, (utf8proc_ssize_t)text->len,
                                            NULL, 0, options);
    if (n < 0) return base_fail(err, WEIR_ERR_INTERNAL, "normalization failed: %s", utf8proc_errmsg(n));
    utf8proc_int32_t *cps = base_alloc_array(env, BASE_TAG_RUNTIME, (size_t)n + 1, sizeof *cps, err);
    if (cps == NULL) return fmt_tok_no_memory(err);
    weir_status status = WEIR_OK;
    n = utf8proc_decompose((const utf8proc_uint8_t *)text->data, (utf8proc_ssize_t)text->len, cps, n,
                           options);
    utf8proc_ssize_t len = n < 0 ? n : utf8proc_reencode(cps, n, options);
    if (len < 0) {
        status = base_fail(err, WEIR_ERR_INTERNAL, "normalization failed: %s", utf8proc_errmsg(len));
    } else {
        text->len = 0;
        status = base_buf_append(text, cps, (size_t)len, err);
    }
    base_free(env, cps);
    return status;
}

static weir_status encode_pieces(const fmt_tokenizer *t, const char *text, const fmt_tok_pieces *pieces,
                                 fmt_tok_ids *out, weir_error *err)
{
    fmt_tok_joiner joiner = {.env = t->env};
    base_buf spelled;
    base_buf_init(&spelled, t->env, BASE_TAG_RUNTIME);
    weir_status status = WEIR_OK;
    size_t begin = 0;
    for (size_t i = 0; i < pieces->n && status == WEIR_OK; i++) {
        const char *word = text + begin;
        size_t len = pieces->ends[i] - begin;
        begin = pieces->ends[i];
        if (pieces->drop[i]) continue;
        if (t->byte_level) {
            status = spell_bytes(&spelled, word, len, err);
            word = spelled.data;
            len = spelled.len;
            if (status != WEIR_OK) break;
        }
        int32_t whole = t->ignore_merges ? fmt_tok_find_plain(&t->vocab, word, len) : -1;
        if (whole < 0 && t->escape_spaces) {
            status = fmt_tok_join_words(t, &joiner, word, len, out, err);
            continue;
        }
        status = whole >= 0 ? fmt_tok_push(out, whole, err) : fmt_tok_join(t, &joiner, word, len, out, err);
    }
    base_buf_finish(&spelled);
    fmt_tok_joiner_finish(&joiner);
    return status;
}

weir_status fmt_tok_bpe(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                        weir_error *err)
{
    base_buf clean;
    fmt_tok_pieces pieces = {.env = t->env};
    base_buf_init(&clean, t->env, BASE_TAG_RUNTIME);
    weir_status status = WEIR_OK;
    if (!fmt_utf8_is_valid(text, len) || t->nfc || t->nfkc) {
        status = fmt_utf8_append_clean(&clean, text, len, err);
        if (status == WEIR_OK && (t->nfc || t->nfkc)) status = compose(t->env, t->nfkc, &clean, err);
        text = clean.data;
        len = clean.len;
    }
    if (status == WEIR_OK) status = fmt_tok_split_run(t->env, &t->split, text, len, &pieces, err);
    if (status == WEIR_OK) status = encode_pieces(t, text, &pieces, out, err);
    fmt_tok_pieces_finish(&pieces);
    base_buf_finish(&clean);
    return status;
}
