#!/usr/bin/env bash
# test: label=ranks timeout=240
# One rank of four is killed, stopped, exits, computes for ever, leaves early, or calls something else than the others:
# every rank is gone within comm.timeout and a few seconds, and one table names rank, host, operation, number, bytes and
# line. `dtx watch RUN` says it of the dead too. DTX_WATCH_LAUNCH (default "mpirun -n 4") starts the ranks; with srun,
# which kills survivors at once, what a rank could not say must be in `dtx watch RUN`.
set -uo pipefail
program=$DTX_BUILD/tests/test_ranks_watch_rank source=$DTX_SOURCE/tests/ranks/watch_rank.c
read -ra launcher <<<"${DTX_WATCH_LAUNCH:-mpirun -n 4}"
after=${DTX_WATCH_AFTER:-} # goes to a node of rank 2
out=$(mktemp -d "${DTX_WATCH_FOLDER:-${TMPDIR:-/tmp}}/watch.XXXXXX") # the ranks' hosts must see it
trap 'rm -rf "$out"' EXIT
failed=0
fault() { echo "$mode $check: $*"; cat "$out/log"; failed=1; }
copy=$out/watched # a name of its own, so that processes left behind can be counted
cp "$program" "$copy"
host=$(hostname)
at() { echo "watch_rank.c:$(grep -n "here: $1 \*/" "$source" | cut -d: -f1)"; } # PLACE of a call

launch() { timeout -s KILL 60 "${launcher[@]}" "$@" </dev/null; }

# says TEXT…: each stands in the ranks' report or, of the dead, in that of `dtx watch`.
says() {
    local text
    for text; do grep -qE -- "$text" "$out/log" || fault "does not say '$text'"; done
}

# run MODE CHECK TIMEOUT: in $out/log what the ranks and then `dtx watch` say.
run() {
    mode=$1 check=$2
    local timeout=${3:-2}
    rm -rf "$out/run" "$out/ledgers"
    mkdir -p "$out/run" "$out/ledgers"
    local begin=$SECONDS code
    launch "$copy" "$mode" "$out/ledgers" "$out/run" $timeout "$check" >"$out/log" 2>&1
    code=$?
    local seconds=$((SECONDS - begin))
    [ "$seconds" -le $((timeout + 10)) ] || fault "took $seconds s"
    for _ in $(seq 20); do
        pgrep -f "^$copy" >/dev/null || break
        sleep 0.1
    done
    ! pgrep -f "^$copy" >/dev/null || { fault "ranks are left"; kill -KILL $(pgrep -f "^$copy"); }
    if [ "$mode" = none ]; then
        [ "$code" = 0 ] || fault "exit code $code"
        [ -z "$(ls -A "$out/ledgers" "$out/run" | grep -v :)" ] || fault "left behind: $(ls -A "$out/ledgers" "$out/run")"
        return
    fi
    [ "$code" != 0 ] || fault "exit code 0"
    reports=$(grep -c '^dtx: error' "$out/log")
    $after "$DTX" watch "$out/run" >>"$out/log" 2>&1
    [ "${launcher[0]}" != mpirun ] || [ "$reports" = 1 ] || fault "$reports reports"
    [ "$reports" -le 1 ] || fault "$reports reports"
}

for check in - check; do
    run none $check
    run stop $check
    says '^  stopped   rank 2 \(.*, pid [0-9]+, stopped\)' \
        "^  2 +[^ ]+ +stopped +after tp +#6 +all-reduce sum +80 "
    [ $check = check ] || says "^  missing   rank 2 .* in dp #6: rank 0 waits in all-reduce sum of 80 bytes \(20 f32\) at .*$(at sum)"
done
check=-
run kill -
says '^  dead      .*rank.* 2' "^  2 +[^ ]+ +dead +after tp +#6 +all-reduce sum +80 |^  (0-3|.*2).* dead "
run exit -
says '^  dead      .*rank.* 2'
run busy -
says '^  missing   rank 2 \(.*, busy\) in dp #6: rank 0 waits in all-reduce sum of 80 bytes' '^dtx: error on rank [0-3] .*comm.timeout 2' \
    "^  2 +[^ ]+ +busy +after tp +#6 "
run leave -
says '^  2 +[^ ]+ +waits +in +world +#[0-9]+ +end '
run count - 8 # longer than a rank that fails alone waits for the others
says '^dtx: error on rank 2 \(.*\): MPI: all-reduce .* of 40 bytes .*MPI_ERR_TRUNCATE' "disagree  in dp #6: rank 0 .*$(at sum); but rank 2 .*$(at count)"
run count -
says "disagree  in dp #6: rank 0 \(.*\) calls all-reduce sum of 80 bytes \(20 f32\) at .*$(at sum); but rank 2 \(.*\) calls all-reduce sum of 40 bytes \(10 f32\) at .*$(at count)"
run operation -
says "disagree  in dp #6: rank 0 \(.*\) calls all-reduce sum of 80 bytes .*; but rank 2 \(.*\) calls barrier of 0 bytes at .*$(at operation)"
run send -
says "disagree  in tp message #6: rank 2 \(.*\): send of 40 bytes \(10 f32\) at .*$(at send); but rank 3 \(.*\): receive of 80 bytes \(20 f32\) at .*$(at receive)"
for mode in count operation; do
    run $mode check 8
    says "^dtx: error on rank [02] .*communicator 'dp' disagree about its next collective \(comm.check\): rank 0 \(.*\): all-reduce sum #6 of 80 bytes \(f32\) at .*$(at sum); but rank 2 \(.*\): .* #6 of [04]+ bytes .*$(at $mode)"
done
run root check 8 # without the check it passes unnoticed: small broadcasts wait for nobody
says "^dtx: error on rank [0-3] .*communicator 'world' disagree .*rank 0 \(.*\) and 2 others: broadcast .* from rank 0 at .*; but rank 2 \(.*\): broadcast .* from rank 2 at "
exit "$failed"
