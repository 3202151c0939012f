/* Requests and phases: waiting for other jobs, weighing, placing, ending. */
#include "mgr_internal.h"

#include <stdio.h>
#include <string.h>

#define WAIT_SLICE_S 0.02
#define RAM_CHECK_S  0.25

static void name_copy(char *dst, const char *text)
{
    snprintf(dst, MEM_NAME_BYTES, "%s", text != NULL ? text : "");
}

/* Whether a request that came earlier, or as many as may run, hold one of r's devices. */
static bool must_queue(const mem_request *r)
{
    for (uint32_t i = 0; i < r->n_managers; i++) {
        mem_manager *m = r->managers[i];
        uint32_t running = 0;
        if (m->mem == NULL) continue;
        for (const mem_request *o = r->tier->requests; o != NULL; o = o->next) {
            bool shares = false;
            for (uint32_t k = 0; k < o->n_managers; k++) shares |= o->managers[k] == m;
            if (o == r || !shares) continue;
            if (o->waiting && o->arrival < r->arrival) return true;
            running += !o->waiting;
        }
        if (running >= m->policy.gpu_jobs) return true;
    }
    return false;
}

/* The running request of r's own thread that r would wait for in vain; NULL: none. */
static const mem_request *own_holder(const mem_request *r)
{
    for (uint32_t i = 0; i < r->n_managers; i++) {
        const mem_request *found = NULL;
        uint32_t n = 0;
        if (r->managers[i]->mem == NULL) continue;
        for (const mem_request *o = r->tier->requests; o != NULL; o = o->next) {
            bool shares = false;
            for (uint32_t k = 0; k < o->n_managers; k++) shares |= o->managers[k] == r->managers[i];
            if (o == r || !shares || o->waiting || o->thread != r->thread) continue;
            if (!o->open && !r->one_call) continue; /* another thread may be about to go on with it */
            found = o;
            n++;
        }
        if (n >= r->managers[i]->policy.gpu_jobs) return found;
    }
    return NULL;
}

static weir_status check_own(const mem_request *r, weir_error *err)
{
    const mem_request *o = own_holder(r);
    if (o == NULL) return WEIR_OK;
    return base_fail(
        err, WEIR_ERR_INVALID_ARGUMENT,
        "request %s would wait for request %s, which the same thread has open on its device; end "
        "that one first, use another thread, or raise compute.gpu_jobs (%u)",
        r->name, o->name, o->managers[0]->policy.gpu_jobs);
}

static void unlink_request(mem_request *r)
{
    mem_request **at = &r->tier->requests;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    base_lock_wake(r->tier->lock);
}

static weir_status check_request(const mem_request_desc *d, weir_error *err)
{
    bool fine = d->n_managers >= 1 && d->n_managers <= MGR_MANAGERS && d->n_generators <= 8;
    for (uint32_t i = 1; fine && i < d->n_managers; i++) fine = d->managers[i]->tier == d->managers[0]->tier;
    if (fine) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "request %s: %u managers (1..8, peers of each other), %u generators (0..8)", d->name,
                     d->n_managers, d->n_generators);
}

weir_status mem_request_begin(const mem_request_desc *d, mem_request **out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    weir_status status = check_request(d, err);
    if (status != WEIR_OK) return status;
    base_env *env = d->managers[0]->env;
    mem_request *r = base_alloc(env, BASE_TAG_RUNTIME, sizeof *r, err);
    if (r == NULL) return err->code;
    name_copy(r->name, d->name);
    r->tier = d->managers[0]->tier;
    for (uint32_t i = 0; i < d->n_managers; i++) { /* one that is named twice is one */
        bool known = false;
        for (uint32_t k = 0; k < r->n_managers; k++) known |= r->managers[k] == d->managers[i];
        if (!known) r->managers[r->n_managers++] = d->managers[i];
    }
    r->cancel = d->cancel;
    for (uint32_t i = 0; i < d->n_generators; i++) r->generators[i] = d->generators[i];
    r->n_generators = d->n_generators;
    r->thread = base_thread_id();
    r->one_call = d->one_call;
    base_lock_enter(r->tier->lock);
    r->arrival = ++r->tier->arrival;
    r->waiting = true;
    r->next = r->tier->requests;
    r->tier->requests = r;
    double begin = base_now(env);
    status = check_own(r, err);
    while (status == WEIR_OK && must_queue(r)) {
        status = mem_mgr_cancelled(r, err);
        double waited = base_now(env) - begin;
        if (status == WEIR_OK && waited > r->managers[0]->policy.wait_limit_s)
            status = base_fail(err, WEIR_ERR_DEVICE,
                               "request %s waited %.0f s for other jobs on its device; cancel one of them, "
                               "or raise compute.gpu_jobs",
                               r->name, waited);
        if (status == WEIR_OK) base_lock_wait(r->tier->lock, WAIT_SLICE_S);
    }
    r->waiting = false;
    r->report.job_wait_s = base_now(env) - begin;
    if (status != WEIR_OK) unlink_request(r);
    mem_mgr_leave(r->tier);
    if (status != WEIR_OK)
        base_free(env, r);
    else
        *out = r;
    return status;
}

void mem_request_end(mem_request *r)
{
    if (r == NULL) return;
    if (r->open) (void)mem_phase_end(&r->phase, NULL);
    base_lock_enter(r->tier->lock);
    unlink_request(r);
    for (mem_manager *m = r->tier->managers; m != NULL && r->ran_out; m = m->next)
        (void)mem_mgr_unload_idle(m, 0, false); /* R7.6 */
    mem_mgr_leave(r->tier);
    base_free(r->tier->env, r->phase.blocks);
    base_free(r->tier->env, r);
}

void mem_request_report(const mem_request *r, mem_report *out)
{
    base_lock_enter(r->tier->lock);
    *out = r->report;
    out->loaded_bytes = out->size_bytes = 0;
    for (uint32_t i = 0; i < out->n_components; i++) {
        out->loaded_bytes += out->components[i].loaded_bytes;
        out->size_bytes += out->components[i].size_bytes;
    }
    mem_mgr_leave(r->tier);
}

static mgr_part *part_of(mem_phase *p, mem_manager *m)
{
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i].m == m) return &p->parts[i];
    return NULL;
}

static weir_status open_parts(mem_request *r, const mem_phase_desc *d, mem_phase *p, weir_error *err)
{
    p->n_parts = r->n_managers;
    for (uint32_t i = 0; i < r->n_managers; i++)
        p->parts[i] = (mgr_part){.m = r->managers[i], .calibration = 1};
    p->parts[0].estimate = d->memory_bytes;
    for (uint32_t i = 0; i < d->n_others; i++) {
        mgr_part *part = part_of(p, d->others[i].manager);
        if (part == NULL)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "phase %s needs memory on a device that request "
                             "%s did not name",
                             d->name, r->name);
        part->estimate = d->others[i].bytes;
    }
    for (uint32_t i = d->n_handles; i-- > 0;) {
        mem_handle *h = d->handles[i];
        mgr_part *part = part_of(p, h->m);
        if (part == NULL || !h->sealed)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %s: %s:%s %s", d->name, h->engine,
                             h->component,
                             h->sealed ? "is on a device that its request did not name" : "is not sealed");
        part->calibration = h->calibration; /* of the first */
    }
    for (uint32_t i = 0; i < p->n_parts; i++) {
        mgr_part *part = &p->parts[i];
        double working = (double)base_min(part->estimate, MGR_MAX_BYTES) * part->calibration;
        part->working = working < (double)MGR_MAX_BYTES ? (uint64_t)working : MGR_MAX_BYTES;
    }
    return WEIR_OK;
}

/* Those of r's own thread do not end while it waits. */
static bool others_hold(const mem_manager *m, const mem_request *r)
{
    for (const mem_request *o = r->tier->requests; o != NULL; o = o->next) {
        if (o == r || !o->open || o->thread == r->thread) continue;
        for (uint32_t i = 0; i < o->phase.n_parts; i++)
            if (o->phase.parts[i].m == m) return true;
    }
    return false;
}

/* Whether the last phase of the only handle here left it as this one wants it, and nothing has changed since:
 * then nothing is weighed. What the driver reports free may differ by less than half a unit, since what
 * allocations take is rounded up. */
static bool is_settled(mgr_part *part, const mem_phase *p)
{
    mem_manager *m = part->m;
    const mem_handle *h = p->n_handles == 1 ? p->handles[0] : NULL;
    if (h == NULL || h->m != m || h->settled.epoch == 0 || h->settled.epoch != m->epoch ||
        h->settled.working != part->working || h->prefetch.again)
        return false;
    uint64_t free_bytes = mem_mgr_free_bytes(m, p->r), then = h->settled.free_bytes, largest = 0;
    for (uint32_t i = 0; i < h->n_units; i++) largest = base_max(largest, h->units[i].bytes);
    if (base_max(free_bytes, then) - base_min(free_bytes, then) > largest / 2) return false;
    part->free_bytes = free_bytes;
    uint64_t held = mem_mgr_held(h), aside = part->working + m->policy.vram_reserve_bytes;
    uint64_t most = base_min(h->whole_bytes, h->limit_bytes);
    part->need = (most > held ? most - held : 0) + aside;
    part->budget = h->settled.budget;
    return true;
}

static void settle(const mgr_part *part, const mem_phase *p)
{
    mem_handle *h = p->n_handles == 1 ? p->handles[0] : NULL;
    if (h == NULL || h->m != part->m || h->m->mem == NULL) return;
    h->settled = (mgr_settled){.epoch = h->m->epoch,
                               .working = part->working,
                               .free_bytes = mem_mgr_free_bytes(h->m, p->r),
                               .budget = part->budget};
}

/* RAM is looked at once in a while where nothing moves. */
static void watch_ram(mem_manager *m)
{
    double now = base_now(m->env);
    if (now - m->tier->ram_checked < RAM_CHECK_S) return;
    m->tier->ram_checked = now;
    mem_mgr_ram_pressure(m);
}

/* R3.1 to R3.3 on one device. True where it had better wait for another job (R3.7). */
static bool weigh(mgr_part *part, mem_request *r, const mem_phase *p)
{
    mem_manager *m = part->m;
    uint64_t held = 0, whole = 0, smallest = 0, over;
    part->settled = is_settled(part, p);
    if (part->settled) {
        watch_ram(m);
        part->settled = is_settled(part, p);
        part->recopies = part->settled && mem_mgr_may_recopy(p->handles[0]); /* settled: the only one */
        if (part->settled) return false;
    }
    mem_mgr_ram_pressure(m);
    for (uint32_t i = 0; i < p->n_handles; i++) {
        const mem_handle *h = p->handles[i];
        if (h->m != m) continue;
        uint64_t most = base_min(h->whole_bytes, h->limit_bytes);
        held += mem_mgr_held(h);
        whole += most;
        smallest += m->policy.vram_mode == MEM_VRAM_HIGH ? most : mem_mgr_smallest(h, h->n_units != 0);
    }
    uint64_t aside = part->working + m->policy.vram_reserve_bytes;
    part->need = (whole > held ? whole - held : 0) + aside;
    part->free_bytes = mem_mgr_free_or_over(m, r, &over);
    if (part->free_bytes < part->need + over &&
        mem_mgr_yield(m, part->need + over - part->free_bytes, r, p) != 0)
        part->free_bytes = mem_mgr_free_or_over(m, r, &over);
    uint64_t room = part->free_bytes + held - base_min(over, held);
    part->budget = room > aside ? room - aside : 0;
    return part->budget < smallest && others_hold(m, r);
}

static weir_status check_handles(const mem_request *r, const mem_phase *p, weir_error *err)
{
    for (uint32_t i = 0; i < p->n_handles; i++) {
        const mem_handle *h = p->handles[i];
        if (h->user == NULL || h->user == r || h->user->thread != r->thread) continue;
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "phase %s of request %s would wait for %s:%s, which request %s of the same thread uses; "
            "end that phase first",
            p->name, r->name, h->engine, h->component, h->user->name);
    }
    return WEIR_OK;
}

/* Waits until all handles are idle and there is room, or the limit has passed; then they are r's. */
static weir_status take_turn(mem_request *r, mem_phase *p, weir_error *err)
{
    base_env *env = r->tier->env;
    double begin = base_now(env);
    for (;;) {
        weir_status status = mem_mgr_cancelled(r, err);
        if (status == WEIR_OK) status = check_handles(r, p, err);
        if (status != WEIR_OK) return status;
        bool busy = false, cramped = false;
        for (uint32_t i = 0; i < p->n_handles; i++) busy |= mem_mgr_is_taken(p->handles[i]);
        /* Taken while it is weighed, since the lock may be given back for others that yield. */
        for (uint32_t i = 0; i < p->n_handles && !busy; i++) p->handles[i]->user = r;
        if (!busy) mem_mgr_keep_few(r, p);
        for (uint32_t i = 0; i < p->n_parts && !busy; i++)
            if (p->parts[i].m->mem != NULL) cramped |= weigh(&p->parts[i], r, p);
        double waited = base_now(env) - begin;
        bool late = waited > r->managers[0]->policy.wait_limit_s;
        if (!busy && (!cramped || late)) break;
        for (uint32_t i = 0; i < p->n_handles && !busy; i++) p->handles[i]->user = NULL;
        r->late = late;
        if (late)
            return base_fail(err, WEIR_ERR_DEVICE,
                             "phase %s of request %s waited %.0f s for a component that another job uses",
                             p->name, r->name, waited);
        base_lock_wait(r->tier->lock, WAIT_SLICE_S);
    }
    r->report.job_wait_s += base_now(env) - begin;
    return WEIR_OK;
}

static void report_component(mem_request *r, const mgr_part *part, mem_handle *h, uint64_t budget,
                             uint64_t together)
{
    mem_report *rep = &r->report;
    mem_component_report *c = NULL;
    for (uint32_t i = 0; i < rep->n_components && c == NULL; i++)
        if (strcmp(rep->components[i].engine, h->engine) == 0 &&
            strcmp(rep->components[i].component, h->component) == 0)
            c = &rep->components[i];
    if (c == NULL && rep->n_components < MEM_REPORT_COMPONENTS) {
        c = &rep->components[rep->n_components++];
        *c = (mem_component_report){.reason = ""};
    }
    if (c == NULL) return;
    mem_vram_mode mode = h->m->policy.vram_mode;
    uint64_t streamed = c->streamed_bytes;
    *c = (mem_component_report){.mode = mem_vram_mode_text(mode),
                                .free_bytes = part->free_bytes,
                                .need_bytes = part->need,
                                .working_bytes = part->working,
                                .estimate_bytes = part->estimate,
                                .calibration = part->calibration,
                                .reserve_bytes = h->m->policy.vram_reserve_bytes,
                                .limit_bytes = h->m->policy.vram_limit_bytes,
                                .budget_bytes = budget,
                                .size_bytes = h->whole_bytes,
                                .slot_bytes = h->n_slots * h->slot_bytes,
                                .streamed_bytes = streamed,
                                .prefetch = mem_mgr_prefetch_text(h),
                                .from_storage = h->n_slots != 0 && h->prefetch.from_storage,
                                .copies_ahead = h->n_slots != 0 && mem_mgr_copies_ahead(h),
                                .round_s_without = h->prefetch.round_s[0],
                                .round_s_with = h->prefetch.round_s[1],
                                .reason = ""};
    c->loaded_bytes = h->m->mem == NULL ? h->whole_bytes : mem_mgr_held(h) - c->slot_bytes;
    name_copy(c->engine, h->engine);
    name_copy(c->component, h->component);
    name_copy(c->phase, r->phase.name);
    if (h->m->mem == NULL || mem_mgr_is_whole(h)) h->gave_up_for[0] = '\0';
    name_copy(c->gave_up_for, h->gave_up_for);
    h->reason = "";
    if (h->m->mem == NULL || mem_mgr_is_whole(h)) return;
    if (h->cap_bytes != UINT64_MAX)
        c->reason = "capped after OOM";
    else if (mode == MEM_VRAM_LOW || mode == MEM_VRAM_NONE)
        c->reason = "mode";
    else
        c->reason =
            together > h->whole_bytes && mem_mgr_limit(h) == UINT64_MAX ? "gave up for another" : "budget";
    h->reason = c->reason;
    if (part->settled) return; /* it was told */
    mem_mgr_log(h->m->tier, BASE_LOG_INFO,
                "%s:%s: %llu of %llu bytes on the device (%s; free %llu, working %llu, reserve %llu)",
                h->engine, h->component, (unsigned long long)c->loaded_bytes,
                (unsigned long long)c->size_bytes, c->reason, (unsigned long long)c->free_bytes,
                (unsigned long long)c->working_bytes, (unsigned long long)c->reserve_bytes);
}

static uint32_t index_of(const mem_phase *p, const mem_handle *h)
{
    uint32_t i = 0;
    while (p->handles[i] != h) i++;
    return i;
}

/* R7.5: the smaller ones whole first, each leaving the others' smallest working sets; the largest last. The
 * budgets of part's handles, smallest first; returns how many there are. */
static uint32_t share_out(const mgr_part *part, const mem_phase *p, mem_handle **sorted, uint64_t *budgets)
{
    const mem_manager *m = part->m;
    uint32_t n = 0;
    uint64_t whole = 0, smallest = 0, rest = part->budget;
    for (uint32_t i = 0; i < p->n_handles; i++) {
        mem_handle *h = p->handles[i];
        if (h->m != m) continue;
        uint32_t k = n++;
        for (; k > 0 && sorted[k - 1]->whole_bytes > h->whole_bytes; k--) sorted[k] = sorted[k - 1];
        sorted[k] = h;
        whole += base_min(h->whole_bytes, h->limit_bytes);
        smallest += mem_mgr_smallest(h, mem_mgr_slots(h));
    }
    mem_vram_mode mode = m->policy.vram_mode;
    const bool keeps = mode != MEM_VRAM_LOW && mode != MEM_VRAM_NONE;
    const bool all_whole = (whole <= rest && keeps) || mode == MEM_VRAM_HIGH; /* R3.5 */
    for (uint32_t i = 0; i < n; i++) {
        mem_handle *h = sorted[i];
        smallest -= mem_mgr_smallest(h, mem_mgr_slots(h));
        uint64_t share = rest > smallest ? rest - smallest : 0;
        budgets[i] = base_min(all_whole ? UINT64_MAX : mem_mgr_budget(h, share), mem_mgr_limit(h));
        rest -= base_min(rest, mem_mgr_decide(h, budgets[i]));
    }
    return n;
}

/* Room is taken for all in one go, with the lock kept; their bytes come later. */
static weir_status place_part(mgr_part *part, mem_request *r, mem_phase *p, weir_error *err)
{
    mem_handle *sorted[MEM_PHASE_HANDLES];
    uint64_t budgets[MEM_PHASE_HANDLES];
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < p->n_handles && status == WEIR_OK; i++)
        if (p->handles[i]->m == part->m) status = mem_mgr_check_files(p->handles[i], err);
    if (part->settled) {
        mem_handle *h = p->handles[0];
        if (status == WEIR_OK) p->budgets[0] = base_min(mem_mgr_budget(h, part->budget), mem_mgr_limit(h));
        return status;
    }
    uint32_t n = share_out(part, p, sorted, budgets);
    /* One that is to stream from now on makes room before the others take it. */
    for (uint32_t i = 0; i < n && n > 1; i++) mem_mgr_drop_unwanted(sorted[i]);
    for (uint32_t i = 0; i < n && status == WEIR_OK; i++) {
        mem_handle *h = sorted[i];
        uint64_t least = mem_mgr_smallest(h, h->n_units != 0);
        if (budgets[i] < least)
            mem_mgr_log(
                h->m->tier, BASE_LOG_WARN,
                "%s:%s: %llu bytes are below its smallest working set of %llu; trying it all the same",
                h->engine, h->component, (unsigned long long)budgets[i], (unsigned long long)least);
        status = mem_mgr_place(h, budgets[i], r, p, err);
        p->budgets[index_of(p, h)] = budgets[i];
        p->together[index_of(p, h)] = n > 1 ? part->budget : 0;
    }
    return status;
}

static weir_status place_all(mem_request *r, mem_phase *p, weir_error *err)
{
    weir_status status = WEIR_OK;
    bool copying = false;
    for (uint32_t i = 0; i < p->n_parts && status == WEIR_OK; i++)
        if (p->parts[i].m->mem != NULL) status = place_part(&p->parts[i], r, p, err);
    for (uint32_t i = 0; i < p->n_handles && status == WEIR_OK; i++) {
        p->handles[i]->last_unit = MGR_NONE;
        status = mem_mgr_load_ram(p->handles[i], r, err);
    }
    for (uint32_t i = 0; i < p->n_handles && status == WEIR_OK; i++) {
        mem_handle *h = p->handles[i];
        if (h->m->mem == NULL) continue;
        const mgr_part *part = part_of(p, h->m);
        if (part->settled && !part->recopies) continue;
        copying = true;
        status = mem_mgr_load(h, r, err);
    }
    for (uint32_t i = 0; i < p->n_handles; i++) {
        mem_handle *h = p->handles[i];
        if (h->m->mem == NULL) continue;
        if (status == WEIR_OK)
            report_component(r, part_of(p, h->m), h, p->budgets[i], p->together[i]);
        else /* what was there stays */
            mem_mgr_drop_unfilled(h, copying);
    }
    for (uint32_t i = 0; i < p->n_parts && status == WEIR_OK; i++)
        if (!p->parts[i].settled) settle(&p->parts[i], p);
    return status;
}

static void let_go(mem_phase *p)
{
    double now = base_now(p->r->tier->env);
    for (uint32_t i = 0; i < p->n_handles; i++) {
        mem_handle *h = p->handles[i];
        if (h->user == p->r) h->user = NULL;
        h->used = ++p->r->tier->clock;
        h->used_at = now;
    }
    p->r->open = false;
    base_lock_wake(p->r->tier->lock);
}

static void open_fixed(const mem_phase *p, bool open)
{
    for (uint32_t i = 0; i < p->n_handles; i++) {
        const mem_handle *h = p->handles[i];
        const dev_memory_table *mem = h->m->mem;
        const mgr_unit *u = &h->units[h->n_units];
        if (mem == NULL || mem->open == NULL || u->block == NULL) continue;
        (open ? mem->open : mem->close)(h->m->device, u->block, u->bytes);
    }
}

weir_status mem_use(mem_request *r, const mem_phase_desc *d, mem_phase **out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    mem_phase *p = &r->phase;
    if (r->open || d->n_handles > MEM_PHASE_HANDLES)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %s: %s", d->name,
                         r->open ? "another phase of its request is open" : "more than 16 handles");
    mgr_block *blocks = p->blocks;
    uint32_t cap = p->cap_blocks;
    r->late = false;
    *p = (mem_phase){.r = r, .blocks = blocks, .cap_blocks = cap};
    name_copy(p->name, d->name);
    weir_status status = open_parts(r, d, p, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < d->n_handles; i++)
        if (!mem_mgr_lists(p, d->handles[i])) p->handles[p->n_handles++] = d->handles[i];
    base_lock_enter(r->tier->lock);
    r->thread = base_thread_id();
    status = take_turn(r, p, err);
    if (status == WEIR_OK) {
        r->open = true;
        status = place_all(r, p, err);
        for (uint32_t i = 0; i < p->n_parts; i++) p->parts[i].n_failures = p->parts[i].m->n_failures;
        r->ran_out = status == WEIR_ERR_DEVICE_MEMORY;
        if (status == WEIR_OK) open_fixed(p, true);
        if (status == WEIR_OK) p->began = mem_mgr_prefetch_begin(p);
        if (status != WEIR_OK) let_go(p);
    }
    mem_mgr_leave(r->tier);
    if (status != WEIR_OK) return status;
    r->report.n_phases++;
    *out = p;
    return WEIR_OK;
}

/* R9.3: above the estimate, the ratio is remembered. */
static bool calibrate(mem_phase *p, const mgr_part *part)
{
    p->r->report.working_peak_bytes = base_max(p->r->report.working_peak_bytes, part->peak);
    if (part->estimate == 0 || part->peak <= part->working) return false;
    double ratio = (double)part->peak / (double)part->estimate * 1.1;
    for (uint32_t i = 0; i < p->n_handles; i++)
        if (p->handles[i]->m == part->m) return mem_mgr_calibrated(p->handles[i], ratio < 16 ? ratio : 16);
    return false;
}

/* What an engine left entered. */
static void leave_units(mem_handle *h)
{
    for (uint32_t i = 0; i < h->n_units; i++) {
        mgr_unit *u = &h->units[i];
        void *block = u->filled ? u->block : u->slot != MGR_NONE ? h->slots[u->slot].block : NULL;
        if (h->m->mem != NULL && u->entered != 0 && h->m->mem->close != NULL)
            h->m->mem->close(h->m->device, block, u->bytes);
        u->entered = 0;
    }
}

/* Waits for both streams of a part; the lock is given back meanwhile. */
static weir_status finish_part(mem_phase *p, const mgr_part *part, weir_error *err)
{
    mem_manager *m = part->m;
    dev_ticket t;
    weir_status status = WEIR_OK;
    if (m->mem == NULL) return WEIR_OK;
    for (uint32_t stream = DEV_STREAM_COMPUTE; stream <= DEV_STREAM_COPY; stream++) {
        if (status == WEIR_OK) status = m->mem->mark(m->device, stream, &t, err);
        if (status == WEIR_OK) status = mem_mgr_sync(m, t, err);
    }
    if (status != WEIR_OK) mem_mgr_quiet(m);
    /* Somebody else may have met it, and made the device forget. */
    if (status == WEIR_OK) status = mem_mgr_check_failures(p, part, err);
    if (status == WEIR_OK) return WEIR_OK;
    /* Copies may be worthless. */
    for (uint32_t k = 0; k < p->n_handles; k++)
        if (p->handles[k]->m == m) mem_mgr_drop_slots(p->handles[k]);
    return status;
}

weir_status mem_phase_end(mem_phase *p, weir_error *err)
{
    if (p == NULL || !p->r->open) return WEIR_OK;
    mgr_tier *t = p->r->tier;
    weir_status status = WEIR_OK;
    mem_manager *changed = NULL;
    base_lock_enter(t->lock);
    p->r->thread = base_thread_id();
    open_fixed(p, false);
    for (uint32_t i = 0; i < p->n_handles; i++) leave_units(p->handles[i]);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        weir_status s = finish_part(p, &p->parts[i], status == WEIR_OK ? err : NULL);
        if (status == WEIR_OK) status = s;
        if (calibrate(p, &p->parts[i])) changed = p->parts[i].m;
    }
    mem_mgr_free_blocks(p);
    if (status == WEIR_OK) mem_mgr_prefetch_time(p, p->began != 0 ? base_now(t->env) - p->began : 0);
    for (uint32_t i = 0; i < p->n_handles; i++) {
        mem_handle *h = p->handles[i];
        if (h->m->mem != NULL && h->m->policy.vram_mode == MEM_VRAM_NONE) mem_mgr_move_off(h, true);
    }
    let_go(p);
    mem_mgr_leave(t);
    if (changed != NULL) mem_mgr_calibration_save(changed);
    return status;
}
