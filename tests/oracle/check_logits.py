"""Compares the engine's logits with llama_numpy's on the embedded models.

    check_logits.py DUMP_LOGITS SOURCE_ROOT

Exit status 77 (skipped) when the models or numpy are not there.

Tolerances, in logits (their standard deviation is about 3.2):

 * F16 weights: both sides do the same sums, one in float32, one in float64, and round keys and values to f16. What is left
   is float32 rounding (2^-24) through a few hundred terms and a dozen layers, and now and then a key or value that rounds
   the other way (2^-11 of it).
 * Q8_0 and Q4_0: both sides round activations to int8. An activation within float32 noise of a half step may round the
   other way, which moves it by 1/127 of its block's largest; over 12 layers every position meets some of these, so the
   bound is statistical (rms) and as wide as int8 activations are from exact ones. The three-layer draft meets few: on
   half of the prompts the median position must agree as closely as floats do.
 * Against the forward without roundings: the error of int8 activations, or of f16 keys and values.

A mistake in RoPE, norms, head grouping or a block's layout moves logits by several units.
"""
import os
import subprocess
import sys
import tempfile

SKIP = 77

try:
    import numpy as np
except ImportError:
    print("skipped: this Python has no numpy")
    sys.exit(SKIP)

from llama_numpy import Llama, Tokenizer

#            model                 rounded: max, rms, median   exact: max, rms
MODELS = {
    "lever-target-10m-f16.gguf": ((5e-3, 5e-4, 2e-3), (2e-2, 2e-3)),
    "lever-target-10m-q8_0.gguf": ((0.6, 0.06, None), (0.6, 0.06)),
    "lever-target-10m-q4_0.gguf": ((0.6, 0.06, None), (0.6, 0.06)),
    "lever-draft-1m-f16.gguf": ((5e-3, 5e-4, 1e-3), (2e-2, 2e-3)),
    "lever-draft-1m-q8_0.gguf": ((0.6, 0.06, 1e-3), (0.6, 0.1)),
}

PROMPTS = {
    "dialogue": "User: I would like to book a table for two at an Italian restaurant in San Jose.\nAssistant: What time would "
                "you like the reservation for?\nUser: Half past seven this evening, please.\nAssistant:",
    "maths": "Question: Anna has 12 apples and gives a third of them to Ben. Ben eats 2. How many apples does Ben have left?\n"
             "Answer: Ben gets 12 / 3 = <<12/3=4>>4 apples.",
    "story": "Once upon a time there was a little fox who lived at the edge of a dark forest. Every morning she",
    "code": "def read_config(path):\n    with open(path) as f:\n        return [line.strip() for line in f if line]\n\n",
    "bytes": "na\u00efve caf\u00e9 \u2014 \U0001f600 \u6c34 \x07 end",
}


def prompts_for(tokenizer, vocab):
    for name, text in PROMPTS.items():
        yield name, tokenizer.encode(text)
    rng = np.random.default_rng(1)
    yield "random ids", [tokenizer.bos] + rng.integers(0, vocab, 127).tolist()


def engine_logits(dump, model, ids, vocab, threads, level, chunk):
    out = subprocess.run([dump, model, str(threads), level, str(chunk)], input=" ".join(map(str, ids)).encode(),
                         stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, np.float32).reshape(len(ids), vocab)


class Check:
    def __init__(self):
        self.failed = False

    def expect(self, ok, text):
        if not ok:
            self.failed = True
            print("FAILED:", text)


def compare(check, what, got, want, bounds):
    error = np.abs(got - want)
    worst = error.max(axis=1)
    rms = np.sqrt((error ** 2).mean())
    top = np.sort(want, axis=1)
    clear = top[:, -1] - top[:, -2] > 2 * worst
    agree = got.argmax(axis=1) == want.argmax(axis=1)
    print(f"{what}: max {worst.max():.2e}, rms {rms:.2e}, median of positions {np.median(worst):.2e}, "
          f"argmax {agree.sum()}/{len(agree)}")
    check.expect(worst.max() <= bounds[0], f"{what}: largest deviation {worst.max():.3e} > {bounds[0]}")
    check.expect(rms <= bounds[1], f"{what}: rms deviation {rms:.3e} > {bounds[1]}")
    check.expect(agree[clear].all(), f"{what}: another argmax where the best token leads clearly")
    check.expect(agree.mean() >= 0.9, f"{what}: argmax agrees at {agree.mean():.0%} of positions")
    return np.median(worst)


def check_model(check, dump, path, rounded, exact):
    name = os.path.basename(path)
    model = Llama(path)
    vocab = len(model.embd)
    medians = []
    for prompt, ids in prompts_for(Tokenizer(model.gguf), vocab):
        got = engine_logits(dump, path, ids, vocab, 2, "avx2", 16)
        same = engine_logits(dump, path, ids, vocab, 1, "c", 33)
        check.expect(got.tobytes() == same.tobytes(), f"{name}, {prompt}: levels, threads or passes change bits")
        medians.append(compare(check, f"{name}, {prompt}, rounded", got, model.logits(ids, True), rounded))
        compare(check, f"{name}, {prompt}, exact", got, model.logits(ids, False), exact)
    if rounded[2]:
        check.expect(np.median(medians) <= rounded[2],
                     f"{name}: median position deviates by {np.median(medians):.3e} > {rounded[2]} on half of the prompts")


def find_model(root, name):
    for folder in (os.path.join(root, "models"), os.path.join(root, "..", "shared", "models")):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return None


def main():
    dump, root = sys.argv[1:]
    paths = {name: find_model(root, name) for name in MODELS}
    if not any(paths.values()):
        print(f"skipped: none of {', '.join(MODELS)} in {root}/models or {root}/../shared/models")
        return SKIP
    check = Check()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LVR_CACHE_DIR"] = cache
        for name, (rounded, exact) in MODELS.items():
            if paths[name]:
                check_model(check, dump, paths[name], rounded, exact)
            else:
                print(f"left out: {name} is not there")
    return int(check.failed)


if __name__ == "__main__":
    sys.exit(main())
