/* Language models on devices with memory of their own (R12), by the memory manager: the CPU's answer in every
 * mode; two models taking turns on a device too small for both, simulated and OpenCL (R7); the plan is what
 * the run does; whatever fails once, at any point of loading and running, gives the same answer or the
 * documented error, and the model works afterwards with nothing lost (X5); cancellation; what devices refuse.
 */
#include "rt_device_test.h"

#include <pthread.h>

/* R1.1, R3.6 */
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
            weir_session_destroy(s);
            weir_model_close(m);
        }
    }
}

/* What a player would plan where nothing else is. */
static weir_plan plan_of(fixture *f, const char *arch)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = small_load();
    weir_model *m = player_model(f, arch);
    assert_ok(f, weir_model_plan(m, &o, &plan, &f->err));
    weir_model_close(m);
    return plan;
}

/* Two models by turns, each of which would be there whole, with room for about one and a half of them. */
static void turns(fixture *f, const char *device, const char *mode)
{
    player a, b;
    char limit[32];
    uint64_t of_a = on_cpu_of(f, "llama", PLAYER_HIDDEN), of_b = on_cpu_of(f, "qwen2", PLAYER_HIDDEN);
    bool shared = strcmp(mode, "shared") == 0;
    set(f, "compute.device", device);
    set(f, "compute.vram_mode", mode);
    set(f, "compute.vram_reserve_mb", "0");
    set(f, "compute.simulate_vram_mb", "64");
    set(f, "compute.vram_limit_mb", "0");
    weir_plan pa = plan_of(f, "llama"), pb = plan_of(f, "qwen2");
    uint64_t weights = pb.device_planned_bytes; /* whole, with what it keeps */
    uint64_t most = (pa.device_planned_bytes + pb.device_planned_bytes - weights / 2) / 1000000;
    snprintf(limit, sizeof limit, "%u", (unsigned)most);
    set(f, "compute.vram_limit_mb", limit);
    uint64_t before = held(f);
    open_player(f, &a, "llama", of_a);
    weir_memory_report first = report_of(f, a.m);
    assert_true(first.loaded_bytes == first.size_bytes && first.size_bytes > 5000000);
    assert_string_equal(first.reason, "");
    open_player(f, &b, "qwen2", of_b);
    assert_ptr_equal(a.m->run->target, b.m->run->target);
    for (int i = 0; i < 3; i++) {
        play(f, &b);
        weir_memory_report ra = report_of(f, a.m), rb = report_of(f, b.m);
        /* The plan was made while the other one was there, and is what happened. */
        assert_int_equal(rb.loaded_bytes + rb.device_slot_bytes,
                         b.plan.device_planned_bytes - b.m->run->plan.device_need_bytes);
        assert_true(ra.loaded_bytes < ra.size_bytes);
        assert_string_equal(ra.reason, "gave up for another"); /* R10.1 */
        assert_true(rb.device_taken_bytes > 0);
        if (strcmp(device, "sim") == 0) assert_true(rb.device_taken_bytes <= most * 1000000);
        if (shared) /* R3.6: whole, and no copy in RAM */
            assert_int_equal(ra.loaded_bytes + ra.host_copy_bytes + rb.host_copy_bytes + ra.pinned_bytes, 0);
        play(f, &a);
        rb = report_of(f, b.m);
        assert_true(rb.loaded_bytes < rb.size_bytes);
        assert_string_equal(rb.reason, "gave up for another");
        assert_int_equal(report_of(f, a.m).device_kept_bytes, ra.device_kept_bytes);
    }
    mem_source_stats s;
    mem_source_get_stats(a.m->run->source, &s);
    assert_true(s.n_yields > 0);
    close_player(&b);
    play(f, &a);
    weir_memory_report last = report_of(f, a.m); /* what the other one left is taken again */
    assert_int_equal(last.loaded_bytes, last.size_bytes);
    close_player(&a);
    assert_int_equal(held(f), before);
}

/* R3.6, R7.1, R7.3 */
static void two_models_take_turns(void **state)
{
    fixture *f = *state;
    static const char *const modes[] = {"auto", "high", "shared"};
    for (size_t i = 0; i < 3; i++) turns(f, "sim", modes[i]);
}

/* R7.1, R7.3 */
static void two_models_take_turns_on_opencl(void **state)
{
    fixture *f = *state;
    need_opencl(f);
    turns(f, "opencl:0", "auto");
    turns(f, "opencl:0", "shared");
}

/* Those who use the memory manager in the same context are on the same device: components and language models
 * yield to each other. */
static void the_device_is_the_contexts(void **state)
{
    fixture *f = *state;
    player a;
    weir_manager *manager;
    weir_manager_options o;
    weir_manager_info info;
    open_player(f, &a, "llama", on_cpu_of(f, "llama", PLAYER_HIDDEN));
    weir_manager_options_init(&o);
    o.device = "sim";
    assert_ok(f, weir_manager_create(f->context, &o, &manager, &f->err));
    info.struct_size = sizeof info;
    assert_ok(f, weir_manager_get_info(manager, &info, &f->err));
    assert_int_equal(info.n_components, 1);
    assert_int_equal(info.total_bytes, 64000000);
    assert_int_equal(info.kept_bytes != 0, 1);
    play(f, &a);
    close_player(&a);
    assert_ok(f, weir_manager_get_info(manager, &info, &f->err));
    assert_int_equal(info.n_components + info.fixed_bytes + info.slot_bytes, 0);
    /* The device's work space stays with it. */
    assert_true(info.kept_bytes != 0 && info.kept_bytes == info.total_bytes - info.free_bytes);
    weir_manager_destroy(manager);
    assert_null(f->context->devices);
}

/* X3, R3.1: the device's work space is in the ledger as what else lies there; who loads beside another model
 * needs what is missing of it, and promises itself no more, so that nothing stays reserved that nobody takes.
 */
static void work_space_is_shared(void **state)
{
    fixture *f = *state;
    static const char *const archs[] = {"llama", "gemma3"};
    uint64_t wanted[2] = {on_cpu(f, archs[0]), on_cpu(f, archs[1])}, hash, room = 0;
    weir_model *m[2];
    weir_session *s[2];
    weir_load_options o = small_load();
    base_ledger_view v;
    o.ctx_tokens = 2048;
    set(f, "compute.vram_mode", "auto");
    set(f, "compute.vram_reserve_mb", "0");
    for (int i = 0; i < 2; i++) {
        m[i] = open_small(f, archs[i]);
        assert_ok(f, weir_model_load(m[i], &o, &f->err));
        assert_ok(f, weir_session_create(m[i], &s[i], &f->err));
        assert_ok(f, run(s[i], &hash, &f->err));
        assert_true(hash == wanted[i] && hash != WEIR_HASH_SEED);
        weir_memory_report r = report_of(f, m[i]);
        base_ledger_read(f->context->env, &v);
        assert_in_range(r.device_taken_bytes - v.device_bytes, 0, 8 * 4096); /* what is rounded up */
        mem_manager *manager = m[i]->run->target->manager;
        uint64_t there = mem_manager_workspace_bytes(manager);
        assert_true(there > 100000);
        /* Of what was promised nothing but roundings is left; weights could yield. */
        room = mem_manager_room(manager, NULL);
        uint64_t kept = report_of(f, m[0]).device_kept_bytes + (i > 0 ? r.device_kept_bytes : 0);
        assert_in_range(64000000 - kept - room, 0, (uint64_t)(i + 1) * 131072);
        /* The same model again finds its own room, and the work space. */
        weir_plan plan = {.struct_size = sizeof plan};
        assert_ok(f, weir_model_plan(m[i], &o, &plan, &f->err));
        assert_true(plan.device_room_bytes >= plan.device_planned_bytes);
        if (i > 0) assert_int_equal(plan.device_planned_bytes, m[i]->run->plan.view.device_planned_bytes);
    }
    for (int i = 0; i < 2; i++) {
        weir_session_destroy(s[i]);
        weir_model_close(m[i]);
    }
    base_ledger_read(f->context->env, &v);
    assert_int_equal(v.device_bytes, 0);
}

/* `weir plan` says what a load does, at every size of the device, with and without copies in RAM. */
static void plans_are_what_happens(void **state)
{
    fixture *f = *state;
    static const char *const limits[] = {"2", "4", "6", "12"};
    static const char *const copies[] = {"auto", "on", "off"};
    uint64_t wanted = on_cpu_of(f, "qwen3", PLAYER_HIDDEN);
    uint32_t partly = 0;
    set(f, "compute.vram_mode", "auto");
    set(f, "compute.vram_reserve_mb", "0");
    for (size_t i = 0; i < 12; i++) {
        player p;
        set(f, "compute.vram_limit_mb", limits[i % 4]);
        set(f, "compute.host_copies", copies[i / 4]);
        open_player(f, &p, "qwen3", wanted);
        play(f, &p);
        const rt_plan *plan = &p.m->run->plan;
        weir_memory_report r = report_of(f, p.m);
        assert_int_equal(p.plan.device_planned_bytes, plan->view.device_planned_bytes);
        assert_int_equal(p.plan.device_streamed_bytes_per_pass, plan->device.streamed_bytes);
        assert_int_equal(r.device_fixed_bytes, plan->device.fixed_bytes);
        assert_int_equal(r.device_resident_bytes, plan->device.resident_bytes);
        assert_int_equal(r.device_slot_bytes, plan->device.slot_bytes);
        assert_int_equal(r.device_resident_units, plan->device.n_resident);
        assert_int_equal(r.host_copy_bytes, plan->device.copy_bytes);
        assert_true((r.host_copy_bytes != 0) ==
                    (i / 4 == 1 || (i / 4 == 0 && plan->device.streamed_bytes != 0)));
        assert_true(r.device_kept_bytes <= plan->device_need_bytes + 65536);
        /* Of RAM too, by tag. */
        base_ledger_view v;
        base_ledger_read(f->context->env, &v);
        assert_int_equal(v.tag_bytes[BASE_TAG_WEIGHTS_HOST], plan->tag_bytes[BASE_TAG_WEIGHTS_HOST]);
        for (int t = 0; t < BASE_TAG_COUNT; t++)
            if (v.tag_bytes[t] > plan->tag_bytes[t])
                fail_msg("%s: %llu bytes, planned %llu", base_tag_text((base_tag)t),
                         (unsigned long long)v.tag_bytes[t], (unsigned long long)plan->tag_bytes[t]);
        partly += r.device_resident_units != 0 && r.device_resident_units < r.device_units;
        close_player(&p);
    }
    assert_true(partly > 0);
}

/* ---- budgets that change between two passes ---- */

#define N_STEPS 12

/* The prompt's tokens one by one, so that each step has a hash of its own. */
static weir_status step(weir_session *s, int i, uint64_t *hash, weir_error *err)
{
    const float *logits;
    weir_status status = weir_session_append(s, prompt + i, 1, &logits, err);
    if (status == WEIR_OK)
        *hash = weir_logits_hash(WEIR_HASH_SEED, logits, lm_model_hparams(s->model->lm)->n_vocab);
    return status;
}

static void set_limit(fixture *f, uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)(bytes / 1000000));
    set(f, "compute.vram_limit_mb", text);
}

typedef struct budgets {
    weir_model *m;
    weir_session *s;
    uint64_t wanted[N_STEPS];
    uint64_t mem_least, mem_most, device_least, device_most;
    uint64_t before; /* held with these settings */
    bool unified;
} budgets;

/* A model that is there whole, and what each step must give. */
static void open_budgets(fixture *f, budgets *b, const char *device)
{
    *b = (budgets){.m = NULL};
    (void)on_cpu_of(f, "qwen3", PLAYER_HIDDEN);
    set(f, "compute.device", device);
    set(f, "compute.vram_mode", "auto");
    set(f, "compute.vram_reserve_mb", "0");
    set(f, "compute.vram_limit_mb", "0");
    set(f, "compute.prefetch_sequence", "off"); /* nor does what is measured change what is there */
    weir_load_options o = small_load();
    weir_plan plan = {.struct_size = sizeof plan};
    /* What a driver's compiler and its heap hold changes from plan to plan by more than the slack below. */
    set(f, "memory.process", "8MiB");
    b->before = held(f);
    b->m = player_model(f, "qwen3");
    o.mem_bytes = 256 * MIB;
    assert_ok(f, weir_model_plan(b->m, &o, &plan, &f->err));
    b->device_least = plan.device_smallest_bytes + 1200000; /* slack, and a limit is of whole MB */
    b->device_most = plan.device_whole_bytes + 2000000;
    b->mem_least = plan.smallest_bytes + MIB;
    b->mem_most = base_max(plan.whole_bytes, b->mem_least) + 16 * MIB;
    o.mem_bytes = b->mem_most;
    assert_ok(f, weir_model_load(b->m, &o, &f->err));
    mem_manager_info info;
    assert_ok(f, mem_manager_get_info(b->m->run->target->manager, &info, &f->err));
    b->unified = info.device.unified;
    assert_ok(f, weir_session_create(b->m, &b->s, &f->err));
    for (int i = 0; i < N_STEPS; i++) assert_ok(f, step(b->s, i, &b->wanted[i], &f->err));
    assert_true(b->wanted[0] != b->wanted[1]);
    weir_session_reset(b->s);
}

static void check_step(fixture *f, const budgets *b, int i)
{
    uint64_t hash = 0;
    assert_ok(f, step(b->s, i, &hash, &f->err));
    assert_true(hash == b->wanted[i]);
}

/* What is there is what was planned anew, and both budgets hold. */
static weir_memory_report check_budgets(fixture *f, const budgets *b, uint64_t mem, uint64_t limit)
{
    weir_memory_report r = report_of(f, b->m);
    const rt_plan *plan = &b->m->run->plan;
    assert_int_equal(r.budget_bytes, mem);
    assert_true(r.planned_peak_bytes <= mem && r.ledger_bytes <= mem);
    assert_int_equal(r.device_limit_bytes, limit / 1000000 * 1000000);
    if (!b->unified) /* pools are whole MiB there */
        assert_true(r.device_taken_bytes <= r.device_limit_bytes);
    assert_int_equal(r.device_fixed_bytes, plan->device.fixed_bytes);
    assert_int_equal(r.device_resident_bytes, plan->device.resident_bytes);
    assert_int_equal(r.device_slot_bytes, plan->device.slot_bytes);
    assert_int_equal(r.host_copy_bytes, plan->device.copy_bytes);
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    for (int t = 0; t < BASE_TAG_COUNT; t++)
        if (v.tag_bytes[t] > plan->tag_bytes[t])
            fail_msg("%s: %llu bytes, planned %llu", base_tag_text((base_tag)t),
                     (unsigned long long)v.tag_bytes[t], (unsigned long long)plan->tag_bytes[t]);
    assert_int_equal(v.tag_bytes[BASE_TAG_DEVICE] != 0, b->unified);
    return r;
}

static void change_budgets(fixture *f, const char *device)
{
    static const double mems[N_STEPS] = {1, 1, 0, 0.3, 1, 0.1, 0, 0.5, 1, 0.7, 0.2, 1};
    static const double limits[N_STEPS] = {1, 0, 0.5, 0.8, 0.3, 1, 0, 0.6, 0.1, 1, 1, 0.9};
    uint32_t whole = 0, partly = 0;
    budgets b;
    open_budgets(f, &b, device);
    for (int i = 0; i < N_STEPS; i++) {
        uint64_t mem = b.mem_least + (uint64_t)(mems[i] * (double)(b.mem_most - b.mem_least));
        uint64_t limit = b.device_least + (uint64_t)(limits[i] * (double)(b.device_most - b.device_least));
        set_limit(f, limit);
        assert_ok(f, weir_model_set_budget(b.m, mem, &f->err));
        weir_memory_report r = check_budgets(f, &b, mem, limit);
        whole += r.device_resident_units == r.device_units;
        partly += r.device_resident_units != r.device_units;
        /* Refused, and nothing changed. */
        assert_int_equal(weir_model_set_budget(b.m, b.mem_least / 2, &f->err), WEIR_ERR_BUDGET);
        assert_mentions(f->err.message, "at least");
        set(f, "compute.vram_limit_mb", "1");
        assert_int_equal(weir_model_set_budget(b.m, mem, &f->err), WEIR_ERR_BUDGET);
        assert_mentions(f->err.message, "compute.vram_limit_mb");
        set(f, "compute.vram_mode", "most");
        assert_int_equal(weir_model_set_budget(b.m, mem, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        set(f, "compute.vram_mode", "auto");
        check_budgets(f, &b, mem, limit);
        check_step(f, &b, i);
        check_budgets(f, &b, mem, limit);
    }
    assert_true(whole > 0 && partly > 2);
    assert_int_equal(weir_session_position(b.s), N_STEPS);
    weir_session_destroy(b.s);
    weir_model_close(b.m);
    set(f, "compute.vram_limit_mb", "0");
    assert_int_equal(held(f), b.before);
}

/* R3.1, R6.5, X1 */
static void budgets_change(void **state)
{
    change_budgets(*state, "sim");
}

/* R3.1, X1, X2 */
static void budgets_change_on_opencl(void **state)
{
    fixture *f = *state;
    need_opencl(f);
    change_budgets(f, "opencl:0");
}

/* X5: a change that cannot be carried out is an error, and the old state goes on. */
static void budget_faults(void **state)
{
    fixture *f = *state;
    static const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_COPY, BASE_FAULT_READ,
                                            BASE_FAULT_HOST_ALLOC};
    budgets b;
    open_budgets(f, &b, "sim");
    uint64_t small = b.device_least + (b.device_most - b.device_least) / 4;
    uint32_t failed = 0;
    for (int i = 0; i < N_STEPS; i++) {
        set_limit(f, small);
        assert_ok(f, weir_model_set_budget(b.m, b.mem_most, &f->err));
        base_fault_rule rule = {
            .site = sites[i % 4], .after = (uint64_t)(i / 4), .length = -1, .for_good = true};
        set_limit(f, b.device_most);
        assert_ok(f, base_fault_arm(f->context->env, &rule, &f->err));
        weir_status status = weir_model_set_budget(b.m, b.mem_most + MIB, &f->err);
        base_fault_clear(f->context->env);
        bool fine = status == WEIR_OK;
        failed += !fine;
        if (!fine && status != WEIR_ERR_DEVICE && status != WEIR_ERR_DEVICE_MEMORY && status != WEIR_ERR_IO &&
            status != WEIR_ERR_OUT_OF_MEMORY)
            fail_msg("%s gives %s: %s", base_fault_text(sites[i % 4]), weir_status_name(status),
                     f->err.message);
        check_step(f, &b, i);
        check_budgets(f, &b, fine ? b.mem_most + MIB : b.mem_most, fine ? b.device_most : small);
    }
    assert_true(failed >= 6);
    weir_session_destroy(b.s);
    weir_model_close(b.m);
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
        uint64_t retried = 0;
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
                     status == WEIR_ERR_OUT_OF_MEMORY || status == WEIR_ERR_IO) {
                failed++;
                if (sites[i] != BASE_FAULT_HOST_ALLOC)
                    print_message("%s:%llu: %s\n", base_fault_text(sites[i]), (unsigned long long)after,
                                  f->err.message);
            } else
                fail_msg("%s:%llu gives %s: %s", base_fault_text(sites[i]), (unsigned long long)after,
                         weir_status_name(status), f->err.message);
            if (s != NULL) { /* the same handle works */
                weir_session_reset(s);
                assert_ok(f, run(s, &hash, &f->err));
                assert_true(hash == wanted);
                right++;
                mem_source_stats stats;
                mem_source_get_stats(m->run->source, &stats);
                retried += stats.n_retries;
            }
            weir_session_destroy(s);
            weir_model_close(m);
            assert_int_equal(held(f), before);
            if (!met) break;
        }
        assert_true(right > 0);
        /* The manager tries again what a device or a file refused once (X5, R8.1). Host memory is not the
         * device's, and the first read of a load is that of the vocabulary. */
        if (sites[i] != BASE_FAULT_HOST_ALLOC) assert_true(failed <= (sites[i] == BASE_FAULT_READ));
        if (sites[i] == BASE_FAULT_HOST_ALLOC) assert_true(failed > 0);
        if (sites[i] == BASE_FAULT_COPY) assert_true(retried > 0);
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

/* R3.7: a pass inside an open request of the same thread on the same device is refused at once, and changes
 * nothing; with room for another job it runs. */
static void inside_a_request(void **state)
{
    fixture *f = *state;
    uint64_t wanted = on_cpu(f, "llama"), hash;
    weir_manager *manager;
    weir_session *s;
    weir_request *q;
    set(f, "compute.vram_reserve_mb", "0");
    for (int jobs = 1; jobs <= 2; jobs++) {
        set(f, "compute.gpu_jobs", jobs == 1 ? "1" : "2");
        weir_model *m = open_small(f, "llama");
        weir_load_options o = small_load();
        assert_ok(f, weir_model_load(m, &o, &f->err));
        assert_ok(f, weir_session_create(m, &s, &f->err));
        assert_ok(f, weir_manager_create(f->context, NULL, &manager, &f->err));
        weir_request_options ro;
        weir_request_options_init(&ro);
        ro.name = "outer";
        ro.managers = &manager;
        ro.n_managers = 1;
        assert_ok(f, weir_request_begin(&ro, &q, &f->err));
        weir_status status = run(s, &hash, &f->err);
        if (jobs == 1) {
            assert_int_equal(status, WEIR_ERR_INVALID_ARGUMENT);
            assert_mentions(f->err.message, "would wait for request outer");
            assert_int_equal(weir_session_position(s), 0);
        } else {
            assert_ok(f, status);
            assert_true(hash == wanted);
        }
        weir_request_end(q);
        weir_session_reset(s);
        assert_ok(f, run(s, &hash, &f->err));
        assert_true(hash == wanted && hash != WEIR_HASH_SEED);
        weir_session_destroy(s);
        weir_model_close(m);
        weir_manager_destroy(manager);
    }
}

typedef struct loader {
    fixture *f;
    char path[256];
    uint64_t wanted, hash;
    weir_status status;
    weir_error err;
} loader;

static void *load_main(void *arg)
{
    loader *l = arg;
    for (int i = 0; i < 3 && l->status == WEIR_OK; i++) {
        weir_model *m = NULL;
        weir_session *s = NULL;
        weir_plan plan = {.struct_size = sizeof plan};
        weir_load_options o = small_load();
        l->hash = 0;
        l->status = weir_model_open(l->f->context, l->path, &m, &l->err);
        if (l->status == WEIR_OK) l->status = weir_model_plan(m, &o, &plan, &l->err);
        if (l->status == WEIR_OK) l->status = weir_model_load(m, &o, &l->err);
        if (l->status == WEIR_OK) l->status = weir_session_create(m, &s, &l->err);
        if (l->status == WEIR_OK) l->status = run(s, &l->hash, &l->err);
        weir_session_destroy(s);
        weir_model_close(m);
        if (l->hash != l->wanted) break;
    }
    return NULL;
}

/* Two threads open, plan, load, run and close models on one device of one context, and open it through
 * managers beside that: the device is opened once at a time, nothing is lost, and all answers are right. What
 * a sanitizer of threads says of it is part of the test. */
static void loading_at_once(void **state)
{
    fixture *f = *state;
    static const char *const archs[] = {"llama", "gemma3"};
    loader l[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        l[i] = (loader){.f = f, .wanted = on_cpu(f, archs[i])};
        snprintf(l[i].path, sizeof l[i].path, "%s", make_model(f, archs[i], 256));
    }
    uint64_t before = held(f);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, load_main, &l[i]), 0);
    for (int i = 0; i < 8; i++) {
        weir_manager *manager;
        assert_ok(f, weir_manager_create(f->context, NULL, &manager, &f->err));
        weir_manager_destroy(manager);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        if (l[i].status != WEIR_OK) fail_msg("%s: %s", archs[i], l[i].err.message);
        assert_true(l[i].hash == l[i].wanted && l[i].hash != WEIR_HASH_SEED);
    }
    assert_int_equal(held(f), before);
    assert_null(f->context->devices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(same_answer, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_models_take_turns, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_models_take_turns_on_opencl, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(the_device_is_the_contexts, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(plans_are_what_happens, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(budgets_change, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(budgets_change_on_opencl, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(budget_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(cancelled, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(inside_a_request, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(work_space_is_shared, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(loading_at_once, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("runtime: a device with memory of its own", tests, NULL, NULL);
}
