"""lever model synth and lever bench agreement: models of a shape with random weights, and planted agreement."""
import os
import resource
import signal
import time

from harness import Skip, SmallDisk, check, main

TARGET = """schema: lever-shape/1
name: test-target
source: "tests/cli/synth.py"
tag: own
n_layers: {layers}
d_model: {width}
n_heads: {heads}
n_kv: {kv}
head_dim: 64
d_ff: {ff}
vocab: 4096
tied: {tied}
type: q8_0
arch: llama
n_ctx: 1024
rms_eps: 1e-5
rope_base: 10000
"""


def target_shape(case):
    return case.write("target.yaml", TARGET.format(layers=8, width=512, heads=8, kv=4, ff=1024, tied="false"))


def draft_shape(case):
    return case.write("draft.yaml", TARGET.format(layers=4, width=256, heads=4, kv=2, ff=768, tied="false"))


def synth(case, shape, out, *more):
    return case.good("model", "synth", "--shape", shape, "-o", out, "-t", "2", *more)


def agreement(case, target, *more):
    return case.json("bench", "agreement", "-m", target, *more)


def test_wrong_usage(case):
    shape = draft_shape(case)
    case.bad(2, ["--shape"], "model", "synth")
    case.bad(2, ["-o OUT"], "model", "synth", "--shape", shape)
    case.bad(2, ["llama-3.1-8c", "did you mean llama-3.1-8b"], "model", "synth", "--shape", "llama-3.1-8c", "-o", "x.gguf")
    case.bad(2, ["q4_9", "did you mean 'q4_0'"], "model", "synth", "--shape", shape, "--type", "q4_9", "-o", "x.gguf")
    case.bad(2, ["896", "Q4_K"], "model", "synth", "--shape", "qwen2.5-0.5b", "--type", "q4_k", "-o", "x.gguf")
    case.bad(2, ["--agree", "--planted"], "model", "synth", "--shape", shape, "--agree", "0.5", "-o", "x.gguf")
    case.bad(2, ["--agree", "--gap"], "model", "synth", "--shape", shape, "--planted", "--agree", "0.5", "--gap", "0.1",
             "-o", "x.gguf")
    for rate in "0", "1":
        case.bad(2, ["--agree", "above 0.25", "below 1, found " + rate], "model", "synth", "--shape", shape, "--planted",
                 "--agree", rate, "-o", "x.gguf")
    case.bad(2, ["-o OUT.gguf"], "model", "synth", "--shape", shape, "-o", "")
    case.bad(2, ["agreement of 0.1", "0.26"], "model", "synth", "--shape", shape, "--planted", "--agree", "0.1", "-o", "x.gguf")
    case.bad(2, ["--agree", "1.5"], "model", "synth", "--shape", shape, "--planted", "--agree", "1.5", "-o", "x.gguf")
    case.bad(2, ["LAYER:RATE", "4"], "model", "synth", "--shape", shape, "--planted", "--early-agree", "4", "-o", "x.gguf")
    case.bad(2, ["1 to 3", "found 4"], "model", "synth", "--shape", shape, "--planted", "--early-agree", "4:0.8", "-o", "x.gguf")
    case.bad(2, ["too small"], "model", "synth", "--shape", "lever-draft-1m", "--planted", "-o", "x.gguf")
    check(not [f for f in os.listdir(case.folder) if "x.gguf" in f], "nothing was written")


def test_shape_files(case):
    text = TARGET.format(layers=2, width=64, heads=1, kv=1, ff=64, tied="false")
    case.bad(2, ["s.yaml:", "d_model"], "model", "synth", "--shape",
             case.write("s.yaml", text.replace("d_model", "d_modl")), "-o", "x.gguf")
    case.bad(2, ["s.yaml:", "arch", "gpt2"], "model", "synth", "--shape",
             case.write("s.yaml", text.replace("arch: llama", "arch: gpt2")), "-o", "x.gguf")
    no_arch = "".join(line for line in text.splitlines(True) if line.split(":")[0] not in ("arch", "n_ctx", "rms_eps", "rope_base"))
    case.bad(2, ["arch", "simulated"], "model", "synth", "--shape", case.write("s.yaml", no_arch), "-o", "x.gguf")


def test_bad_files(case):
    shape = draft_shape(case)
    case.bad(1, ["/dev/full", "regular file"], "model", "synth", "--shape", shape, "-o", "/dev/full")
    case.bad(1, ["none/x.gguf", "No such file"], "model", "synth", "--shape", shape, "-o", "none/x.gguf")
    case.bad(1, ["nothere.gguf"], "model", "synth", "--shape", shape, "--vocab", "nothere.gguf", "-o", "x.gguf")
    case.bad(1, ["not a GGUF"], "model", "synth", "--shape", shape, "--vocab", case.write("v.gguf", "hello"), "-o", "x.gguf")
    case.bad(2, ["4096 tokens", "shape of 4000"], "model", "synth", "--shape",
             case.write("s.yaml", TARGET.format(layers=2, width=64, heads=1, kv=1, ff=64, tied="false")
                        .replace("vocab: 4096", "vocab: 4000")), "-o", "x.gguf")


def test_too_large_for_the_device(case):
    free = os.statvfs(case.folder)
    huge = TARGET.format(layers=256, width=65536, heads=1024, kv=1024, ff=1 << 20, tied="false")
    if free.f_bavail * free.f_frsize > 1 << 45:
        raise Skip("this device has more than 32 TiB to spare")
    case.bad(1, ["not enough space", "GiB"], "model", "synth", "--shape", case.write("huge.yaml", huge), "--type", "f32",
             "-o", "x.gguf")
    check(not os.path.exists(case.path("x.gguf")), "nothing was written")


def test_full_disk(case):
    with SmallDisk(case.path("small"), "2m") as folder:
        case.bad(1, ["not enough space", "bytes"], "model", "synth", "--shape", draft_shape(case), "-o", folder + "/x.gguf")
        check(os.listdir(folder) == [], "nothing is left")


def test_no_vocabulary(case):
    case.write("shape.yaml", TARGET.format(layers=2, width=64, heads=1, kv=1, ff=64, tied="false"))
    case.env["LVR_CONFIG_DIR"] = case.folder + "/configs"
    case.bad(2, ["--vocab", "lever-target-10m"], "model", "synth", "--shape", "./shape.yaml", "-o", "x.gguf")


def test_interrupt_leaves_nothing(case):
    p = case.start("model", "synth", "--shape", "llama-3.2-1b", "-t", "1", "-o", "x.gguf")
    deadline = time.time() + 60
    while not [f for f in os.listdir(case.folder) if f.startswith("x.gguf.tmp")] and time.time() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    check(p.returncode == 1 and "interrupted" in err, f"says so: {p.returncode} {err}")
    check(not [f for f in os.listdir(case.folder) if f.startswith("x.gguf")], "no file is left")


def test_everything_says_synthetic(case):
    synth(case, draft_shape(case), "m.gguf")
    info = case.json("model", "info", "m.gguf")
    check(info["synthetic"] is True and "synthetic" in info["metadata"]["general.name"], "model info")
    run = case.json("run", "-m", "m.gguf", "--policy", "ar", "-p", "The cat", "-n", "4")
    check(run["synthetic"] is True and run["n_tokens"] == 4, "run")
    case.good("record", "-m", "m.gguf", "--policy", "ar", "-p", "The cat", "-n", "4", "-o", "t.h5")
    check(case.json("trace", "info", "t.h5")["synthetic"] is True, "trace")
    run = case.json("run", "-m", case.target, "--policy", "ar", "-p", "The cat", "-n", "4")
    check(run["synthetic"] is False, "a trained model is not")


def test_plain_logits_are_sane(case):
    for tied in ("false", "true"):
        for layers in (2, 24):
            shape = case.write("s.yaml", TARGET.format(layers=layers, width=256, heads=4, kv=2, ff=768, tied=tied))
            synth(case, shape, "m.gguf")
            a = agreement(case, "m.gguf", "-n", "16")
            check(1 <= a["logit_std"] <= 4, f"tied {tied}, {layers} layers: {a['logit_std']}")


def test_memory_stays_small(case):
    """A model of 0.5 GB is written in a few MiB. Children of this process only ever are this program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if before > 200 * 1024:
        raise Skip(f"an earlier test used {before} KiB")
    shape = case.write("s.yaml", TARGET.format(layers=8, width=2048, heads=32, kv=8, ff=8192, tied="false"))
    synth(case, shape, "m.gguf", "--planted")
    check(os.path.getsize(case.path("m.gguf")) > 400 << 20, "a large model")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    check(peak <= 200 * 1024, f"peak resident set {peak} KiB")


def planted_pair(case, rate, kind, target="false", *more):
    shape = case.write("target.yaml", TARGET.format(layers=8, width=512, heads=8, kv=4, ff=1024, tied=target))
    synth(case, shape, "t.gguf", "--type", kind, "--planted", "--agree", rate, *more)
    synth(case, draft_shape(case), "d.gguf", "--type", kind, "--planted", "--agree", rate)


def check_text(a):
    check(a["repeated_4grams"] == 0 and a["distinct_tokens"] == a["n_tokens"], f"no repetition in {a['n_tokens']} tokens: {a}")
    check(1 <= a["logit_std"] <= 4, f"logits: {a['logit_std']}")
    check(all(c.isprintable() for c in a["text"]), "text is printable")
    check(a["top"][3] > 0.95, "the target's token is among the draft's four best")
    check(a["confidence_right"] > a["confidence_wrong"], "the draft's confidence says something")


def test_agreement_is_as_planted(case):
    """512 tokens: a rate p is measured with a standard error of sqrt(p (1 - p) / 512) = 0.022; the band is three of them and a
    little for what the formula leaves out."""
    for rate in (0.5, 0.8):
        for kind in ("q8_0", "q4_0"):
            planted_pair(case, rate, kind)
            a = agreement(case, "t.gguf", "-md", "d.gguf", "-n", "512", "-t", "2")
            print(f"# {kind}: asked {rate}, agreement {a['agreement']:.3f}, accepted {a['accepted']:.2f} of 4, "
                  f"layers {[(x['layer'], round(x['agreement'], 3)) for x in a['layers']]}")
            check(abs(a["agreement"] - rate) < 0.08, f"{kind}: asked {rate}, found {a['agreement']}")
            check_text(a)
            expected = sum(rate ** k for k in range(1, 5))
            check(abs(a["accepted"] - expected) < 0.5, f"accepted {a['accepted']}, about {expected:.2f} expected")


def test_tied_embeddings_carry_the_chain(case):
    planted_pair(case, 0.6, "q4_0", "true")
    a = agreement(case, "t.gguf", "-md", "d.gguf", "-n", "512", "-t", "2")
    print(f"# tied: asked 0.6, agreement {a['agreement']:.3f}")
    check(abs(a["agreement"] - 0.6) < 0.1, f"asked 0.6, found {a['agreement']}")
    check_text(a)


def test_early_layers_agree_as_planted(case):
    for rate in (0.75, 0.9):
        planted_pair(case, 0.6, "q8_0", "false", "--early-agree", f"3:{rate}")
        a = agreement(case, "t.gguf", "-md", "d.gguf", "-n", "512", "-t", "2", "--layers", "1,3,5,7,8")
        early = [x["agreement"] for x in a["layers"]]
        print(f"# after layer 3 asked {rate}: layers 1, 3, 5, 7, 8 {[round(x, 3) for x in early]}")
        check(abs(early[1] - rate) < 0.08, f"asked {rate} after layer 3, found {early[1]}")
        check(all(b > a - 0.03 for a, b in zip(early, early[1:])) and early[4] == 1, f"later layers agree more: {early}")
        check(abs(a["agreement"] - 0.6) < 0.08, f"the draft still agrees: {a['agreement']}")


def test_types_of_one_seed_are_the_same_model(case):
    shape = target_shape(case)
    synth(case, shape, "a.gguf", "--type", "q8_0", "--planted", "--agree", "0.6")
    synth(case, shape, "b.gguf", "--type", "q4_0", "--planted", "--agree", "0.6")
    a = agreement(case, "a.gguf", "-md", "b.gguf", "-n", "256", "-t", "2")
    check(a["agreement"] > 0.85, f"q4_0 agrees with q8_0 of the same weights: {a['agreement']}")


if __name__ == "__main__":
    main(globals())
