/* The report of `weir measure` as one page: no script, no font, no picture from elsewhere, so that it can be
 * kept beside the JSON and read on a machine without network. */
#include "cli_measure.h"

#include <string.h>

static const char STYLE[] =
    "body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;background:#fff;max-width:860px;margin:2em auto;"
    "padding:0 1em}h1{font-size:1.5em;margin-bottom:.1em}h2{font-size:1.2em;margin-top:2em}h3{margin:1.6em 0 "
    ".3em}"
    "table{border-collapse:collapse;margin:.6em 0;font-size:13px;display:block;overflow-x:auto}"
    "th,td{text-align:right;padding:.25em .6em;border-bottom:1px solid #e4e8ed;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}th{color:#5a6775;font-weight:600}dt{font-weight:600}"
    "dd{margin:0 0 .5em 0}code{font-size:12px;overflow-wrap:anywhere}.note{color:#5a6775}"
    ".bad{color:#b3261e;font-weight:600}svg{width:100%;height:auto}.grid{stroke:#edf0f3}"
    ".tick{font-size:11px;fill:#5a6775}.name{font-size:10px;fill:#8a95a1}.phase{stroke:#d5dbe1;stroke-"
    "dasharray:2 3}"
    "polyline{fill:none;stroke-width:1.8}polyline.rss{stroke:#9aa7b4}polyline.pss{stroke:#1769c4}"
    "polyline.anon{stroke:#2a9d6a}line.budget{stroke:#b3261e;stroke-width:1.5}"
    "line.planned{stroke:#e08a00;stroke-width:1.5;stroke-dasharray:6 4}.bar-planned{fill:#f3c981}"
    ".bar-measured{fill:#1769c4}.bar-failed{fill:#d9a19d}.key{font-size:12px;color:#5a6775;margin:.2em 0 0}"
    ".key i{display:inline-block;width:14px;height:8px;margin:0 .3em 0 .9em}.key .rss{background:#9aa7b4}"
    ".key .pss,.key .bar-measured{background:#1769c4}.key .anon{background:#2a9d6a}"
    ".key .planned{background:#f3c981}.key .budget{background:#b3261e}.key .bar-failed{background:#d9a19d}";

static void put_text(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(*text, f);
        }
    }
}

static void put_size(FILE *f, const json_t *o, const char *key)
{
    char a[32];
    fprintf(f, "<td>%s</td>", cli_measure_size(o, key, a));
}

static void put_rate(FILE *f, const json_t *o, const char *key)
{
    if (json_object_get(o, key) != NULL)
        fprintf(f, "<td>%.2f</td>", cli_measure_number(o, key));
    else
        fputs("<td>-</td>", f);
}

static void put_head(FILE *f, const json_t *report)
{
    char a[32];
    size_t i;
    json_t *file;
    const json_t *model = json_object_get(report, "model"), *options = json_object_get(report, "options");
    const json_t *host = json_object_get(report, "machine");
    fprintf(
        f,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>weir measure</title><style>%s</style>"
        "</head><body>\n<h1>",
        STYLE);
    put_text(f, cli_measure_word(model, "name")[0] ? cli_measure_word(model, "name")
                                                   : cli_measure_word(model, "path"));
    fprintf(f, "</h1>\n<p class=\"note\">Measured against its plan by weir %s, begun %s%s.</p>\n<table>",
            cli_measure_word(report, "version"), cli_measure_word(report, "began"),
            json_is_true(json_object_get(report, "interrupted")) ? "; <b>interrupted before its end</b>"
                                                                 : "");
    fprintf(f, "<tr><td>Model</td><td>%s, %s, weights ", cli_measure_word(model, "architecture"),
            cli_measure_word(model, "quantization"));
    fprintf(f, "%s</td></tr>\n", cli_measure_size(model, "weight_bytes", a));
    fprintf(f,
            "<tr><td>Fixed</td><td>budget %s%s, context %.0f tokens, cache %s, %.0f threads, each session "
            "%.0f prompt + %.0f decoded tokens</td></tr>\n",
            cli_measure_size(options, "budget_bytes", a),
            json_is_true(json_object_get(options, "budget_is_default")) ? " (what the machine left)" : "",
            cli_measure_number(options, "ctx_tokens"), cli_measure_word(options, "kv_type"),
            cli_measure_number(options, "threads"), cli_measure_number(options, "prompt_tokens"),
            cli_measure_number(options, "decode_tokens"));
    fprintf(f, "<tr><td>Machine</td><td>");
    put_text(f, cli_measure_word(host, "processor_name"));
    fprintf(f, " (%s), %.0f processors, %s, memory %s", cli_measure_word(host, "cpu_set"),
            cli_measure_number(host, "cpus"), cli_measure_word(host, "kernel"),
            cli_measure_size(host, "total_bytes", a));
    fprintf(f, ", swap %s", cli_measure_size(host, "swap_bytes", a));
    fprintf(f, ", control group limit %s</td></tr>\n", cli_measure_size(host, "cgroup_limit_bytes", a));
    json_array_foreach(json_object_get(model, "files"), i, file)
    {
        fputs("<tr><td>File</td><td>", f);
        put_text(f, cli_measure_word(file, "path"));
        fprintf(f, "<br><code>sha256 %s</code></td></tr>\n",
                cli_measure_word(file, "sha256")[0] ? cli_measure_word(file, "sha256") : "not taken");
    }
    fputs("</table>\n", f);
}

static void put_summary(FILE *f, const json_t *report)
{
    size_t i;
    json_t *s;
    fputs("<h2>Steps</h2>\n<table><tr><th>Sessions</th><th>Outcome</th><th>Planned peak</th><th>Measured "
          "peak</th>"
          "<th>Difference</th><th>PSS</th><th>Group</th><th>Group, working set</th><th>Lowest available</th>"
          "<th>Major faults</th><th>Prefill tok/s</th><th>Decode tok/s</th><th>Per session</th></tr>\n",
          f);
    json_array_foreach(json_object_get(report, "steps"), i, s)
    {
        const json_t *m = json_object_get(s, "measured"), *rates = json_object_get(s, "rates");
        const json_t *peak = json_array_get(json_object_get(s, "compared"), 0);
        const char *outcome = cli_measure_word(s, "outcome");
        fprintf(f, "<tr><td>%.0f</td><td%s>%s</td>", cli_measure_number(s, "sessions"),
                strcmp(outcome, "ok") == 0 ? "" : " class=\"bad\"", outcome);
        put_size(f, json_object_get(s, "plan"), "planned_peak_bytes");
        put_size(f, m, "peak_rss_bytes");
        if (peak != NULL)
            fprintf(f, "<td>%+.2f %%</td>", cli_measure_number(peak, "difference_percent"));
        else
            fputs("<td>-</td>", f);
        put_size(f, m, "pss_bytes");
        put_size(f, m, "cgroup_bytes");
        put_size(f, m, "cgroup_working_set_bytes");
        put_size(f, m, "available_lowest_bytes");
        fprintf(f, "<td>%.0f</td>", cli_measure_number(m, "major_faults"));
        put_rate(f, rates, "prefill_tps");
        put_rate(f, rates, "decode_tps");
        put_rate(f, rates, "decode_tps_per_session");
        fputs("</tr>\n", f);
    }
    fputs("</table>\n<h2>Planned against measured</h2>\n", f);
    cli_measure_plot_steps(report, f);
}

static void put_failure(FILE *f, const json_t *s)
{
    char a[32];
    const json_t *error = json_object_get(s, "error");
    if (json_object_get(s, "signal") != NULL) {
        fprintf(f, "<p class=\"bad\">Ended by signal %.0f (", cli_measure_number(s, "signal"));
        put_text(f, cli_measure_word(s, "signal_text"));
        fprintf(f, ") in phase %s.</p>\n", cli_measure_word(s, "phase"));
    } else if (json_object_get(s, "exit_status") != NULL) {
        fprintf(f, "<p class=\"bad\">Exit status %.0f in phase %s.</p>\n",
                cli_measure_number(s, "exit_status"), cli_measure_word(s, "phase"));
    }
    if (error != NULL) {
        fprintf(f, "<p>%s: ", cli_measure_word(error, "status"));
        put_text(f, cli_measure_word(error, "message"));
        if (json_object_get(error, "missing_bytes") != NULL)
            fprintf(f, " <b>Missing: %s.</b>", cli_measure_size(error, "missing_bytes", a));
        fputs("</p>\n", f);
    } else if (cli_measure_word(s, "standard_error")[0]) {
        fputs("<p><code>", f);
        put_text(f, cli_measure_word(s, "standard_error"));
        fputs("</code></p>\n", f);
    }
}

static void put_accounts(FILE *f, const json_t *compared)
{
    char a[32], b[32];
    size_t i;
    json_t *row;
    if (json_array_size(compared) == 0) return;
    fputs("<table><tr><th>Account</th><th>Planned</th><th>Measured peak</th><th>Difference in bytes</th>"
          "<th>in percent</th></tr>\n",
          f);
    json_array_foreach(compared, i, row)
    {
        fprintf(f, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%+.0f</td>", cli_measure_word(row, "account"),
                cli_measure_size(row, "planned_bytes", a), cli_measure_size(row, "measured_bytes", b),
                cli_measure_number(row, "difference_bytes"));
        if (json_is_number(json_object_get(row, "difference_percent")))
            fprintf(f, "<td>%+.2f</td></tr>\n", cli_measure_number(row, "difference_percent"));
        else
            fputs("<td>-</td></tr>\n", f);
    }
    fputs("</table>\n", f);
}

static void put_step(FILE *f, const json_t *s)
{
    const json_t *m = json_object_get(s, "measured");
    double n = cli_measure_number(s, "sessions");
    fprintf(f, "<h3>%.0f session%s: %s</h3>\n", n, n == 1 ? "" : "s", cli_measure_word(s, "outcome"));
    if (strcmp(cli_measure_word(s, "outcome"), "ok") != 0) put_failure(f, s);
    cli_measure_plot_step(s, f);
    put_accounts(f, json_object_get(s, "compared"));
    fprintf(f,
            "<p class=\"note\">%.1f s, %.0f samples, one every %.0f ms; page faults: %.0f minor, %.0f major; "
            "waited for memory: %.1f ms some tasks, %.1f ms all",
            cli_measure_number(s, "seconds"), cli_measure_number(m, "samples"),
            cli_measure_number(m, "interval_ms"), cli_measure_number(m, "minor_faults"),
            cli_measure_number(m, "major_faults"), cli_measure_number(m, "some_stall_us") / 1000,
            cli_measure_number(m, "full_stall_us") / 1000);
    if (json_is_number(json_object_get(s, "predicted_decode_tps")))
        fprintf(f, "; predicted: prompts at %.1f tok/s, decoding at %.2f tok/s",
                cli_measure_number(s, "predicted_prefill_tps"),
                cli_measure_number(s, "predicted_decode_tps"));
    fputs(".</p>\n", f);
}

static void put_meaning(FILE *f)
{
    static const char *const terms[][2] = {
        {"Planned peak", "What the plan said before anything was loaded: the sum of its accounts."},
        {"Measured peak", "The process's largest resident size since loading began (VmHWM); for a step that "
                          "did not end well, the kernel's figure at its exit."},
        {"RSS", "Pages in memory. Shared pages count in full in every process that maps them, so RSS of "
                "processes is never added up."},
        {"PSS",
         "The same with each shared page split among its users. This may be added up. The program that "
         "watches shares its code with the one that is watched, so PSS is a little below RSS."},
        {"Group", "All that the control group is charged with, page cache included: files that anybody in it "
                  "has read count, and are given back when memory is short."},
        {"Group, working set",
         "The same less file pages that are not in use: about what cannot be given back."},
        {"Lowest available",
         "MemAvailable of the machine: what new programs would get without swapping. Free "
         "memory is part of it, never added to it. Swap and zram are not in it."},
        {"Major faults", "Pages that had to be read from storage while the process waited. Many of them mean "
                         "that memory is too short."},
        {"Process", "Among the accounts: code, libraries, stacks and page tables, measured and not allocated "
                    "by us."}};
    fputs("<h2>What the figures mean</h2>\n<dl>", f);
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        fprintf(f, "<dt>%s</dt><dd>%s</dd>\n", terms[i][0], terms[i][1]);
    fputs("</dl>\n<p>1 MiB is 1,048,576 bytes and 1 MB is 1,000,000; 2 GiB are 2,147,483,648 bytes, and 2 GB "
          "2,000,000,000.</p>\n",
          f);
}

bool cli_measure_html(const json_t *report, FILE *f)
{
    size_t i;
    json_t *item;
    put_head(f, report);
    put_summary(f, report);
    fputs("<h2>Each step</h2>\n", f);
    json_array_foreach(json_object_get(report, "steps"), i, item)
    {
        put_step(f, item);
    }
    put_meaning(f);
    fputs("<h2>What this does not show</h2>\n<p>That it fitted does not say that it delivers.</p>\n<ul>", f);
    json_array_foreach(json_object_get(report, "not_tested"), i, item)
    {
        fputs("<li>", f);
        put_text(f, json_string_value(item));
        fputs("</li>\n", f);
    }
    fputs("</ul>\n</body></html>\n", f);
    return !ferror(f);
}
