"""Whole models against llama.cpp on this machine, in one run: alternating, median of several rounds, same threads, same file.

usage: python bench/bench_peers.py WEIR MODEL.gguf... [--rounds 5] [--threads 2] [--prompt 128] [--decode 32] [--depth 0]
needs: pip install llama-cpp-python (it builds llama.cpp). Prints one line per model and kind, and with --json a document.

Peers run in processes of their own, one after the other, each round; a ratio above 1 means that Weir is faster."""
import argparse
import json
import statistics
import subprocess
import sys
import time


def peer(path, threads, n_prompt, n_decode, depth):
    import ctypes

    import llama_cpp as lc

    quiet = lc.llama_log_callback(lambda *a: None)  # must outlive the calls below
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = depth + n_prompt + n_decode + 8, 2048, 512
    params.n_threads = params.n_threads_batch = threads
    ctx = lc.llama_init_from_model(model, params)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    ids = [(i * 7919 + 13) % n_vocab for i in range(depth + n_prompt + n_decode)]

    def run(tokens):
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if lc.llama_decode(ctx, lc.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        lc.llama_synchronize(ctx)

    run(ids[:16])  # warm up: pages in, threads up
    lc.llama_memory_clear(lc.llama_get_memory(ctx), True)
    for i in range(0, depth, 512):
        run(ids[i : min(i + 512, depth)])
    start = time.perf_counter()
    run(ids[depth : depth + n_prompt])
    prefill = n_prompt / (time.perf_counter() - start)
    start = time.perf_counter()
    for t in ids[depth + n_prompt :]:
        run([t])
    print(json.dumps({"prefill_tps": prefill, "decode_tps": n_decode / (time.perf_counter() - start)}))


def child(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("weir")
    a.add_argument("models", nargs="+")
    for name, value in (("rounds", 5), ("threads", 2), ("prompt", 128), ("decode", 32), ("depth", 0)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    rows = []
    for path in o.models:
        ours, theirs = [], []
        for _ in range(o.rounds):
            theirs.append(child([sys.executable, __file__, "--peer", path, str(o.threads), str(o.prompt), str(o.decode), str(o.depth)]))
            ours.append(child([o.weir, "bench", path, "--threads", str(o.threads), "--prompt-tokens", str(o.prompt), "-n", str(o.decode),
                               *(["--depth", str(o.depth)] if o.depth else []), "--rounds", "1", "--json"])[0])
        for kind in ("prefill_tps", "decode_tps"):
            w, p = (statistics.median(r[kind] for r in side) for side in (ours, theirs))
            rows.append({"model": path.rsplit("/", 1)[-1], "kind": kind, "depth": o.depth, "weir": w, "llama_cpp": p, "ratio": w / p})
            if not o.json:
                print(f"{rows[-1]['model']:42} {kind:12} weir {w:9.1f}  llama.cpp {p:9.1f}  ratio {w / p:.2f}", flush=True)
    if o.json:
        print(json.dumps(rows, indent=1))


if len(sys.argv) > 1 and sys.argv[1] == "--peer":
    peer(sys.argv[2], *map(int, sys.argv[3:]))
else:
    main()
