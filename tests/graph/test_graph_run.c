/* Running programs: the same bits for every placement, thread count, chunk and batch; and what must be
 * refused. */
#include "graph_test.h"

#define N_SEEDS     12
#define N_POSITIONS 21

static uint64_t expected[N_SEEDS];

/* One thread, all resident, one position at a time: what everything else must equal. */
static int compute_expected(void **state)
{
    (void)state;
    expect_all(expected, N_SEEDS, N_POSITIONS);
    return 0;
}

static void check_all(fixture *f, uint32_t chunk, bool both)
{
    for (uint64_t s = 0; s < N_SEEDS; s++) {
        graph_program *p = make_program(f, s, true);
        uint64_t h = run_all(f, p, N_POSITIONS, chunk, both);

        if (h != expected[s])
            fail_msg("program %llu, chunk %u%s: other bits", (unsigned long long)s, chunk,
                     both ? ", batch" : "");
        graph_program_destroy(p);
    }
}

static void chunks_and_batches(void **state)
{
    fixture f;

    (void)state;
    fixture_open(&f, 2, false);
    check_all(&f, 1, false);
    check_all(&f, 1, true);
    check_all(&f, 4, true);
    check_all(&f, 9, false);
    fixture_close(&f);
}

static void streamed(void **state)
{
    fixture f;
    mem_stats stats;
    uint32_t n_tiled = 0;

    (void)state;
    fixture_open(&f, 2, true);
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < N_SIZES; i++) n_tiled += mem_weight_n_tiles(f.c, f.matrix[t][i][2].id) > 1;
    assert_true(n_tiled >= 3);
    check_all(&f, 1, true);
    check_all(&f, 7, false);
    mem_component_stats(f.c, &stats);
    assert_true(stats.streamed_bytes > 1 << 20);
    fixture_close(&f);
}

static void resident_reads_nothing(void **state)
{
    fixture f;
    mem_stats before, after;

    (void)state;
    fixture_open(&f, 2, false);
    mem_component_stats(f.c, &before);
    check_all(&f, 3, true);
    mem_component_stats(f.c, &after);
    assert_int_equal(before.streamed_bytes, after.streamed_bytes);
    assert_int_equal(after.n_misses, 0);
    fixture_close(&f);
}

/* A pass without outputs runs no operation behind the selection, reads no weight of it, and leaves caches
 * that the next pass continues. */
static void without_outputs(void **state)
{
    fixture f;

    (void)state;
    fixture_open(&f, 2, true);
    for (uint64_t s = 0; s < N_SEEDS; s++) {
        graph_program *p = make_program(&f, s, true);
        graph_phase_profile phase;
        uint64_t a, b;

        run_all(&f, p, 10, 1, false);
        a = hash_row(HASH_START, graph_result(p, 0));
        graph_profile_on(p, true);
        assert_status(&f, pass(&f, p, 0, 1, 0, 5, false), WEIR_OK);
        assert_status(&f, pass(&f, p, 0, 1, 5, 4, false), WEIR_OK);
        assert_true(graph_profile_phase(p, 2, &phase));
        assert_int_equal(phase.n_ops, 0);
        assert_true(graph_profile_phase(p, 1, &phase));
        assert_true(phase.n_ops > 0 && phase.streamed_bytes > 0 && phase.seconds >= phase.wait_seconds);
        assert_status(&f, pass(&f, p, 0, 1, 9, 1, true), WEIR_OK);
        b = hash_row(HASH_START, graph_result(p, 0));
        assert_true(a == b);
        assert_true(graph_profile_phase(p, 2, &phase));
        assert_true(phase.n_ops > 0 && !graph_profile_phase(p, 3, &phase));
        graph_program_destroy(p);
    }
    fixture_close(&f);
}

static void refused(void **state)
{
    fixture f;
    graph_program *p;
    int32_t tokens[3] = {1, 2, 3}, positions[3] = {0, 1, 2};
    uint32_t sequences[3] = {0, 0, 0}, rows[3] = {0, 1, 2};
    atomic_bool cancel = true;
    graph_batch good, b;

    (void)state;
    fixture_open(&f, 2, true);
    p = make_program(&f, 3, true);
    good = (graph_batch){.n_rows = 3,
                         .token = tokens,
                         .position = positions,
                         .sequence = sequences,
                         .kv = f.by_layer,
                         .n_outputs = 3,
                         .output_rows = rows};
#define REFUSED(change, undo, wanted)                                                                        \
    do {                                                                                                     \
        b = good;                                                                                            \
        change;                                                                                              \
        assert_status(&f, graph_run(p, &b, &f.err), wanted);                                                 \
        undo;                                                                                                \
    } while (0)
    REFUSED(b.n_rows = 0, , WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(b.n_rows = MAX_ROWS + 1, , WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(b.n_outputs = MAX_ROWS + 1, , WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(tokens[1] = VOCAB, tokens[1] = 2, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(tokens[1] = -1, tokens[1] = 2, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(positions[2] = 1, positions[2] = 2, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(positions[0] = -1, positions[0] = 0, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(rows[2] = 1, rows[2] = 2, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(rows[2] = 3, rows[2] = 2, WEIR_ERR_INVALID_ARGUMENT);
    REFUSED(b.cancel = &cancel, , WEIR_ERR_CANCELLED);
    b = good;
    assert_status(&f, graph_run(p, &b, &f.err), WEIR_OK);
    graph_program_destroy(p);
    fixture_close(&f);
}

/* Positions beyond the cache: layers that look at everything refuse, sliding ones go on. */
static void beyond_the_cache(void **state)
{
    fixture f;
    graph_weight none = {.id = MEM_NO_WEIGHT};
    graph_options o = {.max_rows = MAX_ROWS, .max_outputs = MAX_ROWS, .alias = true};

    (void)state;
    fixture_open(&f, 2, false);
    for (uint32_t window = 0; window <= 56; window += 56) {
        graph_attention_params a = {.n_heads = N_HEADS,
                                    .n_kv_heads = N_KV_HEADS,
                                    .head_dim = HEAD_DIM,
                                    .window = window,
                                    .scale = 0.2f};
        graph_program *p;
        graph_id x, q, k, v;

        assert_status(&f, graph_program_create(f.env, f.dev, f.c, &o, &p, &f.err), WEIR_OK);
        x = graph_embed(p, f.table, 1);
        q = graph_matmul(p, x, f.matrix[2][1][1], none);
        k = graph_matmul(p, x, f.matrix[2][0][1], none);
        v = graph_matmul(p, x, f.matrix[0][0][1], none);
        x = graph_select_outputs(p, graph_attention(p, q, k, v, &a));
        assert_status(&f, graph_finish(p, graph_matmul(p, x, f.matrix[0][2][1], none), &f.err), WEIR_OK);
        assert_status(&f, graph_reserve(p, CONTEXT, HEAD_DIM, &f.err), WEIR_OK);
        for (int32_t at = 0; at + 8 <= CONTEXT; at += 8)
            assert_status(&f, pass(&f, p, 0, 1, at, 8, true), WEIR_OK);
        assert_status(&f, pass(&f, p, 0, 1, CONTEXT, 1, true), window == 0 ? WEIR_ERR_CONTEXT_FULL : WEIR_OK);
        if (window != 0) {
            uint64_t h;

            /* Nine rows at once still keep the window of the first; the same rows one by one agree. */
            assert_status(&f, pass(&f, p, 0, 1, CONTEXT + 1, 9, true), WEIR_OK);
            h = hash_row(HASH_START, graph_result(p, 8));
            for (int32_t i = 0; i < 9; i++)
                assert_status(&f, pass(&f, p, 0, 1, CONTEXT + 1 + i, 1, true), WEIR_OK);
            assert_true(h == hash_row(HASH_START, graph_result(p, 0)));
        }
        graph_program_destroy(p);
    }
    fixture_close(&f);
}

static void misbuilt(void **state)
{
    fixture f;
    graph_options o = {.max_rows = 2, .max_outputs = 1, .alias = true};
    graph_weight none = {.id = MEM_NO_WEIGHT}, table;

    (void)state;
    fixture_open(&f, 1, false);
    for (int which = 0; which < 7; which++) {
        weir_status wanted = WEIR_ERR_INTERNAL;
        graph_program *p;
        graph_id x, y;

        assert_status(&f, graph_program_create(f.env, f.dev, f.c, &o, &p, &f.err), WEIR_OK);
        x = graph_embed(p, f.table, 1);
        y = x;
        table = f.table;
        switch (which) {
        case 0: y = graph_add(p, graph_scale(p, x, 2), x); break; /* x is gone */
        case 1: y = graph_matmul(p, x, f.matrix[0][1][2], none); break;
        case 2: y = graph_add(p, x, graph_select_outputs(p, x)); break;
        case 3: y = graph_rms_norm(p, x, f.norm[0][0], 0, 1e-5f, 0); break;
        case 4: break; /* no selection */
        case 5: y = graph_rope(p, x, x, 32, 32, true); break;
        default:
            table.dtype = BASE_I8;
            table.n_rows = 4;
            y = graph_matmul(p, x, table, none);
            wanted = WEIR_ERR_UNSUPPORTED;
        }
        assert_status(&f, graph_finish(p, which == 4 ? y : graph_select_outputs(p, y), &f.err), wanted);
        assert_true(strlen(f.err.message) > 10);
        graph_program_destroy(p);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_batches),
        cmocka_unit_test(streamed),
        cmocka_unit_test(resident_reads_nothing),
        cmocka_unit_test(without_outputs),
        cmocka_unit_test(refused),
        cmocka_unit_test(beyond_the_cache),
        cmocka_unit_test(misbuilt),
    };

    return cmocka_run_group_tests(tests, compute_expected, NULL);
}
