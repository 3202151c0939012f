/* What the kinds of measurement of `weir bench` share. */
#ifndef WEIR_CLI_BENCH_H
#define WEIR_CLI_BENCH_H

#include "cli.h"

enum { CLI_BENCH_ROUNDS = 32, CLI_BENCH_SESSIONS = 64 };

typedef struct bench {
    cli_common common;
    cli_sizes budgets;
    uint32_t n_prompt, n_decode, n_rounds;
    uint32_t depth;          /* tokens in the cache before the clock starts */
    uint32_t n_sessions;     /* above 1: so many share passes */
    cli_speculate speculate; /* with a mode: guessing against plain decoding */
    weir_generate_options generate;
    const char *prompt; /* a text that is guessed at; NULL: two of the bench's own */
    bool raw;
    weir_model *model;
    int32_t *tokens;
    uint32_t n_given; /* tokens of the prompt that was given */
} bench;

double cli_bench_now(void); /* seconds */
/* Sorts x; 0 for none. */
double cli_bench_median(double *x, uint32_t n);
/* What every row of a report for scripts says: budget, peaks, sizes, settings. */
json_t *cli_bench_json(const bench *b, const weir_plan *plan, const weir_memory_report *memory);

/* Sessions that share passes against one alone. Exit status. */
int cli_bench_sessions(bench *b);
/* Guessing against plain decoding. Exit status. */
int cli_bench_speculate(bench *b);

#endif
