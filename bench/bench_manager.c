/* The memory manager against its two aims.
 *
 *   bench_manager [--seconds N] [--link MB] [--only overhead|stream|model]
 *
 * overhead: a model as in examples/pipeline, wholly resident, with the manager and with the device's own
 * calls, in turns: the same kernels in the same order on the same device, results compared bit for bit. Aim:
 * at most 0.5 % more.
 * stream, model: components, and a language model, that do not fit a simulated device whose link has a set
 * speed. Aim: at least 95 % of the link. */
#include "memory/memory.h"
#include "weir/weir.h"

#include "bench_limits.h"

#include <math.h>
#include <stdio.h>

/* ---- kernels: the example's ---- */

#include "../examples/pipeline/pipeline_both.h"

static const dev_kernel dense_kernel = {"dense", source, dense_c};
static const dev_kernel blend_kernel = {"blend", source, blend_c};

static weir_error err;

/* A benchmark that does not run has nothing to say. */
static void must(weir_status status, const char *what)
{
    if (status == WEIR_OK) return;
    fprintf(stderr, "bench_manager: %s: %s: %s\n", what, weir_status_name(status), err.message);
    exit(1);
}
#define MUST(call) must((call), #call)

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, bench_by_value);
    return values[n / 2];
}

/* ---- overhead: encoder, denoiser run six times, decoder ---- */

#define MAX_LAYERS 8u
#define MAX_WIDTH  1024u
#define STEPS      6u
#define MAX_PAIRS  4096

typedef struct part {
    mem_handle *h;
    float *weights;
    uint32_t n_layers, unit[MAX_LAYERS];
    mem_weight_id matrix[MAX_LAYERS], bias[MAX_LAYERS];
    uint8_t *block[MAX_LAYERS], *biases; /* without the manager: a matrix each, all biases */
} part;

typedef struct pipeline {
    base_env *env;
    dev_device *device;
    mem_manager *m;
    uint32_t width;
    part parts[3];
    float *in, *text, *state, *out;
    mem_phase *phase; /* NULL: without the manager */
    const part *now;
} pipeline;

static const dev_memory_table *table_of(const pipeline *x)
{
    return x->device->table->memory;
}

/* A block on the device; what it holds is guarded where the device wants to be told. */
static void *bring(const pipeline *x, const void *from, size_t bytes)
{
    const dev_memory_table *mem = table_of(x);
    dev_ticket done;
    void *block;
    MUST(mem->alloc(x->device, bytes, "weights", &block, &err));
    if (from == NULL) return block;
    MUST(mem->upload(x->device, DEV_STREAM_COPY, block, from, bytes, &done, &err));
    MUST(mem->sync(x->device, done, &err));
    if (mem->guard != NULL) mem->guard(x->device, block, bytes);
    return block;
}

static void open_part(pipeline *x, part *p, const char *name, uint32_t n_layers)
{
    size_t w = x->width, n = n_layers * w * (w + 1);
    uint32_t v = (uint32_t)name[0] * 2654435761u + 1;
    p->n_layers = n_layers;
    p->weights = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        v = v * 1664525u + 1013904223u;
        p->weights[i] = ((float)(v >> 8) / 16777216.0f - 0.5f) * 0.25f;
    }
    MUST(mem_handle_create(x->m, "bench", name, MEM_ONESHOT, &p->h, &err));
    for (uint32_t i = 0; i < n_layers; i++) {
        char unit[32];
        snprintf(unit, sizeof unit, "layers.%u", i);
        float *at = p->weights + (size_t)i * w * (w + 1);
        mem_handle_weight matrix = {
            .name = "matrix", .bytes = w * w * sizeof(float), .host = at, .streamable = true};
        mem_handle_weight bias = {.name = "bias", .bytes = w * sizeof(float), .host = at + w * w};
        MUST(mem_handle_add_unit(p->h, unit, MEM_MARK_NONE, &p->unit[i], &err));
        MUST(mem_handle_add_weight(p->h, p->unit[i], &matrix, &p->matrix[i], &err));
        MUST(mem_handle_add_weight(p->h, p->unit[i], &bias, &p->bias[i], &err));
    }
    MUST(mem_handle_seal(p->h, &err));
    p->biases = bring(x, NULL, MAX_LAYERS * w * sizeof(float));
    for (uint32_t i = 0; i < n_layers; i++) {
        float *at = p->weights + (size_t)i * w * (w + 1);
        dev_ticket done;
        p->block[i] = bring(x, at, w * w * sizeof(float));
        MUST(table_of(x)->upload(x->device, DEV_STREAM_COPY, p->biases + i * w * sizeof(float), at + w * w,
                                 w * sizeof(float), &done, &err));
        MUST(table_of(x)->sync(x->device, done, &err));
    }
}

static void open_pipeline(pipeline *x, base_env *env, dev_device *device, uint32_t width)
{
    mem_policy policy;
    mem_policy_init(&policy);
    policy.vram_reserve_bytes = 0;
    *x = (pipeline){.env = env, .device = device, .width = width};
    MUST(mem_manager_create(env, device, &policy, NULL, &x->m, &err));
    open_part(x, &x->parts[0], "encoder", 3);
    open_part(x, &x->parts[1], "denoiser", 8);
    open_part(x, &x->parts[2], "decoder", 4);
    x->in = calloc(4 * width, sizeof(float));
    x->text = x->in + width, x->state = x->text + width, x->out = x->state + width;
    for (uint32_t i = 0; i < width; i++) x->in[i] = (float)(i % 17) / 17.0f;
}

static void close_pipeline(pipeline *x)
{
    for (int i = 0; i < 3; i++) {
        mem_handle_destroy(x->parts[i].h);
        for (uint32_t k = 0; k < x->parts[i].n_layers; k++)
            table_of(x)->free(x->device, x->parts[i].block[k]);
        table_of(x)->free(x->device, x->parts[i].biases);
        free(x->parts[i].weights);
    }
    mem_manager_destroy(x->m);
    free(x->in);
}

/* The same work either way: what the manager does is in these few calls. */
static weir_status take(pipeline *x, void **address)
{
    size_t bytes = x->width * sizeof(float);
    return x->phase != NULL ? mem_phase_alloc(x->phase, NULL, bytes, "activations", address, &err)
                            : table_of(x)->alloc(x->device, bytes, "activations", address, &err);
}

static weir_status launch(pipeline *x, const dev_kernel *k, const dev_arg *args)
{
    return x->phase != NULL ? mem_phase_launch(x->phase, NULL, k, args, 5, x->width, &err)
                            : table_of(x)->launch(x->device, k, args, 5, x->width, &err);
}

static weir_status put(pipeline *x, void *to, const float *from)
{
    size_t bytes = x->width * sizeof(float);
    dev_ticket t;
    if (x->phase != NULL) return mem_phase_upload(x->phase, NULL, to, from, bytes, &err);
    weir_status status = table_of(x)->upload(x->device, DEV_STREAM_COMPUTE, to, from, bytes, &t, &err);
    return status == WEIR_OK ? table_of(x)->sync(x->device, t, &err) : status;
}

static weir_status get(pipeline *x, float *to, const void *from)
{
    size_t bytes = x->width * sizeof(float);
    dev_ticket t;
    if (x->phase != NULL) return mem_phase_download(x->phase, NULL, to, from, bytes, &err);
    weir_status status = table_of(x)->download(x->device, DEV_STREAM_COMPUTE, to, from, bytes, &t, &err);
    return status == WEIR_OK ? table_of(x)->sync(x->device, t, &err) : status;
}

static weir_status layer(pipeline *x, uint32_t i, void *in, void *out)
{
    const part *p = x->now;
    size_t w = x->width;
    void *matrix = p->block[i], *bias = p->biases + i * w * sizeof(float);
    weir_status status = WEIR_OK;
    const dev_memory_table *mem = table_of(x);
    /* Without the manager a strict device wants to be told the same. */
    bool opens = x->phase == NULL && mem->open != NULL;
    if (opens) mem->open(x->device, p->block[i], w * w * sizeof(float));
    if (x->phase != NULL) {
        status = mem_unit_enter(x->phase, p->h, p->unit[i], &err);
        if (status == WEIR_OK) status = mem_weight_address(x->phase, p->h, p->matrix[i], &matrix, &err);
        if (status == WEIR_OK) status = mem_weight_address(x->phase, p->h, p->bias[i], &bias, &err);
    }
    const dev_arg args[] = {{WEIR_ARG_ADDRESS, {.address = in}},
                            {WEIR_ARG_ADDRESS, {.address = matrix}},
                            {WEIR_ARG_ADDRESS, {.address = bias}},
                            {WEIR_ARG_ADDRESS, {.address = out}},
                            {WEIR_ARG_U32, {.u32 = x->width}}};
    if (status == WEIR_OK) status = launch(x, &dense_kernel, args);
    if (x->phase != NULL) mem_unit_leave(x->phase, p->h, p->unit[i]);
    if (opens) mem->close(x->device, p->block[i], w * w * sizeof(float));
    return status;
}

static weir_status layers(pipeline *x, void *a, void *b, void **result)
{
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; i < x->now->n_layers && status == WEIR_OK; i++) {
        void *other = a;
        status = layer(x, i, a, b);
        a = b;
        b = other;
    }
    *result = a;
    return status;
}

static weir_status once(pipeline *x, void **buffer, const float *in, float *out)
{
    void *result;
    weir_status status = put(x, buffer[0], in);
    if (status == WEIR_OK) status = layers(x, buffer[0], buffer[1], &result);
    return status == WEIR_OK ? get(x, out, result) : status;
}

static weir_status denoise(pipeline *x, void **buffer)
{
    for (uint32_t i = 0; i < x->width; i++) x->state[i] = (float)(i % 13) / 13.0f - 0.5f;
    weir_status status = put(x, buffer[0], x->text);
    if (status == WEIR_OK) status = put(x, buffer[1], x->state);
    for (uint32_t s = 0; s < STEPS && status == WEIR_OK; s++) {
        void *change = NULL;
        status = put(x, buffer[2], x->state);
        if (status == WEIR_OK) status = layers(x, buffer[2], buffer[3], &change);
        const dev_arg args[] = {{WEIR_ARG_ADDRESS, {.address = buffer[1]}},
                                {WEIR_ARG_ADDRESS, {.address = change}},
                                {WEIR_ARG_ADDRESS, {.address = buffer[0]}},
                                {WEIR_ARG_F32, {.f32 = 0.5f}},
                                {WEIR_ARG_F32, {.f32 = 0.25f}}};
        if (status == WEIR_OK) status = launch(x, &blend_kernel, args);
        if (status == WEIR_OK) status = get(x, x->state, buffer[1]);
    }
    return status;
}

/* One of the three phases, with memory of its own. */
static weir_status stage(void *arg, mem_phase *p, weir_error *unused)
{
    pipeline *x = arg;
    void *buffer[4];
    weir_status status = WEIR_OK;
    (void)unused;
    x->phase = p;
    for (int i = 0; i < 4 && status == WEIR_OK; i++) status = take(x, &buffer[i]);
    if (status != WEIR_OK) return status;
    if (x->now == &x->parts[0]) status = once(x, buffer, x->in, x->text);
    if (x->now == &x->parts[1]) status = denoise(x, buffer);
    if (x->now == &x->parts[2]) status = once(x, buffer, x->state, x->out);
    for (int i = 0; i < 4 && p == NULL; i++) table_of(x)->free(x->device, buffer[i]);
    return status;
}

static void job(pipeline *x, bool managed)
{
    static const char *const names[] = {"encode", "denoise", "decode"};
    mem_request *r = NULL;
    mem_request_desc d = {.name = "bench", .managers = &x->m, .n_managers = 1};
    if (managed) MUST(mem_request_begin(&d, &r, &err));
    for (int i = 0; i < 3; i++) {
        x->now = &x->parts[i];
        mem_run_desc run = {.phase = {.name = names[i],
                                      .handles = &x->parts[i].h,
                                      .n_handles = 1,
                                      .memory_bytes = 4 * x->width * sizeof(float)},
                            .fn = stage,
                            .arg = x};
        MUST(managed ? mem_run_phase(r, &run, &err) : stage(x, NULL, &err));
    }
    if (!managed) return;
    mem_report report;
    mem_request_report(r, &report);
    if (report.loaded_bytes != report.size_bytes || report.streamed_bytes != 0)
        must(WEIR_ERR_INTERNAL, "the pipeline is not wholly resident");
    mem_request_end(r);
}

/* Pairs of jobs, the order within a pair changing; the median of the ratios. */
static void overhead(base_env *env, dev_device *device, const char *name, uint32_t width, double seconds)
{
    static double with[MAX_PAIRS], without[MAX_PAIRS], ratios[MAX_PAIRS];
    static float first_out[MAX_WIDTH];
    pipeline x;
    open_pipeline(&x, env, device, width);
    for (int i = 0; i < 3; i++) job(&x, true), job(&x, false);
    memcpy(first_out, x.out, width * sizeof(float));
    size_t n = 0;
    for (double end = bench_now() + seconds; n < MAX_PAIRS && (n < 16 || bench_now() < end); n++) {
        for (int k = 0; k < 2; k++) {
            bool managed = (k == 0) == (n % 2 == 0);
            memset(x.out, 0, width * sizeof(float));
            double start = bench_now();
            job(&x, managed);
            (managed ? with : without)[n] = bench_now() - start;
            if (first_out[0] == 0 || memcmp(first_out, x.out, width * sizeof(float)) != 0)
                must(WEIR_ERR_INTERNAL, "the results differ");
        }
        ratios[n] = with[n] / without[n];
    }
    double ratio = median(ratios, n), a = median(with, n), b = median(without, n);
    printf("%-24s width %4u: %8.3f ms with, %8.3f ms without the manager; of %zu pairs %+.2f %%, of medians "
           "%+.2f %%, tenth to ninetieth percentile %+.1f to %+.1f %%\n",
           name, width, a * 1e3, b * 1e3, n, (ratio - 1) * 100, (a / b - 1) * 100, (ratios[n / 10] - 1) * 100,
           (ratios[n - 1 - n / 10] - 1) * 100);
    fflush(stdout);
    close_pipeline(&x);
}

static void bench_overhead(base_env *env, double seconds)
{
    static const uint32_t widths[] = {256, 1024};
    dev_opencl_info info;
    uint32_t n = 0;
    for (size_t i = 0; i < 2; i++) {
        dev_sim_options o = {.memory_bytes = UINT64_C(1) << 30};
        dev_device *device;
        MUST(dev_sim_create(env, "auto", 1, &o, &device, &err));
        overhead(env, device, "simulated", widths[i], seconds);
        dev_destroy(device);
        o.strict = true;
        MUST(dev_sim_create(env, "auto", 1, &o, &device, &err));
        overhead(env, device, "simulated, strict", widths[i], seconds);
        dev_destroy(device);
    }
    MUST(dev_opencl_list(env, &info, 1, &n, NULL, 0, &err));
    if (n == 0) printf("no OpenCL device: not measured there\n");
    base_settings *settings;
    MUST(base_settings_create(env, NULL, &settings, &err));
    char *folder = base_settings_cache_folder(settings, &err);
    for (size_t i = 0; i < 2 && n != 0; i++) {
        dev_device *device;
        MUST(dev_opencl_create(env, 0, folder, &device, &err));
        overhead(env, device, info.name, widths[i], seconds);
        dev_destroy(device);
    }
    base_free(env, folder);
    base_settings_destroy(settings);
}

/* ---- streaming: a component of 24 units of 4 MiB on a device that has room for four ---- */

#define N_UNITS    24u
#define UNIT_BYTES (UINT64_C(4) << 20)

/* out[i] of a unit: so little that the link decides. */
static void touch(const weir_arg *a, size_t begin, size_t end)
{
    uint32_t *out = a[0].as.address;
    const uint32_t *w = a[1].as.address;
    for (size_t i = begin; i < end; i++) out[i] = out[i] * 31 + w[i * 1021];
}
static const dev_kernel touch_kernel = {.name = "touch", .c = touch};

typedef struct streamed {
    mem_handle *h;
    uint32_t n_passes;
    double seconds; /* of all passes but the first */
    uint64_t first_bytes;
    mem_request *r;
    uint32_t sums[1024];
} streamed;

static weir_status passes(void *arg, mem_phase *p, weir_error *unused)
{
    streamed *s = arg;
    void *out, *w;
    static const uint32_t zeroes[1024];
    mem_report report;
    (void)unused;
    weir_status status = mem_phase_alloc(p, NULL, sizeof s->sums, "sums", &out, &err);
    if (status == WEIR_OK) status = mem_phase_upload(p, NULL, out, zeroes, sizeof zeroes, &err);
    for (uint32_t pass = 0; pass < s->n_passes && status == WEIR_OK; pass++) {
        for (uint32_t u = 0; u < N_UNITS && status == WEIR_OK; u++) {
            status = mem_unit_enter(p, s->h, u, &err);
            if (status == WEIR_OK) status = mem_weight_address(p, s->h, u, &w, &err);
            const dev_arg args[] = {{WEIR_ARG_ADDRESS, {.address = out}}, {WEIR_ARG_ADDRESS, {.address = w}}};
            if (status == WEIR_OK) status = mem_phase_launch(p, NULL, &touch_kernel, args, 2, 1024, &err);
            mem_unit_leave(p, s->h, u);
        }
        if (status == WEIR_OK) status = mem_phase_download(p, NULL, s->sums, out, sizeof s->sums, &err);
        if (pass != 0) continue;
        mem_request_report(s->r, &report);
        s->first_bytes = report.streamed_bytes;
        s->seconds = bench_now();
    }
    return status;
}

typedef struct stream_way {
    const char *name;
    mem_kind kind;
    bool from_file;
    mem_switch prefetch_sequence;
} stream_way;

static base_file *write_weights(base_env *env, const char *path, const uint32_t *data)
{
    base_file *file;
    base_writer *w;
    MUST(base_writer_create(env, path, &w, &err));
    MUST(base_writer_write(w, data, N_UNITS * UNIT_BYTES, &err));
    MUST(base_writer_commit(w, &err));
    base_writer_destroy(w);
    MUST(base_file_open(env, path, &file, &err));
    return file;
}

static void stream(base_env *env, const stream_way *way, uint32_t *data, base_file *file, double link,
                   double seconds)
{
    dev_sim_options o = {.memory_bytes = 5 * UNIT_BYTES, .link_bytes_per_s = link};
    dev_device *device;
    mem_policy policy;
    mem_manager *m;
    mem_report report;
    streamed s = {.n_passes = 2 + (uint32_t)(seconds * link / (double)(N_UNITS * UNIT_BYTES))};
    mem_policy_init(&policy);
    policy.vram_reserve_bytes = 0;
    policy.host_copies = way->from_file ? MEM_OFF : MEM_AUTO;
    policy.prefetch_sequence = way->prefetch_sequence;
    MUST(dev_sim_create(env, "auto", 1, &o, &device, &err));
    MUST(mem_manager_create(env, device, &policy, NULL, &m, &err));
    MUST(mem_handle_create(m, "bench", "streamed", way->kind, &s.h, &err));
    for (uint32_t i = 0; i < N_UNITS; i++) {
        uint32_t unit;
        mem_weight_id id;
        char name[32];
        snprintf(name, sizeof name, "layers.%u", i);
        mem_handle_weight w = {.name = name,
                               .bytes = UNIT_BYTES,
                               .host = way->from_file ? NULL : data + i * UNIT_BYTES / 4,
                               .file = way->from_file ? file : NULL,
                               .offset = i * UNIT_BYTES,
                               .streamable = true};
        MUST(mem_handle_add_unit(s.h, name, MEM_MARK_NONE, &unit, &err));
        MUST(mem_handle_add_weight(s.h, unit, &w, &id, &err));
    }
    MUST(mem_handle_seal(s.h, &err));
    mem_request_desc d = {.name = "bench", .managers = &m, .n_managers = 1};
    MUST(mem_request_begin(&d, &s.r, &err));
    mem_run_desc run = {.phase = {.name = "stream", .handles = &s.h, .n_handles = 1, .memory_bytes = 4096},
                        .fn = passes,
                        .arg = &s};
    MUST(mem_run_phase(s.r, &run, &err));
    double took = bench_now() - s.seconds;
    mem_request_report(s.r, &report);
    mem_request_end(s.r);
    double rate = (double)(report.streamed_bytes - s.first_bytes) / took;
    printf("%-52s %7.1f of %.0f MB/s: %5.1f %% of the link (%u of %u units stay, %u passes, %.2f s)\n",
           way->name, rate * 1e-6, link * 1e-6, rate / link * 100,
           (uint32_t)(report.components[0].loaded_bytes / UNIT_BYTES), N_UNITS, s.n_passes - 1, took);
    fflush(stdout);
    if (s.sums[0] == 0) must(WEIR_ERR_INTERNAL, "nothing was computed");
    mem_handle_destroy(s.h);
    mem_manager_destroy(m);
    dev_destroy(device);
}

static void bench_stream(base_env *env, const char *path, double link, double seconds)
{
    static const stream_way ways[] = {
        {"component run once per input, weights in RAM", MEM_ONESHOT, false, MEM_AUTO},
        {"component run once per input, weights in a file", MEM_ONESHOT, true, MEM_AUTO},
        {"sequence, copied ahead, weights in RAM", MEM_SEQUENCE, false, MEM_ON},
        {"sequence, copied ahead, weights in a file", MEM_SEQUENCE, true, MEM_ON},
        {"sequence, as it comes, weights in RAM", MEM_SEQUENCE, false, MEM_AUTO},
    };
    uint32_t *data = malloc(N_UNITS * UNIT_BYTES), v = 1;
    for (size_t i = 0; i < N_UNITS * UNIT_BYTES / 4; i++) data[i] = v = v * 1664525u + 1013904223u;
    base_file *file = write_weights(env, path, data);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) stream(env, &ways[i], data, file, link, seconds);
    base_file_close(file);
    remove(path);
    free(data);
}

/* ---- a language model whose layers stream ---- */

static void bench_model(const char *path, double link, double seconds)
{
    char text[32];
    weir_context *c;
    weir_model *model;
    weir_session *session;
    weir_synth_options synth;
    weir_load_options load;
    weir_memory_report before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    const float *logits;
    MUST(weir_context_create(NULL, &c, &err));
    weir_synth_options_init(&synth);
    synth.type = "Q8_0";
    synth.hidden = 1024, synth.n_layers = 16, synth.n_heads = 16, synth.n_kv_heads = 4, synth.ffn = 2816;
    MUST(weir_synth(c, &synth, path, &err));
    MUST(weir_context_set(c, "compute.device", "sim", &err));
    MUST(weir_context_set(c, "compute.simulate_vram_mb", "256", &err));
    MUST(weir_context_set(c, "compute.vram_reserve_mb", "0", &err));
    MUST(weir_context_set(c, "compute.vram_limit_mb", "64", &err));
    snprintf(text, sizeof text, "%.0f", link * 1e-6);
    MUST(weir_context_set(c, "compute.simulate_link_mb", text, &err));
    MUST(weir_model_open(c, path, &model, &err));
    weir_load_options_init(&load);
    load.ctx_tokens = 256;
    MUST(weir_model_load(model, &load, &err));
    MUST(weir_session_create(model, &session, &err));
    int32_t token = 17;
    MUST(weir_session_append(session, &token, 1, &logits, &err));
    MUST(weir_model_memory(model, &before, &err));
    uint32_t n = 0;
    double start = bench_now(), took = 0;
    for (; n < 4 || (took < seconds && n < 200); n++, took = bench_now() - start)
        MUST(weir_session_append(session, &token, 1, &logits, &err));
    MUST(weir_model_memory(model, &after, &err));
    double rate = (double)(after.device_streamed_bytes - before.device_streamed_bytes) / took;
    printf("%-52s %7.1f of %.0f MB/s: %5.1f %% of the link (%u of %u units stay, %u tokens, %.2f s)\n",
           "language model, Q8_0, --device sim, 64 MB", rate * 1e-6, link * 1e-6, rate / link * 100,
           after.device_resident_units, after.device_units, n, took);
    weir_session_destroy(session);
    weir_model_close(model);
    weir_context_destroy(c);
    remove(path);
}

int main(int argc, char **argv)
{
    double seconds = 4, link = 200e6;
    const char *only = "";
    char path[4096];
    base_env *env;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--seconds") == 0 && more)
            seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--link") == 0 && more)
            link = strtod(argv[++i], NULL) * 1e6;
        else if (strcmp(argv[i], "--only") == 0 && more)
            only = argv[++i];
        else {
            fprintf(stderr, "%s: see the head of bench_manager.c\n", argv[i]);
            return 2;
        }
    }
    if (!(seconds > 0) || !(link >= 1e6)) {
        fprintf(stderr, "bench_manager: seconds above 0, a link of 1 MB/s at least\n");
        return 2;
    }
    MUST(base_env_create(&env, &err));
    snprintf(path, sizeof path, "%s.tmp", argv[0]); /* beside the program */
    if (only[0] == '\0' || strcmp(only, "overhead") == 0) bench_overhead(env, seconds);
    if (only[0] == '\0' || strcmp(only, "stream") == 0) bench_stream(env, path, link, seconds);
    if (only[0] == '\0' || strcmp(only, "model") == 0) bench_model(path, link, seconds);
    base_env_destroy(env);
    return 0;
}
