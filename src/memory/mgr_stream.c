/* Units that are entered and left; those that found no room pass through a few slots.
 *
 *   copy stream     | u1 | u2 | u3 |      | u4 ...     a copy waits for the compute that read its slot last
 *   compute stream       | u1 | u2 | u3 | ...          a unit's operations wait for its copy
 *
 * The host waits for neither. Which unit follows which is learned, and copied ahead while slots are to be
 * had; a unit that comes otherwise is copied on the spot. */
#include "mgr_internal.h"

#include <string.h>

static mgr_slot *find_slot(mem_handle *h, uint32_t keep)
{
    mgr_slot *best = NULL;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        mgr_slot *s = &h->slots[i];
        if (s->unit != MGR_NONE && (h->units[s->unit].entered != 0 || s->unit == keep)) continue;
        if (best == NULL || s->unit == MGR_NONE || (best->unit != MGR_NONE && s->used < best->used)) best = s;
    }
    return best;
}

static weir_status start_copy(mem_handle *h, uint32_t unit, mgr_slot *s, mem_request *r, weir_error *err)
{
    mem_manager *m = h->m;
    if (s->unit != MGR_NONE) h->units[s->unit].slot = MGR_NONE;
    s->unit = MGR_NONE;
    weir_status status = m->mem->wait_on(m->device, DEV_STREAM_COPY, s->left, err); /* R5.2 */
    if (status == WEIR_OK) status = mem_mgr_fill(h, unit, s->block, DEV_STREAM_COPY, r, &s->ready, err);
    if (status != WEIR_OK) return status;
    s->unit = unit;
    s->used = ++m->tier->clock;
    h->units[unit].slot = (uint32_t)(s - h->slots);
    h->streamed_bytes += h->units[unit].bytes;
    r->report.streamed_bytes += h->units[unit].bytes;
    r->report.n_copies++;
    for (uint32_t i = 0; i < r->report.n_components; i++) {
        mem_component_report *c = &r->report.components[i];
        if (c->size_bytes == h->whole_bytes && strcmp(c->component, h->component) == 0 &&
            strcmp(c->engine, h->engine) == 0)
            c->streamed_bytes += h->units[unit].bytes;
    }
    return WEIR_OK;
}

/* Copies of what is known to come, into slots that hold neither it nor what runs. */
static void copy_ahead(mem_handle *h, uint32_t unit, mem_request *r)
{
    uint32_t u = unit, wanted[MGR_MAX_SLOTS], n_wanted = 0;
    for (uint32_t steps = 0; steps < h->n_units && n_wanted + 1 < h->n_slots; steps++) {
        u = h->units[u].next;
        if (u == MGR_NONE || u == unit) return;
        if (h->units[u].filled) continue;
        if (h->units[u].slot != MGR_NONE) {
            h->slots[h->units[u].slot].used = ++h->m->tier->clock; /* stays */
            n_wanted++;
            continue;
        }
        for (uint32_t i = 0; i < n_wanted; i++)
            if (wanted[i] == u) return;
        wanted[n_wanted++] = u;
        mgr_slot *s = find_slot(h, unit);
        /* An error here is met again where the unit is entered. */
        if (s == NULL || start_copy(h, u, s, r, NULL) != WEIR_OK) return;
    }
}

static weir_status enter_streamed(mem_phase *p, mem_handle *h, uint32_t unit, weir_error *err)
{
    mem_manager *m = h->m;
    mem_request *r = p->r;
    mgr_unit *u = &h->units[unit];
    weir_status status = WEIR_OK;
    h->n_entered++;
    if (u->slot != MGR_NONE) {
        r->report.n_hits++;
    } else {
        mgr_slot *s = find_slot(h, MGR_NONE);
        if (s == NULL)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s:%s, unit %s: all %u slots hold units that are entered; leave one first",
                             h->engine, h->component, u->name, h->n_slots);
        status = start_copy(h, unit, s, r, err);
        if (status != WEIR_OK)
            return base_fail_context(err, status, "%s:%s, unit %s", h->engine, h->component, u->name);
    }
    mgr_slot *s = &h->slots[u->slot];
    s->used = ++m->tier->clock;
    if (!m->mem->reached(m->device, s->ready)) r->report.n_waits++;
    return m->mem->wait_on(m->device, DEV_STREAM_COMPUTE, s->ready, err);
}

static weir_status check_listed(const mem_phase *p, const mem_handle *h, weir_error *err)
{
    if (p->r->open && mem_mgr_lists(p, h)) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %s did not list %s:%s; add it to the handles",
                     p->name, h->engine, h->component);
}

weir_status mem_unit_enter(mem_phase *p, mem_handle *h, uint32_t unit, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    mem_manager *m = h->m;
    weir_status status = check_listed(p, h, err);
    if (status != WEIR_OK) return status;
    if (unit >= h->n_units)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s has no unit %u", h->engine, h->component,
                         unit);
    mgr_unit *u = &h->units[unit];
    /* R5.8: nothing of streaming for what is there */
    if (m->mem == NULL || u->bytes == 0 || (u->filled && m->mem->open == NULL)) {
        u->entered++;
        return WEIR_OK;
    }
    base_lock_enter(m->tier->lock);
    bool streams = !u->filled;
    if (streams) status = enter_streamed(p, h, unit, err);
    if (status == WEIR_OK && m->mem->open != NULL && u->entered == 0)
        m->mem->open(m->device, streams ? h->slots[u->slot].block : u->block, u->bytes);
    if (status == WEIR_OK) {
        u->entered++;
        if (streams && h->last_unit != MGR_NONE && h->last_unit != unit) h->units[h->last_unit].next = unit;
        if (streams) h->last_unit = unit;
        if (streams) copy_ahead(h, unit, p->r);
    }
    mem_mgr_leave(m->tier);
    return status;
}

void mem_unit_leave(mem_phase *p, mem_handle *h, uint32_t unit)
{
    mem_manager *m = h->m;
    if (!mem_mgr_lists(p, h) || unit >= h->n_units || h->units[unit].entered == 0) return;
    mgr_unit *u = &h->units[unit];
    if (m->mem == NULL || u->bytes == 0 || (u->filled && m->mem->close == NULL)) {
        u->entered--;
        return;
    }
    base_lock_enter(m->tier->lock);
    if (--u->entered == 0) {
        mgr_slot *s = u->filled ? NULL : &h->slots[u->slot];
        if (m->mem->close != NULL) m->mem->close(m->device, s != NULL ? s->block : u->block, u->bytes);
        /* Without a mark nobody could tell when the slot is free: then wait here. */
        if (s != NULL && m->mem->mark(m->device, DEV_STREAM_COMPUTE, &s->left, NULL) != WEIR_OK) {
            mem_mgr_quiet(m);
            s->left = (dev_ticket){0};
        }
    }
    mem_mgr_leave(m->tier);
}

weir_status mem_weight_address(mem_phase *p, mem_handle *h, mem_weight_id id, void **address, weir_error *err)
{
    weir_status status = check_listed(p, h, err);
    if (status != WEIR_OK) return status;
    if (id >= h->n_weights)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s has no weight %u", h->engine, h->component,
                         id);
    const mgr_weight *w = &h->weights[id];
    const mgr_unit *u = &h->units[w->unit];
    if (w->unit < h->n_units && u->entered == 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s:%s, weight %s: its unit %s is not entered in phase %s", h->engine, h->component,
                         w->name, u->name, p->name);
    if (h->m->mem == NULL || w->unit == h->n_units + 1)
        *address = w->source.host != NULL ? w->source.host : h->ram + w->at;
    else
        *address = (uint8_t *)(u->filled ? u->block : h->slots[u->slot].block) + w->at;
    return WEIR_OK;
}
