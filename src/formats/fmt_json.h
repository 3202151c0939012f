/* A JSON reader that keeps nothing: for headers and indices that may have a hundred thousand entries, where
 * a tree would cost many times the file. RFC 8259; the caller walks the shape that it expects. */
#ifndef WEIR_FMT_JSON_H
#define WEIR_FMT_JSON_H

#include "fmt_reader.h"

#define FMT_JSON_MAX_DEPTH 32

/* Passes white space and the character c; `what` says in the message what was expected. */
weir_status fmt_json_expect(fmt_reader *r, char c, const char *what, weir_error *err);
/* The next character that is no white space, not passed; '\0' at the end. */
weir_status fmt_json_peek(fmt_reader *r, char *c, weir_error *err);
/* Walks an object or array behind its opening bracket: *more says whether another member follows; the closing
 * bracket and commas are passed. *first is true before the first call. */
weir_status fmt_json_more(fmt_reader *r, char close, bool *first, bool *more, weir_error *err);
/* A string, decoded and NUL-terminated into buf; one of cap bytes or more is FORMAT. buf NULL: passes it. */
weir_status fmt_json_string(fmt_reader *r, char *buf, size_t cap, size_t *len, weir_error *err);
/* A non-negative whole number. */
weir_status fmt_json_u64(fmt_reader *r, uint64_t *out, weir_error *err);
/* Passes any value; depth starts at 0. */
weir_status fmt_json_skip(fmt_reader *r, unsigned depth, weir_error *err);
/* Only white space may follow. */
weir_status fmt_json_end(fmt_reader *r, weir_error *err);

#endif
