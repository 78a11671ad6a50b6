#!/usr/bin/env bash
# test: label=long timeout=400
# `dtx sweep submit` on two nodes: an array of six trials, two at once; one is preempted and goes on elsewhere, one task is
# killed with all its processes; the same losses as on one machine, no trial at work after it was done; another
# submission has nothing to do, and one of a sweep with one trial left submits that one.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"
. "$DTX_SOURCE/tests/harness/sweep.sh"
make_spec spec.yaml 'seeds: 1, 2, 3'
options=(--sweep.tokens 102400 --checkpoint.every 40)
"$DTX" sweep plan spec.yaml --dir array "${options[@]}" >log 2>&1 || complain "plan: $(cat log)"
"$DTX" sweep plan spec.yaml --dir plain "${options[@]}" >log 2>&1 || complain "plan: $(cat log)"
[ "$(ids array | wc -l)" = 6 ] || complain "trials: $(cat array/plan.jsonl)"
"$DTX" sweep submit array --concurrent 2 --time 10 --sbatch exclusive >log 2>&1 </dev/null || complain "submit: $(cat log)"
job=$(sed -n 's/^Submitted batch job //p' log)
grep -q 'sbatch --array=1-6%2' log || complain "the array: $(cat log)"

trial() { ids array | sed -n "$1p"; }
stepping() { grep -q '^dtx: step' "array/runs/$(trial "$1")/logs/attempt-$2.log" 2>/dev/null; } # TRIAL ATTEMPT
ended() { [ -s "array/state/$(trial "$1").done" ]; }
until_true 60 "steps of trial 1" stepping 1 1
scontrol requeue "${job}_1" || complain "Slurm does not preempt task 1"
# Another task's processes are killed all at once, as by a lost node that comes back.
until_true 60 "steps of trial 3" stepping 3 1
scancel --signal=KILL --full "$(squeue -h -j "${job}_3" -o %A)" || complain "Slurm does not kill task 3"
until_true 120 "the end of the array" gone "$job"
[ -e "array/state/$(trial 1).2" ] || complain "the preempted trial was not continued: $(ls array/state)"
! ended 3 || complain "the kill did not meet trial 3"
for t in 1 2 4 5 6; do
    ended "$t" || complain "trial $t is not done: $(cat array/logs/slurm-*_"$t".log)"
done
[ "$("$DTX" sweep status array --json | sed -n 's/.*"done":\([0-9]*\).*/\1/p')" -ge 5 ] || complain "$("$DTX" sweep status array)"

# What is left is one trial: for another job, on whatever node.
touch -d '5 minutes ago' "array/state/$(trial 3).1" # its host gave no sign since
"$DTX" sweep submit array >log 2>&1 </dev/null || complain "submit again: $(cat log)"
grep -q 'sbatch --array=3%4' log || complain "what is left: $(cat log)"
job=$(sed -n 's/^Submitted batch job //p' log)
until_true 90 "the end of trial 3" gone "$job"
all_done array
[ "$(cat array/state/*.[0-9] | grep '^host' | sort -u | xargs)" = "host n1 host n2" ] || complain "one node did it all"
"$DTX" sweep submit array >log 2>&1 </dev/null || complain "submit what is done: $(cat log)"
grep -q 'nothing is left' log || complain "submitted again: $(cat log)"
"$DTX" sweep run plain >log 2>&1 </dev/null || complain "run: $(cat log)"
diff <(losses plain) <(losses array) >log || complain "other losses under Slurm: $(cat log)"
echo "attempts: $(find array/state -regex '.*[.][0-9]+' | wc -l) at 6 trials"
finish
