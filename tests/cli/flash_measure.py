"""experiments/flash/measure.py on the embedded pair, in seconds: that it measures and reports, not how fast anything is."""
import json
import math
import os
import shutil
import subprocess
import sys

from harness import Skip, check, main


def measure(case, *args):
    """The script's results and its table."""
    script = os.path.join(case.root, "experiments", "flash", "measure.py")
    done = subprocess.run([sys.executable, "-B", script, "--lever", case.program, "--target", case.target, "--draft", case.draft,
                           "--out", "out", "--quick", "--threads", "1", "--slice", "64KiB", *args], cwd=case.folder, env=case.env,
                          capture_output=True, text=True, timeout=300, check=False)
    check(done.returncode == 0, f"status {done.returncode}", done.stdout + done.stderr)
    with open(case.path("out/flash.json"), encoding="utf-8") as f:
        return json.load(f), done.stdout


def check_marks(result, table, n):
    check(len(result["marks"]) == n and len(table.splitlines()) == n, f"{n} marks and as many lines", table)
    for m in result["marks"]:
        check(math.isfinite(m["value"]) and m["value"] > 0, f"a figure: {m}")
        check(m["met"] == (m["value"] >= m["bound"] if m["at_least"] else m["value"] <= m["bound"]), f"judged as it says: {m}")


def need_all_measured(rows):
    """The program refuses to emulate a device on a disk that is too busy to carry it."""
    if any("refused" in r for r in rows):
        raise Skip("the disk is too busy to emulate on")


def need_fio():
    if not shutil.which("fio"):
        raise Skip("fio is not installed")


def test_emulated_passes(case):
    result, table = measure(case, "--parts", "emulate", "--rates", "0.05", "--pass-seconds", "0.05")
    need_all_measured(result["emulate"])
    check_marks(result, table, 4)
    check([r["depth"] for r in result["emulate"]] == [1, 4], "depth 1 and 4")
    one, four = result["emulate"]
    check(1.5 < (one["preset_pass_s"] / (1 - one["resident"])) / (four["preset_pass_s"] / (1 - four["resident"])) < 2.5,
          "one lane of the preset is half as fast", (one, four))


def test_rounds(case):
    result, table = measure(case, "--parts", "rounds", "--round-rate", "0.02", "--tokens", "8")
    need_all_measured(result["rounds"])
    check_marks(result, table, 2)
    check([r["policy"] for r in result["rounds"]] == ["chain", "lever"], "both policies")
    for r in result["rounds"]:
        check(r["mean_acceptance_length"] >= 1 and r["pass_reads_s"] > 0, f"{r}")


def test_rate(case):
    need_fio()
    try:
        result, table = measure(case, "--parts", "rate", "--repeats", "1", "--seconds", "0.2", "--tokens", "8")
    except AssertionError as e:
        if "with O_DIRECT" in str(e):
            raise Skip("no O_DIRECT here") from None
        raise
    check_marks(result, table, 3)
    check(result["rate"][0]["fio"]["cells"][0]["depth"] == 4, "fio's cells are kept")


def test_memory(case):
    need_fio()
    try:
        result, table = measure(case, "--parts", "memory", "--limits", "96MiB", "--reserve", "84MiB", "--seconds", "0.2", "--tokens", "8")
    except AssertionError as e:
        if "cgroup" in str(e) or "memory controller" in str(e) or "with O_DIRECT" in str(e):
            raise Skip("no memory cgroup, or no O_DIRECT, here") from None
        raise
    check([r["policy"] for r in result["memory"]] == ["ar", "lever"], "both policies")
    for r in result["memory"]:
        check("refused" in r or r["peak_bytes"] <= r["limit_bytes"] and not r["oom_kills"], f"within the limit: {r}")
        check("refused" in r or r["bytes_per_pass"] > 0, f"something is streamed, or this shows nothing: {r}")
    check(all(m["value"] > 0 for m in result["marks"]), table)


def test_what_it_cannot_use(case):
    script = os.path.join(case.root, "experiments", "flash", "measure.py")
    for args, word in ((["--parts", "speed"], "rate,emulate,rounds,memory"), (["--target", case.target], "belong together")):
        done = subprocess.run([sys.executable, "-B", script, *args], cwd=case.folder, capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 2 and word in done.stderr, f"{args}", done.stderr)


if __name__ == "__main__":
    main(globals())
