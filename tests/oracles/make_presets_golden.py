"""Writes tests/golden/presets.txt: how huggingface/tokenizers cuts texts by the pre-tokenizers of well-known models.

usage: python make_presets_golden.py        (needs: pip install tokenizers llama-cpp-python)

The patterns are those of the models' tokenizer.json files. A line is: the preset's name, the text in hex, the ends of its pieces in bytes."""
import os
import random

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from make_tokenizer_golden import FIXED, POOL

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = TEKKEN.replace(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + SHORT + "|").replace(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + SHORT + r"|\p{N}{1,3}|")
V3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRESETS = {
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "smollm": [r"\p{N}", GPT2],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", V3],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
}


def main():
    rng = random.Random(3)
    # U+017F folds to s in (?i:...) there; GGUF's convention, which we follow, does not.
    texts = [t for t in FIXED if "\u017f" not in t] + ["".join(rng.choice(POOL) for _ in range(rng.randrange(1, 50))) for _ in range(60)]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "presets.txt")
    with open(path, "w") as f:
        print("# made by tests/oracles/make_presets_golden.py", file=f)
        for name, patterns in PRESETS.items():
            cut = Sequence([Split(Regex(p.encode().decode("unicode_escape") if "\\u" in p else p), "isolated") for p in patterns])
            for text in texts:
                ends, n = [], 0
                for piece, _ in cut.pre_tokenize_str(text):
                    n += len(piece.encode())
                    ends.append(n)
                assert n == len(text.encode()), (name, text)
                print(name, text.encode().hex() or "-", *ends, file=f)


main()
