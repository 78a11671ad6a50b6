#!/usr/bin/env bash
# test: label=train timeout=240
# A signal to the one process, to one rank, to mpirun, once or often, while training or starting: one agreed checkpoint,
# "requeue" and code 75 in the run's status, every rank gone; what follows a resume is what would have followed anyway.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
. "$DTX_SOURCE/tests/harness/signals.sh"

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
folder=early ranks=
mkfifo slow.yaml
"$DTX" train slow.yaml "${small[@]}" --eval.every 0 --run.dir early >early.log 2>&1 </dev/null &
guard=$!
for _ in $(seq 400); do
    ! listening "$guard" || break
    sleep 0.02
done
kill -TERM "$guard"
sleep 0.1
kill -0 "$guard" 2>/dev/null && echo 'train.steps: 1000000' >slow.yaml
end 75 TERM
[ "$(count early)" = 1 ] || complain "early: $(count early) steps"

# During an evaluation of half a minute: it is given up, a step is saved.
launch evaluation env LD_PRELOAD="$DTX_BUILD/tests/libdtx_disk.so" DISK_FOLDER="$work/data.bin" DISK_READ_PAUSE=80 \
    "$DTX" "${endless[@]}" --eval.every 1 --eval.samples 400 --data.heldout 0.5 --data.prefetch 0
for _ in $(seq 600); do
    ! grep -q '^dtx: start: .* in all' evaluation.log || break
    sleep 0.05
done
kill -TERM "$process"
asked=$SECONDS ranks=$process
end 75 TERM
[ $((SECONDS - asked)) -lt 15 ] || complain "evaluation: $((SECONDS - asked)) s until it is saved"
grep -q 'asked to stop: no held-out loss of step 1' evaluation.log || complain "evaluation: $(cat evaluation.log)"

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
