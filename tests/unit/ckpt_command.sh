#!/usr/bin/env bash
# test: label=unit timeout=60
# dtx ckpt ls, show, verify, diff: output and exit codes; and h5dump, which knows nothing of dtx, prints the numbers.
set -uo pipefail
make="$DTX_BUILD/tests/test_unit_ckpt_roundtrip"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fault() { echo "ckpt_command: $*"; cat "$dir/out"; exit 1; }
# run EXPECTED_CODE WORDS...: dtx ckpt WORDS
run() {
    local expected=$1; shift
    "$DTX" ckpt "$@" >"$dir/out" 2>&1
    local code=$?
    [ "$code" = "$expected" ] || fault "dtx ckpt $*: exit code $code instead of $expected"
}
has() { grep -qE -- "$1" "$dir/out" || fault "'$1' is not in the output"; }

for step in 1 2; do "$make" make "$dir/a" $step 7 2>/dev/null || fault "cannot make a checkpoint"; done
"$make" make "$dir/b" 1 8 2>/dev/null || fault "cannot make a checkpoint"

run 0 --help; has 'usage: dtx ckpt ls'
run 0 ls "$dir/a"; has '^step-00000002 +2 +2000006 +3\.2500 +tp2 dp1 pp2 +1 '
[ "$(sed -n 2p "$dir/out" | cut -c1-13)" = step-00000002 ] || fault "the newest is not the first"
run 0 show "$dir/a"; has '^step +2$'; has 'model.width: 6'; has '/model/embed +bf16 +101 x 6 +1'; has 'shard-00000.h5 +[0-9]+ bytes'
run 0 verify "$dir/a"; [ "$(grep -c ': good: 52 boxes' "$dir/out")" = 2 ] || fault "two good ones are not seen"
run 0 diff "$dir/a/step-00000001" "$dir/a"; has '52 arrays, 0 different'
run 1 diff "$dir/a" "$dir/b"; has '52 arrays, 52 different'; has '/other/u8 .*1 of 1 elements differ'
run 0 diff --limit 1e30 "$dir/a" "$dir/b"; has ' 0 different'
run 78; has "none of ls, show, verify, diff"
run 78 diff "$dir/a"; has 'needs 2 path'
run 78 ls --unknown 1 "$dir/a"
run 78 show "$dir"; has 'no file COMPLETE'
run 78 ls "$dir/nothing"; has 'No such file'

# a foreign HDF5 file in the place of a checkpoint, a shard with one other byte, a shard that is gone
mkdir "$dir/foreign"; cp "$DTX_SOURCE/tests/golden/diff_mha.h5" "$dir/foreign/checkpoint.h5"
run 78 verify "$dir/foreign"; has 'is incomplete or no checkpoint'
shard="$dir/a/step-00000002/shard-00000.h5"
size=$(stat -c %s "$shard")
printf 'x' | dd of="$shard" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
run 78 verify "$dir/a"; has 'step-00000001: good'; has 'step-00000002: damaged: .*shard-00000.h5 is damaged: '
rm "$shard"
run 0 ls "$dir/a"; has 'step-00000002 +damaged: .*shard-00000.h5 is missing'

# without dtx: whole arrays as numbers, from another working directory, in a folder that was moved
if command -v h5dump >/dev/null; then
    mv "$dir/a/step-00000001" "$dir/moved"
    (cd / && ulimit -n 64 && h5dump -d /model/embed -s 0,0 -c 1,6 "$dir/moved/checkpoint.h5") >"$dir/out" 2>&1
    has '\(0,0\): 284, 41\.5, 1792, -812, -720, 161'
    h5dump -a /step "$dir/moved/checkpoint.h5" >"$dir/out" 2>&1; has '\(0\): 1$'
fi
exit 0
