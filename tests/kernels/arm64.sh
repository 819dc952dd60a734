#!/usr/bin/env bash
# The arm64 levels, proven on another machine: builds the kernels and their tests with a cross compiler and runs
# them under emulated processors that have just NEON, DOTPROD as well, and I8MM as well. Each must reach its
# level and agree with the C reference; an instruction of a higher level would end the program (SIGILL).
# usage: arm64.sh { FLAG | --level NAME FLAGS | SOURCE.c }...   (from meson)
#   FLAG: of every source; --level: the sources that follow belong to this level and have FLAGS besides
# LVR_ARM64_CC: another compiler, e.g. "clang --target=aarch64-linux-gnu". LVR_TEST_SEED: another seed.
set -euo pipefail

read -ra cc <<<"${LVR_ARM64_CC:-aarch64-linux-gnu-gcc}"
objdump=aarch64-linux-gnu-objdump
for tool in "${cc[0]}" "$objdump" qemu-aarch64; do
    command -v "$tool" >/dev/null && continue
    echo "arm64: skipped: no $tool (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"
    exit 77
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# ---- build: every source at once, each of a level into $dir/LEVEL/ ----
flags=(-std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -Wno-ignored-optimization-argument -O3)
level=c level_flags=() jobs=()
mkdir "$dir/c"
while [ $# -gt 0 ]; do
    case $1 in
    --level)
        level=$2
        read -ra level_flags <<<"$3"
        mkdir -p "$dir/$level"
        shift 3
        continue
        ;;
    *.c)
        "${cc[@]}" "${flags[@]}" "${level_flags[@]}" -c "$1" -o "$dir/$level/$(basename "$1" .c).o" &
        jobs+=($!)
        ;;
    *) flags+=("$1") ;;
    esac
    shift
done
for job in "${jobs[@]}"; do
    wait "$job" || { echo "arm64: a source does not compile"; exit 1; }
done
for test in test_levels test_reference; do
    objects=("$dir/c/$test.o")
    for object in "$dir"/*/*.o; do
        [[ $object == */test_*.o ]] || objects+=("$object")
    done
    "${cc[@]}" -static -o "$dir/$test" "${objects[@]}" -lm -lpthread
done

# ---- instructions: only where they belong ----
dot='[[:space:]][su]dot[[:space:]]' i8mm='[[:space:]](usdot|sudot|[su]mmla|usmmla)[[:space:]]'
uses() { # LEVEL PATTERN
    "$objdump" -d --no-show-raw-insn "$dir/$1"/*.o | grep -E "$2" >/dev/null
}
fail=0
for lower in c neon; do
    if uses $lower "$dot|$i8mm"; then
        echo "arm64: FAIL: level $lower has instructions of a higher one"
        fail=1
    fi
done
if ! uses dotprod "$dot" || uses dotprod "$i8mm" || ! uses i8mm "$i8mm"; then
    echo "arm64: FAIL: levels dotprod and i8mm do not use just their own instructions"
    fail=1
fi

# ---- run ----
run() { # PROCESSOR BEST-LEVEL TEST ARGUMENT...
    local output
    echo "arm64: $3 ${*:4} on $1"
    if ! output=$(timeout 240 qemu-aarch64 -cpu "$1" "$dir/$3" "${@:4}" 2>&1); then
        fail=1
    fi
    printf '%s\n' "$output"
    if [[ $output != *"CPU best level $2 ("* ]]; then
        echo "arm64: FAIL: the best level of $1 should be $2"
        fail=1
    fi
}
run cortex-a53 neon test_levels --quick --level neon
run cortex-a76 dotprod test_levels --quick --level dotprod
run max i8mm test_levels --quick --level i8mm
run max i8mm test_reference
exit $fail
