/* The stages that a tokenizer.json describes around its model: normalizer, pre-tokenizer, decoder,
 * post-processor, and the names in tokenizer_config.json. They are read into the few switches that our
 * tokenizers have; what does not fit is UNSUPPORTED, by name. Meanings: huggingface/tokenizers'
 * documentation. */
#include "fmt_hf_json.h"
#include "fmt_tok_internal.h"

#include <string.h>

#define SPACE_MARK "\xe2\x96\x81"
#define GPT2       "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define MAX_DEPTH  8

static const char *str_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL ? s : "";
}

static bool flag_of(const json_t *o, const char *key, bool fallback)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static weir_status unsupported(const char *type, const char *why, weir_error *err)
{
    return base_fail(err, WEIR_ERR_UNSUPPORTED, "'%.64s' is not supported%s",
                     type[0] != '\0' ? type : "a stage without type", why);
}

typedef weir_status (*stage_fn)(fmt_tokenizer *t, const json_t *o, int depth, weir_error *err);

static weir_status each(fmt_tokenizer *t, const json_t *list, stage_fn fn, int depth, weir_error *err)
{
    if (depth >= MAX_DEPTH)
        return base_fail(err, WEIR_ERR_FORMAT, "sequences nested more than %d deep", MAX_DEPTH);
    for (size_t i = 0; i < json_array_size(list); i++) {
        weir_status status = fn(t, json_array_get(list, i), depth + 1, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

static weir_status charsmap(fmt_tokenizer *t, const json_t *value, weir_error *err)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value), n = 0;
    if (len == 0) return WEIR_OK;
    uint8_t *bytes = base_alloc(t->env, BASE_TAG_TOKENIZER, len / 4 * 3 + 3, err);
    if (bytes == NULL) return fmt_tok_no_memory(err);
    uint32_t bits = 0;
    int n_bits = 0;
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < len && text[i] != '='; i++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *d = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (d == NULL) {
            status = base_fail(err, WEIR_ERR_FORMAT, "precompiled_charsmap is not base64 at %zu", i);
            break;
        }
        bits = (bits << 6 | (uint32_t)(d - digits)) & 0xffffff;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            bytes[n++] = (uint8_t)(bits >> n_bits);
        }
    }
    if (status == WEIR_OK) status = fmt_tok_charsmap_init(t->env, &t->charsmap, bytes, n, err);
    base_free(t->env, bytes);
    return status;
}

static weir_status replace(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    const json_t *pattern = json_object_get(o, "pattern");
    const char *text = str_of(pattern, "String"), *regex = str_of(pattern, "Regex"),
               *content = str_of(o, "content");
    if (strcmp(text, " ") == 0 && strcmp(content, SPACE_MARK) == 0) {
        t->escape_spaces = true;
        return WEIR_OK;
    }
    if (strcmp(regex, " {2,}") == 0 && t->kind == FMT_TOK_UNIGRAM) {
        t->collapse_spaces = true;
        return WEIR_OK;
    }
    return unsupported("Replace", " with these texts", err);
}

static weir_status normalizer(fmt_tokenizer *t, const json_t *o, int depth, weir_error *err)
{
    const char *type = str_of(o, "type");
    if (strcmp(type, "Sequence") == 0)
        return each(t, json_object_get(o, "normalizers"), normalizer, depth, err);
    if (strcmp(type, "Replace") == 0) return replace(t, o, err);
    if (t->kind == FMT_TOK_UNIGRAM) {
        if (strcmp(type, "Precompiled") == 0)
            return charsmap(t, json_object_get(o, "precompiled_charsmap"), err);
        if (strcmp(type, "Strip") == 0) {
            t->strip_text_left = flag_of(o, "strip_left", true);
            t->strip_text_right = flag_of(o, "strip_right", true);
            return WEIR_OK;
        }
    }
    if (t->kind == FMT_TOK_BPE && (strcmp(type, "NFC") == 0 || strcmp(type, "NFKC") == 0)) {
        t->nfc = t->nfc || type[2] == 'C';
        t->nfkc = t->nfkc || type[2] == 'K';
        return WEIR_OK;
    }
    if (strcmp(type, "Prepend") == 0 && strcmp(str_of(o, "prepend"), SPACE_MARK) == 0) {
        t->space_prefix = t->prefix_after_added = true;
        return WEIR_OK;
    }
    return unsupported(type, "", err);
}

weir_status fmt_tok_read_normalizer(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    return o == NULL || json_is_null(o) ? WEIR_OK : normalizer(t, o, 0, err);
}

static weir_status add_pattern(fmt_tokenizer *t, const char *pattern, fmt_tok_behavior behavior, bool invert,
                               weir_error *err)
{
    return fmt_tok_split_add(t->env, &t->split, pattern, strlen(pattern), behavior, invert, err);
}

static weir_status split(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext"};
    const json_t *pattern = json_object_get(o, "pattern");
    const char *behavior = str_of(o, "behavior"), *text = str_of(pattern, "String"),
               *regex = str_of(pattern, "Regex");
    bool contiguous = strcmp(behavior, "Contiguous") == 0;
    int b = 0;
    while (b < 4 && strcmp(behavior, names[b]) != 0) b++;
    if (contiguous) b = FMT_TOK_ISOLATED;
    if (b == 4) return unsupported("Split", " with this behavior", err);
    if (text[0] == '\0' && regex[0] == '\0') return unsupported("Split", " without a pattern", err);
    /* Once bytes are spelled out, only patterns of plain digits still mean the same before as behind. */
    if (t->byte_level && strcmp(regex, "[0-9][0-9][0-9]") != 0)
        return unsupported("Split", " behind ByteLevel", err);
    if (strstr(text, "\\E") != NULL) return unsupported("Split", " with this text", err);
    base_buf full;
    base_buf_init(&full, t->env, BASE_TAG_TOKENIZER);
    weir_status status;
    if (text[0] != '\0') {
        status = base_buf_printf(&full, err, contiguous ? "(?:\\Q%s\\E)+" : "\\Q%s\\E", text);
    } else {
        status = base_buf_printf(&full, err, contiguous ? "(?:%s)+" : "%s", regex);
    }
    if (status == WEIR_OK)
        status = add_pattern(t, full.data, (fmt_tok_behavior)b, flag_of(o, "invert", false), err);
    base_buf_finish(&full);
    return status;
}

static weir_status metaspace(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    const char *mark = str_of(o, "replacement"), *scheme = str_of(o, "prepend_scheme");
    if (strcmp(mark, SPACE_MARK) != 0) return unsupported("Metaspace", " with another mark than U+2581", err);
    if (scheme[0] == '\0') scheme = flag_of(o, "add_prefix_space", true) ? "always" : "never";
    t->escape_spaces = true;
    t->space_prefix = strcmp(scheme, "never") != 0;
    t->prefix_after_added = strcmp(scheme, "always") == 0;
    t->prefix_once = true;
    if (t->kind == FMT_TOK_BPE && flag_of(o, "split", true))
        return add_pattern(t, "\\x{2581}", FMT_TOK_MERGED_NEXT, false, err);
    return WEIR_OK;
}

static weir_status pre_tokenizer(fmt_tokenizer *t, const json_t *o, int depth, weir_error *err)
{
    const char *type = str_of(o, "type");
    if (strcmp(type, "Sequence") == 0)
        return each(t, json_object_get(o, "pretokenizers"), pre_tokenizer, depth, err);
    if (strcmp(type, "Metaspace") == 0) return metaspace(t, o, err);
    if (t->kind == FMT_TOK_UNIGRAM && strcmp(type, "WhitespaceSplit") == 0) {
        t->squeeze_spaces = true;
        return WEIR_OK;
    }
    if (t->kind != FMT_TOK_BPE) return unsupported(type, "", err);
    if (strcmp(type, "Split") == 0) return split(t, o, err);
    if (strcmp(type, "Digits") == 0) {
        bool single = flag_of(o, "individual_digits", false);
        const char *digit = t->byte_level ? (single ? "[0-9]" : "[0-9]+") : (single ? "\\p{N}" : "\\p{N}+");
        return add_pattern(t, digit, FMT_TOK_ISOLATED, false, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        if (t->byte_level) return unsupported("ByteLevel", " twice", err);
        if (flag_of(o, "add_prefix_space", true))
            t->space_prefix = t->prefix_after_added = t->prefix_once = true;
        weir_status status = WEIR_OK;
        if (flag_of(o, "use_regex", true)) status = add_pattern(t, GPT2, FMT_TOK_ISOLATED, false, err);
        t->byte_level = true;
        return status;
    }
    if (t->byte_level) return unsupported(type, " behind ByteLevel", err);
    if (strcmp(type, "WhitespaceSplit") == 0) return add_pattern(t, "\\s+", FMT_TOK_REMOVED, false, err);
    if (strcmp(type, "Punctuation") == 0 && strcmp(str_of(o, "behavior"), "Isolated") == 0) {
        return add_pattern(t, "[!-/:-@\\[-`{-~\\p{P}]", FMT_TOK_ISOLATED, false, err);
    }
    return unsupported(type, "", err);
}

weir_status fmt_tok_read_pre_tokenizer(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    return o == NULL || json_is_null(o) ? WEIR_OK : pre_tokenizer(t, o, 0, err);
}

static weir_status decoder(fmt_tokenizer *t, const json_t *o, int depth, weir_error *err)
{
    const char *type = str_of(o, "type");
    if (strcmp(type, "Sequence") == 0) return each(t, json_object_get(o, "decoders"), decoder, depth, err);
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = str_of(o, "prepend_scheme");
        t->strip_left =
            scheme[0] != '\0' ? strcmp(scheme, "never") != 0 : flag_of(o, "add_prefix_space", true);
        return WEIR_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        t->strip_left = json_integer_value(json_object_get(o, "start")) > 0;
        return WEIR_OK;
    }
    /* These describe what our detokenizer does for the kind anyway. */
    static const char *const known[] = {"ByteLevel", "ByteFallback", "Fuse", "Replace"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(type, known[i]) == 0) return WEIR_OK;
    }
    return unsupported(type, "", err);
}

weir_status fmt_tok_read_decoder(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    return o == NULL || json_is_null(o) ? WEIR_OK : decoder(t, o, 0, err);
}

/* The id of a special token that a template names. */
static int32_t template_id(const fmt_tokenizer *t, const json_t *item)
{
    const char *text = str_of(json_object_get(item, "SpecialToken"), "id");
    return text[0] != '\0' ? fmt_tok_find(&t->vocab, text, strlen(text)) : -1;
}

/* "single": [SpecialToken] Sequence [SpecialToken] says what frames a text. */
static void template(fmt_tokenizer *t, const json_t *items)
{
    bool seen = false;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        int32_t id = template_id(t, item);
        if (json_object_get(item, "Sequence") != NULL) {
            seen = true;
        } else if (id >= 0 && !seen && !t->add_bos) {
            t->bos = id;
            t->add_bos = true;
        } else if (id >= 0 && seen && !t->add_eos) {
            t->eos = id;
            t->add_eos = true;
        }
    }
}

static weir_status post_processor(fmt_tokenizer *t, const json_t *o, int depth, weir_error *err)
{
    const char *type = str_of(o, "type");
    if (strcmp(type, "Sequence") == 0)
        return each(t, json_object_get(o, "processors"), post_processor, depth, err);
    if (strcmp(type, "TemplateProcessing") == 0) {
        template(t, json_object_get(o, "single"));
        return WEIR_OK;
    }
    return strcmp(type, "ByteLevel") == 0 ? WEIR_OK : unsupported(type, "", err);
}

weir_status fmt_tok_read_post_processor(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    return o == NULL || json_is_null(o) ? WEIR_OK : post_processor(t, o, 0, err);
}

/* bos_token and the like: a text, or an object with "content". */
static void name_token(const fmt_tokenizer *t, const json_t *o, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(o, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!json_is_string(value)) return;
    int32_t found = fmt_tok_find(&t->vocab, json_string_value(value), json_string_length(value));
    if (found >= 0) *id = found;
}

static weir_status keep_template(fmt_tokenizer *t, const json_t *o, weir_error *err)
{
    const json_t *value = json_object_get(o, "chat_template");
    const char *text = json_string_value(value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (text == NULL || strcmp(str_of(item, "name"), "default") == 0)
            text = json_string_value(json_object_get(item, "template"));
    }
    if (text == NULL) return WEIR_OK;
    t->chat_template = base_strdup(t->env, BASE_TAG_TOKENIZER, text, err);
    return t->chat_template != NULL ? WEIR_OK : fmt_tok_no_memory(err);
}

/* Ids of config.json and generation_config.json; a model may have more rows than its tokenizer has tokens. */
static weir_status config_id(const fmt_tokenizer *t, const fmt_model *m, const char *key, int32_t *id,
                             weir_error *err)
{
    uint64_t value = UINT64_MAX;
    weir_status status = fmt_get_u64(m, key, UINT64_MAX, 0, UINT64_MAX, &value, err);
    if (status == WEIR_OK && *id < 0 && value < t->vocab.n) *id = (int32_t)value;
    return status;
}

weir_status fmt_tok_read_config(fmt_tokenizer *t, const fmt_model *m, const char *path, weir_error *err)
{
    weir_status status = WEIR_OK;
    if (path != NULL) {
        fmt_hf_doc doc;
        status = fmt_hf_doc_read(t->env, fmt_model_dir(m), "tokenizer_config.json", &doc, err);
        if (status == WEIR_OK) {
            name_token(t, doc.root, "bos_token", &t->bos);
            name_token(t, doc.root, "eos_token", &t->eos);
            name_token(t, doc.root, "pad_token", &t->pad);
            name_token(t, doc.root, "unk_token", &t->unk);
            t->add_bos = flag_of(doc.root, "add_bos_token", t->add_bos);
            t->add_eos = flag_of(doc.root, "add_eos_token", t->add_eos);
            status = keep_template(t, doc.root, err);
        }
        fmt_hf_doc_finish(&doc);
    }
    if (status == WEIR_OK) status = config_id(t, m, "tokenizer.ggml.bos_token_id", &t->bos, err);
    if (status == WEIR_OK) status = config_id(t, m, "tokenizer.ggml.eos_token_id", &t->eos, err);
    if (status == WEIR_OK) status = config_id(t, m, "tokenizer.ggml.padding_token_id", &t->pad, err);
    return status;
}
