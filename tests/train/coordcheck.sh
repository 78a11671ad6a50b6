#!/usr/bin/env bash
# test: label=train timeout=120
# dtx sweep coordcheck: under CompleteP no coordinate's change depends on width or depth, under μP none on width; without a
# rule they do, in the directions that theory says. Slopes come out of the numbers that are written; faults are named.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"

# check CODE OPTION…: output in `out`
check() {
    local expected=$1
    shift
    timeout -s KILL 60 "$DTX" sweep coordcheck --cpu.threads 1 "$@" >out 2>log </dev/null
    local code=$?
    [ "$code" = "$expected" ] || complain "coordcheck $*: exit code $code instead of $expected: $(cat log)"
}
# section RULE AXIS: its table
section() { awk -v head="rule $1, by $2" 'index($0, "rule ") == 1 { on = index($0, head) == 1 } on' out; }
slope() { section "$1" "$2" | awk -v kind="$3" '$1 == kind { print $(NF - 3) }'; } # … slope ± error verdict
between() { awk -v x="$1" -v low="$2" -v high="$3" 'BEGIN { exit !(x != "" && x + 0 >= low && x + 0 <= high) }'; }
# slopes RULE AXIS LOW HIGH KIND…
slopes() {
    local rule=$1 axis=$2 low=$3 high=$4 kind
    shift 4
    for kind; do
        between "$(slope "$rule" "$axis" "$kind")" "$low" "$high" ||
            complain "rule $rule by $axis: the slope of $kind is '$(slope "$rule" "$axis" "$kind")', not from $low to $high"
    done
}
all='embedding queries attention gates ffn stream logits'

check 0 --widths 32,64,128 --depths 2,4,8 --rule none,mup,completep --csv numbers.csv --svg picture.svg
# shellcheck disable=SC2086
for pair in 'mup width' 'completep width' 'completep depth'; do
    slopes $pair -0.15 0.15 $all
    section $pair | grep -q '^transfers: 0 of 8 ' || complain "rule $pair does not transfer: $(section $pair)"
done
slopes none width 0.4 1.2 queries gates logits # a sum over width that moves together, seen through Adam and clipping
slopes none width 1 3 ffn                      # gate times up
slopes none depth -1.5 -0.4 attention          # L updates too many: the stream leaves them behind
for pair in 'none width' 'none depth' 'mup depth'; do
    # shellcheck disable=SC2086
    section $pair | grep -q '^does not transfer: ' || complain "rule $pair transfers: $(section $pair)"
done
# λ takes steps as large at any width: with 24 seeds one of 1/width would stand out by far.
check 0 --widths 32,128 --depths 2 --rule completep --seeds 24 --steps 2
slopes completep width -0.2 0.2 lambda

# Wider heads instead of more: λ adds up more products, which only a rate of 1/head_dim makes up for.
check 0 --model.width 32 --model.ffn 96 --widths 32,64,128 --depths 2 --rule none,mup --grow head_dim --seeds 6
slopes none width 0.5 1.5 lambda
# shellcheck disable=SC2086
slopes mup width -0.3 0.3 $all lambda

# The slope is the least squares line through the numbers of the table.
check 0 --widths 32,64,128 --depths 2 --rule none --csv numbers.csv --seeds 2
by_hand=$(awk -F, '$1 == "none" && $5 == "queries" && $6 == 4 { x = log($3); y = log($8); n++; sx += x; sy += y; sxy += x * y
    sxx += x * x } END { printf "%.2f", (n * sxy - sx * sy) / (n * sxx - sx * sx) }' numbers.csv)
between "$(slope none width queries)" "$(awk -v s="$by_hand" 'BEGIN { print s - 0.011 }')" \
    "$(awk -v s="$by_hand" 'BEGIN { print s + 0.011 }')" || complain "slope $(slope none width queries), by hand $by_hand"
if command -v gnuplot >/dev/null; then
    grep -q '</svg>' picture.svg || complain "no picture"
fi

# Softmax has no λ; heads and ffn of a configuration grow; its own base model counts; --strict makes a moving slope an error.
cat >small.yaml <<'YAML'
model: {layers: 2, width: 48, heads: 6, kv_heads: 3, ffn: 96, vocab: 100, attention: softmax, embed_mult: 50,
        transfer: mup, base_width: 24, base_layers: 1}
train: {length: 16, batch: 4}
lr: {peak: 1e-2}
YAML
check 0 small.yaml --widths 32,64 --depths 2 --steps 2 --strict
grep -q '^lambda' out && complain "softmax has λ"
grep -q '^rule mup, by width (layers 2)' out || complain "the configuration's rule is not taken: $(cat out)"
check 1 small.yaml --widths 32,128 --depths 2 --rule none --strict
grep -q 'coordinate check: [1-9][0-9]* slopes are beyond' log || complain "strict: $(cat log)"
sed 's/transfer: mup, //' small.yaml >spec.yaml
echo 'sweep: {lr_rule: mup, shapes: "48x2"}' >>spec.yaml
check 0 spec.yaml --widths 32,64 --depths 2 --steps 2 # a SPEC: its model and its rule
grep -q '^rule mup, by width (layers 2)' out || complain "the SPEC's rule is not taken: $(cat out)"
check 78 small.yaml --widths 32,40
grep -q 'widths: 40 is not a width to which 6 heads, 3 key/value heads of 8 and ffn 96 of width 48 can grow by heads' log ||
    complain "width 40: $(cat log)"
check 78 --widths 64,32 --rule mup,muP
grep -q "widths: '64,32' is not a list" log || complain "descending: $(cat log)"
grep -q "rule: 'muP' is none of none, mup, completep" log || complain "rule muP: $(cat log)"
finish
