/* One anonymous file mapped twice, and the handler that accesses to its closed pages need; built as that of
 * base_map.c: what it looks at is a global table, written under a lock and read without one. */
#define _GNU_SOURCE
#include "base_protect.h"
#include "base_internal.h"
#include "base_signal.h"
#include "base_system.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_RANGES 32

typedef struct closed_range {
    atomic_uintptr_t begin, end; /* equal: free */
    atomic_uintptr_t first;      /* where the first access was; 0: none */
    atomic_uint n;               /* accesses since the last heal */
} closed_range;

static void on_access(int sig, siginfo_t *info, void *context);

static struct {
    pthread_mutex_t lock; /* for adding and removing; the handler takes none */
    base_signal signal;
    closed_range ranges[MAX_RANGES];
} segv = {.lock = PTHREAD_MUTEX_INITIALIZER, .signal = {.number = SIGSEGV, .handler = on_access}};

struct base_protect {
    base_env *env;
    int fd;
    uint8_t *front, *back; /* equal where nothing can be closed */
    uint64_t bytes;
    closed_range *range; /* NULL then */
};

/* Other memory takes the page's place, and more pages each time, so that a loop over a large closed range
 * ends soon. Only system calls and atomics: this may run anywhere. */
static void on_access(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_RANGES; i++) {
        closed_range *r = &segv.ranges[i];
        uintptr_t begin = atomic_load(&r->begin), end = atomic_load(&r->end), none = 0;
        if (at < begin || at >= end) continue;
        atomic_compare_exchange_strong(&r->first, &none, at);
        unsigned n = atomic_fetch_add(&r->n, 1);
        uintptr_t page = at & ~(uintptr_t)(BASE_PROTECT_PAGE - 1);
        uint64_t bytes = (uint64_t)BASE_PROTECT_PAGE << (n < 16 ? n : 16);
        if (bytes > end - page) bytes = end - page;
        void *other = mmap((void *)page, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (other == MAP_FAILED) break;
        errno = saved;
        return;
    }
    (void)sig;
    base_signal_pass_on(&segv.signal, info, context);
    errno = saved;
}

/* Takes a free range; NULL when there is none. */
static closed_range *watch(uint8_t *front, uint64_t bytes)
{
    closed_range *found = NULL;
    pthread_mutex_lock(&segv.lock);
    for (int i = 0; i < MAX_RANGES && found == NULL; i++)
        if (atomic_load(&segv.ranges[i].end) == 0) found = &segv.ranges[i];
    if (found != NULL && !base_signal_take(&segv.signal)) found = NULL;
    if (found != NULL) {
        atomic_store(&found->first, 0);
        atomic_store(&found->n, 0);
        atomic_store(&found->begin, (uintptr_t)front);
        atomic_store(&found->end, (uintptr_t)front + bytes);
    }
    pthread_mutex_unlock(&segv.lock);
    return found;
}

static void unwatch(closed_range *range)
{
    pthread_mutex_lock(&segv.lock);
    atomic_store(&range->end, 0);
    atomic_store(&range->begin, 0);
    base_signal_give(&segv.signal);
    pthread_mutex_unlock(&segv.lock);
}

static weir_status refused(weir_error *err, weir_status code, const char *what, uint64_t bytes, int error)
{
    char text[128], size[32];
    return base_fail(err, code, "%s %s for the memory of a simulated device failed: %s", what,
                     base_size_text(bytes, size), base_errno_text(error, text));
}

weir_status base_protect_create(base_env *env, uint64_t address_bytes, bool closable, base_protect **out,
                                weir_error *err)
{
    weir_error local = {0};
    base_protect *p = base_alloc(env, BASE_TAG_RUNTIME, sizeof *p, &local);
    if (p == NULL) goto fail;
    *p = (base_protect){.env = env, .fd = -1, .bytes = base_align_up(address_bytes, BASE_PROTECT_PAGE)};
    p->fd = memfd_create("weir-device", MFD_CLOEXEC);
    if (p->fd < 0 || ftruncate(p->fd, (off_t)p->bytes) != 0) {
        refused(&local, WEIR_ERR_UNSUPPORTED, "reserving", p->bytes, errno);
        goto fail;
    }
    void *back = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd, 0);
    void *front = back;
    p->back = back != MAP_FAILED ? back : NULL;
    if (closable && back != MAP_FAILED)
        front = mmap(NULL, p->bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, p->fd, 0);
    p->front = front != MAP_FAILED ? front : NULL;
    if (p->front == NULL) {
        refused(&local, WEIR_ERR_OUT_OF_MEMORY, "mapping", p->bytes, errno);
        goto fail;
    }
    if (closable) p->range = watch(p->front, p->bytes);
    if (closable && p->range == NULL) {
        base_fail(&local, WEIR_ERR_UNSUPPORTED, "more than %d strict simulated devices at once", MAX_RANGES);
        goto fail;
    }
    *out = p;
    return WEIR_OK;

fail:
    base_protect_destroy(p);
    if (err != NULL) *err = local;
    return local.code;
}

void base_protect_destroy(base_protect *p)
{
    if (p == NULL) return;
    if (p->range != NULL) unwatch(p->range);
    if (p->back != NULL) {
        base_process_shrink_begin();
        if (p->front != NULL && p->front != p->back) munmap(p->front, p->bytes);
        munmap(p->back, p->bytes);
        base_process_shrink_end();
    }
    if (p->fd >= 0) close(p->fd);
    base_free(p->env, p);
}

uint8_t *base_protect_front(const base_protect *p)
{
    return p->front;
}

uint8_t *base_protect_back(const base_protect *p)
{
    return p->back;
}

weir_status base_protect_commit(base_protect *p, uint64_t begin, uint64_t bytes, weir_error *err)
{
    int tries = 0;
    base_process_peak_keep();
    while (fallocate(p->fd, 0, (off_t)begin, (off_t)bytes) != 0) {
        int error = errno;
        if (error == EINTR && base_errno_retry(error, &tries)) continue;
        base_protect_drop(p, begin, bytes);
        return refused(err, WEIR_ERR_OUT_OF_MEMORY, "taking", bytes, error);
    }
    return WEIR_OK;
}

void base_protect_drop(base_protect *p, uint64_t begin, uint64_t bytes)
{
    base_protect_set(p, begin, bytes, false, NULL);
    base_process_shrink_begin();
    fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)bytes);
    base_process_shrink_end();
}

weir_status base_protect_set(base_protect *p, uint64_t begin, uint64_t bytes, bool open, weir_error *err)
{
    if (p->range == NULL) return WEIR_OK;
    if (mprotect(p->front + begin, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0) return WEIR_OK;
    return refused(err, WEIR_ERR_DEVICE, open ? "opening" : "closing", bytes, errno);
}

bool base_protect_touched(const base_protect *p, uint64_t *where)
{
    uintptr_t first = p->range != NULL ? atomic_load(&p->range->first) : 0;
    if (first == 0) return false;
    *where = first - (uintptr_t)p->front;
    return true;
}

weir_status base_protect_heal(base_protect *p, weir_error *err)
{
    if (p->range == NULL) return WEIR_OK;
    base_process_shrink_begin();
    void *front = mmap(p->front, p->bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, p->fd, 0);
    base_process_shrink_end();
    if (front == MAP_FAILED) return refused(err, WEIR_ERR_DEVICE, "mapping", p->bytes, errno);
    atomic_store(&p->range->n, 0);
    atomic_store(&p->range->first, 0);
    return WEIR_OK;
}
