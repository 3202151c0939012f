/* Memory of the machine and of this process, from /proc (proc(5), kernel documentation filesystems/proc). */
#define _GNU_SOURCE
#include "base_internal.h"
#include "base_cgroup.h"
#include "base_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line "Name:   123 kB" of a proc file. */
typedef struct kib_field {
    const char *name; /* with its colon */
    uint64_t *bytes;
    bool *found; /* may be NULL */
} kib_field;

/* Fills the fields that the file has; returns how many, or -errno when it cannot be read. */
static int read_kib_fields(const char *path, const kib_field *fields, size_t n_fields)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return -errno;
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        for (size_t i = 0; i < n_fields; i++) {
            size_t n = strlen(fields[i].name);
            if (strncmp(line, fields[i].name, n) != 0) continue;
            uint64_t kib = strtoull(line + n, NULL, 10);
            if (!base_mul(kib, 1024, fields[i].bytes)) *fields[i].bytes = UINT64_MAX;
            if (fields[i].found != NULL) *fields[i].found = true;
            found++;
        }
    }
    fclose(file);
    return found;
}

weir_status base_memory_limits_read(base_env *env, const char *proc_root, const char *cgroup_root,
                                    base_memory_limits *out, weir_error *err)
{
    base_memory_limits m = {.cgroup_limit_bytes = UINT64_MAX, .cgroup_free_bytes = UINT64_MAX};
    uint64_t free_bytes = 0, cached_bytes = 0;
    bool known = false;
    const kib_field fields[] = {
        {.name = "MemTotal:", .bytes = &m.total_bytes},
        {.name = "MemAvailable:", .bytes = &m.available_bytes, .found = &known},
        {.name = "MemFree:", .bytes = &free_bytes},
        {.name = "Cached:", .bytes = &cached_bytes},
    };
    weir_error local = {0};
    size_t path_bytes = strlen(proc_root) + sizeof "/meminfo";
    char *path = base_alloc(env, BASE_TAG_RUNTIME, path_bytes, &local);
    if (path == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    snprintf(path, path_bytes, "%s/meminfo", proc_root);
    int found = read_kib_fields(path, fields, sizeof fields / sizeof *fields);
    base_free(env, path);
    if (found <= 0 || m.total_bytes == 0) {
        char text[128];
        return base_fail(err, WEIR_ERR_IO,
                         "%s/meminfo: the machine's memory cannot be read: %s; give a budget", proc_root,
                         found < 0 ? base_errno_text(-found, text) : "no MemTotal in it");
    }
    /* Kernels before 3.14 and some containers' proc have no MemAvailable. One of 0 is true. */
    if (!known) m.available_bytes = base_min(m.total_bytes, free_bytes + cached_bytes);
    base_cgroup_memory(proc_root, cgroup_root, &m);
    *out = m;
    return WEIR_OK;
}

/* VmHWM is the whole process's, and so is what is remembered of it. */
static struct {
    pthread_mutex_t lock;
    uint64_t kept_bytes;  /* the own peak before VmHWM was set back */
    uint64_t spent_bytes; /* a VmHWM that could not be set back: up to here it tells nothing of now */
} peak = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The lock is held. What simulated devices hold now is the most they held since VmHWM was set back. */
static void keep_peak(base_process_memory *m)
{
    uint64_t largest = m->peak_rss_bytes > peak.spent_bytes ? m->peak_rss_bytes : 0;
    largest = base_max(m->rss_bytes, largest);
    peak.kept_bytes = base_max(peak.kept_bytes, largest - base_min(largest, m->shmem_bytes));
    m->own_peak_bytes = peak.kept_bytes;
}

static int read_process(base_process_memory *m)
{
    const kib_field fields[] = {
        {.name = "VmRSS:", .bytes = &m->rss_bytes},        {.name = "VmHWM:", .bytes = &m->peak_rss_bytes},
        {.name = "RssAnon:", .bytes = &m->anon_bytes},     {.name = "RssFile:", .bytes = &m->file_bytes},
        {.name = "RssShmem:", .bytes = &m->shmem_bytes},   {.name = "VmSwap:", .bytes = &m->swap_bytes},
        {.name = "VmPTE:", .bytes = &m->page_table_bytes},
    };
    int found = read_kib_fields("/proc/self/status", fields, sizeof fields / sizeof *fields);
    if (found > 0) keep_peak(m);
    return found;
}

weir_status base_process_memory_read(base_process_memory *out, weir_error *err)
{
    base_process_memory m = {0};
    pthread_mutex_lock(&peak.lock);
    int found = read_process(&m);
    pthread_mutex_unlock(&peak.lock);
    if (found <= 0) {
        char text[128];
        return base_fail(err, WEIR_ERR_IO, "/proc/self/status: the memory of this process cannot be read: %s",
                         found < 0 ? base_errno_text(-found, text) : "no VmRSS in it");
    }
    *out = m;
    return WEIR_OK;
}

uint64_t base_process_pss(void)
{
    uint64_t bytes = 0;
    const kib_field pss = {.name = "Pss:", .bytes = &bytes};
    read_kib_fields("/proc/self/smaps_rollup", &pss, 1);
    return bytes;
}

static bool set_peak_back(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, "5", 1) == 1;
    close(fd);
    return done;
}

bool base_process_peak_reset(void)
{
    pthread_mutex_lock(&peak.lock);
    bool done = set_peak_back();
    if (done) peak.kept_bytes = peak.spent_bytes = 0;
    pthread_mutex_unlock(&peak.lock);
    return done;
}

void base_process_peak_keep(void)
{
    base_process_memory m = {0};
    pthread_mutex_lock(&peak.lock);
    read_process(&m);
    pthread_mutex_unlock(&peak.lock);
}

void base_process_shrink_begin(void)
{
    base_process_memory m = {0};
    pthread_mutex_lock(&peak.lock);
    read_process(&m);
    peak.spent_bytes = base_max(peak.spent_bytes, m.peak_rss_bytes);
}

void base_process_shrink_end(void)
{
    if (set_peak_back()) peak.spent_bytes = 0;
    pthread_mutex_unlock(&peak.lock);
}
