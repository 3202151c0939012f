/* Limits that control groups put on this process; inside base only. */
#ifndef WEIR_BASE_CGROUP_H
#define WEIR_BASE_CGROUP_H

#include "base_system.h"

/* Fills the cgroup fields of *m from all ancestors in both versions; leaves them where nothing limits. */
void base_cgroup_memory(const char *proc_root, const char *cgroup_root, base_memory_limits *m);

#endif
