#!/usr/bin/env bash
# test: label=crash timeout=240
# The disk under real runs fails: calls of saves in turn with an error, a full disk, a short write (one process, one rank
# of two, all of them); nothing can be read on one rank only. What cannot be saved is warned of and training goes on to
# the same weights; what cannot be read on one rank is passed over by all, aloud, or refused when it was named.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1 ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
options=(--train.steps 16 --checkpoint.every 1 --checkpoint.keep 2 --eval.every 0)

# broken RANKS NAME KIND AT EVERY UNTIL RANK: a run of which calls number AT, AT + EVERY, … up to UNTIL fail.
broken() {
    local ranks=$1 name=$2 faults warnings
    [ -e "reference$ranks" ] || train "$ranks" "reference$ranks" "${options[@]}" --parallel.tp "$ranks"
    if [ "$7" = all ]; then unset DISK_RANK; else export DISK_RANK=$7; fi
    rm -f count
    DISK_FOLDER=$name/checkpoints DISK_KIND=$3 DISK_AT=$4 DISK_EVERY=$5 DISK_UNTIL=$6 DISK_COUNT=count \
        LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so train "$ranks" "$name" "${options[@]}" --parallel.tp "$ranks"
    faults=$(awk '{ n += $3 } END { print n + 0 }' count)
    warnings=$(grep -c 'warning: checkpoint of step [0-9]* was not saved: ' log)
    [ "$faults" -ge 4 ] && [ "$warnings" -ge 2 ] && [ "$warnings" -lt 15 ] ||
        complain "$name: $faults faults, $warnings warnings: $(cat log)"
    # what was reported was saved: the others were not
    [ $((warnings + $(grep -c ': saved ' log))) = 16 ] || complain "$name: 16 saves are reported otherwise: $(cat log)"
    diff <(numbers "$name") <(numbers "reference$ranks") >log2 || complain "$name: other numbers: $(head -n 4 log2)"
    same_arrays "$name/checkpoints/step-00000016" "reference$ranks/checkpoints/step-00000016"
    [ "$(cat "$name/checkpoints/latest")" = step-00000016 ] || complain "$name: latest is $(cat "$name/checkpoints/latest")"
    "$DTX" ckpt verify "$name/checkpoints" >log2 2>&1 || complain "$name: $(cat log2)"
    echo "$name: $faults faults, $warnings of 16 saves failed and were warned of, training ended with the same weights"
}
# A save makes about 300 calls that change something on the first rank and 120 on the second; twice that with reading.
broken 1 alone mixed 40 389 2500 0
broken 1 alone-eio eio 9 811 5000 0
broken 2 first mixed 7 397 2500 0
broken 2 second mixed 2 149 1000 1
broken 2 both eio 5 461 2000 all

# One rank cannot read the newest checkpoint: all of them take the one before, and say so. Named, it is refused.
train 2 run --train.steps 8 --parallel.tp 2 --train.until 2 --checkpoint.keep 0
train 2 run --train.steps 8 --parallel.tp 2 --train.until 4 --checkpoint.keep 0 --resume latest
for rank in 0 1; do
    rm -rf copy
    cp -r run copy
    unreadable() { # WHAT: resumes from it
        DISK_RANK=$rank DISK_FOLDER=copy/checkpoints/step-00000004 DISK_KIND=unreadable DISK_AT=1 \
            LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so start 2 train "${small[@]}" --run.dir copy --train.steps 8 \
            --train.until 5 --parallel.tp 2 --resume "$1" >log 2>&1 </dev/null
    }
    unreadable step-00000004 && complain "rank $rank cannot read the checkpoint that was named, but: $(cat log)"
    [ "$(grep -c '^dtx: error' log)" = 1 ] && grep '^dtx: error' log | grep -q 'step-00000004.*Input/output error' ||
        complain "rank $rank cannot read the checkpoint that was named: $(cat log)"
    unreadable latest || complain "rank $rank cannot read the newest checkpoint: $(cat log)"
    [ "$(grep -c 'step-00000004 is passed over: .*Input/output error' log)" = 1 ] ||
        complain "rank $rank cannot read the newest checkpoint: $(cat log)"
    grep -q 'resumed from copy/checkpoints/step-00000002 at step 2' log || complain "rank $rank: $(cat log)"
done
finish
