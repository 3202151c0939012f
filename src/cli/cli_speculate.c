/* --speculate and --draft: guesses that a pass checks together, in run, chat and bench. */
#include "cli.h"

#include <string.h>

static const char *const mode_names[] = {"auto", "off", "lookup", "draft"};

void cli_add_speculate(cli_args *a, cli_speculate *s)
{
    cli_add(a, "speculate", 0, CLI_TEXT, &s->mode, "HOW",
            "guess tokens and check them in one pass, with the same result: auto (default; while it pays), "
            "off, lookup, draft");
    cli_add(a, "speculate-tokens", 0, CLI_U32, &s->tokens, "N", "most guesses of a pass (default 31)");
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
    return CLI_OK;
}

/* All of it where that is at most a quarter of the budget, and never less than it can run with. */
static weir_status choose_budget(cli_common *c, const cli_speculate *s, weir_load_options *o, weir_error *err)
{
    weir_plan plan = {.struct_size = sizeof plan};
    weir_machine machine = {.struct_size = sizeof machine};
    o->mem_bytes = s->draft_mem_bytes;
    if (o->mem_bytes != 0) return WEIR_OK;
    weir_status status = weir_machine_read(c->context, &machine, err);
    if (status == WEIR_OK) status = weir_model_plan(s->model, o, &plan, err);
    if (status != WEIR_OK) return status;
    uint64_t all = c->load.mem_bytes != 0 ? c->load.mem_bytes : machine.default_budget_bytes;
    uint64_t room = plan.whole_bytes + plan.whole_bytes / 64; /* for longer passes */
    o->mem_bytes = room < all / 4 ? room : all / 4;
    if (o->mem_bytes < plan.smallest_bytes) o->mem_bytes = plan.smallest_bytes;
    return WEIR_OK;
}

int cli_speculate_load(cli_common *c, cli_speculate *s)
{
    weir_error err;
    if (s->draft == NULL) return CLI_OK;
    weir_load_options o = c->load;
    o.n_sessions = o.max_batch = 1;
    o.prefill_chunk = 0;
    weir_status status = weir_model_open(c->context, s->draft, &s->model, &err);
    if (status == WEIR_OK) status = choose_budget(c, s, &o, &err);
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
