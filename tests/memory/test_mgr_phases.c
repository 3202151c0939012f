/* The memory manager on a strict simulated device: phases, budgets, modes, yields, retries, jobs. */
#include "mgr_test.h"

#include <pthread.h>

/* R1.1, R3.4, R3.6, R5.1: whole, half, smallest, none: the same sums, in every mode and of both kinds, with
 * copies that end late. */
static void placements_are_equal(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {4u << 20, WHOLE / 2 + 131072, 4096 + 2 * UNIT_BYTES + 131072};
    for (int kind = 0; kind < 2; kind++)
        for (size_t s = 0; s < 3; s++)
            for (int mode = MEM_VRAM_AUTO; mode <= MEM_VRAM_SHARED; mode++)
                for (uint64_t seed = 0; seed < 3; seed++) {
                    rig r;
                    model x;
                    dev_sim_options o = device_of(sizes[s]);
                    o.chaos_seed = seed;
                    mem_policy p = test_policy();
                    p.vram_mode = (mem_vram_mode)mode;
                    open_rig(&r, o, p);
                    open_model(&r, r.m, &x, "a", kind == 0 ? MEM_SEQUENCE : MEM_ONESHOT, NULL);
                    mem_report rep = check_model(&r, r.m, &x);
                    bool streams = s != 0 || mode == MEM_VRAM_LOW || mode == MEM_VRAM_NONE;
                    assert_int_equal(rep.streamed_bytes != 0, streams);
                    assert_int_equal(rep.components[0].reason[0] != '\0', streams);
                    if (mode == MEM_VRAM_NONE) assert_int_equal(device_bytes(&r), 0);
                    check_model(&r, r.m, &x);
                    close_model(&x);
                    close_rig(&r);
                }
}

/* R2.5: where load device and home are the same, phases move nothing and count nothing. */
static void the_cpu_costs_nothing(void **state)
{
    (void)state;
    rig r = {0};
    model x;
    mem_policy p = test_policy();
    ok(&r, base_env_create(&r.env, &r.err));
    ok(&r, dev_cpu_create(r.env, "ref", 1, &r.d, &r.err));
    ok(&r, mem_manager_create(r.env, r.d, &p, NULL, &r.m, &r.err));
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    mem_report rep = check_model(&r, r.m, &x);
    assert_int_equal(rep.streamed_bytes + rep.n_copies + rep.n_yields, 0);
    close_model(&x);
    close_rig(&r);
}

/* R7.1, R7.3, R10.1: two models taking turns on a device too small for both. */
static void models_take_turns(void **state)
{
    (void)state;
    rig r;
    model a, b;
    open_rig(&r, device_of(WHOLE + WHOLE / 2), test_policy());
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
    for (int i = 0; i < 5; i++) {
        mem_report rep = check_model(&r, r.m, &a);
        assert_string_equal(rep.components[0].reason, "");
        assert_int_equal(rep.n_yields, i == 0 ? 0 : 1);
        rep = check_model(&r, r.m, &b);
        assert_int_equal(rep.components[0].loaded_bytes, WHOLE);
        assert_int_equal(rep.n_yields, 1);
        mem_handle_info info;
        mem_handle_get_info(a.h, &info);
        assert_true(info.loaded_bytes > 0 && info.loaded_bytes < WHOLE); /* unit by unit */
    }
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* R6.2: after a thousand requests every byte is back. */
static void a_thousand_requests(void **state)
{
    (void)state;
    rig r;
    model x;
    dev_sim_options o = device_of(WHOLE / 2 + 131072);
    o.strict = false;
    open_rig(&r, o, test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &x);
    uint64_t host = host_bytes(&r), device = device_bytes(&r);
    for (int i = 0; i < 1000; i++) check_model(&r, r.m, &x);
    assert_int_equal(host_bytes(&r), host);
    assert_int_equal(device_bytes(&r), device);
    close_model(&x);
    close_rig(&r);
}

/* R12.2: what a phase did not list, and a unit outside its operation, are errors that name them. */
static void misuse_is_named(void **state)
{
    (void)state;
    rig r;
    model a, b;
    open_rig(&r, device_of(4u << 20), test_policy());
    open_model(&r, r.m, &a, "alpha", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "beta", MEM_ONESHOT, NULL);
    mem_request *q;
    mem_phase *p;
    void *address;
    mem_request_desc d = {.name = "test", .managers = &r.m, .n_managers = 1};
    mem_phase_desc phase = {.name = "encode", .handles = &a.h, .n_handles = 1};
    ok(&r, mem_request_begin(&d, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    assert_int_equal(mem_unit_enter(p, b.h, 0, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "beta"));
    assert_non_null(strstr(r.err.message, "encode"));
    assert_int_equal(mem_weight_address(p, a.h, 2, &address, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "layer2"));
    ok(&r, mem_unit_enter(p, a.h, 2, &r.err));
    ok(&r, mem_weight_address(p, a.h, 2, &address, &r.err));
    mem_unit_leave(p, a.h, 2);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

typedef struct drawing {
    base_rng rng;
    uint32_t fails, runs, drawn;
} drawing;

static weir_status draw_and_fail(void *arg, mem_phase *p, weir_error *err)
{
    drawing *d = arg;
    (void)p;
    d->runs++;
    d->drawn = base_rng_u32(&d->rng);
    if (d->fails == 0) return WEIR_OK;
    d->fails--;
    return base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test");
}

/* R1.2, R2.2, R8.1: at most two retries, with the generator put back, and caps that last until it is moved
 * off. */
static void retries_are_exact(void **state)
{
    (void)state;
    for (uint32_t fails = 0; fails < 4; fails++) {
        rig r;
        model x;
        open_rig(&r, device_of(4u << 20), test_policy());
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        drawing d = {.fails = fails};
        base_rng_seed(&d.rng, 5, 6);
        base_rng twin = d.rng, *generator = &d.rng;
        mem_request *q;
        mem_request_desc desc = {
            .name = "t", .managers = &r.m, .n_managers = 1, .generators = &generator, .n_generators = 1};
        mem_run_desc run = {
            .phase = {.name = "draw", .handles = &x.h, .n_handles = 1}, .fn = draw_and_fail, .arg = &d};
        ok(&r, mem_request_begin(&desc, &q, &r.err));
        weir_status status = mem_run_phase(q, &run, &r.err);
        mem_report rep;
        mem_request_report(q, &rep);
        mem_request_end(q);
        assert_int_equal(status, fails < 3 ? WEIR_OK : WEIR_ERR_DEVICE_MEMORY);
        assert_int_equal(d.drawn, base_rng_u32(&twin));
        assert_int_equal(rep.n_oom_retries, fails < 2 ? fails : 2);
        assert_int_equal(d.runs, fails < 3 ? fails + 1 : 3);
        if (fails == 1) {
            assert_string_equal(rep.components[0].reason, "capped after OOM");
            assert_true(rep.components[0].loaded_bytes <= WHOLE / 2);
            check_model(&r, r.m, &x);
            ok(&r, mem_handle_unload(x.h, true, &r.err));
            assert_string_equal(check_model(&r, r.m, &x).components[0].reason, "");
        }
        close_model(&x);
        close_rig(&r);
    }
}

/* X5, R5.4: each allocation, copy and kernel build fails once, and for good: the same bytes or the documented
 * error, the ledger at its baseline, and a handle that works afterwards. */
static void sweep(uint64_t size, mem_kind kind)
{
    static const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_PINNED_ALLOC, BASE_FAULT_COPY,
                                            BASE_FAULT_HOST_ALLOC, BASE_FAULT_KERNEL_BUILD};
    rig r;
    model x;
    job j;
    uint32_t wanted[N_SUMS];
    mem_policy policy = test_policy();
    policy.host_copies = MEM_ON; /* free RAM does not decide what is passed */
    open_rig(&r, device_of(size), policy);
    open_model(&r, r.m, &x, "a", kind, NULL);
    check_model(&r, r.m, &x);
    ok(&r, mem_handle_unload(x.h, true, &r.err));
    expected(&x, wanted);
    uint64_t host = host_bytes(&r);
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        ok(&r, base_fault_count_on(r.env, &r.err));
        check_model(&r, r.m, &x);
        uint64_t n = base_fault_count(r.env, sites[s]);
        uint32_t failed = 0;
        base_fault_clear(r.env);
        ok(&r, mem_handle_unload(x.h, true, &r.err));
        assert_true(n > 0);
        for (uint64_t i = 0; i < 2 * n; i++) {
            base_fault_rule rule = {.site = sites[s], .after = i / 2, .for_good = i % 2 != 0, .length = -1};
            ok(&r, mem_handle_unload(x.h, true, &r.err));
            ok(&r, base_fault_arm(r.env, &rule, &r.err));
            weir_status status = run_model(&r, r.m, &x, NULL, &j);
            base_fault_clear(r.env);
            failed += status != WEIR_OK;
            bool documented = status == WEIR_ERR_DEVICE_MEMORY || status == WEIR_ERR_DEVICE ||
                              status == WEIR_ERR_OUT_OF_MEMORY;
            if (status == WEIR_OK) assert_memory_equal(j.sums, wanted, sizeof wanted);
            if ((status != WEIR_OK && !documented) ||
                (status != WEIR_OK && !rule.for_good && sites[s] != BASE_FAULT_HOST_ALLOC))
                fail_msg("%s:%llu%s gives %s: %s", base_fault_text(sites[s]), (unsigned long long)rule.after,
                         rule.for_good ? ":for_good" : "", weir_status_name(status), r.err.message);
            check_model(&r, r.m, &x);
            ok(&r, mem_handle_unload(x.h, true, &r.err));
            assert_int_equal(host_bytes(&r), host);
            assert_int_equal(device_bytes(&r), 0);
        }
        /* Pinned memory is never needed; all else is, when it fails for good. */
        assert_true((failed > 0) == (sites[s] != BASE_FAULT_PINNED_ALLOC));
    }
    close_model(&x);
    close_rig(&r);
}

/* X5, whole and half, of both kinds. */
static void every_point_may_fail(void **state)
{
    (void)state;
    sweep(4u << 20, MEM_ONESHOT);
    sweep(WHOLE / 2 + 131072, MEM_ONESHOT);
    sweep(WHOLE / 2 + 131072, MEM_SEQUENCE);
}

/* R3.5, R4.6: the smallest working set just fits; a page less is an error that names what did not fit, and
 * the handle works where there is room again. */
static void the_smallest_just_fits(void **state)
{
    (void)state;
    rig r;
    model x;
    job j;
    uint64_t smallest = 4096 + UNIT_BYTES + 4096 + 65536; /* fixed, one copy, sums, scratch */
    open_rig(&r, device_of(smallest), test_policy());
    open_model(&r, r.m, &x, "a", MEM_SEQUENCE, NULL);
    check_model(&r, r.m, &x);
    close_model(&x);
    close_rig(&r);
    /* A page less, and its work does not fit; less than a unit, and the component does not. */
    const struct {
        uint64_t bytes;
        const char *named;
    } less[] = {{smallest - 4096, "working memory of phase work"}, {UNIT_BYTES, "tiny"}};
    for (int i = 0; i < 2; i++) {
        open_rig(&r, device_of(less[i].bytes), test_policy());
        open_model(&r, r.m, &x, "tiny", MEM_SEQUENCE, NULL);
        assert_int_equal(run_model(&r, r.m, &x, NULL, &j), WEIR_ERR_DEVICE_MEMORY);
        assert_non_null(strstr(r.err.message, less[i].named));
        close_model(&x);
        close_rig(&r);
    }
}

/* R3.7: two jobs at once on a device too small for both models, on one job's turn or two's. */
static void two_jobs_at_once(void **state)
{
    (void)state;
    for (uint32_t jobs = 1; jobs <= 2; jobs++) {
        rig r;
        model a, b;
        mem_policy p = test_policy();
        p.gpu_jobs = jobs;
        open_rig(&r, device_of(WHOLE + 131072), p);
        open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
        open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
        run_beside(&r, &a, &b, 20);
        close_model(&a);
        close_model(&b);
        close_rig(&r);
    }
}

/* R3.7, R5.6: cancelled before and while waiting. */
static void cancellation_is_heard(void **state)
{
    (void)state;
    rig r;
    atomic_bool cancel = true;
    mem_policy p = test_policy();
    open_rig(&r, device_of(4u << 20), p);
    mem_request *first, *second;
    mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
    ok(&r, mem_request_begin(&d, &first, &r.err));
    d.cancel = &cancel;
    assert_int_equal(mem_request_begin(&d, &second, &r.err), WEIR_ERR_CANCELLED);
    mem_request_end(first);
    ok(&r, mem_request_begin(&d, &second, &r.err));
    model x;
    mem_phase *phase;
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    mem_phase_desc desc = {.name = "p", .handles = &x.h, .n_handles = 1};
    assert_int_equal(mem_use(second, &desc, &phase, &r.err), WEIR_ERR_CANCELLED);
    mem_request_end(second);
    check_model(&r, r.m, &x);
    close_model(&x);
    close_rig(&r);
}

/* R4.1, R4.3: the default rule. */
static void default_units(void **state)
{
    (void)state;
    rig r;
    static uint8_t big[1 << 20];
    open_rig(&r, device_of(16u << 20), test_policy());
    mem_handle *h;
    mem_weight_id id;
    ok(&r, mem_handle_create(r.m, "e", "c", MEM_ONESHOT, &h, &r.err));
    static const char *const names[] = {"embed", "net.layers.0.q", "net.layers.0.sub.3.k", "net.layers.1.q",
                                        "net.layers.2.q"};
    static const uint64_t bytes[] = {1 << 20, 600000, 500000, 1000000, 999999};
    for (int i = 0; i < 5; i++) {
        mem_handle_weight w = {.name = names[i], .bytes = bytes[i], .host = big, .streamable = i != 0};
        ok(&r, mem_handle_add_weight(h, MEM_UNIT_DEFAULT, &w, &id, &r.err));
    }
    ok(&r, mem_handle_seal(h, &r.err));
    mem_handle_unit u;
    assert_true(mem_handle_get_unit(h, 0, &u));
    assert_string_equal(u.name, "net.layers.0");
    assert_int_equal(u.n_weights, 2);
    assert_true(mem_handle_get_unit(h, 1, &u));
    assert_string_equal(u.name, "net.layers.1");
    assert_false(mem_handle_get_unit(h, 2, &u));
    assert_int_equal(mem_handle_unit_of(h, 4), MEM_UNIT_DEFAULT);
    mem_handle_destroy(h);
    close_rig(&r);
}

/* R5.4: from a file through staging, with and without pinned memory, and reads that fail once. */
static void files_stream_through_staging(void **state)
{
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        rig r;
        model x, source;
        char path[128];
        dev_sim_options o = device_of(WHOLE / 2 + 131072);
        mem_policy policy = test_policy();
        o.max_pinned_bytes = pinned ? 0 : 1;
        policy.host_copies = MEM_OFF; /* else it is in RAM after the first time */
        open_rig(&r, o, policy);
        open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
        base_file *file = model_file(&r, &source, path);
        open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
        mem_report rep = check_model(&r, r.m, &x);
        assert_true(rep.read_bytes >= WHOLE);
        base_fault_rule rule = {.site = BASE_FAULT_READ, .after = 2, .length = -1};
        ok(&r, mem_handle_unload(x.h, true, &r.err));
        ok(&r, base_fault_arm(r.env, &rule, &r.err));
        check_model(&r, r.m, &x);
        assert_true(base_fault_count(r.env, BASE_FAULT_READ) > 2);
        base_fault_clear(r.env);
        close_model(&x);
        close_model(&source);
        base_file_close(file);
        unlink(path);
        close_rig(&r);
    }
}

/* A failure that shows while others are made to yield is not forgotten: the phase that it belongs to is told.
 */
static void failures_are_not_lost(void **state)
{
    (void)state;
    rig r;
    model a, idle;
    open_rig(&r, device_of(2 * WHOLE + 65536), test_policy());
    open_model(&r, r.m, &a, "alpha", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &idle, "idle", MEM_ONESHOT, NULL);
    idle.work_bytes = a.work_bytes = 4096;
    check_model(&r, r.m, &idle);
    for (int by_download = 0; by_download < 2; by_download++) {
        mem_request *q;
        mem_phase *p;
        void *address, *sums, *much;
        uint32_t words[N_SUMS];
        mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
        mem_phase_desc phase = {.name = "encode", .handles = &a.h, .n_handles = 1};
        ok(&r, mem_request_begin(&d, &q, &r.err));
        ok(&r, mem_use(q, &phase, &p, &r.err));
        ok(&r, mem_phase_alloc(p, NULL, 4096, "sums", &sums, &r.err));
        ok(&r, mem_unit_enter(p, a.h, 2, &r.err));
        ok(&r, mem_weight_address(p, a.h, 2, &address, &r.err));
        mem_unit_leave(p, a.h, 2);
        /* The kernel's table of addresses is its own matter, so this shows only while it runs (R12.2). */
        dev_arg args[3] = {{.kind = DEV_ARG_ADDRESS, .as.address = sums},
                           {.kind = DEV_ARG_F32, .as.address = address},
                           {.kind = DEV_ARG_U32, .as.u32 = 512}};
        ok(&r, mem_phase_launch(p, NULL, &fold_kernel, args, 3, N_SUMS, &r.err));
        if (by_download == 0) ok(&r, mem_phase_alloc(p, NULL, WHOLE / 2, "much", &much, &r.err));
        if (by_download == 1)
            assert_int_equal(mem_phase_download(p, NULL, words, sums, sizeof words, &r.err), WEIR_ERR_DEVICE);
        assert_int_equal(mem_phase_end(p, &r.err), WEIR_ERR_DEVICE);
        mem_request_end(q);
        check_model(&r, r.m, &a);
    }
    close_model(&a);
    close_model(&idle);
    close_rig(&r);
}

/* R5.4, R5.5, R6.1: copies are pinned as far as the budget goes, without pinning and without copies the sums
 * are the same, and all of it is given back. */
static void copies_in_ram(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {UINT64_MAX, 2 * UNIT_BYTES, 0};
    for (int copies = MEM_ON; copies <= MEM_OFF; copies++)
        for (size_t b = 0; b < 3; b++) {
            rig r;
            model x;
            mem_handle_info info;
            mem_manager_info all;
            dev_sim_options o = device_of(WHOLE / 2 + 131072);
            mem_policy p = test_policy();
            p.host_copies = (mem_switch)copies;
            p.max_pinned_bytes = budgets[b];
            o.chaos_seed = 3;
            open_rig(&r, o, p);
            open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
            check_model(&r, r.m, &x);
            check_model(&r, r.m, &x);
            mem_handle_get_info(x.h, &info);
            ok(&r, mem_manager_get_info(r.m, &all, &r.err));
            if (b == 0 && copies == MEM_ON) assert_int_equal(info.pinned_bytes, WHOLE);
            if (b != 0) assert_true(all.pinned_bytes <= budgets[b]);
            if (b == 1 && copies == MEM_ON) assert_true(info.pinned_bytes >= UNIT_BYTES);
            if (b == 2 || copies == MEM_OFF) assert_int_equal(info.pinned_bytes + info.host_bytes, 0);
            ok(&r, mem_handle_unload(x.h, true, &r.err));
            ok(&r, mem_manager_get_info(r.m, &all, &r.err));
            assert_int_equal(all.pinned_bytes + all.host_copy_bytes, 0);
            close_model(&x);
            close_rig(&r);
        }
}

/* R9.3: what a phase took above its estimate is remembered, in the file too; other versions are ignored. */
static void estimates_learn(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "/tmp/weir_calibration_%ld.json", (long)getpid());
    unlink(path);
    double wanted = (262144.0 + 1024) / 131072 * 1.1;
    for (int round = 0; round < 3; round++) {
        rig r;
        model x;
        mem_policy p = test_policy();
        p.calibration_file = path;
        open_rig(&r, device_of(4u << 20), p);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        x.work_bytes = 262144;
        mem_report rep = check_model(&r, r.m, &x);
        double got = rep.components[0].calibration;
        if (round == 1)
            assert_true(got > wanted - 0.01 && got < wanted + 0.01);
        else
            assert_true(got == 1);
        rep = check_model(&r, r.m, &x);
        assert_true(rep.components[0].calibration > wanted - 0.01);
        close_model(&x);
        close_rig(&r);
        if (round != 1) continue;
        FILE *f = fopen(path, "w");
        fprintf(f, "{\"version\": 1, \"ratios\": {\"test:a\": 9}}");
        fclose(f);
    }
    unlink(path);
}

/* Every word of a weight becomes its number. */
static void count_up(const dev_arg *args, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) ((uint32_t *)args[0].as.address)[i] = (uint32_t)i;
}

/* R6.1: what compute changed comes back when the component leaves; where copying it back fails it stays. */
static void changes_come_back(void **state)
{
    (void)state;
    static const dev_kernel kernel = {.name = "count_up", .c = count_up};
    uint32_t words[1024] = {0};
    rig r;
    mem_handle *h;
    mem_request *request;
    mem_phase *p;
    mem_weight_id id;
    void *address;
    open_rig(&r, device_of(1u << 20), test_policy());
    ok(&r, mem_handle_create(r.m, "test", "state", MEM_ONESHOT, &h, &r.err));
    const mem_handle_weight w = {.name = "cell", .bytes = sizeof words, .host = words, .changes = true};
    ok(&r, mem_handle_add_weight(h, MEM_UNIT_DEFAULT, &w, &id, &r.err));
    ok(&r, mem_handle_seal(h, &r.err));
    const mem_request_desc desc = {.name = "change", .managers = &r.m, .n_managers = 1};
    ok(&r, mem_request_begin(&desc, &request, &r.err));
    const mem_phase_desc phase = {.name = "change", .handles = &h, .n_handles = 1};
    ok(&r, mem_use(request, &phase, &p, &r.err));
    ok(&r, mem_weight_address(p, h, id, &address, &r.err));
    const dev_arg arg = {.kind = DEV_ARG_ADDRESS, .as.address = address};
    ok(&r, mem_phase_launch(p, r.m, &kernel, &arg, 1, 1024, &r.err));
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(request);
    assert_int_equal(words[1023], 0);

    const base_fault_rule rule = {.site = BASE_FAULT_COPY, .length = -1};
    ok(&r, base_fault_arm(r.env, &rule, &r.err));
    assert_int_equal(mem_manager_unload_idle(r.m, 0, true), 0);
    assert_true(device_bytes(&r) != 0);
    base_fault_clear(r.env);
    /* A device that never gives it back: who wants room asks, and goes on without. */
    const base_fault_rule always = {.site = BASE_FAULT_COPY, .for_good = true, .length = -1};
    ok(&r, base_fault_arm(r.env, &always, &r.err));
    ok(&r, mem_request_begin(&desc, &request, &r.err));
    const mem_phase_desc large = {.name = "large", .memory_bytes = 4u << 20};
    ok(&r, mem_use(request, &large, &p, &r.err));
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(request);
    assert_true(base_fault_count(r.env, BASE_FAULT_COPY) >= 2);
    assert_true(device_bytes(&r) != 0);
    base_fault_clear(r.env);
    ok(&r, base_fault_arm(r.env, &rule, &r.err));
    assert_int_equal(mem_handle_unload(h, false, &r.err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(r.err.message, "test:state"));
    assert_int_equal(words[1023], 0);
    ok(&r, mem_handle_unload(h, false, &r.err));
    assert_int_equal(device_bytes(&r), 0);
    for (uint32_t i = 0; i < 1024; i++) assert_int_equal(words[i], i);
    base_fault_clear(r.env);
    mem_handle_destroy(h);
    close_rig(&r);
}

static weir_status ramp(void *arg, uint64_t begin, uint64_t end, float *out, weir_error *err)
{
    (void)err;
    ++*(uint32_t *)arg;
    for (uint64_t i = 0; i < (end - begin) * 2; i++) out[i] = (float)(begin * 2 + i);
    return WEIR_OK;
}

static weir_status begin_of_tile(void *arg, uint64_t begin, uint64_t end, float *out, weir_error *err)
{
    (void)arg;
    (void)err;
    for (uint64_t i = begin; i < end; i++) out[i - begin] = (float)begin;
    return WEIR_OK;
}

/* R8.4: tiles of 256 frames over 32, cross-faded. */
static void tiles_cover_everything(void **state)
{
    (void)state;
    rig r;
    static float out[2000];
    uint32_t calls = 0;
    open_rig(&r, device_of(1u << 20), test_policy());
    mem_tiling t = {.n_frames = 1000, .values_per_frame = 2, .decode = ramp, .arg = &calls};
    ok(&r, mem_tiled_decode(r.env, &t, out, &r.err));
    for (int i = 0; i < 2000; i++) assert_true(out[i] > (float)i - 0.01f && out[i] < (float)i + 0.01f);
    assert_int_equal(calls, 5);
    /* Tiles of 8 over 2: [0, 8), [6, 14), [12, 20). Each gives its first frame; frames in two are faded. */
    static const float wanted[20] = {0, 0, 0,    0,     0,  0,  1.5f, 4.5f, 6,  6,
                                     6, 6, 7.5f, 10.5f, 12, 12, 12,   12,   12, 12};
    t = (mem_tiling){.n_frames = 20,
                     .tile_frames = 8,
                     .overlap_frames = 2,
                     .values_per_frame = 1,
                     .decode = begin_of_tile};
    ok(&r, mem_tiled_decode(r.env, &t, out, &r.err));
    for (int i = 0; i < 20; i++) assert_true(out[i] == wanted[i]);
    t.overlap_frames = 4; /* half a tile */
    assert_int_equal(mem_tiled_decode(r.env, &t, out, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    t.overlap_frames = 2;
    t.n_frames = 8; /* one tile: as it is */
    ok(&r, mem_tiled_decode(r.env, &t, out, &r.err));
    assert_true(out[7] == 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_are_equal),   cmocka_unit_test(the_cpu_costs_nothing),
        cmocka_unit_test(models_take_turns),      cmocka_unit_test(a_thousand_requests),
        cmocka_unit_test(misuse_is_named),        cmocka_unit_test(retries_are_exact),
        cmocka_unit_test(every_point_may_fail),   cmocka_unit_test(the_smallest_just_fits),
        cmocka_unit_test(two_jobs_at_once),       cmocka_unit_test(cancellation_is_heard),
        cmocka_unit_test(default_units),          cmocka_unit_test(files_stream_through_staging),
        cmocka_unit_test(tiles_cover_everything), cmocka_unit_test(failures_are_not_lost),
        cmocka_unit_test(copies_in_ram),          cmocka_unit_test(estimates_learn),
        cmocka_unit_test(changes_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
