/* Reads the kernel's accounts of memory. Each file is optional: kernels and containers leave some out. */
#define _GNU_SOURCE
#include "base_cgroup.h"
#include "base_usage.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct field {
    const char *name; /* the line's first word, with its colon where it has one */
    uint64_t *value;
} field;

/* Lines "name 123 [kB]"; a unit of kB multiplies. Values not found stay. */
static void read_fields(const char *path, const field *fields, size_t n_fields)
{
    char line[512], name[128], unit[8];
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long long value;
        int n = sscanf(line, "%127s %llu %7s", name, &value, unit);
        for (size_t i = 0; n >= 2 && i < n_fields; i++) {
            if (strcmp(name, fields[i].name) != 0) continue;
            uint64_t factor = n == 3 && strcmp(unit, "kB") == 0 ? 1024 : 1;
            if (!base_mul(value, factor, fields[i].value)) *fields[i].value = BASE_UNKNOWN;
        }
    }
    fclose(file);
}
#define READ_FIELDS(path, ...)                                                                               \
    read_fields(path, (const field[]){__VA_ARGS__}, sizeof((const field[]){__VA_ARGS__}) / sizeof(field))

static void read_number(const char *folder, const char *name, uint64_t *out)
{
    char path[PATH_MAX], text[64];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return;
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    char *end = text;
    unsigned long long value = 0;
    if (fgets(text, sizeof text, file) != NULL) value = strtoull(text, &end, 10);
    if (end != text && text[0] != '-') *out = value; /* "max" stays unknown: no limit */
    fclose(file);
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", then the same for "full". */
static bool read_pressure(const char *path, base_usage *u)
{
    char line[256];
    FILE *file = fopen(path, "re");
    bool found = false;
    if (file == NULL) return false;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *total = strstr(line, "total=");
        if (total == NULL) continue;
        uint64_t us = strtoull(total + 6, NULL, 10);
        if (strncmp(line, "some", 4) == 0) u->some_stall_us = us;
        if (strncmp(line, "full", 4) == 0) u->full_stall_us = us;
        found = true;
    }
    fclose(file);
    return found;
}

/* Fields 10 and 12 of stat, behind a name in brackets that may hold anything. */
static void read_faults(const char *path, base_usage *u)
{
    char text[1024];
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    char *name_end = strrchr(text, ')');
    unsigned long long minor, major;
    if (name_end != NULL &&
        sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %*u %llu %*u %llu", &minor, &major) == 2) {
        u->minor_faults = minor;
        u->major_faults = major;
    }
}

static void read_process(const char *proc_root, int64_t pid, base_usage *u)
{
    char path[PATH_MAX];
    uint64_t clean = BASE_UNKNOWN, dirty = BASE_UNKNOWN;
    snprintf(path, sizeof path, "%s/%lld/status", proc_root, (long long)pid);
    READ_FIELDS(path, {"VmRSS:", &u->rss_bytes}, {"VmHWM:", &u->peak_rss_bytes}, {"VmSwap:", &u->swap_bytes});
    snprintf(path, sizeof path, "%s/%lld/smaps_rollup", proc_root, (long long)pid);
    READ_FIELDS(path, {"Pss:", &u->pss_bytes}, {"Pss_Anon:", &u->pss_anon_bytes},
                {"Pss_File:", &u->pss_file_bytes}, {"Private_Clean:", &clean}, {"Private_Dirty:", &dirty});
    if (clean != BASE_UNKNOWN && dirty != BASE_UNKNOWN) u->private_bytes = clean + dirty;
    snprintf(path, sizeof path, "%s/%lld/stat", proc_root, (long long)pid);
    read_faults(path, u);
}

static void read_group(const char *folder, int version, base_usage *u)
{
    char path[PATH_MAX + 32];
    u->cgroup_version = version;
    snprintf(u->cgroup_path, sizeof u->cgroup_path, "%s", folder);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (version == 2) {
        read_number(folder, "memory.peak", &u->cgroup_peak_bytes);
        read_number(folder, "memory.max", &u->cgroup_limit_bytes);
        READ_FIELDS(path, {"anon", &u->cgroup_anon_bytes}, {"file", &u->cgroup_file_bytes},
                    {"inactive_file", &u->cgroup_inactive_file_bytes}, {"kernel", &u->cgroup_kernel_bytes});
        snprintf(path, sizeof path, "%s/memory.events", folder);
    } else {
        read_number(folder, "memory.max_usage_in_bytes", &u->cgroup_peak_bytes);
        read_number(folder, "memory.limit_in_bytes", &u->cgroup_limit_bytes);
        read_number(folder, "memory.kmem.usage_in_bytes", &u->cgroup_kernel_bytes);
        READ_FIELDS(path, {"total_rss", &u->cgroup_anon_bytes}, {"total_cache", &u->cgroup_file_bytes},
                    {"total_inactive_file", &u->cgroup_inactive_file_bytes});
        /* "No limit" is the largest multiple of the page size there. */
        if (u->cgroup_limit_bytes >= UINT64_C(1) << 62) u->cgroup_limit_bytes = BASE_UNKNOWN;
        snprintf(path, sizeof path, "%s/memory.oom_control", folder);
    }
    READ_FIELDS(path, {"oom_kill", &u->cgroup_kills});
}

void base_usage_read(const char *proc_root, const char *cgroup_root, int64_t pid, base_usage *out)
{
    base_usage u;
    char folder[512], path[PATH_MAX + 32];
    memset(&u, 0xff, sizeof u); /* all unknown */
    u.cgroup_version = 0;
    u.cgroup_path[0] = '\0';
    read_process(proc_root, pid, &u);
    snprintf(path, sizeof path, "%s/meminfo", proc_root);
    READ_FIELDS(path, {"MemTotal:", &u.total_bytes}, {"MemAvailable:", &u.available_bytes},
                {"MemFree:", &u.free_bytes}, {"Cached:", &u.cached_bytes},
                {"SwapTotal:", &u.swap_total_bytes}, {"SwapFree:", &u.swap_free_bytes});
    bool pressure = false;
    for (int version = 2; version >= 1 && u.cgroup_version == 0; version--) {
        if (!base_cgroup_folder(proc_root, cgroup_root, version, folder, sizeof folder)) continue;
        read_number(folder, version == 2 ? "memory.current" : "memory.usage_in_bytes", &u.cgroup_bytes);
        if (u.cgroup_bytes == BASE_UNKNOWN) continue;
        read_group(folder, version, &u);
        snprintf(path, sizeof path, "%s/memory.pressure", folder);
        pressure = version == 2 && read_pressure(path, &u);
    }
    snprintf(path, sizeof path, "%s/pressure/memory", proc_root);
    if (!pressure) read_pressure(path, &u);
    *out = u;
}
