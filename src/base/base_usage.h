/* What a process, the machine and our control group hold at this moment, as the kernel counts it (kernel
 * documentation: filesystems/proc, admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2, accounting/psi). */
#ifndef WEIR_BASE_USAGE_H
#define WEIR_BASE_USAGE_H

#include "base_system.h"

#define BASE_UNKNOWN UINT64_MAX /* the kernel does not tell */

typedef struct base_usage {
    /* the process */
    uint64_t rss_bytes, peak_rss_bytes;
    uint64_t pss_bytes, pss_anon_bytes, pss_file_bytes, private_bytes, swap_bytes;
    uint64_t minor_faults, major_faults;
    /* the machine */
    uint64_t total_bytes, available_bytes, free_bytes, cached_bytes, swap_total_bytes, swap_free_bytes;
    /* the control group of this (not that) process; version 0: none tells */
    int cgroup_version;
    char cgroup_path[512];
    uint64_t cgroup_bytes, cgroup_peak_bytes, cgroup_limit_bytes;
    uint64_t cgroup_anon_bytes, cgroup_file_bytes, cgroup_inactive_file_bytes, cgroup_kernel_bytes;
    uint64_t cgroup_kills; /* processes of the group that were killed for memory */
    /* microseconds in which some, or all, tasks waited for memory; the group's, else the machine's */
    uint64_t some_stall_us, full_stall_us;
} base_usage;

/* Roots as in base_memory_limits_read. Nothing here fails: what cannot be read is BASE_UNKNOWN. */
void base_usage_read(const char *proc_root, const char *cgroup_root, int64_t pid, base_usage *out);

#endif
