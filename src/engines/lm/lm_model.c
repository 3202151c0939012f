/* A language model's life: description in, hyperparameters and registered weights out. */
#include "lm_internal.h"

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
