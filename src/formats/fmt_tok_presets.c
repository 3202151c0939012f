/* Pre-tokenizers by the names of tokenizer.ggml.pre. The patterns are part of the models' definition: they
 * stand in their tokenizer.json files; which name means which is llama.cpp's convention
 * (convert_hf_to_gguf.py, llama-vocab.cpp). A list is applied pattern by pattern: each cuts the pieces that
 * those before it left. */
#include "fmt_tok_internal.h"

#include <string.h>

#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT_FORMS "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define WORD        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Words of the GPT-4o family begin a new piece where small letters are followed by a capital. */
#define CAPS  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" CAPS "*" SMALL "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" CAPS "+" SMALL "*" tail

/* deepseek-llm spells out the cased letters of the Unicode version it was made with. */
#define DEEPSEEK_LETTERS                                                                                     \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"          \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"   \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"          \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"        \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"        \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{"     \
    "1f7d}"                                                                                                  \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{"    \
    "1fd3}"                                                                                                  \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"         \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"          \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"          \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"         \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"        \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"      \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"                   \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_SIGNS "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"
#define DEEPSEEK_CJK   "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK3_CJK  "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"

static const fmt_tok_preset presets[] = {
    {" gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat "
     "a.x-4.0 mellum modern-bert mpt olmo jais "
     "exaone4 trillion granite-docling ",
     false,
     false,
     {GPT2}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     true,
     true,
     {SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" SIGNS "|" SPACES}},
    {" dbrx smaug-bpe chatglm-bpe glm4 ",
     false,
     false,
     {SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" SIGNS "|" SPACES}},
    {" qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez grok-2 solar-open kormo ",
     false,
     false,
     {SHORT_FORMS "|" WORD "|\\p{N}|" SIGNS "|" SPACES}},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ", false, false, {"\\p{N}", GPT2}},
    {" deepseek-llm ",
     false,
     false,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+", "\\s?[" DEEPSEEK_SIGNS "]+", "\\s+\\z", DEEPSEEK_CJK,
      "\\p{N}+"}},
    {" deepseek-coder ", false, false, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense ",
     false,
     false,
     {"\\p{N}{1,3}", DEEPSEEK3_CJK,
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
    {" falcon ", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" tekken ", true, true, {CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {" gpt-4o llama4 kanana2 ",
     false,
     false,
     {CASED(SHORT_FORMS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {" default ", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const fmt_tok_preset *fmt_tok_preset_find(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || strchr(name, ' ') != NULL) return NULL;
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        for (const char *p = strstr(presets[i].names, name); p != NULL; p = strstr(p + 1, name)) {
            if (p[-1] == ' ' && p[len] == ' ') return &presets[i];
        }
    }
    return NULL;
}
