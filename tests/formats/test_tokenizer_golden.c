/* Nasty texts against llama.cpp's ids (tests/oracles/make_tokenizer_golden.py), and back to text again. */
#define _GNU_SOURCE
#include "tok_helpers.h"

#include <utf8proc.h>

#define MAX_IDS 4096

typedef struct golden {
    char *p; /* rest of the file */
    char text[4096];
    size_t len;
    int32_t plain[MAX_IDS], special[MAX_IDS];
    size_t n_plain, n_special;
} golden;

static char *next_line(golden *g)
{
    char *line = g->p, *end = strchr(line, '\n');
    if (end == NULL) return NULL;
    *end = '\0';
    g->p = end + 1;
    return line;
}

static size_t parse_ids(const char *line, const char *word, int32_t *ids)
{
    size_t n = 0;
    assert_memory_equal(line, word, strlen(word));
    const char *p = line + strlen(word);
    for (char *next; n < MAX_IDS; p = next) {
        long id = strtol(p, &next, 10);
        if (next == p) break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

static bool next_case(golden *g)
{
    char *line = next_line(g);
    while (line != NULL && line[0] == '#') line = next_line(g);
    if (line == NULL) return false;
    assert_memory_equal(line, "text ", 5);
    g->len = 0;
    for (const char *hex = line + 5; hex[0] != '\0' && hex[1] != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], 0};
        assert_true(g->len < sizeof g->text);
        g->text[g->len++] = (char)strtol(pair, NULL, 16);
    }
    g->n_plain = parse_ids(next_line(g), "plain", g->plain);
    g->n_special = parse_ids(next_line(g), "special", g->special);
    return true;
}

/* Where we part from llama.cpp on purpose, to follow the models' own tokenizers. */
typedef bool (*deviates_fn)(const golden *g);

/* Gemma's </s> is the HTML tag; llama.cpp takes it for an end of text and no longer finds it in plain text.
 */
static bool deviates_gemma3(const golden *g)
{
    return memmem(g->text, g->len, "</s>", 4) != NULL;
}

/* BERT's accent stripping takes Hangul syllables apart and keeps spacing marks (Mc); llama.cpp keeps the
 * first letter and drops them. */
static bool deviates_bert(const golden *g)
{
    uint32_t cp;
    for (size_t i = 0; i < g->len; i++) {
        if (fmt_utf8_decode(g->text + i, g->len - i, &cp) != 3) continue;
        if ((cp >= 0xac00 && cp <= 0xd7a3) || utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MC)
            return true;
    }
    return false;
}

static bool deviates_nowhere(const golden *g)
{
    (void)g;
    return false;
}

static void check_case(const loaded *l, const golden *g, size_t i)
{
    weir_error err = {0};
    char what[64];
    int32_t *ids;
    size_t n;
    for (int special = 0; special < 2; special++) {
        const int32_t *want = special ? g->special : g->plain;
        size_t n_want = special ? g->n_special : g->n_plain;
        snprintf(what, sizeof what, "text %zu, special %d", i, special);
        require_ok(
            fmt_tokenizer_encode(l->tok, g->text, g->len, special ? FMT_ENCODE_SPECIAL : 0, &ids, &n, &err),
            &err);
        assert_ids(what, ids, n, want, n_want);
        base_free(l->env, ids);
    }
}

static void check_back(const loaded *l, const golden *g)
{
    weir_error err = {0};
    int32_t *ids;
    size_t n;
    base_buf text;
    require_ok(fmt_tokenizer_encode(l->tok, g->text, g->len, 0, &ids, &n, &err), &err);
    detokenize(l, ids, n, false, &text);
    assert_int_equal(text.len, g->len);
    assert_memory_equal(text.data, g->text, g->len);
    base_buf_finish(&text);
    base_free(l->env, ids);
}

static void check_model(const char *path, const char *name, bool back, deviates_fn deviates,
                        size_t n_deviations)
{
    char file[128];
    weir_error err = {0};
    char *text;
    size_t len, n_cases = 0, n_skipped = 0;
    if (!base_file_exists(path)) skip();
    loaded l = load(path);
    snprintf(file, sizeof file, "tests/golden/tokenizer_%s.txt", name);
    require_ok(base_file_slurp(l.env, file, 8 << 20, &text, &len, &err), &err);
    golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->p = text;
    for (; next_case(g); n_cases++) {
        if (deviates(g)) {
            n_skipped++;
        } else {
            check_case(&l, g, n_cases);
        }
        /* SentencePiece writes spaces as U+2581, so that one does not come back. */
        bool lossy = !l.tok->byte_level && memmem(g->text, g->len, "\xe2\x96\x81", 3) != NULL;
        if (back && !lossy && fmt_utf8_is_valid(g->text, g->len)) check_back(&l, g);
    }
    assert_true(n_cases > 250);
    assert_int_equal(n_skipped, n_deviations);
    free(g);
    base_free(l.env, text);
    unload(&l);
}

static void test_smollm2(void **state)
{
    (void)state;
    char path[512];
    model_path(path, sizeof path, "SmolLM2-135M-Instruct.Q4_1.gguf");
    check_model(path, "smollm2", true, deviates_nowhere, 0);
}
static void test_gemma3(void **state)
{
    (void)state;
    char path[512];
    model_path(path, sizeof path, "gemma3-270m-q4_k_m.gguf");
    check_model(path, "gemma3", true, deviates_gemma3, 1);
}
static void check_shared(const char *name, bool back, deviates_fn deviates, size_t n_deviations)
{
    char path[512], file[128];
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    data_path(path, sizeof path, file);
    check_model(path, name, back, deviates, n_deviations);
}
static void test_gpt2(void **state)
{
    (void)state;
    check_shared("gpt-2", true, deviates_nowhere, 0);
}
static void test_llama_spm(void **state)
{
    (void)state;
    check_shared("llama-spm", true, deviates_nowhere, 0);
}
static void test_deepseek_llm(void **state)
{
    (void)state;
    check_shared("deepseek-llm", false, deviates_nowhere, 0);
}
static void test_bert_bge(void **state)
{
    (void)state;
    check_shared("bert-bge", false, deviates_bert, 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),      cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_gpt2),         cmocka_unit_test(test_llama_spm),
        cmocka_unit_test(test_deepseek_llm), cmocka_unit_test(test_bert_bge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
