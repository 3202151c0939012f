/* A program's component on a device with memory of its own: a handle of the memory manager whose weights and
 * units keep the numbers that they have in the component, and whose every pass is a request with one phase.
 * In host memory there is none: a program uses its mem_component, at no cost (R2.5, R5.8).
 *
 *   run --- enter unit, address of its weights, operations, leave --- enter ... --- download     (a pass) */
#ifndef WEIR_MEM_SOURCE_H
#define WEIR_MEM_SOURCE_H

/* Included by memory.h. */
#include "devices/device.h"

typedef struct mem_source mem_source;

/* Registers the component's weights with m. Nothing is loaded. c and m outlive the result. engine and name
 * are the handle's; copied. Errors: OUT_OF_MEMORY, BUDGET, INVALID_ARGUMENT. */
weir_status mem_source_create(mem_component *c, mem_manager *m, const char *engine, const char *name,
                              mem_source **out, weir_error *err);
/* Takes NULL. What mem_source_alloc gave is freed before. */
void mem_source_destroy(mem_source *s);
mem_handle *mem_source_handle(const mem_source *s);
/* Host memory that a pass takes for its time (tag RUNTIME). */
uint64_t mem_source_pass_bytes(void);

/* Memory that stays (caches, activations), and the device's work space. */
weir_status mem_source_alloc(mem_source *s, uint64_t bytes, const char *label, void **address,
                             weir_error *err);
void mem_source_free(mem_source *s, void *address); /* takes NULL */
/* Between such blocks, outside of a pass; done when it returns. */
weir_status mem_source_copy(mem_source *s, void *dst, const void *src, uint64_t bytes, weir_error *err);
weir_status mem_source_workspace(mem_source *s, size_t k, uint32_t n_positions, uint32_t head_dim,
                                 weir_error *err);

typedef weir_status (*mem_pass_fn)(void *arg, weir_error *err);
/* Places weights, calls fn, waits for the device. fn is pure: the pass may run again from its beginning,
 * where device memory ran out (R8.1) or the device failed once. NULL: weights are placed, no more. cancel may
 * be NULL; read at every copy. Errors: those of mem_run_phase, and fn's. */
weir_status mem_source_run(mem_source *s, atomic_bool *cancel, mem_pass_fn fn, void *arg, weir_error *err);

/* ---- inside of fn ---- */

/* What is given to the compute stream until `leave` finds the unit's weights. One unit at a time. */
weir_status mem_source_enter(mem_source *s, uint32_t unit, weir_error *err);
void mem_source_leave(mem_source *s, uint32_t unit);
/* Of a weight that is on the device: of the fixed part at any time, of a unit while it is entered. */
weir_status mem_source_address(mem_source *s, mem_weight_id id, void **address, weir_error *err);
weir_status mem_source_op(mem_source *s, const dev_op *op, weir_error *err);
/* The host's memory is free again, or there, when they return. */
weir_status mem_source_upload(mem_source *s, void *dst, const void *host, uint64_t bytes, weir_error *err);
weir_status mem_source_download(mem_source *s, void *host, const void *src, uint64_t bytes, weir_error *err);

typedef struct mem_source_stats {
    uint64_t read_bytes; /* from files, since the first pass began */
    uint64_t n_copies;   /* units copied into slots */
    uint64_t n_hits;     /* entered while their copy was there or under way */
    uint64_t n_yields;   /* what others gave up for its passes */
    uint64_t n_retries;  /* passes that ran again (R8.1) */
    double wait_seconds; /* the caller stood still for storage or other jobs */
} mem_source_stats;
void mem_source_get_stats(const mem_source *s, mem_source_stats *out);

/* ---- what a component says of its weights ---- */

#define MEM_NO_UNIT UINT32_MAX
/* The unit to be entered before a weight is used; MEM_NO_UNIT: it is of the fixed part. */
uint32_t mem_weight_unit(const mem_component *c, mem_weight_id id);
/* Rows of a weight from row 0 on that its file has packed. */
uint32_t mem_weight_file_packed_rows(const mem_component *c, mem_weight_id id);
/* Places a component for mem_rows_read alone: nothing of it is in memory. */
weir_status mem_place_rows(mem_component *c, const base_aio_options *aio, weir_error *err);

#endif
