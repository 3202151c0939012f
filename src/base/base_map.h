/* Parts of a file as memory: pages that the kernel may take back and that processes share.
 *
 * A file that is cut short while it is mapped answers an access with SIGBUS, which ends a process that does
 * not expect it. So while anything is mapped here, a handler stands in for that signal: an access within one
 * of these mappings gets zeros and marks the mapping as broken, and whoever uses it asks before results leave
 * the house. Every other SIGBUS goes on to the handler of before. With the last mapping the handler goes. */
#ifndef WEIR_BASE_MAP_H
#define WEIR_BASE_MAP_H

#include "base_file.h"

typedef struct base_map base_map;

/* Maps [offset, offset + bytes), rounded outwards to pages, for reading. Nothing is booked in the ledger.
 * Errors: IO (the file system refuses), TRUNCATED (beyond the file's end), UNSUPPORTED (too many mappings at
 * once), OUT_OF_MEMORY. Fault site: "map". */
weir_status base_map_create(base_env *env, base_file *f, uint64_t offset, uint64_t bytes, base_map **out,
                            weir_error *err);
void base_map_destroy(base_map *m);              /* takes NULL; nothing may use it any more */
const uint8_t *base_map_data(const base_map *m); /* the byte at `offset` */
/* Has the kernel bring in [at, at + bytes) of the mapping, so that using it does not wait. Errors: TRUNCATED,
 * IO, FILE_CHANGED. */
weir_status base_map_fetch(base_map *m, uint64_t at, uint64_t bytes, weir_error *err);
/* TRUNCATED when an access met the end of a file that was cut; FILE_CHANGED when the file differs from what
 * was opened. What was computed since the last check is then worthless. */
weir_status base_map_check(const base_map *m, weir_error *err);

#endif
