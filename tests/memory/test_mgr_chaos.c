/* Chaos under the memory manager: many components, phases, modes, refusals and replacements drawn from fixed
 * seeds, from one thread and from several, all with the bytes of plain memory. */
#include "mgr_test.h"

#include <pthread.h>

#define N_MODELS 5

typedef struct party {
    visit on[3];
    uint32_t n, fails;
} party;

static weir_status visit_party(void *arg, mem_phase *p, weir_error *err)
{
    party *x = arg;
    for (uint32_t i = 0; i < x->n; i++) {
        weir_status status = visit_units(&x->on[i], p, err);
        if (status != WEIR_OK) return status;
    }
    if (x->fails == 0) return WEIR_OK;
    x->fails--;
    return base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test");
}

/* One request with one to three components, any units in any order. DEVICE_MEMORY only where the device
 * refuses in truth. */
static weir_status run_party(rig *r, mem_manager *m, model *models, base_rng *rng, party *x)
{
    mem_handle *handles[3];
    mem_request *q;
    uint32_t first = base_rng_u32(rng) % N_MODELS;
    *x = (party){.n = 1 + base_rng_u32(rng) % 3, .fails = base_rng_u32(rng) % 8 == 0};
    for (uint32_t i = 0; i < x->n; i++) {
        model *one = &models[(first + i) % N_MODELS];
        x->on[i] = (visit){.x = one, .m = m, .n = 1 + base_rng_u32(rng) % 14};
        for (uint32_t k = 0; k < x->on[i].n; k++) x->on[i].order[k] = base_rng_u32(rng) % (N_UNITS + 1);
        handles[i] = one->h;
    }
    const mem_request_desc d = {.name = "chaos", .managers = &m, .n_managers = 1};
    weir_status status = mem_request_begin(&d, &q, &r->err);
    if (status != WEIR_OK) return status;
    const mem_run_desc run = {.phase = {.name = "party",
                                        .handles = handles,
                                        .n_handles = x->n,
                                        .memory_bytes = base_rng_u32(rng) % 400000},
                              .fn = visit_party,
                              .arg = x};
    status = mem_run_phase(q, &run, &r->err);
    mem_request_end(q);
    return status;
}

static void open_models(rig *r, model *models)
{
    static const char *const names[N_MODELS] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < N_MODELS; i++)
        open_model(r, r->m, &models[i], names[i], i % 2 == 0 ? MEM_ONESHOT : MEM_SEQUENCE, NULL);
}

/* Eviction chaos from fixed seeds: any components in any phase on devices of any size and mode, with copies
 * that end late, allocations that are refused, unloading, replacing, and memory that stays. */
static void eviction_chaos(void **state)
{
    (void)state;
    uint32_t n_yields = 0, n_failed = 0, n_runs = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        rig r;
        model models[N_MODELS];
        base_rng rng;
        void *kept = NULL;
        static log_text log;
        base_rng_seed(&rng, seed, 4);
        mem_policy policy = test_policy();
        dev_sim_options o = device_of(700000 + base_rng_u32(&rng) % (3 * WHOLE));
        policy.vram_mode = (mem_vram_mode)(base_rng_u32(&rng) % 5);
        policy.async_offload = base_rng_u32(&rng) % 4;
        policy.host_copies = base_rng_u32(&rng) % 2 ? MEM_ON : MEM_OFF;
        policy.max_pinned_bytes = base_rng_u32(&rng) % 2 ? 300000 : UINT64_MAX;
        policy.pinned_models = "test:b";
        o.strict = seed % 2 == 0;
        o.chaos_seed = seed % 4 < 2 ? seed : 0;
        o.fail_every = seed % 5 == 0 ? 7 : 0;
        o.keeps_freed = seed % 3 == 0;
        open_rig(&r, o, policy);
        open_models(&r, models);
        uint64_t host = host_bytes(&r);
        log.used = 0;
        log.text[0] = '\0';
        r.env->log_fn = take_log;
        r.env->log_arg = &log;
        for (int step = 0; step < 25; step++) {
            party x;
            weir_status status = run_party(&r, r.m, models, &rng, &x);
            for (uint32_t i = 0; status == WEIR_OK && i < x.n; i++) check_visit(&x.on[i]);
            /* The largest party needs its three smallest working sets; in high, all of it. */
            bool may_fail = policy.vram_mode == MEM_VRAM_HIGH || o.fail_every != 0 || kept != NULL ||
                            o.memory_bytes < 3 * (4096 + UNIT_BYTES * (1 + policy.async_offload)) + 200000;
            if (status != WEIR_OK && (status != WEIR_ERR_DEVICE_MEMORY || !may_fail))
                fail_msg("seed %llu, step %d: %s: %s", (unsigned long long)seed, step,
                         weir_status_name(status), r.err.message);
            n_failed += status != WEIR_OK;
            n_runs++;
            assert_true(device_bytes(&r) <= o.memory_bytes);
            uint32_t which = base_rng_u32(&rng) % N_MODELS, unit = base_rng_u32(&rng) % N_UNITS;
            switch (base_rng_u32(&rng) % 8) {
            case 0: ok(&r, mem_handle_unload(models[which].h, base_rng_u32(&rng) % 2, &r.err)); break;
            case 1: mem_manager_unload_idle(r.m, 0, base_rng_u32(&rng) % 2); break;
            case 2: {
                const mem_handle_weight w = {
                    .name = "w", .bytes = UNIT_BYTES, .host = models[which].data + unit * UNIT_BYTES / 4};
                models[which].data[unit * UNIT_BYTES / 4] += 77; /* the same place, other bytes */
                ok(&r, mem_handle_replace(models[which].h, unit, &w, &r.err));
                break;
            }
            case 3:
                mem_manager_free(r.m, kept);
                kept = NULL;
                if (mem_manager_alloc(r.m, 100000, "kept", &kept, &r.err) != WEIR_OK) kept = NULL;
                break;
            case 4:
                mem_manager_free(r.m, kept);
                kept = NULL;
                break;
            default: break;
            }
        }
        for (const char *at = log.text; (at = strstr(at, "gave up")) != NULL; at++) n_yields++;
        r.env->log_fn = NULL;
        mem_manager_free(r.m, kept);
        for (int i = 0; i < N_MODELS; i++) ok(&r, mem_handle_unload(models[i].h, true, &r.err));
        assert_int_equal(device_bytes(&r), 0);
        assert_true(host_bytes(&r) <= host + (2 << 20) + 65536); /* staging and tables */
        for (int i = 0; i < N_MODELS; i++) close_model(&models[i]);
        close_rig(&r);
    }
    assert_true(n_yields > 100 && n_failed < n_runs / 4);
}

typedef struct player {
    rig *r;
    model *models;
    uint64_t seed;
    uint32_t n_good;
    bool wrong;
} player;

static void *play(void *arg)
{
    player *p = arg;
    base_rng rng;
    base_rng_seed(&rng, p->seed, 8);
    for (int i = 0; i < 12; i++) {
        rig mine = {.env = p->r->env};
        party x;
        weir_status status = run_party(&mine, p->r->m, p->models, &rng, &x);
        for (uint32_t k = 0; status == WEIR_OK && k < x.n; k++) p->wrong |= !right_sums(&x.on[k]);
        p->wrong |= status != WEIR_OK && status != WEIR_ERR_DEVICE_MEMORY;
        p->n_good += status == WEIR_OK;
    }
    return NULL;
}

/* R3.7: the same from three threads at once, up to three jobs on the device. */
static void chaos_of_jobs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        rig r;
        model models[N_MODELS];
        player p[3];
        pthread_t t[3];
        mem_policy policy = test_policy();
        dev_sim_options o = device_of(2 * WHOLE + 400000);
        policy.gpu_jobs = 1 + (uint32_t)seed % 3;
        policy.vram_mode = seed % 2 ? MEM_VRAM_AUTO : MEM_VRAM_NONE;
        o.chaos_seed = seed;
        open_rig(&r, o, policy);
        open_models(&r, models);
        for (int i = 0; i < 3; i++) {
            p[i] = (player){.r = &r, .models = models, .seed = seed * 3 + (uint64_t)i};
            assert_int_equal(pthread_create(&t[i], NULL, play, &p[i]), 0);
        }
        for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < 3; i++) assert_true(!p[i].wrong && p[i].n_good >= 6);
        for (int i = 0; i < N_MODELS; i++) close_model(&models[i]);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eviction_chaos),
        cmocka_unit_test(chaos_of_jobs),
    };
    return cmocka_run_group_tests_name("memory manager: chaos", tests, NULL, NULL);
}
