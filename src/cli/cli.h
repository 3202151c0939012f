/* Inside the command line: what its commands share. Programs see only the public headers.
 *
 *   cli_main.c     finds the command          cli_run.c      run
 *   cli_args.c     options, help              cli_chat.c     chat      cli_line.c  its line editor
 *   cli_common.c   opening, loading, errors   cli_inspect.c  inspect
 *   cli_interrupt.c  Ctrl-C                   cli_verify.c   verify
 *   cli_output.c   reports for people         cli_bench.c    bench
 *   cli_storage.c  what storage delivers      cli_pack.c     pack
 *   cli_speculate.c  guesses                cli_bench_sessions.c, cli_bench_speculate.c  its other kinds
 *   cli_json.c     reports for scripts        cli_tools.c    synth, tokenize, doctor
 *   cli_plan.c     plan                       cli_plan_table.c  its table over budgets
 *   cli_formula.c  plan --formula             cli_measure*.c  measure
 *   cli_runtime.c  runtime                    cli_memory.c   doctor's memory check
 *   cli_idle.c     memory while chat waits
 *
 * Standard output carries the answer, or with --json one document; all else goes to standard error. After an
 * error with --json standard output stays empty: the message stands on standard error, as without it.
 */
#ifndef WEIR_CLI_H
#define WEIR_CLI_H

#include "weir/weir.h"

#include <jansson.h>
#include <stdio.h>

/* Exit statuses. Interrupted programs end with 128 + signal, as shells report them. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 128 };

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
    CLI_KV_TYPE,
    CLI_WEIGHTS
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    cli_kind kind;
    void *dest;
    const char *arg; /* what help calls the value; NULL for flags */
    const char *help;
    bool given; /* set by cli_parse */
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
    const char *output;                      /* a second one behind it: "OUT", or NULL */
    cli_option options[CLI_MAX_OPTIONS];
    uint32_t n_options;
    const char *value; /* the operand given */
    const char *output_value;
    bool help;
} cli_args;

void cli_add(cli_args *a, const char *name, char letter, cli_kind kind, void *dest, const char *arg,
             const char *help);
/* Parses argv behind the command. CLI_OK, or CLI_USAGE with the reason printed; --help prints help and sets
 * a->help. */
int cli_parse(cli_args *a, int argc, char **argv);
/* Whether an option stood there, be it with its default. */
bool cli_given(const cli_args *a, const char *name);

/* ---- what most commands take ---- */
typedef struct cli_common {
    const char *command;
    const char *model;
    const char *cpus;   /* NULL: as set */
    const char *device; /* likewise */
    const char *kv_cache;
    weir_load_options load;
    cli_settings settings;
    bool json, profile, quiet, verbose;
    weir_context *context; /* set by cli_context */
    double pass_seconds;   /* set by cli_announce_speed: a pass over what streams; 0: none, or not known */
    uint32_t pass_rows;    /* and how many tokens of a prompt it takes */
} cli_common;
void cli_common_init(cli_common *c, const char *command);
void cli_add_model(cli_args *a, cli_common *c); /* --model (or the operand) --set --verbose */
void cli_add_json(cli_args *a, cli_common *c);
void cli_add_mem(cli_args *a, cli_common *c);
void cli_add_cpus(cli_args *a, cli_common *c);
void cli_add_device(cli_args *a, cli_common *c);
void cli_add_load(cli_args *a, cli_common *c); /* --ctx --threads --cpus --chunk --kv-type ... */
void cli_add_kv_cache(cli_args *a, cli_common *c);
void cli_add_report(cli_args *a, cli_common *c); /* --profile --quiet */
/* seed: what its help says. */
void cli_add_sampling(cli_args *a, weir_sampling *s, const char *seed);
#define CLI_SEED_CLOCK "seed of the random numbers; default: the clock"
/* Greedy, with a seed of the moment. */
void cli_sampling_init(weir_sampling *s);
/* CLI_USAGE, with the reason printed, for values that no sampler takes. */
int cli_check_sampling(const char *command, const weir_sampling *s);

/* Guesses (cli_speculate.c). The draft model is loaded before the one that it guesses for, within --mem. */
typedef struct cli_speculate {
    const char *mode, *draft;
    uint32_t tokens;
    uint64_t draft_mem_bytes;
    weir_model *model; /* NULL: none */
    weir_session *session;
} cli_speculate;
void cli_add_speculate(cli_args *a, cli_speculate *s); /* --speculate and the next */
void cli_add_guesses(cli_args *a, cli_speculate *s);   /* --speculate-tokens --draft --draft-mem */
/* CLI_USAGE, with the reason printed; else sets the options. */
int cli_speculate_check(const char *command, const cli_speculate *s, weir_generate_options *o);
/* m: the model that it guesses for, not loaded yet. */
int cli_speculate_load(cli_common *c, weir_model *m, cli_speculate *s);
int cli_speculate_attach(const cli_common *c, const cli_speculate *s, weir_session *session);
void cli_speculate_close(cli_speculate *s);
const char *cli_speculate_name(weir_speculate mode);
json_t *cli_json_speculation(const weir_generate_options *o, const weir_result *r);

/* Opens a context with the common settings, and the model. On failure prints the error and gives the exit
 * status. */
int cli_open(cli_common *c, weir_context **context, weir_model **model);
/* The same for a file of which only the tokenizer is wanted. */
int cli_open_text(cli_common *c, weir_context **context, weir_model **model);
int cli_context(cli_common *c, weir_context **context);
/* Says what is worth knowing of the speed, and loads with progress. Exit status, with the reason printed; an
 * interrupt that came before, meanwhile or just now is one. */
int cli_load(cli_common *c, weir_model *model);
/* Only loads, with other options; label: of the progress. */
int cli_load_as(const cli_common *c, weir_model *model, const weir_load_options *options, const char *label);

/* Prints "weir COMMAND: message" to standard error; gives the exit status: interrupted for CANCELLED while an
 * interrupt is pending, usage for INVALID_ARGUMENT, else failed. */
int cli_error(const char *command, const weir_error *err);
/* The same for what the command line itself finds wrong; gives CLI_USAGE. */
__attribute__((format(printf, 2, 3))) int cli_usage(const char *command, const char *format, ...);
/* The same for its own failures; gives CLI_FAILED. */
__attribute__((format(printf, 2, 3))) int cli_fail(const char *command, const char *format, ...);

/* Text of -p, or standard input for "-" (less one newline at its end). Freed by free(). NULL: the reason is
 * printed. */
char *cli_read_text(const char *command, const char *text, size_t *len);
/* A prompt's tokens: by the chat template, or raw. Freed by weir_free. Exit status, with the reason printed.
 */
typedef struct cli_prompt {
    const char *text;
    size_t len;
    const char *system; /* a message before it; NULL: none */
    bool raw;           /* as it is */
} cli_prompt;
int cli_prompt_tokens(const char *command, weir_model *m, const cli_prompt *p, int32_t **ids, size_t *n);
/* All of standard input, NULs included, with a NUL behind. Freed by free(). NULL: the reason is printed. */
char *cli_read_input(const char *command, size_t *len);

/* ---- interruption ---- */
/* From here on SIGINT cancels what runs on the model (NULL: it is only noted). `once`: so does SIGTERM, and a
 * second signal ends the program as usual. */
void cli_catch_interrupt(weir_model *m, bool once);
/* Another model, or none, before this one is closed. Gives the one that it was. */
weir_model *cli_interrupt_model(weir_model *m);
/* A call forgets the cancel that came before it. For what is called back from within one: it comes again. */
void cli_interrupt_again(void);
/* Between two calls: "interrupted" printed and the exit status where a signal has come, else CLI_OK. */
int cli_check_interrupt(const char *command);
/* The signal that came since, or 0. Clears it. */
int cli_take_interrupt(void);
int cli_pending_interrupt(void);
void cli_release_interrupt(void);
/* For what asks between its pieces whether to stop: true once a signal came. */
bool cli_stop(void *arg);

/* ---- reports for people ---- */
void cli_progress(void *arg, uint64_t done,
                  uint64_t total); /* a bar on a terminal, silence in a pipe; arg: label */
void cli_progress_end(void);
/* A prompt that is read, on a terminal: how far, and what is left of the time where that is long. */
typedef struct cli_prefill {
    bool shown;
    double start, seconds; /* seconds: guessed beforehand; 0: not known */
} cli_prefill;
/* Behind the load, before n tokens are read. cli_progress_end ends it. */
void cli_prefill_begin(cli_prefill *p, const cli_common *c, size_t n);
void cli_prefill_progress(const cli_prefill *p, size_t done, size_t total);
bool cli_is_terminal(FILE *f);
/* Text from files or models: on a terminal control characters other than newline and tab are left out, so
 * that no file can drive it. False when it could not be written. */
bool cli_put(FILE *f, const char *text, size_t len);
/* The same for one line, on every kind of output: control characters become blanks. buf holds size bytes. */
const char *cli_line_text(const char *text, char *buf, size_t size);
void cli_print_memory(FILE *f, const cli_common *c, const weir_model *m);
/* Before a load that a person waits for: has the storage measured where much streams and nothing is known of
 * it, and says how slow decoding will be where that is worth knowing. */
void cli_announce_speed(cli_common *c, weir_model *model);
void cli_print_memory_check(const weir_memory_check *k);
void cli_print_storage(FILE *f, const char *path, const weir_storage *s);
void cli_print_profile(FILE *f, const weir_model *m);

/* ---- reports for scripts ---- */
json_t *cli_json_memory(const cli_common *c, const weir_model *m);
json_t *cli_json_profile(const weir_model *m);
json_t *cli_json_plan(const weir_plan *p); /* the bill, by account */
/* False where a plan's part on a device is more than limit and reserve leave: a run tries all the same. */
bool cli_fits_device(const weir_plan *p);
json_t *cli_json_prediction(const weir_prediction *p);
json_t *cli_json_storage(const weir_storage *s);
json_t *cli_json_memory_check(const weir_memory_check *k);
/* How caches come by their memory (setting compute.kv_cache). */
const char *cli_kv_cache(const cli_common *c);
/* R1.3: what was turned on although it may change numbers, or how much memory is touched. */
json_t *cli_json_applied(const cli_common *c);
json_t *cli_json_hash(uint64_t hash);
/* Beyond JSON's integers (2^63 - 1): a string. */
json_t *cli_json_u64(uint64_t value);
/* Sets each number of a table in an object. */
typedef struct cli_number {
    const char *name;
    uint64_t value;
} cli_number;
void cli_json_numbers(json_t *object, const cli_number *numbers, size_t n);
/* Infinite and undefined values: null. */
json_t *cli_json_real(double value);
/* Valid UTF-8 goes as it is, other bytes as U+FFFD. */
json_t *cli_json_text(const char *text, size_t len);
int cli_json_print(json_t *root); /* prints with a newline and releases */

/* R10.1, from the plan's accounts. */
typedef struct cli_room {
    uint64_t free_bytes;    /* of the budget and the reserve, beside what the process itself holds */
    uint64_t working_bytes; /* caches, activations, scratch, reading */
    uint64_t reserve_bytes; /* left to others; only without --mem */
} cli_room;
void cli_room_read(const cli_common *c, const weir_memory_report *r, cli_room *out);

/* ---- the line editor of chat ---- */
typedef struct cli_line cli_line;
/* history: a file, or "" for none. NULL: the terminal cannot be used. */
cli_line *cli_line_create(const char *history);
void cli_line_destroy(cli_line *l);
/* One line without its newline, valid until the next call; NULL at the end of input. Ctrl-C empties the
 * line. */
const char *cli_line_read(cli_line *l);

/* ---- while chat waits ---- */
typedef struct cli_idle cli_idle;
/* From here to the end the models follow what memory there is; nobody else may use them. NULL where no thread
 * can be had: then they follow with the next answer. draft: NULL where there is none. */
cli_idle *cli_idle_begin(weir_model *model, weir_model *draft);
void cli_idle_end(cli_idle *idle); /* takes NULL */

/* ---- commands ---- */
int cli_run(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_pack(int argc, char **argv);
int cli_synth(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_plan(int argc, char **argv);
/* What fits on this machine, over budgets and contexts: weir plan without any of them. */
int cli_plan_table(cli_common *c, weir_model *model, bool rates);
/* weir plan --formula, which has options of its own. */
bool cli_wants_formula(int argc, char **argv);
int cli_formula(int argc, char **argv);
int cli_measure(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_runtime(int argc, char **argv);

#endif
