/* The OpenCL library, opened at run time, and what devices it has. */
#include "dev_opencl_internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_PLATFORMS 16u
#define MAX_DEVICES   32u /* of one platform */

weir_status opencl_api_open(base_env *env, opencl_api **out, weir_error *err)
{
    static const char *const names[] = {"libOpenCL.so.1", "libOpenCL.so", NULL};
    static const char *const symbols[] = {
#define OPENCL_NAME(name) "cl" #name,
        OPENCL_FUNCTIONS(OPENCL_NAME)
#undef OPENCL_NAME
    };
    opencl_api *api = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*api), err);
    weir_status status;
    size_t at = offsetof(opencl_api, GetPlatformIDs);

    if (api == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    status = base_library_open(env, names, &api->library, err);
    for (size_t i = 0; status == WEIR_OK && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = base_library_symbol(api->library, symbols[i]);

        if (symbol == NULL)
            status = base_fail(err, WEIR_ERR_UNSUPPORTED,
                               "the OpenCL library has no %s; a loader of OpenCL 1.2 or newer is needed",
                               symbols[i]);
        memcpy((char *)api + at + i * sizeof(symbol), &symbol, sizeof(symbol));
    }
    if (status != WEIR_OK) {
        opencl_api_close(env, api);
        return status;
    }
    *out = api;
    return WEIR_OK;
}

void opencl_api_close(base_env *env, opencl_api *api)
{
    if (api == NULL) return;
    base_library_close(api->library);
    base_free(env, api);
}

const char *opencl_error_text(cl_int code)
{
    switch (code) {
    case CL_SUCCESS: return "success";
    case CL_DEVICE_NOT_FOUND: return "no device";
    case CL_DEVICE_NOT_AVAILABLE: return "the device is not available any more";
    case CL_COMPILER_NOT_AVAILABLE: return "the driver has no compiler";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "no device memory for the buffer";
    case CL_OUT_OF_RESOURCES: return "the device is out of resources";
    case CL_OUT_OF_HOST_MEMORY: return "the driver is out of host memory";
    case CL_BUILD_PROGRAM_FAILURE: return "the kernel does not build";
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: return "what it waited for had failed";
    case CL_INVALID_BUFFER_SIZE: return "the buffer's size is refused";
    case CL_INVALID_KERNEL_NAME: return "no kernel of this name";
    case CL_INVALID_KERNEL_ARGS: return "arguments of the kernel are missing";
    case CL_INVALID_ARG_INDEX: return "the kernel has fewer arguments";
    case CL_INVALID_ARG_SIZE: return "an argument's size is not the kernel's";
    case CL_INVALID_WORK_GROUP_SIZE: return "the work group's size is refused";
    case CL_INVALID_COMMAND_QUEUE: return "the queue is not valid any more";
    case CL_INVALID_CONTEXT: return "the context is not valid any more";
    case CL_INVALID_MEM_OBJECT: return "the buffer is not valid any more";
    case CL_INVALID_VALUE: return "a value is refused";
    case CL_INVALID_BINARY: return "the driver refuses the binary";
    case -1001: return "no driver is installed";
    default: return "see the OpenCL specification for this number";
    }
}

weir_status opencl_fail(const opencl_device *d, cl_int code, const char *call, weir_error *err)
{
    bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE;

    return base_fail(err, memory ? WEIR_ERR_DEVICE_MEMORY : WEIR_ERR_DEVICE,
                     "device opencl:%u (%s): cl%s failed: %s (%d)", d->index, d->info.name, call,
                     opencl_error_text(code), (int)code);
}

bool opencl_has_platform(const opencl_api *api)
{
    cl_uint n = 0;

    return api->GetPlatformIDs(0, NULL, &n) == CL_SUCCESS && n != 0;
}

cl_device_id opencl_find(const opencl_api *api, uint32_t index, cl_platform_id *platform, uint32_t *n)
{
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_device_id devices[MAX_DEVICES], found = NULL;
    cl_uint n_platforms = 0;

    *n = 0;
    if (api->GetPlatformIDs(MAX_PLATFORMS, platforms, &n_platforms) != CL_SUCCESS) return NULL;
    for (cl_uint i = 0; i < n_platforms && i < MAX_PLATFORMS; i++) {
        cl_uint n_devices = 0;

        if (api->GetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MAX_DEVICES, devices, &n_devices) !=
            CL_SUCCESS)
            continue;
        if (n_devices > MAX_DEVICES) n_devices = MAX_DEVICES;
        if (index >= *n && index - *n < n_devices) {
            found = devices[index - *n];
            *platform = platforms[i];
        }
        *n += n_devices;
    }
    return found;
}

static void device_text(const opencl_api *api, cl_device_id id, cl_device_info what, char *out, size_t size)
{
    char text[1024] = "";

    if (api->GetDeviceInfo(id, what, sizeof(text) - 1, text, NULL) != CL_SUCCESS) text[0] = '\0';
    text[sizeof(text) - 1] = '\0';
    snprintf(out, size, "%.*s", (int)(size - 1), text);
}

void opencl_describe(const opencl_api *api, cl_device_id id, dev_opencl_info *out)
{
    cl_ulong memory = 0, largest = 0;
    cl_uint units = 0;
    cl_bool unified = CL_FALSE;
    cl_device_type type = 0;

    memset(out, 0, sizeof(*out));
    device_text(api, id, CL_DEVICE_NAME, out->name, sizeof(out->name));
    device_text(api, id, CL_DEVICE_VENDOR, out->vendor, sizeof(out->vendor));
    device_text(api, id, CL_DRIVER_VERSION, out->driver, sizeof(out->driver));
    device_text(api, id, CL_DEVICE_VERSION, out->version, sizeof(out->version));
    api->GetDeviceInfo(id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(memory), &memory, NULL);
    api->GetDeviceInfo(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(largest), &largest, NULL);
    api->GetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(units), &units, NULL);
    api->GetDeviceInfo(id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(unified), &unified, NULL);
    api->GetDeviceInfo(id, CL_DEVICE_TYPE, sizeof(type), &type, NULL);
    out->memory_bytes = memory;
    out->max_alloc_bytes = largest;
    out->compute_units = units;
    out->unified = unified != CL_FALSE;
    out->cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
}

weir_status dev_opencl_list(base_env *env, dev_opencl_info *infos, uint32_t max, uint32_t *n, char *note,
                            size_t note_size, weir_error *err)
{
    weir_error local = {WEIR_OK, ""};
    opencl_api *api;
    cl_platform_id platform;
    weir_status status = opencl_api_open(env, &api, &local);

    *n = 0;
    if (note != NULL && note_size > 0) note[0] = '\0';
    if (status == WEIR_ERR_NOT_FOUND || status == WEIR_ERR_UNSUPPORTED) {
        if (note != NULL) snprintf(note, note_size, "no OpenCL: %s", local.message);
        return WEIR_OK;
    }
    if (status != WEIR_OK) return base_fail(err, status, "%s", local.message);
    opencl_find(api, 0, &platform, n);
    if (*n == 0 && note != NULL)
        snprintf(note, note_size, "no OpenCL device: the loader is there, but %s",
                 opencl_has_platform(api) ? "no driver offers a device" : "no OpenCL platform was found");
    for (uint32_t i = 0; i < *n && i < max; i++) {
        uint32_t total;

        opencl_describe(api, opencl_find(api, i, &platform, &total), &infos[i]);
    }
    opencl_api_close(env, api);
    return WEIR_OK;
}
