/* The memory manager on the first OpenCL device (PoCL in tests): what matters most of test_mgr_*.c again,
 * with a driver's own memory, queues and compiler. Where there is no OpenCL the tests are skipped. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "mgr_test.h"

#include <pthread.h>

static base_env *env;
static dev_device *gpu;
static char cache[64];

/* A manager on the shared device, with so many bytes beside what the device holds by itself; 0: no limit. */
static void open_cl(rig *r, uint64_t bytes, mem_policy policy)
{
    dev_memory_info info;
    if (gpu == NULL) skip();
    *r = (rig){.env = env, .d = gpu};
    gpu->table->memory->trim(gpu);
    ok(r, gpu->table->memory->info(gpu, &info, &r->err));
    if (bytes != 0) policy.vram_limit_bytes = info.taken_bytes - info.cache_bytes + bytes;
    ok(r, mem_manager_create(env, gpu, &policy, NULL, &r->m, &r->err));
}

static void close_cl(rig *r)
{
    mem_manager_destroy(r->m);
    assert_int_equal(device_bytes(r), 0);
}

/* What the device holds for somebody; blocks that it keeps for later are not counted. */
static uint64_t taken(rig *r)
{
    dev_memory_info info;
    ok(r, gpu->table->memory->info(gpu, &info, &r->err));
    return info.taken_bytes - info.cache_bytes;
}

/* R1.1, R3.2, R3.4, R3.6, R5.1, R5.2: whole, half, smallest, none: the same sums, and the limit holds. */
static void placements_are_equal(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, WHOLE / 2 + 131072, 4096 + 3 * UNIT_BYTES + 131072};
    for (int kind = 0; kind < 2; kind++)
        for (size_t s = 0; s < 3; s++)
            for (int mode = MEM_VRAM_AUTO; mode <= MEM_VRAM_SHARED; mode++) {
                rig r;
                model x;
                mem_policy p = test_policy();
                p.vram_mode = (mem_vram_mode)mode;
                open_cl(&r, sizes[s], p);
                open_model(&r, r.m, &x, "a", kind == 0 ? MEM_SEQUENCE : MEM_ONESHOT, NULL);
                uint64_t before = taken(&r);
                mem_report rep = check_model(&r, r.m, &x);
                bool streams = s != 0 || mode == MEM_VRAM_LOW || mode == MEM_VRAM_NONE;
                assert_int_equal(rep.streamed_bytes != 0, streams);
                assert_int_equal(rep.components[0].reason[0] != '\0', streams);
                if (mode == MEM_VRAM_NONE) assert_int_equal(device_bytes(&r), 0);
                if (!streams) assert_int_equal(device_bytes(&r), WHOLE);
                check_model(&r, r.m, &x);
                assert_true(device_bytes(&r) <= (sizes[s] != 0 ? sizes[s] : WHOLE));
                if (sizes[s] != 0) assert_true(taken(&r) - before <= sizes[s]);
                close_model(&x);
                close_cl(&r);
            }
}

/* R7.1, R7.3: two models taking turns where there is no room for both. */
static void models_take_turns(void **state)
{
    (void)state;
    rig r;
    model a, b;
    open_cl(&r, WHOLE + WHOLE / 2, test_policy());
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
    for (int i = 0; i < 4; i++) {
        mem_report rep = check_model(&r, r.m, &a);
        assert_string_equal(rep.components[0].reason, "");
        assert_int_equal(rep.n_yields, i == 0 ? 0 : 1);
        rep = check_model(&r, r.m, &b);
        assert_int_equal(rep.components[0].loaded_bytes, WHOLE);
        assert_int_equal(rep.n_yields, 1);
        assert_true(info_of(&a).loaded_bytes > 0 && info_of(&a).loaded_bytes < WHOLE);
    }
    close_model(&a);
    close_model(&b);
    close_cl(&r);
}

/* A thousand requests, after which every byte is back (R6.2). */
static void a_thousand_requests(void **state)
{
    (void)state;
    rig r;
    model x;
    open_cl(&r, WHOLE / 2 + 131072, test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &x);
    uint64_t host = host_bytes(&r), device = device_bytes(&r), driver = taken(&r);
    for (int i = 0; i < 1000; i++) {
        visit v = {
            .x = &x, .m = r.m, .n = 3, .order = {(uint32_t)i % N_UNITS, N_UNITS, (uint32_t)i * 5 % N_UNITS}};
        mem_request *q;
        const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
        const mem_run_desc run = {
            .phase = {.name = "v", .handles = &x.h, .n_handles = 1, .memory_bytes = 131072},
            .fn = visit_units,
            .arg = &v};
        ok(&r, mem_request_begin(&d, &q, &r.err));
        ok(&r, mem_run_phase(q, &run, &r.err));
        mem_request_end(q);
        check_visit(&v);
    }
    check_model(&r, r.m, &x);
    assert_int_equal(host_bytes(&r), host);
    assert_int_equal(device_bytes(&r), device);
    assert_int_equal(taken(&r), driver);
    close_model(&x);
    close_cl(&r);
}

/* X5: allocations, copies and builds fail, once and for good: the same bytes or the documented error, and a
 * handle that works. Every third passage, since a driver is slow. */
static void every_point_may_fail(void **state)
{
    (void)state;
    static const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_PINNED_ALLOC, BASE_FAULT_COPY,
                                            BASE_FAULT_HOST_ALLOC};
    rig r;
    model x;
    job j;
    uint32_t wanted[N_SUMS];
    mem_policy policy = test_policy();
    policy.host_copies = MEM_ON;
    open_cl(&r, WHOLE / 2 + 131072, policy);
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &x);
    ok(&r, mem_handle_unload(x.h, true, &r.err));
    expected(&x, wanted);
    uint64_t host = host_bytes(&r);
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        uint32_t n_failed = 0;
        ok(&r, base_fault_count_on(env, &r.err));
        check_model(&r, r.m, &x);
        uint64_t n = base_fault_count(env, sites[s]);
        base_fault_clear(env);
        dev_memory_info info;
        ok(&r, gpu->table->memory->info(gpu, &info, &r.err));
        /* Where the device's memory is the host's, what lies in RAM needs no pinning (R3.6). */
        if (info.unified && sites[s] == BASE_FAULT_PINNED_ALLOC) continue;
        assert_true(n > 0);
        const uint64_t step = n > 6 ? 3 : 1;
        for (uint64_t i = 0; i < 2 * n; i += step) {
            const base_fault_rule rule = {
                .site = sites[s], .after = i / 2, .for_good = i % 2 != 0, .length = -1};
            ok(&r, mem_handle_unload(x.h, true, &r.err));
            ok(&r, base_fault_arm(env, &rule, &r.err));
            weir_status status = run_model(&r, r.m, &x, NULL, &j);
            base_fault_clear(env);
            n_failed += status != WEIR_OK;
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
        assert_int_equal(n_failed > 0, sites[s] != BASE_FAULT_PINNED_ALLOC);
    }
    close_model(&x);
    close_cl(&r);
}

/* R5.4, R6.1: from a file through pinned staging, with copies in RAM and without; reads that fail once. */
static void files_stream_through_staging(void **state)
{
    (void)state;
    for (int copies = MEM_ON; copies <= MEM_OFF; copies++) {
        rig r;
        model x, source;
        char path[128];
        mem_policy policy = test_policy();
        policy.host_copies = (mem_switch)copies;
        open_cl(&r, WHOLE / 2 + 131072, policy);
        open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
        base_file *file = model_file(&r, &source, path);
        open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
        assert_true(check_model(&r, r.m, &x).read_bytes >= WHOLE);
        /* Where the device's memory is the host's there are no copies (R3.6). */
        dev_memory_info info;
        ok(&r, gpu->table->memory->info(gpu, &info, &r.err));
        bool keeps = copies == MEM_ON && !info.unified;
        assert_int_equal(check_model(&r, r.m, &x).read_bytes == 0, keeps);
        const base_fault_rule rule = {.site = BASE_FAULT_READ, .after = 2, .length = -1};
        ok(&r, mem_handle_unload(x.h, true, &r.err));
        ok(&r, base_fault_arm(env, &rule, &r.err));
        check_model(&r, r.m, &x);
        assert_true(base_fault_count(env, BASE_FAULT_READ) > 2);
        base_fault_clear(env);
        close_model(&x);
        close_model(&source);
        base_file_close(file);
        unlink(path);
        close_cl(&r);
    }
}

typedef struct drawing {
    base_rng rng;
    uint32_t fails, runs, drawn;
} drawing;

static weir_status draw_and_fail(void *arg, mem_phase *p, weir_error *err)
{
    drawing *d = arg;
    void *much;
    d->runs++;
    d->drawn = base_rng_u32(&d->rng);
    if (d->fails == 0) return WEIR_OK;
    d->fails--;
    return mem_phase_alloc(p, NULL, UINT64_C(1) << 50, "far too much", &much, err);
}

/* R1.2, R2.2, R8.1: what the driver itself refuses is tried again, twice at most, with the generator put
 * back. */
static void retries_are_exact(void **state)
{
    (void)state;
    for (uint32_t fails = 0; fails < 4; fails++) {
        rig r;
        model x;
        mem_request *q;
        mem_report rep;
        open_cl(&r, 0, test_policy());
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        drawing d = {.fails = fails};
        base_rng_seed(&d.rng, 5, 6);
        base_rng twin = d.rng, *generator = &d.rng;
        const mem_request_desc desc = {
            .name = "t", .managers = &r.m, .n_managers = 1, .generators = &generator, .n_generators = 1};
        const mem_run_desc run = {
            .phase = {.name = "draw", .handles = &x.h, .n_handles = 1}, .fn = draw_and_fail, .arg = &d};
        ok(&r, mem_request_begin(&desc, &q, &r.err));
        weir_status status = mem_run_phase(q, &run, &r.err);
        mem_request_report(q, &rep);
        mem_request_end(q);
        assert_int_equal(status, fails < 3 ? WEIR_OK : WEIR_ERR_DEVICE_MEMORY);
        if (fails == 3) assert_non_null(strstr(r.err.message, "far too much"));
        assert_int_equal(d.drawn, base_rng_u32(&twin));
        assert_int_equal(rep.n_oom_retries, fails < 2 ? fails : 2);
        if (fails == 1) assert_string_equal(rep.components[0].reason, "capped after OOM");
        check_model(&r, r.m, &x);
        close_model(&x);
        close_cl(&r);
    }
}

static const char count_source[] = "__kernel void count_up(__global uchar *w, ulong w_at, uint n)\n"
                                   "{\n"
                                   "    uint i = get_global_id(0);\n"
                                   "    if (i < n) ((__global uint *)(w + w_at))[i] = i;\n"
                                   "}\n";

/* R6.1, R6.4: what compute changed comes back when the component leaves; a replaced weight is the new one. */
static void changes_and_replacements(void **state)
{
    (void)state;
    static const dev_kernel kernel = {.name = "count_up", .source = count_source};
    static uint32_t words[1024];
    rig r;
    model x;
    mem_handle *h;
    mem_request *q;
    mem_phase *p;
    mem_weight_id id;
    dev_arg arg = {.kind = DEV_ARG_ADDRESS};
    open_cl(&r, WHOLE / 2 + 131072, test_policy());
    ok(&r, mem_handle_create(r.m, "test", "state", MEM_ONESHOT, &h, &r.err));
    const mem_handle_weight w = {.name = "cell", .bytes = sizeof words, .host = words, .changes = true};
    ok(&r, mem_handle_add_weight(h, MEM_UNIT_DEFAULT, &w, &id, &r.err));
    ok(&r, mem_handle_seal(h, &r.err));
    const mem_request_desc desc = {.name = "change", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "change", .handles = &h, .n_handles = 1};
    ok(&r, mem_request_begin(&desc, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    ok(&r, mem_weight_address(p, h, id, &arg.as.address, &r.err));
    ok(&r, mem_phase_launch(p, NULL, &kernel, &arg, 1, 1024, &r.err));
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    ok(&r, mem_handle_unload(h, false, &r.err));
    for (uint32_t i = 0; i < 1024; i++) assert_int_equal(words[i], i);
    mem_handle_destroy(h);

    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &x);
    uint32_t *fresh = malloc(UNIT_BYTES);
    for (uint32_t i = 0; i < UNIT_BYTES / 4; i++) fresh[i] = i * 48271u;
    const mem_handle_weight other = {.name = "adapter", .bytes = UNIT_BYTES, .host = fresh};
    for (uint32_t u = 0; u < N_UNITS; u += 5) { /* one that stays and one that streams */
        ok(&r, mem_handle_replace(x.h, u, &other, &r.err));
        memcpy(x.data + u * UNIT_BYTES / 4, fresh, UNIT_BYTES);
        check_model(&r, r.m, &x);
    }
    close_model(&x);
    free(fresh);
    close_cl(&r);
}

/* A handle that the phase did not list, and a kernel that does not build: errors that name them, and the
 * phase goes on. */
static void what_is_wrong_is_named(void **state)
{
    (void)state;
    static const dev_kernel broken = {.name = "broken",
                                      .source = "__kernel void broken(uint n) { nonsense }"};
    rig r;
    model a, b;
    mem_request *q;
    mem_phase *p;
    void *address;
    open_cl(&r, 0, test_policy());
    open_model(&r, r.m, &a, "alpha", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "beta", MEM_ONESHOT, NULL);
    const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "encode", .handles = &a.h, .n_handles = 1};
    ok(&r, mem_request_begin(&d, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    assert_int_equal(mem_unit_enter(p, b.h, 0, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "phase encode did not list test:beta"));
    assert_int_equal(mem_weight_address(p, a.h, 2, &address, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "layer2"));
    assert_int_equal(mem_phase_launch(p, NULL, &broken, NULL, 0, 1, &r.err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(r.err.message, "kernel broken does not build"));
    assert_non_null(strstr(r.err.message, "nonsense"));
    visit v = {.x = &a, .m = r.m, .n = 2, .order = {2, 3}};
    ok(&r, visit_units(&v, p, &r.err));
    check_visit(&v);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    close_model(&a);
    close_model(&b);
    close_cl(&r);
}

/* ---- jobs and devices beside each other ---- */

/* R3.7: two jobs at once, too large to be there together. */
static void two_jobs_at_once(void **state)
{
    (void)state;
    for (uint32_t jobs = 1; jobs <= 2; jobs++) {
        rig r;
        model a, b;
        mem_policy policy = test_policy();
        policy.gpu_jobs = jobs;
        open_cl(&r, WHOLE + 131072, policy);
        open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
        open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
        run_beside(&r, &a, &b, 6);
        close_model(&a);
        close_model(&b);
        close_cl(&r);
    }
}

/* R2.1: one phase over OpenCL and the simulated device. */
static void with_a_second_device(void **state)
{
    (void)state;
    rig r;
    model a, b;
    dev_device *sim;
    mem_manager *m2;
    mem_request *q;
    const dev_sim_options o = device_of(WHOLE);
    const mem_policy policy = test_policy();
    open_cl(&r, WHOLE / 2 + 131072, policy);
    ok(&r, dev_sim_create(env, "ref", 1, &o, &sim, &r.err));
    ok(&r, mem_manager_create(env, sim, &policy, r.m, &m2, &r.err));
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, m2, &b, "b", MEM_ONESHOT, NULL);
    mem_manager *const managers[2] = {r.m, m2};
    mem_handle *const handles[2] = {a.h, b.h};
    const mem_need need = {.manager = m2, .bytes = 65536};
    duo d = {{{.x = &a, .m = r.m, .n = 4, .order = {5, 1, N_UNITS, 2}},
              {.x = &b, .m = m2, .n = 4, .order = {0, 3, 3, N_UNITS}}}};
    const mem_request_desc desc = {.name = "two", .managers = managers, .n_managers = 2};
    const mem_run_desc run = {.phase = {.name = "both",
                                        .handles = handles,
                                        .n_handles = 2,
                                        .memory_bytes = 65536,
                                        .others = &need,
                                        .n_others = 1},
                              .fn = visit_duo,
                              .arg = &d};
    ok(&r, mem_request_begin(&desc, &q, &r.err));
    ok(&r, mem_run_phase(q, &run, &r.err));
    mem_request_end(q);
    check_visit(&d.on[0]);
    check_visit(&d.on[1]);
    close_model(&a);
    close_model(&b);
    mem_manager_destroy(m2);
    dev_destroy(sim);
    close_cl(&r);
}

/* R5.6: cancelled while units stream; then it works again. */
static void cancellation_is_heard(void **state)
{
    (void)state;
    rig r;
    model x;
    mem_request *q;
    mem_phase *p;
    mem_policy policy = test_policy();
    policy.vram_mode = MEM_VRAM_NONE;
    open_cl(&r, 0, policy);
    open_model(&r, r.m, &x, "a", MEM_SEQUENCE, NULL);
    for (uint32_t after = 0; after < N_UNITS; after++) {
        atomic_bool cancel = false;
        const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1, .cancel = &cancel};
        const mem_phase_desc phase = {.name = "p", .handles = &x.h, .n_handles = 1};
        ok(&r, mem_request_begin(&d, &q, &r.err));
        ok(&r, mem_use(q, &phase, &p, &r.err));
        for (uint32_t u = 0; u <= after; u++) {
            atomic_store(&cancel, u == after);
            assert_int_equal(mem_unit_enter(p, x.h, u, &r.err), u == after ? WEIR_ERR_CANCELLED : WEIR_OK);
            mem_unit_leave(p, x.h, u);
        }
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
        check_model(&r, r.m, &x);
    }
    close_model(&x);
    close_cl(&r);
}

/* A driver that refuses everything from some point on: an error that names the device, and all can be given
 * back; when it is back it works. */
static void a_device_that_vanishes(void **state)
{
    (void)state;
    for (uint64_t after = 0; after < 12; after += 3) {
        rig r;
        model x;
        job j;
        open_cl(&r, 0, test_policy());
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        for (int i = 0; i < 2; i++) {
            const base_fault_rule rule = {.site = i == 0 ? BASE_FAULT_COPY : BASE_FAULT_DEVICE_ALLOC,
                                          .after = after,
                                          .for_good = true,
                                          .length = -1};
            ok(&r, base_fault_arm(env, &rule, &r.err));
        }
        weir_status status = run_model(&r, r.m, &x, NULL, &j);
        ok(&r, mem_handle_unload(x.h, true, &r.err));
        if (status == WEIR_OK) status = run_model(&r, r.m, &x, NULL, &j);
        assert_true(status == WEIR_ERR_DEVICE || status == WEIR_ERR_DEVICE_MEMORY);
        assert_non_null(strstr(r.err.message, "opencl:0"));
        if (after % 2 == 0) base_fault_clear(env);
        if (after % 2 == 0) check_model(&r, r.m, &x);
        close_model(&x);
        close_cl(&r);
        base_fault_clear(env);
    }
}

static int open_device(void **state)
{
    dev_opencl_info info;
    weir_error err;
    char note[256];
    uint32_t n;
    (void)state;
    snprintf(cache, sizeof cache, "/tmp/weir_mgr_cl_XXXXXX");
    if (mkdtemp(cache) == NULL || base_env_create(&env, &err) != WEIR_OK) return 1;
    if (dev_opencl_list(env, &info, 1, &n, note, sizeof note, &err) != WEIR_OK) return 1;
    if (n == 0) {
        print_message("%s\n", note);
        return access("/etc/OpenCL/vendors/pocl.icd", F_OK) == 0 ? 1 : 0; /* PoCL is here: it must be found */
    }
    if (dev_opencl_create(env, 0, cache, &gpu, &err) == WEIR_OK) return 0;
    print_error("%s\n", err.message);
    return 1;
}

static int close_device(void **state)
{
    base_ledger_view view;
    char command[96];
    (void)state;
    dev_destroy(gpu);
    base_ledger_read(env, &view);
    base_env_destroy(env);
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command) != 0 || view.bytes != 0 || view.device_bytes != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_are_equal),
        cmocka_unit_test(models_take_turns),
        cmocka_unit_test(a_thousand_requests),
        cmocka_unit_test(every_point_may_fail),
        cmocka_unit_test(files_stream_through_staging),
        cmocka_unit_test(retries_are_exact),
        cmocka_unit_test(changes_and_replacements),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(two_jobs_at_once),
        cmocka_unit_test(with_a_second_device),
        cmocka_unit_test(cancellation_is_heard),
        cmocka_unit_test(a_device_that_vanishes),
    };
    return cmocka_run_group_tests_name("memory manager on OpenCL", tests, open_device, close_device);
}
