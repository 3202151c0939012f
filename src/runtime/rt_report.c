/* Planned against measured: the ledger by tag, the process as the kernel counts it, and profiles. */
#include "rt_internal.h"

/* What the process held beside our allocations; PROCESS in the ledger is only booked. */
static uint64_t beside(uint64_t resident_bytes, uint64_t ours_bytes)
{
    return resident_bytes > ours_bytes ? resident_bytes - ours_bytes : 0;
}

static void fill_accounts(weir_memory_report *r, const rt_plan *plan, const base_ledger_view *v)
{
    uint64_t ours = v->bytes - v->tag_bytes[BASE_TAG_PROCESS];
    uint64_t ours_peak = v->peak_bytes - base_min(v->tag_bytes[BASE_TAG_PROCESS], v->peak_bytes);
    for (int t = 0; t < BASE_TAG_COUNT; t++) {
        weir_account a = {
            .tag = base_tag_text((base_tag)t),
            .planned_bytes = plan != NULL ? plan->tag_bytes[t] : 0,
            .bytes = v->tag_bytes[t],
            .peak_bytes = v->tag_peak_bytes[t],
        };
        if (t == BASE_TAG_PROCESS) {
            a.bytes = beside(r->rss_bytes, ours);
            a.peak_bytes = base_max(a.bytes, beside(r->peak_bytes, ours_peak));
        }
        if (a.planned_bytes != 0 || a.peak_bytes != 0) r->accounts[r->n_accounts++] = a;
    }
}

static void fill_component(weir_memory_report *r, const rt_loaded *run, const mem_stats *s)
{
    const mem_plan *p = &run->plan.memory;
    r->budget_bytes = run->plan.view.budget_bytes;
    r->planned_peak_bytes = run->plan.view.planned_peak_bytes;
    r->size_bytes = p->whole_bytes;
    r->loaded_bytes = p->fixed_bytes + p->resident_bytes;
    r->streamed_bytes = r->size_bytes > r->loaded_bytes ? r->size_bytes - r->loaded_bytes : 0;
    if (p->ring_bytes != 0) r->reason = "budget";
    r->read_bytes = s->streamed_bytes + s->row_bytes;
    r->n_misses = s->n_misses;
    r->wait_seconds = s->wait_seconds;
    r->load_seconds = run->load_seconds;
    r->load_bytes = s->load_bytes;
    r->packed_bytes = s->packed_bytes;
    r->arena_saved_bytes = run->plan.view.arena_saved_bytes;
    if (s->reader != NULL) r->reader = s->reader;
    r->mapped_bytes = s->mapped_bytes;
}

weir_status weir_model_memory(const weir_model *m, weir_memory_report *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    base_process_memory now;
    weir_status status = base_process_memory_read(&now, err);
    if (status != WEIR_OK) return status;
    /* What a simulated device holds is not this process's, were it not simulated. */
    now.rss_bytes -= base_min(now.rss_bytes, now.shmem_bytes);
    uint64_t pss = base_process_pss();
    base_ledger_view v;
    base_ledger_read(m->env, &v);
    weir_memory_report r = {
        .struct_size = sizeof r,
        .peak_bytes = now.own_peak_bytes,
        .rss_bytes = now.rss_bytes,
        .pss_bytes = pss - base_min(pss, now.shmem_bytes),
        .anon_bytes = now.anon_bytes,
        .ledger_bytes = v.bytes,
        .ledger_peak_bytes = v.peak_bytes,
        .reason = "",
        .reader = "none",
        .device = "cpu",
        .vram_mode = "auto",
        .device_prefetch = "",
    };
    if (m->run != NULL) {
        mem_stats s;
        mem_component_stats(m->component, &s);
        fill_component(&r, m->run, &s);
        if (m->run->source != NULL) rt_device_report(m, &r);
    }
    fill_accounts(&r, m->run != NULL ? &m->run->plan : NULL, &v);
    *out = r;
    return WEIR_OK;
}

bool weir_profile_phase(const weir_model *m, size_t i, weir_phase *out)
{
    graph_phase_profile p;
    if (m->run == NULL || !m->run->options.profile || i > UINT32_MAX) return false;
    if (!graph_profile_phase(m->run->program, (uint32_t)i, &p)) return false;
    *out = (weir_phase){
        .name = p.name,
        .seconds = p.seconds,
        .wait_seconds = p.wait_seconds,
        .n_ops = p.n_ops,
        .weight_bytes = p.weight_bytes,
        .streamed_bytes = p.streamed_bytes,
        .peak_live_bytes = p.peak_live_bytes,
    };
    return true;
}

bool weir_profile_op(const weir_model *m, size_t i, const char **name, double *seconds, uint64_t *count)
{
    if (m->run == NULL || !m->run->options.profile) return false;
    for (int code = 0; code < DEV_OP_COUNT; code++) {
        graph_profile_op(m->run->program, (dev_opcode)code, seconds, count);
        if (*count == 0) continue;
        *name = dev_op_name((dev_opcode)code);
        if (i-- == 0) return true;
    }
    return false;
}
