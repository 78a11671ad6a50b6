#!/usr/bin/env bash
# test: label=cluster timeout=180
# From `dtx submit` to the end of the run through a warning signal: the script runs on both nodes, all ranks save, the job
# is requeued, goes on, is done and stays so; the curve is the uninterrupted run's, bit for bit.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"
length=(--train.steps 150 --checkpoint.every 0 --eval.every 0 --log.every 1)
submit run "${length[@]}"
until_true 60 "steps" steps_done run 20
scancel --signal=USR1 "$job" # as Slurm warns of the time limit
until_true 60 "a second attempt" attempts run 2
grep -q 'stopped by USR1' run/logs/attempt-1.log || complain "the first attempt: $(tail -n 5 run/logs/attempt-1.log)"
train 4 reference "${length[@]}" --parallel.tp 2 --parallel.dp 2 # meanwhile
until_true 90 "the end of the run" in_state run done
until_true 20 "the end of the job" gone "$job"
said run | grep -q 'requeued' || complain "the script does not say that it requeues: $(said run)"
said run | grep -q 'done at step 150' || complain "the script does not say that it is done: $(said run)"
! attempts run 3 || complain "a run that is done was started again"
same_curve reference run
"$DTX" submit "${small[@]}" --run.dir run >log 2>&1 && complain "submit over a script that is there"
grep -q 'train.sbatch is there' log || complain "not said why: $(cat log)"
finish
