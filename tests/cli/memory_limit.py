"""A run inside a real memory control group (version 1 or 2): it keeps within the limit, or is refused; it is never killed."""
import os
import re
import subprocess
import time

from harness import Result, Skip, check, check_messages, main, need_root, parse_json

MIB = 1 << 20
SHAPE = """schema: lever-shape/1
name: limited
source: "tests/cli/memory_limit.py"
tag: own
n_layers: 16
d_model: 768
n_heads: 12
n_kv: 4
head_dim: 64
d_ff: 3072
vocab: 4096
tied: true
type: q8_0
arch: llama
n_ctx: 1024
rms_eps: 1e-5
rope_base: 10000
"""


def read(*path):
    with open(os.path.join(*path), encoding="ascii") as f:
        return f.read()


def write(text, *path):
    with open(os.path.join(*path), "w", encoding="ascii") as f:
        f.write(str(text))


def unescaped(text):
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), text)


def memory_groups():
    """(version, directory of this process's own group) for each hierarchy that may have the memory controller."""
    groups = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            groups[1 if controllers else 2] = path
    for line in read("/proc/self/mountinfo").splitlines():
        before, after = line.split(" - ", 1)
        root, point = (unescaped(x) for x in before.split()[3:5])
        kind, options = after.split()[0], after.split()[-1]
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "memory" in options.split(",") else 0
        path = groups.get(version)
        if path is not None and path.startswith(root.rstrip("/")):
            yield version, point + path[len(root.rstrip("/")):].rstrip("/")


class Group:
    """A group of its own with a limit."""

    LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}

    def __init__(self, limit):
        need_root()
        self.limit = limit

    def __enter__(self):
        reasons = []
        for version, parent in memory_groups():
            # Version 2 has no groups with controllers below one with processes: a sibling will do.
            for place in ([parent] if version == 1 else [parent, os.path.dirname(parent)]):
                self.version, self.folder = version, os.path.join(place, f"lever-test-{os.getpid()}")
                try:
                    os.mkdir(self.folder)
                    write(self.limit, self.folder, self.LIMIT[version])
                    return self
                except OSError as e:
                    reasons.append(str(e))
                    self.remove()
        raise Skip("no memory control group can be made here: " + ("; ".join(reasons) or "no memory controller is mounted"))

    def remove(self):
        for _ in range(50):  # the last process may take a moment to leave
            try:
                os.rmdir(self.folder)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)

    def __exit__(self, *_):
        self.remove()

    def enter(self):
        write(os.getpid(), self.folder, "cgroup.procs")

    def kills(self):
        file = "memory.oom_control" if self.version == 1 else "memory.events"
        return int(re.search(r"^oom_kill (\d+)$", read(self.folder, file) + "oom_kill 0\n", re.M).group(1))

    def most_used(self):
        file = os.path.join(self.folder, "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return int(read(file)) if os.path.exists(file) else 0


def lever_in(group, case, *args):
    done = subprocess.run([case.program, *map(str, args)], cwd=case.folder, env=case.env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300, preexec_fn=group.enter, check=False)
    r = Result(args, done.returncode, done.stdout, done.stderr)
    check(r.status >= 0 and group.kills() == 0, "nothing is killed", r)
    check_messages(r)
    return r


def refused(r, *words):
    check(r.status == 2 and r.out == "", "refused, with status 2", r)
    for word in words:
        check(word in r.err.strip().splitlines()[-1], f"the message says '{word}'", r)


def evict(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def make_pack(case):
    """160 MB of layers; evicted, since pages that another group has read would be free here."""
    case.write("shape.yaml", SHAPE)
    case.good("model", "synth", "--shape", "shape.yaml", "-o", "t.gguf", "-t", "2")
    case.good("model", "pack", "t.gguf", "-o", "t.lvrpack")
    evict(case.path("t.lvrpack"))
    return ["-m", "t.lvrpack", "-c", "256"]


RUN = ["-p", "Once upon a time", "-n", "3", "--ignore-eos"]


def test_within_the_limit(case):
    with Group(144 * MIB) as group:
        model = make_pack(case)
        r = lever_in(group, case, "run", *model, *RUN, "--json", "--dram-budget", "auto")
        check(r.status == 0, "a budget that is what the container has left completes", r)
        d = parse_json(r)
        check(d["bytes_read"] > 0 and 0 < d["resident_fraction"] < 1, "some layers stay, the others are streamed", r)
        check(Group.LIMIT[group.version] in r.err, "what the budget is comes from the group's file", r)
        check(group.most_used() <= group.limit, f"the group's own count: {group.most_used()}", r)
        evict(case.path("t.lvrpack"))
        free = case.json("run", *model, *RUN)
        check(free["tokens"] == d["tokens"], "the tokens are those of a run without limits", r)


def test_refused_rather_than_killed(case):
    with Group(144 * MIB) as group:
        model = make_pack(case)
        name = Group.LIMIT[group.version]
        refused(lever_in(group, case, "run", *model, *RUN), name, "144.0 MiB", "least feasible", "--dram-budget auto")
        refused(lever_in(group, case, "run", *model, *RUN, "--dram-budget", "1GiB"), name, "least feasible")
        refused(lever_in(group, case, "run", *model, *RUN, "--dram-budget", "4MiB"), "at least", "bytes")
        refused(lever_in(group, case, "record", "--oracle", *model, "-md", "t.lvrpack", *RUN, "-o", "x.h5"), name)
        check(not os.path.exists(case.path("x.h5")), "a refused recording leaves nothing behind")


def test_plan_of_a_limited_container(case):
    with Group(144 * MIB) as group:
        model = make_pack(case)
        r = lever_in(group, case, "model", "plan", *model, "--dram-budget", "auto", "--json")
        check(r.status == 0, "a plan is made", r)
        d = parse_json(r)
        check(d["memory"]["source"].endswith(Group.LIMIT[group.version]), "the file that binds", d)
        check(d["memory"]["limit_bytes"] == 144 * MIB, "its limit", d)
        check(d["total_bytes"] <= d["dram_budget_bytes"] == d["memory"]["room_bytes"] - d["program_bytes"], "the budget", d)
    with Group(48 * MIB) as group:
        refused(lever_in(group, case, "run", *model, *RUN, "--dram-budget", "auto"), "--dram-budget auto", "at least",
                Group.LIMIT[group.version])


if __name__ == "__main__":
    main(globals())
