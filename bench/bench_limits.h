/* What a machine reaches at most, measured: reading memory, and a set's arithmetic without any memory. */
#ifndef WEIR_BENCH_LIMITS_H
#define WEIR_BENCH_LIMITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BENCH_ROUNDS      5
#define BENCH_MAX_THREADS 16
#define BENCH_MAX_STREAMS 8

static inline double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static inline double bench_median(double *values)
{
    qsort(values, BENCH_ROUNDS, sizeof(double), bench_by_value);
    return values[BENCH_ROUNDS / 2];
}

/* ---- memory ---- */
typedef struct bench_stretch {
    const char *p;
    size_t bytes;
    int n_streams;
    size_t ahead; /* of the prefetch, 0 for none */
    double rate;  /* GB/s */
} bench_stretch;

/* Reads all lines once: n streams side by side, each through its own part. */
static inline void bench_read_once(const bench_stretch *s)
{
    typedef uint64_t wide __attribute__((vector_size(16)));
    size_t part = s->bytes / (size_t)s->n_streams / 256 * 256;
    wide s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (size_t i = 0; i < part; i += 256)
        for (int k = 0; k < s->n_streams; k++) {
            const char *p = s->p + (size_t)k * part + i;
            for (int line = 0; line < 256; line += 64) {
                if (s->ahead) __builtin_prefetch(p + line + s->ahead, 0, 3);
                const wide *x = (const wide *)(const void *)(p + line);
                s0 ^= x[0], s1 ^= x[1], s2 ^= x[2], s3 ^= x[3];
            }
        }
    s0 ^= s1 ^ s2 ^ s3;
    __asm__ volatile("" : : "r"(&s0) : "memory"); /* the sums are used */
}
static void *bench_read(void *arg)
{
    bench_stretch *s = arg;
    double rates[BENCH_ROUNDS];
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        double start = bench_now();
        bench_read_once(s);
        rates[r] = (double)s->bytes / (bench_now() - start) * 1e-9;
    }
    s->rate = bench_median(rates);
    return NULL;
}

/* GB/s that n_threads read together: the best of several numbers of streams and distances. */
static inline double bench_memory(const void *p, size_t bytes, size_t n_threads)
{
    static const size_t aheads[] = {0, 1024, 4096, 8192};
    double best = 0;
    for (int streams = 1; streams <= BENCH_MAX_STREAMS; streams *= 2)
        for (size_t a = 0; a < sizeof aheads / sizeof aheads[0]; a++) {
            pthread_t threads[BENCH_MAX_THREADS];
            bench_stretch parts[BENCH_MAX_THREADS];
            double sum = 0;
            for (size_t i = 0; i < n_threads; i++) {
                size_t part = bytes / n_threads / 4096 * 4096;
                parts[i] = (bench_stretch){(const char *)p + i * part, part, streams, aheads[a], 0};
                if (pthread_create(&threads[i], NULL, bench_read, &parts[i]) != 0) exit(1);
            }
            for (size_t i = 0; i < n_threads; i++) {
                pthread_join(threads[i], NULL);
                sum += parts[i].rate;
            }
            if (sum > best) best = sum;
        }
    return best;
}

/* ---- arithmetic: twelve chains in registers, enough for any latency ---- */
#define BENCH_CHAINS 12
#define BENCH_STEPS  (1 << 20)
/* The compiler keeps x in a register and may not reason about it. */
#define BENCH_HIDE(x) __asm__ volatile("" : "+" BENCH_REGISTER(x))

#if defined(__x86_64__)
#define BENCH_REGISTER "v"
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static inline void bench_dots_avx512(void)
{
    __m512i acc[BENCH_CHAINS], w = _mm512_set1_epi8(1), q = _mm512_set1_epi8(2);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = _mm512_setzero_si512();
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            acc[c] = _mm512_dpbusd_epi32(acc[c], w, q);
            BENCH_HIDE(acc[c]);
        }
    }
}
__attribute__((target("avx512f"))) static inline void bench_fmas_avx512(void)
{
    __m512 acc[BENCH_CHAINS], w = _mm512_set1_ps(1.0f), q = _mm512_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = _mm512_setzero_ps();
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            acc[c] = _mm512_fmadd_ps(w, q, acc[c]);
            BENCH_HIDE(acc[c]);
        }
    }
}
/* Without a dot instruction: products of bytes in pairs, and the addition that each needs. */
__attribute__((target("avx2"))) static inline void bench_dots_avx2(void)
{
    __m256i acc[BENCH_CHAINS], w = _mm256_set1_epi8(1), q = _mm256_set1_epi8(2);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = _mm256_setzero_si256();
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            __m256i pairs = _mm256_maddubs_epi16(w, q);
            BENCH_HIDE(pairs);
            acc[c] = _mm256_add_epi16(acc[c], pairs);
            BENCH_HIDE(acc[c]);
        }
    }
}
__attribute__((target("avx2,fma"))) static inline void bench_fmas_avx2(void)
{
    __m256 acc[BENCH_CHAINS], w = _mm256_set1_ps(1.0f), q = _mm256_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = _mm256_setzero_ps();
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            acc[c] = _mm256_fmadd_ps(w, q, acc[c]);
            BENCH_HIDE(acc[c]);
        }
    }
}
#elif defined(__aarch64__)
#define BENCH_REGISTER "w"
__attribute__((target("arch=armv8.2-a+dotprod"))) static inline void bench_dots_neon(void)
{
    int32x4_t acc[BENCH_CHAINS];
    int8x16_t w = vdupq_n_s8(1), q = vdupq_n_s8(2);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = vdupq_n_s32(0);
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            acc[c] = vdotq_s32(acc[c], w, q);
            BENCH_HIDE(acc[c]);
        }
    }
}
static inline void bench_fmas_neon(void)
{
    float32x4_t acc[BENCH_CHAINS], w = vdupq_n_f32(1.0f), q = vdupq_n_f32(0.5f);
#pragma GCC unroll 12
    for (int c = 0; c < BENCH_CHAINS; c++) acc[c] = vdupq_n_f32(0.0f);
    for (int i = 0; i < BENCH_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < BENCH_CHAINS; c++) {
            acc[c] = vfmaq_f32(acc[c], w, q);
            BENCH_HIDE(acc[c]);
        }
    }
}
#endif

typedef struct bench_arithmetic {
    void (*run)(void);
    int lanes;   /* multiplications and additions of one step of one chain */
    double gops; /* out: 2 operations each */
} bench_arithmetic;

static void *bench_arithmetic_run(void *arg)
{
    bench_arithmetic *a = arg;
    double rates[BENCH_ROUNDS];
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        double start = bench_now();
        a->run();
        rates[r] = 2.0 * a->lanes * BENCH_CHAINS * BENCH_STEPS / (bench_now() - start) * 1e-9;
    }
    a->gops = bench_median(rates);
    return NULL;
}

/* GOPS of the set's instruction for dot products of bytes, or for floats; 0 where there is none. */
static inline double bench_peak(const char *set, bool dots, size_t n_threads)
{
    bench_arithmetic a = {NULL, 0, 0}, all[BENCH_MAX_THREADS];
    pthread_t threads[BENCH_MAX_THREADS];
    double sum = 0;
#if defined(__x86_64__)
    if (strcmp(set, "avx512") == 0)
        a = dots ? (bench_arithmetic){bench_dots_avx512, 64, 0}
                 : (bench_arithmetic){bench_fmas_avx512, 16, 0};
    if (strcmp(set, "avx2") == 0)
        a = dots ? (bench_arithmetic){bench_dots_avx2, 32, 0} : (bench_arithmetic){bench_fmas_avx2, 8, 0};
#elif defined(__aarch64__)
    if (strcmp(set, "neon") == 0)
        a = dots ? (bench_arithmetic){bench_dots_neon, 16, 0} : (bench_arithmetic){bench_fmas_neon, 4, 0};
#endif
    if (!a.run) return 0;
    for (size_t i = 0; i < n_threads; i++) {
        all[i] = a;
        if (pthread_create(&threads[i], NULL, bench_arithmetic_run, &all[i]) != 0) exit(1);
    }
    for (size_t i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        sum += all[i].gops;
    }
    return sum;
}

#endif
