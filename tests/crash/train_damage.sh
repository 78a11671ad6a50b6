#!/usr/bin/env bash
# test: label=crash timeout=240
# The newest checkpoint of a run is damaged in each way and each region: a resume says so once, with file and cause, and
# goes on from the one before, on two ranks as on one; the damaged one, named, is refused. Foreign files beside and inside
# do no harm; a moved folder, another working directory, a read-only one resume.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1
train 2 run --train.steps 8 --train.until 2 --checkpoint.keep 0 --parallel.tp 2
train 2 run --train.steps 8 --train.until 4 --checkpoint.keep 0 --parallel.tp 2 --resume latest
new=copy/checkpoints/step-00000004

flip() { # FILE OFFSET: its lowest bit
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
at() { # FILE TEXT: where the text stands first
    local offset
    offset=$(LC_ALL=C grep -obUam 1 -- "$2" "$1" | head -n 1 | cut -d: -f1)
    [ -n "$offset" ] || complain "'$2' is not in $1"
    echo "${offset:-0}"
}
resume() { # RANKS WHAT
    start "$1" train "${small[@]}" --run.dir copy --train.steps 8 --train.until 5 --checkpoint.every 0 --resume "$2" \
        --parallel.tp "$1" \
        >log 2>&1 </dev/null
}
count=0
# damaged RANKS NAME CAUSE COMMAND…: after the command, which damages $new
damaged() {
    local ranks=$1 name=$2 cause=$3
    shift 3
    rm -rf copy
    cp -r run copy
    "$@" || complain "$name: cannot damage it"
    resume "$ranks" step-00000004
    local code=$?
    [ "$code" != 0 ] && [ "$(grep -c '^dtx: error' log)" = 1 ] && grep '^dtx: error.*step-00000004' log | grep -qE "$cause" ||
        complain "$name: named, it ends with $code: $(cat log)"
    resume "$ranks" latest || complain "$name: the one before is not taken: $(cat log)"
    [ "$(grep -cE "warning: checkpoint $new is passed over: .*$cause" log)" = 1 ] || complain "$name: not said once: $(cat log)"
    [ "$(grep -c 'passed over' log)" = 1 ] || complain "$name: said otherwise: $(cat log)"
    grep -q 'resumed from copy/checkpoints/step-00000002 at step 2' log || complain "$name: not from step 2: $(cat log)"
    count=$((count + 1))
}
index=run/checkpoints/step-00000004/checkpoint.h5 shard=run/checkpoints/step-00000004/shard-00001.h5
size=$(stat -c %s "$shard")
damaged 1 "superblock of the index" 'checkpoint.h5 is damaged' flip $new/checkpoint.h5 9
damaged 1 "attribute" 'checkpoint.h5 is damaged' flip $new/checkpoint.h5 $(($(at "$index" tokens) + 40))
damaged 1 "table of boxes" 'checkpoint.h5 is damaged' flip $new/checkpoint.h5 $(($(at "$index" /model/embed) + 150))
damaged 1 "virtual mapping" 'checkpoint.h5 is damaged' flip $new/checkpoint.h5 $(($(at "$index" shard-00001.h5) + 10))
damaged 2 "data" 'shard-00001.h5 is damaged: the checksum of /' flip $new/shard-00001.h5 $((size / 2))
damaged 1 "manifest" 'COMPLETE is damaged' flip $new/COMPLETE $(($(at run/checkpoints/step-00000004/COMPLETE shard-00000) + 20))
damaged 1 "number of the format" 'COMPLETE' flip $new/COMPLETE 3
damaged 2 "truncated shard" 'shard-00001.h5 has [0-9]+ bytes instead of [0-9]+' truncate -s -1 $new/shard-00001.h5
damaged 1 "truncated index" 'checkpoint.h5 has [0-9]+ bytes instead of' truncate -s 1000 $new/checkpoint.h5
damaged 1 "truncated manifest" 'COMPLETE is (cut off or )?damaged' truncate -s -9 $new/COMPLETE
damaged 1 "empty manifest" "COMPLETE is not dtx's" truncate -s 0 $new/COMPLETE
damaged 2 "missing shard" 'shard-00001.h5 is missing' rm $new/shard-00001.h5
damaged 1 "missing index" 'checkpoint.h5 is missing' rm $new/checkpoint.h5
damaged 1 "missing manifest" 'it has no file COMPLETE' rm $new/COMPLETE
damaged 1 "shard of another checkpoint" 'shard-00001.h5' cp run/checkpoints/step-00000002/shard-00001.h5 $new/
damaged 1 "foreign HDF5 file" 'checkpoint.h5' cp "$DTX_SOURCE/tests/golden/diff_mha.h5" $new/checkpoint.h5
damaged 1 "text for a shard" 'shard-00000.h5' cp text $new/shard-00000.h5
damaged 1 "folder for a shard" 'shard-00000.h5' bash -c "rm $new/shard-00000.h5; mkdir $new/shard-00000.h5"
damaged 1 "empty folder" 'it has no file COMPLETE|there is no checkpoint in' bash -c "rm $new/*"

# HDF5's own structures in a shard are not needed to load: no harm to a run; `dtx ckpt verify` sees them.
unneeded() { # NAME OFFSET
    rm -rf copy
    cp -r run copy
    flip $new/shard-00001.h5 "$2"
    resume 1 latest && grep -q "resumed from $new at step 4" log && ! grep -q warning log || complain "$1: $(cat log)"
    "$DTX" ckpt verify $new >log 2>&1
    [ $? = 78 ] && grep -q 'shard-00001.h5 is damaged' log || complain "$1 is not seen by verify: $(cat log)"
    count=$((count + 1))
}
unneeded "superblock of a shard" 9
unneeded "attribute of a shard" $(($(at "$shard" checksum) + 30))

# Foreign files do no harm.
rm -rf copy
cp -r run copy
touch copy/checkpoints/{notes,step-1,step-00000007x,.new-step-x} $new/notes
mkdir copy/checkpoints/{other,step-0000003}
resume 1 latest && grep -q "resumed from $new at step 4" log && ! grep -q warning log || complain "foreign files: $(cat log)"
rm -r copy/checkpoints/step-*[0-9]
resume 1 latest && complain "without a checkpoint a run resumes"
grep -q '^dtx: error.*there is no checkpoint in copy/checkpoints' log || complain "no checkpoint: $(cat log)"
touch copy/checkpoints/step-00000009
resume 1 latest && complain "a file resumes"
[ "$(grep -c '^dtx: error' log)" = 1 ] || complain "a file for a checkpoint: $(cat log)"

# Moved, from another working directory, by a relative name, by its index; readable alone.
rm -rf copy
mkdir moved
cp -r run/checkpoints/step-00000004 moved/renamed
chmod -R a-w moved
(
    cd / || exit
    for what in "$work/moved/renamed" "${work#/}/moved/renamed/" "$work/moved/renamed/checkpoint.h5"; do
        rm -rf "$work/copy"
        start 1 train "${small[@]}" --run.dir "$work/copy" --train.steps 8 --train.until 5 --parallel.tp 1 --resume "$what" \
            >"$work/log" 2>&1 </dev/null &&
            grep -q 'at step 4' "$work/log" || exit 1
    done
) || complain "moved to $work/moved/renamed: $(cat log)"
chmod -R u+w moved
echo "$count kinds of damage"
finish
