/* Which reader takes a path, and what both of them lean on. */
#include "fmt_caches_internal.h"
#include "fmt_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const fmt_cache_defaults DEFAULTS[] = {
    {"llama", "llama", FMT_WINDOW_ALL, 0, 0, 0, 0, 2048, true},
    {"mistral", "llama", FMT_WINDOW_ALL, 0, 8, 0, 4096, 131072, false},
    {"mixtral", "llama", FMT_WINDOW_ALL, 0, 8, 0, 0, 131072, false},
    {"qwen2", "qwen2", FMT_WINDOW_UNKNOWN, 0, 32, 0, 4096, 32768, false},
    {"qwen2_moe", "qwen2moe", FMT_WINDOW_UNKNOWN, 0, 16, 0, 4096, 32768, false},
    {"qwen3", "qwen3", FMT_WINDOW_UNKNOWN, 0, 32, 128, 4096, 32768, false},
    {"qwen3_moe", "qwen3moe", FMT_WINDOW_UNKNOWN, 0, 4, 0, 4096, 32768, false},
    {"gemma", "gemma", FMT_WINDOW_UNKNOWN, 0, 16, 256, 0, 8192, false},
    {"gemma2", "gemma2", FMT_WINDOW_EVEN, 0, 4, 256, 4096, 8192, false},
    {"gemma3_text", "gemma3", FMT_WINDOW_BUT_EVERY, 6, 4, 256, 4096, 131072, false},
    {"gemma3", "gemma3", FMT_WINDOW_BUT_EVERY, 6, 4, 256, 4096, 131072, false},
    {"cohere2", "cohere2", FMT_WINDOW_BUT_EVERY, 4, 0, 0, 4096, 8192, true},
    {"gpt_oss", "gpt-oss", FMT_WINDOW_EVEN, 0, 8, 64, 128, 131072, false},
    {"phi3", "phi3", FMT_WINDOW_ALL, 0, 0, 0, 0, 4096, true},
    {"olmo2", "olmo2", FMT_WINDOW_UNKNOWN, 0, 0, 0, 0, 2048, true},
    {"gpt2", "gpt2", FMT_WINDOW_UNKNOWN, 0, 0, 0, 0, 1024, true},
    {"gpt_neox", "gptneox", FMT_WINDOW_UNKNOWN, 0, 0, 0, 0, 2048, true},
};

const fmt_cache_defaults *fmt_cache_defaults_find(const char *type, bool gguf)
{
    for (size_t i = 0; type != NULL && i < sizeof DEFAULTS / sizeof *DEFAULTS; i++)
        if (strcmp(type, gguf ? DEFAULTS[i].gguf : DEFAULTS[i].type) == 0) return &DEFAULTS[i];
    return NULL;
}

bool fmt_window_slides(fmt_window_rule rule, uint64_t every, uint64_t i)
{
    if (rule == FMT_WINDOW_EVEN) return i % 2 == 0;
    if (rule == FMT_WINDOW_BUT_EVERY) return every == 0 || (i + 1) % every != 0;
    return rule == FMT_WINDOW_ALL;
}

static bool alike(const fmt_cache_layers *a, const fmt_cache_layers *b)
{
    return a->kind == b->kind && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->value_dim == b->value_dim && a->window == b->window && a->latent_rank == b->latent_rank &&
           a->rope_dim == b->rope_dim && a->state_bytes == b->state_bytes;
}

weir_status fmt_caches_add(fmt_caches *c, const fmt_cache_layers *layer, const char *path, weir_error *err)
{
    if (layer->kind == FMT_CACHE_NONE) return WEIR_OK;
    for (uint32_t i = 0; i < c->n; i++) {
        if (!alike(&c->items[i], layer)) continue;
        c->items[i].n_layers++;
        return WEIR_OK;
    }
    if (c->n == FMT_MAX_CACHES)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: layers differ in more than %d ways; give the numbers by options", path,
                         FMT_MAX_CACHES);
    c->items[c->n] = *layer;
    c->items[c->n++].n_layers = 1;
    return WEIR_OK;
}

static void note(fmt_caches *c, const char *what)
{
    size_t n = strlen(c->unknown);
    if (strstr(c->unknown, what) != NULL) return;
    snprintf(c->unknown + n, sizeof c->unknown - n, "%s%s", n > 0 ? ", " : "", what);
}

void fmt_caches_note_unknown(fmt_caches *c)
{
    if (c->n == 0) note(c, "layers");
    for (uint32_t i = 0; i < c->n; i++) {
        const fmt_cache_layers *g = &c->items[i];
        bool heads = g->kind == FMT_CACHE_FULL || g->kind == FMT_CACHE_WINDOW;
        if (g->n_layers == 0) note(c, "layers");
        if (heads && g->kv_heads == 0) note(c, "kv-heads");
        if (heads && g->head_dim == 0) note(c, "head-dim");
        if (g->kind == FMT_CACHE_WINDOW && g->window == 0) note(c, "window");
        if (g->kind == FMT_CACHE_LATENT && g->latent_rank == 0) note(c, "latent-rank");
        if (g->kind == FMT_CACHE_STATE && g->state_bytes == 0) note(c, "state");
    }
}

uint64_t fmt_state_values(uint64_t inner, uint64_t state, uint64_t groups, uint64_t conv_kernel)
{
    uint64_t channels, memory, conv;
    if (inner == 0 || state == 0 || conv_kernel == 0) return 0;
    if (!base_mul(2 * state, groups, &channels) || !base_add(channels, inner, &channels) ||
        !base_mul(channels, conv_kernel - 1, &conv) || !base_mul(inner, state, &memory) ||
        !base_add(memory, conv, &memory) || memory > UINT64_MAX / FMT_STATE_VALUE_BYTES)
        return 0;
    return memory;
}

weir_status fmt_caches_read(base_env *env, const char *path, fmt_caches *out, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    *out = (fmt_caches){.n = 0};
    size_t n = strlen(path);
    if (n >= 5 && strcasecmp(path + n - 5, ".gguf") == 0) return fmt_caches_read_gguf(env, path, out, err);
    bool json = n >= 5 && strcasecmp(path + n - 5, ".json") == 0;
    if (!json) return fmt_caches_read_hf(env, path, "config.json", out, err);
    const char *slash = strrchr(path, '/');
    char *folder = fmt_path_dir(env, path, err);
    if (folder == NULL) return err->code;
    weir_status s = fmt_caches_read_hf(env, folder, slash != NULL ? slash + 1 : path, out, err);
    base_free(env, folder);
    return s;
}
