/* A handler for one signal, in place while somebody needs it; what is not ours goes to whoever had it before.
 * Inside base only. */
#ifndef WEIR_BASE_SIGNAL_H
#define WEIR_BASE_SIGNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct base_signal {
    int number;
    void (*handler)(int sig, siginfo_t *info, void *context);
    uint32_t n_users;
    bool installed; /* ours was put in place and not taken out since; somebody may stand on top of it */
    struct sigaction before;
} base_signal;

/* One more user, one fewer; the caller's lock is held. False where the system refuses the handler. */
bool base_signal_take(base_signal *s);
void base_signal_give(base_signal *s);
/* From the handler: a signal that is not ours. */
void base_signal_pass_on(const base_signal *s, siginfo_t *info, void *context);

#endif
