#!/usr/bin/env bash
# test: label=cluster timeout=120
# What dtx's scripts set for srun makes PMIx' fences wait for all nodes (launch/slurm/README.md, "Starting under srun"), and
# `dtx doctor` says so where it is not set.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
for _ in 1 2 3; do
    on_nodes 4 "$DTX_BUILD/tests/test_ranks_launcher_fence" 0.5 >log 2>&1 || complain "no fence: $(cat log)"
done
advice='SLURM_PMIX_FENCE=ring is not set'
SLURM_JOB_NUM_NODES=2 "$DTX" doctor --seconds 0.01 >log 2>&1
! grep -q "$advice" log || complain "advice without need: $(cat log)"
env -u SLURM_PMIX_FENCE SLURM_JOB_NUM_NODES=2 "$DTX" doctor --seconds 0.01 >log 2>&1
grep -q "$advice" log || complain "no advice: $(cat log)"
finish
