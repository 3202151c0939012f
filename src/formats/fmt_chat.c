/* Chat messages to ids: what they look like is fmt_chat_render.c's, here the text becomes tokens, message by
 * message. */
#include "fmt_chat_render.h"

#include <string.h>

#define BAR   "\xef\xbd\x9c" /* U+FF5C and U+2581, in DeepSeek's marks */
#define BLOCK "\xe2\x96\x81"

const char *fmt_chat_name(fmt_chat_kind kind)
{
    static const char *const names[] = {
#define FMT_CHAT_NAME(id, name) name,
        FMT_CHAT_MAP(FMT_CHAT_NAME)
#undef FMT_CHAT_NAME
    };
    return kind < FMT_CHAT_COUNT ? names[kind] : "unknown";
}

weir_status fmt_chat_detect(const fmt_model *m, const fmt_tokenizer *t, fmt_chat *out, weir_error *err)
{
    const char *text = fmt_get_str(m, "tokenizer.chat_template");
    if (text == NULL) text = t->chat_template;
    if (text == NULL) {
        return base_fail(err, WEIR_ERR_TEMPLATE,
                         "the model has no chat template; it may be a base model: continue plain text with "
                         "weir run --raw");
    }
    if (!fmt_chat_recognise(text, out)) {
        size_t n = strcspn(text, "\n");
        return base_fail(err, WEIR_ERR_TEMPLATE,
                         "the model's chat template is none that Weir knows (it begins '%.*s'); use weir run "
                         "--raw and write the prompt's marks yourself",
                         (int)(n < 80 ? n : 80), text);
    }
    if (t->add_bos) out->variant |= FMT_CHAT_BOS_FIRST;
    return WEIR_OK;
}

/* What only a template may write: in contents these stay text even where the vocabulary calls them
 * user-defined. */
static const char *const marks[] = {
    "<|im_start|>",
    "<|im_sep|>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "### Instruction:",
    "### Response:",
    "<" BAR "User" BAR ">",
    "<" BAR "Assistant" BAR ">",
    "<" BAR "begin" BLOCK "of" BLOCK "sentence" BAR ">",
};
#define N_MARKS (sizeof marks / sizeof marks[0])

/* Whether a rendered text ends in a special token, as the next message's tokenization must know. */
static bool ends_special(const fmt_tokenizer *t, const fmt_chat_text *c)
{
    for (uint32_t k = 0; k < t->n_special_lens; k++) {
        size_t len = t->special_lens[k];
        if (len > c->text.len) continue;
        int32_t id = fmt_tok_find(&t->vocab, c->text.data + c->text.len - len, len);
        if (id < 0) continue;
        fmt_tok_type type = fmt_tok_type_of(&t->vocab, (uint32_t)id);
        if (type == FMT_TOK_CONTROL || type == FMT_TOK_USER || type == FMT_TOK_UNKNOWN) return true;
    }
    return false;
}

static weir_status encode_from(const fmt_chat *chat, const fmt_tokenizer *t, const fmt_message *messages,
                               size_t first, size_t n, bool open, fmt_chat_text *c, fmt_tok_ids *out,
                               weir_error *err)
{
    int32_t ids[N_MARKS];
    fmt_tok_input in = {.flags = FMT_ENCODE_SPECIAL, .after_special = true, .marks = ids};
    for (size_t i = 0; i < N_MARKS; i++) {
        int32_t id = fmt_tok_find(&t->vocab, marks[i], strlen(marks[i]));
        if (id >= 0) ids[in.n_marks++] = id;
    }
    weir_status status = WEIR_OK;
    /* The message before is rendered only to see how it ended. */
    for (size_t i = first > 0 ? first - 1 : 0; i < n + open && status == WEIR_OK; i++) {
        c->text.len = c->n = 0;
        status = fmt_chat_render(chat, t, messages, n, i, c, err);
        if (status != WEIR_OK) break;
        in.text = c->text.data;
        in.len = c->text.len;
        in.plain = c->plain;
        in.n_plain = c->n;
        if (i == 0 && first == 0 && (chat->variant & FMT_CHAT_BOS_FIRST) &&
            !(chat->variant & FMT_CHAT_BOS_EVERY_TURN) && t->bos >= 0) {
            status = fmt_tok_push(out, t->bos, err);
        }
        if (status == WEIR_OK && i >= first) status = fmt_tok_encode(t, &in, out, err);
        if (in.len > 0) in.after_special = ends_special(t, c);
    }
    return status;
}

weir_status fmt_chat_encode(base_env *env, const fmt_chat *chat, const fmt_tokenizer *t,
                            const fmt_message *messages, size_t first, size_t n, bool open, int32_t **ids,
                            size_t *n_ids, weir_error *err)
{
    if (first > n) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "messages %zu to %zu", first, n);
    fmt_tok_ids out = {.env = env};
    fmt_chat_text c = {.n = 0};
    base_buf_init(&c.text, env, BASE_TAG_RUNTIME);
    weir_status status = encode_from(chat, t, messages, first, n, open, &c, &out, err);
    if (status == WEIR_OK && out.data == NULL) {
        out.data = base_alloc(env, BASE_TAG_RUNTIME, sizeof *out.data, err);
        if (out.data == NULL) status = fmt_tok_no_memory(err);
    }
    fmt_chat_text_finish(&c);
    if (status != WEIR_OK) {
        base_free(env, out.data);
        return status;
    }
    *ids = out.data;
    *n_ids = out.n;
    return WEIR_OK;
}
