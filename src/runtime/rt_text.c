/* Text to tokens and chat turns to prompts. The tokenizer is made at first use: describing a file needs none.
 */
#include "rt_internal.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)WEIR_TOKENIZE_SPECIAL == (int)FMT_ENCODE_SPECIAL &&
                   (int)WEIR_TOKENIZE_BOS == (int)FMT_ENCODE_BOS,
               "flags are handed through");

/* What will not change by trying again. */
static bool is_lasting(weir_status status)
{
    return status == WEIR_ERR_TOKENIZER || status == WEIR_ERR_UNSUPPORTED || status == WEIR_ERR_FORMAT ||
           status == WEIR_ERR_TEMPLATE;
}

weir_status rt_text_tokenizer(const weir_model *m, const fmt_tokenizer **out, weir_error *err)
{
    rt_text *t = m->text;
    if (t->tokenizer == NULL && t->why_none.code == WEIR_OK) {
        weir_error why = {0};
        weir_status status = fmt_tokenizer_create(m->env, m->file, &t->tokenizer, &why);
        if (status != WEIR_OK) {
            t->tokenizer = NULL;
            if (is_lasting(status)) t->why_none = why;
            *err = why;
            return status;
        }
        fmt_tokenizer_info info;
        fmt_tokenizer_get_info(t->tokenizer, &info);
        t->most_text = info.most_text;
        if (info.pre != NULL && info.pre[0] != '\0')
            snprintf(t->name, sizeof t->name, "%s (%.60s)", info.kind, info.pre);
        else
            snprintf(t->name, sizeof t->name, "%s", info.kind);
    }
    if (t->tokenizer == NULL) {
        *err = t->why_none;
        return err->code;
    }
    *out = t->tokenizer;
    return WEIR_OK;
}

weir_status rt_text_chat(const weir_model *m, const fmt_chat **out, weir_error *err)
{
    rt_text *t = m->text;
    const fmt_tokenizer *tokenizer;
    weir_status status = rt_text_tokenizer(m, &tokenizer, err);
    if (status != WEIR_OK) return status;
    if (!t->chat_tried) {
        weir_error why = {0};
        status = fmt_chat_detect(m->file, tokenizer, &t->chat, &why);
        if (status != WEIR_OK && !is_lasting(status)) {
            *err = why;
            return status;
        }
        t->why_no_chat = why;
        t->why_no_chat.code = status;
        t->chat_tried = true;
    }
    if (t->why_no_chat.code != WEIR_OK) {
        *err = t->why_no_chat;
        return err->code;
    }
    *out = &t->chat;
    return WEIR_OK;
}

void rt_text_finish(weir_model *m)
{
    fmt_tokenizer_destroy(m->text->tokenizer);
    *m->text = (rt_text){0};
}

weir_status weir_tokenize(weir_model *m, const char *text, size_t len, int flags, int32_t **tokens, size_t *n,
                          weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *tokens = NULL;
    *n = 0;
    if ((flags & ~(WEIR_TOKENIZE_SPECIAL | WEIR_TOKENIZE_BOS)) != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "weir_tokenize: unknown flags 0x%x",
                         (unsigned)flags);
    const fmt_tokenizer *t;
    weir_status status = rt_text_tokenizer(m, &t, err);
    if (status != WEIR_OK) return status;
    return fmt_tokenizer_encode(t, text, len, flags, tokens, n, err);
}

void weir_free(weir_model *m, void *p)
{
    base_free(m->env, p);
}

bool weir_token_is_end(const weir_model *m, int32_t token)
{
    const fmt_tokenizer *t;
    weir_error none;
    return rt_text_tokenizer(m, &t, &none) == WEIR_OK && fmt_tokenizer_is_end(t, token);
}

bool weir_model_adds_bos(const weir_model *m)
{
    const fmt_tokenizer *t;
    weir_error none;
    if (rt_text_tokenizer(m, &t, &none) != WEIR_OK) return false;
    fmt_tokenizer_info info;
    fmt_tokenizer_get_info(t, &info);
    return info.add_bos;
}

bool weir_token_text(const weir_model *m, int32_t token, const char **text, size_t *len)
{
    const fmt_tokenizer *t;
    weir_error none;
    return rt_text_tokenizer(m, &t, &none) == WEIR_OK && fmt_tokenizer_token(t, token, text, len);
}

weir_status weir_chat_tokens(weir_model *m, const weir_message *messages, size_t first, size_t n,
                             int32_t **tokens, size_t *n_tokens, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    *tokens = NULL;
    *n_tokens = 0;
    if (first > n || (n != 0 && messages == NULL))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "messages %zu to %zu of a chat were asked for",
                         first, n);
    const fmt_tokenizer *t;
    weir_status status = rt_text_tokenizer(m, &t, err);
    if (status != WEIR_OK) return status;
    const fmt_chat *chat;
    status = rt_text_chat(m, &chat, err);
    if (status != WEIR_OK) return status;
    fmt_message *list = base_alloc_array(m->env, BASE_TAG_RUNTIME, n, sizeof *list, err);
    if (list == NULL) return err->code;
    for (size_t i = 0; i < n; i++) {
        if (messages[i].role == NULL || messages[i].content == NULL) {
            base_free(m->env, list);
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "message %zu of the chat has no role or no content", i);
        }
        list[i] = (fmt_message){messages[i].role, messages[i].content, strlen(messages[i].content)};
    }
    status = fmt_chat_encode(m->env, chat, t, list, first, n, true, tokens, n_tokens, err);
    base_free(m->env, list);
    return status;
}
