/* Real models: sensible answers, and the same bits for every placement, chunk, batch, thread count and
 * instruction set. Skipped where the models are absent. */
#include "lm_test.h"

#define N_NEW 6

typedef struct real_model {
    const char *file;
    int32_t prompt[16];
    uint32_t n_prompt;
    int32_t likely; /* " Paris" must be among the first three */
} real_model;

/* "The capital of France is", twice as long so that chunks differ; ids of the models' own vocabularies. */
static const real_model smollm2 = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                   {504, 3575, 282, 4649, 314, 7042, 30, 504, 3575, 282, 4649, 314},
                                   12,
                                   7042};
static const real_model gemma3 = {"gemma3-270m-q4_k_m.gguf",
                                  {2, 818, 5279, 529, 7001, 563, 9079, 236761, 818, 5279, 529, 7001, 563},
                                  13,
                                  9079};

/* The prompt in pieces, then N_NEW tokens one by one: hash of all logits that were asked for. */
static uint64_t answer(rig *r, const real_model *m, uint32_t sequence, uint32_t chunk)
{
    const float *logits = rig_prompt(r, sequence, m->prompt, m->n_prompt, chunk);
    uint64_t h = hash_floats(HASH_START, logits, r->n_vocab);
    int32_t position = (int32_t)m->n_prompt;

    for (int i = 0; i < N_NEW; i++) {
        int32_t token = arg_max(logits, r->n_vocab);

        logits = rig_pass(r, sequence, &token, 1, position++, true);
        h = hash_floats(h, logits, r->n_vocab);
    }
    return h;
}

static uint64_t answer_with(const rig_options *o, const real_model *m, uint32_t chunk)
{
    rig r;
    uint64_t h;

    rig_open(&r, o);
    h = answer(&r, m, 0, chunk);
    rig_close(&r);
    return h;
}

static void check_sensible(rig *r, const real_model *m)
{
    const float *logits = rig_prompt(r, 0, m->prompt, m->n_prompt, m->n_prompt);
    uint32_t better = 0;

    for (uint32_t i = 0; i < r->n_vocab; i++) better += logits[i] > logits[m->likely];
    assert_true(better < 3);
}

/* Three sequences in one pass, each row with an output; sequence 0 must answer as it does alone. */
static void check_batch(rig *r, const real_model *m, uint64_t alone)
{
    int32_t position = (int32_t)m->n_prompt, tokens[3], positions[3];
    uint32_t sequences[3] = {2, 0, 1}, rows[3] = {0, 1, 2};
    graph_batch b = {.n_rows = 3,
                     .token = tokens,
                     .position = positions,
                     .sequence = sequences,
                     .kv = r->by_layer,
                     .n_outputs = 3,
                     .output_rows = rows};
    uint64_t h;
    const float *logits;

    rig_prompt(r, 1, m->prompt, 7, 7);
    rig_prompt(r, 2, m->prompt, 3, 2);
    logits = rig_prompt(r, 0, m->prompt, m->n_prompt, 5);
    h = hash_floats(HASH_START, logits, r->n_vocab);
    for (int i = 0; i < N_NEW; i++) {
        tokens[0] = 100 + i;
        tokens[1] = arg_max(logits, r->n_vocab);
        tokens[2] = 200 + i;
        positions[0] = 3 + i;
        positions[1] = position++;
        positions[2] = 7 + i;
        assert_ok(graph_run(r->program, &b, &r->err), r->err);
        logits = graph_result(r->program, 1);
        h = hash_floats(h, logits, r->n_vocab);
    }
    assert_true(h == alone);
}

static void check_model(const real_model *m)
{
    char path[512];
    rig_options o = rig_defaults(model_path(m->file, path, sizeof(path)));
    uint64_t alone;
    rig r;

    if (o.path == NULL) skip();
    o.n_sequences = 3;
    rig_open(&r, &o);
    check_sensible(&r, m);
    alone = answer(&r, m, 0, m->n_prompt);
    assert_true(answer(&r, m, 0, 1) == alone);
    assert_true(answer(&r, m, 1, 7) == alone);
    check_batch(&r, m, alone);
    rig_close(&r);

    o.n_sequences = 1;
    o.smallest = true;
    assert_true(answer_with(&o, m, m->n_prompt) == alone);
    o.n_threads = 1;
    o.alias = false;
    assert_true(answer_with(&o, m, 4) == alone);
    o.n_threads = 2;
    o.smallest = false;
    o.cpu = "ref";
    assert_true(answer_with(&o, m, m->n_prompt) == alone);
    o.cpu = "auto";
    o.kv_dtype = BASE_F32;
    assert_true(answer_with(&o, m, m->n_prompt) != alone); /* the hash sees what changes numbers */
}

static void smollm2_model(void **state)
{
    (void)state;
    check_model(&smollm2);
}

static void gemma3_model(void **state)
{
    (void)state;
    check_model(&gemma3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_model),
        cmocka_unit_test(gemma3_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
