/* The public memory manager: generators, requests, phases and what happens in them. */
#include "rt_memory_internal.h"

#include <stdio.h>

#define MAX_COMPONENTS MEM_PHASE_HANDLES

struct weir_request {
    base_env *env;
    mem_request *r;
    atomic_bool cancel;
    mem_manager *managers[WEIR_REQUEST_MAX];
    base_rng *generators[WEIR_REQUEST_MAX];
};

weir_status weir_generator_create(weir_context *c, uint64_t seed, weir_generator **out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    weir_generator *g = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof(*g), err);
    if (g == NULL) return err->code;
    g->env = c->env;
    base_rng_seed(&g->rng, seed, 0);
    *out = g;
    return WEIR_OK;
}

void weir_generator_destroy(weir_generator *g)
{
    if (g != NULL) base_free(g->env, g);
}

uint32_t weir_generator_u32(weir_generator *g)
{
    return base_rng_u32(&g->rng);
}

float weir_generator_f32(weir_generator *g)
{
    return base_rng_f32(&g->rng);
}

/* ---- requests ---- */

void weir_request_options_init(weir_request_options *o)
{
    *o = (weir_request_options){.struct_size = sizeof(*o)};
}

weir_status weir_request_begin(const weir_request_options *o, weir_request **out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (!RT_IS(weir_request_options, o, err)) return err->code;
    if (o->n_managers == 0 || o->n_managers > WEIR_REQUEST_MAX || o->n_generators > WEIR_REQUEST_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "request %.60s: %u managers and %u generators; it takes 1 to %d and up to %d",
                         o->name != NULL ? o->name : "", o->n_managers, o->n_generators, WEIR_REQUEST_MAX,
                         WEIR_REQUEST_MAX);
    base_env *env = o->managers[0]->context->env;
    weir_request *r = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*r), err);
    if (r == NULL) return err->code;
    *r = (weir_request){.env = env};
    atomic_init(&r->cancel, false);
    for (uint32_t i = 0; i < o->n_managers; i++) r->managers[i] = o->managers[i]->m;
    for (uint32_t i = 0; i < o->n_generators; i++) r->generators[i] = &o->generators[i]->rng;
    const mem_request_desc desc = {.name = o->name != NULL ? o->name : "request",
                                   .managers = r->managers,
                                   .n_managers = o->n_managers,
                                   .cancel = &r->cancel,
                                   .generators = r->generators,
                                   .n_generators = o->n_generators};
    weir_status status = mem_request_begin(&desc, &r->r, err);
    if (status == WEIR_OK)
        *out = r;
    else
        base_free(env, r);
    return status;
}

void weir_request_cancel(weir_request *r)
{
    atomic_store(&r->cancel, true);
}

void weir_request_end(weir_request *r)
{
    if (r == NULL) return;
    mem_request_end(r->r);
    base_free(r->env, r);
}

static void copy_component(const mem_component_report *from, weir_component_report *to)
{
    *to = (weir_component_report){.reason = from->reason,
                                  .mode = from->mode,
                                  .calibration = from->calibration,
                                  .free_bytes = from->free_bytes,
                                  .need_bytes = from->need_bytes,
                                  .working_bytes = from->working_bytes,
                                  .estimate_bytes = from->estimate_bytes,
                                  .reserve_bytes = from->reserve_bytes,
                                  .limit_bytes = from->limit_bytes,
                                  .budget_bytes = from->budget_bytes,
                                  .loaded_bytes = from->loaded_bytes,
                                  .size_bytes = from->size_bytes,
                                  .slot_bytes = from->slot_bytes,
                                  .streamed_bytes = from->streamed_bytes,
                                  .from_storage = from->from_storage,
                                  .copies_ahead = from->copies_ahead,
                                  .prefetch = from->prefetch,
                                  .round_s_without = from->round_s_without,
                                  .round_s_with = from->round_s_with};
    snprintf(to->engine, sizeof(to->engine), "%s", from->engine);
    snprintf(to->component, sizeof(to->component), "%s", from->component);
    snprintf(to->phase, sizeof(to->phase), "%s", from->phase);
    snprintf(to->gave_up_for, sizeof(to->gave_up_for), "%s", from->gave_up_for);
}

void weir_request_get_report(const weir_request *r, weir_request_report *out)
{
    mem_report m;
    mem_request_report(r->r, &m);
    *out = (weir_request_report){.struct_size = sizeof(*out),
                                 .streamed_bytes = m.streamed_bytes,
                                 .loaded_bytes = m.loaded_bytes,
                                 .size_bytes = m.size_bytes,
                                 .n_copies = m.n_copies,
                                 .n_hits = m.n_hits,
                                 .n_waits = m.n_waits,
                                 .read_bytes = m.read_bytes,
                                 .n_yields = m.n_yields,
                                 .yielded_bytes = m.yielded_bytes,
                                 .working_peak_bytes = m.working_peak_bytes,
                                 .host_wait_s = m.host_wait_s,
                                 .job_wait_s = m.job_wait_s,
                                 .n_phases = m.n_phases,
                                 .n_oom_retries = m.n_oom_retries,
                                 .n_device_retries = m.n_device_retries,
                                 .n_components = (uint32_t)base_min(m.n_components, WEIR_REPORT_MAX)};
    snprintf(out->fallbacks, sizeof(out->fallbacks), "%s", m.fallbacks);
    for (uint32_t i = 0; i < out->n_components; i++) copy_component(&m.components[i], &out->components[i]);
}

/* ---- phases ---- */

void weir_phase_options_init(weir_phase_options *o)
{
    *o = (weir_phase_options){.struct_size = sizeof(*o)};
}

/* The lists of a phase, as the manager wants them. */
typedef struct phase_lists {
    mem_handle *handles[MAX_COMPONENTS];
    mem_need others[WEIR_REQUEST_MAX];
} phase_lists;

static weir_status describe(const weir_phase_options *o, phase_lists *lists, mem_phase_desc *out,
                            weir_error *err)
{
    if (!RT_IS(weir_phase_options, o, err)) return err->code;
    if (o->n_others > WEIR_REQUEST_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %.60s: needs on %u managers; at most %d",
                         o->name != NULL ? o->name : "", o->n_others, WEIR_REQUEST_MAX);
    if (o->n_components > MAX_COMPONENTS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %.60s: %u components; at most %d",
                         o->name != NULL ? o->name : "", o->n_components, MAX_COMPONENTS);
    for (uint32_t i = 0; i < o->n_components; i++) lists->handles[i] = o->components[i]->h;
    for (uint32_t i = 0; i < o->n_others; i++)
        lists->others[i] = (mem_need){.manager = o->others[i].manager->m, .bytes = o->others[i].memory_bytes};
    *out = (mem_phase_desc){.name = o->name != NULL ? o->name : "phase",
                            .handles = lists->handles,
                            .n_handles = o->n_components,
                            .memory_bytes = o->memory_bytes,
                            .others = lists->others,
                            .n_others = o->n_others};
    return WEIR_OK;
}

/* A weir_use is the manager's phase under another name. */
static mem_phase *phase_of(weir_use *p)
{
    return (mem_phase *)p;
}

static mem_manager *manager_of(weir_manager *m)
{
    return m != NULL ? m->m : NULL;
}

weir_status weir_request_use(weir_request *r, const weir_phase_options *o, weir_use **out, weir_error *err)
{
    weir_error local;
    phase_lists lists;
    mem_phase_desc desc;
    mem_phase *p = NULL;
    err = rt_error(err, &local);
    weir_status status = describe(o, &lists, &desc, err);
    if (status == WEIR_OK) status = mem_use(r->r, &desc, &p, err);
    if (status == WEIR_OK) *out = (weir_use *)p;
    return status;
}

weir_status weir_use_end(weir_use *p, weir_error *err)
{
    weir_error local;
    return mem_phase_end(phase_of(p), rt_error(err, &local));
}

static weir_status call_fn(void *arg, mem_phase *p, weir_error *err)
{
    const weir_phase_options *o = arg;
    return o->fn(o->arg, (weir_use *)p, err);
}

static weir_status call_fallback(void *arg, mem_phase *p, weir_error *err)
{
    const weir_phase_options *o = arg;
    return o->fallback(o->arg, (weir_use *)p, err);
}

weir_status weir_request_run(weir_request *r, const weir_phase_options *o, weir_error *err)
{
    weir_error local;
    phase_lists lists;
    base_rng *generators[WEIR_REQUEST_MAX];
    weir_phase_options options = *o;
    mem_run_desc run = {.fn = call_fn, .arg = &options, .generators = generators};

    err = rt_error(err, &local);
    if (o->fn == NULL || o->n_generators > WEIR_REQUEST_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "phase %.60s: it needs a function, and at most %d generators",
                         o->name != NULL ? o->name : "", WEIR_REQUEST_MAX);
    weir_status status = describe(o, &lists, &run.phase, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < o->n_generators; i++) generators[i] = &o->generators[i]->rng;
    run.n_generators = o->n_generators;
    if (o->fallback != NULL) {
        run.fallback = call_fallback;
        run.fallback_name = o->fallback_name != NULL ? o->fallback_name : "fallback";
    }
    return mem_run_phase(r->r, &run, err);
}

void weir_call_options_init(weir_call_options *o)
{
    *o = (weir_call_options){.struct_size = sizeof(*o)};
}

static weir_status call_whole(void *arg, mem_phase *p, weir_error *err)
{
    const weir_call_options *o = arg;
    return o->fn(o->arg, (weir_use *)p, err);
}

static uint64_t whole_memory(void *arg)
{
    const weir_call_options *o = arg;
    return o->memory_required != NULL ? o->memory_required(o->arg) : 0;
}

weir_status weir_request_call(weir_request *r, const weir_call_options *o, weir_error *err)
{
    weir_error local;
    mem_handle *handles[MAX_COMPONENTS];
    err = rt_error(err, &local);
    if (!RT_IS(weir_call_options, o, err)) return err->code;
    if (o->fn == NULL || o->n_components > MAX_COMPONENTS)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a call with %u components: it takes a function, and at most %d", o->n_components,
                         MAX_COMPONENTS);
    for (uint32_t i = 0; i < o->n_components; i++) handles[i] = o->components[i]->h;
    weir_call_options options = *o;
    const mem_whole_call call = {.handles = handles,
                                 .n_handles = o->n_components,
                                 .memory_required = whole_memory,
                                 .fn = call_whole,
                                 .arg = &options};
    return mem_call(r->r, &call, err);
}

weir_status weir_unit_enter(weir_use *p, weir_component *h, uint32_t unit, weir_error *err)
{
    weir_error local;
    return mem_unit_enter(phase_of(p), h->h, unit, rt_error(err, &local));
}

void weir_unit_leave(weir_use *p, weir_component *h, uint32_t unit)
{
    mem_unit_leave(phase_of(p), h->h, unit);
}

weir_status weir_weight_address(weir_use *p, weir_component *h, uint32_t weight, void **address,
                                weir_error *err)
{
    weir_error local;
    return mem_weight_address(phase_of(p), h->h, weight, address, rt_error(err, &local));
}

weir_status weir_use_alloc(weir_use *p, weir_manager *m, uint64_t bytes, const char *label, void **address,
                           weir_error *err)
{
    weir_error local;
    return mem_phase_alloc(phase_of(p), manager_of(m), bytes, label, address, rt_error(err, &local));
}

void weir_use_free(weir_use *p, weir_manager *m, void *address)
{
    mem_phase_free(phase_of(p), manager_of(m), address);
}

weir_status weir_use_launch(weir_use *p, weir_manager *m, const weir_kernel *kernel, const weir_arg *args,
                            uint32_t n_args, size_t n_items, weir_error *err)
{
    weir_error local;
    return mem_phase_launch(phase_of(p), manager_of(m), kernel, args, n_args, n_items, rt_error(err, &local));
}

weir_status weir_use_upload(weir_use *p, weir_manager *m, void *dst, const void *host, uint64_t bytes,
                            weir_error *err)
{
    weir_error local;
    return mem_phase_upload(phase_of(p), manager_of(m), dst, host, bytes, rt_error(err, &local));
}

weir_status weir_use_download(weir_use *p, weir_manager *m, void *host, const void *src, uint64_t bytes,
                              weir_error *err)
{
    weir_error local;
    return mem_phase_download(phase_of(p), manager_of(m), host, src, bytes, rt_error(err, &local));
}

/* ---- tiles ---- */

void weir_tiling_init(weir_tiling *t)
{
    *t = (weir_tiling){.struct_size = sizeof(*t)};
}

weir_status weir_tiled_decode(weir_context *c, const weir_tiling *t, float *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (!RT_IS(weir_tiling, t, err)) return err->code;
    if (t->decode == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "decoding in tiles needs a function that decodes");
    const mem_tiling tiling = {.n_frames = t->n_frames,
                               .tile_frames = t->tile_frames,
                               .overlap_frames = t->overlap_frames,
                               .values_per_frame = t->values_per_frame,
                               .decode = t->decode,
                               .arg = t->arg};
    return mem_tiled_decode(c->env, &tiling, out, err);
}
