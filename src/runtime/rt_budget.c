/* A loaded model's budget may change between two passes: when the caller says so, and when memory becomes
 * short (rt_follow.c). Caches, activations and sessions stay as they are; what changes is how many weights
 * stay, and of those what both budgets have in common is not read again. No bit of any result depends on it.
 *
 * The ledger's limit is that of the model that was loaded last: its plan counts all that was there before it,
 * so it is the context's. When one of the others changes, that plan is carried along. */
#include "rt_internal.h"

#include <string.h>

static const base_tag weight_tags[] = {BASE_TAG_WEIGHTS_MAPPED,   BASE_TAG_WEIGHTS_FIXED,
                                       BASE_TAG_WEIGHTS_RESIDENT, BASE_TAG_WEIGHTS_SLOTS,
                                       BASE_TAG_WEIGHTS_HOST,     BASE_TAG_DEVICE};
#define N_WEIGHT_TAGS (sizeof weight_tags / sizeof *weight_tags)

/* Books and limits what a model's plan says; its weights are not placed. Beside models that were loaded
 * later, these get room for what theirs say, and of `total` what that leaves. */
static weir_status book(weir_model *m, const rt_plan *plan, uint64_t total, weir_error *err)
{
    weir_context *c = m->context;
    rt_loaded *last = c->loaded->run;
    if (c->loaded != m) plan = &last->plan;
    uint64_t limit =
        c->loaded == m ? plan->view.budget_bytes : base_max(total, plan->view.planned_peak_bytes);
    if (plan->process_bytes < c->booked_bytes) {
        base_ledger_release(c->env, BASE_TAG_PROCESS, c->booked_bytes - plan->process_bytes);
        c->booked_bytes = plan->process_bytes;
    }
    weir_status status = base_ledger_set_limit(c->env, limit, err);
    if (status == WEIR_OK && plan->process_bytes > c->booked_bytes) {
        status = base_ledger_reserve(c->env, BASE_TAG_PROCESS, plan->process_bytes - c->booked_bytes, err);
        if (status == WEIR_OK) c->booked_bytes = plan->process_bytes;
    }
    if (status != WEIR_OK || c->loaded == m) return status;
    base_lock_enter(c->lock);
    last->plan.view.budget_bytes = limit;
    base_lock_leave(c->lock);
    return WEIR_OK;
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

/* What of a tag is a plan's own weights. */
static uint64_t own_bytes(const rt_plan *plan, base_tag tag)
{
    const mem_plan *mem = &plan->memory;
    switch (tag) {
    case BASE_TAG_WEIGHTS_MAPPED: return plan->map ? mem->fixed_bytes + mem->resident_bytes : 0;
    case BASE_TAG_WEIGHTS_FIXED: return plan->map ? 0 : mem->fixed_bytes;
    case BASE_TAG_WEIGHTS_RESIDENT: return plan->map || plan->on_device ? 0 : mem->resident_bytes;
    case BASE_TAG_WEIGHTS_HOST: return plan->on_device ? mem->resident_bytes : 0;
    case BASE_TAG_WEIGHTS_SLOTS: return mem->ring_bytes;
    case BASE_TAG_DEVICE: return plan->device_ram_bytes;
    default: return 0;
    }
}

/* Peak and page tables, for a plan whose weights or needs have changed. */
static void set_peak(rt_plan *plan, uint64_t old_tables)
{
    rt_need need = {.total_bytes = plan->need_bytes};
    uint64_t weights = weights_of(plan);
    uint64_t peak = rt_planner_budget(&need, weights);
    uint64_t tables = peak - plan->need_bytes - weights;
    plan->process_bytes = plan->process_bytes - old_tables + tables;
    plan->tag_bytes[BASE_TAG_PROCESS] = plan->tag_bytes[BASE_TAG_PROCESS] - old_tables + tables;
    plan->view.planned_peak_bytes = peak;
}

static uint64_t tables_of(const rt_plan *plan)
{
    return plan->view.planned_peak_bytes - plan->need_bytes - weights_of(plan);
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
    out->map = old->may_map && out->memory.ring_bytes == 0;
    for (size_t i = 0; i < N_WEIGHT_TAGS; i++) {
        base_tag t = weight_tags[i];
        out->tag_bytes[t] += own_bytes(out, t) - own_bytes(old, t);
    }
    set_peak(out, tables_of(old));
    out->view.budget_bytes = budget;
    out->view.streamed_bytes_per_pass = out->memory.streamed_bytes;
    return WEIR_OK;
}

/* Models that were loaded later have planned with what this one holds. */
static void carry(weir_model *m, const rt_plan *from, const rt_plan *to)
{
    weir_context *c = m->context;
    base_lock_enter(c->lock);
    for (weir_model *later = c->loaded; later != m; later = later->next_loaded) {
        rt_plan *plan = &later->run->plan;
        base_ledger_view *before = &later->run->before;
        uint64_t tables = tables_of(plan);
        for (size_t i = 0; i < N_WEIGHT_TAGS; i++) {
            base_tag t = weight_tags[i];
            uint64_t more = own_bytes(to, t) - own_bytes(from, t); /* less wraps around, and back */
            plan->tag_bytes[t] += more;
            plan->need_bytes += more;
            before->tag_bytes[t] += more;
            before->bytes += more;
        }
        set_peak(plan, tables);
    }
    base_lock_leave(c->lock);
}

static void take_plan(weir_model *m, const rt_plan *plan)
{
    base_lock_enter(m->context->lock);
    m->run->plan = *plan;
    base_lock_leave(m->context->lock);
}

static weir_status place_again(weir_model *m, const rt_plan *plan, atomic_bool *cancel, weir_error *err)
{
    return plan->on_device ? rt_device_place_again(m, plan, err)
                           : rt_place_again(m, m->run, plan, cancel, err);
}

/* Weights that give back do so before the ledger hears of it. Where it then cannot be limited, since others
 * hold more than was planned, they go back. */
static weir_status shrink(weir_model *m, const rt_plan *plan, uint64_t total, atomic_bool *cancel,
                          weir_error *err)
{
    const rt_plan old = m->run->plan;
    weir_error none;
    weir_status status = place_again(m, plan, cancel, err);
    if (status != WEIR_OK) return status;
    carry(m, &old, plan);
    take_plan(m, plan);
    status = book(m, plan, total, err);
    if (status == WEIR_OK) return WEIR_OK;
    if (place_again(m, &old, NULL, &none) == WEIR_OK) {
        carry(m, plan, &old);
        take_plan(m, &old);
    }
    return status;
}

/* The limit is the larger of both budgets while the weights go over. */
static weir_status grow(weir_model *m, const rt_plan *plan, uint64_t total, atomic_bool *cancel,
                        weir_error *err)
{
    const rt_plan old = m->run->plan;
    carry(m, &old, plan);
    weir_status status = book(m, plan, total, err);
    if (status == WEIR_OK) status = place_again(m, plan, cancel, err);
    if (status == WEIR_OK)
        take_plan(m, plan);
    else
        carry(m, plan, &old);
    return status;
}

void rt_budget_is_full(rt_loaded *run)
{
    const weir_plan *v = &run->plan.view;
    run->full_budget = v->budget_bytes;
    run->full_peak = base_min(v->planned_peak_bytes, v->budget_bytes);
}

weir_status rt_budget_change(weir_model *m, uint64_t budget, uint64_t total, atomic_bool *cancel,
                             weir_error *err)
{
    rt_loaded *run = m->run;
    rt_plan plan;
    weir_error none;
    uint64_t last_budget = m->context->loaded->run->plan.view.budget_bytes;
    weir_status status = plan_again(m, budget, &plan, err);
    if (status != WEIR_OK) return status;
    bool grows = budget > run->plan.view.budget_bytes;
    status = grows ? grow(m, &plan, total, cancel, err) : shrink(m, &plan, total, cancel, err);
    run->last_change = base_now(m->env);
    if (status == WEIR_OK) return WEIR_OK;
    /* On a device, what the next pass finds missing it places. */
    if (plan.on_device) rt_device_limit(m, &run->plan);
    book(m, &run->plan, last_budget, &none);
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
    status = rt_budget_change(m, budget, budget, &m->cancel, err);
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
    weir_status status = m->run->source != NULL ? change_on_device(m, mem_bytes, err)
                                                : rt_budget_change(m, mem_bytes, mem_bytes, &m->cancel, err);
    if (status == WEIR_OK) rt_budget_is_full(m->run);
    return status;
}

weir_status weir_model_set_budget(weir_model *m, uint64_t mem_bytes, weir_error *err)
{
    weir_error local;
    atomic_store(&m->cancel, false);
    rt_enter(m->context);
    weir_status status = set_budget(m, mem_bytes, rt_error(err, &local));
    rt_leave(m->context);
    return status;
}
