/* weir bench: rates of prefill and decoding per budget, next to the limit measured in the same run (a pass
 * over the weights can be no faster than storage delivers the streamed part, and than the kernels work off
 * the whole), and to what was predicted from the same figures. */
#include "cli_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench_row {
    weir_plan plan;
    weir_memory_report memory;
    double prefill_tps, decode_tps, storage_bps, memory_bps, limit_tps;
    double streamed_per_token;
    weir_prediction predicted; /* with the storage's rate of the same minutes */
} bench_row;

double cli_bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_bench_median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, compare);
    if (n == 0) return 0;
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static weir_status one_round(bench *b, weir_session *s, double *prefill_tps, double *decode_tps,
                             uint64_t *streamed, weir_error *err)
{
    const float *logits;
    weir_memory_report before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    weir_session_reset(s);
    weir_status status = b->depth > 0 ? weir_session_append(s, b->tokens, b->depth, &logits, err) : WEIR_OK;
    if (status != WEIR_OK) return status;
    double start = cli_bench_now();
    status = weir_session_append(s, b->tokens + b->depth, b->n_prompt, &logits, err);
    if (status != WEIR_OK) return status;
    *prefill_tps = b->n_prompt / (cli_bench_now() - start);
    status = weir_model_memory(b->model, &before, err);
    start = cli_bench_now();
    for (uint32_t i = 0; i < b->n_decode && status == WEIR_OK; i++)
        status = weir_session_append(s, &b->tokens[b->depth + b->n_prompt + i], 1, &logits, err);
    if (status != WEIR_OK) return status;
    *decode_tps = b->n_decode / (cli_bench_now() - start);
    status = weir_model_memory(b->model, &after, err);
    *streamed = after.read_bytes - before.read_bytes;
    return status;
}

/* What measuring one budget gathers over its rounds. */
typedef struct samples {
    double prefill[CLI_BENCH_ROUNDS], decode[CLI_BENCH_ROUNDS], storage[CLI_BENCH_ROUNDS + 1];
    uint32_t n_storage;
    uint64_t streamed;
} samples;

/* Storage's own rate is measured between the rounds, so that both see the same minutes, and while the model
 * is not loaded, since a plan leaves no room for a second reader. */
static weir_status one_load(bench *b, const weir_load_options *o, bench_row *row, samples *x, uint32_t first,
                            uint32_t n_rounds, weir_error *err)
{
    weir_session *s = NULL;
    weir_memory_report report = {.struct_size = sizeof report};
    weir_status status = weir_model_load(b->model, o, err);
    if (status == WEIR_OK) status = weir_session_create(b->model, &s, err);
    for (uint32_t r = first; r < first + n_rounds && status == WEIR_OK; r++)
        status = one_round(b, s, &x->prefill[r], &x->decode[r], &x->streamed, err);
    if (status == WEIR_OK) status = weir_model_memory(b->model, &report, err);
    if (status == WEIR_OK) {
        uint64_t peak = row->memory.peak_bytes;
        double wait = row->memory.wait_seconds;
        row->memory = report;
        if (peak > report.peak_bytes) row->memory.peak_bytes = peak;
        row->memory.wait_seconds += wait;
    }
    weir_session_destroy(s);
    weir_model_unload(b->model);
    return status;
}

/* Nothing is predicted for devices. */
static weir_status predict(const bench *b, const weir_load_options *o, bench_row *row, weir_error *err)
{
    weir_status status = weir_model_predict(b->model, o, 0, &row->predicted, err);
    if (status != WEIR_ERR_UNSUPPORTED) return status;
    row->predicted.tokens_per_s = row->predicted.compute_bytes_per_s = NAN;
    return WEIR_OK;
}

static weir_status measure(bench *b, uint64_t budget, bench_row *row, weir_error *err)
{
    enum { PROBE_BYTES = 512 << 20 };
    samples x = {.n_storage = 0};
    weir_load_options o = b->common.load;
    o.mem_bytes = budget;
    weir_status status = weir_measure_memory(b->common.context, o.n_threads, &row->memory_bps, err);
    if (status == WEIR_OK) status = weir_model_plan(b->model, &o, &row->plan, err);
    bool streams = row->plan.streamed_bytes_per_pass > 0;
    /* Before anything has run: a prediction that has seen the run is none. */
    if (status == WEIR_OK) status = predict(b, &o, row, err);
    if (status == WEIR_OK && !streams) status = one_load(b, &o, row, &x, 0, b->n_rounds, err);
    for (uint32_t r = 0; streams && r < b->n_rounds && status == WEIR_OK; r++) {
        status = weir_measure_storage(b->model, PROBE_BYTES, &x.storage[x.n_storage++], err);
        if (status == WEIR_OK) status = one_load(b, &o, row, &x, r, 1, err);
    }
    if (status == WEIR_OK && streams)
        status = weir_measure_storage(b->model, PROBE_BYTES, &x.storage[x.n_storage++], err);
    if (status != WEIR_OK) return status;
    row->prefill_tps = cli_bench_median(x.prefill, b->n_rounds);
    row->decode_tps = cli_bench_median(x.decode, b->n_rounds);
    row->storage_bps = streams ? cli_bench_median(x.storage, x.n_storage) : 0;
    row->streamed_per_token = (double)x.streamed / b->n_decode;
    double seconds = (double)row->plan.weight_bytes_per_pass / row->predicted.compute_bytes_per_s;
    double streaming = streams ? row->streamed_per_token / row->storage_bps : 0;
    row->limit_tps = 1 / (streaming > seconds ? streaming : seconds);
    return WEIR_OK;
}

json_t *cli_bench_json(const bench *b, const weir_plan *plan, const weir_memory_report *memory)
{
    json_t *j = json_object();
    json_object_set_new(j, "budget_bytes", cli_json_u64(plan->budget_bytes));
    json_object_set_new(j, "planned_peak_bytes", cli_json_u64(plan->planned_peak_bytes));
    json_object_set_new(j, "peak_bytes", cli_json_u64(memory->peak_bytes));
    json_object_set_new(j, "streamed_mb", cli_json_real((double)memory->streamed_bytes / 1e6));
    json_object_set_new(j, "loaded_mb", cli_json_real((double)memory->loaded_bytes / 1e6));
    json_object_set_new(j, "size_mb", cli_json_real((double)memory->size_bytes / 1e6));
    json_object_set_new(j, "applied", cli_json_applied(&b->common));
    json_object_set_new(j, "threads", json_integer(plan->n_threads));
    json_object_set_new(j, "ctx_tokens", json_integer(plan->ctx_tokens));
    json_object_set_new(j, "depth_tokens", json_integer(b->depth));
    json_object_set_new(j, "prompt_tokens", json_integer(b->n_prompt));
    json_object_set_new(j, "decode_tokens", json_integer(b->n_decode));
    json_object_set_new(j, "rounds", json_integer(b->n_rounds));
    return j;
}

static json_t *row_json(const bench *b, const bench_row *r)
{
    json_t *j = cli_bench_json(b, &r->plan, &r->memory);
    json_object_set_new(j, "prefill_tps", cli_json_real(r->prefill_tps));
    json_object_set_new(j, "decode_tps", cli_json_real(r->decode_tps));
    json_object_set_new(j, "streamed_bytes_per_token", json_integer((json_int_t)r->streamed_per_token));
    json_object_set_new(j, "storage_bytes_per_s", cli_json_real(r->storage_bps));
    json_object_set_new(j, "memory_bytes_per_s", cli_json_real(r->memory_bps));
    json_object_set_new(j, "limit_tps", cli_json_real(r->limit_tps));
    json_object_set_new(j, "share_of_limit", cli_json_real(r->decode_tps / r->limit_tps));
    json_object_set_new(j, "predicted_tps", cli_json_real(r->predicted.tokens_per_s));
    json_object_set_new(j, "prediction_error", cli_json_real(r->predicted.tokens_per_s / r->decode_tps - 1));
    json_object_set_new(j, "predicted_note",
                        r->predicted.note[0] != 0 ? json_string(r->predicted.note) : json_null());
    json_object_set_new(j, "compute_bytes_per_s", cli_json_real(r->predicted.compute_bytes_per_s));
    json_object_set_new(j, "wait_seconds", cli_json_real(r->memory.wait_seconds));
    json_object_set_new(j, "prefill_chunk", json_integer(r->plan.prefill_chunk));
    json_object_set_new(j, "packed_mb", cli_json_real((double)r->memory.packed_bytes / 1e6));
    json_object_set_new(j, "load_seconds", cli_json_real(r->memory.load_seconds));
    json_object_set_new(j, "reader", json_string(r->memory.reader));
    return j;
}

/* Which layout the weights had: behind the rows, since it seldom differs between them. */
static void layout_print(const bench_row *r)
{
    char a[32], c[32];
    if (r->memory.packed_bytes == 0)
        printf("weights in memory: in their file's layout\n");
    else
        printf("weights in memory: %s of %s in the kernels' own layout, loaded in %.1f s\n",
               weir_size_text(r->memory.packed_bytes, a), weir_size_text(r->memory.loaded_bytes, c),
               r->memory.load_seconds);
}

static void row_print(const bench_row *r)
{
    char a[32], c[32], d[32], e[32], storage[64] = "nothing streams";
    if (r->storage_bps > 0)
        snprintf(storage, sizeof storage, "%-11s %6.2f GB/s",
                 weir_size_text((uint64_t)r->streamed_per_token, e), r->storage_bps / 1e9);
    printf("%-11s %-11s %-11s %9.1f %9.2f %9.2f  %-23s %6.2f GB/s %9.2f %6.1f %%\n",
           weir_size_text(r->plan.budget_bytes, a), weir_size_text(r->plan.planned_peak_bytes, c),
           weir_size_text(r->memory.peak_bytes, d), r->prefill_tps, r->decode_tps, r->predicted.tokens_per_s,
           storage, r->memory_bps / 1e9, r->limit_tps, 100 * r->decode_tps / r->limit_tps);
    if (r->predicted.note[0] != 0) printf("  predicted: %s\n", r->predicted.note);
    fflush(stdout);
}

static void head_print(const bench *b)
{
    printf(
        "prefill of %u tokens, decoding of %u, median of %u round%s; limit: the slower of storage for what "
        "streams\nand of the kernels for all weights\n"
        "%-11s %-11s %-11s %9s %9s %9s  %-11s %11s %11s %9s %8s\n",
        b->n_prompt, b->n_decode, b->n_rounds, b->n_rounds == 1 ? "" : "s", "budget", "planned", "peak",
        "prefill/s", "decode/s", "predicted", "read/token", "storage", "memory", "limit/s", "share");
}

/* The heading comes with the first row, so that an error stands alone. */
static int bench_budgets(bench *b)
{
    weir_error err;
    json_t *rows = json_array();
    int rc = CLI_OK;
    for (uint32_t i = 0; i < b->budgets.n && rc == CLI_OK; i++) {
        bench_row row = {.plan.struct_size = sizeof row.plan,
                         .memory.struct_size = sizeof row.memory,
                         .predicted.struct_size = sizeof row.predicted};
        if (measure(b, b->budgets.bytes[i], &row, &err) != WEIR_OK) {
            rc = cli_error("bench", &err);
        } else if (b->common.json) {
            json_array_append_new(rows, row_json(b, &row));
        } else {
            if (i == 0) head_print(b);
            row_print(&row);
        }
        if (!b->common.json && rc == CLI_OK && i + 1 == b->budgets.n) layout_print(&row);
    }
    if (b->common.json && rc == CLI_OK) return cli_json_print(rows);
    json_decref(rows);
    return rc;
}

/* A prompt that was given takes the place of the numbers. */
static int bench_prompt(bench *b)
{
    size_t len, n = 0;
    int32_t *ids = NULL;
    char *text = cli_read_text("bench", b->prompt, &len);
    if (text == NULL) return CLI_FAILED;
    const cli_prompt prompt = {.text = text, .len = len, .raw = b->raw};
    int rc = cli_prompt_tokens("bench", b->model, &prompt, &ids, &n);
    free(text);
    if (rc != CLI_OK) return rc;
    if (b->common.load.ctx_tokens == 0) b->common.load.ctx_tokens = (uint32_t)n + b->n_decode;
    b->n_given = (uint32_t)n;
    b->tokens = calloc(n, sizeof *b->tokens);
    if (b->tokens != NULL) memcpy(b->tokens, ids, n * sizeof *b->tokens);
    weir_free(b->model, ids);
    if (b->tokens == NULL) return cli_fail("bench", "no memory for %zu tokens", n);
    rc = cli_bench_speculate(b);
    free(b->tokens);
    return rc;
}

static int bench_model(bench *b)
{
    weir_error err;
    if (b->prompt != NULL) return bench_prompt(b);
    weir_model_info info = {.struct_size = sizeof info};
    if (weir_model_get_info(b->model, &info, &err) != WEIR_OK) return cli_error("bench", &err);
    uint32_t n = b->depth + b->n_prompt + b->n_decode;
    if (b->common.load.ctx_tokens == 0) b->common.load.ctx_tokens = n;
    if (b->common.load.ctx_tokens < n)
        return cli_usage("bench", "--ctx %u is too short; %u tokens are run", b->common.load.ctx_tokens, n);
    /* Sessions begin one token further each, so that they differ. */
    uint32_t n_text = n + b->n_sessions;
    b->tokens = calloc(n_text, sizeof *b->tokens);
    if (b->tokens == NULL) return cli_fail("bench", "no memory for %u tokens", n_text);
    for (uint32_t i = 0; i < n_text; i++) b->tokens[i] = (int32_t)((i * 7919ull + 13) % info.n_vocab);
    int rc = b->n_sessions > 1           ? cli_bench_sessions(b)
             : b->speculate.mode != NULL ? cli_bench_speculate(b)
                                         : bench_budgets(b);
    free(b->tokens);
    return rc;
}

/* Of a prompt's own: the texts of the bench have none of them to choose. */
static bool any_of_a_prompt(const cli_args *a)
{
    static const char *const names[] = {"raw",   "temp",           "top-k",       "top-p",
                                        "min-p", "repeat-penalty", "repeat-last", "seed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cli_given(a, names[i])) return true;
    return false;
}

int cli_bench(int argc, char **argv)
{
    enum { MAX_TOKENS = 1 << 20 };
    bench b = {.n_prompt = 128, .n_decode = 32, .n_rounds = 3, .n_sessions = 1};
    cli_common_init(&b.common, "bench");
    weir_generate_options_init(&b.generate);
    cli_args a = {.command = "bench",
                  .operand = "FILE",
                  .summary = "Measures prefill and decoding per budget, against their limit."};
    cli_add_model(&a, &b.common);
    cli_add(&a, "mem", 0, CLI_SIZES, &b.budgets, "A,B,C",
            "hard budgets for the whole process; default: what is free");
    cli_add(&a, "prompt-tokens", 0, CLI_U32, &b.n_prompt, "N", "tokens of prefill (default 128)");
    cli_add(&a, "n", 'n', CLI_U32, &b.n_decode, "N", "tokens decoded (default 32)");
    cli_add(&a, "depth", 0, CLI_U32, &b.depth, "N", "tokens before them, not timed (default 0)");
    cli_add(&a, "sessions", 0, CLI_U32, &b.n_sessions, "N",
            "decode N sessions that share passes against one in a load of its own, in turns (64 at most)");
    cli_add(&a, "fewer-sessions", 0, CLI_FLAG, &b.common.load.fewer_sessions, NULL,
            "where so many do not fit, take as many as do");
    cli_add(&a, "rounds", 0, CLI_U32, &b.n_rounds, "N",
            "rounds, of which the median counts (default 3, 32 at most)");
    cli_add_load(&a, &b.common);
    cli_add(&a, "speculate", 0, CLI_TEXT, &b.speculate.mode, "HOW",
            "measure guesses of that kind against plain decoding: auto (default with --draft), off, lookup, "
            "draft; without this option nothing is guessed");
    cli_add_guesses(&a, &b.speculate);
    cli_add(&a, "prompt", 'p', CLI_TEXT, &b.prompt, "TEXT",
            "for --speculate: a prompt to answer, in place of the two texts; - reads standard input");
    cli_add(&a, "raw", 0, CLI_FLAG, &b.raw, NULL, "no chat template: continue the prompt");
    cli_add_sampling(&a, &b.generate.sampling, "seed of the random numbers (default 0)");
    cli_add_json(&a, &b.common);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (b.n_rounds < 1 || b.n_rounds > CLI_BENCH_ROUNDS || b.n_prompt < 1 || b.n_decode < 1 ||
        b.n_prompt > MAX_TOKENS || b.n_decode > MAX_TOKENS || b.depth > MAX_TOKENS)
        return cli_usage("bench",
                         "--prompt-tokens and --n may be 1 to %d, --depth 0 to the same, --rounds 1 to %d",
                         MAX_TOKENS, CLI_BENCH_ROUNDS);
    if (b.n_sessions < 1 || b.n_sessions > CLI_BENCH_SESSIONS)
        return cli_usage("bench", "--sessions may be 1 to %d", CLI_BENCH_SESSIONS);
    rc = cli_speculate_check("bench", &b.speculate, &b.generate);
    if (rc != CLI_OK) return rc;
    if (b.speculate.mode == NULL && b.speculate.draft != NULL) b.speculate.mode = "auto";
    if (b.common.load.fewer_sessions && b.n_sessions < 2)
        return cli_usage("bench", "--fewer-sessions needs --sessions N");
    if (b.n_sessions > 1 && b.speculate.mode != NULL)
        return cli_usage("bench", "--sessions and --speculate are two measurements; give one of them");
    if (b.speculate.tokens != 0 && b.speculate.mode == NULL)
        return cli_usage("bench", "--speculate-tokens is for measuring guesses: --speculate HOW");
    if (b.prompt != NULL && b.speculate.mode == NULL)
        return cli_usage("bench", "--prompt is for measuring guesses: --speculate HOW");
    if (b.prompt != NULL && (cli_given(&a, "prompt-tokens") || cli_given(&a, "depth")))
        return cli_usage("bench", "--prompt is taken whole; --prompt-tokens and --depth cut other texts");
    if (b.prompt == NULL && any_of_a_prompt(&a))
        return cli_usage("bench",
                         "--raw and the options of sampling go with --prompt; the two texts have their own");
    rc = cli_check_sampling("bench", &b.generate.sampling);
    if (rc != CLI_OK) return rc;
    if (b.budgets.n == 0) b.budgets.bytes[b.budgets.n++] = 0;
    weir_context *context;
    rc = cli_open(&b.common, &context, &b.model);
    if (rc != CLI_OK) return rc;
    rc = bench_model(&b);
    weir_model_close(b.model);
    weir_context_destroy(context);
    return rc;
}
