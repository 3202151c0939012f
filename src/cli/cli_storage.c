/* What storage delivers, in the reports of doctor. */
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
