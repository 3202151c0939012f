/* The ledger and what is allocated through it. */
#include "base_test.h"

#include <pthread.h>
#include <sys/mman.h>

static void blocks_are_zeroed_aligned_and_counted(void **state)
{
    fixture *fix = *state;
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4096, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = base_alloc(fix->env, BASE_TAG_KV, sizes[i], &fix->err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(p[k], 0);
        memset(p, 0xa5, sizes[i]);
        base_ledger_view v;
        base_ledger_read(fix->env, &v);
        assert_int_equal(v.bytes, sizes[i] + 16);
        assert_int_equal(v.tag_bytes[BASE_TAG_KV], sizes[i] + 16);
        assert_int_equal(v.tag_bytes[BASE_TAG_IO], 0);
        base_free(fix->env, p);
        assert_int_equal(booked(fix->env), 0);
    }
    base_free(fix->env, NULL);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.peak_bytes, 1000003 + 16);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_KV], 1000003 + 16);
    assert_true(v.limit_bytes == UINT64_MAX);
}

static void peaks_are_kept_by_tag(void **state)
{
    fixture *fix = *state;
    assert_status(base_ledger_reserve(fix->env, BASE_TAG_KV, 100, &fix->err), WEIR_OK);
    assert_status(base_ledger_reserve(fix->env, BASE_TAG_IO, 50, &fix->err), WEIR_OK);
    base_ledger_release(fix->env, BASE_TAG_KV, 100);
    assert_status(base_ledger_reserve(fix->env, BASE_TAG_IO, 20, &fix->err), WEIR_OK);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.bytes, 70);
    assert_int_equal(v.peak_bytes, 150);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_KV], 100);
    assert_int_equal(v.tag_peak_bytes[BASE_TAG_IO], 70);
    assert_int_equal(v.tag_bytes[BASE_TAG_KV], 0);
    base_ledger_release(fix->env, BASE_TAG_IO, 70);
}

static void limit_holds_to_the_byte(void **state)
{
    fixture *fix = *state;
    assert_status(base_ledger_set_limit(fix->env, 1000, &fix->err), WEIR_OK);
    assert_status(base_ledger_reserve(fix->env, BASE_TAG_KV, 600, &fix->err), WEIR_OK);
    assert_int_equal(base_ledger_reserve(fix->env, BASE_TAG_IO, 401, &fix->err), WEIR_ERR_BUDGET);
    assert_int_equal(fix->err.code, WEIR_ERR_BUDGET);
    assert_non_null(strstr(fix->err.message, "io: wanted 401 bytes"));
    assert_non_null(strstr(fix->err.message, "free 400 bytes"));
    assert_non_null(strstr(fix->err.message, "missing 1 byte"));
    assert_int_equal(booked(fix->env), 600);
    assert_status(base_ledger_reserve(fix->env, BASE_TAG_IO, 400, &fix->err), WEIR_OK);
    assert_int_equal(base_ledger_reserve(fix->env, BASE_TAG_IO, 1, NULL), WEIR_ERR_BUDGET);
    assert_int_equal(base_ledger_reserve(fix->env, BASE_TAG_IO, UINT64_MAX, NULL), WEIR_ERR_BUDGET);
    assert_null(base_alloc(fix->env, BASE_TAG_IO, 1, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_BUDGET);
    assert_null(base_pages_alloc(fix->env, BASE_TAG_IO, 1, false, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_BUDGET);

    assert_int_equal(base_ledger_set_limit(fix->env, 999, &fix->err), WEIR_ERR_BUDGET);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.limit_bytes, 1000);
    assert_status(base_ledger_set_limit(fix->env, UINT64_MAX, &fix->err), WEIR_OK);
    base_ledger_release(fix->env, BASE_TAG_KV, 600);
    base_ledger_release(fix->env, BASE_TAG_IO, 400);
}

static void realloc_moves_bytes_and_tag(void **state)
{
    fixture *fix = *state;
    char *p = base_realloc(fix->env, BASE_TAG_IO, NULL, 10, &fix->err);
    assert_non_null(p);
    memcpy(p, "weir crest", 10);
    p = base_realloc(fix->env, BASE_TAG_TOKENIZER, p, 100000, &fix->err);
    assert_non_null(p);
    assert_memory_equal(p, "weir crest", 10);
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.tag_bytes[BASE_TAG_IO], 0);
    assert_int_equal(v.tag_bytes[BASE_TAG_TOKENIZER], 100016);
    assert_int_equal(v.peak_bytes, 100016); /* never counted twice */

    assert_status(base_ledger_set_limit(fix->env, 100020, &fix->err), WEIR_OK);
    assert_null(base_realloc(fix->env, BASE_TAG_TOKENIZER, p, 100005, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_BUDGET);
    assert_memory_equal(p, "weir crest", 10);
    assert_int_equal(booked(fix->env), 100016);

    p = base_realloc(fix->env, BASE_TAG_TOKENIZER, p, 4, &fix->err);
    assert_non_null(p);
    assert_memory_equal(p, "weir", 4);
    assert_int_equal(booked(fix->env), 20);
    base_free(fix->env, p);
}

static void realloc_keeps_the_block_when_the_system_refuses(void **state)
{
    fixture *fix = *state;
    char *p = base_strdup(fix->env, BASE_TAG_IO, "kept", &fix->err);
    assert_non_null(p);
    base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, 0, true);
    assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
    assert_null(base_realloc(fix->env, BASE_TAG_KV, p, 1000, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
    assert_null(base_realloc(fix->env, BASE_TAG_KV, p, 1, &fix->err));
    base_fault_clear(fix->env);
    assert_string_equal(p, "kept");
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.bytes, 21);
    assert_int_equal(v.tag_bytes[BASE_TAG_IO], 21);
    assert_int_equal(v.tag_bytes[BASE_TAG_KV], 0);
    base_free(fix->env, p);
}

static void impossible_sizes_are_refused(void **state)
{
    fixture *fix = *state;
    assert_null(base_alloc(fix->env, BASE_TAG_KV, SIZE_MAX, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
    assert_null(base_alloc(fix->env, BASE_TAG_KV, SIZE_MAX - 15, &fix->err));
    assert_null(base_alloc_array(fix->env, BASE_TAG_KV, SIZE_MAX / 2, 3, &fix->err));
    assert_null(base_alloc_array(fix->env, BASE_TAG_KV, UINT64_C(1) << 32, UINT64_C(1) << 32, &fix->err));
    assert_null(base_pages_alloc(fix->env, BASE_TAG_KV, UINT64_MAX, true, &fix->err));
    assert_null(base_pages_alloc(fix->env, BASE_TAG_KV, INT64_MAX, false, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
    char *p = base_alloc(fix->env, BASE_TAG_KV, 5, &fix->err);
    assert_null(base_realloc(fix->env, BASE_TAG_KV, p, SIZE_MAX - 3, &fix->err));
    base_free(fix->env, p);
    assert_int_equal(booked(fix->env), 0);
}

static void what_the_system_refuses_is_out_of_memory(void **state)
{
    fixture *fix = *state;
    /* More than any address space has, less than a size can say. */
    assert_null(base_pages_alloc(fix->env, BASE_TAG_KV, UINT64_C(1) << 61, false, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(fix->err.message, "kv"));
    assert_null(base_pages_alloc(fix->env, BASE_TAG_KV, UINT64_C(1) << 61, true, &fix->err));
    assert_int_equal(booked(fix->env), 0);
}

static void pages_are_aligned_zeroed_and_rounded(void **state)
{
    fixture *fix = *state;
    static const struct {
        uint64_t bytes;
        bool huge;
        uint64_t booked;
        uint64_t align;
    } cases[] = {
        {0, false, 4096, 4096},
        {1, false, 4096, 4096},
        {4097, true, 8192, 4096},
        {2 << 20, true, 2 << 20, 2 << 20},
        {(5 << 20) + 1, true, (5 << 20) + 4096, 2 << 20},
        {5 << 20, false, 5 << 20, 4096},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char *p =
            base_pages_alloc(fix->env, BASE_TAG_WEIGHTS_RESIDENT, cases[i].bytes, cases[i].huge, &fix->err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % cases[i].align, 0);
        assert_int_equal(booked(fix->env), cases[i].booked);
        for (uint64_t k = 0; k < cases[i].booked; k += 509) {
            assert_int_equal(p[k], 0);
            p[k] = 1;
        }
        p[cases[i].booked - 1] = 1;
        base_pages_free(fix->env, BASE_TAG_WEIGHTS_RESIDENT, p, cases[i].bytes);
        assert_int_equal(booked(fix->env), 0);
    }
    base_pages_free(fix->env, BASE_TAG_KV, NULL, 4096);
    assert_int_equal(booked(fix->env), 0);
}

static void present_pages_are_there(void **state)
{
    fixture *fix = *state;
    static const uint64_t sizes[] = {1, 4096, (2 << 20) - 1, (5 << 20) + 1};
    static unsigned char there[(6 << 20) / 4096];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = (size_t)(sizes[i] + 4095) / 4096;
        unsigned char *p = base_pages_alloc_present(fix->env, BASE_TAG_KV, sizes[i], &fix->err);
        assert_non_null(p);
        assert_int_equal(booked(fix->env), n * 4096);
        assert_int_equal(mincore(p, n * 4096, there), 0);
        for (size_t k = 0; k < n; k++) assert_true(there[k] & 1 && p[k * 4096] == 0);
        if (sizes[i] >= 2 << 20) assert_int_equal((uintptr_t)p % (2 << 20), 0);
        base_pages_free(fix->env, BASE_TAG_KV, p, sizes[i]);
        assert_int_equal(booked(fix->env), 0);
    }
    assert_null(base_pages_alloc_present(fix->env, BASE_TAG_KV, UINT64_C(1) << 61, &fix->err));
    assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
}

static void strings_are_copied(void **state)
{
    fixture *fix = *state;
    char *a = base_strdup(fix->env, BASE_TAG_RUNTIME, "abc", &fix->err);
    char *b = base_strndup(fix->env, BASE_TAG_RUNTIME, "abcdef", 2, &fix->err);
    char *c = base_strndup(fix->env, BASE_TAG_RUNTIME, "ab", 10, &fix->err);
    assert_string_equal(a, "abc");
    assert_string_equal(b, "ab");
    assert_string_equal(c, "ab");
    base_free(fix->env, a);
    base_free(fix->env, b);
    base_free(fix->env, c);
}

static void every_tag_has_a_text(void **state)
{
    (void)state;
    assert_string_equal(base_tag_text(BASE_TAG_WEIGHTS_SLOTS), "weights.slots");
    assert_string_equal(base_tag_text(BASE_TAG_PROCESS), "process");
    assert_string_equal(base_tag_text(BASE_TAG_COUNT), "unknown");
}

/* A little of everything; must free what it took when something fails. */
static weir_status use_everything(base_env *env, weir_error *err)
{
    weir_status status = WEIR_OK;
    base_buf buf;
    base_buf_init(&buf, env, BASE_TAG_RUNTIME);
    char *text = NULL, *array = NULL;
    void *pages = NULL, *huge = NULL;
    text = base_strdup(env, BASE_TAG_RUNTIME, "text", err);
    if (text == NULL) goto fail;
    array = base_alloc_array(env, BASE_TAG_KV, 10, 20, err);
    if (array == NULL) goto fail;
    char *bigger = base_realloc(env, BASE_TAG_KV, array, 5000, err);
    if (bigger == NULL) goto fail;
    array = bigger;
    pages = base_pages_alloc(env, BASE_TAG_IO, 10000, false, err);
    if (pages == NULL) goto fail;
    huge = base_pages_alloc(env, BASE_TAG_IO, 3 << 20, true, err);
    if (huge == NULL) goto fail;
    status = base_buf_append(&buf, "abc", 3, err);
    if (status != WEIR_OK) goto fail;
    status = base_buf_printf(&buf, err, "%0200d", 1);
    goto done;

fail:
    if (status == WEIR_OK) status = err->code;
done:
    base_buf_finish(&buf);
    base_pages_free(env, BASE_TAG_IO, huge, 3 << 20);
    base_pages_free(env, BASE_TAG_IO, pages, 10000);
    base_free(env, array);
    base_free(env, text);
    return status;
}

static void each_allocation_may_fail_once_and_for_good(void **state)
{
    fixture *fix = *state;
    assert_status(base_fault_count_on(fix->env, &fix->err), WEIR_OK);
    assert_status(use_everything(fix->env, &fix->err), WEIR_OK);
    uint64_t sites = base_fault_count(fix->env, BASE_FAULT_HOST_ALLOC);
    assert_int_equal(sites, 7);
    base_fault_clear(fix->env);
    for (uint64_t i = 0; i < sites; i++) {
        for (int for_good = 0; for_good <= 1; for_good++) {
            base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, i, for_good != 0);
            assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
            assert_int_equal(use_everything(fix->env, &fix->err), WEIR_ERR_OUT_OF_MEMORY);
            assert_int_equal(fix->err.code, WEIR_ERR_OUT_OF_MEMORY);
            assert_int_equal(booked(fix->env), 0);
            base_fault_clear(fix->env);
            assert_status(use_everything(fix->env, &fix->err), WEIR_OK);
        }
    }
}

#define N_THREADS 4

typedef struct hammer {
    base_env *env;
    uint32_t index;
    uint32_t refused;
    bool damaged;
} hammer;

/* Allocates, writes, checks and frees at random, below a limit that the four together meet. */
static void *hammer_main(void *arg)
{
    hammer *h = arg;
    unsigned char *held[16] = {0};
    size_t sizes[16] = {0};
    base_rng rng;
    base_rng_seed(&rng, 99, h->index);
    for (int i = 0; i < 4000; i++) {
        uint32_t slot = base_rng_u32(&rng) % 16;
        if (held[slot] != NULL) {
            for (size_t k = 0; k < sizes[slot]; k++) h->damaged |= held[slot][k] != (h->index + slot) % 251;
            base_free(h->env, held[slot]);
        }
        sizes[slot] = base_rng_u32(&rng) % 3000;
        held[slot] = base_alloc(h->env, (base_tag)(slot % BASE_TAG_COUNT), sizes[slot], NULL);
        if (held[slot] == NULL)
            h->refused++;
        else
            memset(held[slot], (int)((h->index + slot) % 251), sizes[slot]);
    }
    for (int i = 0; i < 16; i++) base_free(h->env, held[i]);
    return NULL;
}

static void ledger_is_exact_under_threads(void **state)
{
    fixture *fix = *state;
    assert_status(base_ledger_set_limit(fix->env, 70000, &fix->err), WEIR_OK);
    pthread_t threads[N_THREADS];
    hammer hammers[N_THREADS];
    uint32_t refused = 0;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        hammers[i] = (hammer){.env = fix->env, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_main, &hammers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(hammers[i].damaged);
        refused += hammers[i].refused;
    }
    base_ledger_view v;
    base_ledger_read(fix->env, &v);
    assert_int_equal(v.bytes, 0);
    for (int t = 0; t < BASE_TAG_COUNT; t++) {
        assert_int_equal(v.tag_bytes[t], 0);
        assert_true(v.tag_peak_bytes[t] > 0 && v.tag_peak_bytes[t] <= v.peak_bytes);
    }
    assert_true(v.peak_bytes <= 70000);
    assert_true(v.peak_bytes > 20000);
    print_message("refused %u of %d\n", refused, N_THREADS * 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocks_are_zeroed_aligned_and_counted),
        TEST(peaks_are_kept_by_tag),
        TEST(limit_holds_to_the_byte),
        TEST(realloc_moves_bytes_and_tag),
        TEST(realloc_keeps_the_block_when_the_system_refuses),
        TEST(impossible_sizes_are_refused),
        TEST(what_the_system_refuses_is_out_of_memory),
        TEST(pages_are_aligned_zeroed_and_rounded),
        TEST(present_pages_are_there),
        TEST(strings_are_copied),
        cmocka_unit_test(every_tag_has_a_text),
        TEST(each_allocation_may_fail_once_and_for_good),
        TEST(ledger_is_exact_under_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
