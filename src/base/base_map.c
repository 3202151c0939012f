/* Mapped files, and the one signal handler that they need.
 *
 * A handler is called without any context of ours, so what it looks at must be global: a table of ranges,
 * written under a lock and read without one. Nothing else in the library is like this. */
#define _GNU_SOURCE
#include "base_map.h"
#include "base_internal.h"
#include "base_signal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define PAGE_BYTES UINT64_C(4096)
#define MAX_RANGES 64

typedef struct bus_range {
    atomic_uintptr_t begin, end; /* equal: free */
    atomic_bool broken;
} bus_range;

static void on_bus_error(int sig, siginfo_t *info, void *context);

static struct {
    pthread_mutex_t lock; /* for adding and removing; the handler takes none */
    base_signal signal;
    bus_range ranges[MAX_RANGES];
} bus = {.lock = PTHREAD_MUTEX_INITIALIZER, .signal = {.number = SIGBUS, .handler = on_bus_error}};

struct base_map {
    base_env *env;
    base_file *file;
    uint8_t *pages;
    uint64_t pages_bytes;
    uint64_t offset; /* of the first page */
    uint64_t skip;   /* of what was asked for behind it */
    bus_range *range;
};

/* All that lies behind the first missing page is missing, too, so zeros take the place of the whole rest.
 * Only system calls and atomics: this may run anywhere. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_RANGES; i++) {
        uintptr_t begin = atomic_load(&bus.ranges[i].begin), end = atomic_load(&bus.ranges[i].end);
        if (at < begin || at >= end) continue;
        uintptr_t page = at & ~(uintptr_t)(PAGE_BYTES - 1);
        atomic_store(&bus.ranges[i].broken, true);
        void *zeros =
            mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        errno = saved;
        return;
    }
    (void)sig;
    base_signal_pass_on(&bus.signal, info, context);
    errno = saved;
}

/* Takes a free range for the pages; NULL when there is none. */
static bus_range *guard(uint8_t *pages, uint64_t bytes)
{
    bus_range *found = NULL;
    pthread_mutex_lock(&bus.lock);
    for (int i = 0; i < MAX_RANGES && found == NULL; i++)
        if (atomic_load(&bus.ranges[i].end) == 0) found = &bus.ranges[i];
    if (found != NULL && !base_signal_take(&bus.signal)) found = NULL;
    if (found != NULL) {
        atomic_store(&found->broken, false);
        atomic_store(&found->begin, (uintptr_t)pages);
        atomic_store(&found->end, (uintptr_t)pages + bytes);
    }
    pthread_mutex_unlock(&bus.lock);
    return found;
}

static void unguard(bus_range *range)
{
    pthread_mutex_lock(&bus.lock);
    atomic_store(&range->end, 0);
    atomic_store(&range->begin, 0);
    base_signal_give(&bus.signal);
    pthread_mutex_unlock(&bus.lock);
}

weir_status base_map_create(base_env *env, base_file *f, uint64_t offset, uint64_t bytes, base_map **out,
                            weir_error *err)
{
    uint64_t end;
    weir_error local = {0};
    if (bytes == 0 || !base_add(offset, bytes, &end) || end > base_file_size(f))
        return base_file_fail_end(f, offset, bytes, 0, err);
    base_map *m = base_alloc(env, BASE_TAG_IO, sizeof *m, &local);
    if (m == NULL) goto fail;
    m->env = env;
    m->file = f;
    m->offset = base_align_down(offset, PAGE_BYTES);
    m->skip = offset - m->offset;
    m->pages_bytes = base_align_up(end, PAGE_BYTES) - m->offset;
    base_fault_rule rule;
    void *pages = MAP_FAILED;
    if (base_fault(env, BASE_FAULT_MAP, &rule))
        errno = rule.error != 0 ? rule.error : ENODEV;
    else
        pages = mmap(NULL, m->pages_bytes, PROT_READ, MAP_SHARED, base_file_fd(f), (off_t)m->offset);
    if (pages == MAP_FAILED) {
        char text[128];
        base_fail(&local, WEIR_ERR_IO, "%s: mapping %llu bytes at offset %llu failed: %s", base_file_path(f),
                  (unsigned long long)m->pages_bytes, (unsigned long long)m->offset,
                  base_errno_text(errno, text));
        goto fail;
    }
    m->pages = pages;
    m->range = guard(m->pages, m->pages_bytes);
    if (m->range == NULL) {
        base_fail(&local, WEIR_ERR_UNSUPPORTED, "%s: more than %d files mapped at once", base_file_path(f),
                  MAX_RANGES);
        goto fail;
    }
    *out = m;
    return WEIR_OK;

fail:
    base_map_destroy(m);
    if (err != NULL) *err = local;
    return local.code;
}

void base_map_destroy(base_map *m)
{
    if (m == NULL) return;
    if (m->range != NULL) unguard(m->range);
    if (m->pages != NULL) munmap(m->pages, m->pages_bytes);
    base_free(m->env, m);
}

const uint8_t *base_map_data(const base_map *m)
{
    return m->pages + m->skip;
}

weir_status base_map_check(const base_map *m, weir_error *err)
{
    if (atomic_load(&m->range->broken))
        return base_fail(
            err, WEIR_ERR_TRUNCATED,
            "%s: the file ends early: it was cut short while its weights were mapped; restore it and "
            "load the model again",
            base_file_path(m->file));
    return base_file_check(m->file, err);
}

weir_status base_map_fetch(base_map *m, uint64_t at, uint64_t bytes, weir_error *err)
{
    uint64_t begin = base_align_down(m->skip + at, PAGE_BYTES);
    uint64_t end = base_min(base_align_up(m->skip + at + bytes, PAGE_BYTES), m->pages_bytes);
    if (begin >= end) return WEIR_OK;
    int tries = 0;
    while (madvise(m->pages + begin, end - begin, MADV_POPULATE_READ) != 0) {
        int error = errno;
        if (base_errno_retry(error, &tries)) continue;
        if (error == EINVAL) { /* before Linux 5.14: touched one by one */
            for (uint64_t i = begin; i < end; i += PAGE_BYTES)
                (void)*(volatile const uint8_t *)(m->pages + i);
            break;
        }
        weir_status status = base_file_check(m->file, err);
        if (status != WEIR_OK) return status;
        char text[128];
        return base_fail(err, WEIR_ERR_IO,
                         "%s: %llu mapped bytes at offset %llu cannot be read: %s; check the disk",
                         base_file_path(m->file), (unsigned long long)(end - begin),
                         (unsigned long long)(m->offset + begin), base_errno_text(error, text));
    }
    return base_map_check(m, err);
}
