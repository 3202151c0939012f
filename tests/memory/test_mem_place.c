/* Placing: the right bytes in the right place, exactly the planned memory, nothing left behind. */
#include "mem_test.h"

#include <sys/mman.h>
#include <sys/stat.h>

static const uint32_t percents[] = {0, 1, 37, 50, 93, 99, 100};
#define N_PERCENTS (sizeof percents / sizeof *percents)

static void check_tags(fixture *f, const mem_plan *plan)
{
    base_ledger_view v;
    base_ledger_read(f->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_FIXED], plan->fixed_bytes);
    assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_RESIDENT], plan->resident_bytes);
    assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_SLOTS], plan->ring_bytes);
    assert_true(v.tag_bytes[BASE_TAG_IO] >= plan->io_bytes);
}

/* Whole weights are one pointer, to the file's bytes. */
static uint32_t check_resident(fixture *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_weights; i++) {
        const known_weight *k = &f->weights[i];
        const void *p = mem_weight_resident(f->c, k->id);
        if (p == NULL) continue;
        n++;
        assert_int_equal(mem_weight_n_tiles(f->c, k->id), 1);
        assert_memory_equal(p, f->data + k->offset, k->n_rows * k->row_bytes);
    }
    return n;
}

static void every_budget_and_way(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        uint32_t before = 0;
        for (size_t i = 0; i < N_PERCENTS; i++) {
            mem_plan plan = place(f, budget_at(f, percents[i]), &ways[way]);
            check_tags(f, &plan);
            uint32_t n = check_resident(f);
            assert_true(n >= before && n >= 1 + 2 * N_LAYERS);
            before = n;
            assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
            mem_stats s = stats_of(f);
            assert_true(s.load_bytes > 0 && s.load_bytes <= plan.fixed_bytes + plan.resident_bytes);
            assert_true((strstr(s.reader, "buffered") != NULL) == ways[way].buffered ||
                        base_file_direct_align(f->file) == 0);
            assert_null(mem_weight_resident(f->c, f->table));
            mem_unplace(f->c);
            assert_int_equal(ledger_bytes(f), f->baseline);
            assert_int_equal(stats_of(f).load_bytes, 0);
        }
        assert_int_equal(before, f->n_weights - 1);
    }
    close_fixture(f);
}

static void a_file_system_without_direct_reads(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    mem_component_destroy(f->c);
    base_file_close(f->file);
    base_fault_rule rule = {.site = BASE_FAULT_DIRECT_IO, .for_good = true, .length = -1};
    assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
    assert_status(base_file_open(f->env, f->path, &f->file, &f->err), WEIR_OK);
    base_fault_clear(f->env);
    assert_int_equal(base_file_direct_align(f->file), 0);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "layer", MEM_MARK_NONE);
    f->n_weights = 0;
    f->n_order = 0;
    add_weight(f, unit, "a", 999, 1300, true, false);
    add_weight(f, unit, "b", 1000, 1000, true, false);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    place(f, budget_at(f, 30), first_way(f));
    assert_non_null(strstr(stats_of(f).reader, "buffered"));
    for (int i = 0; i < 3; i++) assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    close_fixture(f);
}

static uint64_t resident_of(fixture *f, uint32_t unit, uint64_t *all)
{
    mem_unit_info info;
    mem_component_unit(f->c, unit, &info);
    *all = info.bytes;
    return info.resident_bytes;
}

/* Units of 100, 300, 200 and 150 KiB; which of them stay whole (W), in part (p) or stream. */
static void units_that_stay(mem_kind kind, const mem_mark *marks, uint64_t room_kib, const char *wanted)
{
    static const uint32_t rows[] = {100, 300, 200, 150};
    fixture fix, *f = &fix;
    open_data(f, "place", 1 << 20);
    assert_status(mem_component_create(f->env, "main", kind, &f->c, &f->err), WEIR_OK);
    for (int i = 0; i < 4; i++) {
        uint32_t unit = add_unit(f, "u", marks[i]);
        add_weight(f, unit, "w", rows[i], 1024, true, false);
    }
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    mem_plan p = any_plan(f);
    place(f, p.smallest_bytes + (room_kib << 10), first_way(f));
    char got[5] = "";
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t all, resident = resident_of(f, i, &all);
        got[i] = resident == all ? 'W' : resident != 0 ? 'p' : '-';
    }
    assert_string_equal(got, wanted);
    close_fixture(f);
}

static void the_right_units_stay(void **state)
{
    (void)state;
    const mem_mark none[4] = {0};
    const mem_mark marked[4] = {MEM_MARK_COLD, MEM_MARK_NONE, MEM_MARK_HOT, MEM_MARK_NONE};
    const mem_mark fixed[4] = {MEM_MARK_NONE, MEM_MARK_NONE, MEM_MARK_NONE, MEM_MARK_FIXED};
    units_that_stay(MEM_SEQUENCE, none, 420, "pppp");
    units_that_stay(MEM_ONESHOT, none, 420, "-Wp-");
    units_that_stay(MEM_SEQUENCE, marked, 420, "-pWp");
    units_that_stay(MEM_ONESHOT, marked, 420, "-pW-");
    units_that_stay(MEM_SEQUENCE, fixed, 300, "pppW");
}

/* In a sequence, what streams is spread over the pass: nowhere is it ahead of or behind its share by more
 * than the ring holds, so that storage has room to read into at all times. */
static void a_sequence_streams_evenly(void **state)
{
    (void)state;
    static const uint32_t budgets[] = {5, 30, 50, 70, 90, 97};
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        mem_plan plan = place(f, budget_at(f, budgets[i]), &ways[2]);
        double all = 0, streams = 0;
        for (int pass = 0; pass < 2; pass++) {
            double bytes = 0, streamed = 0;
            for (uint32_t unit = 0; unit < mem_component_n_units(f->c); unit++) {
                mem_unit_info info;
                mem_component_unit(f->c, unit, &info);
                bytes += (double)info.bytes;
                streamed += (double)(info.bytes - info.resident_bytes);
                double even = pass == 0 ? streamed : streams * bytes / all;
                if (streamed > even + (double)plan.ring_bytes || streamed < even - (double)plan.ring_bytes)
                    fail_msg("budget %u, unit %u: %.0f bytes streamed instead of %.0f", budgets[i], unit,
                             streamed, even);
            }
            all = bytes;
            streams = streamed;
        }
        mem_unplace(f->c);
    }
    close_fixture(f);
}

/* Two names for one tensor, and one inside another: the bytes are there once. */
static void overlapping_weights_share_memory(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "place", 1 << 20);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE);
    mem_weight_id a = add_weight(f, unit, "a", 400, 1000, true, false);
    f->n_weights = 0;
    mem_weight_desc desc = {.name = "b", .file = f->file, .offset = 1000, .n_rows = 400, .row_bytes = 1000};
    desc.streamable = true;
    mem_weight_id b, in;
    assert_status(mem_component_add_weight(f->c, unit, &desc, &b, &f->err), WEIR_OK);
    desc.offset = 5000;
    desc.n_rows = 100;
    assert_status(mem_component_add_weight(f->c, unit, &desc, &in, &f->err), WEIR_OK);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    mem_plan p = any_plan(f);
    assert_true(p.whole_bytes >= 400000 && p.whole_bytes < 400000 + 3 * 4096);
    place(f, p.whole_bytes, first_way(f));
    const uint8_t *whole = mem_weight_resident(f->c, a);
    assert_memory_equal(whole, f->data + 1000, 400000);
    assert_ptr_equal(mem_weight_resident(f->c, b), whole);
    assert_ptr_equal(mem_weight_resident(f->c, in), whole + 4000);
    close_fixture(f);
}

typedef struct progress {
    uint64_t calls, done, total;
    uint64_t cancel_at;
    atomic_bool cancel;
} progress;

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    progress *p = arg;
    assert_true(done > p->done && done <= total);
    p->calls++;
    p->done = done;
    p->total = total;
    if (p->calls == p->cancel_at) atomic_store(&p->cancel, true);
}

static void progress_and_cancellation(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    mem_plan plan = plan_of(f, UINT64_MAX);
    progress p = {0};
    mem_place_options options = {
        .aio = *first_way(f), .progress = on_progress, .progress_arg = &p, .cancel = &p.cancel};
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_OK);
    assert_true(p.calls > 3);
    assert_int_equal(p.done, p.total);
    assert_int_equal(p.total, stats_of(f).load_bytes);
    mem_unplace(f->c);
    for (uint64_t at = 1; at < 4; at++) {
        memset(&p, 0, sizeof p);
        p.cancel_at = at;
        assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_ERR_CANCELLED);
        assert_int_equal(ledger_bytes(f), f->baseline);
    }
    memset(&p, 0, sizeof p);
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_OK);
    check_resident(f);
    close_fixture(f);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    mem_plan plan = plan_of(f, budget_at(f, 40));
    mem_place_options options = {.aio = *first_way(f)};
    mem_plan other = plan;
    other.resident_bytes -= 4096;
    assert_status(mem_place(f->c, &other, &options, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    mem_tile t;
    int32_t row = 0;
    char buf[1000];
    assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_tile_acquire(f->c, 1, 0, &t, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_rows_read(f->c, f->table, &row, 1, buf, 612, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    options.aio.depth = 1000;
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    options.aio.depth = 0;
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_OK);
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    check_resident(f);
    close_fixture(f);
}

/* A ledger that is full makes placing fail whole, by name. */
static void a_full_ledger_stops_placing(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    mem_plan plan = plan_of(f, UINT64_MAX);
    mem_place_options options = {.aio = *first_way(f)};
    assert_status(
        base_ledger_set_limit(f->env, f->baseline + plan.fixed_bytes + plan.resident_bytes / 2, &f->err),
        WEIR_OK);
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_ERR_BUDGET);
    assert_non_null(strstr(f->err.message, "weights.resident"));
    assert_int_equal(ledger_bytes(f), f->baseline);
    close_fixture(f);
}

static uint64_t cached_pages(const char *path, uint64_t bytes)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    static unsigned char pages[4096];
    uint64_t n = (bytes + 4095) / 4096, cached = 0;
    assert_true(n <= sizeof pages);
    assert_int_equal(mincore(p, bytes, pages), 0);
    for (uint64_t i = 0; i < n; i++) cached += pages[i] & 1;
    munmap(p, bytes);
    close(fd);
    return cached;
}

/* What we hold is not in the page cache as well. */
static void the_page_cache_stays_empty(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "place", MEM_SEQUENCE);
    base_file_drop_cache(f->file, 0, f->n_data);
    if (cached_pages(f->path, f->n_data) != 0) {
        close_fixture(f);
        skip(); /* the file system keeps its files in memory */
    }
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        place(f, budget_at(f, 60), &ways[way]);
        assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
        mem_unplace(f->c);
        uint64_t cached = cached_pages(f->path, f->n_data), pages = f->n_data / 4096;
        print_message("way %zu: %llu of %llu pages cached\n", way, (unsigned long long)cached,
                      (unsigned long long)pages);
        assert_true(cached <= pages / 10);
    }
    close_fixture(f);
}

static bool has_pattern(const uint8_t *p, uint64_t n, uint8_t low, uint8_t high)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != (((uintptr_t)(p + i) & 1) != 0 ? high : low)) return false;
    return true;
}

/* A rehearsal reads what streams, byte by byte, and nothing of what stays. */
static void a_rehearsal_reads_only_what_streams(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stand", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        mem_plan plan = plan_of(f, budget_at(f, 60));
        mem_place_options o = {.aio = ways[way], .stand_in_bytes = 1, .stand_in_pattern = 0x2211};
        assert_status(mem_place(f->c, &plan, &o, &f->err), WEIR_OK);
        base_ledger_view v;
        base_ledger_read(f->env, &v);
        uint64_t block = v.tag_bytes[BASE_TAG_WEIGHTS_RESIDENT];
        assert_true(block > 0 && block < plan.resident_bytes);
        assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_SLOTS], plan.ring_bytes);
        assert_int_equal(stats_of(f).load_bytes, 0);
        uint32_t n_streamed = 0, n_stay = 0;
        assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
        for (size_t i = 0; i < f->n_order; i++) {
            mem_weight_id id = f->order[i];
            for (uint32_t k = 0; k < mem_weight_n_tiles(f->c, id); k++) {
                mem_tile t;
                assert_status(mem_tile_acquire(f->c, id, k, &t, &f->err), WEIR_OK);
                uint64_t bytes = (t.row_end - t.row_begin) * f->weights[id].row_bytes;
                if (t.slot != UINT32_MAX) {
                    n_streamed++;
                    assert_true(tile_is_right(f, id, &t));
                } else {
                    n_stay++;
                    assert_true(has_pattern(t.data, bytes, 0x11, 0x22) ||
                                has_pattern(t.data, bytes, 0x80, 0x3f));
                }
                mem_tile_release(f->c, &t);
            }
        }
        mem_pass_end(f->c);
        assert_true(n_streamed > 0 && n_stay > 0);
        assert_true(stats_of(f).streamed_bytes >= plan.streamed_bytes);
        mem_unplace(f->c);
        assert_int_equal(ledger_bytes(f), f->baseline);
    }
    /* Whole: nothing is ever read, not even rows of the table where some of it stand in. */
    mem_plan plan = plan_of(f, UINT64_MAX);
    mem_place_options o = {
        .aio = *first_way(f), .stand_in_bytes = 4096, .stand_in_pattern = 0x2211, .stand_in_rows = 2};
    assert_status(mem_place(f->c, &plan, &o, &f->err), WEIR_OK);
    uint64_t row_bytes = f->weights[f->table].row_bytes;
    uint8_t *dst = malloc(2 * row_bytes);
    const int32_t rows[] = {1, 0};
    assert_non_null(dst);
    assert_status(mem_rows_read(f->c, f->table, rows, 2, dst, row_bytes, &f->err), WEIR_OK);
    assert_int_equal(stats_of(f).n_reads, 0);
    assert_true(memchr(dst, 0x11, row_bytes) != NULL && memchr(dst, 0x22, row_bytes) != NULL);
    free(dst);
    mem_unplace(f->c);
    assert_int_equal(ledger_bytes(f), f->baseline);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_budget_and_way),       cmocka_unit_test(a_file_system_without_direct_reads),
        cmocka_unit_test(the_right_units_stay),       cmocka_unit_test(overlapping_weights_share_memory),
        cmocka_unit_test(a_sequence_streams_evenly),  cmocka_unit_test(progress_and_cancellation),
        cmocka_unit_test(misuse_is_refused),          cmocka_unit_test(a_full_ledger_stops_placing),
        cmocka_unit_test(the_page_cache_stays_empty), cmocka_unit_test(a_rehearsal_reads_only_what_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
