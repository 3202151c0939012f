/* One step of `weir measure`, in the process that is measured: plan, load, prompts, decoding of
 * all sessions in shared passes. Every line on standard output is one JSON object for the parent, written
 * before the phase that it announces, so that a process that dies has said where. */
#include "cli_measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SESSIONS = 1024, MAX_ROUNDS = 16 };
/* Short runs are repeated until they have taken so long together: a rate of a few milliseconds tells little.
 */
#define ENOUGH_SECONDS 2.0

typedef struct step {
    cli_common common;
    uint32_t n_sessions, n_prompt, n_decode;
    weir_model *model;
    weir_session **sessions;
    int32_t *tokens;
    const char *phase;
    weir_plan plan;
    double prefill_seconds, decode_seconds, slowest_pass_seconds;
    double first_seconds; /* of the first prompts */
    uint32_t n_rounds;
} step;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tell(json_t *line)
{
    json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    fflush(stdout);
    json_decref(line);
}

static void enter(step *s, const char *phase)
{
    s->phase = phase;
    tell(json_pack("{s:s}", "phase", phase));
}

static weir_status start(step *s, weir_error *err)
{
    weir_load_options *o = &s->common.load;
    enter(s, "plan");
    s->plan = (weir_plan){.struct_size = sizeof s->plan};
    weir_status status = weir_model_plan(s->model, o, &s->plan, err);
    if (status != WEIR_OK) return status;
    tell(json_pack("{s:o}", "plan", cli_json_plan(&s->plan)));
    enter(s, "load");
    status = weir_model_load(s->model, o, err);
    if (status != WEIR_OK) return status;
    enter(s, "sessions");
    for (uint32_t i = 0; i < s->n_sessions && status == WEIR_OK; i++)
        status = weir_session_create(s->model, &s->sessions[i], err);
    return status;
}

/* Sessions begin one token further each, so that they differ. */
static weir_status prompts(step *s, weir_error *err)
{
    const float *logits; /* of the last token, as whoever answers wants them */
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < s->n_sessions; i++) weir_session_reset(s->sessions[i]);
    double from = now();
    for (uint32_t i = 0; i < s->n_sessions && status == WEIR_OK; i++)
        status = weir_session_append(s->sessions[i], s->tokens + i, s->n_prompt, &logits, err);
    s->prefill_seconds += now() - from;
    return status;
}

static weir_status answers(step *s, uint32_t n_tokens, weir_error *err)
{
    const float *logits[MAX_SESSIONS];
    int32_t next[MAX_SESSIONS];
    weir_status status = WEIR_OK;
    double from = now();
    for (uint32_t k = 0; k < n_tokens && status == WEIR_OK; k++) {
        double at = now();
        for (uint32_t i = 0; i < s->n_sessions; i++) next[i] = s->tokens[i + s->n_prompt + k];
        status = weir_step_batch(s->sessions, next, s->n_sessions, logits, err);
        if (now() - at > s->slowest_pass_seconds) s->slowest_pass_seconds = now() - at;
    }
    s->decode_seconds += now() - from;
    return status;
}

/* The first prompts touch all memory for the first time; what they take is told, but is no rate. */
static weir_status run(step *s, weir_error *err)
{
    enter(s, "first prompts");
    weir_status status = prompts(s, err);
    if (status == WEIR_OK) status = answers(s, 1, err);
    s->first_seconds = s->prefill_seconds;
    s->prefill_seconds = s->decode_seconds = s->slowest_pass_seconds = 0;
    while (status == WEIR_OK && s->n_rounds < MAX_ROUNDS &&
           (s->n_rounds == 0 || s->prefill_seconds + s->decode_seconds < ENOUGH_SECONDS)) {
        if (s->n_rounds < 2) enter(s, s->n_rounds == 0 ? "prefill" : "repeated");
        status = prompts(s, err);
        if (s->n_rounds == 0) enter(s, "decode");
        if (status == WEIR_OK) status = answers(s, s->n_decode, err);
        s->n_rounds++;
    }
    return status;
}

static void tell_rates(const step *s)
{
    double prompt = (double)s->n_sessions * s->n_prompt * s->n_rounds,
           passes = (double)s->n_decode * s->n_rounds;
    json_t *j = json_object();
    json_object_set_new(j, "rounds", json_integer(s->n_rounds));
    json_object_set_new(j, "first_prefill_seconds", cli_json_real(s->first_seconds));
    json_object_set_new(j, "prefill_tps", cli_json_real(prompt / s->prefill_seconds));
    json_object_set_new(j, "decode_tps", cli_json_real(s->n_sessions * passes / s->decode_seconds));
    json_object_set_new(j, "decode_tps_per_session", cli_json_real(passes / s->decode_seconds));
    json_object_set_new(j, "mean_pass_seconds", cli_json_real(s->decode_seconds / passes));
    json_object_set_new(j, "slowest_pass_seconds", cli_json_real(s->slowest_pass_seconds));
    tell(json_pack("{s:o}", "rates", j));
}

static int tell_error(const step *s, const weir_error *err)
{
    json_t *j = json_object();
    json_object_set_new(j, "phase", json_string(s->phase));
    json_object_set_new(j, "status", json_string(weir_status_name(err->code)));
    json_object_set_new(j, "message", cli_json_text(err->message, strlen(err->message)));
    if (err->code == WEIR_ERR_BUDGET && !s->plan.fits)
        json_object_set_new(j, "missing_bytes", cli_json_u64(s->plan.missing_bytes));
    tell(json_pack("{s:o}", "error", j));
    return CLI_FAILED;
}

static int run_step(step *s)
{
    weir_error err;
    weir_model_info info = {.struct_size = sizeof info};
    uint32_t n = s->n_prompt + s->n_decode + s->n_sessions;
    int rc = CLI_OK;
    s->sessions = calloc(s->n_sessions, sizeof *s->sessions);
    s->tokens = calloc(n, sizeof *s->tokens);
    if (s->sessions == NULL || s->tokens == NULL) return cli_fail("measure", "no memory for %u tokens", n);
    if (weir_model_get_info(s->model, &info, &err) != WEIR_OK) return tell_error(s, &err);
    for (uint32_t i = 0; i < n; i++) s->tokens[i] = (int32_t)((i * 7919ull + 13) % info.n_vocab);
    if (start(s, &err) != WEIR_OK || run(s, &err) != WEIR_OK) rc = tell_error(s, &err);
    if (rc == CLI_OK) {
        enter(s, "report");
        tell_rates(s);
        tell(json_pack("{s:o}", "memory", cli_json_memory(&s->common, s->model)));
        tell(json_pack("{s:b}", "done", 1));
        getchar(); /* the parent takes its last sample of what is still held here, then lets go */
    }
    for (uint32_t i = 0; i < s->n_sessions; i++) weir_session_destroy(s->sessions[i]);
    return rc;
}

int cli_measure_child(int argc, char **argv)
{
    step s = {.n_sessions = 1, .n_prompt = 1, .n_decode = 1, .phase = "open"};
    cli_common_init(&s.common, "measure");
    cli_args a = {.command = "measure"};
    cli_add_model(&a, &s.common);
    cli_add_mem(&a, &s.common);
    cli_add_load(&a, &s.common);
    cli_add(&a, "sessions", 0, CLI_U32, &s.n_sessions, "N", "");
    cli_add(&a, "prompt-tokens", 0, CLI_U32, &s.n_prompt, "N", "");
    cli_add(&a, "n", 'n', CLI_U32, &s.n_decode, "N", "");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (s.n_sessions < 1 || s.n_sessions > MAX_SESSIONS || s.n_prompt < 1 || s.n_decode < 1)
        return cli_usage("measure", "a step runs 1 to %d sessions, and 1 token at least", MAX_SESSIONS);
    s.common.load.n_sessions = s.common.load.max_batch = s.n_sessions;
    enter(&s, "open");
    weir_context *context;
    rc = cli_open(&s.common, &context, &s.model);
    if (rc != CLI_OK) return rc;
    rc = run_step(&s);
    free(s.sessions);
    free(s.tokens);
    weir_model_close(s.model);
    weir_context_destroy(context);
    return rc;
}
