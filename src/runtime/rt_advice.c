/* Why a budget is refused and what would fit: missing bytes, the smallest budget, and for each option that
 * costs memory the value that would do. */
#include "rt_internal.h"

#include <stdio.h>
#include <string.h>

/* A list of remedies, each behind the last. */
typedef struct remedies {
    char text[400];
    size_t len;
} remedies;

static void add_remedy(remedies *r, const char *remedy)
{
    int n = snprintf(r->text + r->len, sizeof r->text - r->len, "%s%s", r->len != 0 ? ", or " : "", remedy);
    if (n > 0) r->len = (size_t)base_min(r->len + (size_t)n, sizeof r->text - 1);
}

static bool fits(rt_planner *p, rt_choice c)
{
    rt_need need;
    weir_error none;
    c.max_rows = (uint32_t)base_min(c.max_rows, base_max(c.ctx_tokens, c.max_outputs));
    if (rt_planner_need(p, &c, &need, &none) != WEIR_OK) return false;
    return rt_planner_budget(&need, p->smallest.smallest_bytes) <= p->options->mem_bytes;
}

/* The largest context below the wanted one that fits; 0: none. */
static uint32_t largest_ctx(rt_planner *p, rt_choice c)
{
    uint32_t low = 0, high = c.ctx_tokens - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        c.ctx_tokens = middle;
        if (fits(p, c))
            low = middle;
        else
            high = middle - 1;
    }
    return low > 64 ? (uint32_t)base_align_down(low, 64) : low;
}

static uint32_t most_sessions(rt_planner *p, rt_choice c)
{
    uint32_t n = c.n_sessions - 1;
    while (n > 0) {
        c.n_sessions = n;
        c.max_outputs = (uint32_t)base_min(c.max_outputs, n);
        if (fits(p, c)) break;
        n--;
    }
    return n;
}

void rt_advise(rt_planner *p, const rt_choice *smallest, rt_plan *plan, weir_error *err)
{
    weir_plan *v = &plan->view;
    remedies r = {.len = 0};
    char line[96], a[32], b[32], d[32], e[32], f[32], g[32];
    rt_choice c = *smallest;
    if (c.ctx_tokens > 1) {
        uint32_t ctx = v->fit_ctx_tokens = largest_ctx(p, c);
        snprintf(line, sizeof line, "--ctx %u (a shorter context)", ctx);
        if (ctx != 0) add_remedy(&r, line);
    }
    if (c.n_sessions > 1) {
        uint32_t n = v->fit_sessions = most_sessions(p, c);
        snprintf(line, sizeof line, "%u session%s instead of %u", n, n == 1 ? "" : "s", c.n_sessions);
        if (n != 0) add_remedy(&r, line);
    }
    if (c.kv_dtype == BASE_F32) {
        c.kv_dtype = BASE_F16;
        v->fit_kv_f16 = fits(p, c);
        if (v->fit_kv_f16) add_remedy(&r, "--kv-type f16 (a key-value cache of type F16)");
        c.kv_dtype = smallest->kv_dtype;
    }
    if (p->options->prefill_chunk > 1) {
        c.max_rows = (uint32_t)base_max(1, p->options->max_batch);
        v->fit_free_chunk = fits(p, c);
        if (v->fit_free_chunk) add_remedy(&r, "no fixed prefill chunk");
    }
    /* Whole MiB, rounded up, so that the figure can be typed. */
    uint64_t mib = (v->smallest_bytes >> 20) + ((v->smallest_bytes & ((UINT64_C(1) << 20) - 1)) != 0);
    v->fit_mem_bytes = mib << 20;
    snprintf(line, sizeof line, "--mem %lluMiB", (unsigned long long)mib);
    add_remedy(&r, line);
    uint64_t weights = p->smallest.smallest_bytes;
    char there[96] = ""; /* where a device's memory is RAM */
    uint64_t device = plan->tag_bytes[BASE_TAG_DEVICE] - p->before.tag_bytes[BASE_TAG_DEVICE];
    if (p->device_in_ram)
        snprintf(there, sizeof there, "caches and activations on the device %s, ",
                 base_size_text(device - base_min(device, weights), line));
    base_fail(err, WEIR_ERR_BUDGET,
              "the memory budget of %s does not suffice: at least %s are needed, %s are missing (weights at "
              "least %s, "
              "key-value cache %s for %u session%s of %u tokens, activations %s, %sthe process itself %s); "
              "what would "
              "fit: %s",
              base_size_text(v->budget_bytes, a), base_size_text(v->smallest_bytes, b),
              base_size_text(v->missing_bytes, d), base_size_text(weights, e),
              base_size_text(plan->tag_bytes[BASE_TAG_KV], f), c.n_sessions, c.n_sessions == 1 ? "" : "s",
              smallest->ctx_tokens,
              base_size_text(plan->tag_bytes[BASE_TAG_ACTIVATIONS] + plan->tag_bytes[BASE_TAG_WORKSPACE], g),
              there, base_size_text(plan->tag_bytes[BASE_TAG_PROCESS], line), r.text);
}
