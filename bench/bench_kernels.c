/* How fast each kernel set multiplies: with weights in the file's layout and packed, one token, four (GB/s of
 * weights, each byte counted once, beside the rate at which the same threads can read memory at all) and 64
 * (GOPS, 2 operations per weight and token, beside the rate of the set's dot or fma instruction alone). All
 * limits are measured in the same run.
 *
 *   bench_kernels [--mib N] [--ms N] [--threads N] [--type NAME] [set ...]
 *
 * One and four tokens walk through N MiB of weights (default 512: well beyond the caches), 64 through at most
 * 8 MiB. Each figure is the median of five rounds of --ms milliseconds (default 100). --threads: so many
 * threads (default 1), each on rows of its own; figures are their sums. Without sets: all that this machine
 * runs. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench_limits.h"

#define K              4096u
#define PREFILL_TOKENS 64u
#define FEW_TOKENS     4u
#define MAX_THREADS    16u
#define COUNT(a)       (sizeof(a) / sizeof((a)[0]))

static const uint32_t dtypes[] = {BASE_F32,  BASE_F16,    BASE_BF16,   BASE_Q8_0, BASE_Q4_0, BASE_Q4_1,
                                  BASE_Q5_0, BASE_Q5_1,   BASE_Q2_K,   BASE_Q3_K, BASE_Q4_K, BASE_Q5_K,
                                  BASE_Q6_K, BASE_IQ4_NL, BASE_IQ4_XS, BASE_MXFP4};

typedef struct bench {
    uint8_t *weights;
    size_t weight_bytes, small_bytes; /* for few tokens, for many */
    float *x, *out;
    char *act;
    char *scratch; /* of each thread */
    size_t n_threads;
    double seconds;            /* of one round */
    double memory, dots, fmas; /* what is reached at most: GB/s; GOPS of the set */
} bench;

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_kernels: no memory for %zu bytes; try a smaller --mib\n", bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* Any bytes, with scales that are ordinary halves wherever a type keeps them: 0x2x in every second byte. */
static void fill(uint8_t *p, size_t n)
{
    uint64_t z = 88172645463325252u;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        uint64_t word = (z & 0x0f7f0f7f0f7f0f7fu) | 0x2000200020002000u;
        memcpy(p + i, &word, 8);
    }
}

/* One thread's rows of a product. */
typedef struct walk {
    const bench *b;
    const kern_table *t;
    const kern_matmul *m;
    size_t begin, end;
    void *scratch;
    double rows_per_second;
} walk;

/* Rows are taken in chunks as workers do, starting over at the end. */
static void *walk_rows(void *arg)
{
    walk *w = arg;
    double rates[BENCH_ROUNDS];
    size_t row = w->begin;
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        double start = bench_now(), spent = 0;
        size_t done = 0;
        while (spent < w->b->seconds) {
            size_t n = w->end - row < 64 ? w->end - row : 64;
            w->t->matmul(w->m, row, row + n, w->scratch);
            done += n;
            row = row + n == w->end ? w->begin : row + n;
            spent = bench_now() - start;
        }
        rates[r] = (double)done / spent;
    }
    w->rows_per_second = bench_median(rates);
    return NULL;
}

/* Rows per second of all threads. */
static double row_rate(const bench *b, const kern_table *t, const kern_matmul *m, size_t n_rows)
{
    pthread_t threads[MAX_THREADS];
    walk walks[MAX_THREADS];
    double sum = 0;
    size_t each = n_rows / b->n_threads / 64 * 64;
    if (each == 0) each = n_rows / b->n_threads;
    for (size_t i = 0; i < b->n_threads; i++) {
        walks[i] = (walk){b, t, m, i * each, (i + 1) * each, b->scratch + i * kern_scratch_bytes(K), 0};
        if (pthread_create(&threads[i], NULL, walk_rows, &walks[i]) != 0) exit(1);
    }
    for (size_t i = 0; i < b->n_threads; i++) {
        pthread_join(threads[i], NULL);
        sum += walks[i].rows_per_second;
    }
    return sum;
}

/* MXFP4's exponent bytes: 2^-8, not the subnormal numbers that random bytes give. */
static void set_exponents(const bench *b, bool packed)
{
    size_t step = packed ? 17 * KERN_PACK_ROWS : 17, n = packed ? KERN_PACK_ROWS : 1;
    for (size_t i = 0; i + step <= b->weight_bytes; i += step) memset(b->weights + i, 120, n);
}

static void print_share(double x, double most)
{
    if (most > 0)
        printf(" %3.0f%%", 100 * x / most);
    else
        printf("    -");
}

static void bench_layout(const bench *b, const kern_table *t, kern_matmul *m, bool packed)
{
    size_t n_rows = b->weight_bytes / m->row_bytes, n_small = b->small_bytes / m->row_bytes;
    double most = kern_act_for(m->dtype) == KERN_ACT_F32 ? b->fmas : b->dots;
    if (n_small > n_rows) n_small = n_rows;
    m->packed_rows = packed ? n_rows / KERN_PACK_ROWS * KERN_PACK_ROWS : 0;
    if (m->dtype == BASE_MXFP4) set_exponents(b, packed);
    printf("%-8s %-7s %-6s", t->name, base_dtype_get(m->dtype)->name, packed ? "packed" : "file");
    for (m->n_tokens = 1; m->n_tokens <= FEW_TOKENS; m->n_tokens += FEW_TOKENS - 1) {
        m->out_stride = n_rows;
        double rate = row_rate(b, t, m, n_rows) * (double)m->row_bytes * 1e-9;
        printf(" %8.2f", rate);
        print_share(rate, b->memory);
    }
    m->n_tokens = PREFILL_TOKENS;
    m->out_stride = n_small;
    double rate = row_rate(b, t, m, n_small) * 2.0 * K * PREFILL_TOKENS * 1e-9;
    printf(" %8.1f", rate);
    print_share(rate, most);
    printf("\n");
    fflush(stdout);
}

static void bench_type(const bench *b, const kern_table *t, uint32_t dtype)
{
    kern_act act = kern_act_for(dtype);
    uint64_t row_bytes;
    if (!base_dtype_row_bytes(dtype, K, &row_bytes)) return;
    kern_matmul m = {
        .dtype = dtype, .w = b->weights, .row_bytes = row_bytes, .k = K, .act = b->act, .out = b->out};
    m.act_stride = kern_act_row_bytes(act, K);
    for (size_t i = 0; i < PREFILL_TOKENS; i++) {
        if (act == KERN_ACT_F32)
            memcpy(b->act + i * m.act_stride, b->x, K * sizeof(float));
        else
            t->quantize(act, b->x, K, b->act + i * m.act_stride);
    }
    bench_layout(b, t, &m, false);
    if (kern_can_pack(dtype)) bench_layout(b, t, &m, true);
}

static void make_bench(bench *b, size_t mib, double seconds, size_t n_threads)
{
    b->weight_bytes = mib << 20;
    b->weights = map(b->weight_bytes);
    fill(b->weights, b->weight_bytes);
    b->x = map(K * sizeof(float));
    for (size_t i = 0; i < K; i++) b->x[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1.0f;
    b->small_bytes = (8u << 20) * n_threads;
    if (b->small_bytes > b->weight_bytes) b->small_bytes = b->weight_bytes;
    /* No row of 4,096 weights is shorter than 1,024 bytes. */
    size_t n_out = FEW_TOKENS * b->weight_bytes / 1024 + PREFILL_TOKENS * b->small_bytes / 1024;
    b->out = map(n_out * sizeof(float));
    b->act = map((size_t)PREFILL_TOKENS * K * sizeof(float));
    b->scratch = map(kern_scratch_bytes(K) * n_threads);
    b->seconds = seconds;
    b->n_threads = n_threads;
    b->memory = bench_memory(b->weights, b->weight_bytes, n_threads);
}

int main(int argc, char **argv)
{
    size_t mib = 512, n_threads = 1;
    double ms = 100;
    int only = -1, n_sets = 0;
    bool bad = false;
    const char *sets[8] = {NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc)
            mib = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0 && i + 1 < argc)
            ms = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--type") == 0 && i + 1 < argc)
            bad = (only = base_dtype_find(argv[++i])) < 0;
        else if (n_sets < 7)
            sets[n_sets++] = argv[i];
    }
    if (bad || mib < 1 || mib > 65536 || !(ms > 0) || n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr,
                "usage: bench_kernels [--mib 1..65536] [--ms N] [--threads 1..16] [--type NAME] [set ...]\n");
        return 2;
    }
    bench b;
    make_bench(&b, mib, ms * 1e-3, n_threads);
    printf("%zu thread%s; memory reads %.2f GB/s (%zu MiB); k = %u\n", n_threads, n_threads > 1 ? "s" : "",
           b.memory, mib, K);
    printf("%-8s %-7s %-6s %13s %13s %13s\n", "set", "type", "layout", "GB/s at 1", "GB/s at 4",
           "GOPS at 64");
    for (const char *const *name = n_sets ? sets : kern_available(); *name; name++) {
        const kern_table *t;
        weir_error err;
        if (kern_select(*name, &t, &err) != WEIR_OK) {
            fprintf(stderr, "bench_kernels: %s\n", err.message);
            return 1;
        }
        b.dots = bench_peak(*name, true, n_threads);
        b.fmas = bench_peak(*name, false, n_threads);
        if (b.dots > 0)
            printf("%-8s alone: dot instructions %.1f GOPS, fma instructions %.1f GOPS\n", t->name, b.dots,
                   b.fmas);
        for (size_t i = 0; i < COUNT(dtypes); i++)
            if (only < 0 || (uint32_t)only == dtypes[i]) bench_type(&b, t, dtypes[i]);
    }
    return 0;
}
