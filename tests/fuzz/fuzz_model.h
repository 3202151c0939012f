/* What the fuzzers of model files share: the input becomes a file in memory, is opened, and all that the
 * descriptor offers is read. */
#ifndef WEIR_FUZZ_MODEL_H
#define WEIR_FUZZ_MODEL_H

#define _GNU_SOURCE
#include "formats/fmt_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void read_all(base_env *env, const fmt_model *m)
{
    weir_error err = {0};
    for (uint64_t i = 0; i < fmt_model_n_values(m); i++) {
        const fmt_value *v = fmt_model_value(m, i);
        if (fmt_model_find_value(m, v->key) != v) abort();
        if (v->type != FMT_ARRAY) continue;
        fmt_array *a = NULL;
        if (fmt_array_open(env, m, v, &a, &err) != WEIR_OK) abort();
        for (uint64_t k = 0; k < v->v.array.count && v->v.array.type != FMT_ARRAY; k++) {
            const char *data;
            uint64_t len;
            double d;
            weir_status s = v->v.array.type == FMT_STRING ? fmt_array_next_str(a, &data, &len, &err)
                                                          : fmt_array_next_f64(a, &d, &err);
            if (s != WEIR_OK) abort();
        }
        fmt_array_close(a);
    }
    for (uint64_t i = 0; i < fmt_model_n_tensors(m); i++) {
        const fmt_tensor *t = fmt_model_tensor(m, i);
        uint64_t end;
        if (fmt_model_find_tensor(m, t->name) != t) abort();
        if (!base_add(t->offset, t->bytes, &end) || end > base_file_size(fmt_model_file(m, t->file))) abort();
    }
}

static inline void open_bytes(const uint8_t *data, size_t size)
{
    weir_error err = {0};
    char path[64];
    base_env *env = NULL;
    fmt_model *m = NULL;
    base_ledger_view v;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (base_env_create(&env, &err) != WEIR_OK) abort();
    if (fmt_model_open(env, path, &m, &err) == WEIR_OK)
        read_all(env, m);
    else if (err.code == WEIR_OK || err.code == WEIR_ERR_INTERNAL || m != NULL)
        abort();
    fmt_model_close(m);
    base_ledger_read(env, &v);
    /* A descriptor costs a small multiple of its header. */
    if (v.bytes != 0 || v.peak_bytes > (1u << 20) + 32 * (uint64_t)size) abort();
    base_env_destroy(env);
    close(fd);
}

#endif
