/* Reports for scripts: JSON whose names carry their units. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The second tier; null where RAM is the only one. */
static json_t *device_json(const weir_memory_report *r)
{
    if (r->device_total_bytes == 0) return json_null();
    json_t *j = json_object();
    json_object_set_new(j, "name", cli_json_text(r->device, strlen(r->device)));
    const cli_number numbers[] = {{"total_bytes", r->device_total_bytes},
                                  {"taken_bytes", r->device_taken_bytes},
                                  {"room_bytes", r->device_room_bytes},
                                  {"planned_bytes", r->device_planned_bytes},
                                  {"limit_bytes", r->device_limit_bytes},
                                  {"reserve_bytes", r->device_reserve_bytes},
                                  {"fixed_bytes", r->device_fixed_bytes},
                                  {"resident_bytes", r->device_resident_bytes},
                                  {"slot_bytes", r->device_slot_bytes},
                                  {"kept_bytes", r->device_kept_bytes},
                                  {"host_copy_bytes", r->host_copy_bytes},
                                  {"pinned_bytes", r->pinned_bytes},
                                  {"streamed_bytes", r->device_streamed_bytes},
                                  {"copies", r->device_copies},
                                  {"hits", r->device_hits},
                                  {"retries", r->device_retries},
                                  {"units", r->device_units},
                                  {"resident_units", r->device_resident_units},
                                  {"slots", r->device_slots}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "prefetch", cli_json_text(r->device_prefetch, strlen(r->device_prefetch)));
    json_object_set_new(j, "from_storage", json_boolean(r->device_from_storage));
    json_object_set_new(j, "copies_ahead", json_boolean(r->device_copies_ahead));
    json_object_set_new(j, "round_seconds_with", cli_json_real(r->device_round_s_with));
    json_object_set_new(j, "round_seconds_without", cli_json_real(r->device_round_s_without));
    return j;
}

json_t *cli_json_memory(const cli_common *c, const weir_model *m)
{
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    if (weir_model_memory(m, &r, &err) != WEIR_OK)
        return json_pack("{s:o}", "error", cli_json_text(err.message, strlen(err.message)));
    json_t *accounts = json_object();
    for (uint32_t i = 0; i < r.n_accounts; i++)
        json_object_set_new(
            accounts, r.accounts[i].tag,
            json_pack("{s:I,s:I,s:I}", "planned_bytes", (json_int_t)r.accounts[i].planned_bytes, "bytes",
                      (json_int_t)r.accounts[i].bytes, "peak_bytes", (json_int_t)r.accounts[i].peak_bytes));
    json_t *j = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "budget_bytes", (json_int_t)r.budget_bytes,
                          "planned_peak_bytes", (json_int_t)r.planned_peak_bytes, "peak_bytes",
                          (json_int_t)r.peak_bytes, "rss_bytes", (json_int_t)r.rss_bytes, "pss_bytes",
                          (json_int_t)r.pss_bytes, "anon_bytes", (json_int_t)r.anon_bytes);
    cli_room room;
    cli_room_read(c, &r, &room);
    const struct {
        const char *name;
        uint64_t bytes;
    } megabytes[] = {{"size_mb", r.size_bytes},          {"loaded_mb", r.loaded_bytes},
                     {"streamed_mb", r.streamed_bytes},  {"free_mb", room.free_bytes},
                     {"working_mb", room.working_bytes}, {"reserve_mb", room.reserve_bytes}};
    for (size_t i = 0; i < sizeof megabytes / sizeof *megabytes; i++)
        json_object_set_new(j, megabytes[i].name, cli_json_real((double)megabytes[i].bytes / 1e6));
    const cli_number numbers[] = {{"read_bytes", r.read_bytes},
                                  {"misses", r.n_misses},
                                  {"load_bytes", r.load_bytes},
                                  {"packed_bytes", r.packed_bytes},
                                  {"mapped_bytes", r.mapped_bytes},
                                  {"ledger_bytes", r.ledger_bytes},
                                  {"ledger_peak_bytes", r.ledger_peak_bytes}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "mode", json_string(r.vram_mode));
    json_object_set_new(j, "reason", json_string(r.reason));
    json_object_set_new(j, "budget_is_default", json_boolean(c->load.mem_bytes == 0));
    json_object_set_new(j, "wait_seconds", cli_json_real(r.wait_seconds));
    json_object_set_new(j, "load_seconds", cli_json_real(r.load_seconds));
    json_object_set_new(j, "arena_saved_mib", cli_json_real((double)r.arena_saved_bytes / 1048576.0));
    json_object_set_new(j, "reader", json_string(r.reader));
    json_object_set_new(j, "accounts", accounts);
    json_object_set_new(j, "device", device_json(&r));
    return j;
}

json_t *cli_json_profile(const weir_model *m)
{
    json_t *phases = json_array(), *ops = json_object();
    weir_phase p;
    for (size_t i = 0; weir_profile_phase(m, i, &p); i++)
        json_array_append_new(
            phases, json_pack("{s:s,s:f,s:f,s:I,s:I,s:I,s:I}", "name", p.name, "seconds", p.seconds,
                              "wait_seconds", p.wait_seconds, "ops", (json_int_t)p.n_ops, "weight_bytes",
                              (json_int_t)p.weight_bytes, "streamed_bytes", (json_int_t)p.streamed_bytes,
                              "peak_live_bytes", (json_int_t)p.peak_live_bytes));
    const char *name;
    double seconds;
    uint64_t count;
    for (size_t i = 0; weir_profile_op(m, i, &name, &seconds, &count); i++)
        json_object_set_new(ops, name,
                            json_pack("{s:f,s:I}", "seconds", seconds, "count", (json_int_t)count));
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    json_t *j = json_pack("{s:o,s:o}", "phases", phases, "ops", ops);
    if (weir_model_memory(m, &r, &err) == WEIR_OK)
        json_object_set_new(j, "allocated_bytes", cli_json_u64(r.ledger_peak_bytes));
    return j;
}

const char *cli_kv_cache(const cli_common *c)
{
    const char *name, *value, *source, *help;
    for (size_t i = 0; weir_context_setting(c->context, i, &name, &value, &source, &help); i++)
        if (strcmp(name, "compute.kv_cache") == 0) return value;
    return "full";
}

json_t *cli_json_applied(const cli_common *c)
{
    json_t *j = json_object();
    if (c->load.kv_type == WEIR_KV_F32) json_object_set_new(j, "kv_type", json_string("f32"));
    if (strcmp(cli_kv_cache(c), "full") != 0)
        json_object_set_new(j, "kv_cache", json_string(cli_kv_cache(c)));
    return j;
}

bool cli_fits_device(const weir_plan *p)
{
    return p->device_whole_bytes == 0 || p->device_planned_bytes <= p->device_room_bytes;
}

json_t *cli_json_plan(const weir_plan *p)
{
    json_t *j = json_object(), *accounts = json_object();
    const cli_number numbers[] = {{"budget_bytes", p->budget_bytes},
                                  {"planned_peak_bytes", p->planned_peak_bytes},
                                  {"smallest_bytes", p->smallest_bytes},
                                  {"whole_bytes", p->whole_bytes},
                                  {"missing_bytes", p->missing_bytes},
                                  {"ctx_tokens", p->ctx_tokens},
                                  {"sessions", p->n_sessions},
                                  {"prefill_chunk", p->prefill_chunk},
                                  {"threads", p->n_threads},
                                  {"streamed_bytes_per_pass", p->streamed_bytes_per_pass},
                                  {"weight_bytes_per_pass", p->weight_bytes_per_pass},
                                  {"macs_per_token", p->macs_per_token}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(j, "fits", json_boolean(p->fits));
    json_object_set_new(j, "budget_is_default", json_boolean(p->budget_is_default));
    for (uint32_t i = 0; i < p->n_accounts; i++)
        json_object_set_new(accounts, p->accounts[i].tag, cli_json_u64(p->accounts[i].planned_bytes));
    json_object_set_new(j, "accounts", accounts);
    json_t *caches = json_pack("{s:s,s:o,s:o}", "kv_cache", p->kv_cache, "first_bytes",
                               cli_json_u64(p->kv_first_bytes), "at", json_array());
    for (uint32_t i = 0; i < p->n_kv_steps; i++) {
        const cli_number step[] = {{"tokens", p->kv_steps[i].tokens},
                                   {"bytes", p->kv_steps[i].bytes},
                                   {"peak_bytes", p->kv_steps[i].peak_bytes}};
        json_t *at = json_object();
        cli_json_numbers(at, step, sizeof step / sizeof *step);
        json_array_append_new(json_object_get(caches, "at"), at);
    }
    json_object_set_new(j, "session_cache", caches);
    json_t *device = json_null();
    if (p->device_whole_bytes != 0) {
        const cli_number tier[] = {{"room_bytes", p->device_room_bytes},
                                   {"planned_bytes", p->device_planned_bytes},
                                   {"smallest_bytes", p->device_smallest_bytes},
                                   {"whole_bytes", p->device_whole_bytes},
                                   {"streamed_bytes_per_pass", p->device_streamed_bytes_per_pass}};
        device = json_object();
        json_object_set_new(device, "name", cli_json_text(p->device, strlen(p->device)));
        cli_json_numbers(device, tier, sizeof tier / sizeof *tier);
        json_object_set_new(device, "fits", json_boolean(cli_fits_device(p)));
    }
    json_object_set_new(j, "device", device);
    return j;
}

json_t *cli_json_u64(uint64_t value)
{
    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return json_string(text);
}

void cli_json_numbers(json_t *object, const cli_number *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        json_object_set_new(object, numbers[i].name, cli_json_u64(numbers[i].value));
}

json_t *cli_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cli_json_hash(uint64_t hash)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

/* Length of the valid UTF-8 sequence at p (n bytes left), 0 where there is none. */
static size_t utf8_sequence(const unsigned char *p, size_t n)
{
    size_t len = p[0] < 0x80                   ? 1
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                 : (p[0] & 0xf0) == 0xe0       ? 3
                 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                               : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : len;
}

json_t *cli_json_text(const char *text, size_t len)
{
    json_t *j = json_stringn(text, len);
    if (j != NULL) return j;
    char *buf = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&buf, &size);
    if (f == NULL) return json_string("");
    for (size_t i = 0; i < len;) {
        size_t n = utf8_sequence((const unsigned char *)text + i, len - i);
        if (n > 0)
            fwrite(text + i, 1, n, f);
        else
            fputs("\xef\xbf\xbd", f);
        i += n > 0 ? n : 1;
    }
    fclose(f);
    j = json_stringn(buf, size);
    free(buf);
    return j != NULL ? j : json_string("");
}

int cli_json_print(json_t *root)
{
    int rc = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY);
    putchar('\n');
    json_decref(root);
    return rc == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}
