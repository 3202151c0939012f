/* Passes that several sessions share: each brings a run of rows, and the weights are read once for all.
 *
 *   rows   | session 0: waiting, tokens... | session 1: waiting, token | session 2: tokens of a prompt... |
 *   logits |                            ^^ |                         ^ |                                  |
 *
 * A session that decodes brings one row, one in prefill as many as there is room for, one whose guesses are
 * checked a few with logits for each. No row's sum depends on the rows beside it, so every session gets the
 * bits that it would get alone. */
#include "rt_internal.h"

#include <string.h>

weir_status rt_rows_create(base_env *env, const rt_plan *plan, uint32_t n_layers, rt_rows *rows,
                           weir_error *err)
{
    uint32_t n = plan->max_rows;
    rows->token = base_alloc_array(env, BASE_TAG_RUNTIME, n, sizeof *rows->token, err);
    if (rows->token == NULL) return err->code;
    rows->position = base_alloc_array(env, BASE_TAG_RUNTIME, n, sizeof *rows->position, err);
    if (rows->position == NULL) return err->code;
    rows->sequence = base_alloc_array(env, BASE_TAG_RUNTIME, n, sizeof *rows->sequence, err);
    if (rows->sequence == NULL) return err->code;
    rows->output_row = base_alloc_array(env, BASE_TAG_RUNTIME, n, sizeof *rows->output_row, err);
    if (rows->output_row == NULL) return err->code;
    rows->batch_kv = base_alloc_array(env, BASE_TAG_RUNTIME, (size_t)n_layers * plan->max_batch,
                                      sizeof *rows->batch_kv, err);
    if (rows->batch_kv == NULL) return err->code;
    rows->layer_kv = base_alloc_array(env, BASE_TAG_RUNTIME, n_layers, sizeof *rows->layer_kv, err);
    return rows->layer_kv != NULL ? WEIR_OK : err->code;
}

void rt_rows_free(base_env *env, rt_rows *rows)
{
    base_free(env, rows->layer_kv);
    base_free(env, rows->batch_kv);
    base_free(env, rows->output_row);
    base_free(env, rows->sequence);
    base_free(env, rows->position);
    base_free(env, rows->token);
}

weir_status rt_rows_run(const weir_context *c, const rt_rows *rows, graph_program *program,
                        const rt_options *o, uint32_t n_rows, uint32_t n_outputs, atomic_bool *cancel,
                        weir_error *err)
{
    graph_batch batch = {
        .n_rows = n_rows,
        .token = rows->token,
        .position = rows->position,
        .sequence = rows->sequence,
        .kv = rows->layer_kv,
        .n_outputs = n_outputs,
        .output_rows = rows->output_row,
        .cancel = cancel,
    };
    base_affinity before;
    /* Workers that are not this model's may end while it runs on its device. */
    if (o->device.kind == RT_DEVICE_CPU)
        rt_workers_bind(c, &o->cpus, o->n_threads, &before);
    else
        base_cpus_bind(&o->cpus, 0, o->n_threads, &before);
    weir_status status = graph_run(program, &batch, err);
    base_cpus_restore(&before);
    return status;
}

/* Rows that are in the sequence and not yet in the caches. */
static uint32_t waiting(const weir_session *s)
{
    return s->n_tokens - s->n_cached;
}

/* Lays the rows of the shares behind each other. */
static uint32_t lay_rows(rt_loaded *run, const rt_share *shares, size_t n, uint32_t *n_outputs)
{
    uint32_t r = 0;
    *n_outputs = 0;
    for (uint32_t i = 0; i < n; i++) {
        weir_session *s = shares[i].session;
        uint32_t end = s->n_cached + shares[i].n_rows;
        for (uint32_t at = s->n_cached; at < end; at++, r++) {
            run->rows.token[r] = s->tokens[at];
            run->rows.position[r] = (int32_t)at;
            run->rows.sequence[r] = i;
        }
        for (uint32_t k = shares[i].n_outputs; k > 0; k--) run->rows.output_row[(*n_outputs)++] = r - k;
        if (end > s->high) s->high = end;
    }
    return r;
}

/* Caches that grow get room for every row before anything of the pass is done; or all stay as they are. */
static weir_status make_room(rt_share *shares, size_t n, weir_error *err)
{
    for (size_t i = 0; i < n; i++) {
        lm_kv *kv = shares[i].session->kv;
        shares[i].n_room = lm_kv_positions(kv);
        weir_status status = lm_kv_grow(kv, shares[i].session->n_cached + shares[i].n_rows, err);
        if (status == WEIR_OK) continue;
        while (i-- > 0) lm_kv_shrink(shares[i].session->kv, shares[i].n_room);
        return status;
    }
    return WEIR_OK;
}

static void lay_caches(const weir_model *m, const rt_share *shares, size_t n)
{
    rt_loaded *run = m->run;
    for (uint32_t l = 0; l < lm_model_hparams(m->lm)->n_layers; l++) {
        if (n == 1) {
            run->rows.layer_kv[l] = lm_kv_layer(shares[0].session->kv, l);
            continue;
        }
        dev_kv *row = run->rows.batch_kv + (size_t)l * run->plan.max_batch;
        for (size_t i = 0; i < n; i++) row[i] = *lm_kv_layer(shares[i].session->kv, l);
        run->rows.layer_kv[l] = row;
    }
}

weir_status rt_pass_run(weir_model *m, rt_share *shares, size_t n, weir_error *err)
{
    rt_loaded *run = m->run;
    uint32_t n_outputs;
    atomic_bool *cancel = shares[0].session->cancel != NULL ? shares[0].session->cancel : &m->cancel;
    weir_status follows = rt_budget_follow(m, cancel, err);
    if (follows == WEIR_OK) follows = make_room(shares, n, err);
    if (follows != WEIR_OK) return follows;
    lay_caches(m, shares, n);
    uint32_t n_rows = lay_rows(run, shares, n, &n_outputs);
    weir_status status =
        rt_rows_run(m->context, &run->rows, run->program, &run->options, n_rows, n_outputs, cancel, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0, output = 0; i < n; output += shares[i++].n_outputs) {
        shares[i].logits = shares[i].n_outputs != 0 ? graph_result(run->program, output) : NULL;
        shares[i].stride = 0;
        if (shares[i].n_outputs > 1)
            shares[i].stride = (size_t)(graph_result(run->program, output + 1) - shares[i].logits);
    }
    return WEIR_OK;
}

/* ---- what callers may ask for ---- */

static weir_status too_many(const rt_loaded *run, size_t n, weir_error *err)
{
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "a step of %zu sessions; the model was loaded for %u (max_batch)", n,
                     run->plan.max_batch);
}

static weir_status check_session(const weir_run *runs, size_t i, weir_error *err)
{
    if (runs[i].session == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "run %zu has no session", i);
    weir_status status = rt_session_check(runs[i].session, err);
    if (status != WEIR_OK) return status;
    if (runs[i].session->model != runs[0].session->model)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "session %zu of a step belongs to another model", i);
    for (size_t j = 0; j < i; j++) {
        if (runs[j].session == runs[i].session)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "sessions %zu and %zu of a step are the same", j,
                             i);
    }
    status = rt_session_check_tokens(runs[i].session, runs[i].tokens, runs[i].n_tokens, err);
    return status == WEIR_OK ? status : base_fail_context(err, status, "session %zu", i);
}

/* Rows that a session brings when up to `keep` waiting ones share the pass; a pass of no rows is none. */
static uint64_t own_rows(const weir_run *r, uint32_t keep)
{
    return r->n_tokens + base_min(waiting(r->session), r->n_tokens == 0 ? 1 : keep);
}

static weir_status count_rows(const weir_run *runs, size_t n, uint32_t keep, uint64_t *n_rows,
                              weir_error *err)
{
    *n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t own = own_rows(&runs[i], keep);
        if (own == 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "session %zu of a step brings no token, and none of its own waits", i);
        if (runs[i].n_logits > own)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "session %zu of a step asks for the logits of %zu rows and brings %llu", i,
                             runs[i].n_logits, (unsigned long long)own);
        *n_rows = rt_add(*n_rows, own);
    }
    return WEIR_OK;
}

/* *keep: how many waiting rows of a session go into the shared pass. Longer tails run before, and so does the
 * last row where it would not fit. */
static weir_status check_room(const rt_loaded *run, const weir_run *runs, size_t n, uint32_t *keep,
                              weir_error *err)
{
    uint64_t rows, outputs = 0;
    *keep = 1;
    weir_status status = count_rows(runs, n, 1, &rows, err);
    if (status == WEIR_OK && rows > run->plan.max_rows) {
        *keep = 0;
        status = count_rows(runs, n, 0, &rows, err);
    }
    if (status != WEIR_OK) return status;
    for (size_t i = 0; i < n; i++) outputs = rt_add(outputs, runs[i].n_logits);
    if (rows > run->plan.max_rows || outputs > run->plan.max_outputs)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a step of %llu rows with logits for %llu; the plan has room for %u rows and %u "
                         "logits (pass_rows, pass_outputs)",
                         (unsigned long long)rows, (unsigned long long)outputs, run->plan.max_rows,
                         run->plan.max_outputs);
    return WEIR_OK;
}

static weir_status check_runs(const weir_run *runs, size_t n, uint32_t *keep, weir_error *err)
{
    if (n == 0 || runs == NULL) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a step of no sessions");
    for (size_t i = 0; i < n; i++) {
        weir_status status = check_session(runs, i, err);
        if (status != WEIR_OK) return status;
    }
    const rt_loaded *run = runs[0].session->model->run;
    if (n > run->plan.max_batch) return too_many(run, n, err);
    return check_room(run, runs, n, keep, err);
}

weir_status weir_step_runs(weir_run *runs, size_t n, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    uint32_t keep = 0;
    weir_status status = check_runs(runs, n, &keep, err);
    if (status != WEIR_OK) return status;
    weir_model *m = runs[0].session->model;
    atomic_store(&m->cancel, false);
    /* A tail that a cut left to be computed anew goes first, each session's by itself. */
    for (size_t i = 0; i < n; i++) {
        status = rt_session_catch_up(runs[i].session, runs[i].n_tokens == 0 ? 1 : keep, err);
        if (status != WEIR_OK) return status;
    }
    rt_share *shares = m->run->shares;
    for (size_t i = 0; i < n; i++) {
        weir_session *s = runs[i].session;
        if (runs[i].n_tokens != 0)
            memcpy(s->tokens + s->n_tokens, runs[i].tokens, runs[i].n_tokens * sizeof *s->tokens);
        shares[i] = (rt_share){.session = s,
                               .n_rows = waiting(s) + (uint32_t)runs[i].n_tokens,
                               .n_outputs = (uint32_t)runs[i].n_logits};
    }
    status = rt_pass_run(m, shares, n, err);
    for (size_t i = 0; i < n; i++) {
        weir_session *s = runs[i].session;
        runs[i].logits = status == WEIR_OK ? shares[i].logits : NULL;
        runs[i].logits_stride = shares[i].stride;
        if (status == WEIR_OK)
            s->n_cached = s->n_tokens += (uint32_t)runs[i].n_tokens;
        else
            rt_session_cut(s, s->n_tokens);
    }
    return status;
}

weir_status weir_step_batch(weir_session *const *sessions, const int32_t *tokens, size_t n,
                            const float **logits, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (n == 0 || sessions == NULL || tokens == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a step of no sessions");
    if (sessions[0] == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "session 0 of a step is missing");
    weir_status status = rt_session_check(sessions[0], err);
    if (status != WEIR_OK) return status;
    const rt_loaded *run = sessions[0]->model->run;
    if (n > run->plan.max_batch) return too_many(run, n, err);
    weir_run *runs = run->runs;
    for (size_t i = 0; i < n; i++)
        runs[i] = (weir_run){
            .session = sessions[i], .tokens = &tokens[i], .n_tokens = 1, .n_logits = logits != NULL ? 1 : 0};
    status = weir_step_runs(runs, n, err);
    for (size_t i = 0; i < n && status == WEIR_OK && logits != NULL; i++) logits[i] = runs[i].logits;
    return status;
}
