#!/usr/bin/env bash
# test: label=ranks timeout=120
# One rank fails or is killed: every rank is gone within seconds, one report names the rank and the cause.
set -u
program=$DTX_BUILD/tests/test_ranks_comm_finish
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
fault() { echo "$mode: $*"; cat "$out/log"; failed=1; }

# The name of a copy of its own, so that processes left behind can be counted.
copy=$out/finish.$$
cp "$program" "$copy"
for mode in together all busy killed requeue started left; do
    begin=$(date +%s)
    timeout -s KILL 40 mpirun -n 4 "$copy" "$mode" >"$out/log" 2>&1
    code=$?
    seconds=$(($(date +%s) - begin))
    [ "$code" -ne 0 ] || fault "exit code 0"
    [ "$seconds" -le 15 ] || fault "took $seconds s"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pgrep -f "^$copy" >/dev/null || break
        sleep 0.3
    done
    ! pgrep -f "^$copy" >/dev/null || fault "ranks are left"
    reports=$(grep -c '^dtx: error' "$out/log")
    case $mode in
    together | busy | started | left)
        [ "$reports" -eq 1 ] || fault "$reports reports"
        grep -q '^dtx: error on rank 2 (.*): cannot read /data/tokens.bin' "$out/log" || fault "no report of rank 2"
        ;;
    all)
        [ "$reports" -eq 1 ] || fault "$reports reports"
        grep -q "^dtx: error on rank 0 (.*): no such key 'trian.steps' (4 of 4 ranks failed)" "$out/log" ||
            fault "no report for all ranks"
        ;;
    requeue)
        [ "$reports" -eq 0 ] || fault "$reports reports"
        ! grep -q MPI_ABORT "$out/log" || fault "the slow rank was aborted"
        ;;
    killed)
        grep -qi 'rank 2 .*signal 9' "$out/log" || fault "mpirun does not name the killed rank"
        ;;
    esac
    case $mode in
    killed) ;;
    requeue) [ "$code" -eq 75 ] || fault "exit code $code, not 75" ;;
    *) [ "$code" -eq 78 ] || fault "exit code $code, not 78" ;;
    esac
done
exit "$failed"
