/* Measuring storage and remembering it: what must hold for any storage, and every way the file that remembers
 * can be wrong. No figure of this machine is expected. */
#include "base_test.h"

#include "base/base_internal.h"

#include <time.h>

static const base_aio_options plain = {.backend = BASE_AIO_AUTO, .depth = 8};

/* A file of some MiB, larger than a read. */
static base_file *some_file(fixture *fix, const char *name, size_t bytes)
{
    char *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++) data[i] = (char)(i * 31 + i / 4096);
    FILE *out = fopen(path_in(fix, name), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    fclose(out);
    free(data);
    base_file *file = NULL;
    assert_status(base_file_open(fix->env, path_in(fix, name), &file, &fix->err), WEIR_OK);
    return file;
}

static void measured(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", (6 << 20) + 777);
    base_storage s = {0};
    assert_status(base_storage_measure(fix->env, file, &plain, 0.1, UINT64_C(1) << 30, &s, &fix->err),
                  WEIR_OK);
    assert_true(s.bytes_per_s > 0 && s.random_bytes_per_s > 0 && s.memory_bytes_per_s > 0);
    assert_true(s.random_bytes_per_s <= s.bytes_per_s);
    assert_true(s.latency_s > 0 && s.latency_s < 60);
    assert_true(s.depth >= 1 && s.depth <= 32);
    assert_true(s.read_bytes >= 4096 && s.read_bytes * s.depth <= (UINT64_C(32) << 20));
    assert_true(s.half_rate_bytes >= 65536 && s.half_rate_bytes <= (UINT64_C(8) << 20));
    assert_true(s.when > 1700000000);
    struct stat st;
    assert_int_equal(stat(path_in(fix, "m"), &st), 0);
    assert_int_equal(s.device, st.st_dev);
    base_file_close(file);
}

static void measured_file_of_a_few_bytes(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 5);
    base_storage s = {0};
    assert_status(base_storage_measure(fix->env, file, &plain, 0.02, 1 << 20, &s, &fix->err), WEIR_OK);
    assert_true(s.bytes_per_s > 0);
    base_file_close(file);
}

/* A small budget gives a smaller block; one of nothing is refused, and nothing stays behind. */
static void measured_within_a_budget(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 3 << 20);
    base_storage s = {0};
    assert_status(base_ledger_set_limit(fix->env, UINT64_C(6) << 20, &fix->err), WEIR_OK);
    assert_status(base_storage_measure(fix->env, file, &plain, 0.05, 1 << 28, &s, &fix->err), WEIR_OK);
    assert_true(s.read_bytes * s.depth <= (UINT64_C(4) << 20));
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_true(v.peak_bytes <= UINT64_C(6) << 20);
    assert_status(base_ledger_set_limit(fix->env, UINT64_C(300) << 10, &fix->err), WEIR_OK);
    uint64_t before = v.bytes;
    assert_int_equal(base_storage_measure(fix->env, file, &plain, 0.05, 1 << 28, &s, &fix->err),
                     WEIR_ERR_BUDGET);
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.bytes, before);
    base_ledger_set_limit(fix->env, UINT64_MAX, NULL);
    base_file_close(file);
}

/* Every way of reading is measured, with every way of refusing the better one. */
static void measured_where_better_ways_are_refused(void **state)
{
    fixture *fix = *state;
    assert_status(base_fault_parse(fix->env, "direct_io:0:for_good,io_uring:0:for_good", &fix->err), WEIR_OK);
    base_file *file = some_file(fix, "m", 3 << 20);
    assert_int_equal(base_file_direct_align(file), 0);
    base_storage s = {0};
    assert_status(base_storage_measure(fix->env, file, &plain, 0.05, 1 << 28, &s, &fix->err), WEIR_OK);
    assert_true(s.buffered);
    assert_true(s.threads); /* what read, not what was asked for */
    assert_true(s.bytes_per_s > 0);
    base_fault_clear(fix->env);
    base_file_close(file);
}

/* ---- storage that is made up: its own clock moves when a read is queued and when it arrives ---- */

#define SIM_QUEUE 64

typedef struct sim {
    double now;
    double latency;  /* of any read; all wait side by side */
    double service;  /* of a queued read, whatever its size; one after the other */
    double bunch;    /* not 0: reads arrive at multiples of it only */
    double queueing; /* what the queue itself takes for each read */
    double free_at;  /* when it can serve the next one */
    double due[SIM_QUEUE];
    uint32_t first, n;
} sim;

static double sim_clock(void *arg)
{
    return ((sim *)arg)->now;
}

static void sim_submit(void *arg)
{
    sim *s = arg;
    s->now += s->queueing;
    s->free_at = (s->free_at > s->now ? s->free_at : s->now) + s->service;
    assert_true(s->n < SIM_QUEUE);
    double due = s->free_at + s->latency;
    if (s->bunch > 0) due = (double)((uint64_t)(due / s->bunch) + 1) * s->bunch;
    s->due[(s->first + s->n++) % SIM_QUEUE] = due;
}

/* Reads that arrive, in the order in which they were queued, and those past the queue. */
static void sim_read(void *arg)
{
    sim *s = arg;
    double due = s->now + s->latency;
    if (s->n != 0) {
        due = s->due[s->first];
        s->first = (s->first + 1) % SIM_QUEUE;
        s->n--;
    }
    if (due > s->now) s->now = due;
}

static void measure_sim(fixture *fix, sim *s, base_storage *out)
{
    base_file *file = some_file(fix, "m", 8 << 20);
    const base_aio_options threads = {.backend = BASE_AIO_THREADS, .depth = 64};
    const base_fault_rule rules[] = {
        {.site = BASE_FAULT_SUBMIT, .for_good = true, .passes = true, .hold = sim_submit, .hold_arg = s},
        {.site = BASE_FAULT_READ, .for_good = true, .passes = true, .hold = sim_read, .hold_arg = s}};
    for (int i = 0; i < 2; i++) assert_status(base_fault_arm(fix->env, &rules[i], &fix->err), WEIR_OK);
    fix->env->clock_fn = sim_clock;
    fix->env->clock_arg = s;
    assert_status(base_storage_measure(fix->env, file, &threads, 1.2, UINT64_C(8) << 30, out, &fix->err),
                  WEIR_OK);
    fix->env->clock_fn = NULL;
    base_fault_clear(fix->env);
    assert_true(out->random_bytes_per_s > 0 && out->random_bytes_per_s <= out->bytes_per_s);
    base_file_close(file);
}

static void assert_about(double got, double wanted, double share)
{
    if (!(got > wanted * (1 - share) && got < wanted * (1 + share)))
        fail_msg("%g, wanted about %g", got, wanted);
}

/* Slow storage gets the largest reads, as many at once as it has use for, and the rate is what was measured
 * with just these. */
static void slow_storage_is_measured_as_it_is_read(void **state)
{
    static const struct {
        sim s;
        double rate;
        uint32_t depth;
        double share; /* that the rate may be off */
        double most_seconds;
    } cases[] = {
        /* A network: late, but as much at once as one likes. */
        {{.latency = 0.04}, 8 * 0x1p22 / 0.04, 8, 1e-6, 3},
        /* Late and narrow: two reads at once hide the latency. */
        {{.latency = 0.04, .service = 0.042}, 0x1p22 / 0.042, 2, 1e-6, 3},
        /* A card: at once, but narrow. */
        {{.latency = 0.0002, .service = 0.05}, 0x1p22 / 0.05, 2, 1e-6, 4},
        /* A quota that is handed out ten times a second. */
        {{.latency = 0.0002, .service = 0.028, .bunch = 0.1}, 0x1p22 / 0.028, 4, 0.05, 4},
        /* So late that there is time for one look only: the small read, and two rounds of large ones. */
        {{.latency = 3}, 2 * 0x1p22 / 3, 2, 1e-6, 9.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sim s = cases[i].s;
        base_storage got = {0};
        measure_sim(*state, &s, &got);
        assert_true(got.slow && !got.in_memory);
        assert_int_equal(got.read_bytes, 4 << 20);
        assert_int_equal(got.depth, cases[i].depth);
        assert_about(got.bytes_per_s, cases[i].rate, cases[i].share);
        assert_about(got.latency_s, cases[i].s.latency, 1e-6);
        assert_true(s.now < cases[i].most_seconds);
    }
}

/* A disk that wants large reads, two at once, and is not slow. */
static void quick_storage_is_not_slow(void **state)
{
    sim s = {.latency = 0.0001, .service = 0.0005};
    base_storage got = {0};
    measure_sim(*state, &s, &got);
    assert_false(got.slow);
    assert_int_equal(got.read_bytes, 4 << 20);
    assert_int_equal(got.depth, 2);
    assert_about(got.bytes_per_s, 0x1p22 / 0.0005, 0.01);
    assert_true(s.now < 2);
}

/* The time of a small read is the storage's, not that of a queue whose threads must be woken. */
static void the_latency_is_that_of_the_storage(void **state)
{
    sim s = {.latency = 3e-6, .queueing = 1e-4};
    base_storage got = {0};
    measure_sim(*state, &s, &got);
    assert_about(got.latency_s, 3e-6, 1e-3);
}

/* X5: each site fails once; the documented error or a result, and nothing is left in the ledger. */
static void measuring_fails_cleanly(void **state)
{
    fixture *fix = *state;
    static const char *const sites[] = {"host_alloc", "submit", "completion", "read"};
    uint32_t failed = 0;
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        for (int at = 0; at < 6; at++) {
            base_file *file = some_file(fix, "m", 2 << 20);
            base_ledger_view before, after;
            base_storage s = {0};
            char rule[64];
            snprintf(rule, sizeof rule, "%s:%d", sites[i], at);
            base_ledger_read(fix->env, &before);
            assert_status(base_fault_parse(fix->env, rule, &fix->err), WEIR_OK);
            weir_status status = base_storage_measure(fix->env, file, &plain, 0.01, 1 << 22, &s, &fix->err);
            if (status != WEIR_OK) {
                failed++;
                assert_true(status == WEIR_ERR_IO || status == WEIR_ERR_OUT_OF_MEMORY);
                assert_true(fix->err.message[0] != 0);
            }
            base_fault_clear(fix->env);
            base_ledger_read(fix->env, &after);
            assert_int_equal(after.bytes, before.bytes);
            base_file_close(file);
        }
    }
    assert_true(failed > 6);
}

static base_storage sample(fixture *fix, const base_file *file, int64_t when)
{
    base_storage s;
    bool by_threads;
    assert_int_equal(base_aio_ask_threads(fix->env, &plain, &by_threads, NULL), WEIR_OK);
    assert_int_equal(base_storage_identify(file, &plain, by_threads, &s, NULL), WEIR_OK);
    s.bytes_per_s = 1.5e9;
    s.random_bytes_per_s = 1.25e9;
    s.latency_s = 4.5e-5;
    s.memory_bytes_per_s = 9e9;
    s.depth = 8;
    s.read_bytes = 1 << 20;
    s.half_rate_bytes = 300000;
    s.when = when;
    return s;
}

static void remembered(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 4096);
    char folder[256];
    snprintf(folder, sizeof folder, "%s/new/weir", fix->folder);
    base_storage s = sample(fix, file, time(NULL) - 100), got = {0};
    assert_false(base_storage_recall(fix->env, folder, file, &plain, &got));
    assert_status(base_storage_remember(fix->env, folder, &s, &fix->err), WEIR_OK);
    assert_true(base_storage_recall(fix->env, folder, file, &plain, &got));
    assert_true(got.bytes_per_s == 1.5e9 && got.random_bytes_per_s == 1.25e9 && got.latency_s == 4.5e-5);
    assert_int_equal(got.depth, 8);
    assert_int_equal(got.read_bytes, 1 << 20);
    assert_int_equal(got.half_rate_bytes, 300000);
    assert_int_equal(got.when, s.when);
    if (s.threads) skip(); /* io_uring is refused here: there is no other way */
    /* Another way of reading is another entry, and both stay. */
    base_aio_options threads = {.backend = BASE_AIO_THREADS, .depth = 8};
    assert_false(base_storage_recall(fix->env, folder, file, &threads, &got));
    base_storage t = s;
    t.threads = true;
    t.bytes_per_s = 7e8;
    assert_status(base_storage_remember(fix->env, folder, &t, &fix->err), WEIR_OK);
    assert_true(base_storage_recall(fix->env, folder, file, &threads, &got) && got.bytes_per_s == 7e8);
    assert_true(base_storage_recall(fix->env, folder, file, &plain, &got) && got.bytes_per_s == 1.5e9);
    /* Where io_uring is refused, the plain options read by threads. */
    assert_status(base_fault_parse(fix->env, "io_uring:0:for_good", &fix->err), WEIR_OK);
    assert_true(base_storage_recall(fix->env, folder, file, &plain, &got) && got.bytes_per_s == 7e8);
    base_fault_clear(fix->env);
    /* A newer one takes the older one's place. */
    s.bytes_per_s = 2e9;
    assert_status(base_storage_remember(fix->env, folder, &s, &fix->err), WEIR_OK);
    assert_true(base_storage_recall(fix->env, folder, file, &plain, &got) && got.bytes_per_s == 2e9);
    base_file_close(file);
}

static void rewrite(const char *path, const char *text)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static void what_is_wrong_is_not_remembered(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 4096);
    char path[256], text[512], line[400];
    snprintf(path, sizeof path, "%s/%s", fix->folder, BASE_STORAGE_FILE);
    base_storage s = sample(fix, file, time(NULL)), got;
    snprintf(line, sizeof line, "%llu %llu %d %d 1.5e9 1.2e9 4e-5 9e9 8 1048576 300000 0 0 %lld",
             (unsigned long long)s.device, (unsigned long long)s.fs_type, s.buffered, s.threads,
             (long long)s.when);
    snprintf(text, sizeof text, "weir-storage 2\n%s\n", line);
    rewrite(path, text);
    assert_true(
        base_storage_recall(fix->env, fix->folder, file, &plain, &got)); /* the line itself is right */
    static const char *const heads[] = {"weir-storage 1\n", "weir-storage 2", "", "\n", "weir-storage 2 \n"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        snprintf(text, sizeof text, "%s%s\n", heads[i], line);
        rewrite(path, text);
        assert_false(base_storage_recall(fix->env, fix->folder, file, &plain, &got));
    }
    /* Cut anywhere, followed by more, or with figures that nothing has. */
    for (size_t n = 0; n < strlen(line) - 9; n++) {
        snprintf(text, sizeof text, "weir-storage 2\n%.*s", (int)n, line);
        rewrite(path, text);
        assert_false(base_storage_recall(fix->env, fix->folder, file, &plain, &got));
    }
    snprintf(text, sizeof text, "weir-storage 2\n%s 1\n", line);
    rewrite(path, text);
    assert_false(base_storage_recall(fix->env, fix->folder, file, &plain, &got));
    static const char *const figures[] = {
        "nan 1 1 1 8 1048576 300000 0 0",     "1e9 1e9 -1 9e9 8 1048576 300000 0 0",
        "1e9 1e9 0 9e9 0 1048576 300000 0 0", "1e9 inf 0 9e9 8 1048576 300000 0 0",
        "1e9 1e9 0 9e9 8 1 300000 0 0",       "1e9 1e9 0 9e9 300 4096 300000 0 0",
        "-1e9 1e9 0 9e9 8 4096 300000 0 0",   "1e9 1e9 0 9e9 8 4096 1 0 0"};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        snprintf(text, sizeof text, "weir-storage 2\n%llu %llu %d %d %s %lld\n", (unsigned long long)s.device,
                 (unsigned long long)s.fs_type, s.buffered, s.threads, figures[i], (long long)s.when);
        rewrite(path, text);
        assert_false(base_storage_recall(fix->env, fix->folder, file, &plain, &got));
    }
    base_file_close(file);
}

static void what_is_old_is_not_remembered(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 4096);
    base_storage got;
    const int64_t day = 24 * 3600, now = time(NULL);
    const struct {
        int64_t when;
        bool good;
    } cases[] = {{now - 13 * day, true}, {now - 15 * day, false}, {now + day, false}, {0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        base_storage s = sample(fix, file, cases[i].when);
        assert_status(base_storage_remember(fix->env, fix->folder, &s, &fix->err), WEIR_OK);
        assert_int_equal(base_storage_recall(fix->env, fix->folder, file, &plain, &got), cases[i].good);
    }
    base_file_close(file);
}

/* A folder that cannot be written to is an error of remembering only. */
static void remembering_where_nothing_can_be_kept(void **state)
{
    fixture *fix = *state;
    base_file *file = some_file(fix, "m", 4096);
    base_storage s = sample(fix, file, time(NULL)), got;
    char folder[256];
    snprintf(folder, sizeof folder, "%s/m", fix->folder); /* a file has the name */
    assert_int_not_equal(base_storage_remember(fix->env, folder, &s, &fix->err), WEIR_OK);
    assert_false(base_storage_recall(fix->env, folder, file, &plain, &got));
    snprintf(folder, sizeof folder, "%s/a/b/c", fix->folder); /* more than one folder is missing */
    assert_int_not_equal(base_storage_remember(fix->env, folder, &s, &fix->err), WEIR_OK);
    base_file_close(file);
}

static void the_file_of_a_folder(void **state)
{
    fixture *fix = *state;
    char *name = NULL;
    assert_int_equal(base_storage_pick(fix->env, fix->folder, &name, &fix->err), WEIR_ERR_NOT_FOUND);
    base_file_close(some_file(fix, "small", 10));
    base_file_close(some_file(fix, "large", 1000));
    base_file_close(some_file(fix, "other", 20));
    assert_status(base_storage_pick(fix->env, fix->folder, &name, &fix->err), WEIR_OK);
    assert_string_equal(name, path_in(fix, "large"));
    base_free(fix->env, name);
    assert_status(base_storage_pick(fix->env, path_in(fix, "small"), &name, &fix->err), WEIR_OK);
    assert_string_equal(name, path_in(fix, "small"));
    base_free(fix->env, name);
    char buf[24];
    assert_string_equal(base_storage_fs_text(0xef53, buf), "ext4");
    assert_string_equal(base_storage_fs_text(0x12345678, buf), "0x12345678");
}

static void the_cache_folder(void **state)
{
    fixture *fix = *state;
    base_settings *s = NULL;
    setenv("XDG_CACHE_HOME", "/some/where", 1);
    setenv("HOME", "/home/x", 1);
    assert_status(base_settings_create(fix->env, NULL, &s, &fix->err), WEIR_OK);
    static const struct {
        const char *set, *xdg, *home, *want;
    } cases[] = {{"auto", "/some/where", "/home/x", "/some/where/weir"},
                 {"auto", "relative", "/home/x", "/home/x/.cache/weir"},
                 {"auto", NULL, "/home/x", "/home/x/.cache/weir"},
                 {"auto", NULL, NULL, ""},
                 {"off", "/some/where", "/home/x", ""},
                 {"/tmp/q", "/some/where", "/home/x", "/tmp/q"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].xdg != NULL)
            setenv("XDG_CACHE_HOME", cases[i].xdg, 1);
        else
            unsetenv("XDG_CACHE_HOME");
        if (cases[i].home != NULL)
            setenv("HOME", cases[i].home, 1);
        else
            unsetenv("HOME");
        assert_status(base_settings_set(s, "cache_folder", cases[i].set, &fix->err), WEIR_OK);
        char *got = base_settings_cache_folder(s, &fix->err);
        assert_string_equal(got, cases[i].want);
        base_free(fix->env, got);
    }
    base_settings_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(measured),
        TEST(measured_file_of_a_few_bytes),
        TEST(measured_within_a_budget),
        TEST(measured_where_better_ways_are_refused),
        TEST(slow_storage_is_measured_as_it_is_read),
        TEST(quick_storage_is_not_slow),
        TEST(the_latency_is_that_of_the_storage),
        TEST(measuring_fails_cleanly),
        TEST(remembered),
        TEST(what_is_wrong_is_not_remembered),
        TEST(what_is_old_is_not_remembered),
        TEST(remembering_where_nothing_can_be_kept),
        TEST(the_file_of_a_folder),
        TEST(the_cache_folder),
    };
    return cmocka_run_group_tests_name("base_probe", tests, NULL, NULL);
}
