/* The caches of a sequence. Positions lie in them in order, so one with room for more begins as the smaller
 * one did, and growing is copying:
 *
 *   full       | K 0 | V 0 | K 1 | V 1 | ...                  one block, all of the context
 *   grown      | K 0 | V 0 |   | K 1 | V 1 |   ...            a block for each layer
 *   growing    | K 0 ....... | V 0 ....... |   | K 1 | V 1 |  layer by layer: new, copy, free the old
 *
 * So growing takes no more than all layers at their new size and the old block of one (R9.2). The ring of a
 * sliding window grows like the others until it is whole; before that it has never gone round. */
#include "lm_internal.h"

#include <string.h>

#define KV_ALIGN 64
#define KV_PAGE  4096
/* Caches are laid out in groups of this many positions. */
#define KV_GROUP 16

struct lm_kv {
    base_env *env;
    const lm_model *lm;
    const dev_device *dev;
    mem_source *source; /* NULL: in host memory */
    lm_kv_shape shape;
    uint32_t n_positions; /* there is room for */
    uint8_t *block;       /* FULL: all layers, one behind the other; else each layer's begins at its K */
    uint64_t bytes;       /* of block */
    uint32_t n_layers;
    dev_kv layers[];
};

uint32_t lm_kv_capacity(const lm_model *lm, uint32_t layer, uint32_t context_tokens, uint32_t max_rows)
{
    uint64_t capacity = context_tokens;

    /* Rows of one pass are stored before the first of them looks back over its window. */
    if (lm->layers[layer].sliding && lm->hp.window > 0)
        capacity = base_min(capacity, (uint64_t)lm->hp.window + max_rows);
    capacity = base_align_up(base_max(capacity, 1), KV_GROUP);
    return (uint32_t)base_min(capacity, UINT32_MAX - (KV_GROUP - 1));
}

uint32_t lm_kv_room(const lm_kv_shape *s, uint32_t n_positions)
{
    uint64_t room = s->context_tokens;

    if (s->growth == LM_KV_DYNAMIC) room = base_align_up(n_positions, LM_KV_STEP);
    if (s->growth == LM_KV_STATIC)
        for (room = LM_KV_STEP; room < n_positions;) room *= 2;
    return (uint32_t)base_min(room, s->context_tokens);
}

/* Of a layer's cache with room for so many positions; 0 for none. */
static uint32_t capacity_at(const lm_model *lm, const lm_kv_shape *s, uint32_t layer, uint32_t room)
{
    uint32_t whole = lm_kv_capacity(lm, layer, s->context_tokens, s->max_rows);

    return (uint32_t)base_min(whole, base_align_up(room, KV_GROUP));
}

/* ---- sizes ---- */

typedef struct layer_size {
    uint64_t v_offset, bytes; /* K begins at 0 */
} layer_size;

/* UINT64_MAX / 2 and more: too large for any memory. */
static layer_size size_of(const lm_model *lm, const dev_device *dev, uint32_t dtype, uint32_t capacity)
{
    const layer_size too_large = {0, UINT64_MAX / 2};
    uint64_t k, v;

    if (capacity == 0) return (layer_size){0, 0};
    dev->table->kv_bytes(dev, dtype, capacity, lm->hp.n_kv_heads, lm->hp.head_dim, &k, &v);
    if (k > UINT64_MAX / 8 || v > UINT64_MAX / 8) return too_large;
    return (layer_size){.v_offset = base_align_up(k, KV_ALIGN),
                        .bytes = base_align_up(k, KV_ALIGN) + base_align_up(v, KV_ALIGN)};
}

static uint64_t block_bytes(const lm_model *lm, const dev_device *dev, uint32_t dtype, uint32_t capacity)
{
    return base_align_up(size_of(lm, dev, dtype, capacity).bytes, KV_PAGE);
}

uint64_t lm_kv_bytes(const lm_model *lm, const dev_device *dev, const lm_kv_shape *s, uint32_t n_positions)
{
    uint32_t room = lm_kv_room(s, n_positions);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < lm->hp.n_layers; i++) {
        uint32_t capacity = capacity_at(lm, s, i, room);
        uint64_t layer = s->growth == LM_KV_FULL ? size_of(lm, dev, s->dtype, capacity).bytes
                                                 : block_bytes(lm, dev, s->dtype, capacity);

        if (!base_add(bytes, layer, &bytes) || bytes >= UINT64_MAX / 2) return UINT64_MAX;
    }
    return base_align_up(bytes, KV_PAGE);
}

uint64_t lm_kv_copy_bytes(const lm_model *lm, const dev_device *dev, const lm_kv_shape *s,
                          uint32_t n_positions)
{
    uint32_t room = lm_kv_room(s, n_positions), largest = 0;
    uint64_t old = LM_KV_STEP;

    for (uint32_t i = 0; i < lm->hp.n_layers; i++)
        largest = (uint32_t)base_max(largest, capacity_at(lm, s, i, room));
    if (s->growth == LM_KV_FULL || largest <= LM_KV_STEP) return 0;
    /* The last step by which a layer grows; all that do have the same size. */
    if (s->growth == LM_KV_DYNAMIC) old = (largest - 1) / LM_KV_STEP * LM_KV_STEP;
    while (s->growth == LM_KV_STATIC && 2 * old < largest) old *= 2;
    return block_bytes(lm, dev, s->dtype, (uint32_t)old);
}

/* ---- memory ---- */

static void *alloc_block(const lm_kv *kv, uint64_t bytes, weir_error *err)
{
    void *block;

    if (kv->source == NULL) return base_pages_alloc_present(kv->env, BASE_TAG_KV, bytes, err);
    return mem_source_alloc(kv->source, bytes, "key-value cache", &block, err) == WEIR_OK ? block : NULL;
}

static void free_block(const lm_kv *kv, void *block, uint64_t bytes)
{
    if (kv->source != NULL)
        mem_source_free(kv->source, block);
    else
        base_pages_free(kv->env, BASE_TAG_KV, block, bytes);
}

static weir_status copy_bytes(const lm_kv *kv, void *dst, const void *src, uint64_t bytes, weir_error *err)
{
    if (kv->source != NULL) return mem_source_copy(kv->source, dst, src, bytes, err);
    memcpy(dst, src, bytes);
    return WEIR_OK;
}

/* ---- growing and shrinking ---- */

/* Moves a layer to a block of another size, with the positions that both have room for. */
static weir_status move_layer(lm_kv *kv, dev_kv *layer, uint32_t capacity, weir_error *err)
{
    uint32_t dtype = kv->shape.dtype, both = (uint32_t)base_min(capacity, layer->capacity);
    layer_size size = size_of(kv->lm, kv->dev, dtype, capacity);
    uint64_t bytes = block_bytes(kv->lm, kv->dev, dtype, capacity), k, v;
    uint8_t *block = alloc_block(kv, bytes, err);
    weir_status status = WEIR_OK;

    if (block == NULL) return err->code;
    if (both != 0) {
        kv->dev->table->kv_bytes(kv->dev, dtype, both, kv->lm->hp.n_kv_heads, kv->lm->hp.head_dim, &k, &v);
        status = copy_bytes(kv, block, layer->k, k, err);
        if (status == WEIR_OK) status = copy_bytes(kv, block + size.v_offset, layer->v, v, err);
    }
    if (status != WEIR_OK) {
        free_block(kv, block, bytes);
        return status;
    }
    free_block(kv, layer->k, block_bytes(kv->lm, kv->dev, dtype, layer->capacity));
    *layer = (dev_kv){.k = block, .v = block + size.v_offset, .dtype = dtype, .capacity = capacity};
    return WEIR_OK;
}

static void shrink_layer(lm_kv *kv, dev_kv *layer, uint32_t capacity)
{
    uint32_t dtype = kv->shape.dtype;
    uint64_t bytes = block_bytes(kv->lm, kv->dev, dtype, layer->capacity), k, v;
    weir_error none;

    if (capacity >= layer->capacity) return;
    if (capacity == 0) {
        free_block(kv, layer->k, bytes);
        *layer = (dev_kv){.dtype = dtype};
        return;
    }
    if (kv->source != NULL) {
        (void)move_layer(kv, layer, capacity, &none);
        return;
    }
    /* In place, since this is what undoes a growth that found no memory. */
    uint8_t *block = layer->k, *to = block + size_of(kv->lm, kv->dev, dtype, capacity).v_offset;
    kv->dev->table->kv_bytes(kv->dev, dtype, capacity, kv->lm->hp.n_kv_heads, kv->lm->hp.head_dim, &k, &v);
    memmove(to, layer->v, v);
    base_pages_resize(kv->env, BASE_TAG_KV, block, bytes, block_bytes(kv->lm, kv->dev, dtype, capacity),
                      &none);
    layer->v = to;
    layer->capacity = capacity;
}

weir_status lm_kv_grow(lm_kv *kv, uint32_t n_positions, weir_error *err)
{
    uint32_t room = lm_kv_room(&kv->shape, n_positions);
    weir_error local = {WEIR_OK, ""};

    if (room <= kv->n_positions) return WEIR_OK;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        uint32_t capacity = capacity_at(kv->lm, &kv->shape, i, room);
        weir_status status = WEIR_OK;

        if (capacity > kv->layers[i].capacity) status = move_layer(kv, &kv->layers[i], capacity, &local);
        if (status == WEIR_OK) continue;
        while (i-- > 0) shrink_layer(kv, &kv->layers[i], capacity_at(kv->lm, &kv->shape, i, kv->n_positions));
        return base_fail(err, status,
                         "the caches cannot grow from %u to %u positions (compute.kv_cache); what is there "
                         "stays; free memory, or reset other sessions: %s",
                         kv->n_positions, room, local.message);
    }
    kv->n_positions = room;
    return WEIR_OK;
}

void lm_kv_shrink(lm_kv *kv, uint32_t n_positions)
{
    uint32_t room = lm_kv_room(&kv->shape, n_positions);

    if (kv->shape.growth == LM_KV_FULL) return;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        shrink_layer(kv, &kv->layers[i], capacity_at(kv->lm, &kv->shape, i, room));
    kv->n_positions = (uint32_t)base_min(room, kv->n_positions);
}

/* ---- life ---- */

static weir_status create_full(lm_kv *kv, weir_error *err)
{
    const lm_kv_shape *s = &kv->shape;
    uint8_t *at;

    kv->block = alloc_block(kv, kv->bytes, err);
    if (kv->block == NULL) return err->code;
    at = kv->block;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        uint32_t capacity = lm_kv_capacity(kv->lm, i, s->context_tokens, s->max_rows);
        layer_size size = size_of(kv->lm, kv->dev, s->dtype, capacity);

        kv->layers[i] = (dev_kv){.k = at, .v = at + size.v_offset, .dtype = s->dtype, .capacity = capacity};
        at += size.bytes;
    }
    kv->n_positions = s->context_tokens;
    return WEIR_OK;
}

weir_status lm_kv_create(base_env *env, const lm_model *lm, const dev_device *dev, mem_source *source,
                         const lm_kv_shape *s, lm_kv **out, weir_error *err)
{
    uint64_t bytes = lm_kv_bytes(lm, dev, s, s->context_tokens);
    weir_error local = {WEIR_OK, ""};
    weir_status status;
    lm_kv *kv;

    if ((s->dtype != BASE_F16 && s->dtype != BASE_F32) || s->context_tokens == 0 || bytes == UINT64_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a cache of %u positions of type %s; wanted at least 1 of F16 or F32, and a size "
                         "that memory can have",
                         s->context_tokens, base_dtype_get(s->dtype)->name);
    kv = base_alloc(env, BASE_TAG_METADATA, sizeof(*kv) + lm->hp.n_layers * sizeof(kv->layers[0]), err);
    if (kv == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    *kv = (lm_kv){.env = env,
                  .lm = lm,
                  .dev = dev,
                  .source = source,
                  .shape = *s,
                  .bytes = bytes,
                  .n_layers = lm->hp.n_layers};
    for (uint32_t i = 0; i < kv->n_layers; i++) kv->layers[i] = (dev_kv){.dtype = s->dtype};
    status = s->growth == LM_KV_FULL ? create_full(kv, &local) : lm_kv_grow(kv, lm_kv_room(s, 0), &local);
    if (status != WEIR_OK) {
        base_free(env, kv);
        return base_fail(err, local.code, "cache of %u positions: %s", s->context_tokens, local.message);
    }
    *out = kv;
    return WEIR_OK;
}

void lm_kv_destroy(lm_kv *kv)
{
    if (kv == NULL) return;
    if (kv->shape.growth == LM_KV_FULL)
        free_block(kv, kv->block, kv->bytes);
    else
        for (uint32_t i = 0; i < kv->n_layers; i++) shrink_layer(kv, &kv->layers[i], 0);
    base_free(kv->env, kv);
}

uint32_t lm_kv_positions(const lm_kv *kv)
{
    return kv->n_positions;
}

const dev_kv *lm_kv_layer(const lm_kv *kv, uint32_t layer)
{
    return layer < kv->n_layers ? &kv->layers[layer] : NULL;
}
