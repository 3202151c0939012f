/* Budgets that change beneath sessions (R6.5, X1): by call, and by what the machine says is left. The machine
 * is a folder with a meminfo of ours, the clock a variable. */
#include "rt_test.h"

#include <sys/stat.h>

enum { N_TOKENS = 12, N_LONG = 64, N_VOCAB = 512 };

static weir_model *open_llama(fixture *f, uint32_t hidden, uint32_t n_kv_heads, uint32_t ctx_tokens)
{
    static char path[256];
    weir_synth_options o;
    weir_model *m;
    weir_synth_options_init(&o);
    o.arch = "llama";
    o.type = "Q8_0";
    o.hidden = hidden;
    o.n_layers = 8;
    o.n_heads = 8;
    o.n_kv_heads = n_kv_heads;
    o.ffn = 2 * hidden;
    o.n_vocab = N_VOCAB;
    o.ctx_tokens = ctx_tokens;
    o.seed = 7;
    snprintf(path, sizeof path, "%s/llama.gguf", f->folder);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    return m;
}

/* 20 MB, so that it is more than what a process may be off by. */
static weir_model *open_larger(fixture *f)
{
    return open_llama(f, 512, 4, 512);
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

static void put(const fixture *f, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static void set_available(const fixture *f, uint64_t bytes)
{
    char text[128];
    snprintf(text, sizeof text, "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: %llu kB\n",
             (unsigned long long)(bytes >> 10));
    put(f, "proc/meminfo", text);
}

/* Of a control group that nobody else is in. */
static void set_limit(const fixture *f, uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)bytes);
    put(f, "proc/g/memory.max", text);
}

/* A machine of 64 GiB, of which 8 are there, without control groups but for the one of set_limit. An eighth
 * of the reserve is what a given budget leaves. */
static void make_machine(fixture *f)
{
    const char *const folders[] = {"proc", "proc/self", "proc/g"};
    char path[256];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", f->folder, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    put(f, "proc/self/cgroup", "0::/g\n");
    put(f, "proc/cgroup.controllers", "memory\n");
    put(f, "proc/g/memory.current", "0\n");
    put(f, "proc/g/memory.max", "max\n");
    set_available(f, UINT64_C(8) << 30);
    snprintf(path, sizeof path, "%s/proc", f->folder);
    assert_ok(f, weir_context_set(f->context, "proc_root", path, &f->err));
    assert_ok(f, weir_context_set(f->context, "cgroup_root", path, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.ram_reserve", "16GiB", &f->err));
    f->context->env->clock_fn = read_clock;
}

static void drop_machine(const fixture *f)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s/proc", f->folder);
    assert_int_equal(system(command), 0);
}

/* A model and a session whose every step must give the bits that it gives with all weights in memory. */
typedef struct talk {
    weir_model *m;
    weir_session *s;
    int at;
    int32_t tokens[N_LONG];
    uint64_t wanted[N_LONG];
} talk;

static talk *talk_begin(fixture *f, weir_model *m)
{
    talk *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->m = m;
    some_tokens(t->tokens, N_LONG, N_VOCAB, 3);
    weir_load_options o = load_options(128, 1);
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    for (int i = 0; i < N_LONG; i++) t->wanted[i] = hash_step(f, s, t->tokens + i, 1);
    weir_session_destroy(s);
    weir_model_unload(m);
    assert_true(t->wanted[0] != t->wanted[1]);
    return t;
}

static void talk_load(fixture *f, talk *t, const weir_load_options *o)
{
    assert_ok(f, weir_model_load(t->m, o, &f->err));
    t->s = new_session(f, t->m);
    t->at = 0;
}

/* A step, so many seconds after the last. */
static void step(fixture *f, talk *t, double seconds)
{
    clock_now += seconds;
    assert_true(t->at < N_LONG);
    assert_int_equal(hash_step(f, t->s, t->tokens + t->at, 1), t->wanted[t->at]);
    t->at++;
}

static void talk_end(talk *t)
{
    weir_session_destroy(t->s);
    weir_model_close(t->m);
    free(t);
}

static bool streams(fixture *f, const talk *t)
{
    return report(f, t->m).streamed_bytes != 0;
}

/* The machine runs out of memory, and has it again. */
static void run_short(fixture *f, const char *reserve, bool is_default)
{
    uint64_t smallest, whole;
    weir_load_options o;
    /* By itself the reserve goes by what the process holds, of which a sanitizer's own memory is the most. */
    if (RT_SANITIZED && strcmp(reserve, "auto") == 0) skip();
    talk *t = talk_begin(f, open_larger(f));
    make_machine(f);
    assert_ok(f, weir_context_set(f->context, "compute.ram_reserve", reserve, &f->err));
    bounds(f, t->m, &o, &smallest, &whole);
    /* A budget that was given, far above what is needed; or what the machine leaves. */
    o.mem_bytes = is_default ? 0 : whole + 64 * MIB;
    talk_load(f, t, &o);
    step(f, t, 1);
    assert_false(streams(f, t));
    uint64_t full = report(f, t->m).budget_bytes, peak = report(f, t->m).planned_peak_bytes;
    assert_true(full >= whole + 64 * MIB);
    /* Memory is gone: half of what is held goes at the first look, for a while has to pass, and by and by all
     * but the smallest working set. */
    set_available(f, 0);
    step(f, t, 0);
    assert_false(streams(f, t));
    step(f, t, 1);
    weir_memory_report r = report(f, t->m);
    assert_true(r.streamed_bytes > 5 * MIB && r.budget_bytes < peak / 5 * 3);
    for (int i = 0; i < 8; i++) step(f, t, 0.3);
    r = report(f, t->m);
    assert_in_range(r.budget_bytes, smallest, smallest + 4 * MIB);
    /* It comes back, after a while. */
    set_available(f, UINT64_C(8) << 30);
    step(f, t, 1);
    assert_int_equal(report(f, t->m).budget_bytes, r.budget_bytes);
    step(f, t, 10);
    assert_false(streams(f, t));
    if (!is_default) assert_int_equal(report(f, t->m).budget_bytes, full);
    /* Turned off: nothing happens. */
    full = report(f, t->m).budget_bytes;
    assert_ok(f, weir_context_set(f->context, "compute.pressure", "off", &f->err));
    set_available(f, 0);
    step(f, t, 10);
    assert_int_equal(report(f, t->m).budget_bytes, full);
    talk_end(t);
    drop_machine(f);
}

static void test_given_reserve(void **state)
{
    run_short(*state, "16GiB", false);
}

static void test_given_budget(void **state)
{
    run_short(*state, "auto", false);
}

static void test_default_budget(void **state)
{
    run_short(*state, "auto", true);
}

/* X5: what follows by itself may fail; the step it came before goes on with the weights that are there. */
static void test_faults_while_following(void **state)
{
    fixture *f = *state;
    const char *const sites[] = {"host_alloc", "read", "submit", "completion"};
    uint64_t smallest, whole;
    uint32_t stayed_large = 0, stayed_small = 0;
    weir_load_options o;
    talk *t = talk_begin(f, open_larger(f));
    make_machine(f);
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + 64 * MIB;
    for (int i = 0; i < 16; i++) {
        char rule[40];
        talk_load(f, t, &o);
        set_available(f, 0);
        snprintf(rule, sizeof rule, "host_alloc:%d", i / 2);
        assert_ok(f, base_fault_parse(f->context->env, rule, &f->err));
        step(f, t, 1);
        base_fault_clear(f->context->env);
        stayed_large += !streams(f, t);
        for (int k = 0; k < 8 && report(f, t->m).streamed_bytes <= 5 * MIB; k++) step(f, t, 5);
        assert_true(streams(f, t));
        set_available(f, UINT64_C(8) << 30);
        snprintf(rule, sizeof rule, "%s:%d", sites[i % 4], i / 4);
        assert_ok(f, base_fault_parse(f->context->env, rule, &f->err));
        step(f, t, 10);
        base_fault_clear(f->context->env);
        stayed_small += streams(f, t);
        step(f, t, 10);
        assert_false(streams(f, t));
        weir_session_destroy(t->s);
        t->s = NULL;
    }
    assert_true(stayed_large > 0);
    assert_true(stayed_small > 0);
    talk_end(t);
    drop_machine(f);
}

/* A program that waits gives back without a run. */
static void test_while_waiting(void **state)
{
    fixture *f = *state;
    uint64_t smallest, whole;
    weir_load_options o;
    talk *t = talk_begin(f, open_larger(f));
    make_machine(f);
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + 64 * MIB;
    assert_int_equal(weir_model_follow_memory(t->m, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    talk_load(f, t, &o);
    step(f, t, 1);
    set_available(f, 0);
    for (int i = 0; i < 8; i++) {
        clock_now += 1;
        assert_ok(f, weir_model_follow_memory(t->m, &f->err));
    }
    assert_true(report(f, t->m).streamed_bytes > 5 * MIB);
    step(f, t, 0);
    set_available(f, UINT64_C(8) << 30);
    clock_now += 10;
    assert_ok(f, weir_model_follow_memory(t->m, NULL));
    assert_false(streams(f, t));
    step(f, t, 0);
    assert_ok(f, weir_context_set(f->context, "compute.pressure", "on", &f->err));
    assert_int_equal(weir_model_follow_memory(t->m, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "auto or off");
    talk_end(t);
    drop_machine(f);
}

/* A limit that is being lowered leaves room for its next step, but not for good. */
static void test_falling_limit(void **state)
{
    fixture *f = *state;
    uint64_t smallest, whole;
    weir_load_options o;
    talk *t = talk_begin(f, open_larger(f));
    make_machine(f);
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + 2 * MIB;
    talk_load(f, t, &o);
    uint64_t peak = report(f, t->m).planned_peak_bytes;
    set_limit(f, peak + 64 * MIB);
    step(f, t, 1);
    assert_false(streams(f, t));
    set_limit(f, peak + 8 * MIB);
    step(f, t, 1);
    assert_true(streams(f, t));
    step(f, t, 7); /* may grow by its own last change, but not yet */
    assert_true(streams(f, t));
    step(f, t, 7);
    assert_false(streams(f, t));
    assert_int_equal(report(f, t->m).budget_bytes, o.mem_bytes);
    /* A higher one ends it at once. */
    set_limit(f, peak + 4 * MIB);
    step(f, t, 1);
    assert_true(streams(f, t));
    set_limit(f, peak + 64 * MIB);
    step(f, t, 6);
    assert_false(streams(f, t));
    talk_end(t);
    drop_machine(f);
}

/* In a control group no more may be planned than limit and reserve cover, however much is held. */
static void test_small_reserve(void **state)
{
    fixture *f = *state;
    weir_model *m = open_llama(f, 1024, 8, 4096);
    make_machine(f);
    set_available(f, UINT64_C(60) << 30);
    set_limit(f, UINT64_C(16) << 30);
    weir_load_options o = load_options(4096, 1);
    o.n_sessions = 64; /* planned, and not there yet */
    o.max_batch = 1;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_memory_report r = report(f, m);
    assert_int_equal(r.streamed_bytes, 0);
    assert_true(r.planned_peak_bytes / 32 > 100 * MIB && r.ledger_bytes < r.planned_peak_bytes / 2);
    set_limit(f, r.planned_peak_bytes + 64 * MIB - 50 * MIB);
    clock_now += 1;
    assert_ok(f, weir_model_follow_memory(m, &f->err));
    assert_true(report(f, m).planned_peak_bytes + 50 * MIB <= r.planned_peak_bytes);
    weir_model_close(m);
    drop_machine(f);
}

/* Two models of one context, in either order: what is short is taken from the one that can give. */
static void share(fixture *f, bool large_first)
{
    weir_load_options o = load_options(128, 1);
    weir_plan plan = {.struct_size = sizeof plan};
    talk *large = talk_begin(f, open_larger(f)), *small = talk_begin(f, open_small(f, "qwen2"));
    talk *first = large_first ? large : small, *last = large_first ? small : large;
    make_machine(f);
    o.prefill_chunk = 4;
    assert_ok(f, weir_model_plan(first->m, &o, &plan, &f->err));
    o.mem_bytes = plan.whole_bytes + MIB;
    talk_load(f, first, &o);
    o.mem_bytes = 0;
    assert_ok(f, weir_model_plan(last->m, &o, &plan, &f->err));
    o.mem_bytes = plan.whole_bytes + 3 * MIB;
    talk_load(f, last, &o);
    step(f, small, 1);
    step(f, large, 1);
    weir_memory_report one = report(f, first->m), both = report(f, last->m);
    assert_int_equal(one.streamed_bytes + both.streamed_bytes, 0);
    assert_true(both.planned_peak_bytes > one.planned_peak_bytes);
    assert_int_equal(weir_model_set_budget(large->m, o.mem_bytes, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    set_available(f, 0);
    for (int i = 0; i < 8 && report(f, large->m).streamed_bytes <= 5 * MIB; i++) step(f, small, 1);
    assert_true(report(f, large->m).streamed_bytes > 5 * MIB);
    weir_memory_report now = report(f, last->m);
    assert_true(now.budget_bytes + 5 * MIB < both.budget_bytes);
    assert_true(now.planned_peak_bytes <= now.budget_bytes && now.ledger_bytes <= now.budget_bytes);
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    assert_int_equal(v.limit_bytes, now.budget_bytes);
    for (int i = 0; i < 4; i++) {
        step(f, large, 0.1);
        step(f, small, 0.1);
    }
    set_available(f, UINT64_C(8) << 30);
    step(f, small, 10); /* takes nothing from what the other lacks */
    assert_true(streams(f, large));
    step(f, large, 1);
    step(f, small, 10);
    step(f, large, 1);
    assert_int_equal(report(f, first->m).planned_peak_bytes, one.planned_peak_bytes);
    assert_int_equal(report(f, last->m).planned_peak_bytes, both.planned_peak_bytes);
    assert_int_equal(report(f, last->m).budget_bytes, both.budget_bytes);
    assert_int_equal(report(f, large->m).streamed_bytes + report(f, small->m).streamed_bytes, 0);
    talk_end(large);
    talk_end(small);
    drop_machine(f);
}

static void test_large_before_small(void **state)
{
    share(*state, true);
}

static void test_small_before_large(void **state)
{
    share(*state, false);
}

/* R15.1: weights that were mapped are mapped again when all of them stay. */
static void test_mapped_again(void **state)
{
    fixture *f = *state;
    uint64_t smallest, whole;
    weir_load_options o;
    talk *t = talk_begin(f, open_small(f, "llama"));
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + MIB;
    o.weights = WEIR_WEIGHTS_MAP;
    talk_load(f, t, &o);
    step(f, t, 0);
    uint64_t mapped = report(f, t->m).mapped_bytes, ledger = report(f, t->m).ledger_bytes;
    assert_true(mapped > 0);
    assert_ok(f, weir_model_set_budget(t->m, smallest + MIB / 4, &f->err));
    assert_int_equal(report(f, t->m).mapped_bytes, 0);
    step(f, t, 0);
    assert_ok(f, weir_model_set_budget(t->m, o.mem_bytes, &f->err));
    assert_int_equal(report(f, t->m).mapped_bytes, mapped);
    assert_int_equal(report(f, t->m).ledger_bytes, ledger);
    step(f, t, 0);
    talk_end(t);
}

/* And a shrink that fails maps them again, instead of reading all into memory. */
static void test_mapped_stays(void **state)
{
    fixture *f = *state;
    uint64_t smallest, whole;
    uint32_t failed = 0;
    weir_load_options o;
    talk *t = talk_begin(f, open_small(f, "llama"));
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + MIB;
    o.weights = WEIR_WEIGHTS_MAP;
    talk_load(f, t, &o);
    uint64_t mapped = report(f, t->m).mapped_bytes, ledger = report(f, t->m).ledger_bytes;
    assert_true(mapped > 0);
    for (int i = 0; i < 4; i++) {
        char rule[40];
        snprintf(rule, sizeof rule, "host_alloc:%d", i);
        assert_ok(f, base_fault_parse(f->context->env, rule, &f->err));
        weir_status status = weir_model_set_budget(t->m, smallest + MIB / 4, &f->err);
        base_fault_clear(f->context->env);
        if (status == WEIR_OK) break;
        failed++;
        mem_stats stats;
        mem_component_stats(t->m->component, &stats);
        assert_true(strstr(stats.reader, "mapped") != NULL);
        assert_int_equal(report(f, t->m).mapped_bytes, mapped);
        assert_int_equal(report(f, t->m).ledger_bytes, ledger);
        step(f, t, 0);
    }
    assert_true(failed > 0);
    talk_end(t);
}

/* Weights that are all there need no file: that it was replaced ends no run because memory is short. */
static void test_replaced_file(void **state)
{
    fixture *f = *state;
    char path[256], other[256];
    uint64_t smallest, whole;
    weir_load_options o;
    talk *t = talk_begin(f, open_larger(f));
    make_machine(f);
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + 64 * MIB;
    talk_load(f, t, &o);
    step(f, t, 1);
    snprintf(path, sizeof path, "%s/llama.gguf", f->folder);
    snprintf(other, sizeof other, "%s/other.gguf", f->folder);
    FILE *out = fopen(other, "w");
    assert_non_null(out);
    fclose(out);
    assert_int_equal(rename(other, path), 0);
    set_available(f, 0);
    step(f, t, 1);
    step(f, t, 5);
    assert_false(streams(f, t));
    assert_int_equal(weir_model_set_budget(t->m, smallest, &f->err), WEIR_ERR_FILE_CHANGED);
    step(f, t, 5);
    talk_end(t);
    drop_machine(f);
}

/* A smaller budget that the ledger refuses, since others hold more than was planned: all is as before. */
static void test_refused_by_the_ledger(void **state)
{
    fixture *f = *state;
    uint64_t smallest, whole;
    weir_load_options o;
    mem_stats before, after;
    talk *t = talk_begin(f, open_larger(f));
    bounds(f, t->m, &o, &smallest, &whole);
    o.mem_bytes = whole + 8 * MIB;
    talk_load(f, t, &o);
    assert_ok(f, base_ledger_reserve(f->context->env, BASE_TAG_RUNTIME, 7 * MIB, &f->err));
    assert_int_equal(weir_model_set_budget(t->m, smallest, &f->err), WEIR_ERR_BUDGET);
    assert_int_equal(report(f, t->m).budget_bytes, o.mem_bytes);
    assert_false(streams(f, t));
    mem_component_stats(t->m->component, &before);
    step(f, t, 0);
    mem_component_stats(t->m->component, &after);
    assert_int_equal(after.streamed_bytes, before.streamed_bytes);
    base_ledger_release(f->context->env, BASE_TAG_RUNTIME, 7 * MIB);
    assert_ok(f, weir_model_set_budget(t->m, smallest, &f->err));
    assert_true(streams(f, t));
    step(f, t, 0);
    talk_end(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_by_call, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_given_reserve, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_given_budget, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_default_budget, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults_while_following, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_while_waiting, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_falling_limit, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_small_reserve, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_large_before_small, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_small_before_large, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_mapped_again, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_mapped_stays, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_replaced_file, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refused_by_the_ledger, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_pressure", tests, NULL, NULL);
}
