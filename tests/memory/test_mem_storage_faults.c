/* Storage that fails in every way a read can, at every read there is: loading, tiles of the ring, rows by
 * number, by io_uring and by threads, direct and through the cache. The bytes are right, or the error is the
 * documented one; the same placement goes on afterwards (X5). Every passage with WEIR_TEST_FULL, else some.
 */
#include "mem_test.h"

#include <errno.h>

typedef struct ailment {
    const char *name;
    base_fault_rule rule; /* site and ordinal left open */
    bool harmless;        /* for good, too */
    bool ends;            /* looks like the end of the file */
} ailment;

static const ailment ailments[] = {
    {"EIO", {.error = EIO, .length = -1}, false, false},
    {"EINTR", {.error = EINTR, .length = -1}, false, false},
    {"EAGAIN", {.error = EAGAIN, .length = -1}, false, false},
    {"no byte", {.length = 0}, false, true},
    {"one byte", {.length = 1}, true, false},
    {"all but one byte", {.length = -1, .missing = 1}, false, true},
    {"all but a block and a byte", {.length = -1, .missing = 4097}, false, true},
};
#define N_AILMENTS (sizeof ailments / sizeof *ailments)

static const base_fault_site sites[] = {BASE_FAULT_READ, BASE_FAULT_COMPLETION, BASE_FAULT_SUBMIT};

static void suffer(fixture *f, const base_aio_options *way, const ailment *a, base_fault_site site,
                   uint64_t after, bool for_good)
{
    base_fault_rule rule = a->rule;
    rule.site = site;
    rule.after = after;
    rule.for_good = for_good;
    assert_status(base_fault_arm(f->env, &rule, &f->err), WEIR_OK);
    f->err.message[0] = '\0';
    weir_status status = session(f, way, budget_at(f, 30), 40);
    base_fault_clear(f->env);
    if (for_good && after == 0 && rule.error == EIO && site == BASE_FAULT_READ)
        assert_int_equal(status, WEIR_ERR_IO);
    if (status == WEIR_OK) return;
    bool documented = status == WEIR_ERR_IO || (a->ends && status == WEIR_ERR_TRUNCATED);
    if (!documented || !for_good || a->harmless)
        fail_msg("%s, %s:%llu%s gives %s: %s", a->name, base_fault_text(site), (unsigned long long)after,
                 for_good ? ":for_good" : "", weir_status_name(status), f->err.message);
    if (strstr(f->err.message, f->path) == NULL) fail_msg("no file is named: %s", f->err.message);
}

static void every_read_fails_in_every_way(void **state)
{
    (void)state;
    fixture fix, *f = &fix;
    bool all = getenv("WEIR_TEST_FULL") != NULL;
    open_fixture(f, "ailing", MEM_SEQUENCE);
    unsigned lives = 0;
    for (size_t way = 0; way < N_WAYS; way++) {
        if (!way_exists(f, &ways[way]) || (!all && way % 2 != 0)) continue;
        assert_status(base_fault_count_on(f->env, &f->err), WEIR_OK);
        assert_status(session(f, &ways[way], budget_at(f, 30), 40), WEIR_OK);
        uint64_t n[3];
        for (int s = 0; s < 3; s++) n[s] = base_fault_count(f->env, sites[s]);
        base_fault_clear(f->env);
        for (int s = 0; s < 3; s++) {
            assert_true(n[s] > 20);
            uint64_t step = all ? 1 : n[s] / 3;
            for (uint64_t after = 0; after < n[s]; after += after < 1 ? 1 : step)
                for (size_t i = 0; i < N_AILMENTS; i++)
                    for (int for_good = 0; for_good <= 1; for_good++) {
                        /* What is tried again and again for good takes its time: once is enough. */
                        bool again = ailments[i].harmless || ailments[i].rule.error == EAGAIN ||
                                     ailments[i].rule.error == EINTR;
                        uint64_t once = ailments[i].harmless ? n[s] - 1 : n[s] / 2;
                        if (again && for_good && (after > once || after + step <= once)) continue;
                        suffer(f, &ways[way], &ailments[i], sites[s], after, for_good != 0);
                        lives++;
                    }
        }
    }
    assert_true(lives > 100);
    print_message("%u lives\n", lives);
    close_fixture(f);
}

/* Cut and replaced between any two tiles, whatever reads. */
static void a_file_that_changes_between_tiles(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        for (size_t way = 0; way < N_WAYS; way++) {
            fixture fix, *f = &fix;
            open_fixture(f, "ailing", MEM_SEQUENCE);
            if (way_exists(f, &ways[way])) {
                place(f, budget_at(f, 5), &ways[way]);
                assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_OK);
                assert_status(mem_pass_begin(f->c, f->order, f->n_order, NULL, &f->err), WEIR_OK);
                assert_status(walk_weight(f, f->order[1]), WEIR_OK);
                char other[256];
                test_path(other, sizeof other, "ailing_other");
                if (how == 0) {
                    assert_int_equal(truncate(f->path, 0), 0);
                } else if (how == 1) {
                    assert_int_equal(truncate(f->path, (off_t)f->n_data - 1), 0);
                } else {
                    assert_int_equal(rename(f->path, other), 0);
                    write_data(f);
                }
                weir_status status = walk_weight(f, f->order[2]);
                for (size_t i = 3; i < f->n_order && status == WEIR_OK; i++)
                    status = walk_weight(f, f->order[i]);
                mem_pass_end(f->c);
                /* The open file is whole where only its name was given away: known at the next pass. */
                assert_int_equal(status, how == 2 ? WEIR_OK : WEIR_ERR_FILE_CHANGED);
                assert_status(run_pass(f, f->order, f->n_order, NULL), WEIR_ERR_FILE_CHANGED);
                mem_unplace(f->c);
                assert_int_equal(ledger_bytes(f), f->baseline);
                if (how == 2) unlink(other);
            }
            close_fixture(f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_read_fails_in_every_way),
        cmocka_unit_test(a_file_that_changes_between_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
