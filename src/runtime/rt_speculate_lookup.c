/* Guesses from the text itself: the longest end of the sequence that occurred before says how it went on then
 * (A. Saxena, "Prompt Lookup Decoding", 2023). Code that is edited, quotes and lists repeat long runs. */
#include "rt_internal.h"

#define SEARCH_TOKENS 32768 /* back from the end; a search takes some 10 us */
#define LENGTH_MAX    24

/* How many tokens before and at `at` equal those at the end. */
static uint32_t match_length(const int32_t *t, uint32_t n, uint32_t at)
{
    uint32_t most = (uint32_t)base_min(at + 1, LENGTH_MAX), length = 0;
    while (length < most && t[at - length] == t[n - 1 - length]) length++;
    return length;
}

uint32_t rt_lookup(const int32_t *t, uint32_t n, uint32_t n_wanted, int32_t *guesses, uint32_t *length)
{
    *length = 0;
    if (n < 2 || n_wanted == 0) return 0;
    uint32_t first = n > SEARCH_TOKENS ? n - SEARCH_TOKENS : 0, best = 0;
    /* The latest of equals: texts change as they go. */
    for (uint32_t at = n - 1; at-- > first && *length < LENGTH_MAX;) {
        if (t[at] != t[n - 1]) continue;
        uint32_t here = match_length(t, n, at);
        if (here > *length) {
            *length = here;
            best = at;
        }
    }
    if (*length == 0) return 0;
    /* A run that reaches the end repeats itself: what was guessed is read on. */
    for (uint32_t i = 0; i < n_wanted; i++) {
        uint32_t from = best + 1 + i;
        guesses[i] = from < n ? t[from] : guesses[from - n];
    }
    return n_wanted;
}
