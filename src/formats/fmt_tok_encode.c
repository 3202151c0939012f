/* Text to ids: special tokens are cut out first, the rest goes to the tokenizer of the model's kind. */
#include "fmt_tok_internal.h"

weir_status fmt_tok_push(fmt_tok_ids *ids, int32_t id, weir_error *err)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap < 64 ? 64 : ids->cap * 2;
        int32_t *data = base_realloc(ids->env, BASE_TAG_RUNTIME, ids->data, cap * sizeof *data, err);
        if (data == NULL) return fmt_tok_no_memory(err);
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->n++] = id;
    return WEIR_OK;
}

weir_status fmt_tok_push_unknown(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                                 weir_error *err)
{
    bool all = t->byte_fallback && len > 0;
    for (size_t i = 0; i < len && all; i++) all = t->byte_ids[(uint8_t)text[i]] >= 0;
    if (all) {
        weir_status status = WEIR_OK;
        for (size_t i = 0; i < len && status == WEIR_OK; i++)
            status = fmt_tok_push(out, t->byte_ids[(uint8_t)text[i]], err);
        return status;
    }
    if (t->unk_written < 0) return WEIR_OK;
    if (t->fuse_unk && out->n > 0 && out->data[out->n - 1] == t->unk_written) return WEIR_OK;
    return fmt_tok_push(out, t->unk_written, err);
}

static weir_status encode_text(const fmt_tokenizer *t, const char *text, size_t len, bool prefix,
                               fmt_tok_ids *out, weir_error *err)
{
    switch (t->kind) {
    case FMT_TOK_SPM: return fmt_tok_spm(t, text, len, prefix, out, err);
    case FMT_TOK_UNIGRAM: return fmt_tok_unigram(t, text, len, prefix, out, err);
    case FMT_TOK_WORDPIECE: return fmt_tok_wordpiece(t, text, len, out, err);
    case FMT_TOK_BPE: break;
    }
    if (t->escape_spaces || prefix) return fmt_tok_spm(t, text, len, prefix, out, err);
    return fmt_tok_bpe(t, text, len, out, err);
}

weir_status fmt_tok_encode(const fmt_tokenizer *t, const fmt_tok_input *in, fmt_tok_ids *out, weir_error *err)
{
    if (in->len > FMT_TOK_MAX_TEXT) {
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "text of %zu bytes; at most 1 GiB at once is possible", in->len);
    }
    fmt_tok_parts parts = {.env = t->env};
    weir_status status = fmt_tok_special_cut(t, in, &parts, err);
    bool prefix = t->space_prefix && in->after_special && !(in->flags & FMT_ENCODE_NO_PREFIX);
    for (size_t i = 0; i < parts.n && status == WEIR_OK; i++) {
        const fmt_tok_part *part = &parts.data[i];
        if (part->id >= 0) {
            status = fmt_tok_push(out, part->id, err);
            prefix = t->space_prefix && t->prefix_after_added;
        } else {
            status = encode_text(t, in->text + part->begin, part->end - part->begin, prefix, out, err);
            prefix = false;
        }
    }
    base_free(t->env, parts.data);
    return status;
}

weir_status fmt_tokenizer_encode(const fmt_tokenizer *t, const char *text, size_t len, int flags,
                                 int32_t **ids, size_t *n, weir_error *err)
{
    fmt_tok_ids out = {.env = t->env};
    fmt_tok_input in = {.text = text, .len = len, .flags = flags, .after_special = true};
    weir_status status = WEIR_OK;
    if ((flags & FMT_ENCODE_BOS) && t->bos >= 0) status = fmt_tok_push(&out, t->bos, err);
    if (status == WEIR_OK) status = fmt_tok_encode(t, &in, &out, err);
    if (status == WEIR_OK && out.data == NULL) {
        out.data = base_alloc(t->env, BASE_TAG_RUNTIME, sizeof *out.data, err);
        if (out.data == NULL) status = fmt_tok_no_memory(err);
    }
    if (status != WEIR_OK) {
        base_free(t->env, out.data);
        return status;
    }
    *ids = out.data;
    *n = out.n;
    return WEIR_OK;
}
