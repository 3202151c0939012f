/* Inside runtime: the parts of `weir synth`. */
#ifndef WEIR_RT_SYNTH_H
#define WEIR_RT_SYNTH_H

#include "base/base.h"
#include "formats/formats.h"
#include "weir/weir.h"

/* Options with every default filled in and checked. */
typedef struct rt_synth {
    base_env *env;
    weir_synth_options o;
    bool gemma, qk_norm, qkv_bias;
    uint32_t q_rows, kv_rows;
    uint32_t type;  /* base_dtype of most matrices */
    bool k_mixture; /* "Q4_K_M": some matrices in Q6_K */
    float rope_theta;
    uint64_t done_bytes, total_bytes;
} rt_synth;

/* One tensor to write. */
typedef struct rt_synth_tensor {
    char gguf_name[64];
    char hf_name[96];
    uint32_t dtype;
    uint32_t n_dims;
    uint64_t dims[2];
    float mean, std; /* of its values */
} rt_synth_tensor;

/* The i-th tensor in file order; false behind the last. */
bool rt_synth_tensor_at(const rt_synth *s, uint32_t i, rt_synth_tensor *out);

/* Fills n_elements (whole blocks) of random weights of a type: values of about the given mean and standard
 * deviation. The stream depends on seed and tensor index only, and for float types the values do not depend
 * on the file format. */
typedef struct rt_synth_stream {
    uint64_t state;
} rt_synth_stream;
void rt_synth_stream_init(rt_synth_stream *r, uint64_t seed, uint32_t tensor);
void rt_synth_fill(rt_synth_stream *r, uint32_t dtype, float mean, float std, size_t n_elements, void *dst);

/* A byte-level BPE vocabulary of n tokens: 256 bytes, merges of letter pairs, three control tokens at the
 * end. */
enum { RT_SYNTH_N_CONTROL = 3, RT_SYNTH_MAX_TOKEN = 48 };
extern const char *const rt_synth_control[RT_SYNTH_N_CONTROL];
uint32_t rt_synth_vocab_max(void);
/* Text of token id as stored (byte-level letters); buf holds RT_SYNTH_MAX_TOKEN bytes. Gives its length. */
size_t rt_synth_token(uint32_t n_vocab, uint32_t id, char *buf);
/* The m-th merge ("ab cd"); there are n_vocab - 256 - 3 of them. buf holds RT_SYNTH_MAX_TOKEN bytes. */
size_t rt_synth_merge(uint32_t m, char *buf);
extern const char rt_synth_chat_template[];
/* tokenizer.* keys of a GGUF file. */
weir_status rt_synth_vocab_gguf(const rt_synth *s, fmt_writer *w, weir_error *err);

/* config.json, generation_config.json, tokenizer.json, tokenizer_config.json in a folder. */
weir_status rt_synth_hf_files(const rt_synth *s, const char *folder, weir_error *err);

/* Llama 3's factor of a rotary frequency (divide inv_freq by it); published in the model's configuration
 * ("rope_type": "llama3"). */
double rt_synth_llama3_factor(const rt_synth *s, uint32_t i, uint32_t n_rot);

#endif
