/* The memory manager: models of several components on devices that hold memory of their own, in phases.
 *
 *   manager (one per device) --- handle (a component on it) --- unit (moves together) --- weight
 *   request (a job) --- phase (a stretch that uses some handles) --- unit entered and left
 *
 *            storage            RAM                          device
 *   weight:  file range  -->  host copy / pinned staging -->  resident, or in a slot while its unit runs
 *
 * A phase lists handles; they are placed, whole or partly, and stay until it ends. What it does not list
 * yields when memory is short. Units that found no room are copied into one of a few slots when they are
 * entered, ahead of time where their order is known. Results never depend on any of it.
 *
 * Threads: each request belongs to one thread at a time; different requests may run on different threads.
 * Everything that managers share is under one lock, that of their RAM tier. Registration and sealing of a
 * handle belong to one thread. Where several jobs share a device (gpu_jobs > 1), a phase calls the device
 * only through mem_phase_*, or between mem_device_take and mem_device_give.
 *
 * Sizes in settings whose names end in _mb are in MB = 1,000,000 bytes; all else is in bytes. */
#ifndef WEIR_MEM_MANAGER_H
#define WEIR_MEM_MANAGER_H

/* Included by memory.h. */
#include "devices/device.h"

/* ---- policy ---- */

/* R3.6. high: whole models, whole yields. auto: whole where it fits. low: no more than the smallest working
 * set. none: everything streamed, and nothing stays on the device behind a phase. shared: unified memory:
 * whole yields. */
typedef enum mem_vram_mode {
    MEM_VRAM_HIGH,
    MEM_VRAM_AUTO,
    MEM_VRAM_LOW,
    MEM_VRAM_NONE,
    MEM_VRAM_SHARED
} mem_vram_mode;
const char *mem_vram_mode_text(mem_vram_mode mode);
typedef enum mem_switch { MEM_AUTO, MEM_ON, MEM_OFF } mem_switch;

#define MEM_MAX_OFFLOAD 8

typedef struct mem_policy {
    mem_vram_mode vram_mode;      /* compute.vram_mode [auto] */
    uint64_t vram_limit_bytes;    /* compute.vram_limit_mb; 0: none */
    uint64_t vram_reserve_bytes;  /* compute.vram_reserve_mb [400]; weighed, never allocated */
    uint64_t ram_reserve_bytes;   /* compute.ram_reserve; UINT64_MAX: max(2 GB, RAM / 10) */
    mem_switch host_copies;       /* compute.host_copies [auto: while free RAM > reserve] (R6.1) */
    uint64_t max_pinned_bytes;    /* compute.max_pinned_mb; UINT64_MAX: by R5.4 from the machine's RAM */
    uint32_t async_offload;       /* compute.async_offload [2]: copies ahead of the unit that runs; 0..8 */
    mem_switch prefetch_sequence; /* R5.3 [auto: off, from storage measured] */
    bool oom_retry;               /* compute.oom_retry [on] */
    bool oom_fallback;            /* compute.oom_fallback [off] */
    uint32_t gpu_jobs;            /* compute.gpu_jobs [1] */
    /* compute.max_resident_models [0: any number] (R7.6): when a phase makes it more, the idle model used
     * longest ago leaves its device. What one engine registered is one model, and each language model is one.
     */
    uint32_t max_resident_models;
    double wait_limit_s;          /* R3.7 [600] */
    const char *pinned_models;    /* engines.pinned_models: "engine" or "engine:component", separated by
                                   * commas; yield last, are never unloaded. Copied. NULL: none */
    const char *calibration_file; /* R9.3, "": not kept. Copied. NULL as "" */
    const char *proc_root, *cgroup_root; /* NULL: the system's; tests point them at a copy. Copied */
} mem_policy;
/* The built-in values. */
void mem_policy_init(mem_policy *p);
/* Those of the settings; calibration_file stays NULL. Strings point into `settings`. INVALID_ARGUMENT names a
 * setting out of range. */
weir_status mem_policy_read(mem_policy *p, const base_settings *settings, weir_error *err);
const char *mem_switch_text(mem_switch s);
/* Puts in what depends on the machine: ram_reserve_bytes (R6.5) and max_pinned_bytes (R5.4). */
void mem_policy_resolve(mem_policy *p, const base_memory_limits *limits);

/* ---- manager ---- */

typedef struct mem_manager mem_manager;
typedef struct mem_handle mem_handle;

/* device: not owned, outlives the manager. One whose table has no memory (the plain CPU) is managed at no
 * cost: its weights live in RAM and phases move and count nothing (R2.5). peer: a manager of the same
 * environment whose RAM tier (lock, pinned memory, RAM reserve) this one shares, so that requests can use
 * both; NULL: none. Errors: OUT_OF_MEMORY,
 * BUDGET, INVALID_ARGUMENT (policy out of range), DEVICE. */
weir_status mem_manager_create(base_env *env, dev_device *device, const mem_policy *policy, mem_manager *peer,
                               mem_manager **out, weir_error *err);
/* Takes NULL. Handles and requests are gone before; peers may go in any order. */
void mem_manager_destroy(mem_manager *m);
dev_device *mem_manager_device(const mem_manager *m);
bool mem_manager_is_host(const mem_manager *m); /* computes in RAM: R2.5 */
const mem_policy *mem_manager_policy(const mem_manager *m);

/* Device memory that stays across phases (key-value caches, tables). Idle components yield for it, and it is
 * not counted as any phase's working memory (R9.3). On a host manager: RAM. Contents undefined. Errors:
 * DEVICE_MEMORY, BUDGET, OUT_OF_MEMORY, DEVICE. */
weir_status mem_manager_alloc(mem_manager *m, uint64_t bytes, const char *label, void **address,
                              weir_error *err);
void mem_manager_free(mem_manager *m,
                      void *address); /* takes NULL; waits until the device has done with it */
/* What a new component could have at most for weights and kept memory, working memory aside: R3.2 and what
 * idle components can give up, less the reserve. as: counted as if it were not there; may be NULL. 0 on a
 * host manager. */
uint64_t mem_manager_room(mem_manager *m, const mem_handle *as);
/* Another policy from now on: settings that changed. Devices, RAM tier and calibration stay what they are.
 * INVALID_ARGUMENT where it is out of range. */
weir_status mem_manager_set_policy(mem_manager *m, const mem_policy *policy, weir_error *err);
/* Host memory that copies from files pass through, now instead of when it is first needed. */
weir_status mem_manager_open_staging(mem_manager *m, weir_error *err);
/* What that takes of RAM (tag PINNED; IO where it cannot be pinned); 0 where it is there already. */
uint64_t mem_manager_staging_bytes(mem_manager *m);
/* Moves idle handles off (after a job failed for memory, before training: R7.6): those of models that nobody
 * has used for idle_s seconds, 0: all that are idle. Pinned models too where `pinned`. Returns the device
 * bytes that became free. */
uint64_t mem_manager_unload_idle(mem_manager *m, double idle_s, bool pinned);

typedef struct mem_manager_info {
    mem_policy policy;      /* strings are the manager's */
    dev_memory_info device; /* as the driver says now; zeroes on a host manager */
    uint64_t free_bytes;    /* R3.2 */
    uint64_t fixed_bytes, resident_bytes, slot_bytes, kept_bytes, working_bytes; /* what the manager took */
    uint64_t pinned_bytes, host_copy_bytes; /* of the RAM tier, all peers together */
    uint64_t max_pinned_bytes, ram_free_bytes, ram_reserve_bytes;
    uint32_t n_handles, n_requests, n_waiting;
} mem_manager_info;
weir_status mem_manager_get_info(mem_manager *m, mem_manager_info *out, weir_error *err);

/* The device for calls that do not go through mem_phase_*. Not needed while one job runs at a time. */
void mem_device_take(mem_manager *m);
void mem_device_give(mem_manager *m);

/* ---- handles: a component on a device ---- */

#define MEM_UNIT_DEFAULT UINT32_MAX /* by R4.1 from the weights' names */

typedef struct mem_handle_weight {
    const char *name; /* copied; "decoder.layers.3.attn.q": dots part sub-modules */
    uint64_t bytes;   /* > 0 */
    /* Either host memory, which stays and is not owned, or a range of a file, not owned either. */
    void *host;
    base_file *file;
    uint64_t offset;
    /* The whole storage that host lies in, where it is larger than the weight: pinned as one (R5.5). NULL:
     * the weight is a storage of its own. */
    void *storage;
    uint64_t storage_bytes;
    bool streamable; /* read only inside its own unit's operations (R4.2); false: fixed part */
    bool shared;     /* with something outside the unit (tied head): fixed part */
    bool changes; /* compute may write it: copied back to `host` when it leaves (R6.1); fixed part. Not on a
                     file range */
} mem_handle_weight;

/* engine and component name the handle in errors, reports and calibration ("qwen3tts", "talker"); copied. */
weir_status mem_handle_create(mem_manager *m, const char *engine, const char *component, mem_kind kind,
                              mem_handle **out, weir_error *err);
/* Named units, in running order. MEM_MARK_CPU: its weights stay in RAM and never move (R4.3); their addresses
 * are host memory. */
weir_status mem_handle_add_unit(mem_handle *h, const char *name, mem_mark mark, uint32_t *unit,
                                weir_error *err);
/* unit: of mem_handle_add_unit, or MEM_UNIT_DEFAULT. Ids count from 0. */
weir_status mem_handle_add_weight(mem_handle *h, uint32_t unit, const mem_handle_weight *w, mem_weight_id *id,
                                  weir_error *err);
/* A mark on a sub-module of weights under the default rule: all whose name begins with `path` and ends there
 * or goes on with a dot (R4.4). The longest path wins. Before sealing. */
weir_status mem_handle_mark(mem_handle *h, const char *path, mem_mark mark, weir_error *err);
/* Ends registration: applies R4.1 (a child of at least 1 MB of the outermost list, a path up to its first
 * number, is a unit) and R4.3 (the fixed part: units under 64 KiB, what does not stream, what is shared or
 * marked). Nothing is loaded. */
weir_status mem_handle_seal(mem_handle *h, weir_error *err);
/* Device memory of a component that stays across phases, as mem_manager_alloc; for it too idle components
 * yield, where the limit or the device has no room. mem_manager_free frees it. */
weir_status mem_handle_alloc(mem_handle *h, uint64_t bytes, const char *label, void **address,
                             weir_error *err);
/* From one such block to another, or within one where the ranges do not meet; done when it returns. */
weir_status mem_handle_copy(mem_handle *h, void *dst, const void *src, uint64_t bytes, weir_error *err);
/* The device's own work space (dev_table.reserve_workspace), likewise; it stays with the device, for all. */
weir_status mem_handle_workspace(mem_handle *h, size_t k, uint32_t n_positions, uint32_t head_dim,
                                 weir_error *err);
/* So much of it is there: what a component is to promise itself is what it needs beyond that. */
uint64_t mem_manager_workspace_bytes(mem_manager *m);
/* So much kept memory the component will have in all, and work space beyond what is there; what it has not
 * taken yet is nobody else's, nor for its own weights. */
void mem_handle_keep(mem_handle *h, uint64_t bytes);
/* Its copies in RAM take so many bytes at most, those of units that stream first. own_word: the user gave
 * the budget that they are of, and no reserve counts (R6.1, R6.5). Without this call: R6.1 for all units. */
void mem_handle_limit_copies(mem_handle *h, uint64_t bytes, bool own_word);
/* Gives back what the limits, the policy and so much room do not keep: blocks of units, and copies in RAM
 * beyond copy_bytes. The next phase takes what they add. So, where both go over to other budgets, all has
 * been given back before anything is taken. The handle is idle. */
void mem_handle_give_back(mem_handle *h, uint64_t room_bytes, uint64_t copy_bytes);
/* Its weights take so many bytes of the device at most, in every mode and whatever room there is: what a
 * budget of RAM leaves them where the device's memory is RAM. Below the smallest working set that is tried
 * all the same. UINT64_MAX, and without this call: no limit. */
void mem_handle_limit_weights(mem_handle *h, uint64_t bytes);
/* Hears of bytes that a phase loads before it begins, and may ask the manager; NULL: nobody. */
void mem_handle_on_load(mem_handle *h, void (*fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes),
                        void *arg);

/* What a phase that lists the component alone would place. The manager's own decision, before anything is
 * loaded. */
typedef struct mem_handle_plan {
    uint64_t fixed_bytes, resident_bytes, slot_bytes; /* slot_bytes: all slots */
    uint64_t streamed_bytes;                          /* copied to the device when all units run once */
    uint64_t copy_bytes;                              /* copies in RAM */
    uint64_t file_bytes;                              /* of what streams, from files */
    uint64_t smallest_bytes, size_bytes;              /* as mem_handle_info */
    uint32_t n_units, n_resident, n_slots;
} mem_handle_plan;
/* room_bytes: of the device, for weights. copy_bytes: of RAM, for copies. After sealing. */
void mem_handle_decide(mem_handle *h, uint64_t room_bytes, uint64_t copy_bytes, mem_handle_plan *out);

/* Takes NULL. No phase uses it. Frees, copies nothing back (R6.2). */
void mem_handle_destroy(mem_handle *h);
/* Moves an idle handle off its device, with copying back. `host` also drops what was read into RAM, and
 * pinning.
 * INVALID_ARGUMENT where a phase uses it. */
weir_status mem_handle_unload(mem_handle *h, bool host, weir_error *err);
/* Another source of the same length for a weight (R6.4): an adapter, a voice. host as in mem_handle_weight.
 * What lies on the device is dropped and comes anew with the next phase. Not while a phase uses the handle
 * (INVALID_ARGUMENT). On an error the old source stands. */
weir_status mem_handle_replace(mem_handle *h, mem_weight_id id, const mem_handle_weight *source,
                               weir_error *err);

typedef struct mem_handle_info {
    const char *engine, *component;
    mem_manager *manager;
    mem_kind kind;
    uint32_t n_units, n_weights; /* units that can stream, after sealing */
    uint64_t size_bytes;         /* on the device, when whole */
    uint64_t fixed_bytes;
    uint64_t smallest_bytes; /* R4.6 with one copy at a time, the least the streamer can do with */
    uint64_t loaded_bytes;   /* fixed part and resident units now on the device */
    uint64_t slot_bytes;
    uint64_t host_bytes;     /* file ranges read into RAM, and copies of weights there */
    uint64_t pinned_bytes;   /* registered in place, and pinned copies */
    uint64_t streamed_bytes; /* copied into slots since creation */
    uint64_t kept_bytes;     /* mem_handle_alloc and mem_handle_workspace */
    uint32_t n_resident, n_slots;
    bool from_storage, copies_ahead; /* with the next three as in mem_component_report */
    const char *prefetch;
    double round_s_without, round_s_with;
    const char *reason; /* R10.1, as it is now: "" whole */
    bool whole, busy;
} mem_handle_info;
void mem_handle_get_info(const mem_handle *h, mem_handle_info *out);
typedef struct mem_handle_unit {
    const char *name;
    uint64_t bytes;
    uint32_t n_weights;
    mem_mark mark;
    bool resident;
} mem_handle_unit;
/* The i-th unit in running order; false behind the last. After sealing. */
bool mem_handle_get_unit(const mem_handle *h, uint32_t i, mem_handle_unit *out);
/* The unit that holds a weight, for mem_unit_enter; MEM_UNIT_DEFAULT: fixed part or cpu. */
uint32_t mem_handle_unit_of(const mem_handle *h, mem_weight_id id);

/* ---- requests: jobs ---- */

typedef struct mem_request mem_request;
typedef struct mem_phase mem_phase;

typedef struct mem_request_desc {
    const char *name;             /* for messages; copied */
    mem_manager *const *managers; /* those it may use, the first is the main one; NULL with n 0: none */
    uint32_t n_managers;          /* 1..8 */
    atomic_bool *cancel;          /* may be NULL; read at every copy and while waiting (R5.6, R3.7) */
    base_rng *const *generators;  /* restored by an exact retry; not owned */
    uint32_t n_generators;        /* 0..8 */
    bool one_call;                /* begun and ended without giving the thread back in between */
} mem_request_desc;
/* Waits while gpu_jobs others run on one of the devices, in order of arrival, at most the wait limit: then
 * DEVICE with a message that says so. Errors: CANCELLED, OUT_OF_MEMORY; INVALID_ARGUMENT at once where it
 * would wait for a request of its own thread, which nobody could end meanwhile: one whose phase this thread
 * opened, and for one_call any that it used last. A request over host managers only waits for nobody. */
weir_status mem_request_begin(const mem_request_desc *desc, mem_request **out, weir_error *err);

#define MEM_REPORT_COMPONENTS 16
#define MEM_NAME_BYTES        64

/* R10.1: how the last phase that listed it found it, with all that was weighed. */
typedef struct mem_component_report {
    char engine[MEM_NAME_BYTES], component[MEM_NAME_BYTES];
    char phase[MEM_NAME_BYTES];
    const char *reason;      /* "" whole; "budget", "mode", "capped after OOM", "gave up for another" */
    const char *mode;        /* "auto" */
    uint64_t free_bytes;     /* R3.2, after others yielded */
    uint64_t need_bytes;     /* R3.1 */
    uint64_t working_bytes;  /* estimate x calibration */
    uint64_t estimate_bytes; /* as the engine gave it */
    double calibration;
    uint64_t reserve_bytes;
    uint64_t limit_bytes;  /* 0: none */
    uint64_t budget_bytes; /* what it was given; UINT64_MAX: whole */
    uint64_t loaded_bytes, size_bytes, slot_bytes;
    uint64_t streamed_bytes;          /* in this request */
    char gave_up_for[MEM_NAME_BYTES]; /* "" or who took its room last */
    /* R5.3. Whether some of what streams comes from storage; whether units are copied ahead, and what says
     * so: "kind", "setting", "measuring", "measured", "" where nothing streams. What a round of the units
     * took at best either way, where it was measured; 0: it was not. */
    bool from_storage, copies_ahead;
    const char *prefetch;
    double round_s_without, round_s_with;
} mem_component_report;

typedef struct mem_report {
    uint64_t streamed_bytes, loaded_bytes, size_bytes; /* of the components used; streamed: in this request */
    uint64_t n_copies;                                 /* units copied into slots */
    uint64_t n_hits;                                   /* entered while a copy was still there or under way */
    uint64_t n_waits;    /* entered before their copy had ended: the compute stream waits */
    double host_wait_s;  /* this thread stood still for storage or staging */
    double job_wait_s;   /* for other jobs (R3.7) */
    uint64_t read_bytes; /* from files */
    uint64_t n_yields;   /* units and components that others gave up for this request */
    uint64_t yielded_bytes;
    uint64_t working_peak_bytes; /* measured, of the largest phase */
    uint32_t n_phases, n_oom_retries, n_device_retries;
    char fallbacks[MEM_NAME_BYTES]; /* applied.fallbacks: names, separated by commas; "" none */
    uint32_t n_components;
    mem_component_report components[MEM_REPORT_COMPONENTS];
} mem_report;
void mem_request_report(const mem_request *r, mem_report *out);
/* Takes NULL. A phase that is open is ended. */
void mem_request_end(mem_request *r);

/* ---- phases ---- */

typedef struct mem_need {
    mem_manager *manager;
    uint64_t bytes;
} mem_need;
#define MEM_PHASE_HANDLES 16
typedef struct mem_phase_desc {
    const char *name; /* for messages and reports; copied */
    mem_handle *const *handles;
    uint32_t n_handles;     /* 0..16 */
    uint64_t memory_bytes;  /* working memory on the request's main manager, as the engine estimates it */
    const mem_need *others; /* on its other managers */
    uint32_t n_others;
} mem_phase_desc;

/* Places the handles, keeps `memory` free, and keeps them from yielding until mem_phase_end (R2.1). One phase
 * at a time in a request, and one phase at a time for a handle: others wait for it. Where the smallest
 * working set does not fit beside what another job holds, waits for that job (R3.7); for one of the same
 * thread nobody waits: a handle that it uses is INVALID_ARGUMENT, and what it leaves free is what there is.
 * Errors: DEVICE_MEMORY (an allocation really failed), CANCELLED, IO and its kin (file), DEVICE,
 * INVALID_ARGUMENT. */
weir_status mem_use(mem_request *r, const mem_phase_desc *desc, mem_phase **out, weir_error *err);
/* Waits for the device, frees the phase's memory, measures (R9.3). The status is that of the device's work:
 * after an error, what the phase computed is worthless. Takes NULL. p is gone in any case. */
weir_status mem_phase_end(mem_phase *p, weir_error *err);

typedef weir_status (*mem_run_fn)(void *arg, mem_phase *p, weir_error *err);
typedef struct mem_run_desc {
    mem_phase_desc phase;
    mem_run_fn fn; /* pure: it writes nothing but its result, and that anew at each attempt */
    void *arg;
    base_rng *const *generators; /* besides the request's */
    uint32_t n_generators;       /* 0..8 */
    mem_run_fn fallback;         /* leaner, its result may differ slightly; NULL: none (R8.3) */
    const char *fallback_name;
} mem_run_desc;
/* A phase around fn, with exact retry (R8.1): when fn or placing fails with DEVICE_MEMORY, everything idle
 * leaves the device, the phase's components are capped at half of what they had, generators are put back, and
 * it runs again, at most twice. A device that failed otherwise (DEVICE) gets one more attempt; waiting for
 * another job does not. */
weir_status mem_run_phase(mem_request *r, const mem_run_desc *desc, weir_error *err);

/* An engine that declares no phases (R2.4): all its handles for the whole call, with memory_required(task) as
 * working memory. */
typedef struct mem_whole_call {
    mem_handle *const *handles;
    uint32_t n_handles;
    uint64_t (*memory_required)(void *arg); /* NULL: 0 */
    mem_run_fn fn;
    void *arg;
} mem_whole_call;
weir_status mem_call(mem_request *r, const mem_whole_call *call, weir_error *err);

/* ---- inside a phase ---- */

/* Makes a unit's weights readable until mem_unit_leave; what is given to the compute stream meanwhile finds
 * them. The copy of a unit that streams starts here or started earlier; the host does not wait for it. At
 * most as many units of a handle may be entered at once as it has slots (one, where nothing more was to be
 * had); a wholly resident handle has no such bound. INVALID_ARGUMENT for a handle that the phase did not
 * list. After an error, nothing is entered and the phase goes on. */
weir_status mem_unit_enter(mem_phase *p, mem_handle *h, uint32_t unit, weir_error *err);
void mem_unit_leave(mem_phase *p, mem_handle *h, uint32_t unit);
/* The device address of a weight: of the fixed part in the whole phase, of a unit while it is entered (else
 * INVALID_ARGUMENT, naming weight and unit). Host memory for MEM_MARK_CPU and on host managers. */
weir_status mem_weight_address(mem_phase *p, mem_handle *h, mem_weight_id id, void **address,
                               weir_error *err);

/* Working memory of the phase, freed with it at the latest; in excess of its estimate too, as long as the
 * device gives it: idle components yield. Contents undefined. m: NULL is the request's main manager. Errors:
 * DEVICE_MEMORY (hand it on, so that mem_run_phase can retry), BUDGET and OUT_OF_MEMORY on host managers. */
weir_status mem_phase_alloc(mem_phase *p, mem_manager *m, uint64_t bytes, const char *label, void **address,
                            weir_error *err);
/* Gives it back while earlier work may still use it: it is reused in the compute stream's order. */
void mem_phase_free(mem_phase *p, mem_manager *m, void *address); /* takes NULL */

/* Work on the compute stream, and copies on it; `download` returns when the bytes are there. On host managers
 * these compute and copy at once. */
weir_status mem_phase_launch(mem_phase *p, mem_manager *m, const dev_kernel *kernel, const dev_arg *args,
                             uint32_t n_args, size_t n_items, weir_error *err);
weir_status mem_phase_op(mem_phase *p, mem_manager *m, const dev_op *op, weir_error *err);
weir_status mem_phase_upload(mem_phase *p, mem_manager *m, void *dst, const void *host, uint64_t bytes,
                             weir_error *err);
weir_status mem_phase_download(mem_phase *p, mem_manager *m, void *host, const void *src, uint64_t bytes,
                               weir_error *err);

/* ---- tiled 1-D decoding (R8.4) ---- */

/* Changes the output slightly: off until asked for (R1.3). Not for decoders with phase state. */
typedef struct mem_tiling {
    uint64_t n_frames;
    uint32_t tile_frames;      /* 0: 256 */
    uint32_t overlap_frames;   /* 0 with tile_frames 0: 32; below tile_frames / 2 */
    uint32_t values_per_frame; /* floats of output for each frame */
    /* Decodes frames [begin, end) into (end - begin) x values_per_frame floats. */
    weir_status (*decode)(void *arg, uint64_t begin, uint64_t end, float *out, weir_error *err);
    void *arg;
} mem_tiling;
/* out: n_frames x values_per_frame floats. Neighbouring tiles are cross-faded linearly over their overlap. */
weir_status mem_tiled_decode(base_env *env, const mem_tiling *t, float *out, weir_error *err);

#endif
