/* Files on http and https servers, read from their front by ranges (private to base; base_file.h hides them
 * behind base_file). libcurl is opened at run time, when the first address is named: linked, it would cost
 * every process more memory than a small model's caches.
 *
 * What was fetched lies in an unnamed file of the system's memory, so that it counts for no budget and reads
 * go the usual way. Servers are hostile until checked: answers must be the range that was asked for, of a
 * file whose size and tag stay the same; sizes, headers, redirects, requests and times are bounded. */
#ifndef WEIR_BASE_REMOTE_H
#define WEIR_BASE_REMOTE_H

#include "base_env.h"

#include <stddef.h>

typedef struct base_remote base_remote;

/* Asks for the front of the file. Errors: INVALID_ARGUMENT (no proper address), NOT_FOUND, PERMISSION,
 * UNSUPPORTED (no libcurl, no ranges), FORMAT (answers that cannot be), IO (network, time). */
weir_status base_remote_open(base_env *env, const char *url, base_remote **out, weir_error *err);
void base_remote_close(base_remote *r); /* takes NULL */
uint64_t base_remote_size(const base_remote *r);
/* Holds the bytes that were fetched, at their offsets; closed with the remote. */
int base_remote_fd(const base_remote *r);
/* Fetches what is missing of [0, end). */
weir_status base_remote_ensure(base_remote *r, uint64_t end, weir_error *err);
/* From now on nothing more is fetched: UNSUPPORTED. */
void base_remote_seal(base_remote *r);

/* A whole small file; *out is NUL-terminated and freed by base_free. */
weir_status base_remote_slurp(base_env *env, const char *url, size_t max_bytes, char **out, size_t *len,
                              weir_error *err);

#endif
