/* Settings: built-in, then file, then environment (WEIR_COMPUTE_VRAM_MODE), then explicit set; read once.
 * The only caller of getenv. Names are those of the requirements ("compute.vram_mode"). */
#ifndef WEIR_BASE_SETTINGS_H
#define WEIR_BASE_SETTINGS_H

#include "base_env.h"

/* X(name, default, help) - values are strings; the typed reader checks them. */
#define BASE_SETTING_MAP(X)                                                                                  \
    X("cpu", "auto", "instruction set: auto, ref, avx2, avx512, neon")                                       \
    X("io.backend", "auto", "queued reads: auto, io_uring, threads")                                         \
    X("io.direct", "auto", "direct reads: auto, off")                                                        \
    X("io.probe", "auto", "what was measured of storage: auto uses it and measures when needed; off")        \
    X("io.remote_timeout", "30", "seconds that a server may stay silent (plan, inspect of an address)")      \
    X("io.ca_file", "auto",                                                                                  \
      "certificates that https servers may have: auto ($SSL_CERT_FILE, or the system's), or a file")         \
    X("cache_folder", "auto", "where measurements are kept: auto ($XDG_CACHE_HOME/weir), off, or a folder")  \
    X("memory.alias_activations", "on", "share arena space between activations: on, off")                    \
    X("memory.weights", "auto", "weights that stay: read, map (shared with other processes), or auto")       \
    X("memory.process", "auto",                                                                              \
      "what the process holds beside Weir's memory: auto measures; or a size (tests)")                       \
    X("compute.cpus", "all",                                                                                 \
      "processors to compute on, such as 0,2-3: threads are bound to them; all: unbound")                    \
    X("compute.pack", "auto", "weights that stay are put into the kernels' own layout: auto, off")           \
    X("compute.kv_cache", "full",                                                                            \
      "caches of language models: full (all of the context), dynamic (in steps), static (doubling)")         \
    X("compute.ram_reserve", "auto", "memory the default budget leaves free: auto, or a size such as 1GiB")  \
    X("compute.vram_mode", "auto", "models on devices: high (whole), auto, low, none (all streams), shared") \
    X("compute.vram_limit_mb", "auto", "MB of device memory to use at most: auto (all), or a number")        \
    X("compute.vram_reserve_mb", "auto", "MB of device memory to leave free: auto (400), or a number")       \
    X("compute.host_copies", "auto", "copies of weights in RAM for devices: auto, on, off")                  \
    X("compute.max_pinned_mb", "auto",                                                                       \
      "components: MB of pinned RAM at most: auto (by the machine's), or a number")                          \
    X("compute.async_offload", "auto", "components: units copied ahead: auto (2), or 0 to 8")                \
    X("compute.prefetch_sequence", "auto",                                                                   \
      "copy ahead for what runs once per token: auto (no; from storage what is quicker), on, off")           \
    X("compute.oom_retry", "on", "run a phase again when the device had no memory: on, off")                 \
    X("compute.oom_fallback", "off", "then a leaner way whose result differs slightly: on, off")             \
    X("compute.gpu_jobs", "auto", "jobs at once on a device: auto (1), or 1 to 64")                          \
    X("compute.job_wait_s", "auto", "seconds that a job waits for others: auto (600), or a number")          \
    X("compute.max_resident_models", "0",                                                                    \
      "models whose weights are on devices at most; the one used longest ago leaves: 0 (any number), or a "  \
      "number")                                                                                              \
    X("engines.pinned_models", "", "engines or engine:component that leave a device last")                   \
    X("compute.pressure", "auto", "let a budget shrink while memory is short: auto, off")                    \
    X("compute.device", "cpu", "what computes: cpu, sim (a simulated device), or opencl:N")                  \
    X("compute.simulate_vram_mb", "1024", "memory of the simulated device, in MB")                           \
    X("compute.simulate_link_mb", "0", "its link's speed in MB/s; 0: that of memory")                        \
    X("fault", "", "fault points to arm (tests)")                                                            \
    X("cgroup_root", "/sys/fs/cgroup", "where the cgroup file systems are mounted")                          \
    X("proc_root", "/proc", "where the proc file system is mounted")

typedef struct base_settings base_settings;

weir_status base_settings_create(base_env *env, const char *file_path /* may be NULL */, base_settings **out,
                                 weir_error *err);
void base_settings_destroy(base_settings *s);
/* Value of a known name; NULL for an unknown one. */
const char *base_settings_get(const base_settings *s, const char *name);
/* Where the value came from: "built-in", "file", "environment", "set". */
const char *base_settings_source(const base_settings *s, const char *name);
/* The folder of the setting cache_folder, for base_free; "" where there is none. NULL: *err is filled. */
char *base_settings_cache_folder(const base_settings *s, weir_error *err);
/* The file of the setting io.ca_file; "": the system's certificates. Valid until a setting changes. */
const char *base_settings_ca_file(const base_settings *s);
weir_status base_settings_set(base_settings *s, const char *name, const char *value, weir_error *err);
/* Iterates: the i-th name and help, NULL behind the last. */
const char *base_settings_name(size_t i, const char **help);

#endif
