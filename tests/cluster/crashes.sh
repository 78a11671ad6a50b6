#!/usr/bin/env bash
# test: label=long timeout=400
# Batch jobs whose ranks or nodes die: a killed rank is a crash that is tried again, a run that crashes at the same place
# is not tried for ever, one whose configuration is wrong not at all, one that loses a node goes on when there are two
# again. What was saved is continued; the curve is the uninterrupted run's.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"

submit wrong --train.steps 5 --data.train "$work/absent"
until_true 60 "the end of a job with a wrong configuration" gone "$job"
! attempts wrong 2 || complain "a wrong configuration was tried again"
said wrong | grep -q 'has to be mended, not requeued' || complain "a wrong configuration: $(said wrong)"

# Back-off is a second here. A rank dies after a checkpoint, then one dies before the next.
options=(--train.steps 100000 --checkpoint.every 40 --checkpoint.keep 0 --eval.every 0)
edit='s/^backoff=30/backoff=1/; s/^crashes=3/crashes=1/'
submit run "${options[@]}"
until_true 60 "a checkpoint" test -e run/checkpoints/latest
on_node n2 pkill -KILL -o -x dtx
until_true 60 "a second attempt" attempts run 2
said run | grep -q 'crash 1 since step-' || complain "after a killed rank: $(said run)"
grep -q 'dead' run/logs/attempt-1.log || complain "not said who is dead: $(tail -n 5 run/logs/attempt-1.log)"
grep -q '^dtx: resumed from' run/logs/attempt-2.log || until_true 60 "the second attempt's steps" running_steps run 2

# A node is lost: Slurm requeues the job, which waits for a second node.
latest=$(cat run/checkpoints/latest)
until_true 60 "another checkpoint" sh -c "[ \"\$(cat run/checkpoints/latest)\" != $latest ]"
node_stop n2
node_wait n2 'down*' $((SECONDS + 60))
node_start n2
node_wait n2 idle $((SECONDS + 60))
until_true 120 "a third attempt" attempts run 3
until_true 60 "the third attempt's steps" running_steps run 3
scancel --signal=USR1 "$job"
until_true 60 "the third attempt's end" attempts run 4
until_true 60 "steps" running_steps run 4
scancel "$job"
until_true 60 "the end" gone "$job"
train 4 reference "${options[@]}" --train.until "$(value run step)" --parallel.tp 2 --parallel.dp 2
diff <(numbers reference | sed '$s/"heldout_loss":[^,]*/"heldout_loss":null/') <(numbers run) >log ||
    complain "crashes change the curve: $(head -n 4 log)"

# Two crashes with no checkpoint between them are one too many.
resubmit run
n=$(find run/logs -name 'attempt-*.log' | wc -l)
for i in 1 2; do
    until_true 60 "steps before crash $i" running_steps run $((n + i))
    on_node n2 pkill -KILL -o -x dtx
done
until_true 60 "the script gives up" gone "$job"
said run | grep -q 'crashed 2 times since .* not requeued' || complain "the script does not give up: $(said run)"
finish
