#!/usr/bin/env bash
# test: label=tree timeout=30
# tests/mutants.txt lists exactly the planted faults that stand in the sources: name<TAB>regular expression of tests.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
failed=0
if grep -vnP '^(#.*|[a-z0-9_]+\t\S+)?$' tests/mutants.txt; then
    echo "tests/mutants.txt: these lines are not name<TAB>regular expression"
    failed=1
fi
planted=$(grep -rhoE 'DTX_MUTANT\([a-z0-9_]+\)' --include='*.[ch]' --include='*.cu' --include='*.cc' \
    kernels parallel data checkpoints trainer launch 2>/dev/null | grep -v 'DTX_MUTANT(name)' |
    sed 's/DTX_MUTANT(\(.*\))/\1/' | sort -u)
listed=$(grep -v '^#' tests/mutants.txt | cut -f1 | grep . | sort)
[ -n "$planted" ] || { echo "no planted fault found: the check sees nothing"; exit 1; }
while read -r name; do echo "$name is planted but not listed in tests/mutants.txt"; failed=1; done \
    < <(comm -23 <(echo "$planted") <(sort -u <<<"$listed"))
while read -r name; do echo "$name is listed in tests/mutants.txt but not planted"; failed=1; done \
    < <(comm -13 <(echo "$planted") <(sort -u <<<"$listed"))
while read -r name; do echo "$name is listed twice in tests/mutants.txt"; failed=1; done < <(uniq -d <<<"$listed")
exit "$failed"
