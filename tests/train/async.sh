#!/usr/bin/env bash
# test: label=train timeout=240
# Checkpoints that are written while training goes on, here to a slow disk: their boxes have the bits of those for which
# training stopped, and so do losses; saves that come too early wait or are skipped as told; a slow rank is no hang; what
# is under way when a run is stopped gets finished.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1 ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
options=(--train.steps 8 --checkpoint.every 2 --checkpoint.keep 0 --eval.every 0)

# slowly MS RANKS FOLDER OPTION…: every change of the folder's checkpoints takes so many milliseconds longer.
slowly() {
    DISK_PAUSE=$1 DISK_FOLDER=$3/checkpoints LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so train "${@:2}"
}
same_boxes() { # CHECKPOINT CHECKPOINT: the same boxes with the same checksums
    diff <(h5dump -d /boxes "$1/checkpoint.h5" | tail -n +2) <(h5dump -d /boxes "$2/checkpoint.h5" | tail -n +2) >log2 ||
        complain "$1 and $2 differ: $(head -n 4 log2)"
}
beside() { # RANKS NAME OPTION…
    local ranks=$1 name=$2 step
    shift 2
    train "$ranks" "$name-still" "${options[@]}" --checkpoint.async false --trace.path still.json --trace.skip 0 "$@"
    ! grep -q '"write directly"' still.json || complain "$name: training stops, and the save bypasses the page cache"
    slowly 2 "$ranks" "$name" "${options[@]}" --trace.path beside.json --trace.skip 0 "$@"
    if [[ "$*" = *--checkpoint.direct\ false* ]]; then
        ! grep -q '"write directly"' beside.json || complain "$name: checkpoint.direct false is not kept"
    else
        grep -q '"write directly"' beside.json || complain "$name: no save beside training bypasses the page cache"
    fi
    [ "$(grep -c ': saved ' log)" = 4 ] || complain "$name: 4 saves are reported otherwise: $(cat log)"
    ! grep warning log || complain "$name: $(cat log)"
    # the save of step 2 ends after step 4 has been made: there it is waited for
    for step in 2 4 6 8; do same_boxes "$name/checkpoints/step-0000000$step" "$name-still/checkpoints/step-0000000$step"; done
    diff <(numbers "$name") <(numbers "$name-still") >log2 || complain "$name: other numbers: $(head -n 4 log2)"
    "$DTX" ckpt verify "$name/checkpoints" >log2 2>&1 || complain "$name: $(cat log2)"
}
beside 1 alone
beside 2 data --parallel.dp 2 --checkpoint.direct false
beside 4 mesh --parallel.tp 2 --parallel.pp 2 --train.dtype bf16

# Skipped: training never waits, and says so; the last one is made.
slowly 8 2 skip "${options[@]}" --checkpoint.every 1 --checkpoint.busy skip --parallel.tp 2 --trace.path skip.json \
    --trace.skip 0 --trace.steps 4
skipped=$(grep -c 'is skipped: that of step [0-9]* is still being written' log)
[ "$skipped" -ge 2 ] && [ $((skipped + $(grep -c ': saved ' log))) = 8 ] || complain "skip: $skipped skipped: $(cat log)"
[ "$(cat skip/checkpoints/latest)" = step-00000008 ] || complain "skip: latest is $(cat skip/checkpoints/latest)"
"$DTX" ckpt verify skip/checkpoints >log2 2>&1 || complain "skip: $(cat log2)"
grep -q '"write directly"' skip.json && grep -q '"copy for checkpoint"' skip.json || complain "no checkpoint in the trace"

# One rank's disk is slower than comm.timeout: the others wait for it in a save, not in training, and nobody hangs.
DISK_RANK=1 slowly 200 2 patient --train.steps 4 --checkpoint.every 0 --eval.every 0 --parallel.tp 2 --model.layers 1 \
    --comm.timeout 3
longest=$(sed -n 's/.* shards, \([0-9]*\)\.[0-9]* s$/\1/p' log | sort -n | tail -n 1)
[ "${longest:-0}" -ge 4 ] || complain "patient: no save takes longer than comm.timeout: $(cat log)"

# Stopped while a checkpoint is being written: that one is finished, then the last one is made.
DISK_PAUSE=4 DISK_FOLDER=stopped/checkpoints LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so timeout -s KILL 60 "$DTX" train \
    "${small[@]}" --run.dir stopped --train.steps 1000000 --eval.every 0 --checkpoint.every 20 --checkpoint.busy skip \
    >log 2>&1 </dev/null &
guard=$!
for _ in $(seq 400); do
    ls stopped/checkpoints/.new-* >/dev/null 2>&1 && break
    sleep 0.01
done
kill -TERM "$(pgrep -P "$guard" -x dtx)"
wait "$guard"
code=$?
[ "$code" = 75 ] || complain "stopped: exit code $code: $(cat log)"
[ "$(grep -c ': saved ' log)" = "$(ls stopped/checkpoints | grep -c '^step-')" ] || complain "stopped: $(cat log)"
[ "$(grep -c ': saved ' log)" -ge 2 ] || complain "stopped: the one under way is lost: $(cat log)"
last=$(sed -n 's/^step: //p' stopped/status)
[ "$(cat stopped/checkpoints/latest)" = "$(printf 'step-%08d' "$last")" ] || complain "stopped: $(cat stopped/status)"
"$DTX" ckpt verify stopped/checkpoints >log2 2>&1 || complain "stopped: $(cat log2)"

# A disk that is full for a while: those saves warn, training goes on to the same numbers, later ones are whole.
DISK_KIND=enospc DISK_AT=30 DISK_UNTIL=31 slowly 1 2 full "${options[@]}" --parallel.dp 2
[ "$(grep -c 'warning: checkpoint of step [0-9]* was not saved: .*No space left' log)" -ge 1 ] || complain "full: $(cat log)"
diff <(numbers full) <(numbers data) >log2 || complain "full: other numbers: $(head -n 4 log2)"
same_boxes full/checkpoints/step-00000008 data/checkpoints/step-00000008
finish
