#!/usr/bin/env bash
# test: label=crash timeout=120
# dtx tokenize killed at random instants and repeated until it ends: shards, indexes and manifest are byte for byte those
# of one undisturbed call. Arguments: rounds and seed (default 3 and 1; tokenize_kills_long.sh: more).
set -uo pipefail
rounds=${1:-3} RANDOM=${2:-1}
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) # in memory: kills do not need the disk, and syncs take long
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

cat "$DTX_SOURCE"/data/*.c "$DTX_SOURCE"/kernels/*/*.c >code.txt
"$DTX" tokenizer train --vocab 600 --out t.json "$DTX_SOURCE"/data/*.h >/dev/null || exit 1
awk '{ gsub(/[\\"]/, "\\\\&"); gsub(/\t/, "\\t"); print "{\"text\":\"" $0 "\",\"line\":" NR "}"; if (NR % 99 == 0) print "bad" }' \
    code.txt >b.jsonl
for name in a c e; do cat code.txt code.txt >$name.txt; done
gzip -k b.jsonl
mv b.jsonl d.jsonl
files=(a.txt b.jsonl.gz c.txt d.jsonl e.txt)
begin() { exec "$DTX" tokenize --tokenizer t.json --split line "$@" "${files[@]}" 2>log; } # ends the shell it is in
tokenize() { (begin "$@"); }

tokenize --threads 1 --shard_bytes 150000 --out want >/dev/null || { cat log; exit 1; }
start=$(date +%s%N)
tokenize --threads 3 --shard_bytes 150000 --out timing >/dev/null || { cat log; exit 1; }
span=$((($(date +%s%N) - start) / 1000000))
compare() {
    for file in want-*; do
        cmp "$file" "got${file#want}" || exit 1
    done
    cmp want.manifest.json got.manifest.json || exit 1
    [ "$(find . -name 'got*' | wc -l)" = "$(find . -name 'want*' | wc -l)" ] || { echo "left behind: $(ls got*)"; exit 1; }
}

kills=0
for ((round = 1; round <= rounds || (kills < rounds && round <= 20 * rounds); round++)); do # chance kills more or less often
    rm -f got*
    calls=0
    while :; do
        begin --threads $((1 + round % 3)) --save_seconds 0 --shard_bytes 150000 --out got >out &
        process=$!
        # Later and later, so that the work ends; a failure ends it too.
        sleep "$(awk -v ms=$((RANDOM % (span + 20 * calls + 1))) 'BEGIN { print ms / 1000 }')"
        kill -KILL $process 2>/dev/null
        wait $process 2>/dev/null
        status=$?
        calls=$((calls + 1))
        [ $status = 0 ] && break
        [ $status = 137 ] || { echo "round $round, call $calls ends with $status: $(cat log)"; exit 1; }
        kills=$((kills + 1))
        [ $calls -lt 200 ] || { echo "round $round does not end"; exit 1; }
    done
    compare
done
[ $kills -ge "$rounds" ] || { echo "only $kills kills in $((round - 1)) rounds of $span ms"; exit 1; }

# Stopped by a signal: code 75, all saved, and the same command goes on. Other work under the same name is refused.
status=0
for ((try = 1; try <= 20 && status == 0; try++)); do # until it comes before the end
    rm -f got*
    begin --threads 2 --shard_bytes 150000 --out got >out &
    process=$!
    until compgen -G 'got-00000.bin*' >/dev/null || ! kill -0 $process 2>/dev/null; do :; done # it works
    sleep "$(awk -v ms=$((span / (4 * try))) 'BEGIN { print ms / 1000 }')"
    kill -TERM $process 2>/dev/null
    wait $process
    status=$?
done
[ $status = 75 ] || { echo "TERM gives $status: $(cat log)"; exit 1; }
grep -q "the same command goes on" log || { echo "TERM: $(cat log)"; exit 1; }
tokenize --shard_bytes 160000 --out got >out
[ $? = 78 ] && grep -q "with another --shard_bytes" log || { echo "other work is not refused: $(cat log)"; exit 1; }
touch -d '2001-01-01' c.txt
tokenize --shard_bytes 150000 --out got >out
[ $? = 78 ] && grep -q "they have changed" log || { echo "changed inputs are not refused: $(cat log)"; exit 1; }
tokenize --shard_bytes 150000 --restart --out got >out || { echo "restart: $(cat log)"; exit 1; }
tokenize --threads 1 --shard_bytes 150000 --out want >/dev/null # whose manifest knows the new time
compare

# A signal that comes when all is done changes nothing.
for ((end = 1; end <= 5; end++)); do
    rm -f got*
    begin --threads 2 --shard_bytes 150000 --out got >out &
    process=$!
    until [ -e got.manifest.json ] || ! kill -0 $process 2>/dev/null; do :; done
    kill -TERM $process 2>/dev/null
    wait $process || { echo "TERM at the end gives $?: $(cat log)"; exit 1; }
    grep -q "documents" out || { echo "TERM at the end: $(cat out log)"; exit 1; }
    compare
done
echo "$((round - 1)) rounds, $kills kills, $span ms undisturbed, $(find . -name 'want-*.bin' | wc -l) shards"
