/* The tensors an architecture needs: each is looked up, its shape and type checked, and registered as a
 * weight of its unit. Units in running order: one per decoder layer, the head, and an embedding table that is
 * no head (read by row, it is never placed). */
#include "lm_internal.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 64

typedef enum weight_kind {
    KIND_MATRIX, /* read solely by a product: may stream */
    KIND_FIXED,  /* norms and biases: one row of floats */
    KIND_BY_ROW, /* an embedding table */
    KIND_TIED    /* both matrix and table */
} weight_kind;

static const graph_weight no_weight = {.id = MEM_NO_WEIGHT};

static weir_status check_shape(const lm_model *lm, const fmt_tensor *t, uint32_t cols, uint32_t rows,
                               weir_error *err)
{
    bool fits = t->dims[0] == cols && t->dims[1] == rows && t->dims[2] == 1 && t->dims[3] == 1;

    if (fits) return WEIR_OK;
    return base_fail(err, WEIR_ERR_MISSING_TENSOR,
                     "%s: the tensor %s is %llu x %llu x %llu x %llu; the model's keys want %u x %u",
                     base_file_path(fmt_model_file(lm->file, t->file)), t->file_name,
                     (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                     (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], cols, rows);
}

static weir_status check_type(const lm_model *lm, const fmt_tensor *t, weight_kind kind, weir_error *err)
{
    const char *path = base_file_path(fmt_model_file(lm->file, t->file));
    bool floats = t->dtype == BASE_F32 || t->dtype == BASE_F16 || t->dtype == BASE_BF16;
    const base_dtype_info *info = base_dtype_get(t->dtype);
    uint64_t bytes;

    if (info->name == NULL || (kind == KIND_FIXED && !floats) || kern_act_for(t->dtype) == KERN_ACT_NONE)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: the tensor %s has the type %s, which is not "
                         "supported for %s",
                         path, t->file_name, info->name != NULL ? info->name : "unknown",
                         kind == KIND_FIXED ? "norms and biases (F32, F16, BF16 are)" : "products");
    if (!base_dtype_row_bytes(t->dtype, t->dims[0], &bytes))
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: rows of the tensor %s have %llu elements; %s wants a multiple of %u", path,
                         t->file_name, (unsigned long long)t->dims[0], info->name, info->block_elements);
    if (kind == KIND_FIXED && t->dtype == BASE_F32 && t->offset % sizeof(float) != 0)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the tensor %s begins at offset %llu, no multiple of 4",
                         path, t->file_name, (unsigned long long)t->offset);
    return WEIR_OK;
}

_Static_assert(FMT_PACK_ROWS == KERN_PACK_ROWS && FMT_PACK_VERSION == KERN_PACK_VERSION,
               "files and kernels must agree on the packed layout");

/* Only products read packed rows. */
static weir_status check_packed(const lm_model *lm, const fmt_tensor *t, weight_kind kind, weir_error *err)
{
    if (!t->packed || (kind == KIND_MATRIX && kern_can_pack(t->dtype))) return WEIR_OK;
    return base_fail(
        err, WEIR_ERR_FORMAT,
        "%s: the tensor %s is packed, which %s never is: damaged, or packed for another model; pack "
        "it again from the original with this version of Weir",
        base_file_path(fmt_model_file(lm->file, t->file)), t->file_name,
        kind == KIND_MATRIX  ? base_dtype_get(t->dtype)->name
        : kind == KIND_FIXED ? "a norm or bias"
                             : "a table that is read by row");
}

/* Registers the tensor under `unit`. */
static weir_status add_weight(lm_model *lm, uint32_t unit, const char *name, weight_kind kind, uint32_t cols,
                              uint32_t rows, graph_weight *out, weir_error *err)
{
    const fmt_tensor *t = fmt_model_find_tensor(lm->file, name);
    mem_weight_desc desc = {.name = name};
    weir_status status;

    if (t == NULL)
        return base_fail(err, WEIR_ERR_MISSING_TENSOR, "%s: the tensor %s (%u x %u) is missing",
                         base_file_path(fmt_model_file(lm->file, 0)), name, cols, rows);
    status = check_shape(lm, t, cols, rows, err);
    if (status == WEIR_OK) status = check_type(lm, t, kind, err);
    if (status == WEIR_OK) status = check_packed(lm, t, kind, err);
    if (status != WEIR_OK) return status;
    desc.file = fmt_model_file(lm->file, t->file);
    desc.offset = t->offset;
    desc.n_rows = rows;
    desc.streamable = kind == KIND_MATRIX || kind == KIND_TIED;
    desc.by_row = kind == KIND_BY_ROW || kind == KIND_TIED;
    desc.type = t->dtype;
    desc.packed = t->packed;
    base_dtype_row_bytes(t->dtype, cols, &desc.row_bytes); /* cannot fail after check_type */
    status = mem_component_add_weight(lm->component, unit, &desc, &out->id, err);
    if (status != WEIR_OK) return status;
    out->dtype = t->dtype;
    out->n_rows = rows;
    out->cols = cols;
    lm->hp.n_params += (uint64_t)rows * cols;
    return WEIR_OK;
}

/* One weight of a layer: "blk.<layer>.<part>", required or used where the file has it. */
typedef struct layer_weight {
    const char *part;
    graph_weight *out;
    weight_kind kind;
    uint32_t cols, rows;
    enum { REQUIRED, OPTIONAL, UNUSED } need;
} layer_weight;

static weir_status add_layer_weights(lm_model *lm, uint32_t layer, uint32_t unit, weir_error *err)
{
    const lm_hparams *hp = &lm->hp;
    const lm_arch *arch = lm->arch;
    lm_layer *l = &lm->layers[layer];
    uint32_t q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
    int bias = arch->qkv_bias ? REQUIRED : OPTIONAL;
    int qk_norm = arch->qk_norm ? REQUIRED : UNUSED, post = arch->gemma ? REQUIRED : UNUSED;
    const layer_weight weights[] = {
        {"attn_norm.weight", &l->attn_norm, KIND_FIXED, hp->hidden, 1, REQUIRED},
        {"attn_q.weight", &l->q, KIND_MATRIX, hp->hidden, q, REQUIRED},
        {"attn_q.bias", &l->q_bias, KIND_FIXED, q, 1, bias},
        {"attn_k.weight", &l->k, KIND_MATRIX, hp->hidden, kv, REQUIRED},
        {"attn_k.bias", &l->k_bias, KIND_FIXED, kv, 1, bias},
        {"attn_v.weight", &l->v, KIND_MATRIX, hp->hidden, kv, REQUIRED},
        {"attn_v.bias", &l->v_bias, KIND_FIXED, kv, 1, bias},
        {"attn_q_norm.weight", &l->q_norm, KIND_FIXED, hp->head_dim, 1, qk_norm},
        {"attn_k_norm.weight", &l->k_norm, KIND_FIXED, hp->head_dim, 1, qk_norm},
        {"attn_output.weight", &l->o, KIND_MATRIX, q, hp->hidden, REQUIRED},
        {"attn_output.bias", &l->o_bias, KIND_FIXED, hp->hidden, 1, OPTIONAL},
        {"post_attention_norm.weight", &l->post_attn_norm, KIND_FIXED, hp->hidden, 1, post},
        {"ffn_norm.weight", &l->ffn_norm, KIND_FIXED, hp->hidden, 1, REQUIRED},
        {"ffn_gate.weight", &l->gate, KIND_MATRIX, hp->hidden, hp->ffn, REQUIRED},
        {"ffn_gate.bias", &l->gate_bias, KIND_FIXED, hp->ffn, 1, OPTIONAL},
        {"ffn_up.weight", &l->up, KIND_MATRIX, hp->hidden, hp->ffn, REQUIRED},
        {"ffn_up.bias", &l->up_bias, KIND_FIXED, hp->ffn, 1, OPTIONAL},
        {"ffn_down.weight", &l->down, KIND_MATRIX, hp->ffn, hp->hidden, REQUIRED},
        {"ffn_down.bias", &l->down_bias, KIND_FIXED, hp->hidden, 1, OPTIONAL},
        {"post_ffw_norm.weight", &l->post_ffn_norm, KIND_FIXED, hp->hidden, 1, post},
    };

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        const layer_weight *w = &weights[i];
        char name[NAME_BYTES];
        weir_status status;

        snprintf(name, sizeof(name), "blk.%u.%s", layer, w->part);
        *w->out = no_weight;
        if (w->need == UNUSED) continue;
        if (w->need == OPTIONAL && fmt_model_find_tensor(lm->file, name) == NULL) continue;
        status = add_weight(lm, unit, name, w->kind, w->cols, w->rows, w->out, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

static weir_status add_head(lm_model *lm, weir_error *err)
{
    const lm_hparams *hp = &lm->hp;
    uint32_t unit;
    weir_status status = mem_component_add_unit(lm->component, "head", MEM_MARK_NONE, &unit, err);

    if (status == WEIR_OK)
        status = add_weight(lm, unit, "output_norm.weight", KIND_FIXED, hp->hidden, 1, &lm->output_norm, err);
    if (status != WEIR_OK) return status;
    if (hp->tied) {
        status =
            add_weight(lm, unit, "token_embd.weight", KIND_TIED, hp->hidden, hp->n_vocab, &lm->embed, err);
        lm->output = lm->embed;
        return status;
    }
    status = add_weight(lm, unit, "output.weight", KIND_MATRIX, hp->hidden, hp->n_vocab, &lm->output, err);
    if (status == WEIR_OK)
        status = mem_component_add_unit(lm->component, "embedding", MEM_MARK_NONE, &unit, err);
    if (status == WEIR_OK)
        status =
            add_weight(lm, unit, "token_embd.weight", KIND_BY_ROW, hp->hidden, hp->n_vocab, &lm->embed, err);
    return status;
}

/* A file without a head of its own has a tied one, unless its configuration says otherwise: then the head is
 * lost. */
static weir_status read_tied(lm_model *lm, weir_error *err)
{
    uint64_t own;
    weir_status status = fmt_get_u64(lm->file, "weir.own_head", 0, 0, 1, &own, err);

    if (status == WEIR_OK) lm->hp.tied = own == 0 && fmt_model_find_tensor(lm->file, "output.weight") == NULL;
    return status;
}

/* Weights of layers beyond block_count would be left out in silence: the file's keys and tensors disagree. */
static weir_status check_no_more_layers(const lm_model *lm, weir_error *err)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof(name), "blk.%u.attn_q.weight", lm->hp.n_layers);
    if (fmt_model_find_tensor(lm->file, name) == NULL) return WEIR_OK;
    return base_fail(err, WEIR_ERR_FORMAT, "%s: block_count is %u, but there is a tensor %s",
                     base_file_path(fmt_model_file(lm->file, 0)), lm->hp.n_layers, name);
}

weir_status lm_weights_register(lm_model *lm, weir_error *err)
{
    weir_status status = mem_component_create(lm->env, "language model", MEM_SEQUENCE, &lm->component, err);

    if (status == WEIR_OK) status = check_no_more_layers(lm, err);
    for (uint32_t i = 0; i < lm->hp.n_layers && status == WEIR_OK; i++) {
        char name[NAME_BYTES];
        uint32_t unit;

        snprintf(name, sizeof(name), "layer %u", i);
        status = mem_component_add_unit(lm->component, name, MEM_MARK_NONE, &unit, err);
        if (status == WEIR_OK) status = add_layer_weights(lm, i, unit, err);
    }
    if (status == WEIR_OK) status = read_tied(lm, err);
    if (status == WEIR_OK) status = add_head(lm, err);
    if (status == WEIR_OK) status = mem_component_seal(lm->component, err);
    return status;
}
