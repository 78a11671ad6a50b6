#!/usr/bin/env bash
# test: label=crash timeout=120
# Calls of a save fail in turn (error, full disk, short write), on one rank and on all, or kill the process: afterwards
# the new checkpoint or the one before loads, `latest` names one, and saving goes on. Without arguments every fifth call
# on one rank, a few on two. Arguments: every how many calls fail on one rank; number of ranks, every how many there;
# every how many calls kill, alone and there (ckpt_enumerate_long.sh: all).
set -uo pipefail
one=${1:-5} ranks=${2:-2} several=${3:-61} kill_each=${4:-9} kill_ranks=${5:-15}
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
tool=$DTX_BUILD/tests/disk_tool
export OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=$work
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
fail() {
    echo "FAILED: $*"
    exit 1
}
under() { # FOLDER COMMAND…: with the library
    local folder=$1
    shift
    DISK_FOLDER=$folder LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so "$@" </dev/null
}

under "$work/alone" "$tool" enumerate "$work/alone" "$one" || fail "one rank"
under "$work/ranks" mpirun -n "$ranks" "$tool" enumerate "$work/ranks" "$several" || fail "$ranks ranks"

# deaths RANKS VICTIM STRIDE: the victim is killed at call N of a save, N = 1, 1 + STRIDE, … until it survives one. (Rank
# 0 makes most of the calls.)
deaths() {
    local n=$1 victim=$2 stride=$(($2 ? ($3 + 9) / 10 : $3)) at number=1 found killed=0 folder=$work/deaths$1$2
    start=()
    [ "$n" = 1 ] || start=(mpirun -n "$n")
    "${start[@]}" "$tool" save "$folder" 1 10 </dev/null >"$work/log" 2>&1 || fail "$(cat "$work/log")"
    for ((at = 1; ; at += stride)); do
        number=$((number + 1))
        rm -f "$work/count"
        DISK_KIND=die DISK_AT=$at DISK_RANK=$victim DISK_COUNT=$work/count under "$folder" "${start[@]}" "$tool" save \
            "$folder" $number $((10 + number / 2)) >"$work/log" 2>&1
        code=$?
        found=$("$tool" load "$folder" 2>&1) || fail "rank $victim of $n killed at call $at: $found"
        [ "$code" != 0 ] || break
        [ "$found" = "$number" ] || [ "$found" = $((number - 1)) ] ||
            fail "rank $victim of $n killed at call $at of save $number: $found loads"
        killed=$((killed + 1))
        [ "$found" = "$number" ] || number=$((number - 1)) # what is not there yet is saved again
    done
    [ "$found" = "$number" ] || fail "save $number of $n ranks succeeded; $found loads"
    # A rank between the first and the last sends its boxes to one of them and makes no call on the disk.
    ((killed >= 2 || (victim > 0 && victim < n - 1))) || fail "only $killed deaths of rank $victim"
    total=$((total + killed))
}
total=0
deaths 1 0 "$kill_each"
echo "$total deaths of one rank at a call of a save"
total=0
for ((victim = 0; victim < ranks; victim++)); do deaths "$ranks" "$victim" "$kill_ranks"; done
echo "$total deaths of one of $ranks ranks at a call of a save"
