/* The planner against an oracle: no two activations that live at the same time share a byte, whatever the
 * program; and sharing changes no bit of the results. */
#include "graph_test.h"

static int open_fixture(void **state)
{
    static fixture f;

    fixture_open(&f, 2, false);
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture_close(*state);
    return 0;
}

typedef struct span {
    uint64_t offset, bytes;
    uint32_t first, last;
} span;

static uint32_t spans_of(const graph_program *p, span *out, uint32_t cap)
{
    uint32_t n = 0;
    span s;

    while (graph_tensor_span(p, n, &s.offset, &s.bytes, &s.first, &s.last)) {
        assert_true(n < cap);
        out[n++] = s;
    }
    return n;
}

static void check_spans(uint64_t seed, const graph_program *p)
{
    static span spans[1024];
    uint32_t n = spans_of(p, spans, 1024);
    graph_info info;

    graph_program_info(p, &info);
    assert_int_equal(n, info.n_tensors);
    assert_true(n > 5 && info.arena_bytes > 0 && info.arena_bytes <= info.unaliased_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const span *a = &spans[i];

        assert_true(a->first <= a->last && a->last <= info.n_ops && a->bytes > 0);
        assert_true(a->offset % 64 == 0 && a->offset + a->bytes <= info.arena_bytes);
        for (uint32_t j = 0; j < i; j++) {
            const span *b = &spans[j];
            bool together = a->first <= b->last && b->first <= a->last;
            bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;

            if (together && !apart)
                fail_msg("seed %llu: tensors %u and %u overlap", (unsigned long long)seed, i, j);
        }
    }
}

/* R15.2: the overlap oracle: what lives together lies apart. */
static void no_overlap(void **state)
{
    fixture *f = *state;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        graph_program *p = make_program(f, seed, seed % 4 != 0);

        check_spans(seed, p);
        graph_program_destroy(p);
    }
}

static void arena_is_near_the_peak(void **state)
{
    fixture *f = *state;
    uint64_t arenas = 0, peaks = 0, apart = 0;

    for (uint64_t seed = 1; seed <= 50; seed++) {
        graph_program *p = make_program(f, seed, true);
        graph_phase_profile phase;
        graph_info info;
        uint64_t peak = 0;

        graph_program_info(p, &info);
        for (uint32_t i = 0; graph_profile_phase(p, i, &phase); i++)
            peak = base_max(peak, phase.peak_live_bytes);
        assert_true(info.arena_bytes >= peak);
        arenas += info.arena_bytes;
        peaks += peak;
        apart += info.unaliased_bytes;
        graph_program_destroy(p);
    }
    print_message("arenas %llu, peaks %llu, without sharing %llu bytes\n", (unsigned long long)arenas,
                  (unsigned long long)peaks, (unsigned long long)apart);
    assert_true(arenas < peaks * 5 / 4 && arenas < apart / 2);
}

/* R15.2: byte-identical with sharing on and off. */
static void sharing_changes_no_bit(void **state)
{
    fixture *f = *state;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        graph_program *shared = make_program(f, seed, true), *apart = make_program(f, seed, false);
        uint64_t a = run_all(f, shared, 12, 4, true), b = run_all(f, apart, 12, 4, true);

        if (a != b || a == HASH_START) fail_msg("seed %llu: results differ", (unsigned long long)seed);
        graph_program_destroy(shared);
        graph_program_destroy(apart);
    }
}

static void quantized_once_per_form(void **state)
{
    fixture *f = *state;
    graph_options o = {.max_rows = 2, .max_outputs = 1, .alias = true};
    graph_weight none = {.id = MEM_NO_WEIGHT};
    graph_program *p;
    graph_info info;
    graph_id x, y;

    assert_status(f, graph_program_create(f->env, f->dev, f->c, &o, &p, &f->err), WEIR_OK);
    x = graph_select_outputs(p, graph_embed(p, f->table, 1));
    y = graph_matmul(p, x, f->matrix[2][1][1], none); /* Q8_0 and Q4_0 read the same form, F32 the floats */
    y = graph_add(p, y, graph_matmul(p, x, f->matrix[3][1][1], none));
    y = graph_add(p, y, graph_matmul(p, x, f->matrix[0][1][1], none));
    assert_status(f, graph_finish(p, y, &f->err), WEIR_OK);
    graph_program_info(p, &info);
    assert_int_equal(info.n_ops, 1 + 1 + 1 + 3 + 2); /* embed, select, one quantize, products, additions */
    assert_int_equal(info.macs_per_row, 3 * 256 * 256);
    assert_int_equal(info.weight_bytes, 256 * (256 / 32 * (34 + 18) + 256 * 4));
    assert_int_equal(info.max_k, 256);
    graph_program_destroy(p);
}

/* What is read without outputs ends where they are selected. */
static void inner_bytes(void **state)
{
    fixture *f = *state;
    graph_options o = {.max_rows = 2, .max_outputs = 1, .alias = true};
    graph_weight none = {.id = MEM_NO_WEIGHT};
    graph_program *p;
    graph_info info;
    graph_id x;

    assert_status(f, graph_program_create(f->env, f->dev, f->c, &o, &p, &f->err), WEIR_OK);
    x = graph_matmul(p, graph_embed(p, f->table, 1), f->matrix[0][1][1], none);
    x = graph_matmul(p, graph_select_outputs(p, x), f->matrix[2][1][1], none);
    assert_status(f, graph_finish(p, x, &f->err), WEIR_OK);
    graph_program_info(p, &info);
    assert_int_equal(info.inner_bytes, 256 * 256 * 4);
    assert_int_equal(info.weight_bytes, info.inner_bytes + 256 * 256 / 32 * 34);
    graph_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_overlap),
        cmocka_unit_test(arena_is_near_the_peak),
        cmocka_unit_test(sharing_changes_no_bit),
        cmocka_unit_test(quantized_once_per_form),
        cmocka_unit_test(inner_bytes),
    };

    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
