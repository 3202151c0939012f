/* Failing allocations, reads, queues and threads: each passage once and for good. A call then gives an error
 * or the very same answer, nothing is left behind, and the same handles work afterwards. */
#include "rt_test.h"

#define N_PROMPT 40

static weir_status generate(fixture *f, weir_model *m, weir_session *s, uint64_t *hash)
{
    int32_t *prompt;
    size_t n;
    const char text[] = "a prompt of a few words, long enough to need two passes of sixteen tokens each";
    weir_status status = weir_tokenize(m, text, sizeof text - 1, WEIR_TOKENIZE_BOS, &prompt, &n, &f->err);
    if (status != WEIR_OK) return status;
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = 6;
    o.ignore_end = true;
    o.sampling.temperature = 0.8F;
    o.sampling.top_p = 0.9F;
    weir_result r;
    uint32_t before = weir_session_position(s);
    status = weir_generate(s, prompt, n, &o, &r, &f->err);
    weir_free(m, prompt);
    if (status == WEIR_OK) {
        assert_int_equal(r.n_tokens, 6);
        *hash = r.logits_hash;
    } else {
        assert_null(r.tokens);
        assert_null(r.text);
        assert_int_equal(weir_session_position(s), before);
    }
    weir_result_finish(m, &r);
    return status;
}

static void arm(fixture *f, base_fault_site site, uint64_t after, bool for_good)
{
    const base_fault_rule rule = {.site = site, .after = after, .for_good = for_good, .length = -1};
    base_fault_clear(env_of(f));
    assert_ok(f, base_fault_arm(env_of(f), &rule, &f->err));
}

static void sweep(fixture *f, base_fault_site site, weir_status expected)
{
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    uint64_t baseline = held(f);
    assert_ok(f, base_fault_count_on(env_of(f), &f->err));
    life clean = whole_life(f, path, &o, generate);
    if (clean.status != WEIR_OK) fail_msg("the clean run: %s", f->err.message);
    uint64_t passages = base_fault_count(env_of(f), site);
    assert_true(passages > 0);
    base_fault_clear(env_of(f));
    assert_int_equal(held(f), baseline);
    /* A life costs a few megabytes of reads; every passage is tried by WEIR_TEST_FULL. */
    uint64_t step = getenv("WEIR_TEST_FULL") != NULL || site == BASE_FAULT_HOST_ALLOC ? 1 : 1 + passages / 20;
    unsigned errors = 0, same = 0;
    for (int for_good = 0; for_good <= 1; for_good++) {
        for (uint64_t i = 0; i < passages; i += step) {
            arm(f, site, i, for_good != 0);
            f->err.message[0] = '\0';
            life a = whole_life(f, path, &o, generate);
            base_fault_clear(env_of(f));
            if (a.status == WEIR_OK) {
                same++;
                assert_int_equal(a.hash, clean.hash);
            } else {
                errors++;
                if (a.status != expected && a.status != WEIR_ERR_IO)
                    fail_msg("%s:%llu%s gave %s: %s", base_fault_text(site), (unsigned long long)i,
                             for_good ? ":for_good" : "", weir_status_name(a.status), f->err.message);
                assert_true(f->err.message[0] != '\0');
            }
            if (held(f) != baseline)
                fail_msg("%s:%llu%s left %lld bytes behind", base_fault_text(site), (unsigned long long)i,
                         for_good ? ":for_good" : "", (long long)(held(f) - baseline));
        }
    }
    print_message("%s: %llu passages, every %lluth once and for good: %u errors, %u times the same answer\n",
                  base_fault_text(site), (unsigned long long)passages, (unsigned long long)step, errors,
                  same);
    assert_int_equal(whole_life(f, path, &o, generate).hash, clean.hash);
}

static void test_host_alloc(void **state)
{
    sweep(*state, BASE_FAULT_HOST_ALLOC, WEIR_ERR_OUT_OF_MEMORY);
}

static void test_read(void **state)
{
    sweep(*state, BASE_FAULT_READ, WEIR_ERR_IO);
}

static void test_submit(void **state)
{
    sweep(*state, BASE_FAULT_SUBMIT, WEIR_ERR_IO);
}

static void test_completion(void **state)
{
    sweep(*state, BASE_FAULT_COMPLETION, WEIR_ERR_IO);
}

static void test_threads(void **state)
{
    sweep(*state, BASE_FAULT_THREAD_CREATE, WEIR_ERR_THREAD);
}

/* Without io_uring and without direct reads the same comes out. */
static void test_fallbacks(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    /* Threads that read need stacks; in the plan where they are there from the start. */
    o.mem_bytes += MIB;
    life clean = whole_life(f, path, &o, generate);
    assert_int_equal(clean.status, WEIR_OK);
    const base_fault_site sites[] = {BASE_FAULT_IO_URING, BASE_FAULT_DIRECT_IO};
    for (int i = 0; i < 2; i++) {
        arm(f, sites[i], 0, true);
        life a = whole_life(f, path, &o, generate);
        if (a.status != WEIR_OK) fail_msg("%s: %s", base_fault_text(sites[i]), f->err.message);
        assert_int_equal(a.hash, clean.hash);
    }
    base_fault_clear(env_of(f));
}

/* The same model and session go on after every failure in the middle of an answer. */
static void test_same_handles_work_again(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "gemma3", 256);
    weir_load_options o = streaming_options(f, path);
    weir_model *m;
    uint64_t wanted = 0, hash = 0;
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    assert_ok(f, generate(f, m, s, &wanted));
    weir_session_reset(s);
    assert_ok(f, base_fault_count_on(env_of(f), &f->err));
    assert_ok(f, generate(f, m, s, &hash));
    assert_int_equal(hash, wanted);
    const base_fault_site sites[] = {BASE_FAULT_HOST_ALLOC, BASE_FAULT_READ, BASE_FAULT_SUBMIT};
    uint64_t passages[3];
    for (int k = 0; k < 3; k++) passages[k] = base_fault_count(env_of(f), sites[k]);
    uint64_t baseline = held(f);
    unsigned errors = 0;
    for (int k = 0; k < 3; k++) {
        for (uint64_t i = 0; i < passages[k]; i += k == 0 ? 1 : 1 + passages[k] / 8) {
            weir_session_reset(s);
            arm(f, sites[k], i, true);
            weir_status status = generate(f, m, s, &hash);
            base_fault_clear(env_of(f));
            if (status == WEIR_OK) assert_int_equal(hash, wanted);
            errors += status != WEIR_OK;
            assert_int_equal(held(f), baseline);
            weir_session_reset(s);
            assert_ok(f, generate(f, m, s, &hash));
            assert_int_equal(hash, wanted);
        }
    }
    assert_true(errors > 5);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* A load that fails leaves the model as before; the next one works. */
static void test_load_again(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    weir_model *m;
    uint64_t wanted = 0, hash = 0;
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    uint64_t baseline = held(f);
    assert_ok(f, base_fault_count_on(env_of(f), &f->err));
    assert_ok(f, weir_model_load(m, &o, &f->err));
    uint64_t passages = base_fault_count(env_of(f), BASE_FAULT_HOST_ALLOC);
    weir_session *s = new_session(f, m);
    assert_ok(f, generate(f, m, s, &wanted));
    weir_session_destroy(s);
    for (uint64_t i = 0; i < passages; i += 9) {
        arm(f, BASE_FAULT_HOST_ALLOC, i, true);
        weir_model_unload(m);
        rt_text_finish(m);
        assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_OUT_OF_MEMORY);
        base_fault_clear(env_of(f));
        assert_int_equal(held(f), baseline);
        assert_int_equal(weir_session_create(m, &s, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_ok(f, weir_model_load(m, &o, &f->err));
        s = new_session(f, m);
        assert_ok(f, generate(f, m, s, &hash));
        assert_int_equal(hash, wanted);
        weir_session_destroy(s);
    }
    weir_model_close(m);
}

/* The file is cut while half of it streams. */
static void test_vanishing_file(void **state)
{
    fixture *f = *state;
    const char *path = make_model(f, "llama", 256);
    weir_load_options o = streaming_options(f, path);
    weir_model *m;
    uint64_t hash = 0;
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    assert_ok(f, generate(f, m, s, &hash));
    weir_session_reset(s);
    assert_int_equal(truncate(path, 4096), 0);
    weir_status status = generate(f, m, s, &hash);
    assert_int_equal(status, WEIR_ERR_FILE_CHANGED);
    assert_mentions(f->err.message, path);
    weir_session_destroy(s);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_host_alloc, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_read, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_submit, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_completion, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_threads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_fallbacks, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_same_handles_work_again, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_load_again, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_vanishing_file, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_faults", tests, NULL, NULL);
}
