/* The kernels' own layout, made when a model is loaded or ahead by weir_pack: the same bits from both, within
 * the plan, at every budget (X1, X2); files that are refused and packing that ends in the middle leave
 * nothing behind. */
#include "rt_test.h"

#include <dirent.h>
#include <sys/stat.h>

enum { N_TOKENS = 40 };

static const char *packed_path(const fixture *f)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/packed.gguf", f->folder);
    return path;
}

static void pack_to(fixture *f, weir_model *m, const char *path, weir_pack_result *out)
{
    weir_pack_options o;
    weir_pack_options_init(&o);
    o.force = true;
    assert_ok(f, weir_pack(m, &o, path, out, &f->err));
}

/* Logits behind a fixed text; the ledger stays within the plan. packed: whether packed rows are expected. */
static uint64_t hash_of(fixture *f, weir_model *m, uint32_t percent, uint32_t threads, uint32_t chunk,
                        int packed)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_load_options o = load_options(64, threads);
    int32_t tokens[N_TOKENS];
    o.prefill_chunk = chunk;
    o.mem_bytes = UINT64_C(1) << 40;
    assert_ok(f, weir_model_plan(m, &o, &plan, &f->err));
    o.mem_bytes = plan.smallest_bytes + (plan.whole_bytes - plan.smallest_bytes) * percent / 100;
    assert_ok(f, weir_model_load(m, &o, &f->err));
    some_tokens(tokens, N_TOKENS, lm_model_hparams(m->lm)->n_vocab, 3);
    weir_session *s = new_session(f, m);
    uint64_t hash = logits_of(f, s, tokens, N_TOKENS);
    for (int i = 0; i < 3; i++) hash ^= logits_of(f, s, &tokens[i], 1); /* one row at a time too */
    weir_memory_report report;
    assert_ok(f, weir_model_memory(m, &report, &f->err));
    assert_true(report.ledger_peak_bytes <= report.planned_peak_bytes);
    for (uint32_t i = 0; i < report.n_accounts; i++)
        if (strncmp(report.accounts[i].tag, "weights", 7) == 0)
            assert_true(report.accounts[i].peak_bytes <= report.accounts[i].planned_bytes);
    assert_true(report.packed_bytes <= report.loaded_bytes);
    if (packed >= 0) assert_int_equal(report.packed_bytes > 0, packed);
    weir_session_destroy(s);
    weir_model_unload(m);
    return hash;
}

static const char *make_typed(fixture *f, const char *arch, const char *type)
{
    static char path[256];
    weir_synth_options o;
    weir_synth_options_init(&o);
    o.arch = arch;
    o.type = type;
    o.n_layers = 3;
    o.n_vocab = 777; /* not in whole groups */
    o.head_dim = 64;
    o.window = strcmp(arch, "gemma3") == 0 ? 32 : 0;
    snprintf(path, sizeof path, "%s/%s.gguf", f->folder, arch);
    assert_ok(f, weir_synth(f->context, &o, path, &f->err));
    return path;
}

static void both_layouts_give_the_same_bits(void **state)
{
    fixture *f = *state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3", "llama"};
    static const char *const types[] = {"Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS"};
    static const uint32_t percents[] = {0, 50, 100};
    for (int i = RT_SANITIZED ? 4 : 0; i < 5; i++) { /* sanitizers make it slow */
        weir_model *m, *p;
        weir_pack_result r;
        assert_ok(f, weir_model_open(f->context, make_typed(f, archs[i], types[i]), &m, &f->err));
        pack_to(f, m, packed_path(f), &r);
        assert_true(r.n_packed >= 7 * 3 && r.packed_bytes > r.other_bytes / 4);
        assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
        assert_ok(f, weir_context_set(f->context, "compute.pack", "off", &f->err));
        uint64_t hash = hash_of(f, m, 100, 1, 0, 0);
        assert_true(hash != 0);
        for (int b = 0; b < 3; b++) {
            for (uint32_t threads = 1; threads <= 2; threads++) {
                for (uint32_t chunk = 1; chunk <= 17; chunk += 16) {
                    const char *layouts[] = {"off", "auto"};
                    for (int l = 0; l < 2; l++) {
                        assert_ok(f, weir_context_set(f->context, "compute.pack", layouts[l], &f->err));
                        int stays = percents[b] == 100 ? 1 : -1;
                        assert_int_equal(hash_of(f, m, percents[b], threads, chunk, l == 0 ? 0 : stays),
                                         hash);
                        assert_int_equal(hash_of(f, p, percents[b], threads, chunk, stays), hash);
                    }
                }
            }
        }
        weir_model_close(p);
        weir_model_close(m);
    }
    unlink(packed_path(f));
}

/* Every set of instructions, on both files. */
static void every_set_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    weir_machine machine = {.struct_size = sizeof machine};
    weir_model *m, *p;
    weir_pack_result r;
    assert_ok(f, weir_model_open(f->context, make_typed(f, "llama", "Q5_K"), &m, &f->err));
    pack_to(f, m, packed_path(f), &r);
    assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.pack", "auto", &f->err));
    assert_ok(f, weir_machine_read(f->context, &machine, &f->err));
    uint64_t hash = 0;
    for (size_t i = 0; machine.cpu_sets[i] != NULL; i++) {
        assert_ok(f, weir_context_set(f->context, "cpu", machine.cpu_sets[i], &f->err));
        uint64_t h = hash_of(f, m, 60, 2, 17, -1);
        if (i == 0) hash = h;
        assert_int_equal(h, hash);
        assert_int_equal(hash_of(f, p, 60, 2, 17, -1), hash);
        assert_int_equal(hash_of(f, p, 100, 1, 1, 1), hash);
    }
    weir_model_close(p);
    weir_model_close(m);
    unlink(packed_path(f));
}

/* A packed file takes no more memory: the smallest working sets differ by alignment alone. */
static void the_smallest_working_set_stays(void **state)
{
    fixture *f = *state;
    weir_model *m, *p;
    weir_pack_result r;
    weir_plan a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    weir_load_options o = load_options(64, 2);
    o.mem_bytes = UINT64_C(1) << 40;
    assert_ok(f, weir_model_open(f->context, make_typed(f, "llama", "Q4_0"), &m, &f->err));
    pack_to(f, m, packed_path(f), &r);
    assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.pack", "off", &f->err));
    assert_ok(f, weir_model_plan(m, &o, &a, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.pack", "auto", &f->err));
    assert_ok(f, weir_model_plan(m, &o, &b, &f->err));
    /* But for the word that the setting holds. */
    assert_in_range(b.smallest_bytes, a.smallest_bytes, a.smallest_bytes + 8);
    assert_in_range(b.whole_bytes, a.whole_bytes, a.whole_bytes + 8);
    assert_ok(f, weir_model_plan(p, &o, &b, &f->err));
    assert_true(b.smallest_bytes <= a.smallest_bytes + 128 * 1024);
    assert_true(b.whole_bytes <= a.whole_bytes + 4096 * (uint64_t)(r.n_packed + r.n_other) + 64 * 1024);
    weir_model_close(p);
    weir_model_close(m);
    unlink(packed_path(f));
}

/* ---- what is refused, and what is left behind */

static int files_in(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

typedef struct stopper {
    int calls, stop_at;
} stopper;

static bool stop_at(void *arg)
{
    stopper *s = arg;
    return ++s->calls >= s->stop_at;
}

static void refusals(void **state)
{
    fixture *f = *state;
    weir_model *m, *p;
    weir_pack_options o;
    weir_pack_options_init(&o);
    const char *source = make_typed(f, "llama", "Q8_0");
    assert_ok(f, weir_model_open(f->context, source, &m, &f->err));
    int before = files_in(f->folder);
    base_ledger_view ledger, after;
    base_ledger_read(m->env, &ledger);
    assert_int_equal(weir_pack(m, &o, source, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "the model itself");
    o.force = true;
    assert_int_equal(weir_pack(m, &o, source, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    o.force = false;
    assert_int_equal(weir_pack(m, &o, f->folder, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(weir_pack(m, &o, "/nowhere/at/all.gguf", NULL, &f->err), WEIR_ERR_NOT_FOUND);
    assert_int_equal(weir_pack(m, &o, "", NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_int_equal(files_in(f->folder), before);

    weir_pack_result r;
    assert_ok(f, weir_pack(m, &o, packed_path(f), &r, &f->err));
    struct stat st;
    assert_int_equal(stat(packed_path(f), &st), 0);
    assert_int_equal(st.st_size, r.file_bytes);
    assert_int_equal(weir_pack(m, &o, packed_path(f), NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "--force");
    assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
    char twice[256];
    snprintf(twice, sizeof twice, "%s/twice.gguf", f->folder);
    assert_int_equal(weir_pack(p, &o, twice, NULL, &f->err), WEIR_ERR_UNSUPPORTED);
    assert_mentions(f->err.message, "packed already");
    weir_model_close(p);

    for (int at = 1; at < 6; at += 2) {
        stopper stop = {.stop_at = at};
        o.stop = stop_at;
        o.stop_arg = &stop;
        assert_int_equal(weir_pack(m, &o, twice, NULL, &f->err), WEIR_ERR_CANCELLED);
        assert_int_equal(stop.calls, at);
        assert_int_equal(files_in(f->folder), before + 1);
    }
    base_ledger_read(m->env, &after);
    assert_int_equal(after.bytes, ledger.bytes);
    weir_model_close(m);

    assert_ok(f, weir_model_open(f->context, make_typed(f, "qwen2", "F16"), &m, &f->err));
    o.stop = NULL;
    assert_int_equal(weir_pack(m, &o, twice, NULL, &f->err), WEIR_ERR_UNSUPPORTED);
    assert_mentions(f->err.message, "floats");
    weir_model_close(m);
    unlink(packed_path(f));
    assert_int_equal(weir_context_set(f->context, "compute.pack", "sometimes", &f->err), WEIR_OK);
    assert_ok(f, weir_model_open(f->context, source, &m, &f->err));
    assert_int_equal(weir_model_load(m, NULL, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    assert_mentions(f->err.message, "auto or off");
    weir_model_close(m);
}

/* Every allocation, read and opening failing: the documented error, nothing left, and it works afterwards. */
static void failures_leave_nothing(void **state)
{
    fixture *f = *state;
    static const struct {
        base_fault_site site;
        weir_status status;
    } sites[] = {{BASE_FAULT_HOST_ALLOC, WEIR_ERR_OUT_OF_MEMORY},
                 {BASE_FAULT_READ, WEIR_ERR_IO},
                 {BASE_FAULT_OPEN, WEIR_ERR_IO}};
    weir_model *m;
    weir_pack_options o;
    weir_pack_options_init(&o);
    assert_ok(f, weir_model_open(f->context, make_typed(f, "llama", "Q8_0"), &m, &f->err));
    int before = files_in(f->folder);
    base_ledger_view ledger, after;
    base_ledger_read(m->env, &ledger);
    for (size_t i = 0; i < 3; i++) {
        unsigned failures = 0;
        for (uint64_t at = 0;; at++) {
            base_fault_rule rule = {.site = sites[i].site, .after = at, .for_good = true, .length = -1};
            assert_ok(f, base_fault_arm(m->env, &rule, &f->err));
            weir_status status = weir_pack(m, &o, packed_path(f), NULL, &f->err);
            base_fault_clear(m->env);
            if (status == WEIR_OK) break;
            assert_int_equal(status, sites[i].status);
            assert_int_equal(files_in(f->folder), before);
            base_ledger_read(m->env, &after);
            assert_int_equal(after.bytes, ledger.bytes);
            failures++;
        }
        assert_true(failures > 0);
        unlink(packed_path(f));
    }
    weir_model_close(m);
}

/* `weir synth`, ended in the middle, leaves no half file either. */
static void stopped_synth_leaves_nothing(void **state)
{
    fixture *f = *state;
    int before = files_in(f->folder);
    weir_synth_options o;
    weir_synth_options_init(&o);
    stopper stop = {.stop_at = 9};
    o.stop = stop_at;
    o.stop_arg = &stop;
    char path[256];
    snprintf(path, sizeof path, "%s/llama.gguf", f->folder);
    assert_int_equal(weir_synth(f->context, &o, path, &f->err), WEIR_ERR_CANCELLED);
    assert_int_equal(files_in(f->folder), before);
}

/* Values and every second tensor of a model, as part `no` of two. */
static void write_part(fixture *f, const weir_model *m, const char *path, uint32_t no)
{
    const fmt_model *file = m->file;
    fmt_writer *w;
    assert_ok(f, fmt_writer_create(m->env, FMT_WRITE_GGUF, path, &w, &f->err));
    for (uint64_t i = 0; no == 0 && i < fmt_model_n_values(file); i++)
        assert_ok(f, fmt_writer_copy(w, file, fmt_model_value(file, i), &f->err));
    assert_ok(f, fmt_writer_u32(w, "split.no", no, &f->err));
    assert_ok(f, fmt_writer_u32(w, "split.count", 2, &f->err));
    for (uint64_t i = no; i < fmt_model_n_tensors(file); i += 2) {
        const fmt_tensor *t = fmt_model_tensor(file, i);
        assert_ok(f, fmt_writer_tensor(w, t->name, t->dtype, t->n_dims, t->dims, &f->err));
    }
    for (uint64_t i = no; i < fmt_model_n_tensors(file); i += 2) {
        const fmt_tensor *t = fmt_model_tensor(file, i);
        void *data = malloc(t->bytes);
        assert_non_null(data);
        assert_ok(f, base_file_read(fmt_model_file(file, t->file), t->offset, data, t->bytes, &f->err));
        assert_ok(f, fmt_writer_data(w, data, t->bytes, &f->err));
        free(data);
    }
    assert_ok(f, fmt_writer_finish(w, &f->err));
    fmt_writer_destroy(w);
}

static void a_split_model_becomes_one_file(void **state)
{
    fixture *f = *state;
    weir_model *m, *split, *p;
    weir_pack_result r;
    char parts[2][256];
    assert_ok(f, weir_model_open(f->context, make_typed(f, "qwen2", "Q4_1"), &m, &f->err));
    for (uint32_t no = 0; no < 2; no++) {
        snprintf(parts[no], sizeof parts[no], "%s/s-%05u-of-00002.gguf", f->folder, no + 1);
        write_part(f, m, parts[no], no);
    }
    assert_ok(f, weir_model_open(f->context, parts[1], &split, &f->err));
    assert_int_equal(fmt_model_n_files(split->file), 2);
    weir_pack_options o;
    weir_pack_options_init(&o);
    o.force = true;
    assert_int_equal(weir_pack(split, &o, parts[1], &r, &f->err), WEIR_ERR_INVALID_ARGUMENT);
    pack_to(f, split, packed_path(f), &r);
    assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
    assert_int_equal(fmt_model_n_files(p->file), 1);
    assert_null(fmt_model_find_value(p->file, "split.count"));
    uint64_t hash = hash_of(f, m, 100, 1, 0, -1);
    assert_int_equal(hash_of(f, split, 50, 1, 0, -1), hash);
    assert_int_equal(hash_of(f, p, 50, 1, 0, -1), hash);
    weir_model_close(p);
    weir_model_close(split);
    weir_model_close(m);
    unlink(parts[0]);
    unlink(parts[1]);
    unlink(packed_path(f));
}

/* A tied head that is packed in memory still gives the rows of its table: hash of a real model. */
static void a_real_model(void **state)
{
    fixture *f = *state;
    weir_model *m = open_real(f, SMOL), *p;
    weir_pack_result r;
    pack_to(f, m, packed_path(f), &r);
    assert_int_equal(r.n_packed, 210);
    assert_ok(f, weir_model_open(f->context, packed_path(f), &p, &f->err));
    assert_ok(f, weir_context_set(f->context, "compute.pack", "off", &f->err));
    uint64_t hash = hash_of(f, m, 100, 2, 0, 0);
    assert_ok(f, weir_context_set(f->context, "compute.pack", "auto", &f->err));
    for (uint32_t percent = 0; percent <= 100; percent += 50) {
        assert_int_equal(hash_of(f, m, percent, 2, 0, -1), hash);
        assert_int_equal(hash_of(f, p, percent, 2, 0, -1), hash);
    }
    weir_model_close(p);
    weir_model_close(m);
    unlink(packed_path(f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_layouts_give_the_same_bits, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(every_set_gives_the_same_bits, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(the_smallest_working_set_stays, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(refusals, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(failures_leave_nothing, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(stopped_synth_leaves_nothing, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_split_model_becomes_one_file, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_real_model, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
