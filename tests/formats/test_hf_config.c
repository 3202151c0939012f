/* Hugging Face's config.json, generation_config.json and tensor names as GGUF metadata. The expected values
 * are those that transformers' configuration classes give for the same text. */
#include "model_test.h"

#define COMMON                                                                                               \
    "\"vocab_size\":128,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_"          \
    "attention_heads\":4,"                                                                                   \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":256"
#define CONFIG(cls, more) "{\"architectures\":[\"" cls "\"]," COMMON more "}"

static const char *write_tensor(const char *name)
{
    char header[1024];
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
             name);
    return write_safetensors("model.safetensors", header, 4);
}

static fmt_model *open_config(base_env *env, const char *config)
{
    write_text("config.json", config);
    write_tensor("model.embed_tokens.weight");
    return open_ok(env, test_folder);
}

static void close_all(base_env *env, fmt_model *m)
{
    fmt_model_close(m);
    assert_true(end_env(env) < 1u << 20);
}

static void has_u64(const fmt_model *m, const char *key, uint64_t want)
{
    weir_error err = {0};
    uint64_t u = 0;
    assert_non_null(fmt_model_find_value(m, key));
    assert_int_equal(fmt_get_u64(m, key, 0, 0, UINT64_MAX, &u, &err), WEIR_OK);
    if (u != want) fail_msg("%s is %" PRIu64 ", wanted %" PRIu64, key, u, want);
}

static void has_f32(const fmt_model *m, const char *key, double want)
{
    weir_error err = {0};
    double d = 0;
    if (fmt_model_find_value(m, key) == NULL) fail_msg("%s is missing", key);
    assert_int_equal(fmt_get_f64(m, key, 0, &d, &err), WEIR_OK);
    if (d != (float)want) fail_msg("%s is %.9g, wanted %.9g", key, d, want);
}

static void lacks(const fmt_model *m, const char *key)
{
    if (fmt_model_find_value(m, key) != NULL) fail_msg("%s is there", key);
}

/* The array's elements, as digits. */
static void has_array(base_env *env, const fmt_model *m, const char *key, const char *want)
{
    weir_error err = {0};
    char text[256] = "";
    const fmt_value *v = fmt_model_find_value(m, key);
    if (v == NULL) fail_msg("%s is missing", key);
    fmt_array *a;
    assert_int_equal(fmt_array_open(env, m, v, &a, &err), WEIR_OK);
    for (uint64_t i = 0; i < v->v.array.count; i++) {
        int64_t x;
        assert_int_equal(fmt_array_next_i64(a, &x, &err), WEIR_OK);
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%" PRId64, i > 0 ? " " : "", x);
    }
    fmt_array_close(a);
    assert_string_equal(text, want);
}

static void test_llama(void **state)
{
    (void)state;
    base_env *env = new_env();
    fmt_model *m = open_config(
        env, CONFIG("LlamaForCausalLM",
                    ",\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"hidden_act\":\"silu\","
                    "\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
                    "\"original_max_position_embeddings\":64,\"rope_type\":\"llama3\"},"
                    "\"eos_token_id\":[5,6],\"bos_token_id\":3,\"pad_token_id\":null,"
                    "\"tie_word_embeddings\":false"));
    assert_string_equal(fmt_get_str(m, "general.architecture"), "llama");
    has_u64(m, "weir.own_head", 1);
    has_u64(m, "llama.block_count", 3);
    has_u64(m, "llama.context_length", 256);
    has_u64(m, "llama.embedding_length", 64);
    has_u64(m, "llama.feed_forward_length", 96);
    has_u64(m, "llama.vocab_size", 128);
    has_u64(m, "llama.attention.head_count", 4);
    has_u64(m, "llama.attention.head_count_kv", 2);
    has_u64(m, "llama.attention.key_length", 16);
    has_u64(m, "llama.attention.value_length", 16);
    has_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5);
    has_f32(m, "llama.rope.freq_base", 5e5);
    has_u64(m, "llama.rope.dimension_count", 16);
    has_f32(m, "weir.rope_llama3.factor", 32);
    has_f32(m, "weir.rope_llama3.low_freq_factor", 1);
    has_f32(m, "weir.rope_llama3.high_freq_factor", 4);
    has_u64(m, "weir.rope_llama3.original_context_length", 64);
    lacks(m, "llama.rope.scaling.type");
    lacks(m, "llama.attention.sliding_window");
    lacks(m, "weir.norm_offset");
    assert_string_equal(fmt_get_str(m, "weir.rope_style"), "neox");
    has_u64(m, "tokenizer.ggml.eos_token_id", 5);
    has_array(env, m, "weir.eos_token_ids", "5 6");
    has_u64(m, "tokenizer.ggml.bos_token_id", 3);
    lacks(m, "tokenizer.ggml.padding_token_id");
    const fmt_tensor *t = fmt_model_find_tensor(m, "token_embd.weight");
    assert_string_equal(t->file_name, "model.embed_tokens.weight");
    walk_model(env, m);
    close_all(env, m);
}

static void test_mistral_qwen(void **state)
{
    (void)state;
    base_env *env = new_env();
    fmt_model *m = open_config(env, CONFIG("MistralForCausalLM", ",\"head_dim\":32,\"sliding_window\":16"));
    has_u64(m, "llama.attention.key_length", 32);
    has_u64(m, "llama.attention.sliding_window", 16);
    has_array(env, m, "llama.attention.sliding_window_pattern", "1 1 1");
    has_f32(m, "llama.rope.freq_base", 1e4);
    fmt_model_close(m);
    m = open_config(env, CONFIG("MistralForCausalLM", ",\"sliding_window\":null"));
    lacks(m, "llama.attention.sliding_window");
    fmt_model_close(m);
    m = open_config(env, CONFIG("Qwen2ForCausalLM",
                                ",\"sliding_window\":32,\"use_sliding_window\":false,"
                                "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6,"
                                "\"factor\":4.0,\"original_max_position_embeddings\":64}"));
    assert_string_equal(fmt_get_str(m, "general.architecture"), "qwen2");
    lacks(m, "qwen2.attention.sliding_window");
    assert_string_equal(fmt_get_str(m, "qwen2.rope.scaling.type"), "yarn");
    has_f32(m, "qwen2.rope.freq_base", 1e6);
    has_f32(m, "qwen2.rope.scaling.factor", 4);
    has_u64(m, "qwen2.rope.scaling.original_context_length", 64);
    has_f32(m, "qwen2.rope.scaling.yarn_beta_fast", 32);
    has_f32(m, "qwen2.rope.scaling.yarn_beta_slow", 1);
    lacks(m, "qwen2.rope.scaling.attn_factor");
    fmt_model_close(m);
    m = open_config(env, CONFIG("Qwen3ForCausalLM",
                                ",\"sliding_window\":32,\"use_sliding_window\":true,"
                                "\"max_window_layers\":2,\"rope_scaling\":{\"type\":\"linear\","
                                "\"factor\":2}"));
    has_u64(m, "qwen3.attention.key_length", 128);
    has_u64(m, "qwen3.attention.sliding_window", 32);
    has_array(env, m, "qwen3.attention.sliding_window_pattern", "0 0 1");
    assert_string_equal(fmt_get_str(m, "qwen3.rope.scaling.type"), "linear");
    has_f32(m, "qwen3.rope.scaling.factor", 2);
    fmt_model_close(m);
    /* attention_factor replaces 0.1 ln(4) + 1 = 1.138629436; GGUF's factor multiplies it. */
    m = open_config(env, CONFIG("Qwen3ForCausalLM",
                                ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                                "\"original_max_position_embeddings\":64,\"attention_factor\":1.0}"));
    has_f32(m, "qwen3.rope.scaling.attn_factor", 1 / 1.1386294361119891);
    close_all(env, m);
}

static void test_gemma3(void **state)
{
    (void)state;
    base_env *env = new_env();
    fmt_model *m = open_config(
        env,
        CONFIG("Gemma3ForCausalLM",
               ",\"head_dim\":16,\"sliding_window\":8,\"query_pre_attn_scalar\":64,\"final_logit_"
               "softcapping\":30.0,"
               "\"attn_logit_softcapping\":null,\"hidden_activation\":\"gelu_pytorch_tanh\",\"layer_types\":["
               "\"sliding_attention\",\"full_attention\",\"sliding_attention\"],\"rope_parameters\":{"
               "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":2e6},"
               "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":5000}}"));
    assert_string_equal(fmt_get_str(m, "general.architecture"), "gemma3");
    has_array(env, m, "gemma3.attention.sliding_window_pattern", "1 0 1");
    has_u64(m, "gemma3.attention.sliding_window", 8);
    has_f32(m, "gemma3.attention.scale", 0.125);
    has_f32(m, "gemma3.final_logit_softcapping", 30);
    lacks(m, "gemma3.attn_logit_softcapping");
    has_f32(m, "gemma3.rope.freq_base", 2e6);
    has_f32(m, "gemma3.rope.freq_base_swa", 5000);
    assert_string_equal(fmt_get_str(m, "gemma3.rope.scaling.type"), "linear");
    has_f32(m, "gemma3.rope.scaling.factor", 8);
    has_f32(m, "weir.norm_offset", 1);
    fmt_model_close(m);
    /* A multimodal file that leaves out what equals the defaults, with the older keys. */
    m = open_config(
        env,
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":[1,106],\"text_config\":{"
        "\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_"
        "layers\":"
        "7,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"vision_config\":{\"hidden_size\":1152}}");
    has_u64(m, "gemma3.vocab_size", 262208);
    has_u64(m, "gemma3.attention.head_count", 8);
    has_u64(m, "gemma3.attention.head_count_kv", 4);
    has_u64(m, "gemma3.attention.key_length", 256);
    has_u64(m, "gemma3.context_length", 131072);
    has_f32(m, "gemma3.rope.freq_base", 1e6);
    has_f32(m, "gemma3.rope.freq_base_swa", 1e4);
    has_f32(m, "gemma3.attention.scale", 0.0625);
    has_array(env, m, "gemma3.attention.sliding_window_pattern", "1 1 1 1 1 0 1");
    has_array(env, m, "weir.eos_token_ids", "1 106");
    close_all(env, m);
}

static void test_side_files(void **state)
{
    (void)state;
    base_env *env = new_env();
    write_text("generation_config.json", "{\"eos_token_id\":[9,7],\"bos_token_id\":1,\"pad_token_id\":0}");
    write_text("tokenizer.json", "{}");
    write_text("tokenizer_config.json", "{}");
    write_text("chat_template.jinja", "{{ messages }}");
    fmt_model *m = open_config(env, CONFIG("LlamaForCausalLM", ",\"eos_token_id\":7,\"bos_token_id\":2"));
    has_u64(m, "tokenizer.ggml.eos_token_id", 9);
    has_u64(m, "tokenizer.ggml.bos_token_id", 1);
    has_u64(m, "tokenizer.ggml.padding_token_id", 0);
    has_array(env, m, "weir.eos_token_ids", "9 7");
    assert_string_equal(fmt_get_str(m, "weir.tokenizer_json"), path_of("tokenizer.json"));
    assert_string_equal(fmt_get_str(m, "weir.tokenizer_config"), path_of("tokenizer_config.json"));
    assert_string_equal(fmt_get_str(m, "tokenizer.chat_template"), "{{ messages }}");
    assert_string_equal(fmt_model_dir(m), test_folder);
    close_all(env, m);
    static const char *const names[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    for (int i = 0; i < 4; i++) unlink(path_of(names[i]));
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *cls, *from, *to;
    } names[] = {
        {"LlamaForCausalLM", "lm_head.weight", "output.weight"},
        {"LlamaForCausalLM", "model.norm.weight", "output_norm.weight"},
        {"LlamaForCausalLM", "norm.weight", "output_norm.weight"},
        {"LlamaForCausalLM", "model.layers.12.input_layernorm.weight", "blk.12.attn_norm.weight"},
        {"LlamaForCausalLM", "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
        {"LlamaForCausalLM", "model.layers.0.self_attn.o_proj.bias", "blk.0.attn_output.bias"},
        {"Qwen2ForCausalLM", "model.layers.7.self_attn.q_proj.bias", "blk.7.attn_q.bias"},
        {"Qwen2ForCausalLM", "model.layers.7.self_attn.k_proj.weight", "blk.7.attn_k.weight"},
        {"Qwen2ForCausalLM", "model.layers.7.self_attn.v_proj.bias", "blk.7.attn_v.bias"},
        {"Qwen3ForCausalLM", "model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight"},
        {"Qwen3ForCausalLM", "model.layers.1.self_attn.k_norm.weight", "blk.1.attn_k_norm.weight"},
        {"Qwen3ForCausalLM", "model.layers.1.mlp.gate_proj.weight", "blk.1.ffn_gate.weight"},
        {"Qwen3ForCausalLM", "model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"},
        {"Qwen3ForCausalLM", "model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"},
        {"Gemma3ForCausalLM", "model.layers.3.post_attention_layernorm.weight",
         "blk.3.post_attention_norm.weight"},
        {"Gemma3ForCausalLM", "model.layers.3.pre_feedforward_layernorm.weight", "blk.3.ffn_norm.weight"},
        {"Gemma3ForCausalLM", "model.layers.3.post_feedforward_layernorm.weight",
         "blk.3.post_ffw_norm.weight"},
        {"Gemma3ForCausalLM", "language_model.model.layers.3.mlp.up_proj.weight", "blk.3.ffn_up.weight"},
        {"Gemma3ForCausalLM", "model.language_model.embed_tokens.weight", "token_embd.weight"},
        {"Gemma3ForCausalLM", "language_model.lm_head.weight", "output.weight"},
        /* What has no name in GGUF keeps its own. */
        {"LlamaForCausalLM", "model.layers.01.input_layernorm.weight",
         "model.layers.01.input_layernorm.weight"},
        {"LlamaForCausalLM", "model.layers.0.pre_feedforward_layernorm.weight",
         "model.layers.0.pre_feedforward_layernorm.weight"},
        {"LlamaForCausalLM", "model.layers.1234567.mlp.up_proj.weight",
         "model.layers.1234567.mlp.up_proj.weight"},
        {"LlamaForCausalLM", "model.layers..mlp.up_proj.weight", "model.layers..mlp.up_proj.weight"},
        {"LlamaForCausalLM", "model.layers.0.self_attn.rotary_emb.inv_freq",
         "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {"Gemma3ForCausalLM", "vision_tower.layers.0.mlp.up_proj.weight",
         "vision_tower.layers.0.mlp.up_proj.weight"},
        {"LlamaForCausalLM", ".weight", ".weight"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char config[512];
        base_env *env = new_env();
        snprintf(config, sizeof config, "{\"architectures\":[\"%s\"]}", names[i].cls);
        write_text("config.json", config);
        fmt_model *m = open_ok(env, write_tensor(names[i].from));
        assert_string_equal(fmt_model_tensor(m, 0)->name, names[i].to);
        assert_string_equal(fmt_model_tensor(m, 0)->file_name, names[i].from);
        close_all(env, m);
    }
}

static void test_bad_config(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        weir_status status;
        const char *phrase;
    } bad[] = {
        {"{", WEIR_ERR_FORMAT, "config.json: no valid JSON"},
        {"[]", WEIR_ERR_FORMAT, "not a JSON object"},
        {"{\"a\":1,\"a\":2}", WEIR_ERR_FORMAT, "no valid JSON"},
        {"{}", WEIR_ERR_FORMAT, "neither \"architectures\" nor \"model_type\""},
        {CONFIG("BertModel", ""), WEIR_ERR_UNSUPPORTED, "architecture \"BertModel\" is not supported"},
        {"{\"model_type\":\"mamba\"}", WEIR_ERR_UNSUPPORTED, "\"mamba\""},
        {CONFIG("LlamaForCausalLM", ",\"head_dim\":-1"), WEIR_ERR_FORMAT, "\"head_dim\" is -1, wanted 1 to"},
        {CONFIG("LlamaForCausalLM", ",\"head_dim\":\"8\""), WEIR_ERR_FORMAT,
         "\"head_dim\" is no whole number"},
        {CONFIG("LlamaForCausalLM", ",\"rms_norm_eps\":\"x\""), WEIR_ERR_FORMAT,
         "\"rms_norm_eps\" is no number"},
        {CONFIG("LlamaForCausalLM", ",\"rope_theta\":-1"), WEIR_ERR_FORMAT, "\"rope_theta\" is -1"},
        {CONFIG("LlamaForCausalLM", ",\"head_dim\":7"), WEIR_ERR_FORMAT, "7 rotary dimensions"},
        {CONFIG("LlamaForCausalLM", ",\"hidden_act\":\"relu\""), WEIR_ERR_UNSUPPORTED,
         "\"hidden_act\" is \"relu\""},
        {CONFIG("LlamaForCausalLM", ",\"tie_word_embeddings\":1"), WEIR_ERR_FORMAT, "neither true nor false"},
        {CONFIG("LlamaForCausalLM", ",\"quantization_config\":{}"), WEIR_ERR_UNSUPPORTED,
         "quantized safetensors"},
        {CONFIG("LlamaForCausalLM", ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}"),
         WEIR_ERR_UNSUPPORTED, "rope scaling \"longrope\""},
        {CONFIG("LlamaForCausalLM", ",\"rope_scaling\":{\"rope_type\":\"linear\"}"), WEIR_ERR_FORMAT,
         "without \"factor\""},
        {CONFIG("LlamaForCausalLM", ",\"rope_scaling\":3"), WEIR_ERR_FORMAT, "no JSON object"},
        {CONFIG("LlamaForCausalLM", ",\"eos_token_id\":-4"), WEIR_ERR_FORMAT,
         "\"eos_token_id\" is no token id"},
        {CONFIG("LlamaForCausalLM", ",\"eos_token_id\":[1,\"x\"]"), WEIR_ERR_FORMAT, "no token id"},
        {CONFIG("Gemma3ForCausalLM", ",\"layer_types\":[\"full_attention\"]"), WEIR_ERR_FORMAT,
         "no list of 3 entries"},
        {CONFIG("Gemma3ForCausalLM", ",\"layer_types\":[1,2,3]"), WEIR_ERR_UNSUPPORTED, "entry 0"},
        {CONFIG("Gemma3ForCausalLM", ",\"use_bidirectional_attention\":true"), WEIR_ERR_UNSUPPORTED,
         "bidirectional"},
        {"{\"architectures\":[\"Gemma3ForConditionalGeneration\"]}", WEIR_ERR_FORMAT, "no \"text_config\""},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"num_attention_heads\":6,\"num_key_value_heads\":4}",
         WEIR_ERR_FORMAT, "6 heads are no multiple of 4"},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":100000}", WEIR_ERR_FORMAT,
         "wanted 1 to 4096"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", WEIR_ERR_FORMAT, "nested 41 deep"},
    };
    write_tensor("model.embed_tokens.weight");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("config.json", bad[i].text);
        open_fails(test_folder, bad[i].status, bad[i].phrase);
    }
    write_text("config.json", CONFIG("LlamaForCausalLM", ""));
    write_text("generation_config.json", "{\"eos_token_id\":{}}");
    open_fails(test_folder, WEIR_ERR_FORMAT, "generation_config.json");
    unlink(path_of("generation_config.json"));
}

static void test_no_weights(void **state)
{
    (void)state;
    write_text("config.json", CONFIG("LlamaForCausalLM", ""));
    unlink(path_of("model.safetensors"));
    open_fails(test_folder, WEIR_ERR_NOT_FOUND, "without model.safetensors");
    unlink(path_of("config.json"));
    open_fails(test_folder, WEIR_ERR_FORMAT, "a directory");
}

static void test_faults(void **state)
{
    (void)state;
    write_text("config.json", CONFIG("Gemma3ForCausalLM", ",\"eos_token_id\":[1,2]"));
    write_text("generation_config.json", "{}");
    write_tensor("model.embed_tokens.weight");
    for (uint64_t after = 0;; after++) {
        weir_error err = {0};
        base_env *env = new_env();
        fmt_model *m = NULL;
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        assert_int_equal(base_fault_arm(env, &rule, &err), WEIR_OK);
        weir_status s = fmt_model_open(env, test_folder, &m, &err);
        if (s != WEIR_OK && s != WEIR_ERR_OUT_OF_MEMORY) fail_msg("%" PRIu64 ": %s", after, err.message);
        fmt_model_close(m);
        end_env(env);
        if (s == WEIR_OK) {
            assert_true(after > 20);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),      cmocka_unit_test(test_mistral_qwen),
        cmocka_unit_test(test_gemma3),     cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_no_weights), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
