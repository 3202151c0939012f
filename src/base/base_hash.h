/* FNV-1a, 64 bit: fingerprints of logits and names, never security. */
#ifndef WEIR_BASE_HASH_H
#define WEIR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define BASE_HASH_SEED UINT64_C(0xcbf29ce484222325)

static inline uint64_t base_hash(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

#endif
