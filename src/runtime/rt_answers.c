/* Steps of answers under way: one pass that all of them share. Each brings the token that is due, or more of
 * its prompt, or guesses behind the token; what the pass gives is taken answer by answer. */
#include "rt_answer.h"

static weir_status check_answers(weir_answer *const *answers, size_t n, weir_error *err)
{
    if (n == 0 || answers == NULL) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a step of no answers");
    for (size_t i = 0; i < n; i++) {
        if (answers[i] == NULL)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "answer %zu of a step is missing", i);
        weir_status status = rt_session_check(answers[i]->session, err);
        if (status != WEIR_OK) return status;
        if (answers[i]->session->model != answers[0]->session->model)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "answer %zu of a step is of another model", i);
        for (size_t j = 0; j < i; j++) {
            if (answers[j] == answers[i])
                return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "answers %zu and %zu of a step are the same",
                                 j, i);
        }
    }
    return WEIR_OK;
}

/* The answers that have not ended, each with one row. */
static weir_status collect(rt_loaded *run, weir_answer *const *answers, size_t n, size_t *n_shares,
                           weir_error *err)
{
    *n_shares = 0;
    for (size_t i = 0; i < n; i++) {
        if (answers[i]->done) continue;
        if (*n_shares == run->plan.max_batch)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "a step of more answers than the %u the model was loaded for (max_batch)",
                             run->plan.max_batch);
        run->shares[(*n_shares)++] =
            (rt_share){.session = answers[i]->session, .answer = answers[i], .n_rows = 1};
    }
    return WEIR_OK;
}

/* Room first for the rest of prompts; without any, for guesses. */
static void share_rows(rt_loaded *run, size_t n, uint32_t prefill_rows)
{
    uint32_t rows = run->plan.max_rows - (uint32_t)n, outputs = run->plan.max_outputs - (uint32_t)n;
    uint32_t chunk = run->plan.view.prefill_chunk;
    if (prefill_rows != 0 && prefill_rows < chunk) chunk = prefill_rows;
    bool prefill = false;
    for (size_t i = 0; i < n; i++) {
        rt_share *x = &run->shares[i];
        uint32_t rest = x->session->n_tokens - x->session->n_cached;
        uint32_t more = (uint32_t)base_min(base_min(rest, chunk) - 1, rows);
        prefill |= rest > 1;
        x->n_rows += more;
        rows -= more;
        chunk -= (uint32_t)base_min(more, chunk - 1);
        x->n_outputs = x->n_rows == rest && x->answer->options.max_tokens != 0 ? 1 : 0;
        x->answer->guess = (rt_guess){.looked = -1};
    }
    if (!prefill) rt_speculate(run, run->shares, n, rows, outputs);
}

/* A pass that went through, for an answer still in its prompt. */
static void take_prompt(weir_answer *a)
{
    weir_session *s = a->session;
    if (a->n_tokens != 0 || s->n_cached <= a->n_cached) return;
    if (a->options.on_prefill != NULL)
        a->options.on_prefill(a->options.arg, s->n_cached - a->n_cached, a->n_sequence - a->n_cached);
    if (s->n_cached < a->n_sequence) return;
    a->decode_start = base_now(s->model->env);
    a->result.prefill_seconds = a->result.first_token_seconds = a->decode_start - a->start;
    if (a->options.max_tokens == 0) rt_answer_stop(a, WEIR_STOP_LENGTH);
}

/* Draws from the rows in order for as long as guesses are right. What lies in the caches behind the sequence
 * afterwards belongs to wrong guesses, and the next pass writes over it. */
static weir_status take_rows(rt_share *x, weir_error *err)
{
    weir_answer *a = x->answer;
    weir_session *s = x->session;
    const rt_guess *g = &a->guess;
    weir_status status = WEIR_OK;
    a->result.n_passes++;
    a->result.n_drafted += g->n_rows;
    for (uint32_t i = 0; status == WEIR_OK && i <= g->n_rows; i++) {
        status = rt_answer_take(a, x->logits + i * x->stride, err);
        if (status != WEIR_OK || s->n_tokens == s->n_cached) break;
        int32_t token = s->tokens[s->n_tokens - 1];
        rt_guess_note(s, g, i, token);
        bool right = i < g->n_rows && g->token[i] == token;
        if (right) a->guess.n_right++;
        if (a->done || !right) break;
        s->n_cached++;
    }
    a->result.n_accepted += g->n_right;
    a->result.decode_seconds = base_now(s->model->env) - a->decode_start;
    return status;
}

static void take_share(rt_share *x)
{
    weir_session *s = x->session;
    weir_answer *a = x->answer;
    weir_error err = {0};
    s->n_cached += x->n_rows - a->guess.n_rows;
    take_prompt(a);
    if (x->n_outputs == 0 || a->done) return;
    if (take_rows(x, &err) == WEIR_OK) return;
    a->failure = err;
    rt_answer_stop(a, WEIR_STOP_CALLER);
}

/* A pass that did not go through leaves every sequence as it was. */
static weir_status give_up(rt_loaded *run, size_t n, weir_status status)
{
    for (size_t i = 0; i < n; i++) {
        rt_share *x = &run->shares[i];
        rt_session_cut(x->session, x->session->n_tokens);
        if (status == WEIR_ERR_CANCELLED) rt_answer_stop(x->answer, WEIR_STOP_CANCELLED);
    }
    return status == WEIR_ERR_CANCELLED ? WEIR_OK : status;
}

static bool any_guesses(const rt_share *shares, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (shares[i].answer->options.speculate != WEIR_SPECULATE_OFF) return true;
    return false;
}

weir_status weir_answers_step(weir_answer *const *answers, size_t n, uint32_t prefill_rows, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    weir_status status = check_answers(answers, n, err);
    if (status != WEIR_OK) return status;
    weir_model *m = answers[0]->session->model;
    rt_loaded *run = m->run;
    size_t n_shares;
    status = collect(run, answers, n, &n_shares, err);
    if (status != WEIR_OK || n_shares == 0) return status;
    share_rows(run, n_shares, prefill_rows);
    uint32_t n_rows = 0, n_outputs = 0;
    for (size_t i = 0; i < n_shares; i++) {
        n_rows += run->shares[i].n_rows;
        n_outputs += run->shares[i].n_outputs;
    }
    double start = base_now(m->env);
    status = rt_pass_run(m, run->shares, n_shares, err);
    if (status == WEIR_OK) {
        /* Answers that guess learn from their own passes: `auto` is to be measured against plain decoding,
         * and must not know from it what it would not know alone. */
        if (any_guesses(run->shares, n_shares))
            rt_costs_add(&run->costs, n_rows, n_outputs, base_now(m->env) - start);
        for (size_t i = 0; i < n_shares; i++) take_share(&run->shares[i]);
        if (n_rows == n_outputs) rt_guess_settle(&run->costs, run->shares, n_shares);
    } else {
        status = give_up(run, n_shares, status);
    }
    bool all_done = true;
    for (size_t i = 0; i < n_shares; i++) all_done &= run->shares[i].answer->done;
    if (all_done) atomic_store(&m->cancel, false);
    return status;
}
