/* Settings, read once: built-in values, then a file, then the environment, then what the caller sets. */
#define _GNU_SOURCE
#include "base_settings.h"
#include "base_alloc.h"
#include "base_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)

typedef struct known_setting {
    const char *name;
    const char *value;
    const char *help;
} known_setting;

static const known_setting known[] = {
#define SETTING_ROW(name, value, help) {name, value, help},
    BASE_SETTING_MAP(SETTING_ROW)
#undef SETTING_ROW
};

#define N_KNOWN (sizeof known / sizeof *known)

struct base_settings {
    base_env *env;
    char *values[N_KNOWN]; /* owned; NULL: the built-in one */
    const char *sources[N_KNOWN];
};

/* The index of a name of n bytes, or N_KNOWN. */
static size_t find(const char *name, size_t n)
{
    size_t i = 0;
    while (i < N_KNOWN && (strncmp(known[i].name, name, n) != 0 || known[i].name[n] != '\0')) i++;
    return i;
}

static weir_status put(base_settings *s, size_t i, const char *value, size_t n, const char *source,
                       weir_error *err)
{
    weir_error local = {0};
    char *copy = base_strndup(s->env, BASE_TAG_RUNTIME, value, n, &local);
    if (copy == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    base_free(s->env, s->values[i]);
    s->values[i] = copy;
    s->sources[i] = source;
    return WEIR_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Narrows [*begin, *end) to what is not blank at its edges. */
static void trim(const char **begin, const char **end)
{
    while (*begin < *end && is_blank(**begin)) ++*begin;
    while (*end > *begin && is_blank((*end)[-1])) --*end;
}

/* A '#' at the start or behind a blank begins a comment; elsewhere it belongs to the value. */
static const char *comment_start(const char *begin, const char *end)
{
    for (const char *p = begin; p < end; p++) {
        if (*p == '#' && (p == begin || is_blank(p[-1]))) return p;
    }
    return end;
}

static weir_status read_line(base_settings *s, const char *path, int number, const char *begin,
                             const char *end, weir_error *err)
{
    end = comment_start(begin, end);
    trim(&begin, &end);
    if (begin == end) return WEIR_OK;
    const char *equals = memchr(begin, '=', (size_t)(end - begin));
    if (equals == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s, line %d: \"%.*s\" is not of the form name = value", path, number,
                         (int)base_min((uint64_t)(end - begin), 120), begin);
    const char *name_end = equals, *value = equals + 1;
    trim(&begin, &name_end);
    trim(&value, &end);
    size_t i = find(begin, (size_t)(name_end - begin));
    if (i == N_KNOWN)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s, line %d: there is no setting \"%.*s\"", path,
                         number, (int)base_min((uint64_t)(name_end - begin), 120), begin);
    return put(s, i, value, (size_t)(end - value), "file", err);
}

static weir_status read_file(base_settings *s, const char *path, weir_error *err)
{
    char *text;
    size_t len;
    weir_status status = base_file_slurp(s->env, path, FILE_MAX_BYTES, &text, &len, err);
    if (status != WEIR_OK) return status;
    int number = 1;
    for (const char *p = text, *all_end = text + len; status == WEIR_OK && p < all_end; number++) {
        const char *newline = memchr(p, '\n', (size_t)(all_end - p));
        const char *end = newline != NULL ? newline : all_end;
        status = read_line(s, path, number, p, end, err);
        p = end + 1;
    }
    base_free(s->env, text);
    return status;
}

/* "io.backend" is WEIR_IO_BACKEND. */
static weir_status read_environment(base_settings *s, weir_error *err)
{
    for (size_t i = 0; i < N_KNOWN; i++) {
        char name[96];
        snprintf(name, sizeof name, "WEIR_%s", known[i].name);
        for (char *p = name; *p != '\0'; p++) {
            if (*p == '.') *p = '_';
            if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
        }
        const char *value = getenv(name);
        if (value == NULL) continue;
        weir_status status = put(s, i, value, strlen(value), "environment", err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

weir_status base_settings_create(base_env *env, const char *file_path, base_settings **out, weir_error *err)
{
    weir_error local = {0};
    base_settings *s = base_alloc(env, BASE_TAG_RUNTIME, sizeof *s, &local);
    if (s == NULL) goto fail;
    s->env = env;
    for (size_t i = 0; i < N_KNOWN; i++) s->sources[i] = "built-in";
    if (file_path != NULL && read_file(s, file_path, &local) != WEIR_OK) goto fail;
    if (read_environment(s, &local) != WEIR_OK) goto fail;
    *out = s;
    return WEIR_OK;

fail:
    base_settings_destroy(s);
    if (err != NULL) *err = local;
    return local.code;
}

void base_settings_destroy(base_settings *s)
{
    if (s == NULL) return;
    for (size_t i = 0; i < N_KNOWN; i++) base_free(s->env, s->values[i]);
    base_free(s->env, s);
}

const char *base_settings_get(const base_settings *s, const char *name)
{
    size_t i = find(name, strlen(name));
    if (i == N_KNOWN) return NULL;
    return s->values[i] != NULL ? s->values[i] : known[i].value;
}

const char *base_settings_source(const base_settings *s, const char *name)
{
    size_t i = find(name, strlen(name));
    return i < N_KNOWN ? s->sources[i] : NULL;
}

weir_status base_settings_set(base_settings *s, const char *name, const char *value, weir_error *err)
{
    size_t i = find(name, strlen(name));
    if (i == N_KNOWN)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "there is no setting \"%.120s\"", name);
    return put(s, i, value, strlen(value), "set", err);
}

const char *base_settings_name(size_t i, const char **help)
{
    if (i >= N_KNOWN) return NULL;
    if (help != NULL) *help = known[i].help;
    return known[i].name;
}

const char *base_settings_ca_file(const base_settings *s)
{
    const char *given = base_settings_get(s, "io.ca_file");
    if (strcmp(given, "auto") == 0) given = getenv("SSL_CERT_FILE");
    return given != NULL ? given : "";
}

char *base_settings_cache_folder(const base_settings *s, weir_error *err)
{
    const char *given = base_settings_get(s, "cache_folder");
    if (strcmp(given, "off") == 0) given = "";
    if (strcmp(given, "auto") != 0) return base_strdup(s->env, BASE_TAG_RUNTIME, given, err);
    /* The base directory specification: only an absolute path counts. */
    const char *root = getenv("XDG_CACHE_HOME"), *behind = "/weir";
    if (root == NULL || root[0] != '/') {
        root = getenv("HOME");
        behind = "/.cache/weir";
    }
    if (root == NULL || root[0] != '/') return base_strdup(s->env, BASE_TAG_RUNTIME, "", err);
    size_t cap = strlen(root) + strlen(behind) + 1;
    char *path = base_alloc(s->env, BASE_TAG_RUNTIME, cap, err);
    if (path != NULL) snprintf(path, cap, "%s%s", root, behind);
    return path;
}
