/* Prompts, options and answers that tests of guesses share. */
#ifndef WEIR_RT_GUESS_TEST_H
#define WEIR_RT_GUESS_TEST_H

#include "rt_test.h"

#include "runtime/rt_answer.h"

#define N_PROMPT 40
#define N_ANSWER 60

/* A text that comes back to itself. */
static inline void prompt_of(int32_t *tokens, uint64_t seed)
{
    some_tokens(tokens, N_PROMPT, 500, seed);
    memcpy(tokens + N_PROMPT / 2, tokens, N_PROMPT / 2 * sizeof *tokens);
}

static inline weir_generate_options options_of(weir_speculate mode, int sampling)
{
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = N_ANSWER;
    o.ignore_end = true;
    o.speculate = mode;
    o.speculate_tokens = 7;
    o.sampling.seed = 41;
    if (sampling == 0) return o;
    o.sampling.temperature = 0.7F;
    o.sampling.top_p = 0.9F;
    if (sampling == 1) return o;
    o.sampling.repeat_penalty = 1.3F;
    o.sampling.repeat_last = 9;
    o.sampling.top_k = 20;
    return o;
}

/* The same file once more. */
static inline weir_model *open_again(fixture *f, const weir_model *m)
{
    weir_model *again;
    assert_ok(f, weir_model_open(f->context, base_file_path(fmt_model_file(m->file, 0)), &again, &f->err));
    return again;
}

/* Passes of eight rows with logits for each. */
static inline void load_eight(fixture *f, weir_model *m, uint32_t n_sessions)
{
    weir_load_options o = load_options(160, 2);
    o.n_sessions = n_sessions;
    o.prefill_chunk = 8;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    assert_true(m->run->plan.max_outputs >= 8);
}

/* A model that is all in memory, for so many sessions, and another one that streams, to guess for it. */
static inline void load_with_draft(fixture *f, uint32_t n_sessions, weir_model **m, weir_model **draft)
{
    weir_load_options streams = streaming_options(f, make_model(f, "qwen3", 256));
    *draft = open_small(f, "qwen3");
    *m = open_small(f, "llama");
    assert_ok(f, weir_model_load(*draft, &streams, &f->err));
    load_eight(f, *m, n_sessions);
    assert_true((*draft)->run->plan.memory.streamed_bytes > 0 && (*m)->run->plan.memory.streamed_bytes == 0);
}

static inline weir_result answer_of(fixture *f, weir_session *s, uint64_t prompt,
                                    const weir_generate_options *o)
{
    int32_t tokens[N_PROMPT];
    weir_result r;
    prompt_of(tokens, prompt);
    weir_session_reset(s);
    assert_ok(f, weir_generate(s, tokens, N_PROMPT, o, &r, &f->err));
    assert_int_equal(r.n_tokens, o->max_tokens);
    assert_int_equal(weir_session_position(s), N_PROMPT + r.n_tokens);
    assert_int_equal(s->n_cached, s->n_tokens - 1);
    return r;
}

static inline void assert_same(const weir_result *a, const weir_result *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->logits_hash, b->logits_hash);
    assert_int_equal(a->stop, b->stop);
}

#endif
