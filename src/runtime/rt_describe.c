/* What a model's files hold, for people: summary, metadata values, tensors, units. */
#include "rt_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

weir_status weir_model_get_info(const weir_model *m, weir_model_info *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    weir_status status = rt_model_runs(m, err);
    if (status != WEIR_OK) return status;
    const lm_hparams *h = lm_model_hparams(m->lm);
    mem_plan plan;
    status = mem_plan_make(m->component, UINT64_MAX, &plan, err);
    if (status != WEIR_OK) return status;
    const char *name = fmt_get_str(m->file, "general.name");
    weir_model_info info = {
        .struct_size = sizeof info,
        .format = fmt_model_format(m->file),
        .architecture = h->arch,
        .name = name != NULL ? name : "",
        .type = base_dtype_get(m->main_dtype)->name,
        .n_params = h->n_params,
        .file_bytes = m->file_bytes,
        .weight_bytes = m->weight_bytes,
        .n_files = fmt_model_n_files(m->file),
        .n_layers = h->n_layers,
        .n_vocab = h->n_vocab,
        .hidden = h->hidden,
        .ffn = h->ffn,
        .n_heads = h->n_heads,
        .n_kv_heads = h->n_kv_heads,
        .head_dim = h->head_dim,
        .context_tokens = h->context_tokens,
        .window = h->window,
        .tied_head = h->tied,
        .tokenizer = "",
        .chat_template = "",
        .smallest_bytes = plan.smallest_bytes,
    };
    /* A model without a tokenizer, or with one we do not know, is still worth describing. */
    weir_error none = {0};
    const fmt_tokenizer *tokenizer;
    const fmt_chat *chat;
    if (rt_text_tokenizer(m, &tokenizer, &none) == WEIR_OK) info.tokenizer = m->text->name;
    if (rt_text_chat(m, &chat, &none) == WEIR_OK) info.chat_template = fmt_chat_name(chat->kind);
    *out = info;
    return WEIR_OK;
}

static const char *type_name(fmt_type type)
{
    static const char *const names[] = {
        [FMT_U8] = "u8",         [FMT_I8] = "i8",   [FMT_U16] = "u16",     [FMT_I16] = "i16",
        [FMT_U32] = "u32",       [FMT_I32] = "i32", [FMT_F32] = "f32",     [FMT_BOOL] = "bool",
        [FMT_STRING] = "string", [FMT_U64] = "u64", [FMT_ARRAY] = "array", [FMT_I64] = "i64",
        [FMT_F64] = "f64",
    };
    return (size_t)type < sizeof names / sizeof *names && names[type] != NULL ? names[type] : "unknown";
}

/* At most size - 1 bytes of the string, cut between characters. */
static void print_string(char *buf, size_t size, const char *text, uint64_t len)
{
    size_t n = (size_t)base_min(len, size - 1);
    if (n < len) {
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    }
    memcpy(buf, text, n);
    buf[n] = '\0';
}

bool weir_model_value(const weir_model *m, size_t i, const char **key, const char **type, char *buf,
                      size_t buf_size)
{
    const fmt_value *v = i < fmt_model_n_values(m->file) ? fmt_model_value(m->file, i) : NULL;
    if (v == NULL) return false;
    if (key != NULL) *key = v->key;
    if (type != NULL) *type = type_name(v->type);
    if (buf == NULL || buf_size == 0) return true;
    switch (v->type) {
    case FMT_U8:
    case FMT_U16:
    case FMT_U32:
    case FMT_U64: snprintf(buf, buf_size, "%" PRIu64, v->v.u); break;
    case FMT_I8:
    case FMT_I16:
    case FMT_I32:
    case FMT_I64: snprintf(buf, buf_size, "%" PRId64, v->v.i); break;
    case FMT_F32: snprintf(buf, buf_size, "%.9g", v->v.f); break;
    case FMT_F64: snprintf(buf, buf_size, "%.17g", v->v.f); break;
    case FMT_BOOL: snprintf(buf, buf_size, "%s", v->v.u != 0 ? "true" : "false"); break;
    case FMT_STRING: print_string(buf, buf_size, v->v.str.data, v->v.str.len); break;
    case FMT_ARRAY:
        snprintf(buf, buf_size, "[%" PRIu64 " x %s]", v->v.array.count, type_name(v->v.array.type));
        if (v->v.array.type == FMT_STRING) snprintf(buf, buf_size, "[%" PRIu64 " strings]", v->v.array.count);
        break;
    }
    return true;
}

static const char *tensor_type(const fmt_tensor *t)
{
    static const char *const packed[BASE_DTYPE_LIMIT] = {
#define PACKED_NAME(id, name, elements, bytes) [id] = #name " packed",
        BASE_DTYPE_MAP(PACKED_NAME)
#undef PACKED_NAME
    };
    return t->packed && t->dtype < BASE_DTYPE_LIMIT ? packed[t->dtype] : base_dtype_get(t->dtype)->name;
}

bool weir_model_tensor(const weir_model *m, size_t i, weir_tensor_info *out)
{
    if (i >= fmt_model_n_tensors(m->file)) return false;
    const fmt_tensor *t = fmt_model_tensor(m->file, i);
    *out = (weir_tensor_info){
        .name = t->name,
        .type = tensor_type(t),
        .n_dims = t->n_dims,
        .file = base_file_path(fmt_model_file(m->file, t->file)),
        .offset = t->offset,
        .bytes = t->bytes,
    };
    for (uint32_t d = 0; d < FMT_MAX_DIMS; d++) out->dims[d] = t->dims[d];
    return true;
}

bool weir_model_unit(const weir_model *m, size_t i, weir_unit_info *out)
{
    if (m->component == NULL || i >= mem_component_n_units(m->component)) return false;
    mem_unit_info u;
    mem_component_unit(m->component, (uint32_t)i, &u);
    *out = (weir_unit_info){
        .name = u.name,
        .bytes = u.bytes,
        .streamable_bytes = u.streamable_bytes,
        .resident_bytes = u.resident_bytes,
        .n_weights = u.n_weights,
    };
    return true;
}
