/* A growable byte string. */
#include "base_buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void base_buf_init(base_buf *b, base_env *env, base_tag tag)
{
    *b = (base_buf){.env = env, .tag = tag};
}

void base_buf_finish(base_buf *b)
{
    if (b->data != NULL) base_free(b->env, b->data);
    b->data = NULL;
    b->len = b->cap = 0;
}

/* The NUL behind them counted. */
weir_status base_buf_reserve(base_buf *b, size_t more, weir_error *err)
{
    uint64_t wanted;
    if (!base_add(b->len, more, &wanted) || !base_add(wanted, 1, &wanted))
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s: a text longer than memory can hold",
                         base_tag_text(b->tag));
    if (wanted <= b->cap) return WEIR_OK;
    uint64_t cap = base_max(wanted, b->cap < 32 ? 64 : (uint64_t)b->cap + b->cap / 2);
    weir_error local = {0};
    char *data = base_realloc(b->env, b->tag, b->data, cap, &local);
    if (data == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    b->data = data;
    b->cap = cap;
    return WEIR_OK;
}

weir_status base_buf_append(base_buf *b, const void *data, size_t bytes, weir_error *err)
{
    weir_status status = base_buf_reserve(b, bytes, err);
    if (status != WEIR_OK) return status;
    if (bytes != 0) memcpy(b->data + b->len, data, bytes);
    b->len += bytes;
    b->data[b->len] = '\0';
    return WEIR_OK;
}

weir_status base_buf_printf(base_buf *b, weir_error *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    weir_status status = n < 0 ? base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a text could not be formatted")
                               : base_buf_reserve(b, (size_t)n, err);
    if (status == WEIR_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return status;
}
