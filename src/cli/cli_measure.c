/* weir measure: what a plan promised, held against the real thing (R14.5, R14.7, R14.8). Sessions are ramped
 * up, each step in a fresh process; every step stays in the report, however it ended. */
#define _GNU_SOURCE
#include "cli_measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static const char *const UNTESTED[] = {
    "Latency under load: sessions began together, with random tokens; no queue and no users.",
    "Long contexts: the plan holds caches of the whole context, but only this run's tokens were computed.",
    "Soak: each step ran for seconds; leaks and fragmentation show after hours.",
    "Heat and power: a board that throttles after minutes was not waited for.",
    "Recovery: no step was repeated after a failure, a full disk or a power cut.",
    "Other programs: what they take at other times is not in these figures.",
    "Quality of answers: nothing here looks at text."};

/* ---- options ---- */

static int parse_sessions(measure *m)
{
    unsigned long first, last;
    char *end;
    const char *text = m->sessions_text != NULL ? m->sessions_text : "1";
    errno = 0;
    first = last = strtoul(text, &end, 10);
    if (end != text && strncmp(end, "..", 2) == 0) {
        const char *second = end + 2;
        last = strtoul(second, &end, 10);
        if (end == second || *second < '0' || *second > '9') end = (char *)(uintptr_t)text;
    }
    if (errno != 0 || end == text || *end != 0 || *text < '0' || *text > '9' || first < 1 || last < first ||
        last > 1024)
        return cli_usage("measure", "--sessions %s: write a number or a range such as 1..4, 1024 at most",
                         text);
    m->first = (uint32_t)first;
    m->last = (uint32_t)last;
    return CLI_OK;
}

static int check(measure *m)
{
    int rc = parse_sessions(m);
    if (rc != CLI_OK) return rc;
    if (m->n_prompt < 1 || m->n_decode < 1 || m->n_prompt > 1 << 20 || m->n_decode > 1 << 20)
        return cli_usage("measure", "--prompt-tokens and --n may be 1 to %d", 1 << 20);
    if (m->interval_ms < 1 || m->interval_ms > 60000)
        return cli_usage("measure", "--interval may be 1 to 60000 milliseconds");
    if (m->common.load.ctx_tokens != 0 && m->common.load.ctx_tokens < m->n_prompt + m->n_decode)
        return cli_usage("measure", "--ctx %u is too short; %u tokens are run", m->common.load.ctx_tokens,
                         m->n_prompt + m->n_decode);
    if (m->common.model == NULL) return cli_usage("measure", "no model is given; use -m FILE");
    return CLI_OK;
}

/* ---- what is fixed ---- */

static bool hash_progress(void *arg, uint64_t done, uint64_t total)
{
    cli_progress(arg, done, total);
    return cli_pending_interrupt() == 0;
}

static int add_file(const measure *m, json_t *files, const char *path)
{
    weir_error err;
    char text[65];
    size_t i;
    json_t *file;
    json_array_foreach(files, i, file)
    {
        if (strcmp(cli_measure_word(file, "path"), path) == 0) return CLI_OK;
    }
    json_t *j = json_pack("{s:o}", "path", cli_json_text(path, strlen(path)));
    json_array_append_new(files, j);
    if (m->no_hash) return CLI_OK;
    weir_status status = weir_file_sha256(m->common.context, path, m->common.quiet ? NULL : hash_progress,
                                          (void *)(uintptr_t) "hashing", text, &err);
    cli_progress_end();
    if (status != WEIR_OK) return cli_error("measure", &err);
    json_object_set_new(j, "sha256", json_string(text));
    return CLI_OK;
}

static int model_json(const measure *m, weir_model *model, json_t *report)
{
    weir_error err;
    weir_model_info info = {.struct_size = sizeof info};
    weir_tensor_info t;
    json_t *files = json_array(), *j = json_object();
    json_object_set_new(report, "model", j);
    json_object_set_new(j, "files", files);
    if (weir_model_get_info(model, &info, &err) != WEIR_OK) return cli_error("measure", &err);
    json_object_set_new(j, "path", cli_json_text(m->common.model, strlen(m->common.model)));
    json_object_set_new(j, "name", cli_json_text(info.name, strlen(info.name)));
    json_object_set_new(j, "architecture", json_string(info.architecture));
    json_object_set_new(j, "format", json_string(info.format));
    json_object_set_new(j, "quantization", json_string(info.type));
    const cli_number numbers[] = {{"parameters", info.n_params},
                                  {"file_bytes", info.file_bytes},
                                  {"weight_bytes", info.weight_bytes},
                                  {"layers", info.n_layers}};
    cli_json_numbers(j, numbers, sizeof numbers / sizeof *numbers);
    int rc = CLI_OK;
    for (size_t i = 0; rc == CLI_OK && weir_model_tensor(model, i, &t); i++) rc = add_file(m, files, t.file);
    return rc;
}

/* No more sessions than fit, where that is asked for (R14.6). Where not even one does, the first step says
 * so.
 */
static weir_status take_fewer(measure *m, weir_model *model, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = m->common.load;
    o.n_sessions = o.max_batch = m->last;
    weir_status status = weir_model_plan(model, &o, &plan, err);
    if (status != WEIR_OK) return status;
    uint32_t fit = plan.fits ? plan.n_sessions : 1;
    if (fit < m->last) m->last = fit;
    if (m->first > m->last) m->first = m->last;
    return WEIR_OK;
}

/* What all steps share is decided once: a default budget or context would differ from step to step. */
static int fix_options(measure *m, weir_model *model, json_t *report)
{
    weir_error err;
    weir_machine machine = {.struct_size = sizeof machine};
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options *o = &m->common.load;
    bool by_default = o->mem_bytes == 0;
    if (weir_machine_read(m->common.context, &machine, &err) != WEIR_OK) return cli_error("measure", &err);
    if (by_default) o->mem_bytes = machine.default_budget_bytes;
    uint32_t wanted = m->last;
    o->n_sessions = o->max_batch = m->first;
    if (weir_model_plan(model, o, &plan, &err) != WEIR_OK) return cli_error("measure", &err);
    if (o->ctx_tokens == 0) {
        uint32_t least = m->n_prompt + m->n_decode;
        o->ctx_tokens = plan.ctx_tokens > least ? plan.ctx_tokens : least;
    }
    /* With that context: left to the plan, more sessions would get a shorter one, and fit. */
    if (o->fewer_sessions && take_fewer(m, model, &err) != WEIR_OK) return cli_error("measure", &err);
    json_t *j = json_object(), *host = json_object();
    const cli_number fixed[] = {{"budget_bytes", o->mem_bytes}, {"ctx_tokens", o->ctx_tokens},
                                {"prompt_tokens", m->n_prompt}, {"decode_tokens", m->n_decode},
                                {"first_sessions", m->first},   {"last_sessions", m->last},
                                {"wanted_sessions", wanted},    {"threads", plan.n_threads}};
    cli_json_numbers(j, fixed, sizeof fixed / sizeof *fixed);
    json_object_set_new(j, "budget_is_default", json_boolean(by_default));
    json_object_set_new(j, "kv_type", json_string(o->kv_type == WEIR_KV_F32 ? "f32" : "f16"));
    json_object_set_new(j, "kv_cache", json_string(cli_kv_cache(&m->common)));
    json_object_set_new(report, "options", j);
    const cli_number numbers[] = {{"cpus", machine.n_cpus},
                                  {"total_bytes", machine.total_bytes},
                                  {"available_bytes", machine.available_bytes}};
    cli_json_numbers(host, numbers, sizeof numbers / sizeof *numbers);
    json_object_set_new(host, "cpu_set", json_string(machine.cpu_set));
    json_object_set_new(host, "cgroup_version", json_integer(machine.cgroup_version));
    json_object_set_new(host, "cgroup_limit_bytes",
                        machine.cgroup_limit_bytes != UINT64_MAX ? cli_json_u64(machine.cgroup_limit_bytes)
                                                                 : json_null());
    json_object_set_new(report, "machine", host);
    return CLI_OK;
}

static void host_json(const measure *m, json_t *host)
{
    struct utsname u;
    weir_usage now = {.struct_size = sizeof now};
    weir_error err;
    if (uname(&u) == 0) {
        json_object_set_new(host, "kernel", json_sprintf("%s %s", u.sysname, u.release));
        json_object_set_new(host, "processor", json_string(u.machine));
    }
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        json_object_set_new(host, "processor_name", cli_json_text(colon + 2, strlen(colon + 2)));
        break;
    }
    if (f != NULL) fclose(f);
    if (weir_usage_read(m->common.context, getpid(), &now, &err) == WEIR_OK)
        json_object_set_new(host, "swap_bytes",
                            now.swap_total_bytes != UINT64_MAX ? cli_json_u64(now.swap_total_bytes)
                                                               : json_null());
}

/* What a step is expected to do, before it runs. It is measured here and not in the step, whose memory is the
 * plan's alone, and left out where memory is short. */
static bool predict(const measure *m, weir_model *model, uint32_t sessions, weir_prediction *p)
{
    enum { ROOM_BYTES = 256 << 20 };
    weir_error err;
    weir_machine machine = {.struct_size = sizeof machine};
    weir_load_options o = m->common.load;
    o.n_sessions = o.max_batch = sessions;
    p->struct_size = sizeof *p;
    if (m->no_rates) return false;
    if (weir_machine_read(m->common.context, &machine, &err) != WEIR_OK) return false;
    if (machine.cgroup_free_bytes < ROOM_BYTES || machine.available_bytes < ROOM_BYTES) return false;
    return weir_model_predict(model, &o, 0, p, &err) == WEIR_OK;
}

static int describe(measure *m, json_t *report)
{
    char when[32];
    time_t t = time(NULL);
    struct tm utc;
    json_t *untested = json_array();
    weir_error err;
    weir_model *model;
    gmtime_r(&t, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_object_set_new(report, "report", json_string("weir measure 1"));
    json_object_set_new(report, "version", json_string(WEIR_VERSION));
    json_object_set_new(report, "began", json_string(when));
    for (size_t i = 0; i < sizeof UNTESTED / sizeof *UNTESTED; i++)
        json_array_append_new(untested, json_string(UNTESTED[i]));
    json_object_set_new(report, "not_tested", untested);
    if (weir_model_open(m->common.context, m->common.model, &model, &err) != WEIR_OK)
        return cli_error("measure", &err);
    int rc = fix_options(m, model, report);
    if (rc == CLI_OK) rc = model_json(m, model, report);
    if (rc == CLI_OK) host_json(m, json_object_get(report, "machine"));
    weir_model_close(model);
    return rc;
}

/* ---- the ramp and its reports ---- */

static int ramp(const measure *m, json_t *report, uint32_t *n_ok)
{
    json_t *steps = json_array();
    weir_error err;
    weir_model *model;
    json_object_set_new(report, "steps", steps);
    if (weir_model_open(m->common.context, m->common.model, &model, &err) != WEIR_OK)
        return cli_error("measure", &err);
    for (uint32_t n = m->first; n <= m->last && cli_pending_interrupt() == 0; n++) {
        weir_prediction p;
        cli_interrupt_model(model);
        bool predicted = predict(m, model, n, &p);
        cli_interrupt_model(NULL);
        if (cli_pending_interrupt() != 0) break;
        json_t *step = cli_measure_step(m, n);
        if (step == NULL) break;
        json_array_append_new(steps, step);
        if (predicted) {
            json_object_set_new(step, "prediction", cli_json_prediction(&p));
            json_object_set_new(step, "predicted_decode_tps", cli_json_real(p.all_sessions.likely));
            json_object_set_new(step, "predicted_prefill_tps", cli_json_real(p.prefill.likely));
        }
        *n_ok += strcmp(cli_measure_word(step, "outcome"), "ok") == 0;
        if (!m->common.json) cli_measure_line(step);
    }
    weir_model_close(model);
    json_object_set_new(report, "interrupted", json_boolean(cli_pending_interrupt() != 0));
    return json_array_size(steps) > 0 || cli_pending_interrupt() != 0
               ? CLI_OK
               : cli_fail("measure", "no memory for a step's samples");
}

static bool put_json(const json_t *report, FILE *f)
{
    return json_dumpf(report, f, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', f) != EOF;
}

/* Under another name first: a report is there whole or not at all. */
static int put_file(const json_t *report, const char *path, bool (*put)(const json_t *, FILE *))
{
    if (path == NULL) return CLI_OK;
    size_t n = strlen(path) + 16;
    char *name = malloc(n);
    if (name == NULL) return cli_fail("measure", "no memory for a file's name");
    snprintf(name, n, "%s.part", path);
    FILE *f = fopen(name, "we");
    bool ok = f != NULL && put(report, f);
    if (f != NULL && fclose(f) != 0) ok = false;
    if (ok && rename(name, path) != 0) ok = false;
    int rc = ok ? CLI_OK : cli_fail("measure", "%s could not be written: %s", path, strerror(errno));
    if (!ok && f != NULL) unlink(name);
    free(name);
    return rc;
}

static int run(measure *m, json_t *report)
{
    uint32_t n_ok = 0;
    cli_catch_interrupt(NULL, true);
    int rc = describe(m, report);
    if (rc != CLI_OK) return rc;
    if (!m->common.json) cli_measure_head(report);
    rc = ramp(m, report, &n_ok);
    if (rc == CLI_OK && !m->common.json) cli_measure_foot(report);
    if (rc == CLI_OK) rc = put_file(report, m->report_path, put_json);
    if (rc == CLI_OK) rc = put_file(report, m->html_path, cli_measure_html);
    if (rc == CLI_OK && m->common.json) rc = cli_json_print(json_incref(report));
    int sig = cli_pending_interrupt();
    if (rc == CLI_OK && sig != 0) return CLI_INTERRUPTED + sig;
    return rc == CLI_OK && n_ok == 0 ? CLI_FAILED : rc;
}

int cli_measure(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "--step") == 0) return cli_measure_child(argc - 1, argv + 1);
    measure m = {.n_prompt = 32, .n_decode = 32, .interval_ms = 50};
    cli_common_init(&m.common, "measure");
    cli_args a = {.command = "measure",
                  .operand = "FILE",
                  .summary =
                      "Runs more and more sessions, each step in a process of its own, and holds what\n"
                      "is measured against the plan. Exit 1 when no step ran to its end."};
    cli_add_model(&a, &m.common);
    cli_add(&a, "sessions", 0, CLI_TEXT, &m.sessions_text, "N|A..B",
            "sessions at once; one step each (default 1)");
    cli_add(&a, "fewer-sessions", 0, CLI_FLAG, &m.common.load.fewer_sessions, NULL,
            "end with as many as fit the budget");
    cli_add_mem(&a, &m.common);
    cli_add(&a, "prompt-tokens", 0, CLI_U32, &m.n_prompt, "N", "tokens of each prompt (default 32)");
    cli_add(&a, "n", 'n', CLI_U32, &m.n_decode, "N", "tokens decoded by each session (default 32)");
    cli_add(&a, "interval", 0, CLI_U32, &m.interval_ms, "MS",
            "milliseconds from sample to sample (default 50)");
    cli_add(&a, "no-hash", 0, CLI_FLAG, &m.no_hash, NULL, "do not read the model's files for their SHA-256");
    cli_add(&a, "no-rates", 0, CLI_FLAG, &m.no_rates, NULL, "predict no speed before each step");
    cli_add_load(&a, &m.common);
    cli_add_json(&a, &m.common);
    cli_add(&a, "output", 'o', CLI_TEXT, &m.report_path, "FILE", "write the JSON report there");
    cli_add(&a, "html", 0, CLI_TEXT, &m.html_path, "FILE", "write the report as a page there");
    cli_add(&a, "quiet", 0, CLI_FLAG, &m.common.quiet, NULL, "no progress");
    int rc = cli_parse(&a, argc, argv);
    if (rc != CLI_OK || a.help) return rc;
    rc = check(&m);
    if (rc != CLI_OK) return rc;
    weir_context *context;
    rc = cli_context(&m.common, &context);
    if (rc != CLI_OK) return rc;
    json_t *report = json_object();
    rc = run(&m, report);
    json_decref(report);
    weir_context_destroy(context);
    return rc;
}
