#!/usr/bin/env python3
"""Chooses how many of the target's layers to stream and which flash to emulate, so that flash I/O has the wanted share of a
serial autoregressive pass:  share = T_io / (T_io + V(1) + head).

  choose_flash.py first --run RUN.json --flash FLASH.json... --model INFO.json [--share 0.86]
  choose_flash.py again --run RUN.json --flash FLASH.json... --model INFO.json --preset P --scale S --streamed N [--share 0.86]

first: RUN.json is `lever run --policy ar --resident 1 --json`, whose time per token is the compute alone. again: RUN.json is
the serial run under the first choice, whose own share corrects the scale. FLASH.json is `lever bench flash PACK --json`
(several: the slowest counts), INFO.json `lever model info PACK --json`. Prints shell assignments: preset, scale, resident,
streamed.

As many layers as the disk allows are streamed: an emulated device may have at most 0.7 of the disk's warm rate, and 0.5 is
taken here so that a disturbed moment does not make the emulation dishonest.
"""
import argparse
import json
import statistics
import sys

PRESETS = {"emulated-500": 0.5e9, "emulated-1000": 1.0e9}  # bytes/s with all lanes busy (configs/devices)
T0_S = 100e-6  # of both
HEADROOM = 0.5


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def seconds_per_token(run):
    return statistics.median(1 / r["decode_tokens_per_s"] for r in run["requests"])


def first_choice(compute_s, layer_bytes, disk, share):
    """(preset, scale, streamed layers); None if the disk cannot carry even one layer at that share."""
    io_s = share / (1 - share) * compute_s
    for streamed in range(len(layer_bytes), 0, -1):
        for preset, rate in PRESETS.items():
            # a serial layer waits once for t0, which scaling stretches as it stretches the transfer
            scale = (streamed * T0_S + sum(layer_bytes[:streamed]) / rate) / io_s
            if scale <= 1 and rate * scale <= HEADROOM * disk:
                return preset, scale, streamed
    return None


def corrected_scale(run, scale, share):
    per_token = seconds_per_token(run)
    io_s = run["io_share"] * per_token
    return scale * io_s / (share / (1 - share) * (per_token - io_s))


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("step", choices=("first", "again"))
    ap.add_argument("--run", required=True)
    ap.add_argument("--flash", required=True, nargs="+")
    ap.add_argument("--model", required=True)
    ap.add_argument("--share", type=float, default=0.86)
    ap.add_argument("--preset", choices=PRESETS)
    ap.add_argument("--scale", type=float)
    ap.add_argument("--streamed", type=int)
    return ap.parse_args()


def main():
    a = arguments()
    results = [r for path in a.flash for r in load(path)["results"]]
    disk = min(r["gbytes_per_s"] for r in results) * 1e9
    layers = load(a.model)["pack"]["layer_bytes"]
    run = load(a.run)
    if not all(r["direct"] for r in results):
        print("note: no O_DIRECT on this file system: reads may come from the page cache", file=sys.stderr)
    if a.step == "first":
        compute_s = seconds_per_token(run)
        print(f"a token takes {compute_s * 1e3:.2f} ms of compute, the disk reads {disk / 1e9:.3f} GB/s", file=sys.stderr)
        preset, scale, streamed = first_choice(compute_s, layers, disk, a.share) or ("emulated-500", 1.0, 1)
    else:
        preset, scale, streamed = a.preset, corrected_scale(run, a.scale, a.share), a.streamed
        print(f"I/O share at scale {a.scale:.3f}: {run['io_share']:.3f}", file=sys.stderr)
    most = min(1.0, HEADROOM * disk / PRESETS[preset])
    if scale > most:
        print(f"note: scale {scale:.3f} would make I/O {a.share} of a pass, but this disk carries {most:.3f} honestly: "
              "the share will be larger", file=sys.stderr)
        scale = most
    print(f"preset={preset}\nscale={scale:.4f}\nstreamed={streamed}\nresident={1 - streamed / len(layers):.4f}")


if __name__ == "__main__":
    main()
