/* What a phase is given: the bill (R3), who keeps its place (R2) and who yields (R7), each rule by its
 * number, on the strict simulated device. */
#include "mgr_test.h"

#define MIB (UINT64_C(1) << 20)

/* R2.1, R2.3: what a phase lists is there and stays until it ends, its working memory is kept free; what it
 * does not list stays where it is while there is room; what no phase lists is never loaded. */
static void phases_hold_what_they_list(void **state)
{
    (void)state;
    rig r;
    model a, b, never;
    mem_policy policy = test_policy();
    policy.gpu_jobs = 2;
    open_rig(&r, device_of(3 * WHOLE), policy);
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &never, "never", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &b);
    mem_request *q = begin(&r, "test");
    uint64_t before = manager_info(&r).free_bytes;
    mem_phase *p = use(&r, q, &a.h, 1, 200000);
    assert_int_equal(manager_info(&r).free_bytes, before - WHOLE - 200000);
    assert_true(info_of(&a).whole && info_of(&a).busy && info_of(&b).whole);
    assert_int_equal(mem_manager_unload_idle(r.m, 0, true), WHOLE); /* b, and not a */
    assert_true(info_of(&a).whole && info_of(&b).loaded_bytes == 0);
    assert_int_equal(mem_handle_unload(a.h, true, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "test:a is used by request test"));
    ok(&r, mem_phase_end(p, &r.err));
    assert_int_equal(manager_info(&r).free_bytes, before); /* a came, b went */
    assert_true(info_of(&a).whole && !info_of(&a).busy);
    mem_request_end(q);
    assert_int_equal(info_of(&never).loaded_bytes + info_of(&never).host_bytes, 0);
    close_model(&a);
    close_model(&b);
    close_model(&never);
    close_rig(&r);
}

static uint64_t required(void *arg)
{
    return ((visit *)arg)->n * UINT64_C(10000);
}

static weir_status no_room(void *arg, mem_phase *p, weir_error *err)
{
    (void)p;
    ++*(uint32_t *)arg;
    return base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test");
}

/* R2.4, R8.2: an engine without phases gets all its handles for the whole call, and is not called again. */
static void whole_calls(void **state)
{
    (void)state;
    rig r;
    model a, b;
    mem_report rep;
    open_rig(&r, device_of(4 * MIB), test_policy());
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_ONESHOT, NULL);
    mem_handle *handles[2] = {a.h, b.h};
    visit v = {.x = &b, .m = r.m, .n = 3, .order = {4, N_UNITS, 1}};
    mem_request *q = begin(&r, "test");
    const mem_whole_call call = {
        .handles = handles, .n_handles = 2, .memory_required = required, .fn = visit_units, .arg = &v};
    ok(&r, mem_call(q, &call, &r.err));
    check_visit(&v);
    mem_request_report(q, &rep);
    assert_true(info_of(&a).whole && info_of(&b).whole);
    assert_int_equal(rep.components[0].estimate_bytes, 30000);
    uint32_t calls = 0;
    const mem_whole_call fails = {.handles = handles, .n_handles = 2, .fn = no_room, .arg = &calls};
    assert_int_equal(mem_call(q, &fails, &r.err), WEIR_ERR_DEVICE_MEMORY);
    assert_int_equal(calls, 1);
    /* A phase of `use` neither. */
    void *much;
    mem_phase *p = use(&r, q, handles, 2, 0);
    assert_int_equal(mem_phase_alloc(p, NULL, 8 * MIB, "much", &much, &r.err), WEIR_ERR_DEVICE_MEMORY);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_report(q, &rep);
    assert_int_equal(rep.n_oom_retries, 0);
    mem_request_end(q);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* R3.1, R3.2, R3.4, R10.1: need, free and budget to the byte: what is not placed yet, working memory and
 * reserve against what the driver has, what the allocator holds unused, and the limit. */
static void the_bill(void **state)
{
    (void)state;
    rig r;
    model x;
    void *foreign;
    mem_policy policy = test_policy();
    dev_sim_options o = device_of(4 * MIB);
    policy.vram_reserve_bytes = 100000;
    o.keeps_freed = true;
    open_rig(&r, o, policy);
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    mem_component_report c = check_model(&r, r.m, &x).components[0];
    assert_int_equal(c.need_bytes, WHOLE + 131072 + 100000);
    assert_int_equal(c.free_bytes, 4 * MIB);
    assert_true(c.budget_bytes == UINT64_MAX && c.limit_bytes == 0 && c.reserve_bytes == 100000);
    assert_int_equal(c.working_bytes, 131072);
    c = check_model(&r, r.m, &x).components[0];
    assert_int_equal(c.need_bytes, 131072 + 100000); /* all of it is placed */
    assert_int_equal(c.free_bytes, 4 * MIB - WHOLE); /* with what the allocator kept */
    close_model(&x);
    close_rig(&r);

    policy.vram_limit_bytes = MIB;
    open_rig(&r, o, policy);
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    ok(&r, r.d->table->memory->alloc(r.d, 4096, "somebody else's", &foreign, &r.err));
    c = check_model(&r, r.m, &x).components[0];
    assert_int_equal(c.free_bytes, MIB - 4096); /* the limit, less what this process has */
    assert_int_equal(c.limit_bytes, MIB);
    assert_string_equal(c.reason, ""); /* 1,021,600 of 1,044,480 bytes */
    r.d->table->memory->free(r.d, foreign);
    ok(&r, r.d->table->memory->alloc(r.d, 245760, "somebody else's", &foreign, &r.err));
    c = check_model(&r, r.m, &x).components[0];
    assert_int_equal(c.free_bytes, MIB - 245760 - WHOLE);
    assert_string_equal(c.reason, "budget");
    assert_int_equal(c.budget_bytes, MIB - 245760 - 131072 - 100000);
    assert_true(c.loaded_bytes + c.slot_bytes <= c.budget_bytes);
    assert_true(c.loaded_bytes > 4096);
    r.d->table->memory->free(r.d, foreign);
    close_model(&x);
    close_rig(&r);
}

/* R3.3: where free is less than need others yield what is missing, and free is measured again. */
static void others_yield_what_is_missing(void **state)
{
    (void)state;
    rig r;
    model a, b;
    open_rig(&r, device_of(2 * WHOLE), test_policy());
    open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
    open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
    check_model(&r, r.m, &a);
    mem_report rep = check_model(&r, r.m, &b); /* 131,072 bytes of working memory too much */
    assert_int_equal(rep.yielded_bytes, UNIT_BYTES);
    assert_int_equal(rep.components[0].free_bytes, WHOLE + UNIT_BYTES);
    assert_true(rep.components[0].free_bytes >= rep.components[0].need_bytes);
    assert_int_equal(info_of(&a).loaded_bytes, WHOLE - UNIT_BYTES);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* R3.5: an estimate refuses nothing; below the smallest working set there is a warning. Mode high takes the
 * whole or fails. */
static void estimates_refuse_nothing(void **state)
{
    (void)state;
    for (int mode = MEM_VRAM_HIGH; mode <= MEM_VRAM_SHARED; mode++) {
        rig r;
        model x;
        log_text log = {.used = 0};
        mem_policy policy = test_policy();
        policy.vram_mode = (mem_vram_mode)mode;
        open_rig(&r, device_of(4 * MIB), policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        r.env->log_fn = take_log;
        r.env->log_arg = &log;
        visit v = {.x = &x, .m = r.m, .n = 2, .order = {3, 5}};
        mem_request *q = begin(&r, "test");
        mem_run_desc run = {
            .phase = {.name = "huge", .handles = &x.h, .n_handles = 1, .memory_bytes = UINT64_C(1) << 50},
            .fn = visit_units,
            .arg = &v};
        ok(&r, mem_run_phase(q, &run, &r.err));
        check_visit(&v);
        mem_request_end(q);
        assert_int_equal(info_of(&x).whole, mode == MEM_VRAM_HIGH);
        const char *warning = "warning: test:a: 0 bytes are below its smallest working set of 135168";
        assert_int_equal(strstr(log.text, warning) != NULL, mode != MEM_VRAM_HIGH);
        close_model(&x);
        close_rig(&r);
    }
    rig r;
    model x;
    mem_policy policy = test_policy();
    policy.vram_mode = MEM_VRAM_HIGH;
    policy.oom_retry = false;
    open_rig(&r, device_of(WHOLE - 4096), policy);
    open_model(&r, r.m, &x, "large", MEM_ONESHOT, NULL);
    assert_int_equal(run_model(&r, r.m, &x, NULL, &(job){0}), WEIR_ERR_DEVICE_MEMORY);
    assert_non_null(strstr(r.err.message, "placing test:large"));
    assert_int_equal(device_bytes(&r), 0);
    close_model(&x);
    close_rig(&r);
}

/* R3.6, R7.3: in high and shared components come and go whole; elsewhere unit by unit, the last placed first.
 * R3.6 shared: no second copy in RAM. */
static void modes_yield_in_their_way(void **state)
{
    (void)state;
    for (int mode = MEM_VRAM_HIGH; mode <= MEM_VRAM_SHARED; mode++) {
        if (mode == MEM_VRAM_LOW || mode == MEM_VRAM_NONE) continue; /* nothing that could go by units */
        rig r;
        model a, b;
        mem_policy policy = test_policy();
        policy.vram_mode = (mem_vram_mode)mode;
        policy.host_copies = MEM_ON;
        open_rig(&r, device_of(2 * WHOLE), policy);
        open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
        open_model(&r, r.m, &b, "b", MEM_SEQUENCE, NULL);
        check_model(&r, r.m, &a);
        mem_report rep = check_model(&r, r.m, &b);
        bool by_units = mode == MEM_VRAM_AUTO;
        assert_int_equal(rep.yielded_bytes, by_units ? UNIT_BYTES : WHOLE);
        for (uint32_t u = 0; u < N_UNITS; u++) {
            mem_handle_unit unit;
            assert_true(mem_handle_get_unit(a.h, u, &unit));
            assert_int_equal(unit.resident, by_units && u < N_UNITS - 1);
        }
        assert_true(info_of(&b).whole);
        assert_int_equal(info_of(&b).host_bytes + info_of(&b).pinned_bytes != 0, mode != MEM_VRAM_SHARED);
        check_model(&r, r.m, &a);
        close_model(&a);
        close_model(&b);
        close_rig(&r);
    }
}

/* Memory that stays is asked for until `h` has lost something. Returns who did before it. */
static void yields_next(rig *r, model *const *all, uint32_t n, const model *next)
{
    void *kept;
    uint64_t before[4], there = manager_info(r).device.free_bytes;
    for (uint32_t i = 0; i < n; i++) before[i] = info_of(all[i]).loaded_bytes + info_of(all[i]).slot_bytes;
    ok(r, mem_manager_alloc(r->m, there + 4096, "kept", &kept, &r->err));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t now = info_of(all[i]).loaded_bytes + info_of(all[i]).slot_bytes;
        assert_int_equal(now < before[i], all[i] == next);
    }
    mem_manager_free(r->m, kept);
    ok(r, mem_handle_unload(next->h, false, &r->err));
}

static weir_status fail_once(void *arg, mem_phase *p, weir_error *err)
{
    (void)p;
    return (*(uint32_t *)arg)++ == 0 ? base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test") : WEIR_OK;
}

/* R7.1: partly loaded ones first, then those that are not pinned, then by use. */
static void the_order_of_yielding(void **state)
{
    (void)state;
    rig r;
    model x[4];
    static const char *const names[] = {"pinned", "old", "new", "partly"};
    mem_policy policy = test_policy();
    uint32_t calls = 0;
    policy.pinned_models = "other,test:pinned";
    open_rig(&r, device_of(5 * WHOLE), policy);
    for (int i = 0; i < 4; i++) open_model(&r, r.m, &x[i], names[i], MEM_ONESHOT, NULL);
    mem_request *q = begin(&r, "test");
    mem_run_desc run = {
        .phase = {.name = "p", .handles = &x[3].h, .n_handles = 1}, .fn = fail_once, .arg = &calls};
    ok(&r, mem_run_phase(q, &run, &r.err));
    mem_request_end(q);
    assert_false(info_of(&x[3]).whole);
    assert_true(info_of(&x[3]).loaded_bytes > 0);
    check_model(&r, r.m, &x[0]); /* pinned, and used longest ago of those that are whole */
    check_model(&r, r.m, &x[2]);
    check_model(&r, r.m, &x[1]);
    check_model(&r, r.m, &x[2]); /* used again: x[1] is the older one */
    check_model(&r, r.m, &x[3]); /* used last, and still capped */
    assert_false(info_of(&x[3]).whole);
    model *all[4] = {&x[0], &x[1], &x[2], &x[3]};
    yields_next(&r, all, 4, &x[3]);
    yields_next(&r, all, 4, &x[1]);
    yields_next(&r, all, 4, &x[2]);
    yields_next(&r, all, 4, &x[0]);
    for (int i = 0; i < 4; i++) close_model(&x[i]);
    close_rig(&r);
}

/* R7.2: what any request is using does not yield; what a running request used before does. */
static void what_is_used_stays(void **state)
{
    (void)state;
    rig r;
    model a, b;
    mem_policy policy = test_policy();
    policy.gpu_jobs = 2;
    policy.wait_limit_s = 0;
    open_rig(&r, device_of(WHOLE + WHOLE / 2), policy);
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_ONESHOT, NULL);
    mem_request *q = begin(&r, "test");
    mem_phase *p = use(&r, q, &a.h, 1, 0);
    mem_report rep = check_model(&r, r.m, &b); /* of another request */
    assert_true(info_of(&a).whole && rep.n_yields == 0);
    assert_string_equal(rep.components[0].reason, "budget");
    ok(&r, mem_phase_end(p, &r.err));
    p = use(&r, q, &b.h, 1, 0); /* of the same request, and a is none of its phase's */
    assert_true(info_of(&b).whole && !info_of(&a).whole);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_report(q, &rep);
    assert_true(rep.n_yields > 0);
    assert_string_equal(rep.components[0].component, "a");
    assert_string_equal(rep.components[0].reason, "gave up for another");
    assert_string_equal(rep.components[0].gave_up_for, "b");
    mem_request_end(q);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* R7.4: the allocator keeps what is freed as long as nothing yields, request after request. */
static void the_cache_is_not_trimmed_for_nothing(void **state)
{
    (void)state;
    rig r;
    model a, b;
    dev_sim_options o = device_of(WHOLE + WHOLE / 2);
    o.keeps_freed = true;
    open_rig(&r, o, test_policy());
    open_model(&r, r.m, &a, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &b, "b", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &a);
    uint64_t kept = manager_info(&r).device.cache_bytes;
    assert_true(kept >= 65536); /* scratch of the phase */
    for (int i = 0; i < 3; i++) {
        mem_request *q = begin(&r, "test");
        mem_phase *p = use(&r, q, &a.h, 1, 0);
        assert_int_equal(manager_info(&r).device.cache_bytes, kept);
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
    }
    mem_request *q = begin(&r, "test");
    mem_phase *p = use(&r, q, &b.h, 1, 0);
    assert_true(info_of(&a).loaded_bytes < WHOLE); /* yielded */
    assert_int_equal(manager_info(&r).device.cache_bytes, 0);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    close_model(&a);
    close_model(&b);
    close_rig(&r);
}

/* A component of n units of 128 KiB and nothing else. */
static mem_handle *plain(rig *r, const char *name, uint32_t n, uint8_t *bytes)
{
    mem_handle *h;
    ok(r, mem_handle_create(r->m, "test", name, MEM_SEQUENCE, &h, &r->err));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit;
        mem_weight_id id;
        const mem_handle_weight w = {.name = "w", .bytes = UNIT_BYTES, .host = bytes, .streamable = true};
        ok(r, mem_handle_add_unit(h, "u", MEM_MARK_NONE, &unit, &r->err));
        ok(r, mem_handle_add_weight(h, unit, &w, &id, &r->err));
    }
    ok(r, mem_handle_seal(h, &r->err));
    return h;
}

/* R7.5: the smaller ones of a phase whole first, each leaving the others their smallest working sets; the
 * largest has the rest. Whatever lay on the device before. */
static void several_components_in_one_phase(void **state)
{
    (void)state;
    static uint8_t bytes[UNIT_BYTES];
    static const uint32_t sizes[3] = {3, 6, 12}; /* units */
    static const struct {
        uint32_t room, loaded[3], slots[3];
    } cases[] = {{21, {3, 6, 12}, {0, 0, 0}}, {20, {3, 6, 10}, {0, 0, 1}}, {11, {3, 6, 1}, {0, 0, 1}},
                 {10, {3, 6, 0}, {0, 0, 1}},  {9, {3, 4, 0}, {0, 1, 1}},   {5, {3, 0, 0}, {0, 1, 1}},
                 {4, {1, 0, 0}, {1, 1, 1}},   {3, {0, 0, 0}, {1, 1, 1}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int before = 0; before <= 3; before++) { /* 3: nothing was there */
            rig r;
            mem_handle *h[3];
            open_rig(&r, device_of(cases[c].room * UNIT_BYTES), test_policy());
            for (int i = 0; i < 3; i++) h[i] = plain(&r, i == 0 ? "s" : i == 1 ? "m" : "l", sizes[i], bytes);
            mem_request *q = begin(&r, "test");
            if (before < 3) ok(&r, mem_phase_end(use(&r, q, &h[before], 1, 0), &r.err));
            mem_handle *listed[3] = {h[2], h[0], h[1]};
            mem_phase *p = use(&r, q, listed, 3, 0);
            for (int i = 0; i < 3; i++) {
                mem_handle_info info;
                mem_handle_get_info(h[i], &info);
                if (info.loaded_bytes != cases[c].loaded[i] * UNIT_BYTES ||
                    info.slot_bytes != cases[c].slots[i] * UNIT_BYTES)
                    fail_msg("room for %u, component %d, %d before: %llu units and %llu slots", cases[c].room,
                             i, before, (unsigned long long)(info.loaded_bytes / UNIT_BYTES),
                             (unsigned long long)(info.slot_bytes / UNIT_BYTES));
            }
            ok(&r, mem_phase_end(p, &r.err));
            mem_request_end(q);
            for (int i = 0; i < 3; i++) mem_handle_destroy(h[i]);
            close_rig(&r);
        }
}

/* R7.6: when a job failed for memory all idle models leave the devices, pinned ones stay; a job that got by
 * moves nobody. Components that are still being registered are in nobody's way. */
static void after_a_failure_for_memory(void **state)
{
    (void)state;
    rig r;
    model idle, pinned, x;
    mem_handle *raw;
    uint32_t calls = 0;
    mem_policy policy = test_policy();
    policy.pinned_models = "test:pinned";
    policy.oom_retry = false;
    open_rig(&r, device_of(8 * MIB), policy);
    ok(&r, mem_handle_create(r.m, "test", "raw", MEM_ONESHOT, &raw, &r.err));
    open_model(&r, r.m, &idle, "idle", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &pinned, "pinned", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &x, "x", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &idle);
    check_model(&r, r.m, &pinned);
    check_model(&r, r.m, &x);
    assert_true(info_of(&idle).whole);
    mem_request *q = begin(&r, "test");
    mem_run_desc run = {
        .phase = {.name = "p", .handles = &x.h, .n_handles = 1}, .fn = no_room, .arg = &calls};
    assert_int_equal(mem_run_phase(q, &run, &r.err), WEIR_ERR_DEVICE_MEMORY);
    assert_true(info_of(&idle).whole);
    mem_request_end(q);
    assert_int_equal(info_of(&idle).loaded_bytes, 0);
    assert_int_equal(info_of(&x).loaded_bytes, 0);
    assert_true(info_of(&pinned).whole);
    check_model(&r, r.m, &idle);
    mem_handle_destroy(raw);
    close_model(&idle);
    close_model(&pinned);
    close_model(&x);
    close_rig(&r);
}

typedef struct greedy {
    mem_manager *m;
    void *kept;
    uint64_t bytes;
} greedy;

static weir_status take_much(void *arg, mem_phase *p, weir_error *err)
{
    greedy *g = arg;
    void *a, *b;
    weir_status status = mem_phase_alloc(p, NULL, g->bytes, "a", &a, err);
    if (status != WEIR_OK) return status;
    mem_phase_free(p, NULL, a);
    if (g->kept == NULL) status = mem_manager_alloc(g->m, 500000, "kept", &g->kept, err);
    return status == WEIR_OK ? mem_phase_alloc(p, NULL, g->bytes, "b", &b, err) : status;
}

/* R9.1, R9.3: the engine's estimate is weighed as it is given, times what was measured: the peak of what
 * lives together, without weights, copies and what stays; x 1.1, at most 16; only upwards. */
static void working_memory_is_measured(void **state)
{
    (void)state;
    static const struct {
        uint64_t estimate, bytes;
        double wanted;
    } cases[] = {
        {100000, 100000, 1}, {100000, 90000, 1}, {100000, 150000, 1.65}, {1000, 150000, 16}, {0, 150000, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rig r;
        model x;
        mem_report rep;
        mem_policy policy = test_policy();
        policy.vram_mode = MEM_VRAM_LOW; /* with copies in slots */
        open_rig(&r, device_of(4 * MIB), policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        greedy g = {.m = r.m, .bytes = cases[c].bytes};
        for (int i = 0; i < 3; i++) {
            mem_request *q = begin(&r, "test");
            const mem_run_desc run = {
                .phase = {.name = "p", .handles = &x.h, .n_handles = 1, .memory_bytes = cases[c].estimate},
                .fn = take_much,
                .arg = &g};
            ok(&r, mem_run_phase(q, &run, &r.err));
            mem_request_report(q, &rep);
            mem_request_end(q);
            double got = rep.components[0].calibration, wanted = i == 0 ? 1 : cases[c].wanted;
            assert_true(got > wanted - 1e-9 && got < wanted + 1e-9);
            assert_int_equal(rep.working_peak_bytes, cases[c].bytes);
            assert_int_equal(rep.components[0].estimate_bytes, cases[c].estimate);
            assert_int_equal(rep.components[0].working_bytes, (uint64_t)((double)cases[c].estimate * wanted));
        }
        mem_manager_free(r.m, g.kept);
        close_model(&x);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_hold_what_they_list),
        cmocka_unit_test(whole_calls),
        cmocka_unit_test(the_bill),
        cmocka_unit_test(others_yield_what_is_missing),
        cmocka_unit_test(estimates_refuse_nothing),
        cmocka_unit_test(modes_yield_in_their_way),
        cmocka_unit_test(the_order_of_yielding),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(the_cache_is_not_trimmed_for_nothing),
        cmocka_unit_test(several_components_in_one_phase),
        cmocka_unit_test(after_a_failure_for_memory),
        cmocka_unit_test(working_memory_is_measured),
    };
    return cmocka_run_group_tests_name("memory manager: what a phase is given", tests, NULL, NULL);
}
