#!/bin/sh
# The floor of the library is never raised: AVX instructions may appear only in the objects of their level.
# usage: check_isa.sh liblvr-kernels.a
set -eu
command -v objdump >/dev/null || { echo "no objdump: skipped"; exit 77; }

listing=$(objdump -d --no-show-raw-insn "$1") || exit 1
printf '%s\n' "$listing" | awk '
    /file format/ { object = $1; sub(":$", "", object); may = object ~ /avx2/ }
    /%[yz]mm|\tv[a-z0-9]+ .*%xmm/ {
        used[object]++
        seen = seen || may
        if (!may) {
            print "AVX in " object ": " $0
            bad = 1
        }
    }
    END {
        for (o in used)
            print o ": " used[o] " AVX instructions"
        if (!seen) {
            print "no AVX at all: is this the right library?"
            exit 1
        }
        exit bad
    }'
