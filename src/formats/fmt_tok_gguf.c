/* A tokenizer from GGUF metadata (ggml documentation, docs/gguf.md, "tokenizer.ggml.*"); defaults where keys
 * are missing are llama.cpp's. */
#include "fmt_tok_internal.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

static weir_status get_array(const fmt_model *m, const char *key, uint64_t n, const fmt_value **out,
                             weir_error *err)
{
    const fmt_value *value = fmt_model_find_value(m, key);
    *out = NULL;
    if (value == NULL) return WEIR_OK;
    if (value->type != FMT_ARRAY) return base_fail(err, WEIR_ERR_FORMAT, "%s is not an array", key);
    if (n != 0 && value->v.array.count != n) {
        return base_fail(err, WEIR_ERR_TOKENIZER, "%s has %llu entries for %llu tokens", key,
                         (unsigned long long)value->v.array.count, (unsigned long long)n);
    }
    *out = value;
    return WEIR_OK;
}

static weir_status read_texts(fmt_tokenizer *t, fmt_array *a, uint64_t cap, weir_error *err)
{
    fmt_tok_vocab *v = &t->vocab;
    uint64_t used = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *text;
        uint64_t len;
        weir_status status = fmt_array_next_str(a, &text, &len, err);
        if (status != WEIR_OK) return status;
        if (len > FMT_TOK_MAX_BYTES || len > cap - used) {
            return base_fail(err, WEIR_ERR_TOKENIZER,
                             "token %u has a text of %llu bytes; at most %d are possible", id,
                             (unsigned long long)len, FMT_TOK_MAX_BYTES);
        }
        memcpy(v->blob + used, text, (size_t)len);
        used += len;
        v->offsets[id + 1] = (uint32_t)used;
    }
    return WEIR_OK;
}

static weir_status read_types(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    fmt_tok_vocab *v = &t->vocab;
    const fmt_value *value;
    fmt_array *a = NULL;
    memset(v->types, FMT_TOK_NORMAL, v->n);
    weir_status status = get_array(m, KEY("token_type"), v->n, &value, err);
    if (status != WEIR_OK || value == NULL) return status;
    status = fmt_array_open(t->env, m, value, &a, err);
    for (uint32_t id = 0; id < v->n && status == WEIR_OK; id++) {
        int64_t type;
        status = fmt_array_next_i64(a, &type, err);
        if (status == WEIR_OK)
            v->types[id] = type >= FMT_TOK_NORMAL && type <= FMT_TOK_BYTE ? (uint8_t)type : FMT_TOK_UNUSED;
    }
    fmt_array_close(a);
    return status;
}

static weir_status read_scores(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    fmt_tok_vocab *v = &t->vocab;
    const fmt_value *value;
    fmt_array *a = NULL;
    weir_status status = get_array(m, KEY("scores"), v->n, &value, err);
    if (status != WEIR_OK) return status;
    if (value == NULL)
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         KEY("scores") " is missing; this kind of tokenizer needs it");
    status = fmt_array_open(t->env, m, value, &a, err);
    for (uint32_t id = 0; id < v->n && status == WEIR_OK; id++) {
        double score;
        status = fmt_array_next_f64(a, &score, err);
        if (status == WEIR_OK && !isfinite(score))
            status = base_fail(err, WEIR_ERR_TOKENIZER, "the score of token %u is not a number", id);
        if (status == WEIR_OK) v->scores[id] = (float)score;
    }
    fmt_array_close(a);
    return status;
}

static weir_status read_vocab(fmt_tokenizer *t, const fmt_model *m, bool scores, weir_error *err)
{
    const fmt_value *value;
    fmt_array *a = NULL;
    weir_status status = get_array(m, KEY("tokens"), 0, &value, err);
    if (status != WEIR_OK) return status;
    if (value == NULL || value->v.array.type != FMT_STRING) {
        return base_fail(err, WEIR_ERR_TOKENIZER, KEY("tokens") " is missing or no array of strings");
    }
    /* Each string stands behind its 8-byte length. */
    uint64_t n = value->v.array.count, lengths = 0;
    if (!base_mul(n, 8, &lengths) || lengths > value->v.array.bytes) {
        return base_fail(err, WEIR_ERR_TOKENIZER, KEY("tokens") ": %llu texts in %llu bytes",
                         (unsigned long long)n, (unsigned long long)value->v.array.bytes);
    }
    uint64_t bytes = value->v.array.bytes - lengths;
    status = fmt_tok_vocab_init(t->env, &t->vocab, n, bytes, scores, err);
    if (status == WEIR_OK) status = fmt_array_open(t->env, m, value, &a, err);
    if (status == WEIR_OK) status = read_texts(t, a, bytes, err);
    fmt_array_close(a);
    if (status == WEIR_OK) status = read_types(t, m, err);
    if (status == WEIR_OK && scores) status = read_scores(t, m, err);
    if (status == WEIR_OK) status = fmt_tok_vocab_index(t->env, &t->vocab, err);
    return status;
}

static weir_status read_merges(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    const fmt_value *value;
    fmt_array *a = NULL;
    fmt_tok_merge_list list = {.env = t->env};
    weir_status status = get_array(m, KEY("merges"), 0, &value, err);
    if (status != WEIR_OK) return status;
    if (value == NULL || value->v.array.type != FMT_STRING) {
        return base_fail(err, WEIR_ERR_TOKENIZER, KEY("merges") " is missing or no array of strings");
    }
    status = fmt_tok_merge_reserve(&list, value->v.array.count, err);
    if (status == WEIR_OK) status = fmt_array_open(t->env, m, value, &a, err);
    for (uint64_t i = 0; i < value->v.array.count && status == WEIR_OK; i++) {
        const char *text;
        uint64_t len;
        status = fmt_array_next_str(a, &text, &len, err);
        if (status != WEIR_OK) break;
        /* The parts stand around a space, which a part may begin with but not contain. */
        const char *space = len > 1 ? memchr(text + 1, ' ', (size_t)len - 1) : NULL;
        if (space == NULL) {
            status = base_fail(err, WEIR_ERR_TOKENIZER, "merge %llu ('%.*s') has no two parts",
                               (unsigned long long)i, (int)(len < 64 ? len : 64), text);
            break;
        }
        size_t left = (size_t)(space - text);
        status = fmt_tok_merge_add(&list, &t->vocab, text, left, space + 1, (size_t)len - left - 1, err);
    }
    fmt_array_close(a);
    if (status == WEIR_OK) status = fmt_tok_merges_build(&list, &t->vocab, &t->merges, err);
    fmt_tok_merge_list_finish(&list);
    return status;
}

/* `fallback` counts where the key is missing and the vocabulary is large enough; -1 (also written as 2^32 -
 * 1) says "none". */
static weir_status read_id(const fmt_tokenizer *t, const fmt_model *m, const char *key, int32_t fallback,
                           int32_t *out, weir_error *err)
{
    const fmt_value *value = fmt_model_find_value(m, key);
    if (value == NULL) {
        *out = fallback < (int32_t)t->vocab.n ? fallback : -1;
        return WEIR_OK;
    }
    bool is_signed = value->type == FMT_I8 || value->type == FMT_I16 || value->type == FMT_I32;
    bool is_unsigned =
        value->type == FMT_U8 || value->type == FMT_U16 || value->type == FMT_U32 || value->type == FMT_U64;
    *out = -1;
    if ((is_signed && value->v.i == -1) || (is_unsigned && value->v.u == UINT32_MAX)) return WEIR_OK;
    uint64_t id = 0;
    weir_status status = fmt_get_u64(m, key, 0, 0, UINT32_MAX, &id, err);
    if (status != WEIR_OK) return status;
    if (id >= t->vocab.n) {
        return base_fail(err, WEIR_ERR_TOKENIZER, "%s is %llu, but the vocabulary has %u tokens", key,
                         (unsigned long long)id, t->vocab.n);
    }
    *out = (int32_t)id;
    return WEIR_OK;
}

typedef struct defaults {
    int32_t bos, eos, unk;
    bool add_bos, add_eos;
} defaults;

static weir_status read_specials(fmt_tokenizer *t, const fmt_model *m, const defaults *d, weir_error *err)
{
    /* BERT's file calls its frame CLS and SEP. */
    bool bert = t->kind == FMT_TOK_WORDPIECE && fmt_model_find_value(m, KEY("bos_token_id")) == NULL;
    weir_status status =
        read_id(t, m, bert ? KEY("cls_token_id") : KEY("bos_token_id"), d->bos, &t->bos, err);
    bool sep = t->kind == FMT_TOK_WORDPIECE && fmt_model_find_value(m, KEY("eos_token_id")) == NULL;
    if (status == WEIR_OK)
        status = read_id(t, m, sep ? KEY("seperator_token_id") : KEY("eos_token_id"), d->eos, &t->eos, err);
    if (status == WEIR_OK) status = read_id(t, m, KEY("eot_token_id"), -1, &t->eot, err);
    if (status == WEIR_OK) status = read_id(t, m, KEY("eom_token_id"), -1, &t->eom, err);
    if (status == WEIR_OK) status = read_id(t, m, KEY("unknown_token_id"), d->unk, &t->unk, err);
    if (status == WEIR_OK) status = read_id(t, m, KEY("padding_token_id"), -1, &t->pad, err);
    if (status == WEIR_OK) status = fmt_get_bool(m, KEY("add_bos_token"), d->add_bos, &t->add_bos, err);
    if (status == WEIR_OK) status = fmt_get_bool(m, KEY("add_eos_token"), d->add_eos, &t->add_eos, err);
    if (status == WEIR_OK)
        status = fmt_get_bool(m, KEY("add_space_prefix"), t->space_prefix, &t->space_prefix, err);
    if (status == WEIR_OK)
        status = fmt_get_bool(m, KEY("remove_extra_whitespaces"), false, &t->squeeze_spaces, err);
    if (status == WEIR_OK)
        status = fmt_get_bool(m, KEY("normalizer.lowercase"), t->lowercase, &t->lowercase, err);
    t->strip_accents = t->lowercase;
    if (status == WEIR_OK)
        status = fmt_get_bool(m, KEY("normalizer.strip_accents"), t->strip_accents, &t->strip_accents, err);
    return status;
}

static weir_status read_charsmap(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    const fmt_value *value;
    fmt_array *a = NULL;
    uint8_t *bytes = NULL;
    weir_status status = get_array(m, KEY("precompiled_charsmap"), 0, &value, err);
    if (status != WEIR_OK || value == NULL) return status;
    uint64_t n = value->v.array.count;
    if (n > UINT32_MAX || (value->v.array.type != FMT_U8 && value->v.array.type != FMT_I8)) {
        return base_fail(err, WEIR_ERR_TOKENIZER, KEY("precompiled_charsmap") " is no array of bytes");
    }
    bytes = base_alloc(t->env, BASE_TAG_TOKENIZER, (size_t)n, err);
    if (bytes == NULL) return fmt_tok_no_memory(err);
    status = fmt_array_open(t->env, m, value, &a, err);
    for (uint64_t i = 0; i < n && status == WEIR_OK; i++) {
        int64_t byte;
        status = fmt_array_next_i64(a, &byte, err);
        if (status == WEIR_OK) bytes[i] = (uint8_t)byte;
    }
    fmt_array_close(a);
    if (status == WEIR_OK) status = fmt_tok_charsmap_init(t->env, &t->charsmap, bytes, (size_t)n, err);
    base_free(t->env, bytes);
    return status;
}

static weir_status use_preset(fmt_tokenizer *t, const char *name, defaults *d, weir_error *err)
{
    if (name == NULL || name[0] == '\0') {
        base_log(t->env, BASE_LOG_WARN,
                 "the model names no pre-tokenizer; taking 'default', answers may suffer");
        name = "default";
    }
    const fmt_tok_preset *p = fmt_tok_preset_find(name);
    if (p == NULL || strlen(name) >= sizeof t->pre) {
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "pre-tokenizer '%.64s' (" KEY("pre") ") is not supported",
                         name);
    }
    memcpy(t->pre, name, strlen(name) + 1);
    t->ignore_merges = p->ignore_merges;
    d->add_bos = p->add_bos;
    weir_status status = WEIR_OK;
    for (size_t i = 0;
         i < sizeof p->patterns / sizeof p->patterns[0] && p->patterns[i] != NULL && status == WEIR_OK; i++) {
        status = fmt_tok_split_add(t->env, &t->split, p->patterns[i], strlen(p->patterns[i]),
                                   FMT_TOK_ISOLATED, false, err);
    }
    return status;
}

/* Phi-3's special tokens swallow the white space behind them; its GGUF files do not say so (as llama.cpp, by
 * name). */
static void adjust_phi3(fmt_tokenizer *t, const fmt_model *m)
{
    const char *name = fmt_get_str(m, "general.name");
    char low[64] = "";
    for (size_t i = 0; name != NULL && name[i] != '\0' && i + 1 < sizeof low; i++)
        low[i] = (char)tolower((unsigned char)name[i]);
    if (strstr(low, "phi-3") == NULL && strstr(low, "phi3") == NULL) return;
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        fmt_tok_type type = fmt_tok_type_of(&t->vocab, id);
        if (type == FMT_TOK_CONTROL || type == FMT_TOK_USER || type == FMT_TOK_UNKNOWN)
            t->vocab.types[id] |= FMT_TOK_RSTRIP;
    }
    for (size_t i = 0; i < sizeof keep / sizeof keep[0]; i++) {
        int32_t id = fmt_tok_find(&t->vocab, keep[i], strlen(keep[i]));
        if (id >= 0) t->vocab.types[id] &= (uint8_t)~FMT_TOK_RSTRIP;
    }
}

weir_status fmt_tok_load_gguf(fmt_tokenizer *t, const fmt_model *m, weir_error *err)
{
    const char *model, *pre;
    weir_status status = fmt_get_text(m, KEY("model"), &model, err);
    if (status == WEIR_OK) status = fmt_get_text(m, KEY("pre"), &pre, err);
    if (status != WEIR_OK) return status;
    if (model == NULL)
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         "the model has no tokenizer: no " KEY("model") " and no tokenizer.json");
    defaults d = {-1, -1, -1, false, false};
    if (strcmp(model, "gpt2") == 0) {
        t->kind = FMT_TOK_BPE;
        t->byte_level = true;
        status = use_preset(t, pre, &d, err);
    } else if (strcmp(model, "llama") == 0) {
        t->kind = FMT_TOK_SPM;
        t->space_prefix = t->prefix_after_added = t->escape_spaces = t->byte_fallback = true;
        d = (defaults){1, 2, 0, true, false};
    } else if (strcmp(model, "t5") == 0) {
        t->kind = FMT_TOK_UNIGRAM;
        t->prefix_after_added = t->escape_spaces = true;
        d = (defaults){-1, 1, 2, false, true};
    } else if (strcmp(model, "bert") == 0) {
        t->kind = FMT_TOK_WORDPIECE;
        t->lowercase = true;
        d = (defaults){101, 102, 100, true, false};
    } else {
        status = base_fail(err, WEIR_ERR_UNSUPPORTED,
                           "tokenizer kind '%.64s' (" KEY("model") ") is not supported", model);
    }
    bool scores = t->kind == FMT_TOK_SPM || t->kind == FMT_TOK_UNIGRAM;
    if (status == WEIR_OK) status = read_vocab(t, m, scores, err);
    if (status == WEIR_OK && t->kind == FMT_TOK_BPE) status = read_merges(t, m, err);
    if (status == WEIR_OK && t->kind == FMT_TOK_UNIGRAM) status = read_charsmap(t, m, err);
    if (status == WEIR_OK) status = read_specials(t, m, &d, err);
    if (status == WEIR_OK) adjust_phi3(t, m);
    /* Bytes without a token are left out of byte-level BPE; its "unknown" token is often the end of text. */
    t->unk_written = t->byte_level ? -1 : t->unk;
    t->strip_left = t->space_prefix || t->kind == FMT_TOK_WORDPIECE;
    return status;
}
