#!/usr/bin/env bash
# test: label=train timeout=300
# No run writes over another one: fresh runs in used folders, foreign checkpoints, two at once; what a resume inherits;
# damaged weights are never saved.
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
options=(--data.train data --model.layers 2 --model.width 32 --model.heads 2 --model.ffn 48 --model.vocab 320
    --train.length 16 --train.batch 4 --log.peak_seconds 0 --eval.every 0 --log.progress plain --cpu.threads 1)
train() { "$DTX" train "${options[@]}" "$@" >out 2>&1; }
must() { "$@" || { cat out; echo "FAILED: $*"; exit 1; }; }
refused() { # code, text, command…
    local code=$1 text=$2
    shift 2
    "$@"
    local got=$?
    [ $got -eq "$code" ] && grep -q -- "$text" out || { cat out; echo "FAILED: wanted $code and '$text', got $got: $*"; exit 1; }
}
state() { grep -q "^state: $2$" "$1/status" || { cat "$1/status"; echo "FAILED: $1 is not $2"; exit 1; }; }
lines() { wc -l <"$1/metrics.jsonl"; }

must train --run.dir a --train.steps 8 --checkpoint.every 4
refused 78 "already holds a run" train --run.dir a --train.steps 8
refused 78 "another run's checkpoints" train --run.dir b --checkpoint.dir a/checkpoints --train.steps 8
rm -rf b
# Another run's checkpoint does not continue in this folder, and its own folder is not touched from afar.
must train --run.dir c --train.steps 8 --train.seed 2
refused 78 "holds another run" train --resume a/checkpoints/step-00000004 --run.dir c --train.steps 8
state c done
cp -r a copy
before=$(lines a)
must train --resume copy/checkpoints/step-00000004 --run.dir fork --train.steps 8
[ "$(lines a)" -eq "$before" ] && [ "$(lines copy)" -eq "$before" ] || { echo "FAILED: a fork changed its origin"; exit 1; }
# A preset stands above what the checkpoint says; train.until and the call's own words are not inherited.
printf 'lr.peak: 0.25\n' >p.yaml
must train --resume latest --run.dir a --train.steps 12 --preset ./p.yaml --train.until 10
grep -q '^lr.peak: 0.25$' a/config.yaml || { echo "FAILED: the preset was dropped on resume"; exit 1; }
grep -qE '^(train.until|resume|preset|run.dir)' a/config.yaml && { echo "FAILED: config.yaml keeps words of one call"; exit 1; }
must train --resume latest --run.dir a
grep -q '^step: 12$' a/status || { cat a/status; echo "FAILED: train.until was inherited"; exit 1; }
# Two at once.
"$DTX" train "${options[@]}" --run.dir two --train.steps 100000 --checkpoint.every 50 >first 2>&1 &
first=$!
for _ in $(seq 600); do [ -e two/checkpoints/latest ] && break; sleep 0.1; done
refused 78 "another dtx is at work" train --run.dir two --resume latest --train.steps 5
refused 78 "made with '48'" train --run.dir two --resume latest --model.ffn 64
refused 78 "none.idx" train --run.dir two --resume latest --data.train none
state two running
kill -TERM "$first"
wait "$first"
# A finite gradient and a step that is not: nothing is saved, the run fails.
refused 1 "not finite" train --run.dir hot --train.steps 2 --lr.peak 1e38 --lr.min 1e38
[ ! -e hot/checkpoints/latest ] || { echo "FAILED: damaged weights were saved"; exit 1; }
grep -q '^state: failed$' hot/status || { cat hot/status; echo "FAILED: status of a damaged run"; exit 1; }
refused 78 "optim.beta1" train --run.dir x --train.steps 2 --optim.beta1 1
refused 78 "there are:.*laptop" train --preset nope
