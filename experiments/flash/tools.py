"""What measure.py runs: the program, fio, memory cgroups; and the emulated device's own time of a pass."""
import contextlib
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time

MIB = 1 << 20
GIB = 1 << 30


class Failed(Exception):
    """A command that did not do its work; the text is its last message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def run(command, env=None, before_exec=None):
    """Standard output of a command that has to succeed."""
    done = subprocess.run([str(c) for c in command], env=env, preexec_fn=before_exec, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    raise Failed(done.returncode, lines[-1])


# ---- the program ----

class Lever:
    """`lever` with a pack cache of its own and a list of the commands it was given."""

    def __init__(self, program, folder):
        self.program, self.commands = os.path.abspath(program), os.path.join(folder, "commands.txt")
        self.env = dict(os.environ, LVR_CACHE_DIR=os.path.join(folder, "cache"), LC_ALL="C.UTF-8")

    def __call__(self, *args, group=None):
        with open(self.commands, "a", encoding="utf-8") as f:
            f.write(" ".join(map(str, ("lever", *args))) + (f"  # in {group.folder}" if group else "") + "\n")
        return run([self.program, *args], self.env, group.enter if group else None)

    def json(self, *args, group=None):
        return json.loads(self(*args, "--json", group=group))


def seconds_per_round(r):
    """Of decoding: the prompt's passes are not in it."""
    return r["n_tokens"] / r["decode_tokens_per_s"] / r["rounds"]


def work_per_round(r):
    """(draft and what else comes between passes, the target's compute) in seconds. The prompt's share is in it: it is small
    for a short prompt."""
    between = r["draft_s"] + r["plan_s"] + r["head_s"] + r["commit_s"]
    return between / r["rounds"], r["compute_s"] / (r["rounds"] + 1)


# ---- fio ----

FIO_MISSING = "fio is not installed: experiments/setup.sh --extras installs it (or apt-get install fio)"


HUGE_PAGES = "/proc/sys/vm/nr_hugepages"


@contextlib.contextmanager
def huge_pages(total_bytes):
    """Pages of 2 MiB for fio's buffers while it runs, where this user may ask for them: True if there are enough. Virtual disks
    take each page of a buffer for a piece of its own and read several times slower into small ones."""
    before = None
    try:
        with open(HUGE_PAGES, encoding="ascii") as f:
            before = int(f.read())
        wanted = before + total_bytes // (2 * MIB) + 16
        with open(HUGE_PAGES, "w", encoding="ascii") as f:
            f.write(str(wanted))
        with open(HUGE_PAGES, encoding="ascii") as f:
            enough = int(f.read()) >= wanted
    except OSError:
        enough = False
    try:
        yield enough
    finally:
        if before is not None:
            with contextlib.suppress(OSError), open(HUGE_PAGES, "w", encoding="ascii") as f:
                f.write(str(before))


# What fio is tried with, the best first.
FIO_WAYS = (["--ioengine=io_uring", "--iomem=mmaphuge", "--fixedbufs=1", "--registerfiles=1"],
            ["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"], ["--ioengine=io_uring"], ["--ioengine=libaio"])


def fio_rate(path, request_bytes, depth, seconds):
    """Bytes per second of sequential O_DIRECT reads of a file, and with what; None where the file system refuses them."""
    if not shutil.which("fio"):
        raise Failed(127, FIO_MISSING)
    with huge_pages(request_bytes * depth) as huge:
        for way in FIO_WAYS if huge else FIO_WAYS[1:]:
            try:
                out = run(["fio", "--name=read", f"--filename={os.path.abspath(path)}", "--readonly", "--direct=1", "--rw=read",
                           f"--bs={request_bytes}", f"--iodepth={depth}", "--time_based", *way,
                           f"--runtime={round(seconds * 1000)}ms", "--output-format=json"])
                job = json.loads(out[out.index("{"):])["jobs"][0]
            except (Failed, ValueError):
                continue
            if job["error"] == 0 and job["read"]["bw_bytes"] > 0:
                return job["read"]["bw_bytes"], " ".join(way)
    return None, None


def fio_best(path, cells, seconds, between=None):
    """The fastest of (request bytes, depth) cells: {bytes_per_s, request_bytes, depth, cells}. `between` is called after each."""
    rates = []
    for request_bytes, depth in cells:
        rate, way = fio_rate(path, request_bytes, depth, seconds)
        rates.append({"request_bytes": request_bytes, "depth": depth, "bytes_per_s": rate, "way": way})
        if between:
            between(request_bytes, depth)
    rates = [r for r in rates if r["bytes_per_s"]]
    if not rates:
        raise Failed(1, f"{path}: fio cannot read it with O_DIRECT; keep it on a file system that can (ext4, xfs, f2fs)")
    return dict(max(rates, key=lambda r: r["bytes_per_s"]), cells=rates)


# ---- the emulated device ----

class Preset:
    """A device of `rate` bytes/s with four lanes, each reaching half of it, as configs/devices/emulated-*.yaml."""

    def __init__(self, rate, folder):
        self.t0_ns, self.lane, self.most, self.depth = 100_000, int(rate / 2), int(rate), 4
        self.name = f"emulated-{rate / 1e6:g}"
        self.path = os.path.join(folder, self.name + ".yaml")
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(f"name: {self.name}\ndescription: made by experiments/flash/measure.py\nflash:\n  t0_ns: {self.t0_ns}\n"
                    f"  lane_bytes_per_s: {self.lane}\n  max_bytes_per_s: {self.most}\n  depth: {self.depth}\n")

    def pass_s(self, layers, slice_bytes, depth, passes=12):
        """Seconds of a pass over these layers with a queue that is never empty: the steady state of
        costmodel/core/flash_model.c (lvr_flash_admit), request by request."""
        lanes, link, ends = [0.0] * min(depth, self.depth), 0.0, []
        for _ in range(passes):
            for bytes_left in layers:
                while bytes_left > 0:
                    n = min(bytes_left, slice_bytes)
                    lane = lanes.index(min(lanes))
                    data_from = lanes[lane] + self.t0_ns
                    link = max(data_from, link) + math.ceil(n * 1e9 / self.most)
                    lanes[lane] = max(data_from + math.ceil(n * 1e9 / self.lane), link)
                    bytes_left -= n
            ends.append(max(lanes))
        return (ends[-1] - ends[1]) / (passes - 2) / 1e9


# ---- memory cgroups ----

def own_group(controller):
    """This process's group below the controller's mount; '' asks for v2's."""
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, names, path = line.strip().split(":", 2)
            if (controller in names.split(",")) if controller else not names:
                return path
    return None


def text_of(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def v2_parent():
    """The nearest group above that hands the memory controller to its children; None: there is none."""
    path = own_group("") or "/"
    while True:
        folder = os.path.normpath("/sys/fs/cgroup/" + path)
        if "memory" in text_of(os.path.join(folder, "cgroup.subtree_control")).split():
            return folder
        if path == "/":
            return None
        path = os.path.dirname(path)


class MemoryGroup:
    """A child group with a limit, v1 or v2, for `with`. Raises Failed where this machine or this user cannot have one."""

    made = itertools.count(1)  # a group that cannot be removed does not stand in the next one's way

    def __init__(self, limit):
        self.limit, v1 = limit, own_group("memory")
        if v1 is not None and os.path.isdir("/sys/fs/cgroup/memory"):
            self.version, parent = 1, os.path.normpath("/sys/fs/cgroup/memory/" + v1)
            self.limit_file, self.peak_file = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
        else:
            self.version, parent = 2, v2_parent()
            self.limit_file, self.peak_file = "memory.max", "memory.peak"
        if parent is None:
            raise Failed(1, "no memory controller, neither cgroup v1 nor v2, is to be had here")
        self.folder = os.path.join(parent, f"lever-flash-{os.getpid()}-{next(self.made)}")

    def __enter__(self):
        try:
            os.mkdir(self.folder)
        except OSError as e:
            raise Failed(1, f"no memory cgroup can be made here ({e}); run as root, or give this user a delegated group") from None
        try:
            self.write(self.limit_file, self.limit)
        except OSError as e:
            self.__exit__()
            raise Failed(1, f"{self.folder}: the memory controller is not there ({e})") from None
        return self

    def __exit__(self, *_):
        for _ in range(50):  # the kernel may take a moment to let go of what has ended
            try:
                os.rmdir(self.folder)
                return
            except OSError as e:
                left = e
                time.sleep(0.1)
        print(f"measure.py: {self.folder} is left behind ({left.strerror}); remove it with rmdir once its processes have ended",
              file=sys.stderr)

    def write(self, name, value):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write(str(value))

    def read(self, name):
        return text_of(os.path.join(self.folder, name))

    def enter(self):
        """In the child, before it becomes the program."""
        self.write("cgroup.procs", os.getpid())

    def figures(self):
        """What the kernel has counted: the peak, page cache included, and processes killed."""
        peak = self.read(self.peak_file).strip()
        kills = self.read("memory.oom_control" if self.version == 1 else "memory.events").split()
        return {"cgroup_version": self.version, "limit_bytes": self.limit, "peak_bytes": int(peak) if peak else None,
                "oom_kills": int(kills[kills.index("oom_kill") + 1]) if "oom_kill" in kills else None}


def evict(path):
    """Drops a file's pages from the page cache: pages that were charged to another group would be free of charge."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
