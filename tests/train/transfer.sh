#!/usr/bin/env bash
# test: label=train timeout=120
# Runs of models scaled by a rule: exports carry its factors in their weights and compute the same; the rule is fixed in a
# run and part of the model for --init, eval, average; on other meshes the curve is the same.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
small+=(--lr.peak 1e-2 --train.steps 6 --checkpoint.every 3 --checkpoint.keep 0 --eval.samples 8 --eval.every 3)
rule=(--model.transfer completep --model.base_width 16 --model.base_layers 2 --model.base_head_dim 2)
odd=(--model.transfer completep --model.base_width 20 --model.base_layers 3 --model.embed_mult 3 --model.output_mult 0.7)
heldout_of() { sed -nE 's/^held-out loss ([0-9.]+) .*/\1/p' "$1"; }
# refused CODE TEXT WORDS…: dtx WORDS… ends with the code and says the text
refused() {
    local expected=$1 text=$2
    shift 2
    timeout -s KILL 60 "$DTX" "$@" >out 2>&1 </dev/null
    local code=$?
    [ "$code" = "$expected" ] || complain "dtx $*: exit code $code instead of $expected: $(cat out)"
    grep -qF -- "$text" out || complain "dtx $*: '$text' is not in: $(cat out)"
}

# Factors that are powers of two and others; tied and untied; both kinds of attention.
for kind in tied-diff untied-diff tied-softmax odd-tied-diff odd-untied-diff; do
    options=("${rule[@]}" --model.attention "${kind##*-}")
    [[ $kind == odd* ]] && options=("${odd[@]}" --model.attention "${kind##*-}")
    [[ $kind == *untied* ]] && options+=(--model.tied false)
    train 1 "$kind" "${options[@]}"
    "$DTX" ckpt export --out "$kind-hf" "$kind/checkpoints" >log 2>&1 || complain "export of $kind: $(cat log)"
    "$DTX" ckpt import --out "$kind-dtx" "$kind-hf" >log 2>&1 || complain "import of $kind: $(cat log)"
    "$DTX" eval --resume "$kind/checkpoints" --samples 8 >direct 2>log
    "$DTX" eval --resume "$kind-dtx" --samples 8 --data.train "$work/data" >imported 2>log
    bound=1e-5
    close_numbers $bound <(heldout_of direct) <(heldout_of imported) >log || complain "$kind exported: $(cat log)"
done

# The same curve on other meshes; the log says what the rule makes of the base model's numbers, once.
train 4 mesh4 "${odd[@]}" --parallel.tp 2 --parallel.pp 2
[ "$(grep -c 'width 1.6 times the base .* lr × 0.625, decay × 1.6, .* branches × 0.75, scores × 1, logits × 0.4375' log)" = 1 ] ||
    complain "what the rule does is not said once: $(cat log)"
train 4 mesh-zero "${odd[@]}" --parallel.dp 2 --parallel.cp 2 --parallel.zero 2
for run in mesh4 mesh-zero; do
    close_numbers 1e-4 <(field loss odd-tied-diff) <(field loss $run) >log || complain "$run: $(cat log)"
done

# A resumed run keeps its rule and continues bit for bit; another one is refused, by --init too.
train 1 parts "${odd[@]}" --train.until 3
train 1 parts --resume latest
same_arrays odd-tied-diff/checkpoints/step-00000006 parts/checkpoints/step-00000006
refused 78 model.transfer train --run.dir parts --resume latest --model.transfer none
refused 78 model.base_width train --run.dir parts --resume latest --model.base_width 16
refused 78 model.transfer train "${small[@]}" --run.dir new --init parts/checkpoints --model.transfer mup
refused 78 'needs model.base_width' train "${small[@]}" --run.dir new --model.transfer mup
train 1 plain
refused 78 model.transfer ckpt average --out mean parts/checkpoints plain/checkpoints
# --init takes the rule with the weights: at a learning rate of 0 the held-out loss is the checkpoint's
"$DTX" eval --resume parts/checkpoints --samples 8 >direct 2>log
train 1 init --init parts/checkpoints --train.steps 1 --lr.warmup 0 --lr.peak 0 --lr.min 0 --eval.every 1
close_numbers 1e-6 <(heldout_of direct) <(field heldout_loss init | head -n 1) >log || complain "init: $(cat log)"
finish
