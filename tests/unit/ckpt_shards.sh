#!/usr/bin/env bash
# test: label=unit timeout=60
# A checkpoint of 256 shards: h5py, which knows nothing of dtx, reads whole arrays right and without NaN under
# `ulimit -n 1024`, where they were written, from another working directory, after the folder was moved; dtx itself needs
# a handful of descriptors. With a shard missing h5py sees NaN there and nowhere else.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
/usr/bin/python3 -c 'import h5py' 2>/dev/null || exit 77
"$DTX_BUILD/tests/disk_tool" shards "$work/step-00000001" 256 2>"$work/log" || fail "$(cat "$work/log")"
[ "$(ls "$work/step-00000001" | grep -c '^shard-')" = 256 ] || fail "not 256 shards"
cat >"$work/read.py" <<'END'
import sys
import h5py, numpy
with h5py.File(sys.argv[1], "r") as file:
    wide, long = file["/model/wide"][:], file["/model/long"][:]
    assert file.attrs["step"] == 1 and "model.width" in file["/config"][()].decode()
expected = numpy.arange(256 * 2 * 8, dtype="f4").reshape(512, 8) + numpy.float32(0.5)
line = numpy.arange(256, dtype="f4") + numpy.float32(0.25)
for missing in map(int, sys.argv[2:]):
    expected[2 * missing : 2 * missing + 2] = line[missing] = numpy.nan
assert numpy.array_equal(wide, expected, equal_nan=True), numpy.argwhere(~(wide == expected))[:4]
assert numpy.array_equal(long, line, equal_nan=True), numpy.argwhere(~(long == line))[:4]
END
read_it() { # FOLDER INDEX MISSING…
    (cd "$1" && shift && ulimit -n 1024 && /usr/bin/python3 "$work/read.py" "$@") || fail "h5py in $1 reads $2 wrong"
}
read_it "$work" step-00000001/checkpoint.h5
read_it / "$work/step-00000001/checkpoint.h5"
mkdir "$work/far"
mv "$work/step-00000001" "$work/far/other name"
read_it / "$work/far/other name/checkpoint.h5"
read_it "$work/far/other name" checkpoint.h5
(ulimit -n 24 && "$DTX" ckpt verify "$work/far/other name") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
grep -q ': good: 512 boxes' "$work/log" || fail "$(cat "$work/log")"
rm "$work/far/other name/shard-00077.h5"
read_it / "$work/far/other name/checkpoint.h5" 77
exit 0
