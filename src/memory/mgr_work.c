/* Memory and work inside a phase. */
#include "mgr_internal.h"

#include <string.h>

static mem_manager *manager_of(const mem_phase *p, mem_manager *m)
{
    return m != NULL ? m : p->r->managers[0];
}

static mgr_part *part_of(mem_phase *p, const mem_manager *m)
{
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i].m == m) return &p->parts[i];
    return NULL;
}

static void free_block(mgr_block *b)
{
    if (b->m->mem != NULL)
        mem_mgr_free(b->m, BASE_DEVICE_WORK, b->bytes, b->address);
    else
        base_pages_free(b->m->env, BASE_TAG_ACTIVATIONS, b->address, b->bytes);
}

void mem_mgr_free_blocks(mem_phase *p)
{
    for (uint32_t i = 0; i < p->n_blocks; i++) free_block(&p->blocks[i]);
    for (uint32_t i = 0; i < p->n_parts; i++) p->parts[i].held = 0;
    p->n_blocks = 0;
}

static void free_given_back(mem_phase *p, mem_manager *m)
{
    uint32_t n = 0;
    dev_ticket t;
    if (m->mem->mark(m->device, DEV_STREAM_COMPUTE, &t, NULL) != WEIR_OK ||
        mem_mgr_sync(m, t, NULL) != WEIR_OK)
        return;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        mgr_block *b = &p->blocks[i];
        if (b->m == m && b->given_back) {
            part_of(p, m)->held -= b->bytes;
            free_block(b);
        } else {
            p->blocks[n++] = *b;
        }
    }
    p->n_blocks = n;
}

static weir_status allocate(mem_phase *p, mem_manager *m, uint64_t bytes, const char *label, void **out,
                            weir_error *err)
{
    if (m->mem == NULL) {
        *out = base_pages_alloc(m->env, BASE_TAG_ACTIVATIONS, bytes, false, err);
        return *out != NULL ? WEIR_OK : err->code;
    }
    weir_status status = mem_mgr_alloc(m, BASE_DEVICE_WORK, bytes, label, p->r, p, out, err);
    if (status != WEIR_ERR_DEVICE_MEMORY) return status;
    free_given_back(p, m);
    status = mem_mgr_alloc(m, BASE_DEVICE_WORK, bytes, label, p->r, p, out, err);
    if (status == WEIR_ERR_DEVICE_MEMORY)
        return base_fail_context(err, status, "working memory of phase %s", p->name);
    return status;
}

weir_status mem_phase_alloc(mem_phase *p, mem_manager *m, uint64_t bytes, const char *label, void **address,
                            weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    m = manager_of(p, m);
    mgr_part *part = part_of(p, m);
    if (part == NULL || bytes == 0 || bytes > MGR_MAX_BYTES)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %s: %llu bytes of %s cannot be allocated",
                         p->name, (unsigned long long)bytes, label);
    weir_status status = WEIR_OK;
    base_lock_enter(p->r->tier->lock);
    mgr_block *found = NULL;
    for (uint32_t i = 0; i < p->n_blocks && found == NULL; i++)
        if (p->blocks[i].given_back && p->blocks[i].m == m && p->blocks[i].bytes == bytes)
            found = &p->blocks[i];
    if (found == NULL && p->n_blocks == p->cap_blocks) {
        uint32_t more = p->cap_blocks != 0 ? p->cap_blocks * 2 : 32;
        mgr_block *blocks = base_realloc(m->env, BASE_TAG_RUNTIME, p->blocks, more * sizeof *p->blocks, err);
        if (blocks == NULL) status = err->code;
        if (blocks != NULL) p->blocks = blocks;
        if (blocks != NULL) p->cap_blocks = more;
    }
    if (found == NULL && status == WEIR_OK) {
        void *got;
        status = allocate(p, m, bytes, label, &got, err);
        p->r->ran_out = status == WEIR_ERR_DEVICE_MEMORY;
        if (status == WEIR_OK) {
            found = &p->blocks[p->n_blocks++];
            *found = (mgr_block){.m = m, .address = got, .bytes = bytes};
            part->held += bytes;
        }
    }
    if (status == WEIR_OK) {
        found->given_back = false;
        *address = found->address;
        part->live += bytes;
        part->peak = base_max(part->peak, part->live);
    }
    mem_mgr_leave(p->r->tier);
    return status;
}

void mem_phase_free(mem_phase *p, mem_manager *m, void *address)
{
    if (address == NULL) return;
    m = manager_of(p, m);
    mgr_part *part = part_of(p, m);
    base_lock_enter(p->r->tier->lock);
    for (uint32_t i = 0; i < p->n_blocks && part != NULL; i++) {
        mgr_block *b = &p->blocks[i];
        if (b->address != address || b->m != m || b->given_back) continue;
        b->given_back = true;
        part->live -= b->bytes;
        break;
    }
    mem_mgr_leave(p->r->tier);
}

weir_status mem_phase_launch(mem_phase *p, mem_manager *m, const dev_kernel *kernel, const dev_arg *args,
                             uint32_t n_args, size_t n_items, weir_error *err)
{
    m = manager_of(p, m);
    weir_status status = mem_mgr_cancelled(p->r, err);
    if (status != WEIR_OK) return status;
    if (m->mem == NULL) {
        if (kernel->c == NULL)
            return base_fail(err, WEIR_ERR_UNSUPPORTED, "kernel %s has no form for the CPU", kernel->name);
        kernel->c(args, 0, n_items);
        return WEIR_OK;
    }
    base_lock_enter(p->r->tier->lock);
    status = m->mem->launch(m->device, kernel, args, n_args, n_items, err);
    mem_mgr_leave(p->r->tier);
    return status;
}

weir_status mem_phase_op(mem_phase *p, mem_manager *m, const dev_op *op, weir_error *err)
{
    m = manager_of(p, m);
    base_lock_enter(p->r->tier->lock);
    weir_status status = m->device->table->run(m->device, op, err);
    mem_mgr_leave(p->r->tier);
    return status;
}

weir_status mem_phase_upload(mem_phase *p, mem_manager *m, void *dst, const void *host, uint64_t bytes,
                             weir_error *err)
{
    m = manager_of(p, m);
    weir_status status = mem_mgr_cancelled(p->r, err);
    if (status != WEIR_OK) return status;
    if (m->mem == NULL) {
        memcpy(dst, host, bytes);
        return WEIR_OK;
    }
    dev_ticket t;
    status = m->mem->upload(m->device, DEV_STREAM_COMPUTE, dst, host, bytes, &t, err);
    return status == WEIR_OK ? m->mem->sync(m->device, t, err)
                             : status; /* the caller's memory is free again */
}

weir_status mem_phase_download(mem_phase *p, mem_manager *m, void *host, const void *src, uint64_t bytes,
                               weir_error *err)
{
    m = manager_of(p, m);
    weir_status status = mem_mgr_cancelled(p->r, err);
    if (status != WEIR_OK) return status;
    if (m->mem == NULL) {
        memcpy(host, src, bytes);
        return WEIR_OK;
    }
    dev_ticket t;
    status = m->mem->download(m->device, DEV_STREAM_COMPUTE, host, src, bytes, &t, err);
    if (status == WEIR_OK) status = m->mem->sync(m->device, t, err);
    base_lock_enter(p->r->tier->lock);
    const mgr_part *part = part_of(p, m);
    if (status == WEIR_OK && part != NULL) status = mem_mgr_check_failures(p, part, err);
    mem_mgr_leave(p->r->tier);
    return status;
}
