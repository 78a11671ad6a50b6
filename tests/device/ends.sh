#!/usr/bin/env bash
# A step of multi.sh: ends.sh SIGNAL RUN COMMAND…: the command is a training of two ranks into the folder RUN.
# After some steps rank 1 gets the signal (KILL: it dies, STOP: it hangs): all must be over soon, with one report.
set -uo pipefail
signal=$1 run=$2
shift 2
log=$(mktemp)
trap 'rm -rf "$log" "$run"' EXIT
fail() { echo "$signal: $*"; cat "$log"; exit 1; }
rm -rf "$run"
"$@" </dev/null >"$log" 2>&1 &
launcher=$!

for _ in $(seq 600); do
    [ "$(wc -l 2>/dev/null <"$run/metrics.jsonl" || echo 0)" -lt 3 ] || break
    kill -0 $launcher 2>/dev/null || fail "over before it was to end"
    sleep 0.2
done
rank=
for pid in $(pgrep -P $launcher); do
    ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 || rank=$pid
done
[ -n "$rank" ] || { kill -KILL $launcher; fail "rank 1 is not found"; }
kill -"$signal" "$rank"

begin=$SECONDS
while kill -0 $launcher 2>/dev/null; do
    [ $((SECONDS - begin)) -le 40 ] || { kill -KILL "$rank" $launcher; fail "not over after 40 s"; }
    sleep 0.2
done
wait $launcher && fail "exit code 0"
reports=$(grep -c '^dtx: error' "$log")
[ "$reports" = 1 ] || { [ "$signal" = KILL ] && [ "$reports" = 0 ]; } || fail "$reports reports"
echo "over after $((SECONDS - begin)) s"
sed 's/^/    /' "$log"
