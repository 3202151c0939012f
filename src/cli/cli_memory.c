/* The memory check of doctor (R10.3). */
#include "cli.h"

#include <string.h>

static const char *on_off(bool on)
{
    return on ? "on" : "off";
}

void cli_print_memory_check(const weir_memory_check *k)
{
    char a[32], b[32];
    printf("\nmemory check  for models on devices; %s computes (compute.device)\n", k->device);
    printf("  mode           %s\n", k->vram_mode);
    printf("  reserve        %s of a device stay free\n", weir_size_text(k->vram_reserve_bytes, a));
    printf("  limit          %s\n",
           k->vram_limit_bytes != 0 ? weir_size_text(k->vram_limit_bytes, a) : "none");
    printf("  RAM reserve    %s; free now: %s\n", weir_size_text(k->ram_reserve_bytes, a),
           weir_size_text(k->ram_free_bytes, b));
    printf("  host copies    %s; at this moment they are %s\n", k->host_copies,
           k->makes_host_copies ? "made" : "not made");
    printf("  pinned budget  %s\n", weir_size_text(k->max_pinned_bytes, a));
    printf("  copy streams   %u; %u unit%s copied ahead, for what runs once per token: %s\n", k->copy_streams,
           k->copies_ahead, k->copies_ahead == 1 ? "" : "s", k->prefetch_sequence);
    printf("  retry          %s when a device has no memory\n", on_off(k->oom_retry));
    printf("  fallback       %s; a leaner way, whose result differs slightly\n", on_off(k->oom_fallback));
    printf("  jobs           %u at once on a device; others wait %.0f s at most\n", k->jobs, k->job_wait_s);
    if (k->max_resident_models != 0)
        printf("  models         %u on devices at most; the one used longest ago leaves\n",
               k->max_resident_models);
    if (k->pinned_models[0] != '\0') printf("  pinned models  %s\n", k->pinned_models);
    for (uint32_t i = 0; i < k->n_remarks; i++) printf("  note           %s\n", k->remarks[i]);
}

json_t *cli_json_memory_check(const weir_memory_check *k)
{
    json_t *j = json_object(), *remarks = json_array();
    const char *const texts[][2] = {{"device", k->device},
                                    {"mode", k->vram_mode},
                                    {"host_copies", k->host_copies},
                                    {"prefetch_sequence", k->prefetch_sequence},
                                    {"pinned_models", k->pinned_models}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_object_set_new(j, texts[i][0], cli_json_text(texts[i][1], strlen(texts[i][1])));
    const cli_number numbers[] = {{"reserve_bytes", k->vram_reserve_bytes},
                                  {"ram_reserve_bytes", k->ram_reserve_bytes},
                                  {"ram_free_bytes", k->ram_free_bytes},
                                  {"max_pinned_bytes", k->max_pinned_bytes},
                                  {"copy_streams", k->copy_streams},
                                  {"copies_ahead", k->copies_ahead},
                                  {"jobs", k->jobs},
                                  {"max_resident_models", k->max_resident_models}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "limit_bytes",
                        k->vram_limit_bytes != 0 ? cli_json_u64(k->vram_limit_bytes) : json_null());
    json_object_set_new(j, "job_wait_s", cli_json_real(k->job_wait_s));
    json_object_set_new(j, "makes_host_copies", json_boolean(k->makes_host_copies));
    json_object_set_new(j, "retry", json_boolean(k->oom_retry));
    json_object_set_new(j, "fallback", json_boolean(k->oom_fallback));
    for (uint32_t i = 0; i < k->n_remarks; i++) json_array_append_new(remarks, json_string(k->remarks[i]));
    json_object_set_new(j, "remarks", remarks);
    return j;
}
