/* Capacity by formula (R14.3, R14.4): figures worked out by hand, configurations of known models, and input
 * that must be refused. */
#include "rt_test.h"

static weir_formula formula(uint64_t ctx_tokens)
{
    weir_formula f;
    weir_formula_init(&f);
    f.ctx_tokens = ctx_tokens;
    return f;
}

static void add(weir_formula *f, weir_cache_layers g)
{
    f->caches[f->n_caches++] = g;
}

static weir_formula_result evaluate(fixture *x, const weir_formula *f)
{
    weir_formula_result r;
    assert_ok(x, weir_formula_evaluate(f, &r, &x->err));
    assert_int_equal(r.n_bills, f->n_caches);
    return r;
}

/* 32 layers, 8 KV heads of 128: Llama 3 8B */
static weir_formula llama3(uint64_t ctx_tokens)
{
    weir_formula f = formula(ctx_tokens);
    add(&f, (weir_cache_layers){.kind = WEIR_CACHE_FULL, .n_layers = 32, .n_kv_heads = 8, .head_dim = 128});
    return f;
}

static void test_standard(void **state)
{
    weir_formula f = llama3(8192);
    weir_formula_result r = evaluate(*state, &f);
    /* 2 x 32 x 8 x 128 x 8192 x 2 */
    assert_int_equal(r.kv_bytes, UINT64_C(1) << 30);
    assert_int_equal(r.next_token_bytes, 128 << 10);
    assert_int_equal(r.bills[0].bytes_per_layer_token, 4096);
    assert_int_equal(r.bills[0].tokens, 8192);
    assert_int_equal(r.sessions, 0); /* not asked */
}

static uint64_t kv_of_type(fixture *x, const char *key, const char *value)
{
    weir_formula f = llama3(8192);
    snprintf(f.key_type, sizeof f.key_type, "%s", key);
    snprintf(f.value_type, sizeof f.value_type, "%s", value);
    return evaluate(x, &f).kv_bytes;
}

static void test_types(void **state)
{
    fixture *x = *state;
    /* 1024 values are 32 blocks: 34 bytes each in Q8_0, 18 in Q4_0 */
    assert_int_equal(kv_of_type(x, "q8_0", ""), UINT64_C(2) * 32 * 34 * 32 * 8192);
    assert_int_equal(kv_of_type(x, "Q4_0", ""), UINT64_C(2) * 32 * 18 * 32 * 8192);
    assert_int_equal(kv_of_type(x, "Q8_0", "Q4_0"), UINT64_C(32) * (34 + 18) * 32 * 8192);
    assert_int_equal(kv_of_type(x, "F32", ""), UINT64_C(2) << 30);
    assert_int_equal(kv_of_type(x, "2", ""), UINT64_C(1) << 30);
    assert_int_equal(kv_of_type(x, "1", ""), UINT64_C(1) << 29);
    assert_int_equal(kv_of_type(x, "0.5", ""), UINT64_C(1) << 28);
    assert_int_equal(kv_of_type(x, "1.0625", ""), UINT64_C(2) * 32 * 34 * 32 * 8192); /* Q8_0 */
    /* Part of a block is a block: 40 values are two. */
    weir_formula f = formula(10);
    add(&f, (weir_cache_layers){.kind = WEIR_CACHE_FULL, .n_layers = 1, .n_kv_heads = 1, .head_dim = 40});
    snprintf(f.key_type, sizeof f.key_type, "Q8_0");
    assert_int_equal(evaluate(x, &f).kv_bytes, 10 * 2 * 68);
    snprintf(f.key_type, sizeof f.key_type, "0.51"); /* 20.4 bytes are 21 */
    assert_int_equal(evaluate(x, &f).kv_bytes, 10 * 2 * 21);
}

static void test_kinds(void **state)
{
    fixture *x = *state;
    weir_formula f = formula(1000);
    add(&f, (weir_cache_layers){
                .kind = WEIR_CACHE_WINDOW, .n_layers = 3, .n_kv_heads = 2, .head_dim = 64, .window = 100});
    add(&f, (weir_cache_layers){
                .kind = WEIR_CACHE_FULL, .n_layers = 1, .n_kv_heads = 2, .head_dim = 64, .value_dim = 32});
    add(&f,
        (weir_cache_layers){.kind = WEIR_CACHE_LATENT, .n_layers = 5, .latent_rank = 512, .rope_dim = 64});
    add(&f, (weir_cache_layers){.kind = WEIR_CACHE_STATE, .n_layers = 7, .state_bytes = 1001});
    weir_formula_result r = evaluate(x, &f);
    assert_int_equal(r.bills[0].bytes, 3 * 100 * 512);
    assert_int_equal(r.bills[1].bytes, 1000 * 2 * (128 + 64));
    assert_int_equal(r.bills[2].bytes, 5 * 1000 * 1152);
    assert_int_equal(r.bills[3].bytes, 7007);
    assert_int_equal(r.kv_bytes, 153600 + 384000 + 5760000 + 7007);
    assert_int_equal(r.next_token_bytes, 384 + 5 * 1152); /* windows and states do not grow */
    f.ctx_tokens = 60;                                    /* inside the window */
    assert_int_equal(evaluate(x, &f).bills[0].bytes, 3 * 60 * 512);
    f.page_tokens = 16; /* 60 are 4 pages of 16 */
    f.align_bytes = 4096;
    r = evaluate(x, &f);
    assert_int_equal(r.bills[0].tokens, 64);
    assert_int_equal(r.bills[0].bytes, 3 * 32768);
    assert_int_equal(r.bills[2].bytes, 5 * 73728);
    assert_int_equal(r.bills[3].bytes, 7 * 4096);
}

static void test_sessions(void **state)
{
    fixture *x = *state;
    const uint64_t gib = UINT64_C(1) << 30;
    weir_formula f = llama3(8192);
    f.total_bytes = 16 * gib;
    f.system_bytes = 2 * gib;
    f.weight_bytes = UINT64_C(5000000000);
    f.workspace_bytes = 200 * MIB;
    weir_formula_result r = evaluate(x, &f);
    assert_int_equal(r.free_bytes, 14 * gib - UINT64_C(5000000000));
    assert_int_equal(r.session_bytes, gib + 200 * MIB);
    assert_int_equal(r.sessions, 7); /* 10032385536 / 1283457024 = 7.8 */
    assert_int_equal(r.missing_bytes, 0);
    /* the very edge: eight, and one byte less */
    f.total_bytes = 2 * gib + UINT64_C(5000000000) + 8 * r.session_bytes;
    assert_int_equal(evaluate(x, &f).sessions, 8);
    f.total_bytes--;
    assert_int_equal(evaluate(x, &f).sessions, 7);
    /* max(0, ...): system and weights alone are more than there is */
    f.total_bytes = 4 * gib;
    r = evaluate(x, &f);
    assert_int_equal(r.sessions, 0);
    assert_int_equal(r.free_bytes, 0);
    assert_int_equal(r.missing_bytes, 2 * gib + UINT64_C(5000000000) + r.session_bytes - 4 * gib);
}

static void refused(fixture *x, const weir_formula *f, const char *part)
{
    weir_formula_result r = {.kv_bytes = 77};
    weir_status s = weir_formula_evaluate(f, &r, &x->err);
    if (s != WEIR_ERR_INVALID_ARGUMENT) fail_msg("expected a refusal that mentions %s, got %d", part, s);
    assert_mentions(x->err.message, part);
    assert_int_equal(r.kv_bytes, 77);
}

static void test_refused(void **state)
{
    fixture *x = *state;
    weir_formula f = formula(10);
    refused(x, &f, "kinds of layers");
    f = llama3(0);
    refused(x, &f, "context");
    f = llama3(UINT64_MAX);
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.caches[0].n_layers = 0;
    refused(x, &f, "number of layers");
    f = llama3(10);
    f.caches[0].n_kv_heads = 0;
    refused(x, &f, "KV heads");
    f = llama3(10);
    f.caches[0].head_dim = 0;
    refused(x, &f, "head dimension");
    f = llama3(10);
    f.caches[0].kind = WEIR_CACHE_WINDOW;
    refused(x, &f, "window");
    f.caches[0].kind = WEIR_CACHE_LATENT;
    refused(x, &f, "latent rank");
    f.caches[0].kind = WEIR_CACHE_STATE;
    refused(x, &f, "state");
    f.caches[0].kind = (weir_cache_kind)9;
    refused(x, &f, "no known kind");
    static const char *const types[] = {"",   "Q9_9", "-2",  "0",     "0.0",
                                        "1.", ".5",   "1e3", "1.2.3", "99999999999"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        f = llama3(10);
        snprintf(f.key_type, sizeof f.key_type, "%s", types[i]);
        refused(x, &f, "type");
    }
    f = llama3(10);
    f.system_bytes = 1;
    refused(x, &f, "no total");
    f.struct_size = 8;
    refused(x, &f, "struct_size");
}

/* Each factor alone large enough to pass 64 bits. */
static void test_overflow(void **state)
{
    fixture *x = *state;
    const uint64_t huge = UINT64_C(1) << 62;
    weir_formula f = llama3(huge);
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.caches[0].n_layers = huge;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.caches[0].n_kv_heads = huge;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.caches[0].head_dim = UINT64_MAX;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.page_tokens = UINT64_MAX;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.align_bytes = UINT64_MAX - 1;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.workspace_bytes = UINT64_MAX;
    refused(x, &f, "64 bits");
    f = llama3(10);
    f.total_bytes = 1;
    f.system_bytes = f.weight_bytes = UINT64_MAX;
    refused(x, &f, "64 bits");
    f = formula(1);
    add(&f, (weir_cache_layers){
                .kind = WEIR_CACHE_LATENT, .n_layers = 1, .latent_rank = UINT64_MAX, .rope_dim = 1});
    refused(x, &f, "64 bits");
    f = formula(1);
    add(&f, (weir_cache_layers){.kind = WEIR_CACHE_STATE, .n_layers = 2, .state_bytes = UINT64_MAX});
    refused(x, &f, "64 bits");
}

/* ---- configurations ---- */

static weir_status read_config(fixture *x, const char *json, weir_formula *f)
{
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", x->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(json, file);
    fclose(file);
    *f = formula(0);
    weir_status s = weir_formula_read(x->context, x->folder, f, &x->err);
    weir_formula g = *f;
    if (s == WEIR_OK) assert_ok(x, weir_formula_read(x->context, path, &g, &x->err));
    assert_memory_equal(f, &g, sizeof g);
    unlink(path);
    return s;
}

static weir_formula_result of_config(fixture *x, const char *json, uint64_t ctx_tokens)
{
    weir_formula f;
    assert_ok(x, read_config(x, json, &f));
    assert_string_equal(f.unknown, "");
    f.ctx_tokens = ctx_tokens;
    return evaluate(x, &f);
}

static void test_attention_configs(void **state)
{
    fixture *x = *state;
    /* Gemma 3 1B: 26 layers, every sixth full: 4; the others keep 512 tokens */
    weir_formula_result r =
        of_config(x,
                  "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 26, \"num_attention_heads\": 4, "
                  "\"num_key_value_heads\": 1, \"head_dim\": 256, \"sliding_window\": 512, "
                  "\"sliding_window_pattern\": 6, \"hidden_size\": 1152}",
                  32768);
    assert_int_equal(r.kv_bytes, UINT64_C(4) * 32768 * 1024 + 22 * 512 * 1024);
    /* Gemma 3 4B leaves out what equals the class's defaults: 4 KV heads of 256 */
    r = of_config(x,
                  "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3_text\", "
                  "\"hidden_size\": 2560, \"num_hidden_layers\": 34, \"sliding_window\": 1024}}",
                  131072);
    assert_int_equal(r.kv_bytes, UINT64_C(5) * 131072 * 4096 + UINT64_C(29) * 1024 * 4096);
    /* Gemma 2 9B: every other layer */
    r = of_config(x,
                  "{\"model_type\": \"gemma2\", \"num_hidden_layers\": 42, \"num_key_value_heads\": 8, "
                  "\"head_dim\": 256, \"sliding_window\": 4096}",
                  8192);
    assert_int_equal(r.kv_bytes, UINT64_C(21) * 8192 * 8192 + UINT64_C(21) * 4096 * 8192);
    /* Mistral 7B v0.1: all layers slide; v0.2: none, by an explicit null */
    const char *v1 = "{\"model_type\": \"mistral\", \"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
                     "\"num_key_value_heads\": 8, \"hidden_size\": 4096, \"sliding_window\": 4096}";
    const char *v2 = "{\"model_type\": \"mistral\", \"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
                     "\"num_key_value_heads\": 8, \"hidden_size\": 4096, \"sliding_window\": null}";
    assert_int_equal(of_config(x, v1, 32768).kv_bytes, UINT64_C(1) << 29);
    assert_int_equal(of_config(x, v2, 32768).kv_bytes, UINT64_C(1) << 32);
    /* Qwen 2.5 7B: the window is there, and off */
    r = of_config(x,
                  "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 28, \"num_attention_heads\": 28, "
                  "\"num_key_value_heads\": 4, \"hidden_size\": 3584, \"sliding_window\": 131072, "
                  "\"use_sliding_window\": false, \"max_window_layers\": 28}",
                  1);
    assert_int_equal(r.kv_bytes, 57344);
    /* GPT-2: as many KV heads as heads, under other names */
    r = of_config(x, "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768}", 1024);
    assert_int_equal(r.kv_bytes, 2 * 12 * 768 * 1024 * 2);
}

static void test_other_configs(void **state)
{
    fixture *x = *state;
    /* DeepSeek-V3: 512 + 64 per layer */
    const char *v3 = "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, \"kv_lora_rank\": 512, "
                     "\"qk_rope_head_dim\": 64, \"num_attention_heads\": 128, \"num_key_value_heads\": 128, "
                     "\"hidden_size\": 7168, \"max_position_embeddings\": 163840}";
    assert_int_equal(of_config(x, v3, 1).kv_bytes, 61 * 576 * 2);
    assert_int_equal(of_config(x, v3, 4096).kv_bytes, UINT64_C(287834112));
    /* Jamba v0.1: attention in layers 4, 12, 20, 28; Mamba in 28: (8192 x 16 + 8192 x 3) x 4 bytes */
    weir_formula_result r =
        of_config(x,
                  "{\"model_type\": \"jamba\", \"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
                  "\"num_key_value_heads\": 8, \"hidden_size\": 4096, \"attn_layer_period\": 8, "
                  "\"attn_layer_offset\": 4, "
                  "\"mamba_d_state\": 16, \"mamba_d_conv\": 4, \"mamba_expand\": 2}",
                  262144);
    assert_int_equal(r.kv_bytes, (UINT64_C(1) << 32) + 28 * 622592);
    /* Nemotron-H 8B: 4 attention layers, 24 of Mamba-2, and 24 that keep nothing */
    r = of_config(x,
                  "{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 52, \"hybrid_override_pattern\": "
                  "\"M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-\", \"num_key_value_heads\": 8, "
                  "\"attention_head_dim\": 128, \"mamba_num_heads\": 128, \"mamba_head_dim\": 64, "
                  "\"n_groups\": 8, \"ssm_state_size\": 128, \"conv_kernel\": 4}",
                  8192);
    assert_int_equal(r.kv_bytes, UINT64_C(4) * 8192 * 4096 + UINT64_C(24) * 4317184);
    /* Qwen3-Next: every fourth layer attends, the others keep a matrix per value head */
    r = of_config(
        x,
        "{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 48, \"full_attention_interval\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 256, \"linear_num_value_heads\": 32, "
        "\"linear_value_head_dim\": 128, \"linear_num_key_heads\": 16, "
        "\"linear_key_head_dim\": 128, \"linear_conv_kernel_dim\": 4}",
        1000);
    assert_int_equal(r.kv_bytes, UINT64_C(12) * 1000 * 2048 + UINT64_C(36) * 2195456);
}

static void test_bad_configs(void **state)
{
    static const struct {
        const char *json;
        weir_status status;
        const char *part;
    } cases[] = {
        {"[1]", WEIR_ERR_FORMAT, "not a JSON object"},
        {"{\"num_hidden_layers\": -1}", WEIR_ERR_FORMAT, "num_hidden_layers"},
        {"{\"num_hidden_layers\": 5000}", WEIR_ERR_FORMAT, "num_hidden_layers"},
        {"{\"num_hidden_layers\": \"x\"}", WEIR_ERR_FORMAT, "num_hidden_layers"},
        {"{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}", WEIR_ERR_FORMAT, "layer_types"},
        {"{\"num_hidden_layers\": 1, \"layer_types\": [\"magic\"]}", WEIR_ERR_UNSUPPORTED, "magic"},
        {"{\"num_hidden_layers\": 2, \"hybrid_override_pattern\": \"M\"}", WEIR_ERR_FORMAT, "letters"},
        {"{\"num_hidden_layers\": 1, \"hybrid_override_pattern\": \"Z\"}", WEIR_ERR_UNSUPPORTED, "letter"},
        {"{\"num_hidden_layers\": 2, \"attn_layer_indices\": [2]}", WEIR_ERR_FORMAT, "attn_layer_indices"},
        {"{\"model_type\": \"new\", \"num_hidden_layers\": 2, \"sliding_window\": 9}", WEIR_ERR_UNSUPPORTED,
         "--window-layers"},
        {"{\"num_hidden_layers\": 2, \"state_size\": 16}", WEIR_ERR_UNSUPPORTED, "recurrent"},
        {"{\"is_encoder_decoder\": true}", WEIR_ERR_UNSUPPORTED, "encoder"},
    };
    fixture *x = *state;
    weir_formula f;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_config(x, cases[i].json, &f), cases[i].status);
        assert_mentions(x->err.message, cases[i].part);
    }
    assert_int_equal(weir_formula_read(x->context, x->folder, &f, &x->err), WEIR_ERR_NOT_FOUND);
    /* What the file does not tell is asked for, not guessed. */
    assert_ok(x, read_config(x, "{\"model_type\": \"new\", \"num_hidden_layers\": 2}", &f));
    assert_string_equal(f.unknown, "kv-heads, head-dim");
    f.ctx_tokens = 10;
    refused(x, &f, "KV heads");
    assert_ok(x, read_config(x, "{\"model_type\": \"new\"}", &f));
    assert_string_equal(f.unknown, "layers");
    assert_string_equal(f.architecture, "new");
}

/* ---- GGUF ---- */

/* The formula for a model that Weir runs is what its plan says. */
static void test_gguf_of_ours(void **state)
{
    fixture *x = *state;
    weir_formula f = formula(256);
    assert_ok(x, weir_formula_read(x->context, make_model(x, "llama", 256), &f, &x->err));
    assert_string_equal(f.architecture, "llama");
    assert_string_equal(f.unknown, "");
    assert_int_equal(f.trained_ctx_tokens, 512);
    assert_int_equal(evaluate(x, &f).kv_bytes, 2 * 3 * 2 * 64 * 256 * 2);
    assert_ok(x, weir_formula_read(x->context, make_model(x, "gemma3", 256), &f, &x->err));
    weir_formula_result r = evaluate(x, &f);
    assert_int_equal(r.n_bills, 1); /* three layers, of which the sixth would be full */
    assert_int_equal(r.bills[0].kind, WEIR_CACHE_WINDOW);
    assert_int_equal(r.kv_bytes, 2 * 3 * 2 * 64 * 32 * 2);
}

static const char *write_header(fixture *x, const char *arch, const char *const *keys, const uint32_t *values)
{
    static char path[256];
    char full[128];
    fmt_writer *w;
    snprintf(path, sizeof path, "%s/llama.gguf", x->folder);
    assert_ok(x, fmt_writer_create(x->context->env, FMT_WRITE_GGUF, path, &w, &x->err));
    assert_ok(x, fmt_writer_str(w, "general.architecture", arch, &x->err));
    for (size_t i = 0; keys[i] != NULL; i++) {
        snprintf(full, sizeof full, "%s.%s", arch, keys[i]);
        if (strcmp(keys[i], "attention.head_count_kv") == 0 && values[i] == 0) {
            static const uint32_t list[] = {0, 8, 0, 0};
            assert_ok(x, fmt_writer_array(w, full, FMT_U32, 4, list, &x->err));
        } else {
            assert_ok(x, fmt_writer_u32(w, full, values[i], &x->err));
        }
    }
    uint64_t dim = 1;
    float one = 1;
    assert_ok(x, fmt_writer_tensor(w, "x", BASE_F32, 1, &dim, &x->err));
    assert_ok(x, fmt_writer_data(w, &one, sizeof one, &x->err));
    assert_ok(x, fmt_writer_finish(w, &x->err));
    fmt_writer_destroy(w);
    return path;
}

static void test_gguf_of_others(void **state)
{
    fixture *x = *state;
    weir_formula f = formula(100);
    const char *mla[] = {"block_count", "attention.kv_lora_rank", "rope.dimension_count",
                         "attention.head_count_kv", NULL};
    assert_ok(x,
              weir_formula_read(x->context, write_header(x, "deepseek2", mla, (uint32_t[]){27, 512, 64, 1}),
                                &f, &x->err));
    assert_int_equal(evaluate(x, &f).kv_bytes, 27 * 100 * 576 * 2);
    /* A hybrid lists its KV heads by layer; three of four have none and keep a state: 64 channels of
     * convolution less one column, and 48 x 16 values */
    const char *hybrid[] = {
        "block_count",    "attention.head_count_kv", "attention.key_length", "ssm.inner_size",
        "ssm.state_size", "ssm.conv_kernel",         "context_length",       NULL};
    assert_ok(x, weir_formula_read(x->context,
                                   write_header(x, "jamba", hybrid, (uint32_t[]){4, 0, 128, 48, 16, 4, 77}),
                                   &f, &x->err));
    weir_formula_result r = evaluate(x, &f);
    assert_int_equal(r.kv_bytes, 100 * 4096 + 3 * 4 * (48 * 16 + 48 * 3));
    assert_int_equal(f.trained_ctx_tokens, 77);
    const char *window[] = {"block_count", "attention.head_count_kv", "attention.sliding_window", NULL};
    assert_int_equal(
        weir_formula_read(x->context, write_header(x, "new", window, (uint32_t[]){4, 2, 16}), &f, &x->err),
        WEIR_ERR_UNSUPPORTED);
    assert_mentions(x->err.message, "--window-layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_standard, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_types, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_kinds, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_sessions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_overflow, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_attention_configs, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_other_configs, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_bad_configs, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_gguf_of_ours, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_gguf_of_others, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("rt_formula", tests, NULL, NULL);
}
