#!/usr/bin/env bash
# test: label=bench timeout=300
# From mpirun to the end of the first training step of 8 ranks, beyond what mpirun and MPI themselves need: under 2 s on
# 2 cores. In turns: a program that only passes a barrier, and `dtx train --preset laptop` (tp 2 × pp 2 × dp 2). The
# medians of ROUNDS (variable, 5) are compared; the trainer's own account of its start is shown.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/json.sh"
rounds=${ROUNDS:-5} ranks=8 limit=2
make_data

cat >barrier.c <<'C'
#include <mpi.h>
#include <stdio.h>
int main(void)
{
    int rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        fprintf(stderr, "the ranks have met\n");
    MPI_Finalize();
}
C
mpicc -o barrier barrier.c || complain "mpicc cannot build a program of ten lines"

# seconds_to PATTERN COMMAND…: from its start to the first line of its output that holds PATTERN; all lines go to log.
seconds_to() {
    local begin=$EPOCHREALTIME end='' line pattern=$1
    shift
    : >log
    while IFS= read -r line; do
        [[ -n $end || $line != *"$pattern"* ]] || end=$EPOCHREALTIME
        echo "$line" >>log
    done < <("$@" 2>&1 </dev/null)
    awk -v a="$begin" -v b="${end:-nan}" 'BEGIN { printf "%.3f\n", b - a }'
}

launch=(mpirun --bind-to none -n "$ranks")
for ((i = 1; i <= rounds; i++)); do
    seconds_to "the ranks have met" "${launch[@]}" ./barrier >>bare
    rm -rf run
    seconds_to "step 1/" "${launch[@]}" "$DTX" train --preset laptop --parallel.dp 2 --data.train "$work/data" \
        --run.dir run --train.steps 1 --lr.warmup 0 --eval.samples 0 >>train
    grep "start: " log | tee -a starts || complain "no account of the start: $(cat log)"
done
difference=$(paste train bare | awk '{ print $1 - $2 }' | median)
echo "$ranks ranks, medians of $rounds: mpirun to a barrier $(median <bare) s, to the end of the first step" \
    "$(median <train) s, difference $difference s (limit $limit s)"
awk -v d="$difference" -v limit="$limit" 'BEGIN { exit !(d > 0 && d < limit) }' ||
    complain "the start takes $difference s beyond mpirun's own; single ones: $(paste train bare | xargs)"
finish
