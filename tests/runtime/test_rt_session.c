/* Sessions: the same logits whatever the chunk, the threads, the batch and the history of failures. */
#include "rt_test.h"

#include <pthread.h>

#define N_TOKENS 150

static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};

static void load(fixture *f, weir_model *m, const weir_load_options *o)
{
    assert_ok(f, weir_model_load(m, o, &f->err));
}

/* The hash of the logits behind tokens under these options. */
static uint64_t hash_with(fixture *f, weir_model *m, const weir_load_options *o, const int32_t *tokens,
                          size_t n)
{
    load(f, m, o);
    weir_session *s = new_session(f, m);
    uint64_t h = logits_of(f, s, tokens, n);
    assert_int_equal(weir_session_position(s), n);
    weir_session_destroy(s);
    return h;
}

static void test_chunks_and_threads(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        int32_t tokens[N_TOKENS];
        some_tokens(tokens, N_TOKENS, 512, 3);
        weir_load_options o = load_options(256, 1);
        o.prefill_chunk = 1;
        uint64_t wanted = hash_with(f, m, &o, tokens, N_TOKENS);
        const uint32_t chunks[] = {5, 64, 256, 0};
        for (size_t i = 0; i < 4; i++) {
            o.prefill_chunk = chunks[i];
            o.n_threads = 1 + i % 2;
            assert_int_equal(hash_with(f, m, &o, tokens, N_TOKENS), wanted);
        }
        /* R15.2: the arena with and without sharing, and what that saves */
        weir_plan p = {.struct_size = sizeof p};
        assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
        assert_true(p.arena_saved_bytes > 0);
        assert_ok(f, weir_context_set(f->context, "memory.alias_activations", "off", &f->err));
        assert_int_equal(hash_with(f, m, &o, tokens, N_TOKENS), wanted);
        assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
        assert_int_equal(p.arena_saved_bytes, 0);
        assert_ok(f, weir_context_set(f->context, "memory.alias_activations", "on", &f->err));
        /* another last token must not give the same */
        tokens[N_TOKENS - 1] ^= 1;
        assert_true(hash_with(f, m, &o, tokens, N_TOKENS) != wanted);
        weir_model_close(m);
    }
}

static void test_budgets(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_small(f, archs[a]);
        int32_t tokens[N_TOKENS];
        some_tokens(tokens, N_TOKENS, 512, 4);
        weir_load_options o = load_options(256, 2);
        weir_plan p;
        assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
        uint64_t wanted = hash_with(f, m, &o, tokens, N_TOKENS);
        const uint64_t budgets[] = {p.smallest_bytes, (p.smallest_bytes + p.whole_bytes) / 2, p.whole_bytes};
        for (size_t i = 0; i < 3; i++) {
            o.mem_bytes = budgets[i];
            assert_int_equal(hash_with(f, m, &o, tokens, N_TOKENS), wanted);
            weir_memory_report r;
            assert_ok(f, weir_model_memory(m, &r, &f->err));
            assert_true((r.streamed_bytes != 0) == (i < 2));
            assert_string_equal(r.reason, i < 2 ? "budget" : "");
            /* a table that is no head as well is read by row even so */
            assert_true((r.read_bytes != 0) == (i < 2 || !lm_model_hparams(m->lm)->tied));
            assert_true(r.ledger_peak_bytes <= r.planned_peak_bytes);
        }
        weir_model_close(m);
    }
}

/* Three sessions of unequal length in one pass give what each gives alone. */
static void test_batch(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        weir_load_options o = load_options(128, 2);
        o.n_sessions = 3;
        load(f, m, &o);
        int32_t tokens[3][70];
        const size_t n[3] = {3, 60, 17};
        weir_session *s[3];
        uint64_t wanted[3][8];
        for (size_t i = 0; i < 3; i++) {
            some_tokens(tokens[i], 70, 512, 10 + i);
            s[i] = new_session(f, m);
            logits_of(f, s[i], tokens[i], n[i]);
            for (size_t k = 0; k < 8; k++) wanted[i][k] = logits_of(f, s[i], tokens[i] + n[i] + k, 1);
            weir_session_reset(s[i]);
            assert_int_equal(weir_session_position(s[i]), 0);
        }
        for (size_t i = 0; i < 3; i++) logits_of(f, s[i], tokens[i], n[i]);
        for (size_t k = 0; k < 8; k++) {
            const int32_t step[3] = {tokens[0][n[0] + k], tokens[1][n[1] + k], tokens[2][n[2] + k]};
            const float *logits[3];
            assert_ok(f, weir_step_batch(s, step, 3, logits, &f->err));
            for (size_t i = 0; i < 3; i++) {
                assert_int_equal(weir_logits_hash(WEIR_HASH_SEED, logits[i], 512), wanted[i][k]);
                assert_int_equal(weir_session_position(s[i]), n[i] + k + 1);
            }
        }
        for (size_t i = 0; i < 3; i++) weir_session_destroy(s[i]);
        weir_model_close(m);
    }
}

/* Sessions join and leave at every pass, one of them in prefill while the others decode, with logits of all
 * rows for another; each gives what it gives alone (X4, X1). */
static void test_runs(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        weir_load_options o = load_options(128, 2);
        o.n_sessions = 3;
        o.prefill_chunk = 24;
        load(f, m, &o);
        weir_plan p;
        assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
        assert_int_equal(p.pass_rows, 24);
        assert_true(p.pass_outputs >= 8);
        int32_t tokens[3][100];
        weir_session *s[3];
        static uint64_t wanted[3][100];
        for (size_t i = 0; i < 3; i++) {
            some_tokens(tokens[i], 100, 512, 20 + i);
            s[i] = new_session(f, m);
            for (size_t k = 0; k < 100; k++) wanted[i][k] = logits_of(f, s[i], tokens[i] + k, 1);
            weir_session_reset(s[i]);
        }
        assert_true(wanted[0][0] != wanted[1][0]);
        size_t at[3] = {0}, n_checked = 0;
        for (uint32_t pass = 0; at[0] < 100 || at[1] < 100 || at[2] < 100; pass++) {
            weir_run runs[3];
            size_t n = 0, who[3];
            for (size_t i = 0; i < 3; i++) {
                if (at[i] == 100 || pass % (i + 2) == 1) continue; /* has left, or sits this one out */
                size_t take = i == 0 ? 1 : i == 1 ? 1 + pass % 16 : 5;
                if (take > 100 - at[i]) take = 100 - at[i];
                runs[n] = (weir_run){.session = s[i], .tokens = tokens[i] + at[i], .n_tokens = take};
                runs[n].n_logits = i == 0 ? 1 : i == 1 ? pass % 2 : take;
                who[n++] = i;
                at[i] += take;
            }
            if (n == 0) continue;
            assert_ok(f, weir_step_runs(runs, n, &f->err));
            for (size_t r = 0; r < n; r++) {
                size_t i = who[r];
                assert_int_equal(weir_session_position(s[i]), at[i]);
                for (size_t k = 0; k < runs[r].n_logits; k++, n_checked++) {
                    const float *x = runs[r].logits + k * runs[r].logits_stride;
                    assert_int_equal(weir_logits_hash(WEIR_HASH_SEED, x, 512),
                                     wanted[i][at[i] - runs[r].n_logits + k]);
                }
            }
        }
        assert_true(n_checked >= 200);
        for (size_t i = 0; i < 3; i++) weir_session_destroy(s[i]);
        weir_model_close(m);
    }
}

/* A token that waits since it was sampled shares the pass, or runs before it where it does not fit. */
static void test_runs_waiting(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "gemma3");
    for (uint32_t chunk = 1; chunk <= 4; chunk += 3) {
        weir_load_options o = load_options(64, 1);
        o.n_sessions = 2;
        o.prefill_chunk = chunk;
        load(f, m, &o);
        weir_session *s[2] = {new_session(f, m), new_session(f, m)};
        int32_t tokens[6];
        some_tokens(tokens, 6, 512, 30);
        uint64_t wanted = logits_of(f, s[0], tokens, 6);
        weir_session_reset(s[0]);
        assert_ok(f, weir_session_append(s[0], tokens, 3, NULL, &f->err));
        rt_session_hold(s[0], tokens[3]);
        assert_ok(f, weir_session_append(s[1], tokens, 5, NULL, &f->err));
        weir_run runs[2] = {{.session = s[0], .n_logits = 1},
                            {.session = s[1], .tokens = tokens + 5, .n_tokens = 1, .n_logits = 1}};
        assert_ok(f, weir_step_runs(runs, 2, &f->err));
        assert_int_equal(weir_session_position(s[0]), 4);
        assert_int_equal(weir_logits_hash(WEIR_HASH_SEED, runs[1].logits, 512), wanted);
        rt_session_hold(s[0], tokens[4]);
        runs[0].tokens = tokens + 5;
        runs[0].n_tokens = 1;
        assert_ok(f, weir_step_runs(runs, 1, &f->err));
        assert_int_equal(weir_session_position(s[0]), 6);
        assert_int_equal(weir_logits_hash(WEIR_HASH_SEED, runs[0].logits, 512), wanted);
        for (size_t i = 0; i < 2; i++) weir_session_destroy(s[i]);
    }
    weir_model_close(m);
}

static void test_runs_refuse(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(64, 1);
    o.prefill_chunk = 8;
    load(f, m, &o);
    weir_session *s = new_session(f, m);
    int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    weir_run run = {.session = s, .tokens = tokens, .n_tokens = 9};
    assert_int_equal(weir_step_runs(&run, 1, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "pass_rows");
    run.n_tokens = 0;
    assert_int_equal(weir_step_runs(&run, 1, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "brings no token");
    run.n_tokens = 2;
    run.n_logits = 3;
    assert_int_equal(weir_step_runs(&run, 1, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "3 rows and brings 2");
    run.session = NULL;
    assert_int_equal(weir_step_runs(&run, 1, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_step_runs(NULL, 1, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    run.session = s;
    run.n_logits = 2;
    assert_int_equal(weir_session_position(s), 0);
    assert_ok(f, weir_step_runs(&run, 1, &f->err));
    assert_int_equal(weir_session_position(s), 2);
    weir_session_destroy(s);
    weir_model_close(m);
}

static void test_batch_refuses(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(16, 1);
    o.n_sessions = 2;
    o.max_batch = 1;
    load(f, m, &o);
    weir_session *s[2] = {new_session(f, m), new_session(f, m)}, *third;
    const int32_t tokens[2] = {1, 2};
    const float *logits[2];
    assert_int_equal(weir_session_create(m, &third, &f->err), WEIR_ERR_BUDGET);
    assert_mentions(f->err.message, "n_sessions = 3");
    assert_null(third);
    assert_int_equal(weir_step_batch(s, tokens, 2, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "max_batch");
    assert_int_equal(weir_step_batch(s, tokens, 0, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    weir_session *twice[2] = {s[0], s[0]};
    assert_int_equal(weir_step_batch(twice, tokens, 2, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    const int32_t bad[1] = {512};
    assert_int_equal(weir_step_batch(s, bad, 1, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "512");
    assert_ok(f, weir_step_batch(s + 1, tokens, 1, logits, &f->err));
    /* loading again needs the sessions gone */
    assert_int_equal(weir_model_load(m, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    /* unloading beneath a session leaves a shell that says so */
    weir_model_unload(m);
    assert_int_equal(weir_session_append(s[0], tokens, 1, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "unloaded");
    weir_session_destroy(s[0]);
    load(f, m, &o);
    assert_int_equal(weir_session_append(s[1], tokens, 1, logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    weir_session_destroy(s[1]);
    weir_model_close(m);
}

static void test_context_full(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(20, 1);
    load(f, m, &o);
    weir_session *s = new_session(f, m);
    int32_t tokens[21];
    some_tokens(tokens, 21, 512, 5);
    assert_int_equal(weir_session_append(s, tokens, 21, NULL, &f->err), WEIR_ERR_CONTEXT_FULL);
    assert_mentions(f->err.message, "21 tokens");
    assert_mentions(f->err.message, "20 tokens");
    assert_mentions(f->err.message, "--ctx 21");
    assert_int_equal(weir_session_position(s), 0);
    uint64_t all = logits_of(f, s, tokens, 20);
    assert_int_equal(weir_session_append(s, tokens, 1, NULL, &f->err), WEIR_ERR_CONTEXT_FULL);
    assert_int_equal(weir_session_position(s), 20);
    assert_ok(f, weir_session_truncate(s, 7, &f->err));
    assert_int_equal(weir_session_truncate(s, 8, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_session_position(s), 7);
    assert_int_equal(logits_of(f, s, tokens + 7, 13), all);
    /* nothing to run, and what is no token */
    const float *logits;
    assert_ok(f, weir_session_append(s, NULL, 0, NULL, &f->err));
    assert_int_equal(weir_session_append(s, NULL, 0, &logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    weir_session_reset(s);
    tokens[3] = -1;
    assert_int_equal(weir_session_append(s, tokens, 5, &logits, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "index 3");
    weir_session_destroy(s);
    weir_model_close(m);
}

typedef struct collector {
    uint64_t hash[N_TOKENS];
    size_t n, stop_at;
} collector;

static bool collect(void *arg, size_t index, const float *logits)
{
    collector *c = arg;
    assert_int_equal(index, c->n);
    if (index == c->stop_at) return false;
    c->hash[c->n++] = weir_logits_hash(WEIR_HASH_SEED, logits, 512);
    return true;
}

static void test_score(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a += 3) {
        weir_model *m = open_tiny(f, archs[a]);
        int32_t tokens[N_TOKENS];
        uint64_t wanted[N_TOKENS];
        some_tokens(tokens, N_TOKENS, 512, 6);
        weir_load_options o = load_options(N_TOKENS, 2);
        load(f, m, &o);
        weir_session *s = new_session(f, m);
        for (size_t i = 0; i < N_TOKENS; i++) wanted[i] = logits_of(f, s, tokens + i, 1);
        weir_session_reset(s);
        static collector c;
        c = (collector){.stop_at = SIZE_MAX};
        assert_ok(f, weir_session_score(s, tokens, N_TOKENS, collect, &c, &f->err));
        assert_int_equal(c.n, N_TOKENS);
        assert_memory_equal(c.hash, wanted, sizeof wanted);
        assert_int_equal(weir_session_position(s), N_TOKENS);
        assert_int_equal(weir_session_score(s, tokens, 1, collect, &c, &f->err), WEIR_ERR_CONTEXT_FULL);
        /* stopped in the middle: the position is as before, and going on gives the same */
        assert_ok(f, weir_session_truncate(s, 40, &f->err));
        c = (collector){.stop_at = 90};
        assert_int_equal(weir_session_score(s, tokens + 40, 110, collect, &c, &f->err), WEIR_ERR_CANCELLED);
        assert_int_equal(weir_session_position(s), 40);
        assert_int_equal(logits_of(f, s, tokens + 40, 60), wanted[99]);
        weir_session_destroy(s);
        weir_model_close(m);
    }
}

/* Cancels after a number of chunks. */
typedef struct canceller {
    weir_model *model;
    int chunks;
} canceller;

static void cancel_later(void *arg, size_t done, size_t total)
{
    canceller *c = arg;
    assert_true(done <= total);
    if (--c->chunks == 0) weir_model_cancel(c->model);
}

/* A run of many chunks that fails has overwritten what a sliding window needs; what follows must not notice.
 */
static void test_failed_run_leaves_no_trace(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        int32_t tokens[100], lost[200], more[20];
        some_tokens(tokens, 100, 512, 7);
        some_tokens(lost, 200, 512, 8);
        some_tokens(more, 20, 512, 9);
        weir_load_options o = load_options(400, 2);
        o.prefill_chunk = 16;
        load(f, m, &o);
        weir_session *s = new_session(f, m);
        logits_of(f, s, tokens, 100);
        uint64_t wanted = logits_of(f, s, more, 20);
        for (int chunks = 1; chunks <= 12; chunks++) {
            weir_session_reset(s);
            logits_of(f, s, tokens, 100);
            canceller c = {.model = m, .chunks = chunks};
            assert_int_equal(rt_session_append(s, lost, 200, NULL, cancel_later, &c, &f->err),
                             WEIR_ERR_CANCELLED);
            assert_int_equal(weir_session_position(s), 100);
            assert_int_equal(logits_of(f, s, more, 20), wanted);
        }
        /* going back on purpose */
        weir_session_reset(s);
        logits_of(f, s, tokens, 100);
        logits_of(f, s, lost, 200);
        assert_ok(f, weir_session_truncate(s, 100, &f->err));
        assert_int_equal(logits_of(f, s, more, 20), wanted);
        weir_session_destroy(s);
        weir_model_close(m);
    }
}

static void test_cancel_is_cleared(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(64, 1);
    weir_model_cancel(m);
    load(f, m, &o);
    weir_session *s = new_session(f, m);
    const int32_t tokens[3] = {1, 2, 3};
    weir_model_cancel(m);
    assert_ok(f, weir_session_append(s, tokens, 3, NULL, &f->err));
    weir_session_destroy(s);
    weir_model_close(m);
}

typedef struct waiter {
    weir_model *model;
    bool predicts;
    weir_status status;
} waiter;

static void *wait_for_turn(void *arg)
{
    waiter *w = arg;
    weir_load_options o = load_options(64, 1);
    weir_prediction p;
    w->status =
        w->predicts ? weir_model_predict(w->model, &o, 0, &p, NULL) : weir_model_load(w->model, &o, NULL);
    return NULL;
}

/* What came before a call is forgotten; what comes while it waits for its turn counts. */
static void test_cancel_while_waiting(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    for (int predicts = 0; predicts < 2; predicts++) {
        waiter w = {.model = m, .predicts = predicts};
        pthread_t thread;
        rt_enter(f->context);
        weir_model_cancel(m);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_turn, &w), 0);
        for (int i = 0; i < 5000 && atomic_load(&m->cancel); i++) usleep(1000);
        bool forgotten = !atomic_load(&m->cancel);
        weir_model_cancel(m);
        rt_leave(f->context);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(forgotten);
        assert_int_equal(w.status, WEIR_ERR_CANCELLED);
    }
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chunks_and_threads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_budgets, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_batch, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_runs, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_runs_waiting, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_runs_refuse, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_batch_refuses, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_context_full, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_score, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_failed_run_leaves_no_trace, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancel_is_cleared, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancel_while_waiting, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_session", tests, NULL, NULL);
}
