#!/usr/bin/env bash
# test: label=cluster timeout=150
# dtx doctor --ranks under srun on two nodes: passes on a shared folder, with Slurm's names for the nodes; a folder that
# every node has for itself is seen through; a stopped rank's node is the one that --bad-nodes names.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
doctor=("$DTX" doctor --ranks --parallel.tp 2 --cpu.threads 1 --seconds 0.05 --least.gemm 0 --least.memory 0 --least.node 0
    --least.link 0 --bad-nodes bad)
says() { # TEXT…
    local text
    for text; do grep -qE -- "$text" log || complain "no '$text' in $(cat log)"; done
}

on_nodes 4 "${doctor[@]}" >log 2>&1 || complain "two fit nodes, exit code $?: $(cat log)"
says '^pre-flight: passed: 2 nodes, 4 ranks' '^n1 +2 ' '^n2 +2 ' '^three steps: as they should be'
[ -z "$(cat bad)" ] || complain "bad nodes: $(cat bad)"
[ -z "$(find . -maxdepth 1 -name '.dtx-doctor*')" ] || complain "left behind: $(ls -A)"

# Each node has a /tmp of its own: there are as many that see the files as do not, so neither is blamed.
on_nodes 4 "${doctor[@]}" --run.dir /tmp/run >log 2>&1
[ $? = 1 ] || complain "a folder that is not shared: $(cat log)"
says '^FAULT +n2 does not see what other nodes write in /tmp/.dtx-doctor' 'no single node is to blame$'
[ -z "$(cat bad)" ] || complain "bad nodes of a folder: $(cat bad)"

on_nodes 4 "${doctor[@]}" --seconds 2 --comm.timeout 4 >log 2>&1 &
for _ in $(seq 200); do
    pid=$(sed -n 's/^rank 3 pid \([0-9]*\).*/\1/p' .dtx-doctor-*/watch/ranks 2>/dev/null)
    [ -z "$pid" ] || break
    sleep 0.05
done
on_node n2 kill -STOP "$pid"
wait $! && complain "a stopped rank, but exit code 0"
says '^  (stopped|missing) +rank 3 \(n2' '^dtx: pre-flight: FAILED: unfit: n2$'
[ "$(cat bad)" = n2 ] || complain "bad nodes of a stopped rank: $(cat bad)"
finish
