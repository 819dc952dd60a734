#!/usr/bin/env bash
# Sets up, builds and runs every test. Ends with one line: `N passed, N failed, N skipped`.
#
#   tests/run.sh            everything (setup, both compilers, sanitizers, style, a short fuzz, a small quickstart)
#   tests/run.sh --quick    one release build with gcc and its tests
#   tests/run.sh --slow     everything, then the slow suites
#   tests/run.sh --help     this text
#
# Builds stay in build-tests/ (LVR_BUILD_DIR names another folder), so that a second run is incremental.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=0 slow=0
for arg in "$@"; do
    case "$arg" in
    --quick) quick=1 ;;
    --slow) slow=1 ;;
    --help | -h)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "tests/run.sh: unknown option $arg (see --help)" >&2
        exit 2
        ;;
    esac
done

passed=0 failed=0 skipped=0
builds=${LVR_BUILD_DIR:-build-tests}
report() { # report NAME STATUS
    case "$2" in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        echo "FAILED: $1"
        ;;
    esac
}
stage() { # stage NAME COMMAND...; status 77 means skipped, as meson has it
    local name=$1 t0=$SECONDS status
    shift
    echo "== $name"
    "$@"
    status=$?
    report "$name" "$status"
    echo "== $name: $((SECONDS - t0)) s"
    return "$status"
}
finish() {
    echo "== all: $SECONDS s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

configure() { # configure DIR COMPILER LOG MESON_OPTIONS...
    local dir=$1 compiler=$2 log=$3
    shift 3
    [ -f "$dir/build.ninja" ] && return 0
    CC=$compiler meson setup "$dir" -Dwerror=true "$@" >"$log" 2>&1 && return 0
    tail -n 20 "$log"
    return 1
}
# Builds in a folder of its own and runs meson's tests, adding up their counts.
targets=() # what to build; nothing: all
build_and_test() { # build_and_test NAME COMPILER SUITES MESON_OPTIONS...
    local name=$1 compiler=$2 suites=$3 dir=$builds/$1 args=() s t0
    shift 3
    stage "configure $name" configure "$dir" "$compiler" "$builds/$name-setup.log" "$@" || return 1
    stage "build $name" ninja -C "$dir" -j2 --quiet "${targets[@]}" || return 1
    for s in $suites; do # -S: without suite S
        case "$s" in -*) args+=(--no-suite "${s#-}") ;; *) args+=(--suite "$s") ;; esac
    done
    t0=$SECONDS
    echo "== test $name"
    meson test -C "$dir" --no-rebuild --print-errorlogs --num-processes 2 --timeout-multiplier 3 "${args[@]}" | tee "$builds/$name-test.log"
    count_results "$builds/$name-test.log"
    echo "== test $name: $((SECONDS - t0)) s"
}
count_results() { # count_results LOG: meson's own summary
    local ok bad skip
    ok=$(awk '/^Ok:/{print $2}' "$1")
    bad=$(awk '/^(Fail|Timeout|Unexpected Pass):/{n += $NF} END {print n + 0}' "$1")
    skip=$(awk '/^Skipped:/{print $2}' "$1")
    [ -n "$ok" ] || { ok=0; bad=$((bad + 1)); }
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + ${skip:-0}))
}

tracked() { # tracked PATTERN...: files of the repository, or of the folder where that is no repository
    git ls-files -z --cached --others --exclude-standard -- "$@"
}
check_format() {
    tracked '*.c' '*.h' | xargs -0 clang-format --dry-run --Werror
}
check_scripts() {
    local status=0 f
    while read -r -d '' f; do bash -n "$f" || status=1; done < <(tracked '*.sh' .ci/run)
    if command -v shellcheck >/dev/null 2>&1; then
        tracked '*.sh' .ci/run | xargs -0 shellcheck -S warning || status=1
    else
        echo "(shellcheck is not installed: syntax only)"
    fi
    tracked '*.py' | PYTHONDONTWRITEBYTECODE=1 xargs -0 python3 -c '
import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        ast.parse(f.read(), path)' || status=1
    return "$status"
}
small_quickstart() {
    experiments/quickstart.sh --no-setup --build "$builds/gcc" --out "$builds/quickstart-out" --prompts 1 --tokens 16 --repeats 1
}

stage "setup" experiments/setup.sh || finish
mkdir -p "$builds"
all="unit invariant kernels oracle threads cli"
# Sanitizers: abort at the first finding, and look for leaks.
# One Criterion job a program: meson runs two programs at once, and Criterion's own parallel runner leaks 48 bytes.
export CRITERION_JOBS=1
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

build_and_test gcc gcc "$all" --buildtype=release
if [ "$quick" -eq 0 ]; then
    stage "include arrows" tests/check_includes.sh
    stage "formatting" check_format
    stage "scripts" check_scripts
    stage "checksums" bash -c '(cd models && sha256sum --quiet -c SHA256SUMS) && (cd models/traces && sha256sum --quiet -c SHA256SUMS)'
    stage "quickstart (small)" small_quickstart
    build_and_test clang clang "unit invariant kernels -schedule" --buildtype=release
    build_and_test asan gcc "unit invariant kernels threads cli" --buildtype=debug -Doptimization=2 -Db_sanitize=address,undefined
    targets=(thread-tests)
    build_and_test tsan gcc "threads" --buildtype=debugoptimized -Db_sanitize=thread
    stage "fuzz (short)" tests/fuzz/run.sh "$builds/fuzz" 10
fi
if [ "$slow" -eq 1 ]; then
    meson test -C "$builds/gcc" --no-rebuild --print-errorlogs --suite slow --timeout-multiplier 10 | tee "$builds/slow-test.log"
    count_results "$builds/slow-test.log"
fi
finish
