/* Plans: their arithmetic, what they choose, and what a refusal says. */
#include "rt_test.h"

static uint64_t account_sum(const weir_plan *p)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_accounts; i++) sum += p->accounts[i].planned_bytes;
    return sum;
}

static uint64_t account(const weir_plan *p, const char *tag)
{
    for (uint32_t i = 0; i < p->n_accounts; i++)
        if (strcmp(p->accounts[i].tag, tag) == 0) return p->accounts[i].planned_bytes;
    return 0;
}

static weir_plan plan(fixture *f, weir_model *m, const weir_load_options *o)
{
    weir_plan p;
    assert_ok(f, weir_model_plan(m, o, &p, &f->err));
    return p;
}

static void test_sums(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = load_options(256, 2);
    weir_plan whole = plan(f, m, &o);
    assert_true(whole.budget_is_default && whole.fits);
    assert_int_equal(whole.missing_bytes, 0);
    assert_int_equal(whole.streamed_bytes_per_pass, 0);
    assert_int_equal(account_sum(&whole), whole.planned_peak_bytes);
    assert_int_equal(whole.ctx_tokens, 256);
    assert_int_equal(whole.n_threads, 2);
    /* R14.3: 2 x layers x KV heads x head dim x tokens x bytes */
    assert_int_equal(account(&whole, "kv"), 2 * 3 * 2 * 64 * 256 * 2);
    o.kv_type = WEIR_KV_F32;
    weir_plan wide = plan(f, m, &o);
    assert_int_equal(account(&wide, "kv"), 2 * 3 * 2 * 64 * 256 * 4);
    o.kv_type = WEIR_KV_F16;
    o.n_sessions = 5;
    weir_plan five = plan(f, m, &o);
    assert_int_equal(account(&five, "kv"), 5 * account(&whole, "kv"));
    assert_int_equal(five.n_sessions, 5);
    o.n_sessions = 1;
    for (int i = 0; i <= 8; i++) {
        o.mem_bytes = whole.smallest_bytes + (uint64_t)i * (whole.whole_bytes - whole.smallest_bytes) / 8;
        weir_plan p = plan(f, m, &o);
        assert_true(p.fits && !p.budget_is_default);
        assert_true(p.planned_peak_bytes <= p.budget_bytes);
        assert_int_equal(account_sum(&p), p.planned_peak_bytes);
        assert_true((p.streamed_bytes_per_pass == 0) == (i == 8));
        assert_int_equal(p.smallest_bytes, whole.smallest_bytes);
        assert_int_equal(p.whole_bytes, whole.whole_bytes);
    }
    weir_model_close(m);
}

/* Every plan that fits can be loaded, and the ledger then holds no more than was planned, tag by tag. */
static void test_ledger_follows_plan(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "gemma3");
    weir_load_options o = load_options(128, 2);
    o.n_sessions = 2;
    weir_plan whole = plan(f, m, &o);
    for (int i = 0; i <= 4; i++) {
        o.mem_bytes = whole.smallest_bytes + (uint64_t)i * (whole.whole_bytes - whole.smallest_bytes) / 4;
        assert_ok(f, weir_model_load(m, &o, &f->err));
        weir_session *a = new_session(f, m), *b = new_session(f, m);
        int32_t tokens[60];
        some_tokens(tokens, 60, 512, 1);
        logits_of(f, a, tokens, 60);
        weir_memory_report r;
        assert_ok(f, weir_model_memory(m, &r, &f->err));
        assert_true(r.ledger_peak_bytes <= r.planned_peak_bytes);
        for (uint32_t k = 0; k < r.n_accounts; k++) {
            const weir_account *acc = &r.accounts[k];
            if (strcmp(acc->tag, "process") == 0) continue;
            /* placing allocates a few tables for its own time */
            if (acc->bytes > acc->planned_bytes + 4096)
                fail_msg("%s: %llu planned, %llu held", acc->tag, (unsigned long long)acc->planned_bytes,
                         (unsigned long long)acc->bytes);
        }
        /* the large ones to the page */
        const char *const exact[] = {"weights.fixed", "weights.resident", "weights.slots", "activations",
                                     "workspace"};
        for (uint32_t k = 0; k < r.n_accounts; k++) {
            for (size_t e = 0; e < 5; e++) {
                if (strcmp(r.accounts[k].tag, exact[e]) == 0)
                    assert_int_equal(r.accounts[k].bytes, r.accounts[k].planned_bytes);
            }
        }
        weir_session_destroy(a);
        weir_session_destroy(b);
    }
    weir_model_close(m);
}

static void test_refusal(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_load_options o = load_options(512, 1);
    o.n_sessions = 4;
    o.kv_type = WEIR_KV_F32;
    weir_plan whole = plan(f, m, &o);
    base_ledger_view before, after;
    base_ledger_read(m->env, &before);
    o.mem_bytes = whole.smallest_bytes - 300000;
    weir_plan p = plan(f, m, &o);
    assert_false(p.fits);
    assert_int_equal(p.missing_bytes, p.smallest_bytes - o.mem_bytes);
    assert_in_range(p.missing_bytes, 290000, 310000);
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_BUDGET);
    base_ledger_read(m->env, &after);
    assert_int_equal(after.bytes, before.bytes);
    assert_true(after.limit_bytes == UINT64_MAX);
    const char *text = f->err.message;
    assert_mentions(text, "are missing");
    assert_mentions(text, "--ctx ");
    assert_mentions(text, "session");
    assert_mentions(text, "F16");
    assert_mentions(text, "--mem ");
    assert_mentions(text, "MiB");
    /* the advice is right */
    weir_load_options advised = o;
    advised.ctx_tokens = (uint32_t)atoi(strstr(text, "--ctx ") + 6);
    assert_in_range(advised.ctx_tokens, 64, 511);
    assert_true(plan(f, m, &advised).fits);
    advised.ctx_tokens += 64;
    assert_false(plan(f, m, &advised).fits);
    advised = o;
    advised.mem_bytes = (uint64_t)atoi(strstr(text, "--mem ") + 6) * MIB;
    assert_true(plan(f, m, &advised).fits);
    advised.mem_bytes -= MIB;
    assert_false(plan(f, m, &advised).fits);
    assert_int_equal(p.fit_mem_bytes, advised.mem_bytes + MIB);
    assert_int_equal(p.fit_sessions, 3);
    assert_true(p.fit_kv_f16);
    advised = o;
    advised.kv_type = WEIR_KV_F16;
    assert_true(plan(f, m, &advised).fits);
    /* R14.6: or fewer sessions, where that is asked for */
    advised = o;
    advised.fewer_sessions = true;
    p = plan(f, m, &advised);
    assert_true(p.fits);
    assert_int_equal(p.n_sessions, 3);
    assert_int_equal(p.wanted_sessions, 4);
    assert_ok(f, weir_model_load(m, &advised, &f->err));
    assert_int_equal(weir_model_sessions(m), 3);
    weir_session *s[4] = {0};
    for (int i = 0; i < 3; i++) assert_ok(f, weir_session_create(m, &s[i], &f->err));
    assert_int_equal(weir_session_create(m, &s[3], &f->err), WEIR_ERR_BUDGET);
    for (int i = 0; i < 3; i++) weir_session_destroy(s[i]);
    weir_model_unload(m);
    assert_int_equal(weir_model_sessions(m), 0);
    advised.mem_bytes = 1000; /* not even one */
    assert_int_equal(weir_model_load(m, &advised, &f->err), WEIR_ERR_BUDGET);
    /* a budget in which not even the program fits: still a plain refusal, and the model works afterwards */
    o.mem_bytes = 1000;
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_BUDGET);
    assert_null(strstr(f->err.message, "--ctx "));
    o = load_options(64, 1);
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_model_close(m);
}

static void test_default_context(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama"); /* trained for 512 */
    weir_load_options o = load_options(0, 1);
    assert_int_equal(plan(f, m, &o).ctx_tokens, 512);
    weir_model_close(m);
}

static void test_default_context_shrinks(void **state)
{
    fixture *f = *state;
    weir_model *m = open_real(f, SMOL); /* trained for 8192; 23,040 bytes of cache a token */
    weir_load_options o = load_options(0, 1);
    weir_plan p = plan(f, m, &o);
    assert_int_equal(p.ctx_tokens, 4096);
    /* 4096 tokens would leave no room for all weights and take more than a quarter; 2048 let all stay */
    o.mem_bytes = 180 * MIB;
    assert_int_equal(plan(f, m, &o).ctx_tokens, 2048);
    /* weights stream either way: 1024 tokens take 22.5 MiB, less than a quarter of 100 MiB but more than that
     * of 64 MiB */
    o.mem_bytes = 100 * MIB;
    assert_int_equal(plan(f, m, &o).ctx_tokens, 1024);
    o.mem_bytes = 64 * MIB;
    assert_int_equal(plan(f, m, &o).ctx_tokens, 512);
    o.mem_bytes = 20 * MIB;
    assert_false(plan(f, m, &o).fits);
    o.mem_bytes = 24 * MIB;
    assert_int_equal(plan(f, m, &o).ctx_tokens, 512);
    weir_model_close(m);
}

/* The bound that is promised: 5 % of the weights, the cache, and 24 MiB, for the whole process. */
static void test_smallest_is_small(void **state)
{
    fixture *f = *state;
    if (RT_SANITIZED) skip();
    const char *const names[] = {SMOL, GEMMA};
    for (size_t i = 0; i < 2; i++) {
        weir_model *m = open_real(f, names[i]);
        weir_load_options o = load_options(512, 2);
        weir_plan p = plan(f, m, &o);
        uint64_t most = m->weight_bytes / 20 + account(&p, "kv") + 24 * MIB;
        print_message("%s: smallest %.1f MiB, bound %.1f MiB\n", names[i], (double)p.smallest_bytes / MIB,
                      (double)most / MIB);
        assert_true(p.smallest_bytes <= most);
        weir_model_close(m);
    }
}

static void test_chunk(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "qwen3");
    weir_load_options o = load_options(512, 1);
    assert_int_equal(plan(f, m, &o).prefill_chunk, 512);
    o.mem_bytes = plan(f, m, &o).smallest_bytes;
    assert_int_equal(plan(f, m, &o).prefill_chunk, 1);
    o.mem_bytes = plan(f, m, &o).whole_bytes;
    assert_true(plan(f, m, &o).prefill_chunk >= 32);
    o.mem_bytes = 0;
    o.prefill_chunk = 7;
    assert_int_equal(plan(f, m, &o).prefill_chunk, 7);
    o.prefill_chunk = 100000;
    assert_int_equal(plan(f, m, &o).prefill_chunk, 512); /* no more than the context */
    weir_model_close(m);
}

static void test_bad_options(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_plan p;
    weir_load_options o = load_options(64, 1);
    o.struct_size = 3;
    assert_int_equal(weir_model_plan(m, &o, &p, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o = load_options(UINT32_MAX, 1);
    assert_int_equal(weir_model_plan(m, &o, &p, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o = load_options(64, 257);
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o = load_options(64, 1);
    o.n_sessions = 100000;
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o = load_options(64, 1);
    o.kv_type = (weir_kv_type)9;
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o = load_options(64, 1);
    const char *const settings[][3] = {{"io.backend", "tape", "auto"},
                                       {"io.direct", "maybe", "auto"},
                                       {"memory.alias_activations", "perhaps", "on"},
                                       {"cpu", "z80", "auto"},
                                       {"compute.ram_reserve", "10", "auto"},
                                       {"compute.pressure", "on", "auto"},
                                       {"io.probe", "on", "auto"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_ok(f, weir_context_set(f->context, settings[i][0], settings[i][1], &f->err));
        assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        if (i >= 5) assert_mentions(f->err.message, "auto or off");
        assert_ok(f, weir_context_set(f->context, settings[i][0], settings[i][2], &f->err));
    }
    assert_ok(f, weir_model_load(m, NULL, &f->err));
    assert_ok(f, weir_model_load(m, &o, NULL));
    weir_model_close(m);
}

/* Two models of one context share one budget. */
static void test_two_models(void **state)
{
    fixture *f = *state;
    weir_model *a = open_small(f, "llama"), *b = open_small(f, "qwen2");
    weir_load_options o = load_options(128, 2);
    base_ledger_view empty, v;
    base_ledger_read(a->env, &empty);
    weir_plan alone = plan(f, b, &o);
    base_ledger_read(a->env, &empty); /* with b's tokenizer */
    o.mem_bytes = alone.whole_bytes + 8 * MIB;
    assert_ok(f, weir_model_load(a, &o, &f->err));
    assert_ok(f, weir_model_load(b, &o, &f->err));
    base_ledger_read(a->env, &v);
    assert_true(v.bytes <= o.mem_bytes);
    weir_session *sa = new_session(f, a), *sb = new_session(f, b);
    int32_t tokens[20];
    some_tokens(tokens, 20, 512, 2);
    assert_true(logits_of(f, sa, tokens, 20) != logits_of(f, sb, tokens, 20));
    weir_session_destroy(sa);
    weir_session_destroy(sb);
    weir_model_unload(a);
    weir_model_unload(b);
    base_ledger_read(a->env, &v);
    assert_true(v.limit_bytes == UINT64_MAX);
    assert_int_equal(v.tag_bytes[BASE_TAG_PROCESS], 0);
    assert_int_equal(
        v.tag_bytes[BASE_TAG_KV] + v.tag_bytes[BASE_TAG_ACTIVATIONS] + v.tag_bytes[BASE_TAG_WORKSPACE], 0);
    weir_model_close(a);
    weir_model_close(b);
}

static void test_machine(void **state)
{
    fixture *f = *state;
    weir_machine m;
    assert_ok(f, weir_machine_read(f->context, &m, &f->err));
    assert_true(m.n_cpus >= 1);
    assert_non_null(m.cpu_sets[0]);
    assert_string_equal(m.cpu_set, m.cpu_sets[0]);
    assert_true(m.available_bytes <= m.total_bytes);
    assert_true(m.default_budget_bytes < m.total_bytes);
    assert_true(m.default_budget_bytes > 0 && m.reserve_bytes > 0);
    /* a machine of a test: 8 GB, 3 GB available, no control groups; reserve 2 GB, capped at half of 3 GB and
     * of what this process holds */
    char path[1024], folder[200];
    snprintf(folder, sizeof folder, "%s/proc", f->folder);
    snprintf(path, sizeof path,
             "mkdir -p %s && printf 'MemTotal: 8000000 kB\nMemAvailable: 3000000 kB\n' > %s/meminfo", folder,
             folder);
    assert_int_equal(system(path), 0);
    assert_ok(f, weir_context_set(f->context, "proc_root", folder, &f->err));
    assert_ok(f, weir_context_set(f->context, "cgroup_root", folder, &f->err));
    assert_ok(f, weir_machine_read(f->context, &m, &f->err));
    assert_in_range(m.reserve_bytes, 1500000 * UINT64_C(1024),
                    1550000 * UINT64_C(1024) + 1024 * MIB * RT_SANITIZED);
    assert_true(m.default_budget_bytes - m.reserve_bytes <= 1); /* half each */
    assert_in_range(m.default_budget_bytes, 1500000 * UINT64_C(1024),
                    1600000 * UINT64_C(1024) + 2048 * MIB * RT_SANITIZED);
    assert_ok(f, weir_context_set(f->context, "compute.ram_reserve", "1GiB", &f->err));
    assert_ok(f, weir_machine_read(f->context, &m, &f->err));
    assert_int_equal(m.reserve_bytes, 1024 * MIB);
    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

/* What is known of servers is borrowed from the settings and follows them, also while an address is open. */
static void test_network_settings(void **state)
{
    fixture *f = *state;
    const base_env *env = f->context->env;
    assert_ok(f, weir_context_set(f->context, "io.ca_file", "/first.pem", &f->err));
    assert_null(env->remote_ca_file);
    assert_ok(f, rt_network_set(f->context, &f->err));
    assert_string_equal(env->remote_ca_file, "/first.pem");
    assert_ok(f, weir_context_set(f->context, "io.ca_file", "/second.pem", &f->err));
    assert_string_equal(env->remote_ca_file, "/second.pem");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sums, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_ledger_follows_plan, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refusal, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_default_context, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_default_context_shrinks, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_smallest_is_small, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_chunk, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_bad_options, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_two_models, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_machine, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_network_settings, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_plan", tests, NULL, NULL);
}
