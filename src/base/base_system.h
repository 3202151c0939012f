/* What the machine and its control groups leave us, and what this process holds. */
#ifndef WEIR_BASE_SYSTEM_H
#define WEIR_BASE_SYSTEM_H

#include "base_env.h"

typedef struct base_memory_limits {
    uint64_t total_bytes;        /* MemTotal */
    uint64_t available_bytes;    /* MemAvailable; swap and zram are never counted */
    uint64_t cgroup_limit_bytes; /* tightest over all ancestors; UINT64_MAX: none */
    uint64_t cgroup_free_bytes;  /* limit - usage + reclaimable file cache at that level; UINT64_MAX: none */
    uint64_t cgroup_usage_bytes; /* of the group that gave the tightest free bytes */
    int cgroup_version;          /* 1, 2, or 0 where none limits */
    char cgroup_path[512];       /* the group that is tightest */
} base_memory_limits;

/* proc_root and cgroup_root ("/proc", "/sys/fs/cgroup") can point at a test's copy. v1 and v2, all ancestors;
 * the mount points are read from <proc_root>/self/mountinfo where that exists. */
weir_status base_memory_limits_read(base_env *env, const char *proc_root, const char *cgroup_root,
                                    base_memory_limits *out, weir_error *err);

typedef struct base_process_memory {
    uint64_t rss_bytes;      /* VmRSS */
    uint64_t peak_rss_bytes; /* VmHWM: since it was last set back */
    uint64_t
        own_peak_bytes;   /* the largest RSS since base_process_peak_reset, simulated devices' memory apart */
    uint64_t anon_bytes;  /* RssAnon */
    uint64_t file_bytes;  /* RssFile */
    uint64_t shmem_bytes; /* RssShmem: a simulated device's memory, and nothing else of ours */
    uint64_t swap_bytes;
    uint64_t page_table_bytes; /* VmPTE */
} base_process_memory;

weir_status base_process_memory_read(base_process_memory *out, weir_error *err);
/* Pss of smaps_rollup; 0 where it cannot be read. The kernel walks all pages of the process for it, which
 * takes milliseconds for each GiB in small pages. */
uint64_t base_process_pss(void);
/* Sets the peaks back to the present RSS where the kernel allows it; false where not. */
bool base_process_peak_reset(void);
/* VmHWM has the memory of simulated devices in it, as much as there was at that time; so the own peak is
 * taken down whenever that memory changes: before it grows, and around each call that takes some of it away,
 * which sets VmHWM back. From _begin to _end no other thread reads or changes the peaks. */
void base_process_peak_keep(void);
void base_process_shrink_begin(void);
void base_process_shrink_end(void);

#endif
