#!/bin/bash
# test: label=unit timeout=300
# dtx sweep fit on tables: published numbers, other people's columns, shares between variants, what cannot be used.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
golden=$DTX_SOURCE/tests/golden/scaling

# value VARIANT METHOD QUANTITY AT COLUMN: a cell of the CSV in $work/csv (6 value, 7 se, 8 low, 9 high)
value() {
    awk -F, -v v="$1" -v m="$2" -v q="$3" -v at="$4" -v c="$5" \
        '{ gsub(/"/, "") } $1 == v && $2 == m && $3 == q && $4 == at { print $c }' "$work/csv"
}
# near WHAT GOT WANTED RELATIVE
near() {
    awk -v g="$2" -v w="$3" -v r="$4" 'BEGIN { d = g - w; if (d < 0) d = -d; exit !(g != "" && d <= r * (w < 0 ? -w : w)) }' ||
        fail "$1: '$2', expected $3 to $4"
}

# Somebody's table: columns by their own names, D from C, the five highest losses dropped.
"$DTX" sweep fit "$golden/chinchilla_points.csv" --drop_highest 5 --resamples 40 --csv --predict "C=1e24; N=70e9, D=1.4e12" \
    >"$work/csv" 2>"$work/err" || fail "chinchilla: $(cat "$work/err")"
near E "$(value all 'approach 3' E '' 6)" 1.81721755 1e-6
near A "$(value all 'approach 3' A '' 6)" 477.826 1e-5
near B "$(value all 'approach 3' B '' 6)" 2143.417 1e-5
near objective "$(value all 'approach 3' objective '' 6)" 0.00101827401780 1e-9
near "frontier a" "$(value all frontier 'a (N ~ C^a)' '' 6)" .513900 1e-5
near "predicted loss" "$(value all prediction loss 'N=7e+10 D=1.4e+12' 6)" 1.97337 1e-5
near "N for 1e24" "$(value all frontier N_opt 'C_6nd=1e+24' 6 | head -1)" 9.7179e10 1e-4
[ "$(value all prediction loss 'N=7e+10 D=1.4e+12' 8)" != "" ] || fail "no interval"

# The paper reads off its figure that 7.8B weights of diff reach the loss of 13.1B of its Transformer: 0.595.
"$DTX" sweep fit "$golden/paper_sizes.csv" --resamples 200 --csv >"$work/csv" || fail "the paper's sizes"
near "the paper's 13.1B" "$(value diff 'equivalence (L(N) at one D)' 'share of weights' 'N=1.3123e+10 D=1.04858e+10' 6)" 0.595 0.05
[ -n "$(value diff 'equivalence (shared L(N) at one D)' 'share of weights' 'N=1.3123e+10 D=1.04858e+10' 8)" ] || fail "no shared L(N)"

# Two variants: diff needs 0.65 of the weights; every loss exact, so that all surfaces say it.
awk 'BEGIN {
    print "variant,params,tokens,loss,seed"
    for (v = 0; v < 2; v++) for (i = 0; i < 4; i++) for (k = 0; k < 4; k++) {
        n = 1e6 * 4 ^ i; d = 1e8 * 3 ^ k; m = v ? n / 0.65 : n
        printf "%s,%.0f,%.0f,%.12f,%d\n", v ? "diff" : "softmax", n, d, 1.7 + 400 / m ^ 0.33 + 1200 / d ^ 0.36, 1
    }
}' >"$work/two.csv"
"$DTX" sweep fit "$work/two.csv" --resamples 50 --csv >"$work/csv" || fail "two variants"
for at in 'N=1e+06 D=2.7e+09' 'N=6.4e+07 D=2.7e+09'; do
    for method in equivalence 'equivalence (shared surface)' 'equivalence (L(N) at one D)'; do
        near "$method, $at" "$(value diff "$method" 'share of weights' "$at" 6)" 0.65 1e-5
        near "$method, $at: lower end" "$(value diff "$method" 'share of weights' "$at" 8)" 0.65 1e-4
    done
done
share=$(value diff equivalence 'share of tokens' 'N=6.4e+07 D=2.7e+09' 6)
awk -v s="$share" 'BEGIN { exit !(s > 0.3 && s < 0.7) }' || fail "share of tokens: $share"
grep -q 'extrapolated' "$work/csv" || fail "nothing is extrapolated"
text=$("$DTX" sweep fit "$work/two.csv" --resamples 0) || fail "table"
grep -q 'resamples of variants are paired' <<<"$text" || fail "not paired"
grep -q "C        FLOPs, flops_6nd = 6 \* N \* D" <<<"$text" || fail "C has no convention"
grep -q 'diff, equivalence: what it needs to reach the loss of softmax' <<<"$text" || fail "no equivalence"
# The other way round, and the same numbers in JSON.
"$DTX" sweep fit "$work/two.csv" --resamples 20 --baseline diff --csv >"$work/csv" || fail "--baseline"
near "softmax against diff" "$(value softmax equivalence 'share of weights' 'N=1e+06 D=2.7e+09' 6)" 1.538462 1e-5
"$DTX" sweep fit "$work/two.csv" --resamples 20 --json >"$work/json" || fail "--json"
grep -q '"paired": true' "$work/json" && grep -q '"c": "flops_6nd = 6 \* N \* D"' "$work/json" || fail "JSON: columns"

# refused WHAT CODE TEXT… : the table on stdin is refused with all the texts
refused() {
    local what=$1 code=$2
    shift 2
    cat >"$work/bad.csv"
    "$DTX" sweep fit "$work/bad.csv" >"$work/out" 2>&1
    local got=$?
    [ $got = "$code" ] || fail "$what: exit code $got: $(cat "$work/out")"
    for text in "$@"; do
        grep -qF -- "$text" "$work/out" || fail "$what: no '$text' in: $(cat "$work/out")"
    done
}
refused "two points" 78 "bad.csv: nothing can be fitted to the 2 rows" "lines 2 to 3" "2 points for 5 parameters" <<<'N,D,loss
1e6,1e8,4
2e6,1e8,3.5'
refused "equal losses" 78 "all its losses are equal (3)" <<<'N,D,loss
1e6,1e8,3
2e6,1e8,3
4e6,1e8,3
1e6,2e8,3
2e6,2e8,3
4e6,2e8,3
1e6,4e8,3
2e6,4e8,3'
refused "no numbers" 78 "6 rows cannot be used" "bad.csv:2: column 'loss' (the loss) is nan; it must be positive" \
    "bad.csv:3: column 'N' (weights N) is -2e6" "bad.csv:4: column 'D' (tokens D) is empty" \
    "bad.csv:5: column 'loss' (the loss) is '3.x', which is no number" "bad.csv:6: column 'loss' (the loss) is inf" \
    "bad.csv:10: repeats line 9" "--faults drop" <<<'N,D,loss
1e6,1e8,nan
-2e6,1e8,3
4e6,,3
1e6,2e8,3.x
2e6,2e8,inf
# a comment

4e6,2e8,3
4e6,2e8,3'
sed -i 's/^# a comment$/8e6,1e9,2.9/; /^$/d' "$work/bad.csv"
"$DTX" sweep fit "$work/bad.csv" --faults drop >"$work/out" 2>&1 && fail "two rows were fitted"
grep -q "to the 2 rows" "$work/out" || fail "--faults drop: $(cat "$work/out")"
refused "the same trial twice" 78 "bad.csv:3: line 2 is the same trial" "--repeats lowest" <<<'N,D,loss,seed
1e6,1e8,4,1
1e6,1e8,4.1,1'
refused "no loss" 78 "no column is the loss" "its columns are 'N', 'D', 'error'" <<<'N,D,error
1e6,1e8,4'
refused "two columns missing" 78 "two of weights (N), tokens (D) and FLOPs (C) are needed" "--column.d" <<<'N,loss
1e6,4'
refused "torn row" 78 "bad.csv:3: 2 cells, but the header has 3" <<<'N,D,loss
1e6,1e8,4
1e6,1e8'
refused "open quote" 78 "bad.csv:2: a quoted cell does not end" <<<'N,D,loss
1e6,"1e8,4'
refused "nothing" 78 "the file is empty" </dev/null
refused "a header" 78 "no row is left of 0" <<<'N,D,loss'
refused "one budget" 78 "1 of 1 budgets have a minimum" <<<'N,D,loss
1e6,6e9,3.2
2e6,3e9,3.1
4e6,1.5e9,3.15'
printf 'N,D,loss\n1,\0,2\n' >"$work/zero.csv"
"$DTX" sweep fit "$work/zero.csv" 2>&1 | grep -q 'zero bytes' || fail "zero bytes"
"$DTX" sweep fit "$work/none.csv" >"$work/out" 2>&1
[ $? = 78 ] && grep -q 'none.csv: cannot open' "$work/out" || fail "missing file: $(cat "$work/out")"
"$DTX" sweep fit "$work/two.csv" --where "seed=1,color=red" 2>&1 | grep -q "there is no column 'color'" || fail "--where"
"$DTX" sweep fit "$work/two.csv" --baseline plain 2>&1 | grep -q "no such variant; the first is 'softmax'" || fail "--baseline"
"$DTX" sweep fit "$work/two.csv" --predict "X=3" --resamples 0 2>&1 | grep -q "expected C=1e21" || fail "--predict"
"$DTX" sweep fit "$work" 2>&1 | grep -q 'no results.csv in this folder' || fail "folder"

# Excel's ways: byte order mark, semicolons, CRLF, quotes; rows that say themselves that they are no results.
{
    printf '\xef\xbb\xbf"Model Size";"tokens";"loss";"state";"outlier"\r\n'
    awk -F, 'NR > 1 && $1 == "diff" { printf "\"%s\";%s; %s ;done;0\r\n", $2, $3, $4 }' "$work/two.csv"
    printf '1e6;1e8;;running;\r\n1e6;1e8;9.5;failed(2);\r\n5e6;5e8;9;done;yes\r\n'
} >"$work/excel.csv"
text=$("$DTX" sweep fit "$work/excel.csv" --resamples 0) || fail "semicolons"
grep -q '16 used, 3 dropped' <<<"$text" || fail "semicolons: $text"
grep -q "line 18: its state is 'running', not 'done'" <<<"$text" || fail "state: $text"
grep -q "line 19: its state is 'failed(2)'" <<<"$text" || fail "failed: $text"
grep -q "line 20: column 'outlier' says 'yes'" <<<"$text" || fail "flag: $text"

# Budgets: those whose vertex lies outside are named.
"$DTX" sweep fit "$golden/porian_isoflop_points.csv" --where "dataset=rw, val=val" >"$work/out" 2>&1 && fail "' val' is a column"
awk -F, -v OFS=, 'NR < 3 || !($7 == 1e17) || $8 < 2e7 { print }' "$golden/porian_isoflop_points.csv" >"$work/cut.csv"
"$DTX" sweep fit "$work/cut.csv" --where "dataset=rw,val=val" --resamples 20 >"$work/out" || fail "cut budget"
grep -Eq 'approach 2, C=1e\+17: the vertex N = [0-9.e+]+ lies outside the grid, beyond its largest size 1.56e\+07' "$work/out" ||
    fail "dropped budget: $(grep 'approach 2, C' "$work/out")"

# Loss curves of runs.
awk 'BEGIN {
    print "run,N,D,loss"
    for (i = 0; i < 6; i++) for (k = 0; k < 40; k++) {
        n = 1e6 * 2 ^ i; d = n * 2 * 1.15 ^ k
        printf "r%d,%.0f,%.0f,%.9f\n", i, n, d, 1.5 + 200 / n ^ 0.3 + 200 * 20 ^ 0.3 / d ^ 0.3
    }
}' >"$work/curves.csv"
"$DTX" sweep fit "$work/excel.csv" --resamples 20 --curves "$work/curves.csv" --column.n "Model Size" --csv >"$work/csv" 2>"$work/err" ||
    fail "curves: $(cat "$work/err")"
near "envelope" "$(value all 'approach 1' 'a (N ~ C^a)' '' 6)" 0.5 0.01
echo "sweep fit: done"
