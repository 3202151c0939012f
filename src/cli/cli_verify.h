/* What the two parts of `weir verify` share. */
#ifndef WEIR_CLI_VERIFY_H
#define WEIR_CLI_VERIFY_H

#include "cli.h"

/* One way of getting an answer, held against plain decoding by the session alone. */
typedef struct cli_verify_outcome {
    const char *check;  /* "lookup", "draft", "sessions", "budgets" */
    const char *level;  /* "half", "whole", "changing" */
    bool sampled;       /* at a temperature, with a seed; else greedy */
    weir_status status; /* with err */
    weir_error err;
    bool same;
    uint64_t hash, wanted; /* of the first answer that differs, else of the first */
    uint64_t mem_bytes, passes, drafted, accepted;
    uint64_t shrinks, grows; /* of the budget, between tokens */
} cli_verify_outcome;

/* Token ids spread over the vocabulary, the same in every run: no tokenizer is needed, and none can hide a
 * difference. The state begins with the seed. */
#define CLI_VERIFY_SEED UINT64_C(88172645463325252)
int32_t cli_verify_token(uint64_t *state, uint32_t n_vocab);

/* Answers with guesses, from the text and from a draft, answers of sessions that join and leave, and the same
 * while the budget shrinks and grows between their tokens: for each `tell` hears the outcome. The prompts
 * hold n_prompt tokens, answers n_tokens. */
typedef void (*cli_verify_tell)(void *arg, const cli_verify_outcome *o);
void cli_verify_answers(const cli_common *c, weir_model *m, uint32_t n_prompt, uint32_t n_tokens, bool full,
                        cli_verify_tell tell, void *arg);

#endif
