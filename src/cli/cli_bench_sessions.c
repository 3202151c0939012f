/* weir bench --sessions N: N sessions that share passes over the weights against one session alone, in turns,
 * so that both see the same minutes of the machine. Each turn has a load of its own under the same budget:
 * one session then has for weights what the caches of the others take. */
#include "cli_bench.h"

#include <inttypes.h>
#include <string.h>

typedef struct sessions_row {
    weir_plan plan;
    weir_memory_report memory;
    double one_tps, total_tps;
    double one_streamed, total_streamed; /* bytes per token */
    bool same;                           /* every session's logits are those that it gave alone */
} sessions_row;

typedef struct turn {
    double tps;
    uint64_t streamed;
    uint64_t hash[CLI_BENCH_SESSIONS];
} turn;

/* Sessions differ in where their text begins. */
static const int32_t *text_of(const bench *b, uint32_t session)
{
    return b->tokens + session;
}

/* Decodes n sessions from first on, n_decode tokens each, in shared passes; the prompt is not timed. */
static weir_status one_turn(bench *b, weir_session **s, uint32_t first, uint32_t n, turn *out,
                            weir_error *err)
{
    const float *logits[CLI_BENCH_SESSIONS];
    int32_t next[CLI_BENCH_SESSIONS];
    weir_model_info info = {.struct_size = sizeof info};
    weir_memory_report before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    weir_status status = weir_model_get_info(b->model, &info, err);
    uint32_t n_prompt = b->depth + b->n_prompt;
    for (uint32_t i = 0; i < n && status == WEIR_OK; i++) {
        weir_session_reset(s[i]);
        status = weir_session_append(s[i], text_of(b, first + i), n_prompt, NULL, err);
    }
    if (status == WEIR_OK) status = weir_model_memory(b->model, &before, err);
    double start = cli_bench_now(), hashing = 0;
    for (uint32_t k = 0; k < b->n_decode && status == WEIR_OK; k++) {
        for (uint32_t i = 0; i < n; i++) next[i] = text_of(b, first + i)[n_prompt + k];
        status = weir_step_batch(s, next, n, logits, err);
        if (k + 1 < b->n_decode || status != WEIR_OK) continue;
        double at = cli_bench_now();
        for (uint32_t i = 0; i < n; i++)
            out->hash[first + i] = weir_logits_hash(WEIR_HASH_SEED, logits[i], info.n_vocab);
        hashing = cli_bench_now() - at;
    }
    out->tps = (double)n * b->n_decode / (cli_bench_now() - start - hashing);
    if (status == WEIR_OK) status = weir_model_memory(b->model, &after, err);
    out->streamed = after.read_bytes - before.read_bytes;
    return status;
}

/* The same in a load made for these sessions. */
static weir_status one_load(bench *b, uint32_t first, uint32_t n, turn *out, weir_memory_report *memory,
                            weir_error *err)
{
    weir_session *s[CLI_BENCH_SESSIONS] = {0};
    weir_load_options o = b->common.load;
    o.n_sessions = o.max_batch = n;
    weir_status status = weir_model_load(b->model, &o, err);
    for (uint32_t i = 0; i < n && status == WEIR_OK; i++) status = weir_session_create(b->model, &s[i], err);
    if (status == WEIR_OK) status = one_turn(b, s, first, n, out, err);
    if (status == WEIR_OK) status = weir_model_memory(b->model, memory, err);
    for (uint32_t i = 0; i < n; i++) weir_session_destroy(s[i]);
    weir_model_unload(b->model);
    return status;
}

/* One alone and all together, in turns. In the rounds each session has its turn alone. */
static weir_status measure(bench *b, sessions_row *row, weir_error *err)
{
    double one[CLI_BENCH_ROUNDS], all[CLI_BENCH_ROUNDS];
    uint64_t streamed_one = 0, streamed_all = 0, peak = 0;
    static turn alone, together; /* large: the hashes */
    weir_memory_report memory = {.struct_size = sizeof memory};
    memset(&alone, 0, sizeof alone);
    row->same = true;
    for (uint32_t r = 0; r < b->n_rounds; r++) {
        uint32_t who = r % b->n_sessions;
        weir_status status = one_load(b, who, 1, &alone, &memory, err);
        if (status == WEIR_OK) status = one_load(b, 0, b->n_sessions, &together, &row->memory, err);
        if (status != WEIR_OK) return status;
        if (row->memory.peak_bytes > peak) peak = row->memory.peak_bytes;
        one[r] = alone.tps;
        all[r] = together.tps;
        streamed_one += alone.streamed;
        streamed_all += together.streamed;
        row->same &= alone.hash[who] == together.hash[who];
    }
    row->memory.peak_bytes = peak;
    row->one_tps = cli_bench_median(one, b->n_rounds);
    row->total_tps = cli_bench_median(all, b->n_rounds);
    double tokens = (double)b->n_rounds * b->n_decode;
    row->one_streamed = (double)streamed_one / tokens;
    row->total_streamed = (double)streamed_all / (tokens * b->n_sessions);
    return WEIR_OK;
}

static weir_status one_budget(bench *b, uint64_t budget, sessions_row *row, weir_error *err)
{
    bench with = *b;
    weir_load_options *o = &with.common.load;
    o->mem_bytes = budget;
    o->n_sessions = o->max_batch = b->n_sessions;
    weir_status status = weir_model_plan(b->model, o, &row->plan, err);
    if (status != WEIR_OK) return status;
    /* What does not fit is told by loading it; with --fewer-sessions as many as fit are measured. */
    if (!row->plan.fits) {
        status = weir_model_load(b->model, o, err);
        if (status != WEIR_OK) return status;
        weir_model_unload(b->model); /* memory came free meanwhile */
    }
    with.n_sessions = row->plan.n_sessions;
    return measure(&with, row, err);
}

static json_t *row_json(const bench *b, const sessions_row *r)
{
    json_t *j = cli_bench_json(b, &r->plan, &r->memory);
    json_object_set_new(j, "sessions", json_integer(r->plan.n_sessions));
    json_object_set_new(j, "wanted_sessions", json_integer(b->n_sessions));
    json_object_set_new(j, "one_tps", cli_json_real(r->one_tps));
    json_object_set_new(j, "total_tps", cli_json_real(r->total_tps));
    json_object_set_new(j, "ratio", cli_json_real(r->total_tps / r->one_tps));
    json_object_set_new(j, "same_logits", json_boolean(r->same));
    json_object_set_new(j, "streamed_bytes_per_token_one", cli_json_real(r->one_streamed));
    json_object_set_new(j, "streamed_bytes_per_token", cli_json_real(r->total_streamed));
    return j;
}

static void row_print(const sessions_row *r)
{
    char a[32], c[32], d[32], e[32], f[32];
    printf("%-11s %-11s %-11s %9.2f %9.2f %6.2fx  %-11s %-11s %s\n", weir_size_text(r->plan.budget_bytes, a),
           weir_size_text(r->plan.planned_peak_bytes, c), weir_size_text(r->memory.peak_bytes, d), r->one_tps,
           r->total_tps, r->total_tps / r->one_tps, weir_size_text((uint64_t)r->one_streamed, e),
           weir_size_text((uint64_t)r->total_streamed, f), r->same ? "same" : "DIFFERENT");
    if (r->plan.n_sessions < r->plan.wanted_sessions)
        printf("of %u sessions only %u fit; these were measured\n", r->plan.wanted_sessions,
               r->plan.n_sessions);
    fflush(stdout);
}

static void head_print(const bench *b)
{
    printf(
        "%u sessions that share passes against one in a load of its own, %u tokens each after %u, median of "
        "%u round%s\n"
        "%-11s %-11s %-11s %9s %9s %7s  %-11s %-11s %s\n",
        b->n_sessions, b->n_decode, b->depth + b->n_prompt, b->n_rounds, b->n_rounds == 1 ? "" : "s",
        "budget", "planned", "peak", "one/s", "total/s", "ratio", "read/token", "of all", "logits");
}

int cli_bench_sessions(bench *b)
{
    weir_error err;
    json_t *rows = json_array();
    int rc = CLI_OK;
    for (uint32_t i = 0; i < b->budgets.n && rc == CLI_OK; i++) {
        sessions_row row = {.plan.struct_size = sizeof row.plan, .memory.struct_size = sizeof row.memory};
        if (one_budget(b, b->budgets.bytes[i], &row, &err) != WEIR_OK) {
            rc = cli_error("bench", &err);
        } else if (b->common.json) {
            json_array_append_new(rows, row_json(b, &row));
        } else {
            if (i == 0) head_print(b);
            row_print(&row);
        }
        if (rc == CLI_OK && !row.same)
            rc = cli_fail("bench", "a session's logits differ from those it gives alone: this is a defect");
    }
    if (b->common.json && rc == CLI_OK) return cli_json_print(rows);
    json_decref(rows);
    return rc;
}
