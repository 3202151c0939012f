"""Writes tests/golden/llama_<model>.txt: what llama.cpp (through llama-cpp-python) says of a real model.

usage: python make_llama_golden.py MODEL.gguf NAME        (needs: pip install llama-cpp-python numpy)

For 20 prompts: the token ids and, at every position, the most likely next token. For a long text (the GNU GPL 3 as Debian's
base-files installs it): the first 4,000 tokens' hash and the perplexity over four stretches of 1,000 tokens, each read from
an empty cache (behind BOS where the model asks for it)."""
import os
import sys

import llama_cpp
import numpy as np

TEXT = "/usr/share/common-licenses/GPL-3"
STRETCH, N_STRETCHES = 1000, 4


def fnv(ids):
    h = 0xCBF29CE484222325
    for b in np.asarray(ids, dtype="<i4").tobytes():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def logits(model, ids):
    model.reset()
    model.eval(ids)
    return np.array(model.scores[: len(ids)], dtype=np.float32)


def nll(model, ids):
    out = logits(model, ids)[:-1]
    out -= out.max(axis=1, keepdims=True)
    logp = out - np.log(np.exp(out).sum(axis=1, keepdims=True, dtype=np.float64))
    return -logp[np.arange(len(ids) - 1), ids[1:]]


def main():
    path, name = sys.argv[1], sys.argv[2]
    here = os.path.dirname(os.path.abspath(__file__))
    model = llama_cpp.Llama(path, n_ctx=1024 + 64, n_batch=512, logits_all=True, n_threads=1, verbose=False)
    add_bos = bool(llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(model.model)))
    bos = [model.token_bos()] if add_bos else []
    with open(os.path.join(here, "..", "golden", f"llama_{name}.txt"), "w") as f:
        print(f"# llama-cpp-python {llama_cpp.__version__}, {os.path.basename(path)}; made by tests/oracles/make_llama_golden.py", file=f)
        for line in open(os.path.join(here, "prompts.txt"), encoding="utf-8"):
            text = line.rstrip("\n").encode().decode("unicode_escape").encode("latin-1").decode("utf-8")
            ids = bos + model.tokenize(text.encode(), add_bos=False, special=False)
            best = logits(model, ids).argmax(axis=1)
            print("ids", *ids, file=f)
            print("top", *best, file=f)
        text = open(TEXT, "rb").read()
        ids = model.tokenize(text, add_bos=False, special=False)[: STRETCH * N_STRETCHES]
        losses = np.concatenate([nll(model, bos + ids[i * STRETCH : (i + 1) * STRETCH]) for i in range(N_STRETCHES)])
        print("text", len(ids), f"{fnv(ids):016x}", STRETCH, file=f)
        print("perplexity", len(losses), f"{np.exp(losses.mean()):.6f}", file=f)


main()
