"""experiments/paper/tree-size-vs-io/run.py at three rates: a table of what was asked for, and trees that grow with reading."""
import csv
import os
import subprocess
import sys

from harness import check, main


def run(case, *args):
    script = os.path.join(case.root, "experiments", "paper", "tree-size-vs-io", "run.py")
    return subprocess.run([sys.executable, "-B", script, "--lever", case.program, "--out", "out", *args], cwd=case.folder, env=case.env,
                          capture_output=True, text=True, timeout=300, check=False)


def test_trees_grow_with_reading(case):
    shares = (0, 0.86, 0.99)
    done = run(case, "--shares", ",".join(map(str, shares)))
    check(done.returncode == 0 and done.stderr == "", f"status {done.returncode}", done.stdout + done.stderr)
    with open(case.path("out/tree-size.csv"), encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    check(len(rows) == 2 * len(shares) * 3, "a row per schedule, share and policy", rows)
    for i, r in enumerate(rows):
        check(abs(float(r["io_share"]) - shares[i // 3 % 3]) < 0.01, "the share that was asked for", r)
        check(0 < float(r["ceiling_fraction"]) <= 1 and float(r["depth_per_round"]) < float(r["rows_per_round"]), "figures", r)
    for io in ("serial", "pipelined"):
        own = [float(r["rows_per_round"]) for r in rows if (r["io_mode"], r["policy"]) == (io, "lever")]
        check(1 <= own[0] < own[1] < own[2], f"{io}: lever's trees grow", own)


def test_wrong_share(case):
    done = run(case, "--shares", "0.5,1")
    check(done.returncode == 2 and "expected 0 to below 1" in done.stderr, "refused", done.stderr)


if __name__ == "__main__":
    main(globals())
