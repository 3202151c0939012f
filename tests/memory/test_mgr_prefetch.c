/* Copies ahead of components that stream from storage are chosen by measurement (R5.3), and the report says
 * what was measured (R10.1). The clock is ours: a phase takes as long as the test says that its way takes, so
 * nothing here depends on the machine's speed. */
#include "mgr_test.h"

#define MB UINT64_C(1000000)

/* Of phases until both ways are measured: 8 to warm up, 4 blocks of 3. */
#define MEASURED 20
#define AGAIN    2000

typedef struct clock_of {
    double now;
    double seconds[2]; /* of a phase: without, with copies ahead */
} clock_of;

static double read_clock(void *arg)
{
    const clock_of *c = arg;
    return c->now;
}

typedef struct stage {
    rig r;
    clock_of c;
    model source, x;
    base_file *file;
    char path[128];
    visit v;
    mem_report rep;
} stage;

static void open_stage(stage *s, mem_kind kind, mem_policy policy, uint64_t bytes, bool from_file)
{
    memset(s, 0, sizeof *s);
    open_rig(&s->r, device_of(bytes), policy);
    s->r.env->clock_fn = read_clock;
    s->r.env->clock_arg = &s->c;
    s->c.now = 1;
    open_model(&s->r, s->r.m, &s->source, "f", kind, NULL);
    s->file = model_file(&s->r, &s->source, s->path);
    open_model(&s->r, s->r.m, &s->x, "f", kind, from_file ? s->file : NULL);
    s->v = (visit){.x = &s->x, .m = s->r.m, .n = 2 * (N_UNITS + 1)};
    for (uint32_t i = 0; i < s->v.n; i++) s->v.order[i] = i % (N_UNITS + 1);
}

static void close_stage(stage *s)
{
    close_model(&s->x);
    close_model(&s->source);
    base_file_close(s->file);
    unlink(s->path);
    close_rig(&s->r);
}

static weir_status timed(void *arg, mem_phase *p, weir_error *err)
{
    stage *s = arg;
    weir_status status = visit_units(&s->v, p, err);
    s->c.now += s->c.seconds[info_of(&s->x).n_slots > 1];
    return status;
}

/* A request whose sums are right. */
static mem_component_report pass(stage *s)
{
    rig *r = &s->r;
    mem_request *q = begin(r, "q");
    mem_run_desc run = {.phase = {.name = "work", .handles = &s->x.h, .n_handles = 1}, .fn = timed, .arg = s};
    ok(r, mem_run_phase(q, &run, &r->err));
    mem_request_report(q, &s->rep);
    mem_request_end(q);
    check_visit(&s->v);
    assert_int_equal(s->rep.n_components, 1);
    return s->rep.components[0];
}

static mem_policy storage_policy(mem_vram_mode mode)
{
    mem_policy p = test_policy();
    p.vram_mode = mode;
    p.host_copies = MEM_OFF;
    return p;
}

/* R5.3: both ways are tried, the quicker one stays, for either kind; R10.1: the report has the times. After
 * many phases it is measured again, and the other way wins if it is quicker by then. */
static void the_quicker_way_stays(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        stage s;
        mem_kind kind = i % 2 == 0 ? MEM_SEQUENCE : MEM_ONESHOT;
        const bool kinds = kind == MEM_ONESHOT;
        bool ahead = i / 2 != 0;
        open_stage(&s, kind, storage_policy(MEM_VRAM_LOW), 4 * MB, true);
        s.c.seconds[ahead] = 6;
        s.c.seconds[!ahead] = 8;
        mem_component_report c = pass(&s);
        for (int n = 1; n < MEASURED; n++) {
            assert_true(c.from_storage);
            assert_string_equal(c.prefetch, n <= 8 ? "kind" : "measuring");
            assert_int_equal(c.copies_ahead, n <= 11 || (n > 14 && n <= 17) ? kinds : !kinds);
            assert_int_equal(c.slot_bytes, (c.copies_ahead ? 3 : 1) * UNIT_BYTES);
            c = pass(&s);
        }
        for (int n = 0; n < 3; n++) {
            c = pass(&s);
            assert_string_equal(c.prefetch, "measured");
            assert_int_equal(c.copies_ahead, ahead);
            assert_int_equal(c.slot_bytes, (ahead ? 3 : 1) * UNIT_BYTES);
            /* Two rounds in a phase. */
            assert_true(c.round_s_with == s.c.seconds[1] / 2 && c.round_s_without == s.c.seconds[0] / 2);
            mem_handle_info h = info_of(&s.x);
            assert_true(h.copies_ahead == ahead && h.round_s_with == c.round_s_with);
            assert_string_equal(h.prefetch, "measured");
        }
        s.c.seconds[ahead] = 9;
        for (int n = 0; n < AGAIN + 12 && i == 0; n++) c = pass(&s); /* a long way, to go once */
        if (i == 0) {
            assert_string_equal(c.prefetch, "measured");
            assert_int_equal(c.copies_ahead, !ahead);
            assert_true((ahead ? c.round_s_with : c.round_s_without) == 4.5);
        }
        close_stage(&s);
    }
}

/* R5.3: as much quicker as measuring is off decides nothing: the kind's way stays. */
static void a_little_is_not_enough(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        stage s;
        mem_component_report c;
        bool kinds = i != 0;
        open_stage(&s, kinds ? MEM_ONESHOT : MEM_SEQUENCE, storage_policy(MEM_VRAM_LOW), 4 * MB, true);
        s.c.seconds[kinds] = 8;
        s.c.seconds[!kinds] = 7.9;
        for (int n = 0; n < MEASURED + 2; n++) c = pass(&s);
        assert_string_equal(c.prefetch, "measured");
        assert_int_equal(c.copies_ahead, kinds);
        close_stage(&s);
    }
}

/* R5.3: what comes from RAM, be it memory of its owner's or copies there, goes by its kind; a setting decides
 * for sequences; where nothing streams there is nothing to say. */
static void only_storage_is_measured(void **state)
{
    (void)state;
    static const struct {
        bool from_file;
        mem_switch copies, asked;
        mem_vram_mode mode;
        const char *prefetch;
    } cases[] = {{false, MEM_OFF, MEM_AUTO, MEM_VRAM_LOW, "kind"},
                 {true, MEM_ON, MEM_AUTO, MEM_VRAM_LOW, "kind"},
                 {true, MEM_OFF, MEM_ON, MEM_VRAM_LOW, "setting"},
                 {true, MEM_OFF, MEM_OFF, MEM_VRAM_LOW, "setting"},
                 {true, MEM_OFF, MEM_AUTO, MEM_VRAM_AUTO, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stage s;
        mem_component_report c;
        mem_policy policy = storage_policy(cases[i].mode);
        policy.host_copies = cases[i].copies;
        policy.prefetch_sequence = cases[i].asked;
        open_stage(&s, MEM_SEQUENCE, policy, 4 * MB, cases[i].from_file);
        s.c.seconds[0] = 8;
        s.c.seconds[1] = 2;
        for (int n = 0; n < MEASURED + 2; n++) {
            c = pass(&s);
            assert_string_equal(c.prefetch, cases[i].prefetch);
            assert_int_equal(c.copies_ahead, cases[i].asked == MEM_ON);
        }
        assert_true(c.round_s_with == 0 && c.round_s_without == 0);
        close_stage(&s);
    }
}

/* R5.3: where two copies do not fit there is nothing to choose, and where the room changes while it is
 * measured, that begins anew. */
static void without_room_for_two(void **state)
{
    (void)state;
    stage s;
    mem_component_report c;
    mem_policy policy = storage_policy(MEM_VRAM_AUTO);
    policy.vram_limit_bytes = 2 * 4096 + UNIT_BYTES;
    open_stage(&s, MEM_SEQUENCE, policy, 4 * MB, true);
    s.c.seconds[0] = 8;
    s.c.seconds[1] = 2;
    for (int n = 0; n < MEASURED + 2; n++) {
        c = pass(&s);
        assert_int_equal(c.slot_bytes, UNIT_BYTES);
    }
    assert_string_equal(c.prefetch, "measured");
    assert_true(!c.copies_ahead && c.round_s_with == 0);
    close_stage(&s);

    policy.vram_limit_bytes = 2 * 4096 + 4 * UNIT_BYTES;
    open_stage(&s, MEM_SEQUENCE, policy, 4 * MB, true);
    s.c.seconds[0] = 8;
    s.c.seconds[1] = 2;
    for (int n = 0; n < 11; n++) c = pass(&s);
    assert_string_equal(c.prefetch, "measuring");
    policy.vram_limit_bytes += UNIT_BYTES;
    ok(&s.r, mem_manager_set_policy(s.r.m, &policy, &s.r.err));
    for (int n = 0; n < 8; n++) c = pass(&s);
    assert_string_equal(c.prefetch, "kind");
    for (int n = 0; n < MEASURED; n++) c = pass(&s);
    assert_string_equal(c.prefetch, "measured");
    /* Its units come in the order in which they stay: three slots, the others resident. */
    assert_true(c.copies_ahead && c.slot_bytes == 3 * UNIT_BYTES && c.loaded_bytes == 4096 + 2 * UNIT_BYTES);
    close_stage(&s);
}

/* R3.6: what an owner allows weights, of a budget of RAM, holds while both ways are tried: neither takes more
 * than the kind's way, which was planned. */
static void a_limit_holds_either_way(void **state)
{
    (void)state;
    static const mem_vram_mode modes[] = {MEM_VRAM_LOW, MEM_VRAM_AUTO};
    for (int i = 0; i < 4; i++) {
        stage s;
        mem_handle_plan plan, now;
        bool other = false;
        mem_kind kind = i / 2 == 0 ? MEM_SEQUENCE : MEM_ONESHOT;
        open_stage(&s, kind, storage_policy(modes[i % 2]), 4 * MB, true);
        s.c.seconds[kind != MEM_ONESHOT] = 6; /* the other way */
        s.c.seconds[kind == MEM_ONESHOT] = 8;
        mem_handle_limit_weights(s.x.h, 4096 + 5 * UNIT_BYTES);
        mem_handle_decide(s.x.h, 4 * MB, 0, &plan);
        for (int n = 0; n < MEASURED + 2; n++) {
            mem_component_report c = pass(&s);
            uint64_t held = c.loaded_bytes + c.slot_bytes;
            assert_true(held >= 4096 + UNIT_BYTES && held <= 4096 + 5 * UNIT_BYTES);
            assert_true(held <= plan.fixed_bytes + plan.resident_bytes + plan.slot_bytes);
            mem_handle_decide(s.x.h, 4 * MB, 0, &now); /* the plan does not follow what is tried */
            assert_true(now.resident_bytes == plan.resident_bytes && now.n_slots == plan.n_slots);
            other |= c.copies_ahead != (kind == MEM_ONESHOT);
        }
        assert_true(other);
        close_stage(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_quicker_way_stays),    cmocka_unit_test(a_little_is_not_enough),
        cmocka_unit_test(only_storage_is_measured), cmocka_unit_test(without_room_for_two),
        cmocka_unit_test(a_limit_holds_either_way),
    };
    return cmocka_run_group_tests_name("memory manager: copies ahead", tests, NULL, NULL);
}
