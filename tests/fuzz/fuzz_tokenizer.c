/* Fuzzes encoding and decoding: the first byte chooses the kind of tokenizer and flags, the rest is text. The
 * vocabularies are small and built in: all bytes, what a few words merge through, special and user-defined
 * tokens that overlap. */
#include "formats/fmt_tok_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "\xe2\x96\x81"

typedef struct word {
    const char *text;
    uint8_t type;
    float score;
} word;

static const word extra[] = {
    {"<unk>", FMT_TOK_UNKNOWN, 0},
    {"<s>", FMT_TOK_CONTROL, 0},
    {"</s>", FMT_TOK_CONTROL, 0},
    {"<|im_end|>", FMT_TOK_CONTROL | FMT_TOK_RSTRIP, 0},
    {"[[", FMT_TOK_USER, 0},
    {"[[[x", FMT_TOK_USER | FMT_TOK_LSTRIP, 0},
    {"word", FMT_TOK_USER | FMT_TOK_SINGLE_WORD, 0},
    {"\n\n", FMT_TOK_USER, 0},
    {"  ", FMT_TOK_USER, 0},
    {"th", FMT_TOK_NORMAL, -1},
    {"the", FMT_TOK_NORMAL, -2},
    {"in", FMT_TOK_NORMAL, -3},
    {"ing", FMT_TOK_NORMAL, -4},
    {"aa", FMT_TOK_NORMAL, -5},
    {"aaaa", FMT_TOK_NORMAL, -6},
    {MARK, FMT_TOK_NORMAL, -7},
    {MARK "the", FMT_TOK_NORMAL, -8},
    {MARK "a", FMT_TOK_NORMAL, -9},
    {"\xc4\xa0", FMT_TOK_NORMAL, -10}, /* U+0120: the space of byte-level vocabularies */
    {"\xc4\xa0"
     "the",
     FMT_TOK_NORMAL, -11},
    {"\xc3\xa9", FMT_TOK_NORMAL, -12},
};
#define N_EXTRA (sizeof extra / sizeof extra[0])

static void must(bool ok)
{
    if (!ok) abort();
}

static void put(fmt_tok_vocab *v, uint32_t id, const char *text, size_t len, uint8_t type, float score)
{
    memcpy(v->blob + v->offsets[id], text, len);
    v->offsets[id + 1] = v->offsets[id] + (uint32_t)len;
    v->types[id] = type;
    v->scores[id] = score;
}

static void add_merge(fmt_tok_merge_list *list, const fmt_tok_vocab *v, const char *left, const char *right)
{
    must(fmt_tok_merge_add(list, v, left, strlen(left), right, strlen(right), NULL) == WEIR_OK);
}

static fmt_tokenizer *make(base_env *env, unsigned choice)
{
    fmt_tokenizer *t = base_alloc(env, BASE_TAG_TOKENIZER, sizeof *t, NULL);
    fmt_tok_vocab *v = &t->vocab;
    char text[16];
    t->env = env;
    t->kind = (fmt_tok_kind)(choice % 4);
    t->byte_level = t->kind == FMT_TOK_BPE && (choice & 4);
    t->byte_fallback = !t->byte_level;
    t->escape_spaces = !t->byte_level;
    t->space_prefix = t->strip_left = choice & 8;
    t->prefix_after_added = choice & 16;
    t->leftmost_specials = choice & 32;
    t->squeeze_spaces = t->ignore_merges = choice & 64;
    t->nfc = t->lowercase = t->strip_accents = choice & 128;
    t->bos = t->eos = t->eot = t->eom = t->pad = -1;
    t->unk = t->unk_written = 0;
    must(fmt_tok_vocab_init(env, v, N_EXTRA + 256, 4096, true, NULL) == WEIR_OK);
    for (uint32_t i = 0; i < N_EXTRA; i++)
        put(v, i, extra[i].text, strlen(extra[i].text), extra[i].type, extra[i].score);
    for (uint32_t b = 0; b < 256; b++) {
        size_t n = t->byte_level ? fmt_utf8_encode(fmt_byte_to_cp((uint8_t)b), text)
                                 : (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        put(v, (uint32_t)N_EXTRA + b, text, n, t->byte_level ? FMT_TOK_NORMAL : FMT_TOK_BYTE, -20);
        t->byte_ids[b] = t->byte_level ? -1 : (int32_t)(N_EXTRA + b);
    }
    must(fmt_tok_vocab_index(env, v, NULL) == WEIR_OK);
    fmt_tok_merge_list list = {.env = env};
    if (t->byte_level) {
        add_merge(&list, v, "t", "h");
        add_merge(&list, v, "th", "e");
        add_merge(&list, v, "i", "n");
        add_merge(&list, v, "a", "a");
        add_merge(&list, v, "in", "g");
        add_merge(&list, v, "aa", "aa");
        add_merge(&list, v, "\xc4\xa0", "the");
    }
    must(fmt_tok_merges_build(&list, v, &t->merges, NULL) == WEIR_OK);
    fmt_tok_merge_list_finish(&list);
    const fmt_tok_preset *p = fmt_tok_preset_find(choice & 16  ? "deepseek-v3"
                                                  : choice & 8 ? "qwen2"
                                                               : "default");
    for (size_t i = 0; t->kind == FMT_TOK_BPE && i < 6 && p->patterns[i] != NULL; i++) {
        must(fmt_tok_split_add(env, &t->split, p->patterns[i], strlen(p->patterns[i]), FMT_TOK_ISOLATED,
                               false, NULL) == WEIR_OK);
    }
    must(fmt_tok_special_index(t, NULL) == WEIR_OK);
    t->unknown_score = -30;
    t->max_normal_len = v->max_len;
    return t;
}

static void check(const fmt_tokenizer *t, const char *text, size_t len, int flags)
{
    int32_t *ids;
    size_t n;
    base_buf out;
    fmt_detok d = {0};
    base_buf_init(&out, t->env, BASE_TAG_RUNTIME);
    weir_status status = fmt_tokenizer_encode(t, text, len, flags, &ids, &n, NULL);
    must(status == WEIR_OK || status == WEIR_ERR_UNSUPPORTED);
    if (status != WEIR_OK) return;
    /* An invalid byte becomes three; composing triples at most. */
    must(n <= 3 * len + 4);
    for (size_t i = 0; i < n; i++) {
        must(ids[i] >= 0 && (uint32_t)ids[i] < t->vocab.n);
        must((flags & FMT_ENCODE_SPECIAL) || (t->vocab.types[ids[i]] & FMT_TOK_TYPE_MASK) != FMT_TOK_CONTROL);
        must(fmt_detok_push(t, &d, ids[i], &out, NULL) == WEIR_OK);
    }
    must(fmt_detok_flush(t, &d, &out, NULL) == WEIR_OK);
    must(out.len == 0 || fmt_utf8_is_valid(out.data, out.len));
    /* Byte-level BPE loses nothing, but for what added tokens swallow and normalization changes. */
    bool exact = t->byte_level && !t->nfc && !t->space_prefix && !(flags & FMT_ENCODE_SPECIAL);
    bool swallows = false;
    for (size_t i = 0; i + 4 <= len && !swallows; i++) swallows = memcmp(text + i, "[[[x", 4) == 0;
    if (exact && !swallows && fmt_utf8_is_valid(text, len))
        must(out.len == len && (len == 0 || memcmp(out.data, text, len) == 0));
    base_buf_finish(&out);
    base_free(t->env, ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    base_env *env;
    base_ledger_view view;
    if (size < 2) return 0;
    must(base_env_create(&env, NULL) == WEIR_OK);
    fmt_tokenizer *t = make(env, data[0]);
    check(t, (const char *)data + 2, size - 2, data[1] & (FMT_ENCODE_SPECIAL | FMT_ENCODE_NO_PREFIX));
    fmt_tokenizer_destroy(t);
    base_ledger_read(env, &view);
    must(view.bytes == 0);
    base_env_destroy(env);
    return 0;
}
