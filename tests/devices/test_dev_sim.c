/* The simulated device (R12.1, R12.2): its memory is as large as was asked and readable only where it was
 * opened, copies end late and in any order under chaos, operations give the CPU's bits, and every misuse is
 * an error that names whose memory it was. */
#include "devices/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != WEIR_OK) fail_msg("%s: %s", #call, err.message);                                   \
    } while (0)
#define assert_names(text)                                                                                   \
    do {                                                                                                     \
        if (strstr(err.message, text) == NULL) fail_msg("\"%s\" does not name %s", err.message, text);       \
    } while (0)

#define MIB (UINT64_C(1) << 20)

static weir_error err;

typedef struct rig {
    base_env *env;
    dev_device *d;
    const dev_memory_table *m;
} rig;

static rig rig_open(dev_sim_options o)
{
    rig r;
    if (o.memory_bytes == 0) o.memory_bytes = 8 * MIB;
    assert_ok(base_env_create(&r.env, &err));
    assert_ok(dev_sim_create(r.env, "ref", 2, &o, &r.d, &err));
    r.m = r.d->table->memory;
    assert_non_null(r.m);
    return r;
}

static void rig_close(rig *r)
{
    base_ledger_view view;
    dev_destroy(r->d);
    base_ledger_read(r->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(r->env);
}

static void *device_alloc(rig *r, uint64_t bytes, const char *label)
{
    void *p = NULL;
    assert_ok(r->m->alloc(r->d, bytes, label, &p, &err));
    assert_non_null(p);
    return p;
}

static dev_memory_info info_of(rig *r)
{
    dev_memory_info i;
    assert_ok(r->m->info(r->d, &i, &err));
    return i;
}

static weir_status sync_stream(rig *r, uint32_t stream)
{
    dev_ticket t;
    assert_ok(r->m->mark(r->d, stream, &t, &err));
    return r->m->sync(r->d, t, &err);
}

/* R12.1: sizes are counted. */
static void sizes(void **state)
{
    (void)state;
    rig r = rig_open((dev_sim_options){.memory_bytes = MIB, .keeps_freed = true});
    void *a = device_alloc(&r, 1000, "first"), *b = NULL;
    assert_int_equal(info_of(&r).taken_bytes, 1024);
    assert_int_equal(info_of(&r).total_bytes, MIB);
    assert_int_equal(info_of(&r).free_bytes, MIB - 1024);
    assert_int_equal(info_of(&r).alignment, 256);
    assert_int_equal(r.m->alloc(r.d, MIB - 1023, "second", &b, &err), WEIR_ERR_DEVICE_MEMORY);
    assert_names("second");
    b = device_alloc(&r, MIB - 1024, "third");
    assert_int_equal(info_of(&r).free_bytes, 0);
    r.m->free(r.d, b);
    assert_int_equal(info_of(&r).cache_bytes, MIB - 1024); /* R3.2: what the allocator holds unused */
    assert_int_equal(info_of(&r).free_bytes, 0);
    b = device_alloc(&r, 2048, "fourth");
    assert_int_equal(info_of(&r).cache_bytes, MIB - 1024 - 2048);
    r.m->trim(r.d);
    assert_int_equal(info_of(&r).free_bytes, MIB - 1024 - 2048);
    r.m->free(r.d, a);
    r.m->free(r.d, b);
    r.m->free(r.d, NULL);
    rig_close(&r);
}

/* Every refusal there is: by count, by fault point, of pinned memory, of copies. */
static void refusals(void **state)
{
    (void)state;
    rig r = rig_open((dev_sim_options){.fail_every = 3, .max_pinned_bytes = 8192});
    void *p[3] = {0}, *pinned = NULL, *more = NULL;
    p[0] = device_alloc(&r, 10, "a");
    p[1] = device_alloc(&r, 10, "b");
    assert_int_equal(r.m->alloc(r.d, 10, "c", &p[2], &err), WEIR_ERR_DEVICE_MEMORY);
    base_fault_rule rule = {.site = BASE_FAULT_DEVICE_ALLOC, .length = -1};
    assert_ok(base_fault_arm(r.env, &rule, &err));
    assert_int_equal(r.m->alloc(r.d, 10, "d", &p[2], &err), WEIR_ERR_DEVICE_MEMORY);
    p[2] = device_alloc(&r, 10, "e");
    assert_ok(r.m->pin_alloc(r.d, 4096, &pinned, &err));
    assert_int_equal(r.m->pin_alloc(r.d, 8192, &more, &err), WEIR_ERR_OUT_OF_MEMORY);
    rule.site = BASE_FAULT_PINNED_ALLOC;
    assert_ok(base_fault_arm(r.env, &rule, &err));
    assert_int_equal(r.m->pin_register(r.d, p, sizeof p, &err), WEIR_ERR_OUT_OF_MEMORY);
    assert_ok(r.m->pin_register(r.d, p, sizeof p, &err));
    assert_int_equal(r.m->pin_register(r.d, p, sizeof p, &err), WEIR_ERR_DEVICE);
    r.m->pin_unregister(r.d, p);
    rule.site = BASE_FAULT_COPY;
    assert_ok(base_fault_arm(r.env, &rule, &err));
    assert_int_equal(r.m->upload(r.d, DEV_STREAM_COPY, p[0], pinned, 10, NULL, &err), WEIR_ERR_DEVICE);
    assert_ok(r.m->upload(r.d, DEV_STREAM_COPY, p[0], pinned, 10, NULL, &err));
    assert_ok(sync_stream(&r, DEV_STREAM_COPY));
    r.m->pin_free(r.d, pinned, 4096);
    rig_close(&r);
    r = rig_open((dev_sim_options){.no_register = true});
    assert_false(info_of(&r).can_register);
    assert_int_equal(r.m->pin_register(r.d, &r, 8, &err), WEIR_ERR_UNSUPPORTED);
    rig_close(&r);
    base_env *env;
    dev_device *d;
    dev_sim_options bad[] = {{.memory_bytes = 0},
                             {.memory_bytes = 1, .alignment = 3},
                             {.memory_bytes = 1, .link_bytes_per_s = -1},
                             {.memory_bytes = 1, .n_streams = 1}};
    assert_ok(base_env_create(&env, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(dev_sim_create(env, "ref", 1, &bad[i], &d, &err), WEIR_ERR_INVALID_ARGUMENT);
    base_env_destroy(env);
}

/* What creation may meet: memory refused at every point; nothing is left. */
static void creation_faults(void **state)
{
    (void)state;
    dev_sim_options o = {.memory_bytes = MIB, .strict = true};
    base_env *env;
    dev_device *d = NULL;
    uint64_t after = 0;
    assert_ok(base_env_create(&env, &err));
    for (;; after++) {
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = after, .length = -1};
        base_ledger_view v;
        assert_ok(base_fault_arm(env, &rule, &err));
        weir_status status = dev_sim_create(env, "ref", 1, &o, &d, &err);
        base_fault_clear(env);
        if (status == WEIR_OK) break;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        base_ledger_read(env, &v);
        assert_int_equal(v.bytes, 0);
    }
    assert_in_range(after, 5, 100);
    dev_destroy(d);
    base_env_destroy(env);
}

/* Copies go around; what is new or freed is poison. */
static void copies(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        rig r = rig_open((dev_sim_options){.chaos_seed = seed, .strict = seed % 2 == 1});
        uint8_t *host;
        uint8_t *a = device_alloc(&r, 70000, "a"), *b = device_alloc(&r, 70000, "b");
        dev_ticket up, within, down;
        assert_ok(r.m->pin_alloc(r.d, 140000, (void **)&host, &err));
        assert_ok(r.m->download(r.d, 2, host, a, 70000, &down, &err));
        assert_ok(r.m->sync(r.d, down, &err));
        for (int i = 0; i < 70000; i++) assert_int_equal(host[i], 0xFF);
        for (int i = 0; i < 70000; i++) host[i] = (uint8_t)(i * 7);
        assert_ok(r.m->upload(r.d, 1, a, host, 70000, &up, &err));
        assert_ok(r.m->wait_on(r.d, 2, up, &err));
        assert_ok(r.m->copy(r.d, 2, b, a, 70000, &within, &err));
        assert_ok(r.m->wait_on(r.d, 3, within, &err));
        assert_ok(r.m->download(r.d, 3, host + 70000, b, 70000, &down, &err));
        assert_ok(r.m->sync(r.d, down, &err));
        assert_true(r.m->reached(r.d, up) && r.m->reached(r.d, within) && r.m->reached(r.d, down));
        assert_true(r.m->reached(r.d, (dev_ticket){0}));
        for (int i = 0; i < 70000; i++) assert_int_equal(host[70000 + i], (uint8_t)(i * 7));
        assert_int_equal(r.m->upload(r.d, 1, a + 1, host, 70000, NULL, &err), WEIR_ERR_DEVICE);
        assert_names("70000 bytes at byte 1 of a, which has 70000");
        assert_int_equal(r.m->upload(r.d, 1, host, host, 1, NULL, &err), WEIR_ERR_DEVICE);
        assert_int_equal(r.m->upload(r.d, 9, a, host, 1, NULL, &err), WEIR_ERR_INVALID_ARGUMENT);
        r.m->free(r.d, b);
        assert_int_equal(r.m->download(r.d, 1, host, b, 1, NULL, &err), WEIR_ERR_DEVICE);
        assert_names("b, which was freed");
        r.m->pin_free(r.d, host, 140000);
        rig_close(&r);
    }
}

/* Under chaos a copy from pinned memory has not happened when the call returns: some seed shows it. */
static void copies_are_late(void **state)
{
    (void)state;
    uint32_t late = 0;
    for (uint64_t seed = 1; seed < 9; seed++) {
        rig r = rig_open((dev_sim_options){.chaos_seed = seed});
        uint8_t *host;
        void *a = device_alloc(&r, 4096, "a");
        dev_ticket t;
        assert_ok(r.m->pin_alloc(r.d, 4096, (void **)&host, &err));
        for (int i = 0; i < 20; i++) {
            assert_ok(r.m->upload(r.d, 1, a, host, 4096, &t, &err));
            late += !r.m->reached(r.d, t);
        }
        assert_ok(r.m->sync(r.d, t, &err));
        r.m->pin_free(r.d, host, 4096);
        rig_close(&r);
    }
    assert_true(late > 8);
}

static float *upload_floats(rig *r, const float *x, size_t n, const char *label)
{
    float *p = device_alloc(r, n * sizeof *x, label);
    assert_ok(r->m->upload(r->d, 1, p, x, n * sizeof *x, NULL, &err));
    assert_ok(sync_stream(r, 1));
    return p;
}

enum { K = 96, N = 40, ROWS = 3 };

static void fill(float *x, size_t n, uint64_t seed)
{
    base_rng rng;
    base_rng_seed(&rng, seed, 1);
    for (size_t i = 0; i < n; i++) x[i] = base_rng_f32(&rng) * 2 - 1;
}

static dev_op product(float *a, float *w, float *out)
{
    return (dev_op){.code = DEV_MATMUL,
                    .dtype = BASE_F32,
                    .n_rows = ROWS,
                    .cols = K,
                    .a = {a, K * sizeof(float)},
                    .w = {w, K * sizeof(float)},
                    .out = {out, N * sizeof(float)},
                    .row_end = N};
}

/* R12.1: operations are the CPU's, bit for bit, whatever the chaos. */
static void operations(void **state)
{
    (void)state;
    float a[ROWS * K], w[N * K], wanted[ROWS * N], got[ROWS * N];
    fill(a, ROWS * K, 1);
    fill(w, N * K, 2);
    base_env *env;
    dev_device *cpu;
    assert_ok(base_env_create(&env, &err));
    assert_ok(dev_cpu_create(env, "ref", 1, &cpu, &err));
    assert_ok(cpu->table->reserve_workspace(cpu, K, 16, 64, &err));
    dev_op op = product(a, w, wanted);
    assert_ok(cpu->table->run(cpu, &op, &err));
    assert_true(wanted[0] != wanted[1]);
    for (uint64_t seed = 0; seed < 6; seed++) {
        rig r = rig_open((dev_sim_options){.chaos_seed = seed, .strict = true});
        uint64_t before = info_of(&r).taken_bytes;
        assert_ok(r.d->table->reserve_workspace(r.d, K, 16, 64, &err));
        assert_true(info_of(&r).taken_bytes > before);
        float *da = upload_floats(&r, a, ROWS * K, "input"), *dw = upload_floats(&r, w, N * K, "weight");
        float *out = device_alloc(&r, sizeof got, "output");
        dev_ticket t;
        r.m->guard(r.d, dw, N * K * sizeof(float));
        r.m->open(r.d, dw, N * K * sizeof(float));
        op = product(da, dw, out);
        assert_ok(r.d->table->run(r.d, &op, &err));
        r.m->close(r.d, dw, N * K * sizeof(float));
        assert_ok(r.m->download(r.d, DEV_STREAM_COMPUTE, got, out, sizeof got, &t, &err));
        assert_ok(r.m->sync(r.d, t, &err));
        assert_memory_equal(got, wanted, sizeof got);
        rig_close(&r);
    }
    dev_destroy(cpu);
    base_env_destroy(env);
}

/* R12.2: a weight is readable only while it is open; the error names it, and the device works afterwards. */
static void strict(void **state)
{
    (void)state;
    float w[N * K], a[ROWS * K];
    fill(a, ROWS * K, 1);
    fill(w, N * K, 2);
    rig r = rig_open((dev_sim_options){.strict = true});
    assert_int_equal(info_of(&r).alignment, 4096);
    assert_ok(r.d->table->reserve_workspace(r.d, K, 16, 64, &err));
    float *dw = upload_floats(&r, w, N * K, "layer 3"), *da = upload_floats(&r, a, ROWS * K, "input");
    float *out = device_alloc(&r, ROWS * N * sizeof(float), "output");
    dev_op op = product(da, dw, out);
    assert_ok(r.d->table->run(r.d, &op, &err));
    r.m->guard(r.d, dw, sizeof w);
    assert_int_equal(r.d->table->run(r.d, &op, &err), WEIR_ERR_DEVICE);
    assert_names("matmul reads layer 3, which is not open");
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    /* By the host itself: page protection. */
    float seen = *(volatile float *)dw;
    assert_true(seen != w[0]);
    assert_int_equal(sync_stream(&r, DEV_STREAM_COMPUTE), WEIR_ERR_DEVICE);
    assert_names("layer 3 was accessed at byte 0 while it was not open");
    assert_int_equal(sync_stream(&r, DEV_STREAM_COMPUTE), WEIR_ERR_DEVICE); /* stays */
    assert_ok(r.m->recover(r.d, &err));
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    /* Opened twice, closed once: still there. */
    r.m->open(r.d, dw, sizeof w);
    r.m->open(r.d, dw, sizeof w);
    r.m->close(r.d, dw, sizeof w);
    assert_ok(r.d->table->run(r.d, &op, &err));
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    assert_true(*(volatile float *)dw == w[0]);
    r.m->close(r.d, dw, sizeof w);
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    /* After it was freed. */
    r.m->free(r.d, dw);
    assert_int_equal(r.d->table->run(r.d, &op, &err), WEIR_ERR_DEVICE);
    assert_names("layer 3, which was freed");
    seen = *(volatile float *)dw;
    assert_int_equal(sync_stream(&r, DEV_STREAM_COMPUTE), WEIR_ERR_DEVICE);
    assert_names("layer 3 was accessed at byte 0 after it was freed");
    assert_ok(r.m->recover(r.d, &err));
    rig_close(&r);
}

static void past_the_end(const dev_arg *args, size_t begin, size_t end)
{
    volatile const float *x = args[0].as.address;
    float *y = args[1].as.address;
    for (size_t i = begin; i < end; i++) y[i % 8] = x[i] * args[2].as.f32;
}

/* R12.2: an engine's own kernel that runs over the end meets the closed page behind it. */
static void kernels(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    dev_kernel k = {.name = "scale", .c = past_the_end};
    rig r = rig_open((dev_sim_options){.strict = true, .chaos_seed = 3});
    dev_arg args[3] = {{.kind = DEV_ARG_ADDRESS}, {.kind = DEV_ARG_ADDRESS}, {.kind = DEV_ARG_F32}};
    args[0].as.address = upload_floats(&r, x, 8, "x");
    args[1].as.address = device_alloc(&r, sizeof y, "y");
    args[2].as.f32 = 3;
    assert_ok(r.m->launch(r.d, &k, args, 3, 8, &err));
    assert_ok(r.m->download(r.d, DEV_STREAM_COMPUTE, y, args[1].as.address, sizeof y, NULL, &err));
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    for (int i = 0; i < 8; i++) assert_true(y[i] == x[i] * 3);
    assert_ok(r.m->launch(r.d, &k, args, 3, 5000, &err));
    assert_int_equal(sync_stream(&r, DEV_STREAM_COMPUTE), WEIR_ERR_DEVICE);
    assert_names("before it is x");
    assert_ok(r.m->recover(r.d, &err));
    base_fault_rule rule = {.site = BASE_FAULT_KERNEL_BUILD, .length = -1};
    assert_ok(base_fault_arm(r.env, &rule, &err));
    assert_int_equal(r.m->launch(r.d, &k, args, 3, 8, &err), WEIR_ERR_DEVICE);
    k.c = NULL;
    assert_int_equal(r.m->launch(r.d, &k, args, 3, 8, &err), WEIR_ERR_UNSUPPORTED);
    r.m->guard(r.d, args[0].as.address, sizeof x);
    k.c = past_the_end;
    assert_int_equal(r.m->launch(r.d, &k, args, 3, 8, &err), WEIR_ERR_DEVICE);
    assert_names("scale reads x, which is not open");
    rig_close(&r);
}

/* A failure stays with its stream and goes to those that waited for it, until recover. */
static void sticky_errors(void **state)
{
    (void)state;
    rig r = rig_open((dev_sim_options){.chaos_seed = 5});
    float *a = device_alloc(&r, K * sizeof(float), "a");
    dev_op op = {.code = DEV_MATMUL, .dtype = BASE_F32, .n_rows = 1, .cols = K, .row_end = 1};
    dev_ticket t;
    op.a = op.w = op.out = (dev_view){a, K * sizeof(float)};
    assert_ok(r.d->table->run(r.d, &op, &err)); /* no work space: found when it runs */
    assert_ok(r.m->mark(r.d, DEV_STREAM_COMPUTE, &t, &err));
    assert_ok(sync_stream(&r, 1));
    assert_ok(r.m->wait_on(r.d, 1, t, &err));
    assert_int_equal(sync_stream(&r, 1), WEIR_ERR_INTERNAL);
    assert_int_equal(r.m->sync(r.d, t, &err), WEIR_ERR_INTERNAL);
    assert_names("work space");
    assert_ok(r.m->recover(r.d, &err));
    assert_ok(sync_stream(&r, 1));
    assert_ok(sync_stream(&r, DEV_STREAM_COMPUTE));
    rig_close(&r);
}

/* Many allocations of many sizes: sums hold, live ones keep their bytes, addresses come around again. */
static void allocations(void **state)
{
    (void)state;
    enum { SLOTS = 24, ROUNDS = 3000 };
    for (uint64_t seed = 1; seed <= 2; seed++) {
        rig r = rig_open((dev_sim_options){.memory_bytes = 4 * MIB, .strict = seed == 2});
        struct {
            uint8_t *p;
            uint64_t bytes;
            uint8_t value;
        } slot[SLOTS] = {0};
        uint8_t *host;
        uint64_t live = 0, refused = 0;
        base_rng rng;
        base_rng_seed(&rng, seed, 7);
        assert_ok(r.m->pin_alloc(r.d, MIB, (void **)&host, &err));
        for (int i = 0; i < ROUNDS; i++) {
            uint32_t s = base_rng_u32(&rng) % SLOTS;
            uint64_t unit = info_of(&r).alignment;
            if (slot[s].p != NULL) {
                assert_ok(r.m->download(r.d, 2, host, slot[s].p + slot[s].bytes - 1, 1, NULL, &err));
                assert_ok(sync_stream(&r, 2));
                assert_int_equal(host[0], slot[s].value);
                r.m->free(r.d, slot[s].p);
                live -= base_align_up(slot[s].bytes, unit);
                slot[s].p = NULL;
                continue;
            }
            slot[s].bytes = 1 + base_rng_u32(&rng) % (512 << 10);
            void *p = NULL;
            if (r.m->alloc(r.d, slot[s].bytes, "slot", &p, &err) != WEIR_OK) {
                assert_true(live + base_align_up(slot[s].bytes, unit) > 4 * MIB);
                refused++;
                continue;
            }
            live += base_align_up(slot[s].bytes, unit);
            assert_int_equal(info_of(&r).taken_bytes, live);
            slot[s].p = p;
            slot[s].value = (uint8_t)i;
            host[0] = slot[s].value;
            assert_ok(r.m->upload(r.d, 1, slot[s].p + slot[s].bytes - 1, host, 1, NULL, &err));
            assert_ok(sync_stream(&r, 1));
        }
        assert_true(refused > 10);
        r.m->pin_free(r.d, host, MIB);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),       cmocka_unit_test(refusals),        cmocka_unit_test(creation_faults),
        cmocka_unit_test(copies),      cmocka_unit_test(copies_are_late), cmocka_unit_test(operations),
        cmocka_unit_test(strict),      cmocka_unit_test(kernels),         cmocka_unit_test(sticky_errors),
        cmocka_unit_test(allocations),
    };
    return cmocka_run_group_tests_name("devices: simulated", tests, NULL, NULL);
}
