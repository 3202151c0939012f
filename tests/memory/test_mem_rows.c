/* Rows by number: from memory, from the file, from both; many at once. */
#include "mem_test.h"

static bool row_is_right(const fixture *f, mem_weight_id id, int32_t row, const uint8_t *got)
{
    const known_weight *k = &f->weights[id];
    return memcmp(got, f->data + k->offset + (uint64_t)row * k->row_bytes, k->row_bytes) == 0;
}

/* Reads n random rows, some of them twice, and compares; the gap behind each row is left alone. */
static void check_rows(fixture *f, mem_weight_id id, size_t n, base_rng *rng)
{
    const known_weight *k = &f->weights[id];
    size_t stride = k->row_bytes + 24;
    int32_t *rows = malloc((n + 1) * sizeof *rows);
    uint8_t *dst = malloc((n + 1) * stride);
    assert_true(rows != NULL && dst != NULL);
    memset(dst, 0xA5, (n + 1) * stride);
    for (size_t i = 0; i < n; i++) rows[i] = (int32_t)(base_rng_u32(rng) % k->n_rows);
    if (n > 3) {
        rows[0] = 0;
        rows[1] = (int32_t)k->n_rows - 1;
        rows[2] = rows[1];
    }
    assert_status(mem_rows_read(f->c, id, rows, n, dst, stride, &f->err), WEIR_OK);
    for (size_t i = 0; i < n; i++) {
        if (!row_is_right(f, id, rows[i], dst + i * stride)) fail_msg("row %d at %zu is wrong", rows[i], i);
        for (size_t b = k->row_bytes; b < stride; b++) assert_int_equal(dst[i * stride + b], 0xA5);
    }
    assert_int_equal(dst[n * stride], 0xA5);
    free(dst);
    free(rows);
}

static void rows_of_every_kind(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    base_rng rng;
    base_rng_seed(&rng, 5, 5);
    open_fixture(f, "rows", MEM_SEQUENCE);
    static const uint32_t percents[] = {0, 60, 95, 100};
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
            mem_plan plan = place(f, budget_at(f, percents[i]), &ways[way]);
            assert_true(plan.io_bytes > 0);
            check_rows(f, f->table, 0, &rng);
            check_rows(f, f->table, 1, &rng);
            uint64_t before = stats_of(f).n_reads;
            check_rows(f, f->table, 700, &rng);
            assert_int_equal(stats_of(f).n_reads, before + 700);
            check_rows(f, f->head, 300, &rng);
            check_rows(f, f->tiny, 50, &rng);
            /* In the middle of a pass, with the queue full of tiles. */
            assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
            for (size_t w = 0; w < f->n_order; w++) {
                assert_status(walk_weight(f, f->order[w]), WEIR_OK);
                check_rows(f, w % 2 ? f->table : f->head, 70, &rng);
            }
            mem_pass_end(f->c);
            assert_int_equal(stats_of(f).n_misses, 0);
            assert_true(stats_of(f).row_bytes >= 700 * 612);
            mem_unplace(f->c);
            assert_int_equal(ledger_bytes(f), f->baseline);
        }
    }
    close_fixture(f);
}

/* Rows of resident weights are copied, nothing is read. */
static void resident_rows_need_no_reads(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    base_rng rng;
    base_rng_seed(&rng, 6, 5);
    open_fixture(f, "rows", MEM_SEQUENCE);
    place(f, UINT64_MAX, first_way(f));
    uint64_t before = stats_of(f).n_reads;
    check_rows(f, f->head, 500, &rng);
    check_rows(f, f->order[2], 100, &rng);
    assert_int_equal(stats_of(f).n_reads, before);
    close_fixture(f);
}

/* Rows longer than a staging slot go straight to their place. */
static void long_rows(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    base_rng rng;
    base_rng_seed(&rng, 8, 5);
    open_data(f, "rows", 4 << 20);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE);
    mem_weight_id a = add_weight(f, unit, "long", 20, 100001, false, true);
    mem_weight_id b = add_weight(f, unit, "short", 1000, 1001, false, true);
    mem_weight_id only = add_weight(f, unit, "one", 1, 1003, false, true);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    place(f, 0, first_way(f));
    check_rows(f, a, 30, &rng);
    check_rows(f, b, 300, &rng);
    check_rows(f, only, 2, &rng);
    close_fixture(f);
}

static void wrong_rows_are_refused(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    uint8_t dst[2000];
    open_fixture(f, "rows", MEM_SEQUENCE);
    place(f, budget_at(f, 10), first_way(f));
    int32_t rows[2] = {0, 500};
    assert_status(mem_rows_read(f->c, f->table, rows, 2, dst, 612, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(f->err.message, "500"));
    rows[1] = -1;
    assert_status(mem_rows_read(f->c, f->table, rows, 2, dst, 612, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    rows[1] = 499;
    assert_status(mem_rows_read(f->c, f->table, rows, 2, dst, 611, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_rows_read(f->c, f->n_weights, rows, 2, dst, 612, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_rows_read(f->c, f->table, rows, 2, dst, 612, &f->err), WEIR_OK);
    close_fixture(f);
}

static void a_cut_file_is_noticed(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    for (size_t way = 0; way < N_WAYS; way++) {
        open_fixture(f, "rows", MEM_SEQUENCE);
        if (way_exists(f, &ways[way])) {
            place(f, budget_at(f, 0), &ways[way]);
            assert_int_equal(truncate(f->path, 100000), 0);
            int32_t rows[300];
            static uint8_t dst[300 * 612];
            for (int i = 0; i < 300; i++) rows[i] = i;
            assert_status(mem_rows_read(f->c, f->table, rows, 300, dst, 612, &f->err), WEIR_ERR_FILE_CHANGED);
            assert_non_null(strstr(f->err.message, "table"));
        }
        close_fixture(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_kind),
        cmocka_unit_test(resident_rows_need_no_reads),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(wrong_rows_are_refused),
        cmocka_unit_test(a_cut_file_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
