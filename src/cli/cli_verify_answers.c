/* The other half of weir verify: whole answers. Guesses that one pass checks (from the text, from a draft
 * model: the model itself, which is always right where a pass has room, and from both while it pays) and
 * sessions that join and leave at
 * any token must give the tokens and the logits of plain decoding by the session alone, greedily and with
 * random numbers (X1, X4); and so they must while the budget of the loaded model changes between tokens
 * (R6.5).
 */
#include "cli_verify.h"

#include <stdlib.h>
#include <string.h>

enum { N_SESSIONS = 3, CHUNK = 8, STEPS_MAX = 100000, N_BUDGETS = 8 };

typedef struct answers {
    const cli_common *common;
    weir_model *model, *draft;
    uint32_t n_prompt, n_tokens;
    int32_t *prompt; /* N_SESSIONS of n_prompt, each coming back to itself */
    weir_session *session[N_SESSIONS], *draft_session;
    uint64_t wanted[2][N_SESSIONS]; /* greedy, sampled: the hash of the logits */
    int32_t *tokens;                /* 2 * N_SESSIONS of n_tokens: those of the answers */
    uint64_t mem_bytes;
    uint64_t budgets[N_BUDGETS]; /* which a run goes through, step by step; [0] is 0: it stays */
    const char *level;
    cli_verify_tell tell;
    void *arg;
} answers;

static weir_generate_options options_of(const answers *v, bool sampled, weir_speculate how)
{
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.max_tokens = v->n_tokens;
    o.ignore_end = true;
    o.speculate = how;
    if (sampled) {
        o.sampling.temperature = 0.9F;
        o.sampling.top_p = 0.95F;
        o.sampling.repeat_penalty = 1.1F;
        o.sampling.seed = 20;
    }
    return o;
}

static weir_status make_prompts(answers *v, weir_error *err)
{
    weir_model_info info = {.struct_size = sizeof info};
    weir_status status = weir_model_get_info(v->model, &info, err);
    uint64_t state = CLI_VERIFY_SEED;
    for (uint32_t i = 0; i < N_SESSIONS * v->n_prompt && status == WEIR_OK; i++) {
        int32_t token = cli_verify_token(&state, info.n_vocab);
        uint32_t at = i % v->n_prompt, period = v->n_prompt / 2 + 1;
        v->prompt[i] = at < period ? token : v->prompt[i - period];
    }
    return status;
}

/* An answer is that of plain decoding. */
static bool holds(const answers *v, bool sampled, uint32_t s, const weir_result *r)
{
    const int32_t *tokens = v->tokens + ((size_t)sampled * N_SESSIONS + s) * v->n_tokens;
    return r->logits_hash == v->wanted[sampled][s] && r->n_tokens == v->n_tokens &&
           memcmp(r->tokens, tokens, v->n_tokens * sizeof *tokens) == 0;
}

/* One answer by the session alone; without guesses it is what the others are held against. */
static weir_status alone(answers *v, uint32_t s, bool sampled, weir_speculate how, cli_verify_outcome *out)
{
    weir_generate_options o = options_of(v, sampled, how);
    weir_result r = {.struct_size = sizeof r};
    weir_session_reset(v->session[s]);
    weir_status status =
        weir_generate(v->session[s], v->prompt + s * v->n_prompt, v->n_prompt, &o, &r, &out->err);
    out->hash = r.logits_hash;
    out->passes = r.n_passes;
    out->drafted = r.n_drafted;
    out->accepted = r.n_accepted;
    if (status == WEIR_OK && how == WEIR_SPECULATE_OFF) {
        int32_t *tokens = v->tokens + ((size_t)sampled * N_SESSIONS + s) * v->n_tokens;
        memcpy(tokens, r.tokens, r.n_tokens * sizeof *tokens);
        v->wanted[sampled][s] = r.logits_hash;
    }
    out->same = status == WEIR_OK && holds(v, sampled, s, &r);
    weir_result_finish(v->model, &r);
    return status;
}

static void tell(answers *v, cli_verify_outcome *out)
{
    out->level = v->level;
    if (out->mem_bytes == 0) out->mem_bytes = v->mem_bytes;
    v->tell(v->arg, out);
}

/* What plain decoding gives; false after an error, which is told. */
static bool make_wanted(answers *v)
{
    for (int sampled = 0; sampled < 2; sampled++)
        for (uint32_t s = 0; s < N_SESSIONS; s++) {
            cli_verify_outcome out = {.check = "plain", .sampled = sampled != 0};
            out.status = alone(v, s, sampled != 0, WEIR_SPECULATE_OFF, &out);
            if (out.status == WEIR_OK) continue;
            tell(v, &out);
            return false;
        }
    return true;
}

static void check_guesses(answers *v, const char *name, weir_speculate how)
{
    for (int sampled = 0; sampled < 2; sampled++) {
        cli_verify_outcome out = {.check = name, .sampled = sampled != 0};
        out.status = alone(v, 0, sampled != 0, how, &out);
        out.wanted = v->wanted[sampled][0];
        tell(v, &out);
    }
}

/* The budget of the next step. */
static weir_status change_budget(answers *v, uint32_t step, cli_verify_outcome *out)
{
    uint64_t bytes = v->budgets[step % N_BUDGETS], before = out->mem_bytes;
    if (v->budgets[0] == 0 || bytes == before) return WEIR_OK;
    weir_status status = weir_model_set_budget(v->model, bytes, &out->err);
    if (status != WEIR_OK) return status;
    out->mem_bytes = bytes;
    out->grows += bytes > before;
    out->shrinks += bytes < before;
    return WEIR_OK;
}

/* Session s begins at step 2 s, and ends when its answer does: the first has the fewest tokens to go. */
static weir_status run_shared(answers *v, bool sampled, weir_answer **a, cli_verify_outcome *out)
{
    size_t n = 0;
    for (uint32_t step = 0; step < STEPS_MAX; step++) {
        weir_status status = change_budget(v, step, out);
        if (status == WEIR_OK && n < N_SESSIONS && step % 2 == 0) {
            weir_generate_options o =
                options_of(v, sampled, n == 1 ? WEIR_SPECULATE_LOOKUP : WEIR_SPECULATE_OFF);
            weir_session_reset(v->session[n]);
            status = weir_answer_begin(v->session[n], v->prompt + n * v->n_prompt, v->n_prompt, &o, &a[n],
                                       &out->err);
            n += status == WEIR_OK;
        }
        if (status == WEIR_OK) status = weir_answers_step(a, n, 0, &out->err);
        if (status != WEIR_OK) return status;
        size_t done = 0;
        while (done < n && weir_answer_done(a[done])) done++;
        if (done == N_SESSIONS) return WEIR_OK;
    }
    return WEIR_OK;
}

static void check_sessions(answers *v, const char *name)
{
    for (int sampled = 0; sampled < 2; sampled++) {
        cli_verify_outcome out = {
            .check = name, .sampled = sampled != 0, .same = true, .mem_bytes = v->mem_bytes};
        weir_answer *a[N_SESSIONS] = {0};
        out.status = run_shared(v, sampled != 0, a, &out);
        for (uint32_t s = 0; s < N_SESSIONS; s++) {
            weir_result r = {.struct_size = sizeof r};
            weir_error err;
            weir_status status = weir_answer_end(a[s], &r, &err);
            if (out.status == WEIR_OK && status != WEIR_OK) {
                out.status = status;
                out.err = err;
            }
            bool same = holds(v, sampled != 0, s, &r);
            if (s == 0 || (out.same && !same)) {
                out.hash = r.logits_hash;
                out.wanted = v->wanted[sampled][s];
            }
            out.same &= same;
            out.passes += r.n_passes;
            out.drafted += r.n_drafted;
            out.accepted += r.n_accepted;
            weir_result_finish(v->model, &r);
        }
        tell(v, &out);
    }
}

static void release(answers *v)
{
    weir_session_destroy(v->draft_session);
    v->draft_session = NULL;
    for (uint32_t s = 0; s < N_SESSIONS; s++) {
        weir_session_destroy(v->session[s]);
        v->session[s] = NULL;
    }
    weir_model_unload(v->model);
    weir_model_close(v->draft);
    v->draft = NULL;
}

/* Loads the model alone and with all that is there; gives what it goes through. */
static weir_status place_alone(answers *v, weir_error *err)
{
    static const uint8_t quarters[N_BUDGETS] = {4, 2, 0, 3, 1, 4, 0, 2};
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = v->common->load;
    o.n_sessions = o.max_batch = N_SESSIONS;
    o.prefill_chunk = CHUNK;
    o.mem_bytes = 0;
    weir_status status = weir_model_plan(v->model, &o, &plan, err);
    if (status != WEIR_OK) return status;
    uint64_t between = plan.whole_bytes > plan.smallest_bytes ? plan.whole_bytes - plan.smallest_bytes : 0;
    uint64_t least = plan.smallest_bytes + plan.smallest_bytes / 32 + (2 << 20);
    /* On a device the budget stays as it was loaded with. */
    bool on_device = plan.device_whole_bytes != 0;
    for (int i = 0; i < N_BUDGETS; i++) v->budgets[i] = on_device ? 0 : least + between / 4 * quarters[i];
    o.mem_bytes = v->mem_bytes = v->budgets[0];
    status = weir_model_load(v->model, &o, err);
    for (uint32_t s = 0; s < N_SESSIONS && status == WEIR_OK; s++)
        status = weir_session_create(v->model, &v->session[s], err);
    return status;
}

/* The draft in the smallest budget that it runs with; the model beside it in `part` of what it needs more. */
static weir_status place(answers *v, uint32_t part, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = v->common->load;
    o.n_sessions = o.max_batch = 1;
    o.prefill_chunk = CHUNK;
    weir_status status = weir_model_open(v->common->context, v->common->model, &v->draft, err);
    if (status == WEIR_OK) status = weir_model_plan(v->draft, &o, &plan, err);
    /* What the process itself holds grows a little while it runs. */
    const uint64_t slack = plan.smallest_bytes / 32 + (2 << 20);
    o.mem_bytes = plan.smallest_bytes + slack;
    if (status == WEIR_OK) status = weir_model_load(v->draft, &o, err);
    if (status == WEIR_OK) status = weir_session_create(v->draft, &v->draft_session, err);
    o.n_sessions = o.max_batch = N_SESSIONS;
    o.mem_bytes = 0;
    if (status == WEIR_OK) status = weir_model_plan(v->model, &o, &plan, err);
    if (status != WEIR_OK) return status;
    uint64_t between = plan.whole_bytes > plan.smallest_bytes ? plan.whole_bytes - plan.smallest_bytes : 0;
    o.mem_bytes = plan.smallest_bytes + between / 2 * part + slack;
    v->mem_bytes = o.mem_bytes;
    status = weir_model_load(v->model, &o, err);
    for (uint32_t s = 0; s < N_SESSIONS && status == WEIR_OK; s++)
        status = weir_session_create(v->model, &v->session[s], err);
    return status;
}

static void check_level(answers *v, uint32_t part, const char *level)
{
    cli_verify_outcome out = {.check = "plain"};
    v->level = level;
    out.status = place(v, part, &out.err);
    if (out.status != WEIR_OK) {
        tell(v, &out);
    } else if (make_wanted(v)) {
        check_guesses(v, "lookup", WEIR_SPECULATE_LOOKUP);
        check_sessions(v, "sessions");
        cli_verify_outcome attach = {.check = "draft"};
        attach.status = weir_session_set_draft(v->session[0], v->draft_session, &attach.err);
        if (attach.status == WEIR_OK) {
            check_guesses(v, "draft", WEIR_SPECULATE_DRAFT);
            check_guesses(v, "auto", WEIR_SPECULATE_AUTO);
        } else {
            tell(v, &attach);
        }
    }
    release(v);
}

/* Sessions that join and leave, one of them with guesses, while the budget shrinks and grows. */
static void check_budgets(answers *v)
{
    cli_verify_outcome out = {.check = "plain"};
    v->level = "changing";
    out.status = place_alone(v, &out.err);
    if (out.status != WEIR_OK)
        tell(v, &out);
    else if (make_wanted(v))
        check_sessions(v, "budgets");
    release(v);
}

void cli_verify_answers(const cli_common *c, weir_model *m, uint32_t n_prompt, uint32_t n_tokens, bool full,
                        cli_verify_tell told, void *arg)
{
    answers v = {
        .common = c, .model = m, .n_prompt = n_prompt, .n_tokens = n_tokens, .tell = told, .arg = arg};
    cli_verify_outcome out = {.check = "plain"};
    v.level = "half";
    v.prompt = calloc((size_t)N_SESSIONS * n_prompt, sizeof *v.prompt);
    v.tokens = calloc((size_t)2 * N_SESSIONS * n_tokens, sizeof *v.tokens);
    if (v.prompt == NULL || v.tokens == NULL) {
        out.status = out.err.code = WEIR_ERR_OUT_OF_MEMORY;
        snprintf(out.err.message, sizeof out.err.message, "no memory for the prompts");
    } else {
        out.status = make_prompts(&v, &out.err);
    }
    if (out.status != WEIR_OK) {
        tell(&v, &out);
    } else {
        check_level(&v, 1, "half");
        if (full) check_level(&v, 0, "smallest");
        if (full) check_level(&v, 2, "whole");
        check_budgets(&v);
    }
    free(v.prompt);
    free(v.tokens);
}
