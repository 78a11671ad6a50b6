#!/usr/bin/env bash
# test: label=tree timeout=30
# Includes are written from the root and point only downward:
# kernels/base <- kernels <- parallel <- {data, checkpoints} <- trainer <- launch; tests may include everything.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1

folders="kernels parallel data checkpoints trainer launch tests"
# shellcheck disable=SC2086
files=$(find $folders -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' 2>/dev/null | sort)
includes=$(xargs -d '\n' grep -Hn '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' <<<"$files")

awk '
NR == FNR { exists[$0] = 1; next }
BEGIN {
    below["kernels"] = " kernels "
    below["parallel"] = below["kernels"] "parallel "
    below["data"] = below["parallel"] "data "
    below["checkpoints"] = below["parallel"] "checkpoints "
    below["trainer"] = below["parallel"] "data checkpoints trainer "
    below["launch"] = below["trainer"] "launch "
    below["tests"] = below["launch"] "tests "
}
{
    split($0, field, ":")
    file = field[1]
    target = $0
    sub(/^[^"]*"/, "", target)
    sub(/".*/, "", target)
    folder = file; sub(/\/.*/, "", folder)
    to = target; sub(/\/.*/, "", to)
    count++
    if (target !~ /\// || target ~ /^\./ || !(to in below))
        fault(field, target, "is not written from the root")
    else if (index(below[folder], " " to " ") == 0)
        fault(field, target, "points upward or sideways from " folder)
    else if (file ~ /^kernels\/base\// && target !~ /^kernels\/base\//)
        fault(field, target, "leaves kernels/base")
    else if (target ~ /\.inc$/)
        next # made by the build
    else if (!(target in exists))
        fault(field, target, "does not exist")
}
function fault(field, target, what)
{
    printf "%s:%s: #include \"%s\" %s\n", field[1], field[2], target, what
    faults++
}
END {
    if (count < 20) { print "only " count " includes found: the check sees nothing"; exit 1 }
    print count " includes, " faults + 0 " faults"
    exit faults > 0
}' <(echo "$files") <(echo "$includes")
