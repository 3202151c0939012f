/* Mapped files (R15.1): the right bytes, nothing left behind, and a file that is cut ends in an error. */
#include "base_test.h"

#include <signal.h>
#include <sys/mman.h>

static base_file *pattern_file(fixture *fix, size_t bytes, unsigned char **data)
{
    *data = pattern(bytes);
    write_file(path_in(fix, "m"), *data, bytes);
    base_file *file = NULL;
    assert_status(base_file_open(fix->env, path_in(fix, "m"), &file, &fix->err), WEIR_OK);
    return file;
}

static void any_range(void **state)
{
    fixture *fix = *state;
    enum { BYTES = 50000 };
    unsigned char *data;
    base_file *file = pattern_file(fix, BYTES, &data);
    static const struct {
        uint64_t offset, bytes;
    } ranges[] = {{0, BYTES}, {0, 1}, {4095, 2}, {4096, 4096}, {12345, 20000}, {BYTES - 1, 1}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        base_map *m = NULL;
        assert_status(base_map_create(fix->env, file, ranges[i].offset, ranges[i].bytes, &m, &fix->err),
                      WEIR_OK);
        assert_status(base_map_fetch(m, 0, ranges[i].bytes, &fix->err), WEIR_OK);
        assert_memory_equal(base_map_data(m), data + ranges[i].offset, ranges[i].bytes);
        assert_status(base_map_check(m, &fix->err), WEIR_OK);
        base_map_destroy(m);
    }
    base_map *m = NULL;
    assert_int_equal(base_map_create(fix->env, file, BYTES - 1, 2, &m, &fix->err), WEIR_ERR_TRUNCATED);
    assert_int_equal(base_map_create(fix->env, file, UINT64_MAX, 2, &m, &fix->err), WEIR_ERR_TRUNCATED);
    assert_int_equal(base_map_create(fix->env, file, 0, 0, &m, &fix->err), WEIR_ERR_TRUNCATED);
    base_map_destroy(NULL);
    base_file_close(file);
    free(data);
}

/* Access behind the new end gives zeros, and the next check tells; other signals go where they went before.
 */
static void a_file_that_is_cut(void **state)
{
    fixture *fix = *state;
    enum { BYTES = 1 << 20, LEFT = 10000 };
    unsigned char *data;
    struct sigaction before, within, after;
    base_file *file = pattern_file(fix, BYTES, &data);
    base_map *m = NULL, *other = NULL;
    assert_int_equal(sigaction(SIGBUS, NULL, &before), 0);
    assert_status(base_map_create(fix->env, file, 100, BYTES - 100, &m, &fix->err), WEIR_OK);
    assert_status(base_map_create(fix->env, file, 0, 4096, &other, &fix->err), WEIR_OK);
    assert_int_equal(sigaction(SIGBUS, NULL, &within), 0);
    assert_true(within.sa_handler != before.sa_handler);
    assert_int_equal(truncate(path_in(fix, "m"), LEFT), 0);
    const volatile uint8_t *bytes = base_map_data(m);
    assert_int_equal(bytes[0], data[100]);
    uint32_t sum = 0;
    for (size_t i = 16384; i < BYTES - 100; i += 512) sum += bytes[i];
    assert_int_equal(sum, 0);
    assert_int_equal(base_map_check(m, &fix->err), WEIR_ERR_TRUNCATED);
    assert_non_null(strstr(fix->err.message, "cut short"));
    assert_int_equal(base_map_check(other, &fix->err), WEIR_ERR_FILE_CHANGED);
    assert_int_not_equal(base_map_fetch(m, 0, BYTES - 100, &fix->err), WEIR_OK);
    base_map_destroy(m);
    base_map_destroy(other);
    assert_int_equal(sigaction(SIGBUS, NULL, &after), 0);
    assert_true(after.sa_handler == before.sa_handler);
    base_file_close(file);
    free(data);
}

static _Atomic uint32_t met_by_workers;

/* A worker sums bytes behind the end; the caller waits for one that does, since the first to touch them mends
 * all. */
static void sum_bytes(void *arg, uint32_t worker, size_t begin, size_t end)
{
    const volatile uint8_t *bytes = arg;
    uint32_t sum = 0;
    while (worker == 0 && met_by_workers == 0) usleep(100);
    for (size_t i = begin; i < end; i++) sum += bytes[i * 4096];
    if (worker != 0) met_by_workers++;
    assert_int_equal(sum, 0);
}

/* The threads of a pool, which take no signals of the application, meet the missing pages, too. */
static void a_file_that_is_cut_beneath_a_pool(void **state)
{
    fixture *fix = *state;
    enum { PAGES = 64 };
    for (int round = 0; round < 20; round++) {
        unsigned char *data;
        base_file *file = pattern_file(fix, PAGES * 4096, &data);
        base_map *m = NULL;
        base_pool *pool = NULL;
        assert_status(base_pool_create(fix->env, 3, &pool, &fix->err), WEIR_OK);
        assert_status(base_map_create(fix->env, file, 0, PAGES * 4096, &m, &fix->err), WEIR_OK);
        assert_int_equal(truncate(path_in(fix, "m"), 0), 0);
        met_by_workers = 0;
        base_pool_run(pool, sum_bytes, (void *)(uintptr_t)base_map_data(m), PAGES, 1);
        assert_int_equal(base_map_check(m, &fix->err), WEIR_ERR_TRUNCATED);
        base_map_destroy(m);
        base_pool_destroy(pool);
        base_file_close(file);
        free(data);
    }
}

static volatile sig_atomic_t strange_signals;
static void *strange_page;

static void strange_handler(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    strange_signals++;
    assert_ptr_equal(info->si_addr, strange_page);
    mmap(strange_page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* The application's own handler hears of what is not ours, and stands again afterwards. */
static void the_handler_of_before(void **state)
{
    fixture *fix = *state;
    unsigned char *data;
    base_file *file = pattern_file(fix, 8192, &data);
    struct sigaction ours = {.sa_sigaction = strange_handler, .sa_flags = SA_SIGINFO}, before, after;
    assert_int_equal(sigaction(SIGBUS, &ours, &before), 0);
    base_map *m = NULL;
    assert_status(base_map_create(fix->env, file, 0, 8192, &m, &fix->err), WEIR_OK);
    int fd = open(path_in(fix, "strange"), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
    strange_page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(strange_page, MAP_FAILED);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(*(volatile uint8_t *)strange_page, 0);
    assert_int_equal(strange_signals, 1);
    assert_status(base_map_check(m, &fix->err), WEIR_OK);
    base_map_destroy(m);
    assert_int_equal(sigaction(SIGBUS, &before, &after), 0);
    assert_true(after.sa_sigaction == strange_handler);
    munmap(strange_page, 4096);
    close(fd);
    base_file_close(file);
    free(data);
}

static void refusals(void **state)
{
    fixture *fix = *state;
    unsigned char *data;
    base_file *file = pattern_file(fix, 8192, &data);
    base_map *m = NULL, *maps[200] = {0};
    uint64_t before = booked(fix->env);
    assert_status(base_fault_parse(fix->env, "map:0", &fix->err), WEIR_OK);
    assert_int_equal(base_map_create(fix->env, file, 0, 8192, &m, &fix->err), WEIR_ERR_IO);
    assert_int_equal(booked(fix->env), before);
    base_fault_clear(fix->env);
    /* The table of ranges is finite, and what was refused leaves the others as they are. */
    size_t n = 0;
    while (n < 200 && base_map_create(fix->env, file, 0, 8192, &maps[n], &fix->err) == WEIR_OK) n++;
    assert_int_equal(n, 64);
    assert_int_equal(fix->err.code, WEIR_ERR_UNSUPPORTED);
    for (size_t i = 0; i < n; i++) assert_memory_equal(base_map_data(maps[i]), data, 8192);
    for (size_t i = 0; i < n; i++) base_map_destroy(maps[i]);
    assert_int_equal(booked(fix->env), before);
    assert_status(base_map_create(fix->env, file, 0, 8192, &m, &fix->err), WEIR_OK);
    base_map_destroy(m);
    base_file_close(file);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_range),
        TEST(a_file_that_is_cut),
        TEST(a_file_that_is_cut_beneath_a_pool),
        TEST(the_handler_of_before),
        TEST(refusals),
    };
    return cmocka_run_group_tests_name("base_map", tests, NULL, NULL);
}
