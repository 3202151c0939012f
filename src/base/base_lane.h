/* A thread that carries out tasks one after the other, in the order in which they were pushed. */
#ifndef WEIR_BASE_LANE_H
#define WEIR_BASE_LANE_H

#include "base_env.h"

typedef struct base_lane base_lane;
/* Carries out one task, on the lane's thread. Must not fail; `task` is the copy of what was pushed. */
typedef void (*base_lane_fn)(void *arg, void *task);

/* Tasks of task_bytes each, up to `depth` of them waiting. name: of the thread, up to 15 bytes. Errors:
 * THREAD, OUT_OF_MEMORY, BUDGET. The stack of 256 KiB is booked under PROCESS. */
weir_status base_lane_create(base_env *env, const char *name, size_t task_bytes, uint32_t depth,
                             base_lane_fn fn, void *arg, base_lane **out, weir_error *err);
void base_lane_destroy(base_lane *lane); /* takes NULL; carries out what waits first */
/* Copies the task and gives its number, from 1 on. Waits while `depth` tasks wait. Any thread. */
uint64_t base_lane_push(base_lane *lane, const void *task);
uint64_t base_lane_pushed(base_lane *lane); /* the number of the task pushed last; 0: none */
/* Whether the task of that number, and so all before it, were carried out. */
bool base_lane_reached(base_lane *lane, uint64_t number);
void base_lane_wait(base_lane *lane, uint64_t number); /* not from the lane's own thread */

/* Sleeps for so many seconds; returns at once for none. */
void base_sleep(double seconds);

#endif
