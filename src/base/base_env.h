/* The environment: what would otherwise be global. One per weir_context; every allocation, read and thread
 * is made through it, so that the ledger counts it and a fault point can make it fail. */
#ifndef WEIR_BASE_ENV_H
#define WEIR_BASE_ENV_H

#include "base_error.h"

typedef struct base_ledger base_ledger;
typedef struct base_faults base_faults;

typedef enum base_log_level { BASE_LOG_DEBUG, BASE_LOG_INFO, BASE_LOG_WARN, BASE_LOG_ERROR } base_log_level;
typedef void (*base_log_fn)(void *arg, base_log_level level, const char *line);

/* Seconds since an arbitrary start; a table entry so that a test can replace it. */
typedef double (*base_clock_fn)(void *arg);

typedef struct base_env {
    base_ledger *ledger; /* owned */
    base_faults *faults; /* owned; NULL when no fault is armed */
    base_log_fn log_fn;  /* NULL: silent (the library never prints) */
    void *log_arg;
    base_clock_fn clock_fn; /* NULL: the monotonic clock */
    void *clock_arg;
    uint32_t remote_timeout_s;  /* of requests to servers; 0: 30 */
    const char *remote_ca_file; /* certificates that they may have, borrowed; NULL or "": the system's */
} base_env;

/* Creates an environment whose ledger has no limit yet. Destroy takes NULL. */
weir_status base_env_create(base_env **out, weir_error *err);
void base_env_destroy(base_env *env);

void base_log(const base_env *env, base_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
double base_now(const base_env *env);
/* A number that no other thread has while this one lives. */
uint64_t base_thread_id(void);

#endif
