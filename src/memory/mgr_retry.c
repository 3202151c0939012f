/* Running a phase again when memory ran out (R8), and decoding in tiles. */
#include "mgr_internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_OOM_RETRIES 2

static weir_status attempt(mem_request *r, const mem_phase_desc *d, mem_run_fn fn, void *arg, uint64_t *had,
                           weir_error *err)
{
    mem_phase *p;
    for (uint32_t i = 0; i < d->n_handles; i++) had[i] = 0;
    weir_status status = mem_use(r, d, &p, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < d->n_handles; i++) had[i] = mem_mgr_held(d->handles[i]);
    status = fn(arg, p, err);
    weir_status ended = mem_phase_end(p, status == WEIR_OK ? err : NULL);
    return status != WEIR_OK ? status : ended;
}

/* Everything idle leaves the device, copies are dropped, the phase's own are capped at half of what they had.
 */
static void make_room(mem_request *r, const mem_phase_desc *d, const uint64_t *had)
{
    base_lock_enter(r->tier->lock);
    for (uint32_t i = 0; i < d->n_handles; i++) {
        mem_handle *h = d->handles[i];
        if (h->m->mem == NULL || mem_mgr_is_taken(h)) continue;
        mem_mgr_drop_slots(h);
        uint64_t before = had[i] != 0 ? had[i] : h->whole_bytes;
        h->cap_bytes = base_min(h->cap_bytes, before / 2);
        h->m->epoch++;
    }
    r->phase.n_handles = 0;
    for (uint32_t i = 0; i < d->n_handles && i < MEM_PHASE_HANDLES; i++)
        r->phase.handles[r->phase.n_handles++] = d->handles[i];
    for (uint32_t i = 0; i < r->n_managers; i++) {
        mem_manager *m = r->managers[i];
        if (m->mem == NULL) continue;
        (void)mem_mgr_yield(m, UINT64_MAX, r, &r->phase);
        m->mem->trim(m->device);
    }
    mem_mgr_leave(r->tier);
}

weir_status mem_run_phase(mem_request *r, const mem_run_desc *d, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    base_rng saved[16], *all[16];
    uint32_t n = 0;
    if (d->n_generators > 8 || d->phase.n_handles > MEM_PHASE_HANDLES)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "phase %s: more than 8 generators or 16 handles",
                         d->phase.name);
    for (uint32_t i = 0; i < r->n_generators; i++) all[n++] = r->generators[i];
    for (uint32_t i = 0; i < d->n_generators; i++) all[n++] = d->generators[i];
    for (uint32_t i = 0; i < n; i++) saved[i] = *all[i];
    uint64_t had[MEM_PHASE_HANDLES];
    base_lock_enter(r->tier->lock); /* another thread may set it */
    const bool retry = r->managers[0]->policy.oom_retry, fallback = r->managers[0]->policy.oom_fallback;
    mem_mgr_leave(r->tier);
    uint32_t oom = 0, broken = 0;
    for (;;) {
        weir_status status = attempt(r, &d->phase, d->fn, d->arg, had, err);
        if (status == WEIR_OK) return WEIR_OK;
        bool memory = status == WEIR_ERR_DEVICE_MEMORY;
        bool again = memory ? retry && oom < MAX_OOM_RETRIES
                            : status == WEIR_ERR_DEVICE && broken == 0 && !r->open && !r->late;
        bool leaner = memory && !again && fallback && d->fallback != NULL;
        if (!again && !leaner) {
            r->ran_out |= memory;
            return status;
        }
        for (uint32_t i = 0; i < n; i++) *all[i] = saved[i]; /* R1.2 */
        if (memory) make_room(r, &d->phase, had);
        if (leaner) {
            const char *name = d->fallback_name != NULL ? d->fallback_name : d->phase.name;
            size_t at = strlen(r->report.fallbacks);
            snprintf(r->report.fallbacks + at, sizeof r->report.fallbacks - at, "%s%s", at != 0 ? "," : "",
                     name);
            base_log(r->tier->env, BASE_LOG_WARN, "phase %s: fallback %s; its output differs slightly: %s",
                     d->phase.name, name, err->message);
            return attempt(r, &d->phase, d->fallback, d->arg, had, err);
        }
        oom += memory;
        broken += !memory;
        r->report.n_oom_retries += memory;
        r->report.n_device_retries += !memory;
        base_log(r->tier->env, BASE_LOG_WARN, "phase %s runs again: %s", d->phase.name, err->message);
    }
}

weir_status mem_call(mem_request *r, const mem_whole_call *c, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    mem_phase_desc d = {.name = r->name,
                        .handles = c->handles,
                        .n_handles = c->n_handles,
                        .memory_bytes = c->memory_required != NULL ? c->memory_required(c->arg) : 0};
    mem_phase *p;
    weir_status status = mem_use(r, &d, &p, err);
    if (status != WEIR_OK) return status;
    status = c->fn(c->arg, p, err);
    weir_status ended = mem_phase_end(p, status == WEIR_OK ? err : NULL);
    return status != WEIR_OK ? status : ended;
}

weir_status mem_tiled_decode(base_env *env, const mem_tiling *t, float *out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    uint64_t tile = t->tile_frames != 0 ? t->tile_frames : 256;
    uint64_t overlap = t->tile_frames != 0 ? t->overlap_frames : 32, per = t->values_per_frame;
    uint64_t bytes;
    if (overlap * 2 >= tile || per == 0 || !base_mul(tile * per, sizeof(float), &bytes))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "tiles of %llu frames overlapping by %llu, %llu values each",
                         (unsigned long long)tile, (unsigned long long)overlap, (unsigned long long)per);
    if (t->n_frames <= tile) return t->decode(t->arg, 0, t->n_frames, out, err);
    float *piece = base_alloc(env, BASE_TAG_ACTIVATIONS, bytes, err);
    if (piece == NULL) return err->code;
    weir_status status = WEIR_OK;
    for (uint64_t begin = 0; status == WEIR_OK; begin += tile - overlap) {
        uint64_t end = base_min(begin + tile, t->n_frames), faded = begin == 0 ? 0 : overlap;
        status = t->decode(t->arg, begin, end, piece, err);
        if (status != WEIR_OK) break;
        float *to = out + begin * per;
        uint64_t ramp = base_min(faded, end - begin) * per, all = (end - begin) * per;
        for (uint64_t i = 0; i < ramp; i++) {
            float w = ((float)i + 0.5f) / (float)ramp;
            to[i] = to[i] * (1 - w) + piece[i] * w;
        }
        memcpy(to + ramp, piece + ramp, (all - ramp) * sizeof(float));
        if (end == t->n_frames) break;
    }
    base_free(env, piece);
    return status;
}
