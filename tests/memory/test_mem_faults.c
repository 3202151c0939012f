/* Each thing that can fail is made to fail, once and for good, everywhere it happens: the bytes stay right or
 * the error is one of those documented, nothing leaks, and the same component works again afterwards. */
#include "mem_test.h"

#include <errno.h>

static const base_fault_site sites[] = {BASE_FAULT_HOST_ALLOC, BASE_FAULT_READ,          BASE_FAULT_SUBMIT,
                                        BASE_FAULT_COMPLETION, BASE_FAULT_THREAD_CREATE, BASE_FAULT_IO_URING};
#define N_SITES (sizeof sites / sizeof *sites)

static bool is_documented(base_fault_site site, weir_status status)
{
    switch (site) {
    case BASE_FAULT_HOST_ALLOC: return status == WEIR_ERR_OUT_OF_MEMORY;
    case BASE_FAULT_THREAD_CREATE: return status == WEIR_ERR_THREAD;
    case BASE_FAULT_IO_URING: return status == WEIR_ERR_UNSUPPORTED;
    default: return status == WEIR_ERR_IO;
    }
}

/* Arms one rule, runs, disarms. A failure names what replays it. */
static weir_status run_with(fixture *f, const base_aio_options *way, uint64_t budget,
                            const base_fault_rule *rule)
{
    assert_status(base_fault_arm(f->env, rule, &f->err), WEIR_OK);
    weir_status status = session(f, way, budget, 200);
    base_fault_clear(f->env);
    if (status != WEIR_OK && !is_documented(rule->site, status))
        fail_msg("%s:%llu%s gives %s: %s", base_fault_text(rule->site), (unsigned long long)rule->after,
                 rule->for_good ? ":for_good" : "", weir_status_name(status), f->err.message);
    return status;
}

static uint64_t count_sites(fixture *f, const base_aio_options *way, uint64_t budget, base_fault_site site)
{
    assert_status(base_fault_count_on(f->env, &f->err), WEIR_OK);
    assert_status(session(f, way, budget, 200), WEIR_OK);
    uint64_t n = base_fault_count(f->env, site);
    base_fault_clear(f->env);
    return n;
}

/* A read, its submission and its completion may fail once without consequence; an allocation may not. */
static void fail_everywhere(fixture *f, const base_aio_options *way, uint64_t budget)
{
    for (size_t s = 0; s < N_SITES; s++) {
        uint64_t n = count_sites(f, way, budget, sites[s]);
        /* All of the first and of the last, and a part of the many reads between. */
        uint64_t step = n > 30 ? n / 10 : 1;
        for (uint64_t after = 0; after < n; after += after < 6 ? 1 : step) {
            base_fault_rule rule = {.site = sites[s], .after = after, .length = -1};
            weir_status status = run_with(f, way, budget, &rule);
            bool reads = sites[s] == BASE_FAULT_READ || sites[s] == BASE_FAULT_SUBMIT ||
                         sites[s] == BASE_FAULT_COMPLETION;
            if (reads && status != WEIR_OK)
                fail_msg("%s:%llu is not survived: %s", base_fault_text(sites[s]), (unsigned long long)after,
                         f->err.message);
            if (sites[s] == BASE_FAULT_HOST_ALLOC) assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
            rule.for_good = true;
            status = run_with(f, way, budget, &rule);
            if (sites[s] == BASE_FAULT_HOST_ALLOC) assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
            assert_int_equal(session(f, way, budget, 200), WEIR_OK);
        }
    }
}

static void fixture_faults(uint32_t percent, size_t n_ways)
{
    fixture fix, *f = &fix;
    open_fixture(f, "faults", MEM_SEQUENCE);
    for (size_t way = 0; way < n_ways; way++) {
        if (way_exists(f, &ways[way])) fail_everywhere(f, &ways[way], budget_at(f, percent));
    }
    close_fixture(f);
}

static void faults_while_streaming(void **state)
{
    (void)state;
    fixture_faults(30, N_WAYS);
}

static void faults_when_all_fits(void **state)
{
    (void)state;
    fixture_faults(100, 2);
}

/* A disk that is gone for good is told, with file, offset and weight. */
static void a_dead_disk_is_named(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "faults", MEM_SEQUENCE);
    place(f, budget_at(f, 30), &ways[2]);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    base_fault_rule rule = {.site = BASE_FAULT_READ, .for_good = true, .error = EIO, .length = -1};
    assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_ERR_IO);
    assert_non_null(strstr(f->err.message, "weight "));
    assert_non_null(strstr(f->err.message, f->path));
    assert_non_null(strstr(f->err.message, "offset"));
    int32_t row = 3;
    uint8_t dst[612];
    assert_status(mem_rows_read(f->c, f->table, &row, 1, dst, 612, &f->err), WEIR_ERR_IO);
    assert_non_null(strstr(f->err.message, "table"));
    base_fault_clear(f->env);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    close_fixture(f);
}

/* Reads that come in pieces are put together. */
static void short_reads_are_continued(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "faults", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        base_fault_rule rule = {.site = BASE_FAULT_READ, .for_good = true, .length = 8192};
        assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
        assert_status(session(f, &ways[way], budget_at(f, 30), 200), WEIR_OK);
        base_fault_clear(f->env);
    }
    close_fixture(f);
}

/* Building a component fails at any allocation without a leak. */
static void registration_fails_cleanly(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "faults", 1 << 20);
    uint64_t baseline = ledger_bytes(f);
    weir_status status = WEIR_ERR_INTERNAL;
    uint64_t after = 0;
    for (; status != WEIR_OK; after++) {
        assert_true(after < 1000);
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
        mem_component *c = NULL;
        status = mem_component_create(f->env, "main", MEM_SEQUENCE, &c, &f->err);
        for (uint32_t u = 0; u < 20 && status == WEIR_OK; u++) {
            uint32_t unit;
            mem_weight_id id;
            mem_weight_desc d = {.name = "w", .file = f->file, .n_rows = 100, .row_bytes = 1000};
            d.streamable = true;
            status = mem_component_add_unit(c, "u", MEM_MARK_NONE, &unit, &f->err);
            if (status == WEIR_OK) status = mem_component_add_weight(c, unit, &d, &id, &f->err);
        }
        if (status == WEIR_OK) status = mem_component_seal(c, &f->err);
        if (status != WEIR_OK) assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        mem_component_destroy(c);
        base_fault_clear(f->env);
        assert_int_equal(ledger_bytes(f), baseline);
    }
    assert_true(after > 40);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_while_streaming),     cmocka_unit_test(faults_when_all_fits),
        cmocka_unit_test(a_dead_disk_is_named),       cmocka_unit_test(short_reads_are_continued),
        cmocka_unit_test(registration_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
