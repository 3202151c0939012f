"""Decoding with less memory than the weights, against other engines and against the limit, in one run.

usage: python bench/bench_streaming.py WEIR MODEL.gguf... [--peer NAME=COMMAND ...] [--percent 95,85,70,50,30,10] [--read-ahead KIB,...]
                                       [--rounds 3] [--loads 3] [--row-seconds S] [--worker COMMAND] [--json FILE] [--quick]
needs: root (it makes control groups, v1 or v2)

Each budget is a share of the weights that a token passes through (an embedding table that is only read by row does not count), for the
whole process, and each run is in a fresh control group of exactly that size. Weir and the peers alternate; peers are workers
(the protocol stands in worker_weir.c) that map the file. The model is taken out of the page cache before each run. Medians of the rounds.

A row, which is one model, read-ahead and budget, takes about --row-seconds at most (default: 90, and 150 from 2 GB on): slow decoding is
measured on fewer tokens, and no round is begun that would pass it. The file of --json is written behind every row; rows that it has
already, of the same build and settings, are not measured again, so a run that was ended can be taken up by the same command. Columns:

  ratio        Weir's rate over the fastest peer's               read/token   bytes that Weir reads for a token
  predicted    what the plan said before the run                 whole     decoding with all weights in memory
  storage      the rate of queued reads of the size and number that the probe found best
  limit        the slower of reading that at storage's rate, and of whole
  share        Weir's rate over the limit. Storage and processors change from second to second by more than what is looked for, so three
               processes that stay loaded take turns of about half a second: reading, decoding in the group, reading, decoding with all weights
               in memory; each decoding is held against what stood right before and behind it, and the figure is the median, in brackets the
               middle half. The reader goes on through the file from turn to turn. What storage delivers depends on the pages that it fills,
               so the one in the group is loaded anew --loads times (0: no shares, where only peers are of interest)
  beside       what the machine leaves of the limit: the reader and the one with all weights in memory, each alone and both together; the
               figures are the rates together over those alone (storage's, decoding's), the limit with each as slow as it is while
               the other runs, and Weir's rate over that limit
  load         the machine's load average: above the count of CPUs other work is running, and the figures are of little use"""
import argparse
import ctypes
import hashlib
import json
import mmap
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time


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

    def run(self, limit, command, talk=None, seconds=600):
        """What `talk` returns for the running process (default: its standard output), or None where the command failed or took
        longer than `seconds`; the group is gone afterwards."""
        os.mkdir(self.path)
        done, timer = None, None
        try:
            if limit:
                files = (("memory.max", limit), ("memory.swap.max", 0)) if self.v2 else (("memory.limit_in_bytes", limit), ("memory.swappiness", 0))
                for name, value in files:
                    if os.path.exists(f"{self.path}/{name}"):
                        open(f"{self.path}/{name}", "w").write(str(value))
            enter = lambda: open(f"{self.path}/cgroup.procs", "w").write(str(os.getpid()))
            with tempfile.TemporaryFile("w+") as errors:
                done = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=enter)
                timer = threading.Timer(seconds, done.kill)
                timer.start()
                out = None
                try:
                    out = talk(done) if talk else done.stdout.read()
                    done.stdin.close()
                except (BrokenPipeError, IndexError, ValueError):
                    pass  # it has ended: its exit status tells
                done.wait()
                if done.returncode != 0 or out is None:
                    errors.seek(0)
                    print(f"# {os.path.basename(command[0])}: exit {done.returncode}: {errors.read().strip()[-300:]}", file=sys.stderr)
                return out if done.returncode == 0 else None
        finally:
            if timer:
                timer.cancel()
            if done and done.poll() is None:
                done.kill()
                done.wait()
            remove_group(self.path)


def remove_group(path):
    """The kernel may still be counting the last process out."""
    for _ in range(50):
        try:
            return os.rmdir(path)
        except OSError:
            time.sleep(0.1)
    os.rmdir(path)


SLOW_STORAGE = 1.2e9  # bytes per second, only to choose how many tokens are measured


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


def weir(o, group, model, limit, tokens):
    drop_cache(model)
    command = [o.weir, "bench", model, "--threads", str(o.threads), "--prompt-tokens", str(o.prompt), "-n", str(tokens),
               "--rounds", "1", "--json", *(["--mem", f"{limit}B"] if limit else [])]
    out = group.run(limit, command)
    return json.loads(out)[0] if out else None


def peer(o, group, model, limit, command, seconds):
    """Tokens one by one, so that a peer that reads everything anew for each of them is not waited for longer than it takes to know."""
    drop_cache(model)

    def ask(process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return float(process.stdout.readline().split()[-1])

    def talk(process):
        ask(process, f"prefill {o.prompt}")
        spent, n = 0.0, 0
        while n < o.decode and (n < 2 or spent < seconds):
            spent += ask(process, "decode 1")
            n += 1
        return {"decode_tps": n / spent}

    return group.run(limit, [*command, model, str(o.threads), str(max(256, o.prompt + o.decode + 8))], talk)


def block_device(path):
    """The folder in /sys that holds the settings of the device below a file, or None."""
    number = os.stat(path).st_dev
    at = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for folder in (at, os.path.dirname(at)):
        if os.path.exists(folder + "/queue/read_ahead_kb"):
            return folder
    return None


class Worker:
    """A process that holds a model and does what it is told (worker_weir.c)."""

    def __init__(self, command):
        """`command`: or a process that runs already."""
        self.process = command if isinstance(command, subprocess.Popen) else \
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def begin(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        return float(self.process.stdout.readline())

    def ask(self, line):
        self.begin(line)
        return self.end()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


WORKER_TOKENS = 256  # of a worker's context
TURN_SECONDS = 0.5
BESIDE_SECONDS = 0.25
BESIDE_TURNS = 4


class Decoder:
    """A worker that appends tokens, and begins anew where its context is full."""

    def __init__(self, worker):
        self.worker, self.used = worker, 0
        self.token = self.alone(2)  # seconds

    def begin(self, n):
        if self.used + n > WORKER_TOKENS:
            self.worker.ask("reset 0")
            self.used = 0
        self.used += n
        self.worker.begin(f"decode {n}")

    def alone(self, n):
        self.begin(n)
        self.token = self.worker.end() / n
        return self.token

    def tokens_in(self, seconds):
        return min(WORKER_TOKENS // 2, max(1, round(seconds / self.token)))


class Reader:
    def __init__(self, worker):
        self.worker = worker
        self.rate = self.ask(100)  # bytes per second

    def ask(self, megabytes):
        self.rate = self.worker.ask(f"storage {max(1, int(megabytes))}")
        return self.rate

    def begin(self, seconds):
        self.worker.begin(f"storage {max(1, int(self.rate * seconds / 1e6))}")

    def alone(self, seconds):
        return self.ask(self.rate * seconds / 1e6)


def beside(whole, reader):
    """How much slower storage and decoding get by each other, as two factors. The one that is measured lies within the other's run."""
    factors = []
    for _ in range(BESIDE_TURNS):
        n = max(2, whole.tokens_in(BESIDE_SECONDS))
        rate, token = reader.alone(BESIDE_SECONDS), whole.alone(n)
        reader.begin(2 * n * token)
        time.sleep(0.01)
        slow_token = whole.alone(n)
        reader.worker.end()
        reader.rate = rate
        whole.begin(2 * n)
        time.sleep(0.01)
        slow_rate = reader.alone(0.9 * n * token)
        whole.worker.end()
        factors.append((slow_rate / rate, token / slow_token))
    return [statistics.median(f) for f in zip(*factors)]


def take_turns(ours, whole, reader, seconds):
    """For every turn the storage's rate, the rates of decoding within the budget and with all weights in memory, and bytes read a token."""
    turns, until = [], time.monotonic() + seconds
    before, n = reader.alone(TURN_SECONDS), 0
    ours.alone(1)
    start = ours.worker.ask("read")
    while len(turns) < 2 or time.monotonic() < until:
        count = ours.tokens_in(2 * TURN_SECONDS)
        tps = 1 / ours.alone(count)
        behind = reader.alone(TURN_SECONDS)
        turns.append(((before + behind) / 2, tps, 1 / whole.alone(whole.tokens_in(TURN_SECONDS))))
        before, n = behind, n + count
    read = (ours.worker.ask("read") - start) / n
    return [(*t, read) for t in turns]


def shares(o, group, model, limit, seconds):
    """The columns that stand on rates side by side, as a part of a row."""
    drop_cache(model)
    command = [*o.worker, model, str(o.threads), str(WORKER_TOKENS)]
    others = [Worker(command), Worker([*command, "0"])]

    turns, factors = [], None
    try:
        whole, reader = Decoder(others[0]), Reader(others[1])
        factors = beside(whole, reader)
        for _ in range(o.loads):
            each = seconds / o.loads
            turns += group.run(limit, [*command, str(limit)], lambda p: take_turns(Decoder(Worker(p)), whole, reader, each), 60 + 3 * each) or []
    except (BrokenPipeError, ValueError):
        print("# worker_weir has ended", file=sys.stderr)
    finally:
        for w in others:
            w.close()
    if not turns:
        return {}
    storage, tps, whole, read = zip(*turns)
    parts = statistics.quantiles([t[1] / limit_of(t) for t in turns], n=4, method="inclusive")
    slow = [beside_limit(t, factors) for t in turns]
    return {"turns": len(turns), "turn_tps": statistics.median(tps), "storage_bytes_per_s": statistics.median(storage), "whole_tps": statistics.median(whole),
            "read_bytes_per_token": read[0], "limit_tps": statistics.median(map(limit_of, turns)), "share": parts[1], "share_low": parts[0], "share_high": parts[2],
            "beside_storage": factors[0], "beside_compute": factors[1], "beside_tps": statistics.median(slow),
            "beside_share": statistics.median(t[1] / l for t, l in zip(turns, slow))}


def beside_limit(turn, factors):
    """Tokens per second, were the shorter of reading and computing over within the longer one, and both as slow meanwhile as they are
    by each other; what is left of the longer one is as quick as alone."""
    storage, _, tps, read = turn
    slow_storage, slow_tps = storage * factors[0], tps * factors[1]
    reading, computing = read / slow_storage, 1 / slow_tps
    if reading > computing:
        return 1 / (computing + (read - slow_storage * computing) / storage)
    return 1 / (reading + (1 - slow_tps * reading) / tps)


def limit_of(turn):
    storage, _, tps, read = turn
    return min(storage / read, tps) if read else tps


def median(rows, key):
    return statistics.median(r[key] for r in rows) if rows else None


SHARES_PART = 0.4  # of a row's time


def measure(o, group, model, weights, percent):
    limit = weights * percent // 100
    row_seconds = o.seconds * (1 - SHARES_PART)
    # Each decoding gets a share of the rounds' time, the rest of which goes into loading and prefill.
    seconds = row_seconds / o.rounds / (4 * (1 + len(o.peers)))
    slow = (weights - limit) / SLOW_STORAGE
    tokens = max(4, min(o.decode, int(seconds / slow) if slow else o.decode))
    ours, loads, theirs = [], [], {name: [] for name in o.peers}
    begin, longest = time.monotonic(), 0.0
    for _ in range(o.rounds):
        start = time.monotonic()
        if start + longest > begin + row_seconds:
            break
        loads.append(os.getloadavg()[0])
        runs = [(ours, weir(o, group, model, limit, tokens))]
        runs += [(theirs[name], peer(o, group, model, limit, command, seconds)) for name, command in o.peers.items()]
        for rows, row in runs:
            if row:
                rows.append(row)
        longest = max(longest, time.monotonic() - start)
        if not ours:
            break
    peers = {name: median(rows, "decode_tps") for name, rows in theirs.items()}
    row = {"percent": percent, "limit_bytes": limit, "load": max(loads), "peers_tps": peers, "rounds": len(ours), "tokens": tokens}
    if not ours:
        return row
    tps = median(ours, "decode_tps")
    row |= {"weir_tps": tps, "peak_bytes": max(r["peak_bytes"] for r in ours), "planned_peak_bytes": max(r["planned_peak_bytes"] for r in ours),
            "predicted_tps": median(ours, "predicted_tps") if "predicted_tps" in ours[0] else None,
            "ratio": tps / max(filter(None, peers.values())) if any(peers.values()) else None,
            "read_bytes_per_token": median(ours, "streamed_bytes_per_token")}
    row |= shares(o, group, model, limit, o.seconds * SHARES_PART) if o.worker and o.loads else {}
    return row | {"seconds": time.monotonic() - begin}


def text(value, form):
    return format(value, form) if value is not None else "-".rjust(int(form.split(".")[0]))


def print_head(o, model, read_ahead):
    print(f"{os.path.basename(model)}, up to {o.rounds} rounds of up to {o.decode} tokens, {o.threads} threads; read-ahead of the device {read_ahead} KiB")
    print(f"{'budget':>6} {'limit':>9} {'weir/s':>8} " + " ".join(f"{name[:12] + '/s':>14}" for name in o.peers) +
          f" {'ratio':>6} {'predicted':>9} {'read/token':>11} {'turns':>5} {'weir/s':>8} {'storage':>9} {'whole/s':>8} {'limit/s':>8} {'share':>16} {'beside':>25} {'load':>5}", flush=True)


def print_row(o, r):
    g = lambda k, scale=1: r[k] / scale if r.get(k) is not None else None
    print(f"{r['percent']:>5}% {r['limit_bytes'] / 1e6:>6.0f} MB {text(g('weir_tps'), '8.2f')} " +
          " ".join(text(r["peers_tps"][name], "14.2f") for name in o.peers) +
          f" {text(g('ratio'), '6.2f')} {text(g('predicted_tps'), '9.2f')} {text(g('read_bytes_per_token', 1e6), '8.1f')} MB "
          f"{text(g('turns'), '5.0f')} {text(g('turn_tps'), '8.2f')} {text(g('storage_bytes_per_s', 1e6), '4.0f')} MB/s {text(g('whole_tps'), '8.2f')} "
          f"{text(g('limit_tps'), '8.2f')} {text(g('share', 0.01), '5.0f')}% ({text(g('share_low', 0.01), '3.0f')}-{text(g('share_high', 0.01), '3.0f')}%) {text(g('beside_storage'), '5.2f')} {text(g('beside_compute'), '5.2f')} {text(g('beside_tps'), '7.2f')} "
          f"{text(g('beside_share', 0.01), '4.0f')}% {r['load']:>5.1f}", flush=True)


class Results:
    """The rows so far, kept in a file where one was named."""

    def __init__(self, path):
        self.path, self.rows = path, []
        if path and os.path.exists(path):
            self.rows = json.load(open(path))

    def find(self, wanted):
        """The row of an earlier run of the same build and settings that was measured against the same peers."""
        for row in self.rows:
            if all(row.get(k) == v for k, v in wanted.items() if k != "peers") and set(wanted["peers"]) <= set(row["peers_tps"]) and "weir_tps" in row:
                return row
        return None

    def add(self, row):
        self.rows.append(row)
        if self.path:
            with open(self.path + ".new", "w") as f:
                json.dump(self.rows, f, indent=1)
            os.replace(self.path + ".new", self.path)


def all_rows(o, group, results, model, read_ahead):
    print_head(o, model, read_ahead)
    o.seconds = o.row_seconds or (150 if os.path.getsize(model) >= 2e9 else 90)
    weights = None
    for percent in map(int, o.percent.split(",")):
        wanted = {"model": os.path.basename(model), "read_ahead": str(read_ahead), "percent": percent, "settings": o.settings, "peers": list(o.peers)}
        row = results.find(wanted)
        if row is None:
            if weights is None:
                first = weir(o, group, model, 0, 1) or sys.exit("Weir does not run with all weights in memory")
                weights = int(first["size_mb"] * 1e6)
            row = {k: wanted[k] for k in ("model", "read_ahead", "settings")} | measure(o, group, model, weights, percent)
            results.add(row)
        print_row(o, row)


def with_read_ahead(o, group, results, model, wanted):
    device = block_device(model)
    setting = device + "/queue/read_ahead_kb" if device else None
    before = open(setting).read().strip() if setting else "unknown"
    try:
        if setting and wanted:
            open(setting, "w").write(wanted)
        all_rows(o, group, results, model, wanted or before)
    finally:
        if setting and wanted:
            open(setting, "w").write(before)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("weir")
    a.add_argument("model", nargs="+")
    a.add_argument("--peer", action="append", default=[], help="NAME=COMMAND, a worker; may be given more than once")
    a.add_argument("--percent", default="95,85,70,50,30,10", help="budgets in per cent of the weights")
    a.add_argument("--read-ahead", default="", help="of the block device, KiB; a list takes turns (default: as it is)")
    for name, value in (("rounds", 3), ("loads", 3), ("threads", os.cpu_count()), ("prompt", 16), ("decode", 16), ("row-seconds", 0)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--worker", default="", help="worker_weir, for shares (default: the one built beside WEIR, if there is one)")
    a.add_argument("--quick", action="store_true", help="one round of four tokens")
    a.add_argument("--json", default="", help="a file that receives all figures and is taken up where it ends")
    o = a.parse_args()
    o.peers = {p.split("=", 1)[0]: shlex.split(p.split("=", 1)[1]) for p in o.peer}
    built = os.path.join(os.path.dirname(os.path.abspath(o.weir)), "bench", "worker_weir")
    o.worker = shlex.split(o.worker) if o.worker else [built] if os.path.exists(built) else []
    if o.quick:
        o.rounds, o.loads, o.prompt, o.decode, o.row_seconds = 1, 1, 8, 4, o.row_seconds or 10
    o.settings = {k: getattr(o, k) for k in ("rounds", "loads", "threads", "prompt", "decode", "row_seconds")}
    with open(o.weir, "rb") as f:
        o.settings["build"] = hashlib.sha256(f.read()).hexdigest()[:12]
    group, results = Group(), Results(o.json)
    for model in o.model:
        for read_ahead in o.read_ahead.split(","):
            with_read_ahead(o, group, results, model, read_ahead)


if __name__ == "__main__":
    main()
