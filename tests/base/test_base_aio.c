/* Queued reads: both backends, direct and buffered, against the known bytes of a file; and everything that
 * can go wrong on the way. */
#include "base_test.h"

#include <dlfcn.h>
#include <errno.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LEN      (UINT64_C(1) << 20)
#define TAIL     UINT64_C(1234) /* the file's size is no multiple of any alignment */
#define FILE_LEN (LEN + TAIL)
#define DEPTH    8
#define BUF_LEN  (64 << 10)

/* The four ways to read; each test runs through all. */
static const base_aio_options ways[] = {
    {BASE_AIO_URING, DEPTH, false},
    {BASE_AIO_URING, DEPTH, true},
    {BASE_AIO_THREADS, DEPTH, false},
    {BASE_AIO_THREADS, DEPTH, true},
};
#define N_WAYS (sizeof ways / sizeof *ways)

typedef struct scene {
    fixture *fix;
    unsigned char *data;
    base_file *file;
    base_aio *aio;
    char *bufs; /* DEPTH x BUF_LEN, aligned */
} scene;

/* False where this way does not exist on the machine. */
static bool open_scene(scene *s, fixture *fix, const base_aio_options *way)
{
    *s = (scene){.fix = fix, .data = pattern(FILE_LEN)};
    write_file(path_in(fix, "data"), s->data, FILE_LEN);
    assert_status(base_file_open(fix->env, path_in(fix, "data"), &s->file, &fix->err), WEIR_OK);
    s->bufs = base_pages_alloc(fix->env, BASE_TAG_IO, DEPTH * BUF_LEN, false, &fix->err);
    assert_non_null(s->bufs);
    weir_status status = base_aio_create(fix->env, way, &s->aio, &fix->err);
    if (status == WEIR_ERR_UNSUPPORTED) {
        print_message("left out: %s\n", fix->err.message);
        return false;
    }
    assert_status(status, WEIR_OK);
    assert_string_equal(base_aio_name(s->aio), way->backend == BASE_AIO_URING ? "io_uring" : "threads");
    return true;
}

static void close_scene(scene *s)
{
    base_aio_destroy(s->aio);
    base_file_close(s->file);
    base_pages_free(s->fix->env, BASE_TAG_IO, s->bufs, DEPTH * BUF_LEN);
    free(s->data);
}

static base_aio_read request(const scene *s, int slot, uint64_t offset, size_t len, size_t need)
{
    return (base_aio_read){
        .file = s->file, .offset = offset, .buf = s->bufs + slot * BUF_LEN, .len = len, .need = need};
}

/* Queues one read and waits for it. */
static weir_status read_one(scene *s, base_aio_read *r)
{
    base_aio_read *got = NULL;
    weir_status status = base_aio_submit(s->aio, r, &s->fix->err);
    if (status != WEIR_OK) {
        assert_int_equal(base_aio_in_flight(s->aio), 0);
        return status;
    }
    assert_int_equal(base_aio_in_flight(s->aio), 1);
    status = base_aio_wait(s->aio, true, &got, &s->fix->err);
    assert_ptr_equal(got, r);
    assert_int_equal(r->status, status);
    assert_int_equal(base_aio_in_flight(s->aio), 0);
    return status;
}

/* A random read: aligned for direct I/O half of the time, across the end of the file sometimes. */
static base_aio_read random_request(const scene *s, base_rng *rng, int slot)
{
    uint64_t align = base_rng_u32(rng) % 2 == 0 ? 4096 : 1;
    uint64_t offset = base_align_down(base_rng_u32(rng) % FILE_LEN, align);
    size_t len = base_align_up(1 + base_rng_u32(rng) % (BUF_LEN - 4096), align);
    size_t there = base_min(len, FILE_LEN - offset);
    base_aio_read r = request(s, slot, offset, len, there - base_rng_u32(rng) % (there / 2 + 1));
    if (align == 1) {
        unsigned shift = base_rng_u32(rng) % 64;
        r.buf = (char *)r.buf + shift;
    }
    return r;
}

static void check_bytes(const scene *s, const base_aio_read *r)
{
    assert_true(r->done >= r->need && r->done <= r->len);
    assert_memory_equal(r->buf, s->data + r->offset, r->done);
}

/* Keeps the queue full of random reads until n have come back right. */
static void churn(scene *s, int n, uint64_t seed)
{
    base_aio_read reads[DEPTH] = {0};
    bool busy[DEPTH] = {0};
    base_rng rng;
    base_rng_seed(&rng, seed, 3);
    for (int queued = 0, ended = 0; ended < n;) {
        for (int i = 0; i < DEPTH && queued < n; i++) {
            if (busy[i]) continue;
            reads[i] = random_request(s, &rng, i);
            memset(s->bufs + i * BUF_LEN, 0xee, BUF_LEN);
            weir_status status = base_aio_submit(s->aio, &reads[i], &s->fix->err);
            if (status != WEIR_OK) print_error("%s\n", s->fix->err.message);
            assert_int_equal(status, WEIR_OK);
            busy[i] = true;
            queued++;
        }
        base_aio_read *r = NULL;
        weir_status status = base_aio_wait(s->aio, base_rng_u32(&rng) % 4 != 0, &r, &s->fix->err);
        if (status != WEIR_OK) print_error("%s\n", s->fix->err.message);
        assert_int_equal(status, WEIR_OK);
        if (r == NULL) continue;
        check_bytes(s, r);
        busy[r - reads] = false;
        ended++;
    }
    assert_int_equal(base_aio_in_flight(s->aio), 0);
}

static void random_reads_equal_the_file(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) churn(&s, 400, 11 + w);
        close_scene(&s);
    }
}

static void the_same_with_every_read_cut_and_disturbed(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            char rules[512] = "";
            base_rng rng;
            base_rng_seed(&rng, 8, w);
            for (int i = 0; i < 15; i++) {
                static const char *const kinds[] = {"errno=4", "errno=11", "length=512", "length=1",
                                                    "length=4097"};
                char rule[64];
                snprintf(rule, sizeof rule, "%s%s:%u:%s", i > 0 ? "," : "",
                         i % 2 == 0 ? "read" : "completion", base_rng_u32(&rng) % 200, kinds[i % 5]);
                strncat(rules, rule, sizeof rules - strlen(rules) - 1);
            }
            assert_status(base_fault_parse(fix->env, rules, &fix->err), WEIR_OK);
            churn(&s, 300, 21 + w);
            assert_true(base_fault_count(fix->env, BASE_FAULT_READ) > 300);
            base_fault_clear(fix->env);
            assert_status(base_fault_parse(fix->env, "completion:0:for_good:length=3000", &fix->err),
                          WEIR_OK);
            churn(&s, 40, 31 + w);
            base_fault_clear(fix->env);
        }
        close_scene(&s);
    }
}

static void the_end_of_the_file(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            base_aio_read r = request(&s, 0, LEN - 4096, 12288, 4096 + TAIL);
            assert_status(read_one(&s, &r), WEIR_OK);
            assert_int_equal(r.done, 4096 + TAIL);
            check_bytes(&s, &r);

            r = request(&s, 0, LEN - 4096, 12288, 4096 + TAIL + 1);
            assert_int_equal(read_one(&s, &r), WEIR_ERR_TRUNCATED);
            assert_int_equal(r.done, 4096 + TAIL);
            char wanted[96];
            snprintf(wanted, sizeof wanted, "wanted %zu bytes at offset %llu, got %zu", r.need,
                     (unsigned long long)r.offset, r.done);
            assert_non_null(strstr(fix->err.message, wanted));
            assert_non_null(strstr(fix->err.message, path_in(fix, "data")));

            r = request(&s, 0, LEN + 65536, 4096, 1);
            assert_int_equal(read_one(&s, &r), WEIR_ERR_TRUNCATED);
            assert_int_equal(r.done, 0);
            r = request(&s, 0, LEN + 65536, 4096, 0);
            assert_status(read_one(&s, &r), WEIR_OK);
        }
        close_scene(&s);
    }
}

static void changes_while_open_are_noticed(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            base_aio_read r = request(&s, 0, 8192, 8192, 8192);
            assert_status(read_one(&s, &r), WEIR_OK);
            assert_int_equal(truncate(path_in(fix, "data"), 12288), 0);
            assert_int_equal(read_one(&s, &r), WEIR_ERR_FILE_CHANGED);
            assert_int_equal(r.done, 4096);
            assert_non_null(strstr(fix->err.message, "got 4096"));
            /* The bytes are all there, but nobody knows whether they are the same. */
            r = request(&s, 0, 0, 4096, 4096);
            assert_int_equal(read_one(&s, &r), WEIR_ERR_FILE_CHANGED);
        }
        close_scene(&s);
    }
}

static void errors_come_back_with_their_read(void **state)
{
    fixture *fix = *state;
    static const char *const rules[] = {"read:1", "completion:1:errno=5", "read:1:errno=28", "submit:1"};
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
                assert_status(base_fault_parse(fix->env, rules[k], &fix->err), WEIR_OK);
                base_aio_read r = request(&s, 0, 4096, 8192, 8192);
                assert_status(read_one(&s, &r), WEIR_OK);
                assert_int_equal(read_one(&s, &r), WEIR_ERR_IO);
                assert_non_null(strstr(fix->err.message, path_in(fix, "data")));
                assert_non_null(strstr(fix->err.message, "8192 bytes at offset 4096"));
                assert_non_null(strstr(fix->err.message, base_aio_name(s.aio)));
                assert_status(read_one(&s, &r), WEIR_OK); /* the queue is as good as before */
                check_bytes(&s, &r);
                base_fault_clear(fix->env);
            }
            /* Interrupted for good: bounded. */
            assert_status(base_fault_parse(fix->env, "read:0:for_good:errno=4", &fix->err), WEIR_OK);
            base_aio_read r = request(&s, 0, 4096, 8192, 8192);
            assert_int_equal(read_one(&s, &r), WEIR_ERR_IO);
            base_fault_clear(fix->env);
            churn(&s, 50, 5);
        }
        close_scene(&s);
    }
}

/* EINVAL from a direct read means that the file system does not hold what it promised: through the cache
 * then. */
static void refused_direct_reads_go_through_the_cache(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            char rule[32];
            snprintf(rule, sizeof rule, "read:0:errno=%d", EINVAL);
            assert_status(base_fault_parse(fix->env, rule, &fix->err), WEIR_OK);
            base_aio_read r = request(&s, 0, 4096, 8192, 8192);
            bool direct = !ways[w].buffered && base_file_direct_align(s.file) != 0;
            assert_int_equal(read_one(&s, &r), direct ? WEIR_OK : WEIR_ERR_IO);
            if (direct) check_bytes(&s, &r);
            base_fault_clear(fix->env);
        }
        close_scene(&s);
    }
}

/* Stands before liburing's: so many calls fail, then so many hand over all but the last entry. */
static int failing_submits, short_submits;

int io_uring_submit(struct io_uring *ring)
{
    int (*submit)(struct io_uring *) =
        (int (*)(struct io_uring *))(uintptr_t)dlsym(RTLD_NEXT, "io_uring_submit");
    if (failing_submits > 0) {
        failing_submits--;
        return -ENOMEM;
    }
    if (short_submits == 0 || io_uring_sq_ready(ring) < 2) return submit(ring);
    short_submits--;
    ring->sq.sqe_tail--;
    int n = submit(ring);
    ring->sq.sqe_tail++;
    return n;
}

/* As read_one, but a read that was never handed over fails here and does not hang. */
static void read_in_time(scene *s, base_aio_read *r)
{
    fixture *fix = s->fix;
    base_aio_read *got = NULL;
    assert_status(base_aio_submit(s->aio, r, &fix->err), WEIR_OK);
    for (int i = 0; i < 5000 && got == NULL; i++) {
        assert_status(base_aio_wait(s->aio, false, &got, &fix->err), WEIR_OK);
        if (got == NULL) usleep(1000);
    }
    assert_ptr_equal(got, r);
    check_bytes(s, r);
}

/* What a failed start leaves in the queue goes out before the next read, and that with it, also where the
 * kernel takes them one by one; and as many failures as the queue has places do not stop it up. */
static void what_was_not_handed_over(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w]) && ways[w].backend == BASE_AIO_URING) {
            base_aio_read r = request(&s, 0, 4096, 8192, 8192);
            for (int n = 1; n <= DEPTH + 1; n += DEPTH) {
                failing_submits = n;
                for (int i = 0; i < n; i++) assert_int_equal(read_one(&s, &r), WEIR_ERR_IO);
                assert_int_equal(failing_submits, 0);
                short_submits = 1;
                read_in_time(&s, &r);
                assert_int_equal(short_submits, 0);
                churn(&s, 50, 6);
            }
        }
        close_scene(&s);
    }
}

static void wrong_use_is_refused(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        if (open_scene(&s, fix, &ways[w])) {
            base_aio_read *got = (base_aio_read *)1;
            assert_status(base_aio_wait(s.aio, false, &got, &fix->err), WEIR_OK);
            assert_null(got);
            assert_int_equal(base_aio_wait(s.aio, true, &got, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
            base_aio_read r = request(&s, 0, 0, 0, 0);
            assert_int_equal(base_aio_submit(s.aio, &r, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
            r = request(&s, 0, 0, 4096, 4097);
            assert_int_equal(base_aio_submit(s.aio, &r, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
            r = request(&s, 0, INT64_MAX - 100, 4096, 1);
            assert_int_equal(base_aio_submit(s.aio, &r, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
            base_aio_read many[DEPTH + 1];
            for (int i = 0; i <= DEPTH; i++) {
                many[i] = request(&s, i % DEPTH, 0, 4096, 4096);
                assert_int_equal(base_aio_submit(s.aio, &many[i], &fix->err),
                                 i < DEPTH ? WEIR_OK : WEIR_ERR_INVALID_ARGUMENT);
            }
            assert_int_equal(base_aio_in_flight(s.aio), DEPTH);
        }
        close_scene(&s); /* waits for those in flight */
    }
    base_aio *aio = NULL;
    base_aio_options bad = {BASE_AIO_AUTO, 0, false};
    assert_int_equal(base_aio_create(fix->env, &bad, &aio, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    bad.depth = 257;
    assert_int_equal(base_aio_create(fix->env, &bad, &aio, &fix->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_null(aio);
    base_aio_destroy(NULL);
}

static void keep_line(void *arg, base_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 256, "%s", line);
}

static void without_io_uring_threads_read(void **state)
{
    fixture *fix = *state;
    char line[256] = "";
    fix->env->log_fn = keep_line;
    fix->env->log_arg = line;
    base_aio_options options = {BASE_AIO_AUTO, 4, false};
    base_aio *aio = NULL;
    assert_status(base_fault_parse(fix->env, "io_uring:0:for_good:errno=1", &fix->err), WEIR_OK);
    assert_status(base_aio_create(fix->env, &options, &aio, &fix->err), WEIR_OK);
    assert_string_equal(base_aio_name(aio), "threads");
    assert_non_null(strstr(line, "io_uring is not available here: Operation not permitted"));
    bool asked = false;
    assert_status(base_aio_ask_threads(fix->env, &options, &asked, &fix->err), WEIR_OK);
    assert_true(asked && base_aio_by_threads(aio));
    base_aio_destroy(aio);
    aio = NULL;
    options.backend = BASE_AIO_URING;
    assert_int_equal(base_aio_create(fix->env, &options, &aio, &fix->err), WEIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(fix->err.message, "io.backend=threads"));
    assert_null(aio);
    base_fault_clear(fix->env);
    options.backend = BASE_AIO_AUTO;
    assert_status(base_aio_create(fix->env, &options, &aio, &fix->err), WEIR_OK);
    print_message("this machine reads by %s\n", base_aio_name(aio));
    assert_status(base_aio_ask_threads(fix->env, &options, &asked, &fix->err), WEIR_OK);
    assert_int_equal(asked, base_aio_by_threads(aio));
    assert_int_equal(asked, strcmp(base_aio_name(aio), "threads") == 0);
    base_aio_destroy(aio);
    options.backend = BASE_AIO_THREADS;
    assert_status(base_aio_ask_threads(fix->env, &options, &asked, &fix->err), WEIR_OK);
    assert_true(asked);
    assert_string_equal(base_aio_text(true, true), "threads buffered");
    assert_string_equal(base_aio_text(true, false), "threads direct");
    assert_string_equal(base_aio_text(false, true), "io_uring buffered");
    assert_string_equal(base_aio_text(false, false), "io_uring direct");
}

/* Makes io_uring_setup fail with EPERM in this process from now on, as containers' filters do. */
static bool forbid_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* What the child does: 0 when threads read instead, 2 when filters are not possible here. */
static int read_without_io_uring(base_env *env, base_file *file)
{
    if (!forbid_io_uring()) return 2;
    base_aio_options options = {BASE_AIO_AUTO, 4, false};
    base_aio *aio = NULL;
    base_aio_read *got = NULL;
    char buf[1000];
    base_aio_read r = {.file = file, .offset = 5, .buf = buf, .len = sizeof buf, .need = sizeof buf};
    if (base_aio_create(env, &options, &aio, NULL) != WEIR_OK) return 1;
    bool right = strcmp(base_aio_name(aio), "threads") == 0 && base_aio_submit(aio, &r, NULL) == WEIR_OK &&
                 base_aio_wait(aio, true, &got, NULL) == WEIR_OK && got == &r;
    unsigned char *data = pattern(FILE_LEN);
    right = right && memcmp(buf, data + 5, sizeof buf) == 0;
    free(data);
    base_aio_destroy(aio);
    return right ? 0 : 1;
}

static void a_filter_that_forbids_io_uring(void **state)
{
    fixture *fix = *state;
    unsigned char *data = pattern(FILE_LEN);
    base_file *file = NULL;
    write_file(path_in(fix, "data"), data, FILE_LEN);
    free(data);
    assert_status(base_file_open(fix->env, path_in(fix, "data"), &file, &fix->err), WEIR_OK);
    pid_t child = fork();
    if (child == 0) _exit(read_without_io_uring(fix->env, file));
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    base_file_close(file);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == 2) skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}

/* Where direct reads do not work, the same options read through the cache. */
static void without_direct_reads_the_cache_serves(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        scene s;
        assert_status(base_fault_parse(fix->env, "direct_io:0:for_good", &fix->err), WEIR_OK);
        if (open_scene(&s, fix, &ways[w])) {
            assert_int_equal(base_file_direct_align(s.file), 0);
            churn(&s, 100, 41 + w);
        }
        base_fault_clear(fix->env);
        close_scene(&s);
    }
}

static void creating_fails_cleanly_at_every_fault(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        base_aio *aio = NULL;
        base_fault_count_on(fix->env, NULL);
        if (base_aio_create(fix->env, &ways[w], &aio, &fix->err) != WEIR_OK) {
            base_fault_clear(fix->env);
            continue;
        }
        uint64_t allocs = base_fault_count(fix->env, BASE_FAULT_HOST_ALLOC);
        uint64_t threads = base_fault_count(fix->env, BASE_FAULT_THREAD_CREATE);
        base_aio_destroy(aio);
        base_fault_clear(fix->env);
        assert_int_equal(allocs, 3);
        assert_int_equal(threads, ways[w].backend == BASE_AIO_THREADS ? 4 : 0);
        for (uint64_t i = 0; i < allocs + threads; i++) {
            aio = NULL;
            base_fault_rule rule = rule_of(i < allocs ? BASE_FAULT_HOST_ALLOC : BASE_FAULT_THREAD_CREATE,
                                           i < allocs ? i : i - allocs, false);
            assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
            assert_int_equal(base_aio_create(fix->env, &ways[w], &aio, &fix->err),
                             i < allocs ? WEIR_ERR_OUT_OF_MEMORY : WEIR_ERR_THREAD);
            assert_null(aio);
            assert_int_equal(booked(fix->env), 0);
            base_fault_clear(fix->env);
        }
    }
}

static void depth_one_works(void **state)
{
    fixture *fix = *state;
    for (size_t w = 0; w < N_WAYS; w++) {
        base_aio_options options = ways[w];
        options.depth = 1;
        scene s;
        if (open_scene(&s, fix, &options)) {
            for (int i = 0; i < 20; i++) {
                base_aio_read r = request(&s, 0, (uint64_t)i * 4096, 4096, 4096);
                assert_status(read_one(&s, &r), WEIR_OK);
                check_bytes(&s, &r);
            }
        }
        close_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(random_reads_equal_the_file),
        TEST(the_same_with_every_read_cut_and_disturbed),
        TEST(the_end_of_the_file),
        TEST(changes_while_open_are_noticed),
        TEST(errors_come_back_with_their_read),
        TEST(refused_direct_reads_go_through_the_cache),
        TEST(what_was_not_handed_over),
        TEST(wrong_use_is_refused),
        TEST(without_io_uring_threads_read),
        TEST(a_filter_that_forbids_io_uring),
        TEST(without_direct_reads_the_cache_serves),
        TEST(creating_fails_cleanly_at_every_fault),
        TEST(depth_one_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
