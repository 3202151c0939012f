/* The pool: every item once, whatever the split; nothing of a run is seen after it. */
#include "base_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_N 3000

typedef struct tally {
    unsigned char seen[MAX_N]; /* plain: two workers on one item would be a data race */
    uint32_t workers[256];     /* pieces by worker */
    size_t largest;
    uint32_t n_threads;
    _Atomic bool wrong;
} tally;

static void count_items(void *arg, uint32_t worker, size_t begin, size_t end)
{
    tally *t = arg;
    if (worker >= t->n_threads || begin >= end || end > MAX_N) {
        t->wrong = true;
        return;
    }
    for (size_t i = begin; i < end; i++) t->seen[i]++;
    t->workers[worker]++;
}

static void every_item_runs_once(void **state)
{
    fixture *fix = *state;
    static const uint32_t threads[] = {1, 2, 3, 7, 16};
    static const size_t lengths[] = {0, 1, 2, 3, 15, 16, 17, 1000, MAX_N};
    static const size_t grains[] = {0, 1, 2, 7, 64, 1000, 5000, SIZE_MAX};
    for (size_t a = 0; a < sizeof threads / sizeof *threads; a++) {
        base_pool *pool = NULL;
        assert_status(base_pool_create(fix->env, threads[a], &pool, &fix->err), WEIR_OK);
        assert_int_equal(base_pool_threads(pool), threads[a]);
        for (size_t b = 0; b < sizeof lengths / sizeof *lengths; b++) {
            for (size_t c = 0; c < sizeof grains / sizeof *grains; c++) {
                tally *t = calloc(1, sizeof *t);
                t->n_threads = threads[a];
                base_pool_run(pool, count_items, t, lengths[b], grains[c]);
                assert_false(t->wrong);
                uint32_t pieces = 0;
                for (size_t i = 0; i < MAX_N; i++) assert_int_equal(t->seen[i], i < lengths[b]);
                for (int i = 0; i < 256; i++) pieces += t->workers[i];
                size_t grain = grains[c] == 0 ? 1 : grains[c];
                assert_int_equal(pieces, lengths[b] == 0 ? 0 : (lengths[b] - 1) / grain + 1);
                free(t);
            }
        }
        base_pool_destroy(pool);
    }
    base_pool_destroy(NULL);
}

/* Each run reads what the run before wrote, so a worker that lags behind shows. */
typedef struct chain {
    uint64_t from[64];
    uint64_t to[64];
} chain;

static void chain_step(void *arg, uint32_t worker, size_t begin, size_t end)
{
    (void)worker;
    chain *c = arg;
    for (size_t i = begin; i < end; i++) c->to[i] = c->from[i] + c->from[(i + 1) % 64] * 3 + i;
}

static void many_small_runs_follow_each_other(void **state)
{
    fixture *fix = *state;
    for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
        base_pool *pool = NULL;
        assert_status(base_pool_create(fix->env, n_threads, &pool, &fix->err), WEIR_OK);
        chain a = {.from = {1, 2, 3}}, b = a;
        for (int run = 0; run < 20000; run++) {
            base_pool_run(pool, chain_step, &a, 64, 1 + (size_t)run % 33);
            chain_step(&b, 0, 0, 64);
            if (memcmp(a.to, b.to, sizeof a.to) != 0)
                fail_msg("run %d of %u threads differs", run, n_threads);
            memcpy(a.from, a.to, sizeof a.from);
            memcpy(b.from, b.to, sizeof b.from);
            if (run % 4000 == 3999) { /* long enough for all workers to fall asleep */
                struct timespec nap = {.tv_nsec = 2000000};
                nanosleep(&nap, NULL);
            }
        }
        base_pool_destroy(pool);
    }
}

/* Pieces that wait for each other: they end only when both threads are at work at the same time. */
static void meet(void *arg, uint32_t worker, size_t begin, size_t end)
{
    (void)worker;
    (void)begin;
    (void)end;
    _Atomic int *here = arg;
    atomic_fetch_add(here, 1);
    struct timespec nap = {.tv_nsec = 100000};
    for (int i = 0; atomic_load(here) < 2 && i < 100000; i++) nanosleep(&nap, NULL);
}

static void sleeping_workers_are_woken(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    assert_status(base_pool_create(fix->env, 2, &pool, &fix->err), WEIR_OK);
    for (int i = 0; i < 20; i++) {
        struct timespec nap = {.tv_nsec = 1000000};
        nanosleep(&nap, NULL);
        _Atomic int here = 0;
        base_pool_run(pool, meet, &here, 2, 1);
        assert_int_equal(here, 2);
    }
    base_pool_destroy(pool);
}

/* Workers other than the caller linger, so that the caller has to sleep until they leave. */
static void linger(void *arg, uint32_t worker, size_t begin, size_t end)
{
    tally *t = arg;
    struct timespec nap = {.tv_nsec = worker == 0 ? 100000 : 1000000 + 300000 * (long)worker};
    nanosleep(&nap, NULL);
    count_items(t, worker, begin, end);
}

static void the_caller_sleeps_until_the_last_has_left(void **state)
{
    fixture *fix = *state;
    for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
        base_pool *pool = NULL;
        uint32_t helped = 0;
        assert_status(base_pool_create(fix->env, n_threads, &pool, &fix->err), WEIR_OK);
        for (int run = 0; run < 30; run++) {
            tally *t = calloc(1, sizeof *t);
            t->n_threads = n_threads;
            base_pool_run(pool, linger, t, 8, 1);
            for (int i = 0; i < 8; i++) assert_int_equal(t->seen[i], 1);
            for (uint32_t i = 1; i < n_threads; i++) helped += t->workers[i];
            free(t);
        }
        assert_true(helped > 0);
        base_pool_destroy(pool);
    }
}

/* Notes who worker 1 is; both pieces wait for each other, so it takes one. */
typedef struct roll_call {
    _Atomic int here;
    _Atomic long worker_id; /* as the kernel numbers threads */
} roll_call;

static void answer_roll(void *arg, uint32_t worker, size_t begin, size_t end)
{
    roll_call *c = arg;
    if (worker == 1) c->worker_id = syscall(SYS_gettid);
    meet(&c->here, worker, begin, end);
}

/* Everybody's number; `wanted` pieces (0: four) wait for each other, so each thread takes one. */
typedef struct roster {
    _Atomic int here;
    int wanted;
    long ids[256];
} roster;

static void enlist(void *arg, uint32_t worker, size_t begin, size_t end)
{
    roster *r = arg;
    struct timespec nap = {.tv_nsec = 100000};
    int wanted = r->wanted != 0 ? r->wanted : 4;
    (void)begin;
    (void)end;
    r->ids[worker] = syscall(SYS_gettid);
    atomic_fetch_add(&r->here, 1);
    for (int i = 0; atomic_load(&r->here) < wanted && i < 100000; i++) nanosleep(&nap, NULL);
}

/* The nanoseconds that a thread has run and how often it was given a processor, once it sleeps: when two
 * looks, a millisecond apart, find it asleep and with the same numbers. */
static bool asleep(long id, unsigned long long ran[2])
{
    char path[64], line[256];
    unsigned long long before[2] = {0, 0};
    for (int i = 0; i < 5000; i++) {
        struct timespec nap = {.tv_nsec = 1000000};
        unsigned long long waited;
        char state = '?';
        snprintf(path, sizeof path, "/proc/self/task/%ld/stat", id);
        FILE *f = fopen(path, "r");
        if (f == NULL) return false;
        if (fgets(line, sizeof line, f) != NULL && strrchr(line, ')') != NULL) state = strrchr(line, ')')[2];
        fclose(f);
        snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", id);
        if ((f = fopen(path, "r")) == NULL) return false; /* a kernel without these figures */
        bool read = fscanf(f, "%llu %llu %llu", &ran[0], &waited, &ran[1]) == 3;
        fclose(f);
        if (!read) return false;
        if (state == 'S' && i > 0 && memcmp(ran, before, sizeof before) == 0) return true;
        memcpy(before, ran, sizeof before);
        nanosleep(&nap, NULL);
    }
    fail_msg("thread %ld does not go to sleep", id);
    return false;
}

/* Pools of two contexts that take turns: while the workers of one compute, those of the other neither spin
 * nor wake. */
static void an_idle_pool_leaves_the_processors_to_others(void **state)
{
    fixture *fix = *state;
    base_pool *pool[2] = {NULL, NULL};
    roll_call calls[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) assert_status(base_pool_create(fix->env, 2, &pool[i], &fix->err), WEIR_OK);
    for (int turn = 0; turn < 4; turn++) {
        unsigned long long before[2], after[2];
        roll_call *busy = &calls[turn % 2], *idle = &calls[1 - turn % 2];
        for (int i = 0; i < 2; i++) {
            calls[i].here = 0;
            base_pool_run(pool[i], answer_roll, &calls[i], 2, 1);
            assert_int_equal(calls[i].here, 2);
            assert_true(calls[i].worker_id > 0);
        }
        assert_int_not_equal(busy->worker_id, idle->worker_id);
        if (!asleep(idle->worker_id, before)) {
            base_pool_destroy(pool[0]);
            base_pool_destroy(pool[1]);
            skip();
        }
        for (int run = 0; run < 2000; run++) {
            chain a = {.from = {1, 2, 3}};
            base_pool_run(pool[turn % 2], chain_step, &a, 64, 1);
            assert_int_equal(a.to[0], 1 + 2 * 3);
        }
        busy->here = 0;
        base_pool_run(pool[turn % 2], answer_roll, busy, 2, 1);
        assert_int_equal(busy->here, 2);
        assert_true(asleep(idle->worker_id, after));
        assert_true(before[0] > 0 && before[1] > 0);
        assert_int_equal(after[0], before[0]);
        assert_int_equal(after[1], before[1]);
    }
    base_pool_destroy(pool[0]);
    base_pool_destroy(pool[1]);
}

/* A run on two threads of a pool of four: worker 1 is woken for it every time, workers 2 and 3 stay asleep
 * and take nothing. */
static void a_run_uses_no_more_threads_than_it_asked_for(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    roster all = {.here = 0};
    unsigned long long before[2][2], after[2][2];
    assert_status(base_pool_create(fix->env, 4, &pool, &fix->err), WEIR_OK);
    base_pool_run(pool, enlist, &all, 4, 1);
    assert_int_equal(all.here, 4);
    bool counted = true;
    for (int i = 0; i < 2; i++) counted = asleep(all.ids[2 + i], before[i]) && counted;
    for (int run = 0; run < 50; run++) {
        _Atomic int here = 0;
        struct timespec nap = {.tv_nsec = run % 2 * 300000}; /* asleep, and perhaps spinning */
        nanosleep(&nap, NULL);
        base_pool_run_on(pool, 2, meet, &here, 2, 1);
        assert_int_equal(here, 2);
        tally *t = calloc(1, sizeof *t);
        t->n_threads = 2;
        base_pool_run_on(pool, 2, count_items, t, 1000, 7);
        assert_false(t->wrong);
        for (int i = 0; i < 1000; i++) assert_int_equal(t->seen[i], 1);
        free(t);
    }
    for (int i = 0; counted && i < 2; i++) {
        assert_true(asleep(all.ids[2 + i], after[i]));
        assert_int_equal(after[i][0], before[i][0]);
        assert_int_equal(after[i][1], before[i][1]);
    }
    all.here = 0; /* and all four are there when they are wanted */
    base_pool_run(pool, enlist, &all, 4, 1);
    assert_int_equal(all.here, 4);
    base_pool_destroy(pool);
}

/* Callers on threads of their own, each with its own number of threads and its own data. */
typedef struct caller {
    base_pool *pool;
    uint32_t n_threads;
    struct caller *all;
    _Atomic int inside; /* of its runs */
    _Atomic bool together, differs;
} caller;

typedef struct step {
    caller *who;
    chain *data;
} step;

static void guarded_step(void *arg, uint32_t worker, size_t begin, size_t end)
{
    step *s = arg;
    caller *c = s->who;
    int inside = atomic_fetch_add(&c->inside, 1) + 1;
    if (worker >= c->n_threads || inside > (int)c->n_threads) c->together = true;
    for (int i = 0; i < 3; i++)
        if (&c->all[i] != c && atomic_load(&c->all[i].inside) != 0) c->together = true;
    chain_step(s->data, worker, begin, end);
    atomic_fetch_sub(&c->inside, 1);
}

static void *call_often(void *arg)
{
    caller *c = arg;
    chain a = {.from = {1, 2, 3}}, b = a;
    step s = {.who = c, .data = &a};
    for (int run = 0; run < 4000; run++) {
        base_pool_run_on(c->pool, c->n_threads, guarded_step, &s, 64, 1 + (size_t)run % 17);
        chain_step(&b, 0, 0, 64);
        if (memcmp(a.to, b.to, sizeof a.to) != 0) c->differs = true;
        memcpy(a.from, a.to, sizeof a.from);
        memcpy(b.from, b.to, sizeof b.from);
    }
    return NULL;
}

/* No two runs at the same time, so never more busy threads than the larger of them has; also while workers
 * come and go. */
static void callers_take_turns(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    caller callers[3] = {{0}, {0}, {0}};
    pthread_t threads[3];
    assert_status(base_pool_create(fix->env, 4, &pool, &fix->err), WEIR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        callers[i].pool = pool;
        callers[i].n_threads = 2 + i;
        callers[i].all = callers;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    for (uint32_t i = 0; i < 40; i++) {
        struct timespec nap = {.tv_nsec = 500000};
        assert_status(base_pool_resize(pool, 1 + i * 3 % 7, &fix->err), WEIR_OK);
        assert_int_equal(base_pool_threads(pool), 1 + i * 3 % 7);
        nanosleep(&nap, NULL);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_false(callers[i].together);
        assert_false(callers[i].differs);
    }
    base_pool_destroy(pool);
}

static uint64_t bytes_of(fixture *fix, base_tag tag)
{
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    return v.tag_bytes[tag];
}

/* What a pool holds is what base_pool_bytes says; one that cannot grow is as before. */
static void a_pool_changes_its_size(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    static const uint32_t sizes[] = {1, 5, 2, 2, 40, 3, 1};
    assert_status(base_pool_create(fix->env, 3, &pool, &fix->err), WEIR_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t runtime, process;
        assert_status(base_pool_resize(pool, sizes[i], &fix->err), WEIR_OK);
        base_pool_bytes(sizes[i], &runtime, &process);
        assert_int_equal(process, (sizes[i] - 1) * (256 << 10));
        assert_int_equal(bytes_of(fix, BASE_TAG_RUNTIME), runtime);
        assert_int_equal(bytes_of(fix, BASE_TAG_PROCESS), process);
        roster all = {.here = 0};
        uint32_t n = sizes[i] < 8 ? sizes[i] : 8;
        all.wanted = (int)n;
        if (n > 1) base_pool_run(pool, enlist, &all, n, 1);
        assert_int_equal(all.here, n > 1 ? n : 0);
    }
    assert_int_equal(base_pool_resize(pool, 0, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(base_pool_resize(pool, 257, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(base_pool_resize(pool, 2, &fix->err), WEIR_OK);
    uint64_t before = booked(fix->env);
    for (uint64_t i = 0; i < 3; i++) {
        base_fault_rule rule = rule_of(BASE_FAULT_THREAD_CREATE, i, false);
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_pool_resize(pool, 5, &fix->err), WEIR_ERR_THREAD);
        base_fault_clear(fix->env);
        assert_int_equal(base_pool_threads(pool), 2);
        assert_int_equal(booked(fix->env), before);
        _Atomic int here = 0;
        base_pool_run(pool, meet, &here, 2, 1);
        assert_int_equal(here, 2);
    }
    base_pool_destroy(pool);
}

static void creating_fails_cleanly_at_every_fault(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    assert_int_equal(base_pool_create(fix->env, 0, &pool, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(base_pool_create(fix->env, 257, &pool, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    /* One block, then three workers. */
    for (uint64_t i = 0; i < 4; i++) {
        base_fault_rule rule =
            rule_of(i < 1 ? BASE_FAULT_HOST_ALLOC : BASE_FAULT_THREAD_CREATE, i < 1 ? 0 : i - 1, false);
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_pool_create(fix->env, 4, &pool, &fix->err),
                         i < 1 ? WEIR_ERR_OUT_OF_MEMORY : WEIR_ERR_THREAD);
        assert_null(pool);
        assert_int_equal(booked(fix->env), 0);
        base_fault_clear(fix->env);
    }
    assert_non_null(strstr(fix->err.message, "weir-work-3"));
    /* The stacks count. */
    assert_status(base_ledger_set_limit(fix->env, 600 << 10, &fix->err), WEIR_OK);
    assert_int_equal(base_pool_create(fix->env, 4, &pool, &fix->err), WEIR_ERR_BUDGET);
    assert_int_equal(booked(fix->env), 0);
    assert_status(base_pool_create(fix->env, 3, &pool, &fix->err), WEIR_OK);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_PROCESS], 2 * (256 << 10));
    base_pool_destroy(pool);
}

static void pools_come_and_go(void **state)
{
    fixture *fix = *state;
    for (int i = 0; i < 100; i++) {
        base_pool *pool = NULL;
        tally *t = calloc(1, sizeof *t);
        t->n_threads = 1 + (uint32_t)i % 5;
        assert_status(base_pool_create(fix->env, t->n_threads, &pool, &fix->err), WEIR_OK);
        if (i % 3 != 0) base_pool_run(pool, count_items, t, 100, 1);
        base_pool_destroy(pool);
        free(t);
    }
}

static void an_empty_run(void *arg, uint32_t worker, size_t begin, size_t end)
{
    (void)arg;
    (void)worker;
    (void)begin;
    (void)end;
}

/* Prints the cost of a run; asserts nothing about time, which depends on who else is here. */
static void cost_of_a_run(void **state)
{
    fixture *fix = *state;
    base_pool *pool = NULL;
    assert_status(base_pool_create(fix->env, 2, &pool, &fix->err), WEIR_OK);
    double before = base_now(fix->env);
    for (int i = 0; i < 20000; i++) base_pool_run(pool, an_empty_run, NULL, 2, 1);
    print_message("empty run on 2 threads: %.2f us\n", (base_now(fix->env) - before) * 1e6 / 20000);
    base_pool_destroy(pool);
    assert_true(base_cpu_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_item_runs_once),
        TEST(many_small_runs_follow_each_other),
        TEST(sleeping_workers_are_woken),
        TEST(the_caller_sleeps_until_the_last_has_left),
        TEST(an_idle_pool_leaves_the_processors_to_others),
        TEST(a_run_uses_no_more_threads_than_it_asked_for),
        TEST(callers_take_turns),
        TEST(a_pool_changes_its_size),
        TEST(creating_fails_cleanly_at_every_fault),
        TEST(pools_come_and_go),
        TEST(cost_of_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
