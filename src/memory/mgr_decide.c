/* Which units stay: pure decisions from sizes, marks and kind (R4.5, R4.6). */
#include "mgr_internal.h"

uint32_t mem_mgr_slots(const mem_handle *h)
{
    uint32_t n = mem_mgr_copies_ahead(h) ? h->m->policy.async_offload + 1 : 1; /* R5.3 */
    return n < h->n_units ? n : h->n_units;
}

uint64_t mem_mgr_smallest(const mem_handle *h, uint32_t n_slots)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < h->n_units; i++) largest = base_max(largest, h->units[i].bytes);
    return h->units[h->n_units].bytes + n_slots * largest;
}

uint64_t mem_mgr_held(const mem_handle *h)
{
    uint64_t bytes = h->n_slots * h->slot_bytes;
    for (uint32_t i = 0; i <= h->n_units; i++)
        if (h->units[i].block != NULL) bytes += h->units[i].bytes;
    return bytes;
}

bool mem_mgr_is_whole(const mem_handle *h)
{
    for (uint32_t i = 0; i <= h->n_units; i++)
        if (h->units[i].bytes != 0 && !h->units[i].filled) return false;
    return true;
}

/* What the wanted units cost with n slots for the rest; the slots' number and size too. */
static uint64_t cost(const mem_handle *h, uint32_t n_slots, uint32_t *slots, uint64_t *slot_bytes)
{
    uint64_t bytes = h->units[h->n_units].bytes, largest = 0;
    uint32_t rest = 0;
    for (uint32_t i = 0; i < h->n_units; i++) {
        if (h->units[i].bytes == 0) continue;
        if (h->units[i].wanted) {
            bytes += h->units[i].bytes;
        } else {
            largest = base_max(largest, h->units[i].bytes);
            rest++;
        }
    }
    *slots = n_slots < rest ? n_slots : rest;
    *slot_bytes = largest;
    return bytes + *slots * largest;
}

uint64_t mem_mgr_budget(const mem_handle *h, uint64_t share)
{
    mem_vram_mode mode = h->m->policy.vram_mode;
    if (mode == MEM_VRAM_HIGH) return UINT64_MAX; /* R3.5 */
    if (mode == MEM_VRAM_LOW || mode == MEM_VRAM_NONE) return share;
    return share >= h->whole_bytes ? UINT64_MAX : share;
}

uint64_t mem_mgr_limit(const mem_handle *h)
{
    return h->limit_bytes >= h->whole_bytes ? UINT64_MAX : h->limit_bytes;
}

static uint64_t decide_for(mem_handle *h, uint64_t budget)
{
    mem_vram_mode mode = h->m->policy.vram_mode;
    uint32_t n = mem_mgr_slots(h);
    h->units[h->n_units].wanted = true;
    for (uint32_t i = 0; i < h->n_units; i++) h->units[i].wanted = budget == UINT64_MAX;
    /* Copies ahead only where they fit; one is always tried (R3.5). */
    while (n > 1 && cost(h, n, &h->n_wanted_slots, &h->wanted_slot_bytes) > budget) n--;
    bool keeps = mode != MEM_VRAM_LOW && mode != MEM_VRAM_NONE;
    for (uint32_t k = 0; k < h->n_units && keeps && budget != UINT64_MAX; k++) {
        mgr_unit *u = &h->units[h->order[k]];
        u->wanted = true;
        if (cost(h, n, &h->n_wanted_slots, &h->wanted_slot_bytes) > budget) u->wanted = false;
    }
    return cost(h, n, &h->n_wanted_slots, &h->wanted_slot_bytes);
}

uint64_t mem_mgr_decide(mem_handle *h, uint64_t budget)
{
    budget = base_min(budget, base_min(h->cap_bytes, mem_mgr_limit(h)));
    if (mem_mgr_limit(h) != UINT64_MAX && budget != UINT64_MAX && !mem_mgr_is_kinds_way(h)) {
        /* No more than the kind's way, which was planned and booked, takes of a budget of RAM. */
        h->prefetch.other = false;
        budget = decide_for(h, budget);
        h->prefetch.other = true;
    }
    return decide_for(h, budget);
}

uint64_t mem_mgr_copy_share(mem_handle *h, uint32_t unit, uint64_t *left)
{
    bool files = false;
    if (!mem_mgr_wants_image(h, unit)) return 0;
    uint64_t bytes = base_align_up(mem_mgr_image_bytes(h, unit, &files), MGR_PAGE_BYTES);
    if (bytes > *left) return 0;
    *left -= bytes;
    return bytes;
}

void mem_handle_decide(mem_handle *h, uint64_t room_bytes, uint64_t copy_bytes, mem_handle_plan *out)
{
    *out = (mem_handle_plan){.size_bytes = h->whole_bytes, .fixed_bytes = h->units[h->n_units].bytes};
    base_lock_enter(h->m->tier->lock);
    const bool other = h->prefetch.other; /* what is planned and booked is the kind's way */
    h->prefetch.other = false;
    mem_mgr_decide(h, mem_mgr_budget(h, room_bytes));
    h->prefetch.other = other;
    out->smallest_bytes = mem_mgr_smallest(h, h->n_units != 0);
    out->n_slots = h->n_wanted_slots;
    out->slot_bytes = h->n_wanted_slots * h->wanted_slot_bytes;
    for (uint32_t i = 0; i <= h->n_units; i++) {
        const mgr_unit *u = &h->units[i];
        uint64_t image = mem_mgr_copy_share(h, i, &copy_bytes);
        out->copy_bytes += image;
        if (i == h->n_units || u->bytes == 0) continue;
        out->n_units++;
        out->n_resident += u->wanted;
        *(u->wanted ? &out->resident_bytes : &out->streamed_bytes) += u->bytes;
        if (!u->wanted && image == 0) out->file_bytes += u->bytes;
    }
    mem_mgr_leave(h->m->tier);
}
