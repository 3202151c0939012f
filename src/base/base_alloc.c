/* The ledger, and allocation through it.
 *
 * A small block is [header 16 bytes | payload]; the header remembers what was booked, so that base_free needs
 * no size. Both count. Pages have no header: they would lose their alignment. */
#define _GNU_SOURCE
#include "base_internal.h"

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C libraries do not know it */
#endif

#define PAGE_BYTES UINT64_C(4096)
#define HUGE_BYTES (UINT64_C(2) << 20)

struct base_ledger {
    pthread_mutex_t lock; /* held for every read and write of view; nothing else is locked under it */
    base_ledger_view view;
};

typedef struct block_header {
    uint64_t bytes; /* booked, header included */
    uint32_t tag;
    uint32_t unused;
} block_header;

_Static_assert(sizeof(block_header) == 16, "the payload must keep malloc's alignment of 16");

const char *base_tag_text(base_tag tag)
{
    switch (tag) {
#define TAG_TEXT(name, text)                                                                                 \
    case BASE_TAG_##name: return text;
        BASE_TAG_MAP(TAG_TEXT)
#undef TAG_TEXT
    case BASE_TAG_COUNT: break;
    }
    return "unknown";
}

const char *base_device_tag_text(base_device_tag tag)
{
    static const char *const texts[] = {
#define DEVICE_TAG_TEXT(name, text) text,
        BASE_DEVICE_TAG_MAP(DEVICE_TAG_TEXT)
#undef DEVICE_TAG_TEXT
    };
    return (unsigned)tag < BASE_DEVICE_TAG_COUNT ? texts[tag] : "unknown";
}

base_ledger *base_ledger_create(void)
{
    base_ledger *ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL) return NULL;
    if (pthread_mutex_init(&ledger->lock, NULL) != 0) {
        free(ledger);
        return NULL;
    }
    ledger->view.limit_bytes = UINT64_MAX;
    return ledger;
}

void base_ledger_destroy(base_ledger *ledger)
{
    if (ledger == NULL) return;
    pthread_mutex_destroy(&ledger->lock);
    free(ledger);
}

static weir_status fail_budget(weir_error *err, base_tag tag, uint64_t wanted, const base_ledger_view *v)
{
    char a[32], b[32], c[32], d[32];
    uint64_t free_bytes = v->limit_bytes > v->bytes ? v->limit_bytes - v->bytes : 0;
    uint64_t missing = wanted > free_bytes ? wanted - free_bytes : 0;
    return base_fail(err, WEIR_ERR_BUDGET,
                     "%s: wanted %s (%llu bytes), free %s of the budget of %s, missing %s; raise the memory "
                     "budget or use a shorter context",
                     base_tag_text(tag), base_size_text(wanted, a), (unsigned long long)wanted,
                     base_size_text(free_bytes, b), base_size_text(v->limit_bytes, c),
                     base_size_text(missing, d));
}

static weir_status fail_memory(base_env *env, weir_error *err, base_tag tag, uint64_t wanted)
{
    char a[32], b[32];
    base_ledger_view v;
    base_ledger_read(env, &v);
    const char *free_text = "unlimited";
    if (v.limit_bytes != UINT64_MAX)
        free_text = base_size_text(v.limit_bytes > v.bytes ? v.limit_bytes - v.bytes : 0, b);
    return base_fail(err, WEIR_ERR_OUT_OF_MEMORY,
                     "%s: the system refused %s (%llu bytes) although the budget had room (free: %s); close "
                     "other programs or lower the memory budget",
                     base_tag_text(tag), base_size_text(wanted, a), (unsigned long long)wanted, free_text);
}

/* Takes `minus` bytes from one tag and books `plus` under another in one step, so that a block that changes
 * its size is never counted twice. Nothing changes on failure. */
static weir_status ledger_change(base_env *env, base_tag from, uint64_t minus, base_tag to, uint64_t plus,
                                 weir_error *err)
{
    base_ledger *ledger = env->ledger;
    base_ledger_view *v = &ledger->view;
    weir_status status = WEIR_OK;
    uint64_t total = 0;
    pthread_mutex_lock(&ledger->lock);
    bool fits = base_add(v->bytes - minus, plus, &total) && (total <= v->limit_bytes || plus <= minus);
    if (fits) {
        v->bytes = total;
        v->tag_bytes[from] -= minus;
        v->tag_bytes[to] += plus;
        v->peak_bytes = base_max(v->peak_bytes, total);
        v->tag_peak_bytes[to] = base_max(v->tag_peak_bytes[to], v->tag_bytes[to]);
    } else {
        status = fail_budget(err, to, plus - minus, v);
    }
    pthread_mutex_unlock(&ledger->lock);
    return status;
}

weir_status base_ledger_set_limit(base_env *env, uint64_t limit_bytes, weir_error *err)
{
    base_ledger *ledger = env->ledger;
    weir_status status = WEIR_OK;
    char a[32], b[32];
    pthread_mutex_lock(&ledger->lock);
    if (ledger->view.bytes > limit_bytes) {
        status = base_fail(err, WEIR_ERR_BUDGET,
                           "a memory budget of %s was asked for, but %s are already in use; raise the budget "
                           "or release models first",
                           base_size_text(limit_bytes, a), base_size_text(ledger->view.bytes, b));
    } else {
        ledger->view.limit_bytes = limit_bytes;
    }
    pthread_mutex_unlock(&ledger->lock);
    return status;
}

weir_status base_ledger_reserve(base_env *env, base_tag tag, uint64_t bytes, weir_error *err)
{
    return ledger_change(env, tag, 0, tag, bytes, err);
}

void base_ledger_release(base_env *env, base_tag tag, uint64_t bytes)
{
    ledger_change(env, tag, bytes, tag, 0, NULL);
}

void base_ledger_book_device(base_env *env, base_device_tag tag, uint64_t bytes)
{
    base_ledger_view *v = &env->ledger->view;
    pthread_mutex_lock(&env->ledger->lock);
    v->device_bytes += bytes;
    v->device_tag_bytes[tag] += bytes;
    v->device_peak_bytes = base_max(v->device_peak_bytes, v->device_bytes);
    v->device_tag_peak_bytes[tag] = base_max(v->device_tag_peak_bytes[tag], v->device_tag_bytes[tag]);
    pthread_mutex_unlock(&env->ledger->lock);
}

void base_ledger_unbook_device(base_env *env, base_device_tag tag, uint64_t bytes)
{
    base_ledger_view *v = &env->ledger->view;
    pthread_mutex_lock(&env->ledger->lock);
    v->device_bytes -= bytes;
    v->device_tag_bytes[tag] -= bytes;
    pthread_mutex_unlock(&env->ledger->lock);
}

void base_ledger_read(const base_env *env, base_ledger_view *out)
{
    pthread_mutex_lock(&env->ledger->lock);
    *out = env->ledger->view;
    pthread_mutex_unlock(&env->ledger->lock);
}

void base_ledger_peak_reset(base_env *env)
{
    base_ledger_view *v = &env->ledger->view;
    pthread_mutex_lock(&env->ledger->lock);
    v->peak_bytes = v->bytes;
    for (int t = 0; t < BASE_TAG_COUNT; t++) v->tag_peak_bytes[t] = v->tag_bytes[t];
    v->device_peak_bytes = v->device_bytes;
    for (int t = 0; t < BASE_DEVICE_TAG_COUNT; t++) v->device_tag_peak_bytes[t] = v->device_tag_bytes[t];
    pthread_mutex_unlock(&env->ledger->lock);
}

static weir_status fail_overflow(weir_error *err, base_tag tag, uint64_t count, uint64_t size)
{
    return base_fail(err, WEIR_ERR_OUT_OF_MEMORY,
                     "%s: %llu x %llu bytes is more than an address can count; the input is not sensible",
                     base_tag_text(tag), (unsigned long long)count, (unsigned long long)size);
}

void *base_alloc(base_env *env, base_tag tag, size_t bytes, weir_error *err)
{
    uint64_t total;
    if (!base_add(bytes, sizeof(block_header), &total) || total > PTRDIFF_MAX) {
        fail_overflow(err, tag, 1, bytes);
        return NULL;
    }
    if (base_ledger_reserve(env, tag, total, err) != WEIR_OK) return NULL;
    block_header *h = base_fault(env, BASE_FAULT_HOST_ALLOC, NULL) ? NULL : calloc(1, total);
    if (h == NULL) {
        base_ledger_release(env, tag, total);
        fail_memory(env, err, tag, total);
        return NULL;
    }
    h->bytes = total;
    h->tag = tag;
    return h + 1;
}

void *base_alloc_array(base_env *env, base_tag tag, size_t count, size_t size, weir_error *err)
{
    uint64_t bytes;
    if (!base_mul(count, size, &bytes) || bytes > PTRDIFF_MAX) {
        fail_overflow(err, tag, count, size);
        return NULL;
    }
    return base_alloc(env, tag, bytes, err);
}

void *base_realloc(base_env *env, base_tag tag, void *p, size_t bytes, weir_error *err)
{
    if (p == NULL) return base_alloc(env, tag, bytes, err);
    uint64_t total;
    if (!base_add(bytes, sizeof(block_header), &total) || total > PTRDIFF_MAX) {
        fail_overflow(err, tag, 1, bytes);
        return NULL;
    }
    block_header *old = (block_header *)p - 1;
    uint64_t old_bytes = old->bytes;
    base_tag old_tag = old->tag;
    if (ledger_change(env, old_tag, old_bytes, tag, total, err) != WEIR_OK) return NULL;
    block_header *h = base_fault(env, BASE_FAULT_HOST_ALLOC, NULL) ? NULL : realloc(old, total);
    if (h == NULL) {
        /* Back to what it was, whatever the limit says: the old block still stands. */
        pthread_mutex_lock(&env->ledger->lock);
        env->ledger->view.bytes += old_bytes - total;
        env->ledger->view.tag_bytes[tag] -= total;
        env->ledger->view.tag_bytes[old_tag] += old_bytes;
        pthread_mutex_unlock(&env->ledger->lock);
        fail_memory(env, err, tag, total);
        return NULL;
    }
    h->bytes = total;
    h->tag = tag;
    return h + 1;
}

void base_free(base_env *env, void *p)
{
    if (p == NULL) return;
    block_header *h = (block_header *)p - 1;
    base_tag tag = h->tag;
    uint64_t bytes = h->bytes;
    free(h);
    base_ledger_release(env, tag, bytes);
}

char *base_strdup(base_env *env, base_tag tag, const char *text, weir_error *err)
{
    return base_strndup(env, tag, text, strlen(text), err);
}

char *base_strndup(base_env *env, base_tag tag, const char *text, size_t bytes, weir_error *err)
{
    size_t n = strnlen(text, bytes);
    char *copy = base_alloc(env, tag, n + 1, err);
    if (copy != NULL) memcpy(copy, text, n);
    return copy;
}

static uint64_t page_bytes(uint64_t bytes)
{
    return base_align_up(base_max(bytes, 1), PAGE_BYTES);
}

/* Maps `bytes` at a multiple of HUGE_BYTES: maps more, then gives back what sticks out at both ends. */
static void *map_aligned(uint64_t bytes)
{
    uint64_t mapped_bytes = bytes + HUGE_BYTES;
    char *mapped = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return MAP_FAILED;
    uint64_t head = base_align_up((uintptr_t)mapped, HUGE_BYTES) - (uintptr_t)mapped;
    uint64_t tail = mapped_bytes - head - bytes;
    if (head != 0) munmap(mapped, head);
    if (tail != 0) munmap(mapped + head + bytes, tail);
    /* A hint: without transparent huge pages everything works, only slower. */
    madvise(mapped + head, bytes, MADV_HUGEPAGE);
    return mapped + head;
}

/* Puts pages into memory now: a lack of it is an error now and not a signal later. */
static bool make_present(char *p, uint64_t bytes)
{
    if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;
    /* Before Linux 5.14. */
    for (uint64_t i = 0; i < bytes; i += PAGE_BYTES) *(volatile char *)(p + i) = 0;
    return true;
}

static void *map_pages(uint64_t bytes, bool huge, bool present)
{
    void *p = huge ? map_aligned(bytes)
                   : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || !present || make_present(p, bytes)) return p;
    munmap(p, bytes);
    return MAP_FAILED;
}

static void *alloc_pages(base_env *env, base_tag tag, uint64_t bytes, bool huge, bool present,
                         weir_error *err)
{
    if (bytes > PTRDIFF_MAX - 2 * HUGE_BYTES) {
        fail_overflow(err, tag, 1, bytes);
        return NULL;
    }
    uint64_t total = page_bytes(bytes);
    bool large = huge && total >= HUGE_BYTES;
    if (base_ledger_reserve(env, tag, total, err) != WEIR_OK) return NULL;
    void *p = MAP_FAILED;
    if (!base_fault(env, BASE_FAULT_HOST_ALLOC, NULL)) p = map_pages(total, large, present || !large);
    if (p == MAP_FAILED) {
        base_ledger_release(env, tag, total);
        fail_memory(env, err, tag, total);
        return NULL;
    }
    return p;
}

void *base_pages_alloc(base_env *env, base_tag tag, uint64_t bytes, bool huge, weir_error *err)
{
    return alloc_pages(env, tag, bytes, huge, !huge, err);
}

void *base_pages_alloc_present(base_env *env, base_tag tag, uint64_t bytes, weir_error *err)
{
    return alloc_pages(env, tag, bytes, true, true, err);
}

void base_pages_free(base_env *env, base_tag tag, void *p, uint64_t bytes)
{
    if (p == NULL) return;
    uint64_t total = page_bytes(bytes);
    munmap(p, total);
    base_ledger_release(env, tag, total);
}

/* Moves a mapping to a longer one; its own length in place where the addresses behind it are free. */
static void *map_longer(void *p, uint64_t bytes, uint64_t new_bytes)
{
    void *here = mremap(p, bytes, new_bytes, 0);
    if (here == MAP_FAILED) {
        /* The new range is ours before the old one moves there: nobody else can take it between. */
        void *there = map_aligned(new_bytes);
        if (there == MAP_FAILED) return MAP_FAILED;
        here = mremap(p, bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there);
        if (here == MAP_FAILED) munmap(there, new_bytes);
    }
    if (here != MAP_FAILED && new_bytes >= HUGE_BYTES) madvise(here, new_bytes, MADV_HUGEPAGE);
    return here;
}

void *base_pages_resize(base_env *env, base_tag tag, void *p, uint64_t bytes, uint64_t new_bytes,
                        weir_error *err)
{
    if (new_bytes > PTRDIFF_MAX - 2 * HUGE_BYTES) {
        fail_overflow(err, tag, 1, new_bytes);
        return NULL;
    }
    uint64_t old = page_bytes(bytes), total = page_bytes(new_bytes);
    if (total < old) {
        munmap((char *)p + total, old - total);
        base_ledger_release(env, tag, old - total);
    }
    if (total <= old) return p;
    if (base_ledger_reserve(env, tag, total - old, err) != WEIR_OK) return NULL;
    void *longer = MAP_FAILED;
    if (!base_fault(env, BASE_FAULT_HOST_ALLOC, NULL)) longer = map_longer(p, old, total);
    if (longer != MAP_FAILED) return longer;
    base_ledger_release(env, tag, total - old);
    fail_memory(env, err, tag, total - old);
    return NULL;
}

void base_heap_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
