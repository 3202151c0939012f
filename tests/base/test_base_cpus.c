/* Processor lists, and who is bound where. */
#define _GNU_SOURCE
#include "base_test.h"

#include <sched.h>
#include <stdatomic.h>

static uint32_t first_allowed(void)
{
    cpu_set_t set;
    uint32_t i = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET(i, &set)) i++;
    return i;
}

static void lists_are_read(void **state)
{
    fixture *fix = *state;
    base_cpus cpus;
    char text[32], list[64];
    uint32_t one = first_allowed();
    assert_status(base_cpus_parse("all", &cpus, &fix->err), WEIR_OK);
    assert_int_equal(cpus.n, 0);
    assert_string_equal(base_cpus_text(&cpus, list, sizeof list), "all");
    snprintf(text, sizeof text, "%u,%u-%u", one, one, one);
    assert_status(base_cpus_parse(text, &cpus, &fix->err), WEIR_OK);
    assert_int_equal(cpus.n, 1);
    assert_int_equal(cpus.index[0], one);
    cpus = (base_cpus){.n = 5, .index = {0, 2, 3, 4, 9}};
    assert_string_equal(base_cpus_text(&cpus, list, sizeof list), "0,2-4,9");
    assert_string_equal(base_cpus_text(&cpus, list, 4), "0,2"); /* cut, and ended */
}

static void bad_lists_are_refused(void **state)
{
    fixture *fix = *state;
    static const char *const bad[] = {
        "",    ",",   "0,", ",0",   "a",     "0-",   "-0",         "3-1",
        "0 1", "0x1", "+1", "0,,1", "0-1-2", "1024", "0-99999999", "99999999999999999999"};
    base_cpus cpus;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(base_cpus_parse(bad[i], &cpus, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(fix->err.message, "a list such as 0,2-3"));
        assert_int_equal(cpus.n, 0);
    }
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    if (CPU_ISSET(1023, &set)) skip();
    assert_int_equal(base_cpus_parse("0-1023", &cpus, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(fix->err.message, "may not use processor"));
}

/* A mask that shrank, as by taskset or a cpuset: the processor left out is refused, and counted no more. */
static void the_mask_of_the_process_counts(void **state)
{
    fixture *fix = *state;
    cpu_set_t before, one;
    base_cpus cpus;
    char text[16];
    uint32_t first = first_allowed(), other = first + 1;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    while (other < 1024 && !CPU_ISSET(other, &before)) other++;
    if (other == 1024) skip();
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    snprintf(text, sizeof text, "%u", other);
    weir_status status = base_cpus_parse(text, &cpus, &fix->err);
    uint32_t count = base_cpu_count();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(status, WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(count, 1);
    assert_status(base_cpus_parse(text, &cpus, &fix->err), WEIR_OK);
}

typedef struct masks {
    cpu_set_t of[4];
    _Atomic uint32_t seen;
} masks;

static void note_mask(void *arg, uint32_t worker, size_t begin, size_t end)
{
    masks *m = arg;
    (void)begin;
    (void)end;
    sched_getaffinity(0, sizeof m->of[worker], &m->of[worker]);
    atomic_fetch_or(&m->seen, 1u << worker);
}

static void workers_are_bound_and_the_caller_only_meanwhile(void **state)
{
    fixture *fix = *state;
    uint32_t first = first_allowed();
    base_cpus cpus = {.n = 1, .index = {(uint16_t)first}};
    base_pool *pool = NULL;
    base_affinity saved;
    masks m = {.seen = 0};
    cpu_set_t before, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_status(base_pool_create(fix->env, 3, &pool, &fix->err), WEIR_OK); /* more than processors */
    base_pool_bind(pool, &cpus);
    base_cpus_bind(&cpus, 0, 3, &saved);
    for (int i = 0; i < 20000 && m.seen != 7; i++) base_pool_run(pool, note_mask, &m, 64, 1);
    base_cpus_restore(&saved);
    base_pool_destroy(pool);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&before, &now));
    assert_true(m.seen & 1);
    for (int i = 0; i < 3; i++)
        if (m.seen >> i & 1) assert_true(CPU_COUNT(&m.of[i]) == 1 && CPU_ISSET(first, &m.of[i]));
    base_cpus_bind(&(base_cpus){.n = 0}, 0, 1, &saved); /* no list: left alone */
    base_cpus_restore(&saved);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&before, &now));
}

/* Workers that are there follow another list, and are free again without one. */
static void workers_are_bound_anew(void **state)
{
    fixture *fix = *state;
    uint32_t first = first_allowed();
    base_cpus one = {.n = 1, .index = {(uint16_t)first}}, all = {.n = 0};
    base_pool *pool = NULL;
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_status(base_pool_create(fix->env, 2, &pool, &fix->err), WEIR_OK);
    for (int turn = 0; turn < 4; turn++) {
        masks m = {.seen = 0};
        base_pool_bind(pool, turn % 2 == 0 ? &one : &all);
        if (turn == 2) assert_status(base_pool_resize(pool, 3, &fix->err), WEIR_OK);
        for (int i = 0; i < 200000 && (m.seen & 2) == 0; i++) base_pool_run(pool, note_mask, &m, 64, 1);
        assert_true(m.seen & 2);
        for (int i = 1; i < 3; i++) {
            if ((m.seen >> i & 1) == 0) continue;
            if (turn % 2 == 0) assert_true(CPU_COUNT(&m.of[i]) == 1 && CPU_ISSET(first, &m.of[i]));
            if (turn % 2 == 1) assert_true(CPU_EQUAL(&m.of[i], &before));
        }
    }
    base_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lists_are_read),
        TEST(bad_lists_are_refused),
        TEST(the_mask_of_the_process_counts),
        TEST(workers_are_bound_and_the_caller_only_meanwhile),
        TEST(workers_are_bound_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
