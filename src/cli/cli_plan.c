/* weir plan: the bill of a budget before anything runs: each account, what drives it, how to check it, what
 * grows and what is shared (R14.2); and how fast it would be. */
#include "cli.h"

#include <string.h>

/* The five accounts of R14.2. */
typedef enum plan_group { PLAN_FILE, PLAN_ANONYMOUS, PLAN_KV, PLAN_WORKSPACE, PLAN_GROUPS } plan_group;
static const char *const GROUPS[] = {"file mapping", "anonymous", "key-value cache", "workspace"};
static const char *const GROUP_KEYS[] = {"file_mapping", "anonymous", "kv", "workspace"};

/* What is known of each account that a plan may have. */
static const struct {
    const char *tag;
    plan_group group;
    bool shared; /* between processes that use the same file */
    const char *driver, *check;
} ACCOUNTS[] = {
    {"weights.mapped", PLAN_FILE, true, "the file's weights, where they are mapped",
     "Pss_File in /proc/PID/smaps_rollup; it is split among the processes that map it"},
    {"process", PLAN_FILE, true, "code and libraries (shared), stacks and page tables (not)",
     "Rss less Anonymous in smaps_rollup, VmPTE in status; measured before the plan"},
    {"weights.fixed", PLAN_ANONYMOUS, false, "norms, biases, small tables: always there",
     "weir inspect; account weights.fixed of a run"},
    {"weights.resident", PLAN_ANONYMOUS, false, "weights that stay: what the budget leaves",
     "Pss_Anon in smaps_rollup; loaded_mb of a run"},
    {"weights.slots", PLAN_ANONYMOUS, false, "what other weights stream through: depth and size of reads",
     "account weights.slots of a run"},
    {"tokenizer", PLAN_ANONYMOUS, false, "entries of the vocabulary", "account tokenizer of a run"},
    {"metadata", PLAN_ANONYMOUS, false, "tensors of the file, operations of the program",
     "account metadata of a run"},
    {"runtime", PLAN_ANONYMOUS, false, "sessions, vocabulary, text", "account runtime of a run"},
    {"device", PLAN_ANONYMOUS, false, "weights, caches, activations on a device whose memory is RAM",
     "Pss_Anon in smaps_rollup; device of a run --json"},
    {"kv", PLAN_KV, false, "layers x KV heads x head dimension x context x sessions x bytes of its type",
     "account kv of a run; weir plan --formula"},
    {"activations", PLAN_WORKSPACE, false, "rows of a pass x width", "account activations; run --profile"},
    {"workspace", PLAN_WORKSPACE, false, "threads x longest row, context", "account workspace of a run"},
    {"io", PLAN_WORKSPACE, false, "depth and size of reads", "account io of a run"},
};
#define N_ACCOUNTS  (sizeof ACCOUNTS / sizeof *ACCOUNTS)
#define GROW_TOKENS 1024

typedef struct plan_report {
    weir_plan plan;
    weir_prediction speed;
    bool has_speed, grows;
    char why_no_speed[160];
    double memory_bytes_per_s;                                    /* 0: not measured */
    uint64_t by_tokens[WEIR_MAX_TAGS], by_session[WEIR_MAX_TAGS]; /* of each account of the plan */
    uint64_t system_bytes;                                        /* what others hold at this moment */
} plan_report;

static size_t find_account(const char *tag)
{
    size_t i = 0;
    while (i < N_ACCOUNTS && strcmp(ACCOUNTS[i].tag, tag) != 0) i++;
    return i;
}

static const char *driver_of(const weir_plan *p, size_t k)
{
    if (k == N_ACCOUNTS) return "other";
    if (strcmp(ACCOUNTS[k].tag, "kv") == 0 && strcmp(p->kv_cache, "full") != 0)
        return "layers x KV heads x head dimension x text (context at most) x sessions x bytes of its type, "
               "and a layer's copy";
    return ACCOUNTS[k].driver;
}

static uint64_t planned(const weir_plan *p, const char *tag)
{
    for (uint32_t i = 0; i < p->n_accounts; i++)
        if (strcmp(p->accounts[i].tag, tag) == 0) return p->accounts[i].planned_bytes;
    return 0;
}

/* Plans with a little more of one thing, and room for all, so that nothing else differs. */
static bool read_growth(const cli_common *c, weir_model *model, plan_report *r)
{
    weir_plan base = {.struct_size = sizeof base}, longer = base, wider = base;
    weir_load_options o = c->load;
    weir_error err;
    o.mem_bytes = 2 * r->plan.whole_bytes + (UINT64_C(1) << 30);
    o.ctx_tokens = r->plan.ctx_tokens;
    o.n_sessions = r->plan.n_sessions;
    o.prefill_chunk = r->plan.prefill_chunk;
    if (weir_model_plan(model, &o, &base, &err) != WEIR_OK) return false;
    o.ctx_tokens += GROW_TOKENS;
    if (weir_model_plan(model, &o, &longer, &err) != WEIR_OK) return false;
    o.ctx_tokens = r->plan.ctx_tokens;
    o.n_sessions++;
    if (weir_model_plan(model, &o, &wider, &err) != WEIR_OK) return false;
    for (uint32_t i = 0; i < r->plan.n_accounts; i++) {
        const char *tag = r->plan.accounts[i].tag;
        if (strncmp(tag, "weights.", 8) == 0 || strcmp(tag, "process") == 0) continue;
        uint64_t was = planned(&base, tag), by_tokens = planned(&longer, tag),
                 by_session = planned(&wider, tag);
        r->by_tokens[i] = by_tokens > was ? by_tokens - was : 0;
        r->by_session[i] = by_session > was ? by_session - was : 0;
    }
    return true;
}

static weir_status make(const cli_common *c, weir_model *model, bool rates, plan_report *r, weir_error *err)
{
    weir_machine machine = {.struct_size = sizeof machine};
    weir_error why;
    *r = (plan_report){.plan.struct_size = sizeof r->plan, .speed.struct_size = sizeof r->speed};
    weir_status status = weir_model_plan(model, &c->load, &r->plan, err);
    if (status != WEIR_OK) return status;
    r->grows = read_growth(c, model, r);
    if (weir_machine_read(c->context, &machine, &why) == WEIR_OK)
        r->system_bytes = machine.total_bytes - machine.available_bytes;
    if (!rates || !r->plan.fits) return WEIR_OK;
    r->has_speed = weir_model_predict(model, &c->load, 0, &r->speed, &why) == WEIR_OK;
    if (!r->has_speed) snprintf(r->why_no_speed, sizeof r->why_no_speed, "%.150s", why.message);
    if (r->has_speed &&
        weir_measure_memory(c->context, r->plan.n_threads, &r->memory_bytes_per_s, &why) != WEIR_OK)
        r->memory_bytes_per_s = 0;
    return WEIR_OK;
}

/* ---- for people ---- */

static const char *grown(uint64_t bytes, bool known, char *buf)
{
    if (known && bytes != 0) return weir_size_text(bytes, buf);
    snprintf(buf, 32, "%s", known ? "-" : "?");
    return buf;
}

static void print_account(const plan_report *r, uint32_t i, bool explain)
{
    char a[32], b[32], d[32];
    const weir_account *w = &r->plan.accounts[i];
    size_t k = find_account(w->tag);
    printf("  %-18s %12s %12s %12s   %s\n", w->tag, weir_size_text(w->planned_bytes, a),
           grown(r->by_tokens[i], r->grows, b), grown(r->by_session[i], r->grows, d), driver_of(&r->plan, k));
    if (explain && k < N_ACCOUNTS) printf("  %-18s %38s   check: %s\n", "", "", ACCOUNTS[k].check);
}

static void print_bill(const plan_report *r, bool explain)
{
    char a[32], b[32], d[32];
    uint64_t tokens = 0, session = 0;
    printf("  %-18s %12s %12s %12s   %s\n", "account", "planned", "1,024 tokens", "a session", "driven by");
    for (int g = 0; g <= PLAN_GROUPS; g++) {
        bool head = false;
        for (uint32_t i = 0; i < r->plan.n_accounts; i++) {
            size_t k = find_account(r->plan.accounts[i].tag);
            int group = k < N_ACCOUNTS ? (int)ACCOUNTS[k].group : PLAN_GROUPS;
            if (group != g || r->plan.accounts[i].planned_bytes == 0) continue;
            if (!head) printf("%s\n", g < PLAN_GROUPS ? GROUPS[g] : "other");
            head = true;
            tokens += r->by_tokens[i];
            session += r->by_session[i];
            print_account(r, i, explain);
        }
    }
    printf("  %-18s %12s %12s %12s   %s\n", "peak", weir_size_text(r->plan.planned_peak_bytes, a),
           grown(tokens, r->grows, b), grown(session, r->grows, d),
           "all of the process; weights do not grow");
    printf("system and others\n  %-18s %12s %12s %12s   %s\n", "now", weir_size_text(r->system_bytes, a), "",
           "", "MemTotal less MemAvailable; not part of the budget");
}

/* R9.2 */
static void print_caches(const weir_plan *p)
{
    char a[32], b[32];
    if (p->n_kv_steps == 0 || strcmp(p->kv_cache, "full") == 0) return;
    printf("caches   %s, grow with the text; one session: %s at first", p->kv_cache,
           weir_size_text(p->kv_first_bytes, a));
    for (uint32_t i = 0; i < p->n_kv_steps; i++) {
        const weir_kv_step *s = &p->kv_steps[i];
        printf(", %s at %u tokens", weir_size_text(s->bytes, a), s->tokens);
        if (s->peak_bytes > s->bytes) printf(" (%s while growing)", weir_size_text(s->peak_bytes, b));
    }
    printf("; planned at the whole context\n");
}

static void print_fit(const weir_plan *p)
{
    char a[32], b[32];
    printf("smallest budget %s; from %s on nothing streams\n", weir_size_text(p->smallest_bytes, a),
           weir_size_text(p->whole_bytes, b));
    if (p->fits) {
        if (!cli_fits_device(p))
            printf(
                "fits the budget, but not the device: %s are needed, %s are there within limit and reserve; "
                "a run tries all the same\n",
                weir_size_text(p->device_planned_bytes, a), weir_size_text(p->device_room_bytes, b));
        printf("%seach pass reads %s of weights, %s of it from storage\n", cli_fits_device(p) ? "fits; " : "",
               weir_size_text(p->weight_bytes_per_pass, a), weir_size_text(p->streamed_bytes_per_pass, b));
        return;
    }
    printf("does not fit: %s are missing; what would fit: --mem %lluMiB", weir_size_text(p->missing_bytes, a),
           (unsigned long long)(p->fit_mem_bytes >> 20)); /* as it is typed */
    if (p->fit_ctx_tokens != 0) printf(", or --ctx %u", p->fit_ctx_tokens);
    if (p->fit_sessions != 0) printf(", or --sessions %u", p->fit_sessions);
    if (p->fit_kv_f16) printf(", or --kv-type f16");
    if (p->fit_free_chunk) printf(", or no --chunk");
    putchar('\n');
}

static void print_speed(const plan_report *r)
{
    const weir_prediction *s = &r->speed;
    if (!r->has_speed) {
        if (r->why_no_speed[0]) printf("no speed is predicted: %s\n", r->why_no_speed);
        return;
    }
    printf("decode   about %.2f tokens/s (%.2f to %.2f), one session\n", s->decode.likely, s->decode.low,
           s->decode.high);
    if (r->plan.n_sessions > 1)
        printf("         about %.2f tokens/s (%.2f to %.2f), all sessions together\n", s->all_sessions.likely,
               s->all_sessions.low, s->all_sessions.high);
    printf("prefill  about %.1f tokens/s (%.1f to %.1f), %u a pass\n", s->prefill.likely, s->prefill.low,
           s->prefill.high, s->prefill_rows);
    printf("measured %.1f GB/s of weights computed with one row a pass", s->compute_bytes_per_s / 1e9);
    if (r->memory_bytes_per_s > 0) printf(", %.1f GB/s from memory", r->memory_bytes_per_s / 1e9);
    if (s->storage_bytes_per_s > 0)
        printf(", %.2f GB/s from storage", s->storage_bytes_per_s / 1e9);
    else
        printf(", nothing streams");
    putchar('\n');
    if (s->note[0] != '\0') printf("         %s\n", s->note);
}

static void print_plan(const plan_report *r, bool explain)
{
    char a[32], b[32];
    const weir_plan *p = &r->plan;
    printf("budget %s%s, %u session%s of %u tokens, prefill chunk %u, %u thread%s\n",
           weir_size_text(p->budget_bytes, a), p->budget_is_default ? " (what the machine leaves)" : "",
           p->n_sessions, p->n_sessions == 1 ? "" : "s", p->ctx_tokens, p->prefill_chunk, p->n_threads,
           p->n_threads == 1 ? "" : "s");
    if (p->wanted_sessions > p->n_sessions)
        printf("of %u sessions only %u fit; these are planned\n", p->wanted_sessions, p->n_sessions);
    print_bill(r, explain);
    print_caches(p);
    print_fit(p);
    uint64_t mapped = planned(p, "weights.mapped");
    if (mapped != 0)
        printf(
            "shared   %s of mapped weights, and code and libraries: once for all processes; a second process "
            "adds %s at most\n",
            weir_size_text(mapped, a), weir_size_text(p->planned_peak_bytes - mapped, b));
    else
        printf("shared   only code and libraries (part of process); with --weights map also weights that all "
               "stay\n");
    if (p->device_whole_bytes != 0) {
        char c[32], d[32], e[32];
        printf("device   %s: room %s behind limit and reserve, planned %s; at least %s, whole from %s; %s a "
               "pass "
               "over the link\n",
               p->device, weir_size_text(p->device_room_bytes, a), weir_size_text(p->device_planned_bytes, b),
               weir_size_text(p->device_smallest_bytes, c), weir_size_text(p->device_whole_bytes, d),
               weir_size_text(p->device_streamed_bytes_per_pass, e));
    }
    print_speed(r);
}

/* ---- for scripts ---- */

static int print_plan_json(const plan_report *r)
{
    const weir_plan *p = &r->plan;
    json_t *j = cli_json_plan(p), *bill = json_array(), *fit = json_object();
    for (uint32_t i = 0; i < p->n_accounts; i++) {
        size_t k = find_account(p->accounts[i].tag);
        json_t *item = json_object();
        json_object_set_new(item, "account", json_string(p->accounts[i].tag));
        json_object_set_new(item, "group",
                            json_string(k < N_ACCOUNTS ? GROUP_KEYS[ACCOUNTS[k].group] : "other"));
        json_object_set_new(item, "planned", cli_json_u64(p->accounts[i].planned_bytes));
        if (r->grows) {
            json_object_set_new(item, "per_1024_tokens", cli_json_u64(r->by_tokens[i]));
            json_object_set_new(item, "per_session", cli_json_u64(r->by_session[i]));
        }
        json_object_set_new(item, "shared", json_boolean(k < N_ACCOUNTS && ACCOUNTS[k].shared));
        json_object_set_new(item, "driver", json_string(driver_of(p, k)));
        json_object_set_new(item, "check", json_string(k < N_ACCOUNTS ? ACCOUNTS[k].check : ""));
        json_array_append_new(bill, item);
    }
    json_object_set_new(j, "wanted_sessions", json_integer(p->wanted_sessions));
    json_object_set_new(j, "bill", bill);
    json_object_set_new(j, "system_bytes", cli_json_u64(r->system_bytes));
    json_object_set_new(j, "shared_weight_bytes", cli_json_u64(planned(p, "weights.mapped")));
    if (!p->fits) {
        json_object_set_new(fit, "mem_bytes", cli_json_u64(p->fit_mem_bytes));
        if (p->fit_ctx_tokens != 0) json_object_set_new(fit, "ctx_tokens", json_integer(p->fit_ctx_tokens));
        if (p->fit_sessions != 0) json_object_set_new(fit, "sessions", json_integer(p->fit_sessions));
        if (p->fit_kv_f16) json_object_set_new(fit, "kv_type", json_string("f16"));
        if (p->fit_free_chunk) json_object_set_new(fit, "chunk", json_integer(0));
    }
    json_object_set_new(j, "would_fit", p->fits ? json_null() : json_incref(fit));
    json_decref(fit);
    json_object_set_new(j, "memory_bytes_per_s",
                        r->memory_bytes_per_s > 0 ? cli_json_real(r->memory_bytes_per_s) : json_null());
    json_object_set_new(j, "prediction", r->has_speed ? cli_json_prediction(&r->speed) : json_null());
    return cli_json_print(j);
}

/* ---- the command ---- */

static int plan_one(const cli_common *c, weir_model *model, bool rates, bool explain)
{
    plan_report r;
    weir_error err;
    int rc = CLI_OK;
    if (make(c, model, rates, &r, &err) != WEIR_OK) return cli_error("plan", &err);
    if (c->json)
        rc = print_plan_json(&r);
    else
        print_plan(&r, explain);
    return rc == CLI_OK && !r.plan.fits ? CLI_FAILED : rc;
}

int cli_plan(int argc, char **argv)
{
    const uint32_t not_given = UINT32_MAX;
    cli_common c;
    bool formula = false, no_rates = false, explain = false;
    uint32_t sessions = not_given;
    if (cli_wants_formula(argc, argv)) return cli_formula(argc, argv);
    cli_common_init(&c, "plan");
    cli_args a = {.command = "plan",
                  .operand = "FILE",
                  .summary =
                      "Says what a budget would hold and how fast it would be; nothing is loaded. Exit 1\n"
                      "when it does not fit. Without --mem, --ctx, --sessions and --chunk: a table over\n"
                      "budgets and contexts. FILE may be an http or https address: only headers are read."};
    cli_add_model(&a, &c);
    cli_add_mem(&a, &c);
    cli_add_load(&a, &c);
    cli_add_json(&a, &c);
    cli_add(&a, "sessions", 0, CLI_U32, &sessions, "N", "conversations at once (default 1)");
    cli_add(&a, "fewer-sessions", 0, CLI_FLAG, &c.load.fewer_sessions, NULL,
            "where so many do not fit, plan for as many as do");
    cli_add(&a, "explain", 0, CLI_FLAG, &explain, NULL, "say for each account how to check it");
    cli_add(&a, "no-rates", 0, CLI_FLAG, &no_rates, NULL, "predict no speed, and measure nothing for it");
    cli_add(&a, "formula", 0, CLI_FLAG, &formula, NULL,
            "plan from plain numbers; see weir plan --formula --help");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (sessions == 0) return cli_usage("plan", "--sessions 0: one is the least");
    if (sessions != not_given) c.load.n_sessions = sessions;
    weir_context *context;
    weir_model *model;
    rc = cli_open(&c, &context, &model);
    if (rc != CLI_OK) return rc;
    bool table =
        c.load.mem_bytes == 0 && c.load.ctx_tokens == 0 && sessions == not_given && c.load.prefill_chunk == 0;
    rc = table ? cli_plan_table(&c, model, !no_rates) : plan_one(&c, model, !no_rates, explain);
    weir_model_close(model);
    weir_context_destroy(context);
    return rc;
}
