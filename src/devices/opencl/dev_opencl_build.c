/* Building kernels, keeping them between runs, and launching those of engines.
 *
 * A kept program is a file named by the SHA-256 of everything it depends on: source, options, platform,
 * device and driver with their versions. It begins with the SHA-256 of the rest, so that a damaged file is
 * built anew, and so is one that the driver refuses. */
#include "dev_opencl_internal.h"

#include <stdio.h>
#include <string.h>

#define CACHE_MAGIC     "weir opencl 1\n"
#define CACHE_MOST      ((size_t)256 << 20)
#define LOG_SHOWN       600
#define HASH_CHARACTERS 64

static void cache_path(const opencl_device *d, const char *text, char *path, size_t size)
{
    base_sha256 h;
    char name[HASH_CHARACTERS + 1];
    const char *parts[] = {kern_gpu_begin, text,           d->options,     d->platform,
                           d->info.name,   d->info.vendor, d->info.driver, d->info.version};

    base_sha256_init(&h);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        base_sha256_add(&h, parts[i], strlen(parts[i]) + 1); /* the NUL keeps parts apart */
    base_sha256_text(&h, name);
    snprintf(path, size, "%s/opencl-%s.bin", d->cache_folder, name);
}

static void hash_of(const void *data, size_t bytes, char text[HASH_CHARACTERS + 1])
{
    base_sha256 h;

    base_sha256_init(&h);
    base_sha256_add(&h, data, bytes);
    base_sha256_text(&h, text);
}

/* A built program from the cache, NULL where there is none that works. */
static cl_program cache_read(opencl_device *d, const char *path)
{
    const size_t head = sizeof(CACHE_MAGIC) - 1 + HASH_CHARACTERS;
    char hash[HASH_CHARACTERS + 1], *data;
    const unsigned char *binary;
    cl_program program = NULL;
    size_t bytes, binary_bytes;
    cl_int rc = CL_INVALID_BINARY;

    if (base_file_slurp(d->env, path, CACHE_MOST, &data, &bytes, NULL) != WEIR_OK) return NULL;
    if (bytes > head && memcmp(data, CACHE_MAGIC, sizeof(CACHE_MAGIC) - 1) == 0) {
        binary = (const unsigned char *)data + head;
        binary_bytes = bytes - head;
        hash_of(binary, binary_bytes, hash);
        if (memcmp(hash, data + sizeof(CACHE_MAGIC) - 1, HASH_CHARACTERS) == 0) {
            program =
                d->api->CreateProgramWithBinary(d->context, 1, &d->id, &binary_bytes, &binary, NULL, &rc);
            if (program != NULL && rc == CL_SUCCESS)
                rc = d->api->BuildProgram(program, 1, &d->id, d->options, NULL, NULL);
        }
    }
    base_free(d->env, data);
    if (rc == CL_SUCCESS) return program;
    if (program != NULL) d->api->ReleaseProgram(program);
    base_log(d->env, BASE_LOG_INFO, "kernels kept in %s are built anew: damaged, or refused by the driver",
             path);
    return NULL;
}

/* Keeping a program is worth no error. */
static void cache_write(opencl_device *d, const char *path, cl_program program)
{
    char hash[HASH_CHARACTERS + 1];
    unsigned char *binary = NULL;
    base_writer *w = NULL;
    size_t bytes = 0;

    if (d->api->GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, NULL) != CL_SUCCESS ||
        bytes == 0 || bytes > CACHE_MOST / 2)
        return;
    binary = base_alloc(d->env, BASE_TAG_RUNTIME, bytes, NULL);
    if (binary == NULL) return;
    if (d->api->GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS &&
        base_folder_make(d->cache_folder, NULL) == WEIR_OK &&
        base_writer_create(d->env, path, &w, NULL) == WEIR_OK) {
        hash_of(binary, bytes, hash);
        if (base_writer_write(w, CACHE_MAGIC, sizeof(CACHE_MAGIC) - 1, NULL) == WEIR_OK &&
            base_writer_write(w, hash, HASH_CHARACTERS, NULL) == WEIR_OK &&
            base_writer_write(w, binary, bytes, NULL) == WEIR_OK)
            base_writer_commit(w, NULL);
        base_writer_destroy(w);
    }
    base_free(d->env, binary);
}

/* The first lines of what the compiler said. */
static weir_status build_error(opencl_device *d, const char *what, cl_program program, cl_int rc,
                               weir_error *err)
{
    char *log = NULL;
    size_t bytes = 0;
    weir_status status;

    if (program != NULL) d->api->GetProgramBuildInfo(program, d->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if (bytes > 0 && bytes < CACHE_MOST) log = base_alloc(d->env, BASE_TAG_RUNTIME, bytes + 1, NULL);
    if (log != NULL &&
        d->api->GetProgramBuildInfo(program, d->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL) != CL_SUCCESS)
        log[0] = '\0';
    status = base_fail(err, WEIR_ERR_DEVICE, "device opencl:%u (%s): %s does not build: %s (%d)%s%.*s",
                       d->index, d->info.name, what, opencl_error_text(rc), (int)rc,
                       log != NULL ? "; the log begins: " : "", LOG_SHOWN, log != NULL ? log : "");
    base_free(d->env, log);
    return status;
}

weir_status opencl_build(opencl_device *d, const char *what, const char *text, cl_program *out,
                         weir_error *err)
{
    const char *parts[] = {kern_gpu_begin, text};
    char path[4096] = "";
    cl_program program;
    cl_int rc;

    if (base_fault(d->env, BASE_FAULT_KERNEL_BUILD, NULL))
        return base_fail(err, WEIR_ERR_DEVICE,
                         "device opencl:%u (%s): %s does not build: a fault point asked for it", d->index,
                         d->info.name, what);
    if (d->cache_folder[0] != '\0') {
        cache_path(d, text, path, sizeof(path));
        *out = base_file_exists(path) ? cache_read(d, path) : NULL;
        if (*out != NULL) return WEIR_OK;
    }
    program = d->api->CreateProgramWithSource(d->context, 2, parts, NULL, &rc);
    if (rc != CL_SUCCESS) return opencl_fail(d, rc, "CreateProgramWithSource", err);
    rc = d->api->BuildProgram(program, 1, &d->id, d->options, NULL, NULL);
    if (rc != CL_SUCCESS) {
        weir_status status = build_error(d, what, program, rc, err);

        d->api->ReleaseProgram(program);
        return status;
    }
    if (path[0] != '\0') cache_write(d, path, program);
    *out = program;
    return WEIR_OK;
}

static weir_status kernel_get(opencl_device *d, cl_program program, const char *name, cl_kernel *out,
                              weir_error *err)
{
    cl_int rc;

    *out = d->api->CreateKernel(program, name, &rc);
    if (rc == CL_SUCCESS) return WEIR_OK;
    *out = NULL;
    return base_fail(err, WEIR_ERR_DEVICE, "device opencl:%u (%s): the program has no kernel %s: %s (%d)",
                     d->index, d->info.name, name, opencl_error_text(rc), (int)rc);
}

static weir_status kernel_of_type(opencl_device *d, const char *what, uint32_t dtype, cl_kernel *out,
                                  weir_error *err)
{
    char name[64];

    snprintf(name, sizeof(name), "weir_%s_%s", what, base_dtype_get(dtype)->name);
    return kernel_get(d, d->program, name, out, err);
}

weir_status opencl_build_own(opencl_device *d, weir_error *err)
{
    opencl_kernels *k = &d->kernel;
    weir_status status = opencl_build(d, "the program of language models", kern_gpu_source, &d->program, err);

#define OPENCL_GET(name)                                                                                     \
    if (status == WEIR_OK) status = kernel_get(d, d->program, "weir_" #name, &k->name, err);
    OPENCL_KERNELS(OPENCL_GET)
#undef OPENCL_GET
    for (uint32_t t = 0; t < BASE_DTYPE_LIMIT && status == WEIR_OK; t++) {
        if (kern_act_for(t) == KERN_ACT_NONE) continue;
        status = kernel_of_type(d, "matmul", t, &k->matmul[t], err);
        if (status == WEIR_OK) status = kernel_of_type(d, "matmuls", t, &k->matmuls[t], err);
        if (status == WEIR_OK) status = kernel_of_type(d, "dequant", t, &k->dequant[t], err);
    }
    return status;
}

void opencl_release_built(opencl_device *d)
{
    cl_kernel *all = (cl_kernel *)&d->kernel; /* a struct of nothing but kernels */

    for (size_t i = 0; i < sizeof(d->kernel) / sizeof(cl_kernel); i++)
        if (all[i] != NULL) d->api->ReleaseKernel(all[i]);
    if (d->program != NULL) d->api->ReleaseProgram(d->program);
    for (uint32_t i = 0; i < d->n_built; i++) {
        d->api->ReleaseKernel(d->built[i].kernel);
        d->api->ReleaseProgram(d->built[i].program);
        base_free(d->env, d->built[i].name);
        base_free(d->env, d->built[i].source);
    }
    base_free(d->env, d->built);
}

/* ---- kernels of engines ---- */
static weir_status engine_build(opencl_device *d, const dev_kernel *kernel, opencl_built *b, weir_error *err)
{
    char what[160];
    weir_status status;

    b->name = base_strdup(d->env, BASE_TAG_RUNTIME, kernel->name, err);
    if (b->name == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    b->source = base_strdup(d->env, BASE_TAG_RUNTIME, kernel->source, err);
    if (b->source == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    snprintf(what, sizeof(what), "kernel %s", kernel->name);
    status = opencl_build(d, what, kernel->source, &b->program, err);
    if (status != WEIR_OK) return status;
    return kernel_get(d, b->program, kernel->name, &b->kernel, err);
}

static weir_status engine_kernel(opencl_device *d, const dev_kernel *kernel, cl_kernel *out, weir_error *err)
{
    opencl_built b = {NULL, NULL, NULL, NULL};
    weir_status status;

    for (uint32_t i = 0; i < d->n_built; i++)
        if (strcmp(d->built[i].name, kernel->name) == 0 && strcmp(d->built[i].source, kernel->source) == 0) {
            *out = d->built[i].kernel;
            return WEIR_OK;
        }
    if (d->n_built == d->max_built) {
        void *more =
            base_realloc(d->env, BASE_TAG_RUNTIME, d->built, (size_t)(d->max_built * 2 + 8) * sizeof(b), err);

        if (more == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
        d->built = more;
        d->max_built = d->max_built * 2 + 8;
    }
    status = engine_build(d, kernel, &b, err);
    if (status != WEIR_OK) {
        if (b.program != NULL) d->api->ReleaseProgram(b.program);
        base_free(d->env, b.name);
        base_free(d->env, b.source);
        return status;
    }
    d->built[d->n_built++] = b;
    *out = b.kernel;
    return WEIR_OK;
}

weir_status opencl_launch(dev_device *device, const dev_kernel *kernel, const dev_arg *args, uint32_t n_args,
                          size_t n_items, weir_error *err)
{
    opencl_call c = {.d = opencl_of(device), .err = err};
    weir_status status;
    cl_uint wanted;

    if (kernel->source == NULL)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "kernel %s has no source for device opencl:%u",
                         kernel->name, c.d->index);
    if (n_items > UINT32_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "kernel %s: %zu items; at most %u", kernel->name,
                         n_items, UINT32_MAX);
    status = engine_kernel(c.d, kernel, &c.kernel, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < n_args; i++) {
        if (args[i].kind == DEV_ARG_ADDRESS)
            opencl_arg_address(&c, args[i].as.address);
        else if (args[i].kind == DEV_ARG_U32)
            opencl_arg_u32(&c, args[i].as.u32);
        else
            opencl_arg_f32(&c, args[i].as.f32);
    }
    opencl_arg_u32(&c, (uint32_t)n_items);
    /* Arguments of an earlier call would stay. */
    if (c.status == WEIR_OK &&
        c.d->api->GetKernelInfo(c.kernel, CL_KERNEL_NUM_ARGS, sizeof(wanted), &wanted, NULL) == CL_SUCCESS &&
        wanted != c.n)
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "kernel %s has %u parameters, and got %u (an address makes two, the number of items one)",
            kernel->name, wanted, c.n);
    return opencl_enqueue(&c, n_items, 1, c.d->local_size);
}
