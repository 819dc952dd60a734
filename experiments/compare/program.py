"""Runs the `lever` program and keeps what it made: a result is made again only if its command or what it read has changed."""
import hashlib
import json
import os
import signal
import subprocess
import time


class Failed(Exception):
    """The program has failed; the text says how."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def write(path, text):
    """As a whole or not at all."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


class Program:
    TRIES = 6  # of an emulation that the disk cannot carry at this moment

    def __init__(self, lever, out):
        self.lever, self.out = os.path.abspath(lever), os.path.abspath(out)
        self.digests = {}
        self.commands = {}  # result: command
        self.made = self.kept = 0
        self.identity = self._sha256(self.lever)
        self.version = subprocess.run([self.lever, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]

    def path(self, *parts):
        return os.path.join(self.out, *parts)

    def _sha256(self, path):
        st = os.stat(path)
        key = (path, st.st_mtime_ns, st.st_size)
        if key not in self.digests:
            self.digests[key] = sha256(path)
        return self.digests[key]

    def _stamp(self, args, inputs):
        return {"command": [os.path.relpath(a, self.out) if str(a).startswith(self.out + os.sep) else str(a) for a in args],
                "lever": self.identity, "inputs": {os.path.basename(p): self._sha256(p) for p in inputs}}

    def is_kept(self, name, args, inputs=()):
        stamp = self.path("stamps", name + ".json")
        return os.path.exists(self.path(name)) and os.path.exists(stamp) and load(stamp) == self._stamp(args, inputs)

    def make(self, name, args, inputs=(), also=()):
        """Result `name` (a path in the folder) from `lever ARGS...`: its standard output, unless the arguments name the file
        themselves. inputs: files that it reads; also: other files that it writes. Returns the path."""
        args = [str(a) for a in args]
        path = self.path(name)
        self.commands[name] = " ".join(["lever", *args])
        if self.is_kept(name, args, inputs) and all(os.path.exists(self.path(a)) for a in also):
            self.kept += 1
            return path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for old in [name, *also]:
            if os.path.exists(self.path(old)):
                os.remove(self.path(old))
        text = self._call(args)
        if path not in args:
            write(path, text)
        write(self.path("stamps", name + ".json"), json.dumps(self._stamp(args, inputs)))
        self.made += 1
        return path

    def make_json(self, name, args, inputs=(), also=()):
        return load(self.make(name, [*args, "--json"], inputs, also))

    def _call(self, args):
        for attempt in range(1, self.TRIES + 1):
            done = subprocess.run([self.lever, *args], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            with open(self.path("log.txt"), "a", encoding="utf-8") as log:
                log.write(f"$ lever {' '.join(args)}\n{done.stderr}")
            if done.returncode == 0:
                return done.stdout
            if done.returncode in (-signal.SIGINT, 130):
                raise KeyboardInterrupt
            if done.returncode < 0:
                raise Failed(f"ended by {signal.Signals(-done.returncode).name}: lever {' '.join(args)}\n{done.stderr[-500:]}",
                             done.returncode)
            # The disk may be busy with something else for a moment: the program refuses to emulate on it then.
            if "can be emulated honestly" in done.stderr and attempt < self.TRIES:
                time.sleep(2)
                continue
            break
        raise Failed(f"this failed: lever {' '.join(args)}\n" + "\n".join(done.stderr.splitlines()[-5:]), done.returncode)


class Progress:
    """On a terminal one line that is kept up to date, else a line per tenth of the work, with the time that is left."""

    def __init__(self, stream, what, total_s):
        self.stream, self.what, self.total = stream, what, max(total_s, 1e-9)
        self.start, self.done, self.kept, self.tenth = time.monotonic(), 0.0, 0.0, 0

    def step(self, work_s, kept):
        """work_s: what the finished piece was expected to take; kept: it had been there already."""
        self.done += work_s
        self.kept += work_s if kept else 0.0
        measured = self.done - self.kept
        pace = (time.monotonic() - self.start) / measured if measured > 0 else 1.0
        share = min(self.done / self.total, 1.0)
        text = f"   {self.what}: {100 * share:3.0f} %, about {max(self.total - self.done, 0) * pace / 60:.1f} min left"
        if self.stream.isatty():
            self.stream.write("\r" + text + ("\n" if share > 0.9999 else ""))
        elif int(10 * share + 1e-6) > self.tenth:
            self.tenth = int(10 * share + 1e-6)
            self.stream.write(text + "\n")
        self.stream.flush()
