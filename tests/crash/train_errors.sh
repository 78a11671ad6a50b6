#!/usr/bin/env bash
# test: label=train timeout=240
# What is wrong is said once, names its cause, ends all ranks within seconds with the design's exit code, and loses
# nothing: neither files of the user nor an earlier run in the same folder.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
base=(train "${small[@]}" --train.steps 4)

# refuse CODE WORDS RANKS COMMAND…: all ranks gone in time, that exit code, one report with those words (| between).
refuse() {
    local code=$1 words=$2 ranks=$3 begin=$SECONDS got word
    shift 3
    start "$ranks" "$@" >log 2>&1 </dev/null
    got=$?
    [ "$got" = "$code" ] || complain "'$*' ends with $got, not $code: $(cat log)"
    [ $((SECONDS - begin)) -le 20 ] || complain "'$*' takes $((SECONDS - begin)) s"
    [ "$(grep -c '^dtx: error' log)" = 1 ] || complain "'$*': $(grep -c '^dtx: error' log) reports: $(cat log)"
    while IFS= read -r word; do
        grep -qF -- "$word" log || complain "'$*' does not say '$word': $(cat log)"
    done < <(tr '|' '\n' <<<"$words")
    [ "$(grep -c 'ranks failed.*ranks failed' log)" = 0 ] || complain "'$*' counts twice: $(cat log)"
}
absent() { [ ! -e "$1" ] || complain "a refused run made $1"; }

# Options: unknown ones, and all contradictions at once, each with what would fit.
refuse 78 "train.lenght|did you mean 'train.length'" 2 "${base[@]}" --run.dir a --train.lenght 3
refuse 78 "4 faults|tp 3 × pp 5 × dp 2 = 30 ranks, but 4|what fits: 1, 2, 4|what fits: 1 to 4|what fits: 6 or 8" 4 \
    "${base[@]}" --run.dir a --parallel.tp 3 --parallel.pp 5 --parallel.dp 2 --train.batch 7
refuse 78 "data.train is not set" 1 train --run.dir a --log.peak_seconds 0
# Too big: said with the causes before anything is allocated.
refuse 78 "will take|weights|masters and states|What helps" 2 "${base[@]}" --run.dir a --model.layers 200 \
    --model.width 131072 --model.heads 128 --model.ffn 400000
export SLURM_NTASKS=4
refuse 78 "SLURM_NTASKS says that 4 tasks" 1 "${base[@]}" --run.dir a
unset SLURM_NTASKS
absent a

# Data: missing, cut off, with ids that the model does not have.
refuse 78 "$work/none.idx|No such file" 2 "${base[@]}" --run.dir a --data.train "$work/none"
cp data.idx cut.idx
head -c -100 data.bin >cut.bin
refuse 78 "cut.bin|one was cut off" 1 "${base[@]}" --run.dir a --data.train "$work/cut"
head -c 60 data.idx >cut.idx
refuse 78 "cut.idx: truncated" 1 "${base[@]}" --run.dir a --data.train "$work/cut"
absent a
refuse 78 "data.bin|at byte offset|outside the vocabulary of 270" 2 "${base[@]}" --run.dir ids --model.vocab 270
grep -q '^state: failed$' ids/status && grep -q '^code: 78$' ids/status && grep -q 'byte offset' ids/status ||
    complain "status after a bad id: $(cat ids/status)"

# Folders.
refuse 78 "run.dir|$work/data.bin/x|Not a directory" 1 "${base[@]}" --run.dir "$work/data.bin/x"
refuse 78 "run.dir|$work/data.bin is no folder" 1 "${base[@]}" --run.dir "$work/data.bin"
refuse 78 "checkpoint.dir|$work/data.idx is no folder" 2 "${base[@]}" --run.dir late --checkpoint.dir "$work/data.idx"
grep -q '"step"' late/metrics.jsonl 2>/dev/null && complain "a run without a place for checkpoints makes steps"
if [ "$(id -u)" != 0 ]; then # root may write anywhere
    mkdir -m 555 locked
    refuse 78 "run.dir|locked is no folder that this user may write to" 1 "${base[@]}" --run.dir locked
fi
train 2 run --train.steps 8 --train.until 4
cp -r run before
unchanged() { diff -r run before >log 2>&1 || complain "$1 changes the run that was there: $(cat log)"; }
refuse 78 "run.dir|already holds a run|--resume latest" 2 "${base[@]}" --run.dir run
unchanged "a second run in the same folder"

# Resuming: nothing, another place, what may not change; the status of a run that was to be requeued says so.
refuse 78 "there is no checkpoint|empty/checkpoints" 1 "${base[@]}" --run.dir empty --resume latest
refuse 78 "there is no checkpoint|/nowhere" 1 "${base[@]}" --run.dir empty --resume /nowhere
absent empty
mkdir empty
refuse 78 "there is no checkpoint" 1 "${base[@]}" --run.dir empty --resume latest
sed -i 's/^state: .*/state: requeue/; s/^code: .*/code: 75/' run/status
refuse 78 "2 faults|model.ffn = '64'|made with '48'|train.dtype = 'bf16'|made with 'f32'" 2 "${base[@]}" --run.dir run \
    --resume latest --model.ffn 64 --train.dtype bf16
grep -q '^state: failed$' run/status && grep -q '^code: 78$' run/status && grep -q 'cause:.*model.ffn' run/status ||
    complain "the status of a run that cannot go on: $(cat run/status)"
sed -i 's/^state: failed$/state: requeue/; s/^code: 78$/code: 75/' run/status
refuse 78 "none.idx" 1 "${base[@]}" --run.dir run --resume latest --data.train "$work/none"
grep -q '^state: failed$' run/status || complain "the status of a run without its data: $(cat run/status)"
cp before/status run/status
unchanged "a refused resume"
train 2 run --train.steps 8 --resume latest
[ "$(numbers run | wc -l)" = 8 ] || complain "--train.until of the first call stops the second"

# A full disk (here: a limit on file sizes): each save warns, training goes on, the last state's loss is a failure; the
# checkpoint from before is still the latest.
cp -r before full
bash -c "trap '' XFSZ; ulimit -f 40; exec \"\$@\"" bash timeout -s KILL 60 "$DTX" "${base[@]}" --run.dir full \
    --train.steps 8 --checkpoint.every 2 --checkpoint.keep 1 --resume latest --parallel.dp 1 >log 2>&1 </dev/null
code=$?
[ "$code" = 1 ] || complain "a full disk: exit code $code: $(cat log)"
[ "$(grep -c 'warning: checkpoint of step [68] was not saved' log)" = 2 ] || complain "a full disk: $(cat log)"
[ "$(numbers full | wc -l)" = 8 ] || complain "a full disk stops training: $(numbers full | wc -l) steps"
[ "$(ls -A full/checkpoints | grep -vE '^(latest|.lock)$')" = step-00000004 ] || complain "a full disk leaves $(ls -A full/checkpoints)"
train 2 full --train.steps 8 --resume latest
grep -q 'resumed from full/checkpoints/step-00000004' log || complain "after a full disk: $(cat log)"

# One configuration for all ranks, whatever each was given.
timeout -s KILL 60 mpirun -n 1 "$DTX" "${base[@]}" --run.dir first : -n 1 "$DTX" "${base[@]}" --run.dir second \
    --train.batch 6 >log 2>&1 || complain "two command lines: $(cat log)"
absent second
[ "$(field tokens first | sort -u)" = 128 ] || complain "two command lines give batches of $(field tokens first | xargs)"

# A run that has gone wild: no step with NaN is taken or saved, after twenty the run ends; good checkpoints stay.
refuse 1 "20 steps in a row|the last checkpoint is of step 1" 2 "${base[@]}" --run.dir wild --parallel.tp 2 \
    --lr.peak 1e30 --lr.warmup 0 --train.steps 60 --checkpoint.every 1 --checkpoint.keep 2
[ "$(ls wild/checkpoints | grep step-)" = step-00000001 ] || complain "checkpoints of NaN: $(ls wild/checkpoints)"
[ "$(field skipped wild | grep -c true)" = 19 ] || complain "$(field skipped wild | grep -c true) skipped steps are logged"
grep -q '^state: failed$' wild/status && grep -q '^code: 1$' wild/status || complain "status: $(cat wild/status)"
! grep -qi 'nan' wild/metrics.jsonl || complain "NaN in the metrics is no JSON"

# One rank is killed: all are gone within seconds, every checkpoint loads.
timeout -s KILL 60 mpirun -n 4 "$DTX" "${base[@]}" --train.steps 1000000 --checkpoint.every 5 --eval.every 0 \
    --parallel.tp 2 --parallel.pp 2 --run.dir killed >log 2>&1 </dev/null &
guard=$!
for _ in $(seq 600); do
    [ -e killed/checkpoints/step-00000010 ] && break
    sleep 0.05
done
ranks=$(pgrep -P "$(pgrep -P "$guard")" -x dtx)
set -- $ranks
kill -KILL "$3"
begin=$SECONDS
wait "$guard" && complain "a killed rank, but exit code 0"
[ $((SECONDS - begin)) -le 20 ] || complain "a killed rank keeps the others for $((SECONDS - begin)) s"
for rank in $ranks; do
    for _ in $(seq 100); do
        kill -0 "$rank" 2>/dev/null || continue 2
        sleep 0.05
    done
    complain "rank $rank is left"
done
last=$(ls killed/checkpoints | grep -o 'step-[0-9]*$' | tail -n 1)
train 1 killed --train.steps $((10#${last#step-} + 2)) --eval.every 0 --resume latest \
    --parallel.tp 1 --parallel.pp 1
grep -q "resumed from killed/checkpoints/step-" log || complain "after a kill: $(cat log)"
finish
