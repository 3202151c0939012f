/* A growable byte string under the ledger. Always NUL-terminated behind len once anything was written. */
#ifndef WEIR_BASE_BUF_H
#define WEIR_BASE_BUF_H

#include "base_alloc.h"

typedef struct base_buf {
    base_env *env;
    base_tag tag;
    char *data;
    size_t len;
    size_t cap;
} base_buf;

void base_buf_init(base_buf *b, base_env *env, base_tag tag);
void base_buf_finish(base_buf *b); /* frees; b may be zeroed */
/* Room for `more` bytes: appending them then cannot fail. */
weir_status base_buf_reserve(base_buf *b, size_t more, weir_error *err);
weir_status base_buf_append(base_buf *b, const void *data, size_t bytes, weir_error *err);
weir_status base_buf_printf(base_buf *b, weir_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
