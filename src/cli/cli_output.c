/* Reports for people. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TELLING_SECONDS 2 /* of a wait that a word is worth */

bool cli_is_terminal(FILE *f)
{
    return isatty(fileno(f)) == 1;
}

static bool bar_open;

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Empty where it is not worth telling. */
static const char *left_text(double left, char *buf, size_t size)
{
    buf[0] = 0;
    if (left < 1) return buf;
    if (left < 90)
        snprintf(buf, size, ", %.0f s left", left);
    else
        snprintf(buf, size, ", %.0f min left", left / 60);
    return buf;
}

/* What is left at the pace so far; 0 until that can be told. */
static double time_left(double seconds, uint64_t done, uint64_t total)
{
    return done > 0 && seconds >= TELLING_SECONDS ? seconds * (double)(total - done) / (double)done : 0;
}

void cli_progress(void *arg, uint64_t done, uint64_t total)
{
    static int last = -1;
    static double start;
    if (!cli_is_terminal(stderr) || total == 0) return;
    int percent = (int)(100.0 * (double)done / (double)total);
    if (bar_open && percent == last) return;
    if (!bar_open) start = seconds_now();
    last = percent;
    char bar[41], a[32], b[32], left[32];
    for (int i = 0; i < 40; i++) bar[i] = i * 100 < percent * 40 ? '#' : '.';
    bar[40] = 0;
    fprintf(stderr, "\r%s [%s] %3d %% (%s of %s%s)\033[K", (const char *)arg, bar, percent,
            weir_size_text(done, a), weir_size_text(total, b),
            left_text(time_left(seconds_now() - start, done, total), left, sizeof left));
    bar_open = true;
}

void cli_progress_end(void)
{
    if (bar_open) fprintf(stderr, "\r\033[K");
    bar_open = false;
}

static void prefill_line(const cli_prefill *p, size_t done, size_t total)
{
    char text[32];
    double left = time_left(seconds_now() - p->start, done, total);
    if (left == 0) left = p->seconds * (double)(total - done) / (double)total;
    fprintf(stderr, "\rreading the prompt: %zu of %zu tokens%s\033[K", done, total,
            left_text(left, text, sizeof text));
    bar_open = true;
}

void cli_prefill_begin(cli_prefill *p, const cli_common *c, size_t n)
{
    *p = (cli_prefill){.shown = !c->quiet && cli_is_terminal(stderr), .start = seconds_now()};
    if (c->pass_rows != 0) p->seconds = c->pass_seconds * (double)((n + c->pass_rows - 1) / c->pass_rows);
    if (p->shown && p->seconds >= TELLING_SECONDS) prefill_line(p, 0, n);
}

void cli_prefill_progress(const cli_prefill *p, size_t done, size_t total)
{
    enum { MANY_TOKENS = 512 };
    if (!p->shown) return;
    if (done == total)
        cli_progress_end();
    else if (total > MANY_TOKENS || seconds_now() - p->start >= TELLING_SECONDS || bar_open)
        prefill_line(p, done, total);
}

/* Length of the control character at p (n bytes left), 0 for any other. C1 controls are two bytes of UTF-8.
 */
static size_t control_character(const char *p, size_t n)
{
    unsigned char c = (unsigned char)p[0];
    if (c < 32 || c == 127) return 1;
    return c == 0xc2 && n > 1 && (unsigned char)p[1] >= 0x80 && (unsigned char)p[1] < 0xa0 ? 2 : 0;
}

bool cli_put(FILE *f, const char *text, size_t len)
{
    if (!cli_is_terminal(f)) return fwrite(text, 1, len, f) == len;
    for (size_t i = 0, from = 0; i <= len;) {
        size_t skip =
            i < len && text[i] != '\n' && text[i] != '\t' ? control_character(text + i, len - i) : 0;
        if (skip > 0 || i == len) {
            if (fwrite(text + from, 1, i - from, f) != i - from) return false;
            from = i + skip;
        }
        i += skip > 0 ? skip : 1;
    }
    return true;
}

const char *cli_line_text(const char *text, char *buf, size_t size)
{
    size_t n = strlen(text), at = 0;
    for (size_t i = 0; i < n && at + 1 < size;) {
        size_t skip = control_character(text + i, n - i);
        buf[at++] = skip > 0 ? ' ' : text[i];
        i += skip > 0 ? skip : 1;
    }
    buf[at] = 0;
    return buf;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

void cli_room_read(const cli_common *c, const weir_memory_report *r, cli_room *out)
{
    weir_machine machine = {.struct_size = sizeof machine};
    weir_error err;
    uint64_t others = 0;
    *out = (cli_room){0};
    for (uint32_t i = 0; i < r->n_accounts; i++) {
        const weir_account *a = &r->accounts[i];
        if (strcmp(a->tag, "kv") == 0 || strcmp(a->tag, "activations") == 0 ||
            strcmp(a->tag, "workspace") == 0 || strcmp(a->tag, "io") == 0)
            out->working_bytes += a->planned_bytes;
        else if (!has_prefix(a->tag, "weights."))
            others += a->planned_bytes;
    }
    /* A budget that the user gave is all for the run; the default one has left something to others. */
    if (c->load.mem_bytes == 0 && weir_machine_read(c->context, &machine, &err) == WEIR_OK)
        out->reserve_bytes = machine.reserve_bytes;
    uint64_t all = r->budget_bytes + out->reserve_bytes;
    out->free_bytes = all > others ? all - others : 0;
}

static void print_accounts(FILE *f, const weir_memory_report *r)
{
    char a[32], b[32], c[32];
    fprintf(f, "  %-18s %12s %12s %12s\n", "account", "planned", "now", "peak");
    for (uint32_t i = 0; i < r->n_accounts; i++)
        fprintf(f, "  %-18s %12s %12s %12s\n", r->accounts[i].tag,
                weir_size_text(r->accounts[i].planned_bytes, a), weir_size_text(r->accounts[i].bytes, b),
                weir_size_text(r->accounts[i].peak_bytes, c));
    fprintf(f, "  activations share their memory, which saves %s\n", weir_size_text(r->arena_saved_bytes, a));
    fprintf(f, "process  resident %s (%s with shared pages split among their users), anonymous %s\n",
            weir_size_text(r->rss_bytes, a), weir_size_text(r->pss_bytes, b),
            weir_size_text(r->anon_bytes, c));
}

static void print_device(FILE *f, const weir_memory_report *r)
{
    char a[32], b[32], c[32], d[32];
    fprintf(f, "device   %s: %s taken of %s (room %s behind limit and reserve, planned %s), mode %s\n",
            r->device, weir_size_text(r->device_taken_bytes, a), weir_size_text(r->device_total_bytes, b),
            weir_size_text(r->device_room_bytes, c), weir_size_text(r->device_planned_bytes, d),
            r->vram_mode);
    fprintf(f, "  fixed %s, %u of %u units stay with %s, %u slots of %s in all, caches and activations %s\n",
            weir_size_text(r->device_fixed_bytes, a), r->device_resident_units, r->device_units,
            weir_size_text(r->device_resident_bytes, b), r->device_slots,
            weir_size_text(r->device_slot_bytes, c), weir_size_text(r->device_kept_bytes, d));
    fprintf(f, "  link %s in %llu copies of units; in RAM for it: %s of copies, %s pinned\n",
            weir_size_text(r->device_streamed_bytes, a), (unsigned long long)r->device_copies,
            weir_size_text(r->host_copy_bytes, b), weir_size_text(r->pinned_bytes, c));
    if (r->device_slots != 0)
        fprintf(f, "  units %s ahead of time (by %s)",
                r->device_copies_ahead ? "are copied" : "are not copied", r->device_prefetch);
    if (r->device_slots != 0 && r->device_round_s_with > 0)
        fprintf(f, "; from storage a round of them took %.3g ms with that and %.3g ms without",
                r->device_round_s_with * 1e3, r->device_round_s_without * 1e3);
    if (r->device_slots != 0) fputc('\n', f);
}

void cli_print_memory(FILE *f, const cli_common *common, const weir_model *m)
{
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    if (weir_model_memory(m, &r, &err) != WEIR_OK) {
        fprintf(f, "memory   %s\n", err.message);
        return;
    }
    cli_room room;
    cli_room_read(common, &r, &room);
    char a[32], b[32], c[32], d[32];
    fprintf(f, "memory   budget %s%s, planned peak %s, measured peak %s\n", weir_size_text(r.budget_bytes, a),
            common->load.mem_bytes == 0 ? " (what the machine leaves)" : "",
            weir_size_text(r.planned_peak_bytes, b), weir_size_text(r.peak_bytes, c));
    fprintf(f, "weights  %s: %s stay, %s stream", weir_size_text(r.size_bytes, a),
            weir_size_text(r.loaded_bytes, b), weir_size_text(r.streamed_bytes, c));
    if (r.reason[0] != 0)
        fprintf(f, " (%s: %s free, %s to work in, %s in reserve)", r.reason,
                weir_size_text(room.free_bytes, a), weir_size_text(room.working_bytes, b),
                weir_size_text(room.reserve_bytes, d));
    if (r.packed_bytes > 0) fprintf(f, "; packed in memory: %s", weir_size_text(r.packed_bytes, a));
    fputc('\n', f);
    if (r.streamed_bytes > 0)
        fprintf(f, "storage  %s read (%s), computation waited %.2f s\n", weir_size_text(r.read_bytes, d),
                r.reader, r.wait_seconds);
    if (r.mapped_bytes > 0)
        fprintf(f, "mapped   %s are the file's own pages, which the system can take back\n",
                weir_size_text(r.mapped_bytes, d));
    if (r.device_total_bytes > 0) print_device(f, &r);
    print_accounts(f, &r);
}

void cli_print_profile(FILE *f, const weir_model *m)
{
    weir_phase p;
    weir_memory_report r = {.struct_size = sizeof r};
    weir_error err;
    char a[32], b[32], c[32];
    fprintf(f, "profile\n  %-12s %10s %10s %8s %12s %12s %12s\n", "phase", "seconds", "waited", "ops",
            "weights", "streamed", "peak live");
    for (size_t i = 0; weir_profile_phase(m, i, &p); i++)
        fprintf(f, "  %-12s %10.3f %10.3f %8llu %12s %12s %12s\n", p.name, p.seconds, p.wait_seconds,
                (unsigned long long)p.n_ops, weir_size_text(p.weight_bytes, a),
                weir_size_text(p.streamed_bytes, b), weir_size_text(p.peak_live_bytes, c));
    const char *name;
    double seconds;
    uint64_t count;
    fprintf(f, "  %-12s %10s %10s\n", "operation", "seconds", "times");
    for (size_t i = 0; weir_profile_op(m, i, &name, &seconds, &count); i++)
        fprintf(f, "  %-12s %10.3f %10llu\n", name, seconds, (unsigned long long)count);
    if (weir_model_memory(m, &r, &err) == WEIR_OK)
        fprintf(f, "  allocated in all: %s\n", weir_size_text(r.ledger_peak_bytes, a));
}
