/* Guesses from the text itself: the longest end of the sequence that occurred before says how it went on then
 * (A. Saxena, "Prompt Lookup Decoding", 2023). Code that is edited, quotes and lists repeat long runs.
 *
 * Each position is linked to the one before it whose token has the same hash, so that a search visits places
 * where the last token occurs and hardly any others, the latest first, and a bounded number of them: it takes
 * a few microseconds at most, however long the text is. */
#include "rt_internal.h"

#define PLACES_MAX 512 /* visited by a search */
#define LENGTH_MAX 64

static uint32_t slot_of(int32_t token)
{
    return ((uint32_t)token * 2654435769u) >> (32 - RT_INDEX_BITS);
}

void rt_index_cut(rt_index *x, const int32_t *t, uint32_t n)
{
    for (; x->n > n; x->n--) x->latest[slot_of(t[x->n - 1])] = x->before[x->n - 1];
}

/* Places are numbered from 1 on; 0 ends a chain. */
static void index_extend(rt_index *x, const int32_t *t, uint32_t n)
{
    for (; x->n < n; x->n++) {
        uint32_t *latest = &x->latest[slot_of(t[x->n])];
        x->before[x->n] = *latest;
        *latest = x->n + 1;
    }
}

/* How many tokens before and at `at` equal those at the end. */
static uint32_t match_length(const int32_t *t, uint32_t n, uint32_t at)
{
    uint32_t most = (uint32_t)base_min(at + 1, LENGTH_MAX), length = 0;
    while (length < most && t[at - length] == t[n - 1 - length]) length++;
    return length;
}

uint32_t rt_lookup(rt_index *x, const int32_t *t, uint32_t n, uint32_t n_wanted, int32_t *guesses,
                   uint32_t *length)
{
    *length = 0;
    if (n < 2 || n_wanted == 0) return 0;
    index_extend(x, t, n);
    uint32_t best = 0, left = PLACES_MAX;
    /* The latest of equals: texts change as they go. */
    for (uint32_t place = x->before[n - 1]; place != 0 && left > 0; place = x->before[place - 1], left--) {
        uint32_t at = place - 1;
        /* Most are no longer than the best so far, and one token tells. */
        if (at < *length || t[at - *length] != t[n - 1 - *length]) continue;
        uint32_t here = match_length(t, n, at);
        if (here <= *length) continue;
        *length = here;
        best = at;
        if (here == LENGTH_MAX) break;
    }
    if (*length == 0) return 0;
    /* A run that reaches the end repeats itself: what was guessed is read on. */
    for (uint32_t i = 0; i < n_wanted; i++) {
        uint32_t from = best + 1 + i;
        guesses[i] = from < n ? t[from] : guesses[from - n];
    }
    return n_wanted;
}
