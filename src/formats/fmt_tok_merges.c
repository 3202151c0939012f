/* BPE merges. A merge joins two tokens into a third; the third's text says all but where it is cut. So a
 * merge is one 32-bit word in the list of its result, and a pair of neighbours is looked up by the text that
 * they would make: half a million merges take 2 MiB. */
#include "fmt_tok_internal.h"

#include <string.h>

weir_status fmt_tok_merge_reserve(fmt_tok_merge_list *list, uint64_t n, weir_error *err)
{
    uint32_t cap = n < FMT_TOK_MAX_MERGES ? (uint32_t)n : FMT_TOK_MAX_MERGES;
    uint32_t *results =
        base_realloc(list->env, BASE_TAG_TOKENIZER, list->results, cap * sizeof *results, err);
    if (results == NULL) return fmt_tok_no_memory(err);
    list->results = results;
    uint16_t *lefts = base_realloc(list->env, BASE_TAG_TOKENIZER, list->lefts, cap * sizeof *lefts, err);
    if (lefts == NULL) return fmt_tok_no_memory(err);
    list->lefts = lefts;
    list->cap = cap;
    return WEIR_OK;
}

weir_status fmt_tok_merge_add(fmt_tok_merge_list *list, const fmt_tok_vocab *v, const char *left,
                              size_t left_len, const char *right, size_t right_len, weir_error *err)
{
    char joined[2 << FMT_TOK_LEFT_BITS];
    if (list->n == FMT_TOK_MAX_MERGES) {
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "more than %u merges", FMT_TOK_MAX_MERGES);
    }
    if (left_len >= 1u << FMT_TOK_LEFT_BITS || left_len + right_len > sizeof joined) {
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "merge %u joins %zu and %zu bytes; at most %d and %zu together are possible",
                         list->n, left_len, right_len, (1 << FMT_TOK_LEFT_BITS) - 1, sizeof joined);
    }
    memcpy(joined, left, left_len);
    memcpy(joined + left_len, right, right_len);
    int32_t result = fmt_tok_find(v, joined, left_len + right_len);
    if (left_len == 0 || right_len == 0 || result < 0 || fmt_tok_find(v, left, left_len) < 0 ||
        fmt_tok_find(v, right, right_len) < 0) {
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         "merge %u ('%.*s' + '%.*s') names a token that is not in the vocabulary; the file "
                         "is damaged or badly converted",
                         list->n, (int)(left_len < 64 ? left_len : 64), left,
                         (int)(right_len < 64 ? right_len : 64), right);
    }
    if (list->n == list->cap) {
        weir_status status =
            fmt_tok_merge_reserve(list, list->cap < 1024 ? 1024 : list->cap + list->cap / 2, err);
        if (status != WEIR_OK) return status;
    }
    list->results[list->n] = (uint32_t)result;
    list->lefts[list->n++] = (uint16_t)left_len;
    return WEIR_OK;
}

void fmt_tok_merge_list_finish(fmt_tok_merge_list *list)
{
    base_free(list->env, list->results);
    base_free(list->env, list->lefts);
    list->results = NULL;
    list->lefts = NULL;
    list->n = list->cap = 0;
}

/* Of a merge listed twice the better rank counts; without the others a list is no longer than its token's
 * text. */
static void drop_repeats(fmt_tok_merges *m, uint32_t n_results)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < n_results; r++) {
        uint64_t seen[(1 << FMT_TOK_LEFT_BITS) / 64] = {0};
        uint32_t begin = m->first[r], end = m->first[r + 1];
        m->first[r] = kept;
        for (uint32_t i = begin; i < end; i++) {
            uint32_t left = m->packed[i] & ((1u << FMT_TOK_LEFT_BITS) - 1);
            if (seen[left / 64] >> left % 64 & 1) continue;
            seen[left / 64] |= UINT64_C(1) << left % 64;
            m->packed[kept++] = m->packed[i];
        }
    }
    m->first[n_results] = kept;
    m->n = kept;
}

weir_status fmt_tok_merges_build(const fmt_tok_merge_list *list, const fmt_tok_vocab *v, fmt_tok_merges *m,
                                 weir_error *err)
{
    m->first = base_alloc_array(list->env, BASE_TAG_TOKENIZER, v->n + 2u, sizeof *m->first, err);
    if (m->first == NULL) return fmt_tok_no_memory(err);
    m->packed = base_alloc_array(list->env, BASE_TAG_TOKENIZER, list->n, sizeof *m->packed, err);
    if (m->packed == NULL) return fmt_tok_no_memory(err);
    m->n = list->n;
    /* Counting sort by result: first[r + 1] is where r's next merge goes, and r's end when all are placed. */
    for (uint32_t i = 0; i < list->n; i++) m->first[list->results[i] + 2]++;
    for (uint32_t r = 2; r < v->n + 2u; r++) m->first[r] += m->first[r - 1];
    for (uint32_t i = 0; i < list->n; i++) {
        m->packed[m->first[list->results[i] + 1]++] = i << FMT_TOK_LEFT_BITS | list->lefts[i];
    }
    drop_repeats(m, v->n);
    return WEIR_OK;
}

void fmt_tok_merges_finish(base_env *env, fmt_tok_merges *m)
{
    base_free(env, m->first);
    base_free(env, m->packed);
    memset(m, 0, sizeof *m);
}

uint32_t fmt_tok_merge_rank(const fmt_tok_merges *m, uint32_t result, uint32_t left)
{
    for (uint32_t i = m->first[result]; i < m->first[result + 1]; i++) {
        if ((m->packed[i] & ((1u << FMT_TOK_LEFT_BITS) - 1)) == left)
            return m->packed[i] >> FMT_TOK_LEFT_BITS;
    }
    return UINT32_MAX;
}
