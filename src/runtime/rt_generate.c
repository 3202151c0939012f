/* From a prompt to an answer: prefill, then token after token, with the text handed out as it becomes whole.
 */
#include "rt_internal.h"

#include <string.h>

void weir_generate_options_init(weir_generate_options *o)
{
    *o = (weir_generate_options){.struct_size = sizeof *o, .max_tokens = 256};
    weir_sampling_init(&o->sampling);
}

/* An answer under way. */
typedef struct answer {
    weir_session *session;
    const weir_generate_options *options;
    const fmt_tokenizer *tokenizer; /* NULL: the model has none; tokens only */
    fmt_detok detok;
    base_buf text;
    size_t n_told; /* bytes of text that on_text has had */
    int32_t *tokens;
    size_t n_tokens, max_tokens;
    uint64_t hash;
    weir_stop stop;
} answer;

static weir_status check_options(const weir_generate_options *o, size_t n, weir_error *err)
{
    if (o->struct_size < sizeof *o)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "weir_generate_options: struct_size %zu is not that of any version; call "
                         "weir_generate_options_init first",
                         o->struct_size);
    if (n == 0) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the prompt has no tokens");
    return WEIR_OK;
}

/* Hands out what became whole; false when the caller wants no more. */
static bool tell(answer *a)
{
    size_t n = a->text.len - a->n_told;
    if (n == 0 || a->options->on_text == NULL) return true;
    const char *from = a->text.data + a->n_told;
    a->n_told = a->text.len;
    return a->options->on_text(a->options->arg, from, n);
}

/* Samples one token and takes it into the answer. *more is false when the answer has ended, with a->stop set.
 */
static weir_status take_token(answer *a, const float *logits, bool *more, weir_error *err)
{
    weir_session *s = a->session;
    weir_model *m = s->model;
    rt_loaded *run = m->run;
    int32_t token;
    *more = false;
    a->hash = weir_logits_hash(a->hash, logits, lm_model_hparams(m->lm)->n_vocab);
    weir_status status = rt_sampler_pick(run->sampler, logits, s->tokens, s->n_tokens, &token, err);
    if (status != WEIR_OK)
        return base_fail_context(err, status, "%s", base_file_path(fmt_model_file(m->file, 0)));
    if (a->tokenizer != NULL && !a->options->ignore_end && fmt_tokenizer_is_end(a->tokenizer, token)) {
        a->stop = WEIR_STOP_END;
        return WEIR_OK;
    }
    if (s->n_tokens == run->plan.view.ctx_tokens) {
        a->stop = WEIR_STOP_CONTEXT;
        return WEIR_OK;
    }
    rt_session_hold(s, token);
    a->tokens[a->n_tokens++] = token;
    if (a->tokenizer != NULL) status = fmt_detok_push(a->tokenizer, &a->detok, token, &a->text, err);
    if (status != WEIR_OK) return status;
    if (!tell(a))
        a->stop = WEIR_STOP_CALLER;
    else if (a->n_tokens == a->options->max_tokens)
        a->stop = WEIR_STOP_LENGTH;
    else if (s->n_tokens == run->plan.view.ctx_tokens)
        a->stop = WEIR_STOP_CONTEXT;
    else if (atomic_load(&m->cancel))
        a->stop = WEIR_STOP_CANCELLED;
    else
        *more = true;
    return WEIR_OK;
}

static weir_status answer_begin(answer *a, size_t n_prompt, weir_error *err)
{
    weir_session *s = a->session;
    weir_model *m = s->model;
    weir_error none = {0};
    /* Without a tokenizer tokens are all there is, and nothing ends an answer. */
    weir_status status = rt_text_tokenizer(m, &a->tokenizer, &none);
    if (status != WEIR_OK) {
        a->tokenizer = NULL;
        if (m->text->why_none.code == WEIR_OK) {
            *err = none;
            return status;
        }
    }
    uint32_t ctx = m->run->plan.view.ctx_tokens;
    uint64_t room = ctx > s->n_tokens + n_prompt ? ctx - s->n_tokens - n_prompt : 0;
    a->max_tokens = (size_t)base_min(a->options->max_tokens, room);
    base_buf_init(&a->text, m->env, BASE_TAG_RUNTIME);
    a->hash = WEIR_HASH_SEED;
    a->stop = WEIR_STOP_LENGTH;
    a->tokens =
        base_alloc_array(m->env, BASE_TAG_RUNTIME, base_max(a->max_tokens, 1), sizeof *a->tokens, err);
    if (a->tokens == NULL) return err->code;
    return rt_sampler_begin(m->run->sampler, &a->options->sampling, err);
}

/* Moves the answer into the result; out owns it from here. */
static weir_status answer_end(answer *a, weir_result *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    if (a->tokenizer != NULL) status = fmt_detok_flush(a->tokenizer, &a->detok, &a->text, err);
    /* An empty append makes sure that there is a NUL-terminated text. */
    if (status == WEIR_OK && a->text.data == NULL) status = base_buf_append(&a->text, "", 0, err);
    if (status != WEIR_OK) return status;
    tell(a);
    out->tokens = a->tokens;
    out->n_tokens = a->n_tokens;
    out->text = a->text.data;
    out->text_len = a->text.len;
    out->stop = a->stop;
    out->logits_hash = a->hash;
    return WEIR_OK;
}

/* Token after token. A cancelled pass ends the answer with what there is. */
static weir_status answer_loop(answer *a, const float *logits, weir_result *out, double start,
                               weir_error *err)
{
    base_env *env = a->session->model->env;
    bool more = true;
    weir_status status = WEIR_OK;
    double decode_start = base_now(env);
    out->prefill_seconds = out->first_token_seconds = decode_start - start;
    if (a->options->max_tokens == 0) return WEIR_OK;
    for (;;) {
        status = take_token(a, logits, &more, err);
        if (a->n_tokens == 1) out->first_token_seconds = base_now(env) - start;
        if (status != WEIR_OK || !more) break;
        status = rt_session_append(a->session, NULL, 0, &logits, NULL, NULL, err);
        if (status == WEIR_ERR_CANCELLED) {
            a->stop = WEIR_STOP_CANCELLED;
            status = WEIR_OK;
            break;
        }
        if (status != WEIR_OK) break;
    }
    out->decode_seconds = base_now(env) - decode_start;
    return status;
}

static weir_status run_answer(answer *a, const int32_t *prompt, size_t n, weir_result *out, weir_error *err)
{
    weir_session *s = a->session;
    const float *logits = NULL;
    double start = base_now(s->model->env);
    weir_status status = answer_begin(a, n, err);
    if (status != WEIR_OK) return status;
    status = rt_session_append(s, prompt, n, a->options->max_tokens != 0 ? &logits : NULL,
                               a->options->on_prefill, a->options->arg, err);
    if (status == WEIR_ERR_CANCELLED) {
        a->stop = WEIR_STOP_CANCELLED;
        out->prefill_seconds = base_now(s->model->env) - start;
        return answer_end(a, out, err);
    }
    if (status == WEIR_OK) status = answer_loop(a, logits, out, start, err);
    if (status == WEIR_OK) status = answer_end(a, out, err);
    return status;
}

weir_status weir_generate(weir_session *s, const int32_t *prompt, size_t n, const weir_generate_options *o,
                          weir_result *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *out = (weir_result){.struct_size = sizeof *out};
    weir_generate_options defaults;
    weir_generate_options_init(&defaults);
    if (o == NULL) o = &defaults;
    weir_status status = check_options(o, n, err);
    if (status == WEIR_OK) status = rt_session_check(s, err);
    if (status != WEIR_OK) return status;
    base_env *env = s->model->env;
    answer a = {.session = s, .options = o};
    weir_result result = {.struct_size = sizeof result, .n_prompt_tokens = n};
    uint32_t before = s->n_tokens;
    atomic_store(&s->model->cancel, false);
    weir_error failure = {0};
    status = run_answer(&a, prompt, n, &result, &failure);
    if (status == WEIR_OK) {
        *out = result;
        return WEIR_OK;
    }
    if (s->n_tokens > before) rt_session_cut(s, before);
    base_buf_finish(&a.text);
    base_free(env, a.tokens);
    *err = failure;
    return status;
}

void weir_result_finish(weir_model *m, weir_result *r)
{
    if (r == NULL) return;
    base_free(m->env, r->tokens);
    base_free(m->env, r->text);
    *r = (weir_result){.struct_size = sizeof *r};
}
