#!/usr/bin/env bash
# What 2, 4 and 8 GPUs must show: NCCL's sums and messages with MPI's bits (4), bandwidth of all-reduces, losses of every
# axis against one GPU's, a rank that hangs or dies ends all. One JSON: $OUT/multi.json. Exit code 77 with one GPU or none.
#   tests/device/multi.sh                   DEVICE=emu: the stand-ins on 2 and 4 ranks, to try the script
cd "$(dirname "$0")/../.." || exit 1
. tests/device/common.sh
need_gpus 2
make_targets dtx test_ranks_nccl
need_gpus 2
rm -f "$out"/bench-*.json "$out"/*.losses
export OMP_NUM_THREADS=1

small=() comm=(--seconds 0.5 --largest 1073741824) steps_compared=20
if [ "$device" = emu ]; then
    small=(--model.layers 2 --model.width 64 --model.heads 2 --model.ffn 128 --model.vocab 512 --train.length 64
        --train.batch 8 --train.micro_batch 1)
    comm=(--seconds 0.01 --largest 4096)
    steps_compared=6
fi
[ "$gpus" -lt 4 ] || step nccl mpirun -n 4 --oversubscribe "$build/tests/test_ranks_nccl"
make_data
losses one 1 --preset bench-124m --device "$device" --train.steps $steps_compared "${small[@]}" --train.batch 8 \
    --train.micro_batch 1

# mesh NAME RANKS OPTION…: against one GPU, if there are enough.
mesh() {
    local name=$1 ranks=$2
    shift 2
    [ "$gpus" -ge "$ranks" ] || return 0
    losses "$name" "$ranks" --preset bench-124m --device "$device" --train.steps $steps_compared "${small[@]}" \
        --train.batch 8 --train.micro_batch 1 "$@" && compare "$name" one 1e-3
}
for ranks in 2 4 8; do
    [ "$gpus" -ge "$ranks" ] || continue
    step "bench-comm-$ranks" mpirun -n "$ranks" --oversubscribe "$build/dtx" bench comm --device "$device" "${comm[@]}" \
        --json "$out/bench-comm-$ranks.json"
    mesh "dp-$ranks" "$ranks" --parallel.dp "$ranks" --parallel.zero 1
done
mesh tp-2 2 --parallel.tp 2
mesh pp-2 2 --parallel.pp 2
mesh cp-2 2 --parallel.cp 2
mesh tp-pp 4 --parallel.tp 2 --parallel.pp 2
mesh pp-dp 4 --parallel.pp 2 --parallel.dp 2 --parallel.zero 1
mesh pp-dp-graphs 4 --parallel.pp 2 --parallel.dp 2 --parallel.zero 1 --cuda.graphs true
[ "$gpus" -lt 4 ] || compare pp-dp-graphs pp-dp 0
mesh tp-dp 4 --parallel.tp 2 --parallel.dp 2 --parallel.zero 1
for signal in KILL STOP; do
    step "ends-$signal" bash tests/device/ends.sh $signal "$out/ends.run" mpirun -n 2 --oversubscribe "$build/dtx" train \
        --run.dir "$out/ends.run" --data.train "$out/data" --preset bench-124m --device "$device" --checkpoint.every 0 \
        --eval.every 0 --log.every 1 --train.steps 1000000 --comm.timeout 10 "${small[@]}" --train.batch 8 \
        --train.micro_batch 1 --parallel.dp 2
done
if [ "$device" = cuda ]; then
    for ranks in 2 4 8; do
        [ "$gpus" -ge "$ranks" ] || continue
        step "bench-step-$ranks" mpirun -n "$ranks" "$build/dtx" bench step --preset diff-1.4b --device cuda --batch \
            $((8 * ranks)) --parallel.dp "$ranks" --parallel.zero 1 --repeats 3 --peak_seconds 0.1 --profile \
            --json "$out/bench-step-$ranks.json"
    done
fi
write_json "$out/multi.json"
exit $((failures > 0))
