/* While chat waits for a line, another thread lets the models give memory back that others need, a check a
 * second. It lives from prompt to line, so that models have one thread at a time. */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_MODELS = 2, CANCEL_NANOSECONDS = 50000000 };

struct cli_idle {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stop; /* under lock */
    weir_model *models[MAX_MODELS];
};

static void *follow(void *arg)
{
    cli_idle *idle = arg;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&idle->lock);
    while (!idle->stop) {
        next.tv_sec++;
        while (!idle->stop && pthread_cond_timedwait(&idle->woken, &idle->lock, &next) == 0) {
        }
        if (idle->stop) break;
        pthread_mutex_unlock(&idle->lock);
        /* What a model has lost, its next answer tells. */
        for (int i = 0; i < MAX_MODELS; i++)
            if (idle->models[i] != NULL) weir_model_follow_memory(idle->models[i], NULL);
        clock_gettime(CLOCK_MONOTONIC, &next);
        pthread_mutex_lock(&idle->lock);
    }
    pthread_mutex_unlock(&idle->lock);
    return NULL;
}

/* Signals are for the thread that waits for the line. */
static bool start(cli_idle *idle)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool runs = pthread_create(&idle->thread, NULL, follow, idle) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs;
}

cli_idle *cli_idle_begin(weir_model *model, weir_model *draft)
{
    cli_idle *idle = calloc(1, sizeof *idle);
    if (idle == NULL) return NULL;
    idle->models[0] = model;
    idle->models[1] = draft;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&idle->lock, NULL);
    pthread_cond_init(&idle->woken, &attr);
    pthread_condattr_destroy(&attr);
    if (start(idle)) return idle;
    pthread_cond_destroy(&idle->woken);
    pthread_mutex_destroy(&idle->lock);
    free(idle);
    return NULL;
}

void cli_idle_end(cli_idle *idle)
{
    if (idle == NULL) return;
    pthread_mutex_lock(&idle->lock);
    idle->stop = true;
    pthread_cond_signal(&idle->woken);
    pthread_mutex_unlock(&idle->lock);
    /* Who has typed a line does not wait for weights that are being read back. Again and again, as the call
     * forgets a cancel that came before it. */
    for (;;) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += CANCEL_NANOSECONDS;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        if (pthread_timedjoin_np(idle->thread, NULL, &soon) != ETIMEDOUT) break;
        for (int i = 0; i < MAX_MODELS; i++)
            if (idle->models[i] != NULL) weir_model_cancel(idle->models[i]);
    }
    pthread_cond_destroy(&idle->woken);
    pthread_mutex_destroy(&idle->lock);
    free(idle);
}
