/* Storage as it should not be, seen from a whole life (open, load, answer, close): reads that fail or end
 * early wherever there is one, headers and tokenizer included; io_uring and direct reads refused, by a fault
 * point and in truth; and nothing of the file left in the page cache (R5, X5). */
#include "rt_test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define N_TOKENS 4

static weir_status generate(fixture *f, weir_model *m, weir_session *s, uint64_t *hash)
{
    int32_t prompt[20];
    some_tokens(prompt, 20, 512, 3);
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = N_TOKENS;
    o.ignore_end = true;
    weir_result r;
    weir_status status = weir_generate(s, prompt, 20, &o, &r, &f->err);
    if (status == WEIR_OK) {
        assert_int_equal(r.n_tokens, N_TOKENS);
        *hash = r.logits_hash;
    }
    weir_result_finish(m, &r);
    return status;
}

/* ---- every read there is ---- */

static const base_fault_rule ailments[] = {
    {.error = EIO, .length = -1}, {.error = EINTR, .length = -1}, {.length = 0}, {.length = 1},
    {.length = -1, .missing = 1},
};
#define N_AILMENTS (sizeof ailments / sizeof *ailments)

static void suffer(fixture *f, const char *path, const weir_load_options *o, uint64_t wanted,
                   const base_fault_rule *rule)
{
    uint64_t baseline = held(f);
    assert_ok(f, base_fault_arm(env_of(f), rule, &f->err));
    f->err.message[0] = '\0';
    life a = whole_life(f, path, o, generate);
    base_fault_clear(env_of(f));
    if (rule->for_good && rule->after == 0 && rule->error == EIO && rule->site == BASE_FAULT_READ)
        assert_int_equal(a.status, WEIR_ERR_IO);
    const char *name = base_fault_text(rule->site);
    if (a.status == WEIR_OK)
        assert_true(a.hash == wanted);
    else if (a.status != WEIR_ERR_IO && a.status != WEIR_ERR_TRUNCATED)
        fail_msg("%s:%llu gives %s: %s", name, (unsigned long long)rule->after, weir_status_name(a.status),
                 f->err.message);
    else
        assert_mentions(f->err.message, path);
    if (held(f) != baseline) fail_msg("%s:%llu leaves memory", name, (unsigned long long)rule->after);
}

static void sweep(fixture *f, base_fault_site site, const char *backend)
{
    assert_ok(f, weir_context_set(f->context, "io.backend", backend, &f->err));
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    o.mem_bytes += MIB; /* for threads that read: their stacks are in the plan only where they are there from
                           the start */
    assert_ok(f, base_fault_count_on(env_of(f), &f->err));
    life clean = whole_life(f, path, &o, generate);
    assert_ok(f, clean.status);
    uint64_t n = base_fault_count(env_of(f), site);
    base_fault_clear(env_of(f));
    assert_true(n > 10);
    uint64_t step = getenv("WEIR_TEST_FULL") != NULL ? 1 : 1 + n / 8;
    for (uint64_t after = 0; after < n; after += step)
        for (size_t i = 0; i < N_AILMENTS; i++)
            for (int for_good = 0; for_good <= 1; for_good++) {
                base_fault_rule rule = ailments[i];
                rule.site = site;
                rule.after = after;
                rule.for_good = for_good != 0;
                /* Byte by byte to the end takes minutes, and test_mem_storage_faults does it. */
                if (rule.length == 1 && for_good) continue;
                suffer(f, path, &o, clean.hash, &rule);
            }
    assert_true(whole_life(f, path, &o, generate).hash == clean.hash);
    assert_ok(f, weir_context_set(f->context, "io.backend", "auto", &f->err));
}

static void test_reads(void **state)
{
    sweep(*state, BASE_FAULT_READ, "auto");
}

static void test_reads_by_threads(void **state)
{
    sweep(*state, BASE_FAULT_READ, "threads");
}

static void test_completions(void **state)
{
    sweep(*state, BASE_FAULT_COMPLETION, "auto");
}

static void test_submissions(void **state)
{
    sweep(*state, BASE_FAULT_SUBMIT, "auto");
}

/* Model and session stay, and answer again after each failure. */
static void test_handles_stay_usable(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    o.mem_bytes += MIB; /* for threads that read: their stacks are in the plan only where they are there from
                           the start */
    weir_model *m;
    uint64_t wanted = 0, hash = 0;
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    assert_ok(f, generate(f, m, s, &wanted));
    uint64_t baseline = held(f);
    unsigned errors = 0;
    const base_fault_site sites[] = {BASE_FAULT_READ, BASE_FAULT_COMPLETION, BASE_FAULT_SUBMIT};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < N_AILMENTS; i++)
            for (uint64_t after = 0; after < 30; after += 7) {
                base_fault_rule rule = ailments[i];
                if (rule.length == 1) continue;
                rule.site = sites[k];
                rule.after = after;
                rule.for_good = true;
                weir_session_reset(s);
                assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
                weir_status status = generate(f, m, s, &hash);
                base_fault_clear(env_of(f));
                if (status == WEIR_OK) assert_true(hash == wanted);
                errors += status != WEIR_OK;
                assert_int_equal(held(f), baseline);
                weir_session_reset(s);
                assert_ok(f, generate(f, m, s, &hash));
                assert_true(hash == wanted);
            }
    assert_true(errors > 10);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* A probe that is disturbed says so, or has measured; nothing is left behind. */
static void test_probe(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    const base_aio_options aio = {BASE_AIO_AUTO, 64, false};
    base_file *file;
    assert_ok(f, base_file_open(env_of(f), path, &file, &f->err));
    uint64_t baseline = held(f);
    unsigned said = 0;
    for (int s = 0; s < 3; s++)
        for (size_t i = 0; i < N_AILMENTS; i++)
            for (uint64_t after = 0; after < 60; after += 13)
                for (int for_good = 0; for_good <= 1; for_good++) {
                    static const base_fault_site sites[] = {BASE_FAULT_READ, BASE_FAULT_COMPLETION,
                                                            BASE_FAULT_SUBMIT};
                    base_fault_rule rule = ailments[i];
                    base_storage found = {0};
                    if (rule.length == 1 && for_good) continue;
                    rule.site = sites[s];
                    rule.after = after;
                    rule.for_good = for_good != 0;
                    assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
                    weir_status status =
                        base_storage_measure(env_of(f), file, &aio, 0.002, MIB, &found, &f->err);
                    base_fault_clear(env_of(f));
                    said += status != WEIR_OK;
                    if (status == WEIR_OK)
                        assert_true(found.bytes_per_s > 0 && found.depth > 0);
                    else if (status != WEIR_ERR_IO && status != WEIR_ERR_TRUNCATED)
                        fail_msg("%s:%llu gives %s", base_fault_text(rule.site), (unsigned long long)after,
                                 weir_status_name(status));
                    assert_int_equal(held(f), baseline);
                }
    assert_true(said > 0);
    base_file_close(file);
}

/* ---- refused ---- */

static bool refuse_io_uring(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* 0: as it should be; 2: not possible here; else what went wrong. */
static int in_child(fixture *f, int (*one_life)(fixture *f, void *arg), void *arg)
{
    pid_t pid = fork();
    if (pid == 0) _exit(one_life(f, arg));
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

typedef struct refusal {
    const char *path;
    const weir_load_options *o;
    uint64_t wanted;
    int error;
} refusal;

static int live_without_io_uring(fixture *f, void *arg)
{
    const refusal *r = arg;
    if (!refuse_io_uring(r->error)) return 2;
    life a = whole_life(f, r->path, r->o, generate);
    if (a.status != WEIR_OK) return 3;
    return a.hash == r->wanted && strncmp(a.reader, "threads", 7) == 0 ? 0 : 4;
}

static void test_io_uring_refused(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    o.mem_bytes += MIB; /* for threads that read: their stacks are in the plan only where they are there from
                           the start */
    life clean = whole_life(f, path, &o, generate);
    assert_ok(f, clean.status);
    const int errors[] = {EPERM, ENOSYS, ENOMEM};
    for (int i = 0; i < 3; i++) {
        refusal r = {.path = path, .o = &o, .wanted = clean.hash, .error = errors[i]};
        base_fault_rule rule = {
            .site = BASE_FAULT_IO_URING, .error = errors[i], .for_good = true, .length = -1};
        assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
        life a = whole_life(f, path, &o, generate);
        base_fault_clear(env_of(f));
        assert_ok(f, a.status);
        assert_true(a.hash == clean.hash && strncmp(a.reader, "threads", 7) == 0);
        int rc = in_child(f, live_without_io_uring, &r);
        if (rc == 2) skip();
        assert_int_equal(rc, 0);
    }
}

/* Reports name what read, and what was measured is remembered for that, not for what was asked for. */
static void test_reader_is_told(void **state)
{
    fixture *f = *state;
    char folder[160], kept[200];
    snprintf(folder, sizeof folder, "%s/cache", f->folder);
    snprintf(kept, sizeof kept, "%s/storage", folder);
    assert_ok(f, weir_context_set(f->context, "cache_folder", folder, &f->err));
    const char *path = make_model(f, "llama", 256);
    weir_storage s = {.struct_size = sizeof s};
    weir_model *m;
    assert_ok(f, base_fault_parse(env_of(f), "io_uring:0:for_good", &f->err));
    assert_ok(f, weir_storage_read(f->context, path, true, &s, &f->err));
    assert_true(s.bytes_per_s > 0 && s.fresh && strncmp(s.reader, "threads ", 8) == 0);
    double rate = s.bytes_per_s;
    assert_ok(f, weir_storage_read(f->context, path, false, &s, &f->err));
    assert_true(fabs(s.bytes_per_s / rate - 1) < 1e-6 && strncmp(s.reader, "threads ", 8) == 0);
    base_fault_clear(env_of(f));
    assert_ok(f, weir_context_set(f->context, "io.backend", "threads", &f->err));
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_storage(m, false, &s, &f->err));
    assert_true(fabs(s.bytes_per_s / rate - 1) < 1e-6 && strncmp(s.reader, "threads ", 8) == 0);
    weir_model_close(m);
    assert_ok(f, weir_context_set(f->context, "io.backend", "io_uring", &f->err));
    assert_ok(f, weir_storage_read(f->context, path, false, &s, &f->err));
    assert_true(s.bytes_per_s == 0);
    assert_string_equal(s.reader, "none");
    assert_ok(f, weir_context_set(f->context, "io.backend", "auto", &f->err));
    unlink(kept);
    rmdir(folder);
}

/* ramfs is a file system whose files cannot be opened for direct reads. */
static int live_on_ramfs(fixture *f, void *arg)
{
    const refusal *r = arg;
    char folder[160], file[200], command[700];
    snprintf(folder, sizeof folder, "%s/ram", f->folder);
    snprintf(file, sizeof file, "%s/m.gguf", folder);
    if (unshare(CLONE_NEWNS) != 0 || mkdir(folder, 0700) != 0) return 2;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "ramfs", 0, NULL) != 0)
        return 2;
    snprintf(command, sizeof command, "cp '%s' '%s'", r->path, file);
    if (system(command) != 0) return 5;
    int fd = open(file, O_RDONLY | O_DIRECT);
    if (fd >= 0) return 2;
    life a = whole_life(f, file, r->o, generate);
    if (a.status != WEIR_OK) return 3;
    return a.hash == r->wanted && strstr(a.reader, "buffered") != NULL ? 0 : 4;
}

/* Pages of the file that the kernel has cached. */
static size_t cached_pages(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    size_t n = ((size_t)st.st_size + 4095) / 4096, cached = 0;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    unsigned char *in = calloc(n, 1);
    assert_non_null(in);
    assert_int_equal(mincore(p, (size_t)st.st_size, in), 0);
    for (size_t i = 0; i < n; i++) cached += in[i] & 1;
    free(in);
    munmap(p, (size_t)st.st_size);
    close(fd);
    return cached;
}

static void write_back(const char *path)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fsync(fd) == 0);
    close(fd);
}

static void test_direct_reads_refused(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    o.mem_bytes += MIB; /* for threads that read: their stacks are in the plan only where they are there from
                           the start */
    write_back(path);   /* what is dirty cannot be dropped */
    life clean = whole_life(f, path, &o, generate);
    assert_ok(f, clean.status);
    assert_int_equal(cached_pages(path), 0);
    const char *const backends[] = {"auto", "threads"};
    for (int i = 0; i < 2; i++) {
        assert_ok(f, weir_context_set(f->context, "io.backend", backends[i], &f->err));
        base_fault_rule rule = {.site = BASE_FAULT_DIRECT_IO, .for_good = true, .length = -1};
        assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
        life a = whole_life(f, path, &o, generate);
        base_fault_clear(env_of(f));
        assert_ok(f, a.status);
        assert_true(a.hash == clean.hash);
        assert_mentions(a.reader, "buffered");
        assert_int_equal(cached_pages(path), 0);
    }
    assert_ok(f, weir_context_set(f->context, "io.backend", "auto", &f->err));
    refusal r = {.path = path, .o = &o, .wanted = clean.hash};
    int rc = in_child(f, live_on_ramfs, &r);
    char folder[160];
    snprintf(folder, sizeof folder, "%s/ram", f->folder);
    rmdir(folder);
    if (rc == 2) skip();
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_reads_by_threads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_completions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_submissions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_handles_stay_usable, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_probe, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_io_uring_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_reader_is_told, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_direct_reads_refused, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_storage", tests, NULL, NULL);
}
