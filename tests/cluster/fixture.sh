#!/usr/bin/env bash
# test: label=long timeout=120
# The cluster itself: two nodes with their own names, processes, /tmp and /dev/shm that share the test's folder; a node
# that loses its power is taken out and comes back; two clusters at once do not meet; nothing is left when a script ends,
# is terminated or killed.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"

inside() { # node|wait
    cluster_start
    srun -N 2 --ntasks-per-node=1 sh -c 'h=$(hostname); touch /tmp/mine.$h /dev/shm/mine.$h; sleep 0.2
        ls /tmp/mine.* /dev/shm/mine.* >$h; ip -o -4 address show dev eth0 | grep -c 10.77.0.1 >>$h; getent hosts head >>$h' || exit 1
    if [ "$1" = node ]; then
        local deadline=$((SECONDS + 60))
        srun -N 2 sleep 100 >lost 2>&1 &
        until on_node n1 pgrep -f 'sleep 100$' && on_node n2 pgrep -f 'sleep 100$'; do
            cluster_before "$deadline" "no step on both nodes"
        done
        node_stop n2
        node_wait n2 'down*' "$deadline"
        wait $! && exit 1
        srun -N 1 -n 2 hostname | sort -u >alone
        node_start n2
        node_wait n2 idle "$deadline"
        srun -N 2 --ntasks-per-node=1 --mpi=pmix hostname | sort | xargs >again
        exit
    fi
    : >up
    sleep 100 &
    wait
}
if [ "${1:-}" = inside ]; then
    cluster_enter "$@"
    inside "${@:2}"
fi

cluster_possible || { echo "namespaces for a cluster are not allowed here"; exit 77; }
. "$DTX_SOURCE/tests/harness/train.sh"
script=$DTX_SOURCE/tests/cluster/fixture.sh
descendants() { # PROCESS
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}
begin() { # NAME MODE: its files lie in NAME
    mkdir "$1"
    (cd "$1" && TMPDIR=$PWD exec bash "$script" inside "$2") >"$1.log" 2>&1 </dev/null &
}
up() { # NAME
    for _ in $(seq 600); do
        [ ! -e "$1/up" ] || return 0
        sleep 0.05
    done
    complain "$1 does not come up: $(cat "$1.log")"
}
gone() { # NAME PROCESS…
    [ $# -gt 12 ] || complain "$1: only $(($# - 1)) processes were seen"
    vanish "$@"
}
alike() { # NAME: what the nodes saw
    local node
    for node in n1 n2; do
        printf '%s\n' "/dev/shm/mine.$node" "/tmp/mine.$node" 1 "10.77.0.1       head" | diff - "$1/$node" >log ||
            complain "$1: node $node sees: $(cat log)"
    done
}

begin terminated wait
terminated=$!
begin killed wait
killed=$!
up terminated
up killed
alike terminated
alike killed
processes=$(descendants "$terminated")
kill -TERM "$terminated"
wait "$terminated"
[ $? = 143 ] || complain "a terminated cluster's exit code"
gone terminated $processes
[ -z "$(ls -d terminated/dtx-cluster.* 2>/dev/null)" ] || complain "a terminated cluster leaves its folder"
processes=$(descendants "$killed")
kill -KILL "$killed"
wait "$killed" 2>/dev/null
gone killed $processes

begin node node
wait $! || complain "a node without power: $(cat node.log)"
[ "$(cat node/alone)" = n1 ] || complain "with one node left jobs run on: $(cat node/alone)"
[ "$(cat node/again)" = "n1 n2" ] || complain "with both nodes again jobs run on: $(cat node/again)"
[ "$(ls -d node/dtx-cluster.* 2>/dev/null)" = "" ] || complain "a cluster that ends leaves its folder"
for link in bridge n1 n2; do
    ip link show $link >log 2>&1 && complain "a link is left: $(cat log)"
done
finish
