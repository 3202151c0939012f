/* What the files of the simulated device share.
 *
 *   dev_sim.c         life, memory: allocations, strict ranges, pinned memory
 *   dev_sim_stream.c  streams: copies, operations, tickets, errors
 *
 * Device memory is a base_protect: operations use its front, copies its back, so that a copy stream can fill
 * what the compute stream may not read yet. `lock` is held by calls from the host for the tables and while
 * they push; lanes never take it. `inner` is for what lanes share; nothing is locked under it. */
#ifndef WEIR_DEV_SIM_INTERNAL_H
#define WEIR_DEV_SIM_INTERNAL_H

#include "devices/device.h"

#include <pthread.h>
#include <stdatomic.h>

#define SIM_LABEL_BYTES 96
#define SIM_MAX_ARGS    32
/* Arrays that belong to operations under way; an operation that finds no room waits for those before it. */
#define SIM_PAYLOAD_BYTES ((size_t)128 << 10)
#define SIM_POISON        0xFF /* as floats of any width: NaN */
#define SIM_ALWAYS_OPEN   255

/* An allocation, or what is known of one that was freed, as long as nothing lies in its place. */
typedef struct sim_range {
    uint64_t begin;    /* in the address space */
    uint64_t asked;    /* bytes */
    uint64_t bytes;    /* of memory that count */
    uint64_t pages;    /* bytes of whole pages */
    uint64_t freed_at; /* 0: live */
    bool has_memory;
    uint8_t *open; /* per page: how often opened, or SIM_ALWAYS_OPEN; NULL: all of it always */
    char label[SIM_LABEL_BYTES];
} sim_range;

typedef struct sim_pin {
    const uint8_t *host;
    uint64_t bytes;
    bool registered;
} sim_pin;

typedef enum sim_task_kind { SIM_RUN, SIM_LAUNCH, SIM_COPY, SIM_WAIT, SIM_PROTECT, SIM_MARK } sim_task_kind;
typedef enum sim_direction { SIM_UP, SIM_DOWN, SIM_WITHIN } sim_direction;

typedef struct sim_task {
    sim_task_kind kind;
    union {
        dev_op op;
        struct {
            dev_kernel kernel;
            dev_arg args[SIM_MAX_ARGS];
            size_t n_items;
        } launch;
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            sim_direction direction;
            double pushed_at;
        } copy;
        dev_ticket wait;
        struct {
            uint64_t begin, bytes;
            bool open;
        } protect;
    } as;
} sim_task;

struct dev_sim;

typedef struct sim_stream {
    struct dev_sim *d;
    uint32_t index;
    base_lane *lane;
    base_rng rng;       /* of the lane's thread */
    atomic_bool failed; /* tasks are passed over */
    weir_error error;   /* under `inner` */
} sim_stream;

typedef struct dev_sim {
    dev_device device; /* first: the table's functions get a pointer to it */
    base_env *env;
    base_env *own; /* ledger of what would be the GPU's own: outside of the host's budget */
    dev_device *cpu;
    dev_sim_options options;
    base_protect *memory;
    uint64_t address_bytes;

    pthread_mutex_t lock; /* all below up to `inner` */
    sim_range *ranges;    /* by begin */
    uint32_t n_ranges, cap_ranges;
    uint64_t cursor, clock;
    uint64_t live_bytes, cache_bytes, workspace_bytes, quarantine_bytes;
    uint64_t n_allocs;
    sim_pin *pins;
    uint32_t n_pins, cap_pins;
    uint64_t pinned_bytes;
    uint8_t *payload;
    size_t payload_used;

    pthread_mutex_t inner;
    double link_due[2]; /* when the link is free again, up and down */
    uint32_t n_streams;
    sim_stream streams[DEV_MAX_STREAMS];
} dev_sim;

static inline dev_sim *sim_of(dev_device *device)
{
    return (dev_sim *)(void *)device;
}

/* ---- dev_sim.c; `lock` is held ---- */
/* The range with this address, live or freed; NULL where there never was one. */
const sim_range *sim_find(const dev_sim *d, const void *address);
/* OK when [address, address + bytes) lies in one live allocation, open if `reads` is set; else DEVICE, naming
 * `what` and the label. NULL is OK. */
weir_status sim_check(const dev_sim *d, const void *address, uint64_t bytes, bool opened, const char *what,
                      weir_error *err);
/* DEVICE, naming whom the place in the address space belongs to. */
weir_status sim_fail_touched(const dev_sim *d, uint64_t where, weir_error *err);
/* Opens the front as the ranges say, after base_protect_heal. */
weir_status sim_reopen(dev_sim *d, weir_error *err);
bool sim_is_pinned(const dev_sim *d, const void *host, uint64_t bytes);
uint8_t *sim_back(const dev_sim *d, const void *address);

/* ---- dev_sim_stream.c ---- */
weir_status sim_streams_create(dev_sim *d, weir_error *err);
void sim_streams_destroy(dev_sim *d); /* carries out what waits */
void sim_streams_drain(dev_sim *d);
/* Pushes a change of protection to the compute stream; `lock` is held. */
void sim_push_protect(dev_sim *d, uint64_t begin, uint64_t bytes, bool open);

weir_status sim_run(dev_device *device, const dev_op *op, weir_error *err);
weir_status sim_launch(dev_device *device, const dev_kernel *kernel, const dev_arg *args, uint32_t n_args,
                       size_t n_items, weir_error *err);
weir_status sim_upload(dev_device *device, uint32_t stream, void *dst, const void *host, uint64_t bytes,
                       dev_ticket *done, weir_error *err);
weir_status sim_download(dev_device *device, uint32_t stream, void *host, const void *src, uint64_t bytes,
                         dev_ticket *done, weir_error *err);
weir_status sim_copy(dev_device *device, uint32_t stream, void *dst, const void *src, uint64_t bytes,
                     dev_ticket *done, weir_error *err);
weir_status sim_mark(dev_device *device, uint32_t stream, dev_ticket *out, weir_error *err);
weir_status sim_wait_on(dev_device *device, uint32_t stream, dev_ticket t, weir_error *err);
bool sim_reached(dev_device *device, dev_ticket t);
weir_status sim_sync(dev_device *device, dev_ticket t, weir_error *err);
weir_status sim_recover(dev_device *device, weir_error *err);

#endif
