/* Whether units are copied ahead of time, where they come from storage (R5.3).
 *
 * From RAM the kind says it: what runs once per token holds one copy and copies nothing ahead, what runs once
 * per input does. Reading takes longer than copying by a factor that nobody knows beforehand, and copies
 * ahead take the room of units that could stay; so both ways are tried in turns, and the quicker one stays:
 *
 *   | warm up | kind's way | other way | kind's way | other way |  the quicker one ...  | again
 *     8 phases  3 phases each, of which the first is not timed      2,000 phases
 *
 * A phase's time is taken per round, the use of all that streams once, and the least of each way counts: so a
 * phase that did more work than others, a prompt's among those of tokens, decides nothing. Results are the
 * same either way. */
#include "mgr_internal.h"

#define WARM_PHASES  8u
#define BLOCK_PHASES 3u
#define N_BLOCKS     4u
#define AGAIN_PHASES 2000u
/* The other way has to be quicker by more than what measuring is off. */
#define PAYS 0.98

static bool kinds_way(const mem_handle *h)
{
    return h->kind == MEM_ONESHOT;
}

static bool is_asked_for(const mem_handle *h)
{
    return h->kind == MEM_SEQUENCE && h->m->policy.prefetch_sequence != MEM_AUTO;
}

bool mem_mgr_copies_ahead(const mem_handle *h)
{
    if (is_asked_for(h)) return h->m->policy.prefetch_sequence == MEM_ON;
    return kinds_way(h) != (h->prefetch.from_storage && h->prefetch.other);
}

bool mem_mgr_is_kinds_way(const mem_handle *h)
{
    return is_asked_for(h) || mem_mgr_copies_ahead(h) == kinds_way(h);
}

/* Some of a unit's bytes lie in a file, and no copy of them in RAM. */
static bool reads_files(const mem_handle *h, uint32_t unit)
{
    const mgr_unit *u = &h->units[unit];
    for (uint32_t i = 0; i < h->n_weights; i++) {
        const mgr_weight *w = &h->weights[i];
        if (w->unit == unit && w->source.host == NULL && (u->image == NULL || !w->in_image)) return true;
    }
    return false;
}

void mem_mgr_find_storage(mem_handle *h)
{
    bool found = false;
    for (uint32_t i = 0; i < h->n_units && !found; i++)
        found = h->units[i].bytes != 0 && !h->units[i].filled && reads_files(h, i);
    h->prefetch.again = h->prefetch.other && h->prefetch.from_storage != found;
    h->prefetch.from_storage = found;
}

static bool is_measured(const mem_handle *h)
{
    return h->m->mem != NULL && h->n_slots != 0 && h->prefetch.from_storage && !is_asked_for(h) &&
           h->m->policy.async_offload != 0;
}

const char *mem_mgr_prefetch_text(const mem_handle *h)
{
    if (h->m->mem == NULL || h->n_slots == 0) return "";
    if (is_asked_for(h)) return "setting";
    if (!is_measured(h) || h->prefetch.state == MGR_PREFETCH_WARM) return "kind";
    return h->prefetch.state == MGR_PREFETCH_MEASURING ? "measuring" : "measured";
}

static uint32_t n_streaming(const mem_handle *h)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->n_units; i++) n += h->units[i].bytes != 0 && !h->units[i].filled;
    return n;
}

static void go(mem_handle *h, mgr_prefetch_state state, bool other)
{
    mgr_prefetch *f = &h->prefetch;
    f->again |= f->other != other; /* with the next phase */
    f->other = other;
    f->state = state;
    f->n_phases = 0;
}

static void decide(mem_handle *h)
{
    mgr_prefetch *f = &h->prefetch;
    const bool kind = kinds_way(h);
    f->round_s[0] = f->least_s[0];
    f->round_s[1] = f->least_s[1];
    bool both = f->round_s[0] > 0 && f->round_s[1] > 0;
    go(h, MGR_PREFETCH_MEASURED, both && f->round_s[!kind] < f->round_s[kind] * PAYS);
    if (!both) return;
    mem_mgr_log(h->m->tier, BASE_LOG_INFO,
                "%s:%s: from storage a round takes %.3g ms with copies ahead and %.3g ms without: %s",
                h->engine, h->component, f->round_s[1] * 1e3, f->round_s[0] * 1e3,
                mem_mgr_copies_ahead(h) ? "with" : "without");
}

/* Nothing to compare where there is no room for copies ahead; nor where the two ways found another room. */
static bool is_void(mem_handle *h, uint32_t streaming)
{
    mgr_prefetch *f = &h->prefetch;
    uint32_t *then = &f->n_streaming[mem_mgr_copies_ahead(h)];
    if (mem_mgr_copies_ahead(h) && h->n_slots < 2) {
        f->least_s[0] = f->least_s[1] = 0;
        decide(h);
        return true;
    }
    if (*then != 0 && *then != streaming) {
        go(h, MGR_PREFETCH_WARM, false);
        return true;
    }
    *then = streaming;
    return false;
}

void mem_mgr_prefetch_time(mem_phase *p, double seconds)
{
    mem_handle *h = NULL;
    /* One at a time: the time of a phase is that of all its components. */
    for (uint32_t i = 0; i < p->n_handles; i++) {
        mem_handle *c = p->handles[i];
        if (!is_measured(c) || c->n_entered == 0) continue;
        if (h == NULL ||
            (h->prefetch.state == MGR_PREFETCH_MEASURED && c->prefetch.state != MGR_PREFETCH_MEASURED))
            h = c;
    }
    if (h == NULL) return;
    mgr_prefetch *f = &h->prefetch;
    if (f->state != MGR_PREFETCH_MEASURING) {
        if (++f->n_phases < (f->state == MGR_PREFETCH_WARM ? WARM_PHASES : AGAIN_PHASES)) return;
        f->least_s[0] = f->least_s[1] = 0;
        f->n_streaming[0] = f->n_streaming[1] = 0;
        go(h, MGR_PREFETCH_MEASURING, false);
        return;
    }
    uint32_t streaming = n_streaming(h);
    if (is_void(h, streaming)) return;
    double round = seconds * streaming / h->n_entered, *least = &f->least_s[mem_mgr_copies_ahead(h)];
    if (f->n_phases % BLOCK_PHASES != 0 && (*least == 0 || round < *least)) *least = round;
    f->n_phases++;
    uint32_t block = f->n_phases / BLOCK_PHASES, n = f->n_phases;
    if (block == N_BLOCKS) {
        decide(h);
        return;
    }
    go(h, MGR_PREFETCH_MEASURING, block % 2 != 0);
    f->n_phases = n;
}

double mem_mgr_prefetch_begin(const mem_phase *p)
{
    bool any = false;
    for (uint32_t i = 0; i < p->n_handles; i++) {
        p->handles[i]->n_entered = 0;
        any |= is_measured(p->handles[i]) && p->handles[i]->prefetch.state == MGR_PREFETCH_MEASURING;
    }
    return any ? base_now(p->r->tier->env) : 0;
}
