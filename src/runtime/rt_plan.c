/* From a budget to a plan: everything in the process, by tag, before anything is allocated.
 *
 *   budget | process | tokenizer, metadata | KV | arena, workspace | i/o, runtime | page tables | weights:
 * what is left |
 *
 * All but the weights follows from the options and from the rows of a pass. The rows are a choice: more of
 * them make prefill faster (streamed weights pass fewer times) and cost memory that weights could stay in. */
#include "rt_internal.h"

#include <string.h>

#define CTX_DEFAULT 4096
#define CTX_SHARE   4
#define WHOLE_ROWS                                                                                           \
    32 /* passes this long keep prefill bound by arithmetic; below, weights had better stream */
#define ROWS_SHARE                                                                                           \
    10 /* of the room beyond the smallest working set, for the activations of longer passes                  \
        */
#define OUTPUTS_SHARE       20 /* and for more outputs a pass (scoring) */
#define OUTPUTS_WHOLE_BYTES (UINT64_C(4) << 20)
/* A prompt and the work of tokenizing it. */
#define TEXT_BYTES           (UINT64_C(192) << 10)
#define TEXT_BYTES_PER_TOKEN 48
/* Tables that placing makes for its own time and that no size query covers. */
#define TABLES_BYTES            (UINT64_C(16) << 10)
#define TABLES_BYTES_PER_WEIGHT 64

static const uint32_t row_steps[] = {512, 256, 128, 64, 32, 16, 8, 4, 1};
static const uint32_t output_steps[] = {16, 8, 4, 2};
static const uint32_t ctx_steps[] = {CTX_DEFAULT, 2048, 1024, 512};
#define COUNT(a) (sizeof(a) / sizeof *(a))

void weir_load_options_init(weir_load_options *o)
{
    *o = (weir_load_options){.struct_size = sizeof *o, .n_sessions = 1};
}

static weir_status read_settings(const weir_context *c, rt_options *out, weir_error *err)
{
    const char *alias = base_settings_get(c->settings, "memory.alias_activations");
    const char *pack = base_settings_get(c->settings, "compute.pack");
    out->alias = strcmp(alias, "off") != 0;
    if (out->alias && strcmp(alias, "on") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting memory.alias_activations is \"%.60s\": on or off", alias);
    out->pack = strcmp(pack, "off") != 0;
    if (out->pack && strcmp(pack, "auto") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "setting compute.pack is \"%.60s\": auto or off",
                         pack);
    const char *caches = base_settings_get(c->settings, "compute.kv_cache");
    out->kv_growth = strcmp(caches, "dynamic") == 0  ? LM_KV_DYNAMIC
                     : strcmp(caches, "static") == 0 ? LM_KV_STATIC
                                                     : LM_KV_FULL;
    if (out->kv_growth == LM_KV_FULL && strcmp(caches, "full") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting compute.kv_cache is \"%.60s\": full, dynamic or static (--kv-cache)",
                         caches);
    const char *weights = base_settings_get(c->settings, "memory.weights");
    out->weights = strcmp(weights, "map") == 0    ? WEIR_WEIGHTS_MAP
                   : strcmp(weights, "auto") == 0 ? WEIR_WEIGHTS_AUTO
                                                  : WEIR_WEIGHTS_READ;
    if (out->weights == WEIR_WEIGHTS_READ && strcmp(weights, "read") != 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "setting memory.weights is \"%.60s\": read, map or auto", weights);
    bool follows;
    weir_status status = rt_pressure_setting(c, &follows, err);
    if (status == WEIR_OK) status = rt_device_settings(c, NULL, &out->device, err);
    return status == WEIR_OK ? rt_reader_options(c, &out->aio, err) : status;
}

weir_status rt_options_resolve(weir_model *m, const weir_load_options *o, rt_options *out, weir_error *err)
{
    weir_load_options defaults;
    weir_load_options_init(&defaults);
    if (o == NULL) o = &defaults;
    if (!RT_IS(weir_load_options, o, err)) return err->code;
    if (o->n_sessions > RT_SESSIONS_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%u sessions: at most %d are possible",
                         o->n_sessions, RT_SESSIONS_MAX);
    if (o->n_threads > RT_THREADS_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%u threads: at most 256 are possible",
                         o->n_threads);
    if (o->ctx_tokens > RT_CTX_MAX)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "a context of %u tokens: at most %u are possible (--ctx)", o->ctx_tokens,
                         RT_CTX_MAX);
    if (o->kv_type != WEIR_KV_F16 && o->kv_type != WEIR_KV_F32)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "type %d of the key-value cache is not F16 or F32",
                         (int)o->kv_type);
    *out = (rt_options){
        .mem_bytes = o->mem_bytes,
        .mem_is_default = o->mem_bytes == 0,
        .ctx_tokens = o->ctx_tokens,
        .n_sessions = o->n_sessions != 0 ? o->n_sessions : 1,
        .fewer_sessions = o->fewer_sessions,
        .n_threads = o->n_threads,
        .prefill_chunk = o->prefill_chunk,
        .kv_dtype = o->kv_type == WEIR_KV_F32 ? BASE_F32 : BASE_F16,
        .profile = o->profile,
    };
    weir_status status =
        base_cpus_parse(base_settings_get(m->context->settings, "compute.cpus"), &out->cpus, err);
    if (status != WEIR_OK) return status;
    if (out->n_threads == 0) out->n_threads = rt_workers_usual(&out->cpus);
    if (out->prefill_chunk > RT_ROWS_MAX) out->prefill_chunk = RT_ROWS_MAX;
    out->max_batch = o->max_batch == 0 || o->max_batch > out->n_sessions ? out->n_sessions : o->max_batch;
    status = read_settings(m->context, out, err);
    if (o->weights != WEIR_WEIGHTS_DEFAULT) out->weights = o->weights;
    if (status != WEIR_OK || out->mem_bytes != 0) return status;
    base_memory_limits limits;
    status = rt_limits_read(m->context, &limits, err);
    if (status != WEIR_OK) return status;
    uint64_t reserve;
    return rt_default_budget(m->context, &limits, &out->mem_bytes, &reserve, err);
}

/* ---- sizes ---- */

/* A program is built to be measured and dropped again; the one that runs is built by the load. */
static weir_status measure_shape(rt_planner *p, uint32_t max_rows, uint32_t max_outputs, const rt_shape **out,
                                 weir_error *err)
{
    for (uint32_t i = 0; i < p->n_shapes; i++) {
        *out = &p->shapes[i];
        if ((*out)->max_rows == max_rows && (*out)->max_outputs == max_outputs) return WEIR_OK;
    }
    if (p->n_shapes == RT_MAX_SHAPES) p->n_shapes--;
    rt_shape *s = &p->shapes[p->n_shapes];
    graph_options o = {.max_rows = max_rows, .max_outputs = max_outputs, .alias = p->options->alias};
    base_ledger_view without, with;
    base_ledger_read(p->model->env, &without);
    graph_program *program;
    weir_status status = lm_program_create(p->model->env, p->model->lm, p->device, &o, &program, err);
    if (status != WEIR_OK) return status;
    base_ledger_read(p->model->env, &with);
    *s = (rt_shape){
        .max_rows = max_rows, .max_outputs = max_outputs, .program_bytes = with.bytes - without.bytes};
    graph_program_info(program, &s->info);
    graph_program_destroy(program);
    p->n_shapes++;
    *out = s;
    return WEIR_OK;
}

/* Every session may have an answer under way, and one of them a prompt in its place that becomes tokens. */
static uint64_t text_bytes(const rt_planner *p, const rt_choice *c)
{
    uint64_t answer = rt_answer_bytes(p->model, c->ctx_tokens);
    uint64_t prompt = rt_mul(c->ctx_tokens, TEXT_BYTES_PER_TOKEN);
    return rt_add(rt_add(rt_mul(c->n_sessions - 1, answer), base_max(answer, prompt)), TEXT_BYTES);
}

static uint64_t runtime_bytes(const rt_planner *p, const rt_choice *c)
{
    const lm_hparams *h = lm_model_hparams(p->model->lm);
    uint64_t sum = rt_sampler_bytes(h->n_vocab);
    sum = rt_add(sum, rt_mul(c->n_sessions, rt_session_bytes(h->n_layers, c->ctx_tokens)));
    sum = rt_add(sum, rt_mul(c->max_rows, 4 * sizeof(int32_t)));
    sum = rt_add(sum, rt_mul(h->n_layers, sizeof(dev_kv *) + p->options->max_batch * sizeof(dev_kv)));
    sum = rt_add(sum, rt_mul(p->options->max_batch, sizeof(weir_run) + sizeof(rt_share)));
    sum = rt_add(sum, sizeof(rt_loaded) + 64);
    if (p->on_device) sum = rt_add(sum, mem_source_pass_bytes());
    return rt_add(sum, text_bytes(p, c));
}

static lm_kv_shape kv_shape(const rt_planner *p, const rt_choice *c)
{
    return (lm_kv_shape){.growth = p->options->kv_growth,
                         .dtype = c->kv_dtype,
                         .context_tokens = c->ctx_tokens,
                         .max_rows = c->max_rows};
}

weir_status rt_planner_need(rt_planner *p, const rt_choice *c, rt_need *out, weir_error *err)
{
    const rt_shape *shape;
    weir_status status = measure_shape(p, c->max_rows, c->max_outputs, &shape, err);
    if (status != WEIR_OK) return status;
    const lm_model *lm = p->model->lm;
    const lm_hparams *h = lm_model_hparams(lm);
    uint64_t add[BASE_TAG_COUNT] = {0};
    lm_kv_shape caches = kv_shape(p, c);
    uint64_t kv = rt_mul(c->n_sessions, lm_kv_bytes(lm, p->device, &caches, c->ctx_tokens));
    kv =
        rt_add(kv, lm_kv_copy_bytes(lm, p->device, &caches, c->ctx_tokens)); /* one session grows at a time */
    uint64_t arena = base_align_up(shape->info.arena_bytes, 4096);
    uint64_t workspace = p->device->table->workspace_bytes(
        p->device, shape->info.max_k, (uint32_t)base_align_up(c->ctx_tokens, 16), h->head_dim);
    add[BASE_TAG_KV] = p->on_device ? 0 : kv;
    add[BASE_TAG_ACTIVATIONS] = p->on_device ? shape->info.host_bytes : arena;
    add[BASE_TAG_WORKSPACE] = p->on_device ? 0 : workspace;
    /* All who use the device share its work space. */
    uint64_t own = workspace - base_min(workspace, p->workspace_there);
    add[BASE_TAG_DEVICE] = p->device_in_ram ? rt_add(kv, rt_add(arena, own)) : 0;
    add[BASE_TAG_METADATA] = shape->program_bytes + TABLES_BYTES;
    for (uint32_t i = 0; i < mem_component_n_units(p->model->component); i++) {
        mem_unit_info unit;
        mem_component_unit(p->model->component, i, &unit);
        add[BASE_TAG_METADATA] += (uint64_t)unit.n_weights * TABLES_BYTES_PER_WEIGHT;
    }
    add[BASE_TAG_METADATA] = rt_add(add[BASE_TAG_METADATA], p->source_bytes);
    add[BASE_TAG_IO] = rt_add(p->aio_bytes, p->smallest.io_bytes);
    add[BASE_TAG_PINNED] = p->staging_bytes;
    add[BASE_TAG_RUNTIME] = runtime_bytes(p, c);
    add[BASE_TAG_PROCESS] = rt_add(p->process_bytes, p->aio_process_bytes);
    if (p->on_device) workspace -= base_min(workspace, p->device_workspace);
    *out = (rt_need){.device_bytes = p->on_device ? rt_add(kv, rt_add(arena, workspace)) : 0};
    for (int t = 0; t < BASE_TAG_COUNT; t++) {
        out->tag_bytes[t] = rt_add(p->before.tag_bytes[t], add[t]);
        out->total_bytes = rt_add(out->total_bytes, out->tag_bytes[t]);
    }
    return WEIR_OK;
}

/* Page tables are a 512th of the whole, themselves counted. */
uint64_t rt_planner_budget(const rt_need *need, uint64_t weights_bytes)
{
    uint64_t sum = rt_add(need->total_bytes, weights_bytes);
    return rt_add(sum, sum / 511 + 1);
}

/* What a budget leaves for weights; the inverse of the above. */
uint64_t rt_weights_room(const rt_need *need, uint64_t budget)
{
    uint64_t usable = budget - budget / 512;
    usable = usable > 0 ? usable - 1 : 0;
    return usable > need->total_bytes ? usable - need->total_bytes : 0;
}

/* ---- choosing ---- */

static void choice_set_rows(const rt_options *o, uint32_t chunk, rt_choice *c)
{
    chunk = (uint32_t)base_min(chunk, c->ctx_tokens);
    c->max_rows = (uint32_t)base_max(chunk, o->max_batch);
}

static rt_choice smallest_choice(const rt_options *o, uint32_t ctx_tokens)
{
    rt_choice c = {
        .ctx_tokens = ctx_tokens,
        .n_sessions = o->n_sessions,
        .kv_dtype = o->kv_dtype,
        .max_outputs = o->max_batch,
    };
    choice_set_rows(o, o->prefill_chunk != 0 ? o->prefill_chunk : 1, &c);
    return c;
}

/* The context, and the smallest budget for it. Without an explicit one, the largest step that fits. */
static weir_status choose_ctx(rt_planner *p, rt_choice *choice, rt_need *need, uint64_t *smallest,
                              weir_error *err)
{
    const rt_options *o = p->options;
    uint32_t trained = lm_model_hparams(p->model->lm)->context_tokens;
    uint32_t top = trained != 0 ? trained : CTX_DEFAULT;
    for (size_t i = 0; i < COUNT(ctx_steps); i++) {
        uint32_t ctx = o->ctx_tokens != 0 ? o->ctx_tokens : (uint32_t)base_min(top, ctx_steps[i]);
        if (i > 0 && ctx == choice->ctx_tokens) continue;
        *choice = smallest_choice(o, ctx);
        weir_status status = rt_planner_need(p, choice, need, err);
        if (status != WEIR_OK) return status;
        *smallest = rt_planner_budget(need, p->smallest.smallest_bytes);
        if (o->ctx_tokens != 0) break;
        /* A default context must not take the room that the weights need to stay. */
        bool roomy = rt_planner_budget(need, p->whole.whole_bytes) <= o->mem_bytes ||
                     need->tag_bytes[BASE_TAG_KV] <= o->mem_bytes / CTX_SHARE;
        bool device = rt_device_fits(p, need, true) ||
                      (rt_device_fits(p, need, false) && need->device_bytes <= p->device_room / CTX_SHARE);
        if (*smallest <= o->mem_bytes && roomy && device) break;
    }
    return WEIR_OK;
}

/* Rows of a pass: the most with which all weights still stay, else as many as a share of the room allows. */
static weir_status choose_rows(rt_planner *p, uint64_t smallest, rt_choice *choice, rt_need *need,
                               weir_error *err)
{
    const rt_options *o = p->options;
    if (o->prefill_chunk != 0) return WEIR_OK;
    uint64_t share = (o->mem_bytes - smallest) / ROWS_SHARE;
    uint64_t least = rt_add(need->device_bytes, p->device_sizes.smallest_bytes);
    uint64_t device_share = p->device_room > least ? (p->device_room - least) / ROWS_SHARE : 0;
    uint64_t device_most = rt_add(need->device_bytes, device_share);
    for (int whole = 1; whole >= 0; whole--) {
        for (size_t i = 0; i < COUNT(row_steps); i++) {
            if (whole && row_steps[i] < WHOLE_ROWS) break;
            rt_choice c = *choice;
            rt_need n;
            choice_set_rows(o, row_steps[i], &c);
            weir_status status = rt_planner_need(p, &c, &n, err);
            if (status != WEIR_OK) return status;
            uint64_t weights = whole ? p->whole.whole_bytes : p->smallest.smallest_bytes;
            uint64_t budget = rt_planner_budget(&n, weights);
            if (budget > (whole ? o->mem_bytes : smallest + share)) continue;
            if (whole ? !rt_device_fits(p, &n, true) : n.device_bytes > device_most) continue;
            *choice = c;
            *need = n;
            return WEIR_OK;
        }
    }
    return WEIR_OK;
}

/* More outputs a pass make scoring a text cheaper; taken only where they cost little. */
static weir_status choose_outputs(rt_planner *p, uint64_t smallest, rt_choice *choice, rt_need *need,
                                  weir_error *err)
{
    uint64_t budget = p->options->mem_bytes;
    bool whole = rt_planner_budget(need, p->whole.whole_bytes) <= budget && rt_device_fits(p, need, true);
    uint64_t share = whole ? OUTPUTS_WHOLE_BYTES : (budget - smallest) / OUTPUTS_SHARE;
    for (size_t i = 0; i < COUNT(output_steps); i++) {
        if (output_steps[i] <= choice->max_outputs || output_steps[i] > choice->max_rows) continue;
        rt_choice c = *choice;
        rt_need n;
        c.max_outputs = output_steps[i];
        weir_status status = rt_planner_need(p, &c, &n, err);
        if (status != WEIR_OK) return status;
        if (n.total_bytes > need->total_bytes + share) continue;
        if (rt_planner_budget(&n, whole ? p->whole.whole_bytes : p->smallest.smallest_bytes) > budget)
            continue;
        if (p->on_device && !rt_device_fits(p, &n, whole)) continue;
        *choice = c;
        *need = n;
        break;
    }
    return WEIR_OK;
}

/* From which budget on nothing streams, with the shortest passes for which weights are kept. */
static weir_status whole_budget(rt_planner *p, const rt_choice *smallest, uint64_t *out, weir_error *err)
{
    rt_choice c = *smallest;
    rt_need n;
    if (p->options->prefill_chunk == 0) choice_set_rows(p->options, WHOLE_ROWS, &c);
    weir_status status = rt_planner_need(p, &c, &n, err);
    if (status == WEIR_OK) *out = rt_planner_budget(&n, p->whole.whole_bytes);
    return status;
}

/* R15.1: "auto" maps files that lie in memory already, unless a copy in the device's own layout is worth
 * more; that is measured once for a model. Where it cannot be, weights are read. */
static bool mapping_pays(const rt_planner *p, uint64_t weight_bytes)
{
    weir_model *m = p->model;
    if (m->storage.bytes_per_s <= 0 || !m->storage.in_memory) return false;
    weir_error none;
    bool pays;
    if (!m->pack_known) {
        if (rt_packing_pays(m, p->device, p->options, weight_bytes, &pays, &none) != WEIR_OK) return false;
        m->pack_known = true;
        m->pack_pays = pays;
    }
    return !m->pack_pays;
}

/* R9.2: what a session's caches take as its text gets longer. */
static void fill_caches(const rt_planner *p, rt_plan *out)
{
    static const char *const names[] = {"full", "dynamic", "static"};
    const lm_model *lm = p->model->lm;
    const lm_kv_shape *s = &out->kv;
    weir_plan *v = &out->view;
    v->kv_cache = names[s->growth];
    v->kv_first_bytes = lm_kv_bytes(lm, p->device, s, 0);
    for (uint64_t n = LM_KV_STEP; v->n_kv_steps < WEIR_MAX_KV_STEPS; n *= 2) {
        bool last = s->growth == LM_KV_FULL || n >= s->context_tokens;
        uint32_t tokens = last ? s->context_tokens : (uint32_t)n;
        uint64_t bytes = lm_kv_bytes(lm, p->device, s, tokens);
        v->kv_steps[v->n_kv_steps++] =
            (weir_kv_step){.tokens = tokens,
                           .bytes = bytes,
                           .peak_bytes = rt_add(bytes, lm_kv_copy_bytes(lm, p->device, s, tokens))};
        if (last) break;
    }
}

static void fill_view(rt_planner *p, const rt_choice *c, const rt_need *need, rt_plan *out)
{
    const rt_options *o = p->options;
    const mem_plan *mem = &out->memory;
    weir_plan *v = &out->view;
    const rt_shape *shape = NULL;
    weir_error none;
    if (measure_shape(p, c->max_rows, c->max_outputs, &shape, &none) == WEIR_OK) {
        v->weight_bytes_per_pass = shape->info.weight_bytes;
        v->macs_per_token = shape->info.macs_per_row;
        out->n_ops = shape->info.n_ops;
        v->arena_saved_bytes =
            shape->info.unaliased_bytes - base_min(shape->info.arena_bytes, shape->info.unaliased_bytes);
    }
    out->map = mem->ring_bytes == 0 && !p->on_device &&
               (o->weights == WEIR_WEIGHTS_MAP ||
                (o->weights == WEIR_WEIGHTS_AUTO && mapping_pays(p, mem->fixed_bytes + mem->resident_bytes)));
    out->may_map = !p->on_device && (o->weights == WEIR_WEIGHTS_MAP || out->map);
    memcpy(out->tag_bytes, need->tag_bytes, sizeof out->tag_bytes);
    out->tag_bytes[out->map ? BASE_TAG_WEIGHTS_MAPPED : BASE_TAG_WEIGHTS_FIXED] += mem->fixed_bytes;
    base_tag stays = p->on_device ? BASE_TAG_WEIGHTS_HOST : BASE_TAG_WEIGHTS_RESIDENT;
    out->tag_bytes[out->map ? BASE_TAG_WEIGHTS_MAPPED : stays] += mem->resident_bytes;
    out->tag_bytes[BASE_TAG_WEIGHTS_SLOTS] += mem->ring_bytes;
    out->tag_bytes[BASE_TAG_DEVICE] += out->device_ram_bytes;
    uint64_t weights = mem->fixed_bytes + mem->resident_bytes + mem->ring_bytes + out->device_ram_bytes;
    v->planned_peak_bytes = rt_planner_budget(need, weights);
    uint64_t tables = v->planned_peak_bytes - need->total_bytes - weights;
    out->tag_bytes[BASE_TAG_PROCESS] += tables;
    out->process_bytes = p->process_bytes + tables;
    out->need_bytes = need->total_bytes;
    v->budget_bytes = o->mem_bytes;
    v->budget_is_default = o->mem_is_default;
    v->ctx_tokens = c->ctx_tokens;
    v->n_sessions = v->wanted_sessions = o->n_sessions;
    v->n_threads = o->n_threads;
    v->prefill_chunk = (uint32_t)base_min(c->max_rows, c->ctx_tokens);
    if (o->prefill_chunk != 0) v->prefill_chunk = (uint32_t)base_min(v->prefill_chunk, o->prefill_chunk);
    v->pass_rows = c->max_rows;
    v->pass_outputs = c->max_outputs;
    v->streamed_bytes_per_pass = mem->streamed_bytes;
    for (int t = 0; t < BASE_TAG_COUNT; t++) {
        if (out->tag_bytes[t] == 0) continue;
        v->accounts[v->n_accounts++] =
            (weir_account){.tag = base_tag_text((base_tag)t), .planned_bytes = out->tag_bytes[t]};
    }
    out->max_rows = c->max_rows;
    out->max_outputs = c->max_outputs;
    out->max_batch = o->max_batch;
    out->kv = kv_shape(p, c);
    fill_caches(p, out);
}

/* What a queue for reads costs here: measured, since the kernel decides which kind it is. */
static weir_status measure_aio(rt_planner *p, weir_error *err)
{
    base_ledger_view without, with;
    base_aio *aio;
    base_ledger_read(p->model->env, &without);
    weir_status status = base_aio_create(p->model->env, &p->options->aio, &aio, err);
    if (status != WEIR_OK) return status;
    base_ledger_read(p->model->env, &with);
    base_aio_destroy(aio);
    p->aio_bytes = with.tag_bytes[BASE_TAG_IO] - without.tag_bytes[BASE_TAG_IO];
    p->aio_process_bytes = with.tag_bytes[BASE_TAG_PROCESS] - without.tag_bytes[BASE_TAG_PROCESS];
    return WEIR_OK;
}

static weir_status planner_init(rt_planner *p, weir_error *err)
{
    weir_status status = rt_process_bytes(p->model->context, &p->process_bytes, err);
    if (status != WEIR_OK) return status;
    status = measure_aio(p, err);
    if (status != WEIR_OK) return status;
    weir_error none;
    status = mem_plan_make(p->model->component, 0, &p->smallest, &none);
    if (status != WEIR_OK && status != WEIR_ERR_BUDGET) {
        *err = none;
        return status;
    }
    if (p->device->table->memory != NULL) return rt_device_measure(p, err);
    return mem_plan_make(p->model->component, UINT64_MAX, &p->whole, err);
}

static weir_status plan_once(weir_model *m, const rt_options *o, rt_device *target,
                             const base_ledger_view *before, rt_plan *out, weir_error *err)
{
    *out = (rt_plan){.view = {.struct_size = sizeof out->view, .device = "cpu"}};
    rt_planner *p = base_alloc(m->env, BASE_TAG_RUNTIME, sizeof *p, err);
    if (p == NULL) return err->code;
    p->model = m;
    p->options = o;
    p->target = target;
    p->device = target->device;
    p->before = *before;
    rt_choice choice = {0};
    rt_need need = {0};
    weir_status status = planner_init(p, err);
    if (status == WEIR_OK) status = choose_ctx(p, &choice, &need, &out->view.smallest_bytes, err);
    if (status == WEIR_OK) status = whole_budget(p, &choice, &out->view.whole_bytes, err);
    if (status != WEIR_OK) goto done;
    uint64_t smallest = out->view.smallest_bytes;
    out->view.fits = smallest <= o->mem_bytes;
    if (!out->view.fits) {
        out->view.missing_bytes = smallest - o->mem_bytes;
        out->memory = p->smallest;
        out->device_ram_bytes = p->on_device ? p->smallest.smallest_bytes : 0;
        fill_view(p, &choice, &need, out);
        rt_advise(p, &choice, out, err);
        goto done;
    }
    status = choose_rows(p, smallest, &choice, &need, err);
    if (status == WEIR_OK) status = choose_outputs(p, smallest, &choice, &need, err);
    if (status == WEIR_OK && p->on_device)
        rt_device_plan(p, &need, out);
    else if (status == WEIR_OK)
        status = mem_plan_make(m->component, rt_weights_room(&need, o->mem_bytes), &out->memory, err);
    if (status == WEIR_OK) fill_view(p, &choice, &need, out);
done:
    rt_device_measured(p);
    base_free(m->env, p);
    return status;
}

weir_status rt_plan_make(weir_model *m, const rt_options *o, rt_device *target,
                         const base_ledger_view *before, rt_plan *out, weir_error *err)
{
    weir_status status = plan_once(m, o, target, before, out, err);
    if (status != WEIR_OK || out->view.fits || !o->fewer_sessions || out->view.fit_sessions == 0)
        return status;
    rt_options fewer = *o;
    fewer.n_sessions = out->view.fit_sessions;
    fewer.max_batch = (uint32_t)base_min(o->max_batch, fewer.n_sessions);
    status = plan_once(m, &fewer, target, before, out, err);
    out->view.wanted_sessions = o->n_sessions;
    return status;
}

weir_status rt_plan_tokenizer(weir_model *m, weir_error *err)
{
    weir_error why = {0};
    const fmt_tokenizer *tokenizer;
    weir_status status = rt_text_tokenizer(m, &tokenizer, &why);
    if (status == WEIR_OK || m->text->why_none.code != WEIR_OK) return WEIR_OK;
    *err = why;
    return status;
}

static weir_status plan_model(weir_model *m, const rt_options *options, weir_plan *out, weir_error *err)
{
    weir_error advice = {0};
    weir_status status = rt_plan_tokenizer(m, err);
    if (status != WEIR_OK) return status;
    base_ledger_view before;
    rt_ledger_read(m->context, &before);
    if (m->run != NULL) before = m->run->before;
    rt_device *target;
    bool opened;
    status = rt_device_create(m, options, &before, &target, &opened, err);
    if (status != WEIR_OK) return status;
    rt_plan plan;
    status = rt_plan_make(m, options, target, &before, &plan, &advice);
    rt_device_close(m->context, target);
    if (status == WEIR_OK)
        *out = plan.view;
    else
        *err = advice;
    return status;
}

static weir_status plan(weir_model *m, const weir_load_options *o, weir_plan *out, weir_error *err)
{
    weir_error none;
    rt_options options;
    weir_status status = rt_model_runs(m, err);
    if (status == WEIR_OK) status = rt_options_resolve(m, o, &options, err);
    if (status != WEIR_OK) return status;
    base_ledger_view ledger;
    base_ledger_read(m->env, &ledger);
    status = rt_budget_raise(m->context, options.mem_bytes, err);
    if (status == WEIR_OK) status = plan_model(m, &options, out, err);
    /* A tokenizer that was made stays; where it does not fit the other model's budget, this one's holds. */
    base_ledger_set_limit(m->env, ledger.limit_bytes, &none);
    return status;
}

weir_status weir_model_plan(weir_model *m, const weir_load_options *o, weir_plan *out, weir_error *err)
{
    weir_error local;
    rt_enter(m->context);
    weir_status status = plan(m, o, out, rt_error(err, &local));
    rt_leave(m->context);
    return status;
}
