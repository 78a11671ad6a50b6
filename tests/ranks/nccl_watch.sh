#!/usr/bin/env bash
# test: label=ranks timeout=120
# An operation between GPUs (on the stand-in for NCCL) never ends, or its communicator reports an error: both ranks are
# gone within comm.timeout and a few seconds, NCCL's operations are ended by ncclCommAbort, one table says who waits.
set -uo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
program=$out/watched
cp "$DTX_BUILD/tests/test_ranks_nccl_watch_rank" "$program"
mkdir "$out/ledgers"
failed=0
fault() { echo "$what: $*"; cat "$out/log"; failed=1; }
says() { grep -qE -- "$1" "$out/log" || fault "does not say '$1'"; }

# run STREAMS TIMEOUT "hang|error RANK OPERATION" SECONDS: everybody is gone in that time.
run() {
    local begin=$SECONDS code
    what="$1, $3"
    rm -rf "$out/run"
    mkdir "$out/run"
    DTX_EMU_STREAMS=$1 DTX_EMU_NCCL=$3 timeout -s KILL 60 mpirun -n 2 "$program" "$out/ledgers" "$out/run" "$2" \
        </dev/null >"$out/log" 2>&1
    code=$?
    [ $((SECONDS - begin)) -le "$4" ] || fault "took $((SECONDS - begin)) s"
    [ $code != 0 ] || fault "exit code 0"
    [ "$(grep -c '^dtx: error' "$out/log")" = 1 ] || fault "not one report"
    says 'stand-in for NCCL: communicator aborted'
    ! pgrep -f "^$program" >/dev/null || fault "ranks are left"
}

for streams in now late; do
    run $streams 2 "hang 1 11" 12
    says "on 'pair' of 400 bytes at tests/ranks/nccl_watch_rank.c:[0-9]+ has not finished in [0-9.]+ s \(comm.timeout 2\)"
    says '^  0,1 .* waits +in +pair +#5 +all-reduce sum'
done
run late 50 "error 0 12" 12
says "NCCL: communicator 'pair', rank 0 of 2: what is under way will not end: remote process exited"
run now 50 "error 1 9" 12
exit $failed
