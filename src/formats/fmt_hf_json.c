/* Side files of a Hugging Face folder through jansson. Its allocations pass the ledger by, so what a tree can
 * take at most is booked from the text before it is parsed. */
#include "fmt_hf_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_DOC_BYTES (1024u * 1024)
#define MAX_DOC_DEPTH 32u
/* An upper bound for one value of jansson 2.x: an empty object (about 250 bytes with its first buckets). */
#define NODE_BYTES 320u

/* Every value follows a bracket, a comma or a colon; text in strings may be counted too, which only books
 * more. */
static weir_status scan(const char *path, const char *text, size_t len, uint64_t *nodes, weir_error *err)
{
    unsigned depth = 0, deepest = 0;
    bool in_string = false;
    *nodes = 1;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest) deepest = depth;
            ++*nodes;
        } else if (c == ',' || c == ':') {
            ++*nodes;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    if (deepest > MAX_DOC_DEPTH)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: JSON nested %u deep, at most %u are supported", path,
                         deepest, MAX_DOC_DEPTH);
    return WEIR_OK;
}

static weir_status parse(fmt_hf_doc *doc, const char *text, size_t len, weir_error *err)
{
    uint64_t nodes;
    weir_status s = scan(doc->path, text, len, &nodes, err);
    if (s != WEIR_OK) return s;
    uint64_t bytes = nodes * NODE_BYTES + 2 * (uint64_t)len; /* both below 2^30 */
    s = base_ledger_reserve(doc->env, BASE_TAG_METADATA, bytes, err);
    if (s != WEIR_OK) return base_fail_context(err, s, "%s", doc->path);
    doc->booked = bytes;
    json_error_t je;
    doc->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (doc->root == NULL && json_error_code(&je) == json_error_out_of_memory)
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s: no memory to parse %zu bytes", doc->path, len);
    if (doc->root == NULL)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: no valid JSON at offset %d (line %d): %.160s", doc->path,
                         je.position, je.line,
                         fmt_name_is_clean(je.text, strlen(je.text)) ? je.text : "unexpected text");
    if (!json_is_object(doc->root))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: not a JSON object", doc->path);
    return WEIR_OK;
}

weir_status fmt_hf_doc_read(base_env *env, const char *dir, const char *name, fmt_hf_doc *doc,
                            weir_error *err)
{
    *doc = (fmt_hf_doc){.env = env};
    char *path = fmt_path_join(env, dir, name, err);
    if (path == NULL) return err->code;
    doc->path = path;
    if (!base_file_exists_at(env, path)) return WEIR_OK;
    char *text = NULL;
    size_t len = 0;
    weir_status s = base_file_slurp(env, path, MAX_DOC_BYTES, &text, &len, err);
    if (s == WEIR_OK) s = parse(doc, text, len, err);
    base_free(env, text);
    return s;
}

void fmt_hf_doc_finish(fmt_hf_doc *doc)
{
    if (doc->env == NULL) return;
    json_decref(doc->root);
    base_ledger_release(doc->env, BASE_TAG_METADATA, doc->booked);
    base_free(doc->env, doc->path);
    *doc = (fmt_hf_doc){0};
}

const json_t *fmt_hf_get(const json_t *o, const char *key)
{
    const json_t *v = json_is_object(o) ? json_object_get(o, key) : NULL;
    return json_is_null(v) ? NULL : v;
}

weir_status fmt_hf_int(const fmt_hf_doc *d, const json_t *o, const char *key, int64_t fallback, int64_t min,
                       int64_t max, int64_t *out, weir_error *err)
{
    const json_t *v = fmt_hf_get(o, key);
    *out = fallback;
    if (v == NULL) return WEIR_OK;
    if (!json_is_integer(v))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is no whole number", d->path, key);
    *out = json_integer_value(v);
    if (*out < min || *out > max)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is %" PRId64 ", wanted %" PRId64 " to %" PRId64,
                         d->path, key, *out, min, max);
    return WEIR_OK;
}

weir_status fmt_hf_num(const fmt_hf_doc *d, const json_t *o, const char *key, double fallback, double min,
                       double max, double *out, weir_error *err)
{
    const json_t *v = fmt_hf_get(o, key);
    *out = fallback;
    if (v == NULL) return WEIR_OK;
    if (!json_is_number(v)) return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is no number", d->path, key);
    *out = json_number_value(v);
    if (!(*out >= min && *out <= max))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is %g, wanted %g to %g", d->path, key, *out, min,
                         max);
    return WEIR_OK;
}

weir_status fmt_hf_bool(const fmt_hf_doc *d, const json_t *o, const char *key, bool fallback, bool *out,
                        weir_error *err)
{
    const json_t *v = fmt_hf_get(o, key);
    *out = v == NULL ? fallback : json_is_true(v);
    if (v != NULL && !json_is_boolean(v))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is neither true nor false", d->path, key);
    return WEIR_OK;
}

weir_status fmt_hf_str(const fmt_hf_doc *d, const json_t *o, const char *key, const char **out,
                       weir_error *err)
{
    const json_t *v = fmt_hf_get(o, key);
    *out = NULL;
    if (v == NULL) return WEIR_OK;
    if (!json_is_string(v)) return base_fail(err, WEIR_ERR_FORMAT, "%s: \"%s\" is no text", d->path, key);
    *out = json_string_value(v);
    return WEIR_OK;
}
