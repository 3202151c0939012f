#!/usr/bin/env python3
"""Holds `weir plan` against what runs: peaks and rates over models, types, budgets, contexts and sessions.

usage: tools/bench_plan.py BUILD MODELS WORK [--part I/N|--rows A,B,..] [--keep] [--write docs/capacity.md]

Each combination is two steps of `weir measure`, each in a fresh process, and between them one prediction: what a shared machine's speed
drifts by in those seconds strikes all three. The measured rate is that of a token's mean time in both steps, the peak the larger one.
--part does every N-th, --rows those named (from 0 on), and their rows are kept in WORK, so that a long sweep can be done in pieces; --keep
leaves out those that WORK has rows of; --write puts the table of all rows in WORK into the document. A peak is right within 2 % or 2 MiB of the plan, a rate within 15 % or
in the range that was stated. Exit 1 where a peak is not right."""

import json, os, statistics, subprocess, sys

SYNTH = [  # name, arch, type, further arguments
    ("llama-q8", "llama", "Q8_0", []),
    ("llama-q4k", "llama", "Q4_K_M", []),
    ("llama-f16", "llama", "F16", []),
    ("qwen2-q40", "qwen2", "Q4_0", []),
    ("qwen3-bf16", "qwen3", "BF16", []),
    ("gemma3-q6k", "gemma3", "Q6_K", ["--window", "256"]),
]
REAL = [("SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("Gemma3-270M", "gemma3-270m-q4_k_m.gguf")]
# share of the way from the smallest budget to the one that holds all (above 1: beyond it), context, sessions
CASES = [(0.1, 512, 1), (0.5, 512, 1), (1.1, 512, 1), (0.3, 1024, 2), (0.8, 1024, 2), (1.1, 1024, 2), (0.6, 2048, 4), (1.1, 2048, 4)]
MIB = 1 << 20


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stderr or done.stdout).strip()[-200:]}


def models(weir, folder, work):
    found = []
    for name, file in REAL:
        path = os.path.join(folder, file)
        if os.path.exists(path):
            found.append((name, path))
        else:
            print("skipped: %s is not there; tools/get_models.sh fetches it" % path)
    for name, arch, kind, more in SYNTH:
        path = os.path.join(work, name + ".gguf")
        if not os.path.exists(path):
            shape = ["--hidden", "512", "--layers", "10", "--heads", "8", "--kv-heads", "2", "--ffn", "1536", "--vocab", "8192", "--ctx", "4096"]
            subprocess.run([weir, "synth", "--arch", arch, "--type", kind, "--quiet", "-o", path] + shape + more, check=True)
        found.append((name, path))
    return found


def combinations(weir, folder, work):
    for name, path in models(weir, folder, work):
        for share, ctx, sessions in CASES:
            yield name, path, share, ctx, sessions


def measure(weir, path, share, ctx, sessions):
    options = ["--ctx", str(ctx), "--chunk", "128"]
    plan = run([weir, "plan", path, "--sessions", str(sessions), "--no-rates", "--json"] + options)
    if "smallest_bytes" not in plan:
        return plan
    smallest, whole = plan["smallest_bytes"], plan["whole_bytes"]
    budget = int(smallest + share * (whole - smallest)) // MIB * MIB + MIB
    command = [weir, "measure", path, "--sessions", "%d..%d" % (sessions, sessions), "--mem", "%dB" % budget, "--prompt-tokens", "256",
               "-n", "40", "--no-hash", "--interval", "250", "--json"] + options
    steps = []
    for more in ["--no-rates"], []:
        report = run(command + more)
        if "steps" not in report:
            return report
        step = report["steps"][0]
        if step["outcome"] != "ok":
            return {"error": step["outcome"] + " " + step.get("error", {}).get("message", "")}
        steps.append(step)
    step = steps[1]
    rates = {k: 2 / sum(1 / s["rates"][k] for s in steps) for k in ("prefill_tps", "decode_tps")}
    return {"budget": budget, "planned": step["plan"]["planned_peak_bytes"], "peak": max(s["measured"]["peak_rss_bytes"] for s in steps),
            "streamed": step["plan"]["streamed_bytes_per_pass"], "rates": rates, "each": [s["rates"] for s in steps],
            "predicted": step.get("prediction")}


def rate(row, measured, predicted):
    got, said = row["rates"][measured], (row["predicted"] or {}).get(predicted)
    if said is None:
        return None
    close = abs(got - said["likely"]) <= 0.15 * got
    return got, said["likely"], said["low"], said["high"], close, close or said["low"] <= got <= said["high"]


def peak_right(row):
    off = abs(row["peak"] - row["planned"])
    return off <= 2 * MIB or off <= 0.02 * row["planned"]


def number(x):
    return "%.1f" % x if x < 100 else "%.0f" % x


def table(rows):
    out = ["| model | budget | context | sessions | streams | planned | peak | off | prefill: predicted (range), measured | decode: predicted (range), measured |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    peaks = rates = near = good = 0
    below, above = [], []
    for r in rows:
        if "error" in r:
            out.append("| %s | %s of the way | %d | %d | %s |||||||" % (r["name"], r["share"], r["ctx"], r["sessions"], r["error"]))
            continue
        cells = []
        for measured, predicted in (("prefill_tps", "prefill_tps"), ("decode_tps", "all_sessions_tps")):
            x = rate(r, measured, predicted)
            if x is None:
                cells.append("-")
                continue
            rates += 1
            near += x[4]
            good += x[5]
            below.append(100 * (1 - x[2] / x[1]))
            above.append(100 * (x[3] / x[1] - 1))
            cells.append("%s (%s to %s), %s%s" % (number(x[1]), number(x[2]), number(x[3]), number(x[0]), "" if x[5] else " **outside**: " + " and ".join(number(each[measured]) for each in r["each"])))
        peaks += peak_right(r)
        out.append("| %s | %d MiB | %d | %d | %.1f MiB | %.1f MiB | %.1f MiB | %+.2f %%%s | %s | %s |" % (
            r["name"], r["budget"] / MIB, r["ctx"], r["sessions"], r["streamed"] / MIB, r["planned"] / MIB, r["peak"] / MIB,
            100 * (r["peak"] - r["planned"]) / r["planned"], "" if peak_right(r) else " **wrong**", cells[0], cells[1]))
    ran = [r for r in rows if "error" not in r]
    head = "%d combinations: %d of %d peaks within 2 %% or 2 MiB, of %d rates %d within 15 %%, %d more within the stated range (medians: %.0f %% below the predicted rate to %.0f %% above)." % (
        len(rows), peaks, len(ran), rates, near, good - near, statistics.median(below or [0]), statistics.median(above or [0]))
    return head, "\n".join([head, ""] + out), peaks == len(rows)


def keep_rows(path, rows):
    with open(path + ".part", "w") as f:
        json.dump(rows, f)
    os.replace(path + ".part", path)


def write(path, text):
    begin, end = "<!-- bench-plan begin -->", "<!-- bench-plan end -->"
    old = open(path).read()
    at, to = old.index(begin) + len(begin), old.index(end)
    with open(path, "w") as f:
        f.write(old[:at] + "\n" + text + "\n" + old[to:])


def main():
    args = sys.argv[1:]
    part, document = (0, 1), None
    if "--write" in args:
        i = args.index("--write")
        document = args[i + 1]
        del args[i : i + 2]
    keep = "--keep" in args
    args = [a for a in args if a != "--keep"]
    if "--part" in args:
        i = args.index("--part")
        part = tuple(int(x) for x in args[i + 1].split("/"))
        del args[i : i + 2]
    only = None
    if "--rows" in args:
        i = args.index("--rows")
        only = {int(x) for x in args[i + 1].split(",")}
        del args[i : i + 2]
    if len(args) != 3:
        sys.exit(__doc__)
    weir, folder, work = os.path.join(args[0], "weir"), args[1], args[2]
    os.makedirs(work, exist_ok=True)
    kept = os.path.join(work, "rows.json")
    rows = json.load(open(kept)) if os.path.exists(kept) else {}
    for i, (name, path, share, ctx, sessions) in enumerate(combinations(weir, folder, work)):
        if i % part[1] != part[0] % part[1] or (only is not None and i not in only):
            continue
        if keep and "peak" in rows.get("%03d" % i, {}):
            continue
        row = measure(weir, path, share, ctx, sessions)
        row.update(name=name, share=share, ctx=ctx, sessions=sessions)
        rows["%03d" % i] = row
        keep_rows(kept, rows)
        print(table([row])[1].splitlines()[-1], flush=True)
    keep_rows(kept, rows)
    head, text, right = table([rows[k] for k in sorted(rows)])
    print(head)
    if document is not None:
        write(document, text)
    sys.exit(0 if right else 1)


main()
