/* Device memory that stays across phases: caches, activations of programs, the device's own work space. It
 * never yields. What a component was promised and has not taken yet is kept free for it (R3.1), so that it
 * finds its room whenever it asks. */
#include "mgr_internal.h"

#include <string.h>

uint64_t mem_mgr_taken(mem_manager *m)
{
    dev_memory_info info;
    if (m->mem->info(m->device, &info, NULL) != WEIR_OK) return 0;
    return info.taken_bytes - base_min(info.cache_bytes, info.taken_bytes);
}

/* Idle components yield for what would pass the limit; what the device itself refuses is met by
 * mem_mgr_alloc. */
static void make_room(mem_manager *m, mem_handle *h, uint64_t bytes)
{
    uint64_t over, free_bytes = mem_mgr_free_or_over(m, NULL, &over);
    if (h != NULL && h->keep_bytes > h->kept_bytes) free_bytes += h->keep_bytes - h->kept_bytes;
    if (free_bytes < bytes + over) (void)mem_mgr_yield(m, bytes + over - free_bytes, NULL, NULL);
}

/* Books what the device's own work space has become. What it takes, not by how much it grew: where a larger
 * one was refused, the device has given the old one back, which is booked. */
static uint64_t book_workspace(mem_manager *m)
{
    dev_memory_info info;
    if (m->mem->info(m->device, &info, NULL) != WEIR_OK) return 0;
    uint64_t more = info.workspace_bytes - base_min(m->workspace_taken, info.workspace_bytes);
    m->workspace_taken += more;
    m->device_bytes[BASE_DEVICE_KEPT] += more;
    base_ledger_book_device(m->env, BASE_DEVICE_KEPT, more);
    m->epoch++;
    return more;
}

static weir_status take(mem_manager *m, mgr_kept *k, const char *label, weir_error *err)
{
    if (m->mem == NULL) {
        k->address = base_pages_alloc(m->env, BASE_TAG_KV, k->bytes, false, err);
        return k->address != NULL ? WEIR_OK : err->code;
    }
    make_room(m, k->owner, k->bytes);
    uint64_t before = mem_mgr_taken(m);
    weir_status status = mem_mgr_alloc(m, BASE_DEVICE_KEPT, k->bytes, label, NULL, NULL, &k->address, err);
    if (status != WEIR_OK) return status;
    uint64_t after = mem_mgr_taken(m);
    /* Others may have yielded meanwhile: then the difference tells nothing. */
    k->taken = base_max(k->bytes, after > before ? after - before : 0);
    return WEIR_OK;
}

static weir_status keep(mem_manager *m, mem_handle *owner, uint64_t bytes, const char *label, void **address,
                        weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    mgr_kept *k = base_alloc(m->env, BASE_TAG_RUNTIME, sizeof *k, err);
    if (k == NULL) return err->code;
    *k = (mgr_kept){.owner = owner, .bytes = bytes};
    base_lock_enter(m->tier->lock);
    weir_status status = take(m, k, label, err);
    if (status == WEIR_OK) {
        k->next = m->kept;
        m->kept = k;
        if (owner != NULL) owner->kept_bytes += k->taken;
        *address = k->address;
    }
    mem_mgr_leave(m->tier);
    if (status != WEIR_OK) base_free(m->env, k);
    return status;
}

weir_status mem_manager_alloc(mem_manager *m, uint64_t bytes, const char *label, void **address,
                              weir_error *err)
{
    return keep(m, NULL, bytes, label, address, err);
}

weir_status mem_handle_alloc(mem_handle *h, uint64_t bytes, const char *label, void **address,
                             weir_error *err)
{
    return keep(h->m, h, bytes, label, address, err);
}

void mem_manager_free(mem_manager *m, void *address)
{
    if (address == NULL) return;
    base_lock_enter(m->tier->lock);
    dev_ticket t;
    /* Before it is looked for, since the lock is given back: its owner may go meanwhile. Errors stay with the
     * stream; whoever syncs next is told. */
    if (m->mem != NULL && m->mem->mark(m->device, DEV_STREAM_COMPUTE, &t, NULL) == WEIR_OK)
        (void)mem_mgr_sync(m, t, NULL);
    mgr_kept **at = &m->kept, *k;
    while (*at != NULL && (*at)->address != address) at = &(*at)->next;
    k = *at;
    if (k != NULL) {
        *at = k->next;
        if (m->mem == NULL)
            base_pages_free(m->env, BASE_TAG_KV, address, k->bytes);
        else
            mem_mgr_free(m, BASE_DEVICE_KEPT, k->bytes, address);
        if (k->owner != NULL) k->owner->kept_bytes -= k->taken;
    }
    mem_mgr_leave(m->tier);
    base_free(m->env, k);
}

weir_status mem_handle_copy(mem_handle *h, void *dst, const void *src, uint64_t bytes, weir_error *err)
{
    mem_manager *m = h->m;
    dev_ticket t;
    if (m->mem == NULL) {
        memcpy(dst, src, bytes);
        return WEIR_OK;
    }
    base_lock_enter(m->tier->lock);
    weir_status status = m->mem->copy(m->device, DEV_STREAM_COMPUTE, dst, src, bytes, &t, err);
    if (status == WEIR_OK) status = mem_mgr_sync(m, t, err);
    if (status != WEIR_OK) mem_mgr_quiet(m);
    mem_mgr_leave(m->tier);
    return status;
}

weir_status mem_handle_workspace(mem_handle *h, size_t k, uint32_t n_positions, uint32_t head_dim,
                                 weir_error *err)
{
    mem_manager *m = h->m;
    const dev_table *t = m->device->table;
    weir_error local;
    if (err == NULL) err = &local;
    if (m->mem == NULL) return t->reserve_workspace(m->device, k, n_positions, head_dim, err);
    base_lock_enter(m->tier->lock);
    uint64_t bytes = t->workspace_bytes(m->device, k, n_positions, head_dim);
    uint64_t more = bytes > m->workspace_bytes ? bytes - m->workspace_bytes : 0;
    if (more != 0) make_room(m, h, more);
    weir_status status = t->reserve_workspace(m->device, k, n_positions, head_dim, err);
    for (bool again = true; status == WEIR_ERR_DEVICE_MEMORY && again;) { /* as mem_mgr_alloc */
        again = mem_mgr_yield(m, bytes, NULL, NULL) != 0;
        m->mem->trim(m->device);
        status = t->reserve_workspace(m->device, k, n_positions, head_dim, err);
    }
    if (status == WEIR_OK && more != 0) {
        uint64_t taken = book_workspace(m);
        m->workspace_bytes += more;
        h->kept_bytes += taken;
        h->workspace_taken += taken;
    }
    mem_mgr_leave(m->tier);
    return status;
}

uint64_t mem_manager_workspace_bytes(mem_manager *m)
{
    base_lock_enter(m->tier->lock);
    uint64_t bytes = m->workspace_bytes;
    mem_mgr_leave(m->tier);
    return bytes;
}

void mem_mgr_forget_workspace(mem_manager *m)
{
    m->device_bytes[BASE_DEVICE_KEPT] -= m->workspace_taken;
    base_ledger_unbook_device(m->env, BASE_DEVICE_KEPT, m->workspace_taken);
    m->workspace_taken = 0;
}

void mem_handle_keep(mem_handle *h, uint64_t bytes)
{
    base_lock_enter(h->m->tier->lock);
    h->keep_bytes = bytes;
    h->m->epoch++;
    mem_mgr_leave(h->m->tier);
}

uint64_t mem_manager_room(mem_manager *m, const mem_handle *as)
{
    if (m->mem == NULL) return 0;
    base_lock_enter(m->tier->lock);
    uint64_t over, room = mem_mgr_free_or_over(m, NULL, &over), reserve = m->policy.vram_reserve_bytes;
    for (const mem_handle *h = m->handles; h != NULL; h = h->next)
        if (h->sealed && !mem_mgr_is_taken(h)) room += mem_mgr_held(h);
    if (as != NULL) room += base_max(as->kept_bytes, as->keep_bytes) - as->workspace_taken;
    mem_mgr_leave(m->tier);
    return room - base_min(room, over + reserve);
}
