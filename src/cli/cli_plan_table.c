/* weir plan without options: what fits on this machine, over budgets and contexts. */
#include "cli.h"

#include <string.h>

enum { MAX_BUDGETS = 8, MAX_CONTEXTS = 5 };

typedef struct plan_table {
    uint64_t budgets[MAX_BUDGETS];
    uint32_t contexts[MAX_CONTEXTS];
    uint32_t n_budgets, n_contexts;
    weir_machine machine;
    weir_model_info info;
} plan_table;

/* Sizes that memory comes in: 1, 1.5, 2, 3, 4, 6, ... from 32 MiB on. */
static uint64_t next_step(uint64_t bytes)
{
    uint64_t step = UINT64_C(32) << 20;
    while (step <= bytes && step < (UINT64_C(1) << 44)) {
        if (bytes < step + step / 2) return step + step / 2;
        step *= 2;
    }
    return step;
}

static void add_context(plan_table *t, uint32_t tokens)
{
    if (tokens == 0 || t->n_contexts == MAX_CONTEXTS) return;
    if (t->n_contexts > 0 && t->contexts[t->n_contexts - 1] >= tokens) return;
    t->contexts[t->n_contexts++] = tokens;
}

static void add_budget(plan_table *t, uint64_t bytes)
{
    if (t->n_budgets == MAX_BUDGETS || (t->n_budgets > 0 && t->budgets[t->n_budgets - 1] >= bytes)) return;
    t->budgets[t->n_budgets++] = bytes;
}

/* From the smallest budget that does with a short context to the first that holds all with the longest, in
 * at most five steps, and what the machine leaves. */
static weir_status choose(const cli_common *c, weir_model *model, plan_table *t, weir_error *err)
{
    enum { STEPS = 5 };
    static const uint32_t usual[] = {512, 2048, 8192, 32768};
    uint64_t steps[64];
    uint32_t n = 0;
    t->machine.struct_size = sizeof t->machine;
    t->info.struct_size = sizeof t->info;
    weir_status status = weir_machine_read(c->context, &t->machine, err);
    if (status == WEIR_OK) status = weir_model_get_info(model, &t->info, err);
    if (status != WEIR_OK) return status;
    uint32_t trained = t->info.context_tokens != 0 ? t->info.context_tokens : usual[1];
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] < trained) add_context(t, usual[i]);
    add_context(t, trained);
    weir_plan low = {.struct_size = sizeof low}, high = low;
    weir_load_options o = c->load;
    o.mem_bytes = t->machine.default_budget_bytes != 0 ? t->machine.default_budget_bytes : 1;
    o.ctx_tokens = t->contexts[0];
    status = weir_model_plan(model, &o, &low, err);
    o.ctx_tokens = t->contexts[t->n_contexts - 1];
    if (status == WEIR_OK) status = weir_model_plan(model, &o, &high, err);
    if (status != WEIR_OK) return status;
    for (uint64_t b = next_step(low.smallest_bytes - 1); n < 64; b = next_step(b)) {
        steps[n++] = b;
        if (b >= high.whole_bytes) break;
    }
    uint32_t kept = n < STEPS ? n : STEPS;
    for (uint32_t i = 0; i < kept; i++) add_budget(t, steps[kept > 1 ? i * (n - 1) / (kept - 1) : 0]);
    if (t->machine.default_budget_bytes > 0) {
        /* In its place among the others; the table ends with it where it is the largest. */
        uint64_t own = t->machine.default_budget_bytes;
        uint32_t at = t->n_budgets;
        while (at > 0 && t->budgets[at - 1] > own) at--;
        if (at > 0 && t->budgets[at - 1] == own) return WEIR_OK;
        memmove(&t->budgets[at + 1], &t->budgets[at], (t->n_budgets - at) * sizeof *t->budgets);
        t->budgets[at] = own;
        t->n_budgets++;
    }
    return WEIR_OK;
}

static void print_head(const plan_table *t, const weir_plan *first)
{
    char a[32], b[32], d[32];
    printf("%s, %s, %s of weights; this machine: %s, %u thread%s, leaves a run %s\n", t->info.architecture,
           t->info.type, weir_size_text(t->info.weight_bytes, a), weir_size_text(t->machine.total_bytes, b),
           first->n_threads, first->n_threads == 1 ? "" : "s",
           weir_size_text(t->machine.default_budget_bytes, d));
    printf("%12s %8s  %-4s %12s %12s %22s %24s\n", "budget", "context", "fits", "peak", "streamed/token",
           "decode tokens/s", "prefill tokens/s");
}

static void print_row(const weir_plan *p, const weir_prediction *s)
{
    char a[32], b[32], d[32], decode[48] = "-", prefill[48] = "-";
    if (s != NULL) {
        snprintf(decode, sizeof decode, "%.1f (%.1f to %.1f)", s->decode.likely, s->decode.low,
                 s->decode.high);
        snprintf(prefill, sizeof prefill, "%.0f (%.0f to %.0f)", s->prefill.likely, s->prefill.low,
                 s->prefill.high);
    }
    printf("%12s %8u  ", weir_size_text(p->budget_bytes, a), p->ctx_tokens);
    if (p->fits)
        printf("%-4s %12s %14s %22s %24s\n", cli_fits_device(p) ? "yes" : "RAM",
               weir_size_text(p->planned_peak_bytes, b), weir_size_text(p->streamed_bytes_per_pass, d),
               decode, prefill);
    else
        printf("%-4s %s missing\n", "no", weir_size_text(p->missing_bytes, b));
    fflush(stdout);
}

int cli_plan_table(cli_common *c, weir_model *model, bool rates)
{
    plan_table t = {.n_budgets = 0};
    weir_error err;
    weir_load_options o = c->load;
    json_t *rows = json_array();
    bool any = false, beyond = false;
    int rc = choose(c, model, &t, &err) == WEIR_OK ? CLI_OK : cli_error("plan", &err);
    uint32_t n_threads = 0;
    uint64_t rated = 0; /* the budget that has its rates: each takes seconds to rehearse */
    for (uint32_t i = 0; i < t.n_budgets * t.n_contexts && rc == CLI_OK; i++) {
        weir_plan p = {.struct_size = sizeof p};
        weir_prediction s = {.struct_size = sizeof s};
        o.mem_bytes = t.budgets[i / t.n_contexts];
        o.ctx_tokens = t.contexts[i % t.n_contexts];
        if (weir_model_plan(model, &o, &p, &err) != WEIR_OK) {
            rc = cli_error("plan", &err);
            break;
        }
        bool known =
            rates && p.fits && rated != o.mem_bytes && weir_model_predict(model, &o, 0, &s, &err) == WEIR_OK;
        if (known) rated = o.mem_bytes;
        n_threads = p.n_threads;
        any |= p.fits;
        beyond |= p.fits && !cli_fits_device(&p);
        if (c->json) {
            json_t *row = cli_json_plan(&p);
            json_object_set_new(row, "prediction", known ? cli_json_prediction(&s) : json_null());
            json_array_append_new(rows, row);
            continue;
        }
        if (i == 0) print_head(&t, &p);
        print_row(&p, known ? &s : NULL);
    }
    if (rc == CLI_OK && c->json) {
        json_t *j = json_object();
        json_object_set_new(j, "architecture",
                            cli_json_text(t.info.architecture, strlen(t.info.architecture)));
        json_object_set_new(j, "quantization", json_string(t.info.type));
        json_object_set_new(j, "weight_bytes", cli_json_u64(t.info.weight_bytes));
        json_object_set_new(j, "total_bytes", cli_json_u64(t.machine.total_bytes));
        json_object_set_new(j, "default_budget_bytes", cli_json_u64(t.machine.default_budget_bytes));
        json_object_set_new(j, "threads", json_integer(n_threads));
        json_object_set(j, "rows", rows);
        rc = cli_json_print(j);
    } else if (rc == CLI_OK) {
        if (beyond)
            printf(
                "RAM: fits the budget, but not what limit and reserve leave of the device; a run tries all "
                "the same.\n");
        printf("%s--mem, --ctx or --sessions give the bill of one of them.\n",
               rates ? "Rates stand at the shortest context of each budget. " : "");
    }
    json_decref(rows);
    return rc == CLI_OK && !any ? CLI_FAILED : rc;
}
