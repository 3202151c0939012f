/* Units on a device: the fixed part and the first units stay, the others pass through a few slots.
 *
 *   file --> pinned staging --+
 *                             +--> copy stream --> slot --> compute stream
 *   host copy ----------------+
 *
 * A unit that streams is copied when the one before it has been handed to the compute stream, so that
 * storage, link and computation work beside each other without a thread of our own. A slot is filled again
 * only behind the last operation that read it; both waits are between streams. */
#include "mem_internal.h"

#include <stdio.h>
#include <string.h>

#define ALIGN         256 /* of weights within a unit */
#define STAGING       2
#define STAGING_BYTES (UINT64_C(1) << 20)
#define MAX_SLOTS     2
#define NONE          UINT32_MAX

typedef struct device_unit {
    uint64_t bytes; /* of its weights that stream, laid out; 0: it has none */
    void *address;  /* resident: where it lies */
    uint8_t *host;  /* a copy in RAM */
    bool registered;
    bool entered;
} device_unit;

typedef struct device_slot {
    void *address;
    uint32_t unit; /* whose bytes it has or is getting; NONE */
    dev_ticket loaded, used;
} device_slot;

typedef struct device_source {
    mem_source source; /* first */
    base_env *env;
    mem_component *c;
    const dev_memory_table *m;
    mem_device_plan plan;
    device_unit *units;
    uint64_t *offsets; /* per weight, in its unit or in the fixed part */
    void *fixed;
    device_slot slots[MAX_SLOTS];
    struct {
        uint8_t *data;
        bool pinned;
        dev_ticket busy;
    } staging[STAGING];
    uint32_t next_staging;
    atomic_bool *cancel;
    bool in_pass;
    mem_source_stats stats;
} device_source;

static device_source *of(mem_source *s)
{
    return (device_source *)(void *)s;
}

/* ---- layout ---- */

static bool on_device(const mem_weight *w)
{
    return w->streamable || !w->by_row;
}

uint32_t mem_weight_unit(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights && !c->weights[id].fixed ? c->weights[id].unit : MEM_NO_UNIT;
}

uint32_t mem_weight_file_packed_rows(const mem_component *c, mem_weight_id id)
{
    return id < c->n_weights && c->weights[id].packed ? mem_group_rows(&c->weights[id]) : 0;
}

/* Bytes of a unit's streaming weights (MEM_NO_UNIT: of the fixed part); offsets may be NULL. */
static uint64_t lay_out(const mem_component *c, uint32_t unit, uint64_t *offsets)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        const mem_weight *w = &c->weights[i];
        if (!on_device(w) || mem_weight_unit(c, i) != unit) continue;
        if (offsets != NULL) offsets[i] = at;
        at += base_align_up(w->bytes, ALIGN);
    }
    return at;
}

void mem_device_plan_make(const mem_component *c, size_t alignment, uint64_t budget_bytes, bool none,
                          mem_device_plan *out)
{
    uint64_t largest = 0, all = 0;
    alignment = (size_t)base_max(alignment, 1);
    *out = (mem_device_plan){.budget_bytes = budget_bytes};
    out->fixed_bytes = base_align_up(lay_out(c, MEM_NO_UNIT, NULL), alignment);
    for (uint32_t u = 0; u < c->n_units; u++) {
        uint64_t bytes = base_align_up(lay_out(c, u, NULL), alignment);
        if (bytes == 0) continue;
        out->n_units++;
        all += bytes;
        largest = base_max(largest, bytes);
    }
    out->whole_bytes = out->fixed_bytes + all;
    out->smallest_bytes = base_min(out->fixed_bytes + largest, out->whole_bytes);
    if (!none && out->whole_bytes <= budget_bytes) {
        out->resident_bytes = all;
        out->n_resident = out->n_units;
        return;
    }
    /* A second slot lets the next unit arrive while one computes; it costs one that could stay, and pays only
     * where not much more streams for it. */
    out->n_slots = out->n_units > 1 && budget_bytes >= out->fixed_bytes + MAX_SLOTS * largest ? MAX_SLOTS : 1;
    out->slot_bytes = out->n_slots * largest;
    uint64_t room = budget_bytes > out->fixed_bytes + out->slot_bytes
                        ? budget_bytes - out->fixed_bytes - out->slot_bytes
                        : 0;
    for (uint32_t u = 0; u < c->n_units && !none; u++) {
        uint64_t bytes = base_align_up(lay_out(c, u, NULL), alignment);
        if (bytes == 0) continue;
        if (bytes > room) break;
        room -= bytes;
        out->resident_bytes += bytes;
        out->n_resident++;
    }
    out->streamed_bytes = all - out->resident_bytes;
}

uint64_t mem_device_staging_bytes(void)
{
    return STAGING * STAGING_BYTES;
}

/* ---- reading and copying ---- */

static weir_status check_cancel(const device_source *d, weir_error *err)
{
    return mem_is_cancelled(d->cancel) ? mem_fail_cancelled(d->c, err) : WEIR_OK;
}

/* Bytes of a weight from its file to the device, piece by piece through the staging buffers. */
static weir_status upload_file(device_source *d, const mem_weight *w, uint8_t *to, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (uint64_t at = 0; at < w->bytes && status == WEIR_OK;) {
        uint32_t i = d->next_staging++ % STAGING;
        uint64_t n = base_min(STAGING_BYTES, w->bytes - at);
        status = check_cancel(d, err);
        if (status == WEIR_OK) status = d->m->sync(d->source.device, d->staging[i].busy, err);
        double start = base_now(d->env);
        if (status == WEIR_OK)
            status = mem_read_now(d->c, w->file, w->offset + at, d->staging[i].data, n, err);
        d->stats.wait_seconds += base_now(d->env) - start;
        if (status == WEIR_OK)
            status = d->m->upload(d->source.device, DEV_STREAM_COPY, to + at, d->staging[i].data, n,
                                  &d->staging[i].busy, err);
        d->stats.read_bytes += n;
        at += n;
    }
    return status;
}

/* The weights of a unit (MEM_NO_UNIT: the fixed part) to where they belong on the device. */
static weir_status upload_unit(device_source *d, uint32_t unit, uint8_t *to, weir_error *err)
{
    const uint8_t *host = unit != MEM_NO_UNIT ? d->units[unit].host : NULL;
    weir_status status = check_cancel(d, err);
    if (status == WEIR_OK && host != NULL)
        return d->m->upload(d->source.device, DEV_STREAM_COPY, to, host, d->units[unit].bytes, NULL, err);
    for (uint32_t i = 0; i < d->c->n_weights && status == WEIR_OK; i++) {
        const mem_weight *w = &d->c->weights[i];
        if (!on_device(w) || mem_weight_unit(d->c, i) != unit) continue;
        status = upload_file(d, w, to + d->offsets[i], err);
        if (status != WEIR_OK) base_fail_context(err, status, "weight %s", w->name);
    }
    return status;
}

static void set_open(const device_source *d, void *address, uint64_t bytes, bool open)
{
    if (d->m->open == NULL || address == NULL || bytes == 0) return;
    if (open)
        d->m->open(d->source.device, address, bytes);
    else
        d->m->close(d->source.device, address, bytes);
}

static void guard(const device_source *d, void *address, uint64_t bytes)
{
    if (d->m->guard != NULL && address != NULL && bytes != 0) d->m->guard(d->source.device, address, bytes);
}

/* ---- slots ---- */

static device_slot *slot_with(device_source *d, uint32_t unit)
{
    for (uint32_t i = 0; i < d->plan.n_slots; i++)
        if (d->slots[i].unit == unit) return &d->slots[i];
    return NULL;
}

/* A slot that no entered unit is in: an empty one, else the one used longest ago. */
static device_slot *slot_free(device_source *d)
{
    device_slot *best = NULL;
    for (uint32_t i = 0; i < d->plan.n_slots; i++) {
        device_slot *s = &d->slots[i];
        if (s->unit == NONE) return s;
        if (d->units[s->unit].entered) continue;
        if (best == NULL || s->used.value < best->used.value) best = s;
    }
    return best;
}

static weir_status fill_slot(device_source *d, device_slot *s, uint32_t unit, weir_error *err)
{
    dev_device *device = d->source.device;
    s->unit = NONE;
    weir_status status = d->m->wait_on(device, DEV_STREAM_COPY, s->used, err);
    if (status == WEIR_OK) status = upload_unit(d, unit, s->address, err);
    if (status == WEIR_OK) status = d->m->mark(device, DEV_STREAM_COPY, &s->loaded, err);
    if (status != WEIR_OK) return status;
    s->unit = unit;
    d->stats.n_copies++;
    d->stats.streamed_bytes += d->units[unit].bytes;
    return WEIR_OK;
}

static bool streams(const device_source *d, uint32_t unit)
{
    return d->units[unit].bytes != 0 && d->units[unit].address == NULL;
}

static weir_status device_enter(mem_source *source, uint32_t unit, weir_error *err)
{
    device_source *d = of(source);
    if (unit >= d->c->n_units || !d->in_pass)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: unit %u entered outside a pass",
                         d->c->name, unit);
    device_unit *u = &d->units[unit];
    if (!streams(d, unit)) {
        set_open(d, u->address, u->bytes, true);
        u->entered = true;
        return WEIR_OK;
    }
    device_slot *s = slot_with(d, unit);
    weir_status status = WEIR_OK;
    if (s != NULL) {
        d->stats.n_hits++;
    } else {
        s = slot_free(d);
        if (s == NULL)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "component %s: more units entered than %u slots hold", d->c->name,
                             d->plan.n_slots);
        status = fill_slot(d, s, unit, err);
    }
    if (status == WEIR_OK) status = d->m->wait_on(source->device, DEV_STREAM_COMPUTE, s->loaded, err);
    if (status != WEIR_OK)
        return base_fail_context(err, status, "component %s, %s", d->c->name, d->c->units[unit].name);
    set_open(d, s->address, u->bytes, true);
    u->entered = true;
    return WEIR_OK;
}

static void device_leave(mem_source *source, uint32_t unit)
{
    device_source *d = of(source);
    device_unit *u = &d->units[unit];
    if (!u->entered) return;
    u->entered = false;
    if (!streams(d, unit)) {
        set_open(d, u->address, u->bytes, false);
    } else {
        device_slot *s = slot_with(d, unit);
        set_open(d, s->address, u->bytes, false);
        if (d->m->mark(source->device, DEV_STREAM_COMPUTE, &s->used, NULL) != WEIR_OK) s->unit = NONE;
    }
    if (d->plan.n_slots < 2 || !d->in_pass) return;
    uint32_t next = unit + 1;
    while (next < d->c->n_units && !streams(d, next)) next++;
    if (next == d->c->n_units || slot_with(d, next) != NULL) return;
    device_slot *s = slot_free(d);
    /* What fails here is tried again, and told, when the unit is entered. */
    if (s != NULL) fill_slot(d, s, next, NULL);
}

static weir_status device_address(mem_source *source, mem_weight_id id, void **address, weir_error *err)
{
    device_source *d = of(source);
    if (id >= d->c->n_weights || !on_device(&d->c->weights[id]))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: weight %u is not on the device",
                         d->c->name, id);
    uint32_t unit = mem_weight_unit(d->c, id);
    uint8_t *base = d->fixed;
    if (unit != MEM_NO_UNIT) {
        const device_slot *s = streams(d, unit) ? slot_with(d, unit) : NULL;
        base = s != NULL ? s->address : d->units[unit].address;
        if (!d->units[unit].entered)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "weight %s is used outside its unit %s",
                             d->c->weights[id].name, d->c->units[unit].name);
    }
    *address = base + d->offsets[id];
    return WEIR_OK;
}

/* ---- passes ---- */

static weir_status device_begin(mem_source *source, atomic_bool *cancel, weir_error *err)
{
    device_source *d = of(source);
    if (d->in_pass)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "component %s: a pass within a pass", d->c->name);
    for (uint32_t i = 0; i < d->c->n_files; i++) {
        weir_status status = d->plan.n_slots != 0 ? base_file_check(d->c->files[i], err) : WEIR_OK;
        if (status != WEIR_OK) return status;
    }
    d->in_pass = true;
    d->cancel = cancel;
    set_open(d, d->fixed, d->plan.fixed_bytes, true);
    return WEIR_OK;
}

static weir_status device_end(mem_source *source, weir_error *err)
{
    device_source *d = of(source);
    dev_device *device = source->device;
    dev_ticket t;
    weir_error local = {0};
    d->in_pass = false;
    for (uint32_t u = 0; u < d->c->n_units; u++) device_leave(source, u);
    set_open(d, d->fixed, d->plan.fixed_bytes, false);
    for (uint32_t stream = 0; stream <= DEV_STREAM_COPY && local.code == WEIR_OK; stream++)
        if (d->m->mark(device, stream, &t, &local) == WEIR_OK) d->m->sync(device, t, &local);
    d->cancel = NULL;
    if (local.code == WEIR_OK) return WEIR_OK;
    d->m->recover(device, NULL);
    for (uint32_t i = 0; i < d->plan.n_slots; i++) d->slots[i].unit = NONE;
    if (err != NULL) *err = local;
    return local.code;
}

static weir_status device_alloc(mem_source *source, uint64_t bytes, const char *label, void **address,
                                weir_error *err)
{
    device_source *d = of(source);
    weir_status status = d->m->alloc(source->device, bytes, label, address, err);
    if (status == WEIR_OK) d->stats.kept_bytes += bytes;
    return status;
}

static void device_free(mem_source *source, void *address, uint64_t bytes)
{
    device_source *d = of(source);
    if (address == NULL) return;
    d->m->free(source->device, address);
    d->stats.kept_bytes -= bytes;
}

static void device_stats(const mem_source *source, mem_source_stats *out)
{
    *out = ((const device_source *)(const void *)source)->stats;
}

/* ---- life ---- */

static void device_destroy(mem_source *source)
{
    device_source *d = of(source);
    base_env *env = d->env;
    dev_device *device = source->device;
    d->m->recover(device, NULL); /* nothing is under way any more */
    for (uint32_t u = 0; d->units != NULL && u < d->c->n_units; u++) {
        device_unit *unit = &d->units[u];
        d->m->free(device, unit->address);
        if (unit->registered) d->m->pin_unregister(device, unit->host);
        base_pages_free(env, BASE_TAG_WEIGHTS_RESIDENT, unit->host, unit->bytes);
    }
    for (uint32_t i = 0; i < MAX_SLOTS; i++) d->m->free(device, d->slots[i].address);
    d->m->free(device, d->fixed);
    for (uint32_t i = 0; i < STAGING; i++) {
        if (!d->staging[i].pinned) {
            base_pages_free(env, BASE_TAG_IO, d->staging[i].data, STAGING_BYTES);
        } else {
            d->m->pin_free(device, d->staging[i].data, STAGING_BYTES);
            base_ledger_release(env, BASE_TAG_IO, STAGING_BYTES);
        }
    }
    base_free(env, d->offsets);
    base_free(env, d->units);
    base_free(env, d);
}

/* Pinned where the device gives it (R5.4), else pageable. */
static weir_status make_staging(device_source *d, weir_error *err)
{
    for (uint32_t i = 0; i < STAGING; i++) {
        void *p = NULL;
        weir_status status = base_ledger_reserve(d->env, BASE_TAG_IO, STAGING_BYTES, err);
        if (status != WEIR_OK) return status;
        d->staging[i].pinned = d->m->pin_alloc(d->source.device, STAGING_BYTES, &p, NULL) == WEIR_OK;
        if (d->staging[i].pinned) {
            d->staging[i].data = p;
            d->stats.pinned_bytes += STAGING_BYTES;
            continue;
        }
        base_ledger_release(d->env, BASE_TAG_IO, STAGING_BYTES);
        d->staging[i].data = base_pages_alloc(d->env, BASE_TAG_IO, STAGING_BYTES, false, err);
        if (d->staging[i].data == NULL) return err->code;
    }
    return WEIR_OK;
}

static weir_status allocate(device_source *d, weir_error *err)
{
    const mem_device_plan *p = &d->plan;
    dev_device *device = d->source.device;
    weir_status status = WEIR_OK;
    uint32_t n_resident = 0;
    if (p->fixed_bytes != 0) {
        status = d->m->alloc(device, p->fixed_bytes, "the fixed part", &d->fixed, err);
        d->stats.fixed_bytes = p->fixed_bytes;
    }
    for (uint32_t u = 0; u < d->c->n_units && status == WEIR_OK; u++) {
        device_unit *unit = &d->units[u];
        if (unit->bytes == 0 || n_resident == p->n_resident) continue;
        n_resident++;
        status = d->m->alloc(device, unit->bytes, d->c->units[u].name, &unit->address, err);
        if (status == WEIR_OK) guard(d, unit->address, unit->bytes);
    }
    for (uint32_t i = 0; i < p->n_slots && status == WEIR_OK; i++) {
        uint64_t bytes = p->slot_bytes / p->n_slots;
        status = d->m->alloc(device, bytes, "a slot for units that stream", &d->slots[i].address, err);
        if (status == WEIR_OK) guard(d, d->slots[i].address, bytes);
    }
    guard(d, d->fixed, p->fixed_bytes);
    d->stats.resident_bytes = p->resident_bytes;
    d->stats.slot_bytes = p->slot_bytes;
    return status;
}

/* As many copies of units that stream as `room` holds; one that the budget refuses is none. */
static weir_status make_host_copies(device_source *d, uint64_t room, weir_error *err)
{
    for (uint32_t u = 0; u < d->c->n_units; u++) {
        device_unit *unit = &d->units[u];
        uint64_t bytes = base_align_up(unit->bytes, MEM_PAGE_BYTES);
        weir_status status = WEIR_OK;
        if (!streams(d, u) || bytes > room) continue;
        unit->host = base_pages_alloc(d->env, BASE_TAG_WEIGHTS_RESIDENT, unit->bytes, false, NULL);
        if (unit->host == NULL) return WEIR_OK;
        room -= bytes;
        d->stats.host_bytes += bytes;
        for (uint32_t i = 0; i < d->c->n_weights && status == WEIR_OK; i++) {
            const mem_weight *w = &d->c->weights[i];
            if (!on_device(w) || mem_weight_unit(d->c, i) != u) continue;
            status = check_cancel(d, err);
            if (status == WEIR_OK)
                status = mem_read_now(d->c, w->file, w->offset, unit->host + d->offsets[i], w->bytes, err);
        }
        if (status != WEIR_OK) return status;
        unit->registered = d->m->pin_register(d->source.device, unit->host, unit->bytes, NULL) == WEIR_OK;
        if (unit->registered) d->stats.pinned_bytes += bytes;
    }
    return WEIR_OK;
}

static weir_status load(device_source *d, const mem_device_options *o, weir_error *err)
{
    uint64_t total = d->plan.fixed_bytes + d->plan.resident_bytes, done = d->plan.fixed_bytes;
    dev_ticket t;
    weir_status status = WEIR_OK;
    if (d->fixed != NULL) status = upload_unit(d, MEM_NO_UNIT, d->fixed, err);
    for (uint32_t u = 0; u < d->c->n_units && status == WEIR_OK; u++) {
        if (d->units[u].address == NULL) continue;
        status = upload_unit(d, u, d->units[u].address, err);
        done += d->units[u].bytes;
        if (status == WEIR_OK && o->progress != NULL)
            o->progress(o->progress_arg, base_min(done, total), total);
    }
    /* The compute stream reads it without asking again. */
    if (status == WEIR_OK) status = d->m->mark(d->source.device, DEV_STREAM_COPY, &t, err);
    if (status == WEIR_OK) status = d->m->sync(d->source.device, t, err);
    if (status == WEIR_OK) status = make_host_copies(d, o->host_copy_bytes, err);
    return status;
}

static const mem_source_table device_table = {
    .destroy = device_destroy,
    .begin = device_begin,
    .end = device_end,
    .enter = device_enter,
    .leave = device_leave,
    .address = device_address,
    .alloc = device_alloc,
    .free = device_free,
    .stats = device_stats,
};

weir_status mem_device_source_create(mem_component *c, dev_device *device, const mem_device_plan *plan,
                                     const mem_device_options *options, mem_source **out, weir_error *err)
{
    weir_error local = {0};
    device_source *d = base_alloc(c->env, BASE_TAG_METADATA, sizeof *d, &local);
    if (d == NULL) return base_fail(err, local.code, "%s", local.message);
    d->source = (mem_source){.table = &device_table, .device = device, .component = c};
    d->env = c->env;
    d->c = c;
    d->m = device->table->memory;
    d->plan = *plan;
    d->cancel = options->cancel;
    for (uint32_t i = 0; i < MAX_SLOTS; i++) d->slots[i].unit = NONE;
    d->units = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_units, sizeof *d->units, &local);
    if (d->units == NULL) goto fail;
    d->offsets = base_alloc_array(c->env, BASE_TAG_METADATA, c->n_weights, sizeof *d->offsets, &local);
    if (d->offsets == NULL) goto fail;
    lay_out(c, MEM_NO_UNIT, d->offsets);
    for (uint32_t u = 0; u < c->n_units; u++) d->units[u].bytes = lay_out(c, u, d->offsets);
    if (make_staging(d, &local) != WEIR_OK) goto fail;
    if (allocate(d, &local) != WEIR_OK) goto fail;
    if (load(d, options, &local) != WEIR_OK) goto fail;
    d->stats.read_bytes = 0; /* from here on for slots */
    d->stats.wait_seconds = 0;
    d->stats.n_units = plan->n_units;
    d->stats.n_resident = plan->n_resident;
    d->stats.n_slots = plan->n_slots;
    d->cancel = NULL;
    *out = &d->source;
    return WEIR_OK;

fail:
    device_destroy(&d->source);
    return base_fail(err, local.code, "component %s on the device: %s", c->name, local.message);
}
