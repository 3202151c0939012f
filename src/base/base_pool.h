/* A pool of workers for work that is split by output element. Workers spin briefly, then sleep. The caller
 * is worker 0; a pool of one thread runs everything inline. One run at a time (the owner's thread). */
#ifndef WEIR_BASE_POOL_H
#define WEIR_BASE_POOL_H

#include "base_cpus.h"

typedef struct base_pool base_pool;

/* Handles items [begin, end) on worker `worker` (0 .. threads-1). Must not fail. */
typedef void (*base_task_fn)(void *arg, uint32_t worker, size_t begin, size_t end);

/* n_threads 1..256. Errors: THREAD, OUT_OF_MEMORY. Stacks are 256 KiB, booked under PROCESS. cpus: what
 * workers are bound to (the caller, worker 0, binds itself while it computes: base_cpus_bind); NULL: nothing.
 * Workers only spin where each has a processor of its own, and never longer than some 40 microseconds after
 * their last run. */
weir_status base_pool_create_on(base_env *env, uint32_t n_threads, const base_cpus *cpus, base_pool **out,
                                weir_error *err);
static inline weir_status base_pool_create(base_env *env, uint32_t n_threads, base_pool **out,
                                           weir_error *err)
{
    return base_pool_create_on(env, n_threads, NULL, out, err);
}
void base_pool_destroy(base_pool *pool); /* takes NULL */
uint32_t base_pool_threads(const base_pool *pool);
/* Runs fn over [0, n) in pieces of `grain` items; returns when all are done. A worker takes the pieces of its
 * own stretch first, in order (the same stretch for the same n and grain), then what others have left. */
void base_pool_run(base_pool *pool, base_task_fn fn, void *arg, size_t n, size_t grain);
/* Processors this process may use (affinity mask and cgroup quota counted), at least 1. */
uint32_t base_cpu_count(void);

#endif
