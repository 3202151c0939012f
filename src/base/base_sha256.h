/* SHA-256 (FIPS 180-4): names a file by its bytes. */
#ifndef WEIR_BASE_SHA256_H
#define WEIR_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct base_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64]; /* what has not made a block yet */
} base_sha256;

void base_sha256_init(base_sha256 *h);
void base_sha256_add(base_sha256 *h, const void *data, size_t bytes);
/* 64 lower-case hexadecimal digits and a NUL. */
void base_sha256_text(const base_sha256 *h, char text[65]);

#endif
