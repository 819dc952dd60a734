#!/usr/bin/env python3
"""Bars of measured and simulated tokens per second by domain and policy, from the quickstart's table.csv.

  plots/measured_simulated.py TABLE.csv -o STEM   writes STEM.pdf and STEM.png
"""
import argparse
import csv

from style import CYCLE, plt, save


def draw(path, stem):
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    domains = list(dict.fromkeys(r["domain"] for r in rows))
    policies = list(dict.fromkeys(r["policy"] for r in rows))
    width = 0.8 / (2 * len(policies))
    figure, axes = plt.subplots(figsize=(7.0, 3.2))
    for p, policy in enumerate(policies):
        own = {r["domain"]: r for r in rows if r["policy"] == policy}
        left = [d + (2 * p - len(policies)) * width for d in range(len(domains))]
        axes.bar([x + 0.5 * width for x in left], [float(own[d]["measured_tokens_per_s"]) for d in domains], width,
                 color=CYCLE[p], label=policy)
        axes.bar([x + 1.5 * width for x in left], [float(own[d]["simulated_tokens_per_s"]) for d in domains], width,
                 color="white", edgecolor=CYCLE[p], hatch="////", linewidth=0.8)
    axes.bar([0], [0], color="white", edgecolor="black", hatch="////", label="simulated")
    axes.set_xticks(range(len(domains)), domains)
    axes.set_ylabel("decode tokens/s")
    axes.legend(ncols=3, fontsize=7)
    save(figure, stem)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("table", metavar="TABLE.csv")
    ap.add_argument("-o", "--out", required=True, metavar="STEM")
    a = ap.parse_args()
    draw(a.table, a.out)


if __name__ == "__main__":
    main()
