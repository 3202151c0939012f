/* Fault points: named places that a test (or WEIR_FAULT in the command line) makes fail.
 *
 * A rule names a site, an optional tag, a countdown, and whether it fires once or for good. The counters
 * live in the environment, so a failure replays. With no rule armed a fault point costs one test. */
#ifndef WEIR_BASE_FAULT_H
#define WEIR_BASE_FAULT_H

#include "base_env.h"

#define BASE_FAULT_MAP(X)                                                                                    \
    X(HOST_ALLOC, "host_alloc")                                                                              \
    X(DEVICE_ALLOC, "device_alloc")                                                                          \
    X(PINNED_ALLOC, "pinned_alloc")                                                                          \
    X(OPEN, "open")                                                                                          \
    X(READ, "read")             /* error carries errno; length shortens the read */                          \
    X(SUBMIT, "submit")         /* queueing a read */                                                        \
    X(COMPLETION, "completion") /* a queued read's result */                                                 \
    X(IO_URING, "io_uring")     /* setting up io_uring */                                                    \
    X(DIRECT_IO, "direct_io")   /* opening for direct reads */                                               \
    X(MAP, "map")               /* mapping a file */                                                         \
    X(COPY, "copy")                                                                                          \
    X(KERNEL_BUILD, "kernel_build")                                                                          \
    X(THREAD_CREATE, "thread_create")

typedef enum base_fault_site {
#define BASE_FAULT_ENUM(name, text) BASE_FAULT_##name,
    BASE_FAULT_MAP(BASE_FAULT_ENUM)
#undef BASE_FAULT_ENUM
        BASE_FAULT_COUNT
} base_fault_site;

typedef struct base_fault_rule {
    base_fault_site site;
    uint64_t after;  /* fires at this ordinal of the site, from 0 */
    bool for_good;   /* false: once */
    int error;       /* errno to report; 0: EIO (reads) or ENOMEM (allocations) */
    int64_t length;  /* >= 0: a read of this many bytes instead of an error */
    int64_t missing; /* > 0: a read that ends so many bytes early */
    uint32_t delay_ms;
    /* For tests of what others can do meanwhile: called where the rule fires, after the delay; may be NULL.
     */
    void (*hold)(void *arg);
    void *hold_arg;
    bool passes; /* nothing fails: only delay and hold */
} base_fault_rule;

const char *base_fault_text(base_fault_site site);
weir_status base_fault_arm(base_env *env, const base_fault_rule *rule, weir_error *err);
/* "site:after[:for_good][:errno=N][:length=N][:missing=N][:delay=MS]", comma-separated. */
weir_status base_fault_parse(base_env *env, const char *text, weir_error *err);
/* Counting must be on (armed or base_fault_count_on) for the numbers to move. */
weir_status base_fault_count_on(base_env *env, weir_error *err);
uint64_t base_fault_count(const base_env *env, base_fault_site site);
void base_fault_clear(base_env *env);

/* True when this passage must fail; *fired (may be NULL) gets the rule. Sleeps the rule's delay, calls its
 * hold. */
bool base_fault_slow(base_env *env, base_fault_site site, base_fault_rule *fired);
static inline bool base_fault(base_env *env, base_fault_site site, base_fault_rule *fired)
{
    return env->faults != NULL && base_fault_slow(env, site, fired);
}

#endif
