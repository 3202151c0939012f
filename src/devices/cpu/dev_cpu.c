/* The CPU as a device: a kernel table, workers, and scratch for each of them.
 *
 * Everything that is allocated is allocated here, before the first operation; running allocates nothing. */
#include "dev_cpu_internal.h"
#include "devices/dev_layout.h"

#include <stdio.h>

#define SCRATCH_ALIGN 64

_Static_assert(DEV_PACK_ROWS == KERN_PACK_ROWS, "memory and kernels must agree on the size of a group");

static const dev_cpu *cpu_of(const dev_device *device)
{
    return (const dev_cpu *)(const void *)device;
}

static void cpu_destroy(dev_device *device)
{
    dev_cpu *d = (dev_cpu *)(void *)device;

    if (d->scratch != NULL) base_pages_free(d->env, BASE_TAG_WORKSPACE, d->scratch, d->scratch_bytes);
    base_pool_destroy(d->own);
    base_free(d->env, d);
}

/* A worker packs a group into its scratch and copies it back. */
static uint64_t cpu_pack_bytes(size_t k)
{
    uint64_t most = 0;

    for (uint32_t dtype = 0; dtype < BASE_DTYPE_LIMIT; dtype++) {
        uint64_t row, group;

        if (base_dtype_get(dtype)->name == NULL || !kern_can_pack(dtype)) continue;
        if (!base_dtype_row_bytes(dtype, k, &row)) continue;
        most = base_max(most, base_mul(row, KERN_PACK_ROWS, &group) ? group : UINT64_MAX);
    }
    return most;
}

/* Scratch of one worker; a product, attention and packing never run at the same time, so they share it. */
static uint64_t cpu_scratch_stride(size_t k, uint32_t n_positions, uint32_t head_dim)
{
    uint64_t bytes = base_max(kern_scratch_bytes(k), kern_attention_scratch_bytes(n_positions, head_dim));

    bytes = base_max(bytes, cpu_pack_bytes(k));

    /* Sizes that saturated must stay too large after rounding. */
    return base_align_up(base_min(base_max(bytes, 1), UINT64_MAX / 2), SCRATCH_ALIGN);
}

static uint64_t cpu_workspace_bytes(const dev_device *device, size_t k, uint32_t n_positions,
                                    uint32_t head_dim)
{
    uint64_t bytes;

    if (!base_mul(cpu_scratch_stride(k, n_positions, head_dim), cpu_of(device)->n_threads, &bytes) ||
        bytes > UINT64_MAX / 2)
        return UINT64_MAX;
    return base_align_up(bytes, 4096);
}

static weir_status cpu_reserve_workspace(dev_device *device, size_t k, uint32_t n_positions,
                                         uint32_t head_dim, weir_error *err)
{
    dev_cpu *d = (dev_cpu *)(void *)device;
    uint64_t bytes;
    uint8_t *scratch;

    /* Programs share the work space, so it only grows. */
    k = base_max(k, d->max_k);
    n_positions = (uint32_t)base_max(n_positions, d->max_positions);
    head_dim = (uint32_t)base_max(head_dim, d->max_head_dim);
    bytes = cpu_workspace_bytes(device, k, n_positions, head_dim);
    if (bytes == UINT64_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "work space for rows of %zu and %u positions does not fit any memory", k,
                         n_positions);
    if (bytes > d->scratch_bytes) {
        scratch = base_pages_alloc(d->env, BASE_TAG_WORKSPACE, bytes, false, err);
        if (scratch == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
        if (d->scratch != NULL) base_pages_free(d->env, BASE_TAG_WORKSPACE, d->scratch, d->scratch_bytes);
        d->scratch = scratch;
        d->scratch_bytes = bytes;
    }
    d->scratch_stride = (size_t)cpu_scratch_stride(k, n_positions, head_dim);
    d->max_k = k;
    d->max_positions = n_positions;
    d->max_head_dim = head_dim;
    return WEIR_OK;
}

static void cpu_describe(const dev_device *device, char *buf, size_t size)
{
    const dev_cpu *d = cpu_of(device);

    if (size > 0)
        snprintf(buf, size, "%s, %u thread%s", d->kern->name, d->n_threads, d->n_threads == 1 ? "" : "s");
}

static bool cpu_can_pack(const dev_device *device, uint32_t dtype)
{
    (void)device;
    return kern_can_pack(dtype);
}

static void cpu_unpack_row(const dev_device *device, uint32_t dtype, const void *group, size_t row_bytes,
                           uint32_t row, void *dst)
{
    (void)device;
    kern_unpack_row(dtype, group, row_bytes, row, dst);
}

static const dev_table cpu_table = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .act_form = dev_kern_act_form,
    .act_row_bytes = dev_kern_act_row_bytes,
    .kv_bytes = dev_kern_kv_bytes,
    .workspace_bytes = cpu_workspace_bytes,
    .reserve_workspace = cpu_reserve_workspace,
    .run = dev_cpu_run,
    .can_pack = cpu_can_pack,
    .pack = dev_cpu_pack,
    .unpack_row = cpu_unpack_row,
    .describe = cpu_describe,
};

weir_status dev_cpu_create(base_env *env, const char *cpu, uint32_t n_threads, dev_device **out,
                           weir_error *err)
{
    base_pool *pool;
    weir_status status = base_pool_create(env, n_threads, &pool, err);

    if (status != WEIR_OK) return status;
    status = dev_cpu_create_on(env, cpu, n_threads, pool, out, err);
    if (status == WEIR_OK)
        ((dev_cpu *)(void *)*out)->own = pool;
    else
        base_pool_destroy(pool);
    return status;
}

weir_status dev_cpu_create_on(base_env *env, const char *cpu, uint32_t n_threads, base_pool *pool,
                              dev_device **out, weir_error *err)
{
    const kern_table *kern;
    dev_cpu *d;
    weir_status status = kern_select(cpu, &kern, err);

    if (status != WEIR_OK) return status;
    d = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*d), err);
    if (d == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    d->device.table = &cpu_table;
    d->env = env;
    d->kern = kern;
    d->n_threads = n_threads;
    d->pool = pool;
    *out = &d->device;
    return WEIR_OK;
}
