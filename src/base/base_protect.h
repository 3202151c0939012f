/* Memory at two addresses: `back`, where it can always be used, and `front`, which can be closed page by
 * page.
 *
 * An access to a closed page does not end the process: a handler stands in for SIGSEGV while any of these
 * exist, lets the access go on with other memory in place of the page, and remembers where it was; whoever
 * owns the memory asks for it afterwards and treats what was computed since as worthless. Every other SIGSEGV
 * goes on to the handler of before. Nothing is booked in the ledger: this is memory that plays another
 * device's; the process's own peak (base_system.h) is without it. */
#ifndef WEIR_BASE_PROTECT_H
#define WEIR_BASE_PROTECT_H

#include "base_env.h"

#define BASE_PROTECT_PAGE 4096u

typedef struct base_protect base_protect;

/* Reserves address_bytes (whole pages) of addresses, all closed and without memory. closable false: front is
 * back and always open. Errors: UNSUPPORTED, OUT_OF_MEMORY. */
weir_status base_protect_create(base_env *env, uint64_t address_bytes, bool closable, base_protect **out,
                                weir_error *err);
void base_protect_destroy(base_protect *p); /* takes NULL */
uint8_t *base_protect_front(const base_protect *p);
uint8_t *base_protect_back(const base_protect *p);
/* In all of these begin and bytes count whole pages from the first address. Gives memory, zeroed, front
 * closed. OUT_OF_MEMORY where the system has none. */
weir_status base_protect_commit(base_protect *p, uint64_t begin, uint64_t bytes, weir_error *err);
void base_protect_drop(base_protect *p, uint64_t begin, uint64_t bytes); /* takes the memory, front closed */
/* Opens or closes the front. DEVICE where the system refuses (too many mappings). */
weir_status base_protect_set(base_protect *p, uint64_t begin, uint64_t bytes, bool open, weir_error *err);
/* Whether an access met a closed page since the start or base_protect_heal; *where gets the first one's
 * place. */
bool base_protect_touched(const base_protect *p, uint64_t *where);
/* Puts the memory back into the places of accesses, all closed: the owner opens again what shall be open. */
weir_status base_protect_heal(base_protect *p, weir_error *err);

#endif
