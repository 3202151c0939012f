/* The public test vectors: texts and ids, without BOS and without special tokens. */
#include "tok_helpers.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

static size_t read_ids(char **line, int32_t *ids, size_t cap)
{
    size_t n = 0;
    char *p = *line, *end = strchr(p, '\n');
    assert_non_null(end);
    *end = '\0';
    *line = end + 1;
    for (char *next; n < cap; p = next) {
        long id = strtol(p, &next, 10);
        if (next == p) break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

static void check_vocab(const char *name)
{
    char path[512], file[600];
    weir_error err = {0};
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    data_path(path, sizeof path, file);
    if (!base_file_exists(path)) skip();
    loaded l = load(path);
    char *texts = NULL, *ids_text = NULL;
    size_t texts_len, ids_len;
    snprintf(file, sizeof file, "%.500s.inp", path);
    require_ok(base_file_slurp(l.env, file, 1 << 20, &texts, &texts_len, &err), &err);
    snprintf(file, sizeof file, "%.500s.out", path);
    require_ok(base_file_slurp(l.env, file, 1 << 20, &ids_text, &ids_len, &err), &err);
    size_t n_cases = 0;
    char *line = ids_text;
    for (char *text = texts; text != NULL; n_cases++) {
        char *end = strstr(text, SEPARATOR);
        if (end == NULL && n_cases > 0 && text[0] == '\0') break;
        size_t len = end != NULL ? (size_t)(end - text) : strlen(text);
        int32_t want[1024], *ids;
        size_t n_want = read_ids(&line, want, 1024), n;
        char what[64];
        snprintf(what, sizeof what, "%s, text %zu", name, n_cases);
        require_ok(fmt_tokenizer_encode(l.tok, text, len, 0, &ids, &n, &err), &err);
        assert_ids(what, ids, n, want, n_want);
        base_free(l.env, ids);
        text = end != NULL ? end + strlen(SEPARATOR) : NULL;
    }
    assert_true(n_cases >= 40);
    base_free(l.env, texts);
    base_free(l.env, ids_text);
    unload(&l);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_vocab("gpt-2");
}
static void test_llama_spm(void **state)
{
    (void)state;
    check_vocab("llama-spm");
}
static void test_deepseek_llm(void **state)
{
    (void)state;
    check_vocab("deepseek-llm");
}
static void test_bert_bge(void **state)
{
    (void)state;
    check_vocab("bert-bge");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama_spm),
        cmocka_unit_test(test_deepseek_llm),
        cmocka_unit_test(test_bert_bge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
