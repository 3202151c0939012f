/* X2 on real models: the whole process stays within the budget, and the plan says what it will be. The
 * kernel's own high-water mark (VmHWM) is the judge; each run has its own process, since code and heap of one
 * run count in the next. */
#include "rt_test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CLOSE_BYTES (2 * MIB)

typedef struct outcome {
    uint64_t budget_bytes, planned_bytes, peak_bytes, hash;
    size_t n_tokens;
    char error[512];
} outcome;

/* mem_bytes, or a point between smallest (0.0) and whole (1.0) where that is 0. */
typedef struct run {
    const char *name;
    uint64_t mem_bytes;
    double point;
    uint32_t ctx_tokens, n_sessions, n_threads;
} run;

/* Sends the outcome to the parent and ends. */
static void report_and_exit(int fd, const outcome *out)
{
    ssize_t n = write(fd, out, sizeof *out);
    _exit(n == (ssize_t)sizeof *out ? 0 : 5);
}

static void must(weir_status status, const weir_error *err, int fd, outcome *out)
{
    if (status == WEIR_OK) return;
    snprintf(out->error, sizeof out->error, "%s: %.480s", weir_status_name(status), err->message);
    report_and_exit(fd, out);
}

static weir_session *load_as_told(weir_model *m, const run *c, int fd, outcome *out)
{
    weir_error err;
    weir_session *s = NULL;
    weir_plan p;
    weir_load_options o = load_options(c->ctx_tokens, c->n_threads);
    o.n_sessions = c->n_sessions;
    must(weir_model_plan(m, &o, &p, &err), &err, fd, out);
    o.mem_bytes = c->mem_bytes;
    if (o.mem_bytes == 0)
        o.mem_bytes = p.smallest_bytes + (uint64_t)(c->point * (double)(p.whole_bytes - p.smallest_bytes));
    must(weir_model_load(m, &o, &err), &err, fd, out);
    for (uint32_t i = 0; i < c->n_sessions; i++) must(weir_session_create(m, &s, &err), &err, fd, out);
    return s;
}

/* The child's life: a long prompt, an answer, sampling. */
static void live(const run *c, const char *path, int fd)
{
    static outcome out;
    weir_error err;
    weir_context *context;
    weir_model *m;
    must(weir_context_create(NULL, &context, &err), &err, fd, &out);
    must(weir_model_open(context, path, &m, &err), &err, fd, &out);
    weir_session *s = load_as_told(m, c, fd, &out);
    int32_t *prompt;
    size_t n;
    char text[401] = "";
    for (size_t i = 0; i + 20 < sizeof text; i += 20) memcpy(text + i, "The river runs wide ", 21);
    must(weir_tokenize(m, text, strlen(text), WEIR_TOKENIZE_BOS, &prompt, &n, &err), &err, fd, &out);
    n = (size_t)base_min(n, c->ctx_tokens - 24);
    weir_generate_options g;
    weir_generate_options_init(&g);
    g.max_tokens = 16;
    g.ignore_end = true;
    weir_result r;
    must(weir_generate(s, prompt, n, &g, &r, &err), &err, fd, &out);
    out.n_tokens = r.n_tokens;
    out.hash = r.logits_hash;
    weir_result_finish(m, &r);
    g.sampling.temperature = 0.7F;
    g.sampling.top_p = 0.9F;
    g.max_tokens = 4;
    must(weir_generate(s, prompt, 1, &g, &r, &err), &err, fd, &out);
    weir_memory_report report;
    must(weir_model_memory(m, &report, &err), &err, fd, &out);
    out.budget_bytes = report.budget_bytes;
    out.planned_bytes = report.planned_peak_bytes;
    out.peak_bytes = report.peak_bytes;
    report_and_exit(fd, &out);
}

static bool write_text(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

/* A control group of our own, v1 or v2; false where this process may not make one. */
static bool make_group(char *folder, size_t size, uint64_t bytes)
{
    const struct {
        const char *root, *limit;
    } kinds[] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}};
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    for (int i = 0; i < 2; i++) {
        snprintf(folder, size, "%s/weir-test-%d", kinds[i].root, (int)getpid());
        if (mkdir(folder, 0755) != 0) continue;
        if (write_text(folder, kinds[i].limit, text)) {
            write_text(folder, "memory.swap.max", "0");
            return true;
        }
        rmdir(folder);
    }
    return false;
}

/* In a process of its own, by exec: a fork would begin with this one's heap. */
static outcome run_in_child(const run *c, const char *path, const char *group)
{
    int ends[2];
    outcome out = {0};
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char fd[16], spec[256];
        if (group != NULL && !write_text(group, "cgroup.procs", "0")) _exit(3);
        snprintf(fd, sizeof fd, "%d", ends[1]);
        snprintf(spec, sizeof spec, "%llu %.6f %u %u %u", (unsigned long long)c->mem_bytes, c->point,
                 c->ctx_tokens, c->n_sessions, c->n_threads);
        execl("/proc/self/exe", "test_rt_budget", "--child", path, spec, fd, (char *)NULL);
        _exit(4);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], &out, sizeof out);
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) fail_msg("%s: killed by signal %d", c->name, WTERMSIG(status));
    if (got != (ssize_t)sizeof out) fail_msg("%s: exit %d without a report", c->name, WEXITSTATUS(status));
    if (out.error[0] != '\0') fail_msg("%s: %s", c->name, out.error);
    return out;
}

static int child_main(char **argv)
{
    run c = {.name = "child"};
    unsigned long long mem;
    if (sscanf(argv[3], "%llu %lf %u %u %u", &mem, &c.point, &c.ctx_tokens, &c.n_sessions, &c.n_threads) != 5)
        return 2;
    c.mem_bytes = mem;
    live(&c, argv[2], atoi(argv[4]));
    return 2;
}

static void check(const run *c, const outcome *o)
{
    print_message("%-26s budget %7.2f MiB, planned %7.2f, measured %7.2f\n", c->name,
                  (double)o->budget_bytes / (double)MIB, (double)o->planned_bytes / (double)MIB,
                  (double)o->peak_bytes / (double)MIB);
    assert_int_equal(o->n_tokens, 16);
    assert_true(o->planned_bytes <= o->budget_bytes);
    assert_true(o->peak_bytes <= o->planned_bytes);
    assert_true(o->planned_bytes - o->peak_bytes <= base_max(CLOSE_BYTES, o->planned_bytes / 50));
}

static void run_all(const char *model, const run *runs, size_t n)
{
    if (RT_SANITIZED) skip(); /* the sanitizer's own memory is no part of any plan */
    const char *path = real_path(model);
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) {
        outcome o = run_in_child(&runs[i], path, NULL);
        check(&runs[i], &o);
        if (i > 0) assert_true(o.hash == hash);
        hash = o.hash;
    }
}

static void test_smollm2(void **state)
{
    (void)state;
    static const run runs[] = {
        {"64 MiB", 64 * MIB, 0, 512, 1, 2},         {"smallest", 0, 0.0, 512, 1, 1},
        {"a quarter", 0, 0.25, 512, 1, 2},          {"half", 0, 0.5, 512, 1, 2},
        {"nearly whole", 0, 0.99, 512, 1, 1},       {"whole", 0, 1.0, 512, 1, 2},
        {"four sessions, half", 0, 0.5, 512, 4, 2}, {"no limit, 2048", UINT64_C(4) << 30, 0, 2048, 1, 2},
    };
    run_all(SMOL, runs, sizeof runs / sizeof *runs);
}

static void test_gemma3(void **state)
{
    (void)state;
    static const run runs[] = {
        {"smallest", 0, 0.0, 512, 1, 2}, {"half", 0, 0.5, 512, 1, 2}, {"whole", 0, 1.0, 512, 1, 1}};
    run_all(GEMMA, runs, sizeof runs / sizeof *runs);
}

/* In a control group of exactly the budget nothing is killed. */
static void test_control_group(void **state)
{
    (void)state;
    if (RT_SANITIZED) skip();
    const struct {
        const char *model;
        run run;
    } cases[] = {
        {SMOL, {"SmolLM2, 64 MiB, group", 64 * MIB, 0, 512, 1, 2}},
        {SMOL, {"SmolLM2, 24 MiB, group", 24 * MIB, 0, 512, 1, 2}},
        {GEMMA, {"gemma3, 32 MiB, group", 32 * MIB, 0, 512, 1, 2}},
        {GEMMA, {"gemma3, 150 MB, group", 150000000, 0, 512, 1, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = real_path(cases[i].model);
        char group[256];
        if (!make_group(group, sizeof group, cases[i].run.mem_bytes)) {
            print_message("no control group can be made here\n");
            skip();
        }
        outcome limited = run_in_child(&cases[i].run, path, group);
        rmdir(group);
        check(&cases[i].run, &limited);
        run free_run = cases[i].run;
        free_run.mem_bytes = UINT64_C(4) << 30;
        outcome unlimited = run_in_child(&free_run, path, NULL);
        assert_true(limited.hash == unlimited.hash);
    }
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--child") == 0) return child_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_control_group),
    };
    return cmocka_run_group_tests_name("rt_budget", tests, NULL, NULL);
}
