/* The decoder as a program:
 *
 *   x = embedding
 *   layer: x += [norm] o( attention( rope([norm] q(norm x)), rope([norm] k(norm x)), v(norm x) ) )
 *          x += [norm] down( act(gate(norm x)) * up(norm x) )          [norm]: gemma3, or QK-norm
 *   logits = cap(output(norm x))
 *
 * The last layer attends for all rows, since they all belong into the cache; behind that only the rows whose
 * logits are wanted go on. */
#include "lm_internal.h"

static graph_id attention(const lm_model *lm, graph_program *p, uint32_t index, graph_id h,
                          const graph_id *rope_tables)
{
    const lm_layer *l = &lm->layers[index];
    const lm_hparams *hp = &lm->hp;
    uint32_t kind = l->sliding && lm->local_rope ? 1 : 0;
    const lm_rope *rope = &lm->rope[kind];
    graph_attention_params params = {
        .layer = index,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .window = l->sliding ? hp->window : 0,
        .scale = lm->attn_scale,
        .softcap = lm->attn_softcap,
    };
    graph_id q = graph_matmul(p, h, l->q, l->q_bias);
    graph_id k = graph_matmul(p, h, l->k, l->k_bias);
    graph_id v = graph_matmul(p, h, l->v, l->v_bias);

    if (lm->arch->qk_norm) {
        q = graph_rms_norm(p, q, l->q_norm, hp->head_dim, lm->rms_eps, lm->norm_offset);
        k = graph_rms_norm(p, k, l->k_norm, hp->head_dim, lm->rms_eps, lm->norm_offset);
    }
    q = graph_rope(p, q, rope_tables[kind], hp->head_dim, rope->n_rot, lm->neox);
    k = graph_rope(p, k, rope_tables[kind], hp->head_dim, rope->n_rot, lm->neox);
    return graph_attention(p, q, k, v, &params);
}

static graph_id feed_forward(const lm_model *lm, graph_program *p, const lm_layer *l, graph_id x)
{
    graph_id h = graph_rms_norm(p, x, l->ffn_norm, 0, lm->rms_eps, lm->norm_offset);
    graph_id gate = graph_matmul(p, h, l->gate, l->gate_bias);
    graph_id up = graph_matmul(p, h, l->up, l->up_bias);

    h = graph_matmul(p, graph_glu(p, gate, up, lm->arch->gemma), l->down, l->down_bias);
    if (lm->arch->gemma) h = graph_rms_norm(p, h, l->post_ffn_norm, 0, lm->rms_eps, lm->norm_offset);
    return graph_add(p, x, h);
}

static graph_id layer(const lm_model *lm, graph_program *p, uint32_t index, graph_id x,
                      const graph_id *rope_tables)
{
    const lm_layer *l = &lm->layers[index];
    graph_id h = graph_rms_norm(p, x, l->attn_norm, 0, lm->rms_eps, lm->norm_offset);

    h = attention(lm, p, index, h, rope_tables);
    if (index == lm->hp.n_layers - 1) {
        h = graph_select_outputs(p, h);
        x = graph_select_outputs(p, x);
    }
    h = graph_matmul(p, h, l->o, l->o_bias);
    if (lm->arch->gemma) h = graph_rms_norm(p, h, l->post_attn_norm, 0, lm->rms_eps, lm->norm_offset);
    return feed_forward(lm, p, l, graph_add(p, x, h));
}

static graph_id build(const lm_model *lm, graph_program *p)
{
    static const graph_weight no_bias = {.id = MEM_NO_WEIGHT};
    graph_id tables[2] = {-1, -1}, x;

    graph_mark_phase(p, "embedding");
    x = graph_embed(p, lm->embed, lm->embed_scale);
    tables[0] = graph_rope_table(p, lm->rope[0].inv_freq, lm->rope[0].n_rot, lm->rope[0].mscale);
    if (lm->local_rope)
        tables[1] = graph_rope_table(p, lm->rope[1].inv_freq, lm->rope[1].n_rot, lm->rope[1].mscale);
    graph_mark_phase(p, "layers");
    for (uint32_t i = 0; i < lm->hp.n_layers; i++) x = layer(lm, p, i, x, tables);
    graph_mark_phase(p, "head");
    x = graph_rms_norm(p, x, lm->output_norm, 0, lm->rms_eps, lm->norm_offset);
    x = graph_matmul(p, x, lm->output, no_bias);
    if (lm->final_softcap > 0) x = graph_softcap(p, x, lm->final_softcap);
    return x;
}

weir_status lm_program_create(base_env *env, lm_model *lm, dev_device *dev, const graph_options *options,
                              graph_program **out, weir_error *err)
{
    graph_program *p;
    weir_status status = graph_program_create(env, dev, lm->component, options, &p, err);

    if (status != WEIR_OK) return status;
    status = graph_finish(p, build(lm, p), err);
    if (status != WEIR_OK) {
        graph_program_destroy(p);
        return status;
    }
    *out = p;
    return WEIR_OK;
}
