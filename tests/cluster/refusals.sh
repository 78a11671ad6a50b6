#!/usr/bin/env bash
# test: label=cluster timeout=120
# What cannot work on a cluster is refused with the reason and the exit code, before a file is made: tasks that MPI does
# not see, a mesh of another size, data that one node does not have, a folder in which another node's run is at work.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
make_data
base=("$DTX" train "${small[@]}" --train.steps 4)

# refuse CODE REPORTS WORDS COMMAND…: ends in time with that code and so many reports, with those words (| between).
refuse() {
    local code=$1 reports=$2 words=$3 begin=$SECONDS got word
    shift 3
    timeout -s KILL 60 "$@" >log 2>&1 </dev/null
    got=$?
    [ "$got" = "$code" ] || complain "'$*' ends with $got, not $code: $(cat log)"
    [ $((SECONDS - begin)) -le 20 ] || complain "'$*' takes $((SECONDS - begin)) s"
    [ "$(grep -c '^dtx: error' log)" = "$reports" ] ||
        complain "'$*': $(grep -c '^dtx: error' log) reports, not $reports: $(cat log)"
    while IFS= read -r word; do
        grep -qF -- "$word" log || complain "'$*' does not say '$word': $(cat log)"
    done < <(tr '|' '\n' <<<"$words")
}
absent() { [ ! -e "$1" ] || complain "a refused run made $1"; }

# Four tasks that do not know of each other. Each says so: nobody can speak for all.
refuse 78 4 "says that 4 tasks were started|srun --mpi=pmix" srun -N 2 -n 4 --mpi=none "${base[@]}" --run.dir a
absent a
# One process of an allocation of several is meant when it says so.
salloc -N 2 -n 4 timeout -s KILL 60 mpirun -n 1 "${base[@]}" --run.dir one >log 2>&1 </dev/null ||
    complain "mpirun -n 1 in an allocation of 4: $(cat log)"

refuse 78 1 "tp 3 × pp 1 × dp 1 = 3 ranks, but 4" srun -N 2 -n 4 "${base[@]}" --run.dir a --parallel.tp 3
absent a

# Data in the /tmp of one node.
on_node n1 cp data.bin data.idx /tmp
refuse 78 1 "(n2)|/tmp/data.idx on n2|No such file" srun -N 2 --ntasks-per-node=1 "${base[@]}" --run.dir a --data.train /tmp/data
absent a

# Two nodes, one folder.
srun -N 1 -n 1 -w n1 "${base[@]}" --run.dir shared --train.steps 1000000 --eval.every 0 --checkpoint.every 5 \
    >first 2>&1 </dev/null &
first=$!
for _ in $(seq 400); do
    [ ! -s shared/metrics.jsonl ] || break
    sleep 0.05
done
refuse 78 1 "already holds a run" srun -N 1 -n 1 -w n2 "${base[@]}" --run.dir shared
for _ in $(seq 400); do
    [ ! -e shared/checkpoints/latest ] || break
    sleep 0.05
done
refuse 78 1 "another dtx is at work in shared: n1, process" srun -N 1 -n 1 -w n2 "${base[@]}" --run.dir shared \
    --resume latest
grep -qx 'state: running' shared/status || complain "a refused run changes the other's status: $(cat shared/status)"
kill -USR1 $first
wait $first
grep -qx 'state: requeue' shared/status || complain "the run that was there: $(cat shared/status first)"
finish
