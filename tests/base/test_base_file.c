/* Files: opening, exact reads, changes underneath, whole small files, output files. */
#include "base_test.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define LEN 300007

static base_file *open_pattern(fixture *fix, unsigned char **data)
{
    base_file *f = NULL;
    *data = pattern(LEN);
    write_file(path_in(fix, "data"), *data, LEN);
    assert_status(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_OK);
    return f;
}

static void reads_give_the_bytes_of_the_file(void **state)
{
    fixture *fix = *state;
    unsigned char *data, buf[5000];
    base_file *f = open_pattern(fix, &data);
    assert_int_equal(base_file_size(f), LEN);
    assert_string_equal(base_file_path(f), path_in(fix, "data"));
    base_rng rng;
    base_rng_seed(&rng, 5, 5);
    for (int i = 0; i < 300; i++) {
        size_t len = base_rng_u32(&rng) % sizeof buf;
        uint64_t offset = base_rng_u32(&rng) % (LEN - len);
        assert_status(base_file_read(f, offset, buf, len, &fix->err), WEIR_OK);
        assert_memory_equal(buf, data + offset, len);
        if (i % 7 == 0) base_file_drop_cache(f, offset, len);
    }
    assert_status(base_file_read(f, LEN - 1, buf, 1, &fix->err), WEIR_OK);
    assert_status(base_file_read(f, LEN, buf, 0, &fix->err), WEIR_OK);
    assert_status(base_file_check(f, &fix->err), WEIR_OK);
    base_file_close(f);
    base_file_close(NULL);
    free(data);
}

static void reads_beyond_the_end_are_truncation(void **state)
{
    fixture *fix = *state;
    unsigned char *data, buf[100];
    base_file *f = open_pattern(fix, &data);
    assert_int_equal(base_file_read(f, LEN - 10, buf, 11, &fix->err), WEIR_ERR_TRUNCATED);
    assert_non_null(strstr(fix->err.message, "wanted 11 bytes at offset 299997, got 10"));
    assert_non_null(strstr(fix->err.message, path_in(fix, "data")));
    assert_int_equal(base_file_read(f, LEN + 5, buf, 1, NULL), WEIR_ERR_TRUNCATED);
    assert_int_equal(base_file_read(f, UINT64_MAX - 5, buf, 10, &fix->err), WEIR_ERR_TRUNCATED);
    assert_int_equal(base_file_read(f, INT64_MAX, buf, 1, &fix->err), WEIR_ERR_TRUNCATED);
    base_file_close(f);
    free(data);
}

static void opening_tells_the_reason(void **state)
{
    fixture *fix = *state;
    base_file *f = NULL;
    assert_int_equal(base_file_open(fix->env, path_in(fix, "none"), &f, &fix->err), WEIR_ERR_NOT_FOUND);
    assert_non_null(strstr(fix->err.message, "none"));
    assert_int_equal(base_file_open(fix->env, fix->folder, &f, &fix->err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(fix->err.message, "directory"));
    write_text(path_in(fix, "empty"), "");
    assert_int_equal(base_file_open(fix->env, path_in(fix, "empty"), &f, &fix->err), WEIR_ERR_FORMAT);
    assert_non_null(strstr(fix->err.message, "empty"));
    assert_int_equal(mkfifo(path_in(fix, "pipe"), 0600), 0);
    assert_int_equal(base_file_open(fix->env, path_in(fix, "pipe"), &f, &fix->err), WEIR_ERR_FORMAT);
    write_text(path_in(fix, "plain"), "x");
    char below[600];
    snprintf(below, sizeof below, "%s/below", path_in(fix, "plain"));
    assert_int_equal(base_file_open(fix->env, below, &f, &fix->err), WEIR_ERR_NOT_FOUND);
    assert_true(base_file_exists(path_in(fix, "plain")));
    assert_false(base_file_exists(path_in(fix, "none")));
    assert_null(f);
    assert_int_equal(booked(fix->env), 0);
}

static void missing_rights_are_permission(void **state)
{
    fixture *fix = *state;
    base_file *f = NULL;
    write_text(path_in(fix, "locked"), "secret");
    assert_int_equal(chmod(path_in(fix, "locked"), 0), 0);
    assert_int_equal(chmod(fix->folder, 0755), 0);
    bool root = geteuid() == 0;
    if (root && seteuid(65534) != 0) skip();
    weir_status status = base_file_open(fix->env, path_in(fix, "locked"), &f, &fix->err);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, WEIR_ERR_PERMISSION);
    assert_non_null(strstr(fix->err.message, "owner and mode"));
}

static void changes_are_noticed(void **state)
{
    fixture *fix = *state;
    unsigned char *data, buf[100];
    base_file *f = open_pattern(fix, &data);
    struct timespec times[2] = {{.tv_sec = 1000, .tv_nsec = 5}, {.tv_sec = 1000, .tv_nsec = 5}};
    assert_int_equal(utimensat(AT_FDCWD, path_in(fix, "data"), times, 0), 0);
    assert_int_equal(base_file_check(f, &fix->err), WEIR_ERR_FILE_CHANGED);
    assert_int_equal(base_file_read(f, 0, buf, 100, &fix->err), WEIR_ERR_FILE_CHANGED);
    base_file_close(f);

    assert_status(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_OK);
    assert_status(base_file_read(f, 0, buf, 100, &fix->err), WEIR_OK);
    assert_int_equal(truncate(path_in(fix, "data"), 50), 0);
    assert_int_equal(base_file_read(f, 0, buf, 100, &fix->err), WEIR_ERR_FILE_CHANGED);
    assert_non_null(strstr(fix->err.message, "then 300007 bytes, now 50"));
    assert_non_null(strstr(fix->err.message, "wanted 100 bytes at offset 0, got 50"));
    assert_int_equal(base_file_read(f, 0, buf, 10, &fix->err), WEIR_ERR_FILE_CHANGED);
    base_file_close(f);
    free(data);
}

static void a_replaced_file_is_noticed_but_stays_readable(void **state)
{
    fixture *fix = *state;
    unsigned char *data, buf[100];
    base_file *f = open_pattern(fix, &data);
    write_text(path_in(fix, "other"), "another file");
    assert_int_equal(rename(path_in(fix, "other"), path_in(fix, "data")), 0);
    assert_int_equal(base_file_check(f, &fix->err), WEIR_ERR_FILE_CHANGED);
    assert_non_null(strstr(fix->err.message, "another file took this name"));
    /* The open descriptor still leads to the old bytes, which are the right ones. */
    assert_status(base_file_read(f, 1000, buf, 100, &fix->err), WEIR_OK);
    assert_memory_equal(buf, data + 1000, 100);
    assert_int_equal(unlink(path_in(fix, "data")), 0);
    assert_status(base_file_check(f, &fix->err), WEIR_OK);
    base_file_close(f);
    free(data);
}

static void interruptions_and_short_reads_are_continued(void **state)
{
    fixture *fix = *state;
    unsigned char *data;
    base_file *f = open_pattern(fix, &data);
    unsigned char *buf = malloc(LEN);
    char rules[128];
    snprintf(rules, sizeof rules, "read:0:errno=%d,read:1:length=1000,read:2:errno=%d,read:3:length=1", EINTR,
             EAGAIN);
    assert_status(base_fault_parse(fix->env, rules, &fix->err), WEIR_OK);
    assert_status(base_file_read(f, 0, buf, LEN, &fix->err), WEIR_OK);
    assert_memory_equal(buf, data, LEN);
    assert_int_equal(base_fault_count(fix->env, BASE_FAULT_READ), 5);
    base_fault_clear(fix->env);

    assert_status(base_fault_parse(fix->env, "read:1:length=0,read:0:length=77", &fix->err), WEIR_OK);
    assert_int_equal(base_file_read(f, 0, buf, LEN, &fix->err), WEIR_ERR_TRUNCATED);
    assert_non_null(strstr(fix->err.message, "got 77"));
    base_fault_clear(fix->env);

    assert_status(base_fault_parse(fix->env, "read:0", &fix->err), WEIR_OK);
    assert_int_equal(base_file_read(f, 5, buf, 6, &fix->err), WEIR_ERR_IO);
    assert_non_null(
        strstr(fix->err.message, "reading 6 bytes at offset 5 failed after 0: Input/output error"));
    base_fault_clear(fix->env);

    /* Interrupted for good: bounded, not for ever. */
    snprintf(rules, sizeof rules, "read:0:for_good:errno=%d", EINTR);
    assert_status(base_fault_parse(fix->env, rules, &fix->err), WEIR_OK);
    assert_int_equal(base_file_read(f, 5, buf, 6, &fix->err), WEIR_ERR_IO);
    base_fault_clear(fix->env);
    assert_status(base_file_read(f, 0, buf, LEN, &fix->err), WEIR_OK);
    base_file_close(f);
    free(buf);
    free(data);
}

static void opening_fails_cleanly_at_every_fault(void **state)
{
    fixture *fix = *state;
    unsigned char *data;
    base_file *f = open_pattern(fix, &data);
    bool direct = base_file_direct_align(f) != 0;
    base_file_close(f);
    f = NULL;
    base_fault_count_on(fix->env, NULL);
    assert_status(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_OK);
    uint64_t sites = base_fault_count(fix->env, BASE_FAULT_HOST_ALLOC);
    base_file_close(f);
    base_fault_clear(fix->env);
    assert_true(sites >= 2);
    for (uint64_t i = 0; i < sites; i++) {
        base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, i, false);
        f = NULL;
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err),
                         WEIR_ERR_OUT_OF_MEMORY);
        assert_null(f);
        assert_int_equal(booked(fix->env), 0);
        base_fault_clear(fix->env);
    }
    char rule[32];
    snprintf(rule, sizeof rule, "open:0:errno=%d", EACCES);
    assert_status(base_fault_parse(fix->env, rule, &fix->err), WEIR_OK);
    assert_int_equal(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_ERR_PERMISSION);
    base_fault_clear(fix->env);
    assert_status(base_fault_parse(fix->env, "open:0", &fix->err), WEIR_OK);
    assert_int_equal(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_ERR_IO);
    base_fault_clear(fix->env);
    assert_status(base_fault_parse(fix->env, "direct_io:0", &fix->err), WEIR_OK);
    assert_status(base_file_open(fix->env, path_in(fix, "data"), &f, &fix->err), WEIR_OK);
    assert_int_equal(base_file_direct_align(f), 0);
    base_file_close(f);
    print_message("direct reads here: %s\n", direct ? "yes" : "no");
    free(data);
}

static size_t cached_pages(const char *path)
{
    int fd = open(path, O_RDONLY);
    void *map = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    unsigned char in[LEN / 4096 + 1];
    assert_int_equal(mincore(map, LEN, in), 0);
    size_t n = 0;
    for (size_t i = 0; i < sizeof in; i++) n += in[i] & 1;
    munmap(map, LEN);
    close(fd);
    return n;
}

static void dropped_pages_leave_the_cache(void **state)
{
    fixture *fix = *state;
    unsigned char *data, *buf = malloc(LEN);
    base_file *f = open_pattern(fix, &data);
    int fd = open(path_in(fix, "data"), O_RDONLY);
    fsync(fd); /* dirty pages cannot be dropped */
    close(fd);
    assert_status(base_file_read(f, 0, buf, LEN, &fix->err), WEIR_OK);
    assert_true(cached_pages(path_in(fix, "data")) >= LEN / 4096);
    base_file_drop_cache(f, 0, LEN);
    size_t left = cached_pages(path_in(fix, "data"));
    base_file_close(f);
    free(data);
    free(buf);
    if (left > LEN / 4096 / 2) skip(); /* a file system that keeps everything in memory, such as tmpfs */
    assert_int_equal(left, 0);
}

static void small_files_are_read_whole(void **state)
{
    fixture *fix = *state;
    char *text = NULL;
    size_t len = 0;
    write_text(path_in(fix, "note"), "name = value\n");
    assert_status(base_file_slurp(fix->env, path_in(fix, "note"), 13, &text, &len, &fix->err), WEIR_OK);
    assert_int_equal(len, 13);
    assert_string_equal(text, "name = value\n");
    base_free(fix->env, text);
    assert_int_equal(base_file_slurp(fix->env, path_in(fix, "note"), 12, &text, &len, &fix->err),
                     WEIR_ERR_FORMAT);
    assert_int_equal(base_file_slurp(fix->env, path_in(fix, "none"), 12, &text, &len, &fix->err),
                     WEIR_ERR_NOT_FOUND);
    assert_int_equal(base_file_slurp(fix->env, fix->folder, 12, &text, &len, &fix->err), WEIR_ERR_IO);
    /* Nobody writes into this pipe: waiting for it would have no end. */
    assert_int_equal(mkfifo(path_in(fix, "pipe"), 0600), 0);
    assert_int_equal(base_file_slurp(fix->env, path_in(fix, "pipe"), 12, &text, &len, &fix->err),
                     WEIR_ERR_FORMAT);
    write_text(path_in(fix, "empty"), "");
    assert_status(base_file_slurp(fix->env, path_in(fix, "empty"), 0, &text, NULL, &fix->err), WEIR_OK);
    assert_string_equal(text, "");
    base_free(fix->env, text);

    unsigned char *data = pattern(100000);
    write_file(path_in(fix, "big"), data, 100000);
    assert_status(base_file_slurp(fix->env, path_in(fix, "big"), SIZE_MAX, &text, &len, &fix->err), WEIR_OK);
    assert_int_equal(len, 100000);
    assert_memory_equal(text, data, len);
    assert_int_equal(text[len], 0);
    base_free(fix->env, text);
    base_fault_count_on(fix->env, NULL);
    assert_status(base_file_slurp(fix->env, path_in(fix, "big"), SIZE_MAX, &text, &len, &fix->err), WEIR_OK);
    uint64_t sites = base_fault_count(fix->env, BASE_FAULT_HOST_ALLOC);
    base_free(fix->env, text);
    for (uint64_t i = 0; i < sites; i++) {
        base_fault_clear(fix->env);
        base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, i, false);
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_file_slurp(fix->env, path_in(fix, "big"), SIZE_MAX, &text, &len, &fix->err),
                         WEIR_ERR_OUT_OF_MEMORY);
        assert_int_equal(booked(fix->env), 0);
    }
    free(data);
}

static int entries_in(const char *folder)
{
    int n = 0;
    char command[256];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void output_appears_only_when_committed(void **state)
{
    fixture *fix = *state;
    base_writer *w = NULL;
    unsigned char *data = pattern(LEN);
    write_text(path_in(fix, "out"), "old");
    assert_status(base_writer_create(fix->env, path_in(fix, "out"), &w, &fix->err), WEIR_OK);
    base_rng rng;
    base_rng_seed(&rng, 1, 1);
    for (size_t at = 0; at < LEN;) {
        size_t n = base_rng_u32(&rng) % 90000;
        if (n > LEN - at) n = LEN - at;
        assert_status(base_writer_write(w, data + at, n, &fix->err), WEIR_OK);
        at += n;
        assert_int_equal(base_writer_offset(w), at);
    }
    char *text = NULL;
    size_t len = 0;
    assert_status(base_file_slurp(fix->env, path_in(fix, "out"), 10, &text, &len, &fix->err), WEIR_OK);
    assert_string_equal(text, "old");
    base_free(fix->env, text);
    assert_int_equal(entries_in(fix->folder), 2);
    assert_status(base_writer_commit(w, &fix->err), WEIR_OK);
    assert_int_equal(base_writer_commit(w, &fix->err), WEIR_ERR_IO);
    base_writer_destroy(w);
    assert_status(base_file_slurp(fix->env, path_in(fix, "out"), LEN, &text, &len, &fix->err), WEIR_OK);
    assert_int_equal(len, LEN);
    assert_memory_equal(text, data, LEN);
    base_free(fix->env, text);
    assert_int_equal(entries_in(fix->folder), 1);

    assert_status(base_writer_create(fix->env, path_in(fix, "out"), &w, &fix->err), WEIR_OK);
    assert_status(base_writer_write(w, "half", 4, &fix->err), WEIR_OK);
    base_writer_destroy(w);
    assert_int_equal(entries_in(fix->folder), 1);
    base_writer_destroy(NULL);
    free(data);
}

static void output_that_fails_leaves_nothing(void **state)
{
    fixture *fix = *state;
    base_writer *w = NULL;
    assert_int_equal(base_writer_create(fix->env, path_in(fix, "no/such"), &w, &fix->err),
                     WEIR_ERR_NOT_FOUND);
    for (uint64_t i = 0; i < 3; i++) {
        base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, i, false);
        assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
        assert_int_equal(base_writer_create(fix->env, path_in(fix, "out"), &w, &fix->err),
                         WEIR_ERR_OUT_OF_MEMORY);
        base_fault_clear(fix->env);
    }
    assert_status(base_fault_parse(fix->env, "open:0", &fix->err), WEIR_OK);
    assert_int_equal(base_writer_create(fix->env, path_in(fix, "out"), &w, &fix->err), WEIR_ERR_IO);
    base_fault_clear(fix->env);
    assert_null(w);
    assert_int_equal(entries_in(fix->folder), 0);
    assert_int_equal(booked(fix->env), 0);

    /* Neither a pipe nor a folder gives way to a file. */
    struct stat st;
    assert_int_equal(mkfifo(path_in(fix, "pipe"), 0600), 0);
    assert_int_equal(base_writer_create(fix->env, path_in(fix, "pipe"), &w, &fix->err), WEIR_ERR_IO);
    assert_int_equal(stat(path_in(fix, "pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(base_writer_create(fix->env, fix->folder, &w, &fix->err), WEIR_ERR_IO);
    assert_int_equal(entries_in(fix->folder), 1);

    /* The folder goes away before the commit. */
    mkdir(path_in(fix, "gone"), 0755);
    assert_status(base_writer_create(fix->env, path_in(fix, "gone/out"), &w, &fix->err), WEIR_OK);
    assert_status(base_writer_write(w, "text", 4, &fix->err), WEIR_OK);
    remove_tree(path_in(fix, "gone"));
    assert_int_equal(base_writer_commit(w, &fix->err), WEIR_ERR_NOT_FOUND);
    base_writer_destroy(w);
}

/* A limit on the size of files makes write() itself fail, as a full disk does. */
static void a_full_disk_fails_the_write_and_the_commit(void **state)
{
    fixture *fix = *state;
    base_writer *w = NULL;
    unsigned char *data = pattern(LEN);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 100000, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    weir_status created = base_writer_create(fix->env, path_in(fix, "out"), &w, &fix->err);
    weir_status written = w != NULL ? base_writer_write(w, data, LEN, &fix->err) : WEIR_OK;
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(created, WEIR_OK);
    assert_int_equal(written, WEIR_ERR_IO);
    assert_non_null(strstr(fix->err.message, "free space"));
    assert_int_equal(base_writer_write(w, "x", 1, &fix->err), WEIR_ERR_IO);
    assert_int_equal(base_writer_commit(w, &fix->err), WEIR_ERR_IO);
    base_writer_destroy(w);
    assert_int_equal(entries_in(fix->folder), 0);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reads_give_the_bytes_of_the_file),
        TEST(reads_beyond_the_end_are_truncation),
        TEST(opening_tells_the_reason),
        TEST(missing_rights_are_permission),
        TEST(changes_are_noticed),
        TEST(a_replaced_file_is_noticed_but_stays_readable),
        TEST(interruptions_and_short_reads_are_continued),
        TEST(opening_fails_cleanly_at_every_fault),
        TEST(dropped_pages_leave_the_cache),
        TEST(small_files_are_read_whole),
        TEST(output_appears_only_when_committed),
        TEST(output_that_fails_leaves_nothing),
        TEST(a_full_disk_fails_the_write_and_the_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
