/* The pre-tokenizer: patterns cut a text into words before merging.
 *
 * PCRE2 does the matching, with its memory taken through the ledger and limits that grow with the piece, so
 * that no text makes it run away. A pattern sees one piece at a time: look-ahead ends where the piece ends.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "fmt_tok_internal.h"

#include <pcre2.h>
#include <string.h>

/* Unicode's White_Space. PCRE2's \s also takes U+180E, which tokenizers do not. */
#define WHITE                                                                                                \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static void *pcre_alloc(PCRE2_SIZE bytes, void *env)
{
    return base_alloc(env, BASE_TAG_TOKENIZER, bytes, NULL);
}
static void *pcre_alloc_work(PCRE2_SIZE bytes, void *env)
{
    return base_alloc(env, BASE_TAG_RUNTIME, bytes, NULL);
}
static void pcre_free(void *p, void *env)
{
    base_free(env, p);
}

static weir_status translate(base_buf *out, const char *p, size_t len, weir_error *err)
{
    bool in_class = false;
    weir_status status = base_buf_append(out, "", 0, err);
    for (size_t i = 0; i < len && status == WEIR_OK; i++) {
        if (p[i] == '\\' && i + 1 < len) {
            i++;
            if (p[i] == 's' && in_class) {
                status = base_buf_append(out, WHITE, strlen(WHITE), err);
            } else if (p[i] == 's' || (p[i] == 'S' && !in_class)) {
                status = base_buf_printf(out, err, p[i] == 's' ? "[%s]" : "[^%s]", WHITE);
            } else {
                status = base_buf_append(out, p + i - 1, 2, err);
            }
            continue;
        }
        if (in_class && p[i] == '&' && i + 1 < len && p[i + 1] == '&') {
            return base_fail(err, WEIR_ERR_UNSUPPORTED,
                             "pre-tokenizer pattern '%.*s' intersects character classes (&&)",
                             (int)(len < 200 ? len : 200), p);
        }
        /* A bare bracket inside a class is a literal. */
        if (p[i] == '[' || p[i] == ']') in_class = p[i] == '[';
        status = base_buf_append(out, p + i, 1, err);
    }
    return status;
}

weir_status fmt_tok_split_add(base_env *env, fmt_tok_split *s, const char *pattern, size_t len,
                              fmt_tok_behavior behavior, bool invert, weir_error *err)
{
    if (s->n == FMT_TOK_MAX_PATTERNS) {
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "pre-tokenizer of more than %d patterns",
                         FMT_TOK_MAX_PATTERNS);
    }
    if (s->context == NULL) s->context = pcre2_general_context_create(pcre_alloc, pcre_free, env);
    pcre2_compile_context *compile = s->context != NULL ? pcre2_compile_context_create(s->context) : NULL;
    if (compile == NULL)
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no memory to compile the pre-tokenizer");
    pcre2_set_parens_nest_limit(compile, 64);
    base_buf text;
    base_buf_init(&text, env, BASE_TAG_TOKENIZER);
    weir_status status = translate(&text, pattern, len, err);
    if (status == WEIR_OK) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)text.data, text.len,
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, compile);
        if (re == NULL && code == PCRE2_ERROR_HEAP_FAILED) {
            status = base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no memory to compile the pre-tokenizer");
        } else if (re == NULL) {
            char why[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            status = base_fail(
                err, code == PCRE2_ERROR_HEAP_FAILED ? WEIR_ERR_OUT_OF_MEMORY : WEIR_ERR_UNSUPPORTED,
                "pre-tokenizer pattern '%.*s' cannot be used: %s at offset %zu", (int)(len < 200 ? len : 200),
                pattern, why, (size_t)at);
        } else {
            s->behaviors[s->n] = (uint8_t)behavior;
            s->inverts[s->n] = invert;
            s->codes[s->n++] = re;
        }
    }
    base_buf_finish(&text);
    pcre2_compile_context_free(compile);
    return status;
}

void fmt_tok_split_finish(fmt_tok_split *s)
{
    for (uint32_t i = 0; i < s->n; i++) pcre2_code_free(s->codes[i]);
    pcre2_general_context_free(s->context);
    memset(s, 0, sizeof *s);
}

void fmt_tok_pieces_finish(fmt_tok_pieces *p)
{
    base_free(p->env, p->ends);
    base_free(p->env, p->drop);
    p->ends = NULL;
    p->drop = NULL;
    p->n = p->cap = 0;
}

static weir_status push_piece(fmt_tok_pieces *p, size_t end, bool drop, weir_error *err)
{
    if (p->n > 0 && p->ends[p->n - 1] == end) return WEIR_OK;
    if (p->n == p->cap) {
        size_t cap = p->cap < 256 ? 256 : p->cap * 2;
        uint32_t *ends = base_realloc(p->env, BASE_TAG_RUNTIME, p->ends, cap * sizeof *ends, err);
        if (ends == NULL) return fmt_tok_no_memory(err);
        p->ends = ends;
        uint8_t *drops = base_realloc(p->env, BASE_TAG_RUNTIME, p->drop, cap, err);
        if (drops == NULL) return fmt_tok_no_memory(err);
        p->drop = drops;
        p->cap = cap;
    }
    p->drop[p->n] = drop;
    p->ends[p->n++] = (uint32_t)end;
    return WEIR_OK;
}

/* A gap [begin, at) and the match [at, end) behind it become pieces as the behaviour says. */
static weir_status push_match(fmt_tok_pieces *out, fmt_tok_behavior behavior, size_t begin, size_t at,
                              size_t end, weir_error *err)
{
    weir_status status = WEIR_OK;
    if (behavior == FMT_TOK_MERGED_PREVIOUS) return push_piece(out, end, false, err);
    if (at > begin) status = push_piece(out, at, false, err);
    if (status == WEIR_OK && behavior != FMT_TOK_MERGED_NEXT)
        status = push_piece(out, end, behavior == FMT_TOK_REMOVED, err);
    return status;
}

typedef struct matcher {
    const fmt_tok_split *split;
    pcre2_match_data *data;
    pcre2_match_context *context;
} matcher;

static weir_status cut_piece(const matcher *m, uint32_t k, const char *text, size_t begin, size_t end,
                             fmt_tok_pieces *out, weir_error *err)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text + begin;
    size_t len = end - begin, from = 0, done = 0;
    fmt_tok_behavior behavior = (fmt_tok_behavior)m->split->behaviors[k];
    weir_status status = WEIR_OK;
    uint64_t limit = 100000 + 64 * (uint64_t)len;
    pcre2_set_match_limit(m->context, (uint32_t)(limit < UINT32_MAX ? limit : UINT32_MAX));
    while (from < len && status == WEIR_OK) {
        int rc = pcre2_match(m->split->codes[k], subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                             m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no memory to split %zu bytes of text", len);
        if (rc < 0) {
            return base_fail(err, WEIR_ERR_UNSUPPORTED,
                             "the pre-tokenizer's pattern %u gave up on %zu bytes of text (PCRE2 error %d); "
                             "split the text",
                             k, len, rc);
        }
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(m->data);
        size_t at = ov[0], stop = ov[1];
        if (stop <= at) break;
        if (m->split->inverts[k]) {
            /* What lies between matches is the separator. */
            if (at > done) status = push_piece(out, begin + at, behavior == FMT_TOK_REMOVED, err);
            if (status == WEIR_OK) status = push_piece(out, begin + stop, false, err);
        } else {
            status = push_match(out, behavior, begin + done, begin + at, begin + stop, err);
        }
        /* A match merged with what follows stays open. */
        done = behavior == FMT_TOK_MERGED_NEXT && !m->split->inverts[k] ? at : stop;
        from = stop;
    }
    if (status == WEIR_OK && done < len) {
        bool separator = m->split->inverts[k] && behavior == FMT_TOK_REMOVED;
        status = push_piece(out, end, separator, err);
    }
    return status;
}

static weir_status cut_all(const matcher *m, const fmt_tok_split *s, size_t len, const char *text,
                           fmt_tok_pieces *pieces, weir_error *err)
{
    fmt_tok_pieces next = {.env = pieces->env};
    weir_status status = push_piece(pieces, len, false, err);
    for (uint32_t k = 0; k < s->n && status == WEIR_OK; k++) {
        size_t begin = 0;
        next.n = 0;
        for (size_t i = 0; i < pieces->n && status == WEIR_OK; i++) {
            size_t end = pieces->ends[i];
            if (pieces->drop[i]) {
                status = push_piece(&next, end, true, err);
            } else {
                status = cut_piece(m, k, text, begin, end, &next, err);
            }
            begin = end;
        }
        fmt_tok_pieces swap = *pieces;
        *pieces = next;
        next = swap;
    }
    fmt_tok_pieces_finish(&next);
    return status;
}

weir_status fmt_tok_split_run(base_env *env, const fmt_tok_split *s, const char *text, size_t len,
                              fmt_tok_pieces *pieces, weir_error *err)
{
    pieces->env = env;
    pieces->n = 0;
    if (len == 0) return WEIR_OK;
    if (s->n == 0) return push_piece(pieces, len, false, err);
    weir_status status = WEIR_OK;
    matcher m = {.split = s};
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc_work, pcre_free, env);
    if (general != NULL) {
        m.data = pcre2_match_data_create(1, general);
        m.context = pcre2_match_context_create(general);
    }
    if (m.data == NULL || m.context == NULL) {
        status = base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no memory to split text into words");
        goto done;
    }
    pcre2_set_heap_limit(m.context, 64 * 1024);
    status = cut_all(&m, s, len, text, pieces, err);
done:
    pcre2_match_context_free(m.context);
    pcre2_match_data_free(m.data);
    pcre2_general_context_free(general);
    return status;
}
