/* The one public header of devices: a table behind which CPU, simulated, OpenCL and CUDA devices stand.
 *
 * A device owns how activations meet weights, how a key-value cache is laid out, and how an operation is
 * carried out. It gets operations whose pointers are resolved and valid for the call; placement is not its
 * business. */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include "base/base.h"

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

typedef struct dev_table {
    const char *name;
    void (*destroy)(dev_device *d);
    /* The form of activations that products with weights of dtype read. Products whose forms are equal share
     * one QUANT; DEV_FORM_FLOATS needs none, DEV_FORM_NONE: no product with this type. */
    uint32_t (*act_form)(const dev_device *d, uint32_t dtype);
    /* Bytes of one row of k activations in the form that a product with weights of dtype reads; 0: floats as
     * they are. */
    size_t (*act_row_bytes)(const dev_device *d, uint32_t dtype, size_t k);
    /* Bytes of K and V of one layer of one sequence. */
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

/* The CPU. cpu: a kern_select name. The device owns its pool of n_threads workers. */
weir_status dev_cpu_create(base_env *env, const char *cpu, uint32_t n_threads, dev_device **out,
                           weir_error *err);
/* The same with workers bound to processors; NULL: unbound. The caller binds itself (base_cpus_bind). */
weir_status dev_cpu_create_on(base_env *env, const char *cpu, uint32_t n_threads, const base_cpus *cpus,
                              dev_device **out, weir_error *err);
static inline void dev_destroy(dev_device *d)
{
    if (d != NULL) d->table->destroy(d);
}
const char *dev_op_name(dev_opcode code);

#endif
