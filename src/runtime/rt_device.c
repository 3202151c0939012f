/* Devices with memory of their own: which one the settings name, how much of it a load may take, and the two
 * tiers of its plan. RAM and device each have a budget, and both hold: caches, activations, work space and
 * weights go to the device, tokens, staging and copies of what streams to RAM. */
#include "rt_internal.h"

#include <stdlib.h>
#include <string.h>

#define MB     UINT64_C(1000000)
#define MAX_MB UINT64_C(4000000)
/* Of several allocations, each rounded up by the device. */
#define SLACK_BYTES (UINT64_C(64) << 10)

static weir_status read_mb(const weir_context *c, const char *name, uint64_t *bytes, weir_error *err)
{
    const char *text = base_settings_get(c->settings, name), *p = text;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9' && v <= MAX_MB; p++) v = v * 10 + (uint64_t)(*p - '0');
    if (p == text || *p != 0 || v > MAX_MB)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting %s is \"%.60s\": a whole number of MB, up to %llu", name, text,
                         (unsigned long long)MAX_MB);
    *bytes = v * MB;
    return WEIR_OK;
}

static weir_status read_kind(const char *text, rt_device_options *out, weir_error *err)
{
    if (strcmp(text, "cpu") == 0) {
        out->kind = RT_DEVICE_CPU;
    } else if (strcmp(text, "sim") == 0) {
        out->kind = RT_DEVICE_SIM;
    } else if (strncmp(text, "opencl:", 7) == 0 && text[7] >= '0' && text[7] <= '9' &&
               strspn(text + 7, "0123456789") == strlen(text + 7) && strlen(text + 7) <= 3) {
        out->kind = RT_DEVICE_OPENCL;
        for (const char *p = text + 7; *p != 0; p++) out->index = out->index * 10 + (uint32_t)(*p - '0');
    } else {
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "device \"%.60s\": cpu, sim, or opencl:N (--device, setting compute.device)", text);
    }
    return WEIR_OK;
}

weir_status rt_device_settings(const weir_context *c, const char *name, rt_device_options *out,
                               weir_error *err)
{
    uint64_t link = 0;
    *out = (rt_device_options){0};
    weir_status status =
        read_kind(name != NULL ? name : base_settings_get(c->settings, "compute.device"), out, err);
    if (status == WEIR_OK) status = read_mb(c, "compute.simulate_vram_mb", &out->simulate_bytes, err);
    if (status == WEIR_OK) status = read_mb(c, "compute.simulate_link_mb", &link, err);
    if (status == WEIR_OK) status = mem_policy_read(&out->policy, c->settings, err);
    out->simulate_link = (double)link;
    return status;
}

/* Built kernels are kept in the cache folder, where there is one. */
static weir_status open_opencl(weir_context *c, uint32_t index, dev_device **out, weir_error *err)
{
    char *folder = base_settings_cache_folder(c->settings, err);
    if (folder == NULL) return err->code;
    weir_status status = dev_opencl_create(c->env, index, folder, out, err);
    base_free(c->env, folder);
    return status;
}

weir_status rt_device_open(weir_context *c, const rt_device_options *o, uint32_t n_threads,
                           const base_cpus *cpus, dev_device **out, weir_error *err)
{
    const char *cpu = base_settings_get(c->settings, "cpu");
    dev_sim_options sim = {
        .memory_bytes = o->simulate_bytes, .link_bytes_per_s = o->simulate_link, .strict = true};
    switch (o->kind) {
    case RT_DEVICE_SIM:
        if (sim.memory_bytes == 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "a simulated device of 0 MB: set compute.simulate_vram_mb");
        return dev_sim_create(c->env, cpu, n_threads, &sim, out, err);
    case RT_DEVICE_OPENCL: return open_opencl(c, o->index, out, err);
    default: return dev_cpu_create_on(c->env, cpu, n_threads, cpus, out, err);
    }
}

weir_status rt_device_create(weir_model *m, const rt_options *o, base_ledger_view *before, dev_device **out,
                             weir_error *err)
{
    base_ledger_view without, with;
    base_ledger_read(m->env, &without);
    weir_status status = rt_device_open(m->context, &o->device, o->n_threads, &o->cpus, out, err);
    if (status != WEIR_OK) return status;
    base_ledger_read(m->env, &with);
    for (int t = 0; t < BASE_TAG_COUNT; t++) before->tag_bytes[t] += with.tag_bytes[t] - without.tag_bytes[t];
    return WEIR_OK;
}

/* R3.2, less R3.1's reserve. */
static weir_status room(dev_device *device, const mem_policy *o, uint64_t *out, dev_memory_info *info,
                        weir_error *err)
{
    weir_status status = device->table->memory->info(device, info, err);
    if (status != WEIR_OK) return status;
    uint64_t free_bytes = rt_add(info->free_bytes, info->cache_bytes);
    uint64_t limit = o->vram_limit_bytes;
    if (limit != 0) free_bytes = base_min(free_bytes, limit - base_min(limit, info->taken_bytes));
    *out = free_bytes - base_min(free_bytes, o->vram_reserve_bytes);
    return WEIR_OK;
}

/* The kernels of OpenCL read rows as files have them; the simulated device has those of the CPU. */
static weir_status check_layout(const weir_model *m, const rt_device_options *o, weir_error *err)
{
    if (o->kind != RT_DEVICE_OPENCL || !fmt_model_is_packed(m->file)) return WEIR_OK;
    return base_fail(
        err, WEIR_ERR_UNSUPPORTED,
        "%s: its weights are packed for the CPU (weir pack), which device opencl:%u cannot read; "
        "use the file that it was packed from, or --device cpu",
        base_file_path(fmt_model_file(m->file, 0)), o->index);
}

weir_status rt_device_measure(rt_planner *p, weir_error *err)
{
    dev_memory_info info;
    weir_status status = check_layout(p->model, &p->options->device, err);
    if (status == WEIR_OK) status = room(p->device, &p->options->device.policy, &p->device_room, &info, err);
    if (status != WEIR_OK) return status;
    p->on_device = true;
    p->device_alignment = info.alignment;
    mem_device_plan_make(p->model->component, info.alignment, 0, false, &p->device_smallest);
    mem_device_plan_make(p->model->component, info.alignment, UINT64_MAX, false, &p->device_whole);
    /* In RAM there need be no weights at all. */
    p->smallest = (mem_plan){.io_bytes = p->smallest.io_bytes, .by_row_bytes = p->smallest.by_row_bytes};
    p->whole = p->smallest;
    return WEIR_OK;
}

bool rt_device_fits(const rt_planner *p, const rt_need *need, bool whole)
{
    uint64_t weights = whole ? p->device_whole.whole_bytes : p->device_smallest.smallest_bytes;
    return !p->on_device || rt_add(need->device_bytes, weights + SLACK_BYTES) <= p->device_room;
}

/* What the modes make of a room (R3.6). */
static uint64_t weights_budget(const mem_policy *o, uint64_t room_bytes, uint64_t need_bytes)
{
    uint64_t need = rt_add(need_bytes, SLACK_BYTES);
    if (o->vram_mode == MEM_VRAM_HIGH || o->vram_mode == MEM_VRAM_SHARED) return UINT64_MAX;
    if (o->vram_mode == MEM_VRAM_LOW || o->vram_mode == MEM_VRAM_NONE) return 0;
    return room_bytes > need ? room_bytes - need : 0;
}

static void show_plan(rt_plan *plan)
{
    const mem_device_plan *d = &plan->device;
    plan->view.device_planned_bytes =
        rt_add(plan->device_need_bytes, d->fixed_bytes + d->resident_bytes + d->slot_bytes);
    plan->view.device_streamed_bytes_per_pass = d->streamed_bytes;
}

void rt_device_plan(const rt_planner *p, const rt_need *need, rt_plan *out)
{
    const mem_policy *o = &p->options->device.policy;
    weir_plan *v = &out->view;
    out->on_device = true;
    out->device_need_bytes = need->device_bytes;
    mem_device_plan_make(p->model->component, p->device_alignment,
                         weights_budget(o, p->device_room, need->device_bytes), o->vram_mode == MEM_VRAM_NONE,
                         &out->device);
    const mem_device_plan *d = &out->device;
    uint64_t copies = rt_weights_room(need, p->options->mem_bytes);
    /* Copies are whole pages each. */
    copies = base_min(copies, d->streamed_bytes + (uint64_t)d->n_units * 4096);
    if (d->streamed_bytes == 0 || o->host_copies == MEM_OFF) copies = 0;
    out->memory = (mem_plan){.io_bytes = p->smallest.io_bytes,
                             .by_row_bytes = p->smallest.by_row_bytes,
                             .resident_bytes = base_align_down(copies, 4096)};
    out->memory.streamed_bytes = d->streamed_bytes - base_min(d->streamed_bytes, copies);
    p->device->table->describe(p->device, v->device, sizeof v->device);
    v->device_room_bytes = p->device_room;
    v->device_smallest_bytes = rt_add(need->device_bytes, d->smallest_bytes);
    v->device_whole_bytes = rt_add(need->device_bytes, d->whole_bytes);
    show_plan(out);
}

weir_status rt_device_place(weir_model *m, rt_loaded *run, weir_error *err)
{
    char a[32], b[32];
    rt_plan *plan = &run->plan;
    mem_device_options o = {.host_copy_bytes = plan->memory.resident_bytes,
                            .cancel = &m->cancel,
                            .progress = run->place_progress,
                            .progress_arg = run->place_progress_arg};
    if (plan->view.device_planned_bytes > plan->view.device_room_bytes)
        base_log(m->env, BASE_LOG_WARN,
                 "device: %s are needed at least, %s are there within limit and reserve; trying all the same",
                 base_size_text(plan->view.device_planned_bytes, a),
                 base_size_text(plan->view.device_room_bytes, b));
    weir_status status = mem_place_rows(m->component, &run->options.aio, err);
    if (status != WEIR_OK) return status;
    status = mem_device_source_create(m->component, run->device, &plan->device, &o, &run->source, err);
    if (status != WEIR_ERR_DEVICE_MEMORY || plan->device.n_resident == 0) return status;
    /* R3.5: only an allocation that really fails counts; then with the least. */
    base_log(m->env, BASE_LOG_WARN, "%s; trying with the smallest working set", err->message);
    dev_memory_info info;
    weir_error first = *err;
    status = run->device->table->memory->info(run->device, &info, err);
    if (status != WEIR_OK) return status;
    mem_device_plan_make(m->component, info.alignment, 0, true, &plan->device);
    show_plan(plan);
    status = mem_device_source_create(m->component, run->device, &plan->device, &o, &run->source, err);
    if (status != WEIR_OK) *err = first;
    return status;
}

void rt_device_report(const weir_model *m, weir_memory_report *r)
{
    const rt_loaded *run = m->run;
    const mem_policy *o = &run->options.device.policy;
    const weir_plan *v = &run->plan.view;
    const mem_device_plan *d = &run->plan.device;
    mem_source_stats s;
    dev_memory_info info = {0};
    weir_error none;
    run->source->table->stats(run->source, &s);
    run->device->table->memory->info(run->device, &info, &none);
    r->device = v->device;
    r->vram_mode = mem_vram_mode_text(o->vram_mode);
    r->device_total_bytes = info.total_bytes;
    r->device_taken_bytes = info.taken_bytes;
    r->device_room_bytes = v->device_room_bytes;
    r->device_planned_bytes = v->device_planned_bytes;
    r->device_fixed_bytes = s.fixed_bytes;
    r->device_resident_bytes = s.resident_bytes;
    r->device_slot_bytes = s.slot_bytes;
    r->device_kept_bytes = s.kept_bytes;
    r->device_limit_bytes = o->vram_limit_bytes;
    r->device_reserve_bytes = o->vram_reserve_bytes;
    r->host_copy_bytes = s.host_bytes;
    r->pinned_bytes = s.pinned_bytes;
    r->device_streamed_bytes = s.streamed_bytes;
    r->device_copies = s.n_copies;
    r->device_hits = s.n_hits;
    r->device_units = s.n_units;
    r->device_resident_units = s.n_resident;
    r->device_slots = s.n_slots;
    r->size_bytes = d->whole_bytes;
    r->loaded_bytes = s.fixed_bytes + s.resident_bytes;
    r->streamed_bytes = r->size_bytes - base_min(r->size_bytes, r->loaded_bytes);
    r->reason = r->streamed_bytes == 0                                          ? ""
                : o->vram_mode == MEM_VRAM_LOW || o->vram_mode == MEM_VRAM_NONE ? "mode"
                                                                                : "budget";
    r->read_bytes += s.read_bytes;
    r->wait_seconds += s.wait_seconds;
}
