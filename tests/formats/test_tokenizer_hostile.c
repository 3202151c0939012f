/* Vocabularies that lie: each gives a clear error, or works with what is sound, and leaves nothing behind. */
#include "tok_vocab_build.h"

static const char *const abc[] = {"a", "b", "c", "ab", "abc"};

static void refuse(const vocab_spec *s, weir_status want, const char *text)
{
    loaded l;
    weir_error err = {0};
    weir_status status = try_vocab(s, &l, &err);
    if (status != want)
        fail_msg("%s (%s), wanted %s", weir_status_name(status), err.message, weir_status_name(want));
    if (strstr(err.message, text) == NULL) fail_msg("message '%s' does not say '%s'", err.message, text);
    assert_null(l.tok);
    unload(&l);
}

static void test_unknown_names(void **state)
{
    (void)state;
    const char *merges[] = {"a b"};
    refuse(&(vocab_spec){.model = "gpt2",
                         .pre = "frobnicate",
                         .tokens = abc,
                         .n_tokens = 5,
                         .merges = merges,
                         .n_merges = 1},
           WEIR_ERR_UNSUPPORTED, "frobnicate");
    refuse(&(vocab_spec){.model = "gpt2",
                         .pre = "gpt-2 phi-2",
                         .tokens = abc,
                         .n_tokens = 5,
                         .merges = merges,
                         .n_merges = 1},
           WEIR_ERR_UNSUPPORTED, "gpt-2 phi-2");
    refuse(&(vocab_spec){.model = "gpt2",
                         .tokens = abc,
                         .n_tokens = 5,
                         .merges = merges,
                         .n_merges = 1,
                         .id_key = "tokenizer.ggml.pre",
                         .id = 1},
           WEIR_ERR_FORMAT, "wanted string");
    refuse(&(vocab_spec){.model = "rwkv", .tokens = abc, .n_tokens = 5}, WEIR_ERR_UNSUPPORTED, ".gguf");
    refuse(&(vocab_spec){.model = "rwkv", .tokens = abc, .n_tokens = 5}, WEIR_ERR_UNSUPPORTED, "rwkv");
}

static void test_missing_parts(void **state)
{
    (void)state;
    float scores[5] = {0};
    refuse(&(vocab_spec){.model = "gpt2", .pre = "gpt-2"}, WEIR_ERR_TOKENIZER, "tokens");
    refuse(&(vocab_spec){.model = "gpt2", .pre = "gpt-2", .tokens = abc, .n_tokens = 5}, WEIR_ERR_TOKENIZER,
           "merges");
    refuse(&(vocab_spec){.model = "llama", .tokens = abc, .n_tokens = 5}, WEIR_ERR_TOKENIZER, "scores");
    refuse(&(vocab_spec){.model = "llama", .tokens = abc, .n_tokens = 5, .scores = scores, .n_scores = 4},
           WEIR_ERR_TOKENIZER, "4 entries for 5 tokens");
    refuse(&(vocab_spec){.model = "t5", .tokens = abc, .n_tokens = 5}, WEIR_ERR_TOKENIZER, "scores");
    int32_t types[] = {1, 1};
    refuse(&(vocab_spec){.model = "llama",
                         .tokens = abc,
                         .n_tokens = 5,
                         .scores = scores,
                         .n_scores = 5,
                         .types = types,
                         .n_types = 2},
           WEIR_ERR_TOKENIZER, "2 entries for 5 tokens");
}

static void test_merges(void **state)
{
    (void)state;
    static const char *const absent[] = {"a b", "a x"}, *const no_result[] = {"b c"},
                             *const one_part[] = {"ab"}, *const empty[] = {""};
    static const char *const no_right[] = {"ab "};
    refuse(
        &(vocab_spec){
            .model = "gpt2", .pre = "gpt-2", .tokens = abc, .n_tokens = 5, .merges = absent, .n_merges = 2},
        WEIR_ERR_TOKENIZER, "merge 1 ('a' + 'x')");
    refuse(&(vocab_spec){.model = "gpt2",
                         .pre = "gpt-2",
                         .tokens = abc,
                         .n_tokens = 5,
                         .merges = no_result,
                         .n_merges = 1},
           WEIR_ERR_TOKENIZER, "not in the vocabulary");
    refuse(
        &(vocab_spec){
            .model = "gpt2", .pre = "gpt-2", .tokens = abc, .n_tokens = 5, .merges = one_part, .n_merges = 1},
        WEIR_ERR_TOKENIZER, "two parts");
    refuse(
        &(vocab_spec){
            .model = "gpt2", .pre = "gpt-2", .tokens = abc, .n_tokens = 5, .merges = empty, .n_merges = 1},
        WEIR_ERR_TOKENIZER, "two parts");
    refuse(
        &(vocab_spec){
            .model = "gpt2", .pre = "gpt-2", .tokens = abc, .n_tokens = 5, .merges = no_right, .n_merges = 1},
        WEIR_ERR_TOKENIZER, "not in the vocabulary");
    char *big = malloc(3002);
    assert_non_null(big);
    memset(big, 'a', 3000);
    big[1500] = ' ';
    big[3000] = '\0';
    const char *const big_merges[] = {big};
    refuse(&(vocab_spec){.model = "gpt2",
                         .pre = "gpt-2",
                         .tokens = abc,
                         .n_tokens = 5,
                         .merges = big_merges,
                         .n_merges = 1},
           WEIR_ERR_UNSUPPORTED, "1500");
    free(big);
}

static void test_ids_out_of_range(void **state)
{
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    float scores[5] = {0};
    for (size_t i = 0; i < 5; i++) {
        refuse(&(vocab_spec){.model = "llama",
                             .tokens = abc,
                             .n_tokens = 5,
                             .scores = scores,
                             .n_scores = 5,
                             .id_key = keys[i],
                             .id = 5},
               WEIR_ERR_TOKENIZER, keys[i]);
        /* 2^32 - 1 is -1: none */
        loaded l;
        weir_error err = {0};
        vocab_spec none = {.model = "llama",
                           .tokens = abc,
                           .n_tokens = 5,
                           .scores = scores,
                           .n_scores = 5,
                           .id_key = keys[i],
                           .id = UINT32_MAX};
        require_ok(try_vocab(&none, &l, &err), &err);
        unload(&l);
    }
}

static void test_bad_bytes(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<0x-1>", "a"};
    float scores[2] = {0};
    int32_t types[2] = {FMT_TOK_BYTE, FMT_TOK_NORMAL};
    vocab_spec s = {.model = "llama",
                    .tokens = tokens,
                    .n_tokens = 2,
                    .scores = scores,
                    .n_scores = 2,
                    .types = types,
                    .n_types = 2};
    refuse(&s, WEIR_ERR_TOKENIZER, "<0x-1>");
    static const char *const longer[] = {"<0x100>", "a"}, *const none[] = {"", "a"};
    s.tokens = longer;
    refuse(&s, WEIR_ERR_TOKENIZER, "<0x100>");
    s.tokens = none;
    refuse(&s, WEIR_ERR_TOKENIZER, "byte");
    scores[1] = (float)(0.0 / strtod("0", NULL));
    types[0] = FMT_TOK_NORMAL;
    refuse(&s, WEIR_ERR_TOKENIZER, "score of token 1");
}

static void test_long_token(void **state)
{
    (void)state;
    char *text = calloc(1, 70001);
    assert_non_null(text);
    memset(text, 'x', 70000);
    const char *const tokens[] = {"a", text};
    float scores[2] = {0};
    refuse(&(vocab_spec){.model = "llama", .tokens = tokens, .n_tokens = 2, .scores = scores, .n_scores = 2},
           WEIR_ERR_TOKENIZER, "70000 bytes");
    free(text);
}

/* A string's length in the file may claim anything; whoever reads it must notice. */
static void test_lying_length(void **state)
{
    (void)state;
    float scores[5] = {0};
    vocab_spec s = {.model = "llama", .tokens = abc, .n_tokens = 5, .scores = scores, .n_scores = 5};
    for (int k = 0; k < 4; k++) {
        static const uint64_t lies[] = {UINT64_C(0xffffffffffffffff), UINT64_C(0x80000000),
                                        UINT64_C(0x7fffffff), 40};
        char path[512];
        weir_error err = {0};
        loaded l = {0};
        temp_path(path, sizeof path, "lie");
        require_ok(base_env_create(&l.env, &err), &err);
        write_vocab(l.env, path, &s);
        char *file;
        size_t len;
        require_ok(base_file_slurp(l.env, path, 1 << 20, &file, &len, &err), &err);
        /* "abc" stands behind its length */
        size_t at = 0;
        while (at + 11 <= len && memcmp(file + at, "\3\0\0\0\0\0\0\0abc", 11) != 0) at++;
        assert_true(at + 11 <= len);
        for (int i = 0; i < 8; i++) file[at + (size_t)i] = (char)(lies[k] >> 8 * i);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(file, 1, len, f), len);
        fclose(f);
        weir_status status = fmt_model_open(l.env, path, &l.model, &err);
        if (status == WEIR_OK) status = fmt_tokenizer_create(l.env, l.model, &l.tok, &err);
        assert_int_not_equal(status, WEIR_OK);
        base_free(l.env, file);
        unlink(path);
        unload(&l);
    }
}

/* Empty and repeated texts occur in real files: the first of equals is found, the empty one never. */
static void test_empty_and_repeated(void **state)
{
    (void)state;
    static const char *const tokens[] = {"", "a", "a", "b", ""};
    float scores[5] = {0, -1, -2, -3, 0};
    vocab_spec s = {.model = "llama",
                    .tokens = tokens,
                    .n_tokens = 5,
                    .scores = scores,
                    .n_scores = 5,
                    .id_key = "tokenizer.ggml.unknown_token_id",
                    .id = 0};
    weir_error err = {0};
    loaded l;
    require_ok(try_vocab(&s, &l, &err), &err);
    assert_int_equal(fmt_tokenizer_find(l.tok, "a", 1), 1);
    assert_int_equal(fmt_tokenizer_find(l.tok, "", 0), -1);
    int32_t *ids;
    size_t n;
    require_ok(fmt_tokenizer_encode(l.tok, "ba", 2, FMT_ENCODE_NO_PREFIX, &ids, &n, &err), &err);
    assert_ids("ba", ids, n, (int32_t[]){3, 1}, 2);
    base_free(l.env, ids);
    const char *text;
    size_t len;
    assert_true(fmt_tokenizer_token(l.tok, 4, &text, &len));
    assert_int_equal(len, 0);
    assert_false(fmt_tokenizer_token(l.tok, 5, &text, &len));
    assert_false(fmt_tokenizer_token(l.tok, -1, &text, &len));
    unload(&l);
}

/* Every allocation fails once: the error is the documented one and the ledger goes back to where it was. */
static void test_failing_allocations(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b", "ab c"};
    vocab_spec s = {
        .model = "gpt2", .pre = "llama-bpe", .tokens = abc, .n_tokens = 5, .merges = merges, .n_merges = 2};
    weir_error err = {0};
    loaded l;
    require_ok(try_vocab(&s, &l, &err), &err);
    fmt_tokenizer_destroy(l.tok);
    l.tok = NULL;
    base_ledger_view before, after;
    base_ledger_read(l.env, &before);
    size_t n_failed = 0;
    for (uint64_t k = 0; k < 200; k++) {
        base_fault_clear(l.env);
        base_fault_rule rule = {.site = BASE_FAULT_HOST_ALLOC, .after = k, .length = -1};
        require_ok(base_fault_arm(l.env, &rule, &err), &err);
        fmt_tokenizer *tok;
        int32_t *ids = NULL;
        size_t n;
        weir_status status = fmt_tokenizer_create(l.env, l.model, &tok, &err);
        if (status == WEIR_OK)
            status = fmt_tokenizer_encode(tok, "abc cab", 7, FMT_ENCODE_SPECIAL, &ids, &n, &err);
        base_fault_clear(l.env);
        base_free(l.env, ids);
        fmt_tokenizer_destroy(tok);
        base_ledger_read(l.env, &after);
        assert_int_equal(after.bytes, before.bytes);
        if (status == WEIR_OK) break;
        assert_int_equal(status, WEIR_ERR_OUT_OF_MEMORY);
        n_failed++;
    }
    assert_in_range(n_failed, 15, 150);
    unload(&l);
}

/* Hidden quadratic costs would show as minutes here. */
static void test_long_words(void **state)
{
    (void)state;
    static const char *const tokens[] = {"a", "aa", "aaaa", "aaaaaaaa", "b"};
    static const char *const merges[] = {"a a", "aa aa", "aaaa aaaa"};
    vocab_spec s = {
        .model = "gpt2", .pre = "gpt-2", .tokens = tokens, .n_tokens = 5, .merges = merges, .n_merges = 3};
    weir_error err = {0};
    loaded l;
    require_ok(try_vocab(&s, &l, &err), &err);
    size_t len = 1 << 20, n;
    char *text = malloc(len);
    assert_non_null(text);
    memset(text, 'a', len);
    int32_t *ids;
    require_ok(fmt_tokenizer_encode(l.tok, text, len, 0, &ids, &n, &err), &err);
    assert_int_equal(n, len / 8);
    assert_int_equal(ids[n - 1], 3);
    base_free(l.env, ids);
    memset(text, ' ', len);
    require_ok(fmt_tokenizer_encode(l.tok, text, len, 0, &ids, &n, &err), &err);
    base_free(l.env, ids);
    free(text);
    unload(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_missing_parts),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_ids_out_of_range),
        cmocka_unit_test(test_bad_bytes),
        cmocka_unit_test(test_long_token),
        cmocka_unit_test(test_lying_length),
        cmocka_unit_test(test_empty_and_repeated),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_long_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
