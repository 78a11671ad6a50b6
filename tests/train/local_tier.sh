#!/usr/bin/env bash
# test: label=train timeout=240
# Checkpoints on the nodes' own disks, here three "nodes" of one rank each: a resume takes the newest of both tiers; any
# one node's disk may be lost or damaged, and the run goes on bit for bit from what its neighbour has, on other ranks
# too; where two neighbours are lost the durable one is used, aloud. A kill at any instant leaves one that is whole.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1
options=(train "${small[@]}" --train.batch 6 --train.steps 10 --eval.every 0 --checkpoint.local_dir "$work/disks"
    --checkpoint.local_every 2)

# nodes NAMES OPTION…: a rank on each of the nodes named.
nodes() {
    local names=$1 node words=()
    shift
    for node in $names; do
        [ ${#words[@]} = 0 ] || words+=(:)
        words+=(-n 1 env "DTX_NODE=$node" "$DTX" "$@")
    done
    timeout -s KILL 60 mpirun "${words[@]}" >log 2>&1 </dev/null
}
nodes "a b c" "${options[@]}" --run.dir reference --checkpoint.keep 0 --checkpoint.every 4 || complain "reference: $(cat log)"
grep -q 'step 2 is saved on the disks of 3 nodes' log || complain "nothing is said of the local tier: $(cat log)"
[ "$(cd disks/dtx-* && echo */*/*)" = "a/step-00000002/rank-00000 a/step-00000002/rank-00002 a/step-00000006/rank-00000 \
a/step-00000006/rank-00002 b/step-00000002/rank-00000 b/step-00000002/rank-00001 b/step-00000006/rank-00000 \
b/step-00000006/rank-00001 c/step-00000002/rank-00001 c/step-00000002/rank-00002 c/step-00000006/rank-00001 \
c/step-00000006/rank-00002" ] || complain "the disks hold $(cd disks/dtx-* && echo */*/*)"
# As if it had been killed after step 7: the durable one of step 4, the local ones of steps 2 and 6.
cp -r reference/checkpoints kept
rm -r reference/checkpoints/step-00000008 reference/checkpoints/step-00000010
cp -r disks all
mv reference run
mkdir reference
cp run/metrics.jsonl reference/
id=$(basename disks/dtx-*)

# resume NODES STEP NAME: from that step, to the reference's numbers and weights.
resume() {
    local names=$1 step=$2 name=$3
    rm -rf again
    cp -r run again
    nodes "$names" "${options[@]}" --run.dir again --resume latest --checkpoint.every 4 || complain "$name: $(cat log)"
    grep -q "resumed from .*step-0000000$step at step $step" log || complain "$name: not from step $step: $(cat log)"
    rm -rf disks
    cp -r all disks
}
same() { # NAME: bit for bit
    diff <(numbers again) <(numbers reference) >log2 || complain "$1: other numbers: $(head -n 4 log2)"
    same_arrays again/checkpoints/step-00000010 kept/step-00000010
}
flip() { # FILE OFFSET
    printf '\xff' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
resume "a b c" 6 whole
same whole
! grep -q warning log || complain "whole: $(cat log)"
for lost in a c; do
    rm -r "disks/$id/$lost"
    resume "a b c" 6 "lost $lost"
    same "lost $lost"
done
flip "disks/$id/a/step-00000006/rank-00000" "$(($(stat -c %s "disks/$id/a/step-00000006/rank-00000") - 3))"
flip "disks/$id/c/step-00000006/rank-00001" 70
resume "a b c" 6 damaged
same damaged
grep -q 'local checkpoint: the checksum of /.*rank-00000' log || grep -q 'warning: local checkpoint: .*rank-00000' log ||
    complain "damaged: nothing is said: $(cat log)"
# Other ranks: node b is not there; its file is the copy on c.
resume "a c" 6 "two nodes"
close_numbers 1e-4 <(field loss again) <(field loss reference) >log2 || complain "two nodes: $(cat log2)"
resume "c a b" 6 "other order"
same "other order"
# Two neighbours lost: b's file was on b and c.
rm -r "disks/$id/b" "disks/$id/c"
resume "a b c" 4 "two lost"
same "two lost"
grep -q 'local checkpoint of step 6 is passed over: no node has the files of rank 1 of the 3' log || complain "two lost: $(cat log)"
# A local one of before the durable one is not taken.
cp -r kept/step-00000008 run/checkpoints/
resume "a b c" 8 "durable is newer"
same "durable is newer"
rm -r run/checkpoints/step-00000008
# Nor one beside a durable one of a newer dtx.
mkdir run/checkpoints/step-00000009
echo 'dtx checkpoint 2' >run/checkpoints/step-00000009/COMPLETE
nodes "a b c" "${options[@]}" --run.dir run --resume latest --checkpoint.every 4 && complain "newer dtx: $(cat log)"
grep -q 'has format 2, written by a newer dtx' log || complain "newer dtx: $(cat log)"
rm -r run/checkpoints/step-00000009

# One node's disk gets full in the middle of a save: those of then and later warn and leave nothing, the run goes on.
rm -r disks
DISK_KIND=enospc DISK_AT=270 DISK_RANK=1 DISK_FOLDER=$work/disks LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so \
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0 \
    nodes "a b" "${options[@]}" --run.dir full --checkpoint.every 0 || complain "full: $(cat log)"
grep -q 'local checkpoint of step 6 was not saved: .*No space left' log || complain "full: $(cat log)"
grep -q 'local checkpoint of step 8 was not saved: .*No space left' log || complain "full: $(cat log)"
[ "$(cd disks/dtx-* && find . -type f | sort | xargs)" = "./a/step-00000002/rank-00000 ./a/step-00000002/rank-00001 \
./a/step-00000004/rank-00000 ./a/step-00000004/rank-00001 ./b/step-00000002/rank-00000 ./b/step-00000002/rank-00001 \
./b/step-00000004/rank-00000 ./b/step-00000004/rank-00001" ] || complain "full: the disks hold $(find disks -type f)"

# What cannot be removed on another node than rank 0's is told.
mkdir "$(echo disks/dtx-*/b/step-00000002)/more"
nodes "a b" "${options[@]}" --run.dir full --checkpoint.every 0 --resume latest --train.steps 14
grep -q 'warning: old local checkpoints stay: rank 1 .*step-00000002/more' log || complain "stays: $(cat log)"
train 1 alone --train.steps 4 --checkpoint.local_every 1
grep -q 'warning: checkpoint.local_every 1: nothing is saved .* without checkpoint.local_dir' log || complain "no folder: $(cat log)"

# Killed while it writes all the time.
nodes "a b c" "${options[@]}" --run.dir killed --checkpoint.every 0 --checkpoint.local_every 1 --train.steps 1000000 \
    --lr.schedule cosine --train.until 3 || complain "killed: $(cat log)"
before=$(wc -l <killed/metrics.jsonl)
nodes "a b c" "${options[@]}" --run.dir killed --checkpoint.every 0 --checkpoint.local_every 1 --train.steps 1000000 \
    --resume latest &
guard=$!
for _ in $(seq 400); do
    [ "$(wc -l <killed/metrics.jsonl)" -lt $((before + 6)) ] || break
    sleep 0.02
done
launcher=$(pgrep -P "$(pgrep -P $guard)") # bash, timeout, mpirun
kill -9 $(pgrep -P "$launcher") "$launcher"
wait $guard 2>/dev/null
nodes "a b c" "${options[@]}" --run.dir killed --checkpoint.every 0 --checkpoint.local_every 1 --train.steps 1000000 \
    --resume latest --train.until $(($(wc -l <killed/metrics.jsonl) + 2)) || complain "killed: $(cat log)"
# The newest one may lack a rank's files, where the kill came between their renames: then it is the one before.
grep -q 'resumed from .*disks/dtx-' log && [ "$(grep -c 'passed over' log)" -le 1 ] || complain "killed: not from the disks: $(cat log)"
reached=$(wc -l <killed/metrics.jsonl)
rm -r disks
nodes "a b c" "${options[@]}" --run.dir straight --checkpoint.every 0 --train.steps 1000000 --train.until "$reached" ||
    complain "straight: $(cat log)"
diff <(numbers killed | grep -v heldout) <(numbers straight | grep -v heldout) >log2 || complain "killed: other numbers: $(head -n 4 log2)"
finish
