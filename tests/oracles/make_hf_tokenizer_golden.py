"""Makes small tokenizers of the kinds that tokenizer.json files describe, and what huggingface/tokenizers does with texts.

usage: python make_hf_tokenizer_golden.py        (needs: pip install tokenizers numpy)

Writes tests/golden/hf_tok_<kind>/: tokenizer.json, tokenizer_config.json, config.json, model.safetensors (one tensor, so that the folder is
a model), cases.txt (text in hex; ids with special tokens parsed, none added; text decoded without special tokens, in hex). Trained on the
GNU GPL 3 as Debian's base-files installs it."""
import json
import os
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizer_golden import FIXED, POOL

TEXT = "/usr/share/common-licenses/GPL-3"
EXTRA = ["\u00e9\u00fc\u00df \u4f60\u597d \u4e16\u754c \u0436\u0437\u0438 \U0001f600\U0001f600 na\u00efve caf\u00e9 e\u0301 1234 5678 90 3.14"] * 30
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def added(tok):
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<|user|>", rstrip=True, special=True)])
    tok.add_tokens([AddedToken("[word]", single_word=True, normalized=False), AddedToken("[[", normalized=False), AddedToken("[[[x", normalized=False)])


def frame(tok):
    first = tok.token_to_id("<|endoftext|>")
    tok.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", pair=None, special_tokens=[("<|endoftext|>", first)])


def lines():
    return open(TEXT).read().split("\n") + EXTRA


def byte_bpe(pre, nfc):
    tok = Tokenizer(models.BPE(ignore_merges=nfc))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def sp_bpe():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # for training only
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    tok.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", "<s>", "</s>"] + SPECIALS + bytes_))
    spec = json.loads(tok.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]
    spec["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(spec))
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


def unigram():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tok.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tok.train_from_iterator(lines(), trainers.UnigramTrainer(vocab_size=800, special_tokens=["<unk>"] + SPECIALS, unk_token="<unk>"))
    return tok


def cases(rng):
    for t in FIXED:
        yield t
    for t in ["a <mask> b", "a<mask>b", "<|user|>  \n x", "[word] x[word] [word]y ([word])", "[[[x [[[ [[x", "a[[b", "<|im_start|>user\nHi<|im_end|>\n"]:
        yield t
    for _ in range(60):
        yield "".join(rng.choice(POOL) for _ in range(rng.randrange(1, 30)))


def write(here, kind, tok):
    folder = os.path.join(here, "..", "golden", "hf_tok_" + kind)
    os.makedirs(folder, exist_ok=True)
    added(tok)
    frame(tok)
    tok.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    json.dump({"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>", "special": True}, "chat_template": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"},
              open(os.path.join(folder, "tokenizer_config.json"), "w"))
    n = tok.get_vocab_size()
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": n, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True},
              open(os.path.join(folder, "config.json"), "w"))
    head = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + struct.pack("<8f", *[1.0] * 8))
    with open(os.path.join(folder, "cases.txt"), "w") as f:
        print("# made by tests/oracles/make_hf_tokenizer_golden.py", file=f)
        for text in cases(random.Random(7)):
            ids = tok.encode(text, add_special_tokens=False).ids
            print("text", text.encode("utf-8").hex(), file=f)
            print("ids", *ids, file=f)
            print("back", tok.decode(ids, skip_special_tokens=True).encode().hex(), file=f)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    llama3 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    write(here, "llama3", byte_bpe(llama3, True))
    write(here, "smollm", byte_bpe(smollm, False))
    write(here, "prefix", byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), False))
    write(here, "spbpe", sp_bpe())
    write(here, "unigram", unigram())


main()
