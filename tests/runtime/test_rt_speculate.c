/* Speculation: guesses from the text, from a draft that is the model itself, and from one that knows nothing,
 * give the tokens, the logits and the random numbers of plain decoding (X4, X1, X5). And answers that share
 * passes give what each gives alone. */
#include "rt_test.h"

#include "runtime/rt_answer.h"

#define N_PROMPT 40
#define N_ANSWER 60

static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};

/* A text that comes back to itself. */
static void prompt_of(int32_t *tokens, uint64_t seed)
{
    some_tokens(tokens, N_PROMPT, 500, seed);
    memcpy(tokens + N_PROMPT / 2, tokens, N_PROMPT / 2 * sizeof *tokens);
}

static weir_generate_options options_of(weir_speculate mode, int sampling)
{
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = N_ANSWER;
    o.ignore_end = true;
    o.speculate = mode;
    o.speculate_tokens = 7;
    o.sampling.seed = 41;
    if (sampling == 0) return o;
    o.sampling.temperature = 0.7F;
    o.sampling.top_p = 0.9F;
    if (sampling == 1) return o;
    o.sampling.repeat_penalty = 1.3F;
    o.sampling.repeat_last = 9;
    o.sampling.top_k = 20;
    return o;
}

/* The same file once more. */
static weir_model *open_again(fixture *f, const weir_model *m)
{
    weir_model *again;
    assert_ok(f, weir_model_open(f->context, base_file_path(fmt_model_file(m->file, 0)), &again, &f->err));
    return again;
}

/* Passes of eight rows with logits for each. */
static void load_eight(fixture *f, weir_model *m, uint32_t n_sessions)
{
    weir_load_options o = load_options(160, 2);
    o.n_sessions = n_sessions;
    o.prefill_chunk = 8;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    assert_true(m->run->plan.max_outputs >= 8);
}

static weir_result answer_of(fixture *f, weir_session *s, uint64_t prompt, const weir_generate_options *o)
{
    int32_t tokens[N_PROMPT];
    weir_result r;
    prompt_of(tokens, prompt);
    weir_session_reset(s);
    assert_ok(f, weir_generate(s, tokens, N_PROMPT, o, &r, &f->err));
    assert_int_equal(r.n_tokens, o->max_tokens);
    assert_int_equal(weir_session_position(s), N_PROMPT + r.n_tokens);
    assert_int_equal(s->n_cached, s->n_tokens - 1);
    return r;
}

static void assert_same(const weir_result *a, const weir_result *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->logits_hash, b->logits_hash);
    assert_int_equal(a->stop, b->stop);
}

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
    weir_load_options streams = streaming_options(f, make_model(f, "qwen3", 256));
    weir_model *other = open_small(f, "qwen3"), *m = open_small(f, "llama");
    assert_ok(f, weir_model_load(other, &streams, &f->err));
    weir_session *d = new_session(f, other);
    load_eight(f, m, 2);
    assert_true(other->run->plan.memory.streamed_bytes > 0 && m->run->plan.memory.streamed_bytes == 0);
    weir_session *s = new_session(f, m), *t = new_session(f, m);
    weir_generate_options o = options_of(WEIR_SPECULATE_OFF, 1);
    weir_result plain = answer_of(f, s, 3, &o), r;
    uint64_t after = hash_after(f, s);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    o.speculate = WEIR_SPECULATE_DRAFT;
    uint32_t n_cancelled = 0;
    bool met = true;
    for (uint32_t n = 1; met; n += 1 + n / 8) {
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

/* ---- parts ---- */

/* A lookup in t[0, n) alone. */
static uint32_t look(const int32_t *t, uint32_t n, uint32_t n_wanted, int32_t *guesses, uint32_t *length)
{
    static uint32_t before[16];
    static rt_index x;
    assert_true(n <= 16);
    memset(&x, 0, sizeof x);
    x.before = before;
    return rt_lookup(&x, t, n, n_wanted, guesses, length);
}

static void test_lookup(void **state)
{
    (void)state;
    int32_t guesses[8];
    uint32_t length;
    const int32_t t[] = {1, 2, 3, 4, 5, 2, 3, 9, 8, 1, 2, 3};
    assert_int_equal(look(t, 12, 4, guesses, &length), 4);
    assert_int_equal(length, 3);
    const int32_t longest[4] = {4, 5, 2, 3};
    assert_memory_equal(guesses, longest, sizeof longest);
    /* of equal lengths the latest */
    assert_int_equal(look(t + 1, 11, 2, guesses, &length), 2);
    assert_int_equal(length, 2);
    const int32_t latest[2] = {9, 8};
    assert_memory_equal(guesses, latest, sizeof latest);
    /* a period goes on */
    const int32_t period[] = {7, 1, 2, 1, 2, 1};
    assert_int_equal(look(period, 6, 5, guesses, &length), 5);
    assert_int_equal(length, 3);
    const int32_t on[5] = {2, 1, 2, 1, 2};
    assert_memory_equal(guesses, on, sizeof on);
    assert_int_equal(look(t, 5, 4, guesses, &length), 0);
    assert_int_equal(length, 0);
    assert_int_equal(look(t, 1, 4, guesses, &length), 0);
    assert_int_equal(look(t, 12, 0, guesses, &length), 0);
}

/* The longest end that is found again, by comparing everything with everything. */
static uint32_t look_everywhere(const int32_t *t, uint32_t n, uint32_t *where)
{
    uint32_t best = 0;
    for (uint32_t at = 0; at + 1 < n; at++) {
        uint32_t length = 0;
        while (length <= at && t[at - length] == t[n - 1 - length]) length++;
        if (length == 0 || length < best) continue;
        best = length;
        *where = at;
    }
    return best;
}

/* A sequence that grows, is cut and goes on otherwise: the index follows it. Few kinds of tokens, and kinds
 * that share their chains. */
static void test_lookup_follows_cuts(void **state)
{
    (void)state;
    enum { N = 400 };
    static uint32_t before[N];
    static int32_t t[N];
    static rt_index x;
    base_rng rng;
    base_rng_seed(&rng, 11, 0);
    x.before = before;
    uint32_t n = 0, found = 0, cuts = 0;
    for (uint32_t step = 0; step < 4000; step++) {
        if (n == N || base_rng_u32(&rng) % 40 == 0) {
            uint32_t to = base_rng_u32(&rng) % (n + 1);
            rt_index_cut(&x, t, to);
            n = to;
            cuts++;
        }
        /* half of the time on from an earlier place */
        bool again = n > 2 && base_rng_u32(&rng) % 2 == 0;
        uint32_t from = again ? base_rng_u32(&rng) % n : 0;
        t[n] = again ? t[from] : (int32_t)(base_rng_u32(&rng) % 8 * 1021);
        n++;
        int32_t guess[1];
        uint32_t length, where = 0, wanted = look_everywhere(t, n, &where);
        uint32_t got = rt_lookup(&x, t, n, 1, guess, &length);
        assert_int_equal(length, wanted);
        assert_int_equal(got, wanted != 0);
        if (wanted != 0) assert_int_equal(guess[0], t[where + 1]);
        found += wanted >= 3;
    }
    assert_true(found > 500 && cuts > 50);
}

static void test_costs(void **state)
{
    (void)state;
    rt_costs c = {.row_guess = 0.25};
    assert_true(rt_costs_of(&c, 1) == 0);
    rt_costs_add(&c, 1, 1, 50); /* the first is not counted */
    assert_true(rt_costs_of(&c, 1) == 0);
    rt_costs_add(&c, 1, 1, 1.0);
    assert_float_equal(rt_costs_of(&c, 1), 1.0, 1e-9);
    assert_float_equal(rt_costs_of(&c, 3), 1.5, 1e-9); /* until more is known */
    rt_costs_add(&c, 9, 9, 3.0);
    assert_float_equal(rt_costs_of(&c, 5), 2.0, 1e-9);
    /* fewer rows never take longer */
    rt_costs_add(&c, 4, 4, 0.5);
    assert_float_equal(rt_costs_of(&c, 1), 0.5, 1e-9);
    /* a long pass stands for what lies between */
    rt_costs_add(&c, 109, 1, 103.0);
    assert_float_equal(rt_costs_of(&c, 59), 53.0, 1e-9);
    /* a pass that was held up once counts as four */
    rt_costs_add(&c, 4, 4, 0.5);
    rt_costs_add(&c, 4, 4, 100.0);
    assert_float_equal(c.seconds[4], 0.5 + 1.5 / 3, 1e-9);
    /* and a first one as twice what it was expected to take */
    rt_costs_add(&c, 2, 2, 100.0);
    assert_float_equal(c.seconds[2], 2.0, 1e-9);
}

/* Passes of prompts compute the head for few rows or none: what they take is not what checking guesses takes.
 */
static void test_costs_of_prompts(void **state)
{
    fixture *f = *state;
    rt_costs c = {.row_guess = 0.25};
    rt_costs_add(&c, 32, 0, 9.0);
    rt_costs_add(&c, 1, 1, 1.0);
    rt_costs_add(&c, 32, 0, 0.5);
    rt_costs_add(&c, 9, 8, 0.5);
    assert_float_equal(rt_costs_of(&c, 1), 1.0, 1e-9);
    assert_float_equal(rt_costs_of(&c, 5), 2.0, 1e-9);
    weir_model *m = open_tiny(f, "llama");
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m);
    weir_generate_options o = options_of(WEIR_SPECULATE_AUTO, 0);
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 1);
    weir_answer *a;
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, &o, &a, &f->err));
    const rt_costs *k = &m->run->costs;
    while (s->n_tokens == N_PROMPT) assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_int_equal(k->n_passes, N_PROMPT / 8);
    for (uint32_t rows = 1; rows <= RT_COST_ROWS; rows++) assert_int_equal(k->count[rows], 0);
    assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_int_equal(k->count[1], 1);
    assert_ok(f, weir_answer_end(a, NULL, &f->err));
    weir_session_destroy(s);
    weir_model_close(m);
}

/* Plain passes were slow while memory was missing, and since it is there again all passes guess: the plain
 * one's time is doubted, soon where a longer pass took clearly less, and replaced by one measurement. */
static void test_costs_are_doubted(void **state)
{
    (void)state;
    rt_costs c = {.row_guess = 0.01};
    rt_costs_add(&c, 1, 1, 2.0);
    for (int i = 0; i < 20; i++) rt_costs_add(&c, 1, 1, 2.0);
    rt_costs_add(&c, 8, 8, 2.1);
    assert_false(rt_costs_doubtful(&c, 1));
    for (int i = 0; i < 7; i++) rt_costs_add(&c, 7, 7, 0.3);
    assert_false(rt_costs_doubtful(&c, 1));
    assert_float_equal(rt_costs_of(&c, 1), 0.3, 1e-9);
    rt_costs_add(&c, 7, 7, 0.3);
    assert_true(rt_costs_doubtful(&c, 1));
    rt_costs_add(&c, 1, 1, 0.1);
    assert_false(rt_costs_doubtful(&c, 1));
    assert_float_equal(rt_costs_of(&c, 1), 0.1, 1e-9);
    /* nothing refutes it: after a while all the same */
    for (int i = 0; i < 64; i++) rt_costs_add(&c, 7, 7, 0.3);
    assert_false(rt_costs_doubtful(&c, 1));
    rt_costs_add(&c, 7, 7, 0.3);
    assert_true(rt_costs_doubtful(&c, 1));
    rt_costs_add(&c, 1, 1, 0.04);
    assert_float_equal(rt_costs_of(&c, 1), 0.04, 1e-9);
    assert_false(rt_costs_doubtful(&c, 1));
    /* slower is believed half, as it may be a bad moment */
    for (int i = 0; i < 65; i++) rt_costs_add(&c, 7, 7, 0.3);
    rt_costs_add(&c, 1, 1, 0.06);
    assert_float_equal(rt_costs_of(&c, 1), 0.05, 1e-9);
}

/* Guesses that one answer would get now. */
static uint32_t guesses_now(weir_model *m, weir_answer *a)
{
    rt_share share = {.session = a->session, .answer = a, .n_rows = 1, .n_outputs = 1};
    a->guess = (rt_guess){.looked = -1};
    rt_speculate(m->run, &share, 1, 31, 31);
    assert_int_equal(share.n_rows, 1 + a->guess.n_rows);
    assert_int_equal(share.n_outputs, share.n_rows);
    return a->guess.n_rows;
}

/* A guess too many costs half a pass here. However sure they seem, there are no more than the purse could pay
 * for; and however much is in it, none where they are not expected to be right. */
static void test_purse(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m);
    weir_generate_options o = options_of(WEIR_SPECULATE_AUTO, 0);
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 1);
    weir_answer *a;
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, &o, &a, &f->err));
    rt_costs *c = &m->run->costs;
    assert_int_equal(guesses_now(m, a), 0); /* no pass was timed */
    for (uint32_t rows = 1; rows <= RT_COST_ROWS; rows++) {
        c->seconds[rows] = 2 * (1 + 0.5 * (rows - 1));
        c->count[rows] = 1;
    }
    rt_guessing *g = &s->guessing;
    for (uint32_t k = 0; k < RT_KINDS; k++) g->hits[k] = g->trials[k] = 100;
    const struct {
        double purse;
        uint32_t guesses;
    } cases[] = {{-0.5, 0}, {-0.1, 0}, {0, 1}, {0.49, 1}, {0.5, 2}, {2.1, 5}, {8, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        g->purse = cases[i].purse;
        assert_int_equal(guesses_now(m, a), cases[i].guesses);
    }
    assert_memory_equal(s->tokens + N_PROMPT, tokens, 7 * sizeof *tokens);
    /* what plain passes take has to be seen from time to time */
    c->idle[1] = 65;
    assert_int_equal(guesses_now(m, a), 0);
    c->idle[1] = 64;
    assert_int_equal(guesses_now(m, a), 7);
    /* three of seven right: 3 tokens against 3.5 */
    rt_share share = {.session = s, .answer = a};
    a->guess.n_right = 3;
    g->purse = 1;
    rt_guess_settle(c, &share, 1);
    assert_float_equal(g->purse, 1 + 3 - 3.5 + 0.01, 1e-9);
    for (uint32_t k = 0; k < RT_KINDS; k++) g->hits[k] = 10;
    g->purse = 8;
    assert_int_equal(guesses_now(m, a), 0);
    rt_guess_settle(c, &share, 1);
    assert_float_equal(g->purse, 8, 1e-9); /* it holds no more */
    assert_ok(f, weir_answer_end(a, NULL, &f->err));
    weir_session_destroy(s);
    weir_model_close(m);
}

/* Passes of more rows cost hardly more, and guesses of all kinds were right, the draft's most. */
static void trust_all(weir_session *s)
{
    rt_costs *c = &s->model->run->costs;
    for (uint32_t rows = 1; rows <= RT_COST_ROWS; rows++) {
        c->seconds[rows] = 2 * (1 + 0.1 * (rows - 1));
        c->count[rows] = 1;
    }
    for (uint32_t k = 0; k < RT_KINDS; k++) s->guessing.hits[k] = s->guessing.trials[k] = 100;
    s->guessing.purse = 8;
    s->guessing.draft_seconds = 0.001;
    s->guessing.draft_pause = 0;
}

/* A draft whose context is shorter than the model's guesses as far as that goes. From there on, and where it
 * fails, the guesses from the text stand. */
static void test_short_draft(void **state)
{
    enum { CTX = 64, N = 100 };
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama"), *other = open_tiny(f, "qwen3");
    weir_load_options o = load_options(CTX, 1);
    o.prefill_chunk = 8;
    assert_ok(f, weir_model_load(other, &o, &f->err));
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m), *d = new_session(f, other);
    weir_generate_options g = options_of(WEIR_SPECULATE_AUTO, 0);
    int32_t tokens[N];
    for (uint32_t i = 0; i < N; i++) tokens[i] = 10 + (int32_t)(i * 37 % 11);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    const uint32_t lengths[] = {CTX - 3, CTX - 1, CTX, N};
    for (size_t i = 0; i < 4; i++) {
        uint32_t n = lengths[i], room = n < CTX ? CTX - n : 0;
        weir_answer *a;
        weir_session_reset(s);
        weir_session_reset(d);
        assert_ok(f, weir_answer_begin(s, tokens, n, &g, &a, &f->err));
        trust_all(s);
        /* The draft's are the better ones, where it has room. */
        for (uint32_t k = 0; k < RT_KIND_DRAFT; k++) s->guessing.hits[k] = room != 0 ? 0 : 70;
        uint32_t guesses = guesses_now(m, a);
        if (room != 0) {
            assert_int_equal(guesses, room);
            assert_int_equal(a->guess.length, 0);
        } else {
            assert_in_range(guesses, 1, 7);
            assert_int_equal(a->guess.length, base_min(n - 11, 64));
            assert_memory_equal(s->tokens + n, tokens + n % 11, guesses * sizeof *tokens);
        }
        assert_int_equal(s->guessing.draft_errors, 0);
        assert_ok(f, weir_answer_end(a, NULL, &f->err));
    }
    /* whole answers, past its context and up to it */
    g.speculate = WEIR_SPECULATE_OFF;
    weir_result plain = answer_of(f, s, 2, &g);
    const weir_speculate modes[] = {WEIR_SPECULATE_DRAFT, WEIR_SPECULATE_AUTO};
    for (size_t i = 0; i < 2; i++) {
        g.speculate = modes[i];
        weir_result r = answer_of(f, s, 2, &g);
        assert_same(&r, &plain);
        if (i == 0) assert_in_range(r.n_drafted, 1, (CTX - N_PROMPT) * 7);
        weir_result_finish(m, &r);
    }
    weir_result_finish(m, &plain);
    weir_model_unload(other);
    weir_answer *a;
    weir_session_reset(s);
    g.speculate = WEIR_SPECULATE_AUTO;
    assert_ok(f, weir_answer_begin(s, tokens, N, &g, &a, &f->err));
    trust_all(s);
    s->guessing.hits[9] = 70;
    s->guessing.draft_errors = 3;
    uint32_t looked = guesses_now(m, a);
    assert_in_range(looked, 1, 7);
    s->guessing.draft_errors = 0;
    assert_int_equal(guesses_now(m, a), looked);
    assert_int_equal(s->guessing.draft_errors, 1);
    assert_int_equal(a->guess.length, 64);
    assert_memory_equal(s->tokens + N, tokens + N % 11, looked * sizeof *tokens);
    assert_ok(f, weir_answer_end(a, NULL, &f->err));
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(m);
    weir_model_close(other);
}

/* A draft that took far longer than anybody could know: what the purse could not pay is the draft's own debt,
 * and guesses from the text come back soon. Modes that guess whatever it costs leave the purse alone. */
static void test_draft_debt(void **state)
{
    fixture *f = *state;
    weir_load_options streams = streaming_options(f, make_model(f, "qwen3", 256));
    weir_model *other = open_small(f, "qwen3"), *m = open_small(f, "llama");
    assert_ok(f, weir_model_load(other, &streams, &f->err));
    load_eight(f, m, 1);
    weir_session *s = new_session(f, m), *d = new_session(f, other);
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    weir_generate_options o = options_of(WEIR_SPECULATE_AUTO, 0);
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 1);
    weir_answer *a;
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, &o, &a, &f->err));
    trust_all(s);
    rt_guessing *g = &s->guessing;
    for (uint32_t k = 0; k < RT_KIND_DRAFT; k++) g->hits[k] = 70;
    assert_int_equal(guesses_now(m, a), 7);
    assert_int_equal(a->guess.length, 0);
    rt_share share = {.session = s, .answer = a};
    g->purse = 0.2;
    a->guess = (rt_guess){.looked = -1, .seconds = 40}; /* 20 tokens */
    const weir_speculate modes[] = {WEIR_SPECULATE_OFF, WEIR_SPECULATE_LOOKUP, WEIR_SPECULATE_DRAFT};
    for (size_t i = 0; i < 3; i++) {
        a->options.speculate = modes[i];
        rt_guess_settle(&m->run->costs, &share, 1);
        assert_float_equal(g->purse, 0.2, 1e-9);
    }
    a->options.speculate = WEIR_SPECULATE_AUTO;
    rt_guess_settle(&m->run->costs, &share, 1);
    assert_float_equal(g->purse, -0.505, 1e-9);
    assert_float_equal(g->draft_debt, 8 - 0.005, 1e-9);
    assert_int_equal(guesses_now(m, a), 0);
    for (int i = 0; i < 30; i++) {
        a->guess = (rt_guess){.looked = -1};
        rt_guess_settle(&m->run->costs, &share, 1);
    }
    assert_float_equal(g->purse, -0.505 + 30 * 0.005, 1e-9);
    assert_float_equal(g->draft_debt, 8 - 31 * 0.005, 1e-9);
    assert_int_equal(guesses_now(m, a), 1);
    assert_true(a->guess.length > 0);
    /* not even with much in the purse is the draft asked before its debt is paid */
    g->purse = 7;
    assert_in_range(guesses_now(m, a), 1, 7);
    assert_true(a->guess.length > 0);
    g->draft_pause = 0;
    g->draft_debt = 0;
    assert_int_equal(guesses_now(m, a), 7);
    assert_int_equal(a->guess.length, 0);
    assert_ok(f, weir_answer_end(a, NULL, &f->err));
    /* the first time: by the work of both models, but no less than its storage takes */
    uint64_t streamed = other->run->plan.view.streamed_bytes_per_pass;
    assert_true(streamed > 0);
    other->storage.bytes_per_s = 0;
    double by_work = rt_draft_seconds(s, 0.001);
    assert_true(by_work > 0 && by_work < 1);
    other->storage.bytes_per_s = (double)streamed / 3;
    assert_float_equal(rt_draft_seconds(s, 0.001), 3, 1e-6);
    other->storage.bytes_per_s = 1e30;
    assert_float_equal(rt_draft_seconds(s, 0.001), by_work, 1e-12);
    assert_ok(f, weir_session_set_draft(s, NULL, &f->err));
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(m);
    weir_model_close(other);
}

/* Only failures in a row end the draft's use, and only for the answer. */
static void test_draft_fails_now_and_then(void **state)
{
    fixture *f = *state;
    weir_load_options streams = streaming_options(f, make_model(f, "qwen3", 256));
    weir_model *other = open_small(f, "qwen3"), *m = open_small(f, "llama");
    assert_ok(f, weir_model_load(other, &streams, &f->err));
    weir_session *d = new_session(f, other);
    load_eight(f, m, 1);
    assert_true(other->run->plan.memory.streamed_bytes > 0);
    weir_session *s = new_session(f, m);
    base_env *env = f->context->env;
    weir_generate_options o = options_of(WEIR_SPECULATE_OFF, 0);
    weir_result plain = answer_of(f, s, 3, &o), r;
    assert_ok(f, weir_session_set_draft(s, d, &f->err));
    o.speculate = WEIR_SPECULATE_DRAFT;
    int32_t tokens[N_PROMPT];
    prompt_of(tokens, 3);
    weir_answer *a;
    weir_session_reset(s);
    assert_ok(f, weir_answer_begin(s, tokens, N_PROMPT, &o, &a, &f->err));
    const base_fault_rule rule = {.site = BASE_FAULT_READ, .for_good = true, .length = -1};
    for (int i = 0; i < 5; i++) {
        assert_ok(f, base_fault_arm(env, &rule, &f->err));
        assert_int_equal(guesses_now(m, a), 0);
        assert_int_equal(s->guessing.draft_errors, 1);
        base_fault_clear(env);
        assert_int_equal(guesses_now(m, a), 7);
        assert_int_equal(s->guessing.draft_errors, 0);
    }
    assert_ok(f, base_fault_arm(env, &rule, &f->err));
    for (int i = 0; i < 3; i++) assert_int_equal(guesses_now(m, a), 0);
    base_fault_clear(env);
    assert_int_equal(guesses_now(m, a), 0);
    while (!weir_answer_done(a)) assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_ok(f, weir_answer_end(a, &r, &f->err));
    assert_same(&r, &plain);
    assert_int_equal(r.n_drafted, 0);
    weir_result_finish(m, &r);
    r = answer_of(f, s, 3, &o);
    assert_same(&r, &plain);
    assert_true(r.n_drafted > N_ANSWER / 2);
    weir_result_finish(m, &r);
    weir_result_finish(m, &plain);
    weir_session_destroy(s);
    weir_session_destroy(d);
    weir_model_close(m);
    weir_model_close(other);
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
        cmocka_unit_test_setup_teardown(test_purse, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_short_draft, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_fails_now_and_then, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_draft_debt, fixture_setup, fixture_teardown),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_lookup_follows_cuts),
        cmocka_unit_test(test_costs),
        cmocka_unit_test_setup_teardown(test_costs_of_prompts, fixture_setup, fixture_teardown),
        cmocka_unit_test(test_costs_are_doubted),
    };
    return cmocka_run_group_tests_name("rt_speculate", tests, NULL, NULL);
}
