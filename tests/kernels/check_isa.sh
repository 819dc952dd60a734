#!/bin/sh
# The floor of the library is never raised: instructions of a level may appear only in the objects of that
# level and above. And each level has the instructions it is there for.
# usage: check_isa.sh liblvr-kernels.a
set -eu
command -v objdump >/dev/null || { echo "no objdump: skipped"; exit 77; }

listing=$(objdump -d --no-show-raw-insn "$1") || exit 1
printf '%s\n' "$listing" | awk '
    function refuse(what) {
        if (++bad <= 20)
            print what " in " object ": " $0
    }
    /file format/ {
        object = $1
        sub(":$", "", object)
        sub(".*/", "", object)
        level = object ~ /amx/ ? 3 : object ~ /avx512/ ? 2 : object ~ /avx2/ ? 1 : 0
        next
    }
    /%[yz]mm|\tv[a-z0-9]+ .*%xmm/ {
        used[object]++
        if (level < 1)
            refuse("AVX")
    }
    /%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]|\tvpdp/ {
        if (level < 2)
            refuse("AVX-512")
    }
    /%tmm|\t(ld|st)tilecfg|\ttilerelease/ {
        if (level < 3)
            refuse("AMX")
    }
    level == 1 && /\tvpmaddwd .*%ymm/ { has["avx2"] = 1 }
    level == 2 && /\tvpdpbusd .*%zmm/ { has["avx512"] = 1 }
    level == 2 && /\tvfmadd.*%zmm/ { has["avx512 fma"] = 1 }
    level == 3 && /\ttdpbssd / { has["amx product"] = 1 }
    level == 3 && /\tldtilecfg / { has["amx configuration"] = 1 }
    level == 3 && /\ttilerelease/ { has["amx release"] = 1 }
    END {
        for (o in used)
            print o ": " used[o] " AVX instructions"
        n = split("avx2,avx512,avx512 fma,amx product,amx configuration,amx release", wanted, ",")
        for (i = 1; i <= n; i++)
            if (!(wanted[i] in has)) {
                print "not found: " wanted[i] ". Is this the right library?"
                bad++
            }
        exit bad != 0
    }'
