#!/usr/bin/env bash
# test: label=bench timeout=1800
# Step time of meshes beside one rank with two threads that does the same work: same model, same global batch, same
# micro-batch. ROUNDS (variable, 3) times all of them in turns; of each the median step of STEPS (3), then the median over
# the rounds of its ratio to the one rank of the same round, and of the share of the step that ranks spend in
# communicators, waiting included. Two ranks of one thread are the fair comparison on two cores; four ranks share them.
# Fails when losses differ: then it was not the same work. MESHES='^tp' takes the rows that match and the first.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/json.sh"
rounds=${ROUNDS:-3} steps=${STEPS:-3}

# name|ranks|threads of a rank|options: to add a mesh, add a row. The first one is what the others are compared with.
meshes=(
    "one rank|1|2|"
    "tp 2|2|1|--parallel.tp 2"
    "pp 2 1f1b|2|1|--parallel.pp 2"
    "pp 2 zb_h1|2|1|--parallel.pp 2 --parallel.schedule zb_h1"
    "dp 2 zero 0|2|1|--parallel.dp 2 --parallel.zero 0"
    "dp 2 zero 1|2|1|--parallel.dp 2"
    "cp 2 gather|2|1|--parallel.cp 2"
    "cp 2 ring|2|1|--parallel.cp 2 --parallel.cp_exchange ring"
    "tp 4|4|1|--parallel.tp 4"
    "pp 4 1f1b|4|1|--parallel.pp 4"
    "pp 4 interleaved|4|1|--parallel.pp 4 --parallel.schedule interleaved --parallel.chunks 2"
    "pp 4 zb_h1|4|1|--parallel.pp 4 --parallel.schedule zb_h1"
    "dp 4 zero 0|4|1|--parallel.dp 4 --parallel.zero 0"
    "dp 4 zero 1|4|1|--parallel.dp 4"
    "tp 2, pp 2|4|1|--parallel.tp 2 --parallel.pp 2"
    "tp 2, dp 2|4|1|--parallel.tp 2 --parallel.dp 2"
    "pp 2, dp 2|4|1|--parallel.pp 2 --parallel.dp 2"
)
# 8.4M weights, 4,096 tokens a step as 8 micro-batches of 2 × 256 (of the data ranks together).
model=(--preset laptop --attention diff --model.layers 8 --model.vocab 4096 --train.length 256 --train.batch 16
    --train.micro_batch 2 --parallel.tp 1 --parallel.pp 1 --parallel.dp 0)

print_table() {
    printf '%-18s %5s %9s %8s %15s\n' mesh ranks "step, s" ratio "communication"
    for ((i = 0; i < ${#meshes[@]}; i++)); do
        IFS='|' read -r name ranks _ <<<"${meshes[i]}"
        [ -e "ratio.$i" ] || continue
        printf '%-18s %5s %9.3f %8.2f %13.1f %%\n' "$name" "$ranks" "$(median <"seconds.$i")" "$(median <"ratio.$i")" \
            "$(median <"share.$i")"
    done
}

for ((round = 1; round <= rounds; round++)); do
    for ((i = 0; i < ${#meshes[@]}; i++)); do
        IFS='|' read -r name ranks threads options <<<"${meshes[i]}"
        [[ $i = 0 || $name =~ ${MESHES:-.} ]] || continue
        # shellcheck disable=SC2086 # options are words
        mpirun --bind-to none -n "$ranks" "$DTX" bench step "${model[@]}" $options --threads "$threads" --profile \
            --repeats "$steps" --peak_seconds 0.001 --json out.json >log 2>&1 </dev/null ||
            { complain "$name: $(cat log)"; continue; }
        seconds=$(value out.json variants diff step_seconds median)
        [ "$i" != 0 ] || base=$seconds
        echo "$seconds" >>"seconds.$i"
        awk -v a="$seconds" -v b="$base" 'BEGIN { print a / b }' >>"ratio.$i"
        awk -v x="$(value out.json variants diff profile communication_share)" 'BEGIN { print 100 * x }' >>"share.$i"
        loss=$(value out.json variants diff first_loss)
        [ -e loss ] || echo "$loss" >loss
        close_numbers 1e-5 loss <(echo "$loss") || complain "$name: first loss $loss and not $(cat loss)"
    done
    printf '\nafter %d of %d rounds\n' "$round" "$rounds"
    print_table
done
finish
