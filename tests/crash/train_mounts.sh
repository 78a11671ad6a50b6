#!/usr/bin/env bash
# test: label=crash timeout=120
# A run whose checkpoints lie on a small file system that fills up (a real one, mounted for this test alone): each save
# that does not fit is warned of and leaves nothing, training goes on; once there is room it saves again. A read-only file
# system, for root too: a run is refused there before it trains; resuming from one works.
set -uo pipefail
if [ "${1:-}" != inside ]; then
    unshare -m mount -t tmpfs none /tmp 2>/dev/null || exit 77
    exec unshare -m bash "$0" inside
fi
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1
mkdir small
mount -t tmpfs -o size=2m none small || complain "mount"
# A checkpoint has 0.7 MB: two fit.
options=(--train.steps 12 --checkpoint.every 1 --eval.every 0 --checkpoint.dir "$work/small/ck")
train 1 reference --train.steps 12 --checkpoint.every 0 --eval.every 0

# keep 0: from the third save on there is no room, at the end neither, which is a failure; what was saved is whole.
start 1 train "${small[@]}" --run.dir full "${options[@]}" --checkpoint.keep 0 >log 2>&1 </dev/null
code=$?
[ "$code" = 1 ] || complain "a full disk: exit code $code: $(cat log)"
saved=$(ls small/ck | grep -c '^step-')
[ "$saved" -ge 1 ] && [ "$(grep -c 'was not saved: .*No space left on device; free space' log)" = $((12 - saved)) ] ||
    complain "a full disk: $saved saved: $(cat log)"
[ "$(ls -A small/ck | grep -vcE '^(step-[0-9]*|latest|.lock)$')" = 0 ] || complain "a full disk leaves $(ls -A small/ck)"
[ "$(numbers full | wc -l)" = 12 ] || complain "a full disk stops training"
"$DTX" ckpt verify small/ck >log 2>&1 || complain "a full disk: $(cat log)"

# Room again: resumed from what is there, two ranks, and the end is the same.
rm -rf small/ck/step-0000000[2-9]
mount -o remount,size=16m small
train 2 full "${options[@]}" --checkpoint.keep 2 --resume latest --parallel.tp 2
grep -q 'was not saved' log && complain "with room: $(cat log)"
train 1 again "${options[@]}" --checkpoint.keep 2 --checkpoint.dir "$work/small/again"
same_arrays small/again/step-00000012 reference/checkpoints/step-00000012

# Read-only.
mount -o remount,ro small || complain "remount"
start 1 train "${small[@]}" --run.dir small/run --train.steps 4 >log 2>&1 </dev/null
code=$?
[ "$code" = 78 ] && [ "$(grep -c '^dtx: error' log)" = 1 ] && grep -q '^dtx: error.*small/run.*Read-only file system' log ||
    complain "a run on a read-only disk ends with $code: $(cat log)"
start 2 train "${small[@]}" --run.dir other --train.steps 4 --checkpoint.dir small/other --parallel.tp 2 >log 2>&1 </dev/null
code=$?
[ "$code" = 78 ] && [ "$(grep -c '^dtx: error' log)" = 1 ] && grep -q '^dtx: error.*small/other.*Read-only file system' log ||
    complain "checkpoints on a read-only disk end with $code: $(cat log)"
[ ! -e other/metrics.jsonl ] || complain "a run without a place for checkpoints trains"
start 1 train "${small[@]}" --run.dir full --train.steps 14 --resume latest --checkpoint.dir small/ck --parallel.tp 1 >log 2>&1 </dev/null
code=$?
[ "$code" = 78 ] && [ "$(grep -c '^dtx: error' log)" = 1 ] && grep -q 'Read-only file system\|no folder that this user may write' log ||
    complain "resuming onto a read-only disk ends with $code: $(cat log)"
train 1 elsewhere --train.steps 14 --train.until 13 --resume small/again
grep -q 'resumed from small/again/step-00000012 at step 12' log || complain "from a read-only disk: $(cat log)"
"$DTX" ckpt verify small/again >log 2>&1 || complain "verify on a read-only disk: $(cat log)"
cd / && umount "$work/small"
finish
