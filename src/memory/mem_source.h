/* Where a program's weights come from on a device with memory of its own. In host memory there is none: a
 * program uses its mem_component, at no cost (R2.5, R5.8).
 *
 *   begin --- enter unit, address of its weights, leave --- enter ... --- end      (a pass)
 *
 * Weights keep the numbers that they have in their component. */
#ifndef WEIR_MEM_SOURCE_H
#define WEIR_MEM_SOURCE_H

/* Included by memory.h. */
#include "devices/device.h"

typedef struct mem_source mem_source;

typedef struct mem_source_stats {
    uint64_t fixed_bytes, resident_bytes, slot_bytes, kept_bytes; /* now on the device */
    uint64_t host_bytes;                                          /* copies in RAM of units that stream */
    uint64_t pinned_bytes;                                        /* of them and of staging */
    uint64_t streamed_bytes;                                      /* copied into slots */
    uint64_t read_bytes;                                          /* from files, for slots */
    uint64_t n_copies, n_hits; /* units copied; entered while their copy was there or under way */
    double wait_seconds;       /* the caller stood still for storage */
    uint32_t n_units, n_resident, n_slots;
} mem_source_stats;

typedef struct mem_source_table {
    void (*destroy)(mem_source *s);
    /* A pass begins: the fixed part is readable until `end`. Errors: CANCELLED, DEVICE_MEMORY, IO and its
     * kin. */
    weir_status (*begin)(mem_source *s, atomic_bool *cancel, weir_error *err);
    /* Waits for the device. The status is that of all its work since `begin`; after an error what the pass
     * computed is worthless, and the source works again. */
    weir_status (*end)(mem_source *s, weir_error *err);
    /* What is given to the compute stream until `leave` finds the unit's weights. */
    weir_status (*enter)(mem_source *s, uint32_t unit, weir_error *err);
    void (*leave)(mem_source *s, uint32_t unit);
    weir_status (*address)(mem_source *s, mem_weight_id id, void **address, weir_error *err);
    /* Memory that stays (caches, activations). */
    weir_status (*alloc)(mem_source *s, uint64_t bytes, const char *label, void **address, weir_error *err);
    void (*free)(mem_source *s, void *address, uint64_t bytes); /* takes NULL; the device is done with it */
    void (*stats)(const mem_source *s, mem_source_stats *out);
} mem_source_table;

struct mem_source {
    const mem_source_table *table; /* the implementation's struct begins with this */
    dev_device *device;
    const mem_component *component;
};

static inline void mem_source_destroy(mem_source *s)
{
    if (s != NULL) s->table->destroy(s);
}

#define MEM_NO_UNIT UINT32_MAX
/* The unit to be entered before a weight is used; MEM_NO_UNIT: it is of the fixed part. */
uint32_t mem_weight_unit(const mem_component *c, mem_weight_id id);
/* Rows of a weight from row 0 on that its file has packed. */
uint32_t mem_weight_file_packed_rows(const mem_component *c, mem_weight_id id);

/* ---- units that stay and units that stream, on one device ---- */

typedef struct mem_device_plan {
    uint64_t budget_bytes; /* for fixed part, resident units and slots; what was asked */
    uint64_t fixed_bytes, resident_bytes, slot_bytes; /* slot_bytes: all slots */
    uint64_t streamed_bytes;                          /* copied to the device in each pass */
    uint64_t smallest_bytes;                          /* R4.6, with one slot */
    uint64_t whole_bytes;
    uint32_t n_units, n_resident, n_slots;
} mem_device_plan;
/* R4.5 for kind `sequence`: the first units in running order stay. Pure. alignment: dev_memory_info's. Below
 * the smallest working set, that one (R3.5). none: no unit stays (R3.6). */
void mem_device_plan_make(const mem_component *c, size_t alignment, uint64_t budget_bytes, bool none,
                          mem_device_plan *out);

typedef struct mem_device_options {
    uint64_t host_copy_bytes; /* RAM for copies of units that stream (R6.1); the others come from the file */
    atomic_bool *cancel;      /* may be NULL */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
} mem_device_options;
/* Host memory that creating takes beside host copies: staging (tag IO) and tables (METADATA). */
uint64_t mem_device_staging_bytes(void);
/* Loads fixed part and resident units. component and device outlive the result. Errors: DEVICE_MEMORY,
 * BUDGET, CANCELLED, DEVICE, IO and its kin. */
weir_status mem_device_source_create(mem_component *c, dev_device *device, const mem_device_plan *plan,
                                     const mem_device_options *options, mem_source **out, weir_error *err);

/* Places a component for mem_rows_read alone: nothing of it is in memory. */
weir_status mem_place_rows(mem_component *c, const base_aio_options *aio, weir_error *err);

#endif
