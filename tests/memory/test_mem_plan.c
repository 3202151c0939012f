/* Plans: the sizes of every budget, the order of R4.5, and descriptions that must be refused. */
#include "mem_test.h"

#include <math.h>

#define MIB (UINT64_C(1) << 20)

static void plans_keep_the_budget(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "plan", MEM_SEQUENCE);
    mem_plan p = any_plan(f), before = {0};
    assert_true(p.smallest_bytes < p.whole_bytes);
    uint64_t step = (p.whole_bytes - p.smallest_bytes) / 97;
    for (uint64_t budget = p.smallest_bytes; budget < p.whole_bytes; budget += step) {
        mem_plan q = plan_of(f, budget);
        assert_int_equal(q.budget_bytes, budget);
        assert_true(q.fixed_bytes + q.resident_bytes + q.ring_bytes <= budget);
        assert_true(q.ring_bytes != 0 && q.streamed_bytes != 0);
        assert_true(q.fixed_bytes + q.ring_bytes >= q.smallest_bytes);
        assert_true(q.tile_bytes >= 16 * 340 && q.tile_bytes <= (UINT64_C(128) << 10));
        /* A budget leaves little unused: less than one group of rows and the blocks around it. */
        assert_true(budget - (q.fixed_bytes + q.resident_bytes + q.ring_bytes) < 16 * 996 + 3 * 4096);
        /* Where groups change with the budget, as little may be lost. */
        assert_true(q.resident_bytes + 16 * 996 + 3 * 4096 >= before.resident_bytes);
        /* Every streamed byte is a byte that is not resident, and the edges of its tile's blocks. */
        assert_true(q.streamed_bytes + q.resident_bytes + q.fixed_bytes >= q.whole_bytes - 8192);
        assert_true(q.smallest_bytes == p.smallest_bytes && q.whole_bytes == p.whole_bytes);
        before = q;
    }
    mem_plan all = plan_of(f, p.whole_bytes), more = plan_of(f, UINT64_MAX);
    assert_int_equal(all.ring_bytes, 0);
    assert_int_equal(all.streamed_bytes, 0);
    assert_int_equal(all.fixed_bytes + all.resident_bytes, all.whole_bytes);
    assert_int_equal(more.resident_bytes, all.resident_bytes);
    assert_int_equal(ledger_bytes(f), f->baseline);
    close_fixture(f);
}

static void too_small_a_budget_is_named(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "plan", MEM_SEQUENCE);
    mem_plan p = any_plan(f), q;
    assert_int_equal(mem_plan_make(f->c, p.smallest_bytes - 1, &q, &f->err), WEIR_ERR_BUDGET);
    assert_non_null(strstr(f->err.message, "component main"));
    assert_int_equal(q.smallest_bytes, p.smallest_bytes);
    assert_int_equal(q.whole_bytes, p.whole_bytes);
    assert_int_equal(q.budget_bytes, p.smallest_bytes - 1);
    plan_of(f, p.smallest_bytes);
    close_fixture(f);
}

static void parts_are_what_the_rules_say(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "plan", MEM_SEQUENCE);
    mem_plan p = any_plan(f);
    assert_int_equal(p.by_row_bytes, 500 * 612);
    /* The tiny unit and ten norms, each rounded to cache lines, in whole pages. */
    uint64_t fixed = 100 * 340 + N_LAYERS * 2 * 1152;
    assert_true(p.fixed_bytes >= fixed && p.fixed_bytes <= fixed + 11 * 128 + 4096);
    mem_unit_info info;
    mem_component_unit(f->c, 0, &info);
    assert_string_equal(info.name, "embedding");
    assert_int_equal(info.bytes, 0);
    assert_int_equal(info.n_weights, 1);
    mem_component_unit(f->c, 2, &info);
    uint64_t streamable = (288 + 96 + 640) * 324 + 288 * 720 + 77 * 996;
    assert_int_equal(info.streamable_bytes, streamable);
    assert_int_equal(info.bytes, streamable + 2 * 1152);
    assert_int_equal(info.n_weights, 7);
    assert_int_equal(mem_component_n_units(f->c), N_LAYERS + 3);
    close_fixture(f);
}

/* A 135M-like and an 8B-like model over a file that takes no disk space. */
static void open_model(fixture *f, uint32_t layers, uint32_t dim, uint32_t ffn, uint64_t row,
                       uint64_t ffn_row)
{
    memset(f, 0, sizeof *f);
    test_path(f->path, sizeof f->path, "model");
    int fd = open(f->path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, INT64_C(10) << 30), 0);
    close(fd);
    assert_status(base_env_create(&f->env, &f->err), WEIR_OK);
    assert_status(base_file_open(f->env, f->path, &f->file, &f->err), WEIR_OK);
    assert_status(mem_component_create(f->env, "model", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t unit = add_unit(f, "layer", MEM_MARK_NONE);
        add_weight(f, unit, "q", dim, row, true, false);
        add_weight(f, unit, "o", dim, row, true, false);
        add_weight(f, unit, "gate", ffn, row, true, false);
        add_weight(f, unit, "up", ffn, row, true, false);
        add_weight(f, unit, "down", dim, ffn_row, true, false);
    }
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
}

static void rings_fit_the_model(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_model(f, 30, 576, 1536, 360, 960);
    mem_plan p = any_plan(f);
    assert_true(p.whole_bytes > 60 * MIB / 2 && p.smallest_bytes <= 1 * MIB);
    assert_true(plan_of(f, p.smallest_bytes).ring_bytes <= 1 * MIB);
    assert_int_equal(plan_of(f, 10 * MIB).ring_bytes, 2 * MIB);
    assert_int_equal(plan_of(f, p.whole_bytes / 2).ring_bytes, 4 * MIB);
    close_fixture(f);

    open_model(f, 32, 4096, 14336, 2304, 8064);
    p = any_plan(f);
    assert_true(p.whole_bytes > 3 * (UINT64_C(1) << 30));
    assert_int_equal(p.smallest_bytes, 8 * MIB);
    p = plan_of(f, p.smallest_bytes);
    assert_true(p.tile_bytes <= MIB / 2 && p.tile_bytes >= MIB / 4);
    /* Room for all but a little: the ring stays small beside what is missing. */
    p = plan_of(f, p.whole_bytes - 64 * MIB);
    assert_true(p.ring_bytes <= 17 * MIB && p.streamed_bytes < 84 * MIB);
    /* Whole huge pages, whatever the budget. */
    for (uint64_t budget = 8 * MIB; budget < p.whole_bytes; budget += 97 * MIB + 4096) {
        uint64_t ring = plan_of(f, budget).ring_bytes;
        assert_true(ring >= 8 * MIB && ring % (2 * MIB) == 0);
    }
    p = plan_of(f, p.whole_bytes / 2);
    assert_int_equal(p.ring_bytes, 32 * MIB);
    assert_true(p.tile_bytes > 3 * MIB / 2 && p.tile_bytes <= 2 * MIB);
    close_fixture(f);
}

/* What the probe measured decides: in flight as much as storage wants, tiles as large as a read is worth. */
static void rings_follow_the_reader(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_model(f, 22, 2048, 5632, 2176, 5984);
    mem_reader quick = {.half_rate_bytes = 64 << 10, .read_bytes = 256 << 10, .depth = 8};
    mem_reader deep = {.half_rate_bytes = 64 << 10, .read_bytes = 1 << 20, .depth = 16};
    mem_reader large = {.half_rate_bytes = 64 << 10, .read_bytes = 2 << 20, .depth = 1};
    mem_plan any = any_plan(f);
    mem_component_set_reader(f->c, &quick);
    mem_plan p = plan_of(f, any.whole_bytes / 2);
    assert_int_equal(p.ring_bytes, 8 * MIB); /* the smallest one holds eight such reads */
    assert_true(p.tile_bytes > MIB / 4 && p.tile_bytes <= MIB / 2);
    mem_component_set_reader(f->c, &deep);
    p = plan_of(f, any.whole_bytes / 2);
    assert_int_equal(p.ring_bytes, 18 * MIB); /* 16 in flight, two beside */
    assert_true(p.tile_bytes > MIB && p.tile_bytes <= 9 * MIB / 4);
    /* Where little is missing, a ring must not cost more than it brings. */
    p = plan_of(f, any.whole_bytes - 64 * MIB);
    assert_true(p.ring_bytes <= 9 * MIB);
    mem_component_set_reader(f->c, &large);
    p = plan_of(f, any.whole_bytes / 2);
    assert_int_equal(p.ring_bytes, 8 * MIB);
    assert_true(p.tile_bytes > 3 * MIB / 2 && p.tile_bytes <= 2 * MIB);
    /* However slow little in flight is said to be, four times what the reader wants is all that helps. */
    mem_reader far = {.half_rate_bytes = 8 << 20, .read_bytes = 256 << 10, .depth = 8};
    mem_component_set_reader(f->c, &far);
    assert_int_equal(plan_of(f, any.whole_bytes / 2).ring_bytes, 8 * MIB);
    mem_plan zero = any_plan(f);
    assert_int_equal(zero.smallest_bytes, any.smallest_bytes);
    close_fixture(f);
}

static double seconds_of(fixture *f, const mem_plan *plan, double storage, double compute)
{
    mem_speed speed = {.storage_bytes_per_s = storage, .compute_bytes_per_s = compute};
    double seconds;
    assert_status(mem_plan_predict(f->c, plan, &speed, &seconds, &f->err), WEIR_OK);
    return seconds;
}

/* Whatever the budget and whichever of the two is slower, a pass takes little longer than the slower one. */
static void neither_storage_nor_computation_waits(fixture *f, const char *name)
{
    static const uint32_t percents[] = {10, 30, 50, 70, 80, 90, 95, 97};
    static const double storage[] = {2e8, 1e9, 3e9, 6e9};
    const double compute = 6e9;
    mem_plan all = plan_of(f, UINT64_MAX);
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        mem_plan p = plan_of(f, all.whole_bytes / 100 * percents[i]);
        for (size_t k = 0; k < sizeof storage / sizeof *storage; k++) {
            double reading = (double)p.streamed_bytes / storage[k];
            double computing = (double)(all.resident_bytes + all.fixed_bytes) / compute;
            double limit = reading > computing ? reading : computing;
            double share = limit / seconds_of(f, &p, storage[k], compute);
            if (getenv("WEIR_TEST_VERBOSE") != NULL)
                print_message("%s %u %% %.1f GB/s: %.3f\n", name, percents[i], storage[k] / 1e9, share);
            if (share < 0.92 || share > 1.01)
                fail_msg("%s, %u %%, storage at %.1f GB/s: %.3f of the limit", name, percents[i],
                         storage[k] / 1e9, share);
        }
    }
}

static void passes_are_predicted(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_model(f, 30, 576, 1536, 360, 960);
    neither_storage_nor_computation_waits(f, "135M");
    close_fixture(f);
    open_model(f, 22, 2048, 5632, 2176, 5984);
    neither_storage_nor_computation_waits(f, "1.1B");
    mem_plan p = plan_of(f, UINT64_MAX);
    assert_true(fabs(seconds_of(f, &p, 1e9, 1e9) * 1e9 / (double)p.resident_bytes - 1) < 0.001);
    mem_speed none = {.compute_bytes_per_s = 1e9};
    double seconds;
    assert_status(mem_plan_predict(f->c, &p, &none, &seconds, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    close_fixture(f);
    open_model(f, 32, 4096, 14336, 2304, 8064);
    neither_storage_nor_computation_waits(f, "8B");
    close_fixture(f);
    /* Most of the weights are one matrix, as in a small model with a large vocabulary. */
    open_model(f, 18, 640, 2048, 400, 1200);
    mem_component_destroy(f->c);
    assert_status(mem_component_create(f->env, "model", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "layers", MEM_MARK_NONE);
    add_weight(f, unit, "layers", 65536, 1024, true, false);
    unit = add_unit(f, "head", MEM_MARK_NONE);
    add_weight(f, unit, "head", 262144, 680, true, true);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    neither_storage_nor_computation_waits(f, "large vocabulary");
    close_fixture(f);
}

static void refused(fixture *f, mem_weight_desc d, weir_status wanted)
{
    mem_weight_id id;
    assert_status(mem_component_add_weight(f->c, 0, &d, &id, &f->err), wanted);
    assert_non_null(strstr(f->err.message, "bad"));
}

static void hostile_descriptions_are_refused(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "plan", 100000);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    mem_weight_desc d = {
        .name = "bad", .file = f->file, .offset = 64, .n_rows = 8, .row_bytes = 100, .streamable = true};
    refused(f, d, WEIR_ERR_INVALID_ARGUMENT); /* no unit yet */
    add_unit(f, "u", MEM_MARK_NONE);
    mem_weight_desc x = d;
    x.n_rows = 0;
    refused(f, x, WEIR_ERR_INVALID_ARGUMENT);
    x = d;
    x.row_bytes = 0;
    refused(f, x, WEIR_ERR_INVALID_ARGUMENT);
    x = d;
    x.offset = 100000 - 799;
    refused(f, x, WEIR_ERR_TRUNCATED);
    x.offset = UINT64_MAX - 100;
    refused(f, x, WEIR_ERR_TRUNCATED);
    x = d;
    x.row_bytes = UINT64_MAX / 4;
    refused(f, x, WEIR_ERR_TRUNCATED);
    mem_plan plan;
    assert_status(mem_plan_make(f->c, 1, &plan, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    mem_weight_id id;
    d.offset = 100000 - 800;
    assert_status(mem_component_add_weight(f->c, 0, &d, &id, &f->err), WEIR_OK);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    uint32_t unit;
    assert_status(mem_component_add_unit(f->c, "u", MEM_MARK_NONE, &unit, &f->err),
                  WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_component_add_weight(f->c, 0, &d, &id, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    close_fixture(f);
}

static void an_empty_component_is_whole(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "plan", 100);
    assert_status(mem_component_create(f->env, "main", MEM_ONESHOT, &f->c, &f->err), WEIR_OK);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    mem_plan p = plan_of(f, 0);
    assert_int_equal(p.whole_bytes, 0);
    assert_int_equal(p.smallest_bytes, 0);
    place(f, 0, first_way(f));
    assert_status(run_pass(f, NULL, 0, NULL), WEIR_OK);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_keep_the_budget),        cmocka_unit_test(too_small_a_budget_is_named),
        cmocka_unit_test(parts_are_what_the_rules_say), cmocka_unit_test(rings_fit_the_model),
        cmocka_unit_test(passes_are_predicted),         cmocka_unit_test(hostile_descriptions_are_refused),
        cmocka_unit_test(rings_follow_the_reader),      cmocka_unit_test(an_empty_component_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
