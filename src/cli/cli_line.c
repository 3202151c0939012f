/* The line editor of chat: libedit with a history file. In its own file, since its header and its habits are
 * nobody else's matter. */
#include "cli.h"

#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000 };

struct cli_line {
    EditLine *el;
    History *history;
    char *path; /* of the history; NULL: none is kept */
    char *text; /* the line given last */
};

static char *prompt(EditLine *el)
{
    static char text[] = "> ";
    (void)el;
    return text;
}

static bool set_up(cli_line *l)
{
    HistEvent event;
    l->el = el_init("weir", stdin, stdout, stderr);
    l->history = history_init();
    if (l->el == NULL || l->history == NULL) return false;
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    if (l->path != NULL) history(l->history, &event, H_LOAD, l->path);
    el_set(l->el, EL_PROMPT, prompt);
    el_set(l->el, EL_HIST, history, l->history);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 1);
    /* Ctrl-C at the prompt: away with the line, as a shell does. */
    el_set(l->el, EL_BIND, "^C", "em-kill-line", NULL);
    return true;
}

cli_line *cli_line_create(const char *path)
{
    cli_line *l = calloc(1, sizeof *l);
    if (l == NULL) return NULL;
    if (path[0] != 0) l->path = strdup(path);
    if (set_up(l)) return l;
    cli_line_destroy(l);
    return NULL;
}

void cli_line_destroy(cli_line *l)
{
    if (l == NULL) return;
    if (l->el != NULL) el_end(l->el);
    if (l->history != NULL) history_end(l->history);
    free(l->path);
    free(l->text);
    free(l);
}

/* After every line, so that a program that is killed loses none. */
static void remember(cli_line *l)
{
    HistEvent event;
    history(l->history, &event, H_ENTER, l->text);
    if (l->path == NULL) return;
    mode_t mask = umask(077);
    history(l->history, &event, H_SAVE, l->path);
    umask(mask);
}

/* While a line is edited Ctrl-C is a key, not a signal; while an answer is written it is a signal. libedit
 * takes over what it finds set when it begins. */
static const char *edit(cli_line *l, int *n)
{
    struct termios before, during;
    bool known = tcgetattr(STDIN_FILENO, &before) == 0;
    if (known) {
        during = before;
        during.c_cc[VINTR] = _POSIX_VDISABLE;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &during);
    }
    const char *line = el_gets(l->el, n);
    if (known) tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    return line;
}

const char *cli_line_read(cli_line *l)
{
    int n = 0;
    const char *line;
    /* An interrupt sent from elsewhere ends the line, not the program. */
    do {
        cli_take_interrupt();
        line = edit(l, &n);
    } while (line == NULL && cli_take_interrupt() != 0);
    if (line == NULL || n <= 0) return NULL;
    free(l->text);
    l->text = strdup(line);
    if (l->text == NULL) return NULL;
    l->text[strcspn(l->text, "\r\n")] = 0;
    if (l->text[0] != 0) remember(l);
    return l->text;
}
