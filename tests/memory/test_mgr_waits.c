/* Jobs beside each other (R3.7), requests over two devices (R2.1), and components that are never there
 * together (R15.3). */
#include "mgr_test.h"

#include <pthread.h>

#define MIB (UINT64_C(1) << 20)

/* A job on a thread of its own: begin, perhaps a phase, end. */
typedef struct waiter {
    rig *r;
    model *x; /* NULL: no phase */
    atomic_bool cancel;
    atomic_uint *turn; /* counts who came through, may be NULL */
    uint32_t my_turn;
    weir_status status;
    weir_error err;
    mem_report report;
    pthread_t thread;
} waiter;

static void *wait_main(void *arg)
{
    waiter *w = arg;
    mem_request *q;
    const mem_request_desc d = {
        .name = "waiter", .managers = &w->r->m, .n_managers = 1, .cancel = &w->cancel};
    w->status = mem_request_begin(&d, &q, &w->err);
    if (w->status != WEIR_OK) return NULL;
    if (w->turn != NULL) w->my_turn = atomic_fetch_add(w->turn, 1);
    if (w->x != NULL) {
        visit v = {.x = w->x, .m = w->r->m, .n = 4, .order = {0, 5, N_UNITS, 2}};
        const mem_run_desc run = {
            .phase = {.name = "wait", .handles = &w->x->h, .n_handles = 1}, .fn = visit_units, .arg = &v};
        w->status = mem_run_phase(q, &run, &w->err);
        if (w->status == WEIR_OK) check_visit(&v);
    }
    mem_request_report(q, &w->report);
    mem_request_end(q);
    return NULL;
}

static void start(waiter *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, wait_main, w), 0);
}

static void until_waiting(rig *r, uint32_t n)
{
    while (manager_info(r).n_waiting != n) usleep(200);
}

/* R3.7: gpu_jobs run at once, those behind them wait in the order in which they came. */
static void jobs_wait_in_order(void **state)
{
    (void)state;
    for (uint32_t jobs = 1; jobs <= 3; jobs++) {
        rig r;
        model x;
        mem_policy policy = test_policy();
        mem_request *running[3];
        waiter w[3];
        atomic_uint turn = 0;
        policy.gpu_jobs = jobs;
        open_rig(&r, device_of(4 * MIB), policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        for (uint32_t i = 0; i < jobs; i++) running[i] = begin(&r, "first");
        assert_int_equal(manager_info(&r).n_requests, jobs);
        for (uint32_t i = 0; i < 3; i++) {
            w[i] = (waiter){.r = &r, .x = &x, .turn = &turn};
            start(&w[i]);
            until_waiting(&r, i + 1);
        }
        assert_int_equal(turn, 0);
        for (uint32_t i = jobs; i-- > 1;) mem_request_end(running[i]);
        mem_request_end(running[0]);
        for (int i = 0; i < 3; i++) {
            pthread_join(w[i].thread, NULL);
            assert_int_equal(w[i].status, WEIR_OK);
            if (jobs == 1) assert_int_equal(w[i].my_turn, i);
        }
        close_model(&x);
        close_rig(&r);
    }
}

typedef struct other_thread {
    rig *r;
    mem_request *q;
    mem_handle *h;
    mem_phase *p;
} other_thread;

static void *use_main(void *arg)
{
    other_thread *e = arg;
    e->p = use(e->r, e->q, &e->h, 1, 0);
    return NULL;
}

/* A phase that another thread opens: for one of its own a thread does not wait. */
static mem_phase *use_elsewhere(rig *r, mem_request *q, mem_handle *h)
{
    other_thread e = {.r = r, .q = q, .h = h};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, use_main, &e), 0);
    pthread_join(thread, NULL);
    return e.p;
}

/* R3.7: waiting has a limit, and says for whom; a job that waits hears of its cancellation, wherever it
 * waits. */
static void waiting_ends(void **state)
{
    (void)state;
    rig r;
    model x;
    mem_request *q, *second;
    mem_phase *p;
    mem_policy policy = test_policy();
    policy.wait_limit_s = 0;
    open_rig(&r, device_of(4 * MIB), policy);
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    q = begin(&r, "first");
    const mem_request_desc d = {.name = "second", .managers = &r.m, .n_managers = 1};
    assert_int_equal(mem_request_begin(&d, &second, &r.err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(r.err.message, "request second waited 0 s for other jobs"));
    assert_non_null(strstr(r.err.message, "compute.gpu_jobs"));
    mem_request_end(q);
    ok(&r, mem_request_begin(&d, &second, &r.err));
    mem_request_end(second);
    close_model(&x);
    close_rig(&r);

    policy.gpu_jobs = 2;
    open_rig(&r, device_of(4 * MIB), policy);
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    q = begin(&r, "first");
    second = begin(&r, "second");
    p = use_elsewhere(&r, q, x.h);
    mem_phase *late;
    const mem_phase_desc phase = {.name = "late", .handles = &x.h, .n_handles = 1};
    assert_int_equal(mem_use(second, &phase, &late, &r.err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(r.err.message, "phase late of request second waited"));
    assert_non_null(strstr(r.err.message, "a component that another job uses"));
    visit v = {.x = &x, .m = r.m, .n = 2, .order = {0, N_UNITS}};
    const mem_run_desc run = {.phase = phase, .fn = visit_units, .arg = &v};
    mem_report rep;
    assert_int_equal(mem_run_phase(second, &run, &r.err), WEIR_ERR_DEVICE);
    mem_request_report(second, &rep);
    assert_int_equal(rep.n_device_retries, 0); /* the limit holds once, not for each attempt */
    ok(&r, mem_phase_end(p, &r.err));
    ok(&r, mem_run_phase(second, &run, &r.err));
    check_visit(&v);
    p = use(&r, second, &x.h, 1, 0);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(second);
    mem_request_end(q);
    close_model(&x);
    close_rig(&r);

    policy.wait_limit_s = 600;
    for (uint32_t jobs = 1; jobs <= 2; jobs++) { /* 1: at the door; 2: for the component */
        policy.gpu_jobs = jobs;
        open_rig(&r, device_of(4 * MIB), policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        q = begin(&r, "first");
        p = use(&r, q, &x.h, 1, 0);
        waiter w = {.r = &r, .x = &x};
        start(&w);
        if (jobs == 1) until_waiting(&r, 1);
        while (jobs == 2 && manager_info(&r).n_requests != 2) usleep(200);
        atomic_store(&w.cancel, true);
        pthread_join(w.thread, NULL);
        assert_int_equal(w.status, WEIR_ERR_CANCELLED);
        assert_non_null(strstr(w.err.message, "request waiter was cancelled"));
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
        check_model(&r, r.m, &x);
        close_model(&x);
        close_rig(&r);
    }
}

/* R3.7: a job whose smallest working set does not fit beside what another holds waits for it, and is whole
 * after that; one that fits beside it does not wait. In high the whole model counts. */
static void jobs_wait_for_room(void **state)
{
    (void)state;
    static const struct {
        mem_vram_mode mode;
        uint64_t beside; /* bytes of the device beside what the first holds */
        bool waits;
    } cases[] = {{MEM_VRAM_AUTO, 4096 + UNIT_BYTES - 4096, true},
                 {MEM_VRAM_AUTO, 4096 + UNIT_BYTES + 4096, false},
                 {MEM_VRAM_HIGH, WHOLE - 4096, true},
                 {MEM_VRAM_HIGH, WHOLE + 4096, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rig r;
        model a, b;
        mem_policy policy = test_policy();
        policy.gpu_jobs = 2;
        policy.vram_mode = cases[c].mode;
        open_rig(&r, device_of(WHOLE + cases[c].beside), policy);
        open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
        open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
        mem_request *q = begin(&r, "first");
        mem_phase *p = use(&r, q, &a.h, 1, 0);
        waiter w = {.r = &r, .x = &b};
        mem_handle_info info;
        start(&w);
        if (cases[c].waits) {
            while (manager_info(&r).n_requests != 2) usleep(200);
            for (int i = 0; i < 5; i++) { /* it stays outside: nothing of it comes while the first is here */
                usleep(25000);
                mem_handle_get_info(b.h, &info);
                assert_true(info.loaded_bytes == 0 && !info.busy);
            }
        } else {
            pthread_join(w.thread, NULL);
        }
        mem_handle_get_info(a.h, &info);
        assert_true(info.whole);
        ok(&r, mem_phase_end(p, &r.err));
        if (cases[c].waits) pthread_join(w.thread, NULL);
        mem_request_end(q);
        assert_int_equal(w.status, WEIR_OK);
        mem_handle_get_info(b.h, &info);
        assert_int_equal(info.whole, cases[c].waits || cases[c].mode == MEM_VRAM_HIGH);
        close_model(&a);
        close_model(&b);
        close_rig(&r);
    }
}

/* Who hears of what is loaded may ask the manager for whom it is. */
typedef struct listener {
    rig *r;
    model *x;
    uint64_t done, total, loaded;
    uint32_t calls;
} listener;

static void hear(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    listener *l = arg;
    mem_handle_info i;
    assert_int_equal(manager_info(l->r).n_requests, 1);
    mem_handle_get_info(l->x->h, &i);
    assert_true(i.busy && done_bytes > l->done);
    l->loaded = i.loaded_bytes;
    l->done = done_bytes;
    l->total = total_bytes;
    l->calls++;
}

static void loading_is_heard(void **state)
{
    (void)state;
    rig r;
    model x;
    listener l = {.r = &r, .x = &x};
    open_rig(&r, device_of(4 * MIB), test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    mem_handle_on_load(x.h, hear, &l);
    check_model(&r, r.m, &x);
    assert_int_equal(l.calls, N_UNITS + 1);
    assert_true(l.done == WHOLE && l.total == WHOLE && l.loaded == WHOLE);
    check_model(&r, r.m, &x); /* it is there */
    assert_int_equal(l.calls, N_UNITS + 1);
    close_model(&x);
    close_rig(&r);
}

typedef struct teller {
    rig *r;
    model *x;
    uint32_t calls, yields;
    uint64_t loaded;
} teller;

static void ask_back(void *arg, base_log_level level, const char *line)
{
    teller *t = arg;
    (void)level;
    t->calls++;
    t->yields += strstr(line, "gave up") != NULL;
    if (manager_info(t->r).n_handles != 0) t->loaded = info_of(t->x).loaded_bytes;
}

/* R10.1: what is logged while phases place, yield and drop is told with no lock held: who hears may ask.
 * Where more lines come at once than are kept, that is told too. */
static void logging_is_heard(void **state)
{
    (void)state;
    rig r;
    model many[20];
    teller t = {.r = &r, .x = &many[0]};
    open_rig(&r, device_of(20 * (WHOLE + 131072)), test_policy());
    for (int i = 0; i < 20; i++) open_model(&r, r.m, &many[i], "a", MEM_ONESHOT, NULL);
    for (int i = 0; i < 19; i++) check_model(&r, r.m, &many[i]);
    r.env->log_fn = ask_back;
    r.env->log_arg = &t;
    void *address;
    const uint64_t kept = manager_info(&r).free_bytes + 18 * (uint64_t)WHOLE;
    ok(&r, mem_manager_alloc(r.m, kept, "kept", &address, &r.err));
    assert_int_equal(t.yields, 16); /* as many as there is room for lines, */
    assert_int_equal(t.calls, 17);  /* and one that says so */
    mem_manager_free(r.m, address);
    mem_policy policy = test_policy();
    policy.vram_mode = MEM_VRAM_LOW;
    ok(&r, mem_manager_set_policy(r.m, &policy, &r.err));
    check_model(&r, r.m, &many[0]);
    assert_int_equal(t.calls, 18);
    assert_int_equal(t.loaded, 4096);
    for (int i = 0; i < 20; i++) close_model(&many[i]);
    close_rig(&r);
}

/* R3.7: when it has waited long enough it tries with what there is. */
static void then_it_tries_again(void **state)
{
    (void)state;
    rig r;
    model a, b;
    mem_policy policy = test_policy();
    policy.gpu_jobs = 2;
    policy.wait_limit_s = 0;
    open_rig(&r, device_of(WHOLE + 4096 + 8192), policy);
    open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
    open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
    mem_request *q = begin(&r, "first");
    mem_phase *p = use(&r, q, &a.h, 1, 0);
    waiter second = {.r = &r, .x = &b};
    start(&second);
    pthread_join(second.thread, NULL);
    assert_int_equal(second.status, WEIR_ERR_DEVICE_MEMORY); /* truly too small */
    assert_true(second.report.job_wait_s > 0);
    mem_handle_info info;
    mem_handle_get_info(a.h, &info);
    assert_true(info.whole);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    check_model(&r, r.m, &b);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* R3.7: for a request of its own thread nobody waits, since nobody could end it meanwhile: another request is
 * refused where no more may run, a component that is used is refused too, and room is what is left. */
static void own_requests_are_refused(void **state)
{
    (void)state;
    for (uint32_t jobs = 1; jobs <= 2; jobs++) {
        rig r;
        model a, b;
        mem_request *q, *inner = NULL;
        mem_phase *p, *second = NULL;
        mem_policy policy = test_policy();
        policy.gpu_jobs = jobs;
        open_rig(&r, device_of(WHOLE + WHOLE / 2 + 131072), policy);
        open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
        open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
        const mem_request_desc d = {.name = "inner", .managers = &r.m, .n_managers = 1};
        mem_request_desc call = d;
        call.one_call = true;
        q = begin(&r, "outer");
        if (jobs == 1) { /* who ends in the same call can wait for no request of its thread at all */
            assert_int_equal(mem_request_begin(&call, &inner, &r.err), WEIR_ERR_INVALID_ARGUMENT);
            assert_non_null(strstr(r.err.message, "request inner would wait for request outer"));
        }
        p = use(&r, q, &a.h, 1, 0);
        if (jobs == 1) {
            assert_int_equal(mem_request_begin(&d, &inner, &r.err), WEIR_ERR_INVALID_ARGUMENT);
            assert_non_null(strstr(r.err.message, "compute.gpu_jobs (1)"));
        } else {
            const mem_phase_desc same = {.name = "phase", .handles = &a.h, .n_handles = 1};
            ok(&r, mem_request_begin(&d, &inner, &r.err));
            assert_int_equal(mem_use(inner, &same, &second, &r.err), WEIR_ERR_INVALID_ARGUMENT);
            assert_non_null(strstr(r.err.message, "test:a, which request outer of the same thread uses"));
            mem_request_end(inner);
            check_model(&r, r.m, &b); /* in what a leaves */
            assert_false(info_of(&b).whole);
            assert_true(info_of(&a).whole);
        }
        assert_int_equal(manager_info(&r).n_waiting, 0);
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
        check_model(&r, r.m, &a);
        check_model(&r, r.m, &b);
        close_model(&a);
        close_model(&b);
        close_rig(&r);
    }
}

/* ---- two devices ---- */

typedef struct twins {
    rig r;
    dev_device *d2;
    mem_manager *m2;
} twins;

static void open_twins(twins *t, uint64_t bytes, uint64_t bytes2, mem_policy policy)
{
    const dev_sim_options o = device_of(bytes2);
    open_rig(&t->r, device_of(bytes), policy);
    ok(&t->r, dev_sim_create(t->r.env, "ref", 1, &o, &t->d2, &t->r.err));
    ok(&t->r, mem_manager_create(t->r.env, t->d2, &policy, t->r.m, &t->m2, &t->r.err));
}

static void close_twins(twins *t)
{
    mem_manager_destroy(t->m2);
    dev_destroy(t->d2);
    close_rig(&t->r);
}

typedef struct both {
    visit on[2];
    uint32_t fails;
} both;

static weir_status visit_both(void *arg, mem_phase *p, weir_error *err)
{
    both *b = arg;
    weir_status status = visit_units(&b->on[0], p, err);
    if (status == WEIR_OK) status = visit_units(&b->on[1], p, err);
    if (status == WEIR_OK && b->fails != 0) {
        b->fails--;
        return base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test");
    }
    return status;
}

/* R2.1, R3.1: one phase over two devices; each weighs its own components and its own working memory, each
 * with its own budget; a retry makes room on both (R8.1). */
static void one_phase_on_two_devices(void **state)
{
    (void)state;
    for (uint32_t fails = 0; fails < 2; fails++) {
        twins t;
        model a, b, idle[2];
        mem_report rep;
        mem_handle_info info;
        open_twins(&t, 4 * MIB, 2 * WHOLE + WHOLE / 2, test_policy());
        rig *r = &t.r;
        open_model(r, r->m, &a, "a", MEM_ONESHOT, NULL);
        open_model(r, t.m2, &b, "b", MEM_ONESHOT, NULL);
        open_model(r, r->m, &idle[0], "c", MEM_ONESHOT, NULL);
        open_model(r, t.m2, &idle[1], "d", MEM_ONESHOT, NULL);
        check_model(r, r->m, &idle[0]);
        check_model(r, t.m2, &idle[1]);
        mem_manager *const managers[2] = {r->m, t.m2};
        mem_handle *const handles[2] = {a.h, b.h};
        const mem_need need = {.manager = t.m2, .bytes = WHOLE};
        both x = {{{.x = &a, .m = r->m, .n = 3, .order = {1, 2, N_UNITS}},
                   {.x = &b, .m = t.m2, .n = 3, .order = {4, 0, 4}}},
                  fails};
        mem_request *q;
        const mem_request_desc d = {.name = "two", .managers = managers, .n_managers = 2};
        const mem_run_desc run = {.phase = {.name = "both",
                                            .handles = handles,
                                            .n_handles = 2,
                                            .memory_bytes = 8192,
                                            .others = &need,
                                            .n_others = 1},
                                  .fn = visit_both,
                                  .arg = &x};
        ok(r, mem_request_begin(&d, &q, &r->err));
        ok(r, mem_run_phase(q, &run, &r->err));
        mem_request_report(q, &rep);
        mem_request_end(q);
        check_visit(&x.on[0]);
        check_visit(&x.on[1]);
        assert_int_equal(rep.components[0].estimate_bytes, 8192);
        assert_int_equal(rep.components[1].estimate_bytes, WHOLE);
        assert_int_equal(rep.n_oom_retries, fails);
        for (int i = 0; i < 2; i++) {
            mem_handle_get_info(idle[i].h, &info);
            /* Only the second device was too small; a retry empties both of what is idle. */
            if (fails != 0) assert_int_equal(info.loaded_bytes, 0);
            if (fails == 0) assert_int_equal(info.whole, i == 0);
        }
        check_model(r, t.m2, &b);
        for (int i = 0; i < 2; i++) close_model(&idle[i]);
        close_model(&a);
        close_model(&b);
        close_twins(&t);
    }
}

/* What belongs to a device that the request did not name is an error which says so. */
static void devices_are_named(void **state)
{
    (void)state;
    twins t;
    rig stranger;
    model b;
    mem_request *q;
    mem_phase *p;
    void *address;
    open_twins(&t, 4 * MIB, 4 * MIB, test_policy());
    open_rig(&stranger, device_of(MIB), test_policy());
    rig *r = &t.r;
    open_model(r, t.m2, &b, "b", MEM_ONESHOT, NULL);
    mem_manager *const strangers[2] = {r->m, stranger.m};
    const mem_request_desc odd = {.name = "odd", .managers = strangers, .n_managers = 2};
    assert_int_equal(mem_request_begin(&odd, &q, &r->err), WEIR_ERR_INVALID_ARGUMENT);
    q = begin(r, "one");
    const mem_phase_desc elsewhere = {.name = "p", .handles = &b.h, .n_handles = 1};
    assert_int_equal(mem_use(q, &elsewhere, &p, &r->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r->err.message, "test:b is on a device that its request did not name"));
    const mem_need need = {.manager = t.m2, .bytes = 1};
    const mem_phase_desc needy = {.name = "p", .others = &need, .n_others = 1};
    assert_int_equal(mem_use(q, &needy, &p, &r->err), WEIR_ERR_INVALID_ARGUMENT);
    p = use(r, q, NULL, 0, 0);
    assert_int_equal(mem_phase_alloc(p, t.m2, 64, "x", &address, &r->err), WEIR_ERR_INVALID_ARGUMENT);
    ok(r, mem_phase_end(p, &r->err));
    mem_request_end(q);
    check_model(r, t.m2, &b);
    close_model(&b);
    close_rig(&stranger);
    close_twins(&t);
}

/* ---- R15.3 ---- */

/* R15.3, R2.3: an encoder, a core and a decoder on a device for one of them are never there together, nor in
 * RAM; what is needed once is gone before the core comes. */
static void phased_residency(void **state)
{
    (void)state;
    rig r;
    model source, table, part[3];
    char path[128];
    base_ledger_view v;
    mem_policy policy = test_policy();
    static const char *const names[] = {"encoder", "core", "decoder"};
    policy.host_copies = MEM_OFF;
    policy.vram_mode = MEM_VRAM_HIGH;
    open_rig(&r, device_of(WHOLE + 131072), policy);
    open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
    base_file *file = model_file(&r, &source, path);
    open_model(&r, r.m, &table, "f", MEM_ONESHOT, file);
    for (int i = 0; i < 3; i++) {
        open_model(&r, r.m, &part[i], names[i], MEM_ONESHOT, file);
        memcpy(part[i].data, source.data, WHOLE);
    }
    check_model(&r, r.m, &table);
    ok(&r, mem_handle_unload(table.h, true, &r.err));
    assert_int_equal(device_bytes(&r), 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            mem_report rep = check_model(&r, r.m, &part[i]);
            assert_string_equal(rep.components[0].reason, "");
            assert_int_equal(device_bytes(&r), WHOLE);
            mem_handle_info info;
            mem_handle_get_info(part[i].h, &info);
            assert_true(info.whole && info.host_bytes == 0);
        }
    base_ledger_read(r.env, &v);
    assert_true(v.device_peak_bytes <= WHOLE + 131072);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_WEIGHTS_HOST], 0);
    for (int i = 0; i < 3; i++) close_model(&part[i]);
    close_model(&table);
    close_model(&source);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_wait_in_order),       cmocka_unit_test(waiting_ends),
        cmocka_unit_test(jobs_wait_for_room),       cmocka_unit_test(then_it_tries_again),
        cmocka_unit_test(one_phase_on_two_devices), cmocka_unit_test(devices_are_named),
        cmocka_unit_test(phased_residency),         cmocka_unit_test(loading_is_heard),
        cmocka_unit_test(logging_is_heard),         cmocka_unit_test(own_requests_are_refused),
    };
    return cmocka_run_group_tests_name("memory manager: waits", tests, NULL, NULL);
}
