/* Helpers of the tests of language models on devices: small models of known answers, and settings. */
#ifndef WEIR_RT_DEVICE_TEST_H
#define WEIR_RT_DEVICE_TEST_H

#include "rt_test.h"

#include "weir/manager.h"

static inline void set(fixture *f, const char *name, const char *value)
{
    assert_ok(f, weir_context_set(f->context, name, value, &f->err));
}

static inline weir_load_options small_load(void)
{
    weir_load_options o;
    weir_load_options_init(&o);
    o.ctx_tokens = 96;
    o.n_threads = 1;
    o.prefill_chunk = 16;
    return o;
}

static const int32_t prompt[24] = {1, 5, 9,  200, 17, 33, 2,  480, 7, 7,  90, 14,
                                   3, 8, 61, 400, 12, 13, 77, 5,   6, 10, 20, 30};

/* Appends the prompt and a few tokens; the hash of all logits. */
static inline weir_status run(weir_session *s, uint64_t *hash, weir_error *err)
{
    const float *logits;
    uint32_t n_vocab = lm_model_hparams(s->model->lm)->n_vocab;
    *hash = WEIR_HASH_SEED;
    for (int i = 0; i < 4; i++) {
        size_t n = i == 0 ? 24 : 1;
        weir_status status = weir_session_append(s, prompt + i, n, &logits, err);
        if (status != WEIR_OK) return status;
        *hash = weir_logits_hash(*hash, logits, n_vocab);
    }
    return WEIR_OK;
}

static inline uint64_t on_cpu_of(fixture *f, const char *arch, uint32_t hidden)
{
    weir_session *s;
    uint64_t hash;
    set(f, "compute.device", "cpu");
    weir_model *m;
    assert_ok(f, weir_model_open(f->context, make_model(f, arch, hidden), &m, &f->err));
    weir_load_options o = small_load();
    assert_ok(f, weir_model_load(m, &o, &f->err));
    assert_ok(f, weir_session_create(m, &s, &f->err));
    assert_ok(f, run(s, &hash, &f->err));
    weir_session_destroy(s);
    weir_model_close(m);
    set(f, "compute.device", "sim");
    set(f, "compute.vram_mode", "none");
    set(f, "compute.simulate_vram_mb", "64");
    return hash;
}

static inline uint64_t on_cpu(fixture *f, const char *arch)
{
    return on_cpu_of(f, arch, 256);
}

static inline weir_memory_report report_of(fixture *f, const weir_model *m)
{
    weir_memory_report r = {.struct_size = sizeof r};
    assert_ok(f, weir_model_memory(m, &r, &f->err));
    return r;
}

typedef struct player {
    uint64_t wanted;
    weir_model *m;
    weir_session *s;
    weir_plan plan;
} player;

#define PLAYER_HIDDEN 512

static inline weir_model *player_model(fixture *f, const char *arch)
{
    weir_model *m;
    assert_ok(f, weir_model_open(f->context, make_model(f, arch, PLAYER_HIDDEN), &m, &f->err));
    return m;
}

static inline void open_player(fixture *f, player *p, const char *arch, uint64_t wanted)
{
    weir_load_options o = small_load();
    o.mem_bytes = 256 * MIB; /* his own word: copies in RAM follow it alone */
    *p = (player){.wanted = wanted, .m = player_model(f, arch), .plan = {.struct_size = sizeof p->plan}};
    assert_ok(f, weir_model_plan(p->m, &o, &p->plan, &f->err));
    assert_ok(f, weir_model_load(p->m, &o, &f->err));
    assert_ok(f, weir_session_create(p->m, &p->s, &f->err));
}

static inline void play(fixture *f, player *p)
{
    uint64_t hash;
    weir_session_reset(p->s);
    assert_ok(f, run(p->s, &hash, &f->err));
    assert_true(hash == p->wanted && hash != WEIR_HASH_SEED);
}

static inline void close_player(player *p)
{
    weir_session_destroy(p->s);
    weir_model_close(p->m);
}

#endif
