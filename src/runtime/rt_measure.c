/* The limits that speeds are held against: what the storage delivers for this model's files, and what memory
 * delivers to a number of threads. Measured in the same run, never assumed. */
#include "rt_internal.h"

/* Where nothing is known of the storage; else as it was measured to be quickest. */
#define DEPTH            4
#define SHARE_OF_FILE    8 /* that is in flight at most */
#define READ_BYTES       (UINT64_C(4) << 20)
#define DEPTH_MAX        32
#define BLOCK_MAX_BYTES  (UINT64_C(32) << 20)
#define READ_MIN_BYTES   (UINT64_C(64) << 10)
#define MEMORY_BYTES     (UINT64_C(256) << 20)
#define MEMORY_MIN_BYTES (UINT64_C(32) << 20)
#define MEMORY_PIECE     (UINT64_C(1) << 20)
#define MEMORY_ROUNDS    5

/* A walk over a model's files in large reads. */
typedef struct storage_walk {
    weir_model *model;
    base_aio *aio;
    uint8_t *block;
    uint32_t depth;
    uint64_t read_bytes; /* of one read */
    uint64_t left;       /* bytes still to be asked for */
    uint64_t done;
    base_aio_read reads[DEPTH_MAX];
} storage_walk;

/* Queues the next read into slot i; *queued is false when all was asked for. From measurement to measurement
 * the walk goes on through the files and around: what was just read, a cache of the storage's own may hold.
 */
static weir_status queue_next(storage_walk *w, uint32_t i, bool *queued, weir_error *err)
{
    weir_model *m = w->model;
    base_file *f = fmt_model_file(m->file, m->measured.file);
    *queued = w->left != 0;
    if (w->left == 0) return WEIR_OK;
    while (m->measured.offset >= base_file_size(f)) { /* some file is not empty, else left were 0 */
        m->measured.file = (m->measured.file + 1) % fmt_model_n_files(m->file);
        m->measured.offset = 0;
        f = fmt_model_file(m->file, m->measured.file);
    }
    uint64_t need = base_min(base_file_size(f) - m->measured.offset, w->read_bytes);
    w->reads[i] = (base_aio_read){.file = f,
                                  .offset = m->measured.offset,
                                  .buf = w->block + i * w->read_bytes,
                                  .len = w->read_bytes,
                                  .need = need};
    m->measured.offset += need;
    w->left -= base_min(need, w->left);
    return base_aio_submit(w->aio, &w->reads[i], err);
}

static weir_status walk(storage_walk *w, weir_error *err)
{
    bool queued = true;
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < w->depth && queued && status == WEIR_OK; i++)
        status = queue_next(w, i, &queued, err);
    while (status == WEIR_OK && base_aio_in_flight(w->aio) != 0) {
        base_aio_read *r;
        status = base_aio_wait(w->aio, true, &r, err);
        if (status != WEIR_OK) break;
        w->done += r->need;
        status = queue_next(w, (uint32_t)(r - w->reads), &queued, err);
    }
    return status;
}

/* How the reader has been measured to want it. */
static void choose_reads(storage_walk *w)
{
    const base_storage *s = &w->model->storage;
    w->depth = DEPTH;
    w->read_bytes = READ_BYTES;
    if (s->bytes_per_s > 0 && s->depth != 0 && s->read_bytes >= READ_MIN_BYTES) {
        w->depth = base_min(s->depth, DEPTH_MAX);
        w->read_bytes = base_min(base_align_down(s->read_bytes, 4096), BLOCK_MAX_BYTES / w->depth);
    }
    /* A small file is read in several rounds of its own; so the block is small beside any budget for it. */
    uint64_t most = base_file_size(rt_storage_file(w->model)) / SHARE_OF_FILE / w->depth;
    w->read_bytes = base_min(w->read_bytes, base_max(base_align_down(most, 4096), READ_MIN_BYTES));
}

/* The largest block for its reads that the budget has room for. */
static weir_status allocate_block(storage_walk *w, weir_error *err)
{
    for (choose_reads(w);; w->read_bytes = base_align_up(w->read_bytes / 2, 4096)) {
        w->block = base_pages_alloc(w->model->env, BASE_TAG_IO, w->depth * w->read_bytes, true, err);
        if (w->block != NULL) return WEIR_OK;
        if (w->read_bytes <= READ_MIN_BYTES) return err->code;
    }
}

weir_status weir_measure_storage(weir_model *m, uint64_t max_bytes, double *bytes_per_s, weir_error *err)
{
    weir_error failure = {0};
    rt_options options;
    *bytes_per_s = 0.0;
    weir_load_options defaults;
    weir_load_options_init(&defaults);
    defaults.mem_bytes = 1; /* not used: only the settings of reading are */
    storage_walk w = {.model = m, .left = base_min(max_bytes, m->file_bytes)};
    if (rt_model_is_here(m, &failure) != WEIR_OK) goto done;
    if (rt_options_resolve(m, &defaults, &options, &failure) != WEIR_OK) goto done;
    if (allocate_block(&w, &failure) != WEIR_OK) goto done;
    options.aio.depth = w.depth;
    failure.code = WEIR_OK;
    if (base_aio_create(m->env, &options.aio, &w.aio, &failure) != WEIR_OK) goto done;
    for (uint32_t i = 0; i < fmt_model_n_files(m->file); i++) {
        base_file *f = fmt_model_file(m->file, i);
        base_file_drop_cache(f, 0, base_file_size(f));
    }
    double start = base_now(m->env);
    if (walk(&w, &failure) != WEIR_OK) goto done;
    double seconds = base_now(m->env) - start;
    if (w.done == 0)
        base_fail(&failure, WEIR_ERR_INVALID_ARGUMENT, "no bytes to measure storage with");
    else
        *bytes_per_s = (double)w.done / (seconds > 1e-9 ? seconds : 1e-9);

done:
    /* The queue first: reads under way write into the block. */
    base_aio_destroy(w.aio);
    base_pages_free(m->env, BASE_TAG_IO, w.block, w.depth * w.read_bytes);
    if (failure.code != WEIR_OK && err != NULL) *err = failure;
    return failure.code;
}

/* Threads that read a block once. */
typedef struct memory_walk {
    const uint64_t *block;
    uint64_t sums[RT_THREADS_MAX]
                 [8]; /* a cache line for each worker; what keeps the compiler from dropping the reads */
} memory_walk;

/* Four streams at once: one alone leaves part of a core's outstanding reads unused. */
static void read_pieces(void *arg, uint32_t worker, size_t begin, size_t end)
{
    enum { PIECE = MEMORY_PIECE / sizeof(uint64_t), STREAM = PIECE / 4, LINE = 64 / sizeof(uint64_t) };
    memory_walk *w = arg;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = begin; i < end; i++) {
        const uint64_t *p = w->block + i * PIECE;
        for (size_t j = 0; j < STREAM; j += LINE) {
            a += p[j];
            b += p[STREAM + j];
            c += p[2 * STREAM + j];
            d += p[3 * STREAM + j];
        }
    }
    w->sums[worker][0] += a + b + c + d;
}

static weir_status measure_memory(weir_context *c, uint32_t n_threads, double *bytes_per_s, weir_error *err)
{
    weir_error failure = {0};
    rt_crew crew = {0};
    base_cpus cpus;
    base_affinity before;
    void *block = NULL;
    uint64_t bytes = MEMORY_BYTES;
    *bytes_per_s = 0.0;
    memory_walk *w = base_alloc(c->env, BASE_TAG_RUNTIME, sizeof *w, &failure);
    if (w == NULL) goto done;
    /* In a small control group the block itself must not be what ends the process. */
    base_memory_limits limits;
    uint64_t there, reserve;
    if (rt_limits_read(c, &limits, &failure) != WEIR_OK ||
        rt_default_budget(c, &limits, &there, &reserve, &failure) != WEIR_OK)
        goto done;
    while (bytes > there / 2 && bytes / 2 >= MEMORY_MIN_BYTES) bytes /= 2;
    for (; block == NULL && bytes >= MEMORY_MIN_BYTES; bytes /= 2) {
        block = base_pages_alloc(c->env, BASE_TAG_RUNTIME, bytes, true, &failure);
        if (block != NULL) break;
    }
    if (block == NULL) goto done;
    failure.code = WEIR_OK;
    if (base_cpus_parse(base_settings_get(c->settings, "compute.cpus"), &cpus, &failure) != WEIR_OK)
        goto done;
    if (n_threads == 0) n_threads = rt_workers_usual(&cpus);
    if (rt_workers_join(c, &crew, n_threads, &cpus, &failure) != WEIR_OK) goto done;
    w->block = block;
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i += 4096 / sizeof(uint64_t))
        ((uint64_t *)block)[i] = i + 1;
    double best = 0.0;
    rt_workers_bind(c, &cpus, n_threads, &before);
    for (int round = 0; round < MEMORY_ROUNDS; round++) {
        double start = base_now(c->env);
        base_pool_run_on(c->workers, n_threads, read_pieces, w, bytes / MEMORY_PIECE, 4);
        double seconds = base_now(c->env) - start;
        double rate = (double)bytes / (seconds > 1e-9 ? seconds : 1e-9);
        if (rate > best) best = rate;
    }
    base_cpus_restore(&before);
    *bytes_per_s = best;

done:
    rt_workers_leave(c, &crew);
    base_pages_free(c->env, BASE_TAG_RUNTIME, block, bytes);
    base_free(c->env, w);
    if (failure.code != WEIR_OK && err != NULL) *err = failure;
    return failure.code;
}

weir_status weir_measure_memory(weir_context *c, uint32_t n_threads, double *bytes_per_s, weir_error *err)
{
    rt_enter(c);
    weir_status status = measure_memory(c, n_threads, bytes_per_s, err);
    rt_leave(c);
    return status;
}
