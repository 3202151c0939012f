/* The side files of a Hugging Face folder: which are there, and the ids that end an answer. */
#include "fmt_hf_config.h"

#include <string.h>

#define MAX_TEMPLATE_BYTES (1024u * 1024)
#define MAX_EOS_IDS        64u

typedef struct eos_ids {
    int32_t id[MAX_EOS_IDS];
    uint32_t n;
} eos_ids;

static weir_status add_id(const fmt_hf_doc *d, const json_t *v, eos_ids *ids, weir_error *err)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"eos_token_id\" is no token id", d->path);
    for (uint32_t i = 0; i < ids->n; i++)
        if (ids->id[i] == id) return WEIR_OK;
    if (ids->n == MAX_EOS_IDS)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: more than %u ids in \"eos_token_id\"", d->path,
                         MAX_EOS_IDS);
    ids->id[ids->n++] = (int32_t)id;
    return WEIR_OK;
}

/* A number or a list of them. */
static weir_status add_eos(const fmt_hf_doc *d, const json_t *o, eos_ids *ids, weir_error *err)
{
    const json_t *v = fmt_hf_get(o, "eos_token_id");
    weir_status s = WEIR_OK;
    if (v == NULL) return WEIR_OK;
    if (!json_is_array(v)) return add_id(d, v, ids, err);
    for (size_t i = 0; i < json_array_size(v) && s == WEIR_OK; i++)
        s = add_id(d, json_array_get(v, i), ids, err);
    return s;
}

/* The first of the documents that has the key decides. */
static weir_status put_id(fmt_model *m, const fmt_hf_doc *const docs[3], const json_t *const objects[3],
                          const char *from, const char *to, weir_error *err)
{
    int64_t id = -1;
    for (int i = 0; i < 3 && id < 0; i++) {
        weir_status s = fmt_hf_int(docs[i], objects[i], from, -1, 0, INT32_MAX, &id, err);
        if (s != WEIR_OK) return s;
    }
    return id < 0 ? WEIR_OK : fmt_model_put_u32(m, to, (uint32_t)id, err);
}

/* generation_config.json rules, config.json completes it: every id that either calls an end is one. */
static weir_status put_ids(fmt_model *m, const fmt_hf_doc *config, const fmt_hf_doc *generation,
                           weir_error *err)
{
    const fmt_hf_doc *const docs[3] = {generation, config, config};
    const json_t *const objects[3] = {generation->root, config->root,
                                      fmt_hf_get(config->root, "text_config")};
    eos_ids ids = {.n = 0};
    weir_status s = WEIR_OK;
    for (int i = 0; i < 3 && s == WEIR_OK; i++) s = add_eos(docs[i], objects[i], &ids, err);
    if (s == WEIR_OK && ids.n > 0)
        s = fmt_model_put_u32(m, "tokenizer.ggml.eos_token_id", (uint32_t)ids.id[0], err);
    if (s == WEIR_OK && ids.n > 1) {
        unsigned char bytes[4 * MAX_EOS_IDS];
        for (uint32_t i = 0; i < 4 * ids.n; i++)
            bytes[i] = (unsigned char)((uint32_t)ids.id[i / 4] >> 8 * (i % 4));
        s = fmt_model_put_array(m, "weir.eos_token_ids", FMT_I32, ids.n, bytes, 4 * (size_t)ids.n, err);
    }
    if (s == WEIR_OK) s = put_id(m, docs, objects, "bos_token_id", "tokenizer.ggml.bos_token_id", err);
    if (s == WEIR_OK) s = put_id(m, docs, objects, "pad_token_id", "tokenizer.ggml.padding_token_id", err);
    return s;
}

/* Notes the path of a side file under `key` when it is there. */
static weir_status put_path(fmt_model *m, const char *name, const char *key, weir_error *err)
{
    char *path = fmt_path_join(m->env, m->dir, name, err);
    if (path == NULL) return err->code;
    weir_status s =
        base_file_exists_at(m->env, path) ? fmt_model_put_str(m, key, path, strlen(path), err) : WEIR_OK;
    base_free(m->env, path);
    return s;
}

/* transformers 5 keeps the chat template in a file of its own. */
static weir_status put_template(fmt_model *m, weir_error *err)
{
    char *path = fmt_path_join(m->env, m->dir, "chat_template.jinja", err), *text = NULL;
    size_t len = 0;
    if (path == NULL) return err->code;
    weir_status s = WEIR_OK;
    if (base_file_exists_at(m->env, path)) {
        s = base_file_slurp(m->env, path, MAX_TEMPLATE_BYTES, &text, &len, err);
        if (s == WEIR_OK && memchr(text, 0, len) != NULL)
            s = base_fail(err, WEIR_ERR_FORMAT, "%s: a NUL byte in the template", path);
        if (s == WEIR_OK) s = fmt_model_put_str(m, "tokenizer.chat_template", text, len, err);
    }
    base_free(m->env, text);
    base_free(m->env, path);
    return s;
}

weir_status fmt_hf_load(fmt_model *m, fmt_hf_arch *arch, weir_error *err)
{
    fmt_hf_doc config = {0}, generation = {0};
    *arch = FMT_HF_NONE;
    weir_status s = fmt_hf_doc_read(m->env, m->dir, "config.json", &config, err);
    if (s != WEIR_OK || config.root == NULL) goto done;
    s = fmt_hf_doc_read(m->env, m->dir, "generation_config.json", &generation, err);
    if (s == WEIR_OK) s = fmt_hf_put_config(m, &config, arch, err);
    if (s == WEIR_OK) s = put_ids(m, &config, &generation, err);
    if (s == WEIR_OK) s = put_path(m, "tokenizer.json", "weir.tokenizer_json", err);
    if (s == WEIR_OK) s = put_path(m, "tokenizer_config.json", "weir.tokenizer_config", err);
    if (s == WEIR_OK) s = put_template(m, err);
done:
    fmt_hf_doc_finish(&generation);
    fmt_hf_doc_finish(&config);
    return s;
}
