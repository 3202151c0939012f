/* What the process holds beside our allocations, and what the machine leaves us.
 *
 * A budget is for the whole process, so code, libraries, stacks and the heap's slack count. They are measured
 * when a plan is made: resident size less what the ledger says was allocated. Code that has not run yet will
 * still be touched, and the heap grows ragged; a margin stands for both. The estimate is steady: as long as
 * the measured size has left a quarter of the margin, the last estimate holds, so that a load with the
 * smallest budget of a plan made before it succeeds. What eats the margin between the two is mostly code that
 * runs for the first time (up to 0.55 MiB of it was seen), which is what the margin is for. */
#include "rt_internal.h"

#include <string.h>

/* Measured with the program `weir`: after planning, kernels, streamer and reader touch a third of this, and
 * what the kernel holds for us (stacks of threads, queues) a part of the rest. */
#define MARGIN_BYTES      (UINT64_C(1) << 20)
#define MARGIN_LEFT_BYTES (MARGIN_BYTES / 4)
/* Kept free inside a control group, where the kernel's own structures for us are counted too. */
#define CGROUP_RESERVE_MAX_BYTES (UINT64_C(64) << 20)
#define CGROUP_RESERVE_SHARE     16
/* R6.5 */
#define RAM_RESERVE_MIN_BYTES UINT64_C(2000000000)
#define RAM_RESERVE_SHARE     10
#define LEAST_RESERVE_SHARE   8

weir_status rt_process_bytes(weir_context *c, uint64_t *bytes, weir_error *err)
{
    const char *given = base_settings_get(c->settings, "memory.process");
    if (strcmp(given, "auto") != 0) return base_size_parse(given, bytes, err);
    if (c->process_is_fixed) {
        *bytes = c->process_bytes;
        return WEIR_OK;
    }
    base_process_memory now;
    weir_status status = base_process_memory_read(&now, err);
    if (status != WEIR_OK) return status;
    base_ledger_view ledger;
    base_ledger_read(c->env, &ledger);
    uint64_t ours = ledger.bytes - ledger.tag_bytes[BASE_TAG_PROCESS];
    uint64_t private_bytes = now.anon_bytes;
    uint64_t shared_bytes = now.rss_bytes > now.anon_bytes ? now.rss_bytes - now.anon_bytes : 0;
    uint64_t mapped = ledger.tag_bytes[BASE_TAG_WEIGHTS_MAPPED];
    shared_bytes -= base_min(shared_bytes, rt_add(mapped, now.shmem_bytes));
    ours -= mapped;
    /* Allocated and not yet touched memory may make ours the larger one. */
    uint64_t measured = shared_bytes + (private_bytes > ours ? private_bytes - ours : 0);
    bool holds =
        measured + MARGIN_LEFT_BYTES <= c->process_bytes && c->process_bytes <= measured + 4 * MARGIN_BYTES;
    /* With a model loaded, what it has not touched yet hides what the process holds. */
    if (c->n_loaded != 0 && measured + MARGIN_LEFT_BYTES <= c->process_bytes) holds = true;
    if (!holds) c->process_bytes = base_align_up(measured + MARGIN_BYTES, 4096);
    *bytes = c->process_bytes;
    return WEIR_OK;
}

void rt_ledger_read(const weir_context *c, base_ledger_view *out)
{
    base_ledger_read(c->env, out);
    out->bytes -= c->booked_bytes;
    out->tag_bytes[BASE_TAG_PROCESS] -= c->booked_bytes;
    for (const weir_model *m = c->loaded; m != NULL; m = m->next_loaded) {
        uint64_t answers, caches = rt_sessions_promised(m, &answers);
        out->bytes += caches + answers;
        out->tag_bytes[BASE_TAG_KV] += caches;
        out->tag_bytes[BASE_TAG_RUNTIME] += answers;
    }
    if (c->workers == NULL) return;
    uint64_t runtime, process;
    base_pool_bytes(base_pool_threads(c->workers), &runtime, &process);
    out->bytes -= runtime + process;
    out->tag_bytes[BASE_TAG_RUNTIME] -= runtime;
    out->tag_bytes[BASE_TAG_PROCESS] -= process;
}

weir_status rt_limits_read(const weir_context *c, base_memory_limits *out, weir_error *err)
{
    return base_memory_limits_read(c->env, base_settings_get(c->settings, "proc_root"),
                                   base_settings_get(c->settings, "cgroup_root"), out, err);
}

/* What stays free for others: R6.5, by itself never more than half of `there`, so that a small machine can
 * run at all. */
static weir_status ram_reserve(const weir_context *c, const base_memory_limits *limits, uint64_t there,
                               uint64_t *out, weir_error *err)
{
    const char *text = base_settings_get(c->settings, "compute.ram_reserve");
    if (strcmp(text, "auto") != 0) return base_size_parse(text, out, err);
    *out = base_max(RAM_RESERVE_MIN_BYTES, limits->total_bytes / RAM_RESERVE_SHARE);
    *out = base_min(*out, there / 2);
    return WEIR_OK;
}

weir_status rt_least_reserve(const weir_context *c, const base_memory_limits *limits, uint64_t own_bytes,
                             uint64_t *out, weir_error *err)
{
    uint64_t there = rt_mul(rt_add(limits->available_bytes, own_bytes), LEAST_RESERVE_SHARE);
    weir_status status = ram_reserve(c, limits, base_min(there, limits->total_bytes), out, err);
    if (status == WEIR_OK) *out /= LEAST_RESERVE_SHARE;
    return status;
}

weir_status rt_default_budget(const weir_context *c, const base_memory_limits *limits, uint64_t *budget,
                              uint64_t *reserve, weir_error *err)
{
    base_process_memory own;
    weir_status status = base_process_memory_read(&own, err);
    if (status != WEIR_OK) return status;
    /* Mapped code is page cache, which both figures count as free already; the rest of ours is given back.
     * The reserve goes by both, too: by what is free alone, it would go as others take that. */
    uint64_t machine = rt_add(limits->available_bytes, own.anon_bytes);
    status = ram_reserve(c, limits, machine, reserve, err);
    if (status != WEIR_OK) return status;
    uint64_t left = machine > *reserve ? machine - *reserve : 0;
    if (limits->cgroup_limit_bytes != UINT64_MAX && limits->cgroup_free_bytes != UINT64_MAX) {
        uint64_t keep = base_min(limits->cgroup_limit_bytes / CGROUP_RESERVE_SHARE, CGROUP_RESERVE_MAX_BYTES);
        uint64_t group =
            base_min(rt_add(limits->cgroup_free_bytes, own.anon_bytes), limits->cgroup_limit_bytes);
        group = group > keep ? group - keep : 0;
        if (group < left) {
            left = group;
            *reserve = keep;
        }
    }
    *budget = left;
    return WEIR_OK;
}
