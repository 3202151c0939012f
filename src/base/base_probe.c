/* Measuring storage: a few ways of reading are tried for a moment each, and the one that asks least of memory
 * among the quick ones is kept.
 *
 *   in flight  256K   1M    1M x4  1M x8  1M x16  4M x4  4M x8
 *   rate        ...  ...     ...    97 %   100 %    99 %   100 %     -> 1 MiB x 8
 *
 * Whether storage is really memory (tmpfs, cached pages) is told by two figures together: a rate near that of
 * copying, and a small read that takes less time than any disk needs. */
#define _GNU_SOURCE
#include "base_probe.h"
#include "base_internal.h"
#include "base_rng.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES     (UINT64_C(32) << 20)
#define BLOCK_MIN_BYTES (UINT64_C(1) << 20)
#define SMALL_BYTES     UINT64_C(4096)
#define SMALL_READS     32
#define COPY_ROUNDS     4
#define MAX_IN_FLIGHT   32

/* Within this share of the best rate the smaller way of reading is taken. */
#define GOOD_SHARE 0.96
/* Storage below this rate, or that takes so long for a small read, seeks or goes over a network. */
#define SLOW_BYTES_PER_S 300e6
#define SLOW_LATENCY_S   1e-3
/* No disk answers a read in less; a copy by the kernel takes a part of it. */
#define MEMORY_LATENCY_S  8e-6
#define MEMORY_RATE_SHARE 0.2

typedef struct probe_way {
    uint64_t read_bytes;
    uint32_t depth;
} probe_way;

/* In ascending order of what is in flight. The first one alone shows what a single read loses. */
static const probe_way ways[] = {
    {UINT64_C(1) << 20, 1}, {UINT64_C(256) << 10, 8}, {UINT64_C(1) << 20, 4}, {UINT64_C(1) << 20, 8},
    {UINT64_C(4) << 20, 2}, {UINT64_C(1) << 20, 16},  {UINT64_C(4) << 20, 4}, {UINT64_C(4) << 20, 8},
};
#define N_WAYS (sizeof ways / sizeof *ways)

typedef struct probe {
    base_env *env;
    base_file *file;
    base_aio *aio;
    uint8_t *block;
    uint64_t block_bytes;
    uint64_t file_bytes;
    uint64_t at; /* next offset in order */
    uint64_t left_bytes;
    double deadline;
    base_rng rng;
    base_aio_read reads[MAX_IN_FLIGHT];
} probe;

static uint64_t next_offset(probe *p, uint64_t read_bytes, bool random)
{
    uint64_t places = p->file_bytes / read_bytes;
    if (places == 0) return 0;
    if (random) return base_rng_u32(&p->rng) % places * read_bytes;
    if (p->at + read_bytes > p->file_bytes) p->at = 0;
    uint64_t offset = p->at;
    p->at += read_bytes;
    return offset;
}

static weir_status queue_read(probe *p, uint32_t i, uint64_t read_bytes, bool random, weir_error *err)
{
    uint64_t offset = next_offset(p, read_bytes, random);
    uint64_t need = base_min(read_bytes, p->file_bytes - offset);
    p->reads[i] = (base_aio_read){
        .file = p->file, .offset = offset, .buf = p->block + i * read_bytes, .len = read_bytes, .need = need};
    p->left_bytes -= base_min(need, p->left_bytes);
    return base_aio_submit(p->aio, &p->reads[i], err);
}

/* Reads for `seconds`, but twice the depth at least; gives the rate. */
static weir_status run_way(probe *p, uint64_t read_bytes, uint32_t depth, bool random, double seconds,
                           double *rate, weir_error *err)
{
    double start = base_now(p->env), end = start;
    uint64_t done = 0;
    uint32_t queued = 0, least = 2 * depth;
    weir_status status = WEIR_OK;
    *rate = 0;
    for (; queued < depth && status == WEIR_OK; queued++)
        status = queue_read(p, queued, read_bytes, random, err);
    while (status == WEIR_OK && base_aio_in_flight(p->aio) != 0) {
        base_aio_read *r;
        status = base_aio_wait(p->aio, true, &r, err);
        if (status != WEIR_OK) break;
        end = base_now(p->env);
        done += r->done;
        bool more = queued < least || (end - start < seconds && p->left_bytes != 0);
        if (!more || end > p->deadline) continue;
        status = queue_read(p, (uint32_t)(r - p->reads), read_bytes, random, err);
        queued++;
    }
    /* What an error leaves in flight ends with the queue. */
    if (status == WEIR_OK) *rate = (double)done / (end - start > 1e-9 ? end - start : 1e-9);
    return status;
}

static double copy_rate(probe *p)
{
    uint64_t half = p->block_bytes / 2;
    double best = 1;
    memset(p->block, 1, p->block_bytes);
    for (int i = 0; i < COPY_ROUNDS; i++) {
        double start = base_now(p->env);
        memcpy(p->block + (i % 2 ? half : 0), p->block + (i % 2 ? 0 : half), half);
        double seconds = base_now(p->env) - start;
        double rate = (double)half / (seconds > 1e-9 ? seconds : 1e-9);
        if (rate > best) best = rate;
    }
    return best;
}

/* The mean of the quicker half: one late read says nothing of the storage. */
static weir_status small_latency(probe *p, double *latency, weir_error *err)
{
    double t[SMALL_READS] = {0}, sum = 0;
    for (int i = 0; i < SMALL_READS; i++) {
        double start = base_now(p->env), rate;
        weir_status status = run_way(p, SMALL_BYTES, 1, true, 0, &rate, err);
        if (status != WEIR_OK) return status;
        double seconds = (base_now(p->env) - start) / 2; /* run_way reads twice the depth */
        int at = i;
        for (; at > 0 && t[at - 1] > seconds; at--) t[at] = t[at - 1];
        t[at] = seconds;
        if (base_now(p->env) > p->deadline) {
            *latency = t[0];
            return WEIR_OK;
        }
    }
    for (int i = 0; i < SMALL_READS / 2; i++) sum += t[i];
    *latency = sum / (SMALL_READS / 2);
    return WEIR_OK;
}

static void choose_way(const double *rates, size_t n, base_storage *s)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (rates[i] > rates[best]) best = i;
    size_t chosen = 0;
    while (rates[chosen] < rates[best] * GOOD_SHARE) chosen++;
    s->read_bytes = ways[chosen].read_bytes;
    s->depth = ways[chosen].depth;
    /* rate(r) = R r / (r + h) for r bytes in flight, from the way with a single read. */
    double loss = rates[0] > 0 ? rates[best] / rates[0] - 1 : 1;
    double h = loss * (double)ways[0].read_bytes;
    s->half_rate_bytes = (uint64_t)(h < 65536 ? 65536 : h > 8388608 ? 8388608 : h);
}

static weir_status measure_all(probe *p, double seconds, base_storage *s, weir_error *err)
{
    double rates[N_WAYS] = {0}, slice = seconds / (N_WAYS + 4);
    size_t n = 0;
    weir_status status = small_latency(p, &s->latency_s, err);
    s->memory_bytes_per_s = copy_rate(p);
    for (; n < N_WAYS && status == WEIR_OK; n++) {
        if (ways[n].read_bytes * ways[n].depth > p->block_bytes || base_now(p->env) > p->deadline) break;
        status = run_way(p, ways[n].read_bytes, ways[n].depth, false, slice, &rates[n], err);
    }
    if (status != WEIR_OK) return status;
    choose_way(rates, n, s);
    /* The best of several short looks is too good; the one that counts is longer. */
    p->deadline += 4 * slice;
    status = run_way(p, s->read_bytes, s->depth, false, 3 * slice, &s->bytes_per_s, err);
    if (status == WEIR_OK)
        status = run_way(p, s->read_bytes, s->depth, true, slice, &s->random_bytes_per_s, err);
    if (status != WEIR_OK) return status;
    /* The model's pass is neither: it skips what stays. Noise must not make it quicker than in order. */
    if (s->random_bytes_per_s > s->bytes_per_s) s->random_bytes_per_s = s->bytes_per_s;
    s->slow = s->bytes_per_s < SLOW_BYTES_PER_S || s->latency_s > SLOW_LATENCY_S;
    s->in_memory =
        s->latency_s < MEMORY_LATENCY_S && s->bytes_per_s > MEMORY_RATE_SHARE * s->memory_bytes_per_s;
    if (!s->slow || s->in_memory) return WEIR_OK;
    s->read_bytes = UINT64_C(4) << 20;
    if (s->depth > 4) s->depth = 4;
    if (s->depth < 2) s->depth = 2;
    return WEIR_OK;
}

static weir_status fill_identity(const base_file *file, base_storage *s, weir_error *err)
{
    struct stat st;
    struct statfs fs;
    if (fstat(base_file_fd(file), &st) != 0 || fstatfs(base_file_fd(file), &fs) != 0) {
        char text[128];
        return base_fail(err, WEIR_ERR_IO, "%s: its file system cannot be asked: %s", base_file_path(file),
                         base_errno_text(errno, text));
    }
    s->device = (uint64_t)st.st_dev;
    s->fs_type = (uint64_t)(unsigned long)fs.f_type;
    return WEIR_OK;
}

weir_status base_storage_identify(const base_file *file, const base_aio_options *aio, bool by_threads,
                                  base_storage *s, weir_error *err)
{
    *s =
        (base_storage){.buffered = aio->buffered || base_file_direct_align(file) == 0, .threads = by_threads};
    return fill_identity(file, s, err);
}

weir_status base_storage_measure(base_env *env, base_file *file, const base_aio_options *aio, double seconds,
                                 uint64_t max_bytes, base_storage *out, weir_error *err)
{
    weir_error local = {0};
    base_storage s;
    probe *p = base_alloc(env, BASE_TAG_IO, sizeof *p, &local);
    if (p == NULL) goto done;
    p->env = env;
    p->file = file;
    p->file_bytes = base_file_size(file);
    p->left_bytes = max_bytes;
    base_rng_seed(&p->rng, 1, 1);
    for (p->block_bytes = BLOCK_BYTES; p->block == NULL; p->block_bytes /= 2) {
        p->block = base_pages_alloc(env, BASE_TAG_IO, p->block_bytes, true, &local);
        if (p->block != NULL) break;
        if (p->block_bytes == BLOCK_MIN_BYTES) goto done;
    }
    local.code = WEIR_OK;
    base_aio_options o = *aio;
    o.depth = (uint32_t)base_max(o.depth, MAX_IN_FLIGHT);
    if (base_aio_create(env, &o, &p->aio, &local) != WEIR_OK) goto done;
    if (base_storage_identify(file, aio, base_aio_by_threads(p->aio), &s, &local) != WEIR_OK) goto done;
    base_file_drop_cache(file, 0, p->file_bytes);
    p->deadline = base_now(env) + seconds;
    if (measure_all(p, seconds, &s, &local) != WEIR_OK) goto done;
    s.when = (int64_t)time(NULL);
    *out = s;

done:
    if (p != NULL) {
        /* The queue first: reads under way write into the block. */
        base_aio_destroy(p->aio);
        base_pages_free(env, BASE_TAG_IO, p->block, p->block_bytes);
        base_file_drop_cache(file, 0, p->file_bytes);
    }
    base_free(env, p);
    if (local.code != WEIR_OK && err != NULL) *err = local;
    return local.code;
}

weir_status base_storage_pick(base_env *env, const char *path, char **out, weir_error *err)
{
    weir_error local = {0};
    struct stat st;
    off_t largest = 0;
    char *best = base_strdup(env, BASE_TAG_IO, path, &local);
    DIR *folder = best != NULL ? opendir(path) : NULL;
    /* Not a folder, or one that cannot be read: opening the path tells which. */
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL && best != NULL;) {
        if (fstatat(dirfd(folder), e->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode) || st.st_size <= largest)
            continue;
        size_t cap = strlen(path) + strlen(e->d_name) + 2;
        base_free(env, best);
        best = base_alloc(env, BASE_TAG_IO, cap, &local);
        if (best != NULL) snprintf(best, cap, "%s/%s", path, e->d_name);
        largest = st.st_size;
    }
    if (best != NULL && folder != NULL && largest == 0) {
        base_fail(&local, WEIR_ERR_NOT_FOUND,
                  "%s: no file lies in this folder to measure with; name a file, the larger the better",
                  path);
        base_free(env, best);
    }
    if (folder != NULL) closedir(folder);
    if (local.code == WEIR_OK) *out = best;
    if (local.code != WEIR_OK && err != NULL) *err = local;
    return local.code;
}

const char *base_storage_fs_text(uint64_t fs_type, char *buf)
{
    static const struct {
        uint64_t type;
        const char *name;
    } known[] = {
        {0xef53, "ext4"},        {0x58465342, "xfs"},   {0x9123683e, "btrfs"}, {0x01021994, "tmpfs"},
        {0x794c7630, "overlay"}, {0x6969, "nfs"},       {0x01021997, "9p"},    {0x65735546, "fuse"},
        {0x2fc12fc1, "zfs"},     {0xff534d42, "cifs"},  {0xfe534d42, "smb2"},  {0xf2f52010, "f2fs"},
        {0x4d44, "vfat"},        {0x2011bab0, "exfat"}, {0x858458f6, "ramfs"}, {0x73717368, "squashfs"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == fs_type) return known[i].name;
    snprintf(buf, 24, "0x%llx", (unsigned long long)fs_type);
    return buf;
}
