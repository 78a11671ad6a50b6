#!/usr/bin/env bash
# test: label=crash timeout=120
# Five saves of three ranks are recorded call by call (new steps, the same step again, old ones removed), and of one.
# After each call every state that a power cut can leave is rebuilt, losing what was not synced in several ways
# (disk/model.h): in each the newest complete checkpoint loads, no older than the last that was reported as saved.
set -uo pipefail
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. "$DTX_SOURCE/tests/harness/train.sh"
tool=$DTX_BUILD/tests/disk_tool
library=$DTX_BUILD/tests/libdtx_disk.so
export OMPI_MCA_mpi_yield_when_idle=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
for ranks in 1 3; do
    start=()
    [ "$ranks" = 1 ] || start=(mpirun -n "$ranks")
    mkdir "$work/$ranks"
    DISK_FOLDER=$work/$ranks DISK_LOG=record$ranks LD_PRELOAD=$library "${start[@]}" "$tool" record "$work/$ranks" \
        >log 2>&1 </dev/null || complain "$ranks ranks cannot save: $(cat log)"
    "$tool" replay record$ranks || complain "saves of $ranks ranks"
done

# The same for a run from its first folder on: a save counts once nothing that is not synced can take it away.
make_data
mkdir top
DISK_FOLDER=$work/top DISK_LOG=record LD_PRELOAD=$library train 2 top/a/run --train.steps 4 --checkpoint.every 2 \
    --checkpoint.keep 1 --checkpoint.max_shards 1 --parallel.tp 2 --model.layers 1
"$tool" replay record "$work/top" a/run/checkpoints 4 || complain "a run"
finish
