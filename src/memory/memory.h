/* The one public header of memory: which weights stay, which stream, and how they get to the computation.
 *
 *   component --- unit (decoder layer) --- weight --- tile (a run of rows, the grain of streaming)
 *
 * A component is registered weight by weight as (file, offset, rows, bytes per row, tag); no file format is
 * known here. A plan, computed from a budget before anything is loaded, says which tiles are resident; the
 * rest passes through one ring of slots, read in the order in which the program uses them. */
#ifndef WEIR_MEMORY_H
#define WEIR_MEMORY_H

#include "base/base.h"

#include <stdatomic.h>

/* Rows that kernels take together. Tiles are cut at multiples of it, and so many rows lie packed in one
 * group: the same bytes, permuted. The rows behind a weight's last whole group are never packed. */
#define MEM_ROW_GROUP 16

typedef struct mem_component mem_component;
typedef uint32_t mem_weight_id;
#define MEM_NO_WEIGHT UINT32_MAX

/* R4.5: `sequence` runs once per token and streams the same rest each time, spread evenly over the pass;
 * `oneshot` keeps the largest units. */
typedef enum mem_kind { MEM_SEQUENCE, MEM_ONESHOT } mem_kind;
/* R4.4 */
typedef enum mem_mark {
    MEM_MARK_NONE,
    MEM_MARK_HOT,
    MEM_MARK_FIXED,
    MEM_MARK_COLD,
    MEM_MARK_CPU /* mem_handle only: stays in RAM */
} mem_mark;

typedef struct mem_weight_desc {
    const char *name; /* copied */
    base_file *file;  /* not owned, outlives the component */
    uint64_t offset;
    uint32_t n_rows;
    uint64_t row_bytes; /* rows lie one behind the other */
    bool streamable;    /* false: part of the fixed part (norms, biases) */
    bool by_row; /* read by row (mem_rows_read); not placed for that use. A tied head is streamable and by_row
                  */
    uint32_t type;     /* of its elements, as a packer knows it; only handed on */
    bool packed;       /* the file has whole groups of MEM_ROW_GROUP rows packed; impossible with by_row */
    bool as_f32_fixed; /* reserved: false */
} mem_weight_desc;

weir_status mem_component_create(base_env *env, const char *name, mem_kind kind, mem_component **out,
                                 weir_error *err);
void mem_component_destroy(mem_component *c); /* takes NULL; frees all that was placed */
/* Units are given in running order; weights of a unit too. */
weir_status mem_component_add_unit(mem_component *c, const char *name, mem_mark mark, uint32_t *unit,
                                   weir_error *err);
weir_status mem_component_add_weight(mem_component *c, uint32_t unit, const mem_weight_desc *desc,
                                     mem_weight_id *id, weir_error *err);
/* Ends registration: decides the fixed part (R4.3: what is not streamable, units under 64 KiB). */
weir_status mem_component_seal(mem_component *c, weir_error *err);

/* How the storage wants to be read, as measured; zeroes: what suits a disk of about 1 GB/s. It decides the
 * sizes of ring and tiles, so it is set before plans are made, and never while the component is placed. */
typedef struct mem_reader {
    uint64_t half_rate_bytes; /* with so many bytes in flight storage gives half of its rate */
    uint64_t read_bytes;      /* size of a read from which on larger ones bring nothing */
    uint32_t depth;           /* of them in flight, likewise */
    bool slow; /* each read costs a seek or a round trip: as few and large as the ring allows */
} mem_reader;
void mem_component_set_reader(mem_component *c, const mem_reader *reader);

typedef struct mem_unit_info {
    const char *name;
    uint64_t bytes; /* all its weights, but by_row ones that are not streamable */
    uint64_t streamable_bytes;
    uint64_t resident_bytes; /* after mem_place */
    uint32_t n_weights;
} mem_unit_info;
typedef struct mem_weight_info {
    const char *name;
    uint32_t n_rows, type;
    uint64_t row_bytes;
    bool streamable, by_row, packed; /* as registered */
} mem_weight_info;
/* The weight with this number; false behind the last. Numbers count from 0. */
bool mem_component_weight(const mem_component *c, mem_weight_id id, mem_weight_info *out);
uint32_t mem_component_n_units(const mem_component *c);
void mem_component_unit(const mem_component *c, uint32_t unit, mem_unit_info *out);

/* ---- planning: pure, allocates nothing big, reads no weights ---- */
typedef struct mem_plan {
    uint64_t budget_bytes; /* for fixed part + resident + ring; what was asked */
    uint64_t fixed_bytes;
    uint64_t resident_bytes; /* streamable weights that stay */
    uint64_t ring_bytes;     /* 0 when nothing streams */
    uint64_t tile_bytes;     /* largest tile that streams */
    uint64_t streamed_bytes; /* read from storage for each whole pass (with alignment losses) */
    uint64_t by_row_bytes;   /* tables left in storage */
    uint64_t smallest_bytes; /* fixed part + smallest ring: the component's smallest working set (R4.6) */
    uint64_t whole_bytes;    /* fixed part + all streamable weights */
    uint64_t io_bytes;       /* staging for reads by row */
} mem_plan;
/* BUDGET when budget_bytes < smallest_bytes; *out is then filled all the same. */
weir_status mem_plan_make(const mem_component *c, uint64_t budget_bytes, mem_plan *out, weir_error *err);

/* What a prediction rests on, all measured. */
typedef struct mem_speed {
    double storage_bytes_per_s; /* of large queued reads */
    double compute_bytes_per_s; /* weights worked off when all are in memory */
    double latency_s;           /* of one small read */
} mem_speed;
/* Seconds of a pass in a long run of passes, by playing the ring through. Nothing is read. INVALID_ARGUMENT
 * for rates that are not above 0, BUDGET as mem_plan_make. */
weir_status mem_plan_predict(const mem_component *c, const mem_plan *plan, const mem_speed *speed,
                             double *seconds, weir_error *err);

/* ---- placing ---- */
/* What the device does with weights that stay; memory knows nothing of the bytes. */
typedef struct mem_packer {
    void *arg; /* must stay until mem_unplace */
    bool (*can_pack)(void *arg, uint32_t type);
    /* Packs n_groups groups of MEM_ROW_GROUP rows where they lie. */
    weir_status (*pack)(void *arg, uint32_t type, void *rows, size_t row_bytes, size_t n_groups,
                        weir_error *err);
    /* Copies one row out of a packed group. */
    void (*unpack_row)(void *arg, uint32_t type, const void *group, size_t row_bytes, uint32_t row,
                       void *dst);
} mem_packer;

typedef struct mem_place_options {
    base_aio_options aio;
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
    atomic_bool *cancel; /* may be NULL; checked at every copy (R5.6) */
    /* R15.1: use the files' own pages where the plan streams nothing; reads where that fails. Weights are not
     * packed then. */
    bool map;
    const mem_packer *packer; /* NULL: all weights stay in their file's layout. Copied */
    /* Not 0: a rehearsal. Nothing is loaded; the weights that stay share a block of so many bytes, or of the
     * largest of them, which holds the pattern over and over. What streams is read as ever. */
    uint64_t stand_in_bytes;
    uint16_t stand_in_pattern;
    uint32_t stand_in_rows; /* not 0: so many rows of tables too, which are not read then */
} mem_place_options;
/* Allocates and loads the fixed part and the resident tiles. On failure nothing stays placed. */
weir_status mem_place(mem_component *c, const mem_plan *plan, const mem_place_options *options,
                      weir_error *err);
void mem_unplace(mem_component *c); /* frees, copies nothing back (R6.2) */
bool mem_component_placed(const mem_component *c);
/* Another plan for a component that is placed, between two passes (R6.5). What both plans keep stays in
 * memory, and moves there; what the new one does not keep is returned to the system before anything is
 * allocated, and only what it adds is read. At no moment is more held than the larger of both plans. On
 * failure all is as before, read anew where it must be; where that fails too nothing is placed. Pointers to
 * weights end. Options as for mem_place; the packer stays what it was. To mapped weights nothing moves: what
 * is there goes first. */
weir_status mem_resize(mem_component *c, const mem_plan *plan, const mem_place_options *options,
                       weir_error *err);

/* Where weights are mapped, the file may be cut or changed beneath them. Before and after a run: OK, or
 * TRUNCATED, FILE_CHANGED; then what was computed since the last check is worthless. */
weir_status mem_check_mapped(const mem_component *c, weir_error *err);

/* ---- using: one owner thread ---- */
/* A whole weight in memory, or NULL when (part of) it streams. The pointer stays until mem_unplace. */
const void *mem_weight_resident(const mem_component *c, mem_weight_id id);
/* How many of its resident rows, from row 0 on, lie packed. */
uint32_t mem_weight_packed_rows(const mem_component *c, mem_weight_id id);

typedef struct mem_tile {
    const void *data; /* row row_begin */
    uint32_t row_begin, row_end;
    uint32_t packed_rows; /* of its rows, from row_begin on, lie packed: whole groups */
    uint32_t slot;        /* for release; UINT32_MAX: resident */
} mem_tile;
/* A pass: the weights a program will use, in order. Tiles are prefetched along it; behind its end,
 * prefetching goes on with its beginning, since the next token runs the same (storage never idles). `order`
 * must stay until mem_pass_end. */
weir_status mem_pass_begin(mem_component *c, const mem_weight_id *order, size_t n, atomic_bool *cancel,
                           weir_error *err);
uint32_t mem_weight_n_tiles(const mem_component *c, mem_weight_id id);
/* Waits for tile i of a weight. Its tiles are its rows, each once, in no given order. Tiles used out of order
 * are read on the spot. Errors: IO, TRUNCATED, FILE_CHANGED, CANCELLED. At most two tiles may be held at
 * once. */
weir_status mem_tile_acquire(mem_component *c, mem_weight_id id, uint32_t i, mem_tile *out, weir_error *err);
void mem_tile_release(mem_component *c, const mem_tile *tile);
void mem_pass_end(mem_component *c);

/* Copies rows of a weight: from memory where they are resident, else from the file, in parallel reads.
 * dst row i at dst + i x dst_stride. ids are checked (INVALID_ARGUMENT). */
weir_status mem_rows_read(mem_component *c, mem_weight_id id, const int32_t *rows, size_t n, void *dst,
                          size_t dst_stride, weir_error *err);

typedef struct mem_stats {
    uint64_t streamed_bytes; /* read for tiles since placing */
    uint64_t row_bytes;      /* read by row */
    uint64_t n_reads;
    uint64_t n_misses;   /* tiles read on the spot */
    double wait_seconds; /* the computation stood still for storage */
    uint64_t load_bytes; /* read while placing, or by the last mem_resize */
    double load_seconds;
    uint64_t mapped_bytes; /* of what stays, pages of the files themselves */
    uint64_t packed_bytes; /* of the weights in memory, in the packed layout */
    const char *reader;    /* "io_uring direct", "threads buffered", ... */
} mem_stats;
void mem_component_stats(const mem_component *c, mem_stats *out);

/* Components on devices with memory of their own. */
#include "mem_manager.h"

#include "mem_source.h"

#endif
