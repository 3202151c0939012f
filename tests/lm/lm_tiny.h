/* Tiny models of every architecture with random F32 or F16 weights, written as GGUF; and ways to spoil them.
 */
#ifndef WEIR_LM_TINY_H
#define WEIR_LM_TINY_H

#include "lm_test.h"

#include "kernels/kernels.h"

#include <unistd.h>

typedef struct tiny {
    const char *arch;
    uint32_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab, context, window;
    uint32_t dtype;      /* of matrices: F32 or F16 */
    uint32_t norm_dtype; /* F32, F16 or BF16 */
    bool untied;
    float scale; /* of the matrices' values */
    /* what is spoilt */
    const char *omit;     /* a tensor or a key that is left out */
    const char *misshape; /* a tensor with one row too many (one element, where it has one row) */
    const char *retype;   /* a tensor of type I8 */
    const char *u32_key, *f32_key, *str_key; /* one more key of each kind */
    uint32_t u32_value;
    float f32_value;
    const char *str_value;
    const char *list_key;
    const uint8_t *list;      /* one flag per layer */
    const char *extra_tensor; /* one more F32 tensor, a vector of extra_n times extra_value */
    uint32_t extra_n;
    float extra_value;
} tiny;

static inline tiny tiny_defaults(const char *arch)
{
    bool gemma = strcmp(arch, "gemma3") == 0;

    return (tiny){.arch = arch,
                  .layers = gemma ? 7 : 2,
                  .hidden = 64,
                  .ffn = 96,
                  .heads = 4,
                  .kv_heads = 2,
                  .head_dim = gemma ? 32 : 16,
                  .vocab = 97,
                  .context = 256,
                  .window = gemma ? 16 : 0,
                  .dtype = BASE_F32,
                  .norm_dtype = BASE_F32,
                  .scale = 0.2f};
}

typedef struct tiny_writer {
    const tiny *t;
    base_env *env;
    fmt_writer *w;
    weir_error err;
    base_rng rng;
    bool data; /* second round: write the values */
} tiny_writer;

static inline void tiny_put(tiny_writer *s, uint32_t dtype, uint64_t n, float scale, float offset)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = (base_rng_f32(&s->rng) * 2 - 1) * scale + offset;
        uint32_t bits;
        uint16_t half = kern_f16_from_f32(x);

        memcpy(&bits, &x, 4);
        if (dtype == BASE_BF16) half = (uint16_t)(bits >> 16);
        if (dtype == BASE_F32)
            assert_ok(fmt_writer_data(s->w, &x, 4, &s->err), s->err);
        else if (dtype == BASE_I8)
            assert_ok(fmt_writer_data(s->w, &bits, 1, &s->err), s->err);
        else
            assert_ok(fmt_writer_data(s->w, &half, 2, &s->err), s->err);
    }
}

static inline void tiny_tensor(tiny_writer *s, const char *prefix, const char *name, uint32_t cols,
                               uint32_t rows)
{
    const tiny *t = s->t;
    char full[64];
    uint64_t dims[2] = {cols, rows};
    uint32_t dtype = rows > 1 ? t->dtype : t->norm_dtype;

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    if (t->omit != NULL && strcmp(full, t->omit) == 0) return;
    if (t->misshape != NULL && strcmp(full, t->misshape) == 0) dims[rows > 1]++;
    if (t->retype != NULL && strcmp(full, t->retype) == 0) dtype = BASE_I8;
    if (!s->data)
        assert_ok(fmt_writer_tensor(s->w, full, dtype, rows > 1 ? 2 : 1, dims, &s->err), s->err);
    else if (strstr(name, "norm") != NULL)
        tiny_put(s, dtype, dims[0] * dims[1], 0.5f, 1);
    else
        tiny_put(s, dtype, dims[0] * dims[1], strstr(name, "bias") != NULL ? 0.5f : t->scale, 0);
}

static inline void tiny_layer(tiny_writer *s, uint32_t layer)
{
    const tiny *t = s->t;
    bool gemma = strcmp(t->arch, "gemma3") == 0;
    char p[32];

    snprintf(p, sizeof(p), "blk.%u.", layer);
    tiny_tensor(s, p, "attn_norm.weight", t->hidden, 1);
    tiny_tensor(s, p, "attn_q.weight", t->hidden, t->heads * t->head_dim);
    tiny_tensor(s, p, "attn_k.weight", t->hidden, t->kv_heads * t->head_dim);
    tiny_tensor(s, p, "attn_v.weight", t->hidden, t->kv_heads * t->head_dim);
    if (strcmp(t->arch, "qwen2") == 0) {
        tiny_tensor(s, p, "attn_q.bias", t->heads * t->head_dim, 1);
        tiny_tensor(s, p, "attn_k.bias", t->kv_heads * t->head_dim, 1);
        tiny_tensor(s, p, "attn_v.bias", t->kv_heads * t->head_dim, 1);
    }
    if (gemma || strcmp(t->arch, "qwen3") == 0) {
        tiny_tensor(s, p, "attn_q_norm.weight", t->head_dim, 1);
        tiny_tensor(s, p, "attn_k_norm.weight", t->head_dim, 1);
    }
    tiny_tensor(s, p, "attn_output.weight", t->heads * t->head_dim, t->hidden);
    tiny_tensor(s, p, "ffn_norm.weight", t->hidden, 1);
    tiny_tensor(s, p, "ffn_gate.weight", t->hidden, t->ffn);
    tiny_tensor(s, p, "ffn_up.weight", t->hidden, t->ffn);
    tiny_tensor(s, p, "ffn_down.weight", t->ffn, t->hidden);
    if (gemma) {
        tiny_tensor(s, p, "post_attention_norm.weight", t->hidden, 1);
        tiny_tensor(s, p, "post_ffw_norm.weight", t->hidden, 1);
    }
}

static inline void tiny_tensors(tiny_writer *s)
{
    const tiny *t = s->t;

    tiny_tensor(s, "", "token_embd.weight", t->hidden, t->vocab);
    for (uint32_t l = 0; l < t->layers; l++) tiny_layer(s, l);
    tiny_tensor(s, "", "output_norm.weight", t->hidden, 1);
    if (t->untied) tiny_tensor(s, "", "output.weight", t->hidden, t->vocab);
    if (t->extra_tensor != NULL) {
        uint64_t n = t->extra_n;

        if (s->data)
            tiny_put(s, BASE_F32, n, 0, t->extra_value);
        else
            assert_ok(fmt_writer_tensor(s->w, t->extra_tensor, BASE_F32, 1, &n, &s->err), s->err);
    }
}

static inline void tiny_key(tiny_writer *s, const char *name, uint32_t value)
{
    char key[96];

    snprintf(key, sizeof(key), "%s.%s", s->t->arch, name);
    if (s->t->omit != NULL && strcmp(name, s->t->omit) == 0) return;
    if (s->t->u32_key != NULL && strcmp(name, s->t->u32_key) == 0) return;
    assert_ok(fmt_writer_u32(s->w, key, value, &s->err), s->err);
}

static inline const char *tiny_name(const tiny *t, const char *name, char *buf)
{
    if (strncmp(name, "weir.", 5) == 0 || strncmp(name, "general.", 8) == 0) return name;
    snprintf(buf, 96, "%s.%s", t->arch, name);
    return buf;
}

static inline void tiny_keys(tiny_writer *s)
{
    const tiny *t = s->t;
    char key[96];

    if (t->omit == NULL || strcmp(t->omit, "general.architecture") != 0)
        assert_ok(fmt_writer_str(s->w, "general.architecture", t->arch, &s->err), s->err);
    tiny_key(s, "block_count", t->layers);
    tiny_key(s, "context_length", t->context);
    tiny_key(s, "embedding_length", t->hidden);
    tiny_key(s, "feed_forward_length", t->ffn);
    tiny_key(s, "attention.head_count", t->heads);
    tiny_key(s, "attention.head_count_kv", t->kv_heads);
    tiny_key(s, "attention.key_length", t->head_dim);
    tiny_key(s, "attention.value_length", t->head_dim);
    if (t->window != 0) tiny_key(s, "attention.sliding_window", t->window);
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", t->arch);
    if (t->omit == NULL || strstr(key, t->omit) == NULL)
        assert_ok(fmt_writer_f32(s->w, key, 1e-5f, &s->err), s->err);
    if (t->u32_key != NULL)
        assert_ok(fmt_writer_u32(s->w, tiny_name(t, t->u32_key, key), t->u32_value, &s->err), s->err);
    if (t->f32_key != NULL)
        assert_ok(fmt_writer_f32(s->w, tiny_name(t, t->f32_key, key), t->f32_value, &s->err), s->err);
    if (t->str_key != NULL)
        assert_ok(fmt_writer_str(s->w, tiny_name(t, t->str_key, key), t->str_value, &s->err), s->err);
    if (t->list_key != NULL)
        assert_ok(
            fmt_writer_array(s->w, tiny_name(t, t->list_key, key), FMT_BOOL, t->layers, t->list, &s->err),
            s->err);
}

/* Writes the model; the path stays valid until the next call. */
static inline const char *tiny_write(const tiny *t)
{
    static char path[256];
    const char *folder = getenv("TMPDIR");
    tiny_writer s = {.t = t};

    snprintf(path, sizeof(path), "%s/weir_tiny_%ld.gguf", folder != NULL ? folder : "/tmp", (long)getpid());
    assert_ok(base_env_create(&s.env, &s.err), s.err);
    assert_ok(fmt_writer_create(s.env, FMT_WRITE_GGUF, path, &s.w, &s.err), s.err);
    base_rng_seed(&s.rng, 3, 4);
    tiny_keys(&s);
    tiny_tensors(&s);
    s.data = true;
    tiny_tensors(&s);
    assert_ok(fmt_writer_finish(s.w, &s.err), s.err);
    fmt_writer_destroy(s.w);
    base_env_destroy(s.env);
    return path;
}

#endif
