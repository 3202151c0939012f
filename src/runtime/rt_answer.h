/* An answer under way: what rt_generate.c begins and ends, rt_answers.c steps, and rt_speculate.c guesses
 * for. */
#ifndef WEIR_RT_ANSWER_H
#define WEIR_RT_ANSWER_H

#include "rt_internal.h"

struct weir_answer {
    weir_session *session;
    weir_generate_options options;
    const fmt_tokenizer *tokenizer; /* NULL: the model has none; tokens only */
    fmt_detok detok;
    base_buf text;
    size_t n_told; /* bytes of text that on_text has had */
    int32_t *tokens;
    size_t n_tokens, max_tokens;
    uint64_t hash;
    rt_draw draw;
    rt_guess guess;
    weir_stop stop;
    bool done;
    weir_error failure;  /* code OK: none */
    uint32_t n_before;   /* the sequence when it began */
    uint32_t n_cached;   /* its part in the caches then */
    uint32_t n_sequence; /* with the prompt */
    double start, decode_start, end;
    weir_result result; /* times and counts, filled as they come */
};

/* Samples from one row's logits and takes the token into the answer; a->done when it has ended. */
weir_status rt_answer_take(weir_answer *a, const float *logits, weir_error *err);
/* It ends for that reason. */
void rt_answer_stop(weir_answer *a, weir_stop stop);

#endif
