/* The RAM tier of the memory manager: pinned memory (R5.4, R5.5), copies of weights, replacing them, the RAM
 * reserve (R6), and one ledger over storage, RAM and device (X3), on the strict simulated device. The machine
 * is a folder with a meminfo of ours. */
#include "mgr_test.h"

#include <sys/stat.h>

#define MB UINT64_C(1000000)

static char machine[64];

static void machine_has(uint64_t available_mb)
{
    char path[96];
    snprintf(machine, sizeof machine, "/tmp/weir_mgr_machine_%ld", (long)getpid());
    mkdir(machine, 0700);
    snprintf(path, sizeof path, "%s/meminfo", machine);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "MemTotal: 16000000 kB\nMemAvailable: %llu kB\n",
            (unsigned long long)(available_mb * MB / 1024));
    fclose(f);
}

static int remove_machine(void **state)
{
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/meminfo", machine);
    unlink(path);
    rmdir(machine);
    return 0;
}

/* Each look at the clock is a second later, so that what was read of the machine is never recent. */
static double hurried_clock(void *arg)
{
    static double now;
    (void)arg;
    return now += 1;
}

static mem_policy machine_policy(void)
{
    mem_policy p = test_policy();
    p.proc_root = p.cgroup_root = machine;
    p.ram_reserve_bytes = 1000 * MB;
    return p;
}

/* ---- pinning where it lies ---- */

typedef struct blocks {
    mem_handle *h;
    uint8_t *data; /* 2 MB for two weights of 1 MB, one of 1 MB, one of 999,999 bytes */
    uint64_t bytes[4];
    uint8_t *at[4];
} blocks;

static void open_blocks(rig *r, blocks *b, bool shares_storage)
{
    b->data = malloc(4 * MB);
    for (size_t i = 0; i < 4 * MB; i++) b->data[i] = (uint8_t)(i * 2654435761u >> 13);
    ok(r, mem_handle_create(r->m, "test", "blocks", MEM_ONESHOT, &b->h, &r->err));
    for (int i = 0; i < 4; i++) {
        uint32_t unit;
        mem_weight_id id;
        b->bytes[i] = i < 3 ? MB : MB - 1;
        b->at[i] = b->data + i * MB;
        mem_handle_weight w = {.name = "w", .bytes = b->bytes[i], .host = b->at[i], .streamable = true};
        if (i < 2 && shares_storage) w.storage = b->data;
        if (i < 2 && shares_storage) w.storage_bytes = 2 * MB;
        ok(r, mem_handle_add_unit(b->h, "u", MEM_MARK_NONE, &unit, &r->err));
        ok(r, mem_handle_add_weight(b->h, unit, &w, &id, &r->err));
    }
    ok(r, mem_handle_seal(b->h, &r->err));
}

static void copy_bytes(const dev_arg *args, size_t begin, size_t end)
{
    memcpy((uint8_t *)args[1].as.address + begin, (uint8_t *)args[0].as.address + begin, end - begin);
}

/* A request that reads every byte of all weights. */
static void check_blocks(rig *r, const blocks *b)
{
    static const dev_kernel kernel = {.name = "copy_bytes", .c = copy_bytes};
    static uint8_t got[MB];
    mem_request *q;
    mem_phase *p;
    void *out;
    const mem_request_desc d = {.name = "t", .managers = &r->m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &b->h, .n_handles = 1, .memory_bytes = MB};
    ok(r, mem_request_begin(&d, &q, &r->err));
    ok(r, mem_use(q, &phase, &p, &r->err));
    ok(r, mem_phase_alloc(p, NULL, MB, "out", &out, &r->err));
    for (uint32_t i = 0; i < 8; i++) { /* twice, so that there is something to copy ahead */
        dev_arg args[2] = {{.kind = DEV_ARG_ADDRESS}, {.kind = DEV_ARG_ADDRESS, .as.address = out}};
        ok(r, mem_unit_enter(p, b->h, i % 4, &r->err));
        ok(r, mem_weight_address(p, b->h, i % 4, &args[0].as.address, &r->err));
        ok(r, mem_phase_launch(p, NULL, &kernel, args, 2, b->bytes[i % 4], &r->err));
        mem_unit_leave(p, b->h, i % 4);
        ok(r, mem_phase_download(p, NULL, got, out, b->bytes[i % 4], &r->err));
        assert_memory_equal(got, b->at[i % 4], b->bytes[i % 4]);
        assert_true(got[1] != got[777]);
    }
    ok(r, mem_phase_end(p, &r->err));
    mem_request_end(q);
}

static void close_blocks(blocks *b)
{
    mem_handle_destroy(b->h); /* ends the registrations, so that the memory may go */
    free(b->data);
}

/* R5.5: whole storages of at least 1 MB are pinned where they lie, as one; smaller ones have a pinned copy.
 * All ends with the handle. Where a device cannot pin, where the budget is too small, or where it fails, the
 * bytes are the same (R5.4). */
static void pinned_in_place(void **state)
{
    (void)state;
    const struct {
        bool shares, no_register, refused;
        uint64_t budget, wanted;
    } cases[] = {{false, false, false, UINT64_MAX, 3 * MB + 1000000},
                 {true, false, false, UINT64_MAX, 3 * MB + 1000000},
                 {true, false, false, 2 * MB, 2 * MB},
                 {true, false, false, 2 * MB - 1, MB},
                 {true, true, false, UINT64_MAX, 1000000},
                 {true, false, true, UINT64_MAX, 0},
                 {true, false, false, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t seed = 0; seed < 3; seed++)
            for (int streams = 0; streams < 2; streams++) {
                rig r;
                blocks b;
                mem_policy policy = test_policy();
                dev_sim_options o = device_of(16 * MB);
                const base_fault_rule rule = {
                    .site = BASE_FAULT_PINNED_ALLOC, .for_good = true, .length = -1};
                policy.host_copies = MEM_ON;
                policy.max_pinned_bytes = cases[i].budget;
                if (streams) policy.vram_mode = MEM_VRAM_LOW;
                o.no_register = cases[i].no_register;
                o.chaos_seed = seed;
                open_rig(&r, o, policy);
                open_blocks(&r, &b, cases[i].shares);
                if (cases[i].refused) ok(&r, base_fault_arm(r.env, &rule, &r.err));
                check_blocks(&r, &b);
                uint64_t pinned = manager_info(&r).pinned_bytes;
                uint64_t wanted = base_align_up(cases[i].wanted, 64);
                assert_true(pinned <= cases[i].budget);
                if (pinned != wanted)
                    fail_msg("case %zu: %llu bytes are pinned", i, (unsigned long long)pinned);
                base_fault_clear(r.env);
                check_blocks(&r, &b);
                ok(&r, mem_handle_unload(b.h, true, &r.err));
                assert_int_equal(manager_info(&r).pinned_bytes, 0);
                check_blocks(&r, &b);
                close_blocks(&b);
                assert_int_equal(manager_info(&r).pinned_bytes, 0);
                close_rig(&r);
            }
}

/* ---- copies ---- */

/* R6.1: `auto` copies while more RAM is free than the reserve; a later load then reads nothing, and moving
 * off needs no copy. R6.2: unloading copies nothing back. */
static void copies_while_there_is_ram(void **state)
{
    (void)state;
    for (int rich = 0; rich < 2; rich++) {
        rig r;
        model source, x;
        char path[128];
        machine_has(rich ? 1001 : 999);
        open_rig(&r, device_of(4 * MB), machine_policy());
        r.env->clock_fn = hurried_clock;
        open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
        base_file *file = model_file(&r, &source, path);
        open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
        assert_true(check_model(&r, r.m, &x).read_bytes >= WHOLE);
        assert_int_equal(info_of(&x).host_bytes != 0, rich);
        ok(&r, base_fault_count_on(r.env, &r.err));
        ok(&r, mem_handle_unload(x.h, false, &r.err));
        assert_int_equal(base_fault_count(r.env, BASE_FAULT_COPY), 0);
        base_fault_clear(r.env);
        assert_int_equal(info_of(&x).loaded_bytes, 0);
        mem_report rep = check_model(&r, r.m, &x);
        assert_int_equal(rep.read_bytes, rich ? 0 : WHOLE);
        close_model(&x);
        close_model(&source);
        base_file_close(file);
        unlink(path);
        close_rig(&r);
    }
}

/* R6.3: what is read from a file passes through staging: RAM never holds it, in no type. */
static void loading_holds_no_copy(void **state)
{
    (void)state;
    rig r;
    model source, x;
    char path[128];
    base_ledger_view v;
    mem_policy policy = test_policy();
    policy.host_copies = MEM_OFF;
    open_rig(&r, device_of(4 * MB), policy);
    open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
    base_file *file = model_file(&r, &source, path);
    open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
    base_ledger_peak_reset(r.env);
    base_ledger_read(r.env, &v);
    uint64_t before = v.bytes;
    mem_report rep = check_model(&r, r.m, &x);
    base_ledger_read(r.env, &v);
    assert_int_equal(rep.read_bytes, WHOLE);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_PINNED], 2 << 20); /* the two halves of the staging */
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_WEIGHTS_HOST], 0);
    assert_true(v.peak_bytes - before < (2 << 20) + 65536);
    assert_int_equal(v.device_tag_bytes[BASE_DEVICE_FIXED] + v.device_tag_bytes[BASE_DEVICE_RESIDENT], WHOLE);
    close_model(&x);
    close_model(&source);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

/* R6.4: a replaced weight is the new one wherever the old one was: on the device, in a slot, in a copy in
 * RAM, pinned, or in RAM for the processor; the others stay. */
static void replacing(void **state)
{
    (void)state;
    for (int way = 0; way < 12; way++) {
        rig r;
        model source, x;
        char path[128];
        mem_policy policy = test_policy();
        policy.host_copies = way % 2 == 0 ? MEM_ON : MEM_OFF;
        if (way / 2 % 3 == 1) policy.vram_mode = MEM_VRAM_LOW;
        dev_sim_options o = device_of(way / 2 % 3 == 2 ? WHOLE / 2 + 131072 : 4 * MB);
        o.chaos_seed = (uint64_t)way;
        open_rig(&r, o, policy);
        open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
        base_file *file = model_file(&r, &source, path);
        open_model(&r, r.m, &x, "f", MEM_ONESHOT, way >= 6 ? file : NULL);
        check_model(&r, r.m, &x);
        for (uint32_t id = 0; id <= N_UNITS; id += 2) {
            uint64_t bytes = id < N_UNITS ? UNIT_BYTES : 4096;
            uint32_t *fresh = malloc(UNIT_BYTES);
            for (uint32_t i = 0; i < UNIT_BYTES / 4; i++) fresh[i] = i * 48271u + id;
            const mem_handle_weight w = {.name = "adapter", .bytes = bytes, .host = fresh};
            ok(&r, mem_handle_replace(x.h, id, &w, &r.err));
            memcpy(x.data + id * UNIT_BYTES / 4, fresh, bytes);
            check_model(&r, r.m, &x);
            check_model(&r, r.m, &x);
            /* And back, from the file. */
            const mem_handle_weight old = {
                .name = "old", .bytes = bytes, .file = file, .offset = id * UNIT_BYTES};
            ok(&r, mem_handle_replace(x.h, id, &old, &r.err));
            memcpy(x.data + id * UNIT_BYTES / 4, source.data + id * UNIT_BYTES / 4, bytes);
            free(fresh);
            check_model(&r, r.m, &x);
        }
        close_model(&x);
        close_model(&source);
        base_file_close(file);
        unlink(path);
        close_rig(&r);
    }
}

/* What cannot be replaced is told, and the old bytes stand. */
static void replacing_is_checked(void **state)
{
    (void)state;
    rig r;
    model x;
    char path[128];
    mem_handle *h;
    mem_weight_id id;
    mem_request *q;
    mem_phase *p;
    static uint32_t cell[1024], other[UNIT_BYTES / 4];
    open_rig(&r, device_of(4 * MB), test_policy());
    open_model(&r, r.m, &x, "f", MEM_ONESHOT, NULL);
    base_file *file = model_file(&r, &x, path);
    mem_handle_weight w = {.name = "w", .bytes = UNIT_BYTES - 1, .host = other};
    assert_int_equal(mem_handle_replace(x.h, 1, &w, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "the length must stay"));
    w.bytes = UNIT_BYTES;
    assert_int_equal(mem_handle_replace(x.h, N_UNITS + 1, &w, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    w.file = file;
    assert_int_equal(mem_handle_replace(x.h, 1, &w, &r.err), WEIR_ERR_INVALID_ARGUMENT); /* two sources */
    w.host = NULL;
    w.offset = WHOLE - UNIT_BYTES + 1;
    assert_int_equal(mem_handle_replace(x.h, 1, &w, &r.err), WEIR_ERR_TRUNCATED);
    /* In a phase. */
    const mem_request_desc d = {.name = "busy", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &x.h, .n_handles = 1};
    w.offset = 0;
    ok(&r, mem_request_begin(&d, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    assert_int_equal(mem_handle_replace(x.h, 1, &w, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "layer1: request busy uses it"));
    ok(&r, mem_phase_end(p, &r.err));
    mem_request_end(q);
    check_model(&r, r.m, &x);
    /* What compute changes has nowhere to go back to in a file. */
    const mem_handle_weight changes = {.name = "cell", .bytes = 4096, .host = cell, .changes = true};
    const mem_handle_weight from_file = {.name = "cell", .bytes = 4096, .file = file};
    ok(&r, mem_handle_create(r.m, "test", "state", MEM_ONESHOT, &h, &r.err));
    ok(&r, mem_handle_add_weight(h, MEM_UNIT_DEFAULT, &changes, &id, &r.err));
    assert_int_equal(mem_handle_replace(h, id, &changes, &r.err), WEIR_ERR_INVALID_ARGUMENT); /* not sealed */
    ok(&r, mem_handle_seal(h, &r.err));
    assert_int_equal(mem_handle_replace(h, id, &from_file, &r.err), WEIR_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(r.err.message, "host memory to be copied back to"));
    mem_handle_destroy(h);
    close_model(&x);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

/* R6.2: what compute changed is not copied back by destroying; only by moving off (R6.1). */
static void destroying_copies_nothing_back(void **state)
{
    (void)state;
    static uint32_t cell[1024];
    for (int destroys = 0; destroys < 2; destroys++) {
        rig r;
        mem_handle *h;
        mem_weight_id id;
        mem_request *q;
        mem_phase *p;
        open_rig(&r, device_of(4 * MB), test_policy());
        const mem_handle_weight w = {.name = "cell", .bytes = 4096, .host = cell, .changes = true};
        ok(&r, mem_handle_create(r.m, "test", "state", MEM_ONESHOT, &h, &r.err));
        ok(&r, mem_handle_add_weight(h, MEM_UNIT_DEFAULT, &w, &id, &r.err));
        ok(&r, mem_handle_seal(h, &r.err));
        const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
        const mem_phase_desc phase = {.name = "p", .handles = &h, .n_handles = 1};
        ok(&r, mem_request_begin(&d, &q, &r.err));
        ok(&r, mem_use(q, &phase, &p, &r.err));
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
        ok(&r, base_fault_count_on(r.env, &r.err));
        if (!destroys) ok(&r, mem_handle_unload(h, false, &r.err));
        mem_handle_destroy(h);
        assert_int_equal(base_fault_count(r.env, BASE_FAULT_COPY), destroys ? 0 : 1);
        base_fault_clear(r.env);
        close_rig(&r);
    }
}

/* ---- the reserve ---- */

typedef struct relief {
    char gone[256]; /* who lost copies, in this order */
    uint32_t enough_after;
} relief;

/* Once so many have lost their copies, RAM is free again. */
static void on_log(void *arg, base_log_level level, const char *line)
{
    relief *w = arg;
    const char *end = strstr(line, ": its copies in RAM go");
    (void)level;
    if (end == NULL) return;
    strncat(w->gone, line + strlen("test:"), (size_t)(end - line) - strlen("test:"));
    strcat(w->gone, " ");
    if (--w->enough_after == 0) machine_has(5000);
}

static weir_status fail_once(void *arg, mem_phase *p, weir_error *err)
{
    (void)p;
    return (*(uint32_t *)arg)++ == 0 ? base_fail(err, WEIR_ERR_DEVICE_MEMORY, "for the test") : WEIR_OK;
}

/* Leaves it partly on the device: capped. */
static void run_out_once(rig *r, const model *x)
{
    mem_request *q;
    uint32_t calls = 0;
    const mem_request_desc d = {.name = "t", .managers = &r->m, .n_managers = 1};
    const mem_run_desc run = {
        .phase = {.name = "p", .handles = &x->h, .n_handles = 1}, .fn = fail_once, .arg = &calls};
    ok(r, mem_request_begin(&d, &q, &r->err));
    ok(r, mem_run_phase(q, &run, &r->err));
    mem_request_end(q);
}

/* R6.1, R6.5: copies that went for want of RAM are made again when there is RAM again, by a phase that finds
 * all else as it was; a little more than the reserve is not enough, so that they do not come and go. */
static void copies_come_back(void **state)
{
    (void)state;
    rig r;
    model source, x, other;
    char path[128];
    log_text log = {.used = 0};
    mem_policy policy = machine_policy();
    policy.vram_mode = MEM_VRAM_LOW;
    machine_has(5000);
    open_rig(&r, device_of(4 * WHOLE), policy);
    r.env->clock_fn = hurried_clock;
    open_model(&r, r.m, &source, "f", MEM_SEQUENCE, NULL);
    base_file *file = model_file(&r, &source, path);
    open_model(&r, r.m, &x, "f", MEM_SEQUENCE, file);
    open_model(&r, r.m, &other, "other", MEM_SEQUENCE, NULL);
    check_model(&r, r.m, &x);
    assert_int_equal(check_model(&r, r.m, &x).read_bytes, 0);
    machine_has(900);
    check_model(&r, r.m, &other); /* x is idle: its copies go */
    assert_int_equal(info_of(&x).host_bytes, 0);
    check_model(&r, r.m, &x);
    for (int i = 0; i < 3; i++) {
        machine_has(i == 0 ? 900 : 1050);
        assert_true(check_model(&r, r.m, &x).read_bytes >= 2 * N_UNITS * UNIT_BYTES);
        assert_int_equal(info_of(&x).host_bytes, 0);
    }
    machine_has(1200);
    r.env->log_fn = take_log;
    r.env->log_arg = &log;
    assert_int_equal(check_model(&r, r.m, &x).read_bytes, N_UNITS * UNIT_BYTES); /* once, into the copies */
    assert_int_equal(info_of(&x).host_bytes, N_UNITS * UNIT_BYTES);
    assert_int_equal(check_model(&r, r.m, &x).read_bytes, 0);
    assert_string_equal(log.text, ""); /* nothing was weighed */
    close_model(&other);
    close_model(&x);
    close_model(&source);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

/* R6.5: below the reserve copies of whole components go first, the least recently used one first, then idle
 * models leave, never a pinned or busy one, and no more than is needed. */
static void below_the_reserve(void **state)
{
    (void)state;
    static const struct {
        uint32_t enough_after;
        const char *gone;
    } cases[] = {{1, "old "},
                 {2, "old pinned "},
                 {3, "old pinned new "},
                 {4, "old pinned new partly "},
                 {99, "old pinned new partly "}};
    static const char *const names[] = {"old", "pinned", "new", "partly", "mine", "kept"};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rig r;
        model source, x[6];
        char path[128];
        relief w = {.enough_after = cases[c].enough_after};
        mem_policy policy = machine_policy();
        policy.pinned_models = "test:pinned,test:kept";
        policy.max_pinned_bytes = 0;
        machine_has(5000);
        open_rig(&r, device_of(6 * WHOLE), policy);
        r.env->clock_fn = hurried_clock;
        open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
        base_file *file = model_file(&r, &source, path);
        for (int i = 0; i < 6; i++) open_model(&r, r.m, &x[i], names[i], MEM_ONESHOT, file);
        for (int i = 0; i < 6; i++) memcpy(x[i].data, source.data, WHOLE);
        check_model(&r, r.m, &x[5]);
        run_out_once(&r, &x[3]);
        for (int i = 0; i < 3; i++) check_model(&r, r.m, &x[i]);
        assert_false(info_of(&x[3]).whole);
        /* Off the device, pinned, and used longest ago: its copies stay. */
        assert_true(info_of(&x[5]).loaded_bytes == 0 && info_of(&x[5]).host_bytes >= WHOLE);
        for (int i = 0; i < 4; i++) assert_true(info_of(&x[i]).host_bytes >= WHOLE);
        r.env->log_fn = on_log;
        r.env->log_arg = &w;
        machine_has(900);
        check_model(&r, r.m, &x[4]);
        r.env->log_fn = NULL;
        assert_string_equal(w.gone, cases[c].gone);
        for (int i = 0; i < 4; i++)
            assert_int_equal(info_of(&x[i]).host_bytes == 0, (uint32_t)i < cases[c].enough_after);
        assert_true(info_of(&x[5]).host_bytes >= WHOLE);
        assert_true(info_of(&x[1]).loaded_bytes != 0); /* pinned: its copies go, it stays */
        machine_has(5000);
        for (int i = 0; i < 6; i++) check_model(&r, r.m, &x[i]);
        for (int i = 0; i < 6; i++) close_model(&x[i]);
        close_model(&source);
        base_file_close(file);
        unlink(path);
        close_rig(&r);
    }
}

/* R6.5: what a phase is about to use does not leave, even where it was used longest ago; what a file gave to
 * the processor goes with its model. */
static void the_phase_itself_stays(void **state)
{
    (void)state;
    rig r;
    model source, x;
    mem_handle *h;
    mem_weight_id id;
    char path[128];
    uint32_t unit;
    mem_policy policy = machine_policy();
    machine_has(5000);
    open_rig(&r, device_of(WHOLE / 2 + 131072), policy); /* x is there in part: its copies are needed */
    r.env->clock_fn = hurried_clock;
    open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
    base_file *file = model_file(&r, &source, path);
    ok(&r, mem_handle_create(r.m, "test", "table", MEM_ONESHOT, &h, &r.err));
    ok(&r, mem_handle_add_unit(h, "rows", MEM_MARK_CPU, &unit, &r.err));
    const mem_handle_weight w = {.name = "w", .bytes = UNIT_BYTES, .file = file, .streamable = true};
    ok(&r, mem_handle_add_weight(h, unit, &w, &id, &r.err));
    ok(&r, mem_handle_seal(h, &r.err));
    open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
    mem_request *q;
    mem_phase *p;
    mem_handle_info info;
    void *address;
    const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &h, .n_handles = 1};
    check_model(&r, r.m, &x);
    for (int round = 0; round < 2; round++) {
        ok(&r, mem_request_begin(&d, &q, &r.err));
        ok(&r, mem_use(q, &phase, &p, &r.err));
        ok(&r, mem_weight_address(p, h, id, &address, &r.err));
        assert_memory_equal(address, source.data, UNIT_BYTES);
        ok(&r, mem_phase_end(p, &r.err));
        mem_request_end(q);
        mem_handle_get_info(h, &info);
        assert_int_equal(info.host_bytes, UNIT_BYTES);
        machine_has(900);
        if (round == 1) break;
        /* x was used longest ago, and is about to be used: "table" goes. */
        assert_int_equal(check_model(&r, r.m, &x).read_bytes, 0);
        mem_handle_get_info(h, &info);
        assert_int_equal(info.host_bytes, 0);
        assert_true(info_of(&x).host_bytes >= WHOLE);
        machine_has(5000);
    }
    mem_handle_destroy(h);
    close_model(&x);
    close_model(&source);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

/* What is read into RAM is of the file that was registered, also where nothing goes to the device. */
static void ram_is_of_the_same_file(void **state)
{
    (void)state;
    rig r;
    model source;
    mem_handle *h;
    mem_weight_id id;
    char path[128], other[140];
    uint32_t unit;
    mem_phase *p;
    void *address;
    open_rig(&r, device_of(4 * MB), test_policy());
    open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
    base_file *file = model_file(&r, &source, path);
    ok(&r, mem_handle_create(r.m, "test", "table", MEM_ONESHOT, &h, &r.err));
    ok(&r, mem_handle_add_unit(h, "rows", MEM_MARK_CPU, &unit, &r.err));
    const mem_handle_weight w = {.name = "w", .bytes = UNIT_BYTES, .file = file, .streamable = true};
    ok(&r, mem_handle_add_weight(h, unit, &w, &id, &r.err));
    ok(&r, mem_handle_seal(h, &r.err));
    mem_request *q;
    const mem_request_desc d = {.name = "t", .managers = &r.m, .n_managers = 1};
    const mem_phase_desc phase = {.name = "p", .handles = &h, .n_handles = 1};
    ok(&r, mem_request_begin(&d, &q, &r.err));
    ok(&r, mem_use(q, &phase, &p, &r.err));
    ok(&r, mem_weight_address(p, h, id, &address, &r.err));
    assert_memory_equal(address, source.data, UNIT_BYTES);
    ok(&r, mem_phase_end(p, &r.err));
    ok(&r, mem_handle_unload(h, true, &r.err));
    snprintf(other, sizeof other, "%s_other", path);
    int fd = open(other, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_int_equal(write(fd, source.data, WHOLE), WHOLE);
    close(fd);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(mem_use(q, &phase, &p, &r.err), WEIR_ERR_FILE_CHANGED);
    mem_handle_info info;
    mem_handle_get_info(h, &info);
    assert_true(info.host_bytes == 0 && !info.busy);
    mem_request_end(q);
    mem_handle_destroy(h);
    close_model(&source);
    base_file_close(file);
    unlink(path);
    close_rig(&r);
}

/* ---- three tiers ---- */

/* X3, R5.4: one ledger has what lies in RAM and on the device, to the byte of what the device itself counts;
 * the budgets of both are independent, and both hold, with what finds no room read from storage. */
static void one_ledger_over_three_tiers(void **state)
{
    (void)state;
    static const uint64_t rams[] = {UINT64_MAX, MB * 5 / 2, MB * 5 / 2};
    static const uint64_t devices[] = {4 * MB, WHOLE / 2 + 131072, 4096 + 2 * UNIT_BYTES + 131072};
    for (int ram = 0; ram < 3; ram++)
        for (int device = 0; device < 3; device++) {
            rig r;
            model source, x;
            char path[128];
            base_ledger_view v;
            mem_policy policy = test_policy();
            policy.vram_limit_bytes = devices[device];
            policy.host_copies = ram == 2 ? MEM_OFF : MEM_ON;
            open_rig(&r, device_of(8 * MB), policy);
            open_model(&r, r.m, &source, "f", MEM_ONESHOT, NULL);
            base_file *file = model_file(&r, &source, path);
            open_model(&r, r.m, &x, "f", MEM_ONESHOT, file);
            base_ledger_read(r.env, &v);
            uint64_t own = v.bytes; /* the device's own threads and tables */
            uint64_t limit = rams[ram] == UINT64_MAX ? UINT64_MAX : own + rams[ram];
            ok(&r, base_ledger_set_limit(r.env, limit, &r.err));
            base_ledger_peak_reset(r.env);
            check_model(&r, r.m, &x);
            mem_report rep = check_model(&r, r.m, &x);
            base_ledger_read(r.env, &v);
            mem_manager_info info = manager_info(&r);
            assert_int_equal(v.device_bytes, info.device.taken_bytes);
            assert_int_equal(v.device_bytes, info.fixed_bytes + info.resident_bytes + info.slot_bytes);
            assert_int_equal(v.device_bytes, rep.components[0].loaded_bytes + rep.components[0].slot_bytes);
            uint64_t sum = 0;
            for (int t = 0; t < BASE_TAG_COUNT; t++) sum += v.tag_bytes[t];
            assert_int_equal(v.bytes, sum);
            assert_true(v.peak_bytes <= limit);
            assert_true(v.device_peak_bytes <= devices[device]);
            /* Without copies in RAM it is read again from storage. */
            assert_int_equal(info.host_copy_bytes, ram == 2 ? 0 : WHOLE);
            assert_int_equal(rep.read_bytes != 0, device != 0 && ram == 2);
            close_model(&x);
            close_model(&source);
            base_file_close(file);
            unlink(path);
            close_rig(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pinned_in_place),
        cmocka_unit_test(copies_while_there_is_ram),
        cmocka_unit_test(loading_holds_no_copy),
        cmocka_unit_test(replacing),
        cmocka_unit_test(replacing_is_checked),
        cmocka_unit_test(destroying_copies_nothing_back),
        cmocka_unit_test(copies_come_back),
        cmocka_unit_test(below_the_reserve),
        cmocka_unit_test(the_phase_itself_stays),
        cmocka_unit_test(ram_is_of_the_same_file),
        cmocka_unit_test(one_ledger_over_three_tiers),
    };
    return cmocka_run_group_tests_name("memory manager: RAM", tests, NULL, remove_machine);
}
