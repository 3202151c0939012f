/* Weights that stay are packed while they are read, those that stream have what their file has: the same rows
 * either way (issue "packed layout": one copy per byte, both layouts the same bits). */
#include "mem_test.h"

static void open_packed(fixture *f, packer *p, mem_packer *table, bool in_file)
{
    memset(p, 0, sizeof *p);
    *table = (mem_packer){.arg = p, .can_pack = can_pack, .pack = pack, .unpack_row = unpack_row};
    open_data(f, "pack", (UINT64_C(4) << 20) + 777);
    f->type = PACKED_TYPE;
    f->packed = in_file;
    f->packer = table;
    add_weights(f, MEM_SEQUENCE);
}

/* Whole groups of what stays, counted from the resident bytes of all tiles. */
static uint64_t packed_rows_of_all(fixture *f)
{
    uint64_t bytes = 0;
    for (uint32_t id = 0; id < f->n_weights; id++)
        bytes += mem_weight_packed_rows(f->c, id) * f->weights[id].row_bytes;
    return bytes;
}

static void every_budget_and_reader_gives_the_rows(void **state)
{
    (void)state;
    static const uint32_t percents[] = {0, 7, 35, 60, 95, 100};
    for (int in_file = 0; in_file <= 1; in_file++) {
        fixture fix, *f = &fix;
        packer p;
        mem_packer table;
        open_packed(f, &p, &table, in_file);
        for (size_t way = 0; way < N_WAYS; way++) {
            if (!way_exists(f, &ways[way])) continue;
            for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
                memset(&p, 0, sizeof p);
                mem_plan plan = place(f, budget_at(f, percents[i]), &ways[way]);
                assert_true(ledger_bytes(f) >= f->baseline + plan.fixed_bytes + plan.resident_bytes);
                for (int pass = 0; pass < 2; pass++)
                    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
                check_head_rows(f);
                assert_true(packed_rows_of_all(f) > 0); /* the tiny unit at least */
                assert_int_equal(stats_of(f).packed_bytes, packed_rows_of_all(f));
                /* A head that is read by row too lies unpacked in every file. */
                if (!in_file || percents[i] == 100) assert_true(p.groups > 0);
                if (percents[i] == 100) {
                    assert_int_equal(mem_weight_packed_rows(f->c, f->head), 1001 / 16 * 16);
                    assert_int_equal(mem_weight_packed_rows(f->c, f->tiny), 96);
                    assert_int_equal(mem_weight_packed_rows(f->c, f->table), 0);
                }
                mem_unplace(f->c);
                assert_int_equal(mem_weight_packed_rows(f->c, f->head), 0);
                assert_int_equal(ledger_bytes(f), f->baseline);
            }
        }
        close_fixture(f);
    }
}

/* Enough chunks in flight that they end in any order. */
static void a_long_weight_is_packed_behind_the_reads(void **state)
{
    (void)state;
    enum { ROWS = 40007, ROW_BYTES = 900 };
    fixture fix, *f = &fix;
    packer p = {0};
    mem_packer table = {.arg = &p, .can_pack = can_pack, .pack = pack, .unpack_row = unpack_row};
    open_data(f, "pack_long", UINT64_C(36200000) + 5000);
    f->type = PACKED_TYPE;
    f->packer = &table;
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    mem_weight_id id = add_weight(f, add_unit(f, "u", MEM_MARK_NONE), "long", ROWS, ROW_BYTES, true, false);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    f->baseline = ledger_bytes(f);
    uint8_t *group = malloc(16 * ROW_BYTES);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        memset(&p, 0, sizeof p);
        place(f, UINT64_MAX, &ways[way]);
        assert_int_equal(p.groups, ROWS / 16);
        const uint8_t *got = mem_weight_resident(f->c, id), *file = f->data + f->weights[id].offset;
        assert_non_null(got);
        for (uint32_t g = 0; g < ROWS / 16; g++) {
            pack_group(file + g * 16ull * ROW_BYTES, ROW_BYTES, group);
            assert_memory_equal(got + g * 16ull * ROW_BYTES, group, 16 * ROW_BYTES);
        }
        uint64_t tail = ROWS / 16 * 16ull * ROW_BYTES;
        assert_memory_equal(got + tail, file + tail, ROWS % 16 * ROW_BYTES);
        mem_unplace(f->c);
    }
    free(group);
    close_fixture(f);
}

static void other_types_and_shared_bytes_stay_as_they_are(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    packer p = {0};
    mem_packer table = {.arg = &p, .can_pack = can_pack, .pack = pack, .unpack_row = unpack_row};
    open_data(f, "pack_shared", 1 << 20);
    f->packer = &table;
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE);
    f->type = PACKED_TYPE + 1;
    mem_weight_id other = add_weight(f, unit, "other", 320, 1000, true, false);
    f->type = PACKED_TYPE;
    mem_weight_id alone = add_weight(f, unit, "alone", 160, 1000, true, false);
    mem_weight_id outer = add_weight(f, unit, "outer", 160, 1000, true, false);
    mem_weight_desc desc = {.name = "inner", .file = f->file, .n_rows = 32, .row_bytes = 1000};
    desc.offset = f->weights[2].offset + 64000;
    desc.streamable = true;
    desc.type = PACKED_TYPE;
    mem_weight_id inner;
    assert_status(mem_component_add_weight(f->c, unit, &desc, &inner, &f->err), WEIR_OK);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    place(f, UINT64_MAX, first_way(f));
    assert_int_equal(mem_weight_packed_rows(f->c, other), 0);
    assert_int_equal(mem_weight_packed_rows(f->c, alone), 160);
    assert_int_equal(mem_weight_packed_rows(f->c, outer), 0);
    assert_int_equal(mem_weight_packed_rows(f->c, inner), 0);
    assert_memory_equal(mem_weight_resident(f->c, inner), f->data + desc.offset, 32000);
    assert_memory_equal(mem_weight_resident(f->c, other), f->data + f->weights[0].offset, 320000);
    assert_int_equal(stats_of(f).packed_bytes, 160000);
    close_fixture(f);
}

static void refusals_and_failures_leave_nothing(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    packer p;
    mem_packer table;
    open_packed(f, &p, &table, false);
    mem_plan plan = plan_of(f, UINT64_MAX);
    mem_place_options options = {.aio = *first_way(f), .packer = &table};
    for (uint64_t at = 1; at < 8; at++) {
        p = (packer){.fail_at = at};
        assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_ERR_INTERNAL);
        assert_non_null(strstr(f->err.message, "the device refused"));
        assert_int_equal(ledger_bytes(f), f->baseline);
        assert_null(mem_weight_resident(f->c, f->tiny));
    }
    p = (packer){0};
    place(f, UINT64_MAX, first_way(f));
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    close_fixture(f);

    open_data(f, "pack_by_row", 1 << 20);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE), id;
    mem_weight_desc desc = {.name = "table", .file = f->file, .n_rows = 32, .row_bytes = 1000};
    desc.by_row = desc.streamable = desc.packed = true;
    assert_status(mem_component_add_weight(f->c, unit, &desc, &id, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(f->err.message, "table"));
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_budget_and_reader_gives_the_rows),
        cmocka_unit_test(a_long_weight_is_packed_behind_the_reads),
        cmocka_unit_test(other_types_and_shared_bytes_stay_as_they_are),
        cmocka_unit_test(refusals_and_failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
