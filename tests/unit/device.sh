#!/usr/bin/env bash
# test: label=unit timeout=60
# Without a usable GPU: device auto computes on the CPU, device cuda is refused with the reason; doctor says it, and
# so do the scripts for machines with GPUs.
set -uo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*"; exit 1; }
doctor() { "$DTX" doctor --seconds 0.01 --folder "$folder" "$@"; }

report=$(doctor --device auto 2>"$folder/log") || fail "doctor fails: $(cat "$folder/log")"
line=$(grep 'backend cuda' <<<"$report") || fail "doctor says nothing of the backend: $report"
case $line in
*"this build has none"*)
    doctor --device cuda >"$folder/out" 2>&1
    [ $? -eq 78 ] || fail "device cuda in a build without it: exit code is not 78: $(cat "$folder/out")"
    grep -q "no backend 'cuda' in this build" "$folder/out" || fail "no reason: $(cat "$folder/out")"
    ;;
*"not usable"*)
    reason=$(sed 's/.*not usable: //; s/ (.*//' <<<"$line")
    grep -q "device: computing on the CPU: $reason" "$folder/log" || fail "auto gives no reason: $(cat "$folder/log")"
    doctor --device cuda >"$folder/out" 2>&1
    [ $? -eq 78 ] || fail "device cuda without a GPU: exit code is not 78: $(cat "$folder/out")"
    grep -q "device: $reason" "$folder/out" || fail "the refusal does not say '$reason': $(cat "$folder/out")"
    for script in run multi; do
        OUT=$folder/device bash "$DTX_SOURCE/tests/device/$script.sh" >"$folder/out" 2>&1
        [ $? -eq 77 ] || fail "device/$script.sh: exit code is not 77: $(cat "$folder/out")"
        grep -q '^no usable GPU: ' "$folder/out" || fail "device/$script.sh gives no reason: $(cat "$folder/out")"
    done
    ;;
*) doctor --device cuda >"$folder/out" 2>&1 || fail "the GPU cannot be opened: $(cat "$folder/out")" ;;
esac
