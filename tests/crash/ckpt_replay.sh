#!/usr/bin/env bash
# test: label=crash timeout=120
# Five saves of three ranks are recorded call by call (new steps, the same step again, old ones removed), and of one.
# After each call every state that a power cut can leave is rebuilt, losing what was not synced in several ways
# (disk/model.h): in each the newest complete checkpoint loads, no older than the last that was reported as saved.
set -uo pipefail
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
tool=$DTX_BUILD/tests/disk_tool
export OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=$work
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
for ranks in 1 3; do
    start=()
    [ "$ranks" = 1 ] || start=(mpirun -n "$ranks")
    mkdir "$work/$ranks"
    DISK_FOLDER=$work/$ranks DISK_LOG=$work/record$ranks LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so "${start[@]}" \
        "$tool" record "$work/$ranks" </dev/null >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$tool" replay "$work/record$ranks" || exit 1
done
