#!/usr/bin/env bash
# test: label=crash timeout=240
# Runs that save after every step are killed at random instants: while starting, training, saving, removing; alone, and
# of two ranks one rank, the launcher, or all of them. After each every checkpoint that is listed is whole, the newest is
# no older than the last that was reported as saved, and the run goes on; at its end losses and weights are bit for bit
# those of a run that nobody disturbed. Arguments: kills of one process, of two (train_kills_long.sh: 100 and 100).
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
alone=${1:-6} pairs=${2:-4}
export OMPI_MCA_mpi_yield_when_idle=1
steps=$((20 + 8 * (alone > pairs ? alone : pairs))) run_limit=300
options=(train "${small[@]}" --train.steps "$steps" --eval.every 0)

newest() { ls "$1/checkpoints" 2>/dev/null | grep '^step-' | sort | tail -n 1; }
last_saved() { sed -n 's/.*saved .*\(step-[0-9]*\): .*/\1/p' "$1" | tail -n 1; }
nap() { sleep "$(awk -v seed="$RANDOM$RANDOM" -v most="$1" 'BEGIN { srand(seed); print most * rand() }')"; }
gone() { # PID…: all of them end by themselves
    local pid
    for pid; do
        for _ in $(seq 400); do
            kill -0 "$pid" 2>/dev/null || continue 2
            sleep 0.05
        done
        complain "process $pid outlives its run"
        kill -9 "$pid"
    done
}

# one_life RANKS FOLDER WHICH: started again and killed.
one_life() {
    local ranks=$1 folder=$2 which=$3 before children=()
    before=$(newest "$folder")
    start=("$DTX")
    [ "$ranks" = 1 ] || start=(mpirun -n "$ranks" "$DTX")
    "${start[@]}" "${options[@]}" --parallel.tp "$ranks" --checkpoint.every 1 --checkpoint.keep 2 --run.dir "$folder" \
        --resume latest >"$folder.log" 2>&1 </dev/null &
    local main=$!
    if [ $((which % 5)) = 4 ]; then
        nap 0.6 # perhaps not even begun
    else
        for _ in $(seq 400); do
            [ "$(newest "$folder")" = "$before" ] && kill -0 "$main" 2>/dev/null || break
            sleep 0.05
        done
        nap 0.1
    fi
    [ "$ranks" = 1 ] || mapfile -t children < <(pgrep -P "$main" -x dtx)
    case $((which % 3)) in
    0) kill -9 "$main" "${children[@]}" 2>/dev/null ;;
    1) kill -9 "$main" ;;
    2) kill -9 "${children[RANDOM % (${#children[@]} + 1)]:-$main}" ;;
    esac
    wait "$main" 2>/dev/null
    local code=$?
    gone "${children[@]}"
    [ "$code" != 0 ] || over=1
    ! grep '^dtx: error' "$folder.log" | grep -v 'is gone: it was killed' || complain "$folder, kill $which: it ended by itself"
    "$DTX" ckpt verify "$folder/checkpoints" >log 2>&1 || complain "$folder, kill $which: $(cat log)"
    local said
    said=$(last_saved "$folder.log")
    [[ ! $(newest "$folder") < "$said" ]] || complain "$folder: $said was saved, $(newest "$folder") is the newest"
    grep -q 'is passed over' "$folder.log" && complain "$folder: after a kill: $(cat "$folder.log")"
    [ -z "$said" ] || saves=$((saves + 1))
}
training() { numbers "$1" | sed 's/"heldout_loss":[^,]*,//'; } # a run that is stopped evaluates then
lives() { # RANKS FOLDER KILLS
    local k begin=$SECONDS saves=0 over=0
    train "$1" "$2" --train.steps "$steps" --eval.every 0 --parallel.tp "$1" --checkpoint.keep 2 --train.until 2
    for ((k = 0; k < $3 && failures == 0 && over == 0; k++)); do one_life "$1" "$2" "$k"; done
    local reached
    reached=$(newest "$2")
    [ $((2 * k)) -ge "$3" ] || complain "$2: over after $k kills"
    train "$1" "$2" --train.steps "$steps" --eval.every 0 --parallel.tp "$1" --checkpoint.every 0 --resume latest
    train "$1" "reference$1" --train.steps "$steps" --eval.every 0 --parallel.tp "$1" --checkpoint.every 0
    [ "$(numbers "$2" | wc -l)" = "$steps" ] || complain "$2: $(numbers "$2" | wc -l) lines of $steps"
    diff <(training "$2") <(training "reference$1") >log || complain "$2: other numbers after $3 kills: $(head -n 4 log)"
    same_arrays "$2/checkpoints/$(newest "$2")" "reference$1/checkpoints/$(newest "reference$1")"
    echo "$k kills of $1 ranks up to $reached of $steps, $saves of them after a save: the same weights ($((SECONDS - begin)) s)"
}
lives 1 alone "$alone"
lives 2 pair "$pairs"
finish
