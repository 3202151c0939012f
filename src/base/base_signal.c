/* Signal handlers that come and go. */
#include "base_signal.h"

#include <stddef.h>

bool base_signal_take(base_signal *s)
{
    /* Where somebody came on top of us and stayed, he passes on to us: put in place again, we would pass on
     * to him, and he to us, without end. */
    if (!s->installed) {
        struct sigaction ours = {.sa_sigaction = s->handler,
                                 .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
        sigemptyset(&ours.sa_mask);
        if (sigaction(s->number, &ours, &s->before) != 0) return false;
        s->installed = true;
    }
    s->n_users++;
    return true;
}

void base_signal_give(base_signal *s)
{
    struct sigaction now;
    if (--s->n_users != 0) return;
    if (sigaction(s->number, NULL, &now) != 0 || (now.sa_flags & SA_SIGINFO) == 0 ||
        now.sa_sigaction != s->handler)
        return;
    s->installed = sigaction(s->number, &s->before, NULL) != 0;
}

void base_signal_pass_on(const base_signal *s, siginfo_t *info, void *context)
{
    if ((s->before.sa_flags & SA_SIGINFO) != 0) {
        s->before.sa_sigaction(s->number, info, context);
    } else if (s->before.sa_handler != SIG_DFL && s->before.sa_handler != SIG_IGN) {
        s->before.sa_handler(s->number);
    } else {
        /* Back to the default: the access is tried again and ends the process as it would have without us. */
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(s->number, &plain, NULL);
    }
}
