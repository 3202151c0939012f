/* Contexts: the environment that everything of an application hangs off, its settings, and the machine. */
#include "rt_internal.h"

#include <string.h>

_Static_assert((int)WEIR_LOG_DEBUG == (int)BASE_LOG_DEBUG && (int)WEIR_LOG_ERROR == (int)BASE_LOG_ERROR,
               "log levels are handed through");
_Static_assert(WEIR_HASH_SEED == BASE_HASH_SEED, "one hash");

void weir_context_options_init(weir_context_options *o)
{
    *o = (weir_context_options){.struct_size = sizeof *o};
}

static void hand_log(void *arg, base_log_level level, const char *line)
{
    const weir_context *c = arg;
    c->log(c->log_arg, (weir_log_level)level, line);
}

static weir_status arm_faults(weir_context *c, weir_error *err)
{
    base_fault_clear(c->env);
    const char *text = base_settings_get(c->settings, "fault");
    return text[0] != '\0' ? base_fault_parse(c->env, text, err) : WEIR_OK;
}

weir_status weir_context_create(const weir_context_options *o, weir_context **out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *out = NULL;
    if (o != NULL && !RT_IS(weir_context_options, o, err)) return err->code;
    base_env *env = NULL;
    weir_status status = base_env_create(&env, err);
    if (status != WEIR_OK) return status;
    weir_context *c = base_alloc(env, BASE_TAG_RUNTIME, sizeof *c, err);
    if (c == NULL) goto fail_env;
    c->env = env;
    if (o != NULL && o->log != NULL) {
        c->log = o->log;
        c->log_arg = o->log_arg;
        env->log_fn = hand_log;
        env->log_arg = c;
    }
    if (base_lock_create(env, &c->lock, err) != WEIR_OK) goto fail;
    if (base_settings_create(env, o != NULL ? o->settings_file : NULL, &c->settings, err) != WEIR_OK)
        goto fail;
    if (arm_faults(c, err) != WEIR_OK) goto fail_settings;
    *out = c;
    return WEIR_OK;

fail_settings:
    base_settings_destroy(c->settings);
fail:
    base_lock_destroy(c->lock);
    base_free(env, c);
fail_env:
    base_env_destroy(env);
    return err->code;
}

void weir_context_destroy(weir_context *c)
{
    if (c == NULL) return;
    base_env *env = c->env;
    base_settings_destroy(c->settings);
    base_lock_destroy(c->lock);
    base_free(env, c);
    base_env_destroy(env);
}

void rt_enter(weir_context *c)
{
    uint64_t me = base_thread_id();
    base_lock_enter(c->lock);
    while (c->n_turns != 0 && c->turn_thread != me) base_lock_wait(c->lock, 1);
    c->turn_thread = me;
    c->n_turns++;
    base_lock_leave(c->lock);
}

bool rt_try_enter(weir_context *c)
{
    uint64_t me = base_thread_id();
    base_lock_enter(c->lock);
    bool mine = c->n_turns == 0 || c->turn_thread == me;
    if (mine) {
        c->turn_thread = me;
        c->n_turns++;
    }
    base_lock_leave(c->lock);
    return mine;
}

void rt_leave(weir_context *c)
{
    base_lock_enter(c->lock);
    if (--c->n_turns == 0) base_lock_wake(c->lock);
    base_lock_leave(c->lock);
}

weir_status weir_context_set(weir_context *c, const char *name, const char *value, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (name == NULL || value == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a setting needs a name and a value");
    weir_status status = base_settings_set(c->settings, name, value, err);
    /* Borrowed from the settings, where another text may now stand. */
    if (c->env->remote_ca_file != NULL) c->env->remote_ca_file = base_settings_ca_file(c->settings);
    if (status == WEIR_OK && strcmp(name, "fault") == 0) status = arm_faults(c, err);
    return status;
}

bool weir_context_setting(const weir_context *c, size_t i, const char **name, const char **value,
                          const char **source, const char **help)
{
    const char *h;
    const char *n = base_settings_name(i, &h);
    if (n == NULL) return false;
    if (name != NULL) *name = n;
    if (value != NULL) *value = base_settings_get(c->settings, n);
    if (source != NULL) *source = base_settings_source(c->settings, n);
    if (help != NULL) *help = h;
    return true;
}

weir_status weir_size_parse(const char *text, uint64_t *bytes, weir_error *err)
{
    return base_size_parse(text, bytes, err);
}

const char *weir_size_text(uint64_t bytes, char *buf)
{
    return base_size_text(bytes, buf);
}

uint64_t weir_logits_hash(uint64_t h, const float *logits, size_t n)
{
    /* Four chains side by side: one would wait for its own multiplication at every word. */
    const uint64_t prime = UINT64_C(0x100000001b3);
    uint64_t lane[4] = {h, h ^ 1, h ^ 2, h ^ 3};
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &logits[i], sizeof word);
        lane[i % 4] = (lane[i % 4] ^ word) * prime;
    }
    return base_hash(h, lane, sizeof lane);
}

weir_status weir_machine_read(weir_context *c, weir_machine *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    base_memory_limits limits;
    weir_status status = rt_limits_read(c, &limits, err);
    if (status != WEIR_OK) return status;
    const kern_table *kern;
    status = kern_select(base_settings_get(c->settings, "cpu"), &kern, err);
    if (status != WEIR_OK) return status;
    weir_machine m = {
        .struct_size = sizeof m,
        .n_cpus = base_cpu_count(),
        .cpu_sets = kern_available(),
        .cpu_set = kern->name,
        .total_bytes = limits.total_bytes,
        .available_bytes = limits.available_bytes,
        .cgroup_limit_bytes = limits.cgroup_limit_bytes,
        .cgroup_free_bytes = limits.cgroup_free_bytes,
        .cgroup_version = limits.cgroup_version,
        .packs = strcmp(base_settings_get(c->settings, "compute.pack"), "off") != 0,
        .pack_version = KERN_PACK_VERSION,
        .pack_rows = KERN_PACK_ROWS,
    };
    status = rt_default_budget(c, &limits, &m.default_budget_bytes, &m.reserve_bytes, err);
    if (status == WEIR_OK) *out = m;
    return status;
}
