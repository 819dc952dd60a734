#!/usr/bin/env python3
"""Tokens per second against each searched parameter, from what `lever tune --json` printed.

  plots/tune_surface.py TUNE.json... -o STEM      one row of panels a file; writes STEM.pdf and STEM.png
"""
import argparse
import json

from style import BLACK, BLUE, RED, plt, save


def panel(axes, trials, best, name):
    for inside, colour, marker, label in ((True, BLUE, "o", "tried"), (False, RED, "x", "outside the recording")):
        points = [t for t in trials if (t["outside_nodes"] == 0) == inside]
        axes.plot([t["params"][name] for t in points], [t["tokens_per_s"] for t in points], marker, color=colour, label=label)
    axes.plot(best["params"][name], best["tokens_per_s"], "o", color=BLACK, markersize=9, markerfacecolor="none", label="chosen")
    axes.set_xlabel(name)


def draw(paths, stem):
    studies = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            studies.append(json.load(f))
    columns = max(len(s["best"]["params"]) for s in studies)
    figure, grid = plt.subplots(len(studies), columns, figsize=(2.2 * columns + 0.6, 2.4 * len(studies)), sharey="row", squeeze=False)
    for row, study in zip(grid, studies):
        names = list(study["best"]["params"])
        for axes, name in zip(row, names):
            panel(axes, study["trials"], study["best"], name)
        for axes in row[len(names):]:
            axes.set_visible(False)
        row[0].set_ylabel(f"{study['policy']}: tokens/s, simulated")
        row[0].set_ylim(bottom=0)
    grid[0][0].legend(fontsize=7)
    save(figure, stem)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tune", nargs="+", metavar="TUNE.json")
    ap.add_argument("-o", "--out", required=True, metavar="STEM")
    a = ap.parse_args()
    draw(a.tune, a.out)


if __name__ == "__main__":
    main()
