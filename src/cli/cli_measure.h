/* What the parts of `weir measure` share.
 *
 *   cli_measure.c        options, the ramp, what is fixed, the report's frame
 *   cli_measure_child.c  one step: the process that is measured; tells its parent what it does, line by line
 *   cli_measure_step.c   starts a step, samples it from outside, and notes how it ended
 *   cli_measure_text.c   the report for a terminal
 *   cli_measure_html.c   the report as a page      cli_measure_plot.c  its drawings
 *
 * Text and page are made from the JSON report alone, so that all three say the same. */
#ifndef WEIR_CLI_MEASURE_H
#define WEIR_CLI_MEASURE_H

#include "cli.h"

typedef struct measure {
    cli_common common;
    const char *sessions_text, *report_path, *html_path;
    uint32_t first, last; /* sessions */
    uint32_t n_prompt, n_decode, interval_ms;
    bool no_hash, no_rates;
} measure;

/* The process of one step: weir measure --step ... Exit status. */
int cli_measure_child(int argc, char **argv);
/* Runs one step and gives its record; never NULL unless there is no memory. */
json_t *cli_measure_step(const measure *m, uint32_t sessions);
void cli_measure_head(const json_t *report);
void cli_measure_line(const json_t *step);
void cli_measure_foot(const json_t *report);
/* The page. False when f cannot be written. */
bool cli_measure_html(const json_t *report, FILE *f);
/* Memory over time of one step, as an SVG element. */
void cli_measure_plot_step(const json_t *step, FILE *f);
/* Planned against measured peak of all steps. */
void cli_measure_plot_steps(const json_t *report, FILE *f);

/* ---- reading the report: 0, or "" where there is nothing ---- */
double cli_measure_number(const json_t *o, const char *key);
const char *cli_measure_word(const json_t *o, const char *key);
/* "28.3 MiB", "-" where the key is missing or null. buf holds 32 bytes. */
const char *cli_measure_size(const json_t *o, const char *key, char *buf);

#endif
