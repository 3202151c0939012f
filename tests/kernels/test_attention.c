/* Attention and the cache, every kernel set of this machine, against double precision computed from the very
 * numbers that were stored.
 *
 * The bound. u = 2^-24. A score is a chain of head_dim fused steps over terms of sum A, and qs is rounded:
 * |ds| <= u (head_dim + 1) A; with a soft cap c 6 u c more (division, tanh within 1.4 ulp, product). e =
 * exp(s - m) has the relative error E = 2 ds + u |s - m| + 2 u. Numerator and sum each carry E, the chains of
 * at most 512 steps and the few additions between them the rest: |error| <= (2 E + u (chain + segments + n /
 * 16 + 6)) x sum e |v| / sum e. */
#include "kern_test.h"

#define U 0x1p-24

typedef struct world {
    test_rng rng;
    kern_kv kv;
    kern_attention a;
    float *q, *out, *k, *v; /* k, v: [positions][n_kv_heads][head_dim] as stored */
    size_t n_kv;
    void *scratch;
} world;

static void make_world(world *w, kern_attention a, uint32_t dtype, uint32_t capacity, uint64_t seed)
{
    size_t element = dtype == BASE_F16 ? 2 : 4, n = (size_t)a.n_heads * a.head_dim;
    w->rng = (test_rng){seed};
    w->n_kv = (size_t)a.n_kv_heads * a.head_dim;
    w->kv.dtype = dtype;
    w->kv.capacity = capacity;
    w->kv.k = aligned_alloc(64, (capacity * w->n_kv * element + 63) / 64 * 64);
    w->kv.v = aligned_alloc(64, (capacity * w->n_kv * element + 63) / 64 * 64);
    memset(w->kv.k, 0xff, capacity * w->n_kv * element); /* NaN: a position that was not stored would show */
    memset(w->kv.v, 0xff, capacity * w->n_kv * element);
    w->q = malloc(n * sizeof(float));
    w->out = malloc(n * sizeof(float));
    w->k = malloc((a.last + 1) * w->n_kv * sizeof(float));
    w->v = malloc((a.last + 1) * w->n_kv * sizeof(float));
    fill_floats(&w->rng, PLAIN, w->q, n);
    fill_floats(&w->rng, PLAIN, w->k, (a.last + 1) * w->n_kv);
    fill_floats(&w->rng, PLAIN, w->v, (a.last + 1) * w->n_kv);
    size_t bytes = kern_attention_scratch_bytes(a.last - a.first + 1, a.head_dim);
    w->scratch = aligned_alloc(64, bytes);
    w->a = a;
    w->a.q = w->q;
    w->a.out = w->out;
    w->a.kv = &w->kv;
}
static void free_world(world *w)
{
    free(w->kv.k), free(w->kv.v), free(w->q), free(w->out), free(w->k), free(w->v), free(w->scratch);
}

/* Stores all positions from 0 on, as a sequence does, so that a small cache goes round; then rounds our copy.
 */
static void store_all(world *w, const kern_table *t)
{
    for (uint32_t p = 0; p <= w->a.last; p++)
        t->kv_store(&w->kv, w->a.n_kv_heads, w->a.head_dim, p, w->k + p * w->n_kv, w->v + p * w->n_kv);
    if (w->kv.dtype != BASE_F16) return;
    for (size_t i = 0; i < (w->a.last + 1) * w->n_kv; i++) {
        w->k[i] = kern_f32_from_f16(kern_f16_from_f32(w->k[i]));
        w->v[i] = kern_f32_from_f16(kern_f16_from_f32(w->v[i]));
    }
}

/* Scores of one head in double; returns the bound of their errors. */
static double scores(const world *w, uint32_t head, double *s)
{
    const kern_attention *a = &w->a;
    uint32_t kv_head = head / (a->n_heads / a->n_kv_heads);
    double largest = 0;
    for (uint32_t p = a->first; p <= a->last; p++) {
        const float *k = w->k + p * w->n_kv + (size_t)kv_head * a->head_dim;
        double sum = 0, magnitude = 0;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            double term = (double)w->q[(size_t)head * a->head_dim + d] * a->scale * k[d];
            sum += term;
            magnitude += fabs(term);
        }
        s[p - a->first] = a->softcap != 0 ? a->softcap * tanh(sum / a->softcap) : sum;
        largest = fmax(largest, magnitude);
    }
    return U * ((a->head_dim + 1) * largest + 6 * fabs((double)a->softcap));
}

static double check_head(const world *w, uint32_t head, const char *set)
{
    const kern_attention *a = &w->a;
    uint32_t n = a->last - a->first + 1, kv_head = head / (a->n_heads / a->n_kv_heads);
    double *s = malloc(n * sizeof(double)), sum = 0, max = -INFINITY, min = INFINITY, worst = 0;
    double ds = scores(w, head, s);
    for (uint32_t i = 0; i < n; i++) max = fmax(max, s[i]), min = fmin(min, s[i]);
    for (uint32_t i = 0; i < n; i++) sum += s[i] = exp(s[i] - max);
    double e = 2 * ds + U * (max - min) + 2 * U;
    double rest = U * ((n < 512 ? n : 512) + n / 512 + n / 16 + 8);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        double total = 0, magnitude = 0;
        for (uint32_t i = 0; i < n; i++) {
            double term = s[i] * w->v[(a->first + i) * w->n_kv + (size_t)kv_head * a->head_dim + d];
            total += term;
            magnitude += fabs(term);
        }
        double got = w->out[(size_t)head * a->head_dim + d], limit = (2 * e + rest) * magnitude / sum * 1.001;
        if (!(fabs(got - total / sum) <= limit))
            fail_msg("%s: head %u element %u of [%u, %u]: wanted %.9g +- %.3g, got %.9g", set, head, d,
                     a->first, a->last, total / sum, limit, got);
        worst = fmax(worst, fabs(got - total / sum) / limit);
    }
    free(s);
    return worst;
}

static double run(kern_attention a, uint32_t dtype, uint32_t capacity)
{
    double worst = 0;
    for (const char *const *name = kern_available(); *name; name++) {
        const kern_table *t;
        world w;
        assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
        make_world(&w, a, dtype, capacity, a.last + 7 * a.head_dim);
        store_all(&w, t);
        t->attention(&w.a, 0, a.n_heads, w.scratch);
        for (uint32_t h = 0; h < a.n_heads; h++) worst = fmax(worst, check_head(&w, h, *name));
        free_world(&w);
    }
    return worst;
}

static kern_attention shape(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t first,
                            uint32_t last)
{
    return (kern_attention){.n_heads = n_heads,
                            .n_kv_heads = n_kv_heads,
                            .head_dim = head_dim,
                            .first = first,
                            .last = last,
                            .scale = 1.0f / sqrtf((float)head_dim),
                            .n_rows = 1};
}

static void test_shapes(void **state)
{
    double worst = 0;
    (void)state;
    for (int half = 0; half < 2; half++) {
        uint32_t dtype = half ? BASE_F16 : BASE_F32;
        worst = fmax(worst, run(shape(1, 1, 2, 0, 4), dtype, 16));
        worst = fmax(worst, run(shape(9, 3, 64, 0, 40), dtype, 48));
        worst = fmax(worst, run(shape(4, 1, 256, 0, 99), dtype, 112));
        worst = fmax(worst, run(shape(4, 4, 18, 0, 700), dtype, 704));
        worst = fmax(worst, run(shape(2, 1, 80, 0, 1600), dtype, 1600 + 16));
    }
    print_message("worst error is %.3f of the bound\n", worst);
    assert_true(worst > 0.02);
}

/* A window: first > 0, and a cache that holds little more than the window. */
static void test_window_and_ring(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        uint32_t dtype = half ? BASE_F16 : BASE_F32;
        run(shape(4, 2, 32, 33, 64), dtype, 80);      /* a window, nothing overwritten */
        run(shape(4, 2, 32, 333, 364), dtype, 32);    /* window = capacity, around many times */
        run(shape(4, 2, 32, 1000, 1600), dtype, 608); /* over two segment limits */
        run(shape(4, 2, 20, 511, 512), dtype, 16);
    }
}

static void test_softcap(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        kern_attention a = shape(4, 2, 48, 3, 120);
        a.softcap = i < 2 ? 50.0f : 1.5f; /* hardly and strongly capped */
        a.scale *= 3.0f;
        run(a, i % 2 ? BASE_F16 : BASE_F32, 128);
    }
}

/* One position: its weight is exactly one, so the output is its value. */
static void test_single_position(void **state)
{
    (void)state;
    for (uint32_t p = 0; p < 1030; p += 103) {
        const kern_table *t;
        world w;
        assert_int_equal(kern_select("ref", &t, NULL), WEIR_OK);
        make_world(&w, shape(3, 1, 10, p, p), p % 2 ? BASE_F16 : BASE_F32, 16, p);
        store_all(&w, t);
        t->attention(&w.a, 0, 3, w.scratch);
        for (int i = 0; i < 30; i++) assert_true(w.out[i] == w.v[p * 10 + i % 10]);
        free_world(&w);
    }
}

/* A score more than 64 below the largest weighs nothing, however large its value (docs/numerics.md). */
static void test_far_scores(void **state)
{
    (void)state;
    static const struct {
        float gap, least, most;
    } cases[] = {{63.5f, 200.0f, 400.0f}, {64.5f, 1.0f, 1.0f}, {90.0f, 1.0f, 1.0f}};
    for (const char *const *name = kern_available(); *name; name++) {
        const kern_table *t;
        assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            world w;
            make_world(&w, shape(1, 1, 16, 0, 1), BASE_F32, 16, i);
            w.a.scale = 1.0f;
            for (int d = 0; d < 16; d++) {
                w.q[d] = d == 0;
                w.k[d] = 70.0f, w.k[16 + d] = 70.0f - cases[i].gap;
                w.v[d] = 1.0f, w.v[16 + d] = 1e30f;
            }
            store_all(&w, t);
            t->attention(&w.a, 0, 1, w.scratch);
            for (int d = 0; d < 16; d++) assert_true(w.out[d] >= cases[i].least && w.out[d] <= cases[i].most);
            free_world(&w);
        }
    }
}

/* The cache lies as kernels.h says. */
static void test_layout(void **state)
{
    (void)state;
    for (const char *const *name = kern_available(); *name; name++) {
        const kern_table *t;
        float k[12], v[12];
        uint16_t kc[32 * 12], vc[32 * 12];
        kern_kv kv = {kc, vc, BASE_F16, 32};
        assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
        for (uint32_t p = 0; p < 32; p++) {
            for (int i = 0; i < 12; i++) k[i] = (float)(p * 12 + i), v[i] = -(float)(p * 12 + i);
            t->kv_store(&kv, 2, 6, p + 64, k, v);
        }
        for (uint32_t p = 0; p < 32; p++)
            for (uint32_t h = 0; h < 2; h++)
                for (uint32_t d = 0; d < 6; d++) {
                    float want = (float)(p * 12 + h * 6 + d);
                    assert_true(kern_f32_from_f16(kc[((p / 16 * 2 + h) * 6 + d) * 16 + p % 16]) == want);
                    assert_true(kern_f32_from_f16(vc[(p * 2 + h) * 6 + d]) == -want);
                }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_window_and_ring),
        cmocka_unit_test(test_softcap),    cmocka_unit_test(test_single_position),
        cmocka_unit_test(test_far_scores), cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
