#!/usr/bin/env bash
# What one GPU must show: every operation against reference and bounds, speeds as shares of what the device reaches in
# the same run, losses against the CPU's. One JSON: $OUT/device.json. Exit code 77 without a usable GPU.
#   tests/device/run.sh                     DEVICE=emu: the emulator, small sizes, to try the script
#   OUT=FOLDER (build/device)   SECONDS_LIMIT=540 for all steps after the build
cd "$(dirname "$0")/../.." || exit 1
. tests/device/common.sh
tests=(test_unit_op_elements test_unit_op_rows test_unit_op_gemm test_unit_op_xent test_unit_op_attn)
need_gpus 1
make_targets dtx "${tests[@]}"
need_gpus 1
rm -f "$out"/bench-*.json "$out"/*.losses

small=() kernel_options=() length=4096 heads=16 repeats=20 steps_compared=20
if [ "$device" = emu ]; then
    small=(--model.layers 2 --model.width 64 --model.heads 1 --model.ffn 128 --model.vocab 512 --train.length 64
        --train.batch 2 --train.micro_batch 1)
    kernel_options=(--repeats 1 --peak_seconds 0.01)
    length=128 heads=1 repeats=1 steps_compared=6
    tests=(test_unit_op_elements)
fi
for t in "${tests[@]}"; do step "$t" "$build/tests/$t"; done

# A speed is FLOPs that the operation needs (attention: 12d forward, 20d backward a visible pair and head) or bytes of
# its tensors, each once, in the device's own seconds. cuDNN, where it is installed, is measured beside ours and must
# agree with it; two calls and one call execute 12d and 28d.
step bench-attention-64 "$build/dtx" bench attention --device "$device" --dtype bf16 --length $length --heads $heads \
    --head_dim 64 --batch 1 --repeats $repeats --peak_seconds 0.1 --peer cudnn \
    --json "$out/bench-attention-64.json"
step bench-attention-128 "$build/dtx" bench attention --device "$device" --dtype bf16 --length $length --heads $heads \
    --head_dim 128 --batch 1 --repeats $repeats --peak_seconds 0.1 --peer cudnn \
    --json "$out/bench-attention-128.json"
step bench-kernels "$build/dtx" bench kernels --device "$device" --dtype bf16 "${kernel_options[@]}" "${small[@]}" \
    --json "$out/bench-kernels.json"
# Each with graphs too; micro-batches of one sequence show what launches cost.
for graphs in false true; do
    step "bench-124m-small-graphs-$graphs" "$build/dtx" bench step --device "$device" --dtype bf16 --attention diff --length 512 \
        --batch 4 --micro_batch 1 --repeats $((repeats > 5 ? 5 : 1)) --peak_seconds 0.1 --cuda.graphs $graphs "${small[@]}" \
        --json "$out/bench-124m-small-graphs-$graphs.json"
done
step bench-124m-graphs "$build/dtx" bench step --device "$device" --dtype bf16 --repeats $((repeats > 5 ? 5 : 1)) \
    --peak_seconds 0.1 --cuda.graphs true "${small[@]}" --json "$out/bench-124m-graphs.json"
step bench-124m "$build/dtx" bench step --device "$device" --dtype bf16 --repeats $((repeats > 5 ? 5 : 1)) \
    --peak_seconds 0.1 --profile "${small[@]}" --json "$out/bench-124m.json"
[ "$device" = emu ] || step bench-1.4b "$build/dtx" bench step --preset diff-1.4b --device "$device" --batch 8 \
    --repeats 3 --peak_seconds 0.1 --profile --json "$out/bench-1.4b.json"

make_data
losses cpu 1 --preset bench-124m --device cpu --train.steps $steps_compared "${small[@]}"
losses device 1 --preset bench-124m --device "$device" --train.steps $steps_compared "${small[@]}"
compare device cpu 1e-3
losses device-graphs 1 --preset bench-124m --device "$device" --train.steps $steps_compared "${small[@]}" --cuda.graphs true
compare device-graphs device 0
losses device-bf16 1 --preset bench-124m --device "$device" --train.dtype bf16 --train.steps $steps_compared "${small[@]}"
compare device-bf16 cpu 1e-2

# cudnn_state NAME: whether a bench had cuDNN, in words.
cudnn_state() {
    if [ "$(work=$out value "$out/$1.json" peer state)" = compared ]; then
        echo "$1: compared with cuDNN $(work=$out value "$out/$1.json" peer version)"
    else
        echo "$1: cuDNN not compared: $(work=$out value "$out/$1.json" peer why | head -n 1)"
    fi
}
# of_two_calls NAME PASS: our seconds / those of cuDNN's two calls.
of_two_calls() { figure "$out/$1.json" peer kernels cudnn_two_calls ours "$2"; }
for d in 64 128; do
    cudnn_state bench-attention-$d
    goal "attention, d $d: ours / cuDNN's two calls, forward and backward" "$(of_two_calls bench-attention-$d both)" '<=' 1
    goal "attention, d $d: ours / cuDNN's one call over 2h heads" \
        "$(figure "$out/bench-attention-$d.json" peer kernels cudnn_one_call ours both)" '<=' 1
done
goal "attention forward, d 128: FLOP/s" "$(figure "$out/bench-attention-128.json" kernels diff forward flops_per_second)" \
    '>=' 520e12

# diff_to_baseline NAME: tokens/s of diff over those of the softmax model, whose attention is the faster of ours and
# cuDNN's: (seconds of its step − layers · micro-batches · (ours − cuDNN's)) / seconds of diff's step. The attention of
# the step's shape is measured by itself; ours counts where cuDNN's is not measured or not faster.
diff_to_baseline() {
    local name=$1 json=$out/$1.json peer=$out/$1-attention.json
    step "$name-attention" "$build/dtx" bench attention --device "$device" --dtype bf16 \
        --length "$(figure "$json" batch length)" --batch "$(figure "$json" batch micro_batch)" \
        --heads "$(figure "$json" variants diff heads)" --head_dim "$(figure "$json" model head_dim)" \
        --repeats $repeats --peak_seconds 0.1 --peer cudnn --json "$peer" || return 0
    cudnn_state "$name-attention"
    goal "$name: diff / baseline with the faster attention, tokens/s" "$(awk \
        -v diff="$(figure "$json" variants diff step_seconds median)" \
        -v softmax="$(figure "$json" variants softmax step_seconds median)" \
        -v layers="$(figure "$json" model layers)" -v batches="$(figure "$json" batch micro_batches)" \
        -v ours="$(figure "$peer" kernels softmax both seconds median)" \
        -v cudnn="$(figure "$peer" peer kernels cudnn_softmax both seconds median)" \
        'BEGIN { less = cudnn == "" || cudnn > ours ? 0 : ours - cudnn
                 if (diff > 0) print (softmax - layers * batches * less) / diff }')" '>=' 0.97
}
# graphs_to_plain WITH WITHOUT
graphs_to_plain() {
    goal "$1: tokens/s with graphs / without" "$(awk -v a="$(figure "$out/$1.json" variants diff tokens_per_second)" \
        -v b="$(figure "$out/$2.json" variants diff tokens_per_second)" 'BEGIN { if (b > 0) print a / b }')" '>=' 1
}
graphs_to_plain bench-124m-graphs bench-124m
graphs_to_plain bench-124m-small-graphs-true bench-124m-small-graphs-false
diff_to_baseline bench-124m
[ "$device" = emu ] || diff_to_baseline bench-1.4b
write_json "$out/device.json"
exit $((failures > 0))
