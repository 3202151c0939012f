"""Whole models against other engines on this machine, in one run: the engines take turns, all of them loaded and warm, with
the same file, threads and tokens; medians of several rounds.

usage: python bench/bench_peers.py MODEL.gguf... --peer NAME=COMMAND [--peer ...]
           [--weir build/bench/worker_weir] [--rounds 5] [--threads 2] [--prompts 128,2048] [--depths 0,2048,8192] [--decode 16] [--json FILE]

COMMAND is a worker (the protocol stands in worker_weir.c) and gets MODEL THREADS CTX behind its own arguments, for example
'python bench/worker_llama_cpp.py'. A ratio is Weir's rate over the fastest peer's: above 1 means that Weir is faster. Decoding is
also given as a share of memory's rate, measured between the rounds: bytes of weights per token (the cache's not counted) times
tokens per second over what memory delivers to as many threads."""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


class Engine:
    def __init__(self, name, command, model, threads, n_ctx):
        self.name = name
        self.process = subprocess.Popen([*command, model, str(threads), str(n_ctx)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.position = 0

    def do(self, word, n=0):
        self.position = 0 if word == "reset" else self.position + n
        return self.ask(word, n)

    def ask(self, word, n=0):
        self.process.stdin.write(f"{word} {n}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"bench_peers: {self.name} stopped")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def turns(engines, rounds, measure, facts=None):
    """{engine: median rate} of `measure`, the engines taking turns, in an order that moves on each round."""
    rates = {e.name: [] for e in engines}
    for r in range(rounds):
        if facts is not None:
            facts.append(engines[0].ask("memory"))
        for i in range(len(engines)):
            e = engines[(r + i) % len(engines)]
            rates[e.name].append(measure(e))
    return {name: statistics.median(x) for name, x in rates.items()}


def prefill(e, n):
    e.do("reset")
    return n / e.do("prefill", n)


def decode(e, depth, n):
    if e.position < depth:
        e.do("prefill", depth - e.position)
    if depth == 0:
        e.do("reset")
    return n / e.do("decode", n)


def model_rows(o, path):
    n_ctx = max(max(o.depths) + o.rounds * o.decode, max(o.prompts)) + 64
    n_ctx = (n_ctx + 255) // 256 * 256
    commands = [("weir", [o.weir])] + [(p.split("=", 1)[0], shlex.split(p.split("=", 1)[1])) for p in o.peer]
    engines = [Engine(name, command, path, o.threads, n_ctx) for name, command in commands]
    for e in engines:  # warm up: pages in, threads up
        e.do("prefill", 32)
        e.do("decode", 4)
    weights = engines[0].ask("weights")
    for n in o.prompts:
        yield "prefill", n, turns(engines, o.rounds, lambda e: prefill(e, n)), None
    for e in engines:
        e.do("reset")
    for depth in o.depths:
        memory = []
        rates = turns(engines, o.rounds, lambda e: decode(e, depth, o.decode), memory)
        yield "decode at", depth, rates, rates["weir"] * weights / statistics.median(memory)
    for e in engines:
        e.close()


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("models", nargs="+")
    a.add_argument("--peer", action="append", required=True)
    a.add_argument("--weir", default="build/bench/worker_weir")
    for name, value in (("rounds", 5), ("threads", 2), ("decode", 16)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--prompts", type=numbers, default=[128, 2048])
    a.add_argument("--depths", type=numbers, default=[0, 2048, 8192])
    a.add_argument("--json", default="")
    o = a.parse_args()
    rows = []
    for path in o.models:
        for kind, n, rates, share in model_rows(o, path):
            best = max(rate for name, rate in rates.items() if name != "weir")
            row = {"model": path.rsplit("/", 1)[-1], "what": f"{kind} {n}", **rates, "ratio": rates["weir"] / best, "share_of_memory": share}
            rows.append(row)
            print(f"{row['model']:38} {row['what']:16} " + "  ".join(f"{k} {v:8.1f}" for k, v in rates.items()) + f"  ratio {row['ratio']:.2f}" + (f"  {100 * share:3.0f} % of memory" if share else ""), flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(rows, f, indent=1)


main()
