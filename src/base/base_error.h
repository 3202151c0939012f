/* Filling a weir_error. Convention: a fallible function returns a weir_status and takes `weir_error *err`
 * as its last argument; err may be NULL. Clean-up is by goto, one label per resource. */
#ifndef WEIR_BASE_ERROR_H
#define WEIR_BASE_ERROR_H

#include "weir/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stores code and the formatted message in *err (if not NULL) and returns code. */
weir_status base_fail(weir_error *err, weir_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "text: " before the message already in *err, keeping its code; returns that code. */
weir_status base_fail_context(weir_error *err, weir_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checked size arithmetic: true and *out set when the result fits, false otherwise. */
static inline bool base_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool base_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* x rounded up / down to a multiple of align (a power of two). The caller has checked that it fits. */
static inline uint64_t base_align_up(uint64_t x, uint64_t align)
{
    return (x + align - 1) & ~(align - 1);
}
static inline uint64_t base_align_down(uint64_t x, uint64_t align)
{
    return x & ~(align - 1);
}
static inline uint64_t base_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t base_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* "1.5 GiB", "700 KiB", "12 bytes": always with its unit. buf holds at least 32 bytes; returns buf. */
const char *base_size_text(uint64_t bytes, char *buf);
/* Parses "64MiB", "2GB", "512KiB", "1000 MB", "123B"; a bare number is refused (R14.1). */
weir_status base_size_parse(const char *text, uint64_t *bytes, weir_error *err);

#endif
