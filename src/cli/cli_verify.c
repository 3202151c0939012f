/* weir verify: the exactness matrix. One fixed prompt and a few greedy steps run under every combination of
 * budget, threads, prefill chunk and batch, and once per instruction set; the hash over all logits must be
 * the same everywhere. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 512, MAX_BATCH = 4, MAX_VARIANTS = 512 };

typedef struct variant {
    uint64_t mem_bytes; /* 0: whole */
    const char *label;
    uint32_t threads, chunk, batch;
    const char *cpu; /* NULL: as set */
    bool no_alias;
} variant;

typedef struct verify {
    cli_common common;
    weir_context *context;
    weir_model *model;
    int32_t prompt[MAX_BATCH][MAX_PROMPT];
    uint32_t n_prompt, n_steps;
    uint32_t n_vocab;
    bool full;
    const char *expect;
    variant variants[MAX_VARIANTS];
    uint32_t n_variants;
    uint32_t passed, failed;
    uint64_t reference;
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

/* Sessions other than the first run prompts of other lengths beside it. */
static weir_status run_sessions(verify *v, const variant *x, weir_session **sessions, uint64_t *hash,
                                weir_error *err)
{
    const float *logits[MAX_BATCH] = {0};
    int32_t next[MAX_BATCH];
    weir_status status = WEIR_OK;
    uint64_t h = WEIR_HASH_SEED;
    for (uint32_t s = x->batch; s-- > 0 && status == WEIR_OK;) {
        uint32_t n = s == 0 ? v->n_prompt : v->n_prompt / 2 + 3 * s;
        status = weir_session_append(sessions[s], v->prompt[s], n, &logits[s], err);
        if (status == WEIR_OK) next[s] = best(logits[s], v->n_vocab);
    }
    if (status != WEIR_OK) return status;
    h = weir_logits_hash(h, logits[0], v->n_vocab);
    for (uint32_t i = 0; i < v->n_steps; i++) {
        status = weir_step_batch(sessions, next, x->batch, logits, err);
        if (status != WEIR_OK) return status;
        h = weir_logits_hash(h, logits[0], v->n_vocab);
        for (uint32_t s = 0; s < x->batch; s++) next[s] = best(logits[s], v->n_vocab);
    }
    *hash = h;
    return WEIR_OK;
}

static weir_status run_variant(verify *v, const variant *x, uint64_t *hash, weir_error *err)
{
    weir_session *sessions[MAX_BATCH] = {0};
    weir_load_options o = v->common.load;
    o.mem_bytes = x->mem_bytes;
    o.n_threads = x->threads;
    o.prefill_chunk = x->chunk;
    o.n_sessions = o.max_batch = x->batch;
    o.progress = NULL;
    weir_status status =
        weir_context_set(v->context, "memory.alias_activations", x->no_alias ? "off" : "on", err);
    if (status == WEIR_OK && x->cpu != NULL) status = weir_context_set(v->context, "cpu", x->cpu, err);
    if (status == WEIR_OK) status = weir_model_load(v->model, &o, err);
    for (uint32_t s = 0; s < x->batch && status == WEIR_OK; s++)
        status = weir_session_create(v->model, &sessions[s], err);
    if (status == WEIR_OK) status = run_sessions(v, x, sessions, hash, err);
    for (uint32_t s = 0; s < x->batch; s++) weir_session_destroy(sessions[s]);
    return status;
}

static void check_variant(verify *v, const variant *x)
{
    weir_error err;
    uint64_t hash = 0;
    char mem[32];
    weir_status status = run_variant(v, x, &hash, &err);
    bool same = false;
    if (status == WEIR_OK && !v->have_reference) {
        v->reference = hash;
        v->have_reference = true;
        char text[24];
        snprintf(text, sizeof text, "%016" PRIx64, hash);
        same = v->expect == NULL || strcasecmp(v->expect, text) == 0;
    } else if (status == WEIR_OK) {
        same = hash == v->reference;
    }
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error ignored;
    bool measured = status == WEIR_OK && weir_model_memory(v->model, &r, &ignored) == WEIR_OK;
    if (x->mem_bytes != 0)
        weir_size_text(x->mem_bytes, mem);
    else
        snprintf(mem, sizeof mem, "default");
    same ? v->passed++ : v->failed++;
    if (v->rows != NULL) {
        json_t *j = json_pack("{s:b,s:s,s:I,s:i,s:i,s:i,s:s}", "same", same, "budget", x->label, "mem_bytes",
                              (json_int_t)x->mem_bytes, "threads", (int)x->threads, "chunk", (int)x->chunk,
                              "batch", (int)x->batch, "cpu", x->cpu ? x->cpu : "");
        json_object_set_new(j, "logits_hash", cli_json_hash(hash));
        if (measured) json_object_set_new(j, "streamed_mb", json_real((double)r.streamed_bytes / 1e6));
        if (status != WEIR_OK) json_object_set_new(j, "error", json_string(err.message));
        json_array_append_new(v->rows, j);
        return;
    }
    printf("%s  %-8s mem %-11s threads %u chunk %-4u batch %u%s%s%s  ", same ? "same" : "DIFF", x->label, mem,
           x->threads, x->chunk, x->batch, x->cpu ? " cpu " : "", x->cpu ? x->cpu : "",
           x->no_alias ? " no aliasing" : "");
    if (status == WEIR_OK)
        printf("streams %5.1f %%  %016" PRIx64 "\n",
               r.size_bytes ? 100.0 * (double)r.streamed_bytes / (double)r.size_bytes : 0.0, hash);
    else
        printf("failed: %s\n", err.message);
    fflush(stdout);
}

static void add_variant(verify *v, variant x)
{
    if (v->n_variants < MAX_VARIANTS) v->variants[v->n_variants++] = x;
}

static weir_status add_matrix(verify *v, weir_error *err)
{
    static const char *const labels[] = {"smallest", "quarter", "half", "most", "whole"};
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = v->common.load;
    o.n_sessions = o.max_batch = MAX_BATCH - 1;
    uint32_t chunks[] = {5, 0, 1, 64};
    o.prefill_chunk = 5;
    weir_status status = weir_model_plan(v->model, &o, &plan, err);
    if (status != WEIR_OK) return status;
    uint64_t smallest = plan.smallest_bytes + (1 << 20);
    o.prefill_chunk = 64;
    status = weir_model_plan(v->model, &o, &plan, err);
    if (status != WEIR_OK) return status;
    uint64_t whole = plan.whole_bytes + (8 << 20);
    weir_machine machine = {.struct_size = sizeof machine};
    status = weir_machine_read(v->context, &machine, err);
    if (status != WEIR_OK) return status;

    add_variant(v, (variant){whole, "whole", machine.n_cpus, 0, 1, NULL, false});
    for (uint32_t b = 0; b < 5; b++) {
        if (!v->full && (b == 1 || b == 3)) continue;
        uint64_t mem = smallest + (whole - smallest) / 4 * b;
        for (uint32_t t = 1; t <= 2; t++)
            for (uint32_t c = 0; c < (v->full ? 4u : 2u); c++)
                for (uint32_t batch = 1; batch < MAX_BATCH; batch += v->full ? 1 : 2) {
                    /* the smallest budget holds chunks of 5 only */
                    if (b == 0 && chunks[c] == 64) continue;
                    add_variant(v, (variant){mem, labels[b], t, chunks[c], batch, NULL, false});
                }
    }
    add_variant(v, (variant){whole, "whole", machine.n_cpus, 0, 1, NULL, true});
    for (size_t i = 0; machine.cpu_sets[i] != NULL; i++)
        add_variant(v, (variant){whole, "whole", machine.n_cpus, 0, 1, machine.cpu_sets[i], false});
    return WEIR_OK;
}

/* Token ids spread over the vocabulary: no tokenizer is needed, and none can hide a difference. */
static void make_prompts(verify *v)
{
    uint64_t state = 88172645463325252u;
    for (uint32_t s = 0; s < MAX_BATCH; s++)
        for (uint32_t i = 0; i < MAX_PROMPT; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            v->prompt[s][i] = (int32_t)(state % v->n_vocab);
        }
}

static int verify_model(verify *v)
{
    weir_error err;
    weir_model_info info = {.struct_size = sizeof info};
    if (weir_model_get_info(v->model, &info, &err) != WEIR_OK) return cli_error("verify", &err);
    v->n_vocab = info.n_vocab;
    make_prompts(v);
    if (v->common.load.ctx_tokens == 0) v->common.load.ctx_tokens = v->n_prompt + v->n_steps + 32;
    if (add_matrix(v, &err) != WEIR_OK) return cli_error("verify", &err);
    if (v->common.json) v->rows = json_array();
    for (uint32_t i = 0; i < v->n_variants; i++) check_variant(v, &v->variants[i]);
    if (v->common.json)
        cli_json_print(
            json_pack("{s:i,s:i,s:o}", "passed", (int)v->passed, "failed", (int)v->failed, "rows", v->rows));
    else
        printf("%u passed, %u failed\n", v->passed, v->failed);
    return v->failed == 0 && v->passed > 0 ? CLI_OK : CLI_FAILED;
}

int cli_verify(int argc, char **argv)
{
    static verify v; /* large: the prompts */
    cli_common_init(&v.common);
    v.n_prompt = 23;
    v.n_steps = 4;
    cli_args a = {
        .command = "verify",
        .operand = "FILE",
        .summary =
            "Proves that budgets, threads, chunks and batches give the same bits. Exit 1 on any difference."};
    cli_add_model(&a, &v.common);
    cli_add(&a, "full", 0, CLI_FLAG, &v.full, NULL,
            "every combination (five budgets, four chunks, batches 1 to 3)");
    cli_add(&a, "prompt-tokens", 0, CLI_U32, &v.n_prompt, "N",
            "length of the prompt (default 23, 512 at most)");
    cli_add(&a, "steps", 0, CLI_U32, &v.n_steps, "N", "tokens decoded (default 4)");
    cli_add(&a, "expect", 0, CLI_TEXT, &v.expect, "HASH", "the hash that the logits must have");
    cli_add(&a, "ctx", 0, CLI_U32, &v.common.load.ctx_tokens, "N", "context in tokens");
    cli_add(&a, "kv-type", 0, CLI_KV_TYPE, &v.common.load.kv_type, "TYPE",
            "key-value cache: f16 (default) or f32");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (v.n_prompt < 1 || v.n_prompt > MAX_PROMPT || v.n_steps > 100000) {
        fprintf(stderr, "weir verify: --prompt-tokens may be 1 to %d\n", MAX_PROMPT);
        return CLI_USAGE;
    }
    v.common.model = a.value;
    rc = cli_open(&v.common, &v.context, &v.model);
    if (rc != CLI_OK) return rc;
    rc = verify_model(&v);
    weir_model_close(v.model);
    weir_context_destroy(v.context);
    return rc;
}
