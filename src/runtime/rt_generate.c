/* From a prompt to an answer: it begins with the prompt behind the session's sequence, takes token after
 * token from the passes' logits with the text handed out as it becomes whole, and ends as a result. */
#include "rt_answer.h"

#include <string.h>

void weir_generate_options_init(weir_generate_options *o)
{
    *o = (weir_generate_options){.struct_size = sizeof *o, .max_tokens = 256};
    weir_sampling_init(&o->sampling);
}

/* Whoever has an older version of the struct has less of it, so nothing is read before its size. */
static weir_status read_options(const weir_generate_options *given, weir_generate_options *o, weir_error *err)
{
    weir_generate_options_init(o);
    if (given == NULL) return WEIR_OK;
    if (!RT_IS(weir_generate_options, given, err)) return err->code;
    *o = *given;
    if ((unsigned)o->speculate > WEIR_SPECULATE_DRAFT)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "speculate is %d; there is no such mode",
                         (int)o->speculate);
    if (o->speculate_tokens == 0 || o->speculate_tokens > RT_GUESSES_MAX)
        o->speculate_tokens = RT_GUESSES_MAX;
    return WEIR_OK;
}

/* Hands out what became whole; false when the caller wants no more. */
static bool tell(weir_answer *a)
{
    size_t n = a->text.len - a->n_told;
    if (n == 0 || a->options.on_text == NULL) return true;
    const char *from = a->text.data + a->n_told;
    a->n_told = a->text.len;
    return a->options.on_text(a->options.arg, from, n);
}

void rt_answer_stop(weir_answer *a, weir_stop stop)
{
    a->stop = stop;
    a->done = true;
    a->end = base_now(a->session->model->env);
}

weir_status rt_answer_take(weir_answer *a, const float *logits, weir_error *err)
{
    weir_session *s = a->session;
    weir_model *m = s->model;
    rt_loaded *run = m->run;
    int32_t token;
    a->hash = weir_logits_hash(a->hash, logits, lm_model_hparams(m->lm)->n_vocab);
    weir_status status = rt_sampler_pick(run->sampler, &a->draw, logits, s->tokens, s->n_tokens, &token, err);
    if (status != WEIR_OK)
        return base_fail_context(err, status, "%s", base_file_path(fmt_model_file(m->file, 0)));
    if (a->tokenizer != NULL && !a->options.ignore_end && fmt_tokenizer_is_end(a->tokenizer, token)) {
        rt_answer_stop(a, WEIR_STOP_END);
        return WEIR_OK;
    }
    if (s->n_tokens == run->plan.view.ctx_tokens) {
        rt_answer_stop(a, WEIR_STOP_CONTEXT);
        return WEIR_OK;
    }
    rt_session_hold(s, token);
    a->tokens[a->n_tokens++] = token;
    if (a->tokenizer != NULL) status = fmt_detok_push(a->tokenizer, &a->detok, token, &a->text, err);
    if (status != WEIR_OK) return status;
    bool go_on = tell(a);
    if (a->n_tokens == 1) a->result.first_token_seconds = base_now(m->env) - a->start;
    if (!go_on)
        rt_answer_stop(a, WEIR_STOP_CALLER);
    else if (a->n_tokens == a->options.max_tokens)
        rt_answer_stop(a, WEIR_STOP_LENGTH);
    else if (s->n_tokens == run->plan.view.ctx_tokens)
        rt_answer_stop(a, WEIR_STOP_CONTEXT);
    else if (atomic_load(&m->cancel))
        rt_answer_stop(a, WEIR_STOP_CANCELLED);
    return WEIR_OK;
}

/* ---- beginning ---- */

/* An answer is given all that it can need when it begins: what it has can then always be handed over, whoever
 * takes the rest of the budget meanwhile. */
static weir_status take_room(weir_answer *a, weir_error *err)
{
    base_env *env = a->session->model->env;
    uint64_t bytes;
    a->tokens = base_alloc_array(env, BASE_TAG_RUNTIME, base_max(a->max_tokens, 1), sizeof *a->tokens, err);
    if (a->tokens == NULL) return err->code;
    if (!base_mul(a->max_tokens, a->tokenizer != NULL ? a->session->model->text->most_text : 0, &bytes))
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "the text of %zu tokens is more than memory can hold",
                         a->max_tokens);
    weir_status status = base_buf_reserve(&a->text, bytes, err);
    return status == WEIR_OK ? base_buf_append(&a->text, "", 0, err) : status;
}

uint64_t rt_answer_bytes(const weir_model *m, uint32_t ctx_tokens)
{
    enum { SMALLEST_TEXT = 64, HEADERS = 3 * 16 }; /* as the ledger counts three blocks */
    uint64_t each = sizeof(int32_t) + (uint64_t)m->text->most_text;
    return rt_add(sizeof(weir_answer) + SMALLEST_TEXT + HEADERS, rt_mul(ctx_tokens, each));
}

/* Under the lock, as plans of other models ask whose room is still to be taken. */
static void set_answer(weir_session *s, weir_answer *a)
{
    base_lock_enter(s->model->context->lock);
    s->answer = a;
    base_lock_leave(s->model->context->lock);
}

/* Without a tokenizer tokens are all there is, and nothing ends an answer. */
static weir_status find_tokenizer(weir_answer *a, weir_error *err)
{
    weir_model *m = a->session->model;
    weir_error none = {0};
    weir_status status = rt_text_tokenizer(m, &a->tokenizer, &none);
    if (status == WEIR_OK) return WEIR_OK;
    a->tokenizer = NULL;
    if (m->text->why_none.code != WEIR_OK) return WEIR_OK;
    *err = none;
    return status;
}

static weir_status answer_begin(weir_answer *a, const int32_t *prompt, size_t n, weir_error *err)
{
    weir_session *s = a->session;
    weir_status status = find_tokenizer(a, err);
    if (status != WEIR_OK) return status;
    uint32_t ctx = s->model->run->plan.view.ctx_tokens;
    uint64_t room = ctx > s->n_tokens + n ? ctx - s->n_tokens - n : 0;
    a->max_tokens = (size_t)base_min(a->options.max_tokens, room);
    a->hash = WEIR_HASH_SEED;
    a->stop = WEIR_STOP_LENGTH;
    status = rt_draw_begin(&a->draw, &a->options.sampling, err);
    if (status == WEIR_OK) status = rt_session_check_tokens(s, prompt, n, err);
    if (status == WEIR_OK) status = take_room(a, err);
    if (status != WEIR_OK) return status;
    a->n_before = s->n_tokens;
    a->n_cached = s->n_cached;
    /* The prompt waits behind the sequence until a step runs it. */
    memcpy(s->tokens + s->n_tokens, prompt, n * sizeof *prompt);
    s->n_tokens += (uint32_t)n;
    a->n_sequence = s->n_tokens;
    set_answer(s, a);
    rt_guess_begin(s);
    a->result = (weir_result){.struct_size = sizeof a->result, .n_prompt_tokens = n};
    return WEIR_OK;
}

static void answer_free(weir_answer *a)
{
    base_env *env = a->session->model->env;
    base_buf_finish(&a->text);
    base_free(env, a->tokens);
    base_free(env, a);
}

static weir_status begin(weir_session *s, const int32_t *prompt, size_t n, const weir_generate_options *o,
                         weir_answer **out, weir_error *err)
{
    *out = NULL;
    weir_generate_options options;
    weir_status status = read_options(o, &options, err);
    if (status == WEIR_OK) status = rt_session_check(s, err);
    if (status != WEIR_OK) return status;
    if (n == 0) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the prompt has no tokens");
    if (options.speculate == WEIR_SPECULATE_DRAFT && s->draft == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "speculate is DRAFT, and the session has no draft model (weir_session_set_draft)");
    if (s->answer != NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "the session has an answer under way; end it before another begins");
    weir_answer *a = base_alloc(s->model->env, BASE_TAG_RUNTIME, sizeof *a, err);
    if (a == NULL) return err->code;
    a->session = s;
    a->options = options;
    base_buf_init(&a->text, s->model->env, BASE_TAG_RUNTIME);
    a->start = a->decode_start = a->end = base_now(s->model->env);
    weir_error failure = {0};
    status = answer_begin(a, prompt, n, &failure);
    if (status != WEIR_OK) {
        answer_free(a);
        *err = failure;
        return status;
    }
    *out = a;
    return WEIR_OK;
}

static bool is_answering(const weir_model *m)
{
    if (m->run == NULL) return false;
    for (const weir_session *s = m->run->sessions; s != NULL; s = s->next)
        if (s->answer != NULL && !s->answer->done) return true;
    return false;
}

weir_status weir_answer_begin(weir_session *s, const int32_t *prompt, size_t n,
                              const weir_generate_options *o, weir_answer **out, weir_error *err)
{
    weir_error local;
    /* A cancel that came too late for what ran before is not meant for this one. */
    if (!is_answering(s->model)) atomic_store(&s->model->cancel, false);
    return begin(s, prompt, n, o, out, rt_error(err, &local));
}

bool weir_answer_done(const weir_answer *a)
{
    return a->done;
}

/* ---- ending ---- */

/* Gives back what was not needed; where that is refused, the block stays as it is. */
static void *shrink(base_env *env, void *p, size_t bytes)
{
    weir_error none;
    void *less = base_realloc(env, BASE_TAG_RUNTIME, p, bytes, &none);
    return less != NULL ? less : p;
}

/* Moves the answer into the result; out owns it from here. */
static weir_status give(weir_answer *a, weir_result *out, weir_error *err)
{
    base_env *env = a->session->model->env;
    weir_status status = WEIR_OK;
    if (a->failure.code != WEIR_OK) {
        *err = a->failure;
        return err->code;
    }
    if (a->tokenizer != NULL) status = fmt_detok_flush(a->tokenizer, &a->detok, &a->text, err);
    if (status != WEIR_OK) return status;
    if (!a->done || a->stop != WEIR_STOP_CALLER) tell(a);
    *out = a->result;
    out->tokens = shrink(env, a->tokens, base_max(a->n_tokens, 1) * sizeof *a->tokens);
    out->n_tokens = a->n_tokens;
    out->text = shrink(env, a->text.data, a->text.len + 1);
    out->text_len = a->text.len;
    out->stop = a->done ? a->stop : WEIR_STOP_CALLER;
    out->logits_hash = a->hash;
    a->tokens = NULL;
    base_buf_init(&a->text, env, BASE_TAG_RUNTIME);
    return WEIR_OK;
}

weir_status weir_answer_end(weir_answer *a, weir_result *out, weir_error *err)
{
    weir_error local, failure = {0};
    err = rt_error(err, &local);
    if (out != NULL) *out = (weir_result){.struct_size = sizeof *out};
    if (a == NULL) return WEIR_OK;
    weir_session *s = a->session;
    weir_status status = out != NULL ? give(a, out, &failure) : WEIR_OK;
    /* An answer that is not taken leaves no trace, and a prompt that has not run is none. */
    bool in_prompt = !a->done || a->stop == WEIR_STOP_CANCELLED;
    bool drop = out == NULL || status != WEIR_OK || (in_prompt && a->n_tokens == 0);
    if (drop && s->n_tokens > a->n_before) rt_session_cut(s, a->n_before);
    set_answer(s, NULL);
    answer_free(a);
    if (status != WEIR_OK) *err = failure;
    return status;
}

weir_status weir_generate(weir_session *s, const int32_t *prompt, size_t n, const weir_generate_options *o,
                          weir_result *out, weir_error *err)
{
    weir_error local, failure = {0};
    err = rt_error(err, &local);
    *out = (weir_result){.struct_size = sizeof *out};
    weir_answer *a;
    atomic_store(&s->model->cancel, false);
    weir_status status = begin(s, prompt, n, o, &a, err);
    if (status != WEIR_OK) return status;
    while (status == WEIR_OK && !weir_answer_done(a)) status = weir_answers_step(&a, 1, 0, &failure);
    if (status != WEIR_OK) {
        weir_answer_end(a, NULL, NULL);
        *err = failure;
        return status;
    }
    return weir_answer_end(a, out, err);
}

void weir_result_finish(weir_model *m, weir_result *r)
{
    if (r == NULL) return;
    base_free(m->env, r->tokens);
    base_free(m->env, r->text);
    *r = (weir_result){.struct_size = sizeof *r};
}
