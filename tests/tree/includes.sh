#!/usr/bin/env bash
# test: label=tree timeout=30
# Includes are written from the root and point only downward:
# kernels/base <- kernels <- parallel <- {data, checkpoints} <- trainer <- launch; tests may include everything.
set -euo pipefail
cd "$DTX_SOURCE" || exit 1

find kernels parallel data checkpoints trainer launch tests -name '*.[ch]' -o -name '*.def' -o -name '*.cu' 2>/dev/null |
    sort | xargs grep -Hn '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' /dev/null > "${TMPDIR:-/tmp}/dtx_includes.$$" || true
trap 'rm -f "${TMPDIR:-/tmp}/dtx_includes.$$"' EXIT

awk -v source="$DTX_SOURCE" '
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
    else if (system("test -e \"" source "/" target "\"") != 0)
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
}' "${TMPDIR:-/tmp}/dtx_includes.$$"
