/* The threads that compute: one pool for all of a context, which its language models (a model and its draft,
 * too), its public managers on the CPU and its measurements share. It has as many threads as the user that
 * wants most, and each user's runs go to so many of them as it asked for. So however many models are loaded,
 * the threads that compute at a time are those of one, and who has not to compute costs nothing but stacks.
 * Runs of users on different threads take turns (base_pool.h).
 *
 * Their number changes in turns (rt_enter) and behind the run that is going on. */
#include "rt_internal.h"

static uint32_t most_threads(const weir_context *c, const rt_crew *but)
{
    uint32_t n = 0;
    for (const rt_crew *u = c->crews; u != NULL; u = u->next)
        if (u != but) n = (uint32_t)base_max(n, u->n_threads);
    return n;
}

uint32_t rt_workers_usual(const base_cpus *cpus)
{
    return (uint32_t)base_min(cpus->n != 0 ? cpus->n : base_cpu_count(), RT_THREADS_MAX);
}

weir_status rt_workers_join(weir_context *c, rt_crew *crew, uint32_t n_threads, const base_cpus *cpus,
                            weir_error *err)
{
    weir_status status = WEIR_OK;
    if (c->workers == NULL)
        status = base_pool_create(c->env, n_threads, &c->workers, err);
    else if (base_pool_threads(c->workers) < n_threads)
        status = base_pool_resize(c->workers, n_threads, err);
    if (status != WEIR_OK) return status;
    if (cpus != NULL) base_pool_bind(c->workers, cpus);
    *crew = (rt_crew){.next = c->crews, .n_threads = n_threads};
    c->crews = crew;
    return WEIR_OK;
}

void rt_workers_leave(weir_context *c, rt_crew *crew)
{
    weir_error none;
    if (crew->n_threads == 0) return;
    rt_crew **at = &c->crews;
    while (*at != crew) at = &(*at)->next;
    *at = crew->next;
    crew->n_threads = 0;
    uint32_t n = most_threads(c, NULL);
    if (n == 0) {
        base_pool_destroy(c->workers);
        c->workers = NULL;
    } else if (n < base_pool_threads(c->workers)) {
        base_pool_resize(c->workers, n, &none); /* fewer: cannot fail */
    }
}

void rt_workers_add(const weir_context *c, const rt_crew *but, base_ledger_view *view)
{
    uint64_t runtime, process;
    uint32_t n = most_threads(c, but);
    if (n == 0) return;
    base_pool_bytes(n, &runtime, &process);
    view->bytes += runtime + process;
    view->tag_bytes[BASE_TAG_RUNTIME] += runtime;
    view->tag_bytes[BASE_TAG_PROCESS] += process;
}

void rt_workers_bind(const weir_context *c, const base_cpus *cpus, uint32_t n_threads, base_affinity *before)
{
    base_pool_bind(c->workers, cpus);
    base_cpus_bind(cpus, 0, n_threads, before);
}
