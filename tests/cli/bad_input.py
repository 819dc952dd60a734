"""Input that is absent, damaged or contradicts itself: one clear message, status 1 or 2, never a crash or a silent default."""
import os
import struct
import subprocess

from harness import Skip, SmallDisk, check, main, parse_json, truncated

SHORT = ["-p", "User: Hello.\nAssistant:", "-n", "4"]


def fails(case, words, *args):
    """Status 1 or 2: the file is at fault, or the choice of the file."""
    r = case.lever(*args)
    check(r.status in (1, 2), "expected status 1 or 2", r)
    return case.bad(r.status, words, *args)


def test_missing_files(case):
    fails(case, ["absent.gguf", "no such file"], "run", "-m", "absent.gguf", *SHORT)
    fails(case, ["absent.gguf", "no such file"], "model", "info", "absent.gguf")
    fails(case, ["absent.h5", "no such trace"], "trace", "info", "absent.h5")
    fails(case, ["absent.yaml", "no such file"], "run", "-m", case.target, "-md", case.draft, "--policy", "./absent.yaml", *SHORT)
    fails(case, ["absent.yaml", "no such file"], "run", "-m", case.target, "--prompts", "absent.yaml")
    fails(case, ["absent.h5", "no such trace"], "fit", "absent.h5", "-o", "cost.yaml")


def test_directories_and_empty_files(case):
    case.write("empty", b"")
    fails(case, ["empty"], "run", "-m", "empty", *SHORT)
    fails(case, ["empty"], "trace", "info", "empty")
    fails(case, ["directory"], "run", "-m", case.folder, *SHORT)


def test_truncated_gguf(case):
    whole = os.path.getsize(case.target)
    for n in (3, 20, 100, 5000, whole // 2, whole - 1):
        case.write("cut.gguf", truncated(case.target, n))
        fails(case, ["cut.gguf"], "run", "-m", "cut.gguf", *SHORT)
    fails(case, ["cut.gguf"], "model", "pack", "cut.gguf", "-o", "out.lvrpack")
    check(not os.path.exists(case.path("out.lvrpack")), "no pack is left behind")


def test_flipped_bits_in_the_header(case):
    head = truncated(case.draft, 4096)
    whole = bytearray(truncated(case.draft, os.path.getsize(case.draft)))
    for at in (0, 4, 8, 15, 16, 23, 24, 31, 32, 60):
        whole[at] ^= 0xFF
        case.write("flipped.gguf", bytes(whole))
        r = case.lever("model", "info", "flipped.gguf")
        check(r.status in (0, 1, 2), "no crash", r)
        whole[at] = head[at]


def test_hostile_counts(case):
    case.write("hostile.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**62) + bytes(4096))
    fails(case, ["hostile.gguf"], "model", "info", "hostile.gguf")
    case.write("old.gguf", b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64))
    fails(case, ["version"], "model", "info", "old.gguf")


def test_damaged_pack(case):
    case.good("model", "pack", case.draft, "-o", "d.lvrpack")
    case.good("model", "verify", "d.lvrpack")
    data = bytearray(truncated(case.path("d.lvrpack"), 1 << 30))
    data[-8192] ^= 1
    case.write("flipped.lvrpack", bytes(data))
    case.bad(1, ["flipped.lvrpack", "checksum"], "model", "verify", "flipped.lvrpack")
    case.write("cut.lvrpack", bytes(data[:len(data) // 2]))
    fails(case, ["cut.lvrpack"], "run", "-m", "cut.lvrpack", *SHORT)


def test_truncated_trace(case):
    case.write("noise.h5", os.urandom(3000))
    fails(case, ["noise.h5"], "trace", "info", "noise.h5")
    fails(case, ["noise.h5"], "fit", "noise.h5", "-o", "cost.yaml")


def test_yaml_with_a_wrong_key(case):
    case.write("policy.yaml", "polcy:\n  name: ar\n")
    fails(case, ["policy.yaml"], "run", "-m", case.target, "--policy", "./policy.yaml", *SHORT)
    case.write("bomb.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n")
    fails(case, ["bomb.yaml"], "run", "-m", case.target, "--policy", "./bomb.yaml", *SHORT)
    case.write("device.yaml", "name: mine\ndescription: x\nflash:\n  t0: 5\n")
    fails(case, ["device.yaml:", "t0"], "run", "-m", case.target, "--emulate-flash", "./device.yaml", "--resident", "0", *SHORT)


def test_prompt_longer_than_the_context(case):
    case.bad(2, ["prompt", "context"], "run", "-m", case.target, "-p", "once upon a time " * 400, "-n", "4")
    case.bad(2, ["prompt", "context"], "run", "-m", case.target, "-c", "8", "-p", "once upon a time there was a dog who", "-n", "4")


def test_context_fills_up_in_the_middle(case):
    d = case.json("run", "-m", case.target, "-md", case.draft, "--policy", "random", "-c", "32", "-n", "100", "--ignore-eos",
                  "-p", "Once upon a time")
    check(d["n_tokens"] > 0 and d["requests"][0]["stop"] == "context", "stops at the context's end and says so", d["requests"])


def swap_token(gguf, piece, other):
    at = gguf.find(struct.pack("<Q", len(piece)) + piece)
    check(at > 0, "the token is there")
    return gguf[:at + 8] + other + gguf[at + 8 + len(piece):]


def test_vocabularies_differ(case):
    data = truncated(case.draft, 1 << 30)
    piece = "\u2581the".encode()
    case.write("other.gguf", swap_token(data, piece, "\u2581thx".encode()))
    case.bad(2, ["token", "\u2581th"], "run", "-m", case.target, "-md", "other.gguf", "--policy", "chain", *SHORT)


def test_budget_too_small(case):
    case.bad(2, ["budget"], "run", "-m", case.target, "--dram-budget", "1MiB", *SHORT)


def test_preset_faster_than_the_disk(case):
    case.write("impossible.yaml", "name: impossible\ndescription: too fast\nflash:\n  t0_ns: 1000\n  lane_bytes_per_s: 500_000_000_000\n"
                                  "  max_bytes_per_s: 900_000_000_000\n  depth: 4\n")
    case.bad(2, ["impossible", "slower preset", "GB/s"], "run", "-m", case.target, "--emulate-flash", "./impossible.yaml",
             "--resident", "0", *SHORT)


def test_unknown_preset(case):
    case.bad(2, ["emulated-50", "did you mean"], "run", "-m", case.target, "--emulate-flash", "emulated-50", *SHORT)


def check_without_o_direct(case, pack):
    r = case.good("run", "-m", pack, "--resident", "0", "--json", *SHORT)
    check("O_DIRECT" in r.err and "To mend" in r.err, "a notice that reads are buffered, and how to mend it", r)
    check(parse_json(r)["n_tokens"] == 4, "and the text all the same", r)


def test_tmpfs(case):
    with SmallDisk(case.path("disk"), "64m") as disk:
        pack = os.path.join(disk, "t.lvrpack")
        case.good("model", "pack", case.target, "-o", pack)
        try:
            os.close(os.open(pack, os.O_RDONLY | os.O_DIRECT))
            case.good("run", "-m", pack, "--resident", "0", *SHORT)
        except OSError:
            check_without_o_direct(case, pack)


def test_file_system_without_o_direct(case):
    shim = os.environ.get("LVR_NO_DIRECT", "")
    if not os.path.exists(shim):
        raise Skip("no LVR_NO_DIRECT to preload")
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    case.env["LD_PRELOAD"] = shim
    case.env["ASAN_OPTIONS"] = case.env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    check_without_o_direct(case, "t.lvrpack")


def test_unwritable_output(case):
    fails(case, ["nowhere"], "run", "-m", case.target, "-o", "nowhere/result.json", "--json", *SHORT)
    fails(case, ["nowhere"], "model", "pack", case.draft, "-o", "nowhere/d.lvrpack")


def test_closed_pipe_and_full_device(case):
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([case.program, "run", "-m", case.target, *SHORT], stdout=full, stderr=subprocess.PIPE, text=True,
                              env=case.env, timeout=60, check=False)
    check(done.returncode == 1 and "standard output" in done.stderr, f"a full standard output is a failure: {done.stderr}")


if __name__ == "__main__":
    main(globals())
