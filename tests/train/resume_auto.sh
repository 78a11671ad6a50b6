#!/usr/bin/env bash
# test: label=train timeout=120
# `--resume auto`: the newest checkpoint of either tier, else a new start, with what lay in the metrics set aside; never a
# new start over checkpoints that cannot be read. RUN/status: a page that is kept up to date, and what it says of the
# attempt before.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1
status() { sed -n "s/^$2: //p" "$1/status"; } # RUN KEY
says() { # RUN KEY PATTERN
    status "$1" "$2" | grep -qE "^$3\$" || complain "$1/status: $2 is not '$3': $(cat "$1/status")"
}
endless=(train "${small[@]}" --train.steps 1000000 --eval.every 0 --log.every 1 --resume auto)
# killed RUN STEPS OPTION…: begins, and is killed after some steps and a second, when the page is up to date.
killed() {
    local run=$1 steps=$2 i
    shift 2
    "$DTX" "${endless[@]}" --run.dir "$run" "$@" >log 2>&1 </dev/null &
    for i in $(seq 400); do
        [ "$(status "$run" step 2>/dev/null || echo 0)" -ge "$steps" ] 2>/dev/null && break
        sleep 0.05
    done
    [ "$i" -lt 400 ] || complain "$run: the page stands still: $(cat "$run/status" log)"
    kill -KILL $!
    wait $! 2>/dev/null
}

# Nothing saved: the run begins again, as often as it takes.
killed run 1 --checkpoint.every 0
says run state running
says run attempt 1
says run before ''
says run left '[0-9]+ s \(.*\)'
says run checkpoint -
kept=$(wc -l <run/metrics.jsonl)
train 1 run --train.steps 6 --eval.every 0 --checkpoint.every 3 --train.until 3 --resume auto
[ "$(wc -l <run/logs/attempt-1.metrics.jsonl)" = "$kept" ] || complain "the first metrics are lost: $(ls run run/logs)"
grep -q 'nothing was saved: the run begins again; .*attempt-1.metrics.jsonl' log || complain "not said: $(cat log)"
says run state paused
says run attempt 2
says run before 'attempt 1: ended without a word at step [0-9]+ or later'
says run checkpoint step-00000003
train 1 run --train.steps 6 --eval.every 0 --checkpoint.every 3 --resume auto --run.attempt 7
grep -q 'resumed from .*step-00000003 at step 3' log || complain "the durable one is not taken: $(cat log)"
says run attempt 7
says run before 'attempt 2: paused'
says run checkpoint step-00000006
train 1 plain --train.steps 6 --eval.every 0
diff <(numbers plain) <(numbers run | sed '3s/"heldout_loss":[^,]*/"heldout_loss":null/') >log || complain "other numbers: $(head -n 4 log)"

# Checkpoints that are there and cannot be read end it: nothing is begun over them.
for step in 3 6; do truncate -s 100 run/checkpoints/step-0000000$step/checkpoint.h5; done
cp run/metrics.jsonl before
start 1 train "${small[@]}" --train.steps 9 --run.dir run --resume auto >log 2>&1 </dev/null && complain "damage: goes on: $(cat log)"
cmp -s before run/metrics.jsonl || complain "damage: the metrics are touched"
grep -q 'none of the 2 checkpoints' log || complain "damage: $(cat log)"
says run state failed
says run attempt 8
says run cause '.*none of the 2 checkpoints.*'

# Weights begin the run once; later attempts continue it.
killed init 1 --init plain/checkpoints --checkpoint.every 0
grep -q 'a new run from the weights of' log || complain "init: $(cat log)"
train 1 init --train.steps 4 --train.until 2 --init plain/checkpoints --resume auto --eval.every 0
grep -q 'a new run from the weights of' log || complain "init again: $(cat log)"
train 1 init --train.steps 4 --init plain/checkpoints --resume auto --eval.every 0
grep -q 'resumed from .* at step 2' log || complain "init is not continued: $(cat log)"

# Two nodes' disks alone, then one of them, then none.
nodes() { # OPTION…
    timeout -s KILL 60 mpirun -n 1 env DTX_NODE=a "$DTX" train "${tiered[@]}" "$@" : \
        -n 1 env DTX_NODE=b "$DTX" train "${tiered[@]}" "$@" >log 2>&1 </dev/null || complain "nodes $*: $(cat log)"
}
tiered=("${small[@]}" --run.dir tiers --eval.every 0 --checkpoint.every 0 --checkpoint.local_dir "$work/disks" --checkpoint.local_every 2
    --train.steps 20 --resume auto)
nodes --train.until 5
says tiers local_checkpoint step-00000004
rm -r tiers/checkpoints/step-* tiers/checkpoints/latest # as if it had been killed
nodes --train.until 7
grep -q 'resumed from .*disks/.*step-00000004 at step 4' log || complain "the local one is not taken: $(cat log)"
says tiers before 'attempt 1: paused'
nodes --train.until 8
grep -q 'resumed from tiers/checkpoints/step-00000007 at step 7' log || complain "not the newest of both: $(cat log)"
rm -r tiers/checkpoints/step-* tiers/checkpoints/latest disks
nodes --train.until 3
grep -q 'nothing was saved: the run begins again' log || complain "nothing is left: $(cat log)"
[ "$(wc -l <tiers/metrics.jsonl)" = 3 ] || complain "nothing is left: $(wc -l <tiers/metrics.jsonl) steps"
finish
