#!/usr/bin/env bash
# test: label=train timeout=240
# `dtx train --trace.path`: a valid trace of every rank whose spans lie in each other, on meshes with and without a
# pipeline, ZeRO 0, 1 and 2; sums of gradients go on beside computation when they may and never otherwise; the losses
# are the same. A path that cannot be written ends the run before its first step.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
check=$DTX_BUILD/tests/test_unit_trace_file
options=(--train.steps 4 --trace.skip 2 --trace.steps 9 --model.width 128 --model.ffn 256 --train.length 64
    --parallel.bucket_bytes 200000 --eval.every 0)

# traced RANKS NAME OPTION…: trains with a trace and checks it; collectives beside blocks are counted in $crossing. (How
# long they are is up to the load of the machine.)
traced() {
    local ranks=$1 name=$2
    shift 2
    train "$ranks" "$name" "${options[@]}" --trace.path "$name.json" "$@"
    grep -q "trace from step 3 on in $name.json. Communication of all ranks: " log || complain "$name: $(cat log)"
    "$check" "$name.json" "$ranks" >checked 2>&1 || complain "$name: $(cat checked)"
    crossing=$(awk '/^overlapped share/ { print $4 }' checked)
    echo "$name: $(tail -n 1 checked)"
}
traced 2 beside --parallel.dp 2
[ "${crossing:-0}" -ge 4 ] || complain "sums beside computation: $crossing collectives"
traced 2 once --parallel.dp 2 --comm.overlap false
[ "${crossing:-1}" -eq 0 ] || complain "sums at once: $crossing collectives beside computation"
traced 2 sharded --parallel.dp 2 --parallel.zero 2 --train.micro_batch 2
[ "${crossing:-0}" -ge 4 ] || complain "ZeRO 2: $crossing collectives beside computation"
traced 4 pipe --parallel.dp 2 --parallel.pp 2 --parallel.schedule zb_h1
traced 4 tensor --parallel.dp 2 --parallel.tp 2 --parallel.zero 0
for key in loss grad_norm; do
    [ "$(field $key beside)" = "$(field $key once)" ] || complain "$key differs with the time of the sums"
done

start 2 train "${small[@]}" --run.dir bad --trace.path none/such/file.json >log 2>&1 </dev/null && complain "it went on"
grep -q "trace.path: cannot write 'none/such/file.json'" log || complain "no word of the path: $(cat log)"
finish
