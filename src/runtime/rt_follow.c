/* Budgets that follow what the machine and its control groups leave (R6.5, X2): before a pass, and when the
 * caller says that he waits. What is missing is taken from the model that can give most, what comes back goes
 * to the one that is about to run; none gets more than it was loaded with. */
#include "rt_internal.h"

#include <string.h>

#define CHECK_SECONDS   0.25
#define RETRY_SECONDS   2.0 /* after a change that failed */
#define GROW_SECONDS    5.0
#define GROW_MIN_BYTES  (UINT64_C(32) << 20)
#define GROW_SHARE      20
#define TOLERANCE_BYTES (UINT64_C(4) << 20)
#define TOLERANCE_SHARE 32
/* Kept free below a control group's limit that is being lowered: the kernel refuses to go below what is held,
 * or kills for it, so there must be room for the next step. Without one for a while, that was the last. */
#define FALLING_SHARE     8
#define FALLING_MIN_BYTES (UINT64_C(16) << 20)
#define FALLING_SECONDS   10.0

/* What the process may hold, and by how much more it may do so without harm. */
typedef struct allowance {
    uint64_t bytes, cover_bytes;
} allowance;

static bool limit_falls(weir_context *c, uint64_t limit)
{
    double now = base_now(c->env);
    if (limit != c->group_limit) {
        c->group_falls = limit < c->group_limit;
        c->group_changed = now;
    }
    c->group_limit = limit;
    return c->group_falls && now - c->group_changed < FALLING_SECONDS;
}

/* A budget that was given is the user's word: for it only a control group's limit and a machine that is
 * nearly out of memory count. */
static weir_status for_given(const weir_context *c, const base_memory_limits *limits, bool falling,
                             allowance *out, weir_error *err)
{
    base_process_memory own;
    uint64_t keep;
    weir_status status = base_process_memory_read(&own, err);
    if (status == WEIR_OK) status = rt_least_reserve(c, limits, own.anon_bytes, &keep, err);
    if (status != WEIR_OK) return status;
    uint64_t machine = rt_add(limits->available_bytes, own.anon_bytes), limit = limits->cgroup_limit_bytes;
    *out = (allowance){machine - base_min(machine, keep), base_max(keep / 2, TOLERANCE_BYTES)};
    if (limit == UINT64_MAX || limits->cgroup_free_bytes == UINT64_MAX) return WEIR_OK;
    uint64_t group = base_min(rt_add(limits->cgroup_free_bytes, own.anon_bytes), limit);
    uint64_t room = falling ? base_max(limit / FALLING_SHARE, FALLING_MIN_BYTES) : 0;
    group -= base_min(group, room);
    if (group < out->bytes) *out = (allowance){group, base_max(room / 2, TOLERANCE_BYTES)};
    return WEIR_OK;
}

static weir_status read_allowance(weir_context *c, bool is_default, allowance *out, weir_error *err)
{
    base_memory_limits limits;
    uint64_t reserve;
    weir_status status = rt_limits_read(c, &limits, err);
    if (status != WEIR_OK) return status;
    bool falling = limit_falls(c, limits.cgroup_limit_bytes);
    if (!is_default) return for_given(c, &limits, falling, out, err);
    status = rt_default_budget(c, &limits, &out->bytes, &reserve, err);
    out->cover_bytes = reserve / 2;
    return status;
}

static uint64_t held_by(const weir_model *m)
{
    const weir_plan *v = &m->run->plan.view;
    return base_min(v->planned_peak_bytes, v->budget_bytes);
}

/* What it can do without. */
static uint64_t spare_of(const weir_model *m)
{
    const rt_loaded *run = m->run;
    if (run->source != NULL || !mem_component_placed(m->component) || base_now(m->env) < run->retry_at)
        return 0;
    rt_need need = {.total_bytes = run->plan.need_bytes};
    uint64_t smallest = rt_planner_budget(&need, run->plan.memory.smallest_bytes), held = held_by(m);
    return held - base_min(held, smallest);
}

static weir_model *largest_giver(const weir_context *c)
{
    weir_model *most = c->loaded;
    for (weir_model *m = c->loaded; m != NULL; m = m->next_loaded)
        if (spare_of(m) > spare_of(most)) most = m;
    return most;
}

/* X5: a change that fails is no reason to end what runs, as long as there are weights to go on with. What
 * another model has lost, its own next run tells. cancel: of the run; NULL where it is another model that
 * runs. */
static weir_status change(weir_model *m, atomic_bool *cancel, uint64_t budget, uint64_t total,
                          weir_error *err)
{
    char a[32], b[32];
    weir_error why = {0};
    uint64_t old = m->run->plan.view.budget_bytes;
    const char *name = strrchr(base_file_path(fmt_model_file(m->file, 0)), '/');
    base_log(m->env, BASE_LOG_INFO, "memory is %s: the budget%s%s goes from %s to %s",
             budget < old ? "short" : "there again", m->context->n_loaded > 1 && name != NULL ? " of " : "",
             m->context->n_loaded > 1 && name != NULL ? name + 1 : "", base_size_text(old, a),
             base_size_text(budget, b));
    weir_status status = rt_budget_change(m, budget, total, cancel, &why);
    if (status == WEIR_OK) return WEIR_OK;
    /* A changed file as well: where weights stream or are mapped, the pass itself tells. */
    bool ends = status == WEIR_ERR_CANCELLED || !mem_component_placed(m->component);
    m->run->retry_at = base_now(m->env) + RETRY_SECONDS;
    if (ends && cancel != NULL) {
        *err = why;
        return status;
    }
    base_log(m->env, BASE_LOG_WARN, "the budget stays %s, since the change failed%s: %s", a,
             mem_component_placed(m->component) ? "" : ", and the model is without weights", why.message);
    return WEIR_OK;
}

static weir_status take(weir_model *m, atomic_bool *cancel, uint64_t wanted, uint64_t tolerance,
                        weir_error *err)
{
    weir_context *c = m->context;
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < c->n_loaded && status == WEIR_OK; i++) {
        uint64_t held = held_by(c->loaded);
        weir_model *from = largest_giver(c);
        uint64_t give = base_min(held - base_min(held, wanted), spare_of(from));
        if (give <= tolerance) break;
        status = change(from, from == m ? cancel : NULL, held_by(from) - give, wanted, err);
    }
    return status;
}

static weir_status give_back(weir_model *m, atomic_bool *cancel, uint64_t more, weir_error *err)
{
    const rt_loaded *run = m->run;
    const weir_plan *v = &run->plan.view;
    double now = base_now(m->env);
    weir_model *last = m->context->loaded;
    uint64_t full = m == last ? run->full_budget : run->full_peak;
    uint64_t wanted = base_min(rt_add(held_by(m), more), full);
    if (wanted <= v->budget_bytes || now - run->last_change <= GROW_SECONDS || now < run->retry_at)
        return WEIR_OK;
    uint64_t worth = v->budget_bytes + base_max(GROW_MIN_BYTES, run->full_budget / GROW_SHARE);
    if (wanted != full && (v->streamed_bytes_per_pass == 0 || wanted <= worth)) return WEIR_OK;
    return change(m, cancel, wanted, last->run->plan.view.budget_bytes, err);
}

static weir_status follow(weir_model *m, atomic_bool *cancel, weir_error *err)
{
    weir_context *c = m->context;
    const rt_loaded *last = c->loaded->run;
    allowance allowed;
    weir_error none;
    if (read_allowance(c, last->options.mem_is_default, &allowed, &none) != WEIR_OK) return WEIR_OK;
    uint64_t wanted = base_min(allowed.bytes, last->full_budget), held = held_by(c->loaded);
    uint64_t tolerance = base_min(base_max(TOLERANCE_BYTES, held / TOLERANCE_SHARE), allowed.cover_bytes);
    if (rt_add(wanted, tolerance) < held) return take(m, cancel, wanted, tolerance, err);
    return give_back(m, cancel, wanted - base_min(wanted, held), err);
}

weir_status rt_pressure_setting(const weir_context *c, bool *follows, weir_error *err)
{
    const char *text = base_settings_get(c->settings, "compute.pressure");
    *follows = strcmp(text, "off") != 0;
    if (!*follows || strcmp(text, "auto") == 0) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "setting compute.pressure is \"%.60s\": auto or off",
                     text);
}

weir_status rt_budget_follow(weir_model *m, atomic_bool *cancel, weir_error *err)
{
    rt_loaded *run = m->run;
    double now = base_now(m->env);
    bool follows;
    weir_error none;
    if (now < run->next_check || run->source != NULL) return WEIR_OK;
    run->next_check = now + CHECK_SECONDS;
    if (rt_pressure_setting(m->context, &follows, &none) != WEIR_OK || !follows) return WEIR_OK;
    /* While another thread loads or plans, there is a later time. */
    if (!rt_try_enter(m->context)) return WEIR_OK;
    weir_status status = follow(m, cancel, err);
    rt_leave(m->context);
    return status;
}

weir_status weir_model_follow_memory(weir_model *m, weir_error *err)
{
    weir_error local;
    bool follows;
    err = rt_error(err, &local);
    if (m->run == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the model is not loaded: weir_model_load first");
    weir_status status = rt_pressure_setting(m->context, &follows, err);
    if (status != WEIR_OK) return status;
    atomic_store(&m->cancel, false);
    return rt_budget_follow(m, &m->cancel, err);
}
