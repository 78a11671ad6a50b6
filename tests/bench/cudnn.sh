#!/usr/bin/env bash
# test: label=unit timeout=120
# `dtx bench attention --peer cudnn` on the emulator, with what stands for cuDNN: its calls keep the API's rules and
# compute what ours do, on both ways to differential attention; without cuDNN, or where it refuses, one line says so.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$DTX_SOURCE/tests/harness/json.sh"
fail() { echo "$*"; cat "$work/log"; exit 1; }
export OMP_NUM_THREADS=1 LD_LIBRARY_PATH=$DTX_BUILD/tests/cudnn

# bench OPTION…: figures in $work/out.json
bench() {
    "$DTX" bench attention --dtype bf16 --head_dim 16 --repeats 1 --peak_seconds 0.001 --peer cudnn \
        --json "$work/out.json" "$@" >"$work/log" 2>&1
}
# below FIELD BOUND NAME
below() {
    local got
    got=$(value "$work/out.json" peer kernels "$3" difference "$1")
    awk -v a="$got" -v b="$2" 'BEGIN { exit !(a > 0 && a <= b) }' || fail "$3: $1 differs by '$got', not up to $2"
}

bench --device emu --length 40 --heads 2 --batch 2 || fail "the comparison fails"
[ "$(value "$work/out.json" peer state)" = compared ] || fail "not compared"
[ "$(value "$work/out.json" peer version)" = 9.19.0 ] || fail "no version"
for kernel in cudnn_two_calls cudnn_one_call cudnn_softmax; do
    below output 1e-2 $kernel
    below gradient 2e-2 $kernel
    grep -q "of the time of $kernel" "$work/log" || fail "no ratio for $kernel"
done
[ "$(value "$work/out.json" peer kernels cudnn_two_calls calls)" = 2 ] || fail "two calls are not two"
! grep -q "stand-in" "$work/log" || fail "the library complains"

# Two heads of one key head: only one call for both maps cannot pair them.
bench --device emu --length 24 --heads 2 --kv_heads 1 || fail "grouped heads fail"
[ "$(value "$work/out.json" peer kernels cudnn_two_calls state)" = compared ] || fail "two calls do not group heads"
grep -q "cudnn_one_call: not compared: one call for both maps needs as many key heads as heads" "$work/log" ||
    fail "one call with grouped heads is not refused"

# An engine is missing: the others are measured.
DTX_CUDNN_WIDEST=16 bench --device emu --length 24 --heads 1 || fail "a refused graph fails the bench"
[ "$(value "$work/out.json" peer kernels cudnn_softmax state)" = compared ] || fail "softmax is not compared"
for kernel in cudnn_two_calls cudnn_one_call; do
    grep -q "$kernel: not compared: forward: cuDNN has no engine for this graph" "$work/log" || fail "no reason"
    [ "$(value "$work/out.json" peer kernels $kernel state)" = "not compared" ] || fail "$kernel is compared"
done

# Plans that do not run: the others are measured.
DTX_CUDNN_BROKEN=1 bench --device emu --length 24 --heads 1 || fail "a broken plan fails the bench"
for kernel in cudnn_two_calls cudnn_one_call cudnn_softmax; do
    grep -q "$kernel: not compared: cuDNN: attention: not supported" "$work/log" || fail "no reason for a broken $kernel"
    [ "$(value "$work/out.json" peer kernels $kernel state)" = "not compared" ] || fail "$kernel is compared"
done
[ "$(value "$work/out.json" kernels diff both seconds n)" = 1 ] || fail "ours is not measured beside a broken peer"

# No cuDNN that can be used: a line and exit code 0. none REASON OPTION…
none() {
    local reason=$1
    shift
    bench --length 24 --heads 1 "$@" || fail "without cuDNN the bench fails"
    grep -q "cuDNN: not compared: .*$reason" "$work/log" || fail "the reason is not '$reason'"
    [ "$(value "$work/out.json" peer state)" = "not compared" ] || fail "compared without cuDNN"
}
none "it needs a GPU" --device cpu
DTX_CUDNN_VERSION=91002 none "version 9.10.2; the comparison needs 9.11" --device emu
mkdir "$work/bad" && echo nothing >"$work/bad/libcudnn.so.9"
LD_LIBRARY_PATH=$work/bad none "libcudnn.so.9" --device emu
