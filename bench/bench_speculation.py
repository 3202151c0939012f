#!/usr/bin/env python3
"""Guessing (--speculate) against plain decoding, on texts that repeat and on texts that do not, greedy and sampled.

usage: bench/bench_speculation.py [--weir build/weir] [--rounds N] [-n TOKENS] [--only TEXT,..] [--how auto] [--json FILE] RUN...

A RUN is MODEL, with settings behind it: MODEL,mem=60MiB,draft=FILE,draft-mem=150MiB,name=WORDS. Each row is one call of `weir bench
--speculate` with a prompt of bench/prompts: both answers are made in one process and take turns of a few tokens, so that both see the
same minutes; each round begins with a fresh load. Prints the median of the rounds' ratios, with the lowest and the highest. Aims: 1.5 on
texts that repeat, 0.97 on any; exit 1 where an answer is not that of plain decoding."""

import argparse, json, os, subprocess, sys

PROMPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompts")
TEXTS = [  # name, whether it repeats
    ("edit-code", True),
    ("edit-table", True),
    ("quote-summary", True),
    ("quote-mail", True),
    ("story", False),
    ("explain", False),
    ("letter", False),
    ("code", False),
]
SAMPLINGS = [  # name, options, whether texts that repeat are sampled so
    ("greedy", [], True),
    ("0.8, min-p 0.1", ["--temp", "0.8", "--min-p", "0.1"], True),
    ("1.0", ["--temp", "1"], False),
]


def parse_run(text):
    model, *rest = text.split(",")
    if not all("=" in part for part in rest):
        sys.exit("%s: settings are NAME=VALUE" % text)
    run = dict(part.split("=", 1) for part in rest)
    unknown = sorted(set(run) - {"mem", "draft", "draft-mem", "chunk", "threads", "name"})
    if unknown:
        sys.exit("%s: unknown settings: %s" % (text, ", ".join(unknown)))
    run["model"] = model
    run.setdefault("name", os.path.basename(model).rsplit(".", 1)[0] + (" " + run["mem"] if "mem" in run else ""))
    return run


def measure(args, run, prompt, sampling):
    command = [args.weir, "bench", run["model"], "--speculate", args.how, "--prompt", "-", "-n", str(args.n), "--rounds", str(args.rounds)]
    command += ["--json", "--raw", "--seed", "1"] + sampling
    for name in ("mem", "draft", "draft-mem", "chunk", "threads"):
        if name in run:
            command += ["--" + name, run[name]]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)[0]
    except (ValueError, IndexError):
        return {"error": (done.stderr or done.stdout).strip()[-300:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--weir", default="build/weir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--how", default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--sampling", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    runs = [parse_run(text) for text in args.runs]
    rows, wrong = [], 0
    print("| model | text | sampling | plain/s | guess/s | ratio | lowest - highest | tokens a pass | right |")
    print("|---|---|---|---|---|---|---|---|---|")
    for run in runs:
        for name, repeats in TEXTS:
            if only and name not in only and ("repeat" if repeats else "ordinary") not in only:
                continue
            with open(os.path.join(PROMPTS, name + ".txt")) as f:
                prompt = f.read()
            for kind, sampling, also_repeating in SAMPLINGS:
                if (repeats and not also_repeating) or (args.sampling and kind != args.sampling):
                    continue
                row = measure(args, run, prompt, sampling)
                row.update(run=run["name"], prompt=name, repeats=repeats, sampling=kind)
                rows.append(row)
                if "error" in row:
                    wrong += 1
                    print("| %s | %s | %s | %s |" % (run["name"], name, kind, row["error"]), flush=True)
                    continue
                print("| %s | %s | %s | %.2f | %.2f | %.2f | %.2f - %.2f | %.2f | %d of %d |" % (
                    run["name"], name, kind, row["plain_tps"], row["speculate_tps"], row["ratio"], row["lowest_ratio"], row["highest_ratio"],
                    row["tokens"] / max(row["passes"], 1), row["accepted"], row["drafted"]), flush=True)
    good = [r for r in rows if "error" not in r]
    again, other = [r["ratio"] for r in good if r["repeats"]], [r["ratio"] for r in good if not r["repeats"]]
    print("\nTexts that repeat: %d of %d rows at 1.5 or more. Any text: %d of %d at 0.97 or more, the lowest %.3f." % (
        sum(r >= 1.5 for r in again), len(again), sum(r >= 0.97 for r in again + other), len(good), min(again + other, default=0)))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
