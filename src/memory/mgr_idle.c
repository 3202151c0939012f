/* Idle components leave the device: models beyond a number, those idle for a time, all after a failure
 * (R7.6). A model is what an engine registered, or one language model. */
#include "mgr_internal.h"

#include <string.h>

static bool same_model(const mem_handle *a, const mem_handle *b)
{
    return a == b || (!a->is_model && !b->is_model && strcmp(a->engine, b->engine) == 0);
}

static bool is_there(const mem_handle *h)
{
    return h->sealed && h->m->mem != NULL && mem_mgr_held(h) != 0;
}

/* Of all managers of the tier, one after the other; NULL as h: the first one. */
static mem_handle *next_handle(const mgr_tier *t, const mem_handle *h)
{
    const mem_manager *m = h != NULL ? h->m : NULL;
    mem_handle *next = h != NULL ? h->next : NULL;
    while (next == NULL && (m = m != NULL ? m->next : t->managers) != NULL) next = m->handles;
    return next;
}

static bool counts(const mem_handle *h, const mem_phase *p)
{
    return is_there(h) || (h->m->mem != NULL && mem_mgr_lists(p, h));
}

/* The first of a model's handles that count stands for it. */
static uint32_t count_models(const mgr_tier *t, const mem_phase *p)
{
    uint32_t n = 0;
    for (const mem_handle *h = next_handle(t, NULL); h != NULL; h = next_handle(t, h)) {
        const mem_handle *o = next_handle(t, NULL);
        while (o != h && !(counts(o, p) && same_model(o, h))) o = next_handle(t, o);
        n += o == h && counts(h, p);
    }
    return n;
}

/* When the model of h was last used, by the tier's clock and in seconds; false while any of it is in use, or
 * p lists some of it. */
static bool last_use(const mem_handle *h, const mem_phase *p, uint64_t *used, double *used_at)
{
    const mgr_tier *t = h->m->tier;
    *used = 0;
    *used_at = h->used_at;
    for (const mem_handle *o = next_handle(t, NULL); o != NULL; o = next_handle(t, o)) {
        if (!same_model(o, h)) continue;
        if (mem_mgr_is_taken(o) || mem_mgr_lists(p, o)) return false;
        *used = base_max(*used, o->used);
        if (o->used_at > *used_at) *used_at = o->used_at;
    }
    return true;
}

/* Of the model that is idle, there, and used longest ago; those that could not leave since then and pinned
 * ones are passed over. */
static mem_handle *oldest(const mgr_tier *t, const mem_phase *p, uint64_t since)
{
    mem_handle *found = NULL;
    uint64_t first = 0, used;
    double used_at;
    for (mem_handle *h = next_handle(t, NULL); h != NULL; h = next_handle(t, h)) {
        if (!is_there(h) || h->stuck >= since || mem_mgr_is_pinned_model(h)) continue;
        if (!last_use(h, p, &used, &used_at) || (found != NULL && used >= first)) continue;
        found = h;
        first = used;
    }
    return found;
}

void mem_mgr_keep_few(mem_request *r, const mem_phase *p)
{
    mgr_tier *t = r->tier;
    mem_handle *h;
    const uint32_t most = r->managers[0]->policy.max_resident_models;
    if (most == 0) return;
    const uint64_t since = ++t->clock;
    /* Where all others are in use or pinned, there are more for now. */
    while (count_models(t, p) > most && (h = oldest(t, p, since)) != NULL) {
        uint64_t before = mem_mgr_held(h);
        if (!mem_mgr_move_off(h, true)) h->stuck = since;
        if (mem_mgr_held(h) == before) continue;
        mem_mgr_note_yield(h, r, p, before - mem_mgr_held(h));
        h->m->mem->trim(h->m->device); /* R7.4 */
    }
}

uint64_t mem_mgr_unload_idle(mem_manager *m, double idle_s, bool pinned)
{
    uint64_t freed = 0, used;
    double used_at, now = base_now(m->env);
    if (m->mem == NULL) return 0;
    for (mem_handle *h = m->handles; h != NULL; h = h->next) {
        if (mem_mgr_is_taken(h) || !h->sealed || (mem_mgr_is_pinned_model(h) && !pinned)) continue;
        if (idle_s > 0 && (!last_use(h, NULL, &used, &used_at) || now - used_at < idle_s)) continue;
        freed += mem_mgr_held(h);
        mem_mgr_move_off(h, true);
        freed -= mem_mgr_held(h);
    }
    if (freed != 0) m->mem->trim(m->device);
    return freed;
}

uint64_t mem_manager_unload_idle(mem_manager *m, double idle_s, bool pinned)
{
    base_lock_enter(m->tier->lock);
    uint64_t freed = mem_mgr_unload_idle(m, idle_s, pinned);
    mem_mgr_leave(m->tier);
    return freed;
}
