/* Limits that control groups put on this process; inside base only. */
#ifndef WEIR_BASE_CGROUP_H
#define WEIR_BASE_CGROUP_H

#include "base_system.h"

/* Fills the cgroup fields of *m from all ancestors in both versions; leaves them where nothing limits. */
void base_cgroup_memory(const char *proc_root, const char *cgroup_root, base_memory_limits *m);
/* The folder of the group that our memory is charged to in a version's hierarchy: our own, or the nearest
 * above it that has the memory controller. False where there is none. */
bool base_cgroup_folder(const char *proc_root, const char *cgroup_root, int version, char *out, size_t cap);

#endif
