/* The public memory manager (weir/manager.h): everything an engine of others calls, on simulated devices and
 * the processor; what is refused, and with which words. */
#include "rt_test.h"

#include "weir/manager.h"

#define N      4u     /* weights of a component, each a unit */
#define WORDS  32768u /* of a weight */
#define BYTES  (WORDS * 4u)
#define N_SUMS 64u

typedef struct engine {
    weir_component *c;
    uint32_t *data;
    uint32_t unit[N], id[N];
} engine;

static weir_manager *open_manager(fixture *f, const char *device, const char *mb, weir_manager *peer)
{
    weir_manager *m;
    weir_manager_options o;
    assert_ok(f, weir_context_set(f->context, "cache_folder", "off", &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.simulate_vram_mb", mb, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.vram_reserve_mb", "0", &f->err));
    weir_manager_options_init(&o);
    o.device = device;
    o.peer = peer;
    assert_ok(f, weir_manager_create(f->context, &o, &m, &f->err));
    return m;
}

static void open_engine(fixture *f, weir_manager *m, engine *e, const char *name, const char *path)
{
    uint32_t v = (uint32_t)name[0] * 2654435761u;
    e->data = malloc(N * BYTES);
    for (uint32_t i = 0; i < N * WORDS; i++) e->data[i] = v = v * 1664525u + 1013904223u;
    assert_ok(f, weir_component_create(m, "test", name, WEIR_KIND_ONESHOT, &e->c, &f->err));
    FILE *out = path != NULL ? fopen(path, "wb") : NULL;
    if (out != NULL) assert_int_equal(fwrite(e->data, BYTES, N, out), N);
    if (out != NULL) fclose(out);
    for (uint32_t i = 0; i < N; i++) {
        char text[16];
        weir_weight w;
        snprintf(text, sizeof text, "unit%u", i);
        assert_ok(f, weir_component_add_unit(e->c, text, WEIR_MARK_NONE, &e->unit[i], &f->err));
        weir_weight_init(&w);
        w.name = text;
        w.bytes = BYTES;
        w.host = path == NULL ? e->data + i * WORDS : NULL;
        w.path = path;
        w.offset = i * BYTES;
        w.storage = path == NULL ? e->data : NULL;
        w.storage_bytes = N * BYTES;
        assert_ok(f, weir_component_add_weight(e->c, e->unit[i], &w, &e->id[i], &f->err));
    }
    assert_ok(f, weir_component_seal(e->c, &f->err));
}

static void close_engine(engine *e)
{
    weir_component_destroy(e->c);
    free(e->data);
}

static void fold(const weir_arg *args, size_t begin, size_t end)
{
    uint32_t *sums = args[0].as.address;
    const uint32_t *w = args[1].as.address;
    for (size_t i = begin; i < end; i++)
        for (uint32_t k = (uint32_t)i; k < WORDS; k += N_SUMS) sums[i] = sums[i] * 31 + w[k];
}
static const weir_kernel fold_kernel = {.name = "fold", .c = fold};

typedef struct work {
    const engine *e;
    weir_manager *m; /* NULL: the main one */
    uint32_t sums[N_SUMS];
    uint32_t runs, fails;
} work;

/* From sums on the device `m` over all weights of e, which lies there. */
static weir_status run_engine(void *arg, weir_use *p, weir_error *err)
{
    work *w = arg;
    void *sums, *at;
    if (w->runs++ < w->fails) {
        /* More than any device here has. */
        return weir_use_alloc(p, w->m, UINT64_C(1) << 40, "far too much", &at, err);
    }
    weir_status status = weir_use_alloc(p, w->m, sizeof w->sums, "sums", &sums, err);
    memset(w->sums, 0, sizeof w->sums);
    if (status == WEIR_OK) status = weir_use_upload(p, w->m, sums, w->sums, sizeof w->sums, err);
    for (uint32_t i = 0; i < N && status == WEIR_OK; i++) {
        status = weir_unit_enter(p, w->e->c, w->e->unit[i], err);
        if (status != WEIR_OK) break;
        status = weir_weight_address(p, w->e->c, w->e->id[i], &at, err);
        const weir_arg args[] = {{WEIR_ARG_ADDRESS, {.address = sums}}, {WEIR_ARG_ADDRESS, {.address = at}}};
        if (status == WEIR_OK) status = weir_use_launch(p, w->m, &fold_kernel, args, 2, N_SUMS, err);
        weir_unit_leave(p, w->e->c, w->e->unit[i]);
    }
    if (status == WEIR_OK) status = weir_use_download(p, w->m, w->sums, sums, sizeof w->sums, err);
    weir_use_free(p, w->m, sums);
    return status;
}

static void check_sums(const work *w)
{
    uint32_t wanted[N_SUMS] = {0};
    for (uint32_t i = 0; i < N; i++) {
        const weir_arg args[] = {{WEIR_ARG_ADDRESS, {.address = wanted}},
                                 {WEIR_ARG_ADDRESS, {.address = w->e->data + i * WORDS}}};
        fold(args, 0, N_SUMS);
    }
    assert_true(wanted[0] != 0 && wanted[0] != wanted[1]);
    assert_memory_equal(w->sums, wanted, sizeof wanted);
}

static weir_request *begin(fixture *f, weir_manager *const *managers, uint32_t n)
{
    weir_request *r;
    weir_request_options o;
    weir_request_options_init(&o);
    o.name = "test";
    o.managers = managers;
    o.n_managers = n;
    assert_ok(f, weir_request_begin(&o, &r, &f->err));
    return r;
}

static weir_phase_options phase_of(work *w)
{
    weir_phase_options o;
    weir_phase_options_init(&o);
    o.name = "work";
    o.components = &w->e->c;
    o.n_components = 1;
    o.memory_bytes = 4096;
    o.fn = run_engine;
    o.arg = w;
    return o;
}

static weir_request_report check(fixture *f, weir_manager *m, const engine *e)
{
    work w = {.e = e};
    weir_request_report rep;
    weir_phase_options o = phase_of(&w);
    weir_request *r = begin(f, &m, 1);
    assert_ok(f, weir_request_run(r, &o, &f->err));
    weir_request_get_report(r, &rep);
    weir_request_end(r);
    check_sums(&w);
    return rep;
}

/* Put into its place as a whole, as training does. */
static void write_adapter(const char *path, const uint32_t *data)
{
    char fresh[176];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, BYTES, file), BYTES);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(fresh, path), 0);
}

/* R6.4: an adapter takes the place of a weight, from memory or from a file, wherever the weight is. */
static void replacing(void **state)
{
    fixture *f = *state;
    static const char *const devices[] = {"cpu", "sim", "sim"}, *const mbs[] = {"4", "4", "1"};
    char path[160], adapter[160];
    snprintf(path, sizeof path, "%s/weights", f->folder);
    snprintf(adapter, sizeof adapter, "%s/adapter", f->folder);
    assert_ok(f, weir_context_set(f->context, "compute.vram_limit_mb", "auto", &f->err));
    for (int d = 0; d < 3; d++)
        for (int file = 0; file < 2; file++) {
            weir_manager *m = open_manager(f, devices[d], mbs[d], NULL);
            engine e, other;
            if (d == 2) assert_ok(f, weir_context_set(f->context, "compute.vram_mode", "low", &f->err));
            open_engine(f, m, &other, "other", NULL);
            open_engine(f, m, &e, "mine", file != 0 ? path : NULL);
            check(f, m, &e);
            weir_weight w;
            weir_weight_init(&w);
            w.bytes = BYTES;
            w.host = other.data + WORDS;
            assert_ok(f, weir_component_replace(e.c, e.id[2], &w, &f->err));
            memcpy(e.data + 2 * WORDS, other.data + WORDS, BYTES);
            check(f, m, &e);
            check(f, m, &e);
            w.bytes = BYTES - 4;
            assert_int_equal(weir_component_replace(e.c, e.id[2], &w, &f->err), WEIR_ERR_INVALID_ARGUMENT);
            assert_mentions(f->err.message, "the length must stay");
            w.bytes = BYTES;
            w.path = path;
            assert_int_equal(weir_component_replace(e.c, e.id[2], &w, &f->err), WEIR_ERR_INVALID_ARGUMENT);
            w.host = NULL;
            w.path = "/nowhere/at/all";
            assert_int_equal(weir_component_replace(e.c, e.id[2], &w, &f->err), WEIR_ERR_NOT_FOUND);
            check(f, m, &e);
            for (int written = 0; written < 2; written++) { /* the second time it is another file there */
                w.path = adapter;
                write_adapter(adapter, other.data + (uint32_t)written * WORDS);
                assert_ok(f, weir_component_replace(e.c, e.id[1], &w, &f->err));
                memcpy(e.data + WORDS, other.data + (uint32_t)written * WORDS, BYTES);
                check(f, m, &e);
            }
            if (file != 0) {
                w.path = path; /* the first weight of the file in the place of the last */
                assert_ok(f, weir_component_replace(e.c, e.id[3], &w, &f->err));
                memcpy(e.data + 3 * WORDS, e.data, BYTES);
                check(f, m, &e);
            }
            close_engine(&e);
            close_engine(&other);
            weir_manager_destroy(m);
            assert_ok(f, weir_context_set(f->context, "compute.vram_mode", "auto", &f->err));
        }
    unlink(adapter);
    unlink(path);
}

static uint64_t required(void *arg)
{
    return ((work *)arg)->runs == 0 ? 12345 : 0;
}

/* R2.4: without phases. */
static void calling(void **state)
{
    fixture *f = *state;
    weir_manager *m = open_manager(f, "sim", "4", NULL);
    engine e;
    weir_request_report rep;
    open_engine(f, m, &e, "mine", NULL);
    work w = {.e = &e};
    weir_call_options o;
    weir_call_options_init(&o);
    weir_request *r = begin(f, &m, 1);
    o.components = &e.c;
    o.n_components = 1;
    o.arg = &w;
    assert_int_equal(weir_request_call(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT); /* no function */
    o.fn = run_engine;
    o.memory_required = required;
    assert_ok(f, weir_request_call(r, &o, &f->err));
    check_sums(&w);
    weir_request_get_report(r, &rep);
    assert_int_equal(rep.components[0].estimate_bytes, 12345);
    w.fails = w.runs + 1;
    assert_int_equal(weir_request_call(r, &o, &f->err), WEIR_ERR_DEVICE_MEMORY); /* R8.2: once */
    assert_int_equal(w.runs, 2);
    o.n_components = 17;
    assert_int_equal(weir_request_call(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o.struct_size = 1;
    assert_int_equal(weir_request_call(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    weir_request_end(r);
    close_engine(&e);
    weir_manager_destroy(m);
}

typedef struct pair {
    work w[2];
} pair;

static weir_status run_pair(void *arg, weir_use *p, weir_error *err)
{
    pair *x = arg;
    weir_status status = run_engine(&x->w[0], p, err);
    return status == WEIR_OK ? run_engine(&x->w[1], p, err) : status;
}

/* R2.1: a request over two devices: components and working memory on both, in one phase. */
static void two_devices(void **state)
{
    fixture *f = *state;
    for (int host = 0; host < 2; host++) {
        weir_manager *m[2];
        engine e[2];
        weir_request_report rep;
        weir_manager_info info[2];
        m[0] = open_manager(f, "sim", "4", NULL);
        m[1] = open_manager(f, host ? "cpu" : "sim", "2", m[0]);
        open_engine(f, m[0], &e[0], "first", NULL);
        open_engine(f, m[1], &e[1], "second", NULL);
        pair x = {{{.e = &e[0], .m = m[0]}, {.e = &e[1], .m = m[1]}}};
        weir_component *const both[] = {e[0].c, e[1].c};
        weir_need need = {.manager = m[1], .memory_bytes = 700000};
        weir_phase_options o = phase_of(&x.w[0]);
        o.components = both;
        o.n_components = 2;
        o.others = &need;
        o.n_others = 1;
        o.fn = run_pair;
        o.arg = &x;
        weir_request *r = begin(f, m, 2);
        assert_ok(f, weir_request_run(r, &o, &f->err));
        check_sums(&x.w[0]);
        check_sums(&x.w[1]);
        weir_request_get_report(r, &rep);
        assert_int_equal(rep.n_components, host ? 1 : 2); /* R2.5: the processor counts nothing */
        if (!host) assert_int_equal(rep.components[1].estimate_bytes, 700000);
        if (!host) assert_int_equal(rep.components[1].need_bytes, N * BYTES + 700000);
        for (int i = 0; i < 2; i++) assert_ok(f, weir_manager_get_info(m[i], &info[i], &f->err));
        assert_int_equal(info[0].resident_bytes, N * BYTES);
        assert_int_equal(info[1].resident_bytes, host ? 0 : N * BYTES);
        o.n_others = 9;
        assert_int_equal(weir_request_run(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        weir_request_end(r);
        /* A device that the request did not name. */
        o.n_others = 1;
        r = begin(f, m, 1);
        assert_int_equal(weir_request_run(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_mentions(f->err.message, "needs memory on a device that request test did not name");
        o.n_others = 0;
        assert_int_equal(weir_request_run(r, &o, &f->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_mentions(f->err.message, "test:second is on a device that its request did not name");
        weir_request_end(r);
        for (int i = 0; i < 2; i++) close_engine(&e[i]);
        weir_manager_destroy(m[1]);
        weir_manager_destroy(m[0]);
    }
}

static float smooth(uint64_t i)
{
    return sinf((float)i * 0.01f);
}

typedef struct decoder {
    fixture *f;
    uint64_t n, longest;
    uint32_t calls, wrong;
    float *out;
} decoder;

static weir_status decode_frames(void *arg, uint64_t begin_frame, uint64_t end, float *out, weir_error *err)
{
    decoder *d = arg;
    (void)err;
    d->calls++;
    if (end - begin_frame > d->longest) d->longest = end - begin_frame;
    for (uint64_t i = begin_frame; i < end; i++)
        for (uint64_t k = 0; k < 2; k++) out[(i - begin_frame) * 2 + k] = smooth(2 * i + k);
    return WEIR_OK;
}

static weir_status decode_whole(void *arg, weir_use *p, weir_error *err)
{
    void *much;
    (void)arg;
    return weir_use_alloc(p, NULL, UINT64_C(1) << 40, "all frames", &much, err);
}

static weir_status decode_tiled(void *arg, weir_use *p, weir_error *err)
{
    decoder *d = arg;
    weir_tiling t;
    (void)p;
    weir_tiling_init(&t);
    t.n_frames = d->n;
    t.values_per_frame = 2;
    t.decode = decode_frames;
    t.arg = d;
    return weir_tiled_decode(d->f->context, &t, d->out, err);
}

/* R8.3, R8.4: the fallback comes after two retries, where it is on, and is named in the report; here it
 * decodes in tiles of 256 frames. */
static void falling_back_to_tiles(void **state)
{
    fixture *f = *state;
    static float out[2000];
    for (int on = 0; on < 2; on++) {
        assert_ok(f, weir_context_set(f->context, "compute.oom_fallback", on ? "on" : "off", &f->err));
        weir_manager *m = open_manager(f, "sim", "4", NULL);
        weir_request_report rep;
        decoder d = {.f = f, .n = 1000, .out = out};
        weir_phase_options o;
        weir_phase_options_init(&o);
        o.name = "decode";
        o.fn = decode_whole;
        o.arg = &d;
        o.fallback = decode_tiled;
        o.fallback_name = "tiles";
        weir_request *r = begin(f, &m, 1);
        assert_int_equal(weir_request_run(r, &o, &f->err), on ? WEIR_OK : WEIR_ERR_DEVICE_MEMORY);
        weir_request_get_report(r, &rep);
        weir_request_end(r);
        assert_int_equal(rep.n_oom_retries, 2);
        assert_string_equal(rep.fallbacks, on ? "tiles" : "");
        assert_int_equal(d.calls, on ? 5 : 0);
        if (on) assert_int_equal(d.longest, 256);
        for (uint64_t i = 0; i < 2000 && on; i++) assert_true(fabsf(out[i] - smooth(i)) < 1e-6f);
        weir_manager_destroy(m);
    }
    assert_ok(f, weir_context_set(f->context, "compute.oom_fallback", "off", &f->err));
    weir_tiling t;
    weir_tiling_init(&t);
    assert_int_equal(weir_tiled_decode(f->context, &t, out, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    t.decode = decode_frames;
    assert_int_equal(weir_tiled_decode(f->context, &t, out, &f->err),
                     WEIR_ERR_INVALID_ARGUMENT); /* no values */
    t.values_per_frame = 2;
    t.tile_frames = 10;
    t.overlap_frames = 5;
    assert_int_equal(weir_tiled_decode(f->context, &t, out, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "tiles of 10 frames overlapping by 5");
}

/* Memory that stays: it is there in the next phase, and idle components yield for it. */
static void memory_that_stays(void **state)
{
    fixture *f = *state;
    weir_manager *m = open_manager(f, "sim", "1", NULL);
    weir_manager_info info;
    engine e;
    void *kept, *more;
    uint32_t words[16] = {3, 1, 4, 1, 5}, back[16] = {0};
    open_engine(f, m, &e, "mine", NULL);
    check(f, m, &e);
    assert_int_equal(weir_manager_alloc(m, 0, "nothing", &kept, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_ok(f, weir_manager_alloc(m, 700000, "cache", &kept, &f->err)); /* of 1,000,000 */
    assert_int_equal(weir_manager_alloc(m, 700000, "second cache", &more, &f->err), WEIR_ERR_DEVICE_MEMORY);
    assert_mentions(f->err.message, "second cache");
    assert_ok(f, weir_manager_get_info(m, &info, &f->err));
    assert_int_equal(info.kept_bytes, 700000);
    assert_true(info.resident_bytes < N * BYTES);
    weir_use *p;
    weir_phase_options o;
    weir_phase_options_init(&o);
    o.name = "phase";
    for (int i = 0; i < 2; i++) {
        weir_request *r = begin(f, &m, 1);
        assert_ok(f, weir_request_use(r, &o, &p, &f->err));
        if (i == 0) assert_ok(f, weir_use_upload(p, NULL, kept, words, sizeof words, &f->err));
        if (i == 1) assert_ok(f, weir_use_download(p, NULL, back, kept, sizeof back, &f->err));
        assert_ok(f, weir_use_end(p, &f->err));
        weir_request_end(r);
    }
    assert_memory_equal(back, words, sizeof words);
    weir_manager_free(m, kept);
    weir_manager_free(m, NULL);
    assert_string_equal(check(f, m, &e).components[0].reason, "");
    assert_ok(f, weir_manager_alloc(m, 100, "left behind", &kept, &f->err));
    close_engine(&e);
    weir_manager_destroy(m);
}

/* Settings out of range are refused by name before a device is opened. */
static void settings(void **state)
{
    fixture *f = *state;
    static const char *const bad[][3] = {{"compute.vram_mode", "most", "auto"},
                                         {"compute.vram_limit_mb", "-1", "auto"},
                                         {"compute.vram_limit_mb", "99999999999999999999", "auto"},
                                         {"compute.vram_reserve_mb", "1e3", "0"},
                                         {"compute.max_pinned_mb", "all", "auto"},
                                         {"compute.async_offload", "9", "auto"},
                                         {"compute.gpu_jobs", "0", "auto"},
                                         {"compute.gpu_jobs", "65", "auto"},
                                         {"compute.job_wait_s", "86401", "auto"},
                                         {"compute.host_copies", "yes", "auto"},
                                         {"compute.prefetch_sequence", "1", "auto"},
                                         {"compute.oom_retry", "auto", "on"},
                                         {"compute.oom_fallback", "maybe", "off"},
                                         {"compute.ram_reserve", "much", "auto"},
                                         {"compute.device", "moon", "cpu"},
                                         {"compute.device", "opencl:x", "cpu"},
                                         {"compute.simulate_vram_mb", "some", "4"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weir_manager *m = NULL;
        assert_ok(f, weir_context_set(f->context, bad[i][0], bad[i][1], &f->err));
        weir_status status = weir_manager_create(f->context, NULL, &m, &f->err);
        if (status != WEIR_ERR_INVALID_ARGUMENT)
            fail_msg("%s=%s: %s", bad[i][0], bad[i][1], weir_status_name(status));
        if (strcmp(bad[i][0], "compute.ram_reserve") != 0) assert_mentions(f->err.message, bad[i][1]);
        assert_null(m);
        assert_ok(f, weir_context_set(f->context, bad[i][0], bad[i][2], &f->err));
    }
    weir_manager_destroy(open_manager(f, "sim", "4", NULL));
}

/* Wrong calls, and the words that they meet. */
static void misuse(void **state)
{
    fixture *f = *state;
    weir_manager *m = open_manager(f, "sim", "4", NULL), *stranger = open_manager(f, "cpu", "4", NULL);
    engine e, unlisted;
    weir_component *raw;
    weir_request *r;
    weir_request_options ro;
    weir_weight w;
    weir_use *p, *second;
    uint32_t unit, id;
    void *at;
    open_engine(f, m, &e, "mine", NULL);
    open_engine(f, m, &unlisted, "unlisted", NULL);
    weir_manager *const both[] = {m, stranger};
    weir_request_options_init(&ro);
    ro.managers = both;
    ro.n_managers = 2;
    assert_int_equal(weir_request_begin(&ro, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "peers of each other");
    ro.n_managers = 0;
    assert_int_equal(weir_request_begin(&ro, &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_ok(f, weir_component_create(m, "test", "raw", WEIR_KIND_SEQUENCE, &raw, &f->err));
    assert_int_equal(weir_component_add_unit(raw, "u", (weir_mark)7, &unit, &f->err),
                     WEIR_ERR_INVALID_ARGUMENT);
    weir_weight_init(&w);
    w.name = "w";
    assert_int_equal(weir_component_add_weight(raw, 0, &w, &id, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    w.host = e.data;
    assert_int_equal(weir_component_add_weight(raw, 0, &w, &id, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    w.bytes = 64;
    assert_int_equal(weir_component_add_weight(raw, 3, &w, &id, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "unit 3 does not exist");
    w.storage = e.data + 1;
    w.storage_bytes = 4096;
    assert_int_equal(weir_component_add_weight(raw, WEIR_UNIT_DEFAULT, &w, &id, &f->err),
                     WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "does not lie in its storage");
    work job = {.e = &e};
    weir_phase_options o = phase_of(&job);
    r = begin(f, &m, 1);
    o.components = &raw;
    assert_int_equal(weir_request_use(r, &o, &p, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "test:raw is not sealed");
    o.components = &e.c;
    assert_ok(f, weir_request_use(r, &o, &p, &f->err));
    assert_int_equal(weir_request_use(r, &o, &second, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_unit_enter(p, unlisted.c, unlisted.unit[0], &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "phase work did not list test:unlisted");
    assert_int_equal(weir_weight_address(p, unlisted.c, 0, &at, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "test:unlisted");
    assert_int_equal(weir_weight_address(p, e.c, e.id[1], &at, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "weight unit1: its unit unit1 is not entered");
    assert_int_equal(weir_unit_enter(p, e.c, 99, NULL), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_component_unload(e.c, true, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_ok(f, weir_use_end(p, &f->err));
    weir_request_cancel(r);
    assert_int_equal(weir_request_use(r, &o, &p, &f->err), WEIR_ERR_CANCELLED);
    weir_request_end(r);
    check(f, m, &e);
    weir_component_destroy(raw);
    close_engine(&e);
    close_engine(&unlisted);
    weir_manager_destroy(stranger);
    weir_manager_destroy(m);
}

/* A whole life in one call, from opening the device to the answer; everything goes, whatever happened. */
static weir_status live(fixture *f, const engine *like, const char *path)
{
    weir_manager_options o;
    weir_manager *m = NULL;
    weir_component *c = NULL;
    weir_generator *g = NULL;
    weir_request *r = NULL;
    weir_request_options ro;
    weir_weight w;
    engine e = *like;
    weir_manager_options_init(&o);
    o.device = "sim";
    weir_status status = weir_manager_create(f->context, &o, &m, &f->err);
    if (status == WEIR_OK) status = weir_generator_create(f->context, 3, &g, &f->err);
    if (status == WEIR_OK) status = weir_component_create(m, "test", "life", WEIR_KIND_ONESHOT, &c, &f->err);
    for (uint32_t i = 0; i < N && status == WEIR_OK; i++) {
        weir_weight_init(&w);
        w.name = "w";
        w.bytes = BYTES;
        w.path = path;
        w.offset = i * BYTES;
        status = weir_component_add_unit(c, "u", WEIR_MARK_NONE, &e.unit[i], &f->err);
        if (status == WEIR_OK) status = weir_component_add_weight(c, e.unit[i], &w, &e.id[i], &f->err);
    }
    if (status == WEIR_OK) status = weir_component_seal(c, &f->err);
    w.offset = 0;
    if (status == WEIR_OK) status = weir_component_replace(c, e.id[0], &w, &f->err); /* by itself */
    weir_request_options_init(&ro);
    ro.managers = &m;
    ro.n_managers = 1;
    ro.generators = &g;
    ro.n_generators = 1;
    if (status == WEIR_OK) status = weir_request_begin(&ro, &r, &f->err);
    e.c = c;
    work job = {.e = &e};
    weir_phase_options phase = phase_of(&job);
    if (status == WEIR_OK) status = weir_request_run(r, &phase, &f->err);
    if (status == WEIR_OK) check_sums(&job);
    weir_request_end(r);
    weir_component_destroy(c);
    weir_generator_destroy(g);
    weir_manager_destroy(m);
    return status;
}

/* X5: each allocation and each opening of a file in such a life fails: the documented error, and nothing is
 * left. */
static void lives_under_faults(void **state)
{
    fixture *f = *state;
    static const base_fault_site sites[] = {BASE_FAULT_HOST_ALLOC, BASE_FAULT_OPEN};
    base_env *env = f->context->env;
    base_ledger_view v;
    engine e;
    char path[160];
    snprintf(path, sizeof path, "%s/weights", f->folder);
    weir_manager *m = open_manager(f, "sim", "1", NULL);
    open_engine(f, m, &e, "like", path);
    weir_component_destroy(e.c);
    e.c = NULL;
    weir_manager_destroy(m);
    assert_ok(f, live(f, &e, path));
    base_ledger_read(env, &v);
    const uint64_t before = v.bytes;
    for (int s = 0; s < 2; s++) {
        uint32_t n_failed = 0;
        for (uint64_t after = 0;; after++) {
            const base_fault_rule rule = {.site = sites[s], .after = after, .length = -1};
            assert_ok(f, base_fault_arm(env, &rule, &f->err));
            weir_status status = live(f, &e, path);
            bool met = base_fault_count(env, sites[s]) > after;
            base_fault_clear(env);
            base_ledger_read(env, &v);
            assert_int_equal(v.bytes, before);
            assert_int_equal(v.device_bytes, 0);
            if (status != WEIR_OK && status != WEIR_ERR_OUT_OF_MEMORY && status != WEIR_ERR_IO)
                fail_msg("%s:%llu: %s: %s", base_fault_text(sites[s]), (unsigned long long)after,
                         weir_status_name(status), f->err.message);
            n_failed += status != WEIR_OK;
            if (!met) break;
        }
        assert_true(n_failed > (s == 0 ? 20u : 0u));
    }
    free(e.data);
    unlink(path);
}

/* X2: where a device's memory is the machine's, what is kept there is held to the RAM budget. */
static void memory_of_the_machine(void **state)
{
    fixture *f = *state;
    mem_manager_info all;
    base_ledger_view v, with;
    void *a, *b;
    const uint64_t bytes = 8 * MIB;
    need_opencl(f);
    weir_manager *m = open_manager(f, "opencl:0", "4", NULL);
    assert_ok(f, mem_manager_get_info(f->context->devices->manager, &all, &f->err));
    base_ledger_read(f->context->env, &v);
    assert_ok(f, weir_manager_alloc(m, bytes, "a table", &a, &f->err));
    base_ledger_read(f->context->env, &with);
    if (all.device.unified) {
        assert_int_equal(with.tag_bytes[BASE_TAG_DEVICE], v.tag_bytes[BASE_TAG_DEVICE] + bytes);
        assert_ok(f, base_ledger_set_limit(f->context->env, with.bytes + bytes / 2, &f->err));
        assert_int_equal(weir_manager_alloc(m, bytes, "another table", &b, &f->err), WEIR_ERR_DEVICE_MEMORY);
        assert_mentions(f->err.message, "another table");
        weir_manager_free(m, a);
        assert_ok(f, weir_manager_alloc(m, bytes, "another table", &a, &f->err));
        assert_ok(f, base_ledger_set_limit(f->context->env, UINT64_MAX, &f->err));
    } else
        assert_int_equal(with.tag_bytes[BASE_TAG_DEVICE], 0);
    weir_manager_free(m, a);
    weir_manager_destroy(m);
    base_ledger_read(f->context->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_DEVICE], 0);
}

/* X3: work space that grew after the device refused at first is booked once, though the device gave the old
 * one back for it; also where it is refused for good, and granted later. */
static void work_space_after_a_refusal(void **state)
{
    fixture *f = *state;
    mem_manager_info info;
    mem_handle_info h;
    mem_handle *handle;
    need_opencl(f);
    weir_manager *m = open_manager(f, "opencl:0", "4", NULL);
    mem_manager *manager = f->context->devices->manager;
    assert_ok(f, mem_handle_create(manager, "test", "w", MEM_SEQUENCE, &handle, &f->err));
    assert_ok(f, mem_handle_seal(handle, &f->err));
    uint64_t before = 0;
    for (uint32_t i = 0; i < 3; i++) {
        base_fault_rule rule = {.site = BASE_FAULT_DEVICE_ALLOC, .length = -1, .for_good = i == 2};
        if (i > 0) assert_ok(f, base_fault_arm(f->context->env, &rule, &f->err));
        weir_status status = mem_handle_workspace(handle, 64, 16384u << i, 64, &f->err);
        base_fault_clear(f->context->env);
        if (i == 2) {
            assert_int_equal(status, WEIR_ERR_DEVICE_MEMORY);
            status = mem_handle_workspace(handle, 64, 16384u << i, 64, &f->err);
        }
        assert_ok(f, status);
        assert_ok(f, mem_manager_get_info(manager, &info, &f->err));
        assert_true(info.kept_bytes > before + 1000000);
        before = info.kept_bytes;
        assert_int_equal(info.kept_bytes, info.device.taken_bytes - info.device.cache_bytes);
        mem_handle_get_info(handle, &h);
        assert_int_equal(h.kept_bytes, info.kept_bytes);
    }
    mem_handle_destroy(handle);
    weir_manager_destroy(m);
    base_ledger_view v;
    base_ledger_read(f->context->env, &v);
    assert_int_equal(v.device_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(replacing, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(calling, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(two_devices, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(falling_back_to_tiles, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(memory_that_stays, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(memory_of_the_machine, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(work_space_after_a_refusal, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(settings, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(lives_under_faults, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(misuse, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("the public memory manager", tests, NULL, NULL);
}
