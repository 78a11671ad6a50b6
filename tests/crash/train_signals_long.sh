#!/usr/bin/env bash
# test: label=long timeout=2400
# USR1, TERM and INT to mpirun, to one rank of two and to all, each during start-up, training, waiting for data, evaluation,
# and a save beside or instead of training; and another one while the last save is written: one agreed checkpoint,
# "requeue" and code 75 in the run's status, every rank gone. `train_signals_long.sh sync-launcher data …`: these alone.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/signals.sh"
make_data
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_odls_base_sigkill_timeout=8 # mpirun sends TERM on after 8 s, KILL after 16
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
slow=(env "LD_PRELOAD=$DTX_BUILD/tests/libdtx_disk.so")
two=(mpirun -n 2 "$DTX" "${endless[@]}" --parallel.tp 2 --checkpoint.every 0 --checkpoint.keep 0)

hit() { # TARGET SIGNAL
    case $1 in
    launcher) kill -"$2" "$process" ;;
    one) kill -"$2" "$(tail -n 1 <<<"$ranks")" ;;
    all) kill -"$2" $ranks ;;
    esac
}
saving() { # until a save has begun
    for _ in $(seq 400); do
        ! ls "$folder"/checkpoints/.new-* >/dev/null 2>&1 || return
        sleep 0.01
    done
    complain "$folder: no save under way"
}
phase() { # NAME: starts the run and returns in that phase
    case $1 in
    start) # rank 0 waits for its configuration, rank 1 for rank 0
        mkfifo "$folder.yaml"
        launch "$folder" mpirun -n 2 "$DTX" train "$folder.yaml" "${small[@]}" --eval.every 0 --checkpoint.every 0 --parallel.tp 2
        for _ in $(seq 400); do
            ranks=$(pgrep -P "$process" -x dtx)
            set -- $ranks
            [ $# != 2 ] || ! listening "$1" || ! listening "$2" || break
            sleep 0.02
        done
        ;;
    training) begin "$folder" "${two[@]}" ;;
    data) # eight reads of a tenth of a second before each step
        ready_steps=1 begin "$folder" "${slow[@]}" DISK_FOLDER="$work/data.bin" DISK_READ_PAUSE=100 "${two[@]}" --data.prefetch 0
        ;;
    evaluation) # thousands of sequences after each step
        ready_steps=1 begin "$folder" "${two[@]}" --eval.every 1 --eval.samples 8000 --data.heldout 0.5
        ;;
    sync | async)
        launch "$folder" "${slow[@]}" DISK_FOLDER="$folder/checkpoints" DISK_PAUSE=4 "${two[@]}" --checkpoint.every 2 \
            --checkpoint.async "$([ "$1" = async ] && echo true || echo false)"
        saving
        ranks=$(pgrep -P "$process" -x dtx)
        ;;
    last) # stopped by one signal; the save that ends it is written
        begin "$folder" "${slow[@]}" DISK_FOLDER="$folder/checkpoints" DISK_PAUSE=8 "${two[@]}"
        kill -USR1 $ranks
        saving
        ;;
    esac
}
only=" ${*:-start training data evaluation sync async last}"
for phase in start training data evaluation sync async last; do
    for target in launcher one all; do
        for signal in USR1 TERM INT; do
            folder=$phase-$target-$signal words=$signal
            [[ "$only " == *" $phase "* || "$only " == *" $phase-$target "* || "$only " == *" $folder "* ]] || continue
            phase "$phase"
            hit "$target" "$signal"
            if [ "$phase" = start ]; then # the signal is there before the configuration
                sleep 0.3
                kill -0 "$process" 2>/dev/null && echo 'train.steps: 1000000' >"$folder.yaml"
            fi
            [ "$target" != launcher ] || [ "$signal" != INT ] || words="(INT|TERM)" # mpirun makes it a TERM
            [ "$phase" != last ] || words=USR1
            end "75 1 143 130" "$words"
            n=$(ls "$folder/checkpoints" | grep -c '^step-')
            case $phase in
            start | training | data | evaluation | last) [ "$n" = 1 ] || complain "$folder: $n checkpoints" ;;
            *) [ "$n" -ge 2 ] || complain "$folder: the save under way is lost" ;;
            esac
            "$DTX" ckpt verify "$folder/checkpoints" >log 2>&1 || complain "$folder: $(cat log)"
            rm -rf "$folder/checkpoints"
        done
    done
    echo "$phase: $SECONDS s"
done
for run in data-one-USR1 evaluation-all-INT; do # in the phase that they are called by: nearly all of the time
    [ ! -e "$run" ] || echo "$run: $(count "$run") steps"
    [ "$(count "$run")" -le 8 ] || complain "$run: $(count "$run") steps: the phase is too short"
done
finish
