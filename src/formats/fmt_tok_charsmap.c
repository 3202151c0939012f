/* SentencePiece's precompiled character map: which stretches of text are replaced by which (a form of NFKC).
 * Layout: u32 bytes of the trie, the trie, NUL-terminated replacements. The trie is Darts' double array (S.
 * Yata, darts-clone; S. Kanda 2018): a node holds base in bits 10..30 (times 256 when bit 9 is set), has-leaf
 * in bit 8, label in bits 0..7, and, at a leaf, the offset of the replacement in bits 0..30. The file is
 * hostile: every step is checked. */
#include "fmt_tok_internal.h"

#include <string.h>

weir_status fmt_tok_charsmap_init(base_env *env, fmt_tok_charsmap *c, const uint8_t *bytes, size_t len,
                                  weir_error *err)
{
    uint32_t trie_bytes = 0;
    if (len >= 4) memcpy(&trie_bytes, bytes, 4);
    if (len < 4 || trie_bytes > len - 4 || trie_bytes % 4 != 0 || len > UINT32_MAX) {
        return base_fail(err, WEIR_ERR_TOKENIZER,
                         "precompiled character map of %zu bytes announces a trie of %u", len, trie_bytes);
    }
    c->bytes = base_alloc(env, BASE_TAG_TOKENIZER, len, err);
    if (c->bytes == NULL) return fmt_tok_no_memory(err);
    memcpy(c->bytes, bytes, len);
    c->n_nodes = trie_bytes / 4;
    c->texts = (const char *)c->bytes + 4 + trie_bytes;
    c->texts_len = (uint32_t)len - 4 - trie_bytes;
    return WEIR_OK;
}

void fmt_tok_charsmap_finish(base_env *env, fmt_tok_charsmap *c)
{
    base_free(env, c->bytes);
    memset(c, 0, sizeof *c);
}

/* A node outside the array reads as 0, which matches no label. */
static uint32_t node_at(const fmt_tok_charsmap *c, uint32_t i)
{
    uint32_t node = 0;
    if (i < c->n_nodes) memcpy(&node, c->bytes + 4 + 4 * (size_t)i, 4);
    return node;
}

static uint32_t node_base(uint32_t node)
{
    return (node >> 10) << ((node & 0x200) >> 6);
}

size_t fmt_tok_charsmap_match(const fmt_tok_charsmap *c, const char *p, size_t n, const char **text,
                              size_t *text_len)
{
    size_t best = 0;
    uint32_t at = node_base(node_at(c, 0)), offset = 0;
    for (size_t i = 0; i < n && p[i] != 0; i++) {
        at ^= (uint8_t)p[i];
        uint32_t node = node_at(c, at);
        if ((node & 0x800000ffu) != (uint8_t)p[i]) break;
        at ^= node_base(node);
        if (node & 0x100) {
            best = i + 1;
            offset = node_at(c, at) & 0x7fffffffu;
        }
    }
    if (best == 0 || offset >= c->texts_len) return 0;
    const char *end = memchr(c->texts + offset, 0, c->texts_len - offset);
    if (end == NULL) return 0;
    *text = c->texts + offset;
    *text_len = (size_t)(end - *text);
    return best;
}
