/* Lanes: a ring of tasks, one thread that takes them out, and a count of those that are done. */
#define _GNU_SOURCE
#include "base_lane.h"
#include "base_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES ((size_t)256 << 10)

struct base_lane {
    base_env *env;
    base_lane_fn fn;
    void *arg;
    size_t task_bytes, stride;
    uint32_t depth;
    uint8_t *tasks;       /* depth of them; task number n lies at (n - 1) mod depth */
    pthread_mutex_t lock; /* held for all below; nothing else is locked under it */
    pthread_cond_t work;  /* pushed > done, or stop */
    pthread_cond_t moved; /* done changed */
    uint64_t pushed, done;
    bool stop, started, has_sync;
    pthread_t thread;
};

static void *lane_main(void *arg)
{
    base_lane *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        if (l->done == l->pushed) {
            if (l->stop) break;
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        /* Its place stays taken until it counts as done. */
        void *task = l->tasks + l->done % l->depth * l->stride;
        pthread_mutex_unlock(&l->lock);
        l->fn(l->arg, task);
        pthread_mutex_lock(&l->lock);
        l->done++;
        pthread_cond_broadcast(&l->moved);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

weir_status base_lane_create(base_env *env, const char *name, size_t task_bytes, uint32_t depth,
                             base_lane_fn fn, void *arg, base_lane **out, weir_error *err)
{
    weir_error local = {0};
    base_lane *l = base_alloc(env, BASE_TAG_RUNTIME, sizeof *l, &local);
    if (l == NULL) goto fail;
    *l = (base_lane){.env = env, .fn = fn, .arg = arg, .depth = depth, .task_bytes = task_bytes};
    l->stride = (size_t)base_align_up(task_bytes, 16);
    l->tasks = base_alloc_array(env, BASE_TAG_RUNTIME, depth, l->stride, &local);
    if (l->tasks == NULL) goto fail;
    pthread_mutex_init(&l->lock, NULL); /* none of the three fails on Linux */
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->moved, NULL);
    l->has_sync = true;
    if (base_thread_start(env, lane_main, l, name, STACK_BYTES, &l->thread, &local) != WEIR_OK) goto fail;
    l->started = true;
    *out = l;
    return WEIR_OK;

fail:
    base_lane_destroy(l);
    if (err != NULL) *err = local;
    return local.code;
}

void base_lane_destroy(base_lane *l)
{
    if (l == NULL) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->lock);
        base_thread_join(l->env, l->thread, STACK_BYTES);
    }
    if (l->has_sync) {
        pthread_cond_destroy(&l->moved);
        pthread_cond_destroy(&l->work);
        pthread_mutex_destroy(&l->lock);
    }
    base_free(l->env, l->tasks);
    base_free(l->env, l);
}

uint64_t base_lane_push(base_lane *l, const void *task)
{
    pthread_mutex_lock(&l->lock);
    while (l->pushed - l->done >= l->depth) pthread_cond_wait(&l->moved, &l->lock);
    memcpy(l->tasks + l->pushed % l->depth * l->stride, task, l->task_bytes);
    uint64_t number = ++l->pushed;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    return number;
}

uint64_t base_lane_pushed(base_lane *l)
{
    pthread_mutex_lock(&l->lock);
    uint64_t number = l->pushed;
    pthread_mutex_unlock(&l->lock);
    return number;
}

bool base_lane_reached(base_lane *l, uint64_t number)
{
    pthread_mutex_lock(&l->lock);
    bool reached = l->done >= number;
    pthread_mutex_unlock(&l->lock);
    return reached;
}

void base_lane_wait(base_lane *l, uint64_t number)
{
    pthread_mutex_lock(&l->lock);
    while (l->done < number) pthread_cond_wait(&l->moved, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void base_sleep(double seconds)
{
    if (!(seconds > 0)) return;
    seconds = seconds < 3600 ? seconds : 3600;
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}
