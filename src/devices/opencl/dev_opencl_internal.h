/* Inside the OpenCL device only.
 *
 * Device addresses. OpenCL buffers are handles without sums, and device.h wants addresses. So each buffer
 * gets a range of numbers that no processor can dereference and that is never given out again; at use the
 * buffer and the offset in it are found by a search (dev_opencl_memory.c).
 *
 * Locks. `lock` guards chunks, pinned blocks and streams' tickets; it is held for table work only, never
 * while waiting for the device. run and launch are called by one thread at a time (device.h), which alone
 * sets arguments of kernels. */
#ifndef WEIR_DEV_OPENCL_INTERNAL_H
#define WEIR_DEV_OPENCL_INTERNAL_H

#define CL_TARGET_OPENCL_VERSION 120

#include "devices/device.h"
#include "kernels/kernels.h"

#include <CL/cl.h>
#include <pthread.h>

/* Every function of OpenCL that is used, without its prefix. */
#define OPENCL_FUNCTIONS(X)                                                                                  \
    X(GetPlatformIDs)                                                                                        \
    X(GetPlatformInfo)                                                                                       \
    X(GetDeviceIDs)                                                                                          \
    X(GetDeviceInfo)                                                                                         \
    X(CreateContext)                                                                                         \
    X(ReleaseContext)                                                                                        \
    X(CreateCommandQueue)                                                                                    \
    X(ReleaseCommandQueue)                                                                                   \
    X(CreateBuffer)                                                                                          \
    X(ReleaseMemObject)                                                                                      \
    X(CreateProgramWithSource)                                                                               \
    X(CreateProgramWithBinary)                                                                               \
    X(BuildProgram)                                                                                          \
    X(GetProgramInfo)                                                                                        \
    X(GetProgramBuildInfo)                                                                                   \
    X(ReleaseProgram)                                                                                        \
    X(CreateKernel)                                                                                          \
    X(ReleaseKernel)                                                                                         \
    X(GetKernelInfo)                                                                                         \
    X(SetKernelArg)                                                                                          \
    X(EnqueueNDRangeKernel)                                                                                  \
    X(EnqueueReadBuffer)                                                                                     \
    X(EnqueueWriteBuffer)                                                                                    \
    X(EnqueueCopyBuffer)                                                                                     \
    X(EnqueueFillBuffer)                                                                                     \
    X(EnqueueMapBuffer)                                                                                      \
    X(EnqueueUnmapMemObject)                                                                                 \
    X(EnqueueMigrateMemObjects)                                                                              \
    X(EnqueueMarkerWithWaitList)                                                                             \
    X(EnqueueBarrierWithWaitList)                                                                            \
    X(GetEventInfo)                                                                                          \
    X(RetainEvent)                                                                                           \
    X(ReleaseEvent)                                                                                          \
    X(WaitForEvents)                                                                                         \
    X(Flush)                                                                                                 \
    X(Finish)

typedef struct opencl_api {
    base_library *library;
#define OPENCL_FIELD(name) __typeof__(&cl##name) name;
    OPENCL_FUNCTIONS(OPENCL_FIELD)
#undef OPENCL_FIELD
} opencl_api;

typedef struct opencl_range {
    uint64_t offset, bytes;
} opencl_range;

/* One buffer: a large allocation of its own, or a pool that small ones share. */
typedef struct opencl_chunk {
    cl_mem mem;
    uintptr_t address;
    uint64_t bytes;
    bool pool;
    opencl_range *used; /* ascending; a single one when not a pool */
    uint32_t n_used, max_used;
} opencl_chunk;

typedef struct opencl_pinned {
    void *host;
    uint64_t bytes;
    cl_mem mem;
} opencl_pinned;

/* Tickets that are not known to be reached, oldest first. */
#define OPENCL_EVENTS 256u
typedef struct opencl_stream {
    cl_command_queue queue;
    uint64_t given, done; /* values of tickets */
    cl_event event[OPENCL_EVENTS];
    uint64_t value[OPENCL_EVENTS];
    uint32_t first, n;
    cl_int failed; /* CL_SUCCESS, or what an event ended with; stays until recover */
    /* The queue was given n_turns commands, by threads of which `entering` are at it now; the newest ticket
     * stands for the first `covered` of them. */
    uint64_t n_turns, covered;
    uint32_t entering;
} opencl_stream;

/* A thread's giving a command to a stream. */
typedef struct opencl_turn {
    uint64_t number;
    bool alone; /* when it began */
} opencl_turn;

/* An engine's kernel that was built. */
typedef struct opencl_built {
    char *name, *source;
    cl_program program;
    cl_kernel kernel;
} opencl_built;

/* Kernels that do not depend on a weight type: X(name), the kernel being weir_<name>. */
#define OPENCL_KERNELS(X)                                                                                    \
    X(quantize)                                                                                              \
    X(norm_lanes)                                                                                            \
    X(norm)                                                                                                  \
    X(rope)                                                                                                  \
    X(kv_store)                                                                                              \
    X(attention_scores)                                                                                      \
    X(attention_max)                                                                                         \
    X(attention_weights)                                                                                     \
    X(attention_values)                                                                                      \
    X(glu)                                                                                                   \
    X(add)                                                                                                   \
    X(copy_rows)                                                                                             \
    X(softcap)                                                                                               \
    X(scale)

typedef struct opencl_kernels {
#define OPENCL_FIELD(name) cl_kernel name;
    OPENCL_KERNELS(OPENCL_FIELD)
#undef OPENCL_FIELD
    /* By type: one token an item, several tokens an item, rows to floats. */
    cl_kernel matmul[BASE_DTYPE_LIMIT], matmuls[BASE_DTYPE_LIMIT], dequant[BASE_DTYPE_LIMIT];
} opencl_kernels;

typedef struct opencl_device {
    dev_device device;
    base_env *env;
    opencl_api *api;
    uint32_t index;
    dev_opencl_info info;
    char *cache_folder; /* "": none */
    char platform[192]; /* name and version */
    char options[128];  /* of every build */
    cl_device_id id;
    cl_context context;
    size_t alignment, local_size;
    bool exact_divide, denormals;
    cl_program program;
    opencl_kernels kernel;
    opencl_built *built;
    uint32_t n_built, max_built;

    pthread_mutex_t lock;
    opencl_stream stream[DEV_MAX_STREAMS];
    cl_command_queue own_queue; /* for what belongs to no stream: touching new buffers, mapping */
    opencl_chunk *chunk;        /* ascending addresses */
    uint32_t n_chunks, max_chunks;
    uintptr_t next_address;
    opencl_pinned *pinned;
    uint32_t n_pinned, max_pinned;

    void *workspace; /* NULL with bytes: a larger one was refused, it is taken again at its next use */
    uint64_t workspace_bytes;
    uint8_t *staging; /* host memory that small uploads of operations come from */
    size_t staging_used;
} opencl_device;

static inline opencl_device *opencl_of(const dev_device *d)
{
    return (opencl_device *)(uintptr_t)d;
}

/* ---- dev_opencl_api.c ---- */
weir_status opencl_api_open(base_env *env, opencl_api **out, weir_error *err);
void opencl_api_close(base_env *env, opencl_api *api); /* takes NULL */
const char *opencl_error_text(cl_int code);
/* False where no driver has registered with the loader. */
bool opencl_has_platform(const opencl_api *api);
/* The device with a number over all platforms; NULL where there are fewer. */
cl_device_id opencl_find(const opencl_api *api, uint32_t index, cl_platform_id *platform, uint32_t *n);
void opencl_describe(const opencl_api *api, cl_device_id id, dev_opencl_info *out);
/* DEVICE, or DEVICE_MEMORY where the code says that memory was short; the message names device and call. */
weir_status opencl_fail(const opencl_device *d, cl_int code, const char *call, weir_error *err);

/* ---- dev_opencl_memory.c ---- */
weir_status opencl_info(dev_device *d, dev_memory_info *out, weir_error *err);
weir_status opencl_alloc(dev_device *d, uint64_t bytes, const char *label, void **address, weir_error *err);
void opencl_free(dev_device *d, void *address);
void opencl_trim(dev_device *d);
weir_status opencl_pin_alloc(dev_device *d, uint64_t bytes, void **host, weir_error *err);
void opencl_pin_free(dev_device *d, void *host, uint64_t bytes);
weir_status opencl_pin_register(dev_device *d, void *host, uint64_t bytes, weir_error *err);
void opencl_pin_unregister(dev_device *d, void *host);
bool opencl_is_pinned(opencl_device *d, const void *host, uint64_t bytes);
/* The buffer and the offset behind an address; INTERNAL where bytes from there on are not one allocation's.
 */
weir_status opencl_lookup(opencl_device *d, const void *address, uint64_t bytes, cl_mem *mem,
                          uint64_t *offset, weir_error *err);
void opencl_memory_finish(opencl_device *d);

/* ---- dev_opencl_stream.c ---- */
weir_status opencl_streams_create(opencl_device *d, weir_error *err);
void opencl_streams_destroy(opencl_device *d);
weir_status opencl_upload(dev_device *d, uint32_t stream, void *dst, const void *host, uint64_t bytes,
                          dev_ticket *done, weir_error *err);
weir_status opencl_download(dev_device *d, uint32_t stream, void *host, const void *src, uint64_t bytes,
                            dev_ticket *done, weir_error *err);
weir_status opencl_copy(dev_device *d, uint32_t stream, void *dst, const void *src, uint64_t bytes,
                        dev_ticket *done, weir_error *err);
weir_status opencl_mark(dev_device *d, uint32_t stream, dev_ticket *out, weir_error *err);
weir_status opencl_wait_on(dev_device *d, uint32_t stream, dev_ticket t, weir_error *err);
bool opencl_reached(dev_device *d, dev_ticket t);
weir_status opencl_sync(dev_device *d, dev_ticket t, weir_error *err);
weir_status opencl_recover(dev_device *d, weir_error *err);
/* Around every command that a stream's queue is given. */
opencl_turn opencl_turn_begin(opencl_device *d, uint32_t stream);
void opencl_turn_end(opencl_device *d, uint32_t stream);
/* Waits for all that a stream was given. */
weir_status opencl_drain(opencl_device *d, uint32_t stream, weir_error *err);

/* ---- dev_opencl_build.c ---- */
/* Builds text behind kern_gpu_begin, or takes it from the cache. what: for errors. */
weir_status opencl_build(opencl_device *d, const char *what, const char *text, cl_program *out,
                         weir_error *err);
weir_status opencl_build_own(opencl_device *d, weir_error *err);
void opencl_release_built(opencl_device *d);
weir_status opencl_launch(dev_device *d, const dev_kernel *kernel, const dev_arg *args, uint32_t n_args,
                          size_t n_items, weir_error *err);

/* ---- dev_opencl_ops.c ---- */
/* A call of a kernel while its arguments are set, in their order; the first failure stays. */
typedef struct opencl_call {
    opencl_device *d;
    cl_kernel kernel;
    cl_uint n;
    weir_status status;
    weir_error *err;
} opencl_call;
void opencl_arg_address(opencl_call *c, const void *address);
void opencl_arg_u32(opencl_call *c, uint32_t x);
void opencl_arg_u64(opencl_call *c, uint64_t x);
void opencl_arg_f32(opencl_call *c, float x);
/* x by y items; nothing where there are none. */
weir_status opencl_enqueue(opencl_call *c, size_t x, size_t y, size_t local);
uint64_t opencl_workspace_bytes(const dev_device *d, size_t k, uint32_t n_positions, uint32_t head_dim);
weir_status opencl_reserve_workspace(dev_device *d, size_t k, uint32_t n_positions, uint32_t head_dim,
                                     weir_error *err);
weir_status opencl_run(dev_device *d, const dev_op *op, weir_error *err);

#define OPENCL_STAGING_BYTES ((size_t)128 << 10)

#endif
