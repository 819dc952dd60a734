"""What the program must not replace, what it may not leave behind, and what it says where it cannot write."""
import glob
import os
import resource
import shutil
import signal
import subprocess
import time

from harness import check, main, truncated

SHORT = ["-n", "4"]


def keeps(case, name, *args):
    """Refuses to write over its input, under its own name and others, and leaves it as it is."""
    with open(case.path(name), "rb") as f:
        before = f.read()
    os.symlink(name, case.path("link"))
    os.link(case.path(name), case.path("hard"))
    for out in (name, "link", "hard", case.path(name)):
        case.bad(2, [os.path.basename(out), "input", "another"], *args, "-o", out)
    os.unlink(case.path("link"))
    os.unlink(case.path("hard"))
    with open(case.path(name), "rb") as f:
        check(f.read() == before, f"{name} is as it was")


def test_inputs_are_not_replaced(case):
    shutil.copy(case.target, case.path("t.gguf"))
    case.write("p.txt", "Once")
    case.write("p.yaml", "prompts:\n  - text: Once\n")
    run = ["run", "-m", "t.gguf", *SHORT]
    keeps(case, "t.gguf", *run, "-p", "Once")
    keeps(case, "p.txt", *run, "-f", "p.txt")
    keeps(case, "p.yaml", *run, "--prompts", "p.yaml")
    with open(case.path("p.txt"), "rb") as stdin:
        case.bad(2, ["p.txt", "standard input"], *run, "-o", "p.txt", stdin=stdin)
    keeps(case, "p.yaml", "record", "-m", "t.gguf", *SHORT, "--overwrite", "--prompts", "p.yaml")
    shutil.copy(case.path("p.yaml"), case.path("r.h5.text.jsonl"))
    case.bad(2, ["r.h5.text.jsonl", "input"], "record", "-m", "t.gguf", *SHORT, "--keep-text", "-o", "r.h5", "-f", "r.h5.text.jsonl")
    case.write("cost.yaml", "a cost model, to all who only look at its name")
    case.write("trace.h5", "a trace")
    both = ["--cost", "cost.yaml", "--oracle", "trace.h5"]
    for name in ("cost.yaml", "trace.h5"):
        keeps(case, name, "sim", *both)
        keeps(case, name, "tune", *both)
        keeps(case, name, "correlate", *both, "--measured", "trace.h5")
    case.bad(2, ["trace.h5", "input"], "sim", *both, "--trace", "trace.h5", "--overwrite")
    keeps(case, "trace.h5", "fit", "trace.h5")
    case.good("run", "-m", "t.gguf", *SHORT, "-p", "Once", "-o", "out.txt")
    case.good("run", "-m", "t.gguf", *SHORT, "-p", "Once", "-o", "out.txt")


def test_a_file_larger_than_allowed(case):
    process = case.start("model", "pack", case.target, "-o", "t.lvrpack",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    _, err = process.communicate(timeout=60)
    check(process.returncode == 1 and "File too large" in err, f"{process.returncode}: {err}")
    check(glob.glob(case.path("t.lvrpack*")) == [], "nothing is left")


def test_a_terminal_that_goes_away(case):
    slow = ["run", "-m", case.target, "-p", "Once", "-n", "100", "--ignore-eos", "--emulate-flash", "emulated-100", "--emulate-scale", "0.2",
            "--resident", "0"]
    case.good("run", "-m", case.target, "-p", "Once", *SHORT)
    process = case.start(*slow)
    time.sleep(2)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=30)
    check(process.returncode == 1 and "interrupted" in err, f"a clean end: {process.returncode}: {err}")
    process = case.start(*slow, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    time.sleep(2)
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    check(process.poll() is None, "under nohup it goes on")
    process.terminate()
    process.communicate(timeout=30)


def test_doctor_leaves_nothing(case):
    os.mkdir(case.path("d"))
    process = case.start("doctor", "--dir", "d")
    seen = []
    for _ in range(200):
        seen += os.listdir(case.path("d")) if process.poll() is None else []
        time.sleep(0.01)
        if process.poll() is not None or _ == 100:
            break
    process.kill()
    process.communicate(timeout=30)
    check(os.listdir(case.path("d")) == [], "also when it is killed")
    check(len(seen) < 50, "its file has no name but for a moment", seen)
    r = case.good("doctor", "--dir", "d")
    check("flash rate" in r.out and "/proc" not in r.out, "measures all the same", r)


def test_leftovers_of_a_killed_packing(case):
    gone = subprocess.Popen(["true"])
    gone.wait()
    mine = [f"d.lvrpack.tmp.{gone.pid}.0", f"d.lvrpack.tmp.{gone.pid}.17"]
    others = [f"d.lvrpack.tmp.{os.getpid()}.0", f"e.lvrpack.tmp.{gone.pid}.0", f"d.lvrpack.tmp.{gone.pid}.0.bak", "d.lvrpack.tmp"]
    for name in mine + others:
        case.write(name, "x")
    case.good("model", "pack", case.draft, "-o", "d.lvrpack")
    left = [n for n in mine + others if os.path.exists(case.path(n))]
    check(left == others, f"left: {left}")


def test_a_damaged_layer_in_the_cache(case):
    case.good("run", "-m", case.target, "-p", "Once", *SHORT)
    pack, = glob.glob(case.path("cache/*.lvrpack"))
    data = bytearray(truncated(pack, 1 << 30))
    data[-8192] ^= 1
    with open(pack, "wb") as f:
        f.write(data)
    for resident in ("0", "1"):
        case.bad(1, [pack, "damaged", "cache", "delete"], "run", "-m", case.target, "-p", "Once", *SHORT, "--resident", resident)
    os.unlink(pack)
    case.good("run", "-m", case.target, "-p", "Once", *SHORT)
    case.write("own.lvrpack", bytes(data))
    r = case.bad(1, ["own.lvrpack", "damaged"], "run", "-m", "own.lvrpack", "-p", "Once", *SHORT, "--resident", "0")
    check("delete" not in r.err, "a pack of one's own is not to be deleted", r)


def test_a_cache_that_cannot_be_written(case):
    case.write("file", "")
    case.env["LVR_CACHE_DIR"] = case.path("file/cache")
    case.bad(1, ["LVR_CACHE_DIR", "model pack -o"], "run", "-m", case.target, "-p", "Once", *SHORT)


if __name__ == "__main__":
    main(globals())
