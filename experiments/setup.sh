#!/usr/bin/env bash
# Installs what lever needs from the distribution's packages. Idempotent: with nothing missing it needs
# neither root nor a network. On a system without apt it says what to install and stops.
#
#   experiments/setup.sh [--extras]     --extras: also what only single experiments use (fio)
set -euo pipefail

packages=(
    gcc clang meson ninja-build pkg-config
    libyaml-dev libgsl-dev libhdf5-dev liburing-dev libpcre2-dev libcriterion-dev
    python3 python3-numpy python3-h5py python3-matplotlib
    clang-format libclang-rt-14-dev
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
)
extras=(fio)

case "${1-}" in
'') ;;
--extras) packages+=("${extras[@]}") ;;
*)
    echo "setup: unknown option $1; usage: experiments/setup.sh [--extras]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: this script knows apt-based distributions only; please install the equivalents of:" >&2
    printf '    %s\n' "${packages[@]}" >&2
    exit 1
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: nothing is missing"
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup: missing packages, and neither root nor sudo to install them. As root, run:" >&2
        echo "    apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
