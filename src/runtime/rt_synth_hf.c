/* The side files of a synthetic model in Hugging Face's layout: config.json, generation_config.json,
 * tokenizer.json and tokenizer_config.json, with the field names of the public configuration classes. */
#include "rt_synth.h"

#include <stdio.h>
#include <string.h>

/* Appends a JSON string; the texts here hold no control characters but newline. */
static weir_status put_string(base_buf *b, const char *text, weir_error *err)
{
    weir_status status = base_buf_append(b, "\"", 1, err);
    for (; *text != 0 && status == WEIR_OK; text++) {
        if (*text == '"' || *text == '\\')
            status = base_buf_printf(b, err, "\\%c", *text);
        else if (*text == '\n')
            status = base_buf_append(b, "\\n", 2, err);
        else
            status = base_buf_append(b, text, 1, err);
    }
    return status == WEIR_OK ? base_buf_append(b, "\"", 1, err) : status;
}

static weir_status save(const rt_synth *s, const char *folder, const char *name, const base_buf *b,
                        weir_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    base_writer *w;
    weir_status status = base_writer_create(s->env, path, &w, err);
    if (status != WEIR_OK) return status;
    status = base_writer_write(w, b->data, b->len, err);
    if (status == WEIR_OK) status = base_writer_commit(w, err);
    base_writer_destroy(w);
    return status;
}

static const char *class_name(const rt_synth *s)
{
    if (s->gemma) return "Gemma3ForCausalLM";
    if (strcmp(s->o.arch, "qwen2") == 0) return "Qwen2ForCausalLM";
    if (strcmp(s->o.arch, "qwen3") == 0) return "Qwen3ForCausalLM";
    return "LlamaForCausalLM";
}

static const char *type_name(const rt_synth *s)
{
    return s->type == BASE_F16 ? "float16" : s->type == BASE_BF16 ? "bfloat16" : "float32";
}

static weir_status put_scaling(const rt_synth *s, base_buf *b, weir_error *err)
{
    const char *scaling = s->o.rope_scaling;
    uint32_t original = s->o.ctx_tokens / 4;
    if (scaling == NULL) return WEIR_OK;
    if (strcmp(scaling, "linear") == 0)
        return base_buf_printf(b, err, ",\n  \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4.0}");
    if (strcmp(scaling, "yarn") == 0)
        return base_buf_printf(b, err,
                               ",\n  \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                               "\"original_max_position_embeddings\": %u}",
                               original);
    return base_buf_printf(
        b, err,
        ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": %u}",
        original);
}

static weir_status put_gemma(const rt_synth *s, base_buf *b, weir_error *err)
{
    const weir_synth_options *o = &s->o;
    weir_status status = base_buf_printf(b, err,
                                         ",\n  \"query_pre_attn_scalar\": %u,\n  \"sliding_window\": %u,\n"
                                         "  \"rope_local_base_freq\": 10000.0,\n  \"layer_types\": [",
                                         o->head_dim, o->window);
    for (uint32_t i = 0; i < o->n_layers && status == WEIR_OK; i++)
        status = base_buf_printf(b, err, "%s\"%s_attention\"", i == 0 ? "" : ", ",
                                 (i + 1) % 6 == 0 ? "full" : "sliding");
    if (status == WEIR_OK) status = base_buf_append(b, "]", 1, err);
    if (status == WEIR_OK && o->softcap > 0)
        status = base_buf_printf(
            b, err, ",\n  \"attn_logit_softcapping\": %.6f,\n  \"final_logit_softcapping\": %.6f",
            (double)o->softcap, (double)o->softcap);
    return status;
}

static weir_status write_config(const rt_synth *s, const char *folder, weir_error *err)
{
    const weir_synth_options *o = &s->o;
    base_buf b;
    base_buf_init(&b, s->env, BASE_TAG_RUNTIME);
    weir_status status = base_buf_printf(&b, err,
                                         "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  "
                                         "\"vocab_size\": %u,\n  \"hidden_size\": %u,\n"
                                         "  \"intermediate_size\": %u,\n  \"num_hidden_layers\": %u,\n  "
                                         "\"num_attention_heads\": %u,\n  \"num_key_value_heads\": %u,\n"
                                         "  \"head_dim\": %u,\n  \"max_position_embeddings\": %u,\n  "
                                         "\"rms_norm_eps\": 1e-06,\n  \"rope_theta\": %.1f,\n"
                                         "  \"tie_word_embeddings\": %s,\n  \"hidden_act\": \"%s\",\n  "
                                         "\"bos_token_id\": %u,\n  \"eos_token_id\": %u,\n"
                                         "  \"attention_bias\": false,\n  \"torch_dtype\": \"%s\"",
                                         class_name(s), s->gemma ? "gemma3_text" : o->arch, o->n_vocab,
                                         o->hidden, o->ffn, o->n_layers, o->n_heads, o->n_kv_heads,
                                         o->head_dim, o->ctx_tokens, (double)s->rope_theta,
                                         o->tied ? "true" : "false", s->gemma ? "gelu_pytorch_tanh" : "silu",
                                         o->n_vocab - 3, o->n_vocab - 1, type_name(s));
    if (status == WEIR_OK && s->gemma)
        status = base_buf_printf(&b, err, ",\n  \"hidden_activation\": \"gelu_pytorch_tanh\"");
    if (status == WEIR_OK) status = put_scaling(s, &b, err);
    if (status == WEIR_OK && s->gemma) status = put_gemma(s, &b, err);
    if (status == WEIR_OK) status = base_buf_append(&b, "\n}\n", 3, err);
    if (status == WEIR_OK) status = save(s, folder, "config.json", &b, err);
    base_buf_finish(&b);
    return status;
}

static weir_status put_added_tokens(const rt_synth *s, base_buf *b, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < RT_SYNTH_N_CONTROL && status == WEIR_OK; i++)
        status =
            base_buf_printf(b, err,
                            "%s{\"id\": %u, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                            "\"rstrip\": false, "
                            "\"normalized\": false, \"special\": true}",
                            i == 0 ? "" : ",\n", s->o.n_vocab - RT_SYNTH_N_CONTROL + i, rt_synth_control[i]);
    return status;
}

static weir_status write_tokenizer(const rt_synth *s, const char *folder, weir_error *err)
{
    uint32_t n = s->o.n_vocab;
    char text[RT_SYNTH_MAX_TOKEN];
    base_buf b;
    base_buf_init(&b, s->env, BASE_TAG_RUNTIME);
    weir_status status = base_buf_printf(
        &b, err, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [\n");
    if (status == WEIR_OK) status = put_added_tokens(s, &b, err);
    if (status == WEIR_OK)
        status = base_buf_printf(
            &b, err,
            "],\n\"normalizer\": null,\n"
            "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
            "true, "
            "\"use_regex\": true},\n\"post_processor\": null,\n"
            "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
            "\"use_regex\": true},\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
            "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
            "\"byte_fallback\": false,\n\"vocab\": {");
    for (uint32_t i = 0; i < n && status == WEIR_OK; i++) {
        rt_synth_token(n, i, text);
        status = base_buf_append(&b, i == 0 ? "\n" : ",\n", i == 0 ? 1 : 2, err);
        if (status == WEIR_OK) status = put_string(&b, text, err);
        if (status == WEIR_OK) status = base_buf_printf(&b, err, ": %u", i);
    }
    if (status == WEIR_OK) status = base_buf_printf(&b, err, "},\n\"merges\": [");
    for (uint32_t i = 0; i < n - 256 - RT_SYNTH_N_CONTROL && status == WEIR_OK; i++) {
        rt_synth_merge(i, text);
        status = base_buf_append(&b, i == 0 ? "\n" : ",\n", i == 0 ? 1 : 2, err);
        if (status == WEIR_OK) status = put_string(&b, text, err);
    }
    if (status == WEIR_OK) status = base_buf_printf(&b, err, "]}}\n");
    if (status == WEIR_OK) status = save(s, folder, "tokenizer.json", &b, err);
    base_buf_finish(&b);
    return status;
}

static weir_status write_small_files(const rt_synth *s, const char *folder, weir_error *err)
{
    base_buf b;
    base_buf_init(&b, s->env, BASE_TAG_RUNTIME);
    weir_status status = base_buf_printf(&b, err, "{\"bos_token_id\": %u, \"eos_token_id\": %u}\n",
                                         s->o.n_vocab - 3, s->o.n_vocab - 1);
    if (status == WEIR_OK) status = save(s, folder, "generation_config.json", &b, err);
    b.len = 0;
    if (status == WEIR_OK)
        status = base_buf_printf(&b, err,
                                 "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"%s\", "
                                 "\"eos_token\": \"%s\", "
                                 "\"add_bos_token\": false, \"model_max_length\": %u, \"chat_template\": ",
                                 rt_synth_control[0], rt_synth_control[2], s->o.ctx_tokens);
    if (status == WEIR_OK) status = put_string(&b, rt_synth_chat_template, err);
    if (status == WEIR_OK) status = base_buf_append(&b, "}\n", 2, err);
    if (status == WEIR_OK) status = save(s, folder, "tokenizer_config.json", &b, err);
    base_buf_finish(&b);
    return status;
}

weir_status rt_synth_hf_files(const rt_synth *s, const char *folder, weir_error *err)
{
    weir_status status = write_config(s, folder, err);
    if (status == WEIR_OK) status = write_tokenizer(s, folder, err);
    return status == WEIR_OK ? write_small_files(s, folder, err) : status;
}
