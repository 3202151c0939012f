/* Ids back to text: whole characters only, spaces and bytes as each kind has them, and nothing lost on the
 * way. */
#include "tok_vocab_build.h"

static loaded load_shared(const char *name)
{
    char path[512], file[128];
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    data_path(path, sizeof path, file);
    if (!base_file_exists(path)) skip();
    return load(path);
}

static int32_t *encode(const loaded *l, const char *text, size_t len, int flags, size_t *n)
{
    weir_error err = {0};
    int32_t *ids;
    require_ok(fmt_tokenizer_encode(l->tok, text, len, flags, &ids, n, &err), &err);
    return ids;
}

static void assert_text(const base_buf *b, const char *want)
{
    if (b->len != strlen(want) || memcmp(b->data, want, b->len) != 0)
        fail_msg("'%.*s', wanted '%s'", (int)b->len, b->data, want);
}

/* After every token what went out is valid by itself. */
static void check_stream(const loaded *l, const char *text, const char *want)
{
    weir_error err = {0};
    size_t n;
    int32_t *ids = encode(l, text, strlen(text), 0, &n);
    fmt_detok d = {0};
    base_buf out;
    size_t n_silent = 0, before = 0;
    base_buf_init(&out, l->env, BASE_TAG_RUNTIME);
    for (size_t i = 0; i < n; i++) {
        require_ok(fmt_detok_push(l->tok, &d, ids[i], &out, &err), &err);
        assert_true(out.len == 0 || fmt_utf8_is_valid(out.data, out.len));
        n_silent += out.len == before;
        before = out.len;
    }
    assert_true(n_silent > 0);
    require_ok(fmt_detok_flush(l->tok, &d, &out, &err), &err);
    assert_text(&out, want);
    base_buf_finish(&out);
    base_free(l->env, ids);
}

#define EMOJI                                                                                                \
    "\xf0\x9f\xa6\x99\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9 \xe4\xbd\xa0\xe5\xa5\xbd "                 \
    "\xe1\x9e\x80\xe1\x9f\x8b"

static void test_stream_bpe(void **state)
{
    (void)state;
    loaded l = load_shared("gpt-2");
    check_stream(&l, EMOJI, EMOJI);
    unload(&l);
}

static void test_stream_spm(void **state)
{
    (void)state;
    loaded l = load_shared("llama-spm");
    check_stream(&l, EMOJI, EMOJI);
    unload(&l);
}

static int32_t byte_id(const loaded *l, unsigned byte)
{
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", byte);
    int32_t id = fmt_tokenizer_find(l->tok, text, 6);
    assert_true(id >= 0);
    return id;
}

static void check_bytes(const loaded *l, const char *bytes, size_t n, const char *want)
{
    int32_t ids[16];
    base_buf out;
    for (size_t i = 0; i < n; i++) ids[i] = byte_id(l, (unsigned char)bytes[i]);
    detokenize(l, ids, n, false, &out);
    assert_text(&out, want);
    base_buf_finish(&out);
}

#define BAD "\xef\xbf\xbd"

static void test_bytes(void **state)
{
    (void)state;
    loaded l = load_shared("llama-spm");
    check_bytes(&l, "\xc3\xa9", 2, "\xc3\xa9");
    check_bytes(&l, "\xc3", 1, BAD);     /* flushed unfinished */
    check_bytes(&l, "\xe2\x82", 2, BAD); /* one character for what is left */
    check_bytes(&l,
                "\xff"
                "a",
                2, BAD "a");
    check_bytes(&l,
                "\xc3"
                "a",
                2, BAD "a");
    check_bytes(&l,
                "\xe2\x82"
                "a",
                3, BAD BAD "a");
    check_bytes(&l, "\xf0\x9f\xc3\xa9", 4, BAD BAD "\xc3\xa9");
    check_bytes(&l, "\x80\x80", 2, BAD BAD);
    check_bytes(&l, "\xc0\xaf", 2, BAD BAD);                    /* overlong */
    check_bytes(&l, "\xed\xa0\x80", 3, BAD BAD BAD);            /* a surrogate */
    check_bytes(&l, "\xf4\x90\x80\x80", 4, BAD BAD BAD BAD);    /* beyond U+10FFFF */
    check_bytes(&l, "\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf"); /* U+10FFFF itself */
    unload(&l);
}

static void check_back(const loaded *l, const char *text, int flags, bool special, const char *want)
{
    size_t n;
    base_buf out;
    int32_t *ids = encode(l, text, strlen(text), flags, &n);
    detokenize(l, ids, n, special, &out);
    assert_text(&out, want);
    base_buf_finish(&out);
    base_free(l->env, ids);
}

static void test_spaces_spm(void **state)
{
    (void)state;
    loaded l = load_shared("llama-spm");
    check_back(&l, "Hello", 0, false, "Hello");
    check_back(&l, " Hello", 0, false, " Hello");
    check_back(&l, "  a  b ", 0, false, "  a  b ");
    check_back(&l, "Hello", FMT_ENCODE_BOS, false, "Hello");
    check_back(&l, "Hello", FMT_ENCODE_BOS, true, "<s>Hello");
    check_back(&l, "\n", 0, false, "\n");
    /* An answer in the middle of a text keeps its space. */
    fmt_detok d = {.started = true};
    weir_error err = {0};
    size_t n;
    int32_t *ids = encode(&l, "Hello", 5, 0, &n);
    base_buf out;
    base_buf_init(&out, l.env, BASE_TAG_RUNTIME);
    for (size_t i = 0; i < n; i++) require_ok(fmt_detok_push(l.tok, &d, ids[i], &out, &err), &err);
    assert_text(&out, " Hello");
    base_buf_finish(&out);
    base_free(l.env, ids);
    /* No dummy space in front. */
    ids = encode(&l, "Hello", 5, FMT_ENCODE_NO_PREFIX, &n);
    const char *text;
    size_t len;
    assert_true(fmt_tokenizer_token(l.tok, ids[0], &text, &len));
    assert_true(len > 0 && text[0] == 'H');
    base_free(l.env, ids);
    unload(&l);
}

static void test_special(void **state)
{
    (void)state;
    loaded l = load_shared("gpt-2");
    fmt_tokenizer_info info;
    fmt_tokenizer_get_info(l.tok, &info);
    assert_string_equal(info.kind, "bpe");
    assert_string_equal(info.pre, "gpt-2");
    assert_int_equal(info.n_vocab, 50257);
    assert_int_equal(info.eos, 50256);
    assert_true(fmt_tokenizer_is_end(l.tok, 50256));
    assert_true(fmt_tokenizer_is_special(l.tok, 50256));
    assert_false(fmt_tokenizer_is_special(l.tok, 0));
    check_back(&l, "a<|endoftext|>b", FMT_ENCODE_SPECIAL, false, "ab");
    check_back(&l, "a<|endoftext|>b", FMT_ENCODE_SPECIAL, true, "a<|endoftext|>b");
    check_back(&l, "a<|endoftext|>b", 0, false, "a<|endoftext|>b");
    fmt_detok d = {0};
    base_buf out;
    weir_error err = {0};
    base_buf_init(&out, l.env, BASE_TAG_RUNTIME);
    assert_int_equal(fmt_detok_push(l.tok, &d, 50257, &out, &err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(fmt_detok_push(l.tok, &d, -1, &out, &err), WEIR_ERR_INVALID_ARGUMENT);
    base_buf_finish(&out);
    unload(&l);
}

/* What the model's own texts call ends: EOS and the turn's end, not what merely looks like one. */
static void test_ends(void **state)
{
    (void)state;
    char path[512];
    model_path(path, sizeof path, "SmolLM2-135M-Instruct.Q4_1.gguf");
    if (!base_file_exists(path)) skip();
    loaded l = load(path);
    assert_true(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "<|im_end|>", 10)));
    assert_true(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "<|endoftext|>", 13)));
    assert_false(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "<|im_start|>", 12)));
    assert_false(fmt_tokenizer_is_end(l.tok, -1));
    unload(&l);
    model_path(path, sizeof path, "gemma3-270m-q4_k_m.gguf");
    if (!base_file_exists(path)) skip();
    l = load(path);
    assert_true(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "<eos>", 5)));
    assert_true(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "<end_of_turn>", 13)));
    assert_false(fmt_tokenizer_is_end(l.tok, fmt_tokenizer_find(l.tok, "</s>", 4)));
    unload(&l);
}

/* No text has more bytes than its tokens times what one is said to give at most. */
static void check_most(const loaded *l, uint32_t want, uint64_t seed)
{
    fmt_tokenizer_info info;
    fmt_tokenizer_get_info(l->tok, &info);
    assert_int_equal(info.most_text, want);
    base_rng rng;
    base_rng_seed(&rng, seed, 1);
    for (uint32_t id = 0; id < info.n_vocab; id++) {
        int32_t ids[4] = {(int32_t)id};
        uint32_t n = 1 + base_rng_u32(&rng) % 4;
        for (uint32_t i = 1; i < n; i++) ids[i] = (int32_t)(base_rng_u32(&rng) % info.n_vocab);
        base_buf out;
        detokenize(l, ids, n, false, &out);
        assert_true(out.len <= (size_t)n * want);
        base_buf_finish(&out);
    }
}

static void test_most(void **state)
{
    (void)state;
    loaded l = load_shared("gpt-2");
    check_most(&l, 128, 21);
    unload(&l);
    l = load_shared("llama-spm");
    check_most(&l, 27, 22);
    unload(&l);
    /* Three bytes that are no UTF-8 become three replacement characters; the special token is silent. */
    static const char *const tokens[] = {"a", "\xc4\xa2\xc4\xa2\xc4\xa2", "\xc3\xa2\xc4\xa4",
                                         "<|a long special token|>"};
    static const int32_t types[] = {1, 1, 1, 3};
    static const char *const merges[] = {"a a"};
    const vocab_spec spec = {.model = "gpt2",
                             .pre = "gpt-2",
                             .tokens = tokens,
                             .n_tokens = 4,
                             .merges = merges,
                             .n_merges = 0,
                             .types = types,
                             .n_types = 4};
    weir_error err = {0};
    require_ok(try_vocab(&spec, &l, &err), &err);
    check_most(&l, 9, 23);
    unload(&l);
}

/* Random valid UTF-8, from all planes and with a liking for what tokenizers treat specially. */
static size_t random_text(base_rng *rng, char *out, size_t cap)
{
    static const uint32_t liked[] = {' ',     ' ', ' ',    '\n', '\t',  '\r',   '\'', 's',    'a',
                                     'T',     '0', '9',    '.',  0x301, 0x200d, 0xa0, 0x3000, 0x4e2d,
                                     0x1f600, 0,   0xfffd, 0x85, '<',   '|',    '>'};
    size_t n = 0, want = base_rng_u32(rng) % 60;
    for (size_t i = 0; i < want && n + 4 < cap; i++) {
        uint32_t cp = base_rng_u32(rng) % 0x110000;
        switch (base_rng_u32(rng) % 4) {
        case 0: break;
        case 1: cp %= 0x800; break;
        default: cp = liked[cp % (sizeof liked / sizeof liked[0])]; break;
        }
        if (cp >= 0xd800 && cp <= 0xdfff) cp = 0xd7ff;
        n += fmt_utf8_encode(cp, out + n);
    }
    return n;
}

/* Some byte-level vocabularies have no tokens for bytes that are rare in UTF-8. */
static bool is_covered(const loaded *l, const char *text, size_t len)
{
    char utf8[4];
    for (size_t i = 0; i < len && l->tok->byte_level; i++) {
        if (fmt_tokenizer_find(l->tok, utf8, fmt_utf8_encode(fmt_byte_to_cp((uint8_t)text[i]), utf8)) < 0)
            return false;
    }
    return true;
}

static void check_round_trip(const loaded *l, uint64_t seed, size_t n_texts)
{
    base_rng rng;
    char text[512];
    size_t n_left_out = 0;
    base_rng_seed(&rng, seed, 1);
    for (size_t k = 0; k < n_texts; k++) {
        size_t len = random_text(&rng, text, sizeof text), n;
        if (!is_covered(l, text, len)) {
            n_left_out++;
            continue;
        }
        int32_t *ids = encode(l, text, len, 0, &n);
        base_buf out;
        detokenize(l, ids, n, false, &out);
        if (out.len != len || memcmp(out.data, text, len) != 0)
            fail_msg("seed %llu: text %zu does not come back", (unsigned long long)seed, k);
        base_buf_finish(&out);
        base_free(l->env, ids);
    }
    print_message("seed %llu: %zu of %zu texts left out\n", (unsigned long long)seed, n_left_out, n_texts);
    assert_true(n_left_out < n_texts / 20 * 19);
}

static void test_round_trip_gpt2(void **state)
{
    (void)state;
    loaded l = load_shared("gpt-2");
    check_round_trip(&l, 11, 3000);
    unload(&l);
}

static void test_round_trip_spm(void **state)
{
    (void)state;
    loaded l = load_shared("llama-spm");
    check_round_trip(&l, 12, 2000);
    unload(&l);
}

static void test_round_trip_models(void **state)
{
    (void)state;
    static const char *const names[] = {"SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m-q4_k_m.gguf"};
    for (size_t i = 0; i < 2; i++) {
        char path[512];
        model_path(path, sizeof path, names[i]);
        if (!base_file_exists(path)) skip();
        loaded l = load(path);
        check_round_trip(&l, 13 + i, 2000);
        unload(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_bpe),     cmocka_unit_test(test_stream_spm),
        cmocka_unit_test(test_bytes),          cmocka_unit_test(test_spaces_spm),
        cmocka_unit_test(test_special),        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_most),           cmocka_unit_test(test_round_trip_gpt2),
        cmocka_unit_test(test_round_trip_spm), cmocka_unit_test(test_round_trip_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
