#!/usr/bin/env bash
# A Slurm cluster of two nodes on this machine: tests/run.sh slurm [COMMAND…]
# Opens a shell on its head, or runs the command there; everything is gone when that ends. --possible only asks whether
# this machine allows it. Needs root.
set -uo pipefail
DTX_SOURCE=$(realpath "$(dirname "$0")/..")
DTX_BUILD=${DTX_BUILD:-$DTX_SOURCE/build}
export DTX_SOURCE DTX_BUILD OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
. "$DTX_SOURCE/tests/harness/cluster.sh"
if [ "${1:-}" = --possible ]; then
    cluster_possible
    exit
fi
cluster_enter "$@"
cluster_start
PATH=$DTX_BUILD:$PATH
[ $# -eq 0 ] || { "$@"; exit; }
sinfo
echo "srun -N 2 --ntasks-per-node=2 dtx train …    on_node n1 ps aux    node_stop n2    node_start n2"
echo "logs: $DTX_CLUSTER/slurm/*.log"
bash --rcfile <(declare -p cluster_namespaces cluster_pid; declare -f; echo "PS1='head \\W\\$ '") -i
