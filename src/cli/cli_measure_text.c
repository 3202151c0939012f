/* The report of `weir measure` on a terminal, and reading its values. */
#include "cli_measure.h"

#include <string.h>

double cli_measure_number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

const char *cli_measure_word(const json_t *o, const char *key)
{
    const char *word = json_string_value(json_object_get(o, key));
    return word != NULL ? word : "";
}

const char *cli_measure_size(const json_t *o, const char *key, char *buf)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0)
        return weir_size_text((uint64_t)json_integer_value(v), buf);
    snprintf(buf, 32, "-");
    return buf;
}

void cli_measure_head(const json_t *report)
{
    char a[32];
    const json_t *model = json_object_get(report, "model"), *options = json_object_get(report, "options");
    printf("%s, %s, budget %s%s, context %.0f, each session %.0f + %.0f tokens\n",
           cli_measure_word(model, "architecture"), cli_measure_word(model, "quantization"),
           cli_measure_size(options, "budget_bytes", a),
           json_is_true(json_object_get(options, "budget_is_default")) ? " (what the machine leaves)" : "",
           cli_measure_number(options, "ctx_tokens"), cli_measure_number(options, "prompt_tokens"),
           cli_measure_number(options, "decode_tokens"));
    printf("%8s %-11s %11s %11s %8s %11s %11s %10s %10s\n", "sessions", "outcome", "planned", "peak", "off",
           "PSS", "group", "prefill/s", "decode/s");
    fflush(stdout);
}

void cli_measure_line(const json_t *step)
{
    char a[32], b[32], c[32], d[32], line[1024];
    const json_t *measured = json_object_get(step, "measured"), *rates = json_object_get(step, "rates");
    const json_t *error = json_object_get(step, "error");
    const json_t *peak = json_array_get(json_object_get(step, "compared"), 0);
    printf("%8.0f %-11s %11s %11s ", cli_measure_number(step, "sessions"), cli_measure_word(step, "outcome"),
           cli_measure_size(json_object_get(step, "plan"), "planned_peak_bytes", a),
           cli_measure_size(measured, "peak_rss_bytes", b));
    if (peak != NULL)
        printf("%+6.2f %% ", cli_measure_number(peak, "difference_percent"));
    else
        printf("%8s ", "-");
    printf("%11s %11s ", cli_measure_size(measured, "pss_bytes", c),
           cli_measure_size(measured, "cgroup_bytes", d));
    if (rates != NULL)
        printf("%10.1f %10.2f\n", cli_measure_number(rates, "prefill_tps"),
               cli_measure_number(rates, "decode_tps"));
    else
        printf("%10s %10s\n", "-", "-");
    if (error != NULL)
        printf("         %s\n", cli_line_text(cli_measure_word(error, "message"), line, sizeof line));
    if (json_object_get(step, "signal") != NULL)
        printf("         ended by signal %.0f (%s) in phase %s\n", cli_measure_number(step, "signal"),
               cli_measure_word(step, "signal_text"), cli_measure_word(step, "phase"));
    else if (error == NULL && strcmp(cli_measure_word(step, "outcome"), "ok") != 0)
        printf("         exit status %.0f in phase %s: %s\n", cli_measure_number(step, "exit_status"),
               cli_measure_word(step, "phase"),
               cli_line_text(cli_measure_word(step, "standard_error"), line, sizeof line));
    fflush(stdout);
}

void cli_measure_foot(const json_t *report)
{
    size_t i;
    json_t *item;
    if (json_is_true(json_object_get(report, "interrupted")))
        printf("interrupted; what was measured is kept\n");
    printf("\npeak   the process's own largest resident size since loading began; off: against the plan\n"
           "PSS    largest sample, pages that processes share split among them\n"
           "group  largest sample of all that the control group is charged with, its page cache included\n"
           "not tested:\n");
    json_array_foreach(json_object_get(report, "not_tested"), i, item)
    {
        printf("  %s\n", json_string_value(item));
    }
}
