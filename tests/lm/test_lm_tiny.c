/* Tiny models of every architecture: frequencies against transformers' own, sliding windows over a ring that
 * wraps, half-precision norms, and one set of bits for every way to run. */
#include "lm_tiny.h"

#include "engines/lm/lm_internal.h"

#include <math.h>

#define N_TOKENS 70

static void tokens_of(int32_t *out, uint32_t vocab)
{
    for (uint32_t i = 0; i < N_TOKENS; i++) out[i] = (int32_t)((i * 29 + 5 + i * i) % vocab);
}

/* Logits behind each of the last ten of N_TOKENS, read in pieces of `chunk`. */
static uint64_t run_tiny(const rig_options *o, uint32_t chunk)
{
    int32_t tokens[N_TOKENS];
    uint64_t h = HASH_START;
    rig r;

    rig_open(&r, o);
    tokens_of(tokens, r.n_vocab);
    rig_prompt(&r, 0, tokens, N_TOKENS - 10, chunk);
    for (int32_t i = N_TOKENS - 10; i < N_TOKENS; i++) {
        const float *logits = rig_pass(&r, 0, &tokens[i], 1, i, true);

        for (uint32_t v = 0; v < r.n_vocab; v++) assert_true(isfinite(logits[v]));
        assert_true(logits[0] != logits[1]);
        h = hash_floats(h, logits, r.n_vocab);
    }
    rig_close(&r);
    return h;
}

static void one_set_of_bits(void **state)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
    uint64_t all[4];

    (void)state;
    for (int a = 0; a < 4; a++) {
        tiny t = tiny_defaults(archs[a]);
        rig_options o = rig_defaults(tiny_write(&t));

        o.max_rows = 32;
        o.context_tokens = 128;
        all[a] = run_tiny(&o, 1);
        for (int b = 0; b < a; b++) assert_true(all[a] != all[b]);
        assert_true(run_tiny(&o, 7) == all[a]);
        assert_true(run_tiny(&o, 32) == all[a]);
        o.alias = false;
        o.n_threads = 1;
        assert_true(run_tiny(&o, 13) == all[a]);
        o.cpu = "ref";
        assert_true(run_tiny(&o, 32) == all[a]);
        o.max_rows = 60; /* another ring for the sliding layers */
        o.context_tokens = 200;
        assert_true(run_tiny(&o, 60) == all[a]);
        unlink(o.path);
    }
}

/* The window matters, and only where it should: prompts that differ before every window. */
static void window_forgets(void **state)
{
    tiny t = tiny_defaults("llama");
    rig_options o;
    uint64_t windowed, whole;

    (void)state;
    t.window = 16;
    o = rig_defaults(tiny_write(&t));
    windowed = run_tiny(&o, 5);
    t.window = 0;
    tiny_write(&t);
    whole = run_tiny(&o, 5);
    assert_true(windowed != whole);
    t.window = 200;
    tiny_write(&t);
    assert_true(run_tiny(&o, 5) == whole);
    unlink(o.path);
}

static void cache_sizes(void **state)
{
    tiny t = tiny_defaults("gemma3");
    rig_options o = rig_defaults(tiny_write(&t));
    lm_kv_shape shape = {.dtype = BASE_F16, .context_tokens = 250, .max_rows = 9};
    uint64_t bytes = 0;
    rig r;

    (void)state;
    rig_open(&r, &o);
    for (uint32_t l = 0; l < 7; l++) {
        uint32_t capacity = lm_kv_capacity(r.lm, l, 250, 9);

        assert_int_equal(capacity, l == 5 ? 256 : 32); /* 250; 16 + 9; rounded up to 16 */
        assert_int_equal(lm_kv_capacity(r.lm, l, 20, 9), 32);
        bytes += 2 * (uint64_t)capacity * 2 * 32 * 2;
    }
    assert_int_equal(lm_kv_bytes(r.lm, r.dev, &shape, 0), base_align_up(bytes, 4096));
    shape.dtype = BASE_F32;
    assert_int_equal(lm_kv_bytes(r.lm, r.dev, &shape, 0), base_align_up(2 * bytes, 4096));
    rig_close(&r);
    unlink(o.path);
}

/* Norms and biases in half precision are read as the floats they are. */
static void half_precision_norms(void **state)
{
    static const uint32_t dtypes[] = {BASE_F16, BASE_BF16};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tiny t = tiny_defaults("qwen2");
        rig_options o;
        uint64_t h;

        t.norm_dtype = dtypes[i];
        t.dtype = BASE_F16;
        o = rig_defaults(tiny_write(&t));
        h = run_tiny(&o, 7);
        assert_true(run_tiny(&o, 16) == h);
        t.norm_dtype = BASE_F32;
        tiny_write(&t);
        assert_true(run_tiny(&o, 7) != h); /* the rounding shows */
        unlink(o.path);
    }
}

static void offset_and_caps(void **state)
{
    static const char *const keys[] = {"weir.norm_offset", "final_logit_softcapping",
                                       "attn_logit_softcapping", "attention.scale", "rope.freq_base"};
    tiny t = tiny_defaults("llama");
    rig_options o = rig_defaults(tiny_write(&t));
    uint64_t plain = run_tiny(&o, 9);

    (void)state;
    for (int i = 0; i < 5; i++) {
        t.f32_key = keys[i];
        t.f32_value = i == 4 ? 500.0f : 0.7f;
        tiny_write(&t);
        assert_true(run_tiny(&o, 9) != plain);
    }
    t.f32_key = NULL;
    t.str_key = "weir.rope_style";
    t.str_value = "neox";
    tiny_write(&t);
    assert_true(run_tiny(&o, 9) != plain);
    t.str_value = "norm";
    tiny_write(&t);
    assert_true(run_tiny(&o, 9) == plain);
    unlink(o.path);
}

/* ---- frequencies: transformers 5.24, modeling_rope_utils (single precision inside); head of 64 ---- */

typedef struct rope_case {
    const char *type;
    double base, factor, original, low, high, attn, mscale;
    double inv_freq[8]; /* of the pairs 0, 4, 9, 14, 16, 18, 24, 31 */
} rope_case;

static const uint32_t probes[8] = {0, 4, 9, 14, 16, 18, 24, 31};

static const rope_case rope_cases[] = {
    {"llama3",
     500000,
     8,
     8192,
     1,
     4,
     0,
     1,
     {1.0, 0.1939228, 0.02495541, 0.003211446, 0.000524846, 7.784655e-05, 6.64787e-06, 3.767323e-07}},
    {"yarn",
     1000000,
     4,
     32768,
     32,
     1,
     0,
     1.138629436111989,
     {1.0, 0.1778279, 0.02053525, 0.00177853, 0.0005833334, 0.0001757069, 7.905694e-06, 3.849816e-07}},
    {"yarn",
     10000,
     16,
     512,
     16,
     2,
     1.5,
     1.5,
     {1.0, 0.3162278, 0.03983813, 0.001111425, 0.000625, 0.0003514633, 6.25e-05, 8.334509e-06}},
    {"linear",
     10000,
     8,
     0,
     0,
     0,
     0,
     1,
     {0.125, 0.03952847, 0.009373677, 0.002222849, 0.00125, 0.0007029267, 0.000125, 1.666902e-05}},
};

/* A model that holds nothing but what lm_rope_read asks: keys in a file of no tensors but one. */
static void write_rope_keys(const char *path, const rope_case *c)
{
    uint64_t dims[1] = {4};
    float zeros[4] = {0};
    bool llama3 = strcmp(c->type, "llama3") == 0, yarn = strcmp(c->type, "yarn") == 0;
    base_env *env;
    fmt_writer *w;
    weir_error err;

    assert_ok(base_env_create(&env, &err), err);
    assert_ok(fmt_writer_create(env, FMT_WRITE_GGUF, path, &w, &err), err);
    assert_ok(fmt_writer_str(w, "general.architecture", "llama", &err), err);
    assert_ok(fmt_writer_f32(w, "llama.rope.freq_base", (float)c->base, &err), err);
    if (llama3) {
        assert_ok(fmt_writer_f32(w, "weir.rope_llama3.factor", (float)c->factor, &err), err);
        assert_ok(fmt_writer_f32(w, "weir.rope_llama3.low_freq_factor", (float)c->low, &err), err);
        assert_ok(fmt_writer_f32(w, "weir.rope_llama3.high_freq_factor", (float)c->high, &err), err);
        assert_ok(fmt_writer_u32(w, "weir.rope_llama3.original_context_length", (uint32_t)c->original, &err),
                  err);
    } else {
        assert_ok(fmt_writer_str(w, "llama.rope.scaling.type", c->type, &err), err);
        assert_ok(fmt_writer_f32(w, "llama.rope.scaling.factor", (float)c->factor, &err), err);
    }
    if (yarn) {
        assert_ok(
            fmt_writer_u32(w, "llama.rope.scaling.original_context_length", (uint32_t)c->original, &err),
            err);
        assert_ok(fmt_writer_f32(w, "llama.rope.scaling.yarn_beta_fast", (float)c->low, &err), err);
        assert_ok(fmt_writer_f32(w, "llama.rope.scaling.yarn_beta_slow", (float)c->high, &err), err);
    }
    /* Hugging Face's attention_factor replaces 1 + 0.1 ln(factor), which GGUF's attn_factor multiplies. */
    if (c->attn != 0)
        assert_ok(fmt_writer_f32(w, "llama.rope.scaling.attn_factor",
                                 (float)(c->attn / (1 + 0.1 * log(c->factor))), &err),
                  err);
    assert_ok(fmt_writer_tensor(w, "t", BASE_F32, 1, dims, &err), err);
    assert_ok(fmt_writer_data(w, zeros, sizeof(zeros), &err), err);
    assert_ok(fmt_writer_finish(w, &err), err);
    fmt_writer_destroy(w);
    base_env_destroy(env);
}

static void frequencies(void **state)
{
    static const lm_arch llama = {.name = "llama"};
    char path[256];
    const char *folder = getenv("TMPDIR");

    (void)state;
    snprintf(path, sizeof(path), "%s/weir_rope_%ld.gguf", folder != NULL ? folder : "/tmp", (long)getpid());
    for (size_t i = 0; i < sizeof(rope_cases) / sizeof(rope_cases[0]); i++) {
        const rope_case *c = &rope_cases[i];
        lm_model lm = {.arch = &llama, .hp = {.head_dim = 64, .context_tokens = 131072}};
        fmt_model *file;
        weir_error err;

        write_rope_keys(path, c);
        assert_ok(base_env_create(&lm.env, &err), err);
        assert_ok(fmt_model_open(lm.env, path, &file, &err), err);
        lm.file = file;
        assert_ok(lm_rope_read(&lm, &err), err);
        assert_int_equal(lm.rope[0].n_rot, 64);
        assert_true(fabs(lm.rope[0].mscale - c->mscale) < 1e-6);
        for (int k = 0; k < 8; k++) {
            double got = lm.rope[0].inv_freq[probes[k]];

            if (!(fabs(got - c->inv_freq[k]) <= 2e-6 * c->inv_freq[k]))
                fail_msg("%s, pair %u: %.9g instead of %.9g", c->type, probes[k], got, c->inv_freq[k]);
        }
        base_free(lm.env, lm.rope[0].inv_freq);
        fmt_model_close(file);
        base_env_destroy(lm.env);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_set_of_bits), cmocka_unit_test(window_forgets),
        cmocka_unit_test(cache_sizes),     cmocka_unit_test(half_precision_norms),
        cmocka_unit_test(offset_and_caps), cmocka_unit_test(frequencies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
