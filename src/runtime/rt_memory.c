/* The public memory manager: devices, managers and components. */
#include "rt_memory_internal.h"

#include <stdio.h>
#include <string.h>

void weir_manager_options_init(weir_manager_options *o)
{
    *o = (weir_manager_options){.struct_size = sizeof(*o)};
}

static weir_status create(weir_context *c, const weir_manager_options *o, weir_manager **out, weir_error *err)
{
    rt_device_options d;
    uint32_t n_threads = o != NULL && o->n_threads != 0 ? o->n_threads : 1;

    if (o != NULL && !RT_IS(weir_manager_options, o, err)) return err->code;
    weir_status status = rt_device_settings(c, o != NULL ? o->device : NULL, &d, err);
    if (status != WEIR_OK) return status;
    weir_manager *m = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof(*m), err);
    if (m == NULL) return err->code;
    *m = (weir_manager){.context = c};
    mem_manager *peer = o != NULL && o->peer != NULL ? o->peer->m : NULL;
    status = rt_device_open(c, &d, n_threads, NULL, peer, &m->target, err);
    if (status == WEIR_OK) status = rt_device_manage(c, m->target, peer, err);
    if (status != WEIR_OK) {
        weir_manager_destroy(m);
        return status;
    }
    m->device = m->target->device;
    m->m = m->target->manager;
    *out = m;
    return WEIR_OK;
}

weir_status weir_manager_create(weir_context *c, const weir_manager_options *o, weir_manager **out,
                                weir_error *err)
{
    weir_error local;
    rt_enter(c);
    weir_status status = create(c, o, out, rt_error(err, &local));
    rt_leave(c);
    return status;
}

void weir_manager_destroy(weir_manager *m)
{
    if (m == NULL) return;
    weir_context *c = m->context;
    rt_enter(c);
    rt_device_close(c, m->target);
    base_free(c->env, m);
    rt_leave(c);
}

uint64_t weir_manager_unload_idle(weir_manager *m, bool pinned)
{
    return mem_manager_unload_idle(m->m, 0, pinned);
}

uint64_t weir_manager_unload_idle_for(weir_manager *m, double seconds, bool pinned)
{
    return mem_manager_unload_idle(m->m, seconds, pinned);
}

weir_status weir_manager_alloc(weir_manager *m, uint64_t bytes, const char *label, void **address,
                               weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (bytes == 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "no bytes of %.60s were asked for",
                         label != NULL ? label : "memory");
    return mem_manager_alloc(m->m, bytes, label != NULL ? label : "memory that stays", address, err);
}

void weir_manager_free(weir_manager *m, void *address)
{
    mem_manager_free(m->m, address);
}

weir_status weir_manager_get_info(weir_manager *m, weir_manager_info *out, weir_error *err)
{
    weir_error local;
    mem_manager_info i;
    weir_status status = mem_manager_get_info(m->m, &i, rt_error(err, &local));
    if (status != WEIR_OK) return status;
    *out = (weir_manager_info){.struct_size = sizeof(*out),
                               .vram_mode = mem_vram_mode_text(i.policy.vram_mode),
                               .host = mem_manager_is_host(m->m),
                               .total_bytes = i.device.total_bytes,
                               .free_bytes = i.free_bytes,
                               .limit_bytes = i.policy.vram_limit_bytes,
                               .reserve_bytes = i.policy.vram_reserve_bytes,
                               .fixed_bytes = i.fixed_bytes,
                               .resident_bytes = i.resident_bytes,
                               .slot_bytes = i.slot_bytes,
                               .kept_bytes = i.kept_bytes,
                               .working_bytes = i.working_bytes,
                               .n_components = i.n_handles,
                               .n_requests = i.n_requests,
                               .n_waiting = i.n_waiting};
    return WEIR_OK;
}

/* ---- components ---- */

weir_status weir_component_create(weir_manager *m, const char *engine, const char *component, weir_kind kind,
                                  weir_component **out, weir_error *err)
{
    weir_error local;
    base_env *env = m->context->env;
    err = rt_error(err, &local);
    weir_component *h = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*h), err);
    if (h == NULL) return err->code;
    *h = (weir_component){.env = env, .context = m->context};
    weir_status status = mem_handle_create(
        m->m, engine, component, kind == WEIR_KIND_SEQUENCE ? MEM_SEQUENCE : MEM_ONESHOT, &h->h, err);
    if (status != WEIR_OK) {
        base_free(env, h);
        return status;
    }
    base_lock_enter(m->context->lock);
    h->next = m->context->components;
    m->context->components = h;
    base_lock_leave(m->context->lock);
    *out = h;
    return WEIR_OK;
}

static const mem_mark marks[] = {[WEIR_MARK_NONE] = MEM_MARK_NONE,
                                 [WEIR_MARK_HOT] = MEM_MARK_HOT,
                                 [WEIR_MARK_FIXED] = MEM_MARK_FIXED,
                                 [WEIR_MARK_COLD] = MEM_MARK_COLD,
                                 [WEIR_MARK_CPU] = MEM_MARK_CPU};

weir_status weir_component_add_unit(weir_component *h, const char *name, weir_mark mark, uint32_t *unit,
                                    weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if ((unsigned)mark > WEIR_MARK_CPU)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "unit %.60s: there is no mark %d",
                         name != NULL ? name : "(no name)", (int)mark);
    return mem_handle_add_unit(h->h, name, marks[mark], unit, err);
}

void weir_weight_init(weir_weight *w)
{
    *w = (weir_weight){.struct_size = sizeof(*w), .streamable = true};
}

static weir_status open_file(weir_component *h, const char *path, base_file **out, weir_error *err)
{
    for (rt_weight_file *f = h->files; f != NULL; f = f->next) {
        *out = f->file;
        /* Another file that lies there by now is opened anew: that it is read is what is asked for. */
        if (strcmp(f->path, path) == 0 && base_file_check(f->file, NULL) == WEIR_OK) return WEIR_OK;
    }
    rt_weight_file *f = base_alloc(h->env, BASE_TAG_RUNTIME, sizeof(*f), err);
    if (f == NULL) return err->code;
    *f = (rt_weight_file){.path = base_strdup(h->env, BASE_TAG_RUNTIME, path, err)};
    weir_status status = f->path == NULL ? err->code : base_file_open(h->env, path, &f->file, err);
    if (status != WEIR_OK) {
        base_free(h->env, f->path);
        base_free(h->env, f);
        return status;
    }
    f->next = h->files;
    h->files = f;
    *out = f->file;
    return WEIR_OK;
}

/* What a weight's bytes are; its file is opened where it has one. */
static weir_status read_source(weir_component *h, const weir_weight *w, const char *name,
                               mem_handle_weight *out, weir_error *err)
{
    const uint8_t *from = w->storage, *at = w->host;
    *out = (mem_handle_weight){.name = name,
                               .bytes = w->bytes,
                               .host = w->host,
                               .offset = w->offset,
                               .storage = w->storage,
                               .storage_bytes = w->storage_bytes,
                               .streamable = w->streamable,
                               .shared = w->shared,
                               .changes = w->changes};
    if ((w->host == NULL) == (w->path == NULL))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "weight %.60s: it needs either host memory or a file", name);
    if (w->storage != NULL && (w->host == NULL || at < from || w->bytes > w->storage_bytes ||
                               (uint64_t)(at - from) > w->storage_bytes - w->bytes))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "weight %.60s does not lie in its storage", name);
    return w->path == NULL ? WEIR_OK : open_file(h, w->path, &out->file, err);
}

weir_status weir_component_add_weight(weir_component *h, uint32_t unit, const weir_weight *w, uint32_t *id,
                                      weir_error *err)
{
    weir_error local;
    mem_handle_weight weight;
    err = rt_error(err, &local);
    if (!RT_IS(weir_weight, w, err)) return err->code;
    if (w->name == NULL) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "weight (no name): it needs one");
    weir_status status = read_source(h, w, w->name, &weight, err);
    if (status != WEIR_OK) return status;
    return mem_handle_add_weight(h->h, unit, &weight, id, err);
}

weir_status weir_component_replace(weir_component *h, uint32_t weight, const weir_weight *source,
                                   weir_error *err)
{
    weir_error local;
    mem_handle_weight w;
    err = rt_error(err, &local);
    if (!RT_IS(weir_weight, source, err)) return err->code;
    weir_status status =
        read_source(h, source, source->name != NULL ? source->name : "of a replacement", &w, err);
    return status == WEIR_OK ? mem_handle_replace(h->h, weight, &w, err) : status;
}

weir_status weir_component_mark(weir_component *h, const char *path, weir_mark mark, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if ((unsigned)mark > WEIR_MARK_CPU)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%.60s: there is no mark %d", path, (int)mark);
    return mem_handle_mark(h->h, path, marks[mark], err);
}

weir_status weir_component_seal(weir_component *h, weir_error *err)
{
    weir_error local;
    return mem_handle_seal(h->h, rt_error(err, &local));
}

void weir_component_destroy(weir_component *h)
{
    if (h == NULL) return;
    base_lock_enter(h->context->lock);
    weir_component **at = &h->context->components;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    base_lock_leave(h->context->lock);
    mem_handle_destroy(h->h);
    while (h->files != NULL) {
        rt_weight_file *f = h->files;
        h->files = f->next;
        base_file_close(f->file);
        base_free(h->env, f->path);
        base_free(h->env, f);
    }
    base_free(h->env, h);
}

weir_status weir_component_unload(weir_component *h, bool host, weir_error *err)
{
    weir_error local;
    return mem_handle_unload(h->h, host, rt_error(err, &local));
}

void weir_component_get_info(const weir_component *h, weir_component_info *out)
{
    mem_handle_info i;
    mem_handle_get_info(h->h, &i);
    *out = (weir_component_info){.struct_size = sizeof(*out),
                                 .engine = i.engine,
                                 .component = i.component,
                                 .n_units = i.n_units,
                                 .n_weights = i.n_weights,
                                 .size_bytes = i.size_bytes,
                                 .fixed_bytes = i.fixed_bytes,
                                 .smallest_bytes = i.smallest_bytes,
                                 .loaded_bytes = i.loaded_bytes,
                                 .slot_bytes = i.slot_bytes,
                                 .host_bytes = i.host_bytes,
                                 .streamed_bytes = i.streamed_bytes,
                                 .whole = i.whole,
                                 .busy = i.busy};
}

uint32_t weir_component_unit_of(const weir_component *h, uint32_t weight)
{
    return mem_handle_unit_of(h->h, weight);
}
