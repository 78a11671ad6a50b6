#!/usr/bin/env bash
# test: label=train timeout=240
# Save, stop, resume is the uninterrupted run bit for bit: losses, norms, λ, held-out losses and the last checkpoint's
# arrays, in fp32 and bf16, on one rank and on meshes; so are other numbers of threads and other ways to read ahead.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
small+=(--lr.warmup 10)

# resume RANKS NAME OPTION…: 12 steps at once, and again from the checkpoint of step 6, in another folder.
resume() {
    local ranks=$1 name=$2
    shift 2
    local options=(--train.steps 12 --checkpoint.every 6 --checkpoint.keep 0 --eval.every 4 --eval.samples 8 "$@")
    train "$ranks" "$name" "${options[@]}"
    train "$ranks" "$name-resumed" "${options[@]}" --resume "$name/checkpoints/step-00000006"
    [ "$(numbers "$name" | wc -l)" = 12 ] || complain "$name: $(numbers "$name" | wc -l) lines of 12"
    diff <(numbers "$name" | tail -n 6) <(numbers "$name-resumed") >log || complain "$name: resumed otherwise: $(cat log)"
    same_arrays "$name/checkpoints/step-00000012" "$name-resumed/checkpoints/step-00000012"
}
resume 1 f32
resume 1 bf16 --train.dtype bf16
resume 4 tp2pp2-bf16 --train.dtype bf16 --parallel.tp 2 --parallel.pp 2
resume 4 tp2pp2 --parallel.tp 2 --parallel.pp 2
resume 2 dp2 --parallel.dp 2 --lr.schedule wsd
resume 2 cp2 --parallel.cp 2 --parallel.cp_exchange ring --data.doc_reset --data.separator 256
resume 2 dp2-bf16 --train.dtype bf16 --parallel.dp 2 --data.doc_reset --data.separator 256

# The comparison sees differences.
h5diff -q f32/checkpoints/step-00000006/checkpoint.h5 f32/checkpoints/step-00000012/checkpoint.h5 /model >/dev/null 2>&1 &&
    complain "h5diff finds no difference between two steps"

# In the same folder: stopped in the middle by the number of steps, metrics go on where they were. The learning rate of
# a step is the uninterrupted run's.
twice=(--train.steps 12 --checkpoint.every 0 --eval.every 4 --eval.samples 8)
train 1 twice "${twice[@]}" --train.until 4
[ "$(numbers twice | wc -l)" = 4 ] || complain "train.until 4 makes $(numbers twice | wc -l) steps"
train 1 twice "${twice[@]}" --resume latest
grep -qE 'start: MPI [0-9.]+ s, options .*, checkpoint .*, first step [0-9.]+ s; [0-9.]+ s in all$' log ||
    complain "no account of the start: $(cat log)"
diff <(numbers f32) <(numbers twice) >log || complain "metrics after a resume in the same folder: $(cat log)"
same_arrays f32/checkpoints/step-00000012 twice/checkpoints/step-00000012
printf '%s\n' 0.0001 0.0002 0.0003 0.0004 0.0005 0.0006 0.0007 0.0008 0.0009 0.001 0.000505 1e-05 >rates
close_numbers 1e-12 <(field lr f32) rates >log || complain "learning rates: $(cat log)"
# An override of the learning rate on resume counts from the next step on.
train 1 override --train.steps 12 --resume f32/checkpoints/step-00000006 --lr.peak 2e-3
[ "$(field lr override | head -n 4 | tail -n 1)" = 0.002 ] || complain "lr.peak on resume: $(field lr override | xargs)"

# Threads and reading ahead.
wide=(--lr.warmup 2 --model.width 64 --model.ffn 160 --train.length 64 --train.steps 4 --eval.samples 8)
for dtype in f32 bf16; do
    train 1 "one-$dtype" "${wide[@]}" --train.dtype $dtype
    train 1 "two-$dtype" "${wide[@]}" --train.dtype $dtype --cpu.threads 2 --data.prefetch 0
    train 1 "three-$dtype" "${wide[@]}" --train.dtype $dtype --cpu.threads 3 --data.prefetch 7
    for other in two three; do
        diff <(numbers one-$dtype) <(numbers $other-$dtype) >log || complain "$other threads, $dtype: $(cat log)"
        same_arrays "one-$dtype/checkpoints/step-00000004" "$other-$dtype/checkpoints/step-00000004"
    done
done
finish
