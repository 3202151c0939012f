/* Small vocabularies for tests, written as GGUF files into a temporary folder. Byte-level unless said
 * otherwise. */
#ifndef WEIR_TOK_VOCAB_BUILD_H
#define WEIR_TOK_VOCAB_BUILD_H

#include "tok_helpers.h"

#include "formats/fmt_writer.h"

#include <unistd.h>

typedef struct vocab_spec {
    const char *model, *pre;
    const char *const *tokens;
    const uint32_t *lens; /* NULL: NUL-terminated */
    uint64_t n_tokens;
    const char *const *merges;
    uint64_t n_merges;
    const int32_t *types;
    uint64_t n_types;
    const float *scores;
    uint64_t n_scores;
    const char *id_key; /* one u32 more */
    uint32_t id;
} vocab_spec;

static inline void write_vocab(base_env *env, const char *path, const vocab_spec *s)
{
    weir_error err = {0};
    fmt_writer *w;
    require_ok(fmt_writer_create(env, FMT_WRITE_GGUF, path, &w, &err), &err);
    require_ok(fmt_writer_str(w, "general.architecture", "llama", &err), &err);
    require_ok(fmt_writer_str(w, "tokenizer.ggml.model", s->model, &err), &err);
    if (s->pre != NULL) require_ok(fmt_writer_str(w, "tokenizer.ggml.pre", s->pre, &err), &err);
    if (s->tokens != NULL)
        require_ok(fmt_writer_str_array(w, "tokenizer.ggml.tokens", s->n_tokens, s->tokens, s->lens, &err),
                   &err);
    if (s->merges != NULL)
        require_ok(fmt_writer_str_array(w, "tokenizer.ggml.merges", s->n_merges, s->merges, NULL, &err),
                   &err);
    if (s->types != NULL)
        require_ok(fmt_writer_array(w, "tokenizer.ggml.token_type", FMT_I32, s->n_types, s->types, &err),
                   &err);
    if (s->scores != NULL)
        require_ok(fmt_writer_array(w, "tokenizer.ggml.scores", FMT_F32, s->n_scores, s->scores, &err), &err);
    if (s->id_key != NULL) require_ok(fmt_writer_u32(w, s->id_key, s->id, &err), &err);
    require_ok(fmt_writer_finish(w, &err), &err);
    fmt_writer_destroy(w);
}

static inline void temp_path(char *out, size_t cap, const char *name)
{
    const char *dir = getenv("TMPDIR");
    int n = snprintf(out, cap, "%s/weir_tok_%ld_%s.gguf", dir != NULL ? dir : "/tmp", (long)getpid(), name);
    assert_in_range(n, 1, cap - 1);
}

/* Writes, opens and tries to make a tokenizer; returns its status, *l to be unloaded. */
static inline weir_status try_vocab(const vocab_spec *s, loaded *l, weir_error *err)
{
    char path[512];
    *l = (loaded){0};
    temp_path(path, sizeof path, "case");
    require_ok(base_env_create(&l->env, err), err);
    write_vocab(l->env, path, s);
    require_ok(fmt_model_open(l->env, path, &l->model, err), err);
    weir_status status = fmt_tokenizer_create(l->env, l->model, &l->tok, err);
    unlink(path);
    return status;
}

#endif
