/* weir plan --formula: what a session's cache takes and how many sessions fit, from plain numbers or from the
 * configuration of a model that need not be one that Weir runs. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

/* No option has this value. */
#define NOT_GIVEN UINT64_MAX

/* A model as plain numbers: layers of up to four kinds. */
typedef struct plain {
    uint64_t layers, attention_layers, window_layers;
    uint64_t kv_heads, head_dim, value_dim, window, latent_rank, rope_dim, state_bytes;
} plain;

typedef struct formula_options {
    plain n;
    uint64_t sessions, ctx_tokens;
    const char *key_type, *value_type;
} formula_options;

static const char *const COMMAND = "plan --formula";
static const char *const KINDS[] = {"full", "window", "latent", "state"};

bool cli_wants_formula(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--formula") == 0) return true;
    return false;
}

/* ---- numbers to layers ---- */

static uint64_t given(uint64_t value)
{
    return value != NOT_GIVEN ? value : 0;
}

static void take(uint64_t *to, uint64_t from)
{
    if (*to == NOT_GIVEN && from != 0) *to = from;
}

/* What the file says and no option does. */
static void complete(plain *n, const weir_formula *f)
{
    uint64_t layers = 0, attention = 0, windowed = 0;
    for (uint32_t i = 0; i < f->n_caches; i++) {
        const weir_cache_layers *g = &f->caches[i];
        layers += g->n_layers;
        if (g->kind != WEIR_CACHE_STATE) attention += g->n_layers;
        if (g->kind == WEIR_CACHE_WINDOW) windowed += g->n_layers;
        take(&n->kv_heads, g->n_kv_heads);
        take(&n->head_dim, g->head_dim);
        take(&n->value_dim, g->value_dim);
        take(&n->window, g->window);
        take(&n->latent_rank, g->latent_rank);
        take(&n->rope_dim, g->rope_dim);
        take(&n->state_bytes, g->state_bytes);
    }
    if (n->layers == NOT_GIVEN && f->n_caches > 0) {
        n->layers = layers;
        if (n->attention_layers == NOT_GIVEN) n->attention_layers = attention;
    }
    if (f->n_caches > 0) take(&n->window_layers, windowed);
}

/* Options that leave the kinds as the file has them. */
static void replace_sizes(weir_formula *f, const plain *n)
{
    for (uint32_t i = 0; i < f->n_caches; i++) {
        weir_cache_layers *g = &f->caches[i];
        bool heads = g->kind == WEIR_CACHE_FULL || g->kind == WEIR_CACHE_WINDOW;
        if (heads && n->kv_heads != NOT_GIVEN) g->n_kv_heads = n->kv_heads;
        if (heads && n->head_dim != NOT_GIVEN) g->head_dim = n->head_dim;
        if (heads && n->value_dim != NOT_GIVEN) g->value_dim = n->value_dim;
        if (g->kind == WEIR_CACHE_WINDOW && n->window != NOT_GIVEN) g->window = n->window;
        if (g->kind == WEIR_CACHE_LATENT && n->rope_dim != NOT_GIVEN) g->rope_dim = n->rope_dim;
        if (g->kind == WEIR_CACHE_STATE && n->state_bytes != NOT_GIVEN) g->state_bytes = n->state_bytes;
    }
}

static void add_layers(weir_formula *f, const plain *n, weir_cache_kind kind, uint64_t n_layers)
{
    if (n_layers == 0) return;
    weir_cache_layers g = {.kind = kind, .n_layers = n_layers};
    if (kind == WEIR_CACHE_FULL || kind == WEIR_CACHE_WINDOW) {
        g.n_kv_heads = given(n->kv_heads);
        g.head_dim = given(n->head_dim);
        g.value_dim = given(n->value_dim);
    }
    if (kind == WEIR_CACHE_WINDOW) g.window = given(n->window);
    if (kind == WEIR_CACHE_LATENT) g.latent_rank = given(n->latent_rank), g.rope_dim = given(n->rope_dim);
    if (kind == WEIR_CACHE_STATE) g.state_bytes = given(n->state_bytes);
    f->caches[f->n_caches++] = g;
}

static int build_layers(weir_formula *f, const plain *n)
{
    bool hybrid = n->attention_layers != NOT_GIVEN, latent = n->latent_rank != NOT_GIVEN;
    if (n->layers == NOT_GIVEN || n->layers == 0)
        return cli_usage(COMMAND,
                         "the number of layers is missing or 0; give --layers N, or a configuration");
    uint64_t attention = hybrid ? n->attention_layers : n->layers;
    if (attention > n->layers)
        return cli_usage(COMMAND, "--attention-layers %" PRIu64 " is more than the %" PRIu64 " layers",
                         attention, n->layers);
    if (n->window != NOT_GIVEN && n->window_layers == NOT_GIVEN)
        return cli_usage(COMMAND, "--window needs --window-layers N: how many of the layers slide");
    uint64_t windowed = given(n->window_layers);
    if (windowed > attention)
        return cli_usage(COMMAND, "--window-layers %" PRIu64 " is more than the %" PRIu64 " attention layers",
                         windowed, attention);
    if (latent && windowed > 0)
        return cli_usage(COMMAND, "--latent-rank and --window-layers exclude each other");
    if (latent && n->latent_rank == 0) return cli_usage(COMMAND, "--latent-rank 0 is no latent attention");
    if (!latent && n->rope_dim != NOT_GIVEN) return cli_usage(COMMAND, "--rope-dim goes with --latent-rank");
    if (n->state_bytes != NOT_GIVEN && attention == n->layers)
        return cli_usage(COMMAND, "--state goes with --attention-layers N below the number of layers");
    f->n_caches = 0;
    add_layers(f, n, latent ? WEIR_CACHE_LATENT : WEIR_CACHE_FULL, attention - windowed);
    add_layers(f, n, WEIR_CACHE_WINDOW, windowed);
    /* Layers that keep nothing are no part of the bill. */
    if (n->state_bytes != NOT_GIVEN) add_layers(f, n, WEIR_CACHE_STATE, n->layers - attention);
    return f->n_caches > 0
               ? CLI_OK
               : cli_usage(COMMAND, "no layer keeps anything; give --state SIZE for those without attention");
}

static int make_layers(weir_formula *f, formula_options *o)
{
    const plain *n = &o->n;
    bool kinds = n->layers != NOT_GIVEN || n->attention_layers != NOT_GIVEN ||
                 n->window_layers != NOT_GIVEN || n->latent_rank != NOT_GIVEN;
    if (f->n_caches > 0 && !kinds) {
        replace_sizes(f, n);
        return CLI_OK;
    }
    complete(&o->n, f);
    return build_layers(f, &o->n);
}

/* ---- reports ---- */

static void print_bills(const weir_formula *f, const weir_formula_result *r)
{
    char a[32], b[32];
    printf("%s%scontext %" PRIu64 " tokens, cache %s%s%s\n", f->architecture, f->architecture[0] ? ", " : "",
           f->ctx_tokens, f->key_type, f->value_type[0] ? ", values " : "", f->value_type);
    printf("  %-8s %8s %12s %18s %14s %20s\n", "layers", "number", "keep tokens", "per token, layer",
           "per session", "in bytes");
    for (uint32_t i = 0; i < r->n_bills; i++) {
        const weir_cache_bill *g = &r->bills[i];
        char tokens[24] = "-", token[32] = "-";
        if (g->kind != WEIR_CACHE_STATE) {
            snprintf(tokens, sizeof tokens, "%" PRIu64, g->tokens);
            snprintf(token, sizeof token, "%" PRIu64 " B", g->bytes_per_layer_token);
        }
        printf("  %-8s %8" PRIu64 " %12s %18s %14s %20" PRIu64 "\n", KINDS[g->kind], g->n_layers, tokens,
               token, weir_size_text(g->bytes, a), g->bytes);
    }
    printf("cache    %s (%" PRIu64 " B) per session; one more token of context adds %s\n",
           weir_size_text(r->kv_bytes, a), r->kv_bytes, weir_size_text(r->next_token_bytes, b));
}

static void print_sessions(const weir_formula *f, const weir_formula_result *r, uint64_t wanted)
{
    char a[32], b[32], c[32], d[32], e[32];
    if (f->workspace_bytes > 0)
        printf("session  %s cache + %s workspace = %s\n", weir_size_text(r->kv_bytes, a),
               weir_size_text(f->workspace_bytes, b), weir_size_text(r->session_bytes, c));
    if (f->total_bytes == 0) return;
    printf("memory   %s - %s system - %s weights leave %s\n", weir_size_text(f->total_bytes, a),
           weir_size_text(f->system_bytes, b), weir_size_text(f->weight_bytes, c),
           weir_size_text(r->free_bytes, d));
    printf("sessions %" PRIu64 "%s", r->sessions, r->sessions < wanted ? ", fewer than wanted" : "");
    if (r->sessions == 0) printf("; one needs %s more", weir_size_text(r->missing_bytes, e));
    printf("\n");
}

static json_t *report_json(const weir_formula *f, const weir_formula_result *r)
{
    json_t *layers = json_array(), *j = json_object();
    for (uint32_t i = 0; i < r->n_bills; i++) {
        const weir_cache_bill *g = &r->bills[i];
        json_t *item = json_pack("{s:s}", "kind", KINDS[g->kind]);
        const cli_number numbers[] = {{"layers", g->n_layers},
                                      {"tokens", g->tokens},
                                      {"bytes_per_layer_token", g->bytes_per_layer_token},
                                      {"bytes", g->bytes}};
        cli_json_numbers(item, numbers, sizeof numbers / sizeof *numbers);
        json_array_append_new(layers, item);
    }
    if (f->architecture[0]) json_object_set_new(j, "architecture", json_string(f->architecture));
    json_object_set_new(j, "key_type", json_string(f->key_type));
    json_object_set_new(j, "value_type", json_string(f->value_type[0] ? f->value_type : f->key_type));
    const cli_number numbers[] = {{"ctx_tokens", f->ctx_tokens},
                                  {"kv_bytes", r->kv_bytes},
                                  {"next_token_bytes", r->next_token_bytes},
                                  {"workspace_bytes", f->workspace_bytes},
                                  {"session_bytes", r->session_bytes}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    if (f->total_bytes > 0) {
        const cli_number memory[] = {{"total_bytes", f->total_bytes},     {"system_bytes", f->system_bytes},
                                     {"weight_bytes", f->weight_bytes},   {"free_bytes", r->free_bytes},
                                     {"missing_bytes", r->missing_bytes}, {"sessions", r->sessions}};
        cli_json_numbers(j, memory, sizeof memory / sizeof *memory);
    }
    json_object_set_new(j, "layers", layers);
    return j;
}

/* ---- the command ---- */

static void add_options(cli_args *a, formula_options *o, weir_formula *f)
{
    plain *n = &o->n;
    *n = (plain){NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN,
                 NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN};
    cli_add(a, "layers", 0, CLI_U64, &n->layers, "N", "layers");
    cli_add(a, "kv-heads", 0, CLI_U64, &n->kv_heads, "N", "key-value heads");
    cli_add(a, "head-dim", 0, CLI_U64, &n->head_dim, "N", "head dimension");
    cli_add(a, "value-dim", 0, CLI_U64, &n->value_dim, "N", "head dimension of values, where it is another");
    cli_add(a, "window", 0, CLI_U64, &n->window, "N", "sliding window in tokens");
    cli_add(a, "window-layers", 0, CLI_U64, &n->window_layers, "N", "how many layers slide");
    cli_add(a, "latent-rank", 0, CLI_U64, &n->latent_rank, "N",
            "latent attention: rank of the shared vector");
    cli_add(a, "rope-dim", 0, CLI_U64, &n->rope_dim, "N", "latent attention: rotary part beside it");
    cli_add(a, "attention-layers", 0, CLI_U64, &n->attention_layers, "N",
            "hybrids: how many layers attend; default: all");
    cli_add(a, "state", 0, CLI_SIZE, &n->state_bytes, "SIZE",
            "hybrids: what each other layer keeps of a session; default: nothing");
    cli_add(a, "ctx", 0, CLI_U64, &o->ctx_tokens, "N", "context in tokens; default: the configuration's");
    cli_add(a, "cache-type", 0, CLI_TEXT, &o->key_type, "TYPE",
            "F16 (default), F32, Q8_0, Q4_0, ..., or bytes per value");
    cli_add(a, "value-type", 0, CLI_TEXT, &o->value_type, "TYPE", "the same for values, where it is another");
    cli_add(a, "page-tokens", 0, CLI_U64, &f->page_tokens, "N", "caches grow by so many tokens (default 1)");
    cli_add(a, "align", 0, CLI_SIZE, &f->align_bytes, "SIZE", "each layer's cache is a multiple of it");
    cli_add(a, "sessions", 0, CLI_U64, &o->sessions, "N", "sessions wanted; exit 1 where fewer fit");
    cli_add(a, "total", 0, CLI_SIZE, &f->total_bytes, "SIZE", "memory of the machine");
    cli_add(a, "system", 0, CLI_SIZE, &f->system_bytes, "SIZE", "what system and others take of it");
    cli_add(a, "weights", 0, CLI_SIZE, &f->weight_bytes, "SIZE", "what the model's weights take of it");
    cli_add(a, "workspace", 0, CLI_SIZE, &f->workspace_bytes, "SIZE",
            "what each session takes beside its cache");
}

static int set_type(char *to, size_t size, const char *from)
{
    if (from == NULL) return CLI_OK;
    if (*from == '\0' || strlen(from) >= size) return cli_usage(COMMAND, "'%.40s' is no cache type", from);
    snprintf(to, size, "%s", from);
    return CLI_OK;
}

static int evaluate(const cli_common *c, formula_options *o, weir_formula *f)
{
    weir_error err;
    weir_formula_result r = {.struct_size = sizeof r};
    int rc = set_type(f->key_type, sizeof f->key_type, o->key_type);
    if (rc == CLI_OK) rc = set_type(f->value_type, sizeof f->value_type, o->value_type);
    if (rc == CLI_OK) rc = make_layers(f, o);
    if (rc != CLI_OK) return rc;
    f->ctx_tokens = o->ctx_tokens != NOT_GIVEN ? o->ctx_tokens : f->trained_ctx_tokens;
    if (weir_formula_evaluate(f, &r, &err) != WEIR_OK)
        return f->unknown[0]
                   ? cli_usage(COMMAND, "%s; the configuration does not tell: %s (options of these names do)",
                               err.message, f->unknown)
                   : cli_error(COMMAND, &err);
    if (c->json) {
        rc = cli_json_print(report_json(f, &r));
    } else {
        print_bills(f, &r);
        print_sessions(f, &r, o->sessions);
    }
    bool enough = f->total_bytes == 0 || r.sessions >= (o->sessions != 0 ? o->sessions : 1);
    return rc == CLI_OK && !enough ? CLI_FAILED : rc;
}

int cli_formula(int argc, char **argv)
{
    cli_common c;
    weir_formula f;
    weir_error err;
    formula_options o = {.ctx_tokens = NOT_GIVEN};
    bool formula = false;
    cli_common_init(&c, COMMAND);
    weir_formula_init(&f);
    cli_args a = {.command = COMMAND,
                  .operand = "CONFIG",
                  .summary = "Says what sessions take, from plain numbers or a model's configuration: a\n"
                             "config.json, a folder with one, or a .gguf file. Exit 1 when none fits."};
    add_options(&a, &o, &f);
    cli_add_json(&a, &c);
    uint32_t shown = a.n_options;
    cli_add(&a, "formula", 0, CLI_FLAG, &formula, NULL, "");
    for (int i = 0; i < argc; i++) /* help has no line for what is part of the command's name */
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a.n_options = shown;
            return cli_parse(&a, 1, &argv[i]);
        }
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.value == NULL) return rc != CLI_OK ? rc : evaluate(&c, &o, &f);
    weir_context *context;
    rc = cli_context(&c, &context);
    if (rc != CLI_OK) return rc;
    rc = weir_formula_read(context, a.value, &f, &err) == WEIR_OK ? evaluate(&c, &o, &f)
                                                                  : cli_error(COMMAND, &err);
    weir_context_destroy(context);
    return rc;
}
