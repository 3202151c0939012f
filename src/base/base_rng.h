/* PCG32 (M. O'Neill, pcg-random.org, XSH-RR 64/32): small, seedable, the same everywhere. */
#ifndef WEIR_BASE_RNG_H
#define WEIR_BASE_RNG_H

#include <stdint.h>

typedef struct base_rng {
    uint64_t state;
    uint64_t increment;
} base_rng;

void base_rng_seed(base_rng *r, uint64_t seed, uint64_t stream);
uint32_t base_rng_u32(base_rng *r);
/* Uniform in [0, 1): 24 bits. */
float base_rng_f32(base_rng *r);

#endif
