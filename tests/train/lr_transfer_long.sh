#!/usr/bin/env bash
# test: label=long timeout=1800
# The best learning rate of a width-64 model is that of a width-256 one under μP, within a factor 2; without a rule it is
# less than half there. Under CompleteP a model of 16 layers has the best learning rate of one of 2, and learns more at it
# than with the width's rule alone. Prints the table of trainer/transfer.md.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
run_limit=900
steps=150

# heldout WIDTH LAYERS RULE LR SEED: the held-out loss after the last step
heldout() {
    rm -rf run
    start 1 train --model.width "$1" --model.layers "$2" --model.heads $(($1 / 32)) --model.ffn $((3 * $1)) \
        --model.vocab 320 --model.transfer "$3" --model.base_width 256 --model.base_layers 2 --train.length 64 \
        --train.batch 8 --train.micro_batch 8 --train.steps $steps --train.seed "$5" --optim.beta2 0.98 --lr.peak "$4" \
        --lr.min 0 --lr.warmup $((steps / 10)) --eval.every 0 --eval.samples 256 --checkpoint.every 0 \
        --log.peak_seconds 0 --cpu.threads 1 --data.train "$work/data" --run.dir run >log 2>&1 </dev/null ||
        complain "width $1, $2 layers, rule $3, lr $4: $(cat log)"
    field heldout_loss run | tail -n 1
}
# curve WIDTH LAYERS RULE SEEDS LR…: lines "lr loss", the loss a mean over the seeds
curve() {
    local width=$1 layers=$2 rule=$3 seeds=$4 lr seed
    shift 4
    for lr; do
        for ((seed = 1; seed <= seeds; seed++)); do heldout "$width" "$layers" "$rule" "$lr" "$seed"; done |
            awk -v lr="$lr" '{ sum += $1 } END { print lr, sum / NR }'
    done
}
# best FILE: vertex of the parabola in ln lr through the lowest point and its neighbours, and the lowest loss
best() {
    awk '{ x[NR] = log($1); y[NR] = $2; if (NR == 1 || $2 < y[low]) low = NR }
        END { if (low == 1 || low == NR) { print "edge", y[low]; exit }
              a = (y[low + 1] - y[low]) / (x[low + 1] - x[low]); b = (y[low] - y[low - 1]) / (x[low] - x[low - 1])
              m = (x[low] + x[low - 1]) / 2; n = (x[low + 1] + x[low]) / 2
              printf "%.3g %.3f\n", exp(m + (n - m) * b / (b - a)), y[low] }' "$1"
}

curve 64 2 mup 2 5e-4 1e-3 2e-3 4e-3 8e-3 >mup-64
curve 256 2 mup 1 5e-4 1e-3 2e-3 4e-3 >mup-256 # the base model: without a rule it is the same
curve 64 2 none 2 2e-3 4e-3 8e-3 1.6e-2 >none-64
curve 64 16 completep 1 5e-4 1e-3 2e-3 4e-3 >completep-16
curve 64 16 mup 1 1e-3 2e-3 4e-3 >mup-16
for name in mup-64 mup-256 none-64 completep-16 mup-16; do
    echo "$name: best lr and loss $(best $name); $(tr '\n' ';' <$name)"
done
within() { awk -v a="$1" -v b="$2" -v low="$3" -v high="$4" 'BEGIN { exit !(a > 0 && b > 0 && a / b >= low && a / b <= high) }'; }
read -r mup_64 loss_64 <<<"$(best mup-64)"
read -r base _ <<<"$(best mup-256)"
read -r none_64 plain_64 <<<"$(best none-64)"
read -r deep deep_loss <<<"$(best completep-16)"
read -r _ shallow_rule_loss <<<"$(best mup-16)"
within "$mup_64" "$base" 0.5 2 || complain "μP: the best learning rate is $mup_64 at width 64, $base at 256"
within "$none_64" "$base" 2.001 1000 || complain "no rule: the best learning rate is $none_64 at width 64, $base at 256"
within "$deep" "$mup_64" 0.5 2 || complain "CompleteP: the best learning rate is $deep at 16 layers, $mup_64 at 2"
awk -v a="$deep_loss" -v b="$shallow_rule_loss" 'BEGIN { exit !(a < b - 0.2) }' ||
    complain "16 layers learn to $deep_loss with CompleteP, to $shallow_rule_loss with the width's rule alone"
awk -v a="$loss_64" -v b="$plain_64" 'BEGIN { exit !(a < b) }' || complain "width 64: $loss_64 with μP, $plain_64 without"
finish
