/* A forward reader of a byte range through a small buffer. Headers of any size pass through it, so that
 * parsing a file costs 64 KiB however long its vocabulary is. Nothing is read beyond the range's end, and
 * every request is compared with what is left before a byte is touched. */
#ifndef WEIR_FMT_READER_H
#define WEIR_FMT_READER_H

#include "base/base.h"

#define FMT_READER_BYTES (64u * 1024)
/* The longest run that fmt_reader_peek makes contiguous; also the longest string that we hold. */
#define FMT_STRING_MAX (1024u * 1024)

typedef struct fmt_reader {
    base_env *env;
    base_file *file; /* not owned; NULL: the bytes are in memory */
    char *buf;       /* owned where file is set */
    size_t cap;
    size_t have;             /* valid bytes in buf */
    size_t at;               /* next byte in buf */
    uint64_t base;           /* offset of buf[0] in the file */
    uint64_t end;            /* offset behind the last byte of the range */
    const char *range;       /* what ends there, for messages: "the file", "the header" */
    weir_status past_status; /* what a request beyond the end is: TRUNCATED or FORMAT */
} fmt_reader;

/* Reads [offset, end) of file; end is at most the file's size. */
weir_status fmt_reader_init(fmt_reader *r, base_env *env, base_file *file, uint64_t offset, uint64_t end,
                            size_t buffer_bytes, weir_error *err);
/* Reads bytes that lie in memory and stay there. */
void fmt_reader_init_memory(fmt_reader *r, const void *data, size_t bytes);
void fmt_reader_finish(fmt_reader *r); /* r may be zeroed */

const char *fmt_reader_path(const fmt_reader *r);
uint64_t fmt_reader_pos(const fmt_reader *r);
uint64_t fmt_reader_left(const fmt_reader *r);

/* Fails with past_status when fewer than `bytes` are left; `what` names the thing in the message. */
weir_status fmt_reader_need(const fmt_reader *r, uint64_t bytes, const char *what, weir_error *err);
/* Makes n bytes contiguous at *p without passing them; n at most FMT_STRING_MAX. Valid until the next call.
 */
weir_status fmt_reader_peek(fmt_reader *r, size_t n, const char **p, const char *what, weir_error *err);
/* Peek, then pass. */
weir_status fmt_reader_take(fmt_reader *r, size_t n, const char **p, const char *what, weir_error *err);
/* Passes n bytes unread. */
weir_status fmt_reader_skip(fmt_reader *r, uint64_t n, const char *what, weir_error *err);

/* Little-endian unsigned integers. */
weir_status fmt_reader_u32(fmt_reader *r, uint32_t *out, const char *what, weir_error *err);
weir_status fmt_reader_u64(fmt_reader *r, uint64_t *out, const char *what, weir_error *err);
/* Unsigned little-endian integer of 1..8 bytes at p. */
uint64_t fmt_le(const void *p, size_t bytes);

#endif
