/* What the tests of kernels share: seeded numbers, weights and activations with every kind of edge, memory
 * that ends at a forbidden page (so that reading one byte too far crashes), and comparison by bits. */
#ifndef WEIR_KERN_TEST_H
#define WEIR_KERN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kernels.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const uint32_t test_dtypes[] __attribute__((unused)) = {
    BASE_F32,  BASE_F16,  BASE_BF16, BASE_Q8_0, BASE_Q4_0, BASE_Q4_1,   BASE_Q5_0,   BASE_Q5_1,
    BASE_Q2_K, BASE_Q3_K, BASE_Q4_K, BASE_Q5_K, BASE_Q6_K, BASE_IQ4_NL, BASE_IQ4_XS, BASE_MXFP4};

/* ---- numbers (splitmix64) ---- */
typedef struct test_rng {
    uint64_t state;
} test_rng;

static inline uint64_t rng_next(test_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline uint32_t rng_below(test_rng *r, uint32_t n)
{
    return (uint32_t)(rng_next(r) >> 33) % n;
}
/* Roughly normal, mean 0, deviation 1. */
static inline float rng_normal(test_rng *r)
{
    double s = 0;
    for (int i = 0; i < 4; i++) s += (double)(rng_next(r) >> 11) * 0x1p-53 - 0.5;
    return (float)(s * 1.7320508);
}
static inline float float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* PLAIN: ordinary sizes. EDGES: zeros of both signs, subnormals, the largest and smallest finite numbers.
 * SPECIAL: infinities, NaNs and wholly random bits as well. */
typedef enum test_mode { PLAIN, EDGES, SPECIAL, N_MODES } test_mode;

static inline float rng_float(test_rng *r, test_mode mode)
{
    static const uint32_t edges[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                     0x00800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff,
                                     0x01000000, 0x2f800000, 0x42fe0000, 0x3f000000};
    static const uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001};
    if (mode == SPECIAL && rng_below(r, 40) == 0)
        return float_from_bits(specials[rng_below(r, COUNT(specials))]);
    if (mode == SPECIAL && rng_below(r, 4) == 0) return float_from_bits((uint32_t)rng_next(r));
    if (mode != PLAIN && rng_below(r, 3) == 0) return float_from_bits(edges[rng_below(r, COUNT(edges))]);
    if (mode != PLAIN && rng_below(r, 4) == 0) {
        /* Drawn first: in which order a call's arguments are computed is the compiler's choice. */
        int exponent = (int)rng_below(r, 240) - 120;
        return ldexpf(rng_normal(r), exponent);
    }
    return rng_normal(r);
}
static inline void fill_floats(test_rng *r, test_mode mode, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = rng_float(r, mode);
}

static inline uint16_t rng_half(test_rng *r, test_mode mode)
{
    static const uint16_t edges[] = {0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
    static const uint16_t specials[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01};
    if (mode == SPECIAL && rng_below(r, 12) == 0) return specials[rng_below(r, COUNT(specials))];
    if (mode == SPECIAL && rng_below(r, 3) == 0) return (uint16_t)rng_next(r);
    if (mode != PLAIN && rng_below(r, 3) == 0) return edges[rng_below(r, COUNT(edges))];
    return (uint16_t)(0x2000u + rng_below(r, 0x1000) +
                      (rng_below(r, 2) << 15)); /* 2^-7 .. 2^-3, either sign */
}
static inline void put_half(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Random blocks: random bytes, then the scales of the mode at their places. */
static inline void fill_weights(test_rng *r, test_mode mode, uint32_t dtype, uint8_t *dst, size_t n_elements)
{
    const base_dtype_info *info = base_dtype_get(dtype);
    size_t n_blocks = n_elements / info->block_elements, bytes = info->block_bytes;
    for (size_t b = 0; b < n_blocks; b++, dst += bytes) {
        for (size_t i = 0; i < bytes; i++) dst[i] = (uint8_t)rng_next(r);
        float f = rng_float(r, mode);
        uint32_t bits = bits_of_float(f);
        switch (dtype) {
        case BASE_F32: memcpy(dst, &f, 4); break;
        case BASE_BF16: put_half(dst, (uint16_t)(bits >> 16)); break;
        case BASE_MXFP4: dst[0] = mode == PLAIN ? (uint8_t)(116 + dst[0] % 16) : dst[0]; break;
        case BASE_Q3_K:
        case BASE_Q6_K: put_half(dst + bytes - 2, rng_half(r, mode)); break;
        case BASE_Q2_K:
            put_half(dst + 80, rng_half(r, mode));
            put_half(dst + 82, rng_half(r, mode));
            break;
        case BASE_Q4_1:
        case BASE_Q5_1:
        case BASE_Q4_K:
        case BASE_Q5_K: put_half(dst + 2, rng_half(r, mode)); /* fallthrough */
        default: put_half(dst, rng_half(r, mode));
        }
    }
}

/* ---- memory ---- */
typedef struct guarded {
    uint8_t *map;
    size_t map_bytes;
} guarded;

/* bytes ending at a forbidden page, filled with `fill`; the address is as aligned as bytes are. */
static inline void *guarded_alloc(guarded *g, size_t bytes, int fill)
{
    size_t page = 4096, body = (bytes + page - 1) / page * page;
    g->map_bytes = body + page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->map != MAP_FAILED);
    assert_int_equal(mprotect(g->map + body, page, PROT_NONE), 0);
    memset(g->map, fill, body);
    return g->map + body - bytes;
}
static inline void guarded_free(guarded *g)
{
    munmap(g->map, g->map_bytes);
}

/* ---- comparison ---- */
static inline int same_float(float a, float b)
{
    return bits_of_float(a) == bits_of_float(b) || (a != a && b != b);
}

#endif
