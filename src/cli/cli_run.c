/* weir run: one prompt, one answer. The text streams to standard output; the memory report goes to standard
 * error. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct run_options {
    cli_common common;
    weir_generate_options generate;
    const char *prompt, *system;
    bool raw, ignore_end;
} run_options;

static bool print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    cli_progress_end();
    return fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0;
}

static void print_prefill(void *arg, size_t done, size_t total)
{
    (void)arg;
    if (cli_is_terminal(stderr) && total > 512) {
        fprintf(stderr, "\rreading the prompt: %zu of %zu tokens\033[K", done, total);
        if (done == total) fprintf(stderr, "\r\033[K");
    }
}

static weir_status encode(weir_model *m, const run_options *o, const char *text, int32_t **ids, size_t *n,
                          weir_error *err)
{
    if (o->raw)
        return weir_tokenize(m, text, strlen(text), weir_model_adds_bos(m) ? WEIR_TOKENIZE_BOS : 0, ids, n,
                             err);
    weir_message messages[2];
    size_t count = 0;
    if (o->system != NULL) messages[count++] = (weir_message){"system", o->system};
    messages[count++] = (weir_message){"user", text};
    return weir_chat_tokens(m, messages, 0, count, ids, n, err);
}

static const char *stop_name(weir_stop stop)
{
    static const char *const names[] = {"end", "length", "context", "caller", "cancelled"};
    return names[stop];
}

static int print_json(const run_options *o, const weir_model *m, const weir_result *r)
{
    json_t *tokens = json_array();
    for (size_t i = 0; i < r->n_tokens; i++) json_array_append_new(tokens, json_integer(r->tokens[i]));
    json_t *j = json_object();
    json_object_set_new(j, "text", cli_json_text(r->text, r->text_len));
    json_object_set_new(j, "tokens", tokens);
    json_object_set_new(j, "prompt_tokens", json_integer((json_int_t)r->n_prompt_tokens));
    json_object_set_new(j, "stop", json_string(stop_name(r->stop)));
    json_object_set_new(j, "logits_hash", cli_json_hash(r->logits_hash));
    json_object_set_new(j, "seed", json_integer((json_int_t)o->generate.sampling.seed));
    json_object_set_new(j, "memory", cli_json_memory(m));
    double decode_tps =
        r->decode_seconds > 0 && r->n_tokens > 1 ? (double)(r->n_tokens - 1) / r->decode_seconds : 0;
    double prefill_tps = r->prefill_seconds > 0 ? (double)r->n_prompt_tokens / r->prefill_seconds : 0;
    json_object_set_new(j, "timings",
                        json_pack("{s:f,s:f,s:f,s:f,s:f}", "prefill_seconds", r->prefill_seconds,
                                  "decode_seconds", r->decode_seconds, "first_token_seconds",
                                  r->first_token_seconds, "prefill_tps", prefill_tps, "decode_tps",
                                  decode_tps));
    /* R1.3: what was turned on although it changes numbers. */
    json_object_set_new(j, "applied", json_object());
    if (o->common.load.kv_type == WEIR_KV_F32)
        json_object_set_new(json_object_get(j, "applied"), "kv_type", json_string("f32"));
    if (o->common.profile) json_object_set_new(j, "profile", cli_json_profile(m));
    return cli_json_print(j);
}

static void print_report(const run_options *o, const weir_model *m, const weir_result *r)
{
    if (o->common.quiet) return;
    fprintf(stderr, "\n%zu prompt tokens in %.2f s, %zu tokens in %.2f s", r->n_prompt_tokens,
            r->prefill_seconds, r->n_tokens, r->decode_seconds);
    if (r->n_tokens > 1 && r->decode_seconds > 0)
        fprintf(stderr, " (%.1f per second)", (double)(r->n_tokens - 1) / r->decode_seconds);
    fprintf(stderr, "; stopped by %s; logits %016llx\n", stop_name(r->stop),
            (unsigned long long)r->logits_hash);
    cli_print_memory(stderr, m, true);
    if (o->common.profile) cli_print_profile(stderr, m);
}

static int answer(run_options *o, weir_model *m, const char *text)
{
    weir_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    weir_session *session = NULL;
    weir_result result = {.struct_size = sizeof result};
    int rc = CLI_FAILED;
    weir_status status = encode(m, o, text, &ids, &n, &err);
    if (status == WEIR_OK && n == 0) status = weir_tokenize(m, "", 0, WEIR_TOKENIZE_BOS, &ids, &n, &err);
    if (status == WEIR_OK && n == 0) {
        fprintf(stderr,
                "weir run: the prompt is empty, and this model has no token to begin with; give -p TEXT\n");
        return CLI_FAILED;
    }
    if (status == WEIR_OK) status = weir_session_create(m, &session, &err);
    if (status == WEIR_OK) {
        o->generate.on_text = o->common.json ? NULL : print_text;
        o->generate.on_prefill = o->common.quiet || o->common.json ? NULL : print_prefill;
        o->generate.ignore_end = o->ignore_end;
        cli_catch_interrupt(m);
        status = weir_generate(session, ids, n, &o->generate, &result, &err);
        cli_release_interrupt();
    }
    if (status != WEIR_OK) {
        if (!o->common.json) putchar('\n');
        fflush(stdout);
        cli_error("run", &err);
    } else if (o->common.json) {
        rc = print_json(o, m, &result);
    } else {
        putchar('\n');
        fflush(stdout);
        print_report(o, m, &result);
        rc = CLI_OK;
    }
    if (status == WEIR_OK && result.stop == WEIR_STOP_CANCELLED)
        rc = 130; /* as shells report an interrupted program */
    weir_result_finish(m, &result);
    weir_session_destroy(session);
    weir_free(m, ids);
    return rc;
}

int cli_run(int argc, char **argv)
{
    run_options o = {.prompt = NULL};
    cli_common_init(&o.common);
    weir_generate_options_init(&o.generate);
    o.generate.max_tokens = 256;
    o.generate.sampling.seed = (uint64_t)time(NULL);
    cli_args a = {.command = "run", .summary = "Answers one prompt."};
    cli_add_model(&a, &o.common);
    cli_add(&a, "prompt", 'p', CLI_TEXT, &o.prompt, "TEXT", "the prompt; - reads standard input");
    cli_add(&a, "system", 0, CLI_TEXT, &o.system, "TEXT", "a system message before it");
    cli_add(&a, "raw", 0, CLI_FLAG, &o.raw, NULL, "no chat template: continue the text");
    cli_add(&a, "n", 'n', CLI_U32, &o.generate.max_tokens, "N", "most tokens to generate (default 256)");
    cli_add(&a, "ignore-end", 0, CLI_FLAG, &o.ignore_end, NULL, "go on past the end token");
    cli_add_load(&a, &o.common);
    cli_add_sampling(&a, &o.generate.sampling);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (o.prompt == NULL) {
        fprintf(stderr, "weir run: no prompt is given; use -p TEXT, or -p - for standard input\n");
        return CLI_USAGE;
    }
    char *text = cli_read_text("run", o.prompt);
    if (text == NULL) return CLI_FAILED;
    weir_context *context;
    weir_model *model;
    rc = cli_open(&o.common, &context, &model);
    if (rc == CLI_OK) {
        o.common.quiet |= o.common.json;
        rc = cli_load(&o.common, model);
        if (rc == CLI_OK) rc = answer(&o, model, text);
        weir_model_close(model);
        weir_context_destroy(context);
    }
    free(text);
    return rc;
}
