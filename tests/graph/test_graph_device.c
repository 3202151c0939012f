/* Random programs on devices with memory of their own: the planner's overlap oracle (R15.2) holds there, and
 * the results are the CPU's bit for bit, with activations sharing memory or not, weights resident or
 * streaming (R1.1, R15.2), on the strict simulated device under chaos and on the first OpenCL device. */
#include "graph_test.h"

#define N_SEEDS     10
#define N_POSITIONS 12

static uint64_t expected[N_SEEDS];

/* On the CPU, nothing shared, one position at a time. */
static int compute_expected(void **state)
{
    (void)state;
    expect_all(expected, N_SEEDS, N_POSITIONS);
    return 0;
}

/* The fixture with its weights and caches on a device; what it had in host memory is kept for the end. */
typedef struct moved {
    fixture f;
    dev_device *cpu, *gpu;
    mem_manager *manager;
    mem_source *source;
    dev_kv kv[MAX_LAYERS][N_SEQUENCES];
    uint64_t k_bytes, v_bytes;
} moved;

static void move_to(moved *m, dev_device *gpu, bool none)
{
    fixture *f = &m->f;
    const base_aio_options aio = {.backend = BASE_AIO_AUTO, .depth = 8};
    mem_policy policy;
    mem_policy_init(&policy);
    policy.vram_mode = none ? MEM_VRAM_NONE : MEM_VRAM_AUTO;
    policy.vram_reserve_bytes = 0;
    mem_unplace(f->c);
    assert_status(f, mem_place_rows(f->c, &aio, &f->err), WEIR_OK);
    assert_status(f, mem_manager_create(f->env, gpu, &policy, NULL, &m->manager, &f->err), WEIR_OK);
    assert_status(f, mem_source_create(f->c, m->manager, "test", "program", &m->source, &f->err), WEIR_OK);
    mem_handle_limit_copies(mem_source_handle(m->source), none ? 1 << 20 : 0, true);
    m->cpu = f->dev;
    m->gpu = f->dev = gpu;
    memcpy(m->kv, f->kv, sizeof m->kv);
    gpu->table->kv_bytes(gpu, BASE_F16, CONTEXT, N_KV_HEADS, HEAD_DIM, &m->k_bytes, &m->v_bytes);
    for (int l = 0; l < MAX_LAYERS; l++)
        for (int s = 0; s < N_SEQUENCES; s++) {
            dev_kv *kv = &f->kv[l][s];
            assert_status(f, mem_source_alloc(m->source, m->k_bytes, "k", &kv->k, &f->err), WEIR_OK);
            assert_status(f, mem_source_alloc(m->source, m->v_bytes, "v", &kv->v, &f->err), WEIR_OK);
        }
}

static void move_back(moved *m)
{
    fixture *f = &m->f;
    for (int l = 0; l < MAX_LAYERS; l++)
        for (int s = 0; s < N_SEQUENCES; s++) {
            mem_source_free(m->source, f->kv[l][s].k);
            mem_source_free(m->source, f->kv[l][s].v);
        }
    mem_source_destroy(m->source);
    mem_manager_destroy(m->manager);
    dev_destroy(m->gpu);
    memcpy(f->kv, m->kv, sizeof m->kv);
    f->dev = m->cpu;
    fixture_close(f);
}

typedef struct span {
    uint64_t offset, bytes;
    uint32_t first, last;
} span;

/* What lives together lies apart, and on what the device asks of its views. */
static void check_spans(uint64_t seed, const graph_program *p)
{
    static span spans[1024];
    graph_info info;
    uint32_t n = 0;
    graph_program_info(p, &info);
    while (n < 1024 &&
           graph_tensor_span(p, n, &spans[n].offset, &spans[n].bytes, &spans[n].first, &spans[n].last))
        n++;
    assert_true(n == info.n_tensors && n > 5);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) {
            const span *a = &spans[i], *b = &spans[j];
            bool together = a->first <= b->last && b->first <= a->last;
            bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
            if (together && !apart)
                fail_msg("seed %llu: tensors %u and %u overlap", (unsigned long long)seed, i, j);
        }
}

static void check_all(moved *m, uint64_t n_seeds, const char *where)
{
    uint64_t saved = 0;
    for (uint64_t s = 0; s < n_seeds; s++)
        for (int alias = 0; alias < 2; alias++) {
            graph_options o = {.max_rows = MAX_ROWS, .max_outputs = MAX_ROWS, .alias = alias != 0};
            fixture *f = &m->f;
            graph_info info;
            graph_program *p;
            assert_status(f, graph_program_create(f->env, f->dev, f->c, &o, &p, &f->err), WEIR_OK);
            assert_status(f, graph_finish(p, draw_program(f, p, s), &f->err), WEIR_OK);
            graph_use_source(p, m->source);
            assert_status(f, graph_reserve(p, CONTEXT, HEAD_DIM, &f->err), WEIR_OK);
            check_spans(s, p);
            graph_program_info(p, &info);
            if (alias == 0) assert_true(info.arena_bytes >= info.unaliased_bytes);
            if (alias != 0) saved += info.unaliased_bytes - info.arena_bytes;
            if (run_all(f, p, N_POSITIONS, 4, true) != expected[s])
                fail_msg("%s, seed %llu, alias %d: other bits than the CPU's", where, (unsigned long long)s,
                         alias);
            graph_program_destroy(p);
        }
    assert_true(saved > 100000);
}

static void on_the_simulated_device(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        moved m;
        dev_device *gpu;
        const dev_sim_options o = {
            .memory_bytes = UINT64_C(64) << 20, .strict = true, .chaos_seed = seed, .alignment = 256};
        fixture_open(&m.f, 1, false);
        assert_status(&m.f, dev_sim_create(m.f.env, "auto", 1, &o, &gpu, &m.f.err), WEIR_OK);
        move_to(&m, gpu, seed % 2 != 0);
        check_all(&m, N_SEEDS, seed % 2 != 0 ? "simulated, none" : "simulated, whole");
        move_back(&m);
    }
}

static void on_opencl(void **state)
{
    char note[256];
    uint32_t n = 0;
    (void)state;
    for (int none = 0; none < 2; none++) {
        moved m;
        dev_device *gpu;
        dev_opencl_info info;
        fixture_open(&m.f, 1, false);
        assert_status(&m.f, dev_opencl_list(m.f.env, &info, 1, &n, note, sizeof note, &m.f.err), WEIR_OK);
        if (n == 0) {
            assert_int_not_equal(access("/etc/OpenCL/vendors/pocl.icd", F_OK), 0);
            fixture_close(&m.f);
            skip();
        }
        assert_status(&m.f, dev_opencl_create(m.f.env, 0, "", &gpu, &m.f.err), WEIR_OK);
        move_to(&m, gpu, none != 0);
        check_all(&m, N_SEEDS, none ? "OpenCL, none" : "OpenCL, whole");
        move_back(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_the_simulated_device),
        cmocka_unit_test(on_opencl),
    };
    return cmocka_run_group_tests_name("programs on devices", tests, compute_expected, NULL);
}
