/* Chat messages as text, family by family. What a template puts between two messages leads the second one, so
 * that a message always begins behind the token that ended the one before and earlier ids never change. */
#include "fmt_chat_render.h"

#include <string.h>

#define BAR          "\xef\xbd\x9c"
#define BLOCK        "\xe2\x96\x81"
#define DEEPSEEK_END "<" BAR "end" BLOCK "of" BLOCK "sentence" BAR ">"

void fmt_chat_text_finish(fmt_chat_text *c)
{
    base_free(c->text.env, c->plain);
    base_buf_finish(&c->text);
    c->plain = NULL;
    c->n = c->cap = 0;
}

typedef struct renderer {
    const fmt_chat *chat;
    const fmt_tokenizer *t;
    fmt_chat_text *out;
    weir_status status; /* the first failure; later steps do nothing */
    weir_error *err;
} renderer;

static void put(renderer *r, const char *text)
{
    if (r->status == WEIR_OK) r->status = base_buf_append(&r->out->text, text, strlen(text), r->err);
}

static void put_token(renderer *r, int32_t id, const char *fallback)
{
    const char *text;
    size_t len;
    if (r->status != WEIR_OK) return;
    if (!fmt_tokenizer_token(r->t, id, &text, &len)) {
        put(r, fallback);
        return;
    }
    r->status = base_buf_append(&r->out->text, text, len, r->err);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

/* Jinja's trim takes Unicode white space, as Python's strip does. */
static void trim(const char **p, size_t *n)
{
    uint32_t cp;
    for (size_t step; *n > 0; *p += step, *n -= step) {
        step = fmt_utf8_decode(*p, *n, &cp);
        if (step == 0 || !(fmt_cp_is_white(cp) || is_space((*p)[0]))) break;
    }
    while (*n > 0) {
        size_t begin = *n - 1;
        while (begin > 0 && ((*p)[begin] & 0xc0) == 0x80) begin--;
        if (fmt_utf8_decode(*p + begin, *n - begin, &cp) == 0 ||
            !(fmt_cp_is_white(cp) || is_space((*p)[begin])))
            break;
        *n = begin;
    }
}

static void put_plain(renderer *r, const char *p, size_t n)
{
    fmt_chat_text *c = r->out;
    if (r->status != WEIR_OK || n == 0) return;
    if (c->n == c->cap) {
        size_t cap = c->cap < 8 ? 8 : c->cap * 2;
        fmt_tok_range *plain =
            base_realloc(c->text.env, BASE_TAG_RUNTIME, c->plain, cap * sizeof *plain, r->err);
        if (plain == NULL) {
            r->status = fmt_tok_no_memory(r->err);
            return;
        }
        c->plain = plain;
        c->cap = cap;
    }
    size_t begin = c->text.len;
    r->status = base_buf_append(&c->text, p, n, r->err);
    c->plain[c->n++] = (fmt_tok_range){begin, begin + n};
}

static void put_content(renderer *r, const fmt_message *m, bool trimmed)
{
    const char *p = m->content;
    size_t n = m->len;
    if (trimmed) trim(&p, &n);
    put_plain(r, p, n);
}

/* The template's own system text, its escapes resolved. */
static void put_default_system(renderer *r)
{
    const char *p = r->chat->default_system;
    for (size_t i = 0; i < r->chat->default_system_len; i++) {
        char c = p[i];
        if (c == '\\' && i + 1 < r->chat->default_system_len) {
            c = p[++i];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        if (r->status == WEIR_OK) r->status = base_buf_append(&r->out->text, &c, 1, r->err);
    }
}

/* An earlier answer without what it thought first, where the template drops that. */
static fmt_message without_thought(const renderer *r, const fmt_message *m)
{
    fmt_message said = *m;
    for (size_t i = 0; (r->chat->variant & FMT_CHAT_DROP_THOUGHT) && i + 8 <= m->len; i++) {
        if (memcmp(m->content + i, "</think>", 8) != 0) continue;
        said.content = m->content + i + 8;
        said.len = m->len - i - 8;
    }
    return said;
}

typedef enum role { SYSTEM, USER, ASSISTANT, OPEN } role;

static bool role_of(const fmt_message *m, role *out)
{
    static const char *const names[] = {"system", "user", "assistant"};
    for (int i = 0; i < 3; i++) {
        if (m->role != NULL && strcmp(m->role, names[i]) == 0) {
            *out = (role)i;
            return true;
        }
    }
    return false;
}

static const fmt_message *system_of(const fmt_message *messages, size_t n)
{
    return n > 0 && strcmp(messages[0].role, "system") == 0 ? &messages[0] : NULL;
}

static void chatml(renderer *r, const fmt_message *m, const char *name, bool first)
{
    bool sep = r->chat->variant & FMT_CHAT_SEP_ROLE;
    const char *open = sep ? "<|im_sep|>" : "\n";
    if (first && strcmp(name, "system") != 0 && r->chat->default_system != NULL) {
        put(r, "<|im_start|>system");
        put(r, open);
        put_default_system(r);
        put(r, "<|im_end|>");
        first = false;
    }
    if (!first && !sep) put(r, "\n");
    put(r, "<|im_start|>");
    put(r, name);
    put(r, open);
    if (m == NULL) {
        if (r->chat->variant & FMT_CHAT_THINK_OPEN) put(r, "<think>\n");
        return;
    }
    fmt_message said = strcmp(name, "assistant") == 0 ? without_thought(r, m) : *m;
    while (said.content != m->content && said.len > 0 && said.content[0] == '\n') {
        said.content++;
        said.len--;
    }
    put_content(r, &said, r->chat->variant & FMT_CHAT_TRIM);
    put(r, "<|im_end|>");
}

static void llama3_head(renderer *r, const char *name)
{
    put(r, "<|start_header_id|>");
    put(r, name);
    put(r, "<|end_header_id|>\n\n");
}

static void llama3(renderer *r, const fmt_message *m, const char *name, bool first)
{
    if (first && (r->chat->variant & FMT_CHAT_KNOWLEDGE_DATE)) {
        bool own = m != NULL && strcmp(name, "system") == 0;
        llama3_head(r, "system");
        put(r, "Cutting Knowledge Date: December 2023\nToday Date: ");
        if (r->status == WEIR_OK && r->chat->date != NULL)
            r->status = base_buf_append(&r->out->text, r->chat->date, r->chat->date_len, r->err);
        put(r, "\n\n");
        if (own) put_content(r, m, true);
        put(r, "<|eot_id|>");
        if (own) return;
    }
    llama3_head(r, name);
    if (m == NULL) return;
    put_content(r, m, true);
    put(r, "<|eot_id|>");
}

/* The system text goes in front of the first user message. */
static void gemma(renderer *r, const fmt_message *m, role who, const fmt_message *system, bool first)
{
    if (who == SYSTEM) return;
    if (!first) put(r, "\n");
    put(r, who == USER ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
    if (who == OPEN) return;
    if (system != NULL) {
        put_plain(r, system->content, system->len);
        put(r, "\n\n");
    }
    put_content(r, m, true);
    put(r, "<end_of_turn>");
}

static void llama2(renderer *r, const fmt_message *m, role who, const fmt_message *system, bool first)
{
    bool trimmed = r->chat->variant & FMT_CHAT_TRIM;
    if (who == SYSTEM || who == OPEN) return;
    if (who == ASSISTANT) {
        put(r, " ");
        put_content(r, m, trimmed);
        put(r, " ");
        put_token(r, r->t->eos, "</s>");
        return;
    }
    if (r->chat->variant & FMT_CHAT_BOS_EVERY_TURN) put_token(r, r->t->bos, "<s>");
    put(r, "[INST] ");
    const char *p = m->content;
    size_t n = m->len;
    if (trimmed) trim(&p, &n);
    bool own = system == NULL && first && r->chat->default_system != NULL;
    if (system != NULL || own) {
        put(r, "<<SYS>>\n");
        if (own) {
            put_default_system(r);
        } else {
            put_plain(r, system->content, system->len);
        }
        put(r, "\n<</SYS>>\n\n");
        /* The whole is trimmed, so white space before the user's text stays. */
        n += (size_t)(p - m->content);
        p = m->content;
    }
    put_plain(r, p, n);
    put(r, " [/INST]");
}

static void mistral(renderer *r, const fmt_message *m, role who, const fmt_message *system, bool first,
                    bool start)
{
    uint32_t v = r->chat->variant;
    if (who == OPEN) return;
    if (who == SYSTEM) {
        if (!(v & FMT_CHAT_SYSTEM_PROMPT)) return;
        put(r, v & FMT_CHAT_OPEN_SPACE ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]");
        put_content(r, m, false);
        put(r, "[/SYSTEM_PROMPT]");
    } else if (who == USER) {
        if (start && (v & FMT_CHAT_SYSTEM_PROMPT) && r->chat->default_system != NULL) {
            put(r, v & FMT_CHAT_OPEN_SPACE ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]");
            put_default_system(r);
            put(r, "[/SYSTEM_PROMPT]");
        }
        if (!first && (v & FMT_CHAT_BETWEEN_SPACE)) put(r, " ");
        put(r, v & FMT_CHAT_LEAD_SPACE ? " [INST]" : "[INST]");
        if (v & FMT_CHAT_OPEN_SPACE) put(r, " ");
        if (system != NULL && !(v & FMT_CHAT_SYSTEM_PROMPT)) {
            put_plain(r, system->content, system->len);
            put(r, "\n\n");
        }
        put_content(r, m, false);
        put(r, v & FMT_CHAT_CLOSE_SPACE ? " [/INST]" : "[/INST]");
    } else {
        if (v & FMT_CHAT_ANSWER_SPACE) put(r, " ");
        put_content(r, m, v & FMT_CHAT_TRIM);
        put_token(r, r->t->eos, "</s>");
    }
}

/* Phi-3 and Zephyr: <|role|>, the content, an end mark. */
static void role_tags(renderer *r, const fmt_message *m, const char *name, bool first)
{
    const char *line = r->chat->variant & FMT_CHAT_NO_NEWLINE ? "" : "\n";
    if (!first) put(r, line);
    put(r, "<|");
    put(r, name);
    put(r, "|>");
    put(r, line);
    if (m == NULL) return;
    put_content(r, m, false);
    if (r->chat->kind == FMT_CHAT_PHI3) {
        put(r, "<|end|>");
    } else if (r->chat->variant & FMT_CHAT_TEXT_END) {
        put(r, "<|endoftext|>");
    } else {
        put_token(r, r->t->eos, "</s>");
    }
}

static void deepseek_coder(renderer *r, const fmt_message *m, role who, bool first, bool behind_answer)
{
    if (first && who != SYSTEM && r->chat->default_system != NULL) put_default_system(r);
    if (behind_answer) put(r, "\n");
    if (who == USER) put(r, "### Instruction:\n");
    if (who == ASSISTANT || who == OPEN) put(r, "### Response:\n");
    if (m == NULL) return;
    put_content(r, m, false);
    if (who == USER) put(r, "\n");
    if (who == ASSISTANT) put(r, "\n<|EOT|>");
}

static void deepseek(renderer *r, const fmt_message *m, role who)
{
    if (who == USER) put(r, "User: ");
    if (who == ASSISTANT) put(r, "Assistant: ");
    if (who == OPEN) {
        put(r, "Assistant:");
        return;
    }
    put_content(r, m, false);
    if (who == ASSISTANT) {
        put_token(r, r->t->eos, DEEPSEEK_END);
    } else {
        put(r, "\n\n");
    }
}

static void deepseek3(renderer *r, const fmt_message *m, role who)
{
    uint32_t v = r->chat->variant;
    if (who == USER) put(r, "<" BAR "User" BAR ">");
    if (who == ASSISTANT || who == OPEN) put(r, "<" BAR "Assistant" BAR ">");
    if ((who == ASSISTANT || who == OPEN) && (v & FMT_CHAT_THINK_CLOSED)) put(r, "</think>");
    if (who == OPEN) {
        if (v & FMT_CHAT_THINK_OPEN) put(r, "<think>\n");
        return;
    }
    fmt_message said = who == ASSISTANT ? without_thought(r, m) : *m;
    put_content(r, &said, false);
    if (who == ASSISTANT) put(r, DEEPSEEK_END);
}

/* Roles that alternate: user, assistant, ... behind an optional system message. */
static bool in_order(const fmt_chat *chat, role who, size_t i, const fmt_message *system)
{
    if (who == SYSTEM)
        return i == 0 || (chat->kind != FMT_CHAT_GEMMA && chat->kind != FMT_CHAT_LLAMA2 &&
                          chat->kind != FMT_CHAT_MISTRAL);
    if (chat->kind != FMT_CHAT_GEMMA && chat->kind != FMT_CHAT_LLAMA2 && chat->kind != FMT_CHAT_MISTRAL)
        return true;
    bool even = (i - (system != NULL)) % 2 == 0;
    return even == (who == USER);
}

static weir_status check_role(const fmt_chat *chat, const fmt_message *messages, size_t n, size_t i,
                              role *who, weir_error *err)
{
    *who = OPEN;
    for (size_t k = 0; k < n && (k == 0 || k <= i); k++) {
        if (!role_of(&messages[k], who)) {
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "message %zu has the role '%.32s'; system, user and assistant are possible", k,
                             messages[k].role != NULL ? messages[k].role : "");
        }
    }
    if (i == n) *who = OPEN;
    if (!in_order(chat, *who, i, system_of(messages, n))) {
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "message %zu: with this model's template (%s) user and assistant must alternate, user first", i,
            fmt_chat_name(chat->kind));
    }
    return WEIR_OK;
}

weir_status fmt_chat_render(const fmt_chat *chat, const fmt_tokenizer *t, const fmt_message *messages,
                            size_t n, size_t i, fmt_chat_text *out, weir_error *err)
{
    role who;
    weir_status status = check_role(chat, messages, n, i, &who, err);
    if (status != WEIR_OK) return status;
    renderer r = {chat, t, out, WEIR_OK, err};
    const fmt_message *m = i < n ? &messages[i] : NULL, *system = system_of(messages, n);
    const char *name = m != NULL ? m->role : "assistant";
    bool behind_system = i == 1 && system != NULL;
    switch (chat->kind) {
    case FMT_CHAT_CHATML: chatml(&r, m, name, i == 0); break;
    case FMT_CHAT_LLAMA3: llama3(&r, m, name, i == 0); break;
    case FMT_CHAT_GEMMA: gemma(&r, m, who, behind_system ? system : NULL, i == 0 || behind_system); break;
    case FMT_CHAT_LLAMA2: llama2(&r, m, who, behind_system ? system : NULL, i == 0); break;
    case FMT_CHAT_MISTRAL:
        mistral(&r, m, who, behind_system ? system : NULL, i == 0 || behind_system, i == 0);
        break;
    case FMT_CHAT_PHI3:
    case FMT_CHAT_ZEPHYR: role_tags(&r, m, name, i == 0); break;
    case FMT_CHAT_DEEPSEEK:
        if (chat->variant & FMT_CHAT_CODER) {
            deepseek_coder(&r, m, who, i == 0, i > 0 && strcmp(messages[i - 1].role, "assistant") == 0);
        } else {
            deepseek(&r, m, who);
        }
        break;
    case FMT_CHAT_DEEPSEEK3: deepseek3(&r, m, who); break;
    case FMT_CHAT_COUNT: return base_fail(err, WEIR_ERR_INTERNAL, "no chat template");
    }
    return r.status;
}
