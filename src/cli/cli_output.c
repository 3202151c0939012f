/* Reports for people and for scripts. */
#include "cli.h"

#include <string.h>
#include <stdlib.h>
#include <unistd.h>

bool cli_is_terminal(FILE *f)
{
    return isatty(fileno(f)) == 1;
}

static bool bar_open;

void cli_progress(void *arg, uint64_t done, uint64_t total)
{
    static int last = -1;
    if (!cli_is_terminal(stderr) || total == 0) return;
    int percent = (int)(100.0 * (double)done / (double)total);
    if (bar_open && percent == last) return;
    last = percent;
    char bar[41], a[32], b[32];
    for (int i = 0; i < 40; i++) bar[i] = i * 100 < percent * 40 ? '#' : '.';
    bar[40] = 0;
    fprintf(stderr, "\r%s [%s] %3d %% (%s of %s)  ", (const char *)arg, bar, percent, weir_size_text(done, a),
            weir_size_text(total, b));
    bar_open = true;
}

void cli_progress_end(void)
{
    if (bar_open) fprintf(stderr, "\r\033[K");
    bar_open = false;
}

void cli_print_memory(FILE *f, const weir_model *m, bool verbose)
{
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    if (weir_model_memory(m, &r, &err) != WEIR_OK) {
        fprintf(f, "memory: %s\n", err.message);
        return;
    }
    char a[32], b[32], c[32], d[32];
    fprintf(f, "memory  budget %s, planned peak %s, measured peak %s\n", weir_size_text(r.budget_bytes, a),
            weir_size_text(r.planned_peak_bytes, b), weir_size_text(r.peak_bytes, c));
    fprintf(f, "weights %s: %s stay, %s stream%s%s\n", weir_size_text(r.size_bytes, a),
            weir_size_text(r.loaded_bytes, b), weir_size_text(r.streamed_bytes, c),
            r.reason[0] ? "; reason: " : "", r.reason);
    if (r.streamed_bytes > 0)
        fprintf(f, "storage %s read (%s), computation waited %.2f s\n", weir_size_text(r.read_bytes, d),
                r.reader, r.wait_seconds);
    if (!verbose) return;
    fprintf(f, "%-18s %12s %12s %12s\n", "account", "planned", "now", "peak");
    for (uint32_t i = 0; i < r.n_accounts; i++)
        fprintf(f, "%-18s %12s %12s %12s\n", r.accounts[i].tag,
                weir_size_text(r.accounts[i].planned_bytes, a), weir_size_text(r.accounts[i].bytes, b),
                weir_size_text(r.accounts[i].peak_bytes, c));
    fprintf(f, "activations share memory: %s saved\n", weir_size_text(r.arena_saved_bytes, a));
    fprintf(f, "process: RSS %s, PSS %s, anonymous %s\n", weir_size_text(r.rss_bytes, a),
            weir_size_text(r.pss_bytes, b), weir_size_text(r.anon_bytes, c));
}

void cli_print_profile(FILE *f, const weir_model *m)
{
    weir_phase p;
    char a[32], b[32], c[32];
    fprintf(f, "%-12s %10s %10s %8s %12s %12s %12s\n", "phase", "seconds", "waited", "ops", "weights",
            "streamed", "peak live");
    for (size_t i = 0; weir_profile_phase(m, i, &p); i++)
        fprintf(f, "%-12s %10.3f %10.3f %8llu %12s %12s %12s\n", p.name, p.seconds, p.wait_seconds,
                (unsigned long long)p.n_ops, weir_size_text(p.weight_bytes, a),
                weir_size_text(p.streamed_bytes, b), weir_size_text(p.peak_live_bytes, c));
    const char *name;
    double seconds;
    uint64_t count;
    for (size_t i = 0; weir_profile_op(m, i, &name, &seconds, &count); i++)
        if (count > 0) fprintf(f, "  %-12s %8.3f s %10llu times\n", name, seconds, (unsigned long long)count);
}

json_t *cli_json_memory(const weir_model *m)
{
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    if (weir_model_memory(m, &r, &err) != WEIR_OK) return json_pack("{s:s}", "error", err.message);
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
    json_object_set_new(j, "size_mb", json_real((double)r.size_bytes / 1e6));
    json_object_set_new(j, "loaded_mb", json_real((double)r.loaded_bytes / 1e6));
    json_object_set_new(j, "streamed_mb", json_real((double)r.streamed_bytes / 1e6));
    json_object_set_new(j, "reason", json_string(r.reason));
    json_object_set_new(j, "read_bytes", json_integer((json_int_t)r.read_bytes));
    json_object_set_new(j, "misses", json_integer((json_int_t)r.n_misses));
    json_object_set_new(j, "wait_seconds", json_real(r.wait_seconds));
    json_object_set_new(j, "load_seconds", json_real(r.load_seconds));
    json_object_set_new(j, "load_bytes", json_integer((json_int_t)r.load_bytes));
    json_object_set_new(j, "arena_saved_mib", json_real((double)r.arena_saved_bytes / 1048576.0));
    json_object_set_new(j, "ledger_bytes", json_integer((json_int_t)r.ledger_bytes));
    json_object_set_new(j, "ledger_peak_bytes", json_integer((json_int_t)r.ledger_peak_bytes));
    json_object_set_new(j, "reader", json_string(r.reader));
    json_object_set_new(j, "accounts", accounts);
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
    return json_pack("{s:o,s:o}", "phases", phases, "ops", ops);
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
    int rc = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
    return rc == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}
