/* Caches that grow (R9.2, R11.1): the bits are those of whole caches for every architecture, alone and in
 * shared passes, with guesses, after resets, on devices; the ledger holds what the formulas say, and the plan
 * what the ledger holds; memory that is missing stops the call and nothing else (X5). */
#include "rt_test.h"

#define CTX   1600
#define STEPS 8

static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
static const char *const growths[] = {"full", "dynamic", "static"};

static void set(fixture *f, const char *name, const char *value)
{
    assert_ok(f, weir_context_set(f->context, name, value, &f->err));
}

static weir_model *load(fixture *f, const char *arch, const char *growth, const weir_load_options *o)
{
    weir_model *m = open_tiny(f, arch);
    set(f, "compute.kv_cache", growth);
    assert_ok(f, weir_model_load(m, o, &f->err));
    return m;
}

static uint64_t caches_now(const fixture *f)
{
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    return v.tag_bytes[BASE_TAG_KV];
}

static uint64_t caches_peak(const fixture *f)
{
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    return v.tag_peak_bytes[BASE_TAG_KV];
}

static uint64_t planned_caches(const weir_model *m)
{
    return m->run->plan.tag_bytes[BASE_TAG_KV];
}

/* Of the tiny models: 2 heads of 32 elements, K and V, F16; a layer's block is whole pages. */
static uint64_t layer_bytes(uint32_t positions)
{
    return base_align_up((uint64_t)positions * 2 * 2 * 32 * 2, 4096);
}

/* ---- the same bits ---- */

static uint64_t add_hash(fixture *f, weir_session *s, uint64_t hash, const int32_t *tokens, size_t n)
{
    const float *logits;
    assert_ok(f, weir_session_append(s, tokens, n, &logits, &f->err));
    return weir_logits_hash(hash, logits, lm_model_hparams(s->model->lm)->n_vocab);
}

/* Texts that cross steps in the middle of a prompt, of a pass, and token by token; sessions that join a pass
 * and leave it; one that is reset, cut and used again. */
static uint64_t story(fixture *f, weir_model *m)
{
    static int32_t tokens[CTX];
    uint64_t hash = WEIR_HASH_SEED;
    uint32_t n_vocab = lm_model_hparams(m->lm)->n_vocab;
    weir_session *a = new_session(f, m), *b = new_session(f, m);
    some_tokens(tokens, CTX, 512, 3);
    hash = add_hash(f, a, hash, tokens, 505);
    hash = add_hash(f, b, hash, tokens + 9, 1020);
    for (int i = 0; i < 2 * STEPS; i++) {
        weir_run runs[2] = {{.session = a, .tokens = tokens + i, .n_tokens = 1, .n_logits = 1},
                            {.session = b, .tokens = tokens + 2 * i, .n_tokens = 2, .n_logits = 1}};
        size_t n = i < STEPS ? 2 : 1; /* b leaves */
        assert_ok(f, weir_step_runs(runs, n, &f->err));
        for (size_t k = 0; k < n; k++) hash = weir_logits_hash(hash, runs[k].logits, n_vocab);
    }
    hash = add_hash(f, a, hash, tokens, 900);
    assert_ok(f, weir_session_truncate(a, 700, &f->err));
    hash = add_hash(f, a, hash, tokens + 50, 40);
    weir_session_reset(b);
    hash = add_hash(f, b, hash, tokens, CTX);
    assert_int_equal(weir_session_append(b, tokens, 1, NULL, &f->err), WEIR_ERR_CONTEXT_FULL);
    assert_ok(f, weir_session_truncate(a, 0, &f->err));
    hash = add_hash(f, a, hash, tokens + 1, 600);
    weir_session_destroy(a);
    weir_session_destroy(b);
    return hash;
}

/* R9.2, R11.1: with short and long passes (a window's ring grows to more than the first step with the long
 * ones, and is whole from the start with the short), and with caches of both types. */
static void test_equal_bits(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a += RT_SANITIZED ? 3 : 1) { /* those are slow */
        for (int wide = 0; wide < 2; wide++) {
            weir_load_options o = load_options(CTX, 2);
            uint64_t wanted = 0;
            o.n_sessions = 2;
            o.prefill_chunk = wide ? 512 : 48;
            o.kv_type = wide ? WEIR_KV_F32 : WEIR_KV_F16;
            for (size_t g = 0; g < 3; g++) {
                weir_model *m = load(f, archs[a], growths[g], &o);
                uint64_t hash = story(f, m);
                assert_true(hash != WEIR_HASH_SEED);
                if (g == 0) wanted = hash;
                if (hash != wanted) fail_msg("%s, %s: other bits", archs[a], growths[g]);
                assert_int_equal(caches_now(f), 0);
                assert_true(caches_peak(f) <= planned_caches(m));
                weir_model_close(m);
            }
        }
    }
}

/* R11.1, X4: guesses and the answers' own passes. */
static void test_guesses(void **state)
{
    fixture *f = *state;
    static int32_t tokens[600];
    some_tokens(tokens, 300, 500, 5);
    memcpy(tokens + 300, tokens, 300 * sizeof *tokens);
    uint64_t wanted[4] = {0};
    for (size_t g = 0; g < 3; g++) {
        for (size_t a = 0; a < 4; a += RT_SANITIZED ? 3 : 1) {
            weir_load_options o = load_options(CTX, 2);
            weir_generate_options go;
            weir_result r;
            weir_generate_options_init(&go);
            go.max_tokens = 480;
            go.ignore_end = true;
            go.speculate = a % 2 == 0 ? WEIR_SPECULATE_LOOKUP : WEIR_SPECULATE_OFF;
            weir_model *m = load(f, archs[a], growths[g], &o);
            weir_session *s = new_session(f, m);
            assert_ok(f, weir_generate(s, tokens, 600, &go, &r, &f->err));
            assert_int_equal(r.n_tokens, 480);
            if (g == 0) wanted[a] = r.logits_hash;
            assert_true(wanted[a] != 0);
            assert_int_equal(r.logits_hash, wanted[a]);
            if (g != 0) assert_true(lm_kv_positions(s->kv) >= 1079 && lm_kv_positions(s->kv) <= CTX);
            weir_result_finish(m, &r);
            weir_session_destroy(s);
            weir_model_close(m);
        }
    }
}

/* Guesses alone never make caches grow: what plain decoding does not need yet may not be there. */
static void test_guesses_wait_for_room(void **state)
{
    fixture *f = *state;
    int32_t tokens[520];
    for (int i = 0; i < 520; i++) tokens[i] = 20 + i % 7;
    const struct {
        uint32_t n_tokens, guesses[3];
    } cases[] = {{490, {15, 15, 15}}, {510, {15, 2, 2}}, {512, {15, 0, 0}}, {513, {15, 15, 15}}};
    for (size_t g = 0; g < 3; g++) {
        weir_load_options o = load_options(CTX, 2);
        weir_generate_options go;
        weir_generate_options_init(&go);
        go.speculate = WEIR_SPECULATE_LOOKUP;
        weir_model *m = load(f, archs[0], growths[g], &o);
        weir_session *s = new_session(f, m);
        for (size_t i = 0; i < 4; i++) {
            weir_answer *a;
            weir_session_reset(s);
            assert_ok(f, weir_answer_begin(s, tokens, cases[i].n_tokens, &go, &a, &f->err));
            rt_share share = {.session = s, .answer = a, .n_rows = 1, .n_outputs = 1};
            rt_speculate(m->run, &share, 1, 15, 15);
            assert_int_equal(share.n_rows, 1 + cases[i].guesses[g]);
            assert_ok(f, weir_answer_end(a, NULL, &f->err));
        }
        weir_session_destroy(s);
        weir_model_close(m);
    }
}

/* ---- what it takes ---- */

/* R9.2 by hand: llama has three layers of full attention. */
static void test_formulas(void **state)
{
    fixture *f = *state;
    weir_load_options o = load_options(CTX, 1);
    int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    weir_model *m = load(f, "llama", "dynamic", &o);
    assert_int_equal(planned_caches(m), 3 * layer_bytes(CTX) + layer_bytes(1536));
    weir_session *s = new_session(f, m);
    assert_int_equal(caches_now(f), 0);
    const uint32_t upto[] = {1, 512, 513, 1024, 1025, 1536, 1537, CTX};
    const uint32_t room[] = {512, 512, 1024, 1024, 1536, 1536, CTX, CTX};
    for (size_t i = 0; i < 8; i++) {
        uint32_t from = weir_session_position(s);
        assert_ok(f, weir_session_append(s, tokens, upto[i] - from, NULL, &f->err));
        assert_int_equal(caches_now(f), 3 * layer_bytes(room[i]));
        /* all layers, and the old cache of the last that was copied */
        uint32_t old = room[i] == CTX ? 1536 : room[i] - 512;
        assert_int_equal(caches_peak(f), 3 * layer_bytes(room[i]) + (old != 0 ? layer_bytes(old) : 0));
    }
    assert_int_equal(caches_peak(f), planned_caches(m));
    weir_session_destroy(s);
    weir_model_close(m);

    m = load(f, "llama", "static", &o);
    assert_int_equal(planned_caches(m), 3 * layer_bytes(CTX) + layer_bytes(1024));
    s = new_session(f, m);
    assert_int_equal(caches_now(f), 3 * layer_bytes(512));
    assert_ok(f, weir_session_append(s, tokens, 513, NULL, &f->err));
    assert_int_equal(caches_now(f), 3 * layer_bytes(1024));
    assert_int_equal(caches_peak(f), 3 * layer_bytes(1024) + layer_bytes(512));
    assert_ok(f, weir_session_append(s, tokens, CTX - 513, NULL, &f->err));
    assert_int_equal(caches_peak(f), planned_caches(m));
    weir_session_destroy(s);
    weir_model_close(m);
}

/* R9.2, R11.1: the plan is reached and not passed, by the ledger and within 2 % or 2 MiB by the kernel; pages
 * are touched as the text grows, and given back. */
static void test_plan_holds(void **state)
{
    fixture *f = *state;
    static int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    for (size_t g = 1; g < 3; g++) {
        for (size_t a = 0; a < 4; a += 3) {
            weir_load_options o = load_options(CTX, 2);
            o.n_sessions = 3;
            o.kv_type = WEIR_KV_F32;
            weir_model *m = load(f, archs[a], growths[g], &o);
            weir_session *s[3];
            base_process_memory before, now;
            for (int i = 0; i < 3; i++) s[i] = new_session(f, m);
            uint64_t first = caches_now(f);
            assert_int_equal(first, 3 * m->run->plan.view.kv_first_bytes);
            assert_true(a != 0 || planned_caches(m) - first > 4 * MIB);
            assert_ok(f, weir_session_append(s[0], tokens, 512, NULL, &f->err)); /* touches activations */
            weir_session_reset(s[0]);
            assert_int_equal(caches_now(f), first);
            assert_ok(f, base_process_memory_read(&before, &f->err));
            for (int i = 0; i < 3; i++)
                for (int at = 0; at < CTX; at += 100)
                    assert_ok(f, weir_session_append(s[i], tokens + at, 100, NULL, &f->err));
            assert_ok(f, base_process_memory_read(&now, &f->err));
            weir_memory_report r = {.struct_size = sizeof r};
            assert_ok(f, weir_model_memory(m, &r, &f->err));
            assert_int_equal(caches_peak(f), planned_caches(m));
            assert_true(r.ledger_peak_bytes <= r.planned_peak_bytes);
            if (!RT_SANITIZED) {
                uint64_t grown = caches_now(f) - first;
                if (grown > 2 * MIB)
                    assert_in_range(now.anon_bytes - before.anon_bytes, grown - MIB, grown + MIB);
                assert_true(r.peak_bytes <= r.planned_peak_bytes + r.planned_peak_bytes / 50 + 2 * MIB);
            }
            for (int i = 0; i < 3; i++) weir_session_reset(s[i]);
            assert_int_equal(caches_now(f), first);
            for (int i = 0; i < 3; i++) weir_session_destroy(s[i]);
            assert_int_equal(caches_now(f), 0);
            weir_model_close(m);
        }
    }
}

/* R9.2: what weir plan says of a session is what a session takes; whole caches have one line. */
static void test_plan_says(void **state)
{
    fixture *f = *state;
    for (size_t g = 0; g < 3; g++) {
        weir_load_options o = load_options(CTX, 1);
        weir_model *m = load(f, "gemma3", growths[g], &o);
        weir_session *s = new_session(f, m);
        const weir_plan *p = &m->run->plan.view;
        int32_t tokens[CTX];
        some_tokens(tokens, CTX, 512, 1);
        assert_string_equal(p->kv_cache, growths[g]);
        assert_int_equal(p->n_kv_steps, g == 0 ? 1 : 3);
        assert_int_equal(p->kv_first_bytes, caches_now(f));
        for (uint32_t i = 0; i < p->n_kv_steps; i++) {
            const weir_kv_step *step = &p->kv_steps[i];
            assert_int_equal(step->tokens, i + 1 == p->n_kv_steps ? CTX : 512u << i);
            while (weir_session_position(s) < step->tokens)
                assert_ok(f, weir_session_append(s, tokens, 32, NULL, &f->err));
            assert_int_equal(step->bytes, caches_now(f));
            assert_int_equal(step->peak_bytes, caches_peak(f));
        }
        assert_int_equal(p->kv_steps[p->n_kv_steps - 1].peak_bytes, planned_caches(m));
        weir_session_destroy(s);
        weir_model_close(m);
    }
}

/* A model that is loaded later plans with what the first one's sessions may still take. */
static void test_beside_another(void **state)
{
    fixture *f = *state;
    weir_load_options o = load_options(CTX, 1);
    static int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    weir_model *m = load(f, "llama", "dynamic", &o), *other = open_small(f, "qwen2");
    weir_session *s = new_session(f, m);
    assert_int_equal(caches_now(f), 0);
    weir_load_options small = load_options(64, 1);
    weir_plan p;
    assert_ok(f, weir_model_plan(other, &small, &p, &f->err));
    small.mem_bytes = (p.smallest_bytes + p.whole_bytes) / 2;
    assert_ok(f, weir_model_load(other, &small, &f->err));
    assert_true(other->run->plan.tag_bytes[BASE_TAG_KV] > planned_caches(m));
    assert_ok(f, weir_session_append(s, tokens, 1000, NULL, &f->err));
    assert_ok(f, weir_session_append(s, tokens, CTX - 1000, NULL, &f->err));
    weir_session_destroy(s);
    weir_model_close(other);
    weir_model_close(m);
}

/* ---- where memory is missing ---- */

static void arm(fixture *f, base_fault_site site, uint64_t after, bool for_good)
{
    const base_fault_rule rule = {.site = site, .after = after, .for_good = for_good, .length = -1};
    base_fault_clear(env_of(f));
    assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
}

/* X5: each allocation of a growth fails, once and for good; gemma3 with a ring that grows as well. */
static void test_faults(void **state)
{
    fixture *f = *state;
    static int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    for (size_t g = 1; g < 3; g++) {
        for (size_t a = 0; a < 4; a += 3) {
            weir_load_options o = load_options(CTX, 1);
            o.prefill_chunk = 512;
            weir_model *m = load(f, archs[a], growths[g], &o);
            weir_session *s = new_session(f, m);
            uint64_t text = logits_of(f, s, tokens, 400), wanted = logits_of(f, s, tokens + 400, 300);
            uint64_t passages = 3;
            for (uint64_t i = 0; i < 2 * passages; i++) {
                weir_session_reset(s);
                assert_int_equal(logits_of(f, s, tokens, 400), text);
                uint64_t baseline = held(f);
                arm(f, BASE_FAULT_HOST_ALLOC, i / 2, i % 2 != 0);
                assert_int_equal(weir_session_append(s, tokens + 400, 300, NULL, &f->err),
                                 WEIR_ERR_OUT_OF_MEMORY);
                assert_mentions(f->err.message, "cannot grow from 512 to 1024 positions");
                assert_int_equal(held(f), baseline);
                assert_int_equal(weir_session_position(s), 400);
                /* What is there still goes on, while there is no memory at all, and to the same bits. */
                const float *logits;
                assert_ok(f, weir_session_append(s, tokens + 400, 100, &logits, &f->err));
                base_fault_clear(env_of(f));
                assert_int_equal(logits_of(f, s, tokens + 500, 200), wanted);
            }
            base_fault_clear(env_of(f));
            weir_session_destroy(s);
            weir_model_close(m);
        }
    }
}

/* X5: what is there from the start in a session with static caches. */
static void test_faults_of_creating(void **state)
{
    fixture *f = *state;
    weir_load_options o = load_options(CTX, 1);
    weir_model *m = load(f, "llama", "static", &o);
    weir_session *s;
    uint64_t baseline = held(f), failed = 0;
    for (;; failed++) {
        arm(f, BASE_FAULT_HOST_ALLOC, failed, true);
        weir_status status = weir_session_create(m, &s, &f->err);
        base_fault_clear(env_of(f));
        if (status == WEIR_OK) break;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        assert_int_equal(held(f), baseline);
    }
    assert_int_equal(failed, 4 + 3); /* session, tokens, index, caches, three layers */
    assert_int_equal(caches_now(f), 3 * layer_bytes(512));
    weir_session_destroy(s);
    assert_int_equal(held(f), baseline);
    weir_model_close(m);
}

/* R3.1, X3: beyond the ledger's limit nothing grows: not a prompt, nor any session of a shared pass where one
 * of them finds no room. */
static void test_no_room(void **state)
{
    fixture *f = *state;
    static int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    weir_load_options o = load_options(CTX, 1);
    o.n_sessions = 2;
    set(f, "compute.pressure", "off");
    weir_model *m = load(f, "llama", "dynamic", &o);
    weir_session *a = new_session(f, m), *b = new_session(f, m);
    uint64_t wanted = logits_of(f, a, tokens, 700);
    weir_session_reset(a);
    logits_of(f, a, tokens, 512);
    logits_of(f, b, tokens, 512);
    base_ledger_view v;
    base_ledger_read(env_of(f), &v);
    /* Room for one of them to grow. */
    uint64_t limit = v.limit_bytes, baseline = v.bytes;
    uint64_t more = 3 * (layer_bytes(1024) - layer_bytes(512)) + layer_bytes(512);
    assert_ok(f, base_ledger_set_limit(env_of(f), baseline + more, &f->err));
    weir_run runs[2] = {{.session = a, .tokens = tokens, .n_tokens = 1, .n_logits = 1},
                        {.session = b, .tokens = tokens, .n_tokens = 1, .n_logits = 1}};
    assert_int_equal(weir_step_runs(runs, 2, &f->err), WEIR_ERR_BUDGET);
    assert_mentions(f->err.message, "compute.kv_cache");
    assert_int_equal(held(f), baseline);
    assert_int_equal(weir_session_position(a), 512);
    assert_int_equal(weir_session_append(b, tokens, 600, NULL, &f->err), WEIR_ERR_BUDGET);
    assert_int_equal(held(f), baseline);
    /* One alone fits; what the other gives back lets it go on. */
    assert_int_equal(logits_of(f, a, tokens + 512, 188), wanted);
    assert_int_equal(weir_session_append(b, tokens, 1, NULL, &f->err), WEIR_ERR_BUDGET);
    weir_session_reset(a);
    assert_int_equal(logits_of(f, b, tokens + 512, 188), wanted);
    assert_ok(f, base_ledger_set_limit(env_of(f), limit, &f->err));
    logits_of(f, a, tokens, CTX);
    weir_session_destroy(a);
    weir_session_destroy(b);
    weir_model_close(m);
}

static void test_bad_setting(void **state)
{
    fixture *f = *state;
    weir_load_options o = load_options(64, 1);
    weir_model *m = open_tiny(f, "llama");
    set(f, "compute.kv_cache", "sometimes");
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "compute.kv_cache");
    assert_mentions(f->err.message, "full, dynamic or static");
    weir_model_close(m);
}

/* ---- on a device ---- */

static uint64_t kept_now(const fixture *f, uint64_t *peak)
{
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    if (peak != NULL) *peak = v.device_tag_peak_bytes[BASE_DEVICE_KEPT];
    return v.device_tag_bytes[BASE_DEVICE_KEPT];
}

/* The story in whole caches on the CPU, and in all kinds on a device, within what its plan keeps there. */
static void compare_on(fixture *f, const char *arch, const char *device)
{
    uint64_t wanted = 0, peak;
    for (size_t g = 0; g < 4; g++) {
        weir_load_options o = load_options(CTX, 2);
        o.n_sessions = 2;
        o.prefill_chunk = 512;
        set(f, "compute.device", g == 0 ? "cpu" : device);
        weir_model *m = load(f, arch, g == 0 ? "full" : growths[g - 1], &o);
        uint64_t before = kept_now(f, NULL), hash = story(f, m);
        if (g == 0) wanted = hash;
        assert_true(hash == wanted && hash != WEIR_HASH_SEED);
        assert_int_equal(kept_now(f, &peak), before);
        if (g != 0) assert_in_range(peak, before + 1, m->run->plan.device_need_bytes + 65536);
        weir_model_close(m);
    }
}

/* R9.2, R11.1: the same bits in the device's memory. */
static void test_on_a_device(void **state)
{
    fixture *f = *state;
    set(f, "compute.simulate_vram_mb", "64");
    compare_on(f, "llama", "sim");
    compare_on(f, "gemma3", "sim");
}

/* R9.2, R11.1 */
static void test_on_opencl(void **state)
{
    fixture *f = *state;
    need_opencl(f);
    compare_on(f, "gemma3", "opencl:0");
}

/* X5: allocations and copies of a growth there fail. */
static void test_device_faults(void **state)
{
    fixture *f = *state;
    static int32_t tokens[CTX];
    some_tokens(tokens, CTX, 512, 1);
    set(f, "compute.device", "sim");
    set(f, "compute.simulate_vram_mb", "64");
    weir_load_options o = load_options(CTX, 1);
    weir_model *m = load(f, "llama", "dynamic", &o);
    uint64_t before = kept_now(f, NULL);
    weir_session *s = new_session(f, m);
    assert_int_equal(kept_now(f, NULL), before);
    logits_of(f, s, tokens, 400);
    uint64_t wanted = logits_of(f, s, tokens + 400, 300);
    const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_COPY};
    const weir_status codes[] = {WEIR_ERR_DEVICE_MEMORY, WEIR_ERR_DEVICE};
    unsigned errors = 0;
    for (uint64_t i = 0; i < 2 * 2 * 6; i++) {
        int site = i % 2 != 0, for_good = i / 2 % 2 != 0;
        weir_session_reset(s);
        logits_of(f, s, tokens, 400);
        arm(f, sites[site], i / 4, for_good);
        weir_status status = weir_session_append(s, tokens + 400, 300, NULL, &f->err);
        base_fault_clear(env_of(f));
        errors += status != WEIR_OK;
        if (status != WEIR_OK && status != codes[site])
            fail_msg("%s: %s", weir_status_name(status), f->err.message);
        if (status != WEIR_OK) assert_int_equal(weir_session_position(s), 400);
        if (status != WEIR_OK) assert_int_equal(logits_of(f, s, tokens + 400, 300), wanted);
    }
    assert_true(errors >= 8);
    weir_session_reset(s);
    assert_int_equal(kept_now(f, NULL), before);
    weir_session_destroy(s);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equal_bits, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_guesses, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_guesses_wait_for_room, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_formulas, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_plan_holds, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_plan_says, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_beside_another, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_faults_of_creating, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_no_room, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_bad_setting, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_on_a_device, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_on_opencl, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_device_faults, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
