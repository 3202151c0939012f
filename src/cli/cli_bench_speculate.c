/* weir bench --speculate: guessing against plain decoding, in the same load and in turns. Two texts: one that
 * comes back to itself, continued greedily, and prose, continued at temperature 0.8. Both ways must give the
 * same tokens and the same hash. */
#include "cli_bench.h"

#include <string.h>

enum { PERIOD = 12, N_TEXTS = 2 };
static const char *const text_names[N_TEXTS] = {"repetitive", "ordinary"};

typedef struct speculate_row {
    weir_plan plan;
    weir_memory_report memory;
    const char *text;
    double plain_tps, tps;
    uint64_t tokens, passes, drafted, accepted;
    bool same;
} speculate_row;

typedef struct turn {
    double tps;
    uint64_t hash, passes, drafted, accepted;
} turn;

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

/* Tokens of a text over and over, or once; without a tokenizer, numbers with and without a period. */
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

static weir_status one_turn(bench *b, weir_session *s, uint32_t text, uint32_t n, weir_speculate how,
                            turn *out, weir_error *err)
{
    weir_generate_options o = b->generate;
    o.speculate = how;
    o.max_tokens = b->n_decode;
    o.ignore_end = true;
    o.sampling.seed = 1;
    o.sampling.temperature = text == 0 ? 0.0F : 0.8F;
    weir_session_reset(s);
    weir_result r = {.struct_size = sizeof r};
    weir_status status = weir_generate(s, b->tokens, n, &o, &r, err);
    if (status != WEIR_OK) return status;
    /* The first token is the prompt's. */
    out->tps = r.decode_seconds > 0 ? (double)(r.n_tokens - 1) / r.decode_seconds : 0;
    out->hash = r.logits_hash;
    out->passes = r.n_passes;
    out->drafted = r.n_drafted;
    out->accepted = r.n_accepted;
    weir_result_finish(b->model, &r);
    return WEIR_OK;
}

static weir_status one_text(bench *b, weir_session *s, uint32_t text, speculate_row *row, weir_error *err)
{
    double plain[CLI_BENCH_ROUNDS], with[CLI_BENCH_ROUNDS];
    weir_model_info info = {.struct_size = sizeof info};
    weir_status status = weir_model_get_info(b->model, &info, err);
    uint32_t n = 0;
    if (status == WEIR_OK) status = make_prompt(b, text, info.n_vocab, &n, err);
    row->text = text_names[text];
    row->same = true;
    for (uint32_t r = 0; r < b->n_rounds && status == WEIR_OK; r++) {
        turn off = {0}, on = {0};
        /* Which goes first changes from round to round. */
        for (uint32_t i = 0; i < 2 && status == WEIR_OK; i++) {
            bool plain_now = (r + i) % 2 == 0;
            status = one_turn(b, s, text, n, plain_now ? WEIR_SPECULATE_OFF : b->generate.speculate,
                              plain_now ? &off : &on, err);
        }
        plain[r] = off.tps;
        with[r] = on.tps;
        row->same &= on.hash == off.hash;
        row->tokens += b->n_decode;
        row->passes += on.passes;
        row->drafted += on.drafted;
        row->accepted += on.accepted;
    }
    if (status != WEIR_OK) return status;
    row->plain_tps = cli_bench_median(plain, b->n_rounds);
    row->tps = cli_bench_median(with, b->n_rounds);
    return weir_model_memory(b->model, &row->memory, err);
}

static json_t *row_json(const bench *b, const speculate_row *r)
{
    json_t *j = cli_bench_json(b, &r->plan, &r->memory);
    json_object_set_new(j, "text", json_string(r->text));
    json_object_set_new(j, "mode", json_string(cli_speculate_name(b->generate.speculate)));
    json_object_set_new(j, "plain_tps", cli_json_real(r->plain_tps));
    json_object_set_new(j, "speculate_tps", cli_json_real(r->tps));
    json_object_set_new(j, "ratio", cli_json_real(r->tps / r->plain_tps));
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
    printf("%-11s %-11s %-11s %-10s %9.2f %9.2f %6.2fx  %7.2f %8.1f %%  %s\n",
           weir_size_text(r->plan.budget_bytes, a), weir_size_text(r->plan.planned_peak_bytes, c),
           weir_size_text(r->memory.peak_bytes, d), r->text, r->plain_tps, r->tps, r->tps / r->plain_tps,
           (double)r->tokens / (double)r->passes,
           r->drafted != 0 ? 100.0 * (double)r->accepted / (double)r->drafted : 0.0,
           r->same ? "same" : "DIFFERENT");
    fflush(stdout);
}

static int both_texts(bench *b, weir_session *s, const weir_plan *plan, json_t *rows)
{
    weir_error err;
    for (uint32_t text = 0; text < N_TEXTS; text++) {
        speculate_row row = {.plan = *plan, .memory.struct_size = sizeof row.memory};
        if (one_text(b, s, text, &row, &err) != WEIR_OK) return cli_error("bench", &err);
        if (b->common.json)
            json_array_append_new(rows, row_json(b, &row));
        else
            row_print(&row);
        if (!row.same)
            return cli_fail("bench", "guessing changed the logits of the %s text: this is a defect",
                            row.text);
    }
    return CLI_OK;
}

static int one_budget(bench *b, uint64_t budget, json_t *rows)
{
    weir_error err;
    weir_session *s = NULL;
    weir_plan plan = {.struct_size = sizeof plan};
    b->common.load.mem_bytes = budget;
    int rc = cli_speculate_load(&b->common, &b->speculate);
    if (rc != CLI_OK) goto done;
    weir_status status = weir_model_plan(b->model, &b->common.load, &plan, &err);
    if (status == WEIR_OK) status = weir_model_load(b->model, &b->common.load, &err);
    if (status == WEIR_OK) status = weir_session_create(b->model, &s, &err);
    rc = status == WEIR_OK ? cli_speculate_attach(&b->common, &b->speculate, s) : cli_error("bench", &err);
    if (rc == CLI_OK) rc = both_texts(b, s, &plan, rows);
done:
    weir_session_destroy(s);
    weir_model_unload(b->model);
    cli_speculate_close(&b->speculate);
    return rc;
}

int cli_bench_speculate(bench *b)
{
    json_t *rows = json_array();
    int rc = CLI_OK;
    if (!b->common.json)
        printf("guessing (%s) against plain decoding of %u tokens after %u, median of %u round%s\n"
               "%-11s %-11s %-11s %-10s %9s %9s %7s  %7s %10s  %s\n",
               cli_speculate_name(b->generate.speculate), b->n_decode, b->depth + b->n_prompt, b->n_rounds,
               b->n_rounds == 1 ? "" : "s", "budget", "planned", "peak", "text", "plain/s", "guess/s",
               "ratio", "a pass", "right", "logits");
    for (uint32_t i = 0; i < b->budgets.n && rc == CLI_OK; i++) rc = one_budget(b, b->budgets.bytes[i], rows);
    if (b->common.json && rc == CLI_OK) return cli_json_print(rows);
    json_decref(rows);
    return rc;
}
