/* What most commands do alike: options, opening, loading, failing. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void cli_common_init(cli_common *c, const char *command)
{
    *c = (cli_common){.command = command};
    weir_load_options_init(&c->load);
}

void cli_add_model(cli_args *a, cli_common *c)
{
    cli_add(a, "model", 'm', CLI_TEXT, &c->model, "FILE", "the model: .gguf, .safetensors, or a folder");
    cli_add(a, "set", 0, CLI_SETTING, &c->settings, "NAME=VALUE", "a setting (weir doctor lists them)");
    cli_add(a, "verbose", 0, CLI_FLAG, &c->verbose, NULL, "log to standard error");
}

void cli_add_json(cli_args *a, cli_common *c)
{
    cli_add(a, "json", 0, CLI_FLAG, &c->json, NULL, "one JSON document on standard output");
}

void cli_add_mem(cli_args *a, cli_common *c)
{
    cli_add(a, "mem", 0, CLI_SIZE, &c->load.mem_bytes, "SIZE",
            "hard budget for the whole process, such as 64MiB; default: what is free");
}

void cli_add_cpus(cli_args *a, cli_common *c)
{
    cli_add(a, "cpus", 0, CLI_TEXT, &c->cpus, "LIST",
            "processors to compute on, such as 0,2-3; threads are bound to them");
}

void cli_add_device(cli_args *a, cli_common *c)
{
    cli_add(a, "device", 0, CLI_TEXT, &c->device, "NAME",
            "what computes: cpu (default), sim (a simulated device), or opencl:N (see weir doctor)");
}

void cli_add_kv_cache(cli_args *a, cli_common *c)
{
    cli_add(a, "kv-cache", 0, CLI_TEXT, &c->kv_cache, "HOW",
            "its memory: full (default: the whole context), dynamic (grows in steps), static (doubles)");
}

void cli_add_load(cli_args *a, cli_common *c)
{
    cli_add(a, "ctx", 0, CLI_U32, &c->load.ctx_tokens, "N",
            "context in tokens; default: the model's, 4096 at most, less where the budget is short");
    cli_add(a, "threads", 0, CLI_U32, &c->load.n_threads, "N",
            "threads; 0 (default): as many as processors that Weir may use");
    cli_add_cpus(a, c);
    cli_add(a, "chunk", 0, CLI_U32, &c->load.prefill_chunk, "N",
            "tokens per prefill pass; default: chosen from the budget");
    cli_add(a, "kv-type", 0, CLI_KV_TYPE, &c->load.kv_type, "TYPE", "key-value cache: f16 (default) or f32");
    cli_add_kv_cache(a, c);
    cli_add_device(a, c);
    cli_add(a, "weights", 0, CLI_WEIGHTS, &c->load.weights, "HOW",
            "weights that stay: read, map (shared with other processes), or auto (default)");
}

void cli_add_report(cli_args *a, cli_common *c)
{
    cli_add(a, "profile", 0, CLI_FLAG, &c->profile, NULL, "time, bytes and waits per phase");
    cli_add(a, "quiet", 0, CLI_FLAG, &c->quiet, NULL, "no memory report, no progress");
}

void cli_add_sampling(cli_args *a, weir_sampling *s, const char *seed)
{
    cli_add(a, "temp", 0, CLI_F32, &s->temperature, "X", "temperature; 0 (default): the most likely token");
    cli_add(a, "top-k", 0, CLI_U32, &s->top_k, "N", "sample from the N most likely; 0 (default): off");
    cli_add(a, "top-p", 0, CLI_F32, &s->top_p, "X",
            "sample from the smallest set of probability X; 1 (default): off");
    cli_add(a, "min-p", 0, CLI_F32, &s->min_p, "X",
            "drop what is less likely than X times the best; 0 (default): off");
    cli_add(a, "repeat-penalty", 0, CLI_F32, &s->repeat_penalty, "X",
            "make recent tokens less likely; 1 (default): off");
    cli_add(a, "repeat-last", 0, CLI_U32, &s->repeat_last, "N", "how many tokens are recent (default 64)");
    cli_add(a, "seed", 0, CLI_U64, &s->seed, "N", seed);
}

void cli_sampling_init(weir_sampling *s)
{
    struct timespec t = {0};
    weir_sampling_init(s);
    clock_gettime(CLOCK_REALTIME, &t);
    s->seed = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int cli_check_sampling(const char *command, const weir_sampling *s)
{
    if (!(s->temperature >= 0 && s->temperature <= 1000))
        return cli_usage(command, "--temp may be 0 to 1000");
    if (!(s->top_p > 0 && s->top_p <= 1)) return cli_usage(command, "--top-p may be above 0, to 1");
    if (!(s->min_p >= 0 && s->min_p <= 1)) return cli_usage(command, "--min-p may be 0 to 1");
    if (!(s->repeat_penalty >= 0.01F && s->repeat_penalty <= 100))
        return cli_usage(command, "--repeat-penalty may be 0.01 to 100");
    return CLI_OK;
}

/* "weir COMMAND: message". Messages quote names out of files, so they are cleaned. */
static void print_message(const char *command, const char *message)
{
    char line[2 * WEIR_ERROR_MESSAGE_BYTES];
    cli_progress_end();
    fprintf(stderr, "weir%s%s: %s\n", command[0] ? " " : "", command,
            cli_line_text(message, line, sizeof line));
}

int cli_error(const char *command, const weir_error *err)
{
    int sig = cli_pending_interrupt();
    if (err->code == WEIR_ERR_CANCELLED && sig != 0) {
        print_message(command, "interrupted");
        return CLI_INTERRUPTED + sig;
    }
    print_message(command, err->message);
    return err->code == WEIR_ERR_INVALID_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

int cli_check_interrupt(const char *command)
{
    const weir_error err = {.code = WEIR_ERR_CANCELLED};
    return cli_pending_interrupt() != 0 ? cli_error(command, &err) : CLI_OK;
}

int cli_usage(const char *command, const char *format, ...)
{
    char message[WEIR_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    print_message(command, message);
    return CLI_USAGE;
}

int cli_fail(const char *command, const char *format, ...)
{
    char message[WEIR_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    print_message(command, message);
    return CLI_FAILED;
}

static void print_log(void *arg, weir_log_level level, const char *line)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    const cli_common *c = arg;
    if (!c->verbose && level < WEIR_LOG_WARN) return;
    char text[2 * WEIR_ERROR_MESSAGE_BYTES];
    cli_progress_end();
    fprintf(stderr, "weir: %s: %s\n", names[level], cli_line_text(line, text, sizeof text));
}

int cli_context(cli_common *c, weir_context **context)
{
    weir_error err;
    weir_context_options o;
    weir_context_options_init(&o);
    o.log = print_log;
    o.log_arg = c;
    o.settings_file = getenv("WEIR_SETTINGS");
    if (weir_context_create(&o, context, &err) != WEIR_OK) return cli_error(c->command, &err);
    for (uint32_t i = 0; i < c->settings.n; i++) {
        char name[128];
        const char *equals = strchr(c->settings.item[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - c->settings.item[i]), c->settings.item[i]);
        if (weir_context_set(*context, name, equals + 1, &err) != WEIR_OK) {
            int rc = cli_error(c->command, &err);
            weir_context_destroy(*context);
            return rc;
        }
    }
    const struct {
        const char *name, *value;
    } options[] = {
        {"compute.cpus", c->cpus}, {"compute.device", c->device}, {"compute.kv_cache", c->kv_cache}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (options[i].value == NULL ||
            weir_context_set(*context, options[i].name, options[i].value, &err) == WEIR_OK)
            continue;
        int rc = cli_error(c->command, &err);
        weir_context_destroy(*context);
        return rc;
    }
    c->context = *context;
    return CLI_OK;
}

static int open_model(cli_common *c, bool text_only, weir_context **context, weir_model **model)
{
    weir_error err;
    if (c->model == NULL) return cli_usage(c->command, "no model is given; use -m FILE");
    int rc = cli_context(c, context);
    if (rc != CLI_OK) return rc;
    weir_status status = text_only ? weir_model_open_text(*context, c->model, model, &err)
                                   : weir_model_open(*context, c->model, model, &err);
    if (status == WEIR_OK) return CLI_OK;
    rc = cli_error(c->command, &err);
    weir_context_destroy(*context);
    return rc;
}

int cli_open(cli_common *c, weir_context **context, weir_model **model)
{
    return open_model(c, false, context, model);
}

int cli_open_text(cli_common *c, weir_context **context, weir_model **model)
{
    return open_model(c, true, context, model);
}

static void on_load(void *arg, uint64_t done, uint64_t total)
{
    cli_interrupt_again();
    if (arg != NULL) cli_progress(arg, done, total);
}

int cli_load_as(const cli_common *c, weir_model *model, const weir_load_options *options, const char *label)
{
    weir_error err;
    weir_load_options o = *options;
    o.progress = on_load;
    o.progress_arg = c->quiet ? NULL : (void *)(uintptr_t)label;
    int rc = cli_check_interrupt(c->command);
    if (rc != CLI_OK) return rc;
    weir_status status = weir_model_load(model, &o, &err);
    cli_progress_end();
    return status == WEIR_OK ? cli_check_interrupt(c->command) : cli_error(c->command, &err);
}

int cli_load(cli_common *c, weir_model *model)
{
    c->load.profile = c->profile;
    cli_announce_speed(c, model);
    return cli_load_as(c, model, &c->load, "loading");
}

char *cli_read_input(const char *command, size_t *len)
{
    enum { MAX_BYTES = 64 << 20 };
    size_t n = 0, cap = 1 << 16;
    char *buf = malloc(cap + 1);
    while (buf != NULL) {
        n += fread(buf + n, 1, cap - n, stdin);
        if (n < cap) break;
        if (cap >= MAX_BYTES) {
            cli_fail(command, "standard input is longer than 64 MiB");
            free(buf);
            return NULL;
        }
        char *bigger = realloc(buf, 2 * cap + 1);
        if (bigger == NULL) free(buf);
        buf = bigger;
        cap *= 2;
    }
    if (buf == NULL) {
        cli_fail(command, "no memory for standard input");
        return NULL;
    }
    if (ferror(stdin)) {
        cli_fail(command, "standard input cannot be read: %s", strerror(errno));
        free(buf);
        return NULL;
    }
    buf[n] = 0;
    *len = n;
    return buf;
}

char *cli_read_text(const char *command, const char *text, size_t *len)
{
    if (strcmp(text, "-") == 0) {
        char *input = cli_read_input(command, len);
        if (input != NULL && *len > 0 && input[*len - 1] == '\n') input[--*len] = 0;
        return input;
    }
    char *copy = strdup(text);
    if (copy == NULL) cli_fail(command, "no memory for the prompt");
    *len = strlen(text);
    return copy;
}
