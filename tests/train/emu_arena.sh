#!/usr/bin/env bash
# test: label=train timeout=240
# The program on an emulated device takes its memory from an arena of the plan's size, stage for stage, on one rank and
# two, in training, evaluation and generation; with DTX_ARENA=0 an allocation for each buffer, and the same bits.
# A device that is too small is refused before the first step.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
small+=(--model.layers 2 --device emu --train.steps 3 --eval.every 2 --eval.samples 8)
export OMPI_MCA_btl_vader_single_copy_mechanism=none
two=(--parallel.tp 2 --train.stages "256 train.length=32 train.batch=4")

for ranks in 1 2; do
    more=()
    [ "$ranks" = 1 ] || more=("${two[@]}")
    train "$ranks" "arena$ranks" "${more[@]}"
    grep "not in the plan" log && complain "$ranks ranks: $(cat log)"
    DTX_ARENA=0 train "$ranks" "each$ranks" "${more[@]}"
    diff <(numbers "arena$ranks") <(numbers "each$ranks") >log || complain "$ranks ranks: other numbers: $(cat log)"
    same_arrays "arena$ranks"/checkpoints/step-00000003 "each$ranks"/checkpoints/step-00000003
done
for arena in 1 0; do
    DTX_ARENA=$arena start 1 eval --device emu --resume arena1/checkpoints --data.train data \
        >"eval$arena" 2>&1 || complain "evaluation ends with $?: $(cat "eval$arena")"
    DTX_ARENA=$arena start 1 generate --device emu --resume arena1/checkpoints --tokenizer tok.json \
        --prompt int --tokens 8 >"text$arena" 2>&1 || complain "generation ends with $?: $(cat "text$arena")"
done
diff eval1 eval0 >/dev/null || complain "evaluation: $(cat eval1 eval0)"
cmp text1 text0 || complain "generation: $(cat text1 text0)"

for ranks in 1 2; do
    DTX_EMU_MEMORY=100000 start "$ranks" train "${small[@]}" --parallel.dp "$ranks" --run.dir "refused$ranks" >log 2>&1 \
        </dev/null
    code=$?
    if [ $code != 78 ] || ! grep -q 'this rank will take .* of its device' log || [ -s "refused$ranks"/metrics.jsonl ]; then
        complain "a device too small for $ranks ranks: exit code $code: $(cat log)"
    fi
done
finish
