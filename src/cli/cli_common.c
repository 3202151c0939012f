/* What most commands do alike: options, opening, loading, interruption. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

void cli_common_init(cli_common *c)
{
    *c = (cli_common){0};
    weir_load_options_init(&c->load);
}

void cli_add_model(cli_args *a, cli_common *c)
{
    if (a->operand == NULL)
        cli_add(a, "model", 'm', CLI_TEXT, &c->model, "FILE", "the model: .gguf, .safetensors, or a folder");
    cli_add(a, "set", 0, CLI_SETTING, &c->settings, "NAME=VALUE", "a setting (weir doctor lists them)");
    cli_add(a, "json", 0, CLI_FLAG, &c->json, NULL, "one JSON document on standard output");
    cli_add(a, "verbose", 0, CLI_FLAG, &c->verbose, NULL, "log to standard error");
}

void cli_add_load(cli_args *a, cli_common *c)
{
    cli_add(a, "mem", 0, CLI_SIZE, &c->load.mem_bytes, "SIZE",
            "hard budget for the whole process, such as 64MiB; default: what is free");
    cli_add(a, "ctx", 0, CLI_U32, &c->load.ctx_tokens, "N",
            "context in tokens; default: the model's, 4096 at most");
    cli_add(a, "threads", 0, CLI_U32, &c->load.n_threads, "N", "threads; default: all CPUs");
    cli_add(a, "chunk", 0, CLI_U32, &c->load.prefill_chunk, "N",
            "tokens per prefill pass; default: chosen from the budget");
    cli_add(a, "kv-type", 0, CLI_KV_TYPE, &c->load.kv_type, "TYPE", "key-value cache: f16 (default) or f32");
    cli_add(a, "profile", 0, CLI_FLAG, &c->profile, NULL, "time, bytes and waits per phase");
    cli_add(a, "quiet", 0, CLI_FLAG, &c->quiet, NULL, "no memory report, no progress");
}

void cli_add_sampling(cli_args *a, weir_sampling *s)
{
    cli_add(a, "temp", 0, CLI_F32, &s->temperature, "X", "temperature; 0 (default): the most likely token");
    cli_add(a, "top-k", 0, CLI_U32, &s->top_k, "N", "sample from the N most likely; 0: off");
    cli_add(a, "top-p", 0, CLI_F32, &s->top_p, "X", "sample from the smallest set of probability X; 1: off");
    cli_add(a, "min-p", 0, CLI_F32, &s->min_p, "X", "drop what is less likely than X times the best; 0: off");
    cli_add(a, "repeat-penalty", 0, CLI_F32, &s->repeat_penalty, "X",
            "make recent tokens less likely; 1: off");
    cli_add(a, "seed", 0, CLI_U64, &s->seed, "N", "seed of the random numbers");
}

int cli_error(const char *command, const weir_error *err)
{
    cli_progress_end();
    fprintf(stderr, "weir %s: %s\n", command, err->message);
    return CLI_FAILED;
}

static void print_log(void *arg, weir_log_level level, const char *line)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    const cli_common *c = arg;
    if (c->verbose || level >= WEIR_LOG_WARN) {
        cli_progress_end();
        fprintf(stderr, "weir: %s: %s\n", names[level], line);
    }
}

int cli_context(cli_common *c, weir_context **context)
{
    weir_error err;
    weir_context_options o;
    weir_context_options_init(&o);
    o.log = print_log;
    o.log_arg = c;
    o.settings_file = getenv("WEIR_SETTINGS");
    if (weir_context_create(&o, context, &err) != WEIR_OK) return cli_error("settings", &err);
    for (uint32_t i = 0; i < c->settings.n; i++) {
        char name[128];
        const char *equals = strchr(c->settings.item[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - c->settings.item[i]), c->settings.item[i]);
        if (weir_context_set(*context, name, equals + 1, &err) != WEIR_OK) {
            cli_error("--set", &err);
            weir_context_destroy(*context);
            return CLI_USAGE;
        }
    }
    return CLI_OK;
}

int cli_open(cli_common *c, weir_context **context, weir_model **model)
{
    weir_error err;
    if (c->model == NULL) {
        fprintf(stderr, "weir: no model is given; use -m FILE\n");
        return CLI_USAGE;
    }
    int rc = cli_context(c, context);
    if (rc != CLI_OK) return rc;
    if (weir_model_open(*context, c->model, model, &err) == WEIR_OK) return CLI_OK;
    cli_error("open", &err);
    weir_context_destroy(*context);
    return CLI_FAILED;
}

int cli_load(cli_common *c, weir_model *model)
{
    weir_error err;
    c->load.profile = c->profile;
    c->load.progress = c->quiet ? NULL : cli_progress;
    c->load.progress_arg = (void *)"loading";
    weir_status status = weir_model_load(model, &c->load, &err);
    cli_progress_end();
    return status == WEIR_OK ? CLI_OK : cli_error("load", &err);
}

char *cli_read_text(const char *command, const char *text)
{
    enum { MAX_BYTES = 64 << 20 };
    if (strcmp(text, "-") != 0) return strdup(text);
    size_t len = 0, cap = 1 << 16;
    char *buf = malloc(cap + 1);
    while (buf != NULL) {
        len += fread(buf + len, 1, cap - len, stdin);
        if (len < cap) break;
        char *bigger = cap < MAX_BYTES ? realloc(buf, 2 * cap + 1) : NULL;
        if (bigger == NULL) {
            fprintf(stderr, "weir %s: standard input is longer than 64 MiB\n", command);
            free(buf);
            return NULL;
        }
        buf = bigger;
        cap *= 2;
    }
    if (buf != NULL) buf[len] = 0;
    return buf;
}

/* The one mutable global of the program: a signal handler has no argument. */
static weir_model *volatile interrupted_model;

static void on_interrupt(int sig)
{
    (void)sig;
    if (interrupted_model != NULL) weir_model_cancel(interrupted_model);
}

void cli_catch_interrupt(weir_model *m)
{
    interrupted_model = m;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
}

void cli_release_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
    interrupted_model = NULL;
}
