#!/usr/bin/env bash
# test: label=train timeout=240
# A real run under watch: `dtx watch` while it runs, after its end, and of the dead; a stopped rank ends all in
# comm.timeout with one table; a killed rank too, though the launcher would wait long and sends TERM: nothing is saved.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
ledgers=$work/ledgers
four=(train "${small[@]}" --train.steps 1000000 --eval.every 0 --checkpoint.every 0 --parallel.tp 2 --parallel.pp 2)

begin() { # FOLDER OPTION…: four ranks in the background, until some steps are done; their pids by rank
    folder=$1
    shift
    timeout -s KILL 100 mpirun "${mpi[@]}" -n 4 "$DTX" "${four[@]}" --run.dir "$folder" "$@" >"$folder.log" 2>&1 </dev/null &
    guard=$!
    for _ in $(seq 600); do
        [ -e "$folder/metrics.jsonl" ] && [ "$(wc -l <"$folder/metrics.jsonl")" -ge 5 ] && break
        sleep 0.05
    done
    mapfile -t pids < <(sed -n 's/^rank [0-9]* pid \([0-9]*\).*/\1/p' "$folder/watch/ranks")
    [ ${#pids[@]} = 4 ] || complain "$folder: ${#pids[@]} ranks are listed: $(cat "$folder.log")"
}
gone() { # SECONDS: every rank is
    local pid end=$((SECONDS + $1))
    for pid in "${pids[@]}"; do
        while grep -qsE '^State:[[:space:]]+[^ZX[:space:]]' "/proc/$pid/status"; do # a launcher may reap late
            [ $SECONDS -le $end ] || { complain "$folder: rank with pid $pid is left after $1 s: $(cat "$folder.log")"; break; }
            sleep 0.1
        done
    done
}
says() { # FILE TEXT…
    local file=$1 text
    shift
    for text; do grep -qE -- "$text" "$file" || complain "$folder: no '$text' in $(cat "$file")"; done
}
failed_status() {
    grep -q '^state: failed$' "$folder/status" && grep -q '^code: 1$' "$folder/status" ||
        complain "$folder: status is $(cat "$folder/status")"
    [ -z "$(ls "$folder/checkpoints" | grep step-)" ] || complain "$folder: saved $(ls "$folder/checkpoints")"
    [ "$(grep -c '^dtx: error' "$folder.log")" = 1 ] || complain "$folder: $(grep -c '^dtx: error' "$folder.log") reports"
}

# A run at work, one that was suspended for longer than comm.timeout, and at its end.
mpi=()
begin ends --comm.timeout 2
"$DTX" watch ends >log 2>&1 || complain "dtx watch of a run at work: $(cat log)"
says log '^ends: running at step [0-9]* of 1000000; 4 ranks: 4 run here, 0 dead, 0 stopped$' ' (waits|busy) +(in|after) +(tp|pp|dp|world|pp-[a-z]*) +#[0-9]+ '
kill -STOP "${pids[@]}"
sleep 7
kill -CONT "${pids[@]}"
steps=$(wc -l <ends/metrics.jsonl)
for _ in $(seq 200); do
    [ "$(wc -l <ends/metrics.jsonl)" -lt $((steps + 20)) ] || break
    sleep 0.05
done
kill -USR1 "${pids[1]}"
wait "$guard"
grep -q '^dtx: error' ends.log && complain "a suspended run does not go on: $(cat ends.log)"
[ -z "$(ls -A "$ledgers")" ] || complain "a run at its end leaves $(ls -A "$ledgers")"
[ ! -e ends/watch ] || complain "a run at its end leaves $(ls ends/watch)"
"$DTX" watch ends >log 2>&1 || complain "dtx watch of a finished run: $(cat log)"
says log '^ends: requeue at step [0-9]+ of 1000000; no ranks are watched$'
"$DTX" watch nowhere >log 2>&1
[ $? = 78 ] || complain "dtx watch of no run: $(cat log)"

# The debug mode changes no number.
for check in false true; do
    train 4 check-$check --train.steps 3 --parallel.tp 2 --parallel.pp 2 --comm.check $check
done
[ "$(numbers check-true)" = "$(numbers check-false)" ] || complain "comm.check: $(numbers check-true) instead of $(numbers check-false)"

# Stopped: it cannot answer, and no checkpoint is made.
begin stopped --comm.timeout 2
kill -STOP "${pids[3]}"
gone 15
wait "$guard" && complain "a stopped rank, but exit code 0"
failed_status
says stopped.log '^dtx: error on rank [0-2] .* at (trainer|parallel)/[a-z_]+\.c:[0-9]+ has not finished in [0-9.]+ s \(comm.timeout 2\)' \
    "^  stopped   rank 3 \(.*, pid ${pids[3]}, tp 1 dp 0 pp 1 cp 0, stopped\)" '^  3 +[^ ]+ +stopped '
says stopped/watch/report.txt "^  stopped   rank 3 "
says stopped/status '^cause: .*comm.timeout 2'
"$DTX" watch stopped >log 2>&1 && complain "dtx watch of a dead run has exit code 0"
says log '4 ranks: all are gone' '^Reported [-0-9: ]*, before all were gone' '^  stopped   rank 3 '
[ -z "$("$DTX" watch stopped --unreported)" ] || complain "--unreported prints what was reported"

# Killed; then TERM to the survivors, as launchers send it. This one would let them live for 8 s.
mpi=(--mca odls_base_sigkill_timeout 4)
begin killed
kill -KILL "${pids[2]}"
kill -TERM "${pids[0]}" "${pids[1]}" "${pids[3]}"
gone 7
wait "$guard" && complain "a killed rank, but exit code 0"
failed_status
says killed.log "^dtx: error on rank [013] .*rank 2 \(.*, pid ${pids[2]}\) is gone" "^  dead +rank 2 .*, pid ${pids[2]}, tp 0 dp 0 pp 1 cp 0, dead\)"

# The next launch of the same run removes what the dead have left.
begin killed
[ "$(ls "$ledgers" | grep -c -- -00000)" = 8 ] || complain "ledgers of the dead run and of 'stopped': $(ls "$ledgers")"
kill -USR1 "${pids[1]}"
wait "$guard"
rm -rf killed
finish
