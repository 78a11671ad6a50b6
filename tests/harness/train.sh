# Sourced by shell tests that start the program: a folder that vanishes, small text as token files, runs, comparisons.
# shellcheck shell=bash
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir ledgers
export DTX_COMM_WATCH_DIR=$work/ledgers # what the killed leave goes with the folder
export OMP_WAIT_POLICY=passive # threads that share cores with other tests must not spin
failures=0

complain() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}
finish() {
    [ "$failures" = 0 ] && echo "all good"
    exit $((failures > 0))
}

# vanish NAME PROCESS…: complains of those that are there after five seconds.
vanish() {
    local process name=$1
    shift
    for process; do
        for _ in $(seq 100); do
            kill -0 "$process" 2>/dev/null || continue 2
            sleep 0.05
        done
        complain "$name: process $process is left: $(tr '\0' ' ' <"/proc/$process/cmdline")"
    done
}

# make_data [TEXT…]: data.bin, data.idx and tok.json of 320 ids, made of sources or of TEXT: a document a line.
make_data() {
    [ $# -gt 0 ] || set -- "$DTX_SOURCE"/data/[a-e]*.c
    cat "$@" >text
    "$DTX" tokenizer train --vocab 320 --out tok.json text >log 2>&1 &&
        "$DTX" tokenize --tokenizer tok.json --out data --split line text >log 2>&1 || complain "no data: $(cat log)"
}

small=(--model.layers 4 --model.width 32 --model.heads 4 --model.ffn 48 --model.vocab 320 --train.length 16
    --train.batch 8 --lr.warmup 2 --log.peak_seconds 0 --cpu.threads 1 --data.train "$work/data")

# start RANKS COMMAND… runs dtx COMMAND… alone or under mpirun, for at most $run_limit seconds (60).
start() {
    local ranks=$1
    shift
    if [ "$ranks" = 1 ]; then
        timeout -s KILL "${run_limit:-60}" "$DTX" "$@"
    else
        timeout -s KILL "${run_limit:-60}" mpirun -n "$ranks" "$DTX" "$@"
    fi
}
# train RANKS FOLDER OPTION… trains the small model; it must end well.
train() {
    local ranks=$1 folder=$2
    shift 2
    start "$ranks" train "${small[@]}" --run.dir "$folder" "$@" >log 2>&1 </dev/null ||
        complain "training in $folder ends with $?: $(cat log)"
}

# What may not depend on speed, machine and length of the run: a line a step.
numbers() {
    sed -E 's/"(steps|tokens_per_s|flops_per_s|peak_flops_per_s|peak_share|seconds|data_wait_seconds|slowest_rank|slowest_ratio|memory_bytes|unix_time)":[^,]*,//g' \
        "$1/metrics.jsonl"
}
# field KEY FOLDER: its values, one a line; several of an array too.
field() {
    sed -nE "s/.*\"$1\":(\[[^]]*\]|[^,}]*).*/\1/p" "$2/metrics.jsonl" | tr -d '[]' | tr ',' '\n'
}
# same_arrays CHECKPOINT CHECKPOINT: every array of model and optimizer has the same bits.
same_arrays() {
    local group
    for group in /model /optimizer; do
        h5diff -q "$1/checkpoint.h5" "$2/checkpoint.h5" "$group" >/dev/null 2>&1 || complain "$1 and $2 differ in $group"
    done
}
# close_numbers BOUND FILE FILE: numbers line by line to a relative bound; other text must be equal.
close_numbers() {
    paste "$2" "$3" | awk -F'\t' -v bound="$1" '
        $1 == $2 { next }
        { d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2
          if (!(d <= bound * s) || $1 !~ /^[-0-9]/ || $2 !~ /^[-0-9]/) { print "line " NR ": " $1 " and " $2; bad = 1 } }
        END { exit bad || NR == 0 }'
}
