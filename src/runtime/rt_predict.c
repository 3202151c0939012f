/* How fast it will be: the plan's passes, rehearsed for a moment on this machine with this storage
 * (rt_rehearse.c). For a storage rate that is given, passes are rehearsed with all weights in memory and the
 * plan's ring is played through with what that took (mem_plan_predict). */
#include "rt_internal.h"

#include <stdio.h>

/* A model whose file this is; measured where nothing is known of its storage, since that decides the ring. */
static weir_status storage_rate(weir_model *m, double given, weir_prediction *out, weir_error *err)
{
    weir_storage s = {.struct_size = sizeof s};
    out->latency_seconds = 5e-5;
    weir_status status = weir_model_storage(m, given <= 0, &s, err);
    if (status != WEIR_OK) return status;
    if (s.bytes_per_s > 0) out->latency_seconds = s.latency_seconds;
    out->storage_bytes_per_s = given > 0 ? given : s.bytes_per_s;
    return WEIR_OK;
}

/* Whether a rehearsal with all weights in memory takes no more of it than the plan does. */
static bool whole_has_room(const weir_model *m, const rt_plan *plan, const mem_plan *whole, uint64_t *bytes)
{
    const mem_plan *mem = &plan->memory;
    uint64_t there = mem->fixed_bytes + mem->resident_bytes + mem->ring_bytes, largest = 0;
    mem_weight_info w;
    for (mem_weight_id i = 0; mem_component_weight(m->component, i, &w); i++)
        if (w.streamable) largest = base_max(largest, w.n_rows * w.row_bytes);
    *bytes = there - base_min(there, whole->fixed_bytes + largest);
    *bytes = base_max(*bytes, largest);
    return whole->fixed_bytes + base_align_up(*bytes, 4096) <= there;
}

/* What passes take without waiting for storage. */
static void leave_out_waiting(rt_rehearsed *r)
{
    for (int i = 0; i < RT_N_PASSES; i++) {
        rt_pass_time *t = &r->pass[i];
        double share = t->likely > 0 ? 1 - t->wait / t->likely : 1;
        if (share < 0.05) share = 0.05;
        *t = (rt_pass_time){t->best * share, t->likely * share, t->worst * share, 0};
    }
}

static bool lacks_room(weir_status status)
{
    return status == WEIR_ERR_OUT_OF_MEMORY || status == WEIR_ERR_BUDGET;
}

/* What they take when all weights are in memory; where there is no room for that, what the plan's take less
 * the waiting, and `note` says so. `known`: those, where they were rehearsed already. */
static weir_status without_storage(weir_model *m, dev_device *device, const rt_options *o,
                                   const rt_plan *plan, uint32_t passes, const rt_rehearsed *known,
                                   rt_rehearsed *out, char note[WEIR_NOTE_BYTES], weir_error *err)
{
    weir_error why = {0};
    mem_plan whole;
    uint64_t bytes;
    weir_status status = mem_plan_make(m->component, UINT64_MAX, &whole, err);
    if (status != WEIR_OK) return status;
    if (whole_has_room(m, plan, &whole, &bytes)) {
        status = rt_rehearse(m, device, o, plan, &whole, bytes, passes, out, &why);
        if (status != WEIR_OK && !lacks_room(status)) *err = why;
        if (!lacks_room(status)) return status;
    }
    snprintf(note, WEIR_NOTE_BYTES,
             "the plan has no room to rehearse with all weights in memory: computing is what streaming "
             "passes take less their waiting");
    status = WEIR_OK;
    if (known != NULL)
        *out = *known;
    else
        status =
            rt_rehearse(m, device, o, plan, &plan->memory, plan->memory.resident_bytes, passes, out, err);
    leave_out_waiting(out);
    return status;
}

/* Plays the ring through, with what each kind of pass takes without storage. */
static weir_status play(const weir_model *m, const rt_plan *plan, const weir_prediction *p, rt_rehearsed *r,
                        weir_error *err)
{
    double bytes = (double)base_max(plan->view.weight_bytes_per_pass, 1);
    for (int i = 0; i < RT_N_PASSES; i++) {
        double *seconds[] = {&r->pass[i].best, &r->pass[i].likely, &r->pass[i].worst};
        for (int k = 0; k < 3; k++) {
            if (!(*seconds[k] > 0)) continue;
            mem_speed s = {.storage_bytes_per_s = p->storage_bytes_per_s,
                           .compute_bytes_per_s = bytes / *seconds[k],
                           .latency_s = p->latency_seconds};
            weir_status status = mem_plan_predict(m->component, &plan->memory, &s, seconds[k], err);
            if (status != WEIR_OK) return status;
        }
    }
    return WEIR_OK;
}

/* Tokens per second of passes that bring so many. */
static weir_rate rate_of(double tokens, rt_pass_time t)
{
    if (!(t.best > 0)) t.best = t.likely = t.worst = 1e-9;
    return (weir_rate){.low = tokens / t.worst, .likely = tokens / t.likely, .high = tokens / t.best};
}

static void fill(const rt_plan *plan, const rt_rehearsed *r, double compute_seconds, weir_prediction *out)
{
    const weir_plan *v = &plan->view;
    rt_pass_time one = r->pass[RT_PASS_DECODE], body = r->pass[RT_PASS_BODY], end = r->pass[RT_PASS_END];
    uint32_t prompt = rt_rehearsed_prompt(plan),
             bodies = prompt / (uint32_t)base_max(v->prefill_chunk, 1) - 1;
    double streams = (double)v->streamed_bytes_per_pass, bytes = (double)v->weight_bytes_per_pass;
    out->decode = out->all_sessions = out->prefill = rate_of(1, one);
    if (plan->max_batch > 1) out->all_sessions = rate_of(plan->max_batch, r->pass[RT_PASS_SESSIONS]);
    rt_pass_time all = {.best = bodies * body.best + end.best,
                        .likely = bodies * body.likely + end.likely,
                        .worst = bodies * body.worst + end.worst};
    if (v->prefill_chunk > 1) out->prefill = rate_of(prompt, all);
    out->prefill_rows = v->prefill_chunk;
    out->tokens_per_s = out->decode.likely;
    out->seconds_per_token = 1 / out->tokens_per_s;
    /* Neither limit is below what was reached: what is remembered of the storage may be of a worse day. */
    if (compute_seconds > out->seconds_per_token) compute_seconds = out->seconds_per_token;
    out->compute_bytes_per_s = bytes / compute_seconds;
    if (streams * out->tokens_per_s > out->storage_bytes_per_s)
        out->storage_bytes_per_s = streams * out->tokens_per_s;
    double slowest = compute_seconds;
    if (streams > 0 && streams / out->storage_bytes_per_s > slowest)
        slowest = streams / out->storage_bytes_per_s;
    out->limit_tokens_per_s = 1 / slowest;
}

static weir_status predict(weir_model *m, const rt_options *o, dev_device *device, const rt_plan *plan,
                           bool given, weir_prediction *out, weir_error *err)
{
    rt_rehearsed r = {0}, whole = {0};
    weir_status status = WEIR_OK;
    bool streams = plan->memory.ring_bytes != 0;
    if (!streams || !given)
        status = rt_rehearse(m, device, o, plan, &plan->memory, plan->memory.resident_bytes, RT_ALL_PASSES,
                             &r, err);
    if (status != WEIR_OK) return status;
    if (!streams) {
        fill(plan, &r, r.pass[RT_PASS_DECODE].likely, out);
        return WEIR_OK;
    }
    uint32_t passes = given ? RT_ALL_PASSES : UINT32_C(1) << RT_PASS_DECODE;
    status = without_storage(m, device, o, plan, passes, given ? NULL : &r, &whole, out->note, err);
    double compute = whole.pass[RT_PASS_DECODE].likely;
    if (status == WEIR_OK && given) status = play(m, plan, out, &whole, err);
    if (status == WEIR_OK) fill(plan, given ? &whole : &r, compute, out);
    return status;
}

static weir_status predict_model(weir_model *m, const weir_load_options *o, double storage_bytes_per_s,
                                 weir_prediction *out, weir_error *err)
{
    rt_options options;
    *out = (weir_prediction){.struct_size = sizeof *out};
    weir_status status = rt_model_runs(m, err);
    if (status == WEIR_OK && m->run != NULL)
        status = base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                           "the model is loaded; speed is predicted before that, or after weir_model_unload");
    if (status == WEIR_OK) status = rt_options_resolve(m, o, &options, err);
    if (status == WEIR_OK && options.device.kind != RT_DEVICE_CPU)
        status =
            base_fail(err, WEIR_ERR_UNSUPPORTED, "speed is predicted for the CPU only, not for a device");
    if (status != WEIR_OK) return status;
    status = rt_plan_tokenizer(m, err);
    if (status != WEIR_OK) return status;
    base_ledger_view before;
    rt_ledger_read(m->context, &before);
    rt_device *target;
    bool opened;
    status = rt_device_create(m, &options, &before, &target, &opened, err);
    if (status != WEIR_OK) return status;
    rt_plan plan;
    status = rt_plan_make(m, &options, target, &before, &plan, err);
    if (status == WEIR_OK && !plan.view.fits) status = WEIR_ERR_BUDGET; /* err has the advice */
    if (status == WEIR_OK && plan.memory.ring_bytes != 0) {
        status = storage_rate(m, storage_bytes_per_s, out, err);
        /* What was measured only now may have changed the ring. */
        if (status == WEIR_OK) status = rt_plan_make(m, &options, target, &before, &plan, err);
    }
    if (status == WEIR_OK)
        status = predict(m, &options, target->device, &plan, storage_bytes_per_s > 0, out, err);
    rt_device_close(m->context, target);
    return status;
}

weir_status weir_model_predict(weir_model *m, const weir_load_options *o, double storage_bytes_per_s,
                               weir_prediction *out, weir_error *err)
{
    weir_error local;
    atomic_store(&m->cancel, false);
    rt_enter(m->context);
    weir_status status = predict_model(m, o, storage_bytes_per_s, out, rt_error(err, &local));
    rt_leave(m->context);
    return status;
}
