/* Devices beside the CPU, for people and programs that choose one. */
#include "rt_internal.h"

#include <stdio.h>

#define MAX_LISTED 32u

weir_status weir_devices_list(weir_context *c, weir_device_info *out, uint32_t max, uint32_t *n, char *note,
                              size_t note_size, weir_error *err)
{
    dev_opencl_info *infos;
    weir_error local;
    weir_status status;

    err = rt_error(err, &local);
    infos = base_alloc_array(c->env, BASE_TAG_RUNTIME, MAX_LISTED, sizeof(*infos), err);
    if (infos == NULL) return err->code;
    status = dev_opencl_list(c->env, infos, MAX_LISTED, n, note, note_size, err);
    for (uint32_t i = 0; status == WEIR_OK && i < *n && i < max && i < MAX_LISTED; i++) {
        const dev_opencl_info *from = &infos[i];
        weir_device_info *to = &out[i];

        snprintf(to->id, sizeof(to->id), "opencl:%u", i);
        snprintf(to->name, sizeof(to->name), "%s", from->name);
        snprintf(to->vendor, sizeof(to->vendor), "%s", from->vendor);
        snprintf(to->driver, sizeof(to->driver), "%s", from->driver);
        snprintf(to->version, sizeof(to->version), "%s", from->version);
        to->memory_bytes = from->memory_bytes;
        to->max_alloc_bytes = from->max_alloc_bytes;
        to->compute_units = from->compute_units;
        to->cpu = from->cpu;
        to->unified = from->unified;
    }
    base_free(c->env, infos);
    return status;
}
