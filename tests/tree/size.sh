#!/usr/bin/env bash
# test: label=tree timeout=60
# Files have at most 700 lines; functions at most 80, in kernels (main loops) 200; no switch over operations.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
failed=0
sources=$(find kernels parallel data checkpoints trainer launch tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' 2>/dev/null | sort)

while read -r lines file; do
    if [ "$file" != total ] && [ "$lines" -gt 700 ]; then
        echo "$file: $lines lines, at most 700"
        failed=1
    fi
done < <(xargs -d '\n' wc -l <<<"$sources")

# clang-format puts a function's braces into the first column.
xargs -d '\n' awk '
FNR == 1 { open = 0; head = "" }
/^\{/ { open = FNR; next }
/^\}/ && open {
    lines = FNR - open + 1
    limit = FILENAME ~ /^kernels\/(cpu|cuda|simt)\// ? 200 : 80
    functions++
    if (lines > limit) { printf "%s:%d: %s has %d lines, at most %d\n", FILENAME, open, head, lines, limit; faults++ }
    open = 0
}
/^[a-z].*\(/ && !open { head = $0; sub(/\(.*/, "", head); sub(/.*[ *]/, "", head) }
/switch \(.*(->|\.)?op(eration|_id|_kind)?\)/ { printf "%s:%d: a switch over operations\n", FILENAME, FNR; faults++ }
/case DTX_OP_/ && !/DTX_OP_WORK/ { printf "%s:%d: a switch over operations\n", FILENAME, FNR; faults++ }
END {
    if (functions < 50) { print "only " functions + 0 " functions found: the check sees nothing"; exit 1 }
    exit faults > 0
}' <<<"$sources" || failed=1
exit "$failed"
