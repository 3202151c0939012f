/* What the files of runtime share among themselves and nobody else sees.
 *
 *   rt_context.c  contexts, settings, sizes     rt_session.c   sessions and passes
 *   rt_process.c  what the process itself holds rt_sampler.c   logits to a token
 *   rt_model.c    opening                       rt_generate.c  prompt to answer
 *   rt_describe.c what a file holds             rt_text.c      tokens and chat templates
 *   rt_plan.c     a budget's plan               rt_report.c    planned against measured
 *   rt_advice.c   why a budget is refused       rt_measure.c   rates of storage and memory
 *   rt_load.c     placing and unplacing         rt_pass.c      passes that sessions share
 *   rt_answers.c  steps of several answers      rt_speculate*.c  guesses that a pass checks
 *   rt_budget.c   a budget that changes         rt_follow.c    budgets that follow the machine
 *   rt_device.c   devices with memory of their own
 *   rt_predict.c  how fast it will be           rt_storage.c   what storage delivers, remembered
 *   rt_rehearse.c passes run before a load      rt_calibrate.c whether packing pays
 *   rt_pack.c     packed files                  rt_policy.c    the memory check
 *   rt_runtime.c  what is where                 rt_workers.c   the threads that compute
 *
 * Rules: one thread at a time enters a model; only weir_model.cancel is touched from elsewhere. What hangs
 * off the context (its chains, its devices, what is booked) belongs to the thread whose turn it is
 * (rt_enter): models and managers are opened, planned, loaded and closed in turns. Public functions replace a
 * NULL err before they go on, so inside err is never NULL. */
#ifndef WEIR_RT_INTERNAL_H
#define WEIR_RT_INTERNAL_H

#include "base/base.h"
#include "devices/device.h"
#include "engines/lm/lm.h"
#include "formats/formats.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "memory/memory.h"
#include "weir/weir.h"

#include "rt_speculate.h"

#include <stdatomic.h>

#define RT_SESSIONS_MAX 1024
#define RT_ROWS_MAX     4096
#define RT_THREADS_MAX  256 /* of a pool */
#define RT_CTX_MAX      (UINT32_C(1) << 24)

struct weir_context {
    base_env *env;
    base_settings *settings;
    void (*log)(void *arg, weir_log_level level, const char *line);
    void *log_arg;
    uint32_t n_models;
    uint32_t n_loaded;
    weir_model *loaded;                /* chain of those loaded, the latest first */
    struct weir_component *components; /* chain of those that engines registered (rt_memory.c) */
    uint64_t process_bytes;    /* estimate of what the process holds beside the ledger; kept steady, see
                                  rt_process.c */
    uint64_t booked_bytes;     /* of it, booked in the ledger under PROCESS while models are loaded */
    bool process_is_fixed;     /* the estimate is from before libcurl was opened: no run has that */
    struct rt_device *devices; /* those open that have memory of their own */
    base_pool *workers;        /* NULL: nothing computes on the CPU (rt_workers.c) */
    struct rt_crew *crews;     /* who uses them */
    base_lock *lock;           /* for the two chains above, and the two below */
    uint64_t turn_thread;      /* whose turn it is, while n_turns is not 0 */
    uint32_t n_turns;
    uint64_t group_limit; /* of control groups, as last seen; when it changed, and whether it fell then */
    double group_changed;
    bool group_falls;
};

/* A user of the context's workers. */
typedef struct rt_crew {
    struct rt_crew *next;
    uint32_t n_threads; /* of the workers, the caller counted; 0: uses none */
} rt_crew;

/* What needs the tokenizer; made at first use, freed with the model. */
typedef struct rt_text {
    fmt_tokenizer *tokenizer; /* NULL: not tried yet, or there is none */
    weir_error why_none;      /* code OK: not tried yet */
    uint32_t most_text;       /* bytes that a token adds to an answer at most; 0: there is no tokenizer */
    bool chat_tried;
    fmt_chat chat;
    weir_error why_no_chat; /* code OK: chat is valid once tried */
    char name[80];          /* "bpe (smollm)" */
} rt_text;

/* What computes, and how much of its memory may be used. */
typedef enum rt_device_kind { RT_DEVICE_CPU, RT_DEVICE_SIM, RT_DEVICE_OPENCL } rt_device_kind;
typedef struct rt_device_options {
    rt_device_kind kind;
    uint32_t index;    /* OpenCL */
    mem_policy policy; /* its strings are those of the settings */
    uint64_t simulate_bytes;
    double simulate_link; /* bytes/s; 0: unlimited */
} rt_device_options;

/* What a model computes on. A device with memory of its own is opened once in a context, with one memory
 * manager: all that run on it share it and yield to each other (R7). A CPU, with its scratch memory, is its
 * user's alone; its threads are the context's workers. */
typedef struct rt_device {
    struct rt_device *next; /* of the context's */
    dev_device *device;
    mem_manager *manager; /* NULL: a CPU */
    rt_device_options options;
    rt_crew crew; /* a CPU's */
    uint32_t n_users;
    uint64_t tag_bytes[BASE_TAG_COUNT]; /* of RAM, what opening it took, without workers */
} rt_device;

/* Load options with every default resolved that does not depend on the budget. */
typedef struct rt_options {
    uint64_t mem_bytes;
    bool mem_is_default;
    uint32_t ctx_tokens; /* 0: choose */
    uint32_t n_sessions;
    bool fewer_sessions; /* where so many do not fit */
    uint32_t max_batch;
    uint32_t n_threads;
    base_cpus cpus;         /* n = 0: unbound */
    uint32_t prefill_chunk; /* 0: choose */
    uint32_t kv_dtype;
    lm_kv_growth kv_growth;
    bool alias;
    bool pack; /* weights that stay */
    bool profile;
    rt_device_options device;
    weir_weights weights; /* READ, MAP or AUTO */
    base_aio_options aio;
} rt_options;

typedef struct rt_plan {
    weir_plan view;
    mem_plan memory;
    uint64_t tag_bytes[BASE_TAG_COUNT]; /* the planned peak, by tag; everything in the process */
    uint64_t process_bytes;             /* to be booked by the load under PROCESS */
    uint32_t max_rows, max_outputs, max_batch;
    lm_kv_shape kv;      /* of a session's caches */
    uint32_t n_ops;      /* of the program */
    bool map;            /* weights are to be mapped */
    bool may_map;        /* they are wherever all of them stay */
    uint64_t need_bytes; /* all but weights and page tables */
    bool on_device;      /* the following hold; memory.resident_bytes are copies in RAM of what streams */
    mem_handle_plan device;
    uint64_t device_need_bytes; /* caches, activations, work space there */
    uint64_t device_ram_bytes;  /* weights there, where its memory is the machine's RAM and counts here too */
    uint64_t device_limit_bytes; /* that they may have there; UINT64_MAX: by the device's room alone */
    uint64_t workspace_there;    /* of the device's own, before this load */
} rt_plan;

typedef struct rt_sampler rt_sampler;
typedef struct rt_draw rt_draw;
typedef struct rt_share rt_share;

/* The rows of one pass, and the caches of whom they belong to. */
typedef struct rt_rows {
    int32_t *token, *position; /* max_rows each */
    uint32_t *sequence, *output_row;
    dev_kv *batch_kv;        /* [layer][max_batch] */
    const dev_kv **layer_kv; /* per layer: into batch_kv, or a session's own */
} rt_rows;

/* A loaded model: all that weir_model_unload frees. */
typedef struct rt_loaded {
    rt_options options;
    rt_plan plan;
    base_ledger_view before; /* without what this load holds; for planning again while loaded */
    rt_device *target;
    bool opened_target; /* nobody had it open: its RAM is not in `before` */
    dev_device *device; /* of target */
    mem_source *source; /* NULL: computes in host memory */
    graph_program *program;
    bool placed;
    rt_sampler *sampler;
    /* one pass */
    rt_rows rows;
    weir_run *runs;         /* max_batch, for weir_step_batch */
    rt_share *shares;       /* max_batch */
    rt_costs costs;         /* of the passes so far */
    weir_session *sessions; /* chain of those alive */
    uint32_t n_sessions;
    double load_seconds;
    void (*place_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* during the load */
    void *place_progress_arg;
    uint64_t full_budget; /* what it may have when memory is there, and what it plans to hold then */
    uint64_t full_peak;
    double next_check, last_change, retry_at; /* rt_follow.c */
} rt_loaded;

struct weir_model {
    weir_context *context;
    base_env *env;
    fmt_model *file;
    lm_model *lm;             /* NULL: opened for its text only */
    mem_component *component; /* the engine's */
    rt_text *text;
    uint64_t file_bytes, weight_bytes;
    uint32_t main_dtype;
    rt_loaded *run; /* NULL: not loaded */
    weir_model *next_loaded;
    base_storage storage; /* of its largest file; bytes_per_s is 0: not known */
    struct {
        uint32_t file;
        uint64_t offset;
    } measured;                 /* where weir_measure_storage goes on */
    bool pack_known, pack_pays; /* asked once, see rt_packing_pays */
    atomic_bool cancel;
};

/* A sequence and its caches. tokens[0, n_cached) are in the caches; those from there to n_tokens are not yet
 * (the token sampled last, or everything after ring slots were lost) and go in front of the next run.
 *
 * Layers with a sliding window keep a ring: position q lies at slot q mod capacity, and writing position q +
 * capacity ends it. `high` is one more than the highest position written since the caches began, so q is
 * there exactly while q + capacity >= high. After going back (a failed run, a cut), what the window needs may
 * be gone. */
struct weir_session {
    weir_model *model;
    weir_session *next;
    lm_kv *kv;       /* NULL: the model was unloaded beneath the session */
    int32_t *tokens; /* ctx_tokens of them */
    uint32_t n_tokens;
    uint32_t n_cached;
    uint32_t high;
    weir_answer *answer; /* under way; NULL: none */
    weir_session *draft; /* guesses for this session; NULL: none */
    weir_session *main;  /* guesses are made for that one */
    atomic_bool *cancel; /* while it guesses: that of the run that waits for the guesses; NULL: its model's */
    rt_guessing guessing;
    rt_index index; /* of tokens */
};

/* ---- rt_model.c ---- */
/* UNSUPPORTED where a file is on a server: only its header can be read. */
weir_status rt_model_is_here(const weir_model *m, weir_error *err);
/* UNSUPPORTED for a model that was opened for its text only. */
weir_status rt_model_runs(const weir_model *m, weir_error *err);

/* What the settings say of servers; called before an address is read. */
weir_status rt_network_set(weir_context *c, weir_error *err);

/* ---- rt_process.c ---- */
/* Bytes the process holds, or soon will, that no allocation of ours counts: code, libraries, heap slack.
 * Stays the same from call to call while the measured value moves little, so that a plan holds for the load
 * after it. */
weir_status rt_process_bytes(weir_context *c, uint64_t *bytes, weir_error *err);
/* The ledger without what is booked for the above, with what caches may still grow by, and without the
 * context's workers, whose number changes with those who use them: rt_workers_add. */
void rt_ledger_read(const weir_context *c, base_ledger_view *out);
weir_status rt_limits_read(const weir_context *c, base_memory_limits *out, weir_error *err);
/* What a run gets that names no budget, and what that leaves to others. */
weir_status rt_default_budget(const weir_context *c, const base_memory_limits *limits, uint64_t *budget,
                              uint64_t *reserve, weir_error *err);
/* What others are left where a budget is given: an eighth of the reserve, R6.5; by itself at most a 16th of
 * the machine, and half of what there is for us and others. own_bytes: what this process holds. */
weir_status rt_least_reserve(const weir_context *c, const base_memory_limits *limits, uint64_t own_bytes,
                             uint64_t *out, weir_error *err);

/* ---- rt_plan.c ---- */
weir_status rt_options_resolve(weir_model *m, const weir_load_options *o, rt_options *out, weir_error *err);
/* Makes the tokenizer, whose size and longest token are part of a plan. OK without one that works: such a
 * model can still be run by tokens. */
weir_status rt_plan_tokenizer(weir_model *m, weir_error *err);
/* The plan for options on a device. OK with view.fits = false where the budget does not suffice; then `err`
 * is filled with the advice all the same. `before`: rt_ledger_read without what this load will allocate. */
weir_status rt_plan_make(weir_model *m, const rt_options *o, rt_device *target,
                         const base_ledger_view *before, rt_plan *out, weir_error *err);

/* Sizes beside the weights, for one choice. */
typedef struct rt_need {
    uint64_t tag_bytes[BASE_TAG_COUNT];
    uint64_t total_bytes;  /* page tables not counted */
    uint64_t device_bytes; /* on a device with memory of its own */
} rt_need;
typedef struct rt_choice {
    uint32_t ctx_tokens, n_sessions, kv_dtype, max_rows, max_outputs;
} rt_choice;
#define RT_MAX_SHAPES 24
/* A program's sizes for one pass size. */
typedef struct rt_shape {
    uint32_t max_rows, max_outputs;
    uint64_t program_bytes; /* of its description, under METADATA */
    graph_info info;
} rt_shape;
typedef struct rt_planner {
    weir_model *model;
    const rt_options *options;
    rt_device *target;
    dev_device *device;
    base_ledger_view before;
    uint64_t process_bytes;
    uint64_t aio_bytes, aio_process_bytes; /* of a reader, measured */
    mem_plan smallest, whole;              /* of the weights in RAM */
    bool on_device;
    bool device_in_ram;        /* its memory is the machine's RAM: one budget for both */
    mem_source *source;        /* to be asked what the manager would decide */
    uint64_t source_bytes;     /* of RAM, for its tables */
    uint64_t staging_bytes;    /* of RAM, that the load will open */
    uint64_t device_workspace; /* that is there already, for all who compute on it */
    uint64_t device_room;      /* what this load may take there */
    mem_handle_plan device_sizes;
    uint64_t workspace_there; /* of the device's own, before this load */
    uint32_t n_shapes;
    rt_shape shapes[RT_MAX_SHAPES];
} rt_planner;
weir_status rt_planner_need(rt_planner *p, const rt_choice *c, rt_need *out, weir_error *err);
/* need + weights, with page tables: a budget. Saturates. */
uint64_t rt_planner_budget(const rt_need *need, uint64_t weights_bytes);

/* ---- rt_workers.c ---- */
/* Where no number of threads is asked for: a thread for each processor that may be used, as far as it goes.
 */
uint32_t rt_workers_usual(const base_cpus *cpus);
/* So many threads for `crew`, the caller counted: more are started where there are fewer. cpus: what they are
 * bound to from now on; NULL: as they are. */
weir_status rt_workers_join(weir_context *c, rt_crew *crew, uint32_t n_threads, const base_cpus *cpus,
                            weir_error *err);
/* Ends those that nobody else needs. Does nothing where the crew has not joined. */
void rt_workers_leave(weir_context *c, rt_crew *crew);
/* Adds to *view what the workers hold for all crews but one (may be NULL). */
void rt_workers_add(const weir_context *c, const rt_crew *but, base_ledger_view *view);
/* Binds the workers, and the calling thread as the first of n_threads. For a user of theirs: nothing else
 * keeps them alive. Undo with base_cpus_restore. */
void rt_workers_bind(const weir_context *c, const base_cpus *cpus, uint32_t n_threads, base_affinity *before);

/* ---- rt_device.c ---- */
weir_status rt_device_settings(const weir_context *c, const char *name, rt_device_options *out,
                               weir_error *err);
/* Opens what the options name, or joins those that use it already. n_threads, cpus: the workers, where it is
 * the CPU (rt_workers_join). A device's policy is that of the last who asked for it. peer: see
 * mem_manager_create; where it is given, the device is opened anew and for the caller alone. */
weir_status rt_device_open(weir_context *c, const rt_device_options *o, uint32_t n_threads,
                           const base_cpus *cpus, mem_manager *peer, rt_device **out, weir_error *err);
/* Makes sure of a manager, also for a CPU. */
weir_status rt_device_manage(weir_context *c, rt_device *d, mem_manager *peer, weir_error *err);
void rt_device_close(weir_context *c, rt_device *d); /* takes NULL */
/* The device for a model; its memory in the ledger, where it is not part of *before, and that of the workers
 * are added to it. */
weir_status rt_device_create(weir_model *m, const rt_options *o, base_ledger_view *before, rt_device **out,
                             bool *opened, weir_error *err);
/* Fills the planner's device part. rt_device_measured frees what it made. */
weir_status rt_device_measure(rt_planner *p, weir_error *err);
void rt_device_measured(rt_planner *p);
/* Whether the device holds `need` and all weights (whole), or need and the smallest working set. */
bool rt_device_fits(const rt_planner *p, const rt_need *need, bool whole);
/* The device's plan, and what of RAM goes to copies of what streams. */
void rt_device_plan(const rt_planner *p, const rt_need *need, rt_plan *out);
/* The loaded plan with other weights, for what RAM and the device leave them under another budget and the
 * device's policy as it is; of *out, what is not about weights is set. need: the loaded plan's. BUDGET where
 * the smallest working set does not fit; then err says where. */
weir_status rt_device_plan_again(const weir_model *m, const rt_need *need, uint64_t budget, rt_plan *out,
                                 weir_error *err);
/* Limits and gives back what is there to what a plan has; the next pass takes what is missing. */
void rt_device_limit(const weir_model *m, const rt_plan *plan);
/* The same, and takes it now. */
weir_status rt_device_place_again(weir_model *m, const rt_plan *plan, weir_error *err);
/* The source, with the plan's memory kept for it; then its weights are loaded. */
weir_status rt_device_prepare(weir_model *m, rt_loaded *run, weir_error *err);
weir_status rt_device_place(weir_model *m, rt_loaded *run, weir_error *err);
void rt_device_report(const weir_model *m, weir_memory_report *r);

/* ---- rt_advice.c ---- */
/* Fills err with BUDGET: what is missing and which options would fit; and the plan's own fields for them. */
void rt_advise(rt_planner *p, const rt_choice *smallest, rt_plan *plan, weir_error *err);

/* ---- rt_session.c ---- */
typedef void (*rt_progress_fn)(void *arg, size_t done, size_t total);
/* As weir_session_append, but leaves the cancel flag as it is; on_rows (may be NULL) hears of every chunk. */
weir_status rt_session_append(weir_session *s, const int32_t *tokens, size_t n, const float **logits,
                              rt_progress_fn on_rows, void *arg, weir_error *err);
/* INVALID_ARGUMENT when the session's model was unloaded. */
weir_status rt_session_check(const weir_session *s, weir_error *err);
/* CONTEXT_FULL, or INVALID_ARGUMENT for what is no token of the vocabulary. */
weir_status rt_session_check_tokens(const weir_session *s, const int32_t *tokens, size_t n, weir_error *err);
/* Runs what waits at the end of the sequence, but for its last n_left tokens. */
weir_status rt_session_catch_up(weir_session *s, uint32_t n_left, weir_error *err);
/* Puts a token behind the sequence without running it; there must be room. */
void rt_session_hold(weir_session *s, int32_t token);
/* Back to the first n_tokens of the sequence. */
void rt_session_cut(weir_session *s, uint32_t n_tokens);
/* Takes the caches from all sessions of a run; they stay as empty shells. */
void rt_sessions_detach(rt_loaded *run);
/* Host memory that the caches of the sessions alive may still grow by; *answers: what those may still take
 * that none has begun. */
uint64_t rt_sessions_promised(const weir_model *m, uint64_t *answers);
/* Bytes of a session beside the buffers of its caches. */
uint64_t rt_session_bytes(uint32_t n_layers, uint32_t ctx_tokens);

/* ---- rt_generate.c ---- */
/* Most that an answer takes in a session of so many tokens. Its tokenizer must have been tried. */
uint64_t rt_answer_bytes(const weir_model *m, uint32_t ctx_tokens);

/* ---- rt_pass.c ---- */
/* Room for a plan's passes. What an error leaves is freed by rt_rows_free, which takes an empty one, too. */
weir_status rt_rows_create(base_env *env, const rt_plan *plan, uint32_t n_layers, rt_rows *rows,
                           weir_error *err);
void rt_rows_free(base_env *env, rt_rows *rows);
/* Runs the program over the first n_rows on the processors that the options name. */
weir_status rt_rows_run(const weir_context *c, const rt_rows *rows, graph_program *program,
                        const rt_options *o, uint32_t n_rows, uint32_t n_outputs, atomic_bool *cancel,
                        weir_error *err);
/* What one session brings to a pass: rows [n_cached, n_cached + n_rows) of session->tokens, where those from
 * n_tokens on are guesses or not part of the sequence yet; logits for the last n_outputs of them. */
struct rt_share {
    weir_session *session;
    weir_answer *answer; /* NULL: the caller samples by himself */
    uint32_t n_rows, n_outputs;
    uint32_t n_room;     /* set: positions that its caches had room for before the pass */
    const float *logits; /* set: of the first output */
    size_t stride;       /* set: floats between outputs */
};
/* One pass. The caller has checked the room; n_cached and n_tokens are his to set afterwards. */
weir_status rt_pass_run(weir_model *m, rt_share *shares, size_t n, weir_error *err);

/* ---- rt_sampler.c ---- */
uint64_t rt_sampler_bytes(uint32_t n_vocab);
weir_status rt_sampler_create(base_env *env, uint32_t n_vocab, rt_sampler **out, weir_error *err);
void rt_sampler_destroy(base_env *env, rt_sampler *s); /* takes NULL */
/* How one answer is drawn; the sampler itself is only scratch. */
struct rt_draw {
    weir_sampling options;
    base_rng rng;
};
/* Checks the values and seeds the random numbers. */
weir_status rt_draw_begin(rt_draw *d, const weir_sampling *sampling, weir_error *err);
/* history: the sequence so far. FORMAT where logits are no numbers; the message names the position. */
weir_status rt_sampler_pick(rt_sampler *s, rt_draw *d, const float *logits, const int32_t *history,
                            size_t n_history, int32_t *token, weir_error *err);

/* ---- rt_speculate.c ---- */
/* A pass of so many rows, with logits for so many, took so long. */
void rt_costs_add(rt_costs *c, uint32_t rows, uint32_t outputs, double seconds);
/* What such a pass takes was not measured for long, or cannot be what it was. */
bool rt_costs_doubtful(const rt_costs *c, uint32_t rows);
/* What a pass of so many rows takes, from what was measured of others; 0: nothing was. */
double rt_costs_of(const rt_costs *c, uint32_t rows);
/* Puts guesses behind the sequences of answers that decode, as many as pay and find room, and raises rows and
 * outputs of their shares. */
void rt_speculate(rt_loaded *run, rt_share *shares, size_t n, uint32_t rows_left, uint32_t outputs_left);
/* The i-th token that came, for what the guesses' kind is trusted from now on. */
void rt_guess_note(weir_session *s, const rt_guess *guess, uint32_t i, int32_t token);
/* Another text begins: what was learnt of the last counts half. */
void rt_guess_begin(weir_session *s);
/* A pass in which all of the n answers decode went through: what their guesses gave and cost. */
void rt_guess_settle(const rt_costs *c, const rt_share *shares, size_t n);
/* ---- rt_speculate_lookup.c ---- */
/* What followed the longest end of t[0, n) where it occurred before, and that length; gives the number of
 * guesses: n_wanted, or 0 where not even the last token did. x is of t and no longer; it grows to n. */
uint32_t rt_lookup(rt_index *x, const int32_t *t, uint32_t n, uint32_t n_wanted, int32_t *guesses,
                   uint32_t *length);
/* Tokens from n on are about to change: takes them out, while they are still there. */
void rt_index_cut(rt_index *x, const int32_t *t, uint32_t n);
/* ---- rt_speculate_draft.c ---- */
/* Up to n_wanted guesses of the draft model at what follows s; draw is that of the answer, and stays. Its
 * passes end with the cancel flag of s's model. */
weir_status rt_draft(weir_session *s, const rt_draw *draw, uint32_t n_wanted, int32_t *guesses, uint32_t *n,
                     weir_error *err);
/* Rows that the draft model has to read first, if it has the text from `from` on. */
uint32_t rt_draft_rows(const weir_session *s, uint32_t from);
/* Guesses that its context then has room for. As many as there may be where it was unloaded meanwhile: asking
 * it says so. */
uint32_t rt_draft_room(const weir_session *s, uint32_t from);
/* What a token of the draft model is taken to take while nothing is measured, where one of s takes so long.
 */
double rt_draft_seconds(const weir_session *s, double token_seconds);
/* Takes a session's draft from it. */
void rt_session_part(weir_session *s);

/* ---- rt_text.c ---- */
/* The tokenizer, created at first use. Errors: TOKENIZER, ... when the file has none that works. */
weir_status rt_text_tokenizer(const weir_model *m, const fmt_tokenizer **out, weir_error *err);
weir_status rt_text_chat(const weir_model *m, const fmt_chat **out, weir_error *err);
void rt_text_finish(weir_model *m);

/* ---- rt_calibrate.c ---- */
/* Products of a decoder layer: q, k, v, o, gate, up, down. */
#define RT_PRODUCTS_PER_LAYER 7
/* Whether products of this model are quicker in the device's own layout, which mapped weights do not have. */
weir_status rt_packing_pays(weir_model *m, dev_device *device, const rt_options *o, uint64_t weight_bytes,
                            bool *pays, weir_error *err);

/* ---- rt_rehearse.c ---- */
/* Text that sessions are taken to have, and what they add to it. */
#define RT_TEXT_TOKENS   256
#define RT_ANSWER_TOKENS 40
/* A token of one session; of max_batch of them; a prompt's passes but for the last, and the last. */
typedef enum rt_pass_kind {
    RT_PASS_DECODE,
    RT_PASS_SESSIONS,
    RT_PASS_BODY,
    RT_PASS_END,
    RT_N_PASSES
} rt_pass_kind;
#define RT_ALL_PASSES ((UINT32_C(1) << RT_N_PASSES) - 1)
/* Seconds of a pass; zeroes where there is none of the kind. wait: of the likely time, spent on storage. */
typedef struct rt_pass_time {
    double best, likely, worst, wait;
} rt_pass_time;
typedef struct rt_rehearsed {
    rt_pass_time pass[RT_N_PASSES];
} rt_rehearsed;
/* Tokens of the prompt whose passes are rehearsed: whole passes of the plan's, RT_TEXT_TOKENS at most or one
 * of them. */
uint32_t rt_rehearsed_prompt(const rt_plan *plan);
/* What a pass takes that ended before its end, with so many bytes of weights done. `inner`: those in front of
 * the head, `all`: with it. Where rows of a prompt have no use for the head but the last, it takes what it
 * does in a pass of one row (`one`); else, and with one = 0 for a pass without a head, time goes by bytes. */
double rt_whole_pass(double seconds, uint64_t done, uint64_t inner, uint64_t all, bool prompt, double one);
/* Runs passes of the kinds that `passes` has bits of, with the weights placed as `mem` says but for stand-ins
 * of stand_in_bytes; the model is not loaded. Some tenths of a second for each kind; a pass of seconds is
 * cut.
 */
weir_status rt_rehearse(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                        const mem_plan *mem, uint64_t stand_in_bytes, uint32_t passes, rt_rehearsed *out,
                        weir_error *err);

/* ---- rt_storage.c ---- */
/* Where most of the model lies. */
base_file *rt_storage_file(const weir_model *m);
/* Lets the reader go by what is remembered of the model's storage, if anything is. */
void rt_storage_use(weir_model *m);
/* How the settings want files to be read. */
weir_status rt_reader_options(const weir_context *c, base_aio_options *out, weir_error *err);

/* What a budget leaves for weights. */
uint64_t rt_weights_room(const rt_need *need, uint64_t budget);

/* ---- rt_budget.c ---- */
/* What the present plan has is what the model may have. */
void rt_budget_is_full(rt_loaded *run);
/* Another budget for a loaded model between two passes, in its context's turn; as weir_model_set_budget.
 * total: what the context may hold then, where another model was loaded later. cancel: as of
 * mem_place_options. */
weir_status rt_budget_change(weir_model *m, uint64_t budget, uint64_t total, atomic_bool *cancel,
                             weir_error *err);

/* ---- rt_follow.c ---- */
weir_status rt_pressure_setting(const weir_context *c, bool *follows, weir_error *err);
/* Before a pass: lets the budgets follow what the machine and its control groups leave, at most a few times a
 * second. After an error the model may be without weights. cancel: of the run that the pass is part of. */
weir_status rt_budget_follow(weir_model *m, atomic_bool *cancel, weir_error *err);

/* ---- rt_context.c ---- */
/* Waits until no other thread has the context's turn; a thread that has it may take it again. Chains change
 * in one's turn and under the lock, and are read with either. */
void rt_enter(weir_context *c);
bool rt_try_enter(weir_context *c); /* false: another thread has it */
void rt_leave(weir_context *c);

/* ---- rt_load.c ---- */
/* Memory's view of a device's layout of weights. */
mem_packer rt_packer(dev_device *device);
/* Beside another loaded model, planning and loading need memory of the new budget before it is in force. */
weir_status rt_budget_raise(weir_context *c, uint64_t budget_bytes, weir_error *err);
/* Goes over to another plan with what is placed; as mem_resize. */
weir_status rt_place_again(weir_model *m, const rt_loaded *run, const rt_plan *plan, atomic_bool *cancel,
                           weir_error *err);
void rt_unload(weir_model *m);

/* ---- helpers ---- */
static inline weir_error *rt_error(weir_error *err, weir_error *local)
{
    return err != NULL ? err : local;
}
/* Whether an option struct says the size that its *_init sets; false with INVALID_ARGUMENT. */
static inline bool rt_is_sized(const char *type, size_t there, size_t wanted, weir_error *err)
{
    if (there >= wanted) return true;
    base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
              "%s: struct_size %zu is not that of any version; call %s_init first", type, there, type);
    return false;
}
#define RT_IS(type, o, err) rt_is_sized(#type, (o)->struct_size, sizeof(type), err)
/* a + b, UINT64_MAX where it does not fit: sizes beyond any budget stay beyond it. */
static inline uint64_t rt_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return base_add(a, b, &sum) ? sum : UINT64_MAX;
}
static inline uint64_t rt_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return base_mul(a, b, &product) ? product : UINT64_MAX;
}

#endif
