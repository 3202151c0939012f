/* weir chat: a conversation. Ctrl-C stops the answer, not the program. The key-value cache keeps what was
 * said: before each answer the whole conversation is tokenized, and only what the cache does not hold yet is
 * appended. */
#include "cli.h"

#include <editline/readline.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_MESSAGES = 512 };

typedef struct chat {
    cli_common common;
    weir_generate_options generate;
    const char *system;
    weir_model *model;
    weir_session *session;
    weir_message messages[MAX_MESSAGES];
    size_t n_messages;
    int32_t *held; /* tokens in the cache */
    size_t n_held;
    bool interactive;
} chat;

static const char help_text[] = "/help     this text\n"
                                "/memory   what is held where\n"
                                "/reset    forget the conversation\n"
                                "/quit     leave (Ctrl-D too)\n"
                                "Ctrl-C stops an answer.\n";

static bool print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    return fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0;
}

static void forget(chat *c)
{
    for (size_t i = 0; i < c->n_messages; i++) free((void *)(uintptr_t)c->messages[i].content);
    c->n_messages = 0;
    if (c->system != NULL) c->messages[c->n_messages++] = (weir_message){"system", strdup(c->system)};
    weir_session_reset(c->session);
    c->n_held = 0;
}

static bool hold(chat *c, const int32_t *tokens, size_t n)
{
    int32_t *bigger = realloc(c->held, (c->n_held + n + 1) * sizeof *bigger);
    if (bigger == NULL) return false;
    c->held = bigger;
    memcpy(c->held + c->n_held, tokens, n * sizeof *tokens);
    c->n_held += n;
    return true;
}

/* Cuts the cache back to what it shares with the tokens of the conversation; gives how many that are. */
static size_t keep_common(chat *c, const int32_t *ids, size_t n)
{
    size_t common = 0;
    while (common < c->n_held && common < n - 1 && c->held[common] == ids[common]) common++;
    weir_error err;
    if (common < c->n_held && weir_session_truncate(c->session, (uint32_t)common, &err) != WEIR_OK) {
        weir_session_reset(c->session);
        common = 0;
    }
    c->n_held = common;
    return common;
}

static int answer(chat *c)
{
    weir_error err;
    int32_t *ids;
    size_t n;
    weir_result result = {.struct_size = sizeof result};
    if (weir_chat_tokens(c->model, c->messages, 0, c->n_messages, &ids, &n, &err) != WEIR_OK)
        return cli_error("chat", &err);
    size_t common = keep_common(c, ids, n);
    cli_catch_interrupt(c->model);
    weir_status status = weir_generate(c->session, ids + common, n - common, &c->generate, &result, &err);
    signal(SIGINT, SIG_IGN);
    putchar('\n');
    int rc = CLI_OK;
    if (status != WEIR_OK) {
        rc = cli_error("chat", &err);
        if (err.code == WEIR_ERR_CONTEXT_FULL)
            fprintf(stderr, "The conversation is full: /reset, or start with a larger --ctx.\n");
        weir_session_reset(c->session);
        c->n_held = 0;
        free((void *)(uintptr_t)c->messages[--c->n_messages].content);
    } else {
        /* The cache holds the prompt and all sampled tokens but the last, as far as the session says. */
        hold(c, ids + common, n - common);
        hold(c, result.tokens, result.n_tokens);
        size_t position = weir_session_position(c->session);
        if (position < c->n_held) c->n_held = position;
        c->messages[c->n_messages++] = (weir_message){"assistant", strdup(result.text)};
        if (result.stop == WEIR_STOP_CANCELLED) fprintf(stderr, "[stopped]\n");
        if (result.stop == WEIR_STOP_CONTEXT)
            fprintf(stderr, "[the context is full: /reset, or start with a larger --ctx]\n");
    }
    weir_result_finish(c->model, &result);
    weir_free(c->model, ids);
    return rc;
}

/* Handles one line; false ends the program. */
static bool handle(chat *c, const char *line, int *rc)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/help") == 0) {
        printf("%s", help_text);
    } else if (strcmp(line, "/memory") == 0) {
        cli_print_memory(stdout, c->model, true);
    } else if (strcmp(line, "/reset") == 0) {
        forget(c);
        printf("forgotten\n");
    } else if (line[0] == '/') {
        printf("there is no %s; /help lists what there is\n", line);
    } else if (line[0] != 0) {
        if (c->n_messages + 2 > MAX_MESSAGES) {
            printf("the conversation is too long; /reset begins a new one\n");
            return true;
        }
        c->messages[c->n_messages++] = (weir_message){"user", strdup(line)};
        *rc = answer(c);
    }
    return true;
}

static void history_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    path[0] = 0;
    if (state == NULL && home == NULL) return;
    if (state != NULL)
        snprintf(path, size, "%s", state);
    else
        snprintf(path, size, "%s/.local/state", home);
    size_t len = strlen(path);
    for (char *p = path + 1; p < path + len; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
    mkdir(path, 0700);
    strncat(path, "/weir_history", size - strlen(path) - 1);
}

static int talk(chat *c)
{
    char path[1024];
    int rc = CLI_OK;
    history_path(path, sizeof path);
    if (c->interactive) {
        rl_initialize();
        using_history();
        if (path[0]) read_history(path);
        printf("Ask something; /help lists commands.\n");
    }
    signal(SIGINT, SIG_IGN);
    for (bool go_on = true; go_on;) {
        char *line = NULL;
        size_t cap = 0;
        if (c->interactive) {
            line = readline("> ");
            if (line != NULL && line[0] != 0) add_history(line);
        } else {
            ssize_t len = getline(&line, &cap, stdin);
            if (len < 0) {
                free(line);
                line = NULL;
            } else if (len > 0 && line[len - 1] == '\n') {
                line[len - 1] = 0;
            }
        }
        if (line == NULL) break;
        go_on = handle(c, line, &rc);
        free(line);
    }
    if (c->interactive && path[0]) write_history(path);
    return rc;
}

int cli_chat(int argc, char **argv)
{
    static chat c; /* large: the message table */
    cli_common_init(&c.common);
    weir_generate_options_init(&c.generate);
    c.generate.max_tokens = 1024;
    cli_args a = {.command = "chat", .summary = "Talks with a model."};
    cli_add_model(&a, &c.common);
    cli_add(&a, "system", 0, CLI_TEXT, &c.system, "TEXT", "a system message");
    cli_add(&a, "n", 'n', CLI_U32, &c.generate.max_tokens, "N", "most tokens of an answer (default 1024)");
    cli_add_load(&a, &c.common);
    cli_add_sampling(&a, &c.generate.sampling);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    c.interactive = cli_is_terminal(stdin) && cli_is_terminal(stdout);
    c.generate.on_text = print_text;
    weir_context *context;
    rc = cli_open(&c.common, &context, &c.model);
    if (rc != CLI_OK) return rc;
    weir_error err;
    weir_message probe = {"user", "hello"};
    int32_t *ids;
    size_t n;
    if (weir_chat_tokens(c.model, &probe, 0, 1, &ids, &n, &err) != WEIR_OK) {
        rc = cli_error("chat", &err);
    } else {
        weir_free(c.model, ids);
        rc = cli_load(&c.common, c.model);
        if (rc == CLI_OK && weir_session_create(c.model, &c.session, &err) != WEIR_OK)
            rc = cli_error("chat", &err);
        if (rc == CLI_OK) {
            forget(&c);
            rc = talk(&c);
            for (size_t i = 0; i < c.n_messages; i++) free((void *)(uintptr_t)c.messages[i].content);
            free(c.held);
        }
        weir_session_destroy(c.session);
    }
    weir_model_close(c.model);
    weir_context_destroy(context);
    return rc;
}
