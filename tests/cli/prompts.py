"""Where a prompt may come from: an argument, a file, standard input, a set of them; and what none of them may be."""
import json
import os
import pty
import signal
import subprocess
import threading
import time

from harness import check, main, parse_json

TEXT = "Once upon a time there was a little dog"


def run(case, *more):
    return ["run", "-m", case.target, "-n", "6", *more]


def from_bytes(case, data):
    """For the stdin of a call."""
    return open(case.write("stdin", data), "rb")


def tokens(case, *more, **streams):
    return case.json(*run(case, *more), **streams)["tokens"]


def test_every_source_gives_the_same_text(case):
    wanted = tokens(case, "-p", TEXT)
    case.write("p.txt", TEXT)
    case.write("p.yaml", f'prompts:\n  - text: "{TEXT}"\n')
    case.write("p.jsonl", json.dumps({"text": TEXT, "another": 1}) + "\n")
    for more in (["-f", "p.txt"], ["--file=p.txt"], ["--prompts", "p.yaml"], ["--prompts", "p.jsonl"]):
        check(tokens(case, *more) == wanted, f"{more}")
    for more in ([], ["-f", "-"], ["--file=-"]):
        with from_bytes(case, TEXT) as stdin:
            check(tokens(case, *more, stdin=stdin) == wanted, f"standard input, {more}")
    for name in ("p.yaml", "p.jsonl"):
        with open(case.path(name), "rb") as stdin:
            check(tokens(case, "--prompts", "-", stdin=stdin) == wanted, f"standard input as {name}")


def test_a_slow_pipe(case):
    process = case.start(*run(case, "--json"), stdin=subprocess.PIPE)
    for word in TEXT.split(" "):
        process.stdin.write(word if word == "Once" else " " + word)
        process.stdin.flush()
    out, err = process.communicate(timeout=60)
    check(process.returncode == 0, err)
    check(json.loads(out)["tokens"] == tokens(case, "-p", TEXT), "the same text")
    check("reading the prompt from standard input" in err, "says what it waits for", err)


def test_a_named_pipe_whose_writer_is_late(case):
    wanted = tokens(case, "-p", TEXT)
    for option, data in (("-f", TEXT), ("--prompts", json.dumps({"prompts": [{"text": TEXT}]}))):
        os.mkfifo(case.path("fifo"))

        def write(data=data):
            time.sleep(0.5)
            case.write("fifo", data)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        check(tokens(case, option, "fifo") == wanted, f"{option}")
        writer.join(timeout=10)
        os.unlink(case.path("fifo"))
    os.mkfifo(case.path("fifo"))
    process = case.start(*run(case, "-f", "fifo"))
    time.sleep(0.5)
    check(process.poll() is None, "it waits")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    check(process.returncode == 1 and "interrupted" in err, f"{process.returncode}: {err}")


def test_escapes_of_json(case):
    text = "hi \U0001F600 \\ud83d \"\u00e9\""
    wanted = tokens(case, "-p", text)
    case.write("p.jsonl", json.dumps({"text": text}) + "\n")
    check("\\ud83d\\ude00" in json.dumps({"text": text}), "a pair of surrogates")
    case.write("p.yaml", json.dumps({"prompts": [{"text": text}]}, indent=1))
    for name in ("p.jsonl", "p.yaml"):
        check(tokens(case, "--prompts", name) == wanted, name)
        with open(case.path(name), "rb") as stdin:
            check(tokens(case, "--prompts", "-", stdin=stdin) == wanted, f"{name} as standard input")
    first = json.dumps({"text": TEXT}) + "\n"
    for half in ("\\ud83d", "\\ude00", "\\ud83dx", "\\ud83d\\u0041", "\\ud83d\\n"):
        case.write("half.jsonl", first + '{"text": "hi ' + half + '"}\n')
        r = case.bad(2, ["half.jsonl:2:14: ", "JSONL", half[:6], "surrogate"], *run(case, "--prompts", "half.jsonl"))
        check(r.err.count("half.jsonl") == 1, "the place once", r)
        with open(case.path("half.jsonl"), "rb") as stdin:
            case.bad(2, ["standard input:2:14: ", "surrogate"], *run(case, "--prompts", "-"), stdin=stdin)


def test_prompts_that_are_none(case):
    for value in ("5", "true", "null", "1e3", "[1]", "{}"):
        case.write("p.jsonl", f'{{"text": {value}}}\n')
        case.bad(2, ["p.jsonl:1:", "text", "string"], *run(case, "--prompts", "p.jsonl"))
        case.write("p.yaml", f"prompts:\n  - text: {value}\n")
        case.bad(2, ["p.yaml:2:", "text", "string"], *run(case, "--prompts", "p.yaml"))
    case.write("p.yaml", "prompts:\n  - text: '5'\n")
    case.good(*run(case, "--prompts", "p.yaml"))
    case.write("p.jsonl", '{"text": "a", "split": "train"}\n')
    case.bad(2, ["p.jsonl:1:", "split", "held-out", "train"], *run(case, "--prompts", "p.jsonl"))
    case.write("p.jsonl", '{"text": "a", "domian": "x"}\n{"text": "b", "domian": "x", "more": 1}\n')
    r = case.good(*run(case, "--prompts", "p.jsonl"))
    check(r.err.count("domian") == 1 and "did you mean `domain`" in r.err, "told once", r)


def test_sets_from_standard_input(case):
    lines = [{"id": 7, "domain": "a", "split": "tune", "text": "Once"}, {"id": 9, "domain": "b", "split": "held-out", "text": "There"}]
    as_lines = "\n".join(json.dumps(d) for d in lines) + "\n\n"
    as_document = json.dumps({"prompts": lines})
    for data in (as_lines, as_document, json.dumps(lines, indent=2)):
        with from_bytes(case, data) as stdin:
            d = case.json(*run(case, "--prompts", "-"), stdin=stdin)
        check([r["id"] for r in d["requests"]] == [7, 9], "both", d["requests"])
        with from_bytes(case, data) as stdin:
            d = case.json(*run(case, "--prompts", "-", "--split", "held-out"), stdin=stdin)
        check([r["id"] for r in d["requests"]] == [9], "the chosen one", d["requests"])
    for data, words in ((as_lines + "{\"text\": 5\n", ["standard input:4:", "JSONL"]), ("{}\n", ["prompts"]), ("prompts: []\n", ["none"]),
                        (b"a\0b", ["NUL"]), (b"\xff", ["0xff", "UTF-8"]), (b"", ["empty"])):
        with from_bytes(case, data) as stdin:
            case.bad(2, ["standard input", *words], *run(case, "--prompts", "-"), stdin=stdin)


def test_line_ends_stay(case):
    text = "User: Hello.\r\nAssistant:\r\n"
    case.write("crlf.txt", text)
    with from_bytes(case, text) as stdin:
        counts = [case.json(*run(case, "-f", "crlf.txt"))["n_prompt"], case.json(*run(case, "-p", text))["n_prompt"],
                  case.json(*run(case), stdin=stdin)["n_prompt"],
                  case.json(*run(case, "-e", "-p", text.replace("\r", "\\r").replace("\n", "\\n")))["n_prompt"]]
    ids = case.json("model", "tokenize", "-m", case.target, "--bos", "-p", text)
    check(counts == [ids["n_tokens"]] * 4, f"{counts}, of {ids['n_tokens']} tokens")
    stripped = case.json("model", "tokenize", "-m", case.target, "--bos", "-p", text.replace("\r", ""))
    check(stripped["n_tokens"] < ids["n_tokens"], "a carriage return is a token of its own here")


def test_escapes(case):
    plain = tokens(case, "-p", "a \"b\"\t\\n'\u00e9")
    check(tokens(case, "-e", "-p", "a \\\"b\\\"\\t\\\\n\\'\\xc3\\xa9") == plain, "C escapes")
    case.bad(2, ["--prompt", "\\q", "--escape"], *run(case, "-e", "-p", "a\\q"))
    case.bad(2, ["--prompt", "\\x", "--escape"], *run(case, "-e", "-p", "a\\xg1"))
    case.bad(2, ["--prompt", "no escape"], *run(case, "-e", "-p", "a\\"))
    case.bad(2, ["--prompt:1:2", "0xff"], *run(case, "-e", "-p", "a\\xff"))
    case.bad(2, ["--prompt:1:2", "NUL"], *run(case, "-e", "-p", "a\\x00"))


def test_texts_that_are_none(case):
    for data, words in ((b"one\ntwo\0three", ["2:4", "NUL"]), (b"one\ntw\xe9 three", ["2:3", "0xe9", "UTF-8"]), (b"", ["empty"])):
        case.write("bad.txt", data)
        case.bad(2, ["bad.txt", *words], *run(case, "-f", "bad.txt"))
        with from_bytes(case, data) as stdin:
            case.bad(2, ["standard input", *words], *run(case, "-f", "-"), stdin=stdin)
    with open(case.path("large.txt"), "wb") as f:
        f.truncate(16 * 1024 * 1024 + 1)
    case.bad(1, ["large.txt", "16777216"], *run(case, "-f", "large.txt"))
    with open(case.path("large.txt"), "rb") as stdin:
        case.bad(1, ["standard input", "16777216"], *run(case), stdin=stdin)
    case.bad(1, ["nothere.txt", "no such file"], *run(case, "-f", "nothere.txt"))
    case.bad(1, ["directory"], *run(case, "-f", case.folder))
    check(case.json(*run(case, "-p", ""))["n_prompt"] == 1, "an empty argument is nothing but the start token")


def test_one_source_only(case):
    case.write("p.txt", TEXT)
    case.bad(2, ["--prompt", "--file", "both"], *run(case, "-p", "x", "-f", "p.txt"))
    case.bad(2, ["--file", "--prompts", "both"], *run(case, "-f", "p.txt", "--prompts", "p.yaml"))
    case.bad(2, ["--prompt", "--prompts", "both"], *run(case, "-p", "x", "--prompts", "p.yaml"))
    case.bad(2, ["--split", "--prompts"], *run(case, "-p", "x", "--split", "tune"))
    case.bad(2, ["prompt", "standard input is empty"], *run(case))


def test_a_terminal_is_not_waited_for(case):
    master, slave = pty.openpty()
    try:
        case.bad(2, ["no prompt", "--prompt", "--file", "standard input"], *run(case), stdin=slave)
    finally:
        os.close(master)
        os.close(slave)


def test_closed_standard_input(case):
    done = subprocess.run(f'exec "{case.program}" run -m "{case.target}" <&-', shell=True, capture_output=True, text=True, env=case.env,
                          timeout=60, check=False)
    check(done.returncode == 1 and "standard input" in done.stderr, f"{done.returncode}: {done.stderr}")


def test_record_takes_them_too(case):
    with from_bytes(case, TEXT) as stdin:
        case.good("record", "-m", case.target, "-n", "6", "-o", "t.h5", "--keep-text", stdin=stdin)
    with open(case.path("t.h5.text.jsonl")) as f:
        check(json.loads(f.readline())["prompt"] == TEXT, "the prompt")


def test_quiet(case):
    r = case.good(*run(case, "-q", "-p", TEXT, "--json"))
    check(r.err == "" and parse_json(r)["n_tokens"] == 6, "nothing but the result", r)
    r = case.good(*run(case, "-p", TEXT))
    check("tokens/s" in r.err, "figures are there without", r)


if __name__ == "__main__":
    main(globals())
