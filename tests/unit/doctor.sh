#!/usr/bin/env bash
# test: label=unit timeout=120
# dtx doctor: complete JSON with positive measures, limits respected, failures named with their exit code.
set -uo pipefail
export ASAN_OPTIONS=detect_leaks=0 # Open MPI leaves memory behind
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fault() { echo "FAULT: $*"; cat "$work"/*.txt 2>/dev/null; exit 1; }

# value FILE GROUP KEY: through CMake's JSON reader, so that the text must be JSON.
value() {
    printf 'file(READ "%s" text)\nstring(JSON v GET "${text}" %s %s)\nmessage("${v}")\n' "$1" "$2" "$3" >"$work/get.cmake"
    cmake -P "$work/get.cmake" 2>&1
}

cd "$work" || exit 1
"$DTX" doctor --json --seconds 0.01 >one.json 2>err.txt || fault "exit code $?"
for key in gemm_f32_flops_per_second gemm_bf16_flops_per_second triad_bytes_per_second disk_bytes_per_second; do
    got=$(value one.json measured $key)
    awk -v x="$got" 'BEGIN { exit !(x + 0 > 1e6) }' || fault "$key is $got"
done
[ -n "$(value one.json processor model)" ] || fault "no processor"
[[ $(value one.json libraries mpi) == *MPI* ]] || fault "MPI is $(value one.json libraries mpi)"
[ "$(ls -A "$work" | grep -c '^\.dtx')" -eq 0 ] || fault "a file of the disk measurement is left"

cpu=$(taskset -pc $$ | sed 's/.*: *//; s/[-,].*//')
taskset -c "$cpu" "$DTX" doctor --json --seconds 0.01 >bound.json 2>err.txt || fault "bound: exit code $?"
[ "$(value bound.json processor cores_allowed)" = 1 ] || fault "bound to one core, but $(value bound.json processor cores_allowed)"
[ "$(value bound.json measured threads)" = 1 ] || fault "one core, $(value bound.json measured threads) threads"

mpirun -n 2 "$DTX" doctor --json --seconds 0.01 >two.json 2>err.txt || fault "two ranks: exit code $?"
[ "$(value two.json measured ranks)" = 2 ] || fault "two ranks expected"
got=$(value two.json measured all_reduce_bytes_per_second)
awk -v x="$got" 'BEGIN { exit !(x + 0 > 1e6) }' || fault "all-reduce is $got"

"$DTX" doctor --seconds 0.01 --folder "$work/absent" >table.txt 2>err.txt
[ $? -eq 1 ] || fault "an absent folder must fail with 1"
grep -q "FAILED.*$work/absent.*No such file" table.txt || fault "the table does not name the failure"
grep -q "GEMM bf16 .*FLOP/s" table.txt || fault "the other measures are missing"
[ "$(grep -c '^dtx: error: .*No such file' err.txt)" -eq 1 ] || fault "one report on standard error expected"

"$DTX" doctor --seccond 1 >table.txt 2>err.txt
[ $? -eq 78 ] || fault "an unknown flag must exit with 78"
grep -q "did you mean 'seconds'" err.txt || fault "no nearest option"
"$DTX" doctor --help >table.txt 2>err.txt || fault "--help"
grep -q -- '--folder TEXT' table.txt || fault "--help lists no --folder"
