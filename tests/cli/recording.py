"""Recordings that meet a full disk, a signal or an older file; what was recorded stays readable."""
import os
import signal
import time

from harness import SmallDisk, check, check_messages, interrupt, main

PROMPT = ["-p", "Once upon a time there was a little dog", "--ignore-eos"]


def record(case, out, *more):
    return ["record", "-m", case.target, "-md", case.draft, "--policy", "random", *PROMPT, "-o", out, *more]


def test_existing_trace_is_kept(case):
    case.good(*record(case, "t.h5", "-n", "8"))
    before = os.stat(case.path("t.h5"))
    case.bad(2, ["t.h5", "--overwrite"], *record(case, "t.h5", "-n", "8"))
    check(os.stat(case.path("t.h5")).st_mtime_ns == before.st_mtime_ns, "the older trace is untouched")
    case.good(*record(case, "t.h5", "-n", "8", "--overwrite"))


def test_trace_commands(case):
    case.good(*record(case, "t.h5", "-n", "16"))
    info = case.json("trace", "info", "t.h5")
    check(info["complete"] is True and info["kind"] == "timing", "a complete timing trace", info)
    check(case.json("trace", "validate", "t.h5")["findings"] == 0, "without findings")
    case.good("trace", "export", "t.h5", "--to", "csv", "-o", "csv")
    check("rounds.csv" in os.listdir(case.path("csv")), "one file per stream", os.listdir(case.path("csv")))


def test_recording_changes_no_token(case):
    common = ["-m", case.target, "-md", case.draft, "--policy", "random", *PROMPT, "-n", "24"]
    tokens = case.json("run", *common)["tokens"]
    case.good(*record(case, "t.h5", "-n", "24"))
    case.good("trace", "export", "t.h5", "--to", "csv", "-o", "csv")
    with open(case.path("csv/tokens.csv")) as f:
        rows = [line.strip().split(",") for line in f]
    head = [name.split(" ")[0].strip('"') for name in rows[0]]
    token, is_output = head.index("token"), head.index("is_output")
    recorded = [int(r[token]) for r in rows[1:] if int(r[is_output]) == 1]
    check(recorded == tokens, f"{recorded}\n{tokens}")


def test_interrupted_recording_opens(case):
    process = case.start(*record(case, "t.h5", "-n", "400", "--repeat", "1000"))
    time.sleep(3)
    interrupt(process)
    out, err = process.communicate(timeout=30)
    check(process.returncode == 1, f"a failure, not a crash: {process.returncode}\n{err}")
    check(out == "" and "interrupted" in err.lower(), f"says that it was interrupted: {err}")
    info = case.json("trace", "info", "t.h5")
    check(info["complete"] is False, "says that it is incomplete", info)
    r = case.good("trace", "info", "t.h5")
    check("cut short" in r.out, "in words too", r)


def test_interrupts_at_any_moment(case):
    for i, pause in enumerate((0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)):
        for command in (["run", "-m", case.target, *PROMPT, "-n", "400", "--resident", "0.5"],
                        record(case, f"t{i}.h5", "-n", "400", "--resident", "0.5", "--repeat", "1000")):
            process = case.start(*command)
            time.sleep(pause)
            interrupt(process)
            _, err = process.communicate(timeout=30)
            # -SIGINT: before the handler was there
            check(process.returncode in (1, -signal.SIGINT), f"after {pause} s: status {process.returncode}\n{err}")
            if process.returncode == 1:
                check("interrupted" in err, err)


def test_benchmarks_of_long_contexts_answer(case):
    """While the cache is filled, and between layers that take long."""
    for pause in (0.1, 0.3, 1, 3):
        for name in ("model", "accel"):
            process = case.start("bench", name, case.draft, "-c", "200000", "--rows", "64")
            time.sleep(pause)
            interrupt(process)
            out, err = process.communicate(timeout=30)
            check(process.returncode == 1 and "interrupted" in err and out == "", f"{name}, {pause} s: {process.returncode}\n{err}")


def test_text_so_far_stays_on_standard_output(case):
    process = case.start("run", "-m", case.target, *PROMPT, "-n", "400", "--emulate-flash", "emulated-100", "--emulate-scale",
                         "0.2", "--resident", "0")
    time.sleep(4)
    interrupt(process)
    out, err = process.communicate(timeout=30)
    check(process.returncode == 1 and "interrupted" in err and out != "", f"{process.returncode}\n{out}\n{err}")


def test_full_disk(case):
    with SmallDisk(case.path("disk"), "300k") as disk:
        r = case.lever(*record(case, os.path.join(disk, "t.h5"), "-n", "200", "--repeat", "400"))
        check(r.status == 1 and r.out == "", "a failure", r)
        check_messages(r)
        check("space" in r.err.lower() and "t.h5" in r.err, "names the file and the reason", r)
        info = case.json("trace", "info", os.path.join(disk, "t.h5"))
        check(info["complete"] is False, "what was recorded before opens", info)


if __name__ == "__main__":
    main(globals())
