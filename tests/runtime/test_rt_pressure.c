/* Budgets that change beneath sessions (R6.5, X1): by call, and by what the machine says is left. The machine
 * is a folder with a meminfo of ours, the clock a variable. */
#include "rt_test.h"

#include <sys/stat.h>

enum { N_TOKENS = 12, N_VOCAB = 512 };

/* 20 MB, so that it is more than what a process may be off by. */
static weir_model *open_larger(fixture *f)
{
    static char path[256];
    weir_synth_options o;
    weir_model *m;
    weir_synth_options_init(&o);
    o.arch = "llama";
    o.type = "Q8_0";
    o.hidden = 512;
    o.n_layers = 8;
    o.n_heads = 8;
    o.n_kv_heads = 4;
    o.ffn = 1024;
    o.n_vocab = N_VOCAB;
    o.ctx_tokens = 512;
    o.seed = 7;
    snprintf(path, sizeof path, "%s/llama.gguf", f->folder);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    return m;
}

static uint64_t hash_step(fixture *f, weir_session *s, const int32_t *tokens, size_t n)
{
    const float *logits = NULL;
    assert_ok(f, weir_session_append(s, tokens, n, &logits, &f->err));
    for (int i = 0; i < N_VOCAB; i++) assert_true(isfinite(logits[i]));
    return weir_logits_hash(WEIR_HASH_SEED, logits, N_VOCAB);
}

static weir_memory_report report(fixture *f, weir_model *m)
{
    weir_memory_report r = {.struct_size = sizeof r};
    assert_ok(f, weir_model_memory(m, &r, &f->err));
    return r;
}

/* The hashes of each step with all weights in memory. */
static void reference(fixture *f, weir_model *m, const int32_t *tokens, uint64_t *hashes)
{
    weir_load_options o = load_options(128, 1);
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    for (int i = 0; i < N_TOKENS; i++) hashes[i] = hash_step(f, s, tokens + i, 1);
    weir_session_destroy(s);
    weir_model_unload(m);
    assert_true(hashes[0] != hashes[1]);
}

static void bounds(fixture *f, weir_model *m, weir_load_options *o, uint64_t *smallest, uint64_t *whole)
{
    weir_plan plan = {.struct_size = sizeof plan};
    *o = load_options(128, 1);
    o->prefill_chunk = 4;
    assert_ok(f, weir_model_plan(m, o, &plan, &f->err));
    *smallest = plan.smallest_bytes;
    *whole = plan.whole_bytes;
}

static void test_by_call(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    int32_t tokens[N_TOKENS];
    uint64_t wanted[N_TOKENS], smallest, whole;
    weir_load_options o;
    some_tokens(tokens, N_TOKENS, N_VOCAB, 3);
    reference(f, m, tokens, wanted);
    bounds(f, m, &o, &smallest, &whole);
    assert_int_equal(weir_model_set_budget(m, whole, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o.mem_bytes = whole + MIB;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    const double shares[N_TOKENS] = {1, 0.5, 0, 0.3, 1, 0, 0.9, 0.1, 0.7, 0.2, 1, 0.4};
    for (int i = 0; i < N_TOKENS; i++) {
        uint64_t budget = smallest + MIB / 4 + (uint64_t)(shares[i] * (double)(whole - smallest));
        assert_ok(f, weir_model_set_budget(m, budget, &f->err));
        weir_memory_report r = report(f, m);
        assert_int_equal(r.budget_bytes, budget);
        assert_true(r.planned_peak_bytes <= budget);
        assert_true(r.ledger_bytes <= budget);
        if (shares[i] == 1) assert_int_equal(r.streamed_bytes, 0);
        if (shares[i] <= 0.5) assert_true(r.streamed_bytes > 0);
        assert_int_equal(hash_step(f, s, tokens + i, 1), wanted[i]);
        /* Refused, and nothing changed. */
        assert_int_equal(weir_model_set_budget(m, smallest / 2, &f->err), WEIR_ERR_BUDGET);
        assert_int_equal(report(f, m).budget_bytes, budget);
    }
    assert_true(report(f, m).read_bytes > 0);
    assert_int_equal(weir_session_position(s), N_TOKENS);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* X5: a change that cannot be carried out leaves what was. */
static void test_faults(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    int32_t tokens[N_TOKENS];
    uint64_t wanted[N_TOKENS], smallest, whole;
    weir_load_options o;
    some_tokens(tokens, N_TOKENS, N_VOCAB, 3);
    reference(f, m, tokens, wanted);
    bounds(f, m, &o, &smallest, &whole);
    o.mem_bytes = whole + MIB;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    uint64_t half = smallest + (whole - smallest) / 2;
    uint32_t failed = 0;
    for (int i = 0; i < N_TOKENS; i++) {
        char rule[32];
        snprintf(rule, sizeof rule, "host_alloc:%d", i);
        assert_ok(f, base_fault_parse(f->context->env, rule, &f->err));
        weir_status status = weir_model_set_budget(m, half, &f->err);
        base_fault_clear(f->context->env);
        assert_true(status == WEIR_OK || status == WEIR_ERR_OUT_OF_MEMORY);
        assert_int_equal(report(f, m).budget_bytes, status == WEIR_OK ? half : whole + MIB);
        assert_int_equal(hash_step(f, s, tokens + i, 1), wanted[i]);
        if (status == WEIR_OK) assert_ok(f, weir_model_set_budget(m, whole + MIB, &f->err));
        failed += status != WEIR_OK;
    }
    assert_true(failed > 0);
    weir_session_destroy(s);
    weir_model_close(m);
}

static double clock_now;

static double read_clock(void *arg)
{
    (void)arg;
    return clock_now;
}

static void set_available(const fixture *f, uint64_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/proc/meminfo", f->folder);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: %llu kB\n",
            (unsigned long long)(bytes >> 10));
    fclose(out);
}

static void test_by_the_machine(void **state)
{
    fixture *f = *state;
    char path[256];
    int32_t tokens[N_TOKENS];
    uint64_t wanted[N_TOKENS], smallest, whole;
    weir_load_options o;
    weir_model *m = open_larger(f);
    some_tokens(tokens, N_TOKENS, N_VOCAB, 3);
    reference(f, m, tokens, wanted);
    bounds(f, m, &o, &smallest, &whole);
    snprintf(path, sizeof path, "%s/proc", f->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    set_available(f, UINT64_C(8) << 30);
    assert_ok(f, weir_context_set(f->context, "proc_root", path, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.ram_reserve", "800MiB", &f->err));
    f->context->env->clock_fn = read_clock;
    /* A budget that was given, far above what is needed. */
    o.mem_bytes = whole + 64 * MIB;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    int at = 0;
    clock_now += 1;
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    at++;
    assert_int_equal(report(f, m).streamed_bytes, 0);
    /* Memory of the machine is gone: down to the smallest working set, not below. Not before a while has
     * passed, though. */
    set_available(f, 0);
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    at++;
    assert_int_equal(report(f, m).streamed_bytes, 0);
    clock_now += 1;
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    at++;
    weir_memory_report r = report(f, m);
    assert_true(r.streamed_bytes > 5 * MIB && r.budget_bytes < whole);
    /* It comes back, after a while. */
    set_available(f, UINT64_C(8) << 30);
    clock_now += 1;
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    at++;
    assert_int_equal(report(f, m).budget_bytes, r.budget_bytes);
    clock_now += 10;
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    at++;
    assert_int_equal(report(f, m).budget_bytes, whole + 64 * MIB);
    assert_int_equal(report(f, m).streamed_bytes, 0);
    /* Turned off: nothing happens. */
    assert_ok(f, weir_context_set(f->context, "compute.pressure", "off", &f->err));
    set_available(f, 0);
    clock_now += 10;
    assert_int_equal(hash_step(f, s, tokens + at, 1), wanted[at]);
    assert_int_equal(report(f, m).budget_bytes, whole + 64 * MIB);
    weir_session_destroy(s);
    weir_model_close(m);
    snprintf(path, sizeof path, "%s/proc/meminfo", f->folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/proc", f->folder);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_by_call, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_by_the_machine, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_pressure", tests, NULL, NULL);
}
