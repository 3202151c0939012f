/* The memory manager for engines that others write: models of several components on a device that may be too
 * small for them. docs/engines.md teaches it on examples/pipeline.
 *
 *   weir_manager (one per device) --- weir_component --- unit (moves together) --- weight
 *   weir_request (a job) --- weir_use: a phase (a stretch that uses some components) --- unit entered and
 * left
 *
 * Results do not depend on how much of a component the device holds. Threads: a request belongs to one thread
 * at a time, different requests may run on different threads; weir_request_cancel comes from anywhere.
 * Managers are opened and closed by any thread, one after the other; registration of a component belongs to
 * one thread. All sizes are in bytes. A NULL weir_error is allowed everywhere. */
#ifndef WEIR_MANAGER_H_PUBLIC
#define WEIR_MANAGER_H_PUBLIC

#include "kernel.h"
#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_manager weir_manager;
typedef struct weir_component weir_component;
typedef struct weir_request weir_request;
typedef struct weir_use weir_use; /* a phase */
typedef struct weir_generator weir_generator;

/* ---------------------------------------------------------------- managers */

typedef struct weir_manager_options {
    size_t struct_size;
    const char *device; /* NULL: setting compute.device. "cpu", "sim" (of compute.simulate_vram_mb, strict),
                         * "opencl:N" */
    uint32_t n_threads; /* of the processor, where it computes: "cpu" uses so many of the context's (weir.h),
                         * in turn with its models; "sim" has its own. 0: 1 */
    weir_manager *peer; /* of the same context, for requests that use both devices; NULL: none */
} weir_manager_options;
WEIR_API void weir_manager_options_init(weir_manager_options *o);
/* Opens a device, or joins the one of that name that the context has open: its language models and those who
 * use other managers of it yield to each other. With a peer, a device of its own. A language model's pass is
 * a job of its own (compute.gpu_jobs): one that is run inside a request of the same thread is refused at once
 * with INVALID_ARGUMENT, where no other job may run beside that. Policy: the settings
 * compute.*, as they are now. Goes before its context. Errors:
 * INVALID_ARGUMENT (a setting), DEVICE, UNSUPPORTED, OUT_OF_MEMORY, BUDGET. */
WEIR_API weir_status weir_manager_create(weir_context *c, const weir_manager_options *o, weir_manager **out,
                                         weir_error *err);
/* Takes NULL. Its components and requests are gone before. */
WEIR_API void weir_manager_destroy(weir_manager *m);
/* Moves idle components off, pinned ones too where `pinned`; returns the device bytes that became free. */
WEIR_API uint64_t weir_manager_unload_idle(weir_manager *m, bool pinned);
/* The same for models that nobody has used for so many seconds, for a server to call now and then; 0: all
 * that are idle. What one engine registered is one model; language models on the device are each one, and
 * their weights come back with their next pass. */
WEIR_API uint64_t weir_manager_unload_idle_for(weir_manager *m, double seconds, bool pinned);
/* Device memory that stays across phases (key-value caches, the state of a decoder). Idle components yield
 * for it, and no phase counts it as its working memory. Contents undefined; what is left goes with the
 * manager. Errors: DEVICE_MEMORY, DEVICE, BUDGET, OUT_OF_MEMORY. */
WEIR_API weir_status weir_manager_alloc(weir_manager *m, uint64_t bytes, const char *label, void **address,
                                        weir_error *err);
WEIR_API void weir_manager_free(weir_manager *m, void *address); /* takes NULL; waits for the device */

typedef struct weir_manager_info {
    size_t struct_size;
    const char *vram_mode; /* "auto" */
    bool host;             /* computes in RAM: phases move nothing */
    uint64_t total_bytes, free_bytes, limit_bytes /* 0: none */, reserve_bytes;
    uint64_t fixed_bytes, resident_bytes, slot_bytes, kept_bytes, working_bytes;
    uint32_t n_components, n_requests, n_waiting;
} weir_manager_info;
WEIR_API weir_status weir_manager_get_info(weir_manager *m, weir_manager_info *out, weir_error *err);

/* ---------------------------------------------------------------- components */

/* SEQUENCE runs once per token and keeps its first units, ONESHOT keeps the largest. */
typedef enum weir_kind { WEIR_KIND_SEQUENCE, WEIR_KIND_ONESHOT } weir_kind;
typedef enum weir_mark {
    WEIR_MARK_NONE,
    WEIR_MARK_HOT,   /* placed first */
    WEIR_MARK_FIXED, /* on the device whenever the component is */
    WEIR_MARK_COLD,  /* placed last */
    WEIR_MARK_CPU    /* stays in RAM */
} weir_mark;

/* engine and component name it in errors and reports; copied. */
WEIR_API weir_status weir_component_create(weir_manager *m, const char *engine, const char *component,
                                           weir_kind kind, weir_component **out, weir_error *err);
/* Units are named in running order. */
WEIR_API weir_status weir_component_add_unit(weir_component *h, const char *name, weir_mark mark,
                                             uint32_t *unit, weir_error *err);
#define WEIR_UNIT_DEFAULT UINT32_MAX /* units follow from the weights' names: "blocks.3.up" */

typedef struct weir_weight {
    size_t struct_size;
    const char *name; /* copied */
    uint64_t bytes;   /* > 0 */
    void *host;       /* memory that stays until the component is destroyed; not owned. Or NULL and: */
    const char *path; /* a file, of which the weight is the `bytes` from `offset` on */
    uint64_t offset;
    void *storage; /* the whole block that `host` lies in: from 1 MB on it is pinned where it lies, as one.
                    * NULL: `host` alone */
    uint64_t storage_bytes;
    bool streamable; /* read only while its unit is entered; false: fixed part */
    bool shared;     /* with something outside the unit: fixed part */
    bool changes;    /* compute may write it: copied back to `host`; fixed part */
} weir_weight;
WEIR_API void weir_weight_init(weir_weight *w); /* streamable, nothing else */
/* *id counts from 0. Errors: INVALID_ARGUMENT, NOT_FOUND, IO, TRUNCATED, OUT_OF_MEMORY. */
WEIR_API weir_status weir_component_add_weight(weir_component *h, uint32_t unit, const weir_weight *w,
                                               uint32_t *id, weir_error *err);
/* Marks the sub-module `path` of weights with WEIR_UNIT_DEFAULT. */
WEIR_API weir_status weir_component_mark(weir_component *h, const char *path, weir_mark mark,
                                         weir_error *err);
/* Ends registration; loads nothing. */
WEIR_API weir_status weir_component_seal(weir_component *h, weir_error *err);
/* Other bytes for a weight of a sealed component, of the same length: an adapter, a voice's own. Reads
 * source, storage and bytes; copies of the old bytes go, and the next phase brings the new ones. Errors:
 * INVALID_ARGUMENT (also while a phase uses the component), and those of weir_component_add_weight; then the
 * old bytes stand. */
WEIR_API weir_status weir_component_replace(weir_component *h, uint32_t weight, const weir_weight *source,
                                            weir_error *err);
/* Takes NULL. No phase uses it. Copies nothing back. */
WEIR_API void weir_component_destroy(weir_component *h);
/* Off the device, with what changed copied back; `host` also drops what was read into RAM. INVALID_ARGUMENT
 * while a phase uses it. */
WEIR_API weir_status weir_component_unload(weir_component *h, bool host, weir_error *err);

typedef struct weir_component_info {
    size_t struct_size;
    const char *engine, *component;
    uint32_t n_units, n_weights;
    uint64_t size_bytes, fixed_bytes, smallest_bytes, loaded_bytes, slot_bytes, host_bytes, streamed_bytes;
    bool whole, busy;
} weir_component_info;
WEIR_API void weir_component_get_info(const weir_component *h, weir_component_info *out);
/* The unit to enter for a weight; WEIR_UNIT_DEFAULT where it is in the fixed part, or stays in RAM. */
WEIR_API uint32_t weir_component_unit_of(const weir_component *h, uint32_t weight);

/* ---------------------------------------------------------------- requests */

/* Random numbers (PCG32) that an exact retry puts back, so that it draws the same ones. */
WEIR_API weir_status weir_generator_create(weir_context *c, uint64_t seed, weir_generator **out,
                                           weir_error *err);
WEIR_API void weir_generator_destroy(weir_generator *g); /* takes NULL */
WEIR_API uint32_t weir_generator_u32(weir_generator *g);
WEIR_API float weir_generator_f32(weir_generator *g); /* uniform in [0, 1), 24 bits */

#define WEIR_REQUEST_MAX 8 /* managers, generators */
typedef struct weir_request_options {
    size_t struct_size;
    const char *name;              /* for messages; copied */
    weir_manager *const *managers; /* the first is the main one */
    uint32_t n_managers;           /* 1..8 */
    weir_generator *const *generators;
    uint32_t n_generators; /* 0..8 */
} weir_request_options;
WEIR_API void weir_request_options_init(weir_request_options *o);
/* Waits while others have the device. Errors: DEVICE (waited too long), OUT_OF_MEMORY, INVALID_ARGUMENT: also
 * at once where it would wait for a request of the same thread whose phase is open. */
WEIR_API weir_status weir_request_begin(const weir_request_options *o, weir_request **out, weir_error *err);
/* From any thread or signal handler: the request's next copy, wait or phase is CANCELLED. */
WEIR_API void weir_request_cancel(weir_request *r);
WEIR_API void weir_request_end(weir_request *r); /* takes NULL; ends an open phase */

#define WEIR_REPORT_MAX 16
typedef struct weir_component_report {
    char engine[64], component[64], phase[64];
    const char *reason; /* "" whole; "budget", "mode", "capped after OOM", "gave up for another" */
    const char *mode;
    char gave_up_for[64];
    double calibration;
    uint64_t free_bytes, need_bytes, working_bytes, estimate_bytes, reserve_bytes, limit_bytes /* 0: none */;
    uint64_t budget_bytes; /* what it was given; UINT64_MAX: whole */
    uint64_t loaded_bytes, size_bytes, slot_bytes, streamed_bytes;
    /* What streams: whether some of it comes from storage, whether units are copied ahead of time, and what
     * says so: "kind" (ONESHOT does), "setting" (compute.prefetch_sequence), "measuring", "measured"; ""
     * where nothing streams. From storage both ways are timed in turns and the quicker one stays: the seconds
     * that a round of the units took at best, 0 where that was not measured. */
    bool from_storage, copies_ahead;
    const char *prefetch;
    double round_s_without, round_s_with;
} weir_component_report;
typedef struct weir_request_report {
    size_t struct_size;
    uint64_t streamed_bytes, loaded_bytes, size_bytes;
    uint64_t n_copies, n_hits, n_waits, read_bytes, n_yields, yielded_bytes, working_peak_bytes;
    double host_wait_s, job_wait_s;
    uint32_t n_phases, n_oom_retries, n_device_retries;
    char fallbacks[64]; /* "" none: the result is exact */
    uint32_t n_components;
    weir_component_report components[WEIR_REPORT_MAX];
} weir_request_report;
WEIR_API void weir_request_get_report(const weir_request *r, weir_request_report *out);

/* ---------------------------------------------------------------- phases */

typedef weir_status (*weir_run_fn)(void *arg, weir_use *p, weir_error *err);
typedef struct weir_need {
    weir_manager *manager;
    uint64_t memory_bytes;
} weir_need;
typedef struct weir_phase_options {
    size_t struct_size;
    const char *name;                  /* copied */
    weir_component *const *components; /* on any of the request's managers */
    uint32_t n_components;             /* 0..16 */
    uint64_t memory_bytes;             /* working memory on the main manager, as the engine estimates it */
    const weir_need *others;           /* on the request's other managers */
    uint32_t n_others;                 /* 0..8 */
    /* For weir_request_run alone: */
    weir_run_fn fn; /* pure: writes nothing but its result, and that anew at each attempt */
    void *arg;
    weir_generator *const *generators; /* besides the request's */
    uint32_t n_generators;             /* 0..8 */
    weir_run_fn fallback;              /* leaner, its result may differ; NULL: none */
    const char *fallback_name;
} weir_phase_options;
WEIR_API void weir_phase_options_init(weir_phase_options *o);
/* Places the components, whole or partly, and holds them until weir_use_end. Errors: DEVICE_MEMORY (an
 * allocation really failed), CANCELLED, IO and its kin, DEVICE, INVALID_ARGUMENT. */
WEIR_API weir_status weir_request_use(weir_request *r, const weir_phase_options *o, weir_use **out,
                                      weir_error *err);
/* Waits for the device; after an error what the phase computed is worthless. Takes NULL; p is gone. */
WEIR_API weir_status weir_use_end(weir_use *p, weir_error *err);
/* A phase around fn. Where the device has not enough memory it runs again, at most twice, with generators put
 * back: the same result. */
WEIR_API weir_status weir_request_run(weir_request *r, const weir_phase_options *o, weir_error *err);

/* For an engine that declares no phases: all its components for the whole call. fn is called once and not
 * retried, so that memory_required must cover what it needs. */
typedef struct weir_call_options {
    size_t struct_size;
    weir_component *const *components;
    uint32_t n_components;                  /* 0..16 */
    uint64_t (*memory_required)(void *arg); /* working memory; NULL: none */
    weir_run_fn fn;
    void *arg;
} weir_call_options;
WEIR_API void weir_call_options_init(weir_call_options *o);
WEIR_API weir_status weir_request_call(weir_request *r, const weir_call_options *o, weir_error *err);

/* A unit's weights are readable between the two. After an error nothing is entered and the phase goes on. */
WEIR_API weir_status weir_unit_enter(weir_use *p, weir_component *h, uint32_t unit, weir_error *err);
WEIR_API void weir_unit_leave(weir_use *p, weir_component *h, uint32_t unit);
/* Of the fixed part in the whole phase, of a unit while it is entered (else INVALID_ARGUMENT). */
WEIR_API weir_status weir_weight_address(weir_use *p, weir_component *h, uint32_t weight, void **address,
                                         weir_error *err);
/* m: NULL is the request's main manager, here and below. Contents undefined; freed with the phase. Hand on
 * DEVICE_MEMORY, so that weir_request_run can retry. */
WEIR_API weir_status weir_use_alloc(weir_use *p, weir_manager *m, uint64_t bytes, const char *label,
                                    void **address, weir_error *err);
WEIR_API void weir_use_free(weir_use *p, weir_manager *m, void *address); /* takes NULL */

/* Queued in order; args are read before it returns. */
WEIR_API weir_status weir_use_launch(weir_use *p, weir_manager *m, const weir_kernel *kernel,
                                     const weir_arg *args, uint32_t n_args, size_t n_items, weir_error *err);
/* Copies in the order of the launches; host memory of an upload stays as it is until the phase ends or a
 * download returns, which has the bytes. */
WEIR_API weir_status weir_use_upload(weir_use *p, weir_manager *m, void *dst, const void *host,
                                     uint64_t bytes, weir_error *err);
WEIR_API weir_status weir_use_download(weir_use *p, weir_manager *m, void *host, const void *src,
                                       uint64_t bytes, weir_error *err);

/* Decoding along one axis in pieces, for a decoder whose working memory grows with its input: a fallback that
 * changes the output slightly. Not for decoders that carry state from frame to frame. */
typedef struct weir_tiling {
    size_t struct_size;
    uint64_t n_frames;
    uint32_t tile_frames;      /* 0: 256 */
    uint32_t overlap_frames;   /* below half a tile; with tile_frames 0: 32, whatever it is */
    uint32_t values_per_frame; /* floats of output for each frame */
    /* Decodes frames [begin, end) into (end - begin) x values_per_frame floats. */
    weir_status (*decode)(void *arg, uint64_t begin, uint64_t end, float *out, weir_error *err);
    void *arg;
} weir_tiling;
WEIR_API void weir_tiling_init(weir_tiling *t);
/* out: n_frames x values_per_frame floats in host memory. Neighbours are cross-faded over their overlap. */
WEIR_API weir_status weir_tiled_decode(weir_context *c, const weir_tiling *t, float *out, weir_error *err);

#ifdef __cplusplus
}
#endif

#endif
