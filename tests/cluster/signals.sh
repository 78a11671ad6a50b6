#!/usr/bin/env bash
# test: label=long timeout=180
# Slurm's ways to say stop: a signal to the step, to one task on the other node, to srun, and scancel of the job: one
# agreed checkpoint, "requeue" and code 75 in the run's status; what follows is what would have followed anyway. TERM to
# srun kills: then the last checkpoint is continued.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
make_data
endless=("$DTX" train "${small[@]}" --train.steps 1000000 --eval.every 0 --checkpoint.every 0 --checkpoint.keep 0 --parallel.tp 2
    --parallel.dp 2 --run.dir run)

count() { if [ -e run/metrics.jsonl ]; then wc -l <run/metrics.jsonl; else echo 0; fi; }
begin() { # OPTION…: in the background, until some steps are done
    local steps=0
    name=run$((${name#run} + 1))
    srun -J $name -N 2 --ntasks-per-node=2 "${endless[@]}" "$@" >$name.log 2>&1 </dev/null &
    guard=$!
    for _ in $(seq 400); do
        [ $steps = 0 ] && grep -q '^dtx: step' $name.log && steps=$(($(count) + 5))
        [ $steps = 0 ] || [ "$(count)" -lt $steps ] || break
        sleep 0.05
    done
    [ $steps -gt 0 ] && [ "$(count)" -ge $steps ] || complain "no steps: $(cat $name.log)"
    job=$(squeue -h -n $name -o %i)
}
end() { # SIGNAL
    local code step
    for _ in $(seq 200); do
        kill -0 "$guard" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$guard" 2>/dev/null && complain "$1: srun is still there after 20 s"
    wait "$guard"
    code=$?
    [ $code = 75 ] || complain "$1: srun's exit code $code: $(cat $name.log)"
    grep -qx 'state: requeue' run/status && grep -qx 'code: 75' run/status || complain "$1: status is $(cat run/status)"
    step=$(sed -n 's/^step: //p' run/status)
    [ "$step" = "$(count)" ] || complain "$1: step $step in the status, $(count) in the metrics"
    [ "$(ls run/checkpoints | grep -c "^step-0*$step\$")" = 1 ] || complain "$1: no checkpoint of step $step"
    grep -qE "stopped by $1 at step $step of" $name.log || complain "$1: not said: $(cat $name.log)"
    [ -z "$(on_node n1 pgrep -x dtx; on_node n2 pgrep -x dtx)" ] || complain "$1: ranks are left"
}

name=run0
begin
scancel --signal=USR1 "$job.0"
end USR1
begin --resume latest
scancel --signal=TERM "$job"
end TERM
begin --resume latest
on_node n2 pkill -USR1 -o -x dtx
end USR1
begin --resume latest
kill -USR1 "$guard" # srun sends it on
end USR1
begin --resume latest
scancel "$job" # TERM, and KILL after KillWait
end TERM
[ "$(ls run/checkpoints | grep -c step-)" = 5 ] || complain "five signals, checkpoints: $(ls run/checkpoints)"

# TERM to srun is no request: it kills all at once. What was saved is there, what came after is made again.
begin --resume latest
kill -TERM "$guard"
wait "$guard"
code=$?
[ $code = 137 ] || complain "TERM to srun: exit code $code: $(cat $name.log)"
grep -qx 'state: running' run/status || complain "TERM to srun: status is $(cat run/status)"
begin --resume latest
scancel --signal=USR1 "$job"
end USR1

# All slices are one run. (A run that ends evaluates once more.)
train 4 reference --train.steps 1000000 --train.until "$(count)" --eval.every 0 --parallel.tp 2 --parallel.dp 2
diff <(numbers reference | sed '$s/"heldout_loss":[^,]*/"heldout_loss":null/') <(numbers run) >log ||
    complain "stopped and resumed otherwise: $(head -n 4 log)"
finish
