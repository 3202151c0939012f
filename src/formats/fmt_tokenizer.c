/* The tokenizer's public face, and what every kind needs after its vocabulary is loaded: byte tokens, the
 * tokens that end an answer, the index of special tokens. */
#include "fmt_tok_internal.h"

#include <float.h>
#include <string.h>

/* U+FF5C and U+2581 stand in it. */
#define DEEPSEEK_END                                                                                         \
    "<\xef\xbd\x9c"                                                                                          \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

/* Texts of tokens that end a turn or a document, whatever the metadata say. </s> and <eos> count only as the
 * model's EOS: elsewhere they are HTML or unused. */
static const char *const end_texts[] = {
    "<|im_end|>",      "<|eot_id|>",         "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|return|>",         "<|call|>",   "<EOT>",   "<|EOT|>",       "_<EOT>",
    "[EOT]",           "<end_of_utterance>", DEEPSEEK_END,
};
/* Which of them is the end of a turn, best first, when the metadata name none. */
static const char *const turn_texts[] = {"<|eot_id|>", "<|im_end|>", "<|end|>",      "<end_of_turn>",
                                         "<EOT>",      "<|EOT|>",    "<|endoftext|>"};

static weir_status add_end(fmt_tokenizer *t, int32_t id, weir_error *err)
{
    if (id < 0 || fmt_tokenizer_is_end(t, id)) return WEIR_OK;
    if (t->n_ends == FMT_TOK_MAX_ENDS)
        return base_fail(err, WEIR_ERR_TOKENIZER, "more than %d tokens end an answer", FMT_TOK_MAX_ENDS);
    t->ends[t->n_ends++] = id;
    return WEIR_OK;
}

/* Ids that generation_config.json lists; some may lie behind the tokenizer's last token and still be
 * generated. */
static weir_status add_listed_ends(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    const fmt_value *value = fmt_model_find_value(m, "weir.eos_token_ids");
    fmt_array *a = NULL;
    if (value == NULL || value->type != FMT_ARRAY) return WEIR_OK;
    weir_status status = fmt_array_open(t->env, m, value, &a, err);
    for (uint64_t i = 0; i < value->v.array.count && status == WEIR_OK; i++) {
        int64_t id;
        status = fmt_array_next_i64(a, &id, err);
        if (status == WEIR_OK && id >= 0 && id <= INT32_MAX) status = add_end(t, (int32_t)id, err);
    }
    fmt_array_close(a);
    return status;
}

static weir_status find_ends(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    fmt_tok_vocab *v = &t->vocab;
    uint64_t eos = 0;
    weir_status status = add_listed_ends(t, m, err);
    /* tokenizer_config.json may name another EOS than config.json: both end an answer. */
    if (status == WEIR_OK)
        status = fmt_get_u64(m, "tokenizer.ggml.eos_token_id", UINT32_MAX, 0, UINT32_MAX, &eos, err);
    if (status == WEIR_OK && eos < v->n) status = add_end(t, (int32_t)eos, err);
    bool harmony = fmt_tok_find(v, "<|return|>", 10) >= 0 && fmt_tok_find(v, "<|call|>", 8) >= 0;
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0] && status == WEIR_OK; i++) {
        int32_t id = fmt_tok_find(v, end_texts[i], strlen(end_texts[i]));
        /* gpt-oss ends every message with <|end|> and goes on. */
        if (id < 0 || (harmony && strcmp(end_texts[i], "<|end|>") == 0)) continue;
        v->types[id] = (uint8_t)((v->types[id] & ~FMT_TOK_TYPE_MASK) | FMT_TOK_CONTROL);
        status = add_end(t, id, err);
    }
    for (size_t i = 0; i < sizeof turn_texts / sizeof turn_texts[0] && t->eot < 0; i++) {
        t->eot = fmt_tok_find(v, turn_texts[i], strlen(turn_texts[i]));
    }
    if (t->eom < 0) t->eom = fmt_tok_find(v, "<|eom_id|>", 10);
    if (status == WEIR_OK) status = add_end(t, t->eos, err);
    if (status == WEIR_OK) status = add_end(t, t->eot, err);
    if (status == WEIR_OK) status = add_end(t, t->eom, err);
    return status;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of a token written <0xHH>, or -1. */
static int byte_of(const char *text, uint32_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static weir_status find_bytes(fmt_tokenizer *t, weir_error *err)
{
    for (int i = 0; i < 256; i++) t->byte_ids[i] = -1;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        uint32_t len;
        const char *text = fmt_tok_text(&t->vocab, id, &len);
        bool marked = fmt_tok_type_of(&t->vocab, id) == FMT_TOK_BYTE;
        if (!marked && (!t->byte_fallback || len != 6)) continue;
        int byte = byte_of(text, len);
        if (byte < 0 && marked) {
            return base_fail(err, WEIR_ERR_TOKENIZER,
                             "token %u is marked as a byte, but its text '%.*s' is not of the form <0xHH>",
                             id, (int)(len < 32 ? len : 32), text);
        }
        if (byte < 0 || t->byte_ids[byte] >= 0) continue;
        t->byte_ids[byte] = (int32_t)id;
        t->vocab.types[id] = FMT_TOK_BYTE;
    }
    return WEIR_OK;
}

/* The longest plain token, where words may be cut apart, and for unigram the score of what is unknown:
 * SentencePiece's penalty of 10 below the worst. */
static void measure(fmt_tokenizer *t)
{
    static const char mark[] = "\xe2\x96\x81";
    float worst = FLT_MAX;
    t->max_normal_len = 0;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        uint32_t len;
        const char *text = fmt_tok_text(&t->vocab, id, &len);
        fmt_tok_type type = fmt_tok_type_of(&t->vocab, id);
        if (type != FMT_TOK_NORMAL && type != FMT_TOK_USER && type != FMT_TOK_UNUSED) continue;
        if (len > t->max_normal_len) t->max_normal_len = len;
        for (uint32_t i = 1; t->escape_spaces && i + 3 <= len; i++) {
            uint8_t before = (uint8_t)text[i - 1];
            if (memcmp(text + i, mark, 3) == 0) t->no_cut[before / 8] |= (uint8_t)(1u << before % 8);
        }
        if (type == FMT_TOK_NORMAL && t->vocab.scores != NULL && t->vocab.scores[id] < worst)
            worst = t->vocab.scores[id];
    }
    t->unknown_score = worst == FLT_MAX ? 0 : worst - 10;
}

weir_status fmt_tok_settle(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    if (t->bos < 0) t->add_bos = false;
    if (t->eos < 0) t->add_eos = false;
    weir_status status = find_bytes(t, err);
    if (status == WEIR_OK) status = find_ends(t, m, err);
    if (status == WEIR_OK) status = fmt_tok_special_index(t, err);
    if (status != WEIR_OK) return status;
    measure(t);
    return fmt_detok_measure(t, err);
}

weir_status fmt_tokenizer_create(base_env *env, const fmt_model *m, fmt_tokenizer **out, weir_error *err)
{
    weir_error local = {0};
    if (err == NULL) err = &local;
    *out = NULL;
    fmt_tokenizer *t = base_alloc(env, BASE_TAG_TOKENIZER, sizeof *t, err);
    if (t == NULL) return err->code;
    t->env = env;
    t->bos = t->eos = t->eot = t->eom = t->unk = t->pad = t->unk_written = -1;
    /* A GGUF file carries its own; a path in its metadata is not ours to follow. */
    bool gguf = strncmp(fmt_model_format(m), "GGUF", 4) == 0;
    const char *json = gguf ? NULL : fmt_get_str(m, "weir.tokenizer_json");
    weir_status status = json != NULL ? fmt_tok_load_json(t, m, json, err) : fmt_tok_load_gguf(t, m, err);
    if (status == WEIR_OK) status = fmt_tok_settle(t, m, err);
    if (status != WEIR_OK) {
        fmt_tokenizer_destroy(t);
        const base_file *file = fmt_model_file(m, 0);
        const char *path = json != NULL ? json : file != NULL ? base_file_path(file) : "the model";
        if (strstr(err->message, path) != NULL) return status;
        return base_fail_context(err, status, "%s", path);
    }
    *out = t;
    return WEIR_OK;
}

void fmt_tokenizer_destroy(fmt_tokenizer *t)
{
    if (t == NULL) return;
    fmt_tok_split_finish(&t->split);
    fmt_tok_merges_finish(t->env, &t->merges);
    fmt_tok_charsmap_finish(t->env, &t->charsmap);
    fmt_tok_vocab_finish(t->env, &t->vocab);
    base_free(t->env, t->chat_template);
    base_free(t->env, t);
}

void fmt_tokenizer_get_info(const fmt_tokenizer *t, fmt_tokenizer_info *out)
{
    static const char *const kinds[] = {"bpe", "spm", "unigram", "wordpiece"};
    *out = (fmt_tokenizer_info){
        .kind = kinds[t->kind],
        .pre = t->pre,
        .n_vocab = t->vocab.n,
        .most_text = t->most_text,
        .bos = t->bos,
        .eos = t->eos,
        .eot = t->eot,
        .unk = t->unk,
        .pad = t->pad,
        .add_bos = t->add_bos,
        .add_eos = t->add_eos,
    };
}

bool fmt_tokenizer_token(const fmt_tokenizer *t, int32_t id, const char **text, size_t *len)
{
    if (id < 0 || (uint32_t)id >= t->vocab.n) return false;
    uint32_t n;
    *text = fmt_tok_text(&t->vocab, (uint32_t)id, &n);
    *len = n;
    return true;
}

int32_t fmt_tokenizer_find(const fmt_tokenizer *t, const char *text, size_t len)
{
    return fmt_tok_find(&t->vocab, text, len);
}

bool fmt_tokenizer_is_end(const fmt_tokenizer *t, int32_t id)
{
    for (uint32_t i = 0; i < t->n_ends; i++) {
        if (t->ends[i] == id) return true;
    }
    return false;
}

bool fmt_tokenizer_is_special(const fmt_tokenizer *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->vocab.n) return false;
    fmt_tok_type type = fmt_tok_type_of(&t->vocab, (uint32_t)id);
    return type == FMT_TOK_CONTROL || type == FMT_TOK_UNKNOWN;
}
