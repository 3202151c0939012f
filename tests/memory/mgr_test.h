/* What the tests of the memory manager share: a simulated device, components of known weights, and a request
 * whose result depends on every weight and on the order of units. */
#ifndef WEIR_MGR_TEST_H
#define WEIR_MGR_TEST_H

#include "memory/memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_UNITS    6
#define UNIT_BYTES 131072u
#define N_SUMS     256u
#define WHOLE      (N_UNITS * UNIT_BYTES + 4096u)

typedef struct rig {
    base_env *env;
    dev_device *d;
    mem_manager *m;
    weir_error err;
} rig;

typedef struct model {
    mem_handle *h;
    uint32_t *data; /* N_UNITS units, then the fixed part */
    uint32_t rounds;
    uint64_t work_bytes;
} model;

#define ok(r, call)                                                                                          \
    do {                                                                                                     \
        weir_status got_status = (call);                                                                     \
        if (got_status != WEIR_OK)                                                                           \
            fail_msg("%s: %s: %s", #call, weir_status_name(got_status), (r)->err.message);                   \
    } while (0)

static inline uint64_t host_bytes(const rig *r)
{
    base_ledger_view v;
    base_ledger_read(r->env, &v);
    return v.bytes;
}

static inline uint64_t device_bytes(const rig *r)
{
    base_ledger_view v;
    base_ledger_read(r->env, &v);
    return v.device_bytes;
}

static inline mem_policy test_policy(void)
{
    mem_policy p;
    mem_policy_init(&p);
    p.vram_reserve_bytes = 0;
    return p;
}

static inline dev_sim_options device_of(uint64_t bytes)
{
    return (dev_sim_options){.memory_bytes = bytes, .strict = true, .alignment = 4096};
}

static inline void open_rig(rig *r, dev_sim_options o, mem_policy policy)
{
    memset(r, 0, sizeof *r);
    ok(r, base_env_create(&r->env, &r->err));
    ok(r, dev_sim_create(r->env, "ref", 1, &o, &r->d, &r->err));
    ok(r, mem_manager_create(r->env, r->d, &policy, NULL, &r->m, &r->err));
}

static inline void close_rig(rig *r)
{
    mem_manager_destroy(r->m);
    assert_int_equal(device_bytes(r), 0);
    dev_destroy(r->d);
    assert_int_equal(host_bytes(r), 0);
    base_env_destroy(r->env);
}

/* Six units of 128 KiB by name and a fixed part of 4 KiB; registered under the manager m. */
static inline void open_model_of(rig *r, mem_manager *m, model *x, const char *engine, const char *name,
                                 mem_kind kind, base_file *file)
{
    memset(x, 0, sizeof *x);
    x->rounds = 2;
    x->work_bytes = 65536;
    x->data = malloc(N_UNITS * UNIT_BYTES + 4096);
    assert_non_null(x->data);
    uint32_t v = (uint32_t)name[0] * 2654435761u;
    for (uint32_t i = 0; i < (N_UNITS * UNIT_BYTES + 4096) / 4; i++)
        x->data[i] = v = v * 1664525u + 1013904223u;
    ok(r, mem_handle_create(m, engine, name, kind, &x->h, &r->err));
    for (uint32_t i = 0; i <= N_UNITS; i++) {
        char text[32];
        uint32_t unit = MEM_UNIT_DEFAULT;
        mem_weight_id id;
        snprintf(text, sizeof text, "layer%u", i);
        if (i < N_UNITS) ok(r, mem_handle_add_unit(x->h, text, MEM_MARK_NONE, &unit, &r->err));
        mem_handle_weight w = {.name = text,
                               .bytes = i < N_UNITS ? UNIT_BYTES : 4096,
                               .host = file == NULL ? x->data + i * UNIT_BYTES / 4 : NULL,
                               .file = file,
                               .offset = i * UNIT_BYTES,
                               .streamable = i < N_UNITS};
        ok(r, mem_handle_add_weight(x->h, unit, &w, &id, &r->err));
        assert_int_equal(id, i);
    }
    ok(r, mem_handle_seal(x->h, &r->err));
}

static inline void open_model(rig *r, mem_manager *m, model *x, const char *name, mem_kind kind,
                              base_file *file)
{
    open_model_of(r, m, x, "test", name, kind, file);
}

static inline void close_model(model *x)
{
    mem_handle_destroy(x->h);
    free(x->data);
}

/* sums[i] = sums[i] x 31 + every 256th word of the weight from i on. */
static inline void fold(const dev_arg *args, size_t begin, size_t end)
{
    uint32_t *sums = args[0].as.address;
    const uint32_t *w = args[1].as.address;
    for (size_t i = begin; i < end; i++)
        for (uint32_t k = (uint32_t)i; k < args[2].as.u32; k += N_SUMS) sums[i] = sums[i] * 31 + w[k];
}
static const char fold_source[] =
    "__kernel void fold(__global uchar *s, ulong s_at, __global uchar *w, ulong w_at, uint words, uint n)\n"
    "{\n"
    "    uint i = get_global_id(0);\n"
    "    if (i >= n) return;\n"
    "    uint sum = ((__global uint *)(s + s_at))[i];\n"
    "    for (uint k = i; k < words; k += 256) sum = sum * 31 + ((__global uint *)(w + w_at))[k];\n"
    "    ((__global uint *)(s + s_at))[i] = sum;\n"
    "}\n";
static const dev_kernel fold_kernel = {.name = "fold", .source = fold_source, .c = fold};

static inline void expected(const model *x, uint32_t *sums)
{
    memset(sums, 0, N_SUMS * 4);
    for (uint32_t round = 0; round < x->rounds; round++)
        for (uint32_t u = 0; u <= N_UNITS; u++) {
            dev_arg a[3] = {{.as.address = sums},
                            {.as.address = x->data + u * UNIT_BYTES / 4},
                            {.as.u32 = u < N_UNITS ? UNIT_BYTES / 4 : 1024}};
            fold(a, 0, N_SUMS);
        }
}

typedef struct job {
    model *x;
    mem_manager *m;
    uint32_t sums[N_SUMS];
} job;

static inline weir_status fold_weight(mem_phase *p, job *j, void *sums, uint32_t id, weir_error *err)
{
    void *address;
    weir_status status = mem_weight_address(p, j->x->h, id, &address, err);
    dev_arg a[3] = {{.kind = DEV_ARG_ADDRESS, .as.address = sums},
                    {.kind = DEV_ARG_ADDRESS, .as.address = address},
                    {.kind = DEV_ARG_U32, .as.u32 = id < N_UNITS ? UNIT_BYTES / 4 : 1024}};
    return status == WEIR_OK ? mem_phase_launch(p, j->m, &fold_kernel, a, 3, N_SUMS, err) : status;
}

/* All units in order, `rounds` times, with scratch that comes and goes. */
static inline weir_status work(void *arg, mem_phase *p, weir_error *err)
{
    job *j = arg;
    static const uint32_t zeroes[N_SUMS];
    void *sums, *scratch;
    memset(j->sums, 0, sizeof j->sums);
    weir_status status = mem_phase_alloc(p, j->m, sizeof j->sums, "sums", &sums, err);
    if (status == WEIR_OK) status = mem_phase_upload(p, j->m, sums, zeroes, sizeof zeroes, err);
    for (uint32_t round = 0; round < j->x->rounds && status == WEIR_OK; round++) {
        status = mem_phase_alloc(p, j->m, j->x->work_bytes, "scratch", &scratch, err);
        for (uint32_t u = 0; u < N_UNITS && status == WEIR_OK; u++) {
            status = mem_unit_enter(p, j->x->h, u, err);
            if (status != WEIR_OK) break;
            status = fold_weight(p, j, sums, u, err);
            mem_unit_leave(p, j->x->h, u);
        }
        if (status == WEIR_OK) status = fold_weight(p, j, sums, N_UNITS, err);
        if (status == WEIR_OK) mem_phase_free(p, j->m, scratch);
    }
    if (status == WEIR_OK) status = mem_phase_download(p, j->m, j->sums, sums, sizeof j->sums, err);
    return status;
}

/* Any units in any order, and the sums that this gives. */
typedef struct visit {
    model *x;
    mem_manager *m;
    uint32_t n, order[32];
    uint32_t sums[N_SUMS];
} visit;

static inline weir_status visit_units(void *arg, mem_phase *p, weir_error *err)
{
    visit *v = arg;
    job j = {.x = v->x, .m = v->m};
    static const uint32_t zeroes[N_SUMS];
    void *sums;
    memset(v->sums, 0, sizeof v->sums);
    weir_status status = mem_phase_alloc(p, v->m, sizeof v->sums, "sums", &sums, err);
    if (status == WEIR_OK) status = mem_phase_upload(p, v->m, sums, zeroes, sizeof zeroes, err);
    for (uint32_t i = 0; i < v->n && status == WEIR_OK; i++) {
        uint32_t u = v->order[i];
        if (u < N_UNITS) status = mem_unit_enter(p, v->x->h, u, err);
        if (status != WEIR_OK) break;
        status = fold_weight(p, &j, sums, u, err);
        if (u < N_UNITS) mem_unit_leave(p, v->x->h, u);
    }
    if (status == WEIR_OK) status = mem_phase_download(p, v->m, v->sums, sums, sizeof v->sums, err);
    if (status == WEIR_OK) mem_phase_free(p, v->m, sums);
    return status;
}

/* What the processor makes of the same visit. */
static inline bool right_sums(const visit *v)
{
    uint32_t wanted[N_SUMS] = {0};
    for (uint32_t i = 0; i < v->n; i++) {
        dev_arg a[3] = {{.as.address = wanted},
                        {.as.address = v->x->data + v->order[i] * UNIT_BYTES / 4},
                        {.as.u32 = v->order[i] < N_UNITS ? UNIT_BYTES / 4 : 1024}};
        fold(a, 0, N_SUMS);
    }
    return v->n > 0 && wanted[0] != 0 && wanted[17] != wanted[18] &&
           memcmp(v->sums, wanted, sizeof wanted) == 0;
}

static inline void check_visit(const visit *v)
{
    assert_true(right_sums(v));
}

/* Two visits in one phase. */
typedef struct duo {
    visit on[2];
} duo;

static inline weir_status visit_duo(void *arg, mem_phase *p, weir_error *err)
{
    duo *d = arg;
    weir_status status = visit_units(&d->on[0], p, err);
    return status == WEIR_OK ? visit_units(&d->on[1], p, err) : status;
}

/* A file of a model's bytes. */
static inline base_file *model_file(rig *r, const model *x, char path[128])
{
    base_file *file;
    snprintf(path, 128, "/tmp/weir_mgr_%ld", (long)getpid());
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_int_equal(write(fd, x->data, WHOLE), WHOLE);
    close(fd);
    ok(r, base_file_open(r->env, path, &file, &r->err));
    return file;
}

/* What was logged, one line behind the other. */
typedef struct log_text {
    char text[16384];
    size_t used;
} log_text;
static inline void take_log(void *arg, base_log_level level, const char *line)
{
    log_text *l = arg;
    int n = snprintf(l->text + l->used, sizeof l->text - l->used, "%s%s\n",
                     level >= BASE_LOG_WARN ? "warning: " : "", line);
    if (n > 0 && l->used + (size_t)n < sizeof l->text) l->used += (size_t)n;
}

static inline weir_status run_model(rig *r, mem_manager *m, model *x, mem_report *report, job *out)
{
    mem_request *q;
    mem_request_desc d = {.name = "test", .managers = &m, .n_managers = 1};
    weir_status status = mem_request_begin(&d, &q, &r->err);
    if (status != WEIR_OK) return status;
    *out = (job){.x = x, .m = m};
    mem_run_desc run = {.phase = {.name = "work", .handles = &x->h, .n_handles = 1, .memory_bytes = 131072},
                        .fn = work,
                        .arg = out};
    status = mem_run_phase(q, &run, &r->err);
    if (report != NULL) mem_request_report(q, report);
    mem_request_end(q);
    return status;
}

/* Runs and compares, sum by sum, with what plain memory gives. */
static inline mem_report check_model(rig *r, mem_manager *m, model *x)
{
    mem_report report;
    job j;
    uint32_t wanted[N_SUMS];
    ok(r, run_model(r, m, x, &report, &j));
    expected(x, wanted);
    assert_true(wanted[0] != 0 && wanted[17] != wanted[18]);
    assert_memory_equal(j.sums, wanted, sizeof wanted);
    return report;
}

static inline mem_handle_info info_of(const model *x)
{
    mem_handle_info i;
    mem_handle_get_info(x->h, &i);
    return i;
}

static inline mem_manager_info manager_info(rig *r)
{
    mem_manager_info i;
    ok(r, mem_manager_get_info(r->m, &i, &r->err));
    return i;
}

static inline mem_request *begin(rig *r, const char *name)
{
    mem_request *q;
    const mem_request_desc d = {.name = name, .managers = &r->m, .n_managers = 1};
    ok(r, mem_request_begin(&d, &q, &r->err));
    return q;
}

static inline mem_phase *use(rig *r, mem_request *q, mem_handle *const *handles, uint32_t n, uint64_t memory)
{
    mem_phase *p;
    const mem_phase_desc d = {.name = "phase", .handles = handles, .n_handles = n, .memory_bytes = memory};
    ok(r, mem_use(q, &d, &p, &r->err));
    return p;
}

/* A job that runs a model again and again on a thread of its own. */
typedef struct worker {
    rig *r;
    model *x;
    int times;
    bool failed;
} worker;

static inline void *worker_main(void *arg)
{
    worker *w = arg;
    uint32_t wanted[N_SUMS];
    expected(w->x, wanted);
    for (int i = 0; i < w->times; i++) {
        rig mine = {.env = w->r->env};
        job j;
        if (run_model(&mine, w->r->m, w->x, NULL, &j) != WEIR_OK ||
            memcmp(j.sums, wanted, sizeof wanted) != 0)
            w->failed = true;
    }
    return NULL;
}

static inline void run_beside(rig *r, model *a, model *b, int times)
{
    worker w[2] = {{r, a, times, false}, {r, b, times, false}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, worker_main, &w[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    assert_false(w[0].failed || w[1].failed);
}

#endif
