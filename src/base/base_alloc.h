/* Allocation through the ledger: every byte is reserved under a tag before it is allocated.
 *
 * The ledger is thread-safe. Small blocks come from malloc with a 16-byte header (counted); pages come
 * straight from the system. A reservation beyond the limit fails with WEIR_ERR_BUDGET, an allocation that
 * the system refuses with WEIR_ERR_OUT_OF_MEMORY; both name tag, wanted and free bytes. */
#ifndef WEIR_BASE_ALLOC_H
#define WEIR_BASE_ALLOC_H

#include "base_env.h"

#define BASE_TAG_MAP(X)                                                                                      \
    X(WEIGHTS_FIXED, "weights.fixed")       /* norms, biases, small units: always placed */                  \
    X(WEIGHTS_RESIDENT, "weights.resident") /* streamable weights that stay */                               \
    X(WEIGHTS_SLOTS, "weights.slots")       /* the ring that streamed weights pass through */                \
    X(WEIGHTS_MAPPED, "weights.mapped") /* pages of the files themselves: the system can take them back */   \
    X(WEIGHTS_HOST, "weights.host")     /* copies in RAM of weights that belong on a device */               \
    X(PINNED, "pinned")                 /* host memory that devices copy from without a stop */              \
    X(DEVICE, "device")                 /* of a device whose memory is the machine's RAM */                  \
    X(KV, "kv")                         /* key-value caches */                                               \
    X(ACTIVATIONS, "activations")       /* the arena of a program */                                         \
    X(WORKSPACE, "workspace")           /* kernel scratch per worker */                                      \
    X(TOKENIZER, "tokenizer")                                                                                \
    X(METADATA, "metadata") /* file descriptors' tables, programs */                                         \
    X(IO, "io")             /* staging buffers, queues */                                                    \
    X(RUNTIME, "runtime")   /* sessions, samplers, text */                                                   \
    X(PROCESS, "process")   /* code, libraries, stacks, page tables: measured, not allocated here */

typedef enum base_tag {
#define BASE_TAG_ENUM(name, text) BASE_TAG_##name,
    BASE_TAG_MAP(BASE_TAG_ENUM)
#undef BASE_TAG_ENUM
        BASE_TAG_COUNT
} base_tag;

/* The device tier: bytes on all devices, by what they are for. Booked by who allocates there; no limit of
 * this ledger concerns them, and they are no part of `bytes`. */
#define BASE_DEVICE_TAG_MAP(X)                                                                               \
    X(FIXED, "device.fixed")                                                                                 \
    X(RESIDENT, "device.resident")                                                                           \
    X(SLOTS, "device.slots") /* copies of units that stream */                                               \
    X(KEPT, "device.kept")   /* stays across phases: caches, tables */                                       \
    X(WORK, "device.work")   /* working memory of phases */

typedef enum base_device_tag {
#define BASE_DEVICE_TAG_ENUM(name, text) BASE_DEVICE_##name,
    BASE_DEVICE_TAG_MAP(BASE_DEVICE_TAG_ENUM)
#undef BASE_DEVICE_TAG_ENUM
        BASE_DEVICE_TAG_COUNT
} base_device_tag;

typedef struct base_ledger_view {
    uint64_t limit_bytes; /* UINT64_MAX: none */
    uint64_t bytes;       /* now, all tags */
    uint64_t peak_bytes;  /* largest value of bytes */
    uint64_t tag_bytes[BASE_TAG_COUNT];
    uint64_t tag_peak_bytes[BASE_TAG_COUNT];
    uint64_t device_bytes, device_peak_bytes;
    uint64_t device_tag_bytes[BASE_DEVICE_TAG_COUNT];
    uint64_t device_tag_peak_bytes[BASE_DEVICE_TAG_COUNT];
} base_ledger_view;

const char *base_tag_text(base_tag tag);
const char *base_device_tag_text(base_device_tag tag);

/* Sets the limit (UINT64_MAX: none). Fails with BUDGET when more is already held. */
weir_status base_ledger_set_limit(base_env *env, uint64_t limit_bytes, weir_error *err);
/* Books bytes that are allocated elsewhere (stacks, code, library memory). */
weir_status base_ledger_reserve(base_env *env, base_tag tag, uint64_t bytes, weir_error *err);
void base_ledger_release(base_env *env, base_tag tag, uint64_t bytes);
void base_ledger_book_device(base_env *env, base_device_tag tag, uint64_t bytes);
void base_ledger_unbook_device(base_env *env, base_device_tag tag, uint64_t bytes);
void base_ledger_read(const base_env *env, base_ledger_view *out);
/* Sets all peaks back to what is held now. */
void base_ledger_peak_reset(base_env *env);

/* Zeroed memory, aligned to 16; bytes = 0 gives a valid block. NULL on failure, *err filled.
 * Fault site: "host_alloc". */
void *base_alloc(base_env *env, base_tag tag, size_t bytes, weir_error *err);
/* count x size, checked for overflow. */
void *base_alloc_array(base_env *env, base_tag tag, size_t count, size_t size, weir_error *err);
/* Grows or shrinks; keeps the old block on failure. p may be NULL. New bytes are not zeroed. */
void *base_realloc(base_env *env, base_tag tag, void *p, size_t bytes, weir_error *err);
void base_free(base_env *env, void *p); /* p may be NULL */
char *base_strdup(base_env *env, base_tag tag, const char *text, weir_error *err);
char *base_strndup(base_env *env, base_tag tag, const char *text, size_t bytes, weir_error *err);

/* Whole zeroed pages (bytes rounded up to 4096), aligned to 4096, to 2 MiB when huge is true and bytes are
 * large. Without huge, every page is in memory on return, so that the ledger is what the process holds and
 * lack of memory shows here; huge blocks are filled by their owner at once. Free with the same byte count.
 * Fault site: "host_alloc". */
void *base_pages_alloc(base_env *env, base_tag tag, uint64_t bytes, bool huge, weir_error *err);
/* The same with huge, and every page in memory on return: for what is read everywhere and filled slowly. */
void *base_pages_alloc_present(base_env *env, base_tag tag, uint64_t bytes, weir_error *err);
void base_pages_free(base_env *env, base_tag tag, void *p, uint64_t bytes);
/* Shortens or lengthens pages that were allocated with huge; gives where they are now. What both lengths have
 * stays and is not copied, so memory never holds it twice; new pages are zeroed. NULL on failure, with the
 * old pages as they were. Fault site, where it grows: "host_alloc". */
void *base_pages_resize(base_env *env, base_tag tag, void *p, uint64_t bytes, uint64_t new_bytes,
                        weir_error *err);

/* Gives pages that libraries freed back to the system, where their allocator keeps them (glibc keeps even
 * large blocks, once such ones were freed before). Costs some milliseconds where much is free. */
void base_heap_trim(void);

#endif
