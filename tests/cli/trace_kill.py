#!/usr/bin/env python3
"""INV-KILL: a recording killed at any system call that changes files opens, holds everything up to its previous flush, and
says that it is incomplete.

usage: trace_kill.py RECORDER SHIM

The k-th such call of a short recording is its last one, for every k until a recording survives; once killed before the call,
once after it (a write: after half of it). Then our reader and h5py must open what is left.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

try:
    import h5py
except ImportError:
    h5py = None

MAX_CALLS = 2000


def record(recorder, shim, path, k, torn):
    """Runs the recorder; returns its status and the last flush it reported."""
    env = dict(os.environ, LD_PRELOAD=shim, LVR_KILL_AT=str(k), LVR_KILL_TORN="1" if torn else "0")
    # A sanitizer's runtime need not be the first library.
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0:detect_leaks=0"
    run = subprocess.run([recorder, "record", path], env=env, capture_output=True, text=True, timeout=60)
    flushed = re.findall(r"^(?:flushed|complete) (\d+)$", run.stdout, re.M)
    return run.returncode, int(flushed[-1]) if flushed else 0, run.stderr


def check_with_reader(recorder, path, flushed):
    """Our reader; returns the number of rounds and whether the trace is complete, or None where there is no trace."""
    run = subprocess.run([recorder, "check", path], capture_output=True, text=True, timeout=60)
    if not os.path.exists(path):
        assert run.returncode == 1 and "no such trace" in run.stderr, run.stderr
        assert flushed == 0, f"flushed {flushed} rounds, but there is no file"
        return None
    assert run.returncode == 0, f"the reader says: {run.stderr}"
    rounds, state = run.stdout.split()
    assert int(rounds) >= flushed, f"{flushed} rounds were flushed, {rounds} are left"
    return int(rounds), state == "complete"


def check_with_h5py(path, expected):
    """Any HDF5 reader: the trace, and, while it is incomplete, its segments in order."""
    rounds, complete = expected
    with h5py.File(path, "r") as f:
        assert f.attrs["schema"] == "lever-trace"
        assert f.attrs["complete"] == (1 if complete else 0)
        found = list(f["rounds"]["round"])
    folder = path + ".d"
    segments = sorted(s for s in os.listdir(folder) if s.endswith(".h5")) if os.path.isdir(folder) and not complete else []
    assert segments == [f"{i + 1:06}.h5" for i in range(len(segments))], f"a gap: {segments}"
    for segment in segments:
        with h5py.File(os.path.join(folder, segment), "r") as f:
            assert f.attrs["complete"] == 0
            found += list(f["rounds"]["round"]) if "rounds" in f else []
    assert found[:rounds] == list(range(rounds)), f"not a prefix: {found}"


def kill_at(recorder, shim, k, torn):
    """One killed recording; True once the recording survives because it makes fewer than k calls."""
    folder = tempfile.mkdtemp(prefix="lvr-kill-")
    try:
        path = os.path.join(folder, "t.h5")
        status, flushed, err = record(recorder, shim, path, k, torn)
        assert status in (0, -signal.SIGKILL), f"status {status}: {err}"
        expected = check_with_reader(recorder, path, flushed)
        if status == 0:
            assert expected is not None and expected[1], "a recording that was not killed is complete"
            assert os.listdir(folder) == ["t.h5"], f"leftovers: {os.listdir(folder)}"
        if expected and h5py:
            check_with_h5py(path, expected)
        return status == 0
    finally:
        shutil.rmtree(folder)


def main():
    recorder, shim = map(os.path.abspath, sys.argv[1:3])
    for torn in (False, True):
        for k in range(1, MAX_CALLS + 1):
            try:
                if kill_at(recorder, shim, k, torn):
                    break
            except AssertionError as e:
                print(f"killed {'after' if torn else 'before'} call {k}: {e}")
                return 1
        else:
            print(f"the recording still makes calls after {MAX_CALLS}")
            return 1
        print(f"killed {'after' if torn else 'before'} each of {k - 1} calls: every trace opens")
        if k < 10:
            print("the shim counts too few calls to have been loaded")
            return 1
    if not h5py:
        print("h5py is not installed: only our own reader was asked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
