/* How fast each kernel set multiplies, one thread: decoding (one token) in GB/s of weights beside the
 * memory's own reading rate measured in the same run, and prefill (64 tokens) in GOPS (2 operations per
 * weight and token).
 *
 *   bench_kernels [--mib N] [--ms N] [--type NAME] [set ...]
 *
 * Decoding walks through N MiB of weights (default 512: well beyond the caches), prefill through at most 8
 * MiB. Each figure is the median of five rounds of --ms milliseconds (default 100). Without sets: all that
 * this machine runs. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define K              4096u
#define PREFILL_TOKENS 64u
#define ROUNDS         5
#define COUNT(a)       (sizeof(a) / sizeof((a)[0]))

static const uint32_t dtypes[] = {BASE_F32,  BASE_F16,    BASE_BF16,   BASE_Q8_0, BASE_Q4_0, BASE_Q4_1,
                                  BASE_Q5_0, BASE_Q5_1,   BASE_Q2_K,   BASE_Q3_K, BASE_Q4_K, BASE_Q5_K,
                                  BASE_Q6_K, BASE_IQ4_NL, BASE_IQ4_XS, BASE_MXFP4};

typedef struct bench {
    uint8_t *weights;
    size_t weight_bytes;
    float *x, *out;
    char *act;
    void *scratch;
    double seconds; /* of one round */
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(double), by_value);
    return values[ROUNDS / 2];
}

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

/* GB/s of reading the weights once with plain wide loads. */
static double read_rate(const bench *b)
{
    typedef uint64_t wide __attribute__((vector_size(64)));
    double rates[ROUNDS];
    wide keep = {0};
    for (int r = 0; r < ROUNDS; r++) {
        const wide *p = (const wide *)b->weights;
        wide s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        double start = now();
        for (size_t i = 0; i + 4 <= b->weight_bytes / sizeof(wide); i += 4)
            s0 ^= p[i], s1 ^= p[i + 1], s2 ^= p[i + 2], s3 ^= p[i + 3];
        rates[r] = (double)b->weight_bytes / (now() - start) * 1e-9;
        keep ^= s0 ^ s1 ^ s2 ^ s3;
    }
    __asm__ volatile("" : : "r"(&keep) : "memory"); /* the sums are used */
    return median(rates);
}

/* Rows per second of one product, rows taken in chunks as workers do, starting over at the end. */
static double row_rate(const bench *b, const kern_table *t, kern_matmul *m, size_t n_rows)
{
    double rates[ROUNDS];
    size_t row = 0;
    for (int r = 0; r < ROUNDS; r++) {
        double start = now(), spent = 0;
        size_t done = 0;
        while (spent < b->seconds) {
            size_t n = n_rows - row < 64 ? n_rows - row : 64;
            t->matmul(m, row, row + n, b->scratch);
            done += n;
            row = row + n == n_rows ? 0 : row + n;
            spent = now() - start;
        }
        rates[r] = (double)done / spent;
    }
    return median(rates);
}

static void bench_type(const bench *b, const kern_table *t, uint32_t dtype)
{
    kern_act act = kern_act_for(dtype);
    uint64_t row_bytes;
    if (!base_dtype_row_bytes(dtype, K, &row_bytes)) return;
    size_t n_rows = b->weight_bytes / row_bytes, n_small = (8u << 20) / row_bytes;
    if (n_small > n_rows) n_small = n_rows;
    kern_matmul m = {
        .dtype = dtype, .w = b->weights, .row_bytes = row_bytes, .k = K, .act = b->act, .out = b->out};
    m.act_stride = kern_act_row_bytes(act, K);
    for (size_t i = 0; i < PREFILL_TOKENS; i++) {
        if (act == KERN_ACT_F32)
            memcpy(b->act + i * m.act_stride, b->x, K * sizeof(float));
        else
            t->quantize(act, b->x, K, b->act + i * m.act_stride);
    }
    if (dtype == BASE_MXFP4) /* its exponent byte: 2^-8, not the subnormal numbers that random bytes give */
        for (size_t i = 0; i + 17 <= b->weight_bytes; i += 17) b->weights[i] = 120;
    m.n_tokens = 1;
    m.out_stride = n_rows;
    double decode = row_rate(b, t, &m, n_rows) * (double)row_bytes * 1e-9;
    m.n_tokens = PREFILL_TOKENS;
    m.out_stride = n_small;
    double prefill = row_rate(b, t, &m, n_small) * 2.0 * K * PREFILL_TOKENS * 1e-9;
    printf("%-8s %-7s %10.2f %10.1f\n", t->name, base_dtype_get(dtype)->name, decode, prefill);
    fflush(stdout);
}

static void make_bench(bench *b, size_t mib, double seconds)
{
    b->weight_bytes = mib << 20;
    b->weights = map(b->weight_bytes);
    fill(b->weights, b->weight_bytes);
    b->x = map(K * sizeof(float));
    for (size_t i = 0; i < K; i++) b->x[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1.0f;
    /* No row of 4,096 weights is shorter than 1,024 bytes. */
    size_t n_out = b->weight_bytes / 1024 + (size_t)PREFILL_TOKENS * (8u << 20) / 1024;
    b->out = map(n_out * sizeof(float));
    b->act = map((size_t)PREFILL_TOKENS * K * sizeof(float));
    b->scratch = map(kern_scratch_bytes(K));
    b->seconds = seconds;
}

int main(int argc, char **argv)
{
    size_t mib = 512;
    double ms = 100;
    int only = -1, n_sets = 0;
    bool bad = false;
    const char *sets[8] = {NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc)
            mib = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0 && i + 1 < argc)
            ms = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--type") == 0 && i + 1 < argc)
            bad = (only = base_dtype_find(argv[++i])) < 0;
        else if (n_sets < 7)
            sets[n_sets++] = argv[i];
    }
    if (bad || mib < 1 || mib > 65536 || !(ms > 0)) {
        fprintf(stderr, "usage: bench_kernels [--mib 1..65536] [--ms N] [--type NAME] [set ...]\n");
        return 2;
    }
    bench b;
    make_bench(&b, mib, ms * 1e-3);
    printf("memory reads %.2f GB/s with one thread (%zu MiB); k = %u\n", read_rate(&b), mib, K);
    printf("%-8s %-7s %10s %10s\n", "set", "type", "GB/s at 1", "GOPS at 64");
    for (const char *const *name = n_sets ? sets : kern_available(); *name; name++) {
        const kern_table *t;
        weir_error err;
        if (kern_select(*name, &t, &err) != WEIR_OK) {
            fprintf(stderr, "bench_kernels: %s\n", err.message);
            return 1;
        }
        for (size_t i = 0; i < COUNT(dtypes); i++)
            if (only < 0 || (uint32_t)only == dtypes[i]) bench_type(&b, t, dtypes[i]);
    }
    return 0;
}
