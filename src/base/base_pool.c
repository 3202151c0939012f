/* Workers that split loops. Each begins with a stretch of its own, the same for the same loop, so that what
 * it left in its cache in one run is there for it in the next; who is done helps the others.
 *
 * A decode step does hundreds of runs of a few microseconds each, so a run must cost next to nothing. All of
 * its state that changes is one word, the gate:
 *
 *     | generation (32 bits) | open (1 bit) | threads (15 bits) | workers inside (16 bits) |
 *
 * The caller writes the task, opens the gate under a new generation and works itself. A worker that sees an
 * open gate of a new generation, and is one of so many threads, enters by compare-and-swap, takes pieces
 * until none is left, and leaves. The caller, out of pieces, shuts the gate and waits for those inside only:
 * a worker that is asleep or was never scheduled does not delay the run, and cannot enter any more. Whoever
 * leaves last after the shutting wakes the caller, if it sleeps.
 *
 * The task's fields are plain: they are written while nobody is inside and read only inside.
 *
 * Callers beside each other take turns, run by run, asleep while they wait. A caller that went ahead alone
 * instead would be one more busy thread than there are processors; who of the others then loses its
 * processor in the middle of a piece keeps a whole run waiting for a time slice, a thousand times what a run
 * takes. Waiting cannot deadlock: a task takes no lock that is held over a run, and starts no run itself. */
#define _GNU_SOURCE
#include "base_pool.h"
#include "base_internal.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS   256
#define POOL_BYTES    base_align_up(sizeof(base_pool), 4096) /* as pages are booked */
#define STACK_BYTES   ((size_t)256 << 10)
#define CACHE_LINE    64
#define SPIN_NS       40000 /* longer than the serial work between two runs of a small model */
#define SPINS_A_CHECK 32

#define GATE_OPEN     (UINT64_C(1) << 31)
#define GATE_THREADS  16 /* shift */
#define GATE_INSIDE   ((UINT64_C(1) << GATE_THREADS) - 1)
#define GATE_STEP     (UINT64_C(1) << 32)
/* Sleeping workers are told apart by a bit each; those from the last bit on share it. */
#define LAST_BIT 31u

/* A worker and its stretch of pieces; a line of its own, since others take from it only at the end. */
typedef struct pool_worker {
    _Alignas(CACHE_LINE) _Atomic size_t next_piece;
    size_t end_piece;
    base_pool *pool;
    pthread_t thread;
    uint32_t index;
    uint32_t first_seen;     /* generation at its start */
    _Atomic uint32_t asleep; /* or about to be */
} pool_worker;

struct base_pool {
    base_env *env;
    pthread_mutex_t turn;  /* held for a run and for a change; guards all below but for atomics */
    uint32_t n_threads;    /* that there are, with the caller */
    uint32_t n_processors; /* more threads than these never spin */
    base_cpus cpus;        /* n = 0: nobody is bound */
    base_affinity unbound; /* what workers may use where nobody is bound */
    base_task_fn fn;
    void *arg;
    size_t n;
    size_t grain;
    uint32_t n_used; /* threads of this run */
    _Alignas(CACHE_LINE) _Atomic uint64_t gate;
    _Alignas(CACHE_LINE) _Atomic uint32_t alarm; /* futex word of the workers: changes to wake them */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t all_left;        /* futex word of the caller */
    _Atomic uint32_t n_wanted;        /* workers from here on end */
    pool_worker workers[MAX_THREADS]; /* n_threads of them live; a fixed array, so that it never moves */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint32_t bits)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, bits);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count, uint32_t bits)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_BITSET_PRIVATE, count, NULL, NULL, bits);
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
    for (uint32_t i = worker; i < p->n_used; i++) take_from(p, &p->workers[i], worker);
    for (uint32_t i = 0; i < worker; i++) take_from(p, &p->workers[i], worker);
}

/* Stretches of about equally many pieces. */
static void share_out(base_pool *p, size_t n_pieces)
{
    size_t each = n_pieces / p->n_used, more = n_pieces % p->n_used, at = 0;
    for (uint32_t i = 0; i < p->n_used; i++) {
        atomic_store_explicit(&p->workers[i].next_piece, at, memory_order_relaxed);
        at += each + (i < more);
        p->workers[i].end_piece = at;
    }
}

static uint32_t threads_of(uint64_t gate)
{
    return (uint32_t)((gate & (GATE_OPEN - 1)) >> GATE_THREADS);
}

/* True when the gate has a generation other than `seen`, is open and for this worker: something to do. A run
 * that came and went meanwhile, or is for fewer, is only noted. */
static bool gate_calls(uint64_t gate, uint32_t worker, uint32_t *seen)
{
    uint32_t generation = (uint32_t)(gate >> 32);
    if (generation == *seen) return false;
    if ((gate & GATE_OPEN) != 0 && worker < threads_of(gate)) return true;
    *seen = generation;
    return false;
}

static int64_t spin_ns(const base_pool *p, uint32_t n_threads)
{
    /* A worker that spins on the processor of one that has work only delays it. */
    return n_threads <= p->n_processors ? SPIN_NS : 0;
}

/* Waits until a run can be entered or the worker is to end: spins so long, then sleeps. */
static bool wait_for_run(base_pool *p, pool_worker *w, uint32_t *seen, int64_t spin)
{
    uint32_t bit = UINT32_C(1) << base_min(w->index, LAST_BIT);
    int64_t until = spin != 0 ? now_ns() + spin : 0;
    for (;;) {
        if (atomic_load_explicit(&p->n_wanted, memory_order_acquire) <= w->index) return false;
        if (spin != 0) {
            do {
                for (int i = 0; i < SPINS_A_CHECK; i++) {
                    if (gate_calls(atomic_load_explicit(&p->gate, memory_order_acquire), w->index, seen))
                        return true;
                    relax();
                }
            } while (now_ns() < until);
        }
        /* First the announcement, then the last look; the caller does the reverse, so one of us sees the
         * other. */
        uint32_t alarm = atomic_load(&p->alarm);
        atomic_store(&w->asleep, 1);
        bool calls = gate_calls(atomic_load(&p->gate), w->index, seen);
        if (!calls && atomic_load(&p->n_wanted) > w->index) futex_wait(&p->alarm, alarm, bit);
        atomic_store(&w->asleep, 0);
        if (calls || gate_calls(atomic_load(&p->gate), w->index, seen)) return true;
        until = 0; /* woken for nothing: one short look, then back to sleep */
    }
}

/* The threads of the run that was entered; 0: it is over. */
static uint32_t enter(base_pool *p, uint32_t worker, uint32_t *seen)
{
    uint64_t gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    while (gate_calls(gate, worker, seen)) {
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *seen = (uint32_t)(gate >> 32);
            return threads_of(gate);
        }
    }
    return 0;
}

static void leave(base_pool *p)
{
    uint64_t before = atomic_fetch_sub(&p->gate, 1);
    bool last = (before & GATE_OPEN) == 0 && (before & GATE_INSIDE) == 1;
    if (last && atomic_load(&p->caller_sleeps) != 0) {
        atomic_fetch_add(&p->all_left, 1);
        futex_wake(&p->all_left, 1, FUTEX_BITSET_MATCH_ANY);
    }
}

static void *worker_main(void *arg)
{
    pool_worker *w = arg;
    base_pool *p = w->pool;
    uint32_t seen = w->first_seen;
    int64_t spin = 0;
    while (wait_for_run(p, w, &seen, spin)) {
        uint32_t n_threads = enter(p, w->index, &seen);
        if (n_threads == 0) continue;
        spin = spin_ns(p, n_threads);
        take_pieces(p, w->index);
        leave(p);
    }
    return NULL;
}

/* ---- changes; the turn is held ---- */

static void end_workers(base_pool *p, uint32_t n_threads)
{
    if (n_threads >= p->n_threads) return;
    atomic_store(&p->n_wanted, n_threads);
    atomic_fetch_add(&p->alarm, 1);
    futex_wake(&p->alarm, MAX_THREADS, FUTEX_BITSET_MATCH_ANY);
    for (uint32_t i = n_threads; i < p->n_threads; i++)
        base_thread_join(p->env, p->workers[i].thread, STACK_BYTES);
    p->n_threads = n_threads;
}

/* Those that were there stay where one cannot be started. */
static weir_status start_workers(base_pool *p, uint32_t n_threads, weir_error *err)
{
    uint32_t before = p->n_threads;
    if (n_threads <= before) return WEIR_OK;
    atomic_store(&p->n_wanted, n_threads);
    for (uint32_t i = before; i < n_threads; i++) {
        pool_worker *w = &p->workers[i];
        char name[16];
        snprintf(name, sizeof name, "weir-work-%u", i);
        *w = (pool_worker){.pool = p,
                           .index = i,
                           .first_seen =
                               (uint32_t)(atomic_load_explicit(&p->gate, memory_order_relaxed) >> 32)};
        weir_status status = base_thread_start(p->env, worker_main, w, name, STACK_BYTES, &w->thread, err);
        if (status != WEIR_OK) {
            end_workers(p, before);
            return status;
        }
        p->n_threads = i + 1;
    }
    return WEIR_OK;
}

static void bind_workers(base_pool *p)
{
    p->n_processors = base_cpu_count();
    if (p->cpus.n != 0) p->n_processors = (uint32_t)base_min(p->n_processors, p->cpus.n);
    for (uint32_t i = 1; i < p->n_threads; i++)
        base_cpus_bind_thread(p->workers[i].thread, &p->cpus, i, p->n_threads, &p->unbound);
}

weir_status base_pool_resize(base_pool *p, uint32_t n_threads, weir_error *err)
{
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%u threads: between 1 and %d are possible",
                         n_threads, MAX_THREADS);
    pthread_mutex_lock(&p->turn);
    weir_status status = start_workers(p, n_threads, err);
    if (status == WEIR_OK) {
        end_workers(p, n_threads);
        bind_workers(p);
    }
    pthread_mutex_unlock(&p->turn);
    return status;
}

static bool same_cpus(const base_cpus *a, const base_cpus *b)
{
    return a->n == b->n && memcmp(a->index, b->index, a->n * sizeof *a->index) == 0;
}

void base_pool_bind(base_pool *p, const base_cpus *cpus)
{
    pthread_mutex_lock(&p->turn);
    if (!same_cpus(&p->cpus, cpus)) {
        p->cpus = *cpus;
        bind_workers(p);
    }
    pthread_mutex_unlock(&p->turn);
}

weir_status base_pool_create(base_env *env, uint32_t n_threads, base_pool **out, weir_error *err)
{
    weir_error local = {0};
    base_pool *p = base_pages_alloc(env, BASE_TAG_RUNTIME, POOL_BYTES, false, &local);
    if (p == NULL) goto fail;
    p->env = env;
    p->n_threads = 1;
    pthread_mutex_init(&p->turn, NULL);
    base_affinity_read(&p->unbound);
    if (base_pool_resize(p, n_threads, &local) != WEIR_OK) goto fail;
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
    end_workers(p, 1);
    pthread_mutex_destroy(&p->turn);
    base_pages_free(p->env, BASE_TAG_RUNTIME, p, POOL_BYTES);
}

uint32_t base_pool_threads(const base_pool *pool)
{
    return pool->n_threads;
}

void base_pool_bytes(uint32_t n_threads, uint64_t *runtime_bytes, uint64_t *process_bytes)
{
    *runtime_bytes = POOL_BYTES;
    *process_bytes = (uint64_t)(n_threads - 1) * STACK_BYTES;
}

/* Shuts the gate and waits until nobody is inside. */
static void finish_run(base_pool *p)
{
    uint64_t gate = atomic_fetch_and(&p->gate, ~GATE_OPEN);
    if ((gate & GATE_INSIDE) == 0) return;
    int64_t spin = spin_ns(p, p->n_used), until = spin != 0 ? now_ns() + spin : 0;
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
        futex_wait(&p->all_left, seen, FUTEX_BITSET_MATCH_ANY);
    }
    atomic_store(&p->caller_sleeps, 0);
}

/* Wakes as many of the run's workers that sleep as there are pieces for, and none of the others. */
static void wake(base_pool *p, size_t n_pieces)
{
    uint32_t asleep = 0, bits = FUTEX_BITSET_MATCH_ANY;
    for (uint32_t i = 1; i < p->n_used; i++) asleep += atomic_load(&p->workers[i].asleep);
    if (asleep == 0) return;
    uint32_t count = (uint32_t)base_min(n_pieces - 1, asleep);
    if (p->n_used < p->n_threads) {
        if (p->n_used <= LAST_BIT)
            bits = (UINT32_C(1) << p->n_used) - 1;
        else
            count = MAX_THREADS; /* the last bit is also that of workers which have nothing to do here */
    }
    atomic_fetch_add(&p->alarm, 1);
    futex_wake(&p->alarm, count, bits);
}

static void run_alone(base_task_fn fn, void *arg, size_t n, size_t grain)
{
    for (size_t begin = 0; begin < n;) {
        size_t end = n - begin > grain ? begin + grain : n;
        fn(arg, 0, begin, end);
        begin = end;
    }
}

static void run_together(base_pool *p, base_task_fn fn, void *arg, size_t n, size_t grain)
{
    size_t n_pieces = (n - 1) / grain + 1;
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    share_out(p, n_pieces);
    uint64_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    atomic_store(&p->gate,
                 (gate & ~(GATE_STEP - 1)) + GATE_STEP + GATE_OPEN + ((uint64_t)p->n_used << GATE_THREADS));
    wake(p, n_pieces);
    take_pieces(p, 0);
    finish_run(p);
}

void base_pool_run_on(base_pool *p, uint32_t n_threads, base_task_fn fn, void *arg, size_t n, size_t grain)
{
    if (n == 0) return;
    if (grain == 0) grain = 1;
    if (n_threads <= 1 || n <= grain) {
        run_alone(fn, arg, n, grain);
        return;
    }
    pthread_mutex_lock(&p->turn);
    p->n_used = (uint32_t)base_min(n_threads, p->n_threads);
    if (p->n_used == 1)
        run_alone(fn, arg, n, grain);
    else
        run_together(p, fn, arg, n, grain);
    pthread_mutex_unlock(&p->turn);
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
