"""Compares the engine's logits with llama_numpy's on tiny random models: every architecture, every weight type.

    check_tiny.py DUMP_LOGITS MAKE_TINY

Exit status 77 (skipped) when numpy is not there.

Tolerances, in units of the logits' standard deviation:

 * F32, F16, BF16: both sides do the same sums, one in float32, one in float64: what is left is float32 rounding (2^-24)
   through a few hundred terms and two layers, and now and then a key or value that rounds to another f16 (2^-11 of it).
 * Quantised types: both sides round activations to int8, from values that differ by float32 noise: now and then one rounds
   the other way, and moves its own and all later positions by some of 1/127 of its block's largest: a few per cent. The
   position that agrees best, before the first such activation, must agree as closely as floats do.

A wrong pair of RoPE, row order, bias, norm, head or bit of a block moves logits by a good part of their standard deviation,
at all positions but, in RoPE's case, the first.
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

from check_logits import Check, engine_logits
from llama_numpy import Llama

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
FLOATS = TYPES[:3]
BOUNDS = {True: (2e-3, 3e-4, 1e-4), False: (0.15, 0.02, 1e-4)}  # floats or not: max, rms, best position
N_IDS = 48

ARCHS = {
    "llama, GQA": dict(arch="llama", n_heads=4, n_kv=1),
    "llama with biases, RoPE factors and scaling, tied": dict(arch="llama", biases=1, rope_freqs=1, rope_factor=2.5, tied=1,
                                                              n_heads=8, n_kv=8),
    "llama 3's RoPE": dict(arch="llama", rope_freqs=1, rope_base=500000),
    "qwen2": dict(arch="qwen2", n_heads=4, n_kv=2, f16_norms=1, rope_base=1000000),
    "qwen2, tied, heads of 48": dict(arch="qwen2", tied=1, n_heads=16, n_kv=4, head_dim=48),
    "qwen3": dict(arch="qwen3", n_heads=4, n_kv=2, head_dim=128, rope_base=1000000),
    "qwen3, tied, no groups": dict(arch="qwen3", tied=1, n_heads=4, n_kv=4),
}
SIZES = dict(d_model=256, d_ff=512, vocab=320, n_layers=2)


def cases():
    """(name, fields): every architecture with three types, every type with one architecture, and mixtures."""
    for i, (name, fields) in enumerate(ARCHS.items()):
        for kind in ("F32", "Q8_0", TYPES[3 + i % 8]):
            yield f"{name}, {kind}", dict(fields, type=kind, seed=i)
    for i, kind in enumerate(TYPES):
        yield f"qwen3, all {kind}", dict(ARCHS["qwen3"], type=kind, seed=100 + i)
        yield f"llama, all {kind}, tied", dict(arch="llama", tied=1, type=kind, seed=200 + i)
    yield "as Q4_K_M", dict(ARCHS["qwen2"], type="Q4_K", v_type="Q6_K", head_type="Q6_K")
    yield "as Q5_K_M", dict(ARCHS["llama, GQA"], type="Q5_K", v_type="Q6_K", head_type="Q6_K")
    yield "as Q4_0 with another head", dict(ARCHS["qwen3"], type="Q4_0", v_type="Q4_1", head_type="Q6_K")


def only_floats(fields):
    return all(fields.get(key, fields["type"]) in FLOATS for key in ("type", "v_type", "head_type"))


def check_case(check, dump, path, name, fields):
    model = Llama(path)
    vocab = len(model.embd)
    ids = np.random.default_rng(len(name)).integers(3, vocab, N_IDS).tolist()
    got = engine_logits(dump, path, ids, vocab, 2, "avx2", 16)
    same = engine_logits(dump, path, ids, vocab, 1, "c", 5)
    check.expect(got.tobytes() == same.tobytes(), f"{name}: levels, threads or passes change bits")
    want = model.logits(ids, True)
    error = np.abs(got - want) / want.std()
    worst = error.max(axis=1)
    found = (worst.max(), np.sqrt((error ** 2).mean()), worst.min())
    print(f"{name}: max {found[0]:.1e}, rms {found[1]:.1e}, best position {found[2]:.1e}")
    for value, bound, what in zip(found, BOUNDS[only_floats(fields)], ("max", "rms", "best position")):
        check.expect(value <= bound, f"{name}: {what} {value:.2e}, expected at most {bound}")


def main():
    dump, make = sys.argv[1:]
    check = Check()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LVR_CACHE_DIR"] = os.path.join(folder, "cache")
        path = os.path.join(folder, "tiny.gguf")
        for name, fields in cases():
            subprocess.run([make, path] + [f"{k}={v}" for k, v in {**SIZES, **fields}.items()], check=True)
            check_case(check, dump, path, name, fields)
    return int(check.failed)


if __name__ == "__main__":
    sys.exit(main())
