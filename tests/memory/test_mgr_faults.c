/* Whatever fails under the memory manager (X5): each read, copy, allocation and kernel of a request, once and
 * for good, of components in files and in RAM, whole and streaming, alone and beside others. Once: the same
 * bytes. For good: the documented error. Always: the ledger at its baseline, and a handle that works. */
#include "mgr_test.h"

#define MIB     (UINT64_C(1) << 20)
#define STAGING (2 * MIB)

static const base_fault_site all_sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_PINNED_ALLOC,
                                            BASE_FAULT_COPY,         BASE_FAULT_READ,
                                            BASE_FAULT_HOST_ALLOC,   BASE_FAULT_KERNEL_BUILD};
#define N_SITES (sizeof all_sites / sizeof *all_sites)

/* What a failure of a site may be told as. */
static bool documented(base_fault_site site, weir_status status)
{
    switch (site) {
    case BASE_FAULT_DEVICE_ALLOC: return status == WEIR_ERR_DEVICE_MEMORY;
    case BASE_FAULT_COPY:
    case BASE_FAULT_KERNEL_BUILD: return status == WEIR_ERR_DEVICE;
    case BASE_FAULT_READ: return status == WEIR_ERR_IO;
    case BASE_FAULT_HOST_ALLOC: return status == WEIR_ERR_OUT_OF_MEMORY;
    default: return false;
    }
}

typedef weir_status (*request_fn)(rig *r, void *arg);

typedef struct outcome {
    uint32_t n_tried, n_failed;
} outcome;

/* Runs `go` with each passage of the site failing, once and for good. `clean` takes back what it left. */
static outcome sweep_site(rig *r, base_fault_site site, const base_fault_rule *kind, request_fn go,
                          void (*clean)(rig *r, void *arg), void *arg, bool *staged)
{
    outcome o = {0};
    clean(r, arg);
    uint64_t host = host_bytes(r), device = device_bytes(r);
    ok(r, base_fault_count_on(r->env, &r->err));
    ok(r, go(r, arg));
    uint64_t n = base_fault_count(r->env, site);
    base_fault_clear(r->env);
    clean(r, arg);
    for (uint64_t i = 0; i < 2 * n; i++) {
        base_fault_rule rule = *kind;
        rule.site = site;
        rule.after = i / 2;
        rule.for_good = i % 2 != 0;
        ok(r, base_fault_arm(r->env, &rule, &r->err));
        weir_status status = go(r, arg);
        base_fault_clear(r->env);
        o.n_tried++;
        o.n_failed += status != WEIR_OK;
        bool may = rule.for_good || site == BASE_FAULT_HOST_ALLOC;
        if (status != WEIR_OK && (!may || !documented(site, status)))
            fail_msg("%s:%llu%s gives %s: %s", base_fault_text(site), (unsigned long long)rule.after,
                     rule.for_good ? ":for_good" : "", weir_status_name(status), r->err.message);
        assert_true(status == WEIR_OK || r->err.message[0] != '\0');
        clean(r, arg);
        assert_int_equal(device_bytes(r), device);
        /* Staging comes when it is first needed, and stays with the manager. */
        if (!*staged && host_bytes(r) == host + STAGING) *staged = true, host += STAGING;
        assert_int_equal(host_bytes(r), host);
        ok(r, go(r, arg));
        clean(r, arg);
    }
    return o;
}

static const base_fault_rule plain_failure = {.length = -1};

/* ---- components of files ---- */

typedef struct filed {
    model x;
    base_file *file;
    char path[128];
} filed;

static void open_filed(rig *r, filed *f, mem_kind kind)
{
    model source;
    open_model(r, r->m, &source, "f", kind, NULL);
    f->file = model_file(r, &source, f->path);
    close_model(&source);
    open_model(r, r->m, &f->x, "f", kind, f->file);
    check_model(r, r->m, &f->x);
}

static void close_filed(filed *f)
{
    close_model(&f->x);
    base_file_close(f->file);
    unlink(f->path);
}

static weir_status run_filed(rig *r, void *arg)
{
    filed *f = arg;
    job j;
    uint32_t wanted[N_SUMS];
    weir_status status = run_model(r, r->m, &f->x, NULL, &j);
    expected(&f->x, wanted);
    if (status == WEIR_OK) assert_memory_equal(j.sums, wanted, sizeof wanted);
    return status;
}

static void clean_filed(rig *r, void *arg)
{
    ok(r, mem_handle_unload(((filed *)arg)->x.h, true, &r->err));
}

/* X5, R5.4: components that are read from a file, whole, half and streaming, with copies in RAM and without.
 */
static void files(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {4 * MIB, WHOLE / 2 + 131072, 4096 + UNIT_BYTES + 131072};
    for (size_t s = 0; s < 3; s++)
        for (int copies = MEM_ON; copies <= MEM_OFF; copies++) {
            rig r;
            filed f;
            mem_policy policy = test_policy();
            policy.host_copies = (mem_switch)copies;
            open_rig(&r, device_of(sizes[s]), policy);
            bool staged = false;
            open_filed(&r, &f, s == 1 ? MEM_ONESHOT : MEM_SEQUENCE);
            for (size_t i = 0; i < N_SITES; i++) {
                outcome o = sweep_site(&r, all_sites[i], &plain_failure, run_filed, clean_filed, &f, &staged);
                bool needed = all_sites[i] != BASE_FAULT_PINNED_ALLOC;
                /* Without copies nothing is pinned but the staging, which is there already. */
                if (needed || copies == MEM_ON) assert_true(o.n_tried > 1);
                assert_int_equal(o.n_failed > 0, needed);
            }
            close_filed(&f);
            close_rig(&r);
        }
}

static weir_status place_filed(rig *r, filed *f)
{
    mem_request *q;
    mem_phase *p;
    const mem_request_desc d = {.name = "t", .managers = &r->m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &f->x.h, .n_handles = 1};
    ok(r, mem_request_begin(&d, &q, &r->err));
    weir_status status = mem_use(q, &phase, &p, &r->err);
    if (status == WEIR_OK) ok(r, mem_phase_end(p, &r->err));
    mem_request_end(q);
    return status;
}

/* X5, R8.2: a phase that is not repeated gets over what fails once while its components are placed; what
 * fails for good leaves nothing of them on the device. */
static void placing(void **state)
{
    (void)state;
    static const base_fault_site sites[] = {BASE_FAULT_COPY, BASE_FAULT_READ, BASE_FAULT_DEVICE_ALLOC};
    rig r;
    filed f;
    mem_policy policy = test_policy();
    policy.host_copies = MEM_OFF;
    open_rig(&r, device_of(4 * MIB), policy);
    open_filed(&r, &f, MEM_ONESHOT);
    for (size_t s = 0; s < 3; s++) {
        clean_filed(&r, &f);
        ok(&r, base_fault_count_on(r.env, &r.err));
        ok(&r, place_filed(&r, &f));
        uint64_t n = base_fault_count(r.env, sites[s]);
        base_fault_clear(r.env);
        assert_int_equal(n, N_UNITS + 1);
        for (uint64_t i = 0; i < 2 * n; i++) {
            const base_fault_rule rule = {
                .site = sites[s], .after = i / 2, .for_good = i % 2 != 0, .length = -1};
            clean_filed(&r, &f);
            ok(&r, base_fault_arm(r.env, &rule, &r.err));
            weir_status status = place_filed(&r, &f);
            base_fault_clear(r.env);
            if (!rule.for_good) assert_int_equal(status, WEIR_OK);
            if (rule.for_good && sites[s] != BASE_FAULT_DEVICE_ALLOC)
                assert_true(documented(sites[s], status));
            mem_handle_info info;
            mem_handle_get_info(f.x.h, &info);
            /* What bytes came before the failure stay; blocks without bytes do not. */
            if (status != WEIR_OK) assert_int_equal(device_bytes(&r), info.loaded_bytes);
            if (status != WEIR_OK) assert_true(info.loaded_bytes <= i / 2 * UNIT_BYTES);
            ok(&r, run_filed(&r, &f));
        }
    }
    close_filed(&f);
    close_rig(&r);
}

/* Reads that are short, that meet an end which was not there, and other errors than the usual one. */
static void reads_in_every_way(void **state)
{
    (void)state;
    static const base_fault_rule ways[] = {
        {.length = 1000}, {.length = 0}, {.length = -1, .missing = 4096}, {.length = -1, .error = 5}};
    rig r;
    filed f;
    mem_policy policy = test_policy();
    policy.host_copies = MEM_OFF;
    open_rig(&r, device_of(WHOLE / 2 + 131072), policy);
    open_filed(&r, &f, MEM_ONESHOT);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        for (int once = 0; once < 2; once++) {
            base_fault_rule rule = ways[w];
            rule.site = BASE_FAULT_READ;
            rule.after = 3;
            rule.for_good = !once;
            clean_filed(&r, &f);
            ok(&r, base_fault_arm(r.env, &rule, &r.err));
            weir_status status = run_filed(&r, &f);
            base_fault_clear(r.env);
            /* A short read is continued, at any time; all else is tried once more. */
            if (once) assert_int_equal(status, WEIR_OK);
            if (status != WEIR_OK) {
                assert_true(status == WEIR_ERR_IO || status == WEIR_ERR_TRUNCATED ||
                            status == WEIR_ERR_FILE_CHANGED);
                assert_non_null(strstr(r.err.message, "test:f"));
                assert_non_null(strstr(r.err.message, f.path));
            }
            ok(&r, run_filed(&r, &f));
        }
    }
    /* The file itself is cut beneath it, while it streams. */
    clean_filed(&r, &f);
    assert_int_equal(truncate(f.path, WHOLE / 2), 0);
    weir_status status = run_filed(&r, &f);
    assert_true(status == WEIR_ERR_TRUNCATED || status == WEIR_ERR_FILE_CHANGED);
    assert_non_null(strstr(r.err.message, f.path));
    close_filed(&f);
    close_rig(&r);
}

/* ---- beside others ---- */

typedef struct crowd {
    model idle, a, b;
    mem_handle *changing;
    uint32_t cell[1024];
} crowd;

static void count_up(const dev_arg *args, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) ((uint32_t *)args[0].as.address)[i]++;
}
static const dev_kernel count_kernel = {.name = "count_up", .c = count_up};

static weir_status count_cell(void *arg, mem_phase *p, weir_error *err)
{
    crowd *c = arg;
    dev_arg args[1] = {{.kind = DEV_ARG_ADDRESS}};
    weir_status status = mem_weight_address(p, c->changing, 0, &args[0].as.address, err);
    return status == WEIR_OK ? mem_phase_launch(p, NULL, &count_kernel, args, 1, 1024, err) : status;
}

/* One request of three phases: one idle model yields for two others, which stream; and what compute changed
 * yields too. */
static weir_status run_crowd(rig *r, void *arg)
{
    crowd *c = arg;
    mem_request *q;
    mem_handle *both[2] = {c->a.h, c->b.h};
    duo d = {{{.x = &c->a, .m = r->m, .n = 4, .order = {0, 1, N_UNITS, 5}},
              {.x = &c->b, .m = r->m, .n = 4, .order = {3, 3, N_UNITS, 1}}}};
    visit first = {.x = &c->idle, .m = r->m, .n = 2, .order = {2, 4}};
    const mem_request_desc desc = {.name = "crowd", .managers = &r->m, .n_managers = 1};
    const mem_run_desc runs[] = {
        {.phase = {.name = "change", .handles = &c->changing, .n_handles = 1}, .fn = count_cell, .arg = c},
        {.phase = {.name = "idle", .handles = &c->idle.h, .n_handles = 1}, .fn = visit_units, .arg = &first},
        {.phase = {.name = "both", .handles = both, .n_handles = 2, .memory_bytes = 8192},
         .fn = visit_duo,
         .arg = &d}};
    weir_status status = mem_request_begin(&desc, &q, &r->err);
    if (status != WEIR_OK) return status;
    for (int i = 0; i < 3 && status == WEIR_OK; i++) status = mem_run_phase(q, &runs[i], &r->err);
    mem_request_end(q);
    if (status == WEIR_OK) {
        check_visit(&first);
        check_visit(&d.on[0]);
        check_visit(&d.on[1]);
    }
    return status;
}

static void clean_crowd(rig *r, void *arg)
{
    crowd *c = arg;
    ok(r, mem_handle_unload(c->idle.h, true, &r->err));
    ok(r, mem_handle_unload(c->a.h, true, &r->err));
    ok(r, mem_handle_unload(c->b.h, true, &r->err));
    ok(r, mem_handle_unload(c->changing, true, &r->err));
    for (uint32_t i = 1; i < 1024; i++) assert_int_equal(c->cell[i], c->cell[0]);
}

/* X5, R7, R6.1: failures while others yield, while what compute changed is copied back, and in a phase with
 * several components. */
static void beside_others(void **state)
{
    (void)state;
    rig r;
    static crowd c;
    bool staged = true; /* nothing is in a file */
    mem_weight_id id;
    mem_policy policy = test_policy();
    policy.host_copies = MEM_ON;
    memset(&c, 0, sizeof c);
    open_rig(&r, device_of(WHOLE + 8192 + 65536), policy);
    open_model(&r, r.m, &c.idle, "idle", MEM_SEQUENCE, NULL);
    open_model(&r, r.m, &c.a, "a", MEM_SEQUENCE, NULL);
    open_model(&r, r.m, &c.b, "b", MEM_ONESHOT, NULL);
    const mem_handle_weight w = {.name = "cell", .bytes = sizeof c.cell, .host = c.cell, .changes = true};
    ok(&r, mem_handle_create(r.m, "test", "cell", MEM_ONESHOT, &c.changing, &r.err));
    ok(&r, mem_handle_add_weight(c.changing, MEM_UNIT_DEFAULT, &w, &id, &r.err));
    ok(&r, mem_handle_seal(c.changing, &r.err));
    ok(&r, run_crowd(&r, &c));
    clean_crowd(&r, &c);
    assert_int_equal(c.cell[0], 1);
    for (size_t i = 0; i < N_SITES; i++) {
        if (all_sites[i] == BASE_FAULT_READ) continue;
        outcome o = sweep_site(&r, all_sites[i], &plain_failure, run_crowd, clean_crowd, &c, &staged);
        assert_true(o.n_tried > 1);
        assert_int_equal(o.n_failed > 0, all_sites[i] != BASE_FAULT_PINNED_ALLOC);
    }
    mem_handle_destroy(c.changing);
    close_model(&c.idle);
    close_model(&c.a);
    close_model(&c.b);
    close_rig(&r);
}

/* ---- registration ---- */

static weir_status build(rig *r, uint8_t *bytes, mem_manager **m, mem_handle **h)
{
    mem_policy policy = test_policy();
    uint32_t unit;
    mem_weight_id id;
    weir_status status = mem_manager_create(r->env, r->d, &policy, r->m, m, &r->err);
    if (status == WEIR_OK) status = mem_handle_create(*m, "test", "built", MEM_ONESHOT, h, &r->err);
    if (status == WEIR_OK) status = mem_handle_add_unit(*h, "named", MEM_MARK_NONE, &unit, &r->err);
    if (status == WEIR_OK) status = mem_handle_mark(*h, "layers.1", MEM_MARK_HOT, &r->err);
    for (uint32_t i = 0; i < 20 && status == WEIR_OK; i++) { /* tables grow */
        char name[32];
        snprintf(name, sizeof name, "layers.%u.w", i);
        const mem_handle_weight w = {.name = name, .bytes = 1000000, .host = bytes, .streamable = true};
        status = mem_handle_add_weight(*h, i < 2 ? unit : MEM_UNIT_DEFAULT, &w, &id, &r->err);
    }
    return status == WEIR_OK ? mem_handle_seal(*h, &r->err) : status;
}

/* X5: each allocation of opening a manager and registering a component fails; nothing is left of either. */
static void registration(void **state)
{
    (void)state;
    rig r;
    static uint8_t bytes[1000000];
    uint64_t after = 0;
    open_rig(&r, device_of(4 * MIB), test_policy());
    uint64_t host = host_bytes(&r);
    for (;; after++) {
        mem_manager *m = NULL;
        mem_handle *h = NULL;
        const base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        ok(&r, base_fault_arm(r.env, &rule, &r.err));
        weir_status status = build(&r, bytes, &m, &h);
        base_fault_clear(r.env);
        mem_handle_destroy(h);
        mem_manager_destroy(m);
        assert_int_equal(host_bytes(&r), host);
        if (status == WEIR_OK) break;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
    }
    assert_in_range(after, 40, 200);
    close_rig(&r);
}

/* ---- a device that goes ---- */

static void vanish(rig *r, uint64_t after)
{
    static const base_fault_site sites[] = {BASE_FAULT_COPY, BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_KERNEL_BUILD,
                                            BASE_FAULT_PINNED_ALLOC};
    for (size_t i = 0; i < 4; i++) {
        const base_fault_rule rule = {.site = sites[i], .after = after, .for_good = true, .length = -1};
        ok(r, base_fault_arm(r->env, &rule, &r->err));
    }
}

/* A device that vanishes in the middle of a request, or refuses everything from the start: an error that
 * names it, and nothing lost: all can be destroyed while it is away, and works when it is back. */
static void a_device_that_vanishes(void **state)
{
    (void)state;
    for (uint64_t after = 0; after < 16; after++)
        for (int back = 0; back < 2; back++) {
            rig r;
            model a, b;
            job j;
            open_rig(&r, device_of(WHOLE + 131072), test_policy());
            open_model(&r, r.m, &a, "a", MEM_SEQUENCE, NULL);
            open_model(&r, r.m, &b, "b", MEM_ONESHOT, NULL);
            check_model(&r, r.m, &a);
            vanish(&r, after);
            weir_status status = run_model(&r, r.m, &b, NULL, &j);
            if (status == WEIR_OK) status = run_model(&r, r.m, &a, NULL, &j);
            assert_true(status == WEIR_ERR_DEVICE || status == WEIR_ERR_DEVICE_MEMORY);
            assert_non_null(strstr(r.err.message, "simulated device"));
            if (back) {
                base_fault_clear(r.env);
                check_model(&r, r.m, &b);
                check_model(&r, r.m, &a);
            }
            close_model(&a);
            close_model(&b);
            close_rig(&r); /* device and ledger are empty */
        }
}

/* A kernel that the device cannot build is named, and the phase goes on. */
static void a_kernel_that_does_not_build(void **state)
{
    (void)state;
    rig r;
    model x;
    mem_request *q;
    mem_phase *p;
    static const dev_kernel no_form = {.name = "formless"};
    open_rig(&r, device_of(4 * MIB), test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &x.h, .n_handles = 1};
    ok(&r, mem_request_begin(&d, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    assert_int_equal(mem_phase_launch(p, NULL, &no_form, NULL, 0, 1, &r.err), WEIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(r.err.message, "kernel formless"));
    base_fault_rule rule = {.site = BASE_FAULT_KERNEL_BUILD, .for_good = true, .length = -1};
    ok(&r, base_fault_arm(r.env, &rule, &r.err));
    visit v = {.x = &x, .m = r.m, .n = 1, .order = {2}};
    assert_int_equal(visit_units(&v, p, &r.err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(r.err.message, "kernel fold could not be built"));
    base_fault_clear(r.env);
    ok(&r, visit_units(&v, p, &r.err));
    check_visit(&v);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    close_model(&x);
    close_rig(&r);
}

typedef struct leaner {
    base_rng rng;
    uint32_t runs, fails, drawn;
} leaner;

static weir_status fail_so_often(void *arg, mem_phase *p, weir_error *err)
{
    leaner *l = arg;
    (void)p;
    l->drawn = base_rng_u32(&l->rng);
    return l->runs++ < l->fails ? base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test") : WEIR_OK;
}

static weir_status lean(void *arg, mem_phase *p, weir_error *err)
{
    leaner *l = arg;
    (void)p;
    (void)err;
    l->drawn = base_rng_u32(&l->rng);
    return WEIR_OK;
}

/* R8.1, R8.3: the fallback comes after the retries, only where it is on, with the generator put back; what it
 * is called is in the report. */
static void fallbacks(void **state)
{
    (void)state;
    for (int retry = 0; retry < 2; retry++)
        for (int on = 0; on < 2; on++)
            for (uint32_t fails = 0; fails < 5; fails++) {
                rig r;
                mem_request *q;
                mem_report rep;
                leaner l = {.fails = fails};
                log_text log = {.used = 0};
                mem_policy policy = test_policy();
                policy.oom_retry = retry;
                policy.oom_fallback = on;
                base_rng_seed(&l.rng, 3, 4);
                base_rng twin = l.rng, *generators[] = {&l.rng};
                open_rig(&r, device_of(MIB), policy);
                r.env->log_fn = take_log;
                r.env->log_arg = &log;
                const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
                const mem_run_desc run = {.phase = {.name = "decode"},
                                          .fn = fail_so_often,
                                          .arg = &l,
                                          .generators = generators,
                                          .n_generators = 1,
                                          .fallback = lean,
                                          .fallback_name = "tiles"};
                ok(&r, mem_request_begin(&d, &q, &r.err));
                weir_status status = mem_run_phase(q, &run, &r.err);
                mem_request_report(q, &rep);
                mem_request_end(q);
                uint32_t attempts = retry ? 3 : 1;
                bool fell = fails >= attempts && on;
                assert_int_equal(status, fails < attempts || on ? WEIR_OK : WEIR_ERR_DEVICE_MEMORY);
                assert_int_equal(l.runs, fails < attempts ? fails + 1 : attempts);
                assert_int_equal(rep.n_oom_retries, l.runs - 1);
                assert_string_equal(rep.fallbacks, fell ? "tiles" : "");
                assert_int_equal(strstr(log.text, "warning: phase decode: fallback tiles") != NULL, fell);
                assert_int_equal(strstr(log.text, "warning: phase decode runs again") != NULL, l.runs > 1);
                assert_int_equal(l.drawn, base_rng_u32(&twin)); /* R1.2 */
                close_rig(&r);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),
        cmocka_unit_test(placing),
        cmocka_unit_test(reads_in_every_way),
        cmocka_unit_test(beside_others),
        cmocka_unit_test(registration),
        cmocka_unit_test(a_device_that_vanishes),
        cmocka_unit_test(a_kernel_that_does_not_build),
        cmocka_unit_test(fallbacks),
    };
    return cmocka_run_group_tests_name("memory manager: failures", tests, NULL, NULL);
}
