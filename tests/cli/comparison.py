"""experiments/compare: its statistics on data whose answers are known, and a small run of the whole."""
import csv
import json
import os
import subprocess
import sys

from harness import SECONDS, Skip, check, main

FOLDER = os.path.join(os.environ["LVR_SOURCE_ROOT"], "experiments", "compare")
sys.path.insert(0, FOLDER)

import report  # noqa: E402
import stats  # noqa: E402


def near(a, b):
    return abs(a - b) <= 1e-12 * max(abs(a), abs(b))


def ratios(domains, pairs, n=400):
    r = stats.Ratios(domains, n)
    return r.ratio([(r.prepare(a), r.prepare(b)) for a, b in pairs])


def test_a_speed_is_tokens_over_seconds(_):
    figures = {1: (10, 1.0), 2: (30, 4.0)}
    check(near(stats.speed(figures, [1, 2]), 8.0), "sums, not a mean of speeds")
    check(near(stats.speed(figures, [1, 2], {1: 2, 2: 0}), 10.0), "weights count prompts")


def test_what_hits_both_sides_cancels(_):
    """Prompts of very different speed, but one policy always three times as fast: an interval of no width."""
    slow = {p: (10, 1.0 + 7 * p) for p in range(8)}
    fast = {p: (10, (1.0 + 7 * p) / 3) for p in range(8)}
    made = ratios({"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}, [(fast, slow)])
    check(all(x != x for x in ratios({"a": [1]}, [(fast, slow)])["a"][1:]), "no interval from one prompt")
    for key in ("a", "b", "all", "geomean"):
        check(all(near(x, 3.0) for x in made[key]), f"{key}: 3, 3, 3", made[key])


def test_the_interval_of_two_prompts(_):
    """Resamples of two prompts are {1, 1}, {1, 2} and {2, 2}, with chances 1/4, 1/2, 1/4: ratios 2, 1.2 and 1."""
    a, b = {1: (10, 1.0), 2: (10, 4.0)}, {1: (10, 2.0), 2: (10, 4.0)}
    value, low, high = ratios({"d": [1, 2]}, [(a, b)])["all"]
    check(near(value, 1.2) and near(low, 1.0) and near(high, 2.0), "1.2 [1, 2]", (value, low, high))
    back = ratios({"d": [1, 2]}, [(b, a)])["all"]
    check(near(back[0], 1 / value) and near(back[1], 1 / high) and near(back[2], 1 / low), "the inverse ratio", back)


def test_geomeans(_):
    """Over domains 2 and 8, over cells 2 and 8 the same: 4. All prompts together are another thing: 20 / 6."""
    slow = {1: (10, 1.0), 2: (10, 1.0)}
    fast = {1: (10, 1 / 2), 2: (10, 1 / 8)}
    made = ratios({"a": [1], "b": [2]}, [(fast, slow)])
    check(near(made["geomean"][0], 4.0) and near(made["all"][0], 3.2), "of domains", made)
    cells = ratios({"a": [1]}, [({1: (10, 1 / 2)}, {1: (10, 1.0)}), ({1: (10, 1 / 8)}, {1: (10, 1.0)})])
    check(near(cells["a"][0], 4.0), "of cells", cells)


def test_the_interval_covers_the_truth(_):
    """Prompts whose ratio is 2 times noise of mean 1: of 100 experiments about 95 intervals hold what all prompts would give."""
    import random
    rng = random.Random(7)
    hits = 0
    for _ in range(100):
        base = {p: (10, rng.uniform(1, 3)) for p in range(24)}
        fast = {p: (n, s / 2 * rng.uniform(0.7, 1.3)) for p, (n, s) in base.items()}
        _, low, high = ratios({"d": list(base)}, [(fast, base)], n=200)["all"]
        hits += low <= 2.0 <= high
    check(85 <= hits <= 100, "about 95 of 100", hits)


def test_resamples_keep_domains(_):
    for w in stats.draws({"a": [1, 2, 3], "b": [4]}, 50):
        check(w[1] + w[2] + w[3] == 3 and w[4] == 1, "each domain keeps its number of prompts", w)


def standing(speeds):
    """speeds: {policy: (tokens/s, lever's ratio to it, low, high)}."""
    return report.standing([{"share": "x", "mode": "serial", "domain": "geomean", "ablation": n.startswith("lever:"), "policy": n,
                             "tokens_per_s": v, "lever_over_it": r, "lever_over_it_low": lo, "lever_over_it_high": hi}
                            for n, (v, r, lo, hi) in speeds.items()], "x", "serial")


def test_where_lever_stands(_):
    one = (9.0, 1.0, 1.0, 1.0)
    check("first; it over smart" in standing({"lever": one, "smart": (8, 1.1, 1.0, 1.2), "lever: rule=round": (10, 0.9, 0.8, 1)}), "first")
    check("within" in standing({"lever": one, "smart": (10, 0.9, 0.8, 1.05)}), "within")
    check("BEHIND smart" in standing({"lever": one, "smart": (10, 0.9, 0.8, 0.95)}), "behind")
    check(standing({"smart": one}) is None, "it did not run")


def compare(case, *more):
    args = [sys.executable, os.path.join(FOLDER, "compare.py"), "--lever", case.program, "--out", case.path("out"), "--quick", "--modes",
            "serial", "--policies", "chain,lever", "--prompts", "1", "--tokens", "12", "--trials", "8", "--repeats", "1", "--draws", "50",
            *more]
    done = subprocess.run(args, capture_output=True, text=True, check=False, env=case.env, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def test_a_small_run(case):
    status, out, err = compare(case)
    if "gives an I/O share" in err or "emulated honestly" in err:
        raise Skip("the disk is too slow at this moment")
    check(status == 0, "runs", out + err)
    with open(case.path("out/results.json")) as f:
        results = json.load(f)
    names = {r["policy"] for r in results["runs"]}
    check({"ar", "chain", "chain-stop", "lever"} <= names, "all policies ran", names)
    share = results["shares"]["0.86"]
    check(share["share_by_table"] >= 0.855, "at least the share that was asked for", share)
    with open(case.path("out/summary.csv")) as f:
        rows = list(csv.DictReader(f))
    base = [r for r in rows if r["policy"] == "ar" and r["domain"] == "geomean"]
    check(len(base) == 1 and float(base[0]["over_serial_ar"]) == 1.0, "ar over itself", base)
    check("over serial flash ar" in out and "the paper's 2.93" in out, "marks are printed beside", out)

    # again: everything is kept, and the tables are the same
    with open(case.path("out/summary.csv")) as f:
        before = f.read()
    status, out, err = compare(case)
    check(status == 0 and " 0 results made" in out, "nothing is made again", out + err)
    with open(case.path("out/summary.csv")) as f:
        check(f.read() == before, "the same table")

    # a policy that changes the text ends the comparison
    path = case.path("out/runs/0.86-serial-lever-0-0.json")
    with open(path) as f:
        run = json.load(f)
    run["requests"][1]["tokens"][3] += 1
    case.write("out/runs/0.86-serial-lever-0-0.json", json.dumps(run))
    status, out, err = compare(case)
    check(status == 1 and "NOT LOSSLESS" in err and "from token 3 on" in err and "lever" in err, "said", out + err)


def test_bad_use(case):
    os.mkdir(case.path("out"))
    case.write("out/letter.txt", "somebody's")
    status, _, err = compare(case)
    check(status == 2 and "holds no comparison" in err, "another's folder is left alone", err)
    status, _, err = compare(case, "--shares", "1.5")
    check(status == 2 and "between 0 and 1" in err, "a share that is none", err)
    status, _, err = compare(case, "--policies", "chain,levre")
    check(status == 2 and "levre" in err, "a policy that is none", err)


if __name__ == "__main__":
    main(globals())
