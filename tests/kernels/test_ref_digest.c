/* The bits of the reference itself: digests of its results over seeded inputs. A change here changes every
 * result of Weir; whoever means to do that changes docs/numerics.md, and then these numbers. They hold for
 * any compiler. */
#include "kern_test.h"

typedef struct digest {
    uint64_t hash; /* FNV-1a over the bits, every NaN counted as one */
    size_t n, finite;
} digest;

static void add_floats(digest *d, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = x[i] != x[i] ? 0x7fc00000u : bits_of_float(x[i]);
        for (int b = 0; b < 32; b += 8) d->hash = (d->hash ^ (bits >> b & 255)) * 0x100000001b3u;
        d->finite += isfinite(x[i]) && x[i] != 0.0f;
    }
    d->n += n;
}
static void check(const char *name, digest d, uint64_t want)
{
    assert_true(d.n > 0 && d.finite > d.n / 4);
    if (d.hash != want) {
        print_error("%s: digest of %zu numbers is 0x%016llx, wanted 0x%016llx\n", name, d.n,
                    (unsigned long long)d.hash, (unsigned long long)want);
        fail();
    }
}
static digest start(void)
{
    return (digest){.hash = 0xcbf29ce484222325u};
}
static const kern_table *ref_table(void)
{
    const kern_table *t;
    assert_int_equal(kern_select("ref", &t, NULL), WEIR_OK);
    return t;
}

static void test_products(void **state)
{
    digest d = start();
    test_rng r = {1};
    enum { ROWS = 5, TOKENS = 3, BLOCKS = 3 };
    (void)state;
    for (size_t i = 0; i < COUNT(test_dtypes); i++) {
        const base_dtype_info *info = base_dtype_get(test_dtypes[i]);
        size_t k = BLOCKS * (info->block_elements == 1 ? 25u : info->block_elements);
        kern_act act = kern_act_for(test_dtypes[i]);
        uint64_t row_bytes;
        float x[768], out[ROWS * TOKENS];
        assert_true(base_dtype_row_bytes(test_dtypes[i], k, &row_bytes));
        uint8_t *w = malloc(row_bytes * ROWS);
        size_t stride = kern_act_row_bytes(act, k);
        char *a = aligned_alloc(64, stride * TOKENS);
        fill_weights(&r, PLAIN, test_dtypes[i], w, k * ROWS);
        for (size_t t = 0; t < TOKENS; t++) {
            fill_floats(&r, PLAIN, x, k);
            if (act == KERN_ACT_F32)
                memcpy(a + t * stride, x, k * 4);
            else
                ref_table()->quantize(act, x, k, a + t * stride);
        }
        kern_matmul m = {test_dtypes[i], w, row_bytes, k, a, stride, TOKENS, out, ROWS, NULL, 0};
        ref_table()->matmul(&m, 0, ROWS, NULL);
        add_floats(&d, out, COUNT(out));
        free(w), free(a);
    }
    check("products", d, 0x2ff9fed9c7e1a626u);
}

static void test_vectors(void **state)
{
    enum { N = 4096 };
    digest d = start();
    test_rng r = {2};
    float x[N], w[N], y[N], table[64];
    double freq[32];
    const kern_table *t = ref_table();
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        fill_floats(&r, mode, x, N), fill_floats(&r, mode, w, N);
        t->glu(KERN_GLU_SILU, x, w, N, y), add_floats(&d, y, N);
        t->glu(KERN_GLU_GELU, x, w, N, y), add_floats(&d, y, N);
        t->rms_norm(x, w, 1.0f, 1e-6f, 1001, y), add_floats(&d, y, 1001);
        memcpy(y, x, sizeof y);
        t->softcap(y, N, 30.0f), add_floats(&d, y, N);
        float sum = t->softmax(w, 1000, 1.25f, y);
        if (mode == 0) add_floats(&d, y, 1000), add_floats(&d, &sum, 1);
        for (int i = 0; i < 32; i++) freq[i] = kern_pow(10000.0, -i / 32.0);
        kern_rope_table(12345, freq, 32, 1.0, table), add_floats(&d, table, 64);
        t->rope(x, 8, 128, 64, table, mode), add_floats(&d, x, 1024);
    }
    check("vectors", d, 0x0fc9ecf80b826fd9u);
}

static void test_attention(void **state)
{
    enum { HEADS = 4, KV_HEADS = 2, DIM = 24, POSITIONS = 1200, CAPACITY = 640 };
    digest d = start();
    test_rng r = {3};
    float q[HEADS * DIM], out[HEADS * DIM], row[2 * KV_HEADS * DIM];
    (void)state;
    for (int half = 0; half < 2; half++) {
        size_t bytes = (size_t)CAPACITY * KV_HEADS * DIM * (half ? 2 : 4);
        kern_kv kv = {aligned_alloc(64, bytes), aligned_alloc(64, bytes), half ? BASE_F16 : BASE_F32,
                      CAPACITY};
        void *scratch = aligned_alloc(64, kern_attention_scratch_bytes(CAPACITY, DIM));
        for (uint32_t p = 0; p < POSITIONS; p++) {
            fill_floats(&r, PLAIN, row, COUNT(row));
            ref_table()->kv_store(&kv, KV_HEADS, DIM, p, row, row + KV_HEADS * DIM);
        }
        fill_floats(&r, PLAIN, q, COUNT(q));
        kern_attention a = {q,
                            out,
                            &kv,
                            HEADS,
                            KV_HEADS,
                            DIM,
                            POSITIONS - 630,
                            POSITIONS - 1,
                            0.2f,
                            half ? 20.0f : 0,
                            .n_rows = 1};
        ref_table()->attention(&a, 0, HEADS, scratch);
        add_floats(&d, out, COUNT(out));
        free(kv.k), free(kv.v), free(scratch);
    }
    check("attention", d, 0x28a2f45f54f66cb1u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests_name("digests of the reference", tests, NULL, NULL);
}
