/* `weir synth`: a model of any supported architecture, size and type with seeded random weights. What the
 * file declares is real: it tokenizes, loads and generates (nonsense), so that placement, streaming and
 * exactness can be tested at any size. */
#include "rt_synth.h"
#include "rt_internal.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void weir_synth_options_init(weir_synth_options *o)
{
    *o = (weir_synth_options){.struct_size = sizeof *o,
                              .arch = "llama",
                              .type = "Q8_0",
                              .hidden = 256,
                              .n_layers = 4,
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .ffn = 512,
                              .n_vocab = 1024,
                              .ctx_tokens = 2048,
                              .seed = 1};
}

static weir_status check_number(const char *option, uint32_t value, uint32_t min, uint32_t max,
                                weir_error *err)
{
    if (value >= min && value <= max) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--%s %u is out of range; it may be %u to %u", option,
                     value, min, max);
}

static weir_status check_type(rt_synth *s, weir_error *err)
{
    const char *name = s->o.type;
    s->k_mixture = strcasecmp(name, "Q4_K_M") == 0;
    int type = base_dtype_find(s->k_mixture ? "Q4_K" : name);
    if (type < 0 || type == BASE_I8 || type == BASE_I32)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "--type %s is no weight type; use F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                         "Q5_1, Q2_K, Q3_K, Q4_K, "
                         "Q4_K_M, Q5_K, Q6_K, IQ4_NL, IQ4_XS or MXFP4",
                         name);
    s->type = (uint32_t)type;
    uint32_t block = base_dtype_get(s->type)->block_elements;
    if (s->o.safetensors && block != 1)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "safetensors holds F32, F16 or BF16, not %s; write GGUF instead", name);
    const struct {
        const char *option;
        uint32_t value;
    } rows[] = {{"hidden", s->o.hidden}, {"ffn", s->o.ffn}, {"heads x head-dim =", s->q_rows}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value % block != 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--%s %u is no multiple of %u, the block of %s",
                             rows[i].option, rows[i].value, block, name);
    return WEIR_OK;
}

static weir_status check_arch(rt_synth *s, weir_error *err)
{
    weir_synth_options *o = &s->o;
    const char *a = o->arch;
    bool llama = strcmp(a, "llama") == 0, qwen2 = strcmp(a, "qwen2") == 0, qwen3 = strcmp(a, "qwen3") == 0;
    s->gemma = strcmp(a, "gemma3") == 0;
    if (!llama && !qwen2 && !qwen3 && !s->gemma)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "--arch %s is not known; use llama, qwen2, qwen3 or gemma3", a);
    s->qk_norm = qwen3 || s->gemma;
    s->qkv_bias = qwen2;
    s->rope_theta = llama ? 10000.0f : 1000000.0f;
    if (!o->tied_given) o->tied = s->gemma || qwen3;
    if (s->gemma && o->window == 0) o->window = 512;
    if (!s->gemma && o->window != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--window goes with --arch gemma3 only");
    if (!s->gemma && o->softcap != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--softcap goes with --arch gemma3 only");
    if (!(o->softcap >= 0 && o->softcap <= 1000))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--softcap may be 0 to 1000");
    const char *scaling = o->rope_scaling;
    if (scaling != NULL && strcmp(scaling, "linear") != 0 && strcmp(scaling, "llama3") != 0 &&
        strcmp(scaling, "yarn") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "--rope-scaling %s is not known; use linear, llama3 or yarn", scaling);
    if (scaling != NULL && s->gemma && strcmp(scaling, "linear") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "gemma3 takes --rope-scaling linear only");
    return WEIR_OK;
}

static weir_status fill_in(rt_synth *s, const weir_synth_options *o, weir_error *err)
{
    if (o->arch == NULL || o->type == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "architecture and type must be given");
    s->o = *o;
    if (s->o.head_dim == 0 && s->o.n_heads > 0) s->o.head_dim = s->o.hidden / s->o.n_heads;
    const struct {
        const char *option;
        uint32_t value, min, max;
    } numbers[] = {{"hidden", s->o.hidden, 16, 65536},
                   {"layers", s->o.n_layers, 1, 1024},
                   {"heads", s->o.n_heads, 1, 1024},
                   {"kv-heads", s->o.n_kv_heads, 1, 1024},
                   {"head-dim", s->o.head_dim, 2, 1024},
                   {"ffn", s->o.ffn, 16, 524288},
                   {"vocab", s->o.n_vocab, 259, rt_synth_vocab_max()},
                   {"ctx", s->o.ctx_tokens, 1, 1u << 24},
                   {"window", s->o.window, 0, 1u << 24}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        weir_status status =
            check_number(numbers[i].option, numbers[i].value, numbers[i].min, numbers[i].max, err);
        if (status != WEIR_OK) return status;
    }
    if (s->o.n_heads % s->o.n_kv_heads != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--heads %u is no multiple of --kv-heads %u",
                         s->o.n_heads, s->o.n_kv_heads);
    if (s->o.head_dim % 2 != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "--head-dim %u is odd", s->o.head_dim);
    s->q_rows = s->o.n_heads * s->o.head_dim;
    s->kv_rows = s->o.n_kv_heads * s->o.head_dim;
    weir_status status = check_arch(s, err);
    return status != WEIR_OK ? status : check_type(s, err);
}

double rt_synth_llama3_factor(const rt_synth *s, uint32_t i, uint32_t n_rot)
{
    const double factor = 8, low = 1, high = 4, original = s->o.ctx_tokens / 4.0;
    double wave = 2 * 3.14159265358979323846 * kern_pow(s->rope_theta, 2.0 * i / n_rot);
    if (wave < original / high) return 1;
    if (wave > original / low) return factor;
    double smooth = (original / wave - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* "Q4_K_M" as llama.cpp's quantizer mixes it: the first and last eighth and every third layer between in Q6_K
 * for V and down. */
static bool more_bits(uint32_t layer, uint32_t n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

typedef struct layer_tensor {
    const char *gguf, *hf;
    uint32_t rows, cols; /* cols 0: a vector */
    bool norm;
    bool present;
    bool mixed; /* Q6_K in the layers with more bits */
} layer_tensor;

static uint32_t layer_table(const rt_synth *s, layer_tensor *t)
{
    const weir_synth_options *o = &s->o;
    const layer_tensor all[] = {
        {"attn_norm.weight", "input_layernorm.weight", o->hidden, 0, true, true, false},
        {"attn_q.weight", "self_attn.q_proj.weight", s->q_rows, o->hidden, false, true, false},
        {"attn_q.bias", "self_attn.q_proj.bias", s->q_rows, 0, false, s->qkv_bias, false},
        {"attn_k.weight", "self_attn.k_proj.weight", s->kv_rows, o->hidden, false, true, false},
        {"attn_k.bias", "self_attn.k_proj.bias", s->kv_rows, 0, false, s->qkv_bias, false},
        {"attn_v.weight", "self_attn.v_proj.weight", s->kv_rows, o->hidden, false, true, true},
        {"attn_v.bias", "self_attn.v_proj.bias", s->kv_rows, 0, false, s->qkv_bias, false},
        {"attn_q_norm.weight", "self_attn.q_norm.weight", o->head_dim, 0, true, s->qk_norm, false},
        {"attn_k_norm.weight", "self_attn.k_norm.weight", o->head_dim, 0, true, s->qk_norm, false},
        {"attn_output.weight", "self_attn.o_proj.weight", o->hidden, s->q_rows, false, true, false},
        {"post_attention_norm.weight", "post_attention_layernorm.weight", o->hidden, 0, true, s->gemma,
         false},
        {"ffn_norm.weight", s->gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight",
         o->hidden, 0, true, true, false},
        {"ffn_gate.weight", "mlp.gate_proj.weight", o->ffn, o->hidden, false, true, false},
        {"ffn_up.weight", "mlp.up_proj.weight", o->ffn, o->hidden, false, true, false},
        {"ffn_down.weight", "mlp.down_proj.weight", o->hidden, o->ffn, false, true, true},
        {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", o->hidden, 0, true, s->gemma, false},
    };
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].present) t[n++] = all[i];
    return n;
}

static void set_tensor(const rt_synth *s, rt_synth_tensor *out, const char *gguf, const char *hf,
                       uint32_t rows, uint32_t cols, uint32_t dtype, bool norm)
{
    snprintf(out->gguf_name, sizeof out->gguf_name, "%s", gguf);
    snprintf(out->hf_name, sizeof out->hf_name, "%s", hf);
    bool matrix = cols != 0;
    out->dtype = matrix ? dtype : (uint32_t)BASE_F32;
    out->n_dims = matrix ? 2 : 1;
    out->dims[0] = matrix ? cols : rows;
    out->dims[1] = matrix ? rows : 1;
    /* Gemma's checkpoints store norm weights less one; the GGUF conversion adds it. */
    out->mean = !norm ? 0.0f : s->gemma && s->o.safetensors ? 0.0f : 1.0f;
    out->std = matrix ? 1.0f / sqrtf((float)cols) : 0.1f;
}

bool rt_synth_tensor_at(const rt_synth *s, uint32_t i, rt_synth_tensor *out)
{
    const weir_synth_options *o = &s->o;
    layer_tensor table[16];
    uint32_t n = layer_table(s, table);
    if (i == 0) {
        set_tensor(s, out, "token_embd.weight", "model.embed_tokens.weight", o->n_vocab, o->hidden,
                   s->k_mixture && o->tied ? (uint32_t)BASE_Q6_K : s->type, false);
        return true;
    }
    i--;
    if (i < n * o->n_layers) {
        const layer_tensor *t = &table[i % n];
        uint32_t layer = i / n;
        char gguf[64], hf[96];
        snprintf(gguf, sizeof gguf, "blk.%u.%s", layer, t->gguf);
        snprintf(hf, sizeof hf, "model.layers.%u.%s", layer, t->hf);
        bool six = s->k_mixture && t->mixed && more_bits(layer, o->n_layers);
        set_tensor(s, out, gguf, hf, t->rows, t->cols, six ? (uint32_t)BASE_Q6_K : s->type, t->norm);
        return true;
    }
    i -= n * o->n_layers;
    if (i == 0) {
        set_tensor(s, out, "output_norm.weight", "model.norm.weight", o->hidden, 0, BASE_F32, true);
        return true;
    }
    if (i == 1 && !o->tied) {
        set_tensor(s, out, "output.weight", "lm_head.weight", o->n_vocab, o->hidden,
                   s->k_mixture ? (uint32_t)BASE_Q6_K : s->type, false);
        return true;
    }
    bool factors = !o->safetensors && o->rope_scaling != NULL && strcmp(o->rope_scaling, "llama3") == 0;
    if (factors && i == (o->tied ? 1u : 2u)) {
        set_tensor(s, out, "rope_freqs.weight", "", o->head_dim / 2, 0, BASE_F32, false);
        return true;
    }
    return false;
}

static weir_status write_key_u32(const rt_synth *s, fmt_writer *w, const char *key, uint32_t value,
                                 weir_error *err)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", s->o.arch, key);
    return fmt_writer_u32(w, name, value, err);
}

static weir_status write_key_f32(const rt_synth *s, fmt_writer *w, const char *key, float value,
                                 weir_error *err)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", s->o.arch, key);
    return fmt_writer_f32(w, name, value, err);
}

static weir_status write_scaling(const rt_synth *s, fmt_writer *w, weir_error *err)
{
    const char *scaling = s->o.rope_scaling;
    if (scaling == NULL || strcmp(scaling, "llama3") == 0)
        return WEIR_OK; /* llama3: the tensor rope_freqs.weight */
    char name[96];
    snprintf(name, sizeof name, "%s.rope.scaling.type", s->o.arch);
    weir_status status = fmt_writer_str(w, name, scaling, err);
    if (status == WEIR_OK) status = write_key_f32(s, w, "rope.scaling.factor", 4, err);
    if (status == WEIR_OK && strcmp(scaling, "yarn") == 0)
        status = write_key_u32(s, w, "rope.scaling.original_context_length", s->o.ctx_tokens / 4, err);
    return status;
}

static weir_status write_gguf_keys(const rt_synth *s, fmt_writer *w, weir_error *err)
{
    const weir_synth_options *o = &s->o;
    char name[64];
    snprintf(name, sizeof name, "synthetic %s, seed %llu", o->arch, (unsigned long long)o->seed);
    weir_status status = fmt_writer_str(w, "general.architecture", o->arch, err);
    if (status == WEIR_OK) status = fmt_writer_str(w, "general.name", name, err);
    const struct {
        const char *key;
        uint32_t value;
        bool present;
    } numbers[] = {{"block_count", o->n_layers, true},
                   {"context_length", o->ctx_tokens, true},
                   {"embedding_length", o->hidden, true},
                   {"feed_forward_length", o->ffn, true},
                   {"attention.head_count", o->n_heads, true},
                   {"attention.head_count_kv", o->n_kv_heads, true},
                   {"attention.key_length", o->head_dim, true},
                   {"attention.value_length", o->head_dim, true},
                   {"attention.sliding_window", o->window, o->window != 0},
                   {"rope.dimension_count", o->head_dim, !s->gemma},
                   {"vocab_size", o->n_vocab, true}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && status == WEIR_OK; i++)
        if (numbers[i].present) status = write_key_u32(s, w, numbers[i].key, numbers[i].value, err);
    if (status == WEIR_OK) status = write_key_f32(s, w, "rope.freq_base", s->rope_theta, err);
    if (status == WEIR_OK) status = write_key_f32(s, w, "attention.layer_norm_rms_epsilon", 1e-6f, err);
    if (status == WEIR_OK && o->softcap > 0)
        status = write_key_f32(s, w, "attn_logit_softcapping", o->softcap, err);
    if (status == WEIR_OK && o->softcap > 0)
        status = write_key_f32(s, w, "final_logit_softcapping", o->softcap, err);
    if (status == WEIR_OK) status = write_scaling(s, w, err);
    return status != WEIR_OK ? status : rt_synth_vocab_gguf(s, w, err);
}

static weir_status write_rope_factors(const rt_synth *s, fmt_writer *w, weir_error *err)
{
    float factors[512];
    uint32_t n = s->o.head_dim / 2;
    for (uint32_t i = 0; i < n; i++) factors[i] = (float)rt_synth_llama3_factor(s, i, s->o.head_dim);
    return fmt_writer_data(w, factors, n * sizeof *factors, err);
}

static weir_status write_tensor_data(rt_synth *s, fmt_writer *w, uint32_t index, const rt_synth_tensor *t,
                                     uint8_t *buf, size_t buf_bytes, weir_error *err)
{
    if (strcmp(t->gguf_name, "rope_freqs.weight") == 0) return write_rope_factors(s, w, err);
    const base_dtype_info *info = base_dtype_get(t->dtype);
    rt_synth_stream stream;
    rt_synth_stream_init(&stream, s->o.seed, index);
    uint64_t blocks = t->dims[0] * t->dims[1] / info->block_elements;
    size_t at_once = buf_bytes / info->block_bytes;
    while (blocks > 0) {
        if (s->o.stop != NULL && s->o.stop(s->o.stop_arg))
            return base_fail(err, WEIR_ERR_CANCELLED, "cancelled by the caller; nothing was written");
        size_t n = (size_t)base_min(blocks, at_once);
        rt_synth_fill(&stream, t->dtype, t->mean, t->std, n * info->block_elements, buf);
        weir_status status = fmt_writer_data(w, buf, n * info->block_bytes, err);
        if (status != WEIR_OK) return status;
        blocks -= n;
        s->done_bytes += n * info->block_bytes;
        if (s->o.progress != NULL) s->o.progress(s->o.progress_arg, s->done_bytes, s->total_bytes);
    }
    return WEIR_OK;
}

static weir_status write_model(rt_synth *s, fmt_writer *w, weir_error *err)
{
    enum { BUF_BYTES = 1 << 20 };
    rt_synth_tensor t;
    weir_status status = s->o.safetensors ? WEIR_OK : write_gguf_keys(s, w, err);
    for (uint32_t i = 0; status == WEIR_OK && rt_synth_tensor_at(s, i, &t); i++) {
        const base_dtype_info *info = base_dtype_get(t.dtype);
        s->total_bytes += t.dims[0] * t.dims[1] / info->block_elements * info->block_bytes;
        status =
            fmt_writer_tensor(w, s->o.safetensors ? t.hf_name : t.gguf_name, t.dtype, t.n_dims, t.dims, err);
    }
    if (status != WEIR_OK) return status;
    uint8_t *buf = base_alloc(s->env, BASE_TAG_IO, BUF_BYTES, err);
    if (buf == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (uint32_t i = 0; status == WEIR_OK && rt_synth_tensor_at(s, i, &t); i++)
        status = write_tensor_data(s, w, i, &t, buf, BUF_BYTES, err);
    base_free(s->env, buf);
    return status != WEIR_OK ? status : fmt_writer_finish(w, err);
}

weir_status weir_synth(weir_context *c, const weir_synth_options *o, const char *path, weir_error *err)
{
    rt_synth s = {.env = c->env};
    weir_status status = fill_in(&s, o, err);
    if (status != WEIR_OK) return status;
    char file[4096];
    if (!o->safetensors) {
        snprintf(file, sizeof file, "%s", path);
    } else {
        if (strlen(path) + 32 > sizeof file)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the path is too long");
        status = base_folder_make(path, err);
        if (status != WEIR_OK) return status;
        snprintf(file, sizeof file, "%s/model.safetensors", path);
    }
    fmt_writer *w;
    status = fmt_writer_create(s.env, o->safetensors ? FMT_WRITE_SAFETENSORS : FMT_WRITE_GGUF, file, &w, err);
    if (status != WEIR_OK) return status;
    status = write_model(&s, w, err);
    fmt_writer_destroy(w);
    return status == WEIR_OK && o->safetensors ? rt_synth_hf_files(&s, path, err) : status;
}
