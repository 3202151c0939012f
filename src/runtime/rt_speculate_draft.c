/* Guesses from a smaller model with the same vocabulary. It draws as the answer will, with a copy of the same
 * random numbers, so that a guess is right as often as the two models' distributions agree. */
#include "rt_internal.h"

#include <string.h>

static weir_status check_vocabulary(const weir_model *m, const weir_model *d, weir_error *err)
{
    uint32_t n = lm_model_hparams(m->lm)->n_vocab, other = lm_model_hparams(d->lm)->n_vocab;
    const char *wants = "a draft model must have the vocabulary of the model that it guesses for";
    if (n != other)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: %s has %u tokens, the draft %s has %u", wants,
                         base_file_path(fmt_model_file(m->file, 0)), n,
                         base_file_path(fmt_model_file(d->file, 0)), other);
    for (uint32_t i = 0; i < n; i++) {
        const char *a = "", *b = "";
        size_t a_len = 0, b_len = 0;
        bool in_a = weir_token_text(m, (int32_t)i, &a, &a_len);
        bool in_b = weir_token_text(d, (int32_t)i, &b, &b_len);
        if (in_a != in_b || a_len != b_len || (a_len != 0 && memcmp(a, b, a_len) != 0))
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s: token %u is not the same in %s and in %s",
                             wants, i, base_file_path(fmt_model_file(m->file, 0)),
                             base_file_path(fmt_model_file(d->file, 0)));
    }
    return WEIR_OK;
}

weir_status weir_session_set_draft(weir_session *s, weir_session *draft, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    weir_status status = WEIR_OK;
    if (draft != NULL) {
        status = rt_session_check(s, err);
        if (status == WEIR_OK) status = rt_session_check(draft, err);
        if (status != WEIR_OK) return status;
        if (draft->model == s->model || draft->model->env != s->model->env)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "a draft is a session of another model in the same context");
        if (draft->main != NULL && draft->main != s)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the draft guesses for another session already");
        status = check_vocabulary(s->model, draft->model, err);
        if (status != WEIR_OK) return status;
    }
    rt_session_part(s);
    if (draft == NULL) return WEIR_OK;
    s->draft = draft;
    draft->main = s;
    return WEIR_OK;
}

void rt_session_part(weir_session *s)
{
    if (s->draft != NULL) s->draft->main = NULL;
    s->draft = NULL;
    s->guessing.hits[RT_KIND_DRAFT] = s->guessing.trials[RT_KIND_DRAFT] = 0;
    s->guessing.draft_seconds = s->guessing.draft_debt = 0;
    s->guessing.draft_from = 0;
    s->guessing.draft_pause = s->guessing.draft_wait = s->guessing.draft_errors = 0;
}

/* Where place i of the draft's sequence lies in that of s: the token that begins the text, and those from
 * `from` on. */
static uint32_t place_in(uint32_t i, uint32_t from)
{
    return from <= 1 || i == 0 ? i : from + i - 1;
}

/* Of the draft's sequence when it has read the text. */
static uint32_t length_from(const weir_session *s, uint32_t from)
{
    return s->n_tokens - (from <= 1 ? 0 : from - 1);
}

static uint32_t common_length(const weir_session *s, const weir_session *d, uint32_t from)
{
    uint32_t common = 0, most = (uint32_t)base_min(d->n_tokens, length_from(s, from) - 1);
    while (common < most && d->tokens[common] == s->tokens[place_in(common, from)]) common++;
    return common;
}

uint32_t rt_draft_rows(const weir_session *s, uint32_t from)
{
    uint32_t common = common_length(s, s->draft, from);
    /* What lies in the draft's caches is less by its last guess. */
    common = (uint32_t)base_min(common, s->draft->n_cached);
    return length_from(s, from) - common;
}

uint32_t rt_draft_room(const weir_session *s, uint32_t from)
{
    if (s->draft->model->run == NULL) return RT_GUESSES_MAX;
    uint32_t ctx = s->draft->model->run->plan.view.ctx_tokens, length = length_from(s, from);
    return length < ctx ? ctx - length : 0;
}

/* By the work of both. Reading from storage takes several times as long as computing does; how long at
 * least is known where the draft's storage was measured, which need not be that of the other model. */
double rt_draft_seconds(const weir_session *s, double token_seconds)
{
    const double slower = 8;
    /* Unloaded meanwhile: asking it says so. */
    if (s->draft->model->run == NULL) return token_seconds;
    const weir_plan *a = &s->model->run->plan.view, *b = &s->draft->model->run->plan.view;
    double work = (double)a->weight_bytes_per_pass + slower * (double)a->streamed_bytes_per_pass;
    double draft = (double)b->weight_bytes_per_pass + slower * (double)b->streamed_bytes_per_pass;
    double seconds = work > 0 ? draft / work * token_seconds : token_seconds;
    double rate = s->draft->model->storage.bytes_per_s;
    double reading = rate > 0 ? (double)b->streamed_bytes_per_pass / rate : 0;
    return reading > seconds ? reading : seconds;
}

/* Brings the draft's sequence to that of s, or to its end; *logits are those behind its last token. */
static weir_status follow(const weir_session *s, weir_session *d, uint32_t *n_new, const float **logits,
                          weir_error *err)
{
    uint32_t from = s->guessing.draft_from, common = common_length(s, d, from);
    weir_status status = WEIR_OK;
    *n_new = length_from(s, from) - common;
    rt_session_cut(d, common);
    if (common == 0 && from > 1) {
        status = rt_session_append(d, s->tokens, 1, NULL, NULL, NULL, err);
        common = 1;
    }
    if (status != WEIR_OK) return status;
    uint32_t next = place_in(common, from);
    return rt_session_append(d, s->tokens + next, s->n_tokens - next, logits, NULL, NULL, err);
}

weir_status rt_draft(weir_session *s, const rt_draw *draw, uint32_t n_wanted, int32_t *guesses, uint32_t *n,
                     weir_error *err)
{
    weir_session *d = s->draft;
    weir_model *m = d->model;
    rt_draw copy = *draw;
    const float *logits;
    uint32_t n_new;
    *n = 0;
    weir_status status = rt_session_check(d, err);
    if (status != WEIR_OK) return status;
    n_wanted = (uint32_t)base_min(n_wanted, rt_draft_room(s, s->guessing.draft_from));
    if (n_wanted == 0) return WEIR_OK;
    d->cancel = &s->model->cancel;
    double start = base_now(m->env);
    status = follow(s, d, &n_new, &logits, err);
    while (status == WEIR_OK && *n < n_wanted) {
        int32_t token;
        status = rt_sampler_pick(m->run->sampler, &copy, logits, d->tokens, d->n_tokens, &token, err);
        if (status != WEIR_OK) break;
        guesses[(*n)++] = token;
        if (*n < n_wanted) status = rt_session_append(d, &token, 1, &logits, NULL, NULL, err);
    }
    d->cancel = NULL;
    if (status == WEIR_OK && *n != 0 && n_new <= *n + 2) {
        double one = (base_now(m->env) - start) / *n;
        double *known = &s->guessing.draft_seconds;
        *known = *known == 0 ? one : *known + 0.2 * (one - *known);
    }
    return status;
}
