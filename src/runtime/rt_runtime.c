/* What of each model and component is where at this moment (R10.2). */
#include "rt_memory_internal.h"

#include <stdio.h>
#include <string.h>

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static bool read_model(const weir_model *m, weir_resident *out)
{
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error none;
    if (weir_model_memory(m, &r, &none) != WEIR_OK) return false;
    bool on_device = m->run->source != NULL;
    *out = (weir_resident){
        .struct_size = sizeof *out,
        .kind = "model",
        .mode = r.vram_mode,
        .reason = r.reason,
        .size_bytes = r.size_bytes,
        .loaded_bytes = r.loaded_bytes,
        .streamed_bytes = r.streamed_bytes,
        .host_bytes = on_device ? r.host_copy_bytes : r.loaded_bytes,
        .copied_bytes = on_device ? r.device_streamed_bytes : r.read_bytes,
        .n_users = m->run->n_sessions,
    };
    snprintf(out->name, sizeof out->name, "%s", last_part(base_file_path(fmt_model_file(m->file, 0))));
    snprintf(out->device, sizeof out->device, "%s", r.device);
    return true;
}

static void read_component(const weir_component *h, weir_resident *out)
{
    mem_handle_info i;
    mem_handle_get_info(h->h, &i);
    const dev_device *device = mem_manager_device(i.manager);
    bool host = mem_manager_is_host(i.manager);
    *out = (weir_resident){
        .struct_size = sizeof *out,
        .kind = "component",
        .mode = mem_vram_mode_text(mem_manager_policy(i.manager)->vram_mode),
        .reason = "",
        .size_bytes = i.size_bytes,
        .loaded_bytes = host ? i.size_bytes : i.loaded_bytes,
        .host_bytes = host ? i.size_bytes : i.host_bytes,
        .copied_bytes = i.streamed_bytes,
        .n_users = i.busy,
    };
    out->streamed_bytes = out->size_bytes - base_min(out->size_bytes, out->loaded_bytes);
    snprintf(out->name, sizeof out->name, "%.60s:%.60s", i.engine, i.component);
    device->table->describe(device, out->device, sizeof out->device);
}

static bool read_one(const weir_context *c, size_t i, weir_resident *out)
{
    for (const weir_model *m = c->loaded; m != NULL; m = m->next_loaded)
        if (i-- == 0) return read_model(m, out);
    for (const weir_component *h = c->components; h != NULL; h = h->next) {
        if (i-- != 0) continue;
        read_component(h, out);
        return true;
    }
    return false;
}

bool weir_runtime(const weir_context *c, size_t i, weir_resident *out)
{
    base_lock_enter(c->lock);
    bool found = read_one(c, i, out);
    base_lock_leave(c->lock);
    return found;
}
