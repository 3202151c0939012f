/* What the files of the memory manager share among themselves.
 *
 *   mgr_manager.c  life, policy, what is free, yielding   mgr_handle.c  registration, units
 *   mgr_decide.c   which units stay, pure                 mgr_load.c    onto the device and off it
 *   mgr_stream.c   units entered and left, slots          mgr_phase.c   requests and phases
 *   mgr_work.c     memory and work inside a phase         mgr_retry.c   exact retry, fallback, tiles
 *
 *   mgr_host.c     copies in RAM, pinning, RAM reserve    mgr_calibrate.c, mgr_policy.c
 *   mgr_keep.c     memory that stays across phases        mgr_source.c   programs that run over handles
 *   mgr_prefetch.c whether copies ahead pay, measured     mgr_log.c      lines, told without the lock
 *   mgr_idle.c     idle models leave
 *
 * The rules of the shared state are in README.md. */
#ifndef WEIR_MGR_INTERNAL_H
#define WEIR_MGR_INTERNAL_H

#include "memory.h"

#define MGR_DEFAULT_UNIT_BYTES UINT64_C(1000000) /* R4.1 */
#define MGR_SMALL_BYTES        (UINT64_C(64) << 10)
#define MGR_STAGE_BYTES        (UINT64_C(1) << 20)
#define MGR_MAX_BYTES          (UINT64_C(1) << 60)
#define MGR_MAX_SLOTS          (MEM_MAX_OFFLOAD + 1)
#define MGR_MANAGERS           8
#define MGR_NONE               UINT32_MAX
#define MGR_MAX_RATIOS         256
#define MGR_VIEW_ALIGN         UINT64_C(256)
#define MGR_PAGE_BYTES         4096u
#define MGR_PIN_BYTES          UINT64_C(1000000) /* R5.5 */

#define MGR_LINES              16
typedef struct mgr_line {
    base_log_level level;
    char text[500];
} mgr_line;

/* The RAM tier that peers share: one lock for all that hangs off their managers. */
typedef struct mgr_tier {
    base_env *env;
    base_lock *lock;
    uint32_t n_managers;
    uint64_t clock;     /* counts uses and placements: least recently used, order of placement */
    uint64_t arrival;   /* of requests */
    double ram_checked; /* when pressure was last looked for */
    mem_request *requests;
    mem_manager *managers;
    uint64_t pinned_bytes, max_pinned_bytes, host_copy_bytes, ram_reserve_bytes;
    double ram_read_at;    /* when ram_free_bytes was read; 0: never */
    double copies_checked; /* when copies that found no RAM were last thought of */
    uint64_t ram_free_bytes;
    char *proc_root, *cgroup_root;
    struct mgr_ratio {
        char key[2 * MEM_NAME_BYTES];
        double ratio;
    } * ratios; /* MGR_MAX_RATIOS of them */
    uint32_t n_ratios;
    bool saving;               /* somebody writes the calibration file, without the lock */
    mgr_line lines[MGR_LINES]; /* to be told when the lock is given back, from first_line on, in a circle */
    uint32_t first_line, n_lines, n_lost;
} mgr_tier;

typedef struct mgr_kept {
    struct mgr_kept *next;
    mem_handle *owner; /* NULL: nobody's */
    void *address;
    uint64_t bytes;
    uint64_t taken; /* what the device took for it */
} mgr_kept;

typedef struct mgr_pin { /* memory that is pinned where it lies */
    void *host;
    uint64_t bytes;
    uint32_t n_uses;
} mgr_pin;

struct mem_manager {
    base_env *env;
    mem_manager *next; /* of the tier's */
    dev_device *device;
    const dev_memory_table *mem; /* NULL: computes in RAM */
    mem_policy policy;
    char *pinned_models, *calibration_file;
    mgr_tier *tier;
    bool can_register, unified;
    mgr_pin *pins;
    uint32_t n_pins, cap_pins;
    uint64_t alignment;
    mem_handle *handles;
    uint64_t device_bytes[BASE_DEVICE_TAG_COUNT];
    uint64_t workspace_bytes; /* of the device's own work space, so far */
    uint64_t workspace_taken; /* what the device took for it, booked as kept memory */
    uint64_t epoch;           /* counts changes of what phases find: placements, kept memory, policy */
    uint64_t n_failures;      /* of streams, so far: what was under way then is worthless */
    mgr_kept *kept;
    uint8_t *stage; /* two halves of MGR_STAGE_BYTES, pinned where that was to be had; NULL until needed */
    bool stage_pinned;
    dev_ticket stage_ticket[2];
    bool stage_busy[2]; /* somebody reads into it, without the lock */
    uint32_t stage_next;
};

typedef struct mgr_weight {
    char *name;
    mem_handle_weight source; /* name not used */
    uint32_t unit;            /* as registered, then as sealed; the fixed part is h->n_units */
    mem_mark mark;
    uint64_t at;           /* in the unit's block */
    bool in_image, pinned; /* pinned: its storage, where it lies */
    uint64_t image_at;
} mgr_weight;

typedef struct mgr_unit {
    char *name;
    mem_mark mark;
    uint64_t bytes; /* of its block */
    uint32_t n_weights;
    void *block; /* NULL: not on the device */
    bool filled, wanted;
    uint64_t placed; /* order of placement */
    uint32_t slot, entered;
    uint32_t next;  /* learned: which unit came behind it */
    uint8_t *image; /* a copy of its weights in RAM (mgr_host.c); NULL: none */
    uint64_t image_bytes;
    bool image_pinned;
} mgr_unit;

typedef struct mgr_slot {
    void *block;
    uint32_t unit; /* whose copy it holds; MGR_NONE: nobody's */
    dev_ticket ready, left;
    uint64_t used;
} mgr_slot;

/* How a phase left a component that it alone listed: the next one need not weigh again. */
typedef struct mgr_settled {
    uint64_t epoch; /* the manager's; 0: not settled */
    uint64_t working, free_bytes, budget;
} mgr_settled;

typedef enum mgr_prefetch_state {
    MGR_PREFETCH_WARM,
    MGR_PREFETCH_MEASURING,
    MGR_PREFETCH_MEASURED
} mgr_prefetch_state;
/* mgr_prefetch.c; pairs: [0] without copies ahead, [1] with them. */
typedef struct mgr_prefetch {
    bool from_storage; /* of what streams, some has no copy in RAM */
    bool other;        /* not the kind's way, while it comes from storage */
    bool again;        /* it was placed for another way than the one in force */
    mgr_prefetch_state state;
    uint32_t n_phases; /* in this state */
    uint32_t n_streaming[2];
    double least_s[2]; /* of the measurement that runs, 0: none yet */
    double round_s[2]; /* of the last one that ended */
} mgr_prefetch;

struct mem_handle {
    mem_manager *m;
    mem_handle *next;
    char *engine, *component;
    mem_kind kind;
    bool sealed;
    mgr_weight *weights;
    uint32_t n_weights, cap_weights;
    mgr_unit *units; /* behind the last stand the fixed part and what stays in RAM */
    uint32_t n_units, cap_units;
    uint32_t *order; /* of keeping (R4.5) */
    struct mgr_path {
        char *path;
        mem_mark mark;
    } * marks;
    uint32_t n_marks, cap_marks;
    uint64_t whole_bytes;
    mgr_slot slots[MGR_MAX_SLOTS];
    uint32_t n_slots, n_wanted_slots;
    uint64_t slot_bytes, wanted_slot_bytes;
    uint64_t cap_bytes;              /* R8.1; UINT64_MAX: none */
    uint64_t limit_bytes;            /* mem_handle_limit_weights; UINT64_MAX: none */
    uint64_t keep_bytes, kept_bytes; /* promised, and taken of it */
    uint64_t workspace_taken;        /* of kept_bytes; stays with the device */
    uint64_t copy_limit_bytes;       /* UINT64_MAX: R6.1 */
    uint64_t copy_bytes;             /* its images */
    uint64_t lacking_bytes;          /* the smallest image that was wanted and found no RAM; 0: none */
    bool copies_own_word;
    void (*on_load)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *on_load_arg;
    mgr_settled settled;
    const char *reason; /* static text */
    mem_request *user;  /* the request whose phase uses it */
    bool leaving;       /* what was computed is being copied back, without the lock: as good as used */
    uint64_t used;      /* when last */
    double used_at;     /* the same in seconds */
    bool is_model;      /* whatever its engine's others are */
    uint64_t stuck;     /* when it last could not yield */
    uint32_t last_unit;
    uint32_t n_entered; /* units that stream, in this phase */
    mgr_prefetch prefetch;
    uint64_t streamed_bytes;
    double calibration;
    char gave_up_for[MEM_NAME_BYTES];
    uint8_t *ram; /* host managers and MEM_MARK_CPU: file ranges read into RAM */
    uint64_t ram_bytes;
};

typedef struct mgr_block {
    mem_manager *m;
    void *address;
    uint64_t bytes;
    bool given_back;
} mgr_block;

typedef struct mgr_part { /* of a phase, on one manager */
    mem_manager *m;
    uint64_t estimate, working, live, peak, free_bytes, need, budget;
    uint64_t held;       /* live, and what was given back and waits to be used again */
    uint64_t n_failures; /* of the manager, when the phase began */
    double calibration;
    bool settled;  /* nothing was weighed: all is as the last phase left it */
    bool recopies; /* settled, but there is RAM again for copies that found none */
} mgr_part;

struct mem_phase {
    mem_request *r;
    char name[MEM_NAME_BYTES];
    mem_handle *handles[MEM_PHASE_HANDLES];
    uint64_t budgets[MEM_PHASE_HANDLES];  /* that it was placed with */
    uint64_t together[MEM_PHASE_HANDLES]; /* what it shared with others of its device; 0: alone */
    uint32_t n_handles;
    mgr_part parts[MGR_MANAGERS];
    uint32_t n_parts;
    double began; /* 0: nobody asks how long it takes */
    mgr_block *blocks;
    uint32_t n_blocks, cap_blocks;
};

struct mem_request {
    mgr_tier *tier;
    mem_request *next;
    char name[MEM_NAME_BYTES];
    mem_manager *managers[MGR_MANAGERS];
    uint32_t n_managers;
    atomic_bool *cancel;
    base_rng *generators[8];
    uint32_t n_generators;
    uint64_t arrival;
    uint64_t thread;    /* that used it last */
    bool one_call;      /* that thread goes on only when it has ended */
    bool waiting, open; /* open: phase is one that was begun */
    bool ran_out;       /* of device memory, for good */
    bool late;          /* its last phase waited as long as may be: no failure of a device */
    mem_phase phase;
    mem_report report;
};

/* mgr_log.c */
/* Under the lock: is told when it is given back. */
void mem_mgr_log(mgr_tier *t, base_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells what there is to tell, with the lock given back meanwhile. */
void mem_mgr_tell(mgr_tier *t);
/* Tells and gives the lock back. */
void mem_mgr_leave(mgr_tier *t);

/* mgr_manager.c; all under the lock */
uint64_t mem_mgr_free_bytes(mem_manager *m, const mem_request *except);
/* The same; over: by how much what is taken and promised is beyond the limit, which may have been lowered. */
uint64_t mem_mgr_free_or_over(mem_manager *m, const mem_request *except, uint64_t *over);
/* Frees at least `bytes` from idle handles that `r`'s phase does not list, as far as there are any. Returns
 * what became free. */
uint64_t mem_mgr_yield(mem_manager *m, uint64_t bytes, mem_request *r, const mem_phase *p);
weir_status mem_mgr_alloc(mem_manager *m, base_device_tag tag, uint64_t bytes, const char *label,
                          mem_request *r, const mem_phase *p, void **out, weir_error *err);
void mem_mgr_free(mem_manager *m, base_device_tag tag, uint64_t bytes, void *address);
bool mem_mgr_lists(const mem_phase *p, const mem_handle *h);
/* Says that h gave up bytes for a phase of r (NULL: for others), in the log and in r's report. */
void mem_mgr_note_yield(mem_handle *h, mem_request *r, const mem_phase *p, uint64_t bytes);
/* Waits, with the lock, until nothing of the device is on its way; the device forgets errors, n_failures
 * counts them. For what failed: a handle that no phase uses has nothing on its way. */
void mem_mgr_quiet(mem_manager *m);
/* Waits for t with the lock given back meanwhile. */
weir_status mem_mgr_sync(mem_manager *m, dev_ticket t, weir_error *err);
/* Whether a phase, or its own way off the device, keeps a handle from all others. */
bool mem_mgr_is_taken(const mem_handle *h);
/* DEVICE where a stream has failed since the phase began, whoever met it. */
weir_status mem_mgr_check_failures(const mem_phase *p, const mgr_part *part, weir_error *err);
weir_status mem_mgr_cancelled(const mem_request *r, weir_error *err);

/* mgr_decide.c */
uint64_t mem_mgr_smallest(const mem_handle *h, uint32_t n_slots);
uint32_t mem_mgr_slots(const mem_handle *h);
/* What its owner allows it, whatever the room. UINT64_MAX: all of it. */
uint64_t mem_mgr_limit(const mem_handle *h);
/* Sets `wanted` of all units, n_wanted_slots and wanted_slot_bytes. UINT64_MAX: whole. Returns the bytes that
 * this takes. */
uint64_t mem_mgr_decide(mem_handle *h, uint64_t budget);
/* The budget that a share of the room makes, by mode (R3.6). UINT64_MAX: whole. */
uint64_t mem_mgr_budget(const mem_handle *h, uint64_t share);
/* What a unit's copy in RAM takes of what is left for copies, in running order; 0: it has none. After
 * mem_mgr_decide. */
uint64_t mem_mgr_copy_share(mem_handle *h, uint32_t unit, uint64_t *left);
uint64_t mem_mgr_held(const mem_handle *h);
bool mem_mgr_is_whole(const mem_handle *h);

/* mgr_load.c */
/* Blocks and slots for a budget; nothing is copied into them yet, and the lock is kept. */
weir_status mem_mgr_place(mem_handle *h, uint64_t budget, mem_request *r, const mem_phase *p,
                          weir_error *err);
void mem_mgr_drop_unwanted(mem_handle *h); /* what mem_mgr_decide did not want; slots that are to be others */
/* Fills the blocks; the lock is given back while it waits. */
weir_status mem_mgr_load(mem_handle *h, mem_request *r, weir_error *err);
/* After a failure: blocks without bytes and all slots go. copying: copies may be on their way. */
void mem_mgr_drop_unfilled(mem_handle *h, bool copying);
weir_status mem_mgr_fill(mem_handle *h, uint32_t unit, uint8_t *block, uint32_t stream, mem_request *r,
                         dev_ticket *done, weir_error *err);
/* The lock is given back while it reads. */
weir_status mem_mgr_load_ram(mem_handle *h, mem_request *r, weir_error *err);
void mem_mgr_drop_ram(mem_handle *h);
/* Files that parts are still to come from: FILE_CHANGED and its kin. */
weir_status mem_mgr_check_files(const mem_handle *h, weir_error *err);
weir_status mem_mgr_open_stage(mem_manager *m, weir_error *err);
/* Bytes of a weight from its file, past the page cache; without the lock. What fails once is read once more
 * (X5). */
weir_status mem_mgr_read(const mem_handle_weight *w, uint64_t at, void *buf, uint64_t bytes, weir_error *err);
/* keep_changes: what compute changed is copied back before, with the lock given back and the handle
 * `leaving`; false where that failed, and the unit stays. */
bool mem_mgr_drop_unit(mem_handle *h, uint32_t unit, bool keep_changes);
void mem_mgr_drop_slots(mem_handle *h);
bool mem_mgr_move_off(mem_handle *h, bool keep_changes); /* likewise */

/* mgr_host.c */
/* Pins what lies in RAM and copies there what may be copied, as far as there is room. Fails nothing. */
void mem_mgr_host_prepare(mem_handle *h, mem_request *r);
void mem_mgr_host_release(mem_handle *h);
/* Whether copies that found no RAM would find some now; looks once a second at most. */
bool mem_mgr_may_recopy(mem_handle *h);
void mem_mgr_drop_image(mem_handle *h, uint32_t unit);
/* Bytes of a unit's image, 0: it has none; files: some of it lie in files. */
uint64_t mem_mgr_image_bytes(mem_handle *h, uint32_t unit, bool *files);
/* Whether a handle whose copies are limited wants one of this unit, as it was decided last. */
bool mem_mgr_wants_image(const mem_handle *h, uint32_t unit);
void mem_mgr_unpin(mem_manager *m, mgr_weight *w);
uint64_t mem_mgr_ram_free(const mem_manager *m);
void mem_mgr_ram_pressure(mem_manager *m); /* R6.5 */
bool mem_mgr_pin_room(const mem_manager *m, uint64_t bytes);

/* mgr_manager.c */
bool mem_mgr_is_pinned_model(const mem_handle *h);
/* Used of the device by this process, as the driver tells. */
uint64_t mem_mgr_taken(mem_manager *m);

/* mgr_keep.c */
/* The manager goes: the device has its work space for itself again. */
void mem_mgr_forget_workspace(mem_manager *m);

/* mgr_idle.c */
/* Idle models leave until no more than may are there, those that p lists included. */
void mem_mgr_keep_few(mem_request *r, const mem_phase *p);
/* Moves handles off whose models have been idle so long; returns the bytes that became free. */
uint64_t mem_mgr_unload_idle(mem_manager *m, double idle_s, bool pinned);

/* mgr_calibrate.c */
void mem_mgr_calibration_load(mem_manager *m); /* without the lock */
double mem_mgr_calibration(const mem_manager *m, const char *engine, const char *component);
/* Keeps it; true where the file should have it too. */
bool mem_mgr_calibrated(mem_handle *h, double ratio);
void mem_mgr_calibration_save(mem_manager *m); /* without the lock */

/* mgr_prefetch.c */
bool mem_mgr_copies_ahead(const mem_handle *h);
bool mem_mgr_is_kinds_way(const mem_handle *h);
/* Looks after placing where what streams comes from. */
void mem_mgr_find_storage(mem_handle *h);
/* What says whether copies are made ahead; "": nothing streams. */
const char *mem_mgr_prefetch_text(const mem_handle *h);
/* A phase begins; when, where its time is wanted, else 0. */
double mem_mgr_prefetch_begin(const mem_phase *p);
/* A phase went through and took so long, where that was wanted. */
void mem_mgr_prefetch_time(mem_phase *p, double seconds);

/* mgr_work.c */
void mem_mgr_free_blocks(mem_phase *p);

#endif
