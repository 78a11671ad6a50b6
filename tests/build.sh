#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json: tests/build.sh PRESET. Prints what went wrong, else one line.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
preset=${1:?preset}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
echo "build: preset $preset …"
if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log"
    echo "build: cmake --preset $preset failed"
    exit 1
fi
if ! cmake --build --preset "$preset" >"$log" 2>&1; then
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Re-checking)' "$log" | tail -n 60
    echo "build: cmake --build --preset $preset failed"
    exit 1
fi
echo "build: done in $((SECONDS - start)) s"
