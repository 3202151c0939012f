/* Weights in RAM for devices: copies, pinned memory, and the RAM that stays free (R5.4, R5.5, R6).
 *
 * An image is a copy of a unit's weights in one block, pinned where the budget allows. It holds what lies in
 * files, so that a later load need not read, and the weights of host memory that are too small to be worth a
 * registration of their own. Nothing depends on one: where there is none, weights come from where they lie.
 */
#include "mgr_internal.h"

#include <string.h>

#define RAM_READ_EVERY_S 0.1
/* Copies come back with so much more free than the reserve, below which they go, and not at every phase. */
#define RECOPY_EVERY_S 1.0
#define RECOPY_SHARE   8

/* ---- RAM ---- */

uint64_t mem_mgr_ram_free(const mem_manager *m)
{
    base_memory_limits limits;
    const mgr_tier *t = m->tier;
    if (base_memory_limits_read(m->env, t->proc_root, t->cgroup_root, &limits, NULL) != WEIR_OK) return 0;
    return base_min(limits.available_bytes, limits.cgroup_free_bytes);
}

/* In unified memory a copy brings nothing; where budgets were given for both tiers, each holds for itself. */
static bool no_copies(const mem_handle *h)
{
    const mem_manager *m = h->m;
    return m->policy.host_copies == MEM_OFF || m->policy.vram_mode == MEM_VRAM_SHARED ||
           (m->unified && h->copy_limit_bytes == UINT64_MAX);
}

/* R6.1, and never at the cost of what a budget must leave for allocations that have to succeed. *lacks: only
 * the machine's RAM is missing. */
static bool may_copy(const mem_handle *h, uint64_t bytes, bool *lacks)
{
    const mem_manager *m = h->m;
    base_ledger_view v;
    *lacks = false;
    if (no_copies(h)) return false;
    if (h->copy_limit_bytes != UINT64_MAX) {
        if (bytes > h->copy_limit_bytes - base_min(h->copy_bytes, h->copy_limit_bytes)) return false;
        if (h->copies_own_word) return true;
    }
    base_ledger_read(m->env, &v);
    if (v.limit_bytes != UINT64_MAX && h->copy_limit_bytes == UINT64_MAX) {
        uint64_t left = v.limit_bytes - base_min(v.bytes, v.limit_bytes);
        if (left < bytes || left - bytes < v.limit_bytes / 4) return false;
    }
    if (m->policy.host_copies == MEM_ON) return true;
    uint64_t room = mem_mgr_ram_free(m);
    *lacks = room <= bytes || room - bytes <= m->tier->ram_reserve_bytes;
    return !*lacks;
}

bool mem_mgr_pin_room(const mem_manager *m, uint64_t bytes)
{
    const mgr_tier *t = m->tier;
    return bytes <= t->max_pinned_bytes - base_min(t->pinned_bytes, t->max_pinned_bytes);
}

/* ---- pinning in place ---- */

static void *storage_of(const mgr_weight *w, uint64_t *bytes)
{
    *bytes = w->source.storage != NULL ? w->source.storage_bytes : w->source.bytes;
    return w->source.storage != NULL ? w->source.storage : w->source.host;
}

static mgr_pin *find_pin(const mem_manager *m, const void *host)
{
    for (uint32_t i = 0; i < m->n_pins; i++)
        if (m->pins[i].host == host) return &m->pins[i];
    return NULL;
}

static bool pin_storage(mem_manager *m, const mgr_weight *w)
{
    uint64_t bytes;
    void *host = storage_of(w, &bytes);
    mgr_pin *pin = find_pin(m, host);
    if (pin != NULL) {
        if (pin->bytes != bytes) return false;
        pin->n_uses++;
        return true;
    }
    if (!m->can_register || bytes < MGR_PIN_BYTES || !mem_mgr_pin_room(m, bytes)) return false;
    if (m->n_pins == m->cap_pins) {
        uint32_t cap = m->cap_pins != 0 ? m->cap_pins * 2 : 16;
        mgr_pin *pins = base_realloc(m->env, BASE_TAG_RUNTIME, m->pins, cap * sizeof *pins, NULL);
        if (pins == NULL) return false;
        m->pins = pins;
        m->cap_pins = cap;
    }
    if (m->mem->pin_register(m->device, host, bytes, NULL) != WEIR_OK) return false;
    m->pins[m->n_pins++] = (mgr_pin){.host = host, .bytes = bytes, .n_uses = 1};
    m->tier->pinned_bytes += bytes;
    return true;
}

void mem_mgr_unpin(mem_manager *m, mgr_weight *w)
{
    uint64_t bytes;
    if (!w->pinned) return;
    mgr_pin *pin = find_pin(m, storage_of(w, &bytes));
    w->pinned = false;
    if (pin == NULL || --pin->n_uses != 0) return;
    m->mem->pin_unregister(m->device, pin->host);
    m->tier->pinned_bytes -= pin->bytes;
    *pin = m->pins[--m->n_pins];
}

/* ---- images ---- */

/* Places the unit's weights in its image. Returns whether it would have any that lie in files. */
static bool lay_out(mem_handle *h, uint32_t unit)
{
    mgr_unit *u = &h->units[unit];
    bool has_files = false;
    u->image_bytes = 0;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        uint64_t storage_bytes;
        if (w->unit != unit) continue;
        storage_of(w, &storage_bytes);
        bool small = storage_bytes < MGR_PIN_BYTES;
        w->in_image = !w->source.changes && (w->source.host == NULL || small);
        if (!w->in_image) continue;
        has_files |= w->source.host == NULL;
        w->image_at = u->image_bytes;
        u->image_bytes += base_align_up(w->source.bytes, 64);
    }
    if (h->copy_limit_bytes != UINT64_MAX) /* as it was planned */
        u->image_bytes = base_align_up(u->image_bytes, MGR_PAGE_BYTES);
    return has_files;
}

uint64_t mem_mgr_image_bytes(mem_handle *h, uint32_t unit, bool *files)
{
    *files = lay_out(h, unit);
    return h->units[unit].image_bytes;
}

bool mem_mgr_wants_image(const mem_handle *h, uint32_t unit)
{
    const mem_policy *p = &h->m->policy;
    if (no_copies(h) || h->units[unit].bytes == 0) return false;
    return p->host_copies == MEM_ON || p->vram_mode == MEM_VRAM_NONE ||
           (unit < h->n_units && !h->units[unit].wanted);
}

static bool allocate(mem_handle *h, mgr_unit *u, bool pageable)
{
    mem_manager *m = h->m;
    mgr_tier *t = m->tier;
    void *p = NULL;
    bool pinned = mem_mgr_pin_room(m, u->image_bytes) &&
                  base_ledger_reserve(m->env, BASE_TAG_WEIGHTS_HOST, u->image_bytes, NULL) == WEIR_OK;
    if (pinned && m->mem->pin_alloc(m->device, u->image_bytes, &p, NULL) != WEIR_OK) {
        base_ledger_release(m->env, BASE_TAG_WEIGHTS_HOST, u->image_bytes);
        pinned = false;
    }
    /* Of host memory a second copy that is not pinned would bring nothing. */
    if (!pinned && pageable) p = base_pages_alloc(m->env, BASE_TAG_WEIGHTS_HOST, u->image_bytes, false, NULL);
    if (p == NULL) return false;
    u->image = p;
    u->image_pinned = pinned;
    t->host_copy_bytes += u->image_bytes;
    h->copy_bytes += u->image_bytes;
    if (pinned) t->pinned_bytes += u->image_bytes;
    return true;
}

static void free_image(mem_handle *h, mgr_unit *u)
{
    mem_manager *m = h->m;
    if (u->image_pinned) {
        m->mem->pin_free(m->device, u->image, u->image_bytes);
        base_ledger_release(m->env, BASE_TAG_WEIGHTS_HOST, u->image_bytes);
        m->tier->pinned_bytes -= u->image_bytes;
    } else {
        base_pages_free(m->env, BASE_TAG_WEIGHTS_HOST, u->image, u->image_bytes);
    }
    m->tier->host_copy_bytes -= u->image_bytes;
    h->copy_bytes -= u->image_bytes;
    u->image = NULL;
    u->image_pinned = false;
}

void mem_mgr_drop_image(mem_handle *h, uint32_t unit)
{
    if (h->units[unit].image != NULL) free_image(h, &h->units[unit]);
}

/* Without the lock: the handle is its phase's, and images go only from what is idle or whole. */
static bool read_image(const mem_handle *h, uint32_t unit, const mem_request *r, uint64_t *read_bytes)
{
    for (uint32_t i = 0; i < h->n_weights; i++) {
        const mgr_weight *w = &h->weights[i];
        if (w->unit != unit || !w->in_image) continue;
        uint8_t *to = h->units[unit].image + w->image_at;
        if (mem_mgr_cancelled(r, NULL) != WEIR_OK) return false;
        if (w->source.host != NULL) {
            memcpy(to, w->source.host, w->source.bytes);
            continue;
        }
        if (mem_mgr_read(&w->source, 0, to, w->source.bytes, NULL) != WEIR_OK) return false;
        *read_bytes += w->source.bytes;
    }
    return true;
}

static bool fill_image(mem_handle *h, uint32_t unit, mem_request *r)
{
    uint64_t read_bytes = 0;
    mem_mgr_leave(h->m->tier);
    double began = base_now(h->m->env);
    bool done = read_image(h, unit, r, &read_bytes);
    double took = base_now(h->m->env) - began;
    base_lock_enter(h->m->tier->lock);
    if (r != NULL) r->report.read_bytes += read_bytes;
    if (r != NULL) r->report.host_wait_s += took;
    return done;
}

void mem_mgr_host_prepare(mem_handle *h, mem_request *r)
{
    mem_manager *m = h->m;
    for (uint32_t i = 0; i < h->n_weights && !m->unified && m->policy.vram_mode != MEM_VRAM_SHARED; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->source.host != NULL && !w->pinned && w->unit <= h->n_units) w->pinned = pin_storage(m, w);
    }
    h->lacking_bytes = 0;
    if (no_copies(h)) return;
    for (uint32_t unit = 0; unit <= h->n_units; unit++) {
        mgr_unit *u = &h->units[unit];
        /* What is on the device already has no use for one, unless it was dropped for want of RAM. */
        if (u->image != NULL || u->bytes == 0 || u->filled) continue;
        if (h->copy_limit_bytes != UINT64_MAX && !mem_mgr_wants_image(h, unit)) continue;
        bool has_files = lay_out(h, unit), lacks;
        if (u->image_bytes == 0) continue;
        if (may_copy(h, u->image_bytes, &lacks)) {
            lacks = !allocate(h, u, has_files) && has_files;
            if (u->image != NULL && !fill_image(h, unit, r)) free_image(h, u); /* loading tells why */
        }
        if (lacks && (h->lacking_bytes == 0 || u->image_bytes < h->lacking_bytes))
            h->lacking_bytes = u->image_bytes;
    }
}

void mem_mgr_host_release(mem_handle *h)
{
    if (h->m->mem == NULL) return;
    for (uint32_t i = 0; i < h->n_weights; i++) mem_mgr_unpin(h->m, &h->weights[i]);
    for (uint32_t i = 0; i <= h->n_units; i++) mem_mgr_drop_image(h, i);
}

/* ---- R6.5 ---- */

/* Of the handles that have copies and may lose them, the one used longest ago. */
static mem_handle *oldest(const mgr_tier *t, bool of_whole)
{
    mem_handle *found = NULL;
    for (mem_manager *m = t->managers; m != NULL; m = m->next) {
        for (mem_handle *h = m->handles; h != NULL; h = h->next) {
            /* A budget that the user gave for copies is his word. */
            bool has = false, may = h->copies_own_word ? false
                                    : of_whole         ? h->sealed && mem_mgr_is_whole(h)
                                                       : !mem_mgr_is_taken(h) && !mem_mgr_is_pinned_model(h);
            for (uint32_t i = 0; h->sealed && i <= h->n_units; i++) has |= h->units[i].image != NULL;
            has |= !of_whole && h->ram != NULL;
            if (has && may && (found == NULL || h->used < found->used)) found = h;
        }
    }
    return found;
}

/* As it is now, or was a moment ago: reading it takes longer than many a phase. */
static uint64_t ram_free_lately(const mem_manager *m)
{
    mgr_tier *t = m->tier;
    double now = base_now(m->env);
    if (t->ram_read_at == 0 || now - t->ram_read_at > RAM_READ_EVERY_S) {
        t->ram_free_bytes = mem_mgr_ram_free(m);
        t->ram_read_at = now;
    }
    return t->ram_free_bytes;
}

bool mem_mgr_may_recopy(mem_handle *h)
{
    mgr_tier *t = h->m->tier;
    if (h->lacking_bytes == 0) return false;
    double now = base_now(h->m->env);
    if (now - t->copies_checked < RECOPY_EVERY_S) return false;
    t->copies_checked = now;
    uint64_t enough = t->ram_reserve_bytes + t->ram_reserve_bytes / RECOPY_SHARE;
    uint64_t room = ram_free_lately(h->m);
    return room > enough && room - enough > h->lacking_bytes;
}

void mem_mgr_ram_pressure(mem_manager *m)
{
    mgr_tier *t = m->tier;
    mem_handle *h;
    if (t->host_copy_bytes == 0 || ram_free_lately(m) >= t->ram_reserve_bytes) return;
    for (int pass = 0; pass < 2; pass++) {
        while (mem_mgr_ram_free(m) < t->ram_reserve_bytes && (h = oldest(t, pass == 0)) != NULL) {
            mem_mgr_log(t, BASE_LOG_INFO, "%s:%s: its copies in RAM go, less than the reserve is free",
                        h->engine, h->component);
            if (pass == 1) {
                mem_mgr_move_off(h, true);
                mem_mgr_drop_ram(h);
            }
            for (uint32_t i = 0; i <= h->n_units; i++) mem_mgr_drop_image(h, i);
            mem_mgr_tell(t);
        }
    }
}
