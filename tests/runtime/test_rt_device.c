/* A language model on the simulated device (R12), all of it streaming: the CPU's answer; whatever fails once,
 * at any point of loading and running, gives the same answer or the documented error, and the model works
 * afterwards with nothing lost (X5); cancellation; what devices refuse. */
#include "rt_test.h"

static void set(fixture *f, const char *name, const char *value)
{
    assert_ok(f, weir_context_set(f->context, name, value, &f->err));
}

static weir_load_options small_load(void)
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
static weir_status run(weir_session *s, uint64_t *hash, weir_error *err)
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

static uint64_t on_cpu(fixture *f, const char *arch)
{
    weir_session *s;
    uint64_t hash;
    set(f, "compute.device", "cpu");
    weir_model *m = open_small(f, arch);
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

static void same_answer(void **state)
{
    fixture *f = *state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
    static const char *const modes[] = {"high", "auto", "low", "none"};
    for (size_t a = 0; a < 4; a++) {
        uint64_t wanted = on_cpu(f, archs[a]), hash;
        for (size_t i = 0; i < 4; i++) {
            weir_session *s;
            set(f, "compute.vram_mode", modes[i]);
            set(f, "compute.vram_reserve_mb", "0");
            weir_model *m = open_small(f, archs[a]);
            weir_load_options o = small_load();
            assert_ok(f, weir_model_load(m, &o, &f->err));
            assert_ok(f, weir_session_create(m, &s, &f->err));
            assert_ok(f, run(s, &hash, &f->err));
            assert_true(hash == wanted && hash != WEIR_HASH_SEED);
            weir_memory_report r = {.struct_size = sizeof r};
            assert_ok(f, weir_model_memory(m, &r, &f->err));
            assert_string_equal(r.vram_mode, modes[i]);
            assert_int_equal(r.device_total_bytes, 64000000);
            assert_true(r.device_taken_bytes >= r.device_fixed_bytes + r.device_resident_bytes +
                                                    r.device_slot_bytes + r.device_kept_bytes);
            assert_true((r.device_copies > 0) == (i >= 2));
            assert_int_equal(r.device_resident_units, i >= 2 ? 0 : r.device_units);
            /* What a device refuses is told, and nothing changes. */
            assert_int_equal(weir_model_set_budget(m, 64 * MIB, &f->err), WEIR_ERR_UNSUPPORTED);
            assert_mentions(f->err.message, "device");
            weir_session_destroy(s);
            weir_model_close(m);
        }
    }
}

/* Each passage of each site fails once, in loading as well as in running. */
static void faults(void **state)
{
    fixture *f = *state;
    static const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_PINNED_ALLOC, BASE_FAULT_COPY,
                                            BASE_FAULT_READ, BASE_FAULT_HOST_ALLOC};
    uint64_t wanted = on_cpu(f, "llama"), hash, before = held(f);
    const char *path = make_model(f, "llama", 256);
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        uint32_t failed = 0, right = 0;
        uint64_t step = sites[i] == BASE_FAULT_DEVICE_ALLOC || sites[i] == BASE_FAULT_PINNED_ALLOC ? 1 : 13;
        for (uint64_t after = 0;; after += step) {
            weir_session *s = NULL;
            weir_model *m;
            base_fault_rule rule = {.site = sites[i], .after = after, .length = -1};
            assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
            assert_ok(f, base_fault_arm(f->context->env, &rule, &f->err));
            weir_load_options o = small_load();
            weir_status status = weir_model_load(m, &o, &f->err);
            if (status == WEIR_OK) status = weir_session_create(m, &s, &f->err);
            if (status == WEIR_OK) status = run(s, &hash, &f->err);
            bool met = base_fault_count(f->context->env, sites[i]) > after;
            base_fault_clear(f->context->env);
            if (status == WEIR_OK)
                assert_true(hash == wanted);
            else if (status == WEIR_ERR_DEVICE || status == WEIR_ERR_DEVICE_MEMORY ||
                     status == WEIR_ERR_OUT_OF_MEMORY || status == WEIR_ERR_IO)
                failed++;
            else
                fail_msg("%s:%llu gives %s: %s", base_fault_text(sites[i]), (unsigned long long)after,
                         weir_status_name(status), f->err.message);
            if (s != NULL) { /* the same handle works */
                weir_session_reset(s);
                assert_ok(f, run(s, &hash, &f->err));
                assert_true(hash == wanted);
                right++;
            }
            weir_session_destroy(s);
            weir_model_close(m);
            assert_int_equal(held(f), before);
            if (!met) break;
        }
        assert_true(right > 0);
        assert_true((failed > 0) == (sites[i] != BASE_FAULT_PINNED_ALLOC));
    }
}

/* A cancelled pass leaves the session where it was. */
static void cancelled(void **state)
{
    fixture *f = *state;
    uint64_t wanted = on_cpu(f, "gemma3"), hash;
    weir_session *s;
    weir_model *m = open_small(f, "gemma3");
    weir_load_options o = small_load();
    assert_ok(f, weir_model_load(m, &o, &f->err));
    assert_ok(f, weir_session_create(m, &s, &f->err));
    atomic_store(&m->cancel, true);
    assert_int_equal(rt_session_append(s, prompt, 24, NULL, NULL, NULL, &f->err), WEIR_ERR_CANCELLED);
    assert_int_equal(weir_session_position(s), 0);
    assert_ok(f, run(s, &hash, &f->err));
    assert_true(hash == wanted);
    weir_session_destroy(s);
    weir_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(same_answer, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(cancelled, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("runtime: a device with memory of its own", tests, NULL, NULL);
}
