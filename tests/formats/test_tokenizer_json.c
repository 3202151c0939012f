/* tokenizer.json: small tokenizers of each kind against huggingface/tokenizers
 * (tests/oracles/make_hf_tokenizer_golden.py). */
#define _GNU_SOURCE
#include "tok_helpers.h"

static size_t unhex(const char *hex, char *out, size_t cap)
{
    size_t n = 0;
    for (; hex[0] != '\0' && hex[1] != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], 0};
        assert_true(n < cap);
        out[n++] = (char)strtol(pair, NULL, 16);
    }
    return n;
}

static void check_case(const loaded *l, size_t i, const char *text, size_t len, char *ids_line,
                       const char *back, size_t back_len)
{
    weir_error err = {0};
    char what[64];
    int32_t want[2048], *ids;
    size_t n_want = 0, n;
    char *p = ids_line;
    for (char *next; n_want < 2048; p = next) {
        long id = strtol(p, &next, 10);
        if (next == p) break;
        want[n_want++] = (int32_t)id;
    }
    snprintf(what, sizeof what, "text %zu", i);
    require_ok(fmt_tokenizer_encode(l->tok, text, len, FMT_ENCODE_SPECIAL, &ids, &n, &err), &err);
    assert_ids(what, ids, n, want, n_want);
    base_free(l->env, ids);
    base_buf out;
    detokenize(l, want, n_want, false, &out);
    if (out.len != back_len || memcmp(out.data, back, back_len) != 0) {
        fail_msg("%s: text back '%.*s', wanted '%.*s'", what, (int)out.len, out.data, (int)back_len, back);
    }
    base_buf_finish(&out);
}

static loaded load_kind(const char *kind)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/hf_tok_%s", kind);
    return load(path);
}

static void check_kind(const char *kind, const char *info_kind)
{
    char path[256];
    weir_error err = {0};
    loaded l = load_kind(kind);
    fmt_tokenizer_info info;
    fmt_tokenizer_get_info(l.tok, &info);
    assert_string_equal(info.kind, info_kind);
    assert_int_equal(info.bos, fmt_tokenizer_find(l.tok, "<|endoftext|>", 13));
    assert_int_equal(info.eos, fmt_tokenizer_find(l.tok, "<|im_end|>", 10));
    assert_true(info.add_bos && !info.add_eos);
    assert_true(fmt_tokenizer_is_end(l.tok, info.eos));
    char *file;
    size_t len, n_cases = 0;
    snprintf(path, sizeof path, "tests/golden/hf_tok_%s/cases.txt", kind);
    require_ok(base_file_slurp(l.env, path, 1 << 20, &file, &len, &err), &err);
    char *line = strtok(file, "\n"), *ids_line = NULL;
    static char text[8192], back[8192];
    size_t text_len = 0, back_len;
    for (; line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "text ", 5) == 0) text_len = unhex(line + 5, text, sizeof text);
        if (strncmp(line, "ids", 3) == 0) ids_line = line + 3;
        if (strncmp(line, "back ", 5) != 0) continue;
        back_len = unhex(line + 5, back, sizeof back);
        check_case(&l, n_cases++, text, text_len, ids_line, back, back_len);
    }
    assert_true(n_cases > 180);
    base_free(l.env, file);
    unload(&l);
}

static void test_llama3(void **state)
{
    (void)state;
    check_kind("llama3", "bpe");
}
static void test_smollm(void **state)
{
    (void)state;
    check_kind("smollm", "bpe");
}
static void test_prefix(void **state)
{
    (void)state;
    check_kind("prefix", "bpe");
}
static void test_spbpe(void **state)
{
    (void)state;
    check_kind("spbpe", "bpe");
}
static void test_unigram(void **state)
{
    (void)state;
    check_kind("unigram", "unigram");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3), cmocka_unit_test(test_smollm),  cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_spbpe),  cmocka_unit_test(test_unigram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
