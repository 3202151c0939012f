/* Chat messages as text, before they become ids. Private to formats; tests may include it. */
#ifndef WEIR_FMT_CHAT_RENDER_H
#define WEIR_FMT_CHAT_RENDER_H

#include "fmt_chat.h"
#include "fmt_tok_internal.h"

/* fmt_chat.variant */
enum {
    FMT_CHAT_BOS_FIRST = 1,        /* BOS before message 0 */
    FMT_CHAT_BOS_EVERY_TURN = 2,   /* Llama 2: before each user message */
    FMT_CHAT_TRIM = 4,             /* white space around contents goes */
    FMT_CHAT_SEP_ROLE = 8,         /* ChatML of Phi-4: <|im_sep|> behind the role, nothing between messages */
    FMT_CHAT_KNOWLEDGE_DATE = 16,  /* Llama 3.1: the system message states dates */
    FMT_CHAT_LEAD_SPACE = 32,      /* Mistral: space before [INST] */
    FMT_CHAT_OPEN_SPACE = 64,      /* ... behind [INST] */
    FMT_CHAT_CLOSE_SPACE = 128,    /* ... before [/INST] */
    FMT_CHAT_ANSWER_SPACE = 256,   /* ... before an answer */
    FMT_CHAT_BETWEEN_SPACE = 512,  /* ... behind an answer's end */
    FMT_CHAT_SYSTEM_PROMPT = 1024, /* ... has [SYSTEM_PROMPT] */
    FMT_CHAT_NO_NEWLINE = 2048,    /* Phi-4-mini: nothing between role, content and messages */
    FMT_CHAT_TEXT_END = 4096,      /* Zephyr of StableLM: <|endoftext|>, not EOS, ends messages */
    FMT_CHAT_CODER = 8192,         /* DeepSeek Coder: ### Instruction / ### Response */
    FMT_CHAT_THINK_OPEN = 16384,   /* DeepSeek R1: the answer begins with <think> */
    FMT_CHAT_THINK_CLOSED = 32768, /* DeepSeek V3.1: it begins with </think> */
    FMT_CHAT_DROP_THOUGHT = 65536  /* of earlier answers only what stands behind </think> */
};

/* Finds family and habits in a template's text; false: none we know. */
bool fmt_chat_recognise(const char *text, fmt_chat *out);

/* Text of which the ranges `plain` are contents. */
typedef struct fmt_chat_text {
    base_buf text;
    fmt_tok_range *plain;
    size_t n, cap;
} fmt_chat_text;
void fmt_chat_text_finish(fmt_chat_text *c);
/* Appends message i; i = n: opens the assistant's turn. BOS before message 0 is left to the caller, save
 * where it belongs to every turn. */
weir_status fmt_chat_render(const fmt_chat *chat, const fmt_tokenizer *t, const fmt_message *messages,
                            size_t n, size_t i, fmt_chat_text *out, weir_error *err);

#endif
