/* Registration of a component on a device: weights into units, the default rule, the fixed part. */
#include "mgr_internal.h"

#include <string.h>

static weir_status grow(base_env *env, void **items, uint32_t n, uint32_t *cap, size_t size, weir_error *err)
{
    if (n < *cap) return WEIR_OK;
    weir_error local;
    if (err == NULL) err = &local;
    uint32_t more = *cap != 0 ? *cap * 2 : 16;
    uint64_t bytes;
    if (!base_mul(more, size, &bytes))
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%u entries are more than memory can hold", more);
    void *p = base_realloc(env, BASE_TAG_METADATA, *items, bytes, err);
    if (p == NULL) return err->code;
    *items = p;
    *cap = more;
    return WEIR_OK;
}

weir_status mem_handle_create(mem_manager *m, const char *engine, const char *component, mem_kind kind,
                              mem_handle **out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    mem_handle *h = base_alloc(m->env, BASE_TAG_METADATA, sizeof *h, err);
    if (h == NULL) return err->code;
    *h = (mem_handle){.m = m,
                      .kind = kind,
                      .cap_bytes = UINT64_MAX,
                      .limit_bytes = UINT64_MAX,
                      .copy_limit_bytes = UINT64_MAX,
                      .calibration = 1,
                      .reason = ""};
    h->last_unit = MGR_NONE;
    h->used_at = base_now(m->env);
    h->engine = base_strdup(m->env, BASE_TAG_METADATA, engine, err);
    if (h->engine != NULL) h->component = base_strdup(m->env, BASE_TAG_METADATA, component, err);
    if (h->component == NULL) {
        base_free(m->env, h->engine);
        base_free(m->env, h);
        return err->code;
    }
    base_lock_enter(m->tier->lock);
    h->calibration = mem_mgr_calibration(m, engine, component);
    h->next = m->handles;
    m->handles = h;
    mem_mgr_leave(m->tier);
    *out = h;
    return WEIR_OK;
}

static weir_status fail_sealed(const mem_handle *h, weir_error *err)
{
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s: nothing can be added after it was sealed",
                     h->engine, h->component);
}

static weir_status put_unit(mem_handle *h, const char *name, size_t n, mem_mark mark, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    weir_status status =
        grow(h->m->env, (void **)&h->units, h->n_units + 2, &h->cap_units, sizeof *h->units, err);
    if (status != WEIR_OK) return status;
    char *copy = base_strndup(h->m->env, BASE_TAG_METADATA, name, n, err);
    if (copy == NULL) return err->code;
    h->units[h->n_units++] = (mgr_unit){.name = copy, .mark = mark, .slot = MGR_NONE, .next = MGR_NONE};
    return WEIR_OK;
}

weir_status mem_handle_add_unit(mem_handle *h, const char *name, mem_mark mark, uint32_t *unit,
                                weir_error *err)
{
    if (h->sealed) return fail_sealed(h, err);
    weir_status status = put_unit(h, name, strlen(name), mark, err);
    if (status == WEIR_OK) *unit = h->n_units - 1;
    return status;
}

static weir_status check_source(const mem_handle *h, const char *name, const mem_handle_weight *w,
                                weir_error *err)
{
    uint64_t end;
    if (w->bytes == 0 || w->bytes > MGR_MAX_BYTES || (w->host == NULL) == (w->file == NULL))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s:%s, weight %s: %llu bytes from %s; it needs bytes and one source", h->engine,
                         h->component, name, (unsigned long long)w->bytes,
                         w->host == NULL ? "nowhere or a file" : "memory and a file");
    if (w->file != NULL && w->changes)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s:%s, weight %s: what compute changes needs host memory to be copied back to",
                         h->engine, h->component, name);
    if (w->file != NULL && (!base_add(w->offset, w->bytes, &end) || end > base_file_size(w->file)))
        return base_fail(err, WEIR_ERR_TRUNCATED,
                         "%s: weight %s (%llu bytes at offset %llu) passes the end of the file (%llu bytes)",
                         base_file_path(w->file), name, (unsigned long long)w->bytes,
                         (unsigned long long)w->offset, (unsigned long long)base_file_size(w->file));
    return WEIR_OK;
}

weir_status mem_handle_add_weight(mem_handle *h, uint32_t unit, const mem_handle_weight *w, mem_weight_id *id,
                                  weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    if (h->sealed) return fail_sealed(h, err);
    if (unit != MEM_UNIT_DEFAULT && unit >= h->n_units)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s, weight %s: unit %u does not exist",
                         h->engine, h->component, w->name, unit);
    weir_status status = check_source(h, w->name, w, err);
    if (status == WEIR_OK && h->whole_bytes + w->bytes > MGR_MAX_BYTES)
        status = base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s is too large", h->engine, h->component);
    if (status == WEIR_OK)
        status =
            grow(h->m->env, (void **)&h->weights, h->n_weights, &h->cap_weights, sizeof *h->weights, err);
    if (status != WEIR_OK) return status;
    char *copy = base_strdup(h->m->env, BASE_TAG_METADATA, w->name, err);
    if (copy == NULL) return err->code;
    h->weights[h->n_weights] = (mgr_weight){.name = copy, .source = *w, .unit = unit};
    h->whole_bytes += w->bytes;
    *id = h->n_weights++;
    return WEIR_OK;
}

weir_status mem_handle_mark(mem_handle *h, const char *path, mem_mark mark, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    if (h->sealed) return fail_sealed(h, err);
    weir_status status =
        grow(h->m->env, (void **)&h->marks, h->n_marks, &h->cap_marks, sizeof *h->marks, err);
    if (status != WEIR_OK) return status;
    char *copy = base_strdup(h->m->env, BASE_TAG_METADATA, path, err);
    if (copy == NULL) return err->code;
    h->marks[h->n_marks].path = copy;
    h->marks[h->n_marks++].mark = mark;
    return WEIR_OK;
}

static mem_mark mark_of(const mem_handle *h, const char *name)
{
    size_t longest = 0;
    mem_mark mark = MEM_MARK_NONE;
    for (uint32_t i = 0; i < h->n_marks; i++) {
        size_t n = strlen(h->marks[i].path);
        if (strncmp(name, h->marks[i].path, n) != 0 || (name[n] != '\0' && name[n] != '.') || n < longest)
            continue;
        longest = n;
        mark = h->marks[i].mark;
    }
    return mark;
}

/* The length of a name up to its first part that is a number, or 0. */
static size_t child_length(const char *name)
{
    for (const char *p = name;; p++) {
        size_t n = strspn(p, "0123456789");
        if (n != 0 && (p[n] == '.' || p[n] == '\0')) return (size_t)(p - name) + n;
        p += strcspn(p, ".");
        if (*p == '\0') return 0;
    }
}

static bool is_fixed(const mgr_weight *w)
{
    return !w->source.streamable || w->source.shared || w->source.changes || w->mark == MEM_MARK_FIXED;
}

/* R4.1 */
static weir_status apply_default_rule(mem_handle *h, weir_error *err)
{
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->unit != MEM_UNIT_DEFAULT) continue;
        w->mark = mark_of(h, w->name);
        size_t n = child_length(w->name);
        if (n == 0 || w->mark == MEM_MARK_CPU) continue;
        uint64_t bytes = 0;
        for (uint32_t j = i; j < h->n_weights; j++)
            if (strncmp(h->weights[j].name, w->name, n) == 0 && child_length(h->weights[j].name) == n)
                bytes += h->weights[j].source.bytes;
        if (bytes < MGR_DEFAULT_UNIT_BYTES) continue;
        weir_status status = put_unit(h, w->name, n, MEM_MARK_NONE, err);
        if (status != WEIR_OK) return status;
        h->units[h->n_units - 1].mark = mark_of(h, h->units[h->n_units - 1].name);
        for (uint32_t j = i; j < h->n_weights; j++) {
            mgr_weight *o = &h->weights[j];
            if (o->unit != MEM_UNIT_DEFAULT || strncmp(o->name, w->name, n) != 0 ||
                child_length(o->name) != n)
                continue;
            o->mark = mark_of(h, o->name);
            if (o->mark != MEM_MARK_CPU) o->unit = h->n_units - 1;
        }
    }
    return WEIR_OK;
}

/* Units without weights of their own go; R4.3. */
static void settle_units(mem_handle *h)
{
    uint32_t fixed = h->n_units;
    for (uint32_t u = 0; u < fixed; u++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < h->n_weights; i++)
            if (h->weights[i].unit == u && !is_fixed(&h->weights[i])) bytes += h->weights[i].source.bytes;
        mem_mark mark = h->units[u].mark;
        for (uint32_t i = 0; i < h->n_weights; i++) {
            mgr_weight *w = &h->weights[i];
            if (w->unit != u) continue;
            if (mark == MEM_MARK_CPU)
                w->unit = fixed + 1;
            else if (mark == MEM_MARK_FIXED || bytes < MGR_SMALL_BYTES || is_fixed(w))
                w->unit = fixed;
        }
    }
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        if (w->unit == MEM_UNIT_DEFAULT) w->unit = w->mark == MEM_MARK_CPU ? fixed + 1 : fixed;
    }
}

static int rank(const mgr_unit *u)
{
    return u->mark == MEM_MARK_HOT ? 0 : u->mark == MEM_MARK_COLD ? 2 : 1;
}

static bool keeps_before(const mem_handle *h, uint32_t a, uint32_t b)
{
    const mgr_unit *x = &h->units[a], *y = &h->units[b];
    if (rank(x) != rank(y)) return rank(x) < rank(y);
    if (h->kind == MEM_ONESHOT && x->bytes != y->bytes) return x->bytes > y->bytes;
    return a < b;
}

weir_status mem_handle_seal(mem_handle *h, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    if (h->sealed) return WEIR_OK;
    weir_status status = apply_default_rule(h, err);
    if (status == WEIR_OK)
        status = grow(h->m->env, (void **)&h->units, h->n_units + 2, &h->cap_units, sizeof *h->units, err);
    if (status != WEIR_OK) return status;
    h->order = base_alloc_array(h->m->env, BASE_TAG_METADATA, h->n_units + 1u, sizeof *h->order, err);
    if (h->order == NULL) return err->code;
    settle_units(h);
    h->units[h->n_units] = (mgr_unit){.slot = MGR_NONE, .next = MGR_NONE};
    h->units[h->n_units + 1] = (mgr_unit){.slot = MGR_NONE, .next = MGR_NONE};
    /* A block is aligned as the device wants it; within it weights are as views must be. */
    uint64_t view = base_min(h->m->alignment, MGR_VIEW_ALIGN);
    for (uint32_t i = 0; i < h->n_weights; i++) {
        mgr_weight *w = &h->weights[i];
        mgr_unit *u = &h->units[w->unit];
        w->at = u->bytes;
        u->bytes += base_align_up(w->source.bytes, view);
        u->n_weights++;
    }
    for (uint32_t i = 0; i <= h->n_units; i++)
        h->units[i].bytes = base_align_up(h->units[i].bytes, h->m->alignment);
    h->whole_bytes = h->units[h->n_units].bytes;
    for (uint32_t i = 0; i < h->n_units; i++) {
        h->whole_bytes += h->units[i].bytes;
        uint32_t k = i;
        for (; k > 0 && keeps_before(h, i, h->order[k - 1]); k--) h->order[k] = h->order[k - 1];
        h->order[k] = i;
    }
    base_lock_enter(h->m->tier->lock); /* who looks for what may yield looks at those that are sealed */
    h->sealed = true;
    mem_mgr_leave(h->m->tier);
    return WEIR_OK;
}

void mem_handle_destroy(mem_handle *h)
{
    if (h == NULL) return;
    mem_manager *m = h->m;
    base_lock_enter(m->tier->lock);
    while (h->leaving) base_lock_wait(m->tier->lock, 1);
    if (m->mem != NULL && h->sealed) mem_mgr_move_off(h, false); /* R6.2 */
    mem_handle **at = &m->handles;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    for (mgr_kept *k = m->kept; k != NULL; k = k->next)
        if (k->owner == h) k->owner = NULL;
    m->epoch++;
    if (h->sealed) mem_mgr_host_release(h);
    mem_mgr_drop_ram(h);
    mem_mgr_leave(m->tier);
    for (uint32_t i = 0; i < h->n_weights; i++) base_free(m->env, h->weights[i].name);
    for (uint32_t i = 0; i < h->n_units; i++) base_free(m->env, h->units[i].name);
    for (uint32_t i = 0; i < h->n_marks; i++) base_free(m->env, h->marks[i].path);
    base_free(m->env, h->weights);
    base_free(m->env, h->units);
    base_free(m->env, h->marks);
    base_free(m->env, h->order);
    base_free(m->env, h->component);
    base_free(m->env, h->engine);
    base_free(m->env, h);
}

weir_status mem_handle_unload(mem_handle *h, bool host, weir_error *err)
{
    weir_status status = WEIR_OK;
    base_lock_enter(h->m->tier->lock);
    while (h->leaving) base_lock_wait(h->m->tier->lock, 1);
    if (h->user != NULL) {
        status = base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s is used by request %s", h->engine,
                           h->component, h->user->name);
    } else {
        if (h->m->mem != NULL && h->sealed && !mem_mgr_move_off(h, true))
            status = base_fail(
                err, WEIR_ERR_DEVICE,
                "%s:%s stays on the device, since what was computed there could not be copied back; "
                "try again, or destroy it",
                h->engine, h->component);
        host = host && status == WEIR_OK;
        if (host && h->sealed) mem_mgr_host_release(h);
        if (host) mem_mgr_drop_ram(h);
    }
    mem_mgr_leave(h->m->tier);
    return status;
}

weir_status mem_handle_replace(mem_handle *h, mem_weight_id id, const mem_handle_weight *source,
                               weir_error *err)
{
    if (!h->sealed || id >= h->n_weights || source->bytes != h->weights[id].source.bytes)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s:%s: weight %u cannot be replaced by %llu bytes; the length must stay", h->engine,
                         h->component, id, (unsigned long long)source->bytes);
    mgr_weight *w = &h->weights[id];
    mem_handle_weight checked = *source;
    checked.changes = w->source.changes;
    weir_status status = check_source(h, w->name, &checked, err);
    if (status != WEIR_OK) return status;
    base_lock_enter(h->m->tier->lock);
    while (h->leaving) base_lock_wait(h->m->tier->lock, 1);
    if (h->user != NULL) {
        status = base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%s:%s, weight %s: request %s uses it", h->engine,
                           h->component, w->name, h->user->name);
    } else {
        /* What is on the device or was read into RAM is stale: it is loaded anew with the next phase. */
        if (h->m->mem != NULL) {
            mem_mgr_drop_slots(h);
            if (w->unit <= h->n_units && !mem_mgr_drop_unit(h, w->unit, true)) {
                status = base_fail(err, WEIR_ERR_DEVICE,
                                   "%s:%s, weight %s: what was computed beside it could not be copied back",
                                   h->engine, h->component, w->name);
                goto done;
            }
            mem_mgr_drop_image(h, w->unit);
            mem_mgr_unpin(h->m, w);
        }
        mem_mgr_drop_ram(h);
        h->m->epoch++;
        w->source.host = source->host;
        w->source.file = source->file;
        w->source.offset = source->offset;
        w->source.storage = source->storage;
        w->source.storage_bytes = source->storage_bytes;
    }
done:
    mem_mgr_leave(h->m->tier);
    return status;
}

void mem_handle_limit_copies(mem_handle *h, uint64_t bytes, bool own_word)
{
    base_lock_enter(h->m->tier->lock);
    h->copy_limit_bytes = bytes;
    h->copies_own_word = own_word;
    mem_mgr_leave(h->m->tier);
}

void mem_handle_limit_weights(mem_handle *h, uint64_t bytes)
{
    base_lock_enter(h->m->tier->lock);
    h->limit_bytes = bytes;
    h->m->epoch++;
    mem_mgr_leave(h->m->tier);
}

void mem_handle_on_load(mem_handle *h, void (*fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes),
                        void *arg)
{
    h->on_load = fn;
    h->on_load_arg = arg;
}

void mem_handle_get_info(const mem_handle *h, mem_handle_info *out)
{
    base_lock_enter(h->m->tier->lock);
    *out = (mem_handle_info){.engine = h->engine,
                             .component = h->component,
                             .manager = h->m,
                             .kind = h->kind,
                             .n_units = h->n_units,
                             .n_weights = h->n_weights,
                             .size_bytes = h->whole_bytes,
                             .slot_bytes = h->n_slots * h->slot_bytes,
                             .host_bytes = h->ram != NULL ? h->ram_bytes : 0,
                             .streamed_bytes = h->streamed_bytes,
                             .kept_bytes = h->kept_bytes,
                             .n_slots = h->n_slots,
                             .from_storage = h->n_slots != 0 && h->prefetch.from_storage,
                             .copies_ahead = h->n_slots != 0 && mem_mgr_copies_ahead(h),
                             .prefetch = mem_mgr_prefetch_text(h),
                             .round_s_without = h->prefetch.round_s[0],
                             .round_s_with = h->prefetch.round_s[1],
                             .reason = h->reason,
                             .busy = h->user != NULL};
    for (uint32_t i = 0; h->sealed && i <= h->n_units; i++) {
        const mgr_unit *u = &h->units[i];
        out->n_resident += i < h->n_units && u->filled;
        if (u->image != NULL) out->host_bytes += u->image_bytes;
        if (u->image != NULL && u->image_pinned) out->pinned_bytes += u->image_bytes;
    }
    for (uint32_t i = 0; i < h->n_weights; i++)
        if (h->weights[i].pinned) out->pinned_bytes += h->weights[i].source.bytes;
    if (h->sealed) {
        out->fixed_bytes = h->units[h->n_units].bytes;
        out->smallest_bytes = mem_mgr_smallest(h, h->n_units != 0);
        out->loaded_bytes = mem_mgr_held(h) - out->slot_bytes;
        out->whole = mem_mgr_is_whole(h);
        if (out->whole) out->reason = "";
    }
    mem_mgr_leave(h->m->tier);
}

bool mem_handle_get_unit(const mem_handle *h, uint32_t i, mem_handle_unit *out)
{
    if (i >= h->n_units) return false;
    const mgr_unit *u = &h->units[i];
    *out = (mem_handle_unit){u->name, u->bytes, u->n_weights, u->mark, u->filled};
    return true;
}

uint32_t mem_handle_unit_of(const mem_handle *h, mem_weight_id id)
{
    return id < h->n_weights && h->weights[id].unit < h->n_units ? h->weights[id].unit : MEM_UNIT_DEFAULT;
}
