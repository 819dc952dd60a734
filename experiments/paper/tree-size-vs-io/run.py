#!/usr/bin/env python3
"""How large a tree a policy chooses as reading gets slower: with no reading compute alone decides; the more a pass costs to
read, the more rows it is given, until compute prices them.

  experiments/paper/tree-size-vs-io/run.py [--lever PROGRAM] [--traces DIR] [--out DIR] [--shares S,S,...]

Simulated on the held-out oracle trace and the cost model of --traces (models/traces). A flash without latency is made for every
share of I/O in a serial autoregressive pass, T_io / (T_io + V(1) + head); all layers are streamed, or for share 0 all resident.
Policies: `lever` at its own price of time (--solve-lambda), `smart` as it comes, and the fixed chain that is fastest on the tune
trace under the same flash. Waking up after a read is set to 0: no policy prices it. Writes DIR/tree-size.csv, a row per schedule,
share and policy; rows (the root included) and depth are means over rounds of the verified trees. plots/tree_size.py draws it.
Where lever and smart stop growing on these traces it is their floor on path probability (min_path 0.01) that stops them, not
compute: the recording ends at 0.005. Needs Python 3 only.
"""
import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3)
SHARES = "0,0.1,0.25,0.5,0.65,0.78,0.86,0.93,0.97,0.99,0.995"
DEVICE_BYTES_PER_S = 10 ** 12  # slowed down to what is wanted
DEVICE = f"""name: chosen-rate
description: Flash without latency, slowed down to a chosen rate (no product)
flash:
  t0_ns: 0
  lane_bytes_per_s: {DEVICE_BYTES_PER_S}
  max_bytes_per_s: {DEVICE_BYTES_PER_S}
  depth: 1
"""
MAX_CHAIN = 16
COLUMNS = ("io_mode", "policy", "params", "io_share", "io_s_per_pass", "rows_per_round", "depth_per_round",
           "mean_acceptance_length", "tokens_per_s", "ceiling_fraction")


class Simulator:
    """Runs the program with the changed cost model and the made-up device, in `folder`."""

    def __init__(self, a, folder):
        self.lever, self.traces, self.folder, self.stream_bytes = a.lever, a.traces, folder, 0
        with open(os.path.join(a.traces, "cost.yaml"), encoding="utf-8") as f:
            text, n = re.subn(r"^wake_ns: .*$", "wake_ns: 0", f.read(), flags=re.M)
        if n != 1:
            sys.exit(f"tree-size: {a.traces}/cost.yaml: expected one line wake_ns, found {n}")
        self.cost, self.device = os.path.join(folder, "cost.yaml"), os.path.join(folder, "flash.yaml")
        for path, content in ((self.cost, text), (self.device, DEVICE)):
            with open(path, "w", encoding="utf-8") as f:
                f.write(content)

    def run(self, *args):
        done = subprocess.run([self.lever, *args], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"tree-size: this failed: {self.lever} {' '.join(args)}\n{done.stderr}")
        return done.stdout

    def json(self, split, args):
        oracle = os.path.join(self.traces, f"oracle-{split}.h5")
        return json.loads(self.run("sim", "--oracle", oracle, "--cost", self.cost, *args, "--json"))

    def flash(self, io_ns):
        if io_ns == 0:
            return ["--resident", "1"]
        scale = self.stream_bytes / io_ns * 1e9 / DEVICE_BYTES_PER_S
        return ["--resident", "0", "--emulate-flash", self.device, "--emulate-scale", repr(scale)]

    def measure_pass(self):
        """Compute of a plain pass in ns; and what a pass streams."""
        self.stream_bytes = self.json("held-out", ["--policy", "ar", "--resident", "0"])["schedule"]["stream_bytes_per_pass"]
        return self.json("held-out", ["--policy", "ar", *self.flash(0)])["tpot_s"] * 1e9

    def depth(self, trace):
        """Mean depth of the verified trees of a simulated trace."""
        folder = os.path.join(self.folder, "csv")
        self.run("trace", "export", trace, "--to", "csv", "-o", folder)
        with open(os.path.join(folder, "rounds.csv"), encoding="utf-8", newline="") as f:
            depths = [int(r["depth"]) for r in csv.DictReader(f) if r["prefill"] == "0"]
        return sum(depths) / len(depths)

    def row(self, io_ns, io, name, params):
        trace = os.path.join(self.folder, "run.h5")
        flash = self.flash(io_ns)
        r = self.json("held-out", ["--policy", name, *params, "--io", io, *flash, "--ceiling", "--trace", trace, "--overwrite"])
        if not r["exact"]:
            print(f"tree-size: {name}, T_io {io_ns:.0f} ns, {io}: {r['outside_nodes']} nodes are not in the recording", file=sys.stderr)
        kept = {"lever": "lambda", "chain": "k"}.get(name)
        return {"io_mode": io, "policy": name, "params": f"{kept}={r['params'][kept]:.4g}" if kept else "",
                "io_share": f"{r['io_share']:.4f}", "io_s_per_pass": f"{io_ns * 1e-9:.6g}",
                "rows_per_round": f"{r['verified_rows'] / r['rounds']:.3f}", "depth_per_round": f"{self.depth(trace):.3f}",
                "mean_acceptance_length": f"{r['mean_acceptance_length']:.4f}", "tokens_per_s": f"{r['decode_tokens_per_s']:.4f}",
                "ceiling_fraction": f"{r['ceiling']['fraction']:.4f}"}

    def best_chain(self, io_ns, io):
        def speed(k):
            return self.json("tune", ["--policy", "chain", "--set", f"k={k}", "--io", io, *self.flash(io_ns)])["decode_tokens_per_s"]
        return max(range(1, MAX_CHAIN + 1), key=speed)


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lever", default=os.path.join(ROOT, "build", "cli", "lever"), help="the program (default build/cli/lever)")
    ap.add_argument("--traces", default=os.path.join(ROOT, "models", "traces"), help="oracle-tune.h5, oracle-held-out.h5, cost.yaml")
    ap.add_argument("--out", default="tree-size-out", help="folder of tree-size.csv (default tree-size-out)")
    ap.add_argument("--shares", default=SHARES, help=f"shares of I/O, 0 to below 1 (default {SHARES})")
    a = ap.parse_args()
    try:
        a.shares = [float(s) for s in a.shares.split(",")]
    except ValueError:
        ap.error(f"--shares: expected numbers with commas between, found {a.shares}")
    if not all(0 <= s < 1 for s in a.shares):
        ap.error(f"--shares: expected 0 to below 1, found {a.shares}")
    return a


def main():
    a = parse()
    os.makedirs(a.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(a.out, "tree-size.csv"), "w", encoding="utf-8", newline="") as f:
        sim, out = Simulator(a, folder), csv.DictWriter(f, COLUMNS, lineterminator="\n")
        out.writeheader()
        compute_ns = sim.measure_pass()
        for io in ("serial", "pipelined"):
            for share in a.shares:
                io_ns = compute_ns * share / (1 - share)
                k = sim.best_chain(io_ns, io)
                for name, params in (("lever", ["--solve-lambda"]), ("smart", []), ("chain", ["--set", f"k={k}"])):
                    out.writerow(sim.row(io_ns, io, name, params))
    print(os.path.join(a.out, "tree-size.csv"))


if __name__ == "__main__":
    main()
