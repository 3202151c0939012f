/* weir inspect: metadata, tensors, units, smallest working set; reads headers only. */
#include "cli.h"

#include <string.h>

static void print_info(const weir_model_info *info)
{
    char a[32], b[32], line[256];
    printf("%s, %s%s%s\n", info->format, info->architecture, info->name[0] ? ": " : "",
           cli_line_text(info->name, line, sizeof line));
    printf("  %llu parameters, weights %s (mostly %s), %u file%s of %s\n", (unsigned long long)info->n_params,
           weir_size_text(info->weight_bytes, a), info->type, info->n_files, info->n_files == 1 ? "" : "s",
           weir_size_text(info->file_bytes, b));
    printf("  %u layers, hidden %u, FFN %u, %u heads, %u KV heads, head dimension %u, vocabulary %u\n",
           info->n_layers, info->hidden, info->ffn, info->n_heads, info->n_kv_heads, info->head_dim,
           info->n_vocab);
    printf("  context %u tokens", info->context_tokens);
    if (info->window) printf(", sliding window %u", info->window);
    printf("; head %s; tokenizer %s; chat template %s\n",
           info->tied_head ? "tied to the embedding" : "of its own",
           info->tokenizer[0] ? cli_line_text(info->tokenizer, line, sizeof line) : "none",
           info->chat_template[0] ? info->chat_template : "none");
    printf("  smallest working set of the weights: %s\n", weir_size_text(info->smallest_bytes, a));
}

static void print_values(const weir_model *m)
{
    char value[256], line[256], name[256];
    const char *key, *type;
    printf("\nmetadata\n");
    for (size_t i = 0; weir_model_value(m, i, &key, &type, value, sizeof value); i++)
        printf("  %-44s %-7s %s\n", cli_line_text(key, name, sizeof name), type,
               cli_line_text(value, line, sizeof line));
}

static void print_units(const weir_model *m)
{
    char a[32], b[32], line[64];
    weir_unit_info unit;
    printf("\nunits\n");
    for (size_t i = 0; weir_model_unit(m, i, &unit); i++)
        printf("  %-16s %3u weight%s %12s, of which may stream %12s\n",
               cli_line_text(unit.name, line, sizeof line), unit.n_weights, unit.n_weights == 1 ? " " : "s",
               weir_size_text(unit.bytes, a), weir_size_text(unit.streamable_bytes, b));
}

static void print_tensors(const weir_model *m, bool all)
{
    enum { FIRST = 24 };
    char a[32], name[256];
    weir_tensor_info t;
    size_t n = 0;
    printf("\ntensors\n");
    for (; weir_model_tensor(m, n, &t); n++) {
        if (!all && n >= FIRST) continue;
        char dims[96];
        int len = 0;
        for (uint32_t d = 0; d < t.n_dims && len >= 0 && (size_t)len < sizeof dims; d++)
            len += snprintf(dims + len, sizeof dims - (size_t)len, "%s%llu", d ? " x " : "",
                            (unsigned long long)t.dims[d]);
        printf("  %-36s %-11s %-20s offset %12llu %12s\n", cli_line_text(t.name, name, sizeof name), t.type,
               dims, (unsigned long long)t.offset, weir_size_text(t.bytes, a));
    }
    if (!all && n > FIRST) printf("  ... and %zu more (--all shows them)\n", n - FIRST);
}

static json_t *tensors_json(const weir_model *m)
{
    json_t *list = json_array();
    weir_tensor_info t;
    for (size_t i = 0; weir_model_tensor(m, i, &t); i++) {
        json_t *dims = json_array();
        for (uint32_t d = 0; d < t.n_dims; d++)
            json_array_append_new(dims, json_integer((json_int_t)t.dims[d]));
        json_t *j = json_pack("{s:s,s:o,s:I,s:I}", "type", t.type, "dims", dims, "offset",
                              (json_int_t)t.offset, "bytes", (json_int_t)t.bytes);
        json_object_set_new(j, "name", cli_json_text(t.name, strlen(t.name)));
        json_object_set_new(j, "file", cli_json_text(t.file, strlen(t.file)));
        json_array_append_new(list, j);
    }
    return list;
}

static int print_json(const weir_model *m, const weir_model_info *info)
{
    char value[4096];
    const char *key, *type;
    json_t *values = json_object(), *units = json_array();
    for (size_t i = 0; weir_model_value(m, i, &key, &type, value, sizeof value); i++)
        json_object_set_new(values, key, cli_json_text(value, strlen(value)));
    weir_unit_info unit;
    for (size_t i = 0; weir_model_unit(m, i, &unit); i++)
        json_array_append_new(
            units, json_pack("{s:s,s:I,s:I,s:I,s:i}", "name", unit.name, "bytes", (json_int_t)unit.bytes,
                             "streamable_bytes", (json_int_t)unit.streamable_bytes, "resident_bytes",
                             (json_int_t)unit.resident_bytes, "weights", (int)unit.n_weights));
    json_t *j =
        json_pack("{s:s,s:s,s:I,s:I,s:I,s:s}", "format", info->format, "architecture", info->architecture,
                  "parameters", (json_int_t)info->n_params, "file_bytes", (json_int_t)info->file_bytes,
                  "weight_bytes", (json_int_t)info->weight_bytes, "type", info->type);
    json_object_set_new(j, "name", cli_json_text(info->name, strlen(info->name)));
    const cli_number numbers[] = {{"files", info->n_files},
                                  {"layers", info->n_layers},
                                  {"hidden", info->hidden},
                                  {"ffn", info->ffn},
                                  {"heads", info->n_heads},
                                  {"kv_heads", info->n_kv_heads},
                                  {"head_dim", info->head_dim},
                                  {"vocab", info->n_vocab},
                                  {"context_tokens", info->context_tokens},
                                  {"window", info->window},
                                  {"smallest_working_set_bytes", info->smallest_bytes}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "tied_head", json_boolean(info->tied_head));
    json_object_set_new(j, "tokenizer", cli_json_text(info->tokenizer, strlen(info->tokenizer)));
    json_object_set_new(j, "chat_template", json_string(info->chat_template));
    json_object_set_new(j, "metadata", values);
    json_object_set_new(j, "units", units);
    json_object_set_new(j, "tensors", tensors_json(m));
    return cli_json_print(j);
}

int cli_inspect(int argc, char **argv)
{
    cli_common c;
    bool all = false;
    cli_common_init(&c, "inspect");
    cli_args a = {.command = "inspect",
                  .operand = "FILE",
                  .summary = "Shows what a model file holds; reads headers only."};
    cli_add_model(&a, &c);
    cli_add_json(&a, &c);
    cli_add(&a, "all", 0, CLI_FLAG, &all, NULL, "every tensor");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    weir_context *context;
    weir_model *model;
    rc = cli_open(&c, &context, &model);
    if (rc != CLI_OK) return rc;
    weir_model_info info = {.struct_size = sizeof info};
    weir_error err;
    if (weir_model_get_info(model, &info, &err) != WEIR_OK)
        rc = cli_error("inspect", &err);
    else if (c.json)
        rc = print_json(model, &info);
    else {
        print_info(&info);
        print_values(model);
        print_units(model);
        print_tensors(model, all);
    }
    weir_model_close(model);
    weir_context_destroy(context);
    return rc;
}
