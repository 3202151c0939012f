/* The few parts of cmocka that the tests of kernels use, for machines that have no cmocka: those tests,
 * cross-compiled (tools/test_neon.sh). Speaks TAP. One test program per source file, so everything is static.
 */
#ifndef WEIR_TEST_CMOCKA_H
#define WEIR_TEST_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func; /* of one test: unused here, must be NULL */
    void *initial_state;
};
#define cmocka_unit_test(f)                                                                                  \
    {                                                                                                        \
#f, f, NULL, NULL, NULL                                                                              \
    }

enum { CROSS_FAILED = 1, CROSS_SKIPPED };
static jmp_buf cross_end;

static inline __attribute__((noreturn)) void cross_fail(const char *file, int line, const char *what)
{
    printf("# %s:%d: %s\n", file, line, what);
    longjmp(cross_end, CROSS_FAILED);
}
#define cross_check(holds, what)     ((holds) ? (void)0 : cross_fail(__FILE__, __LINE__, what))

#define skip()                       longjmp(cross_end, CROSS_SKIPPED)
#define fail()                       cross_fail(__FILE__, __LINE__, "fail()")
#define fail_msg(...)                (printf("# " __VA_ARGS__), printf("\n"), fail())
#define assert_true(x)               cross_check(x, #x)
#define assert_null(x)               cross_check((x) == NULL, #x " is NULL")
#define assert_non_null(x)           cross_check((x) != NULL, #x " is not NULL")
#define assert_ptr_equal(a, b)       cross_check((const void *)(a) == (const void *)(b), #a " == " #b)
#define assert_int_equal(a, b)       cross_check((long long)(a) == (long long)(b), #a " == " #b)
#define assert_string_equal(a, b)    cross_check(strcmp(a, b) == 0, #a " equals " #b)
#define assert_memory_equal(a, b, n) cross_check(memcmp(a, b, n) == 0, #a " equals " #b)

#define print_message(...)           printf("# " __VA_ARGS__)
#define print_error                  print_message

/* A function of its own, so that longjmp meets no changed variables. */
static __attribute__((noinline)) int cross_run_one(const struct CMUnitTest *test)
{
    void *state = test->initial_state;
    int end;
    if (test->setup_func || test->teardown_func) return CROSS_FAILED;
    end = setjmp(cross_end);
    if (end == 0) test->test_func(&state);
    return end;
}
static inline int cross_run(const char *group, const struct CMUnitTest *tests, size_t n,
                            CMFixtureFunction setup, CMFixtureFunction teardown)
{
    int failed = 0;
    void *state = NULL;
    printf("1..%zu\n", n);
    if (setup != NULL && setup(&state) != 0) {
        printf("not ok - %s: setup\n", group);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        int end = cross_run_one(&tests[i]);
        printf("%s %zu - %s: %s%s\n", end == CROSS_FAILED ? "not ok" : "ok", i + 1, group, tests[i].name,
               end == CROSS_SKIPPED ? " # SKIP" : "");
        fflush(stdout);
        failed += end == CROSS_FAILED;
    }
    if (teardown != NULL && teardown(&state) != 0) failed++;
    return failed;
}
#define cmocka_run_group_tests_name(group, tests, setup, teardown)                                           \
    cross_run(group, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#endif
