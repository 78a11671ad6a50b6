# Sourced by run.sh and multi.sh, from the tree's root: builds, finds the device, runs steps that may fail, keeps what
# they say in $out and makes one JSON of it.
# shellcheck shell=bash
set -uo pipefail
device=${DEVICE:-cuda}
build=${DTX_BUILD:-build} # its folder
out=${OUT:-$build/device}
limit=${SECONDS_LIMIT:-540} # all steps together
failures=0 gpus=4 # those of the emulator
steps=()
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export DTX_TEST_DEVICE=$device
. tests/harness/json.sh

mkdir -p "$out"

# make TARGET…: builds what is not there yet.
make_targets() {
    [ -e "$build/build.ninja" ] || cmake --preset release -B "$build" >"$out/build.log" 2>&1 ||
        { tail -n 30 "$out/build.log"; echo "device: the build cannot be configured (launch/packages.sh tests)"; exit 1; }
    cmake --build "$build" --target "$@" >>"$out/build.log" 2>&1 ||
        { tail -n 30 "$out/build.log"; echo "device: the build fails"; exit 1; }
}

# need_gpus N: exit code 77 where there are fewer.
need_gpus() {
    local line count
    [ -x "$build/dtx" ] || return 0 # not yet
    [ "$device" = cuda ] || return 0
    line=$("$build/dtx" doctor --device auto --seconds 0.01 --folder "$out" 2>/dev/null | grep 'backend cuda')
    if ! grep -q 'GPU [0-9]*:' <<<"$line"; then
        echo "no usable GPU: $(sed -E 's/.*not usable: //; s/^ *backend cuda *//' <<<"${line:-dtx doctor says nothing of one}")"
        exit 77
    fi
    if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
        count=$(awk -F, '{ print NF }' <<<"$CUDA_VISIBLE_DEVICES")
    else
        count=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
    fi
    [ "${count:-0}" -gt 0 ] || count=1
    gpus=$count
    [ "$gpus" -ge "$1" ] || { echo "no usable GPU beside this one: multi.sh needs $1"; exit 77; }
}

# step NAME COMMAND…: its output in $out/NAME.log, one line here, a row in the JSON.
step() {
    local name=$1 begin=$SECONDS code left=$((limit - SECONDS))
    shift
    if [ "$left" -le 5 ]; then
        echo "$name: left out, the time is up"
        steps+=("{\"step\":\"$name\",\"state\":\"left out\"}")
        failures=$((failures + 1))
        return 1
    fi
    timeout -k 5 "$left" "$@" >"$out/$name.log" 2>&1 </dev/null
    code=$?
    local state=passed
    [ "$code" = 0 ] || { state=failed; failures=$((failures + 1)); }
    echo "$name: $state, $((SECONDS - begin)) s"
    [ "$code" = 0 ] || tail -n 15 "$out/$name.log" | sed 's/^/    /'
    steps+=("{\"step\":\"$name\",\"state\":\"$state\",\"exit_code\":$code,\"seconds\":$((SECONDS - begin))}")
    return "$code"
}

# losses NAME RANKS OPTION…: a run with these options; its losses in $out/NAME.losses, a line for each step.
losses() {
    local name=$1 ranks=$2 launch=()
    shift 2
    [ "$ranks" = 1 ] || launch=(mpirun -n "$ranks" --oversubscribe)
    rm -rf "${out:?}/$name.run"
    step "$name" "${launch[@]}" "$build/dtx" train --run.dir "$out/$name.run" --data.train "$out/data" \
        --checkpoint.every 0 --eval.every 0 "$@" || return 1
    grep -oE '"loss": *[-0-9.e+]+' "$out/$name.run/metrics.jsonl" | grep -oE '[-0-9.e+]+$' >"$out/$name.losses"
    rm -rf "${out:?}/$name.run"
}

# compare A B BOUND: the largest relative difference of two runs' losses; a row in the JSON. Without losses it fails.
compare() {
    local largest
    largest=$(paste "$out/$1.losses" "$out/$2.losses" 2>/dev/null |
        awk 'NF < 2 { bad = 1 } { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > m || d != d) m = d } END { print bad || !NR ? "inf" : m + 0 }')
    local state=passed
    if ! awk -v m="$largest" -v b="$3" 'BEGIN { exit !(m ~ /^[0-9.e+-]+$/ && m + 0 <= b) }'; then
        state=failed
        failures=$((failures + 1))
    fi
    echo "losses of $1 and $2: $state, apart by at most $largest of $3 allowed"
    steps+=("{\"step\":\"losses of $1 and $2\",\"state\":\"$state\",\"largest\":\"$largest\",\"bound\":$3}")
}

# figure FILE KEY…: a number of a bench's JSON, or nothing.
figure() {
    local got
    got=$(work=$out value "$@")
    ! grep -qE '^-?[0-9][-0-9.e+]*$' <<<"$got" || echo "$got"
}

# goal NAME FIGURE '<='|'>=' BOUND: a speed that is wanted; missing one is said, and is no failure. Without a figure it is
# not compared. A row in the JSON.
goal() {
    local state=missed
    [ "$device" = cuda ] || state="not judged, this is the emulator"
    [ -n "$2" ] || { echo "goal: $1: not compared"; steps+=("{\"step\":\"goal: $1\",\"state\":\"not compared\"}"); return 0; }
    [ "$state" != missed ] || ! awk -v a="$2" -v r="$3" -v b="$4" 'BEGIN { exit !(r == "<=" ? a <= b : a >= b) }' ||
        state=met
    echo "goal: $1: $state, $2, wanted $3 $4"
    steps+=("{\"step\":\"goal: $1\",\"state\":\"$state\",\"figure\":$2,\"wanted\":\"$3 $4\"}")
}

# make_data: token files of the tree's own sources.
make_data() {
    cat data/*.c trainer/*.c kernels/*.c >"$out/text"
    step tokenizer "$build/dtx" tokenizer train --vocab 320 --out "$out/tok.json" "$out/text" &&
        step tokenize "$build/dtx" tokenize --tokenizer "$out/tok.json" --out "$out/data" --split line "$out/text"
}

# write_json FILE: the steps, and under its name each $out/*.json that a bench has written.
write_json() {
    {
        printf '{"device":"%s","commit":"%s","time":"%s","failures":%d,\n"steps":[' "$device" \
            "$(git rev-parse HEAD 2>/dev/null || echo unknown)" "$(date -u +%FT%TZ)" "$failures"
        local i file
        for i in "${!steps[@]}"; do printf '%s\n%s' "$([ "$i" = 0 ] || echo ,)" "${steps[$i]}"; done
        printf '\n]'
        for file in "$out"/bench-*.json; do
            [ -s "$file" ] && printf ',\n"%s":%s' "$(basename "$file" .json)" "$(cat "$file")"
        done
        printf '\n}\n'
    } >"$1"
    echo "device: $failures of ${#steps[@]} steps failed; figures in $1"
}
