# Sourced, after train.sh, by tests of signals to runs under mpirun.
# shellcheck shell=bash disable=SC2154,SC2034 # small and work are the caller's, process for the caller
endless=(train "${small[@]}" --train.steps 1000000 --eval.every 0)

count() { # lines of the metrics so far
    if [ -e "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi
}
# launch FOLDER COMMAND…: in the background, with INT as a shell at a terminal leaves it; sets guard and process (mpirun, or
# dtx itself).
launch() {
    folder=$1
    shift
    timeout -s KILL 60 env --default-signal=INT "$@" --run.dir "$folder" >"$folder.log" 2>&1 </dev/null &
    guard=$! ranks=
    for _ in $(seq 200); do
        process=$(pgrep -P "$guard") && [ "$(ps -o comm= "$process")" != env ] && break
        sleep 0.02
    done
}
# begin FOLDER COMMAND…: until $ready_steps steps more (10) are done; sets ranks too.
begin() {
    local steps=$(($(count "$1") + ${ready_steps:-10}))
    launch "$@"
    for _ in $(seq 600); do
        [ "$(count "$folder")" -lt "$steps" ] || break
        sleep 0.05
    done
    [ "$(count "$folder")" -ge "$steps" ] || complain "$folder: no steps: $(cat "$folder.log")"
    ranks=$(pgrep -P "$process" -x dtx)
}
# listening PROCESS: has it installed its handlers?
listening() {
    local mask
    mask=$(sed -n 's/^SigCgt:\s*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$mask" ] && [ $((0x$mask >> 14 & 1)) = 1 ]
}
# end CODES WORDS: the run is over, with one of these exit codes, because of one of these; one checkpoint is made of its step.
end() {
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
    # shellcheck disable=SC2086
    vanish "$name" $ranks
}
