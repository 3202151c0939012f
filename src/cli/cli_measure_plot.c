/* Drawings of `weir measure`: SVG written by hand, with no script and nothing from elsewhere. */
#include "cli_measure.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 260, LEFT = 76, RIGHT = 16, TOP = 14, BOTTOM = 34 };

typedef struct axes {
    double x_max, y_max;
} axes;

static double x_at(const axes *a, double x)
{
    return LEFT + x / a->x_max * (WIDTH - LEFT - RIGHT);
}

static double y_at(const axes *a, double y)
{
    return HEIGHT - BOTTOM - y / a->y_max * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten (of two for bytes), so that about n steps reach max. */
static double nice_step(double max, int n)
{
    double raw = max / n, power = pow(10, floor(log10(raw)));
    double f = raw / power;
    return power * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

static void begin(FILE *f, const axes *a, const char *label)
{
    const double mib = 1048576;
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH, HEIGHT, label);
    double step = nice_step(a->y_max / mib, 5) * mib;
    for (double y = 0; y <= a->y_max; y += step)
        fprintf(f,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g MiB</text>\n",
                LEFT, WIDTH - RIGHT, y_at(a, y), y_at(a, y), LEFT - 6, y_at(a, y) + 4, y / mib);
}

static void level(FILE *f, const axes *a, double y, const char *class)
{
    if (y <= 0 || y > a->y_max) return;
    fprintf(f, "<line class=\"%s\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class, LEFT,
            WIDTH - RIGHT, y_at(a, y), y_at(a, y));
}

static void curve(FILE *f, const axes *a, const json_t *seconds, const json_t *values, const char *class)
{
    size_t i, n = 0;
    json_t *v;
    json_array_foreach(values, i, v)
    {
        if (!json_is_number(v)) continue;
        if (n++ == 0) fprintf(f, "<polyline class=\"%s\" points=\"", class);
        fprintf(f, "%.1f,%.1f ", x_at(a, json_number_value(json_array_get(seconds, i))),
                y_at(a, json_number_value(v)));
    }
    if (n > 0) fprintf(f, "\"/>\n");
}

static double largest(const json_t *list)
{
    double max = 0;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (json_number_value(v) > max) max = json_number_value(v);
    }
    return max;
}

static void draw_phases(FILE *f, const axes *a, const json_t *phases)
{
    size_t i;
    json_t *p;
    double last = -100;
    json_array_foreach(phases, i, p)
    {
        double x = x_at(a, cli_measure_number(p, "seconds"));
        fprintf(f, "<line class=\"phase\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, TOP,
                HEIGHT - BOTTOM);
        if (x - last < 48) continue; /* names would lie on each other */
        fprintf(f, "<text class=\"name\" x=\"%.1f\" y=\"%d\">%s</text>\n", x + 3, TOP + 9,
                cli_measure_word(p, "phase"));
        last = x;
    }
}

void cli_measure_plot_step(const json_t *step, FILE *f)
{
    const json_t *s = json_object_get(step, "samples"), *plan = json_object_get(step, "plan");
    const json_t *seconds = json_object_get(s, "seconds");
    double planned = cli_measure_number(plan, "planned_peak_bytes");
    double budget = cli_measure_number(plan, "budget_bytes");
    axes a = {.x_max = largest(seconds), .y_max = fmax(planned, largest(json_object_get(s, "rss_bytes")))};
    if (json_array_size(seconds) < 2 || a.x_max <= 0 || a.y_max <= 0) {
        fprintf(f, "<p class=\"note\">Too short to draw: %zu samples.</p>\n", json_array_size(seconds));
        return;
    }
    if (budget < 1.6 * a.y_max) a.y_max = fmax(a.y_max, budget); /* a far budget would flatten all */
    a.y_max *= 1.06;
    begin(f, &a, "memory over time");
    draw_phases(f, &a, json_object_get(step, "phases"));
    double step_seconds = nice_step(a.x_max, 6);
    for (double x = 0; x <= a.x_max; x += step_seconds)
        fprintf(f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g s</text>\n",
                x_at(&a, x), HEIGHT - BOTTOM + 18, x);
    level(f, &a, budget, "budget");
    level(f, &a, planned, "planned");
    curve(f, &a, seconds, json_object_get(s, "rss_bytes"), "rss");
    curve(f, &a, seconds, json_object_get(s, "pss_bytes"), "pss");
    curve(f, &a, seconds, json_object_get(s, "pss_anon_bytes"), "anon");
    fprintf(f,
            "</svg>\n<p class=\"key\"><i class=\"rss\"></i>RSS <i class=\"pss\"></i>PSS "
            "<i class=\"anon\"></i>anonymous part of PSS <i class=\"planned\"></i>planned peak "
            "<i class=\"budget\"></i>budget%s</p>\n",
            budget > a.y_max ? " (above the picture)" : "");
}

void cli_measure_plot_steps(const json_t *report, FILE *f)
{
    const json_t *steps = json_object_get(report, "steps");
    double budget = cli_measure_number(json_object_get(report, "options"), "budget_bytes");
    size_t i, n = json_array_size(steps);
    json_t *s;
    axes a = {.x_max = (double)n, .y_max = 0};
    json_array_foreach(steps, i, s)
    {
        a.y_max = fmax(a.y_max, cli_measure_number(json_object_get(s, "plan"), "planned_peak_bytes"));
        a.y_max = fmax(a.y_max, cli_measure_number(json_object_get(s, "measured"), "peak_rss_bytes"));
    }
    if (n == 0 || a.y_max <= 0) return;
    if (budget < 1.6 * a.y_max) a.y_max = fmax(a.y_max, budget);
    a.y_max *= 1.06;
    begin(f, &a, "planned and measured peak by sessions");
    double slot = (WIDTH - LEFT - RIGHT) / (double)n, bar = fmin(40, slot * 0.36);
    json_array_foreach(steps, i, s)
    {
        double mid = LEFT + (0.5 + (double)i) * slot;
        double planned = cli_measure_number(json_object_get(s, "plan"), "planned_peak_bytes");
        double measured = cli_measure_number(json_object_get(s, "measured"), "peak_rss_bytes");
        bool ok = strcmp(cli_measure_word(s, "outcome"), "ok") == 0;
        fprintf(f,
                "<rect class=\"bar-planned\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f%s</text>\n",
                mid - bar, y_at(&a, planned), bar, HEIGHT - BOTTOM - y_at(&a, planned),
                ok ? "bar-measured" : "bar-failed", mid, y_at(&a, measured), bar,
                HEIGHT - BOTTOM - y_at(&a, measured), mid, HEIGHT - BOTTOM + 18,
                cli_measure_number(s, "sessions"), ok ? "" : " *");
    }
    level(f, &a, budget, "budget");
    fprintf(
        f,
        "</svg>\n<p class=\"key\"><i class=\"planned\"></i>planned peak <i "
        "class=\"bar-measured\"></i>measured "
        "peak <i class=\"bar-failed\"></i>* did not run to its end <i class=\"budget\"></i>budget%s. Below: "
        "sessions.</p>\n",
        budget > a.y_max ? " (above the picture)" : "");
}
