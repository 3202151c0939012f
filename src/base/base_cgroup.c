/* Walking the control groups that this process is in, from its own up to the root that it can see.
 *
 * Where is the group? /proc/self/cgroup names it inside its hierarchy ("/a/b"), /proc/self/mountinfo says
 * where that hierarchy is mounted and which of its groups the mount point shows (field 4, its root). In a
 * container the mount often shows the container's group as root while the name is still the host's, or the
 * other way round; where the name is not below the root, the mount point itself is the nearest group we can
 * see.
 *
 * Facts from the kernel documentation, admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2. */
#define _GNU_SOURCE
#include "base_cgroup.h"
#include "base_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Version 1 writes "no limit" as the largest multiple of the page size; nothing near it is a limit. */
#define V1_NO_LIMIT  (UINT64_C(1) << 62)
#define USUAL_MOUNT  "/sys/fs/cgroup"
#define NO_CPU_LIMIT UINT32_MAX

typedef struct hierarchy {
    bool found;
    int version;
    char mount[PATH_MAX]; /* where it is mounted */
    char group[PATH_MAX]; /* our group's folder, at or below mount */
} hierarchy;

/* What a visitor of each level, from our own group upwards, gets. */
typedef void (*level_fn)(void *arg, const hierarchy *h, const char *folder, bool own);

/* ---- small readers ---- */

static bool read_text(const char *folder, const char *name, char *buf, size_t cap)
{
    char path[PATH_MAX + 64];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    size_t n = fread(buf, 1, cap - 1, file);
    fclose(file);
    buf[n] = '\0';
    return n != 0;
}

/* A file that holds one number, or "max". */
static bool read_number(const char *folder, const char *name, uint64_t *out)
{
    char text[64];
    if (!read_text(folder, name, text, sizeof text)) return false;
    if (strncmp(text, "max", 3) == 0) {
        *out = UINT64_MAX;
        return true;
    }
    char *end;
    *out = strtoull(text, &end, 10);
    return end != text && text[0] != '-';
}

/* The sum of two lines "name 123" of memory.stat. */
static uint64_t read_stat_sum(const char *folder, const char *a, const char *b)
{
    char text[16384];
    if (!read_text(folder, "memory.stat", text, sizeof text)) return 0;
    uint64_t sum = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *space = strchr(line, ' ');
        if (space == NULL) continue;
        *space = '\0';
        if (strcmp(line, a) == 0 || strcmp(line, b) == 0) sum += strtoull(space + 1, NULL, 10);
    }
    return sum;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- finding the group ---- */

/* True when `word` is one of the comma-separated words in [list, end). */
static bool list_has(const char *list, const char *end, const char *word)
{
    size_t n = strlen(word);
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma != NULL ? comma : end;
        if ((size_t)(stop - list) == n && memcmp(list, word, n) == 0) return true;
        list = stop + 1;
    }
    return false;
}

/* The path behind "N:controllers:" for the wanted controller, or behind "0::" for version 2. */
static bool group_name(const char *proc_root, int version, const char *controller, char *out, size_t cap)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/self/cgroup", proc_root);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    char *line = NULL;
    size_t line_cap = 0;
    bool found = false;
    while (!found && getline(&line, &line_cap, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *first = strchr(line, ':');
        char *second = first != NULL ? strchr(first + 1, ':') : NULL;
        if (second == NULL) continue;
        found = version == 2 ? second == first + 1 : list_has(first + 1, second, controller);
        if (found) found = (size_t)snprintf(out, cap, "%s", second + 1) < cap;
    }
    free(line);
    fclose(file);
    return found;
}

/* mountinfo writes space, tab, newline and backslash as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p != '\0'; to++) {
        if (p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' && p[3] >= '0' &&
            p[3] <= '7') {
            *to = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
            p += 4;
        } else {
            *to = *p++;
        }
    }
    *to = '\0';
}

/* What of `path` lies behind the folder `prefix`: "" or "/...", NULL when it lies elsewhere. */
static const char *behind(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    while (n > 0 && prefix[n - 1] == '/') n--;
    if (strncmp(path, prefix, n) != 0) return NULL;
    return path[n] == '\0' || path[n] == '/' ? path + n : NULL;
}

/* Picks root and mount point out of a mountinfo line if it mounts the wanted hierarchy. */
static bool parse_mount(char *line, int version, const char *controller, char **root, char **point)
{
    char *rest = line, *fields[6] = {0};
    for (int i = 0; i < 6; i++) {
        fields[i] = strsep(&rest, " ");
        if (fields[i] == NULL) return false;
    }
    char *dash = rest != NULL ? (rest[0] == '-' && rest[1] == ' ' ? rest : strstr(rest, " - ")) : NULL;
    if (dash == NULL) return false;
    dash += dash[0] == '-' ? 2 : 3;
    char *type = strsep(&dash, " ");
    strsep(&dash, " "); /* the source */
    if (dash == NULL) return false;
    dash[strcspn(dash, " \n")] = '\0';
    bool wanted = version == 2
                      ? strcmp(type, "cgroup2") == 0
                      : strcmp(type, "cgroup") == 0 && list_has(dash, dash + strlen(dash), controller);
    if (!wanted) return false;
    *root = fields[3];
    *point = fields[4];
    unescape(*root);
    unescape(*point);
    return true;
}

/* Sets mount and group for a mount of `root` at `point`. A mount point below the usual place is looked for
 * below cgroup_root instead, which a test can move. True when the name lies below the mount's root. */
static bool place_group(hierarchy *h, const char *root, const char *point, const char *name,
                        const char *cgroup_root)
{
    const char *tail = behind(point, USUAL_MOUNT);
    if (tail != NULL)
        snprintf(h->mount, sizeof h->mount, "%s%s", cgroup_root, tail);
    else
        snprintf(h->mount, sizeof h->mount, "%s", point);
    bool climbs = strstr(name, "/..") != NULL || strstr(root, "/..") != NULL;
    const char *below = climbs ? NULL : behind(name, root);
    if (below != NULL && strcmp(below, "/") == 0) below = "";
    int n = snprintf(h->group, sizeof h->group, "%s%s", h->mount, below != NULL ? below : "");
    if (n < 0 || (size_t)n >= sizeof h->group) snprintf(h->group, sizeof h->group, "%s", h->mount);
    return below != NULL;
}

/* Where mountinfo says nothing: the usual places below cgroup_root. */
static bool guess_mount(hierarchy *h, const char *controller, const char *name, const char *cgroup_root)
{
    char point[PATH_MAX], probe[PATH_MAX + 32];
    if (h->version == 1) {
        snprintf(point, sizeof point, "%s/%s", cgroup_root, controller);
    } else {
        snprintf(probe, sizeof probe, "%s/cgroup.controllers", cgroup_root);
        struct stat st;
        snprintf(point, sizeof point, stat(probe, &st) == 0 ? "%s" : "%s/unified", cgroup_root);
    }
    if (!is_folder(point)) return false;
    place_group(h, "/", point, name, cgroup_root);
    return true;
}

/* Finds our group in the hierarchy of a version (1: the one with the controller). */
static void find_hierarchy(hierarchy *h, int version, const char *controller, const char *proc_root,
                           const char *cgroup_root)
{
    char name[PATH_MAX], path[PATH_MAX];
    h->version = version;
    h->found = false;
    if (!group_name(proc_root, version, controller, name, sizeof name)) return;
    snprintf(path, sizeof path, "%s/self/mountinfo", proc_root);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        h->found = guess_mount(h, controller, name, cgroup_root);
    } else {
        char *line = NULL, *root, *point;
        size_t cap = 0;
        bool fits = false;
        while (!fits && getline(&line, &cap, file) > 0) {
            if (!parse_mount(line, version, controller, &root, &point)) continue;
            fits = place_group(h, root, point, name, cgroup_root);
            h->found = true;
        }
        free(line);
        fclose(file);
    }
    /* The named group may be invisible here: then the nearest one above it that we see. */
    while (h->found && strlen(h->group) > strlen(h->mount) && !is_folder(h->group)) {
        *strrchr(h->group, '/') = '\0';
    }
}

/* Visits our group and all above it up to the mount point. */
static void visit_levels(const hierarchy *h, level_fn fn, void *arg)
{
    if (!h->found) return;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", h->group);
    bool own = true;
    for (;;) {
        fn(arg, h, folder, own);
        own = false;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(h->mount) || slash == NULL) return;
        *slash = '\0';
    }
}

/* ---- memory ---- */

static void memory_level(void *arg, const hierarchy *h, const char *folder, bool own)
{
    base_memory_limits *m = arg;
    uint64_t limit, usage, cache, high, inherits;
    if (h->version == 2) {
        if (!read_number(folder, "memory.max", &limit)) return; /* the root has none */
        /* Beyond memory.high nobody is killed, but everything is slowed down to a crawl. */
        if (read_number(folder, "memory.high", &high)) limit = base_min(limit, high);
        if (limit == UINT64_MAX || !read_number(folder, "memory.current", &usage)) return;
        /* Shared memory counts as "file" there, but is on the lists of anonymous pages: not in this sum. */
        cache = read_stat_sum(folder, "inactive_file", "active_file");
    } else {
        if (!own && read_number(folder, "memory.use_hierarchy", &inherits) && inherits == 0) return;
        if (!read_number(folder, "memory.limit_in_bytes", &limit) || limit >= V1_NO_LIMIT) return;
        if (!read_number(folder, "memory.usage_in_bytes", &usage)) return;
        cache = read_stat_sum(folder, "total_inactive_file", "total_active_file");
    }
    uint64_t held = usage - base_min(usage, cache);
    uint64_t free_bytes = limit - base_min(limit, held);
    m->cgroup_limit_bytes = base_min(m->cgroup_limit_bytes, limit);
    if (free_bytes >= m->cgroup_free_bytes) return;
    m->cgroup_free_bytes = free_bytes;
    m->cgroup_usage_bytes = usage;
    m->cgroup_version = h->version;
    snprintf(m->cgroup_path, sizeof m->cgroup_path, "%s", folder);
}

void base_cgroup_memory(const char *proc_root, const char *cgroup_root, base_memory_limits *m)
{
    for (int version = 2; version >= 1; version--) {
        hierarchy h;
        find_hierarchy(&h, version, "memory", proc_root, cgroup_root);
        visit_levels(&h, memory_level, m);
    }
}

bool base_cgroup_folder(const char *proc_root, const char *cgroup_root, int version, char *out, size_t cap)
{
    hierarchy h;
    find_hierarchy(&h, version, "memory", proc_root, cgroup_root);
    /* Version 2 hands controllers down level by level: below a group that does not hand memory on, its own
     * account holds what the groups below it use. */
    uint64_t held;
    while (h.found && version == 2 && strlen(h.group) > strlen(h.mount) &&
           !read_number(h.group, "memory.current", &held)) {
        *strrchr(h.group, '/') = '\0';
    }
    return h.found && (size_t)snprintf(out, cap, "%s", h.group) < cap;
}

/* ---- processors ---- */

/* Quota over period, rounded to whole processors, at least one. */
static void take_quota(uint32_t *cpus, uint64_t quota, uint64_t period)
{
    if (period == 0 || quota > UINT64_MAX / 4) return;
    uint64_t n = base_max(1, (2 * quota + period) / (2 * period));
    *cpus = (uint32_t)base_min(*cpus, n);
}

static void cpu_level(void *arg, const hierarchy *h, const char *folder, bool own)
{
    (void)own;
    uint64_t quota, period;
    if (h->version == 1) {
        if (read_number(folder, "cpu.cfs_quota_us", &quota) &&
            read_number(folder, "cpu.cfs_period_us", &period))
            take_quota(arg, quota, period);
        return;
    }
    char text[64], *end;
    if (!read_text(folder, "cpu.max", text, sizeof text) || strncmp(text, "max", 3) == 0) return;
    quota = strtoull(text, &end, 10);
    if (end == text || *end != ' ') return;
    take_quota(arg, quota, strtoull(end + 1, NULL, 10));
}

uint32_t base_cgroup_cpus(const char *proc_root, const char *cgroup_root)
{
    uint32_t cpus = NO_CPU_LIMIT;
    for (int version = 2; version >= 1; version--) {
        hierarchy h;
        find_hierarchy(&h, version, "cpu", proc_root, cgroup_root);
        visit_levels(&h, cpu_level, &cpus);
    }
    return cpus;
}
