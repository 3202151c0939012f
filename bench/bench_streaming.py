"""Decoding with less memory than the weights, against other engines and against the limit, in one run.

usage: python bench/bench_streaming.py WEIR MODEL.gguf [--peer NAME=COMMAND ...] [--percent 95,85,70,50,30,10] [--rounds 3] [--read-ahead KIB] [--quick] [--json FILE]
needs: root (it makes control groups, v1 or v2)

Each budget is a share of the weights that a token passes through (an embedding table that is only read by row does not count), for the
whole process, and each run is in a fresh control group of exactly that size. Weir and the peers alternate; peers are workers
(the protocol stands in worker_weir.c) that map the file. The model is taken out of the page cache before each run. Medians of the rounds. Columns:

  ratio        Weir's rate over the fastest peer's               read/token   bytes that Weir reads for a token
  predicted    what the plan said before the run                 storage   the rate of large queued reads, between the rounds
  limit        the slower of reading that at that rate, and of decoding with all weights in memory, measured in every round
  share        Weir's rate in that limit                         busy      share of the wall clock in which the streamed bytes come at that rate
  load         the machine's load average: above the count of CPUs other work is running, and the figures are of little use"""
import argparse
import ctypes
import json
import mmap
import os
import shlex
import statistics
import subprocess
import sys



class Group:
    """A control group for one command at a time."""

    def __init__(self):
        self.path, self.v2 = None, False
        for line in open("/proc/self/mountinfo"):
            left, right = line.split(" - ")
            mount, (kind, _, options) = left.split()[4], right.split()[:3]
            v2 = kind == "cgroup2"
            if not v2 and not (kind == "cgroup" and "memory" in options.split(",")):
                continue
            if v2 and "memory" not in open(mount + "/cgroup.subtree_control").read().split():
                continue
            self.path, self.v2 = f"{mount}/weir-bench-{os.getpid()}", v2
            break
        if self.path is None:
            sys.exit("no control groups for memory here")

    def run(self, limit, command, text=None):
        """Standard output of a command that reads `text`, or None where the command failed; the group is gone afterwards."""
        os.mkdir(self.path)
        try:
            if limit:
                files = (("memory.max", limit), ("memory.swap.max", 0)) if self.v2 else (("memory.limit_in_bytes", limit), ("memory.swappiness", 0))
                for name, value in files:
                    if os.path.exists(f"{self.path}/{name}"):
                        open(f"{self.path}/{name}", "w").write(str(value))
            enter = lambda: open(f"{self.path}/cgroup.procs", "w").write(str(os.getpid()))
            done = subprocess.run(command, input=text, capture_output=True, text=True, preexec_fn=enter)
            if done.returncode != 0:
                print(f"# {os.path.basename(command[0])}: exit {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return done.stdout if done.returncode == 0 else None
        finally:
            os.rmdir(self.path)


def cached_pages(f):
    size = os.fstat(f.fileno()).st_size
    pages = (ctypes.c_ubyte * ((size + 4095) // 4096))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), ctypes.c_long(0))
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(p & 1 for p in pages)


def drop_cache(path):
    """Pages that an earlier run left behind would be the next one's for free."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_pages(f) > 256:
            open("/proc/sys/vm/drop_caches", "w").write("3")
        if cached_pages(f) > 256:
            print("# the model stays in the page cache: another process maps it", file=sys.stderr)


def weir(o, group, limit):
    drop_cache(o.model)
    command = [o.weir, "bench", o.model, "--threads", str(o.threads), "--prompt-tokens", str(o.prompt), "-n", str(o.decode),
               "--rounds", "1", "--json", *(["--mem", f"{limit}B"] if limit else [])]
    out = group.run(limit, command)
    return json.loads(out)[0] if out else None


def peer(o, group, limit, command):
    drop_cache(o.model)
    worker = [*command, o.model, str(o.threads), str(max(256, o.prompt + o.decode + 8))]
    out = group.run(limit, worker, f"prefill {o.prompt}\ndecode {o.decode}\n")
    return {"decode_tps": o.decode / float(out.split()[1])} if out else None


def block_device(path):
    """The folder in /sys that holds the settings of the device below a file, or None."""
    number = os.stat(path).st_dev
    at = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for folder in (at, os.path.dirname(at)):
        if os.path.exists(folder + "/queue/read_ahead_kb"):
            return folder
    return None


def median(rows, key):
    return statistics.median(r[key] for r in rows) if rows else None


def measure(o, group, weights, percent):
    limit = weights * percent // 100
    ours, whole, loads, theirs = [], [], [], {name: [] for name in o.peers}
    for _ in range(o.rounds):
        loads.append(os.getloadavg()[0])
        runs = [(whole, weir(o, group, 0)), (ours, weir(o, group, limit))]
        runs += [(theirs[name], peer(o, group, limit, command)) for name, command in o.peers.items()]
        for rows, row in runs:
            if row:
                rows.append(row)
        if not ours:
            break
    peers = {name: median(rows, "decode_tps") for name, rows in theirs.items()}
    row = {"percent": percent, "limit_bytes": limit, "load": max(loads), "peers_tps": peers}
    if not ours:
        return row
    tps, read, storage = (median(ours, k) for k in ("decode_tps", "streamed_bytes_per_token", "storage_bytes_per_s"))
    compute = median(whole, "decode_tps")
    best = min(storage / read, compute) if storage else compute
    row |= {"weir_tps": tps, "read_bytes_per_token": read, "storage_bytes_per_s": storage, "whole_tps": compute, "limit_tps": best,
            "share": tps / best, "busy": tps * read / storage if storage else 0, "peak_bytes": max(r["peak_bytes"] for r in ours),
            "planned_peak_bytes": max(r["planned_peak_bytes"] for r in ours),
            "predicted_tps": median(ours, "predicted_tps") if "predicted_tps" in ours[0] else None,
            "ratio": tps / max(filter(None, peers.values())) if any(peers.values()) else None}
    return row


def text(value, form):
    return format(value, form) if value is not None else "-".rjust(int(form.split(".")[0]))


def print_head(o):
    print(f"{os.path.basename(o.model)}, {o.rounds} rounds of {o.decode} tokens, {o.threads} threads; read-ahead of the device {o.read_ahead_text}")
    print(f"{'budget':>6} {'limit':>9} {'weir/s':>8} " + " ".join(f"{name[:12] + '/s':>14}" for name in o.peers) +
          f" {'ratio':>6} {'predicted':>9} {'read/token':>11} {'storage':>9} {'whole/s':>8} {'limit/s':>8} {'share':>6} {'busy':>6} {'load':>5}")


def print_row(o, r):
    g = lambda k, scale=1: r[k] / scale if r.get(k) is not None else None
    print(f"{r['percent']:>5}% {r['limit_bytes'] / 1e6:>6.0f} MB {text(g('weir_tps'), '8.2f')} " +
          " ".join(text(r["peers_tps"][name], "14.2f") for name in o.peers) +
          f" {text(g('ratio'), '6.2f')} {text(g('predicted_tps'), '9.2f')} {text(g('read_bytes_per_token', 1e6), '8.1f')} MB "
          f"{text(g('storage_bytes_per_s', 1e6), '4.0f')} MB/s {text(g('whole_tps'), '8.2f')} {text(g('limit_tps'), '8.2f')} "
          f"{text(g('share', 0.01), '5.0f')}% {text(g('busy', 0.01), '5.0f')}% {r['load']:>5.1f}", flush=True)


def all_rows(o):
    group = Group()
    print_head(o)
    first = weir(o, group, 0) or sys.exit("Weir does not run with all weights in memory")
    for percent in map(int, o.percent.split(",")):
        row = measure(o, group, int(first["size_mb"] * 1e6), percent)
        print_row(o, row)
        yield row


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("weir")
    a.add_argument("model")
    a.add_argument("--peer", action="append", default=[], help="NAME=COMMAND, a worker; may be given more than once")
    a.add_argument("--percent", default="95,85,70,50,30,10", help="budgets in per cent of the weights")
    for name, value in (("rounds", 3), ("threads", os.cpu_count()), ("prompt", 16), ("decode", 16), ("read-ahead", 0)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--quick", action="store_true", help="one round of four tokens")
    a.add_argument("--json", default="", help="a file that receives all figures")
    o = a.parse_args()
    o.peers = {p.split("=", 1)[0]: shlex.split(p.split("=", 1)[1]) for p in o.peer}
    if o.quick:
        o.rounds, o.prompt, o.decode = 1, 8, 4
    device = block_device(o.model)
    setting = device + "/queue/read_ahead_kb" if device else None
    before = open(setting).read().strip() if setting else "unknown"
    o.read_ahead_text = f"{o.read_ahead or before} KiB"
    try:
        if setting and o.read_ahead:
            open(setting, "w").write(str(o.read_ahead))
        rows = list(all_rows(o))
    finally:
        if setting and o.read_ahead:
            open(setting, "w").write(before)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
