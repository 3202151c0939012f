/* Sessions: sequences, their caches, and the passes that extend them. */
#include "rt_internal.h"

#include <string.h>

uint64_t rt_session_bytes(uint32_t n_layers, uint32_t ctx_tokens)
{
    uint64_t bytes = sizeof(weir_session) + 256;
    bytes = rt_add(bytes, rt_mul(n_layers, sizeof(dev_kv)));
    return rt_add(bytes, rt_mul(ctx_tokens, sizeof(int32_t) + sizeof(uint32_t)));
}

static void session_free(weir_session *s)
{
    base_env *env = s->model->env;
    lm_kv_destroy(s->kv);
    base_free(env, s->index.before);
    base_free(env, s->tokens);
    base_free(env, s);
}

weir_status weir_session_create(weir_model *m, weir_session **out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *out = NULL;
    rt_loaded *run = m->run;
    if (run == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the model is not loaded: weir_model_load first");
    const weir_plan *plan = &run->plan.view;
    if (run->n_sessions >= plan->n_sessions)
        return base_fail(err, WEIR_ERR_BUDGET,
                         "all %u planned sessions are in use; destroy one, or load with n_sessions = %u",
                         plan->n_sessions, plan->n_sessions + 1);
    weir_session *s = base_alloc(m->env, BASE_TAG_RUNTIME, sizeof *s, err);
    if (s == NULL) return err->code;
    s->model = m;
    s->tokens = base_alloc_array(m->env, BASE_TAG_RUNTIME, plan->ctx_tokens, sizeof *s->tokens, err);
    if (s->tokens == NULL) goto fail;
    s->index.before =
        base_alloc_array(m->env, BASE_TAG_RUNTIME, plan->ctx_tokens, sizeof *s->index.before, err);
    if (s->index.before == NULL) goto fail;
    if (lm_kv_create(m->env, m->lm, run->device, run->source, &run->plan.kv, &s->kv, err) != WEIR_OK)
        goto fail;
    base_lock_enter(m->context->lock);
    s->next = run->sessions;
    run->sessions = s;
    run->n_sessions++;
    base_lock_leave(m->context->lock);
    *out = s;
    return WEIR_OK;

fail:
    session_free(s);
    return err->code;
}

void weir_session_destroy(weir_session *s)
{
    if (s == NULL) return;
    rt_loaded *run = s->model->run;
    rt_session_part(s);
    if (s->main != NULL) rt_session_part(s->main);
    if (s->kv != NULL && run != NULL) {
        base_lock_enter(s->model->context->lock);
        for (weir_session **at = &run->sessions; *at != NULL; at = &(*at)->next) {
            if (*at != s) continue;
            *at = s->next;
            run->n_sessions--;
            break;
        }
        base_lock_leave(s->model->context->lock);
    }
    session_free(s);
}

void rt_sessions_detach(rt_loaded *run)
{
    while (run->sessions != NULL) {
        weir_session *s = run->sessions;
        run->sessions = s->next;
        lm_kv_destroy(s->kv);
        s->kv = NULL;
        s->n_tokens = s->n_cached = s->high = 0;
    }
    run->n_sessions = 0;
}

uint64_t rt_sessions_promised(const weir_model *m, uint64_t *answers)
{
    const rt_loaded *run = m->run;
    const lm_kv_shape *shape = &run->plan.kv;
    uint64_t bytes = 0, each = rt_answer_bytes(m, run->plan.view.ctx_tokens);
    bool grows = run->source == NULL && shape->growth != LM_KV_FULL;
    *answers = 0;
    base_lock_enter(m->context->lock); /* another thread may have the model */
    bool any = grows && run->sessions != NULL;
    for (const weir_session *s = run->sessions; s != NULL; s = s->next)
        if (s->answer == NULL) *answers = rt_add(*answers, each);
    for (const weir_session *s = run->sessions; s != NULL && grows; s = s->next)
        bytes += lm_kv_bytes(m->lm, run->device, shape, shape->context_tokens) -
                 lm_kv_bytes(m->lm, run->device, shape, lm_kv_positions(s->kv));
    base_lock_leave(m->context->lock);
    return !any ? 0 : bytes + lm_kv_copy_bytes(m->lm, run->device, shape, shape->context_tokens);
}

weir_status rt_session_check(const weir_session *s, weir_error *err)
{
    if (s->kv == NULL || s->model->run == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "the model was unloaded; destroy this session and create one after weir_model_load");
    return WEIR_OK;
}

uint32_t weir_session_position(const weir_session *s)
{
    return s->n_tokens;
}

/* True when a window that ends at n_cached reaches back to a ring slot that was written over. */
static bool has_lost_slots(const weir_session *s)
{
    const lm_hparams *h = lm_model_hparams(s->model->lm);
    if (h->window == 0 || s->kv == NULL) return false;
    uint32_t first = s->n_cached + 1 > h->window ? s->n_cached + 1 - h->window : 0;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (first < s->n_cached && (uint64_t)first + lm_kv_layer(s->kv, l)->capacity < s->high) return true;
    }
    return false;
}

void rt_session_cut(weir_session *s, uint32_t n_tokens)
{
    rt_index_cut(&s->index, s->tokens, n_tokens);
    s->n_tokens = n_tokens;
    if (s->n_cached > n_tokens) s->n_cached = n_tokens;
    /* The next run then computes the caches anew, with the same bits. */
    if (s->n_cached == 0 || has_lost_slots(s)) s->n_cached = s->high = 0;
}

/* Caches that grow give back what a sequence that has not begun does not need. */
static void begin_anew(weir_session *s)
{
    rt_session_cut(s, 0);
    if (s->kv != NULL) lm_kv_shrink(s->kv, 0);
}

void weir_session_reset(weir_session *s)
{
    begin_anew(s);
}

weir_status weir_session_truncate(weir_session *s, uint32_t n, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (n > s->n_tokens)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a session of %u tokens cannot be cut to %u",
                         s->n_tokens, n);
    if (n == 0)
        begin_anew(s);
    else
        rt_session_cut(s, n);
    return WEIR_OK;
}

void rt_session_hold(weir_session *s, int32_t token)
{
    s->tokens[s->n_tokens++] = token;
}

weir_status rt_session_check_tokens(const weir_session *s, const int32_t *tokens, size_t n, weir_error *err)
{
    uint32_t n_vocab = lm_model_hparams(s->model->lm)->n_vocab;
    uint32_t ctx = s->model->run->plan.view.ctx_tokens;
    if (n != 0 && tokens == NULL) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%zu tokens at NULL", n);
    if (n > ctx - s->n_tokens)
        return base_fail(
            err, WEIR_ERR_CONTEXT_FULL,
            "%zu tokens more do not fit the context of %u tokens, of which %u are taken; "
            "shorten the text, reset the session, or load with a larger context (--ctx %zu, and room "
            "for the answer)",
            n, ctx, s->n_tokens, n + s->n_tokens);
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "token %d at index %zu is outside the vocabulary of %u", tokens[i], i, n_vocab);
    }
    return WEIR_OK;
}

/* One pass over the n rows behind those in the caches; outputs for its last n_outputs rows. */
static weir_status run_rows(weir_session *s, uint32_t n, uint32_t n_outputs, weir_error *err)
{
    rt_share share = {.session = s, .n_rows = n, .n_outputs = n_outputs};
    return rt_pass_run(s->model, &share, 1, err);
}

/* Rows of a pass of one sequence. */
static uint32_t chunk_rows(const rt_loaded *run)
{
    return run->plan.view.prefill_chunk;
}

weir_status rt_session_catch_up(weir_session *s, uint32_t n_left, weir_error *err)
{
    while (s->n_cached + n_left < s->n_tokens) {
        uint32_t rows = (uint32_t)base_min(chunk_rows(s->model->run), s->n_tokens - n_left - s->n_cached);
        weir_status status = run_rows(s, rows, 0, err);
        if (status != WEIR_OK) {
            rt_session_cut(s, s->n_tokens);
            return status;
        }
        s->n_cached += rows;
    }
    return WEIR_OK;
}

weir_status rt_session_append(weir_session *s, const int32_t *tokens, size_t n, const float **logits,
                              rt_progress_fn on_rows, void *arg, weir_error *err)
{
    weir_status status = rt_session_check(s, err);
    if (status == WEIR_OK) status = rt_session_check_tokens(s, tokens, n, err);
    if (status != WEIR_OK) return status;
    rt_loaded *run = s->model->run;
    uint32_t before = s->n_tokens, end = before + (uint32_t)n, start = s->n_cached;
    if (start == end) {
        if (logits == NULL) return WEIR_OK;
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "logits were asked for, but there is no token to run");
    }
    /* At once, rather than with each pass of a long prompt. */
    status = lm_kv_grow(s->kv, end, err);
    if (status != WEIR_OK) return status;
    if (n != 0) memcpy(s->tokens + before, tokens, n * sizeof *tokens);
    while (s->n_cached < end) {
        uint32_t rows = (uint32_t)base_min(chunk_rows(run), end - s->n_cached);
        bool last = s->n_cached + rows == end;
        status = run_rows(s, rows, last && logits != NULL ? 1 : 0, err);
        if (status != WEIR_OK) {
            rt_session_cut(s, before);
            return status;
        }
        s->n_cached += rows;
        if (on_rows != NULL) on_rows(arg, s->n_cached - start, end - start);
    }
    s->n_tokens = end;
    if (logits != NULL) *logits = graph_result(run->program, 0);
    return WEIR_OK;
}

weir_status weir_session_append(weir_session *s, const int32_t *tokens, size_t n, const float **logits,
                                weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    atomic_store(&s->model->cancel, false);
    return rt_session_append(s, tokens, n, logits, NULL, NULL, err);
}

weir_status weir_session_score(weir_session *s, const int32_t *tokens, size_t n, weir_logits_fn fn, void *arg,
                               weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    atomic_store(&s->model->cancel, false);
    weir_status status = rt_session_append(s, NULL, 0, NULL, NULL, NULL, err);
    if (status == WEIR_OK) status = rt_session_check_tokens(s, tokens, n, err);
    if (status != WEIR_OK || n == 0) return status;
    rt_loaded *run = s->model->run;
    uint32_t before = s->n_tokens, end = before + (uint32_t)n;
    uint32_t most = (uint32_t)base_min(run->plan.max_outputs, run->plan.max_rows);
    status = lm_kv_grow(s->kv, end, err);
    if (status != WEIR_OK) return status;
    memcpy(s->tokens + before, tokens, n * sizeof *tokens);
    while (s->n_cached < end && status == WEIR_OK) {
        uint32_t rows = (uint32_t)base_min(most, end - s->n_cached);
        status = run_rows(s, rows, rows, err);
        if (status != WEIR_OK) break;
        for (uint32_t i = 0; i < rows && status == WEIR_OK; i++) {
            size_t index = s->n_cached - before + i;
            if (!fn(arg, index, graph_result(run->program, i)))
                status =
                    base_fail(err, WEIR_ERR_CANCELLED, "the caller stopped the scoring at token %zu", index);
        }
        if (status == WEIR_OK) s->n_cached += rows;
    }
    if (status == WEIR_OK)
        s->n_tokens = end;
    else
        rt_session_cut(s, before);
    return status;
}
