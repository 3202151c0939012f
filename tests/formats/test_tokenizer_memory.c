/* What a vocabulary costs, on the ledger. */
#include "tok_helpers.h"

static void check_cost(const char *path, uint64_t max_bytes)
{
    if (!base_file_exists(path)) skip();
    loaded l = load(path);
    base_ledger_view view;
    fmt_tokenizer_info info;
    fmt_tokenizer_get_info(l.tok, &info);
    base_ledger_read(l.env, &view);
    print_message("%s: %u tokens, %llu bytes held, %llu at the peak\n", info.kind, info.n_vocab,
                  (unsigned long long)view.tag_bytes[BASE_TAG_TOKENIZER],
                  (unsigned long long)view.tag_peak_bytes[BASE_TAG_TOKENIZER]);
    assert_true(view.tag_bytes[BASE_TAG_TOKENIZER] > 8ull * info.n_vocab);
    assert_in_range(view.tag_bytes[BASE_TAG_TOKENIZER], 1, max_bytes);
    assert_in_range(view.tag_peak_bytes[BASE_TAG_TOKENIZER], 1, max_bytes);
    unload(&l);
}

#define MIB (1024ull * 1024)

static void test_gemma3(void **state)
{
    (void)state;
    char path[512];
    model_path(path, sizeof path, "gemma3-270m-q4_k_m.gguf");
    check_cost(path, 9 * MIB);
}

/* 49,152 tokens: their share of 9 MiB, and as much again for merges and what is fixed. */
static void test_smollm2(void **state)
{
    (void)state;
    char path[512];
    model_path(path, sizeof path, "SmolLM2-135M-Instruct.Q4_1.gguf");
    check_cost(path, 49152 * 36 + 256 * 1024);
}

static void check_shared(const char *name, uint64_t n_tokens)
{
    char path[512], file[128];
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    data_path(path, sizeof path, file);
    check_cost(path, n_tokens * 36 + 256 * 1024);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_shared("gpt-2", 50257);
}
static void test_deepseek_llm(void **state)
{
    (void)state;
    check_shared("deepseek-llm", 102400);
}
static void test_llama_spm(void **state)
{
    (void)state;
    check_shared("llama-spm", 32000);
}
static void test_bert_bge(void **state)
{
    (void)state;
    check_shared("bert-bge", 30522);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma3),    cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gpt2),      cmocka_unit_test(test_deepseek_llm),
        cmocka_unit_test(test_llama_spm), cmocka_unit_test(test_bert_bge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
