/* What a model file must hold: hyperparameters, tensors, types. Each lie ends with its own error, which names
 * the culprit; each architecture, read right, computes. */
#include "lm_tiny.h"

#include <math.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
#define N_ARCHS 4

typedef struct opened {
    base_env *env;
    weir_error err;
    fmt_model *file;
    lm_model *lm;
    weir_status status;
} opened;

static void open_tiny(opened *o, const tiny *t)
{
    const char *path = tiny_write(t);

    memset(o, 0, sizeof(*o));
    assert_ok(base_env_create(&o->env, &o->err), o->err);
    assert_ok(fmt_model_open(o->env, path, &o->file, &o->err), o->err);
    o->status = lm_model_create(o->env, o->file, &o->lm, &o->err);
    unlink(path);
}

static void close_tiny(opened *o)
{
    base_ledger_view view;

    lm_model_destroy(o->lm);
    fmt_model_close(o->file);
    base_ledger_read(o->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(o->env);
}

static void expect(const tiny *t, weir_status wanted, const char *in_message)
{
    opened o;

    open_tiny(&o, t);
    if (o.status != wanted || (wanted != WEIR_OK && strstr(o.err.message, in_message) == NULL))
        fail_msg("%s (\"%s\"): %s: %s", weir_status_name(wanted), in_message, weir_status_name(o.status),
                 o.err.message);
    if (o.status != WEIR_OK) assert_null(o.lm);
    close_tiny(&o);
}

static void hyperparameters(void **state)
{
    (void)state;
    for (int a = 0; a < N_ARCHS; a++) {
        for (int untied = 0; untied < 2; untied++) {
            tiny t = tiny_defaults(archs[a]);
            uint64_t q, params;
            const lm_hparams *hp;
            mem_unit_info unit;
            opened o;

            t.untied = untied != 0;
            open_tiny(&o, &t);
            assert_ok(o.status, o.err);
            hp = lm_model_hparams(o.lm);
            assert_string_equal(hp->arch, archs[a]);
            assert_int_equal(hp->n_layers, t.layers);
            assert_int_equal(hp->n_vocab, 97);
            assert_int_equal(hp->hidden, 64);
            assert_int_equal(hp->ffn, 96);
            assert_int_equal(hp->n_heads, 4);
            assert_int_equal(hp->n_kv_heads, 2);
            assert_int_equal(hp->head_dim, t.head_dim);
            assert_int_equal(hp->context_tokens, 256);
            assert_int_equal(hp->window, t.window);
            assert_int_equal(hp->tied, !t.untied);
            q = 4 * t.head_dim;
            params = 64 * q + 64 * q + q * 64 + 3 * 64 * 96 + 2 * 64;
            if (a == 1) params += 2 * q;
            if (a >= 2) params += 2 * t.head_dim;
            if (a == 3) params += 2 * 64;
            assert_int_equal(hp->n_params, t.layers * params + 64 + 64 * 97 * (1 + (uint64_t)untied));
            assert_int_equal(mem_component_n_units(lm_model_component(o.lm)),
                             t.layers + 1 + (uint32_t)untied);
            mem_component_unit(lm_model_component(o.lm), t.layers, &unit);
            assert_string_equal(unit.name, "head");
            close_tiny(&o);
        }
    }
}

static void missing_tensors(void **state)
{
    static const char *const common[] = {
        "token_embd.weight",   "output_norm.weight",    "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
        "blk.1.attn_k.weight", "blk.0.attn_v.weight",   "blk.1.ffn_norm.weight",  "blk.0.attn_output.weight",
        "blk.0.ffn_up.weight", "blk.1.ffn_gate.weight", "blk.1.ffn_down.weight",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        tiny t = tiny_defaults(archs[i % N_ARCHS]);

        t.omit = common[i];
        expect(&t, WEIR_ERR_MISSING_TENSOR, common[i]);
        t.omit = NULL;
        t.misshape = common[i];
        if (i != 0) expect(&t, WEIR_ERR_MISSING_TENSOR, common[i]); /* the table decides the vocabulary */
        t.misshape = NULL;
        t.retype = common[i];
        expect(&t, WEIR_ERR_UNSUPPORTED, common[i]);
    }
    for (int a = 1; a < N_ARCHS; a++) {
        static const char *const own[] = {NULL, "blk.1.attn_k.bias", "blk.0.attn_q_norm.weight",
                                          "blk.6.post_ffw_norm.weight"};
        tiny t = tiny_defaults(archs[a]);

        t.omit = own[a];
        expect(&t, WEIR_ERR_MISSING_TENSOR, own[a]);
    }
}

static void bad_keys(void **state)
{
    static const struct {
        const char *omit, *u32_key;
        uint32_t value;
        weir_status wanted;
        const char *text;
    } cases[] = {
        {"general.architecture", NULL, 0, WEIR_ERR_FORMAT, "general.architecture"},
        {"block_count", NULL, 0, WEIR_ERR_FORMAT, "llama.block_count"},
        {"embedding_length", NULL, 0, WEIR_ERR_FORMAT, "llama.embedding_length"},
        {"context_length", NULL, 0, WEIR_ERR_FORMAT, "llama.context_length"},
        {"attention.head_count", NULL, 0, WEIR_ERR_FORMAT, "llama.attention.head_count"},
        {"layer_norm_rms_epsilon", NULL, 0, WEIR_ERR_FORMAT, "layer_norm_rms_epsilon"},
        {NULL, "block_count", 0, WEIR_ERR_FORMAT, "block_count"},
        {NULL, "block_count", 4097, WEIR_ERR_FORMAT, "block_count"},
        {NULL, "block_count", 1, WEIR_ERR_FORMAT, "blk.1.attn_q.weight"},
        {NULL, "block_count", 3, WEIR_ERR_MISSING_TENSOR, "blk.2.attn_norm.weight"},
        {NULL, "embedding_length", 4000000000u, WEIR_ERR_FORMAT, "embedding_length"},
        {NULL, "embedding_length", 32, WEIR_ERR_MISSING_TENSOR, "blk.0.attn_norm.weight"},
        {NULL, "feed_forward_length", 0, WEIR_ERR_FORMAT, "feed_forward_length"},
        {NULL, "feed_forward_length", 95, WEIR_ERR_MISSING_TENSOR, "blk.0.ffn_gate.weight"},
        {NULL, "attention.head_count", 3, WEIR_ERR_UNSUPPORTED, "3 heads"},
        {NULL, "attention.head_count", 0, WEIR_ERR_FORMAT, "head_count"},
        {NULL, "attention.head_count_kv", 3, WEIR_ERR_UNSUPPORTED, "3 key-value heads"},
        {NULL, "attention.key_length", 15, WEIR_ERR_UNSUPPORTED, "15"},
        {NULL, "attention.key_length", 2048, WEIR_ERR_FORMAT, "key_length"},
        {NULL, "attention.value_length", 8, WEIR_ERR_UNSUPPORTED, "values 8"},
        {NULL, "expert_count", 8, WEIR_ERR_UNSUPPORTED, "8 experts"},
        {NULL, "rope.dimension_count", 18, WEIR_ERR_FORMAT, "dimension_count"},
        {NULL, "rope.dimension_count", 5, WEIR_ERR_FORMAT, "even"},
        {NULL, "rope.dimension_count", 8, WEIR_OK, ""},
        {NULL, "context_length", 0, WEIR_ERR_FORMAT, "context_length"},
        {NULL, "rope.scaling.type", 1, WEIR_ERR_FORMAT, "wanted string"},
        {NULL, "weir.own_head", 1, WEIR_ERR_MISSING_TENSOR, "output.weight"},
        {NULL, "weir.own_head", 0, WEIR_OK, ""},
        {NULL, "weir.own_head", 2, WEIR_ERR_FORMAT, "weir.own_head"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny t = tiny_defaults("llama");

        t.omit = cases[i].omit;
        t.u32_key = cases[i].u32_key;
        t.u32_value = cases[i].value;
        expect(&t, cases[i].wanted, cases[i].text);
    }
}

static void bad_numbers_and_words(void **state)
{
    static const struct {
        const char *f32_key;
        float value;
        const char *str_key, *word;
        weir_status wanted;
        const char *text;
    } cases[] = {
        {"rope.freq_base", NAN, NULL, NULL, WEIR_ERR_FORMAT, "freq_base"},
        {"rope.freq_base", 0.5f, NULL, NULL, WEIR_ERR_FORMAT, "freq_base"},
        {"rope.scaling.factor", -1, NULL, NULL, WEIR_ERR_FORMAT, "factor"},
        {"attention.scale", INFINITY, NULL, NULL, WEIR_ERR_FORMAT, "attention.scale"},
        {"final_logit_softcapping", -2, NULL, NULL, WEIR_ERR_FORMAT, "final_logit_softcapping"},
        {"weir.norm_offset", NAN, NULL, NULL, WEIR_ERR_FORMAT, "weir.norm_offset"},
        {NULL, 0, "rope.scaling.type", "longrope", WEIR_ERR_UNSUPPORTED, "longrope"},
        {NULL, 0, "weir.rope_style", "other", WEIR_ERR_FORMAT, "other"},
        {NULL, 0, "rope.scaling.type", "none", WEIR_OK, ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny t = tiny_defaults("llama");

        t.f32_key = cases[i].f32_key;
        t.f32_value = cases[i].value;
        t.str_key = cases[i].str_key;
        t.str_value = cases[i].word;
        expect(&t, cases[i].wanted, cases[i].text);
    }
}

static void other_architectures(void **state)
{
    tiny t = tiny_defaults("llama");
    tiny g = tiny_defaults("gemma3");
    static const uint8_t flags[2] = {1, 0};

    (void)state;
    t.arch = "mamba";
    expect(&t, WEIR_ERR_UNSUPPORTED, "mamba");
    g.window = 0;
    expect(&g, WEIR_ERR_FORMAT, "gemma3.attention.sliding_window");
    t = tiny_defaults("llama");
    t.window = 16;
    t.list_key = "attention.sliding_window_pattern";
    t.list = flags;
    expect(&t, WEIR_OK, "");
    t = tiny_defaults("llama");
    t.extra_tensor = "rope_freqs.weight";
    t.extra_n = 7;
    t.extra_value = 2;
    expect(&t, WEIR_ERR_MISSING_TENSOR, "rope_freqs.weight");
    t.extra_n = 8;
    expect(&t, WEIR_OK, "");
    t.extra_value = 0;
    expect(&t, WEIR_ERR_FORMAT, "rope_freqs.weight");
}

static void allocations(void **state)
{
    tiny t = tiny_defaults("gemma3");
    const char *path = tiny_write(&t);
    weir_error err;
    base_env *env;
    fmt_model *file;
    base_ledger_view before, view;
    uint64_t n_failed = 0;

    (void)state;
    assert_ok(base_env_create(&env, &err), err);
    assert_ok(fmt_model_open(env, path, &file, &err), err);
    base_ledger_read(env, &before);
    for (uint64_t after = 0;; after++) {
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        lm_model *lm = NULL;
        weir_status status;

        assert_ok(base_fault_arm(env, &rule, &err), err);
        status = lm_model_create(env, file, &lm, &err);
        base_fault_clear(env);
        lm_model_destroy(lm);
        base_ledger_read(env, &view);
        assert_int_equal(view.bytes, before.bytes);
        if (status == WEIR_OK) break;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        n_failed++;
    }
    assert_true(n_failed > 8);
    fmt_model_close(file);
    base_env_destroy(env);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hyperparameters),
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(bad_keys),
        cmocka_unit_test(bad_numbers_and_words),
        cmocka_unit_test(other_architectures),
        cmocka_unit_test(allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
