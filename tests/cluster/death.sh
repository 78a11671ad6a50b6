#!/usr/bin/env bash
# test: label=cluster timeout=150
# One rank fails or is killed under srun: every rank on both nodes is gone within seconds, one report names the rank, its
# node and the cause. (ranks.comm_death: the same under mpirun.)
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
program=$DTX_BUILD/tests/test_ranks_comm_finish
left() { on_node n1 pgrep -f "^$program"; on_node n2 pgrep -f "^$program"; }

for mode in together all busy killed requeue; do
    begin=$SECONDS
    DTX_CLUSTER_LIMIT=40 on_nodes 4 "$program" "$mode" >log 2>&1
    code=$?
    [ $((SECONDS - begin)) -le 15 ] || complain "$mode: takes $((SECONDS - begin)) s: $(cat log)"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(left)" ] || break
        sleep 0.3
    done
    [ -z "$(left)" ] || complain "$mode: ranks are left: $(left)"
    reports=$(grep -c '^dtx: error' log)
    wanted=1 text='' codes=78
    case $mode in
    together) text='^dtx: error on rank 2 \(n2\): cannot read /data/tokens.bin' ;;
    busy) text='^dtx: error on rank 2 \(n2\): cannot read /data/tokens.bin' codes='78|137' ;; # rank 2 ends the others
    all) text="^dtx: error on rank 0 \(n1\): no such key 'trian.steps' \(4 of 4 ranks failed\)" ;;
    killed) text='n2: task 2: Killed' wanted=0 codes=137 ;;
    requeue) wanted=0 codes=75 ;;
    esac
    [[ $code =~ ^($codes)$ ]] || complain "$mode: exit code $code, not $codes: $(cat log)"
    [ "$reports" = $wanted ] || complain "$mode: $reports reports: $(cat log)"
    grep -qE "$text" log || [ -z "$text" ] || complain "$mode: does not say '$text': $(cat log)"
done
finish
