/* Prefill on several threads against one, as a whole and by kind of operation.
 *
 *   bench_threads [--threads N] [--rounds N] [--tokens N] [model.gguf]
 *
 * The same file is loaded twice in one context, for one thread and for N, and both take turns. In every round
 * a loop of dot products in registers runs on one thread and on N, too: what the machine itself gives at that
 * moment. Shared machines change from second to second, so ratios are of the same round, and their median
 * counts. Without a model: SmolLM2 where `make test` keeps it. */
#include "bench_limits.h"
#include "weir/weir.h"

#include <stdio.h>
#include <unistd.h>

#define MAX_ROUNDS 100
#define MAX_TOKENS 4096
#define MAX_OPS    32

/* One model, loaded for so many threads, and its times by round. */
typedef struct side {
    weir_model *model;
    weir_session *session;
    uint64_t hash;
    double seconds[MAX_ROUNDS];
    double ops[MAX_OPS][MAX_ROUNDS];
    double before[MAX_OPS];
} side;

static weir_error err;

static void must(weir_status status, const char *what)
{
    if (status == WEIR_OK) return;
    fprintf(stderr, "bench_threads: %s: %s: %s\n", what, weir_status_name(status), err.message);
    exit(1);
}
#define MUST(call) must((call), #call)

static double median(const double *values, size_t n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, bench_by_value);
    return sorted[n / 2];
}

static void open_side(weir_context *c, const char *path, uint32_t n_threads, uint32_t n_tokens, side *s)
{
    weir_load_options o;
    weir_load_options_init(&o);
    o.n_threads = n_threads;
    o.ctx_tokens = n_tokens + 16;
    o.profile = true;
    MUST(weir_model_open(c, path, &s->model, &err));
    MUST(weir_model_load(s->model, &o, &err));
    MUST(weir_session_create(s->model, &s->session, &err));
}

static void prefill(side *s, const int32_t *tokens, uint32_t n_tokens, size_t n_vocab, size_t round)
{
    const float *logits;
    const char *name;
    double seconds;
    uint64_t count;
    weir_session_reset(s->session);
    double start = bench_now();
    MUST(weir_session_append(s->session, tokens, n_tokens, &logits, &err));
    s->seconds[round] = bench_now() - start;
    for (size_t i = 0; i < MAX_OPS && weir_profile_op(s->model, i, &name, &seconds, &count); i++) {
        s->ops[i][round] = seconds - s->before[i];
        s->before[i] = seconds;
    }
    s->hash = weir_logits_hash(WEIR_HASH_SEED, logits, n_vocab);
}

static void report(const side *one, const side *many, const double *loop, size_t n)
{
    double ratio[MAX_ROUNDS], fastest[2] = {1e9, 1e9}, total[2];
    for (size_t i = 0; i < n; i++) {
        ratio[i] = one->seconds[i] / many->seconds[i];
        if (one->seconds[i] < fastest[0]) fastest[0] = one->seconds[i];
        if (many->seconds[i] < fastest[1]) fastest[1] = many->seconds[i];
    }
    total[0] = median(one->seconds, n);
    total[1] = median(many->seconds, n);
    printf("%-12s %9.2f ms %9.2f ms   ratio %5.2f   of the fastest rounds %5.2f   the loop %5.2f\n", "all",
           total[0] * 1e3, total[1] * 1e3, median(ratio, n), fastest[0] / fastest[1], median(loop, n));
    for (size_t k = 0; k < MAX_OPS; k++) {
        const char *name;
        double seconds;
        uint64_t count;
        if (!weir_profile_op(one->model, k, &name, &seconds, &count)) break;
        if (count == 0) continue;
        for (size_t i = 0; i < n; i++) ratio[i] = one->ops[k][i] / many->ops[k][i];
        seconds = median(one->ops[k], n);
        printf("%-12s %9.2f ms %9.2f ms   ratio %5.2f   %4.1f %% of the time on one thread\n", name,
               seconds * 1e3, median(many->ops[k], n) * 1e3, median(ratio, n), seconds / total[0] * 100);
    }
}

static void run(const char *path, uint32_t n_threads, uint32_t n_tokens, size_t rounds)
{
    static side one, many;
    static int32_t tokens[MAX_TOKENS];
    static double loop[MAX_ROUNDS];
    weir_context *c;
    weir_machine machine = {.struct_size = sizeof machine};
    weir_model_info info = {.struct_size = sizeof info};
    MUST(weir_context_create(NULL, &c, &err));
    MUST(weir_machine_read(c, &machine, &err));
    open_side(c, path, n_threads, n_tokens, &many);
    open_side(c, path, 1, n_tokens, &one);
    MUST(weir_model_get_info(many.model, &info, &err));
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = (int32_t)((i * 2654435761u >> 8) % info.n_vocab);
    for (size_t r = 0; r < rounds; r++) {
        double alone = bench_peak(machine.cpu_set, true, 1);
        prefill(r % 2 == 0 ? &one : &many, tokens, n_tokens, info.n_vocab, r);
        prefill(r % 2 == 0 ? &many : &one, tokens, n_tokens, info.n_vocab, r);
        loop[r] = alone > 0 ? bench_peak(machine.cpu_set, true, n_threads) / alone : 0;
        if (one.hash != many.hash) {
            fprintf(stderr, "bench_threads: other bits on %u threads\n", n_threads);
            exit(1);
        }
    }
    printf("%s, %s, %u tokens, %zu rounds, one thread and %u:\n", path, machine.cpu_set, n_tokens, rounds,
           n_threads);
    report(&one, &many, loop, rounds);
    weir_session_destroy(one.session);
    weir_session_destroy(many.session);
    weir_model_close(one.model);
    weir_model_close(many.model);
    weir_context_destroy(c);
}

int main(int argc, char **argv)
{
    uint32_t n_threads = 2, n_tokens = 256, rounds = 16;
    const char *path = NULL, *home = getenv("HOME"), *models = getenv("WEIR_MODELS");
    char known[1024];
    for (int i = 1; i < argc; i++) {
        uint32_t *value = strcmp(argv[i], "--threads") == 0  ? &n_threads
                          : strcmp(argv[i], "--rounds") == 0 ? &rounds
                          : strcmp(argv[i], "--tokens") == 0 ? &n_tokens
                                                             : NULL;
        if (value == NULL)
            path = argv[i];
        else
            *value = i + 1 < argc ? (uint32_t)strtoul(argv[++i], NULL, 10) : 0;
    }
    if (n_threads < 2 || n_threads > BENCH_MAX_THREADS || rounds < 1 || rounds > MAX_ROUNDS || n_tokens < 1 ||
        n_tokens > MAX_TOKENS) {
        fprintf(stderr,
                "usage: bench_threads [--threads 2..%d] [--rounds 1..%d] [--tokens 1..%d] [model.gguf]\n",
                BENCH_MAX_THREADS, MAX_ROUNDS, MAX_TOKENS);
        return 2;
    }
    if (path == NULL) {
        snprintf(known, sizeof known, "%s%s/SmolLM2-135M-Instruct.Q4_1.gguf",
                 models != NULL ? models
                 : home != NULL ? home
                                : "",
                 models != NULL ? "" : "/.cache/weir/models");
        path = known;
        if (access(path, R_OK) != 0) {
            printf("bench_threads: %s is not there; name a model\n", path);
            return 0;
        }
    }
    run(path, n_threads, n_tokens, rounds);
    return 0;
}
