/* A model of three components under the memory manager: a text encoder runs once, a denoiser many times, a
 * decoder once. Weights are random, from a seed. docs/engines.md explains it.
 *
 *   pipeline [--device cpu|sim|opencl:N] [--vram-mb N] [--limit-mb N] [--mode M] [--steps N] [--seed N]
 *            [--voice N]: the decoder's last matrix from another seed */
#include <weir/manager.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH      256u
#define MAX_LAYERS 8u

/* ---- kernels: the same text as C and as OpenCL source ---- */

#include "pipeline_both.h"

static const weir_kernel dense_kernel = {"dense", source, dense_c};
static const weir_kernel blend_kernel = {"blend", source, blend_c};

/* ---- components ---- */

typedef struct part {
    weir_component *component;
    float *weights; /* of all layers; the component reads them from here */
    float *voice;   /* of one of them, in the place of what is there; NULL: none */
    uint32_t n_layers, unit[MAX_LAYERS], matrix[MAX_LAYERS], bias[MAX_LAYERS];
} part;

static weir_status add_layer(part *p, uint32_t i, weir_error *err)
{
    char name[32];
    weir_weight w;
    float *at = p->weights + (size_t)i * WIDTH * (WIDTH + 1);

    snprintf(name, sizeof(name), "layers.%u", i);
    weir_status status = weir_component_add_unit(p->component, name, WEIR_MARK_NONE, &p->unit[i], err);
    weir_weight_init(&w);
    w.name = "matrix";
    w.bytes = WIDTH * WIDTH * sizeof(float);
    w.host = at;
    if (status == WEIR_OK)
        status = weir_component_add_weight(p->component, p->unit[i], &w, &p->matrix[i], err);
    w.name = "bias";
    w.bytes = WIDTH * sizeof(float);
    w.host = at + WIDTH * WIDTH;
    w.streamable = false;
    if (status == WEIR_OK) status = weir_component_add_weight(p->component, p->unit[i], &w, &p->bias[i], err);
    return status;
}

static weir_status make_part(weir_manager *m, const char *name, weir_generator *g, part *p, weir_error *err)
{
    size_t n = (size_t)p->n_layers * WIDTH * (WIDTH + 1);
    p->weights = malloc(n * sizeof(float));
    if (p->weights == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n; i++) p->weights[i] = (weir_generator_f32(g) - 0.5f) * 0.25f;
    weir_status status = weir_component_create(m, "pipeline", name, WEIR_KIND_ONESHOT, &p->component, err);
    for (uint32_t i = 0; status == WEIR_OK && i < p->n_layers; i++) status = add_layer(p, i, err);
    if (status == WEIR_OK) status = weir_component_seal(p->component, err);
    return status;
}

/* Other weights in the place of the last matrix: what an adapter, or a voice, brings. */
static weir_status put_voice(part *p, weir_generator *g, weir_error *err)
{
    weir_weight w;
    float *voice = p->voice = malloc(WIDTH * WIDTH * sizeof(float));
    if (voice == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < WIDTH * WIDTH; i++) voice[i] = (weir_generator_f32(g) - 0.5f) * 0.25f;
    weir_weight_init(&w);
    w.bytes = WIDTH * WIDTH * sizeof(float);
    w.host = voice;
    return weir_component_replace(p->component, p->matrix[p->n_layers - 1], &w, err);
}

/* ---- phases ---- */

typedef struct job {
    part parts[3]; /* encoder, denoiser, decoder */
    weir_generator *noise;
    uint32_t steps;
    float text[WIDTH], state[WIDTH], out[WIDTH]; /* results of the three phases */
} job;

/* All layers of a part: from a to b and back again; *result is the one that holds the last. */
static weir_status run_layers(weir_use *p, const part *model, void *a, void *b, void **result,
                              weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; status == WEIR_OK && i < model->n_layers; i++) {
        void *matrix, *bias, *other = a;
        status = weir_unit_enter(p, model->component, model->unit[i], err);
        if (status != WEIR_OK) break;
        status = weir_weight_address(p, model->component, model->matrix[i], &matrix, err);
        if (status == WEIR_OK) status = weir_weight_address(p, model->component, model->bias[i], &bias, err);
        if (status == WEIR_OK) {
            const weir_arg args[] = {{WEIR_ARG_ADDRESS, {.address = a}},
                                     {WEIR_ARG_ADDRESS, {.address = matrix}},
                                     {WEIR_ARG_ADDRESS, {.address = bias}},
                                     {WEIR_ARG_ADDRESS, {.address = b}},
                                     {WEIR_ARG_U32, {.u32 = WIDTH}}};
            status = weir_use_launch(p, NULL, &dense_kernel, args, 5, WIDTH, err);
        }
        weir_unit_leave(p, model->component, model->unit[i]);
        a = b;
        b = other;
    }
    *result = a;
    return status;
}

/* The encoder and the decoder: one vector in, all layers, one vector out. */
static weir_status run_once(weir_use *p, const part *model, const float *in, float *out, weir_error *err)
{
    void *a, *b, *result;
    weir_status status = weir_use_alloc(p, NULL, sizeof(float) * WIDTH, "activations", &a, err);
    if (status == WEIR_OK) status = weir_use_alloc(p, NULL, sizeof(float) * WIDTH, "activations", &b, err);
    if (status == WEIR_OK) status = weir_use_upload(p, NULL, a, in, sizeof(float) * WIDTH, err);
    if (status == WEIR_OK) status = run_layers(p, model, a, b, &result, err);
    if (status == WEIR_OK) status = weir_use_download(p, NULL, out, result, sizeof(float) * WIDTH, err);
    return status;
}

static weir_status encode(void *arg, weir_use *p, weir_error *err)
{
    job *j = arg;
    float in[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) in[i] = (float)(i % 17) / 17.0f;
    return run_once(p, &j->parts[0], in, j->text, err);
}

static weir_status denoise(void *arg, weir_use *p, weir_error *err)
{
    job *j = arg;
    void *buffer[4]; /* text, state, two for the layers */
    weir_status status = WEIR_OK;

    for (uint32_t i = 0; i < WIDTH; i++) j->state[i] = weir_generator_f32(j->noise) - 0.5f;
    for (int i = 0; status == WEIR_OK && i < 4; i++)
        status = weir_use_alloc(p, NULL, sizeof(float) * WIDTH, "activations", &buffer[i], err);
    if (status == WEIR_OK) status = weir_use_upload(p, NULL, buffer[0], j->text, sizeof(j->text), err);
    if (status == WEIR_OK) status = weir_use_upload(p, NULL, buffer[1], j->state, sizeof(j->state), err);
    for (uint32_t s = 0; status == WEIR_OK && s < j->steps; s++) {
        void *change;
        float copy[WIDTH];
        status = weir_use_download(p, NULL, copy, buffer[1], sizeof(copy), err);
        if (status == WEIR_OK) status = weir_use_upload(p, NULL, buffer[2], copy, sizeof(copy), err);
        if (status == WEIR_OK) status = run_layers(p, &j->parts[1], buffer[2], buffer[3], &change, err);
        const weir_arg args[] = {{WEIR_ARG_ADDRESS, {.address = buffer[1]}},
                                 {WEIR_ARG_ADDRESS, {.address = change}},
                                 {WEIR_ARG_ADDRESS, {.address = buffer[0]}},
                                 {WEIR_ARG_F32, {.f32 = 0.5f}},
                                 {WEIR_ARG_F32, {.f32 = 0.25f}}};
        if (status == WEIR_OK) status = weir_use_launch(p, NULL, &blend_kernel, args, 5, WIDTH, err);
        /* `copy` is read until the device is here. */
        if (status == WEIR_OK)
            status = weir_use_download(p, NULL, j->state, buffer[1], sizeof(j->state), err);
    }
    return status;
}

static weir_status decode(void *arg, weir_use *p, weir_error *err)
{
    job *j = arg;
    return run_once(p, &j->parts[2], j->state, j->out, err);
}

static weir_status run_job(weir_manager *m, job *j, weir_request_report *report, weir_error *err)
{
    static const char *const names[] = {"encode", "denoise", "decode"};
    static const weir_run_fn fns[] = {encode, denoise, decode};
    weir_request *r;
    weir_request_options o;

    weir_request_options_init(&o);
    o.name = "pipeline";
    o.managers = &m;
    o.n_managers = 1;
    o.generators = &j->noise;
    o.n_generators = 1;
    weir_status status = weir_request_begin(&o, &r, err);
    if (status != WEIR_OK) return status;
    for (int i = 0; status == WEIR_OK && i < 3; i++) {
        weir_phase_options phase;
        weir_phase_options_init(&phase);
        phase.name = names[i];
        phase.components = &j->parts[i].component;
        phase.n_components = 1;
        phase.memory_bytes = 4 * sizeof(float) * WIDTH;
        phase.fn = fns[i];
        phase.arg = j;
        status = weir_request_run(r, &phase, err);
    }
    weir_request_get_report(r, report);
    weir_request_end(r);
    return status;
}

/* ---- the program ---- */

static void print_report(const job *j, const weir_request_report *r)
{
    printf("hash %016llx\n", (unsigned long long)weir_logits_hash(WEIR_HASH_SEED, j->out, WIDTH));
    printf("streamed_bytes %llu\n", (unsigned long long)r->streamed_bytes);
    for (uint32_t i = 0; i < r->n_components; i++) {
        const weir_component_report *c = &r->components[i];
        printf("%s: loaded %llu of %llu, streamed %llu, free %llu, working %llu, mode %s, reason \"%s\"\n",
               c->component, (unsigned long long)c->loaded_bytes, (unsigned long long)c->size_bytes,
               (unsigned long long)c->streamed_bytes, (unsigned long long)c->free_bytes,
               (unsigned long long)c->working_bytes, c->mode, c->reason);
    }
}

static weir_status run(weir_context *c, uint64_t seed, uint64_t voice, uint32_t steps, weir_error *err)
{
    static const char *const names[] = {"encoder", "denoiser", "decoder"};
    weir_manager *m = NULL;
    weir_generator *g = NULL, *of_voice = NULL;
    weir_request_report report;
    job j = {.parts = {{.n_layers = 3}, {.n_layers = 8}, {.n_layers = 4}}, .steps = steps};

    weir_status status = weir_manager_create(c, NULL, &m, err);
    if (status == WEIR_OK) status = weir_generator_create(c, seed, &g, err);
    if (status == WEIR_OK) status = weir_generator_create(c, seed + 1, &j.noise, err);
    for (int i = 0; status == WEIR_OK && i < 3; i++) status = make_part(m, names[i], g, &j.parts[i], err);
    if (status == WEIR_OK && voice != 0) status = weir_generator_create(c, voice, &of_voice, err);
    if (status == WEIR_OK && voice != 0) status = put_voice(&j.parts[2], of_voice, err);
    if (status == WEIR_OK) status = run_job(m, &j, &report, err);
    if (status == WEIR_OK) print_report(&j, &report);
    for (int i = 0; i < 3; i++) {
        weir_component_destroy(j.parts[i].component);
        free(j.parts[i].weights);
        free(j.parts[i].voice);
    }
    weir_generator_destroy(of_voice);
    weir_generator_destroy(j.noise);
    weir_generator_destroy(g);
    weir_manager_destroy(m);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const options[][2] = {{"--device", "compute.device"},
                                             {"--vram-mb", "compute.simulate_vram_mb"},
                                             {"--limit-mb", "compute.vram_limit_mb"},
                                             {"--mode", "compute.vram_mode"}};
    weir_context *c = NULL;
    weir_error err = {0};
    uint64_t seed = 1, voice = 0;
    uint32_t steps = 6;

    weir_status status = weir_context_create(NULL, &c, &err);
    if (status == WEIR_OK) status = weir_context_set(c, "compute.vram_reserve_mb", "0", &err);
    for (int i = 1; status == WEIR_OK && i < argc; i += 2) {
        size_t k = 0;
        while (k < 4 && strcmp(argv[i], options[k][0]) != 0) k++;
        if (i + 1 < argc && k < 4)
            status = weir_context_set(c, options[k][1], argv[i + 1], &err);
        else if (i + 1 < argc && strcmp(argv[i], "--steps") == 0)
            steps = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--voice") == 0)
            voice = strtoull(argv[i + 1], NULL, 10);
        else {
            fprintf(stderr, "%s: see the head of pipeline.c\n", argv[i]);
            weir_context_destroy(c);
            return 2;
        }
    }
    if (status == WEIR_OK) status = run(c, seed, voice, steps, &err);
    if (status != WEIR_OK) fprintf(stderr, "error: %s: %s\n", weir_status_name(status), err.message);
    weir_context_destroy(c);
    return status == WEIR_OK ? 0 : 1;
}
