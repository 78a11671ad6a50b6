#!/usr/bin/env bash
# test: label=train timeout=120
# cuda.graphs as its users have it: a run in the emulator whose stages change the length of sequences, with evaluations,
# has the bits of one without; a trace and a bench show the graphs; the CPU says that it has none and trains; what a
# graph cannot hold is refused by name.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/json.sh"
make_data
options=(--device emu --model.layers 2 --train.steps 8 --train.batch 4 --train.micro_batch 1 --eval.every 2 --eval.samples 8
    --data.separator 10 --data.doc_reset true --checkpoint.every 0
    --train.stages "200 train.length=24 train.batch=3; 400 lr.peak=2e-4")
numbers() { grep -oE '"(loss|grad_norm|heldout_loss)": *[-0-9.e+]+' "$1/metrics.jsonl"; }
train 1 plain "${options[@]}"
train 1 graphs "${options[@]}" --cuda.graphs true --trace.path trace.json --trace.skip 2
cmp <(numbers plain) <(numbers graphs) || complain "losses differ: $(diff <(numbers plain) <(numbers graphs) | head)"
[ "$(numbers plain | wc -l)" -ge 20 ] || complain "few numbers: $(numbers plain)"
"$DTX" ckpt diff plain/checkpoints graphs/checkpoints >log 2>&1 || complain "weights differ: $(tail -n 5 log)"
grep -q '"name": *"graph"' trace.json || complain "no graph in the trace"

"$DTX" bench step --model.layers 2 --model.width 32 --model.heads 2 --model.ffn 48 --model.vocab 320 --length 16 --batch 3 \
    --micro_batch 1 --threads 1 --repeats 2 --peak_seconds 0.001 --device emu --cuda.graphs true --attention diff --profile \
    --json bench.json >log 2>&1 || complain "bench: $(cat log)"
[ "$(value bench.json variants diff graphs made)" = 2 ] || complain "bench made other graphs than 2: $(cat bench.json)"
[ "$(value bench.json variants diff graphs launched)" = 22 ] || # 4 steps of 3 micro-batches, but for 2 that warm up
    complain "bench launched $(value bench.json variants diff graphs launched) graphs"
grep -q '"attn_bwd"' bench.json || complain "the profile of a bench with graphs shows no operations"

train 1 cpu --device cpu --cuda.graphs true --train.steps 4 --checkpoint.every 0
[ "$(grep -c 'cuda.graphs: left out, this run computes on the CPU' log)" = 1 ] || complain "the CPU says: $(cat log)"

train 2 single --device emu --model.layers 1 --cuda.graphs true --train.batch 2 --train.steps 3 --checkpoint.every 0 --eval.samples 0
[ "$(grep -c 'cuda.graphs: passes beside an exchange' log)" = 1 ] || complain "one micro-batch on two data ranks: $(cat log)"

# refuses RANKS TEXT OPTION…
refuses() {
    local ranks=$1 text=$2 code
    shift 2
    start "$ranks" train "${small[@]}" --run.dir refused --device emu --cuda.graphs true "$@" >log 2>&1 </dev/null
    code=$?
    [ "$code" = 78 ] || complain "$*: exit code $code: $(cat log)"
    grep -q "$text" log || complain "$*: $(cat log)"
}
refuses 2 'cuda.graphs: parallel.tp 2: .* what fits: cuda.graphs false, or parallel.tp 1' --parallel.tp 2
refuses 2 'cuda.graphs: parallel.cp 2: .* what fits: cuda.graphs false, or parallel.cp 1' --parallel.cp 2
finish
