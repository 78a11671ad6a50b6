#!/usr/bin/env bash
# test: label=ranks timeout=240
# dtx doctor --ranks on three "nodes" (DTX_NODE) of this machine: fit ones pass; what is out of line, hangs or dies is
# named, with its node in --bad-nodes; wrong configurations are refused before anything is measured.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/json.sh"
mkdir shared STOP KILL
dir=shared

# A machine that is shared with other tests: speeds are compared, but not closely.
options=(--parallel.tp 2 --parallel.pp 2 --cpu.threads 1 --seconds 0.05 --least.gemm 0.04
    --least.memory 0 --least.node 0 --least.link 0.03)
# check RANKS-OF-C OPTION…: one rank on each of the nodes a and b, the others on c. Sets code.
check() {
    local c=$1
    shift
    timeout -s KILL 100 mpirun -n 1 env DTX_NODE=a "$DTX" doctor --ranks --run.dir "$dir/run" "${options[@]}" "$@" \
        : -n 1 env DTX_NODE=b "$DTX" doctor --ranks : -n "$c" env DTX_NODE=c "$DTX" doctor --ranks >log 2>&1 </dev/null
    code=$?
}
says() { # TEXT…
    local text
    for text; do grep -qE -- "$text" log || complain "no '$text' in $(cat log)"; done
}
clean() { [ -z "$(ls -A shared)" ] || complain "left behind: $(ls -A shared)"; }

check 2 --json r.json --bad-nodes bad
[ "$code" = 0 ] || complain "fit nodes, exit code $code: $(cat log)"
says '^pre-flight: passed: 3 nodes, 4 ranks' '^three steps: as they should be' '^a +1 ' '^c +2 .*MB/s|^c +2 .*GB/s' '^median '
[ -e bad ] && [ ! -s bad ] || complain "bad nodes: $(cat bad)"
[ "$(value r.json passed)" = ON ] || [ "$(value r.json passed)" = true ] || complain "JSON: passed is $(value r.json passed)"
[ "$(value r.json nodes 2 node)" = c ] || complain "JSON: the third node is $(value r.json nodes 2 node)"
[ "$(value r.json nodes 2 ranks 1 rank)" = 3 ] || complain "JSON: rank 3 is $(value r.json nodes 2 ranks 1 rank)"
for key in "nodes 0 ranks 0 gemm_f32_flops_per_second" "nodes 1 ranks 0 triad_bytes_per_second" "nodes 0 disk_read_bytes_per_second" \
    "nodes 1 disk_write_bytes_per_second" "nodes 0 link_bytes_per_second c" "nodes 1 link_bytes_per_second a" \
    "nodes 2 all_reduce_bytes_per_second" all_reduce_bytes_per_second; do
    # shellcheck disable=SC2086
    got=$(value r.json $key)
    awk -v x="$got" 'BEGIN { exit !(x + 0 > 1e5) }' || complain "JSON: $key is $got"
done
clean

# Nothing is three times as fast as the median: all are named, and their nodes are unfit.
check 2 --least.link 3 --bad-nodes bad
[ "$code" = 1 ] || complain "slow links, exit code $code: $(cat log)"
says '^FAULT   a: network: .*with the best of its partners, .*\(limit: 3 of it\)' '^pre-flight: FAILED: .*; unfit: a, b, c$' \
    '^dtx: error .*pre-flight: 3 of 3 nodes unfit'
[ "$(paste -sd' ' bad)" = "a b c" ] || complain "bad nodes: $(cat bad)"
clean

# A mesh for which no figures are shipped: said, and no fault. A file's options count.
printf 'parallel:\n  tp: 5\n  sequence: false\nmodel:\n  width: 160\n  heads: 5\nrun:\n  dir: shared/run\n' >five.yaml
timeout -s KILL 60 mpirun -n 5 "$DTX" doctor --ranks five.yaml --cpu.threads 1 --seconds 0.01 --least.gemm 0 --least.memory 0 \
    >log 2>&1 </dev/null || complain "tp 5 ends with $?: $(cat log)"
says '^three steps: not compared: no figures for 5 tensor ranks' '^pre-flight: passed'
clean

refuse() { # WORDS RANKS OPTION…
    local words=$1 ranks=$2
    shift 2
    start "$ranks" doctor --ranks --run.dir shared/run --bad-nodes shared/bad "$@" >log 2>&1 </dev/null
    code=$?
    [ "$code" = 78 ] || complain "'$*' ends with $code, not 78: $(cat log)"
    says "$words"
    [ "$(grep -c '^dtx: error' log)" = 1 ] || complain "'$*': $(grep -c '^dtx: error' log) reports"
    clean
}
refuse 'tp 3 × pp 1 × dp 1 = 3 ranks, but 4 were started' 4 --parallel.tp 3
refuse "did you mean 'bad-nodes'" 1 --bad-node bad
refuse 'least.gemm' 1 --least.gemm -1
refuse 'no checkpoint|No such file|there is none' 1 --resume nowhere
start 1 doctor --ranks --folder nowhere >log 2>&1 </dev/null
[ $? = 78 ] || complain "a folder that is not there: $(cat log)"
says 'nowhere.*No such file'

# hang SIGNAL WORDS: rank 3 is sent it while all measure; the others leave, and its node is the one that is unfit.
hang() {
    local signal=$1 pid begin=$SECONDS
    dir=$signal # its own: ranks that are late in dying still look there
    check 2 --bad-nodes "$signal/bad" --seconds 1 --comm.timeout 4 &
    for _ in $(seq 200); do
        pid=$(sed -n 's/^rank 3 pid \([0-9]*\).*/\1/p' "$dir"/.dtx-doctor-*/watch/ranks 2>/dev/null)
        [ -z "$pid" ] || break
        sleep 0.05
    done
    [ -n "$pid" ] || complain "ranks are not listed"
    kill -"$signal" "$pid"
    wait $!
    [ $((SECONDS - begin)) -le 40 ] || complain "$signal: took $((SECONDS - begin)) s"
    grep -q 'passed' log && complain "$signal: passed"
    says "$2"
}
hang STOP '^  stopped +rank 3 '
says '^dtx: pre-flight: FAILED: unfit: c$' 'has not finished in .*comm.timeout 4'
[ "$(cat STOP/bad)" = c ] || complain "STOP: bad nodes: $(cat STOP/bad)"
hang KILL 'signal 9|rank 3 .* is gone'
finish
