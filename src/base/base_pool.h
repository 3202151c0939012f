/* A pool of workers for work that is split by output element. Workers spin briefly, then sleep. The caller
 * is worker 0; with one thread everything runs inline. Several may share a pool, each with as many of its
 * threads as it likes: runs of callers on different threads take turns, so that no more threads than these
 * compute at a time. */
#ifndef WEIR_BASE_POOL_H
#define WEIR_BASE_POOL_H

#include "base_cpus.h"

typedef struct base_pool base_pool;

/* Handles items [begin, end) on worker `worker` (0 .. threads-1). Must not fail. */
typedef void (*base_task_fn)(void *arg, uint32_t worker, size_t begin, size_t end);

/* n_threads 1..256, the caller counted. Errors: THREAD, OUT_OF_MEMORY, BUDGET. Stacks are 256 KiB, booked
 * under PROCESS. Workers only spin where each thread of a run has a processor of its own, and never longer
 * than some 40 microseconds after their last run. */
weir_status base_pool_create(base_env *env, uint32_t n_threads, base_pool **out, weir_error *err);
void base_pool_destroy(base_pool *pool); /* takes NULL; nobody runs */
/* Another number of threads, between two runs; the owner's call, while others may run. As create fails; the
 * pool is then as before. */
weir_status base_pool_resize(base_pool *pool, uint32_t n_threads, weir_error *err);
/* Binds the workers to processors from the next run on; cheap where they are bound to these. n = 0: to all
 * that their creator was allowed, as at first. The caller, worker 0, binds itself while it computes
 * (base_cpus_bind). */
void base_pool_bind(base_pool *pool, const base_cpus *cpus);
uint32_t base_pool_threads(const base_pool *pool); /* the owner's call */
/* What a pool of n_threads holds in the ledger: under RUNTIME and under PROCESS. */
void base_pool_bytes(uint32_t n_threads, uint64_t *runtime_bytes, uint64_t *process_bytes);
/* Runs fn over [0, n) in pieces of `grain` items on at most the first n_threads threads; returns when all are
 * done. A worker takes the pieces of its own stretch first, in order (the same stretch for the same n, grain
 * and threads), then what others have left. fn must not run the pool, and must not wait for anybody who
 * might.
 */
void base_pool_run_on(base_pool *pool, uint32_t n_threads, base_task_fn fn, void *arg, size_t n,
                      size_t grain);
/* On all. */
static inline void base_pool_run(base_pool *pool, base_task_fn fn, void *arg, size_t n, size_t grain)
{
    base_pool_run_on(pool, UINT32_MAX, fn, arg, n, grain);
}
/* Processors this process may use (affinity mask and cgroup quota counted), at least 1. */
uint32_t base_cpu_count(void);

#endif
