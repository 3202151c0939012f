/* R6.5: a component that is placed goes over to other budgets: the bytes stay right, what both budgets keep
 * is not read again, and never is more held than the larger of both plans. X5: each step fails at every
 * point. */
#include "mem_test.h"

static void open_packed(fixture *f, packer *p, mem_packer *table, bool packs)
{
    *p = (packer){0};
    *table = (mem_packer){.arg = p, .can_pack = can_pack, .pack = pack, .unpack_row = unpack_row};
    open_data(f, "resize", (UINT64_C(4) << 20) + 777);
    f->type = packs ? PACKED_TYPE : 0;
    f->packer = packs ? table : NULL;
    add_weights(f, MEM_SEQUENCE);
}

static weir_status resize(fixture *f, uint64_t budget, const base_aio_options *way)
{
    mem_plan plan = plan_of(f, budget);
    mem_place_options o = {.aio = *way};
    return mem_resize(f->c, &plan, &o, &f->err);
}

static uint64_t plan_bytes(const mem_plan *p)
{
    return p->fixed_bytes + p->resident_bytes + p->ring_bytes + p->io_bytes;
}

/* What reading takes beside a plan: the queue, stacks of threads that read, the list of runs. */
#define WORK_BYTES (UINT64_C(768) << 10)

static void budgets_in_any_order(void **state)
{
    (void)state;
    for (int packs = 0; packs <= 1; packs++) {
        fixture fix, *f = &fix;
        packer p;
        mem_packer table;
        base_rng rng;
        base_rng_seed(&rng, 5, 9);
        open_packed(f, &p, &table, packs);
        for (size_t way = 0; way < N_WAYS; way++) {
            if (!way_exists(f, &ways[way])) continue;
            mem_plan before = place(f, budget_at(f, 100), &ways[way]);
            for (uint32_t step = 0; step < 60; step++) {
                static const uint32_t fixed[] = {50, 100, 0, 100, 3, 97, 40, 41, 42, 0};
                uint32_t percent = step < 10 ? fixed[step] : base_rng_u32(&rng) % 101;
                mem_plan plan = plan_of(f, budget_at(f, percent));
                base_ledger_view v;
                base_ledger_peak_reset(f->env);
                assert_status(resize(f, budget_at(f, percent), &ways[way]), WEIR_OK);
                base_ledger_read(f->env, &v);
                uint64_t most = base_max(plan_bytes(&before), plan_bytes(&plan)) + WORK_BYTES;
                assert_true(v.peak_bytes <= f->baseline + most);
                assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_RESIDENT], plan.resident_bytes);
                assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_SLOTS], plan.ring_bytes);
                assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_FIXED], plan.fixed_bytes);
                for (int pass = 0; pass < 2; pass++)
                    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
                check_head_rows(f);
                before = plan;
            }
            mem_unplace(f->c);
            assert_int_equal(ledger_bytes(f), f->baseline);
        }
        close_fixture(f);
    }
}

/* From whole to less nothing is read; back, only what is missing; the same again, nothing at all. */
static void only_what_is_added_is_read(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    packer p;
    mem_packer table;
    open_packed(f, &p, &table, true);
    const base_aio_options *way = first_way(f);
    mem_plan whole = place(f, budget_at(f, 100), way), half = plan_of(f, budget_at(f, 50));
    uint64_t groups = p.groups;
    assert_true(groups > 100);
    assert_status(resize(f, budget_at(f, 50), way), WEIR_OK);
    assert_int_equal(stats_of(f).load_bytes, 0);
    assert_int_equal(p.groups, groups);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    uint64_t streamed = stats_of(f).streamed_bytes;
    assert_true(streamed > 0);
    assert_status(resize(f, budget_at(f, 100), way), WEIR_OK);
    uint64_t added = stats_of(f).load_bytes, missing = whole.resident_bytes - half.resident_bytes;
    assert_true(added >= missing - missing / 8 && added <= missing + missing / 8);
    assert_true(p.groups > groups && p.groups < 2 * groups);
    assert_int_equal(stats_of(f).streamed_bytes, streamed); /* counts go on */
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    assert_int_equal(stats_of(f).streamed_bytes, streamed);
    close_fixture(f);
}

static void wrong_calls(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "resize", MEM_SEQUENCE);
    const base_aio_options *way = first_way(f);
    assert_status(resize(f, budget_at(f, 50), way), WEIR_ERR_INVALID_ARGUMENT);
    place(f, budget_at(f, 30), way);
    assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
    assert_status(resize(f, budget_at(f, 50), way), WEIR_ERR_INVALID_ARGUMENT);
    mem_pass_end(f->c);
    atomic_bool cancel;
    atomic_init(&cancel, true);
    mem_plan plan = plan_of(f, budget_at(f, 90));
    mem_place_options o = {.aio = *way, .cancel = &cancel};
    assert_status(mem_resize(f->c, &plan, &o, &f->err), WEIR_ERR_CANCELLED);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    base_ledger_view v;
    base_ledger_read(f->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_RESIDENT], plan_of(f, budget_at(f, 30)).resident_bytes);
    /* A device that refuses to pack. */
    close_fixture(f);
    packer p;
    mem_packer table;
    open_packed(f, &p, &table, true);
    place(f, budget_at(f, 30), way);
    p.fail_at = p.calls + 2;
    assert_status(resize(f, budget_at(f, 90), way), WEIR_ERR_INTERNAL);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    assert_status(resize(f, budget_at(f, 90), way), WEIR_OK);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    close_fixture(f);
}

/* Weights that lie over each other, as only hostile files have them: placed anew. */
static void weights_over_each_other(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "resize", 4 << 20);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE);
    for (uint32_t i = 0; i < 3; i++) {
        known_weight *k = &f->weights[f->n_weights++];
        *k = (known_weight){.offset = 4096 + i * 100000, .n_rows = 800, .row_bytes = 500, .streamable = true};
        mem_weight_desc d = {.name = "w",
                             .file = f->file,
                             .offset = k->offset,
                             .n_rows = k->n_rows,
                             .row_bytes = k->row_bytes,
                             .streamable = true};
        assert_status(mem_component_add_weight(f->c, unit, &d, &k->id, &f->err), WEIR_OK);
        f->order[f->n_order++] = k->id;
    }
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    const base_aio_options *way = first_way(f);
    place(f, budget_at(f, 100), way);
    const uint32_t percents[] = {30, 80, 0, 100};
    for (int i = 0; i < 4; i++) {
        assert_status(resize(f, budget_at(f, percents[i]), way), WEIR_OK);
        assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    }
    close_fixture(f);
}

/* One fault during one change; afterwards the bytes are right, as before or after it, or nothing is placed.
 */
static void change_with(fixture *f, const base_aio_options *way, uint32_t from, uint32_t to,
                        const base_fault_rule *rule, uint64_t *n_passages)
{
    place(f, budget_at(f, from), way);
    for (int pass = 0; pass < 1; pass++) assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    if (rule != NULL)
        assert_status(base_fault_arm(f->env, rule, &f->err), WEIR_OK);
    else
        assert_status(base_fault_count_on(f->env, &f->err), WEIR_OK);
    weir_status status = resize(f, budget_at(f, to), way);
    if (rule == NULL) {
        assert_int_equal(status, WEIR_OK);
        for (int s = 0; s < BASE_FAULT_COUNT; s++)
            n_passages[s] = base_fault_count(f->env, (base_fault_site)s);
    }
    base_fault_clear(f->env);
    bool reads_fail = rule != NULL && rule->site == BASE_FAULT_READ && rule->for_good && rule->after == 0;
    if (reads_fail && to > from) assert_int_equal(status, WEIR_ERR_IO);
    if (status != WEIR_OK && status != WEIR_ERR_IO && status != WEIR_ERR_OUT_OF_MEMORY &&
        status != WEIR_ERR_THREAD)
        fail_msg("%s:%llu gives %s: %s", base_fault_text(rule->site), (unsigned long long)rule->after,
                 weir_status_name(status), f->err.message);
    weir_status runs = run_pass(f, f->order, f->n_order, NULL);
    if (status == WEIR_OK || !rule->for_good) assert_status(runs, WEIR_OK);
    if (runs == WEIR_OK) {
        base_ledger_view v;
        base_ledger_read(f->env, &v);
        mem_plan plan = plan_of(f, budget_at(f, status == WEIR_OK ? to : from));
        assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_RESIDENT], plan.resident_bytes);
        check_head_rows(f);
    } else {
        assert_int_equal(runs, WEIR_ERR_INVALID_ARGUMENT);
    }
    mem_unplace(f->c);
    assert_int_equal(ledger_bytes(f), f->baseline);
}

static void faults_in_every_change(void **state)
{
    (void)state;
    static const uint32_t changes[][2] = {{100, 40}, {40, 100}, {10, 60}, {60, 0}};
    static const base_fault_site sites[] = {BASE_FAULT_HOST_ALLOC, BASE_FAULT_READ, BASE_FAULT_SUBMIT,
                                            BASE_FAULT_COMPLETION};
    fixture fix, *f = &fix;
    packer p;
    mem_packer table;
    open_packed(f, &p, &table, true);
    bool all = getenv("WEIR_TEST_FULL") != NULL;
    uint64_t total[BASE_FAULT_COUNT] = {0};
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        for (size_t i = 0; i < 4; i++) {
            uint64_t n[BASE_FAULT_COUNT];
            change_with(f, &ways[way], changes[i][0], changes[i][1], NULL, n);
            for (int s = 0; s < BASE_FAULT_COUNT; s++) total[s] += n[s];
            for (size_t s = 0; s < sizeof sites / sizeof *sites; s++)
                for (uint64_t after = 0; after < n[sites[s]];
                     after += all || after < 3 ? 1 : 1 + n[sites[s]] / 6)
                    for (int for_good = 0; for_good <= 1; for_good++) {
                        base_fault_rule rule = {
                            .site = sites[s], .after = after, .for_good = for_good != 0, .length = -1};
                        change_with(f, &ways[way], changes[i][0], changes[i][1], &rule, NULL);
                    }
        }
    }
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) assert_true(total[sites[s]] > 0);

    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_in_any_order),
        cmocka_unit_test(only_what_is_added_is_read),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(weights_over_each_other),
        cmocka_unit_test(faults_in_every_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
