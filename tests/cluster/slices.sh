#!/usr/bin/env bash
# test: label=long timeout=600
# Batch jobs that end for other reasons than being done: a time limit of a minute with an infinite save interval, signals
# to the batch shell, scancel and another sbatch, arrays of which each task is a run. Nothing is lost, every curve is the
# uninterrupted run's.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"
endless=(--train.steps 1000000 --checkpoint.every 0 --checkpoint.keep 0 --eval.every 0)

# One minute, again and again.
submit minute "${endless[@]}" --time 1
until_true 100 "a second attempt after a minute" attempts minute 2
grep -q "stopped by the end of the job's time" minute/logs/attempt-1.log || complain "$(tail -n 4 minute/logs/attempt-1.log)"
[ "$(find minute/checkpoints -name 'step-*' | wc -l)" = 2 ] || complain "checkpoints: $(ls minute/checkpoints)"

# TERM to the batch shell alone, while the ranks start: as any request.
scancel --signal=TERM --batch "$job"
until_true 60 "a third attempt" attempts minute 3
grep -q 'stopped by USR1' minute/logs/attempt-2.log || complain "TERM to the shell: $(tail -n 4 minute/logs/attempt-2.log)"
until_true 60 "steps of the third attempt" running_steps minute 3

# scancel: everything is saved, and the job does not come back.
scancel "$job"
until_true 60 "the end of the cancelled job" gone "$job"
in_state minute requeue || complain "after scancel: $(cat minute/status)"
said minute | grep -q 'the job is being ended' || complain "after scancel the script says: $(said minute)"
step=$(value minute step)
sleep 8
! attempts minute 4 || complain "a cancelled job came back"

# Given to Slurm again it goes on, now to an end.
sed -i "s/^options=(/options=(--train.until=$((step + 5)) /" minute/train.sbatch
resubmit minute
until_true 60 "the resubmitted run's end" in_state minute paused
until_true 20 "the resubmitted job's end" gone "$job"
run_limit=240 train 4 reference "${endless[@]}" --train.until "$((step + 5))" --parallel.tp 2 --parallel.dp 2
same_curve reference minute

# Two runs side by side, of which one is warned: it alone is requeued. The last task's job id is the array's own.
submit array "${endless[@]}" --array 1-2 --nodes 1 --tasks-per-node 4
until_true 60 "steps of task 1" running_steps array/1 1
until_true 60 "steps of task 2" running_steps array/2 1
scancel --signal=USR1 "${job}_2"
until_true 60 "a second attempt of task 2" attempts array/2 2
! attempts array/1 2 || complain "a task's warning requeues the others: $(said array)"
until_true 60 "steps of the second attempt" running_steps array/2 2
in_state array/1 running || complain "task 1: $(cat array/1/status)"
scancel "$job"
until_true 60 "the end of the array" gone "$job"

# Four runs side by side, each with its own seed.
submit seeds --train.steps 6 --checkpoint.every 0 --eval.every 0 --array 1-4 --nodes 1 --tasks-per-node 4
until_true 120 "the end of the array" gone "$job"
for i in 1 2 3 4; do
    in_state seeds/$i done || complain "task $i: $(cat seeds/$i/status seeds/$i/logs/*)"
    grep -q "seed: $i$" seeds/$i/config.yaml || complain "task $i: $(grep seed seeds/$i/config.yaml)"
done
train 4 third --train.steps 6 --eval.every 0 --train.seed 3 --parallel.tp 2 --parallel.dp 2
same_curve third seeds/3
finish
