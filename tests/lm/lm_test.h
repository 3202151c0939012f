/* A model on a device under a budget, with its caches, for the tests of the language-model engine. */
#ifndef WEIR_LM_TEST_H
#define WEIR_LM_TEST_H

#include "engines/lm/lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_MAX_SEQUENCES 4

#define assert_ok(call, err)                                                                                 \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != WEIR_OK)                                                                           \
            fail_msg("%s: %s: %s", #call, weir_status_name(got_status), (err).message);                      \
    } while (0)

typedef struct rig_options {
    const char *path, *cpu;
    uint32_t n_threads, context_tokens, max_rows, max_outputs, n_sequences;
    uint32_t kv_dtype;
    bool alias, smallest; /* smallest: everything that can streams */
} rig_options;

typedef struct rig {
    base_env *env;
    weir_error err;
    fmt_model *file;
    lm_model *lm;
    dev_device *dev;
    graph_program *program;
    mem_plan plan;
    uint32_t n_sequences, max_rows, n_vocab;
    lm_kv *kv[RIG_MAX_SEQUENCES];
    dev_kv *table; /* [layer][sequence] */
    const dev_kv **by_layer;
} rig;

static inline rig_options rig_defaults(const char *path)
{
    return (rig_options){.path = path,
                         .cpu = "auto",
                         .n_threads = 2,
                         .context_tokens = 256,
                         .max_rows = 16,
                         .max_outputs = 16,
                         .n_sequences = 1,
                         .kv_dtype = BASE_F16,
                         .alias = true};
}

static inline void rig_place(rig *r, bool smallest)
{
    mem_component *c = lm_model_component(r->lm);
    mem_place_options place = {.aio = {.backend = BASE_AIO_AUTO, .depth = 8}};
    mem_plan whole;

    assert_ok(mem_plan_make(c, UINT64_MAX / 2, &whole, &r->err), r->err);
    assert_ok(mem_plan_make(c, smallest ? whole.smallest_bytes : whole.whole_bytes, &r->plan, &r->err),
              r->err);
    assert_ok(mem_place(c, &r->plan, &place, &r->err), r->err);
}

static inline void rig_open(rig *r, const rig_options *o)
{
    graph_options g = {.max_rows = o->max_rows, .max_outputs = o->max_outputs, .alias = o->alias};
    const lm_hparams *hp;

    lm_kv_shape shape = {.dtype = o->kv_dtype, .context_tokens = o->context_tokens, .max_rows = o->max_rows};

    memset(r, 0, sizeof(*r));
    assert_ok(base_env_create(&r->env, &r->err), r->err);
    assert_ok(fmt_model_open(r->env, o->path, &r->file, &r->err), r->err);
    assert_ok(lm_model_create(r->env, r->file, &r->lm, &r->err), r->err);
    assert_ok(dev_cpu_create(r->env, o->cpu, o->n_threads, &r->dev, &r->err), r->err);
    rig_place(r, o->smallest);
    hp = lm_model_hparams(r->lm);
    r->n_vocab = hp->n_vocab;
    r->max_rows = o->max_rows;
    r->n_sequences = o->n_sequences;
    assert_ok(lm_program_create(r->env, r->lm, r->dev, &g, &r->program, &r->err), r->err);
    assert_ok(graph_reserve(r->program, o->context_tokens, hp->head_dim, &r->err), r->err);
    r->table = calloc((size_t)hp->n_layers * o->n_sequences, sizeof(*r->table));
    r->by_layer = calloc(hp->n_layers, sizeof(*r->by_layer));
    for (uint32_t s = 0; s < o->n_sequences; s++)
        assert_ok(lm_kv_create(r->env, r->lm, r->dev, NULL, &shape, &r->kv[s], &r->err), r->err);
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        r->by_layer[l] = &r->table[(size_t)l * o->n_sequences];
        for (uint32_t s = 0; s < o->n_sequences; s++)
            r->table[(size_t)l * o->n_sequences + s] = *lm_kv_layer(r->kv[s], l);
    }
}

static inline void rig_close(rig *r)
{
    base_ledger_view view;

    for (uint32_t s = 0; s < r->n_sequences; s++) lm_kv_destroy(r->kv[s]);
    free(r->by_layer);
    free(r->table);
    graph_program_destroy(r->program);
    dev_destroy(r->dev);
    lm_model_destroy(r->lm);
    fmt_model_close(r->file);
    base_ledger_read(r->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(r->env);
}

/* One pass: n tokens of sequence s from `position` on; logits of the last when wanted. */
static inline const float *rig_pass(rig *r, uint32_t s, const int32_t *tokens, uint32_t n, int32_t position,
                                    bool output)
{
    int32_t positions[1024];
    uint32_t sequences[1024], last = n - 1;
    graph_batch b = {.n_rows = n,
                     .token = tokens,
                     .position = positions,
                     .sequence = sequences,
                     .kv = r->by_layer,
                     .n_outputs = output ? 1 : 0,
                     .output_rows = &last};

    for (uint32_t i = 0; i < n; i++) {
        positions[i] = position + (int32_t)i;
        sequences[i] = s;
    }
    assert_ok(graph_run(r->program, &b, &r->err), r->err);
    return output ? graph_result(r->program, 0) : NULL;
}

/* A prompt in pieces of `chunk`; the logits behind it. */
static inline const float *rig_prompt(rig *r, uint32_t s, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    const float *logits = NULL;

    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;

        logits = rig_pass(r, s, tokens + i, m, (int32_t)i, i + m == n);
    }
    return logits;
}

static inline int32_t arg_max(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

/* FNV-1a over the bits of n floats, from h on. */
static inline uint64_t hash_floats(uint64_t h, const float *x, uint32_t n)
{
    const unsigned char *p = (const unsigned char *)x;

    for (size_t i = 0; i < (size_t)n * sizeof(float); i++) h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}
#define HASH_START 0xCBF29CE484222325u

/* Where real models lie; NULL (and the caller skips) when this one is absent. */
static inline const char *model_path(const char *name, char *buf, size_t size)
{
    const char *folder = getenv("WEIR_MODELS");
    const char *home = getenv("HOME");
    FILE *f;

    if (folder != NULL)
        snprintf(buf, size, "%s/%s", folder, name);
    else
        snprintf(buf, size, "%s/.cache/weir/models/%s", home != NULL ? home : "", name);
    f = fopen(buf, "rb");
    if (f == NULL) return NULL;
    fclose(f);
    return buf;
}

#endif
