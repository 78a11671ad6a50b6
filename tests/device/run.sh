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
# its tensors, each once, in the device's own seconds.
step bench-attention-64 "$build/dtx" bench attention --device "$device" --dtype bf16 --length $length --heads $heads \
    --head_dim 64 --batch 1 --repeats $repeats --json "$out/bench-attention-64.json"
step bench-attention-128 "$build/dtx" bench attention --device "$device" --dtype bf16 --length $length --heads $heads \
    --head_dim 128 --batch 1 --repeats $repeats --json "$out/bench-attention-128.json"
step bench-kernels "$build/dtx" bench kernels --device "$device" --dtype bf16 "${kernel_options[@]}" "${small[@]}" \
    --json "$out/bench-kernels.json"
# Each with graphs too; micro-batches of one sequence show what launches cost.
for graphs in false true; do
    step "bench-124m-small-graphs-$graphs" "$build/dtx" bench step --device "$device" --dtype bf16 --attention diff --length 512 \
        --batch 4 --micro_batch 1 --repeats $((repeats > 5 ? 5 : 1)) --peak_seconds 0.1 --cuda.graphs $graphs "${small[@]}" \
        --json "$out/bench-124m-small-graphs-$graphs.json"
    tell_speed "$out/bench-124m-small-graphs-$graphs.json"
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

if grep -q 'libcudnn\.so\.9' <<<"$(ldconfig -p 2>/dev/null)"; then
    echo "cuDNN: its library is here, but dtx has no comparison with it yet"
    steps+=('{"step":"cuDNN","state":"not compared: found, but there is no comparison yet"}')
else
    echo "cuDNN: not compared, libcudnn.so.9 is not here"
    steps+=('{"step":"cuDNN","state":"not compared: libcudnn.so.9 is not here"}')
fi
write_json "$out/device.json"
exit $((failures > 0))
