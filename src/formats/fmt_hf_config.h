/* What the two halves of the config.json translation share. Private to formats. */
#ifndef WEIR_FMT_HF_CONFIG_H
#define WEIR_FMT_HF_CONFIG_H

#include "fmt_hf.h"
#include "fmt_hf_json.h"

/* One class of transformers, with the defaults of its configuration (configuration_*.py of transformers
 * 5.x; files leave out what equals them). 0: the key must be there. */
typedef struct fmt_hf_class {
    const char *name;       /* in "architectures" */
    const char *model_type; /* used when "architectures" is absent */
    const char *gguf;       /* general.architecture */
    fmt_hf_arch arch;
    bool nested; /* the text model's settings are in "text_config" */
    uint32_t vocab, hidden, ffn, layers, heads;
    uint32_t kv_heads; /* 0: as many as heads */
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t context;
    uint32_t window; /* 0: none unless given */
    double rope_theta;
} fmt_hf_class;

typedef struct fmt_hf_config {
    fmt_model *m;
    const fmt_hf_class *cls;
    const fmt_hf_doc *doc;
    const json_t *text; /* the text model's settings, in doc */
    uint32_t layers, heads, head_dim, context;
} fmt_hf_config;

/* Adds "<arch>.<key>". */
weir_status fmt_hf_put_u32(const fmt_hf_config *c, const char *key, int64_t v, weir_error *err);
weir_status fmt_hf_put_f32(const fmt_hf_config *c, const char *key, double v, weir_error *err);

/* The whole of config.json; *arch says which tensor names apply. */
weir_status fmt_hf_put_config(fmt_model *m, const fmt_hf_doc *doc, fmt_hf_arch *arch, weir_error *err);

/* rope_theta, rope_scaling (transformers 4) or rope_parameters (5), rotary dimensions. */
weir_status fmt_hf_put_rope(const fmt_hf_config *c, weir_error *err);

#endif
