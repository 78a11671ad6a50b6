#!/usr/bin/env bash
# test: label=train timeout=240
# Length, batch, blend, files and ranks change on resume: the ledger says where each source stands, and a run that was
# changed and stopped again is the changed run bit for bit, packed rows included. Stages are these changes within a run.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
for name in one two; do
    head -c "$((${#name} * 1500))" text | sed "s/struct/$name/g" >part
    "$DTX" tokenize --tokenizer tok.json --out $name --split line part >log 2>&1 || complain "no $name: $(cat log)"
done
small+=(--data.heldout 0.1 --eval.samples 0 --checkpoint.keep 0 --log.peak_seconds 0)
says() { grep -qE -- "$1" out || complain "'$1' is not in: $(cat out)"; }
ledger() { "$DTX" data ledger "$1" >out 2>&1 || complain "dtx data ledger $1: $(cat out)"; }

# One source; then longer samples; then a second source, weights and another batch; then shorter ones. Each part is
# stopped once more on its way and goes on alike, on other ranks with the same tokens.
first=(--data.train "$work/one" --train.steps 60 --checkpoint.every 2)
train 1 run "${first[@]}" --train.until 4
ledger run/checkpoints
says '^samples +32 of the run'
says 'through +32 of [0-9]+ samples of length 16 '
# part NAME UNTIL MIDDLE OPTION…: on from the run so far to step UNTIL; again with a stop at MIDDLE.
part() {
    local name=$1 until=$2 middle=$3
    shift 3
    cp -r run "$name"
    train 1 run "${first[@]}" --train.until "$until" --resume latest "$@"
    train 1 "$name" "${first[@]}" --train.until "$middle" --resume latest "$@"
    train 2 "$name" "${first[@]}" --train.until "$until" --resume latest "$@" --parallel.dp 2
    diff <(field tokens run) <(field tokens "$name") >log || complain "$name: targets of the steps differ: $(cat log)"
    close_numbers 1e-4 <(field loss run) <(field loss "$name") >log || complain "$name: losses: $(cat log)"
    diff <("$DTX" data ledger --text run/checkpoints) <("$DTX" data ledger --text "$name/checkpoints") >log ||
        complain "$name: the ledgers differ: $(cat log)"
}
part longer 14 8 --train.length 64 --train.batch 4
ledger longer/checkpoints/step-00000006
says 'before +samples 0 to 31 of [0-9]+ of length 16 in the order of epoch 0 over 1 file'
field tokens run | sort -u | grep -qx 256 || complain "no step of 4 times 64 targets: $(field tokens run | xargs)"
part blend 22 17 --data.train "2 $work/one, 1 $work/two" --train.length 64 --train.batch 6
ledger blend/checkpoints
says 'source 0: .*one'
says 'source 1: .*two'
part shorter 30 25 --data.train "1 $work/two, 3 $work/one" --train.length 8 --train.batch 16
part gone 34 32 --data.train "$work/two" --train.length 8 --train.batch 16
ledger gone/checkpoints
says 'not in use now: .*one'

# A run of before the ledger: what its options say counts.
"$DTX" data ledger "$DTX_SOURCE/tests/golden/checkpoint_format_1" >out 2>&1 && complain "a ledger where there is none"
says 'has no ledger'

# Stages: the run that is stopped by hand and goes on with these options.
stages="500 train.length=32 train.batch=4 model.rope_theta=50000; 1.5e3 lr.peak=2e-4"
train 1 staged --data.train "$work/one" --train.steps 18 --train.stages "$stages"
train 1 hand --data.train "$work/one" --train.steps 18 --train.until 4
train 1 hand --data.train "$work/one" --train.steps 18 --train.until 12 --resume latest --train.length 32 --train.batch 4 \
    --model.rope_theta 50000
train 1 hand --data.train "$work/one" --train.steps 18 --resume latest --train.length 32 --train.batch 4 \
    --model.rope_theta 50000 --lr.peak 2e-4
diff <(numbers staged) <(numbers hand) >log || complain "stages and the same by hand: $(cat log)"
[ "$(field tokens staged | sort -u | xargs)" = "128" ] ||
    complain "targets of staged steps: $(field tokens staged | xargs)"
grep -q '^state: done$' staged/status || complain "status of a run with stages: $(cat staged/status)"
train 2 staged2 --data.train "$work/one" --train.steps 18 --train.stages "$stages" --parallel.tp 2
close_numbers 1e-4 <(field loss staged) <(field loss staged2) >log || complain "stages on two ranks: $(cat log)"
refuses() {
    local words=$1
    shift
    start 1 train "${small[@]}" --run.dir refused "$@" >out 2>&1 </dev/null
    [ $? = 78 ] || complain "not refused: $*"
    says "$words"
}
refuses 'did you mean .train.length' --train.stages "10 train.lenght=3"
refuses 'model.width may not change' --train.stages "10 model.width=64"
refuses 'form key=value' --train.stages "10 train.length"
refuses 'number of tokens' --train.stages "train.length=3"
refuses 'stands behind' --train.stages "10 train.batch=4; 9 train.batch=8"
refuses 'from 10 tokens on' --train.stages "10 train.micro_batch=3"
refuses 'shorter sample' --data.train "$work/two" --train.length 100000
refuses 'weight of source .*two is -1' --data.train "1 $work/one, -1 $work/two"
finish
