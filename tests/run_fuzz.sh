#!/usr/bin/env bash
# Random meshes against one rank (tests/fuzz). A case that differs, crashes or hangs is made as small as it gets, and
# the command that repeats it is printed. Needs a build; `tests/run.sh fuzz` makes one.
#   --seconds N  stop after so long (300)          --cases N  … or after so many cases
#   --seed S     which cases (1)                   --case "tp=2 schedule=zb_h1"  this one alone; may be given often
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
program=${DTX_BUILD:-build}/tests/mesh_fuzz
seconds=300
arguments=()
while [ $# -gt 1 ]; do
    case $1 in
    --seconds) seconds=$2 ;;
    --cases | --seed | --case) arguments+=("$1" "$2") ;;
    *) break ;;
    esac
    shift 2
done
[ $# -eq 0 ] || { sed -n '2,6s/^# //p' "$0"; exit 78; }
one_hang=${DTX_FUZZ_HANG:-60} # seconds after which cases tried alone count as hanging

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0} # MPI leaks
export OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export DTX_SYNCHRONOUS_SENDS=${DTX_SYNCHRONOUS_SENDS:-true} # deadlocks that buffers would hide
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fuzz() { # seconds, arguments: output without the cases' own lines; all of it in $work/log
    local limit=$1
    shift
    timeout -k 5 "$limit" mpirun -q -n 8 "$program" "$@" </dev/null 2>&1 | tee "$work/log" | grep --line-buffered -vE '^(case: |round$)'
    [ "${PIPESTATUS[0]}" -eq 0 ]
}
failed_case() { sed -n 's/^FAILED case: //p' "$work/log" | head -n 1; }
last_case() { sed -n 's/^case: //p' "$work/log" | tail -n 1; }

fuzz $((seconds + 2 * one_hang)) --seconds "$seconds" "${arguments[@]}" && exit 0

grep -q '^case: ' "$work/log" || exit 1 # not even begun
if grep -q '^FAILED case: ' "$work/log"; then
    current=$(failed_case)
else # a crash or a hang: which of those that ran side by side?
    mapfile -t round < <(awk '/^round$/ { n = 0 } sub(/^case: /, "") { c[n++] = $0 } END { for (i = 0; i < n; i++) print c[i] }' "$work/log")
    list=()
    for text in "${round[@]}"; do list+=(--case "$text"); done
    echo "a crash or a hang; trying the last ${#round[@]} cases one by one"
    if fuzz $((one_hang * ${#round[@]})) "${list[@]}" >"$work/again"; then
        echo "FAILED, but none of these fails alone; side by side they were:"
        printf '  "%s"\n' "${round[@]}"
        exit 1
    fi
    current=$(last_case)
fi

echo "making it smaller"
latest=$((seconds + 200)) # of SECONDS; ranks.mesh_fuzz has 300
cp "$work/log" "$work/first"
until fuzz "$one_hang" --smaller "$current" >"$work/again"; do
    [ -n "$(last_case)" ] || break
    current=$(last_case)
    cp "$work/log" "$work/first"
    echo "  $current"
    [ "$SECONDS" -lt "$latest" ] || { echo "no more time to make it smaller"; break; }
done
grep -vE '^(case: .*|round)$' "$work/first" | tail -n 20
echo "smallest failing case; this command repeats it:"
echo "  tests/run.sh fuzz --case \"$current\""
exit 1
