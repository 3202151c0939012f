/* Attention of several rows at once: every kernel set gives the bits that ref gives row by row, whatever the
 * rows see in common: causal edges, windows, rings that wrap around, group sizes, lengths beside the segment
 * and block limits. */
#include "kern_test.h"

typedef struct rows_case {
    uint32_t n_heads, n_kv_heads, head_dim, last, n_rows, window, capacity, dtype;
    float softcap;
} rows_case;

typedef struct world {
    kern_kv kv;
    float *q, *want, *got;
    size_t q_stride, out_stride;
    uint64_t checked;
} world;

static void open_world(world *w, const rows_case *c, test_rng *rng)
{
    size_t n_kv = (size_t)c->n_kv_heads * c->head_dim, n = (size_t)c->n_heads * c->head_dim;
    size_t bytes = (c->capacity * n_kv * (c->dtype == BASE_F16 ? 2 : 4) + 63) / 64 * 64;
    float *row = malloc(2 * n_kv * sizeof(float));
    const kern_table *ref;
    assert_int_equal(kern_select("ref", &ref, NULL), WEIR_OK);
    *w = (world){.kv = {aligned_alloc(64, bytes), aligned_alloc(64, bytes), c->dtype, c->capacity},
                 .q_stride = n + 16,
                 .out_stride = n + 3};
    memset(w->kv.k, 0xff, bytes); /* NaN: what nobody stored must not count */
    memset(w->kv.v, 0xff, bytes);
    uint32_t end = c->last + c->n_rows, from = end > c->capacity ? end - c->capacity : 0;
    for (uint32_t p = from; p < end; p++) {
        fill_floats(rng, PLAIN, row, 2 * n_kv);
        if (p % 97 == 13) row[n_kv] = INFINITY; /* a value that no row may see before its time */
        ref->kv_store(&w->kv, c->n_kv_heads, c->head_dim, p, row, row + n_kv);
    }
    w->q = malloc(c->n_rows * w->q_stride * sizeof(float));
    w->want = malloc(c->n_rows * w->out_stride * sizeof(float));
    w->got = malloc(c->n_rows * w->out_stride * sizeof(float));
    fill_floats(rng, PLAIN, w->q, c->n_rows * w->q_stride);
    free(row);
}
static void close_world(world *w)
{
    free(w->kv.k), free(w->kv.v), free(w->q), free(w->want), free(w->got);
}

static kern_attention call(const world *w, const rows_case *c, float *out)
{
    return (kern_attention){.q = w->q,
                            .out = out,
                            .kv = &w->kv,
                            .n_heads = c->n_heads,
                            .n_kv_heads = c->n_kv_heads,
                            .head_dim = c->head_dim,
                            .last = c->last,
                            .scale = 0.11f,
                            .softcap = c->softcap,
                            .n_rows = c->n_rows,
                            .window = c->window,
                            .q_stride = w->q_stride,
                            .out_stride = w->out_stride};
}

/* Each row as a call of its own, with the range said outright. */
static void row_by_row(const world *w, const rows_case *c, void *scratch)
{
    const kern_table *ref;
    assert_int_equal(kern_select("ref", &ref, NULL), WEIR_OK);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        kern_attention a = call(w, c, w->want + r * w->out_stride);
        a.q += r * w->q_stride;
        a.last += r;
        a.first = c->window != 0 && a.last + 1 > c->window ? a.last + 1 - c->window : 0;
        a.n_rows = 1;
        a.window = 0;
        ref->attention(&a, 0, c->n_heads, scratch);
    }
}

static uint64_t check(rows_case c, test_rng *rng)
{
    world w;
    uint64_t checked = 0;
    size_t n = (size_t)c.n_heads * c.head_dim;
    open_world(&w, &c, rng);
    void *scratch = aligned_alloc(64, kern_attention_scratch_bytes(c.last + c.n_rows, c.head_dim));
    memset(w.want, 0, c.n_rows * w.out_stride * sizeof(float));
    row_by_row(&w, &c, scratch);
    for (const char *const *name = kern_available(); *name; name++) {
        const kern_table *t;
        assert_int_equal(kern_select(*name, &t, NULL), WEIR_OK);
        memset(w.got, 0, c.n_rows * w.out_stride * sizeof(float));
        kern_attention a = call(&w, &c, w.got);
        uint32_t cut = (uint32_t)(rng_next(rng) % (c.n_heads + 1)); /* heads split anywhere */
        t->attention(&a, 0, cut, scratch);
        t->attention(&a, cut, c.n_heads, scratch);
        for (uint32_t r = 0; r < c.n_rows; r++)
            for (size_t i = 0; i < w.out_stride; i++) {
                float x = w.want[r * w.out_stride + i], y = w.got[r * w.out_stride + i];
                if (memcmp(&x, &y, 4) != 0 && !(isnan(x) && isnan(y)))
                    fail_msg("%s: %u/%u heads of %u, row %u of %u from %u, window %u, capacity %u: element "
                             "%zu of %zu "
                             "is %a, wanted %a",
                             *name, c.n_heads, c.n_kv_heads, c.head_dim, r, c.n_rows, c.last, c.window,
                             c.capacity, i, n, (double)y, (double)x);
                checked += i < n && !isnan(x) && x != 0;
            }
    }
    free(scratch);
    close_world(&w);
    return checked;
}

static rows_case plain(uint32_t shared, uint32_t n_kv_heads, uint32_t head_dim, uint32_t last,
                       uint32_t n_rows, uint32_t dtype)
{
    return (rows_case){
        shared * n_kv_heads, n_kv_heads, head_dim, last, n_rows, 0, (last + n_rows + 15) / 16 * 16, dtype, 0};
}

static void groups_and_heads(void **state)
{
    static const uint32_t dims[] = {2, 18, 64, 80, 96, 128, 256};
    test_rng rng = {41};
    uint64_t checked = 0;
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++)
        for (uint32_t shared = 1; shared <= 8; shared++) {
            uint32_t rows = 1 + rng_below(&rng, 30), last = rng_below(&rng, 80);
            checked += check(
                plain(shared, 1 + shared % 2, dims[d], last, rows, shared % 2 ? BASE_F16 : BASE_F32), &rng);
        }
    checked += check(plain(30, 1, 16, 20, 3, BASE_F16), &rng); /* more heads than go together */
    assert_true(checked > 100000);
}

static void lengths_at_limits(void **state)
{
    static const uint32_t contexts[] = {1, 2, 16, 17, 511, 512, 513, 2047};
    test_rng rng = {42};
    uint64_t checked = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(contexts); i++)
        for (uint32_t rows = 1; rows <= 9; rows += 4) {
            uint32_t n = contexts[i] >= rows ? contexts[i] : rows; /* the last row sees so many */
            checked +=
                check(plain(3, 1, i % 2 ? 20 : 32, n - rows, rows, rows == 5 ? BASE_F32 : BASE_F16), &rng);
        }
    assert_true(checked > 5000);
}

/* Rows of a window see different beginnings too; the ring is as small as it may be, and goes round. */
static void windows_and_rings(void **state)
{
    static const uint32_t windows[] = {1, 5, 16, 48, 500, 512};
    test_rng rng = {43};
    uint64_t checked = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(windows); i++)
        for (uint32_t last = 0; last < 1100; last += 183) {
            uint32_t rows = 1 + rng_below(&rng, 28);
            rows_case c = plain(1 + last % 5, 2, 24, last, rows, i % 2 ? BASE_F16 : BASE_F32);
            c.window = windows[i];
            c.capacity = (windows[i] + rows + 15) / 16 * 16;
            c.softcap = last % 2 ? 2.5f : 0;
            checked += check(c, &rng);
        }
    assert_true(checked > 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_and_heads),
        cmocka_unit_test(lengths_at_limits),
        cmocka_unit_test(windows_and_rings),
    };
    return cmocka_run_group_tests_name("attention of several rows", tests, NULL, NULL);
}
