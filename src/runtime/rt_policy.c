/* The memory check: how memory is managed for models on devices, and which settings will surprise (R10.3). */
#include "rt_internal.h"

#include <string.h>

static void remark(weir_memory_check *k, bool holds, const char *text)
{
    if (holds && k->n_remarks < sizeof k->remarks / sizeof *k->remarks) k->remarks[k->n_remarks++] = text;
}

static void find_remarks(weir_memory_check *k, const mem_policy *p, const base_memory_limits *limits)
{
    uint64_t ram = base_min(limits->total_bytes, limits->cgroup_limit_bytes);
    bool streams_all = p->vram_mode == MEM_VRAM_LOW || p->vram_mode == MEM_VRAM_NONE;
    remark(
        k, p->vram_limit_bytes != 0 && p->vram_limit_bytes <= p->vram_reserve_bytes,
        "compute.vram_limit_mb is not above compute.vram_reserve_mb: nothing is left for weights, and every "
        "model gets its smallest working set");
    remark(k, streams_all, "compute.vram_mode lets all units stream, however much memory a device has");
    remark(k, p->host_copies == MEM_AUTO && !k->makes_host_copies,
           "free RAM is below compute.ram_reserve: no copies are kept there, units that stream come from "
           "storage");
    remark(k, p->host_copies == MEM_OFF,
           "compute.host_copies is off: units that stream come from storage each time");
    remark(k, p->max_pinned_bytes > ram, "compute.max_pinned_mb is more than the machine's RAM");
    remark(k, p->max_pinned_bytes < UINT64_C(2) << 20,
           "compute.max_pinned_mb is too small for staging: copies are synchronous");
    remark(k, p->async_offload == 0,
           "compute.async_offload is 0: each unit that streams is copied only when it is wanted");
    remark(k, p->oom_fallback, "compute.oom_fallback is on: a result may differ slightly, and then says so");
}

weir_status weir_memory_check_read(weir_context *c, weir_memory_check *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    mem_policy p;
    base_memory_limits limits;
    rt_device_options device; /* refuses a device that cannot be */
    weir_status status = mem_policy_read(&p, c->settings, err);
    if (status == WEIR_OK) status = rt_device_settings(c, NULL, &device, err);
    if (status == WEIR_OK) status = rt_limits_read(c, &limits, err);
    if (status != WEIR_OK) return status;
    mem_policy_resolve(&p, &limits);
    weir_memory_check k = {
        .struct_size = sizeof k,
        .device = base_settings_get(c->settings, "compute.device"),
        .vram_mode = mem_vram_mode_text(p.vram_mode),
        .vram_reserve_bytes = p.vram_reserve_bytes,
        .vram_limit_bytes = p.vram_limit_bytes,
        .ram_reserve_bytes = p.ram_reserve_bytes,
        .ram_free_bytes = base_min(limits.available_bytes, limits.cgroup_free_bytes),
        .host_copies = mem_switch_text(p.host_copies),
        .max_pinned_bytes = p.max_pinned_bytes,
        .copy_streams = 1,
        .copies_ahead = p.async_offload,
        .prefetch_sequence = mem_switch_text(p.prefetch_sequence),
        .oom_retry = p.oom_retry,
        .oom_fallback = p.oom_fallback,
        .jobs = p.gpu_jobs,
        .job_wait_s = p.wait_limit_s,
        .max_resident_models = p.max_resident_models,
        .pinned_models = p.pinned_models != NULL ? p.pinned_models : "",
    };
    k.makes_host_copies =
        p.vram_mode != MEM_VRAM_SHARED &&
        (p.host_copies == MEM_ON || (p.host_copies == MEM_AUTO && k.ram_free_bytes > k.ram_reserve_bytes));
    find_remarks(&k, &p, &limits);
    *out = k;
    return WEIR_OK;
}
