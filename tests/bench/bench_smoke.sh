#!/usr/bin/env bash
# test: label=unit timeout=120
# dtx bench: JSON that is complete and consistent with itself, of a tiny model; clear refusals; nothing left behind.
set -uo pipefail
export ASAN_OPTIONS=detect_leaks=0 # Open MPI leaves memory behind
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fault() { echo "FAULT: $*"; cat "$work"/*.txt 2>/dev/null; exit 1; }
mkdir "$work/tmp"
export TMPDIR="$work/tmp"

. "$DTX_SOURCE/tests/harness/json.sh"
positive() { awk -v x="$(value "$@")" 'BEGIN { exit !(x + 0 > 0) }' || fault "$*: $(value "$@") is not positive"; }
# near A B TOLERANCE WHAT
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a / b - 1; exit !(d < t && d > -t) }' || fault "$4: $1 is not $2"; }
divide() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.9g", a / b }'; }

cd "$work" || exit 1
tiny=(--model.layers 2 --model.width 64 --model.heads 2 --model.ffn 128 --model.vocab 512 --length 64 --batch 4
      --micro_batch 2 --threads 1 --repeats 2 --peak_seconds 0.01)

# Steps, both variants.
"$DTX" bench step "${tiny[@]}" --profile --json step.json >table.txt 2>err.txt || fault "step: exit code $?"
tokens=256
peak=$(value step.json peak flops_per_second)
best=0
for i in 0 1 2; do
    got=$(value step.json peak products $i flops_per_second median)
    best=$(awk -v a="$best" -v b="$got" 'BEGIN { print (a + 0 > b + 0) ? a : b }')
done
near "$peak" "$best" 1e-6 "the peak is the best median"
# 3·(L·(4D² + 4D² + 4·D·K + 6·D·ffn) + 2·D·V) a token, K = (64 + 1)/2
flops=$(awk 'BEGIN { printf "%.0f", 256 * 3 * (2 * (8 * 64 ^ 2 + 4 * 64 * 32.5 + 6 * 64 * 128) + 2 * 64 * 512) }')
for v in diff softmax; do
    seconds=$(value step.json variants $v step_seconds median)
    positive step.json variants $v step_seconds min
    [ "$(value step.json variants $v step_seconds n)" = 2 ] || fault "$v: two measured steps expected"
    near "$(value step.json variants $v step_flops)" "$flops" 1e-6 "$v: model FLOPs"
    near "$(value step.json variants $v flops_per_second)" "$(divide "$flops" "$seconds")" 1e-6 "$v: FLOP/s"
    near "$(value step.json variants $v share_of_peak)" "$(divide "$(divide "$flops" "$seconds")" "$peak")" 1e-6 "$v: share"
    near "$(value step.json variants $v tokens_per_second)" "$(divide $tokens "$seconds")" 1e-6 "$v: tokens/s"
    near "$(value step.json variants $v first_loss)" 6.24 0.05 "$v: first loss is ln 512"
    positive step.json variants $v profile operations 0 seconds
    grep -q "^$v .*tokens\|^$v .*FLOP/s" table.txt || fault "$v: no line in the table"
done
[ "$(value step.json variants softmax heads)" = 4 ] || fault "softmax must have twice the heads of diff"
near "$(value step.json diff_to_softmax_tokens)" \
    "$(divide "$(value step.json variants diff tokens_per_second)" "$(value step.json variants softmax tokens_per_second)")" \
    1e-6 "ratio"
# Operations are inside the step, and all kinds of them were seen.
awk -v n="$(value step.json variants diff profile operations | grep -c '"seconds"')" 'BEGIN { exit !(n > 20) }' ||
    fault "few operations in the profile"
sum=$(value step.json variants diff profile operations | awk '/"seconds"/ { gsub(",", ""); s += $3 } END { print s }')
awk -v s="$sum" -v t="$(value step.json variants diff profile step_seconds)" 'BEGIN { exit !(s > 0 && s <= t) }' ||
    fault "operations take $sum s of a step of $(value step.json variants diff profile step_seconds)"

# The reverse derivation, CPU time, one variant, the user's model first.
"$DTX" bench step "${tiny[@]}" --model.attention softmax --model.heads 4 --attention diff --clock cpu --dtype bf16 \
    --json cpu.json >table.txt 2>err.txt || fault "cpu clock: exit code $?"
[ "$(value cpu.json variants diff heads)" = 2 ] || fault "diff must have half the heads of softmax"
[[ $(value cpu.json variants softmax heads) == *[Ee]rror* ]] || fault "softmax was not asked for"
[ "$(value cpu.json clock)$(value cpu.json dtype)" = cpubf16 ] || fault "clock and dtype are not told"

# Every operation of the list is repeated.
"$DTX" bench kernels "${tiny[@]}" --repeats 1 --json kernels.json >table.txt 2>err.txt || fault "kernels: exit code $?"
for op in $(sed -n 's/^DTX_OP[_WORK]*(\([a-z_]*\))$/\1/p' "$DTX_SOURCE/kernels/ops.def"); do
    case $op in attn_merge | attn_finish) continue ;; esac # of context ranks: one rank makes no parts
    grep -q "\"operation\": \"$op\"" kernels.json || fault "kernels: $op is missing"
done
positive kernels.json operations 0 call_seconds median
positive kernels.json peak triad_bytes_per_second

"$DTX" bench attention --length 96 --heads 2 --head_dim 16 --threads 1 --repeats 2 --peak_seconds 0.01 --json - \
    >attention.json 2>table.txt || fault "attention: exit code $?"
# 2 heads, 96·97/2 pairs: 12d + 20d of diff, 8d + 20d of softmax
near "$(value attention.json kernels diff both flops)" $((2 * 96 * 97 / 2 * 32 * 16)) 1e-6 "attention: diff FLOPs"
near "$(value attention.json kernels softmax both flops)" $((2 * 96 * 97 / 2 * 28 * 16)) 1e-6 "attention: softmax FLOPs"
positive attention.json diff_to_softmax_time both

mpirun -n 2 "$DTX" bench comm --largest 4096 --seconds 0.01 --json comm.json >table.txt 2>err.txt || fault "comm: $?"
positive comm.json all_reduce 0 bytes_per_second
[ "$(value comm.json machine ranks)" = 2 ] || fault "comm: two ranks expected"
mpirun -n 2 "$DTX" bench step "${tiny[@]}" --parallel.tp 2 --profile --json two.json >table.txt 2>err.txt ||
    fault "tp 2: $?"
[ "$(value two.json mesh tp)" = 2 ] || fault "tp 2 expected"
positive two.json variants diff share_of_peak
# One step's time and bytes in communicators; the bytes are those of one step however many were measured.
grep -q "^tp  *communicator, .* sent" table.txt || fault "no communicator in the profile"
awk -v x="$(value two.json variants diff profile communication_share)" 'BEGIN { exit !(x > 0 && x < 1) }' ||
    fault "share of communication: $(value two.json variants diff profile communication_share)"
mpirun -n 2 "$DTX" bench step "${tiny[@]}" --parallel.tp 2 --profile --attention diff --repeats 1 --json one.json \
    >table.txt 2>err.txt || fault "tp 2, one repeat: $?"
for key in communicator sent_bytes calls; do
    got=$(value one.json variants diff profile communicators 0 $key) &&
        [ "$got" = "$(value two.json variants diff profile communicators 0 $key)" ] || fault "$key differs: $got"
done
positive one.json variants diff profile communicators 0 sent_bytes

# A checkpoint's way to the disk and back, on one rank and on two; ratios are those of the figures, nothing stays behind.
mkdir disk
"$DTX" bench checkpoint --bytes 3000000 --rounds 1 --steps 1 --threads 1 --dir disk --json save.json >table.txt 2>err.txt ||
    fault "checkpoint: $?"
mpirun -n 2 "$DTX" bench checkpoint --bytes 3000000 --rounds 1 --steps 1 --threads 1 --parallel.dp 2 --dir disk \
    --json saves.json >table.txt 2>err.txt || fault "checkpoint on two ranks: $?"
for file in save.json saves.json; do
    near "$(value $file state_bytes)" 3000000 0.2 "$file: bytes of state"
    near "$(value $file save_share_of_plain_write median)" "$(divide "$(value $file plain_write_seconds median)" \
        "$(value $file save_seconds median)")" 1e-6 "$file: saving"
    near "$(value $file load_share_of_plain_read median)" "$(divide "$(value $file plain_read_seconds median)" \
        "$(value $file load_seconds median)")" 1e-6 "$file: loading"
    positive $file stall_to_memcpy median
    positive $file save_bypassing_page_cache_seconds median
    positive $file step_seconds median
done
rmdir disk || fault "the bench of checkpoints leaves something behind: $(ls disk)"

printf 'hello, hello world\n%.0s' $(seq 3000) >text
"$DTX" bench tokenizer --tokenizer "$DTX_SOURCE/tests/golden/tokenizer/gpt2_vocab.bpe" --text text --passes 2 \
    --json tokenizer.json >table.txt 2>err.txt || fault "tokenizer: $?"
[ "$(value tokenizer.json bytes)/$(value tokenizer.json tokens)" = 57000/15000 ] || fault "tokenizer: bytes and tokens"
[ "$(value tokenizer.json passes cold seconds n)" = 2 ] || fault "tokenizer: two passes expected"
for kind in memcpy check pieces cold warm decode; do positive tokenizer.json passes $kind bytes_per_second; done

# Refusals: 78 and one message that names the cause.
refused() { # PATTERN ARGUMENTS…
    "$DTX" bench "${@:2}" >table.txt 2>err.txt
    [ $? -eq 78 ] || fault "${*:2}: must exit with 78"
    grep -q -- "$1" err.txt || fault "${*:2}: the message lacks '$1'"
}
refused "there is no bench 'steps'" steps
refused "mpirun -n 2" comm
refused "text FILE is missing" tokenizer --tokenizer "$DTX_SOURCE/tests/golden/tokenizer/gpt2_vocab.bpe"
refused "did you mean 'repeats'" attention --repeat 3
refused "no counterpart in diff" step "${tiny[@]}" --model.attention softmax --model.heads 1
refused "add --threads 1" attention --threads 2 --clock cpu
"$DTX" bench attention --length 16 --json absent/figures.json >table.txt 2>err.txt
[ $? -eq 1 ] || fault "an absent folder must fail with 1"
grep -q "absent/figures.json.*No such file" err.txt || fault "the message does not name the file"
for bench in step kernels attention comm checkpoint stream tokenizer; do
    "$DTX" bench $bench --help >table.txt 2>err.txt || fault "$bench --help"
    grep -q -- '--json TEXT' table.txt || fault "$bench --help lists no --json"
done
leftover=$(find "$work" -name '*.partial' -o -name 'dtx-bench*')
[ -z "$leftover" ] || fault "left behind: $leftover"
