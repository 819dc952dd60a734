"""A disk that is full, or a limit on the size of files, at whatever byte: the message says so, and nothing half-made is left."""
import errno
import os
import resource

from harness import Result, SmallDisk, check, check_messages, main

SHORT = ["-p", "User: Hello.\nAssistant:", "-n", "4"]
FULL = "no space left"
TOO_LARGE = os.strerror(errno.EFBIG).lower()


def limited(case, limit, *args):
    """Runs the program, which may write `limit` bytes to a file and gets EFBIG beyond: stands for any write that fails."""
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    # this interpreter ignores SIGXFSZ, and the program inherits that
    process = case.start(*args, preexec_fn=limit_files, restore_signals=False)
    out, err = process.communicate(timeout=120)
    r = Result(args, process.returncode, out, err)
    check_messages(r)
    return r


def check_failed(r, name, *reasons):
    check(r.status == 1, f"status 1 for {name}", r)
    last = r.err.strip().splitlines()[-1].lower()
    check(name in last and any(reason in last for reason in reasons), f"says that {name} could not be written, and why", r)
    check(r.out == "", "and prints no result", r)


def below(whole):
    """Lengths at which a file of `whole` bytes is cut short: header, sections, the last byte."""
    return sorted({1, 100, 4096, 5000, whole // 7, whole // 3, whole // 2, whole - 4097, whole - 4096, whole - 1} & set(range(whole)))


def pack_bytes(case):
    case.good("model", "pack", case.draft, "-o", "whole.lvrpack")
    return os.path.getsize(case.path("whole.lvrpack"))


def files_of(folder):
    return sorted(f for _, _, names in os.walk(folder) for f in names)


def test_pack_at_any_length(case):
    whole = pack_bytes(case)
    for limit in below(whole):
        r = limited(case, limit, "model", "pack", case.draft, "-o", "cut.lvrpack")
        check_failed(r, "cut.lvrpack", TOO_LARGE)
        check([f for f in os.listdir(case.folder) if "cut" in f] == [], f"nothing is left of {limit} bytes", os.listdir(case.folder))
    r = limited(case, whole, "model", "pack", case.draft, "-o", "cut.lvrpack")
    check(r.status == 0, "a limit that suffices does", r)
    case.good("model", "verify", "cut.lvrpack")


def test_an_older_pack_survives(case):
    whole = pack_bytes(case)
    for limit in (4096, whole // 2):
        r = limited(case, limit, "model", "pack", case.draft, "-o", "whole.lvrpack")
        check_failed(r, "whole.lvrpack", TOO_LARGE)
        case.good("model", "verify", "whole.lvrpack")
    check(files_of(case.folder) == ["whole.lvrpack"], "and nothing besides", files_of(case.folder))


def test_packing_into_the_cache_at_any_length(case):
    """A run on a bare GGUF packs first; a failed attempt leaves no pack that a later run could take for a whole one."""
    whole = pack_bytes(case)
    for limit in below(whole)[1:]:
        r = limited(case, limit, "run", "-m", case.draft, *SHORT)
        check_failed(r, ".lvrpack", TOO_LARGE)
        left = [f for f in files_of(case.path("cache")) if "lvrpack" in f]
        check(left == [], f"no pack is left in the cache after {limit} bytes", left)
    case.good("run", "-m", case.draft, *SHORT)
    case.good("run", "-m", case.draft, "--resident", "0", *SHORT)


def test_full_disk_while_packing(case):
    with SmallDisk(case.path("small"), "1m") as folder:
        out = os.path.join(folder, "t.lvrpack")
        check_failed(case.lever("model", "pack", case.target, "-o", out), "t.lvrpack", FULL)
        check(os.listdir(folder) == [], "nothing is left", os.listdir(folder))


def test_full_disk_under_the_cache(case):
    with SmallDisk(case.path("small"), "1m") as folder:
        case.env["LVR_CACHE_DIR"] = os.path.join(folder, "cache")
        check_failed(case.lever("run", "-m", case.target, *SHORT), ".lvrpack", FULL)
        left = [f for f in files_of(folder) if "lvrpack" in f]
        check(left == [], "nothing is left", left)


def check_result_file(case, words, *args):
    """A result that cannot be written whole: the older one stays, no temporary file does."""
    case.write("result", "older\n")
    r = limited(case, 16, *args, "-o", "result")
    check_failed(r, "result", words)
    with open(case.path("result"), encoding="utf-8") as f:
        check(f.read() == "older\n", "the older result is untouched")
    left = [f for f in os.listdir(case.folder) if f.startswith("result")]
    check(left == ["result"], "and nothing besides", left)


def test_results_at_a_limit(case):
    case.good("model", "pack", case.draft, "-o", "d.lvrpack")
    case.good("run", "-m", "d.lvrpack", *SHORT)  # fills the cache, which the limit would meet too
    check_result_file(case, TOO_LARGE, "run", "-m", "d.lvrpack", *SHORT, "--json")
    case.good("record", "-m", "d.lvrpack", "-md", "d.lvrpack", "--policy", "random", *SHORT, "-o", "t.h5")
    check_result_file(case, TOO_LARGE, "fit", "t.h5")


def test_results_on_a_full_disk(case):
    with SmallDisk(case.path("small"), "64k") as folder:
        with open(os.path.join(folder, "filler"), "wb") as f:
            try:
                f.write(bytes(1 << 20))
            except OSError:
                pass
        out = os.path.join(folder, "result.json")
        check_failed(case.lever("run", "-m", case.draft, *SHORT, "--json", "-o", out), "result.json", FULL)
        check(os.listdir(folder) == ["filler"], "nothing is left", os.listdir(folder))


def test_recording_on_a_full_disk(case):
    """What was flushed stays readable; unit test traces-full-disk walks every byte."""
    with SmallDisk(case.path("small"), "256k") as folder:
        out = os.path.join(folder, "t.h5")
        r = case.lever("record", "-m", case.target, "-md", case.draft, "--policy", "random", "--ignore-eos", "-n", "400",
                       "--repeat", "100", "-p", "Once upon a time", "-o", out)
        check_failed(r, "t.h5", FULL)
        info = case.json("trace", "info", out)
        check(info["complete"] is False, "says that it is incomplete", info)


if __name__ == "__main__":
    main(globals())
