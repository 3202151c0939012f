/* config.json and its like as a tree, with typed look-ups that name file and key when they fail. Private to
 * formats. */
#ifndef WEIR_FMT_HF_JSON_H
#define WEIR_FMT_HF_JSON_H

#include "fmt_store.h"

#include <jansson.h>

typedef struct fmt_hf_doc {
    base_env *env;
    char *path;
    json_t *root;    /* an object; NULL when the file is absent */
    uint64_t booked; /* jansson's memory, as reserved in the ledger */
} fmt_hf_doc;

/* Reads dir/name; absent: root is NULL and that is no error. Errors: FORMAT (no JSON object, nested too
 * deeply), UNSUPPORTED (too long). */
weir_status fmt_hf_doc_read(base_env *env, const char *dir, const char *name, fmt_hf_doc *doc,
                            weir_error *err);
void fmt_hf_doc_finish(fmt_hf_doc *doc); /* doc may be zeroed */

/* A member, NULL when absent, null, or o is no object. */
const json_t *fmt_hf_get(const json_t *o, const char *key);
/* Absent: `fallback`. Another type, or out of range: FORMAT. */
weir_status fmt_hf_int(const fmt_hf_doc *d, const json_t *o, const char *key, int64_t fallback, int64_t min,
                       int64_t max, int64_t *out, weir_error *err);
weir_status fmt_hf_num(const fmt_hf_doc *d, const json_t *o, const char *key, double fallback, double min,
                       double max, double *out, weir_error *err);
weir_status fmt_hf_bool(const fmt_hf_doc *d, const json_t *o, const char *key, bool fallback, bool *out,
                        weir_error *err);
/* NULL when absent; another type is FORMAT. */
weir_status fmt_hf_str(const fmt_hf_doc *d, const json_t *o, const char *key, const char **out,
                       weir_error *err);

#endif
