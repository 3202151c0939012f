/* Rehearsals: the passes of a plan, run for a moment before anything is loaded. Program, caches, ring, queue
 * and what is read from the file are those of the real run; weights that stay are stand-ins (mem_stand_in.c).
 * So whatever costs time in a pass is in what is measured: every operation with its real shape, reads beside
 * computing, what a read costs the processor, rows of tables, waiting.
 *
 *   decode     | warm |  window  |          |         |  window  |          |         |  window  | ...
 *   sessions   |      |          |  window  |         |          |  window  |         |
 *   prompts    |      |          |          |  window |          |          |  window |
 *
 * The kinds of pass take turns, so that what slows the machine for a while slows all of them; how the windows
 * differ is the range of a prediction. A pass that takes too long is cut, and what it had done counts. */
#include "rt_internal.h"

#include <string.h>

/* Beyond what a processor's share of its last cache holds. */
#define STAND_IN_BYTES (UINT64_C(512) << 20)
/* Small numbers in all types; as twice the same byte would be as F32 or BF16, too small for normal products.
 */
#define PATTERN           UINT16_C(0x1111)
#define PATTERN_FLOAT     UINT16_C(0x3f80)
#define CACHES_MOST       (UINT64_C(512) << 20)
#define TABLE_ROWS        4 /* of tables on a server */
#define WINDOW_SECONDS    0.08
#define KIND_SECONDS      0.64 /* of each kind, in three windows at least, */
#define KIND_SECONDS_MOST 1.5  /* or so long */
#define PASS_SECONDS_MOST 2.0
#define WATCH_SECONDS     0.004
#define WINDOWS_MAX       12

typedef struct kind {
    uint32_t n_rows;
    bool prompt;      /* rows of one sequence; else one row of each of so many */
    int32_t position; /* of the first row */
    bool outputs;
    bool slow; /* a pass takes seconds: two are timed, as far as they come */
    uint32_t n_windows;
    double seconds[WINDOWS_MAX], wait[WINDOWS_MAX]; /* of a pass */
    double total;
    double pass_seconds, pass_wait; /* of the last pass that was watched, reckoned where it was cut */
} kind;

typedef struct rehearsal {
    weir_model *m;
    dev_device *device;
    const rt_options *options;
    const rt_plan *plan;
    mem_component *component;
    graph_program *program;
    graph_info info;                     /* its */
    uint32_t ctx_tokens, n_kv, n_tokens; /* tokens: that there are rows for */
    lm_kv **kv;                          /* n_kv */
    rt_rows rows;
    uint32_t next_token;
    kind kinds[RT_N_PASSES];
} rehearsal;

static void finish(rehearsal *r)
{
    base_env *env = r->m->env;
    mem_unplace(r->component);
    graph_program_destroy(r->program);
    for (uint32_t i = 0; r->kv != NULL && i < r->n_kv; i++) lm_kv_destroy(r->kv[i]);
    base_free(env, r->kv);
    rt_rows_free(env, &r->rows);
}

/* ---- preparing ---- */

static bool reads_files(const weir_model *m)
{
    weir_error none;
    return rt_model_is_here(m, &none) == WEIR_OK;
}

/* Whole, however they grow in the run: what is rehearsed are passes, not growing. */
static lm_kv_shape kv_shape(const rehearsal *r)
{
    lm_kv_shape shape = r->plan->kv;
    shape.growth = LM_KV_FULL;
    shape.context_tokens = r->ctx_tokens;
    return shape;
}

static uint64_t cache_bytes(const rehearsal *r)
{
    lm_kv_shape shape = kv_shape(r);
    return rt_mul(lm_kv_bytes(r->m->lm, r->device, &shape, r->ctx_tokens), r->plan->max_batch);
}

/* Bytes of the stand-in, which the largest weight must fit, and whether all has room: a plan can be one for a
 * larger machine, and its rehearsal must not be what ends the process here. */
static weir_status check_room(const rehearsal *r, const mem_plan *mem, uint64_t *stand_in_bytes,
                              weir_error *err)
{
    base_memory_limits limits;
    uint64_t there, reserve, largest = 0;
    mem_weight_info w;
    char a[32], b[32];
    weir_status status = rt_limits_read(r->m->context, &limits, err);
    if (status == WEIR_OK) status = rt_default_budget(r->m->context, &limits, &there, &reserve, err);
    if (status != WEIR_OK) return status;
    *stand_in_bytes = base_max(base_min(base_min(*stand_in_bytes, STAND_IN_BYTES), there / 2), 1);
    for (mem_weight_id i = 0; mem_component_weight(r->component, i, &w); i++)
        if (w.streamable) largest = base_max(largest, rt_mul(w.n_rows, w.row_bytes));
    uint64_t need = base_min(base_max(*stand_in_bytes, largest), mem->resident_bytes);
    need = rt_add(need, rt_add(mem->fixed_bytes, rt_add(mem->ring_bytes, cache_bytes(r))));
    need = rt_add(need, r->plan->tag_bytes[BASE_TAG_ACTIVATIONS]);
    need = rt_add(need, r->plan->tag_bytes[BASE_TAG_WORKSPACE]);
    uint64_t left = base_min(limits.available_bytes, limits.cgroup_free_bytes);
    if (need <= left) return WEIR_OK;
    return base_fail(
        err, WEIR_ERR_OUT_OF_MEMORY,
        "this plan cannot be rehearsed here: even without most weights that stay it takes %s, and "
        "%s are free",
        base_size_text(need, a), base_size_text(left, b));
}

static weir_status place(rehearsal *r, const mem_plan *mem, uint64_t stand_in_bytes, weir_error *err)
{
    weir_status status = check_room(r, mem, &stand_in_bytes, err);
    if (status != WEIR_OK) return status;
    uint32_t type = r->m->main_dtype;
    mem_packer packer = rt_packer(r->device);
    mem_place_options o = {
        .aio = r->options->aio,
        .packer = r->options->pack && !r->plan->map ? &packer : NULL,
        .stand_in_bytes = stand_in_bytes,
        .stand_in_pattern = type == BASE_F32 || type == BASE_BF16 ? PATTERN_FLOAT : PATTERN,
        .stand_in_rows = reads_files(r->m) ? 0 : TABLE_ROWS,
    };
    r->n_tokens = o.stand_in_rows != 0 ? o.stand_in_rows : lm_model_hparams(r->m->lm)->n_vocab;
    return mem_place(r->component, mem, &o, err);
}

/* Caches of as many tokens as are run through, filled, so that attention reads memory and not one page of
 * zeroes. */
static weir_status create_caches(rehearsal *r, weir_error *err)
{
    base_env *env = r->m->env;
    const lm_hparams *h = lm_model_hparams(r->m->lm);
    uint32_t n = r->plan->max_batch;
    lm_kv_shape shape = kv_shape(r);
    r->kv = base_alloc_array(env, BASE_TAG_RUNTIME, n, sizeof(lm_kv *), err);
    if (r->kv == NULL) return err->code;
    for (; r->n_kv < n; r->n_kv++) {
        weir_status status = lm_kv_create(env, r->m->lm, r->device, NULL, &shape, &r->kv[r->n_kv], err);
        if (status != WEIR_OK) return status;
        for (uint32_t l = 0; l < h->n_layers; l++) {
            const dev_kv *kv = lm_kv_layer(r->kv[r->n_kv], l);
            uint64_t k_bytes, v_bytes;
            r->device->table->kv_bytes(r->device, kv->dtype, kv->capacity, h->n_kv_heads, h->head_dim,
                                       &k_bytes, &v_bytes);
            memset(kv->k, 0x11, k_bytes);
            memset(kv->v, 0x11, v_bytes);
            r->rows.batch_kv[(size_t)l * n + r->n_kv] = *kv;
            r->rows.layer_kv[l] = r->rows.batch_kv + (size_t)l * n;
        }
    }
    return WEIR_OK;
}

static weir_status allocate(rehearsal *r, weir_error *err)
{
    base_env *env = r->m->env;
    const lm_hparams *h = lm_model_hparams(r->m->lm);
    uint32_t rows = r->plan->max_rows;
    graph_options o = {.max_rows = rows, .max_outputs = r->plan->max_outputs, .alias = r->options->alias};
    weir_status status = lm_program_create(env, r->m->lm, r->device, &o, &r->program, err);
    if (status == WEIR_OK) {
        graph_program_info(r->program, &r->info);
        status = graph_reserve(r->program, (uint32_t)base_align_up(r->ctx_tokens, 16), h->head_dim, err);
    }
    if (status == WEIR_OK) status = rt_rows_create(env, r->plan, h->n_layers, &r->rows, err);
    return status == WEIR_OK ? create_caches(r, err) : status;
}

uint32_t rt_rehearsed_prompt(const rt_plan *plan)
{
    uint32_t chunk = (uint32_t)base_max(plan->view.prefill_chunk, 1);
    uint32_t text = (uint32_t)base_min(RT_TEXT_TOKENS, plan->view.ctx_tokens);
    return (uint32_t)base_max(text / chunk, 1) * chunk;
}

/* What is run: a token of one session, one of each, and a prompt's passes, of which the last has outputs. */
static void choose_kinds(rehearsal *r)
{
    const weir_plan *v = &r->plan->view;
    uint32_t chunk = v->prefill_chunk, prompt = rt_rehearsed_prompt(r->plan);
    uint32_t at = (uint32_t)base_min(RT_TEXT_TOKENS + RT_ANSWER_TOKENS / 2, v->ctx_tokens - 1);
    r->kinds[RT_PASS_DECODE] = (kind){.n_rows = 1, .position = (int32_t)at, .outputs = true};
    if (r->plan->max_batch > 1)
        r->kinds[RT_PASS_SESSIONS] =
            (kind){.n_rows = r->plan->max_batch, .position = (int32_t)at, .outputs = true};
    if (chunk > 1 && prompt > chunk)
        r->kinds[RT_PASS_BODY] =
            (kind){.n_rows = chunk, .prompt = true, .position = (int32_t)((prompt / chunk - 2) / 2 * chunk)};
    if (chunk > 1)
        r->kinds[RT_PASS_END] =
            (kind){.n_rows = chunk, .prompt = true, .position = (int32_t)(prompt - chunk), .outputs = true};
    /* The whole context, since where a cache's rows lie is felt; unless filling it would take long. */
    r->ctx_tokens = v->ctx_tokens;
    if (cache_bytes(r) > CACHES_MOST)
        r->ctx_tokens = (uint32_t)base_min(base_align_up(base_max(at + 1, prompt), 16), v->ctx_tokens);
}

/* ---- running ---- */

/* Ends a pass that takes too long, or that the caller wants no more, from a thread of its own. */
typedef struct watch {
    base_env *env;
    const atomic_bool *caller;
    double until;
    atomic_bool done, cancel;
} watch;

static void keep_watch(void *arg, void *task)
{
    watch *w = arg;
    (void)task;
    while (!atomic_load(&w->done)) {
        if (base_now(w->env) > w->until || atomic_load(w->caller)) {
            atomic_store(&w->cancel, true);
            return;
        }
        base_sleep(WATCH_SECONDS);
    }
}

static weir_status cancelled(weir_error *err)
{
    return base_fail(err, WEIR_ERR_CANCELLED, "predicting was cancelled by the caller");
}

static weir_status run_pass(rehearsal *r, const kind *k, atomic_bool *cancel, weir_error *err)
{
    uint32_t n_outputs = !k->outputs ? 0 : k->prompt ? 1 : k->n_rows;
    for (uint32_t i = 0; i < k->n_rows; i++) {
        r->rows.token[i] = (int32_t)((r->next_token++ * UINT64_C(7919) + 13) % r->n_tokens);
        r->rows.position[i] = k->position + (k->prompt ? (int32_t)i : 0);
        r->rows.sequence[i] = k->prompt ? 0 : i;
        r->rows.output_row[i] = k->prompt ? k->n_rows - 1 : i;
    }
    return rt_rows_run(r->m->context, &r->rows, r->program, r->options, k->n_rows, n_outputs, cancel, err);
}

static uint64_t weights_done(const rehearsal *r)
{
    graph_phase_profile phase;
    uint64_t bytes = 0;
    for (uint32_t i = 0; graph_profile_phase(r->program, i, &phase); i++) bytes += phase.weight_bytes;
    return bytes;
}

static double waited(const rehearsal *r)
{
    mem_stats s;
    mem_component_stats(r->component, &s);
    return s.wait_seconds;
}

static void note(kind *k, double seconds, double wait)
{
    k->seconds[k->n_windows] = seconds;
    k->wait[k->n_windows++] = wait;
}

double rt_whole_pass(double seconds, uint64_t done, uint64_t inner, uint64_t all, bool prompt, double one)
{
    uint64_t wanted = prompt ? inner : all, there = base_min(done, wanted);
    if (there == 0) return seconds;
    double whole = seconds * (double)wanted / (double)there;
    if (prompt) whole += one * (double)(all - base_min(base_max(done, inner), all)) / (double)all;
    return whole;
}

/* What a pass that was cut tells of a whole one. */
static void note_part(const rehearsal *r, kind *k, uint64_t done)
{
    const kind *one = &r->kinds[RT_PASS_DECODE];
    uint64_t inner = r->info.inner_bytes, all = r->info.weight_bytes;
    bool head = k->prompt && k->outputs;
    k->pass_seconds =
        rt_whole_pass(k->pass_seconds, done, inner, all, k->prompt, head ? one->pass_seconds : 0);
    k->pass_wait = rt_whole_pass(k->pass_wait, done, inner, all, k->prompt, head ? one->pass_wait : 0);
}

/* A pass that ends after PASS_SECONDS_MOST at the latest. */
static weir_status run_watched(rehearsal *r, kind *k, bool *cut, weir_error *err)
{
    watch w = {.env = r->m->env, .caller = &r->m->cancel, .until = base_now(r->m->env) + PASS_SECONDS_MOST};
    base_lane *lane;
    uint8_t task = 0;
    weir_status status =
        base_lane_create(r->m->env, "weir-watch", sizeof task, 1, keep_watch, &w, &lane, err);
    if (status != WEIR_OK) return status;
    base_lane_push(lane, &task);
    graph_profile_on(r->program, true);
    uint64_t done = weights_done(r);
    double start = base_now(r->m->env), wait = waited(r);
    weir_error why = {0};
    status = run_pass(r, k, &w.cancel, &why);
    k->pass_seconds = base_now(r->m->env) - start;
    k->pass_wait = waited(r) - wait;
    done = weights_done(r) - done;
    graph_profile_on(r->program, false);
    atomic_store(&w.done, true);
    base_lane_destroy(lane);
    if (atomic_load(&r->m->cancel)) return cancelled(err);
    *cut = status == WEIR_ERR_CANCELLED && done > 0;
    if (status == WEIR_ERR_CANCELLED && !*cut)
        return base_fail(err, status, "a pass is too slow to be rehearsed: no weight came in %.0f s",
                         PASS_SECONDS_MOST);
    if (status != WEIR_OK && !*cut) {
        *err = why;
        return status;
    }
    if (*cut) note_part(r, k, done);
    return WEIR_OK;
}

/* The first pass of a kind touches its memory for the first time and does not count, unless there is no time
 * for many. */
static weir_status warm_up(rehearsal *r, kind *k, weir_error *err)
{
    bool cut;
    weir_status status = run_watched(r, k, &cut, err);
    if (status != WEIR_OK) return status;
    k->slow = cut || k->pass_seconds >= KIND_SECONDS_MOST;
    if (k->slow) note(k, k->pass_seconds, k->pass_wait);
    return WEIR_OK;
}

static bool has_enough(const kind *k)
{
    if (k->n_rows == 0 || k->slow) return k->n_rows == 0 || k->n_windows == 2;
    return k->n_windows == WINDOWS_MAX || k->total >= KIND_SECONDS_MOST ||
           (k->n_windows >= 3 && k->total >= KIND_SECONDS);
}

static weir_status run_window(rehearsal *r, kind *k, weir_error *err)
{
    double start = base_now(r->m->env), wait = waited(r), seconds = 0;
    uint32_t n = 0;
    bool cut;
    if (k->slow) {
        weir_status status = run_watched(r, k, &cut, err);
        if (status == WEIR_OK) note(k, k->pass_seconds, k->pass_wait);
        return status;
    }
    for (; seconds < WINDOW_SECONDS; n++) {
        weir_status status = run_pass(r, k, &r->m->cancel, err);
        if (status == WEIR_ERR_CANCELLED) return cancelled(err);
        if (status != WEIR_OK) return status;
        seconds = base_now(r->m->env) - start;
    }
    k->total += seconds;
    note(k, seconds / n, (waited(r) - wait) / n);
    return WEIR_OK;
}

static weir_status run_kinds(rehearsal *r, weir_error *err)
{
    weir_status status = WEIR_OK;
    for (int i = 0; i < RT_N_PASSES && status == WEIR_OK; i++)
        if (r->kinds[i].n_rows != 0) status = warm_up(r, &r->kinds[i], err);
    for (bool more = true; more && status == WEIR_OK;) {
        more = false;
        for (int i = 0; i < RT_N_PASSES && status == WEIR_OK; i++) {
            if (has_enough(&r->kinds[i])) continue;
            more = true;
            status = run_window(r, &r->kinds[i], err);
        }
    }
    return status;
}

/* ---- what came of it ---- */

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    return sum / (n != 0 ? n : 1);
}

/* How much longer than its kind's mean the slowest window of all kinds took, and how much shorter the
 * fastest: what strikes one kind for a tenth of a second may strike another for longer. */
static void spread(const rehearsal *r, double *slowest, double *fastest)
{
    *slowest = *fastest = 1;
    for (int i = 0; i < RT_N_PASSES; i++) {
        const kind *k = &r->kinds[i];
        double likely = mean(k->seconds, k->n_windows);
        for (uint32_t w = 0; w < k->n_windows && likely > 0; w++) {
            double share = k->seconds[w] / likely;
            if (share > *slowest) *slowest = share;
            if (share < *fastest) *fastest = share;
        }
    }
}

/* The mean, since a run's rate has all of its passes in it, the slow ones too. */
static void tell(const rehearsal *r, rt_rehearsed *out)
{
    double slowest, fastest;
    spread(r, &slowest, &fastest);
    for (int i = 0; i < RT_N_PASSES; i++) {
        const kind *k = &r->kinds[i];
        double likely = mean(k->seconds, k->n_windows);
        out->pass[i] = (rt_pass_time){.best = likely * fastest,
                                      .likely = likely,
                                      .worst = likely * slowest,
                                      .wait = mean(k->wait, k->n_windows)};
    }
}

weir_status rt_rehearse(weir_model *m, dev_device *device, const rt_options *o, const rt_plan *plan,
                        const mem_plan *mem, uint64_t stand_in_bytes, uint32_t passes, rt_rehearsed *out,
                        weir_error *err)
{
    rehearsal r = {.m = m, .device = device, .options = o, .plan = plan, .component = m->component};
    choose_kinds(&r);
    for (int i = 0; i < RT_N_PASSES; i++)
        if ((passes >> i & 1) == 0) r.kinds[i].n_rows = 0;
    weir_error failure = {0};
    weir_status status = place(&r, mem, stand_in_bytes, &failure);
    if (status == WEIR_OK) status = allocate(&r, &failure);
    if (status == WEIR_OK) status = run_kinds(&r, &failure);
    tell(&r, out);
    finish(&r);
    if (status != WEIR_OK) *err = failure;
    return status;
}
