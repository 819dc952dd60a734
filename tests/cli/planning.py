"""What a run takes in DRAM and which layers stay: plans, budgets, types of the cache, and options that say nothing."""
import os

from harness import check, main

MIB = 1 << 20
SHORT = ["-p", "Once upon a time", "-n", "4"]


def plan(case, *more):
    return case.json("model", "plan", "-m", case.target, *more)


def test_a_plan_is_what_a_run_takes(case):
    for more in (["-md", case.draft], ["--resident", "0.5", "--ring", "3"], ["-md", case.draft, "--dram-budget", "20MiB"],
                 ["--kv-type", "q8_0", "-c", "200", "--resident", "0"], ["--io", "serial", "--resident", "0"]):
        d = plan(case, *more)
        check(sum(d["parts"].values()) == d["total_bytes"] >= d["least_feasible_bytes"], "parts add up", d)
        policy = ["--policy", "chain"] if "-md" in more else []
        r = case.json("run", "-m", case.target, *more, *policy, *SHORT)
        check(r["dram_plan_bytes"] == d["total_bytes"], "the run's plan is the same", (r["dram_plan_bytes"], d))
        check(r["resident_fraction"] == d["resident_fraction"], "and so are the layers that stay", d)
        check(r["bytes_read"] % d["pass_bytes"] == 0 if d["pass_bytes"] else r["bytes_read"] == 0, "and what a pass reads", (r, d))


def test_plan_text(case):
    r = case.good("model", "plan", "-m", case.target, "-md", case.draft, "--dram-budget", "18MiB", "--resident-layers", "first")
    for word in ("draft weights", "KV cache, draft", "least feasible budget", "18.0 MiB", "resident: 0-", "read in a pass",
                 "lever doctor --flash"):
        check(word in r.out, f"the plan says '{word}'", r)
    r = case.good("model", "plan", "-m", case.target, "--resident", "0", "--emulate-flash", "emulated-100")
    check("GB/s: emulated-100" in r.out, "a preset's own time", r)


def test_least_budget(case):
    least = plan(case, "-md", case.draft)["least_feasible_bytes"]
    args = ["-m", case.target, "-md", case.draft, "--dram-budget"]
    check(plan(case, *args[2:], least)["total_bytes"] == least, "the least budget is feasible")
    case.bad(2, ["budget", str(least)], "model", "plan", *args, least - 1)
    case.bad(2, ["budget", str(least)], "run", *args, least - 1, "--policy", "chain", *SHORT)
    case.bad(2, ["--dram-budget", "or auto"], "run", *args, "0", *SHORT)
    d = plan(case, *args[2:], "auto")
    check(d["dram_budget_bytes"] == d["memory"]["room_bytes"] - d["program_bytes"], "what is left, less the program", d)
    check(os.path.exists(d["memory"]["source"]), "a file says so", d)


def test_which_layers_stay(case):
    whole = case.json("run", "-m", case.target, *SHORT)["tokens"]
    for where, layers in ("first", [0, 1, 2]), ("last", [9, 10, 11]), ("spread", [3, 7, 11]):
        more = ["--resident", "0.25", "--resident-layers", where]
        check(plan(case, *more)["resident_layers"] == layers, f"{where}: the layers")
        check(case.json("run", "-m", case.target, *more, *SHORT)["tokens"] == whole, f"{where}: the tokens are the same")
    case.bad(2, ["--resident-layers", "did you mean first"], "run", "-m", case.target, "--resident-layers", "fist", *SHORT)


def test_which_layers_stay_in_a_simulation(case):
    sim = ["sim", "--device", "oneplus12", "--target-shape", "lever-target-10m", "--draft-shape", "lever-draft-1m", "--acceptance",
           "sequoia", "--policy", "chain", "--requests", "1"]
    first, last = (case.json(*sim, "--resident", "0.5", "--resident-layers", where) for where in ("first", "last"))
    check(first["bytes_read"] == last["bytes_read"] and first["resident_fraction"] == last["resident_fraction"], "as much is read")
    case.bad(2, ["--resident-layers", "--resident"], *sim, "--resident-layers", "first")


def test_kv_types(case):
    f16, q8 = (plan(case, "--kv-type", kind)["parts"]["kv_target_bytes"] for kind in ("f16", "q8_0"))
    check(0.52 < q8 / f16 < 0.56, f"q8_0 takes about half: {q8} of {f16}")
    texts = [case.json("run", "-m", case.target, "-md", case.draft, "--policy", policy, "--kv-type", "q8_0", *more, *SHORT)["tokens"]
             for policy, more in (("ar", []), ("chain", []), ("chain", ["--resident", "0"]))]
    check(texts[0] == texts[1] == texts[2], "policies agree on one type of cache", texts)
    case.bad(2, ["--kv-type", "f16, q8_0"], "run", "-m", case.target, "--kv-type", "q4_0", *SHORT)


def test_kv_type_of_a_policy_file(case):
    policy = os.path.join(case.root, "models", "traces", "policy-lever.yaml")
    run = ["run", "-m", case.target, "-md", case.draft, "--policy", policy, *SHORT]
    case.bad(2, ["--kv-type q8_0", "f16", "--what-if"], *run, "--kv-type", "q8_0")
    case.bad(2, ["--resident-layers", "--what-if"], *run, "--resident-layers", "first")
    r = case.good(*run, "--kv-type", "q8_0", "--what-if", "--ring", "auto", "--depth", "auto")
    check("--what-if: --kv-type q8_0" in r.err, "what differs is said", r)
    check("--ring" not in r.err and "--depth" not in r.err, "auto leaves the choice to the file", r)


def test_kv_types_of_traces(case):
    case.good("record", "--oracle", "-m", case.target, "-md", case.draft, "--kv-type", "q8_0", *SHORT, "-o", "q8.h5")
    sim = ["sim", "--oracle", "q8.h5", "--cost", os.path.join(case.root, "models", "traces", "cost.yaml"), "--policy", "chain"]
    case.bad(2, ["f16", "q8_0", "--kv-type", "--what-if"], *sim)
    case.json(*sim, "--what-if")


def test_checks_of_streamed_layers(case):
    run = ["run", "-m", case.target, "--resident", "0", *SHORT]
    every, once = (case.json(*run, "--verify", when) for when in ("always", "first"))
    check(every["io"]["checked"] is True, "every read is checked", every)
    check(case.json(*run)["io"]["checked"] is True, "also when nobody asks")
    check(once["io"]["checked"] is False, "the first one only is not every one", once)
    check(every["tokens"] == once["tokens"], "the tokens are the same")
    case.bad(2, ["--verify", "always, first"], *run, "--verify", "never")


def warnings(r):
    return [line for line in r.err.splitlines() if "has no effect" in line]


def test_options_without_effect(case):
    run = ["run", "-m", case.target, *SHORT]
    for more, words in ((["--top-k", "3"], ["--top-k", "greedy"]), (["--top-p", "0.5"], ["--top-p", "--temperature"]),
                        (["-md", case.draft], ["--draft", "not loaded"]), (["--slice", "8192"], ["--slice", "resident"]),
                        (["--depth", "2"], ["--depth"]), (["--verify", "first"], ["--verify"]), (["--ring", "3"], ["--ring"]),
                        (["--place", "cpu"], ["--place", "--accel"]),
                        (["--cost", os.path.join(case.root, "models", "traces", "cost.yaml"), "--what-if"], ["--cost"])):
        r = case.good(*run, *more)
        check(len(warnings(r)) == 1, f"one warning about {more[0]}", r)
        for word in words:
            check(word in warnings(r)[0], f"it says '{word}'", r)
    r = case.good(*run, "-md", case.draft, "--policy", "chain", "--temperature", "0.8", "--top-k", "40", "--resident", "0.5", "--depth",
                  "2", "--ring", "3", "--slice", "64KiB", "--resident-layers", "last")
    check(not warnings(r), "none where all have one", r)
    case.bad(2, ["--oracle-depth", "--oracle"], "record", "-m", case.target, *SHORT, "-o", "x.h5", "--oracle-depth", "3")
    r = case.good("record", "--oracle", "-m", case.target, "-md", case.draft, *SHORT, "-o", "x.h5", "--ring", "3")
    check(len(warnings(r)) == 1 and "--ring" in warnings(r)[0], "an oracle recording streams nothing", r)


def test_a_parameter_given_twice(case):
    twice = ["--set", "k=3", "--set", "k=4"]
    case.bad(2, ["--set", "k is given twice"], "run", "-m", case.target, "-md", case.draft, "--policy", "chain", *SHORT, *twice)
    traces = os.path.join(case.root, "models", "traces")
    case.bad(2, ["--set", "k is given twice"], "sim", "--oracle", os.path.join(traces, "oracle-tune.h5"), "--cost",
             os.path.join(traces, "cost.yaml"), "--policy", "chain", *twice)


def test_an_output_that_cannot_be_written_is_found_first(case):
    for args in (["sim", "--oracle", "absent.h5", "--cost", "absent.yaml"], ["fit", "absent.h5"],
                 ["tune", "--oracle", "absent.h5", "--cost", "absent.yaml"],
                 ["correlate", "--measured", "absent.h5", "--oracle", "absent.h5", "--cost", "absent.yaml"],
                 ["record", "-m", "absent.gguf", *SHORT], ["run", "-m", "absent.gguf", *SHORT]):
        case.bad(1, ["nowhere/x"], *args, "-o", "nowhere/x")
        case.bad(1, [case.folder, "directory"], *args, "-o", case.folder)


if __name__ == "__main__":
    main(globals())
