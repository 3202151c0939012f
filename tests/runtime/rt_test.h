/* Helpers of the tests of runtime: a context, tiny models of every architecture in a temporary folder, the
 * real models where they are. */
#ifndef WEIR_RT_TEST_H
#define WEIR_RT_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/rt_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RT_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RT_SANITIZED 1
#endif
#endif
#ifndef RT_SANITIZED
#define RT_SANITIZED 0
#endif

#define MIB   (UINT64_C(1) << 20)
#define SMOL  "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA "gemma3-270m-q4_k_m.gguf"

typedef struct fixture {
    weir_context *context;
    weir_error err;
    char folder[128];
} fixture;

static inline int fixture_setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    const char *base = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%s/weir-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(f->folder) == NULL || weir_context_create(NULL, &f->context, &f->err) != WEIR_OK) return -1;
    /* A sanitizer's own memory grows from call to call and is no part of any plan. */
    if (RT_SANITIZED && weir_context_set(f->context, "memory.process", "8MiB", &f->err) != WEIR_OK) return -1;
    *state = f;
    return 0;
}

static inline int fixture_teardown(void **state)
{
    fixture *f = *state;
    const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
    for (size_t i = 0; i < 4; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s.gguf", f->folder, archs[i]);
        unlink(path);
    }
    int rc = rmdir(f->folder);
    weir_context_destroy(f->context);
    free(f);
    return rc;
}

#define assert_ok(f, call)                                                                                   \
    do {                                                                                                     \
        weir_status status_ = (call);                                                                        \
        if (status_ != WEIR_OK) fail_msg("%s: %s: %s", #call, weir_status_name(status_), (f)->err.message);  \
    } while (0)

#define assert_mentions(text, part)                                                                          \
    do {                                                                                                     \
        if (strstr((text), (part)) == NULL) fail_msg("\"%s\" does not mention \"%s\"", (text), (part));      \
    } while (0)

/* Writes a small model and gives its path: hidden 64 makes 200 KB, all of it in the fixed part; 256 makes 2
 * MB, most of which can stream. */
static inline const char *make_model(fixture *f, const char *arch, uint32_t hidden)
{
    static char path[256];
    weir_synth_options o;
    weir_synth_options_init(&o);
    o.arch = arch;
    o.type = "Q8_0";
    o.hidden = hidden;
    o.n_layers = 3;
    o.n_heads = 4;
    o.n_kv_heads = 2;
    o.head_dim = hidden / 4 < 32 ? 32 : hidden / 4;
    o.ffn = 2 * hidden;
    o.n_vocab = 512;
    o.ctx_tokens = 512;
    if (strcmp(arch, "gemma3") == 0) o.window = 32;
    o.seed = 7;
    snprintf(path, sizeof path, "%s/%s.gguf", f->folder, arch);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    return path;
}

static inline weir_model *open_tiny(fixture *f, const char *arch)
{
    weir_model *m;
    assert_ok(f, weir_model_open(f->context, make_model(f, arch, 64), &m, &f->err));
    return m;
}

static inline weir_model *open_small(fixture *f, const char *arch)
{
    weir_model *m;
    assert_ok(f, weir_model_open(f->context, make_model(f, arch, 256), &m, &f->err));
    return m;
}

/* The path of a real model; skips the test where it is absent. */
static inline const char *real_path(const char *name)
{
    static char path[1024];
    const char *dir = getenv("WEIR_MODELS"), *home = getenv("HOME");
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, name);
    else
        snprintf(path, sizeof path, "%s/.cache/weir/models/%s", home != NULL ? home : "", name);
    if (access(path, R_OK) != 0) {
        print_message("%s is absent (WEIR_MODELS)\n", path);
        skip();
    }
    return path;
}

/* Skips the test where there is no OpenCL device. */
static inline void need_opencl(fixture *f)
{
    weir_device_info info;
    uint32_t n = 0;
    char note[128];
    assert_ok(f, weir_devices_list(f->context, &info, 1, &n, note, sizeof note, &f->err));
    if (n != 0) return;
    print_message("no OpenCL device: %s\n", note);
    skip();
}

static inline weir_model *open_real(fixture *f, const char *name)
{
    weir_model *m;
    assert_ok(f, weir_model_open(f->context, real_path(name), &m, &f->err));
    return m;
}

static inline weir_load_options load_options(uint32_t ctx_tokens, uint32_t n_threads)
{
    weir_load_options o;
    weir_load_options_init(&o);
    o.ctx_tokens = ctx_tokens;
    o.n_threads = n_threads;
    return o;
}

static inline weir_session *new_session(fixture *f, weir_model *m)
{
    weir_session *s;
    assert_ok(f, weir_session_create(m, &s, &f->err));
    return s;
}

/* n token ids that depend on seed only. */
static inline void some_tokens(int32_t *tokens, size_t n, uint32_t n_vocab, uint64_t seed)
{
    base_rng r;
    base_rng_seed(&r, seed, 1);
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)(base_rng_u32(&r) % n_vocab);
}

/* Hash of the logits behind tokens, in a session that is made anew. */
static inline uint64_t logits_of(fixture *f, weir_session *s, const int32_t *tokens, size_t n)
{
    const float *logits;
    assert_ok(f, weir_session_append(s, tokens, n, &logits, &f->err));
    return weir_logits_hash(WEIR_HASH_SEED, logits, lm_model_hparams(s->model->lm)->n_vocab);
}

/* Bytes in the ledger. */
static inline uint64_t held(const fixture *f)
{
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    return v.bytes;
}

static inline base_env *env_of(fixture *f)
{
    return f->context->env;
}

typedef struct life {
    weir_status status;
    uint64_t hash; /* of the logits */
    char reader[32];
} life;
/* Answers something; the hash is set on success. */
typedef weir_status (*generate_fn)(fixture *f, weir_model *m, weir_session *s, uint64_t *hash);

/* Opens, loads, answers, closes. */
static inline life whole_life(fixture *f, const char *path, const weir_load_options *o, generate_fn generate)
{
    life a = {0};
    weir_model *m;
    weir_session *s = NULL;
    a.status = weir_model_open(f->context, path, &m, &f->err);
    if (a.status != WEIR_OK) return a;
    a.status = weir_model_load(m, o, &f->err);
    if (a.status == WEIR_OK) a.status = weir_session_create(m, &s, &f->err);
    if (a.status == WEIR_OK) a.status = generate(f, m, s, &a.hash);
    if (a.status == WEIR_OK) assert_true(a.hash != 0);
    weir_memory_report r = {.struct_size = sizeof r};
    if (a.status == WEIR_OK && weir_model_memory(m, &r, &f->err) == WEIR_OK)
        snprintf(a.reader, sizeof a.reader, "%s", r.reader);
    weir_session_destroy(s);
    weir_model_close(m);
    return a;
}

/* A budget in which half of the weights stream, so that reads are on the path. */
static inline weir_load_options streaming_options(fixture *f, const char *path)
{
    weir_model *m;
    weir_plan p;
    assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
    weir_load_options o = load_options(128, 2);
    o.prefill_chunk = 16;
    assert_ok(f, weir_model_plan(m, &o, &p, &f->err));
    o.mem_bytes = (p.smallest_bytes + p.whole_bytes) / 2;
    weir_model_close(m);
    return o;
}

#endif
