/* Inside the command line: what its commands share. Programs see only the public headers. */
#ifndef WEIR_CLI_H
#define WEIR_CLI_H

#include "weir/weir.h"

#include <jansson.h>
#include <stdio.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* ---- options: one table per command ---- */
typedef enum cli_kind {
    CLI_FLAG,
    CLI_TEXT,
    CLI_SIZE,
    CLI_U32,
    CLI_U64,
    CLI_F32,
    CLI_SIZES,
    CLI_SETTING,
    CLI_KV_TYPE
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    cli_kind kind;
    void *dest;
    const char *arg; /* what help calls the value; NULL for flags */
    const char *help;
} cli_option;

enum { CLI_MAX_LIST = 32 };
typedef struct cli_sizes {
    uint64_t bytes[CLI_MAX_LIST];
    uint32_t n;
} cli_sizes;
typedef struct cli_settings {
    const char *item[CLI_MAX_LIST]; /* "name=value" */
    uint32_t n;
} cli_settings;

enum { CLI_MAX_OPTIONS = 48 };
typedef struct cli_args {
    const char *command, *summary, *operand; /* operand: "FILE", or NULL where none is taken */
    cli_option options[CLI_MAX_OPTIONS];
    uint32_t n_options;
    const char *value; /* the operand given */
    bool help;
} cli_args;

void cli_add(cli_args *a, const char *name, char letter, cli_kind kind, void *dest, const char *arg,
             const char *help);
/* Parses argv behind the command. CLI_OK, or CLI_USAGE with the reason printed; --help prints help and sets
 * a->help. */
int cli_parse(cli_args *a, int argc, char **argv);

/* ---- what most commands take ---- */
typedef struct cli_common {
    const char *model;
    weir_load_options load;
    cli_settings settings;
    bool json, profile, quiet, verbose;
} cli_common;
void cli_common_init(cli_common *c);
void cli_add_model(cli_args *a, cli_common *c); /* -m, --set, --json, --verbose */
void cli_add_load(cli_args *a, cli_common *c); /* --mem --ctx --threads --chunk --kv-type --profile --quiet */
typedef struct cli_sampling {
    weir_sampling s;
    bool seed_given;
} cli_sampling;
void cli_add_sampling(cli_args *a, weir_sampling *s);

/* Opens a context with the common settings, and the model. On failure prints the error and returns
 * CLI_FAILED. */
int cli_open(cli_common *c, weir_context **context, weir_model **model);
int cli_context(cli_common *c, weir_context **context);
int cli_load(cli_common *c, weir_model *model);
/* Prints "weir COMMAND: message" to standard error; returns CLI_FAILED. */
int cli_error(const char *command, const weir_error *err);

/* ---- output ---- */
void cli_progress(void *arg, uint64_t done,
                  uint64_t total); /* a bar on a terminal, silence in a pipe; arg: label */
void cli_progress_end(void);
bool cli_is_terminal(FILE *f);
void cli_print_memory(FILE *f, const weir_model *m, bool verbose);
void cli_print_profile(FILE *f, const weir_model *m);
json_t *cli_json_memory(const weir_model *m);
json_t *cli_json_profile(const weir_model *m);
json_t *cli_json_hash(uint64_t hash);
/* Valid UTF-8 goes as it is, other bytes as U+FFFD. */
json_t *cli_json_text(const char *text, size_t len);
int cli_json_print(json_t *root); /* prints with a newline and releases */

/* Text of -p: itself, or standard input for "-". Freed by free(). NULL: printed. */
char *cli_read_text(const char *command, const char *text);

/* While this is on, Ctrl-C cancels the model instead of ending the program. */
void cli_catch_interrupt(weir_model *m);
void cli_release_interrupt(void);

/* ---- commands ---- */
int cli_run(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_synth(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_doctor(int argc, char **argv);

#endif
