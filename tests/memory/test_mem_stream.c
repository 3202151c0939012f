/* Streaming: right bytes in any order, exactly the planned reads, prefetching across the end of a pass. */
#include "mem_test.h"

#include <sys/stat.h>
#include <time.h>

static const uint32_t percents[] = {0, 3, 50, 97};
#define N_PERCENTS (sizeof percents / sizeof *percents)
#define N_PASSES   12

static void cyclic_passes(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        for (size_t i = 0; i < N_PERCENTS; i++) {
            mem_plan plan = place(f, budget_at(f, percents[i]), &ways[way]);
            for (uint64_t pass = 1; pass <= N_PASSES; pass++) {
                assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
                /* Every tile once, and what lies in the ring for the next pass. */
                uint64_t bytes = stats_of(f).streamed_bytes, ahead = bytes - pass * plan.streamed_bytes;
                assert_true(bytes > pass * plan.streamed_bytes && ahead <= plan.ring_bytes);
            }
            assert_int_equal(stats_of(f).n_misses, 0);
            mem_unplace(f->c);
            assert_int_equal(ledger_bytes(f), f->baseline);
        }
    }
    close_fixture(f);
}

/* Two matrices side by side, as in a gated product: two tiles are held, given back in either order. */
static weir_status walk_pair(fixture *f, mem_weight_id a, mem_weight_id b, base_rng *rng)
{
    uint32_t n = (uint32_t)base_min(mem_weight_n_tiles(f->c, a), mem_weight_n_tiles(f->c, b));
    for (uint32_t i = 0; i < n; i++) {
        mem_tile t, u;
        weir_status status = mem_tile_acquire(f->c, a, i, &t, &f->err);
        if (status != WEIR_OK) return status;
        status = mem_tile_acquire(f->c, b, i, &u, &f->err);
        if (status != WEIR_OK) return status;
        assert_true(tile_is_right(f, a, &t) && tile_is_right(f, b, &u));
        if (base_rng_u32(rng) % 2) {
            mem_tile_release(f->c, &t);
            assert_true(tile_is_right(f, b, &u));
            mem_tile_release(f->c, &u);
        } else {
            mem_tile_release(f->c, &u);
            assert_true(tile_is_right(f, a, &t));
            mem_tile_release(f->c, &t);
        }
    }
    return WEIR_OK;
}

/* Whatever is asked for, in whatever order, with up to two tiles held for as long as one likes. */
static void random_use(fixture *f, base_rng *rng, uint32_t n_steps)
{
    mem_tile held[2];
    mem_weight_id ids[2];
    uint32_t n_held = 0;
    for (uint32_t step = 0; step < n_steps; step++) {
        if (n_held == 2 || (n_held == 1 && base_rng_u32(rng) % 3 == 0)) {
            uint32_t which = base_rng_u32(rng) % n_held;
            assert_true(tile_is_right(f, ids[which], &held[which]));
            mem_tile_release(f->c, &held[which]);
            held[which] = held[n_held - 1];
            ids[which] = ids[n_held - 1];
            n_held--;
            continue;
        }
        mem_weight_id id = f->order[base_rng_u32(rng) % f->n_order];
        uint32_t tile = base_rng_u32(rng) % mem_weight_n_tiles(f->c, id);
        assert_status(mem_tile_acquire(f->c, id, tile, &held[n_held], &f->err), WEIR_OK);
        assert_true(tile_is_right(f, id, &held[n_held]));
        ids[n_held++] = id;
    }
    for (uint32_t i = 0; i < n_held; i++) {
        assert_true(tile_is_right(f, ids[i], &held[i]));
        mem_tile_release(f->c, &held[i]);
    }
}

static void any_order_gives_the_right_bytes(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    base_rng rng;
    base_rng_seed(&rng, 42, 1);
    open_fixture(f, "stream", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        for (size_t i = 0; i < N_PERCENTS; i++) {
            place(f, budget_at(f, percents[i]), &ways[way]);
            mem_weight_id order[MAX_WEIGHTS];
            for (int pass = 0; pass < 4; pass++) {
                size_t n = 1 + base_rng_u32(&rng) % f->n_order;
                for (size_t k = 0; k < n; k++) order[k] = f->order[base_rng_u32(&rng) % f->n_order];
                /* The announced order first, then something else, then a pass of it. */
                assert_status(mem_pass_begin(f->c, order, n, NULL, &f->err), WEIR_OK);
                for (size_t k = 0; k + 1 < n; k++) assert_status(walk_weight(f, order[k]), WEIR_OK);
                random_use(f, &rng, 20);
                assert_status(walk_pair(f, f->order[2], f->order[4], &rng), WEIR_OK);
                mem_pass_end(f->c);
                assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
            }
            mem_unplace(f->c);
        }
    }
    close_fixture(f);
}

/* Weights of the order that are left out cost nothing but their reads; the rest still comes from the ring. */
static void skipped_weights_are_dropped(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    place(f, budget_at(f, 20), &ways[2]);
    for (int pass = 0; pass < 3; pass++) {
        assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
        for (size_t i = 0; i < f->n_order; i++)
            if (f->order[i] != f->head) assert_status(walk_weight(f, f->order[i]), WEIR_OK);
        mem_pass_end(f->c);
    }
    close_fixture(f);
}

static void alternating_orders(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    mem_weight_id back[MAX_WEIGHTS];
    for (size_t i = 0; i < f->n_order; i++) back[i] = f->order[f->n_order - 1 - i];
    place(f, budget_at(f, 10), first_way(f));
    for (int pass = 0; pass < 4; pass++) {
        assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
        assert_status(run_pass(f, back, f->n_order, NULL), WEIR_OK);
    }
    /* What the announced order begins with is read before it is wanted, even after another order. */
    assert_int_equal(stats_of(f).n_misses, 0);
    close_fixture(f);
}

/* One half of the ring is filled while the other one is used, unless storage is known to want more. */
static void half_of_the_ring_is_in_flight(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    mem_reader deep = {.half_rate_bytes = 64 << 10, .read_bytes = 64 << 10, .depth = 64};
    for (int wants_all = 0; wants_all < 2; wants_all++) {
        if (wants_all) mem_component_set_reader(f->c, &deep);
        mem_plan plan = place(f, budget_at(f, 0), first_way(f));
        assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
        uint64_t queued = stats_of(f).streamed_bytes, half = plan.ring_bytes / 2;
        assert_true(queued >= half && half > plan.tile_bytes);
        if (wants_all)
            assert_true(queued > half + plan.tile_bytes);
        else
            assert_true(queued <= half + plan.tile_bytes + 2 * 4096);
        mem_pass_end(f->c);
        mem_unplace(f->c);
    }
    close_fixture(f);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    place(f, budget_at(f, 0), first_way(f));
    mem_weight_id bad = f->table;
    assert_status(mem_pass_begin(f->c, &bad, 1, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    bad = f->n_weights;
    assert_status(mem_pass_begin(f->c, &bad, 1, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
    assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    mem_tile t[3];
    mem_weight_id id = f->head;
    uint32_t n = mem_weight_n_tiles(f->c, id);
    assert_true(n >= 3);
    assert_status(mem_tile_acquire(f->c, id, n, &t[0], &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_tile_acquire(f->c, f->table, 0, &t[0], &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_tile_acquire(f->c, id, 0, &t[0], &f->err), WEIR_OK);
    assert_status(mem_tile_acquire(f->c, id, 1, &t[1], &f->err), WEIR_OK);
    assert_status(mem_tile_acquire(f->c, id, 2, &t[2], &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_true(tile_is_right(f, id, &t[0]) && tile_is_right(f, id, &t[1]));
    /* A resident tile does not count. */
    assert_status(mem_tile_acquire(f->c, f->tiny, 0, &t[2], &f->err), WEIR_OK);
    assert_int_equal(t[2].slot, UINT32_MAX);
    mem_tile_release(f->c, &t[2]);
    /* Tiles that are still held at the end are taken back. */
    mem_pass_end(f->c);
    assert_status(mem_tile_acquire(f->c, id, 0, &t[0], &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    close_fixture(f);
}

static void cancelling_ends_a_pass(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    atomic_bool cancel = false;
    open_fixture(f, "stream", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        place(f, budget_at(f, 5), &ways[way]);
        for (size_t stop = 0; stop < f->n_order; stop += 5) {
            atomic_store(&cancel, false);
            assert_status(mem_pass_begin(f->c, f->order, f->n_order, &cancel, &f->err), WEIR_OK);
            for (size_t i = 0; i < stop; i++) assert_status(walk_weight(f, f->order[i]), WEIR_OK);
            atomic_store(&cancel, true);
            assert_status(walk_weight(f, f->order[stop]), WEIR_ERR_CANCELLED);
            mem_pass_end(f->c);
            atomic_store(&cancel, false);
            assert_status(run_pass(f, f->order, f->n_order, &cancel), WEIR_OK);
        }
        mem_unplace(f->c);
    }
    close_fixture(f);
}

/* A pass is left in the middle, with reads in flight; the memory they write into goes away with it. */
static void unplacing_in_the_middle(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_fixture(f, "stream", MEM_SEQUENCE);
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way])) continue;
        place(f, budget_at(f, 5), &ways[way]);
        assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
        mem_tile t;
        assert_status(mem_tile_acquire(f->c, f->head, 0, &t, &f->err), WEIR_OK);
        mem_unplace(f->c);
        assert_int_equal(ledger_bytes(f), f->baseline);
    }
    close_fixture(f);
}

static weir_status pass_after(fixture *f)
{
    weir_status status = WEIR_OK;
    /* What was prefetched before the change may still be used; the next pass sees it at the latest. */
    for (int i = 0; i < 2 && status == WEIR_OK; i++) status = run_pass(f, f->order, f->n_order, NULL);
    return status;
}

static void a_changed_file_is_noticed(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    for (size_t way = 0; way < N_WAYS; way++) {
        open_fixture(f, "stream", MEM_SEQUENCE);
        if (way_exists(f, &ways[way])) {
            place(f, budget_at(f, 5), &ways[way]);
            assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
            struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
            nanosleep(&pause, NULL); /* a clock tick, so that the time of change differs */
            f->data[f->n_data / 2] ^= 1;
            write_data(f);
            assert_status(pass_after(f), WEIR_ERR_FILE_CHANGED);
            assert_non_null(strstr(f->err.message, f->path));
            assert_status(pass_after(f), WEIR_ERR_FILE_CHANGED);
        }
        close_fixture(f);
    }
}

static void a_file_cut_in_the_middle_of_a_pass(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    for (size_t way = 0; way < N_WAYS; way++) {
        open_fixture(f, "stream", MEM_SEQUENCE);
        if (way_exists(f, &ways[way])) {
            place(f, budget_at(f, 5), &ways[way]);
            assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
            assert_status(walk_weight(f, f->order[2]), WEIR_OK);
            assert_int_equal(truncate(f->path, (off_t)f->n_data / 2), 0);
            assert_status(walk_weight(f, f->head), WEIR_ERR_FILE_CHANGED);
            assert_non_null(strstr(f->err.message, "weight head"));
            mem_pass_end(f->c);
            assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_ERR_FILE_CHANGED);
        }
        close_fixture(f);
    }
}

/* Wholly resident: no ring, no queue, no reads. */
static void nothing_streams_when_all_fits(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    open_data(f, "stream", 1 << 20);
    assert_status(mem_component_create(f->env, "main", MEM_SEQUENCE, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "u", MEM_MARK_NONE);
    for (int i = 0; i < 3; i++) add_weight(f, unit, "w", 300, 1000, true, i == 0);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    place(f, UINT64_MAX, first_way(f));
    base_ledger_view v;
    base_ledger_read(f->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_SLOTS], 0);
    mem_stats before = stats_of(f);
    for (int i = 0; i < 3; i++) assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
    int32_t row = 299;
    char buf[1000];
    assert_status(mem_rows_read(f->c, 0, &row, 1, buf, 1000, &f->err), WEIR_OK);
    assert_memory_equal(buf, f->data + 1000 + 299 * 1000, 1000);
    mem_stats after = stats_of(f);
    assert_int_equal(after.n_reads, before.n_reads);
    assert_int_equal(after.streamed_bytes, 0);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cyclic_passes),
        cmocka_unit_test(any_order_gives_the_right_bytes),
        cmocka_unit_test(skipped_weights_are_dropped),
        cmocka_unit_test(alternating_orders),
        cmocka_unit_test(half_of_the_ring_is_in_flight),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(cancelling_ends_a_pass),
        cmocka_unit_test(unplacing_in_the_middle),
        cmocka_unit_test(a_changed_file_is_noticed),
        cmocka_unit_test(a_file_cut_in_the_middle_of_a_pass),
        cmocka_unit_test(nothing_streams_when_all_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
