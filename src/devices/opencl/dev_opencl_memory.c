/* Memory of an OpenCL device: buffers behind addresses, pools for small allocations, pinned host memory. */
#include "dev_opencl_internal.h"

#include <string.h>

#define POOL_BYTES  ((uint64_t)1 << 20)
#define POOL_MOST   (POOL_BYTES / 8)     /* larger allocations get a buffer of their own */
#define ADDRESS_GAP ((uintptr_t)1 << 16) /* so that what lies behind a buffer is nobody's */

/* Room for one more element; the array may move. */
static weir_status grow(opencl_device *d, void **array, uint32_t n, uint32_t *max, size_t size,
                        weir_error *err)
{
    void *more;

    if (n < *max) return WEIR_OK;
    more = base_realloc(d->env, BASE_TAG_RUNTIME, *array, (size_t)(*max * 2 + 8) * size, err);
    if (more == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    *array = more;
    *max = *max * 2 + 8;
    return WEIR_OK;
}

/* Index of the last chunk that begins at or before an address, n_chunks where there is none. */
static uint32_t chunk_before(const opencl_device *d, uintptr_t address)
{
    uint32_t low = 0, high = d->n_chunks;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (d->chunk[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? d->n_chunks : low - 1;
}

weir_status opencl_lookup(opencl_device *d, const void *address, uint64_t bytes, cl_mem *mem,
                          uint64_t *offset, weir_error *err)
{
    uintptr_t a = (uintptr_t)address;
    weir_status status = WEIR_ERR_INTERNAL;
    uint32_t i;

    pthread_mutex_lock(&d->lock);
    i = chunk_before(d, a);
    if (i < d->n_chunks) {
        const opencl_chunk *c = &d->chunk[i];
        uint64_t at = a - c->address;

        for (uint32_t u = 0; u < c->n_used && status != WEIR_OK; u++) {
            const opencl_range *r = &c->used[u];

            if (at < r->offset || at - r->offset > r->bytes || bytes > r->bytes - (at - r->offset)) continue;
            *mem = c->mem;
            *offset = at;
            status = WEIR_OK;
        }
    }
    pthread_mutex_unlock(&d->lock);
    if (status == WEIR_OK) return WEIR_OK;
    return base_fail(err, status, "device opencl:%u: %llu bytes at address %p are not of one allocation",
                     d->index, (unsigned long long)bytes, address);
}

/* Where bytes fit into a pool, and the index their range takes; false where they do not. */
static bool pool_place(const opencl_chunk *c, uint64_t bytes, uint64_t *offset, uint32_t *index)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i <= c->n_used; i++) {
        uint64_t end = i < c->n_used ? c->used[i].offset : c->bytes;

        if (end - at >= bytes) {
            *offset = at;
            *index = i;
            return true;
        }
        at = c->used[i].offset + c->used[i].bytes;
    }
    return false;
}

static weir_status range_insert(opencl_device *d, opencl_chunk *c, uint32_t index, opencl_range r,
                                weir_error *err)
{
    weir_status status = grow(d, (void **)&c->used, c->n_used, &c->max_used, sizeof(r), err);

    if (status != WEIR_OK) return status;
    memmove(&c->used[index + 1], &c->used[index], (c->n_used - index) * sizeof(r));
    c->used[index] = r;
    c->n_used++;
    return WEIR_OK;
}

/* Drivers often wait with memory until its first use, when it is too late. Where it is the machine's RAM,
 * every page of it is written, as base_pages_alloc does: what is booked is what the process holds. */
static cl_int make_present(opencl_device *d, cl_mem mem, uint64_t bytes)
{
    const cl_uint zero = 0;
    cl_int rc;

    if (d->info.unified)
        rc = d->api->EnqueueFillBuffer(d->own_queue, mem, &zero, sizeof(zero), 0, (size_t)bytes, 0, NULL,
                                       NULL);
    else
        rc = d->api->EnqueueMigrateMemObjects(d->own_queue, 1, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED,
                                              0, NULL, NULL);
    return rc == CL_SUCCESS ? d->api->Finish(d->own_queue) : rc;
}

static weir_status buffer_create(opencl_device *d, uint64_t bytes, const char *label, cl_mem *out,
                                 weir_error *err)
{
    cl_mem_flags flags = CL_MEM_READ_WRITE | (d->info.unified ? CL_MEM_ALLOC_HOST_PTR : 0);
    cl_int rc = CL_SUCCESS;
    cl_mem mem = NULL;
    weir_error ledger;

    if (d->info.unified && base_ledger_reserve(d->env, BASE_TAG_DEVICE, bytes, &ledger) != WEIR_OK)
        return base_fail(err, WEIR_ERR_DEVICE_MEMORY,
                         "device opencl:%u (%s), whose memory is the machine's, %llu bytes for %s: %s",
                         d->index, d->info.name, (unsigned long long)bytes, label, ledger.message);
    if (bytes > d->info.max_alloc_bytes)
        rc = CL_INVALID_BUFFER_SIZE;
    else
        mem = d->api->CreateBuffer(d->context, flags, (size_t)bytes, NULL, &rc);
    if (rc == CL_SUCCESS) {
        rc = make_present(d, mem, bytes);
        if (rc != CL_SUCCESS) d->api->ReleaseMemObject(mem);
    }
    if (rc == CL_SUCCESS) {
        *out = mem;
        return WEIR_OK;
    }
    if (d->info.unified) base_ledger_release(d->env, BASE_TAG_DEVICE, bytes);
    if (rc == CL_MEM_OBJECT_ALLOCATION_FAILURE || rc == CL_OUT_OF_RESOURCES || rc == CL_INVALID_BUFFER_SIZE ||
        rc == CL_OUT_OF_HOST_MEMORY)
        return base_fail(
            err, WEIR_ERR_DEVICE_MEMORY,
            "device opencl:%u (%s) refuses %llu bytes for %s: %s (%d); its memory is %llu bytes, "
            "one buffer may have %llu",
            d->index, d->info.name, (unsigned long long)bytes, label, opencl_error_text(rc), (int)rc,
            (unsigned long long)d->info.memory_bytes, (unsigned long long)d->info.max_alloc_bytes);
    return opencl_fail(d, rc, "CreateBuffer", err);
}

/* A driver that takes the machine's RAM from the heap frees it to the heap, which keeps it: what the ledger
 * has back would then be taken a second time, beyond the budget (X2). */
static void buffer_release(opencl_device *d, cl_mem mem, uint64_t bytes)
{
    d->api->ReleaseMemObject(mem);
    if (!d->info.unified) return;
    base_heap_trim();
    base_ledger_release(d->env, BASE_TAG_DEVICE, bytes);
}

/* A new chunk with one range in use. Called without the lock, since creating a buffer may take long. */
static weir_status chunk_add(opencl_device *d, uint64_t bytes, bool pool, opencl_range first,
                             const char *label, void **address, weir_error *err)
{
    opencl_chunk c = {.bytes = bytes, .pool = pool};
    weir_status status = buffer_create(d, bytes, label, &c.mem, err);

    if (status != WEIR_OK) return status;
    pthread_mutex_lock(&d->lock);
    status = range_insert(d, &c, 0, first, err);
    if (status == WEIR_OK) status = grow(d, (void **)&d->chunk, d->n_chunks, &d->max_chunks, sizeof(c), err);
    if (status == WEIR_OK) {
        c.address = d->next_address;
        d->next_address += (uintptr_t)base_align_up(bytes, ADDRESS_GAP) + ADDRESS_GAP;
        d->chunk[d->n_chunks++] = c;
        *address = (void *)(c.address + (uintptr_t)first.offset);
    }
    pthread_mutex_unlock(&d->lock);
    if (status != WEIR_OK) {
        base_free(d->env, c.used);
        buffer_release(d, c.mem, bytes);
    }
    return status;
}

/* From a pool that has room; *address stays NULL where none has. */
static weir_status pool_alloc(opencl_device *d, uint64_t bytes, void **address, weir_error *err)
{
    weir_status status = WEIR_OK;

    *address = NULL;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_chunks && *address == NULL && status == WEIR_OK; i++) {
        opencl_chunk *c = &d->chunk[i];
        uint64_t offset;
        uint32_t index;

        if (!c->pool || !pool_place(c, bytes, &offset, &index)) continue;
        status = range_insert(d, c, index, (opencl_range){offset, bytes}, err);
        if (status == WEIR_OK) *address = (void *)(c->address + (uintptr_t)offset);
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

weir_status opencl_alloc(dev_device *device, uint64_t bytes, const char *label, void **address,
                         weir_error *err)
{
    opencl_device *d = opencl_of(device);
    weir_status status;

    if (label == NULL) label = "an allocation";
    if (base_fault(d->env, BASE_FAULT_DEVICE_ALLOC, NULL))
        return base_fail(err, WEIR_ERR_DEVICE_MEMORY,
                         "device opencl:%u (%s) refuses %llu bytes for %s: a fault point asked for it",
                         d->index, d->info.name, (unsigned long long)bytes, label);
    if (bytes > UINT64_MAX / 4)
        return base_fail(err, WEIR_ERR_DEVICE_MEMORY,
                         "device opencl:%u: %llu bytes for %s are beyond any memory", d->index,
                         (unsigned long long)bytes, label);
    bytes = base_align_up(base_max(bytes, 1), d->alignment);
    if (bytes > POOL_MOST) return chunk_add(d, bytes, false, (opencl_range){0, bytes}, label, address, err);
    status = pool_alloc(d, bytes, address, err);
    if (status != WEIR_OK || *address != NULL) return status;
    return chunk_add(d, POOL_BYTES, true, (opencl_range){0, bytes}, label, address, err);
}

/* Takes chunk i out of the table; the caller releases its buffer outside of the lock. */
static opencl_chunk chunk_remove(opencl_device *d, uint32_t i)
{
    opencl_chunk c = d->chunk[i];

    base_free(d->env, c.used);
    d->n_chunks--;
    memmove(&d->chunk[i], &d->chunk[i + 1], (d->n_chunks - i) * sizeof(d->chunk[0]));
    return c;
}

void opencl_free(dev_device *device, void *address)
{
    opencl_device *d = opencl_of(device);
    opencl_chunk gone = {.mem = NULL};
    uint32_t i;

    if (address == NULL) return;
    pthread_mutex_lock(&d->lock);
    i = chunk_before(d, (uintptr_t)address);
    if (i < d->n_chunks) {
        opencl_chunk *c = &d->chunk[i];

        for (uint32_t u = 0; u < c->n_used; u++)
            if (c->address + (uintptr_t)c->used[u].offset == (uintptr_t)address) {
                c->n_used--;
                memmove(&c->used[u], &c->used[u + 1], (c->n_used - u) * sizeof(c->used[0]));
                break;
            }
        if (!c->pool && c->n_used == 0) gone = chunk_remove(d, i);
    }
    pthread_mutex_unlock(&d->lock);
    if (gone.mem != NULL) buffer_release(d, gone.mem, gone.bytes);
}

void opencl_trim(dev_device *device)
{
    opencl_device *d = opencl_of(device);

    for (;;) {
        opencl_chunk gone = {.mem = NULL};

        pthread_mutex_lock(&d->lock);
        for (uint32_t i = 0; i < d->n_chunks && gone.mem == NULL; i++)
            if (d->chunk[i].n_used == 0) gone = chunk_remove(d, i);
        pthread_mutex_unlock(&d->lock);
        if (gone.mem == NULL) return;
        buffer_release(d, gone.mem, gone.bytes);
    }
}

weir_status opencl_info(dev_device *device, dev_memory_info *out, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    uint64_t used = 0;

    (void)err;
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_chunks; i++) {
        out->taken_bytes += d->chunk[i].bytes;
        for (uint32_t u = 0; u < d->chunk[i].n_used; u++) used += d->chunk[i].used[u].bytes;
    }
    pthread_mutex_unlock(&d->lock);
    out->cache_bytes = out->taken_bytes - used;
    out->total_bytes = d->info.memory_bytes;
    /* OpenCL does not say what others hold. */
    out->free_bytes = out->total_bytes - base_min(out->taken_bytes, out->total_bytes);
    if (d->workspace != NULL) out->workspace_bytes = base_align_up(d->workspace_bytes, d->alignment);
    out->alignment = d->alignment;
    out->unified = d->info.unified;
    out->can_register = false;
    return WEIR_OK;
}

/* ---- pinned memory: a buffer that the driver keeps in host memory, mapped for as long as it lives ---- */
weir_status opencl_pin_alloc(dev_device *device, uint64_t bytes, void **host, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    opencl_pinned p = {.bytes = bytes};
    cl_int rc = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    weir_status status;

    if (!base_fault(d->env, BASE_FAULT_PINNED_ALLOC, NULL))
        p.mem = d->api->CreateBuffer(d->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                     (size_t)base_max(bytes, 1), NULL, &rc);
    if (rc == CL_SUCCESS)
        p.host = d->api->EnqueueMapBuffer(d->own_queue, p.mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                          (size_t)base_max(bytes, 1), 0, NULL, NULL, &rc);
    if (rc != CL_SUCCESS) {
        if (p.mem != NULL) d->api->ReleaseMemObject(p.mem);
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY,
                         "device opencl:%u (%s): no %llu bytes of pinned memory: %s (%d)", d->index,
                         d->info.name, (unsigned long long)bytes, opencl_error_text(rc), (int)rc);
    }
    pthread_mutex_lock(&d->lock);
    status = grow(d, (void **)&d->pinned, d->n_pinned, &d->max_pinned, sizeof(p), err);
    if (status == WEIR_OK) d->pinned[d->n_pinned++] = p;
    pthread_mutex_unlock(&d->lock);
    if (status != WEIR_OK) {
        d->api->EnqueueUnmapMemObject(d->own_queue, p.mem, p.host, 0, NULL, NULL);
        d->api->Finish(d->own_queue);
        d->api->ReleaseMemObject(p.mem);
        return status;
    }
    memset(p.host, 0, (size_t)bytes);
    *host = p.host;
    return WEIR_OK;
}

void opencl_pin_free(dev_device *device, void *host, uint64_t bytes)
{
    opencl_device *d = opencl_of(device);
    opencl_pinned p = {.host = NULL};

    (void)bytes;
    if (host == NULL) return;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_pinned; i++)
        if (d->pinned[i].host == host) {
            p = d->pinned[i];
            d->pinned[i] = d->pinned[--d->n_pinned];
            break;
        }
    pthread_mutex_unlock(&d->lock);
    if (p.host == NULL) return;
    d->api->EnqueueUnmapMemObject(d->own_queue, p.mem, p.host, 0, NULL, NULL);
    d->api->Finish(d->own_queue);
    d->api->ReleaseMemObject(p.mem);
}

bool opencl_is_pinned(opencl_device *d, const void *host, uint64_t bytes)
{
    uintptr_t at = (uintptr_t)host;
    bool found = false;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_pinned && !found; i++) {
        uintptr_t begin = (uintptr_t)d->pinned[i].host;

        found = at >= begin && at - begin <= d->pinned[i].bytes && bytes <= d->pinned[i].bytes - (at - begin);
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

weir_status opencl_pin_register(dev_device *device, void *host, uint64_t bytes, weir_error *err)
{
    (void)host;
    return base_fail(
        err, WEIR_ERR_UNSUPPORTED,
        "device opencl:%u: OpenCL cannot pin %llu bytes where they lie; copy them to pinned memory",
        opencl_of(device)->index, (unsigned long long)bytes);
}

void opencl_pin_unregister(dev_device *device, void *host)
{
    (void)device;
    (void)host;
}

void opencl_memory_finish(opencl_device *d)
{
    while (d->n_pinned > 0) opencl_pin_free(&d->device, d->pinned[0].host, d->pinned[0].bytes);
    while (d->n_chunks > 0) {
        opencl_chunk last = chunk_remove(d, d->n_chunks - 1);
        buffer_release(d, last.mem, last.bytes);
    }
    base_free(d->env, d->chunk);
    base_free(d->env, d->pinned);
}
