#!/usr/bin/env bash
# Runs the commands of README.md: every ```sh block marked `test`, in order, in one temporary folder, with `lever` on
# the PATH and the repository's models/ beside it. Other ```sh blocks may hold only the commands that the test run and
# CI call themselves (listed below).
set -euo pipefail
root=$(cd "${LVR_SOURCE_ROOT:?the repository}" && pwd)
lever=$(realpath "${LEVER:?the program}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/run" "$work/blocks"
ln -s "$lever" "$work/bin/lever"
ln -s "$root/models" "$root/configs" "$root/plots" "$work/run/"
export PATH=$work/bin:$PATH LVR_CACHE_DIR=$work/cache

# blocks/NN: the tested blocks; elsewhere: what other blocks say, a command a line.
awk -v dir="$work/blocks" -v elsewhere="$work/elsewhere" '
    /^```sh test$/ { file = sprintf("%s/%02d", dir, ++n); print "set -euo pipefail" > file; next }
    /^```sh/ { file = elsewhere; next }
    /^```/ { file = ""; next }
    file != "" { print > file }' "$root/README.md"

count=0
for block in "$work"/blocks/*; do
    [ -e "$block" ] || break
    count=$((count + 1))
    echo "== block $count"
    sed 1d "$block"
    (cd "$work/run" && bash "$block") >"$work/out" 2>&1 || {
        echo "README.md: block $count fails:"
        tail -n 20 "$work/out"
        exit 1
    }
done
[ "$count" -gt 0 ] || { echo "README.md: no block is marked \`sh test\`"; exit 1; }

status=0
while read -r line; do
    case "$line" in
    '' | '#'* | experiments/quickstart.sh* | tests/run.sh* | 'meson setup build' | 'ninja -C build' | 'meson install -C build') ;;
    *)
        echo "README.md: not run by any test: $line"
        status=1
        ;;
    esac
done < <(cat "$work/elsewhere" 2>/dev/null)
echo "$count blocks"
exit "$status"
