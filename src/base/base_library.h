/* Libraries that are opened while the program runs: drivers that a machine may have or not. */
#ifndef WEIR_BASE_LIBRARY_H
#define WEIR_BASE_LIBRARY_H

#include "base_env.h"

typedef struct base_library base_library;

/* Opens the first of `names` (NULL-terminated) that is there. NOT_FOUND: none is; the message has the
 * system's reason for the last. What was opened once stays mapped until the process ends, since drivers keep
 * threads. */
weir_status base_library_open(base_env *env, const char *const *names, base_library **out, weir_error *err);
void base_library_close(base_library *l); /* takes NULL */
/* NULL where the library has no such symbol. */
void *base_library_symbol(const base_library *l, const char *name);

#endif
