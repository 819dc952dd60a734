"""The loop as a user drives it, small: record, fit, sim, tune, run the tuned file, correlate. What must not depend on time."""
import json
import os

from harness import check, main

ONE_DOMAIN = ["--domain", "dialogue", "-n", "12", "--ignore-eos"]


def common(case, split):
    return ["-m", case.target, "--prompts", case.prompts, "--split", split, *ONE_DOMAIN]


def record_all(case):
    """Timings and oracle of the tune prompts, oracle of the held-out ones, a cost model."""
    draft = ["-md", case.draft]
    place = ["-t", "1", "--resident", "0.5", "--slice", "256KiB"]
    case.good("record", *common(case, "tune"), *draft, *place, "--policy", "random", "-o", "random.h5")
    case.good("record", "--oracle", *common(case, "tune"), *draft, "-o", "tune.h5")
    case.good("record", "--oracle", *common(case, "held-out"), *draft, "-o", "held-out.h5")
    case.good("fit", "random.h5", "tune.h5", "-o", "cost.yaml")


def without_host_figures(result):
    return {k: v for k, v in result.items() if k not in ("host_wall_s", "events_per_s")}


def test_the_loop(case):
    record_all(case)
    sim = ["sim", "--oracle", "held-out.h5", "--cost", "cost.yaml"]

    # the same inputs, the same result
    for policy in (["ar", "--io", "serial"], ["ar"], ["chain", "--set", "k=3"], ["lever", "--set", "lambda=200"]):
        a = case.json(*sim, "--policy", *policy)
        b = case.json(*sim, "--policy", *policy)
        check(without_host_figures(a) == without_host_figures(b), f"sim of {policy} is deterministic")
        check(a["n_tokens"] == 8 * 12 and a["synthetic"] is False, "all tokens", {k: a[k] for k in ("n_tokens", "synthetic")})

    # tune is deterministic too, and its file runs in both hosts
    for out in ("a.yaml", "b.yaml"):
        case.good("tune", "--policy", "chain", "--oracle", "tune.h5", "--held-out", "held-out.h5", "--cost", "cost.yaml",
                  "--trials", "8", "-o", out)
    with open(case.path("a.yaml")) as a, open(case.path("b.yaml")) as b:
        check(a.read() == b.read(), "the same policy file twice")
    simulated = case.json(*sim, "--policy", "./a.yaml")
    run = case.json("run", *common(case, "held-out"), "-md", case.draft, "--policy", "./a.yaml")
    plain = case.json("run", *common(case, "held-out"), "--policy", "ar")
    check(run["tokens"] == plain["tokens"], "lossless")
    check(simulated["tokens"] == run["tokens"] and simulated["rounds"] == run["rounds"],
          f"the simulator commits what the engine commits: rounds {simulated['rounds']} and {run['rounds']}")

    # the ceiling: above the run, its losses a run's whole time
    for io in ("serial", "pipelined"):
        r = case.json(*sim, "--policy", "chain", "--io", io, "--ceiling")
        c, lost = r["ceiling"], sum(r["ceiling"]["losses"].values())
        check(r["decode_tokens_per_s"] <= c["tokens_per_s"] <= c["perfect_draft_tokens_per_s"], "no run passes it", c)
        check(abs(r["decode_tokens_per_s"] / c["tokens_per_s"] - c["fraction"]) < 1e-9, "fraction", c)
        check(abs((1 - lost) * c["perfect_draft_tokens_per_s"] - r["decode_tokens_per_s"]) < 1e-6, "losses add up", c)
    check("in hindsight" in case.good(*sim, "--policy", "chain", "--ceiling").out, "said in words")

    # correlate: the same commits, stages that add up, both for people and programs
    case.good("record", *common(case, "held-out"), "-md", case.draft, "--policy", "./a.yaml", "-o", "judge.h5")
    judge = ["correlate", "--measured", "judge.h5", "--oracle", "held-out.h5", "--cost", "cost.yaml"]
    c = case.json(*judge)
    check(c["commits_equal"] is True and "layer" in c["stages"], "commits equal", {k: c[k] for k in c if k != "stages"})
    check("commits equal" in case.good(*judge).out, "said in words")

    # a model fitted on the prompts it is to judge is refused
    case.good("record", *common(case, "tune"), "-md", case.draft, "--policy", "./a.yaml", "-o", "fitted.h5")
    case.bad(2, ["fitted on"], "correlate", "--measured", "fitted.h5", "--oracle", "tune.h5", "--cost", "cost.yaml")

    # a policy file runs unchanged, or not at all
    case.bad(2, ["--set", "--what-if"], "run", *common(case, "held-out"), "-md", case.draft, "--policy", "./a.yaml", "--set", "k=2")
    case.bad(2, ["--threads", "--what-if"], "run", *common(case, "held-out"), "-md", case.draft, "--policy", "./a.yaml", "-t", "2")
    other = case.target.replace("q8_0", "q4_0")
    case.bad(2, ["q4_0"], "run", "-m", other, "-md", case.draft, "--policy", "./a.yaml", "-p", "x", "-n", "2")
    r = case.json("run", *common(case, "held-out"), "-md", case.draft, "--policy", "./a.yaml", "--set", "k=2", "--what-if")
    check(r["what_if"] is True and r["tokens"] == plain["tokens"], "marked, and still lossless")


def test_without_traces(case):
    args = ["sim", "--device", "oneplus12", "--target-shape", "qwen3-8b", "--draft-shape", "qwen3-0.6b", "--acceptance", "sequoia",
            "--policy", "chain", "--requests", "2", "-n", "32"]
    a, b = case.json(*args), case.json(*args)
    check(a["synthetic"] is True, "marked synthetic", json.dumps(a)[:300])
    check(without_host_figures(a) == without_host_figures(b), "deterministic")
    case.bad(2, ["--ceiling", "--acceptance", "--oracle"], *args, "--ceiling")


def test_lossless_at_any_threads_and_level(case):
    args = common(case, "held-out")
    plain = case.json("run", *args, "--policy", "ar", "--resident", "1")
    for more in (["-t", "1", "--cpu-level", "c"], ["-t", "2", "--resident", "0"], ["-t", "2", "--resident", "0.5", "--io", "serial"]):
        r = case.json("run", *args, "-md", case.draft, "--policy", "random", *more)
        check(r["tokens"] == plain["tokens"], f"random trees, {more}: other tokens")
    sampled = ["--temperature", "0.8", "--top-k", "50", "--top-p", "0.95", "--seed", "7"]
    plain = case.json("run", *args, "--policy", "ar", *sampled)
    r = case.json("run", *args, "-md", case.draft, "--policy", "random", *sampled)
    check(r["tokens"] == plain["tokens"], "sampled: other tokens")
    other = case.json("run", *args, "--policy", "ar", *sampled[:-1], "8")
    check(other["tokens"] != plain["tokens"], "another seed, another text")


def test_output_file(case):
    r = case.good("run", "-m", case.target, "-p", "Once upon a time", "-n", "4", "--json", "-o", "result.json")
    check(r.out == "", "nothing on standard output", r)
    with open(case.path("result.json")) as f:
        check(json.load(f)["n_tokens"] == 4, "the result is in the file")
    check(not [n for n in os.listdir(case.folder) if ".tmp" in n], "no temporary file is left", os.listdir(case.folder))


if __name__ == "__main__":
    main(globals())
