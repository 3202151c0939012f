/* --speculate and --draft: guesses that a pass checks together, in run, chat and bench. */
#include "cli.h"

#include <string.h>

enum { TOKENS_MAX = 31 };

static const char *const mode_names[] = {"auto", "off", "lookup", "draft"};

void cli_add_speculate(cli_args *a, cli_speculate *s)
{
    cli_add(a, "speculate", 0, CLI_TEXT, &s->mode, "HOW",
            "guess tokens and check them in one pass, with the same result: auto (default; while it pays), "
            "off, lookup, draft");
    cli_add_guesses(a, s);
}

void cli_add_guesses(cli_args *a, cli_speculate *s)
{
    cli_add(a, "speculate-tokens", 0, CLI_U32, &s->tokens, "N",
            "most guesses of a pass (default 31, as far as the plan has room for their logits)");
    cli_add(a, "draft", 0, CLI_TEXT, &s->draft, "FILE",
            "a smaller model with the same vocabulary that guesses");
    cli_add(a, "draft-mem", 0, CLI_SIZE, &s->draft_mem_bytes, "SIZE",
            "how much of --mem the draft may take; default: what it needs, a quarter at most");
}

int cli_speculate_check(const char *command, const cli_speculate *s, weir_generate_options *o)
{
    o->speculate_tokens = s->tokens;
    for (unsigned i = 0; s->mode != NULL; i++) {
        if (i == sizeof mode_names / sizeof *mode_names)
            return cli_usage(command, "--speculate %s is unknown; it may be auto, off, lookup or draft",
                             s->mode);
        if (strcmp(s->mode, mode_names[i]) != 0) continue;
        o->speculate = (weir_speculate)i;
        break;
    }
    if (o->speculate == WEIR_SPECULATE_DRAFT && s->draft == NULL)
        return cli_usage(command, "--speculate draft needs a draft model: --draft FILE");
    if (s->draft == NULL && s->draft_mem_bytes != 0)
        return cli_usage(command, "--draft-mem is for a draft model: --draft FILE");
    if (o->speculate == WEIR_SPECULATE_OFF && s->draft != NULL)
        return cli_usage(command, "--draft is given, and --speculate off");
    if (o->speculate == WEIR_SPECULATE_LOOKUP && s->draft != NULL)
        return cli_usage(command,
                         "--draft is given, and --speculate lookup never asks it; auto or draft does");
    if (s->tokens > TOKENS_MAX)
        return cli_usage(command, "--speculate-tokens %u: a pass has at most %d guesses", s->tokens,
                         TOKENS_MAX);
    return CLI_OK;
}

/* The context that the model will have at most: a draft with less ends guessing in the middle of the text. */
static weir_status choose_context(const cli_common *c, weir_model *m, const cli_speculate *s,
                                  weir_load_options *o, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_model_info info = {.struct_size = sizeof info};
    if (o->ctx_tokens != 0) return WEIR_OK;
    weir_status status = weir_model_plan(m, &c->load, &plan, err);
    if (status == WEIR_OK) status = weir_model_get_info(s->model, &info, err);
    if (status != WEIR_OK) return status;
    uint32_t trained = info.context_tokens;
    o->ctx_tokens = trained != 0 && trained < plan.ctx_tokens ? trained : plan.ctx_tokens;
    return WEIR_OK;
}

/* All of it where that is at most a quarter of the budget, and never less than it can run with. Where the
 * model's context is too much for its share, it has less. */
static weir_status choose_budget(cli_common *c, weir_model *m, const cli_speculate *s, weir_load_options *o,
                                 weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_machine machine = {.struct_size = sizeof machine};
    o->mem_bytes = s->draft_mem_bytes;
    weir_status status = choose_context(c, m, s, o, err);
    if (status == WEIR_OK) status = weir_machine_read(c->context, &machine, err);
    if (status == WEIR_OK) status = weir_model_plan(s->model, o, &plan, err);
    uint64_t all = c->load.mem_bytes != 0 ? c->load.mem_bytes : machine.default_budget_bytes;
    uint64_t share = s->draft_mem_bytes != 0 ? s->draft_mem_bytes : all / 4;
    if (status == WEIR_OK && plan.smallest_bytes > share && o->ctx_tokens != c->load.ctx_tokens) {
        o->ctx_tokens = c->load.ctx_tokens;
        status = weir_model_plan(s->model, o, &plan, err);
    }
    if (status != WEIR_OK || s->draft_mem_bytes != 0) return status;
    uint64_t room = plan.whole_bytes + plan.whole_bytes / 64; /* for longer passes */
    o->mem_bytes = room < share ? room : share;
    if (o->mem_bytes < plan.smallest_bytes) o->mem_bytes = plan.smallest_bytes;
    return WEIR_OK;
}

int cli_speculate_load(cli_common *c, weir_model *m, cli_speculate *s)
{
    weir_error err;
    if (s->draft == NULL) return CLI_OK;
    weir_load_options o = c->load;
    o.n_sessions = o.max_batch = 1;
    o.prefill_chunk = 0;
    weir_status status = weir_model_open(c->context, s->draft, &s->model, &err);
    if (status == WEIR_OK) status = choose_budget(c, m, s, &o, &err);
    if (status != WEIR_OK) return cli_error(c->command, &err);
    weir_model *main = cli_interrupt_model(s->model);
    int rc = cli_load_as(c, s->model, &o, "loading the draft");
    cli_interrupt_model(main);
    if (rc != CLI_OK) return rc;
    /* The other model's plan counts what is there when it is made, this session's cache as well. */
    status = weir_session_create(s->model, &s->session, &err);
    return status == WEIR_OK ? CLI_OK : cli_error(c->command, &err);
}

int cli_speculate_attach(const cli_common *c, const cli_speculate *s, weir_session *session)
{
    weir_error err;
    if (s->model == NULL) return CLI_OK;
    weir_status status = weir_session_set_draft(session, s->session, &err);
    return status == WEIR_OK ? CLI_OK : cli_error(c->command, &err);
}

void cli_speculate_close(cli_speculate *s)
{
    weir_session_destroy(s->session);
    weir_model_close(s->model);
    s->session = NULL;
    s->model = NULL;
}

const char *cli_speculate_name(weir_speculate mode)
{
    return mode_names[mode];
}

json_t *cli_json_speculation(const weir_generate_options *o, const weir_result *r)
{
    json_t *j = json_object();
    json_object_set_new(j, "mode", json_string(mode_names[o->speculate]));
    json_object_set_new(j, "passes", cli_json_u64(r->n_passes));
    json_object_set_new(j, "drafted", cli_json_u64(r->n_drafted));
    json_object_set_new(j, "accepted", cli_json_u64(r->n_accepted));
    return j;
}
