/* A lock with a condition, for folders above base; devices keep plain mutexes for what no ledger counts. */
#ifndef WEIR_BASE_LOCK_H
#define WEIR_BASE_LOCK_H

#include "base_env.h"

typedef struct base_lock base_lock;

weir_status base_lock_create(base_env *env, base_lock **out, weir_error *err);
void base_lock_destroy(base_lock *lock); /* takes NULL; nobody holds it or waits */
void base_lock_enter(base_lock *lock);
void base_lock_leave(base_lock *lock);
/* Held: lets others in until one of them wakes or `seconds` (at most 1) have passed, and holds it again. May
 * return early. */
void base_lock_wait(base_lock *lock, double seconds);
void base_lock_wake(base_lock *lock); /* all that wait */

#endif
