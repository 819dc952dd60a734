#!/usr/bin/env python3
"""Tables of a comparison, from its results.json: summary.csv (tidy) and summary.md.

  report.py DIR    make the tables of DIR/results.json again
"""
import csv
import io
import json
import os
import sys

from program import load, write
from stats import Ratios, geomean, speed

# Speed-ups of the Lever paper's abstract, and what this project aims at.
MARKS = {"over_serial_ar": ("serial flash ar", 2.93, 4.0), "over_best_chain": ("the best chain", 1.50, 2.0)}
CHAINS = ("chain", "chain-stop")
RATIOS = ("over_serial_ar", "over_ar", "over_best_chain", "lever_over_it")
SLICE_BYTES = 256 * 1024  # of a read, at most
NAN = float("nan")


class Comparison:
    def __init__(self, results):
        self.r = results
        self.domains = results["domains"]
        self.prompts = [p for ps in self.domains.values() for p in ps]
        self.ratios = Ratios(self.domains, results["settings"]["draws"])
        self.figures = {}  # (share, mode): {policy: {prompt: (tokens, seconds)}}
        self.extra = {}  # (share, mode, policy): sums
        for run in results["runs"]:
            self._add(run)
        self.tuned = {(str(t["share"]), t["mode"], t["policy"]): t for t in results["tuned"]}
        self.prepared = {(c, n): self.ratios.prepare(f) for c, names in self.figures.items() for n, f in names.items()}
        self.shares = list(results["shares"])
        self.modes = results["settings"]["modes"]

    def _add(self, run):
        cell = (str(run["share"]), run["mode"])
        prompts = self.figures.setdefault(cell, {}).setdefault(run["policy"], {})
        n, s = prompts.get(run["prompt"], (0, 0.0))
        prompts[run["prompt"]] = (n + run["n_tokens"], s + run["seconds"])
        extra = self.extra.setdefault((*cell, run["policy"]), {"rounds": 0, "n_tokens": 0, "plan_s": 0.0, "seconds": 0.0, "late_reads": 0,
                                                                   "bytes_read": 0})
        for k in extra:
            extra[k] += run[k]

    def names(self, cell):
        return [t["policy"] for (s, m, _), t in self.tuned.items() if (s, m) == cell]

    def speed(self, cell, name, key):
        figures = self.figures[cell][name]
        if key == "geomean":
            return geomean(speed(figures, ps) for ps in self.domains.values())
        return speed(figures, self.prompts if key == "all" else self.domains[key])

    def predicted(self, cell, name, key):
        figures = {int(p): f for p, f in self.tuned[(*cell, name)]["predicted"].items()}
        if key == "geomean":
            return geomean(speed(figures, ps) for ps in self.domains.values())
        return speed(figures, self.prompts if key == "all" else self.domains[key])

    def fastest(self, cell, names):
        """By measured speed over all prompts; None if there is none of them."""
        present = [n for n in names if n in self.figures[cell]]
        return max(present, key=lambda n: self.speed(cell, n, "geomean"), default=None)

    def bases(self, cell, name):
        """{ratio: (numerator, denominator)}, each (cell, policy)."""
        serial = ((cell[0], "serial"), "ar")
        chain = self.fastest(cell, CHAINS)
        made = {"over_serial_ar": ((cell, name), serial), "over_ar": ((cell, name), (cell, "ar"))}
        if chain:
            made["over_best_chain"] = ((cell, name), (cell, chain))
        if "lever" in self.figures[cell]:
            made["lever_over_it"] = ((cell, "lever"), (cell, name))
        return made

    def ratio(self, cells, name):
        """{ratio: {domain...: (value, low, high)}} over these cells together."""
        per_cell = [self.bases(c, name) for c in cells]
        return {k: self.ratios.ratio([(self.prepared[b[k][0]], self.prepared[b[k][1]]) for b in per_cell])
                for k in RATIOS if all(k in b for b in per_cell)}

    def ceiling(self, cell, name):
        c = self.tuned[(*cell, name)].get("ceiling")
        return c["tokens_per_s"] if c else NAN


def rows(c):
    """Tidy: one row per share (also "geomean"), mode, policy and domain (also "all" and "geomean")."""
    for mode in c.modes:
        cells = [(s, mode) for s in c.shares]
        for name in c.names(cells[0]):
            for group in [*[[x] for x in cells], *([cells] if len(cells) > 1 and all(name in c.figures[x] for x in cells) else [])]:
                if name not in c.figures.get(group[0], {}):
                    continue
                ratios = c.ratio(group, name)
                for domain in [*c.domains, "all", "geomean"]:
                    yield row(c, group, mode, name, domain, ratios)


def row(c, cells, mode, name, domain, ratios):
    measured = geomean(c.speed(x, name, domain) for x in cells)
    predicted = geomean(c.predicted(x, name, domain) for x in cells)
    ceiling = geomean(c.ceiling(x, name) for x in cells)
    extra = {k: sum(c.extra[(*x, name)][k] for x in cells) for k in ("rounds", "n_tokens", "plan_s", "seconds", "late_reads")}
    made = {"share": cells[0][0] if len(cells) == 1 else "geomean", "mode": mode, "policy": name, "domain": domain,
            "ablation": name in c.r["ablations"], "tokens_per_s": measured, "predicted_tokens_per_s": predicted,
            "prediction_error": predicted / measured - 1}
    for k in RATIOS:
        made[k], made[k + "_low"], made[k + "_high"] = ratios[k][domain] if k in ratios else (NAN, NAN, NAN)
    whole = domain == "all"
    made["percent_of_ceiling"] = 100 * measured / ceiling if whole else NAN
    made["predicted_percent_of_ceiling"] = 100 * predicted / ceiling if whole else NAN
    made["acceptance_length"] = extra["n_tokens"] / extra["rounds"] if whole else NAN
    made["plan_percent"] = 100 * extra["plan_s"] / extra["seconds"] if whole else NAN
    made["late_reads"] = extra["late_reads"] if whole else NAN
    return made


def csv_text(table):
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=table[0].keys(), lineterminator="\n")
    writer.writeheader()
    for r in table:
        writer.writerow({k: "" if isinstance(v, float) and v != v else f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()})
    return out.getvalue()


def with_interval(r, key):
    value, low, high = r[key], r[key + "_low"], r[key + "_high"]
    if value != value:
        return ""
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if low == low else f"{value:.2f}"


def plain(value, form="{:.1f}"):
    return "" if value != value else form.format(value)


def markdown_table(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|",
            *["| " + " | ".join(line) + " |" for line in lines], ""]


def find(table, **keys):
    return [r for r in table if all(r[k] == v for k, v in keys.items())]


def policy_table(table, share, mode):
    """Geomean over domains, the fastest first, parts of lever at the end; ceiling, acceptance and planning over all prompts."""
    lines = []
    for r in sorted(find(table, share=share, mode=mode, domain="geomean"), key=lambda r: (r["ablation"], -r["tokens_per_s"])):
        a = find(table, share=share, mode=mode, domain="all", policy=r["policy"])[0]
        lines.append([("- " if r["ablation"] else "") + r["policy"], plain(r["tokens_per_s"]), with_interval(r, "over_serial_ar"),
                      with_interval(r, "over_best_chain"), with_interval(r, "lever_over_it"), plain(a["percent_of_ceiling"]),
                      f"{r['predicted_tokens_per_s']:.1f} ({100 * r['prediction_error']:+.1f} %)", f"{a['acceptance_length']:.2f}",
                      f"{a['plan_percent']:.2f}"])
    return markdown_table(["policy", "tokens/s", "x serial ar", "x best chain", "lever / it", "% of ceiling", "predicted",
                           "tokens a round", "planning, %"], lines)


def domain_table(c, table, share, mode):
    lines = []
    for r in sorted(find(table, share=share, mode=mode, domain="geomean"), key=lambda r: (r["ablation"], -r["tokens_per_s"])):
        per = {d: find(table, share=share, mode=mode, policy=r["policy"], domain=d)[0] for d in c.domains}
        lines.append([("- " if r["ablation"] else "") + r["policy"], *[f"{x['tokens_per_s']:.1f}; {with_interval(x, 'over_serial_ar')}"
                                                                      for x in per.values()]])
    return markdown_table(["policy", *[f"{d}: tokens/s; x serial ar" for d in c.domains]], lines)


def standing(table, share, mode):
    """Whether lever is the first, within the interval of the first, or behind. None: lever did not run."""
    rivals = [r for r in find(table, share=share, mode=mode, domain="geomean") if not r["ablation"]]
    first = max(rivals, key=lambda r: r["tokens_per_s"])
    if not any(r["policy"] == "lever" for r in rivals):
        return None
    if first["policy"] == "lever":
        next_ = max((r for r in rivals if r["policy"] != "lever"), key=lambda r: r["tokens_per_s"])
        return f"lever is first; it over {next_['policy']}, the next: {with_interval(next_, 'lever_over_it')}"
    text = with_interval(first, "lever_over_it")
    if first["lever_over_it_high"] != first["lever_over_it_high"]:
        return f"lever is behind {first['policy']}: {text} of its speed; one prompt per domain gives no interval"
    if first["lever_over_it_high"] >= 1:
        return f"lever is within the interval of the first, {first['policy']}: {text} of its speed"
    return f"lever is BEHIND {first['policy']}: {text} of its speed"


def judged(low, high, mark):
    if low != low:
        return "no interval"
    return "passed" if low > mark else "missed" if high < mark else "within the interval"


def mark_lines(table, share, mode):
    lever = find(table, share=share, mode=mode, domain="geomean", policy="lever")
    lines = []
    for key, (what, paper, aim) in MARKS.items():
        if not lever or lever[0][key] != lever[0][key]:
            continue
        low, high = lever[0][key + "_low"], lever[0][key + "_high"]
        against = [f"{word} {mark:.2f}: {judged(low, high, mark)}" for word, mark in (("the paper's", paper), ("aim", aim))]
        lines.append(f"- lever over {what}: {with_interval(lever[0], key)} ({', '.join(against)})")
    return lines


def share_lines(c):
    head = ["I/O share asked for", "by the fitted table", "measured (serial ar)", "emulated flash", "GB/s", "resident fraction"]
    return markdown_table(head, [[s, f"{f['share_by_table']:.4f}", f"{f['share_measured']:.4f}", f"{f['preset']} x {f['scale']:.4f}",
                                  f"{f['bytes_per_s'] / 1e9:.3f}", f"{f['resident']:.3f} ({f['streamed_layers']} of {f['layers']} layers "
                                  "streamed)"] for s, f in c.r["shares"].items()])


def error_line(table, mode):
    errors = [abs(r["prediction_error"]) for r in table if r["mode"] == mode and r["domain"] == "geomean" and r["share"] != "geomean"]
    return f"Predicted against measured: mean error {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %."


def markdown(c, table):
    s, m = c.r["settings"], c.r["machine"]
    late = sum(e["late_reads"] for e in c.extra.values())
    out = ["# Policies compared", "",
           f"{c.r['version']}, {m['cpu']}, {m['cpus']} CPUs, load {m['load'][0]:.1f}, {m['date']}. {len(c.prompts)} held-out prompts "
           f"({', '.join(f'{len(p)} {d}' for d, p in c.domains.items())}), {s['tokens']} tokens each, greedy, {s['repeats']} repeats in "
           f"turn, {s['trials']} tuning trials, {s['threads']} thread(s). Speeds are decode tokens per second; brackets are paired 95 % "
           "bootstrap intervals over prompts. Best chain: the faster here of the fixed and the confidence-stopped one. "
           "All policies emitted the same tokens.", ""]
    if late:
        part = 100 * late / max(1, sum(e["bytes_read"] for e in c.extra.values()) / SLICE_BYTES)
        out += [f"**Late reads**: {late} reads ({part:.1f} %) of the real disk came later than the emulated one's would have; above a few "
                "per cent the disk was disturbed or too slow, and measured speeds are lower for it (--disk-part).", ""]
    if m["load"][0] > m["cpus"]:
        out += [f"**The machine was busy** (load {m['load'][0]:.1f} on {m['cpus']} CPUs): take no figure from this run.", ""]
    out += [f"Note: {n}." for n in c.r["notes"]] + [""] + share_lines(c)
    for mode in c.modes:
        shares = (["geomean"] if len(c.shares) > 1 else []) + c.shares
        for share in shares:
            out += [f"## {mode}, " + (f"geomean over I/O shares {', '.join(c.shares)}" if share == "geomean" else f"I/O share {share}"), ""]
            out += policy_table(table, share, mode)
            verdict = standing(table, share, mode)
            out += ([f"- {verdict}"] if verdict else []) + mark_lines(table, share, mode) + [""]
            out += domain_table(c, table, share, mode)
        out += [error_line(table, mode), ""]
    inexact = [f"{n} ({s}, {m})" for (s, m, n), t in c.tuned.items() if not t["exact"]]
    if inexact:
        out += [f"Predictions that met nodes outside the recording: {', '.join(inexact)}.", ""]
    return "\n".join(out)


def losses(c):
    """Parts of the loss against the ceiling, where the program tells them."""
    found = [(t, t["ceiling"]["losses"]) for t in c.tuned.values() if t.get("ceiling") and t["ceiling"].get("losses")]
    if not found:
        return ""
    keys = list(found[0][1])
    head = ["policy, share, mode", "ceiling, tokens/s", "fraction (simulated)", *keys]
    lines = [[f"{t['policy']}, {t['share']}, {t['mode']}", f"{t['ceiling']['tokens_per_s']:.1f}", f"{t['ceiling']['fraction']:.3f}",
              *[plain(loss.get(k, NAN) if isinstance(loss.get(k), (int, float)) else NAN, "{:.3f}") for k in keys]] for t, loss in found]
    return "\n".join(["## Losses against the ceiling, simulated", "", *markdown_table(head, lines)])


def write_all(results, folder):
    results = json.loads(json.dumps(results))  # as read again from the file
    c = Comparison(results)
    table = list(rows(c))
    write(os.path.join(folder, "results.json"), json.dumps(results, indent=1) + "\n")
    write(os.path.join(folder, "summary.csv"), csv_text(table))
    write(os.path.join(folder, "summary.md"), markdown(c, table) + "\n" + losses(c))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.exists(os.path.join(sys.argv[1], "results.json")):
        sys.exit(__doc__)
    write_all(load(os.path.join(sys.argv[1], "results.json")), sys.argv[1])
