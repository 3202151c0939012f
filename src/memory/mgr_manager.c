/* Managers: their life and policy, what is free on the device, and who yields. */
#include "mgr_internal.h"

#include <stdio.h>
#include <string.h>

/* R5.4, R6.5 */
static weir_status read_machine(mgr_tier *t, const mem_policy *p, weir_error *err)
{
    base_memory_limits limits;
    t->proc_root = base_strdup(t->env, BASE_TAG_RUNTIME, p->proc_root != NULL ? p->proc_root : "/proc", err);
    if (t->proc_root == NULL) return err->code;
    t->cgroup_root = base_strdup(t->env, BASE_TAG_RUNTIME,
                                 p->cgroup_root != NULL ? p->cgroup_root : "/sys/fs/cgroup", err);
    if (t->cgroup_root == NULL) return err->code;
    weir_status status = base_memory_limits_read(t->env, t->proc_root, t->cgroup_root, &limits, err);
    if (status != WEIR_OK) return status;
    mem_policy with = *p;
    mem_policy_resolve(&with, &limits);
    t->max_pinned_bytes = with.max_pinned_bytes;
    t->ram_reserve_bytes = with.ram_reserve_bytes;
    return WEIR_OK;
}

static void tier_free(mgr_tier *t)
{
    base_free(t->env, t->cgroup_root);
    base_free(t->env, t->proc_root);
    base_free(t->env, t->ratios);
    base_free(t->env, t);
}

static mgr_tier *tier_open(base_env *env, const mem_policy *policy, weir_error *err)
{
    mgr_tier *t = base_alloc(env, BASE_TAG_RUNTIME, sizeof *t, err);
    if (t == NULL) return NULL;
    t->env = env;
    t->ratios = base_alloc_array(env, BASE_TAG_RUNTIME, MGR_MAX_RATIOS, sizeof *t->ratios, err);
    if (t->ratios != NULL && read_machine(t, policy, err) == WEIR_OK &&
        base_lock_create(env, &t->lock, err) == WEIR_OK)
        return t;
    tier_free(t);
    return NULL;
}

static weir_status check_policy(const mem_policy *policy, weir_error *err)
{
    if (policy->async_offload <= MEM_MAX_OFFLOAD && policy->gpu_jobs != 0 && policy->gpu_jobs <= 64 &&
        policy->wait_limit_s >= 0 && (unsigned)policy->vram_mode <= MEM_VRAM_SHARED &&
        policy->vram_reserve_bytes <= MGR_MAX_BYTES)
        return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "memory policy: async_offload %u (0..%d), gpu_jobs %u (1..64), vram_mode %d, wait "
                     "limit %g s, reserve %llu bytes; correct what is out of range",
                     policy->async_offload, MEM_MAX_OFFLOAD, policy->gpu_jobs, (int)policy->vram_mode,
                     policy->wait_limit_s, (unsigned long long)policy->vram_reserve_bytes);
}

/* Takes a policy over, with copies of its strings. Nothing changes where that fails; it cannot, where the
 * strings are those that are there. */
static weir_status take_policy(mem_manager *m, const mem_policy *policy, weir_error *err)
{
    const char *models = policy->pinned_models != NULL ? policy->pinned_models : "";
    const char *file = policy->calibration_file != NULL ? policy->calibration_file : "";
    char *pinned = m->pinned_models, *calibration = m->calibration_file;
    if (pinned == NULL || strcmp(pinned, models) != 0)
        pinned = base_strdup(m->env, BASE_TAG_RUNTIME, models, err);
    if (pinned == NULL) return err->code;
    /* Kept from the first policy on: it is read without the lock. */
    if (calibration == NULL) calibration = base_strdup(m->env, BASE_TAG_RUNTIME, file, err);
    if (calibration == NULL) {
        if (pinned != m->pinned_models) base_free(m->env, pinned);
        return err->code;
    }
    if (pinned != m->pinned_models) base_free(m->env, m->pinned_models);
    m->policy = *policy;
    m->policy.pinned_models = m->pinned_models = pinned;
    m->policy.calibration_file = m->calibration_file = calibration;
    m->policy.proc_root = m->policy.cgroup_root = NULL; /* the tier's */
    m->epoch++;
    return WEIR_OK;
}

weir_status mem_manager_set_policy(mem_manager *m, const mem_policy *policy, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    weir_status status = check_policy(policy, err);
    if (status != WEIR_OK) return status;
    base_lock_enter(m->tier->lock);
    status = take_policy(m, policy, err);
    mem_mgr_leave(m->tier);
    return status;
}

weir_status mem_manager_create(base_env *env, dev_device *device, const mem_policy *policy, mem_manager *peer,
                               mem_manager **out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    weir_status status = check_policy(policy, err);
    if (status != WEIR_OK) return status;
    if (peer != NULL && peer->env != env)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a memory manager's peer is of another environment");
    mem_manager *m = base_alloc(env, BASE_TAG_RUNTIME, sizeof *m, err);
    if (m == NULL) return err->code;
    m->env = env;
    m->device = device;
    m->mem = device->table->memory;
    m->alignment = 256;
    if (take_policy(m, policy, err) != WEIR_OK) goto fail;
    dev_memory_info info;
    if (m->mem != NULL) {
        if (m->mem->info(device, &info, err) != WEIR_OK) goto fail;
        m->alignment = base_max(info.alignment, 16);
        m->can_register = info.can_register;
        m->unified = info.unified;
    }
    m->tier = peer != NULL ? peer->tier : tier_open(env, policy, err);
    if (m->tier == NULL) goto fail;
    base_lock_enter(m->tier->lock);
    m->tier->n_managers++;
    m->next = m->tier->managers;
    m->tier->managers = m;
    mem_mgr_leave(m->tier);
    mem_mgr_calibration_load(m);
    *out = m;
    return WEIR_OK;

fail:
    base_free(env, m->calibration_file);
    base_free(env, m->pinned_models);
    base_free(env, m);
    return err->code;
}

void mem_manager_destroy(mem_manager *m)
{
    if (m == NULL) return;
    mgr_tier *t = m->tier;
    while (m->kept != NULL) mem_manager_free(m, m->kept->address);
    base_lock_enter(t->lock);
    if (m->mem != NULL) mem_mgr_quiet(m);
    mem_mgr_forget_workspace(m);
    if (m->stage != NULL && m->stage_pinned) {
        m->mem->pin_free(m->device, m->stage, 2 * MGR_STAGE_BYTES);
        base_ledger_release(m->env, BASE_TAG_PINNED, 2 * MGR_STAGE_BYTES);
        t->pinned_bytes -= 2 * MGR_STAGE_BYTES;
    } else if (m->stage != NULL) {
        base_pages_free(m->env, BASE_TAG_IO, m->stage, 2 * MGR_STAGE_BYTES);
    }
    mem_manager **at = &t->managers;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    bool last = --t->n_managers == 0;
    mem_mgr_leave(t);
    if (last) {
        base_lock_destroy(t->lock);
        tier_free(t);
    }
    base_free(m->env, m->pins);
    base_free(m->env, m->calibration_file);
    base_free(m->env, m->pinned_models);
    base_free(m->env, m);
}

dev_device *mem_manager_device(const mem_manager *m)
{
    return m->device;
}

bool mem_manager_is_host(const mem_manager *m)
{
    return m->mem == NULL;
}

const mem_policy *mem_manager_policy(const mem_manager *m)
{
    return &m->policy;
}

void mem_device_take(mem_manager *m)
{
    base_lock_enter(m->tier->lock);
}

void mem_device_give(mem_manager *m)
{
    mem_mgr_leave(m->tier);
}

weir_status mem_mgr_cancelled(const mem_request *r, weir_error *err)
{
    if (r == NULL || r->cancel == NULL || !atomic_load(r->cancel)) return WEIR_OK;
    return base_fail(err, WEIR_ERR_CANCELLED, "request %s was cancelled", r->name);
}

void mem_mgr_quiet(mem_manager *m)
{
    weir_error err;
    bool failed = false;
    for (uint32_t stream = DEV_STREAM_COMPUTE; stream <= DEV_STREAM_COPY; stream++) {
        dev_ticket t;
        failed |= m->mem->mark(m->device, stream, &t, &err) != WEIR_OK ||
                  m->mem->sync(m->device, t, &err) != WEIR_OK;
    }
    if (!failed) return;
    /* Counted first: whoever copies meanwhile, without the lock, finds the number changed. */
    m->n_failures++;
    if (m->mem->recover(m->device, &err) != WEIR_OK)
        mem_mgr_log(m->tier, BASE_LOG_ERROR, "the device does not come to rest: %s", err.message);
}

weir_status mem_mgr_sync(mem_manager *m, dev_ticket t, weir_error *err)
{
    mem_mgr_leave(m->tier);
    weir_status status = m->mem->sync(m->device, t, err);
    base_lock_enter(m->tier->lock);
    return status;
}

bool mem_mgr_is_taken(const mem_handle *h)
{
    return h->user != NULL || h->leaving;
}

weir_status mem_mgr_check_failures(const mem_phase *p, const mgr_part *part, weir_error *err)
{
    if (part->n_failures == part->m->n_failures) return WEIR_OK;
    return base_fail(err, WEIR_ERR_DEVICE, "phase %s: the device failed while it ran; run it again", p->name);
}

bool mem_mgr_lists(const mem_phase *p, const mem_handle *h)
{
    for (uint32_t i = 0; p != NULL && i < p->n_handles; i++)
        if (p->handles[i] == h) return true;
    return false;
}

/* What phases of other jobs and kept memory were promised and have not taken yet. */
static uint64_t promised(const mem_manager *m, const mem_request *except)
{
    uint64_t bytes = 0;
    for (const mem_handle *h = m->handles; h != NULL; h = h->next)
        if (h->keep_bytes > h->kept_bytes) bytes += h->keep_bytes - h->kept_bytes;
    for (mem_request *r = m->tier->requests; r != NULL; r = r->next) {
        for (uint32_t i = 0; r != except && r->open && i < r->phase.n_parts; i++) {
            const mgr_part *part = &r->phase.parts[i];
            if (part->m == m && part->working > part->held) bytes += part->working - part->held;
        }
    }
    return bytes;
}

/* R3.2, less what is promised. */
uint64_t mem_mgr_free_or_over(mem_manager *m, const mem_request *except, uint64_t *over)
{
    dev_memory_info info;
    *over = 0;
    if (m->mem->info(m->device, &info, NULL) != WEIR_OK) return 0;
    uint64_t there = info.free_bytes + info.cache_bytes, gone = promised(m, except);
    uint64_t free_bytes = there - base_min(there, gone), limit = m->policy.vram_limit_bytes;
    *over = gone - base_min(there, gone);
    if (limit == 0) return free_bytes;
    gone += info.taken_bytes - base_min(info.cache_bytes, info.taken_bytes);
    *over = base_max(*over, gone - base_min(limit, gone));
    return base_min(free_bytes, limit - base_min(limit, gone));
}

uint64_t mem_mgr_free_bytes(mem_manager *m, const mem_request *except)
{
    uint64_t over;
    return mem_mgr_free_or_over(m, except, &over);
}

bool mem_mgr_is_pinned_model(const mem_handle *h)
{
    const char *p = h->m->pinned_models;
    size_t engine = strlen(h->engine), component = strlen(h->component);
    while (*p != '\0') {
        size_t n = strcspn(p, ",");
        if (n == engine && memcmp(p, h->engine, n) == 0) return true;
        if (n == engine + 1 + component && memcmp(p, h->engine, engine) == 0 && p[engine] == ':' &&
            memcmp(p + engine + 1, h->component, component) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

/* R7.1: partly loaded first, then those not pinned, then the least recently used. */
static bool yields_before(const mem_handle *a, const mem_handle *b)
{
    bool a_whole = mem_mgr_is_whole(a), b_whole = mem_mgr_is_whole(b);
    if (a_whole != b_whole) return b_whole;
    bool a_pinned = mem_mgr_is_pinned_model(a), b_pinned = mem_mgr_is_pinned_model(b);
    if (a_pinned != b_pinned) return b_pinned;
    return a->used < b->used;
}

/* since: those that could not give anything since then are passed over. */
static mem_handle *next_to_yield(mem_manager *m, const mem_phase *p, uint64_t since)
{
    mem_handle *best = NULL;
    for (mem_handle *h = m->handles; h != NULL; h = h->next) {
        if (h->stuck >= since) continue;
        if (mem_mgr_is_taken(h) || !h->sealed || mem_mgr_lists(p, h) || mem_mgr_held(h) == 0) continue;
        if (best == NULL || yields_before(h, best)) best = h;
    }
    return best;
}

/* The copies, then units in reverse order of placement, at last the fixed part (R7.3). */
static void give_up(mem_handle *h, uint64_t bytes)
{
    mem_vram_mode mode = h->m->policy.vram_mode;
    uint64_t before = mem_mgr_held(h), keep = before > bytes ? before - bytes : 0;
    if (mode == MEM_VRAM_HIGH || mode == MEM_VRAM_SHARED) keep = 0;
    mem_mgr_drop_slots(h);
    while (mem_mgr_held(h) > keep) {
        uint32_t last = h->n_units;
        for (uint32_t i = 0; i < h->n_units; i++) {
            if (h->units[i].block == NULL) continue;
            if (last == h->n_units || h->units[i].placed > h->units[last].placed) last = i;
        }
        if (!mem_mgr_drop_unit(h, last, true)) break;
    }
    if (mem_mgr_held(h) == 0) h->cap_bytes = UINT64_MAX;
}

void mem_mgr_note_yield(mem_handle *h, mem_request *r, const mem_phase *p, uint64_t bytes)
{
    const char *whom = p != NULL && p->n_handles != 0 ? p->handles[0]->component : r != NULL ? r->name : "";
    mem_mgr_log(h->m->tier, BASE_LOG_INFO, "%s:%s gave up %llu bytes for %s", h->engine, h->component,
                (unsigned long long)bytes, whom[0] != '\0' ? whom : "others");
    snprintf(h->gave_up_for, sizeof h->gave_up_for, "%s", whom);
    h->reason = "gave up for another";
    if (r == NULL) return;
    r->report.n_yields++;
    r->report.yielded_bytes += bytes;
    for (uint32_t i = 0; i < r->report.n_components; i++) {
        mem_component_report *c = &r->report.components[i];
        if (strcmp(c->engine, h->engine) != 0 || strcmp(c->component, h->component) != 0) continue;
        c->reason = "gave up for another";
        memcpy(c->gave_up_for, h->gave_up_for, sizeof c->gave_up_for);
        c->loaded_bytes = mem_mgr_held(h);
    }
}

uint64_t mem_mgr_yield(mem_manager *m, uint64_t bytes, mem_request *r, const mem_phase *p)
{
    uint64_t freed = 0;
    const uint64_t since = ++m->tier->clock;
    mem_handle *h;
    while (freed < bytes && (h = next_to_yield(m, p, since)) != NULL) {
        uint64_t before = mem_mgr_held(h);
        /* Where what was computed there cannot be copied back: once more, then others are asked. */
        for (int tries = 0; tries < 2 && mem_mgr_held(h) == before; tries++) give_up(h, bytes - freed);
        uint64_t got = before - mem_mgr_held(h);
        if (got == 0)
            h->stuck = since;
        else
            mem_mgr_note_yield(h, r, p, got);
        freed += got;
    }
    if (freed != 0) m->mem->trim(m->device); /* R7.4 */
    return freed;
}

weir_status mem_mgr_alloc(mem_manager *m, base_device_tag tag, uint64_t bytes, const char *label,
                          mem_request *r, const mem_phase *p, void **out, weir_error *err)
{
    weir_status status = m->mem->alloc(m->device, bytes, label, out, err);
    /* Refused in truth: others make room for what is missing (R7.3), for all of it where that is not enough
     * (free memory may be in pieces), and in any case it is tried once more. */
    for (bool again = true, pieces = false; status == WEIR_ERR_DEVICE_MEMORY && again; pieces = true) {
        dev_memory_info info = {0};
        (void)m->mem->info(m->device, &info, NULL);
        uint64_t there = pieces ? 0 : info.free_bytes + info.cache_bytes;
        again = mem_mgr_yield(m, there < bytes ? bytes - there : bytes, r, p) != 0;
        m->mem->trim(m->device);
        status = m->mem->alloc(m->device, bytes, label, out, err);
    }
    if (status != WEIR_OK) return status;
    m->device_bytes[tag] += bytes;
    m->epoch += tag != BASE_DEVICE_WORK;
    base_ledger_book_device(m->env, tag, bytes);
    if (tag <= BASE_DEVICE_SLOTS && m->mem->guard != NULL) m->mem->guard(m->device, *out, bytes);
    return WEIR_OK;
}

void mem_mgr_free(mem_manager *m, base_device_tag tag, uint64_t bytes, void *address)
{
    if (address == NULL) return;
    m->mem->free(m->device, address);
    m->device_bytes[tag] -= bytes;
    m->epoch += tag != BASE_DEVICE_WORK;
    base_ledger_unbook_device(m->env, tag, bytes);
}

uint64_t mem_manager_staging_bytes(mem_manager *m)
{
    base_lock_enter(m->tier->lock);
    uint64_t bytes = m->mem != NULL && m->stage == NULL ? 2 * MGR_STAGE_BYTES : 0;
    mem_mgr_leave(m->tier);
    return bytes;
}

weir_status mem_manager_open_staging(mem_manager *m, weir_error *err)
{
    weir_error local;
    if (m->mem == NULL) return WEIR_OK;
    base_lock_enter(m->tier->lock);
    weir_status status = mem_mgr_open_stage(m, err != NULL ? err : &local);
    mem_mgr_leave(m->tier);
    return status;
}

weir_status mem_manager_get_info(mem_manager *m, mem_manager_info *out, weir_error *err)
{
    weir_status status = WEIR_OK;
    *out = (mem_manager_info){.ram_free_bytes = mem_mgr_ram_free(m)};
    base_lock_enter(m->tier->lock);
    out->policy = m->policy;
    if (m->mem != NULL) {
        status = m->mem->info(m->device, &out->device, err);
        out->free_bytes = mem_mgr_free_bytes(m, NULL);
    }
    out->fixed_bytes = m->device_bytes[BASE_DEVICE_FIXED];
    out->resident_bytes = m->device_bytes[BASE_DEVICE_RESIDENT];
    out->slot_bytes = m->device_bytes[BASE_DEVICE_SLOTS];
    out->kept_bytes = m->device_bytes[BASE_DEVICE_KEPT];
    out->working_bytes = m->device_bytes[BASE_DEVICE_WORK];
    out->pinned_bytes = m->tier->pinned_bytes;
    out->host_copy_bytes = m->tier->host_copy_bytes;
    out->max_pinned_bytes = m->tier->max_pinned_bytes;
    out->ram_reserve_bytes = m->tier->ram_reserve_bytes;
    for (mem_handle *h = m->handles; h != NULL; h = h->next) out->n_handles++;
    for (mem_request *r = m->tier->requests; r != NULL; r = r->next) {
        out->n_requests += !r->waiting;
        out->n_waiting += r->waiting;
    }
    mem_mgr_leave(m->tier);
    return status;
}
