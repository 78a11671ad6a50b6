#!/usr/bin/env bash
# test: label=long timeout=240
# The matrix of tests/harness/watch.sh under srun on two nodes: ledgers lie in each node's own /dev/shm, a table of both
# nodes needs the copies that survivors leave in RUN/watch. srun kills the survivors of a death at once: what happened is
# then read with `dtx watch` on the dead rank's node.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
out=$work program=$DTX_BUILD/tests/test_ranks_watch_rank
ledgers='' one=n1 two=n2 survivors=no
. "$DTX_SOURCE/tests/harness/watch.sh"
launch() { DTX_CLUSTER_LIMIT=40 on_nodes 4 "$@" </dev/null; }
look() { on_node n2 "$@"; }
left() { on_node n1 pgrep -f "^$program"; on_node n2 pgrep -f "^$program"; }
files() { for node in n1 n2; do on_node $node find /dev/shm -name 'dtx-watch-*'; done; }
watch_matrix
