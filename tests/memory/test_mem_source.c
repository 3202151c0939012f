/* A program's component on a device with memory of its own, by the memory manager, on the simulated one,
 * strict and with chaos: every operation finds the file's bytes whatever stays (R3.6, R4.5, R4.6, R5.1, R5.2,
 * R12), the decision is told before anything is loaded, kept memory has its room (R3.1), weights are there
 * only inside their unit (R12.2), passes run again where memory ran out (R8.1), and whatever fails once
 * leaves a source that works (X5). */
#include "mem_test.h"

typedef struct rig {
    fixture f;
    dev_device *d;
    const dev_memory_table *m;
    mem_manager *manager;
    mem_source *s;
    uint8_t *out; /* on the device */
    uint8_t got[1 << 20];
    uint32_t n_runs;
} rig;

static void rig_open(rig *r, dev_sim_options o, mem_policy policy)
{
    fixture *f = &r->f;
    void *out;
    open_fixture(f, "mem_source", MEM_SEQUENCE);
    if (o.memory_bytes == 0) o.memory_bytes = UINT64_C(32) << 20;
    f->baseline = ledger_bytes(f);
    assert_status(dev_sim_create(f->env, "ref", 1, &o, &r->d, &f->err), WEIR_OK);
    r->m = r->d->table->memory;
    assert_status(mem_manager_create(f->env, r->d, &policy, NULL, &r->manager, &f->err), WEIR_OK);
    assert_status(mem_manager_open_staging(r->manager, &f->err), WEIR_OK);
    assert_status(mem_manager_alloc(r->manager, sizeof r->got, "out", &out, &f->err), WEIR_OK);
    r->out = out;
    r->s = NULL;
}

static void rig_close(rig *r)
{
    dev_memory_info info;
    mem_source_destroy(r->s);
    mem_manager_free(r->manager, r->out);
    assert_int_equal(r->m->info(r->d, &info, NULL), WEIR_OK);
    assert_int_equal(info.taken_bytes, 0);
    mem_manager_destroy(r->manager);
    dev_destroy(r->d);
    assert_int_equal(ledger_bytes(&r->f), r->f.baseline);
    close_fixture(&r->f);
}

static mem_policy policy_of(uint64_t limit, mem_vram_mode mode)
{
    mem_policy p;
    mem_policy_init(&p);
    p.vram_reserve_bytes = 0;
    p.vram_limit_bytes = limit;
    p.vram_mode = mode;
    return p;
}

static weir_status make(rig *r, uint64_t copies)
{
    weir_status status = mem_source_create(r->f.c, r->manager, "test", "program", &r->s, &r->f.err);
    if (status == WEIR_OK) mem_handle_limit_copies(mem_source_handle(r->s), copies, true);
    return status;
}

static void copy_bytes(const dev_arg *args, size_t begin, size_t end)
{
    memcpy((uint8_t *)args[1].as.address + begin, (uint8_t *)args[0].as.address + begin, end - begin);
}

/* An operation that reads a weight, and what it saw. */
static weir_status read_weight(rig *r, const known_weight *k, weir_error *err)
{
    static const dev_kernel kernel = {.name = "copy_bytes", .c = copy_bytes};
    dev_arg args[2] = {{.kind = DEV_ARG_ADDRESS}, {.kind = DEV_ARG_ADDRESS, .as.address = r->out}};
    uint64_t bytes = k->n_rows * k->row_bytes;
    weir_status status = mem_source_address(r->s, k->id, &args[0].as.address, err);
    if (status == WEIR_OK) status = r->m->launch(r->d, &kernel, args, 2, bytes, err);
    if (status == WEIR_OK) status = mem_source_download(r->s, r->got, r->out, bytes, err);
    if (status == WEIR_OK && memcmp(r->got, r->f.data + k->offset, bytes) != 0)
        fail_msg("weight %u: other bytes than the file's", k->id);
    return status;
}

/* A pass as a program makes it. */
static weir_status program(void *arg, weir_error *err)
{
    rig *r = arg;
    fixture *f = &r->f;
    uint32_t entered = MEM_NO_UNIT;
    weir_status status = WEIR_OK;
    r->n_runs++;
    for (size_t i = 0; i < f->n_order && status == WEIR_OK; i++) {
        uint32_t unit = mem_weight_unit(f->c, f->order[i]);
        if (unit != MEM_NO_UNIT && unit != entered) {
            if (entered != MEM_NO_UNIT) mem_source_leave(r->s, entered);
            entered = MEM_NO_UNIT;
            status = mem_source_enter(r->s, unit, err);
            if (status == WEIR_OK) entered = unit;
        }
        if (status == WEIR_OK) status = read_weight(r, &f->weights[f->order[i]], err);
    }
    return status;
}

static weir_status pass(rig *r, atomic_bool *cancel)
{
    return mem_source_run(r->s, cancel, program, r, &r->f.err);
}

/* What is decided for each room is what a pass then finds. */
static void decisions(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    mem_handle_plan whole, least, p;
    rig_open(r, (dev_sim_options){0}, policy_of(0, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    assert_status(make(r, 0), WEIR_OK);
    mem_handle *h = mem_source_handle(r->s);
    mem_handle_decide(h, UINT64_MAX, 0, &whole);
    mem_handle_decide(h, 0, 0, &least);
    assert_int_equal(whole.n_units, N_LAYERS + 1); /* the tiny unit is fixed, the table is read by row */
    assert_true(whole.n_resident == whole.n_units && whole.n_slots == 0 && whole.streamed_bytes == 0);
    assert_int_equal(whole.fixed_bytes + whole.resident_bytes, whole.size_bytes);
    assert_true(least.n_resident == 0 && least.n_slots == 1); /* R5.3: one copy */
    assert_int_equal(least.smallest_bytes, least.fixed_bytes + least.slot_bytes);
    assert_int_equal(least.streamed_bytes, whole.resident_bytes);
    assert_int_equal(least.file_bytes, least.streamed_bytes);
    mem_handle_decide(h, 0, UINT64_MAX, &p);
    assert_true(p.file_bytes == 0 && p.copy_bytes >= p.streamed_bytes - p.n_units * 4096);
    uint32_t partly = 0;
    uint64_t kept = 0;
    for (uint64_t room = least.smallest_bytes; room <= whole.size_bytes + 50000; room += 50000) {
        dev_memory_info info;
        mem_handle_info now;
        mem_handle_decide(h, room, 0, &p);
        assert_true(p.fixed_bytes + p.resident_bytes + p.slot_bytes <= room);
        assert_int_equal(p.resident_bytes + p.streamed_bytes, whole.resident_bytes);
        partly += p.n_resident > 0 && p.n_resident < p.n_units;
        assert_int_equal(r->m->info(r->d, &info, NULL), WEIR_OK);
        mem_policy limited = policy_of(base_align_up(sizeof r->got, 4096) + room, MEM_VRAM_AUTO);
        assert_int_equal(mem_manager_set_policy(r->manager, &limited, NULL), WEIR_OK);
        assert_int_equal(mem_manager_room(r->manager, NULL), room);
        assert_status(pass(r, NULL), WEIR_OK);
        mem_handle_get_info(h, &now);
        assert_int_equal(now.loaded_bytes, p.fixed_bytes + p.resident_bytes);
        assert_int_equal(now.n_resident, p.n_resident);
        assert_int_equal(now.slot_bytes, p.slot_bytes);
        kept += now.n_resident;
        assert_status(pass(r, NULL), WEIR_OK); /* and the next one changes nothing */
        mem_handle_get_info(h, &now);
        assert_int_equal(now.n_resident, p.n_resident);
    }
    assert_true(partly > 0 && kept > 0);
    rig_close(r);
    free(r);
}

/* R3.6: what an owner allows weights holds in every mode, however much room there is, and the plan knows. */
static void limits(void **state)
{
    (void)state;
    static const mem_vram_mode modes[] = {MEM_VRAM_AUTO, MEM_VRAM_HIGH, MEM_VRAM_SHARED, MEM_VRAM_LOW};
    rig *r = calloc(1, sizeof *r);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        mem_handle_plan whole, p;
        mem_handle_info now;
        uint32_t partly = 0;
        mem_policy policy = policy_of(0, modes[i]);
        policy.prefetch_sequence = MEM_OFF; /* one way, for all passes */
        rig_open(r, (dev_sim_options){.strict = true, .unified = true}, policy);
        fixture *f = &r->f;
        assert_status(make(r, 0), WEIR_OK);
        mem_handle *h = mem_source_handle(r->s);
        mem_handle_decide(h, UINT64_C(16) << 20, 0, &whole);
        for (uint64_t limit = whole.size_bytes + 1; limit > whole.smallest_bytes; limit -= 300000) {
            mem_handle_limit_weights(h, limit);
            mem_handle_decide(h, UINT64_C(16) << 20, 0, &p);
            assert_true(p.fixed_bytes + p.resident_bytes + p.slot_bytes <= limit);
            assert_int_equal(p.resident_bytes + p.streamed_bytes,
                             whole.resident_bytes + whole.streamed_bytes);
            partly += p.n_resident > 0 && p.n_resident < p.n_units;
            for (int again = 0; again < 2; again++) {
                assert_status(pass(r, NULL), WEIR_OK);
                mem_handle_get_info(h, &now);
                assert_int_equal(now.loaded_bytes, p.fixed_bytes + p.resident_bytes);
                assert_int_equal(now.slot_bytes, p.slot_bytes);
                const char *why = now.whole ? "" : modes[i] == MEM_VRAM_LOW ? "mode" : "budget";
                assert_string_equal(now.reason, why);
            }
        }
        assert_true(modes[i] == MEM_VRAM_LOW ? partly == 0 : partly > 0);
        mem_handle_limit_weights(h, UINT64_MAX);
        assert_status(pass(r, NULL), WEIR_OK);
        mem_handle_get_info(h, &now);
        assert_int_equal(now.whole, modes[i] != MEM_VRAM_LOW);
        rig_close(r);
    }
    free(r);
}

/* Under every share of residents, with and without copies in RAM, for several seeds of chaos. */
static void same_bytes(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    for (uint64_t seed = 0; seed < 6; seed++) {
        for (uint32_t percent = 0; percent <= 100; percent += 25) {
            mem_handle_plan p;
            mem_vram_mode mode = percent == 25 ? MEM_VRAM_NONE : MEM_VRAM_AUTO;
            rig_open(r, (dev_sim_options){.chaos_seed = seed, .strict = seed % 2 == 0}, policy_of(0, mode));
            fixture *f = &r->f;
            uint64_t copies = seed % 3 * 700000;
            assert_status(make(r, copies), WEIR_OK);
            mem_handle_decide(mem_source_handle(r->s), 0, 0, &p);
            uint64_t room = p.smallest_bytes + (p.size_bytes - p.smallest_bytes) * percent / 100;
            uint64_t limit = base_align_up(sizeof r->got, 4096) + room;
            mem_policy limited = policy_of(limit, mode);
            assert_status(mem_manager_set_policy(r->manager, &limited, &f->err), WEIR_OK);
            for (int i = 0; i < 3; i++) assert_status(pass(r, NULL), WEIR_OK);
            mem_source_stats s;
            mem_handle_info h;
            dev_memory_info info;
            mem_source_get_stats(r->s, &s);
            mem_handle_get_info(mem_source_handle(r->s), &h);
            assert_status(r->m->info(r->d, &info, &f->err), WEIR_OK);
            assert_true(info.taken_bytes <= limit + (64 << 10));
            if (percent == 100)
                assert_true(s.n_copies == 0 && h.streamed_bytes == 0 && h.whole);
            else
                assert_true(s.n_copies >= 3 && h.streamed_bytes > 0 && !h.whole);
            assert_true((h.host_bytes != 0) == (percent != 100 && copies != 0));
            assert_true(h.host_bytes <= copies);
            if (mode == MEM_VRAM_NONE) assert_int_equal(h.loaded_bytes + h.slot_bytes, 0);
            rig_close(r);
        }
    }
    free(r);
}

/* Memory that a component was promised is there whenever it asks, its own weights do not take it, and those
 * of others yield for it. */
static void kept_memory(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    mem_handle_plan whole;
    mem_handle_info a, b;
    mem_source *other;
    void *cache, *more;
    rig_open(r, (dev_sim_options){.strict = true}, policy_of(0, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    assert_status(make(r, 0), WEIR_OK);
    mem_handle *h = mem_source_handle(r->s);
    mem_handle_decide(h, UINT64_MAX, 0, &whole);
    uint64_t limit = base_align_up(sizeof r->got, 4096) + whole.size_bytes + 65536;
    mem_policy limited = policy_of(limit, MEM_VRAM_AUTO);
    assert_status(mem_manager_set_policy(r->manager, &limited, &f->err), WEIR_OK);
    mem_handle_keep(h, 524288);
    assert_status(pass(r, NULL), WEIR_OK);
    mem_handle_get_info(h, &a);
    assert_true(!a.whole && a.loaded_bytes + a.slot_bytes <= whole.size_bytes + 65536 - 524288);
    assert_string_equal(a.reason, "budget");
    assert_status(mem_source_alloc(r->s, 524288, "cache", &cache, &f->err), WEIR_OK);
    mem_handle_get_info(h, &b);
    assert_int_equal(b.loaded_bytes, a.loaded_bytes); /* nothing had to yield */
    assert_int_equal(b.kept_bytes, 524288);
    assert_status(mem_source_create(f->c, r->manager, "test", "other", &other, &f->err), WEIR_OK);
    assert_int_equal(mem_manager_room(r->manager, h), whole.size_bytes + 65536);
    assert_int_equal(mem_manager_room(r->manager, NULL), whole.size_bytes + 65536 - 524288);
    assert_status(mem_source_alloc(other, 600000, "its cache", &more, &f->err), WEIR_OK);
    mem_handle_get_info(h, &b);
    assert_true(b.loaded_bytes + b.slot_bytes < a.loaded_bytes + a.slot_bytes);
    assert_string_equal(b.reason, "gave up for another");
    assert_status(pass(r, NULL), WEIR_OK);
    mem_source_free(other, more);
    mem_source_destroy(other);
    assert_status(pass(r, NULL), WEIR_OK);
    mem_handle_get_info(h, &b);
    assert_int_equal(b.loaded_bytes, a.loaded_bytes);
    mem_source_free(r->s, cache);
    mem_source_free(r->s, NULL);
    rig_close(r);
    free(r);
}

typedef struct carried {
    rig *r;
    void *from, *to;
} carried;

static weir_status put_there(void *arg, weir_error *err)
{
    carried *c = arg;
    return mem_source_upload(c->r->s, c->from, c->r->f.data, 100000, err);
}

static weir_status get_back(void *arg, weir_error *err)
{
    carried *c = arg;
    memset(c->r->got, 0, sizeof c->r->got);
    return mem_source_download(c->r->s, c->r->got, c->to, 100000, err);
}

/* R9.2: what grows on a device is copied there, between passes; a copy that fails leaves a device that works.
 */
static void copies(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    carried c = {.r = r};
    rig_open(r, (dev_sim_options){.strict = true, .chaos_seed = 5}, policy_of(0, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    const base_fault_rule rule = {.site = BASE_FAULT_COPY, .for_good = true, .length = -1};
    assert_status(make(r, 0), WEIR_OK);
    assert_status(mem_source_alloc(r->s, 100000, "small", &c.from, &f->err), WEIR_OK);
    assert_status(mem_source_alloc(r->s, 200000, "large", &c.to, &f->err), WEIR_OK);
    assert_status(mem_source_run(r->s, NULL, put_there, &c, &f->err), WEIR_OK);
    assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
    assert_status(mem_source_copy(r->s, c.to, c.from, 100000, &f->err), WEIR_ERR_DEVICE);
    base_fault_clear(f->env);
    assert_status(mem_source_copy(r->s, c.to, c.from, 60000, &f->err), WEIR_OK);
    assert_status(mem_source_copy(r->s, (uint8_t *)c.to + 60000, (uint8_t *)c.from + 60000, 40000, &f->err),
                  WEIR_OK);
    mem_source_free(r->s, c.from);
    assert_status(mem_source_run(r->s, NULL, get_back, &c, &f->err), WEIR_OK);
    assert_memory_equal(r->got, f->data, 100000);
    mem_source_free(r->s, c.to);
    rig_close(r);
    free(r);
}

typedef struct misuse {
    rig *r;
    void *address, *norm;
} misuse;

static weir_status wrong_use(void *arg, weir_error *err)
{
    misuse *x = arg;
    rig *r = x->r;
    fixture *f = &r->f;
    mem_weight_id q = f->order[2], n = f->order[1];
    uint32_t unit = mem_weight_unit(f->c, q);
    assert_true(unit != MEM_NO_UNIT && mem_weight_unit(f->c, n) == MEM_NO_UNIT);
    assert_status(mem_source_run(r->s, NULL, program, r, err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(mem_source_address(r->s, q, &x->address, err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err->message, "weight q: its unit layer.0 is not entered"));
    assert_status(mem_source_address(r->s, f->table, &x->address, err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err->message, "is not on the device"));
    assert_status(mem_source_enter(r->s, unit, err), WEIR_OK);
    assert_status(mem_source_address(r->s, q, &x->address, err), WEIR_OK);
    assert_status(mem_source_address(r->s, n, &x->norm, err), WEIR_OK);
    mem_source_leave(r->s, unit);
    return WEIR_OK;
}

/* R12.2: outside its unit, and outside a pass, a weight is not there. */
static void outside(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){.strict = true}, policy_of(0, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    misuse x = {.r = r};
    assert_status(make(r, 0), WEIR_OK);
    assert_status(mem_source_enter(r->s, 0, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(f->err.message, "outside of a pass"));
    assert_status(mem_source_run(r->s, NULL, wrong_use, &x, &f->err), WEIR_OK);
    dev_kernel kernel = {.name = "late", .c = copy_bytes};
    dev_arg args[2] = {{.kind = DEV_ARG_ADDRESS, .as.address = x.address},
                       {.kind = DEV_ARG_ADDRESS, .as.address = r->out}};
    assert_status(r->m->launch(r->d, &kernel, args, 2, 8, &f->err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(f->err.message, "late reads layer.0, which is not open"));
    args[0].as.address = x.norm;
    assert_status(r->m->launch(r->d, &kernel, args, 2, 8, &f->err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(f->err.message, "which is not open"));
    assert_status(pass(r, NULL), WEIR_OK);
    rig_close(r);
    free(r);
}

/* Cancellation is met at the next copy (R5.6); the source works afterwards. */
static void cancelled(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){.chaos_seed = 4}, policy_of(0, MEM_VRAM_LOW));
    fixture *f = &r->f;
    atomic_bool cancel = true;
    assert_status(make(r, 0), WEIR_OK);
    assert_status(mem_source_run(r->s, &cancel, NULL, NULL, &f->err), WEIR_ERR_CANCELLED);
    assert_status(pass(r, &cancel), WEIR_ERR_CANCELLED);
    assert_status(pass(r, NULL), WEIR_OK);
    assert_status(pass(r, &cancel), WEIR_ERR_CANCELLED);
    assert_status(pass(r, NULL), WEIR_OK);
    rig_close(r);
    free(r);
}

static weir_status runs_out(void *arg, weir_error *err)
{
    rig *r = arg;
    weir_status status = program(arg, err);
    if (status != WEIR_OK || r->n_runs > 1) return status;
    return base_fail(err, WEIR_ERR_DEVICE_MEMORY, "the driver ran out of memory");
}

/* R8.1: what runs out of device memory runs again from its beginning, with less there. */
static void runs_again(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    mem_handle_info h;
    mem_source_stats s;
    rig_open(r, (dev_sim_options){.strict = true, .chaos_seed = 3}, policy_of(0, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    assert_status(make(r, 0), WEIR_OK);
    assert_status(mem_source_run(r->s, NULL, runs_out, r, &f->err), WEIR_OK);
    assert_int_equal(r->n_runs, 2);
    mem_source_get_stats(r->s, &s);
    assert_int_equal(s.n_retries, 1);
    mem_handle_get_info(mem_source_handle(r->s), &h);
    assert_true(h.loaded_bytes + h.slot_bytes <= h.size_bytes / 2 && h.loaded_bytes > 0);
    assert_string_equal(h.reason, "capped after OOM");
    assert_status(pass(r, NULL), WEIR_OK);
    rig_close(r);
    free(r);
}

/* X5: each passage of each site fails once, while creating and while running. */
static void faults(void **state)
{
    (void)state;
    static const base_fault_site sites[] = {BASE_FAULT_DEVICE_ALLOC, BASE_FAULT_PINNED_ALLOC, BASE_FAULT_COPY,
                                            BASE_FAULT_READ, BASE_FAULT_HOST_ALLOC};
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){.strict = true, .chaos_seed = 9}, policy_of(2600000, MEM_VRAM_AUTO));
    fixture *f = &r->f;
    uint64_t baseline = ledger_bytes(f);
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        uint32_t met_once = 0, passed = 0;
        uint64_t step = sites[i] == BASE_FAULT_COPY || sites[i] == BASE_FAULT_READ ? 7 : 1;
        for (uint64_t after = 0;; after += step) {
            base_fault_rule rule = {.site = sites[i], .after = after, .length = -1};
            assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
            uint64_t before = base_fault_count(f->env, sites[i]);
            weir_status status = make(r, 1000000);
            weir_status run = status == WEIR_OK ? pass(r, NULL) : WEIR_OK;
            bool met = base_fault_count(f->env, sites[i]) - before > after;
            base_fault_clear(f->env);
            /* What fails once is tried once more, but for the host's own memory. */
            if (sites[i] != BASE_FAULT_HOST_ALLOC) assert_true(status == WEIR_OK && run == WEIR_OK);
            if (sites[i] == BASE_FAULT_HOST_ALLOC && status == WEIR_OK && run != WEIR_OK)
                assert_int_equal(run, WEIR_ERR_OUT_OF_MEMORY);
            if (status == WEIR_OK) assert_status(pass(r, NULL), WEIR_OK);
            met_once += met;
            passed += status == WEIR_OK;
            mem_source_destroy(r->s);
            r->s = NULL;
            assert_int_equal(ledger_bytes(f), baseline);
            if (!met) break;
        }
        assert_true(met_once > 0 && passed > 0);
    }
    rig_close(r);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions),   cmocka_unit_test(limits),     cmocka_unit_test(same_bytes),
        cmocka_unit_test(kept_memory), cmocka_unit_test(copies),     cmocka_unit_test(outside),
        cmocka_unit_test(cancelled),   cmocka_unit_test(runs_again), cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests_name("memory: programs on a device", tests, NULL, NULL);
}
