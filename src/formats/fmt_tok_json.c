#include "fmt_tok_internal.h"
weir_status fmt_tok_load_json(fmt_tokenizer *t, const fmt_model *m, const char *path, weir_error *err)
{
    (void)t;
    (void)m;
    return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: not yet", path);
}
