#!/usr/bin/env python3
"""Measures what streaming from flash is held to: how near the disk's own rate, an emulated device's own time, and the time that
reading alone would take, the program comes; and what it does under a memory limit. README.md explains every figure.

  experiments/flash/measure.py [--target MODEL --draft MODEL] [--out DIR] [--parts rate,emulate,rounds,memory] [options]

MODEL is a GGUF or a pack. Without them a planted pair is made with `lever model synth` (llama-2-7b and llama-160m, Q4_0, 4 GB on
disk, twice with their packs). Results: DIR/flash.json, a table on standard output, DIR/commands.txt. Needs Python 3 only; fio
for `rate` and `memory`, root (or a delegated group) for `memory`.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import sys

from tools import GIB, MIB, Failed, Lever, MemoryGroup, Preset, evict, fio_best, seconds_per_round, work_per_round

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("rate", "emulate", "rounds", "memory")
PROMPT = "Once upon a time there was"
FITS = 0.8  # of the time there is: what is hidden has that much room to vary
NOT_HONEST = "emulated honestly"  # the program's refusal of a preset too near the disk's own rate


class Bench:
    """The models and settings that all parts share, and the marks they collect."""

    def __init__(self, a):
        self.a, self.lever, self.marks = a, Lever(a.lever, a.out), []
        target, draft = (a.target, a.draft) if a.target else self.make_pair()
        self.target, self.draft = self.pack(target, "target"), self.pack(draft, "draft")
        self.layers = self.lever.json("model", "info", self.target)["pack"]["layer_bytes"]
        self.slice = a.slice or 4 * MIB
        if not (a.slice and a.depth):
            self.lever("doctor", "--flash", self.target)  # from now on the program's own request size and depth

    def make_pair(self):
        paths = []
        for name, shape in (("target", self.a.shape), ("draft", self.a.draft_shape)):
            paths.append(os.path.join(self.a.out, f"{name}.gguf"))
            if not os.path.exists(paths[-1]):
                say(f"writing {paths[-1]} ({shape})")
                self.lever("model", "synth", "--shape", shape, "--type", "q4_0", "--planted", "--agree", self.a.agree, "-o", paths[-1])
        return paths

    def pack(self, path, name):
        if path.endswith(".lvrpack"):
            return path
        out = os.path.join(self.a.out, f"{name}.lvrpack")
        if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(path):
            say(f"packing {path}")
            self.lever("model", "pack", path, "-o", out)
        return out

    def options(self, policy, tokens):
        draft = [] if policy == "ar" else ["-md", self.draft]
        return ["-m", self.target, *draft, "--policy", policy, "-p", PROMPT, "-n", tokens, "--ignore-eos", "-c", self.a.context,
                "-t", self.a.threads]

    def reading(self, depth=None):
        """How it reads: as asked, or as the program chooses."""
        return [*(["--slice", self.a.slice] if self.a.slice else []), *(["--depth", depth or self.a.depth] if depth or self.a.depth else [])]

    def mark(self, what, value, bound, at_least, note=""):
        met = value >= bound if at_least else value <= bound
        self.marks.append({"what": what, "value": value, "bound": bound, "at_least": at_least, "met": met, "note": note})


def say(text):
    print(f"measure: {text}", file=sys.stderr, flush=True)


def median(values):
    return statistics.median(list(values))


# ---- rate: the disk, the reader, a pass ----

def cells_of(a):
    sizes = (256 * 1024, MIB) if a.quick else (256 * 1024, MIB, 4 * MIB, 16 * MIB)
    return [(size, depth) for size in sizes for depth in ((4,) if a.quick else (1, 4, 8))]


def bench_rate(b, request_bytes, depth):
    """The reader alone, in file order, summing what it reads as a run does: bytes/s."""
    out = b.lever.json("bench", "flash", b.target, "--order", "sequential", "--checksum", "--bytes", request_bytes, "--depth", depth,
                       "--seconds", b.a.seconds)
    return out["results"][0]["gbytes_per_s"] * 1e9


def measure_rate(b):
    """fio, the reader and a run in turn on one file; each repeat compares what was measured within the same minutes."""
    command = [*b.options("ar", b.a.tokens), "--resident", 0, *b.reading()]
    b.lever("run", *b.options("ar", 1), "--resident", 0)  # the host's cache is as warm for the first as for the last
    rows, per_pass = [], sum(b.layers)
    for _ in range(b.a.repeats):
        reader = []
        fio = fio_best(b.target, cells_of(b.a), b.a.seconds, lambda size, depth: reader.append(bench_rate(b, size, depth)))
        r = b.lever.json("run", *command)
        again = fio_best(b.target, [(fio["request_bytes"], fio["depth"])], b.a.seconds)
        fio["bytes_per_s"] = max(fio["bytes_per_s"], again["bytes_per_s"])
        rows.append({"fio_bytes_per_s": fio["bytes_per_s"], "fio": fio, "reader_bytes_per_s": max(reader), "reader": reader,
                     "stream_bytes_per_s": r["io"]["later_passes"]["gbytes_per_s"] * 1e9, "bytes_per_pass": per_pass,
                     "pass_s": seconds_per_round(r), "pass_at_fio_rate_s": per_pass / fio["bytes_per_s"],
                     "compute_s": work_per_round(r)[1], "waited_s": r["io_wait_s"], "idle_s": r["io_idle_s"], "io": r["io"]})
        say(f"fio {fio['bytes_per_s'] / 1e9:.3f} GB/s ({fio['request_bytes'] >> 10} KiB x {fio['depth']}), reader "
            f"{max(reader) / 1e9:.3f}, streaming {rows[-1]['stream_bytes_per_s'] / 1e9:.3f} ({r['io']['path']}, "
            f"{r['io']['slice_bytes'] >> 10} KiB x {r['io']['depth']}), a pass {rows[-1]['pass_s']:.3f} s")
    bound = median(r["compute_s"] / r["pass_s"] for r in rows)
    note = "" if bound < 0.9 else f"compute takes {bound:.0%} of a pass: not flash-bound"
    b.mark("reader / fio's best", median(r["reader_bytes_per_s"] / r["fio_bytes_per_s"] for r in rows), 0.95, True)
    b.mark("layer streaming / fio's best", median(r["stream_bytes_per_s"] / r["fio_bytes_per_s"] for r in rows), 0.95, True, note)
    b.mark("ar pass / (bytes / fio's best)", median(r["pass_s"] / r["pass_at_fio_rate_s"] for r in rows), 1.05, False, note)
    return rows


# ---- emulate: the preset's own time ----

def run_emulated(b, preset, *args):
    """Past the page cache if the disk is fast enough for the preset, else through it. Returns the result and how it was read."""
    for attempt in range(3):  # the disk may be busy with something else for a moment
        try:
            return b.lever.json("run", *args, "--emulate-flash", preset.path), "direct"
        except Failed as e:
            if NOT_HONEST not in str(e):
                raise
            say(f"{preset.name}, try {attempt + 1}: {e}")
    return b.lever.json("run", *args, "--emulate-flash", preset.path, "--buffered"), "buffered"


def stream(b, fraction):
    """(what --resident takes, bytes of the layers that are then streamed), for about this fraction of the layers."""
    n = len(b.layers)
    streamed = max(1, min(n, round(fraction * n)))
    return 1 - streamed / n, b.layers[:streamed]  # layers are alike: which ones stay does not matter


def measure_emulated(b):
    compute = work_per_round(b.lever.json("run", *b.options("ar", 4), "--resident", 0))
    rows = []
    for rate in b.a.rates:
        for depth in (1, 4):
            preset = Preset(rate * 1e9, b.a.out)
            least = max(sum(compute) / FITS, b.a.pass_seconds)
            resident, streamed = stream(b, least / preset.pass_s(b.layers, b.slice, depth))
            expected = preset.pass_s(streamed, b.slice, depth)
            tokens = max(4, min(64, round(b.a.pass_seconds * 8 / expected)))
            try:
                r, how = run_emulated(b, preset, *b.options("ar", tokens), "--resident", resident, "--slice", b.slice, "--depth", depth)
            except Failed as e:
                if NOT_HONEST not in str(e):
                    raise
                rows.append({"rate_bytes_per_s": rate * 1e9, "depth": depth, "refused": str(e)})
                continue
            row = {"rate_bytes_per_s": rate * 1e9, "depth": depth, "read": how, "resident": resident, "passes": r["rounds"],
                   "pass_s": seconds_per_round(r), "preset_pass_s": expected, "compute_s": work_per_round(r)[1],
                   "late_reads": r["late_reads"]}
            rows.append(row)
            say(f"{rate} GB/s, depth {depth}, {how}: a pass {row['pass_s']:.4f} s, the preset's own {expected:.4f} s")
            ratio, fits = row["pass_s"] / expected, row["compute_s"] / expected <= 0.9
            note = "; ".join([how] + ([] if fits else ["not flash-bound"])
                             + ([f"{r['late_reads']} reads of the real device were late"] if r["late_reads"] else []))
            b.mark(f"pass at {rate:g} GB/s, depth {depth} / preset, at least", ratio, 0.98, True, note)
            b.mark(f"pass at {rate:g} GB/s, depth {depth} / preset, at most", ratio, 1.02, False, note)
    return rows


# ---- rounds: drafting and compute behind the reads ----

class Policy:
    """chain as it is; lever with a cost model of this place and lambda at the speed that it reaches."""

    def __init__(self, b, name, place, group=None):
        self.b, self.name, self.place, self.group, self.cost = b, name, place, group, []
        if name == "lever":
            trace, cost = os.path.join(b.a.out, "random.h5"), os.path.join(b.a.out, "cost.yaml")
            b.lever("record", *b.options("random", b.a.tokens), *place, "-o", trace, "--overwrite", group=group)
            b.lever("fit", trace, "-o", cost)
            self.cost = ["--cost", cost]

    def run(self, tokens, speed):
        """lambda is the long-run speed itself: from a guess, one step of that fixed point is enough here."""
        if self.name != "lever":
            return self.b.lever.json("run", *self.b.options(self.name, tokens), *self.place, group=self.group)
        for _ in range(2):
            r = self.b.lever.json("run", *self.b.options("lever", tokens), *self.cost, "--set", f"lambda={speed:.4f}", *self.place,
                                  group=self.group)
            speed = r["decode_tokens_per_s"]
        return dict(r, **{"lambda": speed})


def measure_rounds(b):
    """At a rate at which all of a round's work fits: the compute under the reads, what comes between passes under the ring."""
    rows = []
    depth, (resident, streamed) = 4, stream(b, b.a.stream)
    ring_bytes = b.a.ring * max(streamed)
    for name in ("chain", "lever"):
        rate, row = b.a.round_rate * 1e9, None
        for _ in range(4):
            preset = Preset(rate, b.a.out)
            expected = preset.pass_s(streamed, b.slice, depth)
            place = ["--resident", resident, "--ring", b.a.ring, "--slice", b.slice, "--depth", depth, "--emulate-flash", preset.path]
            try:
                r = Policy(b, name, place).run(b.a.tokens, 2 / expected)
            except Failed as e:
                if NOT_HONEST not in str(e):
                    raise
                say(f"{name}: {e}")
                row, rate = {"policy": name, "rate_bytes_per_s": rate, "refused": str(e)}, rate / 2
                continue
            between, compute = work_per_round(r)
            row = {"policy": name, "rate_bytes_per_s": rate, "round_s": seconds_per_round(r), "pass_reads_s": expected,
                   "ring_s": ring_bytes / rate, "between_passes_s": between, "compute_s": compute, "draft_s": r["draft_s"] / r["rounds"],
                   "mean_acceptance_length": r["mean_acceptance_length"], "tokens_per_s": r["decode_tokens_per_s"],
                   "waited_s": r["io_wait_s"] / r["rounds"], "idle_s": r["io_idle_s"] / r["rounds"],
                   "fits": between + compute <= FITS * expected and between <= FITS * ring_bytes / rate}
            say(f"{name} at {rate / 1e9:.3f} GB/s: a round {row['round_s']:.4f} s, its reads {expected:.4f} s, compute {compute:.4f} s, "
                f"between passes {between:.4f} s" + ("" if row["fits"] else ": does not fit"))
            if row["fits"]:
                break
            rate = 0.9 * min(FITS * sum(streamed) / (between + compute), FITS * ring_bytes / between, rate)
        rows.append(row)
        if "refused" in row:
            continue
        b.mark(f"{name}: round / its reads", row["round_s"] / row["pass_reads_s"], 1.08, False,
               "" if row["fits"] else "draft and compute do not fit under the reads")
    return rows


# ---- memory: a model larger than what there is ----

def run_limited(b, limit, name, budget, speed):
    place = ["--dram-budget", budget, *b.reading()]
    with MemoryGroup(limit) as group:
        evict(b.target)
        r = Policy(b, name, place, group).run(b.a.tokens, speed)
        return dict(r, cgroup=group.figures())


def measure_limited(b):
    rows = []
    for limit in b.a.limits:
        budget, ar = limit - b.a.reserve if b.a.reserve else "auto", None
        for name in ("ar", "lever"):
            row = {"policy": name, "limit_bytes": limit, "dram_budget": budget}
            rows.append(row)
            fio = fio_best(b.target, cells_of(b.a), b.a.seconds)
            try:
                r = run_limited(b, limit, name, budget, 2 * (ar or 1))
                fio = max(fio["bytes_per_s"], fio_best(b.target, [(fio["request_bytes"], fio["depth"])], b.a.seconds)["bytes_per_s"])
            except Failed as e:
                row["refused"] = str(e)
                say(f"{name} under {limit / GIB:g} GiB: {e}")
                continue
            per_pass = (1 - r["resident_fraction"]) * sum(b.layers)
            ideal = fio / per_pass if per_pass else None
            row.update(fio_bytes_per_s=fio, bytes_per_pass=per_pass, tokens_per_s=r["decode_tokens_per_s"],
                       mean_acceptance_length=r["mean_acceptance_length"], ideal_passes_per_s=ideal, round_s=seconds_per_round(r),
                       between_passes_s=work_per_round(r)[0], compute_s=work_per_round(r)[1], waited_s=r["io_wait_s"], idle_s=r["io_idle_s"], io=r["io"],
                       peak_rss_bytes=r["peak_rss_bytes"], dram_plan_bytes=r["dram_plan_bytes"], **r["cgroup"])
            ar = r["decode_tokens_per_s"] if name == "ar" else ar
            say(f"{name} under {limit / GIB:g} GiB: {row['tokens_per_s']:.3f} tokens/s, {row['mean_acceptance_length']:.2f} a pass of "
                f"{per_pass / 1e9:.2f} GB; fio {fio / 1e9:.3f} GB/s")
            if not ideal:
                say("everything fits under this limit: there is no pass to compare with")
                continue
            b.mark(f"{name}, {limit / GIB:g} GiB: tokens/s / (fio rate / bytes per pass" + (" x acceptance)" if name == "lever" else ")"),
                   row["tokens_per_s"] / (ideal * (row["mean_acceptance_length"] if name == "lever" else 1)),
                   0.90 if name == "lever" else 0.93, True)
    return rows


# ---- report ----

def table(marks):
    width = max(len(m["what"]) for m in marks)
    for m in marks:
        yield (f"{m['what']:{width}}  {m['value']:8.3f}  {'>=' if m['at_least'] else '<='} {m['bound']:.2f}  "
               f"{'met' if m['met'] else 'MISSED':6}  {m['note']}").rstrip()


def size(text):
    """1GiB, 512MiB or bytes."""
    for suffix, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if text.endswith(suffix):
            return int(float(text[:-3]) * unit)
    return int(text)


def several(kind):
    return lambda text: [kind(item) for item in text.split(",")]


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lever", default=os.path.join(HERE, "../../build/cli/lever"), help="the program")
    ap.add_argument("--target", help="model that is streamed")
    ap.add_argument("--draft", help="its draft, of the same vocabulary")
    ap.add_argument("--out", default="flash-out", help="where models, traces and results go")
    ap.add_argument("--parts", type=several(str), default=list(PARTS), help=f"which of {','.join(PARTS)}")
    ap.add_argument("--shape", default="llama-2-7b", help="without --target: shape of the planted target")
    ap.add_argument("--draft-shape", default=os.path.join(HERE, "llama-160m.yaml"), help="and of the draft")
    ap.add_argument("--agree", type=float, default=0.8, help="how often they agree")
    ap.add_argument("--tokens", type=int, default=24, help="tokens of a measured run")
    ap.add_argument("--context", type=int, default=256)
    ap.add_argument("--threads", type=int, default=0, help="0: all processors")
    ap.add_argument("--slice", type=size, default=0, help="bytes of a read (default: the program's; 4 MiB under emulation)")
    ap.add_argument("--depth", type=int, default=0, help="reads in flight (default: the program's)")
    ap.add_argument("--repeats", type=int, default=3, help="rate: fio and the program in turn, this often")
    ap.add_argument("--seconds", type=float, default=2, help="of each of fio's cells")
    ap.add_argument("--rates", type=several(float), default=[0.1, 0.4, 0.9], help="emulate: GB/s")
    ap.add_argument("--pass-seconds", type=float, default=2, help="emulate: about how long a pass is to take")
    ap.add_argument("--round-rate", type=float, default=0.4, help="rounds: GB/s at first; lowered until the work fits")
    ap.add_argument("--stream", type=float, default=1, help="rounds: fraction of the layers that is streamed")
    ap.add_argument("--ring", type=int, default=4, help="rounds: layers of the staging ring")
    ap.add_argument("--limits", type=several(size), default=[2 * GIB, GIB], help="memory: limits of the cgroup")
    ap.add_argument("--reserve", type=size, default=0, help="memory: what the budget leaves of the limit (default: --dram-budget auto)")
    ap.add_argument("--quick", action="store_true", help="fewer of fio's cells")
    a = ap.parse_args()
    if bool(a.target) != bool(a.draft):
        ap.error("--target and --draft belong together")
    unknown = [p for p in a.parts if p not in PARTS]
    if unknown:
        ap.error(f"--parts: expected some of {','.join(PARTS)}, found {unknown[0]}")
    return a


def main():
    a = arguments()
    os.makedirs(a.out, exist_ok=True)
    steps = dict(zip(PARTS, (measure_rate, measure_emulated, measure_rounds, measure_limited)))
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "kernel": platform.release(),
              "machine": platform.machine(), "cpus": os.cpu_count(), "command": sys.argv[1:]}
    failed = False
    try:
        b = Bench(a)
        result.update(target=os.path.basename(b.target), draft=os.path.basename(b.draft), layer_bytes=sum(b.layers), layers=len(b.layers))
        for part in a.parts:
            try:
                result[part] = steps[part](b)
            except Failed as e:
                failed = True
                result[part] = {"failed": str(e)}
                say(f"{part}: {e}")
    except Failed as e:
        sys.exit(f"measure: {e}")
    result["marks"] = b.marks
    with open(os.path.join(a.out, "flash.json"), "w", encoding="utf-8") as f:
        json.dump(result, f, indent=2)
        f.write("\n")
    for line in table(b.marks) if b.marks else ():
        print(line)
    sys.exit(failed)


if __name__ == "__main__":
    main()
