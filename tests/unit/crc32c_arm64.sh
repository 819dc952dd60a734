#!/usr/bin/env bash
# CRC-32C on arm64, under emulated processors with and without the instructions.
# usage: crc32c_arm64.sh SOURCE-ROOT
# LVR_ARM64_CC: another compiler, e.g. "clang --target=aarch64-linux-gnu".
set -euo pipefail

root=$1
read -ra cc <<<"${LVR_ARM64_CC:-aarch64-linux-gnu-gcc}"
for tool in "${cc[0]}" qemu-aarch64; do
    command -v "$tool" >/dev/null && continue
    echo "skipped: no $tool (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"
    exit 77
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"${cc[@]}" -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -static -I"$root" -o "$dir/crc32c" \
    "$root/tests/unit/crc32c_paths.c"
output=$(qemu-aarch64 -cpu cortex-a53 "$dir/crc32c") || { echo "$output"; exit 1; }
echo "$output"
[[ $output == *"instructions: used"* ]] || { echo "FAIL: a Cortex-A53 has the instructions"; exit 1; }
