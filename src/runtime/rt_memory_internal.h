/* The handles behind include/weir/manager.h: each holds the memory manager's own. */
#ifndef WEIR_RT_MEMORY_INTERNAL_H
#define WEIR_RT_MEMORY_INTERNAL_H

#include "rt_internal.h"
#include "weir/manager.h"

struct weir_manager {
    weir_context *context;
    rt_device *target; /* shared with all in the context that use the same device */
    dev_device *device;
    mem_manager *m;
};

typedef struct rt_weight_file {
    struct rt_weight_file *next;
    base_file *file;
    char *path;
} rt_weight_file;

struct weir_component {
    base_env *env;
    weir_context *context;
    weir_component *next;
    mem_handle *h;
    rt_weight_file *files; /* opened for its weights, closed with it */
};

struct weir_generator {
    base_env *env;
    base_rng rng;
};

#endif
