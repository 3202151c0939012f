/* Fault points: when they fire, how they are written. */
#include "base_test.h"

static int fired_in(base_env *env, base_fault_site site, int passages, uint64_t *mask)
{
    int n = 0;
    *mask = 0;
    for (int i = 0; i < passages; i++) {
        if (!base_fault(env, site, NULL)) continue;
        *mask |= UINT64_C(1) << i;
        n++;
    }
    return n;
}

static void nothing_fires_unarmed(void **state)
{
    fixture *fix = *state;
    uint64_t mask;
    assert_int_equal(fired_in(fix->env, BASE_FAULT_READ, 10, &mask), 0);
    assert_int_equal(base_fault_count(fix->env, BASE_FAULT_READ), 0);
    assert_status(base_fault_count_on(fix->env, &fix->err), WEIR_OK);
    assert_int_equal(fired_in(fix->env, BASE_FAULT_READ, 10, &mask), 0);
    assert_int_equal(base_fault_count(fix->env, BASE_FAULT_READ), 10);
    assert_int_equal(base_fault_count(fix->env, BASE_FAULT_OPEN), 0);
    base_fault_clear(fix->env);
    base_fault_clear(fix->env);
    assert_null(fix->env->faults);
}

static void once_and_for_good(void **state)
{
    fixture *fix = *state;
    uint64_t mask;
    base_fault_rule once = rule_of(BASE_FAULT_READ, 3, false), good = rule_of(BASE_FAULT_OPEN, 2, true);
    assert_status(base_fault_arm(fix->env, &once, &fix->err), WEIR_OK);
    assert_status(base_fault_arm(fix->env, &good, &fix->err), WEIR_OK);
    assert_int_equal(fired_in(fix->env, BASE_FAULT_READ, 8, &mask), 1);
    assert_int_equal(mask, 1 << 3);
    assert_int_equal(fired_in(fix->env, BASE_FAULT_OPEN, 6, &mask), 4);
    assert_int_equal(mask, 0x3c);
    assert_int_equal(fired_in(fix->env, BASE_FAULT_SUBMIT, 6, &mask), 0);
}

static void ordinals_count_from_the_arming(void **state)
{
    fixture *fix = *state;
    uint64_t mask;
    assert_status(base_fault_count_on(fix->env, &fix->err), WEIR_OK);
    fired_in(fix->env, BASE_FAULT_READ, 5, &mask);
    base_fault_rule a = rule_of(BASE_FAULT_READ, 0, false), b = rule_of(BASE_FAULT_READ, 2, false);
    assert_status(base_fault_arm(fix->env, &a, &fix->err), WEIR_OK);
    assert_status(base_fault_arm(fix->env, &b, &fix->err), WEIR_OK);
    assert_int_equal(fired_in(fix->env, BASE_FAULT_READ, 5, &mask), 2);
    assert_int_equal(mask, 0x5);
}

static void rule_is_handed_over_and_delay_is_slept(void **state)
{
    fixture *fix = *state;
    assert_status(base_fault_parse(fix->env, "completion:1:for_good:errno=5:length=17:delay=30", &fix->err),
                  WEIR_OK);
    base_fault_rule fired = {0};
    assert_false(base_fault(fix->env, BASE_FAULT_COMPLETION, &fired));
    double before = base_now(fix->env);
    assert_true(base_fault(fix->env, BASE_FAULT_COMPLETION, &fired));
    assert_true(base_now(fix->env) - before >= 0.029);
    assert_int_equal(fired.site, BASE_FAULT_COMPLETION);
    assert_int_equal(fired.error, 5);
    assert_int_equal(fired.length, 17);
    assert_int_equal(fired.delay_ms, 30);
    assert_true(fired.for_good);
}

static void several_rules_are_read(void **state)
{
    fixture *fix = *state;
    assert_status(base_fault_parse(fix->env, "", &fix->err), WEIR_OK);
    assert_null(fix->env->faults);
    assert_status(base_fault_parse(fix->env, "read:0,host_alloc:1,thread_create:0:for_good", &fix->err),
                  WEIR_OK);
    base_fault_rule fired = {0};
    assert_true(base_fault(fix->env, BASE_FAULT_READ, &fired));
    assert_int_equal(fired.length, -1);
    assert_int_equal(fired.error, 0);
    assert_false(fired.for_good);
    assert_false(base_fault(fix->env, BASE_FAULT_HOST_ALLOC, NULL));
    assert_true(base_fault(fix->env, BASE_FAULT_HOST_ALLOC, NULL));
    assert_true(base_fault(fix->env, BASE_FAULT_THREAD_CREATE, NULL));
    assert_true(base_fault(fix->env, BASE_FAULT_THREAD_CREATE, NULL));
}

static void nonsense_is_refused(void **state)
{
    fixture *fix = *state;
    static const char *const cases[] = {
        "read",
        "read:",
        "read:x",
        "read:-1",
        "reads:1",
        ":1",
        "read:1:",
        "read:1:often",
        "read:1:errno=",
        "read:1:errno=-2",
        "read:1:delay",
        "read:1,,read:2x",
        "read:1 ",
        "READ:1",
        "read:1:for_goodly",
        "read:99999999999999999999",
        "read:1:errno=5000",
        "read:1:length=9223372036854775808",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fix->err.code = WEIR_OK;
        if (base_fault_parse(fix->env, cases[i], &fix->err) == WEIR_OK)
            print_error("accepted: %s\n", cases[i]);
        assert_int_equal(fix->err.code, WEIR_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(fix->err.message, "site:after"));
        base_fault_clear(fix->env);
    }
    base_fault_rule wrong = rule_of(BASE_FAULT_COUNT, 0, false);
    assert_int_equal(base_fault_arm(fix->env, &wrong, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    base_fault_rule right = rule_of(BASE_FAULT_COPY, 0, false);
    for (int i = 0; i < 16; i++) assert_status(base_fault_arm(fix->env, &right, &fix->err), WEIR_OK);
    assert_int_equal(base_fault_arm(fix->env, &right, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
}

static void every_site_has_a_text_that_parses(void **state)
{
    fixture *fix = *state;
    for (int s = 0; s < BASE_FAULT_COUNT; s++) {
        char text[64];
        snprintf(text, sizeof text, "%s:0", base_fault_text((base_fault_site)s));
        assert_status(base_fault_parse(fix->env, text, &fix->err), WEIR_OK);
        assert_true(base_fault(fix->env, (base_fault_site)s, NULL));
        base_fault_clear(fix->env);
    }
    assert_string_equal(base_fault_text(BASE_FAULT_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_fires_unarmed),
        TEST(once_and_for_good),
        TEST(ordinals_count_from_the_arming),
        TEST(rule_is_handed_over_and_delay_is_slept),
        TEST(several_rules_are_read),
        TEST(nonsense_is_refused),
        TEST(every_site_has_a_text_that_parses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
