/* tokenizer.json (huggingface/tokenizers' format). The file may have 30 MiB, so it is read as a stream: once
 * to find its sections, then each section in place, the vocabulary three times (count, measure, copy), so
 * that nothing but the finished tables is ever held. Only the small sections become jansson trees, booked in
 * the ledger while they live. */
#include "fmt_json.h"
#include "fmt_tok_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SMALL_BYTES (4u << 20)

typedef struct section {
    uint64_t begin, end; /* both 0: absent */
} section;

enum { ADDED, NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, MODEL, N_TOP };
static const char *const top_keys[N_TOP] = {"added_tokens",   "normalizer", "pre_tokenizer",
                                            "post_processor", "decoder",    "model"};
enum {
    TYPE,
    UNK_TOKEN,
    UNK_ID,
    BYTE_FALLBACK,
    IGNORE_MERGES,
    FUSE_UNK,
    PREFIX,
    SUFFIX,
    VOCAB,
    MERGES,
    N_MODEL
};
static const char *const model_keys[N_MODEL] = {
    "type",
    "unk_token",
    "unk_id",
    "byte_fallback",
    "ignore_merges",
    "fuse_unk",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "vocab",
    "merges",
};

typedef struct loader {
    fmt_tokenizer *t;
    base_file *file;
    section top[N_TOP], model[N_MODEL];
    char *text; /* room for one token */
} loader;

static weir_status open_at(const loader *l, uint64_t begin, uint64_t end, fmt_reader *r, weir_error *err)
{
    *r = (fmt_reader){0};
    weir_status status = fmt_reader_init(r, l->t->env, l->file, begin, end, FMT_READER_BYTES, err);
    if (status == WEIR_OK) {
        r->range = "the file";
        r->past_status = WEIR_ERR_FORMAT;
    }
    return status;
}

/* Notes where the values of an object's known keys lie. */
static weir_status find_sections(fmt_reader *r, const char *const *keys, int n_keys, section *out,
                                 weir_error *err)
{
    bool first = true, more;
    char key[64], c = 0;
    size_t len;
    weir_status status = fmt_json_expect(r, '{', "an object", err);
    while (status == WEIR_OK && (status = fmt_json_more(r, '}', &first, &more, err)) == WEIR_OK && more) {
        status = fmt_json_string(r, key, sizeof key, &len, err);
        if (status == WEIR_OK) status = fmt_json_expect(r, ':', "a value", err);
        if (status == WEIR_OK) status = fmt_json_peek(r, &c, err);
        uint64_t begin = fmt_reader_pos(r);
        if (status == WEIR_OK) status = fmt_json_skip(r, 1, err);
        for (int i = 0; i < n_keys && status == WEIR_OK; i++) {
            if (strcmp(key, keys[i]) == 0) out[i] = (section){begin, fmt_reader_pos(r)};
        }
    }
    return status;
}

/* A small section as a tree; NULL when absent. Books ten times its text, which jansson's nodes stay below. */
static weir_status load_tree(const loader *l, const section *s, const char *name, json_t **out,
                             uint64_t *booked, weir_error *err)
{
    *out = NULL;
    *booked = 0;
    uint64_t bytes = s->end - s->begin;
    if (bytes == 0) return WEIR_OK;
    if (bytes > MAX_SMALL_BYTES) {
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: section \"%s\" has %llu bytes; at most 4 MiB are read", base_file_path(l->file),
                         name, (unsigned long long)bytes);
    }
    weir_status status = base_ledger_reserve(l->t->env, BASE_TAG_TOKENIZER, 10 * bytes, err);
    if (status != WEIR_OK) return status;
    *booked = 10 * bytes;
    char *text = base_alloc(l->t->env, BASE_TAG_TOKENIZER, (size_t)bytes, err);
    if (text == NULL) return fmt_tok_no_memory(err);
    status = base_file_read(l->file, s->begin, text, (size_t)bytes, err);
    json_error_t why;
    if (status == WEIR_OK) *out = json_loadb(text, (size_t)bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (status == WEIR_OK && *out == NULL) {
        status = base_fail(err, WEIR_ERR_FORMAT, "%s: section \"%s\": %s", base_file_path(l->file), name,
                           why.text);
    }
    base_free(l->t->env, text);
    return status;
}

typedef weir_status (*tree_fn)(fmt_tokenizer *t, const json_t *o, weir_error *err);

static weir_status with_tree(const loader *l, const section *s, const char *name, tree_fn fn, weir_error *err)
{
    json_t *tree;
    uint64_t booked;
    weir_status status = load_tree(l, s, name, &tree, &booked, err);
    if (status == WEIR_OK) {
        status = fn(l->t, tree, err);
        if (status != WEIR_OK) base_fail_context(err, status, "%s: %s", base_file_path(l->file), name);
    }
    json_decref(tree);
    base_ledger_release(l->t->env, BASE_TAG_TOKENIZER, booked);
    return status;
}

typedef enum scan_mode { SCAN_COUNT, SCAN_MEASURE, SCAN_COPY } scan_mode;
typedef struct scan {
    scan_mode mode;
    uint64_t n, bytes; /* COUNT: largest id + 1, bytes of all texts */
} scan;

/* One token of the vocabulary (type NORMAL) or of added_tokens, in one of the three passes. */
static weir_status take_token(const loader *l, scan *s, uint64_t id, const char *text, size_t len,
                              float score, uint8_t type, weir_error *err)
{
    fmt_tok_vocab *v = &l->t->vocab;
    if (id >= FMT_TOK_MAX_VOCAB || len > FMT_TOK_MAX_BYTES) {
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         "token %llu of %zu bytes; ids below %u and texts of %d bytes are possible",
                         (unsigned long long)id, len, FMT_TOK_MAX_VOCAB, FMT_TOK_MAX_BYTES);
    }
    bool added = type != FMT_TOK_NORMAL;
    if (s->mode == SCAN_COUNT) {
        if (id + 1 > s->n) s->n = id + 1;
        s->bytes += len;
    } else if (s->mode == SCAN_MEASURE) {
        if (id >= v->n) return base_fail(err, WEIR_ERR_FILE_CHANGED, "the file changed while it was read");
        /* Added tokens often repeat one of the vocabulary. */
        if (v->types[id] != 0 && (!added || v->offsets[id + 1] != len)) {
            return base_fail(err, WEIR_ERR_TOKENIZER, "id %llu belongs to two different tokens",
                             (unsigned long long)id);
        }
        v->types[id] = type;
        v->offsets[id + 1] = (uint32_t)len;
    } else {
        if (id >= v->n || len != v->offsets[id + 1] - v->offsets[id]) {
            return base_fail(err, WEIR_ERR_FILE_CHANGED, "the file changed while it was read");
        }
        char *to = v->blob + v->offsets[id];
        if (added && to[0] != '\0' && memcmp(to, text, len) != 0) {
            return base_fail(err, WEIR_ERR_TOKENIZER, "id %llu belongs to two different tokens",
                             (unsigned long long)id);
        }
        memcpy(to, text, len);
        if (v->scores != NULL && !added) v->scores[id] = score;
    }
    return WEIR_OK;
}

static weir_status read_number(fmt_reader *r, double *out, weir_error *err)
{
    char text[64], c = 0;
    size_t n = 0;
    weir_status status = fmt_json_peek(r, &c, err);
    while (status == WEIR_OK && n + 1 < sizeof text) {
        const char *p;
        status = fmt_reader_peek(r, 1, &p, "a number", err);
        if (status != WEIR_OK || *p == '\0' || strchr("+-.0123456789eE", *p) == NULL) break;
        text[n++] = *p;
        status = fmt_reader_skip(r, 1, "a number", err);
    }
    if (status != WEIR_OK) return status;
    text[n] = '\0';
    char *end;
    *out = strtod(text, &end);
    if (n == 0 || *end != '\0' || !isfinite(*out))
        return base_fail(err, WEIR_ERR_FORMAT, "'%s' is no number", text);
    return WEIR_OK;
}

static weir_status scan_vocab(const loader *l, scan *s, weir_error *err)
{
    fmt_reader r;
    bool first = true, more;
    char c = '\0';
    size_t len;
    uint64_t id = 0;
    double score = 0;
    weir_status status = open_at(l, l->model[VOCAB].begin, l->model[VOCAB].end, &r, err);
    if (status == WEIR_OK) status = fmt_json_peek(&r, &c, err);
    bool listed = status == WEIR_OK && c == '['; /* unigram: [text, score] in the order of ids */
    if (status == WEIR_OK) status = fmt_json_expect(&r, listed ? '[' : '{', "the vocabulary", err);
    while (status == WEIR_OK &&
           (status = fmt_json_more(&r, listed ? ']' : '}', &first, &more, err)) == WEIR_OK && more) {
        if (listed) status = fmt_json_expect(&r, '[', "a token and its score", err);
        if (status == WEIR_OK) status = fmt_json_string(&r, l->text, FMT_TOK_MAX_BYTES + 1, &len, err);
        if (status == WEIR_OK) status = fmt_json_expect(&r, listed ? ',' : ':', "its score or id", err);
        if (status == WEIR_OK) status = listed ? read_number(&r, &score, err) : fmt_json_u64(&r, &id, err);
        if (status == WEIR_OK && listed) status = fmt_json_expect(&r, ']', "one score", err);
        if (status == WEIR_OK) status = take_token(l, s, id, l->text, len, (float)score, FMT_TOK_NORMAL, err);
        if (listed) id++;
    }
    fmt_reader_finish(&r);
    return status;
}

static weir_status read_flag(fmt_reader *r, bool *out, weir_error *err)
{
    char c = '\0';
    weir_status status = fmt_json_peek(r, &c, err);
    if (status == WEIR_OK) status = fmt_json_skip(r, 3, err);
    *out = c == 't';
    return status;
}

static weir_status scan_added_token(const loader *l, scan *s, fmt_reader *r, weir_error *err)
{
    static const char *const flag_keys[] = {"special", "lstrip", "rstrip", "single_word"};
    bool first = true, more, flags[4] = {false}, has_id = false, has_text = false;
    char key[32];
    size_t key_len, len = 0;
    uint64_t id = 0;
    weir_status status = fmt_json_expect(r, '{', "an added token", err);
    while (status == WEIR_OK && (status = fmt_json_more(r, '}', &first, &more, err)) == WEIR_OK && more) {
        status = fmt_json_string(r, key, sizeof key, &key_len, err);
        if (status == WEIR_OK) status = fmt_json_expect(r, ':', "a value", err);
        if (status != WEIR_OK) break;
        int k = 0;
        while (k < 4 && strcmp(key, flag_keys[k]) != 0) k++;
        if (k < 4) {
            status = read_flag(r, &flags[k], err);
        } else if (strcmp(key, "id") == 0) {
            status = fmt_json_u64(r, &id, err);
            has_id = true;
        } else if (strcmp(key, "content") == 0) {
            status = fmt_json_string(r, l->text, FMT_TOK_MAX_BYTES + 1, &len, err);
            has_text = true;
        } else {
            status = fmt_json_skip(r, 3, err);
        }
    }
    if (status != WEIR_OK) return status;
    if (!has_id || !has_text)
        return base_fail(err, WEIR_ERR_TOKENIZER, "an added token without id or content");
    unsigned type = flags[0] ? FMT_TOK_CONTROL : FMT_TOK_USER;
    if (flags[1]) type |= FMT_TOK_LSTRIP;
    if (flags[2]) type |= FMT_TOK_RSTRIP;
    if (flags[3]) type |= FMT_TOK_SINGLE_WORD;
    return take_token(l, s, id, l->text, len, 0, (uint8_t)type, err);
}

static weir_status scan_added(const loader *l, scan *s, weir_error *err)
{
    fmt_reader r;
    bool first = true, more;
    char c = '\0';
    if (l->top[ADDED].end == 0) return WEIR_OK;
    weir_status status = open_at(l, l->top[ADDED].begin, l->top[ADDED].end, &r, err);
    if (status == WEIR_OK) status = fmt_json_peek(&r, &c, err);
    if (status == WEIR_OK && c == '[') {
        status = fmt_json_expect(&r, '[', "the added tokens", err);
        while (status == WEIR_OK && (status = fmt_json_more(&r, ']', &first, &more, err)) == WEIR_OK &&
               more) {
            status = scan_added_token(l, s, &r, err);
        }
    }
    fmt_reader_finish(&r);
    return status;
}

static weir_status read_vocab(loader *l, weir_error *err)
{
    fmt_tok_vocab *v = &l->t->vocab;
    scan s = {.mode = SCAN_COUNT};
    if (l->model[VOCAB].end == 0)
        return base_fail(err, WEIR_ERR_TOKENIZER, "the tokenizer's model has no vocabulary");
    weir_status status = scan_vocab(l, &s, err);
    if (status == WEIR_OK) status = scan_added(l, &s, err);
    if (status == WEIR_OK)
        status = fmt_tok_vocab_init(l->t->env, v, s.n, s.bytes, l->t->kind == FMT_TOK_UNIGRAM, err);
    s.mode = SCAN_MEASURE;
    if (status == WEIR_OK) status = scan_vocab(l, &s, err);
    if (status == WEIR_OK) status = scan_added(l, &s, err);
    if (status != WEIR_OK) return status;
    for (uint32_t id = 0; id < v->n; id++) {
        v->offsets[id + 1] += v->offsets[id];
        if (v->types[id] == 0) v->types[id] = FMT_TOK_UNUSED;
    }
    s.mode = SCAN_COPY;
    status = scan_vocab(l, &s, err);
    if (status == WEIR_OK) status = scan_added(l, &s, err);
    if (status == WEIR_OK) status = fmt_tok_vocab_index(l->t->env, v, err);
    return status;
}

static weir_status read_merge(fmt_reader *r, char *text, size_t *left, size_t *len, weir_error *err)
{
    char c = '\0';
    weir_status status = fmt_json_peek(r, &c, err);
    if (status != WEIR_OK) return status;
    if (c == '"') {
        status = fmt_json_string(r, text, FMT_TOK_MAX_BYTES + 1, len, err);
        if (status != WEIR_OK) return status;
        char *space = memchr(text, ' ', *len);
        if (space == NULL) return base_fail(err, WEIR_ERR_TOKENIZER, "a merge has no two parts");
        *left = (size_t)(space - text);
        memmove(space, space + 1, *len - *left - 1);
        (*len)--;
        return WEIR_OK;
    }
    status = fmt_json_expect(r, '[', "a merge", err);
    if (status == WEIR_OK) status = fmt_json_string(r, text, FMT_TOK_MAX_BYTES / 2, left, err);
    if (status == WEIR_OK) status = fmt_json_expect(r, ',', "two parts", err);
    if (status == WEIR_OK) status = fmt_json_string(r, text + *left, FMT_TOK_MAX_BYTES / 2, len, err);
    if (status == WEIR_OK) status = fmt_json_expect(r, ']', "no third part", err);
    *len += *left;
    return status;
}

static weir_status read_merges(const loader *l, weir_error *err)
{
    fmt_reader r = {0};
    fmt_tok_merge_list list = {.env = l->t->env};
    bool first = true, more;
    size_t left = 0, len = 0;
    if (l->model[MERGES].end == 0) return base_fail(err, WEIR_ERR_TOKENIZER, "the BPE model has no merges");
    weir_status status = open_at(l, l->model[MERGES].begin, l->model[MERGES].end, &r, err);
    if (status == WEIR_OK) status = fmt_json_expect(&r, '[', "the merges", err);
    while (status == WEIR_OK && (status = fmt_json_more(&r, ']', &first, &more, err)) == WEIR_OK && more) {
        status = read_merge(&r, l->text, &left, &len, err);
        if (status == WEIR_OK)
            status = fmt_tok_merge_add(&list, &l->t->vocab, l->text, left, l->text + left, len - left, err);
    }
    if (status == WEIR_OK) status = fmt_tok_merges_build(&list, &l->t->vocab, &l->t->merges, err);
    fmt_tok_merge_list_finish(&list);
    fmt_reader_finish(&r);
    return status;
}

/* The model's scalars, each a section of its own. */
static weir_status read_scalar(const loader *l, int k, json_t **out, weir_error *err)
{
    uint64_t booked;
    weir_status status = load_tree(l, &l->model[k], model_keys[k], out, &booked, err);
    base_ledger_release(l->t->env, BASE_TAG_TOKENIZER, booked);
    return status;
}

static weir_status read_flag_of(const loader *l, int k, bool *out, weir_error *err)
{
    json_t *value;
    weir_status status = read_scalar(l, k, &value, err);
    *out = json_is_true(value);
    json_decref(value);
    return status;
}

static weir_status read_kind(const loader *l, weir_error *err)
{
    json_t *type;
    weir_status status = read_scalar(l, TYPE, &type, err);
    if (status != WEIR_OK) return status;
    const char *name = json_is_string(type)        ? json_string_value(type)
                       : l->model[MERGES].end != 0 ? "BPE"
                                                   : "Unigram";
    if (strcmp(name, "BPE") == 0) {
        l->t->kind = FMT_TOK_BPE;
    } else if (strcmp(name, "Unigram") == 0) {
        l->t->kind = FMT_TOK_UNIGRAM;
    } else {
        status = base_fail(err, WEIR_ERR_UNSUPPORTED, "tokenizer model '%.64s' is not supported", name);
    }
    json_decref(type);
    for (int k = PREFIX; k <= SUFFIX && status == WEIR_OK; k++) {
        json_t *value;
        status = read_scalar(l, k, &value, err);
        if (status == WEIR_OK && json_string_length(value) > 0) {
            status = base_fail(err, WEIR_ERR_UNSUPPORTED, "%s \"%.32s\" is not supported", model_keys[k],
                               json_string_value(value));
        }
        json_decref(value);
    }
    return status;
}

static weir_status read_unknown(const loader *l, weir_error *err)
{
    fmt_tokenizer *t = l->t;
    json_t *value;
    weir_status status = read_scalar(l, UNK_TOKEN, &value, err);
    if (status == WEIR_OK && json_is_string(value))
        t->unk = fmt_tok_find(&t->vocab, json_string_value(value), json_string_length(value));
    json_decref(value);
    if (status == WEIR_OK) status = read_scalar(l, UNK_ID, &value, err);
    if (status != WEIR_OK) return status;
    if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < t->vocab.n) {
        t->unk = (int32_t)json_integer_value(value);
    }
    json_decref(value);
    t->unk_written = t->unk;
    if (t->unk >= 0 && fmt_tok_type_of(&t->vocab, (uint32_t)t->unk) == FMT_TOK_NORMAL)
        t->vocab.types[t->unk] = FMT_TOK_UNKNOWN;
    return WEIR_OK;
}

static weir_status read_model(loader *l, weir_error *err)
{
    fmt_tokenizer *t = l->t;
    fmt_reader r;
    if (l->top[MODEL].end == 0) return base_fail(err, WEIR_ERR_TOKENIZER, "no \"model\"");
    weir_status status = open_at(l, l->top[MODEL].begin, l->top[MODEL].end, &r, err);
    if (status == WEIR_OK) status = find_sections(&r, model_keys, N_MODEL, l->model, err);
    fmt_reader_finish(&r);
    if (status == WEIR_OK) status = read_kind(l, err);
    if (status == WEIR_OK) status = read_flag_of(l, BYTE_FALLBACK, &t->byte_fallback, err);
    if (status == WEIR_OK) status = read_flag_of(l, IGNORE_MERGES, &t->ignore_merges, err);
    if (status == WEIR_OK) status = read_flag_of(l, FUSE_UNK, &t->fuse_unk, err);
    if (status == WEIR_OK) status = read_vocab(l, err);
    if (status == WEIR_OK && t->kind == FMT_TOK_BPE) status = read_merges(l, err);
    if (status == WEIR_OK) status = read_unknown(l, err);
    return status;
}

static weir_status load_all(loader *l, weir_error *err)
{
    fmt_tokenizer *t = l->t;
    fmt_reader r;
    weir_status status = open_at(l, 0, base_file_size(l->file), &r, err);
    if (status == WEIR_OK) status = find_sections(&r, top_keys, N_TOP, l->top, err);
    if (status == WEIR_OK) status = fmt_json_end(&r, err);
    fmt_reader_finish(&r);
    if (status != WEIR_OK) return status;
    status = read_model(l, err);
    if (status != WEIR_OK) return base_fail_context(err, status, "%s", base_file_path(l->file));
    t->leftmost_specials = true;
    status = with_tree(l, &l->top[NORMALIZER], "normalizer", fmt_tok_read_normalizer, err);
    if (status == WEIR_OK)
        status = with_tree(l, &l->top[PRE_TOKENIZER], "pre_tokenizer", fmt_tok_read_pre_tokenizer, err);
    if (status == WEIR_OK) status = with_tree(l, &l->top[DECODER], "decoder", fmt_tok_read_decoder, err);
    if (status == WEIR_OK)
        status = with_tree(l, &l->top[POST_PROCESSOR], "post_processor", fmt_tok_read_post_processor, err);
    return status;
}

weir_status fmt_tok_load_json(fmt_tokenizer *t, const fmt_model *m, const char *path, weir_error *err)
{
    loader l = {.t = t};
    weir_status status = base_file_open(t->env, path, &l.file, err);
    if (status != WEIR_OK) return status;
    l.text = base_alloc(t->env, BASE_TAG_TOKENIZER, FMT_TOK_MAX_BYTES + 2, err);
    status = l.text == NULL ? fmt_tok_no_memory(err) : load_all(&l, err);
    base_free(t->env, l.text);
    base_file_close(l.file);
    if (status == WEIR_OK) status = fmt_tok_read_config(t, m, fmt_get_str(m, "weir.tokenizer_config"), err);
    return status;
}
