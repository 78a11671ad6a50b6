#!/usr/bin/env bash
# test: label=train timeout=120
# Training learns what it should: after some steps the held-out loss is well below the entropy of single tokens, and
# close to the training loss; for both kinds of attention, in fp32 and bf16.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data /usr/include/{pcre2,cmocka,jansson,yaml}.h # which the build needs and nobody here edits
entropy=$("$DTX" data entropy --heldout 0.1 data 2>&1 | sed -nE 's/.*entropy ([0-9.]+) nats.*/\1/p' | tail -n 1)
learn() {
    train 1 "$1" --train.steps 300 --lr.peak 1e-2 --data.heldout 0.1 --eval.every 0 "${@:2}"
    local heldout loss
    heldout=$(field heldout_loss "$1" | tail -n 1)
    loss=$(field loss "$1" | tail -n 20 | awk '{ sum += $1 } END { print sum / NR }')
    awk -v h="$heldout" -v l="$loss" -v e="$entropy" 'BEGIN { exit !(e > 0 && h < e - 0.3 && h - l < 0.8 && l - h < 0.8) }' ||
        complain "$1: held-out loss $heldout, training loss $loss, entropy $entropy"
}
learn diff
learn softmax --model.attention softmax --model.heads 8
learn bf16 --train.dtype bf16 --data.doc_reset --data.separator 256
finish
