"""Writes tests/golden/tokenizer_<name>.txt: the ids that llama.cpp (through llama-cpp-python) gives to nasty texts.

usage: python make_tokenizer_golden.py MODEL.gguf NAME ...        (pairs; needs: pip install llama-cpp-python)

A case is three lines: the text in hex, the ids with special tokens as plain text, the ids with special tokens parsed; no BOS."""
import os
import random
import sys

import llama_cpp

FIXED = [
    "", " ", "  ", "   ", "\t", "\t\t\t", "\n", "\n\n", "\n\n\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", " \n \n", "\t\n\t",
    "a", " a", "a ", "  a  ", "\u00a0", "a\u00a0b", "\u2003x\u3000y\u202fz", "\u200b", "\ufeffBOM", "\u180e", "a\u0085b", "\u2028line\u2029para",
    "Hello, world!", "Hello\nworld", "Hello \n world ", " leading", "trailing ", "two  spaces", "x" * 40, "ab" * 60, "=" * 100, "-" * 37,
    " " * 17, " " * 64, "\n" * 40, "\t" * 35, "a" + " " * 31 + "b", "a" + "\n" * 33 + "b", "." * 17,
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "i'Ll We'vE y'all's 'tis rock'n'roll '' ''' 's 't", "it\u2019s \u2018quoted\u2019 \u201cdouble\u201d",
    "0", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000.00", "-17e-5", "0x1F 0b101 1_000", "\u0663\u0664\u0665 \u4e09\u5341 \u00bd \u00b2 \u2167 \u2460", "v1.2.3-rc4+build5", "2024-02-29T23:59:60Z",
    "\U0001f600", "\U0001f600\U0001f600\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "a\U0001f999b", "\u2615 coffee \u2600\ufe0f",
    "e\u0301", "\u00e9", "n\u0303o", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324", "\u1100\u1161\u11a8", "\uac01", "\u0915\u094d\u0937\u093f", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "\u1780\u17b6\u1793\u17cb", "\uff21\uff22\uff23\uff11\uff12\uff13\uff01", "\ufb01 \ufb03 \u01c5", "\u0130 \u0131 \u1e9e \u00df \u017f", "\U00010400\U00010428", "\U00020000\U0002a6df", "\ue000\U000f0000", "\u0378",
    "\x00", "a\x00b", "\x01\x02\x1b[31m\x7f", "\x0b\x0c", "\u0080\u009f",
    "int main(void)\n{\n    return 0;\n}\n", "def f(x):\n\treturn x**2  # square\n\n\nclass A:\n    pass\n", "if (a<=b && !c || d!=e) { f->g::h(\"s\\n\"); } // \u00e4", "SELECT * FROM t WHERE a='b';--", "<div class=\"x\">&amp;</div>", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\"}", "https://example.com/a/b?c=d&e=%20f#g", "user.name+tag@mail.example.org", "C:\\Users\\x\\y.txt", "/usr/lib/x86_64-linux-gnu/libc.so.6", "$x^2 + \\frac{1}{2} \\leq \\sum_{i=0}^{n}$", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "#include <stdio.h>", "`code` **bold** _it_ ~~no~~", "| a | b |\n|---|---|\n| 1 | 2 |",
    "\u2581", "\u2581\u2581a", "\u0120the \u010a", "<0x0A>", "<0x41><0xZZ>", "<unk>", "<s>", "</s>x", "<pad>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b <|im_start|>", "<|im_start|", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<bos><eos>", "<b>bold</b><table><tr><td>x</td></tr></table>", "<unused7>", "[INST] x [/INST]", "[CLS] a [SEP] [MASK]", "<repo_name>a<file_sep>b<reponame>",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaftskapit\u00e4n", "The quick brown fox jumps over the lazy dog.", "THE QUICK BROWN FOX", "tHe QuIcK", "don\u00b4t `quote' \u00abguillemets\u00bb \u2026 \u2014 \u2013", "\u00a3\u20ac\u00a5$\u00a2 50% 30\u00b0C \u00b1 \u00d7 \u00f7", "...,,,;;;:::!!!???", "a.b,c;d:e!f?g", "(a)[b]{c}<d>", "\u0301", " \u0301a", "a\u200dz", "\u202eright to left\u202c",
]
RAW = [b"\xff", b"a\xffb", b"\x80\x81", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"ok \xc3\xa9 \xc3 x", b"\xfe\xff", b"\xe4\xbd\xa0\xe5\xa5", b"tab\t\xc0end"]
POOL = list("aeinorst AEIT019.,;:!?'\"()-_/\\\n\t  ") + ["  ", "\n\n", "the ", "ing", " and", "'s", "\u00e9", "\u00fc", "\u0436", "\u4e2d", "\u6587", "\u3042", "\ud55c", "\U0001f600", "\u200d", "\u0301", "\u00a0", "\r\n", "1234", "\u0660", "\u0e01", "\u2014", "</", "<", ">", "|", "\u2581"]


def texts():
    yield from (t.encode("utf-8", "surrogatepass") for t in FIXED)
    yield from RAW
    rng = random.Random(20)
    for _ in range(120):
        yield "".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40))).encode()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for path, name in zip(sys.argv[1::2], sys.argv[2::2]):
        model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        with open(os.path.join(here, "..", "golden", f"tokenizer_{name}.txt"), "w") as f:
            print(f"# llama-cpp-python {llama_cpp.__version__}, {os.path.basename(path)}; made by tests/oracles/make_tokenizer_golden.py", file=f)
            for text in texts():
                print("text", text.hex(), file=f)
                print("plain", *model.tokenize(text, add_bos=False, special=False), file=f)
                print("special", *model.tokenize(text, add_bos=False, special=True), file=f)


if __name__ == "__main__":
    main()
