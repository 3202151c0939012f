/* A mutex and a condition that measures time with the monotonic clock. */
#define _GNU_SOURCE
#include "base_lock.h"
#include "base_alloc.h"

#include <pthread.h>
#include <time.h>

struct base_lock {
    base_env *env;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

weir_status base_lock_create(base_env *env, base_lock **out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    base_lock *lock = base_alloc(env, BASE_TAG_RUNTIME, sizeof *lock, err);
    if (lock == NULL) return err->code;
    lock->env = env;
    pthread_condattr_t attr;
    if (pthread_mutex_init(&lock->mutex, NULL) != 0) goto fail;
    if (pthread_condattr_init(&attr) != 0) goto fail_mutex;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int error = pthread_cond_init(&lock->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (error != 0) goto fail_mutex;
    *out = lock;
    return WEIR_OK;

fail_mutex:
    pthread_mutex_destroy(&lock->mutex);
fail:
    base_free(env, lock);
    return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "the system refused a lock; close other programs");
}

void base_lock_destroy(base_lock *lock)
{
    if (lock == NULL) return;
    pthread_cond_destroy(&lock->changed);
    pthread_mutex_destroy(&lock->mutex);
    base_free(lock->env, lock);
}

void base_lock_enter(base_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
}

void base_lock_leave(base_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}

void base_lock_wait(base_lock *lock, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (seconds > 1) seconds = 1;
    t.tv_nsec += (long)(seconds * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    pthread_cond_timedwait(&lock->changed, &lock->mutex, &t);
}

void base_lock_wake(base_lock *lock)
{
    pthread_cond_broadcast(&lock->changed);
}
