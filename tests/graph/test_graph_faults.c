/* Every allocation of building and reserving fails once; reads fail for good in the middle of a pass. Nothing
 * leaks, nothing half-done is passed off as whole, and the same objects work afterwards. */
#include "graph_test.h"

static uint64_t ledger_bytes(const fixture *f)
{
    base_ledger_view view;

    base_ledger_read(f->env, &view);
    return view.bytes;
}

static weir_status try_program(fixture *f, graph_program **out)
{
    graph_options o = {.max_rows = MAX_ROWS, .max_outputs = MAX_ROWS, .alias = true};
    weir_status status = graph_program_create(f->env, f->dev, f->c, &o, out, &f->err);

    if (status != WEIR_OK) return status;
    status = graph_finish(*out, draw_program(f, *out, 9), &f->err);
    if (status == WEIR_OK) status = graph_reserve(*out, CONTEXT, HEAD_DIM, &f->err);
    if (status != WEIR_OK) graph_program_destroy(*out);
    return status;
}

static void allocations(void **state)
{
    fixture f;
    uint64_t baseline, n_failed = 0;

    (void)state;
    fixture_open(&f, 2, false);
    baseline = ledger_bytes(&f);
    for (uint64_t after = 0;; after++) {
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        graph_program *p = NULL;
        weir_status status;

        assert_status(&f, base_fault_arm(f.env, &rule, &f.err), WEIR_OK);
        status = try_program(&f, &p);
        base_fault_clear(f.env);
        if (status == WEIR_OK) {
            graph_program_destroy(p);
            break;
        }
        n_failed++;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        assert_int_equal(f.err.code, WEIR_ERR_OUT_OF_MEMORY);
        assert_int_equal(ledger_bytes(&f), baseline);
    }
    assert_true(n_failed > 8);
    fixture_close(&f);
}

static uint64_t weights_done(const graph_program *p)
{
    graph_phase_profile phase;
    uint64_t bytes = 0;

    for (uint32_t i = 0; graph_profile_phase(p, i, &phase); i++) bytes += phase.weight_bytes;
    return bytes;
}

static void reads(void **state)
{
    fixture f;
    graph_program *p;
    graph_info info;
    uint64_t expected, held, done;

    (void)state;
    fixture_open(&f, 2, true);
    p = make_program(&f, 4, true);
    expected = run_all(&f, p, 6, 2, false);
    held = ledger_bytes(&f);
    graph_program_info(p, &info);
    graph_profile_on(p, true);
    assert_status(&f, pass(&f, p, 0, 1, 0, 2, true), WEIR_OK);
    assert_true(info.weight_bytes > 1000 && weights_done(p) == info.weight_bytes);
    for (uint64_t after = 0; after < 12; after += 3) {
        base_fault_rule queued = {
            .site = BASE_FAULT_COMPLETION, .after = after, .for_good = true, .length = -1};
        base_fault_rule direct = {.site = BASE_FAULT_READ, .for_good = true, .length = -1};
        weir_status status = WEIR_OK;

        assert_status(&f, base_fault_arm(f.env, &queued, &f.err), WEIR_OK);
        assert_status(&f, base_fault_arm(f.env, &direct, &f.err), WEIR_OK);
        for (int i = 0; i < 20 && status == WEIR_OK; i++) {
            done = weights_done(p);
            status = pass(&f, p, 0, 1, 0, 2, true);
        }
        base_fault_clear(f.env);
        assert_int_equal(status, WEIR_ERR_IO);
        assert_true(strstr(f.err.message, f.path) != NULL);
        /* What the failed pass did not get to does not count as done. */
        assert_true(weights_done(p) - done < info.weight_bytes);
        assert_int_equal(ledger_bytes(&f), held);
        assert_true(run_all(&f, p, 6, 2, false) == expected);
    }
    graph_program_destroy(p);
    fixture_close(&f);
}

/* A read that fails once is made good without a trace. */
static void a_passing_fault(void **state)
{
    fixture f;
    graph_program *p;
    uint64_t expected;

    (void)state;
    fixture_open(&f, 2, true);
    p = make_program(&f, 4, true);
    expected = run_all(&f, p, 6, 2, false);
    for (uint64_t after = 0; after < 8; after += 2) {
        base_fault_rule rule = {.site = BASE_FAULT_COMPLETION, .after = after, .length = -1};

        assert_status(&f, base_fault_arm(f.env, &rule, &f.err), WEIR_OK);
        assert_true(run_all(&f, p, 6, 2, false) == expected);
        base_fault_clear(f.env);
    }
    graph_program_destroy(p);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations),
        cmocka_unit_test(reads),
        cmocka_unit_test(a_passing_fault),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
