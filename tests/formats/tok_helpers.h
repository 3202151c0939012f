/* Shared by the tokenizer tests: data folders, models, texts. */
#ifndef WEIR_TOK_HELPERS_H
#define WEIR_TOK_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/fmt_tok_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void data_path(char *out, size_t cap, const char *name)
{
    const char *dir = getenv("WEIR_SHARED_DATA");
    int n = snprintf(out, cap, "%s/%s", dir != NULL && dir[0] != '\0' ? dir : "../shared/data", name);
    assert_in_range(n, 1, cap - 1);
}

static inline void model_path(char *out, size_t cap, const char *name)
{
    const char *dir = getenv("WEIR_MODELS"), *home = getenv("HOME");
    bool given = dir != NULL && dir[0] != '\0';
    int n = given ? snprintf(out, cap, "%s/%s", dir, name)
                  : snprintf(out, cap, "%s/.cache/weir/models/%s", home != NULL ? home : "", name);
    assert_in_range(n, 1, cap - 1);
}

typedef struct loaded {
    base_env *env;
    fmt_model *model;
    fmt_tokenizer *tok;
} loaded;

static inline void require_ok(weir_status status, const weir_error *err)
{
    if (status != WEIR_OK) fail_msg("%s: %s", weir_status_name(status), err->message);
}

static inline loaded load(const char *path)
{
    loaded l = {0};
    weir_error err = {0};
    require_ok(base_env_create(&l.env, &err), &err);
    require_ok(fmt_model_open(l.env, path, &l.model, &err), &err);
    require_ok(fmt_tokenizer_create(l.env, l.model, &l.tok, &err), &err);
    return l;
}

/* Closes all and asserts that the ledger is back at zero. */
static inline void unload(loaded *l)
{
    base_ledger_view view;
    fmt_tokenizer_destroy(l->tok);
    fmt_model_close(l->model);
    base_ledger_read(l->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(l->env);
    *l = (loaded){0};
}

/* Compares ids with those wanted and says where they part. */
static inline void assert_ids(const char *what, const int32_t *ids, size_t n, const int32_t *want,
                              size_t n_want)
{
    size_t i = 0;
    while (i < n && i < n_want && ids[i] == want[i]) i++;
    if (i == n && i == n_want) return;
    fail_msg("%s: %zu ids, wanted %zu; they part at %zu: %d, wanted %d", what, n, n_want, i,
             i < n ? ids[i] : -1, i < n_want ? want[i] : -1);
}

static inline void detokenize(const loaded *l, const int32_t *ids, size_t n, bool special, base_buf *out)
{
    weir_error err = {0};
    fmt_detok d = {.special = special};
    base_buf_init(out, l->env, BASE_TAG_RUNTIME);
    require_ok(base_buf_append(out, "", 0, &err), &err);
    for (size_t i = 0; i < n; i++) require_ok(fmt_detok_push(l->tok, &d, ids[i], out, &err), &err);
    require_ok(fmt_detok_flush(l->tok, &d, out, &err), &err);
}

#endif
