#!/bin/bash
# test: label=unit timeout=60
# dtx curve: sparkline, figures, odd inputs, the message without gnuplot, and the SVG where gnuplot is installed.
set -u
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

for i in 1 2 3 4 5 6 7 8; do
    heldout=null
    [ $((i % 4)) = 0 ] && heldout=$((20 - i)).5
    echo "{\"step\":$i,\"loss\":$((9 - i)),\"heldout_loss\":$heldout}"
done >"$run/metrics.jsonl"
text=$("$DTX" curve "$run/" --unigram 13) || fail "exit code $?"
grep -q '^training loss   █▇▆▅▄▃▂▁$' <<<"$text" || fail "sparkline: $text"
grep -q 'first 8.0000 (step 1)  last 1.0000 (step 8)  lowest 1.0000 (step 8)' <<<"$text" || fail "figures: $text"
grep -q '^held-out loss   █▁$' <<<"$text" || fail "held-out: $text"
grep -q 'first 16.5000 (step 4)  last 12.5000 (step 8)' <<<"$text" || fail "held-out figures: $text"
grep -q 'last held-out loss is 0.5000 nats below it' <<<"$text" || fail "unigram: $text"

# 600 steps become 60 columns; NaN is null and is counted; a torn line is passed over.
long=$run/long.jsonl
for ((i = 1; i <= 600; i++)); do
    echo "{\"step\":$i,\"loss\":$((i <= 300 ? 2 : 1))}"
done >"$long"
echo '{"step":601,"loss":null}' >>"$long"
printf '{"step":602,"lo' >>"$long"
text=$("$DTX" curve "$long" 2>"$run/err") || fail "exit code $?"
blocks=$(sed -n 's/^training loss   //p' <<<"$text")
[ "$blocks" = "$(printf '█%.0s' {1..30})$(printf '▁%.0s' {1..30})" ] || fail "down-sampled: $blocks"
grep -q '1 of 601 steps have no finite loss' <<<"$text" || fail "NaN: $text"
grep -q 'passed over 1 of 602 lines' "$run/err" || fail "torn line: $(cat "$run/err")"

"$DTX" curve >"$run/out" 2>&1 && fail "no word was accepted"
"$DTX" curve "$run" --sgv x >"$run/out" 2>&1
[ $? = 78 ] && grep -q 'svg' "$run/out" || fail "unknown flag: $(cat "$run/out")"
"$DTX" curve "$run/none" >"$run/out" 2>&1 && fail "a missing file was accepted"
grep -q "$run/none" "$run/out" || fail "missing file: $(cat "$run/out")"
"$DTX" curve --help | grep -q -- --unigram || fail "help"

PATH=/nonexistent "$DTX" curve "$run" --svg "$run/p.svg" >"$run/out" 2>&1
[ $? = 78 ] && grep -q 'gnuplot is not installed' "$run/out" || fail "without gnuplot: $(cat "$run/out")"
ls "$run"/p.svg* 2>/dev/null && fail "a file was left"
"$DTX" curve "$run" --svg "$run/none/p.svg" >"$run/out" 2>&1 && fail "a missing folder was accepted"

command -v gnuplot >/dev/null || { echo "gnuplot is not installed"; exit 77; }
odd="$run/it's a \"run\" \`id\` \$HOME %s"
mkdir "$odd" && cp "$run/metrics.jsonl" "$odd"
"$DTX" curve "$odd" --unigram 13 --svg "$odd/a b.svg" --png "$odd/p.png" >/dev/null || fail "odd names"
svg=$(cat "$odd/a b.svg")
for want in 'loss (nats per token)' '>step<' 'training loss' 'held-out loss' 'unigram entropy 13.000' "it's a" '`id`' '</svg>'; do
    grep -qF -- "$want" <<<"${svg//&#39;/\'}" || fail "the SVG lacks $want"
done
[ "$(head -c 4 "$odd/p.png" | tail -c 3)" = PNG ] || fail "no PNG"
echo '{"step":1,"loss":5}' >"$run/one.jsonl"
"$DTX" curve "$run/one.jsonl" --svg "$run/one.svg" >/dev/null || fail "one step"
echo '{"step":1,"loss":null}' >"$run/nan.jsonl"
"$DTX" curve "$run/nan.jsonl" --svg "$run/nan.svg" >"$run/out" 2>&1 && fail "a curve without numbers was drawn"
grep -q 'no training loss is finite' "$run/out" || fail "NaN alone: $(cat "$run/out")"
exit 0
