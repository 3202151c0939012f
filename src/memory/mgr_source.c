/* Programs that run over a handle: what a language model has on a device with memory of its own. It takes no
 * decision; placing, streaming, yielding and retrying are the manager's. */
#include "mem_internal.h"

#include "mgr_internal.h"

struct mem_source {
    mem_component *c;
    mem_manager *m;
    mem_handle *h;
    mem_weight_id *ids; /* of the component's weights, in the handle; MEM_NO_WEIGHT: only read by row */
    mem_phase *phase;   /* of the pass that runs; NULL: none does */
    mem_pass_fn fn;
    void *arg;
    mem_source_stats stats;
};

/* ---- registration ---- */

static bool on_device(const mem_weight *w)
{
    return w->streamable || !w->by_row;
}

uint32_t mem_weight_unit(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights && !c->weights[id].fixed ? c->weights[id].unit : MEM_NO_UNIT;
}

uint32_t mem_weight_file_packed_rows(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights && c->weights[id].packed ? mem_group_rows(&c->weights[id]) : 0;
}

/* Units have the component's numbers; those that are small or have nothing that streams are empty there. */
static weir_status add_weights(mem_source *s, weir_error *err)
{
    const mem_component *c = s->c;
    weir_status status = WEIR_OK;
    for (uint32_t u = 0; u < c->n_units && status == WEIR_OK; u++) {
        uint32_t unit;
        status = mem_handle_add_unit(s->h, c->units[u].name, c->units[u].mark, &unit, err);
    }
    for (uint32_t i = 0; i < c->n_weights && status == WEIR_OK; i++) {
        const mem_weight *w = &c->weights[i];
        mem_handle_weight d = {.name = w->name,
                               .bytes = w->bytes,
                               .file = w->file,
                               .offset = w->offset,
                               .streamable = !w->fixed};
        s->ids[i] = MEM_NO_WEIGHT;
        if (on_device(w)) status = mem_handle_add_weight(s->h, w->unit, &d, &s->ids[i], err);
    }
    return status == WEIR_OK ? mem_handle_seal(s->h, err) : status;
}

weir_status mem_source_create(mem_component *c, mem_manager *m, const char *engine, const char *name,
                              mem_source **out, weir_error *err)
{
    weir_error local = {0};
    mem_source *s = base_alloc(c->env, BASE_TAG_METADATA, sizeof *s, &local);
    if (s == NULL) return base_fail(err, local.code, "%s", local.message);
    *s = (mem_source){.c = c, .m = m};
    s->ids = base_alloc_array(c->env, BASE_TAG_METADATA, base_max(c->n_weights, 1), sizeof *s->ids, &local);
    if (s->ids == NULL) goto fail;
    if (mem_handle_create(m, engine, name, c->kind, &s->h, &local) != WEIR_OK) goto fail;
    s->h->is_model = true;
    if (add_weights(s, &local) != WEIR_OK) goto fail;
    *out = s;
    return WEIR_OK;

fail:
    mem_source_destroy(s);
    return base_fail(err, local.code, "%s:%s: %s", engine, name, local.message);
}

void mem_source_destroy(mem_source *s)
{
    if (s == NULL) return;
    base_env *env = s->c->env;
    mem_handle_destroy(s->h);
    base_free(env, s->ids);
    base_free(env, s);
}

mem_handle *mem_source_handle(const mem_source *s)
{
    return s->h;
}

uint64_t mem_source_pass_bytes(void)
{
    return sizeof(mem_request) + 64; /* and the allocator's header */
}

/* ---- memory that stays ---- */

weir_status mem_source_alloc(mem_source *s, uint64_t bytes, const char *label, void **address,
                             weir_error *err)
{
    return mem_handle_alloc(s->h, bytes, label, address, err);
}

void mem_source_free(mem_source *s, void *address)
{
    mem_manager_free(s->m, address);
}

weir_status mem_source_copy(mem_source *s, void *dst, const void *src, uint64_t bytes, weir_error *err)
{
    return mem_handle_copy(s->h, dst, src, bytes, err);
}

weir_status mem_source_workspace(mem_source *s, size_t k, uint32_t n_positions, uint32_t head_dim,
                                 weir_error *err)
{
    return mem_handle_workspace(s->h, k, n_positions, head_dim, err);
}

/* ---- passes ---- */

static weir_status pass(void *arg, mem_phase *p, weir_error *err)
{
    mem_source *s = arg;
    if (s->fn == NULL) return WEIR_OK;
    s->phase = p;
    weir_status status = s->fn(s->arg, err);
    s->phase = NULL;
    return status;
}

static void count(mem_source *s, const mem_request *r)
{
    mem_source_stats *t = &s->stats;
    const mem_report *now = &r->report;
    if (s->fn != NULL) { /* what loading reads is told by progress */
        t->read_bytes += now->read_bytes;
        t->wait_seconds += now->host_wait_s + now->job_wait_s;
    }
    t->n_copies += now->n_copies;
    t->n_hits += now->n_hits;
    t->n_yields += now->n_yields;
    t->n_retries += now->n_oom_retries + now->n_device_retries;
}

weir_status mem_source_run(mem_source *s, atomic_bool *cancel, mem_pass_fn fn, void *arg, weir_error *err)
{
    if (s->phase != NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s: a pass within a pass", s->h->engine,
                         s->h->component);
    mem_request *r;
    mem_request_desc request = {
        .name = s->h->component, .managers = &s->m, .n_managers = 1, .cancel = cancel, .one_call = true};
    weir_status status = mem_request_begin(&request, &r, err);
    if (status != WEIR_OK) return status;
    s->fn = fn;
    s->arg = arg;
    mem_run_desc run = {
        .phase = {.name = fn != NULL ? "pass" : "load", .handles = &s->h, .n_handles = 1},
        .fn = pass,
        .arg = s,
    };
    status = mem_run_phase(r, &run, err);
    count(s, r);
    mem_request_end(r);
    return status;
}

static weir_status check_pass(const mem_source *s, const char *what, weir_error *err)
{
    if (s->phase != NULL) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s: %s outside of a pass", s->h->engine,
                     s->h->component, what);
}

weir_status mem_source_enter(mem_source *s, uint32_t unit, weir_error *err)
{
    weir_status status = check_pass(s, "a unit is entered", err);
    return status == WEIR_OK ? mem_unit_enter(s->phase, s->h, unit, err) : status;
}

void mem_source_leave(mem_source *s, uint32_t unit)
{
    if (s->phase != NULL) mem_unit_leave(s->phase, s->h, unit);
}

weir_status mem_source_address(mem_source *s, mem_weight_id id, void **address, weir_error *err)
{
    weir_status status = check_pass(s, "a weight is used", err);
    if (status != WEIR_OK) return status;
    if (id >= s->c->n_weights || s->ids[id] == MEM_NO_WEIGHT)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s: weight %u is not on the device",
                         s->h->engine, s->h->component, id);
    return mem_weight_address(s->phase, s->h, s->ids[id], address, err);
}

weir_status mem_source_op(mem_source *s, const dev_op *op, weir_error *err)
{
    weir_status status = check_pass(s, "an operation", err);
    return status == WEIR_OK ? mem_phase_op(s->phase, s->m, op, err) : status;
}

weir_status mem_source_upload(mem_source *s, void *dst, const void *host, uint64_t bytes, weir_error *err)
{
    weir_status status = check_pass(s, "a copy", err);
    return status == WEIR_OK ? mem_phase_upload(s->phase, s->m, dst, host, bytes, err) : status;
}

weir_status mem_source_download(mem_source *s, void *host, const void *src, uint64_t bytes, weir_error *err)
{
    weir_status status = check_pass(s, "a copy", err);
    return status == WEIR_OK ? mem_phase_download(s->phase, s->m, host, src, bytes, err) : status;
}

void mem_source_get_stats(const mem_source *s, mem_source_stats *out)
{
    *out = s->stats;
}
