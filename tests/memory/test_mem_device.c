/* Weights on a device with memory of its own, on the simulated one, strict and with chaos: every operation
 * finds the file's bytes whatever stays (R3.6, R4.5, R4.6, R5.1, R5.2, R12), budgets hold, weights are there
 * only inside their unit (R12.2), and whatever fails once leaves a source that works (X5). */
#include "mem_test.h"

typedef struct rig {
    fixture f;
    dev_device *d;
    const dev_memory_table *m;
    mem_source *s;
    uint8_t *out; /* on the device */
    uint8_t got[1 << 20];
} rig;

static void rig_open(rig *r, dev_sim_options o)
{
    fixture *f = &r->f;
    open_fixture(f, "mem_device", MEM_SEQUENCE);
    if (o.memory_bytes == 0) o.memory_bytes = UINT64_C(32) << 20;
    assert_status(dev_sim_create(f->env, "ref", 1, &o, &r->d, &f->err), WEIR_OK);
    r->m = r->d->table->memory;
    void *out;
    assert_status(r->m->alloc(r->d, sizeof r->got, "out", &out, &f->err), WEIR_OK);
    r->out = out;
    r->s = NULL;
    f->baseline = ledger_bytes(f);
}

static void rig_close(rig *r)
{
    mem_source_destroy(r->s);
    r->m->free(r->d, r->out);
    dev_memory_info info;
    assert_int_equal(r->m->info(r->d, &info, NULL), WEIR_OK);
    assert_int_equal(info.taken_bytes, 0);
    assert_int_equal(ledger_bytes(&r->f), r->f.baseline);
    dev_destroy(r->d);
    close_fixture(&r->f);
}

static mem_device_plan device_plan(const rig *r, uint64_t budget, bool none)
{
    mem_device_plan p;
    dev_memory_info info;
    assert_int_equal(r->m->info(r->d, &info, NULL), WEIR_OK);
    mem_device_plan_make(r->f.c, info.alignment, budget, none, &p);
    return p;
}

static weir_status make(rig *r, uint64_t budget, bool none, uint64_t copies)
{
    mem_device_plan p = device_plan(r, budget, none);
    mem_device_options o = {.host_copy_bytes = copies};
    return mem_device_source_create(r->f.c, r->d, &p, &o, &r->s, &r->f.err);
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
    dev_ticket t;
    weir_status status = r->s->table->address(r->s, k->id, &args[0].as.address, err);
    if (status == WEIR_OK) status = r->m->launch(r->d, &kernel, args, 2, bytes, err);
    if (status == WEIR_OK) status = r->m->download(r->d, DEV_STREAM_COMPUTE, r->got, r->out, bytes, &t, err);
    if (status == WEIR_OK) status = r->m->sync(r->d, t, err);
    if (status == WEIR_OK && memcmp(r->got, r->f.data + k->offset, bytes) != 0)
        fail_msg("weight %u: other bytes than the file's", k->id);
    return status;
}

/* A pass as a program makes it. */
static weir_status pass(rig *r, atomic_bool *cancel)
{
    fixture *f = &r->f;
    uint32_t entered = MEM_NO_UNIT;
    weir_error late = {0};
    weir_status status = r->s->table->begin(r->s, cancel, &f->err);
    if (status != WEIR_OK) return status;
    for (size_t i = 0; i < f->n_order && status == WEIR_OK; i++) {
        uint32_t unit = mem_weight_unit(f->c, f->order[i]);
        if (unit != MEM_NO_UNIT && unit != entered) {
            if (entered != MEM_NO_UNIT) r->s->table->leave(r->s, entered);
            entered = MEM_NO_UNIT;
            status = r->s->table->enter(r->s, unit, &f->err);
            if (status == WEIR_OK) entered = unit;
        }
        if (status == WEIR_OK) status = read_weight(r, &f->weights[f->order[i]], &f->err);
    }
    weir_status end = r->s->table->end(r->s, &late);
    if (status != WEIR_OK) return status;
    if (end != WEIR_OK) f->err = late;
    return end;
}

static void plans(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){0});
    mem_device_plan whole = device_plan(r, UINT64_MAX, false), least = device_plan(r, 0, false);
    assert_int_equal(whole.n_units, N_LAYERS + 1); /* the tiny unit is fixed, the table is read by row */
    assert_true(whole.n_resident == whole.n_units && whole.n_slots == 0 && whole.streamed_bytes == 0);
    assert_true(least.n_resident == 0 && least.n_slots == 1);
    assert_int_equal(least.smallest_bytes, least.fixed_bytes + least.slot_bytes);
    assert_int_equal(least.streamed_bytes, whole.resident_bytes);
    uint32_t partly = 0;
    for (uint64_t budget = least.smallest_bytes; budget <= whole.whole_bytes; budget += 50000) {
        mem_device_plan p = device_plan(r, budget, false);
        assert_true(p.fixed_bytes + p.resident_bytes + p.slot_bytes <= budget);
        assert_int_equal(p.resident_bytes + p.streamed_bytes, whole.resident_bytes);
        partly += p.n_resident > 0 && p.n_resident < p.n_units;
    }
    assert_true(partly > 0);
    assert_int_equal(device_plan(r, UINT64_MAX, true).n_resident, 0);
    rig_close(r);
    free(r);
}

/* Under every share of residents, with and without copies in RAM, for several seeds of chaos. */
static void same_bytes(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    for (uint64_t seed = 0; seed < 6; seed++) {
        for (uint32_t percent = 0; percent <= 100; percent += 25) {
            rig_open(r, (dev_sim_options){.chaos_seed = seed, .strict = seed % 2 == 0});
            fixture *f = &r->f;
            mem_device_plan p = device_plan(r, 0, false);
            uint64_t budget = p.smallest_bytes + (p.whole_bytes - p.smallest_bytes) * percent / 100;
            assert_status(make(r, budget, percent == 25, seed % 3 * 700000), WEIR_OK);
            for (int i = 0; i < 3; i++) assert_status(pass(r, NULL), WEIR_OK);
            mem_source_stats s;
            dev_memory_info info;
            r->s->table->stats(r->s, &s);
            assert_status(r->m->info(r->d, &info, &f->err), WEIR_OK);
            assert_true(info.taken_bytes - sizeof r->got <= base_max(budget, p.smallest_bytes) + (64 << 10));
            if (percent == 100)
                assert_true(s.n_copies == 0 && s.streamed_bytes == 0);
            else
                assert_true(s.n_copies >= 3 && s.streamed_bytes > 0);
            assert_true((s.host_bytes != 0) == (percent != 100 && seed % 3 != 0));
            rig_close(r);
        }
    }
    free(r);
}

/* R12.2: outside its unit, and outside a pass, a weight is not there. */
static void outside(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){.strict = true});
    fixture *f = &r->f;
    void *address, *norm;
    assert_status(make(r, UINT64_MAX, false, 0), WEIR_OK);
    mem_weight_id q = f->order[2], n = f->order[1];
    uint32_t unit = mem_weight_unit(f->c, q);
    assert_true(unit != MEM_NO_UNIT && mem_weight_unit(f->c, n) == MEM_NO_UNIT);
    assert_status(r->s->table->enter(r->s, unit, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(r->s->table->begin(r->s, NULL, &f->err), WEIR_OK);
    assert_status(r->s->table->begin(r->s, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(r->s->table->address(r->s, q, &address, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(f->err.message, "weight q is used outside its unit layer.0"));
    assert_status(r->s->table->address(r->s, f->table, &address, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_status(r->s->table->enter(r->s, unit, &f->err), WEIR_OK);
    assert_status(r->s->table->address(r->s, q, &address, &f->err), WEIR_OK);
    assert_status(r->s->table->address(r->s, n, &norm, &f->err), WEIR_OK);
    r->s->table->leave(r->s, unit);
    dev_kernel kernel = {.name = "late", .c = copy_bytes};
    dev_arg args[2] = {{.kind = DEV_ARG_ADDRESS, .as.address = address},
                       {.kind = DEV_ARG_ADDRESS, .as.address = r->out}};
    assert_status(r->m->launch(r->d, &kernel, args, 2, 8, &f->err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(f->err.message, "late reads layer.0, which is not open"));
    assert_status(r->s->table->end(r->s, &f->err), WEIR_OK);
    args[0].as.address = norm;
    assert_status(r->m->launch(r->d, &kernel, args, 2, 8, &f->err), WEIR_ERR_DEVICE);
    assert_non_null(strstr(f->err.message, "the fixed part"));
    assert_status(pass(r, NULL), WEIR_OK);
    rig_close(r);
    free(r);
}

/* Cancellation is met at the next copy (R5.6); the source works afterwards. */
static void cancelled(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    rig_open(r, (dev_sim_options){.chaos_seed = 4});
    fixture *f = &r->f;
    atomic_bool cancel = true;
    mem_device_plan p = device_plan(r, 0, true);
    mem_device_options o = {.cancel = &cancel};
    assert_status(mem_device_source_create(f->c, r->d, &p, &o, &r->s, &f->err), WEIR_ERR_CANCELLED);
    assert_null(r->s);
    assert_status(make(r, 0, true, 0), WEIR_OK);
    assert_status(pass(r, &cancel), WEIR_ERR_CANCELLED);
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
    rig_open(r, (dev_sim_options){.strict = true, .chaos_seed = 9});
    fixture *f = &r->f;
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        uint32_t failed = 0, passed = 0;
        uint64_t step = sites[i] == BASE_FAULT_COPY || sites[i] == BASE_FAULT_READ ? 7 : 1;
        for (uint64_t after = 0;; after += step) {
            base_fault_rule rule = {.site = sites[i], .after = after, .length = -1};
            assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
            uint64_t before = base_fault_count(f->env, sites[i]);
            weir_status status = make(r, 1500000, false, 1000000);
            weir_status run = status == WEIR_OK ? pass(r, NULL) : WEIR_OK;
            bool met = base_fault_count(f->env, sites[i]) - before > after;
            base_fault_clear(f->env);
            if (status == WEIR_OK) assert_status(pass(r, NULL), WEIR_OK);
            failed += status != WEIR_OK || run != WEIR_OK;
            passed += status == WEIR_OK;
            mem_source_destroy(r->s);
            r->s = NULL;
            assert_int_equal(ledger_bytes(f), f->baseline);
            if (!met) break;
        }
        /* Pinned memory that is refused is no error (R5.4). */
        assert_true(sites[i] == BASE_FAULT_PINNED_ALLOC ? failed == 0 && passed > 2
                                                        : failed > 0 && passed > 0);
    }
    rig_close(r);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),     cmocka_unit_test(same_bytes), cmocka_unit_test(outside),
        cmocka_unit_test(cancelled), cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests_name("memory: weights on a device", tests, NULL, NULL);
}
