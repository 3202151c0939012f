/* A loaded model's budget may change between two passes: when the caller says so, and when memory becomes
 * short (R6.5). Caches, activations and sessions stay as they are; what changes is how many weights stay, and
 * of those what both budgets have in common is not read again. No bit of any result depends on it. */
#include "rt_internal.h"

#include <string.h>

#define CHECK_SECONDS      0.25
#define GROW_SECONDS       5.0
#define GROW_MIN_BYTES     (UINT64_C(32) << 20)
#define GROW_SHARE         20
#define TOLERANCE_BYTES    (UINT64_C(4) << 20)
#define TOLERANCE_SHARE    32
#define HARD_RESERVE_SHARE 8
/* Kept free below a control group's limit that is being lowered: the kernel refuses to go below what is held,
 * or kills for it, so there must be room for the next step. */
#define FALLING_SHARE     8
#define FALLING_MIN_BYTES (UINT64_C(16) << 20)

/* Books and limits what a plan says; its weights are not placed. */
static weir_status book(weir_context *c, const rt_plan *plan, weir_error *err)
{
    if (plan->process_bytes < c->booked_bytes) {
        base_ledger_release(c->env, BASE_TAG_PROCESS, c->booked_bytes - plan->process_bytes);
        c->booked_bytes = plan->process_bytes;
    }
    weir_status status = base_ledger_set_limit(c->env, plan->view.budget_bytes, err);
    if (status != WEIR_OK || plan->process_bytes <= c->booked_bytes) return status;
    status = base_ledger_reserve(c->env, BASE_TAG_PROCESS, plan->process_bytes - c->booked_bytes, err);
    if (status == WEIR_OK) c->booked_bytes = plan->process_bytes;
    return status;
}

static weir_status plan_weights(const weir_model *m, const rt_need *need, uint64_t budget, mem_plan *out,
                                weir_error *err)
{
    char a[32], b[32];
    weir_status status = mem_plan_make(m->component, rt_weights_room(need, budget), out, err);
    if (status != WEIR_ERR_BUDGET) return status;
    return base_fail(
        err, status, "a budget of %s does not suffice for what is loaded: at least %s are needed",
        base_size_text(budget, a), base_size_text(rt_planner_budget(need, out->smallest_bytes), b));
}

static uint64_t weights_of(const rt_plan *plan)
{
    const mem_plan *mem = &plan->memory;
    return mem->fixed_bytes + mem->resident_bytes + mem->ring_bytes + plan->device_ram_bytes;
}

/* The tags of weights, from one plan to another. */
static void change_tags(const rt_plan *old, rt_plan *new)
{
    const mem_plan *mem = &new->memory;
    uint64_t *tags = new->tag_bytes;
    if (new->on_device) {
        tags[BASE_TAG_WEIGHTS_HOST] += mem->resident_bytes - old->memory.resident_bytes;
        tags[BASE_TAG_DEVICE] += new->device_ram_bytes - old->device_ram_bytes;
        return;
    }
    tags[BASE_TAG_WEIGHTS_MAPPED] = new->map ? mem->fixed_bytes + mem->resident_bytes : 0;
    tags[BASE_TAG_WEIGHTS_FIXED] = new->map ? 0 : mem->fixed_bytes;
    tags[BASE_TAG_WEIGHTS_RESIDENT] = new->map ? 0 : mem->resident_bytes;
    tags[BASE_TAG_WEIGHTS_SLOTS] = mem->ring_bytes;
}

/* The loaded plan with other weights. */
static weir_status plan_again(const weir_model *m, uint64_t budget, rt_plan *out, weir_error *err)
{
    const rt_plan *old = &m->run->plan;
    rt_need need = {.total_bytes = old->need_bytes, .device_bytes = old->device_need_bytes};
    *out = *old;
    weir_status status = old->on_device ? rt_device_plan_again(m, &need, budget, out, err)
                                        : plan_weights(m, &need, budget, &out->memory, err);
    if (status != WEIR_OK) return status;
    const mem_plan *mem = &out->memory;
    uint64_t weights = weights_of(out);
    uint64_t peak = rt_planner_budget(&need, weights);
    uint64_t old_tables = old->view.planned_peak_bytes - old->need_bytes - weights_of(old);
    uint64_t tables = peak - need.total_bytes - weights;
    out->map = old->map && mem->ring_bytes == 0;
    out->process_bytes = old->process_bytes - old_tables + tables;
    out->tag_bytes[BASE_TAG_PROCESS] = old->tag_bytes[BASE_TAG_PROCESS] - old_tables + tables;
    change_tags(old, out);
    out->view.budget_bytes = budget;
    out->view.planned_peak_bytes = peak;
    out->view.streamed_bytes_per_pass = mem->streamed_bytes;
    return WEIR_OK;
}

static weir_status place_again(weir_model *m, const rt_plan *plan, weir_error *err)
{
    return plan->on_device ? rt_device_place_again(m, plan, err) : rt_place_again(m, m->run, plan, err);
}

/* The ledger's limit is the larger of both budgets while the weights go over; they give back before they
 * take. */
static weir_status change(weir_model *m, uint64_t budget, weir_error *err)
{
    rt_loaded *run = m->run;
    rt_plan plan;
    weir_error none;
    weir_status status = plan_again(m, budget, &plan, err);
    if (status != WEIR_OK) return status;
    bool grows = budget > run->plan.view.budget_bytes;
    if (grows) status = book(m->context, &plan, err);
    if (status == WEIR_OK) status = place_again(m, &plan, err);
    if (status == WEIR_OK && !grows) status = book(m->context, &plan, err);
    run->last_change = base_now(m->env);
    if (status == WEIR_OK) {
        run->plan = plan;
        return WEIR_OK;
    }
    /* On a device, what the next pass finds missing it places. */
    if (plan.on_device) rt_device_limit(m, &run->plan);
    book(m->context, &run->plan, &none);
    return status;
}

/* On a device its settings may have changed as well: its policy is what they say now, or stays what it was.
 */
static weir_status change_on_device(weir_model *m, uint64_t budget, weir_error *err)
{
    mem_manager *manager = m->run->target->manager;
    rt_device_options now;
    mem_manager_info old;
    weir_error none;
    weir_status status = rt_device_settings(m->context, NULL, &now, err);
    if (status == WEIR_OK) status = mem_manager_get_info(manager, &old, err);
    if (status == WEIR_OK) status = mem_manager_set_policy(manager, &now.policy, err);
    if (status != WEIR_OK) return status;
    status = change(m, budget, err);
    if (status == WEIR_OK) {
        m->run->options.device.policy = now.policy;
        return WEIR_OK;
    }
    old.policy.pinned_models = now.policy.pinned_models; /* its own text is gone */
    mem_manager_set_policy(manager, &old.policy, &none);
    return status;
}

static weir_status set_budget(weir_model *m, uint64_t mem_bytes, weir_error *err)
{
    if (m->run == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the model is not loaded: weir_model_load first");
    if (m->context->n_loaded != 1)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "the budget of %u loaded models cannot be changed for one of them",
                         m->context->n_loaded);
    atomic_store(&m->cancel, false);
    weir_status status =
        m->run->source != NULL ? change_on_device(m, mem_bytes, err) : change(m, mem_bytes, err);
    if (status == WEIR_OK) m->run->full_budget = mem_bytes;
    return status;
}

weir_status weir_model_set_budget(weir_model *m, uint64_t mem_bytes, weir_error *err)
{
    weir_error local;
    rt_enter(m->context);
    weir_status status = set_budget(m, mem_bytes, rt_error(err, &local));
    rt_leave(m->context);
    return status;
}

/* What the process may hold now. A budget that was given is the user's word: for it only a control group's
 * limit and a machine that is nearly out of memory count. */
static weir_status allowed_now(weir_model *m, uint64_t *out, weir_error *err)
{
    base_memory_limits limits;
    base_process_memory own;
    uint64_t reserve;
    weir_status status = rt_limits_read(m->context, &limits, err);
    if (status == WEIR_OK) status = rt_default_budget(m->context, &limits, out, &reserve, err);
    if (status != WEIR_OK || m->run->options.mem_is_default) return status;
    status = base_process_memory_read(&own, err);
    if (status != WEIR_OK) return status;
    uint64_t machine = limits.available_bytes + own.anon_bytes, keep = reserve / HARD_RESERVE_SHARE;
    *out = machine > keep ? machine - keep : 0;
    uint64_t limit = limits.cgroup_limit_bytes;
    bool falling = limit < m->run->limit_seen;
    m->run->limit_seen = base_max(limit, m->run->limit_seen);
    if (limit == UINT64_MAX || limits.cgroup_free_bytes == UINT64_MAX) return WEIR_OK;
    uint64_t group = base_min(rt_add(limits.cgroup_free_bytes, own.anon_bytes), limit);
    uint64_t room = falling ? base_max(limit / FALLING_SHARE, FALLING_MIN_BYTES) : 0;
    *out = base_min(*out, group - base_min(group, room));
    return WEIR_OK;
}

weir_status rt_budget_follow(weir_model *m, weir_error *err)
{
    rt_loaded *run = m->run;
    double now = base_now(m->env);
    if (now < run->next_check || run->source != NULL || m->context->n_loaded != 1) return WEIR_OK;
    run->next_check = now + CHECK_SECONDS;
    if (strcmp(base_settings_get(m->context->settings, "compute.pressure"), "auto") != 0) return WEIR_OK;
    uint64_t allowed;
    weir_error none;
    if (allowed_now(m, &allowed, &none) != WEIR_OK) return WEIR_OK;
    const weir_plan *v = &run->plan.view;
    rt_need need = {.total_bytes = run->plan.need_bytes};
    uint64_t smallest = rt_planner_budget(&need, run->plan.memory.smallest_bytes);
    uint64_t wanted = base_max(base_min(allowed, run->full_budget), smallest);
    uint64_t held = base_min(v->planned_peak_bytes, v->budget_bytes);
    bool less = wanted + base_max(TOLERANCE_BYTES, held / TOLERANCE_SHARE) < held;
    bool more = v->budget_bytes < run->full_budget && v->streamed_bytes_per_pass != 0 &&
                wanted > v->budget_bytes + base_max(GROW_MIN_BYTES, run->full_budget / GROW_SHARE) &&
                now - run->last_change > GROW_SECONDS;
    if (wanted == run->full_budget && now - run->last_change > GROW_SECONDS && wanted > v->budget_bytes)
        more = true;
    if (!less && !more) return WEIR_OK;
    char a[32], b[32];
    base_log(m->env, BASE_LOG_INFO, "memory is %s: the budget goes from %s to %s",
             less ? "short" : "there again", base_size_text(v->budget_bytes, a), base_size_text(wanted, b));
    /* Another model may have been loaded meanwhile. */
    weir_status status = WEIR_OK;
    rt_enter(m->context);
    if (m->context->n_loaded == 1) status = change(m, wanted, err);
    rt_leave(m->context);
    return status;
}
