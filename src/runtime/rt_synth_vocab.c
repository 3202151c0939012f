/* A vocabulary of any size that really tokenizes: byte-level BPE (the 256 byte letters of GPT-2's published
 * table), then merges level 1: two lower-case letters            "t" + "h" level 2: the space letter and such
 * a pair  "\u0120" + "th" level 3: two pairs                         "th" + "er" level 4: the space letter
 * and two pairs    "\u0120" + "ther" and three control tokens at the end. */
#include "rt_synth.h"

#include <string.h>

enum { N_BYTES = 256, N_PAIRS = 26 * 26, N_QUADS = N_PAIRS * N_PAIRS };

const char *const rt_synth_control[RT_SYNTH_N_CONTROL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

const char rt_synth_chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

uint32_t rt_synth_vocab_max(void)
{
    return N_BYTES + 2 * N_PAIRS + 2 * N_QUADS + RT_SYNTH_N_CONTROL;
}

/* GPT-2's letter for a byte: printable Latin-1 stands for itself, the rest is moved to U+0100 and up. */
static size_t byte_letter(uint32_t byte, char *buf)
{
    uint32_t code = byte;
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (!plain) {
        code = 256;
        for (uint32_t b = 0; b < byte; b++)
            if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)) code++;
    }
    if (code < 128) {
        buf[0] = (char)code;
        return 1;
    }
    buf[0] = (char)(0xc0 | (code >> 6));
    buf[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static size_t put_pair(uint32_t pair, char *buf)
{
    buf[0] = (char)('a' + pair / 26);
    buf[1] = (char)('a' + pair % 26);
    return 2;
}

/* The two halves of merge m; each buf holds 8 bytes. */
static void merge_halves(uint32_t m, char *left, size_t *n_left, char *right, size_t *n_right)
{
    if (m < N_PAIRS) {
        left[0] = (char)('a' + m / 26);
        right[0] = (char)('a' + m % 26);
        *n_left = *n_right = 1;
    } else if (m < 2 * N_PAIRS) {
        *n_left = byte_letter(' ', left);
        *n_right = put_pair(m - N_PAIRS, right);
    } else if (m < 2 * N_PAIRS + N_QUADS) {
        m -= 2 * N_PAIRS;
        *n_left = put_pair(m / N_PAIRS, left);
        *n_right = put_pair(m % N_PAIRS, right);
    } else {
        m -= 2 * N_PAIRS + N_QUADS;
        *n_left = byte_letter(' ', left);
        *n_right = put_pair(m / N_PAIRS, right);
        *n_right += put_pair(m % N_PAIRS, right + 2);
    }
}

size_t rt_synth_merge(uint32_t m, char *buf)
{
    char left[8], right[8];
    size_t n_left, n_right;
    merge_halves(m, left, &n_left, right, &n_right);
    memcpy(buf, left, n_left);
    buf[n_left] = ' ';
    memcpy(buf + n_left + 1, right, n_right);
    buf[n_left + 1 + n_right] = 0;
    return n_left + 1 + n_right;
}

size_t rt_synth_token(uint32_t n_vocab, uint32_t id, char *buf)
{
    size_t n;
    if (id < N_BYTES) {
        n = byte_letter(id, buf);
    } else if (id >= n_vocab - RT_SYNTH_N_CONTROL) {
        const char *text = rt_synth_control[id - (n_vocab - RT_SYNTH_N_CONTROL)];
        n = strlen(text);
        memcpy(buf, text, n);
    } else {
        char left[8], right[8];
        size_t n_left, n_right;
        merge_halves(id - N_BYTES, left, &n_left, right, &n_right);
        memcpy(buf, left, n_left);
        memcpy(buf + n_left, right, n_right);
        n = n_left + n_right;
    }
    buf[n] = 0;
    return n;
}

/* Builds `count` strings with `make` and hands them to the writer as one array. */
static weir_status write_strings(const rt_synth *s, fmt_writer *w, const char *key, uint32_t count,
                                 size_t (*make)(uint32_t n_vocab, uint32_t i, char *buf), weir_error *err)
{
    weir_status status = WEIR_ERR_OUT_OF_MEMORY;
    char(*text)[RT_SYNTH_MAX_TOKEN] = base_alloc_array(s->env, BASE_TAG_RUNTIME, count, sizeof *text, err);
    const char **items = base_alloc_array(s->env, BASE_TAG_RUNTIME, count, sizeof *items, err);
    if (text != NULL && items != NULL) {
        for (uint32_t i = 0; i < count; i++) {
            make(s->o.n_vocab, i, text[i]);
            items[i] = text[i];
        }
        status = fmt_writer_str_array(w, key, count, items, NULL, err);
    }
    base_free(s->env, items);
    base_free(s->env, text);
    return status;
}

static size_t make_merge(uint32_t n_vocab, uint32_t i, char *buf)
{
    (void)n_vocab;
    return rt_synth_merge(i, buf);
}

static weir_status write_token_types(const rt_synth *s, fmt_writer *w, weir_error *err)
{
    enum { NORMAL = 1, CONTROL = 3 };
    uint32_t n = s->o.n_vocab;
    int32_t *types = base_alloc_array(s->env, BASE_TAG_RUNTIME, n, sizeof *types, err);
    if (types == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n; i++) types[i] = i >= n - RT_SYNTH_N_CONTROL ? CONTROL : NORMAL;
    weir_status status = fmt_writer_array(w, "tokenizer.ggml.token_type", FMT_I32, n, types, err);
    base_free(s->env, types);
    return status;
}

weir_status rt_synth_vocab_gguf(const rt_synth *s, fmt_writer *w, weir_error *err)
{
    uint32_t n = s->o.n_vocab;
    weir_status status = fmt_writer_str(w, "tokenizer.ggml.model", "gpt2", err);
    if (status == WEIR_OK) status = fmt_writer_str(w, "tokenizer.ggml.pre", "gpt-2", err);
    if (status == WEIR_OK) status = write_strings(s, w, "tokenizer.ggml.tokens", n, rt_synth_token, err);
    if (status == WEIR_OK) status = write_token_types(s, w, err);
    if (status == WEIR_OK)
        status =
            write_strings(s, w, "tokenizer.ggml.merges", n - N_BYTES - RT_SYNTH_N_CONTROL, make_merge, err);
    if (status == WEIR_OK) status = fmt_writer_u32(w, "tokenizer.ggml.bos_token_id", n - 3, err);
    if (status == WEIR_OK) status = fmt_writer_u32(w, "tokenizer.ggml.eos_token_id", n - 1, err);
    if (status == WEIR_OK) status = fmt_writer_bool(w, "tokenizer.ggml.add_bos_token", false, err);
    if (status == WEIR_OK) status = fmt_writer_str(w, "tokenizer.chat_template", rt_synth_chat_template, err);
    return status;
}
