/* Idle models leave the device: those beyond a number, and those that nobody has used for a time (R7.6). */
#include "mgr_test.h"

#define ROOM (8u * (WHOLE + 131072u))

typedef struct shelf {
    rig r;
    model x[5];
    double now;
} shelf;

static double read_clock(void *arg)
{
    return *(const double *)arg;
}

/* Engines a, b and c, of which a has two components; and d. */
static void open_shelf(shelf *s, uint32_t most, const char *pinned)
{
    static const char *const engines[] = {"a", "a", "b", "c", "d"};
    mem_policy policy = test_policy();
    policy.max_resident_models = most;
    policy.pinned_models = pinned;
    policy.gpu_jobs = 2;
    memset(s, 0, sizeof *s);
    dev_sim_options o = device_of(ROOM);
    o.keeps_freed = true;
    open_rig(&s->r, o, policy);
    s->r.env->clock_fn = read_clock;
    s->r.env->clock_arg = &s->now;
    s->now = 100;
    for (int i = 0; i < 5; i++)
        open_model_of(&s->r, s->r.m, &s->x[i], engines[i], i == 1 ? "second" : "first", MEM_ONESHOT, NULL);
}

static void close_shelf(shelf *s)
{
    for (int i = 0; i < 5; i++) close_model(&s->x[i]);
    close_rig(&s->r);
}

/* Which are there: all of a component or nothing of it, "01-3-". */
static void assert_there(shelf *s, const char *wanted)
{
    char there[6] = "-----";
    for (int i = 0; i < 5; i++) {
        mem_handle_info h = info_of(&s->x[i]);
        if (h.loaded_bytes + h.slot_bytes == 0) continue;
        assert_true(h.whole);
        there[i] = (char)('0' + i);
    }
    assert_string_equal(there, wanted);
}

static mem_report use_one(shelf *s, int i)
{
    return check_model(&s->r, s->r.m, &s->x[i]);
}

/* R7.6: no more models than the setting says are on devices; when one more is used, the idle one used longest
 * ago leaves whole, with all its components, and comes back when it is used. Pinned ones never leave for it,
 * and one that is in use does not either. */
static void no_more_than_may(void **state)
{
    (void)state;
    shelf s;
    open_shelf(&s, 2, "d");
    use_one(&s, 0);
    use_one(&s, 1);
    use_one(&s, 2);
    assert_there(&s, "012--"); /* a is one model of two components */
    mem_report rep = use_one(&s, 3);
    assert_there(&s, "--23-");
    assert_int_equal(rep.yielded_bytes, 2 * WHOLE);
    mem_manager_info info = manager_info(&s.r); /* others than us have it */
    assert_true(info.device.taken_bytes - info.device.cache_bytes >= 2 * WHOLE);
    assert_true(info.device.taken_bytes <= 2 * (WHOLE + 131072u));
    assert_string_equal(info_of(&s.x[0]).reason, "gave up for another");
    use_one(&s, 2);
    use_one(&s, 1);
    assert_there(&s, "-12--"); /* c was used longest ago */
    use_one(&s, 4);
    assert_there(&s, "-1--4");
    use_one(&s, 2);
    use_one(&s, 3);
    assert_there(&s, "---34"); /* d is pinned */
    /* c is in use, d is pinned: there are three, until one can leave. */
    mem_request *q = begin(&s.r, "holds");
    mem_phase *p = use(&s.r, q, &s.x[3].h, 1, 0);
    use_one(&s, 2);
    assert_there(&s, "--234");
    ok(&s.r, mem_phase_end(p, &s.r.err));
    mem_request_end(q);
    use_one(&s, 2);
    assert_there(&s, "--2-4");
    /* What one phase lists is there together, whatever the number. */
    mem_handle *both[] = {s.x[0].h, s.x[3].h};
    q = begin(&s.r, "both");
    p = use(&s.r, q, both, 2, 0);
    assert_there(&s, "0--34");
    ok(&s.r, mem_phase_end(p, &s.r.err));
    mem_request_end(q);
    mem_policy any = manager_info(&s.r).policy;
    any.max_resident_models = 0;
    ok(&s.r, mem_manager_set_policy(s.r.m, &any, &s.r.err));
    for (int i = 0; i < 5; i++) use_one(&s, i);
    assert_there(&s, "01234");
    close_shelf(&s);
}

/* R7.6: devices are counted together, where they share a tier. */
static void on_two_devices(void **state)
{
    (void)state;
    rig r;
    dev_device *d2;
    mem_manager *m2;
    model a, b;
    mem_policy policy = test_policy();
    policy.max_resident_models = 1;
    const dev_sim_options o = device_of(2 * WHOLE);
    open_rig(&r, o, policy);
    ok(&r, dev_sim_create(r.env, "ref", 1, &o, &d2, &r.err));
    ok(&r, mem_manager_create(r.env, d2, &policy, r.m, &m2, &r.err));
    open_model_of(&r, r.m, &a, "a", "first", MEM_ONESHOT, NULL);
    open_model_of(&r, m2, &b, "b", "first", MEM_ONESHOT, NULL);
    for (int i = 0; i < 3; i++) {
        check_model(&r, r.m, &a);
        assert_true(info_of(&a).whole && info_of(&b).loaded_bytes == 0);
        check_model(&r, m2, &b);
        assert_true(info_of(&b).whole && info_of(&a).loaded_bytes == 0);
    }
    close_model(&a);
    close_model(&b);
    mem_manager_destroy(m2);
    dev_destroy(d2);
    close_rig(&r);
}

/* R7.6: what leaves after a time is what nobody has used so long, a model with all its components. */
static void after_a_time(void **state)
{
    (void)state;
    shelf s;
    open_shelf(&s, 0, "c");
    for (int i = 0; i < 5; i++) {
        use_one(&s, i);
        s.now += 10;
    }
    assert_there(&s, "01234"); /* at 100, 110, 120, 130, 140; it is 150 */
    assert_int_equal(mem_manager_unload_idle(s.r.m, 41, false), 0);
    assert_int_equal(mem_manager_unload_idle(s.r.m, 40, false), 2 * WHOLE); /* a was used at 110 */
    assert_there(&s, "--234");
    mem_request *q = begin(&s.r, "holds");
    mem_phase *p = use(&s.r, q, &s.x[2].h, 1, 0);
    assert_int_equal(mem_manager_unload_idle(s.r.m, 5, false), WHOLE); /* b is in use, c pinned */
    assert_there(&s, "--23-");
    ok(&s.r, mem_phase_end(p, &s.r.err));
    mem_request_end(q);
    s.now += 7;
    assert_int_equal(mem_manager_unload_idle(s.r.m, 5, true), 2 * WHOLE);
    assert_there(&s, "-----");
    for (int i = 0; i < 5; i++) use_one(&s, i);
    assert_there(&s, "01234");
    assert_int_equal(mem_manager_unload_idle(s.r.m, 0, true), 5 * WHOLE);
    close_shelf(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_than_may),
        cmocka_unit_test(on_two_devices),
        cmocka_unit_test(after_a_time),
    };
    return cmocka_run_group_tests_name("memory manager: idle models", tests, NULL, NULL);
}
