/* Language models that leave the device and come back (R7.6), and passes that are cancelled at each copy
 * (R5.6). */
#include "rt_device_test.h"

/* R7.6: with one model at most on devices, that which was not used last is off, whole; it is loaded all the
 * same, its sessions stay, and its next pass brings it back with the same answer. By time likewise, by a
 * manager of the same device. */
static void models_leave(void **state)
{
    fixture *f = *state;
    player p[2];
    weir_manager *manager;
    uint64_t wanted[2] = {on_cpu_of(f, "llama", PLAYER_HIDDEN), on_cpu_of(f, "qwen2", PLAYER_HIDDEN)};
    set(f, "compute.vram_mode", "auto");
    set(f, "compute.vram_reserve_mb", "0");
    set(f, "compute.max_resident_models", "1");
    uint64_t before = held(f);
    open_player(f, &p[0], "llama", wanted[0]);
    open_player(f, &p[1], "qwen2", wanted[1]);
    for (int i = 0; i < 4; i++) {
        play(f, &p[i % 2]);
        weir_memory_report on = report_of(f, p[i % 2].m), off = report_of(f, p[1 - i % 2].m);
        assert_true(on.loaded_bytes == on.size_bytes && on.size_bytes > 5000000);
        assert_int_equal(off.loaded_bytes + off.device_slot_bytes, 0);
        assert_true(off.device_kept_bytes > 0); /* its caches stay */
        assert_string_equal(off.reason, "gave up for another");
    }
    set(f, "compute.max_resident_models", "0");
    assert_ok(f, weir_manager_create(f->context, NULL, &manager, &f->err));
    for (int i = 0; i < 2; i++) play(f, &p[i]);
    for (int i = 0; i < 2; i++) assert_string_equal(report_of(f, p[i].m).reason, "");
    assert_int_equal(weir_manager_unload_idle_for(manager, 3600, true), 0);
    assert_int_equal(weir_manager_unload_idle_for(manager, 0, false),
                     report_of(f, p[0].m).size_bytes + report_of(f, p[1].m).size_bytes);
    for (int i = 0; i < 2; i++) assert_int_equal(report_of(f, p[i].m).loaded_bytes, 0);
    for (int i = 0; i < 2; i++) play(f, &p[i]);
    weir_manager_destroy(manager);
    for (int i = 0; i < 2; i++) close_player(&p[i]);
    assert_int_equal(held(f), before);
}

static void cancel_it(void *arg)
{
    weir_model_cancel(arg);
}

/* R5.6, X5: a language model is cancelled at the n-th copy of its loading or of its passes: CANCELLED,
 * nothing held that was not before, and the same model gives the known answer with the next try. From the
 * file, and from copies in RAM. */
static void cancelled_at_each_copy(void **state)
{
    fixture *f = *state;
    uint64_t wanted = on_cpu(f, "llama"), hash;
    const char *path = make_model(f, "llama", 256);
    base_env *env = f->context->env;
    for (int copies = 0; copies < 2; copies++) {
        uint32_t in_load = 0, in_pass = 0, step = 1;
        set(f, "compute.host_copies", copies ? "on" : "off");
        for (uint64_t after = 0;; after += step) {
            weir_model *m;
            weir_session *s = NULL;
            weir_load_options o = small_load();
            assert_ok(f, weir_model_open(f->context, path, &m, &f->err));
            uint64_t opened = held(f);
            const base_fault_rule rule = {.site = BASE_FAULT_COPY,
                                          .after = after,
                                          .length = -1,
                                          .hold = cancel_it,
                                          .hold_arg = m,
                                          .passes = true};
            assert_ok(f, base_fault_arm(env, &rule, &f->err));
            weir_status status = weir_model_load(m, &o, &f->err);
            if (status != WEIR_OK) {
                assert_int_equal(status, WEIR_ERR_CANCELLED);
                base_ledger_view v;
                base_ledger_read(env, &v);
                assert_int_equal(v.device_bytes, 0);
                assert_in_range(held(f) - opened, 0, 0);
                in_load++;
                assert_ok(f, weir_model_load(m, &o, &f->err));
            }
            assert_ok(f, weir_session_create(m, &s, &f->err));
            weir_memory_report idle = report_of(f, m);
            uint64_t loaded = held(f);
            status = run(s, &hash, &f->err);
            bool met = base_fault_count(env, BASE_FAULT_COPY) > after;
            base_fault_clear(env);
            if (status != WEIR_OK) {
                assert_int_equal(status, WEIR_ERR_CANCELLED);
                in_pass++;
                weir_memory_report now = report_of(f, m);
                assert_int_equal(now.device_taken_bytes, idle.device_taken_bytes);
                assert_true(held(f) <= loaded + (copies ? now.host_copy_bytes : 0));
            } else
                assert_true(hash == wanted);
            weir_session_reset(s);
            assert_ok(f, run(s, &hash, &f->err));
            assert_true(hash == wanted && hash != WEIR_HASH_SEED);
            weir_session_destroy(s);
            weir_model_close(m);
            if (!met) break;
            step = after < 60 ? 1 : 7; /* every one of the load and of the first passes */
        }
        assert_true(in_load > 5 && in_pass > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models_leave, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(cancelled_at_each_copy, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("runtime: models that leave, passes that end", tests, NULL, NULL);
}
