#!/bin/bash
# test: label=unit timeout=300
# dtx sweep report: one HTML file that needs nothing else, the pictures as files, a sweep's folder with its runs' curves.
set -u
command -v gnuplot >/dev/null || { echo "no gnuplot here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
sweep=$work/sweep
mkdir -p "$sweep/runs"

# A sweep that has been run: six sizes at budgets of compute, two variants, with metrics of every run.
awk -v runs="$sweep/runs" 'BEGIN {
    print "trial,variant,n_total,n_nonembedding,n_matmul,d,flops,flops_palm,flops_6nd,loss,seed,budget,train_loss,lr,steps,label"
    for (v = 0; v < 2; v++) for (b = 0; b < 3; b++) for (i = 0; i < 6; i++) {
        c = 1e15 * 4 ^ b; n = 1e6 * 2 ^ (i + b) / 4; d = c / 6 / n; m = v ? n / 0.65 : n
        loss = 1.7 + 200 / m ^ 0.3 + 200 * 20 ^ 0.3 / d ^ 0.3
        id = sprintf("t%d%d%d", v, b, i)
        printf "%s,%s,%.0f,%.0f,%.0f,%.0f,%.17g,%.17g,%.17g,%.9f,1,%g,%.9f,1e-3,20,%s\n", id, v ? "diff<1>" : "softmax", n,
            n * 0.8, n * 0.9, d, 6.1 * n * d, 6.2 * n * d, 6 * n * d, loss, c, loss, "w1 d2"
        system("mkdir -p " runs "/" id)
        file = runs "/" id "/metrics.jsonl"
        for (k = 1; k <= 20; k++)
            printf "{\"step\":%d,\"loss\":%.6f,\"heldout_loss\":null}\n", k,
                1.7 + 200 / m ^ 0.3 + 200 * 20 ^ 0.3 / (d * k / 20) ^ 0.3 > file
        close(file)
    }
}' >"$sweep/results.csv"
echo "name: six & a half" >"$sweep/spec.yaml"

"$DTX" sweep report "$sweep" --resamples 30 --pictures "$work/pictures" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
page=$sweep/report.html
[ -s "$page" ] || fail "no page: $(cat "$work/out")"
[ ! -e "$page.tmp" ] || fail "a temporary file was left"
grep -q '<meta name="viewport"' "$page" || fail "no viewport"
grep -q 'reaches the loss of softmax with <b>6[45]\.[0-9] %</b> of the weights' "$page" || fail "no share: $(grep 'class="key"' "$page")"
grep -q 'diff&lt;1&gt;' "$page" && ! grep -q 'diff<1>' <(sed 's/<title>[^<]*<[^>]*>[^<]*<\/title>//g' "$page" | grep -v '^ *<svg') ||
    fail "names are not escaped"
grep -q 'name: six &amp; a half' "$page" || fail "no specification"
grep -q 'dtx sweep report' "$page" || fail "no command"
grep -q "C_6nd=1.6e+16 N_opt" "$page" || fail "the highest 6 N D is not that of the column of FLOPs"
for title in 'What a variant needs' 'Loss curves, softmax' 'IsoFLOP parabolas, diff&lt;1&gt;' 'Residuals of approach 3' 'Best size over compute, softmax'; do
    grep -q "<b>$title" "$page" || fail "no picture '$title'"
done
grep -Pzqo "<g [^>]*>\s*</g>" "$page" && fail "groups that draw nothing"
# Nothing from elsewhere, no id twice, no reference that leads nowhere.
grep -oE '(src|href)="[^#][^"]*"|url\([^#)][^)]*\)|<(script|link|iframe)' "$page" && fail "the page needs something else"
grep -oE " id=[\"'][^\"']*" "$page" | sort | uniq -d | grep . && fail "ids are used twice"
grep -oE "href='#[^']*|url\(#[^)]*" "$page" | sed "s/.*#//" | sort -u >"$work/references"
grep -oE " id=[\"'][^\"']*" "$page" | sed "s/.*[\"']//" | sort -u >"$work/ids"
comm -23 "$work/references" "$work/ids" | grep . && fail "references to nothing"
[ "$(grep -c '<svg' "$page")" = "$(ls "$work"/pictures/*.svg | wc -l)" ] || fail "pictures in the page and files differ"
for name in shares frontier curves-softmax isoflop-diff_1_; do
    head -c 4 "$work/pictures/$name.png" | grep -q PNG || fail "no $name.png"
    grep -q '<svg' "$work/pictures/$name.svg" || fail "no $name.svg"
done

# A table of one variant; a place that cannot be written.
"$DTX" sweep report "$DTX_SOURCE/tests/golden/scaling/porian_isoflop_points.csv" --resamples 0 --out "$work/one.html" >/dev/null ||
    fail "one variant"
grep -q 'class="key"' "$work/one.html" && fail "a share without variants"

# A variant that does not get there, and intervals that reach to never: in words, at the edge of the picture.
awk 'BEGIN {
    print "variant,params,tokens,loss,seed"
    for (v = 0; v < 2; v++) for (i = 0; i < 4; i++) for (k = 0; k < 4; k++) {
        n = 1e6 * 4 ^ i; d = 1e8 * 3 ^ k
        printf "%s,%.0f,%.0f,%.12f,%d\n", v ? "worse" : "softmax", n, d, (v ? 2.9 : 1.7) + 400 / n ^ 0.33 + 1200 / d ^ 0.36, 1
    }
}' >"$work/worse.csv"
"$DTX" sweep report "$work/worse.csv" --resamples 20 --out "$work/worse.html" --pictures "$work/worse" >/dev/null || fail "worse"
grep -q "<b>worse</b> does not reach the loss of softmax by <b>any number</b> of weights (95 % interval never to never)" "$work/worse.html" ||
    fail "never: $(grep 'class="key"' "$work/worse.html")"
grep -q "<td>never \[never, never\]</td>" "$work/worse.html" || fail "never in the table"
grep -Ew "inf" "$work/worse.html" && fail "inf in the page"
[ "$(grep -c "<use.*translate" "$work/worse/shares.svg")" -gt 6 ] || fail "no points at the edge"
"$DTX" sweep report "$sweep" --resamples 0 --out "$work/none/page.html" >"$work/out" 2>&1
[ $? = 78 ] || fail "a missing folder: $(cat "$work/out")"
mkdir "$work/empty"
PATH=$work/empty "$DTX" sweep report "$sweep" --resamples 0 --out "$work/no.html" >"$work/out" 2>&1
grep -q 'gnuplot is not installed' "$work/out" || fail "without gnuplot: $(cat "$work/out")"
[ ! -e "$work/no.html" ] && [ ! -e "$work/no.html.tmp" ] || fail "half a page was left"
echo "sweep report: done"
