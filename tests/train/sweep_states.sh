#!/usr/bin/env bash
# test: label=train timeout=180
# States of a sweep's trials: one that diverges, one that crashes and is tried again, one that is given up, none stops the
# others; a request to stop saves all; claims of other hosts, of processes whose number another one has now, of trainers
# that outlive their runner; what would change trials behind the table's back is refused.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
. "$DTX_SOURCE/tests/harness/sweep.sh"
make_data
run() { timeout -s KILL 60 "$DTX" sweep run "$@" >log 2>&1 </dev/null; }
id_of() { ids "$1" | sed -n "$2p"; } # SWEEP TRIAL
end_of() { sed -n 's/^outcome //p' "$1/state/$(id_of "$1" "$2").$3.end" 2>/dev/null; } # SWEEP TRIAL ATTEMPT
until_true() { # SECONDS WHAT COMMAND…
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $deadline ] || { complain "in vain waited for: $what"; return 1; }
        sleep 0.05
    done
}

# Four trials: as planned, with a rate that diverges, crashing twice, crashing always.
make_spec spec.yaml 'variants: diff' 'branch: false'
"$DTX" sweep plan spec.yaml --dir mixed --sweep.tokens 10240 --sweep.seeds '1, 2' --sweep.lr_scales '1, 1e30' >log 2>&1 ||
    complain "plan: $(cat log)"
[ "$(ids mixed | wc -l)" = 4 ] || complain "trials: $(cat log)"
ordinary=$(id_of mixed 1) wild=$(id_of mixed 2) flaky=$(id_of mixed 3)
grep -q '"trial":2,.*"lr_scale":1e+\{0,1\}30' mixed/plan.jsonl || complain "rows: $(cat mixed/plan.jsonl)"
cat >wrap <<END
#!/bin/sh
case "\$*" in
*$flaky*)
    [ ! -e mended ] || exec "\$@"
    echo crash >>crashes
    exit 7
    ;;
esac
exec "\$@"
END
chmod +x wrap
run mixed --launcher ./wrap --retries 2 --backoff 0.1
[ $? = 1 ] && grep -q '1 failed, 2 diverged' log || complain "the mixed sweep: $(cat log)"
[ "$(phase mixed 1) $(phase mixed 2) $(phase mixed 3) $(phase mixed 4)" = "done diverged failed diverged" ] ||
    complain "states: $("$DTX" sweep status mixed)"
[ "$(attempts_of mixed "$ordinary") $(attempts_of mixed "$wild") $(attempts_of mixed "$flaky")" = "1 1 3" ] ||
    complain "attempts: $(ls mixed/state)"
"$DTX" sweep status mixed >out 2>&1
grep -qE '^ *3 .* failed\(3\) ' out && grep -q 'exit code 7' out && grep -q 'diverged: no finite loss' out ||
    complain "status: $(cat out)"
[ "$(wc -l <mixed/results.csv)" = 2 ] || complain "results: $(cat mixed/results.csv)"
before=$(ls mixed/state)
run mixed --launcher ./wrap --retries 2
[ $? = 1 ] && [ "$(ls mixed/state)" = "$before" ] || complain "what was given up was tried again: $(cat log)"
touch mended
run mixed --launcher ./wrap --trial 3 --again || complain "once more: $(cat log)"
[ "$(phase mixed 3) $(attempts_of mixed "$wild")" = "done 1" ] || complain "once more: $("$DTX" sweep status mixed)"

# A crash is tried again in the same call, and what was saved is not lost.
"$DTX" sweep plan spec.yaml --dir once >log 2>&1 || complain "plan: $(cat log)"
cat >wrap <<END
#!/bin/sh
[ ! -e crashed ] || exec "\$@"
touch crashed
"\$@" --train.until 12
exit 9
END
run once --launcher ./wrap --jobs 1 || complain "after a crash: $(cat log)"
[ "$(end_of once 1 1) $(end_of once 1 2)" = "crashed done" ] && grep -q 'exit code 9.*tried again' log || complain "a crash: $(cat log)"
[ "$(grep -c '^dtx: resumed from .* at step 12$' "once/runs/$(id_of once 1)/logs/attempt-2.log")" = 1 ] ||
    complain "attempt 2: $(cat "once/runs/$(id_of once 1)/logs/attempt-2.log")"
run once || complain "nothing to do: $(cat log)"

# Stopped on request: everything is saved, the next call goes on. Longer trials, so that there is something to stop.
"$DTX" sweep plan spec.yaml --dir stop --sweep.tokens 51200 --sweep.seeds '1, 2' --checkpoint.every 40 >log 2>&1 || complain "plan: $(cat log)"
one=stop/runs/$(id_of stop 1)
stepping() { grep -q '^dtx: step' "$one/logs/attempt-$1.log" 2>/dev/null; } # ATTEMPT
"$DTX" sweep run stop --jobs 1 >stop.1 2>&1 </dev/null &
runner=$!
until_true 20 "steps" stepping 1
kill -TERM $runner
wait $runner
[ $? = 75 ] && grep -q 'the same command goes on' stop.1 || complain "TERM: $(cat stop.1)"
[ "$(end_of stop 1 1)" = stopped ] || complain "the stopped trial: $(ls stop/state)"
grep -q 'stopped by USR1' "$one/logs/attempt-1.log" || complain "the trial was not asked: $(tail -n 3 "$one/logs/attempt-1.log")"

# Its runner is killed, and what it started lives on: the trial is at work until that has ended.
cat >hold <<'END'
#!/bin/sh
trap '' TERM HUP
"$@" &
wait $!
while [ -e held ]; do sleep 0.1; done
END
chmod +x hold
touch held
"$DTX" sweep run stop --jobs 1 --launcher ./hold >stop.2 2>&1 </dev/null &
runner=$!
until_true 20 "steps" stepping 2
kill -9 $runner
wait $runner 2>/dev/null
[ "$(phase stop 1)" = running ] || complain "a trainer without runner is '$(phase stop 1)'"
"$DTX" sweep run stop --jobs 1 >stop.3 2>&1 </dev/null &
runner=$!
until_true 60 "the other trial" test -e "stop/state/$(id_of stop 2).done"
[ "$(attempts_of stop "$(id_of stop 1)")" = 2 ] || complain "two at one trial: $(cat stop.3)"
rm held
wait $runner || complain "the last runner: $(cat stop.3)"
all_done stop

# Claims: of another host, at work while it is touched; of a process whose number belongs to another one now.
"$DTX" sweep plan spec.yaml --dir claims --sweep.tokens 1280 >log 2>&1 || complain "plan: $(cat log)"
claim() { printf 'host %s\nplace %s\npid %d\nstarted %s\njob \ntime 1\nfrom 0\n' "$@" >"claims/state/$(id_of claims 1).1"; }
claim elsewhere other/pid 1 1
[ "$(phase claims 1)" = running ] || complain "a fresh claim of another host is '$(phase claims 1)'"
sed -i 's/^job .*/job 77\nrestart 1/' "claims/state/$(id_of claims 1).1"
state=$(SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1 phase claims 1)
[ "$state" = running ] || complain "a fresh claim of the same job on another node is '$state'"
state=$(SLURM_JOB_ID=77 SLURM_RESTART_COUNT=2 phase claims 1)
[ "$state" = pending ] || complain "a claim of the same job before it was restarted is '$state'"
touch -d '1 minute ago' "claims/state/$(id_of claims 1).1"
[ "$(phase claims 1)" = pending ] || complain "an old claim of another host is '$(phase claims 1)'"
claim "$(hostname)" "$(cat /proc/sys/kernel/random/boot_id)/$(readlink /proc/self/ns/pid)" $$ 12345
[ "$(phase claims 1)" = pending ] || complain "a claim by a number that was used again is '$(phase claims 1)'"

# An attempt has ended, but somebody is at work in the run: it is not for another attempt yet.
mkdir -p "claims/runs/$(id_of claims 1)"
printf 'outcome stopped\ntime 1\ncause \n' >"claims/state/$(id_of claims 1).1.end"
exec 9>"claims/runs/$(id_of claims 1)/.lock"
flock 9
[ "$(phase claims 1)" = running ] || complain "a trial whose run is locked is '$(phase claims 1)'"
exec 9>&-
[ "$(phase claims 1)" = pending ] || complain "a stopped trial is '$(phase claims 1)'"
rm "claims/state/$(id_of claims 1).1.end"
started=$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)
claim "$(hostname)" "$(cat /proc/sys/kernel/random/boot_id)/$(readlink /proc/self/ns/pid)" $$ "$started"
[ "$(phase claims 1)" = running ] || complain "a claim of a living process is '$(phase claims 1)'"
rm "claims/state/$(id_of claims 1).1"

# A trainer that cannot be started is tried again like one that crashes.
"$DTX" sweep plan spec.yaml --dir unlogged --sweep.tokens 1280 >log 2>&1 || complain "plan: $(cat log)"
mkdir -p "unlogged/runs/$(id_of unlogged 1)"
touch "unlogged/runs/$(id_of unlogged 1)/logs"
run unlogged --retries 1 --backoff 0
[ $? = 1 ] && [ "$(end_of unlogged 1 1) $(end_of unlogged 1 2)" = "crashed failed" ] || complain "no folder of logs: $(cat log)"
rm "unlogged/runs/$(id_of unlogged 1)/logs"
run unlogged --again || complain "with a folder of logs: $(cat log)"

# GPUs are dealt out among the trials that run at once, one a rank.
"$DTX" sweep plan spec.yaml --dir gpus --sweep.tokens 1280 --sweep.seeds '1, 2' >log 2>&1 || complain "plan: $(cat log)"
cat >wrap <<'END'
#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES" >>dealt
exec "$@"
END
CUDA_VISIBLE_DEVICES='' run gpus --launcher ./wrap --gpus 5,GPU-7 && grep -q '2 GPUs are dealt out among 2 trials' log || complain "GPUs: $(cat log)"
[ "$(sort dealt | xargs)" = "5 GPU-7" ] || complain "GPUs were dealt out as $(xargs <dealt)"
"$DTX" sweep plan spec.yaml --dir cores --sweep.tokens 1280 --device cpu >log 2>&1 || complain "plan: $(cat log)"
run cores --gpus 5,6 && ! grep -q 'dealt out' log || complain "GPUs for trials on the CPU: $(cat log)"
run gpus --gpus 1,,2
[ $? = 78 ] && grep -q "gpus: ''" log || complain "an empty GPU: $(cat log)"

# Behind the table's back.
DTX_LR_PEAK=1 "$DTX" sweep run claims >log 2>&1
[ $? = 78 ] && grep -q 'DTX_LR_PEAK is set' log || complain "a variable: $(cat log)"
config=claims/configs/$(id_of claims 1).yaml
sed -i 's/^lr.peak: .*/lr.peak: 0.02/' "$config"
run claims
[ $? = 1 ] && grep -q 'was edited' log && [ "$(phase claims 1)" = failed ] || complain "an edited configuration: $(cat log)"
"$DTX" sweep plan spec.yaml --dir claims --sweep.tokens 1280 >log 2>&1 || complain "plan again: $(cat log)"
sed -i 's/^lr.peak: .*/lr.peak: 0.01/' "$config"
cat >wrap <<'END'
#!/bin/sh
exec "$@" --lr.peak 0.02
END
run claims --again --launcher ./wrap
[ $? = 1 ] && grep -q 'not the planned configuration' log || complain "another configuration in the run: $(cat log)"
run claims --trial nobody
[ $? = 78 ] && grep -q "'nobody' is none of the 1 trials" log || complain "an unknown trial: $(cat log)"
finish
