/* Measuring storage: a few ways of reading are tried for a moment each, and the one that asks least of memory
 * among the quick ones is kept.
 *
 *   in flight  256K   1M    1M x4  1M x8  1M x16  4M x4  4M x8
 *   rate        ...  ...     ...    97 %   100 %    99 %   100 %     -> 1 MiB x 8
 *
 * Slow storage (a disk that seeks, a network) is told early, by a small read or the first ways. Then only
 * large reads are tried, more and more of them at once while that brings something. What is reported was
 * measured with the way that is kept.
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
/* Storage below this rate, or that takes so long for a small read, seeks or goes over a network. The first
 * ways tell the rate: more in flight would not bring it where a small read takes less. */
#define SLOW_BYTES_PER_S  300e6
#define SLOW_LATENCY_S    1e-3
#define SLOW_WAYS         3
#define LARGE_READ_BYTES  (UINT64_C(4) << 20)
#define LARGE_READ_DEPTHS 3 /* 2, 4, 8 */
#define LARGE_READ_LOOKS  4 /* that there is time for at least */
/* No disk answers a read in less; a copy by the kernel takes a part of it. */
#define MEMORY_LATENCY_S  8e-6
#define MEMORY_RATE_SHARE 0.2

typedef struct probe_way {
    uint64_t read_bytes;
    uint32_t depth;
    double rate;
} probe_way;

/* In ascending order of what is in flight. The first one alone shows what a single read loses. */
static const probe_way quick_ways[] = {
    {UINT64_C(1) << 20, 1, 0}, {UINT64_C(256) << 10, 8, 0}, {UINT64_C(1) << 20, 4, 0},
    {UINT64_C(1) << 20, 8, 0}, {UINT64_C(4) << 20, 2, 0},   {UINT64_C(1) << 20, 16, 0},
    {UINT64_C(4) << 20, 4, 0}, {UINT64_C(4) << 20, 8, 0},
};
#define N_WAYS (sizeof quick_ways / sizeof *quick_ways)

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
    uint32_t n_tried;
    probe_way tried[N_WAYS];
    base_aio_read reads[MAX_IN_FLIGHT];
} probe;

static bool is_over(const probe *p)
{
    return base_now(p->env) > p->deadline;
}

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

/* What one look counts. Of slow storage the first reads only fill the queue and the last ones empty it: in so
 * short a look both would be a good part of it. So reads count from the last one of the first `depth` on and
 * until no more are queued; with each of the two go those that came with it, since a quota may be handed out
 * in bunches. */
typedef struct probe_look {
    bool slow;
    uint32_t depth;
    uint32_t ended;
    bool fills, empties;
    double start, from, until;
    uint64_t done, before, counted;
} probe_look;

/* Right behind the read that arrived at `last`, beside the mean time of all so far. */
static bool is_same_bunch(const probe_look *l, double last, double now)
{
    return (now - last) * l->ended < (now - l->start) / 4;
}

static void count_read(probe_look *l, uint64_t bytes, double now)
{
    l->done += bytes;
    l->ended++;
    l->fills = l->fills && (l->ended <= l->depth || is_same_bunch(l, l->from, now));
    if (l->fills) {
        l->from = now;
        l->before = l->done;
    }
    if (l->slow && l->empties && !is_same_bunch(l, l->until, now)) return;
    l->until = now;
    l->counted = l->done;
}

static double rate_of(const probe_look *l, double end)
{
    double seconds = l->until - l->from;
    if (l->counted > l->before && seconds > 1e-9) return (double)(l->counted - l->before) / seconds;
    seconds = end - l->start;
    return (double)l->done / (seconds > 1e-9 ? seconds : 1e-9);
}

/* Reads for `seconds`, of quick storage twice the depth at least; gives the rate. */
static weir_status run_way(probe *p, probe_way *way, bool random, bool slow, double seconds, weir_error *err)
{
    double now = base_now(p->env);
    probe_look l = {
        .slow = slow, .depth = way->depth, .fills = slow, .start = now, .from = now, .until = now};
    uint32_t queued = 0, least = slow ? way->depth : 2 * way->depth;
    weir_status status = WEIR_OK;
    way->rate = 0;
    for (; queued < way->depth && status == WEIR_OK; queued++)
        status = queue_read(p, queued, way->read_bytes, random, err);
    while (status == WEIR_OK && base_aio_in_flight(p->aio) != 0) {
        base_aio_read *r;
        status = base_aio_wait(p->aio, true, &r, err);
        if (status != WEIR_OK) break;
        now = base_now(p->env);
        count_read(&l, r->done, now);
        bool more = queued < least || (now - l.from < seconds && p->left_bytes != 0);
        l.empties = l.empties || !more || now > p->deadline;
        if (l.empties) continue;
        status = queue_read(p, (uint32_t)(r - p->reads), way->read_bytes, random, err);
        queued++;
    }
    /* What an error leaves in flight ends with the queue. */
    if (status == WEIR_OK) way->rate = rate_of(&l, now);
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

/* By the calling thread: a queue may have to wake others, which takes longer than memory does. */
static weir_status read_small(probe *p, bool direct, uint64_t offset, weir_error *err)
{
    uint64_t need = base_min(SMALL_BYTES, p->file_bytes - offset);
    if (direct && base_file_read_direct(p->file, offset, p->block, SMALL_BYTES) >= (int64_t)need)
        return WEIR_OK;
    return base_file_read(p->file, offset, p->block, need, err);
}

/* The mean of the quicker half: one late read says nothing of the storage. */
static weir_status small_latency(probe *p, bool direct, double seconds, double *latency, weir_error *err)
{
    double t[SMALL_READS] = {0}, sum = 0, begin = base_now(p->env), end = begin;
    int n = 0;
    while (n < SMALL_READS && (n == 0 || end - begin < seconds)) {
        uint64_t offset = next_offset(p, SMALL_BYTES, true);
        double start = base_now(p->env);
        weir_status status = read_small(p, direct, offset, err);
        end = base_now(p->env);
        if (status != WEIR_OK) return status;
        base_file_drop_cache(p->file, offset, SMALL_BYTES);
        int at = n++;
        for (; at > 0 && t[at - 1] > end - start; at--) t[at] = t[at - 1];
        t[at] = end - start;
    }
    int half = (n + 1) / 2;
    for (int i = 0; i < half; i++) sum += t[i];
    *latency = sum / half;
    return WEIR_OK;
}

static const probe_way *best_way(const probe *p)
{
    const probe_way *best = &p->tried[0];
    for (uint32_t i = 1; i < p->n_tried; i++)
        if (p->tried[i].rate > best->rate) best = &p->tried[i];
    return best;
}

/* Ends early where storage turns out to be slow. */
static weir_status try_quick_ways(probe *p, double slice, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < N_WAYS && status == WEIR_OK; i++) {
        probe_way *way = &p->tried[i];
        *way = quick_ways[i];
        if (i != 0 && (way->read_bytes * way->depth > p->block_bytes || is_over(p))) break;
        status = run_way(p, way, false, false, slice, err);
        p->n_tried++;
        if (p->n_tried == SLOW_WAYS && best_way(p)->rate < SLOW_BYTES_PER_S) break;
    }
    return status;
}

static weir_status try_large_reads(probe *p, double look, weir_error *err)
{
    weir_status status = WEIR_OK;
    uint64_t read_bytes = base_min(LARGE_READ_BYTES, p->block_bytes / 2);
    /* Finding out may have taken all of the time. */
    double least = base_now(p->env) + LARGE_READ_LOOKS * look;
    if (p->deadline < least) p->deadline = least;
    p->n_tried = 0;
    for (uint32_t i = 0; i < LARGE_READ_DEPTHS && status == WEIR_OK; i++) {
        probe_way *way = &p->tried[i];
        *way = (probe_way){.read_bytes = read_bytes, .depth = 2U << i};
        if (i != 0 && (way->read_bytes * way->depth > p->block_bytes || is_over(p))) break;
        status = run_way(p, way, false, true, look, err);
        p->n_tried++;
        /* Each look takes long there: none where the last one brought nothing. */
        if (i != 0 && way->rate * GOOD_SHARE < way[-1].rate) break;
    }
    return status;
}

/* The first way that is about as quick as the best one. */
static probe_way choose_way(const probe *p, base_storage *s)
{
    const probe_way *best = best_way(p), *chosen = p->tried;
    while (chosen->rate < best->rate * GOOD_SHARE) chosen++;
    s->read_bytes = chosen->read_bytes;
    s->depth = chosen->depth;
    /* rate(r) = R r / (r + h) for r bytes in flight, from the way with the fewest. */
    const probe_way *least = &p->tried[0];
    double loss = least->rate > 0 ? best->rate / least->rate - 1 : 1;
    double h = loss * (double)least->read_bytes * least->depth;
    s->half_rate_bytes = (uint64_t)(h < 65536 ? 65536 : h > 8388608 ? 8388608 : h);
    return *chosen;
}

static weir_status measure_all(probe *p, double seconds, base_storage *s, weir_error *err)
{
    double slice = seconds / (N_WAYS + 4);
    s->memory_bytes_per_s = copy_rate(p);
    p->deadline = base_now(p->env) + seconds;
    bool direct = !s->buffered && base_file_direct_align(p->file) <= SMALL_BYTES;
    weir_status status = small_latency(p, direct, slice, &s->latency_s, err);
    s->slow = s->latency_s > SLOW_LATENCY_S;
    if (status == WEIR_OK && !s->slow) {
        status = try_quick_ways(p, slice, err);
        s->slow = best_way(p)->rate < SLOW_BYTES_PER_S;
    }
    double look = s->slow ? 2 * slice : slice;
    if (status == WEIR_OK && s->slow) status = try_large_reads(p, look, err);
    if (status != WEIR_OK) return status;
    probe_way way = choose_way(p, s);
    /* The best of several short looks is too good; the one that counts is longer, where there is time. */
    p->deadline += 4 * look;
    if (!is_over(p)) status = run_way(p, &way, false, s->slow, 3 * look, err);
    s->bytes_per_s = way.rate;
    if (status == WEIR_OK) status = run_way(p, &way, true, s->slow, look, err);
    if (status != WEIR_OK) return status;
    /* The model's pass is neither: it skips what stays. Noise must not make it quicker than in order. */
    s->random_bytes_per_s = way.rate < s->bytes_per_s ? way.rate : s->bytes_per_s;
    s->in_memory =
        s->latency_s < MEMORY_LATENCY_S && s->bytes_per_s > MEMORY_RATE_SHARE * s->memory_bytes_per_s;
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
