/* One set of workers for all of a context: as many threads as the user that wants most, whoever computes. */
#include "rt_test.h"

#include "weir/manager.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define N_TOKENS 60

/* Threads of this process that compute, beside those that call; their numbers go into ids. */
static uint32_t count_workers(pid_t *ids, uint32_t max)
{
    uint32_t n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks)) {
        char path[320], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *in = fopen(path, "r");
        if (in == NULL) continue;
        if (fgets(name, sizeof name, in) != NULL && strncmp(name, "weir-work-", 10) == 0) {
            if (n < max) ids[n] = (pid_t)strtol(e->d_name, NULL, 10);
            n++;
        }
        fclose(in);
    }
    closedir(tasks);
    return n;
}

static uint32_t workers(void)
{
    return count_workers(NULL, 0);
}

static weir_model *load_with(fixture *f, const char *arch, uint32_t n_threads)
{
    weir_model *m = open_small(f, arch);
    weir_load_options o = load_options(128, n_threads);
    assert_ok(f, weir_model_load(m, &o, &f->err));
    return m;
}

static uint64_t hash_of(fixture *f, weir_session *s)
{
    int32_t tokens[N_TOKENS];
    some_tokens(tokens, N_TOKENS, 512, 9);
    weir_session_reset(s);
    return logits_of(f, s, tokens, N_TOKENS);
}

/* What one thread gives, in a context of its own. */
static uint64_t known_hash(fixture *f, const char *arch)
{
    weir_model *m = load_with(f, arch, 1);
    assert_int_equal(workers(), 0);
    weir_session *s = new_session(f, m);
    uint64_t h = hash_of(f, s);
    assert_true(h != 0);
    weir_session_destroy(s);
    weir_model_close(m);
    return h;
}

/* Stands before the system's: a machine of many processors. */
static bool many_processors;

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    int (*ask)(pid_t, size_t, cpu_set_t *) =
        (int (*)(pid_t, size_t, cpu_set_t *))(uintptr_t)dlsym(RTLD_NEXT, "sched_getaffinity");
    if (!many_processors) return ask(pid, size, set);
    CPU_ZERO_S(size, set);
    for (int i = 0; i < 300; i++) CPU_SET_S(i, size, set);
    return 0;
}

/* Without a number of threads a machine that has more processors than a pool takes is used as far as it goes,
 * by plans and measurements alike. */
static void test_more_processors_than_threads(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(64, 0);
    weir_plan p = {.struct_size = sizeof p};
    weir_error err = {0};
    double rate = 0;
    many_processors = true;
    uint32_t there = base_cpu_count();
    weir_status planned = weir_model_plan(m, &o, &p, &f->err);
    weir_status measured = weir_measure_memory(f->context, 0, &rate, &err);
    many_processors = false;
    weir_model_close(m);
    if (there < 300) {
        print_message("a control group leaves %u processors\n", there);
        skip();
    }
    assert_int_equal(planned, WEIR_OK);
    assert_int_equal(p.n_threads, 256);
    if (measured != WEIR_OK) fail_msg("%s", err.message);
    assert_true(rate > 0);
}

static void test_models_share(void **state)
{
    fixture *f = *state;
    const char *const archs[] = {"llama", "qwen3", "gemma3"};
    const uint32_t threads[] = {3, 2, 5}, after[] = {2, 2, 4};
    uint64_t wanted[3], baseline = held(f);
    weir_model *m[3];
    weir_session *s[3];
    for (int i = 0; i < 3; i++) wanted[i] = known_hash(f, archs[i]);
    assert_true(wanted[0] != wanted[1] && wanted[1] != wanted[2]);
    for (int i = 0; i < 3; i++) {
        m[i] = load_with(f, archs[i], threads[i]);
        s[i] = new_session(f, m[i]);
        assert_int_equal(workers(), after[i]);
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 3; i++) assert_int_equal(hash_of(f, s[i]), wanted[i]);
    assert_int_equal(workers(), 4);
    /* Nor does a manager on the CPU, or a measurement, or a plan, bring others. */
    weir_manager_options mo;
    weir_manager_options_init(&mo);
    mo.device = "cpu";
    mo.n_threads = 4;
    weir_manager *manager;
    double rate;
    weir_plan p = {.struct_size = sizeof p};
    weir_load_options o = load_options(128, 4);
    assert_ok(f, weir_manager_create(f->context, &mo, &manager, &f->err));
    assert_ok(f, weir_measure_memory(f->context, 3, &rate, &f->err));
    assert_true(rate > 0);
    assert_ok(f, weir_model_plan(m[0], &o, &p, &f->err));
    assert_int_equal(workers(), 4);
    weir_session_destroy(s[2]);
    weir_model_close(m[2]);
    assert_int_equal(workers(), 3); /* the manager's */
    weir_manager_destroy(manager);
    assert_int_equal(workers(), 2);
    for (int i = 0; i < 2; i++) assert_int_equal(hash_of(f, s[i]), wanted[i]);
    weir_session_destroy(s[0]);
    weir_model_close(m[0]);
    assert_int_equal(workers(), 1);
    assert_int_equal(hash_of(f, s[1]), wanted[1]);
    weir_session_destroy(s[1]);
    weir_model_close(m[1]);
    assert_int_equal(workers(), 0);
    assert_int_equal(held(f), baseline);
}

/* A model and its draft compute on n threads together, and the answer is that of the model alone. */
static void test_draft_shares(void **state)
{
    fixture *f = *state;
    int32_t tokens[N_TOKENS];
    weir_result r[2];
    weir_generate_options g;
    some_tokens(tokens, N_TOKENS, 512, 9);
    weir_model *m = load_with(f, "llama", 3), *d = load_with(f, "qwen3", 3);
    weir_session *s = new_session(f, m), *guess = new_session(f, d);
    weir_generate_options_init(&g);
    g.max_tokens = 30;
    g.ignore_end = true;
    for (int i = 0; i < 2; i++) {
        g.speculate = i == 0 ? WEIR_SPECULATE_OFF : WEIR_SPECULATE_DRAFT;
        if (i == 1) assert_ok(f, weir_session_set_draft(s, guess, &f->err));
        weir_session_reset(s);
        assert_ok(f, weir_generate(s, tokens, N_TOKENS, &g, &r[i], &f->err));
        assert_int_equal(r[i].n_tokens, 30);
        assert_int_equal(workers(), 2);
    }
    assert_true(r[0].logits_hash != 0 && r[1].n_drafted > 0);
    assert_int_equal(r[1].logits_hash, r[0].logits_hash);
    for (int i = 0; i < 2; i++) weir_result_finish(m, &r[i]);
    weir_session_destroy(guess);
    weir_session_destroy(s);
    weir_model_close(d);
    weir_model_close(m);
    assert_int_equal(workers(), 0);
}

/* Passes of two models on two threads. A context is for one thread at a time; what is shared between models
 * holds all the same. */
typedef struct runner {
    weir_session *session;
    int32_t tokens[N_TOKENS];
    uint64_t wanted;
    uint32_t right;
} runner;

static void *run_often(void *arg)
{
    runner *r = arg;
    for (int i = 0; i < 15; i++) {
        const float *logits;
        weir_error err;
        weir_session_reset(r->session);
        if (weir_session_append(r->session, r->tokens, N_TOKENS, &logits, &err) != WEIR_OK) break;
        r->right += weir_logits_hash(WEIR_HASH_SEED, logits, 512) == r->wanted;
    }
    return NULL;
}

static void test_callers_on_two_threads(void **state)
{
    fixture *f = *state;
    const char *const archs[] = {"llama", "gemma3"};
    weir_model *m[2];
    runner r[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) r[i].wanted = known_hash(f, archs[i]);
    for (int i = 0; i < 2; i++) {
        m[i] = load_with(f, archs[i], 2 + (uint32_t)i);
        r[i].session = new_session(f, m[i]);
        r[i].right = 0;
        some_tokens(r[i].tokens, N_TOKENS, 512, 9);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_often, &r[i]), 0);
    assert_int_equal(workers(), 2);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].right, 15);
        weir_session_destroy(r[i].session);
        weir_model_close(m[i]);
    }
}

/* What a load and an unload do to the workers, while a pass of another model runs on them. */
static void test_users_come_and_go_under_a_pass(void **state)
{
    fixture *f = *state;
    runner r = {.wanted = known_hash(f, "llama")};
    pthread_t thread;
    assert_ok(f, weir_context_set(f->context, "compute.pressure", "off", &f->err));
    weir_model *m = load_with(f, "llama", 2);
    r.session = new_session(f, m);
    some_tokens(r.tokens, N_TOKENS, 512, 9);
    uint64_t before = held(f);
    assert_int_equal(pthread_create(&thread, NULL, run_often, &r), 0);
    for (uint32_t i = 0; i < 30; i++) {
        rt_device *d;
        rt_device_options cpu = {.kind = RT_DEVICE_CPU};
        assert_ok(f, rt_device_open(f->context, &cpu, 1 + i % 6, NULL, NULL, &d, &f->err));
        assert_int_equal(workers(), base_max(1, i % 6));
        rt_device_close(f->context, d);
        assert_int_equal(workers(), 1);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.right, 15);
    assert_int_equal(held(f), before);
    weir_session_destroy(r.session);
    weir_model_close(m);
}

/* A model that runs on a device has nothing to do with workers that others begin with and end. */
static void test_workers_end_under_a_device(void **state)
{
    fixture *f = *state;
    runner r = {.wanted = known_hash(f, "llama")};
    pthread_t thread;
    weir_manager_options mo;
    weir_manager *manager;
    double rate;
    weir_manager_options_init(&mo);
    mo.device = "cpu";
    mo.n_threads = 3;
    assert_ok(f, weir_context_set(f->context, "compute.device", "sim", &f->err));
    weir_model *m = load_with(f, "llama", 2);
    r.session = new_session(f, m);
    some_tokens(r.tokens, N_TOKENS, 512, 9);
    assert_int_equal(pthread_create(&thread, NULL, run_often, &r), 0);
    for (uint32_t i = 0; i < 30; i++) {
        assert_ok(f, weir_manager_create(f->context, &mo, &manager, &f->err));
        assert_non_null(f->context->workers);
        weir_manager_destroy(manager);
        assert_null(f->context->workers);
    }
    assert_ok(f, weir_measure_memory(f->context, 2, &rate, &f->err));
    assert_null(f->context->workers);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.right, 15);
    weir_session_destroy(r.session);
    weir_model_close(m);
}

/* The workers follow the list of the model whose pass it is. */
static void test_each_model_on_its_processors(void **state)
{
    fixture *f = *state;
    cpu_set_t all, now;
    uint32_t first = 0, last = CPU_SETSIZE - 1;
    char text[16];
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all)) first++;
    while (!CPU_ISSET(last, &all)) last--;
    weir_model *m[3];
    weir_session *s[3];
    const char *const archs[] = {"llama", "qwen3", "gemma3"};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%u", i == 0 ? first : last);
        assert_ok(f, weir_context_set(f->context, "compute.cpus", i == 2 ? "all" : text, &f->err));
        m[i] = load_with(f, archs[i], 2);
        s[i] = new_session(f, m[i]);
    }
    for (int turn = 0; turn < 6; turn++) {
        pid_t worker = 0;
        assert_true(hash_of(f, s[turn % 3]) != 0);
        assert_int_equal(count_workers(&worker, 1), 1);
        assert_int_equal(sched_getaffinity(worker, sizeof now, &now), 0);
        if (turn % 3 == 2) {
            assert_true(CPU_EQUAL(&now, &all));
        } else {
            assert_int_equal(CPU_COUNT(&now), 1);
            assert_true(CPU_ISSET(turn % 3 == 0 ? first : last, &now));
        }
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0); /* the caller is free again */
        assert_true(CPU_EQUAL(&now, &all));
    }
    for (int i = 0; i < 3; i++) {
        weir_session_destroy(s[i]);
        weir_model_close(m[i]);
    }
}

static uint64_t planned(const weir_plan *p, const char *tag)
{
    for (uint32_t i = 0; i < p->n_accounts; i++)
        if (strcmp(p->accounts[i].tag, tag) == 0) return p->accounts[i].planned_bytes;
    return 0;
}

/* So many stacks more, and page tables for the scratch memory of so many threads. */
static void assert_stacks(const weir_plan *less, const weir_plan *more, uint64_t n)
{
    uint64_t bytes = planned(more, "process") - planned(less, "process");
    assert_in_range(bytes, n * (256 << 10), n * (256 << 10) + (16 << 10));
}

/* Plans count the workers once: those of others that are there, and what the model itself needs beyond. */
static void test_plans(void **state)
{
    fixture *f = *state;
    weir_model *a = open_small(f, "llama"), *b = open_small(f, "gemma3");
    weir_load_options two = load_options(128, 2), five = load_options(128, 5);
    weir_plan p = {.struct_size = sizeof p}, alone = p, loaded = p, beside = p, bigger = p;
    assert_ok(f, weir_context_set(f->context, "memory.process", "8MiB", &f->err));
    two.mem_bytes = five.mem_bytes = 64 * MIB;
    uint64_t baseline = held(f);
    assert_ok(f, weir_model_plan(a, &two, &alone, &f->err));
    assert_ok(f, weir_model_plan(a, &five, &bigger, &f->err));
    assert_stacks(&alone, &bigger, 3);
    assert_ok(f, weir_model_load(a, &two, &f->err));
    assert_ok(f, weir_model_plan(a, &two, &loaded, &f->err));
    assert_int_equal(loaded.planned_peak_bytes, alone.planned_peak_bytes);
    assert_ok(f, weir_model_plan(a, &five, &loaded, &f->err));
    assert_int_equal(loaded.planned_peak_bytes, bigger.planned_peak_bytes);
    assert_ok(f, weir_model_plan(b, &two, &beside, &f->err));
    assert_ok(f, weir_model_plan(b, &five, &p, &f->err));
    assert_stacks(&beside, &p, 3);
    assert_int_equal(planned(&beside, "runtime"), planned(&p, "runtime"));
    assert_ok(f, weir_model_load(b, &five, &f->err));
    weir_session *s = new_session(f, b);
    assert_true(hash_of(f, s) != 0);
    base_ledger_view v; /* the kernel's figures are the sanitizer's under one */
    base_ledger_read(env_of(f), &v);
    assert_in_range(v.tag_peak_bytes[BASE_TAG_PROCESS], 4 * (256 << 10), planned(&p, "process"));
    assert_in_range(v.tag_peak_bytes[BASE_TAG_RUNTIME], 1, planned(&p, "runtime"));
    /* The one that wanted less goes first, then it comes back to the larger set. */
    weir_model_unload(a);
    assert_int_equal(workers(), 4);
    assert_ok(f, weir_model_load(a, &two, &f->err));
    assert_int_equal(workers(), 4);
    weir_session_destroy(s);
    weir_model_close(b);
    assert_int_equal(workers(), 1);
    weir_model_unload(a);
    assert_int_equal(workers(), 0);
    assert_true(held(f) <= baseline); /* the files and the text of both */
    weir_model_close(a);
}

/* A second model whose threads cannot be started leaves the first one's as they were. */
static void test_no_more_threads(void **state)
{
    fixture *f = *state;
    uint64_t wanted = known_hash(f, "llama");
    weir_model *m = load_with(f, "llama", 2), *b = open_small(f, "gemma3");
    weir_session *s = new_session(f, m);
    weir_load_options o = load_options(128, 6);
    uint64_t before = held(f);
    for (uint64_t i = 0; i < 4; i++) {
        base_fault_rule rule = {.site = BASE_FAULT_THREAD_CREATE, .after = i, .length = -1};
        assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
        assert_int_equal(weir_model_load(b, &o, &f->err), WEIR_ERR_THREAD);
        base_fault_clear(env_of(f));
        assert_mentions(f->err.message, "weir-work-");
        assert_int_equal(workers(), 1);
        assert_int_equal(held(f), before);
        assert_int_equal(hash_of(f, s), wanted);
    }
    assert_ok(f, weir_model_load(b, &o, &f->err));
    assert_int_equal(workers(), 5);
    assert_int_equal(hash_of(f, s), wanted);
    weir_session_destroy(s);
    weir_model_close(b);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_more_processors_than_threads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_models_share, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_shares, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_callers_on_two_threads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_users_come_and_go_under_a_pass, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_workers_end_under_a_device, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_each_model_on_its_processors, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_plans, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_no_more_threads, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
