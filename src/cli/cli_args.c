/* Options: a table per command, so that parsing, help and their errors are the same everywhere. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void cli_add(cli_args *a, const char *name, char letter, cli_kind kind, void *dest, const char *arg,
             const char *help)
{
    if (a->n_options < CLI_MAX_OPTIONS)
        a->options[a->n_options++] = (cli_option){name, letter, kind, dest, arg, help, false};
}

static void print_help(const cli_args *a)
{
    printf("%s\n\nusage: weir %s [options]%s%s%s%s\n\n", a->summary, a->command, a->operand ? " " : "",
           a->operand ? a->operand : "", a->output ? " " : "", a->output ? a->output : "");
    for (uint32_t i = 0; i < a->n_options; i++) {
        const cli_option *o = &a->options[i];
        char left[64];
        if (o->letter)
            snprintf(left, sizeof left, "-%c, --%s%s%s", o->letter, o->name, o->arg ? " " : "",
                     o->arg ? o->arg : "");
        else
            snprintf(left, sizeof left, "    --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-28s %s\n", left, o->help);
    }
    printf("  %-28s %s\n", "-h, --help", "this text");
}

static cli_option *find_name(cli_args *a, const char *name, size_t len)
{
    for (uint32_t i = 0; i < a->n_options; i++)
        if (strlen(a->options[i].name) == len && strncmp(a->options[i].name, name, len) == 0)
            return &a->options[i];
    return NULL;
}

static cli_option *find_letter(cli_args *a, char letter)
{
    for (uint32_t i = 0; i < a->n_options; i++)
        if (a->options[i].letter == letter && letter != 0) return &a->options[i];
    return NULL;
}

bool cli_given(const cli_args *a, const char *name)
{
    for (uint32_t i = 0; i < a->n_options; i++)
        if (a->options[i].given && strcmp(a->options[i].name, name) == 0) return true;
    return false;
}

static int bad_value(const cli_args *a, const cli_option *o, const char *value, const char *want)
{
    return cli_usage(a->command, "--%s %s: %s", o->name, value, want);
}

static bool parse_u64(const char *text, uint64_t max, uint64_t *out)
{
    if (*text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || v > max) return false;
    *out = v;
    return true;
}

static int parse_sizes(const cli_args *a, const cli_option *o, const char *value)
{
    cli_sizes *list = o->dest;
    char *copy = strdup(value), *rest = copy;
    int rc = copy != NULL ? CLI_OK : cli_fail(a->command, "no memory for the options");
    list->n = 0;
    for (char *item; rc == CLI_OK && (item = strsep(&rest, ",")) != NULL;) {
        weir_error err;
        if (list->n == CLI_MAX_LIST)
            rc = bad_value(a, o, value, "too many sizes");
        else if (weir_size_parse(item, &list->bytes[list->n], &err) != WEIR_OK)
            rc = bad_value(a, o, item, err.message);
        else if (list->bytes[list->n] == 0)
            rc = bad_value(a, o, item, "zero is no size");
        else
            list->n++;
    }
    free(copy);
    return rc;
}

static int parse_number(const cli_args *a, const cli_option *o, const char *value)
{
    if (o->kind == CLI_F32) {
        char *end;
        float v = strtof(value, &end);
        if (*value == 0 || *end != 0 || !isfinite(v)) return bad_value(a, o, value, "that is no number");
        *(float *)o->dest = v;
        return CLI_OK;
    }
    uint64_t v;
    if (!parse_u64(value, o->kind == CLI_U32 ? UINT32_MAX : UINT64_MAX, &v))
        return bad_value(a, o, value, "that is no whole number in range");
    if (o->kind == CLI_U32)
        *(uint32_t *)o->dest = (uint32_t)v;
    else
        *(uint64_t *)o->dest = v;
    return CLI_OK;
}

static int set_value(const cli_args *a, const cli_option *o, const char *value)
{
    weir_error err;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)o->dest = true; return CLI_OK;
    case CLI_TEXT: *(const char **)o->dest = value; return CLI_OK;
    case CLI_SIZE:
        if (weir_size_parse(value, o->dest, &err) != WEIR_OK) return bad_value(a, o, value, err.message);
        if (*(uint64_t *)o->dest == 0) return bad_value(a, o, value, "zero is no size");
        return CLI_OK;
    case CLI_SIZES: return parse_sizes(a, o, value);
    case CLI_SETTING: {
        cli_settings *list = o->dest;
        if (strchr(value, '=') == NULL) return bad_value(a, o, value, "write name=value");
        if (list->n == CLI_MAX_LIST) return bad_value(a, o, value, "too many settings");
        list->item[list->n++] = value;
        return CLI_OK;
    }
    case CLI_KV_TYPE:
        if (strcasecmp(value, "f16") != 0 && strcasecmp(value, "f32") != 0)
            return bad_value(a, o, value, "use f16 or f32");
        *(weir_kv_type *)o->dest = strcasecmp(value, "f16") == 0 ? WEIR_KV_F16 : WEIR_KV_F32;
        return CLI_OK;
    case CLI_WEIGHTS: {
        weir_weights w = strcmp(value, "read") == 0   ? WEIR_WEIGHTS_READ
                         : strcmp(value, "map") == 0  ? WEIR_WEIGHTS_MAP
                         : strcmp(value, "auto") == 0 ? WEIR_WEIGHTS_AUTO
                                                      : WEIR_WEIGHTS_DEFAULT;
        if (w == WEIR_WEIGHTS_DEFAULT) return bad_value(a, o, value, "use read, map or auto");
        *(weir_weights *)o->dest = w;
        return CLI_OK;
    }
    default: return parse_number(a, o, value);
    }
}

/* Handles argv[i], which begins with a dash; *i moves on when the next word was its value. */
static int parse_option(cli_args *a, int argc, char **argv, int *i)
{
    const char *word = argv[*i], *value = NULL;
    cli_option *o;
    if (word[1] == '-') {
        const char *name = word + 2, *equals = strchr(name, '=');
        o = find_name(a, name, equals ? (size_t)(equals - name) : strlen(name));
        if (equals != NULL) value = equals + 1;
    } else {
        o = find_letter(a, word[1]);
        if (word[2] != 0) value = word + 2;
    }
    if (o == NULL)
        return cli_usage(a->command, "there is no option %s; see weir %s --help", word, a->command);
    o->given = true;
    if (o->kind == CLI_FLAG)
        return value != NULL ? bad_value(a, o, value, "this option takes no value") : set_value(a, o, NULL);
    if (value == NULL) {
        if (*i + 1 >= argc) return cli_usage(a->command, "--%s needs a value (%s)", o->name, o->arg);
        value = argv[++*i];
    }
    return set_value(a, o, value);
}

/* A FILE may be given as the operand or with -m, not both. */
static int take_operand(cli_args *a)
{
    const cli_option *model = find_letter(a, 'm');
    if (a->value == NULL || model == NULL) return CLI_OK;
    if (a->output != NULL && a->output_value == NULL && *(const char **)model->dest != NULL) {
        a->output_value = a->value;
        return CLI_OK;
    }
    if (*(const char **)model->dest != NULL)
        return cli_usage(a->command, "two models are given: %s and %s", *(const char **)model->dest,
                         a->value);
    *(const char **)model->dest = a->value;
    return CLI_OK;
}

int cli_parse(cli_args *a, int argc, char **argv)
{
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_operands && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            print_help(a);
            a->help = true;
            return CLI_OK;
        }
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && word[0] == '-' && word[1] != 0) {
            int rc = parse_option(a, argc, argv, &i);
            if (rc != CLI_OK) return rc;
        } else if (a->operand != NULL && a->value == NULL) {
            a->value = word;
        } else if (a->output != NULL && a->output_value == NULL) {
            a->output_value = word;
        } else {
            return cli_usage(a->command, "'%s' belongs to no option%s; see weir %s --help", word,
                             a->operand == NULL && find_letter(a, 'm') ? " (a model goes behind -m)" : "",
                             a->command);
        }
    }
    return take_operand(a);
}
