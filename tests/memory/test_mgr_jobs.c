/* Jobs beside each other: while one waits for storage or a copy, another whose component is resident goes on
 * (R3.7). No test here measures time: a latch holds the first job at one point after the other, and opens
 * when the second is through. */
#include "mgr_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define SAFETY_S  60 /* a job that is blocked after all ends in a failure, not in a test that hangs */
#define MAX_POINT 200

typedef struct latch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held, ended, open, gave_up;
} latch;

static void latch_init(latch *l)
{
    *l = (latch){.held = false};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
}

static void latch_destroy(latch *l)
{
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}

static void latch_set(latch *l, bool *what)
{
    pthread_mutex_lock(&l->lock);
    *what = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* The fault point's hold: the first job stands here. */
static void latch_hold(void *arg)
{
    latch *l = arg;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += SAFETY_S;
    pthread_mutex_lock(&l->lock);
    l->held = true;
    pthread_cond_broadcast(&l->changed);
    while (!l->open && !l->gave_up) l->gave_up = pthread_cond_timedwait(&l->changed, &l->lock, &until) != 0;
    pthread_mutex_unlock(&l->lock);
}

/* False where the first job ended before it came to the point. */
static bool latch_wait(latch *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->held && !l->ended) pthread_cond_wait(&l->changed, &l->lock);
    bool held = l->held;
    pthread_mutex_unlock(&l->lock);
    return held;
}

typedef struct first_job {
    rig mine;
    mem_manager *m;
    model *x;
    latch *l;
    weir_status status;
    job j;
} first_job;

static void *first_main(void *arg)
{
    first_job *f = arg;
    f->status = run_model(&f->mine, f->m, f->x, NULL, &f->j);
    latch_set(f->l, &f->l->ended);
    return NULL;
}

/* The second job's open phase goes on, ends, and another of its requests runs, while the first stands still.
 */
static void second_goes_on(rig *r, model *x, mem_request *request, mem_phase *p)
{
    job j = {.x = x, .m = r->m};
    uint32_t wanted[N_SUMS];
    mem_report report;
    mem_handle_info info;
    mem_manager_info whole;
    expected(x, wanted);
    ok(r, work(&j, p, &r->err));
    assert_memory_equal(j.sums, wanted, sizeof wanted);
    assert_true(wanted[0] != 0);
    ok(r, mem_phase_end(p, &r->err));
    mem_request_report(request, &report);
    assert_int_equal(report.streamed_bytes, 0);
    mem_request_end(request);
    report = check_model(r, r->m, x);
    assert_int_equal(report.streamed_bytes, 0);
    assert_int_equal(report.components[0].loaded_bytes, WHOLE);
    mem_handle_get_info(x->h, &info);
    assert_true(info.whole && !info.busy);
    ok(r, mem_manager_get_info(r->m, &whole, &r->err));
    assert_int_equal(whole.n_requests, 1);
}

typedef struct situation {
    base_fault_site site;
    uint64_t bytes; /* of the device */
    mem_switch host_copies;
    bool from_file;
} situation;

/* Whether the first job passed the point at all. */
static bool held_at(const situation *s, const char *path, uint64_t point)
{
    base_file *file = NULL;
    rig r;
    model slow, quick;
    latch l;
    mem_request *request;
    mem_phase *p;
    pthread_t thread;
    uint32_t wanted[N_SUMS];
    mem_policy policy = test_policy();
    policy.gpu_jobs = 2;
    policy.host_copies = s->host_copies;
    open_rig(&r, (dev_sim_options){.memory_bytes = s->bytes, .strict = true, .alignment = 4096}, policy);
    open_model(&r, r.m, &quick, "quick", MEM_ONESHOT, NULL);
    if (s->from_file) ok(&r, base_file_open(r.env, path, &file, &r.err));
    open_model(&r, r.m, &slow, "slow", MEM_ONESHOT, file);
    latch_init(&l);
    mem_request_desc d = {.name = "quick", .managers = &r.m, .n_managers = 1};
    mem_phase_desc phase = {.name = "work", .handles = &quick.h, .n_handles = 1, .memory_bytes = 131072};
    ok(&r, mem_request_begin(&d, &request, &r.err));
    ok(&r, mem_use(request, &phase, &p, &r.err));
    const base_fault_rule rule = {
        .site = s->site, .after = point, .length = -1, .hold = latch_hold, .hold_arg = &l, .passes = true};
    ok(&r, base_fault_arm(r.env, &rule, &r.err));
    first_job first = {.mine = {.env = r.env}, .m = r.m, .x = &slow, .l = &l};
    assert_int_equal(pthread_create(&thread, NULL, first_main, &first), 0);
    bool held = latch_wait(&l);
    if (held) {
        second_goes_on(&r, &quick, request, p);
    } else {
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(request);
    }
    latch_set(&l, &l.open);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (l.gave_up)
        fail_msg("%s %llu: the other job could not go on", base_fault_text(s->site),
                 (unsigned long long)point);
    if (first.status != WEIR_OK) fail_msg("the job that was held: %s", first.mine.err.message);
    expected(&slow, wanted);
    assert_memory_equal(first.j.sums, wanted, sizeof wanted);
    base_fault_clear(r.env);
    latch_destroy(&l);
    close_model(&slow);
    close_model(&quick);
    base_file_close(file);
    close_rig(&r);
    return held;
}

/* The first job's weights, as open_model makes them up. */
static void write_weights(const char *path)
{
    rig r;
    model x;
    open_rig(&r, (dev_sim_options){.memory_bytes = 4u << 20}, test_policy());
    open_model(&r, r.m, &x, "slow", MEM_ONESHOT, NULL);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, x.data, WHOLE), WHOLE);
    close(fd);
    close_model(&x);
    close_rig(&r);
}

/* R3.7: wherever a job waits for its file or its copies, another passes. */
static void a_resident_job_passes(void **state)
{
    (void)state;
    /* One whole, one of which two copies fit at a time, work for both, and less than a unit for what the
     * device rounds up. */
    const uint64_t both = 2 * WHOLE + (1u << 20),
                   one = WHOLE + 131072 + 4096 + 2 * UNIT_BYTES + 131072 + 65536;
    const situation situations[] = {
        {BASE_FAULT_READ, both, MEM_OFF, true}, /* placed through staging */
        {BASE_FAULT_READ, one, MEM_OFF, true},  /* streamed through staging */
        {BASE_FAULT_READ, one, MEM_ON, true},   /* read into copies in RAM */
        {BASE_FAULT_COPY, one, MEM_OFF, true},  {BASE_FAULT_COPY, one, MEM_OFF, false},
        {BASE_FAULT_COPY, both, MEM_ON, false},
    };
    char path[] = "/tmp/weir-jobs-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_weights(path);
    for (size_t i = 0; i < sizeof situations / sizeof *situations; i++) {
        uint64_t point = 0;
        while (point < MAX_POINT && held_at(&situations[i], path, point)) point++;
        /* At least each unit once. */
        assert_in_range(point, N_UNITS, MAX_POINT - 1);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_resident_job_passes)};
    return cmocka_run_group_tests_name("memory manager, jobs", tests, NULL, NULL);
}
