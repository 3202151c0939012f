/* Ctrl-C: a note for the command and a cancelled model, instead of a program that dies where it stands. */
#include "cli.h"

#include <signal.h>

/* The mutable globals of the program: a signal handler has no argument. */
static weir_model *volatile running_model;
static volatile sig_atomic_t noted;

static void on_interrupt(int sig)
{
    noted = sig;
    if (running_model != NULL) weir_model_cancel(running_model);
}

void cli_catch_interrupt(weir_model *m, bool once)
{
    noted = 0;
    running_model = m;
    /* Restarted calls: a library's read is not ours to break off. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    if (once) action.sa_flags |= (int)SA_RESETHAND;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    if (once) sigaction(SIGTERM, &action, NULL);
}

weir_model *cli_interrupt_model(weir_model *m)
{
    weir_model *before = running_model;
    running_model = m;
    return before;
}

void cli_interrupt_again(void)
{
    if (noted != 0 && running_model != NULL) weir_model_cancel(running_model);
}

int cli_pending_interrupt(void)
{
    return noted;
}

int cli_take_interrupt(void)
{
    int sig = noted;
    noted = 0;
    return sig;
}

bool cli_stop(void *arg)
{
    (void)arg;
    return noted != 0;
}

void cli_release_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    running_model = NULL;
}
