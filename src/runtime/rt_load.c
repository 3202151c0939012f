/* Loading: the plan is made, its budget becomes the ledger's limit, and everything is allocated in one place,
 * before the first weight is read. Running allocates only sessions and answers, which the plan has counted.
 */
#include "rt_internal.h"

static void run_free(weir_model *m, rt_loaded *run)
{
    base_env *env = m->env;
    mem_unplace(m->component);
    base_free(env, run->shares);
    base_free(env, run->runs);
    rt_rows_free(env, &run->rows);
    rt_sampler_destroy(env, run->sampler);
    graph_program_destroy(run->program);
    mem_source_destroy(run->source);
    rt_device_close(m->context, run->target);
    base_free(env, run);
}

/* Puts limit and booking back to what they were. */
static void budget_restore(weir_context *c, uint64_t limit_bytes, uint64_t booked_bytes)
{
    if (c->booked_bytes > booked_bytes) {
        base_ledger_release(c->env, BASE_TAG_PROCESS, c->booked_bytes - booked_bytes);
        c->booked_bytes = booked_bytes;
    }
    base_ledger_set_limit(c->env, limit_bytes, NULL);
}

/* From here on nothing can be allocated beyond the budget. */
static weir_status budget_set(weir_context *c, const rt_plan *plan, weir_error *err)
{
    weir_status status = base_ledger_set_limit(c->env, plan->view.budget_bytes, err);
    if (status != WEIR_OK) return status;
    if (plan->process_bytes <= c->booked_bytes) return WEIR_OK;
    status = base_ledger_reserve(c->env, BASE_TAG_PROCESS, plan->process_bytes - c->booked_bytes, err);
    if (status == WEIR_OK) c->booked_bytes = plan->process_bytes;
    return status;
}

weir_status rt_budget_raise(weir_context *c, uint64_t budget_bytes, weir_error *err)
{
    base_ledger_view v;
    base_ledger_read(c->env, &v);
    if (c->n_loaded == 0 || budget_bytes <= v.limit_bytes) return WEIR_OK;
    return base_ledger_set_limit(c->env, budget_bytes, err);
}

static weir_status allocate_rows(weir_model *m, rt_loaded *run, weir_error *err)
{
    base_env *env = m->env;
    weir_status status = rt_rows_create(env, &run->plan, lm_model_hparams(m->lm)->n_layers, &run->rows, err);
    if (status != WEIR_OK) return status;
    run->runs = base_alloc_array(env, BASE_TAG_RUNTIME, run->plan.max_batch, sizeof *run->runs, err);
    if (run->runs == NULL) return err->code;
    run->shares = base_alloc_array(env, BASE_TAG_RUNTIME, run->plan.max_batch, sizeof *run->shares, err);
    return run->shares != NULL ? WEIR_OK : err->code;
}

static weir_status allocate_all(weir_model *m, rt_loaded *run, weir_error *err)
{
    const lm_hparams *h = lm_model_hparams(m->lm);
    graph_options o = {
        .max_rows = run->plan.max_rows, .max_outputs = run->plan.max_outputs, .alias = run->options.alias};
    weir_status status = lm_program_create(m->env, m->lm, run->device, &o, &run->program, err);
    if (status != WEIR_OK) return status;
    graph_use_source(run->program, run->source);
    graph_profile_on(run->program, run->options.profile);
    status =
        graph_reserve(run->program, (uint32_t)base_align_up(run->plan.view.ctx_tokens, 16), h->head_dim, err);
    if (status == WEIR_OK) status = rt_sampler_create(m->env, h->n_vocab, &run->sampler, err);
    if (status == WEIR_OK) status = allocate_rows(m, run, err);
    return status;
}

static void log_plan(const weir_model *m, const rt_plan *plan)
{
    char peak[32], budget[32], streamed[32];
    const weir_plan *v = &plan->view;
    base_log(m->env, BASE_LOG_INFO,
             "plan: %s of a budget of %s%s, context %u x %u, %u tokens a prefill pass, %u threads, %s "
             "streamed a pass",
             base_size_text(v->planned_peak_bytes, peak), base_size_text(v->budget_bytes, budget),
             v->budget_is_default ? " (default)" : "", v->ctx_tokens, v->n_sessions, v->prefill_chunk,
             v->n_threads, base_size_text(v->streamed_bytes_per_pass, streamed));
    uint32_t trained = lm_model_hparams(m->lm)->context_tokens;
    if (trained != 0 && v->ctx_tokens > trained)
        base_log(m->env, BASE_LOG_WARN,
                 "a context of %u tokens is longer than the %u that the model was trained for; answers get "
                 "worse behind that",
                 v->ctx_tokens, trained);
}

/* ---- memory's view of the device ---- */

_Static_assert(DEV_PACK_ROWS == MEM_ROW_GROUP, "devices and memory must agree on the size of a group");

static bool can_pack(void *arg, uint32_t type)
{
    const dev_device *d = arg;
    return d->table->can_pack(d, type);
}

static weir_status pack(void *arg, uint32_t type, void *rows, size_t row_bytes, size_t n_groups,
                        weir_error *err)
{
    dev_device *d = arg;
    return d->table->pack(d, type, rows, row_bytes, n_groups, err);
}

static void unpack_row(void *arg, uint32_t type, const void *group, size_t row_bytes, uint32_t row, void *dst)
{
    const dev_device *d = arg;
    d->table->unpack_row(d, type, group, row_bytes, row, dst);
}

mem_packer rt_packer(dev_device *device)
{
    return (mem_packer){.arg = device, .can_pack = can_pack, .pack = pack, .unpack_row = unpack_row};
}

static mem_place_options place_options(const rt_loaded *run, const rt_plan *plan, atomic_bool *cancel)
{
    return (mem_place_options){
        .aio = run->options.aio,
        .progress = run->place_progress,
        .progress_arg = run->place_progress_arg,
        .cancel = cancel,
        .map = plan->map,
    };
}

static weir_status place(weir_model *m, rt_loaded *run, weir_error *err)
{
    mem_place_options options = place_options(run, &run->plan, &m->cancel);
    mem_packer packer = rt_packer(run->device);
    if (run->options.pack) options.packer = &packer;
    return mem_place(m->component, &run->plan.memory, &options, err);
}

weir_status rt_place_again(weir_model *m, const rt_loaded *run, const rt_plan *plan, atomic_bool *cancel,
                           weir_error *err)
{
    mem_place_options options = place_options(run, plan, cancel);
    return mem_resize(m->component, &plan->memory, &options, err);
}

static weir_status load_planned(weir_model *m, rt_loaded *run, const weir_load_options *o, weir_error *err)
{
    base_ledger_view before = run->before;
    weir_status status = rt_device_create(m, &run->options, &before, &run->target, &run->opened_target, err);
    if (status != WEIR_OK) return status;
    run->device = run->target->device;
    status = rt_plan_make(m, &run->options, run->target, &before, &run->plan, err);
    if (status == WEIR_OK && !run->plan.view.fits) status = WEIR_ERR_BUDGET;
    if (status == WEIR_OK) status = budget_set(m->context, &run->plan, err);
    if (status != WEIR_OK) return status;
    log_plan(m, &run->plan);
    run->place_progress = o != NULL ? o->progress : NULL;
    run->place_progress_arg = o != NULL ? o->progress_arg : NULL;
    rt_budget_is_full(run);
    if (run->plan.on_device) {
        status = rt_device_prepare(m, run, err);
        if (status == WEIR_OK) status = allocate_all(m, run, err);
        if (status == WEIR_OK) status = rt_device_place(m, run, err);
    } else {
        status = allocate_all(m, run, err);
        if (status == WEIR_OK) status = place(m, run, err);
    }
    run->place_progress = NULL; /* the caller's for this call only */
    return status;
}

static weir_status load_text(weir_model *m, bool *made, weir_error *err)
{
    bool had = m->text->tokenizer != NULL;
    weir_status status = rt_plan_tokenizer(m, err);
    *made = !had && m->text->tokenizer != NULL;
    return status;
}

static weir_status load(weir_model *m, const weir_load_options *o, weir_error *err)
{
    weir_context *c = m->context;
    weir_status status = rt_model_runs(m, err);
    if (status == WEIR_OK) status = rt_model_is_here(m, err);
    if (status != WEIR_OK) return status;
    if (m->run != NULL && m->run->n_sessions != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "the model has %u sessions; destroy them before loading it again",
                         m->run->n_sessions);
    rt_unload(m);
    if (c->n_loaded == 0) {
        base_process_peak_reset();
        base_ledger_peak_reset(m->env);
    }
    double start = base_now(m->env);
    bool made_text = false;
    weir_error failure = {0};
    rt_options options;
    base_ledger_view ledger, before;
    base_ledger_read(m->env, &ledger);
    uint64_t booked = c->booked_bytes;
    rt_loaded *run = NULL;
    status = rt_options_resolve(m, o, &options, &failure);
    if (status == WEIR_OK) status = rt_budget_raise(c, options.mem_bytes, &failure);
    if (status == WEIR_OK) status = load_text(m, &made_text, &failure);
    if (status != WEIR_OK) goto fail;
    rt_ledger_read(c, &before);
    run = base_alloc(m->env, BASE_TAG_RUNTIME, sizeof *run, &failure);
    if (run == NULL) goto fail;
    run->before = before;
    run->options = options;
    status = load_planned(m, run, o, &failure);
    if (status != WEIR_OK) goto fail;
    run->load_seconds = base_now(m->env) - start;
    base_lock_enter(c->lock);
    m->run = run;
    m->next_loaded = c->loaded;
    c->loaded = m;
    c->n_loaded++;
    base_lock_leave(c->lock);
    return WEIR_OK;

fail:
    if (run != NULL) run_free(m, run);
    if (made_text) rt_text_finish(m);
    budget_restore(c, ledger.limit_bytes, booked);
    *err = failure;
    return failure.code;
}

weir_status weir_model_load(weir_model *m, const weir_load_options *o, weir_error *err)
{
    weir_error local;
    atomic_store(&m->cancel, false);
    rt_enter(m->context);
    weir_status status = load(m, o, rt_error(err, &local));
    rt_leave(m->context);
    return status;
}

void rt_unload(weir_model *m)
{
    rt_loaded *run = m->run;
    if (run == NULL) return;
    weir_context *c = m->context;
    base_lock_enter(c->lock);
    weir_model **at = &c->loaded;
    while (*at != m) at = &(*at)->next_loaded;
    *at = m->next_loaded;
    base_lock_leave(c->lock);
    rt_sessions_detach(run);
    m->run = NULL;
    run_free(m, run);
    if (--c->n_loaded == 0) budget_restore(c, UINT64_MAX, 0);
}

void weir_model_unload(weir_model *m)
{
    rt_enter(m->context);
    rt_unload(m);
    rt_leave(m->context);
}

uint32_t weir_model_sessions(const weir_model *m)
{
    return m->run != NULL ? m->run->plan.view.n_sessions : 0;
}
