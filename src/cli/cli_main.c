/* The program `weir`: finds the command and hands it its arguments. */
#include "cli.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"run", cli_run, "answer one prompt"},
    {"chat", cli_chat, "talk with a model"},
    {"inspect", cli_inspect, "show what a model file holds"},
    {"plan", cli_plan, "say what a budget would hold, before anything is loaded"},
    {"measure", cli_measure, "run more and more sessions and hold them against the plan"},
    {"verify", cli_verify, "prove that budgets, threads, chunks and batches give the same bits"},
    {"bench", cli_bench, "measure prefill and decoding per budget, against their limit"},
    {"pack", cli_pack, "write a model in the kernels' own layout, for faster streaming"},
    {"synth", cli_synth, "write a model with random weights, of any size"},
    {"tokenize", cli_tokenize, "text on standard input, token ids on standard output"},
    {"runtime", cli_runtime, "load a model and show what of it stays, streams and lies in RAM"},
    {"doctor", cli_doctor, "show the machine, its limits and the settings"},
};

static void print_help(FILE *f)
{
    fprintf(f, "Weir runs language models in less memory than they need, with the same bits.\n\n"
               "usage: weir COMMAND [options]      weir help COMMAND\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\nSizes carry their unit: 64MiB, 2GB. Every command takes --help; those that report take\n"
               "--json. weir --version gives the version. The manual page weir(1) tells all.\n");
}

/* A report that did not reach its reader is no success: a full disk, a closed pipe. */
static int finish(int rc)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    fprintf(stderr, "weir: standard output could not be written%s%s\n", errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    return rc == CLI_OK ? CLI_FAILED : rc;
}

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

/* Insertions, removals and exchanges of a letter that make b of a; words beyond 31 letters count as far off.
 */
static size_t distance(const char *a, const char *b)
{
    enum { LONGEST = 31 };
    size_t n = strlen(b), row[LONGEST + 1];
    if (strlen(a) > LONGEST || n > LONGEST) return LONGEST;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static int no_command(const char *name)
{
    const command *nearest = &commands[0];
    for (size_t i = 1; i < sizeof commands / sizeof *commands; i++)
        if (distance(name, commands[i].name) < distance(name, nearest->name)) nearest = &commands[i];
    if (distance(name, nearest->name) <= 2)
        return cli_usage("", "there is no command '%s'; did you mean '%s'?", name, nearest->name);
    return cli_usage("", "there is no command '%s'; see weir --help", name);
}

static int help(const char *name)
{
    char word[] = "--help", *arguments[] = {word, NULL};
    if (name == NULL) {
        print_help(stdout);
        return CLI_OK;
    }
    const command *c = find_command(name);
    return c != NULL ? c->run(1, arguments) : no_command(name);
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over ulimit -f is a write that fails */
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        return finish(help(argc > 2 ? argv[2] : NULL));
    }
    if (strcmp(name, "--version") == 0) {
        printf("weir %s\n", WEIR_VERSION);
        return finish(CLI_OK);
    }
    const command *c = find_command(name);
    return c != NULL ? finish(c->run(argc - 2, argv + 2)) : no_command(name);
}
