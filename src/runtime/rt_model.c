/* Opening a model: its files are described and the engine checks that it can run them; no weight is read. */
#include "rt_internal.h"

#include <errno.h>
#include <stdlib.h>

/* The type that most bytes of weights have. */
static void count_bytes(weir_model *m)
{
    uint64_t by_type[BASE_DTYPE_LIMIT] = {0};
    for (uint64_t i = 0; i < fmt_model_n_tensors(m->file); i++) {
        const fmt_tensor *t = fmt_model_tensor(m->file, i);
        m->weight_bytes = rt_add(m->weight_bytes, t->bytes);
        if (t->dtype < BASE_DTYPE_LIMIT) by_type[t->dtype] += t->bytes;
    }
    for (uint32_t t = 0; t < BASE_DTYPE_LIMIT; t++) {
        if (by_type[t] > by_type[m->main_dtype]) m->main_dtype = t;
    }
    for (uint32_t i = 0; i < fmt_model_n_files(m->file); i++)
        m->file_bytes = rt_add(m->file_bytes, base_file_size(fmt_model_file(m->file, i)));
}

weir_status rt_network_set(weir_context *c, weir_error *err)
{
    uint64_t seconds;
    const char *text = base_settings_get(c->settings, "io.remote_timeout");
    char *end;
    errno = 0;
    seconds = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || seconds == 0 || seconds > 3600)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting io.remote_timeout is \"%.60s\": wanted 1 to 3600 seconds", text);
    c->env->remote_timeout_s = (uint32_t)seconds;
    c->env->remote_ca_file = base_settings_ca_file(c->settings);
    return WEIR_OK;
}

/* A run of the file when it is here has no network library in it, so the process is measured before. */
static weir_status open_network(weir_context *c, weir_error *err)
{
    uint64_t bytes;
    weir_status status = rt_network_set(c, err);
    if (status == WEIR_OK) status = rt_process_bytes(c, &bytes, err);
    if (status == WEIR_OK) c->process_is_fixed = true;
    return status;
}

static weir_status open_model(weir_context *c, const char *path, bool text_only, weir_model **out,
                              weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *out = NULL;
    if (path == NULL || path[0] == '\0')
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "no model file was named");
    weir_model *m = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof *m, err);
    if (m == NULL) return err->code;
    m->context = c;
    m->env = c->env;
    atomic_init(&m->cancel, false);
    m->text = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof *m->text, err);
    if (m->text == NULL) goto fail;
    if (base_path_is_url(path) && open_network(c, err) != WEIR_OK) goto fail;
    if (fmt_model_open(c->env, path, &m->file, err) != WEIR_OK) goto fail;
    if (!text_only) {
        if (lm_model_create(c->env, m->file, &m->lm, err) != WEIR_OK) goto fail;
        m->component = lm_model_component(m->lm);
        rt_storage_use(m);
    }
    count_bytes(m);
    c->n_models++;
    *out = m;
    return WEIR_OK;

fail:
    lm_model_destroy(m->lm);
    fmt_model_close(m->file);
    base_free(c->env, m->text);
    base_free(c->env, m);
    return err->code;
}

weir_status weir_model_open(weir_context *c, const char *path, weir_model **out, weir_error *err)
{
    rt_enter(c);
    weir_status status = open_model(c, path, false, out, err);
    rt_leave(c);
    return status;
}

weir_status weir_model_open_text(weir_context *c, const char *path, weir_model **out, weir_error *err)
{
    rt_enter(c);
    weir_status status = open_model(c, path, true, out, err);
    rt_leave(c);
    return status;
}

weir_status rt_model_runs(const weir_model *m, weir_error *err)
{
    if (m->lm != NULL) return WEIR_OK;
    return base_fail(err, WEIR_ERR_UNSUPPORTED,
                     "the model was opened for its text only; open it with weir_model_open");
}

weir_status rt_model_is_here(const weir_model *m, weir_error *err)
{
    for (uint32_t i = 0; i < fmt_model_n_files(m->file); i++) {
        const base_file *f = fmt_model_file(m->file, i);
        if (base_file_is_remote(f))
            return base_fail(err, WEIR_ERR_UNSUPPORTED,
                             "%s: only headers are read over the network, for inspect and plan; download the "
                             "file to use its weights",
                             base_file_path(f));
    }
    return WEIR_OK;
}

void weir_model_close(weir_model *m)
{
    if (m == NULL) return;
    weir_context *c = m->context;
    rt_enter(c);
    rt_unload(m);
    rt_text_finish(m);
    lm_model_destroy(m->lm);
    fmt_model_close(m->file);
    c->n_models--;
    base_free(m->env, m->text);
    base_free(m->env, m);
    rt_leave(c);
}

void weir_model_cancel(weir_model *m)
{
    atomic_store(&m->cancel, true);
}
