/* Against others: llama.cpp on the two real models (tokens, most likely next tokens, perplexity), and
 * transformers on tiny random models of every architecture in F32. Their figures stand in tests/golden,
 * written by the scripts in tests/oracles. */
#include "weir/weir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_LINE = 1 << 20, MAX_IDS = 4096, N_PICKS = 24 };

static const char *source_dir(void)
{
    const char *dir = getenv("WEIR_SOURCE_DIR");
    return dir != NULL ? dir : ".";
}

static FILE *open_source(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", source_dir(), name);
    FILE *f = fopen(path, "r");
    if (f == NULL) fail_msg("%s is missing", path);
    return f;
}

static size_t read_ids(const char *line, int32_t *ids)
{
    size_t n = 0;
    char *end;
    for (const char *p = line; n < MAX_IDS; p = end) {
        long v = strtol(p, &end, 10);
        if (end == p) break;
        ids[n++] = (int32_t)v;
    }
    return n;
}

typedef struct score {
    uint32_t n_vocab;
    const int32_t *ids;
    size_t n;
    int32_t top[MAX_IDS];
    double nll; /* summed over the tokens behind the first */
} score;

static bool take_logits(void *arg, size_t index, const float *logits)
{
    score *s = arg;
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    s->top[index] = (int32_t)best;
    if (index + 1 < s->n) {
        double sum = 0;
        for (uint32_t i = 0; i < s->n_vocab; i++) sum += exp((double)logits[i] - logits[best]);
        s->nll -= (double)logits[s->ids[index + 1]] - logits[best] - log(sum);
    }
    return true;
}

typedef struct real_model {
    weir_context *context;
    weir_model *model;
    weir_session *session;
    uint32_t n_vocab;
} real_model;

static void check(weir_status status, const weir_error *err)
{
    if (status != WEIR_OK) fail_msg("%s: %s", weir_status_name(status), err->message);
}

static void open_model(real_model *r, const char *path, weir_kv_type kv)
{
    weir_error err;
    weir_load_options o;
    weir_load_options_init(&o);
    o.ctx_tokens = 1088;
    o.kv_type = kv;
    o.prefill_chunk = 128;
    weir_model_info info = {.struct_size = sizeof info};
    check(weir_context_create(NULL, &r->context, &err), &err);
    check(weir_model_open(r->context, path, &r->model, &err), &err);
    check(weir_model_get_info(r->model, &info, &err), &err);
    r->n_vocab = info.n_vocab;
    if (info.context_tokens < o.ctx_tokens) o.ctx_tokens = info.context_tokens;
    check(weir_model_load(r->model, &o, &err), &err);
    check(weir_session_create(r->model, &r->session, &err), &err);
}

static void close_model(real_model *r)
{
    weir_session_destroy(r->session);
    weir_model_close(r->model);
    weir_context_destroy(r->context);
}

/* Undoes the \n of prompts.txt in place. */
static void unescape(char *text)
{
    char *out = text;
    for (char *p = text; *p != 0 && *p != '\n'; p++) {
        if (p[0] == '\\' && p[1] == 'n') {
            *out++ = '\n';
            p++;
        } else {
            *out++ = *p;
        }
    }
    *out = 0;
}

static void score_ids(real_model *r, const int32_t *ids, size_t n, score *s)
{
    weir_error err;
    *s = (score){.n_vocab = r->n_vocab, .ids = ids, .n = n};
    weir_session_reset(r->session);
    check(weir_session_score(r->session, ids, n, take_logits, s, &err), &err);
}

static uint64_t hash_ids(const int32_t *ids, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < 4 * n; i++) h = (h ^ ((const unsigned char *)ids)[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* The first 4,000 tokens of the GPL 3 text that Debian installs, in stretches from an empty cache. */
static double perplexity(real_model *r, size_t want_tokens, uint64_t want_hash, size_t stretch,
                         size_t *n_scored)
{
    enum { MAX_TEXT = 1 << 16 };
    char *text = malloc(MAX_TEXT);
    FILE *f = fopen("/usr/share/common-licenses/GPL-3", "r");
    if (f == NULL) fail_msg("the text is missing");
    size_t len = fread(text, 1, MAX_TEXT, f);
    fclose(f);
    int32_t *ids, bos[1], chunk[MAX_IDS];
    int32_t *bos_ids;
    size_t n, n_bos;
    weir_error err;
    check(weir_tokenize(r->model, text, len, 0, &ids, &n, &err), &err);
    assert_true(n >= want_tokens);
    assert_int_equal(hash_ids(ids, want_tokens), want_hash);
    check(weir_tokenize(r->model, "", 0, weir_model_adds_bos(r->model) ? WEIR_TOKENIZE_BOS : 0, &bos_ids,
                        &n_bos, &err),
          &err);
    assert_true(n_bos <= 1);
    if (n_bos == 1) bos[0] = bos_ids[0];
    double nll = 0;
    score *s = malloc(sizeof *s);
    *n_scored = 0;
    for (size_t at = 0; at < want_tokens; at += stretch) {
        memcpy(chunk, bos, n_bos * sizeof *bos);
        memcpy(chunk + n_bos, ids + at, stretch * sizeof *ids);
        score_ids(r, chunk, n_bos + stretch, s);
        nll += s->nll;
        *n_scored += n_bos + stretch - 1;
    }
    free(s);
    free(text);
    weir_free(r->model, ids);
    weir_free(r->model, bos_ids);
    return exp(nll / (double)*n_scored);
}

static void compare_with_llama(const char *file, const char *golden)
{
    char path[1024];
    const char *dir = getenv("WEIR_MODELS"), *home = getenv("HOME");
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else
        snprintf(path, sizeof path, "%s/.cache/weir/models/%s", home ? home : "", file);
    if (access(path, R_OK) != 0 || getenv("WEIR_SANITIZED") != NULL) skip();

    real_model r;
    open_model(&r, path, WEIR_KV_F16);
    FILE *f = open_source(golden), *prompts = open_source("tests/oracles/prompts.txt");
    char *line = malloc(MAX_LINE), *prompt = malloc(MAX_LINE);
    score *s = malloc(sizeof *s);
    static int32_t want[MAX_IDS], top[MAX_IDS];
    size_t n_want = 0, n_prompts = 0, n_positions = 0, n_agree = 0, text_tokens = 0, stretch = 0;
    unsigned long long text_hash = 0;
    double ppl = 0, want_ppl = 0;
    while (fgets(line, MAX_LINE, f) != NULL) {
        weir_error err;
        if (strncmp(line, "ids ", 4) == 0) {
            n_want = read_ids(line + 4, want);
            assert_non_null(fgets(prompt, MAX_LINE, prompts));
            unescape(prompt);
            int32_t *ids;
            size_t n;
            int flags = weir_model_adds_bos(r.model) ? WEIR_TOKENIZE_BOS : 0;
            check(weir_tokenize(r.model, prompt, strlen(prompt), flags, &ids, &n, &err), &err);
            assert_int_equal(n, n_want);
            assert_memory_equal(ids, want, n * sizeof *ids);
            weir_free(r.model, ids);
            n_prompts++;
        } else if (strncmp(line, "top ", 4) == 0) {
            size_t n_top = read_ids(line + 4, top);
            assert_int_equal(n_top, n_want);
            score_ids(&r, want, n_want, s);
            for (size_t i = 0; i < n_top; i++) n_agree += s->top[i] == top[i];
            n_positions += n_top;
        } else if (strncmp(line, "text ", 5) == 0) {
            assert_int_equal(sscanf(line, "text %zu %llx %zu", &text_tokens, &text_hash, &stretch), 3);
        } else if (strncmp(line, "perplexity ", 11) == 0) {
            size_t n_scored, n_golden;
            assert_int_equal(sscanf(line, "perplexity %zu %lf", &n_golden, &want_ppl), 2);
            if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) continue;
            ppl = perplexity(&r, text_tokens, text_hash, stretch, &n_scored);
            assert_int_equal(n_scored, n_golden);
        }
    }
    print_message(
        "# %s: %zu prompts, top-1 agreement %zu of %zu, perplexity %.4f, llama.cpp's %.4f (%+.3f %%)\n",
        golden, n_prompts, n_agree, n_positions, ppl, want_ppl, 100 * (ppl / want_ppl - 1));
    assert_int_equal(n_prompts, 20);
    assert_true(n_positions > 200);
    assert_true((double)n_agree >= 0.97 * (double)n_positions);
    assert_true(fabs(ppl / want_ppl - 1) <= 0.005);
    fclose(f);
    fclose(prompts);
    free(line);
    free(prompt);
    free(s);
    close_model(&r);
}

static void test_llama_smollm2(void **state)
{
    (void)state;
    compare_with_llama("SmolLM2-135M-Instruct.Q4_1.gguf", "tests/golden/llama_smollm2.txt");
}

static void test_llama_gemma3(void **state)
{
    (void)state;
    compare_with_llama("gemma3-270m-q4_k_m.gguf", "tests/golden/llama_gemma3.txt");
}

/* ---- transformers ---- */

typedef struct picks {
    uint32_t n_vocab;
    float rows[256][N_PICKS];
} picks;

static bool take_picks(void *arg, size_t index, const float *logits)
{
    picks *p = arg;
    for (uint32_t j = 0; j < N_PICKS; j++) p->rows[index][j] = logits[j * p->n_vocab / N_PICKS];
    return true;
}

/* The options of `weir synth` as the golden file's second line gives them; words point into line. */
static void read_synth(char *line, weir_synth_options *o)
{
    weir_synth_options_init(o);
    o->safetensors = true;
    char *words[64];
    int n = 0;
    for (char *w = strtok(line, " \n"); w != NULL && n < 63; w = strtok(NULL, " \n")) words[n++] = w;
    words[n] = NULL;
    const struct {
        const char *name;
        uint32_t *dest;
    } numbers[] = {{"--hidden", &o->hidden},       {"--layers", &o->n_layers},   {"--heads", &o->n_heads},
                   {"--kv-heads", &o->n_kv_heads}, {"--head-dim", &o->head_dim}, {"--ffn", &o->ffn},
                   {"--vocab", &o->n_vocab},       {"--ctx", &o->ctx_tokens},    {"--window", &o->window}};
    for (int i = 1; i < n; i++) {
        const char *value = words[i + 1];
        if (strcmp(words[i], "--tied") == 0) {
            o->tied = o->tied_given = true;
            continue;
        }
        assert_non_null(value);
        bool known = true;
        if (strcmp(words[i], "--arch") == 0)
            o->arch = value;
        else if (strcmp(words[i], "--type") == 0)
            o->type = value;
        else if (strcmp(words[i], "--rope-scaling") == 0)
            o->rope_scaling = value;
        else if (strcmp(words[i], "--softcap") == 0)
            o->softcap = strtof(value, NULL);
        else if (strcmp(words[i], "--seed") == 0)
            o->seed = strtoull(value, NULL, 10);
        else {
            known = false;
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
                if (strcmp(words[i], numbers[k].name) == 0) {
                    *numbers[k].dest = (uint32_t)strtoul(value, NULL, 10);
                    known = true;
                }
        }
        if (!known) fail_msg("unknown synth option %s", words[i]);
        i++;
    }
}

static void remove_folder(const char *folder)
{
    static const char *const files[] = {"model.safetensors", "config.json", "generation_config.json",
                                        "tokenizer.json", "tokenizer_config.json"};
    char path[1024];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void compare_with_transformers(void **state)
{
    const char *name = *state;
    char path[256], folder[] = "/tmp/weir-oracle-XXXXXX";
    snprintf(path, sizeof path, "tests/golden/transformers_%s.txt", name);
    FILE *f = open_source(path);
    char *line = malloc(MAX_LINE), *synth = malloc(MAX_LINE);
    static int32_t ids[MAX_IDS];
    size_t n = 0, row = 0;
    double worst = 0;
    picks *p = calloc(1, sizeof *p);
    real_model r = {0};
    weir_error err;
    assert_non_null(mkdtemp(folder));
    while (fgets(line, MAX_LINE, f) != NULL) {
        if (strncmp(line, "synth ", 6) == 0) {
            weir_synth_options o;
            strcpy(synth, line);
            read_synth(synth, &o);
            weir_context *c;
            check(weir_context_create(NULL, &c, &err), &err);
            check(weir_synth(c, &o, folder, &err), &err);
            weir_context_destroy(c);
            open_model(&r, folder, WEIR_KV_F32);
            p->n_vocab = r.n_vocab;
        } else if (strncmp(line, "ids ", 4) == 0) {
            n = read_ids(line + 4, ids);
            assert_in_range(n, 1, 256);
            check(weir_session_score(r.session, ids, n, take_picks, p, &err), &err);
        } else if (strncmp(line, "logits ", 7) == 0) {
            double want[N_PICKS + 1];
            char *at = line + 7;
            for (int j = 0; j <= N_PICKS; j++) want[j] = strtod(at, &at);
            assert_true(want[N_PICKS] > 0.1);
            for (int j = 0; j < N_PICKS; j++) {
                double error = fabs(p->rows[row][j] - want[j]) / want[N_PICKS];
                if (!(error <= worst)) worst = error;
            }
            row++;
        }
    }
    print_message("# transformers %s: %zu positions, worst error %.2e of the largest logit\n", name, row,
                  worst);
    assert_true(n > 0);
    assert_int_equal(row, n);
    assert_true(worst <= 1e-4);
    fclose(f);
    free(line);
    free(synth);
    free(p);
    close_model(&r);
    remove_folder(folder);
}

#define TRANSFORMERS(case_name)                                                                              \
    {                                                                                                        \
        "transformers " case_name, compare_with_transformers, NULL, NULL, (void *)(uintptr_t)case_name       \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TRANSFORMERS("llama"),
        TRANSFORMERS("llama_tied"),
        TRANSFORMERS("llama_linear"),
        TRANSFORMERS("llama_llama3"),
        TRANSFORMERS("llama_yarn"),
        TRANSFORMERS("qwen2"),
        TRANSFORMERS("qwen3"),
        TRANSFORMERS("gemma3"),
        TRANSFORMERS("gemma3_softcap"),
        cmocka_unit_test(test_llama_smollm2),
        cmocka_unit_test(test_llama_gemma3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
