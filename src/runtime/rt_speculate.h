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
 * what comes. So texts that cannot be guessed cost next to nothing. */
#ifndef WEIR_RT_SPECULATE_H
#define WEIR_RT_SPECULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RT_GUESSES_MAX 31 /* of one pass */
#define RT_COST_ROWS   64

/* Seconds of a pass by its rows. */
typedef struct rt_costs {
    double seconds[RT_COST_ROWS + 1];
    uint32_t count[RT_COST_ROWS + 1]; /* 0: not measured */
    uint32_t idle[RT_COST_ROWS + 1];  /* passes since */
    double long_seconds;              /* of a longer one, in prefill */
    uint32_t long_rows;               /* 0: none */
    uint64_t n_passes;
    double row_guess; /* a row's share of a pass, for what nothing is known of */
} rt_costs;

/* Kinds of guesses: by the length of the text that was found again, and the draft model's. */
#define RT_KIND_DRAFT 8
#define RT_KINDS      9

/* What a session has learnt about guesses at its text. */
typedef struct rt_guessing {
    double hits[RT_KINDS], trials[RT_KINDS];
    /* Seconds that guesses saved, less those that they cost; and of all passes. */
    double profit, total;
    uint32_t pause;       /* tokens without guesses, since they cost more than they saved */
    uint32_t wait;        /* how long the next pause is */
    double draft_seconds; /* for one token of the draft model; 0: not measured */
    uint32_t draft_pause; /* tokens until it is tried again */
    uint32_t draft_wait;  /* how long the next pause is */
    uint32_t draft_errors;
} rt_guessing;

/* Guesses at what follows a sequence. */
typedef struct rt_guess {
    int32_t token[RT_GUESSES_MAX];
    uint32_t n;      /* there are */
    uint32_t n_rows; /* go into the pass */
    uint32_t length; /* of the text that was found again; 0: from the draft model */
    int32_t looked;  /* the first token by looking up, whatever is checked; -1: none */
    uint32_t found;  /* length of that */
} rt_guess;

#endif
