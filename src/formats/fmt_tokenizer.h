/* Tokenizers: text to ids and back.
 *
 * Kinds: byte-level BPE (pre-tokenizers gpt-2, llama-3 (llama-bpe), qwen2, smollm, deepseek-llm,
 * deepseek-coder, default, and patterns given in a tokenizer.json), SentencePiece-style BPE with scores and
 * byte fallback, unigram, WordPiece. Immutable after creation: any thread may use it. Memory is held
 * compactly under the tag TOKENIZER: a 262,144-token vocabulary takes at most 9 MiB. */
#ifndef WEIR_FMT_TOKENIZER_H
#define WEIR_FMT_TOKENIZER_H

#include "fmt_model.h"

typedef struct fmt_tokenizer fmt_tokenizer;

/* From a model's metadata (tokenizer.ggml.*) or from the tokenizer.json beside it. Errors: TOKENIZER,
 * UNSUPPORTED (names the pre-tokenizer or model kind), FORMAT. */
weir_status fmt_tokenizer_create(base_env *env, const fmt_model *m, fmt_tokenizer **out, weir_error *err);
void fmt_tokenizer_destroy(fmt_tokenizer *t); /* takes NULL */

typedef struct fmt_tokenizer_info {
    const char *kind; /* "bpe", "spm", "unigram", "wordpiece" */
    const char *pre;  /* pre-tokenizer's name, "" where there is none */
    uint32_t n_vocab;
    uint32_t most_text; /* a text of n tokens, special ones silent, has at most n times so many bytes */
    int32_t bos, eos, eot, unk, pad; /* -1: none */
    bool add_bos, add_eos;           /* what the model asks for */
} fmt_tokenizer_info;
void fmt_tokenizer_get_info(const fmt_tokenizer *t, fmt_tokenizer_info *out);

typedef enum fmt_encode_flags {
    FMT_ENCODE_SPECIAL = 1,  /* parse special tokens in the text */
    FMT_ENCODE_BOS = 2,      /* put BOS in front (where there is one) */
    FMT_ENCODE_NO_PREFIX = 4 /* no dummy space in front: for text that continues after a special token */
} fmt_encode_flags;

/* Ids of `text`, any bytes (invalid UTF-8 goes through byte tokens or U+FFFD, as the kind defines). *ids is a
 * block for base_free. Errors: OUT_OF_MEMORY, BUDGET. */
weir_status fmt_tokenizer_encode(const fmt_tokenizer *t, const char *text, size_t len, int flags,
                                 int32_t **ids, size_t *n, weir_error *err);
/* The token's text as stored ("Ġthe", "▁the", "<0x0A>"); false for an id outside the vocabulary. */
bool fmt_tokenizer_token(const fmt_tokenizer *t, int32_t id, const char **text, size_t *len);
/* Id of a stored token text, -1 when absent. */
int32_t fmt_tokenizer_find(const fmt_tokenizer *t, const char *text, size_t len);
/* True for tokens that end an answer: EOS, EOT, <|im_end|>, <|eot_id|>, <end_of_turn>, <|end|>, ... */
bool fmt_tokenizer_is_end(const fmt_tokenizer *t, int32_t id);
bool fmt_tokenizer_is_special(const fmt_tokenizer *t, int32_t id); /* control or unknown */

/* Ids back to text as a stream that never emits half a UTF-8 sequence. Zero-initialise; flush at the end
 * gives what is left, incomplete bytes as U+FFFD. Special tokens emit nothing unless `special`. */
typedef struct fmt_detok {
    bool special;
    bool started; /* the leading space of SPM vocabularies was handled */
    unsigned char pending[8];
    uint8_t n_pending;
} fmt_detok;
weir_status fmt_detok_push(const fmt_tokenizer *t, fmt_detok *d, int32_t id, base_buf *out, weir_error *err);
weir_status fmt_detok_flush(const fmt_tokenizer *t, fmt_detok *d, base_buf *out, weir_error *err);

#endif
