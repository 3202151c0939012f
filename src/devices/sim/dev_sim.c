/* A GPU played by the CPU: its memory.
 *
 * Addresses are given out in a circle through a space several times the memory's size, so that what was freed
 * keeps its label for long and a late use of it can be named. New memory is poison; freed memory is poison
 * or, on a strict device, not there. */
#include "dev_sim_internal.h"

#include <stdio.h>
#include <string.h>

#define PAGE             ((uint64_t)BASE_PROTECT_PAGE)
#define ALIGNMENT        256
#define QUARANTINE_BYTES (UINT64_C(32) << 20)
#define MAX_FREED        4096
#define MAX_MEMORY       (UINT64_C(1) << 42)

/* ---- ranges ---- */

/* Index of the first range that begins behind `place`. */
static uint32_t range_behind(const dev_sim *d, uint64_t place)
{
    uint32_t low = 0, high = d->n_ranges;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (d->ranges[middle].begin <= place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static sim_range *range_at(const dev_sim *d, uint64_t place)
{
    uint32_t i = range_behind(d, place);
    if (i == 0) return NULL;
    sim_range *r = &d->ranges[i - 1];
    return place < r->begin + r->pages ? r : NULL;
}

const sim_range *sim_find(const dev_sim *d, const void *address)
{
    uintptr_t front = (uintptr_t)base_protect_front(d->memory), at = (uintptr_t)address;
    if (at < front || at - front >= d->address_bytes) return NULL;
    return range_at(d, at - front);
}

uint8_t *sim_back(const dev_sim *d, const void *address)
{
    return base_protect_back(d->memory) + ((uintptr_t)address - (uintptr_t)base_protect_front(d->memory));
}

static void drop_memory(dev_sim *d, sim_range *r)
{
    if (!r->has_memory) return;
    base_protect_drop(d->memory, r->begin, r->pages);
    r->has_memory = false;
    if (r->freed_at != 0) d->quarantine_bytes -= r->pages;
}

static void remove_range(dev_sim *d, uint32_t i)
{
    drop_memory(d, &d->ranges[i]);
    base_free(d->own, d->ranges[i].open);
    memmove(&d->ranges[i], &d->ranges[i + 1], (d->n_ranges - i - 1) * sizeof *d->ranges);
    d->n_ranges--;
}

static bool grow(base_env *env, void **array, uint32_t n, uint32_t *cap, size_t size, weir_error *err)
{
    if (n < *cap) return true;
    uint32_t wanted = *cap == 0 ? 64 : *cap * 2;
    void *p = base_realloc(env, BASE_TAG_RUNTIME, *array, wanted * size, err);
    if (p == NULL) return false;
    *array = p;
    *cap = wanted;
    return true;
}

/* The oldest freed range (with memory, if asked); n_ranges: none. */
static uint32_t oldest_freed(const dev_sim *d, bool with_memory)
{
    uint32_t found = d->n_ranges;
    for (uint32_t i = 0; i < d->n_ranges; i++) {
        const sim_range *r = &d->ranges[i];
        if (r->freed_at == 0 || (with_memory && !r->has_memory)) continue;
        if (found == d->n_ranges || r->freed_at < d->ranges[found].freed_at) found = i;
    }
    return found;
}

/* A place for so many bytes of pages where nothing lives; UINT64_MAX: none. */
static uint64_t find_place(const dev_sim *d, uint64_t pages, uint64_t alignment)
{
    uintptr_t front = (uintptr_t)base_protect_front(d->memory);
    uint64_t at = d->cursor;
    bool wrapped = false;
    for (;;) {
        at = base_align_up(front + at, alignment) - front;
        if (at + pages > d->address_bytes) {
            if (wrapped) return UINT64_MAX;
            wrapped = true;
            at = 0;
            continue;
        }
        const sim_range *hit = NULL;
        uint32_t i = range_behind(d, at);
        if (i > 0 && d->ranges[i - 1].freed_at == 0 && d->ranges[i - 1].begin + d->ranges[i - 1].pages > at)
            hit = &d->ranges[i - 1];
        for (; hit == NULL && i < d->n_ranges && d->ranges[i].begin < at + pages; i++)
            if (d->ranges[i].freed_at == 0) hit = &d->ranges[i];
        if (hit == NULL) return at;
        at = hit->begin + hit->pages + PAGE;
    }
}

static void forget_freed(dev_sim *d, uint64_t begin, uint64_t end)
{
    uint32_t i = range_behind(d, begin);
    if (i > 0) i--;
    while (i < d->n_ranges && d->ranges[i].begin < end) {
        const sim_range *r = &d->ranges[i];
        if (r->freed_at != 0 && r->begin + r->pages > begin)
            remove_range(d, i);
        else
            i++;
    }
}

/* ---- allocation ---- */

static uint64_t counted(const dev_sim *d, uint64_t bytes)
{
    uint64_t alignment = d->options.alignment;
    if (d->options.strict) alignment = base_max(alignment, PAGE);
    return base_align_up(base_max(bytes, 1), alignment);
}

static uint64_t free_bytes(const dev_sim *d)
{
    return d->options.memory_bytes - d->live_bytes - d->workspace_bytes - d->cache_bytes;
}

static weir_status refuse(const dev_sim *d, uint64_t bytes, const char *label, const char *why,
                          weir_error *err)
{
    char wanted[32], free_text[32], total[32];
    return base_fail(err, WEIR_ERR_DEVICE_MEMORY,
                     "simulated device: %s for %s: %s (free: %s of %s); release models or lower "
                     "compute.vram_limit_mb",
                     base_size_text(bytes, wanted), label, why,
                     base_size_text(free_bytes(d) + d->cache_bytes, free_text),
                     base_size_text(d->options.memory_bytes, total));
}

static weir_status insert_range(dev_sim *d, uint64_t asked, uint64_t bytes, const char *label,
                                uint64_t *begin, weir_error *err)
{
    weir_error local = {0};
    uint64_t pages = base_align_up(asked, PAGE);
    if (d->n_ranges >= MAX_FREED) {
        uint32_t oldest = oldest_freed(d, false);
        if (oldest < d->n_ranges) remove_range(d, oldest);
    }
    if (!grow(d->own, (void **)&d->ranges, d->n_ranges, &d->cap_ranges, sizeof *d->ranges, &local))
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s", local.message);
    /* A page behind each allocation stays closed, so that running over its end is seen. */
    uint64_t at = find_place(d, pages + PAGE, base_max(d->options.alignment, PAGE));
    if (at == UINT64_MAX) return refuse(d, asked, label, "no stretch of addresses is left", err);
    forget_freed(d, at, at + pages + PAGE);
    weir_status status = base_protect_commit(d->memory, at, pages, err);
    if (status == WEIR_OK) status = base_protect_set(d->memory, at, pages, true, err);
    if (status != WEIR_OK) {
        base_protect_drop(d->memory, at, pages);
        return status;
    }
    memset(base_protect_back(d->memory) + at, SIM_POISON, pages);
    uint32_t i = range_behind(d, at);
    memmove(&d->ranges[i + 1], &d->ranges[i], (d->n_ranges - i) * sizeof *d->ranges);
    sim_range *r = &d->ranges[i];
    *r = (sim_range){.begin = at, .asked = asked, .bytes = bytes, .pages = pages, .has_memory = true};
    snprintf(r->label, sizeof r->label, "%s", label != NULL ? label : "unnamed memory");
    d->n_ranges++;
    d->cursor = at + pages + PAGE;
    *begin = at;
    return WEIR_OK;
}

static weir_status alloc_locked(dev_sim *d, uint64_t asked, const char *label, void **address,
                                weir_error *err)
{
    uint64_t begin;
    if (asked > MAX_MEMORY) return refuse(d, asked, label, "more than the device has", err);
    uint64_t bytes = counted(d, asked);
    asked = base_max(asked, 1);
    uint64_t n = ++d->n_allocs;
    if (base_fault(d->env, BASE_FAULT_DEVICE_ALLOC, NULL) ||
        (d->options.fail_every != 0 && n % d->options.fail_every == 0))
        return refuse(d, asked, label, "refused", err);
    if (bytes > free_bytes(d) + d->cache_bytes) return refuse(d, asked, label, "not enough memory", err);
    weir_status status = insert_range(d, asked, bytes, label, &begin, err);
    if (status != WEIR_OK) return status;
    d->cache_bytes -= base_min(bytes, d->cache_bytes);
    d->live_bytes += bytes;
    *address = base_protect_front(d->memory) + begin;
    return WEIR_OK;
}

static weir_status sim_alloc(dev_device *device, uint64_t bytes, const char *label, void **address,
                             weir_error *err)
{
    dev_sim *d = sim_of(device);
    pthread_mutex_lock(&d->lock);
    weir_status status = alloc_locked(d, bytes, label != NULL ? label : "unnamed memory", address, err);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void sim_free(dev_device *device, void *address)
{
    dev_sim *d = sim_of(device);
    if (address == NULL) return;
    pthread_mutex_lock(&d->lock);
    sim_range *r = (sim_range *)(uintptr_t)sim_find(d, address);
    if (r != NULL && r->freed_at == 0) {
        d->live_bytes -= r->bytes;
        if (d->options.keeps_freed) d->cache_bytes += r->bytes;
        r->freed_at = ++d->clock;
        base_free(d->own, r->open);
        r->open = NULL;
        d->quarantine_bytes += r->pages;
        if (d->options.strict)
            drop_memory(d, r);
        else
            memset(base_protect_back(d->memory) + r->begin, SIM_POISON, r->pages);
        while (d->quarantine_bytes > QUARANTINE_BYTES) {
            uint32_t oldest = oldest_freed(d, true);
            if (oldest == d->n_ranges) break;
            drop_memory(d, &d->ranges[oldest]);
        }
    }
    pthread_mutex_unlock(&d->lock);
}

static void sim_trim(dev_device *device)
{
    dev_sim *d = sim_of(device);
    pthread_mutex_lock(&d->lock);
    d->cache_bytes = 0;
    pthread_mutex_unlock(&d->lock);
}

static weir_status sim_info(dev_device *device, dev_memory_info *out, weir_error *err)
{
    dev_sim *d = sim_of(device);
    (void)err;
    pthread_mutex_lock(&d->lock);
    *out = (dev_memory_info){
        .total_bytes = d->options.memory_bytes,
        .free_bytes = free_bytes(d),
        .cache_bytes = d->cache_bytes,
        .taken_bytes = d->live_bytes + d->workspace_bytes + d->cache_bytes,
        .workspace_bytes = d->workspace_bytes,
        .alignment = (size_t)counted(d, 1),
        .unified = d->options.unified,
        .can_register = !d->options.no_register,
    };
    pthread_mutex_unlock(&d->lock);
    return WEIR_OK;
}

/* ---- strict ranges ---- */

/* The state of one page. */
typedef uint8_t (*page_change)(uint8_t state);
static uint8_t page_guard(uint8_t state)
{
    (void)state;
    return 0;
}
static uint8_t page_open(uint8_t state)
{
    return state < SIM_ALWAYS_OPEN - 1 ? state + 1 : state;
}
static uint8_t page_close(uint8_t state)
{
    return state != 0 && state != SIM_ALWAYS_OPEN ? state - 1 : state;
}

/* Changes the pages that [address, address + bytes) touches and pushes what that opens or closes, in as few
 * pieces as possible. */
static void change_pages(dev_device *device, void *address, uint64_t bytes, page_change change)
{
    dev_sim *d = sim_of(device);
    pthread_mutex_lock(&d->lock);
    sim_range *r = (sim_range *)(uintptr_t)sim_find(d, address);
    if (r == NULL || r->freed_at != 0 || bytes == 0) goto done;
    if (r->open == NULL) {
        r->open = base_alloc(d->own, BASE_TAG_RUNTIME, r->pages / PAGE, NULL);
        if (r->open == NULL) goto done; /* stays open: less is found, nothing breaks */
        memset(r->open, SIM_ALWAYS_OPEN, r->pages / PAGE);
    }
    uint64_t from = (uint64_t)((uint8_t *)address - base_protect_front(d->memory)) - r->begin;
    uint64_t first = from / PAGE, end = base_min((from + bytes + PAGE - 1) / PAGE, r->pages / PAGE);
    for (uint64_t i = first; i < end;) {
        bool was = r->open[i] != 0;
        r->open[i] = change(r->open[i]);
        bool is = r->open[i] != 0;
        uint64_t begin = i++;
        if (was == is) continue;
        for (; i < end && (r->open[i] != 0) == was; i++) {
            uint8_t state = change(r->open[i]);
            if ((state != 0) != is) break;
            r->open[i] = state;
        }
        sim_push_protect(d, r->begin + begin * PAGE, (i - begin) * PAGE, is);
    }
done:
    pthread_mutex_unlock(&d->lock);
}

static void sim_guard(dev_device *device, void *address, uint64_t bytes)
{
    change_pages(device, address, bytes, page_guard);
}

static void sim_open(dev_device *device, void *address, uint64_t bytes)
{
    change_pages(device, address, bytes, page_open);
}

static void sim_close(dev_device *device, void *address, uint64_t bytes)
{
    change_pages(device, address, bytes, page_close);
}

weir_status sim_reopen(dev_sim *d, weir_error *err)
{
    for (uint32_t i = 0; i < d->n_ranges; i++) {
        const sim_range *r = &d->ranges[i];
        uint64_t n = r->pages / PAGE;
        if (r->freed_at != 0) continue;
        for (uint64_t at = 0; at < n;) {
            uint64_t begin = at;
            bool open = r->open == NULL || r->open[at] != 0;
            while (at < n && (r->open == NULL || r->open[at] != 0) == open) at++;
            if (!open) continue;
            weir_status status =
                base_protect_set(d->memory, r->begin + begin * PAGE, (at - begin) * PAGE, true, err);
            if (status != WEIR_OK) return status;
        }
    }
    return WEIR_OK;
}

weir_status sim_fail_touched(const dev_sim *d, uint64_t where, weir_error *err)
{
    const sim_range *r = range_at(d, where);
    if (r == NULL) {
        uint32_t i = range_behind(d, where);
        return base_fail(err, WEIR_ERR_DEVICE,
                         "simulated device: device memory that is not allocated was accessed%s%s",
                         i > 0 ? "; the allocation before it is " : "", i > 0 ? d->ranges[i - 1].label : "");
    }
    return base_fail(err, WEIR_ERR_DEVICE,
                     "simulated device: %s was accessed at byte %llu %s; use it inside its phase and "
                     "operation only, and through the device",
                     r->label, (unsigned long long)(where - r->begin),
                     r->freed_at != 0 ? "after it was freed" : "while it was not open");
}

weir_status sim_check(const dev_sim *d, const void *address, uint64_t bytes, bool opened, const char *what,
                      weir_error *err)
{
    if (address == NULL) return WEIR_OK;
    const sim_range *r = sim_find(d, address);
    if (r == NULL)
        return base_fail(err, WEIR_ERR_DEVICE, "simulated device: %s uses an address that is not allocated",
                         what);
    if (r->freed_at != 0)
        return base_fail(err, WEIR_ERR_DEVICE, "simulated device: %s uses %s, which was freed", what,
                         r->label);
    uint64_t from = (uint64_t)((const uint8_t *)address - base_protect_front(d->memory)) - r->begin;
    if (from > r->asked || bytes > r->asked - from)
        return base_fail(err, WEIR_ERR_DEVICE,
                         "simulated device: %s uses %llu bytes at byte %llu of %s, which has %llu", what,
                         (unsigned long long)bytes, (unsigned long long)from, r->label,
                         (unsigned long long)r->asked);
    if (!opened || r->open == NULL || bytes == 0) return WEIR_OK;
    for (uint64_t i = from / PAGE; i <= (from + bytes - 1) / PAGE; i++) {
        if (r->open[i] == 0)
            return base_fail(
                err, WEIR_ERR_DEVICE,
                "simulated device: %s reads %s, which is not open; a weight is there only inside "
                "its phase and its unit's operation",
                what, r->label);
    }
    return WEIR_OK;
}

/* ---- pinned memory ---- */

bool sim_is_pinned(const dev_sim *d, const void *host, uint64_t bytes)
{
    const uint8_t *at = host;
    for (uint32_t i = 0; i < d->n_pins; i++) {
        const sim_pin *p = &d->pins[i];
        if (at >= p->host && at < p->host + p->bytes) return bytes <= (uint64_t)(p->host + p->bytes - at);
    }
    return false;
}

static weir_status pin(dev_sim *d, void *host, uint64_t bytes, bool registered, weir_error *err)
{
    char wanted[32], limit[32];
    uint64_t most = d->options.max_pinned_bytes;
    if (base_fault(d->env, BASE_FAULT_PINNED_ALLOC, NULL) ||
        (most != 0 && (bytes > most || d->pinned_bytes > most - bytes)))
        return base_fail(
            err, WEIR_ERR_OUT_OF_MEMORY,
            "simulated device: %s of pinned memory refused (limit: %s); pageable memory works too",
            base_size_text(bytes, wanted), most != 0 ? base_size_text(most, limit) : "none");
    weir_error local = {0};
    if (!grow(d->own, (void **)&d->pins, d->n_pins, &d->cap_pins, sizeof *d->pins, &local))
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s", local.message);
    d->pins[d->n_pins++] = (sim_pin){.host = host, .bytes = bytes, .registered = registered};
    d->pinned_bytes += bytes;
    return WEIR_OK;
}

static void unpin(dev_sim *d, const void *host, bool registered)
{
    for (uint32_t i = 0; i < d->n_pins; i++) {
        if (d->pins[i].host != host || d->pins[i].registered != registered) continue;
        d->pinned_bytes -= d->pins[i].bytes;
        d->pins[i] = d->pins[--d->n_pins];
        return;
    }
}

static weir_status sim_pin_alloc(dev_device *device, uint64_t bytes, void **host, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_error local = {0};
    void *p = base_pages_alloc(d->own, BASE_TAG_IO, bytes, false, &local);
    if (p == NULL) return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "pinned memory: %s", local.message);
    pthread_mutex_lock(&d->lock);
    weir_status status = pin(d, p, bytes, false, err);
    pthread_mutex_unlock(&d->lock);
    if (status != WEIR_OK)
        base_pages_free(d->own, BASE_TAG_IO, p, bytes);
    else
        *host = p;
    return status;
}

static void sim_pin_free(dev_device *device, void *host, uint64_t bytes)
{
    dev_sim *d = sim_of(device);
    if (host == NULL) return;
    pthread_mutex_lock(&d->lock);
    unpin(d, host, false);
    pthread_mutex_unlock(&d->lock);
    memset(host, SIM_POISON, bytes); /* a copy that is still under way shows */
    base_pages_free(d->own, BASE_TAG_IO, host, bytes);
}

static weir_status sim_pin_register(dev_device *device, void *host, uint64_t bytes, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_status status;
    if (d->options.no_register)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "simulated device: memory cannot be pinned where it lies");
    pthread_mutex_lock(&d->lock);
    if (sim_is_pinned(d, host, 0))
        status = base_fail(err, WEIR_ERR_DEVICE, "simulated device: %p is pinned already", host);
    else
        status = pin(d, host, bytes, true, err);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void sim_pin_unregister(dev_device *device, void *host)
{
    dev_sim *d = sim_of(device);
    pthread_mutex_lock(&d->lock);
    unpin(d, host, true);
    pthread_mutex_unlock(&d->lock);
}

/* ---- what the CPU device answers ---- */

static const dev_device *cpu_of(const dev_device *device)
{
    return ((const dev_sim *)(const void *)device)->cpu;
}

static uint32_t sim_act_form(const dev_device *device, uint32_t dtype)
{
    return cpu_of(device)->table->act_form(cpu_of(device), dtype);
}

static size_t sim_act_row_bytes(const dev_device *device, uint32_t dtype, size_t k)
{
    return cpu_of(device)->table->act_row_bytes(cpu_of(device), dtype, k);
}

static void sim_kv_bytes(const dev_device *device, uint32_t dtype, uint32_t capacity, uint32_t n_kv_heads,
                         uint32_t head_dim, uint64_t *k_bytes, uint64_t *v_bytes)
{
    cpu_of(device)->table->kv_bytes(cpu_of(device), dtype, capacity, n_kv_heads, head_dim, k_bytes, v_bytes);
}

static uint64_t sim_workspace_bytes(const dev_device *device, size_t k, uint32_t n_positions,
                                    uint32_t head_dim)
{
    return cpu_of(device)->table->workspace_bytes(cpu_of(device), k, n_positions, head_dim);
}

static weir_status sim_reserve_workspace(dev_device *device, size_t k, uint32_t n_positions,
                                         uint32_t head_dim, weir_error *err)
{
    dev_sim *d = sim_of(device);
    weir_status status;
    sim_streams_drain(d);
    pthread_mutex_lock(&d->lock);
    uint64_t bytes = d->cpu->table->workspace_bytes(d->cpu, k, n_positions, head_dim);
    uint64_t more = bytes > d->workspace_bytes ? bytes - d->workspace_bytes : 0;
    if (bytes != UINT64_MAX && more > free_bytes(d) + d->cache_bytes) {
        status = refuse(d, more, "work space", "not enough memory", err);
    } else {
        status = d->cpu->table->reserve_workspace(d->cpu, k, n_positions, head_dim, err);
        if (status == WEIR_OK) {
            d->workspace_bytes += more;
            d->cache_bytes -= base_min(more, d->cache_bytes);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* Weights stay as their file has them: packing would be one more copy of them. */
static bool sim_can_pack(const dev_device *device, uint32_t dtype)
{
    (void)device;
    (void)dtype;
    return false;
}

static weir_status sim_pack(dev_device *device, uint32_t dtype, void *rows, size_t row_bytes, size_t n_groups,
                            weir_error *err)
{
    (void)device;
    (void)rows;
    return base_fail(err, WEIR_ERR_INTERNAL, "the simulated device packs no weights (%u, %zu x %zu)", dtype,
                     n_groups, row_bytes);
}

static void sim_unpack_row(const dev_device *device, uint32_t dtype, const void *group, size_t row_bytes,
                           uint32_t row, void *dst)
{
    cpu_of(device)->table->unpack_row(cpu_of(device), dtype, group, row_bytes, row, dst);
}

static void sim_describe(const dev_device *device, char *buf, size_t size)
{
    const dev_sim *d = (const dev_sim *)(const void *)device;
    char cpu[64], memory[32];
    if (size == 0) return;
    d->cpu->table->describe(d->cpu, cpu, sizeof cpu);
    snprintf(buf, size, "simulated, %s%s (%s)", base_size_text(d->options.memory_bytes, memory),
             d->options.strict ? ", strict" : "", cpu);
}

/* ---- life ---- */

static void sim_destroy(dev_device *device)
{
    dev_sim *d = sim_of(device);
    base_env *env = d->env;
    sim_streams_destroy(d);
    dev_destroy(d->cpu);
    if (d->own != NULL) {
        for (uint32_t i = 0; i < d->n_ranges; i++) base_free(d->own, d->ranges[i].open);
        base_free(d->own, d->ranges);
        base_free(d->own, d->pins);
    }
    base_protect_destroy(d->memory);
    base_env_destroy(d->own);
    base_free(env, d->payload);
    pthread_mutex_destroy(&d->inner);
    pthread_mutex_destroy(&d->lock);
    base_free(env, d);
}

#define MEMORY_CALLS                                                                                         \
    .info = sim_info, .alloc = sim_alloc, .free = sim_free, .trim = sim_trim, .pin_alloc = sim_pin_alloc,    \
    .pin_free = sim_pin_free, .pin_register = sim_pin_register, .pin_unregister = sim_pin_unregister,        \
    .upload = sim_upload, .download = sim_download, .copy = sim_copy, .mark = sim_mark,                      \
    .wait_on = sim_wait_on, .reached = sim_reached, .sync = sim_sync, .recover = sim_recover,                \
    .launch = sim_launch

static const dev_memory_table memory_table = {MEMORY_CALLS};

static const dev_memory_table strict_memory_table = {
    MEMORY_CALLS,
    .guard = sim_guard,
    .open = sim_open,
    .close = sim_close,
};

#define SIM_TABLE(memory_functions)                                                                          \
    {                                                                                                        \
        .name = "sim", .memory = (memory_functions), .destroy = sim_destroy, .act_form = sim_act_form,       \
        .act_row_bytes = sim_act_row_bytes, .kv_bytes = sim_kv_bytes,                                        \
        .workspace_bytes = sim_workspace_bytes, .reserve_workspace = sim_reserve_workspace, .run = sim_run,  \
        .can_pack = sim_can_pack, .pack = sim_pack, .unpack_row = sim_unpack_row, .describe = sim_describe   \
    }
static const dev_table sim_table = SIM_TABLE(&memory_table);
static const dev_table strict_table = SIM_TABLE(&strict_memory_table);

static weir_status check_options(const dev_sim_options *o, weir_error *err)
{
    if (o->memory_bytes == 0 || o->memory_bytes > MAX_MEMORY)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a simulated device of %llu bytes; from 1 byte to 4 TiB are possible",
                         (unsigned long long)o->memory_bytes);
    if ((o->alignment & (o->alignment - 1)) != 0 || o->alignment > ((size_t)1 << 21))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "an alignment of %zu: a power of two up to 2 MiB is possible", o->alignment);
    if (!(o->link_bytes_per_s >= 0) || o->n_streams > DEV_MAX_STREAMS || o->n_streams == 1)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a simulated device with %u streams and a link of %g bytes/s; 2 to %u streams, and "
                         "a speed that is not negative",
                         o->n_streams, o->link_bytes_per_s, DEV_MAX_STREAMS);
    return WEIR_OK;
}

weir_status dev_sim_create(base_env *env, const char *cpu, uint32_t n_threads, const dev_sim_options *options,
                           dev_device **out, weir_error *err)
{
    weir_error local = {0};
    weir_status status = check_options(options, err);
    if (status != WEIR_OK) return status;
    dev_sim *d = base_alloc(env, BASE_TAG_RUNTIME, sizeof *d, &local);
    if (d == NULL) return base_fail(err, local.code, "%s", local.message);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->inner, NULL);
    d->device.table = options->strict ? &strict_table : &sim_table;
    d->env = env;
    d->options = *options;
    if (d->options.alignment == 0) d->options.alignment = ALIGNMENT;
    d->n_streams = options->n_streams != 0 ? options->n_streams : DEV_MAX_STREAMS;
    d->address_bytes = base_align_up(options->memory_bytes, PAGE) * 8 + (UINT64_C(1) << 30);
    if (base_env_create(&d->own, &local) != WEIR_OK) goto fail;
    d->payload = base_alloc(env, BASE_TAG_RUNTIME, SIM_PAYLOAD_BYTES, &local);
    if (d->payload == NULL) goto fail;
    if (base_protect_create(env, d->address_bytes, options->strict, &d->memory, &local) != WEIR_OK) goto fail;
    if (dev_cpu_create(d->own, cpu, n_threads, &d->cpu, &local) != WEIR_OK) goto fail;
    if (sim_streams_create(d, &local) != WEIR_OK) goto fail;
    *out = &d->device;
    return WEIR_OK;

fail:
    sim_destroy(&d->device);
    if (err != NULL) *err = local;
    return local.code;
}
