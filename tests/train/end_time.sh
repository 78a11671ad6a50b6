#!/usr/bin/env bash
# test: label=train timeout=90
# The end of a job's time: a run whose save interval is infinite measures a save early, stops in time by itself with all
# saved, and goes on as if nothing had been.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
options=(--train.steps 1000000 --checkpoint.every 0 --eval.every 0 --parallel.dp 2)
end=$(($(date +%s) + 8))
start 2 train "${small[@]}" "${options[@]}" --run.dir run --train.end_time $end >first 2>&1 </dev/null
code=$?
[ $code = 75 ] || complain "exit code $code: $(cat first)"
[ "$(date +%s)" -le $end ] || complain "ends too late"
grep -q "stopped by the end of the job's time at step" first || complain "not said: $(cat first)"
grep -qx 'state: requeue' run/status || complain "the status: $(cat run/status)"
step=$(sed -n 's/^step: //p' run/status)
[ "$(find run/checkpoints -name 'step-*' | wc -l)" = 2 ] || complain "checkpoints: $(ls run/checkpoints)"
[ "$(wc -l <run/metrics.jsonl)" = "$step" ] || complain "step $step, $(wc -l <run/metrics.jsonl) lines"
options+=(--train.until $((step + 3)))
SLURM_JOB_END_TIME=0 train 2 run "${options[@]}" --resume latest
train 2 whole "${options[@]}"
diff <(numbers whole) <(numbers run) >log || complain "stopped and resumed otherwise: $(head -n 4 log)"
finish
