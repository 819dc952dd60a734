#!/usr/bin/env python3
"""Rows and depth of the verified trees against the time that a pass reads, from experiments/paper/tree-size-vs-io/run.py.

  plots/tree_size.py TREE_SIZE.csv -o STEM   writes STEM.pdf and STEM.png
"""
import argparse
import csv

from style import CYCLE, MARKERS, plt, save


def draw(path, stem):
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    modes, policies = (list(dict.fromkeys(r[c] for r in rows)) for c in ("io_mode", "policy"))
    smallest = min((float(r["io_s_per_pass"]) for r in rows if float(r["io_s_per_pass"]) > 0), default=1e-3) * 1e3
    figure, grid = plt.subplots(2, len(modes), figsize=(3.4 * len(modes), 4.4), sharex=True, sharey="row", squeeze=False)
    for column, mode in enumerate(modes):
        for p, policy in enumerate(policies):
            own = [r for r in rows if r["io_mode"] == mode and r["policy"] == policy]
            x = [float(r["io_s_per_pass"]) * 1e3 for r in own]
            for axes, what in zip(grid[:, column], ("rows_per_round", "depth_per_round")):
                axes.plot(x, [float(r[what]) for r in own], color=CYCLE[p], marker=MARKERS[p], label=policy)
        grid[0][column].set_title(mode, fontsize=9)
        grid[1][column].set_xlabel("T_io of a pass, ms")
        grid[1][column].set_xscale("symlog", linthresh=smallest)  # 0 has a place too
    grid[0][0].set_ylabel("rows a round")
    grid[1][0].set_ylabel("depth of the tree")
    for axes in grid[:, 0]:
        axes.set_ylim(bottom=0)
    grid[0][0].legend(fontsize=7)
    save(figure, stem)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("table", metavar="TREE_SIZE.csv")
    ap.add_argument("-o", "--out", required=True, metavar="STEM")
    a = ap.parse_args()
    draw(a.table, a.out)


if __name__ == "__main__":
    main()
