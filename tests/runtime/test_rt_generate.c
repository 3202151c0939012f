/* Answers: stops, streamed text, repeatability; and the real models' known answers, the same for every
 * budget. */
#include "rt_test.h"

#include <sys/mman.h>

static int32_t *tokens_of(fixture *f, weir_model *m, const char *text, size_t *n)
{
    int32_t *tokens;
    assert_ok(f, weir_tokenize(m, text, strlen(text), WEIR_TOKENIZE_BOS, &tokens, n, &f->err));
    return tokens;
}

static weir_generate_options greedy(uint32_t max_tokens)
{
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = max_tokens;
    o.ignore_end = true;
    return o;
}

static weir_session *tiny_session(fixture *f, weir_model *m, uint32_t ctx_tokens)
{
    weir_load_options o = load_options(ctx_tokens, 2);
    assert_ok(f, weir_model_load(m, &o, &f->err));
    return new_session(f, m);
}

/* What on_text hears, put together. */
typedef struct listener {
    char text[4096];
    size_t len, calls, stop_after;
    size_t prefill_done, prefill_total, prefill_calls;
    weir_model *cancel;
} listener;

static bool hear(void *arg, const char *text, size_t len)
{
    listener *l = arg;
    assert_true(len > 0 && l->len + len < sizeof l->text);
    memcpy(l->text + l->len, text, len);
    l->len += len;
    l->calls++;
    if (l->cancel != NULL && l->calls == 2) weir_model_cancel(l->cancel);
    return l->calls != l->stop_after;
}

static void hear_prefill(void *arg, size_t done, size_t total)
{
    listener *l = arg;
    assert_true(done > l->prefill_done && done <= total);
    l->prefill_done = done;
    l->prefill_total = total;
    l->prefill_calls++;
}

static void test_stops(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_session *s = tiny_session(f, m, 64);
    size_t n;
    int32_t *prompt = tokens_of(f, m, "one two three", &n);
    weir_result r;
    weir_generate_options o = greedy(5);
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_LENGTH);
    assert_int_equal(r.n_tokens, 5);
    assert_int_equal(r.n_prompt_tokens, n);
    assert_int_equal(strlen(r.text), r.text_len);
    assert_true(r.logits_hash != WEIR_HASH_SEED);
    assert_true(r.prefill_seconds > 0 && r.decode_seconds > 0 && r.first_token_seconds >= r.prefill_seconds);
    /* the sequence is the prompt and the answer */
    assert_int_equal(weir_session_position(s), n + 5);
    int32_t answer[5];
    memcpy(answer, r.tokens, sizeof answer);
    uint64_t hash = r.logits_hash;
    weir_result_finish(m, &r);
    assert_null(r.tokens);

    /* in two calls the same comes out: the token that was sampled last is not forgotten */
    weir_session_reset(s);
    o.max_tokens = 2;
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_memory_equal(r.tokens, answer, 2 * sizeof *answer);
    weir_result_finish(m, &r);
    assert_int_equal(weir_session_position(s), n + 2);
    o.max_tokens = 2;
    assert_ok(f, weir_generate(s, answer + 2, 1, &o, &r, &f->err));
    assert_memory_equal(r.tokens, answer + 3, 2 * sizeof *answer);
    weir_result_finish(m, &r);

    /* until the context is full */
    weir_session_reset(s);
    o.max_tokens = 1000;
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_CONTEXT);
    assert_int_equal(r.n_tokens, 64 - n);
    weir_result_finish(m, &r);
    assert_int_equal(weir_session_position(s), 64);
    assert_int_equal(weir_generate(s, prompt, n, &o, &r, &f->err), WEIR_ERR_CONTEXT_FULL);
    assert_null(r.tokens);

    /* nothing wanted; nothing given; too much */
    weir_session_reset(s);
    o.max_tokens = 0;
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_int_equal(r.n_tokens, 0);
    assert_string_equal(r.text, "");
    weir_result_finish(m, &r);
    assert_int_equal(weir_generate(s, prompt, 0, &o, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o.struct_size = 1;
    assert_int_equal(weir_generate(s, prompt, n, &o, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);

    /* options may be left out */
    weir_session_reset(s);
    o = greedy(5);
    assert_ok(f, weir_generate(s, prompt, n, NULL, &r, &f->err));
    weir_result_finish(m, &r);
    weir_session_reset(s);
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_true(r.logits_hash == hash);
    weir_result_finish(m, &r);
    weir_free(m, prompt);
    weir_session_destroy(s);
    weir_model_close(m);
}

static void test_streamed_text(void **state)
{
    fixture *f = *state;
    const char *const archs[] = {"llama", "gemma3"};
    for (size_t a = 0; a < 2; a++) {
        weir_model *m = open_tiny(f, archs[a]);
        weir_session *s = tiny_session(f, m, 200);
        size_t n;
        int32_t *prompt = tokens_of(f, m, "a b c d e f g", &n);
        static listener l;
        weir_generate_options o = greedy(60);
        o.on_text = hear;
        o.on_prefill = hear_prefill;
        o.arg = &l;
        o.sampling.temperature = 1.5F;
        o.sampling.seed = 99;
        l = (listener){0};
        weir_result r;
        assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
        assert_int_equal(r.text_len, l.len);
        assert_memory_equal(r.text, l.text, l.len);
        assert_true(l.calls > 5);
        assert_int_equal(l.prefill_done, n);
        assert_int_equal(l.prefill_total, n);
        uint64_t hash = r.logits_hash;
        weir_result_finish(m, &r);
        /* the same seed, the same answer; another seed, another */
        weir_session_reset(s);
        o.on_text = NULL;
        l = (listener){0};
        assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
        assert_true(r.logits_hash == hash);
        weir_result_finish(m, &r);
        weir_session_reset(s);
        o.sampling.seed = 100;
        l = (listener){0};
        assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
        assert_true(r.logits_hash != hash);
        weir_result_finish(m, &r);
        weir_free(m, prompt);
        weir_session_destroy(s);
        weir_model_close(m);
    }
}

static void test_caller_stops(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_session *s = tiny_session(f, m, 200);
    size_t n;
    int32_t *prompt = tokens_of(f, m, "a b c d e f g", &n);
    static listener l;
    weir_result r;
    weir_generate_options o = greedy(60);
    o.on_text = hear;
    o.arg = &l;
    l = (listener){.stop_after = 3};
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_CALLER);
    assert_true(r.n_tokens >= 3 && r.n_tokens < 60);
    assert_int_equal(weir_session_position(s), n + r.n_tokens);
    weir_result_finish(m, &r);
    weir_session_reset(s);
    l = (listener){.cancel = m};
    assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
    assert_int_equal(r.stop, WEIR_STOP_CANCELLED);
    assert_true(r.n_tokens >= 2 && r.n_tokens < 60);
    weir_result_finish(m, &r);
    weir_free(m, prompt);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* A character that is not whole yet when on_text has heard enough goes into the result alone. */
static bool hear_until_bad(void *arg, const char *text, size_t len)
{
    listener *l = arg;
    assert_int_equal(l->calls, 0); /* not called again once it wanted no more */
    l->len += len;
    if (strstr(text, "\xef\xbf\xbd") != NULL) l->calls++;
    return l->calls == 0;
}

static void test_stop_is_final(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_session *s = tiny_session(f, m, 100);
    size_t n, n_waited = 0;
    int32_t *prompt = tokens_of(f, m, "a b c", &n);
    weir_generate_options o = greedy(60);
    o.on_text = hear_until_bad;
    o.sampling.temperature = 2;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        static listener l;
        weir_result r;
        l = (listener){0};
        o.arg = &l;
        o.sampling.seed = seed;
        weir_session_reset(s);
        assert_ok(f, weir_generate(s, prompt, n, &o, &r, &f->err));
        if (r.stop == WEIR_STOP_CALLER) {
            assert_int_equal(l.calls, 1);
            n_waited += r.text_len == l.len + 3;
        }
        weir_result_finish(m, &r);
    }
    assert_true(n_waited > 0);
    weir_free(m, prompt);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* Of options from before a field was added nothing is read behind their end. */
static void test_older_options(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_session *s = tiny_session(f, m, 64);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), old = sizeof(weir_generate_options) - 16;
    char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(two != MAP_FAILED);
    assert_int_equal(mprotect(two + page, page, PROT_NONE), 0);
    weir_generate_options o = greedy(4);
    o.struct_size = old;
    void *at = two + page - old;
    memcpy(at, &o, old);
    const int32_t prompt[] = {1, 2, 3};
    weir_result r;
    assert_int_equal(weir_generate(s, prompt, 3, at, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "weir_generate_options");
    munmap(two, 2 * page);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* ---- answers under a budget ---- */

/* A model whose caches take 128 bytes a token, so that many sessions with a long context are small. */
static weir_model *open_narrow(fixture *f)
{
    static char path[256];
    weir_model *m;
    weir_synth_options o;
    weir_synth_options_init(&o);
    o.arch = "llama";
    o.type = "Q8_0";
    o.hidden = o.ffn = 64;
    o.n_layers = o.n_kv_heads = 1;
    o.n_heads = 2;
    o.n_vocab = 512;
    o.ctx_tokens = 4096;
    snprintf(path, sizeof path, "%s/llama.gguf", f->folder);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    return m;
}

/* X2: a plan for so many sessions holds when each of them has an answer as long as its context. */
static void test_answers_of_all_sessions(void **state)
{
    enum { N = 32, STEPS = 20 };
    fixture *f = *state;
    weir_model *m = open_narrow(f);
    weir_load_options o = load_options(4096, 2);
    weir_plan p;
    o.n_sessions = N;
    o.prefill_chunk = N;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    o.mem_bytes = p.smallest_bytes + 65536;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s[N];
    weir_answer *a[N];
    for (int i = 0; i < N; i++) s[i] = new_session(f, m);
    weir_generate_options g = greedy(4096);
    const int32_t prompt[] = {300, 301, 302};
    for (int i = 0; i < N; i++) assert_ok(f, weir_answer_begin(s[i], prompt, 3, &g, &a[i], &f->err));
    for (int k = 0; k < STEPS; k++) assert_ok(f, weir_answers_step(a, N, 0, &f->err));
    for (int i = 0; i < N; i++) {
        weir_result r;
        assert_ok(f, weir_answer_end(a[i], &r, &f->err));
        assert_in_range(r.n_tokens, 1, STEPS);
        assert_int_equal(r.text[r.text_len], 0);
        weir_result_finish(m, &r);
    }
    weir_memory_report r;
    assert_ok(f, weir_model_memory(m, &r, &f->err));
    assert_true(r.ledger_peak_bytes <= r.planned_peak_bytes);
    for (int i = 0; i < N; i++) weir_session_destroy(s[i]);
    weir_model_close(m);
}

/* What has begun goes on and ends, whoever takes the rest of the budget; what has not says so. */
static void test_answer_has_its_room(void **state)
{
    fixture *f = *state;
    weir_model *m = open_narrow(f);
    weir_load_options o = load_options(4096, 2);
    o.n_sessions = 2;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m), *other = new_session(f, m);
    const int32_t prompt[] = {300, 301, 302};
    weir_generate_options g = greedy(2000);
    weir_answer *a, *b;
    weir_result r;
    assert_ok(f, weir_answer_begin(s, prompt, 3, &g, &a, &f->err));
    base_ledger_view v;
    base_ledger_read(env_of(f), &v);
    uint64_t rest = v.limit_bytes - v.bytes;
    assert_ok(f, base_ledger_reserve(env_of(f), BASE_TAG_RUNTIME, rest, &f->err));
    assert_int_equal(weir_answer_begin(other, prompt, 3, &g, &b, &f->err), WEIR_ERR_BUDGET);
    assert_null(b);
    while (!weir_answer_done(a)) assert_ok(f, weir_answers_step(&a, 1, 0, &f->err));
    assert_ok(f, weir_answer_end(a, &r, &f->err));
    base_ledger_release(env_of(f), BASE_TAG_RUNTIME, rest);
    assert_int_equal(r.n_tokens, 2000);
    assert_int_equal(r.stop, WEIR_STOP_LENGTH);
    assert_true(r.text_len >= 1000);
    assert_int_equal(r.text[r.text_len], 0);
    weir_result_finish(m, &r);
    weir_session_destroy(s);
    weir_session_destroy(other);
    weir_model_close(m);
}

static void test_chat_tokens(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    const weir_message messages[] = {{"user", "hello"}, {"assistant", "hi"}, {"user", "and?"}, {NULL, "x"}};
    int32_t *ids;
    size_t n;
    assert_ok(f, weir_chat_tokens(m, messages, 0, 3, &ids, &n, &f->err));
    assert_true(n > 5);
    weir_free(m, ids);
    assert_int_equal(weir_chat_tokens(m, messages, 0, 4, &ids, &n, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_null(ids);
    assert_int_equal(weir_chat_tokens(m, messages, 2, 1, &ids, &n, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_tokenize(m, "x", 1, 64, &ids, &n, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    weir_model_close(m);
}

static void test_describes(void **state)
{
    fixture *f = *state;
    weir_model *m = open_small(f, "gemma3");
    weir_model_info i;
    assert_ok(f, weir_model_get_info(m, &i, &f->err));
    assert_string_equal(i.architecture, "gemma3");
    assert_string_equal(i.type, "Q8_0");
    assert_int_equal(i.n_layers, 3);
    assert_int_equal(i.n_vocab, 512);
    assert_int_equal(i.window, 32);
    assert_true(i.tied_head && i.tokenizer[0] != '\0');
    assert_true(i.smallest_bytes < i.weight_bytes && i.weight_bytes < i.file_bytes);
    const char *key, *type;
    char text[32];
    size_t n = 0;
    bool seen = false;
    for (; weir_model_value(m, n, &key, &type, text, sizeof text); n++) {
        if (strcmp(key, "general.architecture") == 0) {
            seen = true;
            assert_string_equal(type, "string");
            assert_string_equal(text, "gemma3");
        }
        if (strcmp(key, "tokenizer.ggml.tokens") == 0) assert_string_equal(text, "[512 strings]");
    }
    assert_true(seen && n > 10);
    weir_tensor_info t;
    uint64_t bytes = 0;
    for (n = 0; weir_model_tensor(m, n, &t); n++) bytes += t.bytes;
    assert_int_equal(bytes, i.weight_bytes);
    weir_unit_info u;
    assert_true(weir_model_unit(m, 0, &u) && !weir_model_unit(m, 1000, &u));
    double rate = 0;
    assert_ok(f, weir_measure_storage(m, MIB, &rate, &f->err));
    assert_true(rate > 0);
    assert_ok(f, weir_measure_memory(f->context, 2, &rate, &f->err));
    assert_true(rate > 1e8);
    weir_model_close(m);
}

static void test_profile(void **state)
{
    fixture *f = *state;
    weir_model *m = open_tiny(f, "llama");
    weir_load_options o = load_options(64, 1);
    weir_phase p;
    const char *name;
    double seconds;
    uint64_t count, ops = 0;
    assert_false(weir_profile_phase(m, 0, &p));
    o.profile = true;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    weir_session *s = new_session(f, m);
    int32_t tokens[10];
    some_tokens(tokens, 10, 512, 1);
    logits_of(f, s, tokens, 10);
    size_t n = 0;
    for (; weir_profile_phase(m, n, &p); n++) ops += p.n_ops;
    assert_int_equal(n, 3);
    uint64_t kinds = 0;
    for (n = 0; weir_profile_op(m, n, &name, &seconds, &count); n++) kinds += count;
    assert_true(n > 5);
    assert_int_equal(kinds, ops);
    weir_session_destroy(s);
    weir_model_close(m);
}

/* ---- real models ---- */

static void answer_chat(fixture *f, weir_model *m, const weir_load_options *load, const char *question,
                        weir_result *r)
{
    const weir_message message = {"user", question};
    int32_t *ids;
    size_t n;
    assert_ok(f, weir_model_load(m, load, &f->err));
    weir_session *s = new_session(f, m);
    assert_ok(f, weir_chat_tokens(m, &message, 0, 1, &ids, &n, &f->err));
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = 24;
    assert_ok(f, weir_generate(s, ids, n, &o, r, &f->err));
    weir_free(m, ids);
    weir_session_destroy(s);
}

static void test_smollm2_answers(void **state)
{
    fixture *f = *state;
    weir_model *m = open_real(f, SMOL);
    const char question[] = "Which city is the capital of France? Answer in one sentence.";
    weir_load_options o = load_options(512, 2);
    weir_plan p;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    weir_result first, r;
    answer_chat(f, m, &o, question, &first);
    print_message("%s\n", first.text);
    assert_int_equal(first.stop, WEIR_STOP_END);
    assert_ptr_equal(strstr(first.text, "Paris is the capital of France"), first.text);
    const struct {
        uint64_t mem_bytes;
        uint32_t n_threads, chunk;
    } cases[] = {{p.smallest_bytes, 1, 0}, {64 * MIB, 2, 5}, {p.whole_bytes, 1, 64}, {0, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.mem_bytes = cases[i].mem_bytes;
        o.n_threads = cases[i].n_threads;
        o.prefill_chunk = cases[i].chunk;
        answer_chat(f, m, &o, question, &r);
        assert_string_equal(r.text, first.text);
        assert_true(r.logits_hash == first.logits_hash);
        weir_result_finish(m, &r);
    }
    weir_result_finish(m, &first);
    weir_model_close(m);
}

static void test_gemma3_continues(void **state)
{
    fixture *f = *state;
    weir_model *m = open_real(f, GEMMA);
    size_t n;
    int32_t *prompt = tokens_of(f, m, "The capital of France is Paris. The capital of Italy is", &n);
    assert_int_equal(prompt[0], 2); /* BOS */
    weir_load_options o = load_options(256, 2);
    weir_plan p;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    const uint64_t budgets[] = {0, p.smallest_bytes, (p.smallest_bytes + p.whole_bytes) / 2};
    uint64_t hash = 0;
    for (size_t i = 0; i < 3; i++) {
        o.mem_bytes = budgets[i];
        assert_ok(f, weir_model_load(m, &o, &f->err));
        weir_session *s = new_session(f, m);
        weir_generate_options g = greedy(4);
        weir_result r;
        assert_ok(f, weir_generate(s, prompt, n, &g, &r, &f->err));
        if (i == 0) print_message("%s\n", r.text);
        assert_ptr_equal(strstr(r.text, " Rome"), r.text);
        if (i > 0) assert_true(r.logits_hash == hash);
        hash = r.logits_hash;
        weir_result_finish(m, &r);
        weir_session_destroy(s);
    }
    weir_free(m, prompt);
    weir_model_close(m);
}

/* R7.6: models that are planned later leave the room that answers of this one's sessions were planned to
 * take. */
static void test_answers_are_promised(void **state)
{
    fixture *f = *state;
    int32_t prompt[3];
    weir_answer *a;
    base_ledger_view waits, runs, ended;
    weir_model *m = open_small(f, "llama");
    weir_session *s = tiny_session(f, m, 256);
    some_tokens(prompt, 3, 512, 5);
    weir_generate_options g = greedy(253);
    rt_ledger_read(f->context, &waits);
    assert_ok(f, weir_answer_begin(s, prompt, 3, &g, &a, &f->err));
    rt_ledger_read(f->context, &runs);
    assert_true(runs.bytes <= waits.bytes);
    assert_true(waits.bytes - runs.bytes < rt_answer_bytes(m, 256) / 16);
    assert_true(rt_answer_bytes(m, 256) > 253 * sizeof(int32_t));
    weir_answer_end(a, NULL, NULL);
    rt_ledger_read(f->context, &ended);
    assert_int_equal(ended.bytes, waits.bytes);
    weir_session_destroy(s);
    rt_ledger_read(f->context, &ended);
    assert_true(ended.bytes + rt_answer_bytes(m, 256) <= waits.bytes);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stops, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_streamed_text, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_caller_stops, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_stop_is_final, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_older_options, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_answers_of_all_sessions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_answer_has_its_room, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_answers_are_promised, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_chat_tokens, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_describes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_profile, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_smollm2_answers, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_gemma3_continues, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_generate", tests, NULL, NULL);
}
