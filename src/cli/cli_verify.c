/* weir verify: the exactness matrix (R1.4, X1). Fixed prompts and a few greedy steps run under combinations
 * of budget, threads, prefill chunk and batch, without sharing memory between activations, and once per
 * instruction set; the hash over all logits must be the same everywhere.
 *
 *   budgets    smallest (everything streams that can), parts of the way, whole; each counted from the
 *              smallest and the whole budget of its own combination, so that "smallest" is never roomy
 *   batch      the sessions beside the first run prompts of other lengths; each must give what it gives alone
 *   reference  the first line: whole, all threads, every session alone
 *   answers    whole answers: guesses that a pass checks, sessions that join and leave, budgets that change
 *              between tokens (cli_verify_answers.c)
 */
#include "cli_verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_PROMPT = 512, MAX_BATCH = 3, MAX_VARIANTS = 512, ANSWER_STEPS = 4 };
enum { LEVEL_SMALLEST, LEVEL_QUARTER, LEVEL_HALF, LEVEL_MOST, LEVEL_WHOLE, N_LEVELS };

static const char *const level_names[N_LEVELS] = {"smallest", "quarter", "half", "most", "whole"};

typedef struct variant {
    uint32_t level, threads, chunk, batch; /* chunk 0: as planned */
    const char *cpu;                       /* NULL: as set */
    bool no_alias;
} variant;

typedef struct outcome {
    weir_status status;
    weir_error err;
    uint64_t mem_bytes;
    uint64_t hash[MAX_BATCH];
    uint32_t odd; /* session whose hash is not that of the reference; MAX_BATCH: none */
    weir_memory_report memory;
} outcome;

typedef struct verify {
    cli_common common;
    weir_model *model;
    int32_t prompt[MAX_BATCH][MAX_PROMPT];
    uint32_t n_prompt, n_steps;
    uint32_t n_vocab;
    bool full;
    const char *expect;
    variant variants[MAX_VARIANTS];
    uint32_t n_variants;
    uint32_t passed, failed;
    uint64_t reference[MAX_BATCH];
    bool have_reference;
    json_t *rows;
} verify;

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at]) at = i;
    return (int32_t)at;
}

/* Damaged weights give the same non-numbers everywhere; that they agree proves nothing. */
static weir_status check_numbers(const float *logits, uint32_t n, weir_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] < HUGE_VALF) continue;
        err->code = WEIR_ERR_FORMAT;
        snprintf(err->message, sizeof err->message,
                 "the logits are no numbers (token %u: %g): the weights are damaged or overflow; download or "
                 "convert the model again",
                 i, (double)logits[i]);
        return err->code;
    }
    return WEIR_OK;
}

static uint32_t prompt_length(const verify *v, uint32_t session)
{
    uint32_t n = session == 0 ? v->n_prompt : v->n_prompt / 2 + 3 * session;
    return n < MAX_PROMPT ? n : MAX_PROMPT;
}

/* Prefill of n sessions one after the other, then steps of all of them in one pass. `first`: which prompt the
 * first of them runs. */
static weir_status run_sessions(verify *v, weir_session **sessions, uint32_t first, uint32_t n,
                                uint64_t *hash, weir_error *err)
{
    const float *logits[MAX_BATCH] = {0};
    int32_t next[MAX_BATCH];
    for (uint32_t s = 0; s < n; s++) {
        weir_status status = weir_session_append(sessions[s], v->prompt[first + s],
                                                 prompt_length(v, first + s), &logits[0], err);
        if (status == WEIR_OK) status = check_numbers(logits[0], v->n_vocab, err);
        if (status != WEIR_OK) return status;
        next[s] = best(logits[0], v->n_vocab);
        hash[s] = weir_logits_hash(WEIR_HASH_SEED, logits[0], v->n_vocab);
    }
    for (uint32_t i = 0; i < v->n_steps; i++) {
        weir_status status = weir_step_batch(sessions, next, n, logits, err);
        if (status != WEIR_OK) return status;
        for (uint32_t s = 0; s < n; s++) {
            status = check_numbers(logits[s], v->n_vocab, err);
            if (status != WEIR_OK) return status;
            hash[s] = weir_logits_hash(hash[s], logits[s], v->n_vocab);
            next[s] = best(logits[s], v->n_vocab);
        }
    }
    return WEIR_OK;
}

/* Sessions that live at once; alone: one after the other. */
static weir_status run_loaded(verify *v, uint32_t n, bool alone, uint64_t *hash, weir_error *err)
{
    weir_session *sessions[MAX_BATCH] = {0};
    weir_status status = WEIR_OK;
    for (uint32_t s = 0; s < n && status == WEIR_OK; s++) {
        status = weir_session_create(v->model, &sessions[s], err);
        if (status != WEIR_OK || !alone) continue;
        status = run_sessions(v, &sessions[s], s, 1, &hash[s], err);
        weir_session_destroy(sessions[s]);
        sessions[s] = NULL;
    }
    if (status == WEIR_OK && !alone) status = run_sessions(v, sessions, 0, n, hash, err);
    for (uint32_t s = 0; s < n; s++) weir_session_destroy(sessions[s]);
    return status;
}

static weir_status choose_budget(verify *v, const variant *x, weir_load_options *o, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    o->mem_bytes = 0;
    weir_status status = weir_model_plan(v->model, o, &plan, err);
    uint64_t between = plan.whole_bytes > plan.smallest_bytes ? plan.whole_bytes - plan.smallest_bytes : 0;
    o->mem_bytes = plan.smallest_bytes + between / (N_LEVELS - 1) * x->level;
    if (x->level == LEVEL_WHOLE) o->mem_bytes = plan.smallest_bytes + between;
    return status;
}

static void run_variant(verify *v, const variant *x, outcome *out)
{
    weir_context *c = v->common.context;
    weir_load_options o = v->common.load;
    o.n_threads = x->threads;
    o.prefill_chunk = x->chunk;
    o.n_sessions = o.max_batch = x->batch;
    weir_status status =
        weir_context_set(c, "memory.alias_activations", x->no_alias ? "off" : "on", &out->err);
    if (status == WEIR_OK && x->cpu != NULL) status = weir_context_set(c, "cpu", x->cpu, &out->err);
    /* What the process itself holds grows a little while it runs; then the smallest budget has grown, too. */
    for (int tries = 0; tries < 3 && status == WEIR_OK; tries++) {
        status = choose_budget(v, x, &o, &out->err);
        if (status == WEIR_OK) status = weir_model_load(v->model, &o, &out->err);
        if (status != WEIR_ERR_BUDGET) break;
        if (tries < 2) status = WEIR_OK;
    }
    out->mem_bytes = o.mem_bytes;
    bool alone = !v->have_reference;
    if (status == WEIR_OK) status = run_loaded(v, alone ? MAX_BATCH : x->batch, alone, out->hash, &out->err);
    if (status == WEIR_OK) status = weir_model_memory(v->model, &out->memory, &out->err);
    out->status = status;
    weir_model_unload(v->model);
}

/* True when the outcome is that of the reference, which the first good one becomes. */
static bool judge(verify *v, const variant *x, outcome *out)
{
    char text[24];
    if (out->status != WEIR_OK) return false;
    if (!v->have_reference) {
        memcpy(v->reference, out->hash, sizeof v->reference);
        v->have_reference = true;
        snprintf(text, sizeof text, "%016" PRIx64, out->hash[0]);
        if (v->expect != NULL && strcasecmp(v->expect, text) != 0) out->odd = 0;
    }
    for (uint32_t s = x->batch; s-- > 0;)
        if (out->hash[s] != v->reference[s]) out->odd = s;
    return out->odd == MAX_BATCH;
}

static json_t *variant_json(const variant *x, const outcome *out, bool same)
{
    json_t *j = json_pack("{s:b,s:s,s:i,s:i,s:i,s:s,s:b}", "same", same, "budget", level_names[x->level],
                          "threads", (int)x->threads, "chunk", (int)x->chunk, "batch", (int)x->batch, "cpu",
                          x->cpu ? x->cpu : "", "shared_activations", !x->no_alias);
    json_object_set_new(j, "mem_bytes", cli_json_u64(out->mem_bytes));
    if (out->status != WEIR_OK) {
        json_object_set_new(j, "error", cli_json_text(out->err.message, strlen(out->err.message)));
        return j;
    }
    json_object_set_new(j, "logits_hash", cli_json_hash(out->hash[0]));
    json_object_set_new(j, "size_mb", cli_json_real((double)out->memory.size_bytes / 1e6));
    json_object_set_new(j, "streamed_mb", cli_json_real((double)out->memory.streamed_bytes / 1e6));
    json_object_set_new(j, "planned_peak_bytes", cli_json_u64(out->memory.planned_peak_bytes));
    json_object_set_new(j, "peak_bytes", cli_json_u64(out->memory.peak_bytes));
    return j;
}

static void print_variant(const verify *v, const variant *x, const outcome *out, bool same)
{
    char mem[32], chunk[16] = "auto", line[WEIR_ERROR_MESSAGE_BYTES];
    if (x->chunk != 0) snprintf(chunk, sizeof chunk, "%u", x->chunk);
    printf("%s  %-8s mem %-10s threads %-2u chunk %-4s batch %u  %-18s", same ? "same" : "DIFF",
           level_names[x->level], weir_size_text(out->mem_bytes, mem), x->threads, chunk, x->batch,
           x->no_alias ? "nothing shared"
           : x->cpu    ? x->cpu
                       : "");
    if (out->status != WEIR_OK) {
        printf("failed: %s\n", cli_line_text(out->err.message, line, sizeof line));
    } else {
        double share = out->memory.size_bytes
                           ? 100.0 * (double)out->memory.streamed_bytes / (double)out->memory.size_bytes
                           : 0.0;
        printf("streams %5.1f %%  ", share);
        if (out->odd != MAX_BATCH && out->odd > 0)
            printf("session %u of the batch %016" PRIx64 ", alone %016" PRIx64 "\n", out->odd,
                   out->hash[out->odd], v->reference[out->odd]);
        else
            printf("%016" PRIx64 "\n", out->hash[0]);
    }
    fflush(stdout);
}

static void check_variant(verify *v, const variant *x)
{
    outcome out = {.odd = MAX_BATCH, .memory.struct_size = sizeof out.memory};
    run_variant(v, x, &out);
    bool same = judge(v, x, &out);
    if (same)
        v->passed++;
    else
        v->failed++;
    if (v->rows != NULL)
        json_array_append_new(v->rows, variant_json(x, &out, same));
    else
        print_variant(v, x, &out, same);
}

static void add_variant(verify *v, variant x)
{
    if (v->n_variants < MAX_VARIANTS) v->variants[v->n_variants++] = x;
}

/* Every pair of values of threads, chunk and batch occurs in each level; --full has every combination. */
static void add_level(verify *v, uint32_t level, uint32_t many)
{
    if (!v->full) {
        add_variant(v, (variant){level, 1, 5, 1, NULL, false});
        add_variant(v, (variant){level, many, 0, 1, NULL, false});
        add_variant(v, (variant){level, 1, 0, MAX_BATCH, NULL, false});
        add_variant(v, (variant){level, many, 5, MAX_BATCH, NULL, false});
        return;
    }
    const uint32_t chunks[] = {5, 0, 1, 64}, threads[] = {1, 2, 3, many};
    for (uint32_t t = 0; t < (many > 3 ? 4u : 3u); t++)
        for (uint32_t c = 0; c < 4; c++)
            for (uint32_t batch = 1; batch <= MAX_BATCH; batch++)
                add_variant(v, (variant){level, threads[t], chunks[c], batch, NULL, false});
}

static weir_status add_matrix(verify *v, weir_error *err)
{
    weir_machine machine = {.struct_size = sizeof machine};
    weir_status status = weir_machine_read(v->common.context, &machine, err);
    if (status != WEIR_OK) return status;
    uint32_t many = machine.n_cpus > 1 ? machine.n_cpus : 2;
    add_variant(v, (variant){LEVEL_WHOLE, many, 0, 1, NULL, false});
    for (uint32_t level = 0; level < N_LEVELS; level++)
        if (v->full || (level != LEVEL_QUARTER && level != LEVEL_MOST)) add_level(v, level, many);
    add_variant(v, (variant){LEVEL_HALF, many, 0, 1, NULL, true});
    for (size_t i = 0; machine.cpu_sets[i] != NULL; i++) {
        add_variant(v, (variant){LEVEL_WHOLE, many, 0, 1, machine.cpu_sets[i], false});
        add_variant(v, (variant){LEVEL_HALF, many, 5, MAX_BATCH, machine.cpu_sets[i], false});
    }
    return WEIR_OK;
}

int32_t cli_verify_token(uint64_t *state, uint32_t n_vocab)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int32_t)(*state % n_vocab);
}

static void make_prompts(verify *v)
{
    uint64_t state = CLI_VERIFY_SEED;
    for (uint32_t s = 0; s < MAX_BATCH; s++)
        for (uint32_t i = 0; i < MAX_PROMPT; i++) v->prompt[s][i] = cli_verify_token(&state, v->n_vocab);
}

static void print_answer(const cli_verify_outcome *o)
{
    printf("%3" PRIu64 " passes, %" PRIu64 " of %" PRIu64 " guesses right", o->passes, o->accepted,
           o->drafted);
    if (o->shrinks + o->grows != 0)
        printf(", budget %" PRIu64 " times less and %" PRIu64 " times more", o->shrinks, o->grows);
    printf("  %016" PRIx64 "\n", o->hash);
}

static void take_answer(void *arg, const cli_verify_outcome *o)
{
    verify *v = arg;
    const char *drawn = o->sampled ? "sampled" : "greedy";
    bool same = o->status == WEIR_OK && o->same;
    char mem[32], line[WEIR_ERROR_MESSAGE_BYTES];
    if (same)
        v->passed++;
    else
        v->failed++;
    if (v->rows != NULL) {
        json_t *j = json_pack("{s:b,s:s,s:s,s:s}", "same", same, "budget", o->level, "answers", o->check,
                              "drawn", drawn);
        const cli_number numbers[] = {{"mem_bytes", o->mem_bytes},    {"passes", o->passes},
                                      {"drafted", o->drafted},        {"accepted", o->accepted},
                                      {"budget_shrinks", o->shrinks}, {"budget_grows", o->grows}};
        cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
        if (o->status != WEIR_OK)
            json_object_set_new(j, "error", cli_json_text(o->err.message, strlen(o->err.message)));
        else
            json_object_set_new(j, "logits_hash", cli_json_hash(o->hash));
        json_array_append_new(v->rows, j);
        return;
    }
    printf("%s  %-8s mem %-10s answers: %-8s %-8s ", same ? "same" : "DIFF", o->level,
           weir_size_text(o->mem_bytes, mem), o->check, drawn);
    if (o->status != WEIR_OK)
        printf("failed: %s\n", cli_line_text(o->err.message, line, sizeof line));
    else if (!same)
        printf("%016" PRIx64 ", alone %016" PRIx64 "\n", o->hash, o->wanted);
    else
        print_answer(o);
    fflush(stdout);
}

static int verify_model(verify *v)
{
    weir_error err;
    weir_model_info info = {.struct_size = sizeof info};
    if (weir_model_get_info(v->model, &info, &err) != WEIR_OK) return cli_error("verify", &err);
    v->n_vocab = info.n_vocab;
    make_prompts(v);
    uint32_t need = v->n_prompt + ANSWER_STEPS * v->n_steps;
    for (uint32_t s = 0; s < MAX_BATCH; s++)
        if (prompt_length(v, s) + v->n_steps > need) need = prompt_length(v, s) + v->n_steps;
    if (v->common.load.ctx_tokens == 0) v->common.load.ctx_tokens = need;
    if (v->common.load.ctx_tokens < need)
        return cli_usage("verify", "--ctx %u is too short; %u tokens are run", v->common.load.ctx_tokens,
                         need);
    weir_machine machine = {.struct_size = sizeof machine};
    char cpu[32];
    if (weir_machine_read(v->common.context, &machine, &err) != WEIR_OK || add_matrix(v, &err) != WEIR_OK)
        return cli_error("verify", &err);
    /* What no row could be without, such as the device, is told once. */
    weir_plan plan = {.struct_size = sizeof plan};
    if (weir_model_plan(v->model, &v->common.load, &plan, &err) != WEIR_OK) return cli_error("verify", &err);
    snprintf(cpu, sizeof cpu, "%s", machine.cpu_set);
    if (v->common.json) v->rows = json_array();
    for (uint32_t i = 0; i < v->n_variants; i++) check_variant(v, &v->variants[i]);
    /* The matrix ends with settings of its last line. */
    if (weir_context_set(v->common.context, "memory.alias_activations", "on", &err) != WEIR_OK ||
        weir_context_set(v->common.context, "cpu", cpu, &err) != WEIR_OK)
        return cli_error("verify", &err);
    if (v->n_steps > 0)
        cli_verify_answers(&v->common, v->model, v->n_prompt, ANSWER_STEPS * v->n_steps, v->full, take_answer,
                           v);
    bool good = v->failed == 0 && v->passed > 0;
    if (!v->common.json) {
        printf("%u passed, %u failed\n", v->passed, v->failed);
        return good ? CLI_OK : CLI_FAILED;
    }
    json_t *j = json_pack("{s:i,s:i,s:o,s:o}", "passed", (int)v->passed, "failed", (int)v->failed, "applied",
                          cli_json_applied(&v->common), "rows", v->rows);
    if (v->have_reference) json_object_set_new(j, "logits_hash", cli_json_hash(v->reference[0]));
    int rc = cli_json_print(j);
    return good ? rc : CLI_FAILED;
}

int cli_verify(int argc, char **argv)
{
    enum { MAX_STEPS = 100000 };
    static verify v; /* large: the prompts */
    cli_common_init(&v.common, "verify");
    v.n_prompt = 23;
    v.n_steps = 4;
    cli_args a = {.command = "verify",
                  .operand = "FILE",
                  .summary = "Proves that budgets, also ones that change between tokens, threads, chunks, "
                             "batches, sessions that "
                             "join and leave, and guesses give the same bits. Exit 1 on any difference."};
    cli_add_model(&a, &v.common);
    cli_add(&a, "full", 0, CLI_FLAG, &v.full, NULL,
            "every combination (five budgets, four chunks, batches 1 to 3; answers at three budgets)");
    cli_add(&a, "prompt-tokens", 0, CLI_U32, &v.n_prompt, "N",
            "length of the prompt (default 23, 512 at most)");
    cli_add(&a, "steps", 0, CLI_U32, &v.n_steps, "N", "tokens decoded (default 4)");
    cli_add(&a, "expect", 0, CLI_TEXT, &v.expect, "HASH", "the hash that the logits must have");
    cli_add(&a, "ctx", 0, CLI_U32, &v.common.load.ctx_tokens, "N", "context in tokens; default: what is run");
    cli_add(&a, "kv-type", 0, CLI_KV_TYPE, &v.common.load.kv_type, "TYPE",
            "key-value cache: f16 (default) or f32");
    cli_add_kv_cache(&a, &v.common);
    cli_add_cpus(&a, &v.common);
    cli_add_device(&a, &v.common);
    cli_add_json(&a, &v.common);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (v.n_prompt < 1 || v.n_prompt > MAX_PROMPT || v.n_steps > MAX_STEPS)
        return cli_usage("verify", "--prompt-tokens may be 1 to %d, --steps 0 to %d", MAX_PROMPT, MAX_STEPS);
    if (v.expect != NULL && (strlen(v.expect) != 16 || strspn(v.expect, "0123456789abcdefABCDEF") != 16))
        return cli_usage("verify", "--expect %s is no hash; it is written as 16 hexadecimal digits",
                         v.expect);
    weir_context *context;
    rc = cli_open(&v.common, &context, &v.model);
    if (rc != CLI_OK) return rc;
    rc = verify_model(&v);
    weir_model_close(v.model);
    weir_context_destroy(context);
    return rc;
}
