/* The vocabulary: 262,144 tokens must fit 9 MiB, so texts lie end to end in one blob, an id is 4 bytes of
 * offset and a text is found through 4-byte slots of open addressing that carry 8 bits of the hash to spare
 * most comparisons. */
#include "fmt_tok_internal.h"

#include <string.h>

/* Longer runs of occupied slots do not occur by chance at half load: the file was made to slow us down. */
#define MAX_PROBES 4096

static inline uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

weir_status fmt_tok_vocab_init(base_env *env, fmt_tok_vocab *v, uint64_t n, uint64_t blob_bytes, bool scores,
                               weir_error *err)
{
    if (n == 0 || n > FMT_TOK_MAX_VOCAB) {
        return base_fail(err, WEIR_ERR_TOKENIZER, "vocabulary of %llu tokens; 1 to %u are possible",
                         (unsigned long long)n, FMT_TOK_MAX_VOCAB);
    }
    if (blob_bytes > UINT32_MAX) {
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         "token texts of %llu bytes together; at most 4 GiB are possible",
                         (unsigned long long)blob_bytes);
    }
    v->n = (uint32_t)n;
    v->blob = base_alloc(env, BASE_TAG_TOKENIZER, (size_t)blob_bytes + 1, err);
    if (v->blob == NULL) return fmt_tok_no_memory(err);
    v->offsets = base_alloc_array(env, BASE_TAG_TOKENIZER, v->n + 1u, sizeof *v->offsets, err);
    if (v->offsets == NULL) return fmt_tok_no_memory(err);
    v->types = base_alloc(env, BASE_TAG_TOKENIZER, v->n, err);
    if (v->types == NULL) return fmt_tok_no_memory(err);
    if (scores) {
        v->scores = base_alloc_array(env, BASE_TAG_TOKENIZER, v->n, sizeof *v->scores, err);
        if (v->scores == NULL) return fmt_tok_no_memory(err);
    }
    return WEIR_OK;
}

void fmt_tok_vocab_finish(base_env *env, fmt_tok_vocab *v)
{
    base_free(env, v->blob);
    base_free(env, v->offsets);
    base_free(env, v->types);
    base_free(env, v->scores);
    base_free(env, v->slots);
    memset(v, 0, sizeof *v);
}

weir_status fmt_tok_vocab_index(base_env *env, fmt_tok_vocab *v, weir_error *err)
{
    uint32_t n_slots = 16;
    while (n_slots < v->n + v->n / 2) n_slots *= 2;
    v->slots = base_alloc_array(env, BASE_TAG_TOKENIZER, n_slots, sizeof *v->slots, err);
    if (v->slots == NULL) return fmt_tok_no_memory(err);
    v->mask = n_slots - 1;
    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t len;
        const char *text = fmt_tok_text(v, id, &len);
        if (len > v->max_len) v->max_len = len;
        if (len == 0) continue;
        uint64_t h = mix(base_hash(BASE_HASH_SEED, text, len));
        uint32_t tag = (uint32_t)(h >> 56) << 24;
        uint32_t slot = (uint32_t)h & v->mask;
        uint32_t probes = 0;
        bool known = false;
        for (; v->slots[slot] != 0 && !known; slot = (slot + 1) & v->mask) {
            uint32_t entry = v->slots[slot], other_len;
            const char *other = fmt_tok_text(v, (entry & 0xffffff) - 1, &other_len);
            known = (entry & 0xff000000) == tag && other_len == len && memcmp(other, text, len) == 0;
            if (++probes > MAX_PROBES) {
                return base_fail(err, WEIR_ERR_TOKENIZER,
                                 "token %u: more than %d texts share one hash; this is not a real vocabulary",
                                 id, MAX_PROBES);
            }
        }
        if (!known) v->slots[slot] = tag | (id + 1);
    }
    return WEIR_OK;
}

int32_t fmt_tok_find_hashed(const fmt_tok_vocab *v, uint64_t hash, const char *text, size_t len)
{
    uint64_t h = mix(hash);
    uint32_t tag = (uint32_t)(h >> 56) << 24;
    for (uint32_t slot = (uint32_t)h & v->mask; v->slots[slot] != 0; slot = (slot + 1) & v->mask) {
        uint32_t entry = v->slots[slot], other_len;
        if ((entry & 0xff000000) != tag) continue;
        uint32_t id = (entry & 0xffffff) - 1;
        const char *other = fmt_tok_text(v, id, &other_len);
        if (other_len == len && memcmp(other, text, len) == 0) return (int32_t)id;
    }
    return -1;
}

int32_t fmt_tok_find(const fmt_tok_vocab *v, const char *text, size_t len)
{
    if (len == 0 || len > v->max_len) return -1;
    return fmt_tok_find_hashed(v, base_hash(BASE_HASH_SEED, text, len), text, len);
}

int32_t fmt_tok_find_plain(const fmt_tok_vocab *v, const char *text, size_t len)
{
    int32_t id = fmt_tok_find(v, text, len);
    if (id < 0) return -1;
    fmt_tok_type type = fmt_tok_type_of(v, (uint32_t)id);
    return type == FMT_TOK_CONTROL || type == FMT_TOK_UNKNOWN || type == FMT_TOK_BYTE ? -1 : id;
}
