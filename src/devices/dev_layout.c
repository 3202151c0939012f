/* Layouts as kernels.h has them (kern_act, kern_kv). */
#include "dev_layout.h"
#include "kernels/kernels.h"

uint32_t dev_kern_act_form(const dev_device *device, uint32_t dtype)
{
    (void)device;
    switch (kern_act_for(dtype)) {
    case KERN_ACT_F32: return DEV_FORM_FLOATS;
    case KERN_ACT_Q32: return 1;
    case KERN_ACT_Q256: return 2;
    default: return DEV_FORM_NONE;
    }
}

size_t dev_kern_act_row_bytes(const dev_device *device, uint32_t dtype, size_t k)
{
    kern_act act = kern_act_for(dtype);

    (void)device;
    if (act == KERN_ACT_F32 || act == KERN_ACT_NONE) return 0;
    return kern_act_row_bytes(act, k);
}

void dev_kern_kv_bytes(const dev_device *device, uint32_t dtype, uint32_t capacity, uint32_t n_kv_heads,
                       uint32_t head_dim, uint64_t *k_bytes, uint64_t *v_bytes)
{
    uint64_t bytes = 0;

    (void)device;
    if (!base_mul(capacity, n_kv_heads, &bytes) || !base_mul(bytes, head_dim, &bytes) ||
        !base_mul(bytes, dtype == BASE_F32 ? 4 : 2, &bytes))
        bytes = UINT64_MAX;
    *k_bytes = bytes;
    *v_bytes = bytes;
}
