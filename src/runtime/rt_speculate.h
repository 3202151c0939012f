/* Exact speculation: guesses at the next tokens go into a pass behind the token that is due, with logits for
 * each. The sampler then draws from the rows in order, as it would one pass at a time, and goes on as long as
 * what it draws is what was guessed. Guesses decide how many tokens a pass gives, never which.
 *
 *   rows     due   guess 1   guess 2   guess 3
 *   drawn     a       b         x                 a = guess 1, b = guess 2, x is not guess 3: 3 tokens, one
 * pass
 *
 * Whether guessing pays is decided by what was measured: how long passes of so many rows take, and how often
 * guesses of that kind were right. A guess that is not checked still tells: its first token is compared with
 * what comes. So texts that cannot be guessed cost next to nothing.
 *
 * Estimates can be wrong, so what may be lost is bounded as well. Each session keeps a purse, counted in
 * tokens of plain decoding: it begins with a fraction of one, gets a hundredth with each pass, and what right
 * guesses saved. A pass takes so many guesses as the purse could pay for if all were wrong. What
 * a draft model's time took beyond that is its debt, and no loss of looking up. And a pass in between goes
 * without guesses, so that what plain decoding takes stays known. */
#ifndef WEIR_RT_SPECULATE_H
#define WEIR_RT_SPECULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RT_GUESSES_MAX 31 /* of one pass */
#define RT_COST_ROWS   64

/* Where the tokens of a sequence occur: chains of places whose tokens have the same hash, the latest first.
 */
#define RT_INDEX_BITS 10
typedef struct rt_index {
    uint32_t latest[1 << RT_INDEX_BITS]; /* place + 1; 0: none */
    uint32_t *before;                    /* ctx_tokens of them: the place before that one in its chain + 1 */
    uint32_t n;                          /* places [0, n) are in it */
} rt_index;

/* Seconds of a pass with logits for all of its rows. */
typedef struct rt_costs {
    double seconds[RT_COST_ROWS + 1];
    uint32_t count[RT_COST_ROWS + 1]; /* 0: not measured */
    uint32_t idle[RT_COST_ROWS + 1];  /* passes since then, or since the first */
    double long_seconds;              /* of a longer one, in prefill */
    uint32_t long_rows;               /* 0: none */
    uint64_t n_passes;
    double row_guess; /* a row's share of a pass, for what nothing is known of */
} rt_costs;

/* Kinds of guesses: by the length of the text that was found again, and the draft model's. */
#define RT_KIND_DRAFT 10
#define RT_KINDS      11

/* What a session has learnt about guesses at its text. */
typedef struct rt_guessing {
    double hits[RT_KINDS], trials[RT_KINDS];
    double purse;          /* tokens that guesses gave, less those that their time would have given */
    double draft_debt;     /* tokens that the draft model's time took beyond the purse */
    double draft_seconds;  /* for one token of the draft model; 0: not measured */
    uint32_t draft_from;   /* the draft model has the text from here on, and its first token */
    uint32_t draft_pause;  /* passes until it is tried again */
    uint32_t draft_wait;   /* how long the next pause is */
    uint32_t draft_errors; /* in a row, of this answer */
} rt_guessing;

/* Guesses at what follows a sequence. */
typedef struct rt_guess {
    int32_t token[RT_GUESSES_MAX];
    uint32_t n;       /* there are */
    uint32_t n_rows;  /* go into the pass */
    uint32_t n_right; /* were so */
    uint32_t length;  /* of the text that was found again; 0: from the draft model */
    int32_t looked;   /* the first token by looking up, whatever is checked; -1: none */
    uint32_t found;   /* length of that */
    double seconds;   /* that the draft model took */
} rt_guess;

#endif
