/* How guesses come about: texts that are looked up, what passes cost, what a session may lose, drafts that
 * are short, slow or fail (X4). What guesses lead to is in test_rt_speculate.c. */
#include "rt_guess_test.h"

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
    /* those that do not guess tell nothing */
    o.speculate = WEIR_SPECULATE_OFF;
    weir_result r = answer_of(f, s, 1, &o);
    weir_result_finish(m, &r);
    assert_int_equal(k->count[1], 1);
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
    weir_model *m, *other;
    load_with_draft(f, 1, &m, &other);
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
    weir_model *m, *other;
    load_with_draft(f, 1, &m, &other);
    weir_session *s = new_session(f, m), *d = new_session(f, other);
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
    return cmocka_run_group_tests_name("rt_guesses", tests, NULL, NULL);
}
