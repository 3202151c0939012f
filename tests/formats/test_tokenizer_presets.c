/* The built-in pre-tokenizers against huggingface/tokenizers (tests/oracles/make_presets_golden.py). */
#include "tok_helpers.h"

static void compile(base_env *env, const char *name, fmt_tok_split *s)
{
    weir_error err = {0};
    const fmt_tok_preset *p = fmt_tok_preset_find(name);
    assert_non_null(p);
    for (size_t i = 0; i < 6 && p->patterns[i] != NULL; i++) {
        require_ok(
            fmt_tok_split_add(env, s, p->patterns[i], strlen(p->patterns[i]), FMT_TOK_ISOLATED, false, &err),
            &err);
    }
}

static void check_line(base_env *env, const fmt_tok_split *s, char *hex, char *ends, size_t line_no)
{
    static char text[4096];
    weir_error err = {0};
    size_t len = 0, i = 0;
    for (; hex[0] != '-' && hex[0] != '\0' && hex[1] != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], 0};
        assert_true(len < sizeof text);
        text[len++] = (char)strtol(pair, NULL, 16);
    }
    fmt_tok_pieces pieces = {.env = env};
    require_ok(fmt_tok_split_run(env, s, text, len, &pieces, &err), &err);
    for (char *p = ends, *next; p != NULL; p = next, i++) {
        long end = strtol(p, &next, 10);
        if (next == p) break;
        if (i >= pieces.n || pieces.ends[i] != (uint32_t)end)
            fail_msg("presets.txt, line %zu: piece %zu of '%.*s' should end at %ld", line_no, i, (int)len,
                     text, end);
    }
    assert_int_equal(i, pieces.n);
    fmt_tok_pieces_finish(&pieces);
}

static void test_presets(void **state)
{
    (void)state;
    weir_error err = {0};
    base_env *env;
    char *file, *save = NULL, name[32] = "";
    size_t len, line_no = 0, n_presets = 0, n_lines = 0;
    fmt_tok_split s = {0};
    base_ledger_view view;
    require_ok(base_env_create(&env, &err), &err);
    require_ok(base_file_slurp(env, "tests/golden/presets.txt", 4 << 20, &file, &len, &err), &err);
    for (char *line = strtok_r(file, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        line_no++;
        if (line[0] == '#') continue;
        char *hex = strchr(line, ' '), *ends = hex != NULL ? strchr(hex + 1, ' ') : NULL;
        assert_non_null(hex);
        *hex++ = '\0';
        if (ends != NULL) *ends++ = '\0';
        if (strcmp(name, line) != 0) {
            snprintf(name, sizeof name, "%.31s", line);
            fmt_tok_split_finish(&s);
            compile(env, name, &s);
            n_presets++;
        }
        check_line(env, &s, hex, ends, line_no);
        n_lines++;
    }
    assert_int_equal(n_presets, 8);
    assert_true(n_lines > 8 * 150);
    fmt_tok_split_finish(&s);
    base_free(env, file);
    base_ledger_read(env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(env);
}

static void test_names(void **state)
{
    (void)state;
    assert_non_null(fmt_tok_preset_find("llama-bpe"));
    assert_ptr_equal(fmt_tok_preset_find("llama3"), fmt_tok_preset_find("llama-bpe"));
    assert_ptr_equal(fmt_tok_preset_find("deepseek-r1-qwen"), fmt_tok_preset_find("qwen2"));
    assert_true(fmt_tok_preset_find("llama-bpe")->ignore_merges);
    assert_null(fmt_tok_preset_find(""));
    assert_null(fmt_tok_preset_find(" "));
    assert_null(fmt_tok_preset_find("gpt"));
    assert_null(fmt_tok_preset_find("gpt-2 "));
    assert_null(fmt_tok_preset_find("llama"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_presets), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
