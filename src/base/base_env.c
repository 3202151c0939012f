/* The environment's life, the log, the clock, and how threads are started. */
#define _GNU_SOURCE
#include "base_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

weir_status base_env_create(base_env **out, weir_error *err)
{
    base_env *env = calloc(1, sizeof *env);
    if (env == NULL) goto fail;
    env->ledger = base_ledger_create();
    if (env->ledger == NULL) goto fail_env;
    *out = env;
    return WEIR_OK;

fail_env:
    free(env);
fail:
    return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "the system refused %zu bytes for the environment",
                     sizeof(base_env));
}

void base_env_destroy(base_env *env)
{
    if (env == NULL) return;
    base_fault_clear(env);
    base_ledger_destroy(env->ledger);
    free(env);
}

void base_log(const base_env *env, base_log_level level, const char *format, ...)
{
    if (env->log_fn == NULL) return;
    char line[WEIR_ERROR_MESSAGE_BYTES + 256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= 0) env->log_fn(env->log_arg, level, line);
}

double base_now(const base_env *env)
{
    if (env->clock_fn != NULL) return env->clock_fn(env->clock_arg);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

uint64_t base_thread_id(void)
{
    return (uint64_t)pthread_self();
}

weir_status base_thread_start(base_env *env, void *(*main)(void *), void *arg, const char *name,
                              size_t stack_bytes, pthread_t *out, weir_error *err)
{
    base_fault_rule rule;
    weir_status status = base_ledger_reserve(env, BASE_TAG_PROCESS, stack_bytes, err);
    if (status != WEIR_OK) return base_fail_context(err, status, "stack of thread %s", name);

    int error;
    if (base_fault(env, BASE_FAULT_THREAD_CREATE, &rule)) {
        error = rule.error != 0 ? rule.error : EAGAIN;
        goto fail;
    }
    pthread_attr_t attr;
    error = pthread_attr_init(&attr);
    if (error != 0) goto fail;
    error = pthread_attr_setstacksize(&attr, stack_bytes);
    if (error == 0) {
        /* Signals belong to the caller's threads: a new thread inherits the mask of its creator. Those that a
         * thread raises itself stay: blocked, they end the process without asking a handler (base_map.c). */
        static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};
        sigset_t all, old;
        sigfillset(&all);
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&all, own[i]);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        error = pthread_create(out, &attr, main, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    if (error != 0) goto fail;
    pthread_setname_np(*out, name);
    return WEIR_OK;

fail:
    base_ledger_release(env, BASE_TAG_PROCESS, stack_bytes);
    char text[128];
    return base_fail(err, WEIR_ERR_THREAD,
                     "thread %s (stack %zu bytes) could not be started: %s; use fewer threads or raise the "
                     "limit of processes (ulimit -u, pids.max)",
                     name, stack_bytes, base_errno_text(error, text));
}

void base_thread_join(base_env *env, pthread_t thread, size_t stack_bytes)
{
    pthread_join(thread, NULL);
    base_ledger_release(env, BASE_TAG_PROCESS, stack_bytes);
}
