/* The choice of a kernel set, and the sizes that hold for all of them. */
#include "kern_blocks.h"
#include "kern_tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if KERN_HAVE_AVX2 || KERN_HAVE_AVX512
/* Clang 14's __builtin_cpu_supports does not know F16C: CPUID leaf 1, ECX bit 29. That the system saves the
 * vector registers is part of the builtin's answer for avx2. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u);
}
#endif
#if KERN_HAVE_AVX512
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
#endif
#if KERN_HAVE_NEON
/* NEON itself is part of every 64-bit Arm; dot products came with later machines. */
static bool has_neon_dot(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

static bool always(void)
{
    return true;
}

typedef struct set {
    const char *name;
    const kern_table *table; /* NULL: not in this build */
    bool (*runs)(void);
} set;

/* Best first; a machine that runs one runs all below it, so what is available is always the end of this list.
 */
static const set sets[] = {
#if KERN_HAVE_AVX512
    {"avx512", &kern_avx512_table, has_avx512},
#endif
#if KERN_HAVE_AVX2
    {"avx2", &kern_avx2_table, has_avx2},
#endif
#if KERN_HAVE_NEON
    {"neon", &kern_neon_table, has_neon_dot},
#endif
    {"ref", &kern_ref_table, always},
};
#define N_SETS (sizeof sets / sizeof sets[0])

static const char *const names[N_SETS + 1] = {
#if KERN_HAVE_AVX512
    "avx512",
#endif
#if KERN_HAVE_AVX2
    "avx2",
#endif
#if KERN_HAVE_NEON
    "neon",
#endif
    "ref",    NULL,
};

static size_t best(void)
{
    size_t i = 0;
    while (!sets[i].runs()) i++;
    return i;
}

const char *const *kern_available(void)
{
    return names + best();
}

static bool is_known(const char *name)
{
    return strcmp(name, "avx512") == 0 || strcmp(name, "avx2") == 0 || strcmp(name, "neon") == 0;
}

weir_status kern_select(const char *name, const kern_table **out, weir_error *err)
{
    char have[64] = "";
    size_t used = 0, first = best();
    if (strcmp(name, "auto") == 0) {
        *out = sets[first].table;
        return WEIR_OK;
    }
    for (size_t i = first; i < N_SETS; i++) {
        size_t n = strlen(sets[i].name);
        if (strcmp(name, sets[i].name) == 0) {
            *out = sets[i].table;
            return WEIR_OK;
        }
        if (used + n + 3 > sizeof have) continue;
        if (used > 0) memcpy(have + used, ", ", 3), used += 2;
        memcpy(have + used, sets[i].name, n + 1);
        used += n;
    }
    if (is_known(name))
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "kernel set '%s' does not run on this machine, which has: %s; choose one of these or 'auto'",
            name, have);
    return base_fail(
        err, WEIR_ERR_INVALID_ARGUMENT,
        "kernel set '%s' is unknown; wanted auto, ref, avx2, avx512 or neon (this machine has: %s)", name,
        have);
}

kern_act kern_act_for(uint32_t dtype)
{
    switch (dtype) {
    case BASE_F32:
    case BASE_F16:
    case BASE_BF16: return KERN_ACT_F32;
    case BASE_Q8_0:
    case BASE_Q4_0:
    case BASE_Q4_1:
    case BASE_Q5_0:
    case BASE_Q5_1:
    case BASE_IQ4_NL:
    case BASE_MXFP4: return KERN_ACT_Q32;
    case BASE_Q2_K:
    case BASE_Q3_K:
    case BASE_Q4_K:
    case BASE_Q5_K:
    case BASE_Q6_K:
    case BASE_IQ4_XS: return KERN_ACT_Q256;
    default: return KERN_ACT_NONE;
    }
}

/* a x b + c, or the largest multiple of 64 when that does not fit, which no allocation grants. */
static size_t size_of(size_t a, size_t b, size_t c)
{
    uint64_t bytes;
    if (!base_mul(a, b, &bytes) || !base_add(bytes, c, &bytes) || bytes > SIZE_MAX - 63)
        return SIZE_MAX & ~(size_t)63;
    return (size_t)base_align_up(bytes, 64);
}

size_t kern_act_row_bytes(kern_act act, size_t k)
{
    switch (act) {
    case KERN_ACT_F32: return size_of(k, sizeof(float), 0);
    case KERN_ACT_Q32: return size_of(k / KERN_QK, KERN_QK + sizeof(float) + sizeof(int32_t), 0);
    case KERN_ACT_Q256: return size_of(k / KERN_QKK, KERN_QKK + sizeof(float) + 16 * sizeof(int32_t), 0);
    default: return 0;
    }
}

/* A panel of 16 rows packed at 8 bits, and 8 bytes of scales for each 16 elements of each row; 4096 for the
 * rest. */
size_t kern_scratch_bytes(size_t k)
{
    size_t bytes = size_of(k / 16 + 1, 16 * 16 + 16 * 8, 4096);
    return bytes > KERN_SCRATCH_MIN ? bytes : KERN_SCRATCH_MIN;
}

size_t kern_attention_scratch_bytes(uint32_t n_positions, uint32_t head_dim)
{
    size_t query = ((size_t)n_positions + 15) / 16 * 16 + 32 + 3 * (size_t)head_dim;
    size_t wide = KERN_ATTENTION_WIDE * (size_t)(head_dim > 64 ? head_dim : 64);
    return size_of(KERN_ATTENTION_QUERIES * query + wide, sizeof(float), 64);
}

size_t kern_attention_cut_scratch_bytes(uint32_t n_heads, uint32_t head_dim)
{
    size_t wide = KERN_ATTENTION_WIDE * (size_t)(head_dim > 64 ? head_dim : 64);
    return size_of((size_t)n_heads * head_dim + wide, sizeof(float), 64);
}

bool kern_attention_cut_init(kern_attention_cut *c, const kern_attention *a, void *shared, size_t bytes)
{
    uint32_t first = kern_attention_first(a, 0);
    uint64_t n_e, n_sums, n_top, floats;
    size_t e_stride = (size_t)(a->last / 16 - first / 16) * 16 + 16;
    uint32_t n_segments = a->last / KERN_ATTENTION_SEGMENT - first / KERN_ATTENTION_SEGMENT + 1;

    e_stride |= 16; /* an odd number of lines: heads do not share their place in the caches */
    if (!base_mul(e_stride, a->n_heads, &n_e) || !base_mul(n_segments, a->n_heads, &n_top) ||
        !base_mul(n_top, a->head_dim, &n_sums) || !base_add(n_e, n_sums, &floats) ||
        !base_add(floats, n_top, &floats) || floats > bytes / sizeof(float))
        return false;
    *c = (kern_attention_cut){.a = *a, .n_segments = n_segments, .e_stride = e_stride, .e = shared};
    c->sums = c->e + n_e;
    c->top = c->sums + n_sums;
    c->a.first = first;
    c->a.window = 0;
    c->a.n_rows = 1;
    return true;
}
