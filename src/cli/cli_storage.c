/* What storage delivers and how fast a model will be with it, in reports and before a load. */
#include "cli.h"

#include <string.h>
#include <time.h>

void cli_print_storage(FILE *f, const char *path, const weir_storage *s)
{
    char a[32], when[64] = "", line[512];
    time_t t = (time_t)s->measured_at;
    struct tm tm;
    if (!s->fresh && localtime_r(&t, &tm) != NULL) strftime(when, sizeof when, ", measured %Y-%m-%d", &tm);
    fprintf(f, "storage       %s (%s, %s%s)\n", cli_line_text(path, line, sizeof line), s->file_system,
            s->reader, when);
    fprintf(f, "  in order    %.0f MB/s with %u reads of %s at once", s->bytes_per_s / 1e6, s->depth,
            weir_size_text(s->read_bytes, a));
    fprintf(f, "; at random places %.0f MB/s; a small read %.0f us\n", s->random_bytes_per_s / 1e6,
            s->latency_seconds * 1e6);
    fprintf(f, "  memory      %.1f GB/s copied\n", s->memory_bytes_per_s / 1e9);
    if (s->in_memory)
        fprintf(f, "  this is no disk: as quick as memory (tmpfs, or pages that the system has cached)\n");
    else if (s->slow)
        fprintf(f, "  slow storage: it is read in the largest pieces\n");
}

void cli_announce_speed(cli_common *c, weir_model *model)
{
    enum { STREAMS_MUCH = 64 << 20 };
    const double worth_telling = 2; /* tokens per second */
    weir_plan plan = {.struct_size = sizeof plan};
    weir_storage s = {.struct_size = sizeof s};
    weir_error err; /* whatever fails here, the load says it */
    if (c->quiet || !cli_is_terminal(stderr)) return;
    if (weir_model_plan(model, &c->load, &plan, &err) != WEIR_OK || !plan.fits) return;
    if (plan.streamed_bytes_per_pass == 0) return;
    if (weir_model_storage(model, false, &s, &err) != WEIR_OK) return;
    if (s.bytes_per_s <= 0) {
        if (plan.streamed_bytes_per_pass < STREAMS_MUCH) return;
        fprintf(stderr, "measuring the storage, once ...");
        weir_status status = weir_model_storage(model, true, &s, &err);
        fprintf(stderr, "\r\033[K");
        if (status != WEIR_OK || s.bytes_per_s <= 0) return;
    }
    double limit = s.bytes_per_s / (double)plan.streamed_bytes_per_pass;
    c->pass_seconds = 1 / limit;
    c->pass_rows = plan.prefill_chunk;
    if (!s.slow && limit > worth_telling) return;
    /* So slow a storage is the limit; timing products as weir_model_predict does would change nothing. */
    char a[32], b[32];
    if (limit < 1)
        snprintf(b, sizeof b, "%.1f s a token", 1 / limit);
    else
        snprintf(b, sizeof b, "%.1f tokens/s", limit);
    fprintf(stderr, "about %s: each token reads %s from storage that gives %.0f MB/s\n", b,
            weir_size_text(plan.streamed_bytes_per_pass, a), s.bytes_per_s / 1e6);
}

static json_t *rate_json(const weir_rate *r)
{
    json_t *j = json_object();
    json_object_set_new(j, "low", cli_json_real(r->low));
    json_object_set_new(j, "likely", cli_json_real(r->likely));
    json_object_set_new(j, "high", cli_json_real(r->high));
    return j;
}

json_t *cli_json_prediction(const weir_prediction *p)
{
    json_t *j = json_object();
    json_object_set_new(j, "decode_tps", rate_json(&p->decode));
    json_object_set_new(j, "all_sessions_tps", rate_json(&p->all_sessions));
    json_object_set_new(j, "prefill_tps", rate_json(&p->prefill));
    json_object_set_new(j, "prefill_rows", json_integer(p->prefill_rows));
    json_object_set_new(j, "tokens_per_s", cli_json_real(p->tokens_per_s));
    json_object_set_new(j, "seconds_per_token", cli_json_real(p->seconds_per_token));
    json_object_set_new(j, "limit_tokens_per_s", cli_json_real(p->limit_tokens_per_s));
    json_object_set_new(j, "storage_bytes_per_s", cli_json_real(p->storage_bytes_per_s));
    json_object_set_new(j, "compute_bytes_per_s", cli_json_real(p->compute_bytes_per_s));
    json_object_set_new(j, "latency_seconds", cli_json_real(p->latency_seconds));
    json_object_set_new(j, "note", p->note[0] != '\0' ? json_string(p->note) : json_null());
    return j;
}

json_t *cli_json_storage(const weir_storage *s)
{
    json_t *j = json_object();
    json_object_set_new(j, "file_system", json_string(s->file_system));
    json_object_set_new(j, "reader", json_string(s->reader));
    json_object_set_new(j, "bytes_per_s", cli_json_real(s->bytes_per_s));
    json_object_set_new(j, "random_bytes_per_s", cli_json_real(s->random_bytes_per_s));
    json_object_set_new(j, "latency_seconds", cli_json_real(s->latency_seconds));
    json_object_set_new(j, "memory_bytes_per_s", cli_json_real(s->memory_bytes_per_s));
    json_object_set_new(j, "depth", json_integer(s->depth));
    json_object_set_new(j, "read_bytes", cli_json_u64(s->read_bytes));
    json_object_set_new(j, "in_memory", json_boolean(s->in_memory));
    json_object_set_new(j, "slow", json_boolean(s->slow));
    json_object_set_new(j, "fresh", json_boolean(s->fresh));
    json_object_set_new(j, "measured_at", json_integer((json_int_t)s->measured_at));
    return j;
}
