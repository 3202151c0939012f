/* Workers that split loops. Each begins with a stretch of its own, the same for the same loop, so that what
 * it left in its cache in one run is there for it in the next; who is done helps the others.
 *
 * A decode step does hundreds of runs of a few microseconds each, so a run must cost next to nothing. All of
 * its state that changes is one word, the gate:
 *
 *     | generation (32 bits) | open (1 bit) | workers inside (31 bits) |
 *
 * The caller writes the task, opens the gate under a new generation and works itself. A worker that sees an
 * open gate of a new generation enters by compare-and-swap, takes pieces until none is left, and leaves. The
 * caller, out of pieces, shuts the gate and waits for those inside only: a worker that is asleep or was never
 * scheduled does not delay the run, and cannot enter any more. Whoever leaves last after the shutting wakes
 * the caller, if it sleeps.
 *
 * The task's fields are plain: they are written while nobody is inside and read only inside. */
#define _GNU_SOURCE
#include "base_pool.h"
#include "base_internal.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS   256
#define STACK_BYTES   ((size_t)256 << 10)
#define CACHE_LINE    64
#define SPIN_NS       40000 /* longer than the serial work between two runs of a small model */
#define SPINS_A_CHECK 32

#define GATE_OPEN     (UINT64_C(1) << 31)
#define GATE_INSIDE   (GATE_OPEN - 1)
#define GATE_STEP     (UINT64_C(1) << 32)

/* A worker and its stretch of pieces; a line of its own, since others take from it only at the end. */
typedef struct pool_worker {
    _Alignas(CACHE_LINE) _Atomic size_t next_piece;
    size_t end_piece;
    base_pool *pool;
    pthread_t thread;
    uint32_t index;
} pool_worker;

struct base_pool {
    base_env *env;
    uint32_t n_threads;
    uint32_t n_started; /* threads that run: n_threads - 1 once created */
    int64_t spin_ns;
    base_cpus cpus; /* n = 0: nobody is bound */
    base_task_fn fn;
    void *arg;
    size_t n;
    size_t grain;
    _Alignas(CACHE_LINE) _Atomic uint64_t gate;
    _Alignas(CACHE_LINE) _Atomic uint32_t sleepers; /* workers that sleep or are about to */
    _Atomic uint32_t alarm;                         /* futex word of the workers: changes to wake them */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t all_left; /* futex word of the caller */
    _Atomic bool stop;
    pool_worker workers[]; /* n_threads */
};

static size_t pool_bytes(uint32_t n_threads)
{
    return sizeof(base_pool) + n_threads * sizeof(pool_worker);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void take_from(base_pool *p, pool_worker *owner, uint32_t worker)
{
    /* Looking first keeps the line with its owner. */
    while (atomic_load_explicit(&owner->next_piece, memory_order_relaxed) < owner->end_piece) {
        size_t piece = atomic_fetch_add_explicit(&owner->next_piece, 1, memory_order_relaxed);
        if (piece >= owner->end_piece) return;
        size_t begin = piece * p->grain;
        size_t end = p->n - begin > p->grain ? begin + p->grain : p->n;
        p->fn(p->arg, worker, begin, end);
    }
}

static void take_pieces(base_pool *p, uint32_t worker)
{
    for (uint32_t i = worker; i < p->n_threads; i++) take_from(p, &p->workers[i], worker);
    for (uint32_t i = 0; i < worker; i++) take_from(p, &p->workers[i], worker);
}

/* Stretches of about equally many pieces. */
static void share_out(base_pool *p, size_t n_pieces)
{
    size_t each = n_pieces / p->n_threads, more = n_pieces % p->n_threads, at = 0;
    for (uint32_t i = 0; i < p->n_threads; i++) {
        atomic_store_explicit(&p->workers[i].next_piece, at, memory_order_relaxed);
        at += each + (i < more);
        p->workers[i].end_piece = at;
    }
}

/* True when the gate has a generation other than `seen` and is open: something to do. A run that came and
 * went meanwhile is only noted. */
static bool gate_calls(uint64_t gate, uint32_t *seen)
{
    uint32_t generation = (uint32_t)(gate >> 32);
    if (generation == *seen) return false;
    if ((gate & GATE_OPEN) != 0) return true;
    *seen = generation;
    return false;
}

/* Waits until a run can be entered or the pool stops: spins, then sleeps. */
static bool wait_for_run(base_pool *p, uint32_t *seen)
{
    int64_t until = p->spin_ns != 0 ? now_ns() + p->spin_ns : 0;
    for (;;) {
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return false;
        if (p->spin_ns != 0) {
            do {
                for (int i = 0; i < SPINS_A_CHECK; i++) {
                    if (gate_calls(atomic_load_explicit(&p->gate, memory_order_acquire), seen)) return true;
                    relax();
                }
            } while (now_ns() < until);
        }
        /* First the announcement, then the last look; the caller does the reverse, so one of us sees the
         * other. */
        uint32_t alarm = atomic_load(&p->alarm);
        atomic_fetch_add(&p->sleepers, 1);
        bool calls = gate_calls(atomic_load(&p->gate), seen);
        if (!calls && !atomic_load(&p->stop)) futex_wait(&p->alarm, alarm);
        atomic_fetch_sub(&p->sleepers, 1);
        if (calls || gate_calls(atomic_load(&p->gate), seen)) return true;
        until = 0; /* woken for nothing: one short look, then back to sleep */
    }
}

static bool enter(base_pool *p, uint32_t *seen)
{
    uint64_t gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    while (gate_calls(gate, seen)) {
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *seen = (uint32_t)(gate >> 32);
            return true;
        }
    }
    return false;
}

static void leave(base_pool *p)
{
    uint64_t before = atomic_fetch_sub(&p->gate, 1);
    bool last = (before & GATE_OPEN) == 0 && (before & GATE_INSIDE) == 1;
    if (last && atomic_load(&p->caller_sleeps) != 0) {
        atomic_fetch_add(&p->all_left, 1);
        futex_wake(&p->all_left, 1);
    }
}

static void *worker_main(void *arg)
{
    pool_worker *w = arg;
    base_pool *p = w->pool;
    uint32_t seen = 0;
    base_cpus_bind(&p->cpus, w->index, p->n_threads, NULL);
    while (wait_for_run(p, &seen)) {
        if (!enter(p, &seen)) continue;
        take_pieces(p, w->index);
        leave(p);
    }
    return NULL;
}

weir_status base_pool_create_on(base_env *env, uint32_t n_threads, const base_cpus *cpus, base_pool **out,
                                weir_error *err)
{
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%u threads: between 1 and %d are possible",
                         n_threads, MAX_THREADS);
    weir_error local = {0};
    base_pool *p = base_pages_alloc(env, BASE_TAG_RUNTIME, pool_bytes(n_threads), false, &local);
    if (p == NULL) goto fail;
    p->env = env;
    p->n_threads = n_threads;
    /* A worker that spins on the processor of one that has work only delays it. */
    p->spin_ns = n_threads <= base_cpu_count() ? SPIN_NS : 0;
    if (cpus != NULL) p->cpus = *cpus;
    if (p->cpus.n != 0 && n_threads > p->cpus.n) p->spin_ns = 0;
    for (uint32_t i = 1; i < n_threads; i++) {
        pool_worker *w = &p->workers[i];
        char name[16];
        snprintf(name, sizeof name, "weir-work-%u", i);
        w->pool = p;
        w->index = i;
        if (base_thread_start(env, worker_main, w, name, STACK_BYTES, &w->thread, &local) != WEIR_OK)
            goto fail;
        p->n_started++;
    }
    *out = p;
    return WEIR_OK;

fail:
    base_pool_destroy(p);
    if (err != NULL) *err = local;
    return local.code;
}

void base_pool_destroy(base_pool *p)
{
    if (p == NULL) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->alarm, 1);
    futex_wake(&p->alarm, MAX_THREADS);
    for (uint32_t i = 1; i <= p->n_started; i++) {
        base_thread_join(p->env, p->workers[i].thread, STACK_BYTES);
    }
    base_env *env = p->env;
    base_pages_free(env, BASE_TAG_RUNTIME, p, pool_bytes(p->n_threads));
}

uint32_t base_pool_threads(const base_pool *pool)
{
    return pool->n_threads;
}

/* Shuts the gate and waits until nobody is inside. */
static void finish_run(base_pool *p)
{
    uint64_t gate = atomic_fetch_and(&p->gate, ~GATE_OPEN);
    if ((gate & GATE_INSIDE) == 0) return;
    int64_t until = p->spin_ns != 0 ? now_ns() + p->spin_ns : 0;
    do {
        for (int i = 0; i < SPINS_A_CHECK; i++) {
            if ((atomic_load_explicit(&p->gate, memory_order_acquire) & GATE_INSIDE) == 0) return;
            relax();
        }
    } while (until != 0 && now_ns() < until);
    atomic_store(&p->caller_sleeps, 1);
    for (;;) {
        uint32_t seen = atomic_load(&p->all_left);
        if ((atomic_load(&p->gate) & GATE_INSIDE) == 0) break;
        futex_wait(&p->all_left, seen);
    }
    atomic_store(&p->caller_sleeps, 0);
}

void base_pool_run(base_pool *p, base_task_fn fn, void *arg, size_t n, size_t grain)
{
    if (n == 0) return;
    if (grain == 0) grain = 1;
    size_t n_pieces = (n - 1) / grain + 1;
    if (p->n_started == 0 || n_pieces == 1) {
        for (size_t begin = 0; begin < n;) {
            size_t end = n - begin > grain ? begin + grain : n;
            fn(arg, 0, begin, end);
            begin = end;
        }
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    share_out(p, n_pieces);
    uint64_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    atomic_store(&p->gate, (gate & ~(GATE_STEP - 1)) + GATE_STEP + GATE_OPEN);
    if (atomic_load(&p->sleepers) != 0) {
        atomic_fetch_add(&p->alarm, 1);
        futex_wake(&p->alarm, (uint32_t)base_min(n_pieces - 1, p->n_started));
    }
    take_pieces(p, 0);
    finish_run(p);
}

uint32_t base_cpu_count(void)
{
    uint32_t n = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    if (n == 0) { /* more processors than the fixed set can name */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online > 0 ? (uint32_t)online : 1;
    }
    return (uint32_t)base_max(1, base_min(n, base_cgroup_cpus("/proc", "/sys/fs/cgroup")));
}
