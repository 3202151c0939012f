/* weir bench --speculate: guessing against plain decoding, in the same load and in turns of a few tokens, so
 * that both see the same minutes of the machine. A prompt of the caller's, or two texts: one that comes back
 * to itself, continued greedily, and prose, continued at temperature 0.8. Each round begins with a fresh load
 * and knows nothing of the one before. Both ways must give the same tokens and the same hash. */
#include "cli_bench.h"

#include <stdlib.h>
#include <string.h>

enum { PERIOD = 12, N_TEXTS = 2, TURN_TOKENS = 8 };
static const char *const text_names[N_TEXTS] = {"repetitive", "ordinary"};

typedef struct speculate_row {
    weir_plan plan;
    weir_memory_report memory;
    const char *text;
    uint32_t n_prompt; /* its tokens */
    double plain_tps, tps;
    double ratio;           /* the median of the rounds' own */
    double lowest, highest; /* of the rounds */
    uint64_t tokens, passes, drafted, accepted;
    bool same;
} speculate_row;

/* One of the two answers that take turns. */
typedef struct racer {
    weir_session *session;
    weir_answer *answer;
    double seconds;    /* of its passes behind the prompt's */
    uint32_t n_tokens; /* that came of them */
    weir_result result;
} racer;

/* Lines that differ in a word or two, as code and lists do; and prose. */
static const char code_text[] = "    if (name == NULL) return set_error(error, \"the name is missing\");\n"
                                "    if (path == NULL) return set_error(error, \"the path is missing\");\n"
                                "    if (mode == NULL) return set_error(error, \"the mode is missing\");\n";
static const char prose_text[] =
    "The river came down from the hills in spring with more water than its bed could hold, and the people of "
    "the "
    "lower town had learned long ago to read its colour. When it turned brown they moved the boats; when it "
    "turned grey they moved the cattle too. Nobody remembered who had built the first wall of stones across "
    "the ford, but everybody knew why it had been built, and each year somebody";

/* Tokens of a text over and over, or once, which may be fewer than wanted; without a tokenizer, numbers with
 * and without a period. */
static weir_status make_prompt(bench *b, uint32_t text, uint32_t n_vocab, uint32_t *n, weir_error *err)
{
    const char *words = text == 0 ? code_text : prose_text;
    uint32_t wanted = b->depth + b->n_prompt;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    *n = 0;
    weir_status status = weir_tokenize(b->model, words, strlen(words), 0, &ids, &n_ids, err);
    if (status == WEIR_OK && n_ids > 0) {
        while (*n < wanted && (text == 0 || *n < n_ids)) {
            b->tokens[*n] = ids[*n % n_ids];
            ++*n;
        }
    }
    if (status == WEIR_OK) weir_free(b->model, ids);
    if (status == WEIR_ERR_OUT_OF_MEMORY || status == WEIR_ERR_BUDGET) return status;
    for (; *n == 0 || (*n < wanted && n_ids == 0); ++*n)
        b->tokens[*n] = (int32_t)(((text == 0 ? *n % PERIOD : *n) * 7919ull + 13) % n_vocab);
    return WEIR_OK;
}

static weir_generate_options options_of(const bench *b, uint32_t text, weir_speculate how)
{
    weir_generate_options o = b->generate;
    o.speculate = how;
    o.max_tokens = b->n_decode;
    o.ignore_end = true;
    if (b->prompt != NULL) return o;
    o.sampling.seed = 1;
    o.sampling.temperature = text == 0 ? 0.0F : 0.8F;
    return o;
}

/* Goes on until so many tokens have come behind the first, or the answer ends. */
static weir_status take_turn(racer *r, uint32_t n_prompt, uint32_t until, weir_error *err)
{
    weir_status status = WEIR_OK;
    while (status == WEIR_OK && !weir_answer_done(r->answer) && r->n_tokens <= until) {
        uint32_t before = weir_session_position(r->session);
        double start = cli_bench_now();
        status = weir_answers_step(&r->answer, 1, 0, err);
        if (before == n_prompt) continue; /* a pass of the prompt, or the first token, which is its */
        r->seconds += cli_bench_now() - start;
        r->n_tokens += weir_session_position(r->session) - before;
    }
    return status;
}

/* Both answers, from the same prompt. Which goes first changes from round to round. */
static weir_status race(bench *b, racer *plain, racer *with, uint32_t text, uint32_t n, uint32_t round,
                        weir_error *err)
{
    racer *both[2] = {round % 2 == 0 ? plain : with, round % 2 == 0 ? with : plain};
    weir_status status = WEIR_OK;
    for (int i = 0; i < 2 && status == WEIR_OK; i++) {
        bool guesses = both[i] == with;
        weir_generate_options o = options_of(b, text, guesses ? b->generate.speculate : WEIR_SPECULATE_OFF);
        status = weir_answer_begin(both[i]->session, b->tokens, n, &o, &both[i]->answer, err);
    }
    for (uint32_t until = 0; status == WEIR_OK; until += TURN_TOKENS) {
        if (weir_answer_done(plain->answer) && weir_answer_done(with->answer)) break;
        for (int i = 0; i < 2 && status == WEIR_OK; i++) status = take_turn(both[i], n, until, err);
    }
    for (int i = 0; i < 2; i++) {
        weir_error ignored = {0};
        weir_error *told = status == WEIR_OK ? err : &ignored;
        weir_status ended = weir_answer_end(both[i]->answer, &both[i]->result, told);
        if (status == WEIR_OK) status = ended;
        both[i]->answer = NULL;
    }
    return status;
}

static bool is_same(const weir_result *a, const weir_result *b)
{
    return a->logits_hash == b->logits_hash && a->n_tokens == b->n_tokens &&
           memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0;
}

/* One round: a load that knows nothing, two fresh sessions. */
static weir_status one_round(bench *b, const weir_load_options *load, uint32_t text, uint32_t n,
                             uint32_t round, speculate_row *row, double *plain_tps, double *tps,
                             weir_error *err)
{
    racer plain = {.result.struct_size = sizeof plain.result};
    racer with = {.result.struct_size = sizeof with.result};
    weir_memory_report memory = {.struct_size = sizeof memory};
    weir_status status = weir_model_load(b->model, load, err);
    if (status == WEIR_OK) status = weir_session_create(b->model, &plain.session, err);
    if (status == WEIR_OK) status = weir_session_create(b->model, &with.session, err);
    if (status == WEIR_OK && b->speculate.session != NULL) {
        weir_session_reset(b->speculate.session);
        status = weir_session_set_draft(with.session, b->speculate.session, err);
    }
    if (status == WEIR_OK) status = race(b, &plain, &with, text, n, round, err);
    if (status == WEIR_OK) status = weir_model_memory(b->model, &memory, err);
    if (status == WEIR_OK) {
        uint64_t peak = row->memory.peak_bytes;
        row->memory = memory;
        if (peak > memory.peak_bytes) row->memory.peak_bytes = peak;
        row->same &= is_same(&plain.result, &with.result);
        row->tokens += with.result.n_tokens;
        row->passes += with.result.n_passes;
        row->drafted += with.result.n_drafted;
        row->accepted += with.result.n_accepted;
        *plain_tps = plain.seconds > 0 ? plain.n_tokens / plain.seconds : 0;
        *tps = with.seconds > 0 ? with.n_tokens / with.seconds : 0;
    }
    weir_result_finish(b->model, &plain.result);
    weir_result_finish(b->model, &with.result);
    weir_session_destroy(plain.session);
    weir_session_destroy(with.session);
    weir_model_unload(b->model);
    return status;
}

static weir_status one_text(bench *b, const weir_load_options *load, uint32_t text, speculate_row *row,
                            weir_error *err)
{
    double plain[CLI_BENCH_ROUNDS], with[CLI_BENCH_ROUNDS], ratio[CLI_BENCH_ROUNDS];
    weir_model_info info = {.struct_size = sizeof info};
    weir_status status = weir_model_get_info(b->model, &info, err);
    uint32_t n = b->n_given;
    if (status == WEIR_OK && b->prompt == NULL) status = make_prompt(b, text, info.n_vocab, &n, err);
    row->n_prompt = n;
    row->text = b->prompt != NULL ? "given" : text_names[text];
    row->same = true;
    for (uint32_t r = 0; r < b->n_rounds && status == WEIR_OK; r++) {
        status = one_round(b, load, text, n, r, row, &plain[r], &with[r], err);
        if (status == WEIR_OK) ratio[r] = plain[r] > 0 ? with[r] / plain[r] : 0;
    }
    if (status != WEIR_OK) return status;
    row->plain_tps = cli_bench_median(plain, b->n_rounds);
    row->tps = cli_bench_median(with, b->n_rounds);
    row->ratio = cli_bench_median(ratio, b->n_rounds);
    row->lowest = ratio[0];
    row->highest = ratio[b->n_rounds - 1];
    return WEIR_OK;
}

static json_t *row_json(const bench *b, const speculate_row *r)
{
    json_t *j = cli_bench_json(b, &r->plan, &r->memory);
    json_object_set_new(j, "text", json_string(r->text));
    /* What this text has, which may be less than what was asked for, or a prompt of its own. */
    uint32_t depth = b->prompt != NULL ? 0 : b->depth < r->n_prompt ? b->depth : r->n_prompt;
    json_object_set_new(j, "depth_tokens", json_integer(depth));
    json_object_set_new(j, "prompt_tokens", json_integer(r->n_prompt - depth));
    json_object_set_new(j, "mode", json_string(cli_speculate_name(b->generate.speculate)));
    json_object_set_new(j, "plain_tps", cli_json_real(r->plain_tps));
    json_object_set_new(j, "speculate_tps", cli_json_real(r->tps));
    json_object_set_new(j, "ratio", cli_json_real(r->ratio));
    json_object_set_new(j, "lowest_ratio", cli_json_real(r->lowest));
    json_object_set_new(j, "highest_ratio", cli_json_real(r->highest));
    json_object_set_new(j, "same_logits", json_boolean(r->same));
    json_object_set_new(j, "tokens", cli_json_u64(r->tokens));
    json_object_set_new(j, "passes", cli_json_u64(r->passes));
    json_object_set_new(j, "drafted", cli_json_u64(r->drafted));
    json_object_set_new(j, "accepted", cli_json_u64(r->accepted));
    return j;
}

static void row_print(const speculate_row *r)
{
    char a[32], c[32], d[32];
    printf("%-11s %-11s %-11s %-10s %6u %9.2f %9.2f %6.2fx  %7.2f %8.1f %%  %s\n",
           weir_size_text(r->plan.budget_bytes, a), weir_size_text(r->plan.planned_peak_bytes, c),
           weir_size_text(r->memory.peak_bytes, d), r->text, r->n_prompt, r->plain_tps, r->tps, r->ratio,
           (double)r->tokens / (double)r->passes,
           r->drafted != 0 ? 100.0 * (double)r->accepted / (double)r->drafted : 0.0,
           r->same ? "same" : "DIFFERENT");
    fflush(stdout);
}

static void head_print(const bench *b)
{
    printf("guessing (%s) against plain decoding of %u tokens, median of %u round%s; prompt: its tokens\n"
           "%-11s %-11s %-11s %-10s %6s %9s %9s %7s  %7s %10s  %s\n",
           cli_speculate_name(b->generate.speculate), b->n_decode, b->n_rounds, b->n_rounds == 1 ? "" : "s",
           "budget", "planned", "peak", "text", "prompt", "plain/s", "guess/s", "ratio", "a pass", "right",
           "logits");
}

/* With the heading in front of the first row, where wanted. */
static int all_texts(bench *b, const weir_load_options *load, const weir_plan *plan, bool head, json_t *rows)
{
    weir_error err;
    for (uint32_t text = 0; text < (b->prompt != NULL ? 1 : N_TEXTS); text++) {
        speculate_row row = {.plan = *plan, .memory.struct_size = sizeof row.memory};
        if (one_text(b, load, text, &row, &err) != WEIR_OK) return cli_error("bench", &err);
        if (b->common.json) {
            json_array_append_new(rows, row_json(b, &row));
        } else {
            if (head && text == 0) head_print(b);
            row_print(&row);
        }
        if (!row.same)
            return cli_fail("bench", "guessing changed the answer to the %s text: this is a defect",
                            row.text);
    }
    return CLI_OK;
}

static int one_budget(bench *b, uint32_t i, json_t *rows)
{
    weir_error err;
    weir_plan plan = {.struct_size = sizeof plan};
    b->common.load.mem_bytes = b->budgets.bytes[i];
    int rc = cli_speculate_load(&b->common, b->model, &b->speculate);
    if (rc == CLI_OK) {
        /* The plain answer's session and the other's; each pass is one answer's. */
        weir_load_options load = b->common.load;
        load.n_sessions = 2;
        load.max_batch = 1;
        rc = weir_model_plan(b->model, &load, &plan, &err) == WEIR_OK
                 ? all_texts(b, &load, &plan, i == 0, rows)
                 : cli_error("bench", &err);
    }
    cli_speculate_close(&b->speculate);
    return rc;
}

int cli_bench_speculate(bench *b)
{
    json_t *rows = json_array();
    int rc = CLI_OK;
    for (uint32_t i = 0; i < b->budgets.n && rc == CLI_OK; i++) rc = one_budget(b, i, rows);
    if (b->common.json && rc == CLI_OK) return cli_json_print(rows);
    json_decref(rows);
    return rc;
}
