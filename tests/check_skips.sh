#!/usr/bin/env bash
# Compares the skipped tests of a ctest log with tests/skips.txt: tests/check_skips.sh LOG
# A skip is allowed when the test is listed and its probe fails, which means: what the test needs is not here.
set -uo pipefail
log=$(realpath "${1:?log of ctest}")
cd "$(dirname "$0")/.." || exit 1
failed=0
while read -r test; do
    line=$(awk -F'\t' -v test="$test" '!/^#/ && $1 == test' tests/skips.txt)
    probe=$(cut -f2 <<<"$line")
    if [ -z "$line" ]; then
        echo "skips: $test was skipped but is not listed in tests/skips.txt"
        failed=1
    elif [ -z "$probe" ] || bash -c "$probe" >/dev/null 2>&1 </dev/null; then
        echo "skips: $test was skipped though its probe finds what it needs: $probe"
        failed=1
    else
        echo "skips: $test ($(cut -f3 <<<"$line"))"
    fi
done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*Skipped.*$/\1/p' "$log" | sort -u)
exit "$failed"
