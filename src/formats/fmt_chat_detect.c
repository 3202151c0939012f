/* Recognising chat templates. A family shows by its marks; the habits in which its templates differ show by
 * the literals that they are written with. What shows marks that we know and habits that we do not is
 * unknown: better no answer than one to a prompt that the model never saw. The templates themselves: those
 * that the models' makers publish in tokenizer_config.json. */
#include "fmt_chat_render.h"

#include <string.h>

#define BAR   "\xef\xbd\x9c" /* U+FF5C and U+2581, in DeepSeek's marks */
#define BLOCK "\xe2\x96\x81"

static bool has(const char *text, const char *mark)
{
    return strstr(text, mark) != NULL;
}

/* Either spelling of a line break inside a Jinja literal. */
static bool has_line(const char *text, const char *mark)
{
    size_t n = strlen(mark);
    for (const char *p = strstr(text, mark); p != NULL; p = strstr(p + 1, mark)) {
        if (p[n] == '\n' || (p[n] == '\\' && p[n + 1] == 'n')) return true;
    }
    return false;
}

/* A stack of Jinja's ifs, to know whether a place is only reached where tools are given. */
typedef struct tag_scan {
    bool tools[32];
    int depth;
} tag_scan;

static bool tag_says(const char *tag, const char *end, const char *word)
{
    const char *p = tag + 2;
    while (p < end && (*p == '-' || *p == ' ' || *p == '\n')) p++;
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

/* True for a condition on tools themselves: "if tools", "if tools is not none", not "if not tools". */
static bool asks_for_tools(const char *tag, const char *end)
{
    const char *tools = strstr(tag, "tools"), *negated = strstr(tag, "not tools");
    return tools != NULL && tools < end && (negated == NULL || negated > end);
}

static void pass_tag(tag_scan *s, const char *tag, const char *end)
{
    if (tag_says(tag, end, "if ")) {
        if (s->depth < 32) s->tools[s->depth] = asks_for_tools(tag, end);
        s->depth++;
    } else if (tag_says(tag, end, "elif ") || tag_says(tag, end, "else")) {
        if (s->depth > 0 && s->depth <= 32)
            s->tools[s->depth - 1] = asks_for_tools(tag, end) && !tag_says(tag, end, "else");
    } else if (tag_says(tag, end, "endif") && s->depth > 0) {
        s->depth--;
    }
}

static bool only_with_tools(const char *text, const char *place)
{
    tag_scan s = {.depth = 0};
    for (const char *tag = strstr(text, "{%"); tag != NULL && tag < place; tag = strstr(tag + 2, "{%")) {
        const char *end = strstr(tag, "%}");
        if (end == NULL) break;
        pass_tag(&s, tag, end);
    }
    for (int i = 0; i < s.depth && i < 32; i++) {
        if (s.tools[i]) return true;
    }
    return false;
}

/* ChatML: a literal between "<|im_start|>system\n" and "<|im_end|>" that no expression interrupts. */
static void find_chatml_system(const char *text, fmt_chat *out)
{
    static const char open[] = "<|im_start|>system";
    for (const char *p = strstr(text, open); p != NULL; p = strstr(p + 1, open)) {
        const char *begin = p + sizeof open - 1;
        if (*begin == '\n') {
            begin++;
        } else if (begin[0] == '\\' && begin[1] == 'n') {
            begin += 2;
        } else {
            continue;
        }
        const char *end = strstr(begin, "<|im_end|>");
        if (end == NULL || end == begin) continue;
        bool plain = true;
        for (const char *c = begin; c < end && plain; c++) {
            if (*c == '\\' && c + 1 < end) {
                c++;
            } else {
                plain = *c != '\'' && *c != '"' && *c != '{' && *c != '}';
            }
        }
        if (!plain || only_with_tools(text, p)) continue;
        out->default_system = begin;
        out->default_system_len = (size_t)(end - begin);
        return;
    }
}

/* A quoted literal that begins with `start`. */
static const char *literal(const char *text, const char *start, size_t *len)
{
    const char *p = strstr(text, start);
    if (p == NULL || p == text || (p[-1] != '\'' && p[-1] != '"')) return NULL;
    char quote = p[-1];
    const char *end = p;
    while (*end != '\0' && *end != quote) end += *end == '\\' && end[1] != '\0' ? 2 : 1;
    if (*end == '\0') return NULL;
    *len = (size_t)(end - p);
    return p;
}

static void find_mistral_habits(const char *text, fmt_chat *out)
{
    uint32_t v = 0;
    if (has(text, "[SYSTEM_PROMPT]")) v |= FMT_CHAT_SYSTEM_PROMPT;
    if (has(text, "' [INST] '") || has(text, "\" [INST] \"")) v |= FMT_CHAT_LEAD_SPACE;
    if (has(text, "[INST] ")) v |= FMT_CHAT_OPEN_SPACE;
    if (has(text, " [/INST]")) v |= FMT_CHAT_CLOSE_SPACE;
    if (has(text, "' ' + message") || has(text, "\" \" + message") || has(text, "' ' + content") ||
        has(text, "\" \" + content"))
        v |= FMT_CHAT_ANSWER_SPACE;
    if (has(text, "eos_token + ' '") || has(text, "eos_token + \" \"")) v |= FMT_CHAT_BETWEEN_SPACE;
    if (has(text, "|trim + eos_token") || has(text, "| trim + eos_token")) v |= FMT_CHAT_TRIM;
    out->variant |= v;
}

/* Zephyr ends the user's message too; Falcon 3, which has the same marks, does not. */
static bool user_text_ends(const char *text, const char *end_mark)
{
    const char *p = strstr(text, "<|user|>");
    const char *close = p != NULL ? strstr(p, "}}") : NULL;
    const char *end = p != NULL ? strstr(p, end_mark) : NULL;
    return close != NULL && end != NULL && end < close;
}

/* The last place where `mark` stands. */
static const char *last(const char *text, const char *mark)
{
    const char *found = NULL;
    for (const char *p = strstr(text, mark); p != NULL; p = strstr(p + 1, mark)) found = p;
    return found;
}

/* Behind a line break of either spelling; NULL where there is none. */
static const char *behind_line(const char *p)
{
    if (*p == '\n') return p + 1;
    return p[0] == '\\' && p[1] == 'n' ? p + 2 : NULL;
}

/* How ChatML opens an answer: plainly, or with <think>. False: in a way that we do not follow. */
static bool chatml_opens(const char *text, fmt_chat *out)
{
    static const char open[] = "<|im_start|>assistant";
    const char *p = last(text, "add_generation_prompt");
    p = p != NULL ? strstr(p, open) : NULL;
    if (p == NULL || (out->variant & FMT_CHAT_SEP_ROLE)) return true;
    p = behind_line(p + sizeof open - 1);
    if (p == NULL) return false;
    if (strncmp(p, "<think>", 7) == 0) {
        p = behind_line(p + 7);
        out->variant |= FMT_CHAT_THINK_OPEN;
        return p != NULL && (*p == '\'' || *p == '"') && !has(p, "think>");
    }
    /* Qwen 3 closes the thought at once, but only where thinking is switched off. */
    return !has(p, "think>") || (has(p, "enable_thinking is false") && !has(p, "else"));
}

static bool recognise_chatml(const char *text, fmt_chat *out)
{
    out->kind = FMT_CHAT_CHATML;
    if (has(text, "<|im_sep|>")) out->variant |= FMT_CHAT_SEP_ROLE;
    if (has(text, "content'] | trim") || has(text, "content'].strip()")) out->variant |= FMT_CHAT_TRIM;
    if (has(text, "content.split('</think>')[-1]")) out->variant |= FMT_CHAT_DROP_THOUGHT;
    find_chatml_system(text, out);
    /* SmolLM 3 composes a system message from settings and the date. */
    return chatml_opens(text, out) && !has(text, "## Metadata");
}

static bool recognise_llama3(const char *text, fmt_chat *out)
{
    static const char set[] = "set date_string = \"";
    out->kind = FMT_CHAT_LLAMA3;
    /* Models for function calls only that share the marks. */
    if (has(text, "recipient") || has(text, "functions as JSON")) return false;
    if (!has(text, "Cutting Knowledge Date")) return true;
    const char *p = strstr(text, set), *end = NULL;
    if (p != NULL) end = strchr(p + sizeof set - 1, '"');
    if (end == NULL) return false;
    out->variant |= FMT_CHAT_KNOWLEDGE_DATE;
    out->date = p + sizeof set - 1;
    out->date_len = (size_t)(end - out->date);
    return true;
}

static bool recognise_deepseek3(const char *text, fmt_chat *out)
{
    static const char think[] = "<" BAR "Assistant" BAR "><think>", user[] = "<" BAR "User" BAR ">";
    out->kind = FMT_CHAT_DEEPSEEK3;
    if (has(text, "split('</think>')")) out->variant |= FMT_CHAT_DROP_THOUGHT;
    /* A version that ends user messages too. */
    const char *p = strstr(text, user), *close = strstr(p, "}}"), *end = strstr(p, "end" BLOCK "of");
    if (end != NULL && (close == NULL || end < close)) return false;
    if (has(text, "not thinking")) {
        out->variant |= FMT_CHAT_THINK_CLOSED;
        return !has(text, "<think></think>");
    }
    p = strstr(text, think);
    if (p == NULL) return true;
    out->variant |= FMT_CHAT_THINK_OPEN;
    p = behind_line(p + sizeof think - 1);
    return p != NULL && (*p == '\'' || *p == '"') && !has(p, "think>");
}

/* A quoted literal that is assigned to a variable as it stands; NULL where it is composed. */
static const char *assigned(const char *text, const char *variable, size_t *len)
{
    const char *p = strstr(text, variable);
    if (p == NULL) return NULL;
    p += strlen(variable);
    size_t space = strspn(p, " =");
    if (p[space] != '\'' && p[space] != '"') return NULL;
    char quote = p[space];
    const char *begin = p + space + 1, *end = begin;
    while (*end != '\0' && *end != quote) end += *end == '\\' && end[1] != '\0' ? 2 : 1;
    if (*end == '\0') return NULL;
    *len = (size_t)(end - begin);
    end += 1 + strspn(end + 1, " -");
    return end[0] == '%' && *len > 0 ? begin : NULL;
}

static bool recognise_inst(const char *text, fmt_chat *out)
{
    if (has(text, "<<SYS>>")) {
        out->kind = FMT_CHAT_LLAMA2;
        if (has(text, "bos_token + '[INST]")) out->variant |= FMT_CHAT_BOS_EVERY_TURN;
        if (has(text, "content.strip()")) out->variant |= FMT_CHAT_TRIM;
        /* Templates of this family switch their own system text on by a constant. */
        const char *on = strstr(text, "true == true");
        if (on != NULL) out->default_system = assigned(on, "set system_message", &out->default_system_len);
    } else {
        out->kind = FMT_CHAT_MISTRAL;
        find_mistral_habits(text, out);
        out->default_system = assigned(text, "set default_system_message", &out->default_system_len);
    }
    return true;
}

static bool recognise_tags(const char *text, fmt_chat *out)
{
    if (has(text, "<|end|>")) {
        out->kind = FMT_CHAT_PHI3;
        bool line = has_line(text, "<|assistant|>") || has_line(text, "<|assistant|>' + '");
        if (!line) out->variant |= FMT_CHAT_NO_NEWLINE;
        return !has(text, "[BEGIN FINAL RESPONSE]");
    }
    out->kind = FMT_CHAT_ZEPHYR;
    if (user_text_ends(text, "eos_token")) return true;
    out->variant |= FMT_CHAT_TEXT_END;
    return user_text_ends(text, "<|endoftext|>");
}

static bool recognise_coder(const char *text, fmt_chat *out)
{
    out->kind = FMT_CHAT_DEEPSEEK;
    out->variant |= FMT_CHAT_CODER;
    out->default_system = literal(text, "You are an AI programming assistant", &out->default_system_len);
    return true;
}

bool fmt_chat_recognise(const char *text, fmt_chat *out)
{
    *out = (fmt_chat){0};
    if (has(text, "bos_token")) out->variant |= FMT_CHAT_BOS_FIRST;
    if (has(text, "<end_of_utterance>")) return false;
    if (has(text, "<|im_start|>")) return recognise_chatml(text, out);
    if (has(text, "[INST]")) return recognise_inst(text, out);
    if (has(text, "<|assistant|>")) return recognise_tags(text, out);
    if (has(text, "<|start_header_id|>") && has(text, "<|end_header_id|>"))
        return recognise_llama3(text, out);
    if (has(text, "### Instruction:") && has(text, "<|EOT|>")) return recognise_coder(text, out);
    if (has(text, "<" BAR "Assistant" BAR ">") && has(text, "<" BAR "User" BAR ">"))
        return recognise_deepseek3(text, out);
    out->kind = has(text, "<start_of_turn>") ? FMT_CHAT_GEMMA : FMT_CHAT_DEEPSEEK;
    return has(text, "<start_of_turn>") || has(text, "'Assistant: ' + message['content'] + eos_token");
}
