/* Weir: runs language models in less memory than they need, with the same bits.
 *
 *   weir_context ---- settings, ledger, faults (one per application, or one per budget)
 *     weir_model ---- a described file; after weir_model_load its weights are placed under a plan
 *       weir_session ---- one conversation: its key-value cache and position
 *
 * Threads: calls on one model and on what hangs off it are made by one thread at a time. Models and managers
 * of one context are opened, planned, predicted, loaded, given other budgets and closed in turns, whatever
 * threads ask for it. Models on devices (compute.device) may run on a thread each, beside what weir/manager.h
 * lets requests do; of models in host memory one runs at a time, and settings change only while nothing else
 * runs. weir_model_cancel may come from any thread or signal handler. Every option struct starts with its
 * size: set it through the *_init function, then change fields. Text is UTF-8. The library never prints,
 * exits or aborts.
 *
 * Results (logits, tokens) do not depend on budget, threads, prefill chunk, batch or instruction set:
 * docs/numerics.md. */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_API     __attribute__((visibility("default")))
#define WEIR_VERSION "0.1.0"

typedef struct weir_context weir_context;
typedef struct weir_model weir_model;
typedef struct weir_session weir_session;

/* ---------------------------------------------------------------- context */

typedef enum weir_log_level { WEIR_LOG_DEBUG, WEIR_LOG_INFO, WEIR_LOG_WARN, WEIR_LOG_ERROR } weir_log_level;

typedef struct weir_context_options {
    size_t struct_size;
    /* NULL: silent. From any thread that is in the library. */
    void (*log)(void *arg, weir_log_level level, const char *line);
    void *log_arg;
    const char *settings_file; /* "name = value" lines; NULL: none */
} weir_context_options;

WEIR_API void weir_context_options_init(weir_context_options *o);
/* Reads settings: built-in, file, environment (WEIR_CPU, ...). Arms the setting "fault" where given. */
WEIR_API weir_status weir_context_create(const weir_context_options *o, weir_context **out, weir_error *err);
WEIR_API void weir_context_destroy(weir_context *c); /* takes NULL; models must be closed before */
WEIR_API weir_status weir_context_set(weir_context *c, const char *name, const char *value, weir_error *err);
/* The i-th setting, false behind the last. Strings live as long as the context, or until the setting changes.
 */
WEIR_API bool weir_context_setting(const weir_context *c, size_t i, const char **name, const char **value,
                                   const char **source, const char **help);

/* "64MiB", "2GB", "1.5 GiB": a bare number is refused. */
WEIR_API weir_status weir_size_parse(const char *text, uint64_t *bytes, weir_error *err);
/* "28.3 MiB" into buf (at least 32 bytes); returns buf. */
WEIR_API const char *weir_size_text(uint64_t bytes, char *buf);

typedef struct weir_machine {
    size_t struct_size;
    uint32_t n_cpus;
    const char *const *cpu_sets;      /* instruction sets this machine runs, best first, NULL-terminated */
    const char *cpu_set;              /* the one in use */
    uint64_t total_bytes;             /* memory of the machine */
    uint64_t available_bytes;         /* MemAvailable */
    uint64_t cgroup_limit_bytes;      /* tightest, UINT64_MAX: none */
    uint64_t cgroup_free_bytes;       /* with reclaimable cache counted as free; UINT64_MAX: none */
    int cgroup_version;               /* 0, 1, 2 */
    uint64_t reserve_bytes;           /* left free for others by the default budget */
    uint64_t default_budget_bytes;    /* what a run gets without --mem */
    bool packs;                       /* quantized weights that stay are put into the kernels' own layout */
    uint32_t pack_version, pack_rows; /* of that layout; packed files must be of it */
} weir_machine;
WEIR_API weir_status weir_machine_read(weir_context *c, weir_machine *out, weir_error *err);

/* A device beside the CPU, found through OpenCL. */
typedef struct weir_device_info {
    char id[24]; /* what compute.device takes: "opencl:0" */
    char name[128], vendor[128], driver[64], version[64];
    uint64_t memory_bytes, max_alloc_bytes; /* the device's; of one buffer */
    uint32_t compute_units;
    bool cpu;     /* it is a processor of this machine */
    bool unified; /* its memory is the machine's */
} weir_device_info;
/* *n is how many there are, of which the first `max` are filled. Where there are none, that is no error, and
 * note (may be NULL) says why. */
WEIR_API weir_status weir_devices_list(weir_context *c, weir_device_info *out, uint32_t max, uint32_t *n,
                                       char *note, size_t note_size, weir_error *err);

/* How memory is managed for models on devices (compute.*), with what the machine decides filled in (R10.3).
 */
typedef struct weir_memory_check {
    size_t struct_size;
    const char *device;                            /* compute.device */
    const char *vram_mode;                         /* "auto" */
    uint64_t vram_reserve_bytes, vram_limit_bytes; /* limit 0: none */
    uint64_t ram_reserve_bytes;                    /* below it copies in RAM go, and none are made */
    uint64_t ram_free_bytes;                       /* now; the machine's and the control groups' */
    const char *host_copies;                       /* "auto", "on", "off" */
    bool makes_host_copies;                        /* what that means at this moment */
    uint64_t max_pinned_bytes;
    uint32_t copy_streams, copies_ahead; /* units on their way beside the one that runs */
    const char *prefetch_sequence;       /* "auto", "on", "off": for what runs once per token; auto: off, from
                                          * storage measured */
    bool oom_retry, oom_fallback;
    uint32_t jobs; /* at once on a device */
    double job_wait_s;
    uint32_t max_resident_models; /* on devices; 0: any number */
    const char *pinned_models;
    uint32_t n_remarks; /* settings that will surprise; valid until the context's settings change */
    const char *remarks[8];
} weir_memory_check;
/* INVALID_ARGUMENT names a setting out of range. */
WEIR_API weir_status weir_memory_check_read(weir_context *c, weir_memory_check *out, weir_error *err);

/* What storage delivers, measured by reading for about a second and remembered for a fortnight in the user's
 * cache folder (setting cache_folder). Weir reads by it: how much ahead, and in what sizes. */
typedef struct weir_storage {
    size_t struct_size;
    char file_system[24];      /* "ext4"; for people, nothing depends on it */
    const char *reader;        /* "io_uring direct", "threads buffered", ...; "none": not measured */
    double bytes_per_s;        /* queued reads of read_bytes, depth of them at once, in the file's order */
    double random_bytes_per_s; /* the same at random places */
    double latency_seconds;    /* of one small read */
    double memory_bytes_per_s; /* a copy in memory, measured in the same moment */
    uint32_t depth;
    uint64_t read_bytes;
    bool in_memory;      /* as quick as memory: tmpfs, or cached pages */
    bool slow;           /* seeks or a network */
    bool fresh;          /* measured by this call, not remembered */
    int64_t measured_at; /* seconds since 1970 */
} weir_storage;
/* path: a file, or a folder, of which the largest file is read. Without `measure`, what is remembered, with
 * bytes_per_s = 0 where nothing is; with it, it is measured in any case. */
WEIR_API weir_status weir_storage_read(weir_context *c, const char *path, bool measure, weir_storage *out,
                                       weir_error *err);

/* ---------------------------------------------------------------- model: description */

/* Reads headers only. path: a .gguf file (any part of a split one), a .safetensors file or index, or a
 * folder. */
WEIR_API weir_status weir_model_open(weir_context *c, const char *path, weir_model **out, weir_error *err);
/* The same for tokenizing only: any architecture will do, and the file need not hold tensors. Describing
 * units, planning and loading are UNSUPPORTED for such a model. */
WEIR_API weir_status weir_model_open_text(weir_context *c, const char *path, weir_model **out,
                                          weir_error *err);
WEIR_API void weir_model_close(weir_model *m); /* takes NULL; sessions must be destroyed before */

typedef struct weir_model_info {
    size_t struct_size;
    const char *format;       /* "GGUF v3", "GGUF v3 packed", "safetensors" */
    const char *architecture; /* "llama" */
    const char *name;         /* "" where the file has none */
    const char *type;         /* the type most weight bytes have: "Q4_1" */
    uint64_t n_params;
    uint64_t file_bytes;   /* all files */
    uint64_t weight_bytes; /* all tensors */
    uint32_t n_files, n_layers, n_vocab, hidden, ffn, n_heads, n_kv_heads, head_dim;
    uint32_t context_tokens; /* trained context */
    uint32_t window;         /* sliding window, 0: none */
    bool tied_head;
    const char *tokenizer;     /* "bpe (smollm)"; "" where there is none */
    const char *chat_template; /* family name; "" where there is none that Weir knows */
    uint64_t smallest_bytes;   /* smallest working set of the weights: fixed part + smallest ring */
} weir_model_info;
WEIR_API weir_status weir_model_get_info(const weir_model *m, weir_model_info *out, weir_error *err);

/* The i-th metadata value as text ("[49152 strings]" for arrays); false behind the last. buf receives the
 * text. */
WEIR_API bool weir_model_value(const weir_model *m, size_t i, const char **key, const char **type, char *buf,
                               size_t buf_size);
typedef struct weir_tensor_info {
    const char *name, *type; /* "Q4_0", "Q4_0 packed" */
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] runs fastest */
    const char *file;
    uint64_t offset, bytes;
} weir_tensor_info;
WEIR_API bool weir_model_tensor(const weir_model *m, size_t i, weir_tensor_info *out);
typedef struct weir_unit_info {
    const char *name;
    uint64_t bytes, streamable_bytes, resident_bytes;
    uint32_t n_weights;
} weir_unit_info;
WEIR_API bool weir_model_unit(const weir_model *m, size_t i, weir_unit_info *out);

/* ---------------------------------------------------------------- plan and load */

typedef enum weir_kv_type { WEIR_KV_F16, WEIR_KV_F32 } weir_kv_type;

/* How weights that stay are held: copied by reading (the fastest to compute with), or used where the system
 * keeps the file's pages (no copy of our own, shared by all processes that map the same file, taken back by
 * the system when it must). Mapping needs a budget that holds all weights, else it reads. AUTO maps where the
 * file system was measured to be memory, as a copy would be a second one. Results are the same. */
typedef enum weir_weights {
    WEIR_WEIGHTS_DEFAULT,
    WEIR_WEIGHTS_READ,
    WEIR_WEIGHTS_MAP,
    WEIR_WEIGHTS_AUTO
} weir_weights;

typedef struct weir_load_options {
    size_t struct_size;
    uint64_t mem_bytes;  /* hard budget for the whole process; 0: weir_machine's default */
    uint32_t ctx_tokens; /* context per session; 0: the model's, 4096 at most, and less where its cache would
                          * take more than a quarter of a budget that does not hold all weights */
    uint32_t n_sessions; /* sessions that will live at once; default 1 */
    bool fewer_sessions; /* where they do not fit, but fewer do, those are planned and loaded (R14.6); the
                          * plan tells how many. Else a budget that does not suffice is refused */
    uint32_t max_batch;  /* rows of different sessions in one pass; default n_sessions */
    uint32_t n_threads;  /* that its passes compute on, the caller counted; 0: all CPUs this process may use.
                          * All models of a context share one set of threads, of which each uses so many */
    uint32_t prefill_chunk; /* tokens per prefill pass; 0: chosen from the budget (never changes a bit) */
    weir_kv_type kv_type;
    weir_weights weights; /* DEFAULT: the setting memory.weights */
    bool profile;         /* collect weir_profile_phase */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* loading; may be NULL */
    void *progress_arg;
} weir_load_options;
WEIR_API void weir_load_options_init(weir_load_options *o);

#define WEIR_MAX_TAGS 16
typedef struct weir_account {
    const char *tag; /* "weights.resident", "kv", ... */
    uint64_t planned_bytes;
    uint64_t bytes;      /* now */
    uint64_t peak_bytes; /* measured */
} weir_account;

/* A session's caches with room for so many tokens: their bytes, and those while they grow to it. */
typedef struct weir_kv_step {
    uint32_t tokens;
    uint64_t bytes, peak_bytes;
} weir_kv_step;
#define WEIR_MAX_KV_STEPS 16

typedef struct weir_plan {
    size_t struct_size;
    uint64_t budget_bytes;
    bool budget_is_default; /* no mem_bytes was given */
    uint64_t planned_peak_bytes;
    uint64_t smallest_bytes; /* the smallest budget these options run with */
    uint64_t whole_bytes;    /* the budget from which on nothing streams */
    bool fits;
    uint64_t missing_bytes; /* smallest - budget where it does not fit */
    /* Where it does not fit, each alone would do; 0, false: it would not, or is so already. */
    uint32_t fit_ctx_tokens, fit_sessions;
    bool fit_kv_f16, fit_free_chunk; /* a cache of type F16; no fixed prefill_chunk */
    uint64_t fit_mem_bytes;          /* whole MiB */
    uint32_t ctx_tokens, n_sessions, prefill_chunk, n_threads;
    uint32_t wanted_sessions;         /* above n_sessions where fewer_sessions made them fewer */
    uint32_t pass_rows, pass_outputs; /* most tokens of one pass, and most of them with logits */
    uint64_t streamed_bytes_per_pass;
    uint64_t weight_bytes_per_pass; /* read by one pass from anywhere */
    uint64_t macs_per_token;
    uint64_t arena_saved_bytes; /* by sharing activations' memory */
    uint32_t n_accounts;
    weir_account accounts[WEIR_MAX_TAGS]; /* planned_bytes only */
    /* The second tier, where compute.device has memory of its own; "cpu" and zeroes elsewhere. The figures
     * above are then RAM alone. */
    char device[128];
    uint64_t device_room_bytes;    /* what may be taken there: free, within the limit, less the reserve */
    uint64_t device_planned_bytes; /* weights, slots, caches, activations, work space */
    uint64_t device_smallest_bytes, device_whole_bytes; /* with one slot; with nothing streaming */
    uint64_t device_streamed_bytes_per_pass;            /* over the link */
    /* The setting compute.kv_cache ("full", "dynamic", "static"), what a session's caches take before its
     * first token, and then at 512, 1,024, ... tokens and at the whole context ("full": there only). What the
     * plan keeps for caches are those of all sessions at the whole context, and one session's growing to it.
     */
    const char *kv_cache;
    uint64_t kv_first_bytes;
    uint32_t n_kv_steps;
    weir_kv_step kv_steps[WEIR_MAX_KV_STEPS];
} weir_plan;
/* From headers alone. OK with fits = false where the budget does not suffice. Where device_planned_bytes are
 * more than device_room_bytes, a run warns and tries all the same. */
WEIR_API weir_status weir_model_plan(weir_model *m, const weir_load_options *o, weir_plan *out,
                                     weir_error *err);

/* The same for the storage that the model lies on. What is remembered is used by plans and loads anyway; with
 * `measure` it is measured where nothing is remembered, for the plans and loads from then on. Nothing is
 * remembered or measured where the setting io.probe is off. */
WEIR_API weir_status weir_model_storage(weir_model *m, bool measure, weir_storage *out, weir_error *err);

/* Tokens per second, of the mean pass. The range: by how much the slowest and the fastest of the windows in
 * which all kinds of pass were measured, over some seconds, differ from the mean of their kind. A machine
 * that changes its speed more than that from minute to minute leaves it. */
typedef struct weir_rate {
    double low, likely, high;
} weir_rate;

#define WEIR_NOTE_BYTES 192
/* How fast a model will be at the beginning of a conversation, when it has got under way. */
typedef struct weir_prediction {
    size_t struct_size;
    double storage_bytes_per_s; /* of large reads, as remembered or given; 0 where nothing streams */
    double compute_bytes_per_s; /* weights worked off when all are in memory */
    double latency_seconds;     /* of a small read */
    double seconds_per_token, tokens_per_s; /* those of `decode` */
    double limit_tokens_per_s;              /* the slower of storage and computation alone */
    weir_rate decode;                       /* one session, a token a pass, behind 276 tokens of text */
    weir_rate all_sessions;                 /* max_batch sessions in shared passes, added up */
    weir_rate prefill; /* a prompt of 256 tokens or one pass, logits for its last; prefill_rows a pass */
    uint32_t prefill_rows;
    char note[WEIR_NOTE_BYTES]; /* empty; or what could not be rehearsed, and what was taken in its place */
} weir_prediction;
/* For what weir_model_plan would give, in a few seconds: the plan's passes are rehearsed, with real reads of
 * what streams and stand-ins for what stays. storage_bytes_per_s: 0 is this machine's storage, measured first
 * where nothing is known of it; a rate that is given is taken in its place, with the plan's ring played
 * through. Rehearsing takes no more memory than the plan has, of weights that stay at most 512 MiB; a pass
 * that takes more than two seconds is cut and told from its part. Measuring storage takes up to 32 MiB.
 * weir_model_cancel ends it. Errors: BUDGET where the plan does not fit, OUT_OF_MEMORY where it is for a
 * larger machine and this one has not even room for that, INVALID_ARGUMENT while the model is loaded,
 * CANCELLED, and those of reading. */
WEIR_API weir_status weir_model_predict(weir_model *m, const weir_load_options *o, double storage_bytes_per_s,
                                        weir_prediction *out, weir_error *err);

/* Plans, reserves, and loads what stays. BUDGET: the message gives the missing bytes and what would fit.
 * After a failure the model is as before. Loading again first unloads. */
WEIR_API weir_status weir_model_load(weir_model *m, const weir_load_options *o, weir_error *err);
WEIR_API void weir_model_unload(weir_model *m);
/* The sessions that the load has room for; 0 where nothing is loaded. */
WEIR_API uint32_t weir_model_sessions(const weir_model *m);
/* Another budget for a loaded model, between two passes: sessions stay, results stay the same. Weights that
 * both budgets keep stay in memory, only what is added is read. BUDGET below what the load's caches and
 * activations need, with nothing changed; after other errors it is as before or, where that fails too,
 * without weights: runs then fail until it is loaded again. INVALID_ARGUMENT where another model is loaded in
 * the context, too: their budget is one, that of the model loaded last. On
 * a device with memory of its own, settings of it that were changed (compute.vram_limit_mb, .vram_reserve_mb,
 * .vram_mode, .host_copies) hold from then on, too: BUDGET where they leave less than the smallest working
 * set; after other errors the next run places again what it finds missing.
 * With the setting compute.pressure the budget follows by itself what the machine and its control groups
 * leave, never above what was given here or to the load: see weir_model_follow_memory. */
WEIR_API weir_status weir_model_set_budget(weir_model *m, uint64_t mem_bytes, weir_error *err);
/* For a program that waits between two runs: gives weights back where memory has become short, and takes them
 * again later, as every run does by itself before each pass. A call a second is enough; most do nothing, and
 * none does on a device with memory of its own. Where several models are loaded in the context, what is short
 * is taken from the one in host memory that can give most, and what comes back goes to the one that runs or
 * is named here; so no other thread may be in a call on any of them meanwhile. A change that fails is logged,
 * and things stay as they were. Errors: INVALID_ARGUMENT where nothing is loaded or compute.pressure is
 * neither auto nor off; those of reading where the model has lost its weights: runs then fail until it is
 * loaded again. */
WEIR_API weir_status weir_model_follow_memory(weir_model *m, weir_error *err);

/* ---------------------------------------------------------------- running */

WEIR_API weir_status weir_session_create(weir_model *m, weir_session **out, weir_error *err);
WEIR_API void weir_session_destroy(weir_session *s); /* takes NULL */
/* Tokens of the sequence. The one that weir_generate sampled last has not run yet; it goes in front of the
 * next run. */
WEIR_API uint32_t weir_session_position(const weir_session *s);
/* Back to no tokens; caches that grow (setting compute.kv_cache) give their memory back. So does cutting to
 * 0. */
WEIR_API void weir_session_reset(weir_session *s);
/* Cuts the sequence back to its first n_tokens; INVALID_ARGUMENT when it has fewer. What a sliding window has
 * overwritten since is computed anew by the next run, with the same bits. */
WEIR_API weir_status weir_session_truncate(weir_session *s, uint32_t n_tokens, weir_error *err);

/* Appends tokens to the session in chunks. With logits, *logits points to n_vocab floats for the last token,
 * valid until the next run on this model. On failure the session's position is as before the call. Errors:
 * CONTEXT_FULL, CANCELLED, IO, ... */
WEIR_API weir_status weir_session_append(weir_session *s, const int32_t *tokens, size_t n,
                                         const float **logits, weir_error *err);
/* The same, handing out the logits of every token through a callback (perplexity). Returning false stops with
 * CANCELLED. */
typedef bool (*weir_logits_fn)(void *arg, size_t index, const float *logits);
WEIR_API weir_status weir_session_score(weir_session *s, const int32_t *tokens, size_t n, weir_logits_fn fn,
                                        void *arg, weir_error *err);
/* One token for each of n sessions in one pass over the weights; logits[i] receives a pointer as above. */
WEIR_API weir_status weir_step_batch(weir_session *const *sessions, const int32_t *tokens, size_t n,
                                     const float **logits, weir_error *err);
/* What one session brings to a pass that several share. */
typedef struct weir_run {
    weir_session *session;
    const int32_t *tokens; /* go behind its sequence */
    size_t n_tokens;       /* may be 0 where a token waits that weir_generate sampled last */
    size_t n_logits;       /* how many of the last rows want logits: 0 within a prompt, 1 to sample from */
    const float *logits;   /* set: of the first of those rows; valid until the next run on this model */
    size_t logits_stride;  /* set: floats from one row's logits to the next */
} weir_run;
/* One pass over the weights for n distinct sessions of one model, each with any number of tokens: sessions
 * that decode and sessions in prefill go together, and may be others at every call. All rows together,
 * waiting ones included, at most weir_plan's pass_rows, logits at most pass_outputs, sessions at most
 * max_batch. Each session's bits are those that it gets alone. On failure all positions are as before the
 * call. */
WEIR_API weir_status weir_step_runs(weir_run *runs, size_t n, weir_error *err);
/* Stops what runs on this model within one operation, a load or a prediction as well: the call returns
 * CANCELLED, answers end with that stop. Async-signal-safe. It counts from the moment in which a call has
 * been entered, also while that waits for its turn; what came before is forgotten as the call begins, so a
 * program that stops between two calls asks a note of its own there. A cancel between two steps of answers
 * ends the next one: weir_answers_step forgets nothing, and weir_answer_begin only where no other answer of
 * the model is under way. */
WEIR_API void weir_model_cancel(weir_model *m);

/* ---------------------------------------------------------------- text */

enum { WEIR_TOKENIZE_SPECIAL = 1, WEIR_TOKENIZE_BOS = 2 };
/* Ids of text; *tokens is freed by weir_free. */
WEIR_API weir_status weir_tokenize(weir_model *m, const char *text, size_t len, int flags, int32_t **tokens,
                                   size_t *n, weir_error *err);
WEIR_API void weir_free(weir_model *m, void *p);
WEIR_API bool weir_token_is_end(const weir_model *m, int32_t token);
WEIR_API bool weir_model_adds_bos(const weir_model *m);
WEIR_API bool weir_token_text(const weir_model *m, int32_t token, const char **text, size_t *len);

typedef struct weir_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} weir_message;
/* Ids of messages [first, n) by the model's chat template, with the assistant's turn opened. TEMPLATE: see
 * --raw. */
WEIR_API weir_status weir_chat_tokens(weir_model *m, const weir_message *messages, size_t first, size_t n,
                                      int32_t **tokens, size_t *n_tokens, weir_error *err);

typedef struct weir_sampling {
    size_t struct_size;
    float temperature;    /* 0: greedy (lowest id among equals) */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    uint32_t repeat_last; /* tokens the penalty looks back on */
    uint64_t seed;
} weir_sampling;
WEIR_API void weir_sampling_init(weir_sampling *s); /* greedy */

typedef enum weir_stop {
    WEIR_STOP_END,
    WEIR_STOP_LENGTH,
    WEIR_STOP_CONTEXT,
    WEIR_STOP_CALLER,
    WEIR_STOP_CANCELLED
} weir_stop;

/* Guesses at the next tokens that one pass checks together. Tokens, logits hash and random numbers are those
 * of plain decoding in every mode; only the time differs. */
typedef enum weir_speculate {
    WEIR_SPECULATE_AUTO, /* from the text, and from the session's draft where it has one, while it pays */
    WEIR_SPECULATE_OFF,
    WEIR_SPECULATE_LOOKUP, /* from the text whenever its end occurred before, whether it pays or not */
    /* from the draft, whether it pays or not; INVALID_ARGUMENT where the session has none */
    WEIR_SPECULATE_DRAFT
} weir_speculate;

typedef struct weir_generate_options {
    size_t struct_size;
    weir_sampling sampling;
    uint32_t max_tokens;
    weir_speculate speculate;
    /* Most guesses a pass; 0: 31, which are the most. One less than the plan's pass_outputs fit, which for
     * one session are 16 at most. */
    uint32_t speculate_tokens;
    bool ignore_end; /* go on past end tokens (benchmarks) */
    /* Complete UTF-8 text as it comes; false stops, and it is not called again. May be NULL. */
    bool (*on_text)(void *arg, const char *text, size_t len);
    void *arg;
    /* Progress of a long prefill; may be NULL. */
    void (*on_prefill)(void *arg, size_t done, size_t total);
} weir_generate_options;
WEIR_API void weir_generate_options_init(weir_generate_options *o);

typedef struct weir_result {
    size_t struct_size;
    int32_t *tokens; /* generated ones, the end token not included; for weir_free */
    size_t n_tokens;
    char *text; /* for weir_free */
    size_t text_len;
    weir_stop stop;
    uint64_t logits_hash; /* weir_logits_hash over the logits of every sampled position, in order */
    size_t n_prompt_tokens;
    double prefill_seconds, decode_seconds, first_token_seconds;
    /* passes that tokens were drawn from, guesses that they checked, and those that were right */
    uint64_t n_passes, n_drafted, n_accepted;
} weir_result;
/* Appends the prompt, then samples. Random numbers: PCG32(seed), one draw per token. On an error nothing is
 * passed off as an answer: out is zeroed (text already given to on_text was followed by an error). Cancelled:
 * OK with stop = CANCELLED and what there is. */
WEIR_API weir_status weir_generate(weir_session *s, const int32_t *prompt, size_t n,
                                   const weir_generate_options *o, weir_result *out, weir_error *err);
WEIR_API void weir_result_finish(weir_model *m, weir_result *r);

/* The same in steps, for servers: several answers share one pass over the weights at every step. They may
 * begin and end between any two steps; each gets the tokens, hash and text that weir_generate gives it alone.
 * The session must not be used otherwise until its answer is ended. Errors as weir_generate, before the first
 * step; BUDGET among them, since an answer takes the memory for all of its max_tokens when it begins (a plan
 * has it for every session), so that one that has begun can always be ended. */
typedef struct weir_answer weir_answer;
WEIR_API weir_status weir_answer_begin(weir_session *s, const int32_t *prompt, size_t n,
                                       const weir_generate_options *o, weir_answer **out, weir_error *err);
/* One pass for those of n answers of one model that are not done, at most max_batch of them: a token, several
 * where guesses were right, or the next part of a prompt. prefill_rows: most tokens of prompts in this pass,
 * so that answers under way do not wait long; 0: as many as the plan has room for. Where they are used up,
 * each further prompt still comes on by one token. On an error no sequence has changed, and the step may be
 * tried again. What goes wrong with one answer alone, such as logits that are no numbers, ends that one:
 * weir_answer_end tells. weir_model_cancel ends all of a step. */
WEIR_API weir_status weir_answers_step(weir_answer *const *answers, size_t n, uint32_t prefill_rows,
                                       weir_error *err);
WEIR_API bool weir_answer_done(const weir_answer *a);
/* Frees it; out receives the result, an answer that is not done with stop = CALLER. Where out is NULL, or
 * with an error, the session's sequence is as before the answer began. Takes NULL. */
WEIR_API weir_status weir_answer_end(weir_answer *a, weir_result *out, weir_error *err);

/* Lets a session of a smaller model with the same vocabulary (INVALID_ARGUMENT) guess for s; both live in one
 * context. The draft's sequence is then s's affair, and its passes are part of the run that wants the
 * guesses: cancelling s's model ends them, cancelling the draft's does not. NULL: none. Destroying either
 * ends it. */
WEIR_API weir_status weir_session_set_draft(weir_session *s, weir_session *draft, weir_error *err);

/* The hash that all outputs print: FNV-1a over 32-bit words in four chains (word i in chain i mod 4), then
 * over the chains' bytes. */
WEIR_API uint64_t weir_logits_hash(uint64_t h, const float *logits, size_t n);
#define WEIR_HASH_SEED UINT64_C(0xcbf29ce484222325)

/* ---------------------------------------------------------------- reports */

typedef struct weir_memory_report {
    size_t struct_size;
    uint64_t budget_bytes, planned_peak_bytes;
    /* the process's peak resident size since loading began (VmHWM), what a simulated device held apart */
    uint64_t peak_bytes;
    uint64_t rss_bytes, pss_bytes, anon_bytes;
    uint64_t ledger_bytes, ledger_peak_bytes;
    uint64_t size_bytes, loaded_bytes,
        streamed_bytes;  /* component: all weights, resident, not resident (R10.1) */
    const char *reason;  /* "" when whole; "budget" */
    uint64_t read_bytes; /* streamed from storage since loading */
    uint64_t n_misses;
    double wait_seconds; /* computation waited for storage */
    double load_seconds;
    uint64_t load_bytes;
    uint64_t packed_bytes; /* of loaded_bytes, in the layout that the kernels read fastest */
    uint64_t arena_saved_bytes;
    const char *reader;    /* "io_uring direct", "mapped" */
    uint64_t mapped_bytes; /* of loaded_bytes, pages of the file: the system can take them back (R6.3) */
    uint32_t n_accounts;
    weir_account accounts[WEIR_MAX_TAGS];
    /* The second tier, as in weir_plan. size, loaded and streamed bytes above are then those of the device.
     */
    const char *device;    /* "cpu" */
    const char *vram_mode; /* "auto" */
    uint64_t device_total_bytes, device_taken_bytes, device_room_bytes, device_planned_bytes;
    uint64_t device_fixed_bytes, device_resident_bytes, device_slot_bytes, device_kept_bytes;
    uint64_t device_limit_bytes, device_reserve_bytes; /* limit 0: none */
    uint64_t host_copy_bytes, pinned_bytes;            /* RAM for the device */
    uint64_t device_streamed_bytes;                    /* copied into slots since loading */
    uint64_t device_copies, device_hits;
    uint32_t device_units, device_resident_units, device_slots;
    uint64_t device_retries; /* passes that ran again: its memory ran out, or it failed once (R8.1) */
    /* Of units that stream: as in weir_component_report (manager.h). */
    bool device_from_storage, device_copies_ahead;
    const char *device_prefetch;
    double device_round_s_without, device_round_s_with;
} weir_memory_report;
WEIR_API weir_status weir_model_memory(const weir_model *m, weir_memory_report *out, weir_error *err);

/* What of a loaded model, or of a component that an engine registered (manager.h), is where (R10.2). */
typedef struct weir_resident {
    size_t struct_size;
    char name[128];     /* the file's, or "engine:component" */
    const char *kind;   /* "model", "component" */
    char device[192];   /* "cpu" */
    const char *mode;   /* compute.vram_mode where a device has memory of its own */
    const char *reason; /* why a model streams: "" where it does not */
    uint64_t size_bytes;
    uint64_t loaded_bytes;   /* on the device; on the CPU: in memory */
    uint64_t streamed_bytes; /* not loaded: comes anew each time it is used */
    uint64_t host_bytes;     /* of its weights in RAM */
    uint64_t copied_bytes;   /* streamed since loading */
    uint32_t n_users;        /* sessions; phases */
} weir_resident;
/* The i-th, models first; false behind the last. While no other thread runs one of the models. */
WEIR_API bool weir_runtime(const weir_context *c, size_t i, weir_resident *out);

typedef struct weir_phase {
    const char *name;
    double seconds, wait_seconds;
    uint64_t n_ops, weight_bytes, streamed_bytes, peak_live_bytes;
} weir_phase;
/* R15.5; needs load option profile. i-th phase, or i-th operation kind; false behind the last. */
WEIR_API bool weir_profile_phase(const weir_model *m, size_t i, weir_phase *out);
WEIR_API bool weir_profile_op(const weir_model *m, size_t i, const char **name, double *seconds,
                              uint64_t *count);

/* Measures for `bench`: what storage delivers for this model's file with the reader in use (bytes per second,
 * by the direct reads it likes best, of up to max_bytes, from where the last measurement of this model
 * ended), and what memory delivers to n_threads. */
WEIR_API weir_status weir_measure_storage(weir_model *m, uint64_t max_bytes, double *bytes_per_s,
                                          weir_error *err);
WEIR_API weir_status weir_measure_memory(weir_context *c, uint32_t n_threads, double *bytes_per_s,
                                         weir_error *err);

/* What a process, the machine and this process's control group hold at this moment, as the kernel counts it.
 * UINT64_MAX: the kernel does not tell, or (limits) there is none.
 *
 *   rss        pages in memory; pages that processes share count fully in each, so RSS is never added up
 *   pss        the same with shared pages split among their users; may be added up over processes
 *   available  the kernel's estimate of what new programs get without swapping: free pages are part of it
 *   cgroup     all that the group is charged with, its page cache included; less inactive_file it is about
 *              what the group cannot give back ("working set") */
typedef struct weir_usage {
    size_t struct_size;
    uint64_t rss_bytes, peak_rss_bytes; /* VmRSS, VmHWM */
    uint64_t pss_bytes, pss_anon_bytes, pss_file_bytes, private_bytes, swap_bytes;
    uint64_t minor_faults, major_faults; /* since its start; major ones waited for storage */
    uint64_t total_bytes, available_bytes, free_bytes, cached_bytes, swap_total_bytes, swap_free_bytes;
    int cgroup_version; /* 1, 2; 0: none tells */
    char cgroup_path[512];
    uint64_t cgroup_bytes, cgroup_peak_bytes, cgroup_limit_bytes;
    uint64_t cgroup_anon_bytes, cgroup_file_bytes, cgroup_inactive_file_bytes, cgroup_kernel_bytes;
    uint64_t cgroup_kills;                 /* processes of the group killed for memory */
    uint64_t some_stall_us, full_stall_us; /* waited for memory: the group's, else the machine's */
} weir_usage;
WEIR_API weir_status weir_usage_read(weir_context *c, int64_t pid, weir_usage *out, weir_error *err);

/* SHA-256 of a file's bytes, as 64 hexadecimal digits, past the page cache as far as it can. `progress` may
 * be NULL; returning false stops with CANCELLED. */
WEIR_API weir_status weir_file_sha256(weir_context *c, const char *path,
                                      bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes),
                                      void *arg, char text[65], weir_error *err);

/* ---------------------------------------------------------------- capacity by formula */

/* How a layer remembers the text before it. Bytes of one layer and session at t tokens:
 *
 *   FULL    keys and values of every token: t x (row(kv_heads x head_dim, key type) + row(kv_heads x
 *           value_dim, value type)). Summed over layers with equal dimensions and one type this is the
 *           standard 2 x layers x KV heads x head dim x tokens x bytes per value (grouped-query attention,
 *           Ainslie et al. 2023).
 *   WINDOW  the same for min(t, window) tokens (Mistral 7B, Jiang et al. 2023, section 2).
 *   LATENT  one shared vector per token: t x row(latent_rank + rope_dim, key type); values are made from it
 *           again (multi-head latent attention, DeepSeek-V2 report, section 2.1).
 *   STATE   state_bytes, whatever t is (recurrent layers, such as Mamba's).
 *
 * row(n, type) is n / block x bytes of a block, rounded up to whole blocks: a Q8_0 block is 32 values in 34
 * bytes, a Q4_0 block 32 in 18. t is rounded up to page_tokens, and a layer's bytes to align_bytes, first. */
typedef enum weir_cache_kind {
    WEIR_CACHE_FULL,
    WEIR_CACHE_WINDOW,
    WEIR_CACHE_LATENT,
    WEIR_CACHE_STATE
} weir_cache_kind;

typedef struct weir_cache_layers { /* layers that are alike */
    weir_cache_kind kind;
    uint64_t n_layers;
    uint64_t n_kv_heads, head_dim, value_dim; /* FULL, WINDOW; value_dim 0: as head_dim */
    uint64_t window;                          /* WINDOW, in tokens */
    uint64_t latent_rank, rope_dim;           /* LATENT; rope_dim may be 0 */
    uint64_t state_bytes;                     /* STATE, of one layer and session */
} weir_cache_layers;

#define WEIR_MAX_CACHES 16
typedef struct weir_formula {
    size_t struct_size;
    char architecture[64]; /* "" or what weir_formula_read found */
    uint32_t n_caches;
    weir_cache_layers caches[WEIR_MAX_CACHES];
    uint64_t ctx_tokens;
    char key_type[16], value_type[16]; /* a weight type's name, or bytes per value as a decimal number ("2",
                                        * "0.5"); value_type "": as key_type */
    uint64_t page_tokens;              /* caches grow by so many tokens; 0: 1 */
    uint64_t align_bytes;              /* each layer's cache is a multiple; 0: 1 */
    /* For sessions; total_bytes 0: not asked. */
    uint64_t total_bytes, system_bytes, weight_bytes;
    uint64_t workspace_bytes;    /* of each session, beside its cache */
    uint64_t trained_ctx_tokens; /* 0, or what weir_formula_read found */
    char unknown[256]; /* of weir_formula_read: what the file does not tell ("window"); "" where all is known
                        */
} weir_formula;
WEIR_API void weir_formula_init(weir_formula *f); /* F16, nothing else */

typedef struct weir_cache_bill {
    weir_cache_kind kind;
    uint64_t n_layers;
    uint64_t tokens;                /* that each layer keeps */
    uint64_t bytes_per_layer_token; /* 0 for STATE */
    uint64_t bytes;                 /* of all these layers, one session */
} weir_cache_bill;

typedef struct weir_formula_result {
    size_t struct_size;
    uint32_t n_bills;
    weir_cache_bill bills[WEIR_MAX_CACHES]; /* in the order of caches */
    uint64_t kv_bytes;                      /* per session */
    uint64_t next_token_bytes;              /* what one more token of context adds at ctx_tokens */
    uint64_t session_bytes;                 /* kv + workspace */
    uint64_t free_bytes;                    /* total - system - weights; 0 where that is negative */
    uint64_t missing_bytes;                 /* for one session; 0 where one fits */
    uint64_t sessions;                      /* max(0, floor(free / session)) (R14.4) */
} weir_formula_result;
/* All arithmetic is checked: INVALID_ARGUMENT names what is missing, zero, unknown or too large for 64 bits.
 */
WEIR_API weir_status weir_formula_evaluate(const weir_formula *f, weir_formula_result *out, weir_error *err);
/* Layers and trained context from a Hugging Face config.json (or a folder with one) or a GGUF header, also of
 * architectures that Weir does not run: sliding windows, hybrids with recurrent layers, latent attention.
 * What the file does not tell stays 0 and is named in `unknown`. Other fields of *f stay as they are. Errors:
 * NOT_FOUND, FORMAT, UNSUPPORTED where the kinds of layers cannot be told at all, ... */
WEIR_API weir_status weir_formula_read(weir_context *c, const char *path, weir_formula *f, weir_error *err);

/* ---------------------------------------------------------------- synthetic models */

typedef struct weir_synth_options {
    size_t struct_size;
    const char *arch; /* "llama", "qwen2", "qwen3", "gemma3" */
    const char *type; /* any weight type's name; norms stay F32; safetensors: F32, F16, BF16 */
    uint32_t hidden, n_layers, n_heads, n_kv_heads, head_dim /* 0: hidden / heads */, ffn, n_vocab,
        ctx_tokens;
    uint32_t window; /* gemma3; 0: its default of 512 */
    bool tied;       /* default: as the architecture's small models do (gemma3, qwen3: tied) */
    bool tied_given;
    bool safetensors;         /* path is then a folder in Hugging Face's layout */
    const char *rope_scaling; /* NULL, "linear", "llama3", "yarn" */
    float softcap;            /* final and attention logits; 0: none */
    uint64_t seed;
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    bool (*stop)(void *arg); /* asked between pieces: true ends it with CANCELLED. May be NULL */
    void *stop_arg;
} weir_synth_options;
WEIR_API void weir_synth_options_init(weir_synth_options *o);
/* Writes a model with seeded random weights and a working tokenizer and chat template (ChatML). */
WEIR_API weir_status weir_synth(weir_context *c, const weir_synth_options *o, const char *path,
                                weir_error *err);

/* ---------------------------------------------------------------- packed files */

typedef struct weir_pack_options {
    size_t struct_size;
    bool force; /* replace a file that is there */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    bool (*stop)(void *arg); /* asked between pieces: true ends it with CANCELLED. May be NULL */
    void *stop_arg;
} weir_pack_options;
WEIR_API void weir_pack_options_init(weir_pack_options *o);
typedef struct weir_pack_result {
    size_t struct_size;
    uint64_t file_bytes;   /* of the new file */
    uint64_t packed_bytes; /* of weights that are packed in it */
    uint64_t other_bytes;  /* of tensors that are as they were: norms, tables that are read by row, floats */
    uint32_t n_packed, n_other;
} weir_pack_result;
/* Writes the model as one GGUF file whose quantized matrices lie in the kernels' own layout, so that weights
 * that stream need no other form either; same size, same results. The model is read through, whatever parts
 * it has; it need not be loaded. Only Weir reads such a file, and only this version of the layout. Nothing is
 * left behind where it fails. out may be NULL. Errors: UNSUPPORTED (no GGUF, packed already, nothing to
 * pack), INVALID_ARGUMENT (path exists or is one of the model's files), IO (among others: no space),
 * CANCELLED. */
WEIR_API weir_status weir_pack(weir_model *m, const weir_pack_options *o, const char *path,
                               weir_pack_result *out, weir_error *err);

#ifdef __cplusplus
}
#endif

#endif
