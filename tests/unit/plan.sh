#!/usr/bin/env bash
# test: label=unit timeout=120
# dtx plan: what fits comes first and by time, what does not has its reason, unknown machines name the known ones, the
# JSON is JSON and adds up, flags are kept.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fault() { echo "FAULT: $*"; tail -n 40 ./*.txt 2>/dev/null; exit 1; }

# value FILE PATH…: through CMake's JSON reader. count FILE PATH…: elements of an array.
get() {
    printf 'file(READ "%s" text)\nstring(JSON v %s "${text}" %s)\nmessage("${v}")\n' "$2" "$1" "${*:3}" >get.cmake
    cmake -P get.cmake 2>&1
}
value() { get GET "$@"; }
count() { get LENGTH "$@"; }
holds() { awk "BEGIN { exit !($1) }"; }

# A model that fits: its weights are known (bf16, ZeRO over 8 ranks), the fastest is first.
"$DTX" plan --preset diff-1.4b --ranks 8 --machine h100 --json --stages >fit.json 2>err.txt || fault "exit code $?"
n=$(count fit.json fit)
[ "$n" -ge 3 ] || fault "$n meshes fit"
cat >check.cmake <<'C'
file(READ fit.json text)
string(JSON limit GET "${text}" machine memory_bytes)
string(REGEX REPLACE "\\..*" "" limit "${limit}")
string(JSON n LENGTH "${text}" fit)
math(EXPR n "${n} - 1")
set(last 0)
foreach(i RANGE ${n})
  string(JSON row GET "${text}" fit ${i})
  foreach(key tp pp dp cp step_seconds mfu)
    string(JSON ${key} GET "${row}" ${key})
  endforeach()
  math(EXPR ranks "${tp} * ${pp} * ${dp} * ${cp}")
  if(NOT ranks EQUAL 8 OR step_seconds LESS last OR NOT step_seconds GREATER 0 OR NOT mfu GREATER 0.05 OR mfu GREATER 0.5)
    message("row ${i}: ${ranks} ranks, ${step_seconds} s after ${last} s, MFU ${mfu}")
  endif()
  set(last ${step_seconds})
  set(most 0)
  math(EXPR stages "${pp} - 1")
  foreach(s RANGE ${stages})
    set(sum 0)
    foreach(cause weights gradients masters states activations gradient_slots workspace shared pipe batch host overhead)
      string(JSON bytes GET "${row}" stages ${s} ${cause})
      math(EXPR sum "${sum} + ${bytes}")
    endforeach()
    string(JSON total GET "${row}" stages ${s} total)
    if(NOT sum EQUAL total OR total GREATER limit)
      message("row ${i} stage ${s}: causes add up to ${sum}, total ${total}, memory ${limit}")
    endif()
    if(total GREATER most)
      set(most ${total})
    endif()
  endforeach()
  string(JSON shown GET "${row}" memory total)
  if(NOT shown EQUAL most)
    message("row ${i} shows ${shown} bytes, its fullest stage takes ${most}")
  endif()
endforeach()
C
faults=$(cmake -P check.cmake 2>&1)
[ -z "$faults" ] || fault "$faults"

# One data axis: 2 bytes a weight of 1,413,271,552, fp32 gradients, a bubble of none.
flags=(--parallel.tp 1 --parallel.pp 1 --train.recompute none --parallel.zero 1)
"$DTX" plan --preset diff-1.4b --ranks 8 --machine h200 --json "${flags[@]}" >one.json 2>err.txt || fault "exit code $?"
[ "$(count one.json fit)" -eq 1 ] || fault "flags are not kept"
weights=$(value one.json fit 0 memory weights)
holds "$weights > 2 * 1413271552 * 0.999 && $weights < 2 * 1413271552 * 1.01" || fault "weights take $weights"
states=$(value one.json fit 0 memory states)
holds "$states > 1413271552 * 0.999 && $states < 1413271552 * 1.02" || fault "states take $states of 8/8 bytes a weight"
holds "$(value one.json fit 0 bubble) == 0" || fault "a bubble without a pipeline"

# Idle share of 1F1B: (p − 1)/(m + p − 1).
"$DTX" plan --preset diff-13b --ranks 16 --json --parallel.schedule 1f1b --parallel.pp 4 --parallel.tp 1 \
    >pipe.json 2>err.txt || fault "exit code $?"
m=$(value pipe.json fit 0 micro_batches)
bubble=$(value pipe.json fit 0 bubble)
holds "($bubble - 3 / ($m + 3)) ^ 2 < 1e-18" || fault "bubble $bubble of $m micro-batches"

# Context ranks: tried where sequences are long, with both exchanges; a ring needs less memory.
"$DTX" plan --preset diff-3b --ranks 8 --json --all --top 100000 --parallel.pp 1 --parallel.tp 2 --parallel.cp 4 \
    --train.length 65536 --train.batch 1 --train.recompute block --parallel.zero 1 --parallel.sequence true \
    >context.json 2>err.txt
[ "$(count context.json fit)" -eq 2 ] || fault "$(count context.json fit) ways to exchange keys"
for i in 0 1; do
    exchange=$(value context.json fit $i cp_exchange)
    declare "bytes_$exchange=$(value context.json fit $i memory total)" "sent_$exchange=$(value context.json fit $i sent_bytes cp)"
done
holds "$bytes_ring < $bytes_gather" || fault "memory: ring $bytes_ring, gather $bytes_gather"
# 3 of 4 parts: bf16 k and v of 16,384 rows over 2 tensor ranks in forward, again in recomputation and in backward, fp32
# gradients; in the ring one step more.
kv=$((16384 * 3072 * 2 / 2)) # elements on a rank
holds "$sent_gather == 28 * (3 * 3 * 2 + 3 * 4) * $kv" || fault "gather sends $sent_gather"
holds "$sent_ring == 28 * (3 * 3 * 2 + 4 * 4) * $kv" || fault "ring sends $sent_ring"
"$DTX" plan --preset diff-3b --ranks 16 --json --top 1000 >context.json 2>err.txt || fault "exit code $?"
grep -q '"cp": 2' context.json || fault "no context ranks for 4,096 tokens"
! grep -q '"cp": 4' context.json || fault "context ranks whose chunks are short"

# Too big: said with the cause; exit 78.
"$DTX" plan --preset diff-13b --ranks 2 --machine h100 >big.txt 2>err.txt
[ $? -eq 78 ] || fault "nothing fits, but no exit code 78"
grep -Eq 'stage [01] needs [0-9.]+ GiB of 79.1: weights .*gradients .*activations' big.txt || fault "no reason"
grep -q 'no mesh of 2 ranks fits on h100' err.txt || fault "no report"
"$DTX" plan --preset diff-13b --ranks 8 --machine h100 >table.txt 2>err.txt || fault "exit code $?"
grep -q 'parallel.tp 8 does not divide 20 heads.*what fits: 1, 2, 4' table.txt || fault "no reason of the trainer"

# Machines.
"$DTX" plan --preset laptop --machine h300 >table.txt 2>err.txt
[ $? -eq 78 ] || fault "an unknown machine must exit with 78"
grep -q "no 'h300'; there are: a100, h100, h200, b200, cpu" err.txt || fault "known machines are not named"
cat >box.yaml <<'Y'
name: box
devices_per_node: 2
memory_bytes: 8e9
overhead_bytes: 1e9
bf16_flops: 1e14
fp32_flops: 2e13
node_link: 2e10
network_link: 1e9
Y
"$DTX" plan --preset bench-124m --machine box.yaml --json >box.json 2>err.txt || fault "exit code $?"
[ "$(value box.json ranks)" -eq 2 ] || fault "the default is one node"
[ "$(value box.json machine name)" = box ] || fault "the machine's name"
sed -i '/node_link/d; s/fp32_flops/fp32_flop/' box.yaml
"$DTX" plan --preset bench-124m --machine box.yaml >table.txt 2>err.txt
[ $? -eq 78 ] || fault "a broken machine must exit with 78"
grep -q "fp32_flops" err.txt && grep -q "a machine needs node_link" err.txt || fault "faults of the file are not named"
"$DTX" plan --preset laptop --machine cpu --ranks 2 >table.txt 2>err.txt || fault "cpu: exit code $?"
grep -q '2 ranks on cpu (' table.txt || fault "cpu"
"$DTX" plan --help >table.txt || fault "--help"
grep -q -- '--machine TEXT' table.txt || fault "--help lists no --machine"
exit 0
