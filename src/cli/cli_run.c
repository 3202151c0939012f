/* weir run: one prompt, one answer. The text streams to standard output; the memory report goes to standard
 * error. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct run_options {
    cli_common common;
    weir_generate_options generate;
    cli_speculate speculate;
    const char *prompt, *system;
    bool raw, ignore_end;
    bool printed; /* some of the answer has gone out */
    cli_prefill prefill;
} run_options;

/* An interrupt between two calls cancels neither; it is seen here. */
static bool print_text(void *arg, const char *text, size_t len)
{
    run_options *o = arg;
    if (cli_pending_interrupt() != 0) return false;
    if (o->common.json) return true;
    cli_progress_end();
    o->printed = true;
    return cli_put(stdout, text, len) && fflush(stdout) == 0;
}

static void on_prefill(void *arg, size_t done, size_t total)
{
    const run_options *o = arg;
    cli_interrupt_again();
    cli_prefill_progress(&o->prefill, done, total);
}

int cli_prompt_tokens(const char *command, weir_model *m, const cli_prompt *p, int32_t **ids, size_t *n)
{
    weir_error err;
    weir_status status;
    if (p->raw) {
        int flags = weir_model_adds_bos(m) ? WEIR_TOKENIZE_BOS : 0;
        status = weir_tokenize(m, p->text, p->len, flags, ids, n, &err);
        /* Nothing to continue is continued from the token that begins a text. */
        if (status == WEIR_OK && *n == 0) {
            weir_free(m, *ids);
            *ids = NULL;
            status = weir_tokenize(m, "", 0, WEIR_TOKENIZE_BOS, ids, n, &err);
        }
    } else {
        if (strlen(p->text) != p->len)
            return cli_fail(command, "the prompt holds a NUL byte at offset %zu; only --raw takes those",
                            strlen(p->text));
        weir_message messages[2];
        size_t count = 0;
        if (p->system != NULL) messages[count++] = (weir_message){"system", p->system};
        messages[count++] = (weir_message){"user", p->text};
        status = weir_chat_tokens(m, messages, 0, count, ids, n, &err);
    }
    if (status != WEIR_OK) return cli_error(command, &err);
    if (*n == 0)
        return cli_fail(command,
                        "the prompt is empty, and this model has no token to begin with; give -p TEXT");
    return CLI_OK;
}

/* What was written when the reader went away or an interrupt came is an answer that was broken off. */
static weir_stop stop_of(const weir_result *r)
{
    return r->stop == WEIR_STOP_CALLER && cli_pending_interrupt() != 0 ? WEIR_STOP_CANCELLED : r->stop;
}

static int print_json(const run_options *o, const weir_model *m, const weir_result *r)
{
    static const char *const stop_names[] = {"end", "length", "context", "caller", "cancelled"};
    json_t *tokens = json_array();
    for (size_t i = 0; i < r->n_tokens; i++) json_array_append_new(tokens, json_integer(r->tokens[i]));
    json_t *j = json_object();
    json_object_set_new(j, "text", cli_json_text(r->text, r->text_len));
    json_object_set_new(j, "tokens", tokens);
    json_object_set_new(j, "prompt_tokens", json_integer((json_int_t)r->n_prompt_tokens));
    json_object_set_new(j, "stop", json_string(stop_names[stop_of(r)]));
    json_object_set_new(j, "logits_hash", cli_json_hash(r->logits_hash));
    json_object_set_new(j, "seed", cli_json_u64(o->generate.sampling.seed));
    json_object_set_new(j, "speculation", cli_json_speculation(&o->generate, r));
    json_object_set_new(j, "memory", cli_json_memory(&o->common, m));
    double decode_tps =
        r->decode_seconds > 0 && r->n_tokens > 1 ? (double)(r->n_tokens - 1) / r->decode_seconds : 0;
    double prefill_tps = r->prefill_seconds > 0 ? (double)r->n_prompt_tokens / r->prefill_seconds : 0;
    json_object_set_new(j, "timings",
                        json_pack("{s:f,s:f,s:f,s:f,s:f}", "prefill_seconds", r->prefill_seconds,
                                  "decode_seconds", r->decode_seconds, "first_token_seconds",
                                  r->first_token_seconds, "prefill_tps", prefill_tps, "decode_tps",
                                  decode_tps));
    json_object_set_new(j, "applied", cli_json_applied(&o->common));
    if (o->common.profile) json_object_set_new(j, "profile", cli_json_profile(m));
    return cli_json_print(j);
}

static void print_report(const run_options *o, const weir_model *m, const weir_result *r)
{
    static const char *const stop_texts[] = {"the answer is complete", "broken off at the length given by -n",
                                             "broken off: the context is full",
                                             "broken off: the output was closed", "broken off: cancelled"};
    if (stop_of(r) == WEIR_STOP_CANCELLED) fprintf(stderr, "[cancelled: this answer is not complete]\n");
    if (stop_of(r) == WEIR_STOP_CONTEXT)
        fprintf(stderr, "[the context is full: this answer is not complete; a larger --ctx gives it room]\n");
    if (o->common.quiet) return;
    fprintf(stderr, "\n%zu prompt tokens in %.2f s, %zu tokens in %.2f s", r->n_prompt_tokens,
            r->prefill_seconds, r->n_tokens, r->decode_seconds);
    if (r->n_tokens > 1 && r->decode_seconds > 0)
        fprintf(stderr, " (%.1f per second)", (double)(r->n_tokens - 1) / r->decode_seconds);
    fprintf(stderr, "; %s; logits %016llx", stop_texts[stop_of(r)], (unsigned long long)r->logits_hash);
    if (o->generate.sampling.temperature > 0)
        fprintf(stderr, "; seed %llu", (unsigned long long)o->generate.sampling.seed);
    if (r->n_drafted > 0)
        fprintf(stderr, "; %llu passes, %llu of %llu guesses were right", (unsigned long long)r->n_passes,
                (unsigned long long)r->n_accepted, (unsigned long long)r->n_drafted);
    const char *caches = cli_kv_cache(&o->common);
    if (o->common.load.kv_type == WEIR_KV_F32) fprintf(stderr, "; applied: kv-type f32");
    if (strcmp(caches, "full") != 0) fprintf(stderr, "; applied: kv-cache %s", caches);
    fputc('\n', stderr);
    cli_print_memory(stderr, &o->common, m);
    if (o->common.profile) cli_print_profile(stderr, m);
}

static int finish_answer(const run_options *o, const weir_model *m, const weir_result *r)
{
    int rc = CLI_OK;
    if (o->common.json) {
        rc = print_json(o, m, r);
    } else {
        putchar('\n');
        fflush(stdout);
        print_report(o, m, r);
    }
    if (stop_of(r) == WEIR_STOP_CANCELLED) {
        int sig = cli_pending_interrupt();
        return sig != 0 ? CLI_INTERRUPTED + sig : CLI_FAILED;
    }
    return r->stop == WEIR_STOP_CALLER ? CLI_FAILED : rc;
}

static int answer(run_options *o, weir_model *m, const char *text, size_t len)
{
    weir_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    weir_session *session = NULL;
    weir_result result = {.struct_size = sizeof result};
    const cli_prompt prompt = {.text = text, .len = len, .system = o->system, .raw = o->raw};
    int rc = cli_prompt_tokens("run", m, &prompt, &ids, &n);
    if (rc != CLI_OK) goto done;
    if (weir_session_create(m, &session, &err) != WEIR_OK) {
        rc = cli_error("run", &err);
        goto done;
    }
    rc = cli_speculate_attach(&o->common, &o->speculate, session);
    if (rc != CLI_OK) goto done;
    rc = cli_check_interrupt("run");
    if (rc != CLI_OK) goto done;
    o->generate.on_text = print_text;
    o->generate.on_prefill = on_prefill;
    o->generate.arg = o;
    o->generate.ignore_end = o->ignore_end;
    cli_prefill_begin(&o->prefill, &o->common, n);
    weir_status status = weir_generate(session, ids, n, &o->generate, &result, &err);
    cli_progress_end();
    if (status == WEIR_OK) {
        rc = finish_answer(o, m, &result);
    } else {
        /* What was printed already must not look like an answer. */
        if (o->printed) putchar('\n');
        fflush(stdout);
        rc = cli_error("run", &err);
    }
    weir_result_finish(m, &result);

done:
    weir_session_destroy(session);
    weir_free(m, ids);
    return rc;
}

static int parse(run_options *o, int argc, char **argv, bool *help)
{
    cli_common_init(&o->common, "run");
    weir_generate_options_init(&o->generate);
    cli_sampling_init(&o->generate.sampling);
    o->generate.max_tokens = 256;
    cli_args a = {.command = "run", .summary = "Answers one prompt."};
    cli_add_model(&a, &o->common);
    cli_add(&a, "prompt", 'p', CLI_TEXT, &o->prompt, "TEXT", "the prompt; - reads standard input");
    cli_add(&a, "system", 0, CLI_TEXT, &o->system, "TEXT", "a system message before it");
    cli_add(&a, "raw", 0, CLI_FLAG, &o->raw, NULL, "no chat template: continue the text");
    cli_add(&a, "n", 'n', CLI_U32, &o->generate.max_tokens, "N", "most tokens to generate (default 256)");
    cli_add(&a, "ignore-end", 0, CLI_FLAG, &o->ignore_end, NULL, "go on past the end token");
    cli_add_mem(&a, &o->common);
    cli_add_load(&a, &o->common);
    cli_add_sampling(&a, &o->generate.sampling, CLI_SEED_CLOCK);
    cli_add_speculate(&a, &o->speculate);
    cli_add_json(&a, &o->common);
    cli_add_report(&a, &o->common);
    int rc = cli_parse(&a, argc, argv);
    *help = a.help;
    if (rc != CLI_OK || a.help) return rc;
    if (o->prompt == NULL)
        return cli_usage("run", "no prompt is given; use -p TEXT, or -p - for standard input");
    if (o->raw && o->system != NULL)
        return cli_usage("run", "--system needs a chat template; --raw uses none");
    o->common.quiet |= o->common.json;
    rc = cli_speculate_check("run", &o->speculate, &o->generate);
    if (rc != CLI_OK) return rc;
    return cli_check_sampling("run", &o->generate.sampling);
}

int cli_run(int argc, char **argv)
{
    run_options o = {.prompt = NULL};
    bool help;
    int rc = parse(&o, argc, argv, &help);
    if (rc != CLI_OK || help) return rc;
    size_t len = 0;
    char *text = cli_read_text("run", o.prompt, &len);
    if (text == NULL) return CLI_FAILED;
    weir_context *context;
    weir_model *model;
    rc = cli_open(&o.common, &context, &model);
    if (rc == CLI_OK) {
        cli_catch_interrupt(model, true);
        rc = cli_speculate_load(&o.common, model, &o.speculate);
        if (rc == CLI_OK) rc = cli_load(&o.common, model);
        if (rc == CLI_OK) rc = answer(&o, model, text, len);
        cli_release_interrupt();
        cli_speculate_close(&o.speculate);
        weir_model_close(model);
        weir_context_destroy(context);
    }
    free(text);
    return rc;
}
