#!/usr/bin/env python3
"""Reads what quickstart.sh's runs printed and makes its tables.

  quickstart_table.py tuned DIR    what tune chose, a line a policy
  quickstart_table.py table DIR    measured and simulated speed per domain; also DIR/table.csv

A speed is output tokens per second of decoding, all prompts of a domain together. Measured: the median over repeats;
speed-ups are medians of the ratios within a repeat, so that a slow moment of the machine hits both sides. geomean is over
domains. error is simulated / measured - 1. Exit status 1 if the policies' tokens differ from one another.
"""
import csv
import glob
import json
import math
import os
import statistics
import sys

NAMES = (("ar-serial", "ar, serial"), ("ar-pipelined", "ar, pipelined"), ("chain", "chain, tuned"), ("lever", "lever, tuned"))


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def speeds(requests, domains):
    """Tokens per second by domain; domains[i] is request i's."""
    tokens, seconds = {}, {}
    for r, d in zip(requests, domains):
        tokens[d] = tokens.get(d, 0) + r["n_tokens"]
        seconds[d] = seconds.get(d, 0) + r["n_tokens"] / r["decode_tokens_per_s"]
    return {d: tokens[d] / seconds[d] for d in tokens}


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def with_mean(by_domain):
    return dict(by_domain, geomean=geomean(by_domain.values()))


class Results:
    def __init__(self, folder):
        self.runs = {}
        for name, _ in NAMES:
            paths = sorted(glob.glob(os.path.join(folder, f"run-{name}-*.json")))
            self.runs[name] = [load(p) for p in paths]
        if not all(self.runs.values()):
            sys.exit(f"{folder}: runs are missing")
        self.sims = {name: load(os.path.join(folder, f"sim-{name}.json")) for name, _ in NAMES}
        first = self.runs["ar-serial"][0]
        self.domains = [r["domain"] for r in first["requests"]]
        self.tokens = first["tokens"]
        self.measured = {name: [with_mean(speeds(r["requests"], self.domains)) for r in runs] for name, runs in self.runs.items()}
        self.simulated = {name: with_mean(speeds(s["requests"], self.domains)) for name, s in self.sims.items()}

    def speed(self, name, domain):
        return statistics.median(r[domain] for r in self.measured[name])

    def speed_up(self, name, base, domain):
        return statistics.median(a[domain] / b[domain] for a, b in zip(self.measured[name], self.measured[base]))

    def differing(self):
        return [name for name, runs in self.runs.items() for r in runs if r["tokens"] != self.tokens] + \
               [f"{name} (simulated)" for name, s in self.sims.items() if s["tokens"] != self.tokens]


def rows(results):
    for domain in list(dict.fromkeys(results.domains)) + ["geomean"]:
        for name, title in NAMES:
            measured = results.speed(name, domain)
            simulated = results.simulated[name][domain]
            yield {"domain": domain, "policy": title, "measured_tokens_per_s": measured,
                   "over_ar_serial": results.speed_up(name, "ar-serial", domain),
                   "over_chain": results.speed_up(name, "chain", domain),
                   "simulated_tokens_per_s": simulated, "error": simulated / measured - 1,
                   "exact": results.sims[name]["exact"]}


def print_table(table):
    print(f"{'domain':<10} {'policy':<14} {'tokens/s':>9} {'x ar serial':>12} {'x chain':>8} {'simulated':>10} {'error':>8}")
    last = None
    for r in table:
        domain = r["domain"] if r["domain"] != last else ""
        last = r["domain"]
        print(f"{domain:<10} {r['policy']:<14} {r['measured_tokens_per_s']:>9.1f} {r['over_ar_serial']:>12.2f} "
              f"{r['over_chain']:>8.2f} {r['simulated_tokens_per_s']:>10.1f} {100 * r['error']:>+7.1f}%{'' if r['exact'] else ' *'}")


def table(folder):
    results = Results(folder)
    made = list(rows(results))
    print_table(made)
    with open(os.path.join(folder, "table.csv"), "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, fieldnames=made[0].keys())
        writer.writeheader()
        writer.writerows(made)
    share = statistics.median(r["io_share"] for r in results.runs["ar-serial"])
    runs = [r for name, _ in NAMES for r in results.runs[name]]
    late = sum(r["late_reads"] for r in runs)
    print()
    print(f"I/O share of a serial pass, measured: {share:.2f}. Emulated flash: {runs[0]['emulated']} at scale "
          f"{runs[0]['emulate_scale']:.3f}; {runs[0]['resident_fraction']:.2f} of the layers' bytes resident.")
    print("Acceptance length: " + ", ".join(
        f"{title.split(',')[0]} {results.runs[name][0]['mean_acceptance_length']:.2f}" for name, title in NAMES[2:]) +
        f". Repeated 8-grams: {100 * runs[0]['repeated_8gram_share']:.0f} % of the text (loops flatter acceptance).")
    if late:
        print(f"{late} reads of the real disk were slower than the emulated one would have been (of {reads(runs)}): "
              "the disk was disturbed, and measured speeds are lower for it.")
    if not all(r["exact"] for r in made):
        print("* not exact: the policy met nodes that the oracle trace does not hold; it holds that they were not accepted.")
    different = results.differing()
    if different:
        print("NOT LOSSLESS: tokens differ from ar's in: " + ", ".join(different))
        return 1
    print(f"Lossless: all policies, measured and simulated, gave the same {len(results.tokens)} tokens.")
    return 0


def reads(runs):
    """Reads of 256 KiB and their remainders, roughly."""
    return sum(math.ceil(r["bytes_read"] / 262144) for r in runs)


def tuned(folder):
    for policy in ("chain", "lever"):
        t = load(os.path.join(folder, f"tune-{policy}.json"))
        best, held_out = t["best"], t["held_out"]
        params = ", ".join(f"{k} {v:.3g}" for k, v in best["params"].items())
        refused = sum(trial["outside_nodes"] > 0 for trial in t["trials"])
        print(f"{policy}: {params}: {best['tokens_per_s']:.1f} tokens/s on tune prompts, {held_out['tokens_per_s']:.1f} predicted for "
              f"held-out ones ({len(t['trials'])} trials" + (f", {refused} refused: outside the recording)" if refused else ")"))
    return 0


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("tuned", "table"):
        sys.exit(__doc__)
    sys.exit({"tuned": tuned, "table": table}[sys.argv[1]](sys.argv[2]))


if __name__ == "__main__":
    main()
