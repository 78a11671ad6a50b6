# The first line of tests of batch jobs: what follows runs on a cluster's head, in a folder with data (train.sh) and these
# functions, which submit runs and wait for what becomes of them.
# shellcheck shell=bash disable=SC2154,SC2034 # small is train.sh's, job for the caller
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
make_data

# submit RUN OPTION…: two ranks on each of two nodes unless the options say otherwise; sets job. The script is edited by
# sed's command $edit first, if there is one.
submit() {
    local run=$1 options=("${small[@]}" --nodes 2 --tasks-per-node 2 --time 10 --parallel.tp 2 --parallel.pp 1
        --parallel.zero 1 --parallel.sequence true --train.recompute none --run.dir "$@")
    if [ -n "${edit:-}" ]; then
        mkdir -p "$run/logs"
        "$DTX" submit "${options[@]}" --dry-run </dev/null | sed "$edit" >"$run/train.sbatch"
        resubmit "$run"
        return
    fi
    "$DTX" submit "${options[@]}" >log 2>&1 </dev/null || complain "submit $run: $(cat log)"
    job=$(sed -n 's/^Submitted batch job //p' log)
}
# resubmit RUN: its script again; sets job.
resubmit() { job=$(sbatch --parsable "$1/train.sbatch") || complain "sbatch takes $1/train.sbatch no more"; }

lines() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }
value() { sed -n "s/^$2: //p" "$1/status" 2>/dev/null; } # RUN KEY
said() { cat "$1"/logs/slurm-*.log 2>/dev/null; }        # RUN: what its jobs' scripts said
# until_true SECONDS WHAT COMMAND…: waits until it succeeds.
until_true() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { complain "in vain waited for: $what"; squeue; tail -n 5 */logs/*; return 1; }
        sleep 0.1
    done
}
steps_done() { [ "$(lines "$1/metrics.jsonl")" -ge "$2" ]; }
attempts() { [ "$(find "$1/logs" -name 'attempt-*.log' | wc -l)" -ge "$2" ]; }
in_state() { [ "$(value "$1" state)" = "$2" ]; }
running_steps() { grep -q '^dtx: step' "$1/logs/attempt-$2.log" 2>/dev/null; } # RUN ATTEMPT
gone() { [ -z "$(squeue -h -j "$1" -o %i 2>/dev/null)" ]; }                    # JOB
# same_curve REFERENCE RUN: bit for bit, each step once; a run that ends has evaluated at the end.
same_curve() {
    diff <(numbers "$1") <(numbers "$2") >log || complain "$2 is not $1: $(head -n 4 log)"
}
