/* Placing by mapping (R15.1): where all weights stay, they can be used where the system keeps the file's
 * pages, without a copy of our own, shared by all processes that do the same. Of each file one range is
 * mapped, from the first to the last byte that any placed weight needs. */
#include "mem_internal.h"

#define FETCH_BYTES (UINT64_C(8) << 20)

/* What is mapped of a file; begin >= end: nothing. */
static void needed_range(const mem_component *c, uint32_t file, uint64_t *begin, uint64_t *end)
{
    *begin = UINT64_MAX;
    *end = 0;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        if (w->file_index != file || !(w->fixed || w->rank != MEM_NO_RANK)) continue;
        *begin = base_min(*begin, w->offset);
        *end = base_max(*end, w->offset + w->bytes);
    }
}

/* Brings in the bytes of a weight, piece by piece. */
static weir_status fetch_weight(mem_component *c, const mem_weight *w, uint64_t range_begin,
                                const mem_place_options *o, uint64_t *done, uint64_t total, weir_error *err)
{
    for (uint64_t at = 0; at < w->bytes; at += FETCH_BYTES) {
        uint64_t bytes = base_min(FETCH_BYTES, w->bytes - at);
        if (mem_is_cancelled(o->cancel)) return mem_fail_cancelled(c, err);
        weir_status status = base_map_fetch(c->maps[w->file_index], w->offset - range_begin + at, bytes, err);
        if (status != WEIR_OK) return status;
        *done += bytes;
        if (o->progress != NULL) o->progress(o->progress_arg, *done, total);
    }
    return WEIR_OK;
}

static weir_status fetch_all(mem_component *c, const uint64_t *begins, const mem_place_options *o,
                             weir_error *err)
{
    uint64_t done = 0, total = 0;
    for (uint32_t i = 0; i < c->n_weights; i++)
        if (c->weights[i].fixed || c->weights[i].rank != MEM_NO_RANK) total += c->weights[i].bytes;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[c->by_offset[i].weight];
        if (!w->fixed && w->rank == MEM_NO_RANK) continue;
        weir_status status = fetch_weight(c, w, begins[w->file_index], o, &done, total, err);
        if (status != WEIR_OK) return status;
        w->data = base_map_data(c->maps[w->file_index]) + (w->offset - begins[w->file_index]);
        w->resident_rows = w->n_rows;
        w->packed_rows = w->packed ? mem_group_rows(w) : 0;
    }
    c->stats.load_bytes = done;
    return WEIR_OK;
}

weir_status mem_map_all(mem_component *c, const mem_plan *plan, const mem_place_options *o, weir_error *err)
{
    double start = base_now(c->env);
    weir_error local = {0};
    uint64_t *begins = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_files, sizeof *begins, &local);
    if (begins == NULL) goto done;
    c->maps = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_files, sizeof(base_map *), &local);
    if (c->maps == NULL) goto done;
    /* The pages are the system's, which takes them back when it must; that they fit is promised all the same.
     */
    if (base_ledger_reserve(c->env, BASE_TAG_WEIGHTS_MAPPED, plan->fixed_bytes + plan->resident_bytes,
                            &local) != WEIR_OK)
        goto done;
    c->mapped_bytes = plan->fixed_bytes + plan->resident_bytes;
    for (uint32_t i = 0; i < c->n_files && local.code == WEIR_OK; i++) {
        uint64_t end;
        needed_range(c, i, &begins[i], &end);
        if (begins[i] < end)
            base_map_create(c->env, c->files[i], begins[i], end - begins[i], &c->maps[i], &local);
    }
    if (local.code == WEIR_OK) fetch_all(c, begins, o, &local);
    c->stats.load_seconds = base_now(c->env) - start;

done:
    base_free(c->env, begins);
    if (local.code != WEIR_OK) mem_unmap_all(c);
    if (local.code != WEIR_OK && err != NULL) *err = local;
    return local.code;
}

void mem_unmap_all(mem_component *c)
{
    if (c->maps == NULL) return;
    for (uint32_t i = 0; i < c->n_files; i++) base_map_destroy(c->maps[i]);
    base_free(c->env, c->maps);
    base_ledger_release(c->env, BASE_TAG_WEIGHTS_MAPPED, c->mapped_bytes);
    c->maps = NULL;
    c->mapped_bytes = 0;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[i];
        w->data = NULL;
        w->resident_rows = w->packed_rows = 0;
    }
}

weir_status mem_check_mapped(const mem_component *c, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint32_t i = 0; c->maps != NULL && i < c->n_files && status == WEIR_OK; i++)
        if (c->maps[i] != NULL) status = base_map_check(c->maps[i], err);
    return status;
}
