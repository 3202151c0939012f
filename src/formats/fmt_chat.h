/* Chat templates. A model's Jinja template is never executed: it is recognised by marks that the known
 * families leave in it, and rendered by our own code. */
#ifndef WEIR_FMT_CHAT_H
#define WEIR_FMT_CHAT_H

#include "fmt_tokenizer.h"

/* X(ID, "name") */
#define FMT_CHAT_MAP(X)                                                                                      \
    X(CHATML, "chatml")                                                                                      \
    X(LLAMA2, "llama2")                                                                                      \
    X(LLAMA3, "llama3")                                                                                      \
    X(GEMMA, "gemma")                                                                                        \
    X(MISTRAL, "mistral")                                                                                    \
    X(PHI3, "phi3")                                                                                          \
    X(ZEPHYR, "zephyr")                                                                                      \
    X(DEEPSEEK, "deepseek")                                                                                  \
    X(DEEPSEEK3, "deepseek3")

typedef enum fmt_chat_kind {
#define FMT_CHAT_ENUM(id, name) FMT_CHAT_##id,
    FMT_CHAT_MAP(FMT_CHAT_ENUM)
#undef FMT_CHAT_ENUM
        FMT_CHAT_COUNT
} fmt_chat_kind;

const char *fmt_chat_name(fmt_chat_kind kind);

typedef struct fmt_chat {
    fmt_chat_kind kind;
    /* The template's own system text for a chat without one, or NULL; as written there, backslash escapes
     * included; points into the model or the tokenizer. */
    const char *default_system;
    size_t default_system_len;
    uint32_t variant; /* habits within the family, as fmt_chat_detect found them */
    const char *date; /* a date that the template states (Llama 3.1), or NULL; points into the model */
    size_t date_len;
} fmt_chat;

/* Recognises the model's template (tokenizer.chat_template, or tokenizer_config.json). Errors: TEMPLATE:
 * there is none, or none we know; the message says which and offers --raw. */
weir_status fmt_chat_detect(const fmt_model *m, const fmt_tokenizer *t, fmt_chat *out, weir_error *err);

typedef struct fmt_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t len;
} fmt_message;

/* The ids of the messages [first, n) of a conversation; encoding in pieces gives the same ids as encoding at
 * once. A message begins right behind the token that ended the one before (an answer's end token is the
 * caller's to keep), so what a template puts between two messages leads the second; nothing stands behind the
 * last. BOS comes before message 0 where the model wants it. With `open`, the assistant's turn is opened at
 * the end. What users write is tokenized without special tokens, so that no message can forge a turn. *ids is
 * a block for base_free. Errors: INVALID_ARGUMENT (an unknown role, roles out of order for the family). */
weir_status fmt_chat_encode(base_env *env, const fmt_chat *chat, const fmt_tokenizer *t,
                            const fmt_message *messages, size_t first, size_t n, bool open, int32_t **ids,
                            size_t *n_ids, weir_error *err);

#endif
