#!/usr/bin/env bash
# test: label=train timeout=240
# A signal to the one process, to one rank, to mpirun, once or often, while training or starting: one agreed checkpoint,
# "requeue" and code 75 in the run's status, every rank gone; what follows a resume is what would have followed anyway.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
endless=(train "${small[@]}" --train.steps 1000000 --eval.every 0)

count() { # lines of the metrics so far
    if [ -e "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi
}
begin() { # FOLDER COMMAND…: in the background, until some steps are done
    folder=$1
    shift
    local steps=$(($(count "$folder") + 10))
    timeout -s KILL 60 "$@" --run.dir "$folder" >"$folder.log" 2>&1 </dev/null &
    guard=$!
    for _ in $(seq 400); do
        [ "$(count "$folder")" -lt "$steps" ] || break
        sleep 0.05
    done
    [ "$(count "$folder")" -ge "$steps" ] || complain "$folder: no steps: $(cat "$folder.log")"
    process=$(pgrep -P "$guard") # mpirun, or dtx itself
    ranks=$(pgrep -P "$process" -x dtx)
}
end() { # CODES: the run is over, with one of these exit codes
    local code name=$folder
    wait "$guard"
    code=$?
    case " $1 " in *" $code "*) ;; *) complain "$name: exit code $code: $(cat "$name.log")" ;; esac
    grep -q '^state: requeue$' "$name/status" && grep -q '^code: 75$' "$name/status" ||
        complain "$name: status is $(cat "$name/status")"
    local step
    step=$(sed -n 's/^step: //p' "$name/status")
    [ "$step" = "$(tail -n 1 "$name/metrics.jsonl" | sed 's/{"step":\([0-9]*\).*/\1/')" ] || complain "$name: step $step in the status, other in the metrics"
    [ "$(ls "$name/checkpoints" | grep -c "^step-0*$step\$")" = 1 ] || complain "$name: no checkpoint of step $step"
    grep -qE "stopped by $2 at step $step of" "$name.log" || complain "$name: does not say $2: $(cat "$name.log")"
    local rank
    for rank in $ranks; do
        for _ in $(seq 100); do
            kill -0 "$rank" 2>/dev/null || continue 2
            sleep 0.05
        done
        complain "$name: rank $rank is left: $(tr '\0' ' ' <"/proc/$rank/cmdline")"
    done
}

# One process.
begin alone "$DTX" "${endless[@]}"
kill -TERM "$process"
end 75 TERM
begin alone "$DTX" "${endless[@]}" --resume latest
kill -USR1 "$process"
end 75 USR1

# One rank of two; a second signal, and more to both, change nothing.
two=(mpirun -n 2 "$DTX" "${endless[@]}" --parallel.tp 2)
begin rank "${two[@]}"
set -- $ranks
kill -USR1 "$2"
end "75 1" USR1
first=$(ls rank/checkpoints | grep -c step-)
begin rank "${two[@]}" --resume latest
set -- $ranks
kill -TERM "$1"
for _ in 1 2 3 4 5 6; do
    kill -TERM $ranks 2>/dev/null
    kill -USR1 $ranks 2>/dev/null
    sleep 0.01
done
end "75 1" "(TERM|USR1)"
[ "$(ls rank/checkpoints | grep -c step-)" = $((first + 1)) ] || complain "several signals make several checkpoints"

# The launcher: USR1 is forwarded; TERM becomes TERM to all, KILL after twice the time set here (mpirun then returns what
# it likes).
begin launcher "${two[@]}"
kill -USR1 "$process"
end "75 1" USR1
begin launcher env OMPI_MCA_odls_base_sigkill_timeout=4 "${two[@]}" --resume latest
kill -TERM "$process"
end "75 1 143" TERM

# During start-up (here it waits for its configuration): a step is made and saved.
start_up() {
    local mask
    for _ in $(seq 400); do
        mask=$(sed -n 's/^SigCgt:\s*//p' "/proc/$1/status" 2>/dev/null)
        [ -n "$mask" ] && [ $((0x$mask >> 14 & 1)) = 1 ] && return
        sleep 0.02
    done
    complain "no handler of TERM"
}
folder=early ranks=
mkfifo slow.yaml
"$DTX" train slow.yaml "${small[@]}" --eval.every 0 --run.dir early >early.log 2>&1 </dev/null &
guard=$!
start_up "$guard"
kill -TERM "$guard"
sleep 0.1
kill -0 "$guard" 2>/dev/null && echo 'train.steps: 1000000' >slow.yaml
end 75 TERM
[ "$(count early)" = 1 ] || complain "early: $(count early) steps"

# All of them are the same run: so are their numbers, as far as each came.
for other in rank launcher; do
    n=$(count $other)
    diff <(numbers rank | head -n "$n") <(numbers $other | head -n "$(count rank)") >log ||
        complain "$other: stopped and resumed otherwise: $(head -n 4 log)"
done
begin reference "$DTX" "${endless[@]}" --resume "$work/early/checkpoints"
for _ in $(seq 400); do
    [ "$(count reference)" -lt "$(($(count alone) - 1))" ] || break
    sleep 0.05
done
kill -INT "$process"
kill -USR1 "$process"
end 75 "(USR1|INT)"
n=$(($(count alone) - 1))
diff <(numbers alone | tail -n "$n") <(numbers reference | head -n "$n") >log ||
    complain "alone: stopped and resumed otherwise: $(head -n 4 log)"
finish
