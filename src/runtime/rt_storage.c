/* What storage delivers: measured when somebody asks for it, remembered in the user's cache folder, and used
 * by the reader. It decides sizes and times, never a bit. */
#include "rt_internal.h"

#include <string.h>

#define AIO_DEPTH       64
#define MEASURE_SECONDS 1.2
#define MEASURE_BYTES   (UINT64_C(8) << 30)

static bool probe_is_off(const weir_context *c)
{
    return strcmp(base_settings_get(c->settings, "io.probe"), "off") == 0;
}

weir_status rt_reader_options(const weir_context *c, base_aio_options *out, weir_error *err)
{
    const char *backend = base_settings_get(c->settings, "io.backend");
    const char *direct = base_settings_get(c->settings, "io.direct");
    const char *probe = base_settings_get(c->settings, "io.probe");
    *out = (base_aio_options){.backend = BASE_AIO_AUTO, .depth = AIO_DEPTH};
    if (strcmp(backend, "io_uring") == 0)
        out->backend = BASE_AIO_URING;
    else if (strcmp(backend, "threads") == 0)
        out->backend = BASE_AIO_THREADS;
    else if (strcmp(backend, "auto") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting io.backend is \"%.60s\": auto, io_uring or threads", backend);
    out->buffered = strcmp(direct, "off") == 0;
    if (!out->buffered && strcmp(direct, "auto") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "setting io.direct is \"%.60s\": auto or off",
                         direct);
    if (!probe_is_off(c) && strcmp(probe, "auto") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "setting io.probe is \"%.60s\": auto or off", probe);
    return WEIR_OK;
}

/* Nothing that goes wrong with what is remembered is an error: then nothing is. */
static bool recall(const weir_context *c, const base_file *file, const base_aio_options *aio,
                   base_storage *out)
{
    char *folder = base_settings_cache_folder(c->settings, NULL);
    bool found = folder != NULL && folder[0] != '\0' && base_storage_recall(c->env, folder, file, aio, out);
    base_free(c->env, folder);
    return found;
}

static void remember(const weir_context *c, const base_storage *s)
{
    weir_error why = {0};
    char *folder = base_settings_cache_folder(c->settings, &why);
    if (folder != NULL && folder[0] != '\0' && base_storage_remember(c->env, folder, s, &why) != WEIR_OK)
        base_log(c->env, BASE_LOG_INFO, "what was measured of the storage is not kept: %s", why.message);
    base_free(c->env, folder);
}

static void fill(const base_storage *s, bool fresh, weir_storage *out)
{
    char text[24];
    *out = (weir_storage){
        .struct_size = sizeof *out,
        .bytes_per_s = s->bytes_per_s,
        .random_bytes_per_s = s->random_bytes_per_s,
        .latency_seconds = s->latency_s,
        .memory_bytes_per_s = s->memory_bytes_per_s,
        .depth = s->depth,
        .read_bytes = s->read_bytes,
        .in_memory = s->in_memory,
        .slow = s->slow,
        .fresh = fresh,
        .measured_at = s->when,
    };
    const char *name = base_storage_fs_text(s->fs_type, text);
    memcpy(out->file_system, name, base_min(strlen(name) + 1, sizeof out->file_system - 1));
    out->reader = s->bytes_per_s > 0 ? base_aio_text(s->threads, s->buffered) : "none";
}

static weir_status measure(const weir_context *c, base_file *file, const base_aio_options *aio,
                           base_storage *out, weir_error *err)
{
    weir_status status = base_storage_measure(c->env, file, aio, MEASURE_SECONDS, MEASURE_BYTES, out, err);
    if (status == WEIR_OK) remember(c, out);
    return status;
}

weir_status weir_storage_read(weir_context *c, const char *path, bool fresh, weir_storage *out,
                              weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    base_aio_options aio;
    base_storage s = {0};
    char *name = NULL;
    base_file *file = NULL;
    weir_status status = rt_reader_options(c, &aio, err);
    if (status == WEIR_OK) status = base_storage_pick(c->env, path, &name, err);
    if (status != WEIR_OK) return status;
    status = base_file_open(c->env, name, &file, err);
    if (status == WEIR_OK && fresh)
        status = measure(c, file, &aio, &s, err);
    else if (status == WEIR_OK && !recall(c, file, &aio, &s))
        s = (base_storage){0};
    if (status == WEIR_OK) fill(&s, fresh, out);
    base_file_close(file);
    base_free(c->env, name);
    return status;
}

base_file *rt_storage_file(const weir_model *m)
{
    base_file *largest = fmt_model_file(m->file, 0);
    for (uint32_t i = 1; i < fmt_model_n_files(m->file); i++) {
        base_file *f = fmt_model_file(m->file, i);
        if (base_file_size(f) > base_file_size(largest)) largest = f;
    }
    return largest;
}

static void hand_on(weir_model *m)
{
    const base_storage *s = &m->storage;
    if (s->bytes_per_s <= 0 || m->component == NULL) return;
    mem_reader r = {.half_rate_bytes = s->half_rate_bytes,
                    .read_bytes = s->read_bytes,
                    .depth = s->depth,
                    .slow = s->slow && !s->in_memory};
    mem_component_set_reader(m->component, &r);
}

void rt_storage_use(weir_model *m)
{
    base_aio_options aio;
    weir_error none;
    if (probe_is_off(m->context) || rt_reader_options(m->context, &aio, &none) != WEIR_OK) return;
    if (rt_model_is_here(m, &none) != WEIR_OK) return;
    if (recall(m->context, rt_storage_file(m), &aio, &m->storage)) hand_on(m);
}

weir_status weir_model_storage(weir_model *m, bool wanted, weir_storage *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    base_aio_options aio;
    weir_status status = rt_reader_options(m->context, &aio, err);
    if (status != WEIR_OK) return status;
    bool known = m->storage.bytes_per_s > 0;
    if (wanted) status = rt_model_is_here(m, err);
    if (status != WEIR_OK) return status;
    if (!known && wanted && !probe_is_off(m->context)) {
        status = measure(m->context, rt_storage_file(m), &aio, &m->storage, err);
        if (status != WEIR_OK) {
            m->storage = (base_storage){0};
            return status;
        }
        if (m->run == NULL) hand_on(m);
    }
    fill(&m->storage, !known && m->storage.bytes_per_s > 0, out);
    return WEIR_OK;
}
