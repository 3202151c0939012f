/* What the files of the tokenizer share; nothing outside src/formats includes it (tests may).
 *
 *   fmt_tok_vocab    texts of all tokens in one blob, found by id (offsets) or by text (open addressing)
 *   fmt_tok_merges   BPE ranks, kept per resulting token
 *   fmt_tok_split    the pre-tokenizer: compiled patterns, applied one after the other
 *   fmt_tok_gguf / fmt_tok_json fill a tokenizer; fmt_tok_encode runs it; one file per kind does the work */
#ifndef WEIR_FMT_TOK_INTERNAL_H
#define WEIR_FMT_TOK_INTERNAL_H

#include "fmt_tokenizer.h"

/* GGUF's token types (ggml documentation, docs/gguf.md). */
typedef enum fmt_tok_type {
    FMT_TOK_NORMAL = 1,
    FMT_TOK_UNKNOWN = 2,
    FMT_TOK_CONTROL = 3,
    FMT_TOK_USER = 4,
    FMT_TOK_UNUSED = 5,
    FMT_TOK_BYTE = 6
} fmt_tok_type;

/* Type byte: the type in the low bits, flags of added tokens (tokenizer.json) above. */
#define FMT_TOK_TYPE_MASK   7
#define FMT_TOK_LSTRIP      8  /* swallows white space before it */
#define FMT_TOK_RSTRIP      16 /* swallows white space behind it */
#define FMT_TOK_SINGLE_WORD 32 /* only between non-word characters */

typedef enum fmt_tok_kind { FMT_TOK_BPE, FMT_TOK_SPM, FMT_TOK_UNIGRAM, FMT_TOK_WORDPIECE } fmt_tok_kind;

#define FMT_TOK_MAX_VOCAB (UINT32_C(1) << 22)
#define FMT_TOK_MAX_BYTES 65535 /* of one token's text */
#define FMT_TOK_MAX_TEXT  (UINT32_C(1) << 30)

/* Invariants: offsets[0] = 0, ascending, offsets[n] = blob's length; a slot holds 0 (empty) or id + 1 in the
 * low 24 bits and 8 bits of the text's hash above; of equal texts the first id is found. */
typedef struct fmt_tok_vocab {
    char *blob;
    uint32_t *offsets;
    uint8_t *types;
    float *scores; /* NULL: none */
    uint32_t *slots;
    uint32_t mask; /* number of slots - 1 */
    uint32_t n;
    uint32_t max_len; /* longest text in bytes */
} fmt_tok_vocab;

/* Merges of result r are packed[first[r] .. first[r + 1]): rank in the high 22 bits, length of the left part
 * in the low
 * 10. A pair (left, right) is thus found by the text it makes and where that is cut. */
#define FMT_TOK_LEFT_BITS  10
#define FMT_TOK_MAX_MERGES (UINT32_C(1) << 22)
typedef struct fmt_tok_merges {
    uint32_t *first;
    uint32_t *packed;
    uint32_t n;
} fmt_tok_merges;

#define FMT_TOK_MAX_PATTERNS 16
typedef enum fmt_tok_behavior { /* what Split does with a match (tokenizers' names) */
                                FMT_TOK_ISOLATED,
                                FMT_TOK_REMOVED,
                                FMT_TOK_MERGED_PREVIOUS,
                                FMT_TOK_MERGED_NEXT
} fmt_tok_behavior;
struct pcre2_real_code_8;
struct pcre2_real_general_context_8;
typedef struct fmt_tok_split {
    struct pcre2_real_general_context_8 *context;
    struct pcre2_real_code_8 *codes[FMT_TOK_MAX_PATTERNS];
    uint8_t behaviors[FMT_TOK_MAX_PATTERNS];
    bool inverts[FMT_TOK_MAX_PATTERNS]; /* the pattern describes the pieces, not the separators */
    uint32_t n;
} fmt_tok_split;

/* The XOR-compressed double array of SentencePiece's precompiled character map, and its replacement texts. */
typedef struct fmt_tok_charsmap {
    uint8_t *bytes; /* owned */
    uint32_t n_nodes;
    const char *texts;
    uint32_t texts_len;
} fmt_tok_charsmap;

#define FMT_TOK_MAX_LENS 256
#define FMT_TOK_MAX_ENDS 64

struct fmt_tokenizer {
    base_env *env;
    fmt_tok_kind kind;
    char pre[32];
    fmt_tok_vocab vocab;
    fmt_tok_merges merges;
    fmt_tok_split split;
    fmt_tok_charsmap charsmap;
    int32_t bos, eos, eot, eom, unk, pad;
    int32_t unk_written; /* what stands for text that no token covers; -1: nothing */
    bool add_bos, add_eos;
    bool byte_level;         /* BPE over GPT-2's printable stand-ins for bytes */
    bool byte_fallback;      /* BPE, SPM: unknown characters become byte tokens */
    bool ignore_merges;      /* a word that is a token stays whole */
    bool space_prefix;       /* dummy space in front */
    bool prefix_after_added; /* ... also behind every added or special token */
    bool prefix_once;        /* ... but not where the text begins with a space already */
    bool escape_spaces;      /* spaces are stored as U+2581 */
    bool squeeze_spaces;     /* unigram: every word gets one space mark, other white space goes */
    bool collapse_spaces;    /* unigram: runs of spaces become one */
    bool strip_text_left, strip_text_right;
    bool leftmost_specials; /* tokenizer.json's order: leftmost, then longest; else longest first over the
                               whole text */
    bool nfc, nfkc, lowercase, strip_accents, fuse_unk;
    bool strip_left;    /* detokenization drops one leading space */
    uint32_t most_text; /* bytes that a token adds to a text at most */
    int32_t byte_ids[256];
    float unknown_score;     /* unigram */
    uint8_t no_cut[32];      /* bytes behind which a token goes on with U+2581: no cut between the two */
    uint32_t max_normal_len; /* unigram, WordPiece: longest text that plain text can become */
    uint16_t special_lens[FMT_TOK_MAX_LENS];     /* of special and user-defined tokens, descending */
    uint8_t special_first[FMT_TOK_MAX_LENS][32]; /* bit set: a token of that length begins with this byte */
    uint8_t special_any[32];
    uint32_t n_special_lens;
    int32_t ends[FMT_TOK_MAX_ENDS];
    uint32_t n_ends;
    char *chat_template; /* from tokenizer_config.json; NULL: look in the model's metadata */
};

/* fmt_detok.c: sets most_text. */
weir_status fmt_detok_measure(fmt_tokenizer *t, weir_error *err);

/* What a failed allocation returns: base_alloc has filled *err. */
static inline weir_status fmt_tok_no_memory(const weir_error *err)
{
    return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
}

/* fmt_tok_text.c: UTF-8 and GPT-2's byte alphabet. */
/* Bytes of the character at p (n > 0 available), its code point in *cp; 0 where it is not valid UTF-8. */
size_t fmt_utf8_decode(const char *p, size_t n, uint32_t *cp);
size_t fmt_utf8_encode(uint32_t cp, char *out); /* 1..4 bytes */
/* Bytes that the lead byte announces, by its high half alone (as SentencePiece-style code steps). */
size_t fmt_utf8_lead_len(unsigned char lead);
bool fmt_utf8_is_valid(const char *p, size_t n);
/* Appends p with each invalid byte replaced by U+FFFD. */
weir_status fmt_utf8_append_clean(base_buf *out, const char *p, size_t n, weir_error *err);
/* The stand-in of a byte: its code point in GPT-2's alphabet (openai/gpt-2, encoder.py), and back (-1: none).
 */
uint32_t fmt_byte_to_cp(uint8_t byte);
int fmt_cp_to_byte(uint32_t cp);

bool fmt_cp_is_white(uint32_t cp); /* Unicode's White_Space */

/* fmt_tok_vocab.c */
weir_status fmt_tok_vocab_init(base_env *env, fmt_tok_vocab *v, uint64_t n, uint64_t blob_bytes, bool scores,
                               weir_error *err);
void fmt_tok_vocab_finish(base_env *env, fmt_tok_vocab *v);
/* Builds the hash once texts, types and offsets are in place. Errors: OUT_OF_MEMORY, BUDGET, TOKENIZER. */
weir_status fmt_tok_vocab_index(base_env *env, fmt_tok_vocab *v, weir_error *err);
static inline const char *fmt_tok_text(const fmt_tok_vocab *v, uint32_t id, uint32_t *len)
{
    *len = v->offsets[id + 1] - v->offsets[id];
    return v->blob + v->offsets[id];
}
static inline fmt_tok_type fmt_tok_type_of(const fmt_tok_vocab *v, uint32_t id)
{
    return (fmt_tok_type)(v->types[id] & FMT_TOK_TYPE_MASK);
}
int32_t fmt_tok_find(const fmt_tok_vocab *v, const char *text, size_t len); /* -1: none */
/* Only tokens that plain text may become: not control, unknown or byte tokens. */
int32_t fmt_tok_find_plain(const fmt_tok_vocab *v, const char *text, size_t len);
/* The same with a hash that the caller carries over growing prefixes: start with BASE_HASH_SEED, add bytes by
 * base_hash. */
int32_t fmt_tok_find_hashed(const fmt_tok_vocab *v, uint64_t hash, const char *text, size_t len);

/* fmt_tok_merges.c: merges are collected in rank order, then ordered by result. */
typedef struct fmt_tok_merge_list {
    base_env *env;
    uint32_t *results;
    uint16_t *lefts;
    uint32_t n, cap;
} fmt_tok_merge_list;
weir_status fmt_tok_merge_reserve(fmt_tok_merge_list *list, uint64_t n, weir_error *err);
weir_status fmt_tok_merge_add(fmt_tok_merge_list *list, const fmt_tok_vocab *v, const char *left,
                              size_t left_len, const char *right, size_t right_len, weir_error *err);
void fmt_tok_merge_list_finish(fmt_tok_merge_list *list);
weir_status fmt_tok_merges_build(const fmt_tok_merge_list *list, const fmt_tok_vocab *v, fmt_tok_merges *out,
                                 weir_error *err);
void fmt_tok_merges_finish(base_env *env, fmt_tok_merges *m);
/* Rank of joining text[0, left) and text[left, len) into token `result`; UINT32_MAX: no such merge. */
uint32_t fmt_tok_merge_rank(const fmt_tok_merges *m, uint32_t result, uint32_t left);

/* fmt_tok_split.c */
typedef struct fmt_tok_preset {
    const char *names; /* tokenizer.ggml.pre: names between spaces */
    bool ignore_merges, add_bos;
    const char *patterns[6];
} fmt_tok_preset;
const fmt_tok_preset *fmt_tok_preset_find(const char *name); /* fmt_tok_presets.c; NULL: unknown */
/* Compiles one more pattern. `translate` rewrites \s and \S to Unicode's White_Space, which PCRE2's differ
 * from. */
weir_status fmt_tok_split_add(base_env *env, fmt_tok_split *s, const char *pattern, size_t len,
                              fmt_tok_behavior behavior, bool invert, weir_error *err);
void fmt_tok_split_finish(fmt_tok_split *s);
typedef struct fmt_tok_pieces {
    base_env *env;
    uint32_t *ends; /* end of each piece; the first starts at 0 */
    uint8_t *drop;  /* the piece was removed */
    size_t n, cap;
} fmt_tok_pieces;
void fmt_tok_pieces_finish(fmt_tok_pieces *p);
/* Cuts valid UTF-8. pieces is emptied first. */
weir_status fmt_tok_split_run(base_env *env, const fmt_tok_split *s, const char *text, size_t len,
                              fmt_tok_pieces *pieces, weir_error *err);

/* fmt_tok_encode.c */
typedef struct fmt_tok_ids {
    base_env *env;
    int32_t *data;
    size_t n, cap;
} fmt_tok_ids;
weir_status fmt_tok_push(fmt_tok_ids *ids, int32_t id, weir_error *err);
typedef struct fmt_tok_range {
    size_t begin, end;
} fmt_tok_range;
/* Text with parts that are not to be trusted: no special token is recognised where it would touch one of
 * `plain` (ascending, disjoint), nor any token that ends answers or stands in `marks`. */
typedef struct fmt_tok_input {
    const char *text;
    size_t len;
    int flags;          /* fmt_encode_flags without BOS */
    bool after_special; /* the text begins right behind a special token (or at the start) */
    const fmt_tok_range *plain;
    size_t n_plain;
    const int32_t *marks;
    size_t n_marks;
} fmt_tok_input;
weir_status fmt_tok_encode(const fmt_tokenizer *t, const fmt_tok_input *in, fmt_tok_ids *out,
                           weir_error *err);
/* Pushes the ids of one character that is no token: byte tokens, else the unknown token. */
weir_status fmt_tok_push_unknown(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                                 weir_error *err);

/* fmt_tok_special.c: cuts at special tokens. A part with id < 0 is text. */
typedef struct fmt_tok_part {
    size_t begin, end;
    int32_t id;
} fmt_tok_part;
typedef struct fmt_tok_parts {
    base_env *env;
    fmt_tok_part *data;
    size_t n, cap;
} fmt_tok_parts;
weir_status fmt_tok_special_index(fmt_tokenizer *t, weir_error *err);
weir_status fmt_tok_special_cut(const fmt_tokenizer *t, const fmt_tok_input *in, fmt_tok_parts *out,
                                weir_error *err);

/* fmt_tok_bpe.c: joins neighbours, best rank first, leftmost among equals. text is what the vocabulary
 * stores. */
typedef struct fmt_tok_joiner {
    base_env *env;
    struct fmt_tok_symbol *symbols;
    struct fmt_tok_pair *heap;
    size_t cap_symbols, cap_heap;
} fmt_tok_joiner;
void fmt_tok_joiner_finish(fmt_tok_joiner *j);
weir_status fmt_tok_join(const fmt_tokenizer *t, fmt_tok_joiner *j, const char *text, size_t len,
                         fmt_tok_ids *out, weir_error *err);
/* The same for text with spaces as U+2581, word by word where no token reaches across. */
weir_status fmt_tok_join_words(const fmt_tokenizer *t, fmt_tok_joiner *j, const char *text, size_t len,
                               fmt_tok_ids *out, weir_error *err);
weir_status fmt_tok_bpe(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                        weir_error *err);
/* fmt_tok_spm.c, fmt_tok_unigram.c, fmt_tok_wordpiece.c */
weir_status fmt_tok_spm(const fmt_tokenizer *t, const char *text, size_t len, bool prefix, fmt_tok_ids *out,
                        weir_error *err);
weir_status fmt_tok_unigram(const fmt_tokenizer *t, const char *text, size_t len, bool prefix,
                            fmt_tok_ids *out, weir_error *err);
weir_status fmt_tok_wordpiece(const fmt_tokenizer *t, const char *text, size_t len, fmt_tok_ids *out,
                              weir_error *err);

/* fmt_tok_charsmap.c. Takes its own copy of the bytes. Errors: FORMAT. */
weir_status fmt_tok_charsmap_init(base_env *env, fmt_tok_charsmap *c, const uint8_t *bytes, size_t len,
                                  weir_error *err);
void fmt_tok_charsmap_finish(base_env *env, fmt_tok_charsmap *c);
/* Length of the longest prefix of p that has a replacement (0: none), and the replacement. */
size_t fmt_tok_charsmap_match(const fmt_tok_charsmap *c, const char *p, size_t n, const char **text,
                              size_t *text_len);

/* fmt_tok_gguf.c, fmt_tok_json.c: fill a zeroed tokenizer whose env is set; on failure the caller destroys
 * it. */
weir_status fmt_tok_load_gguf(fmt_tokenizer *t, const fmt_model *m, weir_error *err);
weir_status fmt_tok_load_json(fmt_tokenizer *t, const fmt_model *m, const char *path, weir_error *err);
/* fmt_tok_pipeline.c: the four small sections of a tokenizer.json, as jansson trees (json_t, NULL or null:
 * absent). */
struct json_t;
weir_status fmt_tok_read_normalizer(fmt_tokenizer *t, const struct json_t *o, weir_error *err);
weir_status fmt_tok_read_pre_tokenizer(fmt_tokenizer *t, const struct json_t *o, weir_error *err);
weir_status fmt_tok_read_decoder(fmt_tokenizer *t, const struct json_t *o, weir_error *err);
weir_status fmt_tok_read_post_processor(fmt_tokenizer *t, const struct json_t *o, weir_error *err);
/* tokenizer_config.json: names of special tokens, add_bos_token, chat_template. */
weir_status fmt_tok_read_config(fmt_tokenizer *t, const fmt_model *m, const char *path, weir_error *err);
/* Finds byte tokens, special ids by their texts, the ends of answers; indexes special tokens. */
weir_status fmt_tok_settle(fmt_tokenizer *t, const fmt_model *m, weir_error *err);

#endif
