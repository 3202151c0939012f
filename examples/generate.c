/* The smallest program around libweir: a prompt in, an answer out, under a memory budget.
 *
 *   cc examples/generate.c -o generate $(pkg-config --cflags --libs weir)
 *   ./generate MODEL.gguf 64MiB "Why is the sky blue?" */
#include <weir/weir.h>

#include <stdio.h>
#include <string.h>

static bool print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    return true; /* false would stop the answer */
}

static weir_status answer(weir_model *m, char **args, weir_error *err)
{
    weir_load_options load;
    weir_load_options_init(&load);
    load.ctx_tokens = 512;
    weir_status status = weir_size_parse(args[1], &load.mem_bytes, err);
    if (status == WEIR_OK) status = weir_model_load(m, &load, err);
    if (status != WEIR_OK) return status;

    weir_session *session = NULL;
    int32_t *prompt = NULL;
    size_t n = 0;
    const weir_message message = {"user", args[2]};
    weir_generate_options o;
    weir_generate_options_init(&o);
    o.on_text = print_text;
    weir_result result = {0};
    weir_memory_report memory;

    status = weir_session_create(m, &session, err);
    if (status == WEIR_OK) status = weir_chat_tokens(m, &message, 0, 1, &prompt, &n, err);
    if (status == WEIR_OK) status = weir_generate(session, prompt, n, &o, &result, err);
    if (status == WEIR_OK) status = weir_model_memory(m, &memory, err);
    if (status == WEIR_OK) {
        char peak[32], budget[32];
        printf("\n[%zu tokens; peak %s of %s]\n", result.n_tokens, weir_size_text(memory.peak_bytes, peak),
               weir_size_text(memory.budget_bytes, budget));
    }
    weir_result_finish(m, &result);
    weir_free(m, prompt);
    weir_session_destroy(session);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL.gguf BUDGET PROMPT\n", argv[0]);
        return 2;
    }
    weir_error err;
    weir_context *context = NULL;
    weir_model *model = NULL;
    weir_status status = weir_context_create(NULL, &context, &err);
    if (status == WEIR_OK) status = weir_model_open(context, argv[1], &model, &err);
    if (status == WEIR_OK) status = answer(model, argv + 1, &err);
    if (status != WEIR_OK) fprintf(stderr, "%s: %s\n", weir_status_name(status), err.message);
    weir_model_close(model);
    weir_context_destroy(context);
    return status == WEIR_OK ? 0 : 1;
}
