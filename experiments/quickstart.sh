#!/usr/bin/env bash
# The closed loop on the embedded pair, from a bare clone: install, build, record, fit, tune, run, simulate, compare.
#
#   experiments/quickstart.sh [--out DIR] [--build DIR] [--prompts N] [--tokens N] [--repeats N] [--trials N]
#                             [--temperature T] [--no-setup]
#
#   --out DIR      where results go (default quickstart-out; replaced)
#   --build DIR    build folder, configured if it is not there yet (default build)
#   --prompts N    prompts per domain and split, 1 to 8 (default 4)
#   --tokens N     tokens per prompt (default 32)
#   --repeats N    measured runs of each policy, interleaved (default 3)
#   --trials N     points each policy's search may try (default 24)
#   --temperature T  sample at this temperature, with a fixed seed (default 0: greedy)
#   --no-setup     do not look for missing packages
#
# Takes under five minutes on two cores, packages included. One thread computes; the other core is left to the reads.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '4,14s/^# \{0,1\}//p' "$0"
}
out=quickstart-out build=build n_prompts=4 n_tokens=32 n_repeats=3 n_trials=24 temperature=0 setup=1
while [ $# -gt 0 ]; do
    case "$1" in
    --out | --build | --prompts | --tokens | --repeats | --trials | --temperature)
        [ $# -ge 2 ] || { echo "quickstart: $1 needs a value (see --help)" >&2; exit 2; }
        case "$1" in
        --out) out=$2 ;;
        --build) build=$2 ;;
        --temperature) temperature=$2 ;; # checked by the program
        *)
            case "$2" in '' | *[!0-9]* | 0*) echo "quickstart: $1: expected a whole number from 1 up, found '$2'" >&2; exit 2 ;; esac
            case "$1" in
            --prompts) n_prompts=$2 ;;
            --tokens) n_tokens=$2 ;;
            --repeats) n_repeats=$2 ;;
            --trials) n_trials=$2 ;;
            esac
            ;;
        esac
        shift
        ;;
    --no-setup) setup=0 ;;
    --help | -h) usage; exit 0 ;;
    *) echo "quickstart: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done

stage_name='' stage_start=0
stage() { # stage NAME WHAT: what comes next, and how long the one before took
    [ -z "$stage_name" ] || echo "   ($((SECONDS - stage_start)) s)"
    stage_name=$1 stage_start=$SECONDS
    echo
    echo "== $1: $2"
}
say() {
    echo "   $*"
}
run_quietly() { # run_quietly LOG COMMAND...: the log is shown only if the command fails
    local log=$1
    shift
    "$@" >"$log" 2>&1 && return 0
    echo "quickstart: this failed: $*" >&2
    tail -n 20 "$log" >&2
    exit 1
}
quiet() { # quiet COMMAND...: notices go to log.txt, the command to commands.txt, results to standard output
    local attempt=0
    printf '%q ' "$@" >>"$out/commands.txt"
    echo >>"$out/commands.txt"
    while ! "$@" 2>"$out/last.txt"; do
        cat "$out/last.txt" >>"$out/log.txt"
        # The disk may be busy with something else for a moment: the program refuses to emulate on it then.
        if grep -q 'can be emulated honestly' "$out/last.txt" && [ "$attempt" -lt 5 ]; then
            attempt=$((attempt + 1))
            sleep 2
            continue
        fi
        echo "quickstart: this failed: $*" >&2
        tail -n 5 "$out/last.txt" >&2
        exit 1
    done
    cat "$out/last.txt" >>"$out/log.txt"
}

if [ -n "$(ls -A "$out" 2>/dev/null)" ] && [ ! -f "$out/.quickstart" ]; then
    echo "quickstart: $out is not empty and not a quickstart's; choose another folder with --out" >&2
    exit 2
fi
rm -rf "$out"
mkdir -p "$out"
touch "$out/.quickstart"

if [ "$setup" -eq 1 ]; then
    stage setup "packages of the distribution"
    run_quietly "$out/setup.log" experiments/setup.sh
    say "$(grep '^setup:' "$out/setup.log" | tail -n 1 | cut -c 1-100)"
fi

stage build "release build in $build"
if [ ! -f "$build/build.ninja" ]; then
    run_quietly "$out/build.log" meson setup "$build" -Dtests=disabled
fi
run_quietly "$out/build.log" ninja -C "$build" cli/lever
lever=$build/cli/lever
say "$("$lever" --version | head -n 1)"

stage doctor "what this machine has"
quiet "$lever" doctor --file models/lever-target-10m-q8_0.gguf | sed 's/^/   /'

stage pack "GGUF to the layer-major, checksummed layout that is streamed"
for model in target-10m draft-1m; do
    quiet "$lever" model pack "models/lever-$model-q8_0.gguf" -o "$out/$model.lvrpack" | sed "s|$out/||; s/^/   /"
done
quiet "$lever" model info "$out/target-10m.lvrpack" --json >"$out/target.json"

# The first N prompts of each domain and split.
awk -v n="$n_prompts" 'BEGIN { RS = "  - id:" } NR == 1 { print "prompts:"; next }
    { match($0, /domain: [a-z-]+/); key = substr($0, RSTART, RLENGTH); match($0, /split: [a-z-]+/)
      if (++count[key substr($0, RSTART, RLENGTH)] <= n) printf "  - id:%s", $0 }' models/prompts/prompts.yaml >"$out/prompts.yaml"

stage flash "which slower flash makes I/O 0.86 of a serial pass here"
common=(--target "$out/target-10m.lvrpack" --prompts "$out/prompts.yaml" --tokens "$n_tokens" --ignore-eos
    --temperature "$temperature" --seed 11)
draft=(--draft "$out/draft-1m.lvrpack")
for i in 1 2 3; do
    quiet "$lever" bench flash "$out/target-10m.lvrpack" --bytes 256KiB --depth 4 --seconds 0.4 --json >"$out/bench-flash-$i.json"
done
preset='' scale='' streamed='' resident=''
choose() { # choose STEP RUN OPTIONS...: sets preset, scale, resident, streamed and `place`, the options that say so
    python3 experiments/choose_flash.py "$1" --run "$2" --flash "$out"/bench-flash-?.json --model "$out/target.json" "${@:3}" \
        >"$out/flash.sh" 2>"$out/flash.txt"
    sed 's/^/   /' "$out/flash.txt"
    # shellcheck disable=SC1091
    . "$out/flash.sh"
    place=(--threads 1 --slice 256KiB --resident "$resident" --emulate-flash "$preset" --emulate-scale "$scale")
}
quiet "$lever" run "${common[@]}" --split tune --policy ar --threads 1 --resident 1 --json >"$out/choose-1.json"
choose first "$out/choose-1.json"
quiet "$lever" run "${common[@]}" "${place[@]}" --split tune --policy ar --io serial --json >"$out/choose-2.json"
choose again "$out/choose-2.json" --preset "$preset" --scale "$scale" --streamed "$streamed"
say "emulating $preset at scale $scale; ${streamed:?} of 12 layers streamed, the others resident"

stage record "timings on the tune prompts: random trees (every row count), chain, and plain decoding"
quiet "$lever" record "${common[@]}" "${draft[@]}" "${place[@]}" --policy random --set prune=0.1 --split tune -o "$out/random.h5"
quiet "$lever" record "${common[@]}" "${draft[@]}" "${place[@]}" --policy chain --split tune -o "$out/chain.h5"
quiet "$lever" record "${common[@]}" "${place[@]}" --policy ar --split tune -o "$out/ar.h5"
for t in random chain ar; do quiet "$lever" trace validate "$out/$t.h5" | sed "s|$out/||; s/^/   /"; done

stage oracle "what any policy could meet: tune prompts, and held-out prompts for judging"
for split in tune held-out; do
    quiet "$lever" record --oracle "${common[@]}" "${draft[@]}" --split "$split" -o "$out/oracle-$split.h5"
    quiet "$lever" trace validate "$out/oracle-$split.h5" | sed "s|$out/||; s/^/   /"
done

stage fit "traces to a cost model (relative residuals of each term)"
quiet "$lever" fit "$out/random.h5" "$out/chain.h5" "$out/ar.h5" "$out/oracle-tune.h5" -o "$out/cost.yaml" | sed 's/^/   /'

stage tune "chain and lever with $n_trials trials each, by simulation on the tune prompts"
for policy in chain lever; do
    quiet "$lever" tune --policy "$policy" --oracle "$out/oracle-tune.h5" --held-out "$out/oracle-held-out.h5" --cost "$out/cost.yaml" \
        --trials "$n_trials" -o "$out/$policy.yaml" --json >"$out/tune-$policy.json"
done
python3 experiments/quickstart_table.py tuned "$out" | sed 's/^/   /'

stage run "held-out prompts, four ways, $n_repeats times in turn"
run_policy() { # run_policy NAME REPEAT OPTIONS...
    local name=$1 repeat=$2
    shift 2
    quiet "$lever" run "${common[@]}" --split held-out "$@" --json >"$out/run-$name-$repeat.json"
}
for ((i = 1; i <= n_repeats; i++)); do
    run_policy ar-serial "$i" "${place[@]}" --policy ar --io serial
    run_policy ar-pipelined "$i" "${place[@]}" --policy ar --io pipelined
    run_policy chain "$i" "${draft[@]}" --policy "$out/chain.yaml"
    run_policy lever "$i" "${draft[@]}" --policy "$out/lever.yaml"
done
say "$n_repeats x 4 runs"

stage sim "the same four, simulated from the cost model and the held-out oracle trace"
sim() { # sim NAME OPTIONS...
    local name=$1
    shift
    quiet "$lever" sim --oracle "$out/oracle-held-out.h5" --cost "$out/cost.yaml" "$@" --json >"$out/sim-$name.json"
}
sim ar-serial --policy ar --io serial
sim ar-pipelined --policy ar --io pipelined
sim chain --policy "$out/chain.yaml"
sim lever --policy "$out/lever.yaml"

stage correlate "one more run of lever, recorded, against its simulated twin, stage by stage"
quiet "$lever" record "${common[@]}" "${draft[@]}" --split held-out --policy "$out/lever.yaml" -o "$out/lever-held-out.h5"
quiet "$lever" correlate --measured "$out/lever-held-out.h5" --oracle "$out/oracle-held-out.h5" --cost "$out/cost.yaml" | sed 's/^/   /'

stage table "measured beside simulated"
python3 experiments/quickstart_table.py table "$out"

# The figures need matplotlib, which setup installs for the distribution's own interpreter.
for python in python3 /usr/bin/python3; do
    "$python" -c 'import matplotlib' 2>/dev/null || continue
    stage figures "the same as bars, and what tune has tried"
    quiet "$python" plots/measured_simulated.py "$out/table.csv" -o "$out/measured-simulated" | sed 's/^/   /'
    quiet "$python" plots/tune_surface.py "$out/tune-chain.json" "$out/tune-lever.json" -o "$out/tune-surface" | sed 's/^/   /'
    break
done
echo "   ($((SECONDS - stage_start)) s)"
echo
echo "Everything is in $out/; it took $SECONDS s."
