/* Settings: the order of their sources, the file's format, what is refused. */
#include "base_test.h"

static int clear_environment(void **state)
{
    unsetenv("WEIR_CPU");
    unsetenv("WEIR_IO_BACKEND");
    unsetenv("WEIR_IO_DIRECT");
    unsetenv("WEIR_FAULT");
    unsetenv("WEIR_CGROUP_ROOT");
    unsetenv("WEIR_PROC_ROOT");
    unsetenv("WEIR_MEMORY_ALIAS_ACTIVATIONS");
    return fixture_setup(state);
}

static void assert_setting(const base_settings *s, const char *name, const char *value, const char *source)
{
    assert_string_equal(base_settings_get(s, name), value);
    assert_string_equal(base_settings_source(s, name), source);
}

static void built_in_values(void **state)
{
    fixture *fix = *state;
    base_settings *s = NULL;
    assert_status(base_settings_create(fix->env, NULL, &s, &fix->err), WEIR_OK);
    assert_setting(s, "cpu", "auto", "built-in");
    assert_setting(s, "io.backend", "auto", "built-in");
    assert_setting(s, "memory.alias_activations", "on", "built-in");
    assert_setting(s, "fault", "", "built-in");
    assert_null(base_settings_get(s, "io"));
    assert_null(base_settings_get(s, "io.backends"));
    assert_null(base_settings_get(s, ""));
    assert_null(base_settings_source(s, "nothing"));
    base_settings_destroy(s);
    base_settings_destroy(NULL);
}

static void later_sources_win(void **state)
{
    fixture *fix = *state;
    base_settings *s = NULL;
    write_text(path_in(fix, "conf"), "cpu = ref\nio.backend = threads\nio.direct=off\n");
    setenv("WEIR_IO_BACKEND", "io_uring", 1);
    setenv("WEIR_CPU", "avx2", 1);
    setenv("WEIR_FAULT", "read:0", 1);
    assert_status(base_settings_create(fix->env, path_in(fix, "conf"), &s, &fix->err), WEIR_OK);
    assert_setting(s, "io.direct", "off", "file");
    assert_setting(s, "io.backend", "io_uring", "environment");
    assert_setting(s, "cpu", "avx2", "environment");
    assert_setting(s, "fault", "read:0", "environment");
    assert_setting(s, "proc_root", "/proc", "built-in");
    assert_status(base_settings_set(s, "cpu", "avx512", &fix->err), WEIR_OK);
    assert_setting(s, "cpu", "avx512", "set");
    /* Read once: what the environment says later does not matter. */
    setenv("WEIR_IO_BACKEND", "threads", 1);
    assert_setting(s, "io.backend", "io_uring", "environment");
    assert_int_equal(base_settings_set(s, "cpus", "1", &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(fix->err.message, "cpus"));
    base_settings_destroy(s);
}

static void the_file_may_be_loosely_written(void **state)
{
    fixture *fix = *state;
    base_settings *s = NULL;
    write_text(path_in(fix, "conf"),
               "# heading\n\n   \t\n\tcpu\t=  ref  # why\r\nproc_root = /a#b c \n  fault =\n"
               "#cpu = avx2\ncgroup_root = /x=y\nio.direct = on\nio.direct = off");
    assert_status(base_settings_create(fix->env, path_in(fix, "conf"), &s, &fix->err), WEIR_OK);
    assert_setting(s, "cpu", "ref", "file");
    assert_setting(s, "proc_root", "/a#b c", "file");
    assert_setting(s, "fault", "", "file");
    assert_setting(s, "cgroup_root", "/x=y", "file");
    assert_setting(s, "io.direct", "off", "file");
    base_settings_destroy(s);
}

static void mistakes_name_file_and_line(void **state)
{
    fixture *fix = *state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"cpu = ref\n\nnonsense\n", "line 3: \"nonsense\" is not of the form name = value"},
        {"cpus = ref", "line 1: there is no setting \"cpus\""},
        {"# x\ncp = ref", "line 2: there is no setting \"cp\""},
        {"= ref", "line 1: there is no setting \"\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        base_settings *s = NULL;
        write_text(path_in(fix, "conf"), cases[i].text);
        assert_int_equal(base_settings_create(fix->env, path_in(fix, "conf"), &s, &fix->err),
                         WEIR_ERR_INVALID_ARGUMENT);
        assert_null(s);
        assert_non_null(strstr(fix->err.message, cases[i].message));
        assert_non_null(strstr(fix->err.message, path_in(fix, "conf")));
        assert_int_equal(booked(fix->env), 0);
    }
    base_settings *s = NULL;
    assert_int_equal(base_settings_create(fix->env, path_in(fix, "none"), &s, &fix->err), WEIR_ERR_NOT_FOUND);
}

static void all_names_are_listed(void **state)
{
    fixture *fix = *state;
    base_settings *s = NULL;
    assert_status(base_settings_create(fix->env, NULL, &s, &fix->err), WEIR_OK);
    size_t n = 0;
    const char *name, *help = NULL;
    for (; (name = base_settings_name(n, &help)) != NULL; n++) {
        assert_non_null(base_settings_get(s, name));
        assert_true(strlen(help) > 5);
    }
    assert_true(n >= 7);
    assert_string_equal(base_settings_name(0, NULL), "cpu");
    base_settings_destroy(s);
}

static void creating_fails_cleanly_at_every_allocation(void **state)
{
    fixture *fix = *state;
    write_text(path_in(fix, "conf"), "cpu = ref\n");
    setenv("WEIR_IO_BACKEND", "threads", 1);
    base_settings *s = NULL;
    base_fault_count_on(fix->env, NULL);
    assert_status(base_settings_create(fix->env, path_in(fix, "conf"), &s, &fix->err), WEIR_OK);
    uint64_t sites = base_fault_count(fix->env, BASE_FAULT_HOST_ALLOC);
    assert_int_equal(sites, 5);
    for (uint64_t i = 0; i < sites; i++) {
        base_settings *t = NULL;
        base_fault_clear(fix->env);
        uint64_t before = booked(fix->env);
        base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, i, true);
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_settings_create(fix->env, path_in(fix, "conf"), &t, &fix->err),
                         WEIR_ERR_OUT_OF_MEMORY);
        assert_null(t);
        assert_int_equal(booked(fix->env), before);
        assert_int_equal(base_settings_set(s, "cpu", "x", &fix->err), WEIR_ERR_OUT_OF_MEMORY);
        assert_string_equal(base_settings_get(s, "cpu"), "ref");
    }
    base_fault_clear(fix->env);
    base_settings_destroy(s);
}

#define SETTINGS_TEST(name) cmocka_unit_test_setup_teardown(name, clear_environment, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SETTINGS_TEST(built_in_values),
        SETTINGS_TEST(later_sources_win),
        SETTINGS_TEST(the_file_may_be_loosely_written),
        SETTINGS_TEST(mistakes_name_file_and_line),
        SETTINGS_TEST(all_names_are_listed),
        SETTINGS_TEST(creating_fails_cleanly_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
