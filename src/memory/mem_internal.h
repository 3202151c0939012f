/* What the files of memory share among themselves and nobody else sees.
 *
 *   mem_component.c  registration      mem_plan.c    sizes, pure
 *   mem_cut.c        what stays        mem_place.c   loading
 *   mem_rows.c       rows by number    mem_stream.c  the ring that streamed tiles pass through
 *   mem_predict.c    the ring played through, to predict the time of a pass
 *   mgr_source.c     programs on a device with memory of its own, over the memory manager
 *   mem_stand_in.c   placing for a rehearsal, with nothing loaded
 *   mem_map.c        all weights where the system keeps the files' pages
 *   mem_resize.c     another plan for what is placed
 *
 * The rules of the shared state are in README.md. */
#ifndef WEIR_MEM_INTERNAL_H
#define WEIR_MEM_INTERNAL_H

#include "memory.h"

#define MEM_PAGE_BYTES         4096
#define MEM_SMALL_BYTES        (UINT64_C(64) << 10) /* R4.3: smaller units are fixed; also the smallest tile */
#define MEM_TILE_MAX_BYTES     (UINT64_C(4) << 20)
#define MEM_RING_MAX_BYTES     (UINT64_C(32) << 20)
#define MEM_AHEAD_BYTES        (UINT64_C(4) << 20) /* see is_held_back in mem_stream.c */
#define MEM_AHEAD_MIN_BYTES    (UINT64_C(1) << 20)
#define MEM_BUFFERED_ALIGN     64 /* of what is not read directly: a cache line */
#define MEM_DEFAULT_DEPTH      64 /* of the queue */
#define MEM_MAX_ENTRIES        128
#define MEM_MAX_HELD           2
#define MEM_ROW_SLOTS          64
#define MEM_ROW_STAGING_BYTES  (UINT64_C(256) << 10)
#define MEM_ROW_SLOT_MAX_BYTES (UINT64_C(64) << 10)
#define MEM_TOTAL_MAX_BYTES    (UINT64_C(1) << 60)
#define MEM_NO_RANK            UINT32_MAX
#define MEM_RESIDENT_SLOT      UINT32_MAX

typedef struct mem_weight {
    char *name;
    base_file *file;
    uint32_t file_index;
    uint32_t unit;
    uint64_t offset;
    uint64_t bytes;
    uint64_t row_bytes;
    uint32_t n_rows;
    bool streamable;
    bool by_row;
    bool packed; /* in its file */
    bool shared; /* set by seal: others have bytes of it, so it keeps its file's layout */
    uint32_t type;
    bool fixed;      /* set by seal: wholly in the fixed block */
    uint32_t rank;   /* set by seal: place in the order of R4.5; MEM_NO_RANK when it never streams */
    uint64_t before; /* set by seal: bytes of the weights before it in its class */
    /* set by mem_place */
    const uint8_t *data;    /* the first resident_rows rows; NULL when none is */
    uint32_t resident_rows; /* of the fixed or the resident block */
    uint32_t packed_rows;   /* of them, in the packed layout */
    uint32_t tile_rows;     /* rows of each streamed tile, the last may have fewer */
    uint32_t n_streamed;    /* tiles that stream */
    uint32_t piece_rows;    /* the resident rows are tiles too, of so many rows each */
    uint32_t n_pieces;      /* at most n_streamed, if that is not 0 */
} mem_weight;

typedef struct mem_unit {
    char *name;
    mem_mark mark;
    uint64_t bytes;
    uint64_t streamable_bytes;
    uint32_t n_weights;
} mem_unit;

/* A weight's place in the files, for walking them in order. */
typedef struct mem_span {
    uint32_t file_index;
    uint32_t weight;
    uint64_t offset;
} mem_span;

/* Ranks of one mark (hot, none, cold); the bytes that stay go to the first class first. */
typedef struct mem_class {
    uint32_t begin, end;
    uint64_t bytes;
} mem_class;
#define MEM_N_CLASSES 3

/* What is resident (mem_cut.c). */
typedef struct mem_cut {
    uint64_t bytes;       /* that stay, of all ranked weights */
    uint32_t more;        /* groups that begin at a rank below share one byte more */
    uint64_t group_bytes; /* of each run of about so many bytes the same share stays; 0: one run */
    uint64_t rest_min;    /* what streams of a weight is no less, or the whole weight */
} mem_cut;

typedef enum mem_part { MEM_PART_FIXED, MEM_PART_RESIDENT } mem_part;

/* One stretch of a file that lies in a block of memory in one piece: [begin, end) at position pos. */
typedef struct mem_run {
    base_file *file;
    uint64_t begin, end; /* rounded outwards; end may pass the end of the file */
    uint64_t need_end;   /* last byte that a weight has */
    uint64_t pos;
    uint32_t first, last; /* of mem_component.by_offset */
} mem_run;

typedef enum mem_entry_state {
    MEM_ENTRY_EMPTY,   /* its bytes can be taken back */
    MEM_ENTRY_WAITING, /* has its place in the ring, not queued yet */
    MEM_ENTRY_READING, /* the kernel may write into it */
    MEM_ENTRY_READY,
    MEM_ENTRY_FAILED, /* read again, at once, when it is wanted */
    MEM_ENTRY_HELD
} mem_entry_state;

/* A queued read of ours; `done` is called when it ended, whatever its status. */
typedef struct mem_queued {
    base_aio_read read;
    void (*done)(mem_component *c, struct mem_queued *r);
} mem_queued;

/* One tile in the ring. */
typedef struct mem_entry {
    mem_queued request; /* first, so that a request gives its entry */
    mem_weight_id weight;
    uint32_t tile;
    size_t order_index; /* where the order of the pass asks for it */
    uint64_t pos, len;  /* in the ring */
    uint32_t skip;      /* of the tile's first byte behind pos */
    mem_entry_state state;
    bool dropped; /* nobody wants it; becomes EMPTY as soon as its read ended */
} mem_entry;

typedef struct mem_row_slot {
    mem_queued request;
    size_t index; /* of the row in the caller's list */
    uint32_t skip;
    bool reading;
    bool ended;
} mem_row_slot;

/* The tile that is prefetched next: order[index], tile. */
typedef struct mem_cursor {
    size_t index;
    uint32_t tile;
    bool valid;   /* false: nothing in the order streams */
    bool wrapped; /* belongs to the next pass */
} mem_cursor;

/* First in, first out: entries[first % MAX] ... entries[(first + n - 1) % MAX], in ring order. */
typedef struct mem_stream {
    uint8_t *ring; /* NULL when nothing streams */
    uint64_t ring_bytes;
    uint64_t head; /* behind the newest entry */
    mem_entry *entries;
    uint32_t first;
    uint32_t n;
    uint32_t n_held;
    const mem_weight_id *order; /* NULL outside a pass */
    size_t n_order;
    size_t at; /* index in the order of the tile that was acquired last */
    mem_cursor cursor;
    bool in_pass;
    bool started;           /* the pass has asked for something */
    uint64_t reading_bytes; /* in flight and still wanted */
    atomic_bool *cancel;
} mem_stream;

typedef struct mem_rows {
    mem_row_slot *slots;
    uint8_t *staging;
    uint32_t n_slots;
    uint64_t slot_bytes;
    uint32_t n_reading;
} mem_rows;

struct mem_component {
    base_env *env;
    char *name;
    mem_kind kind;
    bool sealed;
    uint32_t n_units, cap_units;
    mem_unit *units;
    uint32_t n_weights, cap_weights;
    mem_weight *weights;
    uint32_t n_files, cap_files;
    base_file **files;
    uint64_t total_bytes; /* of all weights, at most MEM_TOTAL_MAX_BYTES */
    mem_reader reader;
    /* set by seal */
    uint32_t align;      /* of offsets and places of what streams or stays: the coarsest of all files */
    mem_span *by_offset; /* n_weights */
    uint32_t *by_rank;   /* n_ranks weights in the order of R4.5 */
    uint32_t n_ranks;
    mem_class classes[MEM_N_CLASSES];
    uint64_t streamable_bytes; /* of all ranked weights */
    /* set by mem_place */
    bool placed;
    mem_plan plan;
    uint8_t *fixed;
    uint8_t *resident;
    base_map **maps;       /* of each file, in the place of the two blocks; NULL: read */
    uint64_t mapped_bytes; /* booked */
    uint8_t *control;      /* entries, row slots and staging; plan.io_bytes */
    base_aio *aio;         /* NULL when nothing is ever read again */
    mem_packer packer;     /* pack NULL: none */
    uint32_t depth;
    bool buffered; /* some file is read through the page cache */
    mem_stream stream;
    mem_rows rows;
    mem_stats stats;
};

/* Bytes of the control block and where its parts lie. Zero bytes when nothing is read after placing. */
typedef struct mem_control {
    uint64_t entries_bytes;
    uint64_t slots_bytes;
    uint64_t staging_bytes;
    uint64_t total_bytes; /* whole pages */
    uint32_t n_slots;
    uint64_t slot_bytes;
} mem_control;

/* ---- mem_plan.c ---- */
/* Everything that follows from a budget. */
typedef struct mem_decision {
    mem_plan plan;
    mem_cut cut;
    uint64_t tile_target; /* what mem_tile_rows is asked with */
    mem_control control;
} mem_decision;
/* Bytes in flight from which on more brings storage nothing, as measured; 0: not known. */
uint64_t mem_reader_bytes(const mem_component *c);
/* Bytes of a ring that are in flight at most. */
uint64_t mem_flight_bytes(const mem_component *c, uint64_t ring_bytes);
/* Bytes that are in flight at most while rows of a table are about to be wanted. */
uint64_t mem_ahead_bytes(const mem_component *c);
weir_status mem_decide(const mem_component *c, uint64_t budget_bytes, mem_decision *out, weir_error *err);
/* Lays a part out; gives its bytes (whole pages). runs may be NULL, else has room for all weights. */
uint64_t mem_layout(const mem_component *c, mem_part part, const mem_cut *cut, mem_run *runs,
                    uint32_t *n_runs);

/* ---- mem_cut.c ---- */
/* Rows of a weight that belong to a part under a cut. */
uint32_t mem_part_rows(const mem_component *c, const mem_weight *w, mem_part part, const mem_cut *cut);
/* The largest cut whose layout takes at most `room` bytes; a group streams about `chunk` bytes. */
void mem_choose_cut(const mem_component *c, uint64_t room, uint64_t chunk, mem_cut *cut);
/* Rows of each streamed tile when `rest` rows stream. */
uint32_t mem_tile_rows(const mem_weight *w, uint32_t rest, uint64_t tile_target);
/* Sets tile_rows to n_pieces from resident_rows. */
void mem_set_tiles(mem_weight *w, uint64_t tile_target);
uint32_t mem_n_tiles(const mem_weight *w);
bool mem_tile_streams(const mem_weight *w, uint32_t tile);
/* Rows in whole groups: those that can lie packed. */
uint32_t mem_group_rows(const mem_weight *w);
/* All tiles together are the weight's rows, each once, though not in ascending order. */
void mem_tile_span(const mem_weight *w, uint32_t tile, uint32_t *row_begin, uint32_t *row_end);

/* ---- mem_place.c ---- */
/* Of the first `rows` rows of a weight, those that are packed when they are loaded. */
uint32_t mem_rows_to_pack(const mem_component *c, const mem_weight *w, uint32_t rows);
/* Ring, entries, row slots and staging. On failure what was allocated is in c all the same. */
weir_status mem_allocate_stream(mem_component *c, const mem_decision *d, weir_error *err);
/* Everything is in memory: what follows from the decision, and the plan. */
void mem_finish_placing(mem_component *c, const mem_decision *d);

/* ---- mem_stand_in.c ---- */
/* Of the block that stands for what stays: what was asked for, or the largest weight. */
uint64_t mem_stand_in_bytes(const mem_component *c, const mem_decision *d, const mem_place_options *o);
/* Fills both blocks, which are allocated, and points all weights there. */
void mem_stand_in(mem_component *c, const mem_decision *d, const mem_place_options *o);

/* ---- mem_map.c ---- */
/* Maps what a plan in which nothing streams places, and points all weights there. On failure nothing is
 * mapped. */
weir_status mem_map_all(mem_component *c, const mem_plan *plan, const mem_place_options *o, weir_error *err);
void mem_unmap_all(mem_component *c);

/* ---- mem_stream.c ---- */
/* Takes in what has ended and queues reads ahead, as far as the ring goes. */
void mem_pump(mem_component *c);
/* Takes one ended read, if any, and tells its owner. Errors are those of waiting itself, not of the read. */
weir_status mem_reap(mem_component *c, bool block, bool *got, weir_error *err);
/* Reads at once, past the queue, and leaves nothing in the page cache. */
weir_status mem_read_now(mem_component *c, base_file *file, uint64_t offset, void *buf, size_t len,
                         weir_error *err);
/* Reads leave pieces in the page cache where the kernel's own units of caching pass the edges of what was
 * read; this takes them away, all files whole. */
void mem_drop_caches(mem_component *c);
bool mem_is_cancelled(const atomic_bool *cancel);
weir_status mem_fail_cancelled(const mem_component *c, weir_error *err);

#endif
