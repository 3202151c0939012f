/* Predictions and what is known of the storage: relations that hold on any machine (issue: no figure of this
 * one). */
#include "rt_test.h"

#include <pthread.h>

static weir_load_options budget_between(fixture *f, weir_model *m, double share)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o;
    weir_load_options_init(&o);
    o.ctx_tokens = 256;
    assert_ok(f, weir_model_plan(m, &o, &plan, &f->err));
    o.mem_bytes =
        plan.smallest_bytes + (uint64_t)(share * (double)(plan.whole_bytes - plan.smallest_bytes)) + MIB;
    return o;
}

static void test_relations(void **state)
{
    fixture *f = *state;
    /* Two plans are compared: what the process holds must not move between them. */
    assert_ok(f, weir_context_set(f->context, "memory.process", "8MiB", &f->err));
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0.3);
    weir_prediction slow = {0}, fast = {0};
    uint64_t before = held(f);
    assert_ok(f, weir_model_predict(m, &o, 1e6, &slow, &f->err));
    assert_int_equal(held(f), before);
    assert_true(slow.storage_bytes_per_s == 1e6);
    assert_true(slow.compute_bytes_per_s > 0);
    /* Storage of 1 MB/s is what it waits for, and it cannot be beaten. */
    weir_plan plan = {.struct_size = sizeof plan};
    assert_ok(f, weir_model_plan(m, &o, &plan, &f->err));
    assert_true(plan.streamed_bytes_per_pass > 100000);
    double limit = 1e6 / (double)plan.streamed_bytes_per_pass;
    assert_true(fabs(slow.limit_tokens_per_s - limit) < 1e-6 * limit);
    assert_true(slow.tokens_per_s <= limit * 1.0001 && slow.tokens_per_s > 0.8 * limit);
    assert_true(fabs(slow.tokens_per_s * slow.seconds_per_token - 1) < 1e-9);
    assert_ok(f, weir_model_predict(m, &o, 1e12, &fast, &f->err));
    assert_true(fast.tokens_per_s > 2 * slow.tokens_per_s);
    weir_model_close(m);
}

static void test_whole(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 1.5);
    weir_prediction p = {0};
    assert_ok(f, weir_model_predict(m, &o, 0, &p, &f->err));
    assert_true(p.storage_bytes_per_s == 0);
    assert_true(p.tokens_per_s > 0);
    assert_true(p.tokens_per_s <= p.limit_tokens_per_s * 1.0001);
    weir_model_close(m);
}

/* Predicting takes no more memory than running: what it times products with stays within the budget. */
static void test_memory(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0.3);
    weir_plan plan = {.struct_size = sizeof plan};
    weir_prediction p = {0};
    base_ledger_view v;
    assert_ok(f, weir_model_plan(m, &o, &plan, &f->err));
    assert_true(plan.streamed_bytes_per_pass > 100000);
    /* Known storage: measuring it takes a block of its own, once. */
    m->storage = (base_storage){.bytes_per_s = 1e9, .depth = 8, .read_bytes = 1 << 20};
    base_ledger_peak_reset(f->context->env);
    assert_ok(f, weir_model_predict(m, &o, 1e9, &p, &f->err));
    base_ledger_read(f->context->env, &v);
    assert_true(p.tokens_per_s > 0 && v.peak_bytes > 0);
    uint64_t process = 0;
    for (uint32_t i = 0; i < plan.n_accounts; i++)
        if (strcmp(plan.accounts[i].tag, "process") == 0) process = plan.accounts[i].planned_bytes;
    /* Stacks of threads are counted by both. */
    uint64_t own = v.peak_bytes - v.tag_peak_bytes[BASE_TAG_PROCESS];
    assert_true(process > 0 && own <= o.mem_bytes - process);
    weir_model_close(m);
}

/* The rate of each kind of pass lies in its range; a prompt's passes and those of more sessions give more
 * tokens than a pass of one; and nothing is left placed, so that the model can be loaded. */
static void test_kinds(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "gemma3");
    for (int i = 0; i < 2; i++) {
        weir_load_options o = budget_between(f, m, i == 0 ? 0.5 : 1.5);
        o.prefill_chunk = 64;
        o.n_sessions = o.max_batch = 3;
        o.mem_bytes += 16 * MIB;
        weir_prediction p = {0}, again = {0};
        uint64_t before = held(f);
        assert_ok(f, weir_model_predict(m, &o, 0, &p, &f->err));
        assert_int_equal(held(f), before);
        const weir_rate *rates[] = {&p.decode, &p.all_sessions, &p.prefill};
        for (int k = 0; k < 3; k++) {
            assert_true(rates[k]->low > 0 && rates[k]->low < rates[k]->likely);
            assert_true(rates[k]->high > rates[k]->likely);
        }
        assert_int_equal(p.prefill_rows, 64);
        assert_true(p.prefill.likely > p.decode.likely);
        assert_ok(f, weir_model_load(m, &o, &f->err));
        assert_int_equal(weir_model_predict(m, &o, 0, &again, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_mentions(f->err.message, "unload");
        weir_model_unload(m);
    }
    weir_model_close(m);
}

static uint64_t mapped_by_plan(fixture *f, weir_model *m, const weir_load_options *o)
{
    weir_plan plan = {.struct_size = sizeof plan};
    assert_ok(f, weir_model_plan(m, o, &plan, &f->err));
    assert_int_equal(plan.streamed_bytes_per_pass, 0);
    for (uint32_t i = 0; i < plan.n_accounts; i++)
        if (strcmp(plan.accounts[i].tag, "weights.mapped") == 0) return plan.accounts[i].planned_bytes;
    return 0;
}

/* R15.1: what lies in memory is mapped by "auto" unless the device's own layout was measured to be quicker.
 */
static void test_auto_maps_by_speed(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 1.5);
    o.weights = WEIR_WEIGHTS_AUTO;
    m->storage = (base_storage){.bytes_per_s = 1e9, .depth = 8, .read_bytes = 1 << 20};
    assert_int_equal(mapped_by_plan(f, m, &o), 0); /* a disk */
    assert_false(m->pack_known);
    m->storage.in_memory = true;
    mapped_by_plan(f, m, &o);
    assert_true(m->pack_known);
    m->pack_pays = true;
    assert_int_equal(mapped_by_plan(f, m, &o), 0);
    m->pack_pays = false;
    assert_true(mapped_by_plan(f, m, &o) > 100000);
    /* Where nothing is packed there is nothing to lose. */
    m->pack_known = false;
    m->pack_pays = true;
    assert_ok(f, weir_context_set(f->context, "compute.pack", "off", &f->err));
    assert_true(mapped_by_plan(f, m, &o) > 100000);
    assert_true(m->pack_known && !m->pack_pays);
    weir_model_close(m);
}

static void test_refused(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0);
    weir_prediction p = {0};
    o.mem_bytes = 1 * MIB;
    assert_int_equal(weir_model_predict(m, &o, 0, &p, &f->err), WEIR_ERR_BUDGET);
    assert_mentions(f->err.message, "missing");
    weir_model_close(m);
}

/* A plan may be for a larger machine; where this one has no room for its rehearsal, nothing is allocated. */
static void test_larger_machine(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 1.5);
    weir_prediction p = {0};
    base_ledger_view v;
    char command[1024], folder[200];
    assert_ok(f, weir_model_predict(m, &o, 0, &p, &f->err));
    snprintf(folder, sizeof folder, "%s/proc", f->folder);
    snprintf(command, sizeof command,
             "mkdir -p %s && printf 'MemTotal: 8000000 kB\nMemAvailable: 64 kB\n' > %s/meminfo", folder,
             folder);
    assert_int_equal(system(command), 0);
    assert_ok(f, weir_context_set(f->context, "proc_root", folder, &f->err));
    assert_ok(f, weir_context_set(f->context, "cgroup_root", folder, &f->err));
    uint64_t before = held(f);
    base_ledger_peak_reset(f->context->env);
    assert_int_equal(weir_model_predict(m, &o, 0, &p, &f->err), WEIR_ERR_OUT_OF_MEMORY);
    assert_mentions(f->err.message, "free");
    base_ledger_read(f->context->env, &v);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_KV] + v.tag_peak_bytes[BASE_TAG_WEIGHTS_FIXED], 0);
    assert_int_equal(held(f), before);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    weir_model_close(m);
}

/* X5: each allocation of a prediction fails once; an error or the result, and nothing stays behind. */
static void test_faults(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0.3);
    weir_prediction p = {0};
    assert_ok(f, weir_model_predict(m, &o, 1e6, &p, &f->err));
    uint64_t before = held(f);
    uint32_t failed = 0, i = 0;
    for (bool more = true; more; i += 3) {
        char rule[64];
        snprintf(rule, sizeof rule, "host_alloc:%u:for_good", i);
        assert_ok(f, base_fault_parse(f->context->env, rule, &f->err));
        weir_status status = weir_model_predict(m, &o, 1e6, &p, &f->err);
        if (status != WEIR_OK) {
            assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
            failed++;
        }
        more = status != WEIR_OK;
        base_fault_clear(f->context->env);
        assert_int_equal(held(f), before);
    }
    assert_true(failed > 3);
    weir_model_close(m);
}

/* What a pass that was cut tells of a whole one: inner weights first, then a head, which a prompt needs for
 * one row only. */
static void test_whole_pass(void **state)
{
    (void)state;
    /* Rows of a step all go through the head: time goes by bytes. */
    assert_true(fabs(rt_whole_pass(2.0, 50, 150, 200, false, 0) - 8.0) < 1e-12);
    /* A prompt's pass without outputs never comes to the head: a third of its weights, not a quarter. */
    assert_true(fabs(rt_whole_pass(2.0, 50, 150, 200, true, 0) - 6.0) < 1e-12);
    /* With outputs: the head's quarter as a pass of one row has it. */
    assert_true(fabs(rt_whole_pass(2.0, 50, 150, 200, true, 0.4) - 6.1) < 1e-12);
    /* Cut within the head: what is left of it. */
    assert_true(fabs(rt_whole_pass(2.0, 175, 150, 200, true, 0.4) - 2.05) < 1e-12);
    assert_true(fabs(rt_whole_pass(2.0, 200, 150, 200, true, 0.4) - 2.0) < 1e-12);
    assert_true(rt_whole_pass(2.0, 0, 150, 200, true, 0.4) == 2.0);
}

/* Reads that take long: passes are cut, and the prediction comes in seconds all the same. */
static void test_cut(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0.3);
    weir_prediction p = {0};
    m->storage = (base_storage){.bytes_per_s = 1e9, .depth = 1, .read_bytes = 1 << 20};
    o.prefill_chunk = 1; /* rows of a prompt alone would take seconds to come */
    const base_fault_rule rule = {
        .site = BASE_FAULT_COMPLETION, .for_good = true, .delay_ms = 150, .passes = true};
    assert_ok(f, base_fault_arm(f->context->env, &rule, &f->err));
    weir_status status = weir_model_predict(m, &o, 0, &p, &f->err);
    base_fault_clear(f->context->env);
    assert_int_equal(status, WEIR_OK);
    assert_true(p.tokens_per_s > 0 && p.tokens_per_s < 2);
    weir_model_close(m);
}

typedef struct canceller {
    weir_model *model;
    atomic_bool done;
} canceller;

static void *keep_cancelling(void *arg)
{
    canceller *c = arg;
    while (!atomic_load(&c->done)) {
        weir_model_cancel(c->model);
        usleep(1000);
    }
    return NULL;
}

static void test_cancelled(void **state)
{
    fixture *f = *state;
    canceller c = {.model = open_small(f, "llama")};
    weir_prediction p = {0};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        weir_load_options o = budget_between(f, c.model, i == 0 ? 0.3 : 1.5);
        uint64_t before = held(f);
        atomic_store(&c.done, false);
        assert_int_equal(pthread_create(&thread, NULL, keep_cancelling, &c), 0);
        weir_status status = weir_model_predict(c.model, &o, 0, &p, &f->err);
        atomic_store(&c.done, true);
        pthread_join(thread, NULL);
        assert_int_equal(status, WEIR_ERR_CANCELLED);
        assert_mentions(f->err.message, "cancelled");
        assert_int_equal(held(f), before);
        /* The next call clears it. */
        if (i == 0) continue;
        assert_ok(f, weir_model_predict(c.model, &o, 0, &p, &f->err));
        assert_true(p.tokens_per_s > 0);
    }
    weir_model_close(c.model);
}

/* Where the rehearsal with all weights in memory lacks room, which shows late here, the plan's own does, and
 * that is told. */
static void test_falls_back(void **state)
{
    fixture *f = *state;
    base_env *env = f->context->env;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = budget_between(f, m, 0.3);
    weir_prediction p = {0};
    char rule[64];
    m->storage = (base_storage){.bytes_per_s = 1e9, .depth = 8, .read_bytes = 1 << 20};
    assert_ok(f, base_fault_count_on(env, &f->err));
    uint64_t before = held(f), passages = base_fault_count(env, BASE_FAULT_HOST_ALLOC);
    assert_ok(f, weir_model_predict(m, &o, 1e9, &p, &f->err));
    assert_true(p.storage_bytes_per_s == 1e9); /* it streams */
    assert_string_equal(p.note, "");
    passages = base_fault_count(env, BASE_FAULT_HOST_ALLOC) - passages;
    assert_true(passages > 10);
    weir_status status = WEIR_OK;
    for (uint64_t i = 1; i < passages && p.note[0] == '\0'; i++) { /* the last ones are in or behind it */
        snprintf(rule, sizeof rule, "host_alloc:%llu", (unsigned long long)(passages - i));
        assert_ok(f, base_fault_parse(env, rule, &f->err));
        status = weir_model_predict(m, &o, 1e9, &p, &f->err);
        base_fault_clear(env);
        if (status != WEIR_OK) assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
    }
    assert_int_equal(status, WEIR_OK);
    assert_mentions(p.note, "no room");
    assert_true(p.tokens_per_s > 0 && p.compute_bytes_per_s > 0);
    assert_int_equal(held(f), before);
    weir_model_close(m);
}

/* Measured once, remembered by the next context, and not at all where the setting says so. */
static void test_storage(void **state)
{
    fixture *f = *state;
    char folder[256], file[300];
    snprintf(folder, sizeof folder, "%s/cache", f->folder);
    snprintf(file, sizeof file, "%s/storage", folder);
    const char *path = make_model(f, "llama", 256);
    weir_storage s = {0}, again = {0};
    weir_model *m;
    assert_ok(f, weir_context_set(f->context, "cache_folder", folder, &f->err));
    assert_ok(f, weir_context_set(f->context, "io.probe", "off", &f->err));
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_storage(m, true, &s, &f->err));
    assert_true(s.bytes_per_s == 0 && !s.fresh);
    assert_ok(f, weir_context_set(f->context, "io.probe", "auto", &f->err));
    assert_ok(f, weir_model_storage(m, false, &s, &f->err));
    assert_true(s.bytes_per_s == 0 && !s.fresh);
    assert_ok(f, weir_model_storage(m, true, &s, &f->err));
    assert_true(s.bytes_per_s > 0 && s.fresh && s.depth > 0 && s.read_bytes >= 4096);
    assert_ok(f, weir_model_storage(m, true, &again, &f->err));
    assert_true(again.bytes_per_s == s.bytes_per_s && !again.fresh);
    weir_model_close(m);
    assert_int_equal(access(file, R_OK), 0);
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_storage(m, false, &again, &f->err));
    assert_true(fabs(again.bytes_per_s / s.bytes_per_s - 1) < 1e-6 && again.measured_at == s.measured_at);
    weir_model_close(m);
    assert_ok(f, weir_storage_read(f->context, path, false, &again, &f->err));
    assert_true(again.bytes_per_s > 0);
    assert_int_equal(weir_storage_read(f->context, "/nowhere/at/all", false, &again, &f->err),
                     WEIR_ERR_NOT_FOUND);
    unlink(file);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_relations, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_whole, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_kinds, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_memory, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_auto_maps_by_speed, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_larger_machine, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test(test_whole_pass),
        cmocka_unit_test_setup_teardown(test_cut, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancelled, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_falls_back, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_storage, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_predict", tests, NULL, NULL);
}
