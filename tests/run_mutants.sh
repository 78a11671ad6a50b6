#!/usr/bin/env bash
# Every planted fault must turn the tests named for it in tests/mutants.txt red. Prints the table; fails on survivors.
#   tests/run_mutants.sh [name…]   default: all
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
launch/packages.sh tests || exit
tests/build.sh mutants || exit
DTX_SOURCE=$PWD bash tests/tree/mutants.sh || exit 1
unset DTX_MUTANT

run() { ctest --test-dir build-mutants -j2 --no-tests=error --stop-on-failure -R "$1" </dev/null >"$log" 2>&1; } # mpirun would eat the list
log=$(mktemp) list=$(mktemp)
trap 'rm -f "$log" "$list"' EXIT

awk -F'\t' -v names="$*" '
    BEGIN { n = split(names, name, " "); for (i = 1; i <= n; i++) wanted[name[i]] = 1 }
    !/^#/ && NF && (n == 0 || $1 in wanted) { print; delete wanted[$1] }
    END { for (i in wanted) { print "mutants: tests/mutants.txt has no " i >"/dev/stderr"; bad = 1 } exit bad }' \
    tests/mutants.txt >"$list" || exit 78

# Red means something only when the same tests are green without a fault.
all=$(cut -f2 "$list" | grep . | sort -u | paste -sd'|')
if ! run "$all" || grep -q '\*\*\*Skipped' "$log"; then
    tail -n 40 "$log"
    echo "mutants: without any fault the tests must pass, none skipped"
    exit 1
fi

count=0 survivors=0
while IFS=$'\t' read -r name tests; do
    count=$((count + 1))
    start=$SECONDS
    if DTX_MUTANT=$name run "$tests"; then
        verdict=SURVIVED
        survivors=$((survivors + 1))
    elif grep -q 'No tests were found' "$log"; then
        verdict="NO SUCH TEST"
        survivors=$((survivors + 1))
    else
        verdict="caught by $(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*.*$/\1/p' "$log" | head -n 1)"
    fi
    printf '%-36s %s (%d s)\n' "$name" "$verdict" $((SECONDS - start))
done <"$list"
echo "mutants: $count planted, $survivors survived"
[ "$survivors" -eq 0 ]
