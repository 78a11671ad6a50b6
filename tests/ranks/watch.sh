#!/usr/bin/env bash
# test: label=ranks timeout=240
# One rank of four is killed, stopped, exits, computes for ever, leaves early, or calls something else than the others
# (tests/harness/watch.sh), under mpirun. cluster/watch.sh: under srun on two nodes.
set -uo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
program=$out/watched # a copy with a name of its own, so that processes left behind can be counted
cp "$DTX_BUILD/tests/test_ranks_watch_rank" "$program"
ledgers=$out/ledgers one=$(hostname) two=$one survivors=yes
mkdir "$ledgers"
. "$DTX_SOURCE/tests/harness/watch.sh"
launch() { timeout -s KILL 60 mpirun -n 4 "$@" </dev/null; }
look() { "$@"; }
left() { pgrep -f "^$program"; }
files() { ls -A "$ledgers"; }
watch_matrix
