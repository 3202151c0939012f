/* The memory manager's settings. */
#include "mgr_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MB UINT64_C(1000000)

static const char *const mode_texts[] = {"high", "auto", "low", "none", "shared"};

const char *mem_vram_mode_text(mem_vram_mode mode)
{
    return (unsigned)mode < sizeof mode_texts / sizeof *mode_texts ? mode_texts[mode] : "unknown";
}

const char *mem_switch_text(mem_switch s)
{
    return s == MEM_ON ? "on" : s == MEM_OFF ? "off" : "auto";
}

void mem_policy_resolve(mem_policy *p, const base_memory_limits *limits)
{
    uint64_t ram = base_min(limits->total_bytes, limits->cgroup_limit_bytes), four_gb = 4000 * MB;
    uint64_t most = base_max(ram / 5 * 2, base_min(ram / 10 * 9, ram > four_gb ? ram - four_gb : 0));
    if (p->max_pinned_bytes == UINT64_MAX) p->max_pinned_bytes = most;
    if (p->ram_reserve_bytes == UINT64_MAX) p->ram_reserve_bytes = base_max(2000 * MB, ram / 10);
}

void mem_policy_init(mem_policy *p)
{
    *p = (mem_policy){
        .vram_mode = MEM_VRAM_AUTO,
        .vram_reserve_bytes = 400 * MB,
        .ram_reserve_bytes = UINT64_MAX, /* by the machine's RAM */
        .max_pinned_bytes = UINT64_MAX,
        .async_offload = 2,
        .oom_retry = true,
        .gpu_jobs = 1,
        .wait_limit_s = 600,
    };
}

typedef struct reader {
    const base_settings *settings;
    weir_status status;
    weir_error *err;
} reader;

static void refuse(reader *r, const char *name, const char *text, const char *wanted)
{
    r->status =
        base_fail(r->err, WEIR_ERR_INVALID_ARGUMENT, "%s is \"%s\"; %s is possible", name, text, wanted);
}

static const char *text_of(const reader *r, const char *name)
{
    const char *text = base_settings_get(r->settings, name);
    return text != NULL ? text : "auto";
}

/* A number up to max, times unit; "auto" leaves *out. */
static void read_number(reader *r, const char *name, uint64_t max, uint64_t unit, uint64_t *out)
{
    const char *text = text_of(r, name);
    char *end, wanted[64];
    if (r->status != WEIR_OK || strcmp(text, "auto") == 0) return;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && value <= max && base_mul(value, unit, out))
        return;
    snprintf(wanted, sizeof wanted, "auto or a number from 0 to %llu", (unsigned long long)max);
    refuse(r, name, text, wanted);
}

static void read_switch(reader *r, const char *name, bool automatic, mem_switch *out)
{
    const char *text = text_of(r, name);
    if (r->status != WEIR_OK) return;
    if (strcmp(text, "on") == 0)
        *out = MEM_ON;
    else if (strcmp(text, "off") == 0)
        *out = MEM_OFF;
    else if (automatic && strcmp(text, "auto") == 0)
        *out = MEM_AUTO;
    else
        refuse(r, name, text, automatic ? "auto, on or off" : "on or off");
}

static void read_mode(reader *r, mem_vram_mode *out)
{
    const char *text = text_of(r, "compute.vram_mode");
    for (unsigned i = 0; i < sizeof mode_texts / sizeof *mode_texts; i++) {
        if (strcmp(text, mode_texts[i]) != 0) continue;
        *out = (mem_vram_mode)i;
        return;
    }
    refuse(r, "compute.vram_mode", text, "high, auto, low, none or shared");
}

weir_status mem_policy_read(mem_policy *p, const base_settings *settings, weir_error *err)
{
    reader r = {.settings = settings, .err = err};
    uint64_t jobs = 1, offload = 2, wait = 600, models = 0, max_mb = UINT64_MAX / MB;
    mem_switch retry = MEM_ON, fallback = MEM_OFF;
    mem_policy_init(p);
    read_mode(&r, &p->vram_mode);
    read_number(&r, "compute.vram_limit_mb", max_mb, MB, &p->vram_limit_bytes);
    read_number(&r, "compute.vram_reserve_mb", max_mb, MB, &p->vram_reserve_bytes);
    read_number(&r, "compute.max_pinned_mb", max_mb, MB, &p->max_pinned_bytes);
    read_number(&r, "compute.async_offload", MEM_MAX_OFFLOAD, 1, &offload);
    read_number(&r, "compute.gpu_jobs", 64, 1, &jobs);
    read_number(&r, "compute.job_wait_s", 86400, 1, &wait);
    read_number(&r, "compute.max_resident_models", 10000, 1, &models);
    read_switch(&r, "compute.host_copies", true, &p->host_copies);
    read_switch(&r, "compute.prefetch_sequence", true, &p->prefetch_sequence);
    read_switch(&r, "compute.oom_retry", false, &retry);
    read_switch(&r, "compute.oom_fallback", false, &fallback);
    const char *reserve = text_of(&r, "compute.ram_reserve");
    if (r.status == WEIR_OK && strcmp(reserve, "auto") != 0)
        r.status = base_size_parse(reserve, &p->ram_reserve_bytes, err);
    if (r.status == WEIR_OK && jobs == 0) refuse(&r, "compute.gpu_jobs", "0", "a number from 1 to 64");
    p->async_offload = (uint32_t)offload;
    p->gpu_jobs = (uint32_t)jobs;
    p->wait_limit_s = (double)wait;
    p->max_resident_models = (uint32_t)models;
    p->oom_retry = retry == MEM_ON;
    p->oom_fallback = fallback == MEM_ON;
    p->pinned_models = base_settings_get(settings, "engines.pinned_models");
    p->proc_root = base_settings_get(settings, "proc_root");
    p->cgroup_root = base_settings_get(settings, "cgroup_root");
    return r.status;
}
