/* weir runtime: loads a model and shows what of it is where, as bars or JSON (R10.2). */
#include "cli.h"

#include <string.h>

#define BAR_WIDTH 40

/* '#' is on the device (or in the CPU's memory), '=' streams from a copy in RAM, '.' from storage. */
static void bar(const weir_resident *r, char text[BAR_WIDTH + 1])
{
    bool device = strcmp(r->device, "cpu") != 0;
    double size = r->size_bytes != 0 ? (double)r->size_bytes : 1;
    uint64_t copies = device && r->host_bytes < r->streamed_bytes ? r->host_bytes
                      : device                                    ? r->streamed_bytes
                                                                  : 0;
    int loaded = (int)((double)r->loaded_bytes / size * BAR_WIDTH + 0.5);
    int in_ram = (int)((double)(r->loaded_bytes + copies) / size * BAR_WIDTH + 0.5);
    for (int i = 0; i < BAR_WIDTH; i++) text[i] = i < loaded ? '#' : i < in_ram ? '=' : '.';
    text[BAR_WIDTH] = '\0';
}

static void print_resident(const weir_resident *r)
{
    char a[32], b[32], c[32], d[32], line[BAR_WIDTH + 1], name[256];
    bar(r, line);
    printf("%s %s on %s, mode %s\n", r->kind, cli_line_text(r->name, name, sizeof name), r->device, r->mode);
    printf("  [%s]\n  loaded %s of %s, streamed %s%s%s%s, in RAM %s\n", line,
           weir_size_text(r->loaded_bytes, a), weir_size_text(r->size_bytes, b),
           weir_size_text(r->streamed_bytes, c), r->reason[0] != '\0' ? " (" : "", r->reason,
           r->reason[0] != '\0' ? ")" : "", weir_size_text(r->host_bytes, d));
}

static json_t *resident_json(const weir_resident *r)
{
    json_t *j = json_object();
    const char *const texts[][2] = {{"name", r->name},
                                    {"kind", r->kind},
                                    {"device", r->device},
                                    {"mode", r->mode},
                                    {"reason", r->reason}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_object_set_new(j, texts[i][0], cli_json_text(texts[i][1], strlen(texts[i][1])));
    const cli_number numbers[] = {
        {"size_bytes", r->size_bytes},         {"loaded_bytes", r->loaded_bytes},
        {"streamed_bytes", r->streamed_bytes}, {"host_bytes", r->host_bytes},
        {"copied_bytes", r->copied_bytes},     {"users", r->n_users},
    };
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    return j;
}

static int print_all(const cli_common *c, const weir_context *context)
{
    weir_resident r = {.struct_size = sizeof r};
    if (c->json) {
        json_t *models = json_array();
        for (size_t i = 0; weir_runtime(context, i, &r); i++)
            json_array_append_new(models, resident_json(&r));
        return cli_json_print(json_pack("{s:o}", "models", models));
    }
    for (size_t i = 0; weir_runtime(context, i, &r); i++) print_resident(&r);
    printf("# on the device or in the CPU's memory   = streams from RAM   . streams from storage\n");
    return CLI_OK;
}

int cli_runtime(int argc, char **argv)
{
    cli_common c;
    cli_common_init(&c, "runtime");
    cli_args a = {.command = "runtime",
                  .operand = "FILE",
                  .summary = "Loads a model and shows what of it stays, streams and lies in RAM."};
    cli_add_model(&a, &c);
    cli_add_mem(&a, &c);
    cli_add_load(&a, &c);
    cli_add(&a, "quiet", 0, CLI_FLAG, &c.quiet, NULL, "no progress");
    cli_add_json(&a, &c);
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    weir_context *context;
    weir_model *model;
    rc = cli_open(&c, &context, &model);
    if (rc != CLI_OK) return rc;
    cli_catch_interrupt(model, true);
    rc = cli_load(&c, model);
    cli_release_interrupt();
    if (rc == CLI_OK) rc = print_all(&c, context);
    weir_model_close(model);
    weir_context_destroy(context);
    return rc;
}
