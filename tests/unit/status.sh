#!/usr/bin/env bash
# test: label=unit timeout=30
# `dtx status`: what the folders of runs say, of runs at work, silent, failed and done, of a folder of runs, as a table and
# as JSON; what is no run is refused.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
now=$(date +%s)

# make RUN STATE AGE [CAUSE]: 12 steps of 10 s of 100, the last one AGE seconds ago.
make() {
    local i
    mkdir -p "$1/logs" "$1/checkpoints"
    for i in $(seq 12); do
        echo "{\"step\":$i,\"steps\":100,\"loss\":$((20 - i)).5,\"heldout_loss\":$([ "$i" = 10 ] && echo 9.25 || echo null),\"tokens_per_s\":1234567,\"unix_time\":$((now - $3 - 120 + 10 * i))}"
    done >"$1/metrics.jsonl"
    printf 'state: %s\nstep: 12\nsteps: 100\nattempt: 3\nlocal_checkpoint: %s\nbefore: %s\ncode: 0\ntime: %d\nhost: n1\ncause: %s\n' \
        "$2" "${5:--}" "attempt 2: requeue, stopped by USR1" $((now - $3)) "${4:-}" >"$1/status"
    echo step-00000010 >"$1/checkpoints/latest"
}
row() { # RUN PATTERN: of the row
    grep -qE "^$1 +$2\$" out || complain "$1: not '$2' in: $(cat out)"
}
make work running 5 '' step-00000011
make old running 4000
make bad failed 90 'error on rank 2 (n2): no space left'
make array/2 done 3
make array/10 requeue 3
"$DTX" status work old bad array >out 2>&1 || complain "status ends with $?: $(cat out)"
row work 'running +12/100 +8\.5000 +9\.2500 +1\.23M +14m.* +3 +step-00000010, local step-00000011 +[0-9]+s'
row old 'silent +12/100 .* - +3 +step-00000010 .*'
row bad 'failed +12/100 .*'
grep -q '^    error on rank 2 (n2): no space left$' out || complain "the cause is not shown: $(cat out)"
[ "$(grep -n array out | sed 's/.*\(array[^ ]*\).*/\1/' | xargs)" = "array/2 array/10" ] || complain "the array: $(cat out)"
[ "$(grep -c '^    before: attempt 2: requeue, stopped by USR1$' out)" = 5 ] || complain "the attempt before is not shown: $(cat out)"
"$DTX" status --json bad >out 2>&1
for part in '"state":"failed"' '"attempts":3' '"local_checkpoint":"-"' '"before":"attempt 2: requeue, stopped by USR1"' '"heldout_loss":9.25' '"left_seconds":null' '"step_seconds":10.0'; do
    grep -qF "$part" out || complain "JSON: no $part in $(cat out)"
done
mkdir empty
"$DTX" status empty >out 2>&1
[ $? = 78 ] && grep -q 'no run there' out || complain "an empty folder: $(cat out)"
"$DTX" status >out 2>&1
[ $? = 78 ] && grep -q 'which runs' out || complain "no word: $(cat out)"
finish
