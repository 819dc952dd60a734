#!/usr/bin/env bash
# Builds every libFuzzer target in DIR and runs each for SECONDS from a fixed seed.
#
#   tests/fuzz/run.sh DIR SECONDS
#
# Exit status: 0 nothing found, 1 a finding or a failed build, 2 wrong usage, 77 skipped (no clang or no libFuzzer).
# Findings are kept in DIR/findings; `DIR/tests/fuzz/fuzz_NAME FILE` reproduces one.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
    sed -n '4s/^# *//p' "$0" >&2
    exit 2
}
[ $# -eq 2 ] || usage
dir=$1 seconds=$2
case "$seconds" in '' | *[!0-9]*) usage ;; esac

skip() {
    echo "fuzz: skipped: $1"
    exit 77
}
command -v clang >/dev/null 2>&1 || skip "clang is not installed"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' >"$probe/probe.c"
clang -fsanitize=fuzzer,address,undefined -o "$probe/probe" "$probe/probe.c" 2>/dev/null ||
    skip "clang has no libFuzzer run time here (Debian: libclang-rt-14-dev)"

if [ ! -f "$dir/build.ninja" ]; then
    CC=clang meson setup "$dir" --buildtype=debugoptimized -Dfuzz=true -Dtests=disabled -Db_lundef=false >"$probe/setup.log" 2>&1 ||
        { tail -n 20 "$probe/setup.log"; exit 1; }
fi
ninja -C "$dir" -j2 --quiet fuzz-targets

# Seeds: the committed ones, and what the repository has of that kind anyway (its head, for large files).
seeds_for() { # seeds_for TARGET FOLDER
    local f
    mkdir -p "$2"
    [ ! -d "tests/fuzz/corpus/$1" ] || cp tests/fuzz/corpus/"$1"/* "$2/"
    case "$1" in
    fuzz_yaml)
        for f in configs/devices/*.yaml models/prompts/*.yaml; do head -c 8192 "$f" >"$2/$(basename "$f")"; done
        ;;
    fuzz_gguf)
        for f in models/*.gguf; do head -c 4096 "$f" >"$2/$(basename "$f")"; done
        ;;
    esac
}

mkdir -p "$dir/findings"
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
found=0 ran=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    program=$dir/tests/fuzz/$name
    if [ ! -x "$program" ]; then
        echo "fuzz: $name was not built: add a row to tests/fuzz/meson.build"
        found=1
        continue
    fi
    corpus=$probe/$name
    seeds_for "$name" "$corpus"
    ran=$((ran + 1))
    log=$dir/$name.log
    if TMPDIR=$probe "$program" -seed=1 -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="$dir/findings/$name-" "$corpus" >"$log" 2>&1; then
        echo "fuzz: $name: nothing found in $seconds s ($(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log") runs)"
    else
        echo "fuzz: $name: FOUND something; the end of $log:"
        tail -n 40 "$log"
        found=1
    fi
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target was run"; exit 1; }
exit "$found"
