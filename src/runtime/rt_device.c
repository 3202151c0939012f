/* Devices with memory of their own: which one the settings name, how much of it a load may take, and the two
 * tiers of its plan. RAM and device each have a budget, and both hold: caches, activations, work space and
 * weights go to the device, tokens, staging and copies of what streams to RAM. */
#include "rt_internal.h"

#include <stdio.h>
#include <string.h>

#define MB     UINT64_C(1000000)
#define MAX_MB UINT64_C(4000000)
/* Of several allocations, each rounded up by the device. */
#define SLACK_BYTES (UINT64_C(64) << 10)
/* Of drivers that take memory in steps, where it is the process's own. */
#define RAM_SLACK_BYTES (UINT64_C(1) << 20)

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

/* A simulated device has threads of its own, as a GPU has, in an environment of its own. */
static weir_status open_device(weir_context *c, const rt_device_options *o, uint32_t n_threads,
                               dev_device **out, weir_error *err)
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
    default: return dev_cpu_create_on(c->env, cpu, n_threads, c->workers, out, err);
    }
}

static bool same_device(const rt_device_options *a, const rt_device_options *b)
{
    if (a->kind != b->kind) return false;
    if (a->kind == RT_DEVICE_SIM)
        return a->simulate_bytes == b->simulate_bytes && a->simulate_link == b->simulate_link;
    return a->index == b->index;
}

/* R9.3: <cache folder>/memory/calibration.json; empty where nothing is kept, or its folder cannot be made. */
static weir_status calibration_path(const weir_context *c, char *out, size_t size, weir_error *err)
{
    char *folder = base_settings_cache_folder(c->settings, err);
    int n = 0;
    out[0] = '\0';
    if (folder == NULL) return err->code;
    if (folder[0] != '\0' && base_folder_make(folder, NULL) == WEIR_OK)
        n = snprintf(out, size, "%s/memory", folder);
    base_free(c->env, folder);
    if (n <= 0 || (size_t)n + sizeof "/calibration.json" > size || base_folder_make(out, NULL) != WEIR_OK)
        out[0] = '\0';
    else
        memcpy(out + n, "/calibration.json", sizeof "/calibration.json");
    return WEIR_OK;
}

weir_status rt_device_manage(weir_context *c, rt_device *d, mem_manager *peer, weir_error *err)
{
    char calibration[4096];
    mem_policy policy = d->options.policy;
    if (d->manager != NULL) return WEIR_OK;
    weir_status status = calibration_path(c, calibration, sizeof calibration, err);
    if (status != WEIR_OK) return status;
    policy.calibration_file = calibration;
    return mem_manager_create(c->env, d->device, &policy, peer, &d->manager, err);
}

static void destroy_device(weir_context *c, rt_device *d)
{
    mem_manager_destroy(d->manager);
    dev_destroy(d->device);
    rt_workers_leave(c, &d->crew);
    base_free(c->env, d);
}

static weir_status open_new(weir_context *c, const rt_device_options *o, uint32_t n_threads,
                            const base_cpus *cpus, mem_manager *peer, rt_device **out, weir_error *err)
{
    base_ledger_view without, with;
    rt_ledger_read(c, &without);
    rt_device *d = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof *d, err);
    if (d == NULL) return err->code;
    *d = (rt_device){.options = *o, .n_users = 1};
    weir_status status = WEIR_OK;
    if (o->kind == RT_DEVICE_CPU) status = rt_workers_join(c, &d->crew, n_threads, cpus, err);
    if (status == WEIR_OK) status = open_device(c, o, n_threads, &d->device, err);
    if (status == WEIR_OK && d->device->table->memory != NULL) status = rt_device_manage(c, d, peer, err);
    if (status != WEIR_OK) {
        destroy_device(c, d);
        return status;
    }
    rt_ledger_read(c, &with);
    for (int t = 0; t < BASE_TAG_COUNT; t++) d->tag_bytes[t] = with.tag_bytes[t] - without.tag_bytes[t];
    *out = d;
    return WEIR_OK;
}

weir_status rt_device_open(weir_context *c, const rt_device_options *o, uint32_t n_threads,
                           const base_cpus *cpus, mem_manager *peer, rt_device **out, weir_error *err)
{
    rt_device *d = peer == NULL ? c->devices : NULL;
    while (d != NULL && !same_device(&d->options, o)) d = d->next;
    if (d != NULL) {
        weir_status status = mem_manager_set_policy(d->manager, &o->policy, err);
        if (status != WEIR_OK) return status;
        d->n_users++;
        *out = d;
        return WEIR_OK;
    }
    bool listed = peer == NULL && o->kind != RT_DEVICE_CPU;
    if (listed && c->devices != NULL) peer = c->devices->manager; /* one RAM tier */
    weir_status status = open_new(c, o, n_threads, cpus, peer, &d, err);
    if (status != WEIR_OK) return status;
    if (listed) {
        d->next = c->devices;
        c->devices = d;
    }
    *out = d;
    return WEIR_OK;
}

void rt_device_close(weir_context *c, rt_device *d)
{
    if (d == NULL || --d->n_users != 0) return;
    for (rt_device **at = &c->devices; *at != NULL; at = &(*at)->next) {
        if (*at != d) continue;
        *at = d->next;
        break;
    }
    destroy_device(c, d);
}

weir_status rt_device_create(weir_model *m, const rt_options *o, base_ledger_view *before, rt_device **out,
                             bool *opened, weir_error *err)
{
    rt_device *d;
    weir_status status = rt_device_open(m->context, &o->device, o->n_threads, &o->cpus, NULL, &d, err);
    if (status != WEIR_OK) return status;
    *opened = d->n_users == 1;
    bool count = *opened || (m->run != NULL && m->run->target == d && m->run->opened_target);
    for (int t = 0; t < BASE_TAG_COUNT && count; t++) before->tag_bytes[t] += d->tag_bytes[t];
    rt_workers_add(m->context, m->run != NULL ? &m->run->target->crew : NULL, before);
    *out = d;
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

/* The name by which the manager knows a model: its file's. */
static void name_of(const weir_model *m, char *out, size_t size)
{
    const char *path = base_file_path(fmt_model_file(m->file, 0)), *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t n = strlen(name), end = strlen(".gguf");
    if (n > end && strcmp(name + n - end, ".gguf") == 0) n -= end;
    n = (size_t)base_min(n, size - 1);
    memcpy(out, name, n);
    out[n] = '\0';
}

static weir_status make_source(weir_model *m, rt_device *target, mem_source **out, weir_error *err)
{
    char name[MEM_NAME_BYTES];
    name_of(m, name, sizeof name);
    return mem_source_create(m->component, target->manager, "lm", name, out, err);
}

weir_status rt_device_measure(rt_planner *p, weir_error *err)
{
    base_ledger_view without, with;
    const rt_loaded *run = p->model->run;
    weir_status status = check_layout(p->model, &p->options->device, err);
    if (status != WEIR_OK) return status;
    base_ledger_read(p->model->env, &without);
    status = make_source(p->model, p->target, &p->source, err);
    if (status != WEIR_OK) return status;
    base_ledger_read(p->model->env, &with);
    p->source_bytes = with.bytes - without.bytes;
    p->staging_bytes = mem_manager_staging_bytes(p->target->manager);
    p->device_workspace = mem_manager_workspace_bytes(p->target->manager);
    bool here = run != NULL && run->source != NULL && run->target == p->target;
    p->device_room = mem_manager_room(p->target->manager, here ? mem_source_handle(run->source) : NULL);
    p->on_device = true;
    mem_manager_info all;
    status = mem_manager_get_info(p->target->manager, &all, err);
    if (status != WEIR_OK) return status;
    mem_handle_decide(mem_source_handle(p->source), UINT64_MAX, 0, &p->device_sizes);
    /* In RAM there need be no weights at all, unless the device's memory is RAM. */
    p->smallest = (mem_plan){.io_bytes = p->smallest.io_bytes, .by_row_bytes = p->smallest.by_row_bytes};
    p->whole = p->smallest;
    p->device_in_ram = all.device.unified;
    p->workspace_there = here ? run->plan.workspace_there : p->device_workspace;
    if (p->device_in_ram) {
        p->smallest.smallest_bytes = p->device_sizes.smallest_bytes + RAM_SLACK_BYTES;
        p->whole.whole_bytes = p->device_sizes.size_bytes + RAM_SLACK_BYTES;
    }
    return WEIR_OK;
}

void rt_device_measured(rt_planner *p)
{
    mem_source_destroy(p->source);
    p->source = NULL;
}

bool rt_device_fits(const rt_planner *p, const rt_need *need, bool whole)
{
    uint64_t weights = whole ? p->device_sizes.size_bytes : p->device_sizes.smallest_bytes;
    return !p->on_device || rt_add(need->device_bytes, weights + SLACK_BYTES) <= p->device_room;
}

/* What lies where, by the budgets of both tiers. Where the device's memory is RAM, its weights come first out
 * of the one budget, in every mode; copies of what streams have what they leave. */
static void decide(const rt_planner *p, const rt_need *need, uint64_t room, rt_plan *out)
{
    mem_handle *h = mem_source_handle(p->source);
    mem_handle_plan *d = &out->device;
    uint64_t ram = rt_weights_room(need, p->options->mem_bytes);
    out->device_limit_bytes = UINT64_MAX;
    if (p->device_in_ram) {
        bool whole = p->options->device.policy.vram_mode == MEM_VRAM_HIGH; /* however little room there is */
        ram -= base_min(ram, RAM_SLACK_BYTES);
        out->device_limit_bytes = whole ? ram : base_min(ram, room);
        mem_handle_limit_weights(h, out->device_limit_bytes);
        mem_handle_decide(h, room, 0, d);
        uint64_t there = d->fixed_bytes + d->resident_bytes + d->slot_bytes;
        out->device_ram_bytes = there + RAM_SLACK_BYTES;
        ram -= base_min(ram, there);
    }
    mem_handle_decide(h, room, ram, d);
}

void rt_device_plan(const rt_planner *p, const rt_need *need, rt_plan *out)
{
    weir_plan *v = &out->view;
    uint64_t keeps = rt_add(need->device_bytes, SLACK_BYTES);
    uint64_t room = p->device_room - base_min(keeps, p->device_room);
    mem_handle_plan *d = &out->device;
    out->on_device = true;
    out->workspace_there = p->workspace_there;
    out->device_need_bytes = need->device_bytes;
    decide(p, need, room, out);
    out->memory = (mem_plan){.io_bytes = p->smallest.io_bytes,
                             .by_row_bytes = p->smallest.by_row_bytes,
                             .resident_bytes = d->copy_bytes,
                             .streamed_bytes = d->file_bytes};
    p->device->table->describe(p->device, v->device, sizeof v->device);
    v->device_room_bytes = p->device_room;
    v->device_smallest_bytes = rt_add(need->device_bytes, d->smallest_bytes);
    v->device_whole_bytes = rt_add(need->device_bytes, d->size_bytes);
    v->device_planned_bytes = rt_add(need->device_bytes, d->fixed_bytes + d->resident_bytes + d->slot_bytes);
    v->device_streamed_bytes_per_pass = d->streamed_bytes;
}

weir_status rt_device_plan_again(const weir_model *m, const rt_need *need, uint64_t budget, rt_plan *out,
                                 weir_error *err)
{
    const rt_loaded *run = m->run;
    mem_manager *manager = run->target->manager;
    mem_manager_info all;
    char a[32], b[32];
    weir_status status = mem_manager_get_info(manager, &all, err);
    if (status != WEIR_OK) return status;
    rt_options options = run->options;
    options.mem_bytes = budget;
    options.device.policy = all.policy;
    rt_planner p = {.options = &options,
                    .target = run->target,
                    .device = run->device,
                    .source = run->source,
                    .on_device = true,
                    .device_in_ram = all.device.unified,
                    .workspace_there = run->plan.workspace_there,
                    .device_room = mem_manager_room(manager, mem_source_handle(run->source))};
    /* The need counts the work space that the load added, too. */
    uint64_t there = mem_manager_workspace_bytes(manager);
    p.device_room += there - base_min(there, p.workspace_there);
    p.smallest.io_bytes = run->plan.memory.io_bytes;
    p.smallest.by_row_bytes = run->plan.memory.by_row_bytes;
    uint64_t smallest = run->plan.device.smallest_bytes, in_ram = 0;
    if (p.device_in_ram) in_ram = smallest + RAM_SLACK_BYTES;
    if (rt_planner_budget(need, in_ram) > budget)
        return base_fail(err, WEIR_ERR_BUDGET,
                         "a budget of %s does not suffice for what is loaded: at least %s are needed",
                         base_size_text(budget, a), base_size_text(rt_planner_budget(need, in_ram), b));
    p.device_sizes.smallest_bytes = smallest;
    const weir_plan *old = &run->plan.view; /* what a load tried beyond its room may stay there */
    if (!rt_device_fits(&p, need, false) &&
        (p.device_room < old->device_room_bytes || old->device_planned_bytes <= old->device_room_bytes))
        return base_fail(err, WEIR_ERR_BUDGET,
                         "device %s: limit and reserve leave %s, at least %s are needed for what is loaded; "
                         "raise compute.vram_limit_mb or lower compute.vram_reserve_mb",
                         old->device, base_size_text(p.device_room, a),
                         base_size_text(rt_add(need->device_bytes, smallest + SLACK_BYTES), b));
    rt_device_plan(&p, need, out);
    return WEIR_OK;
}

/* The limits that a plan sets. */
static void limit(const rt_loaded *run, const rt_plan *plan)
{
    mem_handle *h = mem_source_handle(run->source);
    mem_handle_limit_weights(h, plan->device_limit_bytes);
    mem_handle_limit_copies(h, plan->memory.resident_bytes, !run->options.mem_is_default);
}

void rt_device_limit(const weir_model *m, const rt_plan *plan)
{
    uint64_t keeps = rt_add(plan->device_need_bytes, SLACK_BYTES), room = plan->view.device_room_bytes;
    limit(m->run, plan);
    mem_handle_give_back(mem_source_handle(m->run->source), room - base_min(keeps, room),
                         plan->memory.resident_bytes);
}

weir_status rt_device_place_again(weir_model *m, const rt_plan *plan, weir_error *err)
{
    rt_device_limit(m, plan);
    return mem_source_run(m->run->source, &m->cancel, NULL, NULL, err);
}

weir_status rt_device_prepare(weir_model *m, rt_loaded *run, weir_error *err)
{
    const rt_plan *plan = &run->plan;
    uint64_t staging = mem_manager_staging_bytes(run->target->manager);
    weir_status status = mem_manager_open_staging(run->target->manager, err);
    if (status == WEIR_OK) run->target->tag_bytes[BASE_TAG_PINNED] += staging;
    if (status == WEIR_OK) status = make_source(m, run->target, &run->source, err);
    if (status != WEIR_OK) return status;
    mem_handle *h = mem_source_handle(run->source);
    mem_handle_keep(h, rt_add(plan->device_need_bytes, SLACK_BYTES));
    limit(run, plan);
    return WEIR_OK;
}

weir_status rt_device_place(weir_model *m, rt_loaded *run, weir_error *err)
{
    char a[32], b[32];
    const weir_plan *v = &run->plan.view;
    mem_handle *h = mem_source_handle(run->source);
    if (v->device_planned_bytes > v->device_room_bytes)
        base_log(m->env, BASE_LOG_WARN,
                 "device: %s are needed at least, %s are there within limit and reserve; trying all the same",
                 base_size_text(v->device_planned_bytes, a), base_size_text(v->device_room_bytes, b));
    weir_status status = mem_place_rows(m->component, &run->options.aio, err);
    if (status != WEIR_OK) return status;
    mem_handle_on_load(h, run->place_progress, run->place_progress_arg);
    status = mem_source_run(run->source, &m->cancel, NULL, NULL, err);
    mem_handle_on_load(h, NULL, NULL);
    return status;
}

void rt_device_report(const weir_model *m, weir_memory_report *r)
{
    const rt_loaded *run = m->run;
    const weir_plan *v = &run->plan.view;
    mem_source_stats s;
    mem_handle_info h;
    mem_manager_info all = {.policy = run->options.device.policy};
    weir_error none;
    mem_source_get_stats(run->source, &s);
    mem_handle_get_info(mem_source_handle(run->source), &h);
    (void)mem_manager_get_info(run->target->manager, &all, &none);
    r->device = v->device;
    r->vram_mode = mem_vram_mode_text(all.policy.vram_mode);
    r->device_total_bytes = all.device.total_bytes;
    r->device_taken_bytes = all.device.taken_bytes;
    r->device_room_bytes = v->device_room_bytes;
    r->device_planned_bytes = v->device_planned_bytes;
    r->device_fixed_bytes = h.loaded_bytes != 0 ? h.fixed_bytes : 0;
    r->device_resident_bytes = h.loaded_bytes - r->device_fixed_bytes;
    r->device_slot_bytes = h.slot_bytes;
    r->device_kept_bytes = h.kept_bytes;
    r->device_limit_bytes = all.policy.vram_limit_bytes;
    r->device_reserve_bytes = all.policy.vram_reserve_bytes;
    r->host_copy_bytes = h.host_bytes;
    r->pinned_bytes = h.pinned_bytes;
    r->device_streamed_bytes = h.streamed_bytes;
    r->device_copies = s.n_copies;
    r->device_hits = s.n_hits;
    r->device_retries = s.n_retries;
    r->device_units = run->plan.device.n_units;
    r->device_resident_units = h.n_resident;
    r->device_slots = h.n_slots;
    r->device_from_storage = h.from_storage;
    r->device_copies_ahead = h.copies_ahead;
    r->device_prefetch = h.prefetch;
    r->device_round_s_without = h.round_s_without;
    r->device_round_s_with = h.round_s_with;
    r->size_bytes = h.size_bytes;
    r->loaded_bytes = h.loaded_bytes;
    r->streamed_bytes = h.size_bytes - base_min(h.size_bytes, h.loaded_bytes);
    r->reason = h.reason;
    r->read_bytes += s.read_bytes;
    r->wait_seconds += s.wait_seconds;
}
