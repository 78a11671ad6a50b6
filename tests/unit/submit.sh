#!/usr/bin/env bash
# test: label=unit timeout=60
# What `dtx submit --dry-run` writes: nodes, tasks, GPUs, hooks and mesh in the script's head, elastic jobs too, bash that is
# sound; `dtx plan --flags`, by which such a job gets its mesh; what cannot be submitted is refused.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
base=(submit --preset laptop --data.train "/scratch/two words" --run.dir /scratch/run --machine h100 --train.batch 64 --dry-run)
has() { # LINE…: as a whole line, or up to the comment behind it
    local line
    for line; do grep -qxE "$line( +#.*)?" script || complain "no line '$line' in: $(sed '/^# ---/q' script)"; done
}
lacks() { ! grep -qE "$1" script || complain "'$1' is there: $(grep -E "$1" script)"; }

"$DTX" "${base[@]}" --nodes 2 --gpus-per-node 8 --cpus-per-task 12 --container "apptainer exec --nv dtx.sif" \
    --modules "openmpi hdf5" --array 1-8%2 >script 2>log </dev/null || complain "submit: $(cat log)"
has '#SBATCH --nodes=2' '#SBATCH --ntasks-per-node=8' '#SBATCH --gpus-per-node=8' '#SBATCH --cpus-per-task=12' \
    '#SBATCH --array=1-8%2' 'tasks=8' 'nodes=2' 'fewest=2' 'planner=\(--machine=h100\)' 'preflight=off' \
    'container=\(apptainer exec --nv dtx.sif\)' 'modules=\(openmpi hdf5\)' 'run=/scratch/run' \
    "options=\(--preset laptop --data.train '/scratch/two words' --train.batch 64\)" 'mesh=\(--parallel.tp=.*\)'
lacks '^#SBATCH --mincpus'
bash -n script || complain "the script is no bash"

"$DTX" "${base[@]}" --nodes 1-2 --gpus-per-node 8 --cpus-per-task 12 --preflight true --sbatch "qos=long  --mem=0" >script 2>log </dev/null || complain "elastic: $(cat log)"
has '#SBATCH --qos=long' '#SBATCH --mem=0' "options=\(--preset laptop --data.train '/scratch/two words' --train.batch 64\)"
has '#SBATCH --nodes=1-2' '#SBATCH --mincpus=96' 'tasks=8' 'nodes=2' 'fewest=1' 'preflight=on'
lacks '^#SBATCH --ntasks-per-node'

flags=$("$DTX" plan --preset laptop --train.batch 64 --machine h100 --ranks 16 --flags) || complain "plan --flags: $flags"
grep -qF "mesh=($flags)" script || complain "the mesh is not the plan's: $flags, $(grep ^mesh script)"
[ $(($(tr ' ' '\n' <<<"$flags" | sed -n 's/^--parallel.[tdpc]p=//p' | paste -sd'*'))) = 16 ] || complain "not of 16 ranks: $flags"
flags=$("$DTX" plan --preset laptop --train.batch 7 --ranks 16 --parallel.tp 1 --parallel.pp 1 --flags 2>log)
[ $? = 78 ] && [ -z "$flags" ] || complain "no mesh fits, but: $flags"

refuse() { # WORDS OPTION…
    local words=$1
    shift
    "$DTX" "${base[@]}" "$@" >script 2>log </dev/null
    [ $? = 78 ] && grep -qF -- "$words" log || complain "'$*' is not refused with '$words': $(cat log)"
}
refuse "nodes: '2-' is neither a number of nodes nor MIN-MAX" --nodes 2-
refuse "nodes: '3-2' is neither" --nodes 3-2
refuse "nodes: '0' is neither" --nodes 0
refuse "1,000,000 ranks" --nodes 1000000 --tasks-per-node 4096
refuse "too many options for a batch script" --container "$(printf '%02000d' 0)"
refuse "no mesh of 3 ranks fits" --nodes 3-4 --tasks-per-node 1 --parallel.tp 1 --parallel.pp 1 --parallel.cp 1
finish
