#!/usr/bin/env bash
# test: label=train timeout=400
# The watch over losses (trainer/health.md) on a text that a model learns by heart but for one line of noise, whose
# samples are spikes: warned of, left out, rolled back or the end of the run. What a rollback does: the same on every
# mesh and when run again, each step once in the metrics, the samples since the snapshot in the ledger as passed over,
# no checkpoint of what was undone. A run that is stopped and goes on judges like one that was not.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
awk 'BEGIN {
    for (i = 0; i < 900; i++) {
        if (i == 500) { for (k = 0; k < 40; k++) printf "%c", 33 + (k * k * 7 + k * 13) % 90; print "" }
        print "one two three four five six seven eight nine ten eleven twelve"
    } }' >lines
make_data lines
small+=(--model.layers 2 --train.batch 8 --train.steps 64 --lr.peak 1e-2 --lr.min 1e-2 --data.heldout 0 --eval.samples 0
    --health.window 16 --checkpoint.every 16 --checkpoint.keep 0)
says() { grep -qE -- "$1" log || complain "'$1' is not in: $(cat log)"; }
steps() { field step "$1" | xargs; }
skips() { "$DTX" data ledger --text "$1/checkpoints" | grep '^skip' | xargs; }
all=$(seq 64 | xargs)

# Warned of: nothing else changes. The second spike comes too soon after the first to be told of.
train 1 quiet --health.spike none
! grep -q 'spike' log || complain "a watch that is off: $(cat log)"
train 1 warned
says 'warning: step [0-9]+: a loss spike: [0-9.]+ is [0-9.]+ standard deviations above [0-9.]+, the mean of 16 steps$'
[ "$(grep -c 'spike' log)" = 1 ] || complain "warnings: $(cat log)"
diff <(numbers quiet) <(numbers warned) >out || complain "a warning changes the run: $(head -c 600 out)"
same_arrays quiet/checkpoints/step-00000064 warned/checkpoints/step-00000064
spike=$(sed -nE 's/.*warning: step ([0-9]+): a loss spike.*/\1/p' log)
[ "$(field loss_z warned | sed -n 16p)" = null ] && [ "$(field loss_z warned | sed -n 17p)" != null ] ||
    complain "the window is full after 16 steps: $(field loss_z warned | xargs)"

# Left out: not updated, not remembered, and the step counts; no checkpoint is due at such a step.
train 2 skipped --health.spike skip --parallel.dp 2 --parallel.zero 2
says "step $spike/64 .*  no update: a loss spike: "
[ "$(field skipped skipped | grep -c true)" = 2 ] || complain "steps left out: $(field skipped skipped | xargs)"
[ "$(steps skipped)" = "$all" ] || complain "steps: $(steps skipped)"
train 1 unsaved --health.spike skip --checkpoint.every "$spike" --train.until "$((spike + 1))"
[ ! -e "unsaved/checkpoints/step-000000$spike" ] || complain "a checkpoint of a step that was left out"
train 1 before --health.spike skip --train.until $((spike - 1))
train 1 at --health.spike skip --train.until "$spike"
same_arrays "before/checkpoints/step-000000$((spike - 1))" "at/checkpoints/step-000000$spike"
# The second spike is seen after a resume just before it: the window goes on.
second=$(field skipped skipped | grep -n true | sed -n '2s/:.*//p')
train 2 resumed --health.spike skip --parallel.dp 2 --parallel.zero 2 --train.until $((second - 2))
train 2 resumed --health.spike skip --parallel.dp 2 --parallel.zero 2 --resume latest
diff <(numbers skipped) <(numbers resumed) >out || complain "resumed before a spike: $(head -c 600 out)"
same_arrays skipped/checkpoints/step-00000064 resumed/checkpoints/step-00000064

# So it does from a node's own disk.
local=(--checkpoint.local_dir "$work/disk" --checkpoint.local_every 5 --health.spike skip --checkpoint.every 0 --parallel.dp 2
    --parallel.zero 2)
train 2 disk "${local[@]}" --train.until $((second - 1))
rm -r disk/checkpoints/step-*
train 2 disk "${local[@]}" --resume latest
says "resumed from $work/disk/.* at step $(((second - 1) / 5 * 5))$"
diff <(numbers skipped) <(numbers disk) >out || complain "resumed from a local disk: $(head -c 600 out)"

# Rolled back: to the snapshot of step 40, later to that of the checkpoint of step 48.
back=(--health.spike rollback --health.snapshot_every 20)
train 1 back "${back[@]}"
cp log first
says "copy to roll back to [0-9]+kB"
says "warning: step $spike: a loss spike: .*\. Back to step 40; samples 320 to $((8 * spike - 1)) are passed over"
says "warning: step [0-9]+: a loss spike: .*\. Back to step 48; samples 400 to [0-9]+ are passed over"
[ "$(grep -c 'Back to step' log)" = 2 ] || complain "rollbacks: $(grep Back log)"
[ "$(steps back)" = "$all" ] || complain "steps of a run with rollbacks: $(steps back)"
[ "$(field tokens_total back | tail -n 1)" = $((64 * 128)) ] || complain "tokens: $(field tokens_total back | tail -n 1)"
[ "$(field rollbacks back | sed -n '40p;64p' | xargs)" = "0 2" ] || complain "counted: $(field rollbacks back | xargs)"
wanted=$(sed -nE 's/.*samples ([0-9]+) to ([0-9]+) are passed over.*/\1 \2/p' log | awk '{ print "skip " $1 " " $2 + 1 }' | xargs)
[ "$(skips back)" = "$wanted" ] || complain "the ledger has '$(skips back)', the log '$wanted'"
"$DTX" data ledger back/checkpoints >out 2>&1
passed=$(echo "$wanted" | awk '{ print $3 - $2 + $6 - $5 }')
grep -qE "^samples +$((64 * 8 + passed)) of the run" out || complain "the ledger: $(cat out)"
ls -d back/checkpoints/step-* >out
[ "$(wc -l <out)" = 4 ] || complain "checkpoints: $(cat out)"
train 1 again "${back[@]}"
diff <(numbers back) <(numbers again) >out || complain "the same run again: $(head -c 600 out)"
same_arrays back/checkpoints/step-00000064 again/checkpoints/step-00000064
# Stopped at the checkpoint that the second one goes back to, and gone on.
train 1 stopped "${back[@]}" --train.until 48
train 1 stopped "${back[@]}" --resume latest
says "Back to step 48; "
diff <(numbers back) <(numbers stopped) >out || complain "resumed before a rollback: $(head -c 600 out)"
same_arrays back/checkpoints/step-00000064 stopped/checkpoints/step-00000064
[ "$(skips stopped)" = "$wanted" ] || complain "resumed: the ledger has '$(skips stopped)'"
for mesh in "2 --parallel.tp 2" "2 --parallel.cp 2" "2 --parallel.dp 2 --parallel.zero 2" \
    "4 --parallel.dp 2 --parallel.pp 2 --parallel.schedule zb_h1"; do
    rm -rf mesh
    # shellcheck disable=SC2086
    set -- $mesh
    train "$1" mesh "${back[@]}" "${@:2}"
    [ "$(skips mesh)" = "$wanted" ] || complain "$mesh: the ledger has '$(skips mesh)'"
    close_numbers 1e-3 <(field loss back) <(field loss mesh) >out || complain "$mesh: losses: $(cat out)"
done

# ends CODE WORDS NAME OPTION…: a run that ends with this code, saying so.
ends() {
    local code=$1 words=$2 name=$3
    shift 3
    start 2 train "${small[@]}" --run.dir "$name" "$@" >log 2>&1 </dev/null
    [ $? = "$code" ] || complain "$name: not exit code $code: $(cat log)"
    says "$words"
    [ "$(grep -c '^dtx: error' log)" = 1 ] || complain "$name: not one report: $(cat log)"
    grep -q "^code: $code$" "$name/status" || complain "$name: $(cat "$name/status")"
}
ends 1 "step $spike: a loss spike: .*Nothing is saved of it; the last checkpoint is of step 32" ended --health.spike stop \
    --parallel.tp 2 --checkpoint.keep 1
[ "$(ls ended/checkpoints | grep step-)" = step-00000032 ] || complain "a run that ended: $(ls ended/checkpoints)"
ends 1 "loss .*: not finite; 3 steps in a row were not fit" wild --health.max_skips 3 --lr.peak 1e30 --lr.warmup 0 \
    --parallel.dp 2 --checkpoint.every 1 --checkpoint.keep 1
[ "$(ls wild/checkpoints | grep step-)" = step-00000001 ] || complain "a wild run leaves $(ls wild/checkpoints)"
ends 1 "not finite; 2 rollbacks to one snapshot did not help" wilder --health.nonfinite rollback --parallel.dp 2 \
    --lr.peak 1e30 --lr.warmup 0 --checkpoint.every 0 --health.max_rollbacks 2
ends 1 "gradient norm [0-9.]+ is above health.max_grad_norm 0.2" steep --health.norm stop --health.max_grad_norm 0.2 \
    --parallel.tp 2
# A signal in the midst of rollbacks without end; then the run goes on behind all that they passed over.
train 2 turning --parallel.dp 2 --train.until 16
timeout -s KILL 60 mpirun -n 2 "$DTX" train "${small[@]}" --run.dir turning --resume latest --parallel.dp 2 \
    --health.norm rollback --health.max_grad_norm 1e-9 --health.max_rollbacks 1000000 >log 2>&1 </dev/null &
guard=$!
for _ in $(seq 400); do
    [ "$(grep -c 'Back to step 16' log)" -ge 5 ] && break
    sleep 0.05
done
kill -TERM "$(pgrep -P "$(pgrep -P "$guard")" -x dtx | tail -n 1)"
wait "$guard"
grep -q '^state: requeue$' turning/status || complain "a signal between rollbacks: $(tail -n 4 log; cat turning/status)"
passed=$(sed -nE 's/.*samples 128 to ([0-9]+) are passed over.*/\1/p' log | tail -n 1)
train 2 turning --resume latest --health.norm none
says "resumed from turning/checkpoints/step-00000016 at step 16"
[ "$(steps turning)" = "$all" ] || complain "after a signal between rollbacks: $(steps turning)"
[ "$(skips turning)" = "skip 128 $((passed + 1))" ] || complain "the log says $passed, the ledger $(skips turning)"
start 1 train "${small[@]}" --health.window 3 --health.nonfinite none --run.dir bad >log 2>&1
[ $? = 78 ] || complain "wrong options: $(cat log)"
says 'health.window'
says 'health.nonfinite'
finish
