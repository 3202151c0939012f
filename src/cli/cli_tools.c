/* The small commands: synth, tokenize, doctor. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* The options of a model that is made up. */
static void add_synth(cli_args *a, weir_synth_options *o)
{
    cli_add(a, "arch", 0, CLI_TEXT, &o->arch, "NAME", "llama (default), qwen2, qwen3 or gemma3");
    cli_add(a, "type", 0, CLI_TEXT, &o->type, "TYPE",
            "weight type: F32, F16, BF16, Q8_0 (default), Q4_0, Q4_K, Q4_K_M, ...");
    cli_add(a, "hidden", 0, CLI_U32, &o->hidden, "N", "width (default 256)");
    cli_add(a, "layers", 0, CLI_U32, &o->n_layers, "N", "layers (default 4)");
    cli_add(a, "heads", 0, CLI_U32, &o->n_heads, "N", "query heads (default 4)");
    cli_add(a, "kv-heads", 0, CLI_U32, &o->n_kv_heads, "N", "key-value heads (default 2)");
    cli_add(a, "head-dim", 0, CLI_U32, &o->head_dim, "N", "head dimension (default: width / heads)");
    cli_add(a, "ffn", 0, CLI_U32, &o->ffn, "N", "feed-forward width (default 512)");
    cli_add(a, "vocab", 0, CLI_U32, &o->n_vocab, "N", "tokens, 259 at least (default 1024)");
    cli_add(a, "ctx", 0, CLI_U32, &o->ctx_tokens, "N", "context it claims to be trained on (default 2048)");
    cli_add(a, "window", 0, CLI_U32, &o->window, "N", "gemma3: sliding window (default 512)");
    cli_add(a, "softcap", 0, CLI_F32, &o->softcap, "X",
            "gemma3: soft cap of scores and logits; 0 (default): none");
    cli_add(a, "rope-scaling", 0, CLI_TEXT, &o->rope_scaling, "KIND", "linear, llama3 or yarn");
    cli_add(a, "safetensors", 0, CLI_FLAG, &o->safetensors, NULL, "write a folder in Hugging Face's layout");
    cli_add(a, "seed", 0, CLI_U64, &o->seed, "N", "seed of the weights (default 1)");
}

int cli_synth(int argc, char **argv)
{
    cli_common c;
    weir_synth_options o;
    const char *path = NULL;
    bool tied = false, untied = false;
    cli_common_init(&c, "synth");
    weir_synth_options_init(&o);
    cli_args a = {.command = "synth",
                  .summary = "Writes a model with seeded random weights and a working tokenizer."};
    add_synth(&a, &o);
    cli_add(&a, "tied", 0, CLI_FLAG, &tied, NULL, "the head is the embedding table");
    cli_add(&a, "untied", 0, CLI_FLAG, &untied, NULL, "the head is a matrix of its own");
    cli_add(&a, "output", 'o', CLI_TEXT, &path, "FILE", "where to write");
    cli_add(&a, "quiet", 0, CLI_FLAG, &c.quiet, NULL, "no progress");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (path == NULL) return cli_usage("synth", "no output is given; use -o FILE");
    if (tied && untied) return cli_usage("synth", "--tied and --untied exclude each other");
    o.tied_given = tied || untied;
    o.tied = tied;
    o.progress = c.quiet ? NULL : cli_progress;
    o.progress_arg = (void *)(uintptr_t) "writing";
    o.stop = cli_stop;
    weir_context *context;
    rc = cli_context(&c, &context);
    if (rc != CLI_OK) return rc;
    weir_error err;
    cli_catch_interrupt(NULL, true);
    weir_status status = weir_synth(context, &o, path, &err);
    cli_progress_end();
    if (status != WEIR_OK) rc = cli_error("synth", &err);
    cli_release_interrupt();
    weir_context_destroy(context);
    return rc;
}

static int print_tokens(const cli_common *c, const int32_t *ids, size_t n)
{
    if (c->json) {
        json_t *tokens = json_array();
        for (size_t i = 0; i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
        return cli_json_print(json_pack("{s:o}", "tokens", tokens));
    }
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", ids[i]);
    putchar('\n');
    return CLI_OK;
}

int cli_tokenize(int argc, char **argv)
{
    cli_common c;
    bool special = false, bos = false;
    cli_common_init(&c, "tokenize");
    cli_args a = {.command = "tokenize", .summary = "Text on standard input, token ids on standard output."};
    cli_add_model(&a, &c);
    cli_add(&a, "special", 0, CLI_FLAG, &special, NULL, "parse special tokens in the text");
    cli_add(&a, "bos", 0, CLI_FLAG, &bos, NULL, "put the beginning-of-text token in front");
    cli_add_json(&a, &c);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    weir_context *context;
    weir_model *model;
    rc = cli_open_text(&c, &context, &model);
    if (rc != CLI_OK) return rc;
    size_t len = 0, n = 0;
    char *text = cli_read_input("tokenize", &len);
    int32_t *ids = NULL;
    weir_error err;
    int flags = (special ? WEIR_TOKENIZE_SPECIAL : 0) | (bos ? WEIR_TOKENIZE_BOS : 0);
    if (text == NULL)
        rc = CLI_FAILED;
    else if (weir_tokenize(model, text, len, flags, &ids, &n, &err) != WEIR_OK)
        rc = cli_error("tokenize", &err);
    else
        rc = print_tokens(&c, ids, n);
    free(text);
    weir_free(model, ids);
    weir_model_close(model);
    weir_context_destroy(context);
    return rc;
}

static void print_machine(const weir_machine *m)
{
    char a[32], b[32];
    printf("weir %s\n", WEIR_VERSION);
    printf("processors    %u; instruction sets", m->n_cpus);
    for (size_t i = 0; m->cpu_sets[i] != NULL; i++)
        printf(" %s%s", m->cpu_sets[i], strcmp(m->cpu_sets[i], m->cpu_set) == 0 ? " (in use)" : "");
    printf("\nmemory        %s, available %s\n", weir_size_text(m->total_bytes, a),
           weir_size_text(m->available_bytes, b));
    if (m->cgroup_limit_bytes != UINT64_MAX)
        printf("cgroup v%d     limit %s, free %s (reclaimable cache counts as free)\n", m->cgroup_version,
               weir_size_text(m->cgroup_limit_bytes, a), weir_size_text(m->cgroup_free_bytes, b));
    else
        printf("cgroup        no limit\n");
    printf("reserve       %s\nbudget        %s (what a run gets without --mem; swap and zram never count)\n",
           weir_size_text(m->reserve_bytes, a), weir_size_text(m->default_budget_bytes, b));
    printf("layout        quantized weights that stay are %s (packed: groups of %u rows, version %u)\n",
           m->packs ? "packed" : "in their file's layout", m->pack_rows, m->pack_version);
}

/* What OpenCL offers, or why it offers nothing. */
typedef struct devices {
    weir_device_info info[16];
    uint32_t n;
    char note[256];
} devices;

static void print_devices(const devices *d)
{
    char a[32];
    if (d->n == 0) printf("devices       cpu; %s\n", d->note);
    for (uint32_t i = 0; i < d->n && i < sizeof d->info / sizeof *d->info; i++) {
        const weir_device_info *v = &d->info[i];
        printf("%-13s %s: %s, driver %s, %s%s, %u compute units\n", i == 0 ? "devices" : "", v->id, v->name,
               v->driver, weir_size_text(v->memory_bytes, a), v->unified ? " of the machine's memory" : "",
               v->compute_units);
    }
}

static json_t *devices_json(const devices *d)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->n && i < sizeof d->info / sizeof *d->info; i++) {
        const weir_device_info *v = &d->info[i];
        json_t *j = json_object();
        const char *const texts[][2] = {{"id", v->id},
                                        {"name", v->name},
                                        {"vendor", v->vendor},
                                        {"driver", v->driver},
                                        {"version", v->version}};
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            json_object_set_new(j, texts[t][0], cli_json_text(texts[t][1], strlen(texts[t][1])));
        json_object_set_new(j, "memory_bytes", cli_json_u64(v->memory_bytes));
        json_object_set_new(j, "max_alloc_bytes", cli_json_u64(v->max_alloc_bytes));
        json_object_set_new(j, "compute_units", json_integer(v->compute_units));
        json_object_set_new(j, "cpu", json_boolean(v->cpu));
        json_object_set_new(j, "unified", json_boolean(v->unified));
        json_array_append_new(list, j);
    }
    return list;
}

/* storage: NULL where no path was given, or nothing is known. */
static int print_machine_json(const weir_context *context, const weir_machine *m, const devices *d,
                              const weir_memory_check *check, const weir_storage *storage)
{
    const char *name, *value, *source, *help;
    json_t *settings = json_object(), *sets = json_array();
    for (size_t i = 0; weir_context_setting(context, i, &name, &value, &source, &help); i++)
        json_object_set_new(settings, name,
                            json_pack("{s:o,s:s,s:s}", "value", cli_json_text(value, strlen(value)), "source",
                                      source, "help", help));
    for (size_t i = 0; m->cpu_sets[i] != NULL; i++) json_array_append_new(sets, json_string(m->cpu_sets[i]));
    bool limited = m->cgroup_limit_bytes != UINT64_MAX;
    json_t *j = json_pack("{s:s,s:i,s:o,s:s,s:s}", "version", WEIR_VERSION, "cpus", (int)m->n_cpus,
                          "cpu_sets", sets, "cpu_set", m->cpu_set, "memory_mode", check->vram_mode);
    const struct {
        const char *name;
        uint64_t bytes;
    } sizes[] = {{"total_bytes", m->total_bytes},
                 {"available_bytes", m->available_bytes},
                 {"reserve_bytes", m->reserve_bytes},
                 {"default_budget_bytes", m->default_budget_bytes}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(j, sizes[i].name, cli_json_u64(sizes[i].bytes));
    json_object_set_new(j, "packs", json_boolean(m->packs));
    json_object_set_new(j, "pack_version", json_integer(m->pack_version));
    json_object_set_new(j, "pack_rows", json_integer(m->pack_rows));
    json_object_set_new(j, "cgroup_version", json_integer(m->cgroup_version));
    json_object_set_new(j, "cgroup_limit_bytes", limited ? cli_json_u64(m->cgroup_limit_bytes) : json_null());
    json_object_set_new(j, "cgroup_free_bytes", limited ? cli_json_u64(m->cgroup_free_bytes) : json_null());
    json_object_set_new(j, "settings", settings);
    json_object_set_new(j, "devices", devices_json(d));
    json_object_set_new(j, "devices_note", d->note[0] != '\0' ? json_string(d->note) : json_null());
    json_object_set_new(j, "memory_check", cli_json_memory_check(check));
    json_object_set_new(j, "storage", storage != NULL ? cli_json_storage(storage) : json_null());
    return cli_json_print(j);
}

static void print_settings(const weir_context *context)
{
    const char *name, *value, *source, *help;
    printf("\n%-28s %-14s %-12s\n", "setting", "value", "from");
    for (size_t i = 0; weir_context_setting(context, i, &name, &value, &source, &help); i++)
        printf("%-28s %-14s %-12s %s\n", name, value[0] ? value : "-", source, help);
    printf(
        "\nSet them with --set NAME=VALUE, in the environment (cpu is WEIR_CPU, io.backend WEIR_IO_BACKEND),"
        "\nor as lines NAME = VALUE of the file that WEIR_SETTINGS names.\n");
}

/* path: NULL, or what storage is asked about. */
static int report_machine(cli_common *c, weir_context *context, const char *path, bool probe)
{
    weir_machine machine = {.struct_size = sizeof machine};
    weir_storage storage = {.struct_size = sizeof storage};
    weir_error err;
    if (weir_machine_read(context, &machine, &err) != WEIR_OK) return cli_error("doctor", &err);
    if (path != NULL && weir_storage_read(context, path, probe, &storage, &err) != WEIR_OK)
        return cli_error("doctor", &err);
    devices d = {.n = 0};
    if (weir_devices_list(context, d.info, sizeof d.info / sizeof *d.info, &d.n, d.note, sizeof d.note,
                          &err) != WEIR_OK)
        return cli_error("doctor", &err);
    weir_memory_check check = {.struct_size = sizeof check};
    if (weir_memory_check_read(context, &check, &err) != WEIR_OK) return cli_error("doctor", &err);
    bool known = storage.bytes_per_s > 0;
    if (c->json) return print_machine_json(context, &machine, &d, &check, known ? &storage : NULL);
    print_machine(&machine);
    print_devices(&d);
    if (known) cli_print_storage(stdout, path, &storage);
    if (path != NULL && !known) printf("storage       not measured yet; --probe measures it\n");
    cli_print_memory_check(&check);
    print_settings(context);
    return CLI_OK;
}

int cli_doctor(int argc, char **argv)
{
    cli_common c;
    bool probe = false;
    cli_common_init(&c, "doctor");
    cli_args a = {.command = "doctor",
                  .operand = "PATH",
                  .summary =
                      "Shows the machine, its limits, what the storage of PATH delivers, and the settings."};
    cli_add(&a, "probe", 0, CLI_FLAG, &probe, NULL, "measure the storage of PATH now, for about a second");
    cli_add(&a, "set", 0, CLI_SETTING, &c.settings, "NAME=VALUE", "a setting");
    cli_add_json(&a, &c);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (probe && a.value == NULL)
        return cli_usage("doctor", "--probe needs a PATH: a model, or a folder with a large file in it");
    weir_context *context;
    rc = cli_context(&c, &context);
    if (rc != CLI_OK) return rc;
    rc = report_machine(&c, context, a.value, probe);
    weir_context_destroy(context);
    return rc;
}
