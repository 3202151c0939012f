/* Speculation: guesses from the text, from a draft that is the model itself, and from one that knows nothing,
 * give the tokens, the logits and the random numbers of plain decoding (X4, X1, X5). And answers that share
 * passes give what each gives alone. */
#include "rt_guess_test.h"

static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};

/* What the session goes on with is the same, too: nothing of a wrong guess is left in its caches. */
static uint64_t hash_after(fixture *f, weir_session *s)
{
    int32_t tokens[3] = {5, 6, 7};
    return logits_of(f, s, tokens, 3);
}

static void test_lookup_is_exact(void **state)
{
    fixture *f = *state;
    uint64_t accepted = 0, rejected = 0;
    for (size_t a = 0; a < 4; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        load_eight(f, m, 1);
        weir_session *s = new_session(f, m);
        for (int sampling = 0; sampling < 3; sampling++) {
            weir_generate_options o = options_of(WEIR_SPECULATE_OFF, sampling);
            weir_result plain = answer_of(f, s, a, &o);
            uint64_t after = hash_after(f, s);
            assert_int_equal(plain.n_passes, N_ANSWER);
            assert_int_equal(plain.n_drafted, 0);
            const weir_speculate modes[] = {WEIR_SPECULATE_LOOKUP, WEIR_SPECULATE_AUTO};
            for (size_t i = 0; i < 2; i++) {
                o.speculate = modes[i];
                weir_result r = answer_of(f, s, a, &o);
                assert_same(&r, &plain);
                assert_int_equal(hash_after(f, s), after);
                assert_int_equal(r.n_passes + r.n_accepted, N_ANSWER);
                accepted += r.n_accepted;
                rejected += r.n_drafted - r.n_accepted;
                weir_result_finish(m, &r);
            }
            weir_result_finish(m, &plain);
        }
        weir_session_destroy(s);
        weir_model_close(m);
    }
    /* both ways out were taken */
    assert_true(accepted > 100);
    assert_true(rejected > 100);
}

/* A draft that is the model itself is always right, also where random numbers decide; another is mostly
 * wrong.
 */
static void test_draft_is_exact(void **state)
{
    fixture *f = *state;
    for (size_t a = 0; a < 4; a += 3) {
        weir_model *m = open_tiny(f, archs[a]), *same = open_again(f, m), *odd;
        odd = open_tiny(f, archs[a == 0 ? 2 : 0]);
        load_eight(f, odd, 1);
        load_eight(f, same, 1);
        load_eight(f, m, 1);
        weir_session *s = new_session(f, m), *d = new_session(f, same), *e = new_session(f, odd);
        for (int sampling = 0; sampling < 3; sampling++) {
            weir_generate_options o = options_of(WEIR_SPECULATE_OFF, sampling);
            weir_result plain = answer_of(f, s, a, &o);
            uint64_t after = hash_after(f, s);
            o.speculate = WEIR_SPECULATE_DRAFT;
            assert_ok(f, weir_session_set_draft(s, d, &f->err));
            weir_result r = answer_of(f, s, a, &o);
            assert_same(&r, &plain);
            assert_int_equal(hash_after(f, s), after);
            assert_int_equal(r.n_accepted, r.n_drafted);
            assert_int_equal(r.n_passes, 1 + (N_ANSWER - 1 + 7) / 8);
            weir_result_finish(m, &r);
            assert_ok(f, weir_session_set_draft(s, e, &f->err));
            const weir_speculate modes[] = {WEIR_SPECULATE_DRAFT, WEIR_SPECULATE_AUTO};
            for (size_t i = 0; i < 2; i++) {
                o.speculate = modes[i];
                r = answer_of(f, s, a, &o);
                assert_same(&r, &plain);
                assert_int_equal(hash_after(f, s), after);
                assert_int_equal(r.n_passes + r.n_accepted, N_ANSWER);
                if (i == 0) assert_true(r.n_accepted < r.n_drafted / 2);
                weir_result_finish(m, &r);
            }
            assert_ok(f, weir_session_set_draft(s, NULL, &f->err));
            weir_result_finish(m, &plain);
        }
        /* either may go first */
        assert_ok(f, weir_session_set_draft(s, d, &f->err));
        weir_session_destroy(d);
        assert_null(s->draft);
        assert_ok(f, weir_session_set_draft(s, e, &f->err));
        weir_session_destroy(s);
        assert_null(e->main);
        weir_session_destroy(e);
        weir_model_close(m);
        weir_model_close(same);
        weir_model_close(odd);
    }
}

static void test_draft_refuses(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama"), *small, *again = open_tiny(f, "qwen2");
    weir_synth_options o;
    weir_synth_options_init(&o);
    o.arch = "llama";
    o.type = "Q8_0";
    o.hidden = 64;
    o.n_layers = 1;
    o.n_heads = o.n_kv_heads = 2;
    o.ffn = 64;
    o.n_vocab = 400;
    o.ctx_tokens = 64;
    char path[256];
    snprintf(path, sizeof path, "%s/qwen3.gguf", f->folder);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    assert_ok(f, weir_model_open(f->context, path, &small, &f->err));
    load_eight(f, small, 1);
    load_eight(f, again, 1);
    load_eight(f, m, 2);
    weir_session *s = new_session(f, m), *t = new_session(f, m), *d = new_session(f, small);
    weir_session *e = new_session(f, again);
    assert_int_equal(weir_session_set_draft(s, d, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "has 512 tokens, the draft");
    assert_mentions(f->err.message, "has 400");
    assert_int_equal(weir_session_set_draft(s, s, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "another model");
    assert_ok(f, weir_session_set_draft(s, e, &f->err));
    assert_int_equal(weir_session_set_draft(t, e, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "already");
    weir_generate_options g = options_of((weir_speculate)9, 0);
    weir_result r;
    const int32_t one = 1;
    assert_int_equal(weir_generate(s, &one, 1, &g, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "speculate is 9");
    g.speculate = WEIR_SPECULATE_DRAFT;
    assert_int_equal(weir_generate(t, &one, 1, &g, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "weir_session_set_draft");
    assert_int_equal(weir_session_position(t), 0);
    weir_session_destroy(s);
    weir_session_destroy(t);
    weir_session_destroy(d);
    weir_session_destroy(e);
    weir_model_close(m);
    weir_model_close(small);
    weir_model_close(again);
}

/* A draft whose model is unloaded meanwhile: the answer goes on without its guesses. */
static void test_draft_unloaded(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama"), *other = open_tiny(f, "qwen3");
    load_eight(f, other, 1);
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m), *d = new_session(f, other);
    weir_generate_options o = options_of(WEIR_SPECULATE_OFF, 0);
    weir_result plain = answer_of(f, s, 0, &o);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    weir_model_unload(other);
    const weir_speculate modes[] = {WEIR_SPECULATE_AUTO, WEIR_SPECULATE_DRAFT};
    for (size_t i = 0; i < 2; i++) {
        o.speculate = modes[i];
        weir_result r = answer_of(f, s, 0, &o);
        assert_same(&r, &plain);
        if (modes[i] == WEIR_SPECULATE_DRAFT) assert_int_equal(r.n_drafted, 0);
        weir_result_finish(m, &r);
    }
    weir_result_finish(m, &plain);
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(m);
    weir_model_close(other);
}

/* A draft model that has read only the end of a text, since all of it would have cost too much: it guesses as
 * a session does that holds the first token and that end, and reads the rest when it is asked to. */
static void test_draft_of_the_end(void **state)
{
    enum { FROM = 15, N_GUESSES = 5 };
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama"), *other = open_tiny(f, "qwen3");
    load_eight(f, other, 2);
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m), *d = new_session(f, other), *e = new_session(f, other);
    int32_t tokens[N_PROMPT], end[N_PROMPT], guesses[N_GUESSES], wanted[N_GUESSES];
    prompt_of(tokens, 9);
    assert_ok(f, weir_session_append(s, tokens, N_PROMPT, NULL, &f->err));
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    weir_generate_options o = options_of(WEIR_SPECULATE_OFF, 0);
    o.max_tokens = N_GUESSES;
    rt_draw draw;
    assert_ok(f, rt_draw_begin(&draw, &o.sampling, &f->err));
    uint64_t kinds[2] = {0};
    for (int whole = 0; whole < 2; whole++) {
        uint32_t n_end = whole ? N_PROMPT : 1 + N_PROMPT - FROM, n;
        end[0] = tokens[0];
        memcpy(end + 1, tokens + N_PROMPT - n_end + 1, (n_end - 1) * sizeof *end);
        weir_result r;
        weir_session_reset(e);
        assert_ok(f, weir_generate(e, end, n_end, &o, &r, &f->err));
        memcpy(wanted, r.tokens, sizeof wanted);
        kinds[whole] = r.logits_hash;
        weir_result_finish(other, &r);
        s->guessing.draft_from = whole ? 0 : FROM;
        for (int again = 0; again < 2; again++) {
            assert_int_equal(rt_draft_rows(s, s->guessing.draft_from), again   ? 1
                                                                       : whole ? N_PROMPT - 1
                                                                               : n_end);
            assert_ok(f, rt_draft(s, &draw, N_GUESSES, guesses, &n, &f->err));
            assert_int_equal(n, N_GUESSES);
            assert_memory_equal(guesses, wanted, sizeof wanted);
            assert_int_equal(weir_session_position(d), n_end + N_GUESSES - 1);
            assert_memory_equal(d->tokens, end, n_end * sizeof *end);
        }
    }
    assert_true(kinds[0] != kinds[1]);
    weir_session_destroy(e);
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(other);
    weir_model_close(m);
}

/* Cancels a model at a read of an answer, those of its prompt not counted. */
typedef struct canceller {
    weir_model *model;
    const weir_session *session;
    uint32_t reads_left;
} canceller;

static void cancel_in_time(void *arg)
{
    canceller *c = arg;
    if (weir_session_position(c->session) <= N_PROMPT || c->reads_left == 0) return;
    if (--c->reads_left == 0) weir_model_cancel(c->model);
}

/* An answer whose n-th read behind the prompt cancels a model; *met: there was such a read. */
static weir_result cancelled_answer(fixture *f, weir_session *s, const weir_generate_options *o, uint32_t n,
                                    weir_model *model, bool *met)
{
    canceller c = {.model = model, .session = s, .reads_left = n};
    const base_fault_rule rule = {.site = BASE_FAULT_COMPLETION,
                                  .for_good = true,
                                  .hold = cancel_in_time,
                                  .hold_arg = &c,
                                  .passes = true};
    int32_t tokens[N_PROMPT];
    weir_result r;
    prompt_of(tokens, 3);
    weir_session_reset(s);
    weir_session_reset(s->draft);
    assert_ok(f, base_fault_arm(f->context->env, &rule, &f->err));
    assert_ok(f, weir_generate(s, tokens, N_PROMPT, o, &r, &f->err));
    base_fault_clear(f->context->env);
    *met = c.reads_left == 0;
    return r;
}

/* R5.6: the model that an answer is of is cancelled at reads that are mostly its draft model's: the draft
 * stops there, not behind the text that it has to read first, and the answer with it. What came until then is
 * of plain decoding, both sessions go on as if nothing had been, and it is no failure of the draft. */
static void test_cancelled_while_the_draft_runs(void **state)
{
    fixture *f = *state;
    weir_model *m, *other;
    load_with_draft(f, 2, &m, &other);
    weir_session *d = new_session(f, other), *s = new_session(f, m), *t = new_session(f, m);
    weir_generate_options o = options_of(WEIR_SPECULATE_OFF, 1);
    weir_result plain = answer_of(f, s, 3, &o), r;
    uint64_t after = hash_after(f, s);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    o.speculate = WEIR_SPECULATE_DRAFT;
    uint32_t n_cancelled = 0;
    bool met = true;
    for (uint32_t n = 1; met; n += 1 + n / 3) {
        r = cancelled_answer(f, s, &o, n, m, &met);
        if (met) {
            int32_t tokens[N_PROMPT];
            prompt_of(tokens, 3);
            n_cancelled++;
            assert_int_equal(r.stop, WEIR_STOP_CANCELLED);
            assert_in_range(r.n_tokens, 1, N_ANSWER - 1);
            assert_memory_equal(r.tokens, plain.tokens, r.n_tokens * sizeof *r.tokens);
            assert_int_equal(weir_session_position(s), N_PROMPT + r.n_tokens);
            if (n == 1) assert_int_equal(weir_session_position(d), 0);
            assert_int_equal(s->guessing.draft_errors, 0);
            weir_session_reset(t);
            assert_ok(f, weir_session_append(t, tokens, N_PROMPT, NULL, &f->err));
            assert_ok(f, weir_session_append(t, r.tokens, r.n_tokens, NULL, &f->err));
            assert_int_equal(hash_after(f, s), hash_after(f, t));
        } else
            assert_same(&r, &plain);
        weir_result_finish(m, &r);
        r = answer_of(f, s, 3, &o);
        assert_same(&r, &plain);
        assert_int_equal(hash_after(f, s), after);
        weir_result_finish(m, &r);
    }
    assert_true(n_cancelled > 10);
    /* one flag decides: that of the draft's own model does not */
    r = cancelled_answer(f, s, &o, 1, other, &met);
    assert_true(met);
    assert_same(&r, &plain);
    weir_result_finish(m, &r);
    weir_result_finish(m, &plain);
    weir_session_destroy(s);
    weir_session_destroy(t);
    weir_session_destroy(d);
    weir_model_close(m);
    weir_model_close(other);
}

/* Where the plan has room for one row, nothing is guessed. */
static void test_no_room(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(160, 1);
    o.prefill_chunk = 1;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    weir_generate_options g = options_of(WEIR_SPECULATE_LOOKUP, 0);
    weir_result r = answer_of(f, s, 0, &g);
    assert_int_equal(r.n_drafted, 0);
    assert_int_equal(r.n_passes, N_ANSWER);
    assert_true(r.logits_hash != WEIR_HASH_SEED);
    weir_result_finish(m, &r);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* Answers that end within a checked pass: by an end of context, by the caller, by the shortest length. */
static bool stop_at(void *arg, const char *text, size_t len)
{
    (void)text, (void)len;
    uint32_t *left = arg;
    return --*left > 0;
}

static void test_ends_within_a_pass(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama"), *same = open_again(f, m);
    load_eight(f, same, 1);
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m), *d = new_session(f, same);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 3);
    for (uint32_t length = 1; length < 150; length += length < 12 ? 1 : 40) {
        for (int by_caller = 0; by_caller < 2; by_caller++) {
            weir_result r[2];
            uint64_t after[2];
            for (int i = 0; i < 2; i++) {
                uint32_t left = length;
                weir_generate_options o = options_of(i == 0 ? WEIR_SPECULATE_OFF : WEIR_SPECULATE_DRAFT, 1);
                o.max_tokens = by_caller ? 200 : length;
                o.on_text = by_caller ? stop_at : NULL;
                o.arg = &left;
                weir_session_reset(s);
                assert_ok(f, weir_generate(s, tokens, N_PROMPT, &o, &r[i], &f->err));
                assert_int_equal(weir_session_position(s), N_PROMPT + r[i].n_tokens);
                bool full = weir_session_position(s) == 160;
                if (full) assert_int_equal(r[i].stop, WEIR_STOP_CONTEXT);
                after[i] = full ? 1 : logits_of(f, s, tokens, 1);
            }
            assert_same(&r[1], &r[0]);
            assert_int_equal(after[1], after[0]);
            weir_result_finish(m, &r[0]);
            weir_result_finish(m, &r[1]);
        }
    }
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(same);
    weir_model_close(m);
}

/* ---- faults ---- */

/* Reads that fail within passes that check guesses: an error leaves the session where it was, and it gives
 * the same answer when asked again (X5). */
static void test_failing_reads(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "gemma3");
    weir_plan p;
    weir_load_options o = load_options(160, 2);
    o.prefill_chunk = 16;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    o.mem_bytes = (p.smallest_bytes + p.whole_bytes) / 2;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    assert_true(m->run->plan.max_outputs >= 4);
    assert_true(m->run->plan.view.streamed_bytes_per_pass > 0);
    weir_session *s = new_session(f, m);
    base_env *env = f->context->env;
    weir_generate_options g = options_of(WEIR_SPECULATE_LOOKUP, 0);
    g.max_tokens = 24;
    weir_result clean = answer_of(f, s, 2, &g);
    assert_true(clean.n_drafted > 0 && clean.n_passes < 24);
    assert_ok(f, base_fault_count_on(env, &f->err));
    weir_result counted = answer_of(f, s, 2, &g);
    weir_result_finish(m, &counted);
    uint64_t passages = base_fault_count(env, BASE_FAULT_READ);
    base_fault_clear(env);
    assert_true(passages > 20);
    uint64_t step = getenv("WEIR_TEST_FULL") != NULL ? 1 : 1 + passages / 25;
    unsigned errors = 0;
    int32_t tokens[N_PROMPT], first[4] = {9, 8, 7, 6};
    prompt_of(tokens, 2);
    for (int for_good = 0; for_good <= 1; for_good++) {
        for (uint64_t i = 0; i < passages; i += step) {
            const base_fault_rule rule = {
                .site = BASE_FAULT_READ, .after = i, .for_good = for_good != 0, .length = -1};
            weir_result r;
            weir_session_reset(s);
            assert_ok(f, weir_session_append(s, first, 4, NULL, &f->err));
            weir_session_truncate(s, 0, &f->err);
            assert_ok(f, base_fault_arm(env, &rule, &f->err));
            weir_status status = weir_generate(s, tokens, N_PROMPT, &g, &r, &f->err);
            base_fault_clear(env);
            if (status != WEIR_OK) {
                errors++;
                assert_int_equal(status, WEIR_ERR_IO);
                assert_null(r.tokens);
                assert_int_equal(weir_session_position(s), 0);
                assert_ok(f, weir_generate(s, tokens, N_PROMPT, &g, &r, &f->err));
            }
            assert_same(&r, &clean);
            weir_result_finish(m, &r);
        }
    }
    assert_true(errors > 0);
    weir_result_finish(m, &clean);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* A step of answers that fails can be tried again, and nothing is lost. */
static void test_failing_step(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "llama");
    weir_plan p;
    weir_load_options o = load_options(160, 2);
    o.n_sessions = 2;
    o.prefill_chunk = 16;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    o.mem_bytes = (p.smallest_bytes + p.whole_bytes) / 2;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s[2] = {new_session(f, m), new_session(f, m)};
    base_env *env = f->context->env;
    weir_generate_options g = options_of(WEIR_SPECULATE_LOOKUP, 1);
    weir_answer *a[2];
    weir_result wanted[2];
    int32_t tokens[N_PROMPT];
    for (size_t i = 0; i < 2; i++) {
        wanted[i] = answer_of(f, s[i], i, &g);
        weir_session_reset(s[i]);
        prompt_of(tokens, i);
        assert_ok(f, weir_answer_begin(s[i], tokens, N_PROMPT, &g, &a[i], &f->err));
    }
    unsigned errors = 0, steps = 0;
    while (!weir_answer_done(a[0]) || !weir_answer_done(a[1])) {
        const base_fault_rule rule = {
            .site = BASE_FAULT_READ, .after = steps % 2, .for_good = steps % 3 == 0, .length = -1};
        assert_ok(f, base_fault_arm(env, &rule, &f->err));
        uint32_t before = weir_session_position(s[0]);
        weir_status status = weir_answers_step(a, 2, 0, &f->err);
        base_fault_clear(env);
        if (status != WEIR_OK) {
            errors++;
            assert_int_equal(status, WEIR_ERR_IO);
            assert_int_equal(weir_session_position(s[0]), before);
            assert_ok(f, weir_answers_step(a, 2, 0, &f->err));
        }
        assert_true(++steps < 200);
    }
    print_message("%u of %u steps failed and were tried again\n", errors, steps);
    assert_true(errors > 3 && steps > errors);
    for (size_t i = 0; i < 2; i++) {
        weir_result r;
        assert_ok(f, weir_answer_end(a[i], &r, &f->err));
        assert_same(&r, &wanted[i]);
        weir_result_finish(m, &r);
        weir_result_finish(m, &wanted[i]);
        weir_session_destroy(s[i]);
    }
    weir_model_close(m);
}

/* ---- answers that share passes ---- */

/* They begin one after the other while those before decode, and end at different times. */
static void test_shared_answers(void **state)
{
    fixture *f = *state;
    for (size_t arch = 0; arch < 4; arch += 3) {
        weir_model *m = open_tiny(f, archs[arch]);
        load_eight(f, m, 3);
        weir_session *s[3];
        weir_result wanted[3];
        weir_generate_options g[3];
        weir_answer *a[3] = {0};
        int32_t tokens[N_PROMPT];
        for (size_t i = 0; i < 3; i++) {
            s[i] = new_session(f, m);
            g[i] = options_of(i == 0 ? WEIR_SPECULATE_LOOKUP : (weir_speculate)(i - 1), (int)i);
            g[i].max_tokens = 20 + 20 * (uint32_t)i;
            wanted[i] = answer_of(f, s[i], i, &g[i]);
            weir_session_reset(s[i]);
        }
        assert_true(wanted[0].logits_hash != wanted[1].logits_hash);
        size_t n = 0;
        for (uint32_t step = 0;; step++) {
            assert_true(step < 400);
            if (step % 10 == 0 && n < 3) {
                prompt_of(tokens, n);
                assert_ok(f, weir_answer_begin(s[n], tokens, N_PROMPT, &g[n], &a[n], &f->err));
                n++;
            }
            assert_ok(f, weir_answers_step(a, n, step % 3 == 0 ? 3 : 0, &f->err));
            if (n == 3 && weir_answer_done(a[0]) && weir_answer_done(a[1]) && weir_answer_done(a[2])) break;
        }
        for (size_t i = 0; i < 3; i++) {
            weir_result r;
            assert_ok(f, weir_answer_end(a[i], &r, &f->err));
            assert_same(&r, &wanted[i]);
            assert_int_equal(weir_session_position(s[i]), N_PROMPT + g[i].max_tokens);
            weir_result_finish(m, &r);
            weir_result_finish(m, &wanted[i]);
            weir_session_destroy(s[i]);
        }
        weir_model_close(m);
    }
}

static void test_answers_refuse(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m);
    weir_answer *a, *b;
    weir_result r;
    int32_t tokens[N_PROMPT], far[200] = {0};
    prompt_of(tokens, 0);
    assert_int_equal(weir_answer_begin(s, far, 200, NULL, &a, &f->err), WEIR_ERR_CONTEXT_FULL);
    assert_null(a);
    assert_int_equal(weir_session_position(s), 0);
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, NULL, &a, &f->err));
    assert_int_equal(weir_answer_begin(s, tokens, N_PROMPT, NULL, &b, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "under way");
    weir_answer *twice[2] = {a, a};
    assert_int_equal(weir_answers_step(twice, 2, 0, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_answers_step(NULL, 0, 0, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    /* given up within the prompt: no trace of it */
    assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_false(weir_answer_done(a));
    assert_ok(f, weir_answer_end(a, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_CALLER);
    assert_int_equal(r.n_tokens, 0);
    weir_result_finish(m, &r);
    assert_int_equal(weir_session_position(s), 0);
    /* cancelled between two steps */
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, NULL, &a, &f->err));
    while (weir_session_position(s) < N_PROMPT + 2) assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    weir_model_cancel(m);
    assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_true(weir_answer_done(a));
    assert_ok(f, weir_answer_end(a, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_CANCELLED);
    assert_true(r.n_tokens >= 2);
    weir_result_finish(m, &r);
    assert_ok(f, weir_answer_end(NULL, &r, &f->err));
    weir_session_destroy(s);
    weir_model_close(m);
}

/* A cancel that came too late for one answer does not end the next; one that came between two steps ends all
 * that are under way, also those that begin before the next step. */
static void test_late_cancel(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    load_eight(f, m, 2);
    weir_session *s[2] = {new_session(f, m), new_session(f, m)};
    weir_generate_options o = options_of(WEIR_SPECULATE_AUTO, 0);
    weir_result wanted = answer_of(f, s[0], 0, &o), r;
    weir_session_reset(s[0]);
    weir_answer *a[2];
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 0);
    weir_model_cancel(m);
    assert_ok(f, weir_answer_begin(s[0], tokens, N_PROMPT, &o, &a[0], &f->err));
    while (!weir_answer_done(a[0])) assert_ok(f, weir_answers_step(a, 1, 0, &f->err));
    weir_model_cancel(m);
    assert_ok(f, weir_answer_begin(s[1], tokens, N_PROMPT, &o, &a[1], &f->err));
    assert_ok(f, weir_answer_end(a[0], &r, &f->err));
    assert_same(&r, &wanted);
    weir_result_finish(m, &r);
    assert_ok(f, weir_answers_step(&a[1], 1, 0, &f->err));
    assert_false(weir_answer_done(a[1]));
    weir_model_cancel(m);
    weir_session_reset(s[0]);
    assert_ok(f, weir_answer_begin(s[0], tokens, N_PROMPT, &o, &a[0], &f->err));
    assert_ok(f, weir_answers_step(a, 2, 0, &f->err));
    for (size_t i = 0; i < 2; i++) {
        assert_true(weir_answer_done(a[i]));
        assert_ok(f, weir_answer_end(a[i], &r, &f->err));
        assert_int_equal(r.stop, WEIR_STOP_CANCELLED);
        weir_result_finish(m, &r);
        weir_session_destroy(s[i]);
    }
    weir_result_finish(m, &wanted);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lookup_is_exact, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_is_exact, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_refuses, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_unloaded, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancelled_while_the_draft_runs, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_of_the_end, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_no_room, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_ends_within_a_pass, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_failing_reads, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_failing_step, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_shared_answers, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_answers_refuse, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_late_cancel, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_speculate", tests, NULL, NULL);
}
