/* A worker of bench_peers.py: holds a model and does what lines on its standard input say, so that engines
 * can take turns with everything loaded and warm.
 *
 *   worker_weir MODEL THREADS CTX [BUDGET]
 *
 *   reset      empties the sequence
 *   prefill N  appends N tokens at once
 *   decode N   appends N tokens, one at a time, each with its logits
 *
 *   memory     (this worker only) answers with the bytes per second that memory delivers to THREADS
 *   weights    (this worker only) answers with the bytes of weights that one pass reads
 *   read       (this worker only) answers with the bytes of weights read from storage since they were loaded
 *   storage N  (this worker only) answers with the bytes per second of N MB of queued direct reads of the
 * file
 *
 * BUDGET (this worker only): bytes for the whole process; 0: the weights are not loaded, for `storage` alone.
 *
 * Every other line is answered by one line: the seconds it took. Token i of the sequence is (i x 7919 + 13)
 * mod the vocabulary. The end of the input ends the worker. Any program that speaks this can be a peer. */
#include "weir/weir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct worker {
    weir_context *context;
    weir_model *model;
    weir_session *session;
    weir_load_options load;
    int32_t *tokens;
} worker;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static weir_status worker_open(worker *w, char **argv, weir_error *err)
{
    weir_model_info info = {.struct_size = sizeof info};
    weir_load_options_init(&w->load);
    bool loads = argv[4] == NULL || strcmp(argv[4], "0") != 0;
    if (argv[4] != NULL) w->load.mem_bytes = strtoull(argv[4], NULL, 10);
    w->load.n_threads = (uint32_t)strtoul(argv[2], NULL, 10);
    w->load.ctx_tokens = (uint32_t)strtoul(argv[3], NULL, 10);
    weir_status status = weir_context_create(NULL, &w->context, err);
    if (status == WEIR_OK) status = weir_model_open(w->context, argv[1], &w->model, err);
    if (status == WEIR_OK && loads) status = weir_model_load(w->model, &w->load, err);
    if (status == WEIR_OK && loads) status = weir_session_create(w->model, &w->session, err);
    if (status == WEIR_OK) status = weir_model_get_info(w->model, &info, err);
    if (status != WEIR_OK) return status;
    w->tokens = calloc(w->load.ctx_tokens, sizeof *w->tokens);
    if (w->tokens == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < w->load.ctx_tokens; i++)
        w->tokens[i] = (int32_t)((i * UINT64_C(7919) + 13) % info.n_vocab);
    return WEIR_OK;
}

static weir_status append(worker *w, uint32_t n, uint32_t at_once, weir_error *err)
{
    const float *logits;
    if (w->session == NULL) return WEIR_ERR_INVALID_ARGUMENT;
    for (uint32_t done = 0; done < n; done += at_once) {
        uint32_t position = weir_session_position(w->session);
        weir_status status =
            position + at_once > w->load.ctx_tokens
                ? WEIR_ERR_CONTEXT_FULL
                : weir_session_append(w->session, w->tokens + position, at_once, &logits, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

static weir_status command(worker *w, const char *word, uint32_t n, weir_error *err)
{
    if (strcmp(word, "prefill") == 0) return append(w, n, n, err);
    if (strcmp(word, "decode") == 0) return append(w, n, 1, err);
    if (strcmp(word, "reset") != 0) return WEIR_ERR_INVALID_ARGUMENT;
    weir_session_reset(w->session);
    return WEIR_OK;
}

static bool is_fact(const char *word)
{
    static const char *const facts[] = {"memory", "weights", "read", "storage"};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (strcmp(word, facts[i]) == 0) return true;
    return false;
}

static weir_status fact(worker *w, const char *word, uint32_t n, double *value, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_memory_report report = {.struct_size = sizeof report};
    if (strcmp(word, "storage") == 0)
        return weir_measure_storage(w->model, n * UINT64_C(1000000), value, err);
    if (strcmp(word, "read") == 0) {
        weir_status read = weir_model_memory(w->model, &report, err);
        *value = (double)report.read_bytes;
        return read;
    }
    if (strcmp(word, "memory") == 0) return weir_measure_memory(w->context, w->load.n_threads, value, err);
    weir_status status = weir_model_plan(w->model, &w->load, &plan, err);
    *value = (double)plan.weight_bytes_per_pass;
    return status;
}

int main(int argc, char **argv)
{
    worker w = {.context = NULL};
    weir_error err = {.message = ""};
    char line[128], word[32];
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: worker_weir MODEL THREADS CTX [BUDGET]\n");
        return 2;
    }
    weir_status status = worker_open(&w, argv, &err);
    while (status == WEIR_OK && fgets(line, sizeof line, stdin) != NULL) {
        unsigned n = 0;
        if (sscanf(line, "%31s %u", word, &n) < 1) continue;
        bool asks = is_fact(word);
        double start = now(), value = 0;
        status = asks ? fact(&w, word, n, &value, &err) : command(&w, word, n, &err);
        if (status == WEIR_OK) printf("%.9f\n", asks ? value : now() - start);
        fflush(stdout);
    }
    if (status != WEIR_OK) fprintf(stderr, "worker_weir: %s\n", err.message);
    free(w.tokens);
    weir_session_destroy(w.session);
    weir_model_close(w.model);
    weir_context_destroy(w.context);
    return status == WEIR_OK ? 0 : 1;
}
