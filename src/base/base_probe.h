/* What a file system really delivers: measured by reading, never guessed from its name, and remembered in the
 * user's cache folder, so that it is measured once. */
#ifndef WEIR_BASE_PROBE_H
#define WEIR_BASE_PROBE_H

#include "base_aio.h"

typedef struct base_storage {
    uint64_t device;           /* what is remembered under: device, kind of file system, way of reading */
    uint64_t fs_type;          /* statfs(2) */
    bool buffered;             /* read through the page cache: direct reads were refused or turned off */
    bool threads;              /* read by threads, not io_uring */
    double bytes_per_s;        /* queued reads of read_bytes, depth of them, in the file's order */
    double random_bytes_per_s; /* the same reads at random places; at most what the other way gives */
    double latency_s;          /* of one read of 4 KiB by itself */
    double memory_bytes_per_s; /* a copy in memory, in the same moment */
    uint32_t depth;            /* reads in flight from which on more brings nothing */
    uint64_t read_bytes;       /* likewise of a read's size; large where storage is slow */
    uint64_t half_rate_bytes;  /* with so many bytes in flight storage gives half of its rate */
    bool in_memory;            /* as quick as memory: tmpfs, or pages that the kernel has cached */
    bool slow;                 /* seeks or a network: large reads pay */
    int64_t when;              /* seconds since 1970 */
} base_storage;

/* Reads for at most about `seconds` and max_bytes; of slow storage up to three times as long, and where the
 * largest reads need longer, for a few rounds of them. The file's pages are dropped from the page cache
 * first; nothing is left there. Needs up to 32 MiB under IO while it runs, less where the budget has no room.
 * Errors: those of reading, OUT_OF_MEMORY and BUDGET where not even 1 MiB is free. */
weir_status base_storage_measure(base_env *env, base_file *file, const base_aio_options *aio, double seconds,
                                 uint64_t max_bytes, base_storage *out, weir_error *err);

/* The file to measure a path with: the path itself, or the largest regular file that lies in the folder. For
 * base_free. Errors: NOT_FOUND (also an empty folder), PERMISSION, OUT_OF_MEMORY. */
weir_status base_storage_pick(base_env *env, const char *path, char **out, weir_error *err);

/* A name for people ("ext4", "nfs"), or the number in hexadecimal; buf holds at least 24 bytes. */
const char *base_storage_fs_text(uint64_t fs_type, char *buf);

/* ---- remembering. `folder`: the user's cache folder of Weir, made where there is none. ---- */
#define BASE_STORAGE_FILE "storage"
/* True with *out filled when that file system was measured in the last fortnight with the way of reading that
 * a queue with these options has here. A file that is broken, too large, of another version or from the
 * future counts as none. */
bool base_storage_recall(base_env *env, const char *folder, const base_file *file,
                         const base_aio_options *aio, base_storage *out);
/* Puts an entry beside those of other file systems. The file is replaced in one step. */
weir_status base_storage_remember(base_env *env, const char *folder, const base_storage *s, weir_error *err);

#endif
