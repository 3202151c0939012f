/* Every operation but the matrix products against its limit, as devices/cpu carries it out.
 *
 *   bench_ops [--threads N] [--ms N] [--rows N] [--only WORD] [set ...]
 *
 * The limit of an operation is the larger of two times: its fused operations at the rate of a loop that only
 * multiplies registers (of the set's vectors), and its bytes at the rate at which wide loads read a buffer of
 * that size (so L1, L2, L3 or memory). Both loops run on as many threads as the operation, and right before
 * it in each of nine rounds, since on a shared machine both change from second to second; the median counts.
 * exp, divisions, conversions and the waking of threads are not in the limit. */
#include "devices/device.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ROUNDS      9
#define MAX_CONTEXT 8192u
#define VOCABULARY  262144u
#define COUNT(a)    (sizeof(a) / sizeof((a)[0]))

typedef struct bench {
    base_env *env;
    dev_device *dev;
    const kern_table *kern;
    base_pool *pool; /* for the limits */
    uint32_t n_threads, rows;
    double seconds; /* of one round */
    const char *only;
    int32_t *position;
    uint32_t *sequence;
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_ops: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static float *map_floats(size_t n)
{
    float *x = map(n * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1.0f;
    return x;
}

/* ---- the limits ---- */

/* Loops of the set's own vectors: twelve chains of fused operations, and loads that are added to eight sums.
 */
#define FMA_STEPS 2000
#define LIMIT_LOOPS(set, isa, type, lanes, set1, fma_op, load, max_op)                                       \
    isa static double fma_##set(void)                                                                        \
    {                                                                                                        \
        type a = set1(0.999f), b = set1(0.001f);                                                             \
        type x0 = a, x1 = b, x2 = a, x3 = b, x4 = a, x5 = b, x6 = a, x7 = b, x8 = a, x9 = b, x10 = a,        \
             x11 = b;                                                                                        \
        for (int n = 0; n < FMA_STEPS; n++) {                                                                \
            x0 = fma_op(x0, a, b), x1 = fma_op(x1, a, b), x2 = fma_op(x2, a, b), x3 = fma_op(x3, a, b);      \
            x4 = fma_op(x4, a, b), x5 = fma_op(x5, a, b), x6 = fma_op(x6, a, b), x7 = fma_op(x7, a, b);      \
            x8 = fma_op(x8, a, b), x9 = fma_op(x9, a, b), x10 = fma_op(x10, a, b), x11 = fma_op(x11, a, b);  \
            __asm__ volatile("" : "+" VECTOR_REGISTER(x0), "+" VECTOR_REGISTER(x5));                         \
        }                                                                                                    \
        type keep = max_op(                                                                                  \
            max_op(max_op(x0, x1), max_op(x2, x3)),                                                          \
            max_op(max_op(max_op(x4, x5), max_op(x6, x7)), max_op(max_op(x8, x9), max_op(x10, x11))));       \
        __asm__ volatile("" : "+" VECTOR_REGISTER(keep));                                                    \
        return (double)FMA_STEPS * 12 * lanes;                                                               \
    }                                                                                                        \
    isa static void read_##set(const float *p, size_t n)                                                     \
    {                                                                                                        \
        type s[8] = {load(p), load(p), load(p), load(p), load(p), load(p), load(p), load(p)};                \
        for (size_t i = 0; i + 8 * lanes <= n; i += 8 * lanes) {                                             \
            s[0] = max_op(s[0], load(p + i)), s[1] = max_op(s[1], load(p + i + lanes));                      \
            s[2] = max_op(s[2], load(p + i + 2 * lanes)), s[3] = max_op(s[3], load(p + i + 3 * lanes));      \
            s[4] = max_op(s[4], load(p + i + 4 * lanes)), s[5] = max_op(s[5], load(p + i + 5 * lanes));      \
            s[6] = max_op(s[6], load(p + i + 6 * lanes)), s[7] = max_op(s[7], load(p + i + 7 * lanes));      \
        }                                                                                                    \
        for (int i = 1; i < 8; i++) s[0] = max_op(s[0], s[i]);                                               \
        __asm__ volatile("" : "+" VECTOR_REGISTER(s[0]));                                                    \
    }
#if defined(__x86_64__)
#define VECTOR_REGISTER(x) "v"(x)
LIMIT_LOOPS(avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps,
            _mm512_loadu_ps, _mm512_max_ps)
LIMIT_LOOPS(avx2, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps,
            _mm256_loadu_ps, _mm256_max_ps)
#elif defined(__aarch64__)
#define VECTOR_REGISTER(x) "w"(x)
#define NEON_FMA(x, a, b)  vfmaq_f32(b, x, a)
LIMIT_LOOPS(neon, , float32x4_t, 4, vdupq_n_f32, NEON_FMA, vld1q_f32, vmaxq_f32)
#endif

typedef struct limits {
    const char *set;
    double (*fma)(void); /* returns how many */
    void (*read)(const float *p, size_t n);
} limits;

/* `ref` is measured against the widest vectors of the machine's base line. */
static const limits all_limits[] = {
#if defined(__x86_64__)
    {"avx512", fma_avx512, read_avx512},
    {"avx2", fma_avx2, read_avx2},
    {"ref", fma_avx2, read_avx2},
#elif defined(__aarch64__)
    {"neon", fma_neon, read_neon},
    {"ref", fma_neon, read_neon},
#endif
};

static const limits *limits_of(const char *set)
{
    size_t i = 0;
    while (i + 1 < COUNT(all_limits) && strcmp(all_limits[i].set, set) != 0) i++;
    return &all_limits[i];
}

/* What all threads do together for a while: done[i] is what thread i did, in fused operations or bytes. */
typedef struct limit_run {
    const limits *l;
    const float *buffer; /* NULL: fused operations */
    size_t n;
    double seconds, rate[256];
} limit_run;

static void limit_piece(void *arg, uint32_t worker, size_t begin, size_t end)
{
    limit_run *r = arg;
    double start = now(), spent, done = 0;
    (void)worker;
    (void)end;
    do {
        if (r->buffer == NULL)
            done += r->l->fma();
        else
            r->l->read(r->buffer, r->n), done += (double)r->n * sizeof(float);
        spent = now() - start;
    } while (spent < r->seconds);
    r->rate[begin] = done / spent;
}

/* Of all threads together. */
static double limit_rate(const bench *b, const float *buffer, size_t n)
{
    limit_run r = {.l = limits_of(b->kern->name), .buffer = buffer, .n = n, .seconds = b->seconds / 2};
    double sum = 0;
    base_pool_run(b->pool, limit_piece, &r, b->n_threads, 1);
    for (uint32_t i = 0; i < b->n_threads; i++) sum += r.rate[i];
    return sum;
}

/* ---- timing ---- */

typedef void (*work_fn)(void *arg);

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times fn beside its limits. fma: fused operations, bytes: what must be moved at least, both 0 for none. */
static void report(const bench *b, const char *name, work_fn fn, void *arg, double fma, double bytes)
{
    double seconds[ROUNDS], limit[ROUNDS], ratio[ROUNDS], compute = 0, move = 0;
    size_t n = ((size_t)bytes / 4 + 63) / 64 * 64;
    float *buffer = map_floats(n);
    fn(arg);
    for (int r = 0; r < ROUNDS; r++) {
        compute = fma > 0 ? fma / limit_rate(b, NULL, 0) : 0;
        move = bytes / limit_rate(b, buffer, n);
        limit[r] = compute > move ? compute : move;
        double start = now(), spent = 0, count = 0;
        while (spent < b->seconds) {
            fn(arg);
            count++;
            spent = now() - start;
        }
        seconds[r] = spent / count;
        ratio[r] = limit[r] / seconds[r];
    }
    munmap(buffer, n * sizeof(float));
    qsort(seconds, ROUNDS, sizeof(double), by_value);
    qsort(limit, ROUNDS, sizeof(double), by_value);
    qsort(ratio, ROUNDS, sizeof(double), by_value);
    printf("%-7s %-46s %10.2f us  limit %10.2f us (%s)  ratio %5.2f\n", b->kern->name, name,
           seconds[ROUNDS / 2] * 1e6, limit[ROUNDS / 2] * 1e6, compute > move ? "fma" : "bytes",
           ratio[ROUNDS / 2]);
    fflush(stdout);
}

static bool wanted(const bench *b, const char *name)
{
    return b->only == NULL || strstr(name, b->only) != NULL;
}

typedef struct op_work {
    const bench *b;
    dev_op op;
} op_work;

static void run_op(void *arg)
{
    op_work *w = arg;
    weir_error err;
    if (w->b->dev->table->run(w->b->dev, &w->op, &err) != WEIR_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.message);
        exit(1);
    }
}

/* ---- attention and the cache ---- */

typedef struct model_shape {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, window, width, hidden;
} model_shape;

static const model_shape models[] = {
    {"llama 1.2B", 32, 4, 64, 0, 2048, 5632},
    {"smollm2", 9, 3, 64, 0, 576, 1536},
    {"gemma3 270M", 4, 1, 256, 0, 640, 2048},
    {"gemma3 270M window", 4, 1, 256, 512, 640, 2048},
};

static void attention_at(const bench *b, const model_shape *s, uint32_t dtype, uint32_t context,
                         uint32_t rows, dev_kv *kv, float *q, float *out)
{
    size_t n = (size_t)s->n_heads * s->head_dim, element = dtype == BASE_F16 ? 2 : 4;
    char name[96];
    double fma = 0;
    snprintf(name, sizeof name, "attention %s %s, %u row%s at %u", s->name, dtype == BASE_F16 ? "f16" : "f32",
             rows, rows == 1 ? "" : "s", context);
    if (!wanted(b, name)) return;
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t last = context - rows + r, seen = last + 1;
        b->position[r] = (int32_t)last;
        if (s->window != 0 && seen > s->window) seen = s->window;
        fma += 2.0 * (double)n * seen;
    }
    uint32_t seen = s->window != 0 && context > s->window ? s->window + rows - 1 : context;
    double bytes = 2.0 * seen * s->n_kv_heads * s->head_dim * (double)element;
    op_work w = {b,
                 {.code = DEV_ATTENTION,
                  .n_rows = rows,
                  .cols = n,
                  .a = {q, n * sizeof(float)},
                  .out = {out, n * sizeof(float)},
                  .n_heads = s->n_heads,
                  .n_kv_heads = s->n_kv_heads,
                  .head_dim = s->head_dim,
                  .window = s->window,
                  .f = {0.125f, 0},
                  .position = b->position,
                  .sequence = b->sequence,
                  .kv = kv}};
    report(b, name, run_op, &w, fma, bytes);
}

static void bench_attention(const bench *b, const model_shape *s, uint32_t dtype)
{
    static const uint32_t contexts[] = {512, 2048, 8192};
    size_t n_kv = (size_t)s->n_kv_heads * s->head_dim, n = (size_t)s->n_heads * s->head_dim;
    dev_kv kv = {map(MAX_CONTEXT * n_kv * 4), map(MAX_CONTEXT * n_kv * 4), dtype, MAX_CONTEXT};
    float *q = map_floats(b->rows * n), *out = map_floats(b->rows * n), *row = map_floats(2 * n_kv);
    kern_kv kk = {kv.k, kv.v, dtype, MAX_CONTEXT};
    for (uint32_t p = 0; p < MAX_CONTEXT; p++)
        b->kern->kv_store(&kk, s->n_kv_heads, s->head_dim, p, row, row + n_kv);
    for (size_t i = 0; i < COUNT(contexts); i++) {
        attention_at(b, s, dtype, contexts[i], 1, &kv, q, out);
        attention_at(b, s, dtype, contexts[i], b->rows, &kv, q, out);
    }
    munmap(kv.k, MAX_CONTEXT * n_kv * 4), munmap(kv.v, MAX_CONTEXT * n_kv * 4);
    munmap(q, b->rows * n * 4), munmap(out, b->rows * n * 4), munmap(row, 2 * n_kv * 4);
}

/* ---- the small ones ---- */

static void small_op(const bench *b, const char *what, const model_shape *s, dev_op op, double bytes)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s, %zu row%s", what, s->name, op.n_rows, op.n_rows == 1 ? "" : "s");
    op_work w = {b, op};
    if (wanted(b, name)) report(b, name, run_op, &w, 0, bytes);
}

static void bench_small(const bench *b, const model_shape *s, uint32_t rows)
{
    size_t n = s->hidden > s->width ? s->hidden : s->width, heads = (size_t)s->n_heads * s->head_dim;
    size_t n_kv = (size_t)s->n_kv_heads * s->head_dim;
    if (heads > n) n = heads;
    float *x = map_floats(rows * n), *y = map_floats(rows * n), *z = map(rows * n * sizeof(float));
    double *inv_freq = map(s->head_dim * sizeof(double));
    dev_kv kv = {map(MAX_CONTEXT * n_kv * 2), map(MAX_CONTEXT * n_kv * 2), BASE_F16, MAX_CONTEXT};
    dev_view vx = {x, n * 4}, vy = {y, n * 4}, vz = {z, n * 4};
    for (uint32_t r = 0; r < rows; r++) b->position[r] = (int32_t)(1000 + r);
    for (uint32_t i = 0; i < s->head_dim; i++) inv_freq[i] = 1.0 / (double)(1 + i);
    dev_op op = {.n_rows = rows, .a = vx, .b = vy, .out = vz, .cols = s->width, .group = s->width};
    double r = rows;

    op.code = DEV_RMS_NORM, op.w.data = y, op.f[0] = 1e-5f;
    small_op(b, "rms_norm", s, op, r * s->width * 8.0);
    op.code = DEV_ADD;
    small_op(b, "add", s, op, r * s->width * 12.0);
    op.code = DEV_QUANT, op.dtype = s->width % 256 == 0 ? BASE_Q4_K : BASE_Q8_0;
    small_op(b, "quantize", s, op, r * s->width * 5.0);
    op.code = DEV_GLU, op.cols = s->hidden, op.gelu = s->n_kv_heads == 1;
    small_op(b, "glu", s, op, r * s->hidden * 12.0);
    op.cols = heads, op.code = DEV_ROPE, op.out = vx, op.n_heads = s->n_heads, op.n_kv_heads = s->n_kv_heads;
    op.head_dim = s->head_dim, op.n_rot = s->head_dim, op.neox = true;
    small_op(b, "rope", s, op, r * ((double)heads * 8 + s->head_dim * 4.0));
    op.code = DEV_ROPE_TABLE, op.out = vz, op.position = b->position, op.inv_freq = inv_freq, op.mscale = 1;
    small_op(b, "rope_table", s, op, r * s->head_dim * 4.0);
    op.code = DEV_KV_STORE, op.sequence = b->sequence, op.kv = &kv;
    small_op(b, "kv_store", s, op, r * (double)n_kv * 12.0);
    munmap(x, rows * n * 4), munmap(y, rows * n * 4), munmap(z, rows * n * 4);
    munmap(kv.k, MAX_CONTEXT * n_kv * 2), munmap(kv.v, MAX_CONTEXT * n_kv * 2);
    munmap(inv_freq, s->head_dim * sizeof(double));
}

typedef struct softmax_work {
    const kern_table *kern;
    float *x, *p;
} softmax_work;

static void run_softmax(void *arg)
{
    softmax_work *w = arg;
    w->kern->softmax(w->x, VOCABULARY, 1.25f, w->p);
}

static void bench_sampling(const bench *b)
{
    softmax_work w = {b->kern, map_floats(VOCABULARY), map_floats(VOCABULARY)};
    bench one = *b;
    one.n_threads = 1; /* sampling runs on the caller */
    if (wanted(b, "softmax"))
        report(&one, "softmax of 262,144 logits", run_softmax, &w, 0, VOCABULARY * 12.0);
    munmap(w.x, VOCABULARY * 4), munmap(w.p, VOCABULARY * 4);
}

static void bench_set(bench *b, const char *set)
{
    weir_error err;
    if (kern_select(set, &b->kern, &err) != WEIR_OK ||
        dev_cpu_create(b->env, set, b->n_threads, &b->dev, &err) != WEIR_OK ||
        b->dev->table->reserve_workspace(b->dev, 8192, MAX_CONTEXT, 256, &err) != WEIR_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.message);
        exit(1);
    }
    printf("%s, %u thread%s: %.1f G fused operations/s\n", set, b->n_threads, b->n_threads == 1 ? "" : "s",
           limit_rate(b, NULL, 0) * 1e-9);
    for (size_t i = 0; i < COUNT(models); i++) {
        bench_attention(b, &models[i], BASE_F16);
        bench_attention(b, &models[i], BASE_F32);
    }
    for (size_t i = 0; i < 3; i++) {
        bench_small(b, &models[i], 1);
        bench_small(b, &models[i], b->rows);
    }
    bench_sampling(b);
    dev_destroy(b->dev);
}

int main(int argc, char **argv)
{
    bench b = {.n_threads = 1, .rows = 64, .seconds = 0.005};
    const char *sets[8] = {NULL};
    int n_sets = 0;
    weir_error err;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            b.n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0 && i + 1 < argc)
            b.seconds = strtod(argv[++i], NULL) * 1e-3;
        else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc)
            b.rows = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            b.only = argv[++i];
        else if (n_sets < 7)
            sets[n_sets++] = argv[i];
    }
    if (b.rows < 1 || b.rows > 512 || !(b.seconds > 0) || b.n_threads < 1 || b.n_threads > 256) {
        fprintf(stderr, "usage: bench_ops [--threads N] [--ms N] [--rows 1..512] [--only WORD] [set ...]\n");
        return 2;
    }
    if (base_env_create(&b.env, &err) != WEIR_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.message);
        return 1;
    }
    if (base_pool_create(b.env, b.n_threads, &b.pool, &err) != WEIR_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.message);
        return 1;
    }
    b.position = map(512 * sizeof *b.position);
    b.sequence = map(512 * sizeof *b.sequence);
    if (n_sets == 0) sets[n_sets++] = kern_available()[0];
    for (int i = 0; i < n_sets; i++) bench_set(&b, sets[i]);
    base_pool_destroy(b.pool);
    base_env_destroy(b.env);
    return 0;
}
