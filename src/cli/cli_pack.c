/* weir pack: a model once more, in the layout that the kernels read fastest. */
#include "cli.h"

#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int print_result(const cli_common *c, const char *path, const weir_pack_result *r, double seconds)
{
    char a[32], b[32], d[32], line[4096];
    if (!c->json) {
        printf("%s: %s\n  packed %s in %u tensors; as they were %s in %u; %.1f s\n",
               cli_line_text(path, line, sizeof line), weir_size_text(r->file_bytes, a),
               weir_size_text(r->packed_bytes, b), r->n_packed, weir_size_text(r->other_bytes, d), r->n_other,
               seconds);
        return CLI_OK;
    }
    json_t *j = json_object();
    json_object_set_new(j, "file", cli_json_text(path, strlen(path)));
    const cli_number numbers[] = {{"file_bytes", r->file_bytes},
                                  {"packed_bytes", r->packed_bytes},
                                  {"other_bytes", r->other_bytes},
                                  {"packed_tensors", r->n_packed},
                                  {"other_tensors", r->n_other}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "seconds", cli_json_real(seconds));
    return cli_json_print(j);
}

int cli_pack(int argc, char **argv)
{
    cli_common c;
    weir_pack_options o;
    cli_common_init(&c, "pack");
    weir_pack_options_init(&o);
    cli_args a = {.command = "pack",
                  .operand = "MODEL",
                  .output = "OUT",
                  .summary =
                      "Writes a GGUF model as one file in the kernels' own layout; same size, same results."};
    cli_add_model(&a, &c);
    cli_add(&a, "force", 0, CLI_FLAG, &o.force, NULL, "replace OUT where it exists");
    cli_add_json(&a, &c);
    cli_add(&a, "quiet", 0, CLI_FLAG, &c.quiet, NULL, "no progress");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    if (a.output_value == NULL && c.model != NULL)
        return cli_usage("pack", "no output is given; write weir pack MODEL OUT");
    weir_context *context;
    weir_model *model;
    rc = cli_open(&c, &context, &model);
    if (rc != CLI_OK) return rc;
    o.progress = c.quiet ? NULL : cli_progress;
    o.progress_arg = (void *)(uintptr_t) "packing";
    o.stop = cli_stop;
    weir_pack_result result = {.struct_size = sizeof result};
    weir_error err;
    cli_catch_interrupt(NULL, true);
    double start = now();
    weir_status status = weir_pack(model, &o, a.output_value, &result, &err);
    cli_progress_end();
    rc = status == WEIR_OK ? print_result(&c, a.output_value, &result, now() - start)
                           : cli_error("pack", &err);
    cli_release_interrupt();
    weir_model_close(model);
    weir_context_destroy(context);
    return rc;
}
