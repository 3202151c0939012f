/* The one public header of devices: a table behind which CPU, simulated, OpenCL and CUDA devices stand.
 *
 * A device owns how activations meet weights, how a key-value cache is laid out, and how an operation is
 * carried out. It gets operations whose pointers are resolved and valid for the call; placement is not its
 * business. */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include "base/base.h"
#include "weir/kernel.h"

typedef struct dev_device dev_device;

/* X(CODE, "name"): everything a language model needs; kept small and regular. Row counts are n_rows of the
 * op. */
#define DEV_OP_MAP(X)                                                                                        \
    X(DEQUANT, "embed")         /* a: weight rows (dtype), already gathered -> out floats, times f[0] */     \
    X(QUANT, "quantize")        /* a floats -> out in the form that products with dtype read */              \
    X(MATMUL, "matmul")         /* a: activations; w: weight rows [row_begin, row_end) -> out; b: bias */    \
    X(RMS_NORM, "rms_norm")     /* a; w: weight; `group` elements are one norm; f[0] eps, f[1] offset */     \
    X(ROPE_TABLE, "rope_table") /* position, inv_freq -> out: cols floats per row; f[0] mscale */            \
    X(ROPE, "rope")             /* out in place; b: table; n_heads, head_dim, n_rot, neox */                 \
    X(KV_STORE, "kv_store")     /* a: K rows, b: V rows -> kv of each row's sequence */                      \
    X(ATTENTION, "attention")   /* a: Q rows -> out; window (0: all), f[0] scale, f[1] soft cap */           \
    X(GLU, "glu")               /* a: gate, b: up; gelu */                                                   \
    X(ADD, "add")               /* a + b */                                                                  \
    X(COPY_ROWS, "select_rows") /* rows of a listed in `index` -> out */                                     \
    X(SOFTCAP, "softcap")       /* out in place, f[0] cap */                                                 \
    X(SCALE, "scale")           /* out in place, times f[0] */

typedef enum dev_opcode {
#define DEV_OP_ENUM(code, name) DEV_##code,
    DEV_OP_MAP(DEV_OP_ENUM)
#undef DEV_OP_ENUM
        DEV_OP_COUNT
} dev_opcode;

/* A matrix in device memory: row r starts at data + r x stride bytes. */
typedef struct dev_view {
    void *data;
    size_t stride;
} dev_view;

/* One layer's cache of one sequence; layout is the device's. */
typedef struct dev_kv {
    void *k, *v;
    uint32_t dtype;    /* F16 or F32 */
    uint32_t capacity; /* positions, a multiple of 16; slot = position mod capacity */
} dev_kv;

typedef struct dev_op {
    dev_opcode code;
    uint32_t dtype; /* of the weight, where one takes part */
    size_t n_rows;  /* rows of a and out */
    size_t cols;    /* elements per row of out (MATMUL: row length k of the weight) */
    dev_view a, b, out;
    dev_view w;                /* weight rows; w.data is row row_begin */
    size_t row_begin, row_end; /* MATMUL: output elements this piece of the weight gives */
    size_t packed_rows;        /* MATMUL: of these rows, from row_begin on, lie packed: whole groups */
    const float *bias;         /* MATMUL: whole bias vector or NULL */
    size_t group;
    uint32_t n_heads, n_kv_heads, head_dim, n_rot;
    uint32_t window;
    bool neox, gelu;
    float f[2];
    double mscale;
    const double *inv_freq;   /* ROPE_TABLE: n_rot / 2 of them */
    const int32_t *position;  /* per row */
    const uint32_t *sequence; /* per row: which of kv[] */
    const dev_kv *kv;         /* per sequence: this layer's cache */
    const uint32_t *index;    /* COPY_ROWS */
} dev_op;

/* Rows that lie side by side in a packed group, which takes the bytes of its rows. */
#define DEV_PACK_ROWS   16

#define DEV_FORM_FLOATS 0
#define DEV_FORM_NONE   UINT32_MAX

/* ---- devices with memory of their own ----
 *
 * Addresses: every allocation has a range of its own in a device's address space, given as void *, so that
 * sums within an allocation work as for host pointers. Only the device reads or writes there; views, caches
 * and weights of a dev_op hold such addresses. position, sequence, index, kv, inv_freq and the dev_op itself
 * are host memory, read before `run` returns.
 *
 * Streams: what is given to one stream happens in order; streams happen beside each other. `run` and
 * `launch` go to DEV_STREAM_COMPUTE. Every call returns at once; a ticket stands for all that its stream was
 * given so far. An error of a stream comes from the next call that syncs with it, and stays until
 * `recover`.
 *
 * Threads: run, launch, reserve_workspace, recover and destroy are called by one thread at a time; all else
 * of this table may be called by others meanwhile. */
#define DEV_STREAM_COMPUTE 0u
#define DEV_STREAM_COPY    1u /* the first of the copy streams */
#define DEV_MAX_STREAMS    5u

typedef struct dev_ticket {
    uint32_t stream;
    uint64_t value; /* 0: reached from the start */
} dev_ticket;

typedef struct dev_memory_info {
    uint64_t total_bytes;
    uint64_t free_bytes;      /* what the driver reports free, or the best that is known */
    uint64_t cache_bytes;     /* held by our allocator, used by nobody; not in free_bytes (R3.2) */
    uint64_t taken_bytes;     /* by this process: allocations, work space and cache */
    uint64_t workspace_bytes; /* of these, the device's own work space, where it is there at the moment */
    size_t alignment;         /* of every allocation, and what views must keep */
    bool unified;             /* device memory is host memory (R3.6 `shared`) */
    bool can_register;        /* pin_register works */
} dev_memory_info;

/* Kernels that an engine brings, as the public interface has them. */
typedef weir_arg dev_arg;
typedef weir_kernel dev_kernel;
#define DEV_ARG_ADDRESS WEIR_ARG_ADDRESS
#define DEV_ARG_U32     WEIR_ARG_U32
#define DEV_ARG_F32     WEIR_ARG_F32

/* NULL in a dev_table: the device computes in host memory (plain CPU), and phases cost nothing (R2.5). */
typedef struct dev_memory_table {
    weir_status (*info)(dev_device *d, dev_memory_info *out, weir_error *err);
    /* DEVICE_MEMORY where the device refuses (then yielding may help), DEVICE where it failed. Contents are
     * undefined. Fault site: "device_alloc". label names the owner in errors; copied. */
    weir_status (*alloc)(dev_device *d, uint64_t bytes, const char *label, void **address, weir_error *err);
    /* The caller has made sure that nothing on any stream still uses it. Takes NULL. */
    void (*free)(dev_device *d, void *address);
    void (*trim)(dev_device *d); /* gives back what the allocator holds unused (R7.4) */

    /* Host memory that streams copy from at full speed without a stop; booked in the ledger by the caller.
     * Fault site: "pinned_alloc". Refusals are OUT_OF_MEMORY. */
    weir_status (*pin_alloc)(dev_device *d, uint64_t bytes, void **host, weir_error *err);
    void (*pin_free)(dev_device *d, void *host, uint64_t bytes);
    /* Pins memory where it lies (R5.5); unregistered before it is freed, with the device idle. */
    weir_status (*pin_register)(dev_device *d, void *host, uint64_t bytes, weir_error *err);
    void (*pin_unregister)(dev_device *d, void *host);

    /* Copies; host memory stays untouched until the ticket (may be NULL) is reached. From memory that is not
     * pinned the call may return only when it was read. Fault site: "copy". */
    weir_status (*upload)(dev_device *d, uint32_t stream, void *dst, const void *host, uint64_t bytes,
                          dev_ticket *done, weir_error *err);
    weir_status (*download)(dev_device *d, uint32_t stream, void *host, const void *src, uint64_t bytes,
                            dev_ticket *done, weir_error *err);
    weir_status (*copy)(dev_device *d, uint32_t stream, void *dst, const void *src, uint64_t bytes,
                        dev_ticket *done, weir_error *err);

    /* A ticket for all that the stream was given. */
    weir_status (*mark)(dev_device *d, uint32_t stream, dev_ticket *out, weir_error *err);
    /* What `stream` gets from now on waits for t; the host does not. */
    weir_status (*wait_on)(dev_device *d, uint32_t stream, dev_ticket t, weir_error *err);
    bool (*reached)(dev_device *d, dev_ticket t);
    weir_status (*sync)(dev_device *d, dev_ticket t, weir_error *err); /* the host waits */
    /* After a failure: waits until all streams are empty and forgets their errors. */
    weir_status (*recover)(dev_device *d, weir_error *err);

    /* n_items of an engine's kernel on the compute stream. Fault site: "kernel_build" where it is built. */
    weir_status (*launch)(dev_device *d, const dev_kernel *kernel, const dev_arg *args, uint32_t n_args,
                          size_t n_items, weir_error *err);

    /* Strict devices (R12.2) let operations read a range only between open and close, in the order of the
     * compute stream; elsewhere both are NULL. Ranges of activations and caches are open from `alloc` until
     * `guard` is called for them; weights are guarded. */
    void (*guard)(dev_device *d, void *address, uint64_t bytes);
    void (*open)(dev_device *d, void *address, uint64_t bytes);
    void (*close)(dev_device *d, void *address, uint64_t bytes);
} dev_memory_table;

typedef struct dev_table {
    const char *name;
    const dev_memory_table *memory; /* NULL: host memory */
    void (*destroy)(dev_device *d);
    /* The form of activations that products with weights of dtype read. Products whose forms are equal share
     * one QUANT; DEV_FORM_FLOATS needs none, DEV_FORM_NONE: no product with this type. */
    uint32_t (*act_form)(const dev_device *d, uint32_t dtype);
    /* Bytes of one row of k activations in the form that a product with weights of dtype reads; 0: floats as
     * they are. */
    size_t (*act_row_bytes)(const dev_device *d, uint32_t dtype, size_t k);
    /* Bytes of K and V of one layer of one sequence. Positions lie in order: the cache of a smaller capacity,
     * of its groups of 16, is the beginning of a larger one, K and V each. */
    void (*kv_bytes)(const dev_device *d, uint32_t dtype, uint32_t capacity, uint32_t n_kv_heads,
                     uint32_t head_dim, uint64_t *k_bytes, uint64_t *v_bytes);
    /* Work space the device must hold for rows of up to k elements and caches of up to n_positions (all
     * workers). */
    uint64_t (*workspace_bytes)(const dev_device *d, size_t k, uint32_t n_positions, uint32_t head_dim);
    weir_status (*reserve_workspace)(dev_device *d, size_t k, uint32_t n_positions, uint32_t head_dim,
                                     weir_error *err);
    weir_status (*run)(dev_device *d, const dev_op *op, weir_error *err);
    /* Whether products read rows of dtype faster where they lie packed. */
    bool (*can_pack)(const dev_device *d, uint32_t dtype);
    /* Packs n_groups groups where they lie. Work space must be there for rows this long (INTERNAL). */
    weir_status (*pack)(dev_device *d, uint32_t dtype, void *rows, size_t row_bytes, size_t n_groups,
                        weir_error *err);
    void (*unpack_row)(const dev_device *d, uint32_t dtype, const void *group, size_t row_bytes, uint32_t row,
                       void *dst);
    /* Description for people: "avx512, 2 threads". Into buf. */
    void (*describe)(const dev_device *d, char *buf, size_t size);
} dev_table;

struct dev_device {
    const dev_table *table; /* the implementation's struct begins with this */
};

/* The CPU. cpu: a kern_select name. The device has a pool of n_threads of its own. */
weir_status dev_cpu_create(base_env *env, const char *cpu, uint32_t n_threads, dev_device **out,
                           weir_error *err);
/* The same on n_threads of a pool that is shared with others, which may run at the same time (base_pool.h);
 * it outlives the device. */
weir_status dev_cpu_create_on(base_env *env, const char *cpu, uint32_t n_threads, base_pool *pool,
                              dev_device **out, weir_error *err);
/* A GPU played by the CPU (R12.1): memory of a given size that only operations can read, streams whose
 * copies take time and end late and out of order, and refusals. Operations are the CPU device's, so results
 * equal it bit for bit. */
typedef struct dev_sim_options {
    uint64_t memory_bytes;
    size_t alignment;          /* 0: 256 */
    bool strict;               /* R12.2; page protection, so allocations are whole pages then */
    double link_bytes_per_s;   /* 0: as fast as memory copies */
    uint64_t chaos_seed;       /* not 0: completions are delayed at random, streams overtake each other */
    uint32_t fail_every;       /* not 0: every so many allocations one is refused although it would fit */
    uint64_t max_pinned_bytes; /* 0: none refused */
    bool unified, no_register;
    bool keeps_freed; /* what is freed stays with the allocator (cache_bytes) until it is needed or trimmed */
    uint32_t n_streams; /* 0: DEV_MAX_STREAMS */
} dev_sim_options;
weir_status dev_sim_create(base_env *env, const char *cpu, uint32_t n_threads, const dev_sim_options *options,
                           dev_device **out, weir_error *err);

/* OpenCL, its library opened at run time. Devices are numbered over all platforms. */
typedef struct dev_opencl_info {
    char name[128], vendor[128], driver[64], version[64];
    uint64_t memory_bytes, max_alloc_bytes;
    uint32_t compute_units;
    bool cpu, unified;
} dev_opencl_info;
/* Number of devices; 0 with OK where there is no OpenCL at all (note receives why; may be NULL). */
weir_status dev_opencl_list(base_env *env, dev_opencl_info *infos, uint32_t max, uint32_t *n, char *note,
                            size_t note_size, weir_error *err);
/* cache_folder: kernels are kept there under a hash of source, options, driver and device; "": not kept. */
weir_status dev_opencl_create(base_env *env, uint32_t index, const char *cache_folder, dev_device **out,
                              weir_error *err);

static inline void dev_destroy(dev_device *d)
{
    if (d != NULL) d->table->destroy(d);
}
const char *dev_op_name(dev_opcode code);

#endif
