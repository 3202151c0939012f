/* What was measured of file systems, kept in one small text file of the user's cache folder:
 *
 *   weir-storage 2
 *   DEVICE TYPE BUFFERED THREADS RATE RANDOM LATENCY MEMORY DEPTH READ HALF IN_MEMORY SLOW WHEN
 *   ...
 *
 * It only saves time: whatever is wrong with it, the measurement is made again. */
#define _GNU_SOURCE
#include "base_internal.h"
#include "base_probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEAD           "weir-storage 2\n"
#define FILE_MAX_BYTES ((size_t)64 << 10)
#define MAX_ENTRIES    64
#define MAX_AGE_S      (INT64_C(14) * 24 * 3600)
#define LINE_BYTES     512

static char *file_path(base_env *env, const char *folder, weir_error *err)
{
    size_t cap = strlen(folder) + sizeof BASE_STORAGE_FILE + 1;
    char *path = base_alloc(env, BASE_TAG_IO, cap, err);
    if (path != NULL) snprintf(path, cap, "%s/%s", folder, BASE_STORAGE_FILE);
    return path;
}

static bool is_rate(double x)
{
    return x > 1 && x < 1e15;
}

/* What no measurement gives is not believed. */
static bool is_sensible(const base_storage *s, int64_t now)
{
    return is_rate(s->bytes_per_s) && is_rate(s->random_bytes_per_s) && is_rate(s->memory_bytes_per_s) &&
           s->latency_s >= 0 && s->latency_s < 60 && s->depth >= 1 && s->depth <= 256 &&
           s->read_bytes >= 4096 && s->read_bytes <= (UINT64_C(1) << 30) && s->half_rate_bytes >= 4096 &&
           s->half_rate_bytes <= (UINT64_C(1) << 30) && s->when <= now && now - s->when <= MAX_AGE_S;
}

static bool parse_line(const char *line, base_storage *out)
{
    base_storage s = {0};
    int buffered, threads, in_memory, slow, end = -1;
    int n = sscanf(line,
                   "%" SCNu64 " %" SCNu64 " %d %d %lf %lf %lf %lf %" SCNu32 " %" SCNu64 " %" SCNu64
                   " %d %d %" SCNd64 "%n",
                   &s.device, &s.fs_type, &buffered, &threads, &s.bytes_per_s, &s.random_bytes_per_s,
                   &s.latency_s, &s.memory_bytes_per_s, &s.depth, &s.read_bytes, &s.half_rate_bytes,
                   &in_memory, &slow, &s.when, &end);
    if (n != 14 || end < 0 || line[end] != '\0') return false;
    s.buffered = buffered != 0;
    s.threads = threads != 0;
    s.in_memory = in_memory != 0;
    s.slow = slow != 0;
    *out = s;
    return is_sensible(out, (int64_t)time(NULL));
}

/* Reads what the file has; 0 entries where it cannot be used. */
static uint32_t read_entries(base_env *env, const char *path, base_storage *entries)
{
    char *text;
    size_t len;
    uint32_t n = 0;
    if (base_file_slurp(env, path, FILE_MAX_BYTES, &text, &len, NULL) != WEIR_OK) return 0;
    if (strlen(text) == len && strncmp(text, HEAD, sizeof HEAD - 1) == 0) {
        char *rest = text + sizeof HEAD - 1, *line;
        while (n < MAX_ENTRIES && (line = strsep(&rest, "\n")) != NULL) {
            if (parse_line(line, &entries[n])) n++;
        }
    }
    base_free(env, text);
    return n;
}

static bool same_place(const base_storage *a, const base_storage *b)
{
    return a->device == b->device && a->fs_type == b->fs_type && a->buffered == b->buffered &&
           a->threads == b->threads;
}

bool base_storage_recall(base_env *env, const char *folder, const base_file *file,
                         const base_aio_options *aio, base_storage *out)
{
    base_storage wanted;
    bool found = false, by_threads;
    if (base_aio_ask_threads(env, aio, &by_threads, NULL) != WEIR_OK) return false;
    if (base_storage_identify(file, aio, by_threads, &wanted, NULL) != WEIR_OK) return false;
    char *path = file_path(env, folder, NULL);
    base_storage *entries = base_alloc_array(env, BASE_TAG_IO, MAX_ENTRIES, sizeof *entries, NULL);
    uint32_t n = path != NULL && entries != NULL ? read_entries(env, path, entries) : 0;
    for (uint32_t i = 0; i < n && !found; i++) {
        found = same_place(&entries[i], &wanted);
        if (found) *out = entries[i];
    }
    base_free(env, entries);
    base_free(env, path);
    return found;
}

static weir_status write_entry(base_writer *w, const base_storage *s, weir_error *err)
{
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line,
                     "%" PRIu64 " %" PRIu64 " %d %d %.9g %.9g %.9g %.9g %" PRIu32 " %" PRIu64 " %" PRIu64
                     " %d %d %" PRId64 "\n",
                     s->device, s->fs_type, s->buffered, s->threads, s->bytes_per_s, s->random_bytes_per_s,
                     s->latency_s, s->memory_bytes_per_s, s->depth, s->read_bytes, s->half_rate_bytes,
                     s->in_memory, s->slow, s->when);
    return base_writer_write(w, line, (size_t)n, err);
}

/* The folder and, where even that is missing, the one that holds it (~/.cache). */
static weir_status make_folder(base_env *env, const char *folder, weir_error *err)
{
    weir_status status = base_folder_make(folder, err);
    const char *slash = strrchr(folder, '/');
    if (status == WEIR_OK || slash == NULL || slash == folder) return status;
    char *parent = base_strndup(env, BASE_TAG_IO, folder, (size_t)(slash - folder), err);
    if (parent == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    status = base_folder_make(parent, err);
    base_free(env, parent);
    return status == WEIR_OK ? base_folder_make(folder, err) : status;
}

weir_status base_storage_remember(base_env *env, const char *folder, const base_storage *s, weir_error *err)
{
    weir_error local = {0};
    base_writer *w = NULL;
    base_storage *entries = NULL;
    char *path = file_path(env, folder, &local);
    if (path == NULL) goto done;
    entries = base_alloc_array(env, BASE_TAG_IO, MAX_ENTRIES, sizeof *entries, &local);
    if (entries == NULL || make_folder(env, folder, &local) != WEIR_OK) goto done;
    local.code = WEIR_OK;
    uint32_t n = read_entries(env, path, entries);
    if (base_writer_create(env, path, &w, &local) != WEIR_OK) goto done;
    weir_status status = base_writer_write(w, HEAD, sizeof HEAD - 1, &local);
    if (status == WEIR_OK) status = write_entry(w, s, &local);
    for (uint32_t i = 0, kept = 1; i < n && kept < MAX_ENTRIES && status == WEIR_OK; i++) {
        if (same_place(&entries[i], s)) continue;
        status = write_entry(w, &entries[i], &local);
        kept++;
    }
    if (status == WEIR_OK) base_writer_commit(w, &local);

done:
    base_writer_destroy(w);
    base_free(env, entries);
    base_free(env, path);
    if (local.code != WEIR_OK && err != NULL) *err = local;
    return local.code;
}
