/* Queued reads by a few threads that call pread. */
#define _GNU_SOURCE
#include "base_aio_backend.h"
#include "base_internal.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define MAX_READERS 4
#define STACK_BYTES ((size_t)128 << 10)

/* A first-in first-out chain of ops. */
typedef struct op_queue {
    aio_op *first;
    aio_op *last;
} op_queue;

typedef struct reader_pool {
    base_env *env;
    pthread_mutex_t lock; /* held for waiting, ended and stop; nothing else is locked under it */
    pthread_cond_t work;  /* waiting is not empty, or stop */
    pthread_cond_t done;  /* ended is not empty */
    op_queue waiting;
    op_queue ended;
    bool stop;
    uint32_t n_threads;
    pthread_t threads[MAX_READERS];
} reader_pool;

static void push(op_queue *q, aio_op *op)
{
    op->next = NULL;
    if (q->last != NULL)
        q->last->next = op;
    else
        q->first = op;
    q->last = op;
}

static aio_op *pop(op_queue *q)
{
    aio_op *op = q->first;
    if (op == NULL) return NULL;
    q->first = op->next;
    if (q->first == NULL) q->last = NULL;
    return op;
}

static void *reader_main(void *arg)
{
    reader_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        aio_op *op = pop(&p->waiting);
        if (op == NULL) {
            if (p->stop) break;
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        ssize_t n = pread(op->fd, op->buf, op->len, (off_t)op->offset);
        op->result = n >= 0 ? (int32_t)n : -errno;
        pthread_mutex_lock(&p->lock);
        push(&p->ended, op);
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void threads_destroy(void *state)
{
    reader_pool *p = state;
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++) base_thread_join(p->env, p->threads[i], STACK_BYTES);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    base_free(p->env, p);
}

static weir_status threads_create(base_env *env, uint32_t depth, void **state, weir_error *err)
{
    weir_error local = {0};
    reader_pool *p = base_alloc(env, BASE_TAG_IO, sizeof *p, &local);
    if (p == NULL) goto fail;
    p->env = env;
    /* Linux never refuses these with default attributes. */
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (uint32_t i = 0; i < depth && i < MAX_READERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "weir-read-%u", i);
        if (base_thread_start(env, reader_main, p, name, STACK_BYTES, &p->threads[i], &local) != WEIR_OK)
            goto fail;
        p->n_threads++;
    }
    *state = p;
    return WEIR_OK;

fail:
    threads_destroy(p);
    if (err != NULL) *err = local;
    return local.code;
}

static int threads_start(void *state, aio_op *op)
{
    reader_pool *p = state;
    pthread_mutex_lock(&p->lock);
    push(&p->waiting, op);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static aio_op *threads_reap(void *state, bool block, int *error)
{
    (void)error;
    reader_pool *p = state;
    pthread_mutex_lock(&p->lock);
    aio_op *op;
    while ((op = pop(&p->ended)) == NULL && block) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return op;
}

const aio_backend base_aio_threads = {"threads", threads_create, threads_destroy, threads_start,
                                      threads_reap};
