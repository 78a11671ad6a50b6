#!/usr/bin/env bash
# test: label=crash timeout=240
# A sweep whose trials, and whose own processes, are killed at random instants ends in the table of one that nobody
# disturbed, and no trial is at work after it was done. The undisturbed one is run by two processes at once, each trial
# once, and trains every number of tokens by itself; the other one in branches of one stable part: the same losses.
# Argument: kills (sweep_kills_long.sh: 60).
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/sweep.sh"
make_data
kills=${1:-8} limit=200
make_spec spec.yaml
plan() { "$DTX" sweep plan spec.yaml --dir "$@" >log 2>&1 || complain "plan: $(cat log)"; }
plan alone --sweep.branch false
plan killed
[ "$(ids alone | wc -l) $(ids killed | wc -l)" = "4 6" ] || complain "trials: $(cat alone/plan.jsonl)"

timeout -s KILL $limit "$DTX" sweep run alone --jobs 4 >alone.1 2>&1 </dev/null &
first=$!
timeout -s KILL $limit "$DTX" sweep run alone --jobs 4 >alone.2 2>&1 </dev/null || complain "run: $(cat alone.2)"
wait $first || complain "run: $(cat alone.1)"
all_done alone
for id in $(ids alone); do
    [ "$(attempts_of alone "$id")" = 1 ] || complain "two processes: $id was begun $(attempts_of alone "$id") times"
done
[ "$(cat alone.1 alone.2 | grep -c ': attempt')" = 4 ] || complain "two processes at one trial: $(cat alone.1 alone.2)"
[ "$(wc -l <alone/results.csv)" = 5 ] || complain "results: $(cat alone/results.csv)"

nap() { sleep "$(awk -v seed="$RANDOM$RANDOM" -v most="$1" 'BEGIN { srand(seed); print 0.05 + most * rand() }')"; }
run=(timeout -s KILL $limit "$DTX" sweep run killed --jobs 2 --retries 1000 --backoff 0)
: >killed.log
for ((k = 0; k < kills; k++)); do
    "${run[@]:4}" >>killed.log 2>&1 </dev/null &
    runner=$!
    nap 0.9
    mapfile -t trials < <(pgrep -P $runner -x dtx)
    case $((k % 3)) in
    0) kill -9 $runner 2>/dev/null ;;
    1) kill -9 $runner "${trials[@]}" 2>/dev/null ;;
    2)
        [ ${#trials[@]} = 0 ] || kill -9 "${trials[RANDOM % ${#trials[@]}]}" 2>/dev/null
        nap 0.3
        kill -9 $runner 2>/dev/null
        ;;
    esac
    wait $runner 2>/dev/null
done
"${run[@]}" >>killed.log 2>&1 </dev/null || complain "the last run ends with $?: $(tail -n 20 killed.log)"
all_done killed
diff <(losses alone) <(losses killed) >log || complain "other losses after $kills kills: $(cat log)"

# Done is done: for another call, and where records were lost or damaged the runs themselves prove it.
before=$(ls killed/state)
"${run[@]}" >log 2>&1 </dev/null || complain "a run of what is done: $(cat log)"
[ "$(ls killed/state)" = "$before" ] || complain "what is done was begun again: $(ls killed/state)"
victims=($(ids killed))
: >"killed/state/${victims[1]}.done"
sed -i 's/"loss":[0-9]/"loss":9/' "killed/state/${victims[2]}.done"
rm "killed/state/${victims[4]}.done"
[ "$(phase killed 3)" = pending ] || complain "a record with a wrong checksum is '$(phase killed 3)'"
"${run[@]}" >log 2>&1 </dev/null || complain "a run of damaged records: $(cat log)"
! grep -q attempt log || complain "trained again for a damaged record: $(cat log)"
diff <(losses alone) <(losses killed) >log || complain "other losses from new records: $(cat log)"
attempts=$(find killed/state -regex '.*[.][0-9]+' | wc -l)
[ "$attempts" -ge $((${#victims[@]} + 3)) ] || complain "only $attempts attempts: the kills met nothing"
echo "$kills kills, $attempts attempts at ${#victims[@]} trials: the same losses"
finish
