/* A language model's life: description in, hyperparameters and registered weights out; and the caches of a
 * sequence. */
#include "lm_internal.h"

#define KV_ALIGN 64
/* Caches are laid out in groups of this many positions. */
#define KV_GROUP 16

weir_status lm_model_create(base_env *env, const fmt_model *m, lm_model **out, weir_error *err)
{
    lm_model *lm = base_alloc(env, BASE_TAG_METADATA, sizeof(*lm), err);
    weir_status status;

    if (lm == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    lm->env = env;
    lm->file = m;
    status = lm_hparams_read(lm, err);
    if (status != WEIR_OK) goto fail;
    lm->layers = base_alloc_array(env, BASE_TAG_METADATA, lm->hp.n_layers, sizeof(*lm->layers), err);
    if (lm->layers == NULL) {
        status = err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
        goto fail;
    }
    status = lm_layer_kinds_read(lm, err);
    if (status == WEIR_OK) status = lm_rope_read(lm, err);
    if (status == WEIR_OK) status = lm_weights_register(lm, err);
    if (status != WEIR_OK) goto fail;
    *out = lm;
    return WEIR_OK;

fail:
    lm_model_destroy(lm);
    return status;
}

void lm_model_destroy(lm_model *lm)
{
    if (lm == NULL) return;
    mem_component_destroy(lm->component);
    base_free(lm->env, lm->rope[1].inv_freq);
    base_free(lm->env, lm->rope[0].inv_freq);
    base_free(lm->env, lm->layers);
    base_free(lm->env, lm);
}

const lm_hparams *lm_model_hparams(const lm_model *lm)
{
    return &lm->hp;
}

mem_component *lm_model_component(const lm_model *lm)
{
    return lm->component;
}

uint32_t lm_kv_capacity(const lm_model *lm, uint32_t layer, uint32_t context_tokens, uint32_t max_rows)
{
    uint64_t capacity = context_tokens;

    /* Rows of one pass are stored before the first of them looks back over its window. */
    if (lm->layers[layer].sliding && lm->hp.window > 0)
        capacity = base_min(capacity, (uint64_t)lm->hp.window + max_rows);
    capacity = base_align_up(base_max(capacity, 1), KV_GROUP);
    return (uint32_t)base_min(capacity, UINT32_MAX - (KV_GROUP - 1));
}

struct lm_kv {
    base_env *env;
    mem_source *source; /* NULL: in host memory */
    uint8_t *block;     /* all layers, one behind the other */
    uint64_t bytes;
    uint32_t n_layers;
    dev_kv layers[];
};

/* Adds layer's K and V behind *offset; false on overflow. */
static bool add_layer_bytes(const lm_model *lm, const dev_device *dev, uint32_t kv_dtype, uint32_t capacity,
                            uint64_t *k_offset, uint64_t *v_offset, uint64_t *offset)
{
    uint64_t k, v;

    dev->table->kv_bytes(dev, kv_dtype, capacity, lm->hp.n_kv_heads, lm->hp.head_dim, &k, &v);
    if (k > UINT64_MAX / 4 || v > UINT64_MAX / 4) return false;
    *k_offset = *offset;
    if (!base_add(*offset, base_align_up(k, KV_ALIGN), offset)) return false;
    *v_offset = *offset;
    return base_add(*offset, base_align_up(v, KV_ALIGN), offset);
}

uint64_t lm_kv_bytes(const lm_model *lm, const dev_device *dev, uint32_t kv_dtype, uint32_t context_tokens,
                     uint32_t max_rows)
{
    uint64_t k, v, bytes = 0;

    for (uint32_t i = 0; i < lm->hp.n_layers; i++)
        if (!add_layer_bytes(lm, dev, kv_dtype, lm_kv_capacity(lm, i, context_tokens, max_rows), &k, &v,
                             &bytes) ||
            bytes > UINT64_MAX / 2)
            return UINT64_MAX;
    return base_align_up(bytes, 4096);
}

weir_status lm_kv_create(base_env *env, const lm_model *lm, const dev_device *dev, uint32_t kv_dtype,
                         uint32_t context_tokens, uint32_t max_rows, lm_kv **out, weir_error *err)
{
    return lm_kv_create_on(env, lm, dev, NULL, kv_dtype, context_tokens, max_rows, out, err);
}

static void *alloc_block(base_env *env, mem_source *source, uint64_t bytes, weir_error *err)
{
    void *block;

    if (source == NULL) return base_pages_alloc_present(env, BASE_TAG_KV, bytes, err);
    return mem_source_alloc(source, bytes, "key-value cache", &block, err) == WEIR_OK ? block : NULL;
}

weir_status lm_kv_create_on(base_env *env, const lm_model *lm, const dev_device *dev, mem_source *source,
                            uint32_t kv_dtype, uint32_t context_tokens, uint32_t max_rows, lm_kv **out,
                            weir_error *err)
{
    uint64_t bytes = lm_kv_bytes(lm, dev, kv_dtype, context_tokens, max_rows), offset = 0;
    weir_error local = {WEIR_OK, ""};
    lm_kv *kv;

    if ((kv_dtype != BASE_F16 && kv_dtype != BASE_F32) || context_tokens == 0 || bytes == UINT64_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a cache of %u positions of type %s; wanted at least 1 of F16 or F32, and a size "
                         "that memory can have",
                         context_tokens, base_dtype_get(kv_dtype)->name);
    kv = base_alloc(env, BASE_TAG_METADATA, sizeof(*kv) + lm->hp.n_layers * sizeof(kv->layers[0]), err);
    if (kv == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    kv->env = env;
    kv->n_layers = lm->hp.n_layers;
    kv->bytes = bytes;
    kv->source = source;
    kv->block = alloc_block(env, source, bytes, &local);
    if (kv->block == NULL) {
        base_free(env, kv);
        return base_fail(err, local.code, "cache of %u positions: %s", context_tokens, local.message);
    }
    for (uint32_t i = 0; i < lm->hp.n_layers; i++) {
        dev_kv *layer = &kv->layers[i];
        uint64_t k_offset, v_offset;

        layer->dtype = kv_dtype;
        layer->capacity = lm_kv_capacity(lm, i, context_tokens, max_rows);
        add_layer_bytes(lm, dev, kv_dtype, layer->capacity, &k_offset, &v_offset, &offset);
        layer->k = kv->block + k_offset;
        layer->v = kv->block + v_offset;
    }
    *out = kv;
    return WEIR_OK;
}

void lm_kv_destroy(lm_kv *kv)
{
    base_env *env;

    if (kv == NULL) return;
    env = kv->env;
    if (kv->source != NULL)
        mem_source_free(kv->source, kv->block);
    else
        base_pages_free(env, BASE_TAG_KV, kv->block, kv->bytes);
    base_free(env, kv);
}

const dev_kv *lm_kv_layer(const lm_kv *kv, uint32_t layer)
{
    return layer < kv->n_layers ? &kv->layers[layer] : NULL;
}
