/* What the tests of memory share: a file of known bytes, a small component over it with every kind of weight,
 * and a walk that compares each tile with the file. */
#ifndef WEIR_MEM_TEST_H
#define WEIR_MEM_TEST_H

#include "memory/memory.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_LAYERS    5
#define MAX_WEIGHTS 256

typedef struct known_weight {
    mem_weight_id id;
    uint64_t offset;
    uint32_t n_rows;
    uint64_t row_bytes;
    bool streamable;
    bool by_row;
    uint32_t unit;
    uint32_t type;
    bool packed;
} known_weight;

typedef struct fixture {
    base_env *env;
    weir_error err;
    char path[256];
    uint8_t *data; /* the file's bytes */
    uint64_t n_data;
    base_file *file;
    mem_component *c;
    known_weight weights[MAX_WEIGHTS];
    uint32_t n_weights;
    mem_weight_id order[MAX_WEIGHTS]; /* all that can stream or is fixed, in running order */
    size_t n_order;
    mem_weight_id table, head, tiny;
    uint64_t baseline; /* ledger before placing */
    uint32_t type;     /* of the weights that are added next, and whether the file has them packed */
    bool packed;
    const mem_packer *packer; /* for placing */
} fixture;

static const base_aio_options ways[] = {
    {BASE_AIO_URING, 64, false},
    {BASE_AIO_URING, 5, true},
    {BASE_AIO_THREADS, 64, true},
    {BASE_AIO_THREADS, 3, false},
};
#define N_WAYS (sizeof ways / sizeof *ways)

#define assert_status(call, wanted)                                                                          \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != (wanted))                                                                          \
            fail_msg("%s: %s instead of %s: %s", #call, weir_status_name(got_status),                        \
                     weir_status_name(wanted), f->err.message);                                              \
    } while (0)

static inline void test_path(char *path, size_t bytes, const char *name)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, bytes, "%s/weir_%s_%ld", folder != NULL ? folder : "/tmp", name, (long)getpid());
}

static inline void write_data(const fixture *f)
{
    int fd = open(f->path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    for (uint64_t done = 0; done < f->n_data;) {
        ssize_t n = write(fd, f->data + done, f->n_data - done);
        assert_true(n > 0);
        done += (uint64_t)n;
    }
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static inline uint32_t add_unit(fixture *f, const char *name, mem_mark mark)
{
    uint32_t unit = UINT32_MAX;
    assert_status(mem_component_add_unit(f->c, name, mark, &unit, &f->err), WEIR_OK);
    return unit;
}

/* Adds a weight behind the last one, at a multiple of 32 as in GGUF, and runs it unless only rows are read.
 */
static inline mem_weight_id add_weight(fixture *f, uint32_t unit, const char *name, uint32_t n_rows,
                                       uint64_t row_bytes, bool streamable, bool by_row)
{
    uint64_t offset = 1000;
    if (f->n_weights != 0) {
        const known_weight *last = &f->weights[f->n_weights - 1];
        offset = base_align_up(last->offset + last->n_rows * last->row_bytes, 32);
    }
    assert_true(f->n_weights < MAX_WEIGHTS);
    known_weight *k = &f->weights[f->n_weights++];
    *k = (known_weight){.offset = offset,
                        .n_rows = n_rows,
                        .row_bytes = row_bytes,
                        .streamable = streamable,
                        .by_row = by_row,
                        .unit = unit,
                        .type = f->type,
                        .packed = f->packed && streamable && !by_row};
    mem_weight_desc desc = {.name = name,
                            .file = f->file,
                            .offset = offset,
                            .n_rows = n_rows,
                            .row_bytes = row_bytes,
                            .streamable = streamable,
                            .by_row = by_row,
                            .type = k->type,
                            .packed = k->packed};
    assert_status(mem_component_add_weight(f->c, unit, &desc, &k->id, &f->err), WEIR_OK);
    if (streamable || !by_row) f->order[f->n_order++] = k->id;
    return k->id;
}

/* Opens a file of pseudo-random bytes of this length. */
static inline void open_data(fixture *f, const char *name, uint64_t n_data)
{
    memset(f, 0, sizeof *f);
    test_path(f->path, sizeof f->path, name);
    f->n_data = n_data;
    f->data = malloc(n_data);
    assert_non_null(f->data);
    base_rng rng;
    base_rng_seed(&rng, 7, 11);
    for (uint64_t i = 0; i < n_data; i++) f->data[i] = (uint8_t)(base_rng_u32(&rng) >> 24);
    write_data(f);
    assert_status(base_env_create(&f->env, &f->err), WEIR_OK);
    assert_status(base_file_open(f->env, f->path, &f->file, &f->err), WEIR_OK);
}

static inline uint64_t ledger_bytes(const fixture *f)
{
    base_ledger_view v;
    base_ledger_read(f->env, &v);
    return v.bytes;
}

/* Five layers of about 0.7 MB with norms, a table, a tied head, and a unit too small to stream, in f's file.
 */
static inline void add_weights(fixture *f, mem_kind kind)
{
    assert_status(mem_component_create(f->env, "main", kind, &f->c, &f->err), WEIR_OK);
    uint32_t unit = add_unit(f, "embedding", MEM_MARK_NONE);
    f->table = add_weight(f, unit, "table", 500, 612, false, true);
    unit = add_unit(f, "tiny", MEM_MARK_NONE);
    f->tiny = add_weight(f, unit, "tiny", 100, 340, true, false);
    for (int i = 0; i < N_LAYERS; i++) {
        char text[32];
        snprintf(text, sizeof text, "layer.%d", i);
        unit = add_unit(f, text, MEM_MARK_NONE);
        add_weight(f, unit, "norm", 1, 1152, false, false);
        add_weight(f, unit, "q", 288, 324, true, false);
        add_weight(f, unit, "k", 96, 324, true, false);
        add_weight(f, unit, "up", 640, 324, true, false);
        add_weight(f, unit, "norm2", 1, 1152, false, false);
        add_weight(f, unit, "down", 288, 720, true, false);
        add_weight(f, unit, "odd", 77, 996, true, false);
    }
    unit = add_unit(f, "head", MEM_MARK_NONE);
    f->head = add_weight(f, unit, "head", 1001, 340, true, true);
    const known_weight *last = &f->weights[f->n_weights - 1];
    assert_true(last->offset + last->n_rows * last->row_bytes <= f->n_data);
    assert_status(mem_component_seal(f->c, &f->err), WEIR_OK);
    f->baseline = ledger_bytes(f);
}

static inline void open_fixture(fixture *f, const char *name, mem_kind kind)
{
    open_data(f, name, (UINT64_C(4) << 20) + 777);
    add_weights(f, kind);
}

static inline void close_fixture(fixture *f)
{
    mem_component_destroy(f->c);
    base_file_close(f->file);
    assert_int_equal(ledger_bytes(f), 0);
    base_env_destroy(f->env);
    unlink(f->path);
    free(f->data);
}

static inline mem_plan plan_of(fixture *f, uint64_t budget)
{
    mem_plan plan;
    assert_status(mem_plan_make(f->c, budget, &plan, &f->err), WEIR_OK);
    return plan;
}

static inline mem_plan any_plan(fixture *f)
{
    mem_plan plan;
    (void)mem_plan_make(f->c, 0, &plan, NULL);
    return plan;
}

/* A budget between the smallest (0) and the whole (100). */
static inline uint64_t budget_at(fixture *f, uint32_t percent)
{
    mem_plan p = any_plan(f);
    return p.smallest_bytes + (p.whole_bytes - p.smallest_bytes) * percent / 100;
}

static inline bool way_exists(fixture *f, const base_aio_options *way)
{
    base_aio *aio = NULL;
    weir_status status = base_aio_create(f->env, way, &aio, &f->err);
    base_aio_destroy(aio);
    if (status == WEIR_ERR_UNSUPPORTED) print_message("left out: %s\n", f->err.message);
    return status == WEIR_OK;
}

/* io_uring with direct reads, or threads where the system refuses io_uring (many containers do). */
static inline const base_aio_options *first_way(fixture *f)
{
    return way_exists(f, &ways[0]) ? &ways[0] : &ways[3];
}

static inline mem_plan place(fixture *f, uint64_t budget, const base_aio_options *way)
{
    mem_plan plan = plan_of(f, budget);
    mem_place_options options = {.aio = *way, .packer = f->packer};
    assert_status(mem_place(f->c, &plan, &options, &f->err), WEIR_OK);
    return plan;
}

/* The layout of the tests' device: byte i of sixteen rows side by side, then byte i + 1. */
#define PACKED_TYPE 7

static inline void pack_group(const uint8_t *rows, size_t row_bytes, uint8_t *dst)
{
    for (size_t r = 0; r < 16; r++)
        for (size_t i = 0; i < row_bytes; i++) dst[i * 16 + r] = rows[r * row_bytes + i];
}

/* A weight's rows as its file has them, but packed in memory as far as the tile says. */
static inline bool tile_is_right(const fixture *f, mem_weight_id id, const mem_tile *t)
{
    const known_weight *k = &f->weights[id];
    if (t->row_begin >= t->row_end || t->row_end > k->n_rows) return false;
    const uint8_t *file = f->data + k->offset + t->row_begin * k->row_bytes, *got = t->data;
    uint32_t rows = t->row_end - t->row_begin, groups = rows / 16;
    bool streams = t->slot != UINT32_MAX;
    bool here = f->packer != NULL && k->streamable && k->type == PACKED_TYPE && !k->packed && !streams;
    if (t->packed_rows != (k->packed || here ? groups * 16 : 0)) return false;
    if (!here) return memcmp(got, file, rows * k->row_bytes) == 0;
    uint8_t *wanted = malloc(16 * k->row_bytes);
    bool right = wanted != NULL;
    for (uint32_t g = 0; g < groups && right; g++, got += 16 * k->row_bytes, file += 16 * k->row_bytes) {
        pack_group(file, k->row_bytes, wanted);
        right = memcmp(got, wanted, 16 * k->row_bytes) == 0;
    }
    free(wanted);
    return right && memcmp(got, file, rows % 16 * k->row_bytes) == 0;
}

/* Takes all tiles of a weight one after the other; they are its rows, each once, in groups of 16. */
static inline weir_status walk_weight(fixture *f, mem_weight_id id)
{
    static bool seen[1 << 12];
    uint32_t n = mem_weight_n_tiles(f->c, id), n_rows = f->weights[id].n_rows, n_seen = 0;
    assert_true(n_rows <= sizeof seen);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < n; i++) {
        mem_tile t;
        weir_status status = mem_tile_acquire(f->c, id, i, &t, &f->err);
        if (status != WEIR_OK) return status;
        assert_true(t.row_begin % 16 == 0 && (t.row_end % 16 == 0 || t.row_end == n_rows));
        if (!tile_is_right(f, id, &t)) fail_msg("wrong bytes in weight %u, tile %u", id, i);
        for (uint32_t row = t.row_begin; row < t.row_end; row++, n_seen++) {
            assert_false(seen[row]);
            seen[row] = true;
        }
        mem_tile_release(f->c, &t);
    }
    assert_int_equal(n_seen, n_rows);
    return WEIR_OK;
}

/* One pass over an order; always ended. */
static inline weir_status run_pass(fixture *f, const mem_weight_id *order, size_t n, atomic_bool *cancel)
{
    weir_status status = mem_pass_begin(f->c, order, n, cancel, &f->err);
    if (status != WEIR_OK) return status;
    for (size_t i = 0; i < n && status == WEIR_OK; i++) status = walk_weight(f, order[i]);
    mem_pass_end(f->c);
    return status;
}

static inline mem_stats stats_of(const fixture *f)
{
    mem_stats s;
    mem_component_stats(f->c, &s);
    return s;
}

/* A device that packs, and fails at call fail_at (counted from 1; 0: never). */
typedef struct packer {
    uint64_t calls, groups;
    uint64_t fail_at;
} packer;

static inline bool can_pack(void *arg, uint32_t type)
{
    (void)arg;
    return type == PACKED_TYPE;
}

static inline weir_status pack(void *arg, uint32_t type, void *rows, size_t row_bytes, size_t n_groups,
                               weir_error *err)
{
    packer *p = arg;
    assert_int_equal(type, PACKED_TYPE);
    assert_true(n_groups > 0);
    if (++p->calls == p->fail_at) return base_fail(err, WEIR_ERR_INTERNAL, "the device refused");
    uint8_t *group = malloc(16 * row_bytes);
    assert_non_null(group);
    for (size_t g = 0; g < n_groups; g++) {
        uint8_t *at = (uint8_t *)rows + g * 16 * row_bytes;
        pack_group(at, row_bytes, group);
        memcpy(at, group, 16 * row_bytes);
    }
    p->groups += n_groups;
    free(group);
    return WEIR_OK;
}

static inline void unpack_row(void *arg, uint32_t type, const void *group, size_t row_bytes, uint32_t row,
                              void *dst)
{
    (void)arg;
    assert_int_equal(type, PACKED_TYPE);
    for (size_t i = 0; i < row_bytes; i++) ((uint8_t *)dst)[i] = ((const uint8_t *)group)[i * 16 + row];
}

static inline void check_head_rows(fixture *f)
{
    const known_weight *k = &f->weights[f->head];
    int32_t rows[] = {0, 1, 15, 16, 17, 500, 991, 992, 1000, 3};
    uint8_t got[sizeof rows / sizeof *rows][340];
    assert_status(mem_rows_read(f->c, f->head, rows, sizeof rows / sizeof *rows, got, sizeof got[0], &f->err),
                  WEIR_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_memory_equal(got[i], f->data + k->offset + (uint64_t)rows[i] * 340, 340);
}

/* What a session does: place, two passes, rows, unplace. Everything that was done is undone on failure; then
 * the same placement goes on without the fault. n_rows: of the table, at most 200. */
static inline weir_status session(fixture *f, const base_aio_options *way, uint64_t budget, uint32_t n_rows)
{
    static uint8_t dst[200 * 612];
    assert_true(n_rows > 0 && n_rows <= 200);
    mem_plan plan;
    weir_status status = mem_plan_make(f->c, budget, &plan, &f->err);
    if (status != WEIR_OK) return status;
    mem_place_options options = {.aio = *way};
    status = mem_place(f->c, &plan, &options, &f->err);
    if (status != WEIR_OK) {
        assert_int_equal(ledger_bytes(f), f->baseline);
        return status;
    }
    int32_t rows[200];
    for (int i = 0; i < (int)n_rows; i++) rows[i] = (i * 37) % 500;
    for (int pass = 0; pass < 2 && status == WEIR_OK; pass++) {
        status = mem_rows_read(f->c, f->table, rows, n_rows, dst, 612, &f->err);
        for (int i = 0; i < (int)n_rows && status == WEIR_OK; i++)
            assert_memory_equal(dst + i * 612, f->data + f->weights[f->table].offset + rows[i] * 612, 612);
        if (status == WEIR_OK) status = run_pass(f, f->order, f->n_order, NULL);
    }
    if (status != WEIR_OK) {
        /* The fault goes away: the same placement goes on. */
        base_fault_clear(f->env);
        weir_error said = f->err;
        assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
        assert_status(mem_rows_read(f->c, f->table, rows, n_rows, dst, 612, &f->err), WEIR_OK);
        assert_memory_equal(dst + (n_rows - 1) * 612,
                            f->data + f->weights[f->table].offset + rows[n_rows - 1] * 612, 612);
        f->err = said;
    }
    mem_unplace(f->c);
    assert_int_equal(ledger_bytes(f), f->baseline);
    return status;
}

#endif
