/* weir chat: a conversation. Ctrl-C stops the answer, not the program. The key-value cache keeps what was
 * said: before each answer the whole conversation is tokenized, and only what the cache does not hold yet is
 * appended. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_MESSAGES = 1024 };

typedef struct chat {
    cli_common common;
    weir_generate_options generate;
    cli_speculate speculate;
    const char *system;
    weir_model *model;
    weir_session *session;
    weir_message messages[MAX_MESSAGES];
    size_t n_messages;
    int32_t *held; /* tokens in the cache */
    size_t n_held;
    cli_line *line; /* NULL: lines come through a pipe, and are in text */
    char *text;
    size_t text_cap;
    cli_prefill prefill;
} chat;

static const char help_text[] = "/help     this text\n"
                                "/memory   what is held where\n"
                                "/reset    forget the conversation\n"
                                "/quit     leave (Ctrl-D too)\n"
                                "Ctrl-C stops an answer; while you type it empties the line.\n";

static bool print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    if (cli_pending_interrupt() != 0) return false;
    return cli_put(stdout, text, len) && fflush(stdout) == 0;
}

static void on_prefill(void *arg, size_t done, size_t total)
{
    const chat *c = arg;
    cli_interrupt_again();
    cli_prefill_progress(&c->prefill, done, total);
}

static bool say(chat *c, const char *role, const char *text)
{
    weir_message *m = &c->messages[c->n_messages];
    m->role = role;
    m->content = strdup(text);
    if (m->content != NULL) c->n_messages++;
    return m->content != NULL;
}

static void unsay(chat *c)
{
    free((void *)(uintptr_t)c->messages[--c->n_messages].content);
}

static void forget(chat *c)
{
    while (c->n_messages > 0) unsay(c);
    if (c->system != NULL) say(c, "system", c->system);
    weir_session_reset(c->session);
    c->n_held = 0;
}

/* Without memory for the list it is forgotten, and the next answer begins with an empty cache. */
static void hold(chat *c, const int32_t *tokens, size_t n)
{
    if (n == 0) return;
    int32_t *bigger = realloc(c->held, (c->n_held + n) * sizeof *bigger);
    if (bigger == NULL) {
        weir_session_reset(c->session);
        c->n_held = 0;
        return;
    }
    c->held = bigger;
    memcpy(c->held + c->n_held, tokens, n * sizeof *tokens);
    c->n_held += n;
}

/* Cuts the cache back to what it shares with the tokens of the conversation; gives how many that are. */
static size_t keep_common(chat *c, const int32_t *ids, size_t n)
{
    size_t common = 0;
    while (common < c->n_held && common + 1 < n && c->held[common] == ids[common]) common++;
    weir_error err;
    if (common < weir_session_position(c->session) &&
        weir_session_truncate(c->session, (uint32_t)common, &err) != WEIR_OK) {
        weir_session_reset(c->session);
        common = 0;
    }
    c->n_held = common;
    return common;
}

/* Takes the answer into the conversation, as far as it came. */
static int keep_answer(chat *c, const int32_t *ids, size_t n, const weir_result *r)
{
    hold(c, ids, n);
    hold(c, r->tokens, r->n_tokens);
    size_t position = weir_session_position(c->session);
    if (position < c->n_held) c->n_held = position;
    if (!say(c, "assistant", r->text)) return cli_fail("chat", "no memory for the conversation");
    if (r->stop == WEIR_STOP_LENGTH) fprintf(stderr, "[broken off at the length given by -n]\n");
    if (r->stop == WEIR_STOP_CONTEXT)
        fprintf(stderr, "[the context is full: /reset, or start with a larger --ctx]\n");
    if (r->stop == WEIR_STOP_CALLER || r->stop == WEIR_STOP_CANCELLED) {
        if (cli_pending_interrupt() == 0) return CLI_FAILED; /* the reader is gone */
        fprintf(stderr, "[stopped]\n");
    }
    return CLI_OK;
}

static int answer(chat *c)
{
    weir_error err;
    int32_t *ids;
    size_t n;
    weir_result result = {.struct_size = sizeof result};
    if (weir_chat_tokens(c->model, c->messages, 0, c->n_messages, &ids, &n, &err) != WEIR_OK) {
        unsay(c);
        return cli_error("chat", &err);
    }
    size_t common = keep_common(c, ids, n);
    int rc = cli_check_interrupt("chat");
    if (rc != CLI_OK) {
        weir_free(c->model, ids);
        unsay(c);
        return rc;
    }
    cli_prefill_begin(&c->prefill, &c->common, n - common);
    weir_status status = weir_generate(c->session, ids + common, n - common, &c->generate, &result, &err);
    cli_progress_end();
    putchar('\n');
    fflush(stdout);
    if (status == WEIR_OK) {
        rc = keep_answer(c, ids + common, n - common, &result);
    } else {
        rc = cli_error("chat", &err);
        if (err.code == WEIR_ERR_CONTEXT_FULL)
            fprintf(stderr, "The conversation is full: /reset, or start with a larger --ctx.\n");
        weir_session_reset(c->session);
        c->n_held = 0;
        unsay(c);
    }
    weir_result_finish(c->model, &result);
    weir_free(c->model, ids);
    return rc;
}

/* One question, with Ctrl-C caught. A program at the end of a pipe is to be ended by it, not only its answer.
 */
static int ask(chat *c, const char *question)
{
    if (c->n_messages + 2 > MAX_MESSAGES) {
        fprintf(stderr, "the conversation is too long; /reset begins a new one\n");
        return CLI_FAILED;
    }
    if (!say(c, "user", question)) return cli_fail("chat", "no memory for the conversation");
    cli_catch_interrupt(c->model, c->line == NULL);
    int rc = answer(c);
    int sig = cli_take_interrupt();
    if (c->line != NULL) {
        cli_catch_interrupt(NULL, false);
        return rc > CLI_INTERRUPTED ? CLI_OK : rc;
    }
    cli_release_interrupt();
    return sig != 0 ? CLI_INTERRUPTED + sig : rc;
}

/* Handles one line; false ends the program. *rc keeps the first failure. */
static bool handle(chat *c, const char *line, int *rc)
{
    int now = CLI_OK;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/help") == 0) {
        printf("%s", help_text);
    } else if (strcmp(line, "/memory") == 0) {
        cli_print_memory(stdout, &c->common, c->model);
    } else if (strcmp(line, "/reset") == 0) {
        forget(c);
        printf("forgotten\n");
    } else if (line[0] == '/') {
        printf("there is no %s; /help lists what there is\n", line);
    } else if (line[strspn(line, " \t")] != 0) {
        now = ask(c, line);
    }
    /* On a terminal a failed answer was seen and talked over; a script learns of it at the end. */
    if (*rc == CLI_OK && c->line == NULL) *rc = now;
    return now < CLI_INTERRUPTED && fflush(stdout) == 0;
}

static void make_folders(char *path)
{
    for (char *p = path + 1; *p != 0; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
}

/* Where the XDG base directory specification wants what a program keeps between its runs. */
static void history_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (state != NULL && state[0] == '/')
        n = snprintf(path, size, "%s/weir_history", state);
    else if (home != NULL && home[0] == '/')
        n = snprintf(path, size, "%s/.local/state/weir_history", home);
    if (n <= 0 || (size_t)n >= size) path[0] = 0;
    if (path[0] != 0) make_folders(path);
}

/* The next line, valid until the next call; NULL at the end. */
static const char *next_line(chat *c)
{
    const char *line = NULL;
    cli_idle *idle = cli_idle_begin(c->model, c->speculate.model);
    if (c->line != NULL) {
        line = cli_line_read(c->line);
    } else if (getline(&c->text, &c->text_cap, stdin) >= 0) {
        c->text[strcspn(c->text, "\r\n")] = 0;
        line = c->text;
    }
    cli_idle_end(idle);
    return line;
}

static int talk(chat *c)
{
    int rc = CLI_OK;
    if (c->line != NULL) {
        printf("Ask something; /help lists commands.\n");
        fflush(stdout);
        cli_catch_interrupt(NULL, false);
    }
    for (const char *line; (line = next_line(c)) != NULL;)
        if (!handle(c, line, &rc)) return rc;
    if (c->line != NULL) putchar('\n');
    return rc;
}

/* A model without a chat template is refused before its weights are read. */
static int check_template(chat *c)
{
    weir_error err;
    weir_message messages[2] = {{"user", "hello"}};
    int32_t *ids;
    size_t n;
    if (c->system != NULL) {
        messages[1] = messages[0];
        messages[0] = (weir_message){"system", c->system};
    }
    if (weir_chat_tokens(c->model, messages, 0, c->system != NULL ? 2 : 1, &ids, &n, &err) != WEIR_OK)
        return cli_error("chat", &err);
    weir_free(c->model, ids);
    return CLI_OK;
}

static int converse(chat *c)
{
    weir_error err;
    int rc = check_template(c);
    if (rc == CLI_OK) {
        cli_catch_interrupt(c->model, true);
        rc = cli_speculate_load(&c->common, c->model, &c->speculate);
        if (rc == CLI_OK) rc = cli_load(&c->common, c->model);
        cli_release_interrupt();
    }
    if (rc != CLI_OK) return rc;
    if (weir_session_create(c->model, &c->session, &err) != WEIR_OK) return cli_error("chat", &err);
    rc = cli_speculate_attach(&c->common, &c->speculate, c->session);
    if (rc != CLI_OK) goto done;
    char path[1024] = "";
    if (cli_is_terminal(stdin) && cli_is_terminal(stdout)) {
        history_path(path, sizeof path);
        c->line = cli_line_create(path);
    }
    forget(c);
    rc = talk(c);
    cli_line_destroy(c->line);
    while (c->n_messages > 0) unsay(c);
    free(c->held);
    free(c->text);
done:
    weir_session_destroy(c->session);
    return rc;
}

int cli_chat(int argc, char **argv)
{
    static chat c; /* large: the message table */
    cli_common_init(&c.common, "chat");
    weir_generate_options_init(&c.generate);
    cli_sampling_init(&c.generate.sampling);
    c.generate.max_tokens = 1024;
    cli_args a = {.command = "chat",
                  .summary = "Talks with a model, on a terminal or line by line through a pipe."};
    cli_add_model(&a, &c.common);
    cli_add(&a, "system", 0, CLI_TEXT, &c.system, "TEXT", "a system message");
    cli_add(&a, "n", 'n', CLI_U32, &c.generate.max_tokens, "N", "most tokens of an answer (default 1024)");
    cli_add_mem(&a, &c.common);
    cli_add_load(&a, &c.common);
    cli_add_sampling(&a, &c.generate.sampling, CLI_SEED_CLOCK);
    cli_add_speculate(&a, &c.speculate);
    cli_add_report(&a, &c.common);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    rc = cli_check_sampling("chat", &c.generate.sampling);
    if (rc == CLI_OK) rc = cli_speculate_check("chat", &c.speculate, &c.generate);
    if (rc != CLI_OK) return rc;
    c.generate.on_text = print_text;
    c.generate.on_prefill = on_prefill;
    c.generate.arg = &c;
    weir_context *context;
    rc = cli_open(&c.common, &context, &c.model);
    if (rc != CLI_OK) return rc;
    rc = converse(&c);
    if (rc == CLI_OK && c.common.profile) cli_print_profile(stderr, c.model);
    if (rc == CLI_OK && !c.common.quiet) cli_print_memory(stderr, &c.common, c.model);
    cli_speculate_close(&c.speculate);
    weir_model_close(c.model);
    weir_context_destroy(context);
    return rc;
}
