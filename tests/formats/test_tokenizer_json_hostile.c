/* tokenizer.json files that lie or ask for what we do not have: sound ones with one thing changed. */
#define _GNU_SOURCE
#include "tok_helpers.h"

#include <sys/stat.h>
#include <unistd.h>

typedef struct folder {
    base_env *env;
    char path[300];
    char *json; /* the sound tokenizer.json */
    size_t len;
} folder;

static const char *const side_files[] = {"config.json", "model.safetensors", "tokenizer_config.json"};

static void write_file(const folder *f, const char *name, const void *data, size_t len)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    fclose(out);
}

static folder open_folder(const char *kind)
{
    folder f = {0};
    weir_error err = {0};
    char path[512], *data;
    size_t len;
    const char *dir = getenv("TMPDIR");
    snprintf(f.path, sizeof f.path, "%s/weir_tok_json_XXXXXX", dir != NULL ? dir : "/tmp");
    assert_non_null(mkdtemp(f.path));
    require_ok(base_env_create(&f.env, &err), &err);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "tests/golden/hf_tok_%s/%s", kind, side_files[i]);
        require_ok(base_file_slurp(f.env, path, 1 << 20, &data, &len, &err), &err);
        write_file(&f, side_files[i], data, len);
        base_free(f.env, data);
    }
    snprintf(path, sizeof path, "tests/golden/hf_tok_%s/tokenizer.json", kind);
    require_ok(base_file_slurp(f.env, path, 1 << 20, &f.json, &f.len, &err), &err);
    return f;
}

static void close_folder(folder *f)
{
    char path[512];
    base_ledger_view view;
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", f->path, i < 3 ? side_files[i] : "tokenizer.json");
        unlink(path);
    }
    rmdir(f->path);
    base_free(f->env, f->json);
    base_ledger_read(f->env, &view);
    assert_int_equal(view.bytes, 0);
    base_env_destroy(f->env);
}

static weir_status try_json(const folder *f, const void *json, size_t len, weir_error *err)
{
    fmt_model *m;
    fmt_tokenizer *t = NULL;
    base_ledger_view before, after;
    *err = (weir_error){0};
    write_file(f, "tokenizer.json", json, len);
    base_ledger_read(f->env, &before);
    require_ok(fmt_model_open(f->env, f->path, &m, err), err);
    weir_status status = fmt_tokenizer_create(f->env, m, &t, err);
    if (status == WEIR_OK) {
        int32_t *ids;
        size_t n;
        require_ok(fmt_tokenizer_encode(t, "the GNU General\n", 16, FMT_ENCODE_SPECIAL, &ids, &n, err), err);
        base_free(f->env, ids);
    }
    fmt_tokenizer_destroy(t);
    fmt_model_close(m);
    base_ledger_read(f->env, &after);
    assert_int_equal(after.bytes, before.bytes);
    return status;
}

/* The sound file with the first `from` replaced. */
static void refuse(const folder *f, const char *from, const char *to, weir_status want, const char *text)
{
    weir_error err;
    const char *at = memmem(f->json, f->len, from, strlen(from));
    if (at == NULL) fail_msg("'%s' does not occur", from);
    size_t head = (size_t)(at - f->json), tail = f->len - head - strlen(from), len = head + strlen(to) + tail;
    char *json = malloc(len);
    assert_non_null(json);
    memcpy(json, f->json, head);
    memcpy(json + head, to, strlen(to));
    memcpy(json + head + strlen(to), at + strlen(from), tail);
    weir_status status = try_json(f, json, len, &err);
    free(json);
    if (status != want)
        fail_msg("'%s' for '%s': %s (%s), wanted %s", to, from, weir_status_name(status), err.message,
                 weir_status_name(want));
    if (strstr(err.message, text) == NULL) fail_msg("message '%s' does not say '%s'", err.message, text);
}

static void test_changed(void **state)
{
    (void)state;
    weir_error err;
    folder f = open_folder("llama3");
    require_ok(try_json(&f, f.json, f.len, &err), &err);
    refuse(&f, "\"<|im_end|>\":2", "\"<|im_end|>\":4000000000", WEIR_ERR_TOKENIZER, "4000000000");
    refuse(&f, "\"<|im_end|>\":2", "\"<|im_end|>\":-2", WEIR_ERR_FORMAT, "whole number");
    refuse(&f, "\"<|im_end|>\":2", "\"<|im_end|>\":1", WEIR_ERR_TOKENIZER, "two different tokens");
    refuse(&f, "\"id\":2,\"content\":\"<|im_end|>\"", "\"id\":2,\"content\":\"<|im_END|>\"",
           WEIR_ERR_TOKENIZER, "two different tokens");
    refuse(&f, "\"id\":2,\"content\"", "\"content\"", WEIR_ERR_TOKENIZER, "without id");
    refuse(&f, "\"merges\":[[", "\"merges\":[[\"no such part\",\"x\"],[", WEIR_ERR_TOKENIZER, "no such part");
    refuse(&f, "\"merges\":[[", "\"merges\":[\"nospace\",[", WEIR_ERR_TOKENIZER, "two parts");
    refuse(&f, "\"merges\":[[", "\"merges\":[[\"a\",\"b\",\"c\"],[", WEIR_ERR_FORMAT, "third");
    refuse(&f, "\"merges\":", "\"murges\":", WEIR_ERR_TOKENIZER, "no merges");
    refuse(&f, "\"vocab\":", "\"vocap\":", WEIR_ERR_TOKENIZER, "no vocabulary");
    refuse(&f, "\"model\":", "\"mode\":", WEIR_ERR_TOKENIZER, "model");
    close_folder(&f);
}

static void test_unsupported(void **state)
{
    (void)state;
    folder f = open_folder("llama3");
    refuse(&f, "\"type\":\"BPE\"", "\"type\":\"WordLevel\"", WEIR_ERR_UNSUPPORTED, "WordLevel");
    refuse(&f, "\"type\":\"NFC\"", "\"type\":\"StripAccents\"", WEIR_ERR_UNSUPPORTED, "StripAccents");
    refuse(&f, "\"type\":\"Split\"", "\"type\":\"BertPreTokenizer\"", WEIR_ERR_UNSUPPORTED,
           "BertPreTokenizer");
    refuse(&f, "\"behavior\":\"Isolated\"", "\"behavior\":\"Sideways\"", WEIR_ERR_UNSUPPORTED, "Split");
    refuse(&f, "(?i:", "(?i:(", WEIR_ERR_UNSUPPORTED, "pattern");
    refuse(&f, "(?i:", "[a&&b](?i:", WEIR_ERR_UNSUPPORTED, "&&");
    refuse(&f, "\"type\":\"TemplateProcessing\"", "\"type\":\"BertProcessing\"", WEIR_ERR_UNSUPPORTED,
           "BertProcessing");
    refuse(&f, "\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
           WEIR_ERR_UNSUPPORTED, "##");
    refuse(&f, "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"CTC\"", WEIR_ERR_UNSUPPORTED,
           "CTC");
    close_folder(&f);
}

/* Cut off anywhere the file is no JSON any more. */
static void test_truncated(void **state)
{
    (void)state;
    folder f = open_folder("unigram");
    for (size_t len = 1; len < f.len; len += f.len / 97 + 1) {
        weir_error err;
        assert_int_equal(try_json(&f, f.json, len, &err), WEIR_ERR_FORMAT);
    }
    close_folder(&f);
}

/* One byte changed: any outcome but a crash, a leak or an endless wait. */
static void test_garbled(void **state)
{
    (void)state;
    folder f = open_folder("spbpe");
    base_rng rng;
    weir_error err;
    size_t n_refused = 0;
    base_rng_seed(&rng, 5, 5);
    for (int k = 0; k < 300; k++) {
        size_t at = base_rng_u32(&rng) % f.len;
        char kept = f.json[at];
        f.json[at] = (char)(base_rng_u32(&rng) % 256);
        n_refused += try_json(&f, f.json, f.len, &err) != WEIR_OK;
        f.json[at] = kept;
    }
    assert_true(n_refused > 100);
    close_folder(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_garbled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
