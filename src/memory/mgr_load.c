/* Onto the device and off it: blocks, copies from RAM or through staging from files, and back. */
#include "mgr_internal.h"

#include <string.h>

#define COPY_STREAM DEV_STREAM_COPY

weir_status mem_mgr_open_stage(mem_manager *m, weir_error *err)
{
    if (m->stage != NULL) return WEIR_OK;
    void *p = NULL;
    uint64_t bytes = 2 * MGR_STAGE_BYTES;
    weir_error local = {0};
    weir_status status = mem_mgr_pin_room(m, bytes) ? WEIR_OK : WEIR_ERR_BUDGET; /* R5.4 */
    if (status == WEIR_OK) status = base_ledger_reserve(m->env, BASE_TAG_PINNED, bytes, &local);
    if (status == WEIR_OK) {
        status = m->mem->pin_alloc(m->device, bytes, &p, &local);
        if (status != WEIR_OK) base_ledger_release(m->env, BASE_TAG_PINNED, bytes);
    }
    m->stage_pinned = status == WEIR_OK;
    if (m->stage_pinned) m->tier->pinned_bytes += bytes;
    if (!m->stage_pinned) p = base_pages_alloc(m->env, BASE_TAG_IO, bytes, false, err); /* R5.4 */
    if (p == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    m->stage = p;
    return WEIR_OK;
}

/* A half of the staging that nobody else reads into. */
static weir_status stage_take(mem_manager *m, const mem_request *r, uint32_t *half, weir_error *err)
{
    for (;;) {
        if (mem_mgr_cancelled(r, err) != WEIR_OK) return WEIR_ERR_CANCELLED;
        *half = m->stage_next % 2;
        if (m->stage_busy[*half]) *half ^= 1;
        if (!m->stage_busy[*half]) break;
        base_lock_wait(m->tier->lock, 1);
    }
    m->stage_next = *half + 1;
    m->stage_busy[*half] = true;
    return WEIR_OK;
}

weir_status mem_mgr_read(const mem_handle_weight *w, uint64_t at, void *buf, uint64_t bytes, weir_error *err)
{
    weir_status status = base_file_read(w->file, w->offset + at, buf, bytes, err);
    if (status != WEIR_OK) status = base_file_read(w->file, w->offset + at, buf, bytes, err);
    base_file_drop_cache(w->file, w->offset + at, bytes);
    return status;
}

/* One piece of a file; what takes time happens without the lock. */
static weir_status upload_piece(mem_manager *m, const mem_handle_weight *w, uint64_t at, uint8_t *dst,
                                uint32_t stream, mem_request *r, dev_ticket *done, weir_error *err)
{
    uint64_t n = base_min(MGR_STAGE_BYTES, w->bytes - at);
    uint32_t half;
    weir_status status = stage_take(m, r, &half, err);
    if (status != WEIR_OK) return status;
    uint8_t *buf = m->stage + half * MGR_STAGE_BYTES;
    dev_ticket ticket = m->stage_ticket[half];
    mem_mgr_leave(m->tier);
    double begin = base_now(m->env);
    status = m->mem->sync(m->device, ticket, err);
    if (status == WEIR_OK) status = mem_mgr_read(w, at, buf, n, err);
    if (status == WEIR_OK) status = m->mem->upload(m->device, stream, dst + at, buf, n, &ticket, err);
    double took = base_now(m->env) - begin;
    base_lock_enter(m->tier->lock);
    m->stage_busy[half] = false;
    base_lock_wake(m->tier->lock);
    if (status != WEIR_OK) return status;
    *done = m->stage_ticket[half] = ticket;
    if (r != NULL) {
        r->report.read_bytes += n;
        r->report.host_wait_s += took;
    }
    return WEIR_OK;
}

/* A range of a file through the two halves of the staging, one read while the other is copied. */
static weir_status upload_file(mem_handle *h, const mgr_weight *w, uint8_t *dst, uint32_t stream,
                               mem_request *r, dev_ticket *done, weir_error *err)
{
    mem_manager *m = h->m;
    weir_status status = mem_mgr_open_stage(m, err);
    for (uint64_t at = 0; at < w->source.bytes && status == WEIR_OK; at += MGR_STAGE_BYTES)
        status = upload_piece(m, &w->source, at, dst, stream, r, done, err);
    if (status != WEIR_OK)
        return base_fail_context(err, status, "%s:%s, weight %s", h->engine, h->component, w->name);
    return WEIR_OK;
}

weir_status mem_mgr_fill(mem_handle *h, uint32_t unit, uint8_t *block, uint32_t stream, mem_request *r,
                         dev_ticket *done, weir_error *err)
{
    mem_manager *m = h->m;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->unit != unit) continue;
        weir_status status = mem_mgr_cancelled(r, err); /* R5.6 */
        if (status != WEIR_OK) return status;
        const uint8_t *from =
            h->units[unit].image != NULL && w->in_image ? h->units[unit].image + w->image_at : w->source.host;
        if (from == NULL) {
            status = upload_file(h, w, block + w->at, stream, r, done, err);
        } else {
            /* From memory that is not pinned this takes as long as the copy. */
            mem_mgr_leave(m->tier);
            status = m->mem->upload(m->device, stream, block + w->at, from, w->source.bytes, done, err);
            base_lock_enter(m->tier->lock);
        }
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

/* What compute changed goes back to its source first. */
static weir_status copy_back(mem_handle *h, uint32_t unit, weir_error *err)
{
    mem_manager *m = h->m;
    bool nothing = true;
    dev_ticket before;
    for (uint32_t i = 0; i < h->n_weights; i++)
        nothing &= h->weights[i].unit != unit || !h->weights[i].source.changes;
    if (nothing) return WEIR_OK;
    h->leaving = true;
    /* What failed before is not this copy's failure. */
    weir_status status = m->mem->mark(m->device, DEV_STREAM_COMPUTE, &before, err);
    if (status == WEIR_OK) status = mem_mgr_sync(m, before, err);
    if (status != WEIR_OK) mem_mgr_quiet(m);
    status = WEIR_OK;
    uint64_t failures = m->n_failures;
    mem_mgr_leave(m->tier);
    for (uint32_t i = 0; i < h->n_weights && status == WEIR_OK; i++) {
        mgr_weight *w = &h->weights[i];
        dev_ticket t;
        if (w->unit != unit || !w->source.changes || w->source.host == NULL) continue;
        status = m->mem->download(m->device, DEV_STREAM_COMPUTE, w->source.host,
                                  (uint8_t *)h->units[unit].block + w->at, w->source.bytes, &t, err);
        if (status == WEIR_OK) status = m->mem->sync(m->device, t, err);
    }
    base_lock_enter(m->tier->lock);
    h->leaving = false;
    base_lock_wake(m->tier->lock);
    if (status == WEIR_OK && failures != m->n_failures)
        status = base_fail(err, WEIR_ERR_DEVICE, "the device failed meanwhile");
    return status;
}

bool mem_mgr_drop_unit(mem_handle *h, uint32_t unit, bool keep_changes)
{
    mgr_unit *u = &h->units[unit];
    mem_manager *m = h->m;
    weir_error err;
    if (u->block == NULL) return true;
    if (keep_changes && u->filled && copy_back(h, unit, &err) != WEIR_OK) {
        mem_mgr_log(m->tier, BASE_LOG_WARN,
                    "%s:%s stays on the device, since what was computed there could not be "
                    "copied back: %s",
                    h->engine, h->component, err.message);
        mem_mgr_quiet(m); /* forgets the failure, so that the next try is a fresh one */
        return false;
    }
    mem_mgr_free(m, unit == h->n_units ? BASE_DEVICE_FIXED : BASE_DEVICE_RESIDENT, u->bytes, u->block);
    u->block = NULL;
    u->filled = false;
    return true;
}

void mem_mgr_drop_slots(mem_handle *h)
{
    for (uint32_t i = 0; i < h->n_slots; i++) {
        if (h->slots[i].unit != MGR_NONE) h->units[h->slots[i].unit].slot = MGR_NONE;
        mem_mgr_free(h->m, BASE_DEVICE_SLOTS, h->slot_bytes, h->slots[i].block);
        h->slots[i] = (mgr_slot){.unit = MGR_NONE};
    }
    h->n_slots = 0;
    h->slot_bytes = 0;
}

bool mem_mgr_move_off(mem_handle *h, bool keep_changes)
{
    bool all = true;
    mem_mgr_drop_slots(h);
    for (uint32_t i = 0; i <= h->n_units; i++) all = mem_mgr_drop_unit(h, i, keep_changes) && all;
    if (all) h->cap_bytes = UINT64_MAX; /* R8.1: until it is moved off */
    return all;
}

void mem_mgr_drop_unwanted(mem_handle *h)
{
    if (h->n_slots != h->n_wanted_slots || h->slot_bytes != h->wanted_slot_bytes) mem_mgr_drop_slots(h);
    for (uint32_t i = h->n_units; i-- > 0;)
        if (!h->units[i].wanted) mem_mgr_drop_unit(h, i, true);
}

void mem_handle_give_back(mem_handle *h, uint64_t room_bytes, uint64_t copy_bytes)
{
    mem_manager *m = h->m;
    base_lock_enter(m->tier->lock);
    mem_mgr_decide(h, mem_mgr_budget(h, room_bytes));
    for (uint32_t i = 0; i <= h->n_units && !mem_mgr_is_taken(h); i++)
        if (mem_mgr_copy_share(h, i, &copy_bytes) == 0) mem_mgr_drop_image(h, i);
    if (!mem_mgr_is_taken(h)) mem_mgr_drop_unwanted(h);
    m->epoch++;
    m->mem->trim(m->device);
    mem_mgr_leave(m->tier);
}

static weir_status allocate(mem_handle *h, mem_request *r, const mem_phase *p, weir_error *err)
{
    mem_manager *m = h->m;
    mem_mgr_drop_unwanted(h);
    mgr_unit *fixed = &h->units[h->n_units];
    weir_status status = WEIR_OK;
    if (fixed->bytes != 0 && fixed->block == NULL)
        status = mem_mgr_alloc(m, BASE_DEVICE_FIXED, fixed->bytes, h->component, r, p, &fixed->block, err);
    h->slot_bytes = h->wanted_slot_bytes;
    while (status == WEIR_OK && h->n_slots < h->n_wanted_slots) {
        mgr_slot *s = &h->slots[h->n_slots];
        *s = (mgr_slot){.unit = MGR_NONE};
        status = mem_mgr_alloc(m, BASE_DEVICE_SLOTS, h->slot_bytes, h->component, r, p, &s->block, err);
        if (status == WEIR_OK) h->n_slots++;
    }
    for (uint32_t k = 0; k < h->n_units && status == WEIR_OK; k++) {
        mgr_unit *u = &h->units[h->order[k]];
        if (!u->wanted || u->block != NULL || u->bytes == 0) continue;
        status = mem_mgr_alloc(m, BASE_DEVICE_RESIDENT, u->bytes, u->name, r, p, &u->block, err);
        if (status == WEIR_OK) u->placed = ++m->tier->clock;
    }
    return status;
}

/* A unit's block, with its bytes there. */
static weir_status fill_block(mem_handle *h, uint32_t unit, mem_request *r, weir_error *err)
{
    mem_manager *m = h->m;
    dev_ticket done = {0};
    uint64_t failures = m->n_failures;
    weir_status status = mem_mgr_fill(h, unit, h->units[unit].block, COPY_STREAM, r, &done, err);
    if (status == WEIR_OK) status = mem_mgr_sync(m, done, err);
    /* Another job may have met a failure, and made the device forget it. */
    if (status == WEIR_OK && failures != m->n_failures)
        status = base_fail(err, WEIR_ERR_DEVICE, "the device failed while %s:%s was loaded", h->engine,
                           h->component);
    return status;
}

static weir_status fill_all(mem_handle *h, mem_request *r, weir_error *err)
{
    uint64_t total = 0, loaded = 0;
    for (uint32_t i = 0; i <= h->n_units; i++)
        if (h->units[i].block != NULL && !h->units[i].filled) total += h->units[i].bytes;
    for (uint32_t i = 0; i <= h->n_units; i++) {
        mgr_unit *u = &h->units[i];
        if (u->block == NULL || u->filled) continue;
        weir_status status = fill_block(h, i, r, err);
        if (status == WEIR_ERR_DEVICE) { /* nothing of this phase is on its way yet: once more */
            mem_mgr_quiet(h->m);
            status = fill_block(h, i, r, err);
        }
        if (status != WEIR_OK) return status;
        u->filled = true;
        loaded += u->bytes;
        if (h->on_load == NULL) continue;
        mem_mgr_leave(h->m->tier); /* who hears of it may ask the manager */
        h->on_load(h->on_load_arg, loaded, total);
        base_lock_enter(h->m->tier->lock);
    }
    return WEIR_OK;
}

/* What is in part in files must still be those files. */
static weir_status check_files(const mem_handle *h, weir_error *err)
{
    const base_file *last = NULL;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        const mgr_weight *w = &h->weights[i];
        if (w->source.file == NULL || w->source.file == last) continue;
        last = w->source.file;
        weir_status status = base_file_check(w->source.file, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

weir_status mem_mgr_check_files(const mem_handle *h, weir_error *err)
{
    return mem_mgr_is_whole(h) ? WEIR_OK : check_files(h, err);
}

weir_status mem_mgr_place(mem_handle *h, uint64_t budget, mem_request *r, const mem_phase *p, weir_error *err)
{
    mem_manager *m = h->m;
    uint64_t smallest = mem_mgr_smallest(h, h->n_units != 0);
    weir_status status;
    mem_mgr_decide(h, budget);
    const bool all = /* it may have: neither capped nor limited */
        h->cap_bytes == UINT64_MAX && mem_mgr_limit(h) == UINT64_MAX;
    for (;;) {
        status = allocate(h, r, p, err);
        /* An allocation that fails in truth: with less, down to the smallest working set. */
        bool whole_only = m->policy.vram_mode == MEM_VRAM_HIGH && all;
        if (status != WEIR_ERR_DEVICE_MEMORY || whole_only || budget <= smallest) break;
        budget = base_min(budget == UINT64_MAX ? h->whole_bytes : budget, mem_mgr_held(h));
        budget = base_max(smallest, budget - budget / 16);
        mem_mgr_decide(h, budget);
        mem_mgr_drop_slots(h);
        for (uint32_t i = 0; i < h->n_units; i++)
            if (!h->units[i].filled) mem_mgr_drop_unit(h, i, false);
        if (budget == smallest) {
            status = allocate(h, r, p, err);
            break;
        }
    }
    if (status == WEIR_OK) return WEIR_OK;
    return base_fail_context(err, status, "placing %s:%s", h->engine, h->component);
}

weir_status mem_mgr_load(mem_handle *h, mem_request *r, weir_error *err)
{
    mem_mgr_host_prepare(h, r);
    weir_status status = fill_all(h, r, err);
    if (status == WEIR_OK) mem_mgr_find_storage(h);
    if (status == WEIR_OK) return WEIR_OK;
    return base_fail_context(err, status, "placing %s:%s", h->engine, h->component);
}

void mem_mgr_drop_unfilled(mem_handle *h, bool copying)
{
    if (copying) mem_mgr_quiet(h->m);
    mem_mgr_drop_slots(h);
    for (uint32_t i = 0; i <= h->n_units; i++)
        if (!h->units[i].filled) mem_mgr_drop_unit(h, i, false);
}

/* File ranges into RAM, without the lock. */
static weir_status read_ram(mem_handle *h, uint8_t *ram, const mem_request *r, weir_error *err)
{
    uint64_t at = 0;
    weir_status status = check_files(h, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->source.host != NULL || (h->m->mem != NULL && w->unit != h->n_units + 1)) continue;
        status = mem_mgr_cancelled(r, err); /* R5.6 */
        if (status != WEIR_OK) return status;
        status = mem_mgr_read(&w->source, 0, ram + at, w->source.bytes, err);
        if (status != WEIR_OK)
            return base_fail_context(err, status, "%s:%s, weight %s", h->engine, h->component, w->name);
        w->at = at;
        at += base_align_up(w->source.bytes, 64);
    }
    return WEIR_OK;
}

weir_status mem_mgr_load_ram(mem_handle *h, mem_request *r, weir_error *err)
{
    mem_manager *m = h->m;
    uint64_t bytes = 0;
    if (h->ram != NULL) return WEIR_OK;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->source.host == NULL && (m->mem == NULL || w->unit == h->n_units + 1))
            bytes += base_align_up(w->source.bytes, 64);
    }
    if (bytes == 0) return WEIR_OK;
    uint8_t *ram = base_pages_alloc(m->env, BASE_TAG_WEIGHTS_HOST, bytes, false, err);
    if (ram == NULL) return err->code;
    mem_mgr_leave(m->tier);
    weir_status status = read_ram(h, ram, r, err);
    base_lock_enter(m->tier->lock);
    if (status != WEIR_OK) {
        base_pages_free(m->env, BASE_TAG_WEIGHTS_HOST, ram, bytes);
        return status;
    }
    h->ram = ram;
    h->ram_bytes = bytes;
    m->tier->host_copy_bytes += bytes;
    return WEIR_OK;
}

void mem_mgr_drop_ram(mem_handle *h)
{
    if (h->ram == NULL) return;
    base_pages_free(h->m->env, BASE_TAG_WEIGHTS_HOST, h->ram, h->ram_bytes);
    h->m->tier->host_copy_bytes -= h->ram_bytes;
    h->ram = NULL;
    h->ram_bytes = 0;
}
