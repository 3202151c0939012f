/* Registration: which weights a component has, which of them may stream, and in which order they stay. */
#include "mem_internal.h"

#include <stdlib.h>
#include <string.h>

weir_status mem_component_create(base_env *env, const char *name, mem_kind kind, mem_component **out,
                                 weir_error *err)
{
    weir_error local = {0};
    mem_component *c = base_alloc(env, BASE_TAG_METADATA, sizeof *c, &local);
    if (c == NULL) goto fail;
    c->env = env;
    c->kind = kind;
    c->name = base_strdup(env, BASE_TAG_METADATA, name, &local);
    if (c->name == NULL) goto fail;
    c->stats.reader = "none";
    *out = c;
    return WEIR_OK;

fail:
    mem_component_destroy(c);
    if (err != NULL) *err = local;
    return local.code;
}

void mem_component_destroy(mem_component *c)
{
    if (c == NULL) return;
    mem_unplace(c);
    for (uint32_t i = 0; i < c->n_weights; i++) base_free(c->env, c->weights[i].name);
    for (uint32_t i = 0; i < c->n_units; i++) base_free(c->env, c->units[i].name);
    base_free(c->env, c->by_offset);
    base_free(c->env, c->by_rank);
    base_free(c->env, c->files);
    base_free(c->env, c->weights);
    base_free(c->env, c->units);
    base_free(c->env, c->name);
    base_free(c->env, c);
}

/* Makes room for one more element. */
static weir_status grow(base_env *env, void **array, uint32_t n, uint32_t *cap, size_t size, weir_error *err)
{
    if (n < *cap) return WEIR_OK;
    weir_error local = {0};
    uint64_t wanted = *cap == 0 ? 16 : (uint64_t)*cap * 2, bytes;
    if (wanted >= UINT32_MAX || !base_mul(wanted, size, &bytes))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "more than %u parts in one component", *cap);
    void *p = base_realloc(env, BASE_TAG_METADATA, *array, bytes, &local);
    if (p == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    *array = p;
    *cap = (uint32_t)wanted;
    return WEIR_OK;
}

static weir_status fail_sealed(const mem_component *c, weir_error *err)
{
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: nothing can be added after it was sealed",
                     c->name);
}

weir_status mem_component_add_unit(mem_component *c, const char *name, mem_mark mark, uint32_t *unit,
                                   weir_error *err)
{
    if (c->sealed) return fail_sealed(c, err);
    if (mark == MEM_MARK_CPU)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "component %s, unit %s: it lies in RAM anyway; the mark is for handles", c->name,
                         name);
    weir_status status = grow(c->env, (void **)&c->units, c->n_units, &c->cap_units, sizeof *c->units, err);
    if (status != WEIR_OK) return status;
    weir_error local = {0};
    char *copy = base_strdup(c->env, BASE_TAG_METADATA, name, &local);
    if (copy == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    c->units[c->n_units] = (mem_unit){.name = copy, .mark = mark};
    *unit = c->n_units++;
    return WEIR_OK;
}

/* Finds the file's number, giving it one when it is new. */
static weir_status file_index(mem_component *c, base_file *file, uint32_t *index, weir_error *err)
{
    for (uint32_t i = 0; i < c->n_files; i++) {
        *index = i;
        if (c->files[i] == file) return WEIR_OK;
    }
    weir_status status = grow(c->env, (void **)&c->files, c->n_files, &c->cap_files, sizeof *c->files, err);
    if (status != WEIR_OK) return status;
    c->files[c->n_files] = file;
    *index = c->n_files++;
    return WEIR_OK;
}

static weir_status check_desc(const mem_component *c, uint32_t unit, const mem_weight_desc *d,
                              uint64_t *bytes, weir_error *err)
{
    if (unit >= c->n_units)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s, weight %s: unit %u does not exist",
                         c->name, d->name, unit);
    if (d->n_rows == 0 || d->row_bytes == 0 || d->as_f32_fixed)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "component %s, weight %s: %u rows of %llu bytes are not possible", c->name, d->name,
                         d->n_rows, (unsigned long long)d->row_bytes);
    uint64_t end;
    if (!base_mul(d->n_rows, d->row_bytes, bytes) || !base_add(d->offset, *bytes, &end) ||
        end > base_file_size(d->file))
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: weight %s (%u rows of %llu bytes at offset %llu) passes the end of the file "
                         "(%llu bytes); download it again",
                         base_file_path(d->file), d->name, d->n_rows, (unsigned long long)d->row_bytes,
                         (unsigned long long)d->offset, (unsigned long long)base_file_size(d->file));
    if (d->packed && d->by_row)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "component %s, weight %s: single rows cannot be read where rows lie packed", c->name,
                         d->name);
    /* Weights may lie over each other in a hostile file; no sum of them shall overflow later. */
    if (!base_add(c->total_bytes, *bytes, &end) || end > MEM_TOTAL_MAX_BYTES)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "component %s, weight %s: the weights together have more than 2^60 bytes", c->name,
                         d->name);
    return WEIR_OK;
}

weir_status mem_component_add_weight(mem_component *c, uint32_t unit, const mem_weight_desc *d,
                                     mem_weight_id *id, weir_error *err)
{
    if (c->sealed) return fail_sealed(c, err);
    uint64_t bytes = 0;
    uint32_t file = 0;
    weir_status status = check_desc(c, unit, d, &bytes, err);
    if (status == WEIR_OK)
        status = grow(c->env, (void **)&c->weights, c->n_weights, &c->cap_weights, sizeof *c->weights, err);
    if (status == WEIR_OK) status = file_index(c, d->file, &file, err);
    if (status != WEIR_OK) return status;
    weir_error local = {0};
    char *name = base_strdup(c->env, BASE_TAG_METADATA, d->name, &local);
    if (name == NULL) {
        if (err != NULL) *err = local;
        return local.code;
    }
    c->weights[c->n_weights] = (mem_weight){.name = name,
                                            .file = d->file,
                                            .file_index = file,
                                            .unit = unit,
                                            .offset = d->offset,
                                            .bytes = bytes,
                                            .row_bytes = d->row_bytes,
                                            .n_rows = d->n_rows,
                                            .streamable = d->streamable,
                                            .by_row = d->by_row,
                                            .packed = d->packed,
                                            .type = d->type,
                                            .rank = MEM_NO_RANK};
    mem_unit *u = &c->units[unit];
    c->total_bytes += bytes;
    u->n_weights++;
    if (d->streamable || !d->by_row) u->bytes += bytes;
    if (d->streamable) u->streamable_bytes += bytes;
    *id = c->n_weights++;
    return WEIR_OK;
}

static int compare_spans(const void *pa, const void *pb)
{
    const mem_span *a = pa, *b = pb;
    if (a->file_index != b->file_index) return a->file_index < b->file_index ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->weight < b->weight ? -1 : a->weight > b->weight;
}

/* What R4.5 sorts by, the most important first. */
typedef struct place_key {
    uint32_t mark;  /* hot, none, cold */
    uint64_t large; /* oneshot: the unit's bytes, the largest first; else 0 */
    uint32_t unit;
    uint32_t weight;
} place_key;

static int compare_places(const void *pa, const void *pb)
{
    const place_key *a = pa, *b = pb;
    if (a->mark != b->mark) return a->mark < b->mark ? -1 : 1;
    if (a->large != b->large) return a->large > b->large ? -1 : 1;
    if (a->unit != b->unit) return a->unit < b->unit ? -1 : 1;
    return a->weight < b->weight ? -1 : a->weight > b->weight;
}

static void decide_fixed(mem_component *c)
{
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[i];
        const mem_unit *u = &c->units[w->unit];
        bool small = u->bytes < MEM_SMALL_BYTES || u->mark == MEM_MARK_FIXED;
        w->fixed = w->streamable ? small : !w->by_row;
    }
}

static void sort_files(mem_component *c)
{
    c->align = MEM_BUFFERED_ALIGN;
    for (uint32_t i = 0; i < c->n_files; i++)
        c->align = (uint32_t)base_max(c->align, base_file_direct_align(c->files[i]));
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        c->by_offset[i] = (mem_span){.file_index = w->file_index, .weight = i, .offset = w->offset};
    }
    qsort(c->by_offset, c->n_weights, sizeof *c->by_offset, compare_spans);
}

/* Weights that lie over each other are in memory once too: what one is packed to, the other would be. */
static void mark_shared(mem_component *c)
{
    uint64_t end = 0;
    uint32_t longest = 0; /* the weight that ends there */
    for (uint32_t i = 0; i < c->n_weights; i++) {
        mem_weight *w = &c->weights[c->by_offset[i].weight];
        bool same_file = i > 0 && c->by_offset[i - 1].file_index == w->file_index;
        if (same_file && w->offset < end) w->shared = c->weights[longest].shared = true;
        if (same_file && w->offset + w->bytes <= end) continue;
        end = w->offset + w->bytes;
        longest = c->by_offset[i].weight;
    }
}

static uint32_t class_of(mem_mark mark)
{
    return mark == MEM_MARK_HOT ? 0 : mark == MEM_MARK_COLD ? 2 : 1;
}

static void sort_places(mem_component *c, place_key *keys)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        const mem_unit *u = &c->units[w->unit];
        if (!w->streamable || w->fixed) continue;
        keys[n++] = (place_key){.mark = class_of(u->mark),
                                .large = c->kind == MEM_ONESHOT ? u->streamable_bytes : 0,
                                .unit = w->unit,
                                .weight = i};
    }
    qsort(keys, n, sizeof *keys, compare_places);
    for (uint32_t i = 0; i < n; i++) {
        mem_weight *w = &c->weights[keys[i].weight];
        w->rank = i;
        c->by_rank[i] = keys[i].weight;
        c->streamable_bytes += w->bytes;
        mem_class *k = &c->classes[keys[i].mark];
        w->before = k->bytes;
        k->bytes += w->bytes;
        k->end = i + 1;
    }
    c->n_ranks = n;
    for (int k = 1; k < MEM_N_CLASSES; k++) {
        c->classes[k].begin = c->classes[k - 1].end;
        c->classes[k].end = (uint32_t)base_max(c->classes[k].end, c->classes[k].begin);
    }
}

weir_status mem_component_seal(mem_component *c, weir_error *err)
{
    if (c->sealed) return fail_sealed(c, err);
    weir_error local = {0};
    base_env *env = c->env;
    mem_span *by_offset = NULL;
    uint32_t *by_rank = NULL;
    place_key *keys = base_alloc_array(env, BASE_TAG_METADATA, c->n_weights, sizeof *keys, &local);
    if (keys == NULL) goto fail;
    by_offset = base_alloc_array(env, BASE_TAG_METADATA, c->n_weights, sizeof *by_offset, &local);
    if (by_offset == NULL) goto fail;
    by_rank = base_alloc_array(env, BASE_TAG_METADATA, c->n_weights, sizeof *by_rank, &local);
    if (by_rank == NULL) goto fail;
    c->by_offset = by_offset;
    c->by_rank = by_rank;
    decide_fixed(c);
    sort_files(c);
    mark_shared(c);
    sort_places(c, keys);
    c->sealed = true;
    base_free(env, keys);
    return WEIR_OK;

fail:
    base_free(env, by_offset);
    base_free(env, keys);
    if (err != NULL) *err = local;
    return local.code;
}

void mem_component_set_reader(mem_component *c, const mem_reader *reader)
{
    c->reader = *reader;
}

bool mem_component_weight(const mem_component *c, mem_weight_id id, mem_weight_info *out)
{
    if (id >= c->n_weights) return false;
    const mem_weight *w = &c->weights[id];
    *out = (mem_weight_info){.name = w->name,
                             .n_rows = w->n_rows,
                             .type = w->type,
                             .row_bytes = w->row_bytes,
                             .streamable = w->streamable,
                             .by_row = w->by_row,
                             .packed = w->packed};
    return true;
}

uint32_t mem_component_n_units(const mem_component *c)
{
    return c->n_units;
}

void mem_component_unit(const mem_component *c, uint32_t unit, mem_unit_info *out)
{
    *out = (mem_unit_info){.name = ""};
    if (unit >= c->n_units) return;
    const mem_unit *u = &c->units[unit];
    *out = (mem_unit_info){.name = u->name,
                           .bytes = u->bytes,
                           .streamable_bytes = u->streamable_bytes,
                           .n_weights = u->n_weights};
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        if (w->unit == unit) out->resident_bytes += w->resident_rows * w->row_bytes;
    }
}

void mem_component_stats(const mem_component *c, mem_stats *out)
{
    *out = c->stats;
    out->mapped_bytes = c->mapped_bytes;
}
