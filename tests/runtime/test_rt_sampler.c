/* The sampler on constructed logits. */
#include "rt_test.h"

typedef struct sampling {
    base_env *env;
    rt_sampler *sampler;
    rt_draw draw;
    weir_sampling o;
    weir_error err;
} sampling;

#define N_VOCAB 1000

static int setup(void **state)
{
    sampling *s = calloc(1, sizeof *s);
    if (base_env_create(&s->env, &s->err) != WEIR_OK) return -1;
    if (rt_sampler_create(s->env, N_VOCAB, &s->sampler, &s->err) != WEIR_OK) return -1;
    weir_sampling_init(&s->o);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    sampling *s = *state;
    rt_sampler_destroy(s->env, s->sampler);
    base_ledger_view v;
    base_ledger_read(s->env, &v);
    assert_int_equal(v.bytes, 0);
    base_env_destroy(s->env);
    free(s);
    return 0;
}

static int32_t pick(sampling *s, const float *logits, const int32_t *history, size_t n)
{
    int32_t token = -1;
    assert_ok(s, rt_sampler_pick(s->sampler, &s->draw, logits, history, n, &token, &s->err));
    return token;
}

static void begin(sampling *s)
{
    assert_ok(s, rt_draw_begin(&s->draw, &s->o, &s->err));
}

static void flat(float *logits, float value)
{
    for (int i = 0; i < N_VOCAB; i++) logits[i] = value;
}

static void test_greedy_takes_lowest_of_equals(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    flat(logits, -1.0F);
    logits[17] = logits[400] = logits[999] = 3.0F;
    begin(s);
    assert_int_equal(pick(s, logits, NULL, 0), 17);
    flat(logits, 0.0F);
    assert_int_equal(pick(s, logits, NULL, 0), 0);
    logits[999] = 1e-30F;
    assert_int_equal(pick(s, logits, NULL, 0), 999);
}

static void test_penalty(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    flat(logits, -5.0F);
    logits[5] = 2.0F;
    logits[6] = 1.5F;
    const int32_t history[] = {6, 5, 5, 5, 5};
    begin(s);
    assert_int_equal(pick(s, logits, history, 5), 5);
    s->o.repeat_penalty = 1.5F;
    s->o.repeat_last = 4;
    begin(s);
    /* 2 / 1.5 = 1.33, once though it is there four times; 6 lies behind what is looked at */
    assert_int_equal(pick(s, logits, history, 5), 6);
    s->o.repeat_penalty = 1.3F;
    begin(s);
    assert_int_equal(pick(s, logits, history, 5), 5);
    s->o.repeat_last = 5;
    begin(s);
    assert_int_equal(pick(s, logits, history, 5), 5); /* 2/1.3 against 1.5/1.3 */
    s->o.repeat_last = 0;
    s->o.repeat_penalty = 100.0F;
    begin(s);
    assert_int_equal(pick(s, logits, history, 5), 5);
    /* negative logits move away from zero */
    flat(logits, -5.0F);
    logits[5] = -1.0F;
    logits[6] = -2.0F;
    s->o.repeat_last = 64;
    s->o.repeat_penalty = 3.0F;
    begin(s);
    assert_int_equal(pick(s, logits, history + 1, 4), 6);
}

/* Draws often and counts how often each of the first few tokens comes. */
static void count(sampling *s, const float *logits, int draws, int counts[N_VOCAB])
{
    memset(counts, 0, N_VOCAB * sizeof *counts);
    begin(s);
    for (int i = 0; i < draws; i++) counts[pick(s, logits, NULL, 0)]++;
}

static void test_draws_follow_weights(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int counts[N_VOCAB];
    flat(logits, -INFINITY);
    logits[10] = 0.0F;
    logits[500] = logf(2.0F);
    logits[700] = logf(5.0F);
    s->o.temperature = 1.0F;
    s->o.seed = 42;
    count(s, logits, 8000, counts);
    assert_int_equal(counts[10] + counts[500] + counts[700], 8000);
    assert_in_range(counts[10], 850, 1150);
    assert_in_range(counts[500], 1800, 2200);
    assert_in_range(counts[700], 4750, 5250);
    /* half the temperature squares the weights: 1, 4, 25 */
    s->o.temperature = 0.5F;
    count(s, logits, 8000, counts);
    assert_in_range(counts[10], 200, 340);
    assert_in_range(counts[500], 950, 1200);
    assert_in_range(counts[700], 6450, 6900);
    /* a temperature near zero is greedy and not a division by zero */
    s->o.temperature = 1e-40F;
    count(s, logits, 100, counts);
    assert_int_equal(counts[700], 100);
}

static void test_seeds(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int32_t first[50];
    int same = 0;
    flat(logits, 0.0F);
    s->o.temperature = 1.0F;
    s->o.seed = 1;
    begin(s);
    for (int i = 0; i < 50; i++) first[i] = pick(s, logits, NULL, 0);
    begin(s);
    for (int i = 0; i < 50; i++) assert_int_equal(pick(s, logits, NULL, 0), first[i]);
    s->o.seed = 2;
    begin(s);
    for (int i = 0; i < 50; i++) same += pick(s, logits, NULL, 0) == first[i];
    assert_in_range(same, 0, 5);
}

static void test_top_k(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int counts[N_VOCAB];
    flat(logits, 0.0F);
    for (int i = 0; i < 5; i++) logits[100 * i + 3] = 1.0F;
    s->o.temperature = 1.0F;
    s->o.top_k = 5;
    count(s, logits, 2000, counts);
    for (int i = 0; i < 5; i++) assert_in_range(counts[100 * i + 3], 300, 500);
    /* among equals the lowest ids stay */
    s->o.top_k = 7;
    count(s, logits, 4000, counts);
    assert_true(counts[0] > 0 && counts[1] > 0);
    assert_int_equal(counts[2], 0);
    s->o.top_k = 1;
    count(s, logits, 100, counts);
    assert_int_equal(counts[3], 100);
    s->o.top_k = N_VOCAB * 10; /* more than there are: no cut */
    count(s, logits, 2000, counts);
    assert_true(counts[3] < 50);
}

static void test_top_p_and_min_p(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int counts[N_VOCAB];
    flat(logits, -30.0F);
    logits[900] = logf(0.5F);
    logits[20] = logf(0.3F);
    logits[30] = logf(0.15F);
    logits[40] = logf(0.05F);
    s->o.temperature = 1.0F;
    s->o.top_p = 0.75F; /* 0.5, 0.8: two */
    count(s, logits, 2000, counts);
    assert_int_equal(counts[900] + counts[20], 2000);
    assert_in_range(counts[20], 650, 850);
    s->o.top_p = 0.0F; /* the best always stays */
    count(s, logits, 100, counts);
    assert_int_equal(counts[900], 100);
    s->o.top_p = 1.0F;
    s->o.min_p = 0.25F; /* of 0.5: 0.125 and more */
    count(s, logits, 2000, counts);
    assert_int_equal(counts[900] + counts[20] + counts[30], 2000);
    assert_true(counts[30] > 150);
    /* top-p is a share of what top-k left: 0.5 / 0.8 = 0.625 */
    s->o.min_p = 0.0F;
    s->o.top_k = 2;
    s->o.top_p = 0.6F;
    count(s, logits, 100, counts);
    assert_int_equal(counts[900], 100);
}

/* More candidates than are sorted at first, so that the sorting must go on. */
static void test_top_p_of_a_flat_distribution(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int counts[N_VOCAB], n = 0;
    for (int i = 0; i < N_VOCAB; i++) logits[i] = (float)i * 1e-5F;
    s->o.temperature = 1.0F;
    s->o.top_p = 0.5F;
    count(s, logits, 20000, counts);
    for (int i = 0; i < N_VOCAB; i++) n += counts[i] != 0;
    assert_in_range(n, 470, 505); /* the upper half */
    for (int i = 0; i < 490; i++) assert_int_equal(counts[i], 0);
}

static void test_bad_logits(void **state)
{
    sampling *s = *state;
    float logits[N_VOCAB];
    int32_t token, history[12] = {0};
    flat(logits, 1.0F);
    logits[77] = NAN;
    begin(s);
    assert_int_equal(rt_sampler_pick(s->sampler, &s->draw, logits, history, 12, &token, &s->err),
                     WEIR_ERR_FORMAT);
    assert_mentions(s->err.message, "position 12");
    assert_mentions(s->err.message, "77");
    logits[77] = INFINITY;
    assert_int_equal(rt_sampler_pick(s->sampler, &s->draw, logits, NULL, 0, &token, &s->err),
                     WEIR_ERR_FORMAT);
    flat(logits, -INFINITY);
    assert_int_equal(rt_sampler_pick(s->sampler, &s->draw, logits, NULL, 0, &token, &s->err),
                     WEIR_ERR_FORMAT);
    flat(logits, -INFINITY);
    logits[9] = -1e30F;
    assert_int_equal(pick(s, logits, NULL, 0), 9);
}

static void test_bad_options(void **state)
{
    sampling *s = *state;
    const struct {
        float *value;
        float bad;
        const char *name;
    } cases[] = {
        {&s->o.temperature, -0.1F, "temperature"},
        {&s->o.temperature, NAN, "temperature"},
        {&s->o.top_p, 1.1F, "top-p"},
        {&s->o.min_p, -1.0F, "min-p"},
        {&s->o.repeat_penalty, 0.0F, "penalty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float good = *cases[i].value;
        *cases[i].value = cases[i].bad;
        assert_int_equal(rt_draw_begin(&s->draw, &s->o, &s->err), WEIR_ERR_INVALID_ARGUMENT);
        assert_mentions(s->err.message, cases[i].name);
        *cases[i].value = good;
    }
    s->o.struct_size = 0;
    assert_int_equal(rt_draw_begin(&s->draw, &s->o, &s->err), WEIR_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_greedy_takes_lowest_of_equals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_penalty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_draws_follow_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_seeds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_top_k, setup, teardown),
        cmocka_unit_test_setup_teardown(test_top_p_and_min_p, setup, teardown),
        cmocka_unit_test_setup_teardown(test_top_p_of_a_flat_distribution, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_logits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_options, setup, teardown),
    };
    return cmocka_run_group_tests_name("rt_sampler", tests, NULL, NULL);
}
