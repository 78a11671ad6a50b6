# Sourced by ranks/watch.sh and cluster/watch.sh: four ranks under watch, of which rank 2 does what it should not. Every
# rank is gone within comm.timeout and a few seconds, and one table names rank, host, operation, number, bytes and line.
# The caller sets: out (a folder that all hosts see), program, ledgers (their folder; "": the program's choice), one and
# two (hosts of ranks 0, 1 and of 2, 3), survivors (yes: the launcher leaves them the time to report a death), and
#   launch COMMAND…   starts four ranks
#   look COMMAND…     runs a command on the host of rank 2
#   left              prints processes of $program that are still there
#   files             prints ledgers that are still there
# shellcheck shell=bash
source=$DTX_SOURCE/tests/ranks/watch_rank.c
failed=0
fault() { echo "$mode $check: $*"; cat "$out/log"; failed=1; }
at() { echo "watch_rank.c:$(grep -n "here: $1 \*/" "$source" | cut -d: -f1)"; } # of a call
says() { # TEXT…: in what the ranks said or, of the dead, `dtx watch`
    local text
    for text; do grep -qE -- "$text" "$out/log" || fault "does not say '$text'"; done
}

# run MODE CHECK [TIMEOUT]: in $out/log what the ranks and then `dtx watch` say.
run() {
    mode=$1 check=$2
    local timeout=${3:-2} begin=$SECONDS code i
    rm -rf "$out/run"
    mkdir -p "$out/run"
    launch "$program" "$mode" "$ledgers" "$out/run" "$timeout" "$check" >"$out/log" 2>&1
    code=$?
    [ $((SECONDS - begin)) -le $((timeout + 10)) ] || { fault "took $((SECONDS - begin)) s"; exit 1; } # no more of these
    for i in $(seq 20); do
        [ -n "$(left)" ] || break
        sleep 0.1
    done
    [ -z "$(left)" ] || fault "ranks are left: $(left)"
    if [ "$mode" = none ]; then
        [ "$code" = 0 ] || fault "exit code $code"
        [ -z "$(ls -A "$out/run")" ] || fault "left behind: $(ls -A "$out/run")"
        [ -z "$(files)" ] || fault "left behind: $(files)"
        return
    fi
    [ "$code" != 0 ] || fault "exit code 0"
    reports=$(grep -c '^dtx: error' "$out/log")
    look "$DTX" watch "$out/run" >>"$out/log" 2>&1
}
one_report() { [ "$reports" = 1 ] || fault "$reports reports"; }
reported_death() { # one report if survivors had the time
    if [ "$survivors" = yes ]; then one_report; else [ "$reports" -le 1 ] || fault "$reports reports"; fi
    says '^  dead      rank.* ([0-9]-|[0-9],)?2' '^  2 +[^ ]+ +dead +after tp +#6 +all-reduce sum +80 '
}

watch_matrix() {
    local sum error
    sum="all-reduce sum of 80 bytes \(20 f32\) at tests/ranks/$(at sum)"
    error='^dtx: error on rank'
    for check in - check; do
        run none $check
        run stop $check
        one_report
        says "^  stopped   rank 2 \($two, pid [0-9]+, stopped\)" "^  2 +$two +stopped +after +tp +#6 +all-reduce sum +80 "
        says "^  missing   rank 2 .* in dp #6: rank 0 waits in $sum"
    done
    run kill -
    reported_death
    run exit -
    reported_death
    run busy -
    one_report
    says "$error [0-3] .*comm.timeout 2" "^  missing   rank 2 \($two, .*busy\) in dp #6: rank 0 waits in $sum" \
        "^  2 +$two +busy +after +tp +#6 "
    run leave -
    one_report
    says "^  2 +$two +waits +in +world +#[0-9]+ +end "
    run count - 8 # longer than a rank that fails alone waits for the others
    one_report
    says "$error 2 \($two\): MPI: all-reduce .* of 40 bytes .*MPI_ERR_TRUNCATE" \
        "disagree  in dp #6: rank 0 \($one, .*\) calls $sum; but rank 2 \($two, .*\) calls all-reduce sum of 40 bytes \(10 f32\) at .*$(at count)"
    run operation -
    one_report
    says "disagree  in dp #6: rank 0 \(.*\) calls $sum; but rank 2 \(.*\) calls barrier of 0 bytes at .*$(at operation)"
    run send -
    one_report
    says "disagree  in tp message #6: rank 2 \($two\): send of 40 bytes \(10 f32\) at .*$(at send); but rank 3 \($two\): receive of 80 bytes \(20 f32\) at .*$(at receive)"
    for mode in count operation; do
        run $mode check 8
        one_report
        says "$error [02] .*communicator 'dp' disagree about its next collective \(comm.check\): rank 0 \($one\): all-reduce sum #6 of 80 bytes \(f32\) at .*$(at sum); but rank 2 \($two\): .* #6 of [04]+ bytes .*$(at $mode)"
    done
    run root check 8 # without the check it passes unnoticed: small broadcasts wait for nobody
    one_report
    says "$error [0-3] .*communicator 'world' disagree .*rank 0 \($one\) and 2 others: broadcast .* from rank 0 at .*$(at root); but rank 2 \($two\): broadcast .* from rank 2 at "
    exit "$failed"
}
