"""What ends a run before its tokens are out: stop strings, signals, a reader that goes away, damaged weights. And its progress."""
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess

from harness import Skip, check, main, truncated

PROMPT = ["-p", "Once upon a time there was a little dog", "--ignore-eos"]
# A pass takes half a second.
SLOW_FLASH = ["--emulate-flash", "emulated-100", "--emulate-scale", "0.2", "--resident", "0"]
LARGE = 1 << 20


def run(case, *more):
    return ["run", "-m", case.target, *PROMPT, *more]


# ---- stop strings ----

def whole(case, n=60, *more):
    return case.json(*run(case, "-n", n, *more))


def check_stop(case, full, stop, *more):
    """The text ends before the first `stop`, the tokens with the one that completes it."""
    at = full["text"].find(stop)
    check(at >= 0, f"{stop!r} is in {full['text']!r}")
    d = case.json(*run(case, "-n", 60, "--stop", stop, *more))
    check(d["text"] == full["text"][:at], f"{stop!r}, {more}: {d['text']!r}")
    check(d["stop"] == "stop_string" and d["requests"][0]["stop"] == "stop_string", "the reason", d["stop"])
    check(d["tokens"] == full["tokens"][:d["n_tokens"]] and d["n_tokens"] == len(d["tokens"]), "a prefix of the tokens", d["tokens"])
    shorter = case.good("model", "tokenize", "-m", case.target, "--decode", ",".join(map(str, d["tokens"]))).out
    check(stop in shorter.replace("\u2581", " "), f"the last token completes it: {shorter!r}")
    if d["n_tokens"] > 1:
        before = case.good("model", "tokenize", "-m", case.target, "--decode", ",".join(map(str, d["tokens"][:-1]))).out
        check(stop not in before, f"and none before does: {before!r}")
    r = case.good(*run(case, "-n", 60, "--stop", stop, *more))
    check(r.out == d["text"] + "\n", f"as streamed: {r.out!r}")
    return d


def test_stop_strings(case):
    full = whole(case)
    text = full["text"]
    for at in (1, 7, 20, 33):
        for n in (1, 2, 5, 9):
            check_stop(case, full, text[at:at + n])
    d = case.json(*run(case, "-n", 60, "--stop", text[40:44], "--stop", text[10:18], "--stop", "\u00e9never"))
    check(d["text"] == text[:min(text.find(text[40:44]), text.find(text[10:18]))], "the one that is met first", d["text"])
    d = case.json(*run(case, "-n", 60, "--stop", "\u00e9never"))
    check(d["tokens"] == full["tokens"] and d["text"] == text and d["stop"] == "length", "one that never comes")


def test_stop_strings_do_not_depend_on_the_policy(case):
    full = whole(case)
    stop = full["text"][30:37]
    plain = check_stop(case, full, stop)
    for policy in ("chain", "random"):
        d = check_stop(case, full, stop, "-md", case.draft, "--policy", policy, "--resident", "0.5")
        check(d["tokens"] == plain["tokens"], f"{policy}: the same tokens")


def test_escaped_and_wrong_stop_strings(case):
    lines = [json.dumps({"id": 3, "text": "User: Hello.\nAssistant:"})]
    case.write("p.jsonl", "\n".join(lines))
    base = ["run", "-m", case.target, "--prompts", "p.jsonl", "-n", "40", "--ignore-eos"]
    full = case.json(*base)["text"]
    check("\n" in full, f"a text of several lines: {full!r}")
    check(case.json(*base, "-e", "--stop", "\\n")["text"] == full[:full.find("\n")], "an escaped one")
    check(case.json(*base, "--stop", "\\n")["text"] == full, "without --escape it is a backslash and an n")
    case.bad(2, ["--stop", "empty"], *base, "--stop", "")
    case.bad(2, ["--stop", "\\z"], *base, "-e", "--stop", "\\z")
    case.bad(2, ["17", "16"], *base, *[w for i in range(17) for w in ("--stop", f"s{i}")])


def test_the_session_goes_on_after_a_stop_string(case):
    """With layers streamed and read ahead, a later prompt gets the text that it gets alone."""
    texts = ["Once upon a time there was a little dog", "The sun was", "Once upon a time there was a little dog"]
    case.write("p.jsonl", "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    alone = [case.json("run", "-m", case.target, "-p", t, "-n", "30", "--ignore-eos") for t in texts]
    stop = alone[0]["text"][12:16]
    for more in (["--resident", "0"], ["--resident", "0.5", "--io", "serial"], ["--resident", "0.3", "-md", case.draft, "--policy", "chain"]):
        d = case.json("run", "-m", case.target, "--prompts", "p.jsonl", "-n", "30", "--ignore-eos", "--stop", stop, *more)
        check(d["requests"][0]["stop"] == "stop_string", "the first is stopped", d["requests"][0])
        for got, wanted in zip(d["requests"], alone):
            at = wanted["text"].find(stop)
            check(got["text"] == (wanted["text"][:at] if at >= 0 else wanted["text"]), f"{more}: {got['text']!r}")
        passes = d["rounds"] + 3  # each prompt is one more
        check(d["bytes_read"] % passes == 0 and d["bytes_read"] > 0, "each pass reads the same bytes", d["bytes_read"])


# ---- signals ----

def interrupted(process, number, seconds=60):
    """Sends the signal, returns standard output and error; the end must be a clean one."""
    process.send_signal(number)
    return finished(process, seconds)


def finished(process, seconds=60):
    out, err = process.communicate(timeout=seconds)
    check(process.returncode == 1, f"status {process.returncode}\n{out}\n{err}")
    check("interrupted" in err.splitlines()[-1], err)
    return out, err


def wait_for(process, word):
    """Reads standard error up to a line with this word."""
    seen = ""
    for line in process.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"no line with {word}: {seen}")


def preload_shim(case):
    shim = os.environ.get("LVR_SLOW_READS", "")
    if not os.path.exists(shim):
        raise Skip("no LVR_SLOW_READS to preload")
    case.env["LD_PRELOAD"] = shim
    case.env["ASAN_OPTIONS"] = case.env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"


def slow_reads(case, ms):
    preload_shim(case)
    case.env["LVR_SLOW_READ_MS"] = str(ms)


class Gated:
    """The program, each of whose reads tells of itself and waits to be let through: see slow_reads.c."""

    def __init__(self, case, *args):
        preload_shim(case)
        self.notices, theirs = os.pipe()
        go, self.go = os.pipe()
        case.env["LVR_READ_GATE"] = f"{theirs},{go}"
        self.process = case.start(*args, pass_fds=(theirs, go))
        del case.env["LVR_READ_GATE"]
        os.close(theirs)
        os.close(go)
        self.lines = os.fdopen(self.notices, encoding="ascii")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.open()
        self.lines.close()

    def notice(self):
        """The next read, which waits: (thread, offset, bytes)."""
        line = self.lines.readline()
        if not line:
            raise AssertionError(f"the program ended: {self.process.communicate()}")
        thread, offset, n = line.split()
        return thread, int(offset), int(n)

    def until(self, wanted):
        """Lets reads through up to the first that `wanted(thread, offset, bytes)` is true of."""
        read = self.notice()
        while not wanted(*read):
            os.write(self.go, b".")
            read = self.notice()
        return read

    def open(self):
        """All reads pass."""
        if self.go >= 0:
            os.close(self.go)
        self.go = -1

    def interrupted(self, number):
        """Sends the signal while the program waits, then lets it end: standard output and error."""
        self.process.send_signal(number)
        self.open()
        return finished(self.process)


def streaming(case, *more):
    """A run that reads its layers by threads of its own. Its pack is there already."""
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    return ["run", "-m", "t.lvrpack", *PROMPT, "-n", "400", "--resident", "0", "--flash-engine", "pread", *more]


def is_streamed(thread, _offset, _bytes):
    return thread == "other"


def nth_pass(n):
    """True of a read of the n-th pass, the prompt's being the first: each reads everything once."""
    seen = []

    def wanted(thread, offset, _):
        if thread == "other":
            seen.append(offset)
        return thread == "other" and seen.count(seen[0]) == n
    return wanted


def test_interrupted_decoding(case):
    full = whole(case, 12)
    args = streaming(case, "--json")
    for number in (signal.SIGINT, signal.SIGTERM):
        with Gated(case, *args) as gated:
            gated.until(nth_pass(6))  # the third has ended when what comes before the sixth is read ahead
            out, err = gated.interrupted(number)
        d = json.loads(out)
        check(d["stop"] == "interrupted" and d["requests"][0]["stop"] == "interrupted", "marked", out)
        n = d["n_tokens"]
        check(0 < n < 400 and d["tokens"][:12] == full["tokens"][:n], f"{n} tokens: {d['tokens']}")
        check(d["text"].startswith(full["text"][:4]) and d["bytes_read"] > 0 and d["decode_tokens_per_s"] > 0, "figures", out)
        check(f"{n} of 400 tokens" in err and "tokens/s" in err and "read " in err, f"figures on standard error: {err}")


def test_interrupted_text(case):
    process = case.start(*run(case, "-n", "400", *SLOW_FLASH))
    first = os.read(process.stdout.fileno(), 1).decode()
    out, err = interrupted(process, signal.SIGINT)
    full = whole(case, 40)["text"]
    text = first + out
    check(text.endswith("\n") and full.startswith(text[:-1]), f"{text!r}")
    check("tokens/s" in err, err)


def test_interrupted_prompt(case):
    """Nothing is generated yet; still a document with what there is."""
    with Gated(case, *streaming(case, "--json")) as gated:
        gated.until(is_streamed)
        out, err = gated.interrupted(signal.SIGINT)
    d = json.loads(out)
    check(d["stop"] == "interrupted" and d["n_tokens"] == 0 and d["tokens"] == [] and d["text"] == "", "no token", out)
    check(d["ttft_s"] is None and d["decode_tokens_per_s"] is None, "no figure that there is none of", out)
    check("0 of 400 tokens" in err and "no token" in err, err)


def is_large(_thread, _offset, n):
    """True of hashing's and of loading's first reads: headers and tables are read in smaller pieces."""
    return n >= LARGE


def after_hashing(size):
    """True of the first read after the one that has reached the end of a model of so many bytes."""
    done = []

    def wanted(_thread, offset, n):
        if done:
            return True
        if offset + n == size:
            done.append(True)
        return False
    return wanted


def test_interrupted_hashing_and_packing(case):
    for args in (run(case, "-n", "4"), ["model", "pack", case.target, "-o", "t.lvrpack"]):
        for wanted, expected in ((is_large, "hashing"), (after_hashing(os.path.getsize(case.target)), "packing")):
            shutil.rmtree(case.path("cache"), ignore_errors=True)  # hashes are remembered
            with Gated(case, *args) as gated:
                gated.until(wanted)
                out, err = gated.interrupted(signal.SIGINT)
            check(f"while {expected}" in err and "no pack was written" in err and out == "", f"{args}: {err}\n{out}")
            left = [f for folder, _, files in os.walk(case.folder) for f in files if "lvrpack" in f]
            check(left == [], f"nothing is left: {left}")


def test_interrupted_loading(case):
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    with Gated(case, "run", "-m", "t.lvrpack", *PROMPT, "-n", "4", "--json") as gated:
        gated.until(is_large)
        out, err = gated.interrupted(signal.SIGTERM)
    check("while loading" in err, err)
    d = json.loads(out)
    check(d["stop"] == "interrupted" and d["requests"] == [] and d["n_tokens"] == 0, "a document all the same", out)


def test_the_second_signal_kills(case):
    """The first one, which is handled while a read is under way, waits for it."""
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    for first, second in ((signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
        with Gated(case, "run", "-m", "t.lvrpack", *PROMPT, "-n", "4") as gated:
            gated.until(is_large)
            gated.process.send_signal(first)
            check(gated.notice()[0] == "signal", "the read goes on")
            gated.process.send_signal(second)
            gated.process.communicate(timeout=60)
            check(gated.process.returncode == -second, f"{first} then {second}: {gated.process.returncode}")


def test_waiting_for_input(case):
    process = case.start("run", "-m", case.target, "-n", "4", stdin=subprocess.PIPE)
    wait_for(process, "reading the prompt")
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=60) == 1, process.returncode)
    check("interrupted while waiting for input" in process.stderr.read(), "says so")
    process.stdin.close()
    process.stdout.close()


def test_a_reader_that_goes_away(case):
    process = case.start(*run(case, "-n", "100000", "-c", "200000", *SLOW_FLASH))
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    check(process.wait(timeout=60) == 1, f"{process.returncode}")
    err = process.stderr.read()
    check(err.splitlines()[-1] == "lever: standard output: cannot write the text: Broken pipe", err)


# ---- progress ----

def test_progress_elsewhere_is_lines(case):
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    slow_reads(case, 400)
    args = ["run", "-m", "t.lvrpack", *PROMPT, "-n", "2"]
    r = case.good(*args)
    lines = [line for line in r.err.splitlines() if line.startswith("lever: loading: ")]
    check(0 < len(lines) <= 10, "at most a line every 10 %", r)
    check(all(re.search(r" MB \(\d+ %\), \d+ MB/s, \d+ s left$", line) for line in lines), "amount, rate and rest", r)
    check("\r" not in r.err, "no terminal's line", r)
    check("loading" not in case.good(*args, "--quiet").err, "--quiet")


def test_progress_of_a_prompt(case):
    text = "Once upon a time there was a little dog. " * 8
    flash = ["--emulate-flash", "emulated-100", "--emulate-scale", "0.04", "--resident", "0"]
    args = ["run", "-m", case.target, "-p", text, "-n", "1", "--prefill-chunk", "32", *flash]
    r = case.good(*args)
    lines = [line for line in r.err.splitlines() if line.startswith("lever: prompt: ")]
    check(0 < len(lines) <= 10, "lines", r)
    found = [re.search(r"prompt: (\d+) of (\d+) tokens \(\d+ %\), [\d.]+ tokens/s, \d+ s left$", line) for line in lines]
    check(all(found), "tokens, rate and rest", r)
    total = case.json(*args[:-len(flash)])["n_prompt"] - 1
    done = [int(m.group(1)) for m in found]
    check(all(int(m.group(2)) == total for m in found) and done == sorted(done) and done[-1] <= total, f"{done} of {total}", r)


def read_terminal(master, process):
    out = b""
    while True:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                piece = os.read(master, 4096)
            except OSError:
                return out
            out += piece
        elif process.poll() is not None:
            return out


def test_progress_on_a_terminal_is_one_line(case):
    case.good("model", "pack", case.target, "-o", "t.lvrpack")
    slow_reads(case, 300)
    for more, expected in (([], True), (["-q"], False)):
        master, slave = pty.openpty()
        process = case.start("run", "-m", "t.lvrpack", *PROMPT, "-n", "2", *more, stderr=slave)
        os.close(slave)
        err = read_terminal(master, process).decode()
        out, _ = process.communicate(timeout=60)
        os.close(master)
        check(process.returncode == 0 and out != "", f"{process.returncode}: {err}")
        parts = err.split("\r")
        shown = [p for p in parts if p.startswith("loading: ")]
        check((len(shown) > 1) == expected, f"{more}: {err!r}")
        check(all("\n" not in p for p in shown), f"the line is written over: {err!r}")
        if expected:
            last = len(parts) - 1 - next(i for i, p in enumerate(reversed(parts)) if p.startswith("loading: "))
            check(parts[last + 1].strip(" ") == "" and parts[last + 2].startswith("lever: "), f"and removed: {err!r}")


# ---- models that cannot give a text ----

SHAPE = """schema: lever-shape/1
name: tiny
source: "tests/cli/stopping.py"
tag: own
n_layers: 2
d_model: 64
n_heads: 1
n_kv: 1
head_dim: 64
d_ff: 64
vocab: 4096
tied: false
type: f32
arch: llama
n_ctx: 256
rms_eps: 1e-5
rope_base: 10000
"""


def test_logits_that_are_no_numbers(case):
    """Weights that are finite, but so large that what comes of them is not: nothing is wrong before the first token."""
    case.good("model", "synth", "--shape", case.write("s.yaml", SHAPE), "-o", "sound.gguf")
    data = bytearray(truncated(case.path("sound.gguf"), 1 << 30))
    data[-3 * 16384:] = struct.pack("<f", 1e38) * (3 * 4096)  # the last layer's gate, up and down
    case.write("inf.gguf", bytes(data))
    n_prompt = case.json("run", "-m", "sound.gguf", *PROMPT, "-n", "4")["n_prompt"]
    words = [f"position {n_prompt}:", "finite", "damaged", "lvrpack"]
    for more in ([], ["--json"], ["--resident", "0"], ["-md", "sound.gguf", "--policy", "chain"], ["--temperature", "0.8"]):
        case.bad(1, words, "run", "-m", "inf.gguf", *PROMPT, "-n", "4", *more)
    case.bad(1, words, "record", "--oracle", "-m", "inf.gguf", "-md", "sound.gguf", *PROMPT, "-n", "4", "-o", "t.h5")
    d = case.json("run", "-m", "sound.gguf", "-md", "inf.gguf", "--policy", "chain", *PROMPT, "-n", "4")
    check(d["n_tokens"] == 4, "a draft of that kind only proposes badly", d)


def test_a_tokenizer_that_is_not_known(case):
    data = truncated(case.target, 1 << 30)
    at = data.find(b"tokenizer.ggml.model")
    check(at > 0 and data[at + 32:at + 37] == b"llama", "where the model's name is")
    case.write("other.gguf", data[:at + 32] + b"xlama" + data[at + 37:])
    for args in (["run", "-m", "other.gguf", *PROMPT], ["run", "-m", case.target, "-md", "other.gguf", "--policy", "chain", *PROMPT]):
        r = case.bad(1, ["tokenizer", "xlama", "other.gguf"], *args)
        check("packing other" not in r.err and "other.gguf into" not in r.err, "found before the work", r)
    check(len([f for f in os.listdir(case.path("cache")) if f.endswith(".lvrpack")]) == 1, "only the good one was packed")


if __name__ == "__main__":
    main(globals())
