/* OpenCL as a device: creating and destroying it, and its table. */
#include "dev_opencl_internal.h"
#include "devices/dev_layout.h"

#include <stdio.h>
#include <string.h>

#define LOCAL_SIZE      64u
#define ALIGNMENT_LEAST 128u

static bool opencl_can_pack(const dev_device *device, uint32_t dtype)
{
    (void)device;
    (void)dtype;
    return false;
}

static weir_status opencl_pack(dev_device *device, uint32_t dtype, void *rows, size_t row_bytes,
                               size_t n_groups, weir_error *err)
{
    (void)rows;
    (void)row_bytes;
    (void)n_groups;
    return base_fail(err, WEIR_ERR_INTERNAL, "device opencl:%u does not pack %s", opencl_of(device)->index,
                     base_dtype_get(dtype)->name != NULL ? base_dtype_get(dtype)->name : "this type");
}

/* Host work on host memory: a packed file's rows by number. */
static void opencl_unpack_row(const dev_device *device, uint32_t dtype, const void *group, size_t row_bytes,
                              uint32_t row, void *dst)
{
    (void)device;
    kern_unpack_row(dtype, group, row_bytes, row, dst);
}

static void opencl_describe_device(const dev_device *device, char *buf, size_t size)
{
    const opencl_device *d = opencl_of(device);

    if (size > 0)
        snprintf(buf, size, "opencl:%u, %s, %u compute units%s%s", d->index, d->info.name,
                 d->info.compute_units, d->exact_divide ? "" : ", division in software",
                 d->denormals ? "" : ", no subnormal numbers");
}

static void opencl_destroy(dev_device *device)
{
    opencl_device *d = opencl_of(device);
    base_env *env = d->env;

    if (d->api != NULL) {
        if (d->context != NULL) {
            for (uint32_t i = 0; i < DEV_MAX_STREAMS; i++)
                if (d->stream[i].queue != NULL) d->api->Finish(d->stream[i].queue);
            opencl_release_built(d);
            opencl_memory_finish(d);
            opencl_streams_destroy(d);
            d->api->ReleaseContext(d->context);
        }
        opencl_api_close(env, d->api);
    }
    base_free(env, d->staging);
    base_free(env, d->cache_folder);
    pthread_mutex_destroy(&d->lock);
    base_free(env, d);
}

static const dev_memory_table opencl_memory = {
    .info = opencl_info,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .trim = opencl_trim,
    .pin_alloc = opencl_pin_alloc,
    .pin_free = opencl_pin_free,
    .pin_register = opencl_pin_register,
    .pin_unregister = opencl_pin_unregister,
    .upload = opencl_upload,
    .download = opencl_download,
    .copy = opencl_copy,
    .mark = opencl_mark,
    .wait_on = opencl_wait_on,
    .reached = opencl_reached,
    .sync = opencl_sync,
    .recover = opencl_recover,
    .launch = opencl_launch,
};

static const dev_table opencl_table = {
    .name = "opencl",
    .memory = &opencl_memory,
    .destroy = opencl_destroy,
    .act_form = dev_kern_act_form,
    .act_row_bytes = dev_kern_act_row_bytes,
    .kv_bytes = dev_kern_kv_bytes,
    .workspace_bytes = opencl_workspace_bytes,
    .reserve_workspace = opencl_reserve_workspace,
    .run = opencl_run,
    .can_pack = opencl_can_pack,
    .pack = opencl_pack,
    .unpack_row = opencl_unpack_row,
    .describe = opencl_describe_device,
};

/* What the device must have, and how its kernels are built. */
static weir_status check_device(opencl_device *d, weir_error *err)
{
    cl_bool compiler = CL_FALSE, little = CL_FALSE, available = CL_FALSE;
    cl_device_fp_config floats = 0;
    cl_uint align_bits = 0;
    size_t group = 0;
    const opencl_api *api = d->api;

    api->GetDeviceInfo(d->id, CL_DEVICE_COMPILER_AVAILABLE, sizeof(compiler), &compiler, NULL);
    api->GetDeviceInfo(d->id, CL_DEVICE_ENDIAN_LITTLE, sizeof(little), &little, NULL);
    api->GetDeviceInfo(d->id, CL_DEVICE_AVAILABLE, sizeof(available), &available, NULL);
    api->GetDeviceInfo(d->id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(floats), &floats, NULL);
    api->GetDeviceInfo(d->id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(align_bits), &align_bits, NULL);
    api->GetDeviceInfo(d->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(group), &group, NULL);
    if (!available)
        return base_fail(err, WEIR_ERR_DEVICE, "device opencl:%u (%s) is not available", d->index,
                         d->info.name);
    if (!compiler || !little || group < 16)
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "device opencl:%u (%s) cannot be used: it needs a compiler (%s), the little end first (%s) "
            "and work groups of 16 (%zu)",
            d->index, d->info.name, compiler ? "has one" : "has none", little ? "yes" : "no", group);
    d->exact_divide = (floats & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
    d->denormals = (floats & CL_FP_DENORM) != 0;
    d->local_size = group < LOCAL_SIZE ? 16 : LOCAL_SIZE;
    d->alignment = (size_t)base_max(ALIGNMENT_LEAST, align_bits / 8);
    snprintf(d->options, sizeof(d->options), "-cl-std=CL1.2%s",
             d->exact_divide ? " -cl-fp32-correctly-rounded-divide-sqrt -DGPU_EXACT_DIVIDE" : "");
    return WEIR_OK;
}

static weir_status create_context(opencl_device *d, cl_platform_id platform, weir_error *err)
{
    cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    char name[80] = "", version[96] = "";
    cl_int rc;

    d->api->GetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(name) - 1, name, NULL);
    d->api->GetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof(version) - 1, version, NULL);
    snprintf(d->platform, sizeof(d->platform), "%s %s", name, version);
    d->context = d->api->CreateContext(properties, 1, &d->id, NULL, NULL, &rc);
    if (rc == CL_SUCCESS) return WEIR_OK;
    d->context = NULL;
    return opencl_fail(d, rc, "CreateContext", err);
}

static weir_status open_device(opencl_device *d, weir_error *err)
{
    cl_platform_id platform;
    uint32_t n = 0;
    weir_status status = opencl_api_open(d->env, &d->api, err);

    if (status == WEIR_ERR_NOT_FOUND || status == WEIR_ERR_UNSUPPORTED)
        return base_fail_context(err, WEIR_ERR_DEVICE, "device opencl:%u: no OpenCL", d->index);
    if (status != WEIR_OK) return status;
    d->id = opencl_find(d->api, d->index, &platform, &n);
    if (d->id == NULL && n == 0)
        return base_fail(err, WEIR_ERR_DEVICE,
                         "device opencl:%u: the OpenCL loader is there, but %s; install "
                         "the driver of your graphics card, or PoCL for the CPU",
                         d->index,
                         opencl_has_platform(d->api) ? "no driver offers a device"
                                                     : "no OpenCL platform was found");
    if (d->id == NULL)
        return base_fail(err, WEIR_ERR_DEVICE,
                         "there is no device opencl:%u; %u OpenCL device%s there (weir doctor "
                         "lists them)",
                         d->index, n, n == 1 ? " is" : "s are");
    opencl_describe(d->api, d->id, &d->info);
    status = check_device(d, err);
    if (status == WEIR_OK) status = create_context(d, platform, err);
    if (status == WEIR_OK) status = opencl_streams_create(d, err);
    if (status == WEIR_OK) status = opencl_build_own(d, err);
    return status;
}

weir_status dev_opencl_create(base_env *env, uint32_t index, const char *cache_folder, dev_device **out,
                              weir_error *err)
{
    opencl_device *d = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*d), err);
    weir_status status = WEIR_OK;

    if (d == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    d->device.table = &opencl_table;
    d->env = env;
    d->index = index;
    d->next_address = (uintptr_t)1 << 60; /* no user space reaches this far */
    if (pthread_mutex_init(&d->lock, NULL) != 0) {
        base_free(env, d);
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no lock for device opencl:%u", index);
    }
    d->cache_folder = base_strdup(env, BASE_TAG_RUNTIME, cache_folder != NULL ? cache_folder : "", err);
    if (d->cache_folder == NULL) status = err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    if (status == WEIR_OK) {
        d->staging = base_alloc(env, BASE_TAG_IO, OPENCL_STAGING_BYTES, err);
        if (d->staging == NULL) status = err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    }
    if (status == WEIR_OK) status = open_device(d, err);
    if (status != WEIR_OK) {
        opencl_destroy(&d->device);
        return status;
    }
    *out = &d->device;
    return WEIR_OK;
}
