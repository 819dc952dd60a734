#!/usr/bin/env bash
# The include arrows of CONTRIBUTING.md, by grep. Prints every include that breaks them; exit 1 if there is one.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0

# allow FOLDER PATTERN: quoted includes of the project's headers in FOLDER must match PATTERN.
allow() {
    local hits
    hits=$(grep -rnE '#include "(common|costmodel|traces|engine|sim|cli)/' "$1" --include='*.[ch]' | grep -vE "#include \"($2)/")
    if [ -n "$hits" ]; then
        echo "includes that $1 may not have (allowed: $2):"
        echo "$hits"
        bad=1
    fi
}

allow common 'common'
allow costmodel/core 'common|costmodel/core'
allow traces 'common|costmodel/core|traces'
allow costmodel/fit 'common|costmodel/core|costmodel/fit|traces'
allow engine 'common|costmodel/core|engine|traces'
allow sim 'common|costmodel/core|costmodel/fit|sim|traces'

hits=$(grep -rnE '#include "traces/' engine --include='*.[ch]' | grep -vE '^engine/(decode|session|record|oracle)[a-z_]*\.[ch]:')
[ -z "$hits" ] || { echo "only the engine's recording files may include traces/:"; echo "$hits"; bad=1; }
hits=$(grep -rnE '#include <(gsl|hdf5)' common costmodel/core engine cli --include='*.[ch]')
[ -z "$hits" ] || { echo "GSL belongs to costmodel/fit and sim, HDF5 to traces:"; echo "$hits"; bad=1; }
hits=$(grep -rlE '\b(exit|abort)\(' common costmodel traces engine sim --include='*.[ch]')
[ -z "$hits" ] || { echo "library code must not exit or abort:"; echo "$hits"; bad=1; }
exit $bad
