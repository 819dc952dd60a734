"""Runs the `lever` program in a folder of its own and checks what a user meets: statuses, messages, output. Prints TAP.

A test is a function `test_NAME(case)`; `main(globals())` of each file runs them all, or those named on the command line.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True

SECONDS = 120  # no call takes nearly as long; more is a hang


class Skip(Exception):
    """Raised with the reason."""


class Result:
    def __init__(self, args, status, out, err):
        self.args, self.status, self.out, self.err = args, status, out, err

    def __str__(self):
        return (f"lever {' '.join(map(str, self.args))[:400]}\nstatus {self.status}\n"
                f"-- standard output\n{self.out[-1500:]}\n-- standard error\n{self.err[-1500:]}")


class Case:
    """One test's folder, and ways to run the program in it."""

    def __init__(self, program, root, folder):
        self.program, self.root, self.folder = program, root, folder
        self.target = os.path.join(root, "models", "lever-target-10m-q8_0.gguf")
        self.draft = os.path.join(root, "models", "lever-draft-1m-q8_0.gguf")
        self.prompts = os.path.join(root, "models", "prompts", "prompts.yaml")
        self.env = dict(os.environ, LVR_CACHE_DIR=os.path.join(folder, "cache"), LC_ALL="C.UTF-8")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def start(self, *args, **more):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([self.program, *map(str, args)], cwd=self.folder, env=self.env, text=True, **streams)

    def lever(self, *args, **more):
        process = self.start(*args, **more)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"hangs: {Result(args, None, out, err)}") from None
        return Result(args, process.returncode, out, err)

    def good(self, *args, **more):
        """Must succeed; returns the result."""
        r = self.lever(*args, **more)
        check(r.status == 0, "expected status 0", r)
        check_messages(r)
        return r

    def json(self, *args, **more):
        """Must succeed and print one JSON document, nothing else."""
        return parse_json(self.good(*args, "--json", **more))

    def bad(self, status, words, *args, **more):
        """Must fail with this status, print no result, and say all these words in its message."""
        r = self.lever(*args, **more)
        check(r.status == status, f"expected status {status}", r)
        check(r.out == "", "a failure prints no result on standard output", r)
        check_messages(r)
        last = r.err.strip().splitlines()[-1] if r.err.strip() else ""
        check(last.startswith("lever: "), "the last line is the message", r)
        for word in words:
            check(word.lower() in last.lower(), f"the message says '{word}'", r)
        return r


def check(truth, what, result=""):
    if not truth:
        raise AssertionError(f"{what}\n{result}")


def check_messages(r):
    """No trace of a crash or of a sanitizer, and every line of standard error is the program's own."""
    for word in ("Sanitizer", "runtime error:", "Assertion", "HDF5-DIAG", "(null)"):
        check(word not in r.err, f"standard error holds '{word}'", r)
    for line in r.err.splitlines():
        check(line.startswith("lever: ") or line.startswith(" ") or line.startswith("usage:") or line == "",
              f"a line of standard error is not the program's: {line}", r)


def parse_json(r):
    def no_constants(name):
        raise ValueError(f"{name} is not JSON")
    try:
        return json.loads(r.out, parse_constant=no_constants)
    except ValueError as e:
        raise AssertionError(f"standard output is not one JSON document: {e}\n{r}") from None


def truncated(path, n):
    with open(path, "rb") as f:
        return f.read(n)


def need_root():
    if os.geteuid() != 0:
        raise Skip("needs root, to mount a small file system")


class SmallDisk:
    """A tmpfs of a few MiB: full soon, and without O_DIRECT on most kernels."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size

    def __enter__(self):
        need_root()
        os.makedirs(self.folder)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs", self.folder],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
        return self.folder

    def __exit__(self, *_):
        """A moment after a program has ended the kernel may still hold the files that its io_uring had registered."""
        for _ in range(100):
            if subprocess.run(["umount", self.folder], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.folder} cannot be unmounted")


def interrupt(process):
    process.send_signal(signal.SIGINT)


def run_one(function, program, root):
    folder = tempfile.mkdtemp(prefix="lever-cli-")
    try:
        function(Case(program, root, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(names):
    """Arguments: [TEST...]. Environment: LEVER (the program), LVR_SOURCE_ROOT."""
    program = os.path.abspath(os.environ["LEVER"])
    root = os.path.abspath(os.environ["LVR_SOURCE_ROOT"])
    wanted = sys.argv[1:]
    tests = [(k, f) for k, f in names.items() if k.startswith("test_") and (not wanted or k in wanted)]
    failed = 0
    print(f"1..{len(tests)}")
    for i, (name, function) in enumerate(tests, 1):
        try:
            run_one(function, program, root)
            print(f"ok {i} - {name}")
        except Skip as e:
            print(f"ok {i} - {name} # SKIP {e}")
        except Exception:  # any failure is this test's
            failed += 1
            print(f"not ok {i} - {name}")
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
        sys.stdout.flush()
    sys.exit(failed > 0)
