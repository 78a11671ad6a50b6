#!/usr/bin/env bash
# test: label=unit timeout=60
# `dtx sweep plan`: rows against numbers made by hand, isoFLOP budgets and their shapes, rules, branches; the same spec
# gives the same table, another one is refused or extends it; faults name key and line.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/sweep.sh"
make_spec spec.yaml
make_data "$DTX_SOURCE"/data/a*.c
plan() { "$DTX" sweep plan "$@" >out 2>err || complain "plan $*: $(cat err)"; }
refused() { # PATTERN WORD…
    local pattern=$1
    shift
    "$DTX" sweep plan "$@" --dry-run >out 2>err
    [ $? = 78 ] || complain "plan $* is not refused"
    grep -qE -- "$pattern" err || complain "plan $*: no '$pattern' in: $(cat err)"
}
# get SWEEP TRIAL KEY: of the table's row, without quotes.
get() { sed -n "s/^{\"trial\":$2,.*\"$3\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$1/plan.jsonl"; }
is() { # SWEEP TRIAL KEY VALUE
    local got
    got=$(get "$1" "$2" "$3")
    awk -v a="$got" -v b="$4" 'BEGIN { d = a - b; exit !(a == b || (a ~ /^[-0-9.e+]+$/ && d * d <= 1e-24 * b * b)) }' ||
        complain "$1, trial $2: $3 is $got, not $4"
}

# One shape by hand. Width 32, 2 layers, 4 diff heads of 2 × 4, ffn 48, vocabulary 320, 16 tokens:
# block 4·32² + 3·32·48 + 2·32 = 8768, and 4·4 + 2·4 = 24 of λ and sub-norm; 2 blocks, a last norm, 320·32 embeddings.
plan spec.yaml --dir grid --sweep.branch false
[ "$(grep -c '"trial"' grid/plan.jsonl)" = 4 ] || complain "rows: $(cat grid/plan.jsonl)"
total=$((2 * (8768 + 24) + 32 + 10240)) matmul=$((2 * (4 * 32 * 32 + 3 * 32 * 48) + 10240))
is grid 1 variant diff
is grid 1 n_total $total
is grid 1 n_nonembedding $((total - 10240))
is grid 1 n_matmul $matmul
is grid 3 variant softmax
is grid 3 heads 8
is grid 3 n_total $((total - 48))
is grid 1 steps 40
is grid 1 tokens 5120
# 6·N·D and attention: 3 · 2 layers · 4·32·K with K = 17/2 or 16.
is grid 1 flops $((5120 * (6 * matmul + 3 * 2 * 2 * 32 * 17)))
is grid 1 flops_palm $((5120 * (6 * matmul + 3 * 2 * 4 * 32 * 16)))
is grid 1 flops_6nd $((5120 * 6 * total))
grep -q '^model.head_dim: 4$' "grid/configs/$(get grid 1 id).yaml" || complain "no head_dim in the configuration"
for row in 1 3; do # the warm-up is as configured, the descent a tenth
    config=grid/configs/$(get grid $row id).yaml
    grep -qx 'lr.decay_steps: 4' "$config" && grep -qx 'lr.warmup: 2' "$config" && grep -qx 'train.steps: 40' "$config" ||
        complain "$config: $(grep -E '^(lr|train)' "$config")"
done
"$DTX" sweep plan spec.yaml --dir grid --sweep.branch false --json >out 2>err || complain "json: $(cat err)"
grep -q '"kept":4,"added":0,"missing":0' out || complain "the same spec: $(cat out)"
flops=$((2 * (5120 + 10240) * (6 * matmul + 3 * 2 * 2 * 32 * 17)))
grep -q "\"flops\":$flops.0,\"tokens\":30720.0" out || complain "totals are not $flops FLOPs: $(cat out)"
# A checkpoint holds weights and two moments in fp32.
disk=$(sed -n 's/.*"disk_bytes":\([0-9]*\).*/\1/p' out)
[ "$disk" -ge $((4 * 12 * (total - 48))) ] && [ "$disk" -le $((4 * 12 * total + 4096)) ] || complain "disk $disk"

# Branches: the stable part to step 36 of 40 once; both descend from there or go on; FLOPs are those of own steps.
plan spec.yaml --dir branch
is branch 1 until 36
is branch 1 stem true
is branch 2 start "$(get branch 1 id)"
is branch 2 start_step 36
is branch 2 until 0
is branch 3 start_step 36
is branch 3 tokens 10240
"$DTX" sweep plan spec.yaml --dir branch --json >out 2>err
own=$((2 * (10240 + 512)))
grep -q "\"stems\":2" out && grep -q "\"flops\":$((own * (6 * matmul + 3 * 2 * 2 * 32 * 17))).0,\"tokens\":$own.0" out || complain "branches: $(cat out)"

plan spec.yaml --dir twice --sweep.tokens 1e6
grep -qE 'the longest trial takes 1.00M, so [0-9.]+ times all of them' err || complain "no word of epochs: $(cat err)"

# IsoFLOP: each budget is spent to half a step, sizes are about its centre, the aspect is kept.
cat >iso.yaml <<'END'
sweep:
  design: isoflop
  budgets: 1e15, 1e16
  sizes: 3
  spread: 2
  aspect: 16
  seeds: 1, 2
model: {head_dim: 4, vocab: 320}
train: {length: 64, batch: 2}
lr: {schedule: cosine, peak: 1e-3}
data: {train: nowhere}
END
plan iso.yaml
grep -q 'data.train cannot be looked at here: .*nowhere' err || complain "data elsewhere: $(cat err)"
[ "$(grep -c '"trial"' iso/plan.jsonl)" = 24 ] || complain "isoflop: $(cat iso/plan.jsonl)"
sed -nE 's/.*"width":([0-9]+),"layers":([0-9]+),.*"batch":2,"steps":([0-9]+),.*"n_total":([0-9]+),.*"budget":([0-9.]+),"flops":([0-9.]+),.*/\1 \2 \3 \4 \5 \6/p' \
    iso/plan.jsonl >rows
awk '{ step = $6 / $3; d = $6 - $5; if (d < 0) d = -d; ratio = $3 * 128 / $4; w = int($1 / 16 + 0.5); if (w < 1) w = 1
    if (d > 0.501 * step) { print "budget " $5 ", FLOPs " $6; bad = 1 }
    if ($1 % 8 || $2 != w) { print "width " $1 ", layers " $2; bad = 1 }
    if (ratio < 20 / 4 / 1.7 || ratio > 20 * 4 * 1.7) { print "tokens a weight " ratio; bad = 1 }
    n++ } END { exit bad || n != 24 }' rows >log || complain "isoflop: $(cat log; cat rows)"
[ "$(awk '$5 > 5e15 { print $1 }' rows | sort -u | wc -l)" = 3 ] || complain "isoflop sizes: $(cat rows)"

# The shipped ones: the paper's counts (REFERENCE of the presets), 3.28e21 FLOPs; a quarter of an hour at 30 GFLOP/s a core.
plan figure3 --data.train nowhere
for pair in 1:833608704 3:1413271552 5:2794482176 7:6836744192 9:13123046400; do
    is figure3 "${pair%:*}" n_total "${pair#*:}"
    is figure3 "${pair%:*}" steps 40000
done
plan figure3 --data.train nowhere # beside the folder of that name
grep -q 'holds this very table' out || complain "figure3 again: $(cat out)"
is figure3 5 lr 1.5e-4
is figure3 10 lr 7.5e-5
is figure3 10 heads 40
"$DTX" sweep plan laptop --dry-run --json >out 2>err || complain "laptop: $(cat err)"
sed -n 's/.*"flops":\([0-9.]*\),.*/\1/p' out | awk '{ exit !($1 > 2e13 && $1 < 2 * 900 * 30e9) }' || complain "laptop: $(cat out)"

# Rules: Step Law and DeepSeek by hand for N = 17616 without embeddings, D = 8192 (64 steps of 128).
plan spec.yaml --dir law --lr.schedule cosine --sweep.tokens 8192 --sweep.variants diff --sweep.lr_rule step_law \
    --sweep.lr_scales '1, 2'
is law 1 lr "$(awk 'BEGIN { printf "%.17g", 1.79 * exp(-0.713 * log(17616)) * exp(0.307 * log(8192)) }')"
is law 2 lr "$(awk 'BEGIN { printf "%.17g", 2 * 1.79 * exp(-0.713 * log(17616)) * exp(0.307 * log(8192)) }')"
plan spec.yaml --dir deep --lr.schedule cosine --sweep.tokens 1e9 --sweep.variants diff --sweep.lr_rule deepseek \
    --sweep.batch_rule deepseek
c=$(awk -v m=$matmul 'BEGIN { printf "%.17g", 1e9 * (6 * m + 3 * 2 * 2 * 32 * 17) }')
is deep 1 lr "$(awk -v c="$c" 'BEGIN { printf "%.17g", 0.3118 * exp(-0.125 * log(c)) }')"
is deep 1 batch "$(awk -v c="$c" 'BEGIN { printf "%.0f", 0.292 * exp(0.3271 * log(c)) / 16 }')"

# A table never changes; --extend adds behind it.
cp grid/plan.jsonl before
"$DTX" sweep plan spec.yaml --dir grid --sweep.branch false --sweep.seeds '2, 1' >out 2>err
[ $? = 78 ] && grep -q '4 are new, and 0 of its own' err && cmp -s before grid/plan.jsonl || complain "another spec: $(cat err)"
refused '4 are new, and 4 of its own' spec.yaml --dir grid --sweep.branch false --lr.peak 2e-2
refused '4 are new, and 4 of its own' spec.yaml --dir grid --sweep.branch false --model.norm_eps 1e-6
refused 'sweep.ranks: the trials of .*grid have 1 ranks each, those of this plan 2' spec.yaml --dir grid --sweep.branch false \
    --sweep.ranks 2
mkdir -p elsewhere
cp spec.yaml elsewhere
(cd elsewhere && refused 'planned in .*: extend it from there' spec.yaml --dir ../grid --sweep.branch false --sweep.seeds 2 --extend
    [ "$failures" = 0 ]) || complain "extended from elsewhere"
plan spec.yaml --dir same --sweep.branch false --cpu.threads 2 --checkpoint.every 7 --log.every 3
[ "$(ids same)" = "$(ids grid)" ] || complain "options that change no number change ids"
plan spec.yaml --dir grid --sweep.branch false --sweep.seeds 2 --extend
[ "$(grep -c '"trial"' grid/plan.jsonl)" = 8 ] || complain "extended: $(cat grid/plan.jsonl)"
diff <(head -n 5 before) <(head -n 5 grid/plan.jsonl) >log || complain "extending changed rows: $(cat log)"
for key in id lr flops; do [ "$(get grid 1 $key)" = "$(get branch 1 $key)" ] && [ $key = id ] && complain "same id"; done
"$DTX" sweep submit grid --concurrent 3 --time 5 --sbatch 'qos=long mem=0' --account a --retries 7 --dry-run >out 2>err ||
    complain "submit: $(cat err)"
for line in '#SBATCH --job-name=spec' '#SBATCH --time=5' '#SBATCH --qos=long' '#SBATCH --mem=0' '#SBATCH --account=a' \
    "#SBATCH --chdir=$work" "# sbatch --array=1-8%3 $work/grid/sweep.sbatch"; do
    grep -qxF -- "$line" out || complain "submit: no '$line' in $(cat out)"
done
grep -q '^sweep=.*/grid ' out && grep -q '^options=(--retries 7) ' out && ! grep -q '^#SBATCH --signal' out && bash -n out ||
    complain "submit: $(cat out)"
mkdir -p 'with blank'
(cd 'with blank' && "$DTX" sweep plan ../spec.yaml --dir "$work/blank") >log 2>&1 || complain "plan: $(cat log)"
"$DTX" sweep submit blank --dry-run >out 2>err
[ $? = 78 ] && grep -q "sbatch does not take blanks.*with blank'" err || complain "submit from a folder with a blank: $(cat err)"
sed -i 's/"steps":40/"steps":41/' grid/plan.jsonl
"$DTX" sweep status grid >out 2>err
[ $? = 78 ] && grep -q 'damaged or was edited' err || complain "an edited table: $(cat out err)"
"$DTX" sweep status nowhere >out 2>err
[ $? = 78 ] && grep -q 'dtx sweep plan' err || complain "no table: $(cat err)"

# Faults.
{ cat spec.yaml; echo 'lrr: 3'; } >bad.yaml
sed -i 's/shapes: 32x2/shapes: 32x2, 6y/; s/tokens: 5120, 10240/tokens: 5120, none/; s/^sweep:/sweep:\n  sedes: 1/' bad.yaml
refused "bad.yaml:2: there is no option 'sweep.sedes'" bad.yaml
refused "bad.yaml:3: sweep.shapes: '6y' is no shape" bad.yaml
refused "bad.yaml:4: sweep.tokens: 'none' is no number" bad.yaml
refused "bad.yaml:[0-9]+: there is no option 'lrr'" bad.yaml
refused 'flag --sweep.budgets: sweep.budgets means nothing' spec.yaml --sweep.budgets 1e9
refused "flag --sweep.variants: sweep.variants: 'dif' is no attention" spec.yaml --sweep.variants dif
refused 'spec.yaml:2: shape 32x2: model.width 32 cannot be cut' spec.yaml --model.heads 3
refused "sweep.seeds: '1' stands there twice" spec.yaml --sweep.seeds 1,1
for seed in -1 1.5 1e300; do
    refused "sweep.seeds: '$seed' is no whole number from 0 to 2\^53" spec.yaml --sweep.seeds $seed
done
refused 'shape 32x2: a training on 1e.19 tokens: more than 2\^53' spec.yaml --sweep.tokens 1e19
refused 'shape 32x2: a training on .* tokens: more than 2\^53' spec.yaml --sweep.tokens '' --sweep.tokens_per_weight 1e300
refused 'eval.samples' spec.yaml --eval.samples 0
refused 'flag --train.steps: train.steps is the sweep' spec.yaml --train.steps 5
refused 'flag --train.steps: train.steps is the sweep' figure3 --train.steps 5 # also with a preset
refused 'lr.warmup 50 is not below train.steps 40' spec.yaml --lr.warmup 50
refused 'sweep.design' spec.yaml --sweep.design lattice
refused 'cannot open' missing.yaml
refused "there is no spec 'lapto' here, nor a shipped one of that name \(laptop, figure3\)" lapto
[ ! -e spec ] || complain "--dry-run wrote something"
finish
