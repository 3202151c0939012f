/* Tensor names: Hugging Face's modules (transformers, modeling_{llama,qwen2,qwen3,gemma3}.py) to GGUF's
 * (ggml documentation, docs/gguf.md, "Standardized tensor names"). */
#include "fmt_hf.h"

#include <string.h>

typedef struct name_pair {
    const char *from;
    const char *to;
} name_pair;

static const name_pair OUTER[] = {{"embed_tokens", "token_embd"}, {"norm", "output_norm"}};

static const name_pair BLOCK[] = {{"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
                                  {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
                                  {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
                                  {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
                                  {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"}};

/* Gemma 3 has a norm on both sides of each half; elsewhere "post attention" is the norm before the
 * feed-forward. */
static const name_pair BLOCK_PLAIN[] = {{"post_attention_layernorm", "ffn_norm"}};
static const name_pair BLOCK_GEMMA3[] = {{"post_attention_layernorm", "post_attention_norm"},
                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                         {"post_feedforward_layernorm", "post_ffw_norm"}};

static const char *look_up(const name_pair *pairs, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(pairs[i].from) == len && memcmp(pairs[i].from, name, len) == 0) return pairs[i].to;
    return NULL;
}

static bool join(char *buf, size_t cap, const char *a, size_t a_len, const char *b, const char *c)
{
    size_t b_len = strlen(b), c_len = strlen(c);
    if (a_len + b_len + c_len + 1 > cap) return false;
    memcpy(buf, a, a_len);
    memcpy(buf + a_len, b, b_len);
    memcpy(buf + a_len + b_len, c, c_len + 1);
    return true;
}

/* "layers.12.mlp.up_proj" without its suffix. */
static bool block_name(fmt_hf_arch arch, const char *name, size_t len, const char *suffix, char *buf,
                       size_t cap)
{
    size_t at = sizeof "layers." - 1, digits = 0;
    while (at + digits < len && name[at + digits] >= '0' && name[at + digits] <= '9') digits++;
    if (digits == 0 || digits > 6 || (digits > 1 && name[at] == '0')) return false;
    size_t rest = at + digits + 1;
    if (rest >= len || name[rest - 1] != '.') return false;
    const char *to = look_up(BLOCK, sizeof BLOCK / sizeof *BLOCK, name + rest, len - rest);
    if (to == NULL && arch == FMT_HF_GEMMA3)
        to = look_up(BLOCK_GEMMA3, sizeof BLOCK_GEMMA3 / sizeof *BLOCK_GEMMA3, name + rest, len - rest);
    else if (to == NULL)
        to = look_up(BLOCK_PLAIN, sizeof BLOCK_PLAIN / sizeof *BLOCK_PLAIN, name + rest, len - rest);
    if (to == NULL || cap < 16) return false;
    char head[16] = "blk.";
    memcpy(head + 4, name + at, digits);
    head[4 + digits] = '.';
    return join(buf, cap, head, 5 + digits, to, suffix);
}

bool fmt_hf_tensor_name(fmt_hf_arch arch, const char *name, char *buf, size_t cap)
{
    /* Where the text model sits inside the saved one: alone, in a causal head, in a multimodal model (old,
     * new). */
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "model.", ""};
    if (arch == FMT_HF_NONE) return false;
    const char *suffix = fmt_path_ends(name, ".weight") ? ".weight"
                         : fmt_path_ends(name, ".bias") ? ".bias"
                                                        : NULL;
    if (suffix == NULL) return false;
    size_t len = strlen(name) - strlen(suffix);
    if ((len == 7 && memcmp(name, "lm_head", 7) == 0) ||
        (len == 22 && memcmp(name, "language_model.lm_head", 22) == 0))
        return join(buf, cap, "output", 6, suffix, "");
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (len <= n || memcmp(name, prefixes[i], n) != 0) continue;
        const char *inner = name + n;
        const char *to = look_up(OUTER, sizeof OUTER / sizeof *OUTER, inner, len - n);
        if (to != NULL) return join(buf, cap, to, strlen(to), suffix, "");
        if (len - n > 7 && memcmp(inner, "layers.", 7) == 0)
            return block_name(arch, inner, len - n, suffix, buf, cap);
    }
    return false;
}
