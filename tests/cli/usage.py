"""Wrong usage: status 2, one message that says what was expected and what was meant."""
from harness import check, main


def test_no_command(case):
    r = case.lever()
    check(r.status == 2 and r.out == "" and "usage: lever COMMAND" in r.err, "usage on standard error, status 2", r)


def test_help_goes_to_standard_output(case):
    for args in (["--help"], ["help"], ["run", "--help"], ["record", "-h"], ["model", "--help"], ["trace", "info", "--help"],
                 ["fit", "--help"], ["sim", "--help"], ["tune", "--help"], ["correlate", "--help"], ["doctor", "--help"],
                 ["bench", "flash", "--help"]):
        r = case.good(*args)
        check(r.out.startswith("usage: lever") and r.err == "", "help on standard output alone", r)


def test_version(case):
    r = case.good("--version")
    check(r.out.startswith("lever ") and "independent re-implementation" in r.out, "what this is", r)


def test_unknown_command(case):
    case.bad(2, ["unknown command", "recrod", 'did you mean "record"'], "recrod")
    case.bad(2, ["unknown command", "lever --help"], "zzzzzzzz")


def test_unknown_subcommand(case):
    case.bad(2, ["inof", "did you mean", "info"], "model", "inof", case.target)
    case.bad(2, ["validte", "did you mean", "validate"], "trace", "validte", "x.h5")
    case.bad(2, ["flsh", "did you mean", "flash"], "bench", "flsh", "x")


def test_unknown_option(case):
    for command in ("run", "fit", "sim", "tune", "correlate", "doctor"):
        case.bad(2, ["--jsno", "did you mean", "--json"], command, "--jsno")
    case.bad(2, ["--orcale", "did you mean", "--oracle"], "record", "--orcale")
    case.bad(2, ["--polcy", "did you mean", "--policy"], "run", "--polcy", "ar")


def test_unknown_policy_and_parameter(case):
    case.bad(2, ["chian", "did you mean", "chain"], "run", "-m", case.target, "--policy", "chian", "-p", "x")
    case.bad(2, ["--set", "kk", "did you mean"], "run", "-m", case.target, "-md", case.draft, "--policy", "chain",
             "--set", "kk=3", "-p", "x")
    case.bad(2, ["--set", "key=value"], "run", "-m", case.target, "--policy", "ar", "--set", "k", "-p", "x")


def test_values(case):
    case.bad(2, ["--tokens", "many"], "run", "-m", case.target, "-p", "x", "-n", "many")
    case.bad(2, ["--tokens", "0"], "run", "-m", case.target, "-p", "x", "-n", "0")
    case.bad(2, ["--resident", "1.5"], "run", "-m", case.target, "-p", "x", "--resident", "1.5")
    case.bad(2, ["--io", "parallel", "serial"], "run", "-m", case.target, "-p", "x", "--io", "parallel")
    case.bad(2, ["--seed"], "run", "-m", case.target, "-p", "x", "--seed")
    case.bad(2, ["--tokens"], "run", "-m", case.target, "-p", "x", "-n", "4", "-n", "5")


def test_contradictions(case):
    case.bad(2, ["--dram-budget", "--resident"], "run", "-m", case.target, "-p", "x", "--dram-budget", "64MiB",
             "--resident", "0.5")
    case.bad(2, ["--emulate-scale", "--emulate-flash"], "run", "-m", case.target, "-p", "x", "--emulate-scale", "0.5")
    case.bad(2, ["draft"], "run", "-m", case.target, "-p", "x", "--policy", "chain")


def test_accelerators(case):
    short = ["-p", "x", "-n", "2"]
    case.bad(2, ["did you mean matrix"], "run", "-m", case.target, "--accel", "matrx", *short)
    case.bad(2, ["did you mean cpu"], "run", "-m", case.target, "--place", "gpu", *short)
    case.bad(2, ["needs an accelerator", "--accel"], "run", "-m", case.target, "--place", "npu", *short)
    case.bad(2, ["--accel-launch-us", "from 0"], "run", "-m", case.target, "--accel", "null", "--accel-launch-us", "-1", *short)
    case.bad(2, ["--accel-sync-us", "from 0"], "run", "-m", case.target, "--accel", "null", "--accel-sync-us", "1e12", *short)
    case.bad(2, ["name one too"], "run", "-m", case.target, "--accel-sync-us", "1", *short)
    case.bad(2, ["--accel", "oracle"], "record", "--oracle", "-m", case.target, "-md", case.draft, "--accel", "null",
             "-p", "x", "-o", "x.h5")
    r = case.good("run", "-m", case.target, "--accel", "null", *short)
    check(r.err.count("no price for layers") == 1, "auto without prices says once that it is the CPU", r)


def test_an_accelerator_changes_no_token(case):
    args = ["run", "-m", case.target, "-md", case.draft, "--policy", "chain", "-p", "Once upon a time", "-n", "12"]
    plain = case.json(*args)
    for name in ("null", "matrix"):
        d = case.json(*args, "--accel", name, "--place", "npu")
        check(d["tokens"] == plain["tokens"], f"{name}: the same tokens")
        check(d["accel"]["name"] == name and d["accel"]["tickets"] > 0, f"{name}: ran the layers", d["accel"])
        check(not d["accel"]["fallback"] or d["accel"]["reason"], f"{name}: a fallback says why", d["accel"])
    d = case.json("bench", "accel", "-m", case.draft, "--rows", "1,20")
    check([(r["unit"], r["rows"], r["bucket"]) for r in d["results"]] ==
          [("cpu", 1, 1), ("cpu", 20, 20), ("npu", 1, 16), ("npu", 20, 32)], "one result a unit and row count", d)
    check(all(r["ns"] > 0 and r["launch_ns"] >= 0 and r["sync_ns"] >= 0 for r in d["results"]), "times", d)


def test_missing(case):
    case.bad(2, ["target"], "run", "-p", "x")
    case.bad(2, ["prompt"], "run", "-m", case.target)
    for command in ("fit", "sim", "tune", "correlate", "record"):
        r = case.lever(command)
        check(r.status == 2 and r.out == "" and r.err.startswith("lever: "), f"{command} alone is wrong usage", r)


def test_what_is_not_there_says_so(case):
    case.bad(1, ["not in this version"], "trace", "merge", "a.h5")


if __name__ == "__main__":
    main(globals())
