/* Units of the memory manager (R4), and how those that found no room pass through a few slots (R5), each rule
 * by its number, on the strict simulated device. */
#include "mgr_test.h"

#define KIB 1024u
#define MB  1000000u

static uint8_t bytes[2 * MB];

typedef struct spec {
    const char *unit, *name; /* unit NULL: by the default rule */
    uint64_t bytes;
    mem_mark mark; /* of the unit; a unit is that of the first weight which names it */
    bool fixed, shared, changes;
} spec;

static mem_handle *build(rig *r, mem_kind kind, const spec *s, uint32_t n)
{
    mem_handle *h;
    uint32_t units[16], n_units = 0;
    const char *names[16];
    ok(r, mem_handle_create(r->m, "e", "c", kind, &h, &r->err));
    for (uint32_t i = 0; i < n; i++) {
        mem_weight_id id;
        uint32_t unit = MEM_UNIT_DEFAULT;
        for (uint32_t k = 0; k < n_units && s[i].unit != NULL; k++)
            if (strcmp(names[k], s[i].unit) == 0) unit = units[k];
        if (s[i].unit != NULL && unit == MEM_UNIT_DEFAULT) {
            ok(r, mem_handle_add_unit(h, s[i].unit, s[i].mark, &unit, &r->err));
            names[n_units] = s[i].unit;
            units[n_units++] = unit;
        }
        const mem_handle_weight w = {.name = s[i].name,
                                     .bytes = s[i].bytes,
                                     .host = bytes,
                                     .streamable = !s[i].fixed,
                                     .shared = s[i].shared,
                                     .changes = s[i].changes};
        ok(r, mem_handle_add_weight(h, unit, &w, &id, &r->err));
        assert_int_equal(id, i);
    }
    return h;
}

static void assert_units(const mem_handle *h, const char *const *names, uint32_t n)
{
    mem_handle_unit u;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(mem_handle_get_unit(h, i, &u));
        assert_string_equal(u.name, names[i]);
    }
    assert_false(mem_handle_get_unit(h, n, &u));
}

/* R4.1: units that were named stay as they are; else each child of at least 1 MB of an outermost list is one,
 * and nothing in it is split again. */
static void the_default_rule(void **state)
{
    (void)state;
    rig r;
    static const spec weights[] = {
        {NULL, "encoder.blocks.0.inner.0.w", MB, 0, 0, 0, 0},
        {NULL, "encoder.blocks.0.inner.1.w", MB, 0, 0, 0, 0},
        {NULL, "encoder.blocks.1.w", MB, 0, 0, 0, 0},
        {NULL, "encoder.blocks.10.a", MB / 2, 0, 0, 0, 0}, /* 10 is not 1 */
        {NULL, "encoder.blocks.10.b", MB / 2, 0, 0, 0, 0},
        {NULL, "encoder.blocks.2.w", MB - 1, 0, 0, 0, 0},
        {NULL, "7.w", MB, 0, 0, 0, 0}, /* a component that is a list itself */
        {NULL, "head.w", 2 * MB, 0, 0, 0, 0},
        {"tail", "tail.3.w", 2 * MB, 0, 0, 0, 0},
    };
    static const char *const names[] = {"tail", "encoder.blocks.0", "encoder.blocks.1", "encoder.blocks.10",
                                        "7"};
    open_rig(&r, device_of(32 * MB), test_policy());
    mem_handle *h = build(&r, MEM_ONESHOT, weights, 9);
    ok(&r, mem_handle_seal(h, &r.err));
    assert_units(h, names, 5);
    assert_int_equal(mem_handle_unit_of(h, 1), 1);
    assert_int_equal(mem_handle_unit_of(h, 5), MEM_UNIT_DEFAULT); /* below 1 MB */
    assert_int_equal(mem_handle_unit_of(h, 7), MEM_UNIT_DEFAULT); /* of no list */
    assert_int_equal(mem_handle_unit_of(h, 8), 0);
    mem_weight_id id;
    uint32_t unit;
    const mem_handle_weight late = {.name = "late", .bytes = 4, .host = bytes};
    assert_int_equal(mem_handle_add_weight(h, 0, &late, &id, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "e:c"));
    assert_int_equal(mem_handle_add_unit(h, "late", MEM_MARK_NONE, &unit, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    mem_handle_destroy(h);
    close_rig(&r);
}

/* R4.2, R4.3: what streams is what its unit alone reads; the rest of it, what is shared, what compute changes
 * and units under 64 KB are the fixed part. */
static void the_fixed_part(void **state)
{
    (void)state;
    rig r;
    static const spec weights[] = {
        {"a", "linear", 128 * KIB, 0, 0, 0, 0},
        {"a", "norm", 4 * KIB, 0, 1, 0, 0},
        {"a", "tied", 96 * KIB, 0, 0, 1, 0},
        {"a", "buffer", 8 * KIB, 0, 0, 0, 1},
        {"b", "small", 60 * KIB, 0, 0, 0, 0},
        {"c", "just", 64 * KIB, 0, 0, 0, 0},
        {"d", "marked", 128 * KIB, MEM_MARK_FIXED, 0, 0, 0},
    };
    mem_handle_info i;
    open_rig(&r, device_of(32 * MB), test_policy());
    mem_handle *h = build(&r, MEM_ONESHOT, weights, 7);
    ok(&r, mem_handle_seal(h, &r.err));
    static const uint32_t units[] = {
        0, MEM_UNIT_DEFAULT, MEM_UNIT_DEFAULT, MEM_UNIT_DEFAULT, MEM_UNIT_DEFAULT, 2, MEM_UNIT_DEFAULT};
    for (mem_weight_id w = 0; w < 7; w++) assert_int_equal(mem_handle_unit_of(h, w), units[w]);
    mem_handle_get_info(h, &i);
    assert_int_equal(i.fixed_bytes, (4 + 96 + 8 + 60 + 128) * KIB);
    assert_int_equal(i.size_bytes, i.fixed_bytes + (128 + 64) * KIB);
    assert_int_equal(i.smallest_bytes, i.fixed_bytes + 128 * KIB); /* R4.6 with one copy */
    mem_handle_destroy(h);
    close_rig(&r);
}

/* Which units stay, as letters, with room for so many KiB beside the fixed part and the slots. */
static void stays(mem_kind kind, const spec *weights, uint32_t n, uint32_t kib, const char *wanted)
{
    rig r;
    mem_phase *p;
    char got[17] = "";
    mem_policy policy = test_policy();
    policy.async_offload = 0;
    open_rig(&r, device_of(kib * KIB), policy);
    mem_handle *h = build(&r, kind, weights, n);
    ok(&r, mem_handle_seal(h, &r.err));
    mem_request *q = begin(&r, "test");
    const mem_phase_desc d = {.name = "p", .handles = &h, .n_handles = 1};
    ok(&r, mem_use(q, &d, &p, &r.err));
    for (uint32_t i = 0; i < n; i++) {
        mem_handle_unit u;
        assert_true(mem_handle_get_unit(h, i, &u));
        if (u.resident) strcat(got, u.name);
    }
    if (strcmp(got, wanted) != 0) fail_msg("%u KiB: %s stay, and not %s", kib, got, wanted);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    mem_handle_destroy(h);
    close_rig(&r);
}

/* R4.4, R4.5, R4.6: hot units first, cold ones last; between them a sequence keeps the first, a oneshot the
 * largest; the slot is as large as the largest that streams. */
static void the_right_units_stay(void **state)
{
    (void)state;
    static const spec plain[] = {{"a", "w", 128 * KIB, 0, 0, 0, 0},
                                 {"b", "w", 256 * KIB, 0, 0, 0, 0},
                                 {"c", "w", 128 * KIB, 0, 0, 0, 0},
                                 {"d", "w", 192 * KIB, 0, 0, 0, 0}};
    static const spec marked[] = {{"a", "w", 128 * KIB, MEM_MARK_COLD, 0, 0, 0},
                                  {"b", "w", 128 * KIB, MEM_MARK_NONE, 0, 0, 0},
                                  {"c", "w", 128 * KIB, MEM_MARK_HOT, 0, 0, 0},
                                  {"d", "w", 128 * KIB, MEM_MARK_NONE, 0, 0, 0}};
    stays(MEM_SEQUENCE, plain, 4, 704, "abcd");
    stays(MEM_SEQUENCE, plain, 4, 703, "ab"); /* with 192 KiB for the largest of c and d */
    stays(MEM_SEQUENCE, plain, 4, 576, "ab");
    stays(MEM_SEQUENCE, plain, 4, 384, "a");
    stays(MEM_SEQUENCE, plain, 4, 256, "");
    stays(MEM_ONESHOT, plain, 4, 703, "bd");
    stays(MEM_ONESHOT, plain, 4, 576, "bd");
    stays(MEM_ONESHOT, plain, 4, 512, "b");
    stays(MEM_ONESHOT, plain, 4, 256, "");
    stays(MEM_SEQUENCE, marked, 4, 511, "bc");
    stays(MEM_SEQUENCE, marked, 4, 512, "abcd");
    stays(MEM_SEQUENCE, marked, 4, 256, "c");
    stays(MEM_ONESHOT, marked, 4, 384, "bc");
}

/* R4.4 by name: hot, fixed, cold and cpu on sub-modules; the longest path wins, and a path ends at a dot. */
static void marks_by_name(void **state)
{
    (void)state;
    rig r;
    static const spec weights[] = {
        {NULL, "net.blocks.0.w", MB, 0, 0, 0, 0},   {NULL, "net.blocks.1.w", MB, 0, 0, 0, 0},
        {NULL, "net.blocks.2.w", MB, 0, 0, 0, 0},   {NULL, "net.blocks.3.w", MB, 0, 0, 0, 0},
        {NULL, "net.blocks.3.big", MB, 0, 0, 0, 0}, {NULL, "table.w", 64 * KIB, 0, 1, 0, 0},
        {NULL, "tables.w", 64 * KIB, 0, 1, 0, 0},
    };
    static const struct {
        const char *path;
        mem_mark mark;
        bool resident; /* with room for one unit beside a slot */
    } units[] = {{"net.blocks.0", MEM_MARK_COLD, false},
                 {"net.blocks.1", MEM_MARK_COLD, false},
                 {"net.blocks.2", MEM_MARK_HOT, true},
                 {"net.blocks.3", MEM_MARK_COLD, false}};
    mem_phase *p;
    mem_handle_info info;
    mem_policy policy = test_policy();
    policy.async_offload = 0;
    open_rig(&r, device_of(3 * MB + 256 * KIB), policy);
    mem_handle *h = build(&r, MEM_SEQUENCE, weights, 7);
    ok(&r, mem_handle_mark(h, "net", MEM_MARK_COLD, &r.err));
    ok(&r, mem_handle_mark(h, "net.blocks.2", MEM_MARK_HOT, &r.err));
    ok(&r, mem_handle_mark(h, "net.blocks.3.big", MEM_MARK_FIXED, &r.err));
    ok(&r, mem_handle_mark(h, "table", MEM_MARK_CPU, &r.err));
    ok(&r, mem_handle_seal(h, &r.err));
    assert_int_equal(mem_handle_mark(h, "net", MEM_MARK_HOT, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    mem_handle_get_info(h, &info);
    assert_int_equal(info.fixed_bytes, base_align_up(MB, 4096) + 64 * KIB); /* big, tables */
    mem_request *q = begin(&r, "test");
    const mem_phase_desc d = {.name = "p", .handles = &h, .n_handles = 1};
    ok(&r, mem_use(q, &d, &p, &r.err));
    for (uint32_t i = 0; i < 4; i++) {
        mem_handle_unit u;
        assert_true(mem_handle_get_unit(h, i, &u));
        assert_string_equal(u.name, units[i].path);
        assert_int_equal(u.mark, units[i].mark);
        assert_int_equal(u.resident, units[i].resident);
    }
    void *address;
    ok(&r, mem_weight_address(p, h, 5, &address, &r.err));
    assert_ptr_equal(address, bytes); /* R4.3: what is pinned to the CPU never moves */
    ok(&r, mem_weight_address(p, h, 6, &address, &r.err));
    assert_ptr_not_equal(address, bytes);
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    mem_handle_destroy(h);
    close_rig(&r);
}

/* ---- streaming ---- */

static mem_report visited(rig *r, visit *v)
{
    mem_report rep;
    mem_request *q = begin(r, "test");
    const mem_run_desc run = {
        .phase = {.name = "visit", .handles = &v->x->h, .n_handles = 1}, .fn = visit_units, .arg = v};
    ok(r, mem_run_phase(q, &run, &r->err));
    mem_request_report(q, &rep);
    mem_request_end(q);
    check_visit(v);
    return rep;
}

static visit in_order(model *x, mem_manager *m, uint32_t rounds)
{
    visit v = {.x = x, .m = m};
    for (uint32_t i = 0; i < rounds; i++)
        for (uint32_t u = 0; u < N_UNITS; u++) v.order[v.n++] = u;
    return v;
}

/* R5.1: as many copies as run and are in transit; a unit that runs again before its copy is dropped uses it.
 * R3.6: in mode low, so that all streams. */
static void few_copies(void **state)
{
    (void)state;
    for (uint32_t ahead = 0; ahead <= MEM_MAX_OFFLOAD; ahead++) {
        rig r;
        model x;
        mem_policy policy = test_policy();
        policy.async_offload = ahead;
        policy.vram_mode = MEM_VRAM_LOW;
        open_rig(&r, device_of(4 * MB), policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        uint32_t slots = ahead + 1 < N_UNITS ? ahead + 1 : N_UNITS;
        mem_handle_info info;
        /* Twice the same in a row, as the two halves of a guided step do. */
        visit v = {.x = &x, .m = r.m, .n = 6, .order = {0, 0, 1, 1, 2, 2}};
        mem_report rep = visited(&r, &v);
        assert_int_equal(rep.n_copies, 3);
        assert_int_equal(rep.n_hits, 3);
        assert_int_equal(rep.streamed_bytes, 3 * UNIT_BYTES);
        mem_handle_get_info(x.h, &info);
        assert_int_equal(info.slot_bytes, slots * UNIT_BYTES);
        assert_int_equal(info.loaded_bytes, 4096);
        /* There and back: with three slots the last two are still there. */
        v = (visit){.x = &x, .m = r.m, .n = 4, .order = {3, 4, 3, 4}};
        rep = visited(&r, &v);
        if (slots >= 2) assert_int_equal(rep.n_hits, 2);
        if (slots == 1) assert_int_equal(rep.n_copies, 4);
        close_model(&x);
        close_rig(&r);
    }
}

/* R5.2: after one round the order is known, and units are copied before they are entered; in any other order
 * they are copied on the spot, with the same bytes. By chaos: no copy is read early, no slot written early.
 */
static void the_order_is_learned(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        rig r;
        model x;
        mem_policy policy = test_policy();
        policy.vram_mode = MEM_VRAM_LOW;
        dev_sim_options o = device_of(4 * MB);
        o.chaos_seed = seed;
        open_rig(&r, o, policy);
        open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
        visit v = in_order(&x, r.m, 1);
        assert_int_equal(visited(&r, &v).n_hits, 0);
        v = in_order(&x, r.m, 3);
        mem_report rep = visited(&r, &v);
        assert_true(rep.n_hits >= 2 * N_UNITS); /* the first one, and little else, comes too late */
        base_rng rng;
        base_rng_seed(&rng, seed, 9);
        for (int i = 0; i < 4; i++) {
            v = (visit){.x = &x, .m = r.m, .n = 20};
            for (uint32_t k = 0; k < v.n; k++) v.order[k] = base_rng_u32(&rng) % (N_UNITS + 1);
            rep = visited(&r, &v);
            assert_true(rep.n_copies > 5);
        }
        close_model(&x);
        close_rig(&r);
    }
}

/* R5.3: components that run once per token hold one copy and copy nothing ahead, unless that is asked for. */
static void a_sequence_is_not_prefetched(void **state)
{
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        rig r;
        model x;
        mem_handle_info info;
        mem_policy policy = test_policy();
        policy.vram_mode = MEM_VRAM_LOW;
        policy.prefetch_sequence = asked ? MEM_ON : MEM_AUTO;
        open_rig(&r, device_of(4 * MB), policy);
        open_model(&r, r.m, &x, "a", MEM_SEQUENCE, NULL);
        visit v = in_order(&x, r.m, 4);
        mem_report rep = visited(&r, &v);
        mem_handle_get_info(x.h, &info);
        assert_int_equal(info.slot_bytes, (asked ? 3 : 1) * UNIT_BYTES);
        if (asked) assert_true(rep.n_hits >= 2 * N_UNITS);
        if (!asked) assert_true(rep.n_hits == 0 && rep.n_copies == 4 * N_UNITS);
        close_model(&x);
        close_rig(&r);
    }
}

/* R5.8: what is wholly there is entered without copies, slots and waits; R5.6: a copy has the weight's bytes
 * and no more. */
static void resident_units_copy_nothing(void **state)
{
    (void)state;
    rig r;
    model x;
    mem_handle_info info;
    open_rig(&r, device_of(4 * MB), test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    visit v = in_order(&x, r.m, 1);
    mem_report rep = visited(&r, &v);
    mem_handle_get_info(x.h, &info);
    assert_int_equal(info.loaded_bytes, WHOLE); /* R5.6 */
    assert_int_equal(info.slot_bytes + rep.streamed_bytes + rep.n_copies + rep.n_hits + rep.n_waits, 0);
    ok(&r, base_fault_count_on(r.env, &r.err));
    rep = visited(&r, &v);
    /* The phase's own copies: zeroes up, sums down. */
    assert_int_equal(base_fault_count(r.env, BASE_FAULT_COPY), 2);
    close_model(&x);
    close_rig(&r);
}

typedef struct canceller {
    visit v;
    atomic_bool *cancel;
    uint32_t after;
} canceller;

static weir_status visit_and_cancel(void *arg, mem_phase *p, weir_error *err)
{
    canceller *c = arg;
    for (uint32_t i = 0; i < c->v.n; i++) {
        if (i == c->after) atomic_store(c->cancel, true);
        weir_status status = mem_unit_enter(p, c->v.x->h, c->v.order[i], err);
        if (status != WEIR_OK) return status;
        mem_unit_leave(p, c->v.x->h, c->v.order[i]);
    }
    return WEIR_OK;
}

static void cancel_on_yield(void *arg, base_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "gave up") != NULL) atomic_store((atomic_bool *)arg, true);
}

/* R5.6: each copy hears of a cancellation, while units stream and while a component is placed; afterwards all
 * works. */
static void every_copy_hears_of_cancellation(void **state)
{
    (void)state;
    rig r;
    model x, other;
    atomic_bool cancel;
    mem_request *q;
    mem_policy policy = test_policy();
    policy.vram_mode = MEM_VRAM_LOW;
    open_rig(&r, device_of(4 * MB), policy);
    open_model(&r, r.m, &x, "a", MEM_SEQUENCE, NULL);
    const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1, .cancel = &cancel};
    for (uint32_t after = 0; after <= N_UNITS; after++) {
        canceller c = {.v = in_order(&x, r.m, 1), .cancel = &cancel, .after = after};
        cancel = false;
        ok(&r, mem_request_begin(&d, &q, &r.err));
        const mem_run_desc run = {
            .phase = {.name = "p", .handles = &x.h, .n_handles = 1}, .fn = visit_and_cancel, .arg = &c};
        assert_int_equal(mem_run_phase(q, &run, &r.err), after < N_UNITS ? WEIR_ERR_CANCELLED : WEIR_OK);
        mem_request_end(q);
        check_model(&r, r.m, &x);
    }
    close_model(&x);
    close_rig(&r);

    open_rig(&r, device_of(WHOLE + WHOLE / 2), test_policy());
    open_model(&r, r.m, &x, "a", MEM_ONESHOT, NULL);
    open_model(&r, r.m, &other, "b", MEM_ONESHOT, NULL);
    check_model(&r, r.m, &other);
    cancel = false;
    ok(&r, mem_request_begin(&d, &q, &r.err));
    r.env->log_fn = cancel_on_yield; /* comes before the first copy of what takes the room */
    r.env->log_arg = &cancel;
    mem_phase *p;
    const mem_phase_desc phase = {.name = "p", .handles = &x.h, .n_handles = 1};
    assert_int_equal(mem_use(q, &phase, &p, &r.err), WEIR_ERR_CANCELLED);
    mem_request_end(q);
    mem_handle_info info;
    mem_handle_get_info(x.h, &info);
    assert_true(info.loaded_bytes == 0 && !info.busy);
    r.env->log_fn = NULL;
    check_model(&r, r.m, &x);
    check_model(&r, r.m, &other);
    close_model(&x);
    close_model(&other);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_rule),
        cmocka_unit_test(the_fixed_part),
        cmocka_unit_test(the_right_units_stay),
        cmocka_unit_test(marks_by_name),
        cmocka_unit_test(few_copies),
        cmocka_unit_test(the_order_is_learned),
        cmocka_unit_test(a_sequence_is_not_prefetched),
        cmocka_unit_test(resident_units_copy_nothing),
        cmocka_unit_test(every_copy_hears_of_cancellation),
    };
    return cmocka_run_group_tests_name("memory manager: units and streaming", tests, NULL, NULL);
}
