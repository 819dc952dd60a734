#!/usr/bin/env python3
"""Measures all policies on one engine, side by side, at several I/O shares, and says which is fastest by how much.

  experiments/compare/compare.py --lever BUILD/cli/lever --out DIR [options]

Records and fits a cost model on tune prompts, finds the emulated flash of each I/O share, tunes every policy with the same
number of trials, predicts and then measures all of them on held-out prompts, and writes results.json, summary.csv and
summary.md into DIR. What DIR holds already is kept: run it again to go on after Ctrl-C. See README.md beside this file.
"""
import argparse
import collections
import os
import platform
import re
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import choose_flash  # noqa: E402
import report  # noqa: E402
from program import Failed, Program, Progress, write  # noqa: E402

POLICIES = ("ar", "chain", "sequoia", "eagle2", "opttree", "specexec", "smart", "edgellm", "lever")
ENGINE = {"slice": "256KiB", "depth": "4", "ring": "2"}  # the same for all
# Timing traces: all row counts and the scoring of rows, heads of several rows, and what ar and chain do.
RECORDED = {"random": ("--policy", "random", "--set", "prune=0.1"), "eager": ("--policy", "random", "--head", "eager"),
            "chain": ("--policy", "chain"), "ar": ("--policy", "ar")}
N_FLASH = 5  # samples of the disk's rate; the median counts, since one may meet a stalled disk
START_S = 0.1  # of a process, for estimates of time

Prompt = collections.namedtuple("Prompt", "id domain split text")
Cell = collections.namedtuple("Cell", "share mode")
# A policy as it is run. sets: start values; options: more options of tune; ablation: no rival, a part of lever
Entry = collections.namedtuple("Entry", "name policy sets options ablation", defaults=((), (), False))


class Flash:
    """The emulated flash of one share, and how much of the target is streamed from it."""

    def __init__(self, preset, scale, streamed, n_layers, share):
        self.preset, self.scale, self.streamed, self.n_layers, self.share = preset, scale, streamed, n_layers, share

    @property
    def resident(self):
        return f"{1 - self.streamed / self.n_layers:.4f}"

    @property
    def rate(self):
        return choose_flash.PRESETS[self.preset] * self.scale

    def device(self):
        return ["--emulate-flash", self.preset, "--emulate-scale", f"{self.scale:.6f}"]

    def options(self):
        return ["--resident", self.resident, *self.device()]


def say(text):
    print("   " + text, flush=True)


def stage(name, what):
    print(f"\n== {name}: {what}", flush=True)


def prompts_of(path, per_domain):
    """The first `per_domain` prompts of each domain and split, in the file's order."""
    with open(path, encoding="utf-8") as f:
        parts = f.read().split("  - id:")[1:]
    counts, kept = collections.Counter(), []
    for text in parts:
        domain, split = (re.search(rf"{key}: ([a-z-]+)", text).group(1) for key in ("domain", "split"))
        counts[domain, split] += 1
        if counts[domain, split] <= per_domain:
            kept.append(Prompt(int(text.split()[0]), domain, split, "  - id:" + text.rstrip("\n") + "\n"))
    return kept


def prompts_text(prompts):
    return "prompts:\n" + "".join(p.text for p in prompts)


class Comparison:
    def __init__(self, a):
        self.a = a
        self.p = Program(a.lever, a.out)
        self.prompts = prompts_of(a.prompts_file, a.prompts)
        self.held_out = [p for p in self.prompts if p.split == "held-out"]
        self.shares = {}  # share: Flash
        self.entries = []
        self.tuned = {}  # (cell, name): {file, params, tune, predicted...}
        self.notes = []

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
            say("note: " + text)

    # ---- what all use ----

    def write_kept(self, name, text):
        path = self.p.path(name)
        if not os.path.exists(path) or open(path, encoding="utf-8").read() != text:
            write(path, text)
        return path

    def prepare(self):
        stage("prepare", "packs, prompts, and how fast this disk and this processor are")
        self.target = self.pack("target.lvrpack", self.a.target)
        self.draft = self.pack("draft.lvrpack", self.a.draft)
        self.layers = self.p.make_json("target.json", ["model", "info", self.target], [self.target])["pack"]["layer_bytes"]
        self.prompts_path = self.write_kept("prompts.yaml", prompts_text(self.prompts))
        self.common = ["-q", "-m", self.target, "-n", self.a.tokens, "--ignore-eos"]
        self.engine = ["--threads", self.a.threads, *(["--cpu-level", self.a.cpu_level] if self.a.cpu_level else [])]
        self.streaming = [x for key, value in ENGINE.items() for x in ("--" + key, value)]
        flash = [self.p.make_json(f"flash-{i}.json", ["bench", "flash", self.target, "--bytes", ENGINE["slice"], "--depth",
                                                     ENGINE["depth"], "--seconds", "0.4"], [self.target]) for i in range(N_FLASH)]
        results = [r for f in flash for r in f["results"]]
        self.disk = statistics.median(r["gbytes_per_s"] for r in results) * 1e9
        if not all(r["direct"] for r in results):
            self.note("no O_DIRECT on this file system: reads may come from the page cache")
        run = self.p.make_json("compute.json", ["run", *self.common, *self.on("tune"), "--policy", "ar", "--resident", "1",
                                               *self.engine], [self.target, self.prompts_path])
        self.compute_s = choose_flash.seconds_per_token(run)
        say(f"{self.p.version}; {len(self.held_out)} held-out prompts of {self.a.tokens} tokens; a token takes "
            f"{1e3 * self.compute_s:.2f} ms of compute, the disk reads {self.disk / 1e9:.2f} GB/s")

    def pack(self, name, model):
        return self.p.make(name, ["model", "pack", model, "-o", self.p.path(name)], [model])

    def on(self, split):
        return ["--prompts", self.prompts_path, "--split", split]

    def streamed_choices(self):
        """How many layers may be streamed, best first."""
        n = len(self.layers)
        return range(n, 0, -1) if self.a.resident is None else [max(1, round(n * (1 - self.a.resident)))]

    def record(self):
        stage("record", "timings and oracle on tune prompts, oracle on held-out ones; the cost model")
        share = min(self.a.shares, key=lambda s: abs(s - 0.86))
        choice = None
        for n in self.streamed_choices():
            choice = choose_flash.first_choice(self.compute_s, self.layers[:n], self.disk, share)
            if choice:
                break
        flash = Flash(*(choice or ("emulated-500", 1.0, 1)), len(self.layers), share)
        traces = []
        inputs = [self.target, self.draft, self.prompts_path]
        for name, options in RECORDED.items():
            draft = [] if name == "ar" else ["-md", self.draft]
            args = ["record", *self.common, *draft, *self.on("tune"), *self.engine, *self.streaming, *flash.options(), *options]
            traces.append(self.p.make(f"{name}.h5", [*args, "-o", self.p.path(f"{name}.h5")], inputs))
        for split in ("tune", "held-out"):
            path = self.p.path(f"oracle-{split}.h5")
            args = ["record", "--oracle", *self.common, "-md", self.draft, *self.on(split), "-o", path]
            self.p.make(f"oracle-{split}.h5", args, inputs)
        self.oracle = {s: self.p.path(f"oracle-{s}.h5") for s in ("tune", "held-out")}
        traces.append(self.oracle["tune"])
        self.cost = self.p.make("cost.yaml", ["fit", *traces, "-o", self.p.path("cost.yaml")], traces)
        say(f"timings recorded with {flash.streamed} of {flash.n_layers} layers streamed from {flash.rate / 1e9:.3f} GB/s")

    # ---- the flash of a share ----

    def table_share(self, flash):
        """T_io / (T_io + V(1) + head) of a serial autoregressive pass, by the fitted table."""
        name = f"shares/{flash.share}-{flash.preset}-{flash.streamed}-{flash.scale:.6f}.json"
        args = ["sim", "--oracle", self.oracle["tune"], "--cost", self.cost, "--policy", "ar", "--io", "serial", *flash.options()]
        return self.p.make_json(name, args, [self.oracle["tune"], self.cost])["io_share"]

    def choose(self, share):
        wanted, fallback = share / (1 - share), None
        for streamed in self.streamed_choices():
            for preset, rate in choose_flash.PRESETS.items():
                at_1 = self.table_share(Flash(preset, 1.0, streamed, len(self.layers), share))
                scale = at_1 / (1 - at_1) / wanted  # all times of the device grow as 1 / scale
                flash = Flash(preset, round(scale, 6), streamed, len(self.layers), share)
                if scale <= 1 and flash.rate <= choose_flash.HEADROOM * self.disk:
                    return flash
                most = min(1.0, choose_flash.HEADROOM * self.disk / rate)
                fallback = Flash(preset, round(most, 6), streamed, len(self.layers), share)
        if self.a.resident is None:
            for i in range(N_FLASH):  # the next try measures anew
                os.remove(self.p.path(f"flash-{i}.json"))
            raise Failed(f"no number of streamed layers gives an I/O share of {share}: the disk read {self.disk / 1e9:.3f} GB/s. If it was "
                         "disturbed, try again; else ask for a larger share, or --resident FRACTION to take what the disk carries")
        self.note(f"this disk cannot carry an I/O share of {share}: {fallback.rate / 1e9:.3f} GB/s is the most; the share is larger")
        return fallback

    def choose_all(self):
        stage("flash", "the emulated device at which I/O has each share of a serial pass")
        for share in self.a.shares:
            flash = self.choose(share)
            flash.by_table = self.table_share(flash)
            self.shares[share] = flash
            say(f"share {share}: {flash.preset} at scale {flash.scale:.4f} ({flash.rate / 1e9:.3f} GB/s), {flash.streamed} of "
                f"{flash.n_layers} layers streamed (resident {flash.resident}); by the table {flash.by_table:.4f}")
            if flash.streamed < len(self.layers) and self.a.resident is None:
                self.note("not all layers are streamed where the disk is too slow for it; see the resident fractions")

    # ---- tune and simulate ----

    def tune_file(self, cell, entry, sets, trials, name):
        """Returns (result of tune, its policy file)."""
        yaml = f"policies/{name}.yaml"
        args = ["tune", "--policy", entry.policy, "--io", cell.mode, *self.shares[cell.share].options(), "--cost", self.cost, "--oracle",
                self.oracle["tune"], "--held-out", self.oracle["held-out"], "--trials", trials, *entry.options, "-o", self.p.path(yaml)]
        for s in sets:
            args += ["--set", s]
        made = self.p.make_json(f"policies/{name}.json", args, [*self.oracle.values(), self.cost], also=[yaml])
        return made, self.p.path(yaml)

    def tune(self, cell, entry):
        return self.tune_file(cell, entry, entry.sets, self.a.trials, file_name(cell, entry.name))

    def simulate(self, cell, entry, file):
        policy = ["--policy", file, *self.shares[cell.share].device()] if file else \
            ["--policy", "ar", "--io", cell.mode, *self.shares[cell.share].options()]
        args = ["sim", "--oracle", self.oracle["held-out"], "--cost", self.cost, *policy, "--ceiling"]
        return self.p.make_json(f"sim/{file_name(cell, entry.name)}.json", args,
                                [self.oracle["held-out"], self.cost, *([file] if file else [])])

    def settle(self, cell, entry):
        """Tunes and simulates one entry of one cell."""
        tuned, file = (None, None) if entry.policy == "ar" else self.tune(cell, entry)
        sim = self.simulate(cell, entry, file)
        self.tuned[cell, entry.name] = {
            "file": file and os.path.relpath(file, self.p.out), "params": policy_params(file) if file else {},
            "tune_tokens_per_s": tuned and tuned["best"]["tokens_per_s"],
            "predicted": {p.id: (r["n_tokens"], r["n_tokens"] / r["decode_tokens_per_s"]) for p, r in zip(self.held_out, sim["requests"])},
            "predicted_tokens_per_s": sim["decode_tokens_per_s"], "exact": sim["exact"], "ceiling": sim.get("ceiling")}

    def rivals(self):
        names = [n for n in POLICIES if n in self.a.policies]
        chains = [Entry("chain", "chain", ("p_min=0",), ("--fix", "p_min")), Entry("chain-stop", "chain", ("p_min=0.1",))]
        return (chains if "chain" in names else []) + [Entry(n, n) for n in names if n != "chain"]

    def ablations(self):
        """lever without one of its parts. What is held costs the search no trials."""
        if "lever" not in self.a.policies or self.a.no_ablation:
            return []
        tree = ("--fix", "prune", "--fix", "theta")
        return [Entry("lever: tree only", "lever", ("prune=off",), tree, True),
                Entry("lever: rule=round", "lever", ("prune=off", "rule=round"), tree, True),
                Entry("lever: eager heads", "lever", ("prune=off",), (*tree, "--head", "eager"), True)]

    def tune_all(self):
        stage("tune", f"every policy with {self.a.trials} trials for each share and mode, on tune prompts; predictions for held-out ones")
        cells = [Cell(s, m) for s in self.a.shares for m in self.a.modes]
        for cell in cells:
            self.entries = self.rivals()
            for entry in self.entries:
                self.settle(cell, entry)
            more = self.ablations()
            for entry in more:
                self.settle(cell, entry)
            self.entries += more
            shown = sorted(((self.tuned[cell, e.name]["predicted_tokens_per_s"], e.name) for e in self.entries), reverse=True)
            say(f"share {cell.share}, {cell.mode}: " + ", ".join(f"{n} {v:.0f}" for v, n in shown))
        for share in self.a.shares:  # the base of every ratio
            if (Cell(share, "serial"), "ar") not in self.tuned:
                self.settle(Cell(share, "serial"), Entry("ar", "ar"))

    # ---- measure ----

    def groups(self):
        """Files of a few held-out prompts of each domain. A tune prompt comes first, to warm up; its figures are dropped."""
        warm = next(p for p in self.prompts if p.split == "tune")
        by_domain = collections.defaultdict(list)
        for p in self.held_out:
            by_domain[p.domain].append(p)
        made, n = [], self.a.group
        for i in range(0, max(map(len, by_domain.values())), n):
            group = [p for ps in by_domain.values() for p in ps[i:i + n]]
            made.append((self.write_kept(f"groups/{i // n}.yaml", prompts_text([warm, *group])), group))
        return made

    def run_args(self, cell, name, group_path):
        t = self.tuned[cell, name]
        args = ["run", *self.common, "--prompts", group_path]
        if t["file"]:
            file = self.p.path(t["file"])
            return [*args, "-md", self.draft, "--policy", file], [self.target, self.draft, group_path, file]
        args += [*self.engine, *self.streaming, *self.shares[cell.share].options(), "--policy", "ar", "--io", cell.mode]
        return args, [self.target, group_path]

    def plan(self):
        """All runs in their order: (cell, name, repeat, group index, expected seconds). Within a share all policies and modes
        take turns, group by group, and each turn starts with another one."""
        groups, runs = self.groups(), []
        for share in self.a.shares:
            turn = [(c, n) for c, n in self.tuned if c.share == share]
            for repeat in range(self.a.repeats):
                for g, (_, group) in enumerate(groups):
                    k = (repeat * len(groups) + g) * 5 % len(turn)
                    for cell, name in turn[k:] + turn[:k]:
                        seconds = START_S + (len(group) + 1) * self.a.tokens / self.tuned[cell, name]["predicted_tokens_per_s"]
                        runs.append((cell, name, repeat, g, seconds))
        return groups, runs

    def measure(self):
        groups, runs = self.plan()
        total = sum(r[4] for r in runs)
        stage("run", f"held-out prompts, {len(runs)} runs, {total / 60:.1f} min if predictions hold")
        progress = Progress(sys.stderr, "measured", total)
        texts, self.runs = {}, []
        for cell, name, repeat, g, seconds in runs:
            path, group = groups[g]
            args, inputs = self.run_args(cell, name, path)
            made = self.p.made
            r = self.p.make_json(f"runs/{file_name(cell, name)}-{g}-{repeat}.json", args, inputs)
            progress.step(seconds, kept=self.p.made == made)
            for prompt, q in zip(group, r["requests"][1:], strict=True):
                self.check_tokens(texts, prompt, q["tokens"], cell, name)
                self.runs.append({"share": cell.share, "mode": cell.mode, "policy": name, "repeat": repeat, "prompt": prompt.id,
                                  "domain": prompt.domain, "seconds": q["n_tokens"] / q["decode_tokens_per_s"],
                                  **{k: q[k] for k in ("n_tokens", "rounds", "plan_s", "late_reads", "bytes_read")}})
            if name == "ar" and cell.mode == "serial":
                self.shares[cell.share].__dict__.setdefault("measured", []).append(r["io_share"])

    @staticmethod
    def check_tokens(texts, prompt, tokens, cell, name):
        first = texts.setdefault(prompt.id, (tokens, cell, name))
        if first[0] == tokens:
            return
        at = next((i for i, (a, b) in enumerate(zip(first[0], tokens)) if a != b), min(len(first[0]), len(tokens)))
        raise Failed(f"NOT LOSSLESS: prompt {prompt.id} ({prompt.domain}): {name} (share {cell.share}, {cell.mode}) differs from "
                     f"{first[2]} (share {first[1].share}, {first[1].mode}) from token {at} on; no speed of it means anything")

    # ---- results ----

    def results(self):
        domains = collections.defaultdict(list)
        for p in self.held_out:
            domains[p.domain].append(p.id)
        return {
            "schema": "lever-compare/1", "version": self.p.version, "lever_sha256": self.p.identity, "machine": machine(),
            "settings": {k: v for k, v in vars(self.a).items() if k not in ("lever", "out")}, "engine": ENGINE, "notes": self.notes,
            "disk_bytes_per_s": self.disk, "domains": domains,
            "shares": {str(s): {"preset": f.preset, "scale": f.scale, "bytes_per_s": f.rate, "streamed_layers": f.streamed,
                                "layers": f.n_layers, "resident": float(f.resident), "share_by_table": f.by_table,
                                "share_measured": sum(f.measured) / len(f.measured)} for s, f in self.shares.items()},
            "ablations": [e.name for e in self.entries if e.ablation],
            "tuned": [{"share": c.share, "mode": c.mode, "policy": n, **t} for (c, n), t in self.tuned.items()],
            "runs": self.runs, "commands": self.p.commands}


def file_name(cell, name):
    return f"{cell.share}-{cell.mode}-{re.sub('[^a-z0-9=.-]+', '-', name)}"


def policy_params(path):
    """The parameters in a policy file."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    block = re.search(r"^params:\n((?:  .*\n)*)", text, re.M)
    pairs = (line.strip().split(": ", 1) for line in (block.group(1) if block else "").splitlines() if ": " in line)
    return {k: number(v) for k, v in pairs}


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def machine():
    cpu = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "")
    except OSError:
        pass
    return {"system": platform.platform(), "cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg(),
            "python": platform.python_version(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def whole(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, found {text}")
    return value


def listed(choices):
    def parse(text):
        made = text.split(",")
        for x in made:
            if x not in choices:
                raise argparse.ArgumentTypeError(f"expected some of {','.join(choices)}, found '{x}'")
        return list(dict.fromkeys(made))
    return parse


def fractions(text):
    made = [float(x) for x in text.split(",")]
    if not all(0 < x < 1 for x in made):
        raise argparse.ArgumentTypeError(f"expected numbers between 0 and 1, found {text}")
    return list(dict.fromkeys(made))


def resident(text):
    if text == "auto":
        return None
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("expected auto, or a fraction from 0 to below 1: with everything resident nothing is streamed")
    return value


FULL = {"shares": [0.78, 0.86, 0.93], "prompts": 8, "tokens": 64, "trials": 120, "repeats": 3, "draws": 2000}
QUICK = {"shares": [0.86], "prompts": 2, "tokens": 24, "trials": 24, "repeats": 2, "draws": 500}


def arguments(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lever", required=True, help="the program")
    ap.add_argument("--out", required=True, help="folder of the results; what it holds is kept")
    ap.add_argument("--shares", type=fractions, help="I/O shares of a serial pass (0.78,0.86,0.93)")
    ap.add_argument("--modes", type=listed(("serial", "pipelined")), default=["serial", "pipelined"], help="(serial,pipelined)")
    ap.add_argument("--policies", type=listed(POLICIES), default=list(POLICIES), help="some of the nine; ar is always measured")
    ap.add_argument("--prompts", type=whole, metavar="N", help="prompts per domain and split, 1 to 8 (8)")
    ap.add_argument("--tokens", type=whole, metavar="N", help="tokens per prompt (64)")
    ap.add_argument("--trials", type=whole, metavar="N", help="points that each policy's search may try (120)")
    ap.add_argument("--repeats", type=whole, metavar="N", help="measured runs of each policy (3)")
    ap.add_argument("--draws", type=whole, metavar="N", help="resamples of the bootstrap (2000)")
    ap.add_argument("--group", type=whole, default=2, metavar="N", help="prompts per domain in a turn (2)")
    ap.add_argument("--resident", type=resident, default=None, metavar="FRACTION",
                    help="of the target's layers; auto: 0, or as little as the disk can carry honestly (auto)")
    ap.add_argument("--disk-part", type=float, default=choose_flash.HEADROOM, metavar="X",
                    help=f"most that an emulated device may have of the disk's warm rate, up to 0.7 ({choose_flash.HEADROOM})")
    ap.add_argument("--threads", type=whole, default=1, metavar="N", help="threads that compute (1)")
    ap.add_argument("--cpu-level", help="SIMD level (the best there is)")
    ap.add_argument("--no-ablation", action="store_true", help="no rows of lever's parts")
    ap.add_argument("--quick", action="store_true", help="a small run that shows whether all works: one share, few prompts")
    ap.add_argument("--target", default=os.path.join(ROOT, "models", "lever-target-10m-q8_0.gguf"))
    ap.add_argument("--draft", default=os.path.join(ROOT, "models", "lever-draft-1m-q8_0.gguf"))
    ap.add_argument("--prompts-file", default=os.path.join(ROOT, "models", "prompts", "prompts.yaml"))
    a = ap.parse_args(argv)
    for key, value in (QUICK if a.quick else FULL).items():
        if getattr(a, key) is None:
            setattr(a, key, value)
    if not 0 < a.disk_part <= 0.7:
        ap.error(f"--disk-part: expected a number above 0, up to 0.7, found {a.disk_part}")
    if "ar" not in a.policies:
        a.policies.insert(0, "ar")
    if not os.access(a.lever, os.X_OK):
        ap.error(f"--lever: there is no program {a.lever}; build it first: ninja -C BUILD cli/lever")
    return a


def check_folder(out):
    """Refuses to mix with what somebody else has put there."""
    mark = os.path.join(out, ".compare")
    if os.path.isdir(out) and os.listdir(out) and not os.path.exists(mark):
        raise Failed(f"{out} is not empty and holds no comparison; choose another folder with --out", 2)
    write(mark, "")


def run(a):
    start = time.monotonic()
    check_folder(a.out)
    choose_flash.HEADROOM = a.disk_part
    c = Comparison(a)
    c.prepare()
    c.record()
    c.choose_all()
    c.tune_all()
    c.measure()
    stage("results", "speeds, speed-ups and their intervals")
    results = c.results()
    report.write_all(results, c.p.out)
    print(open(c.p.path("summary.md"), encoding="utf-8").read())
    say(f"everything is in {a.out}/; {c.p.made} results made, {c.p.kept} kept, {time.monotonic() - start:.0f} s")


def main():
    a = arguments(sys.argv[1:])
    try:
        run(a)
    except Failed as e:
        sys.stdout.flush()
        print(f"compare: {e}", file=sys.stderr)
        sys.exit(e.status)
    except KeyboardInterrupt:
        print("\ncompare: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
