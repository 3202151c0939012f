/* PCG32, XSH-RR variant with 64 bits of state: M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
 * Statistically Good Algorithms for Random Number Generation" (2014), section 6.3. */
#include "base_rng.h"

void base_rng_seed(base_rng *r, uint64_t seed, uint64_t stream)
{
    r->state = 0;
    r->increment = (stream << 1) | 1; /* must be odd for the full period */
    base_rng_u32(r);
    r->state += seed;
    base_rng_u32(r);
}

uint32_t base_rng_u32(base_rng *r)
{
    uint64_t s = r->state;
    r->state = s * UINT64_C(6364136223846793005) + r->increment;
    uint32_t mixed = (uint32_t)(((s >> 18) ^ s) >> 27);
    uint32_t turn = (uint32_t)(s >> 59);
    return (mixed >> turn) | (mixed << (-turn & 31));
}

float base_rng_f32(base_rng *r)
{
    return (float)(base_rng_u32(r) >> 8) * 0x1p-24f;
}
