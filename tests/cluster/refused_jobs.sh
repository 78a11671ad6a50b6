#!/usr/bin/env bash
# test: label=cluster timeout=120
# Batch jobs that cannot work end with the reason and are not tried again: a library that one node lacks, srun without
# PMIx, mpirun as root, another number of nodes than the mesh is for.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"
options=(--train.steps 4 --eval.every 0)
declare -A jobs

library=$(realpath "$(ldd "$DTX" | sed -n 's/.*libjansson[^ ]* => \([^ ]*\).*/\1/p')")
on_node n2 mount --bind /dev/null "$library"
submit library "${options[@]}"
jobs[library]=$job
mkdir bin
printf '#!/bin/sh\n[ "$1" != --mpi=list ] || { echo MPI plugin types are... none pmi2; exit; }\nexec %s "$@"\n' "$(command -v srun)" >bin/srun
chmod +x bin/srun
PATH=$work/bin:$PATH submit pmix "${options[@]}"
jobs[pmix]=$job
edit='s/^set -u$/unset OMPI_ALLOW_RUN_AS_ROOT; set -u/'
submit root "${options[@]}" --launcher mpirun
jobs[root]=$job
edit='s/^#SBATCH --nodes=2/#SBATCH --nodes=1/'
submit fewer "${options[@]}"
jobs[fewer]=$job

refused() { # RUN WORDS: what its script says
    until_true 60 "the end of $1" gone "${jobs[$1]}"
    said "$1" | grep -q "has to be mended, not requeued: $2" || complain "$1: $(said "$1"; cat "$1"/logs/attempt-*)"
    ! attempts "$1" 2 || complain "$1: was tried again"
}
refused library ".*dtx does not start on n2: .*libjansson"
refused pmix 'srun has no PMIx here'
refused root 'mpirun does not start as root'
refused fewer 'the mesh is for 2 nodes of 2 ranks, the job has 1'
finish
