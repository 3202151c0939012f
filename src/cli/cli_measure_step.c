/* Runs a step of `weir measure` as a process of its own, watches it from outside at a steady rate, and notes
 * how it ended: well, refused, failed, or by which signal. */
#define _GNU_SOURCE
#include "cli_measure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SAMPLES = 1024, LINE_BYTES = 1 << 16, ERROR_BYTES = 4096, MAX_ARGS = 96, MAX_WORDS = 32 };

typedef struct sample {
    double seconds;
    weir_usage usage;
} sample;

typedef struct watch {
    const measure *m;
    json_t *record, *phases;
    pid_t pid;
    int in, out, err; /* ends of the child's standard input, output and error; -1: closed */
    char line[LINE_BYTES], error[ERROR_BYTES];
    size_t line_len, error_len;
    double start, interval;
    sample *samples;
    uint32_t n_samples;
    weir_usage before;
    bool interrupted;
} watch;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- starting ---- */

typedef struct arguments {
    char *argv[MAX_ARGS];
    char words[MAX_WORDS][48];
    int n, n_words;
} arguments;

static void add_text(arguments *a, const char *name, const char *value)
{
    if (a->n + 3 > MAX_ARGS) return;
    a->argv[a->n++] = (char *)(uintptr_t)name;
    a->argv[a->n++] = (char *)(uintptr_t)value;
    a->argv[a->n] = NULL;
}

static void add_number(arguments *a, const char *name, uint64_t value, const char *unit)
{
    if (value == 0 || a->n_words == MAX_WORDS) return;
    char *word = a->words[a->n_words++];
    snprintf(word, sizeof a->words[0], "%" PRIu64 "%s", value, unit);
    add_text(a, name, word);
}

static void fill_arguments(arguments *a, const measure *m, uint32_t sessions)
{
    const weir_load_options *o = &m->common.load;
    add_text(a, "weir", "measure");
    add_text(a, "--step", "--model");
    a->argv[a->n++] = (char *)(uintptr_t)m->common.model;
    add_number(a, "--mem", o->mem_bytes, "B");
    add_number(a, "--ctx", o->ctx_tokens, "");
    add_number(a, "--threads", o->n_threads, "");
    add_number(a, "--chunk", o->prefill_chunk, "");
    add_number(a, "--sessions", sessions, "");
    add_number(a, "--prompt-tokens", m->n_prompt, "");
    add_number(a, "--n", m->n_decode, "");
    add_text(a, "--kv-type", o->kv_type == WEIR_KV_F32 ? "f32" : "f16");
    if (o->weights == WEIR_WEIGHTS_READ) add_text(a, "--weights", "read");
    if (o->weights == WEIR_WEIGHTS_MAP) add_text(a, "--weights", "map");
    if (o->weights == WEIR_WEIGHTS_AUTO) add_text(a, "--weights", "auto");
    if (m->common.cpus != NULL) add_text(a, "--cpus", m->common.cpus);
    if (m->common.kv_cache != NULL) add_text(a, "--kv-cache", m->common.kv_cache);
    if (m->common.device != NULL) add_text(a, "--device", m->common.device);
    for (uint32_t i = 0; i < m->common.settings.n; i++) add_text(a, "--set", m->common.settings.item[i]);
}

/* In the child: its own process group, so that Ctrl-C reaches the parent alone; gone when the parent is. */
static void become(const int in[2], const int out[2], const int err[2], char **argv)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(in[0], 0) >= 0 && dup2(out[1], 1) >= 0 && dup2(err[1], 2) >= 0) execv("/proc/self/exe", argv);
    dprintf(2, "the program could not be started again: %s\n", strerror(errno));
    _exit(127);
}

static bool spawn(watch *w, uint32_t sessions)
{
    arguments a = {.n = 0};
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    fill_arguments(&a, w->m, sessions);
    bool ok = pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    fflush(stdout);
    w->pid = ok ? fork() : -1;
    if (w->pid == 0) become(in, out, err, a.argv);
    int error = errno;
    if (in[0] >= 0) close(in[0]);
    if (out[1] >= 0) close(out[1]);
    if (err[1] >= 0) close(err[1]);
    w->in = in[1];
    w->out = out[0];
    w->err = err[0];
    if (w->pid > 0) return true;
    snprintf(w->error, sizeof w->error, "no process could be started: %s", strerror(error));
    return false;
}

/* ---- watching ---- */

static void take_sample(watch *w)
{
    weir_error err;
    sample s = {.seconds = now() - w->start, .usage.struct_size = sizeof s.usage};
    if (weir_usage_read(w->m->common.context, w->pid, &s.usage, &err) != WEIR_OK) return;
    if (s.usage.rss_bytes == UINT64_MAX) return; /* it has ended */
    if (w->n_samples == MAX_SAMPLES) {           /* a long run: half of them, at half the rate */
        for (uint32_t i = 0; i < MAX_SAMPLES / 2; i++) w->samples[i] = w->samples[2 * i];
        w->n_samples = MAX_SAMPLES / 2;
        w->interval *= 2;
    }
    w->samples[w->n_samples++] = s;
}

static void take_line(watch *w, const char *text, size_t len)
{
    json_t *line = json_loadb(text, len, 0, NULL);
    const char *phase = json_string_value(json_object_get(line, "phase"));
    if (phase != NULL) {
        json_object_set_new(w->record, "phase", json_string(phase));
        json_array_append_new(w->phases, json_pack("{s:s,s:f}", "phase", phase, "seconds", now() - w->start));
    } else if (json_is_object(line)) {
        json_object_update(w->record, line);
    }
    json_decref(line);
    take_sample(w);
    if (json_is_true(json_object_get(w->record, "done")) && w->in >= 0) {
        close(w->in);
        w->in = -1;
    }
}

static void close_end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void read_out(watch *w)
{
    ssize_t n = read(w->out, w->line + w->line_len, sizeof w->line - w->line_len);
    if (n <= 0) {
        if (n == 0 || errno != EINTR) close_end(&w->out);
        return;
    }
    w->line_len += (size_t)n;
    char *end;
    while ((end = memchr(w->line, '\n', w->line_len)) != NULL) {
        size_t len = (size_t)(end - w->line) + 1;
        take_line(w, w->line, len - 1);
        memmove(w->line, w->line + len, w->line_len - len);
        w->line_len -= len;
    }
    if (w->line_len == sizeof w->line) w->line_len = 0; /* no line of ours is that long */
}

/* Keeps the end of what the process says on standard error. */
static void read_error(watch *w)
{
    char text[1024];
    ssize_t n = read(w->err, text, sizeof text);
    if (n <= 0) {
        if (n == 0 || errno != EINTR) close_end(&w->err);
        return;
    }
    size_t room = sizeof w->error - 1 - w->error_len, len = (size_t)n;
    if (len > room) {
        memmove(w->error, w->error + (len - room), w->error_len - (len - room));
        w->error_len -= len - room;
    }
    memcpy(w->error + w->error_len, text, len);
    w->error_len += len;
    w->error[w->error_len] = '\0';
}

static void observe(watch *w)
{
    double next = now();
    while (w->out >= 0 || w->err >= 0) {
        struct pollfd fds[2] = {{.fd = w->out, .events = POLLIN}, {.fd = w->err, .events = POLLIN}};
        double wait = 1000 * (next - now());
        int n = poll(fds, 2, wait > 0 ? (int)wait + 1 : 0);
        if (cli_pending_interrupt() != 0 && !w->interrupted) {
            w->interrupted = true;
            kill(w->pid, SIGTERM);
        }
        if (n > 0 && fds[0].revents != 0) read_out(w);
        if (n > 0 && fds[1].revents != 0) read_error(w);
        if (now() < next) continue;
        take_sample(w);
        next += w->interval;
        if (next < now()) next = now() + w->interval; /* a stalled machine: no burst of samples */
    }
}

/* ---- the record ---- */

static json_t *known(uint64_t value)
{
    return value != UINT64_MAX ? cli_json_u64(value) : json_null();
}

typedef struct column {
    const char *name;
    size_t offset;
} column;
#define COLUMN(field)                                                                                        \
    {                                                                                                        \
#field, offsetof(weir_usage, field)                                                                  \
    }
static const column COLUMNS[] = {
    COLUMN(rss_bytes),           COLUMN(pss_bytes),         COLUMN(pss_anon_bytes),
    COLUMN(pss_file_bytes),      COLUMN(private_bytes),     COLUMN(swap_bytes),
    COLUMN(minor_faults),        COLUMN(major_faults),      COLUMN(available_bytes),
    COLUMN(free_bytes),          COLUMN(cgroup_bytes),      COLUMN(cgroup_peak_bytes),
    COLUMN(cgroup_anon_bytes),   COLUMN(cgroup_file_bytes), COLUMN(cgroup_inactive_file_bytes),
    COLUMN(cgroup_kernel_bytes), COLUMN(some_stall_us),     COLUMN(full_stall_us)};
enum { N_COLUMNS = sizeof COLUMNS / sizeof *COLUMNS };

static uint64_t value_of(const weir_usage *u, const column *c)
{
    uint64_t v;
    memcpy(&v, (const char *)u + c->offset, sizeof v);
    return v;
}

static json_t *samples_json(const watch *w)
{
    json_t *j = json_object(), *seconds = json_array();
    for (uint32_t i = 0; i < w->n_samples; i++)
        json_array_append_new(seconds, json_real(w->samples[i].seconds));
    json_object_set_new(j, "seconds", seconds);
    for (size_t c = 0; c < N_COLUMNS; c++) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < w->n_samples; i++)
            json_array_append_new(list, known(value_of(&w->samples[i].usage, &COLUMNS[c])));
        json_object_set_new(j, COLUMNS[c].name, list);
    }
    return j;
}

/* The largest (or smallest) known value of a column; UINT64_MAX where none is known. */
static uint64_t extreme(const watch *w, size_t offset, bool largest)
{
    column c = {"", offset};
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < w->n_samples; i++) {
        uint64_t v = value_of(&w->samples[i].usage, &c);
        if (v != UINT64_MAX && (best == UINT64_MAX || (largest ? v > best : v < best))) best = v;
    }
    return best;
}
#define LARGEST(w, field)  known(extreme(w, offsetof(weir_usage, field), true))
#define SMALLEST(w, field) known(extreme(w, offsetof(weir_usage, field), false))

static uint64_t since(uint64_t after, uint64_t before)
{
    return after != UINT64_MAX && before != UINT64_MAX && after >= before ? after - before : UINT64_MAX;
}

/* What the group holds and cannot give back: all of it less the file pages that are not in use. */
static uint64_t working_set(const watch *w)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < w->n_samples; i++) {
        const weir_usage *u = &w->samples[i].usage;
        uint64_t v = since(u->cgroup_bytes, u->cgroup_inactive_file_bytes);
        if (v != UINT64_MAX && (best == UINT64_MAX || v > best)) best = v;
    }
    return best;
}

static json_t *measured_json(const watch *w, const struct rusage *r)
{
    weir_usage after = {.struct_size = sizeof after};
    weir_error err;
    json_t *j = json_object();
    const json_t *own = json_object_get(json_object_get(w->record, "memory"), "peak_bytes");
    uint64_t exit_peak = (uint64_t)r->ru_maxrss * 1024;
    /* The process's own figure begins with loading; the kernel's, where there is no other, with its start. */
    json_object_set_new(j, "peak_rss_bytes",
                        json_is_integer(own) ? json_integer(json_integer_value(own))
                                             : cli_json_u64(exit_peak));
    json_object_set_new(j, "peak_rss_of_exit_bytes", cli_json_u64(exit_peak));
    json_object_set_new(j, "pss_bytes", LARGEST(w, pss_bytes));
    json_object_set_new(j, "pss_anon_bytes", LARGEST(w, pss_anon_bytes));
    json_object_set_new(j, "private_bytes", LARGEST(w, private_bytes));
    json_object_set_new(j, "swap_bytes", LARGEST(w, swap_bytes));
    json_object_set_new(j, "cgroup_bytes", LARGEST(w, cgroup_bytes));
    json_object_set_new(j, "cgroup_peak_bytes", LARGEST(w, cgroup_peak_bytes));
    json_object_set_new(j, "cgroup_working_set_bytes", known(working_set(w)));
    json_object_set_new(j, "available_before_bytes", known(w->before.available_bytes));
    json_object_set_new(j, "available_lowest_bytes", SMALLEST(w, available_bytes));
    json_object_set_new(j, "minor_faults", cli_json_u64((uint64_t)r->ru_minflt));
    json_object_set_new(j, "major_faults", cli_json_u64((uint64_t)r->ru_majflt));
    if (weir_usage_read(w->m->common.context, getpid(), &after, &err) == WEIR_OK) {
        json_object_set_new(j, "some_stall_us", known(since(after.some_stall_us, w->before.some_stall_us)));
        json_object_set_new(j, "full_stall_us", known(since(after.full_stall_us, w->before.full_stall_us)));
        json_object_set_new(j, "cgroup_kills", known(since(after.cgroup_kills, w->before.cgroup_kills)));
    }
    json_object_set_new(j, "samples", json_integer(w->n_samples));
    json_object_set_new(j, "interval_ms", json_real(1000 * w->interval));
    return j;
}

static json_t *difference(const char *name, json_int_t planned, json_int_t measured)
{
    json_t *j = json_object();
    json_object_set_new(j, "account", json_string(name));
    json_object_set_new(j, "planned_bytes", json_integer(planned));
    json_object_set_new(j, "measured_bytes", json_integer(measured));
    json_object_set_new(j, "difference_bytes", json_integer(measured - planned));
    json_object_set_new(j, "difference_percent",
                        planned != 0 ? json_real(100.0 * (double)(measured - planned) / (double)planned)
                                     : json_null());
    return j;
}

/* Planned against measured, the whole first. Only for a step that ran to its end. */
static json_t *compared_json(const json_t *record)
{
    json_t *list = json_array(), *memory = json_object_get(record, "memory"), *account;
    const char *tag;
    if (memory == NULL) return list;
    json_array_append_new(list, difference("peak",
                                           json_integer_value(json_object_get(memory, "planned_peak_bytes")),
                                           json_integer_value(json_object_get(memory, "peak_bytes"))));
    json_object_foreach(json_object_get(memory, "accounts"), tag, account)
    {
        json_array_append_new(list,
                              difference(tag, json_integer_value(json_object_get(account, "planned_bytes")),
                                         json_integer_value(json_object_get(account, "peak_bytes"))));
    }
    return list;
}

static void note_end(watch *w, int status, bool started)
{
    const char *outcome = "ok",
               *error_status =
                   json_string_value(json_object_get(json_object_get(w->record, "error"), "status"));
    if (!started) {
        outcome = "not started";
    } else if (WIFSIGNALED(status)) {
        outcome = w->interrupted ? "interrupted" : "killed";
        json_object_set_new(w->record, "signal", json_integer(WTERMSIG(status)));
        json_object_set_new(w->record, "signal_text", json_string(strsignal(WTERMSIG(status))));
    } else {
        json_object_set_new(w->record, "exit_status", json_integer(WEXITSTATUS(status)));
        if (error_status != NULL && strcmp(error_status, "BUDGET") == 0)
            outcome = "refused";
        else if (WEXITSTATUS(status) != 0 || !json_is_true(json_object_get(w->record, "done")))
            outcome = "failed";
    }
    json_object_del(w->record, "done");
    json_object_set_new(w->record, "outcome", json_string(outcome));
    if (w->error[0] != '\0')
        json_object_set_new(w->record, "standard_error", cli_json_text(w->error, strlen(w->error)));
}

json_t *cli_measure_step(const measure *m, uint32_t sessions)
{
    weir_error err;
    int status = 0;
    struct rusage r = {.ru_maxrss = 0};
    watch *w = calloc(1, sizeof *w);
    sample *samples = calloc(MAX_SAMPLES, sizeof *samples);
    json_t *record = NULL;
    if (w == NULL || samples == NULL) goto done;
    *w = (watch){.m = m, .samples = samples, .in = -1, .out = -1, .err = -1, .start = now()};
    w->interval = 1e-3 * m->interval_ms;
    w->record = record = json_pack("{s:i}", "sessions", (int)sessions);
    w->phases = json_array();
    w->before.struct_size = sizeof w->before;
    if (weir_usage_read(m->common.context, getpid(), &w->before, &err) != WEIR_OK)
        memset(&w->before, 0xff, sizeof w->before);
    bool started = spawn(w, sessions);
    if (started) {
        observe(w);
        while (wait4(w->pid, &status, 0, &r) < 0 && errno == EINTR) {
        }
    }
    json_object_set_new(record, "seconds", json_real(now() - w->start));
    note_end(w, status, started);
    close_end(&w->in);
    close_end(&w->out);
    close_end(&w->err);
    json_object_set_new(record, "measured", measured_json(w, &r));
    json_object_set_new(record, "compared", compared_json(record));
    json_object_set_new(record, "phases", w->phases);
    json_object_set_new(record, "samples", samples_json(w));
done:
    free(samples);
    free(w);
    return record;
}
